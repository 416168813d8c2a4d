"""`simserve capacity`: the JSON of the design, the answer in words, what is refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import simserve as ss
from simserve.cli.capacity import SoFar
from simserve.planner.capacity.answer import capacity
from simserve.planner.capacity.level import Found
from simserve.planner.capacity.search import FIRST_FRESH, Effort, find_capacity
from simserve.scenario.run import Replicator
from tests.cli.conftest import Simserve
from tests.scenario.builders import scenario_mapping

pytestmark = pytest.mark.usefixtures("answered_once")

_SLO = 'slo={ttft: "200 ms", tpot: "6 ms", attainment: 0.9}'
_FAST = ["--requests", "300", "--replications", "2"]


@pytest.fixture
def small(folder: Path) -> str:
    """Return the path of the small scenario behind a front end that takes any number of requests at once."""
    mapping = scenario_mapping()
    mapping["deployment"]["engine"]["frontend_latency"] = "3 ms"
    (folder / "small.yaml").write_text(yaml.safe_dump(mapping), encoding="utf-8")
    return "small.yaml"


def test_the_json_says_how_much_and_what_breaks(simserve: Simserve, small: str) -> None:
    """One object; the load that holds lies below the one that fails, and each probe says what it saw."""
    outcome = simserve("capacity", small, "--set", _SLO, *_FAST, "--json")

    answer = json.loads(outcome.stdout)
    assert (outcome.code, outcome.stderr) == (0, "")
    assert {"max_rate", "binding", "probes", "confidence_interval"} <= set(answer)
    assert answer["binding"] == "tpot"
    assert answer["confidence_interval"]["low"] <= answer["max_rate"] < answer["fails_at"]
    assert answer["max_rate"] < answer["mean_capacity"] < answer["finishable"]["rate"]
    assert answer["max_rate_90"] < answer["max_rate"]
    assert "servers of dense models on h100-sxm-80gb" in answer["max_rate_90_basis"]
    assert {"rate", "attainment", "p95_ttft_ms", "p95_tpot_ms", "goodput", "stability"} <= set(answer["probes"][0])
    by_rate = {each["rate"]: each for each in answer["probes"]}
    assert by_rate[answer["max_rate"]]["holds"]
    assert by_rate[answer["max_rate"]]["probability"] < 0.9
    assert not by_rate[answer["fails_at"]]["holds"]
    assert answer["requests"] | {"measured": 0} == {
        "per_run": 300,
        "replications": 2,
        "measured": 0,
        "needed": 100,
        "enough": True,
        "settled": answer["requests"]["settled"],
    }


def test_a_run_at_the_capacity_is_what_the_probe_says(simserve: Simserve, small: str) -> None:
    """Stretching the gaps is drawing them at that rate: the same figures to a rounding, replication by replication.

    At the capacity these are fresh ones, from the second on; in the curve's last run the first.
    """
    answer = json.loads(simserve("capacity", small, "--set", _SLO, *_FAST, "--json").stdout)

    probe = answer["probes"][-1]
    rate = probe["rate"]
    longest = probe["requests"] // probe["replications"]
    overrides = [_SLO, f"workload.arrivals.rate={rate}", f"workload.num_requests={longest}"]
    assert probe["replications"] == 1  # an overloaded load is not run again
    result = ss.run(ss.load(small, overrides))

    assert longest >= 300  # a run that is over before a queue has grown is made longer
    assert result.summary["simserve"]["slo"]["attainment"] == pytest.approx(probe["attainment"], abs=1e-9)
    assert result.summary["simserve"]["stability"] == probe["stability"]
    assert result.summary["p95_ttft_ms"] == pytest.approx(probe["p95_ttft_ms"], rel=1e-6)

    found = capacity(ss.load(small, [_SLO]), replications=2, num_requests=300).found
    rate = answer["max_rate"]
    assert found.largest.value == rate
    level = found.level(rate)
    assert level is not None
    assert len(level.trials) == 2
    for number, trial in enumerate(level.trials):
        overrides = [_SLO, f"workload.arrivals.rate={rate}", f"workload.num_requests={trial.num_simulated}"]
        fresh = Replicator(ss.load(small, overrides)).summary(FIRST_FRESH + number)
        assert fresh["simserve"]["slo"]["attainment"] == pytest.approx(trial.attainment, abs=1e-9)
        assert fresh["p95_ttft_ms"] == pytest.approx(1e3 * trial.p95_ttft, rel=1e-6)
        assert fresh["p95_tpot_ms"] == pytest.approx(1e3 * trial.p95_tpot, rel=1e-6)


def test_a_few_requests_that_hold_however_fast_they_come_have_an_answer(simserve: Simserve, folder: Path) -> None:
    """The search ends; it took their rate to infinity."""
    (folder / "few.csv").write_text("timestamp,prompt,completion\n0,500,50\n1.5,800,60\n3,400,40\n", encoding="utf-8")
    mapping = scenario_mapping(workload={"trace": {"path": "few.csv"}}, slo={"ttft": "10 s", "tpot": "5 s"})
    (folder / "few.yaml").write_text(yaml.safe_dump(mapping), encoding="utf-8")

    answer = json.loads(simserve("capacity", "few.yaml", "--json").stdout)

    assert 1000 < answer["max_rate"] < 1e9


def test_a_closed_loop_is_asked_for_clients(simserve: Simserve, folder: Path) -> None:
    """Whole ones, and as many requests as the scenario says."""
    mapping = scenario_mapping()
    mapping["workload"] |= {"arrivals": {"process": "closed_loop", "concurrency": 3}, "num_requests": 200}
    (folder / "closed.yaml").write_text(yaml.safe_dump(mapping | {"slo": {"tpot": "4 ms"}}), encoding="utf-8")

    outcome = simserve("capacity", "closed.yaml", "--json", "--replications", "2")

    answer = json.loads(outcome.stdout)
    assert isinstance(answer["max_concurrency"], int)
    assert "max_rate" not in answer
    assert answer["fails_at"] - answer["max_concurrency"] <= max(1, 0.01 * answer["fails_at"])
    assert answer["requests"]["per_run"] == 200
    assert "in at least 95% of runs of 200 requests" in " ".join(simserve("capacity", "closed.yaml").stdout.split())


@pytest.mark.slow
def test_requests_that_fail_at_any_load_are_named_instead_of_a_latency(simserve: Simserve, folder: Path) -> None:
    """One prompt in ten is longer than the context: TTFT, which limits nothing, was said to break first."""
    long = {"distribution": "fixed", "value": 9000}
    mapping = scenario_mapping()
    mapping["deployment"]["engine"]["max_model_len"] = 8192
    mapping["workload"] |= {
        "arrivals": {"process": "closed_loop", "concurrency": 4},
        "num_requests": 300,
        "classes": [{"name": "usual", "share": 0.9}, {"name": "long", "share": 0.1, "prompt_tokens": long}],
    }
    (folder / "long.yaml").write_text(yaml.safe_dump(mapping), encoding="utf-8")

    outcome = simserve("capacity", "long.yaml", "--set", "slo={ttft: 10 s, attainment: 0.95}", *_FAST)
    data = json.loads(simserve("capacity", "long.yaml", "--set", "slo={ttft: 10 s}", *_FAST, "--json").stdout)

    words = " ".join(outcome.stdout.split())
    assert outcome.code == 3
    assert "even at 1 client, " in words
    assert "of requests fail or are refused, however fast the others are." in words
    assert data["binding"] == "lost"


def test_a_fleet_that_changes_is_promised_for_runs_like_its_own(simserve: Simserve, small: str) -> None:
    """A run lasts as long as the scenario says, whatever the load; the mean load is told beside the promise."""
    fault = 'deployment.faults=[{kind: replica, at: "2 s", duration: "50 ms"}]'
    arguments = ("capacity", small, "--set", _SLO, "--set", fault)

    answer = json.loads(simserve(*arguments, "--json").stdout)
    words = " ".join(simserve(*arguments, "-v").stdout.split())

    assert 0 < answer["max_rate"] <= answer["mean_capacity"]
    assert answer["requests"]["settled"] is None
    assert ", in at least 95% of runs as long as the scenario's" in words


def test_the_page_of_classes_with_objectives_of_their_own_is_written(simserve: Simserve, folder: Path) -> None:
    """Its scenario has none: no bound is drawn, and clients are whole on it."""
    mapping = scenario_mapping()
    mapping["workload"] |= {"arrivals": {"process": "closed_loop", "concurrency": 3}, "num_requests": 100}
    mapping["workload"]["classes"] = [{"name": "chat", "share": 1.0, "slo": {"tpot": "4 ms"}}]
    (folder / "classes.yaml").write_text(yaml.safe_dump(mapping), encoding="utf-8")

    outcome = simserve("capacity", "classes.yaml", "--html", "page.html", "--json")

    most = json.loads(outcome.stdout)["max_concurrency"]
    assert (outcome.code, outcome.stderr) == (0, "")
    assert f"holds up to {most}<" in (folder / "page.html").read_text(encoding="utf-8")


def test_the_answer_comes_first_in_words(simserve: Simserve, small: str) -> None:
    """Then the load that fails, then the table."""
    outcome = simserve("capacity", small, "--set", _SLO, *_FAST, "-v")

    assert outcome.stdout.startswith("The SLO holds up to ")
    assert "TPOT breaks first" in outcome.stdout
    assert "2 runs decided it" in outcome.stdout


def test_a_short_run_beyond_the_largest_load_does_not_say_that_it_holds_its_own_traffic(
    simserve: Simserve, small: str
) -> None:
    """Twenty requests are over before a queue has grown. The flag that lengthens a run is not one of this command."""
    most = json.loads(simserve("capacity", small, "--set", _SLO, *_FAST, "--json").stdout)["max_rate"]
    short = ("--set", f"workload.arrivals.rate={1.2 * most}", "--set", "workload.num_requests=20")

    words = " ".join(simserve("capacity", small, "--set", _SLO, *_FAST, *short).stdout.split())

    assert "Now The SLO holds" in words
    assert "Its own traffic is more than that: one run holds it, " in words
    assert "It holds its own traffic" not in words
    assert "--precision" not in words


def test_too_few_requests_are_said(simserve: Simserve, small: str) -> None:
    """A percentile of ten requests is luck."""
    outcome = simserve("capacity", small, "--set", _SLO, "--requests", "30", "--replications", "2", "--max", "7")

    assert "Trust 90% rests on 60 requests; 100 are needed" in " ".join(outcome.stdout.split())


def test_nothing_above_the_maximum_is_tried(simserve: Simserve, small: str) -> None:
    """And the answer says that nothing broke."""
    answer = json.loads(simserve("capacity", small, "--set", _SLO, *_FAST, "--max", "7", "--json").stdout)

    assert answer["max_rate"] == 7
    assert (answer["binding"], answer["confidence_interval"], answer["fails_at"]) == (None, None, None)
    assert max(each["rate"] for each in answer["probes"]) == 7
    assert any("at least that" in note for note in answer["notes"])


def test_an_objective_out_of_reach_is_3_with_json(simserve: Simserve, small: str) -> None:
    """No load is small enough."""
    outcome = simserve("capacity", small, "--set", "slo={tpot: 1 us}", *_FAST, "--json")

    answer = json.loads(outcome.stdout)
    assert outcome.code == 3
    assert (answer["max_rate"], answer["binding"]) == (0, "tpot")
    assert answer["requests"]["replications"] == 1


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([], 104, "small.yaml: slo: is missing: without one no load"),
        (["--set", "slo=null"], 104, "--set slo: is missing"),
        (["--set", _SLO, "--set", "workload.arrivals={process: all_at_once}"], 104, "no load that could be raised"),
        (["--set", _SLO, "--precision", "5"], 2, "between 0 and 1"),
        (["--set", _SLO, "--set", "model=llama-3.1-70b"], 3, "does not fit"),
    ],
)
def test_what_cannot_be_searched_is_refused(
    simserve: Simserve, small: str, arguments: list[str], code: int, said: str
) -> None:
    """One line that says what to do."""
    outcome = simserve("capacity", small, *arguments)

    assert (outcome.code, outcome.stdout) == (code, "")
    assert said in outcome.error_line


def test_a_trace_is_stretched(simserve: Simserve, folder: Path) -> None:
    """Its requests are what they are; a single run a load, with an interval by batch means."""
    rows = "\n".join(f"{0.2 * each},100,20" for each in range(400))
    (folder / "trace.csv").write_text(f"arrival_time,prompt_tokens,output_tokens\n{rows}\n", encoding="utf-8")
    mapping = scenario_mapping(workload={"trace": {"path": "trace.csv", "format": "csv"}}, slo={"tpot": "5 ms"})
    (folder / "traced.yaml").write_text(yaml.safe_dump(mapping), encoding="utf-8")

    answer = json.loads(simserve("capacity", "traced.yaml", "--json").stdout)

    assert answer["max_rate"] > 5
    assert answer["requests"]["replications"] == 1
    assert simserve("capacity", "traced.yaml", "--requests", "10").code == 2


def test_the_python_answer_shows_itself() -> None:
    """The same keys as the command's, and a page."""
    answer = ss.capacity(
        ss.load("chatbot", ["workload.num_requests=50"]), highest=4.0, replications=2, num_requests=200
    )

    assert answer.summary["max_rate"] == 4
    assert "<table>" in answer._repr_html_()
    assert "holds up to 4.00 requests/s" in answer._repr_html_()


def test_a_precision_and_a_seed_are_what_the_search_gets(
    simserve: Simserve, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The effort that is asked for, and other draws."""
    asked: list[Effort] = []

    def noting(*arguments: Any, effort: Effort, **keywords: Any) -> Found:
        asked.append(effort)
        return find_capacity(*arguments, effort=effort, **keywords)

    monkeypatch.setattr("simserve.planner.capacity.answer.find_capacity", noting)

    one = simserve("capacity", small, "--set", _SLO, *_FAST, "--precision", "1%", "--max", "7", "--json")
    other = simserve("capacity", small, "--set", _SLO, *_FAST, "--seed", "9", "--max", "7", "--json")

    assert [effort.precision for effort in asked] == [0.01, 0.02]
    assert asked[0].most_requests > 10 * asked[1].most_requests
    seen = [json.loads(outcome.stdout)["probes"][-1]["p95_ttft_ms"] for outcome in (one, other)]
    assert seen[0] != seen[1]


def test_progress_gives_the_range_that_runs_have_left() -> None:
    """The highest load that holds and the lowest above it that does not, by its longest runs; at first nothing."""
    so_far = SoFar()
    before = str(so_far)
    for load, is_held in ((3.0, True), (24.0, False), (12.0, True), (2.0, False)):
        so_far.take(load, 500, is_held)
    short = str(so_far)
    so_far.take(11.0, 5000, False)
    for is_held in (True, True, False):
        so_far.take(10.0, 5000, is_held)

    assert before == ""
    assert short == "; so far 12 held, 24 missed"
    assert str(so_far) == "; so far 10 held, 11 missed"


def test_an_interrupt_of_the_fresh_runs_leaves_the_answer_incomplete(
    simserve: Simserve, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until fresh runs hold, the load that was found is not what is promised."""
    from simserve.planner.capacity import answer

    def stopped(*arguments: Any, **keywords: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(answer, "hold_in_fresh_runs", stopped)
    clients = "workload.arrivals={process: closed_loop, concurrency: 2}"

    outcome = simserve("capacity", small, "--set", _SLO, "--set", clients, *_FAST, "--max", "7")

    assert outcome.code == 105
    assert "the answer is what the runs until then have shown" in outcome.stderr


@pytest.mark.parametrize("is_dropped", [False, True], ids=["the run ends early", "the interrupt comes between runs"])
def test_an_interrupt_after_the_search_keeps_its_answer(
    is_dropped: bool, simserve: Simserve, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run of the deployment beside the answer is missing then, and nothing of the answer; the code is 105."""
    from simserve.scenario import run as running

    def stopped(*arguments: Any, **keywords: Any) -> Any:
        if is_dropped:
            raise KeyboardInterrupt
        result = whole(*arguments, **keywords)
        return replace(result, simulation=replace(result.simulation, was_interrupted=True))

    whole = running.run
    monkeypatch.setattr(running, "run", stopped)

    outcome = simserve("capacity", small, "--set", _SLO, *_FAST, "--max", "7")

    assert outcome.code == 105
    assert outcome.stdout.startswith("The SLO holds up to 7.00 requests/s")
    assert "TPOT" not in outcome.stdout.splitlines()[1]
    assert outcome.stderr.splitlines()[-1] == (
        "simserve: error: interrupted; the answer is complete, the run of the deployment is missing"
    )


def test_a_fitted_server_is_told_apart_from_all_others(simserve: Simserve, small: str, folder: Path) -> None:
    """Its ranges are its own: "90% of real servers" was said of the one server that had been measured."""
    found = ss.run(ss.load(small)).summary
    for rate in (2.0, 4.0):
        figures = {key: value for key, value in found.items() if key.endswith(("_ms", "throughput", "tokens", "ed"))}
        bench = {
            **figures,
            "request_rate": rate,
            "burstiness": 1.0,
            "duration": found["duration"],
            "date": "20261130-120000",
        }
        (folder / f"rate-{rate:g}.json").write_text(json.dumps(bench), encoding="utf-8")
    simserve("calibrate", "serving", "rate-2.json", "rate-4.json", "--scenario", small, "--out", "mine.yaml")
    ask = ("capacity", small, "--set", _SLO, *_FAST, "--max", "7", "-v")

    fitted, plain = simserve(*ask, "--set", "deployment.engine.name=mine.yaml"), simserve(*ask)

    assert re.search(r"this server holds \S+, 90% sure", fitted.stdout)
    assert "90% sure, this server holds it up to" in fitted.stdout
    assert "calibrated on 2 loads of 2026-11-30 of this server" in " ".join(fitted.stdout.split())
    assert "On 90% of real servers it holds up to" in plain.stdout
    assert "this server" not in plain.stdout
