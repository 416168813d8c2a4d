"""What goes together in a scenario, and what is not simulated together: one clear line each. Resolves nothing."""

from __future__ import annotations

from typing import Any

from simserve.engine.config import EngineConfig
from simserve.errors import ScenarioError
from simserve.scenario.fleet_rules import check_fleet
from simserve.scenario.front_combinations import check_front
from simserve.scenario.objective import limits_by_class
from simserve.scenario.schema import Scenario
from simserve.sim.routing_spec import BLIND_POLICIES
from simserve.workload.requests import RequestSpecs


def check_combinations(scenario: Scenario) -> None:
    """Do nothing where every option of a scenario has its effect.

    Raises:
        ScenarioError: An option that would do nothing, or that is not simulated beside another.
    """
    _check_classes(scenario)
    _check_routing(scenario)
    _check_admission(scenario)
    check_fleet(scenario)
    _check_pools(scenario)
    _check_offload(scenario)
    check_front(scenario)


def check_traffic(scenario: Scenario, specs: RequestSpecs) -> None:
    """Do nothing where the requests say what the router goes by.

    Raises:
        ScenarioError: A trace says nothing of sessions, or of what its prompts share.
    """
    policy, key = scenario.deployment.routing.policy, "deployment.routing.policy"
    if scenario.deployment.engine.kv_offload is not None and specs.prefixes is None:
        rule = "has nothing to keep: the trace does not say what prompts share"
        _refuse(scenario, "deployment.engine.kv_offload", rule, "leave it out")
    if policy == "session" and specs.session is None:
        _refuse(scenario, key, "has nothing to go by: the trace does not tell sessions apart", "choose another policy")
    if policy == "prefix" and specs.prefixes is None:
        _refuse(
            scenario, key, "has nothing to go by: the trace does not say what prompts share", "choose another policy"
        )


def check_engine(scenario: Scenario, engine: EngineConfig) -> None:
    """Do nothing where the engine can be simulated under everything that decides in the scenario.

    Raises:
        ScenarioError: It cannot.
    """
    deployment = scenario.deployment
    streaming, is_split = deployment.streaming, any(pool.role != "both" for pool in deployment.pools)
    is_static, has_cache = engine.batching != "continuous", engine.kv_allocation != "none"
    if is_split and (is_static or not has_cache):
        rule = "hands over KV caches while batches run: that takes continuous batching and a KV cache"
        _refuse(scenario, "deployment.pools", rule, "give every pool the role both")
    if streaming is None or not streaming.stream:
        return
    rule = ""
    if is_static:
        rule = "has nothing to stream: a static batch answers when all in it are done"
    elif not has_cache:
        rule = "is simulated with a KV cache only, whose decode steps are the times of tokens"
    elif engine.data_parallel_size > 1:
        rule = "is not simulated with data_parallel_size above 1: whose rank a token came from is not kept"
    if rule:
        remedy = "set stream: false, or leave deployment.streaming out"
        _refuse(scenario, "deployment.streaming.stream", rule, remedy)


def _check_classes(scenario: Scenario) -> None:
    policy: str | None = scenario.deployment.engine.scheduling_policy
    deployment = scenario.deployment
    streaming = deployment.streaming
    loses = bool(deployment.admission or deployment.autoscaling or deployment.faults)
    loses = loses or bool(
        deployment.liveness or deployment.updates or any(each.autoscaling for each in deployment.pools)
    )
    loses = loses or (streaming is not None and streaming.http_timeout is not None)
    loses = loses or (deployment.overflow is not None and deployment.overflow.when_limited == "refuse")
    classes = scenario.workload.classes or ()
    if policy == "priority" and all(each.priority is None for each in classes):
        rule = "has no effect: no class of the workload has a priority"
        remedy = "give workload.classes a priority each, or leave it out"
        _refuse(scenario, "deployment.engine.scheduling_policy", rule, remedy, policy)
    for number, each in enumerate(classes):
        key = f"workload.classes.{number}"
        if each.priority is not None and policy != "priority":
            rule = "has no effect on a queue that is first come, first served"
            remedy = "set deployment.engine.scheduling_policy to priority, or leave it out"
            _refuse(scenario, f"{key}.priority", rule, remedy, each.priority)
        names = [pool.name for pool in deployment.pools if pool.role != "decode"]
        if each.pool is not None and each.pool not in names:
            known = f"choose from {', '.join(names)}" if names else "deployment.pools has none; leave it out"
            _refuse(scenario, f"{key}.pool", "names no pool that takes requests", known, each.pool)
        if each.retries is not None and each.timeout is None and not loses:
            remedy = "give the class a timeout, or the deployment an admission block"
            _refuse(scenario, f"{key}.retries", "has no effect where every request is answered", remedy)


def _check_routing(scenario: Scenario) -> None:
    routing, key = scenario.deployment.routing, "deployment.routing"
    workload = scenario.workload
    # Which prompts of a trace begin alike, and who sent them, is seen when it is read.
    has_sessions = workload.has_sessions or workload.trace is not None
    has_prefixes = has_sessions or workload.has_shared_prefix
    needed = {"session": has_sessions, "prefix": has_prefixes}.get(routing.policy)
    if needed is False:
        what = "sessions" if routing.policy == "session" else "shared_prefix or sessions"
        rule = f"{routing.policy} has nothing to go by: the workload has no {what}"
        _refuse(scenario, f"{key}.policy", rule, f"add workload.{what}, or choose least_outstanding")
    if routing.imbalance_guard is not None and needed is None:
        rule = f"has no effect under {routing.policy}"
        _refuse(scenario, f"{key}.imbalance_guard", rule, "it belongs to session and prefix; leave it out")
    if routing.cache_threshold is not None and routing.policy != "prefix":
        rule = f"has no effect under {routing.policy}"
        _refuse(scenario, f"{key}.cache_threshold", rule, "it belongs to prefix; leave it out")
    if routing.update_interval and routing.policy in BLIND_POLICIES:
        rule = f"has no effect under {routing.policy}, which looks at nothing"
        _refuse(scenario, f"{key}.update_interval", rule, "leave it out")


def _check_pools(scenario: Scenario) -> None:
    deployment, key = scenario.deployment, "deployment.pools"
    pools, weights = deployment.pools, deployment.routing.weights
    names = [pool.name for pool in pools]
    if weights is not None and (not pools or set(weights) != {pool.name for pool in pools if pool.role != "decode"}):
        rule = "must name every pool that takes requests, and no other"
        _refuse(scenario, "deployment.routing.weights", rule, f"they are {', '.join(names) or 'none'}")
    roles = {pool.role for pool in pools}
    if deployment.disaggregation is None and roles - {"both"}:
        rule = "have the roles prefill and decode, and nothing says how KV caches get from one to the other"
        _refuse(scenario, key, rule, "add deployment.disaggregation, such as {}, or give every pool the role both")
    if deployment.disaggregation is not None and not roles >= {"prefill", "decode"}:
        rule = "needs pools of the roles prefill and decode; others of the role both may stand beside them"
        _refuse(scenario, "deployment.disaggregation", rule, "give a pool each of them")
    if not pools:
        return
    if len(set(names)) < len(names):
        _refuse(scenario, key, "has two pools of one name", "rename one")
    if deployment.replicas != 1:
        rule = "has no effect beside pools, each of which has its own"
        _refuse(scenario, "deployment.replicas", rule, "leave it out", deployment.replicas)


def _check_offload(scenario: Scenario) -> None:
    deployment, workload = scenario.deployment, scenario.workload
    if workload.has_sessions or workload.trace is not None or workload.has_shared_prefix:
        return
    keys = {"deployment.engine": deployment.engine}
    keys |= {
        f"deployment.pools.{number}.engine": pool.engine for number, pool in enumerate(deployment.pools) if pool.engine
    }
    for key, engine in keys.items():
        if engine.kv_offload is not None:
            rule = "has nothing to keep: no two prompts of the workload begin alike"
            _refuse(scenario, f"{key}.kv_offload", rule, "add workload.sessions or shared_prefix, or leave it out")


def _check_admission(scenario: Scenario) -> None:
    admission = scenario.deployment.admission
    if admission is None or not admission.deadline_aware:
        return
    has_timeout = any(each.timeout is not None for each in scenario.workload.classes or ())
    if not has_timeout and all(ttft is None for ttft, _, _ in limits_by_class(scenario)):
        rule = "has no deadline to look at"
        _refuse(scenario, "deployment.admission.deadline_aware", rule, "set slo.ttft, or a class's slo.ttft or timeout")


def _refuse(scenario: Scenario, key: str, rule: str, remedy: str, value: Any = None) -> None:
    with scenario.blaming(key):
        raise ScenarioError(rule, value=value, remedy=remedy)
