"""What pipeline stages cost: idle time, and rounds of micro-batches. Knows no hardware."""

from __future__ import annotations

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


def micro_batch(total: Array, stages: int) -> Array:
    """Return the tokens of one micro-batch when ``total`` are spread over ``stages``, at least one."""
    return np.maximum(total / stages, 1.0)


def num_micro_batches(sequences: Array, stages: int) -> Array:
    """Return how many of the ``stages`` groups in flight hold a sequence."""
    return np.minimum(sequences, float(stages))
