"""The `vllm serve` command of a deployment."""

from __future__ import annotations

import json
from typing import Any

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
    vllm_kind_words,
    vllm_tier_words,
)
from simserve.profiles.engine_options import version_key

_SERVE_SINCE = version_key("0.5.5")
"""Oldest release read that has `vllm serve`; before, the module of the API server was started."""
_LOW_BIT_KV = {"fp8": ("fp8",), "int8": ("int8_per_token_head",), "int4": ("int4_per_token_head",)}
_KNOB_FLAGS = {
    "max_model_len": "--max-model-len",
    "gpu_memory_utilization": "--gpu-memory-utilization",
    "max_num_seqs": "--max-num-seqs",
    "max_num_batched_tokens": "--max-num-batched-tokens",
    "block_size": "--block-size",
    "enable_chunked_prefill": "--enable-chunked-prefill",
    "enable_prefix_caching": "--enable-prefix-caching",
    "async_scheduling": "--async-scheduling",
}
_SIZES = ("tensor_parallel_size", "decode_context_parallel_size", "pipeline_parallel_size", "data_parallel_size")
_METHOD = "--speculative-config.method"
_NGRAM_TOKENS = 4  # Longest look-up of the prompt that vLLM's documentation uses for n-gram speculation.
_METHODS = {"draft_model": ("draft_model",), "ngram": ("ngram",), "eagle": ("eagle",), "mtp": ("mtp", "deepseek_mtp")}
"""Drafting method -> its names in `--speculative-config`, the newest first."""
_RARE_FLAGS = {
    "enforce_eager": "--enforce-eager",
    "num_gpu_blocks_override": "--num-gpu-blocks-override",
    "kv_cache_memory_bytes": "--kv-cache-memory-bytes",
    "disable_hybrid_kv_cache_manager": "--disable-hybrid-kv-cache-manager",
    "long_prefill_token_threshold": "--long-prefill-token-threshold",
    "max_cudagraph_capture_size": "--max-cudagraph-capture-size",
    "mm_encoder_tp_mode": "--mm-encoder-tp-mode",
}
_TRITON = "TRITON_ATTN"  # vLLM's name of the Triton attention backend.
_ONLINE = {"int8-wo": "int8_per_channel_weight_only", "nf4": "bitsandbytes"}
"""Formats besides FP8 to which vLLM converts weights on loading, where the version has the method."""

_FORCED = {"gptq-int4-exllama": "gptq", "awq-int4-gemm": "awq"}
"""Formats whose kernels run only when named: otherwise GPTQ and most AWQ checkpoints run in Marlin."""


def export_vllm(deployment: Deployment) -> Export:
    """Return the command that starts one replica.

    Raises:
        ScenarioError: That version has no flag for what the scenario asks for.
    """
    flags = flags_of("vllm", deployment.version)
    if version_key(deployment.version) < _SERVE_SINCE:
        command = ["python", "-m", "vllm.entrypoints.openai.api_server", "--model", deployment.checkpoint]
    else:
        command = ["vllm", "serve", deployment.checkpoint]
    command += _parallel(deployment, flags)
    command += _formats(deployment, flags)
    command += _knobs(deployment, flags)
    command += _rare(deployment, flags)
    partition = deployment.take("pipeline_layer_partition") or deployment.take("engine.pipeline_layer_partition")
    environment = {"VLLM_PP_LAYER_PARTITION": ",".join(map(str, partition))} if partition else {}
    experts = deployment.take("engine.moe_backend")
    if experts and flags.has("--moe-backend"):
        command += flags.render("--moe-backend", experts, key="deployment.engine.moe_backend")
    elif experts == "aiter":
        environment["VLLM_ROCM_USE_AITER"] = "1"
    elif experts:
        environment["VLLM_MXFP4_USE_MARLIN"] = str(int(experts == "marlin"))
    command += option_words(deployment, flags, {"mamba_ssm_cache_dtype": "--mamba-ssm-cache-dtype"})
    backend = deployment.take("engine.attention_backend")
    if backend == "aiter":
        environment["VLLM_ROCM_USE_AITER"] = "1"
        environment |= {"VLLM_ROCM_USE_AITER_MOE": "0"} if experts == "triton" else {}
    elif backend and flags.has("--attention-backend"):
        command += flags.render("--attention-backend", _TRITON, key="deployment.engine.attention_backend")
    elif backend:
        environment["VLLM_ATTENTION_BACKEND"] = _TRITON
    deployment.take("engine.flashinfer_sampler")
    if (fused := deployment.scenario.deployment.engine.flashinfer_sampler) is not None:
        environment["VLLM_USE_FLASHINFER_SAMPLER"] = str(int(fused))
    if deployment.is_beyond_model:
        environment["VLLM_ALLOW_LONG_MAX_MODEL_LEN"] = "1"
    return deployment.started_by("vllm", command, environment=environment)


def _parallel(deployment: Deployment, flags: Flags) -> list[str]:
    asked, words = deployment.scenario.deployment, []
    deployment.take("decode_context_parallel_size")
    for key in _SIZES:
        size = getattr(asked, key)
        if size > 1 or (deployment.is_explicit and flags.has("--" + key.replace("_", "-"))):
            words += flags.render("--" + key.replace("_", "-"), size, key=f"deployment.{key}")
    if asked.enable_expert_parallel:
        words += flags.render("--enable-expert-parallel", True, key="deployment.enable_expert_parallel")
    return words + _experts(deployment, flags)


def _experts(deployment: Deployment, flags: Flags) -> list[str]:
    """Return the flags for how tokens reach the experts of other ranks, and how experts are placed."""
    words, shape = [], deployment.resolved.shape
    deployment.take("all2all_backend")
    if shape.all2all_backend != "allgather_reducescatter":
        words += flags.render("--all2all-backend", shape.all2all_backend, key="deployment.all2all_backend")
    words += overlap_words(deployment, flags, "--enable-dbo")
    copies = deployment.take("num_redundant_experts")
    if copies is None:
        return words
    if flags.has("--num-redundant-experts"):
        return words + balancing_words(flags, "--num-redundant-experts", copies)
    return words + balancing_words(flags, "--eplb-config", f'{{"num_redundant_experts": {copies}}}')


def _formats(deployment: Deployment, flags: Flags) -> list[str]:
    words: list[str] = []
    simulated = arithmetic_dtype(deployment)
    if simulated != deployment.model.dtype or deployment.is_explicit or simulated == "fp32":  # auto turns it into fp16
        words += flags.render("--dtype", DTYPES[simulated], key="deployment.quantization")
    return words + _quantization(deployment, flags) + kv_cache_words(deployment, flags, _LOW_BIT_KV)


def _quantization(deployment: Deployment, flags: Flags) -> list[str]:
    """Return the flags for quantized weights: quantized by the server on loading, or already in the checkpoint."""
    quantization, key = deployment.quantization, "deployment.quantization"
    if deployment.is_full_precision:
        if deployment.stored_quantization != "none":
            deployment.needs_checkpoint(f"it is stored in {deployment.stored_quantization}")
        return []
    if quantization.startswith("gguf"):
        deployment.needs_checkpoint("vLLM takes one GGUF file, and a repository has many")
    if quantization == deployment.stored_quantization and not deployment.is_own_checkpoint:
        deployment.note(f"{deployment.checkpoint} is stored in {quantization}: no --quantization is needed")
        return []
    if not deployment.is_made_on_load:
        deployment.needs_checkpoint(deployment.why_not_made("vLLM"))
    if quantization == "fp8" and "fp8" not in deployment.checkpoint.rsplit("/", 1)[-1].lower():
        deployment.note(
            "--quantization fp8 quantises a 16-bit checkpoint while it loads; drop it for one stored in FP8"
        )
        return flags.render("--quantization", "fp8", key=key)
    if quantization in _FORCED:
        return flags.render("--quantization", _FORCED[quantization], key=key)
    online = _ONLINE.get(quantization)
    if online is not None and not deployment.is_own_checkpoint and flags.has("--quantization", online):
        return flags.render("--quantization", online, key=key)
    deployment.needs_checkpoint(deployment.why_not_made("vLLM"))
    deployment.note(f"{deployment.checkpoint} must hold {quantization} weights; vLLM reads the format from it")
    return []


def _knobs(deployment: Deployment, flags: Flags) -> list[str]:
    words = []
    for key, flag in _KNOB_FLAGS.items():
        value = deployment.block_size if key == "block_size" else getattr(deployment.engine, key)
        is_absent_and_off = value is False and flags.takes.get(flag) in (None, "switch")
        if key in deployment.says and not is_absent_and_off:
            words += flags.render(flag, value, key=f"deployment.engine.{key}")
    asked = deployment.scenario.deployment.engine
    if flags.has("--scheduling-policy") and (deployment.is_explicit or asked.scheduling_policy):
        key = "deployment.engine.scheduling_policy"
        words += flags.render("--scheduling-policy", deployment.engine.scheduling_policy, key=key)
    mode, space = deployment.engine.preemption_mode, deployment.engine.swap_space
    if mode != "recompute" or (flags.has("--preemption-mode") and (deployment.is_explicit or asked.preemption_mode)):
        words += flags.render("--preemption-mode", mode, key="deployment.engine.preemption_mode")
    if asked.swap_space or (flags.has("--swap-space") and (deployment.is_explicit or asked.swap_space is not None)):
        words += flags.render("--swap-space", f"{space / 2**30:g}", key="deployment.engine.swap_space")
    return words


def _rare(deployment: Deployment, flags: Flags) -> list[str]:
    """Return the flags of keys that few scenarios set."""
    words = option_words(deployment, flags, _RARE_FLAGS)
    if deployment.take("engine.language_model_only"):
        words += _language_model_only(flags)
    mode = deployment.take("engine.cudagraph_mode")
    if mode:
        settings = json.dumps({"cudagraph_mode": mode})
        words += flags.render("--compilation-config", settings, key="deployment.engine.cudagraph_mode")
    deployment.take("engine.disable_cascade_attn")
    if (apart := deployment.scenario.deployment.engine.disable_cascade_attn) is not None:
        words += flags.render("--disable-cascade-attn", apart, key="deployment.engine.disable_cascade_attn")
    words += offload_words(deployment, flags)
    words += adapter_words(deployment, flags, "--max-loras", "--max-cpu-loras", "--lora-modules NAME=PATH")
    words += vllm_kind_words(deployment, flags)
    words += vllm_tier_words(deployment, flags)
    words += interval_words(deployment, flags)
    speculative = deployment.take("speculative")
    if speculative is not None:
        words += _speculative(deployment, flags, speculative)
    return words


def _language_model_only(flags: Flags) -> list[str]:
    """Return the flag that leaves out the encoders: a switch; before 0.17 a limit of zero images, videos and audio."""
    key = "deployment.engine.language_model_only"
    if flags.has("--language-model-only"):
        return flags.render("--language-model-only", True, key=key)
    limits = json.dumps(dict.fromkeys(("image", "video", "audio"), 0))
    return flags.render("--limit-mm-per-prompt", limits, key=key)


def _speculative(deployment: Deployment, flags: Flags, asked: Any) -> list[str]:
    """Return the flags for the drafting method and number of tokens: JSON from 0.8 on, separate flags before."""
    count, key = asked.num_speculative_tokens, "deployment.speculative"
    settings: dict[str, Any] = {"method": asked.method, "num_speculative_tokens": count}
    drafter = draft_checkpoint(deployment, asked)
    if drafter is not None:
        settings["model"] = drafter
    elif asked.method == "ngram":
        settings["prompt_lookup_max"] = _NGRAM_TOKENS
    deployment.note("acceptance is measured, not set: compare vllm:spec_decode_num_accepted_tokens with the scenario's")
    lacks = f"cannot be passed to {deployment.label}, which has no such drafter"
    if flags.has("--speculative-config"):
        method = next((name for name in _METHODS[asked.method] if flags.accepts(_METHOD, name)), None)
        if method is None:
            raise ScenarioError(lacks, key=key, value=asked.method, remedy=", ".join(flags.choices[_METHOD]))
        return flags.render("--speculative-config", json.dumps({**settings, "method": method}), key=key)
    if asked.method in ("eagle", "mtp"):
        raise ScenarioError(lacks, key=key, value=asked.method)
    model = "[ngram]" if asked.method == "ngram" else settings["model"]
    words = flags.render("--speculative-model", model, key=key)
    words += flags.render("--num-speculative-tokens", count, key=key)
    if asked.method == "ngram":
        words += flags.render("--ngram-prompt-lookup-max", _NGRAM_TOKENS, key=key)
    return words
