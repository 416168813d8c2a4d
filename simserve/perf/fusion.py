"""All-reduces that take the norm behind them into the same kernel. Knows sizes and engines' rules, no seconds."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from simserve.perf.efficiency import Array
from simserve.perf.gemm import ACTIVATION_BYTES
from simserve.perf.shape import ReplicaShape

FUSED_BYTES: Mapping[int, float] = {2: 64 * 2.0**20, 4: 2 * 2.0**20, 8: 2.0**19}
"""Tensor-parallel ranks -> largest message of a fused all-reduce, bytes: vLLM 0.16 on Hopper
(compilation/passes/fusion/allreduce_rms_fusion.py, FI_ALLREDUCE_FUSION_MAX_SIZE_MB; Blackwell's are larger)."""

FUSED_KERNELS = "tensorrt-llm"
"""Whose all-reduce the fused kernel is: FlashInfer's ``trtllm_allreduce_fusion``."""

FIRST_FUSED_CAPABILITY = 9.0
"""CUDA compute capability from which engines fuse them (Hopper)."""


def has_fused_all_reduce(shape: ReplicaShape, tokens: Array) -> NDArray[np.bool_]:
    """Return for each number of tokens whether all-reduce, residual and norm are one kernel."""
    capability = float(shape.hardware.compute_capability or 0.0)
    limit = FUSED_BYTES.get(shape.tensor_parallel_size, 0.0)
    is_fusing = shape.engine.fuses_all_reduce_norm and capability >= FIRST_FUSED_CAPABILITY
    return np.asarray((tokens * shape.model.hidden_size * ACTIVATION_BYTES <= limit) & is_fusing)
