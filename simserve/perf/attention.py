"""Seconds of attention: flash and standard kernels, prefill by attended pairs, decode by keys read, and the indexer.

Layers with a short sliding window cost their window. A longer window costs a straight line through what it lets the
traffic see; where no traffic is known, one of up to 1,024 tokens a line that suits contexts up to four windows, and a
longer one the whole context, an upper bound.

The indexer of sparse attention (DeepSeek-V3.2 and V4, GLM-5, MiniMax-M3): scoring keys, and choosing. Its projections
are among those of attention. A prompt of up to ``topk`` tokens attends to all of itself; in a longer one each token
attends to the ``topk`` keys that were chosen for it. Tables know the tokens of a step and not whose they are: several
short prompts in a step with more than ``topk`` tokens are priced as one long one, an upper bound. Decode steps are
priced over the whole context, an upper bound beyond ``topk``. Where keys and values are not latent, and of compressed
entries, prompts and decode steps alike attend to ``topk`` of them, an upper bound for shorter contexts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simserve.perf.efficiency import Array, Machine, attention_efficiency, memory_efficiency, start_latency
from simserve.perf.gemm import ACTIVATION_BYTES
from simserve.perf.operators import HOST, elementwise_parts
from simserve.perf.shape import ReplicaShape
from simserve.profiles.model import ModelProfile
from simserve.profiles.model_blocks import AttentionLayers, SparseIndexer

Contexts = tuple[float, ...] | None
"""Tokens of context that decode steps of the traffic see, each as likely; None: unknown."""
SCORE_PASSES = 4
"""Times a standard kernel moves the score matrix: writes S, reads S, writes P, reads P (algorithm 0 of Dao
et al., FlashAttention, 2022)."""
SCORE_BYTES = 2.0
"""Bytes of a score or probability that a standard kernel keeps in memory: 16 bit."""
SPARSE_HEADS = 64
"""Query heads that the sparse kernels of one vector for all heads compute at least, whatever a rank has (FlashMLA's
sparse prefill, ``h_q`` a multiple of 64, which SGLang pads to)."""
CAUSAL_WASTE = 2.0
"""Pairs a standard kernel computes for each attended one: it fills the whole square and masks half of it."""
SHORT_WINDOW = 256
"""Longest window, tokens, that nearly every context fills, so that its layers cost the same at any context."""
MEDIUM_WINDOW = 1024
"""Longest window, tokens, that many contexts outgrow: Gemma's. Most contexts stay within those of 4,096 and more."""
WINDOWS_REACHED = 4.0
"""Contexts, in windows, that the straight line for a medium window is made for."""
UNSHARED_BANDWIDTH = 3.7e12
"""Bytes/s at which the query heads of a group, each for itself, read keys through the L2 cache: what the decode steps
of TensorRT-LLM 0.5 to 0.7 leave for attention, Llama-2-70B on H100 (3.0 to 4.0 TB/s)."""
FLASH_CAPABILITY = 8.0
"""CUDA compute capability from which FlashAttention-2 runs (Ampere)."""
TILE_PAIRS = 128 * 128 / 2
"""Pairs a request computes beyond its own: half of a 128 x 128 tile of its last rows (FlashAttention-2
tiles)."""
TRITON_LATENT_DECODE_FLOPS = 35e12
"""FLOP/s of Triton's decodes of latent attention on NVIDIA's GPUs: a block of 16 heads reads the keys. 30 and 36e12 on
an H800 (FlagGems pull request 510), 40e12 on eight H200 (vLLM pull request 13747); on Blackwell no more is assumed."""
TRITON_LATENT_HEADS, TRITON_LATENT_SPLITS = 16, {"vllm": 4, "sglang": 8}
"""Heads of a thread block of that kernel (SGLang triton_ops/decode_attention.py, BLOCK_H), and the parts into which it
cuts a sequence's keys at most (vLLM triton_mla.py, SGLang server_args.py)."""
INDEX_SMALL_CALLS = 8
"""Element-wise kernels of a layer: norm and rotary embedding of the key, a Hadamard transform and rounding to FP8 of
queries and key each, storing the key, scaling the heads' weights (``nsa_indexer.py`` of SGLang, ``DeepseekV32Indexer``
of vLLM). Seen in 5 servers of GLM-5: 2.6 to 2.8 ms a step over 78 layers, where these and the two below say 2.1."""
INDEX_LARGE_CALLS = 2
"""Kernels that walk the context as attention does: the scores, and the choice of the best."""
INDEX_SCORE_BYTES = 4.0
"""Bytes of a score, FP32."""
INDEX_SCORE_PASSES = 2.0
"""Times that a score moves through memory: written, and read by the choice."""
SPARSE_SHARE = 0.65
"""Share of the 16-bit peak that sparse kernels reach: 640 TFLOP/s on an H800 (deepseek-ai/FlashMLA, README)."""


def growing_share(model: ModelProfile, layers: AttentionLayers, contexts: Contexts = None) -> float:
    """Return what a further token of context costs these layers, as a share of all layers seeing all of it.

    Layers that choose a fixed number of keys or entries, and those of a short window, see no more of a longer one;
    those that choose of a latent cache are priced over all of it, an upper bound (`simserve.perf.attention`).
    ``contexts`` as `simserve.perf.shape.ReplicaShape` has them.
    """
    share = layers.num_layers / model.num_hidden_layers
    if layers.compressed is not None:
        return 0.0 if layers.topk is not None or not layers.ratio else share / layers.ratio
    if layers.topk is not None and layers.mla is None:
        return 0.0
    windowed = layers.num_sliding_layers / model.num_hidden_layers
    return share - windowed * (1.0 - _window_line(layers.sliding_window, contexts)[0])


def window_keys(model: ModelProfile, layers: AttentionLayers, contexts: Contexts = None) -> float:
    """Return the keys that a query sees in these layers at any context, spread over all layers of the model.

    Of a window, and of chosen keys or entries as if every context had so many: an upper bound for shorter ones.
    """
    chosen = layers.topk or 0
    if layers.compressed is not None:
        return (layers.compressed.window + chosen) * layers.num_layers / model.num_hidden_layers
    if chosen and layers.mla is None:
        return chosen * layers.num_layers / model.num_hidden_layers
    base = _window_line(layers.sliding_window, contexts)[1]
    return base * layers.num_sliding_layers / model.num_hidden_layers


def _window_line(window: int | None, contexts: Contexts) -> tuple[float, float]:
    """Return slope and base of the keys that a layer sees, by context: ``min(context, window)`` as a straight line.

    A short window is full at once. Of a longer one the line of least squares over the contexts of the traffic, whose
    mean is exact. Without any, for a medium window the line with the least largest error up to `WINDOWS_REACHED`
    windows: at most 0.375 of the window off, above or below; beyond, too high by a quarter of what exceeds them.
    """
    if window is None:
        return 1.0, 0.0
    if window <= SHORT_WINDOW:
        return 0.0, float(window)
    if contexts is not None:
        return _least_squares(window, np.asarray(contexts))
    if window > MEDIUM_WINDOW:
        return 1.0, 0.0
    slope = 1.0 / WINDOWS_REACHED
    return slope, 0.5 * (1.0 - slope) * window


def _least_squares(window: int, contexts: Array) -> tuple[float, float]:
    seen = np.minimum(contexts, window)
    spread = contexts - contexts.mean()
    squares = float(spread @ spread)
    if squares == 0.0:
        return (1.0, 0.0) if contexts[0] <= window else (0.0, float(window))
    slope = float(spread @ seen) / squares
    return slope, float(seen.mean() - slope * contexts.mean())


def score_bytes(num_queries: int, num_keys: int, num_heads: float, bytes_per_element: float = SCORE_BYTES) -> float:
    """Return the bytes of the score matrices that a standard (not flash) kernel writes for one sequence.

    ``heads x queries x keys`` elements (FlashAttention, arXiv 2205.14135, algorithm 0); flash kernels never write them.
    """
    return num_queries * num_keys * num_heads * bytes_per_element


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """One attention layer on one rank.

    Attributes:
        num_heads: Query heads on the rank.
        prefill_flops_per_pair: Flops a query-key pair in prefill, all heads of the rank.
        decode_flops_per_key: Flops a key read in decode; MLA decodes against the compressed latent.
        kv_bytes_per_token: Bytes that a key (of compressed attention an entry) takes, read from memory on the rank.
    """

    num_heads: float
    prefill_flops_per_pair: float
    decode_flops_per_key: float
    kv_bytes_per_token: float


def dot_product_flops(num_heads: float, key_dim: float, value_dim: float) -> float:
    """Return the flops of one query-key pair: ``2 d`` for the score and ``2 d`` for the value, each head."""
    return 2.0 * num_heads * (key_dim + value_dim)


def attention_of(layers: AttentionLayers, tensor_parallel_size: int, kv_element_bytes: float) -> AttentionShape:
    """Return one attention layer on one rank.

    MLA decodes in its latent space (absorption), compressed attention prefills there too.
    """
    heads = layers.num_heads / tensor_parallel_size
    prefill = decode = dot_product_flops(heads, layers.head_dim, layers.v_head_dim)
    if layers.compressed is not None:
        prefill = decode = dot_product_flops(max(heads, SPARSE_HEADS), layers.head_dim, layers.head_dim)
    if layers.mla is not None:
        latent, rotary = layers.mla.kv_lora_rank, layers.mla.qk_rope_head_dim
        prefill = dot_product_flops(heads, layers.head_dim, layers.mla.v_head_dim)
        decode = dot_product_flops(heads, latent + rotary, latent)
    read = layers.entry_bytes if layers.mla is None else layers.read_bytes
    return AttentionShape(
        num_heads=heads,
        prefill_flops_per_pair=prefill,
        decode_flops_per_key=decode,
        kv_bytes_per_token=read(kv_element_bytes, tensor_parallel_size),
    )


def decode_key_seconds(shape: AttentionShape, machine: Machine, dtype: str, *, is_flash: bool) -> float:
    """Return the seconds that one more key in the context costs a decode step, one layer."""
    scores = 0.0 if is_flash else SCORE_PASSES * SCORE_BYTES * shape.num_heads
    memory = (shape.kv_bytes_per_token + scores) / (machine.bandwidth * memory_efficiency(machine, "attention_decode"))
    efficiency = attention_efficiency(machine)
    return float(max(memory, shape.decode_flops_per_key / (machine.peak(dtype) * efficiency)))


def reads_keys_by_query_head(shape: ReplicaShape) -> bool:
    """Return whether each query head reads its keys itself, as PagedAttention does on GPUs before Ampere.

    It does so at the bandwidth of the memory, as if nothing were cached: 1.05 TB/s of a V100S (vLLM 0.7.3, Llama-3.1-8B
    at 28,650 tokens, AccelMark).
    """
    capability = shape.hardware.compute_capability
    is_old = capability is not None and float(capability) < FLASH_CAPABILITY
    return is_old and shape.engine.has_paged_attention_kernel


def triton_latent_seconds(shape: ReplicaShape, machine: Machine, attention: AttentionShape, sequences: Array) -> Array:
    """Return the least seconds that Triton's decodes of latent attention take a key and layer; 0 by other kernels.

    A thread block has 16 heads of a part of a sequence's keys, so that few sequences leave multiprocessors idle.
    """
    engine, vendor = shape.engine, shape.hardware.vendor
    is_asked = engine.attention_backend == "triton" and vendor == "NVIDIA"
    rate = TRITON_LATENT_DECODE_FLOPS if is_asked else engine.latent_decode_flops.get(vendor, np.inf)
    blocks = np.ceil(attention.num_heads / TRITON_LATENT_HEADS)
    parts = np.maximum(sequences, 1.0) * blocks * TRITON_LATENT_SPLITS.get(engine.name, 1)
    idle = np.maximum(machine.num_multiprocessors / parts, 1.0)
    computed = TRITON_LATENT_HEADS * blocks / attention.num_heads
    return np.asarray(attention.decode_flops_per_key * computed * idle / rate)


def unshared_key_seconds(
    layers: AttentionLayers,
    kv_bytes_per_token: float,
    shared_groups: tuple[int, ...] | None,
    bandwidth: float = UNSHARED_BANDWIDTH,
) -> float:
    """Return the least seconds of one more key of a decode step, one layer, where every query head reads it itself.

    Args:
        layers: The layers.
        kv_bytes_per_token: KV of a token in one layer of one rank.
        shared_groups: Query heads a key-value head whose kernel reads keys once; None: any.
        bandwidth: Bytes/s of these reads.

    Returns:
        0 where the kernel reads keys once.
    """
    group = layers.num_heads // layers.num_kv_heads
    if shared_groups is None or not layers.has_plain_heads or group == 1 or group in shared_groups:
        return 0.0
    return group * kv_bytes_per_token / bandwidth


def prefill_pair_seconds(shape: AttentionShape, machine: Machine, dtype: str, *, is_flash: bool) -> float:
    """Return the seconds of an attended query-key pair of a prefill, one layer.

    A standard kernel computes the masked half too and moves the scores through memory.
    """
    efficiency = attention_efficiency(machine)
    compute = shape.prefill_flops_per_pair / (machine.peak(dtype) * efficiency)
    if is_flash:
        return compute
    scores = SCORE_PASSES * SCORE_BYTES * shape.num_heads
    memory = scores / (machine.bandwidth * memory_efficiency(machine, "attention_prefill"))
    return CAUSAL_WASTE * max(compute, memory)


def prefill_key_seconds(shape: AttentionShape, machine: Machine) -> float:
    """Return the seconds of reading one key and value in a prefill, one layer."""
    return shape.kv_bytes_per_token / (machine.bandwidth * memory_efficiency(machine, "attention_prefill"))


def indexer_parts(indexer: SparseIndexer, machine: Machine, tokens: Array) -> Array:
    """Return the seconds by part of one layer's indexer, keys left out, on every rank alike, ``[5, len(tokens)]``."""
    moved = INDEX_SMALL_CALLS * (indexer.num_heads + 1) * indexer.head_dim * ACTIVATION_BYTES
    parts = elementwise_parts(moved, tokens, machine, INDEX_SMALL_CALLS)
    parts[HOST] += INDEX_LARGE_CALLS * start_latency(machine, "attention_decode")
    return parts


def index_key_seconds(indexer: SparseIndexer | None, machine: Machine) -> float:
    """Return the seconds of one more key in the context of a decoding sequence, one layer; 0 without an indexer."""
    if indexer is None:
        return 0.0
    moved = indexer.key_bytes + INDEX_SCORE_PASSES * INDEX_SCORE_BYTES / indexer.pooled_tokens
    return max(
        moved / (machine.bandwidth * memory_efficiency(machine, "attention_decode")), _products(indexer, machine)
    )


def index_pair_seconds(indexer: SparseIndexer | None, machine: Machine) -> float:
    """Return the seconds of one more query-key pair of a prompt, one layer; 0 without an indexer."""
    if indexer is None:
        return 0.0
    scores = (
        INDEX_SCORE_PASSES * INDEX_SCORE_BYTES / (machine.bandwidth * memory_efficiency(machine, "attention_prefill"))
    )
    return _products(indexer, machine) + scores / indexer.pooled_tokens


def _products(indexer: SparseIndexer, machine: Machine) -> float:
    """Return the seconds of a token's products with one query, in FP8 where the GPU has it; tokens may share a key."""
    dtype = next(dtype for dtype in ("fp8", "bf16", "fp16") if dtype in machine.peaks)
    flops = 2.0 * indexer.num_heads * indexer.head_dim / indexer.pooled_tokens
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
