"""Axes that hold given values, with room around them and ticks in the words of their unit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from simserve.report.axes import TEXT_POINTS, log_ticks
from simserve.report.quantities import dollars, latency
from simserve.report.sketch import Axis, text_width
from simserve.units import format_seconds

_ROOM = 1.05
_MARGIN = 0.05
_BETWEEN_POINTS = 5.0
"""Between the words of two ticks."""
_LEAST_SHARE = 0.15
"""Of an axis between two ticks whose words carry a unit."""


def log_time(reach: Iterable[float], label: str = "time, logarithmic") -> Axis:
    """Return a logarithmic axis of times whose ticks carry their unit.

    Args:
        reach: Seconds that must be seen; those that are not positive cannot be.
        label: What the axis says.
    """
    low, high = log_reach(reach) or (0.01, 1.0)
    low, high = low / 1.1, high * 1.1
    if high < 3 * low:
        low, high = low / 2, high * 2
    axis = Axis(label=label, low=low, high=high, is_log=True, told=lambda seconds: latency(1e3 * seconds))
    ticks: list[float] = []
    for tick in log_ticks(low, high):
        # Even steps lie closer and closer: what would stand on its neighbour's words is left out.
        if not ticks or axis.share(tick) - axis.share(ticks[-1]) >= _LEAST_SHARE:
            ticks.append(tick)
    axis.ticks = [(tick, _time_words(tick)) for tick in ticks]
    return axis


def log_reach(values: Iterable[float]) -> tuple[float, float] | None:
    """Return the smallest and the largest of the positive finite values; None without any."""
    seen = [value for value in values if value > 0 and math.isfinite(value)]
    return (min(seen), max(seen)) if seen else None


def from_zero(label: str, values: Iterable[float], words: Callable[[float], str] | None = None) -> Axis:
    """Return an axis from 0 to a little above the largest of ``values``, ``label`` with its unit beside it."""
    most = max((value for value in values if math.isfinite(value)), default=0.0)
    return Axis(label=label, high=_ROOM * most if most > 0 else 1.0, words=words)


def around(label: str, values: Sequence[float], words: Callable[[float], str] | None = None) -> Axis:
    """Return an axis from a little below the smallest to a little above the largest of ``values``."""
    low, high = min(values), max(values)
    margin = _MARGIN * (high - low) or _MARGIN * abs(high) or 1.0
    return Axis(label=label, low=low - margin, high=high + margin, words=words)


def spaced(axis: Axis, points: float) -> Axis:
    """Return a linear axis with as many of its ticks as have room for their words; 0 stays one.

    Args:
        axis: Horizontal, ``points`` long.
        points: See ``axis``.
    """
    ticks = axis.marked
    a_unit = points / (axis.high - axis.low)
    while len(ticks) > 2 and any(
        a_unit * (right - left) < _BETWEEN_POINTS + text_width(word + other, TEXT_POINTS) / 2
        for (left, word), (right, other) in pairwise(ticks)
    ):
        zero = next((place for place, (value, _) in enumerate(ticks) if abs(value) < 1e-9), 0)
        ticks = ticks[zero % 2 :: 2]
    return replace(axis, ticks=ticks)


def dollar_words(value: float) -> str:
    """Return dollars at a tick, whole ones without cents."""
    if abs(value) < 1e-9:
        return "$0"
    if abs(value) >= 1 and abs(value - round(value)) < 1e-9 * abs(value):
        return f"{'-' if value < 0 else ''}${abs(value):,.0f}"
    return dollars(value) if value > 0 else f"-{dollars(-value)}"


def _time_words(seconds: float) -> str:
    """Return a round time; above a second in seconds throughout, as 200 s is no round number of minutes."""
    return format_seconds(seconds) if seconds < 1 else f"{seconds:,.10g} s"
