"""The answer of `simserve sweep` on a terminal and in a notebook: the number of points, and figures of some."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simserve.planner.sweep import sweep
from simserve.planner.sweep.point import OK, Row
from simserve.report.answer import warning_lines
from simserve.report.answer_plots import sweep_curves
from simserve.report.figures import SHOWN
from simserve.report.page import Page, Section, html_table, write_page
from simserve.report.panels import panel
from simserve.report.quantities import UNDEFINED, capital, counted, dollars, listed, share
from simserve.report.sketch_figure import figure_or_none
from simserve.report.terminal import columns, print_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

_MOST_ROWS = 20
_MOST_REASONS = 4
_FIGURES = ("slo_attainment", "p95_ttft_ms", "p95_tpot_ms", "output_throughput", "usd_per_million_output_tokens")


class Sweep(sweep.Sweep):
    """The rows of a sweep: ``.points`` as a table, ``.summary``, ``.plot``, and a page in a notebook."""

    @property
    def plot(self) -> SweepPlots:
        """Its plot: ``curve(figure)``."""
        return SweepPlots(self)

    def to_html(self, file: str | Path, command: str = "") -> None:
        """Write the answer as one self-contained page; ``command`` is the command that reproduces it."""
        write_page(_sweep_page(self, command), file)

    def __repr__(self) -> str:
        return f"<Sweep: {_sweep_lines(self)[0]}>"

    def _repr_html_(self) -> str:
        lines = [*warning_lines(self.summary), *_sweep_lines(self)]
        return html_table(lines, header(self), _shown_rows(self), error_lines(self))


@dataclass(frozen=True, slots=True)
class SweepPlots:
    """The plot of a sweep."""

    answer: sweep.Sweep

    def curve(self, figure: str = "p95_ttft_ms") -> Figure | None:
        """Return a figure of the points (a column of the table) against the first numeric key.

        None if no key has two numbers, or the figure is undefined everywhere.
        """
        return figure_or_none(sweep_curves(self.answer, figure))


def render_sweep(answer: sweep.Sweep, console: Console, out: Path | None) -> None:
    """Print how many points were run, a table of them, and where the rest is."""
    from rich.text import Text

    first, *others = _sweep_lines(answer, out)
    print_lines(console, [*warning_lines(answer.summary), first], "bold")
    print_lines(console, others, "dim")
    if not answer.rows:
        return
    console.print()
    titles = header(answer)
    console.print(columns(titles, [title == "the run is" for title in titles], _shown_rows(answer), breaks=True))
    for line in error_lines(answer):
        console.print(Text(line, style="yellow", overflow="ellipsis"), no_wrap=True, soft_wrap=False)


def error_lines(answer: sweep.Sweep) -> list[str]:
    """Return why points have no result: each reason once, the most frequent first, and how often."""
    reasons = Counter(f"{row['status']}: {row['error']}" for row in answer.rows if row["status"] != OK)
    lines = [f"{count} x {reason}" for reason, count in reasons.most_common(_MOST_REASONS)]
    hidden = len(reasons) - len(lines)
    return [*lines, *([f"and {hidden} other reasons, in the column error"] if hidden else [])]


def _sweep_lines(answer: sweep.Sweep, out: Path | None = None) -> list[str]:
    """Return the answer in sentences: the result, the number of points, their formats, the content of the table."""
    done = counted(len(answer.rows), "point")
    failed = f", {answer.num_failed} of them without a result" if answer.num_failed else ""
    if answer.was_interrupted:
        first = f"{done} of {answer.num_points:,} are done{failed}."
    else:
        first = f"{done}{failed}" + (f", written to {out}." if out is not None else ".")
    lines = [*_found_lines(answer), first, *_reach_lines(answer), *_idle_lines(answer), *_format_lines(answer)]
    if answer.num_resumed:
        lines.append(f"{counted(answer.num_resumed, 'point')} had been finished before.")
    if len(answer.rows) > _MOST_ROWS:
        judged = ", those that hold the SLO first" if any(each is not None for each in answer.asked) else ""
        lines.append(f"Below, the {_MOST_ROWS} with the cheapest output tokens{judged}.")
    return lines


def _found_lines(answer: sweep.Sweep) -> list[str]:
    """Return at how many points the SLO holds and which of those is cheapest per token; empty if no point has a run."""
    done = [place for place, row in enumerate(answer.rows) if row["status"] == OK]
    judged = [place for place in done if answer.asked and answer.asked[place] is not None]
    if not done or (judged and len(judged) < len(done)):
        return []
    held = [place for place in judged if _holds(answer.rows[place], answer.asked[place])]
    if judged and not held:
        nearest = max((answer.rows[place] for place in judged), key=lambda row: row["slo_attainment"] or 0.0)
        met = f"{share(nearest['slo_attainment'])} of requests meet it at {_point(nearest)}"
        return [f"The SLO holds at none of {counted(len(answer.rows), 'point')}; the nearest: {met}."]
    clauses = [f"The SLO holds at {len(held)} of {counted(len(answer.rows), 'point')}"] if judged else []
    price = "usd_per_million_output_tokens"
    priced = [row for row in (answer.rows[place] for place in held or done) if row.get(price) is not None]
    if priced:
        cheapest = min(priced, key=lambda row: row[price])
        of = "of those" if judged else f"of {counted(len(answer.rows), 'point')}"
        clauses.append(f"the cheapest {of} is {_point(cheapest)}: {dollars(cheapest[price])} a million output tokens")
    text = "; ".join(clauses)
    return [f"{capital(text)}."] if text else []


def _holds(row: Row, asked: float | None) -> bool:
    met = row["slo_attainment"]
    return met is not None and asked is not None and met >= asked and row["stability"] != "overloaded"


def _point(row: Row) -> str:
    """Return a point in words: ``rate 8, replicas 2``."""
    return ", ".join(f"{key.rpartition('.')[2]} {_value(value)}" for key, value in row["values"].items())


def _format_lines(answer: sweep.Sweep) -> list[str]:
    """Return the number formats of the points and their origin, one line each if they differ."""
    if len(answer.formats) < 2:
        return [f"{capital(line)}." for line in answer.formats]
    return [f"{counted(count, 'point')}: {line}." for line, count in answer.formats.items()]


def _reach_lines(answer: sweep.Sweep) -> list[str]:
    """Return the ranges of the figures over the points; empty for fewer than two points with a result."""
    done = [row for row in answer.rows if row["status"] == OK]
    if len(done) < 2:
        return []
    reaches = []
    for name in _FIGURES:
        figure, known = SHOWN[name], [row[name] for row in done if row.get(name) is not None]
        if known:
            low, high = figure.text(min(known)), figure.text(max(known))
            reach = low if low == high else f"{low} to {high}"
            reaches.append(f"{figure.short or figure.label} {reach} {figure.unit}".rstrip())
    text = "; ".join(reaches)
    return [f"{capital(text)}."] if text else []


def _idle_lines(answer: sweep.Sweep) -> list[str]:
    """Return which keys of the grid change no figure at any point, whatever the others are; empty if all do."""
    idle = []
    for key in answer.keys:
        found: dict[str, list[tuple[Any, ...]]] = {}
        for row in (each for each in answer.rows if each["status"] == OK):
            others = json.dumps({name: value for name, value in row["values"].items() if name != key}, sort_keys=True)
            found.setdefault(others, []).append(tuple(row.get(name) for name in _FIGURES))
        alike = [figures for figures in found.values() if len(figures) > 1]
        if alike and all(len(set(figures)) == 1 for figures in alike):
            idle.append(key.rpartition(".")[2])
    return [f"No figure depends on {listed(idle)} here."] if idle else []


def header(answer: sweep.Sweep) -> list[str]:
    """Return the titles of the table."""
    return [*(key.rpartition(".")[2] for key in answer.keys), *(SHOWN[name].narrow for name in _FIGURES), "the run is"]


def _shown_rows(answer: sweep.Sweep) -> list[list[str]]:
    """Return the table: every point of a small sweep, the best of a large one."""
    rows: Sequence[Row] = answer.rows
    if len(rows) > _MOST_ROWS:
        asked = answer.asked or [None] * len(rows)
        order = sorted(range(len(rows)), key=lambda place: _merit(rows[place], asked[place]))
        rows = [rows[place] for place in order[:_MOST_ROWS]]
    return [
        [
            *(_value(row["values"][key]) for key in answer.keys),
            *(SHOWN[name].text(row.get(name)) if row["status"] == OK else UNDEFINED for name in _FIGURES),
            str(row.get("stability")) if row["status"] == OK else row["status"],
        ]
        for row in rows
    ]


def _sweep_page(answer: sweep.Sweep, command: str) -> Page:
    """Return the answer as a page: curves over the first numeric key, and the table."""
    lines = _sweep_lines(answer)
    panels = []
    for name in _FIGURES:
        label, figure = SHOWN[name].narrow, sweep_curves(answer, name)
        if figure is not None:
            description = f"{label} at {counted(len(answer.rows), 'point')} of {', '.join(answer.keys)}."
            panels.append(panel(name.replace("_", "-"), capital(label), "", figure, description))
    return Page(
        name="simserve sweep: " + ", ".join(answer.keys),
        answer=lines[0] if _found_lines(answer) else f"{lines[0].rstrip('.')} over {listed(list(answer.keys))}.",
        lines=[*warning_lines(answer.summary), *lines[1:]],
        sections=(
            *([Section(title="Over the grid", panels=panels)] if panels else []),
            Section(title="Points", header=header(answer), rows=_shown_rows(answer), notes=error_lines(answer)),
        ),
        command=command,
    )


def _merit(row: Row, asked: float | None) -> tuple[int, int, float]:
    """Return the sort key of rows: those that hold, then by attainment in whole percent, then dollars."""
    if row["status"] != OK:
        return 2, 0, math.inf
    price = row.get("usd_per_million_output_tokens") or math.inf
    if asked is None or _holds(row, asked):
        return 0, 0, price
    return 1, -math.floor(100 * (row["slo_attainment"] or 0.0)), price


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
