"""What goes together in a scenario, and what is not simulated together: one clear line each. Resolves nothing."""

from __future__ import annotations

from simserve.engine.config import EngineConfig
from simserve.scenario.fleet_rules import check_fleet
from simserve.scenario.gateway_combinations import check_gateway
from simserve.scenario.objective import limits_by_class
from simserve.scenario.schema import Scenario
from simserve.workload.requests import RequestSpecs


def check_combinations(scenario: Scenario) -> None:
    """Do nothing where the options of a scenario go together; `without_effect` says which of them change nothing.

    Raises:
        ScenarioError: An option that cannot do what it says, or that is not simulated beside another.
    """
    _check_classes(scenario)
    _check_admission(scenario)
    check_fleet(scenario)
    _check_pools(scenario)
    _check_offload(scenario)
    check_gateway(scenario)


def check_traffic(scenario: Scenario, specs: RequestSpecs) -> None:
    """Do nothing where the requests say what a tier behind the prefix cache keeps.

    Raises:
        ScenarioError: A trace says nothing of what its prompts share.
    """
    if scenario.deployment.engine.kv_offload is not None and specs.prefixes is None:
        rule = "has nothing to keep: the trace does not say what prompts share"
        scenario.refuse("deployment.engine.kv_offload", rule, "leave it out")


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
        scenario.refuse("deployment.pools", rule, "give every pool the role both")
    if streaming is None or not streaming.stream:
        return
    rule = ""
    if is_static:
        rule = "has nothing to stream: a static batch answers when all in it are done"
    elif not has_cache:
        rule = "is simulated with a KV cache only, whose decode steps are the times of tokens"
    if rule:
        remedy = "set stream: false, or leave deployment.streaming out"
        scenario.refuse("deployment.streaming.stream", rule, remedy)


def _check_classes(scenario: Scenario) -> None:
    deployment = scenario.deployment
    classes = scenario.workload.classes or ()
    for number, each in enumerate(classes):
        key = f"workload.classes.{number}"
        names = [pool.name for pool in deployment.pools if pool.role != "decode"]
        if each.pool is not None and each.pool not in names:
            known = f"choose from {', '.join(names)}" if names else "deployment.pools has none; leave it out"
            scenario.refuse(f"{key}.pool", "names no pool that takes requests", known, each.pool)


def _check_pools(scenario: Scenario) -> None:
    deployment, key = scenario.deployment, "deployment.pools"
    pools, weights = deployment.pools, deployment.routing.weights
    names = [pool.name for pool in pools]
    if weights is not None and (not pools or set(weights) != {pool.name for pool in pools if pool.role != "decode"}):
        rule = "must name every pool that takes requests, and no other"
        scenario.refuse("deployment.routing.weights", rule, f"they are {', '.join(names) or 'none'}")
    roles = {pool.role for pool in pools}
    if deployment.disaggregation is None and roles - {"both"}:
        rule = "have the roles prefill and decode, and nothing says how KV caches get from one to the other"
        scenario.refuse(key, rule, "add deployment.disaggregation, such as {}, or give every pool the role both")
    if deployment.disaggregation is not None and not roles >= {"prefill", "decode"}:
        rule = "needs pools of the roles prefill and decode; others of the role both may stand beside them"
        scenario.refuse("deployment.disaggregation", rule, "give a pool each of them")
    if not pools:
        return
    if len(set(names)) < len(names):
        scenario.refuse(key, "has two pools of one name", "rename one")
    if deployment.replicas != 1:
        rule = "has no effect beside pools, each of which has its own"
        scenario.refuse("deployment.replicas", rule, "leave it out", deployment.replicas)


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
            scenario.refuse(f"{key}.kv_offload", rule, "add workload.sessions or shared_prefix, or leave it out")


def _check_admission(scenario: Scenario) -> None:
    admission = scenario.deployment.admission
    if admission is None or not admission.deadline_aware:
        return
    has_timeout = any(each.timeout is not None for each in scenario.workload.classes or ())
    if not has_timeout and all(ttft is None for ttft, _, _ in limits_by_class(scenario)):
        rule = "has no deadline to look at"
        scenario.refuse("deployment.admission.deadline_aware", rule, "set slo.ttft, or a class's slo.ttft or timeout")
