"""Turns a pasted `sglang.launch_server` line into a scenario: what SGLang's flags mean."""

from __future__ import annotations

import re
from typing import Any, get_args

from simserve.planner.export.sglang import DRAFTERS
from simserve.planner.importers.server import (
    HostMemory,
    Program,
    Reading,
    chosen,
    read_dtype,
    read_expert_ranks,
    read_kv_cache_dtype,
    read_nodes,
    read_overrides,
    read_stream_interval,
)
from simserve.profiles.engine_options import AttentionBackend, Fp8GemmBackend, StateDtype, version_key
from simserve.profiles.engine_profile import load_engine

_GB = 1e9  # Bytes of a GB in ``--hicache-size`` (mem_cache/memory_pool_host.py).
_EXPERTS_OF_AMD_SINCE = version_key("0.5.11")
"""First version whose `--moe-runner-backend` has `aiter` (server_args.py)."""
_EXCHANGES = ("deepep", "deepep_v2", "mooncake", "nixl", "ascend_fuseep", "flashinfer", "mori", "pplx", "megamoe")
"""Exchanges of tokens under which all ranks share the experts, whatever `--ep-size` says (SGLang 0.5.9 server_args.py,
`_handle_a2a_moe`; 0.5.23 arg_groups/overrides.py, `_a2a_ep_size`)."""
_TORCHAO = {"int8wo": "int8-wo", "int4wo": "int4", "fp8wo": "fp8"}
_ALGORITHMS = {name: method for method, name in DRAFTERS.items()} | {"EAGLE3": "eagle3"}
"""SGLang's names of speculation methods -> vLLM's."""
_EXPERTS_IN_16_BIT = re.compile(r"gpt[-_]?oss", re.IGNORECASE)
"""Models whose MXFP4 `--moe-runner-backend triton` turns into 16 bit on loading (layers/quantization/mxfp4.py)."""
_OF_DELAY = ("prefill_delayer_max_delay_passes", "prefill_delayer_token_usage_low_watermark")


def _settle(reading: Reading) -> None:
    """Convert to the scenario's keys what SGLang counts over all ranks or in tokens, or names differently."""
    options = reading.options
    ranks = reading.data_parallel_size if reading.shares_attention_ranks else 1
    if options.get("enable_chunked_prefill") is not False:
        options.pop("unchunked_tokens", None)  # limits a batch of whole prompts; chunks are shorter
    elif (tokens := options.pop("unchunked_tokens", None)) is not None:
        options["max_num_batched_tokens"] = tokens
    _settle_delay(reading, ranks)
    for key in ("max_num_seqs", "max_num_batched_tokens", "max_mamba_cache_size"):
        if key in options:
            options[key] = max(options[key] // ranks, 1)
    tokens = options.pop("kv_tokens", None)
    if tokens is not None:
        options["num_gpu_blocks_override"] = max(tokens // options.get("block_size", 1), 1)
    _settle_exchange(reading)
    _settle_experts(reading)
    _settle_speculation(reading)
    if not reading.switches.get("hierarchical_cache", False):
        reading.host_memory = None  # without the switch the sizes have no effect


def _settle_delay(reading: Reading, ranks: int) -> None:
    """Drop settings without effect: those of a delayer that is off, and the delayer on a single scheduler."""
    options = reading.options
    if options.get("enable_prefill_delayer") and ranks == 1:
        reading.not_simulated.append("--enable-prefill-delayer without --enable-dp-attention")
        del options["enable_prefill_delayer"]
    if not options.get("enable_prefill_delayer"):
        for key in _OF_DELAY:
            options.pop(key, None)


def _settle_exchange(reading: Reading) -> None:
    """Divide experts over all ranks if the exchange of tokens does, and set DeepEP's mode."""
    backend = reading.experts.get("backend")
    if backend in _EXCHANGES and reading.deployment.get("tensor_parallel_size", 1) > 1:
        reading.deployment["enable_expert_parallel"] = True
    if backend != "deepep":
        return
    if reading.shares_attention_ranks and reading.data_parallel_size > 1:
        # `auto`, the default, is read as the mode for decoding.
        is_normal = reading.experts.get("mode") == "normal"
        reading.deployment["all2all_backend"] = "deepep_high_throughput" if is_normal else "deepep_low_latency"
    else:
        reading.not_simulated.append("--moe-a2a-backend deepep without --enable-dp-attention")


def _settle_speculation(reading: Reading) -> None:
    speculation = reading.speculation
    if "method" not in speculation:
        speculation.clear()
        return
    topk = speculation.pop("topk", 1)
    drafts = speculation.pop("num_draft_tokens", None)
    if topk != 1:
        reading.not_simulated.append(f"--speculative-eagle-topk {topk}")
    if "num_speculative_tokens" not in speculation and drafts is not None:
        speculation["num_speculative_tokens"] = max(drafts - 1, 1)
    if speculation["method"] == "eagle" and "model" not in speculation:
        speculation["method"] = "mtp"  # without a draft model, the model's own layers draft
    speculation.setdefault("num_speculative_tokens", 3)


def _all2all_backend(reading: Reading, flag: str, value: Any) -> None:
    reading.experts["backend"] = str(value)
    if value not in ("deepep", "none"):
        reading.not_simulated.append(f"{flag} {value}")


def _expert_kernels(reading: Reading, flag: str, value: Any) -> None:
    """Read whose kernels multiply experts; on AMD the flag decides only if `aiter` is among its values."""
    name = {"triton_kernel": "triton", "marlin": "marlin"}.get(str(value))
    if str(value) in ("triton", "aiter") and version_key(str(reading.version)) >= _EXPERTS_OF_AMD_SINCE:
        name = str(value)
    if name is not None:
        reading.options["moe_backend"] = name
        reading.experts["kernels"] = str(value)
    elif value != "auto":
        reading.not_simulated.append(f"{flag} {value}")


def _settle_experts(reading: Reading) -> None:
    """Leave out Triton's 16-bit kernels where they would change the format of the experts."""
    asked = reading.asked or reading.model or ""
    if reading.experts.get("kernels") == "triton" and _EXPERTS_IN_16_BIT.search(asked):
        del reading.options["moe_backend"]
        reading.not_simulated.append("--moe-runner-backend triton, which turns MXFP4 into 16 bit")


def _context_backend(reading: Reading, flag: str, value: Any) -> None:
    """Read how ranks that divide contexts exchange outputs; only the default of each version is simulated."""
    known = load_engine("sglang").nearest_version(reading.version).kernels.sends_partial_outputs
    if (value == "ag_rs") is known:
        reading.not_simulated.append(f"{flag} {value}")
    else:
        reading.ignored.append(flag)


def _chunk(reading: Reading, flag: str, value: Any) -> None:
    if str(value) == "-1":
        reading.options["enable_chunked_prefill"] = False
    else:
        reading.options["max_num_batched_tokens"] = reading.count(flag, value)


def _torchao(reading: Reading, flag: str, value: Any) -> None:
    known = _TORCHAO.get(str(value).partition("-")[0])
    if known is None:
        reading.not_simulated.append(f"{flag} {value}")
    else:
        reading.quantization = known


def _algorithm(reading: Reading, _: str, value: Any) -> None:
    reading.speculation["method"] = _ALGORITHMS.get(str(value).upper(), str(value).lower())


def _hicache_size(reading: Reading, flag: str, value: Any) -> None:
    """Read GB per rank; 0 leaves the size to the ratio."""
    size = reading.number(flag, value, "is not a number of GB")
    if size:
        reading.host_memory = HostMemory(size * _GB, is_of_rank=True, overlaps=True)


def _hicache_ratio(reading: Reading, flag: str, value: Any) -> None:
    reading.notes.append(
        f"{flag} {value} is a multiple of the KV memory on the GPU: put it in deployment.engine.kv_tiers as a "
        "capacity, which simserve memory helps to find."
    )


def _hicache_storage(reading: Reading, flag: str, value: Any) -> None:
    reading.notes.append(
        f"{flag} {value} is a KV tier whose capacity and bandwidth no line says: add it to "
        "deployment.engine.kv_tiers with yours."
    )


SGLANG = Program(
    engine="sglang",
    settle=_settle,
    own={
        "--dcp-comm-backend": _context_backend,
        "--nnodes": read_nodes,
        "--stream-interval": read_stream_interval,
        "--ep-size": read_expert_ranks,
        "--enable-ep-moe": read_expert_ranks,
        "--moe-a2a-backend": _all2all_backend,
        "--moe-runner-backend": _expert_kernels,
        "--attention-backend": chosen("attention_backend", "options", get_args(AttentionBackend)),
        "--mamba-ssm-dtype": chosen("mamba_ssm_cache_dtype", "options", get_args(StateDtype)),
        "--fp8-gemm-backend": chosen("fp8_gemm_backend", "options", get_args(Fp8GemmBackend), default="auto"),
        "--hicache-size": _hicache_size,
        "--hicache-ratio": _hicache_ratio,
        "--hicache-storage-backend": _hicache_storage,
        "--chunked-prefill-size": _chunk,
        "--torchao-config": _torchao,
        "--dtype": read_dtype,
        "--kv-cache-dtype": read_kv_cache_dtype,
        "--json-model-override-args": read_overrides,
        "--speculative-algorithm": _algorithm,
    },
)
"""``python -m sglang.launch_server --model-path MODEL ...``, `sglang serve`, or a ``docker run`` of them."""
