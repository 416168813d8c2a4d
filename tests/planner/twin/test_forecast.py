"""Tests of rates to come."""

from __future__ import annotations

import numpy as np

from simserve.planner.twin.forecast import DAY, forecast


def _days(count: int, noise: float = 0.0) -> np.ndarray:
    hours = np.arange(24 * count)
    return 5 - 4 * np.cos(2 * np.pi * hours / 24) + noise * np.random.default_rng(1).normal(size=len(hours))


def test_two_days_are_followed_by_a_third() -> None:
    """Hours of a day that repeats come again."""
    found, is_seasonal = forecast(_days(2), 3600.0, horizon=DAY, step=3600.0)

    assert is_seasonal
    assert np.allclose([hour.rate for hour in found], _days(1))


def test_a_new_day_lies_in_its_interval_nine_times_in_ten() -> None:
    """Of noisy days, the interval holds about the share of hours it says."""
    days = _days(15, noise=0.3)
    found, _ = forecast(days[: 24 * 14], 3600.0, horizon=DAY, step=3600.0)
    is_inside = [hour.low <= rate <= hour.high for hour, rate in zip(found, days[24 * 14 :], strict=True)]

    assert 0.75 <= np.mean(is_inside) <= 1.0


def test_less_than_two_days_are_a_level_that_grows_less_sure() -> None:
    """A level has no hours; its interval widens with the distance."""
    rates = 5 + 0.5 * np.random.default_rng(2).normal(size=30).cumsum()
    found, is_seasonal = forecast(rates, 3600.0, horizon=DAY, step=3600.0)

    assert not is_seasonal
    assert len({hour.rate for hour in found}) == 1
    assert found[-1].high - found[-1].low > found[0].high - found[0].low


def test_an_interval_is_no_narrower_than_chance() -> None:
    """Twelve stretches of 15 s with 50 requests each: "3.333 to 3.333" stood there for the hour to come."""
    (hour,), _ = forecast(np.full(12, 50 / 15), 15.0, horizon=3600.0, step=3600.0)

    chance = (50 / 15 * (1 / 3600 + 1 / 180)) ** 0.5
    assert np.isclose(hour.high - hour.rate, 1.6449 * chance)
    assert np.isclose(hour.rate - hour.low, 1.6449 * chance)


def test_yesterday_counts_twice_as_much_as_the_day_before() -> None:
    """Three days at 1, 1 and 8 requests/s: (1 + 2 + 4 x 8) / 7."""
    found, _ = forecast(np.repeat([1.0, 1.0, 8.0], 24), 3600.0, horizon=DAY, step=3600.0)

    assert np.allclose([hour.rate for hour in found], 35 / 7)
