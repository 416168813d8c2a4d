"""Seconds of linear attention, Mamba-2 and short convolutions besides their projections: scans, and state updates.

Gated DeltaNet (Yang, Kautz and Hatamizadeh, arXiv 2412.06464): a matrix per value head and sequence replaces keys and
values. Prompts pass it in chunks one after another; a decode step reads and writes the whole matrix.

Kimi Delta Attention (arXiv 2510.26692) is the same with a decay for every channel of a key: its prompt kernels have
their own figures, its state updates take the times of Gated DeltaNet.

Lightning attention (arXiv 2401.04658) is simpler, with a token-independent decay and no convolution. Nothing of it was
fitted; its kernels are assumed to be as fast as those of Gated DeltaNet.

Mamba-2 (Dao and Gu, "Transformers are SSMs", arXiv 2405.21060, section 6): prompts pass in chunks, whose tokens attend
to each other and to the state before them; a decode step reads and writes the state of every head. Nothing of it was
fitted: a roofline, with arithmetic at the share of the peak that attention reaches and bytes at that of other kernels.
The same holds for the first Mamba (Gu and Dao, arXiv 2312.00752), whose scan runs without tensor cores.

Throughout, ``machine`` is one GPU, ``tokens`` are those of a step, ``sequences`` those that decode, and ``num_ranks``
are the ranks over which heads or channels are distributed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from simserve.perf.efficiency import Array, Machine, attention_efficiency, memory_efficiency, start_latency
from simserve.perf.gemm import ACTIVATION_BYTES
from simserve.perf.operators import COMPUTE, HOST, elementwise_parts
from simserve.perf.shape import ReplicaShape
from simserve.profiles.state_blocks import LinearAttention, Mamba1, Mamba2, ShortConvolution

CHUNK_TOKENS = 64
"""Tokens of a chunk (flash-linear-attention, ``chunk_gated_delta_rule``, which vLLM and SGLang call)."""
CHUNK_SECONDS = 1.88e-6
"""Seconds from one chunk of a prompt to the next, for any number of heads: 29.4 ns a token of one prompt with 8 value
heads of 128 on an H100, 2,048 to 65,536 tokens (FLA/Triton column of flashinfer pull request 3866)."""
SCAN_START = 26e-6  # Least seconds of the scan's kernels: the same column extrapolated to no tokens.
SCAN_SHARE = 0.09
"""Share of the 16-bit peak that the scan reaches with many heads: 131 ns a token with 64 value heads on an H100, for
one prompt and for eight (flashinfer pull request 3788)."""
KDA_SCAN_SHARE = 0.046
"""The same for Triton's ``chunk_kda``, with the same count of products: 3.18 ms for 8,192 tokens and 96 heads, 4.00 ms
for 4 x 4,096 and 64, on an H800 (flash-linear-attention pull request 915); 1.85 times Gated DeltaNet's kernel on one
GPU (FlagGems-vllm pull request 21)."""
FLASH_KDA_TOKENS = 16  # Tokens per chunk of FlashKDA.
FLASH_KDA_SECONDS = 1.83e-6
"""Seconds from one of its chunks to the next: 8,192 tokens of one prompt with 16 heads in 937.7 us, 4,096 with 8 in
462.8, on an H100 SXM (cudnn-frontend pull request 1017)."""
FLASH_KDA_SHARE = 0.095
"""Share of the 16-bit peak that it reaches with many heads: 8 prompts of 2,048 tokens with 16 heads in 503.0 us on an
H100 SXM (the same), 8,192 tokens with 96 heads in 0.80 times Gated DeltaNet's (FlagGems-vllm pull request 21)."""
FLASH_KDA_SINCE = 9.0
"""CUDA compute capability from which FlashKDA runs: SM90, SM10x, SM12x (vllm pull request 55737)."""
STATE_ELEMENT_SECONDS = 0.6e-12
"""Seconds of a decode step per element of a state besides reading and writing it at the full bandwidth, whatever its
format: the kernel's arithmetic. Median of eight, at least 0.44, at most 0.72; without any one of them 0.54 to 0.62.
Gated DeltaNet, states in 16 bit: 0.72 and 0.70 on an H200, 0.63 and 0.61 on a B200
(``fused_recurrent_gated_delta_rule``, tiles of 32 columns, vllm pull request 31722 after); in 32 bit 0.44 (sglang pull
request 32593, taken for a B200). Kimi Delta Attention in 32 bit: 0.54 on a GB200 (sglang pull request 36304, baseline),
0.61 on an MI355X (vllm pull request 50654, Triton chain), in 16 bit 0.50 (vllm pull request 55364, Triton, taken for 8
TB/s). An A100 has none in one trace (43.6 us for 16 sequences of 32 heads in 32 bit, pegainfer pull request 1054)."""
STATE_START = 9e-6  # Least seconds of that kernel, on either GPU (the same before).
GATHERED_PASSES = 4.0
"""Passes over the states outside the chunk kernel if it also runs decodes: gathered from the cache and scattered back,
each read and written (vLLM at dae956b29dfd, layers/mamba/gdn_linear_attn.py, ``_forward_core``)."""
SMALL_CALLS = 3  # Element-wise kernels per layer: splitting the projections, the convolution, the gated norm.
SCAN_CALLS = 5
"""Kernels of the scan: sums of the time steps, states of the chunks, passing them on, scores, outputs
(``mamba_chunk_scan_combined`` of state-spaces/mamba, included in vLLM and SGLang)."""
SCAN_STATE_BYTES = 4.0  # Bytes per element of a chunk's state: FP32, whatever the cache holds.
SCAN_STATE_PASSES = 4.0  # Passes over it: written, read and written to pass it on, read for the outputs.
SELECTIVE_SCAN_FLOPS = 9.0
"""FLOP per state element and token in the scan of the first Mamba, in FP32 and in one kernel:
``flops_selective_scan_fn`` of MzeroMiko/VMamba, 9 for each of batch, length, channels and states."""
SELECTIVE_SCAN_PASSES = 4.0
"""Vectors of its channels moved by the scan: input, time step and gate are read, the output is written."""
SELECTIVE_NORMS = 3  # Norms of the time step and of both matrices, in Jamba.
CONVOLUTION_PASSES = 8.0
"""Vectors of a short convolution's width moved per token by its kernels: 3 in each product, 2 in the convolution."""


@dataclass(frozen=True, slots=True)
class PromptScan:
    """The prompt kernel of linear attention."""

    chunk_tokens: int = CHUNK_TOKENS  # Tokens per chunk.
    chunk_seconds: float = CHUNK_SECONDS  # Seconds from one chunk of a prompt to the next, for any number of heads.
    share: float = SCAN_SHARE  # Share of the 16-bit peak that it reaches with many heads.


GATED_DELTA = PromptScan()  # The kernel of Gated DeltaNet.


def prompt_scan(shape: ReplicaShape) -> PromptScan:
    """Return the prompt kernel of a deployment in layers of linear attention.

    For Kimi Delta Attention Triton's, or FlashKDA if the engine has it and the GPU and a bounded decay allow it.
    """
    linear = shape.model.linear_attention
    if linear is None or not linear.has_channel_decay:
        return GATED_DELTA
    is_able = float(shape.hardware.compute_capability or 0.0) >= FLASH_KDA_SINCE
    if linear.has_bounded_decay and shape.engine.has_flash_kda and is_able:
        return PromptScan(FLASH_KDA_TOKENS, FLASH_KDA_SECONDS, FLASH_KDA_SHARE)
    return PromptScan(share=KDA_SCAN_SHARE)


def mixing_parts(
    linear: LinearAttention, machine: Machine, tokens: Array, num_ranks: int, *, scan: PromptScan | None
) -> Array:
    """Return the seconds by part of one layer besides its projections, without states, ``[5, len(tokens)]``.

    Args:
        scan: The prompt kernel, as if all tokens were of one prompt; None: the tokens are not of prompts.
    """
    width = (linear.mixed_width + linear.num_value_heads * linear.value_head_dim) / num_ranks
    calls = SMALL_CALLS - 1 if linear.has_fixed_decay else SMALL_CALLS  # no convolution
    parts = elementwise_parts(2 * calls * width * ACTIVATION_BYTES, tokens, machine, calls)
    if scan is not None:
        parts[HOST] += SCAN_START
        chained = scan.chunk_seconds / scan.chunk_tokens
        parts[COMPUTE] += tokens * max(chained, _scan_seconds(linear, machine, num_ranks, scan.share))
    return parts


def _scan_seconds(linear: LinearAttention, machine: Machine, num_ranks: int, share: float) -> float:
    """Return the arithmetic time per prompt token on one rank.

    Three products with the state, and within a chunk three with keys and two with values; a multiply-add counts as two.
    """
    key, value = linear.key_head_dim, linear.value_head_dim
    flops = 2.0 * (3 * key * value + CHUNK_TOKENS * (3 * key + 2 * value)) * linear.num_value_heads / num_ranks
    dtype = "bf16" if "bf16" in machine.peaks else "fp16"
    return flops / (machine.peak(dtype) * share * machine.engine_scale)


def state_seconds(
    linear: LinearAttention,
    machine: Machine,
    sequences: Array,
    num_ranks: int,
    tokens_per_sequence: int = 1,
    *,
    has_start: bool = True,
    element_seconds: float | None = None,
) -> Array:
    """Return the seconds of updating the states of decoding sequences in one layer, shape of ``sequences``.

    Args:
        tokens_per_sequence: Tokens computed for each; each leaves its own state.
        has_start: Whether the kernel's start counts.
        element_seconds: Arithmetic per element that is read and written, seconds; None: `STATE_ELEMENT_SECONDS`.
    """
    computing = STATE_ELEMENT_SECONDS if element_seconds is None else element_seconds
    each = 2.0 * linear.state_element_bytes / machine.bandwidth + computing
    each *= linear.state_elements / num_ranks * (1 + tokens_per_sequence) / 2
    return np.where(sequences > 0, STATE_START * has_start + sequences * each, 0.0)


def chunk_seconds(
    linear: LinearAttention, machine: Machine, sequences: Array, num_ranks: int, scan: PromptScan = GATED_DELTA
) -> Array:
    """Return the seconds of decoding sequences in the chunk kernel in one layer, shape of ``sequences``.

    Each takes its own chunk, padded to ``CHUNK_TOKENS``, of which one token is counted with those of prompts; its state
    is gathered and scattered back. With 64 value heads on Blackwell, 953 of them beside 7,239 tokens of prompts take
    the kernel 4,362 us, 8,192 tokens of a prompt 464 (vllm pull request 44700): 4.1 us each, of which 64 tokens take
    3.6. The rest, states that the kernel reads and writes, is left out. Chunks are Triton's, as for prompts.
    """
    moved = GATHERED_PASSES * linear.state_elements * linear.state_element_bytes / num_ranks
    gathered = moved / (machine.bandwidth * memory_efficiency(machine, "elementwise"))
    padding = (scan.chunk_tokens - 1) * _scan_seconds(linear, machine, num_ranks, scan.share)
    return sequences * (padding + gathered)


def step_state_seconds(shape: ReplicaShape, machine: Machine, sequences: Array, *, is_mixed: bool = False) -> Array:
    """Return the seconds of the states of decoding sequences in a step, including Mamba-2's, shape of ``sequences``.

    Args:
        sequences: Sequences that decode in one pipeline stage; with ``is_mixed``, in all stages.
        is_mixed: Whether the step has prompts: start-up then counts with them, and all stages of a pipeline count. Some
            engines then send decodes without drafts through the prompt kernel.
    """
    linear, mamba = shape.model.linear_attention, shape.model.mamba or shape.model.mamba1
    stages = shape.pipeline_parallel_size
    ranks, width = shape.tensor_parallel_size, shape.tokens_per_decode
    if linear is not None:
        seconds = partial(state_seconds, linear, element_seconds=shape.engine.linear_state_element_seconds)
    elif mamba is not None:
        seconds = partial(mamba_state_seconds, mamba)
    else:
        return np.zeros_like(sequences)
    layers = shape.num_layers_per_stage * shape.model.linear_share
    if not is_mixed:
        return layers * seconds(machine, sequences, ranks, width)
    decoding = np.ceil(sequences / stages)
    if linear is not None and width == 1 and shape.engine.chunks_mixed_decodes:
        return layers * stages * chunk_seconds(linear, machine, decoding, ranks, prompt_scan(shape))
    return layers * stages * seconds(machine, decoding, ranks, width, has_start=False)


def state_layer_parts(shape: ReplicaShape, machine: Machine, tokens: Array, *, has_prompts: bool) -> Array:
    """Return the seconds by part of a layer with a state besides its projections, without states, ``[5, len(tokens)]``.

    Args:
        has_prompts: Whether the tokens are of prompts.
    """
    model, ranks = shape.model, shape.tensor_parallel_size
    if model.linear_attention is not None:
        scan = prompt_scan(shape) if has_prompts else None
        return mixing_parts(model.linear_attention, machine, tokens, ranks, scan=scan)
    if model.mamba is not None:
        return mamba_parts(model.mamba, machine, tokens, ranks, has_prompts=has_prompts)
    if model.mamba1 is not None:
        return selective_scan_parts(model.mamba1, machine, tokens, ranks, has_prompts=has_prompts)
    convolution = model.short_convolution
    assert convolution is not None
    return convolution_parts(convolution, machine, tokens, ranks)


def convolution_parts(convolution: ShortConvolution, machine: Machine, tokens: Array, num_ranks: int) -> Array:
    """Return the seconds by part of a short convolution besides its projections, ``[5, len(tokens)]``.

    Three element-wise kernels (vLLM, layers/mamba/short_conv.py): the first gate times the input, the convolution, the
    second gate times its output. The state, two inputs per channel, is left out.
    """
    moved = CONVOLUTION_PASSES * convolution.width / num_ranks * ACTIVATION_BYTES
    return elementwise_parts(moved, tokens, machine, SMALL_CALLS)


def scan_flops(mamba: Mamba2) -> float:
    """Return the FLOP per prompt token in all heads of one layer; a multiply-add counts as two.

    Scores of a chunk once per group, their products with values, and two products with the state; the masked half of
    the scores is computed too.
    """
    scores = 2.0 * mamba.num_groups * mamba.chunk_size * mamba.state_size
    values = 2.0 * mamba.inner_width * mamba.chunk_size
    return scores + values + 4.0 * mamba.state_elements


def scan_bytes(mamba: Mamba2) -> float:
    """Return the bytes per prompt token moved by the scan of one layer: inputs, outputs, states of chunks."""
    activations = 2.0 * (mamba.mixed_width + mamba.inner_width) * ACTIVATION_BYTES
    return activations + SCAN_STATE_PASSES * SCAN_STATE_BYTES * mamba.state_elements / mamba.chunk_size


def mamba_parts(mamba: Mamba2, machine: Machine, tokens: Array, num_ranks: int, *, has_prompts: bool) -> Array:
    """Return the seconds by part of one layer besides its projections, without states, ``[5, len(tokens)]``.

    Args:
        has_prompts: Whether the tokens are of prompts, which use the scan.
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


def selective_scan_parts(mamba: Mamba1, machine: Machine, tokens: Array, num_ranks: int, *, has_prompts: bool) -> Array:
    """Return the seconds by part of one layer of the first Mamba besides its projections, without states.

    Arguments as for `mamba_parts`. The scan has no matrix products: FP32 outside tensor cores, or channel traffic.
    """
    width = (mamba.mixed_width + mamba.inner_width) / num_ranks
    calls = SMALL_CALLS + SELECTIVE_NORMS
    small = 2 * SELECTIVE_NORMS * (mamba.time_step_rank + 2 * mamba.state_size)
    parts = elementwise_parts((2 * SMALL_CALLS * width + small) * ACTIVATION_BYTES, tokens, machine, calls)
    if has_prompts:
        arithmetic = SELECTIVE_SCAN_FLOPS * mamba.state_elements / machine.peak("fp32")
        moved = SELECTIVE_SCAN_PASSES * mamba.inner_width * ACTIVATION_BYTES
        memory = moved / (machine.bandwidth * memory_efficiency(machine, "elementwise"))
        parts[HOST] += start_latency(machine, "elementwise")
        parts[COMPUTE] += tokens * max(arithmetic, memory) / num_ranks
    return parts


def mamba_state_seconds(
    mamba: Mamba2 | Mamba1,
    machine: Machine,
    sequences: Array,
    num_ranks: int,
    tokens_per_sequence: int = 1,
    *,
    has_start: bool = True,
) -> Array:
    """Return the seconds of updating the states of decoding sequences in one layer, shape of ``sequences``.

    Each state is read once, and written once per computed token.

    Args:
        tokens_per_sequence: Tokens computed for each; each leaves its own state.
        has_start: Whether the kernel's start counts.
    """
    moved = (1 + tokens_per_sequence) * mamba.state_elements * mamba.state_element_bytes / num_ranks
    start = start_latency(machine, "elementwise") if has_start else 0.0
    bandwidth = machine.bandwidth * memory_efficiency(machine, "elementwise")
    return np.where(sequences > 0, start + sequences * moved / bandwidth, 0.0)
