"""The `kv_offload` and `kv_tiers` blocks of an engine: what stands behind the prefix cache, in blocks and seconds.

The text below a field is its entry in the reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from simserve.engine.config import EngineConfig, KVTierConfig
from simserve.errors import ScenarioError
from simserve.perf.memory import MemoryPlan
from simserve.perf.offload import link_bandwidth
from simserve.perf.shape import ReplicaShape
from simserve.units import (
    GIB,
    PositiveBytes,
    PositiveBytesPerSecond,
    Seconds,
    format_bytes,
    format_seconds,
    to_text,
)
from simserve.validation import FrozenModel

TierName = Literal["host", "disk", "remote"]
_ORDER: tuple[TierName, ...] = ("host", "disk", "remote")


class KVOffloadSpec(FrozenModel):
    """Host memory, or a disk, behind the prefix cache: blocks that give way on the GPU go there, and a request that
    finds its prefix there has it loaded instead of computed (vLLM's offloading connector, LMCache, SGLang's HiCache).

    The step that admits such a request waits for the copy, as with LMCache's default; copies to the tier run beside
    the steps.
    """

    size: PositiveBytes
    """Bytes of the tier, of one replica over all its GPUs (vLLM's `--kv-offloading-size`)."""
    bandwidth: PositiveBytesPerSecond | None = None
    """Bandwidth at which one GPU loads; all GPUs of a replica load their parts at once. Of a disk that they share, its
    bandwidth over their number. Absent: the host link of the GPU, as far as copies reach it."""
    latency: Seconds = 0.0
    """What a step with loads waits besides, such as for a disk."""


class KVTierSpec(FrozenModel):
    """A tier behind the prefix cache, as LMCache, Mooncake's store, SGLang's HiCache and Dynamo (G2 to G4) have them.

    What gives way on the GPU goes to the first tier that is not shared, from there to the next, the least recently used
    first. A shared store gets a copy of every prompt when it has been computed, and of the answer when it is done; all
    replicas read it. A request takes the blocks of its prefix from the nearest tier that has them. Copies to a tier run
    beside the steps and take no time.
    """

    tier: TierName
    """Where it is. They stand in this order, each once: `host`, `disk`, `remote`."""
    capacity: PositiveBytes
    """Bytes of it: of one replica over all its GPUs, or of the whole store where it is `shared`."""
    bandwidth: PositiveBytesPerSecond | None = None
    """Bandwidth at which a replica loads, all its GPUs together. Absent, for `host` alone: the host links of its GPUs,
    as far as copies reach it."""
    latency: Seconds = 0.0
    """What a step with loads from it waits besides."""
    shared: bool = False
    """Whether it is one store of all replicas (of a pool): what one writes another can load. The last tier only."""
    total_bandwidth: PositiveBytesPerSecond | None = None
    """Of a `shared` tier: bandwidth that all replicas load over together, one after the other. Absent: each has its
    own."""
    fetch: Literal["if_faster", "always"] = "if_faster"
    """`if_faster`: a request loads what it finds as far as that brings its first token sooner than computing would, so
    that a tier that is too slow is not used. `always`: it loads all that it finds, as LMCache and HiCache do."""
    overlap: bool = False
    """Whether blocks are loaded layer by layer while the step computes, which then waits only for what takes longer
    (HiCache, LMCache's layerwise mode). Otherwise the step waits for the copies."""
    usd_per_gib_hour: Annotated[float, Field(ge=0)] = 0.0
    """Price of a GiB of it for an hour, added to that of the GPUs; 0: it is in their price."""


def check_tiers(tiers: Sequence[KVTierSpec]) -> None:
    """Do nothing where tiers go together.

    Raises:
        ValueError: They do not; the message is a rule and a remedy, ready to stand behind a key path.
    """
    names = [each.tier for each in tiers]
    if names != sorted(set(names), key=_ORDER.index):
        raise ValueError(f"has the tiers {', '.join(names)}; write each once, the nearest first: {', '.join(_ORDER)}")
    for each in tiers:
        if each.shared and each is not tiers[-1]:
            raise ValueError(f"has a shared tier before another ({each.tier}); only the last may be shared")
        if each.total_bandwidth is not None and not each.shared:
            raise ValueError(f"has a total_bandwidth for {each.tier}, which is not shared; write bandwidth")
        if each.bandwidth is None and each.tier != "host":
            raise ValueError(f'needs the bandwidth of {each.tier}; write for example bandwidth: "5 GB/s"')


def with_tiers(
    config: EngineConfig,
    offload: KVOffloadSpec | None,
    tiers: Sequence[KVTierSpec] | None,
    shape: ReplicaShape,
    memory: MemoryPlan,
) -> EngineConfig:
    """Return what a scheduler with these tiers obeys; as it is without any.

    Raises:
        ScenarioError: There is no prefix cache that they could stand behind, or one holds no block.
    """
    if offload is None and not tiers:
        return config
    key = "engine.kv_tiers" if offload is None else "engine.kv_offload"
    if not config.enable_prefix_caching:
        rule = "stands behind the prefix cache, and that is off"
        raise ScenarioError(
            rule, key=key, remedy="set deployment.engine.enable_prefix_caching to true, or leave it out"
        )
    if shape.data_parallel_size > 1:
        rule = f"must be 1 with {key}: ranks that step together would wait for each other's loads"
        raise ScenarioError(rule, key="data_parallel_size", value=shape.data_parallel_size)
    gpu_block = memory.kv_bytes_per_token * config.block_size
    if offload is not None:
        return replace(config, kv_tiers=(_offloaded(offload, gpu_block, shape, f"{key}.size"),))
    found = [_tier(each, gpu_block, shape, f"{key}.{number}.capacity") for number, each in enumerate(tiers or ())]
    return replace(config, kv_tiers=tuple(found))


def _offloaded(spec: KVOffloadSpec, gpu_block: float, shape: ReplicaShape, key: str) -> KVTierConfig:
    bandwidth = link_bandwidth(shape) if spec.bandwidth is None else spec.bandwidth
    return KVTierConfig(
        name="host",
        num_blocks=_blocks(spec.size, gpu_block * shape.num_gpus, key),
        block_seconds=gpu_block / bandwidth,
        latency=spec.latency,
    )


def _tier(spec: KVTierSpec, gpu_block: float, shape: ReplicaShape, key: str) -> KVTierConfig:
    block = gpu_block * shape.num_gpus
    bandwidth = link_bandwidth(shape) * shape.num_gpus if spec.bandwidth is None else spec.bandwidth
    return KVTierConfig(
        name=spec.tier,
        num_blocks=_blocks(spec.capacity, block, key),
        block_seconds=block / bandwidth,
        latency=spec.latency,
        is_shared=spec.shared,
        store_block_seconds=0.0 if spec.total_bandwidth is None else block / spec.total_bandwidth,
        has_choice=spec.fetch == "if_faster",
        overlaps=spec.overlap,
    )


def _blocks(size: float, block_bytes: float, key: str) -> int:
    """Return the blocks that so many bytes hold.

    Raises:
        ScenarioError: They hold none.
    """
    num_blocks = int(size // block_bytes)
    if not num_blocks:
        rule = f"holds no KV block, {to_text(block_bytes, 'bytes')} over all GPUs"
        raise ScenarioError(rule, key=key, value=to_text(size, "bytes"), remedy="give it more")
    return num_blocks


def tiers_usd_per_hour(tiers: Sequence[KVTierSpec], count: int, *, is_shared: bool) -> float:
    """Return what ``count`` of each tier cost an hour: of those that replicas share, or of the others."""
    return count * sum(each.capacity / GIB * each.usd_per_gib_hour for each in tiers if each.shared == is_shared)


def tier_lines(config: EngineConfig, bytes_per_token: float) -> list[str]:
    """Return what each tier holds and what a block takes to load, as lines a person can check; none without one.

    Args:
        config: The scheduler that has them.
        bytes_per_token: KV bytes of a token over all GPUs of a replica.
    """
    size = config.block_size
    lines = []
    for tier in config.kv_tiers:
        total = format_bytes(tier.num_blocks * size * bytes_per_token)
        name = f"{tier.name} tier, shared by the replicas" if tier.is_shared else f"{tier.name} tier"
        if config.kv_tiers == (tier,) and not tier.has_choice:
            name = "second KV tier"
        lines.append(
            f"{name}: {total} / ({bytes_per_token:,.0f} B a token x {size} tokens a block) = {tier.num_blocks:,} "
            f"blocks = {tier.num_blocks * size:,} tokens behind the prefix cache; loading a token takes "
            f"{format_seconds(tier.block_seconds / size)}"
        )
    return lines
