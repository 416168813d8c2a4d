"""The answer of `simserve validate` in words and tables, for a terminal and for the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simserve.planner.validation.scoring import OF_GPU, OF_KV, coverage_sentence
from simserve.report.quantities import counted, listed

if TYPE_CHECKING:
    from rich.console import Console

METRICS = {"tpot": "TPOT", "ttft": "TTFT", "e2e": "E2E", "throughput": "throughput"}
"""Key of a metric -> how it is written."""

READING = (
    "Median of the absolute error of the mean over requests (of the median where the source says so), in brackets the "
    "bias, above 0 where the simulator is too high. A star: compared but not scored, as its source says that the "
    "figure carries artefacts."
)
_MOST_REASONS = 12
_GROUP = ("source", "engine", "hardware", "model")
_NAMES = {"hardware": "GPU"}
"""Key of a group -> how it is written, where otherwise."""
_LEAST_FIGURE = len("(+12.3%)")
"""Columns that the bias takes where it stands below the error."""
_MOST_ROWS = 40
"""Rows of a table that a terminal shows: longer ones are on the page and in the JSON."""


@dataclass(frozen=True, slots=True)
class ErrorTable:
    """Errors of groups of points.

    Attributes:
        title: What the groups are.
        header: Titles of the columns.
        rows: Cells, as many as titles.
        num_names: Leading columns that are names, not figures.
        caption: What the figures are.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    num_names: int
    caption: str = ""

    @property
    def is_long(self) -> bool:
        """Whether a page folds it away."""
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
            _print(table, console)
    if any(table.num_names and "median" in table.caption for table in tables):
        console.print(READING, style="dim", markup=False)
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
        return rooms or ["No measurement was found."]
    found = [
        f"{METRICS[metric]} {errors['median_ape']:.1%} ({counted(errors['points'], 'point')})"
        for metric, errors in summary["overall"].items()
    ]
    first = f"Median error: {listed(found)}." if found else "None of the points could be run."
    run = f"{summary['covered']:,} of {summary['points']:,} points were run."
    return [first, f"{run} {coverage_sentence(summary['coverage'])}", *rooms]


def _room_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return how many logged KV rooms the memory plan meets, and the largest miss; nothing without logs."""
    if not rows:
        return []
    within = sum(row["is_within"] for row in rows)
    largest = max(abs(row["error_of_gpu"]) for row in rows)
    return [
        f"KV cache size: {within} of {counted(len(rows), 'logged deployment')} within {OF_GPU:.0%} of the GPU's memory "
        f"(and {OF_KV:.0%} of a KV that takes more than a third of it); the largest error is {largest:.2%} of the GPU."
    ]


def error_tables(summary: Mapping[str, Any]) -> list[ErrorTable]:
    """Return errors by source, by load, by engine, GPU and model, and of the KV memory; without those of no rows."""
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
        summary: Of a validation.
        most: Reasons that are named; None: all.
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
            f"{row['log_width']:.2f}",
            f"{row['interval_score']:.2f}",
            f"{row['constant_log_width']:.2f}",
            f"{row['constant_interval_score']:.2f}",
        )
        for row in rows
    ]
    caption = (
        "figures inside intervals made without their own source, each source counted once; of one interval for all"
    )
    header = (
        *("metric", "server", "sources", "figures", "in 90%", "in 50%", "log width", "score"),
        *("width of one", "its score"),
    )
    return ErrorTable("Prediction intervals", header, tuple(cells), 2, caption)


def _errors(group: Mapping[str, Any], metric: str) -> Mapping[str, float] | None:
    found: Mapping[str, float] | None = group["metrics"].get(metric) or group["shown_only"].get(metric)
    return found


def _cell(group: Mapping[str, Any], metric: str) -> str:
    errors = _errors(group, metric)
    if errors is None:
        return ""
    mark = "" if metric in group["metrics"] else "*"
    return f"{errors['median_ape']:.1%} ({errors['bias']:+.1%}){mark}"


def _print(table: ErrorTable, console: Console) -> None:
    """Print a table whose names share a column, so that a narrow terminal breaks them at words."""
    from rich.table import Table

    drawn = Table(box=None, pad_edge=False, header_style="dim")
    drawn.add_column(", ".join(table.header[: table.num_names]), overflow="fold")
    for title in table.header[table.num_names :]:
        drawn.add_column(title, min_width=_LEAST_FIGURE if title in METRICS.values() else None, justify="right")
    for row in table.rows:
        drawn.add_row(", ".join(row[: table.num_names]), *row[table.num_names :])
    console.print(drawn)
