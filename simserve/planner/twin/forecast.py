"""Forecasts the rates of coming hours from past ones: the same hour of earlier days, else a level.

The level is smoothed exponentially, with the weight that would have erred least (Hyndman and Athanasopoulos,
Forecasting: Principles and Practice, 3rd ed., chapter 8); intervals are those of 90 %, from its own errors, and no
narrower than the chance of Poisson counts, of those that were seen and those to come.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DAY = 86_400.0
SCORE_90 = 1.6449  # Standard score of 90 % of cases.
_WEIGHTS = np.linspace(0.05, 1.0, 20)
_RECENT = 0.5  # Weight of a day relative to that of the day after it.
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Hour:
    """A stretch of time to come."""

    start: float  # When it begins, seconds after the last observation.
    rate: float  # Requests a second.
    low: float  # Low end of the interval of 90 % of cases.
    high: float  # High end.


def forecast(rates: Floats, seconds: float, *, horizon: float, step: float) -> tuple[list[Hour], bool]:
    """Return the stretches to come, and whether they follow the hours of the day.

    Args:
        rates: Mean rates of stretches of equal length, in order of time.
        seconds: Length of those stretches.
        horizon: How far to forecast, seconds.
        step: Length of a stretch to come, seconds.
    """
    a_day = round(DAY / seconds)
    is_seasonal = a_day > 1 and len(rates) >= 2 * a_day and abs(a_day * seconds - DAY) < seconds / 2
    found = []
    count = max(math.ceil(horizon / step), 1)
    level = None if is_seasonal else _Level(rates)
    for index in range(count):
        ahead = index * step
        if level is None:
            rate, spread = _of_the_hour(rates, a_day, int(ahead / seconds) % a_day)
        else:
            rate, spread = level.at(ahead / seconds + 1)
        spread = max(spread, math.sqrt(max(rate, 0.0) * (1 / step + 1 / (seconds * len(rates)))))
        found.append(
            Hour(ahead, max(rate, 0.0), max(rate - SCORE_90 * spread, 0.0), max(rate + SCORE_90 * spread, 0.0))
        )
    return found, is_seasonal


def _of_the_hour(rates: Floats, a_day: int, phase: int) -> tuple[float, float]:
    """Return the weighted mean of one hour over the days, and the spread of a day to come."""
    days = len(rates) // a_day
    table = rates[-days * a_day :].reshape(days, a_day)
    weights = _RECENT ** np.arange(days)[::-1]
    weights = weights / weights.sum()
    change = (table[1:] - table[:-1]).std() / math.sqrt(2)
    return float(weights @ table[:, phase]), float(change * math.sqrt(1 + (weights**2).sum()))


class _Level:
    """Simple exponential smoothing."""

    def __init__(self, rates: Floats) -> None:
        fits = [(self._errors(rates, float(weight)), float(weight)) for weight in _WEIGHTS]
        (self._level, errors), self._weight = min(fits, key=lambda fit: float((fit[0][1] ** 2).sum()))
        self._spread = float(np.sqrt((errors**2).mean())) if len(errors) else abs(self._level)

    @staticmethod
    def _errors(rates: Floats, weight: float) -> tuple[float, Floats]:
        level, errors = float(rates[0]), []
        for rate in rates[1:].tolist():
            errors.append(rate - level)
            level += weight * (rate - level)
        return level, np.array(errors)

    def at(self, steps: float) -> tuple[float, float]:
        """Return the rate ``steps`` stretches ahead, and its spread."""
        return self._level, self._spread * math.sqrt(1 + max(steps - 1, 0.0) * self._weight**2)
