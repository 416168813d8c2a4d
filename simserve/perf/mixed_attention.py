"""Decode attention in steps that prefill too, where one kernel serves both: each decode takes a whole tile of queries.

FlashAttention-2 packs the query heads of a group into one tile, and cuts contexts into pieces, only where every
sequence of a step has one query. Beside a prompt each query head of a decode is a tile of its own, whose other rows are
computed and thrown away. FlashAttention-3 (Hopper) and FlashInfer (Blackwell) have kernels that do not.
"""

from __future__ import annotations

from simserve.perf.fitted_attention import NARROW_KV_BYTES
from simserve.perf.quantization import kv_element_bytes
from simserve.perf.shape import ReplicaShape

FLASH_ATTENTION_2 = ((8.0, 9.0), (12.0, 13.0))
"""CUDA compute capabilities, from and below, on which vLLM runs FlashAttention-2: Ampere and Ada, and consumer
Blackwell."""


def mixed_decode_factor(shape: ReplicaShape, key_seconds: float, pair_seconds: float) -> float:
    """Return how many times as long a key takes in a mixed step as in one that only decodes.

    A row of queries and a key are an attended pair, of which the tile computes ``mixed_decode_tile`` for one. Tables of
    LLMServingSim (vLLM 0.19, Llama-3.1-8B, contexts of 512 to 1,024): 1.3 to 1.7 on an RTX PRO 6000, 1.6 to 2.5 on an
    RTX 4090; twice that where the keys of 128 long contexts leave the L2 cache, which is left out.

    Args:
        shape: The deployment.
        key_seconds: Of a key in one layer, for one sequence that decodes.
        pair_seconds: Of an attended pair of a prompt in one layer.
    """
    rows, capability = shape.engine.mixed_decode_tile, float(shape.hardware.compute_capability or 0.0)
    if not rows or key_seconds <= 0.0 or shape.attention != "flash":
        return 1.0
    if not all(layers.has_plain_heads for layers in shape.model.attention_layers):
        return 1.0
    if kv_element_bytes(shape.kv_cache_dtype) <= NARROW_KV_BYTES:
        return 1.0  # FlashInfer's kernels
    if not any(start <= capability < end for start, end in FLASH_ATTENTION_2):
        return 1.0
    return max(1.0, rows * pair_seconds / key_seconds)
