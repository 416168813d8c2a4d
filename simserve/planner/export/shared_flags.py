"""Flags for features that engines share: number formats, experts, KV tiers, embeddings and structured output."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from simserve.errors import ScenarioError
from simserve.planner.export.deployment import Deployment
from simserve.planner.export.flags import Flags
from simserve.scenario.deployment_spec import KVTierSpec
from simserve.scenario.formats import COMPRESSED_KV
from simserve.units import GIB, format_bytes
from simserve.workload.length_spec import NoLength

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
"""Number format of a scenario -> its name in servers' ``--dtype``."""
_KV_FLAG = "--kv-cache-dtype"
_GB = 1e9  # Bytes of a GB of ``--hicache-size`` (SGLang mem_cache/memory_pool_host.py).
_BACKENDS = {"disk": "file", "remote": "mooncake"}
"""Tier -> SGLang's ``--hicache-storage-backend``; other backends fit either tier."""
_SGLANG_BACKENDS = {"guidance": "llguidance"}
"""Grammar compiler -> SGLang's name of it, where that differs (server_args.py, ``--grammar-backend``)."""


def arithmetic_dtype(deployment: Deployment) -> str:
    """Return the format in which a deployment computes where its weights are not quantized."""
    quantization = deployment.quantization
    return quantization if quantization in DTYPES else deployment.model.dtype


def kv_cache_words(deployment: Deployment, flags: Flags, low_bit: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the flag of the KV cache's number format, or nothing where it is the server's default.

    Args:
        low_bit: Format of 8 bits and fewer -> the engine's names for it, the newest first.

    Raises:
        ScenarioError: The engine's version has no such KV cache.
    """
    key, asked = "deployment.kv_cache_dtype", deployment.scenario.deployment.kv_cache_dtype
    if asked == "auto" and deployment.model.compressed_attention is not None:
        asked = COMPRESSED_KV  # vLLM from 0.20 to 0.29 stops with an error at its own default
    if asked in DTYPES and (asked != arithmetic_dtype(deployment) or deployment.kv_of_auto not in DTYPES):
        return flags.render(_KV_FLAG, DTYPES[asked], key=key)
    if asked in DTYPES or asked == "auto":
        return [_KV_FLAG, "auto"] if deployment.is_explicit and flags.has(_KV_FLAG) else []
    value = next((each for each in low_bit.get(asked, ()) if flags.has(_KV_FLAG, each)), None)
    if value is None:
        rule = f"cannot be exported: {deployment.label} has no {asked} KV cache"
        remedy = "it stores " + ", ".join(flags.choices.get(_KV_FLAG, (deployment.model.dtype,)))
        raise ScenarioError(rule, key=key, value=asked, remedy=remedy)
    return [_KV_FLAG, value]


def option_words(deployment: Deployment, flags: Flags, names: Mapping[str, str]) -> list[str]:
    """Return the flags of the engine's options that the scenario sets: option -> flag."""
    words = []
    for key, flag in names.items():
        value = deployment.take(f"engine.{key}")
        if value:
            words += flags.render(flag, value, key=f"deployment.engine.{key}")
    return words


def offload_words(deployment: Deployment, flags: Flags) -> list[str]:
    """Return the flag of the weights kept in host memory, GiB."""
    offloaded = deployment.take("cpu_offload_gb") or deployment.take("engine.cpu_offload_gb")
    return flags.render("--cpu-offload-gb", f"{offloaded:g}", key="deployment.cpu_offload_gb") if offloaded else []


def adapter_words(deployment: Deployment, flags: Flags, seats: str, kept: str, named: str) -> list[str]:
    """Return the switch and the limits of LoRA adapters.

    Args:
        seats: Flag of the adapters on the GPU.
        kept: Flag of those kept in host memory.
        named: Flag that names the adapters, with its value.
    """
    key = "deployment.engine.max_loras"
    count = deployment.take("engine.max_loras")
    if not count:
        return []
    words = flags.render("--enable-lora", True, key=key) if flags.has("--enable-lora") else []
    words += flags.render(seats, count, key=key)
    deployment.take("engine.max_lora_rank")
    if flags.has("--max-lora-rank"):
        rank = deployment.engine.max_lora_rank
        words += flags.render("--max-lora-rank", rank, key="deployment.engine.max_lora_rank")
    deployment.note(f"name the adapters with {named}, or load them while the server runs")
    return words + option_words(deployment, flags, {"max_cpu_loras": kept})


def interval_words(deployment: Deployment, flags: Flags) -> list[str]:
    """Return the flag of the tokens that are sent together after the first; the rest of `streaming` is no flag."""
    spec = deployment.unsaid.get("streaming")
    if spec is None or spec.stream_interval is None:
        return []
    if spec.model_fields_set <= {"stream_interval", "cost_per_event"}:
        deployment.take("streaming")
    return flags.render("--stream-interval", spec.stream_interval, key="deployment.streaming.stream_interval")


def overlap_words(deployment: Deployment, flags: Flags, flag: str) -> list[str]:
    """Return the switch that overlaps two micro-batches, where that was simulated."""
    deployment.take("enable_two_batch_overlap")
    if not deployment.resolved.shape.enable_two_batch_overlap:
        return []
    return flags.render(flag, True, key="deployment.enable_two_batch_overlap")


def balancing_words(flags: Flags, flag: str, copies: int | str) -> list[str]:
    """Return the flags that place experts by their load, with the given number of redundant copies."""
    key = "deployment.num_redundant_experts"
    return flags.render("--enable-eplb", True, key=key) + flags.render(flag, copies, key=key)


def vllm_tier_words(deployment: Deployment, flags: Flags) -> list[str]:
    """Return vLLM's flags of KV tiers: the native connector for host memory alone, LMCache for more tiers."""
    if not flags.has("--kv-offloading-size"):
        return []
    key = "deployment.engine.kv_offload"
    offload = deployment.take("engine.kv_offload")
    if offload is not None:
        return _vllm_words(flags, offload.size, "native", key)
    tiers: tuple[KVTierSpec, ...] = deployment.unsaid.get("engine.kv_tiers") or ()
    if not tiers or tiers[0].tier != "host":
        return []
    deployment.take("engine.kv_tiers")
    workers = deployment.resolved.shape.num_gpus
    for tier in tiers[1:]:
        size = tier.capacity / GIB
        if tier.tier == "disk":
            variable = f"LMCACHE_LOCAL_DISK=file:///PATH LMCACHE_MAX_LOCAL_DISK_SIZE={size / workers:g}"
        else:
            variable = f"LMCACHE_REMOTE_URL=URL of a store of {format_bytes(tier.capacity)}"
        deployment.note(f"LMCache's {tier.tier} tier is set by variables of the server: {variable}")
    backend = "native" if len(tiers) == 1 else "lmcache"
    return _vllm_words(flags, tiers[0].capacity, backend, "deployment.engine.kv_tiers")


def _vllm_words(flags: Flags, size: float, backend: str, key: str) -> list[str]:
    words = flags.render("--kv-offloading-size", f"{size / GIB:g}", key=key)
    return words + flags.render("--kv-offloading-backend", backend, key=key)


def sglang_tier_words(deployment: Deployment, flags: Flags) -> list[str]:
    """Return SGLang's flags of KV tiers: host memory per rank, and the storage behind it."""
    offload = deployment.unsaid.get("engine.kv_offload")
    tiers: tuple[KVTierSpec, ...] = deployment.unsaid.get("engine.kv_tiers") or ()
    if not flags.has("--enable-hierarchical-cache") or (offload is None and (not tiers or tiers[0].tier != "host")):
        return []
    deployment.take("engine.kv_offload")
    deployment.take("engine.kv_tiers")
    resolved = deployment.resolved
    key = "deployment.engine.kv_tiers" if tiers else "deployment.engine.kv_offload"
    size = offload.size if offload is not None else tiers[0].capacity
    of_rank = max(int(size / resolved.shape.num_gpus / _GB), 1)
    if of_rank * _GB < resolved.memory.kv_bytes:
        pool = format_bytes(resolved.memory.kv_bytes)
        deployment.note(f"SGLang wants more host memory of a rank than its KV cache of {pool} on the GPU: raise {key}")
    words = flags.render("--enable-hierarchical-cache", True, key=key)
    words += flags.render("--hicache-size", of_rank, key=key)
    for tier in tiers[1:2]:
        if flags.has("--hicache-storage-backend"):
            words += flags.render("--hicache-storage-backend", _BACKENDS[tier.tier], key=key)
        else:
            deployment.note(f"{deployment.label} has no storage behind host memory: the {tier.tier} tier is left out")
    for tier in tiers[2:]:
        deployment.note(f"SGLang has one storage behind host memory: the {tier.tier} tier is left out")
    return words


def vllm_kind_words(deployment: Deployment, flags: Flags) -> list[str]:
    """Return vLLM's flags: the runner of pooling models (``--task`` before 0.10.1) and the grammar compiler."""
    words = []
    if _are_embeddings(deployment, "--runner pooling"):
        key = "workload.output_tokens"
        flag, value = ("--runner", "pooling") if flags.has("--runner") else ("--task", "embed")
        words += flags.render(flag, value, key=key)
    backend = _grammar_backend(deployment)
    if backend is not None:
        key = "workload.structured_output.backend"
        if flags.has("--structured-outputs-config"):
            words += flags.render("--structured-outputs-config", json.dumps({"backend": backend}), key=key)
        else:
            words += flags.render("--guided-decoding-backend", backend, key=key)
    return words


def sglang_kind_words(deployment: Deployment, flags: Flags) -> list[str]:
    """Return SGLang's flags for embeddings and the grammar compiler."""
    words = []
    if _are_embeddings(deployment, "--is-embedding"):
        words += flags.render("--is-embedding", True, key="workload.output_tokens")
    backend = _grammar_backend(deployment)
    if backend is not None:
        name = _SGLANG_BACKENDS.get(backend, backend)
        words += flags.render("--grammar-backend", name, key="workload.structured_output.backend")
    return words


def _are_embeddings(deployment: Deployment, flag: str) -> bool:
    """Return whether no request has output; add a note where only some do, as these need a separate server."""
    workload = deployment.scenario.workload
    own = [each.output_tokens or workload.output_tokens for each in workload.classes or ()]
    are_none = [isinstance(each, NoLength) for each in own or [workload.output_tokens]]
    if any(are_none) and not all(are_none):
        deployment.note(f"requests without output tokens are embeddings: they need a server of their own, with {flag}")
    return all(are_none)


def _grammar_backend(deployment: Deployment) -> str | None:
    """Return the grammar compiler, where it is not the engines' default; None: the default, or no grammars."""
    structured = deployment.scenario.workload.structured_output
    if structured is None or (structured.backend == "xgrammar" and not deployment.is_explicit):
        return None
    return structured.backend
