"""How the KV memory of a run was used: shares of its capacity, waste, prefix hits, preemptions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from simserve.metrics.figures import ratio
from simserve.metrics.offload import hit_rates, tier_figures

if TYPE_CHECKING:
    from simserve.sim.simulate import Simulation


def kv_figures(simulation: Simulation, num_blocks: int, block_bytes: float, *, caches_prefixes: bool) -> dict[str, Any]:
    """Return the use of the KV pools, averaged over time.

    ``usage_*``: share of the capacity that is reserved. ``internal_waste``: share of what is reserved that
    holds no token. ``external_waste``: share of the capacity that is free, but in pieces too small for the
    request that waits for it. ``prefix_hit_rate gpu_hit_rate offload_hit_rate``: share of prompt tokens found in the
    prefix cache, in all, on the GPU and in the tiers behind it, over the requests that were scheduled. ``tiers``: of
    each of those, as `tier_figures` has them.

    Args:
        simulation: The run.
        num_blocks: KV blocks of a replica.
        block_bytes: Of one of them, over all GPUs of a replica.
        caches_prefixes: Whether there is a prefix cache.
    """
    totals, records = simulation.totals, simulation.records
    capacity_seconds = totals.kv_capacity_tokens * simulation.end_time
    hits = hit_rates(simulation, caches_prefixes=caches_prefixes)
    return {
        "num_blocks": num_blocks,
        "usage_mean": ratio(totals.kv_reserved_token_seconds, capacity_seconds),
        "usage_peak": totals.kv_peak_share if totals.kv_capacity_tokens > 0 else math.nan,
        "internal_waste": 1 - ratio(totals.kv_held_token_seconds, totals.kv_reserved_token_seconds),
        "external_waste": ratio(totals.kv_unusable_token_seconds, capacity_seconds),
        "prefix_hit_rate": hits["prefix_hit_rate"],
        "preemptions": int(records.num_preemptions.sum()),
        "gpu_hit_rate": hits["gpu_hit_rate"],
        "offload_hit_rate": hits["offload_hit_rate"],
        "tiers": tier_figures(simulation, block_bytes),
    }
