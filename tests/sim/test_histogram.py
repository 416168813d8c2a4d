"""The histogram of inter-token gaps: percentiles within its bins, everything else exact."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve import rng
from simserve.sim.records import Histogram

gaps = st.lists(st.floats(2e-6, 9e4), min_size=1, max_size=50)
some = settings(max_examples=50, deadline=None, derandomize=True)


def histogram_of(values: list[float] | np.ndarray, weights: list[float] | None = None) -> Histogram:
    """Return a histogram of values, each once unless weighted."""
    histogram = Histogram()
    histogram.add(values, np.ones(len(values)) if weights is None else weights)
    return histogram


def assert_same(first: Histogram, second: Histogram) -> None:
    """Assert that two histograms hold the same, sums to rounding."""
    np.testing.assert_allclose(first.counts, second.counts, rtol=1e-12, atol=1e-9)
    for name in ("count", "total", "total_squares", "minimum", "maximum"):
        assert getattr(first, name) == pytest.approx(getattr(second, name), rel=1e-9, nan_ok=True), name


@given(gaps)
@some
def test_without_weights_each_counts_once(values: list[float]) -> None:
    """To the bit what ones as weights give."""
    once = Histogram()
    once.add(values)

    expected = histogram_of(values)
    for name in Histogram.__slots__:
        np.testing.assert_array_equal(getattr(once, name), getattr(expected, name), err_msg=name)


def test_nothing_in_it() -> None:
    """Undefined, not zero."""
    histogram = Histogram()

    assert histogram.count == 0
    assert math.isnan(histogram.percentile(50))
    assert math.isnan(histogram.minimum)
    assert math.isnan(histogram.maximum)


@pytest.mark.parametrize("scale", [1e-4, 0.02, 3.0, 500.0])
def test_percentiles_are_within_a_bin(scale: float) -> None:
    """Over 20,000 gaps the percentiles are within 1 % of numpy's, at every scale."""
    values = scale * rng.stream(1, "gaps").lognormal(0.0, 0.6, 20_000)
    histogram = histogram_of(values)

    for q in (1, 10, 50, 90, 95, 99):
        assert histogram.percentile(q) == pytest.approx(np.percentile(values, q), rel=1e-2)


@pytest.mark.parametrize("share", [0.5, 0.1, 0.01])
def test_the_share_above_a_percentile_is_what_it_leaves(share: float) -> None:
    """Read back within the bin, whatever part of it lies below; all values are above none, and none above all."""
    histogram = histogram_of(np.geomspace(1e-3, 1.1e-3, 1000))

    value = histogram.percentile(100 * (1 - share))

    assert histogram.share_above(value) == pytest.approx(share, abs=1e-3)
    assert histogram.share_above(0.5e-3) == 1.0
    assert histogram.share_above(2e-3) == 0.0
    assert math.isnan(Histogram().share_above(1.0))


@given(gaps)
@some
def test_percentiles_rise_from_the_smallest_to_the_largest(values: list[float]) -> None:
    """Percentiles never fall, and the ends are the exact extremes to within a bin."""
    histogram = histogram_of(values)
    percentiles = [histogram.percentile(q) for q in range(0, 101, 5)]

    assert percentiles == sorted(percentiles)
    assert min(values) <= percentiles[0] <= percentiles[-1] <= max(values)
    assert percentiles[-1] == pytest.approx(max(values), rel=8e-3)


@given(gaps)
@some
def test_sums_are_exact(values: list[float]) -> None:
    """Count, sum, sum of squares and extremes do not go through the bins."""
    histogram = histogram_of(values)

    assert histogram.count == len(values)
    assert histogram.total == pytest.approx(sum(values), rel=1e-12)
    assert histogram.total_squares == pytest.approx(sum(value**2 for value in values), rel=1e-12)
    assert (histogram.minimum, histogram.maximum) == (min(values), max(values))


@given(gaps, gaps)
@some
def test_merging_is_adding(first: list[float], second: list[float]) -> None:
    """Two histograms merged are the histogram of all."""
    merged = histogram_of(first)
    merged.merge(histogram_of(second))

    assert_same(merged, histogram_of(first + second))


def test_merging_with_nothing() -> None:
    """An empty histogram adds nothing, on either side."""
    left, right = histogram_of([0.1, 0.2]), Histogram()
    left.merge(Histogram())
    right.merge(histogram_of([0.1, 0.2]))

    assert_same(left, histogram_of([0.1, 0.2]))
    assert_same(right, histogram_of([0.1, 0.2]))


def test_a_weight_is_so_many_values() -> None:
    """A gap of weight 3 is three gaps; one of weight 0 is none, also for the extremes."""
    weighted = histogram_of([0.1, 0.5, 9.0], [3.0, 1.0, 0.0])

    assert_same(weighted, histogram_of([0.1, 0.1, 0.1, 0.5]))


@given(
    st.lists(
        st.tuples(st.floats(1e-4, 10.0), st.floats(1e-9, 0.1), st.integers(1, 400), st.integers(0, 5)),
        min_size=1,
        max_size=8,
    )
)
@some
def test_a_progression_is_its_terms(progressions: list[tuple[float, float, int, int]]) -> None:
    """Arithmetic progressions in closed form fill the bins as their terms one by one would, but for edges.

    A term that rounding puts on the other side of an edge moves between neighbouring bins: cumulative counts
    may differ by such terms, not by more than one a progression.
    """
    whole, single = Histogram(), Histogram()
    whole.add_progressions(*np.array(progressions, dtype=np.float64).T)
    for first, increment, length, weight in progressions:
        single.add(first + increment * np.arange(length), np.full(length, float(weight)))

    difference = np.abs(np.cumsum(whole.counts) - np.cumsum(single.counts))
    assert difference.max() <= sum(weight for *_, weight in progressions)
    assert whole.counts.min() >= 0
    assert whole.count == single.count
    assert whole.total == pytest.approx(single.total, rel=1e-9)
    assert whole.total_squares == pytest.approx(single.total_squares, rel=1e-9)
    assert whole.maximum == pytest.approx(single.maximum, nan_ok=True)


def test_a_flat_progression_is_one_value() -> None:
    """Steps of constant length: a hundred gaps of 20 ms for each of four requests."""
    histogram = Histogram()
    histogram.add_progressions(np.array([0.02]), np.array([0.0]), np.array([100.0]), np.array([4.0]))

    assert_same(histogram, histogram_of([0.02], [400.0]))


def test_durations_outside_the_bins_keep_their_extremes() -> None:
    """Below 1 us and above 28 hours the outermost bins take them, and the ends stay exact."""
    histogram = histogram_of([1e-9, 1e7])

    assert histogram.count == 2
    assert histogram.percentile(100) <= 1e7
    assert (histogram.minimum, histogram.maximum) == (1e-9, 1e7)
