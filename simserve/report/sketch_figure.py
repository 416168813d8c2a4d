"""A sketch as a Matplotlib figure, which a notebook shows by itself and a reader can change. Imports Matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simserve.report.axes import INK, canvas, key_below, legend
from simserve.report.sketch import Axis, Bar, Curve, Dashes, Dots, Mark, Note, Rule, Sketch, Steps

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis as DrawnAxis
    from matplotlib.figure import Figure


def sketch_figure(sketch: Sketch) -> Figure:
    """Return the picture as a figure of its own."""
    figure, axes = canvas(
        height=sketch.height, left=sketch.left, right=sketch.right, bottom=sketch.bottom, top=sketch.top
    )
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
        _mark(drawn, axis)
    axes.spines["bottom"].set_visible(sketch.x.is_drawn)
    axes.spines["left"].set_visible(sketch.y.is_drawn)
    if not sketch.has_grid:
        axes.grid(False)
    if sketch.title:
        axes.set_title(sketch.title, fontsize=9, loc="left", color=INK)
    if sketch.key == "above":
        legend(figure, axes)
    elif sketch.key == "below":
        key_below(figure, axes)
    return figure


def _mark(drawn: DrawnAxis, axis: Axis) -> None:
    from matplotlib.ticker import NullLocator

    drawn.set_minor_locator(NullLocator())
    ticks = axis.marked
    drawn.set_ticks([value for value, _ in ticks], [text for _, text in ticks])


def _draw(axes: Axes, mark: Mark) -> None:
    match mark:
        case Curve():
            line, label, dots = _line(mark.dashes), mark.label or None, "o" if mark.has_dots else None
            axes.plot(mark.x, mark.y, color=mark.color, ls=line, lw=mark.width, label=label, marker=dots, markersize=3)
        case Steps() if mark.is_filled:
            axes.stairs(mark.values, mark.edges, fill=True, color=mark.color, alpha=0.5, linewidth=0)
        case Steps():
            line, label = _line(mark.dashes), mark.label or None
            axes.stairs(mark.values, mark.edges, baseline=None, color=mark.color, ls=line, lw=1.2, label=label)
        case Bar():
            color = mark.color or "none"
            axes.barh([0], [mark.length], left=[mark.start], color=color, ec=mark.edge, lw=0.6, label=mark.label)
        case Rule():
            axes.axvline(mark.x, color=mark.color, ls=_line(mark.dashes), lw=mark.width)
        case Dots():
            shape, label = "s" if mark.is_square else "o", mark.label or None
            axes.scatter(mark.x, mark.y, marker=shape, s=mark.size**2, color=mark.color, label=label, zorder=3)
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


def _line(dashes: Dashes) -> str | tuple[int, Dashes]:
    return (0, dashes) if dashes else "-"
