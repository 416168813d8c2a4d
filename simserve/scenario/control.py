"""From a scenario to what decides in its runs, and what of that is not simulated together."""

from __future__ import annotations

from typing import Any

from simserve.engine.config import EngineConfig
from simserve.errors import ScenarioError
from simserve.metrics.slo import SLO
from simserve.scenario.objective import objective
from simserve.scenario.schema import Scenario
from simserve.sim.control import Control
from simserve.sim.routing_spec import BLIND_POLICIES

_AFFINITY = {"session": "sessions", "prefix": "shared_prefix"}


def control_of(scenario: Scenario) -> Control:
    """Return everything that decides while a run of the scenario goes on."""
    deployment = scenario.deployment
    return Control(
        routing=deployment.routing,
        admission=deployment.admission,
        ttft_limits=_ttft_limits(scenario),
    )


def check_control(scenario: Scenario, engine: EngineConfig) -> None:
    """Do nothing where everything that decides has its effect.

    Raises:
        ScenarioError: An option that would do nothing, or that is not simulated beside another.
    """
    _check_routing(scenario)
    _check_admission(scenario)
    what = _managed_by(scenario)
    if what is None:
        return
    if engine.batching != "continuous" or engine.kv_allocation == "none":
        _refuse(scenario, what, "is simulated with continuous batching and a KV cache only", "leave one of them out")
    if engine.data_parallel_size > 1:
        _refuse(scenario, what, "is not simulated with data_parallel_size above 1", "raise replicas instead")


def _managed_by(scenario: Scenario) -> str | None:
    """Return the key of the first option that needs more than the plain spreading of requests."""
    for number, each in enumerate(scenario.workload.classes or ()):
        for option in ("timeout", "retries"):
            if getattr(each, option) is not None:
                return f"workload.classes.{number}.{option}"
    if scenario.deployment.admission is not None:
        return "deployment.admission"
    control = control_of(scenario)
    return None if control.is_plain else "deployment.routing"


def _check_routing(scenario: Scenario) -> None:
    routing, key = scenario.deployment.routing, "deployment.routing"
    needed = _AFFINITY.get(routing.policy)
    if needed is not None and getattr(scenario.workload, needed, None) is None:
        rule = f"{routing.policy} has nothing to go by: the workload has no {needed}"
        _refuse(scenario, f"{key}.policy", rule, f"add workload.{needed}, or choose least_outstanding")
    if routing.imbalance_guard is not None and needed is None:
        rule = f"has no effect under {routing.policy}"
        _refuse(scenario, f"{key}.imbalance_guard", rule, "it belongs to session and prefix; leave it out")
    if routing.update_interval and routing.policy in BLIND_POLICIES:
        rule = f"has no effect under {routing.policy}, which looks at nothing"
        _refuse(scenario, f"{key}.update_interval", rule, "leave it out")


def _check_admission(scenario: Scenario) -> None:
    admission = scenario.deployment.admission
    if admission is None or not admission.deadline_aware:
        return
    has_timeout = any(each.timeout is not None for each in scenario.workload.classes or ())
    if not has_timeout and all(limit is None for limit in _ttft_limits(scenario)):
        rule = "has no deadline to look at"
        _refuse(scenario, "deployment.admission.deadline_aware", rule, "set slo.ttft, or a class's slo.ttft or timeout")


def _ttft_limits(scenario: Scenario) -> tuple[float | None, ...]:
    slo, classes = objective(scenario), scenario.workload.classes
    if slo is None:
        return (None,) * max(len(classes or ()), 1)
    if classes is None:
        return (slo.ttft,)
    return tuple(_of_class(slo, each.name).ttft for each in classes)


def _of_class(slo: SLO, name: str) -> SLO:
    return slo.by_class.get(name, slo)


def _refuse(scenario: Scenario, key: str, rule: str, remedy: str, value: Any = None) -> None:
    with scenario.blaming(key):
        raise ScenarioError(rule, value=value, remedy=remedy)
