"""The `sglang.launch_server` command of a deployment."""

from __future__ import annotations

from simserve.errors import ScenarioError
from simserve.planner.export.command_line import (
    DTYPES,
    FP8_ON_LOAD,
    CommandLine,
    add_sglang_kind,
    add_sglang_tiers,
    arithmetic_dtype,
)
from simserve.planner.export.deployment import Deployment, Export, draft_checkpoint
from simserve.planner.export.flags import flags_of
from simserve.profiles.engine_options import version_key

_LOW_BIT_KV = {"fp8": ("fp8_e4m3", "fp8_e5m2")}
_FCFS_SINCE = version_key("0.4.6")
"""fcfs is the default order in 0.4.6, the version read; until 0.3 it was longest prefix match."""
_NUMBERS = {
    "max_model_len": "--context-length",
    "gpu_memory_utilization": "--mem-fraction-static",
    "max_num_seqs": "--max-running-requests",
    "block_size": "--page-size",
}
_BACKENDS = {
    "fp8_gemm_backend": "--fp8-gemm-backend",
    "attention_backend": "--attention-backend",
    "mamba_ssm_cache_dtype": "--mamba-ssm-dtype",
}
_SWITCHES = {
    "enforce_eager": "--disable-cuda-graph",
    "enable_nccl_nvls": "--enable-nccl-nvls",
    "language_model_only": "--language-model-only",
    "swa_full_tokens_ratio": "--swa-full-tokens-ratio",
    "mamba_full_memory_ratio": "--mamba-full-memory-ratio",
    "disable_hybrid_kv_cache_manager": "--disable-hybrid-swa-memory",
}
_ADMISSION = {
    "schedule_conservativeness": "--schedule-conservativeness",
    "enable_prefill_delayer": "--enable-prefill-delayer",
    "prefill_delayer_max_delay_passes": "--prefill-delayer-max-delay-passes",
    "prefill_delayer_token_usage_low_watermark": "--prefill-delayer-token-usage-low-watermark",
}
_DEEPEP_MODES = {"auto": "auto", "deepep_low_latency": "low_latency", "deepep_high_throughput": "normal"}
_TORCHAO = {"int8-wo": "int8wo", "int4": "int4wo-128"}
"""Formats to which SGLang converts weights on loading, through torchao -> its names."""
_QUEUE_KEY = "engine.scheduling_policy"
_NOT_CHUNKED = -1
_LARGEST_GRAPH = "--cuda-graph-max-bs-decode"  # Until 0.5.19 without the last part of its name.
DRAFTERS = {"eagle": "EAGLE", "mtp": "NEXTN", "draft_model": "STANDALONE", "ngram": "NGRAM"}
"""Drafting method -> its name in `--speculative-algorithm`."""


def export_sglang(deployment: Deployment) -> Export:
    """Return the command that starts one replica.

    Raises:
        ScenarioError: That version has no flag for what the scenario asks for.
    """
    words = ["python", "-m", "sglang.launch_server", "--model-path", deployment.checkpoint]
    line = CommandLine(deployment, flags_of("sglang", deployment.version), words)
    _add_parallel(line)
    _add_experts(line)
    if line.says_dtype:
        line.add("--dtype", DTYPES[arithmetic_dtype(deployment)], "quantization")
    line.add_options(_BACKENDS)
    _add_quantization(line)
    line.add_kv_cache(_LOW_BIT_KV)
    _add_knobs(line)
    _add_queue(line)
    _add_speculative(line)
    environment = {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"} if deployment.is_beyond_model else {}
    return deployment.started_by("sglang", line.words, environment=environment)


def _add_parallel(line: CommandLine) -> None:
    deployment, asked = line.deployment, line.deployment.scenario.deployment
    ranks = asked.tensor_parallel_size * asked.data_parallel_size
    sizes = (("tensor", "--tp-size", ranks), ("pipeline", "--pp-size", asked.pipeline_parallel_size))
    for kind, flag, size in sizes:
        if size > 1 or (deployment.is_explicit and line.flags.has(flag)):
            line.add(flag, size, f"{kind}_parallel_size")
    if (size := deployment.take("decode_context_parallel_size") or 1) > 1:
        line.add("--dcp-size", size, "decode_context_parallel_size")
    if asked.enable_expert_parallel:
        if line.flags.takes.get("--enable-ep-moe") == "switch":
            line.add("--enable-ep-moe", True, "enable_expert_parallel")
        line.add("--ep-size", ranks, "enable_expert_parallel")
    if asked.data_parallel_size > 1:
        line.add("--dp-size", asked.data_parallel_size, "data_parallel_size")
        line.add("--enable-dp-attention", True, "data_parallel_size")


def _add_experts(line: CommandLine) -> None:
    """Add the flags for how tokens reach the experts of other ranks, and how experts are placed."""
    deployment, shape = line.deployment, line.deployment.resolved.shape
    backend = deployment.take("all2all_backend")
    if shape.all2all_backend != "allgather_reducescatter":
        line.add("--moe-a2a-backend", "deepep", "all2all_backend")
        line.add("--deepep-mode", _DEEPEP_MODES[backend or "auto"], "all2all_backend")
    line.add_overlap("--enable-two-batch-overlap")
    if kernels := deployment.take("engine.moe_backend"):
        is_mxfp4 = kernels == "triton" and shape.hardware.vendor != "AMD"
        line.add("--moe-runner-backend", "triton_kernel" if is_mxfp4 else kernels, "engine.moe_backend")
    copies = deployment.take("num_redundant_experts")
    if copies is not None:
        line.add_balancing("--ep-num-redundant-experts", copies)


def _add_quantization(line: CommandLine) -> None:
    deployment, quantization = line.deployment, line.deployment.quantization
    is_file, is_own = quantization.startswith("gguf"), deployment.is_own_checkpoint
    is_stored = quantization == deployment.stored_quantization and not is_own and not is_file
    if deployment.needs_no_quantization() or is_stored:
        return
    if not is_file and not deployment.is_made_on_load:
        deployment.needs_checkpoint(deployment.why_not_made("SGLang"))
    if quantization == "fp8" and "fp8" not in deployment.checkpoint.lower():
        deployment.note(FP8_ON_LOAD)
        line.add("--quantization", "fp8", "quantization")
    elif quantization in _TORCHAO and not is_own:
        line.add("--torchao-config", _TORCHAO[quantization], "quantization")
    elif is_file:
        line.words += ["--load-format", "gguf"]
        line.add("--quantization", "gguf", "quantization")
        if not deployment.checkpoint.endswith(".gguf"):
            rule, remedy = "cannot be exported: SGLang reads GGUF from a .gguf file only", "--checkpoint PATH.gguf"
            raise ScenarioError(rule, key="deployment.quantization", value=quantization, remedy=f"name one: {remedy}")
    else:
        deployment.note(f"{deployment.checkpoint} must hold {quantization} weights; SGLang reads the format from it")


def _add_knobs(line: CommandLine) -> None:
    deployment, engine, says, flags = line.deployment, line.deployment.engine, line.deployment.says, line.flags
    ranks = deployment.scenario.deployment.data_parallel_size  # SGLang divides seats and chunks among them
    for key, flag in _NUMBERS.items():
        value = deployment.block_size if key == "block_size" else getattr(engine, key)
        is_absent_and_one = key == "block_size" and value == 1 and not flags.has(flag)
        if key in says and not is_absent_and_one:
            line.add(flag, value * ranks if key == "max_num_seqs" else value, f"engine.{key}")
    _add_graphs(line)
    if not engine.enable_chunked_prefill:
        line.add("--chunked-prefill-size", _NOT_CHUNKED, "engine.enable_chunked_prefill")
        line.add("--max-prefill-tokens", engine.max_num_batched_tokens, "engine.max_num_batched_tokens")
    elif "max_num_batched_tokens" in says or ranks > 1:
        line.add("--chunked-prefill-size", engine.max_num_batched_tokens * ranks, "engine.max_num_batched_tokens")
    if not engine.enable_prefix_caching:
        line.add("--disable-radix-cache", True, "engine.enable_prefix_caching")
    if "async_scheduling" in says and not engine.async_scheduling and flags.has("--disable-overlap-schedule"):
        line.add("--disable-overlap-schedule", True, "engine.async_scheduling")
    line.add_options(_SWITCHES)
    if engine.max_mamba_cache_size is not None:
        line.add("--max-mamba-cache-size", engine.max_mamba_cache_size * ranks, "engine.max_mamba_cache_size")
    deployment.take("engine.cuda_graph_padding")
    if not engine.cuda_graph_padding:
        line.add("--disable-cuda-graph-padding", True, "engine.cuda_graph_padding")
    if deployment.take("engine.cudagraph_mode") is not None:
        old, new = "--disable-piecewise-cuda-graph", "--disable-prefill-cuda-graph"
        line.add(old if flags.has(old) else new, True, "engine.cudagraph_mode")
    if deployment.take("engine.mm_encoder_tp_mode") == "data":
        line.add("--mm-enable-dp-encoder", True, "engine.mm_encoder_tp_mode")
    line.add_options(_ADMISSION)
    if blocks := deployment.take("engine.num_gpu_blocks_override"):
        line.add("--max-total-tokens", blocks * engine.block_size, "engine.num_gpu_blocks_override")
    line.add_offload()
    line.add_adapters("--max-loras-per-batch", "--max-loaded-loras", "--lora-paths NAME=PATH")
    add_sglang_kind(line)
    add_sglang_tiers(line)
    line.add_interval()


def _add_graphs(line: CommandLine) -> None:
    """Add the flag of the largest batch that has a graph, where it is set or would be another one."""
    deployment, engine, key = line.deployment, line.deployment.engine, "engine.max_cudagraph_capture_size"
    asked = deployment.scenario.deployment
    has_flag = line.flags.has(_LARGEST_GRAPH)
    is_own = "max_num_seqs" in deployment.says and asked.engine.max_num_seqs is None
    if (largest := deployment.take(key)) is not None:
        line.add(_LARGEST_GRAPH if has_flag else _LARGEST_GRAPH.removesuffix("-decode"), largest, key)
    elif is_own and has_flag and engine.cuda_graph_max_batch > engine.max_num_seqs * asked.data_parallel_size:
        # Seats that are told limit the graphs; those that SGLang chooses itself do not.
        line.add(_LARGEST_GRAPH, engine.cuda_graph_max_batch, key)


def _add_queue(line: CommandLine) -> None:
    """Add the order of the queue; priorities are switches of first come, first served."""
    deployment, engine = line.deployment, line.deployment.engine
    is_other_default = version_key(deployment.version) < _FCFS_SINCE
    if is_other_default or deployment.is_explicit or deployment.scenario.deployment.engine.scheduling_policy:
        line.add("--schedule-policy", "fcfs", _QUEUE_KEY)
    if engine.scheduling_policy != "priority":
        return
    line.add("--enable-priority-scheduling", True, _QUEUE_KEY)
    line.add("--schedule-low-priority-values-first", True, _QUEUE_KEY)
    if not engine.priority_preemption and line.flags.has("--disable-priority-preemption"):
        line.add("--disable-priority-preemption", True, _QUEUE_KEY)
    elif not engine.priority_preemption:
        deployment.note(f"{deployment.label} puts running requests back for those of a much better priority")


def _add_speculative(line: CommandLine) -> None:
    """Add the flags for the drafting method and number of tokens; SGLang's number of draft tokens includes the token
    before the drafts."""
    deployment, key = line.deployment, "speculative"
    asked = deployment.take(key)
    if asked is None:
        return
    count = asked.num_speculative_tokens
    line.add("--speculative-algorithm", DRAFTERS[asked.method], key)
    drafter = draft_checkpoint(deployment, asked)
    if drafter is not None:
        line.add("--speculative-draft-model-path", drafter, key)
    if asked.method != "ngram":
        line.add("--speculative-num-steps", count, key)
        line.add("--speculative-eagle-topk", 1, key)
    line.add("--speculative-num-draft-tokens", count + 1, key)
    if asked.method == "eagle" and line.flags.accepts("--speculative-algorithm", "EAGLE3"):
        deployment.note("--speculative-algorithm EAGLE3 for an EAGLE-3 head")
    deployment.note("acceptance is measured, not set: compare SGLang's accept length with the scenario's")
