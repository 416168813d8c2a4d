"""GPU memory use: weights, activations, runtime, and the KV blocks in the rest, with the arithmetic.

"Does not fit" is an answer. `simserve.perf.kv_layout` lays out blocks of layers that differ.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from simserve.perf.attention import score_bytes
from simserve.perf.gemm import ACTIVATION_BYTES
from simserve.perf.kv_layout import WindowLayout, pool_block_bytes, pools_states, window_layout
from simserve.perf.loras import slot_bytes
from simserve.perf.quantization import format_name, part_bits
from simserve.perf.shape import ReplicaShape, layer_weights_bytes, weights_bytes_per_gpu
from simserve.perf.speculation import draft_weights_bytes, verified_logit_bytes
from simserve.profiles.resolved_engine import ResolvedEngine
from simserve.units import format_bytes

STATE_RATIO = 0.9
"""Memory for states of linear attention, per byte for keys and values: the default of SGLang's
``mamba_full_memory_ratio`` (docs.sglang.io, hybrid model memory)."""
_LEAST_CONTEXT = 7
"""Least KV tokens with which SGLang starts: a prompt of one, five that it keeps free, and the last."""
_CUT = "the longest that fits in the KV cache"
_SEATS_CUT = ", as many as have room for their states"
CHOSEN = "what fits on the GPU"
"""Source of the layers or experts on the CPU where the engine itself leaves them there."""
NEAR_FIT_SHARE = 0.02
"""Share of a GPU by which weights and activations may exceed the engine's limit and still be simulated: the estimate of
activations and runtime is about that accurate (`simserve validate`, memory logs)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Memory use of the GPU that holds most. All bytes are per GPU."""

    fits: bool
    """Whether the KV cache holds at least one request of ``max_model_len`` tokens (without a KV cache: whether
    weights and activations fit)."""
    total_bytes: float  # Memory of the GPU.
    usable_bytes: float  # The engine's limit for weights, runtime, activations and KV.
    weights_bytes: float  # Weights.
    draft_weights_bytes: float = 0.0  # Weights of the drafter (speculative decoding); 0 without.
    states_bytes: float = 0.0  # States of linear attention for all seats; 0 without, and if they share the KV pool.
    lora_bytes: float = 0.0  # Slots of LoRA adapters; 0 without.
    kv_bytes: float  # Left for KV; negative if the rest alone exceeds the limit.
    activation_bytes: float  # Peak of activations.
    non_torch_bytes: float  # CUDA context, libraries and communication buffers.
    cuda_graph_bytes: float  # Captured graphs.
    kv_bytes_per_token: float
    """KV of one token held by every layer, including those with a sliding window and the drafter."""
    draft_kv_bytes_per_token: float = 0.0  # The drafter's part of it.
    num_kv_blocks: int
    """Whole blocks of tokens held by every layer, 0 if nothing is left; if layers with a window keep only the window
    (`windows`), requests longer than the window fit in larger numbers."""
    block_size: int  # Tokens per block.
    max_model_len: int  # Longest request that the engine admits, tokens.
    max_concurrent_full_length: float  # Requests of ``max_model_len`` that fit at once, by the engine's calculation.
    longest_sequence: int  # Most tokens of one request, 0 if nothing is left.
    shortage_bytes: float = 0.0
    """Excess of weights, runtime and activations over the engine's limit, if below `NEAR_FIT_SHARE` of the GPU: the
    KV cache is then what remains if that share is added. 0: no shortage, or too large a one."""
    windows: WindowLayout | None = None
    """How layers share the KV memory if some keep only their sliding window, or a state; None: all keep
    everything."""
    most_seats: int | None = None
    """Most seats with which the engine starts, since each needs a block of the pool for its state; None: no such
    limit."""
    host_bytes: float  # Host memory of the replica's weights and KV outside the GPUs; 0 without.
    shape: ReplicaShape  # The replica, for the lines of its arithmetic.
    parts: Mapping[str, float]
    """Name -> bytes: ``weights, kv, activations, runtime, cuda_graphs, unused`` and, with speculative decoding,
    ``draft_weights``, with slots of LoRA adapters ``lora_weights``, which sum to ``total_bytes``; what exceeds it is
    a negative ``unused``."""

    @property
    def logged_tokens(self) -> int:
        """Tokens in the KV cache as the engine's start-up log counts them."""
        windows = self.windows
        if windows is None:
            return self.num_kv_blocks * self.block_size
        if windows.logs_requests:
            return int(self.max_concurrent_full_length * self.max_model_len)
        return windows.num_blocks // windows.log_groups * self.block_size

    @property
    def arithmetic(self) -> tuple[str, ...]:
        """Lines a person can check."""
        shape, total, kv_bytes = self.shape, self.total_bytes, self.kv_bytes
        needs = {name: value for name, value in self.parts.items() if name not in ("kv", "unused")}
        physical, (_, left) = total - sum(needs.values()), _left_for_kv(shape, needs)
        lines = [_weight_line(shape, needs["weights"])]
        if shape.speculation is not None and shape.speculation.draft is not None:
            lines.append(_draft_line(shape, shape.speculation.draft, needs["draft_weights"]))
        for name, what in (("vision_weights", "vision tower"), ("audio_weights", "audio encoder")):
            if name in needs:
                lines.append(f"{what}: {format_bytes(needs[name])} of its layers in 16 bit, on each GPU")
        if "states" in needs:
            size = f"{format_bytes(state_bytes(shape))} in {_stateful_layers(shape)}"
            lines.append(f"states: {state_slots(shape):,} x {size} = {format_bytes(needs['states'])}")
        lines.append(_rule_line(shape, needs, left))
        if physical < left:
            lines.append(f"but only {format_bytes(total)} total{_subtracted(needs)} = {_signed(physical)} are there")
        if shape.engine.shares_buffer and kv_bytes < min(left, physical):
            lines.append(f"one buffer for all slots takes {format_bytes(kv_bytes)} of it")
        if self.shortage_bytes:
            lines.append(f"simulated with {NEAR_FIT_SHARE:.0%} of the GPU more: {format_bytes(kv_bytes)} for KV")
        num_tokens = self.num_kv_blocks * self.block_size
        kept = _kv_lines(shape, kv_bytes, self.kv_bytes_per_token, num_tokens, self.windows)
        return (*lines, *kept, *_host_lines(shape, self.host_bytes))


ENCODER_BYTES = 2.0
"""Bytes per weight of a vision tower or an audio encoder, which quantised checkpoints keep in 16 bit."""


def plan_memory(shape: ReplicaShape) -> MemoryPlan:
    """Return the memory use of the GPU that holds most in a replica.

    Raises:
        InputError: A format is unknown or unsupported, or the heads do not divide by the ranks.
    """
    engine, total = shape.engine, shape.hardware.memory.total
    needs = _needs(shape)
    usable, left = _left_for_kv(shape, needs)
    physical = total - sum(needs.values())
    kv_bytes = min(left, physical)
    shortage = _small_shortage(shape, kv_bytes)
    if shortage:
        kv_bytes += NEAR_FIT_SHARE * total
    per_token = kv_bytes_per_token(shape)
    if engine.shares_buffer and shape.windowed_kv is None:
        kv_bytes = min(kv_bytes, (engine.max_model_len + shape.num_speculative_tokens) * per_token)
    num_blocks = min(max(int(kv_bytes // (per_token * engine.block_size)), 0), _host_blocks(shape))
    is_short = _asked_kv_bytes(shape) is not None and physical < left
    if is_short:
        num_blocks = 0  # the engine does not start with less than it was told to use
    elif engine.num_gpu_blocks_override is not None:
        num_blocks = engine.num_gpu_blocks_override
    windows = None
    if shape.windowed_kv is not None or shape.model.has_states:
        windows = window_layout(shape, 0.0 if is_short else max(kv_bytes, 0.0), draft_kv_bytes_per_token(shape))
    if windows is not None:
        num_blocks = windows.num_full_context_blocks
    num_tokens = num_blocks * engine.block_size
    if engine.kv_allocation == "none":
        num_tokens = engine.max_model_len if kv_bytes >= 0 else 0
    # The last drafts of a request extend beyond its end and need slots all the same.
    one_request = num_tokens
    if windows is not None:
        most = -(-(engine.max_model_len + shape.num_speculative_tokens) // engine.block_size)
        one_request = max(windows.longest_blocks(most) * engine.block_size, num_tokens)
    longest = max(one_request - shape.num_speculative_tokens, 0)
    parts = {**needs, "kv": max(kv_bytes, 0.0)}
    in_host, host = host_bytes(shape, num_tokens), shape.hardware.host_of_node
    pool = engine.state_pool if windows is not None and windows.are_states else None
    most_seats = windows.num_blocks if windows is not None and pool is not None and pool.holds_seats else None
    return MemoryPlan(
        fits=longest >= engine.max_model_len
        and in_host <= host.memory_total
        and (most_seats is None or engine.max_num_seqs <= most_seats),
        most_seats=most_seats,
        host_bytes=in_host,
        total_bytes=total,
        usable_bytes=usable,
        weights_bytes=needs["weights"],
        draft_weights_bytes=needs.get("draft_weights", 0.0),
        states_bytes=needs.get("states", 0.0),
        lora_bytes=needs.get("lora_weights", 0.0),
        kv_bytes=kv_bytes,
        activation_bytes=needs["activations"],
        non_torch_bytes=needs["runtime"],
        cuda_graph_bytes=needs["cuda_graphs"],
        kv_bytes_per_token=per_token,
        draft_kv_bytes_per_token=draft_kv_bytes_per_token(shape),
        num_kv_blocks=num_blocks,
        block_size=engine.block_size,
        max_model_len=engine.max_model_len,
        max_concurrent_full_length=windows.max_concurrent_full_length
        if windows is not None
        else _full_length_requests(shape, num_blocks, num_tokens),
        longest_sequence=longest,
        shortage_bytes=shortage,
        windows=windows,
        shape=shape,
        parts=parts | {"unused": total - sum(parts.values())},
    )


def _small_shortage(shape: ReplicaShape, kv_bytes: float) -> float:
    """Return the bytes missing before anything is left for KV; 0 if none or too many are missing.

    A KV cache whose size the scenario sets is taken from a real server: no memory is added to it.
    """
    lack = -kv_bytes
    is_small = 0.0 <= lack < NEAR_FIT_SHARE * shape.hardware.memory.total
    return lack if is_small and _asked_kv_bytes(shape) is None else 0.0


def _asked_kv_bytes(shape: ReplicaShape) -> float | None:
    """Return the KV bytes per GPU that the scenario sets; None: the engine's rule sets them."""
    engine = shape.engine
    if engine.num_gpu_blocks_override is not None:
        block_bytes = pool_block_bytes(shape, draft_kv_bytes_per_token(shape))
        block_bytes = engine.block_size * kv_bytes_per_token(shape) if block_bytes is None else block_bytes
        return engine.num_gpu_blocks_override * block_bytes
    return None if engine.kv_cache_memory_bytes is None else float(engine.kv_cache_memory_bytes)


def _full_length_requests(shape: ReplicaShape, num_blocks: int, num_tokens: int) -> float:
    """Return how many requests of ``max_model_len`` fit at once, each in whole blocks as vLLM calculates."""
    engine = shape.engine
    if engine.kv_allocation == "none":
        return num_tokens / engine.max_model_len
    return num_blocks / -(-engine.max_model_len // engine.block_size)


def _needs(shape: ReplicaShape) -> dict[str, float]:
    """Return the bytes that a GPU needs besides KV, by name."""
    needs = _needs_besides_states(shape)
    if shape.model.has_states and not pools_states(shape):
        needs["states"] = state_slots(shape) * state_bytes(shape)
    relaid = relaid_expert_bytes(shape)
    if sum(needs.values()) + relaid < shape.hardware.memory.total:
        needs["runtime"] += relaid
    return needs


def _needs_besides_states(shape: ReplicaShape) -> dict[str, float]:
    engine, ranks, stages = shape.engine, shape.tensor_parallel_size, shape.pipeline_parallel_size
    needs = {
        "weights": weights_bytes_per_gpu(
            shape.model,
            shape.precision.name,
            ranks,
            stages,
            data_parallel_size=shape.data_parallel_size,
            enable_expert_parallel=shape.enable_expert_parallel,
            num_redundant_experts=shape.num_redundant_experts or 0,
            expert_tile=shape.expert_tile,
            pipeline_layer_partition=shape.pipeline_layer_partition,
        )
        - offloaded_weights_bytes(shape)
        - mapped_bytes(shape),
        "activations": activation_bytes(shape),
        "runtime": _runtime_bytes(shape),
        "cuda_graphs": engine.cuda_graph_bytes,
    }
    if shape.speculation is not None and shape.speculation.draft is not None:
        needs["draft_weights"] = draft_weights_bytes(shape.speculation)
    if shape.engine.max_loras:
        needs["lora_weights"] = shape.engine.max_loras * slot_bytes(shape)
    if shape.encodes_images and shape.model.vision is not None:
        whole = shape.model.vision.num_parameters * ENCODER_BYTES
        needs["vision_weights"] = whole if shape.engine.mm_encoder_tp_mode == "data" else whole / ranks
    if shape.encodes_audio and shape.model.audio is not None:
        needs["audio_weights"] = shape.model.audio.num_parameters * ENCODER_BYTES / ranks
    return needs


def _runtime_bytes(shape: ReplicaShape) -> float:
    """Return the bytes per GPU for CUDA, libraries and communication buffers."""
    engine = shape.engine
    if shape.num_gpus == 1:
        return engine.non_torch_bytes_single
    has_link = shape.hardware.intra_node.kind not in ("pcie", "none")
    return engine.non_torch_bytes_parallel if has_link else engine.non_torch_bytes_pcie


def relaid_expert_bytes(shape: ReplicaShape) -> float:
    """Return the bytes of a GPU's experts that also stay in memory in their stored layout.

    Triton's kernels need MXFP4 matrices in a layout of their own. TensorRT-LLM converts them while loading, and the
    memory of the first matrices as stored is not freed (seen in the KV that is left). If a GPU cannot hold both, it is
    freed.
    """
    model = shape.model
    if model.moe is None:
        return 0.0
    formats = model.formats_of("experts", format_name(shape.precision.name))
    relaid = sum(share for name, share in formats.items() if name in shape.engine.relaid_expert_formats)
    up, _ = model.expert_gemms(shape.expert_slices)
    held = -(-shape.num_expert_copies // shape.expert_groups)
    layers = shape.num_layers_per_stage * model.num_moe_layers / model.num_hidden_layers
    return relaid * layers * held * up.num_weights * part_bits(model, shape.quantization, "experts") / 8


def state_bytes(shape: ReplicaShape) -> float:
    """Return the bytes of one sequence's states on the GPU that holds most, including compressed attention's window."""
    share = shape.num_layers_per_stage / shape.model.num_hidden_layers
    return share * shape.model.state_bytes(shape.tensor_parallel_size)


def state_slots(shape: ReplicaShape) -> int:
    """Return the states that a GPU holds: those of its seats, of their drafts, and those that a prefix cache keeps."""
    return _state_plan(shape)[0]


def kept_states(shape: ReplicaShape) -> int:
    """Return those that seats and a prefix cache share, neither for drafts nor for padded sequences."""
    return _state_plan(shape)[1] * _states_per_seat(shape)


def _state_plan(shape: ReplicaShape) -> tuple[int, int]:
    """Return the states that a GPU holds, and the most seats for which they suffice if they have their share of memory.

    SGLang gives a prefix cache's states that share whatever the seats are, and from 0.5.9 on without one too, unless
    seats are set. A step that verifies drafts writes a state for each of its tokens: out of all memory (`first`), out
    of the share (`joint`), or with each other state (`each`). A number that is set stands for what the share holds.
    """
    engine, kept, seats = shape.engine, _states_per_seat(shape), shape.engine.max_num_seqs
    padding = engine.padding_states
    has_drafts = shape.speculation is not None and shape.model.num_linear_layers
    drafts = shape.tokens_per_decode if has_drafts and engine.draft_states is not None else 0
    room = max(_left_by_rule(shape, _needs_besides_states(shape) | {"draft_weights": 0.0})[1], 0.0) / state_bytes(shape)
    ratio = engine.mamba_full_memory_ratio or STATE_RATIO
    share, slots = ratio / (1.0 + ratio), engine.max_mamba_cache_size
    has_share = kept > 1 or (engine.shares_uncached_states and engine.sources["max_num_seqs"] != "scenario")
    if slots is None and not (engine.sizes_states_by_share and has_share):
        return (seats + padding) * (kept + drafts), int(share * room / (kept + drafts))
    if engine.draft_states == "first":
        slots = int(max(share * (room - seats * drafts), 0.0)) if slots is None else slots
        return slots + seats * drafts, slots // kept
    if engine.draft_states == "each":
        slots = int(share * room / (1 + drafts)) if slots is None else slots
        return slots * (1 + drafts), slots // kept
    if slots is None:
        slots = max(int((share * room - padding * (1 + drafts)) / (1 + drafts / kept)), 0)
    return slots + padding + (min(seats, slots // kept) + padding) * drafts, slots // kept


def _states_per_seat(shape: ReplicaShape) -> int:
    engine = shape.engine
    if not (shape.model.num_linear_layers and engine.enable_prefix_caching):
        return 1
    return engine.linear_states_per_cached_seat + engine.linear_states_to_overlap * engine.async_scheduling


def _stateful_layers(shape: ReplicaShape) -> str:
    model = shape.model
    if model.compressed_attention is not None:
        window = f"a window of {model.compressed_attention.window:,} tokens and what is not yet compressed"
        return f"{model.num_attention_layers} layers: {window}"
    kind = "Mamba-2" if model.mamba is not None else "Mamba" if model.mamba1 is not None else "linear attention"
    return f"{model.num_linear_layers} layers of {'convolutions' if model.short_convolution is not None else kind}"


def state_seats(shape: ReplicaShape) -> int:
    """Return the most seats whose states leave the KV cache its share of memory; without states, the requested seats.

    If states share the pool, at most as many as it has blocks, if the engine requires that (`StatePool.holds_seats`).
    """
    if not shape.model.has_states:
        return shape.engine.max_num_seqs
    if pools_states(shape):
        most = plan_memory(shape).most_seats
        return shape.engine.max_num_seqs if most is None else max(min(shape.engine.max_num_seqs, most), 1)
    return max(min(shape.engine.max_num_seqs, _state_plan(shape)[1]), 1)


def with_room_for_states(shape: ReplicaShape) -> ReplicaShape:
    """Return a deployment whose default seats leave memory for the KV cache besides their states of linear attention.

    With a prefix cache SGLang sizes the memory for states by its share, whatever is asked for, and has as many states
    as fit (``_handle_max_mamba_cache`` of its ``kv_cache_configurator.py``).
    """
    if not shape.model.has_states:
        return shape
    source, seats = shape.engine.sources["max_num_seqs"], state_seats(shape)
    is_fixed = pools_states(shape) or (_states_per_seat(shape) == 1 and shape.engine.max_mamba_cache_size is None)
    is_asked = source == "scenario" and is_fixed
    if is_asked or seats == shape.engine.max_num_seqs:
        return shape
    seated = replace(shape, engine=shape.engine.model_copy(update={"max_num_seqs": seats}))
    return with_source(seated, "max_num_seqs", f"{source}{_SEATS_CUT}")


def plan_with_room(shape: ReplicaShape, at_length: Callable[[int], ReplicaShape]) -> MemoryPlan:
    """Return the memory of a deployment whose default context is cut to what its KV cache holds, if that is less.

    SGLang starts with any KV cache and refuses longer requests (``max_req_len`` of its ``TpModelWorker``); vLLM does so
    with ``--max-model-len -1``. A length that the scenario sets has to fit. If nothing fits, the deployment stays as it
    is.

    Args:
        shape: The deployment at its default length.
        at_length: Returns the deployment with a shorter length, and everything that depends on it.
    """
    engine = shape.engine
    plan, most = plan_memory(shape), engine.max_model_len
    if plan.fits:
        return plan
    least = max(_LEAST_CONTEXT, engine.block_size if engine.kv_allocation == "paged" else 0)
    longest = _longest_that_fits(at_length, least, min(plan.longest_sequence or most, most - 1))
    if longest is None:
        return plan
    return plan_memory(with_source(at_length(longest), "max_model_len", cut_source(engine, _CUT)))


def _longest_that_fits(at_length: Callable[[int], ReplicaShape], least: int, most: int) -> int | None:
    """Return the longest context of ``least`` to ``most`` tokens that fits, by bisection; None if none does.

    A shorter context may leave more for KV: without chunked prefill, the token budget depends on it.
    """
    if most < least or not plan_memory(at_length(least)).fits:
        return None
    if plan_memory(at_length(most)).fits:
        return most
    while most - least > 1:
        middle = (least + most) // 2
        if plan_memory(at_length(middle)).fits:
            least = middle
        else:
            most = middle
    return least


def with_source(shape: ReplicaShape, option: str, source: str) -> ReplicaShape:
    """Return a deployment that says of an option of its engine where the value comes from."""
    sources = {**shape.engine.sources, option: source}
    return replace(shape, engine=shape.engine.model_copy(update={"sources": sources}))


def cut_source(engine: ResolvedEngine, why: str) -> str:
    """Return the source of a context length shorter than the engine's default, which is the one that it has now."""
    return f"of {uncut_context(engine):,}: {why} ({engine.sources['max_model_len'].rpartition(' (')[2].rstrip(')')})"


def is_context_cut(engine: ResolvedEngine) -> bool:
    """Return whether a KV cache smaller than the model's context limits the longest request."""
    return engine.sources.get("max_model_len", "").startswith("of ")


def is_left_to_cpu(engine: ResolvedEngine) -> bool:
    """Return whether the engine itself leaves a part of the model to the CPU."""
    return CHOSEN in engine.sources.values()


def are_seats_told(engine: ResolvedEngine) -> bool:
    """Return whether the number of seats has to be set, since the engine does not start with its default here."""
    is_cut = engine.sources.get("max_num_seqs", "").endswith(_SEATS_CUT)
    return is_cut and engine.state_pool is not None and engine.state_pool.holds_seats


def uncut_context(engine: ResolvedEngine) -> int:
    """Return the longest request by the engine's or the model's own limit, before it was cut to the KV cache."""
    if not is_context_cut(engine):
        return engine.max_model_len
    return int(engine.sources["max_model_len"].removeprefix("of ").partition(":")[0].replace(",", ""))


def context_cut_note(engine: ResolvedEngine) -> str | None:
    """Return ``max_model_len 41,216 of 131,072: the longest that fits in the KV cache``; None if it is not cut."""
    if not is_context_cut(engine):
        return None
    return f"max_model_len {engine.max_model_len:,} {engine.sources['max_model_len'].partition(' (')[0]}"


def offloaded_weights_bytes(shape: ReplicaShape) -> float:
    """Return the bytes of one GPU's weights that are in host memory instead."""
    outside = shape.streamed_bytes + _cpu_expert_bytes(shape)
    if not shape.num_cpu_layers:
        return outside
    share = shape.num_cpu_layers / shape.model.num_hidden_layers
    return outside + share * layer_weights_bytes(shape.model, shape.precision.name, expert_tile=shape.expert_tile)


def mapped_bytes(shape: ReplicaShape) -> float:
    """Return the bytes of one GPU's embeddings that the engine leaves in its mapped file, and looks tokens up in there.

    An embedding that is the LM head too is on the GPU for that. Of stages, the last one with the LM head holds as much
    as the first would.
    """
    model = shape.model
    if shape.engine.loads_embeddings or model.num_parameters_nominal is not None or shape.pipeline_parallel_size > 1:
        return 0.0
    head = model.lm_head_gemm().num_weights if model.tie_word_embeddings else 0
    weights = max(model.num_embedding_parameters - head, 0)
    return part_bits(model, shape.precision.name, None) * weights / 8 / shape.tensor_parallel_size


def _cpu_expert_bytes(shape: ReplicaShape) -> float:
    """Return the bytes of the routed experts that the CPU runs in layers on the GPU."""
    if shape.model.moe is None or not shape.num_cpu_expert_layers:
        return 0.0
    bits = sum(share * each.weight_bits for each, share in shape.precisions["experts"])
    weights = shape.model.moe.num_experts * sum(gemm.num_weights for gemm in shape.model.expert_gemms())
    return shape.num_cpu_expert_layers * weights * bits / 8


def host_bytes(shape: ReplicaShape, num_tokens: int) -> float:
    """Return the bytes of host memory that one replica needs for weights, and for KV of layers on the CPU."""
    used = min(num_tokens, shape.engine.max_num_seqs * shape.engine.max_model_len)
    return shape.num_gpus * offloaded_weights_bytes(shape) + _host_kv_bytes_per_token(shape) * used


def _host_kv_bytes_per_token(shape: ReplicaShape) -> float:
    per_layer = shape.model.kv_bytes_per_token_per_layer(shape.kv_element_bytes, 1)
    return shape.num_cpu_layers * shape.model.attention_share * per_layer


def _host_blocks(shape: ReplicaShape) -> int:
    """Return the KV blocks whose part for layers on the CPU fits into host memory; without such layers, any number."""
    if not shape.num_cpu_layers:
        return sys.maxsize
    room = shape.hardware.host_of_node.memory_total - offloaded_weights_bytes(shape)
    return max(int(room // (_host_kv_bytes_per_token(shape) * shape.engine.block_size)), 0)


def kv_bytes_per_token(shape: ReplicaShape) -> float:
    """Return the KV bytes per token on the GPU that holds most: its heads, in its stage's layers and the drafter's."""
    layers = shape.num_layers_per_stage * shape.model.attention_share
    element = shape.kv_element_bytes
    divided = shape.decode_context_parallel_size
    target = layers * shape.model.kv_bytes_per_token_per_layer(element, shape.tensor_parallel_size // divided)
    index = _unused_index_bytes(shape) + _unpooled_index_bytes(shape)
    return target / divided + index + draft_kv_bytes_per_token(shape)


def _unused_index_bytes(shape: ReplicaShape) -> float:
    """Return the bytes per token of indexers' keys in layers of the fullest stage that use another layer's choice."""
    model, indexer = shape.model, shape.model.indexer
    if indexer is None or indexer.num_layers is None or not shape.engine.keeps_unused_index_keys:
        return 0.0
    unused = model.num_attention_layers - indexer.num_unsparse_layers - indexer.num_layers
    return unused * indexer.key_bytes * shape.num_layers_per_stage / model.num_hidden_layers


def _unpooled_index_bytes(shape: ReplicaShape) -> float:
    """Return the bytes per token by which keys of the fullest stage's indexers count more than they are, if pooled."""
    model, indexer = shape.model, shape.model.indexer
    if indexer is None or not (indexer.has_pool_weights and shape.engine.counts_whole_index_keys):
        return 0.0
    num_layers = indexer.num_layers or model.num_attention_layers - indexer.num_unsparse_layers
    kept = num_layers * shape.num_layers_per_stage / model.num_hidden_layers
    return (indexer.pooled_tokens - 1) * indexer.key_bytes * kept


def draft_kv_bytes_per_token(shape: ReplicaShape) -> float:
    """Return the drafter's KV bytes per token on the GPU that holds most, in the same blocks as the target."""
    if shape.speculation is None or shape.speculation.draft is None:
        return 0.0
    return kv_bytes_per_token(shape.speculation.draft)


def activation_bytes(shape: ReplicaShape) -> float:
    """Return the peak of activations on one GPU.

    The largest of: a layer over the token budget, ``factor * tokens * (share * hidden + intermediate / TP)`` elements;
    sampling (logits, hidden states, a base); and encoding images. Scores of standard attention are added.
    """
    engine, model, ranks = shape.engine, shape.model, shape.tensor_parallel_size
    widest = engine.activation_hidden_share * model.hidden_size + model.intermediate_size / ranks
    layer = engine.activation_token_bytes_factor * engine.max_num_batched_tokens * widest * ACTIVATION_BYTES
    hidden = engine.max_num_batched_tokens * model.hidden_size * ACTIVATION_BYTES
    each = engine.activation_logit_bytes if shape.speculation is None else verified_logit_bytes(shape)
    logits = each * engine.max_num_seqs * model.vocab_size
    peak = max(layer, logits + hidden + engine.activation_base_bytes)
    if shape.attention == "standard":
        queries = min(engine.max_chunk_tokens, engine.max_model_len)
        peak += score_bytes(queries, engine.max_model_len, model.num_attention_heads / ranks)
    return max(peak, _encoding_bytes(shape)) + _unpacked_bytes(shape) + _reduced_bytes(shape)


def _reduced_bytes(shape: ReplicaShape) -> float:
    """Return the memory of a dummy step if sums over ranks are freed only at its end.

    NCCL's stream keeps the outputs of attention and of the MLP of every layer, since the CPU has launched the last
    layer before the GPU finishes the first. PyTorch takes attention's output from the free memory of gate and up, and
    the remainder is then too small for the next gate and up: each layer allocates both anew (its allocator's best fit,
    simulated for Llama-2-70B on four ranks: 13.5 GiB, here 13.75).
    """
    model, ranks = shape.model, shape.tensor_parallel_size
    if ranks == 1 or not shape.engine.keeps_reduced:
        return 0.0
    widths = max(2.0 * model.intermediate_size / ranks, model.hidden_size) + model.hidden_size
    return shape.num_layers_per_stage * shape.engine.max_num_batched_tokens * widths * ACTIVATION_BYTES


def _encoding_bytes(shape: ReplicaShape) -> float:
    """Return the activations of the images with which an engine tests its vision tower before it measures what is left.

    Four hidden states and the input and output of an MLP's activation per patch, for the largest image, or for as many
    images as the token budget holds (vLLM, v1/worker/gpu_model_runner.py, profile_run). vLLM prints 1.59 GiB for
    Qwen3.8-27B on two RTX 5090 (noonghunna/club-3090, issue 1087) and 1.70 for Qwen3.5-4B on an A100
    (ovg-project/kvcached, pull request 448), where this gives 1.61 and 1.50; the part that ranks share is not known.
    """
    tower = shape.model.vision
    if tower is None or not shape.encodes_images:
        return 0.0
    largest = tower.largest
    images = max(shape.engine.max_num_batched_tokens // largest.tokens, 1)
    width = 4 * tower.hidden_size + 2 * tower.intermediate_size
    return float(images * largest.pieces * largest.patches * width * ENCODER_BYTES)


def _unpacked_bytes(shape: ReplicaShape) -> float:
    """Return the bytes of the largest matrix, or of a layer's experts, that a format unpacks to 16 bit."""
    if shape.precision.unpacked_from_rows is None:
        return 0.0
    model, ranks = shape.model, shape.tensor_parallel_size
    gemms = model.attention_gemms(ranks) + model.mlp_gemms(0, ranks)
    largest = max((gemm.num_weights for gemm in gemms if gemm.part is not None), default=0.0)
    if model.moe is not None and not shape.precision.has_packed_experts:
        expert = sum(gemm.num_weights for gemm in model.expert_gemms(shape.expert_slices))
        largest = max(largest, -(-shape.num_expert_copies // shape.expert_groups) * expert)
    return largest * shape.precision.unpacked_bits / 8


def _left_for_kv(shape: ReplicaShape, needs: Mapping[str, float]) -> tuple[float, float]:
    """Return usable bytes, and bytes left for KV: those that the scenario sets, or by the engine's rule."""
    asked = _asked_kv_bytes(shape)
    return _left_by_rule(shape, needs) if asked is None else (sum(needs.values()) + asked, asked)


def _left_by_rule(shape: ReplicaShape, needs: Mapping[str, float]) -> tuple[float, float]:
    engine, total, share = shape.engine, shape.hardware.memory.total, shape.engine.gpu_memory_utilization
    counted = _counted(shape, needs)
    taken = sum(counted.values())
    if engine.memory_rule == "static_fraction":
        left = share * (total - needs["runtime"]) - taken
        return left + needs["runtime"] + taken, left
    if engine.memory_rule == "total":
        return share * total, share * total - taken
    free = total - taken
    return taken + max(share * free, 0.0), share * free if free > 0 else free


def _counted(shape: ReplicaShape, needs: Mapping[str, float]) -> dict[str, float]:
    """Return what the engine's rule subtracts before it takes its share, or after it for a static fraction."""
    if shape.engine.memory_rule == "static_fraction":
        return {name: value for name, value in needs.items() if name.endswith(("weights", "states"))}
    return {name: each for name, each in needs.items() if name != "cuda_graphs" or shape.engine.counts_cuda_graphs}


def _rule_line(shape: ReplicaShape, needs: Mapping[str, float], left: float) -> str:
    """Return the engine's rule with its numbers."""
    engine, share = shape.engine, f"{shape.engine.gpu_memory_utilization:g}"
    if _asked_kv_bytes(shape) is not None:
        key = "kv_cache_memory_bytes" if engine.num_gpu_blocks_override is None else "num_gpu_blocks_override"
        return f"{key} {getattr(engine, key):,}: {format_bytes(left)} for KV"
    whole, taken = f"{format_bytes(shape.hardware.memory.total)} total", _subtracted(_counted(shape, needs))
    if engine.memory_rule == "static_fraction":
        before = _subtracted({"runtime": needs["runtime"]})
        return f"{share} x ({whole}{before}){taken} = {_signed(left)} for KV"
    if engine.memory_rule == "total":
        return f"{share} x {whole}{taken} = {_signed(left)} for KV"
    return f"{share} x ({whole}{taken}) = {_signed(left)} for KV"


def _subtracted(needs: Mapping[str, float]) -> str:
    return "".join(f" - {format_bytes(value)} {name.replace('_', ' ')}" for name, value in needs.items() if value)


def _weight_line(shape: ReplicaShape, weights: float) -> str:
    sizes = f"TP {shape.tensor_parallel_size} x PP {shape.pipeline_parallel_size}"
    if shape.data_parallel_size > 1:
        sizes = f"{sizes} x DP {shape.data_parallel_size}"
    linear = f"linear layers at {shape.precision.weight_bits:.4g} bit"
    parameters = f"{shape.model.num_parameters / 1e9:.4g} B parameters"
    outside = offloaded_weights_bytes(shape)
    kept = f"{format_bytes(weights + outside)} - {format_bytes(outside)} in host memory = " if outside else ""
    table = mapped_bytes(shape)
    mapped = f"; {format_bytes(table)} of embeddings stay in the mapped file" if table else ""
    return f"weights: {parameters}, {linear}: {kept}{format_bytes(weights)} on the fullest GPU of {sizes}{mapped}"


def _draft_line(shape: ReplicaShape, draft: ReplicaShape, weights: float) -> str:
    tokens, kv = shape.num_speculative_tokens, draft_kv_bytes_per_token(shape)
    linear = f"linear layers at {draft.precision.weight_bits:.4g} bit"
    return (
        f"draft: {draft.model.name}, {linear}: {format_bytes(weights)} of weights, {kv:,.0f} B of KV a token, "
        f"{tokens} tokens ahead"
    )


def _kv_lines(
    shape: ReplicaShape, kv_bytes: float, per_token: float, num_tokens: int, windows: WindowLayout | None
) -> list[str]:
    engine = shape.engine
    if kv_bytes <= 0:
        return ["nothing is left for KV"]
    if engine.kv_allocation == "none":
        return ["no KV cache: every step computes its prefixes anew"]
    block, num_blocks = engine.block_size, num_tokens // engine.block_size
    length = f"{engine.max_model_len:,} max_model_len"
    if is_context_cut(engine):
        length += f" ({engine.sources['max_model_len'].partition(': ')[2].partition(' (')[0]})"
    if windows is not None:
        requests = f"{windows.max_concurrent_full_length:.2f} requests of {length}"
        if windows.are_states:
            return [*windows.lines, f"{requests}, states and all, or {num_tokens:,} tokens as the engine's log counts"]
        if not windows.window_groups and not windows.num_window_blocks:
            full = f"{windows.max_concurrent_full_length:.2f} requests of full length"
            return [*windows.lines, f"{num_tokens:,} tokens / {length} = {full}"]
        return [*windows.lines, f"{num_tokens:,} tokens that every layer holds, or {requests} with windows kept"]
    divided = shape.decode_context_parallel_size
    among = f" among {divided} ranks" if divided > 1 else ""
    return [
        f"{format_bytes(kv_bytes)} / ({per_token:,.0f} B a token x {block} tokens a block{among}) = "
        f"{num_blocks:,} blocks = {num_tokens:,} tokens",
        f"{num_tokens:,} tokens / {length} = {num_tokens / engine.max_model_len:.2f} requests of full length",
    ]


def _host_lines(shape: ReplicaShape, in_host: float) -> list[str]:
    if not in_host:
        return []
    total = shape.hardware.host_of_node.memory_total
    experts = "experts on the CPU" if shape.num_cpu_expert_layers else "weights outside the GPUs"
    what = "layers on the CPU with their KV" if shape.num_cpu_layers else experts
    verdict = "" if in_host <= total else ": too much"
    return [f"host memory: {format_bytes(in_host)} of {format_bytes(total)} for {what}{verdict}"]


def _signed(value: float) -> str:
    return f"-{format_bytes(-value)}" if value < 0 else format_bytes(value)
