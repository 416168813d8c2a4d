"""Objectives by use case: what they stand for, what comes before them, what is none."""

from __future__ import annotations

import pytest

from simserve.errors import ScenarioError
from simserve.scenario.load import from_mapping
from simserve.scenario.presets import SLO_PRESETS
from simserve.scenario.run import run
from simserve.units import parse
from tests.scenario.builders import make_scenario, scenario_mapping


@pytest.mark.parametrize("name", SLO_PRESETS)
def test_a_name_alone_is_an_objective(name: str) -> None:
    """Every limit is that of the table, and every preset says who states it."""
    scenario = make_scenario(slo=name)

    preset = SLO_PRESETS[name]
    assert scenario.slo is not None
    assert scenario.slo.attainment == preset.attainment
    for term in ("ttft", "tpot", "e2e"):
        limit = preset.limits.get(term)
        assert getattr(scenario.slo, term) == (None if limit is None else parse(limit, "time"))
    assert preset.source
    assert from_mapping(scenario.as_mapping()).hash == scenario.hash


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
