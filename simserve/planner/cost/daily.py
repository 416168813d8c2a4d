"""Traffic over 24 hours: the shape of a day, in multiples of its mean. Knows no rate and no dollar."""

from __future__ import annotations

import math
from collections.abc import Sequence

from simserve.errors import ScenarioError

HOURS_PER_DAY = 24
PEAK_TO_MEAN = 1.7
PEAK_TO_TROUGH = 3.3
"""A week of a public chat service: its mean load is 1.7 times, its quietest 3.3 times below the peak
(DynamoLLM, arXiv:2408.00741, section III, Azure conversation trace)."""
_DEPTH = math.log(PEAK_TO_TROUGH) / math.log(PEAK_TO_MEAN)
"""Where only one ratio is given, the trough of a sharper day is deeper by the same power."""
_PEAK_HOUR = 14.5
"""Middle of the busiest hour; where in the day it lies changes no figure."""


def day_shape(
    hourly: Sequence[float] | None = None, peak_to_mean: float | None = None, peak_to_trough: float | None = None
) -> tuple[float, ...]:
    """Return the traffic of each hour in multiples of the mean.

    Without ``hourly`` it is one wave a day, ``trough + (1 - trough) w(h)^k`` of the peak with
    ``w = (1 + cos) / 2``, whose exponent k is solved so that both ratios hold.

    Args:
        hourly: 24 numbers in proportion to the traffic.
        peak_to_mean: Busiest hour over the mean.
        peak_to_trough: Busiest hour over the quietest.

    Raises:
        ScenarioError: No such wave exists: the mean would lie outside what lies between trough and peak.
    """
    if hourly is not None:
        mean = sum(hourly) / len(hourly)
        return tuple(value / mean for value in hourly)
    to_mean = PEAK_TO_MEAN if peak_to_mean is None else peak_to_mean
    to_trough = to_mean**_DEPTH if peak_to_trough is None else peak_to_trough
    if to_mean == 1 and to_trough == 1:
        return (1.0,) * HOURS_PER_DAY
    trough = 1 / to_trough
    wanted = (1 / to_mean - trough) / (1 - trough) if trough < 1 else math.nan
    waves = [(1 + math.cos(2 * math.pi * (hour + 0.5 - _PEAK_HOUR) / HOURS_PER_DAY)) / 2 for hour in range(24)]
    floor, ceiling = _mean_power(waves, _LARGEST_EXPONENT), _mean_power(waves, 1 / _LARGEST_EXPONENT)
    if not floor <= wanted <= ceiling:
        raise ScenarioError(
            f"has no wave: the mean of a day lies between its trough and its peak, not at 1/{to_mean:g} of the peak "
            f"with a trough of 1/{to_trough:g}",
            key="pricing.daily",
            remedy="raise peak_to_trough, or give hourly",
        )
    exponent = _exponent(waves, wanted)
    shape = [trough + (1 - trough) * math.pow(wave, exponent) for wave in waves]
    mean = sum(shape) / len(shape)
    return tuple(value / mean for value in shape)


_LARGEST_EXPONENT = 200.0


def _mean_power(waves: Sequence[float], exponent: float) -> float:
    return math.fsum(math.pow(wave, exponent) for wave in waves) / len(waves)


def _exponent(waves: Sequence[float], wanted: float) -> float:
    """Return the exponent at which the waves have the wanted mean, by bisection of a falling function."""
    low, high = 1 / _LARGEST_EXPONENT, _LARGEST_EXPONENT
    for _ in range(100):
        middle = math.sqrt(low * high)
        if _mean_power(waves, middle) > wanted:
            low = middle
        else:
            high = middle
    return math.sqrt(low * high)
