"""Turns a pasted `vllm serve` line into a scenario. Knows what vLLM's flags mean, not what a shell does."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from simserve.documents import read_mapping
from simserve.errors import ScenarioError
from simserve.perf.collectives import All2AllBackend
from simserve.planner.export.flags import Flags, flags_of
from simserve.planner.importers.pasted import is_file, with_dotted
from simserve.planner.importers.server import (
    HostMemory,
    Program,
    Reading,
    chosen,
    counted,
    json_object,
    read_dtype,
    read_kv_cache_dtype,
    read_nodes,
    read_overrides,
    read_rope_scaling,
    read_stream_interval,
    switched,
    words_of,
)
from simserve.profiles.engine_options import CudagraphMode, EncoderCut, MoeBackend, StateDtype
from simserve.profiles.engine_profile import load_engine
from simserve.units import GIB

_VARIABLES_WITH_EFFECT = re.compile(r"(?:VLLM|NCCL|TORCH|PYTORCH)_\w+")
_HARMLESS_VARIABLES = re.compile(
    r"VLLM_(?:LOGGING|LOG|API_KEY|HOST_IP|PORT|NO_USAGE|DO_NOT|CACHE|CONFIG|USE_MODELSCOPE)\w*"
)
_TRUE_VARIABLES = ("1", "true")  # Values of a variable that vLLM reads as true.


def _spelled(reading: Reading, words: Sequence[str]) -> list[str]:
    flags = flags_of("vllm", str(reading.version))
    return _with_config(reading, [word for each in with_dotted(words) for word in _leveled(each, flags)], flags)


def _leveled(word: str, flags: Flags) -> list[str]:
    """Return a word, with ``-O3`` as the flag of the optimization level."""
    level = re.fullmatch(r"-O=?(\d)", word)
    if level is None:
        return [word]
    name = "--optimization-level" if flags.has("--optimization-level") else "--compilation-config"
    return [name, level[1]]


def _with_config(reading: Reading, words: Sequence[str], flags: Flags) -> list[str]:
    """Return the arguments of the ``--config`` file, followed by the others, which override them."""
    place = next((place for place, word in enumerate(words) if word.partition("=")[0] == "--config"), None)
    if place is None:
        return list(words)
    _, equals, name = words[place].partition("=")
    name = name if equals else "".join(words[place + 1 : place + 2])
    path = Path(name).expanduser()
    if not is_file(name):
        reading.notes.append(f"--config {name} is not here: what it sets is not simulated; run this where it lies.")
        return list(words)
    settings = read_mapping(path, ScenarioError)
    found = words_of({key: True if value is None else value for key, value in settings.items()}, flags)
    start = 1 if words and not words[0].startswith("-") else 0
    return [*words[:start], *found, *words[start:]]


def _max_model_len(reading: Reading, flag: str, value: Any) -> None:
    if value in ("-1", "auto"):
        reading.notes.append("--max-model-len auto takes what fits; here it is the model's own length.")
    else:
        reading.options["max_model_len"] = reading.count(flag, value)


def _prompt_ranks(reading: Reading, flag: str, value: Any) -> None:
    """Refuse further GPUs that split prompts: without them another number of GPUs would be simulated."""
    if (count := reading.count(flag, value)) > 1:
        rule = "adds GPUs that split prompts (prefill context parallelism), which is not simulated"
        remedy = "leave it out to simulate the tensor-parallel GPUs alone"
        raise ScenarioError(rule, file=reading.where, key=flag, value=count, remedy=remedy)


def _prefill_threshold(reading: Reading, flag: str, value: Any) -> None:
    if count := reading.count(flag, value):
        reading.options["long_prefill_token_threshold"] = count
    else:
        reading.ignored.append(flag)  # 0 means no limit


def _attention_backend(reading: Reading, flag: str, value: Any) -> None:
    if value in ("TRITON_ATTN", "TRITON_ATTN_VLLM_V1"):
        reading.options["attention_backend"] = "triton"
    elif str(value).startswith("ROCM_"):
        reading.options["attention_backend"] = "aiter"
    else:
        reading.not_simulated.append(f"{flag}{'' if flag.endswith('=') else ' '}{value}")


def _cascades(reading: Reading, flag: str, value: Any) -> None:
    if _has_choice("disable_cascade_attn", reading.version):
        switched("disable_cascade_attn", "options")(reading, flag, value)
    else:
        reading.ignored.append(flag)  # later releases accept it without effect


def _moe_backend(reading: Reading, flag: str, value: Any) -> None:
    name = str(value).lower().replace("-", "_")
    if name in get_args(MoeBackend):
        reading.options["moe_backend"] = name
    elif name != "auto":
        reading.not_simulated.append(f"{flag} {value}")


def _balancing_config(reading: Reading, flag: str, value: Any) -> None:
    settings = dict(json_object(reading, flag, value))
    if "num_redundant_experts" in settings:
        counted("num_redundant_experts", "deployment")(reading, flag, settings.pop("num_redundant_experts"))
    reading.ignored.extend(f"{flag} {key} {each}" for key, each in settings.items())


def _swap_space(reading: Reading, flag: str, value: Any) -> None:
    reading.options["swap_space"] = f"{reading.number(flag, value, 'is not a number of GiB'):g} GiB"


def _offloading_size(reading: Reading, flag: str, value: Any) -> None:
    size = reading.number(flag, value, "is not a number of GiB")
    reading.host_memory = HostMemory(size * GIB, is_of_rank=False, overlaps=False)


def _optimization_level(reading: Reading, _: str, value: Any) -> None:
    if str(value) == "0":
        reading.options["enforce_eager"] = True  # neither graphs nor compilation
    elif str(value) in ("2", "3"):
        reading.ignored.append(f"-O{value}")  # 2 is the default, 3 the same so far
    else:
        reading.not_simulated.append(f"-O{value}")


def _limits_of_media(reading: Reading, flag: str, value: Any) -> None:
    limits = dict(re.findall(r"(\w+)=(\d+)", str(value))) or dict(json_object(reading, flag, value))
    if limits and all(str(limit) == "0" for limit in limits.values()):
        reading.options["language_model_only"] = True
    else:
        reading.ignored.append(flag)


def _compilation_config(reading: Reading, flag: str, value: Any) -> None:
    if re.fullmatch(r"\d", str(value)):
        (reading.ignored if str(value) == "3" else reading.not_simulated).append(f"{flag} {value}")  # 3 is the default
        return
    settings = dict(json_object(reading, flag, value))
    sizes = settings.pop("cudagraph_capture_sizes", None)
    if isinstance(sizes, list) and sizes:
        settings.setdefault("max_cudagraph_capture_size", max(reading.count(flag, size) for size in sizes))
    largest = settings.pop("max_cudagraph_capture_size", None)
    if largest is not None:
        reading.options["max_cudagraph_capture_size"] = reading.count(flag, largest)
    mode = str(settings.get("cudagraph_mode", "")).upper()
    if mode == "NONE" or settings.get("use_cudagraph") is False:
        settings.pop("cudagraph_mode", None)
        settings.pop("use_cudagraph", None)
        reading.options["enforce_eager"] = True
    elif mode in get_args(CudagraphMode):
        reading.options["cudagraph_mode"] = mode
        del settings["cudagraph_mode"]
    for key in ("level", "mode"):
        if settings.get(key) in (3, "3"):
            reading.ignored.append(f"{flag} {key} {settings.pop(key)}")
    reading.not_simulated.extend(f"{flag} {key} {each}" for key, each in settings.items())


def _has_choice(option: str, version: str | None) -> bool:
    """Return whether the version has that option; FlashInfer's sampler affects memory in some versions only."""
    return load_engine("vllm").feature_range(option, version) is not None


_ATTENTION_VARIABLES = ("VLLM_ROCM_USE_AITER", "VLLM_ATTENTION_BACKEND")
"""Variables that choose the attention kernels on AMD GPUs; a named backend takes precedence over the switch."""
_EXPERT_SWITCH = "VLLM_ROCM_USE_AITER_MOE"  # Variable that excludes the experts from what AITER's switch turns on.
_LMCACHE_TIERS = ("LMCACHE_LOCAL_DISK", "LMCACHE_MAX_LOCAL_DISK_SIZE", "LMCACHE_REMOTE_URL")
"""Variables of LMCache that name tiers behind host memory."""


def _experts_on_amd(reading: Reading, variables: Mapping[str, str]) -> None:
    """Set the experts' backend where it differs from that of attention: AITER's switch decides it, not the backend
    named for attention."""
    attention = reading.options.get("attention_backend")
    if attention is None or "moe_backend" in reading.options or not _has_choice("moe_backend", reading.version):
        return
    switches = (variables.get("VLLM_ROCM_USE_AITER", "0"), variables.get(_EXPERT_SWITCH, "1"))
    is_on = all(each.lower() in _TRUE_VARIABLES for each in switches)
    if is_on != (attention == "aiter"):
        reading.options["moe_backend"] = "aiter" if is_on else "triton"


def _settle(reading: Reading) -> None:
    """Leave out a swap space that is not used, and read the variables."""
    swap = reading.options.get("swap_space", "0 GiB")
    if swap != "0 GiB" and reading.options.get("preemption_mode") != "swap":
        del reading.options["swap_space"]  # it matters only with --preemption-mode swap
        reading.not_simulated.append(f"--swap-space {swap.removesuffix(' GiB')}")
    for name, value in (reading.variables or {}).items():
        if name == "VLLM_PP_LAYER_PARTITION":
            layers = [reading.count(name, each) for each in value.split(",")]
            reading.deployment["pipeline_layer_partition"] = layers
        elif name == "VLLM_ALL2ALL_BACKEND" and value.startswith("deepep"):  # others copy every token to every rank
            reading.deployment["all2all_backend"] = value
        elif name == "VLLM_MXFP4_USE_MARLIN":
            reading.options["moe_backend"] = "marlin" if value.lower() in _TRUE_VARIABLES else "triton"
        elif name in _ATTENTION_VARIABLES and _has_choice("attention_backend", reading.version):
            if name == "VLLM_ATTENTION_BACKEND":
                _attention_backend(reading, f"{name}=", value)
            elif value.lower() in _TRUE_VARIABLES:
                reading.options.setdefault("attention_backend", "aiter")
        elif name == _EXPERT_SWITCH and _has_choice("moe_backend", reading.version):
            continue
        elif name == "VLLM_USE_FLASHINFER_SAMPLER" and _has_choice("flashinfer_sampler", reading.version):
            reading.options["flashinfer_sampler"] = value.lower() in _TRUE_VARIABLES
        elif name == "LMCACHE_MAX_LOCAL_CPU_SIZE":
            size = reading.number(name, value, "is not a number of GiB")
            reading.host_memory = HostMemory(size * GIB, is_of_rank=True, overlaps=False)
        elif name in _LMCACHE_TIERS:
            reading.notes.append(
                f"{name} is a KV tier whose bandwidth no line says: add it to deployment.engine.kv_tiers with yours."
            )
        elif _VARIABLES_WITH_EFFECT.fullmatch(name) and not _HARMLESS_VARIABLES.fullmatch(name):
            reading.not_simulated.append(f"{name}={value}")
        else:
            reading.ignored.append(name)
    if reading.variables is not None:
        _experts_on_amd(reading, reading.variables)


VLLM = Program(
    engine="vllm",
    spelled=_spelled,
    settle=_settle,
    own={
        "--prefill-context-parallel-size": _prompt_ranks,
        "--nnodes": read_nodes,
        "--stream-interval": read_stream_interval,
        "--max-model-len": _max_model_len,
        "--long-prefill-token-threshold": _prefill_threshold,
        "--kv-cache-memory-bytes": lambda reading, flag, value: reading.put(
            "kv_cache_memory_bytes", reading.size(flag, value)
        ),
        "--attention-backend": _attention_backend,
        "--disable-cascade-attn": _cascades,
        "--moe-backend": _moe_backend,
        "--mamba-ssm-cache-dtype": chosen("mamba_ssm_cache_dtype", "options", get_args(StateDtype), default="auto"),
        "--mm-encoder-tp-mode": chosen("mm_encoder_tp_mode", "options", get_args(EncoderCut)),
        "--all2all-backend": chosen("all2all_backend", "deployment", get_args(All2AllBackend)),
        "--eplb-config": _balancing_config,
        "--kv-offloading-size": _offloading_size,
        # With either one, the server loads the blocks that it finds.
        "--kv-offloading-backend": lambda reading, flag, value: reading.ignored.append(f"{flag} {value}"),
        "--dtype": read_dtype,
        "--kv-cache-dtype": read_kv_cache_dtype,
        "--swap-space": _swap_space,
        "--speculative-config": lambda reading, flag, value: reading.speculation.update(
            json_object(reading, flag, value)
        ),
        "--optimization-level": _optimization_level,
        "--compilation-config": _compilation_config,
        "--limit-mm-per-prompt": _limits_of_media,
        "--hf-overrides": read_overrides,
        "--rope-scaling": lambda reading, flag, value: read_rope_scaling(
            reading, flag, json_object(reading, flag, value)
        ),
    },
)
"""`vllm serve MODEL ...`, the older ``python -m vllm.entrypoints.openai.api_server --model MODEL ...``, or a
``docker run`` of vLLM's image, with settings from a ``--config`` file."""
