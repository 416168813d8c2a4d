"""A sketch as an ``<svg>`` inside a page: its colours and type follow the page, nothing is fetched.

A pointer shows the values at the nearest place along an axis, or at the nearest point, in words. Lengths are points, 72
to the inch. The same sketch gives the same text. Knows no Matplotlib.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from simserve.report.axes import COLOR_ROLES, GRID, INK, TEXT_POINTS, WIDTH_INCHES
from simserve.report.quantities import number
from simserve.report.sketch import (
    KEY_GAP,
    KEY_HANDLE,
    KEY_LEFT,
    KEY_ROW,
    POINTS_AN_INCH,
    Axis,
    Band,
    Bar,
    Box,
    Curve,
    Dashes,
    Dots,
    Floats,
    Level,
    Mark,
    NamedMark,
    Note,
    Rule,
    Shape,
    Sketch,
    Steps,
    Whiskers,
    text_width,
)

Nearest = Literal["x", "y", "both"]  # The coordinate by which the nearest spot is found.
_TICK = 3.0
_PAD = 3.5  # Points between a tick and its words.
_HANDLE = 18.0
_CURVE_DOT = 4.4
_END = 2.6  # Half the length of the stroke at the end of an interval.
_BAR_SHARE = 0.91  # Share of the height of the axes that a bar takes.
_OUTLINES: dict[Shape, tuple[tuple[float, float], ...]] = {
    "square": ((-0.5, -0.5), (0.5, -0.5), (0.5, 0.5), (-0.5, 0.5)),
    "triangle": ((0.0, -0.55), (0.6, 0.5), (-0.6, 0.5)),
    "wedge": ((0.0, 0.55), (0.6, -0.5), (-0.6, -0.5)),
    "diamond": ((0.0, -0.66), (0.66, 0.0), (0.0, 0.66), (-0.66, 0.0)),
}
"""Corners of a shape around its middle, in widths."""
MOST_PLACES = 80  # Most places along a curve; a pointer cannot distinguish more.
_INSIDE = 1e-9


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where the axes are, in points from the upper left corner of the picture."""

    sketch: Sketch
    left: float
    right: float
    upper: float
    lower: float

    def x(self, value: float) -> float:
        return self.left + self.sketch.x.share(value) * (self.right - self.left)

    def y(self, value: float) -> float:
        return self.lower - self.sketch.y.share(value) * (self.lower - self.upper)

    def xs(self, values: Floats) -> Floats:
        return np.asarray(self.left + self.sketch.x.shares(np.asarray(values)) * (self.right - self.left))

    def ys(self, values: Floats) -> Floats:
        return np.asarray(self.lower - self.sketch.y.shares(np.asarray(values)) * (self.lower - self.upper))


def sketch_svg(sketch: Sketch, name: str, description: str) -> str:
    """Return a sketch as one ``<svg>`` element.

    Args:
        name: Unique in the page; letters, digits and dashes.
        description: Text for a reader who cannot see it.
    """
    width, height = WIDTH_INCHES * POINTS_AN_INCH, sketch.height * POINTS_AN_INCH
    upper = 0.0
    frame = _Frame(
        sketch, sketch.left * width, sketch.right * width, (1 - sketch.top) * height, (1 - sketch.bottom) * height
    )
    reading = ""
    if sketch.instead:
        middle = (frame.upper + frame.lower) / 2
        parts = [_text(sketch.instead, (frame.left + frame.right) / 2, middle, anchor="middle")]
    else:
        key, upper, lower = _key(sketch, height)
        height = max(height, lower) - upper
        parts = [*_grid(frame), *_clipped(frame, name), *_axes(frame), *_words(frame), *key]
        reading = _reading(frame)
    content = "\n".join(parts)
    box = f"0 {_number(upper)} {_number(width)} {_number(height)}"
    return f'<svg role="img" aria-label="{html.escape(description)}" viewBox="{box}"{reading}>\n{content}\n</svg>'


def _reading(frame: _Frame) -> str:
    """Return what the pointer shows, as an attribute: the spots with their words, and how the nearest one is found."""
    axis, found = spots(frame.sketch)
    if not found:
        return ""
    placed = [
        [
            round(frame.x(each.x), 1),
            round(frame.y(each.y), 1),
            each.words,
            [[round(frame.x(each.x), 1), round(frame.y(y), 1), _color(color)] for y, color in each.dots],
        ]
        for each in found
    ]
    edges = {"left": frame.left, "right": frame.right, "top": frame.upper, "bottom": frame.lower}
    room = {name: round(edge, 1) for name, edge in edges.items()}
    text = json.dumps({"axis": axis, "room": room, "spots": placed}, separators=(",", ":"), ensure_ascii=False)
    return f' data-spots="{html.escape(text)}"'


def _grid(frame: _Frame) -> Iterator[str]:
    if not frame.sketch.has_grid:
        return
    for value, _ in frame.sketch.x.marked:
        yield _line((frame.x(value), frame.upper), (frame.x(value), frame.lower), GRID, 0.6)
    for value, _ in frame.sketch.y.marked:
        yield _line((frame.left, frame.y(value)), (frame.right, frame.y(value)), GRID, 0.6)


def _clipped(frame: _Frame, name: str) -> Iterator[str]:
    """Yield the marks that are clipped at the axes."""
    place = _place(frame.left, frame.upper, frame.right - frame.left, frame.lower - frame.upper)
    yield f'<clipPath id="{name}-axes"><rect {place}/></clipPath>'
    yield f'<g clip-path="url(#{name}-axes)">'
    for mark in frame.sketch.marks:
        yield from _drawn(frame, mark)
    yield "</g>"


def _drawn(frame: _Frame, mark: Mark) -> Iterator[str]:
    match mark:
        case Curve():
            xs, ys = frame.xs(mark.x), frame.ys(mark.y)
            yield _path(_through(xs, ys), mark.color, mark.width, mark.dashes)
            if mark.shape is not None:
                yield from _points(xs, ys, mark.color, mark.shape, _CURVE_DOT)
        case Steps():
            xs = np.repeat(frame.xs(mark.edges), 2)[1:-1]
            ys = np.repeat(frame.ys(mark.values), 2)
            if mark.is_filled:
                ground = frame.y(0.0)
                outline = _through(np.r_[xs[0], xs, xs[-1]], np.r_[ground, ys, ground])
                yield f'<path d="{outline}z" fill="{_color(mark.color)}" fill-opacity="0.5"/>'
            else:
                yield _path(_through(xs, ys), mark.color, 1.2, mark.dashes)
        case Bar():
            start, end, height = frame.x(mark.start), frame.x(mark.start + mark.length), frame.lower - frame.upper
            margin = height * (1 - _BAR_SHARE) / 2
            yield _rect(start, frame.upper + margin, end - start, height - 2 * margin, mark)
        case Rule():
            x = frame.x(mark.x)
            yield _line((x, frame.upper), (x, frame.lower), mark.color, 1.0, mark.dashes)
        case Level():
            y = frame.y(mark.y)
            yield _line((frame.left, y), (frame.right, y), mark.color, 1.0, mark.dashes)
        case Band():
            left, right = frame.x(mark.low), frame.x(mark.high)
            place = _place(left, frame.upper, right - left, frame.lower - frame.upper)
            yield f'<rect {place} fill="{_color(mark.color)}" fill-opacity="0.25"/>'
        case Box():
            left, right = sorted((frame.x(mark.left), frame.x(mark.right)))
            upper, lower = sorted(frame.y(mark.y + sign * mark.thickness / 2) for sign in (-1, 1))
            yield f'<rect {_place(left, upper, right - left, lower - upper)} fill="{_color(mark.color)}"/>'
        case Whiskers():
            for x, y, reach in zip(mark.x, mark.y, mark.reach, strict=True):
                left, right, height = frame.x(x - reach), frame.x(x + reach), frame.y(y)
                yield _line((left, height), (right, height), mark.color, 1.2)
                for end in (left, right):
                    yield _line((end, height - _END), (end, height + _END), mark.color, 1.2)
        case Dots():
            xs, ys = frame.xs(np.array(mark.x)), frame.ys(np.array(mark.y))
            yield from _points(
                xs, ys, mark.color, mark.shape, mark.size, is_hollow=mark.is_hollow, opacity=mark.opacity
            )


def _points(
    xs: Floats, ys: Floats, color: str, shape: Shape, size: float, *, is_hollow: bool = False, opacity: float = 1.0
) -> Iterator[str]:
    """Yield points that look the same, with their colour written once."""
    paint = f'fill="none" {_stroke(color, 1.1, ())}' if is_hollow or shape == "cross" else f'fill="{_color(color)}"'
    faint = "" if opacity == 1.0 else f' opacity="{opacity:g}"'
    yield f"<g {paint}{faint}>"
    for x, y in zip(xs.tolist(), ys.tolist(), strict=True):
        if shape == "circle":
            yield f'<circle cx="{_number(x)}" cy="{_number(y)}" r="{_number(size / 2)}"/>'
        elif shape == "cross":
            left, right, upper, lower = (
                _number(each) for each in (x - size / 2, x + size / 2, y - size / 2, y + size / 2)
            )
            yield f'<path d="M{left} {upper}L{right} {lower}M{left} {lower}L{right} {upper}"/>'
        else:
            corners = (f"{_number(x + size * dx)} {_number(y + size * dy)}" for dx, dy in _OUTLINES[shape])
            yield f'<path d="M{"L".join(corners)}z"/>'
    yield "</g>"


def _axes(frame: _Frame) -> Iterator[str]:
    """Yield lines, ticks and their words, and the labels of the axes."""
    x, y = frame.sketch.x, frame.sketch.y
    if x.is_drawn:
        yield _line((frame.left, frame.lower), (frame.right, frame.lower), INK, 0.8)
    if y.is_drawn:
        yield _line((frame.left, frame.upper), (frame.left, frame.lower), INK, 0.8)
    for value, text in x.marked:
        place = frame.x(value)
        yield _line((place, frame.lower), (place, frame.lower + _TICK), INK, 0.8)
        # The word at an end of the axis stays inside the picture.
        place = min(place, WIDTH_INCHES * POINTS_AN_INCH - text_width(text, TEXT_POINTS) / 2)
        yield _text(text, place, frame.lower + _TICK + _PAD + 0.75 * TEXT_POINTS, anchor="middle")
    for value, text in y.marked:
        place = frame.y(value)
        yield _line((frame.left - _TICK, place), (frame.left, place), INK, 0.8)
        yield _text(text, frame.left - _TICK - _PAD, place + 0.36 * TEXT_POINTS, anchor="end")
    if x.label:
        below = frame.lower + _TICK + _PAD + 2.2 * TEXT_POINTS
        yield _text(x.label, (frame.left + frame.right) / 2, below, anchor="middle")
    if y.label:  # to the left of the words at the ticks
        widest = max((text_width(text, TEXT_POINTS) for _, text in y.marked), default=0.0)
        place, middle = max(frame.left - _TICK - _PAD - widest - 6.0, TEXT_POINTS), (frame.upper + frame.lower) / 2
        turned = f'transform="rotate(-90 {_number(place)} {_number(middle)})"'
        yield _text(y.label, place, middle, anchor="middle", more=turned)


def _words(frame: _Frame) -> Iterator[str]:
    """Yield notes and the title."""
    for mark in frame.sketch.marks:
        if isinstance(mark, Note):
            y = frame.upper if mark.y is None else frame.y(mark.y)
            anchor = "end" if mark.is_left_of else "start"
            where = frame.x(mark.x) + mark.right, y - mark.up
            yield _text(mark.text, *where, color=mark.color, size=mark.size, anchor=anchor, more='class="halo"')
    if frame.sketch.title:
        yield _text(frame.sketch.title, frame.left, frame.upper - 6.0)


def _key(sketch: Sketch, height: float) -> tuple[list[str], float, float]:
    """Return the key, and how far up and down it extends: above 0 if it takes more than one line."""
    parts: list[str] = []
    if sketch.key == "above":
        rows = sketch.key_rows
        upper = -KEY_ROW * max(len(rows) - 1, 0)
        for place, row in enumerate(rows):
            x = KEY_LEFT
            for mark in row:
                parts += _entry(mark, x, 1.35 * TEXT_POINTS + upper + place * KEY_ROW)
                x += KEY_HANDLE + text_width(mark.label, TEXT_POINTS) + KEY_GAP
        return parts, upper, 0.0
    named = sketch.named
    if not named:
        return [], 0.0, 0.0
    first = 0.64 * height + 1.6 * TEXT_POINTS
    in_column = -(-len(named) // 2)
    second = KEY_LEFT + 31.0 + max(text_width(mark.label, TEXT_POINTS) for mark in named[:in_column])
    for place, mark in enumerate(named):
        column, line = divmod(place, in_column)
        parts += _entry(mark, second if column else KEY_LEFT, first + line * KEY_ROW)
    return parts, 0.0, first + (in_column - 1) * KEY_ROW + 5.0


def _entry(mark: NamedMark, x: float, y: float) -> Iterator[str]:
    """Yield the symbol and label of a mark; ``y`` is the baseline of its words."""
    middle = y - 0.33 * TEXT_POINTS
    if isinstance(mark, Bar):
        side = 0.9 * TEXT_POINTS
        yield _rect(x, y - 0.85 * side, side, side, mark)
        yield _text(mark.label, x + 15.0, y)
        return
    place = np.array([x + _HANDLE / 2]), np.array([middle])
    if isinstance(mark, Dots):
        yield from _points(*place, mark.color, mark.shape, max(mark.size, 5.0), is_hollow=mark.is_hollow)
    else:
        width = mark.width if isinstance(mark, Curve) else 1.2
        yield _line((x, middle), (x + _HANDLE, middle), mark.color, width, mark.dashes)
        if isinstance(mark, Curve) and mark.shape is not None:
            yield from _points(*place, mark.color, mark.shape, _CURVE_DOT)
    yield _text(mark.label, x + KEY_HANDLE, y)


def _through(xs: Floats, ys: Floats) -> str:
    """Return a path through points, without those that a reader could not tell from a straight line."""
    points = list(zip(np.round(xs, 2).tolist(), np.round(ys, 2).tolist(), strict=True))
    kept = [
        point
        for place, point in enumerate(points)
        if place in (0, len(points) - 1)
        or not any(points[place - 1][way] == point[way] == points[place + 1][way] for way in (0, 1))
    ]
    return "M" + "L".join(f"{_number(x)} {_number(y)}" for x, y in kept)


def _path(path: str, color: str, width: float, dashes: Dashes) -> str:
    return f'<path d="{path}" fill="none" {_stroke(color, width, dashes)}/>'


def _line(start: tuple[float, float], end: tuple[float, float], color: str, width: float, dashes: Dashes = ()) -> str:
    (x1, y1), (x2, y2) = start, end
    return f'<path d="M{_number(x1)} {_number(y1)}L{_number(x2)} {_number(y2)}" {_stroke(color, width, dashes)}/>'


def _stroke(color: str, width: float, dashes: Sequence[float]) -> str:
    pattern = " ".join(_number(length * width) for length in dashes)
    return f'stroke="{_color(color)}" stroke-width="{width}"' + (f' stroke-dasharray="{pattern}"' if pattern else "")


def _place(x: float, y: float, width: float, height: float) -> str:
    return f'x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" height="{_number(height)}"'


def _rect(x: float, y: float, width: float, height: float, bar: Bar) -> str:
    fill = "none" if bar.color is None else _color(bar.color)
    return f'<rect {_place(x, y, width, height)} fill="{fill}" stroke="{_color(bar.edge)}" stroke-width="0.6"/>'


def _text(
    text: str, x: float, y: float, *, color: str = INK, size: float = TEXT_POINTS, anchor: str = "start", more: str = ""
) -> str:
    place = f'x="{_number(x)}" y="{_number(y)}" font-size="{size:g}" fill="{_color(color)}"'
    anchored = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f"<text {place}{anchored}{' ' + more if more else ''}>{html.escape(text, quote=False)}</text>"


def _color(color: str) -> str:
    role = COLOR_ROLES.get(color)
    return color if role is None else f"var(--{role})"


def _number(value: float) -> str:
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


@dataclass(frozen=True, slots=True)
class Spot:
    """One place of a sketch: where it is, its words, and the values that get a dot, each with its colour."""

    x: float
    y: float
    words: str
    dots: Sequence[tuple[float, str]] = ()


def spots(sketch: Sketch) -> tuple[Nearest, list[Spot]]:
    """Return the coordinate that finds the nearest spot, and the spots from left to right, rows from the top."""
    lines = [mark for mark in sketch.marks if isinstance(mark, Curve | Steps)]
    bars = [mark for mark in sketch.marks if isinstance(mark, Bar) and mark.label]
    boxes = [mark for mark in sketch.marks if isinstance(mark, Box)]
    if bars:
        return "x", [Spot(each.start + each.length / 2, 0.5, each.label) for each in bars]
    if boxes:
        found = []
        for box in sorted(boxes, key=lambda each: each.y):
            low, high = _pointer_text(sketch.x, box.left), _pointer_text(sketch.x, box.right)
            words = box.words or f"{_pointer_text(sketch.y, box.y)}\n{_name(sketch.x)}: from {low} to {high}"
            found.append(Spot(min(max(box.left, sketch.x.low), sketch.x.high), box.y, words))
        return "y", found
    if lines and not any(isinstance(mark, Dots) and mark.names for mark in sketch.marks):
        return "x", _line_spots(sketch, lines)
    return "both", sorted(_dot_spots(sketch), key=lambda spot: spot.x)


def _pointer_text(axis: Axis, value: float) -> str:
    """Return a value in words: the words of the tick if ticks are names, else with its unit or three digits."""
    if axis.exact is None and axis.ticks is not None and not axis.is_log:
        near = min(axis.ticks, key=lambda tick: abs(tick[0] - value), default=None)
        if near is not None and not near[1].lstrip("+-$")[:1].isdigit():
            return near[1]
    if axis.exact is not None:
        return axis.exact(value)
    return number(value) if axis.words is None else axis.words(float(f"{value:.3g}"))


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
        words, dots = [f"{_name(sketch.x)}: {_pointer_text(sketch.x, at)}".removeprefix(": ")], []
        for line in lines:
            value = _value(line, at)
            if math.isfinite(value):
                words.append(f"{line.label or _name(sketch.y)}: {_pointer_text(sketch.y, value)}")
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
                lines = [
                    f"{_name(axis)}: {_pointer_text(axis, value)}" for axis, value in ((sketch.x, x), (sketch.y, y))
                ]
                words = "\n".join([name, *(each.removeprefix(": ") for each in lines)])
                found.append(Spot(x, y, words, [(y, mark.color)]))
    return found
