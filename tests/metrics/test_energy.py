"""Tests of watts, joules and grams."""

from __future__ import annotations

import math

import pytest

from simserve.metrics.energy import Grid, board_watts, energy

_GRID = Grid(usd_per_kwh=0.1, grams_co2_per_kwh=400.0, pue=1.25, host_watts_per_gpu=100.0)


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
