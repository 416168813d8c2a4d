"""The answer of a run on a terminal: a brief of 14 lines, and every figure below it on request."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import TextWrapper
from typing import TYPE_CHECKING, Literal

from simserve.metrics.result import RunResult
from simserve.report import facts
from simserve.report.answer import cautions, steady_state_caveat
from simserve.report.brief import FILES, Brief, Fact, LatencyLine, Way, brief_of_run
from simserve.report.facts import traffic
from simserve.report.kinds import CLASS_COLUMNS, PARTS, class_rows
from simserve.report.knobs import engine_lines
from simserve.report.tables import STATISTICS, Row, latency_rows, slo_rows
from simserve.scenario.formats import quality_lines

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_WIDEST = 100  # Most columns used: longer lines are hard to follow.
_LABEL_WIDTH = 11
MOST_LINES = 14  # Most lines of a brief, without its warnings.
_FEWEST_LATENCIES, _LONG_COMMAND = 2, 4
"""Latencies that a brief always keeps, and the most lines of a command with which it keeps all of them."""
_BRIEF_WIDTH = 80
_BRIEF_LABEL, _WIDEST_LABEL = 7, 9  # Columns of the labels of a brief: usually, and at most.
_CLAUSE_END = re.compile(r"; (?![^(]*\))")  # End of a clause of a line: a semicolon outside brackets.
_MOST_COMMAND = 5  # Most lines of a command that a brief has room for.
_CONTINUED = " \\"
_STYLES = {"holds": "bold green", "missed": "bold red", "none": "bold"}
_FILES = (
    *("report.html", "result.json", "requests.parquet", "timeseries.parquet"),
    *("scenario.resolved.yaml", "timeline.json", "timeline.json.gz", "metrics.prom"),
)


def render_run(
    result: RunResult, console: Console, folder: Path | None, *, reference: Sequence[str] = (), is_verbose: bool = False
) -> None:
    """Print the brief of a run, and with ``is_verbose`` every figure below it.

    Args:
        folder: Where its files were written; None if they were not.
        reference: Arguments that name the scenario of the run in a command of simserve.
        is_verbose: Whether every figure is printed.
    """
    from rich.text import Text

    render_brief(brief_of_run(result, reference, folder), console, is_whole=is_verbose)
    if not is_verbose:
        return
    width = min(console.width, _WIDEST)
    console.print()
    if result.summary["completed"]:
        console.print(Text(result.summary["simserve"]["bottleneck"]["explanation"]), width=width)
    console.print(Text(f"{facts.heading(result)}; {traffic(result)}", style="dim"), width=width)
    figures = _listed({label: lines(result) for label, lines in PARTS.items()})
    for section in (_latencies(result, console), figures, _trust(result, folder)):
        console.print()
        console.print(section, width=width)


def render_brief(brief: Brief, console: Console, *, is_whole: bool = False) -> None:
    """Print a brief in at most `MOST_LINES` lines of 80 columns, and its warnings.

    What does not fit is left out, the least important first: further ways, then the last clauses of long lines. The
    answer, warnings, and parts of a command or a clause are never left out.

    Args:
        is_whole: Whether nothing is cut and every command is on one line, whatever its length.
    """
    from rich.text import Text

    for line in brief_lines(brief, min(console.width, _BRIEF_WIDTH), is_whole=is_whole):
        styled = Text(line.text, style=line.style)
        styled.stylize("bold", 0, line.label_width)
        console.print(styled, soft_wrap=True)


@dataclass(frozen=True, slots=True)
class BriefLine:
    """One line of a brief on a terminal: its text, its style, and the columns of its label."""

    text: str
    style: str = ""
    label_width: int = 0


def brief_lines(brief: Brief, width: int, *, is_whole: bool = False) -> list[BriefLine]:
    """Return a brief as lines of at most ``width`` columns; longer words, such as paths, are not broken."""
    warned = [wrap(each, width) for each in brief.warnings]
    room = MOST_LINES + sum(map(len, warned))
    if not is_whole:
        hint = "; -v prints all"
        hinted = [replace(each, text=each.text + hint) if each.label == FILES else each for each in brief.facts]
        brief = _squeezed(replace(brief, facts=hinted), width, room)
    gap = _label_column(brief)
    answer = [BriefLine(line, _STYLES[brief.verdict]) for line in wrap(brief.answer, width)]
    table = _latency_lines(brief.latencies, gap, width)
    ways = [_way_lines(way, width, gap, is_first=not place, is_whole=is_whole) for place, way in enumerate(brief.ways)]
    subject = [BriefLine(line, "dim") for line in _subject_lines(brief, width)]
    facts = [_fact_lines(each, width, gap, most=None if is_whole else 1) for each in brief.facts]
    fixed = len(answer) + len(table) + sum(map(len, facts)) + len(subject) + sum(map(len, warned))
    kept = len(ways) if is_whole else 1
    while kept < len(ways) and fixed + sum(map(len, ways[: kept + 1])) <= room:
        kept += 1
    spare = room - fixed - sum(map(len, ways[:kept]))
    for place, each in enumerate(brief.facts):
        if not is_whole:
            longer = _fact_lines(each, width, gap, most=len(facts[place]) + max(spare, 0))
            spare -= len(longer) - len(facts[place])
            facts[place] = longer
    return [
        *(BriefLine(line, "bold yellow") for lines in warned for line in lines),
        *answer,
        *subject,
        *(line for way in ways[:kept] for line in way),
        *table,
        *(line for lines in facts for line in lines),
    ]


def _subject_lines(brief: Brief, width: int) -> list[str]:
    return wrap(brief.subject, width) if brief.subject else []


def _squeezed(brief: Brief, width: int, room: int) -> Brief:
    """Return a brief in which every part gets a line, without the least important parts if there are too many."""

    def num_lines(shown: Brief) -> int:
        way = sum(len(_way_lines(each, width, _BRIEF_LABEL, is_first=True, is_whole=False)) for each in shown.ways[:1])
        warned = sum(len(wrap(each, width)) for each in shown.warnings)
        gap = _label_column(shown)
        lines = sum(len(_fact_lines(each, width, gap, most=1)) for each in shown.facts)
        parts = warned + len(_subject_lines(shown, width)) + len(_latency_lines(shown.latencies, gap, width)) + lines
        return len(wrap(shown.answer, width)) + way + parts

    while num_lines(brief) > room:
        extra = [place for place, each in enumerate(brief.facts) if each.is_extra]
        instead = brief.ways[0].instead if brief.ways else None
        has_short_way = instead is not None and not instead.command
        if extra:
            brief = replace(brief, facts=[each for place, each in enumerate(brief.facts) if place != extra[-1]])
        elif any(each.label == "ITL" for each in brief.latencies) and len(brief.latencies) > 1:
            # ITL says nearly the same as TPOT.
            brief = replace(brief, latencies=[each for each in brief.latencies if each.label != "ITL"])
        elif has_short_way and len(command_lines(brief.ways[0].command, width)) > 1:
            brief = replace(brief, ways=[brief.ways[0].shorter])
        elif _shortened(brief.subject) != brief.subject:
            brief = replace(brief, subject=_shortened(brief.subject))
        elif len(_subject_lines(brief, width)) > 1 and "; " in brief.subject:
            brief = replace(brief, subject=brief.subject.rpartition("; ")[0])
        elif brief.ways and len(command_lines(brief.ways[0].command, width)) > _LONG_COMMAND:
            brief = replace(brief, ways=[brief.ways[0].shorter])
        elif len(brief.latencies) > _FEWEST_LATENCIES:
            brief = replace(brief, latencies=brief.latencies[:-1])
        elif brief.subject:
            brief = replace(brief, subject=brief.subject.rpartition("; ")[0])
        else:
            return brief
    return brief


def _shortened(subject: str) -> str:
    """Return what ran, without the repository of its weights and only up to its KV format: ``-v`` prints the rest."""
    clauses = re.sub(r"(as stored) in [^;]+", r"\1", subject).split("; ")
    last = max((place for place, each in enumerate(clauses) if each.startswith("KV ")), default=len(clauses) - 1)
    return "; ".join(clauses[: last + 1])


def _label_column(brief: Brief) -> int:
    """Return the columns of labels, blanks included; a longer label only moves its own text."""
    fitting = [len(each.label) + 2 for each in brief.facts if len(each.label) + 2 <= _WIDEST_LABEL]
    return max([_BRIEF_LABEL, *fitting])


def _fact_lines(fact: Fact, width: int, gap: int, *, most: int | None) -> list[BriefLine]:
    """Return a labelled text with as many clauses as fit into ``most`` lines (None: all); the first is always kept."""
    clauses = _CLAUSE_END.split(fact.text)
    lines = _hanging(fact.label, clauses[0], width, gap)
    room = math.inf if most is None or fact.is_whole else max(most, len(lines))
    for num_clauses in range(2, len(clauses) + 1):
        longer = _hanging(fact.label, "; ".join(clauses[:num_clauses]), width, gap)
        if len(longer) > room:
            break
        lines = longer
    return [BriefLine(line, label_width=0 if place else len(fact.label)) for place, line in enumerate(lines)]


def wrap(text: str, width: int, *, initial_indent: str = "", subsequent_indent: str = "") -> list[str]:
    """Return a text as lines of at most ``width`` columns, broken only at blanks."""
    wrapper = TextWrapper(width, initial_indent, subsequent_indent, break_long_words=False, break_on_hyphens=False)
    return wrapper.wrap(text) or [""]


def _hanging(label: str, text: str, width: int, gap: int) -> list[str]:
    """Return a labelled text, with further lines indented to its first word."""
    return wrap(text, width, initial_indent=f"{label.ljust(gap - 2)}  ", subsequent_indent=" " * gap)


def _way_lines(way: Way, width: int, gap: int, *, is_first: bool, is_whole: bool) -> list[BriefLine]:
    """Return what to do and its command, in a form that a shell accepts."""
    label = "To do" if is_first else ""
    command = command_lines(way.command, width, is_whole=is_whole) if way.command else []
    if not is_whole and (len(command) > _MOST_COMMAND or max(map(len, command), default=0) > width):
        return _way_lines(way.shorter, width, gap, is_first=is_first, is_whole=is_whole)
    lines = [BriefLine(each, label_width=len(label)) for each in _hanging(label, way.told, width, gap)]
    return [*lines, *(BriefLine(each, "dim") for each in command)]


def command_lines(command: str, width: int, *, is_whole: bool = False) -> list[str]:
    """Return a command on as few lines as possible, broken before options and before long paths."""
    if is_whole or len(command) + 2 <= width:
        return [f"  {command}"]
    if len(command) <= width:
        return [command]
    lines, room = [""], width - len(_CONTINUED)
    first, *options = command.replace(" --", "\n--").split("\n")
    parts = [first] if len(first) + 2 <= room else first.rsplit(" ", 1)
    for part in (*parts, *options):
        joined = f"{lines[-1]} {part}".strip()
        if not lines[-1] or len(joined) + 2 <= room:
            lines[-1] = joined
        else:
            lines.append(part)
    return [f"  {line}{_CONTINUED if place < len(lines) - 1 else ''}" for place, line in enumerate(lines)]


def _latency_lines(latencies: Sequence[LatencyLine], gap: int, width: int) -> list[BriefLine]:
    """Return the latencies with aligned figures, separated by two blanks, or by one if the lines are too wide.

    If they are still too wide, each goes on in further lines.
    """
    rows = [
        (f"{each.mean} mean", each.real_servers and f"({each.real_servers})", f"{each.p95} p95") for each in latencies
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)] if rows else []

    def aligned(between: str) -> list[BriefLine]:
        lines = []
        for each, row in zip(latencies, rows, strict=True):
            cells = between.join(cell.rjust(room) for cell, room in zip(row, widths, strict=True) if room)
            text = f"{each.label.ljust(gap)}{cells}{between}{each.limit}".rstrip()
            lines.append(BriefLine(text, label_width=len(each.label)))
        return lines

    for between in ("  ", " "):
        lines = aligned(between)
        if all(len(line.text) <= width for line in lines):
            return lines
    hanging = [(each.label, _hanging(each.label, each.text, width, gap)) for each in latencies]
    return [
        BriefLine(line, label_width=0 if place else len(label))
        for label, lines_of_one in hanging
        for place, line in enumerate(lines_of_one)
    ]


def _latencies(result: RunResult, console: Console) -> Table:
    """Return the SLO, the latency table and the classes."""
    from rich.console import Group
    from rich.text import Text

    section = _section()
    bounds = columns(("", ""), (True, False), [(row.label, row.cells[0].text) for row in slo_rows(result)])
    if bounds.row_count:
        section.add_row("SLO", bounds)
    caveat = steady_state_caveat(result)
    heading = Text(facts.measured(result))
    header = ("", "", *STATISTICS)
    rows = [(row.label, row.unit, *(cell.text for cell in row.cells)) for row in latency_rows(result.summary)]
    latencies = columns(header, [title == "" for title in header], rows)
    notes = [Text(caveat, style="bold yellow")] if caveat else []
    section.add_row("Latency", Group(heading, *notes, latencies))
    _add(section, "Real server", facts.real_server_lines(result))
    classes = class_rows(result)
    if classes:
        section.add_row("Classes", _class_table(classes, console))
    return section


def _class_table(classes: Sequence[Row], console: Console) -> Table:
    """Return one line per class; if that is too wide, titles take two lines and long names break: no figure is cut."""
    header = ("", *CLASS_COLUMNS)
    is_name = [title == "" for title in header]
    rows = [(each.label, *(cell.text for cell in each.cells)) for each in classes]
    table = columns(header, is_name, rows)
    narrow = columns([title.replace(" ", "\n") for title in header], is_name, rows, breaks=is_name, gap=1)
    room = console.width - _LABEL_WIDTH - 2
    return table if console.measure(table, options=console.options.update(width=_WIDEST)).maximum <= room else narrow


def _trust(result: RunResult, folder: Path | None) -> Table:
    sections = {
        "Engine": engine_lines(result),
        "Fidelity": facts.fidelity_lines(result),
        "Quality": quality_lines(result.summary["simserve"].get("quality", ())),
    }
    table = _listed(sections)
    _add(table, "Warnings", cautions(result), style="yellow")
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


def print_lines(console: Console, lines: Iterable[str], style: str = "", width: int | None = None) -> None:
    """Print plain lines of text in one style."""
    from rich.text import Text

    for line in lines:
        console.print(Text(line, style=style), width=width)


def columns(
    header: Sequence[str],
    is_text: Sequence[bool],
    rows: Iterable[Sequence[str]] = (),
    *,
    breaks: bool | Sequence[bool] = False,
    gap: int = 2,
) -> Table:
    """Return a borderless table.

    Args:
        header: Titles of the columns; no line for them if all are empty.
        is_text: Whether each column is flush left, as words are, or flush right, as figures are.
        breaks: Which columns may take several lines.
        gap: Blanks between two columns.
    """
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=any(header), padding=(0, gap, 0, 0), header_style="dim")
    may_break = (breaks,) * len(header) if isinstance(breaks, bool) else breaks
    for name, is_left, is_long in zip(header, is_text, may_break, strict=True):
        justify: Literal["left", "right"] = "left" if is_left else "right"
        table.add_column(name, justify=justify, no_wrap=not is_long, overflow="fold" if is_long else "ellipsis")
    for row in rows:
        table.add_row(*row)
    return table
