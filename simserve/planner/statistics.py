"""Differences between two deployments over replications, with their intervals. Knows numbers, no scenario."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simserve.metrics.batch_means import mean_interval, t_quantile


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How much a figure of the variant exceeds that of the base.

    Attributes:
        mean: Over the replications in which both are defined; NaN if in none.
        low: Lower end of the 95 % interval; NaN where fewer than two replications define it.
        high: Upper end.
        base: Mean of the base.
        variant: Mean of the variant.
    """

    mean: float
    low: float
    high: float
    base: float
    variant: float

    @property
    def is_shown(self) -> bool:
        """Whether the interval leaves out zero: else no difference is shown."""
        return self.low > 0 or self.high < 0

    @property
    def relative(self) -> float:
        """The difference over the base; NaN where that is 0."""
        return self.mean / self.base if self.base else math.nan

    @property
    def half_width(self) -> float:
        """Half of the interval."""
        return (self.high - self.low) / 2


def paired_difference(base: Sequence[float | None], variant: Sequence[float | None]) -> Difference:
    """Return the difference of two deployments that saw the same requests, replication by replication.

    Student's t on the differences: what common random numbers have in common cancels.

    Args:
        base: A figure of each replication, None where it is undefined.
        variant: Of the same replications.
    """
    pairs = [(a, b) for a, b in zip(base, variant, strict=True) if a is not None and b is not None]
    if not pairs:
        return _undefined(_mean(base), _mean(variant))
    before, after = np.array(pairs, dtype=np.float64).T
    interval = mean_interval(after - before)
    return Difference(
        mean=interval.mean, low=interval.low, high=interval.high, base=float(before.mean()), variant=float(after.mean())
    )


def independent_difference(base: Sequence[float | None], variant: Sequence[float | None]) -> Difference:
    """Return the difference of two deployments that saw requests of their own.

    Welch's interval: the variances of the two means add up, and so do not need to be equal (Welch, "The
    generalization of Student's problem when several different population variances are involved", Biometrika 34,
    1947).

    Args:
        base: A figure of each replication, None where it is undefined.
        variant: Of other replications; their number may differ.
    """
    before, after = (np.array([x for x in values if x is not None], dtype=np.float64) for values in (base, variant))
    if not len(before) or not len(after):
        return _undefined(_mean(base), _mean(variant))
    mean = float(after.mean() - before.mean())
    half_width = math.nan
    if len(before) > 1 and len(after) > 1:
        errors = [float(values.var(ddof=1)) / len(values) for values in (before, after)]
        total = sum(errors)
        degrees = math.inf
        if total > 0:
            degrees = total**2 / sum(
                error**2 / (len(values) - 1) for error, values in zip(errors, (before, after), strict=True)
            )
        half_width = t_quantile(degrees) * math.sqrt(total) if total > 0 else 0.0
    return Difference(
        mean=mean,
        low=mean - half_width,
        high=mean + half_width,
        base=float(before.mean()),
        variant=float(after.mean()),
    )


def _undefined(base: float, variant: float) -> Difference:
    return Difference(mean=math.nan, low=math.nan, high=math.nan, base=base, variant=variant)


def _mean(values: Sequence[float | None]) -> float:
    defined = [value for value in values if value is not None]
    return float(np.mean(defined)) if defined else math.nan
