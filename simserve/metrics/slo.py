"""Service-level objectives: which requests met them, and what share of all that were submitted.

Knows latencies, not rates: goodput is in `simserve.metrics.throughput`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from simserve.metrics.latency import RequestLatencies

TERMS = ("ttft", "tpot", "e2e", "ttfvt")
NAMED_TERMS = TERMS[:3]
"""Those that every result names; the last one only where it has a bound."""
TASK = "task"
"""The bound on the makespan of agents' tasks, beside those on latencies of requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SLO:
    """Upper bounds on a request's latencies, seconds (None: no bound), and the share that must meet them.

    Attributes:
        ttft: Bound on TTFT.
        tpot: Bound on TPOT.
        e2e: Bound on E2E.
        task: Bound on the makespan of agents' tasks.
        attainment: Share of submitted requests that must meet every bound, in (0, 1]; and of tasks, theirs.
        by_class: Objective of a class of requests, instead of this one.
        ttfvt: Bound on the time to the first visible token.
    """

    ttft: float | None
    tpot: float | None
    e2e: float | None
    attainment: float
    task: float | None = None
    by_class: Mapping[str, SLO] = field(default_factory=dict)
    ttfvt: float | None = None

    @property
    def limits_requests(self) -> bool:
        """Whether any request has a bound on a latency of its own."""
        return any(self.has_bound(term) for term in TERMS)

    def has_bound(self, term: str) -> bool:
        """Return whether any request has a bound on ``term``."""
        return any(getattr(each, term) is not None for each in (self, *self.by_class.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Attainment:
    """Shares of submitted requests, NaN without a request.

    Attributes:
        all_terms: Share that met every bound. With a bound on tasks: that of requests that met theirs, or of tasks,
            whichever is smaller.
        by_metric: Share that met the bound on ``ttft``, ``tpot``, ``e2e``, ``ttfvt``; NaN where there is no bound. With
            a bound on tasks: also ``task``, the share of those begun that finished in time.
        met: Whether each submitted request (or task) met it: of those that ``all_terms`` is the share of.
    """

    all_terms: float
    by_metric: dict[str, float]
    met: NDArray[np.bool_] = field(repr=False)


def requests_meeting(latencies: RequestLatencies, slo: SLO, terms: tuple[str, ...] = TERMS) -> NDArray[np.bool_]:
    """Return whether each request was completed within every bound of ``terms``, shape [requests].

    With all of `TERMS`, also of the bound on its task, if there is one. A latency on its bound meets it. Where TPOT is
    undefined (a single token, or an answer that arrives in one piece) it is met: there is no gap between tokens to be
    too long.
    """
    met = latencies.is_completed.copy()
    if slo.task is not None and latencies.task is not None and terms == TERMS:
        met &= latencies.task.makespan <= slo.task
    for term in terms:
        values, limits = getattr(latencies, term), bounds(latencies, slo, term)
        met &= (values <= limits) | np.isinf(limits) | (np.isnan(values) if term == "tpot" else False)
    return met


def bounds(latencies: RequestLatencies, slo: SLO, term: str) -> NDArray[np.float64]:
    """Return the bound on ``term`` of each request, inf where there is none; without classes, one for all."""
    whole = np.array([_bound(slo, term)])
    if latencies.request_class is None or not slo.by_class:
        return whole
    by_class = [_bound(slo.by_class.get(name, slo), term) for name in latencies.class_names]
    return np.array(by_class)[latencies.request_class]


def _bound(slo: SLO, term: str) -> float:
    bound: float | None = getattr(slo, term)
    return np.inf if bound is None else bound


def attainment(latencies: RequestLatencies, slo: SLO, submitted: NDArray[np.bool_]) -> Attainment:
    """Return the shares of ``submitted`` requests that met the objective.

    A request that was rejected, failed, timed out or left unfinished missed every term.

    Args:
        latencies: Seconds, one row a request.
        slo: The bounds.
        submitted: Whether the request counts, shape [requests]: it was sent, and in the measured window.
    """
    by_metric = {
        term: _share(requests_meeting(latencies, slo, (term,)), submitted) if slo.has_bound(term) else np.nan
        for term in TERMS
        if term in NAMED_TERMS or slo.has_bound(term)
    }
    met = requests_meeting(latencies, replace(slo, task=None))
    share = _share(met, submitted)
    if slo.task is None or latencies.task is None:
        return Attainment(all_terms=share, by_metric=by_metric, met=met[submitted])
    begun = submitted & latencies.task.is_first
    in_time = latencies.task.makespan <= slo.task
    by_metric[TASK] = _share(in_time, begun)
    if slo.limits_requests and not by_metric[TASK] < share:
        return Attainment(all_terms=share, by_metric=by_metric, met=met[submitted])
    return Attainment(all_terms=by_metric[TASK], by_metric=by_metric, met=in_time[begun])


def _share(met: NDArray[np.bool_], submitted: NDArray[np.bool_]) -> float:
    num_submitted = np.count_nonzero(submitted)
    return np.count_nonzero(met & submitted) / num_submitted if num_submitted else float("nan")
