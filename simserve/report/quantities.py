"""Numbers for readers: three significant digits, a unit, and a dash where undefined."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

UNDEFINED = "\N{EN DASH}"
_SECONDS_FROM_MS = 10_000.0  # From here on, milliseconds are written as seconds.


_LEADS_A_FIGURE = re.compile(r"[^\w\s]*\d")
"""The start of a figure: a digit, after signs such as ``+``, ``$`` or a bracket."""
_FIGURES = frozenset({"", "-", UNDEFINED, "same", "(equal)"})
"""Cells without a digit that occur in a column of figures."""


def text_columns(rows: Sequence[Sequence[str]]) -> tuple[bool, ...]:
    """Return for each column of a table whether it holds words (flush left) rather than only figures (flush right).

    The first column names its row and counts as words.
    """
    return tuple(place == 0 or not all(map(_is_figure, cells)) for place, cells in enumerate(zip(*rows, strict=True)))


def _is_figure(cell: str) -> bool:
    return cell in _FIGURES or _LEADS_A_FIGURE.match(cell) is not None


def number(value: float | None, digits: int = 3) -> str:
    """Return ``value`` with ``digits`` significant digits, never in scientific notation: ``'1,130'``, ``'0.0427'``."""
    if value is None or not math.isfinite(value):
        return UNDEFINED
    if value == 0:
        return "0"
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])
    return f"{value:,.{max(0, digits - 1 - exponent)}f}"


def count(value: float | None) -> str:
    """Return a whole number with separators; a mean over replications keeps one decimal."""
    if value is None or not math.isfinite(value):
        return UNDEFINED
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def counted(value: float, noun: str) -> str:
    """Return a count with its noun: ``'1 request'``, ``'2 requests'``."""
    return f"{count(value)} {noun}" if value == 1 else f"{count(value)} {noun}s"


def share(value: float | None) -> str:
    """Return a share of one as a percentage with digits that distinguish it from 0% and 100%: ``'43%'``, ``'99.96%'``.

    Only exactly 0 is 0%, and only exactly 1 is 100%.
    """
    if value is None or not math.isfinite(value):
        return UNDEFINED
    percent = 100 * value
    smaller = min(abs(percent), abs(100 - percent))
    if smaller == 0:
        return f"{percent:.0f}%"
    if smaller < 0.01:
        return "<0.01%" if percent < 50 else ">99.99%"
    decimals = 0 if smaller >= 10 else 1 if smaller >= 0.1 else 2
    return f"{percent:.{decimals}f}%"


def dollars(value: float | None) -> str:
    """Return dollars: with cents from one dollar on, with three digits below: ``'$15.96'``, ``'$0.000818'``."""
    if value is None or not math.isfinite(value):
        return UNDEFINED
    if value >= 1000:
        return f"${value:,.0f}"
    return f"${value:.2f}" if value >= 1 else f"${number(value)}"


def latency_unit(milliseconds: float | None) -> tuple[str, float]:
    """Return the unit for latencies of about this size, and its length in milliseconds."""
    if milliseconds is not None and milliseconds >= _SECONDS_FROM_MS:
        return "s", 1000.0
    return "ms", 1.0


def latency(milliseconds: float | None) -> str:
    """Return a latency with its unit: ``'299 ms'``, ``'10.1 s'``."""
    unit, factor = latency_unit(milliseconds)
    return UNDEFINED if milliseconds is None else f"{number(milliseconds / factor)} {unit}"


def load_figure(load: float | None, *, is_closed: bool) -> str:
    """Return a load: whole clients of a closed loop, else requests a second."""
    return count(load) if is_closed else number(load)


def capital(text: str) -> str:
    """Return a text with a capital first letter."""
    return text[:1].upper() + text[1:]


def listed(items: list[str]) -> str:
    """Return ``'a, b and c'``."""
    return " and ".join([", ".join(items[:-1]), items[-1]]) if len(items) > 1 else "".join(items)
