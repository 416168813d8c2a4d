"""Attention times from fitted curves, per layer: over batch and lengths, and in affine forms for the engine.

Knows kernels and sizes of one layer on one rank; no model, no step. Every form is monotone in batch, context,
heads and width.

TensorRT-LLM's decode kernels split contexts over thread blocks by their own rules, followed here from the source of
both (github.com/NVIDIA/TensorRT-LLM, Apache-2.0), with fractional counts, so that no time falls as work grows:

* ``waves`` (XQA, more than one query head per key-value head; ``computeMultiBlockCount`` in
  ``decoderXQAImplCommon.h``): pieces of 128 keys, fewer for long contexts, up to eight blocks a multiprocessor.
* ``filling`` (MMHA, one query head per key-value head; ``multi_block_grid_setup`` in
  ``decoderMaskedMultiheadAttentionLaunch.h``): as many pieces as give every multiprocessor a block, rounded up, so
  that most batches leave a second wave nearly empty.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simserve.perf.attention import WIDEST_SHARED
from simserve.perf.context_parallel import head_ranks
from simserve.perf.efficiency import Array
from simserve.perf.shape import ReplicaShape
from simserve.profiles.kernel_curves import AttentionKernel, DecodeAttentionCurve, PrefillAttentionCurve
from simserve.profiles.model_blocks import AttentionLayers

Mask = NDArray[np.bool_]
TILE = 128.0  # Tokens per tile of queries, and the head width to which constants refer (FlashAttention-3).
NARROWER = 192.0  # Widest head whose pairs have no share of their own (``wide_compute``).
ROW_TILE = 64.0  # Rows to which the tensor cores pad a decode step (wgmma m64; query heads of a group are rows).
GROUP = 4.0  # Query heads per key-value head to which the time of a wave refers.
L2_FILLED, L2_SPILLED = 0.7, 1.2
"""Ratio of KV to L2 capacity up to which repeated reads hit, and from which they all miss; visible as a step between
0.67 and 1.34 in the tables of every framework."""
REFERENCE_CONTEXT = 512.0
"""Context whose splits the affine form charges. H200 tables, contexts from 128, all kernels: mean of the median errors
8.6, 8.1, 8.0 and 8.5 % for 256, 512, 1,024 and 2,048; over all contexts 256 is best (10.6 against 10.9 %)."""
WAVES_CONTEXT = 1024.0
"""Context whose pieces the affine form counts in waves. H200 tables of TensorRT-LLM, contexts of 128 to 32,768: mean of
the median errors 13.1, 12.9, 12.7 and 12.9 % for 512, 1,024, 2,048 and 4,096."""
CRITICAL_SHARE = 0.25
"""Share of the longest tile that each request of a step adds in the affine form, which knows only sums of lengths. H200
tables, up to 8 prompts of at least 128 tokens: mean of the median errors 6.8, 6.1, 7.3 and 11.2 % for 0, 0.25, 0.5 and
1; over all calls, mostly of many prompts, 0 is best (7.0 against 7.8 %)."""
PIECE_KEYS = 128.0  # Keys of the shortest piece of XQA (``kMinHistoryTokensPerBlock``).
PIECES_BEFORE_ROOT = 8.0
"""Pieces of a context beyond which their number grows only as a square root, so that summing them stays cheap."""
MAX_BLOCKS = 8.0  # Most blocks per multiprocessor into which XQA splits (``kTargetWaveFactor``).
LOOP_ELEMENTS = 65536.0
"""Elements of keys that the largest MMHA block reads in one pass: 1,024 threads, 16 bytes each, eight at a time."""
SMALL_BLOCKS = 4.0  # MMHA blocks of 256 threads that fit on a multiprocessor (32 warps, as its registers allow).
LARGE_BLOCKS = 2.0  # MMHA blocks of 512 threads that fit: used for batches of two multiprocessors' worth of heads.
NARROW_KV_BYTES = 1.0  # Widest KV element that the 8-bit kernels read; narrower ones are widened inside them.


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """The properties of a GPU that the curves need."""

    peak: float  # Dense 16-bit FLOP/s.
    bandwidth: float  # Memory bandwidth, bytes/s.
    num_multiprocessors: int  # Streaming multiprocessors.
    l2_cache: float = 0.0
    """Bytes of L2 that still hold the KV of the previous call; 0 in a server, where the weights of all layers pass
    between two visits of a layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Attention heads of one layer on one rank; every field may be an array."""

    num_heads: Array | float  # Query heads.
    num_kv_heads: Array | float  # Key-value heads; 1 for latent decoding.
    width: Array | float  # Mean of key and value width per head.
    kv_bytes: Array | float  # Bytes of one key and value for all heads.

    @property
    def group(self) -> Array:
        """Query heads per key-value head."""
        return np.asarray(self.num_heads, dtype=np.float64) / self.num_kv_heads


def key_seconds(curve: DecodeAttentionCurve, heads: Heads, gpu: Gpu) -> Array:
    """Return the seconds per additional key of one sequence at full occupancy: bytes or padded flops."""
    memory = np.asarray(heads.kv_bytes) / (gpu.bandwidth * curve.memory)
    return np.maximum(memory, _products(curve, heads, gpu))


def _products(curve: DecodeAttentionCurve, heads: Heads, gpu: Gpu) -> Array:
    width = np.asarray(heads.width, dtype=np.float64)
    rows = np.ceil(heads.group / ROW_TILE) * ROW_TILE
    flops = 4.0 * heads.num_kv_heads * rows * (width + curve.extra_width)
    return np.asarray(np.where(width > TILE, curve.wide_penalty, 1.0) * flops / (gpu.peak * curve.compute))


def decode_seconds(
    curve: DecodeAttentionCurve, heads: Heads, gpu: Gpu, batch: Array | float, context: Array | float
) -> Array:
    """Return the seconds of a decode step of ``batch`` sequences of ``context`` keys each.

    ``start + doubling * log2(1 + context / 128) + (waves^p + keys^p)^(1/p)``; waves beyond the first of ``batch *
    kv_heads / multiprocessors`` blocks, or of the pieces into which ``curve.splits`` splits contexts; keys: the longer
    of bytes and products.
    """
    keys = np.asarray(batch, dtype=np.float64) * context
    num_bytes = keys * heads.kv_bytes
    missed = _missed(num_bytes, gpu)
    main = gpu.bandwidth * curve.memory
    memory = num_bytes * (missed / main + (1.0 - missed) / max(curve.cache_bandwidth, main))
    waves = _waves(curve, heads, gpu, batch, context)
    work = np.maximum(memory, keys * _products(curve, heads, gpu))
    if curve.splits == "filling":
        work = _uneven(curve, heads, gpu, work, batch, context)
    return _start(curve, heads, context) + (waves**curve.overlap + work**curve.overlap) ** (1.0 / curve.overlap)


def _uneven(
    curve: DecodeAttentionCurve, heads: Heads, gpu: Gpu, work: Array, batch: Array | float, context: Array | float
) -> Array:
    """Return the seconds of keys whose pieces do not fill complete waves; ``work`` is their time at full occupancy."""
    blocks, num_sms = np.asarray(batch * np.asarray(heads.num_kv_heads)), gpu.num_multiprocessors
    pass_keys = np.minimum(context, loop_keys(heads.width))
    alone = np.maximum(work, pass_keys * curve.tail * num_sms * work / (blocks * context))
    one_wave = (blocks <= num_sms) & is_one_wave(blocks, context, heads.width, num_sms)
    return np.where(one_wave, alone, work * imbalance(blocks, curve.tail, num_sms))


def _missed(num_bytes: Array, gpu: Gpu) -> Array:
    if gpu.l2_cache == 0:
        return np.ones_like(num_bytes)
    return np.clip((num_bytes / gpu.l2_cache - L2_FILLED) / (L2_SPILLED - L2_FILLED), 0.0, 1.0)


def decode_base_seconds(curve: DecodeAttentionCurve, heads: Heads, gpu: Gpu, batch: Array | float) -> Array:
    """Return the ``base`` of the affine form ``base[n] + key_seconds * sum of contexts``.

    The start at `REFERENCE_CONTEXT`, and the waves (of pieces at `WAVES_CONTEXT`) to the extent that they show beside
    keys that take equally long. The slope is that of full occupancy for every batch, so that no sequence speeds a step
    up and no bandwidth slows it down.
    """
    start = _start(curve, heads, REFERENCE_CONTEXT)
    waves = _waves(curve, heads, gpu, batch, WAVES_CONTEXT)
    return np.asarray(start + (2.0 ** (1.0 / curve.overlap) - 1.0) * waves)


def _start(curve: DecodeAttentionCurve, heads: Heads, context: Array | float) -> Array:
    width = np.asarray(heads.width, dtype=np.float64) / TILE
    doublings = np.log2(1.0 + np.asarray(context, dtype=np.float64) / TILE)
    combine = np.where(context > loop_keys(heads.width), curve.combine, 0.0)
    return np.asarray(curve.start + curve.start_per_width * width + curve.context_doubling * doublings + combine)


def _waves(curve: DecodeAttentionCurve, heads: Heads, gpu: Gpu, batch: Array | float, context: Array | float) -> Array:
    width = np.asarray(heads.width, dtype=np.float64) / TILE
    wave = np.asarray(curve.wave + curve.wave_per_width * width * np.sqrt(heads.group / GROUP))
    blocks = batch * np.asarray(heads.num_kv_heads)
    if curve.splits == "filling":
        return SMALL_BLOCKS * wave * further_waves(blocks, context, heads.width, gpu.num_multiprocessors)
    share = blocks / gpu.num_multiprocessors
    if curve.splits == "waves":
        share = cut_blocks(share, context)
        wave = wave * np.where(width > 1.0, curve.wide_penalty, 1.0)
    return np.asarray(np.maximum(share - 1.0, 0.0) * wave)


def pair_seconds(curve: PrefillAttentionCurve, heads: Heads, gpu: Gpu) -> Array:
    """Return the seconds per attended query-key pair for all heads."""
    width = np.asarray(heads.width, dtype=np.float64)
    seconds = (width + curve.extra_width) / curve.compute
    if curve.wide_compute is not None:
        seconds = np.where(width > NARROWER, np.maximum(seconds, width / curve.wide_compute), seconds)
    if curve.widest_compute is not None:
        seconds = np.where(width > WIDEST_SHARED, width / curve.widest_compute, seconds)
    return np.asarray(4.0 * np.asarray(heads.num_heads) * seconds / gpu.peak)


def row_seconds(curve: PrefillAttentionCurve, heads: Heads) -> Array:
    """Return the seconds to load, store and cache the rows of one token."""
    elements = np.asarray(heads.num_heads) * curve.query_element + np.asarray(heads.num_kv_heads) * curve.kv_element
    return np.asarray(heads.width * elements)


def tile_key_seconds(curve: PrefillAttentionCurve, heads: Heads, gpu: Gpu) -> Array:
    """Return the seconds per key of the longest tile, which one multiprocessor computes."""
    flops = 4.0 * TILE * (np.asarray(heads.width) + curve.extra_width)
    return np.asarray(flops / (gpu.peak / gpu.num_multiprocessors * curve.tile_compute))


def wave_seconds(curve: PrefillAttentionCurve, heads: Heads, gpu: Gpu, tiles: Array | float) -> Array:
    """Return the seconds of the waves after the first for ``tiles`` tiles of tokens, all heads."""
    waves = np.asarray(tiles, dtype=np.float64) * heads.num_heads / gpu.num_multiprocessors - 1.0
    return np.maximum(waves, 0.0) * curve.wave


def prefill_seconds(
    curve: PrefillAttentionCurve,
    heads: Heads,
    gpu: Gpu,
    batch: Array | float,
    tokens: Array | float,
    window: Array | float = np.inf,
) -> Array:
    """Return the seconds of causal attention of ``batch`` prompts of ``tokens`` each.

    ``start + rows + pairs + longest tile + waves``. A token attends to itself and the ``window - 1`` before it.
    """
    num_tokens = np.asarray(tokens, dtype=np.float64)
    reach = np.minimum(num_tokens, window)
    pairs = batch * (reach * num_tokens - reach * (reach - 1.0) / 2.0)
    rows = batch * num_tokens * row_seconds(curve, heads)
    tiles = batch * np.ceil(num_tokens / TILE)
    return np.asarray(
        curve.start
        + rows
        + pairs * pair_seconds(curve, heads, gpu)
        + reach * tile_key_seconds(curve, heads, gpu)
        + wave_seconds(curve, heads, gpu, tiles)
    )


def request_seconds(curve: PrefillAttentionCurve, heads: Heads, gpu: Gpu) -> Array:
    """Return the seconds of the half tile that a prompt leaves unfilled at its end."""
    return np.asarray(0.5 * np.asarray(heads.num_heads) / gpu.num_multiprocessors * curve.wave)


def cut_blocks(blocks: Array | float, context: Array | float) -> Array:
    """Return the blocks per multiprocessor that XQA makes of ``blocks`` unsplit ones, each of ``context`` keys."""
    pieces = np.asarray(context, dtype=np.float64) / PIECE_KEYS
    cut = np.asarray(blocks) * np.minimum(pieces, np.sqrt(PIECES_BEFORE_ROOT * pieces))
    return np.asarray(np.maximum(blocks, np.minimum(cut, MAX_BLOCKS)))


def loop_keys(width: Array | float) -> Array:
    """Return the keys per pass of an MMHA block: fewer are never split. Widths are padded to a power of two."""
    return np.asarray(LOOP_ELEMENTS / 2.0 ** np.ceil(np.log2(width)))


def is_one_wave(num_blocks: Array | float, context: Array | float, width: Array | float, num_sms: int) -> Mask:
    """Return whether every piece of MMHA has its own multiprocessor because a pass limits their number."""
    return np.asarray(num_blocks * np.asarray(context) <= num_sms * loop_keys(width))


def further_waves(num_blocks: Array | float, context: Array | float, width: Array | float, num_sms: int) -> Array:
    """Return the waves after the first of MMHA; ``num_blocks`` are unsplit: batch times key-value heads."""
    count = np.arange(1.0, num_sms + 1.0)
    spill = np.maximum.accumulate(count * np.ceil(num_sms / count) > num_sms).astype(float)
    few = np.where(is_one_wave(num_blocks, context, width, num_sms), 0.0, np.interp(num_blocks, count, spill))
    doubled = np.asarray(context > loop_keys(width) / LARGE_BLOCKS, dtype=np.float64)
    many = np.maximum(np.ceil(num_blocks / (SMALL_BLOCKS * num_sms)) - 1.0, 1.0)
    return np.where(num_blocks <= num_sms, few, np.where(num_blocks <= LARGE_BLOCKS * num_sms, doubled, many))


def imbalance(num_blocks: Array | float, tail: float, num_sms: int) -> Array:
    """Return the time of split contexts relative to an even share, at least 1.

    ``B`` contexts in ``ceil(M / B)`` pieces over ``M`` multiprocessors: the pieces of the last wave have the memory to
    themselves, and still take ``tail`` of the time of a full wave. If fewer contexts would take longer, their time
    counts.

    Args:
        num_blocks: Unsplit contexts: batch times key-value heads.
        tail: Time of a piece alone relative to a piece in a full wave.
        num_sms: Multiprocessors.
    """
    count = np.arange(1.0, num_sms + 1.0)
    waves = count * np.ceil(num_sms / count) / num_sms
    partial = waves - np.floor(waves)
    late = np.where(partial > 0.0, np.maximum(tail - partial, 0.0), 0.0)
    time = np.maximum.accumulate(count * (1.0 + late / waves))
    shown = np.interp(num_blocks, count, time) / np.asarray(num_blocks, dtype=np.float64)
    return np.maximum(shown, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedAttention:
    """One layer on one rank, with the key-value cache out of L2."""

    kernel: AttentionKernel  # Constants.
    gpu: Gpu  # The GPU, at the efficiency of the engine.
    decode: Heads  # Heads of a decode step; latent attention has one key-value head there.
    prefill: Heads  # Heads of a prompt; latent attention expands its keys and values.

    def decode_base_seconds(self, sequences: Array) -> Array:
        """Return the context-independent seconds of a decode step."""
        return decode_base_seconds(self.kernel.decode, self.decode, self.gpu, sequences)

    @property
    def decode_key_seconds(self) -> float:
        """Seconds per additional key in the contexts of a decode step."""
        return float(key_seconds(self.kernel.decode, self.decode, self.gpu))

    def prompt_seconds(self, tokens: Array) -> Array:
        """Return start, rows and waves of a step of prompts with ``tokens`` in all."""
        curve = self.kernel.prefill
        waves = wave_seconds(curve, self.prefill, self.gpu, tokens / TILE)
        return curve.start + tokens * row_seconds(curve, self.prefill) + waves

    @property
    def request_seconds(self) -> float:
        """Seconds per additional prompt in a step."""
        return float(request_seconds(self.kernel.prefill, self.prefill, self.gpu))

    @property
    def pair_seconds(self) -> float:
        """Seconds per attended query-key pair of a prompt."""
        return float(pair_seconds(self.kernel.prefill, self.prefill, self.gpu))

    @property
    def prompt_key_seconds(self) -> float:
        """Seconds per key that a prompt reads."""
        return CRITICAL_SHARE * float(tile_key_seconds(self.kernel.prefill, self.prefill, self.gpu))


def fitted_attention(shape: ReplicaShape, layers: AttentionLayers) -> FittedAttention | None:
    """Return the fitted attention of some layers of a deployment; None if its GPU has no curve for it."""
    curves = shape.hardware.attention_curves
    if curves is None or layers.compressed is not None or (layers.topk is not None and layers.mla is None):
        return None
    element = shape.kv_element_bytes
    prefill = _layer_heads(layers, shape.tensor_parallel_size, element)[1]
    decode = _layer_heads(layers, head_ranks(shape), element)[0]
    kind = "heads" if layers.mla is None else "latent"
    bits = 8 if element <= NARROW_KV_BYTES else 16
    kernel = curves.kernel(shape.engine.name, kind, bits, float(decode.group) if kind == "heads" else 1.0)
    if kernel is None:
        return None
    machine = shape.machine
    gpu = Gpu(
        peak=machine.peak(shape.precision.wide_arithmetic) * machine.engine_scale,
        bandwidth=machine.bandwidth * machine.memory_scale,
        num_multiprocessors=curves.num_multiprocessors,
    )
    return FittedAttention(kernel=kernel, gpu=gpu, decode=decode, prefill=prefill)


def _layer_heads(layers: AttentionLayers, num_ranks: int, kv_element: float) -> tuple[Heads, Heads]:
    """Return the heads of one layer on one rank, in a decode step and in a prompt."""
    heads = layers.num_heads / num_ranks
    kv_bytes = layers.read_bytes(kv_element, num_ranks)
    if layers.mla is None:
        kv_heads = float(np.maximum(layers.num_kv_heads / num_ranks, 1.0))
        width = (layers.head_dim + layers.v_head_dim) / 2.0
        plain = Heads(num_heads=heads, num_kv_heads=kv_heads, width=width, kv_bytes=kv_bytes)
        return plain, plain
    latent, rotary = layers.mla.kv_lora_rank, layers.mla.qk_rope_head_dim
    absorbed = Heads(num_heads=heads, num_kv_heads=1.0, width=latent + rotary / 2.0, kv_bytes=kv_bytes)
    width = (layers.mla.qk_nope_head_dim + rotary + layers.mla.v_head_dim) / 2.0
    return absorbed, Heads(num_heads=heads, num_kv_heads=heads, width=width, kv_bytes=kv_bytes)
