"""What stands behind the prefix cache, as flags of vLLM and SGLang; what those do not say becomes a note."""

from __future__ import annotations

from simserve.planner.export.deployment import Deployment
from simserve.planner.export.flags import Flags
from simserve.scenario.kv_tiers import KVTierSpec
from simserve.units import GIB, format_bytes

_GB = 1e9
"""Bytes of a GB of ``--hicache-size`` (SGLang mem_cache/memory_pool_host.py)."""
_BACKENDS = {"disk": "file", "remote": "mooncake"}
"""Tier -> SGLang's ``--hicache-storage-backend``; others go with either."""


def vllm_tier_words(deployment: Deployment, flags: Flags) -> list[str]:
    """Return vLLM's flags: host memory by itself is the native connector's, with more behind it LMCache's."""
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
    """Return SGLang's flags: host memory of each rank, and where blocks go behind it."""
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
