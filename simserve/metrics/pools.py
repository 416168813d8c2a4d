"""A fleet in figures: its pools, how many replicas there were when, the KV caches that went between them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simserve.metrics.statistics import ratio
from simserve.metrics.steady_state import Window
from simserve.units import SECONDS_PER_HOUR, format_seconds

if TYPE_CHECKING:
    from simserve.sim.pools import PoolOutcome
    from simserve.sim.records import RequestRecords
    from simserve.sim.simulate import Simulation
    from simserve.sim.totals import SpeculationTotals

TRANSFER_KEYS = ("count", "link_seconds", "waited_seconds", "stalled_seconds")
_NOTICEABLE = 0.05


Prices = Mapping[str, float | None]
"""Dollars a GPU-hour by pool; None: unknown."""


def pool_figures(
    simulation: Simulation, window: Window, meets_slo: NDArray[np.bool_] | None, prices: Prices
) -> dict[str, dict[str, Any]]:
    """Return the figures of each pool; empty where there is only one kind of replica.

    ``role replicas gpus busy mfu mbu kv_usage_mean kv_usage_peak mean_batch seconds_by_part``: over the replicas of the
    pool and the whole run. ``requests attainment usd_per_hour usd_per_million_output_tokens``: of the requests of the
    measured window that were answered there (with disaggregation: that decoded there), and of its GPUs in that time.
    """
    return {
        pool.name: _figures(pool, simulation.end_time)
        | _answered(simulation, number, window, meets_slo)
        | _dollars(simulation, number, window, prices.get(pool.name))
        for number, pool in enumerate(simulation.pools)
    }


def mean_gpu_hour_usd(simulation: Simulation, window: Window, prices: Prices, otherwise: float | None) -> float | None:
    """Return the price of a GPU-hour over the GPUs of all pools that were paid for in a window; None where unknown."""
    costs = [_usd_per_hour(simulation, number, window, prices.get(each.name)) for number, each in _numbered(simulation)]
    gpus = sum(_gpus(simulation, number, window) for number, _ in _numbered(simulation))
    known = [each for each in costs if each is not None]
    return sum(known) / gpus if gpus and len(known) == len(costs) else otherwise


def drafted(simulation: Simulation) -> SpeculationTotals | None:
    """Return what drafts add up to, on the pool that drafted most; None without speculative decoding."""
    found = [pool.totals.speculation for pool in simulation.pools if pool.totals.speculation is not None]
    return max(found, key=lambda each: each.num_drafts) if found else simulation.totals.speculation


def _numbered(simulation: Simulation) -> list[tuple[int, PoolOutcome]]:
    return list(enumerate(simulation.pools))


def _gpus(simulation: Simulation, number: int, window: Window) -> float:
    timeline = simulation.timeline
    if timeline is None or not window.seconds > 0:
        return simulation.pools[number].num_gpus
    return timeline.mean_gpus(window.start, window.end, number)


def _usd_per_hour(simulation: Simulation, number: int, window: Window, price: float | None) -> float | None:
    return None if price is None else price * _gpus(simulation, number, window)


def _dollars(simulation: Simulation, number: int, window: Window, price: float | None) -> dict[str, Any]:
    hourly = _usd_per_hour(simulation, number, window, price)
    tokens = float(simulation.records.output_tokens[_served(simulation, number, window)].sum())
    a_million = None if hourly is None else ratio(hourly * window.seconds / 3600.0, tokens / 1e6)
    return {"usd_per_hour": hourly, "usd_per_million_output_tokens": a_million}


def _answered(
    simulation: Simulation, number: int, window: Window, meets_slo: NDArray[np.bool_] | None
) -> dict[str, Any]:
    served = _served(simulation, number, window)
    count = int(np.count_nonzero(served))
    met = math.nan if meets_slo is None else ratio(float(np.count_nonzero(meets_slo & served)), count)
    return {"requests": count, "attainment": met}


def _served(simulation: Simulation, number: int, window: Window) -> NDArray[np.bool_]:
    """Return which requests of the window a replica of a pool worked on last."""
    timeline, replica = simulation.timeline, simulation.records.replica_id
    pool_of = np.zeros(0, dtype=np.int64) if timeline is None else timeline.pool
    served: NDArray[np.bool_] = (replica >= 0) & window.has_arrived
    served[served] = pool_of[replica[served]] == number
    return served


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
    figures = {pool.name: _figures(pool, simulation.end_time) for pool in pools}
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
    return [*found, *_kv_transfer_sentences(simulation.records)]


def _kv_transfer_sentences(records: RequestRecords) -> list[str]:
    """Return what the way from the prefill to the decode replica adds to TTFT; empty where no cache went it."""
    if records.prefill_end_time is None:
        return []
    handed_over = np.isfinite(records.prefill_end_time) & np.isfinite(records.first_token_time)
    if not handed_over.any():
        return []
    first = records.first_token_time[handed_over]
    way = float((first - records.prefill_end_time[handed_over]).mean())
    ttft = float((first - records.arrival_time[handed_over]).mean())
    return [
        f"Between the end of a prompt and its first token lies the way to a decode replica: {format_seconds(way)} of a "
        f"TTFT of {format_seconds(ttft)} on average."
    ]


def _figures(pool: PoolOutcome, end_time: float) -> dict[str, Any]:
    totals = pool.totals
    capacity_seconds = totals.kv_capacity_tokens * end_time
    return {
        "role": pool.role,
        "replicas": pool.num_replicas,
        "gpus": pool.num_gpus,
        "busy": min(ratio(totals.busy_seconds, pool.num_schedulers * end_time), 1.0),
        "mfu": ratio(totals.flops, pool.peak_flops * totals.busy_seconds),
        "mbu": ratio(totals.bytes, pool.peak_bandwidth * totals.busy_seconds),
        "kv_usage_mean": ratio(totals.kv_reserved_token_seconds, capacity_seconds),
        "kv_usage_peak": totals.kv_peak_share if totals.kv_capacity_tokens > 0 else math.nan,
        "mean_batch": ratio(totals.sequence_steps, totals.num_steps),
        "seconds_by_part": dict(totals.seconds_by_part),
    }


def replica_figures(simulation: Simulation, num_gpus: int) -> dict[str, Any]:
    """Return ``mean peak launched gpu_hours timeline killed replaced updates`` of the replicas over the whole run.

    A replica counts, and its GPUs are paid for, from its launch until it is given back. ``timeline`` has an entry for
    every instant at which that changed: ``time_s``, ``launched`` (paid for) and ``ready`` (taking requests or
    answering the last of them). ``killed``: restarts by the liveness probe. ``updates``: of each rolling update its
    ``start_s end_s`` (None: not over), the replicas that were ready before and the fewest in its course.

    Args:
        simulation: The run.
        num_gpus: GPUs of the fleet where all replicas are there throughout.
    """
    timeline, end = simulation.timeline, simulation.end_time
    if timeline is None:
        count = simulation.num_replicas
        return {
            "mean": float(count),
            "peak": count,
            "launched": count,
            "gpu_hours": num_gpus * end / SECONDS_PER_HOUR,
            "timeline": [{"time_s": 0.0, "launched": count, "ready": count}],
            "killed": 0,
            "replaced": 0,
            "updates": [],
        }
    changes: dict[float, list[int]] = {}
    for column, sign, place in (
        (timeline.launched_at, 1, 0),
        (timeline.stopped_at, -1, 0),
        (timeline.ready_at, 1, 1),
        (np.where(np.isfinite(timeline.ready_at), timeline.stopped_at, np.inf), -1, 1),
        (timeline.lost_since, -1, 1),
        (timeline.lost_until, 1, 1),
    ):
        for time in column[np.isfinite(column)]:
            if time <= end:
                changes.setdefault(float(time), [0, 0])[place] += sign
    rows, launched, ready = [], 0, 0
    for time in sorted(changes):
        launched, ready = launched + changes[time][0], ready + changes[time][1]
        rows.append({"time_s": time, "launched": launched, "ready": ready})
    return {
        "mean": timeline.mean_replicas(0.0, end),
        "peak": max((row["launched"] for row in rows), default=0),
        "launched": len(timeline.launched_at),
        "gpu_hours": timeline.mean_gpus(0.0, end) * end / SECONDS_PER_HOUR,
        "timeline": rows,
        "killed": timeline.num_killed,
        "replaced": timeline.num_replaced,
        "updates": [_update(rows, start, until) for start, until in timeline.updates.tolist()],
    }


def _update(rows: list[dict[str, Any]], start: float, end: float) -> dict[str, Any]:
    before = [row["ready"] for row in rows if row["time_s"] < start] or [rows[0]["ready"]]
    during = [row["ready"] for row in rows if start <= row["time_s"] < end]
    return {
        "start_s": start,
        "end_s": end if math.isfinite(end) else None,
        "ready_before": before[-1],
        "fewest_ready": min([before[-1], *during]),
    }


def mean_gpus(simulation: Simulation, window: Window, num_gpus: int) -> float:
    """Return the mean number of GPUs that are paid for in the measured window."""
    if simulation.timeline is None or not window.seconds > 0:
        return float(num_gpus)
    return simulation.timeline.mean_gpus(window.start, window.end)
