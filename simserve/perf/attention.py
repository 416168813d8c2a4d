"""Seconds of attention: flash and standard kernels, prefill by attended pairs, decode by keys read, and the indexer.

Layers with a short sliding window cost their window. A longer window costs a straight line through what the traffic
sees in it. Without known traffic, a window of up to 1,024 tokens costs a line that suits contexts up to four windows,
and a longer one the whole context, an upper bound.

The indexer of sparse attention (DeepSeek-V3.2 and V4, GLM-5, MiniMax-M3) scores keys and chooses among them. Its
projections are among those of attention. A prompt of up to ``topk`` tokens attends to all of itself; in a longer one
each token attends to the ``topk`` keys chosen for it. Tables know the tokens of a step, not whose they are: several
short prompts in a step with more than ``topk`` tokens are priced as one long one, an upper bound. Decode steps are
priced over the whole context, an upper bound beyond ``topk``. If keys and values are not latent, and for compressed
entries, both prompts and decode steps attend to ``topk`` of them, an upper bound for shorter contexts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simserve.perf.efficiency import Array, Machine, attention_efficiency, memory_efficiency, start_latency
from simserve.perf.gemm import ACTIVATION_BYTES
from simserve.perf.operators import HOST, elementwise_parts
from simserve.perf.quantization import MARLIN_ON_HOPPER
from simserve.perf.shape import ReplicaShape
from simserve.profiles.attention_kinds import SparseIndexer
from simserve.profiles.hardware import HardwareProfile
from simserve.profiles.model import ModelProfile
from simserve.profiles.model_blocks import AttentionLayers

Contexts = tuple[float, ...] | None
"""Context lengths in tokens that decode steps of the traffic see, all equally likely; None: unknown."""
SCORE_PASSES = 4
"""Passes of a standard kernel over the score matrix: writes S, reads S, writes P, reads P (algorithm 0 of Dao et al.,
FlashAttention, 2022)."""
SCORE_BYTES = 2.0  # Bytes per score or probability that a standard kernel keeps in memory: 16 bit.
SPARSE_HEADS = 64
"""Least query heads for which the sparse kernels with one vector for all heads compute, whatever a rank has (FlashMLA's
sparse prefill, ``h_q`` a multiple of 64, to which SGLang pads)."""
CAUSAL_WASTE = 2.0
"""Pairs that a standard kernel computes per attended one: it fills the whole square and masks half of it."""
SHORT_WINDOW = 256
"""Longest window, tokens, that nearly every context fills, so that its layers cost the same at any context."""
MEDIUM_WINDOW = 1024
"""Longest window, tokens, that many contexts exceed: Gemma's. Most contexts stay within windows of 4,096 and more."""
WINDOWS_REACHED = 4.0  # Longest context, in windows, for which the straight line of a medium window is made.
UNSHARED_BANDWIDTH = 3.7e12
"""Bytes/s at which the query heads of a group, each separately, read keys through the L2 cache: what the decode steps
of TensorRT-LLM 0.5 to 0.7 leave for attention, Llama-2-70B on H100 (3.0 to 4.0 TB/s)."""
FLASH_CAPABILITY = 8.0  # CUDA compute capability from which FlashAttention-2 runs (Ampere).
TILE_PAIRS = 128 * 128 / 2
"""Pairs that a request computes beyond its own: half of a 128 x 128 tile of its last rows (FlashAttention-2 tiles)."""
TRITON_LATENT_DECODE_FLOPS = 35e12
"""FLOP/s of Triton's decodes of latent attention on NVIDIA GPUs: a block of 16 heads reads the keys. 30 and 36e12 on an
H800 (FlagGems pull request 510), 40e12 on eight H200 (vLLM pull request 13747); assumed no higher on Blackwell."""
TRITON_LATENT_HEADS, TRITON_LATENT_SPLITS = 16, {"vllm": 4, "sglang": 8}
"""Heads per thread block of that kernel (SGLang triton_ops/decode_attention.py, BLOCK_H), and the most parts into which
it splits a sequence's keys (vLLM triton_mla.py, SGLang server_args.py)."""
AMD_LATENT_SHARE, AMD_LATENT_SPLITS = 0.097, {"sglang": 16}
"""Share of the 16-bit peak at which AMD's GPUs run that kernel, and where it is cut into more parts there (SGLang 0.5.9
to 0.5.18 server_args.py). Fitted to what a token of Kimi-K2.6 takes longer behind 32,768 tokens than behind 1,024 (4.4
ms, one sequence over four MI355X, 16 of 256 compute units: SGLang pull request 23381); tested on vLLM's MLA by Triton
of three laboratories, see calibration/LOG.md."""
WIDEST_SHARED = 256.0
"""Widest head of the usual kernels (FlashAttention-2 and -3); Gemma-4's full attention has 512. Where FlashAttention-4
does not run, vLLM and SGLang leave such models to Triton (vLLM 0.19.1, 0.24.0 and 0.30.0 models/config.py,
Gemma4Config; SGLang pull request 25006)."""
TRITON_WIDE_SHARE = 0.101 / MARLIN_ON_HOPPER
"""Share of the 16-bit peak at which Triton computes prompts of wider heads: SGLang's in 16 bit on H100 and H200 (their
`widest_compute`), whose tiles of 32 rows (extend_attention.py of 0.5.9) are too small for Hopper's own instructions. On
GPUs that have no others it is a share of the whole peak. Keys in 8 bit are taken as those in 16."""
AMD_WIDE_SHARE = 80.0 / 1307.4
"""The same on AMD's GPUs, in AITER's Triton kernel: 79 to 80 TFLOP/s of an MI325X's 1,307 with prompts of 2,048 to
32,768 tokens (aiter pull request 5664); 107 ms a layer of 16,384 tokens inside vLLM are 82 (5649)."""
AMD_MEDIUM_SHARES = {"vllm": 160.0 / 1307.4, "sglang": 250.0 / 1307.4}
"""The same by engine for heads above `TRITON_NARROW` to `WIDEST_SHARED` where Triton's kernels run: heads of 256 on an
MI325X, prompts of 8,192 and 32,768 tokens (aiter pull request 5664, 2026-09-18), 159 and 160 TFLOP/s by tiles of 16
rows, which vLLM's are, 265 and 234 by tiles of 64, as SGLang's on ROCm (triton_ops/extend_attention.py of 0.5.10 to
0.5.17). Not fitted to: what prompts of 32,768 and 131,072 tokens of Qwen3.5-122B on an MI300X under SGLang 0.5.9 leave,
233 TFLOP/s."""
TRITON_NARROW = 128.0
"""Widest head whose prompts Triton's kernels on AMD's GPUs are taken to compute as AITER's do; none was timed."""
WIDE_HEAD_ENGINES = ("vllm", "sglang")
INDEX_SMALL_CALLS = 8
"""Element-wise kernels per layer: norm and rotary embedding of the key, a Hadamard transform and rounding to FP8 for
queries and key each, storing the key, scaling the heads' weights (``nsa_indexer.py`` of SGLang, ``DeepseekV32Indexer``
of vLLM). In 5 servers of GLM-5 they take 2.6 to 2.8 ms a step over 78 layers; these and the two below give 2.1."""
INDEX_LARGE_CALLS = 2  # Kernels that read the context as attention does: scoring, and choosing the best.
INDEX_SCORE_BYTES = 4.0  # Bytes per score, FP32.
INDEX_SCORE_PASSES = 2.0  # Passes of a score through memory: written, and read to choose.
COMPRESSED_START_SECONDS, COMPRESSED_TOKEN_SECONDS = 12e-6, 70e-9
"""Seconds per layer of compressed attention, and further ones per token, around FlashMLA's sparse kernel: chosen
keys copied to 16 bit, queries of a rank padded to 64 heads, compression, the start of these kernels. Fitted to
heavily compressed layers of DeepSeek-V4-Flash on an H200 (AIConfigurator's modules, SGLang 0.5.14): decodes of one
sequence (11 us) and prompts of 8,192 tokens on 1 to 8 ranks (59 to 79 ns). Tested on H100 and B200 (13 us, 62 to 95
ns), under vLLM 0.24 (11 to 13 us, 69 to 118 ns) and on decodes of 256 (30 us; 32, 51, and 38 to 43): what products
and entries leave."""
FLASH_MLA_CAPABILITIES = (9.0, 11.0)
"""CUDA compute capabilities [from, before) of that kernel; others run kernels that no table has."""
SPARSE_SHARE = 0.65
"""Share of the 16-bit peak that sparse kernels reach: 640 TFLOP/s on an H800 (deepseek-ai/FlashMLA, README)."""


def growing_share(model: ModelProfile, layers: AttentionLayers, contexts: Contexts = None) -> float:
    """Return the cost of a further token of context in these layers, as a share of all layers with full attention.

    Layers that choose a fixed number of keys or entries, and those with a short window, see no more of a longer
    context; those that choose from a latent cache are priced over all of it, an upper bound
    (`simserve.perf.attention`). ``contexts`` as in `simserve.perf.shape.ReplicaShape`.
    """
    share = layers.num_layers / model.num_hidden_layers
    if layers.compressed is not None:
        return 0.0 if layers.topk is not None or not layers.ratio else share / layers.ratio
    if layers.topk is not None and layers.mla is None:
        return 0.0
    windowed = layers.num_sliding_layers / model.num_hidden_layers
    return share - windowed * (1.0 - _window_line(layers.sliding_window, contexts)[0])


def window_keys(model: ModelProfile, layers: AttentionLayers, contexts: Contexts = None) -> float:
    """Return the context-independent number of keys that a query sees in these layers, averaged over all layers.

    Counts windows, and chosen keys or entries as if every context had that many: an upper bound for shorter ones.
    """
    chosen = layers.topk or 0
    if layers.compressed is not None:
        return (layers.compressed.window + chosen) * layers.num_layers / model.num_hidden_layers
    if chosen and layers.mla is None:
        return chosen * layers.num_layers / model.num_hidden_layers
    base = _window_line(layers.sliding_window, contexts)[1]
    return base * layers.num_sliding_layers / model.num_hidden_layers


def _window_line(window: int | None, contexts: Contexts) -> tuple[float, float]:
    """Return slope and base of the keys that a layer sees by context: ``min(context, window)`` as a straight line.

    A short window counts as always full. For a longer one: the least-squares line over the contexts of the traffic,
    exact in the mean. Without traffic, for a medium window: the line with the smallest maximum error up to
    `WINDOWS_REACHED` windows, at most 0.375 of the window above or below; beyond, too high by 25 % of the excess.
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
    """One attention layer on one rank."""

    num_heads: float  # Query heads on the rank.
    prefill_flops_per_pair: float  # FLOP per query-key pair in prefill, all heads of the rank.
    decode_flops_per_key: float  # FLOP per key read in decode; MLA decodes against the compressed latent.
    kv_bytes_per_token: float  # Bytes per key (in compressed attention per entry) read from memory on the rank.


def dot_product_flops(num_heads: float, key_dim: float, value_dim: float) -> float:
    """Return the FLOP of one query-key pair: ``2 d`` for the score and ``2 d`` for the value, per head."""
    return 2.0 * num_heads * (key_dim + value_dim)


def attention_of(layers: AttentionLayers, tensor_parallel_size: int, kv_element_bytes: float) -> AttentionShape:
    """Return one attention layer on one rank.

    MLA decodes in its latent space (absorption); compressed attention also prefills there.
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
    """Return the seconds per additional key of context in a decode step, one layer."""
    scores = 0.0 if is_flash else SCORE_PASSES * SCORE_BYTES * shape.num_heads
    memory = (shape.kv_bytes_per_token + scores) / (machine.bandwidth * memory_efficiency(machine, "attention_decode"))
    efficiency = attention_efficiency(machine)
    return float(max(memory, shape.decode_flops_per_key / (machine.peak(dtype) * efficiency)))


def reads_keys_by_query_head(shape: ReplicaShape) -> bool:
    """Return whether each query head reads its own keys, as PagedAttention does on GPUs before Ampere.

    It does so at the memory bandwidth, as if nothing were cached: 1.05 TB/s on a V100S (vLLM 0.7.3, Llama-3.1-8B at
    28,650 tokens, AccelMark).
    """
    capability = shape.hardware.compute_capability
    is_old = capability is not None and float(capability) < FLASH_CAPABILITY
    return is_old and shape.engine.has_paged_attention_kernel


def triton_latent_seconds(shape: ReplicaShape, machine: Machine, attention: AttentionShape, sequences: Array) -> Array:
    """Return the least seconds per key and layer of Triton's decodes of latent attention; 0 for other kernels.

    A thread block covers 16 heads and a part of a sequence's keys, so that few sequences leave multiprocessors idle. On
    AMD's GPUs it runs where the engine calls Triton's attention (vLLM 0.9 to 0.18, unless AITER is on), but for sparse
    attention, which has kernels of its own.
    """
    engine, vendor = shape.engine, shape.hardware.vendor
    is_asked = engine.attention_backend == "triton" and vendor == "NVIDIA"
    rate = TRITON_LATENT_DECODE_FLOPS if is_asked else engine.latent_decode_flops.get(vendor, np.inf)
    splits = TRITON_LATENT_SPLITS.get(engine.name, 1)
    backend = engine.attention_backend or engine.attention_backends.get(vendor)
    if vendor == "AMD" and backend == "triton" and shape.model.indexer is None:
        rate, splits = AMD_LATENT_SHARE * machine.peak("bf16"), AMD_LATENT_SPLITS.get(engine.name, splits)
    blocks = np.ceil(attention.num_heads / TRITON_LATENT_HEADS)
    parts = np.maximum(sequences, 1.0) * blocks * splits
    idle = np.maximum(machine.num_multiprocessors / parts, 1.0)
    computed = TRITON_LATENT_HEADS * blocks / attention.num_heads
    return np.asarray(attention.decode_flops_per_key * computed * idle / rate)


def serial_key_seconds(shape: ReplicaShape, layers: AttentionLayers, sequences: Array) -> Array:
    """Return the least seconds per key and layer where a sequence's keys are read one after another; 0 elsewhere.

    Heads and sequences run beside each other. On AMD's GPUs vLLM decodes so behind its default backend where that has
    no kernel in HIP (Triton's kernel_paged_attention_2d); times are known of models with recurrent layers and wide
    heads alone. Steps with drafts have other kernels.
    """
    engine, vendor = shape.engine, shape.hardware.vendor
    key = engine.serial_decode_keys.get(vendor, 0.0)
    if vendor == "AMD":
        is_wide = TRITON_NARROW < layers.head_dim <= WIDEST_SHARED and shape.model.num_linear_layers > 0
        key = key if is_wide and engine.attention_backend is None else 0.0
    if shape.tokens_per_decode > 1 or not layers.has_plain_heads:
        return np.zeros(1)
    return np.asarray(key / np.ceil(np.maximum(sequences, 1.0) / shape.pipeline_parallel_size))


def unshared_key_seconds(
    layers: AttentionLayers,
    kv_bytes_per_token: float,
    shared_groups: tuple[int, ...] | None,
    bandwidth: float = UNSHARED_BANDWIDTH,
) -> float:
    """Return the least seconds per additional key of a decode step, one layer, if every query head reads its own keys.

    Args:
        layers: The layers.
        kv_bytes_per_token: KV bytes per token in one layer on one rank.
        shared_groups: Query heads per key-value head for which the kernel reads keys once; None: any number.
        bandwidth: Bytes/s of these reads.

    Returns:
        0 if the kernel reads keys once.
    """
    group = layers.num_heads // layers.num_kv_heads
    if shared_groups is None or not layers.has_plain_heads or group == 1 or group in shared_groups:
        return 0.0
    return group * kv_bytes_per_token / bandwidth


def triton_wide_share(shape: ReplicaShape, layers: AttentionLayers) -> float | None:
    """Return the share of the peak of prompts that no kernel but Triton's computes; None for other layers.

    Such are heads above `WIDEST_SHARED` on NVIDIA's and AMD's GPUs; those with fitted curves have a share of their own.
    On AMD's, so are heads above `TRITON_NARROW` where the engine calls Triton's kernels.
    """
    engine, vendor = shape.engine, shape.hardware.vendor
    if not layers.has_plain_heads or engine.name not in WIDE_HEAD_ENGINES:
        return None
    if layers.head_dim > WIDEST_SHARED:
        return {"NVIDIA": TRITON_WIDE_SHARE, "AMD": AMD_WIDE_SHARE}.get(vendor)
    is_triton = (engine.attention_backend or engine.attention_backends.get(vendor)) == "triton"
    return AMD_MEDIUM_SHARES[engine.name] if is_triton and has_triton_prompts(shape.hardware, layers) else None


def has_triton_prompts(hardware: HardwareProfile, layers: AttentionLayers) -> bool:
    """Return whether prompts take another time by Triton's kernels of attention than by the GPU's own."""
    return hardware.vendor == "AMD" and layers.has_plain_heads and TRITON_NARROW < layers.head_dim <= WIDEST_SHARED


def prefill_pair_seconds(
    shape: AttentionShape, machine: Machine, dtype: str, *, is_flash: bool, peak_share: float | None = None
) -> float:
    """Return the seconds per attended query-key pair in prefill, one layer.

    A standard kernel also computes the masked half and moves the scores through memory. ``peak_share``: what a flash
    kernel reaches if it is known for these heads, in place of the GPU's class.
    """
    own = None if peak_share is None else peak_share * machine.engine_scale
    efficiency = own or attention_efficiency(machine)
    compute = shape.prefill_flops_per_pair / (machine.peak(dtype) * efficiency)
    if is_flash:
        return compute
    scores = SCORE_PASSES * SCORE_BYTES * shape.num_heads
    memory = scores / (machine.bandwidth * memory_efficiency(machine, "attention_prefill"))
    return CAUSAL_WASTE * max(compute, memory)


def prefill_key_seconds(shape: AttentionShape, machine: Machine) -> float:
    """Return the seconds to read one key and value in prefill, one layer."""
    return shape.kv_bytes_per_token / (machine.bandwidth * memory_efficiency(machine, "attention_prefill"))


def indexer_parts(
    indexer: SparseIndexer, machine: Machine, tokens: Array, small_calls: int = INDEX_SMALL_CALLS
) -> Array:
    """Return the seconds by part of one layer's indexer on a rank, without keys, ``[5, len(tokens)]``."""
    moved = small_calls * (indexer.num_heads + 1) * indexer.head_dim * ACTIVATION_BYTES
    parts = elementwise_parts(moved, tokens, machine, small_calls)
    parts[HOST] += INDEX_LARGE_CALLS * start_latency(machine, "attention_decode")
    return parts


def index_key_seconds(indexer: SparseIndexer | None, machine: Machine) -> float:
    """Return the seconds per additional key in the context of a decoding sequence, one layer; 0 without an indexer."""
    if indexer is None:
        return 0.0
    moved = indexer.key_bytes + INDEX_SCORE_PASSES * INDEX_SCORE_BYTES / indexer.pooled_tokens
    return max(
        moved / (machine.bandwidth * memory_efficiency(machine, "attention_decode")),
        _products(indexer, machine, attention_efficiency(machine)),
    )


def index_pair_seconds(indexer: SparseIndexer | None, machine: Machine) -> float:
    """Return the seconds per additional query-key pair of a prompt, one layer; 0 without an indexer."""
    if indexer is None:
        return 0.0
    scores = (
        INDEX_SCORE_PASSES * INDEX_SCORE_BYTES / (machine.bandwidth * memory_efficiency(machine, "attention_prefill"))
    )
    own = machine.indexer_efficiency if indexer.key_format == "fp8" else None
    share = attention_efficiency(machine) if own is None else own * machine.engine_scale
    return _products(indexer, machine, share) + scores / indexer.pooled_tokens


def _products(indexer: SparseIndexer, machine: Machine, share: float) -> float:
    """Return the seconds of a token's products with one query, in FP8 if the GPU has it; tokens may share a key."""
    dtype = next(dtype for dtype in ("fp8", "bf16", "fp16") if dtype in machine.peaks)
    flops = 2.0 * indexer.num_heads * indexer.head_dim / indexer.pooled_tokens
    return flops / (machine.peak(dtype) * share)


def index_share(model: ModelProfile, layers: AttentionLayers) -> float:
    """Return the index keys that a further token of context adds in these layers, relative to one in every layer."""
    if layers.indexer is None:
        return 0.0
    return layers.num_layers / model.num_hidden_layers / max(layers.ratio, 1)


def sparse_prompt_seconds(
    layers: AttentionLayers, num_ranks: int, machine: Machine, tokens: Array, pair: float
) -> Array:
    """Return the seconds of attention of a prompt in one layer, without the indexer's, shape of ``tokens``.

    0 if nothing is chosen from a latent cache.

    Args:
        num_ranks: Ranks over which the heads are distributed.
        tokens: Tokens of a step.
        pair: Seconds per attended pair of a prompt with full attention.
    """
    if layers.topk is None or layers.mla is None:
        return np.zeros_like(tokens)
    topk, latent = layers.topk, layers.mla.kv_lora_rank
    heads = max(SPARSE_HEADS, layers.num_heads // num_ranks)
    flops = dot_product_flops(heads, latent + layers.mla.qk_rope_head_dim, latent)
    dtype = "bf16" if "bf16" in machine.peaks else "fp16"
    chosen = topk * max(flops / (machine.peak(dtype) * SPARSE_SHARE * machine.engine_scale), 0.5 * pair)
    return np.where(tokens > topk, tokens * chosen, 0.5 * pair * tokens * tokens)


def compressed_seconds(layers: AttentionLayers, compute_capability: str | None, tokens: Array) -> Array:
    """Return the seconds around compressed attention's sparse kernel in one layer, shape of ``tokens``."""
    first, last = FLASH_MLA_CAPABILITIES
    has_kernel = compute_capability is not None and first <= float(compute_capability) < last
    seconds = COMPRESSED_START_SECONDS + COMPRESSED_TOKEN_SECONDS * tokens
    return np.where(layers.compressed is not None and has_kernel, seconds, 0.0)
