"""Cascade attention: a prefix that all requests of a step share is read once for all of them, and not by each.

vLLM 0.8 to 0.17 does so by default under FlashAttention (pull requests 11635 and 36318; 0.12.0
v1/attention/backends/flash_attn.py and v1/worker/gpu_model_runner.py). Knows layers and kernels; which requests share
a prefix is told by the workload alone.
"""

from __future__ import annotations

import numpy as np

from simserve.perf.efficiency import Array, Machine
from simserve.perf.shape import ReplicaShape
from simserve.profiles.model_blocks import AttentionLayers

MIN_PREFIX_TOKENS, MIN_REQUESTS, TILE = 256, 8, 128
"""Least shared tokens and requests, and the rows and keys of a tile in vLLM's count (use_cascade_attention)."""
FLASH_CAPABILITIES = (8.0, 13.0)
"""CUDA compute capabilities [from, before) on which vLLM attends by FlashAttention, but for `FLASHINFER`."""
FLASHINFER = (10.0, 12.0)  # By FlashInfer, whose cascades vLLM 0.12 leaves out.
FLASH_ATTENTION_2 = ((8.0, 9.0), (12.0, 13.0))
"""Capabilities on which it runs FlashAttention-2: Ampere and Ada, and consumer Blackwell."""
HOPPER = 9.0  # FlashAttention-3, which alone takes keys in FP8, and splits the keys of a tile over multiprocessors.


def can_cascade(shape: ReplicaShape, *, has_drafts: bool) -> bool:
    """Return whether a server may read a shared prefix once: plain attention without windows or states.

    Not with drafts that are scheduled ahead (vLLM 0.20.2 config/vllm.py), two-batch overlap (0.12.0 the same file), or
    contexts that ranks divide. Models with Mamba or linear attention are left out, which shared blocks first in 0.15.
    """
    engine, model, hardware = shape.engine, shape.model, shape.hardware
    if has_drafts and engine.async_scheduling:
        return False
    if engine.disable_cascade_attn or not engine.enable_prefix_caching or hardware.vendor != "NVIDIA":
        return False
    capability = float(hardware.compute_capability or 0.0)
    is_flash = FLASH_CAPABILITIES[0] <= capability < FLASH_CAPABILITIES[1]
    is_flash &= not FLASHINFER[0] <= capability < FLASHINFER[1] and shape.attention == "flash"
    if not is_flash or engine.attention_backend is not None:
        return False
    if shape.kv_element_bytes < 2.0 and capability != HOPPER:
        return False
    if shape.decode_context_parallel_size > 1 or shape.enable_two_batch_overlap or model.num_linear_layers:
        return False
    return all(layers.has_plain_heads and layers.sliding_window is None for layers in model.attention_layers)


def shared_read_share(
    shape: ReplicaShape, layers: AttentionLayers, machine: Machine, sequences: Array, key: Array, pair: float
) -> Array:
    """Return the seconds of decode attention with cascades over those without, by number of sequences.

    Exact for contexts of the traffic's mean length; in a step, longer ones are priced too low and shorter ones too
    high. Requests that computed the prefix beside each other, each into its own blocks, are taken to share it too. The
    shared part takes as long as reading it once, or as the arithmetic of its tiles, whose rows are padded.

    Args:
        layers: The layers.
        sequences: Decoding sequences: 0, 1, 2 and so on; over the stages of a pipeline.
        key: Seconds per key of one sequence in the layer.
        pair: Seconds per attended pair of a prompt in the layer.
    """
    prefix = shape.common_prefix_tokens // shape.engine.block_size * shape.engine.block_size
    if prefix < MIN_PREFIX_TOKENS or not shape.contexts:
        return np.ones_like(sequences)
    num_sms = machine.num_multiprocessors
    heads, kv_heads = (each / shape.tensor_parallel_size for each in (layers.num_heads, layers.num_kv_heads))
    requests = np.ceil(sequences / shape.pipeline_parallel_size)
    rows = requests * shape.tokens_per_decode
    context = max(float(np.mean(shape.contexts)), prefix + 1.0)
    is_used = requests >= MIN_REQUESTS
    if shape.tokens_per_decode == 1 and heads > kv_heads and num_sms > 1:
        tiles = np.ceil(prefix / TILE)
        cascade = np.ceil(heads * np.ceil(rows / TILE) / num_sms) * tiles
        is_used &= cascade < np.ceil(requests * max(kv_heads, 1.0) * tiles / num_sms)
    capability = float(shape.hardware.compute_capability or 0.0)
    if num_sms > 1 and any(start <= capability < end for start, end in FLASH_ATTENTION_2):
        size = float(shape.engine.mixed_decode_tile or TILE)
        waves = np.ceil(heads * np.ceil(rows / size) / num_sms)
        computing = waves * num_sms / heads * size * prefix * pair
    else:
        computing = np.ceil(rows / TILE) * TILE * prefix * pair
    shared = np.maximum(prefix * key, computing)
    apart = np.maximum(requests, 1.0) * context * key
    return np.where(is_used, (np.maximum(requests, 1.0) * (context - prefix) * key + shared) / apart, 1.0)
