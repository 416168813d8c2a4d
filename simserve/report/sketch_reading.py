"""What a pointer reads in a sketch: at the nearest place along an axis, or at the nearest point, the values in words.

Knows values, not where they are drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from simserve.report.quantities import number
from simserve.report.sketch import Axis, Bar, Box, Curve, Dots, Sketch, Steps

Nearest = Literal["x", "y", "both"]
"""By what the nearest spot is found."""

MOST_PLACES = 80
"""Places along a curve; a pointer does not tell more apart."""
_INSIDE = 1e-9


@dataclass(frozen=True, slots=True)
class Spot:
    """One place of a sketch: where it is, its words, and the values that get a dot, each with its colour."""

    x: float
    y: float
    words: str
    dots: Sequence[tuple[float, str]] = ()


def spots(sketch: Sketch) -> tuple[Nearest, list[Spot]]:
    """Return by what the nearest spot is found, and the spots from left to right, of rows from above; maybe none."""
    lines = [mark for mark in sketch.marks if isinstance(mark, Curve | Steps)]
    bars = [mark for mark in sketch.marks if isinstance(mark, Bar) and mark.label]
    boxes = [mark for mark in sketch.marks if isinstance(mark, Box)]
    if bars:
        return "x", [Spot(each.start + each.length / 2, 0.5, each.label) for each in bars]
    if boxes:
        return "y", [_box_spot(sketch, each) for each in sorted(boxes, key=lambda each: each.y)]
    if lines and not any(isinstance(mark, Dots) and mark.names for mark in sketch.marks):
        return "x", _line_spots(sketch, lines)
    return "both", sorted(_dot_spots(sketch), key=lambda spot: spot.x)


def _told(axis: Axis, value: float) -> str:
    """Return a value in words: that of a tick where ticks are names, else with its unit or three digits."""
    if axis.told is None and axis.ticks is not None and not axis.is_log:
        near = min(axis.ticks, key=lambda tick: abs(tick[0] - value), default=None)
        if near is not None and not _is_figure(near[1]):
            return near[1]
    if axis.told is not None:
        return axis.told(value)
    return number(value) if axis.words is None else axis.words(float(f"{value:.3g}"))


def _is_figure(text: str) -> bool:
    return text.lstrip("+-$")[:1].isdigit()


def _name(axis: Axis) -> str:
    return axis.label.replace(", logarithmic", "")


def _inside(axis: Axis, value: float) -> bool:
    if not math.isfinite(value) or (axis.is_log and value <= 0):
        return False
    return -_INSIDE <= axis.share(value) <= 1 + _INSIDE


def _line_spots(sketch: Sketch, lines: Sequence[Curve | Steps]) -> list[Spot]:
    places = np.unique(np.concatenate([each.edges if isinstance(each, Steps) else each.x for each in lines]))
    places = np.array([value for value in places.tolist() if _inside(sketch.x, value)])
    if len(places) > MOST_PLACES:
        places = places[np.unique(np.linspace(0, len(places) - 1, MOST_PLACES).round().astype(int))]
    found = []
    for at in places.tolist():
        words, dots = [f"{_name(sketch.x)}: {_told(sketch.x, at)}".removeprefix(": ")], []
        for line in lines:
            value = _value(line, at)
            if math.isfinite(value):
                words.append(f"{line.label or _name(sketch.y)}: {_told(sketch.y, value)}")
                dots += [(value, line.color)] if _inside(sketch.y, value) else []
        if len(words) > 1:
            found.append(Spot(at, dots[0][0] if dots else sketch.y.high, "\n".join(words), dots))
    return found


def _value(line: Curve | Steps, at: float) -> float:
    """Return the value of a line at a place along x; NaN where it is not drawn."""
    if isinstance(line, Steps):
        place = int(np.searchsorted(line.edges, at, side="right")) - 1
        return float(line.values[place]) if 0 <= place < len(line.values) else math.nan
    if not len(line.x) or not line.x[0] <= at <= line.x[-1]:
        return math.nan
    return float(np.interp(at, line.x, line.y))


def _dot_spots(sketch: Sketch) -> list[Spot]:
    found = []
    for mark in sketch.marks:
        if not isinstance(mark, Dots) or not (mark.label or mark.names):
            continue
        names = mark.names or (mark.label,) * len(mark.x)
        for x, y, name in zip(mark.x, mark.y, names, strict=True):
            if _inside(sketch.x, x) and _inside(sketch.y, y):
                told = [f"{_name(axis)}: {_told(axis, value)}" for axis, value in ((sketch.x, x), (sketch.y, y))]
                words = "\n".join([name, *(each.removeprefix(": ") for each in told)])
                found.append(Spot(x, y, words, [(y, mark.color)]))
    return found


def _box_spot(sketch: Sketch, box: Box) -> Spot:
    low, high = _told(sketch.x, box.left), _told(sketch.x, box.right)
    words = box.words or f"{_told(sketch.y, box.y)}\n{_name(sketch.x)}: from {low} to {high}"
    return Spot(min(max(box.left, sketch.x.low), sketch.x.high), box.y, words)
