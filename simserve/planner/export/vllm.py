"""The `vllm serve` command of a deployment."""

from __future__ import annotations

import json
from typing import Any

from simserve.errors import ScenarioError
from simserve.planner.export.command_line import (
    DTYPES,
    FP8_ON_LOAD,
    CommandLine,
    add_vllm_kind,
    add_vllm_tiers,
    arithmetic_dtype,
)
from simserve.planner.export.deployment import KNOBS, Deployment, Export, draft_checkpoint
from simserve.planner.export.flags import flags_of
from simserve.profiles.engine_options import version_key

_SERVE_SINCE = version_key("0.5.5")
"""Oldest release read that has `vllm serve`; before, the module of the API server was started."""
_LOW_BIT_KV = {"fp8": ("fp8",), "int8": ("int8_per_token_head",), "int4": ("int4_per_token_head",)}
_SIZES = ("tensor_parallel_size", "decode_context_parallel_size", "pipeline_parallel_size", "data_parallel_size")
_METHOD = "--speculative-config.method"
_NGRAM_TOKENS = 4  # Longest look-up of the prompt that vLLM's documentation uses for n-gram speculation.
_METHODS = {"draft_model": ("draft_model",), "ngram": ("ngram",), "eagle": ("eagle",), "mtp": ("mtp", "deepseek_mtp")}
"""Drafting method -> its names in `--speculative-config`, the newest first."""
_RARE = (
    "enforce_eager",
    "num_gpu_blocks_override",
    "kv_cache_memory_bytes",
    "disable_hybrid_kv_cache_manager",
    "long_prefill_token_threshold",
    "max_cudagraph_capture_size",
    "mm_encoder_tp_mode",
)
"""Options that few scenarios set."""
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
    words = ["vllm", "serve", deployment.checkpoint]
    if version_key(deployment.version) < _SERVE_SINCE:
        words = ["python", "-m", "vllm.entrypoints.openai.api_server", "--model", deployment.checkpoint]
    line = CommandLine(deployment, flags_of("vllm", deployment.version), words)
    environment = _add_parallel(line)
    if (simulated := arithmetic_dtype(deployment)) == "fp32" or line.says_dtype:  # auto turns fp32 into fp16
        line.add("--dtype", DTYPES[simulated], "quantization")
    _add_quantization(line)
    line.add_kv_cache(_LOW_BIT_KV)
    _add_knobs(line)
    _add_rare(line)
    partition = deployment.take("pipeline_layer_partition") or deployment.take("engine.pipeline_layer_partition")
    environment |= {"VLLM_PP_LAYER_PARTITION": ",".join(map(str, partition))} if partition else {}
    environment |= _add_kernels(line)
    deployment.take("engine.flashinfer_sampler")
    if (fused := deployment.scenario.deployment.engine.flashinfer_sampler) is not None:
        environment["VLLM_USE_FLASHINFER_SAMPLER"] = str(int(fused))
    if deployment.is_beyond_model:
        environment["VLLM_ALLOW_LONG_MAX_MODEL_LEN"] = "1"
    return deployment.started_by("vllm", line.words, environment=environment)


def _add_parallel(line: CommandLine) -> dict[str, str]:
    """Add the flags of parallelism; return the variable that chooses an exchange of experts without a flag."""
    deployment, asked = line.deployment, line.deployment.scenario.deployment
    deployment.take("decode_context_parallel_size")
    line.add_sizes({key: getattr(asked, key) for key in _SIZES})
    if asked.enable_expert_parallel:
        line.add("--enable-expert-parallel", True, "enable_expert_parallel")
    # How tokens reach the experts of other ranks, and how experts are placed.
    shape = deployment.resolved.shape
    deployment.take("all2all_backend")
    environment = dict[str, str]()
    if shape.all2all_backend != "allgather_reducescatter":
        if line.flags.has("--all2all-backend"):
            line.add("--all2all-backend", shape.all2all_backend, "all2all_backend")
        else:
            environment["VLLM_ALL2ALL_BACKEND"] = shape.all2all_backend
    line.add_overlap("--enable-dbo")
    line.add_balancing()
    return environment


def _add_quantization(line: CommandLine) -> None:
    """Add the flags for quantized weights: quantized by the server on loading, or already in the checkpoint."""
    deployment, quantization = line.deployment, line.deployment.quantization
    if deployment.needs_no_quantization():
        return
    if quantization.startswith("gguf"):
        deployment.needs_checkpoint("vLLM takes one GGUF file, and a repository has many")
    if quantization == deployment.stored_quantization and not deployment.is_own_checkpoint:
        deployment.note(f"{deployment.checkpoint} is stored in {quantization}: no --quantization is needed")
        return
    if not deployment.is_made_on_load:
        deployment.needs_checkpoint(deployment.why_not_made("vLLM"))
    name = _FORCED.get(quantization)
    if quantization == "fp8" and "fp8" not in deployment.checkpoint.rsplit("/", 1)[-1].lower():
        deployment.note(FP8_ON_LOAD)
        name = "fp8"
    online = _ONLINE.get(quantization)
    if online is not None and not deployment.is_own_checkpoint and line.flags.has("--quantization", online):
        name = online
    if name is not None:
        line.add("--quantization", name, "quantization")
        return
    deployment.needs_checkpoint(deployment.why_not_made("vLLM"))
    deployment.note(f"{deployment.checkpoint} must hold {quantization} weights; vLLM reads the format from it")


def _add_knobs(line: CommandLine) -> None:
    deployment, engine, flags = line.deployment, line.deployment.engine, line.flags
    for key in KNOBS:
        value = deployment.block_size if key == "block_size" else getattr(engine, key)
        is_absent_and_off = value is False and flags.takes.get(line.flag_of(key)) in (None, "switch")
        if key in deployment.says and not is_absent_and_off:
            line.add_option(key, value)
    asked, explicit = deployment.scenario.deployment.engine, deployment.is_explicit
    if flags.has("--scheduling-policy") and (explicit or asked.scheduling_policy):
        line.add_option("scheduling_policy", engine.scheduling_policy)
    mode = engine.preemption_mode
    if mode != "recompute" or (flags.has("--preemption-mode") and (explicit or asked.preemption_mode)):
        line.add_option("preemption_mode", mode)
    if asked.swap_space or (flags.has("--swap-space") and (explicit or asked.swap_space is not None)):
        line.add_option("swap_space", f"{engine.swap_space / 2**30:g}")


def _add_rare(line: CommandLine) -> None:
    """Add the flags of keys that few scenarios set."""
    deployment = line.deployment
    line.add_options(*_RARE)
    if deployment.take("engine.language_model_only"):
        none = json.dumps(dict.fromkeys(("image", "video", "audio"), 0))  # the limits that say it before 0.17
        has_switch = line.flags.has("--language-model-only")
        flag, value = ("--language-model-only", True) if has_switch else ("--limit-mm-per-prompt", none)
        line.add(flag, value, "engine.language_model_only")
    if mode := deployment.take("engine.cudagraph_mode"):
        line.add("--compilation-config", json.dumps({"cudagraph_mode": mode}), "engine.cudagraph_mode")
    deployment.take("engine.disable_cascade_attn")
    if (apart := deployment.scenario.deployment.engine.disable_cascade_attn) is not None:
        line.add_option("disable_cascade_attn", apart)
    line.add_offload()
    line.add_adapters("--lora-modules NAME=PATH")
    add_vllm_kind(line)
    add_vllm_tiers(line)
    line.add_interval()
    _add_speculative(line)


def _add_kernels(line: CommandLine) -> dict[str, str]:
    """Add the flags of kernels; return the variables that choose those without a flag."""
    deployment, environment = line.deployment, dict[str, str]()
    experts = deployment.take("engine.moe_backend")
    if experts and line.flags.has("--moe-backend"):
        line.add("--moe-backend", experts, "engine.moe_backend")
    elif experts == "aiter":
        environment["VLLM_ROCM_USE_AITER"] = "1"
    elif experts:
        environment["VLLM_MXFP4_USE_MARLIN"] = str(int(experts == "marlin"))
    line.add_options("mamba_ssm_cache_dtype")
    backend = deployment.take("engine.attention_backend")
    if backend == "aiter":
        environment["VLLM_ROCM_USE_AITER"] = "1"
        environment |= {"VLLM_ROCM_USE_AITER_MOE": "0"} if experts == "triton" else {}
    elif backend and line.flags.has("--attention-backend"):
        line.add("--attention-backend", _TRITON, "engine.attention_backend")
    elif backend:
        environment["VLLM_ATTENTION_BACKEND"] = _TRITON
    return environment


def _add_speculative(line: CommandLine) -> None:
    """Add the flags for the drafting method and number of tokens: JSON from 0.8 on, separate flags before."""
    deployment, key = line.deployment, "speculative"
    asked = deployment.take(key)
    if asked is None:
        return
    drafter, count = draft_checkpoint(deployment, asked), asked.num_speculative_tokens
    settings: dict[str, Any] = {"method": asked.method, "num_speculative_tokens": count}
    if drafter is not None:
        settings["model"] = drafter
    elif asked.method == "ngram":
        settings["prompt_lookup_max"] = _NGRAM_TOKENS
    deployment.note("acceptance is measured, not set: compare vllm:spec_decode_num_accepted_tokens with the scenario's")
    has_json = line.flags.has("--speculative-config")
    names = _METHODS[asked.method] if has_json or asked.method in ("draft_model", "ngram") else ()
    method = next((name for name in names if line.flags.accepts(_METHOD, name)), None)
    if method is None:
        rule = f"cannot be passed to {deployment.label}, which has no such drafter"
        remedy = ", ".join(line.flags.choices[_METHOD]) if has_json else None
        raise ScenarioError(rule, key=f"deployment.{key}", value=asked.method, remedy=remedy)
    if has_json:
        line.add("--speculative-config", json.dumps({**settings, "method": method}), key)
        return
    line.add("--speculative-model", drafter or "[ngram]", key)
    line.add("--num-speculative-tokens", count, key)
    if asked.method == "ngram":
        line.add("--ngram-prompt-lookup-max", _NGRAM_TOKENS, key)
