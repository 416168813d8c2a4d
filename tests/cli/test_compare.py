"""`simserve compare`: the JSON of the design, the table, what is refused, what an interrupt leaves."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

import simserve as ss
from simserve.scenario.run import Replicator
from tests.cli.conftest import Simserve
from tests.scenario.builders import make_scenario

pytestmark = pytest.mark.usefixtures("answered_once")

_FP8 = ["--with", "fp8: deployment.quantization=fp8"]


def test_the_json_holds_summaries_and_differences(simserve: Simserve, small: str) -> None:
    """One object; a difference has its mean, its interval, and whether it is shown."""
    outcome = simserve(
        "compare", small, *_FP8, "--with", "same: deployment.replicas=1", "--replications", "5", "--json"
    )

    answer = json.loads(outcome.stdout)
    fp8, same_again = answer["variants"]
    assert (outcome.code, outcome.stderr) == (0, "")
    assert (fp8["name"], fp8["changes"]) == ("fp8", {"deployment.quantization": "fp8"})
    assert answer["requests_each"] > 20
    assert fp8["summary"]["completed"] == 5 * answer["requests_each"]
    assert {"mean", "ci95", "shown", "relative_ci95"} <= set(fp8["differences"]["mean_tpot_ms"])
    assert fp8["differences"]["mean_tpot_ms"]["ci95"][1] < 0
    assert fp8["differences"]["mean_tpot_ms"]["shown"]
    assert fp8["differences"]["mean_tpot_ms"]["relative_ci95"][1] < 0
    assert same_again["differences"]["mean_tpot_ms"] == {
        "mean": 0,
        "ci95": [0, 0],
        "shown": False,
        "relative": 0,
        "relative_ci95": [0, 0],
        "relative_real": [0, 0],
    }
    assert same_again["differences"]["slo_attainment"]["mean"] is None


def test_the_words_say_what_is_shown(simserve: Simserve, small: str) -> None:
    """And that nothing is, where nothing is."""
    outcome = simserve("compare", small, *_FP8, "--with", "same: deployment.replicas=1", "--replications", "5", "-v")

    assert outcome.stdout.startswith("Take fp8: mean TPOT -")
    assert "same: no difference shown" in outcome.stdout
    assert "(equal)" in outcome.stdout


@pytest.mark.slow
def test_the_answer_begins_with_the_best(simserve: Simserve, small: str) -> None:
    """Whatever its place among the variants, and no line of it is empty."""
    slower = ("--with", "slower: deployment.engine.host_slowdown=4")

    outcome = simserve("compare", small, *slower, *_FP8, "--replications", "5")

    assert outcome.stdout.startswith(f"Take {_FP8[1].partition(':')[0]}: mean TPOT -")
    assert "\n\n" not in outcome.stdout
    assert "\nslower " in outcome.stdout
    assert "\nslower: mean TPOT +" in simserve("compare", small, *slower, *_FP8, "--replications", "5", "-v").stdout


def test_what_a_variant_does_not_serve_is_said(simserve: Simserve, small: str) -> None:
    """Beside its latencies, which are those of the requests that it serves; a variant that serves all says nothing."""
    shed = ("--with", "shed: deployment.admission={max_queue: 1}, deployment.engine.max_num_seqs=1")

    lines = simserve("compare", small, *shed, "--replications", "2").stdout.splitlines()

    base, other = (next(each for each in lines if each.startswith(name)) for name in ("base ", "shed "))
    assert "not served" not in base
    assert re.search(r"\d% not served; mean TTFT", other)


def test_set_and_seed_change_the_base_too(simserve: Simserve, small: str) -> None:
    """A variant is a change of what is compared with; more requests than it takes to settle are run as asked."""
    arguments = ["--set", "workload.num_requests=2100", "--seed", "5", "--replications", "2", "--json"]

    answer = json.loads(simserve("compare", small, *_FP8, *arguments).stdout)

    assert answer["seed"] == 5
    assert answer["requests_each"] == 2100
    assert [answer["base"]["summary"]["completed"], answer["variants"][0]["summary"]["completed"]] == [4200, 4200]


def test_independent_says_so(simserve: Simserve, small: str) -> None:
    """In JSON and in words."""
    arguments = ["compare", small, *_FP8, "--replications", "2", "--independent"]

    assert json.loads(simserve(*arguments, "--json").stdout)["paired"] is False
    assert "each with requests of its own" in " ".join(simserve(*arguments, "-v").stdout.split())


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([], 2, "--with"),
        (["--with", "fp8"], 2, "must be NAME: KEY=VALUE"),
        ([*_FP8, *_FP8], 2, "stands twice"),
        (["--with", "x: deployment.replica=2"], 104, "--with 'x'"),
        (
            ["--with", "ep: ep=2"],
            104,
            "--with 'ep': ep: is not a known key; write deployment.enable_expert_parallel=true",
        ),
        (["--with", "x: tp=2"], 104, "write deployment.tensor_parallel_size=N"),
        (["--with", "x: model=llama-3.1-70b"], 3, "does not fit"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    simserve: Simserve, small: str, arguments: list[str], code: int, said: str
) -> None:
    """One line, nothing on stdout."""
    outcome = simserve("compare", small, *arguments)

    assert (outcome.code, outcome.stdout) == (code, "")
    assert said in outcome.error_line


def test_a_variant_that_does_not_fit_says_so_in_json(simserve: Simserve, small: str) -> None:
    """The base fits, so that it is not its memory that is printed."""
    outcome = simserve("compare", small, "--with", "x: model=llama-3.1-70b", "--json")

    answer = json.loads(outcome.stdout)
    assert (outcome.code, answer["feasible"]) == (3, False)
    assert answer["reason"].startswith("llama-3.1-70b does not fit")


def test_an_interrupt_keeps_the_replications_that_are_done(
    simserve: Simserve, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All deployments of them, so that they can be compared."""
    calls = 0
    summary = Replicator.summary

    def interrupted(self: Replicator, replication: int) -> dict[str, Any]:
        nonlocal calls
        calls += 1
        if calls == 6:
            raise KeyboardInterrupt
        return summary(self, replication)

    monkeypatch.setattr(Replicator, "summary", interrupted)

    outcome = simserve("compare", small, *_FP8, "--json")

    assert outcome.code == 105
    assert json.loads(outcome.stdout)["replications"] == 2
    assert "the 2 replications that were finished" in outcome.error_line


def test_the_python_answer_shows_itself() -> None:
    """Mappings of keys to values do what texts do."""
    answer = ss.compare(make_scenario(), {"two": {"deployment.replicas": 2}}, replications=2)

    assert answer.variants[0].scenario.deployment.replicas == 2
    assert "<table>" in answer._repr_html_()
    assert "usd" not in answer._repr_html_()
