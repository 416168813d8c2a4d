"""Why a deployment does not fit, and what would: the arithmetic, more GPUs, fewer bits, shorter requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from simserve.errors import InfeasibleError, InputError
from simserve.perf.memory import MemoryPlan, plan_memory
from simserve.perf.shape import ReplicaShape
from simserve.perf.windowed_kv import pool_block_bytes
from simserve.profiles.checkpoint import WIDE_FORMATS
from simserve.profiles.quality import published_quality
from simserve.scenario.formats import formats_available
from simserve.scenario.kv_offload import offload_lines
from simserve.scenario.resolve import ResolvedScenario, leading_warnings, replica_shape
from simserve.scenario.schema import Scenario

_LARGEST_TENSOR_PARALLEL = 64
_GPU_LAYERS = ("n_gpu_layers", "num_gpu")
"""Options that leave layers to the CPU, of engines that have them: the most layers on the GPU first."""
_LIMITS = ("max_num_batched_tokens", "max_num_seqs")
"""Limits that activations grow with; blamed only where the scenario sets them itself."""


def check_fit(resolved: ResolvedScenario) -> None:
    """Do nothing if the deployment fits.

    Raises:
        InfeasibleError: It does not; the message carries the arithmetic and what would fit.
    """
    if not resolved.memory.fits:
        raise InfeasibleError(_reason(resolved), remedy=_remedy(resolved))


def remedies(resolved: ResolvedScenario) -> list[str]:
    """Return changes of one key that make the deployment fit, as ``KEY=VALUE``, the mildest of each kind."""
    found = [next(_fitting(resolved.scenario, variants), None) for variants in _variants(resolved)]
    return [change for change in found if change is not None]


def _reason(resolved: ResolvedScenario) -> str:
    memory, shape = resolved.memory, resolved.shape
    arithmetic = "; ".join(memory.arithmetic)
    if memory.longest_sequence == 0:
        return f"{shape.model.name} does not fit on {shape.num_gpus} x {shape.hardware.name} ({arithmetic})"
    return (
        f"KV cache smaller than one full-length request of {memory.max_model_len:,} tokens: the longest that "
        f"fits is {memory.longest_sequence:,} ({arithmetic})"
    )


def _remedy(resolved: ResolvedScenario) -> str:
    changes = remedies(resolved)
    if not changes:
        return "no change of one key makes it fit; take a GPU with more memory"
    return "what fits: --set " + " or --set ".join(changes)


def _variants(resolved: ResolvedScenario) -> Iterator[list[tuple[str, Any]]]:
    size = resolved.shape.tensor_parallel_size
    sizes = [size * factor for factor in (2, 4, 8, 16, 32) if size * factor <= _LARGEST_TENSOR_PARALLEL]
    yield [("tensor_parallel_size", each) for each in sizes]
    shape = resolved.shape
    known = [each.format for each in formats_available(shape.model, shape.engine, shape.hardware)]
    yield [("quantization", each) for each in known if each != shape.quantization and each not in WIDE_FORMATS]
    if resolved.memory.longest_sequence >= 2:
        yield [("engine.max_model_len", resolved.memory.longest_sequence)]
    asked = resolved.scenario.deployment.engine.overrides()
    if resolved.shape.num_gpus == 1:
        layers = resolved.shape.model.num_hidden_layers
        for key in (each for each in _GPU_LAYERS if each in resolved.shape.engine.features):
            yield [(f"engine.{key}", each) for each in range(layers - 1, 0, -1)]
    yield from _smaller_caches(resolved)
    for key in _LIMITS:
        below = int(asked.get(key, 1)) - 1
        yield [(f"engine.{key}", 2**power) for power in reversed(range(below.bit_length()))]


def _smaller_caches(resolved: ResolvedScenario) -> Iterator[list[tuple[str, Any]]]:
    """Yield the largest KV cache that there is room for, where the scenario sets its size."""
    engine, memory = resolved.shape.engine, resolved.memory
    room = memory.total_bytes - sum(value for name, value in memory.parts.items() if name not in ("kv", "unused"))
    block_bytes = pool_block_bytes(resolved.shape, memory.draft_kv_bytes_per_token)
    block_bytes = memory.kv_bytes_per_token * memory.block_size if block_bytes is None else block_bytes
    for key, unit in (("num_gpu_blocks_override", block_bytes), ("kv_cache_memory_bytes", 1.0)):
        most = int(room // unit)
        if getattr(engine, key) is not None and most > 0:
            yield [(f"engine.{key}", most)]


def _fitting(scenario: Scenario, variants: list[tuple[str, Any]]) -> Iterator[str]:
    for key, value in variants:
        plan = _plan(scenario, key, value)
        if plan is not None and plan.fits:
            yield f"deployment.{key}={value}"


def _plan(scenario: Scenario, key: str, value: Any) -> MemoryPlan | None:
    """Return the memory of the scenario with one key changed, None where it cannot be deployed so."""
    deployment = scenario.deployment
    if key.startswith("engine."):
        engine = deployment.engine.model_copy(update={key.removeprefix("engine."): value})
        changed = deployment.model_copy(update={"engine": engine})
    else:
        changed = deployment.model_copy(update={key: value})
    try:
        return plan_memory(replica_shape(scenario.model_copy(update={"deployment": changed})))
    except InputError:
        return None


def quality_of(shape: ReplicaShape) -> list[dict[str, Any]]:
    """Return what is published of the quality that the deployment's number formats cost."""
    return published_quality(shape.quantization, shape.kv_cache_dtype, shape.model.num_parameters / 1e9)


def memory_report(resolved: ResolvedScenario) -> dict[str, Any]:
    """Return what `simserve memory` answers, as plain values; bytes are those of the fullest GPU."""
    from simserve.scenario.limits import open_limits

    memory, shape = resolved.memory, resolved.shape
    return {
        "warnings": leading_warnings(resolved.scenario),
        "fits": memory.fits,
        "model": shape.model.name,
        "hardware": shape.hardware.name,
        "num_gpus": resolved.num_gpus,
        "formats": resolved.formats,
        "total_bytes": memory.total_bytes,
        "usable_bytes": memory.usable_bytes,
        "weights_bytes": memory.weights_bytes,
        "draft_weights_bytes": memory.draft_weights_bytes,
        "states_bytes": memory.states_bytes,
        "activation_bytes": memory.activation_bytes,
        "non_torch_bytes": memory.non_torch_bytes,
        "cuda_graph_bytes": memory.cuda_graph_bytes,
        "kv_bytes": memory.kv_bytes,
        "kv_bytes_per_token": memory.kv_bytes_per_token,
        "draft_kv_bytes_per_token": memory.draft_kv_bytes_per_token,
        "block_size": memory.block_size,
        "num_kv_blocks": memory.num_kv_blocks,
        "max_model_len": memory.max_model_len,
        "longest_sequence": memory.longest_sequence,
        "host_bytes": memory.host_bytes,
        "max_concurrent_full_length": memory.max_concurrent_full_length,
        "parts": dict(memory.parts),
        "arithmetic": [
            *memory.arithmetic,
            *offload_lines(resolved.engine, memory.kv_bytes_per_token * shape.num_gpus),
        ],
        "open_limits": open_limits(resolved),
        "quality": quality_of(shape),
        "what_fits": [] if memory.fits else remedies(resolved),
        "engine_resolved": shape.engine.model_dump(),
    }
