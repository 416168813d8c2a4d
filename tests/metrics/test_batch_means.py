"""Intervals from one long run: they cover the mean as often as they say, if the batches are long enough."""

from __future__ import annotations

import math

import numpy as np
import pytest

from simserve.metrics.statistics import batch_means, mean_interval, needed_requests, t_quantile


def test_the_interval_covers_the_mean_of_a_correlated_sequence() -> None:
    """An autoregression with a memory of about 10 values, 4,000 long: at least 88 of 100 intervals."""
    generator = np.random.default_rng(7)
    noise = generator.standard_normal((100, 4000))
    values = np.zeros_like(noise)
    for place in range(1, 4000):
        values[:, place] = 0.8 * values[:, place - 1] + noise[:, place]

    covered = sum(interval.low <= 0 <= interval.high for interval in map(batch_means, values))

    assert covered >= 88


def test_independent_values_have_students_interval() -> None:
    """By hand: 1, 2, 3 with t = 4.303 for two degrees of freedom."""
    interval = mean_interval(np.array([1.0, 2.0, 3.0]))

    assert (interval.low, interval.high) == pytest.approx(
        (2 - 4.3027 / math.sqrt(3), 2 + 4.3027 / math.sqrt(3)), abs=1e-4
    )
    assert t_quantile(2) == pytest.approx(4.3027, abs=1e-4)


def test_too_short_a_sequence_has_no_interval() -> None:
    """Its mean is still its mean."""
    interval = batch_means(np.arange(30.0))

    assert interval.mean == 14.5
    assert math.isnan(interval.half_width)
    assert math.isnan(mean_interval(np.array([3.0])).half_width)


@pytest.mark.parametrize(("share", "needed"), [(0.5, 20), (0.95, 200), (0.99, 1000), (0.999, 10_000), (1.0, math.inf)])
def test_ten_requests_lie_beyond_a_percentile(share: float, needed: float) -> None:
    """Fewer, and it is the luck of one or two."""
    assert needed_requests(share) == needed


def test_what_fills_no_batch_is_dropped_where_a_run_still_fills_up() -> None:
    """45 values are 20 batches of two: the first five are left out, and the last ones are not."""
    values = np.concatenate([np.full(5, 1e6), np.ones(40)])

    assert batch_means(values).mean == 1.0
    assert batch_means(values[::-1]).mean > 1.0
