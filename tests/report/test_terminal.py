"""The answer on a terminal."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from simserve.report.answer import answer
from simserve.report.brief import trust_text
from simserve.report.facts import measured, precision_reached
from simserve.report.kinds import class_rows
from simserve.report.knobs import engine_name
from simserve.report.quantities import UNDEFINED
from simserve.report.tables import latency_rows
from simserve.report.terminal import render_run
from simserve.scenario.load import load
from simserve.scenario.run import run as run_scenario
from tests.report.builders import CASES, page_text, run, terminal
from tests.scenario.builders import make_scenario

_ORDER = ("SLO", "Latency", "Throughput", "Memory", "Dollars", "Step time", "Queue", "Engine", "Fidelity")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("width", [80, 120])
def test_no_line_is_wider_than_the_terminal(case: str, width: int) -> None:
    """At most 100 columns are used."""
    assert max(map(len, terminal(case, width).splitlines())) <= min(width, 100)


@pytest.mark.parametrize("case", CASES)
def test_the_answer_comes_first(case: str) -> None:
    """Before anything else."""
    shown = " ".join(terminal(case).split())

    assert shown.startswith(answer(run(case)))


def test_sections_come_in_the_order_of_their_weight() -> None:
    """The SLO first, what to believe last."""
    labels = [line.split("  ")[0] for line in terminal("stable").splitlines()]

    assert [label for label in labels if label in _ORDER] == list(_ORDER)


@pytest.mark.parametrize("case", CASES)
def test_every_latency_is_shown_with_its_unit(case: str) -> None:
    """Three digits, in ms or s."""
    lines = [line.split() for line in terminal(case).splitlines()]

    for row in latency_rows(run(case).summary):
        assert [row.label, row.unit, *" ".join(cell.text for cell in row.cells).split()] in lines


def test_undefined_latencies_are_dashes() -> None:
    """Static batching has no TPOT and no ITL."""
    rows = {line.split()[0]: line.split() for line in terminal("static").splitlines() if line.split()}

    assert rows["TPOT"] == ["TPOT", "ms", *[UNDEFINED] * 5]
    assert rows["ITL"] == ["ITL", "ms", *[UNDEFINED] * 5]


def test_percentiles_of_an_overloaded_run_are_marked() -> None:
    """Right above them."""
    shown = terminal("overloaded")

    assert "not steady state" in shown.partition("TTFT  s")[0].partition("Latency")[2]


def test_replications_show_their_intervals() -> None:
    """Half-widths beside the means."""
    row = next(line for line in terminal("replicated").splitlines() if line.split()[:2] == ["TTFT", "ms"])

    assert row.count("±") == 5
    assert "3 runs; ± is the 95% interval" in " ".join(terminal("replicated").split())


def test_runs_that_have_not_settled_claim_no_interval() -> None:
    """And say so, with what helps; alone they are marked too."""
    several, alone = (" ".join(terminal(case).split()) for case in ("unsettled", "lone-unsettled"))

    assert "±" not in several
    assert "no 95% interval, since at load 0.44 a run of this length has not settled: --precision 0.05" in several
    assert "; at load 0.44 a run of this length has not settled: --precision 0.05" in alone
    assert "settled" not in terminal("replicated")
    assert "no 95% interval, since at load 0.44" in page_text("unsettled")


def test_the_attainment_is_asked_for_in_points() -> None:
    """One percentage point, whatever precision is asked of latencies: the line says how far it was reached."""
    changes = ["workload.arrivals.rate=9.5", "workload.num_requests=1500"]

    result = run_scenario(load("chatbot", [*changes, "run.precision=0.9", "run.max_replications=2"]))

    told = r"slo_attainment is known to [\d.]+ percentage points, 1 was asked"
    assert re.search(f"; {told}", measured(result))
    assert re.match(told, trust_text(result))


def test_a_precision_that_a_share_reaches_or_that_takes_too_many_requests_is_said() -> None:
    """Which percentile lies where few values are; or how many requests it takes, rounded."""
    reached = {"precision": 0.05, "reached": True, "widest": None, "by_share": ["p90_itl_ms"], "needed_requests": None}
    width = {"metric": "p99_ttft_ms", "half_width": 0.2, "allowed": 0.01}
    missed = {"precision": 0.01, "reached": False, "widest": width, "by_share": [], "needed_requests": 19_400_000}

    assert precision_reached(reached).endswith(
        "p90_itl_ms lies where there are few values: the share above it is known to 5%"
    )
    assert precision_reached(missed).endswith(
        "p99_ttft_ms is known to 20%, 1% was asked, which takes some 20,000,000 requests"
    )


def test_a_run_without_a_kv_cache_says_so() -> None:
    """Instead of shares of nothing."""
    assert "no KV cache" in terminal("uncached")


def test_the_files_are_named_last(tmp_path: Path) -> None:
    """Those that are there."""
    (tmp_path / "report.html").touch()

    shown = terminal("stable", 200, tmp_path)

    assert "report.html" in shown.splitlines()[-1]
    assert "Files" not in terminal("stable")


def test_nothing_is_taken_for_markup() -> None:
    """Brackets in a name stay what they are."""
    result, shown = run("stable"), StringIO()
    named = replace(result, scenario={**result.scenario, "model": "[red]mine[/red]"})

    render_run(named, Console(file=shown, width=80), None)

    assert "[red]mine[/red]" in shown.getvalue()


@pytest.mark.parametrize(
    ("num_requests", "said"),
    [(60, "only one request is slower than p99"), (500, "only 5 requests are slower than p99"), (1000, "")],
)
def test_a_percentile_of_few_requests_is_said_to_be_one(num_requests: int, said: str) -> None:
    """Ten must lie beyond it, or it is the luck of some."""
    result = run_scenario(make_scenario([f"workload.num_requests={num_requests}", "run.warmup=none"]))

    assert ("use at least 1,000 requests" in measured(result)) == bool(said)
    assert said in measured(result)


def test_a_low_bit_format_says_what_of_a_step_it_does_not_shorten() -> None:
    """FP8 shortens weights and arithmetic; communication, host and KV stay."""
    text = " ".join(terminal("stable").split())

    assert "fp8 shortens reading weights and compute; not the other" in text
    assert "shortens" not in terminal("static")


def test_no_figure_of_a_class_is_cut_where_the_terminal_is_narrow() -> None:
    """At 80 columns titles take two lines and a long name breaks; at 100 a class is one line under one line."""
    classes = [{"name": name, "share": 0.5} for name in ("summaries-of-contracts", "chat")]
    result = run_scenario(make_scenario([f"workload.classes={json.dumps(classes)}", "workload.num_requests=50"]))
    narrow, wide = StringIO(), StringIO()

    render_run(result, Console(file=narrow, width=80), None, is_verbose=True)
    render_run(result, Console(file=wide, width=100), None, is_verbose=True)

    cells = [cell.text for row in class_rows(result) for cell in row.cells]
    assert all(cell in narrow.getvalue() for cell in cells)
    assert "\u2026" not in narrow.getvalue()
    assert "requests  lost  TTFT p50" in wide.getvalue()
    assert "summaries-of-contracts  " in wide.getvalue()


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        ("0.20.0", "vllm 0.20"),
        ("v0.20", "vllm 0.20"),
        (None, "vllm 0.20"),
        ("0.20.1", "vllm 0.20 (nearest known to 0.20.1)"),
    ],
)
def test_a_version_written_with_its_zeros_is_the_same(asked: str | None, shown: str) -> None:
    """Only another one has a nearest that is known."""
    told = {"name": "vllm", "version": "0.20", "requested_version": asked}
    result = replace(run(next(iter(CASES))), summary={"simserve": {"engine_resolved": told}})

    assert engine_name(result) == shown
