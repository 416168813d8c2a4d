"""Answers as fragments of HTML for a notebook: sentences, a table, notes. Everything that is shown is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def html_table(
    lines: Sequence[str], header: Sequence[str], rows: Iterable[Sequence[str]], notes: Sequence[str] = ()
) -> str:
    """Return sentences, the first in bold, then a table, then notes in small print.

    Args:
        lines: The answer.
        header: Titles of the columns.
        rows: Cells, as many as titles.
        notes: What limits the answer.
    """
    paragraphs = [
        f"<p><b>{escape(line)}</b></p>" if not place else f"<p>{escape(line)}</p>" for place, line in enumerate(lines)
    ]
    titles = "".join(f"<th>{escape(title)}</th>" for title in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    table = f"<table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>" if header else ""
    small = "".join(f"<p><small>{escape(note)}</small></p>" for note in notes)
    return "".join([*paragraphs, table, small])
