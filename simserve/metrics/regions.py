"""What clients of each region got, and how many were served in another. Knows records, no network."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simserve.metrics.latency import MS, RequestLatencies
from simserve.metrics.steady_state import Window

if TYPE_CHECKING:
    from simserve.sim.simulate import Simulation

_NOTICEABLE = 0.01


def region_figures(
    simulation: Simulation, latencies: RequestLatencies, window: Window, meets_slo: NDArray[np.bool_] | None
) -> dict[str, dict[str, Any]]:
    """Return ``requests served_elsewhere mean_ttft_ms p95_ttft_ms attainment`` by region of the clients.

    ``served_elsewhere`` is the share of the answered ones whose replica was in another region; all figures are of the
    measured window. Empty without regions.
    """
    home = simulation.records.client_region
    if home is None:
        return {}
    elsewhere = _served_elsewhere(simulation)
    return {
        name: _figures(window.has_arrived & (home == number), elsewhere, latencies, meets_slo)
        for number, name in enumerate(simulation.records.region_names)
    }


def region_sentences(simulation: Simulation) -> list[str]:
    """Return how many requests went to another region than the nearest, where that is noticeable."""
    if simulation.records.client_region is None:
        return []
    elsewhere = _served_elsewhere(simulation)
    share = float(np.nanmean(elsewhere)) if np.isfinite(elsewhere).any() else 0.0
    return [f"{share:.0%} of the requests were served in another region than their client's."] * (share >= _NOTICEABLE)


def _served_elsewhere(simulation: Simulation) -> NDArray[np.float64]:
    """Return 1 where the replica is in another region than the client, else 0; NaN where none served it."""
    records, timeline = simulation.records, simulation.timeline
    assert records.client_region is not None
    assert timeline is not None
    served = records.replica_id >= 0
    found = np.full(len(records), math.nan)
    regions = np.array(timeline.pool_regions)[timeline.pool[records.replica_id[served]]]
    found[served] = np.array(records.region_names)[records.client_region[served]] != regions
    return found


def _figures(
    is_own: NDArray[np.bool_],
    elsewhere: NDArray[np.float64],
    latencies: RequestLatencies,
    meets_slo: NDArray[np.bool_] | None,
) -> dict[str, Any]:
    count = int(np.count_nonzero(is_own))
    ttft, away = latencies.ttft[is_own], elsewhere[is_own]
    ttft, away = ttft[~np.isnan(ttft)], away[~np.isnan(away)]
    return {
        "requests": count,
        "served_elsewhere": float(away.mean()) if len(away) else math.nan,
        "mean_ttft_ms": float(ttft.mean()) * MS if len(ttft) else math.nan,
        "p95_ttft_ms": float(np.percentile(ttft, 95)) * MS if len(ttft) else math.nan,
        "attainment": math.nan if meets_slo is None or not count else float(meets_slo[is_own].mean()),
    }
