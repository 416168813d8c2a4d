"""The answer of `simserve diff` as text, Markdown or HTML: what changed, and what changed too much."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from simserve.planner import diff
from simserve.planner.diff import Move
from simserve.report.figures import SHOWN
from simserve.report.page import html_table
from simserve.report.quantities import number, share
from simserve.report.terminal import columns, print_lines
from simserve.scenario.formats import formats_line

if TYPE_CHECKING:
    from rich.console import Console

_MULTIPLE = 10
"""How many times as large a figure must be for that to be said instead of a percentage, as `simserve compare` does."""
HEADER = ("figure", "before", "after", "change", "")


class Diff(diff.Diff):
    """Two results side by side: ``.summary``, and a page in a notebook."""

    def _repr_html_(self) -> str:
        return html_table(_diff_lines(self), HEADER, _diff_rows(self))


def _diff_lines(found: diff.Diff) -> list[str]:
    """Return the answer in sentences: what failed, how many figures changed, what differs between the two."""
    moved, failures = found.moved, found.failures
    num_watched = sum(each.tolerance is not None for each in found.moves)
    if failures:
        worst = failures[0]
        far = f"{len(failures)} of {num_watched} watched figures moved beyond their tolerance"
        first = f"{far}, most of all {worst.name}: {_change(worst)}."
    elif not moved:
        first = f"Nothing moved: {len(found.moves)} figures are equal."
    elif num_watched:
        first = f"All within tolerance: {len(moved)} of {len(found.moves)} figures moved."
    else:
        worst = next((each for each in moved if not each.name.startswith("std_")), moved[0])
        first = f"{len(moved)} of {len(found.moves)} figures moved, most of all {worst.name}: {_change(worst)}."
    lines = [first]
    if found.unlike is not None:
        lines = [f"The gate fails: {found.unlike}.", first]
    elif found.differs_in:
        lines.append(f"Compared although they differ in {' and '.join(found.differs_in)}.")
    lines += _formats(found)
    lines += [f"{key}: {_value(before)} → {_value(after)}" for key, (before, after) in found.changed_keys.items()]
    return lines


def _formats(found: diff.Diff) -> list[str]:
    """Return the number formats of the two, once if they are the same; nothing for results without them."""
    formats = [formats_line(each["formats"]) for each in found.identities if each.get("formats")]
    if len(formats) < len(found.names):
        return []
    return [f"Both with {formats[0]}."] if formats[0] == formats[1] else [f"{formats[0]} → {formats[1]}"]


def _diff_rows(found: diff.Diff) -> list[tuple[str, ...]]:
    """Return one row per changed figure, those that changed too much first; a median is its p50, and shown once."""
    ordered = sorted(found.moved, key=lambda move: not move.is_beyond)
    return [
        (each.name, _figure(each, each.before), _figure(each, each.after), _change(each), _note(each))
        for each in ordered
        if not each.name.startswith("median_")
    ]


def render_diff(found: diff.Diff, console: Console) -> None:
    """Print the answer and the table."""
    first, *others = _diff_lines(found)
    print_lines(console, [first], "bold red" if found.has_failed else "bold")
    print_lines(console, others, "dim")
    rows = _diff_rows(found)
    if not rows:
        return
    console.print()
    table = columns(HEADER, (True, False, False, False, True))
    for row in rows:
        table.add_row(*row, style="red" if row[-1].startswith("too far") else "")
    console.print(table)


def diff_markdown(found: diff.Diff) -> str:
    """Return the answer as Markdown, for a comment on a change."""
    first, *others = _diff_lines(found)
    lines = [f"**{first}**", *(f"- {line}" for line in others), ""]
    rows = _diff_rows(found)
    if rows:
        lines += ["| " + " | ".join(HEADER) + " |", "|---|---:|---:|---:|---|"]
        lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines).rstrip() + "\n"


def _figure(move: Move, value: float) -> str:
    is_share = move.name in SHOWN and SHOWN[move.name].kind == "share"
    return share(value) if is_share else number(value, 4)


def _change(move: Move) -> str:
    if math.isnan(move.change):
        return "appeared" if math.isnan(move.before) else "vanished"
    if math.isinf(move.relative):
        return f"{move.change:+.3g}"
    if move.before > 0 and move.relative >= _MULTIPLE - 1:
        return f"{move.relative + 1:,.{0 if move.relative >= 99 else 1}f}x"
    percent = 100 * move.relative
    return f"{percent:+.{0 if abs(percent) >= 20 else 1 if abs(percent) >= 0.1 else 3}f}%"


def _note(move: Move) -> str:
    if move.is_beyond:
        return f"too far: {100 * (move.tolerance or 0):.3g}% is tolerated"
    return "within its 95% interval" if move.is_noise else ""


def _value(value: object) -> str:
    return "unset" if value is None else str(value)
