"""Flops and bytes of matrix products with weights: ``y[m, n] = x[m, k] W[k, n]``."""

from __future__ import annotations

import numpy as np

from simserve.perf.efficiency import Array
from simserve.perf.operators import Work

ACTIVATION_BYTES = 2.0
"""Bytes of an activation element: engines keep them in 16 bit."""


def gemm_work(
    rows: Array,
    out_features: float,
    in_features: float,
    *,
    weight_bits: float,
    input_bytes: float = ACTIVATION_BYTES,
) -> Work:
    """Return flops ``2 m n k``, weight bytes ``n k bits / 8`` and activation bytes of inputs and outputs.

    Args:
        rows: Tokens m.
        out_features: Columns n of the weight, on one rank.
        in_features: Rows k of the weight, on one rank.
        weight_bits: Bits a weight with its share of group scales.
        input_bytes: Bytes of an input element; outputs are 16 bit.
    """
    weights = float(out_features) * float(in_features)
    return Work(
        flops=2.0 * weights * rows,
        weight_bytes=np.full(len(rows), weights * weight_bits / 8),
        activation_bytes=rows * (in_features * input_bytes + out_features * ACTIVATION_BYTES),
    )
