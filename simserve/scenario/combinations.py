"""What goes together in a scenario, what is not simulated together, and whether names are there: one line each."""

from __future__ import annotations

from collections.abc import Iterable

from simserve.engine.config import EngineConfig
from simserve.profiles.engine_profile import load_engine
from simserve.scenario.deployment_spec import EngineSpec
from simserve.scenario.fleet_rules import check_fleet
from simserve.scenario.objective import limits_by_class
from simserve.scenario.schema import Scenario
from simserve.sim.routing_spec import API_POOL
from simserve.workload.class_spec import LatencyLimits
from simserve.workload.requests import RequestSpecs

_WITH_ENCODERS = ("vllm", "sglang", "tensorrt-llm")
"""Engines whose replicas take embeddings from an encoder pool: vLLM (docs, features/disagg_encoder), SGLang (docs,
advanced_features/epd_disaggregation), TensorRT-LLM (under Dynamo's encode worker)."""


def check_combinations(scenario: Scenario) -> None:
    """Do nothing where the options of a scenario go together; `without_effect` says which of them change nothing.

    Raises:
        ScenarioError: An option that cannot do what it says, or that is not simulated beside another.
    """
    _check_classes(scenario)
    _check_thinking(scenario)
    _check_admission(scenario)
    check_fleet(scenario)
    _check_pools(scenario)
    _check_offload(scenario)
    _check_loras(scenario)
    check_gateway(scenario)
    _check_encoders(scenario)


def check_traffic(scenario: Scenario, specs: RequestSpecs) -> None:
    """Do nothing where the requests are what the scenario asks about.

    Raises:
        ScenarioError: A trace says nothing of what its prompts share, and a tier behind the prefix cache is to keep
            it; or there are no tasks, and they have an objective.
    """
    if scenario.slo is not None and scenario.slo.task is not None and specs.dependencies is None:
        rule = "has nothing to limit: the workload has no agents' tasks"
        scenario.refuse("slo.task", rule, "add workload.agents, or leave it out")
    engine = scenario.deployment.engine
    if (engine.kv_offload is not None or engine.kv_tiers) and specs.prefixes is None:
        rule = "has nothing to keep: the trace does not say what prompts share"
        scenario.refuse(f"deployment.engine.{_tiers_key(engine)}", rule, "leave it out")


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
    if scenario.workload.has_media and (is_static or not has_cache):
        key, verb = ("images", "are") if scenario.workload.has_images else ("audio", "is")
        rule = f"{verb} encoded in the steps of continuous batching with a KV cache"
        scenario.refuse(f"workload.{key}", rule, "leave it out, or the engine's batching and kv_allocation")
    if scenario.workload.has_thinking and not has_cache:
        rule = "is simulated with a KV cache only, whose decode steps are the times of tokens"
        scenario.refuse("workload.thinking_tokens", rule, "leave it out, or set deployment.engine.kv_allocation: paged")
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


def _check_thinking(scenario: Scenario) -> None:
    workload = scenario.workload
    if workload.has_thinking:
        return
    owners: dict[str, LatencyLimits | None] = {"slo": scenario.slo}
    owners |= {f"workload.classes.{number}.slo": each.slo for number, each in enumerate(workload.classes or ())}
    for key, slo in owners.items():
        if slo is not None and slo.ttfvt is not None:
            rule = "limits the time to the first visible token, and nothing is hidden before it"
            scenario.refuse(f"{key}.ttfvt", rule, "give workload.thinking_tokens, or limit ttft instead")


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
        remedy = "for example deployment.pools=[{name: prefill, role: prefill}, {name: decode, role: decode}]"
        scenario.refuse("deployment.disaggregation", rule, remedy)
    if not pools:
        return
    if len(set(names)) < len(names):
        scenario.refuse(key, "has two pools of one name", "rename one")
    if deployment.replicas != 1:
        rule = "has no effect beside pools, each of which has its own"
        scenario.refuse("deployment.replicas", rule, "leave it out", deployment.replicas)


def _check_loras(scenario: Scenario) -> None:
    if scenario.deployment.engine.lora_load is not None and scenario.workload.loras is None:
        rule = "has nothing to load: requests have no adapters"
        scenario.refuse("deployment.engine.lora_load", rule, "add workload.loras, or leave it out")


def _check_encoders(scenario: Scenario) -> None:
    deployment, key = scenario.deployment, "deployment.encoder_disaggregation"
    if deployment.encoder_disaggregation is None:
        return
    if not scenario.workload.has_media:
        rule = "has nothing to encode: requests have neither images nor audio"
        scenario.refuse(key, rule, "add workload.images or workload.audio, or leave it out")
    engines = {each.engine.name for each in deployment.pools if each.engine is not None} | {deployment.engine.name}
    for name in sorted(engines):
        if (load_engine(name, scenario.folder).base or name) not in _WITH_ENCODERS:
            rule = f"is not to be had with {name}: {', '.join(_WITH_ENCODERS)} take embeddings from elsewhere"
            scenario.refuse(key, rule, "leave it out, or set deployment.engine.name")
    others = ("overflow", "response_cache", "regions")
    given = next((name for name in others if getattr(deployment, name) is not None), None)
    if given is not None:
        rule = "encodes before the router sees a request, which may then go elsewhere: not simulated together"
        scenario.refuse(f"deployment.{given}", rule, f"leave it or {key} out")


def _check_offload(scenario: Scenario) -> None:
    deployment, workload = scenario.deployment, scenario.workload
    if workload.has_sessions or workload.trace is not None or workload.has_shared_prefix:
        return
    keys = {"deployment.engine": deployment.engine}
    keys |= {
        f"deployment.pools.{number}.engine": pool.engine for number, pool in enumerate(deployment.pools) if pool.engine
    }
    for key, engine in keys.items():
        if engine.kv_offload is not None or engine.kv_tiers:
            rule = "has nothing to keep: no two prompts of the workload begin alike"
            remedy = "add workload.sessions or shared_prefix, or leave it out"
            scenario.refuse(f"{key}.{_tiers_key(engine)}", rule, remedy)


def _tiers_key(engine: EngineSpec) -> str:
    return "kv_tiers" if engine.kv_tiers else "kv_offload"


def _check_admission(scenario: Scenario) -> None:
    admission = scenario.deployment.admission
    if admission is None or not admission.deadline_aware:
        return
    has_timeout = any(each.timeout is not None for each in scenario.workload.classes or ())
    if not has_timeout and all(each.ttft is None for each in limits_by_class(scenario)):
        rule = "has no deadline to look at"
        scenario.refuse("deployment.admission.deadline_aware", rule, "set slo.ttft, or a class's slo.ttft or timeout")


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
        _check_named_classes(scenario, "deployment.response_cache.hit_share", cache.hit_share)


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
        _check_named_classes(scenario, f"deployment.overflow.{option}", getattr(overflow, option) or ())


def _check_fairness(scenario: Scenario) -> None:
    fairness, key = scenario.deployment.fairness, "deployment.fairness"
    if fairness is None:
        return
    _check_named_classes(scenario, f"{key}.shares", fairness.shares)
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
        _check_named_classes(scenario, f"{key}.classes", rule.classes or ())


def _check_named_classes(scenario: Scenario, key: str, names: Iterable[str]) -> None:
    known = [each.name for each in scenario.workload.classes or ()]
    for name in names:
        if name not in known:
            remedy = f"choose from {', '.join(known)}" if known else "workload.classes has none; leave it out"
            scenario.refuse(key, "names no class of the workload", remedy, name)
