"""What a scenario asks of latencies, in the terms of `simserve.metrics`: the whole, and class by class."""

from __future__ import annotations

from typing import Any

from simserve.metrics.slo import SLO
from simserve.scenario.schema import Scenario
from simserve.sim.control import Limits


def objective(scenario: Scenario) -> SLO | None:
    """Return the objective of a scenario, with those of its classes; None where neither it nor a class has one."""
    by_class = {
        each.name: SLO(**each.slo.model_dump()) for each in scenario.workload.classes or () if each.slo is not None
    }
    if scenario.slo is not None:
        return SLO(**scenario.slo.model_dump(), by_class=by_class)
    if not by_class:
        return None
    # Classes without an objective have no bound, and nothing asks for a share of them.
    least = min(each.attainment for each in by_class.values())
    return SLO(ttft=None, tpot=None, e2e=None, attainment=least, by_class=by_class)


def limits_by_class(scenario: Scenario) -> tuple[Limits, ...]:
    """Return the limits of latencies by class (without classes: one entry)."""
    slo, classes = objective(scenario), scenario.workload.classes
    if slo is None:
        return (Limits(),) * max(len(classes or ()), 1)
    owners = [slo] if classes is None else [slo.by_class.get(each.name, slo) for each in classes]
    return tuple(Limits(each.ttft, each.tpot, each.e2e, each.ttfvt) for each in owners)


def objective_mapping(scenario: Scenario) -> dict[str, Any] | None:
    """Return the objective as a scenario file writes it; None where neither the scenario nor a class has one.

    Where only classes have one, ``by_class`` holds theirs, and ``attainment`` the least that one of them asks.
    """
    if scenario.slo is not None:
        return dict(scenario.as_mapping()["slo"])
    asked = objective(scenario)
    if asked is None:
        return None
    classes = scenario.as_mapping()["workload"]["classes"]
    return {"attainment": asked.attainment, "by_class": {each["name"]: each.get("slo") for each in classes}}
