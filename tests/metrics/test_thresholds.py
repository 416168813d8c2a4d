"""Tests of thresholds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from simserve.metrics.thresholds import SCALARS, Figures, evaluate_thresholds, parse_threshold
from tests.metrics.builders import make_histogram


def figures(slo_attainment: float = 0.97) -> Figures:
    """Return TTFT of 1 to 5 s, gaps of 100 and 300 ms, no E2E, and scalars of 2."""
    return Figures(
        latencies={
            "ttft_ms": np.array([1.0, 2.0, 3.0, 4.0, 5.0]),
            "tpot_ms": np.array([0.05]),
            "e2el_ms": np.array([]),
        },
        itl=make_histogram([0.1, 0.3]),
        slo_attainment=slo_attainment,
        scalars=dict.fromkeys(SCALARS, 2.0),
    )


@pytest.mark.parametrize(
    ("metric", "expression", "value", "is_met"),
    [
        ("ttft_ms", "p(95)<1000", 4800.0, False),
        ("ttft_ms", "p(95) <= 4800.0001", 4800.0, True),
        ("ttft_ms", "avg<=3000", 3000.0, True),
        ("ttft_ms", "min>1000", 1000.0, False),
        ("ttft_ms", "max==5e3", 5000.0, True),
        ("ttft_ms", "med!=3000", 3000.0, False),
        ("ttft_ms", "p(99.9)<5000", 4996.0, True),
        ("itl_ms", "avg<201", 200.0, True),
        ("itl_ms", "max<=300", 300.0, True),
        ("slo_attainment", "rate>=0.95", 0.97, True),
        ("output_throughput", "value>2", 2.0, False),
        ("usd_per_request", "value<.5", 2.0, False),
    ],
)
def test_a_condition_on_a_figure(metric: str, expression: str, value: float, is_met: bool) -> None:
    """Value and verdict, as k6 reads the expression."""
    (result,) = evaluate_thresholds({metric: [expression]}, figures())

    assert result["value"] == pytest.approx(value)
    assert (result["metric"], result["expression"], result["ok"]) == (metric, expression, is_met)


def test_an_undefined_figure_meets_no_condition() -> None:
    """Nothing completed is no success."""
    results = evaluate_thresholds(
        {"e2el_ms": ["avg<1000"], "slo_attainment": ["rate>=0", "rate!=1"]}, figures(math.nan)
    )

    assert [result["ok"] for result in results] == [False, False, False]


@pytest.mark.parametrize(
    ("metric", "expression", "says"),
    [
        ("ttft", "avg<1", "did you mean 'ttft_ms'"),
        ("ttft_ms", "p95<1000", 'write for example "p(95)<1000"'),
        ("ttft_ms", "p<1000", "which has avg, min, max, med, p(N)"),
        ("ttft_ms", "avg(3)<1000", "which has avg, min, max, med, p(N)"),
        ("ttft_ms", "rate<1000", "which has avg, min, max, med, p(N)"),
        ("ttft_ms", "p(101)<1000", "must be in 0..100"),
        ("ttft_ms", "p(9.9.9)<1000", "must be in 0..100"),
        ("ttft_ms", "avg<1 s", "is not a threshold"),
        ("slo_attainment", "avg>0.9", 'write for example "rate>=0.95"'),
        ("output_throughput", "avg>0.9", "which has value"),
        ("output_throughput", "", "is not a threshold"),
    ],
)
def test_a_condition_that_cannot_be_read_says_what_to_write(metric: str, expression: str, says: str) -> None:
    """Rule and remedy, when the scenario is validated."""
    with pytest.raises(ValueError) as failure:
        parse_threshold(metric, expression)

    assert says in str(failure.value)
