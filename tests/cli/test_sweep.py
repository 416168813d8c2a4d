"""`simserve sweep`: the JSON of the design, the table on the terminal, exit codes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import simserve as ss
from simserve.planner.sweep import workers as sweep_workers
from tests.cli.conftest import Simserve
from tests.planner.sweep.test_sweep import interrupt_after
from tests.scenario.builders import make_scenario

_GRID = ["--grid", "workload.arrivals.rate=2,5", "--grid", "deployment.replicas=1,2"]


def test_the_json_counts_points_and_failures(simserve: Simserve, small: str) -> None:
    """One object; the table is in the file."""
    outcome = simserve("sweep", small, *_GRID, "--out", "x.parquet", "--workers", "1", "--json")

    answer = json.loads(outcome.stdout)
    assert (outcome.code, outcome.stderr) == (0, "")
    assert (answer["points"], answer["failed"], answer["interrupted"]) == (4, 0, False)
    assert answer["keys"] == ["workload.arrivals.rate", "deployment.replicas"]
    assert Path("x.parquet").is_file()


def test_the_table_names_points_without_a_result(simserve: Simserve, small: str) -> None:
    """And why they have none."""
    grid = ["--grid", "model=llama-3.2-1b,llama-3.1-405b"]
    outcome = simserve("sweep", small, *grid, "--out", "x.parquet", "--workers", "1")

    assert outcome.code == 0
    assert "\n2 points, 1 of them without a result, written to x.parquet.\n" in outcome.stdout
    assert "1 x infeasible: llama-3.1-405b does not fit" in outcome.stdout


def test_a_sweep_says_first_what_it_found(simserve: Simserve, small: str) -> None:
    """At how many points the SLO holds, and which of those is cheapest; where none holds, the nearest."""
    words = ["sweep", small, "--grid", "workload.arrivals.rate=1,4", "--workers", "1", "--force", "--out", "x.parquet"]
    price = ["--set", "pricing.gpu_hour_usd=2"]

    loose = simserve(*words, *price, "--set", "slo={tpot: 10 s}").stdout.splitlines()[0]
    tight = simserve(*words, *price, "--set", "slo={tpot: 1 us}").stdout.splitlines()[0]

    assert re.fullmatch(
        r"The SLO holds at 2 of 2 points; the cheapest of those is rate 4: \$[\d.]+ a million output tokens\.",
        loose,
    )
    assert re.fullmatch(r"The SLO holds at none of 2 points; the nearest: 0% of requests meet it at rate [14]\.", tight)


@pytest.mark.slow
def test_a_key_that_changes_nothing_is_named(simserve: Simserve, small: str) -> None:
    """A routing policy of one replica: the table repeated its rows without a word."""
    words = ["sweep", small, "--workers", "1", "--out", "x.parquet", "--grid", "workload.arrivals.rate=1,4"]

    alone = simserve(*words, "--grid", "deployment.routing=round_robin,prefix").stdout
    both = simserve(*words, "--grid", "deployment.replicas=1,2", "--force").stdout

    assert "\nNo figure depends on routing here.\n" in alone
    assert "No figure depends" not in both


def test_a_long_table_shows_the_best(simserve: Simserve, small: str) -> None:
    """Twenty rows of twenty-two, and it says so."""
    rates = ",".join(str(rate) for rate in range(1, 23))
    outcome = simserve(
        "sweep", small, "--grid", f"workload.arrivals.rate={rates}", "--out", "x.parquet", "--workers", "1"
    )

    assert "Below, the 20 with the cheapest output tokens" in outcome.stdout
    assert len(outcome.stdout.splitlines()) == 27


def test_seed_and_set_change_every_point(simserve: Simserve, small: str) -> None:
    """As in every command."""
    common = ["sweep", small, "--grid", "deployment.replicas=1,2", "--workers", "1", "--quiet"]
    simserve(*common, "--out", "a.parquet")
    simserve(*common, "--out", "b.parquet", "--seed", "9")
    simserve(*common, "--out", "c.parquet", "--set", "workload.num_requests=5")

    assert len({Path(f"{name}.parquet").read_bytes() for name in "abc"}) == 3


def test_a_sample_may_replace_another_table_by_force(simserve: Simserve, small: str) -> None:
    """And only then."""
    common = ["sweep", small, *_GRID, "--out", "x.parquet", "--workers", "1", "--json"]
    simserve(*common)

    refused = simserve(*common, "--sample", "2")
    forced = simserve(*common, "--sample", "2", "--force")

    assert (refused.code, refused.stdout) == (2, "")
    assert "--force" in refused.error_line
    assert json.loads(forced.stdout)["points"] == 2


def test_an_interrupt_is_105_and_says_how_to_go_on(
    simserve: Simserve, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The JSON is still printed."""
    monkeypatch.setattr(sweep_workers, "run_task", interrupt_after(3))

    outcome = simserve("sweep", small, *_GRID, "--out", "x.parquet", "--workers", "1", "--json")

    assert outcome.code == 105
    assert json.loads(outcome.stdout)["done"] == 3
    assert "3 of 4 points are kept in x.parquet.partial" in outcome.error_line


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--grid", "deployment.replicas", "--out", "x.parquet"], 2, "must be KEY=VALUE,VALUE"),
        (["--grid", "deployment.replica=1", "--out", "x.parquet"], 104, "no point of the grid"),
        (["--grid", "deployment.replicas=1", "--out", "x.txt"], 2, "must end in .parquet or .csv"),
        (["--grid", "deployment.replicas=1", "--out", "x.parquet", "--backend", "spark"], 2, "loky, dask, ray"),
        (["--grid", "deployment.replicas=1"], 2, "--out"),
        (
            ["--grid", "deployment.replicas=1", "--out", "x.parquet", "--scheduler", "tcp://a:1", "--workers", "2"],
            2,
            "--workers",
        ),
    ],
)
def test_what_cannot_be_swept_is_refused(
    simserve: Simserve, small: str, arguments: list[str], code: int, said: str
) -> None:
    """One line, nothing on stdout, no file."""
    outcome = simserve("sweep", small, *arguments)

    assert (outcome.code, outcome.stdout) == (code, "")
    assert said in outcome.error_line
    assert [path.name for path in Path.cwd().iterdir()] == ["small.yaml"]


def test_the_python_answer_shows_itself() -> None:
    """As a data frame too, and without a file."""
    answer = ss.sweep(make_scenario(), {"deployment.replicas": [1, 2]})

    assert list(answer.points["deployment.replicas"]) == [1, 2]
    assert "<table>" in answer._repr_html_()
    assert not list(Path.cwd().iterdir())


def test_the_answer_says_from_where_to_where(simserve: Simserve, small: str) -> None:
    """The figures of the table over all points, with their units."""
    outcome = simserve("sweep", small, *_GRID, "--out", "x.parquet", "--workers", "1")

    reach = outcome.stdout.splitlines()[2]
    assert "TTFT p95 " in reach
    assert " ms; TPOT p95 " in reach
    assert " to " in reach
