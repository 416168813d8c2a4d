"""Attention of one layer of a deployment from the fitted curves of its GPU, in the forms that tables need."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simserve.perf.attention_curve import (
    CRITICAL_SHARE,
    TILE,
    Gpu,
    Heads,
    decode_base_seconds,
    key_seconds,
    pair_seconds,
    request_seconds,
    row_seconds,
    tile_key_seconds,
    wave_seconds,
)
from simserve.perf.efficiency import Array
from simserve.perf.shape import ReplicaShape
from simserve.profiles.kernel_curves import AttentionKernel
from simserve.profiles.model import AttentionLayers

NARROW_KV_BYTES = 1.0
"""Widest KV element that the 8-bit kernels read; narrower ones are widened in them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedAttention:
    """One layer on one rank, key-value cache out of L2.

    Attributes:
        kernel: Constants.
        gpu: The GPU, at the efficiency of the engine.
        decode: Heads of a decode step; latent attention has one key-value head there.
        prefill: Heads of a prompt; latent attention expands its keys and values.
    """

    kernel: AttentionKernel
    gpu: Gpu
    decode: Heads
    prefill: Heads

    def decode_base_seconds(self, sequences: Array) -> Array:
        """Return the seconds of a decode step that do not depend on the contexts."""
        return decode_base_seconds(self.kernel.decode, self.decode, self.gpu, sequences)

    @property
    def decode_key_seconds(self) -> float:
        """Seconds of one more key in the contexts of a decode step."""
        return float(key_seconds(self.kernel.decode, self.decode, self.gpu))

    def prompt_seconds(self, tokens: Array) -> Array:
        """Return start, rows and waves of a step of prompts with ``tokens`` in all."""
        curve = self.kernel.prefill
        waves = wave_seconds(curve, self.prefill, self.gpu, tokens / TILE)
        return curve.start + tokens * row_seconds(curve, self.prefill) + waves

    @property
    def request_seconds(self) -> float:
        """Seconds of one more prompt in a step."""
        return float(request_seconds(self.kernel.prefill, self.prefill, self.gpu))

    @property
    def pair_seconds(self) -> float:
        """Seconds of an attended query-key pair of a prompt."""
        return float(pair_seconds(self.kernel.prefill, self.prefill, self.gpu))

    @property
    def prompt_key_seconds(self) -> float:
        """Seconds of a key that a prompt reads."""
        return CRITICAL_SHARE * float(tile_key_seconds(self.kernel.prefill, self.prefill, self.gpu))


def fitted_attention(shape: ReplicaShape, layers: AttentionLayers) -> FittedAttention | None:
    """Return the fitted attention of some layers of a deployment; none where its GPU has no curve for it."""
    curves = shape.hardware.attention_curves
    if curves is None or layers.compressed is not None or (layers.topk is not None and layers.mla is None):
        return None
    element = shape.kv_element_bytes
    decode, prefill = layer_heads(layers, shape.tensor_parallel_size, element)
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


def layer_heads(layers: AttentionLayers, num_ranks: int, kv_element: float) -> tuple[Heads, Heads]:
    """Return the heads of one layer on one rank, of a decode step and of a prompt."""
    heads = layers.num_heads / num_ranks
    kv_bytes = layers.kv_bytes_per_token(kv_element, num_ranks)
    if layers.mla is None:
        kv_heads = float(np.maximum(layers.num_kv_heads / num_ranks, 1.0))
        width = (layers.head_dim + layers.v_head_dim) / 2.0
        plain = Heads(num_heads=heads, num_kv_heads=kv_heads, width=width, kv_bytes=kv_bytes)
        return plain, plain
    latent, rotary = layers.mla.kv_lora_rank, layers.mla.qk_rope_head_dim
    absorbed = Heads(num_heads=heads, num_kv_heads=1.0, width=latent + rotary / 2.0, kv_bytes=kv_bytes)
    width = (layers.mla.qk_nope_head_dim + rotary + layers.mla.v_head_dim) / 2.0
    return absorbed, Heads(num_heads=heads, num_kv_heads=heads, width=width, kv_bytes=kv_bytes)
