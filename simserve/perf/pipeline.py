"""How long pipeline stages take together: idle shares, rounds of decoding, micro-batches, the LM head at the end.

Plain arithmetic; the layers of each stage are in `simserve.perf.shape`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simserve.errors import InputError
from simserve.perf.efficiency import Array


def pipeline_bubble(stages: int, micro_batches: int) -> float:
    """Return the share of time that stages are idle, ``(p - 1) / (m + p - 1)`` (GPipe, Huang et al. 2019).

    Args:
        stages: Pipeline stages p.
        micro_batches: Micro-batches m that pass once, one after another.

    Raises:
        InputError: Either is below 1.
    """
    for key, value in (("stages", stages), ("micro_batches", micro_batches)):
        if value < 1:
            raise InputError("must be >= 1", key=key, value=value)
    return (stages - 1) / (micro_batches + stages - 1)


def rounds(groups: Array, layers: Sequence[int]) -> Array:
    """Return the time of a round of decoding, in multiples of the time of the stage with the most layers.

    ``max(all layers, groups * most layers) / most layers``: a group passes every stage, and the slowest stage serves
    every group.

    Args:
        groups: Groups in flight.
        layers: Layers of each stage.
    """
    return np.maximum(float(sum(layers)), groups * float(max(layers))) / max(layers)


def exposed_head(head_seconds: Array, stage_seconds: Array, layers: Sequence[int]) -> Array:
    """Return the share of the LM head's time that a pipeline waits for.

    The head follows the layers of the last stage. If that stage has fewer layers than the largest, the head first fills
    the difference, and only the excess shows.

    Args:
        head_seconds: Time of LM head and sampling.
        stage_seconds: Time of the stage with the most layers.
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
