"""What a long command shows on a terminal: one bar that only moves forward."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from rich.progress import Progress

from simserve.cli import progress as shown
from simserve.cli.progress import progress


def test_the_bar_never_moves_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second part that begins at nothing, or one with more to do, leaves it where it was; what is done is said."""
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(Progress, "update", lambda _bar, _task, **told: seen.append(told))
    monkeypatch.setattr(shown, "AFTER_SECONDS", -1.0)

    with progress(is_shown=True) as tell:
        assert tell is not None
        tell(0, None, "reading")
        for done, total, doing in (
            (1, 4, "search"),
            (3, 4, "search"),
            (0, 2, "confirm"),
            (2, 8, "confirm"),
            (2, 2, "end"),
        ):
            tell(done, total, doing)

    assert [each["completed"] for each in seen] == [0.0, 0.25, 0.75, 0.75, 0.75, 1.0]
    assert [each["total"] for each in seen] == [None, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert [each["description"] for each in seen][-3:] == ["confirm", "confirm", "end"]
    assert seen[0]["visible"]


def test_nothing_is_shown_in_a_pipe() -> None:
    """Or where it was not asked for."""
    with progress(is_shown=True) as tell:
        assert tell is None
