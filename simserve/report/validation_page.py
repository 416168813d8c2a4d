"""The page of `simserve validate --report`: scatter plots, errors, what was not run. One file, nothing fetched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simserve.planner.measured.point import METRICS as METRIC_NAMES
from simserve.planner.measured.point import Metric
from simserve.planner.validation.scoring import error_summary, errors_of
from simserve.planner.validation.validate import Validation as Replayed
from simserve.report.axes import BLUE, GREEN, GREY, INK, ORANGE, SKY
from simserve.report.page import environment, html_table, write_whole
from simserve.report.panels import Panel, panel
from simserve.report.quantities import counted
from simserve.report.sketch import DASHED, Axis, Curve, Dots, Mark, Shape, Sketch, log_reach
from simserve.report.validation import METRICS, READING, error_tables, not_run_lines, validation_lines
from simserve.version import __version__

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_UNITS: Mapping[Metric, tuple[str, float]] = {
    "tpot": ("ms", 1e3),
    "ttft": ("ms", 1e3),
    "e2e": ("s", 1.0),
    "throughput": ("tokens/s", 1.0),
}
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


class Validation(Replayed):
    """Measured servers beside what was simulated: ``.summary``, ``.points``, ``.plot``, and itself in a notebook."""

    @property
    def plot(self) -> ValidationPlots:
        """Its figure: ``scatter(metric)``."""
        return ValidationPlots(self)

    def _repr_html_(self) -> str:
        return _validation_html(self)


@dataclass(frozen=True, slots=True)
class ValidationPlots:
    """The figure of a validation."""

    answer: Replayed

    def scatter(self, metric: Metric = "tpot") -> Figure | None:
        """Return predictions over measurements of ``tpot``, ``ttft``, ``e2e`` or ``throughput``; None without any."""
        unit, scale = _UNITS[metric]
        series = _series(self.answer, metric, scale)
        if not series:
            return None
        from simserve.report.sketch_figure import sketch_figure

        return sketch_figure(scatter(series, f"{METRICS[metric]} in {unit}"))


def write_validation_page(validation: Replayed, file: Path, *, asked: str = "") -> None:
    """Write the page, whole or not at all.

    Args:
        validation: What was replayed.
        file: Where to.
        asked: What was given to the command that the page names: ``FILE``, ``--data DIR``.

    Raises:
        OSError: The file cannot be written.
    """
    write_whole(file, validation_page(validation, asked=asked))


def validation_page(validation: Replayed, *, asked: str = "") -> str:
    """Return the page. The same validation gives the same text."""
    summary: Mapping[str, Any] = validation.summary
    panels = [_panel(validation, metric) for metric in METRIC_NAMES]
    content = {
        "version": __version__,
        "lines": validation_lines(summary),
        "panels": [panel for panel in panels if panel is not None],
        "band": f"{BAND:.0%}",
        "reading": READING,
        "tables": error_tables(summary),
        "not_run": not_run_lines(summary, most=None),
        "asked": asked,
    }
    return environment().get_template("validation.html").render(content)


def _validation_html(validation: Replayed) -> str:
    """Return the answer as a fragment of HTML: what was replayed, and the errors of the coarsest table."""
    table = error_tables(validation.summary)[0]
    return html_table(validation_lines(validation.summary), table.header, table.rows, [table.caption or READING])


def _panel(validation: Replayed, metric: Metric) -> Panel | None:
    """Return the scatter plot of a metric; None without a point."""
    unit, scale = _UNITS[metric]
    series = _series(validation, metric, scale)
    if not series:
        return None
    scored = errors_of(validation.predictions, metric)
    note = "no point is scored"
    if scored:
        errors = error_summary(scored)
        within = sum(abs(each) <= BAND for each in scored) / len(scored)
        note = (
            f"{counted(len(scored), 'point')}: median error {errors['median_ape']:.1%}, nine in ten within "
            f"{errors['p90_ape']:.0%}; {within:.0%} within {BAND:.0%}"
        )
    title = f"{METRICS[metric][:1].upper()}{METRICS[metric][1:]}, {unit}"
    return panel(metric, title, note, scatter(series, unit), f"Predicted against measured; {note}.")


def _series(validation: Replayed, metric: Metric, scale: float) -> dict[str, tuple[list[float], list[float]]]:
    series: dict[str, tuple[list[float], list[float]]] = {}
    for each in validation.predictions:
        point = each.point
        if metric not in each.predicted or each.predicted[metric] <= 0 or point.measured[metric] <= 0:
            continue
        kind = NOT_SCORED if metric in point.shown_only else engine_kind(point.engine)
        measured, predicted = series.setdefault(kind, ([], []))
        measured.append(scale * point.measured[metric])
        predicted.append(scale * each.predicted[metric])
    return series


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
