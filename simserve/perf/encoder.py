"""Encoding images and recordings: the seconds of an encoder on the GPUs of a replica. A roofline, but for attention.

It runs in 16 bit, layer by layer, cut over the tensor-parallel ranks as the language model is (vLLM's
``mm_encoder_tp_mode: weights``). Its attention is that of whole images, of tiles or of windows of audio to themselves.
The convolutions before an audio encoder, 1 % of Whisper's arithmetic and a fifth of Qwen3-Omni's, are products too, on
every rank whole.
"""

from __future__ import annotations

import numpy as np

from simserve.errors import InputError
from simserve.perf.collectives import all_reduce_seconds
from simserve.perf.efficiency import Array
from simserve.perf.gemm import ACTIVATION_BYTES, gemm_call, gemm_curve, gemm_work, wide_class
from simserve.perf.operators import elementwise_parts
from simserve.perf.shape import ReplicaShape
from simserve.profiles.audio import AudioTower
from simserve.profiles.vision import VisionTower

Tower = VisionTower | AudioTower

HOPPER_EFFICIENCY, BLACKWELL_EFFICIENCY = 0.45, 0.35
"""Share of the peak that attention without a mask reaches on long images with heads of 72: FlashAttention 3 on H100
0.40 to 0.47 from 4,096 patches on, FlashAttention 4 on B200 0.30 to 0.34 of one image and 0.33 to 0.40 of eight (tables
of vLLM 0.24.0 in ai-dynamo/aiconfigurator, encoder_attention). Images of 1,000 patches take up to twice as long."""
BLACKWELL_CAPABILITY = 10.0
"""Compute capability from which FlashAttention 4 runs."""
ATTENTION_START = 12e-6
"""Seconds of a call of that attention whatever it holds: the same tables, 11.5 to 13.5 us for one patch."""
LAUNCH_SECONDS = 0.27e-3
"""Seconds that the host takes at least to launch a layer, kernel by kernel: engines put no encoder on a CUDA graph by
default. So long take layers of language models without one under vLLM and TensorRT-LLM
(``enforced_eager_seconds_per_layer``); SGLang's Whisper takes 0.22 ms on B200 (sgl-project/sglang pull request 22361),
Qwen3-Omni's encoder 0.35 ms under vLLM (vllm-project/vllm pull request 30735) and 0.42 ms as transformers has it
(sgl-project/sglang-omni pull request 333, H100)."""
LAYER_PASSES = 10
"""Times the elementwise work of a layer moves its hidden state: two norms with their sums, rotary embedding, and the
activation on an MLP four times as wide."""
LAYER_CALLS = 6
"""Its kernels."""


def check_cut(shape: ReplicaShape, tower: Tower) -> None:
    """Refuse a replica over whose ranks the heads of a tower cannot be cut.

    Raises:
        InputError: They cannot.
    """
    if tower.num_attention_heads % shape.tensor_parallel_size:
        rule = f"must divide the {tower.num_attention_heads} heads of the {tower.kind} of {shape.model.name}"
        raise InputError(rule, key="tensor_parallel_size", value=shape.tensor_parallel_size)


def encoder_seconds(shape: ReplicaShape, tower: Tower, positions: Array, pairs: Array, calls: Array) -> Array:
    """Return the seconds of encoding the images, or recordings, of some requests, each by itself; shape [requests].

    Args:
        shape: The replica.
        tower: What encodes.
        positions: Patches of all images of each request, or positions of its recordings; 0: it has none.
        pairs: Positions that attend to each other, squares of those of each piece summed.
        calls: Images or recordings of each, one call of attention each.

    Raises:
        InputError: The heads of the tower cannot be cut over the ranks.
    """
    check_cut(shape, tower)
    ranks = shape.tensor_parallel_size
    seconds = np.zeros(len(positions))
    has_any = positions > 0
    if not has_any.any():
        return seconds
    rows = positions[has_any]
    layer = sum(_product(shape, rows, *each) for each in _layer_products(tower, ranks))
    layer = layer + _attention(shape, tower, pairs[has_any], calls[has_any])
    moved = LAYER_PASSES * tower.hidden_size * ACTIVATION_BYTES
    layer = layer + elementwise_parts(moved, rows, shape.machine, LAYER_CALLS).sum(axis=0)
    if ranks > 1:
        reduced = rows * tower.hidden_size * ACTIVATION_BYTES
        layer = layer + 2.0 * all_reduce_seconds(reduced, ranks, shape.tensor_link)
    launching = max(shape.engine.host_slowdown * LAUNCH_SECONDS, shape.engine.eager_seconds_per_layer)
    layer = np.maximum(layer, launching)
    merged = rows / tower.positions_per_token
    wide = tower.hidden_size * tower.positions_per_token
    mergers = _product(shape, merged, wide / ranks, wide) + _product(
        shape, merged, shape.model.hidden_size, wide / ranks
    )
    before = _convolutions(shape, tower, rows) if isinstance(tower, AudioTower) else 0.0
    seconds[has_any] = before + tower.num_hidden_layers * layer + tower.num_mergers * mergers
    return seconds


def _convolutions(shape: ReplicaShape, tower: AudioTower, positions: Array) -> Array:
    """Return the seconds of what makes positions of a spectrogram: products, and their activations."""
    seconds = np.zeros(len(positions))
    for each in tower.convolutions:
        places = each.outputs_per_position * positions
        moved = 2.0 * each.channels * ACTIVATION_BYTES
        seconds += _product(shape, places, each.channels, each.inputs)
        seconds += elementwise_parts(moved, places, shape.machine).sum(axis=0)
    return seconds


def _layer_products(tower: Tower, ranks: int) -> list[tuple[float, float]]:
    """Return the columns and rows of the weights of a layer on one rank."""
    width, wide = tower.hidden_size, tower.intermediate_size / ranks
    into = 2.0 * wide if isinstance(tower, VisionTower) and tower.is_gated_mlp else wide
    return [(3 * width / ranks, width), (width, width / ranks), (into, width), (width, wide)]


def _product(shape: ReplicaShape, rows: Array, out_features: float, in_features: float) -> Array:
    """Return the seconds of a matrix product in 16 bit."""
    machine, dtype = shape.machine, shape.precision.wide_arithmetic
    curve = gemm_curve(machine, wide_class(dtype), dtype)
    work = gemm_work(rows, out_features, in_features, weight_bits=16.0)
    return np.asarray(gemm_call(curve, machine, work, dtype, rows, out_features).total)


def _attention(shape: ReplicaShape, tower: Tower, pairs: Array, calls: Array) -> Array:
    """Return the seconds of attention in one layer."""
    capability = shape.hardware.compute_capability
    is_new = capability is not None and float(capability) >= BLACKWELL_CAPABILITY
    efficiency = BLACKWELL_EFFICIENCY if is_new else HOPPER_EFFICIENCY
    flops = 4.0 * tower.hidden_size / shape.tensor_parallel_size * pairs
    return np.asarray(
        ATTENTION_START * calls + flops / (efficiency * shape.machine.peak(shape.precision.wide_arithmetic))
    )
