"""Encoding images and recordings: the time of an encoder on the GPUs of a replica. A roofline, except for attention.

It runs in 16 bit, layer by layer, split over the tensor-parallel ranks like the language model (vLLM's
``mm_encoder_tp_mode: weights``). With ``data``, a vision tower is whole on each rank, which then encodes some of a
request's images. Attention covers whole images, tiles, or windows of images or audio, each separately. The convolutions
before an audio encoder, 1 % of Whisper's arithmetic and 20 % of Qwen3-Omni's, are products too, complete on every rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simserve.errors import InputError
from simserve.perf.collectives import all_gather_seconds, all_reduce_seconds
from simserve.perf.efficiency import Array
from simserve.perf.gemm import ACTIVATION_BYTES, gemm_call, gemm_curve, gemm_work, wide_class
from simserve.perf.operators import elementwise_parts
from simserve.perf.shape import ReplicaShape
from simserve.profiles.encoders import AudioTower, VisionTower

Tower = VisionTower | AudioTower


@dataclass(frozen=True, slots=True)
class AttentionTiles:
    """How an attention kernel without a mask handles its queries: in tiles, one at a time on each multiprocessor.

    A call takes ``start + ceil(tiles / multiprocessors) (tile_start + flops of a tile / share of the peak)``, with
    heads padded to 64, 96 or 128.
    """

    rows: int  # Queries per tile.
    start: float  # Seconds of a call, whatever it holds.
    tile_start: float  # Seconds of a tile besides its arithmetic.
    narrow_share: float  # Share of a multiprocessor's peak with heads of up to 64.
    wide_share: float  # The same with wider heads, counting padding.


HOPPER_TILES = AttentionTiles(rows=192, start=6.4e-6, tile_start=4.1e-6, narrow_share=0.55, wide_share=0.65)
BLACKWELL_TILES = AttentionTiles(rows=256, start=2.4e-6, tile_start=5.5e-6, narrow_share=0.43, wide_share=0.48)
"""FlashAttention 3 and 4. Rows: a tile of 192 queries up to heads of 96 (hopper/tile_size.h), two of 128 at once. The
rest is fitted to the tables of vLLM 0.24.0 and SGLang 0.5.14 on H200 and B200 (ai-dynamo/aiconfigurator,
encoder_attention, heads of 64, 72 and 80, 1 to 32 of them, 1 to 65,536 patches, 1 to 64 images). The median error is 6
% on those of H100 and 4 % on those of GB200, which were left out. TensorRT-LLM's kernels take 33 % longer."""
BLACKWELL_CAPABILITY = 10.0  # Compute capability from which FlashAttention 4 runs.
LAUNCH_SECONDS = 0.27e-3
"""Least host time to launch a layer, kernel by kernel, seconds: by default engines run no encoder on a CUDA graph.
Layers of language models without one take this long under vLLM and TensorRT-LLM (``enforced_eager_seconds_per_layer``);
SGLang's Whisper takes 0.22 ms on B200 (sgl-project/sglang pull request 22361), Qwen3-Omni's encoder 0.35 ms under vLLM
(vllm-project/vllm pull request 30735) and 0.42 ms in transformers' version (sgl-project/sglang-omni pull request 333,
H100)."""
NORM_PASSES = 10
"""Passes over the hidden state by a layer's norms and sums, two of each, complete on every rank: a norm reads and
writes it, a sum reads two and writes one (vLLM 0.32.0, the blocks of qwen3_vl.py and qwen3_omni_moe_thinker.py, where
none is fused)."""
ROTARY_PASSES = 8
"""Passes over queries and keys to rotate them by position, for each rank's share: copied out of the product's output,
then rotated (the same, qwen2_5_vl.py)."""
CONVOLUTION_PASSES = 8
"""Passes over a convolution's output besides writing it: converted from the layout of tensor cores and back into it for
the next one (NVIDIA's guide to convolutional layers: cuDNN transposes channels-first tensors), its bias added (PyTorch,
aten/src/ATen/native/cudnn), and the activation, each a read and a write."""
EPSILON = 1e-9
NORM_CALLS, ROTARY_CALLS = 4, 2  # Their kernels.


def is_whole_on_each_rank(shape: ReplicaShape, tower: Tower) -> bool:
    """Return whether each rank holds all of a tower, and encodes its own images."""
    return isinstance(tower, VisionTower) and shape.engine.mm_encoder_tp_mode == "data"


def check_cut(shape: ReplicaShape, tower: Tower) -> None:
    """Refuse a replica whose ranks cannot divide the heads of a tower.

    Raises:
        InputError: They cannot.
    """
    if is_whole_on_each_rank(shape, tower):
        return
    if tower.num_attention_heads % shape.tensor_parallel_size:
        rule = f"must divide the {tower.num_attention_heads} heads of the {tower.kind} of {shape.model.name}"
        raise InputError(rule, key="tensor_parallel_size", value=shape.tensor_parallel_size)


def encoder_seconds(shape: ReplicaShape, tower: Tower, positions: Array, pairs: Array, counts: Array) -> Array:
    """Return the seconds to encode the images, or recordings, of some requests, each separately; shape [requests].

    Args:
        positions: Patches of all images of each request, or positions of its recordings; 0: none.
        pairs: Pairs of positions that attend to each other, the mean of all layers: squares per piece, summed.
        counts: Images or recordings per request.

    Raises:
        InputError: The ranks cannot divide the heads of the tower.
    """
    check_cut(shape, tower)
    seconds = np.zeros(len(positions))
    has_any = positions > 0
    if not has_any.any():
        return seconds
    rows, pairs, counts = positions[has_any], pairs[has_any], counts[has_any]
    if not is_whole_on_each_rank(shape, tower):
        seconds[has_any] = _on_ranks(shape, tower, rows, pairs, shape.tensor_parallel_size)
        return seconds
    # The rank with the most images determines the time; equal images are spread evenly. Tiles are distributed one by
    # one (vLLM 0.32.0, mllama4.py and qwen3_vl.py, run_dp_sharded_vision_model and its like for images of any size).
    ranks = shape.tensor_parallel_size
    dealt = rows**2 / pairs if isinstance(tower, VisionTower) and tower.rule == "tiles" else counts
    share = np.ceil(dealt / ranks - EPSILON) / dealt
    seconds[has_any] = _on_ranks(shape, tower, share * rows, share * pairs, 1)
    if ranks > 1:
        width = shape.model.hidden_size * max(tower.num_mergers, 1)
        gathered = share * ranks * rows / tower.positions_per_token * width * ACTIVATION_BYTES
        seconds[has_any] += all_gather_seconds(gathered, ranks, shape.tensor_link)
    return seconds


def _on_ranks(shape: ReplicaShape, tower: Tower, rows: Array, pairs: Array, ranks: int) -> Array:
    """Return the seconds of a tower that is split over a number of ranks."""
    work = sum(_product(shape, rows, *each) for each in _layer_products(tower, ranks))
    moved, calls = _moved(tower, ranks)
    work = work + elementwise_parts(moved, rows, shape.machine, calls).sum(axis=0)
    if ranks > 1:
        reduced = rows * tower.hidden_size * ACTIVATION_BYTES
        work = work + 2.0 * all_reduce_seconds(reduced, ranks, shape.tensor_link)
    launching = max(shape.engine.host_slowdown * LAUNCH_SECONDS, shape.engine.eager_seconds_per_layer)
    layers = sum(
        number * np.maximum(work + _attention(shape, tower, rows, attended, ranks), launching)
        for number, attended in _layer_kinds(tower, rows, pairs)
    )
    merged = rows / tower.positions_per_token
    wide = tower.hidden_size * tower.positions_per_token
    mergers = _product(shape, merged, wide / ranks, wide) + _product(
        shape, merged, shape.model.hidden_size, wide / ranks
    )
    before = _convolutions(shape, tower, rows) if isinstance(tower, AudioTower) else 0.0
    return np.asarray(before + layers + tower.num_mergers * mergers)


def _moved(tower: Tower, ranks: int) -> tuple[float, int]:
    """Return the bytes moved per position on one rank by a layer's element-wise kernels, and their number."""
    is_gated = isinstance(tower, VisionTower) and tower.is_gated_mlp
    has_rotary = isinstance(tower, VisionTower) and tower.rule != "fixed"
    widths = NORM_PASSES * tower.hidden_size + (3 if is_gated else 2) * tower.intermediate_size / ranks
    if has_rotary:
        widths += ROTARY_PASSES * tower.hidden_size / ranks
    return widths * ACTIVATION_BYTES, NORM_CALLS + 1 + ROTARY_CALLS * has_rotary


def _layer_kinds(tower: Tower, rows: Array, pairs: Array) -> list[tuple[int, Array]]:
    """Return the number of layers of each kind, and the pairs that attend to each other in one of them."""
    number = tower.num_hidden_layers
    if not isinstance(tower, VisionTower) or tower.window is None or not tower.num_full_layers:
        return [(number, pairs)]
    windowed = np.minimum(rows * tower.window, pairs)
    num_windowed = number - tower.num_full_layers
    whole = (number * pairs - num_windowed * windowed) / tower.num_full_layers
    return [(tower.num_full_layers, whole), (num_windowed, windowed)]


def _convolutions(shape: ReplicaShape, tower: AudioTower, positions: Array) -> Array:
    """Return the seconds to turn a spectrogram into positions: products, and their activations."""
    seconds = np.zeros(len(positions))
    for each in tower.convolutions:
        places = each.outputs_per_position * positions
        moved = CONVOLUTION_PASSES * each.channels * ACTIVATION_BYTES
        seconds += _product(shape, places, each.channels, each.inputs)
        seconds += elementwise_parts(moved, places, shape.machine).sum(axis=0)
    return seconds


def _layer_products(tower: Tower, ranks: int) -> list[tuple[float, float]]:
    """Return the columns and rows of the weights of a layer on one rank."""
    width, wide = tower.hidden_size, tower.intermediate_size / ranks
    into = 2.0 * wide if isinstance(tower, VisionTower) and tower.is_gated_mlp else wide
    projected = 1 + 2 * (tower.kv_share if isinstance(tower, VisionTower) else 1.0)
    return [(projected * width / ranks, width), (width, width / ranks), (into, width), (width, wide)]


def _product(shape: ReplicaShape, rows: Array, out_features: float, in_features: float) -> Array:
    """Return the seconds of a matrix product in 16 bit."""
    machine, dtype = shape.machine, shape.precision.wide_arithmetic
    curve = gemm_curve(machine, wide_class(dtype), dtype)
    work = gemm_work(rows, out_features, in_features, weight_bits=16.0)
    return np.asarray(gemm_call(curve, machine, work, dtype, rows, out_features).total)


def _attention(shape: ReplicaShape, tower: Tower, rows: Array, pairs: Array, ranks: int) -> Array:
    """Return the seconds of attention in one layer on one rank, with equal pieces in one call."""
    capability = shape.hardware.compute_capability
    is_new = capability is not None and float(capability) >= BLACKWELL_CAPABILITY
    kernel = BLACKWELL_TILES if is_new else HOPPER_TILES
    return attention_seconds(
        kernel,
        length=pairs / rows,
        pieces=rows**2 / pairs,
        num_heads=tower.num_attention_heads / ranks,
        head_dim=tower.hidden_size / tower.num_attention_heads,
        peak=shape.machine.peak(shape.precision.wide_arithmetic),
        num_multiprocessors=shape.machine.num_multiprocessors,
    )


def attention_seconds(
    kernel: AttentionTiles,
    *,
    length: Array,
    pieces: Array,
    num_heads: float,
    head_dim: float,
    peak: float,
    num_multiprocessors: int,
) -> Array:
    """Return the seconds of a call of attention over pieces of the same length, each separately.

    Args:
        length: Positions per piece.
        pieces: Number of pieces.
        num_heads: Heads on this GPU.
        head_dim: Their width.
        peak: FLOP/s of the GPU.
        num_multiprocessors: Of the GPU; 1: unknown, and tiles are not rounded up to rounds of all of them.
    """
    is_narrow = head_dim <= 64
    padded = 64 if is_narrow else 96 if head_dim <= 96 else 128 * np.ceil(head_dim / 128)
    share = kernel.narrow_share if is_narrow else kernel.wide_share
    tiles = pieces * num_heads * np.ceil(length / kernel.rows)
    arithmetic = 4.0 * kernel.rows * length * padded / (share * peak)
    if num_multiprocessors == 1:
        return np.asarray(kernel.start + tiles * arithmetic)
    rounds = np.ceil(tiles / num_multiprocessors)
    return np.asarray(kernel.start + rounds * (kernel.tile_start + num_multiprocessors * arithmetic))
