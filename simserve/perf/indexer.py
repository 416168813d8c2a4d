"""Seconds of the indexer of sparse attention (DeepSeek-V3.2 and V4, GLM-5, MiniMax-M3): scoring keys, and choosing.

Its projections are among those of attention. A prompt of up to ``topk`` tokens attends to all of itself; in a longer
one each token attends to the ``topk`` keys that were chosen for it. Tables know the tokens of a step and not whose they
are: several short prompts in a step with more than ``topk`` tokens are priced as one long one, an upper bound. Decode
steps are priced over the whole context, an upper bound beyond ``topk``. Where keys and values are not latent, and of
compressed entries, prompts and decode steps alike attend to ``topk`` of them, an upper bound for shorter contexts.
"""

from __future__ import annotations

import numpy as np

from simserve.perf.attention import SPARSE_HEADS, dot_product_flops
from simserve.perf.efficiency import Array, Machine, attention_efficiency, memory_efficiency, start_latency
from simserve.perf.gemm import ACTIVATION_BYTES
from simserve.perf.operators import HOST, elementwise_parts
from simserve.profiles.model import AttentionLayers, ModelProfile, SparseIndexer

SMALL_CALLS = 8
"""Element-wise kernels of a layer: norm and rotary embedding of the key, a Hadamard transform and rounding to FP8 of
queries and key each, storing the key, scaling the heads' weights (``nsa_indexer.py`` of SGLang, ``DeepseekV32Indexer``
of vLLM). Seen in 5 servers of GLM-5: 2.6 to 2.8 ms a step over 78 layers, where these and the two below say 2.1."""

LARGE_CALLS = 2
"""Kernels that walk the context as attention does: the scores, and the choice of the best."""

SCORE_BYTES = 4.0
"""Bytes of a score, FP32."""

SCORE_PASSES = 2.0
"""Times that a score moves through memory: written, and read by the choice."""

SPARSE_SHARE = 0.65
"""Share of the 16-bit peak that sparse kernels reach: 640 TFLOP/s on an H800 (deepseek-ai/FlashMLA, README)."""


def indexer_parts(indexer: SparseIndexer, machine: Machine, tokens: Array) -> Array:
    """Return the seconds by part of one layer's indexer, keys left out, on every rank alike, ``[5, len(tokens)]``."""
    moved = SMALL_CALLS * (indexer.num_heads + 1) * indexer.head_dim * ACTIVATION_BYTES
    parts = elementwise_parts(moved, tokens, machine, SMALL_CALLS)
    parts[HOST] += LARGE_CALLS * start_latency(machine, "attention_decode")
    return parts


def index_key_seconds(indexer: SparseIndexer | None, machine: Machine) -> float:
    """Return the seconds of one more key in the context of a decoding sequence, one layer; 0 without an indexer."""
    if indexer is None:
        return 0.0
    moved = indexer.key_bytes + SCORE_PASSES * SCORE_BYTES
    return max(
        moved / (machine.bandwidth * memory_efficiency(machine, "attention_decode")), _products(indexer, machine)
    )


def index_pair_seconds(indexer: SparseIndexer | None, machine: Machine) -> float:
    """Return the seconds of one more query-key pair of a prompt, one layer; 0 without an indexer."""
    if indexer is None:
        return 0.0
    scores = SCORE_PASSES * SCORE_BYTES / (machine.bandwidth * memory_efficiency(machine, "attention_prefill"))
    return _products(indexer, machine) + scores


def _products(indexer: SparseIndexer, machine: Machine) -> float:
    """Return the seconds of a key's products with one query, in FP8 where the GPU has it."""
    dtype = next(dtype for dtype in ("fp8", "bf16", "fp16") if dtype in machine.peaks)
    flops = 2.0 * indexer.num_heads * indexer.head_dim
    return flops / (machine.peak(dtype) * attention_efficiency(machine))


def index_share(model: ModelProfile, layers: AttentionLayers) -> float:
    """Return the index keys that a further token of context adds in these layers, a share of one in every layer."""
    if layers.indexer is None:
        return 0.0
    return layers.num_layers / model.num_hidden_layers / max(layers.ratio, 1)


def sparse_prompt_seconds(
    layers: AttentionLayers, num_ranks: int, machine: Machine, tokens: Array, pair: float
) -> Array:
    """Return the seconds of attention of a prompt in one layer, beside the indexer's, shape of ``tokens``.

    0 where nothing is chosen of a latent cache.

    Args:
        layers: The layers.
        num_ranks: Ranks that the heads are dealt to.
        machine: One GPU.
        tokens: Tokens of a step.
        pair: Seconds of an attended pair of a prompt that attends to all of itself.
    """
    if layers.topk is None or layers.mla is None:
        return np.zeros_like(tokens)
    topk, latent = layers.topk, layers.mla.kv_lora_rank
    heads = max(SPARSE_HEADS, layers.num_heads // num_ranks)
    flops = dot_product_flops(heads, latent + layers.mla.qk_rope_head_dim, latent)
    dtype = "bf16" if "bf16" in machine.peaks else "fp16"
    chosen = topk * max(flops / (machine.peak(dtype) * SPARSE_SHARE * machine.engine_scale), 0.5 * pair)
    return np.where(tokens > topk, tokens * chosen, 0.5 * pair * tokens * tokens)
