"""Figures from samples: percentiles, Student's t, intervals of means, and what is undefined (NaN here, null outside).

Knows no metric.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MAX_TERMS = 100_000
_SERIES_FROM = 50.0
_SMALL = 1e-300
"""Of the quantiles of Student's t: most terms of the continued fraction, half the degrees of freedom from which a
series takes over, and what stands for 0 in a denominator."""
_EPSILON = 2.0**-52
NUM_BATCHES = 20
"""Schmeiser, "Batch size effects in the analysis of simulation output", Operations Research 30 (1982): more than 30
batches gain next to nothing, and fewer are longer, so less alike their neighbours."""
BEYOND_PERCENTILE = 10
"""Values that must lie beyond a percentile for it to be more than the luck of one or two."""
_CONFIDENCE = 0.95


def percentiles(values: NDArray[np.float64], shares: Sequence[float]) -> list[float]:
    """Return what ``np.percentile(values, shares)`` returns.

    Values are parted at one percentile after the other, the smallest first: what lies below it is looked at no more.

    Args:
        values: At least one, none of them NaN.
        shares: In 0..100.
    """
    left, gone = values.copy(), 0
    found: dict[float, float] = {}
    for share in sorted(set(shares)):
        place = (len(values) - 1) * (share / 100)
        before = min(int(place), len(values) - 1)
        left.partition(before - gone)
        left, gone = left[before - gone :], before
        low = float(left[0])
        found[share] = low if len(left) == 1 else _between(low, float(left[1:].min()), place - before)
    return [found[share] for share in shares]


def _between(low: float, high: float, part: float) -> float:
    # As numpy interpolates: from the nearer end, so that it is monotone.
    return high - (high - low) * (1.0 - part) if part >= 0.5 else low + (high - low) * part


@lru_cache(maxsize=256)
def two_sided_quantile(degrees_of_freedom: float, confidence: float) -> float:
    """Return the t that a variable of Student's distribution stays below, in size, with this probability.

    Newton's method from the normal quantile: the distribution function is concave above 0, so every step stays
    short of the root and none has to be taken back. The relative error is below 1e-12 up to 10,000
    degrees of freedom, and below 1e-10 beyond.

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


def ratio(numerator: float, denominator: float) -> float:
    """Return a quotient; NaN where the denominator, which is never below 0, is 0."""
    return float(numerator) / float(denominator) if denominator > 0 else math.nan


def rows_where(counted: NDArray[np.bool_]) -> NDArray[np.bool_] | slice:
    """Return what selects the rows that count: where all do, a slice, with which nothing is copied."""
    return slice(None) if counted.all() else counted


def or_null(figure: float) -> float | None:
    """Return a figure as JSON has it: None where it is undefined or unbounded."""
    return figure if math.isfinite(figure) else None


_PLAIN = frozenset({str, int, bool})
"""What JSON takes as it is: most of a summary, known at a glance."""


def in_json(value: Any) -> Any:
    """Return a value in what JSON knows: undefined and unbounded numbers become None, numpy's scalars plain ones."""
    if value is None or type(value) in _PLAIN:
        return value
    if type(value) is float:
        return or_null(value)
    if isinstance(value, Mapping):
        return {str(key): in_json(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [in_json(each) for each in value]
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return or_null(float(value))
    return value


def at(summary: Mapping[str, Any], key: str) -> Any:
    """Return what stands at a dotted key of a summary.

    Raises:
        KeyError: Nothing does.
    """
    value: Any = summary
    for part in key.split("."):
        value = value[part]
    return value


def figure_at(summary: Mapping[str, Any], key: str) -> float | None:
    """Return the figure at a dotted key of a summary; None where it is undefined.

    Raises:
        KeyError: Nothing stands there.
    """
    value = at(summary, key)
    return None if value is None else float(value)
