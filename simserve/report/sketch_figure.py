"""A sketch as a Matplotlib figure, which a notebook displays and a reader can change. Imports Matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simserve.report.axes import INK, canvas, key_below, legend
from simserve.report.sketch import (
    KEY_ROW,
    POINTS_AN_INCH,
    Band,
    Bar,
    Box,
    Curve,
    Dashes,
    Dots,
    Level,
    Mark,
    Note,
    Rule,
    Shape,
    Sketch,
    Steps,
    Whiskers,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_MARKERS: dict[Shape, str] = {"circle": "o", "square": "s", "triangle": "^", "diamond": "D", "wedge": "v", "cross": "x"}


def sketch_figure(sketch: Sketch) -> Figure:
    """Return a sketch as a figure."""
    from matplotlib.ticker import NullLocator

    rows = sketch.key_rows if sketch.key == "above" else []
    height = sketch.height + KEY_ROW / POINTS_AN_INCH * max(len(rows) - 1, 0)
    bottom, top = (share * sketch.height / height for share in (sketch.bottom, sketch.top))
    figure, axes = canvas(height=height, left=sketch.left, right=sketch.right, bottom=bottom, top=top)
    if sketch.instead:
        axes.set_axis_off()
        axes.text(0.5, 0.5, sketch.instead, transform=axes.transAxes, ha="center", color=INK)
        return figure
    for mark in sketch.marks:
        _draw(axes, mark)
    for name, axis, drawn in (("x", sketch.x, axes.xaxis), ("y", sketch.y, axes.yaxis)):
        axes.set(**{f"{name}scale": "log" if axis.is_log else "linear", f"{name}label": axis.label})
        if not any(isinstance(mark, Bar) for mark in sketch.marks) or name == "x":
            axes.set(**{f"{name}lim": (axis.low, axis.high)})
        drawn.set_minor_locator(NullLocator())
        ticks = axis.marked
        drawn.set_ticks([value for value, _ in ticks], [text for _, text in ticks])
    axes.spines["bottom"].set_visible(sketch.x.is_drawn)
    axes.spines["left"].set_visible(sketch.y.is_drawn)
    if not sketch.has_grid:
        axes.grid(False)
    if sketch.title:
        axes.set_title(sketch.title, fontsize=9, loc="left", color=INK)
    if sketch.key == "above":
        legend(figure, axes, columns=max(map(len, rows), default=1))
    elif sketch.key == "below":
        key_below(figure, axes)
    return figure


def figure_or_none(sketch: Sketch | None) -> Figure | None:
    """Return a sketch as a figure; None without a sketch."""
    return None if sketch is None else sketch_figure(sketch)


def _draw(axes: Axes, mark: Mark) -> None:
    match mark:
        case Curve():
            line, label = _line(mark.dashes), mark.label or None
            dots = None if mark.shape is None else _MARKERS[mark.shape]
            axes.plot(mark.x, mark.y, color=mark.color, ls=line, lw=mark.width, label=label, marker=dots, markersize=4)
        case Steps() if mark.is_filled:
            axes.stairs(mark.values, mark.edges, fill=True, color=mark.color, alpha=0.5, linewidth=0)
        case Steps():
            line, label = _line(mark.dashes), mark.label or None
            axes.stairs(mark.values, mark.edges, baseline=None, color=mark.color, ls=line, lw=1.2, label=label)
        case Bar():
            color = mark.color or "none"
            axes.barh([0], [mark.length], left=[mark.start], color=color, ec=mark.edge, lw=0.6, label=mark.label)
        case Rule():
            axes.axvline(mark.x, color=mark.color, ls=_line(mark.dashes), lw=1.0)
        case Level():
            axes.axhline(mark.y, color=mark.color, ls=_line(mark.dashes), lw=1.0)
        case Band():
            axes.axvspan(mark.low, mark.high, color=mark.color, alpha=0.25, linewidth=0)
        case Box():
            axes.barh([mark.y], [mark.right - mark.left], left=[mark.left], height=mark.thickness, color=mark.color)
        case Whiskers():
            reach = list(mark.reach)
            axes.errorbar(mark.x, mark.y, xerr=[reach, reach], fmt="none", ecolor=mark.color, capsize=3, lw=1.2)
        case Dots():
            _points(axes, mark)
        case Note():
            axes.annotate(
                mark.text,
                (mark.x, 1.0 if mark.y is None else mark.y),
                xycoords=("data", "axes fraction") if mark.y is None else "data",
                xytext=(mark.right, mark.up),
                textcoords="offset points",
                ha="right" if mark.is_left_of else "left",
                fontsize=mark.size,
                color=mark.color,
                annotation_clip=False,
            )


def _points(axes: Axes, mark: Dots) -> None:
    is_line = mark.shape == "cross"
    opacity = None if mark.opacity == 1.0 else mark.opacity
    drawn = axes.scatter(mark.x, mark.y, marker=_MARKERS[mark.shape], s=mark.size**2, alpha=opacity, zorder=3)
    drawn.set_label(mark.label)
    drawn.set_linewidth(1.1 if mark.is_hollow or is_line else 0.0)
    drawn.set_edgecolor(mark.color)
    if not is_line:
        drawn.set_facecolor("none" if mark.is_hollow else mark.color)


def _line(dashes: Dashes) -> str | tuple[int, Dashes]:
    return (0, dashes) if dashes else "-"
