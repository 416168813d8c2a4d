"""Which options of a scenario can be combined, which combinations are not simulated, and which have no effect.

Also what a deployment requires of its engine that not every version has, and whether the requested version has it; the
versions are in the engine profile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from simserve.engine.config import EngineConfig
from simserve.errors import ScenarioError
from simserve.perf.attention import has_triton_prompts
from simserve.perf.collectives import SWITCH_RANKS
from simserve.perf.context_parallel import check_context_ranks
from simserve.perf.measured import measured_operators
from simserve.perf.shape import ReplicaShape
from simserve.profiles.catalog import load_model
from simserve.profiles.engine_options import EngineOptions
from simserve.profiles.engine_profile import FEATURES, FORMAT_FEATURES, EngineProfile, load_engine
from simserve.profiles.hardware import HardwareProfile, load_hardware
from simserve.profiles.model import ModelProfile
from simserve.profiles.model_blocks import heads_per_rank
from simserve.scenario.cpu_layers import ON_CPU
from simserve.scenario.deployment_spec import DeploymentSpec, EngineSpec
from simserve.scenario.formats import has_block_scaled_weights, no_choice_of_experts
from simserve.scenario.schema import Scenario, limits_by_class, objective
from simserve.scenario.speculative import load_draft
from simserve.sim.control import API_POOL, BLIND_POLICIES, FaultSpec, HorizontalScaling, LinkFault, NodeFault
from simserve.workload.class_spec import LatencyLimits
from simserve.workload.requests import RequestSpecs

_WITH_ENCODERS = ("vllm", "sglang", "tensorrt-llm")
"""Engines whose replicas take embeddings from an encoder pool: vLLM (docs, features/disagg_encoder), SGLang (docs,
advanced_features/epd_disaggregation), TensorRT-LLM (under Dynamo's encode worker)."""
_OF_CONTINUOUS = ("scheduler", "admission")  # Options of batches whose requests come and go one by one.
_SWITCHES = {"enable_chunked_prefill": "chunked_prefill", "enable_prefix_caching": "prefix_caching"}
"""Options of the engine -> the feature that they need when switched on."""
_CHOICES = {("scheduling_policy", "priority"): "priority_scheduling", ("preemption_mode", "swap"): "swap"}
"""Options of the engine and a value -> the feature that it needs."""
_HOST_MEMORY = ("cpu_offload_gb", *ON_CPU)  # Options by which engines keep weights outside the GPU.


def check_combinations(scenario: Scenario) -> None:
    """Check that the options of a scenario can be combined; `without_effect` says which of them change nothing.

    Raises:
        ScenarioError: An option cannot do what it says, or is not simulated together with another.
    """
    _check_classes(scenario)
    _check_thinking(scenario)
    _check_admission(scenario)
    _check_autoscaling(scenario)
    _check_faults(scenario)
    _check_regions(scenario)
    for number, update in enumerate(scenario.deployment.updates):
        _check_pool(scenario, f"deployment.updates.{number}", update.pool)
    _check_pools(scenario)
    _check_offload(scenario)
    _check_loras(scenario)
    _check_response_cache(scenario)
    _check_overflow(scenario)
    _check_fairness(scenario)
    _check_rules(scenario)
    _check_encoders(scenario)


def check_traffic(scenario: Scenario, specs: RequestSpecs) -> None:
    """Check that the requests have what the scenario needs.

    Raises:
        ScenarioError: A trace does not say what its prompts share, but a tier behind the prefix cache is to keep it; or
            there are no tasks, but an objective for them.
    """
    if scenario.slo is not None and scenario.slo.task is not None and specs.dependencies is None:
        rule = "has nothing to limit: the workload has no agents' tasks"
        scenario.refuse("slo.task", rule, "add workload.agents, or leave it out")
    engine = scenario.deployment.engine
    if (engine.kv_offload is not None or engine.kv_tiers) and specs.prefixes is None:
        rule = "has nothing to keep: the trace does not say what prompts share"
        scenario.refuse(f"deployment.engine.{_tiers_key(engine)}", rule, "leave it out")


def check_engine(scenario: Scenario, engine: EngineConfig) -> None:
    """Check that the engine can be simulated under everything that decides in the scenario.

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
    names = [pool.name for pool in scenario.deployment.pools if pool.role != "decode"]
    for number, each in enumerate(scenario.workload.classes or ()):
        if each.pool is not None and each.pool not in names:
            known = f"choose from {', '.join(names)}" if names else "deployment.pools has none; leave it out"
            scenario.refuse(f"workload.classes.{number}.pool", "names no pool that takes requests", known, each.pool)


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
            rule = f"is not available with {name}: only {', '.join(_WITH_ENCODERS)} take embeddings from another server"
            scenario.refuse(key, rule, "leave it out, or set deployment.engine.name")
    others = ("overflow", "response_cache", "regions")
    given = next((name for name in others if getattr(deployment, name) is not None), None)
    if given is not None:
        rule = "encodes before the router sees a request, which may then go elsewhere: not simulated together"
        scenario.refuse(f"deployment.{given}", rule, f"leave it or {key} out")


def _check_offload(scenario: Scenario) -> None:
    workload, key = scenario.workload, tiers_key(scenario.deployment)
    if key is None or workload.has_sessions or workload.trace is not None or workload.has_shared_prefix:
        return
    rule = "has nothing to keep: no two prompts of the workload begin alike"
    remedy = "add workload.sessions or shared_prefix, or leave it out"
    scenario.refuse(f"deployment.{key}", rule, remedy)


def tiers_key(deployment: DeploymentSpec) -> str | None:
    """Return the first key below ``deployment`` that asks for tiers behind the prefix cache; None: there is none."""
    engines = {"engine": deployment.engine}
    engines |= {f"pools.{number}.engine": pool.engine for number, pool in enumerate(deployment.pools) if pool.engine}
    for key, engine in engines.items():
        if engine.kv_offload is not None or engine.kv_tiers:
            return f"{key}.{_tiers_key(engine)}"
    return None


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


def _check_autoscaling(scenario: Scenario) -> None:
    deployment = scenario.deployment
    encoders = deployment.encoder_disaggregation
    if encoders is not None and encoders.autoscaling is not None:
        key = "deployment.encoder_disaggregation"
        _check_scaling(scenario, encoders.autoscaling, f"{key}.autoscaling", key, encoders.replicas)
    if not deployment.pools:
        if deployment.autoscaling is not None:
            _check_scaling(
                scenario, deployment.autoscaling, "deployment.autoscaling", "deployment", deployment.replicas
            )
        return
    for number, pool in enumerate(deployment.pools):
        key = f"deployment.pools.{number}"
        if pool.autoscaling is not None:
            _check_scaling(scenario, pool.autoscaling, f"{key}.autoscaling", key, pool.replicas)
        elif deployment.autoscaling is not None:
            _check_scaling(scenario, deployment.autoscaling, "deployment.autoscaling", key, pool.replicas)
    if deployment.autoscaling is not None and all(pool.autoscaling is not None for pool in deployment.pools):
        rule = "has no effect: every pool has its own"
        scenario.refuse("deployment.autoscaling", rule, "leave it out, or let a pool go by it")


def _check_scaling(scenario: Scenario, rules: HorizontalScaling, key: str, owner: str, replicas: int) -> None:
    if not rules.min_replicas <= replicas <= rules.max_replicas:
        rule = f"must lie between min_replicas {rules.min_replicas} and max_replicas {rules.max_replicas}"
        scenario.refuse(f"{owner}.replicas", rule, "they are the replicas at the start", replicas)
    if rules.metric == "slo" and objective(scenario) is None:
        scenario.refuse(f"{key}.metric", "slo needs an objective", "add an slo block", "slo")


def _check_faults(scenario: Scenario) -> None:
    deployment = scenario.deployment
    for number, fault in enumerate(deployment.faults):
        key = f"deployment.faults.{number}"
        _check_pool(scenario, key, fault.pool)
        counts = _counts(scenario, fault)
        if not counts:
            if deployment.disaggregation is None:
                rule = "has no link to strike: KV caches cross one only with deployment.disaggregation"
            else:
                rule = "names a pool whose replicas send no KV caches"
            scenario.refuse(key, rule, "use slow for a bad link inside a replica")
        replica = getattr(fault, "replica", 0)
        if replica >= sum(counts) and not isinstance(fault, NodeFault):
            what = "the replicas it may strike" if deployment.pools else "deployment.replicas"
            rule = f"must be below {what}, {sum(counts)}: they count from 0"
            scenario.refuse(f"{key}.replica", rule, "only replicas that are there at the start can be named", replica)


def _counts(scenario: Scenario, fault: FaultSpec) -> list[int]:
    """Return how many replicas of each pool exist at the start for a fault to hit."""
    deployment = scenario.deployment
    if not deployment.pools:
        return [] if isinstance(fault, LinkFault) else [deployment.replicas]
    struck = [pool for pool in deployment.pools if fault.pool in (None, pool.name)]
    return [pool.replicas for pool in struck if pool.role == "prefill" or not isinstance(fault, LinkFault)]


def _check_regions(scenario: Scenario) -> None:
    deployment, classes = scenario.deployment, scenario.workload.classes or ()
    regions, pools, key = deployment.regions, deployment.pools, "deployment.regions"
    if regions is None:
        for number, pool in enumerate(pools):
            if pool.region is not None:
                rule = "has no effect: nothing says how far apart regions are"
                scenario.refuse(f"deployment.pools.{number}.region", rule, "add deployment.regions", pool.region)
        for number, each in enumerate(classes):
            if each.region is not None:
                rule = "has no effect without deployment.regions"
                scenario.refuse(f"workload.classes.{number}.region", rule, "add it, or leave this out", each.region)
        return
    if not pools:
        remedy = "add deployment.pools, each with a region"
        scenario.refuse(key, "has nothing to choose from: there are no pools", remedy)
    for number, pool in enumerate(pools):
        if pool.region is None:
            scenario.refuse(f"deployment.pools.{number}", "has no region, and deployment.regions is set", "add region")
    if not regions.clients and not (classes and all(each.region is not None for each in classes)):
        rule = "says nothing of clients whose class has no region" if classes else "does not say where clients are"
        scenario.refuse(f"{key}.clients", rule, "give the share of each region, such as {eu: 0.4, us: 0.6}")
    homes = [*regions.clients, *(each.region for each in classes if each.region is not None)]
    for home in homes:
        for place in (pool.region for pool in pools):
            if regions.one_way(home, place or "") is None:
                rule = f"says nothing between {home} and {place}"
                scenario.refuse(f"{key}.latency", rule, f'add, such as {{{home}: {{{place}: "40 ms"}}}}')


def _check_pool(scenario: Scenario, key: str, name: str | None) -> None:
    names = [pool.name for pool in scenario.deployment.pools]
    if name is not None and name not in names:
        remedy = f"choose from {', '.join(names)}" if names else "deployment.pools has none; leave it out"
        scenario.refuse(f"{key}.pool", "names no pool", remedy, name)


def without_effect(scenario: Scenario, specs: RequestSpecs | None) -> list[str]:
    """Return a clause for each setting that changes nothing here, with the reason.

    Args:
        specs: The requests of its run, which say what a trace's prompts share; None: not known.
    """
    return [*_of_routing(scenario, specs), *_of_classes(scenario), *_of_engine(scenario)]


def _of_routing(scenario: Scenario, specs: RequestSpecs | None) -> list[str]:
    routing, workload, key = scenario.deployment.routing, scenario.workload, "deployment.routing"
    policy, found = routing.policy, []
    has_sessions = workload.has_sessions if specs is None else specs.session is not None
    has_prefixes = has_sessions or workload.has_shared_prefix if specs is None else specs.prefixes is not None
    if (specs is not None or workload.trace is None) and not {"session": has_sessions, "prefix": has_prefixes}.get(
        policy, True
    ):
        lack = "no sessions are told apart" if policy == "session" else "no two prompts are known to begin alike"
        found.append(f"{key}.policy {policy} has nothing to go by, as {lack}: requests go to the least loaded replica")
    if policy == "lora" and workload.loras is None:
        lack = "no request has an adapter"
        found.append(f"{key}.policy lora has nothing to go by, as {lack}: requests go to the least loaded replica")
    if routing.imbalance_guard is not None and policy not in ("session", "prefix", "lora"):
        found.append(f"{key}.imbalance_guard has no effect under {policy}")
    if routing.cache_threshold is not None and policy != "prefix":
        found.append(f"{key}.cache_threshold has no effect under {policy}")
    if routing.update_interval and policy in BLIND_POLICIES:
        found.append(f"{key}.update_interval has no effect under {policy}, which looks at nothing")
    return found


def _of_classes(scenario: Scenario) -> list[str]:
    deployment, classes = scenario.deployment, scenario.workload.classes or ()
    policies = {pool.engine.scheduling_policy for pool in deployment.pools if pool.engine is not None}
    if any(pool.engine is None for pool in deployment.pools) or not deployment.pools:
        policies.add(deployment.engine.scheduling_policy)
    has_priorities, found = any(each.priority is not None for each in classes), []
    if has_priorities and "priority" not in policies:
        queue = "shortest first" if "shortest_first" in policies else "first come, first served"
        found.append(f"priorities of workload.classes have no effect on a queue that is {queue}")
    if not has_priorities and "priority" in policies:
        found.append("scheduling_policy priority has no effect: no class of the workload has a priority")
    if any(each.retries is not None and each.timeout is None for each in classes) and not _loses_requests(scenario):
        found.append("retries of workload.classes have no effect where every request is answered")
    return found


def _loses_requests(scenario: Scenario) -> bool:
    """Return whether the deployment may refuse or lose a request, other than those whose clients hang up."""
    deployment, streaming = scenario.deployment, scenario.deployment.streaming
    scaled = deployment.autoscaling or any(each.autoscaling for each in deployment.pools)
    return (
        bool(deployment.admission or scaled or deployment.faults or deployment.liveness or deployment.updates)
        or (streaming is not None and streaming.http_timeout is not None)
        or (deployment.overflow is not None and deployment.overflow.when_limited == "refuse")
    )


def _has_choice_of_attention(scenario: Scenario, hardware: HardwareProfile) -> bool:
    """Return whether attention kernels have rates of their own: on some AMD GPUs, on all of them the prompts of some
    heads and latent decodes, as on NVIDIA's."""
    model = load_model(scenario.model, scenario.folder)
    if hardware.efficiency.triton_attention_decode is not None:
        return True
    if any(has_triton_prompts(hardware, each) for each in model.attention_layers):
        return True
    if hardware.vendor == "AMD":
        return model.mla is not None and model.indexer is None
    is_asked = scenario.deployment.engine.attention_backend == "triton"
    return hardware.vendor == "NVIDIA" and model.mla is not None and is_asked


def _has_switch(scenario: Scenario, hardware: HardwareProfile) -> bool:
    """Return whether NCCL reduces in the NVSwitch for the ranks of a replica where nothing forbids it."""
    curves, ranks = hardware.collective_curves, scenario.deployment.tensor_parallel_size
    has_curve = curves is not None and any(each.switch is not None for each in curves.all_reduce)
    return has_curve and SWITCH_RANKS <= ranks <= hardware.intra_node.gpus_per_node


_OF_STATES = ("mamba_ssm_cache_dtype", "mamba_full_memory_ratio", "max_mamba_cache_size")
_OF_WINDOWS = ("swa_full_tokens_ratio", "disable_hybrid_kv_cache_manager")


def _of_engine(scenario: Scenario) -> list[str]:
    engine, key = scenario.deployment.engine, "deployment.engine"
    found = []
    if engine.swap_space and engine.preemption_mode != "swap":
        found.append(f"{key}.swap_space has no effect without preemption_mode swap")
    if engine.scheduling_policy != "priority":
        given = [each for each in ("priority_ageing", "priority_preemption") if getattr(engine, each)]
        found += [f"{key}.{each} has no effect without scheduling_policy priority" for each in given]
    if engine.batching == "static":
        given = [each for each in _OF_CONTINUOUS if getattr(engine, each) is not None]
        found += [f"{key}.{each} has no effect on a static batch, which begins and ends as one" for each in given]
    if scenario.workload.ignore_eos and not _expects_max_tokens(scenario):
        found.append("workload.ignore_eos has no effect: the engine looks at no request's max_tokens for it")
    hardware = load_hardware(scenario.deployment.hardware, scenario.folder)
    if engine.moe_backend is not None and (reason := no_choice_of_experts(scenario, hardware)):
        found.append(f"{key}.moe_backend has no effect: {reason}")
    if engine.fp8_gemm_backend is not None and not has_block_scaled_weights(scenario):
        found.append(f"{key}.fp8_gemm_backend has no effect: the model has no FP8 weights with scales by blocks")
    if engine.enable_nccl_nvls is not None and not _has_switch(scenario, hardware):
        told = "NVSwitches reduce for eight NVIDIA GPUs of a node and more"
        found.append(f"{key}.enable_nccl_nvls has no effect: {told}")
    found += _of_windows(scenario)
    states = load_model(scenario.model, scenario.folder).state_layers
    if states is None or not states.state_elements:
        given = [each for each in _OF_STATES if getattr(engine, each) is not None]
        found += [f"{key}.{each} has no effect: the model keeps no states of its past" for each in given]
    elif engine.mamba_full_memory_ratio is not None and engine.max_mamba_cache_size is not None:
        found.append(f"{key}.mamba_full_memory_ratio has no effect: max_mamba_cache_size sets the number of states")
    if engine.attention_backend is not None and not _has_choice_of_attention(scenario, hardware):
        told = f"{hardware.name} has one rate for all kernels of attention"
        found.append(f"{key}.attention_backend has no effect: {told}")
    if engine.disable_cascade_attn is not None and not scenario.workload.common_prefix_tokens:
        found.append(f"{key}.disable_cascade_attn has no effect: the requests do not all begin with one shared_prefix")
    return found


def _of_windows(scenario: Scenario) -> list[str]:
    """Return what is set for layers with a sliding window where none of them has memory of its own."""
    engine, found = scenario.deployment.engine, []
    asked = [key for key in _OF_WINDOWS if getattr(engine, key)]
    if not asked:
        return []
    model = load_model(scenario.model, scenario.folder)
    rules = load_engine(engine.name, scenario.folder).windows_of(engine.version)
    reason = "no layer of the model has a sliding window"
    if model.num_sliding_layers:
        is_kept = rules is not None and rules.keeps(model.family)
        reason = "" if is_kept else "its layers with a sliding window keep every token in this version anyway"
    for key in asked:
        why = reason
        if not why and key == "swa_full_tokens_ratio" and engine.disable_hybrid_kv_cache_manager:
            why = "with disable_hybrid_kv_cache_manager all layers share one pool"
        found += [f"deployment.engine.{key} has no effect: {why}"] if why else []
    return found


def _expects_max_tokens(scenario: Scenario) -> bool:
    deployment = scenario.deployment
    engines = [deployment.engine, *(pool.engine for pool in deployment.pools if pool.engine is not None)]
    known = [load_engine(each.name, scenario.folder).nearest_version(each.version) for each in engines]
    return any(each.scheduling.expects_max_tokens for each in known)


class AskedFeature(NamedTuple):
    """A feature that a deployment uses."""

    name: str  # One of `simserve.profiles.engine_profile.FEATURES`.
    key: str  # Key of the deployment that asks for it.
    value: object  # Its value.


def asked_features(deployment: DeploymentSpec) -> Iterator[AskedFeature]:
    """Yield what a deployment without pools of its own requires of its engine."""
    yield from _of_options(deployment.engine)
    if deployment.engine.kv_offload is not None:
        yield AskedFeature("kv_offload", "engine.kv_offload", None)
    if deployment.engine.kv_tiers:
        yield AskedFeature("kv_offload", "engine.kv_tiers", None)
    if deployment.quantization in FORMAT_FEATURES:
        yield AskedFeature(deployment.quantization, "quantization", deployment.quantization)
    kv_format = f"kv_cache_{deployment.kv_cache_dtype}"
    if kv_format in FEATURES:
        yield AskedFeature(kv_format, "kv_cache_dtype", deployment.kv_cache_dtype)
    if deployment.data_parallel_size > 1:
        yield AskedFeature("data_parallel_attention", "data_parallel_size", deployment.data_parallel_size)
    if deployment.decode_context_parallel_size > 1:
        asked = deployment.decode_context_parallel_size
        yield AskedFeature("decode_context_parallel", "decode_context_parallel_size", asked)
    if deployment.enable_expert_parallel:
        yield AskedFeature("expert_parallel", "enable_expert_parallel", True)
    if deployment.all2all_backend not in ("auto", "allgather_reducescatter"):
        name = "deepep" if deployment.all2all_backend.startswith("deepep") else deployment.all2all_backend
        yield AskedFeature(name, "all2all_backend", deployment.all2all_backend)
    if deployment.num_redundant_experts is not None:
        yield AskedFeature("eplb", "num_redundant_experts", deployment.num_redundant_experts)
    if deployment.enable_two_batch_overlap:
        yield AskedFeature("two_batch_overlap", "enable_two_batch_overlap", True)
    if deployment.pipeline_layer_partition is not None:
        yield AskedFeature("pipeline_layer_partition", "pipeline_layer_partition", deployment.pipeline_layer_partition)
    if deployment.speculative is not None:
        yield AskedFeature(deployment.speculative.method, "speculative.method", deployment.speculative.method)


def _of_options(options: EngineOptions) -> Iterator[AskedFeature]:
    """Yield what options of the engine require: one named like a feature requires it, whatever its value."""
    for key, value in options.overrides().items():
        switched = _SWITCHES.get(key) if value is True else None
        name = key if key in FEATURES else switched or _CHOICES.get((key, str(value)))
        if name is not None:
            yield AskedFeature(name, f"engine.{key}", value)


def lack_of(scenario: Scenario, feature: str) -> str | None:
    """Return a clause saying that the scenario's engine lacks a feature on its GPU; None: it has it.

    Raises:
        InputError: The engine or the GPU has no profile.
    """
    deployment = scenario.deployment
    profile = load_engine(deployment.engine.name, scenario.folder)
    hardware = load_hardware(deployment.hardware, scenario.folder)
    return profile.lack(feature, deployment.engine.version, hardware.name, hardware.compute_capability)


def check_features(deployment: DeploymentSpec, profile: EngineProfile, hardware: HardwareProfile) -> None:
    """Check that the engine's version has all features that a deployment requires on its GPU.

    Raises:
        ScenarioError: It lacks one; says which versions have it.
    """
    for asked in asked_features(deployment):
        check_feature(deployment, profile, hardware, asked)


def model_lack_of(scenario: Scenario, version: str | None) -> str | None:
    """Return a clause saying that a version of the scenario's engine has no code for its model or draft.

    None: it has code, or that is not known.

    Raises:
        InputError: The engine or the model has no profile.
    """
    profile = load_engine(scenario.deployment.engine.name, scenario.folder)
    models = _models_of(scenario.deployment, load_model(scenario.model, scenario.folder), scenario.folder)
    return next((lack for each in models if (lack := _model_lack(profile, version, each)) is not None), None)


def _model_lack(profile: EngineProfile, version: str | None, model: ModelProfile) -> str | None:
    if profile.transformers_for(model.architecture, version) is not None:
        return None
    others = profile.lack_of_model(model.architecture, model.moe is not None, version)
    if others is None:
        return None
    return f"{_named(profile, version)} has no code for {model.name} ({model.architecture}; versions with it: {others})"


def _named(profile: EngineProfile, version: str | None) -> str:
    return f"{profile.base or profile.name} {version or profile.newest.version}"


def model_notes(scenario: Scenario) -> list[str]:
    """Return notes, shown first, on models that an engine's version has, or may have, no code of its own for.

    Raises:
        InputError: An engine or a model has no profile.
    """
    deployment, notes = scenario.deployment, []
    for spec in deployment.pools or [None]:
        each = deployment if spec is None else deployment.of_pool(spec)
        name = scenario.model if spec is None or spec.model is None else spec.model
        profile = load_engine(each.engine.name, scenario.folder)
        for model in _models_of(each, load_model(name, scenario.folder), scenario.folder):
            notes.append(_model_note(profile, each.engine.version, model))
    return list(dict.fromkeys(note for note in notes if note is not None))


def _model_note(profile: EngineProfile, version: str | None, model: ModelProfile) -> str | None:
    engine, its = _named(profile, version), model.architecture
    others = profile.lack_of_model(its, model.moe is not None, version)
    oldest = profile.transformers_for(its, version)
    if oldest is not None and (others is not None or not profile.lists(its or "")):
        known = f"versions with it: {others or 'none is known'}"
        return (
            f"{engine} has no code of its own for {model.name} ({its}; {known}): it takes that of "
            f"transformers {oldest} or newer, where that is installed; the times are those of the engine's own code"
        )
    if its is not None and profile.unlisted_models is not None and not profile.lists(its):
        return f"whether {engine} has code for {model.name} ({its}) is not checked: {profile.unlisted_models}"
    return None


def _models_of(deployment: DeploymentSpec, model: ModelProfile, folder: Path | None) -> Iterator[ModelProfile]:
    """Yield the models that a deployment without pools of its own loads: the one that answers, and its draft."""
    yield model
    draft = None if deployment.speculative is None else deployment.speculative.draft_model
    if draft is not None:
        yield load_draft(draft, folder)


def check_model(
    deployment: DeploymentSpec, profile: EngineProfile, model: ModelProfile, folder: Path | None = None
) -> None:
    """Check that the engine's version has code for a model and its draft, or that this is not known.

    Raises:
        ScenarioError: It has none; says which versions have it.
    """
    version = deployment.engine.version
    for each in _models_of(deployment, model, folder):
        lack = _model_lack(profile, version, each)
        if lack is not None:
            asked = version or profile.newest.version
            what = "choose another engine" if each is model else "choose another draft_model"
            remedy = f"set deployment.engine.version to one that has it, or {what}"
            raise ScenarioError(f"does not run: {lack}", key="deployment.engine.version", value=asked, remedy=remedy)


def check_feature(
    deployment: DeploymentSpec, profile: EngineProfile, hardware: HardwareProfile, asked: AskedFeature
) -> None:
    """Check that the engine's version has one feature on its GPU.

    Raises:
        ScenarioError: It lacks it; says which versions have it.
    """
    lack = profile.lack(asked.name, deployment.engine.version, hardware.name, hardware.compute_capability)
    if lack is not None:
        others = [key for key in _HOST_MEMORY if profile.feature_range(key, deployment.engine.version) is not None]
        remedy = "leave it out"
        if asked.name in _HOST_MEMORY and others:
            remedy = f"write deployment.engine.{others[0]}"
        elif profile.features.get(asked.name):
            remedy = "set deployment.engine.version to one that has it, or leave it out"
        raise ScenarioError(f"does not run: {lack}", key=f"deployment.{asked.key}", value=asked.value, remedy=remedy)


def feature_notes(scenario: Scenario) -> list[str]:
    """Return what a reader should know about the features that a scenario uses, as its engine's version has them."""
    deployment, notes = scenario.deployment, []
    for each in [deployment.of_pool(pool) for pool in deployment.pools] or [deployment]:
        profile = load_engine(each.engine.name, scenario.folder)
        ranges = (profile.feature_range(asked.name, each.engine.version) for asked in asked_features(each))
        notes += [found.note for found in ranges if found is not None and found.note]
    return list(dict.fromkeys(notes))


def check_rank_layout(shape: ReplicaShape) -> None:
    """Refuse a layout of ranks, stages and experts that the model, the engine or the links do not support.

    Raises:
        ScenarioError: Names the key, and what would be right.
    """
    tensor, stages = shape.tensor_parallel_size, shape.pipeline_parallel_size
    layers = shape.model.num_hidden_layers
    if stages > layers:
        rule = f"must be at most the {layers} layers of {shape.model.name}"
        raise ScenarioError(rule, key="pipeline_parallel_size", value=stages)
    if shape.pipeline_layer_partition is not None:
        _ = shape.layers_per_stage
    if shape.operator_tables is not None:
        measured_operators(shape.operator_tables, shape.engine.name)
    if (shape.num_cpu_layers or shape.num_cpu_expert_layers) and shape.num_gpus > 1:
        key = next(each for each in ON_CPU if getattr(shape.engine, each) is not None)
        rule = f"leaves layers or experts to the CPU, which needs one GPU, not {shape.num_gpus}"
        raise ScenarioError(rule, key=f"deployment.engine.{key}", value=getattr(shape.engine, key))
    if stages > 1 and shape.engine.kv_allocation == "none":
        rule = "must be 1 without a KV cache (kv_allocation: none)"
        raise ScenarioError(rule, key="pipeline_parallel_size", value=stages)
    _check_shared_layers(shape)
    _check_experts(shape)
    _check_ranks(shape)
    if shape.decode_context_parallel_size > 1:
        check_context_ranks(shape)
    if shape.engine.preemption_mode == "swap" and shape.data_parallel_size > 1:
        rule = "must be 1 with preemption_mode swap: ranks that step together would wait for each other's copies"
        raise ScenarioError(rule, key="data_parallel_size", value=shape.data_parallel_size)
    if shape.engine.kv_allocation == "paged" and shape.engine.block_size > shape.engine.max_model_len:
        rule = f"must be at most max_model_len, {shape.engine.max_model_len}"
        remedy = "a request would never fill its first block"
        raise ScenarioError(rule, key="deployment.engine.block_size", value=shape.engine.block_size, remedy=remedy)
    heads_per_rank(shape.model.num_attention_heads, tensor)
    if tensor > 1:
        shape.check_link(tensor, "tensor_parallel_size")
    if stages > 1:
        shape.check_link(shape.num_gpus, "pipeline_parallel_size")
    _ = shape.precision


def _check_shared_layers(shape: ReplicaShape) -> None:
    """Refuse several GPUs that share a layer under Ollama, which gives each GPU layers of its own.

    Its only setting over GPUs is whether it uses all of them (`OLLAMA_SCHED_SPREAD`, envconfig/config.go).
    """
    size = shape.tensor_parallel_size
    if size > 1 and "num_gpu" in shape.engine.features:
        rule = f"must be 1: {shape.engine.name} gives each GPU layers of its own"
        remedy = f"set pipeline_parallel_size to {size * shape.pipeline_parallel_size} instead"
        raise ScenarioError(rule, key="tensor_parallel_size", value=size, remedy=remedy)


def _check_experts(shape: ReplicaShape) -> None:
    _check_whole_experts(shape)
    moe, on_cpu = shape.model.moe, shape.engine.n_cpu_moe
    if moe is None and (shape.enable_expert_parallel or on_cpu):
        key, value = ("engine.n_cpu_moe", on_cpu) if on_cpu else ("enable_expert_parallel", True)
        raise ScenarioError(f"needs a model with experts, and {shape.model.name} has none", key=key, value=value)
    if not shape.enable_expert_parallel or moe is None:
        return
    if shape.expert_ranks > moe.num_experts:
        rule = f"must be at most the {moe.num_experts} experts of a layer with enable_expert_parallel"
        raise ScenarioError(rule, key="tensor_parallel_size", value=shape.expert_ranks)


def _check_whole_experts(shape: ReplicaShape) -> None:
    """Refuse settings of whole experts on ranks of data-parallel attention if there are none."""
    is_sent, has_ranks = shape.all2all_backend != "allgather_reducescatter", shape.data_parallel_size > 1
    if shape.enable_two_batch_overlap and not shape.all2all_backend.startswith("deepep"):
        rule, key = "needs an all2all_backend of DeepEP", "enable_two_batch_overlap"
        raise ScenarioError(rule, key=key, value=True, remedy="set deployment.all2all_backend, or leave it out")
    if is_sent and not (shape.enable_expert_parallel and has_ranks):
        rule = "needs enable_expert_parallel and a data_parallel_size above 1"
        raise ScenarioError(rule, key="all2all_backend", value=shape.all2all_backend, remedy="leave it out")
    joined = shape.hardware.intra_node.gpus_per_node if shape.hardware.intra_node.kind == "nvlink" else 0
    if shape.all2all_backend.startswith("nvlink") and shape.expert_ranks > joined:
        rule = f"needs all {shape.expert_ranks} GPUs of the experts on one NVLink, which joins {joined} GPUs here"
        raise ScenarioError(rule, key="all2all_backend", value=shape.all2all_backend, remedy="leave it out")
    if shape.num_redundant_experts is not None and not shape.enable_expert_parallel:
        rule = "needs enable_expert_parallel"
        raise ScenarioError(rule, key="num_redundant_experts", value=shape.num_redundant_experts, remedy="leave it out")


def _check_ranks(shape: ReplicaShape) -> None:
    """Refuse data-parallel attention if it has no meaning, or the scheduler cannot step in lockstep."""
    key, size, engine = "data_parallel_size", shape.data_parallel_size, shape.engine
    for name in ("attention_dp_timeout_iters", "enable_prefill_delayer"):
        if size == 1 and (waits := getattr(engine, name)):
            rule = "has no meaning without data_parallel_size above 1"
            raise ScenarioError(rule, key=f"deployment.engine.{name}", value=waits, remedy="leave it out")
    if size == 1:
        return
    if shape.model.moe is None:
        rule = f"must be 1: {shape.model.name} has no experts that the ranks could share"
        raise ScenarioError(rule, key=key, value=size, remedy="raise replicas instead")
    if shape.pipeline_parallel_size > 1:
        raise ScenarioError("must be 1 with pipeline stages", key=key, value=size)
    if engine.batching != "continuous" or engine.kv_allocation != "paged":
        raise ScenarioError("needs continuous batching and paged KV allocation", key=key, value=size)
    _ = shape.expert_link
