"""Predicted against measured: one point a measurement, both axes logarithmic, the line of equality and a band."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from simserve.report.axes import BLUE, GREEN, GREY, INK, ORANGE, SKY
from simserve.report.scales import log_reach
from simserve.report.sketch import DASHED, Axis, Curve, Dots, Mark, Shape, Sketch

_MANY = 300
"""Numbers of a plot from which on its marks are small."""
BAND = 0.2
"""Relative error that the dashed lines mark."""
NOT_SCORED = "not scored"

_KINDS: Mapping[str, tuple[str, Shape]] = {
    NOT_SCORED: (GREY, "cross"),
    "vllm": (BLUE, "circle"),
    "sglang": (ORANGE, "square"),
    "tensorrt-llm": (GREEN, "triangle"),
    "others": (SKY, "diamond"),
}
"""Engine -> colour and shape, told apart by either; what is not scored lies below the others."""


def engine_kind(engine: str) -> str:
    """Return the name under which the points of an engine are drawn."""
    return engine if engine in _KINDS else "others"


def scatter(series: Mapping[str, tuple[Sequence[float], Sequence[float]]], unit: str) -> Sketch:
    """Return predictions over measurements, kind by kind.

    Args:
        series: Kind (`engine_kind`, or `NOT_SCORED`) -> measured and predicted figures, positive.
        unit: Of both axes.
    """
    reach = log_reach(value for pair in series.values() for each in pair for value in each)
    assert reach is not None  # a series has points
    low, high = reach[0] / 1.3, reach[1] * 1.3
    num_points = sum(len(measured) for measured, _ in series.values())
    ends = np.array([low, high])
    marks: list[Mark] = [Curve(x=ends, y=ends, color=INK, width=0.9)]
    marks += [Curve(x=ends, y=factor * ends, color=INK, width=0.6, dashes=DASHED) for factor in (1 - BAND, 1 + BAND)]
    marks += [
        Dots(
            x=series[kind][0],
            y=series[kind][1],
            color=color,
            label=kind,
            shape=shape,
            size=2.6 if 2 * num_points > _MANY else 5.0,
            opacity=0.65,
        )
        for kind, (color, shape) in _KINDS.items()
        if kind in series
    ]
    return Sketch(
        height=4.3,
        left=0.15,
        bottom=0.12,
        top=0.9,
        x=Axis(label=f"measured, {unit}", low=low, high=high, is_log=True, words=_tick_text),
        y=Axis(label=f"predicted, {unit}", low=low, high=high, is_log=True, words=_tick_text),
        marks=marks,
    )


def _tick_text(value: float) -> str:
    """Return a round value in few letters: ``3``, ``10k``, ``1M``."""
    for factor, letter in ((1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:g}{letter}"
    return f"{value:g}"
