"""The answer of a run on a terminal: what matters first, readable at 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from simserve.metrics.result import RunResult
from simserve.profiles.quality import quality_lines
from simserve.report import facts
from simserve.report.answer import (
    NO_WAY_OUT,
    advice_lines,
    answer,
    has_no_way_out,
    steady_state_caveat,
    verdict,
    warning_lines,
    warnings,
)
from simserve.report.arriving import traffic
from simserve.report.classes import CLASS_COLUMNS, class_rows
from simserve.report.fleet import door_lines, fleet_lines, front_lines, stream_lines, user_lines
from simserve.report.knobs import engine_lines
from simserve.report.speculation import speculation_lines
from simserve.report.tables import STATISTICS, Row, latency_rows, slo_rows

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_WIDEST = 100
"""Columns used at most: longer lines are hard to follow."""
_LABEL_WIDTH = 11
_STYLES = {"holds": "bold green", "missed": "bold red", "none": "bold"}
_FILES = (
    "report.html",
    "result.json",
    "requests.parquet",
    "timeseries.parquet",
    "scenario.resolved.yaml",
    "timeline.json",
    "timeline.json.gz",
    "metrics.prom",
)


def render_run(result: RunResult, console: Console, folder: Path | None) -> None:
    """Print the answer of a run: the sentence, SLO, latencies, throughput, memory, dollars, and how far to trust it.

    Args:
        result: The run.
        console: Where to.
        folder: Where its files were written; None: nowhere.
    """
    from rich.text import Text

    width = min(console.width, _WIDEST)
    for line in warning_lines(result.summary["simserve"]):
        console.print(Text(line, style="bold yellow"), width=width)
    console.print(Text(answer(result), style=_STYLES[verdict(result)]), width=width)
    if result.summary["completed"]:
        console.print(Text(result.summary["simserve"]["bottleneck"]["explanation"]), width=width)
    console.print(Text(f"{facts.heading(result)}; {traffic(result)}", style="dim"), width=width)
    _print_advice(result, console, width)
    for section in (_latencies(result, console), _facts(result), _trust(result, folder)):
        console.print()
        console.print(section, width=width)


def _print_advice(result: RunResult, console: Console, width: int) -> None:
    """Print what would hold, each with its command on one line, to be copied."""
    from rich.text import Text

    ways = advice_lines(result.summary)
    if ways:
        console.print(Text("\nWhat would hold, each simulated:", style="bold"), width=width)
    if has_no_way_out(result):
        console.print(Text(f"\n{NO_WAY_OUT}"), width=width)
    for told, command in ways:
        console.print(Text(told), width=width)
        console.print(Text(f"  {command}", style="dim"), soft_wrap=True)


def _latencies(result: RunResult, console: Console) -> Table:
    """Return the SLO, the latency table and the classes."""
    from rich.console import Group
    from rich.text import Text

    section = _section()
    bounds = _columns(2, left=1)
    for row in slo_rows(result):
        bounds.add_row(row.label, row.cells[0].text)
    if bounds.row_count:
        section.add_row("SLO", bounds)
    caveat = steady_state_caveat(result)
    heading = Text(facts.measured(result))
    notes = [Text(caveat, style="bold yellow")] if caveat else []
    section.add_row("Latency", Group(heading, *notes, _latency_table(result)))
    _add(section, "Real server", facts.real_server_lines(result))
    classes = class_rows(result)
    if classes:
        section.add_row("Classes", _class_table(classes, console))
    return section


def _class_table(classes: Sequence[Row], console: Console) -> Table:
    """Return a line a class; where it is too wide, titles take two lines and long names break: no figure is cut."""
    header = ("", *CLASS_COLUMNS)
    table = _columns(len(header), left=1, header=header)
    narrow = _columns(len(header), left=1, header=[title.replace(" ", "\n") for title in header], gap=1)
    narrow.columns[0].no_wrap, narrow.columns[0].overflow = False, "fold"
    for each in classes:
        cells = (each.label, *(cell.text for cell in each.cells))
        table.add_row(*cells)
        narrow.add_row(*cells)
    room = console.width - _LABEL_WIDTH - 2
    return table if console.measure(table, options=console.options.update(width=_WIDEST)).maximum <= room else narrow


def _latency_table(result: RunResult) -> Table:
    table = _columns(2 + len(STATISTICS), left=2, header=("", "", *STATISTICS))
    for row in latency_rows(result.summary):
        table.add_row(row.label, row.unit, *(cell.text for cell in row.cells))
    return table


def _facts(result: RunResult) -> Table:
    return _listed(
        {
            "Throughput": facts.throughput_lines(result),
            "Users": user_lines(result),
            "Memory": facts.memory_lines(result),
            "Dollars": facts.cost_lines(result),
            "Energy": facts.energy_lines(result),
            "Step time": facts.step_lines(result),
            "Speculation": speculation_lines(result),
            "Queue": facts.waiting_lines(result),
            "Front": front_lines(result),
            "Admission": door_lines(result),
            "Fleet": fleet_lines(result),
            "Stream": stream_lines(result),
        }
    )


def _trust(result: RunResult, folder: Path | None) -> Table:
    sections = {
        "Engine": engine_lines(result),
        "Fidelity": facts.fidelity_lines(result),
        "Quality": quality_lines(result.summary["simserve"].get("quality", ())),
    }
    table = _listed(sections)
    cautions = warnings(result)[len(result.summary["simserve"].get("warnings", ())) :]
    if cautions:
        _add(table, "Warnings", cautions, style="yellow")
    if folder is not None:
        written = [name for name in _FILES if (folder / name).exists()]
        _add(table, "Files", [f"{folder}/", *([" ".join(written)] if written else [])])
    return table


def _listed(sections: dict[str, list[str]]) -> Table:
    table = _section()
    for label, lines in sections.items():
        _add(table, label, lines)
    return table


def _add(table: Table, label: str, lines: Sequence[str], style: str = "") -> None:
    from rich.text import Text

    for position, line in enumerate(lines):
        table.add_row("" if position else label, Text(line, style=style, overflow="fold"))


def _section() -> Table:
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold", width=_LABEL_WIDTH, no_wrap=True)
    table.add_column()
    return table


def _columns(num_columns: int, *, left: int, header: Sequence[str] = (), gap: int = 2) -> Table:
    """Return a borderless table whose first ``left`` columns are flush left and the others flush right."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=bool(header), padding=(0, gap, 0, 0), header_style="dim")
    titles = header or ("",) * num_columns
    for position, name in enumerate(titles):
        table.add_column(name, justify="left" if position < left else "right", no_wrap=True)
    return table
