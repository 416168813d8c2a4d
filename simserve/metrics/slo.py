"""Service-level objectives: which requests met them, and what share of all that were submitted.

Knows latencies, not rates: goodput is in `simserve.metrics.throughput`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simserve.metrics.latency import RequestLatencies

TERMS = ("ttft", "tpot", "e2e", "ttfvt")
NAMED_TERMS = TERMS[:3]
"""Those that every result names; the last one only where it has a bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SLO:
    """Upper bounds on a request's latencies, seconds (None: no bound), and the share that must meet them.

    Attributes:
        ttft: Bound on TTFT.
        tpot: Bound on TPOT.
        e2e: Bound on E2E.
        attainment: Share of submitted requests that must meet every bound, in (0, 1].
        by_class: Objective of a class of requests, instead of this one.
        ttfvt: Bound on the time to the first visible token.
    """

    ttft: float | None
    tpot: float | None
    e2e: float | None
    attainment: float
    by_class: Mapping[str, SLO] = field(default_factory=dict)
    ttfvt: float | None = None

    def has_bound(self, term: str) -> bool:
        """Return whether any request has a bound on ``term``."""
        return any(getattr(each, term) is not None for each in (self, *self.by_class.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Attainment:
    """Shares of submitted requests, NaN without a request.

    Attributes:
        all_terms: Share that met every bound.
        by_metric: Share that met the bound on ``ttft``, ``tpot``, ``e2e``, ``ttfvt``; NaN where there is no bound.
    """

    all_terms: float
    by_metric: dict[str, float]


def requests_meeting(latencies: RequestLatencies, slo: SLO, terms: tuple[str, ...] = TERMS) -> NDArray[np.bool_]:
    """Return whether each request was completed within every bound of ``terms``, shape [requests].

    A latency on its bound meets it. Where TPOT is undefined (a single token, or an answer that arrives in one
    piece) it is met: there is no gap between tokens to be too long.
    """
    met = latencies.is_completed.copy()
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
    return Attainment(all_terms=_share(requests_meeting(latencies, slo), submitted), by_metric=by_metric)


def _share(met: NDArray[np.bool_], submitted: NDArray[np.bool_]) -> float:
    num_submitted = np.count_nonzero(submitted)
    return np.count_nonzero(met & submitted) / num_submitted if num_submitted else float("nan")
