"""House style of axes: size, type, grid and colours, round logarithmic ticks, clock time. Knows no run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]

INK = "#1f2430"
GRID = "#d9dde3"
BLUE = "#0072b2"
VERMILION = "#d55e00"
ORANGE = "#e69f00"
GREEN = "#009e73"
SKY = "#56b4e9"
GREY = "#8b929c"
COLOR_ROLES = {
    INK: "ink",
    GRID: "grid",
    BLUE: "blue",
    VERMILION: "vermilion",
    ORANGE: "orange",
    GREEN: "green",
    SKY: "sky",
    GREY: "grey",
}
"""Colour in a plot -> the custom property of the page that replaces it."""

WIDTH_INCHES = 4.6
TEXT_POINTS = 9.0
_MAX_TICKS = 7
_EVEN_STEPS = ((1.0, 2.0, 5.0), (1.0, 3.0), (1.0,))  # Ticks per decade, from short ranges to long ones.


def canvas(
    *, height: float = 3.1, left: float = 0.17, right: float = 0.96, bottom: float = 0.16, top: float = 0.86
) -> tuple[Figure, Axes]:
    """Return an empty figure and its axes; margins are fixed, so that no layout has to be computed.

    Args:
        height: Inches; the width is always 4.6.
        left: Left end of the axes, as a share of the width, like ``right``.
        right: Right end of the axes.
        bottom: Lower end of the axes, as a share of the height, like ``top``.
        top: Upper end of the axes.
    """
    from simserve.report.figure import ShownFigure

    figure = ShownFigure(figsize=(WIDTH_INCHES, height), facecolor="none")
    axes = figure.add_axes((left, bottom, right - left, top - bottom), facecolor="none")
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(INK)
    axes.tick_params(colors=INK, labelsize=TEXT_POINTS, length=3)
    for axis in (axes.xaxis, axes.yaxis):
        axis.label.set(color=INK, fontsize=TEXT_POINTS)
    axes.grid(True, color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    return figure, axes


def legend(figure: Figure, axes: Axes, columns: int) -> None:
    """Name the curves above the axes, where they cannot overlap a curve, each label once."""
    named = {label: handle for handle, label in reversed(list(zip(*axes.get_legend_handles_labels(), strict=True)))}
    if named:
        figure.legend(
            list(named.values())[::-1],
            list(named)[::-1],
            loc="upper left",
            bbox_to_anchor=(0.0, 1.02),
            ncols=columns,
            frameon=False,
            fontsize=TEXT_POINTS,
            labelcolor=INK,
        )


def key_below(figure: Figure, axes: Axes) -> None:
    """Name the parts of a bar at the lower end of the figure."""
    figure.legend(
        *axes.get_legend_handles_labels(),
        loc="upper left",
        bbox_to_anchor=(0.0, 0.36),
        ncols=2,
        frameon=False,
        fontsize=TEXT_POINTS,
        labelcolor=INK,
        handlelength=0.9,
        handleheight=0.9,
    )


def log_ticks(low: float, high: float) -> list[float]:
    """Return at most seven round values from ``low`` to ``high`` (> 0), evenly spread on a logarithmic axis."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in _EVEN_STEPS:
        ticks = [step * 10.0**decade for decade in decades for step in steps]
        inside = [tick for tick in ticks if low <= tick <= high]
        if len(inside) <= _MAX_TICKS:
            return inside if len(inside) > 2 else _close_ticks(low, high)
    return inside[:: -(-len(inside) // _MAX_TICKS)]


def _close_ticks(low: float, high: float) -> list[float]:
    """Return round values within less than a decade, for which steps of a decade give fewer than three."""
    power = 10.0 ** math.floor(math.log10(high - low))
    for step in (0.2 * power, 0.5 * power, power, 2 * power):
        first, last = math.ceil(low / step), math.floor(high / step)
        if last - first < _MAX_TICKS:
            return [float(f"{step * each:.6g}") for each in range(first, last + 1)]
    return [low, high]


def clock(edges: Floats) -> tuple[Floats, str]:
    """Return seconds in the natural unit for their span, and the label of their axis."""
    span = float(edges[-1])
    for limit, factor, unit in ((120.0, 1.0, "s"), (7200.0, 60.0, "min")):
        if span < limit:
            return edges / factor, f"simulated time, {unit}"
    return edges / 3600.0, "simulated time, h"
