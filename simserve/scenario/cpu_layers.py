"""Layers and experts that llama.cpp and Ollama leave to the CPU by themselves, where the GPU has no room for all.

Knows which options say so and in which order engines try them; the bytes are those of `simserve.perf.memory`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from simserve.perf.memory import CHOSEN, MemoryPlan, cut_source, uncut_context, with_source
from simserve.perf.shape import ReplicaShape

GPU_LAYERS = ("n_gpu_layers", "num_gpu")
"""Options that leave layers to the CPU."""
ON_CPU = (*GPU_LAYERS, "n_cpu_moe")
"""Options by which the CPU computes a part of the model."""
LEAST_CONTEXT = 4096
"""Tokens to which llama.cpp shortens a context that nobody set, before it moves anything (its ``--fit-ctx``)."""


def with_cpu_layers(plan: MemoryPlan, at: Callable[[dict[str, int]], MemoryPlan], *, is_length_set: bool) -> MemoryPlan:
    """Return the memory plan with what does not fit moved to the CPU, as an engine with `cpu_layers` does by itself.

    Ollama keeps its context and moves layers. llama.cpp shortens a context that nobody set, to 4,096 tokens at the
    least, then moves routed experts, then layers (pull request 16653). Both do so only if no number of layers is set;
    here it is done on one GPU with a memory of its own. A plan that fits, or that nothing makes fit, stays.

    Args:
        plan: The memory as asked for, with a default context cut to what fits.
        at: Returns the memory with options of the engine set, by their names.
        is_length_set: Whether somebody set the context, so that it is not shortened.
    """
    engine, whole = plan.shape.engine, uncut_context(plan.shape.engine)
    is_kept = is_length_set or engine.cpu_layers == "before_context"
    needed = whole if is_kept else min(whole, LEAST_CONTEXT)
    if not _moves(plan.shape) or (plan.fits and plan.max_model_len >= needed):
        return plan
    length = {"max_model_len": needed} if needed < whole else {}
    for key, values in _ways(plan.shape):
        found = _mildest([{key: value, **length} for value in values], at)
        if found is None:
            continue
        shape = with_source(found.shape, key, CHOSEN)
        if length:
            shape = with_source(
                shape, "max_model_len", cut_source(engine, "the least, before anything is left to the CPU")
            )
        return replace(found, shape=shape)
    return plan


def _moves(shape: ReplicaShape) -> bool:
    is_asked = any(getattr(shape.engine, key) is not None for key in ON_CPU)
    has_own_memory = shape.hardware.host_link.kind != "unified"
    return shape.num_gpus == 1 and has_own_memory and not is_asked


def _ways(shape: ReplicaShape) -> Iterator[tuple[str, Sequence[int]]]:
    """Yield options and their values, what costs least of the speed first."""
    layers = shape.model.num_hidden_layers
    if "n_cpu_moe" in shape.engine.features and shape.model.moe is not None:
        yield "n_cpu_moe", range(1, layers + 1)
    for key in GPU_LAYERS:
        if key in shape.engine.features:
            yield key, range(layers - 1, 0, -1)


def _mildest(choices: Sequence[dict[str, int]], at: Callable[[dict[str, int]], MemoryPlan]) -> MemoryPlan | None:
    """Return the memory with the first of the choices that fits; None if none does.

    Each takes less of the GPU than the one before it, and more of the host's memory.
    """

    def is_enough(options: dict[str, int]) -> bool:
        plan = at(options)
        return plan.fits or plan.host_bytes > plan.shape.hardware.host_of_node.memory_total

    place = bisect_left(choices, True, key=is_enough)
    plan = at(choices[place]) if place < len(choices) else None
    return plan if plan is not None and plan.fits else None
