"""The plan: what exhaustive search says, whatever the workers; and what each option changes."""

from __future__ import annotations

import itertools
import json
import math
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import simserve as ss
from simserve.errors import InputError, UsageError
from simserve.metrics.cost import gpu_hour
from simserve.planner.capacity.level import Promise
from simserve.planner.export.export import ENGINES, export
from simserve.planner.export.flags import flags_of, read_words
from simserve.planner.overrides import Overrides, value_of, with_overrides
from simserve.planner.plan.fleet import Fleet, confirm, traffic_sustained, with_room
from simserve.planner.plan.plan import CEILING, Plan, PlanOptions, plan
from simserve.planner.search.deciding_run import promise_of, settled_run
from simserve.planner.search.member import Goal, GroupResult, Member
from simserve.planner.search.order import smallest_integer
from simserve.planner.search.search import Search, search_group
from simserve.planner.search.trial import Trial, try_fleet
from simserve.planner.space.space import KEEPABLE, Space, parse_choices
from simserve.profiles import catalog
from simserve.profiles.hardware import load_hardware
from simserve.report.brief import brief_of_run
from simserve.report.page import render_page
from simserve.report.plan import plan_page
from simserve.report.plan_lines import answer_lines, miss_lines
from simserve.scenario.formats import available_as
from simserve.scenario.load import from_mapping, load
from simserve.scenario.resolve import resolve
from simserve.scenario.run import run
from simserve.scenario.schema import Scenario, objective
from simserve.units import HOURS_PER_MONTH
from tests.scenario.builders import make_scenario

SMALL = {
    "deployment.tensor_parallel_size": [1, 2],
    "deployment.pipeline_parallel_size": [1],
    "deployment.enable_expert_parallel": [False],
    "deployment.quantization": ["none", "fp8"],
    "deployment.kv_cache_dtype": ["auto"],
    "deployment.engine.max_num_seqs": [4, 64],
    "deployment.engine.max_num_batched_tokens": [2048],
    "deployment.engine.enable_chunked_prefill": [True],
    "deployment.speculative": [None],
}
"""A space of eight shapes a GPU, small enough to enumerate with every number of replicas."""
ONE_SHAPE = {
    "deployment.tensor_parallel_size": [1],
    "deployment.quantization": ["fp8"],
    "deployment.engine.max_num_seqs": [64],
}
HARDWARE = ("l4-24gb", "a10-24gb", "l40s-48gb")
MOST_REPLICAS = 6
MAX_GPUS = 6


def busy_scenario(**changes: Any) -> Scenario:
    """Return steady traffic that takes several small GPUs."""
    return make_scenario(
        **{
            "model": "llama-3.1-8b",
            "deployment": {
                "hardware": "l4-24gb",
                "engine": {"name": "vllm", "version": "0.12", "max_model_len": 4096},
            },
            "workload": {
                "arrivals": {"process": "constant", "rate": 4.0},
                "prompt_tokens": {"distribution": "fixed", "value": 300},
                "output_tokens": {"distribution": "fixed", "value": 60},
                "num_requests": 240,
            },
            "slo": {"ttft": "600 ms", "tpot": "60 ms", "attainment": 0.95},
            **changes,
        }
    )


def options(**changes: Any) -> PlanOptions:
    """Return the small search, with options replaced."""
    return PlanOptions(**{"hardware": HARDWARE, "choices": SMALL, "max_gpus": MAX_GPUS, **changes})


@cache
def everything() -> list[dict[str, Any]]:
    """Return every fleet of the small space that holds, each run until it settles, whatever searches would skip."""
    base, found = busy_scenario(), []
    for hardware, *values in itertools.product(HARDWARE, *SMALL.values()):
        chosen = {"deployment.hardware": hardware, **dict(zip(SMALL, values, strict=True))}
        for replicas in range(1, MOST_REPLICAS + 1):
            gpus = replicas * chosen["deployment.tensor_parallel_size"]
            if gpus > MAX_GPUS:
                continue
            try:
                trial = settled_run(base, chosen, replicas)
            except InputError:
                continue
            if trial.holds:
                found.append({"overrides": chosen, "trial": trial})
    return found


@cache
def planned(**changes: Any) -> Mapping[str, Any]:
    """Return the summary of the small plan, with options replaced."""
    return plan(busy_scenario(), options(**changes)).summary


@pytest.mark.slow
def test_the_page_of_a_plan_opens_with_what_a_run_of_it_says() -> None:
    """Dollars a month, and whether an API is cheaper: one answer, whoever is asked."""
    best = planned()["best"]
    ran = ss.run(with_overrides(busy_scenario(), best["overrides"]))

    page = render_page(plan_page(planned(), ""))

    cost = next(each.text for each in brief_of_run(ran).facts if each.label == "Cost")
    assert "a month on" in cost
    assert f"<dd>{cost}.</dd>" in page
    assert page.index('<dl class="facts">') < page.index("<h2>")


@pytest.mark.slow
def test_dollars_a_token_of_a_plan_are_those_of_a_month() -> None:
    """Of the plan and of all fleets beside it: its dollars a month over the tokens that the traffic brings a month."""
    summary = planned()
    tokens = summary["month"]["tokens_per_month"]

    fleets = [summary["best"], *summary["runners_up"], *summary["pareto"], *summary["changes"]]
    told = [each for each in fleets if each["usd_per_month"] is not None]

    assert len(told) > 3
    for each in told:
        assert each["usd_per_million_tokens"] == pytest.approx(each["usd_per_month"] / tokens * 1e6)


@pytest.mark.slow
def test_the_plan_is_the_best_of_all() -> None:
    """The cheapest fleet, as enumeration of every deployment and number of replicas finds it."""
    cheapest = min(each["trial"].usd_per_hour for each in everything())

    best = planned()["best"]

    assert best["usd_per_hour"] == pytest.approx(cheapest)
    assert len({each["trial"].usd_per_hour for each in everything()}) > 5


@pytest.mark.usefixtures("best_alone")
@pytest.mark.parametrize(
    "objective", [pytest.param(each, marks=pytest.mark.slow) for each in ("gpus", "energy", "latency")]
)
def test_every_objective_is_the_best_of_all(objective: Any) -> None:
    """Fewest GPUs, least power, lowest p95 of E2E."""
    values = {
        "gpus": lambda trial: trial.num_gpus,
        "energy": lambda trial: trial.watts,
        "latency": lambda trial: trial.latencies["p95_e2el_ms"],
    }
    least = min((each["trial"] for each in everything()), key=values[objective])
    fleet = Fleet(scenario=busy_scenario(), overrides=least.overrides, replicas=least.replicas)

    best = plan(busy_scenario(), options(objective=objective)).summary["best"]

    key = {"gpus": "num_gpus", "energy": "watts", "latency": "p95_e2el_ms"}[objective]
    assert best[key] <= values[objective](confirm(fleet)) * (1 + 1e-6)


@pytest.mark.slow
def test_the_best_of_each_gpu_is_the_best_of_all_on_it() -> None:
    """Runners-up are plans, not left-overs; a GPU without one costs far more, or nothing on it holds."""
    summary = planned()

    for each in [summary["best"], *summary["runners_up"]]:
        on_it = [one["trial"] for one in everything() if one["overrides"]["deployment.hardware"] == each["hardware"]]
        least = 720 * min((trial.usd_per_hour for trial in on_it), default=math.inf)
        if each["label"] is None:
            assert least > CEILING * summary["best"]["usd_per_month"]
            assert each["why"]
        else:
            assert each["usd_per_month"] == pytest.approx(least)


@pytest.mark.slow
def test_workers_do_not_change_the_plan() -> None:
    """Same scenario, same seed, same bytes."""
    one, two = planned(), planned(jobs=2)

    assert json.dumps(one) == json.dumps(two)


@pytest.mark.slow
@pytest.mark.usefixtures("best_alone")
def test_the_seed_draws_what_is_reported_and_not_what_is_picked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run of the search is the same for any seed; the confirming runs, and what is promised, are the seed's."""
    confirmed: list[Fleet] = []

    def noted(fleet: Fleet) -> Trial:
        confirmed.append(fleet)
        return confirm(fleet)

    monkeypatch.setattr("simserve.planner.plan.plan.confirm", noted)
    arrivals = {"arrivals": {"process": "poisson", "rate": 4.0}, "num_requests": 600}
    workload = {**busy_scenario().as_mapping()["workload"], **arrivals}
    one, two = (busy_scenario(workload=workload, run={"seed": seed}) for seed in (1, 12))
    first, second = (plan(each, options()).summary for each in (one, two))

    picks = [{**each, "status": None} for each in first["candidates"]]
    assert [{**each, "status": None} for each in second["candidates"]] == picks
    assert first["best"]["overrides"] == second["best"]["overrides"]
    assert first["best"]["p95_ttft_ms"] != second["best"]["p95_ttft_ms"]
    assert (first["seed"], second["seed"]) == (1, 12)
    assert [fleet.scenario.run.seed for fleet in confirmed] == [1, 12]
    assert confirmed[0].promise is not None  # of the search's seed, so that it is the same for both
    assert confirmed[0].promise == confirmed[1].promise
    interval = first["best"]["attainment_interval"]
    assert interval == second["best"]["attainment_interval"]
    assert first["slo"]["attainment"] <= interval["low"] <= first["best"]["attainment"] <= interval["high"]
    assert interval["runs"] == len(confirmed[0].promise.attainments) > 2


@pytest.mark.slow
@pytest.mark.usefixtures("best_alone")
def test_knobs_are_searched_where_there_are_too_many_and_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every shape first, then other knobs of those that could still win: no chance is in it."""
    monkeypatch.setattr("simserve.planner.search.search.EXHAUSTIVE_COMBINATIONS", 1)
    choices = {**SMALL, "deployment.tensor_parallel_size": [1], "deployment.engine.max_num_seqs": [4, 16, 64]}
    scenario = load_small(["deployment.engine.max_num_seqs=4"])
    asked = {"choices": choices, "hardware": ("l4-24gb",)}
    shapes = plan(scenario, options(**asked, trials=0)).summary

    first, second = (plan(scenario, options(**asked, trials=10)).summary for _ in range(2))

    assert (shapes["search"]["methods"], first["search"]["methods"]) == ({"l4-24gb": "shapes"}, {"l4-24gb": "settings"})
    assert first["best"]["usd_per_hour"] < shapes["best"]["usd_per_hour"]
    assert json.dumps(first) == json.dumps(second)


@pytest.mark.usefixtures("best_alone")
def test_knobs_of_the_scenario_outside_the_values_asked_for_are_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """``--over`` replaces them, also where shapes are searched first."""
    monkeypatch.setattr("simserve.planner.search.search.EXHAUSTIVE_COMBINATIONS", 1)
    scenario = load_small(["deployment.engine.max_num_seqs=4"])
    choices = {**SMALL, "deployment.engine.max_num_seqs": [16, 64]}

    summary = plan(scenario, options(choices=choices, hardware=("l4-24gb",), trials=4)).summary

    seats = {each["overrides"]["deployment.engine.max_num_seqs"] for each in summary["candidates"]}
    assert seats == {16, 64}


@pytest.mark.slow
@pytest.mark.usefixtures("headroom_alone")
def test_of_equals_the_one_with_more_headroom_then_the_faster_wins() -> None:
    """At the price of the plan no fleet bears more traffic, and none that bears as much is faster."""
    best = plan(busy_scenario(), options(hardware=("l40s-48gb",))).summary["best"]
    limits = {"p95_ttft_ms": 600, "p95_tpot_ms": 60}
    equals = [each for each in everything() if each["trial"].usd_per_hour == pytest.approx(best["usd_per_hour"])]
    equals = [each for each in equals if each["overrides"]["deployment.hardware"] == best["hardware"]]
    sustained = [
        traffic_sustained(Fleet(scenario=busy_scenario(), overrides=each["overrides"], replicas=each["trial"].replicas))
        for each in equals
    ]
    latency = [
        sum(each["trial"].latencies[key] / limit for key, limit in limits.items())
        for each, most in zip(equals, sustained, strict=True)
        if most == max(sustained)
    ]

    assert len(set(sustained)) > 1
    assert best["traffic_sustained"] == max(sustained)
    assert sum(best[key] / limit for key, limit in limits.items()) == pytest.approx(min(latency), rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("weights", "deployment.quantization"),
        ("tensor-parallel", "deployment.tensor_parallel_size"),
        ("gpus", "deployment.hardware"),
        ("replicas", "deployment.replicas"),
        ("engine", "deployment.engine.max_num_seqs"),
    ],
)
@pytest.mark.usefixtures("best_alone")
def test_what_is_kept_does_not_change(name: str, key: str) -> None:
    """Every fleet has it as the scenario does."""
    changes = ["deployment.replicas=5", "deployment.engine.max_num_seqs=32", "deployment.quantization=fp8"]
    scenario = load_small(changes)
    choices = {each: values for each, values in SMALL.items() if each not in KEEPABLE[name]}
    asked = {"hardware": () if name == "gpus" else HARDWARE[:1], "choices": choices, "trials": 0}

    kept = plan(scenario, options(keep=(name,), **asked)).summary

    best = from_mapping(scenario.as_mapping(), kept["best"]["overrides"])
    assert value_of(best, key) == value_of(scenario, key)
    assert all(key not in each["overrides"] for each in kept["candidates"])
    assert kept["kept"] == [name]


@pytest.mark.parametrize(
    "changes",
    [
        {"keep": ("colour",)},
        {"keep": ("gpus",), "hardware": HARDWARE},
        {"keep": ("tensor-parallel",), "hardware": HARDWARE},
    ],
)
def test_what_cannot_be_kept_is_refused(changes: dict[str, Any]) -> None:
    """No such thing, or it is to be searched, too."""
    with pytest.raises(UsageError, match="--keep"):
        plan(busy_scenario(), PlanOptions(choices=SMALL, **changes))


def test_the_command_reproduces_the_plan() -> None:
    """What the plan prints can be run, and holds."""
    best = planned()["best"]
    words = best["command"].split()

    result = run(load_small([word for word in words if "=" in word]))

    assert words[:3] == ["simserve", "run", "SCENARIO.yaml"]
    assert result.summary["simserve"]["slo"]["attainment"] >= 0.95
    assert result.summary["simserve"]["cost"]["usd_per_hour"] == pytest.approx(best["usd_per_hour"])


def load_small(changes: list[str]) -> Scenario:
    """Return the scenario under the changes of a command."""
    from simserve.scenario.load import from_mapping

    return from_mapping(busy_scenario().as_mapping(), changes)


@pytest.mark.slow
@pytest.mark.usefixtures("headroom_alone")
def test_headroom_is_sustained_and_paid() -> None:
    """The plan holds at the traffic asked for, and its command keeps the scenario's own."""
    plain, ample = (plan(busy_scenario(), options(headroom=headroom)).summary for headroom in (0.0, 2.0))

    best = ample["best"]
    assert best["usd_per_hour"] > plain["best"]["usd_per_hour"]
    assert best["traffic_sustained"] >= 3.0
    assert plain["best"]["traffic_sustained"] < 3.0
    assert "rate" not in best["command"]


@pytest.mark.slow
@pytest.mark.usefixtures("headroom_alone")
def test_a_spare_replica_is_paid_and_may_be_lost() -> None:
    """With one fewer it still holds; the price counts it."""
    best = plan(busy_scenario(), options(spare_replicas=1)).summary["best"]

    assert best["replicas"] == best["replicas_needed"] + 1
    assert best["lost_replica"]["still_holds"]
    changes = {key: value for key, value in best["overrides"].items() if key != "deployment.replicas"}
    assert try_fleet(busy_scenario(), changes, best["replicas"] - 1).holds
    assert best["usd_per_hour"] == pytest.approx(best["usd_per_gpu_hour"] * best["num_gpus"])


@pytest.mark.slow
@pytest.mark.usefixtures("best_alone")
def test_spot_prices_are_another_market() -> None:
    """The fleet is bought at the catalogue's spot prices; GPUs without one are left out, and named."""
    summary = plan(busy_scenario(), options(hardware=("h100-sxm-80gb", "l4-24gb"), market="spot")).summary
    on_demand = plan(busy_scenario(), options(hardware=("h100-sxm-80gb",))).summary

    assert summary["best"]["hardware"] == "h100-sxm-80gb"
    assert summary["best"]["usd_per_hour"] < on_demand["best"]["usd_per_hour"]
    assert summary["search"]["skipped"] == {"l4-24gb": "has no spot price"}
    assert summary["best"]["overrides"]["pricing.purchase"] == "spot"


def test_too_few_gpus_name_how_many_it_takes() -> None:
    """Exit code 3 on the command line; here the nearest miss and what to relax."""
    loaded = plan(load_small(["workload.arrivals.rate=400"]), options(max_gpus=1)).summary

    assert not loaded["feasible"]
    assert loaded["best"] is None
    miss = loaded["nearest_miss"]
    assert miss["metric"] in ("gpus", "ttft", "tpot", "slo")
    assert miss["relax"]


@pytest.mark.slow
@pytest.mark.usefixtures("best_alone")
def test_a_limit_out_of_reach_is_named_and_the_rest_is_planned() -> None:
    """60 tokens do not come in 50 ms on these GPUs; the first token can be there in time."""
    summary = plan(load_small(["slo.e2e=50 ms"]), options()).summary

    miss = summary["nearest_miss"]
    assert not summary["feasible"]
    assert miss["metric"] == summary["binding"] == "e2e"
    assert miss["is_bound"]
    assert miss["unreachable"] == ["e2e"]
    assert miss["reached"] > miss["asked"] == 0.05
    assert miss["e2e_ms" if "e2e_ms" in miss else "p50_e2el_ms"] > 50
    assert miss["relaxed_plan"]["feasible"]
    assert "slo.e2e=null" in miss["relaxed_plan"]["best"]["command"]


def test_what_does_not_fit_anywhere_is_a_miss_of_memory() -> None:
    """A 405B model on a 24 GB card."""
    summary = plan(busy_scenario(model="llama-3.1-405b"), options(hardware=("l4-24gb",), choices={**SMALL})).summary

    assert summary["nearest_miss"]["metric"] == "memory"
    assert "fit" in summary["nearest_miss"]["relax"]


@pytest.mark.slow
@pytest.mark.usefixtures("best_alone")
def test_versions_too_old_for_the_model_are_left_out_and_lead_the_answer() -> None:
    """The others are searched; where none is left, one line says which have the model."""
    scenario = busy_scenario(model="qwen3-0.6b", slo=None)
    small = options(choices={**SMALL, "deployment.engine.version": ("0.6.6", "0.12")})

    summary = plan(scenario, small).summary

    left_out = "vllm 0.6.6 has no code for qwen3-0.6b (Qwen3ForCausalLM; versions with it: 0.8.4 and newer)"
    assert summary["warnings"][0] == f"left out: {left_out}"
    assert summary["search"]["left_out"]["version"] == left_out
    assert all(each["overrides"].get("deployment.engine.version") != "0.6.6" for each in summary["candidates"])
    with pytest.raises(InputError, match=r"engine\.version: .* 0\.6\.6 has no code for qwen3-0\.6b"):
        plan(scenario, options(choices={**SMALL, "deployment.engine.version": ("0.6.6",)}))


@pytest.mark.slow
def test_an_offline_batch_is_paid_by_the_token() -> None:
    """No SLO, all at once: the cheapest tokens win, whatever the time they take."""
    job = busy_scenario(
        slo=None,
        workload={
            "arrivals": {"process": "all_at_once"},
            "prompt_tokens": {"distribution": "fixed", "value": 300},
            "output_tokens": {"distribution": "fixed", "value": 60},
            "num_requests": 200,
        },
    )
    choices = {**SMALL, "deployment.tensor_parallel_size": [1]}

    best = plan(job, options(choices=choices)).summary["best"]

    values = itertools.product(HARDWARE, *choices.values())
    trials = [
        try_fleet(job, {"deployment.hardware": hardware, **dict(zip(choices, rest, strict=True))}, 1)
        for hardware, *rest in values
    ]
    assert best["usd_per_million_tokens"] == pytest.approx(min(trial.usd_per_million_tokens for trial in trials))


def test_changes_of_the_plan_measure_each_lever() -> None:
    """Batching off costs more here; every line says what it would take."""
    summary = planned()

    by_variant = {each["variant"]: each for each in summary["changes"]}
    single = by_variant["one request at a time"]
    assert single["replicas"] is None or single["usd_per_month_more"] > 0
    assert {each["lever"] for each in summary["changes"]} >= {"quantise", "quantise_kv", "batch"}


def test_the_plan_says_that_it_chose_the_kv_format() -> None:
    """Nobody asked for it; what is left at auto is the engine's default."""
    best = planned()["best"]

    is_chosen = "deployment.kv_cache_dtype" in best["overrides"]
    assert best["formats"]["kv_cache_source"] == ("chosen by the plan" if is_chosen else "16 bit by default")
    assert best["formats"]["weights_source"].startswith(("as stored", "checkpoint ", "quantised on load by "))


def test_the_front_holds_no_beaten_fleet() -> None:
    """Dollars, p95 TTFT, p95 TPOT: nobody is worse in all three; the plan is on it."""
    summary = planned()
    points = [(each["usd_per_month"], each["p95_ttft_ms"], each["p95_tpot_ms"]) for each in summary["pareto"]]

    for one, other in itertools.permutations(points, 2):
        assert any(a < b for a, b in zip(one, other, strict=True))
    assert min(points)[0] == pytest.approx(summary["best"]["usd_per_month"])


def test_sensitivity_follows_traffic_and_price() -> None:
    """Less traffic never takes more; the price is linear."""
    rows = {(each["what"], each["change"]): each for each in planned()["sensitivity"]}

    assert rows["traffic", -0.2]["replicas"] <= rows["traffic", 0.2]["replicas"]
    assert rows["price", 0.2]["usd_per_month"] == pytest.approx(1.5 * rows["price", -0.2]["usd_per_month"])
    assert {what for what, _ in rows} == {"traffic", "prompt_tokens", "output_tokens", "price"}


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"max_gpus": 0}, "--max-gpus"),
        ({"headroom": -0.1}, "--headroom"),
        ({"spare_replicas": -1}, "--spare-replicas"),
        ({"objective": "speed"}, "--objective"),
        ({"jobs": 0}, "--jobs"),
    ],
)
def test_options_out_of_range_are_refused(changes: dict[str, Any], key: str) -> None:
    """Before anything is simulated."""
    with pytest.raises(UsageError, match=key):
        planned(**changes)


def test_headroom_needs_traffic_that_scales() -> None:
    """All requests at once have no rate."""
    with pytest.raises(UsageError, match="--headroom"):
        plan(load("offline-batch"), PlanOptions(headroom=0.2))


def test_headroom_on_a_trace_names_the_scale_that_gives_it(tmp_path: Path) -> None:
    """1 / 1.25 of its times."""
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_time,prompt_tokens,output_tokens\n0,100,10\n1,100,10\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"time_scale=0\.8"):
        plan(load("chatbot", [f"workload={{trace: {{path: {trace}}}}}"]), PlanOptions(headroom=0.25))


def test_a_plan_says_whose_prices_it_takes() -> None:
    """The seller or class of sellers, and when the price was seen; nothing where the scenario gives a price."""
    listed = planned()["best"]
    one = options(hardware=(HARDWARE[0],), choices={**SMALL, **ONE_SHAPE}, trials=0)
    given = plan(busy_scenario(pricing={"gpu_hour_usd": 2.0}), one).summary["best"]

    told = [line for line in listed["arithmetic"] if "price of" in line]
    assert len(told) == 1
    assert told[0].startswith(f"${listed['usd_per_gpu_hour']:,.4g} an hour: ")
    assert "specialised clouds" in told[0]
    assert "seen 20" in told[0]
    assert not any("price of" in line for line in given["arithmetic"])


def test_choices_are_read_as_yaml() -> None:
    """Numbers, switches and names; what has an option of its own is refused."""
    assert parse_choices(["deployment.tensor_parallel_size=1,2", "deployment.quantization=none,fp8"]) == {
        "deployment.tensor_parallel_size": [1, 2],
        "deployment.quantization": ["none", "fp8"],
    }
    for text in ("deployment.hardware=l4-24gb", "deployment.replicas=1,2", "nothing", "a.b="):
        with pytest.raises(UsageError):
            parse_choices([text])


@pytest.mark.parametrize("starts_high", [False, True])
def test_the_smallest_integer_is_found(starts_high: bool) -> None:
    """Whatever the threshold, with few questions."""
    for threshold, least, most in itertools.product(range(1, 30), (1, 3), (1, 8, 25)):
        asked: list[int] = []

        def holds(value: int, threshold: int = threshold, asked: list[int] = asked) -> bool:
            asked.append(value)
            return value >= threshold

        found = smallest_integer(holds, least, most, starts_high=starts_high)

        expected = max(threshold, least)
        assert found == (expected if expected <= most and least <= most else None)
        assert len(asked) == len(set(asked)) <= 12


@pytest.mark.slow
def test_what_no_longer_run_confirms_is_a_miss_with_the_run_that_came_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fleets that held in the search only: nothing is recommended, and what the longer runs reached is said."""
    confirmed: list[tuple[str, int]] = []

    def refuse(fleet: Fleet) -> Trial:
        trial = replace(confirm(fleet), holds=False, attainment=0.9 + 0.001 * len(confirmed), probability=0.25)
        confirmed.append((repr(fleet.overrides), fleet.replicas))
        return trial

    monkeypatch.setattr("simserve.planner.plan.plan.confirm", refuse)
    monkeypatch.setattr("simserve.planner.plan.plan.CONFIRMED_AT_MOST", 3)
    monkeypatch.setattr("simserve.planner.plan.plan.AGAIN_AT_MOST", 0)  # what is dearer is not searched
    summary = plan(busy_scenario(), options()).summary

    assert not summary["feasible"]
    assert summary["best"] is None
    assert summary["nearest_miss"]["attainment"] == pytest.approx(0.9 + 0.001 * (len(confirmed) - 1))
    assert summary["nearest_miss"]["highest_probability"] == 0.25
    assert "wider limit" in summary["nearest_miss"]["relax"]
    assert f"({len(confirmed)} fleets that held in the search failed when" in summary["nearest_miss"]["relax"]


@pytest.mark.slow
@pytest.mark.usefixtures("best_alone")
def test_what_is_no_surer_than_one_that_failed_is_not_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of fleets that are as good in the search the next confirmation goes to a surer one, or to one replica more."""
    asked: list[tuple[str, int]] = []

    def refuse_first(fleet: Fleet) -> Trial:
        asked.append((repr(fleet.overrides), fleet.replicas))
        trial = confirm(fleet)
        return trial if len(asked) > 1 else replace(trial, holds=False)

    monkeypatch.setattr("simserve.planner.plan.plan.confirm", refuse_first)
    first = plan(busy_scenario(), options(trials=4)).summary

    by_fleet = {repr(each["overrides"]): each.get("probability") for each in first["candidates"] if "overrides" in each}
    assert first["feasible"]
    assert len(asked) == len(set(asked)) == 3  # the two shapes and the knobs, and nothing twice
    assert asked[1][1] > asked[0][1] or by_fleet[asked[1][0]] > by_fleet[asked[0][0]]


@pytest.fixture
def low_ceiling(monkeypatch: pytest.MonkeyPatch) -> float:
    """Return how many times the price of what held is searched first: little enough that an L40S is dearer than L4s."""
    ceiling = 1.5
    monkeypatch.setattr("simserve.planner.plan.plan.CEILING", ceiling)
    return ceiling


@pytest.mark.slow
@pytest.mark.usefixtures("best_alone")
def test_fleets_between_what_failed_and_what_was_confirmed_are_searched(
    monkeypatch: pytest.MonkeyPatch, low_ceiling: float
) -> None:
    """What holds in the search alone hides no fleet that is dearer than it and cheaper than the next that holds."""
    small: list[float] = []

    def refuse_small(fleet: Fleet) -> Trial:
        trial = confirm(fleet)
        is_small = with_overrides(fleet.scenario, fleet.overrides).deployment.hardware == "l4-24gb"
        if not is_small:
            return trial
        small.append(trial.usd_per_hour or 0.0)
        return replace(trial, holds=trial.num_gpus > 3)

    monkeypatch.setattr("simserve.planner.plan.plan.confirm", refuse_small)
    best = plan(busy_scenario(), options(hardware=("l4-24gb", "l40s-48gb"), trials=4)).summary["best"]

    assert best["hardware"] == "l40s-48gb"
    assert min(small) * low_ceiling < best["usd_per_hour"] < max(small)


@pytest.mark.slow
@pytest.mark.usefixtures("best_alone")
def test_where_nothing_that_held_is_confirmed_dearer_fleets_are_searched(
    monkeypatch: pytest.MonkeyPatch, low_ceiling: float
) -> None:
    """Another kind of GPU, dearer than several of the plans that failed, is looked at once they have; both are told."""
    small: list[float] = []

    def refuse_small(fleet: Fleet) -> Trial:
        trial = confirm(fleet)
        if with_overrides(fleet.scenario, fleet.overrides).deployment.hardware != "l4-24gb":
            return trial
        small.append(trial.usd_per_hour or 0.0)
        return replace(trial, holds=False)

    monkeypatch.setattr("simserve.planner.plan.plan.confirm", refuse_small)
    best = plan(busy_scenario(), options(hardware=("l4-24gb", "l40s-48gb"), max_gpus=3, trials=0)).summary["best"]

    assert best["hardware"] == "l40s-48gb"
    assert min(small) * low_ceiling < best["usd_per_hour"]
    assert any("l4-24gb" in line and "not in the runs that confirm" in line for line in best["arithmetic"])


@pytest.mark.slow
def test_where_no_probability_is_known_every_fleet_that_held_is_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure says nothing of fleets of which nobody knows how sure they are: none of them is left out for it."""
    asked: list[tuple[str, int]] = []
    known: dict[tuple[str, int], Trial] = {}

    def refuse(fleet: Fleet) -> Trial:
        key = repr(fleet.overrides), fleet.replicas
        asked.append(key)
        if key not in known:
            known[key] = confirm(fleet)
        return replace(known[key], holds=False)

    monkeypatch.setattr("simserve.planner.plan.plan.confirm", refuse)
    monkeypatch.setattr("simserve.planner.plan.plan.CONFIRMED_AT_MOST", 3)
    monkeypatch.setattr("simserve.planner.plan.plan.AGAIN_AT_MOST", 0)  # what is dearer is not searched
    monkeypatch.setattr("simserve.planner.plan.plan._surety", lambda member: math.inf)
    plan(busy_scenario(), options(trials=4))
    unknown = list(asked)
    asked.clear()
    monkeypatch.setattr("simserve.planner.plan.plan._surety", lambda member: 0.5)
    plan(busy_scenario(), options(trials=4))
    as_sure = list(asked)
    asked.clear()
    monkeypatch.setattr("simserve.planner.plan.plan.is_uneven", lambda scenario: True)
    plan(busy_scenario(), options(trials=4))

    assert len({overrides for overrides, _ in unknown[:3]}) > 1
    assert (
        len({overrides for overrides, _ in as_sure[:3]}) == 1
    )  # as sure as one that failed: its own next size instead
    assert len({overrides for overrides, _ in asked[:3]}) > 1  # days differ in other ways


def test_an_interrupted_search_keeps_what_it_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while the plan is confirmed: the best so far, said to be unconfirmed."""

    def interrupt(_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("simserve.planner.plan.plan.confirm", interrupt)

    found: Plan = plan(busy_scenario(), options())

    assert found.was_interrupted
    assert found.is_feasible
    assert not found.summary["best"]["confirmed"]["is_confirmed"]


@pytest.mark.slow
def test_pools_that_are_scaled_cost_what_their_mean_gpus_do() -> None:
    """In the answer, in the month beside the API, and on the line of the cost: one figure."""
    own = "{name: a, replicas: 1, autoscaling: {metric: running, target: 2, max_replicas: 4}}"
    people = ["pricing.operations_hours_per_month=1", "pricing.engineer_usd_per_hour=100"]
    scenario = from_mapping(busy_scenario().as_mapping(), [f"deployment.pools=[{own}]", *people])
    kept = ("gpus", "weights", "kv-cache", "pools")

    found = plan(scenario, PlanOptions(trials=0, keep=kept, max_gpus=4))

    best = found.summary["best"]
    assert best["mean_gpus"] > 1.05 * best["num_gpus"]
    assert found.summary["month"]["self_host_usd_per_month"] == pytest.approx(best["usd_per_month"] + 100.0)
    assert "GPUs on average (" in answer_lines(found.summary)[0]


def test_a_stopped_stage_keeps_the_best_that_it_has_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while one kind of GPU is searched: it had found a fleet, and told how many it had run."""
    real, told = Search.trial, list[str]()

    def stopped(search: Search, member: Member, replicas: int) -> Trial:
        if search.best is not None:
            raise KeyboardInterrupt
        return real(search, member, replicas)

    monkeypatch.setattr(Search, "trial", stopped)

    found: Plan = plan(busy_scenario(), options(), on_stage=lambda _, detail: told.append(detail))

    assert found.was_interrupted
    assert found.is_feasible
    assert not (found.summary["best"].get("confirmed") or {}).get("is_confirmed")
    assert any(re.search(r"fleets? tried; best so far: ", each) for each in told), told


@pytest.mark.parametrize("stage", ["deployments on l4-24gb", "deployments on 2 kinds of GPU"])
def test_a_stopped_search_keeps_the_nearest_miss(monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    """Ctrl-C while nothing has held yet: what came nearest until then is told, whether this process ran it or others
    did."""
    real = Search._trial

    def missed(search: Search, member: Member, replicas: int) -> Trial:
        return replace(real(search, member, replicas), holds=False)

    def interrupt(doing: str, detail: str) -> None:
        if doing == stage and "tried" in detail:
            raise KeyboardInterrupt

    monkeypatch.setattr(Search, "_trial", missed)

    found = plan(busy_scenario(), options(jobs=2), on_stage=interrupt)

    told = miss_lines(found.summary)
    assert found.was_interrupted
    assert not found.is_feasible
    assert found.summary["nearest_miss"]["attainment"] is not None
    assert told[0].startswith("Nothing held until the search was stopped.")
    assert [each.partition(": ")[0].strip() for each in told[1:]] == ["Nearest", "simulated", "Let the search end"]


CONVERSATIONS: dict[str, Any] = {
    "arrivals": {"process": "constant", "rate": 4.0},
    "prompt_tokens": {"distribution": "fixed", "value": 100},
    "output_tokens": {"distribution": "fixed", "value": 20},
    "sessions": {"turns": {"distribution": "fixed", "value": 4}, "think_time": "10 s"},
}


@pytest.mark.slow
@pytest.mark.usefixtures("best_alone")
def test_a_fleet_for_conversations_must_hold_in_runs_that_the_search_has_not_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sixteen of them, last of all, of the fleet that is to be taken; where they miss, another is looked at."""
    asked: list[tuple[Any, int]] = []

    def promised(scenario: Scenario, overrides: Overrides, replicas: int, is_picked: bool = False) -> Promise:
        promise = promise_of(scenario, overrides, replicas, is_picked)
        assert (len(promise.attainments) == 16) == is_picked
        if not is_picked:
            return promise
        asked.append((overrides, replicas))
        return replace(promise, holds=len(asked) > 1)

    monkeypatch.setattr("simserve.planner.plan.plan.promise_of", promised)
    small = options(hardware=("l4-24gb",), choices={**SMALL, **ONE_SHAPE}, trials=0)
    best = plan(busy_scenario(workload={**CONVERSATIONS, "num_requests": 160}), small).summary["best"]

    assert len(asked) == 2
    assert asked[0] != asked[1]
    assert best["replicas"] == asked[1][1]
    assert best["attainment_interval"]["runs"] == 16


@pytest.mark.slow
@pytest.mark.usefixtures("best_alone")
def test_conversations_that_are_still_beginning_are_said() -> None:
    """A fleet for what comes in a short run is not the fleet for the rate that was asked for."""
    workload = CONVERSATIONS
    small = options(hardware=("l4-24gb",), choices={**SMALL, **ONE_SHAPE}, trials=0)

    short = plan(busy_scenario(workload={**workload, "num_requests": 160}), small).summary["best"]
    settled = {"workload": {**workload, "num_requests": 800}, "run": {"warmup": "60 s"}}
    long = plan(busy_scenario(**settled), small).summary["best"]

    assert any("requests come a second, not 4" in each for each in short["assumes"])
    assert "workload.num_requests=1000" in short["assumes"][-1]
    assert long["assumes"] == []


def test_one_change_is_measured_on_the_deployment_as_it_is() -> None:
    """With a full queue; the largest gain first, what is refused without a figure."""
    single = planned()["single_changes"]

    times = [each["times"] for each in single["changes"] if each["times"] is not None]
    assert times == sorted(times, reverse=True)
    variants = {each["variant"]: each for each in single["changes"]}
    fp8 = next(each for name, each in variants.items() if name.startswith("fp8 weights, checkpoint "))
    assert fp8["output_throughput"] == pytest.approx(fp8["times"] * single["output_throughput"])
    assert fp8["times"] > 1
    assert "1,024 requests at a time" in variants


SCRIPT = "start_servers.sh"
"""What starts every server of a fleet of prefill and decode workers."""
SMALLER = {
    "ten-thousand-users": ["workload.arrivals.users=500", "workload.num_requests=2500"],
}
"""Overrides of scenarios whose fleets, or runs, are so large that a plan takes many minutes."""
MINUTES = ("halve-the-api-bill", "kv-offload", "stale-router")
"""Scenarios whose plan takes minutes: runs that are not compiled, or that go on long until they settle."""
THIRD = [name for name in catalog.names("scenario")[::3] if name not in MINUTES]
"""Scenarios that are planned whole; of the others a plan of few requests is looked at."""


def check_export(scenario: Scenario, best: Scenario) -> None:
    """Insist that a plan is exported where its scenario is: to flags that the release knows."""
    engine = scenario.deployment.engine.name
    target = next((target for target, name in ENGINES.items() if name == engine), None)
    if target is None:
        return
    try:
        export(scenario, target)
    except InputError:
        return
    if best.deployment.pools and best.deployment.disaggregation is None:
        # A pool for each class: no one command, but manifests.
        assert export(best, "k8s").files
        return
    written = export(best, target)
    if target in ("vllm", "sglang"):
        # Of prefill and decode workers every server; the router in front is no release of the engine.
        started = re.findall(
            r"(?:vllm serve|python3? -m sglang\.launch_server) .*(?= &)", written.files.get(SCRIPT, "")
        )
        for words in [shlex.split(line) for line in started] or [list(written.command)]:
            flags, _ = read_words(flags_of(engine, written.version), words)
            assert [word.flag for word in flags if not word.is_known and word.flag != "-m"] == []


def rows_shown(answer: object) -> Iterator[Mapping[str, Any]]:
    """Yield the overrides of every row of an answer that is offered: the plan, its alternatives, single changes."""
    if isinstance(answer, Mapping):
        if isinstance(answer.get("overrides"), Mapping) and not answer.get("reason"):
            yield answer["overrides"]
        answer = list(answer.values())
    if isinstance(answer, list):
        for each in answer:
            yield from rows_shown(each)


def check_rows(scenario: Scenario, summary: Mapping[str, Any]) -> int:
    """Insist that every row of a plan is exported and in formats that can be had; returns how many there were."""
    rows = {json.dumps(each, sort_keys=True): each for each in rows_shown(summary)}
    for overrides in rows.values():
        there = with_overrides(scenario, overrides)
        resolved = resolve(there)
        shapes = [pool.shape for pool in resolved.pools] or [resolved.shape]
        assert all(available_as(shape) is not None for shape in shapes), overrides
        check_export(scenario, there)
    return len(rows)


def test_every_row_of_a_plan_is_exported_in_formats_that_there_are() -> None:
    """Alternatives, runners-up, the front and single changes as well as the best; a row that cannot be had says why."""
    assert check_rows(busy_scenario(), planned()) > 10


def few_requests(name: str, count: int = 198) -> list[str]:
    """Return the overrides that make a scenario's own run short, where it counts requests."""
    requests = load(name).workload.num_requests
    smaller = SMALLER.get(name, [])
    if requests is None or requests <= count or load(name).workload.trace is not None:
        return smaller
    return [*(each for each in smaller if "num_requests" not in each), f"workload.num_requests={count}"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in catalog.names("scenario") if name not in THIRD])
def test_every_row_of_every_bundled_plan_is_exported_in_formats_that_there_are(name: str) -> None:
    """All but the next test's, on their own GPUs, few requests, no knobs tried: what a plan shows can be had.

    Flags of the release that is named, and formats that a public checkpoint has or the engine makes on load.
    """
    scenario = load(name, few_requests(name))
    own = [scenario.deployment.hardware, *(pool.hardware for pool in scenario.deployment.pools)]

    found = ss.plan(scenario, hardware=list(dict.fromkeys(filter(None, own))), trials=0).summary
    assert check_rows(scenario, found) > 0
    assert found["feasible"] == (found["nearest_miss"] is None)
    check_export(scenario, scenario)


@pytest.mark.slow
@pytest.mark.parametrize("name", THIRD)
def test_a_bundled_scenario_has_a_plan_or_a_nearest_miss(name: str) -> None:
    """A third of them, over their GPUs and L40S, all shapes, few knobs: what is deployed holds when it is run."""
    smaller = SMALLER.get(name, [])
    scenario = ss.load(name, smaller)
    own = [scenario.deployment.hardware, *(pool.hardware for pool in scenario.deployment.pools)]
    gpus = dict.fromkeys((*filter(None, own), "l40s-48gb"))
    found = ss.plan(scenario, hardware=list(gpus), trials=2).summary

    assert found["feasible"] == (found["nearest_miss"] is None)
    assert found["candidates"]
    assert check_rows(scenario, found) > 0
    if found["feasible"]:
        changes = [text for flag, text in pairwise(shlex.split(found["best"]["command"])) if flag == "--set"]
        again = ss.run(ss.load(name, [*smaller, *changes, "run.replications=3"])).summary
        asked = objective(load(name))
        assert again["completed"] > 0
        assert asked is None or again["simserve"]["slo"]["attainment"] >= asked.attainment
        check_export(ss.load(name, smaller), ss.load(name, [*smaller, *changes]))


def test_longer_requests_get_a_budget_that_holds_them() -> None:
    """Whole prompts must fit into a step, so the budget grows with the longest request."""
    scenario = make_scenario(["deployment.engine.max_model_len=4000"])
    whole = {"deployment.engine.enable_chunked_prefill": False, "deployment.engine.max_num_batched_tokens": 4096}
    longer = make_scenario(["deployment.engine.max_model_len=4800"])

    fleet = with_room(Fleet(scenario=scenario, overrides=whole, replicas=1), longer)

    assert fleet.overrides == {**whole, "deployment.engine.max_num_batched_tokens": 4800}
    assert with_room(fleet, scenario).overrides == fleet.overrides


def test_the_plan_can_be_exported_to_the_release_it_names() -> None:
    """What it recommends is a scenario like any other, and every flag of its command is known to that vLLM."""
    best = from_mapping(busy_scenario().as_mapping(), planned()["best"]["overrides"])

    command = export(best, "vllm")
    words, _ = read_words(flags_of("vllm", command.version), command.command)
    assert all(word.is_known for word in words)
    assert "--max-num-seqs" in [word.flag for word in words]


@pytest.mark.slow
def test_gpt_oss_120b_takes_one_h100_with_all_the_context_that_fits() -> None:
    """At one request a second, in MXFP4; a knob that would shorten the longest request is no better choice."""
    scenario = make_scenario(
        ["deployment.engine.version='0.33'", "workload.num_requests=300", "slo={ttft: 1 s, tpot: 50 ms}"],
        model="gpt-oss-120b",
        deployment={"hardware": "h100-sxm-80gb"},
        workload={
            "arrivals": {"process": "poisson", "rate": 1.0},
            "prompt_tokens": {"distribution": "fixed", "value": 1000},
            "output_tokens": {"distribution": "fixed", "value": 200},
        },
    )
    best = plan(scenario, PlanOptions(hardware=("h100-sxm-80gb",), max_gpus=2, jobs=1)).summary["best"]

    assert (best["num_gpus"], best["formats"]["weights"], best["formats"]["weights_source"]) == (
        1,
        "mxfp4",
        "as stored",
    )
    planned_for = resolve(from_mapping(scenario.as_mapping(), best["overrides"]))
    assert planned_for.memory.max_model_len == resolve(scenario).memory.max_model_len


def test_the_gpus_of_an_encoder_pool_are_among_those_allowed() -> None:
    """A replica of two GPUs and two that encode do not go into three; nothing has to run to say so."""
    kept = ("gpus", "weights", "kv-cache", "engine", "tensor-parallel", "replicas")
    found = ss.plan("encoder-pool", keep=kept, max_gpus=3, trials=0).summary

    assert not found["feasible"]
    assert (found["binding"], found["nearest_miss"]["reached"]) == ("gpus", 4.0)
    assert found["nearest_miss"]["relax"] == "allow at least 4 GPUs (--max-gpus 4; bound)"


@pytest.mark.slow
def test_how_many_encoders_there_are_is_a_choice() -> None:
    """The dollars and watts of their GPUs are compared, and the answer names them beside the others."""
    kept = ("gpus", "weights", "kv-cache", "engine", "tensor-parallel")
    counts = "deployment.encoder_disaggregation.replicas=1,2,4"
    found = ss.plan("encoder-pool", over=[counts], keep=kept, max_gpus=8, trials=0)

    key = counts.partition("=")[0]
    plain = [each for each in found.summary["candidates"] if set(each["overrides"]) <= {key}]
    rows = {each["overrides"].get(key, 2): each for each in plain}
    best, encoder = found.summary["best"], load_hardware("l40s-48gb")
    hour = gpu_hour(load("encoder-pool").pricing, encoder).usd
    assert hour is not None
    assert rows[2]["usd_per_month"] - rows[1]["usd_per_month"] == pytest.approx(hour * HOURS_PER_MONTH)
    assert rows[2]["watts"] - rows[1]["watts"] == pytest.approx(encoder.power.idle, rel=0.2)
    assert rows[4]["status"] == "not_better"
    assert best["overrides"][key] == 1
    assert answer_lines(found.summary)[0].startswith(
        "Deploy 2 x h100-sxm-80gb, TP 2, fp8: 2 GPUs and 1 that encode for $"
    )


@pytest.mark.usefixtures("headroom_alone")
def test_kinds_are_searched_up_to_the_best_of_those_that_promise_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scenario's own GPU first, then the one with the most arithmetic for its price; the answer keeps the order."""
    ceilings: dict[str, float] = {}

    def searched(space: Space, goal: Goal, *known: GroupResult, **how: Any) -> GroupResult:
        found = search_group(space, goal, *known, **how)
        ceilings[found.hardware] = goal.ceiling
        return found

    monkeypatch.setattr("simserve.planner.plan.plan.search_group", searched)
    monkeypatch.setattr("simserve.planner.plan.plan.FIRST_KINDS", 1)
    hardware = ("a10-24gb", "l4-24gb", "l40s-48gb")
    summary = plan(busy_scenario(), options(hardware=hardware, choices={**SMALL, **ONE_SHAPE}, trials=0)).summary

    fleets = [summary["best"], *summary["runners_up"]]
    hourly = {each["hardware"]: each["usd_per_month"] / HOURS_PER_MONTH for each in fleets}
    assert [*ceilings] == ["a10-24gb", "l40s-48gb", "l4-24gb"]
    assert ceilings["a10-24gb"] == math.inf
    assert ceilings["l40s-48gb"] == pytest.approx(CEILING * hourly["a10-24gb"])
    assert ceilings["l4-24gb"] == pytest.approx(CEILING * min(hourly["a10-24gb"], hourly["l40s-48gb"]))
    assert tuple(summary["search"]["hardware"]) == hardware
