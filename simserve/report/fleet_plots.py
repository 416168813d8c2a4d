"""A fleet that changes, over time: its replicas, and what share of the requests met the objective meanwhile."""

from __future__ import annotations

import numpy as np

from simserve.metrics.latency import request_latencies
from simserve.metrics.result import RunResult
from simserve.metrics.slo import requests_meeting
from simserve.report.axes import BLUE, SKY, VERMILION, clock
from simserve.report.curves import thinned
from simserve.report.sketch import DASHED, Axis, Sketch, Steps

_NUM_SPANS = 80
_LEAST_REQUESTS = 20
"""Requests of a span, of which the share within the objective is shown."""
_SHARE_TICKS = ((0, "0%"), (0.25, "25%"), (0.5, "50%"), (0.75, "75%"), (1, "100%"))


def has_changed(result: RunResult) -> bool:
    """Return whether replicas came, went, or were down in a run."""
    return len(result.summary["simserve"]["replicas"]["timeline"]) > 1


def replicas_over_time(result: RunResult) -> Sketch | None:
    """Return the replicas that are paid for and those that are ready; None where that is not known over time."""
    series = result.simulation.totals.series
    if series.replicas_launched is None or series.replicas_ready is None:
        return None
    edges, (launched, ready) = thinned(series.edges, series.replicas_launched, series.replicas_ready)
    times, label = clock(edges)
    return Sketch(
        x=Axis(label=label, high=float(times[-1])),
        y=Axis(label="replicas", high=max(1.0, 1.08 * float(launched.max())), is_whole=True),
        marks=[
            Steps(edges=times, values=ready, color=SKY, is_filled=True),
            Steps(edges=times, values=ready, label="ready", color=BLUE),
            Steps(edges=times, values=launched, label="paid for", color=VERMILION, dashes=DASHED),
        ],
    )


def attainment_over_time(result: RunResult) -> Sketch | None:
    """Return the share of the requests that met the objective, by when they arrived; None without an objective, or
    where all came at once.

    The spans hold equal numbers of requests.
    """
    records = result.simulation.records
    order = np.argsort(records.arrival_time, kind="stable")[: int(np.isfinite(records.arrival_time).sum())]
    count = min(_NUM_SPANS, len(order) // _LEAST_REQUESTS)
    if result.slo is None or count < 2 or not records.arrival_time[order[-1]] > 0.0:
        return None
    met = requests_meeting(request_latencies(records), result.slo)[order].astype(np.float64)
    starts = np.arange(count) * len(order) // count
    shares = np.add.reduceat(met, starts) / np.diff(np.append(starts, len(order)))
    arrivals = records.arrival_time[order]
    edges = np.append(arrivals[starts], arrivals[-1])
    edges[0] = 0.0
    times, label = clock(np.maximum.accumulate(edges))
    return Sketch(
        x=Axis(label=label.replace("simulated time", "time of arrival"), high=float(times[-1])),
        y=Axis(label="requests within the SLO", ticks=_SHARE_TICKS),
        marks=[
            Steps(edges=times, values=shares, color=SKY, is_filled=True),
            Steps(edges=times, values=shares, label="within the SLO", color=BLUE),
        ],
    )
