"""The README's figures are written from the pages that they come from."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from docs.write_readme import README, filled, matched, with_exam, with_intervals, with_sources, with_unseen

WRITERS = [with_unseen, with_sources, with_intervals, with_exam]


@pytest.mark.parametrize("write", WRITERS)
def test_a_stale_figure_is_written_anew(write: Callable[[str], str]) -> None:
    """Today's README stays as it is; figures that were spoilt come back."""
    text = README.read_text(encoding="utf-8")
    spoilt = re.sub(r"(?<=\d)\d(?= %| sources| of them)", "7", text)

    assert write(text) == text
    assert write(spoilt) != spoilt
    assert write(write(spoilt)) == write(spoilt)


def test_lines_are_followed_whatever_their_digits() -> None:
    """Lines that are new in between are left out, as `...` was; what is gone stays for the reader to see."""
    shown = ["TTFT 119 ms mean", "...", "Cost  $11 a month"]
    lines = ["head", "TTFT  98 ms mean", "TPOT  20 ms mean", "Cost  $12 a month", "end"]

    assert matched(shown, lines) == ["TTFT  98 ms mean", "...", "Cost  $12 a month"]


def test_a_sentence_may_be_broken_anywhere_but_stands_there_once() -> None:
    """With the line break kept; a sentence that is gone or doubled is said."""
    assert filled("it is 3.5 %\noff in 1,234 rows", "is # % off in # rows", "4", "99") == "it is 4 %\noff in 99 rows"
    with pytest.raises(SystemExit, match="0 times"):
        filled("nothing", "is # %", "4")
