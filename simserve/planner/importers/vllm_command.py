"""Turns a pasted `vllm serve` line into a scenario. Knows what vLLM's flags mean, not what a shell does."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from simserve.documents import read_mapping
from simserve.errors import ScenarioError
from simserve.perf.collectives import All2AllBackend
from simserve.planner.export.flags import Flags, flags_of
from simserve.planner.importers.draft import Draft
from simserve.planner.importers.pasted import Pasted, is_file, read_pasted, with_dotted, without_shell
from simserve.planner.importers.server import (
    DTYPES,
    FORMATS_OF_THE_CHECKPOINT,
    Reading,
    Vocabulary,
    assumptions,
    draft_of,
    json_object,
    read_arguments,
    read_balancing,
    read_cpu_offload,
    read_lmcache_variable,
    read_offloading_backend,
    read_offloading_size,
    read_overlap,
    read_overrides,
    read_rope_scaling,
    read_whole_encoders,
    redundant_experts,
)
from simserve.profiles.engine_options import CudagraphMode, EncoderCut, MoeBackend
from simserve.profiles.engine_profile import load_engine

_WHERE = "vllm command"
_OTHER_SERVERS = {
    "sglang.launch_server": "sglang-command",
    "sglang serve": "sglang-command",
    "trtllm-serve": "trtllm-command",
}
_ALIASES = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-ep": "--enable-expert-parallel",
    "-q": "--quantization",
    "-sc": "--speculative-config",
    "-cc": "--compilation-config",
    "-O": "--compilation-config",
}
_NUMBERS = {
    "--tensor-parallel-size": "tensor_parallel_size",
    "--pipeline-parallel-size": "pipeline_parallel_size",
}
_ENGINE_NUMBERS = {
    "--max-num-seqs": "max_num_seqs",
    "--max-num-batched-tokens": "max_num_batched_tokens",
    "--max-cudagraph-capture-size": "max_cudagraph_capture_size",
    "--block-size": "block_size",
    "--num-gpu-blocks-override": "num_gpu_blocks_override",
    "--max-loras": "max_loras",
    "--max-lora-rank": "max_lora_rank",
    "--max-cpu-loras": "max_cpu_loras",
}
_ENGINE_SWITCHES = {
    "--enable-chunked-prefill": "enable_chunked_prefill",
    "--enable-prefix-caching": "enable_prefix_caching",
    "--async-scheduling": "async_scheduling",
    "--enforce-eager": "enforce_eager",
    "--language-model-only": "language_model_only",
}
_QUANTIZATIONS = {
    "fp8": "fp8",
    "fp8_per_tensor": "fp8",
    "fp8_per_channel": "fp8",
    "fp8_per_block": "fp8",
    "ptpc_fp8": "fp8",
    "fbgemm_fp8": "fp8",
    "modelopt": "fp8",
    "awq": "awq-int4",
    "awq_marlin": "awq-int4",
    "auto_awq": "awq-int4",
    "gptq": "gptq-int4-exllama",
    "gptq_marlin": "gptq-int4",
    "auto_gptq": "gptq-int4",
    "int8_per_channel_weight_only": "int8-wo",
    "experts_int8": "int8-wo",
    "modelopt_fp4": "nvfp4",
    "nvfp4": "nvfp4",
    "bitsandbytes": "nf4",
    "mxfp4": "mxfp4",
    "gpt_oss_mxfp4": "mxfp4",
}
"""vLLM's names of weight formats -> the scenario's."""
_WITHOUT_EFFECT = re.compile(
    r"--(?:host|port|api-key|served-model-name|trust-remote-code|download-dir|tokenizer(?:-.*)?|seed|chat-template.*|"
    r"revision|code-revision|ssl-.*|(?:disable-)?uvicorn-.*|disable-fastapi-docs|disable-log-.*|enable-log-.*|max-log-len|tool-.*|enable-auto-tool-choice|"
    r"reasoning-parser|response-role|allow.*|load-format|root-path|generation-config|distributed-executor-backend|"
    r"data-parallel-(?:backend|size-local|address|rpc-port|start-rank)|nnodes|node-rank|master-(?:addr|port)|headless|"
    r"ngram-prompt-lookup-max|config|override-generation-config|default-chat-template-kwargs|safetensors-load-strategy)"
)
"""Flags without effect on the simulation."""
_VARIABLES_WITH_EFFECT = re.compile(r"(?:VLLM|NCCL|TORCH|PYTORCH)_\w+")
_HARMLESS_VARIABLES = re.compile(
    r"VLLM_(?:LOGGING|LOG|API_KEY|HOST_IP|PORT|NO_USAGE|DO_NOT|CACHE|CONFIG|USE_MODELSCOPE)\w*"
)
_TRUE_VARIABLES = ("1", "true")
"""Values of a variable that vLLM reads as true."""
_IMAGE = re.compile(r"(?:^|/)(?:vllm-openai(?:-rocm)?(?:$|[:@])|vllm(?:-rocm)?:)(?:v?(\d+(?:\.\d+)+))?")
"""vLLM's image; the group is the release, which tags such as ``latest`` do not give."""
_TITLE = "What does this vLLM server of {} do?"


def import_vllm_command(
    text: str, *, hardware: str | None = None, version: str | None = None, model: str | None = None
) -> Draft:
    """Return the scenario that a command line describes.

    Args:
        text: `vllm serve MODEL ...`, the older ``python -m vllm.entrypoints.openai.api_server --model MODEL ...``,
            or a ``docker run`` of vLLM's image, as pasted: over several lines or without line breaks, with variables
            in front and settings from a ``--config`` file.
        hardware: GPU it runs on, not named in the line; None: `ASSUMED_HARDWARE`, with a note.
        version: vLLM's version; None: the image's tag, else the newest known.
        model: Profile or configuration to use instead of the one closest to the line's model.

    Raises:
        ScenarioError: The text is not such a command, or its model has no profile.
    """
    pasted = read_pasted(text, _WHERE)
    arguments, tag = _arguments(pasted.words)
    newest = load_engine("vllm").versions[-1].version
    known = version or tag or newest
    reading = read_vllm_arguments(without_shell(arguments), known, _WHERE)
    reading.notes[:0] = assumptions("vllm", newest, hardware=hardware, says_version=bool(version or tag))
    _read_variables(reading, pasted)
    if reading.model is None:
        raise ScenarioError("names no model", file=_WHERE, remedy="write vllm serve ORG/NAME ...")
    return draft_of(reading, model, hardware=hardware, title=_TITLE).checked()


def read_vllm_arguments(arguments: Sequence[str], version: str, where: str) -> Reading:
    """Read vLLM's arguments.

    Args:
        arguments: The words after ``vllm serve``.
        version: vLLM's version.
        where: Name of the arguments in errors.

    Raises:
        ScenarioError: A flag lacks its value, or has one that it does not accept.
    """
    flags = flags_of("vllm", version)
    reading = Reading("vllm", version, where)
    words = [word for each in with_dotted(arguments) for word in _without_alias(each, flags)]
    read_arguments(_VOCABULARY, _with_config(reading, words, flags), flags, reading)
    swap = reading.options.get("swap_space", "0 GiB")
    if swap != "0 GiB" and reading.options.get("preemption_mode") != "swap":
        del reading.options["swap_space"]  # it matters only with --preemption-mode swap
        reading.not_simulated.append(f"--swap-space {swap.removesuffix(' GiB')}")
    return reading


def _arguments(words: Sequence[str]) -> tuple[Sequence[str], str | None]:
    """Return the words after the program or image, and the version in the image's tag."""
    for position, word in enumerate(words):
        image = _IMAGE.search(word)
        if image is not None:
            rest = words[position + 1 :]
            return (_arguments(rest)[0] if _starts_server(rest) else rest), image[1]
        if word.rsplit("/", 1)[-1] == "vllm" and words[position + 1 : position + 2] == ("serve",):
            return words[position + 2 :], None
        if word.startswith("vllm.entrypoints.") and word.endswith("api_server"):
            return words[position + 1 :], None
    line = " ".join(words)
    other = next((command for sign, command in _OTHER_SERVERS.items() if sign in line), None)
    remedy = f"this is a line for simserve import {other}" if other else "paste a line such as vllm serve ORG/NAME"
    raise ScenarioError("holds no vllm serve", file=_WHERE, value=line[:200], remedy=remedy)


def _starts_server(words: Sequence[str]) -> bool:
    return any(
        words[place : place + 2] == ("vllm", "serve") or word.endswith("api_server") for place, word in enumerate(words)
    )


def _without_alias(word: str, flags: Flags) -> list[str]:
    """Return a flag by its long name; ``-O3`` sets the optimization level."""
    level = re.fullmatch(r"-O=?(\d)", word)
    if level is not None:
        name = "--optimization-level" if flags.has("--optimization-level") else "--compilation-config"
        return [name, level[1]]
    name, equals, value = word.partition("=")
    return [f"{_ALIASES.get(name, name)}{equals}{value}"]


def _with_config(reading: Reading, words: Sequence[str], flags: Flags) -> list[str]:
    """Return the arguments of the ``--config`` file, followed by the others, which override them.

    Raises:
        ScenarioError: The file is not a mapping.
    """
    place = next((place for place, word in enumerate(words) if word.partition("=")[0] == "--config"), None)
    if place is None:
        return list(words)
    _, equals, name = words[place].partition("=")
    name = name if equals else "".join(words[place + 1 : place + 2])
    path = Path(name)
    if not is_file(name):
        reading.notes.append(f"--config {name} is not here: what it sets is not simulated; run this where it lies.")
        return list(words)
    found: list[str] = []
    for key, value in read_mapping(path, ScenarioError).items():
        flag = f"--{str(key).replace('_', '-')}"
        if value is False:
            found += [f"--no-{flag[2:]}"] if flags.takes.get(flag) == "toggle" else []
        elif value is True or value is None:
            found.append(flag)
        elif isinstance(value, Mapping):
            found += [flag, json.dumps(value)]
        else:
            found += [flag, *map(str, value if isinstance(value, list) else [value])]
    start = 1 if words and not words[0].startswith("-") else 0
    return [*words[:start], *found, *words[start:]]


def _max_model_len(reading: Reading, value: object) -> None:
    if value in ("-1", "auto"):
        reading.notes.append("--max-model-len auto takes what fits; here it is the model's own length.")
    else:
        reading.options["max_model_len"] = reading.count("--max-model-len", value)


def _prefill_threshold(reading: Reading, value: object) -> None:
    flag = "--long-prefill-token-threshold"
    if count := reading.count(flag, value):
        reading.options["long_prefill_token_threshold"] = count
    else:
        reading.ignored.append(flag)  # 0 means no limit


def _model(reading: Reading, value: object) -> None:
    reading.model = str(value)


def _share(reading: Reading, value: object) -> None:
    flag = "--gpu-memory-utilization"
    reading.options["gpu_memory_utilization"] = reading.number(flag, value, "is not a share")


def _kv_cache_memory(reading: Reading, value: object) -> None:
    reading.options["kv_cache_memory_bytes"] = reading.size("--kv-cache-memory-bytes", value)


def _attention_backend(reading: Reading, value: object, name: str = "--attention-backend ") -> None:
    if value in ("TRITON_ATTN", "TRITON_ATTN_VLLM_V1"):
        reading.options["attention_backend"] = "triton"
    elif str(value).startswith("ROCM_"):
        reading.options["attention_backend"] = "aiter"
    else:
        reading.not_simulated.append(f"{name}{value}")


def _moe_backend(reading: Reading, value: object) -> None:
    name = str(value).lower().replace("-", "_")
    if name in get_args(MoeBackend):
        reading.options["moe_backend"] = name
    elif name != "auto":
        reading.not_simulated.append(f"--moe-backend {value}")


def _encoder_cut(reading: Reading, value: object) -> None:
    if value in get_args(EncoderCut):
        reading.options["mm_encoder_tp_mode"] = value
    else:
        reading.not_simulated.append(f"--mm-encoder-tp-mode {value}")


def _runner(reading: Reading, value: object) -> None:
    """Read the runner, or the task of releases before 0.13; all kinds of pooling count alike."""
    if value in ("pooling", "embed", "embedding", "score", "classify", "reward"):
        reading.is_pooling = True
    elif value not in ("auto", "generate"):
        reading.not_simulated.append(f"--runner {value}")


def _data_parallel(reading: Reading, value: object) -> None:
    reading.data_parallel_size = reading.count("--data-parallel-size", value)


def _enable_lora(reading: Reading, value: object) -> None:
    if value is True:
        reading.options.setdefault("max_loras", 1)  # vLLM's default, config/lora.py


def _speculative_config(reading: Reading, value: object) -> None:
    reading.speculation |= json_object(reading, "--speculative-config", value)


def _speculative_model(reading: Reading, value: object) -> None:
    reading.speculation["model"] = str(value)


def _speculative_tokens(reading: Reading, value: object) -> None:
    reading.speculation["num_speculative_tokens"] = reading.count("--num-speculative-tokens", value)


def _expert_parallel(reading: Reading, value: object) -> None:
    reading.deployment["enable_expert_parallel"] = value is True


def _all2all_backend(reading: Reading, value: object) -> None:
    if value in get_args(All2AllBackend):
        reading.deployment["all2all_backend"] = value
    else:
        reading.not_simulated.append(f"--all2all-backend {value}")


def _balancing_config(reading: Reading, value: object) -> None:
    settings = dict(json_object(reading, "--eplb-config", value))
    if "num_redundant_experts" in settings:
        redundant_experts("--eplb-config")(reading, settings.pop("num_redundant_experts"))
    reading.ignored.extend(f"--eplb-config {key} {each}" for key, each in settings.items())


def _quantization(reading: Reading, value: object) -> None:
    known = _QUANTIZATIONS.get(str(value))
    if str(value) in FORMATS_OF_THE_CHECKPOINT:
        reading.as_stored = f"--quantization {value}"
        return
    if known is None:
        reading.not_simulated.append(f"--quantization {value}")
    reading.quantization = known or "none"


def _dtype(reading: Reading, value: object) -> None:
    reading.dtype = DTYPES.get(str(value))


def _kv_cache_dtype(reading: Reading, value: object) -> None:
    reading.set_kv_cache_dtype("--kv-cache-dtype", value)


def _scheduling_policy(reading: Reading, value: object) -> None:
    if value in ("fcfs", "priority"):
        reading.options["scheduling_policy"] = value
    else:
        reading.not_simulated.append(f"--scheduling-policy {value}")


def _preemption_mode(reading: Reading, value: object) -> None:
    if value in ("recompute", "swap"):
        reading.options["preemption_mode"] = value
    else:
        reading.not_simulated.append(f"--preemption-mode {value}")


def _swap_space(reading: Reading, value: object) -> None:
    reading.options["swap_space"] = f"{reading.number('--swap-space', value, 'is not a number of GiB'):g} GiB"


def _optimization_level(reading: Reading, value: object) -> None:
    if str(value) == "0":
        reading.options["enforce_eager"] = True  # neither graphs nor compilation
    elif str(value) in ("2", "3"):
        reading.ignored.append(f"-O{value}")  # 2 is the default, 3 the same so far
    else:
        reading.not_simulated.append(f"-O{value}")


def _limits_of_media(reading: Reading, value: object) -> None:
    flag = "--limit-mm-per-prompt"
    limits = dict(re.findall(r"(\w+)=(\d+)", str(value))) or dict(json_object(reading, flag, value))
    if limits and all(str(limit) == "0" for limit in limits.values()):
        reading.options["language_model_only"] = True
    else:
        reading.ignored.append(flag)


def _compilation_config(reading: Reading, value: object) -> None:
    flag = "--compilation-config"
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


def _hf_overrides(reading: Reading, value: object) -> None:
    read_overrides(reading, "--hf-overrides", json_object(reading, "--hf-overrides", value))


def _rope_scaling(reading: Reading, value: object) -> None:
    read_rope_scaling(reading, "--rope-scaling", json_object(reading, "--rope-scaling", value))


_OTHERS: dict[str, Callable[[Reading, object], None]] = {
    "--model": _model,
    "--max-model-len": _max_model_len,
    "--long-prefill-token-threshold": _prefill_threshold,
    "--gpu-memory-utilization": _share,
    "--kv-cache-memory-bytes": _kv_cache_memory,
    "--attention-backend": _attention_backend,
    "--moe-backend": _moe_backend,
    "--mm-encoder-tp-mode": _encoder_cut,
    "--runner": _runner,
    "--task": _runner,
    "--enable-multimodal-encoder-data-parallel": read_whole_encoders,
    "--data-parallel-size": _data_parallel,
    "--enable-expert-parallel": _expert_parallel,
    "--all2all-backend": _all2all_backend,
    "--enable-dbo": read_overlap,
    "--enable-eplb": read_balancing,
    "--eplb-config": _balancing_config,
    "--num-redundant-experts": redundant_experts("--num-redundant-experts"),
    "--cpu-offload-gb": read_cpu_offload,
    "--enable-lora": _enable_lora,
    "--kv-offloading-size": read_offloading_size,
    "--kv-offloading-backend": read_offloading_backend,
    "--quantization": _quantization,
    "--dtype": _dtype,
    "--kv-cache-dtype": _kv_cache_dtype,
    "--scheduling-policy": _scheduling_policy,
    "--preemption-mode": _preemption_mode,
    "--swap-space": _swap_space,
    "--speculative-config": _speculative_config,
    "--speculative-model": _speculative_model,
    "--num-speculative-tokens": _speculative_tokens,
    "--optimization-level": _optimization_level,
    "--compilation-config": _compilation_config,
    "--limit-mm-per-prompt": _limits_of_media,
    "--hf-overrides": _hf_overrides,
    "--rope-scaling": _rope_scaling,
}

_VOCABULARY = Vocabulary(
    engine="vllm",
    deployment_counts=_NUMBERS,
    option_counts=_ENGINE_NUMBERS,
    switches={flag: (key, True) for flag, key in _ENGINE_SWITCHES.items()},
    others=_OTHERS,
    without_effect=_WITHOUT_EFFECT,
)

KNOWN_FLAGS = (*_NUMBERS, *_ENGINE_NUMBERS, *_ENGINE_SWITCHES, *_OTHERS)
"""Flags for which a scenario has a key."""


def argument_text(value: Any) -> str:
    """Return a value as a word of a command line: as JSON if it is a mapping or a list."""
    return json.dumps(value, default=str) if isinstance(value, Mapping | list | tuple) else str(value)


def _has_choice(option: str, version: str | None) -> bool:
    """Return whether the version has that option; FlashInfer's sampler affects memory in some versions only."""
    return load_engine("vllm").feature_range(option, version) is not None


_ATTENTION_VARIABLES = ("VLLM_ROCM_USE_AITER", "VLLM_ATTENTION_BACKEND")
"""Variables that choose the attention kernels on AMD GPUs; a named backend takes precedence over the switch."""
_EXPERT_SWITCH = "VLLM_ROCM_USE_AITER_MOE"
"""Variable that excludes the experts from what AITER's switch turns on."""


def _attention_variable(reading: Reading, name: str, value: str) -> None:
    if name == "VLLM_ATTENTION_BACKEND":
        _attention_backend(reading, value, name=f"{name}=")
    elif value.lower() in _TRUE_VARIABLES:
        reading.options.setdefault("attention_backend", "aiter")


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


def _read_variables(reading: Reading, pasted: Pasted) -> None:
    for name, value in pasted.variables.items():
        if name == "VLLM_PP_LAYER_PARTITION":
            layers = [reading.count(name, each) for each in value.split(",")]
            reading.deployment["pipeline_layer_partition"] = layers
        elif name == "VLLM_MXFP4_USE_MARLIN":
            reading.options["moe_backend"] = "marlin" if value.lower() in _TRUE_VARIABLES else "triton"
        elif name in _ATTENTION_VARIABLES and _has_choice("attention_backend", reading.version):
            _attention_variable(reading, name, value)
        elif name == _EXPERT_SWITCH and _has_choice("moe_backend", reading.version):
            continue
        elif name == "VLLM_USE_FLASHINFER_SAMPLER" and _has_choice("flashinfer_sampler", reading.version):
            reading.options["flashinfer_sampler"] = value.lower() in _TRUE_VARIABLES
        elif read_lmcache_variable(reading, name, value):
            continue
        elif _VARIABLES_WITH_EFFECT.fullmatch(name) and not _HARMLESS_VARIABLES.fullmatch(name):
            reading.not_simulated.append(f"{name}={value}")
        else:
            reading.ignored.append(name)
    _experts_on_amd(reading, pasted.variables)
