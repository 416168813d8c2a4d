"""The search on one kind of GPU: what it simulates, and how often."""

from __future__ import annotations

from typing import Any

import pytest

from simserve.planner.overrides import with_overrides
from simserve.planner.plan.plan import PlanOptions, plan
from simserve.planner.search import search
from simserve.planner.search.member import Goal
from simserve.planner.search.search import Search, _load_ratio
from simserve.planner.search.trial import deployed, fleet_of
from simserve.planner.space.space import space_on
from simserve.planner.space.traffic import traffic_of
from simserve.scenario.load import load
from simserve.scenario.resolve import resolve
from simserve.scenario.run import run
from simserve.scenario.schema import Scenario

FEW = ["workload.num_requests=200"]


def search_of(scenario: Scenario) -> Search:
    """Return a search on the scenario's own GPU."""
    return Search(space_on(scenario, scenario.deployment.hardware, {}, {}, traffic_of(scenario)), Goal())


def test_members_that_come_to_the_same_fleet_are_simulated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many replicas a pool has says nothing where the fleet's size is given; each keeps its own overrides."""
    ran: list[int] = []
    decide = search.deciding_run

    def counted(scenario: Scenario, overrides: dict[str, Any], replicas: int) -> search.Trial:
        ran.append(replicas)
        return decide(scenario, overrides, replicas)

    monkeypatch.setattr(search, "deciding_run", counted)
    found = search_of(load("chatbot", FEW))
    own, same = found.member({}), found.member({"deployment.replicas": 3})

    trials = [found.trial(own, 4), found.trial(same, 4), found.trial(own, 5)]

    assert ran == [4, 5]
    assert trials[0].latencies == trials[1].latencies != trials[2].latencies
    assert [each.overrides for each in trials] == [{}, {"deployment.replicas": 3}, {}]
    assert len(found.trials) == len(ran)


@pytest.mark.parametrize("name", ["chatbot", "two-pools", "busy-scales-late"])
def test_a_deployment_resolved_for_one_fleet_is_that_of_another(name: str) -> None:
    """Pools and scaling included: nothing but the number of replicas comes with the second."""
    scenario, overrides = load(name), {"deployment.engine.max_num_seqs": 32}

    few, many = (fleet_of(scenario, overrides, replicas) for replicas in (4, 6))

    assert few == resolve(deployed(scenario, overrides, 4))
    assert many == resolve(deployed(scenario, overrides, 6))
    assert few.scenario != many.scenario


@pytest.mark.parametrize("replicas", [1, 3])
def test_the_load_ratio_of_a_shape_is_that_of_its_run(replicas: int) -> None:
    """What decides whether knobs are tried on it, found without running its traffic."""
    scenario = load("chatbot")
    searching = search_of(scenario)
    member = searching.member(searching.space.base)

    ratio = _load_ratio(searching, member, replicas)

    there = deployed(searching.space.scenario, member.overrides, replicas)
    assert ratio == pytest.approx(run(there, explain=False).summary["simserve"]["load_ratio"], rel=1e-12)


def test_pools_that_one_autoscaler_scales_are_not_tried() -> None:
    """One number sizes a fleet: neither pools scaled by a shared rule nor their price follow from it."""
    scaling = {"metric": "queue_depth", "target": 2, "min_replicas": 1, "max_replicas": 4}
    searching = search_of(load("disaggregation", FEW))

    member = searching.member({"deployment.autoscaling": scaling})

    assert (member.status, member.reason) == ("invalid", "pools are not scaled together")
    assert searching.member({}).status != "invalid"


def test_a_scenario_whose_pools_are_scaled_together_has_a_plan() -> None:
    """The plan takes pools of a fixed number, or one kind of replica that is scaled."""
    scaling = "deployment.autoscaling={metric: queue_depth, target: 2, min_replicas: 1, max_replicas: 4}"
    scenario = load("disaggregation", [*FEW, scaling])

    found = plan(scenario, PlanOptions(hardware=(scenario.deployment.hardware,), trials=0, jobs=1))

    assert found.is_feasible
    best = found.summary["best"]
    there = with_overrides(scenario, best["overrides"]).deployment
    assert not (there.pools and there.autoscaling)
    for each in found.summary["changes"]:
        there = with_overrides(scenario, each["overrides"]).deployment
        assert not (there.pools and there.autoscaling), each["variant"]
