"""Reductions and the norms around them: in one kernel, and over the heads of all ranks. Knows no layer's other work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simserve.perf.collectives import Link, all_reduce_seconds
from simserve.perf.efficiency import Array
from simserve.perf.gemm import ACTIVATION_BYTES
from simserve.perf.shape import ReplicaShape

FUSED_BYTES: Mapping[int, float] = {2: 64 * 2.0**20, 4: 2 * 2.0**20, 8: 2.0**19}
"""Tensor-parallel ranks -> largest message of a fused all-reduce, bytes: vLLM 0.16 on Hopper
(compilation/passes/fusion/allreduce_rms_fusion.py, FI_ALLREDUCE_FUSION_MAX_SIZE_MB; Blackwell's are larger)."""

FUSED_KERNELS = "tensorrt-llm"
"""Whose all-reduce the fused kernel is: FlashInfer's ``trtllm_allreduce_fusion``."""

SUMS_BYTES = 8.0
"""Bytes a token of the sums of squares of queries and keys, in FP32."""

FIRST_FUSED_CAPABILITY = 9.0
"""CUDA compute capability from which engines fuse them (Hopper)."""


def has_fused_all_reduce(shape: ReplicaShape, tokens: Array) -> NDArray[np.bool_]:
    """Return for each number of tokens whether all-reduce, residual and norm are one kernel."""
    capability = float(shape.hardware.compute_capability or 0.0)
    limit = FUSED_BYTES.get(shape.tensor_parallel_size, 0.0)
    is_fusing = shape.engine.fuses_all_reduce_norm and capability >= FIRST_FUSED_CAPABILITY
    return np.asarray((tokens * shape.model.hidden_size * ACTIVATION_BYTES <= limit) & is_fusing)


def reduction_seconds(
    shape: ReplicaShape, tokens: Array, norm_start: float, all_reduce: Callable[[Array, Link], Array]
) -> Array:
    """Return the seconds of one all-reduce of the tokens' hidden states.

    Args:
        shape: The deployment.
        tokens: Tokens of the step.
        norm_start: What starting the norm behind it takes, which is saved where it is in the same kernel.
        all_reduce: Seconds of a message over a link.
    """
    message = tokens * shape.model.hidden_size * ACTIVATION_BYTES
    seconds = all_reduce(message, shape.tensor_link)
    is_fused = has_fused_all_reduce(shape, tokens)
    if not is_fused.any():
        return seconds
    fused = all_reduce(message, replace(shape.tensor_link, engine=FUSED_KERNELS)) - norm_start
    return np.where(is_fused, np.clip(fused, 0.0, seconds), seconds)


def head_norm_seconds(shape: ReplicaShape, tokens: Array) -> Array:
    """Return the seconds of adding up the sums of squares of the heads of all ranks, where they have one norm.

    The ranks have had no time to drift apart since the reduction before.
    """
    if shape.model.qk_norm != "full":
        return np.zeros(len(tokens))
    together = replace(shape.tensor_link, skew=0.0)
    return all_reduce_seconds(SUMS_BYTES * tokens, shape.tensor_parallel_size, together)
