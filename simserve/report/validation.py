"""The answer of `simserve validate` in words and tables, for a terminal and for the page of ``--report``.

The page: scatter plots, errors, what was not run. One file, nothing fetched.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simserve.planner.measured.point import METRICS as METRIC_NAMES
from simserve.planner.measured.point import Metric
from simserve.planner.validation.scoring import OF_GPU, OF_KV, coverage_sentence, error_summary, errors_of
from simserve.planner.validation.validate import Validation as Replayed
from simserve.report.axes import BLUE, GREEN, GREY, INK, ORANGE, SKY
from simserve.report.page import environment, html_table
from simserve.report.panels import Panel, panel
from simserve.report.quantities import capital, counted, listed
from simserve.report.sketch import DASHED, Axis, Curve, Dots, Mark, Shape, Sketch, log_reach
from simserve.report.sketch_figure import sketch_figure
from simserve.unfinished import write_text
from simserve.version import __version__

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

METRICS = {"tpot": "TPOT", "ttft": "TTFT", "e2e": "E2E", "throughput": "throughput"}
"""Key of a metric -> its name in text."""
READING = (
    "Median of the absolute error of the mean over requests (of the median where the source says so), in brackets the "
    "bias, above 0 where the simulator is too high. A star: compared but not scored, as its source says that the "
    "figure carries artefacts."
)
INTERVALS = (
    "In 90%, in 50%: the share of figures inside intervals that were made without their own source, each source "
    "counted once. Width: the upper end of a 90% interval over its lower end. Score: its width in logarithms, and 20 "
    "times how far a figure lies outside; the lower the better. Width of one: the same for one interval that serves "
    "every server."
)
_MOST_REASONS = 12
_GROUP = ("source", "engine", "hardware", "model")
_NAMES = {"hardware": "GPU"}  # Key of a group -> its name in text, where that differs.
_LEAST_FIGURE = len("(+12.3%)")  # Columns of the bias if it is printed below the error.
_MOST_ROWS = 40  # Most rows of a table on a terminal: longer ones are on the page and in the JSON.
_UNITS: Mapping[Metric, tuple[str, float]] = {
    "tpot": ("ms", 1e3),
    "ttft": ("ms", 1e3),
    "e2e": ("s", 1.0),
    "throughput": ("tokens/s", 1.0),
}
_MANY = 300  # From this number of points on, the marks of a plot are small.
BAND = 0.2  # Relative error that the dashed lines mark.
NOT_SCORED = "not scored"
_KINDS: Mapping[str, tuple[str, Shape]] = {
    NOT_SCORED: (GREY, "cross"),
    "vllm": (BLUE, "circle"),
    "sglang": (ORANGE, "square"),
    "tensorrt-llm": (GREEN, "triangle"),
    "others": (SKY, "diamond"),
}
"""Engine -> colour and shape, each distinct; points that are not scored are drawn below the others."""


@dataclass(frozen=True, slots=True)
class ErrorTable:
    """Errors of groups of points."""

    title: str  # What the groups are.
    header: tuple[str, ...]  # Titles of the columns.
    rows: tuple[tuple[str, ...], ...]  # Cells, as many as titles.
    num_names: int  # Leading columns that are names, not figures.
    caption: str = ""  # What the figures are.

    @property
    def is_long(self) -> bool:
        """Whether a page shows it collapsed."""
        return len(self.rows) > _MOST_ROWS


def render_validation(summary: Mapping[str, Any], console: Console) -> None:
    """Print how far off the simulator is: the answer, errors by source, load and model, memory, what was not run."""
    from rich.text import Text

    lines = validation_lines(summary)
    console.print(Text(lines[0], style="bold"))
    for line in lines[1:]:
        console.print(line, markup=False)
    tables = error_tables(summary)
    for table in tables:
        is_cut = table.is_long and console.is_terminal
        console.print()
        console.print(Text(table.title, style="bold"))
        if is_cut:
            console.print(f"{counted(len(table.rows), 'row')}: --report FILE, --json and pipes show them", style="dim")
        else:
            from rich.table import Table

            # Names share a column, so that a narrow terminal breaks them at words.
            drawn = Table(box=None, pad_edge=False, header_style="dim")
            drawn.add_column(", ".join(table.header[: table.num_names]), overflow="fold")
            for title in table.header[table.num_names :]:
                drawn.add_column(title, min_width=_LEAST_FIGURE if title in METRICS.values() else None, justify="right")
            for row in table.rows:
                drawn.add_row(", ".join(row[: table.num_names]), *row[table.num_names :])
            console.print(drawn)
    if any(table.num_names and "median" in table.caption for table in tables):
        console.print(READING, style="dim", markup=False)
    if summary["intervals"]:
        console.print(INTERVALS, style="dim", markup=False)
    reasons = not_run_lines(summary)
    if reasons:
        console.print()
        console.print(Text("What could not be run", style="bold"))
    for line in reasons:
        console.print(f"  {line}", markup=False, soft_wrap=True)


def validation_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return the answer: the typical error of each metric over all points, and how many points were run."""
    rooms = _room_lines(summary["memory"])
    if not summary["points"]:
        nothing = "None of the logged KV cache sizes could be planned." if summary["not_covered"] else ""
        return rooms or [nothing or "No measurement was found."]
    found = [
        f"{METRICS[metric]} {errors['median_ape']:.1%} ({counted(errors['points'], 'point')})"
        for metric, errors in summary["overall"].items()
    ]
    first = f"Median error: {listed(found)}." if found else "None of the points could be run."
    run = f"{summary['covered']:,} of {summary['points']:,} points were run."
    without = [METRICS[metric] for metric in METRICS if metric not in summary["overall"]]
    missing = [f"No point that was run has a figure to compare in {listed(without)}."] if found and without else []
    return [first, f"{run} {coverage_sentence(summary['coverage'])}", *_fitted_lines(summary), *missing, *rooms]


def _fitted_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return how many points constants were fitted to, so that their errors are no test; nothing without any."""
    if not summary["fitted"]:
        return []
    others = summary["points"] - summary["fitted"]
    return [f"Constants were fitted to {summary['fitted']:,} of these points, not to the other {others:,}."]


def _room_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return how many logged KV capacities the memory plan matches, and its largest error; nothing without logs."""
    if not rows:
        return []
    within = sum(row["is_within"] for row in rows)
    first = (
        f"KV cache size: {within} of {counted(len(rows), 'logged deployment')} within {OF_GPU:.0%} of the GPU's memory "
        f"(and {OF_KV:.0%} of a KV that takes more than a third of it)"
    )
    plain = [row for row in rows if not row["is_own_count"]]
    own = [row for row in rows if row["is_own_count"]]
    lines = [f"{first}; {_largest(plain)}." if plain else f"{first}."]
    if own:
        lines.append(
            f"{'One of them logs' if len(own) == 1 else f'{len(own)} of them log'} tokens of layers with windows, "
            f"states or a compressed cache, which each release counts in its own way: these are not the bytes that "
            f"the GPU holds, and there {_largest(own)}."
        )
    return lines


def _largest(rows: Sequence[Mapping[str, Any]]) -> str:
    row = max(rows, key=lambda row: abs(row["error_of_gpu"]))
    return f"the largest error is {abs(row['error_of_gpu']):.2%} of the GPU ({row['model']} on {row['hardware']})"


def error_tables(summary: Mapping[str, Any]) -> list[ErrorTable]:
    """Return errors by source, by load, by engine, GPU and model, and of the KV memory; without empty tables."""
    groups = summary["groups"]
    tables = [
        _table("By source", ("source",), summary["sources"]) if len(summary["sources"]) > 1 else None,
        _table("By concurrency or kind of load", ("source", "engine", "concurrency"), summary["bands"]),
        _table("By engine, GPU and model", _GROUP, groups),
        _memory_table(summary["memory"]),
        _interval_table(summary["intervals"]),
    ]
    return [table for table in tables if table is not None and table.rows]


def not_run_lines(summary: Mapping[str, Any], most: int | None = _MOST_REASONS) -> list[str]:
    """Return why points were not run, the most frequent reasons first.

    Args:
        most: Most reasons to name; None: all.
    """
    rows: Sequence[Mapping[str, Any]] = summary["not_covered"]
    lines = [f"{each['points']:,} of {each['source']}: {each['reason']}" for each in rows[:most]]
    others = sum(each["points"] for each in rows[len(lines) :])
    return [*lines, f"{others:,} for other reasons (--json lists them)"] if others else lines


def _table(title: str, names: Sequence[str], groups: Sequence[Mapping[str, Any]]) -> ErrorTable:
    shown = [metric for metric in METRICS if any(_errors(group, metric) for group in groups)]
    if len(names) > 1 and len({group["source"] for group in groups}) == 1:
        names = [name for name in names if name != "source"]
    counts = {"points": "points", "run": "covered"}
    if all(group["covered"] == group["points"] for group in groups):
        del counts["run"]
    rows = [
        (
            *(str(group[name]) for name in names),
            *(f"{group[key]:,}" for key in counts.values()),
            *(_cell(group, metric) for metric in shown),
        )
        for group in groups
    ]
    header = (*(_NAMES.get(name, name) for name in names), *counts, *(METRICS[metric] for metric in shown))
    return ErrorTable(title, header, tuple(rows), len(names), "median absolute error (bias)")


def _memory_table(rows: Sequence[Mapping[str, Any]]) -> ErrorTable:
    header = ("engine", "GPU", "model", "logged, GiB", "planned, GiB", "error of the KV", "of the GPU's memory")
    cells = [
        (
            f"{row['engine']} {row['version']}",
            str(row["hardware"]),
            str(row["model"]),
            f"{row['measured_kv_gib']:.2f}",
            f"{row['predicted_kv_gib']:.2f}",
            f"{row['error_of_kv']:+.1%}",
            f"{row['error_of_gpu']:+.2%}",
        )
        for row in rows
    ]
    return ErrorTable("KV cache size", header, tuple(cells), 3, "as the engine's log says, and as the memory plan says")


def _interval_table(rows: Sequence[Mapping[str, Any]]) -> ErrorTable:
    cells = [
        (
            METRICS[row["metric"]],
            str(row["group"]),
            f"{row['sources']}",
            f"{row['figures']:,}",
            f"{row['coverage_90']:.0%}",
            f"{row['coverage_50']:.0%}",
            f"{math.exp(row['log_width']):.1f}x",
            f"{row['interval_score']:.2f}",
            f"{math.exp(row['constant_log_width']):.1f}x",
            f"{row['constant_interval_score']:.2f}",
        )
        for row in rows
    ]
    header = (
        *("metric", "server", "sources", "figures", "in 90%"),
        *("in 50%", "width", "score", "width of one", "its score"),
    )
    return ErrorTable("Prediction intervals", header, tuple(cells), 2, INTERVALS)


def _errors(group: Mapping[str, Any], metric: str) -> Mapping[str, float] | None:
    found: Mapping[str, float] | None = group["metrics"].get(metric) or group["shown_only"].get(metric)
    return found


def _cell(group: Mapping[str, Any], metric: str) -> str:
    errors = _errors(group, metric)
    if errors is None:
        return ""
    mark = "" if metric in group["metrics"] else "*"
    return f"{errors['median_ape']:.1%} ({errors['bias']:+.1%}){mark}"


class Validation(Replayed):
    """Measured servers beside their simulations: ``.summary``, ``.points``, ``.plot``, and a table in a notebook."""

    @property
    def plot(self) -> ValidationPlots:
        """Its plot: ``scatter(metric)``."""
        return ValidationPlots(self)

    def __repr__(self) -> str:
        return f"<Validation: {' '.join(validation_lines(self.summary)[:1])}>"

    def _repr_html_(self) -> str:
        table = error_tables(self.summary)[0]
        return html_table(validation_lines(self.summary), table.header, table.rows, [table.caption or READING])


@dataclass(frozen=True, slots=True)
class ValidationPlots:
    """The plot of a validation."""

    answer: Replayed

    def scatter(self, metric: Metric = "tpot") -> Figure | None:
        """Return predictions over measurements of ``tpot``, ``ttft``, ``e2e`` or ``throughput``; None without any."""
        unit, scale = _UNITS[metric]
        series = _series(self.answer, metric, scale)
        return None if not series else sketch_figure(scatter(series, f"{METRICS[metric]} in {unit}"))


def write_validation_page(validation: Replayed, file: Path, *, asked: str = "") -> None:
    """Write the page, whole or not at all.

    Args:
        asked: Arguments of the command shown on the page: ``FILE``, ``--data DIR``.

    Raises:
        OSError: The file cannot be written.
    """
    write_text(file, validation_page(validation, asked=asked))


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
    title = f"{capital(METRICS[metric])}, {unit}"
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
    """Return the label of the points of an engine."""
    return engine if engine in _KINDS else "others"


def scatter(series: Mapping[str, tuple[Sequence[float], Sequence[float]]], unit: str) -> Sketch:
    """Return predictions over measurements, one series per kind.

    Args:
        series: Kind (`engine_kind`, or `NOT_SCORED`) -> measured and predicted figures, positive.
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
    """Return a round value in short form: ``3``, ``10k``, ``1M``."""
    for factor, letter in ((1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:g}{letter}"
    return f"{value:g}"
