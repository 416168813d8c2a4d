"""Figures from samples: percentiles, Student's t, intervals of means, and undefined values (NaN here, null outside).

Knows no metric.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

_MAX_TERMS = 100_000
_SERIES_FROM = 50.0
_SMALL = 1e-300
"""For the quantiles of Student's t: the most terms of the continued fraction, half the degrees of freedom from which a
series takes over, and what replaces 0 in a denominator."""
_EPSILON = 2.0**-52
NUM_BATCHES = 20
"""Schmeiser, "Batch size effects in the analysis of simulation output", Operations Research 30 (1982): more than 30
batches gain next to nothing; fewer batches are longer and so less correlated with their neighbours."""
BEYOND_PERCENTILE = 10  # Values that must lie beyond a percentile so that it does not depend on one or two of them.
_CONFIDENCE = 0.95


@lru_cache(maxsize=256)
def t_quantile(degrees_of_freedom: float, confidence: float = _CONFIDENCE) -> float:
    """Return the t that the absolute value of a variable with Student's distribution stays below with this probability:
    the half width of a two-sided interval in standard errors.

    Newton's method from the normal quantile: the distribution function is concave above 0, so no step overshoots the
    root. The relative error is below 1e-12 up to 10,000 degrees of freedom, and below 1e-10 beyond.

    Args:
        degrees_of_freedom: > 0, not necessarily whole; infinite: the normal distribution.
        confidence: Within 0 to 1, both excluded.
    """
    t = NormalDist().inv_cdf(0.5 + confidence / 2)
    if math.isinf(degrees_of_freedom):
        return t
    half = degrees_of_freedom / 2
    log_ratio = _log_gamma_ratio(half)
    log_scale = log_ratio - 0.5 * math.log(degrees_of_freedom * math.pi)
    step = t
    while abs(step) > 4 * _EPSILON * t:
        density = math.exp(log_scale - (half + 0.5) * math.log1p(t * t / degrees_of_freedom))
        square = t * t
        within = _incomplete_beta(
            square / (degrees_of_freedom + square),
            degrees_of_freedom / (degrees_of_freedom + square),
            0.5,
            half,
            0.5 * math.log(math.pi) - log_ratio,
        )
        last, step = step, (confidence - within) / (2 * density)
        if abs(step) > abs(last) / 2 and abs(step) < 1e-9 * t:
            break  # only rounding is left
        t += step
    return t


def _log_gamma_ratio(z: float) -> float:
    """Return the logarithm of gamma(z + 1/2) / gamma(z); from 50 on by its series, where nothing cancels."""
    if z < _SERIES_FROM:
        return math.lgamma(z + 0.5) - math.lgamma(z)
    return 0.5 * math.log(z) - 1 / (8 * z) + 1 / (192 * z**3) - 1 / (640 * z**5) + 17 / (14336 * z**7)


def _incomplete_beta(x: float, complement: float, a: float, b: float, log_beta: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b), given 1 - x and the logarithm of B(a, b)."""
    if x > (a + 1) / (a + b + 2):
        return 1.0 - _incomplete_beta(complement, x, b, a, log_beta)
    logarithm = a * math.log(x) + b * math.log(complement) - log_beta
    return math.exp(logarithm) * _fraction(x, a, b) / a


def _fraction(x: float, a: float, b: float) -> float:
    """Return the continued fraction of I_x(a, b) by Lentz's method (Press et al., Numerical Recipes, section 6.4)."""
    value, c, d = 1.0, 1.0, 0.0
    for term in range(_MAX_TERMS):
        m = term // 2
        if term == 0:
            numerator = 1.0
        elif term % 2 == 0:
            numerator = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        else:
            numerator = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d = 1.0 / (1.0 + numerator * d or _SMALL)
        c = 1.0 + numerator / c or _SMALL
        value *= c * d
        if abs(c * d - 1.0) < _EPSILON and term:
            break
    return value - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A 95 % interval."""

    mean: float  # Its middle.
    half_width: float  # Half of its width; NaN if unknown.

    @property
    def low(self) -> float:
        """Lower end."""
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        """Upper end."""
        return self.mean + self.half_width


def needed_requests(share: float) -> float:
    """Return how many requests put ten beyond the percentile at ``share``: 200 for 0.95, 1,000 for 0.99.

    Args:
        share: In 0..1; at 1 no number is enough: inf.
    """
    return math.ceil(BEYOND_PERCENTILE / (1 - share) - 1e-6) if share < 1 else math.inf


def batch_means(values: NDArray[np.float64], num_batches: int = NUM_BATCHES) -> Interval:
    """Return the mean of a stationary sequence, with its interval.

    The sequence is cut into ``num_batches`` of equal length (a remainder at the start is dropped), and Student's t is
    applied to their means. These are treated as independent. They are if a batch is many times as long as the memory of
    the sequence; with shorter batches the interval is too narrow.

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
    """Return the mean of independent values, with its interval by Student's t; unknown for a single value."""
    count = len(values)
    if count < 2:
        return Interval(mean=float(values.mean()) if count else math.nan, half_width=math.nan)
    half_width = t_quantile(count - 1) * float(np.std(values, ddof=1)) / math.sqrt(count)
    return Interval(mean=float(values.mean()), half_width=half_width)
