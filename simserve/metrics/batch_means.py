"""The interval of a mean or a percentile from one long stationary run: batch means. Knows a sequence, no request."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simserve.metrics.student import two_sided_quantile

NUM_BATCHES = 20
"""Schmeiser, "Batch size effects in the analysis of simulation output", Operations Research 30 (1982): more than 30
batches gain next to nothing, and fewer are longer, so less alike their neighbours."""
BEYOND_PERCENTILE = 10
"""Values that must lie beyond a percentile for it to be more than the luck of one or two."""
_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A 95 % interval.

    Attributes:
        mean: Its middle.
        half_width: Half of its width; NaN where it cannot be known.
    """

    mean: float
    half_width: float

    @property
    def low(self) -> float:
        """Lower end."""
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        """Upper end."""
        return self.mean + self.half_width


def needed_requests(share: float) -> float:
    """Return how many requests leave ten beyond the percentile at ``share``: 200 for 0.95, 1,000 for 0.99.

    Args:
        share: In 0..1; at 1 no number is enough, and it is inf.
    """
    return math.ceil(BEYOND_PERCENTILE / (1 - share) - 1e-6) if share < 1 else math.inf


def batch_means(values: NDArray[np.float64], num_batches: int = NUM_BATCHES) -> Interval:
    """Return the mean of a stationary sequence, with its interval.

    The sequence is cut into ``num_batches`` of one length (what is left over at the start is dropped), whose means
    are taken for independent: Student's t on them. They are, when a batch is many times as long as the memory of the
    sequence; where it is shorter, the interval is too narrow.

    Args:
        values: In order of time, without NaN; fewer than two a batch give an unknown half width.
        num_batches: At least 2.
    """
    length = len(values) // num_batches
    if length < 2:
        return Interval(mean=float(values.mean()) if len(values) else math.nan, half_width=math.nan)
    means = values[len(values) - length * num_batches :].reshape(num_batches, length).mean(axis=1)
    return mean_interval(means)


def mean_interval(values: NDArray[np.float64]) -> Interval:
    """Return the mean of independent values, with its interval: Student's t; of one value, unknown."""
    count = len(values)
    if count < 2:
        return Interval(mean=float(values.mean()) if count else math.nan, half_width=math.nan)
    half_width = t_quantile(count - 1) * float(np.std(values, ddof=1)) / math.sqrt(count)
    return Interval(mean=float(values.mean()), half_width=half_width)


def t_quantile(degrees_of_freedom: float, confidence: float = _CONFIDENCE) -> float:
    """Return how many standard errors a two-sided interval reaches to either side, by Student's t."""
    return two_sided_quantile(degrees_of_freedom, confidence)
