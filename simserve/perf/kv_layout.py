"""Layout of the blocks of a KV pool if layers differ: layers that keep only a window, states of linear attention.

Layers with a sliding window count like all others, unless the engine keeps only their window; the layout of their
blocks is then described here. Layers with chunked attention count as if their chunk were a window, the most that they
ever hold. States of Mamba and of linear attention are outside the pool (`simserve.perf.memory`), or take blocks of it
(vLLM).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from simserve.perf.shape import ReplicaShape
from simserve.profiles.engine_options import WindowedKV
from simserve.profiles.state_blocks import LinearAttention, Mamba2
from simserve.units import format_bytes

_BLACKWELL_BLOCK = 32
"""Tokens of the smallest block of FlashInfer's kernels on B200 and B300: of latent attention, and with heads of 256."""

_EXPORTED_TOKENS = 64
"""Tokens between the states that FlashInfer's kernels write (``FLASHINFER_GDN_CHECKPOINT_ALIGNMENT``)."""

_LEAST_TO_EXPORT = 9.0
"""Compute capability of the GPUs whose kernels of linear attention write states amid a chunk."""

_POOLED_KEYS = 32
"""A block holds a multiple of this number of an indexer's pooled keys (vLLM, models/glm5next/common/attention.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowLayout:
    """Blocks on a replica's GPU if not all layers keep every token: some keep only their window, or a state.

    A state counts as a window of one block, which no chunk of a prompt makes longer.
    """

    full_groups: int
    """Blocks of the pool per block of tokens in the layers with full attention: 1, or 0 if there are none."""
    window_groups: int
    """Blocks of the pool per block of tokens in layers with a window; 0 if these have their own pool."""
    window_blocks: int  # Most blocks per request that a layer with a window holds between two steps.
    num_blocks: int  # Blocks of the pool.
    num_window_blocks: int  # Blocks of the pool of the layers with a window; 0: shared pool, or separate slots.
    num_full_context_blocks: int  # Blocks of tokens held by every layer; with states, those of requests of full length.
    peak_window_blocks: int  # Most blocks per request that a layer with a window holds, its chunk included.
    max_concurrent_full_length: float  # Requests of ``max_model_len`` at once, as in the engine's start-up log.
    lines: tuple[str, ...]  # The arithmetic.
    are_states: bool = False  # Whether some layers keep a state.
    logs_requests: bool = False
    """Whether the engine's log prints the tokens of as many requests of full length as there is room for."""
    log_groups: int = 1  # Otherwise: number by which it divides the pool's blocks before it counts their tokens.

    def longest_blocks(self, most: int) -> int:
        """Return the blocks of tokens of the longest request that fits alone, at most ``most``."""
        window = self.peak_window_blocks
        if self.num_window_blocks:
            fits = self.num_blocks if self.num_window_blocks >= window else min(self.num_blocks, self.num_window_blocks)
            return min(fits, most)
        weight = self.full_groups + self.window_groups
        if self.num_blocks < weight * window:
            return min(self.num_blocks // weight, most)
        if not self.full_groups:
            return most
        return min((self.num_blocks - self.window_groups * window) // self.full_groups, most)


def with_windowed_kv(shape: ReplicaShape, rules: WindowedKV | None, connector: str | None = None) -> ReplicaShape:
    """Return a deployment that keeps windows by an engine's rules, if model and settings allow it.

    Args:
        rules: How the engine's version keeps them; None: it does not.
        connector: What moves KV out of this engine's pool, in words; None: nothing.
    """
    model = shape.model
    if not model.num_sliding_layers:
        return shape
    reason = _reason_against(shape, rules, connector)
    kept = f"kept: {model.num_sliding_layers} layers hold the last {model.sliding_window:,} tokens of a request"
    sources = {**shape.engine.sources, "windowed_kv": kept if reason is None else f"not kept: {reason}"}
    engine = shape.engine.model_copy(update={"sources": dict(sorted(sources.items()))})
    return replace(shape, engine=engine, windowed_kv=rules if reason is None else None)


def _reason_against(shape: ReplicaShape, rules: WindowedKV | None, connector: str | None) -> str | None:
    """Return why layers with a window keep everything, in words; None: they do not."""
    engine, model = shape.engine, shape.model
    named = f"{engine.name} {engine.requested_version or engine.version}"
    if rules is None:
        return f"{named} keeps every token in every layer unless told otherwise"
    if not rules.keeps(model.family):
        return f"{named} does not for {model.family} models"
    if engine.disable_hybrid_kv_cache_manager:
        return f"{named} is told not to"
    capability = shape.hardware.compute_capability
    if rules.below_capability is not None and float(capability or 0.0) >= rules.below_capability:
        return f"{named} does not on GPUs of compute capability {capability}"
    if engine.plugin:
        return f"{named} does not through {engine.plugin}"
    if connector is not None and not rules.keeps_with_connector:
        return f"{named} does not with {connector}"
    if rules.slot_multiple is not None:
        return _reason_against_slots(shape)
    if engine.batching != "continuous" or engine.kv_allocation != "paged" or engine.admission == "reserve":
        return "only paged KV that is taken on demand gives blocks back"
    if engine.preemption_mode == "swap":
        return "swapped requests are held whole"
    if shape.num_cpu_layers:
        return "some layers run on the CPU"
    if model.linear_attention is not None:
        return "the model has layers of linear attention too"
    if engine.enable_prefix_caching and model.num_sliding_layers == model.num_hidden_layers:
        return "prefixes are cached, and all layers have the window"
    return None


def _reason_against_slots(shape: ReplicaShape) -> str | None:
    if shape.engine.kv_allocation != "static" and not shape.engine.kv_unified:
        return "only slots set windows apart"
    if shape.model.num_sliding_layers == shape.model.num_hidden_layers:
        return "all layers have the window"
    return None


def window_layout(shape: ReplicaShape, kv_bytes: float, draft_bytes_per_token: float) -> WindowLayout | None:
    """Return the layout of ``kv_bytes`` of a GPU; None if all layers with keys and values keep everything.

    The drafter (``draft_bytes_per_token``) counts as further layers with full attention.
    """
    if pools_states(shape):
        return _state_layout(shape, kv_bytes, draft_bytes_per_token)
    if shape.windowed_kv is None:
        return None
    if shape.windowed_kv.slot_multiple is not None:
        return _slots(shape, shape.windowed_kv.slot_multiple, kv_bytes, draft_bytes_per_token)
    if shape.windowed_kv.own_pool_ratio is None:
        return _one_pool(shape, shape.windowed_kv, kv_bytes, draft_bytes_per_token)
    ratio = shape.engine.swa_full_tokens_ratio or shape.windowed_kv.own_pool_ratio
    return _two_pools(shape, ratio, kv_bytes, draft_bytes_per_token)


def pool_block_bytes(shape: ReplicaShape, draft_bytes_per_token: float) -> float | None:
    """Return the bytes of a block of the pool that all layers share; None if there is no such pool."""
    rules = shape.windowed_kv
    if pools_states(shape):
        size, _, _ = _state_groups(shape, draft_bytes_per_token)
        return size * _kv_layer_bytes(shape) * shape.engine.block_size
    if rules is None or rules.own_pool_ratio is not None or rules.slot_multiple is not None:
        return None
    full, windowed, layer, _ = _layers(shape)
    size, full_groups, _ = _groups(full - int(-draft_bytes_per_token // layer), windowed, rules.padding_limit)
    return size * max(full_groups, 1) * layer * shape.engine.block_size


def _layers(shape: ReplicaShape) -> tuple[int, int, float, float]:
    """Return the full-attention and window layers of the fullest stage, and the bytes per token of each kind.

    Layers of one kind have the same heads; those of the two kinds may differ (Gemma 4, MiMo-V2). Layers that share the
    keys of others keep none.
    """
    model = shape.model
    share = shape.num_layers_per_stage / model.num_hidden_layers
    kept = [layers for layers in model.attention_layers if not layers.shares_keys]
    count = sum(layers.num_layers for layers in kept)
    full = round((count - sum(layers.num_sliding_layers for layers in kept)) * share)
    element, ranks = shape.kv_element_bytes, shape.tensor_parallel_size
    windowed = next(layers for layers in kept if layers.num_sliding_layers)
    seeing = next((layers for layers in kept if not layers.num_sliding_layers), windowed)
    of_each = [layers.kv_bytes_per_token(element, ranks) for layers in (seeing, windowed)]
    return full, round(count * share) - full, of_each[0], of_each[1]


def _window_blocks(shape: ReplicaShape) -> tuple[int, int]:
    """Return the most blocks per request that a layer with a window holds between steps, and during prefill."""
    rules, engine, window = shape.windowed_kv, shape.engine, shape.model.sliding_window or 0
    rechecked = 0 if rules is None else max(rules.recheck_tokens, rules.recheck_windows * window)
    held = window + rechecked + shape.num_speculative_tokens
    block = engine.block_size
    # The most blocks across which this many tokens can lie, wherever they begin.
    between_steps = 1 if held < 2 else (held - 2) // block + 2
    return between_steps, min(between_steps - (-shape.max_chunk_tokens // block), _longest_blocks(shape))


def _longest_blocks(shape: ReplicaShape) -> int:
    return -(-shape.engine.max_model_len // shape.engine.block_size)


def _two_pools(shape: ReplicaShape, ratio: float, kv_bytes: float, draft_bytes_per_token: float) -> WindowLayout:
    """Return SGLang's layout: a fixed ratio of tokens between the two pools, whatever the requests."""
    full, windowed, layer, of_window = _layers(shape)
    window_blocks, peak = _window_blocks(shape)
    block, longest = shape.engine.block_size, _longest_blocks(shape)
    if num_window_blocks := _blocks_for_seats(shape):
        apart, a_token = num_window_blocks * block * windowed * of_window, full * layer + draft_bytes_per_token
        num_blocks = max(int((kv_bytes - apart) // (a_token * block)), 0)
        line = (
            f"windows: {num_window_blocks * block:,} tokens for {shape.engine.max_num_seqs} seats, {windowed} layers x "
            f"{of_window:,.0f} B a token: {format_bytes(apart)}; ({format_bytes(kv_bytes)} - {format_bytes(apart)}) / "
            f"({full} layers x {layer:,.0f} B a token) = {num_blocks * block:,} tokens"
        )
        return _as_two_pools(num_blocks, num_window_blocks, window_blocks, peak, longest, line)
    a_token = full * layer + draft_bytes_per_token + ratio * windowed * of_window
    rules = shape.windowed_kv
    if rules is not None and shape.model.family.startswith(rules.counts_windows_twice or ("\0",)):
        counted = (full + windowed) * layer + windowed * of_window
        a_token = counted * (full + ratio * windowed) / (full + windowed) + draft_bytes_per_token
    num_blocks = max(int(kv_bytes // (a_token * block)), 0)
    num_window_blocks = int(ratio * num_blocks)
    line = (
        f"{format_bytes(kv_bytes)} / ({full} layers x {layer:,.0f} B + {ratio:g} x {windowed} layers with a window of "
        f"{shape.model.sliding_window:,} x {of_window:,.0f} B a token) = {num_blocks * block:,} tokens, and "
        f"{num_window_blocks * block:,} in the pool of the latter, where a request holds at most "
        f"{window_blocks * block:,}"
    )
    return _as_two_pools(num_blocks, num_window_blocks, window_blocks, peak, longest, line)


def _blocks_for_seats(shape: ReplicaShape) -> int:
    """Return the blocks of a pool of windows that is sized by seats; 0: it is sized by its ratio.

    Per seat a window, the tokens that leave it until the next look, a page to align them and the page that is written;
    besides these the chunks of the steps in flight, and a page (SGLang 0.5.22 model_executor/pool_configurator.py,
    ``compute_swa_request_cap``).
    """
    rules, engine, model = shape.windowed_kv, shape.engine, shape.model
    is_told = engine.sources.get("max_num_seqs") == "scenario" and engine.enable_chunked_prefill
    if rules is None or not rules.sizes_by_seats or not is_told or engine.enable_prefix_caching:
        return 0
    if shape.speculation is not None or model.num_sliding_layers == model.num_hidden_layers:
        return 0
    block, in_flight = engine.block_size, 2 if engine.async_scheduling else 1
    a_seat = (model.sliding_window or 0) + rules.recheck_tokens + 2 * block
    tokens = a_seat * engine.max_num_seqs + in_flight * engine.max_num_batched_tokens + block
    return -(-tokens // block)


def _as_two_pools(
    num_blocks: int, num_window_blocks: int, window_blocks: int, peak: int, longest: int, line: str
) -> WindowLayout:
    return WindowLayout(
        full_groups=1,
        window_groups=0,
        window_blocks=window_blocks,
        num_blocks=num_blocks,
        num_window_blocks=num_window_blocks,
        num_full_context_blocks=num_blocks,
        peak_window_blocks=peak,
        max_concurrent_full_length=min(num_blocks / longest, num_window_blocks / min(window_blocks, longest)),
        lines=(line,),
    )


def _slots(shape: ReplicaShape, multiple: int, kv_bytes: float, draft_bytes_per_token: float) -> WindowLayout:
    """Return llama.cpp's layout: window plus micro-batch per slot in layers with a window; otherwise the context."""
    full, windowed, layer, of_window = _layers(shape)
    engine, window = shape.engine, shape.model.sliding_window or 0
    budget, slots = engine.max_num_batched_tokens, engine.max_num_seqs
    piece = min(engine.ubatch_size or budget, budget)
    # One buffer for all slots holds a window for each and one micro-batch.
    windows, buffers = (slots, 1) if engine.kv_unified else (1, slots)
    context = engine.max_model_len * (windows if engine.kv_allocation == "static" else 1)
    held = -(-min(windows * window + piece, context) // multiple) * multiple
    apart = buffers * held * windowed * of_window
    a_token = full * layer + draft_bytes_per_token
    if a_token:
        num_blocks = fitting = max(int((kv_bytes - apart) // (a_token * engine.block_size)), 0)
    else:  # every layer that keeps its whole context is on the CPU
        num_blocks = fitting = slots * _longest_blocks(shape) if kv_bytes >= apart else 0
    if engine.shares_buffer:
        num_blocks = min(fitting, _longest_blocks(shape))
    taken = f", of which one buffer takes {num_blocks * engine.block_size:,}" if num_blocks < fitting else ""
    return WindowLayout(
        full_groups=1,
        window_groups=0,
        window_blocks=0,
        num_blocks=num_blocks,
        num_window_blocks=0,
        num_full_context_blocks=num_blocks,
        peak_window_blocks=0,
        max_concurrent_full_length=num_blocks / _longest_blocks(shape),
        lines=(
            f"windows: {buffers * held:,} tokens of {slots} slots, {windowed} layers with a window of {window:,} x "
            f"{of_window:,.0f} B a token: {format_bytes(apart)}",
            f"({format_bytes(kv_bytes)} - {format_bytes(apart)}) / ({full} layers x {layer:,.0f} B a token) = "
            f"{fitting * engine.block_size:,} tokens{taken}",
        ),
    )


def _one_pool(shape: ReplicaShape, rules: WindowedKV, kv_bytes: float, draft_bytes_per_token: float) -> WindowLayout:
    """Return vLLM's layout: groups with equal numbers of layers, one block of the pool for each.

    If a layer with a window takes more bytes per token than one with full attention, vLLM makes the latter's blocks
    longer until both are equal (``unify_kv_cache_spec_page_size``). Here they keep their length and the former takes
    several, which is the same up to one block per request.
    """
    full, windowed, layer, of_window = _layers(shape)
    window_blocks, peak = _window_blocks(shape)
    engine, window = shape.engine, shape.model.sliding_window or 0
    block, longest = engine.block_size, _longest_blocks(shape)
    seeing = full - int(-draft_bytes_per_token // layer)
    size, full_groups, window_groups = _groups(seeing, windowed, rules.padding_limit)
    # If the layers with full attention form several groups, a block of the pool stands for one of each.
    unit = max(full_groups, 1)
    full_groups, window_groups = min(full_groups, 1), -(-window_groups // unit) * -int(-of_window // layer)
    num_blocks = max(int(kv_bytes // (size * unit * layer * block)), 0)
    if engine.num_gpu_blocks_override is not None and kv_bytes > 0:
        num_blocks = engine.num_gpu_blocks_override
    # The start-up check counts the window, then a chunk of the whole budget, and one more block.
    checked = min(window - 1 + engine.max_num_batched_tokens * _steps_ahead(shape, rules), engine.max_model_len)
    checked_blocks = -(-checked // block) + 1
    peak = max(peak, min(checked_blocks, longest))
    return WindowLayout(
        full_groups=full_groups,
        window_groups=window_groups,
        window_blocks=window_blocks,
        num_blocks=num_blocks,
        num_window_blocks=0,
        num_full_context_blocks=num_blocks // (full_groups + window_groups),
        peak_window_blocks=peak,
        max_concurrent_full_length=num_blocks / (full_groups * longest + window_groups * checked_blocks),
        logs_requests=rules.logs_requests,
        log_groups=full_groups + window_groups,
        lines=(
            f"{format_bytes(kv_bytes)} / ({size * unit} layers x {layer:,.0f} B a token x {block} tokens a block) = "
            f"{num_blocks:,} blocks",
            f"a block of tokens takes {full_groups} of them in {seeing} layers that see everything and {window_groups} "
            f"in {windowed} layers with a window of {window:,}, where a request holds at most {window_blocks} each, "
            f"{peak} while its prompt is computed",
        ),
    )


def _steps_ahead(shape: ReplicaShape, rules: WindowedKV) -> int:
    return 2 if rules.counts_steps_ahead and shape.engine.async_scheduling else 1


def _groups(full: int, windowed: int, padding_limit: float) -> tuple[int, int, int]:
    """Return the layers per group, and the number of groups of each kind of layer (vLLM's hybrid KV cache manager)."""
    if not full or not windowed:
        return full + windowed, min(full, 1), min(windowed, 1)
    fewest, most = sorted((full, windowed))
    size = most if most < fewest * padding_limit else fewest
    return size, -(-full // size), -(-windowed // size)


# States of linear attention in the pool.


def pools_states(shape: ReplicaShape) -> bool:
    """Whether states take blocks of the KV pool: by the engine's rule, with attention layers in paged KV."""
    engine, model = shape.engine, shape.model
    is_growing = engine.kv_allocation == "paged" and engine.admission == "on_demand" and engine.batching == "continuous"
    has_both = model.num_linear_layers > 0 and model.num_attention_layers > 0
    return engine.state_pool is not None and is_growing and has_both and engine.preemption_mode != "swap"


def with_state_blocks(shape: ReplicaShape) -> ReplicaShape:
    """Return a deployment whose blocks of tokens are as large as a state, if states share the pool.

    vLLM's ``_align_hybrid_block_size``: the fewest tokens, in multiples accepted by its attention kernel, whose keys
    and values in a layer are no smaller than a layer's state.
    """
    if not pools_states(shape):
        return shape
    engine, model = shape.engine, shape.model
    rules, is_latent = engine.state_pool, any(layers.mla is not None for layers in model.attention_layers)
    assert rules is not None
    is_datacenter_blackwell = (shape.hardware.compute_capability or "").startswith("10.")
    is_coarse = is_datacenter_blackwell and (is_latent or model.head_dim == 256)
    ranks = shape.decode_context_parallel_size  # the engine's blocks are those of all of them already
    step = max(engine.block_size, _BLACKWELL_BLOCK * ranks if is_coarse else 0)
    if is_latent:
        pooled = 1 if model.indexer is None else model.indexer.pooled_tokens
        step = max(step, rules.latent_tokens * ranks, _POOLED_KEYS * pooled if pooled > 1 else 0)
    if exports_states(shape) and isinstance(model.state_layers, LinearAttention):
        # States amid a chunk are at the ends of blocks, where the kernels write them.
        step = math.lcm(step, _EXPORTED_TOKENS)
    state = model.state_bytes(shape.tensor_parallel_size) / model.num_linear_layers
    keys = 0.0 if model.indexer is None else model.indexer.key_bytes  # they are in separate blocks
    tokens = int(step * -(-state // (step * (_kv_layer_bytes(shape) - keys))))
    if tokens <= engine.block_size:
        return shape
    source = f"as long as a state takes, {state / 1e6:.3g} MB a layer ({engine.sources['block_size']})"
    sources = {**engine.sources, "block_size": source}
    return replace(
        shape, engine=engine.model_copy(update={"block_size": tokens, "sources": dict(sorted(sources.items()))})
    )


def exports_states(shape: ReplicaShape) -> bool:
    """Return whether the kernels of a model's layers can write a state amid a chunk of a prompt.

    Those of linear attention are FlashInfer's or FlashKDA's, for compute capability 9 and more (vLLM 0.33
    layers/mamba/gdn/qwen_gdn_linear_attn.py, ``_resolve_gdn_prefill_backend``).
    """
    rules, layer = shape.engine.state_pool, shape.model.state_layers
    if rules is None or not shape.engine.enable_prefix_caching or not pools_states(shape):
        return False
    if isinstance(layer, Mamba2):
        return "mamba2" in rules.exports
    if not isinstance(layer, LinearAttention) or layer.has_fixed_decay:
        return False
    kind = "kimi_delta" if layer.has_channel_decay else "gated_delta"
    return kind in rules.exports and float(shape.hardware.compute_capability or 0.0) >= _LEAST_TO_EXPORT


def _kv_layer_bytes(shape: ReplicaShape) -> float:
    """Return the KV bytes per token in one layer with attention on one rank; on average where ranks divide tokens."""
    divided = shape.decode_context_parallel_size
    ranks = shape.tensor_parallel_size // divided
    return shape.model.kv_bytes_per_token_per_layer(shape.kv_element_bytes, ranks) / divided


def _state_groups(shape: ReplicaShape, draft_bytes_per_token: float) -> tuple[int, int, int]:
    """Return the layers per block of the pool, and the blocks per block of tokens and per state."""
    rules, model = shape.engine.state_pool, shape.model
    assert rules is not None
    share = shape.num_layers_per_stage / model.num_hidden_layers
    seeing = round(model.num_attention_layers * share) - int(-draft_bytes_per_token // _kv_layer_bytes(shape))
    size, full, states = _groups(seeing, round(model.num_linear_layers * share), rules.padding_limit)
    # If the layers with full attention form several groups, a block of the pool stands for one of each.
    unit = max(full, 1)
    return size * unit, min(full, 1), -(-states // unit)


def _state_layout(shape: ReplicaShape, kv_bytes: float, draft_bytes_per_token: float) -> WindowLayout:
    """Return vLLM's layout of states and tokens in one pool.

    A request holds its state, and one per draft. The state at the end of a full block stays if a prefix cache keeps it,
    and is evicted like everything cached (``MambaManager`` of vLLM's v1/core/single_type_kv_cache_manager.py).
    """
    engine, layer = shape.engine, _kv_layer_bytes(shape)
    size, full_groups, groups = _state_groups(shape, draft_bytes_per_token)
    block, longest = engine.block_size, _longest_blocks(shape)
    num_blocks = max(int(kv_bytes // (size * layer * block)), 0)
    if engine.num_gpu_blocks_override is not None and kv_bytes > 0:
        num_blocks = engine.num_gpu_blocks_override
    held = groups * (1 + shape.num_speculative_tokens)
    # With a prefix cache a request has a second state for a step after every full block, and one that is written amid a
    # chunk; the log counts them.
    further = groups * (engine.enable_prefix_caching + exports_states(shape))
    at_once = num_blocks / (full_groups * longest + held + further)
    return WindowLayout(
        full_groups=full_groups,
        window_groups=held,
        window_blocks=1,
        num_blocks=num_blocks,
        num_window_blocks=0,
        # As the engine's log counts tokens: for requests of full length.
        num_full_context_blocks=int(at_once * engine.max_model_len / block),
        peak_window_blocks=1,
        max_concurrent_full_length=at_once,
        are_states=True,
        logs_requests=engine.state_pool is not None and engine.state_pool.logs_requests,
        log_groups=full_groups + groups,
        lines=(
            f"{format_bytes(kv_bytes)} / ({size} layers x {layer:,.0f} B a token x {block} tokens a block) = "
            f"{num_blocks:,} blocks",
            f"a request takes one of them for every {block} tokens and {held} for its state",
        ),
    )
