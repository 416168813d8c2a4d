"""The figures of each class of requests: who got what. Knows records, no scheduler."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.metrics.latency import (
    MS,
    NAMED_TERMS,
    PERCENTILES,
    SLO,
    TERMS,
    RequestLatencies,
    attainment,
    requests_meeting,
)
from simserve.metrics.statistics import percentiles
from simserve.metrics.steady_state import Window, throughput
from simserve.sim.records import STATUSES, RequestRecords

LATENCIES = {"ttft_ms": "ttft", "tpot_ms": "tpot", "e2el_ms": "e2e"}
"""Latencies of a class: inter-token gaps are pooled over all."""


def class_figures(
    records: RequestRecords, latencies: RequestLatencies, window: Window, slo: SLO | None
) -> dict[str, dict[str, Any]]:
    """Return the figures of each class by its name, in the order of the scenario; empty without classes.

    ``submitted``, how each request ended and ``total_*`` cover the whole run, all else the measured window, with the
    definitions of the whole run's figures: ``request_throughput request_goodput output_throughput``, ``mean_ median_
    p50_ p90_ p95_ p99_`` of ``ttft_ms tpot_ms e2el_ms``, and ``slo`` with ``attainment`` and ``by_metric``. Undefined
    figures are NaN.
    """
    if records.request_class is None:
        return {}
    meets = None if slo is None else requests_meeting(latencies, slo)
    return {
        name: _figures(records, latencies, window, slo, meets, records.request_class == number)
        for number, name in enumerate(records.class_names)
    }


def _figures(
    records: RequestRecords,
    latencies: RequestLatencies,
    window: Window,
    slo: SLO | None,
    meets: NDArray[np.bool_] | None,
    is_own: NDArray[np.bool_],
) -> dict[str, Any]:
    sent = is_own & np.isfinite(records.arrival_time)
    by_status = np.bincount(records.status[sent], minlength=len(STATUSES))
    completed = is_own & latencies.is_completed
    rates = throughput(records, window, meets, completed)
    counted = completed & window.has_arrived
    return {
        "submitted": int(np.count_nonzero(sent)),
        **{status: int(count) for status, count in zip(STATUSES, by_status, strict=True)},
        "total_input_tokens": int(records.prompt_tokens[completed].sum()),
        "total_output_tokens": int(records.output_tokens[completed].sum()),
        "request_throughput": rates.requests,
        "request_goodput": rates.good_requests,
        "output_throughput": rates.output_tokens,
        **{
            f"{statistic}_{name}": value * MS
            for name, field in LATENCIES.items()
            for statistic, value in _statistics(getattr(latencies, field)[counted]).items()
        },
        "slo": _slo(latencies, slo, window.has_arrived & is_own, is_own, records.class_names),
    }


def _slo(
    latencies: RequestLatencies,
    slo: SLO | None,
    submitted: NDArray[np.bool_],
    is_own: NDArray[np.bool_],
    names: tuple[str, ...],
) -> dict[str, Any]:
    if slo is None or not is_own.any() or latencies.request_class is None:
        return {"attainment": np.nan, "by_metric": dict.fromkeys(NAMED_TERMS, np.nan)}
    name = names[int(latencies.request_class[is_own][0])]
    own = slo.by_class.get(name, slo)
    shares = attainment(latencies, slo, submitted)
    by_metric = {term: value if getattr(own, term) is not None else np.nan for term, value in shares.by_metric.items()}
    has_bounds = any(getattr(own, term) is not None for term in TERMS)
    return {"attainment": shares.all_terms if has_bounds else np.nan, "by_metric": by_metric}


def _statistics(values: NDArray[np.float64]) -> dict[str, float]:
    defined = values[~np.isnan(values)]
    names = ("mean", "median", *(f"p{q}" for q in PERCENTILES))
    if not len(defined):
        return dict.fromkeys(names, np.nan)
    found = percentiles(defined, PERCENTILES)
    return dict(zip(names, [float(defined.mean()), found[0], *found], strict=True))
