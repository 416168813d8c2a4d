"""What a real server would show beside what was simulated: the error of the model, by figure.

Sampling error of the simulation is another thing (`simserve.metrics.replications`): more requests make it smaller, and
leave this as it is. Knows figures and errors, not how the errors were learnt.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simserve.metrics.latency import LATENCIES
from simserve.profiles.expected_errors import FLOORS, LEVEL, Expectation

STATISTICS = ("mean", "median", "p90", "p95", "p99")

RATES = ("request_throughput", "output_throughput", "total_token_throughput")

DOLLARS = ("usd_per_million_output_tokens", "usd_per_million_tokens")
"""Figures of ``simserve.cost`` that fall as throughput rises."""

QUEUED = ("ttft_ms", "e2el_ms")
"""Latencies that hold the wait for a seat."""

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class _Run:
    """What of a run decides how an error of the steps shows.

    Attributes:
        load_ratio: Offered over finishable load of open arrivals; None: not known, or a closed loop.
        waiting: Share of the times to first tokens that requests waited for their first step.
        duration_ms: Of the whole run.
    """

    load_ratio: float | None
    waiting: float
    duration_ms: float


def prediction_interval(summary: Mapping[str, Any], expected: Expectation, waiting: float) -> dict[str, Any]:
    """Return ``level basis metrics queues``: by figure the low and high end that a real server keeps within.

    ``queues``: whether a server at the slow end cannot keep up with open arrivals. The high ends of first tokens and of
    whole answers are then what would queue up by the end of this run, and say nothing of a longer one.

    TPOT and gaps take the error of TPOT. Times to first tokens take that of TTFT, and of open arrivals no less than
    what a slower server does to the queue: at the load ratio r, waiting grows as ``1 / (1 - r)`` (M/G/1 in heavy
    traffic: Kingman, "The single server queue in heavy traffic", 1961), and over a run of T seconds by no more than the
    work that is left over, ``T (r' - r) / 2``. End-to-end times are made up of both, their errors taken as one. A
    server that keeps up with open arrivals finishes what arrives: its throughput falls only if a real one is too
    slow for the load.

    Args:
        summary: What `simserve.metrics.summary.summarize` returns.
        expected: Errors to expect.
        waiting: Share of the time to first tokens that requests waited for their first step.
    """
    inner = summary["simserve"]
    run = _Run(inner["load_ratio"], waiting, 1e3 * (summary["duration"] or 0.0))
    metrics: dict[str, list[float] | None] = {}
    for latency in LATENCIES:
        for statistic in STATISTICS:
            metrics[f"{statistic}_{latency}"] = _listed(_latency(summary, statistic, latency, expected, run))
    rates = _rate_factors(expected, run.load_ratio)
    for name in RATES:
        metrics[name] = _listed(_scaled(summary[name], rates))
    for name in DOLLARS:
        metrics[name] = _listed(_scaled(inner["cost"].get(name), (1 / rates[1], 1 / rates[0])))
    queues = run.load_ratio is not None and _slow_load(run.load_ratio, expected) >= 1
    return {"level": LEVEL, "basis": expected.basis, "metrics": metrics, "queues": queues}


def _slow_load(load_ratio: float, expected: Expectation) -> float:
    """Return the load ratio of a server at the slow end."""
    return load_ratio * max(expected.metrics["tpot"].high, 1.0)


def _listed(interval: Interval | None) -> list[float] | None:
    return None if interval is None else list(interval)


def _scaled(value: float | None, factors: Interval) -> Interval | None:
    return None if value is None else (value * factors[0], value * factors[1])


def _latency(
    summary: Mapping[str, Any], statistic: str, latency: str, expected: Expectation, run: _Run
) -> Interval | None:
    value = summary[f"{statistic}_{latency}"]
    if value is None:
        return None
    tpot = expected.metrics["tpot"]
    if latency in ("tpot_ms", "itl_ms"):
        return value * tpot.low, value * tpot.high
    first = summary[f"{statistic}_ttft_ms"]
    if first is None:
        return None
    base = min(first, (summary["mean_ttft_ms"] or 0.0) * (1 - run.waiting))
    ttft = _first_token(first, base, expected, run)
    if latency == "ttft_ms":
        return ttft
    rest = max(value - first, 0.0)
    shown = value - rest
    low, high = (shown * end / first if first > 0 else 0.0 for end in ttft)
    return low + rest * tpot.low, high + rest * tpot.high


def _first_token(value: float, base: float, expected: Expectation, run: _Run) -> Interval:
    """Return the interval of a time to first tokens, ms, of which ``base`` is no waiting."""
    errors = expected.metrics["ttft"]
    low, high = value * errors.low, value * errors.high
    ratio = run.load_ratio
    if ratio is None or ratio <= 0:
        return low, high
    slow = _slow_load(ratio, expected)
    wait = max(value - base, 0.0)
    longest = wait * errors.high + max(slow - ratio, 0.0) * run.duration_ms / 2
    if slow < 1:
        longest = min(longest, wait * (1 - ratio) / (1 - slow))
    return low, max(high, base * errors.high + longest)


def _rate_factors(expected: Expectation, load_ratio: float | None) -> Interval:
    """Return factors from a rate to its ends."""
    errors = expected.metrics["throughput"]
    if load_ratio is None or load_ratio >= 1:
        return errors.low, errors.high
    floor = math.exp(-FLOORS["throughput"])
    return min(floor, errors.low / load_ratio), 1 / floor
