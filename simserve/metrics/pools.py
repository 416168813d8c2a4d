"""The figures of each pool of a fleet, and of the KV caches that go between them. Knows totals, no scheduler."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simserve.sim.pools import PoolOutcome
    from simserve.sim.simulate import Simulation

TRANSFER_KEYS = ("count", "link_seconds", "waited_seconds", "stalled_seconds")
_NOTICEABLE = 0.05


def pool_figures(simulation: Simulation) -> dict[str, dict[str, Any]]:
    """Return ``role replicas gpus busy mfu mbu kv_usage_mean kv_usage_peak mean_batch seconds_by_part`` by pool.

    Empty where there is only one kind of replica. Shares are over the replicas of the pool and the whole run.
    """
    return {pool.name: _figures(pool, simulation.end_time) for pool in simulation.pools}


def transfer_figures(simulation: Simulation) -> dict[str, float | None]:
    """Return how many KV caches crossed a link, for how long, and what waited for it; None without disaggregation.

    ``link_seconds``: links in use; ``waited_seconds``: caches that waited for their link; ``stalled_seconds``: prefill
    replicas that stood still because ``max_in_transfer`` caches were on their way.
    """
    return {key: simulation.transfers.get(key) for key in TRANSFER_KEYS}


def pool_sentences(simulation: Simulation) -> list[str]:
    """Return which pool is the fuller one, and whether links or back-pressure hold up the other."""
    pools = simulation.pools
    if not pools:
        return []
    figures = pool_figures(simulation)
    busy = ", ".join(f"{name} {each['busy']:.0%}" for name, each in figures.items())
    found = [f"Busy by pool: {busy}."]
    transfers = simulation.transfers
    if transfers.get("stalled_seconds", 0.0) > 0:
        prefill_seconds = simulation.end_time * sum(pool.num_replicas for pool in pools if pool.role == "prefill")
        share = transfers["stalled_seconds"] / prefill_seconds
        if share >= _NOTICEABLE:
            found.append(f"Prefill replicas stood still {share:.0%} of the time: decode replicas take in too little.")
    if transfers.get("count") and transfers["waited_seconds"] > transfers["link_seconds"]:
        found.append("KV caches waited longer for their link than they took on it.")
    return found


def _figures(pool: PoolOutcome, end_time: float) -> dict[str, Any]:
    totals = pool.totals
    capacity_seconds = totals.kv_capacity_tokens * end_time
    return {
        "role": pool.role,
        "replicas": pool.num_replicas,
        "gpus": pool.num_gpus,
        "busy": min(_ratio(totals.busy_seconds, pool.num_replicas * end_time), 1.0),
        "mfu": _ratio(totals.flops, pool.peak_flops * totals.busy_seconds),
        "mbu": _ratio(totals.bytes, pool.peak_bandwidth * totals.busy_seconds),
        "kv_usage_mean": _ratio(totals.kv_reserved_token_seconds, capacity_seconds),
        "kv_usage_peak": totals.kv_peak_share if totals.kv_capacity_tokens > 0 else math.nan,
        "mean_batch": _ratio(totals.sequence_steps, totals.num_steps),
        "seconds_by_part": dict(totals.seconds_by_part),
    }


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator > 0 else math.nan
