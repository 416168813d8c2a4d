"""Thread blocks that TensorRT-LLM's decode kernels cut contexts into. Knows no seconds and no bytes.

From the launch rules of its two kernels (github.com/NVIDIA/TensorRT-LLM, Apache-2.0), with counts that need not be
whole, so that nothing falls as work grows:

* ``waves`` (XQA, more than one query head to a key-value head; ``computeMultiBlockCount`` in
  ``decoderXQAImplCommon.h``): pieces of 128 keys, fewer for long contexts, up to eight blocks a multiprocessor.
* ``filling`` (MMHA, one query head to a key-value head; ``multi_block_grid_setup`` in
  ``decoderMaskedMultiheadAttentionLaunch.h``): as many pieces as bring a block to every multiprocessor, rounded up, so
  that most batches leave a second wave nearly empty.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simserve.perf.efficiency import Array

Mask = NDArray[np.bool_]

PIECE_KEYS = 128.0
"""Keys of the shortest piece of XQA (``kMinHistoryTokensPerBlock``)."""

PIECES_BEFORE_ROOT = 8.0
"""Pieces of a context from which their number grows as a square root only, so that their sum stays cheap."""

MAX_BLOCKS = 8.0
"""Blocks a multiprocessor up to which XQA cuts (``kTargetWaveFactor``)."""

LOOP_ELEMENTS = 65536.0
"""Elements of keys that the largest MMHA block takes in one pass: 1,024 threads, 16 bytes each, eight at a time."""

SMALL_BLOCKS = 4.0
"""MMHA blocks of 256 threads that fit on a multiprocessor (32 warps, as its registers allow)."""

LARGE_BLOCKS = 2.0
"""MMHA blocks of 512 threads that fit: what batches of two multiprocessors' worth of heads are given."""


def cut_blocks(blocks: Array | float, context: Array | float) -> Array:
    """Return the blocks a multiprocessor that XQA makes of ``blocks`` uncut ones, each of ``context`` keys."""
    pieces = np.asarray(context, dtype=np.float64) / PIECE_KEYS
    cut = np.asarray(blocks) * np.minimum(pieces, np.sqrt(PIECES_BEFORE_ROOT * pieces))
    return np.asarray(np.maximum(blocks, np.minimum(cut, MAX_BLOCKS)))


def loop_keys(width: Array | float) -> Array:
    """Return the keys of one pass of an MMHA block: fewer are never cut. Widths are padded to a power of two."""
    return np.asarray(LOOP_ELEMENTS / 2.0 ** np.ceil(np.log2(width)))


def is_one_wave(num_blocks: Array | float, context: Array | float, width: Array | float, num_sms: int) -> Mask:
    """Return whether all pieces of MMHA have a multiprocessor of their own, because a pass bounds their number."""
    return np.asarray(num_blocks * np.asarray(context) <= num_sms * loop_keys(width))


def further_waves(num_blocks: Array | float, context: Array | float, width: Array | float, num_sms: int) -> Array:
    """Return the waves after the first of MMHA; ``num_blocks`` are uncut: batch times key-value heads."""
    count = np.arange(1.0, num_sms + 1.0)
    spill = np.maximum.accumulate(count * np.ceil(num_sms / count) > num_sms).astype(float)
    few = np.where(is_one_wave(num_blocks, context, width, num_sms), 0.0, np.interp(num_blocks, count, spill))
    doubled = np.asarray(context > loop_keys(width) / LARGE_BLOCKS, dtype=np.float64)
    many = np.maximum(np.ceil(num_blocks / (SMALL_BLOCKS * num_sms)) - 1.0, 1.0)
    return np.where(num_blocks <= num_sms, few, np.where(num_blocks <= LARGE_BLOCKS * num_sms, doubled, many))


def imbalance(num_blocks: Array | float, tail: float, num_sms: int) -> Array:
    """Return the time of cut contexts over that of an even share, at least 1.

    ``B`` contexts in ``ceil(M / B)`` pieces over ``M`` multiprocessors: the pieces of the last wave have the memory
    to themselves, and still take ``tail`` of the time of a full wave. The most of any fewer contexts, where that is
    more.

    Args:
        num_blocks: Uncut contexts: batch times key-value heads.
        tail: Time of a piece alone over that of a piece in a full wave.
        num_sms: Multiprocessors.
    """
    count = np.arange(1.0, num_sms + 1.0)
    waves = count * np.ceil(num_sms / count) / num_sms
    partial = waves - np.floor(waves)
    late = np.where(partial > 0.0, np.maximum(tail - partial, 0.0), 0.0)
    time = np.maximum.accumulate(count * (1.0 + late / waves))
    shown = np.interp(num_blocks, count, time) / np.asarray(num_blocks, dtype=np.float64)
    return np.maximum(shown, 1.0)
