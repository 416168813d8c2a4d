"""Service-level objectives: which requests met them, and what share of all that were submitted.

Knows latencies, not rates: goodput is in `simserve.metrics.throughput`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simserve.metrics.latency import RequestLatencies

TERMS = ("ttft", "tpot", "e2e")


@dataclass(frozen=True, slots=True, kw_only=True)
class SLO:
    """Upper bounds on a request's latencies, seconds (None: no bound), and the share that must meet them.

    Attributes:
        ttft: Bound on TTFT.
        tpot: Bound on TPOT.
        e2e: Bound on E2E.
        attainment: Share of submitted requests that must meet every bound, in (0, 1].
    """

    ttft: float | None
    tpot: float | None
    e2e: float | None
    attainment: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Attainment:
    """Shares of submitted requests, NaN without a request.

    Attributes:
        all_terms: Share that met every bound.
        by_metric: Share that met the bound on ``ttft``, ``tpot``, ``e2e``; NaN where there is no bound.
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
        bound = getattr(slo, term)
        if bound is not None:
            values = getattr(latencies, term)
            met &= (values <= bound) | (np.isnan(values) if term == "tpot" else False)
    return met


def attainment(latencies: RequestLatencies, slo: SLO, submitted: NDArray[np.bool_]) -> Attainment:
    """Return the shares of ``submitted`` requests that met the objective.

    A request that was rejected, failed, timed out or left unfinished missed every term.

    Args:
        latencies: Seconds, one row a request.
        slo: The bounds.
        submitted: Whether the request counts, shape [requests]: it was sent, and in the measured window.
    """
    by_metric = {
        term: np.nan if getattr(slo, term) is None else _share(requests_meeting(latencies, slo, (term,)), submitted)
        for term in TERMS
    }
    return Attainment(all_terms=_share(requests_meeting(latencies, slo), submitted), by_metric=by_metric)


def _share(met: NDArray[np.bool_], submitted: NDArray[np.bool_]) -> float:
    num_submitted = np.count_nonzero(submitted)
    return np.count_nonzero(met & submitted) / num_submitted if num_submitted else float("nan")
