"""How many replicas were there when, and what of them is paid for. Knows lives of replicas, no price."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from simserve.metrics.steady_state import Window

if TYPE_CHECKING:
    from simserve.sim.simulate import Simulation

_SECONDS_PER_HOUR = 3600.0


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
            "gpu_hours": num_gpus * end / _SECONDS_PER_HOUR,
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
        "gpu_hours": timeline.mean_gpus(0.0, end) * end / _SECONDS_PER_HOUR,
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
