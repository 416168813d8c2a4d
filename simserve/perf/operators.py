"""The one time formula of every operator, and where its seconds are booked.

``seconds = latency + max(flops / (peak * compute share), bytes / (bandwidth * memory share))``: the roofline
of Williams, Waterman and Patterson (2009) with a start-up time. Knows no model and no engine.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simserve.perf.efficiency import (
    Array,
    Machine,
    OperatorClass,
    compute_efficiency,
    memory_efficiency,
    start_latency,
)

PART_NAMES = ("weights", "kv", "compute", "communication", "host")
"""What the seconds of a step are spent on: reading weights, reading KV, arithmetic with activations and
start-up times, links between GPUs, the host."""

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


def operator_parts(
    work: Work,
    machine: Machine,
    *,
    operator: OperatorClass,
    dtype: str,
    rows: Array,
    compute_share: float = 1.0,
) -> Array:
    """Return the seconds of a call by part, shape ``[5, len(rows)]`` (rows as in `PART_NAMES`).

    What binds gets the seconds: flops go to compute; bytes go to weights and, for activations, to compute in
    proportion. The start-up time is compute.

    Args:
        work: Flops and bytes.
        machine: The GPU it runs on.
        operator: Class that the efficiencies are looked up by.
        dtype: Arithmetic dtype; of no account where ``work.flops`` is 0.
        rows: Size that the compute efficiency depends on.
        compute_share: Further share of the peak, for kernels that also unpack their weights.
    """
    num_bytes = work.weight_bytes + work.activation_bytes
    memory_seconds = num_bytes / (machine.bandwidth * memory_efficiency(machine, operator))
    parts = np.zeros((len(PART_NAMES), len(rows)))
    if operator == "elementwise":
        parts[COMPUTE] = start_latency(machine, operator) + memory_seconds
        return parts
    efficiency = compute_efficiency(machine, operator, dtype, rows) * compute_share
    compute_seconds = work.flops / (machine.peak(dtype) * efficiency)
    bound_by_memory = memory_seconds > compute_seconds
    weights = np.where(bound_by_memory, memory_seconds * (work.weight_bytes / num_bytes), 0.0)
    parts[WEIGHTS] = weights
    parts[COMPUTE] = start_latency(machine, operator) + np.maximum(memory_seconds, compute_seconds) - weights
    return parts


def elementwise_parts(bytes_per_token: float, tokens: Array, machine: Machine, calls: int = 1) -> Array:
    """Return the seconds by part of ``calls`` memory-bound kernels that move ``bytes_per_token`` in all.

    Norms, activations, rotary embedding, residuals, quantisation of activations: their flops never bind.
    """
    zero = np.zeros(len(tokens))
    work = Work(flops=zero, weight_bytes=zero, activation_bytes=bytes_per_token * tokens)
    parts = operator_parts(work, machine, operator="elementwise", dtype="", rows=tokens)
    parts[COMPUTE] += (calls - 1) * start_latency(machine, "elementwise")
    return parts
