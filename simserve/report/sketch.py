"""A small plot as a value: curves, steps, bars, points and words on one pair of axes, with a key.

`simserve.report.sketch_svg` writes it straight into a page, which takes a millisecond; `simserve.report.sketch_figure`
draws the same with Matplotlib, for a notebook, which takes half a second to import. Neither is imported here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from simserve.report.axes import INK, TEXT_POINTS, WIDTH_INCHES, log_ticks
from simserve.report.quantities import dollars, latency
from simserve.units import format_seconds

Floats = NDArray[np.float64]
Dashes = tuple[float, ...]  # Lengths of dashes and gaps, in line widths; empty: solid.
Shape = Literal["circle", "square", "triangle", "diamond", "wedge", "cross"]
"""Shape of a point; a wedge is a triangle on its tip."""
SOLID: Dashes = ()
DASHED: Dashes = (5.0, 2.0)
DOTTED: Dashes = (1.0, 1.65)
MAX_LINEAR_TICKS = 6
POINTS_AN_INCH = 72.0
KEY_LEFT, KEY_HANDLE, KEY_GAP, KEY_ROW = 8.0, 25.0, 16.0, 13.5
"""In points, for a key above the axes: left edge, width of a symbol, gap between entries, line spacing."""
_NARROW, _WIDE = frozenset("iljtfrI.,:;'|!()[] -/"), frozenset("mwMWGOQ%@&≤")
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)  # Leading digits of the distance between two ticks.
_ROOM = 1.05
_MARGIN = 0.05
_BETWEEN_POINTS = 5.0  # Least points between the words of two ticks.
_LEAST_SHARE = 0.15  # Least share of an axis between two ticks whose words include a unit.
_NEXT_TO = ((7.0, 5.0), (7.0, -13.0), (-7.0, 5.0), (-7.0, -13.0))
"""Places of words at a point, as (right, up) in points; with a negative ``right`` they end there."""
_FURTHER = ((7.0, 17.0), (7.0, -25.0), (-7.0, 17.0), (-7.0, -25.0))
_AIR = 1.5  # Points between words and whatever they must not cover.
_WIDE_TYPE = 1.1  # Factor on the width of words in a wide type such as DejaVu Sans, Matplotlib's.
_OTHER_WORDS, _OUTSIDE = 100, 1000  # What it counts to cover other words, and to leave the axes; a point counts 1.


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A line through points, each marked by a ``shape``, or by none."""

    x: Floats
    y: Floats
    color: str
    label: str = ""
    dashes: Dashes = SOLID
    width: float = 1.5
    shape: Shape | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Means over bins, one more edge than values; ``is_filled``: a pale area down to 0 instead of a line."""

    edges: Floats
    values: Floats
    color: str
    label: str = ""
    dashes: Dashes = SOLID
    is_filled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A part of the stacked bar of a sketch, from ``start`` along x; without a color only its outline."""

    start: float
    length: float
    color: str | None
    edge: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A vertical line over the whole height."""

    x: float
    color: str
    dashes: Dashes


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A horizontal line over the whole width."""

    y: float
    color: str
    dashes: Dashes


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A pale strip over the whole height, from ``low`` to ``high`` along x."""

    low: float
    high: float
    color: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A rectangle: ``left`` to ``right`` along x, ``thickness`` along y around ``y``."""

    left: float
    right: float
    y: float
    thickness: float
    color: str
    words: str = ""  # Words at the pointer; empty: its name and its ends.


@dataclass(frozen=True, slots=True, kw_only=True)
class Whiskers:
    """Intervals along x, ``reach`` to either side of each point, with a stroke at both ends."""

    x: Sequence[float]
    y: Sequence[float]
    reach: Sequence[float]
    color: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dots:
    """Points of one shape, ``size`` points wide; hollow ones are outlines without a fill."""

    x: Sequence[float]
    y: Sequence[float]
    color: str
    label: str = ""
    shape: Shape = "circle"
    is_hollow: bool = False
    opacity: float = 1.0
    size: float = 5.4
    names: Sequence[str] = ()  # Name of each point, for the pointer; empty without names.


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Words at a place, shifted by ``right`` and ``up`` points; ``y`` None: at the upper end of the axes."""

    text: str
    x: float
    y: float | None
    right: float
    up: float
    is_left_of: bool = False
    color: str = INK
    size: float = 8.0


Mark = Curve | Steps | Bar | Rule | Level | Band | Box | Whiskers | Dots | Note


NamedMark = Curve | Steps | Bar | Dots  # Marks that a key explains if they have a label.


@dataclass(slots=True, kw_only=True)
class Axis:
    """One of the two axes."""

    label: str = ""  # Its label.
    low: float = 0.0  # Its lower end.
    high: float = 1.0  # Its upper end.
    is_log: bool = False  # Whether it is logarithmic; both ends are above 0 then.
    ticks: Sequence[tuple[float, str]] | None = None  # Values and their words; None: round ones.
    words: Callable[[float], str] | None = None
    """Formats a round value; None: with separators, and enough digits to distinguish the ticks."""
    exact: Callable[[float], str] | None = None  # Formats the value at the pointer; None: three digits.
    is_whole: bool = False  # Whether only whole numbers are ticks.
    is_drawn: bool = True  # Whether there is a line along it.

    def share(self, value: float) -> float:
        """Return the position of a value along the axis, 0 to 1 inside."""
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def shares(self, values: Floats) -> Floats:
        """Return `share` of every value; on a logarithmic axis values that are not positive are far outside."""
        if self.is_log:
            return np.asarray(np.log(np.maximum(values, self.low * 1e-6) / self.low) / math.log(self.high / self.low))
        return np.asarray((values - self.low) / (self.high - self.low))

    @property
    def marked(self) -> list[tuple[float, str]]:
        """The ticks inside the axis with their words."""
        if self.ticks is not None:
            return [(value, text) for value, text in self.ticks if -1e-9 <= self.share(value) <= 1 + 1e-9]
        values = (
            log_ticks(self.low, self.high) if self.is_log else linear_ticks(self.low, self.high, is_whole=self.is_whole)
        )
        if self.words is not None:
            return [(value, self.words(value)) for value in values]
        step = values[1] - values[0] if len(values) > 1 else 1.0
        digits = next((places for places in range(4) if abs(round(step, places) - step) < 1e-6 * step), 4)
        return [(value, f"{value:,.{digits}f}") for value in values]


def linear_ticks(low: float, high: float, *, is_whole: bool = False) -> list[float]:
    """Return at most seven round values from ``low`` to ``high``, evenly spread."""
    least = (high - low) / MAX_LINEAR_TICKS
    decade = 10.0 ** math.floor(math.log10(least))
    step = next(digit * decade for digit in _STEPS if digit * decade >= least * (1 - 1e-9))
    if is_whole:
        step = max(math.ceil(step), 1)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [place * step for place in range(first, last + 1)]


@dataclass(slots=True, kw_only=True)
class Sketch:
    """One plot, 4.6 inches wide."""

    height: float = 3.1  # Inches.
    left: float = 0.17  # Share of the width at which the axes start; they end at ``right``.
    right: float = 0.96  # See ``left``.
    bottom: float = 0.16  # Share of the height, from below, like ``top``.
    top: float = 0.86  # See ``bottom``.
    x: Axis = field(default_factory=Axis)  # The horizontal axis.
    y: Axis = field(default_factory=Axis)  # The vertical axis.
    marks: list[Mark] = field(default_factory=list)  # What is drawn; earlier marks are below later ones.
    title: str = ""  # Words above the axes, on the left.
    key: Literal["above", "below"] | None = "above"
    """Where the labels of the marks are explained; None without a key."""
    has_grid: bool = True  # Whether lines cross the axes at the ticks.
    instead: str = ""  # Words in place of axes and marks; empty for none.

    @property
    def named(self) -> list[NamedMark]:
        """The marks that the key explains, each label once."""
        if self.key is None:
            return []
        found: dict[str, NamedMark] = {}
        for mark in self.marks:
            if isinstance(mark, NamedMark) and mark.label:
                found.setdefault(mark.label, mark)
        return list(found.values())

    @property
    def key_rows(self) -> list[list[NamedMark]]:
        """The lines of a key above the axes, each as full as it can be."""
        rows: list[list[NamedMark]] = []
        room = 0.0
        for mark in self.named:
            width = KEY_HANDLE + text_width(mark.label, TEXT_POINTS)
            if not rows or width > room:
                rows.append([])
                room = WIDTH_INCHES * POINTS_AN_INCH - KEY_LEFT
            rows[-1].append(mark)
            room -= width + KEY_GAP
        return rows


def text_width(text: str, size: float) -> float:
    """Return the approximate width of a text in the sans serif type of a page, in points like ``size``."""
    return size * sum(0.32 if each in _NARROW else 0.9 if each in _WIDE else 0.58 for each in text)


def add_name(sketch: Sketch, text: str, x: float, y: float, *, is_needed: bool = False) -> None:
    """Add words beside a point where they cover the fewest points of the plot.

    Where they would cover other words or leave the axes wherever they are put, they are left out, unless they are
    needed.

    Args:
        is_needed: Whether they are never left out; they may then be a line further away.
    """
    places = (*_NEXT_TO, *_FURTHER) if is_needed else _NEXT_TO
    notes = [Note(text=text, x=x, y=y, right=right, up=up, is_left_of=right < 0) for right, up in places]
    counted = [_covered(sketch, note) for note in notes]
    least = min(counted)
    if is_needed or least < _OTHER_WORDS:
        sketch.marks.append(notes[counted.index(least)])


_Rectangle = tuple[float, float, float, float]  # Left, lower, right and upper end in points.


def _covered(sketch: Sketch, note: Note) -> int:
    own, left = _rectangle(sketch, note), sketch.left * WIDTH_INCHES * POINTS_AN_INCH
    right = WIDTH_INCHES * POINTS_AN_INCH
    found = _OUTSIDE * (own[0] < left or own[2] > right)
    for mark in sketch.marks:
        if isinstance(mark, Note) and mark.y is not None:
            found += _OTHER_WORDS * _overlap(own, _rectangle(sketch, mark))
        elif isinstance(mark, Dots):
            for x, y in zip(mark.x, mark.y, strict=True):
                at, height, half = *_place(sketch, x, y), mark.size / 2
                found += _overlap(own, (at - half, height - half, at + half, height + half))
    return found


def _rectangle(sketch: Sketch, note: Note) -> _Rectangle:
    assert note.y is not None
    x, y = _place(sketch, note.x, note.y)
    width, below = _WIDE_TYPE * text_width(note.text, note.size), y + note.up
    left = x + note.right - note.is_left_of * width
    return left, below - 0.2 * note.size, left + width, below + 0.8 * note.size


def _overlap(one: _Rectangle, other: _Rectangle) -> bool:
    beside = one[2] + _AIR <= other[0] or other[2] + _AIR <= one[0]
    return not (beside or one[3] + _AIR <= other[1] or other[3] + _AIR <= one[1])


def _place(sketch: Sketch, x: float, y: float) -> tuple[float, float]:
    """Return a place in points from the lower left corner."""
    right = sketch.left + (sketch.right - sketch.left) * sketch.x.share(x)
    up = sketch.bottom + (sketch.top - sketch.bottom) * sketch.y.share(y)
    return right * WIDTH_INCHES * POINTS_AN_INCH, up * sketch.height * POINTS_AN_INCH


def area(edges: Floats, values: Floats, color: str, label: str = "", filled: str = "") -> list[Mark]:
    """Return means over bins as a line above an area of the same colour, or of the colour ``filled``."""
    return [
        Steps(edges=edges, values=values, color=filled or color, is_filled=True),
        Steps(edges=edges, values=values, color=color, label=label),
    ]


def bar_sketch(label: str, end: float, bars: Sequence[Bar]) -> Sketch:
    """Return one stacked bar along an axis from 0 to ``end``, its parts named below."""
    return Sketch(
        height=1.75,
        left=0.02,
        right=0.95,
        bottom=0.62,
        top=0.98,
        x=Axis(label=label, high=end, is_drawn=False),
        y=Axis(ticks=(), is_drawn=False),
        marks=list(bars),
        key="below",
        has_grid=False,
    )


def log_time(reach: Iterable[float], label: str = "time, logarithmic") -> Axis:
    """Return a logarithmic axis of times whose ticks carry their unit.

    Args:
        reach: Seconds that must be visible; values that are not positive cannot be.
    """
    low, high = log_reach(reach) or (0.01, 1.0)
    low, high = low / 1.1, high * 1.1
    if high < 3 * low:
        low, high = low / 2, high * 2
    axis = Axis(label=label, low=low, high=high, is_log=True, exact=lambda seconds: latency(1e3 * seconds))
    ticks: list[float] = []
    for tick in log_ticks(low, high):
        # Even steps get closer and closer: words that would overlap their neighbour's are left out.
        if not ticks or axis.share(tick) - axis.share(ticks[-1]) >= _LEAST_SHARE:
            ticks.append(tick)
    # Above a second always in seconds, as 200 s is not a round number of minutes.
    axis.ticks = [(tick, format_seconds(tick) if tick < 1 else f"{tick:,.10g} s") for tick in ticks]
    return axis


def log_reach(values: Iterable[float]) -> tuple[float, float] | None:
    """Return the smallest and the largest of the positive finite values; None without any."""
    seen = [value for value in values if value > 0 and math.isfinite(value)]
    return (min(seen), max(seen)) if seen else None


def from_zero(label: str, values: Iterable[float], words: Callable[[float], str] | None = None) -> Axis:
    """Return an axis from 0 to a little above the largest of ``values``; ``label`` includes the unit."""
    most = max((value for value in values if math.isfinite(value)), default=0.0)
    return Axis(label=label, high=_ROOM * most if most > 0 else 1.0, words=words)


def around(label: str, values: Sequence[float], words: Callable[[float], str] | None = None) -> Axis:
    """Return an axis from a little below the smallest to a little above the largest of ``values``."""
    low, high = min(values), max(values)
    margin = _MARGIN * (high - low) or _MARGIN * abs(high) or 1.0
    return Axis(label=label, low=low - margin, high=high + margin, words=words)


def spaced(axis: Axis, points: float) -> Axis:
    """Return a linear axis with as many of its ticks as have room for their words; 0 remains a tick.

    Args:
        axis: Horizontal, ``points`` long.
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
    """Return dollars at a tick, whole dollars without cents."""
    if abs(value) < 1e-9:
        return "$0"
    if abs(value) >= 1 and abs(value - round(value)) < 1e-9 * abs(value):
        return f"{'-' if value < 0 else ''}${abs(value):,.0f}"
    return dollars(value) if value > 0 else f"-{dollars(-value)}"
