"""Seconds of Mamba-2 layers beside their projections: the scan of prompts, and states that decode. Rooflines.

Dao and Gu, "Transformers are SSMs" (arXiv 2405.21060), section 6: prompts pass in chunks, whose tokens attend to each
other and to the state before them; a decode step reads and writes the state of every head. Nothing here was fitted:
arithmetic at the share of the peak that attention reaches, bytes at that of other kernels.
"""

from __future__ import annotations

import numpy as np

from simserve.perf.efficiency import Array, Machine, attention_efficiency, memory_efficiency, start_latency
from simserve.perf.gemm import ACTIVATION_BYTES
from simserve.perf.operators import COMPUTE, HOST, elementwise_parts
from simserve.profiles.model import Mamba2

SMALL_CALLS = 3
"""Element-wise kernels of a layer: splitting the projection, the convolution, the gated norm."""

SCAN_CALLS = 5
"""Kernels of the scan: sums of the time steps, states of the chunks, passing them on, scores, outputs
(``mamba_chunk_scan_combined`` of state-spaces/mamba, which vLLM and SGLang carry)."""

SCAN_STATE_BYTES = 4.0
"""Bytes of an element of a chunk's state: FP32, whatever the cache holds."""

SCAN_STATE_PASSES = 4.0
"""Times it moves: written, read and written in passing it on, read by the outputs."""


def scan_flops(mamba: Mamba2) -> float:
    """Return the FLOP of a token of a prompt in all heads of one layer, a multiply-add counting two.

    Scores of a chunk once a group, their products with values, and two products with the state; the masked half of the
    scores is computed too.
    """
    scores = 2.0 * mamba.num_groups * mamba.chunk_size * mamba.state_size
    values = 2.0 * mamba.inner_width * mamba.chunk_size
    return scores + values + 4.0 * mamba.state_elements


def scan_bytes(mamba: Mamba2) -> float:
    """Return the bytes that a token of a prompt moves in the scan of one layer: inputs, outputs, states of chunks."""
    activations = 2.0 * (mamba.mixed_width + mamba.inner_width) * ACTIVATION_BYTES
    return activations + SCAN_STATE_PASSES * SCAN_STATE_BYTES * mamba.state_elements / mamba.chunk_size


def mamba_parts(mamba: Mamba2, machine: Machine, tokens: Array, num_ranks: int, *, has_prompts: bool) -> Array:
    """Return the seconds by part of one layer beside its projections, ``[5, len(tokens)]``; states left out.

    Args:
        mamba: The layer.
        machine: One GPU.
        tokens: Tokens of a step.
        num_ranks: Ranks that the heads are dealt to.
        has_prompts: Whether the tokens are those of prompts, which pass the scan.
    """
    width = (mamba.mixed_width + mamba.inner_width) / num_ranks
    parts = elementwise_parts(2 * SMALL_CALLS * width * ACTIVATION_BYTES, tokens, machine, SMALL_CALLS)
    if has_prompts:
        dtype = "bf16" if "bf16" in machine.peaks else "fp16"
        arithmetic = scan_flops(mamba) / (machine.peak(dtype) * attention_efficiency(machine))
        memory = scan_bytes(mamba) / (machine.bandwidth * memory_efficiency(machine, "elementwise"))
        parts[HOST] += SCAN_CALLS * start_latency(machine, "elementwise")
        parts[COMPUTE] += tokens * max(arithmetic, memory) / num_ranks
    return parts


def mamba_state_seconds(
    mamba: Mamba2,
    machine: Machine,
    sequences: Array,
    num_ranks: int,
    tokens_per_sequence: int = 1,
    *,
    has_start: bool = True,
) -> Array:
    """Return the seconds of updating the states of decoding sequences in one layer, shape of ``sequences``.

    Each state is read once and written for every token that is computed.

    Args:
        mamba: The layer.
        machine: One GPU.
        sequences: Sequences that decode.
        num_ranks: Ranks that the heads are dealt to.
        tokens_per_sequence: Tokens of each that are computed; each leaves a state of its own.
        has_start: Whether the kernel's start counts.
    """
    moved = (1 + tokens_per_sequence) * mamba.state_elements * mamba.state_element_bytes / num_ranks
    start = start_latency(machine, "elementwise") if has_start else 0.0
    bandwidth = machine.bandwidth * memory_efficiency(machine, "elementwise")
    return np.where(sequences > 0, start + sequences * moved / bandwidth, 0.0)
