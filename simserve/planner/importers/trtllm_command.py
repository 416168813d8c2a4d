"""Turns a pasted `trtllm-serve` line and its options file into a scenario. Knows TensorRT-LLM's flags and keys."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simserve.documents import parse_yaml, read_mapping
from simserve.errors import ScenarioError
from simserve.planner.export.flags import flags_of
from simserve.planner.importers.draft import Draft
from simserve.planner.importers.pasted import is_file, read_pasted, without_shell
from simserve.planner.importers.server import Reading, Vocabulary, assumptions, draft_of, read_arguments
from simserve.profiles.engine_options import version_key
from simserve.profiles.engine_profile import load_engine

_WHERE = "trtllm-serve command"
_TITLE = "What does this TensorRT-LLM server of {} do?"
_IMAGE = re.compile(r"tensorrt-llm/\w+:(\d+(?:\.\d+)+)")
_DEPLOYMENT_COUNTS = {
    "--tp_size": "tensor_parallel_size",
    "--tensor_parallel_size": "tensor_parallel_size",
    "--pp_size": "pipeline_parallel_size",
    "--pipeline_parallel_size": "pipeline_parallel_size",
}
_OPTION_COUNTS = {
    "--max_batch_size": "max_num_seqs",
    "--max_num_tokens": "max_num_batched_tokens",
    "--max_seq_len": "max_model_len",
}
_WITHOUT_EFFECT = re.compile(
    r"--(?:host|port|tokenizer|custom_tokenizer|trust_remote_code|log_level|reasoning_parser|tool_parser|revision|"
    r"num_postprocess_workers|gpus_per_node|chat_template|otlp_traces_endpoint)"
)
"""Flags without effect on the simulation."""
_WITHOUT_EFFECT_KEYS = (
    "backend",
    "print_iter_log",
    "enable_iter_perf_stats",
    "trust_remote_code",
    "return_perf_metrics",
)
_LARGEST_GRAPH = 128
"""Largest batch on a CUDA graph unless the options set one (``CudaGraphConfig``, TensorRT-LLM llmapi/llm_args.py)."""
_NOT_PADDED = (
    "Without cuda_graph_config.enable_padding only batches of 1 to 32, 64 and 128 run on a CUDA graph there; simulated "
    "as if they were padded."
)
_PYTORCH_SINCE = version_key("1.0")
"""First version whose default backend captures graphs unless told not to."""
_METHODS = {"mtp": "mtp", "eagle": "eagle", "eagle3": "eagle3", "ngram": "ngram", "drafttarget": "draft_model"}
"""TensorRT-LLM's ``decoding_type``, in lower case -> vLLM's method."""


def import_trtllm_command(
    text: str,
    *,
    hardware: str | None = None,
    version: str | None = None,
    model: str | None = None,
    files: Mapping[str, str] | None = None,
) -> Draft:
    """Return the scenario that a command line describes.

    Args:
        text: `trtllm-serve MODEL ...`, as pasted; the file of ``--extra_llm_api_options`` is read if it exists here.
        hardware: GPU it runs on, not named in the line; None: an assumed one, with a note.
        version: TensorRT-LLM's version; None: the image's tag, else the newest known.
        model: Profile or configuration to use instead of the one closest to the line's model.
        files: Path in the line -> text of an options file that is stored elsewhere.

    Raises:
        ScenarioError: The text is not such a command, or its model has no profile.
    """
    words = read_pasted(text, _WHERE).words
    tag = next((found[1] for word in words if (found := _IMAGE.search(word))), None)
    newest = load_engine("tensorrt-llm").versions[-1].version
    known = version or tag or newest
    reading = Reading("tensorrt-llm", known, _WHERE)
    reading.notes += assumptions("tensorrt-llm", newest, hardware=hardware, says_version=bool(version or tag))
    arguments, options = _without_files(without_shell(_arguments(words)), files or {})
    read_arguments(_VOCABULARY, arguments, flags_of("tensorrt-llm", known), reading)
    for text in options:
        read_trtllm_options(reading, parse_yaml(text, _WHERE, ScenarioError))
    if reading.model is None:
        raise ScenarioError("names no model", file=_WHERE, remedy="write trtllm-serve ORG/NAME ...")
    _settle(reading)
    return draft_of(reading, model, hardware=hardware, title=_TITLE).checked()


def _arguments(words: Sequence[str]) -> Sequence[str]:
    place = next((place for place, word in enumerate(words) if word.rsplit("/", 1)[-1] == "trtllm-serve"), None)
    if place is None:
        remedy = "paste a line such as trtllm-serve ORG/NAME"
        raise ScenarioError("holds no trtllm-serve", file=_WHERE, value=" ".join(words)[:200], remedy=remedy)
    if words[place + 1 : place + 2] == ("disaggregated",):
        rule, remedy = "starts the server in front of others", "paste the line of one of these: it serves the model"
        raise ScenarioError(rule, file=_WHERE, value="trtllm-serve disaggregated", remedy=remedy)
    return words[place + (2 if words[place + 1 : place + 2] == ("serve",) else 1) :]


def _without_files(words: Sequence[str], files: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the words without the given options files, and the texts of those files."""
    named = [place for place, word in enumerate(words) if word in files]
    dropped = {place - step for place in named for step in (0, 1)}
    return [word for place, word in enumerate(words) if place not in dropped], [files[words[each]] for each in named]


def _settle(reading: Reading) -> None:
    """Settle what depends on several flags: attention ranks, CUDA graphs, and KV tokens as blocks.

    With data-parallel attention, every tensor-parallel rank is an attention rank.
    """
    if reading.shares_attention_ranks:
        reading.data_parallel_size = reading.deployment.get("tensor_parallel_size", 1)
        reading.shares_attention_ranks = reading.data_parallel_size > 1
    if not reading.options.keys() & {"enforce_eager", "max_cudagraph_capture_size"} and _captures(reading.version):
        _graphs(reading, {})
    tokens = reading.options.pop("kv_tokens", None)
    if tokens is not None:
        reading.options["num_gpu_blocks_override"] = max(tokens // reading.options.get("block_size", 32), 1)


def _captures(version: str | None) -> bool:
    return version is None or version_key(version) >= _PYTORCH_SINCE


def _experts(reading: Reading, value: object) -> None:
    if reading.count("--ep_size", value) > 1:
        reading.deployment["enable_expert_parallel"] = True


def _share(reading: Reading, value: object) -> None:
    flag = "--kv_cache_free_gpu_memory_fraction"
    reading.options["gpu_memory_utilization"] = reading.number(flag, value, "is not a share")


def _chunked(reading: Reading, value: object) -> None:
    reading.options["enable_chunked_prefill"] = value is True


def _options_file(reading: Reading, value: object) -> None:
    if is_file(str(value)):
        read_trtllm_options(reading, read_mapping(Path(str(value)), ScenarioError))
    else:
        reading.notes.append(f"{value} is not here: what it sets is not simulated; run this where it lies.")


def _backend(reading: Reading, value: object) -> None:
    if value == "pytorch":
        reading.ignored.append("--backend")
    else:
        reading.not_simulated.append(f"--backend {value}")


_LORA_LIMITS = ("lora_config.max_loras", "lora_config.max_lora_rank", "lora_config.max_cpu_loras")
"""Fields of TensorRT-LLM's ``LoraConfig`` that have the same name in a scenario."""


def read_trtllm_options(reading: Reading, options: Mapping[str, Any], path: str = "") -> None:
    """Read the keys of an options file, which are arguments of TensorRT-LLM's LLM API.

    Raises:
        ScenarioError: A value is invalid for its key.
    """
    for name, value in options.items():
        key = f"{path}{name}"
        flag = f"--{name}"
        if flag in _DEPLOYMENT_COUNTS and value is not None:
            reading.deployment[_DEPLOYMENT_COUNTS[flag]] = reading.count(key, value)
        elif flag in _OPTION_COUNTS and value is not None:
            reading.options[_OPTION_COUNTS[flag]] = reading.count(key, value)
        elif name in ("kv_cache_config", "attention_dp_config", "lora_config") and isinstance(value, Mapping):
            read_trtllm_options(reading, value, f"{name}.")
        elif name == "speculative_config" and isinstance(value, Mapping):
            _speculation(reading, value)
        elif not _read_key(reading, key, value):
            reading.not_simulated.append(f"{key} {value}")


def _read_key(reading: Reading, key: str, value: Any) -> bool:
    """Read one key of an options file; return whether it is known."""
    options = reading.options
    if key == "enable_chunked_prefill":
        options["enable_chunked_prefill"] = bool(value)
    elif key == "disable_overlap_scheduler":
        options["async_scheduling"] = not value
    elif key == "cuda_graph_config":
        if value is None:
            options["enforce_eager"] = True
        elif isinstance(value, Mapping):
            _graphs(reading, value)
    elif key == "enable_attention_dp":
        reading.shares_attention_ranks = bool(value)
    elif key == "moe_expert_parallel_size" and value is not None:
        _experts(reading, value)
    elif key == "kv_cache_config.enable_block_reuse":
        options["enable_prefix_caching"] = bool(value)
    elif key == "kv_cache_config.tokens_per_block":
        options["block_size"] = reading.count(key, value)
    elif key == "kv_cache_config.free_gpu_memory_fraction" and value is not None:
        options["gpu_memory_utilization"] = reading.number(key, value, "is not a share")
    elif key == "kv_cache_config.max_tokens" and value is not None:
        options["kv_tokens"] = reading.count(key, value)
    elif key == "kv_cache_config.dtype":
        reading.set_kv_cache_dtype(key, value)
    elif key in _LORA_LIMITS and value is not None:
        options[key.removeprefix("lora_config.")] = reading.count(key, value)
    elif key == "attention_dp_config.timeout_iters" and value is not None:
        options["attention_dp_timeout_iters"] = reading.count(key, value)
    elif key in _WITHOUT_EFFECT_KEYS or key.startswith("attention_dp_config."):
        reading.ignored.append(key)
    else:
        return value is None
    return True


def _graphs(reading: Reading, settings: Mapping[str, Any]) -> None:
    """Read which batches run on CUDA graphs: by default up to 128, and only exact sizes unless padding is on."""
    sizes = settings.get("batch_sizes")
    largest = max(sizes, default=None) if isinstance(sizes, list) else settings.get("max_batch_size")
    key = "cuda_graph_config.max_batch_size"
    reading.options["max_cudagraph_capture_size"] = reading.count(key, _LARGEST_GRAPH if largest is None else largest)
    if not settings.get("enable_padding"):
        reading.notes.append(_NOT_PADDED)


def _speculation(reading: Reading, settings: Mapping[str, Any]) -> None:
    kind = str(settings.get("decoding_type", "")).lower()
    reading.speculation["method"] = _METHODS.get(kind, kind)
    count = settings.get("num_nextn_predict_layers", settings.get("max_draft_len"))
    if count is not None:
        reading.speculation["num_speculative_tokens"] = reading.count("speculative_config", count)
    draft = settings.get("speculative_model_dir") or settings.get("speculative_model")
    if draft is not None:
        reading.speculation["model"] = str(draft)


_VOCABULARY = Vocabulary(
    engine="tensorrt-llm",
    deployment_counts=_DEPLOYMENT_COUNTS,
    option_counts=_OPTION_COUNTS,
    switches={},
    others={
        "--ep_size": _experts,
        "--moe_expert_parallel_size": _experts,
        "--kv_cache_free_gpu_memory_fraction": _share,
        "--free_gpu_memory_fraction": _share,
        "--enable_chunked_prefill": _chunked,
        "--extra_llm_api_options": _options_file,
        "--config": _options_file,
        "--backend": _backend,
    },
    without_effect=_WITHOUT_EFFECT,
)
