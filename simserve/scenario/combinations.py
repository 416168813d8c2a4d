"""What goes together in a scenario, and what is not simulated together: one clear line each. Resolves nothing."""

from __future__ import annotations

from simserve.errors import ScenarioError
from simserve.scenario.schema import Scenario


def check_combinations(scenario: Scenario) -> None:
    """Do nothing where every option of a scenario has its effect.

    Raises:
        ScenarioError: An option that would do nothing, or that is not simulated beside another.
    """
    _check_classes(scenario)


def _check_classes(scenario: Scenario) -> None:
    for number, each in enumerate(scenario.workload.classes or ()):
        key = f"workload.classes.{number}"
        policy: str | None = scenario.deployment.engine.scheduling_policy
        if each.priority is not None and policy != "priority":
            with scenario.blaming(f"{key}.priority"):
                raise ScenarioError(
                    "has no effect on a queue that is first come, first served",
                    value=each.priority,
                    remedy="set deployment.engine.scheduling_policy to priority, or leave it out",
                )
        if each.pool is not None:
            with scenario.blaming(f"{key}.pool"):
                raise ScenarioError("names no pool: deployment.pools has none", value=each.pool, remedy="leave it out")
        if each.retries is not None and each.timeout is None and scenario.deployment.admission is None:
            with scenario.blaming(f"{key}.retries"):
                raise ScenarioError(
                    "has no effect where every request is answered",
                    remedy="give the class a timeout, or the deployment an admission block",
                )
