"""Options beside shape and knobs: which enter for which traffic, and that the plan over them is the best of all."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from simserve.errors import InputError
from simserve.perf.tables import price
from simserve.planner.overrides import with_overrides
from simserve.planner.plan.fleet import Fleet, confirm
from simserve.planner.plan.plan import PlanOptions, plan
from simserve.planner.search.bound import fleet_bound
from simserve.planner.search.trial import Trial, deployed, try_fleet
from simserve.planner.space.options import Option, Setting, options_of
from simserve.planner.space.space import Space, space_on
from simserve.planner.space.traffic import traffic_of
from simserve.profiles import catalog
from simserve.scenario.load import load
from simserve.scenario.resolve import resolve
from simserve.scenario.schema import Scenario
from simserve.workload.generate import generate
from tests.scenario.builders import make_scenario

ENGINE = {"name": "vllm", "version": "0.12", "max_model_len": 4096}
FIXED = {
    "deployment.tensor_parallel_size": [1],
    "deployment.pipeline_parallel_size": [1],
    "deployment.data_parallel_size": [1],
    "deployment.enable_expert_parallel": [False],
    "deployment.quantization": ["none"],
    "deployment.kv_cache_dtype": ["auto"],
    "deployment.engine.max_num_seqs": [32],
    "deployment.engine.max_num_batched_tokens": [2048],
    "deployment.engine.enable_chunked_prefill": [True],
}
"""One shape: what is left to choose is options."""


RECENT = "deployment.engine.version='0.15'"
"""A vLLM that takes a draft model."""
DRAFTING = {"engine": {**ENGINE, "version": "0.15"}}
"""The deployment under it."""


def served(*, workload: Mapping[str, Any] | None = None, **changes: Any) -> Scenario:
    """Return steady traffic on small GPUs, with blocks replaced."""
    deployment = {"hardware": "l4-24gb", "engine": ENGINE, **changes.pop("deployment", {})}
    return make_scenario(
        model="llama-3.1-8b",
        deployment=deployment,
        workload={
            "arrivals": {"process": "constant", "rate": 4.0},
            "prompt_tokens": {"distribution": "fixed", "value": 300},
            "output_tokens": {"distribution": "fixed", "value": 60},
            "num_requests": 240,
            **(workload or {}),
        },
        **{"slo": {"ttft": "600 ms", "tpot": "90 ms", "attainment": 0.95}, **changes},
    )


def offered(scenario: Scenario, **changes: Any) -> tuple[dict[str, Option], dict[str, str]]:
    """Return the options that enter, by name, and why the others do not."""
    options, left_out = options_of(Setting(scenario=scenario, traffic=traffic_of(scenario), **changes))
    return {each.name: each for each in options}, left_out


def space_of(scenario: Scenario, choices: Mapping[str, Sequence[Any]]) -> Space:
    """Return the deployments of a scenario on its own GPU."""
    return space_on(scenario, scenario.deployment.hardware, {}, choices, traffic_of(scenario))


def everything(scenario: Scenario, choices: Mapping[str, Sequence[Any]], most: int) -> list[Trial]:
    """Return every fleet of a space that holds, up to a number of replicas, each simulated whole."""
    space, found = space_of(scenario, choices), []
    for overrides, replicas in itertools.product(list(space.members()), range(1, most + 1)):
        try:
            trial = try_fleet(scenario, overrides, replicas)
        except InputError:
            continue
        if trial.holds:
            found.append(trial)
    return found


STEPS = [{"rate": 1, "duration": "20 min"}, {"rate": 12, "duration": "6 min"}, {"rate": 1, "duration": "20 min"}]
UNTIL = {"num_requests": None, "duration": "46 min"}
BURSTS = {"process": "burst", "rate": 6.0, "factor": 4, "burst_duration": "15 s", "quiet_duration": "60 s"}
CLASSES = [
    {"name": "chat", "share": 0.5, "slo": {"ttft": "1 s"}},
    {"name": "batch", "share": 0.5, "slo": {"e2e": "60 s"}},
]


@pytest.mark.parametrize(
    ("name", "scenario"),
    [
        ("speculate", served(deployment=DRAFTING)),
        ("route", served(workload={"shared_prefix": {"num_groups": 4, "tokens": 200}})),
        ("route", served(deployment={"routing": {"update_interval": "5 s"}})),
        ("cache", served(workload={"shared_prefix": {"num_groups": 4, "tokens": 200}})),
        ("scale", served(workload={**UNTIL, "arrivals": {"process": "steps", "steps": STEPS}})),
        ("pool", served(workload={"prompt_tokens": {"distribution": "fixed", "value": 2000}})),
        ("pool", served(workload={"classes": CLASSES})),
        ("overflow", served(pricing={"api": "deepinfra-llama-3.1-8b"})),
        ("admit", served(workload={"arrivals": BURSTS})),
    ],
)
def test_an_option_enters_where_the_traffic_could_profit(name: str, scenario: Scenario) -> None:
    """And on plain traffic it stays out, which is said; drafts alone help any limit on TPOT."""
    here, _ = offered(scenario)
    plain, why = offered(served(slo={"ttft": "600 ms"}))

    assert len(here[name].choices) > 1
    assert name not in plain
    assert why[name]


def test_what_the_user_sets_is_not_an_option_as_well() -> None:
    """`--over` decides; so does a key below or above it."""
    scenario = served(workload={"arrivals": BURSTS}, deployment=DRAFTING)

    _, left_out = options_of(
        Setting(scenario=scenario, traffic=traffic_of(scenario)),
        frozenset({"deployment.admission.max_queue", "deployment.speculative"}),
    )

    assert left_out["admit"] == left_out["speculate"] == "set by --over"


def test_the_first_kv_tier_of_a_scenario_is_sized() -> None:
    """None, half, as it is, twice and four times; the tiers behind it stay. Each choice is a scenario that resolves."""
    scenario = load("kv-tiers")

    option = offered(scenario)[0]["offload"]

    found = [choice.changes["deployment.engine.kv_tiers"] for choice in option.choices]
    assert found[0] is None
    assert [tiers[0]["capacity"] for tiers in found[1:]] == ["16 GiB", "32 GiB", "64 GiB", "128 GiB"]
    assert option.own == 2
    sizes = [resolve(with_overrides(scenario, choice.changes)).engine.kv_tiers for choice in option.choices]
    assert [len(tiers) for tiers in sizes] == [0, 3, 3, 3, 3]
    assert sizes[4][0].num_blocks == 4 * sizes[2][0].num_blocks
    assert sizes[4][1:] == sizes[2][1:]


@pytest.mark.parametrize("name", catalog.names("scenario"))
def test_what_a_scenario_says_itself_is_one_of_the_choices(name: str) -> None:
    """Putting its own choice of every option together gives back the deployment it has; the plain one has none."""
    scenario = load(name)
    space = space_of(scenario, {})

    own = space.apply(space.overrides({key: space.own[key] for key in space.options})).deployment
    plain = space.apply(space.plain).deployment

    assert own == scenario.deployment
    assert (plain.speculative, plain.autoscaling, plain.overflow, plain.admission) == (None, None, None, None)
    assert space.chosen(space.plain) == {
        key: (values[0] if key in space.options else space.own[key]) for key, values in space.dimensions.items()
    }


@pytest.mark.parametrize("name", catalog.names("scenario"))
def test_bounds_say_nothing_of_options_that_no_proof_covers(name: str) -> None:
    """Pools, an API or shared prefixes: no deployment is dropped; drafts, refusals and scaling are proven elsewhere."""
    scenario = load(name)
    space = space_of(scenario, {})
    specs = generate(scenario.workload, seed=1, base_path=scenario.folder).first(200)
    proven = set()

    for option, choices in space.options.items():
        for choice in choices:
            there = space.apply(space.overrides({option: choice}))
            try:
                resolved = resolve(there)
                times = price(resolved.shape).step_times
            except InputError:
                continue
            bound = fleet_bound(there, resolved.engine, times, specs)
            if bound.is_proven:
                proven.add(option)
                deployment = there.deployment
                assert (deployment.pools, deployment.overflow) == ((), None)
                assert deployment.response_cache is None
                assert resolved.engine.batching == "continuous"
                assert specs.prefixes is None
            else:
                assert (bound.least_replicas, bound.out_of_reach, bound.replica_seconds) == (1, None, 0.0)

    assert proven <= {"speculate", "scale", "pool", "overflow", "admit", "route", "answers", "static"}


def cheapest_confirmed(scenario: Scenario, trials: Sequence[Trial]) -> float:
    """Return what the cheapest of some fleets costs an hour that holds in several runs, too.

    Runs of one fleet differ in their bills by a few per cent: one whose single run costs half as much again as what has
    been confirmed is not run again.
    """
    cheapest = math.inf
    for trial in sorted(trials, key=lambda each: each.usd_per_hour or 0.0):
        if (trial.usd_per_hour or 0.0) > 1.5 * cheapest:
            break
        confirmed = confirm(Fleet(scenario=scenario, overrides=trial.overrides, replicas=trial.replicas))
        if confirmed.holds:
            cheapest = min(cheapest, confirmed.usd_per_hour or 0.0)
    return cheapest


def check_best(scenario: Scenario, choices: Mapping[str, Sequence[Any]], most: int) -> dict[str, Any]:
    """Return the plan, after checking that enumeration finds nothing cheaper that holds in several runs too.

    A bill that depends on the run is that of the confirming runs: to 2 %.
    """
    cheapest = cheapest_confirmed(scenario, everything(scenario, choices, most))

    summary = plan(
        scenario,
        PlanOptions(hardware=(scenario.deployment.hardware,), choices=choices, max_gpus=most, trials=0),
    ).summary

    assert summary["search"]["methods"][scenario.deployment.hardware] == "exhaustive"
    assert summary["best"]["usd_per_hour"] == pytest.approx(cheapest, rel=0.02)
    return dict(summary)


@pytest.fixture
def options_around(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan with the levers of options alone around the best: those of engine knobs, formats and lengths are not asked
    for here, and take most of the time of a load that varies."""
    monkeypatch.setattr("simserve.planner.plan.plan.levers_of", lambda *_: [])
    monkeypatch.setattr("simserve.planner.plan.plan.changes_of", lambda _: ())


@pytest.mark.slow
@pytest.mark.usefixtures("options_around")
def test_bursts_drafts_and_refusals_are_planned_as_enumeration_does() -> None:
    """Every combination with every number of replicas, each simulated whole."""
    drafting = {"engine": {**ENGINE, "version": "0.9.2"}}
    summary = check_best(served(workload={"arrivals": BURSTS, "num_requests": 300}, deployment=drafting), FIXED, 5)

    assert set(summary["search"]["options"]) == {"speculate", "admit"}
    assert {each["lever"] for each in summary["changes"]} >= {"speculate", "admit"}


def rising_and_falling(attainment: float) -> Scenario:
    """Return a load of three steps with an objective that so many requests must meet."""
    slowly = [{"rate": rate, "duration": "10 min"} for rate in (0.2, 2.0, 0.2)]
    return served(
        workload={
            "arrivals": {"process": "steps", "steps": slowly},
            "prompt_tokens": {"distribution": "fixed", "value": 2000},
            "output_tokens": {"distribution": "fixed", "value": 100},
            "num_requests": None,
            "duration": "30 min",
        },
        slo={"ttft": "4 s", "attainment": attainment},
    )


@pytest.mark.slow
@pytest.mark.parametrize("attainment", [0.5, 0.6])
@pytest.mark.usefixtures("best_alone")
def test_a_fleet_that_holds_in_one_run_alone_gives_way_to_the_next_cheapest(attainment: float) -> None:
    """The cheapest of one run misses the objective in several: what else held is taken before a larger fleet."""
    check_best(rising_and_falling(attainment), {**FIXED, "deployment.admission": [None]}, 3)


@pytest.mark.slow
@pytest.mark.usefixtures("best_alone")
def test_a_load_that_rises_and_falls_is_scaled() -> None:
    """Where billed GPU-hours are fewer than those of a fixed fleet that holds."""
    scenario, choices = rising_and_falling(0.4), {**FIXED, "deployment.admission": [None]}
    asked = PlanOptions(hardware=(scenario.deployment.hardware,), choices=choices, max_gpus=3, trials=0)

    best = plan(scenario, asked).summary["best"]

    fixed = [try_fleet(scenario, {}, replicas) for replicas in (1, 2, 3)]
    assert best["deployment"]["autoscaling"] is not None
    assert best["mean_gpus"] < best["num_gpus"]
    assert best["usd_per_hour"] < min(each.usd_per_hour or 0.0 for each in fixed if each.holds)


@pytest.mark.slow
@pytest.mark.usefixtures("options_around")
def test_a_load_that_rises_and_falls_is_scaled_where_that_is_cheaper() -> None:
    """Billed GPU-hours decide between a fixed fleet and one that follows the load, as enumeration does."""
    scenario = rising_and_falling(0.4)
    summary = check_best(scenario, {**FIXED, "deployment.admission": [None]}, 3)

    best = summary["best"]
    assert best["deployment"]["autoscaling"] is not None
    assert best["mean_gpus"] < best["num_gpus"]
    assert any("paid for on average" in line for line in best["arithmetic"])
    fixed = next(each for each in summary["changes"] if each["variant"] == "a fixed fleet")
    assert fixed["usd_per_month_more"] > 0


@pytest.mark.slow
@pytest.mark.usefixtures("best_alone")
def test_an_api_takes_peaks_where_that_is_cheaper_than_gpus() -> None:
    """The number of replicas is the cheapest that holds, not the smallest: an API is paid by the token."""
    summary = check_best(
        served(
            workload={"arrivals": BURSTS, "num_requests": 300},
            pricing={"api": "deepinfra-llama-3.1-8b"},
            slo={"ttft": "2 s", "attainment": 0.95},
        ),
        {**FIXED, "deployment.admission": [None], "deployment.speculative": [None]},
        5,
    )

    assert summary["best"]["deployment"]["overflow"]["api"] == "deepinfra-llama-3.1-8b"


@pytest.mark.slow
@pytest.mark.usefixtures("best_alone")
def test_each_pool_gets_the_replicas_it_needs() -> None:
    """Two pools of two GPUs, each of its own price: no other pair of numbers holds for less."""
    pools = [{"name": "small"}, {"name": "large", "hardware": "l40s-48gb"}]
    classes = [
        {"name": "easy", "share": 0.7, "pool": "small"},
        {"name": "hard", "share": 0.3, "pool": "large", "output_tokens": {"distribution": "fixed", "value": 300}},
    ]
    scenario = served(
        deployment={"pools": pools}, workload={"classes": classes, "arrivals": {"process": "poisson", "rate": 8.0}}
    )
    found = {}
    for small, large in itertools.product(range(1, 5), range(1, 4)):
        counts = {"deployment.pools.0.replicas": small, "deployment.pools.1.replicas": large}
        trial = try_fleet(with_overrides(scenario, counts), {}, small + large)
        if trial.holds:
            found[small, large] = trial.usd_per_hour or 0.0

    best = plan(scenario, PlanOptions(choices=FIXED, max_gpus=8, trials=0)).summary["best"]

    assert best["usd_per_hour"] == pytest.approx(min(found.values()))
    assert min(found, key=lambda counts: found[counts]) == tuple(
        pool["replicas"] for pool in best["deployment"]["pools"]
    )
    assert f"{best['deployment']['pools'][0]['replicas']} small" in best["label"]


@pytest.mark.slow
def test_prefill_and_decode_replicas_are_numbers_of_their_own() -> None:
    """Long prompts: pools of each role are searched, and one of each is a lever."""
    scenario = served(
        workload={
            "arrivals": {"process": "poisson", "rate": 1.5},
            "prompt_tokens": {"distribution": "fixed", "value": 3000},
            "output_tokens": {"distribution": "fixed", "value": 100},
            "num_requests": 150,
        },
        deployment={"hardware": "l40s-48gb"},
        slo={"ttft": "3 s", "tpot": "30 ms", "attainment": 0.95},
    )
    summary = check_best(scenario, {**FIXED, "deployment.speculative": [None]}, 6)

    assert summary["search"]["options"]["pool"] == ["one kind of replica", "1 prefill : 1 decode"]
    assert any(each["lever"] == "pool" for each in summary["changes"])


@pytest.mark.usefixtures("best_alone")
def test_a_fleet_holds_with_its_faults_played() -> None:
    """One replica more than without the fault; never fewer than the fault names."""
    fault = {"kind": "replica", "replica": 0, "at": "20 s", "duration": "30 s", "in_flight": "retry"}
    calm = served()
    faulty = served(deployment={"faults": [fault]})
    asked = PlanOptions(hardware=("l4-24gb",), choices={**FIXED, "deployment.speculative": [None]}, max_gpus=8)

    without, with_fault = (plan(each, asked).summary["best"] for each in (calm, faulty))

    assert with_fault["replicas"] > without["replicas"]
    assert not try_fleet(faulty, {}, without["replicas"]).holds


def test_spares_and_pools_do_not_go_together() -> None:
    """A spare replica is of one kind: pools stay out, which is said."""
    scenario = served(workload={"prompt_tokens": {"distribution": "fixed", "value": 2000}})

    assert offered(scenario, has_spares=True)[1]["pool"] == "spare replicas are of one kind"


@pytest.mark.parametrize(
    "own",
    [
        {"speculative": {"method": "ngram", "num_speculative_tokens": 2, "acceptance_rate": 0.5}},
        {"quantization": "fp8"},
        {},
    ],
)
def test_pools_that_differ_are_not_replaced_by_one_kind(own: dict[str, Any]) -> None:
    """Only pools that differ in name and number alone could as well be one."""
    scenario = make_scenario({"deployment.pools": [{"name": "a", "replicas": 1}, {"name": "b", "replicas": 2, **own}]})

    labels = [each.label for each in offered(scenario)[0]["pool"].choices]

    assert ("one kind of replica" in labels) is not bool(own)


def test_what_the_version_lacks_is_left_out_with_the_versions_that_have_it() -> None:
    """Drafts of vLLM 0.12; FP8 KV and chunks of vLLM 0.2.7."""
    drafts = offered(make_scenario(model="llama-3.1-70b", slo={"tpot": "50 ms"}))[1]["speculate"]
    old = space_of(make_scenario(["deployment.engine.version='0.2.7'"]), {})

    assert "vllm 0.12 has no speculative decoding with a draft model (versions with it: 0.4.1 to" in drafts
    assert "vllm 0.2.7 has no FP8 KV cache" in old.left_out["quantise_kv"]
    assert "vllm 0.2.7 has no chunked prefill" in old.left_out["chunk"]
    assert old.dimensions["deployment.kv_cache_dtype"] == ("auto",)


def test_a_draft_is_known_where_the_catalogue_has_one() -> None:
    """An MTP layer, a small model of the family, or none; the assumption is said with the plan."""
    limits = {"tpot": "50 ms"}
    drafts = {
        model: offered(make_scenario([RECENT], model=model, slo=limits))[0].get("speculate")
        for model in ("deepseek-v3", "llama-3.1-70b", "mistral-7b")
    }

    assert drafts["mistral-7b"] is None
    for model, label in (("deepseek-v3", "its MTP layer"), ("llama-3.1-70b", "llama-3.2-1b")):
        option = drafts[model]
        assert option is not None
        assert label in option.choices[1].label


def test_a_model_with_states_is_no_draft() -> None:
    """LFM2 350M has the vocabulary of LFM2 2.6B and a seventh of its weights, and states of convolutions."""
    scenario = make_scenario([RECENT], model="lfm2-2.6b", slo={"tpot": "50 ms"})

    assert offered(scenario)[1]["speculate"].startswith("no draft is known for lfm2-2.6b")


def test_deployed_scenarios_have_the_number() -> None:
    """Whatever the choice: the scenario that is run has so many replicas at most."""
    scenario = load("cold-start")
    space = space_of(scenario, {})

    for choices in space.options.values():
        for choice in choices:
            overrides = space.overrides({next(k for k, v in space.options.items() if v is choices): choice})
            there = deployed(space.scenario, overrides, 5).deployment
            most = there.replicas if there.autoscaling is None else there.autoscaling.max_replicas
            assert most == 5
