"""What a call does, which of its limits its seconds are booked to, and the element-wise kernels.

Knows no model, no engine and no GEMM curve.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simserve.perf.efficiency import Array, Machine, memory_efficiency, start_latency

PART_NAMES = ("weights", "kv", "compute", "communication", "host")
"""What the seconds of a step are spent on: reading weights, reading KV, arithmetic with activations, links between
GPUs, the host with the start-up of kernels."""

WEIGHTS, KV, COMPUTE, COMMUNICATION, HOST = range(len(PART_NAMES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one call does, for every number of tokens at once.

    Attributes:
        flops: Floating point operations, a multiply-add counts two.
        weight_bytes: Bytes of weights read, group scales included.
        activation_bytes: Bytes of activations read and written.
    """

    flops: Array
    weight_bytes: Array
    activation_bytes: Array


def roofline_seconds(
    flops: Array | float,
    num_bytes: Array | float,
    *,
    flops_per_second: Array | float,
    bytes_per_second: float,
) -> Array:
    """Return ``max(flops / flops_per_second, bytes / bytes_per_second)``: no start-up, no efficiency."""
    return np.maximum(np.asarray(flops) / flops_per_second, np.asarray(num_bytes) / bytes_per_second)


def arithmetic_intensity(work: Work) -> Array:
    """Return the FLOP a byte of a call; below the ridge point (peak over bandwidth) memory binds."""
    return work.flops / (work.weight_bytes + work.activation_bytes)


def bound_parts(work: Work, *, arithmetic: Array, memory: Array, total: Array) -> Array:
    """Return the seconds of a call by part, shape ``[5, tokens]`` (rows as in `PART_NAMES`).

    Where the bytes take longer than the arithmetic, the weights get the time of their bytes, the activations theirs
    (as compute), and what is left, start-up and gaps, is the host's. Else all is compute: arithmetic, and what tiles
    and imperfect overlap cost.

    Args:
        work: Bytes of the call.
        arithmetic: Seconds of the flops alone.
        memory: Seconds of the bytes alone; at most ``total``.
        total: Seconds of the call.
    """
    parts = np.zeros((len(PART_NAMES), len(total)))
    share = work.weight_bytes / (work.weight_bytes + work.activation_bytes)
    is_memory_bound = memory > arithmetic
    parts[WEIGHTS] = np.where(is_memory_bound, memory * share, 0.0)
    parts[COMPUTE] = np.where(is_memory_bound, memory * (1.0 - share), total)
    parts[HOST] = total - parts[WEIGHTS] - parts[COMPUTE]
    return parts


def elementwise_parts(bytes_per_token: float, tokens: Array, machine: Machine, calls: int = 1) -> Array:
    """Return the seconds by part of ``calls`` memory-bound kernels that move ``bytes_per_token`` in all.

    Norms, activations, rotary embedding, residuals, quantisation of activations: their flops never bind.
    """
    memory = bytes_per_token * tokens / (machine.bandwidth * memory_efficiency(machine, "elementwise"))
    parts = np.zeros((len(PART_NAMES), len(tokens)))
    parts[COMPUTE] = memory
    parts[HOST] = calls * start_latency(machine, "elementwise")
    return parts
