"""From a pasted `vllm serve` line to a scenario. Knows vLLM's flags, not what a shell would do with the line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from simserve.errors import ScenarioError
from simserve.planner.export.flags import Flags, Word, flags_of, read_words, similar
from simserve.planner.importers.draft import Draft, scenario_name
from simserve.planner.importers.model_names import NamedModel, find_model, stored_format
from simserve.planner.importers.speculation import read_speculation, settings_of, unsimulated_note
from simserve.planner.importers.traffic import PLACEHOLDER_NOTE, placeholder_workload
from simserve.profiles.engine_profile import load_engine
from simserve.profiles.model import ModelProfile, load_model
from simserve.scenario.deployment_spec import DeploymentSpec

ASSUMED_HARDWARE = "h100-sxm-80gb"
"""GPU of a command line that comes without one."""

_WHERE = "vllm command"
_ALIASES = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-ep": "--enable-expert-parallel",
    "-q": "--quantization",
}
_NUMBERS = {
    "--tensor-parallel-size": "tensor_parallel_size",
    "--pipeline-parallel-size": "pipeline_parallel_size",
}
_ENGINE_NUMBERS = {
    "--max-num-seqs": "max_num_seqs",
    "--num-gpu-blocks-override": "num_gpu_blocks_override",
    "--kv-cache-memory-bytes": "kv_cache_memory_bytes",
    "--long-prefill-token-threshold": "long_prefill_token_threshold",
    "--max-num-batched-tokens": "max_num_batched_tokens",
    "--max-cudagraph-capture-size": "max_cudagraph_capture_size",
    "--block-size": "block_size",
    "--max-model-len": "max_model_len",
}
_ENGINE_SWITCHES = {
    "--enable-chunked-prefill": "enable_chunked_prefill",
    "--enable-prefix-caching": "enable_prefix_caching",
    "--async-scheduling": "async_scheduling",
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
    "mxfp4": "mxfp4",
    "gpt_oss_mxfp4": "mxfp4",
}
"""vLLM's names of weight formats -> the scenario's."""
_KV_CACHE_DTYPES = {
    "auto": "auto",
    "float16": "fp16",
    "bfloat16": "bf16",
    "fp8": "fp8",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "int8_per_token_head": "int8",
    "fp8_per_token_head": "fp8",
    "int4_per_token_head": "int4",
}
_DTYPES = {"half": "fp16", "float16": "fp16", "bfloat16": "bf16", "float": "fp32", "float32": "fp32"}
_WITHOUT_EFFECT = re.compile(
    r"--(?:host|port|api-key|served-model-name|trust-remote-code|download-dir|tokenizer(?:-.*)?|seed|chat-template.*|"
    r"revision|code-revision|ssl-.*|uvicorn-.*|disable-log-.*|enable-log-.*|max-log-len|tool-.*|enable-auto-tool-choice|"
    r"reasoning-parser|response-role|allow.*|load-format|root-path|generation-config|distributed-executor-backend|ngram-prompt-lookup-max)"
)
"""Flags that change nothing the simulation looks at."""
_HUMAN = re.compile(r"(\d+(?:\.\d+)?)([kKmMgG]?)")
_SCALES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
"""Suffixes that vLLM reads: small ones are decimal, capital ones binary."""
_IMAGE = re.compile(r"(?:^|/)vllm(?:-openai)?(?:-rocm)?:(?:v?(\d+(?:\.\d+)+))?")
"""vLLM's image; the group is the release, which a tag such as ``latest`` does not name."""


@dataclass(slots=True)
class _Reading:
    """What has been understood so far."""

    flags: Flags
    deployment: dict[str, Any] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)
    model: str | None = None
    quantization: str | None = None
    dtype: str | None = None
    data_parallel_size: int = 1
    swap_space: float | None = None
    speculation: dict[str, Any] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    not_simulated: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def import_vllm_command(
    text: str, *, hardware: str | None = None, version: str | None = None, model: str | None = None
) -> Draft:
    """Return the scenario of a command line.

    Args:
        text: `vllm serve MODEL ...`, the older ``python -m vllm.entrypoints.openai.api_server --model MODEL ...``,
            or a ``docker run`` of vLLM's image; over several lines with backslashes, variables in front.
        hardware: GPU that it runs on, which the line does not say; None: `ASSUMED_HARDWARE`, with a note.
        version: vLLM's version; None: the image's tag, else the newest known.
        model: Profile or configuration to use instead of what the line's model is near to.

    Raises:
        ScenarioError: The text is no such command, or its model has no profile.
    """
    words = _words(text)
    arguments, tag = _arguments(words)
    newest = load_engine("vllm").versions[-1].version
    known = version or tag or newest
    reading = _Reading(flags_of("vllm", known))
    if version is None and tag is None:
        reading.notes.append(f"The line does not say its version: read as vllm {newest}, the newest known.")
    given, loose = read_words(reading.flags, [_without_alias(word) for word in arguments])
    if hardware is None:
        reading.notes.insert(
            0, f"The line does not say its GPU: {ASSUMED_HARDWARE} is assumed; --hardware names yours."
        )
    for word in given:
        _read(reading, word)
    served = reading.model or (loose.pop(0) if loose else None)
    if served is None:
        raise ScenarioError("names no model", file=_WHERE, remedy="write vllm serve ORG/NAME ...")
    if loose:
        reading.notes.append("Not understood: " + " ".join(loose) + ".")
    return _draft(reading, served, model, hardware=hardware or ASSUMED_HARDWARE, version=known).checked()


def _words(text: str) -> list[str]:
    joined = re.sub(r"\\\s*\n", " ", text)
    lines = [line for line in joined.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    try:
        words = [word for line in lines for word in shlex.split(line.strip().removeprefix("$ "))]
    except ValueError as failure:
        raise ScenarioError(f"is no command line: {failure}", file=_WHERE) from None
    if not words:
        raise ScenarioError("is empty", file=_WHERE, remedy="paste a line such as vllm serve ORG/NAME")
    return words


def _arguments(words: list[str]) -> tuple[list[str], str | None]:
    """Return the words after what starts the server, and the version that an image's tag names."""
    for position, word in enumerate(words):
        image = _IMAGE.search(word)
        if image is not None:
            rest = words[position + 1 :]
            return (_arguments(rest)[0] if _starts_server(rest) else rest), image[1]
        if word.rsplit("/", 1)[-1] == "vllm" and words[position + 1 : position + 2] == ["serve"]:
            return words[position + 2 :], None
        if word.startswith("vllm.entrypoints.") and word.endswith("api_server"):
            return words[position + 1 :], None
    raise ScenarioError(
        "holds no vllm serve", file=_WHERE, value=" ".join(words), remedy="paste a line such as vllm serve ORG/NAME"
    )


def _starts_server(words: list[str]) -> bool:
    return any(word == "serve" or word.endswith("api_server") for word in words)


def _without_alias(word: str) -> str:
    name, equals, value = word.partition("=")
    return f"{_ALIASES.get(name, name)}{equals}{value}"


def _read(reading: _Reading, word: Word) -> None:
    flag, value = word.flag, word.value
    if not word.is_known:
        shown = f"{flag} {value}" if value is not None else flag
        meant = similar(reading.flags, flag)
        hint = f"; did you mean {meant}?" if meant else "."
        reading.notes.append(f"vllm {reading.flags.version} has no {flag}: {shown} is left out{hint}")
    elif flag == "--model":
        reading.model = str(value)
    elif flag in _NUMBERS:
        reading.deployment[_NUMBERS[flag]] = _number(flag, value)
    elif flag in _ENGINE_NUMBERS:
        _read_engine_number(reading, flag, value)
    elif flag in _ENGINE_SWITCHES:
        reading.engine[_ENGINE_SWITCHES[flag]] = value is True
    elif flag in _OTHERS:
        _OTHERS[flag](reading, value)
    elif _WITHOUT_EFFECT.fullmatch(flag):
        reading.ignored.append(flag)
    else:
        reading.not_simulated.append(flag if isinstance(value, bool) else f"{flag} {value}")


def _read_engine_number(reading: _Reading, flag: str, value: object) -> None:
    if flag == "--max-model-len" and value in ("-1", "auto"):
        reading.notes.append("--max-model-len auto takes what fits; here it is the model's own length.")
        return
    reading.engine[_ENGINE_NUMBERS[flag]] = _number(flag, value)


def _number(flag: str, value: object) -> int:
    match = _HUMAN.fullmatch(str(value))
    number = float(match[1]) * _SCALES[match[2]] if match else 0.5
    if not number.is_integer():
        raise ScenarioError("is not a whole number", file=_WHERE, key=flag, value=value)
    return int(number)


def _share(reading: _Reading, value: object) -> None:
    try:
        reading.engine["gpu_memory_utilization"] = float(str(value))
    except ValueError:
        raise ScenarioError("is not a share", file=_WHERE, key="--gpu-memory-utilization", value=value) from None


def _data_parallel(reading: _Reading, value: object) -> None:
    reading.data_parallel_size = _number("--data-parallel-size", value)


def _enforce_eager(reading: _Reading, value: object) -> None:
    reading.engine["enforce_eager"] = value is True


def _cpu_offload(reading: _Reading, value: object) -> None:
    try:
        reading.engine["cpu_offload_gb"] = float(str(value))
    except ValueError:
        raise ScenarioError("is not a number of GiB", file=_WHERE, key="--cpu-offload-gb", value=value) from None


def _speculative_config(reading: _Reading, value: object) -> None:
    reading.speculation |= settings_of(value, _WHERE)


def _speculative_model(reading: _Reading, value: object) -> None:
    reading.speculation["model"] = str(value)


def _speculative_tokens(reading: _Reading, value: object) -> None:
    reading.speculation["num_speculative_tokens"] = _number("--num-speculative-tokens", value)


def _expert_parallel(reading: _Reading, value: object) -> None:
    reading.deployment["enable_expert_parallel"] = value is True


def _quantization(reading: _Reading, value: object) -> None:
    reading.quantization = str(value)


def _dtype(reading: _Reading, value: object) -> None:
    reading.dtype = _DTYPES.get(str(value))


def _kv_cache_dtype(reading: _Reading, value: object) -> None:
    known = _KV_CACHE_DTYPES.get(str(value))
    if known is None:
        reading.not_simulated.append(f"--kv-cache-dtype {value}")
        return
    reading.deployment["kv_cache_dtype"] = known


def _scheduling_policy(reading: _Reading, value: object) -> None:
    if value in ("fcfs", "priority"):
        reading.engine["scheduling_policy"] = value
    else:
        reading.not_simulated.append(f"--scheduling-policy {value}")


def _preemption_mode(reading: _Reading, value: object) -> None:
    if value in ("recompute", "swap"):
        reading.engine["preemption_mode"] = value
    else:
        reading.not_simulated.append(f"--preemption-mode {value}")


def _swap_space(reading: _Reading, value: object) -> None:
    if float(str(value)) == 0:
        reading.engine["swap_space"] = "0 GiB"
    else:
        # Nothing is swapped by itself: it counts only beside --preemption-mode swap.
        reading.not_simulated.append(f"--swap-space {value}")
        reading.swap_space = float(str(value))


_OTHERS: dict[str, Callable[[_Reading, object], None]] = {
    "--gpu-memory-utilization": _share,
    "--data-parallel-size": _data_parallel,
    "--enable-expert-parallel": _expert_parallel,
    "--enforce-eager": _enforce_eager,
    "--cpu-offload-gb": _cpu_offload,
    "--quantization": _quantization,
    "--dtype": _dtype,
    "--kv-cache-dtype": _kv_cache_dtype,
    "--scheduling-policy": _scheduling_policy,
    "--preemption-mode": _preemption_mode,
    "--swap-space": _swap_space,
    "--speculative-config": _speculative_config,
    "--speculative-model": _speculative_model,
    "--num-speculative-tokens": _speculative_tokens,
}


def _draft(reading: _Reading, served: str, model: str | None, *, hardware: str, version: str) -> Draft:
    named = NamedModel(model, stored_format(served), is_exact=True) if model is not None else find_model(served, _WHERE)
    profile = load_model(named.model)
    notes = reading.notes
    if not named.is_exact:
        notes.append(f"{served} is taken to have the architecture of {named.model}, by its name; --model says another.")
    quantization = _format(reading, named, profile, served)
    deployment: dict[str, Any] = {"hardware": hardware, **reading.deployment}
    deployment |= _ranks(reading, has_experts=profile.moe is not None)
    if quantization != "auto":
        deployment["quantization"] = quantization
    if reading.engine.get("preemption_mode") == "swap" and reading.swap_space is not None:
        reading.engine["swap_space"] = f"{reading.swap_space:g} GiB"
        reading.not_simulated[:] = [each for each in reading.not_simulated if not each.startswith("--swap-space")]
    deployment["engine"] = {"name": "vllm", "version": version, **reading.engine}
    if reading.speculation:
        found = read_speculation(reading.speculation, _WHERE)
        if found is None:
            reading.notes.append(unsimulated_note(reading.speculation, version))
        else:
            deployment["speculative"], note = found
            notes.append(note)
    if reading.not_simulated:
        notes.append("Not simulated: " + ", ".join(reading.not_simulated) + ".")
    if reading.ignored:
        notes.append("Without effect on the simulation: " + ", ".join(reading.ignored) + ".")
    notes.append(PLACEHOLDER_NOTE)
    length = reading.engine.get("max_model_len", profile.max_position_embeddings)
    mapping = {
        "name": scenario_name(served.rstrip("/").rsplit("/", 1)[-1]),
        "model": named.model,
        "deployment": deployment,
        "workload": placeholder_workload(length),
    }
    return Draft(mapping, tuple(notes), f"What does this vLLM server of {served} do?")


def _ranks(reading: _Reading, *, has_experts: bool) -> dict[str, int]:
    """Return data-parallel ranks: inside a replica where they share experts, else as replicas."""
    size = reading.data_parallel_size
    if size == 1:
        return {}
    if has_experts and _shares_experts():
        return {"data_parallel_size": size}
    reading.notes.append(f"--data-parallel-size {size} is read as {size} replicas, each with its own scheduler.")
    return {"replicas": size}


def _shares_experts() -> bool:
    """Return whether a deployment may have data-parallel ranks that share experts."""
    try:
        DeploymentSpec.model_validate({"hardware": ASSUMED_HARDWARE, "data_parallel_size": 2})
    except ValueError:
        return False
    return True


def _format(reading: _Reading, named: NamedModel, profile: ModelProfile, served: str) -> str:
    """Return the weight format: of the flag, else of the model's name, else as the model is stored."""
    if reading.quantization is not None:
        known = _QUANTIZATIONS.get(reading.quantization)
        if known is None and reading.quantization in ("compressed-tensors", "gguf"):
            known = named.quantization
        if known is None:
            reading.not_simulated.append(f"--quantization {reading.quantization}")
        return known or "auto"
    if named.quantization is not None:
        if not named.is_exact:
            reading.notes.append(f"Weights are {named.quantization}, by the name of {served}.")
        return "auto" if named.quantization == profile.stored.format else named.quantization
    if reading.dtype is not None and reading.dtype != profile.dtype and profile.stored.is_wide:
        return reading.dtype
    return "auto"
