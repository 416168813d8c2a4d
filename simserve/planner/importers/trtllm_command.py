"""Turns a pasted `trtllm-serve` line and its options file into a scenario. Knows TensorRT-LLM's flags and keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from simserve.documents import parse_yaml, read_mapping
from simserve.errors import ScenarioError
from simserve.planner.export.trtllm import DRAFTERS, POLICIES
from simserve.planner.importers.pasted import is_file
from simserve.planner.importers.server import (
    Program,
    Reader,
    Reading,
    counted,
    measured,
    only,
    read_expert_ranks,
    read_kv_cache_dtype,
    read_stream_interval,
)
from simserve.profiles.engine_options import version_key


def _context_ranks(reading: Reading, flag: str, value: Any) -> None:
    """Refuse GPUs that divide contexts: without them, the wrong number of GPUs would be simulated."""
    if (count := reading.count(flag, value)) > 1:
        rule = "adds GPUs that divide contexts (helix parallelism), which is not simulated"
        remedy = "leave it out, and raise tp_size by as much to simulate as many GPUs"
        raise ScenarioError(rule, file=reading.where, key=flag, value=count, remedy=remedy)


_WITHOUT_EFFECT_KEYS = (
    "backend",
    "print_iter_log",
    "enable_iter_perf_stats",
    "trust_remote_code",
    "return_perf_metrics",
)
_LARGEST_GRAPH = 128
"""Largest batch on a CUDA graph unless the options set one (``CudaGraphConfig``, TensorRT-LLM llmapi/llm_args.py)."""
_LARGEST_PIECES = 3072
"""Largest graph in pieces where none is listed (TensorRT-LLM, features/torch_compile_and_piecewise_cuda_graph)."""
_NOT_PADDED = (
    "Without cuda_graph_config.enable_padding only batches of 1 to 32, 64 and 128 run on a CUDA graph: switching it on "
    "is usually faster."
)
_PIECES = "piecewise_cuda_graph_max_tokens"
_PYTORCH_SINCE = version_key("1.0")  # First version whose default backend captures graphs by default.
_PYTORCH_BESIDE = version_key("0.17")
"""First version that has the PyTorch backend beside engines; until 0.21 it captures no CUDA graphs by default
(PyTorchConfig, use_cuda_graph)."""
_OVERLAP_SINCE = version_key("0.20")  # First version that overlaps its schedule by default (release notes).
_LAST_COMPILED = "0.21"  # Last release whose profile is that of compiled engines.
_SECOND_SINCE = version_key("1.4")
"""First version whose default is the second KV cache manager, which runs MAX_UTILIZATION whatever is asked for."""
_BLOCKS = ("kv_cache_config", "attention_dp_config", "lora_config", "scheduler_config", "pytorch_backend_config")
"""Keys of an options file whose own keys are read one by one."""
_BESIDE = "pytorch_backend_config."  # Block of the PyTorch backend's own keys before 1.0.
_SWITCHES = {
    "disable_overlap_scheduler": ("async_scheduling", False),
    f"{_BESIDE}disable_overlap_scheduler": ("async_scheduling", False),
    f"{_BESIDE}enable_overlap_scheduler": ("async_scheduling", True),
    f"{_BESIDE}use_cuda_graph": ("is_captured", True),
    "enable_chunked_prefill": ("enable_chunked_prefill", True),
    "kv_cache_config.enable_block_reuse": ("enable_prefix_caching", True),
}
"""Key of an options file -> option, and its value where the key is true."""
_ADMISSIONS = {policy: admission for admission, policy in POLICIES.items()}
_METHODS = {name.lower(): method for method, name in DRAFTERS.items()} | {"eagle3": "eagle3"}
"""TensorRT-LLM's ``decoding_type``, in lower case -> vLLM's method."""


def _spelled(_: Reading, words: Sequence[str]) -> Sequence[str]:
    """Return the arguments of a server."""
    if words[:1] == ["disaggregated"]:
        rule, remedy = "starts the server in front of others", "paste the line of one of these: it serves the model"
        raise ScenarioError(rule, file=TRTLLM.where, value="trtllm-serve disaggregated", remedy=remedy)
    return words


def _settle(reading: Reading) -> None:
    """Settle what depends on several flags: attention ranks, CUDA graphs, KV cache manager, and KV tokens as blocks.

    With data-parallel attention, every tensor-parallel rank is an attention rank.
    """
    if reading.shares_attention_ranks:
        reading.data_parallel_size = reading.deployment.get("tensor_parallel_size", 1)
        reading.shares_attention_ranks = reading.data_parallel_size > 1
    _settle_backend(reading)
    captures = reading.version is None or version_key(reading.version) >= _PYTORCH_SINCE
    if captures and not reading.options.keys() & {"enforce_eager", "max_cudagraph_capture_size"}:
        _graphs(reading, {})
    _settle_admission(reading)
    sizes = reading.options.pop("prefill_sizes", None)
    if sizes and _PIECES in reading.options:
        reading.options[_PIECES] = sizes
    tokens = reading.options.pop("kv_tokens", None)
    if tokens is not None:
        reading.options["num_gpu_blocks_override"] = max(tokens // reading.options.get("block_size", 32), 1)


def _settle_backend(reading: Reading) -> None:
    """Settle how the PyTorch backend runs before 1.0: by default without graphs, and with unpadded ones if asked."""
    is_captured = reading.options.pop("is_captured", False)
    if not reading.options.pop("is_interpreted", False):
        return
    reading.options["cuda_graph_padding" if is_captured else "enforce_eager"] = not is_captured
    if version_key(str(reading.version)) >= _OVERLAP_SINCE:
        reading.options.setdefault("async_scheduling", True)


def _settle_admission(reading: Reading) -> None:
    """Settle the policy of the KV cache manager that runs; the second one is simulated where it is the default."""
    is_default = reading.version is not None and version_key(reading.version) >= _SECOND_SINCE
    if reading.options.pop("uses_second_manager", is_default):
        if reading.options.get("admission") == "reserve" or not is_default:
            reading.options["admission"] = "on_demand"
        if not is_default:
            reading.notes.append("use_kv_cache_manager_v2 is simulated from 1.4 on: here as MAX_UTILIZATION.")
    elif is_default:
        reading.options.setdefault("admission", "reserve")


def _read_backend(reading: Reading, flag: str, value: Any) -> None:
    """Read what runs the model; compiled engines of 1.0 and later are read as those of the release before."""
    is_late = reading.version is None or version_key(reading.version) >= _PYTORCH_SINCE
    if value == "tensorrt" and is_late:
        reading.version = _LAST_COMPILED
        reading.notes.append(
            f"A compiled engine is simulated as one of {_LAST_COMPILED}: later profiles are PyTorch's."
        )
    elif value == "pytorch" and not is_late and version_key(str(reading.version)) >= _PYTORCH_BESIDE:
        reading.options["is_interpreted"] = True
    else:
        only("tensorrt" if not is_late else "pytorch", "pytorch")(reading, flag, value)


def _options_file(reading: Reading, _: str, value: Any, files: Mapping[str, str] | None = None) -> None:
    """Read an options file; ``files`` are stored elsewhere: path in the line -> text."""
    text = (files or {}).get(str(value))
    if text is not None:
        _read_options(reading, parse_yaml(text, reading.where, ScenarioError))
    elif is_file(str(value)):
        _read_options(reading, read_mapping(Path(str(value)).expanduser(), ScenarioError))
    else:
        reading.notes.append(f"{value} is not here: what it sets is not simulated; run this where it lies.")


def _read_options(reading: Reading, options: Mapping[str, Any], path: str = "") -> None:
    """Read the keys of an options file, which are arguments of TensorRT-LLM's LLM API."""
    flags = _flags_of_options()
    for name, value in options.items():
        key = f"{path}{name}"
        if f"--{name}" in flags and value is not None:
            flags[f"--{name}"](reading, key, value)
        elif key in _KEYS and value is not None:
            _KEYS[key](reading, key, value)
        elif name in _BLOCKS and isinstance(value, Mapping):
            _read_options(reading, value, f"{name}.")
        elif name == "speculative_config" and isinstance(value, Mapping):
            kind = str(value.get("decoding_type", "")).lower()
            reading.speculation["method"] = _METHODS.get(kind, kind)
            count = value.get("num_nextn_predict_layers", value.get("max_draft_len"))
            if count is not None:
                reading.speculation["num_speculative_tokens"] = reading.count("speculative_config", count)
            draft = value.get("speculative_model_dir") or value.get("speculative_model")
            if draft is not None:
                reading.speculation["model"] = str(draft)
        elif not _read_key(reading, key, value):
            reading.not_simulated.append(f"{key} {value}")


def _flags_of_options() -> Mapping[str, Reader]:
    """Return the readers of the flags that are also keys of an options file: those of counts."""
    counts = TRTLLM.table.counts
    return {flag: read for flag, read in TRTLLM.readers.items() if flag in counts or read is _context_ranks}


def _read_key(reading: Reading, key: str, value: Any) -> bool:
    """Read a key whose value may be false or absent; return whether the key is known."""
    if key in _SWITCHES:
        option, stands = _SWITCHES[key]
        reading.options[option] = bool(value) is stands
    elif key == "cuda_graph_config" and value is None:
        reading.options["enforce_eager"] = True
    elif key == "cuda_graph_config" and isinstance(value, Mapping):
        _graphs(reading, value)
    elif key == "torch_compile_config" and isinstance(value, Mapping):
        if value.get("enable_piecewise_cuda_graph"):
            sizes = value.get("capture_num_tokens")
            reading.options[_PIECES] = _largest(reading, f"{key}.capture_num_tokens", sizes) or _LARGEST_PIECES
    elif key == "prefill_cuda_graph_backend" and value in ("piecewise", "disabled"):
        if value == "piecewise":
            reading.options[_PIECES] = _LARGEST_PIECES
    elif key == "prefill_capture_num_tokens" and isinstance(value, list):
        reading.options["prefill_sizes"] = _largest(reading, key, value)
    elif key == "scheduler_config.capacity_scheduler_policy" and value in _ADMISSIONS:
        reading.options["admission"] = _ADMISSIONS[value]
    elif key == "kv_cache_config.use_kv_cache_manager_v2" and isinstance(value, bool):
        reading.options["uses_second_manager"] = value
    elif key == "enable_attention_dp":
        reading.shares_attention_ranks = bool(value)
    elif key in _WITHOUT_EFFECT_KEYS or key.startswith("attention_dp_config."):
        reading.ignored.append(key)
    else:
        return value is None
    return True


_KEYS: Mapping[str, Reader] = {
    "moe_expert_parallel_size": read_expert_ranks,
    "stream_interval": read_stream_interval,
    "kv_cache_config.tokens_per_block": counted("block_size"),
    "kv_cache_config.free_gpu_memory_fraction": measured("gpu_memory_utilization", "is not a share"),
    "kv_cache_config.max_tokens": counted("kv_tokens"),
    "kv_cache_config.dtype": read_kv_cache_dtype,
    "lora_config.max_loras": counted("max_loras"),
    "lora_config.max_lora_rank": counted("max_lora_rank"),
    "lora_config.max_cpu_loras": counted("max_cpu_loras"),
    "attention_dp_config.timeout_iters": counted("attention_dp_timeout_iters"),
}
"""Key of an options file -> function that reads its value."""


def _largest(reading: Reading, key: str, sizes: Any) -> int | None:
    """Return the largest of the sizes of graphs that are listed; None: none is."""
    return max((reading.count(key, size) for size in sizes), default=None) if isinstance(sizes, list) else None


def _graphs(reading: Reading, settings: Mapping[str, Any]) -> None:
    """Read which batches run on CUDA graphs: by default up to 128, and only exact sizes unless padding is on."""
    largest = settings.get("max_batch_size")
    if isinstance(settings.get("batch_sizes"), list):
        largest = _largest(reading, "cuda_graph_config.batch_sizes", settings["batch_sizes"])
    key = "cuda_graph_config.max_batch_size"
    reading.options["max_cudagraph_capture_size"] = reading.count(key, _LARGEST_GRAPH if largest is None else largest)
    reading.options["cuda_graph_padding"] = bool(settings.get("enable_padding"))
    if not reading.options["cuda_graph_padding"]:
        reading.notes.append(_NOT_PADDED)


TRTLLM = Program(
    engine="tensorrt-llm",
    spelled=_spelled,
    settle=_settle,
    own={
        **dict.fromkeys(("--cp_size", "--context_parallel_size"), _context_ranks),
        **dict.fromkeys(("--ep_size", "--moe_expert_parallel_size"), read_expert_ranks),
        **dict.fromkeys(("--extra_llm_api_options", "--config"), _options_file),
        "--backend": _read_backend,
    },
)
"""`trtllm-serve MODEL ...`."""


def with_files(files: Mapping[str, str]) -> Program:
    """Return TensorRT-LLM's server with options files stored elsewhere: path in the line -> text."""
    read = partial(_options_file, files=files)
    return replace(TRTLLM, own={**TRTLLM.own, "--extra_llm_api_options": read, "--config": read})
