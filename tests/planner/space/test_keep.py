"""What may be kept: each name fixes dimensions that would else vary."""

from __future__ import annotations

import pytest

from simserve.errors import ScenarioError
from simserve.planner.space.makeup import POOLS_KEY
from simserve.planner.space.space import DIMENSIONS, GPUS, KEEPABLE, POOL_NAME, REPLICAS, Space, kept_of, space_on
from simserve.planner.space.traffic import traffic_of
from simserve.scenario.load import load

OF_OPTIONS = {
    "drafts": "speculative-decoding",
    "routing": "prefix-routing",
    "pools": "disaggregation",
    "autoscaling": "busy-scales-late",
    "offload": "kv-offload",
    "response-cache": "response-cache",
    "overflow": "overflow-to-api",
    "admission": "overload-and-shedding",
}
"""Name -> a scenario that has it."""
OF_SHAPES = {"expert-parallel": "qwen3-30b-a3b", "data-parallel": "deepseek-v3"}
"""Name -> a model that has it."""


def space_of(name: str, *kept: str, model: str | None = None) -> Space:
    """Return the deployments of a bundled scenario on its own GPU."""
    scenario = load(name, [] if model is None else [f"model={model}", "deployment.engine.version=0.15"])
    names = kept_of(kept, (), {})
    return space_on(scenario, scenario.deployment.hardware, {}, {}, traffic_of(scenario), kept=names)


@pytest.mark.parametrize("name", [each for each in KEEPABLE if each not in (GPUS, REPLICAS, "disaggregation")])
def test_what_is_kept_is_as_the_scenario_has_it(name: str) -> None:
    """One value, the scenario's own, where there were several."""
    of = OF_OPTIONS.get(name, "chatbot")
    free, kept = space_of(of, model=OF_SHAPES.get(name)), space_of(of, name, model=OF_SHAPES.get(name))

    fixed = [key for key in KEEPABLE[name] if len(free.dimensions.get(key, ())) > 1]

    assert fixed
    assert all(kept.dimensions[key] == (free.own[key],) for key in fixed)
    assert kept.size < free.size
    assert kept.overrides(kept.start) == {}


def test_with_disaggregation_kept_every_fleet_has_both_roles() -> None:
    """Their number and shapes are searched; equal replicas of one kind, offered else, are not."""
    free, kept = space_of("disaggregation"), space_of("disaggregation", "disaggregation")

    pools = [choice.changes.get(POOLS_KEY) for choice in free.dimensions[POOL_NAME]]
    apart = [choice.changes.get(POOLS_KEY) for choice in kept.dimensions[POOL_NAME]]
    assert [] in pools
    assert apart == [each for each in pools if each != []]
    assert all(each is None or {pool["role"] for pool in each} == {"prefill", "decode"} for each in apart)
    assert kept.roles == free.roles
    assert kept.overrides(kept.start) == {}


@pytest.mark.parametrize(
    ("name", "has_spares", "words"), [("chatbot", False, "is not there"), ("disaggregation", True, "spare replicas")]
)
def test_disaggregation_that_is_not_there_is_not_kept(name: str, has_spares: bool, words: str) -> None:
    """None in the scenario, or none that the search would keep: refused with the key."""
    scenario = load(name)
    traffic, kept = traffic_of(scenario), kept_of(["disaggregation"], (), {})

    with pytest.raises(
        ScenarioError, match=rf"{words}.*deployment\.disaggregation|deployment\.disaggregation.*{words}"
    ):
        space_on(scenario, scenario.deployment.hardware, {}, {}, traffic, has_spares=has_spares, kept=kept)


def test_every_dimension_can_be_kept() -> None:
    """A dimension that is added gets a name."""
    names = {key for keys in KEEPABLE.values() for key in keys}

    assert {each.key for each in DIMENSIONS} <= names


def test_graphs_are_searched_where_the_scenario_forgoes_them() -> None:
    """With its own setting first; elsewhere there is nothing to search."""
    own, eager = load("chatbot"), load("chatbot", ["deployment.engine.enforce_eager=true"])

    spaces = [space_on(each, each.deployment.hardware, {}, {}, traffic_of(each)) for each in (own, eager)]

    assert [space.dimensions["deployment.engine.enforce_eager"] for space in spaces] == [(None,), (True, False)]
    kept = kept_of(["engine"], (), {})
    there = space_on(eager, eager.deployment.hardware, {}, {}, traffic_of(eager), kept=kept)
    assert there.dimensions["deployment.engine.enforce_eager"] == (True,)
