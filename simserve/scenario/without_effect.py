"""Settings that do nothing beside others, said beside the result: a comparison changes one key and keeps the rest."""

from __future__ import annotations

from simserve.profiles.engine_profile import load_engine
from simserve.profiles.hardware import load_hardware
from simserve.profiles.model import load_model
from simserve.scenario.schema import Scenario
from simserve.sim.routing_spec import BLIND_POLICIES
from simserve.workload.requests import RequestSpecs

_OF_CONTINUOUS = ("scheduler", "admission")
"""Knobs of batches whose requests come and go one by one."""


def without_effect(scenario: Scenario, specs: RequestSpecs | None) -> list[str]:
    """Return a clause for each setting that changes nothing here, with the reason.

    Args:
        scenario: The scenario.
        specs: The requests of its run, which say what a trace's prompts share; None: they are not known.
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
    if any(each.retries is not None and each.timeout is None for each in classes) and not loses_requests(scenario):
        found.append("retries of workload.classes have no effect where every request is answered")
    return found


def loses_requests(scenario: Scenario) -> bool:
    """Return whether the deployment may refuse or lose a request, beside those whose clients hang up."""
    deployment, streaming = scenario.deployment, scenario.deployment.streaming
    scaled = deployment.autoscaling or any(each.autoscaling for each in deployment.pools)
    return (
        bool(deployment.admission or scaled or deployment.faults or deployment.liveness or deployment.updates)
        or (streaming is not None and streaming.http_timeout is not None)
        or (deployment.overflow is not None and deployment.overflow.when_limited == "refuse")
    )


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
    if engine.moe_backend is not None and not _has_mxfp4_experts(scenario):
        found.append(f"{key}.moe_backend has no effect: the model has no experts in MXFP4")
    if engine.fp8_gemm_backend is not None and not _has_block_scaled_weights(scenario):
        found.append(f"{key}.fp8_gemm_backend has no effect: the model has no FP8 weights with scales by blocks")
    hardware = load_hardware(scenario.deployment.hardware, scenario.folder)
    if engine.attention_backend is not None and hardware.efficiency.triton_attention_decode is None:
        found.append(
            f"{key}.attention_backend has no effect: {hardware.name} has one rate for all kernels of attention"
        )
    return found


def _expects_max_tokens(scenario: Scenario) -> bool:
    deployment = scenario.deployment
    engines = [deployment.engine, *(pool.engine for pool in deployment.pools if pool.engine is not None)]
    known = [load_engine(each.name, scenario.folder).nearest_version(each.version) for each in engines]
    return any(each.scheduling.expects_max_tokens for each in known)


def _has_block_scaled_weights(scenario: Scenario) -> bool:
    model, weights = load_model(scenario.model, scenario.folder), scenario.deployment.quantization
    checkpoint = model.stored if weights == "auto" else model.checkpoint(weights)
    return checkpoint is not None and (checkpoint.format, checkpoint.fp8_scales) == ("fp8", "block")


def _has_mxfp4_experts(scenario: Scenario) -> bool:
    model, weights = load_model(scenario.model, scenario.folder), scenario.deployment.quantization
    named = model.stored.format if weights == "auto" else weights
    return model.moe is not None and "mxfp4" in model.formats_of("experts", named)
