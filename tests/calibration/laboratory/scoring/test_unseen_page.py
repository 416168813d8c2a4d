"""The page of the reports that nothing was fitted to."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibration.laboratory.scoring.unseen_page import unseen_page
from simserve.planner.measured.reports import read_unseen
from simserve.planner.validation.validate import replay
from tests.planner.test_reports import RUN, report, servers


def test_the_page_names_reports_figures_and_exclusions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By report, engine, GPU and kind of load; what is only shown has a star."""
    shown = {**RUN, "name": "shown", "measured": {"ttft": "30 ms"}, "shown_only": ["ttft"]}
    at_once = {**RUN, "name": "at-once", "clients": 6}
    excluded = [{"what": "the rest", "why": "too old"}]
    report(tmp_path, monkeypatch, servers=servers(RUN, shown, at_once), excluded=excluded)

    page = unseen_page(replay(read_unseen()), "2026-01-03")

    assert "3 of 3 were run" in page
    assert "| mine | 3 | 3 |" in page
    assert "| vllm 0.12 | 3 | 3 |" in page
    assert "| all sent to a server at once | 1 | 1 |" in page
    assert "(1)*" in page
    assert "- mine: the rest: too old." in page
