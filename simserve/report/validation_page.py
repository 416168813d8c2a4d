"""The page of `simserve validate --report`: scatter plots, errors, what was not run. One file, nothing fetched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simserve.planner.measured.point import METRICS as METRIC_NAMES
from simserve.planner.measured.point import Metric
from simserve.planner.validation.scoring import error_summary, errors_of
from simserve.planner.validation.validate import Validation as Replayed
from simserve.report.page import environment, html_table, write_whole
from simserve.report.panels import Panel, panel
from simserve.report.quantities import counted
from simserve.report.scatter import BAND, NOT_SCORED, engine_kind, scatter
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


class Validation(Replayed):
    """Measured servers beside what was simulated: ``.summary``, ``.points``, ``.plot``, and itself in a notebook."""

    @property
    def plot(self) -> ValidationPlots:
        """Its figure: ``scatter(metric)``."""
        return ValidationPlots(self)

    def _repr_html_(self) -> str:
        return validation_html(self)


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


def validation_html(validation: Replayed) -> str:
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
