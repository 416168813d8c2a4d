"""Pools as an option: prefill and decode apart, a pool for each class, priorities instead. Simulates nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from simserve.planner.space.choices import Choice, LeftOut, Option, Setting
from simserve.planner.space.links import Side, network_of
from simserve.planner.space.makeup import POOLS_KEY, REPLICAS_KEY
from simserve.planner.space.roles import DECODE, LINK_KEY, PREFILL
from simserve.profiles.hardware import load_hardware
from simserve.scenario.features import lack_of
from simserve.scenario.schema import Scenario

LONG_PROMPT_TOKENS = 1000.0
"""Mean prompt from which on prefill holds up decoding noticeably, so that pools of their own may pay."""
MOST_CLASS_POOLS = 4
_WEIGHTS = 10
"""Finest proportion of the pools of classes."""


def pool_option(setting: Setting) -> Option | LeftOut:
    """Offer prefill and decode pools, or a pool for each class; what the scenario has itself among them."""
    scenario = setting.scenario
    deployment = scenario.deployment
    if setting.has_spares:
        return "spare replicas are of one kind"
    if deployment.pools and (not _are_alike(scenario) or deployment.regions or deployment.routing.rules):
        # Nothing plainer serves the same classes.
        own, *others = _own_pools(scenario)
        return Option("pool", (Choice(own.label), *others))
    if deployment.faults or deployment.updates or deployment.speculative is not None:
        return "pools are not simulated with faults, updates or drafts"
    together = Choice("one kind of replica", _together(scenario) if deployment.pools else {})
    choices: list[Choice] = list(_own_pools(scenario)) if deployment.pools else []
    lack = lack_of(scenario, "kv_transfer") if _has_long_prompts(setting) else None
    if deployment.disaggregation is not None or (_has_long_prompts(setting) and lack is None):
        choices.append(_disaggregated(scenario))
    if not deployment.disaggregation:
        choices += _by_class(setting)
    choices = _distinct(choices)
    if not choices:
        if lack is not None:
            return lack
        return "prompts are short, or TPOT has no limit; and classes ask for the same, or there are none"
    return Option("pool", (together, *choices), own=1 if deployment.pools else 0)


def _has_long_prompts(setting: Setting) -> bool:
    return (
        setting.traffic.mean_prompt_tokens >= LONG_PROMPT_TOKENS
        and setting.has_limit("tpot")
        and setting.traffic.is_open
    )


def _are_alike(scenario: Scenario) -> bool:
    """Return whether the pools differ in nothing but name, role and number."""
    own = (
        "hardware",
        "model",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "data_parallel_size",
        "enable_expert_parallel",
        "quantization",
        "kv_cache_dtype",
        "engine",
        "region",
    )
    return all(getattr(pool, key) is None for pool in scenario.deployment.pools for key in own)


def _together(scenario: Scenario) -> dict[str, Any]:
    """Return what makes one kind of replica of a scenario's pools."""
    classes = scenario.workload.classes or ()
    return {
        POOLS_KEY: [],
        "deployment.disaggregation": None,
        "deployment.routing.weights": None,
        **{f"workload.classes.{number}.pool": None for number, each in enumerate(classes) if each.pool is not None},
    }


def _own_pools(scenario: Scenario) -> Iterator[Choice]:
    """Yield the scenario's own pools, in its own proportions and with each of them doubled."""
    mapping = scenario.as_mapping()["deployment"]
    pools, rest = mapping["pools"], {}
    if "disaggregation" in mapping:
        rest = {"deployment.disaggregation": mapping["disaggregation"]}
    weights = [pool["replicas"] for pool in pools]
    proportions = [weights]
    for doubled in range(len(weights)):
        proportions.append([2 * weight if place == doubled else weight for place, weight in enumerate(weights)])
    for counts in proportions:
        there = [{**pool, "replicas": count} for pool, count in zip(pools, counts, strict=True)]
        parts = " : ".join(f"{count} {pool['name']}" for pool, count in zip(pools, counts, strict=True))
        yield Choice(parts, {POOLS_KEY: there, **rest}, family="own pools")


def _disaggregated(scenario: Scenario) -> Choice:
    """Return a prefill worker for each decode worker; shapes and other numbers are searched as roles."""
    deployment, own = scenario.deployment, scenario.deployment.disaggregation
    network = network_of([Side(load_hardware(deployment.hardware, scenario.folder), 1, 1)])
    link = {} if network is None else network.spec
    if own is not None:
        link = own.model_dump(mode="json", exclude_none=True)
    pools = [{"name": role, "role": role, "replicas": 1} for role in (PREFILL, DECODE)]
    return Choice("1 prefill : 1 decode", {POOLS_KEY: pools, LINK_KEY: link, REPLICAS_KEY: 1}, family="disaggregated")


def has_roles(setting: Setting) -> bool:
    """Return whether shapes of prefill and decode workers are searched, each role its own.

    Where prompts are long, TPOT has a limit and the engine hands over KV caches; or where the scenario does so itself.
    """
    scenario, deployment = setting.scenario, setting.scenario.deployment
    if setting.has_spares or deployment.faults or deployment.updates or deployment.autoscaling or deployment.regions:
        return False
    if deployment.disaggregation is not None:
        return setting.traffic.is_open
    return _has_long_prompts(setting) and not deployment.pools and lack_of(scenario, "kv_transfer") is None


def _by_class(setting: Setting) -> Iterator[Choice]:
    """Offer a pool for each class of a scenario whose classes ask for different things, and priorities among them."""
    classes, policy = setting.scenario.workload.classes or (), "deployment.engine.scheduling_policy"
    limits = [None if each.slo is None else each.slo.model_dump(exclude={"attainment"}) for each in classes]
    if not 2 <= len(classes) <= MOST_CLASS_POOLS or all(each == limits[0] for each in limits):
        return
    if not any(each.pool for each in classes):
        shares = setting.traffic.work_by_class
        weights = [max(1, round(_WEIGHTS * share)) for share in shares]
        pools = [{"name": each.name, "replicas": weight} for each, weight in zip(classes, weights, strict=True)]
        own = {f"workload.classes.{number}.pool": each.name for number, each in enumerate(classes)}
        yield Choice("a pool for each class", {POOLS_KEY: pools, REPLICAS_KEY: 1, **own})
    if lack_of(setting.scenario, "priority_scheduling") is not None:
        return
    if all(each.priority is None for each in classes) and setting.scenario.deployment.engine.scheduling_policy is None:
        order = sorted(range(len(classes)), key=lambda each: (_tightest(classes[each].slo), each))
        ranks = {f"workload.classes.{number}.priority": order.index(number) for number in range(len(classes))}
        yield Choice("priority to the class with the tighter TTFT", {policy: "priority", **ranks})


def _tightest(slo: Any) -> float:
    limits = [] if slo is None else [limit for limit in (slo.ttft, slo.e2e) if limit is not None]
    return float(min(limits, default=float("inf")))


def _distinct(choices: list[Choice]) -> list[Choice]:
    found: list[Choice] = []
    for each in choices:
        if all(each.label != other.label for other in found):
            found.append(each)
    return found
