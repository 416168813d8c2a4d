"""A mergeable, log-spaced histogram of durations: every inter-token gap of a run in 25 kB.

Bins are 0.8 % wide, from 1 us to 28 hours; a percentile is interpolated in its bin. It knows durations
and weights, not where they come from.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

_LOWEST = 1e-6
_GROWTH = math.log(1.008)
NUM_BINS = 3180


class Histogram:
    """Weighted durations in seconds.

    Attributes:
        counts: Weight in each bin, shape [num_bins], float64.
        count: Sum of weights.
        total: Weighted sum, seconds; exact, not from the bins.
        total_squares: Weighted sum of squares, seconds^2; exact.
        minimum: Smallest duration, NaN when empty.
        maximum: Largest duration, NaN when empty.
    """

    __slots__ = ("count", "counts", "maximum", "minimum", "total", "total_squares")

    def __init__(self) -> None:
        self.counts: NDArray[np.float64] = np.zeros(NUM_BINS)
        self.count = 0.0
        self.total = 0.0
        self.total_squares = 0.0
        self.minimum = math.nan
        self.maximum = math.nan

    def add(self, values: ArrayLike, weights: ArrayLike | None = None) -> None:
        """Add durations (seconds, > 0) with their weights, arrays of one shape; None: each counts once."""
        durations = np.asarray(values, dtype=np.float64)
        if weights is None:
            self.count += len(durations)
            self.total += float(durations.sum())
            self.total_squares += float((durations * durations).sum())
            self._extend_range(durations, durations)
            self._fill(bins_of(durations), None)
            return
        mass = np.asarray(weights, dtype=np.float64)
        self.count += float(mass.sum())
        self.total += float((durations * mass).sum())
        self.total_squares += float((durations * durations * mass).sum())
        used = durations[mass > 0]
        self._extend_range(used, used)
        self._fill(bins_of(durations), mass)

    def add_progressions(
        self,
        first: NDArray[np.float64],
        increment: NDArray[np.float64],
        length: NDArray[np.float64],
        weight: NDArray[np.float64],
    ) -> None:
        """Add arithmetic progressions ``first + increment * k`` for ``k = 0 .. length - 1``, each with a weight.

        All arrays have one shape; ``first > 0``, ``increment >= 0``, ``length >= 1``. A weight of 0 counts for nothing.
        """
        mass = weight * length
        pairs = length * (length - 1.0) * 0.5
        grown = increment * pairs
        sums = first * length + grown
        last = first + increment * (length - 1.0)
        self.count += float(mass.sum())
        self.total += float((weight * sums).sum())
        # first^2 n + 2 first increment pairs + increment^2 pairs (2 n - 1) / 3
        squares = first * (sums + grown) + increment * grown * ((2.0 * length - 1.0) * (1.0 / 3.0))
        self.total_squares += float((weight * squares).sum())
        used = mass > 0
        if not used.all():
            if not used.any():
                return
            self._extend_range(first[used], last[used])
        else:
            self._extend_range(first, last)
        low, high = bins_of(first), bins_of(last)
        is_wide = low != high
        if not is_wide.any():
            self._fill(low, mass)
            return
        self._fill(low, np.where(is_wide, 0.0, mass))
        wide = np.flatnonzero(is_wide & used)
        if len(wide):
            self._spread(first[wide], increment[wide], length[wide], weight[wide], low[wide], high[wide])

    def add_counted(
        self, counts: NDArray[np.float64], total: float, total_squares: float, minimum: float, maximum: float
    ) -> None:
        """Add durations that somebody has put into bins already (`bins_of`), attributes as of the class."""
        self.counts += counts
        self.count += float(counts.sum())
        self.total += total
        self.total_squares += total_squares
        self.minimum = float(np.fmin(self.minimum, minimum))
        self.maximum = float(np.fmax(self.maximum, maximum))

    def merge(self, other: Histogram) -> None:
        """Add all of another histogram."""
        self.counts += other.counts
        self.count += other.count
        self.total += other.total
        self.total_squares += other.total_squares
        self.minimum = float(np.fmin(self.minimum, other.minimum))
        self.maximum = float(np.fmax(self.maximum, other.maximum))

    def percentile(self, q: float) -> float:
        """Return the q-th percentile in seconds (q in 0..100), interpolated in its bin; NaN when empty."""
        return self.percentiles_of(self.counts, (q,))[0]

    def percentiles_of(self, counts: NDArray[np.float64], asked: Iterable[float]) -> list[float]:
        """Return percentiles of weights in the same bins, within the range of this histogram; they are summed once."""
        cumulative = np.cumsum(counts)
        if not cumulative[-1] > 0:
            return [math.nan for _ in asked]
        last = int(np.flatnonzero(counts)[-1])
        return [self._interpolated(counts, cumulative, q / 100 * cumulative[-1], last) for q in asked]

    def _interpolated(
        self, counts: NDArray[np.float64], cumulative: NDArray[np.float64], rank: float, last: int
    ) -> float:
        index = min(int(np.searchsorted(cumulative, rank, side="left")), last)
        below = cumulative[index - 1] if index else 0.0
        part = min(max((rank - below) / counts[index], 0.0), 1.0) if counts[index] else 0.0
        value = _LOWEST * math.exp(_GROWTH * (index + part))
        return min(max(value, self.minimum), self.maximum)

    def upper_edges(self) -> NDArray[np.float64]:
        """Return the upper edge of each bin, seconds, shape [num_bins]."""
        return _LOWEST * np.exp(_GROWTH * np.arange(1.0, NUM_BINS + 1.0))

    def _extend_range(self, least: NDArray[np.float64], most: NDArray[np.float64]) -> None:
        if len(least):
            self.minimum = float(np.fmin(self.minimum, least.min()))
            self.maximum = float(np.fmax(self.maximum, most.max()))

    def _fill(self, bins: NDArray[np.int64], mass: NDArray[np.float64] | None) -> None:
        self.counts += np.bincount(bins, weights=mass, minlength=NUM_BINS)

    def _spread(
        self,
        first: NDArray[np.float64],
        increment: NDArray[np.float64],
        length: NDArray[np.float64],
        weight: NDArray[np.float64],
        low: NDArray[np.int64],
        high: NDArray[np.int64],
    ) -> None:
        """Fill progressions that cross bins: in closed form, how many terms lie below each bin's upper edge."""
        spans = high - low + 1
        rows = np.repeat(np.arange(len(first)), spans)
        position = np.arange(len(rows)) - np.repeat(np.cumsum(spans) - spans, spans)
        bins = low[rows] + position
        edge = _LOWEST * np.exp(_GROWTH * (bins + 1))
        below = np.ceil((edge - first[rows]) / increment[rows])
        below = np.where(position == spans[rows] - 1, length[rows], np.clip(below, 0, length[rows]))
        previous = np.where(position == 0, 0, np.concatenate(([0.0], below[:-1])))
        self._fill(bins, np.maximum(below - previous, 0) * weight[rows])


def bins_of(durations: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the bin of each duration (seconds)."""
    index = np.log(np.maximum(durations, _LOWEST) * (1.0 / _LOWEST)) * (1.0 / _GROWTH)
    return np.minimum(index, NUM_BINS - 1.0).astype(np.int64)


@cache
def bin_edges() -> NDArray[np.float64]:
    """Return from which duration on each bin is that of `bins_of`, to the bit; -inf for the first, inf behind the last.

    Shape [num_bins + 1].
    """
    number = np.arange(1, NUM_BINS)
    low = _LOWEST * np.exp(_GROWTH * (number - 0.5))
    high = _LOWEST * np.exp(_GROWTH * (number + 0.5))
    # As whole numbers, positive floats are in the same order.
    below, edges = low.view(np.int64), high.view(np.int64)
    while (edges - below > 1).any():
        middle = below + (edges - below) // 2
        reaches = bins_of(middle.view(np.float64)) >= number
        below, edges = np.where(reaches, below, middle), np.where(reaches, middle, edges)
    return np.concatenate(([-np.inf], edges.view(np.float64), [np.inf]))
