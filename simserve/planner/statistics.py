"""Differences between two deployments over replications, with their intervals. Knows numbers, but no scenarios."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simserve.metrics.statistics import Interval, mean_interval, t_quantile

LEAST_PAIRS = 5
"""Least replications for a difference to have an interval: over fewer, Student's t is mostly the luck of their
spread."""


@dataclass(frozen=True, slots=True)
class Difference:
    """How much a figure of the variant exceeds that of the base."""

    mean: float  # Mean over the replications in which both are defined; NaN if in none.
    low: float  # Lower end of the 95 % interval; NaN where fewer than `LEAST_PAIRS` replications define it.
    high: float  # Upper end.
    base: float  # Mean of the base.
    variant: float  # Mean of the variant.
    ratio_low: float = math.nan
    """Lower end of the 95 % interval of the ratio of the variant's mean to the base's; NaN likewise, and where a
    figure is not positive."""
    ratio_high: float = math.nan  # Upper end.

    @property
    def is_shown(self) -> bool:
        """Whether the interval of the ratio excludes 1 or, without a ratio, that of the difference excludes 0."""
        if not math.isnan(self.ratio_low):
            return self.ratio_low > 1 or self.ratio_high < 1
        return self.low > 0 or self.high < 0

    @property
    def relative(self) -> float:
        """The difference divided by the base; NaN where that is 0."""
        return self.mean / self.base if self.base else math.nan

    @property
    def relative_interval(self) -> tuple[float, float] | None:
        """Its 95 % interval, from the logarithm of the ratio; None where there is none."""
        return None if math.isnan(self.ratio_low) else (self.ratio_low - 1, self.ratio_high - 1)

    def without_ratio(self) -> Difference:
        """Return the difference without the ratio."""
        return replace(self, ratio_low=math.nan, ratio_high=math.nan)

    @property
    def half_width(self) -> float:
        """Half the width of the interval."""
        return (self.high - self.low) / 2


def paired_difference(base: Sequence[float | None], variant: Sequence[float | None]) -> Difference:
    """Return the difference of two deployments that saw the same requests, replication by replication.

    Student's t on the differences: what the runs share through common random numbers cancels. The ratio of the means
    has its own interval, on its logarithm, by the jackknife that leaves out one pair at a time (Efron and Tibshirani,
    "An Introduction to the Bootstrap", 1993, chapter 11): the interval of the difference, divided by the base, would be
    wider than the base where a few replications are congested.

    Args:
        base: A figure of each replication, None where it is undefined.
        variant: The same figure of the same replications.
    """
    pairs = [(a, b) for a, b in zip(base, variant, strict=True) if a is not None and b is not None]
    if not pairs:
        return Difference(math.nan, math.nan, math.nan, _mean(base), _mean(variant))
    before, after = np.array(pairs, dtype=np.float64).T
    found = mean_interval(after - before)
    half_width = found.half_width if len(pairs) >= LEAST_PAIRS else math.nan
    return _difference(before, after, Interval(mean=found.mean, half_width=half_width), _ratio_ends(before, after))


def _ratio_ends(before: NDArray[np.float64], after: NDArray[np.float64]) -> tuple[float, float]:
    """Return the interval of the ratio of two means, after over before, from pairs; NaN where there is none."""
    count = len(before)
    if count < LEAST_PAIRS or not (np.all(before > 0) and np.all(after > 0)):
        return math.nan, math.nan
    whole = math.log(after.mean() / before.mean())
    left_out = np.log((after.sum() - after) / (before.sum() - before))
    half_width = mean_interval((count - 1) * left_out).half_width
    if np.array_equal(before, after):
        return 1.0, 1.0
    return math.exp(whole - half_width), math.exp(whole + half_width)


def independent_difference(base: Sequence[float | None], variant: Sequence[float | None]) -> Difference:
    """Return the difference of two deployments that each had their own requests.

    Welch's interval: the variances of the two means add up, and so need not be equal (Welch, "The generalization of
    Student's problem when several different population variances are involved", Biometrika 34, 1947). The interval of
    the ratio of the means is the same on their logarithms, whose variances are the relative ones.

    Args:
        base: A figure of each replication, None where it is undefined.
        variant: The same figure of other replications; their number may differ.
    """
    before, after = (np.array([x for x in values if x is not None], dtype=np.float64) for values in (base, variant))
    if not len(before) or not len(after):
        return Difference(math.nan, math.nan, math.nan, _mean(base), _mean(variant))
    half_width, ends = math.nan, (math.nan, math.nan)
    if min(len(before), len(after)) >= LEAST_PAIRS:
        errors = [float(values.var(ddof=1)) / len(values) for values in (before, after)]
        half_width = _welch(errors, (len(before), len(after)))
        if np.all(before > 0) and np.all(after > 0):
            means = (float(before.mean()), float(after.mean()))
            width = _welch(
                [error / each**2 for error, each in zip(errors, means, strict=True)], (len(before), len(after))
            )
            ratio = means[1] / means[0]
            ends = ratio * math.exp(-width), ratio * math.exp(width)
    return _difference(before, after, Interval(mean=float(after.mean() - before.mean()), half_width=half_width), ends)


def _difference(
    before: NDArray[np.float64], after: NDArray[np.float64], found: Interval, ratio: tuple[float, float]
) -> Difference:
    base, variant = float(before.mean()), float(after.mean())
    return Difference(found.mean, found.low, found.high, base, variant, *ratio)


def _welch(errors: Sequence[float], counts: Sequence[int]) -> float:
    """Return half the interval of a difference of two means, from their variances."""
    total = sum(errors)
    if not total > 0:
        return 0.0
    degrees = total**2 / sum(error**2 / (count - 1) for error, count in zip(errors, counts, strict=True))
    return t_quantile(degrees) * math.sqrt(total)


def _mean(values: Sequence[float | None]) -> float:
    defined = [value for value in values if value is not None]
    return float(np.mean(defined)) if defined else math.nan
