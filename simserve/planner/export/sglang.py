"""The `sglang.launch_server` command of a deployment."""

from __future__ import annotations

from simserve.errors import ScenarioError
from simserve.planner.export.deployment import Deployment, Export, draft_checkpoint
from simserve.planner.export.flags import Flags, flags_of
from simserve.planner.export.shared_flags import (
    DTYPES,
    adapter_words,
    arithmetic_dtype,
    balancing_words,
    interval_words,
    kv_cache_words,
    offload_words,
    option_words,
    overlap_words,
    sglang_kind_words,
    sglang_tier_words,
)
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
_EXPERTS = "--moe-runner-backend"
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
_QUEUE_KEY = "deployment.engine.scheduling_policy"
_NOT_CHUNKED = -1
_LARGEST_GRAPH = "--cuda-graph-max-bs-decode"
_LARGEST_GRAPH_BEFORE = "--cuda-graph-max-bs"  # Its name until 0.5.19.
DRAFTERS = {"eagle": "EAGLE", "mtp": "NEXTN", "draft_model": "STANDALONE", "ngram": "NGRAM"}
"""Drafting method -> its name in `--speculative-algorithm`."""


def export_sglang(deployment: Deployment) -> Export:
    """Return the command that starts one replica.

    Raises:
        ScenarioError: That version has no flag for what the scenario asks for.
    """
    flags = flags_of("sglang", deployment.version)
    command = ["python", "-m", "sglang.launch_server", "--model-path", deployment.checkpoint]
    command += _parallel(deployment, flags) + _formats(deployment, flags) + _knobs(deployment, flags)
    command += _speculative(deployment, flags)
    environment = {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"} if deployment.is_beyond_model else {}
    return deployment.started_by("sglang", command, environment=environment)


def _parallel(deployment: Deployment, flags: Flags) -> list[str]:
    asked, words = deployment.scenario.deployment, []
    ranks = asked.tensor_parallel_size * asked.data_parallel_size
    sizes = {"tensor_parallel_size": ("--tp-size", ranks)}
    sizes["pipeline_parallel_size"] = ("--pp-size", asked.pipeline_parallel_size)
    for key, (flag, size) in sizes.items():
        if size > 1 or (deployment.is_explicit and flags.has(flag)):
            words += flags.render(flag, size, key=f"deployment.{key}")
    if (size := deployment.take("decode_context_parallel_size") or 1) > 1:
        words += flags.render("--dcp-size", size, key="deployment.decode_context_parallel_size")
    if asked.enable_expert_parallel:
        key = "deployment.enable_expert_parallel"
        if flags.takes.get("--enable-ep-moe") == "switch":
            words += flags.render("--enable-ep-moe", True, key=key)
        words += flags.render("--ep-size", ranks, key=key)
    if asked.data_parallel_size > 1:
        key = "deployment.data_parallel_size"
        words += flags.render("--dp-size", asked.data_parallel_size, key=key)
        words += flags.render("--enable-dp-attention", True, key=key)
    return words + _experts(deployment, flags)


def _experts(deployment: Deployment, flags: Flags) -> list[str]:
    """Return the flags for how tokens reach the experts of other ranks, and how experts are placed."""
    words, shape, backend = [], deployment.resolved.shape, deployment.take("all2all_backend")
    if shape.all2all_backend != "allgather_reducescatter":
        key = "deployment.all2all_backend"
        words += flags.render("--moe-a2a-backend", "deepep", key=key)
        words += flags.render("--deepep-mode", _DEEPEP_MODES[backend or "auto"], key=key)
    words += overlap_words(deployment, flags, "--enable-two-batch-overlap")
    kernels = deployment.take("engine.moe_backend")
    if kernels:
        is_mxfp4 = kernels == "triton" and shape.hardware.vendor != "AMD"
        name = "triton_kernel" if is_mxfp4 else kernels
        words += flags.render(_EXPERTS, name, key="deployment.engine.moe_backend")
    copies = deployment.take("num_redundant_experts")
    return words if copies is None else words + balancing_words(flags, "--ep-num-redundant-experts", copies)


def _formats(deployment: Deployment, flags: Flags) -> list[str]:
    words: list[str] = []
    simulated = arithmetic_dtype(deployment)
    if simulated != deployment.model.dtype or deployment.is_explicit:
        words += flags.render("--dtype", DTYPES[simulated], key="deployment.quantization")
    words += option_words(deployment, flags, _BACKENDS)
    return words + _quantization(deployment, flags) + kv_cache_words(deployment, flags, _LOW_BIT_KV)


def _quantization(deployment: Deployment, flags: Flags) -> list[str]:
    quantization, key = deployment.quantization, "deployment.quantization"
    if deployment.is_full_precision:
        if deployment.stored_quantization != "none":
            deployment.needs_checkpoint(f"it is stored in {deployment.stored_quantization}")
        return []
    is_file = quantization.startswith("gguf")
    if quantization == deployment.stored_quantization and not deployment.is_own_checkpoint and not is_file:
        return []
    if not is_file and not deployment.is_made_on_load:
        deployment.needs_checkpoint(deployment.why_not_made("SGLang"))
    if quantization == "fp8" and "fp8" not in deployment.checkpoint.lower():
        deployment.note(
            "--quantization fp8 quantises a 16-bit checkpoint while it loads; drop it for one stored in FP8"
        )
        return flags.render("--quantization", "fp8", key=key)
    if quantization in _TORCHAO and not deployment.is_own_checkpoint:
        return flags.render("--torchao-config", _TORCHAO[quantization], key=key)
    if is_file:
        words = flags.render("--quantization", "gguf", key=key)
        if not deployment.checkpoint.endswith(".gguf"):
            rule = "cannot be exported: SGLang reads GGUF from a .gguf file only"
            raise ScenarioError(rule, key=key, value=quantization, remedy="name one: --checkpoint PATH.gguf")
        return ["--load-format", "gguf", *words]
    deployment.note(f"{deployment.checkpoint} must hold {quantization} weights; SGLang reads the format from it")
    return []


def _knobs(deployment: Deployment, flags: Flags) -> list[str]:
    engine, says, words = deployment.engine, deployment.says, list[str]()
    ranks = deployment.scenario.deployment.data_parallel_size  # SGLang divides seats and chunks among them
    for key, flag in _NUMBERS.items():
        value = deployment.block_size if key == "block_size" else getattr(engine, key)
        is_absent_and_one = key == "block_size" and value == 1 and not flags.has(flag)
        if key == "max_num_seqs":
            value *= ranks
        if key in says and not is_absent_and_one:
            words += flags.render(flag, value, key=f"deployment.engine.{key}")
    words += _graphs(deployment, flags)
    if not engine.enable_chunked_prefill:
        words += flags.render("--chunked-prefill-size", _NOT_CHUNKED, key="deployment.engine.enable_chunked_prefill")
        budget = engine.max_num_batched_tokens
        words += flags.render("--max-prefill-tokens", budget, key="deployment.engine.max_num_batched_tokens")
    elif "max_num_batched_tokens" in says or ranks > 1:
        key = "deployment.engine.max_num_batched_tokens"
        words += flags.render("--chunked-prefill-size", engine.max_num_batched_tokens * ranks, key=key)
    if not engine.enable_prefix_caching:
        words += flags.render("--disable-radix-cache", True, key="deployment.engine.enable_prefix_caching")
    if "async_scheduling" in says and not engine.async_scheduling and flags.has("--disable-overlap-schedule"):
        words += flags.render("--disable-overlap-schedule", True, key="deployment.engine.async_scheduling")
    words += option_words(deployment, flags, _SWITCHES)
    if engine.max_mamba_cache_size is not None:
        states = engine.max_mamba_cache_size * ranks
        words += flags.render("--max-mamba-cache-size", states, key="deployment.engine.max_mamba_cache_size")
    deployment.take("engine.cuda_graph_padding")
    if not engine.cuda_graph_padding:
        words += flags.render("--disable-cuda-graph-padding", True, key="deployment.engine.cuda_graph_padding")
    if deployment.take("engine.cudagraph_mode") is not None:
        old, new = "--disable-piecewise-cuda-graph", "--disable-prefill-cuda-graph"
        words += flags.render(old if flags.has(old) else new, True, key="deployment.engine.cudagraph_mode")
    if deployment.take("engine.mm_encoder_tp_mode") == "data":
        words += flags.render("--mm-enable-dp-encoder", True, key="deployment.engine.mm_encoder_tp_mode")
    words += option_words(deployment, flags, _ADMISSION)
    blocks = deployment.take("engine.num_gpu_blocks_override")
    if blocks:
        key = "deployment.engine.num_gpu_blocks_override"
        words += flags.render("--max-total-tokens", blocks * engine.block_size, key=key)
    words += offload_words(deployment, flags)
    words += adapter_words(deployment, flags, "--max-loras-per-batch", "--max-loaded-loras", "--lora-paths NAME=PATH")
    words += sglang_kind_words(deployment, flags)
    words += sglang_tier_words(deployment, flags)
    words += interval_words(deployment, flags)
    is_other_default = version_key(deployment.version) < _FCFS_SINCE
    if is_other_default or deployment.is_explicit or deployment.scenario.deployment.engine.scheduling_policy:
        words += flags.render("--schedule-policy", "fcfs", key=_QUEUE_KEY)
    return words + _priorities(deployment, flags)


def _graphs(deployment: Deployment, flags: Flags) -> list[str]:
    """Return the flag of the largest batch that has a graph, where it is set or would be another one."""
    engine, asked = deployment.engine, deployment.scenario.deployment
    key = "engine.max_cudagraph_capture_size"
    largest = deployment.take(key)
    if largest is not None:
        flag = _LARGEST_GRAPH if flags.has(_LARGEST_GRAPH) else _LARGEST_GRAPH_BEFORE
        return flags.render(flag, largest, key=f"deployment.{key}")
    is_own = "max_num_seqs" in deployment.says and asked.engine.max_num_seqs is None
    seats = engine.max_num_seqs * asked.data_parallel_size
    if is_own and engine.cuda_graph_max_batch > seats and flags.has(_LARGEST_GRAPH):
        # Seats that are told limit the graphs; those that SGLang chooses itself do not.
        return flags.render(_LARGEST_GRAPH, engine.cuda_graph_max_batch, key=f"deployment.{key}")
    return []


def _priorities(deployment: Deployment, flags: Flags) -> list[str]:
    """Return the switches of a priority queue, which SGLang adds to first come, first served."""
    if deployment.engine.scheduling_policy != "priority":
        return []
    words = flags.render("--enable-priority-scheduling", True, key=_QUEUE_KEY)
    words += flags.render("--schedule-low-priority-values-first", True, key=_QUEUE_KEY)
    if not deployment.engine.priority_preemption:
        if flags.has("--disable-priority-preemption"):
            return words + flags.render("--disable-priority-preemption", True, key=_QUEUE_KEY)
        deployment.note(f"{deployment.label} puts running requests back for those of a much better priority")
    return words


def _speculative(deployment: Deployment, flags: Flags) -> list[str]:
    """Return the flags for the drafting method and number of tokens; SGLang's number of draft tokens includes the token
    before the drafts."""
    asked, key = deployment.take("speculative"), "deployment.speculative"
    if asked is None:
        return []
    words = flags.render("--speculative-algorithm", DRAFTERS[asked.method], key=key)
    drafter = draft_checkpoint(deployment, asked)
    if drafter is not None:
        words += flags.render("--speculative-draft-model-path", drafter, key=key)
    if asked.method != "ngram":
        words += flags.render("--speculative-num-steps", asked.num_speculative_tokens, key=key)
        words += flags.render("--speculative-eagle-topk", 1, key=key)
    words += flags.render("--speculative-num-draft-tokens", asked.num_speculative_tokens + 1, key=key)
    if asked.method == "eagle" and flags.accepts("--speculative-algorithm", "EAGLE3"):
        deployment.note("--speculative-algorithm EAGLE3 for an EAGLE-3 head")
    deployment.note("acceptance is measured, not set: compare SGLang's accept length with the scenario's")
    return words
