"""A run beside a real server: whether an objective holds there.

A real server is one draw: its steps are slower or faster than simulated by one factor and its first tokens by another,
the same for all requests. The two factors are drawn independently, as measured sources show (docs/promises.md).
Sampling error of the simulation is separate (`simserve.metrics.replications`): more requests reduce it, but not this
error. Knows requests and errors, not how the errors were learnt; simulates nothing. The interval of each figure comes
from `simserve.profiles.expected_errors`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simserve.metrics.latency import SLO, RequestLatencies, TaskLatencies, bounds
from simserve.metrics.throughput import ratio
from simserve.profiles.expected_errors import Expectation
from simserve.sim.recorder import RunTotals
from simserve.sim.records import RequestRecords

Floats = NDArray[np.float64]
FIXED_PARTS = ("weights", "host")  # Parts of a step that take as long with few requests in it as with many.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(32)
"""Quantiles of the error of TPOT over which a probability is integrated: with 16 it is off by up to 1.2 percentage
points where all requests are alike, with 32 by up to 0.5, in half the time of 64 (0.2)."""
_ROUNDING = 1e-9
_FAILED = -1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Demand:
    """A share of some requests that must meet their limits."""

    rows: NDArray[np.bool_] | None  # Which requests; None: all.
    share: float  # The share of these requests.

    def kept_up_to(self, most: Floats) -> float:
        """Return the largest factor at which enough requests meet their limits, each up to its own."""
        own = most if self.rows is None else most[self.rows]
        if not len(own):
            return math.inf if self.rows is not None else 0.0
        needed = math.ceil(self.share * len(own) - _ROUNDING)
        if needed < 1:
            return math.inf
        place = len(own) - needed
        return float(np.partition(own, place)[place])


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a run shows about an objective: seconds of every measured request and its limits, shape [requests]."""

    wait: Floats  # From arrival to the first step that worked on the request.
    base: Floats  # From there to its first token.
    rest: Floats  # From its first token to its last.
    thought: Floats
    """From its first token to its first visible one, if that has a limit; infinite without a visible one."""
    tpot: Floats  # Its TPOT; 0 if it has none.
    limits: tuple[Floats, Floats, Floats, Floats]
    """On TTFT, TPOT, E2E and the time to the first visible token; infinite if there is none."""
    is_answered: NDArray[np.bool_]  # Whether it was answered in full.
    demands: Sequence[_Demand]  # Which shares of requests must meet them.
    growing_share: float  # Share of the time of a step that grows with the number of requests in it.
    expected: Expectation  # Errors to expect.
    expected_measured: Expectation  # Errors to expect once loads of the server have been measured.

    def once_measured(self) -> Evidence:
        """Return the same for a server that was measured and performs as predicted."""
        return replace(self, expected=self.expected_measured)

    def probability(self, load_ratio: float | None) -> float:
        """Return the share of real servers of this kind on which the objective holds.

        If steps are slower by a factor s, so is TPOT. Under open arrivals requests then stay longer and there are more
        of them in a step: if a share e of a step grows with them, TPOT grows by ``s (1 - e) / (1 - e s)`` (steps linear
        in their requests, Little's law). The server finishes fewer requests, by the error of throughput, which raises
        the load ratio r to r'; waiting grows by ``(1 - r) / (1 - r')`` (M/G/1 in heavy traffic: Kingman, 1961), and at
        r' = 1 the server does not keep up. The error of TTFT lengthens the part of TTFT that is not waiting, and also
        the waiting where that gives more. The sampling error of the run is not included.

        Args:
            load_ratio: Offered over finishable load of open arrivals; None if unknown, or for a closed loop, whose
                clients do not send more to a slower server.
        """
        if load_ratio is not None and load_ratio >= 1:
            return 0.0
        errors, crowding = self.expected.metrics, 0.0 if load_ratio is None else min(self.growing_share, load_ratio)
        # The slowest steps that the limits on all but first tokens allow, and the slowest at which the queue does not
        # grow forever.
        most = np.minimum(_over(self.limits[1], self.tpot), _over(self.limits[2], self.rest))
        slowest = self._kept_up_to(np.minimum(most, _over(self.limits[3], self.thought)))
        if slowest <= 0:
            return 0.0
        bare = slowest / (1 - crowding + crowding * slowest) if math.isfinite(slowest) else 1 / max(crowding, 1e-12)
        last = errors["tpot"].share_below(bare)
        if load_ratio is not None:
            last = min(last, 1 - errors["throughput"].share_below(load_ratio))
        if not any(np.isfinite(self.limits[place]).any() for place in (0, 2, 3)):
            return last
        shares, weights = last * (_NODES + 1) / 2, last * _WEIGHTS / 2
        first = _FirstTokens(self)
        kept = []
        for share in shares.tolist():
            steps = errors["tpot"].factor(share)
            steps *= (1 - crowding) / max(1 - crowding * steps, 1e-12)
            queueing = 0.0
            if load_ratio is not None:
                slower = load_ratio / errors["throughput"].factor(1 - share)
                queueing = (1 - load_ratio) / max(1 - slower, 1e-12)
            kept.append(errors["ttft"].share_below(self._kept_up_to(first.slowest(steps, queueing))))
        return float(min(max(weights @ np.array(kept), 0.0), 1.0))

    def _kept_up_to(self, most: Floats) -> float:
        most = np.where(self.is_answered, most, _FAILED)
        return min(each.kept_up_to(most) for each in self.demands)


class _FirstTokens:
    """How much slower first tokens may be, for one slowness of steps after another; what is common is computed once."""

    def __init__(self, seen: Evidence) -> None:
        self._seen = seen
        self._shown = seen.base + seen.wait
        self._gaps = seen.limits[1] * (1 + _ROUNDING)
        self._has_end = any(np.isfinite(seen.limits[place]).any() for place in (2, 3))
        self._unqueued = None if self._has_end else _over(seen.limits[0], self._shown)

    def slowest(self, steps: float, queueing: float) -> Floats:
        """Return for each request the largest factor on its first token at which it meets its limits.

        Args:
            steps: Factor on the seconds of steps.
            queueing: Factor on the seconds of waiting.
        """
        seen, shown, limit = self._seen, self._shown, self._seen.limits[0]
        if self._has_end:
            later = np.minimum(seen.limits[2] - seen.rest * steps, seen.limits[3] - seen.thought * steps)
            limit = np.minimum(limit, later)
        most = _over(limit, shown) if self._unqueued is None else self._unqueued
        is_short = shown * queueing <= limit if queueing or self._has_end else None
        if is_short is not None and not is_short.all():
            most = np.where(is_short, most, _over(limit - seen.wait * queueing, seen.base))
        return np.where(seen.tpot * steps <= self._gaps, most, _FAILED)


def _over(limit: Floats, value: Floats) -> Floats:
    """Return limit over value; infinite if the value is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Floats = np.where(value > 0, limit / value, np.where(limit >= 0, np.inf, _FAILED))
    return found


def evidence_of(
    records: RequestRecords,
    latencies: RequestLatencies,
    submitted: NDArray[np.bool_],
    slo: SLO,
    totals: RunTotals,
    expected: Expectation,
    expected_measured: Expectation | None = None,
) -> Evidence:
    """Return what a run shows about an objective.

    Args:
        records: One row a request.
        latencies: Likewise, seconds.
        submitted: Whether the request counts, shape [requests]: it was sent, and in the measured window.
        slo: The objective.
        totals: Totals of the steps of the run.
        expected: Errors to expect of a real server.
        expected_measured: Likewise, once loads of it have been measured; None: the same.
    """
    ttft = np.nan_to_num(latencies.ttft[submitted])
    waited = np.nan_to_num((records.scheduled_time - records.arrival_time)[submitted])
    wait = np.clip(waited, 0.0, ttft)
    fixed = sum(totals.seconds_by_part[part] for part in FIXED_PARTS)
    demands = [_Demand(rows=None, share=slo.attainment)]
    if latencies.request_class is not None:
        own = latencies.request_class[submitted]
        names = latencies.class_names
        demands += [
            _Demand(rows=own == names.index(name), share=each.attainment) for name, each in slo.by_class.items()
        ]
    limits = [
        np.broadcast_to(bounds(latencies, slo, term), len(submitted))[submitted]
        for term in ("ttft", "tpot", "e2e", "ttfvt")
    ]
    thought = np.nan_to_num((latencies.ttfvt - latencies.ttft)[submitted], nan=np.inf)
    evidence = Evidence(
        wait=wait,
        base=ttft - wait,
        rest=np.nan_to_num((latencies.e2e - latencies.ttft)[submitted]),
        thought=np.where(np.isfinite(limits[3]), thought, 0.0),
        tpot=np.nan_to_num(latencies.tpot[submitted]),
        limits=(limits[0], limits[1], limits[2], limits[3]),
        is_answered=latencies.is_completed[submitted],
        demands=demands,
        growing_share=max(1.0 - ratio(fixed, totals.busy_seconds), 0.0) if totals.busy_seconds else 0.0,
        expected=expected,
        expected_measured=expected_measured or expected,
    )
    if slo.task is None or latencies.task is None:
        return evidence
    return _with_tasks(evidence, latencies.task, submitted & latencies.task.is_first, slo, slo.task)


def _with_tasks(evidence: Evidence, task: TaskLatencies, begun: NDArray[np.bool_], slo: SLO, most: float) -> Evidence:
    """Return evidence with a row for each task after those of requests, like one request that lasts as long.

    The time that a task is blocked on the model grows as its calls do, and is assumed to have the same parts as the
    calls of the run on average: an estimate. The time that it is blocked on tools is the same on any server.

    Args:
        begun: The first call of each that counts.
        most: Its limit on tasks, seconds.
    """
    model, makespan = task.model[begun], task.makespan[begun]
    parts = (evidence.wait, evidence.base, evidence.rest)
    whole = sum(float(part.sum()) for part in parts)
    wait, base, rest = (
        np.concatenate([part, np.nan_to_num(model * ratio(float(part.sum()), whole))]) for part in parts
    )
    unbounded, count = np.full(len(model), np.inf), len(evidence.wait)
    left = np.nan_to_num(most - (makespan - model), nan=_FAILED)
    is_task = np.arange(count + len(model)) >= count
    demands = [_Demand(rows=is_task, share=slo.attainment)]
    if slo.limits_requests:
        nobody = np.zeros(len(model), dtype=bool)
        everybody = np.ones(count, dtype=bool)
        demands += [
            replace(each, rows=np.concatenate([everybody if each.rows is None else each.rows, nobody]))
            for each in evidence.demands
        ]
    return replace(
        evidence,
        wait=wait,
        base=base,
        rest=rest,
        thought=np.concatenate([evidence.thought, np.zeros(len(model))]),
        tpot=np.concatenate([evidence.tpot, np.zeros(len(model))]),
        limits=(
            np.concatenate([evidence.limits[0], unbounded]),
            np.concatenate([evidence.limits[1], unbounded]),
            np.concatenate([evidence.limits[2], left]),
            np.concatenate([evidence.limits[3], unbounded]),
        ),
        is_answered=np.concatenate([evidence.is_answered, np.isfinite(makespan)]),
        demands=demands,
    )
