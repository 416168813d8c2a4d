"""The reserve of spot replicas, against long runs with interruptions as often as they happen."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from simserve.planner.plan.fleet import Fleet
from simserve.planner.plan.interruptions import (
    FAULTS_KEY,
    Reserved,
    cannot_be_spot,
    reserve_table,
    simulated_reserve,
    start_up,
)
from simserve.planner.plan.options import Interruptions
from simserve.planner.scaling import scaled_traffic
from simserve.planner.search.trial import try_fleet
from simserve.units import parse
from tests.planner.plan.test_plan import busy_scenario

CAPACITY = 4.0
"""Requests/s of a replica, somewhat below what two of them sustain in the SLO without interruptions."""


def fleet(**deployment: Any) -> Fleet:
    """Return two small replicas under Poisson arrivals."""
    scenario = busy_scenario(slo={"ttft": "2 s", "tpot": "60 ms", "attainment": 0.95})
    arrivals = scenario.workload.arrivals
    assert arrivals is not None
    workload = scenario.workload.model_copy(update={"arrivals": type(arrivals)(rate=4.0)})
    scenario = scenario.model_copy(update={"workload": workload})
    overrides = {"deployment.quantization": "fp8", **{f"deployment.{key}": value for key, value in deployment.items()}}
    return Fleet(scenario=scenario, overrides=overrides, replicas=2)


def taken(mtbf: float, mttr: float = 300.0) -> Interruptions:
    """Return interruptions with the notice of a Google machine."""
    return Interruptions(mtbf=mtbf, mttr=mttr, notice=30.0, is_assumed=False)


def share_in_slo(replicas: int, serving: int, often: Interruptions, requests: int) -> float:
    """Return what a long run with interruptions reaches, as often as they happen."""
    there = fleet()
    fault = {"kind": "spot", "mtbf": f"{often.mtbf} s", "mttr": f"{often.mttr} s", "notice": f"{often.notice} s"}
    traffic = scaled_traffic(there.scenario, CAPACITY * serving / 4.0)
    assert traffic is not None
    reached = try_fleet(traffic, {**there.overrides, FAULTS_KEY: [fault]}, replicas, requests).attainment
    assert reached is not None
    return reached


@pytest.mark.slow
def test_the_reserve_holds_the_slo_and_less_does_not() -> None:
    """Two replicas that are taken every two hours need a third; a run of 20 hours says the same."""
    often = taken(2 * 3600.0)
    reserve = simulated_reserve(fleet(), 4.0, CAPACITY, 2, often)[-1]
    with_it, without = (share_in_slo(count, 2, often, 600_000) for count in (2 + reserve.reserve, 2))

    assert reserve.reserve == 1
    assert with_it >= reserve.asked > without
    assert reserve.without == pytest.approx(without, abs=0.035)


@pytest.mark.slow
def test_rare_interruptions_cost_less() -> None:
    """What is missed without a reserve falls as they become rarer, and the reserve with it."""
    found = [simulated_reserve(fleet(), 4.0, CAPACITY, 1, taken(hours * 3600.0))[-1] for hours in (1, 8, 5000)]

    assert found[0].without < found[1].without < found[2].without
    assert found[0].reserve >= found[1].reserve >= found[2].reserve


def test_a_reserve_is_for_groups_of_the_largest_size() -> None:
    """Between sizes as of the next larger one."""
    sizes = [(1, 1), (2, 1), (4, 2)]
    reserves = [Reserved(replicas=n, reserve=r, asked=0.9, without=0.8, attainment=0.9) for n, r in sizes]

    assert reserve_table(reserves) == (0, 1, 1, 2, 2)


def test_what_is_simulated_goes_up_to_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three replicas are judged as four, and nothing beyond."""

    def reserved(_: Any, __: float, size: int) -> Reserved:
        return Reserved(replicas=size, reserve=0, asked=0.9, without=0.9, attainment=0.9)

    monkeypatch.setattr("simserve.planner.plan.interruptions._reserved", reserved)
    found = simulated_reserve(fleet(), 4.0, CAPACITY, 3, taken(1e9))

    assert [each.replicas for each in found] == [1, 2, 4]


def test_a_replica_is_gone_for_as_long_as_it_takes_to_start() -> None:
    """The start-up of the scenario's autoscaler, or its defaults with the weights that are loaded."""
    slow = {"metric": "running", "target": 8, "max_replicas": 4, "startup": {"engine": "1000 s"}}

    assert start_up(fleet(autoscaling=slow)) > 1000 > start_up(fleet()) > 100


def test_replicas_that_are_not_alike_are_not_offered() -> None:
    """By the name of what stands in the way."""
    scaling = {"metric": "running", "target": 8, "max_replicas": 4}
    plain, scaled = fleet(), fleet(autoscaling=scaling)

    assert cannot_be_spot(plain.scenario, plain) is None
    assert "without autoscaling" in (cannot_be_spot(scaled.scenario, scaled) or "")
    assert "SLO" in (cannot_be_spot(busy_scenario(slo=None), plain) or "")


def test_what_interruptions_cost_is_scaled_to_how_rare_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica away for 330 s of every 10,330 is simulated as away for a fifth of the time, and a sixth counts.

    One of 1,650 s: 1,320 s between, 30 s of notice, 300 s away; a tenth is then missed.
    """
    faults = []

    def reached(scenario: Any, overrides: dict[str, Any], replicas: int, requests: int) -> Any:
        faults.extend(overrides.get(FAULTS_KEY, []))
        return SimpleNamespace(attainment=0.9 if FAULTS_KEY in overrides else 1.0)

    monkeypatch.setattr("simserve.planner.plan.interruptions.try_fleet", reached)
    found = simulated_reserve(fleet(), 4.0, CAPACITY, 1, taken(10_000.0))[-1]

    assert found.without == pytest.approx(1 - 0.1 * 1650 / 10_330)
    seconds = {name: parse(str(faults[0][name]), "time") for name in ("mtbf", "mttr", "notice")}
    assert seconds == {"mtbf": 1320.0, "mttr": 300.0, "notice": 30.0}
