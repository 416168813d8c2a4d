"""The run that decides in a search: when it is shorter, when narrower, and that both say what the whole says."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from scipy.stats import t as student

from simserve.planner.capacity.fresh import TIMES_FRESH
from simserve.planner.capacity.level import Promise
from simserve.planner.capacity.probe import LoadProbe
from simserve.planner.capacity.search import FRESH_RUNS
from simserve.planner.overrides import with_overrides
from simserve.planner.plan.fleet import Fleet, confirm, traffic_sustained
from simserve.planner.search.deciding_run import deciding_run, further_run, narrow_run, narrowed, promise_of
from simserve.planner.search.trial import (
    MOST_REQUESTS,
    finishable_of,
    has_other_runs,
    is_steady,
    is_uneven,
    request_limit,
    try_fleet,
)
from simserve.scenario.finishable import find_finishable
from simserve.scenario.load import load
from simserve.scenario.resolve import resolve
from simserve.scenario.run import deploy
from simserve.scenario.schema import Scenario
from tests.scenario.builders import make_scenario


def crowd(**changes: Any) -> Scenario:
    """Return 240 clients in conversations on replicas that hold some thirty of them each."""
    return make_scenario(
        **{
            "model": "llama-3.1-8b",
            "deployment": {
                "hardware": "l4-24gb",
                "replicas": 8,
                "engine": {"name": "vllm", "version": "0.12", "max_model_len": 4096, "max_num_seqs": 32},
            },
            "workload": {
                "arrivals": {"process": "closed_loop", "concurrency": 240},
                "prompt_tokens": {"distribution": "fixed", "value": 100},
                "output_tokens": {"distribution": "uniform", "min": 10, "max": 50},
                "num_requests": 4800,
            },
            "slo": {"ttft": "2 s", "attainment": 0.95},
            **changes,
        }
    )


def test_a_narrower_fleet_says_what_the_whole_says() -> None:
    """A quarter of the replicas with a quarter of the clients: the same share in time, the same rates of the whole."""
    scenario = crowd()

    whole, narrow = try_fleet(scenario, {}, 8), narrow_run(scenario, {}, 8, 2)

    assert narrow.requests == whole.requests / 4
    assert narrow.share == 0.25
    assert narrow.attainment == pytest.approx(whole.attainment, abs=0.03)
    for name in ("num_gpus", "usd_per_hour", "replicas", "mean_gpus"):
        assert getattr(narrow, name) == pytest.approx(getattr(whole, name))
    assert narrow.figures["output_throughput"] == pytest.approx(whole.figures["output_throughput"], rel=0.05)
    assert narrow.figures["total_output_tokens"] == pytest.approx(whole.figures["total_output_tokens"], rel=0.05)
    assert narrow.watts == pytest.approx(whole.watts, rel=0.05)


def test_a_promise_that_is_known_is_not_looked_at_again() -> None:
    """A fleet that did not hold in fresh runs is not confirmed, whatever its own runs show."""
    fleet = Fleet(scenario=load("chatbot", ["workload.arrivals.rate=2"]), overrides={}, replicas=1)
    known = Promise(holds=False, num_requests=5000, finishable=finishable_of(fleet.scenario, {}, 1))

    refused, held = confirm(replace(fleet, promise=known)), confirm(replace(fleet, promise=replace(known, holds=True)))

    assert (refused.holds, held.holds) == (False, True)
    assert replace(refused, holds=True) == held


@pytest.mark.slow
@pytest.mark.parametrize(("is_scaled", "keeps"), [(True, False), (False, True)])
def test_other_days_decide_whether_a_fleet_holds(is_scaled: bool, keeps: bool) -> None:
    """The scenario's own day is drawn well for a fleet that scales on its queue, which misses most others."""
    lengths = {"distribution": "lognormal", "cv": 0.8}
    scenario = make_scenario(
        model="llama-3.1-8b",
        deployment={
            "hardware": "l4-24gb",
            "quantization": "fp8",
            "engine": {"name": "vllm", "version": "0.12", "max_model_len": 16384, "max_num_batched_tokens": 8192},
        },
        workload={
            "arrivals": {"process": "daily", "rate": 3.0, "peak_to_mean": 1.8, "day": "40 min"},
            "prompt_tokens": {**lengths, "mean": 500, "max": 3000},
            "output_tokens": {**lengths, "mean": 150, "max": 900},
            "num_requests": 7200,
        },
        slo={"ttft": "2 s", "attainment": 0.95},
    )
    scaling = {"metric": "queue_depth", "target": 2.0, "min_replicas": 1, "max_replicas": 2}
    overrides = {"deployment.autoscaling": scaling} if is_scaled else {}
    fleet = Fleet(scenario=scenario, overrides=overrides, replicas=2)

    own, decided = try_fleet(scenario, overrides, 2), deciding_run(scenario, overrides, 2)
    promise = promise_of(scenario, overrides, 2)

    assert own.holds
    assert decided.holds == keeps
    assert (promise.holds, promise.num_requests) == (keeps, None)
    assert confirm(fleet).holds == keeps


@pytest.mark.parametrize(
    ("clients", "is_decided", "is_promised"),
    [(20, True, True), (30, False, False), (29, True, False)],
)
def test_other_clients_decide_whether_a_fleet_holds(clients: int, is_decided: bool, is_promised: bool) -> None:
    """The scenario's own run holds of all three; where it does by far, only what confirms asks for other runs."""
    scenario = make_scenario(
        model="llama-3.1-8b",
        deployment={
            "hardware": "l4-24gb",
            "engine": {"name": "vllm", "version": "0.12", "max_model_len": 4096, "max_num_seqs": 32},
        },
        workload={
            "arrivals": {"process": "closed_loop", "concurrency": clients, "think_time": "3 s", "ramp_up": "10 s"},
            "prompt_tokens": {"distribution": "lognormal", "mean": 400, "cv": 1.0, "max": 3000},
            "output_tokens": {"distribution": "uniform", "min": 20, "max": 120},
            "num_requests": 400,
        },
        slo={"ttft": "800 ms", "attainment": 0.95},
    )

    own, decided, promise = try_fleet(scenario, {}, 1), deciding_run(scenario, {}, 1), promise_of(scenario, {}, 1)

    assert own.holds
    assert decided.holds == is_decided
    assert (promise.holds, promise.num_requests) == (is_promised, None)
    assert (len(promise.attainments) == TIMES_FRESH * FRESH_RUNS) == is_promised
    assert confirm(Fleet(scenario=scenario, overrides={}, replicas=1)).holds == is_promised


def test_what_a_fleet_finishes_is_not_looked_for_where_too_many_requests_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes longer than the runs that tell, and changes nothing: neither where a fleet is confirmed nor promised."""
    scenario = make_scenario(
        model="llama-3.1-8b",
        deployment={"hardware": "l4-24gb", "engine": {"name": "vllm", "version": "0.12", "max_model_len": 4096}},
        workload={
            "arrivals": {"process": "poisson", "rate": 3.0},
            "prompt_tokens": {"distribution": "fixed", "value": 400},
            "output_tokens": {"distribution": "fixed", "value": 60},
            "sessions": {"turns": {"distribution": "fixed", "value": 3}, "think_time": "2 s"},
            "num_requests": 300,
        },
        slo={"ttft": "150 ms", "attainment": 0.99},
    )

    def found(*_: object) -> None:
        raise AssertionError("what the fleet finishes was looked for")

    monkeypatch.setattr("simserve.scenario.run.find_finishable", found)
    monkeypatch.setattr("simserve.planner.search.deciding_run.finishable_of", found)
    confirmed, promise = confirm(Fleet(scenario=scenario, overrides={}, replicas=1)), promise_of(scenario, {}, 1, True)

    assert (confirmed.holds, promise.holds) == (False, False)
    assert confirmed.attainment is not None
    assert confirmed.attainment < 0.99
    assert promise.attainments[-1] < 0.99


def test_a_further_run_lies_where_students_t_says() -> None:
    """Mean and spread of three runs, cut where there are no shares; alike runs leave no doubt."""
    reach = student.ppf(0.98, 2) * 0.02 * math.sqrt(4 / 3)

    assert further_run([0.70, 0.72, 0.74]) == pytest.approx((0.72 - reach, 0.72 + reach))
    assert further_run([0.5, 1.0]) == (0.0, 1.0)
    assert further_run([0.9, 0.9]) == (0.9, 0.9)


def test_which_traffic_has_other_runs() -> None:
    """What seeds draw anew and is tried as it is: not steady traffic, which has trials of its own, and no trace."""
    arrivals = {"process": "closed_loop", "concurrency": 240}
    traced = {"arrivals": arrivals, "trace": {"path": "seven.csv", "format": "csv"}}

    assert has_other_runs(crowd())
    assert not is_uneven(crowd())
    assert not has_other_runs(crowd(slo=None))
    assert not has_other_runs(crowd(workload=traced))
    assert not has_other_runs(load("chatbot"))
    assert not has_other_runs(load("multi-turn"))
    assert has_other_runs(load("chatbot", ["deployment.faults=[{kind: replica, at: 10 min, duration: 5 min}]"]))


def test_one_replica_needs_no_router() -> None:
    """The look at a single replica runs without the router of the fleet, whose overrides it keeps."""
    scenario = crowd()

    look = narrow_run(scenario, {"deployment.routing": "session"}, 8, 1)

    assert look.overrides == {"deployment.routing": "session"}
    assert look.replicas == 8


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"workload.arrivals": {"process": "poisson", "rate": 5.0}}, "an open loop is shortened"),
        ({"workload.num_requests": 900}, "there are few requests"),
        (
            {"deployment.autoscaling": {"metric": "queue_depth", "target": 10, "max_replicas": 16, "min_replicas": 2}},
            "the fleet changes",
        ),
        ({"deployment.faults": [{"kind": "replica", "replica": 1, "at": "1 s", "duration": "5 s"}]}, "one is lost"),
    ],
)
def test_what_is_not_alike_is_run_whole(changes: dict[str, Any], why: str) -> None:
    """Only clients of a closed loop on equal replicas are dealt out."""
    assert narrowed(crowd(), 8, 1000) == 2
    assert narrowed(with_overrides(crowd(), changes), 8, 1000) is None, why


def test_conversations_are_not_cut_before_they_are_long() -> None:
    """Requests of a first look would all be first turns; a run that is far longer than conversations may be cut."""
    sessions = {"turns": {"distribution": "fixed", "value": 10}, "think_time": "20 s"}
    workload = {
        "arrivals": {"process": "poisson", "rate": 5.0},
        "prompt_tokens": {"distribution": "fixed", "value": 100},
        "output_tokens": {"distribution": "fixed", "value": 20},
    }

    single = make_scenario(workload={**workload, "num_requests": 50_000})
    short = make_scenario(workload={**workload, "sessions": sessions, "num_requests": 9000})
    long = make_scenario(workload={**workload, "sessions": sessions, "num_requests": 50_000})

    assert request_limit(single, MOST_REQUESTS) == MOST_REQUESTS
    assert request_limit(short, MOST_REQUESTS) is None
    assert request_limit(long, MOST_REQUESTS) == 10_000


def test_clients_send_some_requests_each_before_a_run_is_cut() -> None:
    """Of a thousand clients 5,000 requests are five each; of ten they are plenty."""
    workload = {
        "prompt_tokens": {"distribution": "fixed", "value": 100},
        "output_tokens": {"distribution": "fixed", "value": 20},
        "num_requests": 40_000,
    }
    many = make_scenario(workload={**workload, "arrivals": {"process": "closed_loop", "concurrency": 1000}})
    few = make_scenario(workload={**workload, "arrivals": {"process": "closed_loop", "concurrency": 10}})

    assert request_limit(many, MOST_REQUESTS) == 10_000
    assert request_limit(few, MOST_REQUESTS) == MOST_REQUESTS


def test_a_search_takes_the_narrow_run() -> None:
    """What decides has about 2,500 requests where the whole has twice as many."""
    decided = deciding_run(crowd(), {}, 8)

    assert decided.share == 0.625
    assert decided.requests == 3000


def steady(rate: float, num_requests: int = 300, **changes: Any) -> Scenario:
    """Return steady arrivals at one small replica, with a bound that only a queue that grows for long breaks."""
    return make_scenario(
        **{
            "workload": {
                "arrivals": {"process": "poisson", "rate": rate},
                "prompt_tokens": {"distribution": "fixed", "value": 100},
                "output_tokens": {"distribution": "fixed", "value": 20},
                "num_requests": num_requests,
            },
            "deployment": {
                "hardware": "h100-sxm-80gb",
                "engine": {"name": "vllm", "version": "0.12", "max_model_len": 4096, "max_num_seqs": 4},
            },
            "slo": {"ttft": "60 s", "attainment": 0.95},
            **changes,
        }
    )


def finished(scenario: Scenario) -> float:
    """Return the requests/s that the deployment finishes with its queue never empty."""
    resolved = resolve(scenario)
    found = find_finishable(resolved, deploy(resolved))
    assert found is not None
    return found.rate


def test_more_than_can_be_finished_is_refused_however_short_the_run() -> None:
    """300 requests meet the bound at 1.05 times what is finished, and at 0.98, which is promised to nobody."""
    most = finished(steady(1.0))

    short = try_fleet(steady(1.05 * most), {}, 1)
    above, near, below = (deciding_run(steady(share * most), {}, 1) for share in (1.05, 0.98, 0.9))

    assert short.holds
    assert (above.holds, above.stability) == (False, "overloaded")
    assert (near.holds, near.stability) == (False, "stable")
    assert below.holds
    assert below.load_ratio == pytest.approx(0.9, rel=0.01)


def test_steady_traffic_is_judged_alike_whatever_number_of_requests_is_asked() -> None:
    """The same trial of 300 and of 20,000 requests; as long as it takes to settle, which nearer the limit is longer."""
    most = finished(steady(1.0))

    few, many = (deciding_run(steady(0.9 * most, count), {}, 1) for count in (300, 20_000))
    far = deciding_run(steady(0.3 * most), {}, 1)

    assert few == many
    assert far.holds
    assert far.requests < few.requests


@pytest.mark.slow
def test_what_a_fleet_is_said_to_bear_does_not_depend_on_the_requests_asked() -> None:
    """And it lies below what it finishes, by little where the bound is lax."""
    most = finished(steady(1.0))

    few, many = (
        traffic_sustained(Fleet(scenario=steady(0.6 * most, count), overrides={}, replicas=1)) for count in (300, 5000)
    )

    assert few == many
    assert few is not None
    assert 0.93 < 0.6 * few < 0.97


@pytest.mark.parametrize(
    "changes",
    [
        {"deployment.autoscaling": {"metric": "queue_depth", "target": 10, "max_replicas": 4, "min_replicas": 2}},
        {"workload.arrivals": {"process": "all_at_once"}},
        {"workload.arrivals": {"process": "closed_loop", "concurrency": 4}},
        {"workload.sessions": {"turns": {"distribution": "fixed", "value": 3}, "think_time": "5 s"}},
    ],
)
def test_what_is_not_the_same_all_through_is_tried_as_it_is(changes: dict[str, Any]) -> None:
    """A fleet that scales, a batch, clients, conversations."""
    assert is_steady(steady(1.0))
    assert not is_steady(with_overrides(steady(1.0), changes))


THREE_TURNS = {"turns": {"distribution": "fixed", "value": 3}, "think_time": "5 s"}


@pytest.mark.parametrize(("sessions", "sustained"), [(None, 1.0), (THREE_TURNS, 0.8)])
def test_conversations_are_sustained_at_a_rate_that_is_reached(
    monkeypatch: pytest.MonkeyPatch, sessions: dict[str, Any] | None, sustained: float
) -> None:
    """By runs measured once they have grown; less than the scenario's rate may be found, whose own run ends before."""
    probes: list[LoadProbe] = []

    def eight_tenths(probe: LoadProbe, *, start: float, **_: Any) -> SimpleNamespace:
        probes.append(probe)
        return SimpleNamespace(was_interrupted=False, largest=SimpleNamespace(value=0.8 * start))

    monkeypatch.setattr("simserve.planner.plan.fleet.find_capacity", eight_tenths)
    scenario = steady(2.0) if sessions is None else with_overrides(steady(2.0), {"workload.sessions": sessions})

    found = traffic_sustained(Fleet(scenario=scenario, overrides={}, replicas=1))

    assert found == sustained
    assert (probes[0].ramp is not None) == (sessions is not None)
