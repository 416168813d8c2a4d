"""Tests of dollars."""

from __future__ import annotations

import math

import pytest

from simserve.metrics.cost import COST_KEYS, cost
from simserve.metrics.throughput import Throughput


def rates(output_tokens: float, tokens: float = 0.0, requests: float = 0.0) -> Throughput:
    """Return rates a second."""
    return Throughput(requests=requests, good_requests=math.nan, output_tokens=output_tokens, tokens=tokens)


@pytest.mark.parametrize(
    ("usd_per_hour", "tokens_per_second", "usd_per_million"),
    [(2.5, 800, 0.868), (20.0, 3000, 1.852), (32.0, 8000, 1.111)],
)
def test_dollars_a_million_tokens(usd_per_hour: float, tokens_per_second: float, usd_per_million: float) -> None:
    """The three rows of the published table."""
    dollars = cost(num_gpus=1, gpu_hour_usd=usd_per_hour, throughput=rates(tokens_per_second))

    assert dollars["usd_per_million_output_tokens"] == pytest.approx(usd_per_million, abs=5e-4)


def test_every_gpu_is_paid_for() -> None:
    """The fleet costs its GPUs, and per dollar is the inverse of dollars per."""
    dollars = cost(num_gpus=4, gpu_hour_usd=2.5, throughput=rates(100.0, tokens=500.0, requests=2.0))

    assert dollars["usd_per_hour"] == 10.0
    assert dollars["usd_per_request"] * dollars["requests_per_usd"] == pytest.approx(1.0)
    assert dollars["usd_per_million_tokens"] * dollars["tokens_per_usd"] == pytest.approx(1e6)
    assert dollars["requests_per_usd"] == pytest.approx(2.0 * 3600 / 10)


def test_without_a_price_nothing_is_known() -> None:
    """Every key is there and undefined."""
    dollars = cost(num_gpus=4, gpu_hour_usd=None, throughput=rates(100.0))

    assert tuple(dollars) == COST_KEYS
    assert all(math.isnan(value) for value in dollars.values())


def test_nothing_done_costs_no_finite_amount_a_token() -> None:
    """The hour still has its price."""
    dollars = cost(num_gpus=1, gpu_hour_usd=3.0, throughput=rates(0.0))

    assert dollars["usd_per_hour"] == 3.0
    assert math.isnan(dollars["usd_per_million_output_tokens"])
    assert dollars["tokens_per_usd"] == 0.0
