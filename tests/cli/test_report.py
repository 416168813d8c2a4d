"""`simserve report`, and the pages that other commands write with ``--html``."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Simserve
from tests.report.builders import Page

_SMALL = ("--set", "workload.num_requests=120")


def test_a_page_is_written_anew_with_the_same_bytes(simserve: Simserve, folder: Path) -> None:
    """From the files of the run alone, wherever they lie by now; traces and an API included."""
    simserve("run", "api-vs-self-host", *_SMALL, "--set", "pricing.api=gpt-4o", "--out", "a", "--quiet")
    (folder / "a").rename(folder / "b")
    page = (folder / "b" / "report.html").read_bytes()
    (folder / "b" / "report.html").unlink()

    outcome = simserve("report", "b")

    assert (outcome.code, outcome.stderr) == (0, "")
    assert outcome.stdout.splitlines()[0] == "b/report.html"
    assert (folder / "b" / "report.html").read_bytes() == page
    assert b"gpt-4o" in page


@pytest.mark.usefixtures("page_alone")
@pytest.mark.parametrize("name", ["interactive-and-batch", "disaggregation", "streaming", "multi-turn"])
def test_everything_that_a_run_can_hold_is_kept(simserve: Simserve, folder: Path, name: str) -> None:
    """The same page of runs with classes, pools and transfers, streams, sessions."""
    assert simserve("run", name, "--out", "a", "--quiet", *_SMALL).code == 0
    page = (folder / "a" / "report.html").read_bytes()

    assert simserve("report", "a", "--html", "again.html", "--quiet").code == 0
    assert (folder / "again.html").read_bytes() == page


def test_the_page_goes_where_it_is_told(simserve: Simserve, folder: Path) -> None:
    """And the JSON says where."""
    simserve("run", "chatbot", *_SMALL, "--out", "a", "--quiet")

    outcome = simserve("report", "a", "--html", "mine.html", "--json")

    assert json.loads(outcome.stdout)["report"] == "mine.html"
    assert (folder / "mine.html").read_bytes() == (folder / "a" / "report.html").read_bytes()


def test_a_folder_without_a_result_is_refused(simserve: Simserve, folder: Path) -> None:
    """With what to name instead."""
    (folder / "empty").mkdir()

    assert simserve("report", "absent").code == 104
    outcome = simserve("report", "empty")

    assert outcome.code == 104
    assert outcome.error_line == "empty: holds no result.json; name the folder that a run wrote"


_COMMANDS = {
    "capacity": ("capacity", "chatbot", "--requests", "150", "--replications", "2"),
    "compare": ("compare", "chatbot", "--with", "two: deployment.replicas=2", "--replications", "2", *_SMALL),
    "sweep": (
        *("sweep", "chatbot", "--grid", "workload.arrivals.rate=2,4", "--workers", "1", "--out", "x.parquet", *_SMALL),
    ),
    "plan": ("plan", "single-gpu-7b", "--max-gpus", "16", "--jobs", "1",
             "--keep", "gpus,weights,kv-cache,engine,drafts,pools", "--trials", "0", *_SMALL),
    "cost": ("cost", "--gpus", "2", "--gpu-hour-usd", "6", "--requests-per-month", "1e6", "--prompt-tokens", "500",
             "--output-tokens", "200", "--api-input-usd", "5", "--api-output-usd", "30"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("headroom_alone")
@pytest.mark.parametrize("command", _COMMANDS)
def test_every_answer_is_a_page(simserve: Simserve, folder: Path, command: str) -> None:
    """Self-contained, balanced, with pictures that say what they show, and the command that gives it again."""
    outcome = simserve(*_COMMANDS[command], "--html", "page.html", "--quiet")

    text = (folder / "page.html").read_text(encoding="utf-8")
    page = Page(text)
    figures = [attributes for tag, attributes in page.elements if tag == "svg"]
    assert outcome.code == 0, outcome.stderr
    assert page.open == []
    assert not {"link", "iframe", "img"} & {tag for tag, _ in page.elements}
    assert page.attributes("src") == []
    shown = re.sub(r"<script.*?</script>", "", text, flags=re.S)  # its comments begin with two slashes
    assert "//" not in shown.replace("://", "//").replace("</", "").split("<main>")[1] or command == "plan"
    assert figures
    assert all(len(each["aria-label"] or "") > 30 for each in figures)
    assert f"simserve {command} " in page.text
    assert "page.html" not in text
    assert len(text) < 400_000


@pytest.mark.parametrize("command", _COMMANDS)
def test_a_page_that_cannot_be_written_is_refused_at_once(simserve: Simserve, command: str) -> None:
    """Before anything is simulated."""
    outcome = simserve(*_COMMANDS[command], "--html", "nowhere/page.html")

    assert outcome.code == 2
    assert "--html: 'nowhere/page.html' cannot be written" in outcome.error_line
