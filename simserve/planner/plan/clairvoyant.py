"""The fewest replica-hours for a load that is known in advance: each replica starts just in time.

A step of the load needs the fewest whole replicas that would sustain its rate within the SLO indefinitely. Each of them
is launched one start-up before it is needed and released when it no longer is. Replicas are alike, so the k-th is
needed while k or more are, and each k is settled by itself: between two such times it is kept if the gap is shorter
than a start. Knows no autoscaler.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simserve.errors import InvariantError
from simserve.scenario.schema import Scenario
from simserve.workload.arrival_spec import DailyArrivals, RampArrivals, SpikeArrivals, StepArrivals
from simserve.workload.distributions import rate_curve_of
from simserve.workload.generate import generate

Floats = NDArray[np.float64]
KNOWN_CURVES = DailyArrivals | RampArrivals | SpikeArrivals | StepArrivals
"""Arrivals whose rate is known at every moment."""
LONGEST_STEP = 300.0
"""Longest step of the load, in seconds: longer than the start of a replica, short against the hours of a day."""
FEWEST_STEPS = 100
LEVEL_STEP = 0.02  # Precision of the rate that a fleet can sustain, as a share.
BRACKET = 1.25  # Factor between the rates that are tried until one holds and one does not.
MOST_LEVELS = 40


@dataclass(frozen=True, kw_only=True, eq=False)
class Load:
    """A load over time, in even steps."""

    edges: Floats  # Start of each step and the end of the last, seconds, shape [n + 1].
    rates: Floats  # Mean requests/s of each step, shape [n].

    @property
    def seconds(self) -> float:
        """Its duration."""
        return float(self.edges[-1])

    @property
    def peak(self) -> float:
        """Rate of the busiest step."""
        return float(self.rates.max())


def load_over_time(scenario: Scenario) -> Load:
    """Return the load of a scenario: the rates of a curve, else the arrivals that it draws or has recorded."""
    workload = scenario.workload
    known = workload.arrivals if isinstance(workload.arrivals, KNOWN_CURVES) else None
    if known is not None and workload.duration is not None:
        span, times = float(workload.duration), np.zeros(0)
    else:
        times = generate(workload, seed=scenario.run.seed, base_path=scenario.folder).arrival_time
        span = float(times[-1])
    steps = max(1, math.ceil(span / min(LONGEST_STEP, span / FEWEST_STEPS)))
    edges = np.linspace(0.0, span, steps + 1)
    if known is None:
        arrived = np.histogram(times, bins=edges)[0].astype(np.float64)
    else:
        curve = rate_curve_of(known)
        arrived = np.diff([curve.integral(float(edge)) for edge in edges])
    return Load(edges=edges, rates=arrived * steps / span)


def sustained_rate(holds: Callable[[float], bool], guess: float) -> float:
    """Return the largest rate that holds, to `LEVEL_STEP`; 0 where none near a guess, in requests/s, does."""
    return largest(holds, guess, bracket=BRACKET, step=LEVEL_STEP, most_tried=MOST_LEVELS)


def largest(
    holds: Callable[[float], bool],
    guess: float,
    *,
    bracket: float,
    step: float,
    most_tried: int,
    limit: float = math.inf,
) -> float:
    """Return the largest value that holds; 0 where none near a guess does.

    Args:
        holds: Whether a value holds; if one does not, no larger one does.
        bracket: Factor between the values that are tried until one holds and one does not.
        step: Precision, as a share.
    """
    low, high, value = 0.0, math.inf, guess
    for _ in range(most_tried):
        if holds(value):
            low = value
        else:
            high = value
        if (low and high <= low * (1 + step)) or low >= limit:
            break
        if not low:
            value /= bracket
        else:
            value = min(low * bracket, limit) if math.isinf(high) else math.sqrt(low * high)
    return low


def rates_by_replicas(measured: Mapping[int, float]) -> Floats:
    """Return the rate that 0, 1, 2 ... replicas can sustain, linear between the numbers that were measured."""
    sizes = [0, *sorted(measured)]
    rates = np.interp(np.arange(sizes[-1] + 1), sizes, [0.0, *(measured[size] for size in sizes[1:])])
    return np.maximum.accumulate(rates)


def replicas_needed(load: Load, sustained: Floats) -> NDArray[np.int64]:
    """Return the fewest replicas for each step.

    Args:
        sustained: Rate that 0, 1, 2 ... replicas can sustain, ascending; the last is at least the peak.

    Raises:
        InvariantError: The peak is above what all replicas can sustain.
    """
    if load.peak > sustained[-1]:
        raise InvariantError(f"{len(sustained) - 1} replicas sustain {sustained[-1]:g} of {load.peak:g} requests/s")
    return np.searchsorted(sustained, load.rates, side="left").astype(np.int64)


def replica_seconds(edges: Floats, needed: NDArray[np.int64], startup: float) -> float:
    """Return the fewest replica-seconds that have replicas ready whenever they are needed, starts included.

    Those needed at the first moment are there already.

    Args:
        edges: Start of each step and the end of the last, seconds.
        startup: Seconds from a launch until a replica is ready.
    """
    total = 0.0
    for level in range(1, int(needed.max(initial=0)) + 1):
        is_there = np.concatenate([[False], needed >= level, [False]])
        changes = np.flatnonzero(np.diff(is_there.astype(np.int8)))
        until = -math.inf
        for start, end in zip(edges[changes[::2]], edges[changes[1::2]], strict=True):
            launched = max(float(start) - startup, 0.0)
            total += float(end) - max(launched, until)
            until = float(end)
    return total
