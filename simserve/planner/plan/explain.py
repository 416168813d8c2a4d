"""Fleets and commands in words."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from simserve.planner.overrides import Overrides
from simserve.profiles.hardware import counted_gpu, hardware_name, is_known_gpu, load_hardware
from simserve.scenario.deployment_spec import DeploymentSpec, PoolSpec
from simserve.scenario.schema import Scenario
from simserve.units import to_text

LAYOUT_FLAGS = ("--tp", "--pp", "--replicas")  # Flags of one line whose values a plan finds.


def plan_command(reference: Sequence[str], *, needs_more: bool = False, takes_others: bool = False) -> str:
    """Return the command that plans a deployment for what was asked, without the flags that lay it out.

    Args:
        reference: What follows a command of simserve to name the scenario.
        needs_more: Whether the GPUs given are too few: their number then does not limit the plan.
        takes_others: Whether other kinds of GPU are looked at too, if those given have a price to compare.
    """
    words = list(reference)
    for flag in LAYOUT_FLAGS:
        words = _without_flag(words, flag)
    if needs_more and "--gpus" in words:
        place = words.index("--gpus") + 1
        words[place] = counted_gpu(words[place])[1]
    if takes_others and "--gpus" in words and _has_price(counted_gpu(words[words.index("--gpus") + 1])[1]):
        words = _without_flag(words, "--gpus")
    return f"simserve plan {' '.join(shlex.quote(word) for word in words)}"


def _has_price(gpu: str) -> bool:
    name = hardware_name(gpu)
    return is_known_gpu(name) and load_hardware(name).default_price is not None


def describe(scenario: Scenario) -> str:
    """Return a fleet in words: ``2 x (2 x h100-sxm-80gb, TP 2, fp8, KV fp8)``."""
    deployment = scenario.deployment
    pools, scaling = [_pool(deployment, pool) for pool in deployment.pools], deployment.autoscaling
    fleet = describe_worker(deployment)
    if len({replica for _, replica in pools}) == 1:
        fleet = f"{' + '.join(number for number, _ in pools)} x ({pools[0][1]})"
    elif pools:
        fleet = " + ".join(f"{number} x ({replica})" for number, replica in pools)
    elif scaling is not None:
        fleet = f"{scaling.min_replicas} to {scaling.max_replicas} x ({fleet})"
    elif deployment.replicas > 1:
        fleet = f"{deployment.replicas} x ({fleet})"
    return ", ".join([fleet, *_beside(deployment)])


def _pool(deployment: DeploymentSpec, pool: PoolSpec) -> tuple[str, str]:
    """Return the number of a pool's replicas with its name, and one of them in words."""
    model = [] if pool.model is None else [pool.model]
    return f"{pool.replicas} {pool.name}", ", ".join([*model, describe_worker(deployment.of_pool(pool))])


def describe_worker(deployment: DeploymentSpec) -> str:
    """Return one replica of a deployment in words: ``2 x h100-sxm-80gb, TP 2, fp8``."""
    parts = [f"{deployment.gpus_per_replica} x {deployment.hardware}"]
    sizes = [
        f"{name} {size}"
        for name, size in (
            ("TP", deployment.tensor_parallel_size),
            ("DCP", deployment.decode_context_parallel_size),
            ("PP", deployment.pipeline_parallel_size),
            ("DP", deployment.data_parallel_size),
        )
        if size > 1
    ]
    if sizes:
        parts.append(" x ".join(sizes))
    if deployment.gpus_per_node is not None:
        parts.append(f"nodes of {deployment.gpus_per_node}")
    if deployment.enable_expert_parallel:
        parts.append("EP")
    if deployment.quantization != "auto":
        parts.append("16-bit" if deployment.quantization == "none" else deployment.quantization)
    if deployment.kv_cache_dtype != "auto":
        parts.append(f"KV {deployment.kv_cache_dtype}")
    return ", ".join(parts)


def _beside(deployment: DeploymentSpec) -> Iterator[str]:
    """Yield what is deployed besides plain replicas."""
    drafts, routing = deployment.speculative, deployment.routing
    if drafts is not None:
        by = drafts.draft_model or {"mtp": "its MTP layer", "eagle": "an EAGLE layer"}.get(drafts.method, "n-grams")
        yield f"{drafts.num_speculative_tokens} drafts a step by {by}"
    if deployment.engine.enforce_eager:
        yield "no CUDA graphs"
    if deployment.engine.enable_prefix_caching is False:
        yield "no prefix caching"
    if deployment.engine.kv_offload is not None:
        yield "a second tier behind the prefix cache"
    for tier in deployment.engine.kv_tiers or ():
        yield f"{to_text(tier.capacity, 'bytes')} of KV cache on a {tier.tier} tier"
    if deployment.response_cache is not None:
        yield "a response cache"
    if deployment.engine.scheduling_policy not in (None, "fcfs"):
        yield f"queue by {deployment.engine.scheduling_policy}".replace("_", " ")
    if routing.policy != "least_outstanding" and _has_choice(deployment):
        yield f"routing {routing.policy}"
    if deployment.autoscaling is not None:
        yield f"scaled on {deployment.autoscaling.metric}".replace("_", " ")
    if deployment.admission is not None:
        yield "with admission rules"
    if deployment.overflow is not None:
        yield f"overflow to {deployment.overflow.api}"


def _has_choice(deployment: DeploymentSpec) -> bool:
    """Return whether a router has more than one replica, or rank, to choose from."""
    scaling = deployment.autoscaling
    most = deployment.replicas if scaling is None else scaling.max_replicas
    return bool(deployment.pools) or max(most, deployment.data_parallel_size) > 1


def command(reference: Sequence[str], changes: Overrides, verb: str = "run", *, keeps_layout: bool = False) -> str:
    """Return the command that runs a fleet, or another command for it.

    In a line of flags, the GPU replaces that of ``--gpus``, the weight format has its own flag, and a single replica of
    one GPU is not mentioned.

    Args:
        reference: What follows a command of simserve to name the scenario.
        changes: Dotted key -> value.
        keeps_layout: Whether the changes are to a deployment laid out as the reference says, with its number of GPUs;
            those of a plan give the whole layout.
    """
    named, others = list(reference or ("SCENARIO.yaml",)), dict(changes)
    if "--gpus" in named:
        place = named.index("--gpus") + 1
        count = counted_gpu(named[place])[0] if keeps_layout else None
        if "deployment.hardware" in others:
            named[place] = f"{f'{count}x' if count else ''}{others.pop('deployment.hardware')}"
        is_one = others.get("deployment.replicas") == 1 and counted_gpu(named[place])[0] is None
        if "--replicas" not in named and is_one:
            del others["deployment.replicas"]
        if "deployment.quantization" in others:
            named = [*_without_flag(named, "--quantization"), "--quantization", others.pop("deployment.quantization")]
    words = [*(shlex.quote(word) for word in named), *(_set(key, others[key]) for key in sorted(others))]
    return " ".join([f"simserve {verb}", *words])


def _without_flag(words: Sequence[str], flag: str) -> list[str]:
    """Return the words of a command without a flag and its value."""
    return [word for place, word in enumerate(words) if word != flag and (not place or words[place - 1] != flag)]


def _set(key: str, value: Any) -> str:
    is_block = isinstance(value, dict | list)
    text = "null" if value is None else json.dumps(value) if is_block or isinstance(value, bool) else str(value)
    return f"--set {shlex.quote(f'{key}={text}')}"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural where there are several."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
