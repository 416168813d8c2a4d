"""What stands in front of the replicas in a scenario, and whether it names what is there. Resolves nothing."""

from __future__ import annotations

from collections.abc import Iterable

from simserve.scenario.schema import Scenario
from simserve.sim.routing_spec import API_POOL


def check_gateway(scenario: Scenario) -> None:
    """Do nothing where the options in front of the replicas name classes and pools that are there.

    Raises:
        ScenarioError: One does not, or it would have no effect.
    """
    _check_response_cache(scenario)
    _check_overflow(scenario)
    _check_fairness(scenario)
    _check_rules(scenario)


def _check_response_cache(scenario: Scenario) -> None:
    cache = scenario.deployment.response_cache
    if cache is not None and isinstance(cache.hit_share, dict):
        _check_classes(scenario, "deployment.response_cache.hit_share", cache.hit_share)


def _check_overflow(scenario: Scenario) -> None:
    overflow = scenario.deployment.overflow
    if overflow is None:
        return
    rules = scenario.deployment.routing.rules or ()
    is_named = any(API_POOL in (rule.pool, rule.retry_pool) for rule in rules)
    if not is_named and overflow.max_queue is None and overflow.above_rate is None and overflow.always is None:
        remedy = "give max_queue, above_rate or always, or a routing rule with pool: api"
        scenario.refuse("deployment.overflow", "sends nothing to the API", remedy)
    if any(pool.name == API_POOL for pool in scenario.deployment.pools):
        scenario.refuse("deployment.pools", f"has a pool named {API_POOL}, as rules call the API", "rename it")
    for option in ("always", "never"):
        _check_classes(scenario, f"deployment.overflow.{option}", getattr(overflow, option) or ())


def _check_fairness(scenario: Scenario) -> None:
    fairness, key = scenario.deployment.fairness, "deployment.fairness"
    if fairness is None:
        return
    _check_classes(scenario, f"{key}.shares", fairness.shares)
    missing = [each.name for each in scenario.workload.classes or () if each.name not in fairness.shares]
    if missing:
        scenario.refuse(f"{key}.shares", f"lacks the class {missing[0]}", "give every class a share")


def _check_rules(scenario: Scenario) -> None:
    deployment = scenario.deployment
    names = [pool.name for pool in deployment.pools if pool.role != "decode"]
    if deployment.overflow is not None:
        names.append(API_POOL)
    for number, rule in enumerate(deployment.routing.rules or ()):
        key = f"deployment.routing.rules.{number}"
        for option in ("pool", "retry_pool"):
            name = getattr(rule, option)
            if name is not None and name not in names:
                known = f"choose from {', '.join(names)}" if names else "add deployment.pools, or leave it out"
                scenario.refuse(f"{key}.{option}", "names no pool that takes requests", known, name)
        _check_classes(scenario, f"{key}.classes", rule.classes or ())


def _check_classes(scenario: Scenario, key: str, names: Iterable[str]) -> None:
    known = [each.name for each in scenario.workload.classes or ()]
    for name in names:
        if name not in known:
            remedy = f"choose from {', '.join(known)}" if known else "workload.classes has none; leave it out"
            scenario.refuse(key, "names no class of the workload", remedy, name)
