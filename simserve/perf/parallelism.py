"""Pipeline stages: which layers they hold, what they idle, and rounds of micro-batches. Knows no hardware."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simserve.errors import InputError
from simserve.perf.efficiency import Array


def pipeline_bubble(stages: int, micro_batches: int) -> float:
    """Return the share of time that stages idle, ``(p - 1) / (m + p - 1)`` (GPipe, Huang et al. 2019).

    Args:
        stages: Pipeline stages p.
        micro_batches: Micro-batches m that pass once, one behind the other.

    Raises:
        InputError: Either is below 1.
    """
    for key, value in (("stages", stages), ("micro_batches", micro_batches)):
        if value < 1:
            raise InputError("must be >= 1", key=key, value=value)
    return (stages - 1) / (micro_batches + stages - 1)


def layers_per_stage(num_layers: int, stages: int, partition: Sequence[int] | None = None) -> tuple[int, ...]:
    """Return the layers of each stage: as asked, else as vLLM deals them.

    vLLM gives each stage ``layers // stages`` and one more to as many as remain, from the last but one backwards:
    the last holds the LM head too (vLLM distributed/utils.py, get_pp_indices; before 0.7 the last took them all).

    Raises:
        InputError: There are more stages than layers, or the partition has another length or sum, or an empty stage.
    """
    if not 1 <= stages <= num_layers:
        rule = f"must lie between 1 and the {num_layers} layers of the model"
        raise InputError(rule, key="pipeline_parallel_size", value=stages)
    if partition is None:
        each, rest = divmod(num_layers, stages)
        return tuple(each + (stages - 1 - rest <= index < stages - 1) for index in range(stages))
    layers, key = tuple(partition), "pipeline_layer_partition"
    if len(layers) != stages:
        rule = f"must have one number for each of the {stages} stages of pipeline_parallel_size"
        raise InputError(rule, key=key, value=list(layers))
    if sum(layers) != num_layers or min(layers) < 1:
        rule = f"must be numbers of at least 1 that add up to the {num_layers} layers of the model, not {sum(layers)}"
        raise InputError(rule, key=key, value=list(layers))
    return layers


def rounds(groups: Array, layers: Sequence[int]) -> Array:
    """Return how long a round of decoding takes, in times of the stage with the most layers.

    ``max(all layers, groups * most layers) / most layers``: a group passes every stage, and the slowest stage serves
    every group.

    Args:
        groups: Groups in flight.
        layers: Layers of each stage.
    """
    return np.maximum(float(sum(layers)), groups * float(max(layers))) / max(layers)


def exposed_head(head_seconds: Array, stage_seconds: Array, layers: Sequence[int]) -> Array:
    """Return the share of the LM head's time that a pipeline waits for.

    The head stands behind the layers of the last stage. Where that has fewer than the fullest, the head fills the
    difference, and only what is longer shows.

    Args:
        head_seconds: Of LM head and sampling.
        stage_seconds: Of the stage with the most layers.
        layers: Layers of each stage.
    """
    slack = stage_seconds * (1.0 - layers[-1] / max(layers))
    return np.asarray(np.maximum(head_seconds - slack, 0.0) / np.maximum(head_seconds, np.finfo(float).tiny))


def micro_batch(total: Array, stages: int) -> Array:
    """Return the tokens of one micro-batch when ``total`` are spread over ``stages``, at least one."""
    return np.maximum(total / stages, 1.0)


def num_micro_batches(sequences: Array, stages: int) -> Array:
    """Return how many of the ``stages`` groups in flight hold a sequence."""
    return np.minimum(sequences, float(stages))
