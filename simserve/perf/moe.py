"""Mixture-of-experts layers under tensor parallelism: which experts a step reads, and the grouped GEMM.

Routing is taken as uniform; every rank holds a slice of every expert. Expert parallelism and skewed routing
are not modelled here.
"""

from __future__ import annotations

import numpy as np

from simserve.perf.efficiency import Array
from simserve.perf.gemm import ACTIVATION_BYTES
from simserve.perf.operators import Work


def expected_distinct_experts(num_experts: int, num_experts_per_tok: int, tokens: Array | float) -> Array:
    """Return the expected number of experts that at least one of ``tokens`` is routed to.

    ``E (1 - (1 - k/E)^M)``: each token picks k of E experts, uniformly and independently of the others.
    """
    missed = 1.0 - num_experts_per_tok / num_experts
    return num_experts * (1.0 - np.power(missed, np.asarray(tokens, dtype=np.float64)))


def rows_per_expert(num_experts: int, num_experts_per_tok: int, tokens: Array) -> Array:
    """Return the mean rows that an expert which is used at all multiplies."""
    return tokens * num_experts_per_tok / expected_distinct_experts(num_experts, num_experts_per_tok, tokens)


def grouped_gemm_work(
    tokens: Array,
    out_features: float,
    in_features: float,
    *,
    num_experts: int,
    num_experts_per_tok: int,
    weight_bits: float,
    input_bytes: float = ACTIVATION_BYTES,
) -> Work:
    """Return flops and bytes of one projection of all routed experts on one rank.

    Every token is multiplied by k experts; weights are read once for each distinct expert.
    """
    weights = float(out_features) * float(in_features)
    distinct = expected_distinct_experts(num_experts, num_experts_per_tok, tokens)
    rows = tokens * num_experts_per_tok
    return Work(
        flops=2.0 * weights * rows,
        weight_bytes=distinct * weights * weight_bits / 8,
        activation_bytes=rows * (in_features * input_bytes + out_features * ACTIVATION_BYTES),
    )
