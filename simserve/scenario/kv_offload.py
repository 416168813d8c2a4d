"""The `deployment.engine.kv_offload` block: a second tier behind the prefix cache, in blocks and seconds.

The text below a field is its entry in the reference.
"""

from __future__ import annotations

from dataclasses import replace

from simserve.engine.config import EngineConfig
from simserve.errors import ScenarioError
from simserve.perf.memory import MemoryPlan
from simserve.perf.offload import link_bandwidth
from simserve.perf.shape import ReplicaShape
from simserve.units import PositiveBytes, PositiveBytesPerSecond, Seconds, format_bytes, format_seconds, to_text
from simserve.validation import FrozenModel


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


def with_offload(
    config: EngineConfig, spec: KVOffloadSpec | None, shape: ReplicaShape, memory: MemoryPlan
) -> EngineConfig:
    """Return what a scheduler with this second tier obeys; as it is without one.

    Raises:
        ScenarioError: There is no prefix cache that it could stand behind, or it holds no block.
    """
    if spec is None:
        return config
    key = "engine.kv_offload"
    if not config.enable_prefix_caching:
        rule = "stands behind the prefix cache, and that is off"
        raise ScenarioError(
            rule, key=key, remedy="set deployment.engine.enable_prefix_caching to true, or leave it out"
        )
    if shape.data_parallel_size > 1:
        rule = "must be 1 with engine.kv_offload: ranks that step together would wait for each other's loads"
        raise ScenarioError(rule, key="data_parallel_size", value=shape.data_parallel_size)
    block_bytes = memory.kv_bytes_per_token * config.block_size
    num_blocks = int(spec.size // (block_bytes * shape.num_gpus))
    if not num_blocks:
        rule = f"holds no KV block, {to_text(block_bytes * shape.num_gpus, 'bytes')} over all GPUs"
        raise ScenarioError(rule, key=f"{key}.size", value=to_text(spec.size, "bytes"), remedy="give it more")
    bandwidth = link_bandwidth(shape) if spec.bandwidth is None else spec.bandwidth
    return replace(
        config,
        num_offload_blocks=num_blocks,
        offload_block_seconds=block_bytes / bandwidth,
        offload_latency=spec.latency,
    )


def offload_lines(config: EngineConfig, bytes_per_token: float) -> list[str]:
    """Return what a second tier holds and what a block takes to load, as a line a person can check; none without one.

    Args:
        config: The scheduler that has it.
        bytes_per_token: KV bytes of a token over all GPUs of a replica.
    """
    blocks, size = config.num_offload_blocks, config.block_size
    if not blocks:
        return []
    total = format_bytes(blocks * size * bytes_per_token)
    return [
        f"second KV tier: {total} / ({bytes_per_token:,.0f} B a token x {size} tokens a block) = {blocks:,} blocks = "
        f"{blocks * size:,} tokens behind the prefix cache; loading a token takes "
        f"{format_seconds(config.offload_block_seconds / size)}"
    ]
