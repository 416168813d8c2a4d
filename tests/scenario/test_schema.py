"""The scenario schema: what it accepts, what it refuses, what it says of itself, and the presets of objectives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest

import simserve as ss
from simserve.errors import ScenarioError
from simserve.perf.quantization import KV_BITS, WEIGHT_FORMATS
from simserve.scenario import deployment_spec, formats, schema
from simserve.scenario.load import from_mapping
from simserve.scenario.run import run
from simserve.scenario.schema import Scenario, json_schema, objective, objective_mapping, slo_presets
from simserve.units import parse
from simserve.validation import FrozenModel, validate
from tests.scenario.builders import make_scenario, scenario_mapping

_COMMITTED_SCHEMA = Path(__file__).resolve().parents[2] / "scenarios/schema.json"
_CHAT = {"name": "chat", "share": 0.5, "slo": {"ttft": "1 s", "attainment": 0.9}}
_BATCH = {"name": "batch", "share": 0.5}


def test_a_scenario_made_in_python_fails_as_its_file_does() -> None:
    """One line with the key and what was meant, as `load` gives; a file's errors keep their file."""
    keys = scenario_mapping()
    keys["deploymnt"] = keys.pop("deployment")

    with pytest.raises(ScenarioError) as made:
        Scenario(**keys)
    with pytest.raises(ScenarioError) as loaded:
        validate(Scenario, keys, file="chat.yaml", error=ScenarioError)

    assert str(made.value) == "deploymnt: is not a known key; did you mean 'deployment'?"
    assert str(loaded.value) == f"chat.yaml: {made.value}"
    assert Scenario(**scenario_mapping()).name == scenario_mapping()["name"]


def test_committed_schema_is_the_code_s() -> None:
    """`simserve schema > scenarios/schema.json` regenerates the file."""
    assert json.loads(_COMMITTED_SCHEMA.read_text(encoding="utf-8")) == json_schema()


def test_every_field_is_documented() -> None:
    """The text below a field is its entry in the reference, so none may lack it."""
    models = [
        each
        for each in {**vars(deployment_spec), **vars(schema)}.values()
        if isinstance(each, type) and issubclass(each, FrozenModel)
    ]
    for model in models:
        model.model_json_schema()  # which reads the texts
    undocumented = [
        f"{model.__name__}.{name}"
        for model in models
        for name, field in model.model_fields.items()
        if not field.description
    ]

    assert undocumented == []


def test_weight_formats_are_those_that_can_be_priced() -> None:
    """A scenario may ask for every weight format the step-time model knows, and for no other."""
    assert set(get_args(formats.Quantization)) == {"auto", *WEIGHT_FORMATS}


def test_kv_formats_are_those_that_can_be_priced() -> None:
    """A scenario may ask for every KV format the step-time model knows, and for no other."""
    assert set(get_args(formats.KVCacheDtype)) == set(KV_BITS)


def test_resolved_mapping_gives_the_same_scenario_back() -> None:
    """What is stored with a result can be run again, with the same hash."""
    scenario = make_scenario(
        ["run.warmup=10 s", "deployment.engine.frontend_latency=2 ms"],
        slo={"ttft": "1 s"},
        thresholds={"ttft_ms": ["p(95)<1000"]},
    )

    again = from_mapping(scenario.as_mapping())

    assert again.as_mapping() == scenario.as_mapping()
    assert again.hash == scenario.hash


_POISSON = {"arrivals": {"process": "poisson", "rate": 1}, "prompt_tokens": 10, "output_tokens": 5}
_TRACE = {"trace": {"path": "calls.jsonl"}}


@pytest.mark.parametrize(
    "workload",
    [
        {**_POISSON, "agents": {"calls": 3}, "num_requests": 30},
        {**_POISSON, "sessions": {"turns": 3}, "num_requests": 30},
        {**_TRACE, "agents": {}},
        {**_TRACE, "agents": {"max_execution_time": "5 min"}},
        {**_TRACE, "sessions": {}},
        {**_TRACE, "sessions": {"think_time": "5 s"}},
    ],
)
def test_agents_and_sessions_can_be_read_again_with_every_default(workload: dict[str, Any]) -> None:
    """A plan changes a scenario that is written out; parts that were left out are not those that a trace sets."""
    scenario = make_scenario(workload=workload)

    assert from_mapping(scenario.as_mapping()).hash == scenario.hash


def test_a_default_written_out_does_not_change_the_hash() -> None:
    """The hash is that of the resolved scenario, not of the text."""
    assert make_scenario(["deployment.replicas=1"]).hash == make_scenario().hash


@pytest.mark.parametrize("override", ["run.seed=2", "deployment.replicas=2", "slo.ttft=1 s"])
def test_the_hash_sees_every_change(override: str) -> None:
    """Seed, deployment and objective are part of what a result belongs to."""
    assert make_scenario([override]).hash != make_scenario().hash


def test_routing_may_be_a_name_or_a_block() -> None:
    """The policy alone is short for the block."""
    short = make_scenario(["deployment.routing=round_robin"])
    long = make_scenario(["deployment.routing={policy: round_robin}"])

    assert short.hash == long.hash
    assert short.deployment.routing.policy == "round_robin"


def test_scenario_is_frozen() -> None:
    """A scenario cannot change after it was checked."""
    with pytest.raises(ValueError, match="frozen"):
        make_scenario().name = "other"


@pytest.mark.parametrize(
    "block",
    ["semantic_router"],
)
def test_a_block_without_effect_is_an_unknown_key(block: str) -> None:
    """A key is accepted once it does something."""
    deployment = {**scenario_mapping()["deployment"], block: {}}

    with pytest.raises(ScenarioError, match=f"deployment.{block}: is not a known key"):
        make_scenario(deployment=deployment)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("deployment.data_parallel_size=0", "greater than or equal to 1"),
        ("deployment.engine.swap_space=4", "needs a unit"),
        ("deployment.engine.scheduling_policy=lifo", "must be 'fcfs', 'priority' or 'shortest_first'"),
        ("deployment.engine.priority_ageing=0 s", "greater than 0"),
        ("deployment.routing=fastest", "'round_robin', 'random', 'least_outstanding'"),
        ("slo.attainment=0.9", "at least one limit"),
        ("slo.ttft=1000", "needs a unit of time"),
        ("run.warmup=10", "or auto, or none"),
        ("run.seed=-1", "greater than or equal to 0"),
        ("name=a b", "must consist of letters, digits"),
        ("thresholds.ttft=[p(95)<1]", "is not a metric; did you mean 'ttft_ms'"),
        ("thresholds.p95_ttft_ms=[value<100]", 'is a figure of a result; write ttft_ms: ["p(95)<1000"]'),
        ("thresholds.median_itl_ms=[value<100]", 'write itl_ms: ["med<1000"]'),
        ("thresholds.ttft_ms=p(95)<100", "must be a list; put it in brackets: [p(95)<100]"),
        ("thresholds.ttft_ms=[95<1]", "write for example"),
        ("thresholds.slo_attainment=[rate>=0.9]", "needs an slo block"),
        ("pricing.gpu_hour_usd=-1", "greater than or equal to 0"),
    ],
)
def test_a_value_that_cannot_be_used_says_what_can(override: str, message: str) -> None:
    """Every refusal carries the rule and, where there is one, the remedy."""
    with pytest.raises(ScenarioError) as caught:
        make_scenario([override])

    assert message in str(caught.value)


def test_a_version_that_yaml_reads_as_a_number_asks_for_quotes() -> None:
    """0.10 and 0.1 are different versions and the same number."""
    deployment = {"hardware": "h100-sxm-80gb", "engine": {"version": 0.12}}

    with pytest.raises(ScenarioError, match=r'put it in quotes: version: "0.12"'):
        make_scenario(deployment=deployment)
    deployment["engine"] = {"version": 0.10}
    with pytest.raises(ScenarioError, match=r'version: "0.1" or "0.10"'):
        make_scenario(deployment=deployment)


def test_json_schema_describes_a_whole_scenario() -> None:
    """Editors complete from it: required keys and descriptions are there."""
    described = json_schema()

    assert set(described["required"]) == {"model", "deployment", "workload"}
    assert set(described["properties"]) == set(Scenario.model_fields)


@pytest.mark.parametrize("name", slo_presets())
def test_a_name_alone_is_an_objective(name: str) -> None:
    """Every limit is that of the table, and every preset says who states it."""
    scenario = make_scenario(slo=name)

    preset = slo_presets()[name]
    assert scenario.slo is not None
    assert scenario.slo.attainment == preset.attainment
    for term in ("ttft", "tpot", "e2e"):
        limit = preset.limits.get(term)
        assert getattr(scenario.slo, term) == (None if limit is None else parse(limit, "time"))
    assert preset.source
    assert from_mapping(scenario.as_mapping()).hash == scenario.hash


@pytest.mark.parametrize("name", slo_presets())
def test_presets_have_the_values_of_their_sources(name: str) -> None:
    """In seconds, written down a second time: GuideLLM's guide, DistServe's table 1, the day of hosted batches."""
    limits, attainment = {
        "chat": ({"ttft": 0.2, "tpot": 0.05}, 0.99),
        "rag": ({"ttft": 0.3, "tpot": 0.1, "e2e": 3.0}, 0.99),
        "code-completion": ({"e2e": 2.0}, 0.99),
        "summarisation": ({"ttft": 15.0, "tpot": 0.15}, 0.9),
        "agents": ({"e2e": 5.0}, 0.99),
        "batch": ({"e2e": 86_400.0}, 0.99),
    }[name]

    slo = make_scenario(slo=name).slo

    assert slo is not None
    assert {term: limits.get(term) for term in ("ttft", "tpot", "e2e")} == {
        term: getattr(slo, term) for term in ("ttft", "tpot", "e2e")
    }
    assert slo.attainment == attainment


def test_keys_beside_a_preset_come_first() -> None:
    """Also to leave a limit out."""
    slo = make_scenario(slo={"preset": "rag", "ttft": "1 s", "e2e": None, "attainment": 0.9}).slo

    assert slo is not None
    assert (slo.ttft, slo.tpot, slo.e2e, slo.attainment) == (1.0, 0.1, None, 0.9)


def test_a_preset_can_be_set_and_refined_by_flags() -> None:
    """`--set slo=chat`; a refinement names the preset as a key."""
    chosen = make_scenario(["slo=chat"]).slo
    refined = make_scenario(["slo.preset=chat", "slo.tpot=30 ms"]).slo

    assert chosen is not None
    assert refined is not None
    assert (chosen.ttft, chosen.tpot) == (0.2, 0.05)
    assert (refined.ttft, refined.tpot) == (0.2, 0.03)


def test_a_run_is_judged_by_its_preset() -> None:
    """As by the same limits written out."""
    by_name = run(make_scenario(slo="chat")).summary
    by_limits = run(make_scenario(slo={"ttft": "200 ms", "tpot": "50 ms", "attainment": 0.99})).summary

    assert by_name == by_limits
    assert by_name["simserve"]["slo"]["attainment"] == 1


@pytest.mark.parametrize("slo", ["chatt", {"preset": "chatt"}])
def test_what_is_no_preset_names_the_nearest(slo: object) -> None:
    """In one line."""
    with pytest.raises(ScenarioError, match="slo: 'chatt' is not a preset; did you mean 'chat'"):
        from_mapping(scenario_mapping(slo=slo))


def by_class() -> Scenario:
    """Return a scenario of which one class alone has an objective."""
    return make_scenario([f"workload.classes={[_CHAT, _BATCH]}"])


def test_without_an_objective_there_is_none() -> None:
    """Neither to judge by nor to write."""
    assert objective(make_scenario()) is None
    assert objective_mapping(make_scenario()) is None


def test_the_scenario_s_own_is_written_as_it_stands() -> None:
    """With its defaults."""
    assert objective_mapping(make_scenario(slo={"ttft": "1 s"}))["attainment"] == 0.95


def test_objectives_of_classes_are_named() -> None:
    """The share is the least that one of them asks."""
    written = objective_mapping(by_class())

    assert written is not None
    assert written["attainment"] == 0.9
    assert written["by_class"]["chat"]["ttft"] == "1 s"
    assert written["by_class"]["batch"] is None


@pytest.mark.slow
def test_capacity_holds_what_the_classes_ask() -> None:
    """A stricter class bears less; the answer says the objective."""
    loose, strict = (
        ss.capacity(
            make_scenario(
                [
                    "workload.classes="
                    + str([{"name": "chat", "share": 1.0, "slo": {"tpot": bound, "attainment": 0.9}}]),
                    "workload.num_requests=300",
                    "deployment.engine.frontend_latency=3 ms",
                ]
            )
        ).summary
        for bound in ("10 ms", "3 ms")
    )

    assert loose["slo"]["by_class"]["chat"]["tpot"] == "10 ms"
    assert loose["max_rate"] > strict["max_rate"] > 0
