"""Which scenarios the proofs of `simserve.planner.search.bound` cover: all that they use is known to them."""

from __future__ import annotations

import dataclasses

from simserve.scenario.schema import Scenario
from simserve.workload.requests import RequestSpecs

_KNOWN_BLOCKS = {"name", "model", "deployment", "workload", "slo", "thresholds", "pricing", "run", "cost"}
_KNOWN_DEPLOYMENT = {
    "hardware",
    "replicas",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "enable_expert_parallel",
    "quantization",
    "kv_cache_dtype",
    "attention",
    "engine",
    "routing",
    "admission",
    "autoscaling",
    "faults",
    "encoder_disaggregation",
}
_LOSING_DEPLOYMENT = {"admission", "autoscaling", "faults"}
"""Requests may be refused or cut off."""
_KNOWN_ENGINE = {
    "name",
    "version",
    "batching",
    "scheduler",
    "scheduling_policy",
    "priority_ageing",
    "priority_preemption",
    "admission",
    "kv_allocation",
    "max_num_seqs",
    "max_num_batched_tokens",
    "enable_chunked_prefill",
    "enable_prefix_caching",
    "gpu_memory_utilization",
    "block_size",
    "max_model_len",
    "async_scheduling",
    "sampling",
    "endpoint",
    "frontend_latency",
}
_KNOWN_WORKLOAD = {
    "arrivals",
    "prompt_tokens",
    "output_tokens",
    "max_tokens",
    "num_requests",
    "duration",
    "trace",
    "classes",
    "images",
    "audio",
}
_KNOWN_COLUMNS = {
    "arrival_time",
    "prompt_tokens",
    "output_tokens",
    "max_tokens",
    "think_time",
    "concurrency",
    "is_stationary",
    "offered_rate",
    "seed",
    "replication",
    "classes",
    "request_class",
    "priority",
    "recorded_images",
    "recorded_audio",
    "counts_media",
    *("images", "audio", "encoder_seconds", "encoder_pool", "own_wait"),
}
"""The last five with images and recordings: their tokens are in ``prompt_tokens``, the rest only takes longer."""


def is_covered(scenario: Scenario, specs: RequestSpecs) -> bool:
    """Return whether the proofs hold for everything the scenario uses.

    A key that they do not know of, with another value than its default, switches them off: shared prefixes compute
    fewer tokens, speculation gives several a step, a second pool prefills elsewhere, an API serves some.

    What refuses, cuts off or repeats requests is covered: those that meet their limits are computed whole, by one of
    the replicas, between their first arrival and their deadline, whatever becomes of the others; and a fleet that is
    scaled never has more than its most replicas. Only where the measured window may start late, behind any number of
    refused requests, nothing is known of how many it holds.
    """
    used = scenario.model_dump(exclude_unset=True, exclude_defaults=True)
    deployment = used["deployment"]
    known = (
        (used, _KNOWN_BLOCKS),
        (deployment, _KNOWN_DEPLOYMENT),
        (deployment.get("engine") or {}, _KNOWN_ENGINE),
        (used["workload"], _KNOWN_WORKLOAD),
    )
    if any(set(block) - keys for block, keys in known):
        return False
    if scenario.workload.has_media and specs.images is None and specs.audio is None:
        return False
    if specs.is_stationary and scenario.run.warmup != "none" and _may_lose(scenario):
        return False
    columns = {each.name: getattr(specs, each.name) for each in dataclasses.fields(specs)}
    return all(name in _KNOWN_COLUMNS or _is_unused(value) for name, value in columns.items())


def _is_unused(value: object) -> bool:
    is_empty = isinstance(value, tuple) and not value
    return value is None or is_empty or (isinstance(value, float) and value == 0.0)


def _may_lose(scenario: Scenario) -> bool:
    deployment = scenario.deployment
    patience = [each.timeout for each in scenario.workload.classes or ()]
    return any(getattr(deployment, key) for key in _LOSING_DEPLOYMENT) or any(each is not None for each in patience)
