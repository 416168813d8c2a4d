"""Lines of reasoning, images and drafts: said where they are there, and nothing where they are not."""

from __future__ import annotations

import re
from io import StringIO

from rich.console import Console

from simserve.metrics.result import RunResult
from simserve.report.facts import memory_arithmetic
from simserve.report.html import render_report
from simserve.report.kinds import image_lines, reasoning_lines, speculation_lines
from simserve.report.plots import step_time
from simserve.report.sketch import Bar
from simserve.report.tables import memory_rows
from simserve.report.terminal import render_run
from simserve.scenario.load import load
from simserve.scenario.run import run


def test_reasoning_says_the_wait_the_share_and_the_dollars() -> None:
    """And how many answers the limit left out; of images nothing."""
    result = run(load("reasoning", ["workload.num_requests=60", "workload.max_tokens=1500"]), finishable=None)

    lines = reasoning_lines(result)
    assert len(lines) == 4
    assert lines[0].startswith("first visible token: ")
    assert "of the output tokens are thinking" in lines[1]
    assert "a million visible tokens" in lines[2]
    assert "thought up to the limit" in lines[3]
    assert image_lines(result) == []


def test_images_say_tokens_and_times() -> None:
    """Of reasoning nothing."""
    result = run(load("images", ["workload.num_requests=60"]), finishable=None)

    lines = image_lines(result)
    assert len(lines) == 3
    assert "images in" in lines[0]
    assert "to scale them" in lines[1]
    assert lines[2].endswith("of TTFT, over all requests")
    assert reasoning_lines(result) == []


def speculating(*overrides: str) -> RunResult:
    """Return a small run of the bundled scenario."""
    return run(load("speculative-decoding", ["workload.num_requests=60", *overrides]))


def test_the_terminal_says_what_drafts_gain() -> None:
    """Who drafts, how much is kept, how much faster, and from which batch on it is slower."""
    result, out = speculating(), StringIO()
    render_run(result, Console(file=out, width=100), None, is_verbose=True)
    shown = " ".join(out.getvalue().split())

    assert "Speculation llama-3.2-1b drafts 5 tokens ahead: 2.9" in shown
    assert "x as fast as without drafts at the mean batch of" in shown
    assert re.search(r"slower than without from \d+ sequences on", shown)
    assert re.search(r"Step time [^:]*drafting \d", shown)
    assert "618 MB of the draft" in shown


def test_without_drafts_there_is_no_line() -> None:
    """Nor a row of memory."""
    result = speculating("deployment.speculative=null")

    assert speculation_lines(result) == []
    assert "Draft weights" not in [row.label for row in memory_rows(result.summary)]


def test_a_short_enough_horizon_never_gets_slower() -> None:
    """Where no batch of the deployment makes drafts cost more than they gain, the line says so."""
    few = ["deployment.engine.max_num_seqs=16", "deployment.speculative.num_speculative_tokens=2"]

    assert "no batch is large enough to make it slower" in speculation_lines(speculating(*few))[1]


def test_a_single_token_is_never_drafted_for() -> None:
    """Answers of one token are over with their prefill."""
    lines = speculation_lines(speculating("workload.output_tokens={distribution: fixed, value: 1}"))

    assert lines == ["llama-3.2-1b drafts 5 tokens ahead; no request decoded"]


def test_the_page_adds_up_with_a_draft() -> None:
    """Memory of the draft is in the table and in the arithmetic, its time in the picture and in the note."""
    result = speculating()
    page = render_report(result)

    assert "Draft weights" in page
    assert "llama-3.2-1b drafts 5 tokens ahead" in page
    assert any("draft weights" in line for line in memory_arithmetic(result))
    assert any("drafting" in bar.label for bar in step_time(result).marks if isinstance(bar, Bar))
