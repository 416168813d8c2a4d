"""Properties of a scenario's traffic that decide which options to try: lengths, sharing, unevenness. Simulates nothing.

Taken from the requests themselves, so that traces and drawn traffic are treated alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simserve.planner.search.trial import deciding_requests
from simserve.scenario.schema import Scenario
from simserve.workload.requests import RequestSpecs

SLOW_BIN_SECONDS = 300.0
"""Length of a bin, longer than a replica takes to start: a load that is constant over bins needs no autoscaling."""
FEWEST_SLOW_BINS = 3
UNEVEN = 1.3  # Busiest of those bins divided by their mean, above which a fleet may follow the load.
FAST_BIN_SECONDS = 10.0
BURSTY = 2.0
"""Variance divided by mean of the arrivals in a short bin, above which there are bursts; 1 for Poisson arrivals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Properties that options depend on."""

    mean_prompt_tokens: float  # Mean over all requests.
    has_sessions: bool = False  # Whether requests belong to conversations.
    has_prefixes: bool = False  # Whether prompts share prefixes.
    is_open: bool = True  # Whether requests arrive independently of answers.
    is_uneven: bool = False  # Whether the load changes more slowly than a replica starts.
    is_bursty: bool = False  # Whether arrivals cluster within seconds.
    work_by_class: tuple[float, ...] = ()
    """Share of each class in the tokens, with output tokens counted tenfold; empty without classes."""


def traffic_of(scenario: Scenario) -> Traffic:
    """Return the properties of a scenario's requests in deciding runs."""
    specs = deciding_requests(scenario)
    arrivals = specs.arrival_time[np.isfinite(specs.arrival_time)]
    is_open = specs.has_open_arrivals and len(arrivals) > 1 and float(arrivals[-1]) > float(arrivals[0])
    slow = _bins(arrivals, SLOW_BIN_SECONDS) if is_open else np.zeros(0)
    fast = _bins(arrivals, FAST_BIN_SECONDS) if is_open else np.zeros(0)
    return Traffic(
        mean_prompt_tokens=float(specs.prompt_tokens.mean()),
        has_sessions=specs.session is not None,
        has_prefixes=specs.prefixes is not None,
        is_open=is_open,
        is_uneven=len(slow) >= FEWEST_SLOW_BINS and float(slow.max()) >= UNEVEN * float(slow.mean()),
        is_bursty=len(fast) > 1 and float(fast.var()) >= BURSTY * float(fast.mean()),
        work_by_class=_work_by_class(specs),
    )


def _bins(
    arrivals: np.ndarray[tuple[int], np.dtype[np.float64]], seconds: float
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the number of arrivals in each whole bin of ``seconds``."""
    span = float(arrivals[-1] - arrivals[0])
    whole = int(span // seconds)
    counts, _ = (
        np.histogram(arrivals, bins=whole, range=(float(arrivals[0]), float(arrivals[0]) + whole * seconds))
        if whole
        else (np.zeros(0), None)
    )
    return counts.astype(np.float64)


def _work_by_class(specs: RequestSpecs) -> tuple[float, ...]:
    if specs.request_class is None:
        return ()
    work = specs.prompt_tokens / 10 + specs.output_tokens
    by_class = np.bincount(specs.request_class, weights=work, minlength=len(specs.classes))
    return tuple(float(each) for each in by_class / by_class.sum())
