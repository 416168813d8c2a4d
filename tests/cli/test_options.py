"""How lines of text are printed."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from simserve.cli import options

_LINE = "  the cheapest of all that hold"


def printed(monkeypatch: pytest.MonkeyPatch, *, is_terminal: bool) -> list[str]:
    """Return what a line of 31 characters becomes at 20 columns."""
    out = StringIO()
    console = Console(file=out, width=20, force_terminal=is_terminal, color_system=None)
    monkeypatch.setattr(options, "console", lambda: console)
    options.print_lines([_LINE])
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_an_indented_line_goes_on_below_its_own_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal."""
    assert printed(monkeypatch, is_terminal=True) == ["  the cheapest of", "  all that hold"]


def test_a_line_stays_whole_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its length."""
    assert printed(monkeypatch, is_terminal=False) == [_LINE]
