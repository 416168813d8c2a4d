"""Predicted against measured: one point a measurement, both axes logarithmic, the line of equality and a band."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simserve.report.axes import BLUE, GREEN, GREY, INK, ORANGE, SKY, canvas, log_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]

_MANY = 300
"""Numbers of a plot from which on its marks are small."""
BAND = 0.2
"""Relative error that the dashed lines mark."""

_KINDS: Mapping[str, tuple[str, str]] = {
    "vllm": (BLUE, "o"),
    "sglang": (ORANGE, "s"),
    "tensorrt-llm": (GREEN, "^"),
    "others": (SKY, "D"),
    "not scored": (GREY, "x"),
}
"""Engine -> colour and marker; told apart by either."""

NOT_SCORED = "not scored"


def engine_kind(engine: str) -> str:
    """Return the name under which the points of an engine are drawn."""
    return engine if engine in _KINDS else "others"


def scatter(series: Mapping[str, tuple[Sequence[float], Sequence[float]]], unit: str) -> Figure:
    """Return predictions over measurements, kind by kind.

    Args:
        series: Kind (`engine_kind`, or `NOT_SCORED`) -> measured and predicted figures, positive.
        unit: Of both axes.
    """
    figure, axes = canvas(height=4.3, left=0.15, top=0.9, bottom=0.12)
    reach = np.concatenate([np.asarray(each, dtype=np.float64) for pair in series.values() for each in pair])
    low, high = float(reach.min()) / 1.3, float(reach.max()) * 1.3
    _lines(axes, low, high)
    for kind, (color, marker) in _KINDS.items():
        if kind in series:
            measured, predicted = series[kind]
            axes.plot(
                measured,
                predicted,
                label=kind,
                color=color,
                marker=marker,
                linestyle="none",
                markersize=2.6 if len(reach) > _MANY else 5.0,
                markeredgewidth=0.7 if marker == "x" else 0.0,
                alpha=0.6,
                zorder=1.5 if kind == NOT_SCORED else 2.0,
            )
    _logarithmic(axes, low, high)
    axes.set_xlabel(f"measured, {unit}")
    axes.set_ylabel(f"predicted, {unit}")
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="upper left",
        bbox_to_anchor=(0.0, 1.01),
        ncols=len(handles),
        frameon=False,
        fontsize=8,
        labelcolor=INK,
        handletextpad=0.2,
        columnspacing=1.0,
        markerscale=1.8 if len(reach) > _MANY else 1.0,
    )
    return figure


def _lines(axes: Axes, low: float, high: float) -> None:
    """Draw equality, and ``BAND`` to either side."""
    ends = np.array([low, high])
    axes.plot(ends, ends, color=INK, linewidth=0.9)
    for factor in (1.0 - BAND, 1.0 + BAND):
        axes.plot(ends, factor * ends, color=INK, linewidth=0.6, linestyle=(0, (4, 3)))


def _logarithmic(axes: Axes, low: float, high: float) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator

    ticks = log_ticks(low, high)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(FixedLocator(ticks))
        axis.set_minor_locator(NullLocator())
        axis.set_ticklabels([_tick_text(tick) for tick in ticks])


def _tick_text(value: float) -> str:
    """Return a round value in few letters: ``3``, ``10k``, ``1M``."""
    for factor, letter in ((1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:g}{letter}"
    return f"{value:g}"
