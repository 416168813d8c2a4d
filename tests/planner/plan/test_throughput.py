"""What fixed GPUs can do: the most of all deployments on them, and what no other beats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import pytest

from simserve.errors import ScenarioError, UsageError
from simserve.planner.capacity.answer import Capacity, capacity
from simserve.planner.capacity.level import Trial
from simserve.planner.capacity.probe import is_closed_loop
from simserve.planner.plan import throughput
from simserve.planner.plan.plan import PlanOptions, plan
from simserve.planner.plan.runners import front
from simserve.planner.plan.throughput import Able, Look, contenders
from simserve.planner.search.member import Member
from simserve.planner.search.trial import deployed, try_fleet
from simserve.report.plan import plan_sections
from simserve.report.throughput import throughput_front
from simserve.scenario.schema import Scenario
from tests.planner.plan.test_plan import SMALL
from tests.scenario.builders import make_scenario, scenario_mapping

CHOICES = {key: values[:1] for key, values in SMALL.items()} | {
    "deployment.tensor_parallel_size": [1, 2],
    "deployment.engine.max_num_seqs": [64, 8],
}
GPUS = 3


def small(slo: Mapping[str, Any] | None = None, **changes: Any) -> Scenario:
    """Return the small scenario with limits that a busy GPU does not keep."""
    return make_scenario(slo=slo or {"ttft": "300 ms", "tpot": "16 ms", "attainment": 0.9}, **changes)


def closed_loop(**slo: Any) -> Scenario:
    """Return clients of a closed loop."""
    workload = scenario_mapping()["workload"]
    arrivals = {"process": "closed_loop", "concurrency": 4}
    return small(
        {"ttft": "300 ms", "tpot": "16 ms", "attainment": 0.9, **slo}, workload=workload | {"arrivals": arrivals}
    )


def asked(scenario: Scenario, **changes: Any) -> dict[str, Any]:
    """Return what three GPUs can do."""
    options = {"hardware": ("l4-24gb",), "choices": CHOICES, "max_gpus": GPUS, "trials": 2} | changes
    return dict(plan(scenario, PlanOptions(objective="throughput", **options)).summary)


@pytest.fixture(scope="module", autouse=True)
def short_runs() -> Iterator[None]:
    """Find loads by short runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(throughput, "capacity", found_load)
        yield


def found_load(scenario: Scenario, confidence: float | None = None) -> Capacity:
    """Return what `simserve capacity --requests 300 --replications 2` does."""
    count = None if is_closed_loop(scenario) else 300
    return capacity(scenario, num_requests=count, replications=2, confidence=confidence)


@pytest.fixture(scope="module")
def steady(short_runs: None) -> dict[str, Any]:
    """Return the answer for steady traffic."""
    return asked(small())


@pytest.fixture(scope="module")
def clients(short_runs: None) -> dict[str, Any]:
    """Return the answer for clients."""
    return asked(closed_loop(), trials=0)


@pytest.mark.slow
def test_the_load_is_what_capacity_finds() -> None:
    """Of the same deployment, searched by itself; what nine in ten real servers bear is less."""
    there = small({"ttft": "300 ms", "tpot": "18 ms", "attainment": 0.9})
    best = asked(there)["best"]

    own = found_load(deployed(there, best["overrides"], best["replicas"])).summary

    assert best["max_rate"] == own["max_rate"]
    assert best["max_rate_90"] == own["max_rate_90"] < best["max_rate"]


@pytest.mark.slow
def test_the_seed_draws_the_load_of_the_best_alone(steady: dict[str, Any], short_runs: None) -> None:
    """Another seed gets the same deployment, and its load from requests of its own."""
    other = asked(small(run={"seed": 12}))

    assert other["best"]["overrides"] == steady["best"]["overrides"]
    assert other["best"]["rate"] != steady["best"]["rate"]
    searched = [
        [(each["overrides"], each["rate"]) for each in found["candidates"] if each["status"] != "best"]
        for found in (steady, other)
    ]
    assert searched[0] == searched[1]


def test_no_other_shape_bears_that_load(steady: dict[str, Any]) -> None:
    """Every shape with as many replicas as the GPUs hold."""
    best = steady["best"]
    there = small(overrides=[f"workload.arrivals.rate={1.1 * best['rate']}", "workload.num_requests=2000"])

    trials = {
        size: try_fleet(there, best["overrides"] | {"deployment.tensor_parallel_size": size}, GPUS // size)
        for size in (1, 2)
    }

    assert not any(each.holds for each in trials.values())


def test_tokens_are_those_of_all_gpus_there_are(steady: dict[str, Any]) -> None:
    """20 output tokens a request, less what short runs drain; a GPU that no whole replica fits on counts as well."""
    best = steady["best"]

    assert best["output_throughput"] == pytest.approx(20 * best["rate"], rel=0.2)
    assert best["tokens_per_second_per_gpu"] == best["output_throughput"] / GPUS
    assert best["tokens_per_second_per_user"] == pytest.approx(1e3 / best["mean_tpot_ms"])
    assert {each["num_gpus"] for each in steady["candidates"] if each["replicas"] == 1} == {2}


def test_the_answer_says_how_it_was_judged(steady: dict[str, Any]) -> None:
    """By shares of requests, not by means."""
    judged = steady["judged"]

    assert (judged["by"], judged["share"]) == ("requests", 0.9)
    assert judged["limits_ms"] == {"ttft": 300.0, "tpot": 16.0, "e2e": None}
    assert "90% of them" in judged["words"]


def test_no_point_of_the_front_beats_another(steady: dict[str, Any]) -> None:
    """From the quickest for a user to the most a GPU; the plan's own lies on it or below."""
    front = [(each["tokens_per_second_per_user"], each["tokens_per_second_per_gpu"]) for each in steady["pareto"]]

    assert len(front) > 2
    assert all(quick[0] > slow[0] and quick[1] < slow[1] for quick, slow in pairwise(front))
    assert any(gpu >= steady["best"]["tokens_per_second_per_gpu"] for _, gpu in front)


def test_each_candidate_says_what_it_does_or_why_it_lost(steady: dict[str, Any]) -> None:
    """One is the best; the others have a load, or a reason."""
    statuses = [each["status"] for each in steady["candidates"]]

    assert statuses.count("best") == 1
    assert all(each["rate"] or each["reason"] for each in steady["candidates"])


def test_clients_are_counted_where_they_wait_for_answers(clients: dict[str, Any]) -> None:
    """The most of a closed loop is judged by tokens: a number of clients is no throughput."""
    best = clients["best"]

    others = [each["output_throughput"] for each in clients["candidates"] if each["output_throughput"]]
    assert clients["load"] == "closed"
    assert best["max_concurrency"] == best["concurrency"] == round(best["concurrency"])
    assert best["output_throughput"] >= 0.9 * max(others)


@pytest.mark.slow
def test_a_confidence_takes_load_off() -> None:
    """What four in five real servers bear is less than what holds as simulated."""
    best = asked(small(), confidence=0.8, trials=0)["best"]

    assert best["rate"] < best["max_rate"]
    assert best["probability"] >= 0.8


@pytest.mark.slow
def test_a_confidence_that_nothing_reaches_says_the_highest() -> None:
    """At the lightest load the SLO holds as simulated, on fewer servers than asked."""
    summary = asked(small({"tpot": "13 ms", "attainment": 0.9}), confidence=0.999, trials=0)

    miss = summary["nearest_miss"]
    assert not summary["feasible"]
    assert miss["metric"] == "confidence"
    assert 0 < miss["highest_probability"] < 0.999
    assert miss["relax"].startswith("--confidence 0.")


@pytest.mark.parametrize(
    ("slo", "metric", "words"),
    [
        ({"tpot": "1 us"}, "tpot", "TPOT of p90 is at least"),
        ({"tpot": "1 s", "ttft": "1 us"}, "ttft", "TTFT of p90 is at least"),
    ],
)
def test_where_nothing_holds_it_says_what_to_relax(slo: dict[str, Any], metric: str, words: str) -> None:
    """A bound rules every deployment out."""
    summary = asked(closed_loop(**slo))

    assert not summary["feasible"]
    assert summary["nearest_miss"]["metric"] == metric
    assert words in summary["nearest_miss"]["relax"]
    assert next(iter(plan_sections(summary))).lines[0] == "No deployment of 3 GPUs holds the SLO at any load."


def test_an_slo_is_needed_and_headroom_has_no_meaning() -> None:
    """Without limits no load is too much; the load is what is looked for."""
    with pytest.raises(ScenarioError, match="without one no load"):
        asked(make_scenario())
    with pytest.raises(UsageError, match="--headroom"):
        asked(small(), headroom=0.2)


def test_a_person_reads_what_the_gpus_can_do_first(steady: dict[str, Any]) -> None:
    """Tokens a second, a GPU and a user; then the load, the command, the front and what lost."""
    answer, run_it, front, *_ = plan_sections(steady)

    best = steady["best"]
    assert answer.lines[0].startswith(f"3 x l4-24gb can do {best['output_throughput']:,.0f} output tokens/s")
    assert "percentiles, not means" in " ".join(answer.lines)
    assert f"workload.arrivals.rate={best['rate']:.4g}" in run_it.lines[0]
    assert front.title.startswith("Tokens/s a GPU against tokens/s a user")
    assert len(front.rows) > 1


def test_the_picture_shows_the_front_the_plan_and_the_limit(steady: dict[str, Any]) -> None:
    """1 / TPOT: 16 ms are 62.5 tokens a second for a user."""
    sketch = throughput_front(steady)

    assert sketch is not None
    assert {"62.5", "the plan"} <= {
        str(getattr(mark, "text", "")).rpartition(": ")[2] for mark in sketch.marks if getattr(mark, "text", "")
    }


def test_of_points_only_those_remain_that_none_beats() -> None:
    """By the first coordinate; of equal points the first. Less is better."""
    points = [(5.0, 1.0), (4.0, 2.0), (4.0, 3.0), (1.0, 3.0), (5.0, 1.0), (5.5, 2.5)]

    assert front([(point, place) for place, point in enumerate(points)]) == [3, 1, 0]
    assert front([((1.0, 2.0, 3.0), "a"), ((1.0, 3.0, 2.0), "b"), ((2.0, 2.0, 3.0), "c")]) == ["a", "b"]


def make_able(load: float, margin: float = 1.0, **overrides: Any) -> Able:
    """Return a deployment that holds up to a load, there by a margin."""
    trial = Trial(attainment=1.0, by_metric={}, stability="stable")
    look = Look(load=load, margin=margin, trial=trial, num_requests=1)
    return Able(hardware="l4-24gb", member=Member(overrides=overrides, status="holds"), looks=[look])


def test_contenders_are_near_the_best_and_differ_in_more_than_knobs() -> None:
    """Of one layout the best settings; nothing far below."""
    seats = {"deployment.engine.max_num_seqs": 64}
    best, twin = make_able(10.0, **seats), make_able(9.9)
    near, far = (
        make_able(9.5, **{"deployment.tensor_parallel_size": 2}),
        make_able(5.0, **{"deployment.quantization": 1}),
    )

    assert contenders([far, twin, near, best], is_closed=False) == [best, near]


@pytest.mark.parametrize(("load", "is_near"), [(9.95, True), (9.8, False)])
def test_a_setting_that_holds_about_as_much_and_more_surely_is_a_contender_too(load: float, is_near: bool) -> None:
    """Within 1 %: one setting barely holds in its short run, another by far. On other layouts one is enough."""
    barely = make_able(10.0, 0.1, **{"deployment.engine.max_num_seqs": 256})
    by_far = make_able(load, 3.0, **{"deployment.engine.max_num_seqs": 64})
    other = make_able(9.5, 0.1, **{"deployment.tensor_parallel_size": 2})
    twin = make_able(9.5, 3.0, **{"deployment.tensor_parallel_size": 2, "deployment.engine.max_num_seqs": 64})

    found = contenders([barely, by_far, other, twin], is_closed=False)

    assert found == ([barely, by_far, other] if is_near else [barely, other])


def both(**changes: Any) -> dict[str, Any]:
    """Return what two small GPUs and a larger one can do together."""
    kinds = {"l4-24gb": 2, "l40s-48gb": 1}
    return asked(small(), gpus_by_kind=kinds, hardware=tuple(kinds), max_gpus=None, **changes)


@pytest.mark.slow
def test_gpus_of_two_kinds_do_more_together_than_either_alone(short_runs: None) -> None:
    """The best replicas of each stand side by side and get as much of the traffic as they can sustain alone."""
    answer = both()
    best = answer["best"]
    alone = {
        kind: max(each["rate"] or 0.0 for each in answer["candidates"] if each["hardware"] == kind)
        for kind in ("l4-24gb", "l40s-48gb")
    }

    assert best["hardware"] == "l4-24gb + l40s-48gb"
    assert (best["num_gpus"], answer["max_gpus"], answer["gpus_by_kind"]) == (3, 3, {"l4-24gb": 2, "l40s-48gb": 1})
    assert {pool["hardware"]: pool["replicas"] for pool in best["deployment"]["pools"]} == answer["gpus_by_kind"]
    assert best["rate"] == pytest.approx(sum(alone.values()), rel=0.1)
    assert next(plan_sections(answer)).lines[0].startswith("2 x l4-24gb and 1 x l40s-48gb can do ")
    shares = best["deployment"]["routing"]["weights"]
    assert shares["l40s-48gb"] / shares["l4-24gb"] == pytest.approx(alone["l40s-48gb"] / alone["l4-24gb"], rel=0.05)


@pytest.mark.slow
def test_no_kind_has_more_gpus_than_there_are(short_runs: None) -> None:
    """Of every fleet that was looked at, alone and together."""
    for each in both()["candidates"]:
        there: dict[str, int] = {}
        for pool in each["overrides"].get("deployment.pools") or [{"hardware": each["hardware"], "replicas": 1}]:
            size = pool.get("tensor_parallel_size", 1)
            there[pool["hardware"]] = there.get(pool["hardware"], 0) + size * pool["replicas"]

        assert all(count <= {"l4-24gb": 2, "l40s-48gb": 1}[kind] for kind, count in there.items())


@pytest.mark.slow
def test_prompts_on_one_kind_of_gpu_and_answers_on_the_other() -> None:
    """Each kind has one role, all of its GPUs, and a shape that they hold."""
    scenario = make_scenario(
        model="llama-3.1-8b",
        deployment={"hardware": "h100-sxm-80gb", "engine": {"name": "vllm", "version": "0.12", "max_model_len": 8192}},
        workload={
            "arrivals": {"process": "poisson", "rate": 4.0},
            "prompt_tokens": {"distribution": "fixed", "value": 4000},
            "output_tokens": {"distribution": "fixed", "value": 300},
            "num_requests": 300,
        },
        slo={"ttft": "500 ms", "tpot": "10 ms", "attainment": 0.9},
    )
    kinds = {"h100-sxm-80gb": 2, "h200-sxm-141gb": 1}

    answer = asked(scenario, gpus_by_kind=kinds, hardware=tuple(kinds), max_gpus=None, trials=0)

    pairs = [
        [(pool["role"], pool["hardware"], pool["replicas"]) for pool in each["overrides"]["deployment.pools"]]
        for each in answer["candidates"]
        if each["hardware"] == "h100-sxm-80gb + h200-sxm-141gb"
        and all("role" in pool for pool in each["overrides"].get("deployment.pools", [{}]))
    ]
    assert [("prefill", "h100-sxm-80gb", 2), ("decode", "h200-sxm-141gb", 1)] in pairs
    assert all({kind for _, kind, _ in pair} == set(kinds) for pair in pairs)


def test_several_kinds_are_for_throughput_alone() -> None:
    """Where GPUs are chosen, kinds are named without numbers."""
    with pytest.raises(UsageError, match="only --objective throughput"):
        plan(small(), PlanOptions(gpus_by_kind={"l4-24gb": 2, "l40s-48gb": 1}))
