"""Tests of the way out of a run that misses what is asked."""

from __future__ import annotations

import json
import shlex
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import simserve
from simserve.cli.main import main
from simserve.planner.advice import BUDGET, advise
from simserve.planner.search.trial import run_holds
from simserve.report.answer import NO_WAY_OUT, advice_lines
from simserve.report.html import render_report
from simserve.report.terminal import render_run
from simserve.scenario.run import run
from tests.scenario.builders import make_scenario

OVERLOADED = ["workload.arrivals.rate=14", "workload.num_requests=1000"]
CLIENTS = ["workload.arrivals={process: closed_loop, concurrency: 120}", "workload.num_requests=600"]


def advice(changes: list[str], name: str = "chatbot") -> list[dict[str, Any]]:
    """Return what is advised for a bundled scenario."""
    found = simserve.run(simserve.load(name, changes), advise=True, reference=[name]).summary["simserve"]["advice"]
    assert found is not None
    return [dict(each) for each in found]


@cache
def of_overload() -> list[dict[str, Any]]:
    """Return what is advised where too much arrives: for all tests that read it."""
    return advice(OVERLOADED)


def test_a_run_that_holds_pays_nothing_and_is_advised_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No further run is made where the SLO holds, and none where nothing is asked."""
    monkeypatch.setattr("simserve.planner.advice.run", lambda *_, **__: pytest.fail("a run was made"))

    assert advice(["workload.num_requests=100"]) == []
    assert advice(["workload.arrivals.rate=60", "workload.num_requests=100", "slo=null"]) == []


def test_nobody_pays_for_advice_who_did_not_ask() -> None:
    """A run in memory does not look for a way out: null, which an empty list is not."""
    result = simserve.run(simserve.load("chatbot", OVERLOADED))

    assert result.summary["simserve"]["advice"] is None


@pytest.mark.slow
def test_each_change_does_what_is_said_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command runs as printed, and gives the attainment and the dollars that stand beside it."""
    words = ["run", "chatbot", *(word for change in CLIENTS for word in ("--set", change))]

    main([*words, "--out", str(tmp_path / "first"), "--json"])

    ways = json.loads(capsys.readouterr().out)["simserve"]["advice"]
    assert 2 <= len(ways) <= 3
    for number, way in enumerate(ways):
        name, *rest = shlex.split(way["command"])
        assert name == "simserve"
        assert main([*rest, "--out", str(tmp_path / str(number)), "--json"]) == 0
        inner = json.loads(capsys.readouterr().out)["simserve"]
        assert inner["slo"]["attainment"] == way["attainment"] >= 0.95
        assert inner["cost"]["usd_per_hour"] == way["usd_per_hour"]
        assert inner["stability"] != "overloaded"


@pytest.mark.slow
def test_terminal_and_page_say_what_would_hold() -> None:
    """Each change with its command, or that none of those tried is enough; nothing of either where the SLO holds."""
    out = Console(width=100, record=True, file=StringIO())

    found = simserve.run(simserve.load("chatbot", CLIENTS), advise=True, reference=["chatbot"])
    hopeless = simserve.run(simserve.load("chatbot", [*CLIENTS, "slo.tpot=1 ms"]), advise=True)
    holds = simserve.run(simserve.load("chatbot", ["workload.num_requests=100"]), advise=True)

    way = (found.summary["simserve"]["advice"] or ())[0]
    for result, is_found, is_hopeless in ((found, True, False), (hopeless, False, True), (holds, False, False)):
        render_run(result, out, None)
        # On a page no word of a command is broken at its hyphens.
        page = render_report(result).replace("<span>", "").replace("</span>", "")
        for text in (out.export_text(), page):
            assert (way["command"] in text) is is_found
            assert (NO_WAY_OUT in text) is is_hopeless


def test_deployments_come_by_their_price_and_the_load_last() -> None:
    """Two changes of the deployment and what it can take as it is; no command says both what was and what shall be."""
    reference = ["chatbot", *(word for change in OVERLOADED for word in ("--set", change))]

    found = simserve.run(simserve.load("chatbot", OVERLOADED), advise=True, reference=reference)

    *deployments, load = found.summary["simserve"]["advice"] or ()
    assert list(load["changes"]) == ["workload.arrivals.rate"]
    assert load["command"].count("workload.arrivals.rate=") == 1
    assert all("workload.arrivals.rate" not in each["changes"] for each in deployments)
    assert [each["usd_per_hour"] for each in deployments] == sorted(each["usd_per_hour"] for each in deployments)


def test_a_change_that_does_not_fit_is_no_way_out() -> None:
    """One GPU takes the 70 billion weights in 8 bit alone: 16 bit are tried, do not fit, and the run has its answer."""
    one_gpu = ["deployment.tensor_parallel_size=1", "deployment.engine.max_model_len=4096"]
    ways = advice([*one_gpu, "workload.prompt_tokens=2000", "workload.output_tokens=100", "workload.num_requests=60"])

    assert all(way["changes"].get("deployment.quantization") != "none" for way in ways)


@pytest.mark.slow
def test_a_format_is_advised_where_it_is_enough() -> None:
    """16-bit weights whose TPOT is too long: a checkpoint of fewer bits costs no dollar more."""
    ways = advice(["deployment.quantization=none", "workload.arrivals.rate=8", *OVERLOADED[1:]])

    formats = [each for each in ways if list(each["changes"]) == ["deployment.quantization"]]
    assert formats
    assert formats[0]["changes"]["deployment.quantization"] != "none"


@pytest.mark.slow
def test_a_format_that_does_not_fit_is_no_way_out() -> None:
    """The 16 bit that a file of 8 bits was made of need more than both cards have: another change is looked for."""
    changes = [
        "model=qwen3-32b",
        "deployment={hardware: rtx-4090-24gb, pipeline_parallel_size: 2, quantization: Q8_0}",
        "deployment.engine.name=llama.cpp",
        "workload.arrivals={process: closed_loop, concurrency: 20}",
        "workload.prompt_tokens=2000",
        "workload.num_requests=60",
    ]

    assert not any(each["changes"].get("deployment.quantization") == "none" for each in advice(changes))


@pytest.mark.parametrize("changes", [pytest.param(OVERLOADED, marks=pytest.mark.slow), CLIENTS], ids=["open", "closed"])
def test_what_is_advised_holds_on_fresh_seeds(changes: list[str]) -> None:
    """Of eight seeds that no search has seen at most one misses; of the load that one run held, nine of twelve did."""
    ways = of_overload() if changes is OVERLOADED else advice(changes)

    assert len(ways) >= 2
    for way in ways:
        holding = 0
        for seed in range(7001, 7009):
            changed = [f"{key}={json.dumps(value)}" for key, value in way["changes"].items()]
            fresh = simserve.load("chatbot", [*changes, *changed, f"run.seed={seed}"])
            holding += run_holds(fresh, simserve.run(fresh).summary)
        assert holding >= 7, way


@pytest.mark.slow
def test_clients_of_a_closed_loop_are_the_load() -> None:
    """Where clients wait for their answers, fewer of them is the load that can be taken."""
    ways = advice(CLIENTS)

    assert 1 <= ways[-1]["changes"]["workload.arrivals.concurrency"] < 120


@pytest.mark.slow
def test_a_precision_with_a_most_number_of_runs_is_advised_alike() -> None:
    """Each change is run once, without either; it was refused, and nothing was found to be enough."""
    precise = [*OVERLOADED, "run.precision=50%", "run.max_replications=4"]

    assert [each["changes"] for each in advice(precise)] == [each["changes"] for each in of_overload()] != []


@pytest.mark.slow
def test_many_more_clients_than_a_replica_holds_are_advised_as_many_replicas() -> None:
    """No ratio tells how many; twice the replicas hold none of them, sixteen times hold all."""
    ways = advice(
        [
            "workload.arrivals={process: closed_loop, concurrency: 400}",
            "workload.num_requests=800",
            "slo={tpot: 26 ms, attainment: 0.95}",
        ]
    )

    replicas, clients = ways[0]["changes"]["deployment.replicas"], ways[-1]["changes"]["workload.arrivals.concurrency"]
    assert replicas > 8
    assert 20 <= clients < 50  # below a tenth of them, a replica's share is still looked for
    assert 0.5 < clients * replicas / 400 < 1.5


@pytest.mark.slow
def test_a_threshold_alone_is_enough_to_ask() -> None:
    """Without an SLO a threshold that fails is what must hold."""
    ways = advice(["slo=null", "thresholds={tpot_ms: ['p(95)<60']}", *CLIENTS])

    assert ways
    assert all(each["attainment"] is None for each in ways)


def test_work_is_counted_in_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """No trial begins once the budget is simulated: what it costs does not depend on the machine."""
    spent: list[int] = []

    def counted(*arguments: Any, **options: Any) -> Any:
        found = run(*arguments, **options)
        spent.append(len(found.simulation.records))
        return found

    monkeypatch.setattr("simserve.planner.advice.run", counted)
    scenario = simserve.load("chatbot", ["slo.tpot=1 ms", "workload.num_requests=600"])
    result = run(scenario)

    found = advise(scenario, result)

    assert found == []
    assert 600 <= sum(spent) <= BUDGET + 600


def test_an_autoscaled_fleet_that_starts_too_late_keeps_more_replicas_ready() -> None:
    """Under a spike no knob helps, and more replicas at most do not either: those at the beginning do."""
    there = {
        "deployment": {
            "hardware": "l40s-48gb",
            "engine": {"name": "vllm", "version": "0.12"},
            "autoscaling": {"metric": "queue_depth", "target": 5, "max_replicas": 8},
        },
        "workload": {
            "arrivals": {"process": "spike", "rate": 2, "factor": 5, "at": "2 min", "spike_duration": "3 min"},
            "prompt_tokens": 1000,
            "output_tokens": 300,
            "duration": "6 min",
        },
        "slo": {"ttft": "2 s", "tpot": "60 ms", "attainment": 0.95},
    }
    result = simserve.run(make_scenario(model="llama-3.1-8b", **there), advise=True)
    ready = {"deployment.autoscaling.min_replicas": 4, "deployment.replicas": 4}
    words = [f"{key}={value}" for key, value in ready.items()]
    late, early = (
        simserve.run(make_scenario(each, model="llama-3.1-8b", **there)).summary["simserve"]["slo"]["attainment"]
        for each in ([], words)
    )
    ways = [line for line, _ in advice_lines(result.summary)]

    assert ready in [dict(each["changes"]) for each in result.summary["simserve"]["advice"]]
    assert late < 0.95 <= early
    assert any(each.startswith("With at least 4 replicas it holds") for each in ways)


def test_a_few_seats_become_as_many_as_the_load_needs() -> None:
    """Four seats finish a quarter of what arrives: more of them are free, and replicas are not."""
    first = advice(["deployment.engine.max_num_seqs=4", "workload.num_requests=1000"])[0]

    assert first["changes"] == {"deployment.engine.max_num_seqs": 64}
    assert first["usd_per_hour"] == pytest.approx(4 * 4.11)


def test_seats_and_a_small_budget_are_raised_together() -> None:
    """More seats alone wait for the 256 tokens of a step: three replicas were advised, for three times the dollars."""
    first = advice(
        [f"deployment.engine.{each}" for each in ("max_num_seqs=8", "max_num_batched_tokens=256")]
        + ["workload.num_requests=1000"]
    )[0]

    assert first["changes"] == {
        "deployment.engine.max_num_seqs": 64,
        "deployment.engine.max_num_batched_tokens": 2048,
    }
    assert first["usd_per_hour"] == pytest.approx(4 * 4.11)


def test_graphs_are_advised_to_a_server_that_forgoes_them() -> None:
    """They are free: "no single change of those tried is enough" was said of a server that its launches slow down."""
    changes = ["deployment.engine.enforce_eager=true", "slo={ttft: 1 s, tpot: 22 ms, attainment: 0.95}"]
    load = ["workload.arrivals.rate=2", "workload.num_requests=400"]

    first = advice([*changes, *load])[0]

    assert first["changes"] == {"deployment.engine.enforce_eager": False}
    assert first["usd_per_hour"] == pytest.approx(4 * 4.11)
