"""Tests of dollars, watts, joules and grams of CO2."""

from __future__ import annotations

import math

import pytest

from simserve.metrics.cost import COST_KEYS, Grid, board_watts, cost, energy
from simserve.metrics.throughput import Throughput

_GRID = Grid(usd_per_kwh=0.1, grams_co2_per_kwh=400.0, pue=1.25, host_watts_per_gpu=100.0)


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


def test_a_board_without_work_idles_and_one_full_of_arithmetic_draws_its_limit() -> None:
    """Both ends of the span."""
    assert board_watts(75.0, 700.0, 0.0, {"compute": 0.0}) == 75.0
    assert board_watts(75.0, 700.0, 1.0, {"compute": 3.0}) == 700.0


def test_decoding_draws_what_was_measured_on_an_h200() -> None:
    """Memory-bound decode: 137 to 300 W of 700 (arXiv:2605.11999)."""
    watts = board_watts(76.0, 700.0, 1.0, {"weights": 0.7, "kv": 0.2, "host": 0.1})

    assert 137 <= watts <= 301


def test_power_grows_with_the_busy_share_and_with_arithmetic() -> None:
    """Never above the limit."""
    shares = [board_watts(75.0, 700.0, busy, {"compute": 1.0, "weights": 1.0}) for busy in (0.0, 0.3, 0.6, 1.0)]
    parts = [board_watts(75.0, 700.0, 1.0, {"compute": x, "weights": 1 - x}) for x in (0.0, 0.5, 1.0)]

    assert shares == sorted(shares)
    assert parts == sorted(parts)
    assert max(*shares, *parts) <= 700.0


def test_energy_a_token_counts_host_and_site() -> None:
    """(300 + 100) W x 1.25 x 2 GPUs = 1,000 W; at 500 tokens/s 2 J a token."""
    used = energy(num_gpus=2, watts_per_gpu=300.0, grid=_GRID, tokens_per_second=500.0, output_tokens_per_second=100.0)

    assert used["watts_mean"] == 1000.0
    assert used["joules_per_token"] == 2.0
    assert used["joules_per_output_token"] == 10.0
    assert used["kwh_per_million_tokens"] == pytest.approx(2e6 / 3.6e6)
    assert used["grams_co2_per_thousand_tokens"] == pytest.approx(2000 / 3.6e6 * 400)
    assert used["electricity_usd_per_hour"] == pytest.approx(0.1)


def test_no_token_has_no_energy_a_token() -> None:
    """The power is there all the same."""
    used = energy(num_gpus=1, watts_per_gpu=75.0, grid=_GRID, tokens_per_second=0.0, output_tokens_per_second=0.0)

    assert math.isnan(used["joules_per_token"])
    assert used["watts_mean"] == pytest.approx(175 * 1.25)


def test_what_is_paid_beside_the_gpus_is_part_of_the_hour() -> None:
    """Two GPUs at $3, and $1 of electricity, $2 of an API, $0.50 of KV tiers and $0.25 of encoders."""
    dollars = cost(
        num_gpus=2,
        gpu_hour_usd=3.0,
        throughput=rates(1.0),
        electricity_usd_per_hour=1.0,
        api_usd_per_hour=2.0,
        tiers_usd_per_hour=0.5,
        encoders_usd_per_hour=0.25,
    )

    assert dollars["usd_per_hour"] == pytest.approx(9.75)
