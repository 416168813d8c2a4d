"""The measured window: where the warm-up ends and which requests count. Knows no figure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simserve.metrics.latency import RequestLatencies
from simserve.metrics.occupancy import Sojourns
from simserve.sim.records import RequestRecords

_BATCH = 5
EDGE_SOJOURNS = 3.0
"""Mean E2E that a measured window begins after the first arrival and ends before the last one, at least. Until then
the system still fills up, from then on requests finish in one that empties: with neither cut, E2E of runs of 2,000
requests at 66 % load comes out 1.3 % too low."""
_MIN_REQUESTS = 100
"""Fewest requests, before and after the cut, that have a steady state worth the name."""
_MIN_SOJOURNS = 10.0
"""A cut window must be this many mean E2E long: what is in flight at its edges is then a small part of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The measured part of a run.

    Attributes:
        start: Seconds on the simulation clock, NaN if nothing was sent.
        end: Likewise.
        has_arrived: Whether the request arrived in the window, shape [requests].
        is_whole_run: Whether it reaches from the first arrival to the last departure.
    """

    start: float
    end: float
    has_arrived: NDArray[np.bool_]
    is_whole_run: bool

    @property
    def seconds(self) -> float:
        """Length of the window."""
        return self.end - self.start


def find_window(
    records: RequestRecords,
    latencies: RequestLatencies,
    sojourns: Sojourns,
    *,
    warmup: str | float,
    is_steady: bool,
    has_changing_fleet: bool = False,
    slowness: float = 1.0,
) -> Window:
    """Return the measured window of a run.

    ``warmup: none``, and ``auto`` where there is no steady state to wait for, is the whole run: first arrival
    to last departure, as ``vllm bench serve`` counts. A fleet that scales or breaks has none: the hole that a start or
    a loss leaves is what is asked about. Otherwise the window starts at the end of the warm-up
    and ends three mean E2E before the last arrival (of a conversation, where there are any), so that neither filling up
    nor draining is in it: a request counts for latency if it *arrives* in the window, for throughput if it is
    *completed* in it. Little's law then holds in both.

    * ``auto``: MSER-5 on TTFT, on E2E and on the number in the system, each in order of arrival; the latest
      cut of the three, at most half the requests, and only where the start lies below the rest; at least three mean
      E2E. Runs of fewer than 100 requests, or whose remaining window is shorter than ten mean E2E, are reported whole.
    * Seconds: that long after the first arrival, up to the last one. Without steady arrivals the window ends with the
      run. Longer than that, and the window is empty.

    Args:
        records: One row a request.
        latencies: Likewise, seconds.
        sojourns: The requests that were sent.
        warmup: ``auto``, ``none`` or seconds.
        is_steady: Whether arrivals are open-loop and stationary, and the run keeps up with them.
        has_changing_fleet: Whether replicas come and go, or break, in the run.
        slowness: ``2 / (1 - load ratio)`` where that is known: stays of a request that a system takes to fill up.
    """
    if not len(sojourns):
        return Window(start=np.nan, end=np.nan, has_arrived=np.zeros(len(records), bool), is_whole_run=True)
    first, last, run_end = float(sojourns.arrival[0]), sojourns.last_beginning, sojourns.run_end
    whole = _window(records, first, run_end, is_whole_run=True)
    if isinstance(warmup, str):
        if warmup == "none" or not is_steady or has_changing_fleet:
            return whole
        edge = EDGE_SOJOURNS * float(np.nanmean(latencies.e2e)) if latencies.is_completed.any() else 0.0
        start = max(_warmup_end(records, latencies, sojourns), first + edge * max(1.0, slowness / EDGE_SOJOURNS))
        window = _window(records, start, last - edge)
        return window if _is_long_enough(latencies, window) else whole
    start = first + warmup
    return _window(records, start, max(start, last if is_steady else run_end))


def mser5(sequence: NDArray[np.float64]) -> int:
    """Return how many leading values to cut by MSER-5; at most half of them.

    White, Cobb and Spratt, "A comparison of five steady-state truncation heuristics for simulation", WSC
    2000: over means of five, the cut d minimises ``sum_{j>d} (y_j - mean)^2 / (m - d)^2``.
    """
    num_batches = len(sequence) // _BATCH
    if num_batches < 2:
        return 0
    means = sequence[: num_batches * _BATCH].reshape(num_batches, _BATCH).mean(axis=1)
    backwards = (means - means.mean())[::-1]
    left = np.arange(1, num_batches + 1)
    squares = np.cumsum(backwards**2) - np.cumsum(backwards) ** 2 / left
    statistic = (np.maximum(squares, 0.0) / left**2)[::-1]
    return int(np.argmin(statistic[: num_batches // 2 + 1])) * _BATCH


def _warmup_end(records: RequestRecords, latencies: RequestLatencies, sojourns: Sojourns) -> float:
    completed = np.flatnonzero(latencies.is_completed)
    arrival = records.arrival_time[completed]
    ends = [float(sojourns.arrival[_warmup_length(sojourns.num_in_system_at_arrivals())])]
    if len(completed):
        for values in (latencies.ttft, latencies.e2e):
            ends.append(float(arrival[_warmup_length(values[completed])]))
    return max(ends)


def _warmup_length(sequence: NDArray[np.float64]) -> int:
    """Return the MSER-5 cut if what it cuts lies below the rest, else 0.

    A run starts empty, so a warm-up is always too low. A high start is a chance burst: it is part of the
    steady state, and cutting it biases the mean (by -6 % in an M/M/1 queue at 90 % load over 5,000 requests).
    """
    cut = mser5(sequence)
    return cut if cut and sequence[:cut].mean() < sequence[cut:].mean() else 0


def _is_long_enough(latencies: RequestLatencies, window: Window) -> bool:
    counted = latencies.e2e[window.has_arrived & latencies.is_completed]
    return len(counted) >= _MIN_REQUESTS and window.seconds >= _MIN_SOJOURNS * float(counted.mean())


def _window(records: RequestRecords, start: float, end: float, *, is_whole_run: bool = False) -> Window:
    has_arrived = (records.arrival_time >= start) & (records.arrival_time <= end)
    return Window(start=start, end=end, has_arrived=has_arrived, is_whole_run=is_whole_run)
