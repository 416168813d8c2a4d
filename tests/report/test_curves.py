"""Curves of a few hundred points, and where they turn."""

from __future__ import annotations

import numpy as np
import pytest

from simserve.report.curves import cumulative, cumulative_histogram, thinned, turning_point
from simserve.sim.records import Histogram


def test_a_curve_that_rises_and_falls_turns_at_its_maximum() -> None:
    """Points in any order; what lies within 2 % of the most is flat."""
    point = turning_point([(64, 80.0), (8, 50.0), (16, 99.0), (32, 100.0)])

    assert (point.at, point.value, point.falls_after) == (32, 100.0, True)


def test_a_curve_that_flattens_does_not_fall() -> None:
    """A dip within the noise is no fall."""
    point = turning_point([(8, 50.0), (16, 99.5), (32, 100.0), (64, 99.0)])

    assert (point.at, point.falls_after) == (32, False)


def test_a_curve_that_only_rises_turns_at_its_end() -> None:
    """Nothing lies beyond."""
    point = turning_point([(1, 1.0), (2, 2.0)])

    assert (point.at, point.falls_after) == (2, False)


def test_a_cumulative_curve_passes_through_the_percentiles() -> None:
    """A million values become a few hundred points, their extremes kept; NaN does not count."""
    values = np.random.default_rng(1).lognormal(size=100_000)

    curve, levels = cumulative(np.append(values, np.nan))

    assert len(curve) < 300
    assert (curve[0], curve[-1]) == (values.min(), values.max())
    assert np.allclose(curve, np.quantile(values, levels))


def test_an_empty_curve_has_no_points() -> None:
    """Neither from values nor from a histogram."""
    assert len(cumulative(np.array([np.nan]))[0]) == 0
    assert len(cumulative_histogram(Histogram())[0]) == 0


def test_a_histogram_gives_the_same_curve_within_its_bins() -> None:
    """Within 1 %."""
    values = np.random.default_rng(1).lognormal(size=20_000)
    histogram = Histogram()
    histogram.add(values, np.ones(len(values)))

    curve, levels = cumulative_histogram(histogram)

    assert np.allclose(curve, np.quantile(values, levels, method="inverted_cdf"), rtol=0.01)


def test_thinning_keeps_the_integral() -> None:
    """Bins of any width; the last group may be smaller."""
    generator = np.random.default_rng(1)
    edges, series = np.cumsum(generator.random(1025)), generator.random(1024)

    fewer, (means,) = thinned(edges, series)

    assert len(means) <= 300
    assert (fewer[0], fewer[-1]) == (edges[0], edges[-1])
    assert means @ np.diff(fewer) == pytest.approx(series @ np.diff(edges))
