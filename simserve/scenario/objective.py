"""What a scenario asks of latencies, in the terms of `simserve.metrics`: the whole, and class by class."""

from __future__ import annotations

from simserve.metrics.slo import SLO
from simserve.scenario.schema import Scenario


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
