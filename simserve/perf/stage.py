"""The operators of one pipeline stage, priced for every number of tokens at once.

Knows the layers of a model on one rank; not which requests a step holds, and not the host.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from simserve.perf.attention import INDEX_SMALL_CALLS, compressed_seconds, indexer_parts
from simserve.perf.attention_curve import NARROW_KV_BYTES, FittedAttention, fitted_attention
from simserve.perf.collectives import (
    COMBINED_BYTES,
    CURVES,
    EXCHANGING_MULTIPROCESSORS,
    Link,
    all_gather_seconds,
    all_reduce_seconds,
    dispatched_bytes,
    exchange_seconds,
    point_to_point_seconds,
    reduce_scatter_seconds,
    sums_seconds,
)
from simserve.perf.context_parallel import context_exchange_seconds, head_ranks
from simserve.perf.efficiency import Array, Machine, start_latency
from simserve.perf.gemm import (
    ACTIVATION_BYTES,
    PAD_PASSES,
    ProductSizes,
    block_scaled_curve,
    block_scaled_maker,
    device_of,
    gemm_class,
    gemm_curve,
    launched_gemms,
    product_parts,
    unpacked_parts,
    unpacking_parts,
    wide_class,
)
from simserve.perf.linear_attention import state_layer_parts
from simserve.perf.measured import Line, MeasuredAttention, MeasuredOperators, measured_attention, measured_operators
from simserve.perf.moe import (
    ExpertLoad,
    class_local_passes,
    expert_curve,
    layer_parts,
    load_of_experts,
    router_kernels,
    shape_of_experts,
    wide_parts,
)
from simserve.perf.operators import (
    COMMUNICATION,
    COMPUTE,
    HOST,
    INPUT_CALLS,
    INPUT_PASSES,
    NGRAM_CALLS,
    PART_NAMES,
    STREAM_CALLS,
    STREAM_SUBLAYERS,
    UPDATE_CALLS,
    OperatorSeconds,
    elementwise_parts,
)
from simserve.perf.quantization import Precision, kv_element_bytes
from simserve.perf.shape import ReplicaShape, marlin_padded
from simserve.profiles.model_blocks import AttentionLayers, Gemm, MixtureOfExperts, Part

SPLIT_TOKENS = 32.0
"""Least tokens per rank for a step to run as two halves (vLLM's ``dbo_decode_token_threshold``; assumed for SGLang)."""

NORM_PASSES = 4
"""Passes of a fused add-and-norm over the hidden state: it reads input and residual and writes both (vLLM's kernel)."""

STANDARD_ATTENTION_CALLS = 3
"""Kernels of standard attention: scores, softmax, weighted values. Flash attention is one kernel."""

HEAD_NORM_CALLS = 2
"""Extra kernels of a norm over the heads of all ranks (SGLang pull request 14416); one head's: in rotary embedding."""

GATE_PASSES = 2  # Kernels that scale the output of a gated shared expert: the sigmoid of its gate, and the product.
ADD_PASSES = 3
"""Passes over the hidden state to scale what routed experts return and add the shared ones': two read, one written."""

HEAD = "lm_head"  # Name of the LM head's matrix.
LOGIT_BYTES = 4.0  # Bytes of a logit of the router or the sampler: FP32, as vLLM casts them.


@dataclass(frozen=True, slots=True)
class StageAttention:
    """Attention of the layers of one kind in one stage."""

    layers: AttentionLayers  # The layers of this kind in the whole model.
    share: float  # Their share of all layers.
    kernel: FittedAttention | MeasuredAttention | None = None
    """Measured or fitted attention of one layer; None: class efficiencies."""


@dataclass(frozen=True, slots=True)
class Stage:
    """The layers of one pipeline stage on one rank."""

    shape: ReplicaShape  # The deployment.
    machine: Machine  # One GPU.
    precision: Precision
    """Weight format as it runs; for a checkpoint that mixes several, the one that it is named for."""
    precisions: Mapping[Part, tuple[tuple[Precision, float], ...]]
    """The formats of each part of the model, each with its share of the layers that have the part."""
    head: Precision | None  # Format of the LM head; None: that of what stays out of low-bit formats.
    num_layers: int  # Layers of the largest stage, ``ceil(layers / stages)``.
    attentions: tuple[StageAttention, ...]  # Attention by kind of layer.
    measured: MeasuredOperators | None = None  # Operator tables of the user; None: no operator is measured.
    splits_operators: bool = False  # Whether seconds are kept per operator; only the account of a run asks for that.

    def nothing(self, num_columns: int) -> OperatorSeconds:
        """Return zero seconds for that many numbers of tokens, to be added to."""
        return OperatorSeconds(num_columns, by_operator=self.splits_operators)

    @property
    def num_attention_layers(self) -> float:
        """Layers of the stage that have attention, assuming the model's share of them."""
        return self.num_layers * self.shape.model.attention_share

    @property
    def num_linear_layers(self) -> float:
        """Layers of the stage that keep a state instead of keys and values."""
        if self.shape.model.has_split_layers:
            return self.num_layers * self.shape.model.linear_share
        return self.num_layers - self.num_attention_layers

    @property
    def num_whole_layers(self) -> float:
        """Layers of the stage that mix tokens and have an MLP; if each layer does only one, two count as one."""
        return self.num_layers / 2.0 if self.shape.model.has_split_layers else self.num_layers

    def stored_bytes(self, gemms: Sequence[Gemm]) -> float:
        """Return the bytes of weight matrices as stored."""
        return sum(gemm.num_weights * self.stored_bits(gemm.part) / 8 for gemm in gemms)

    def stored_bits(self, part: Part | None) -> float:
        """Return the mean bits per weight of a part; None: of what stays out of low-bit formats."""
        if part is None:
            return self.precision.other_bits
        return sum(share * each.weight_bits for each, share in self.precisions[part])

    @property
    def head_bits(self) -> float:
        """Bits per weight of the LM head."""
        return self.precision.other_bits if self.head is None else self.head.weight_bits

    @property
    def expert_precision(self) -> Precision:
        """Weight format of most of the routed experts."""
        return max(self.precisions["experts"], key=itemgetter(1))[0]


def stage_of(shape: ReplicaShape) -> Stage:
    """Return the largest pipeline stage of a deployment.

    Raises:
        InputError: The GPU, the engine or the links do not support the deployment.
    """
    measured = None if shape.operator_tables is None else measured_operators(shape.operator_tables, shape.engine.name)
    attentions = []
    for layers in shape.model.attention_layers:
        kernel: FittedAttention | MeasuredAttention | None = None
        if shape.attention == "flash":
            kernel = _measured_attention(shape, layers, measured) or fitted_attention(shape, layers)
        attentions.append(StageAttention(layers, layers.num_layers / shape.model.num_hidden_layers, kernel))
    return Stage(
        shape,
        shape.machine,
        shape.precision,
        shape.precisions,
        shape.head_precision,
        shape.num_layers_per_stage,
        tuple(attentions),
        measured,
    )


def _measured_attention(
    shape: ReplicaShape, layers: AttentionLayers, measured: MeasuredOperators | None
) -> MeasuredAttention | None:
    """Return attention from tables; None if they lack the heads of a rank in decode steps or in prompts."""
    if measured is None:
        return None
    is_narrow = kv_element_bytes(shape.kv_cache_dtype) <= NARROW_KV_BYTES
    tables = (("generation_attention_perf", head_ranks(shape)), ("context_attention_perf", shape.tensor_parallel_size))
    decode, prompts = (measured.attention(table, layers, ranks, is_narrow) for table, ranks in tables)
    return None if decode is None or prompts is None else measured_attention(decode, prompts)


def measured_parts(stage: Stage) -> dict[str, bool]:
    """Return which operators of a stage the user's tables cover: matrix products, attention, experts, all-reduce."""
    model, ranks = stage.shape.model, stage.shape.tensor_parallel_size
    gemms = stage_gemms(stage)
    found = {
        "gemm": stage.measured is not None
        and all(_gemm_line(stage, each, gemm) is not None for gemm in gemms for each in _precisions(stage, gemm)),
        "lm_head": _gemm_line(stage, stage.head, model.lm_head_gemm(ranks)) is not None,
        "attention": all(isinstance(attention.kernel, MeasuredAttention) for attention in stage.attentions),
    }
    if model.moe is not None:
        found["experts"] = all(_expert_line(stage, each) is not None for each, _ in stage.precisions["experts"])
    if ranks > 1:
        found["all_reduce"] = stage.measured is not None and stage.measured.all_reduce(ranks) is not None
    return found


def _precisions(stage: Stage, gemm: Gemm) -> list[Precision | None]:
    """Return the formats of a matrix in the layers of a stage; None: 16 bit in quantised checkpoints too."""
    if gemm.part is None:
        return [stage.head if gemm.name == HEAD else None]
    return [each for each, _ in stage.precisions[gemm.part]]


def _gemm_line(stage: Stage, precision: Precision | None, gemm: Gemm) -> Line | None:
    """Return the measured times of a matrix product in a format; None as format: in 16 bit."""
    if stage.measured is None:
        return None
    if precision is None:
        return stage.measured.wide_gemm(stage.precision.wide_arithmetic, gemm)
    return stage.measured.gemm(precision, gemm)


def _expert_line(stage: Stage, precision: Precision) -> Line | None:
    if stage.measured is None:
        return None
    shape = stage.shape
    return stage.measured.experts(precision, shape.model, shape.expert_slices, shape.expert_groups)


@dataclass(frozen=True, slots=True)
class Call:
    """An operator of one layer."""

    operator: str  # Of `OPERATORS`.
    parts: Callable[[Array], Array | OperatorSeconds]
    """Its seconds by part for each number of tokens, or also by operator if it is more than one."""
    gemm: Gemm | None = None  # Its weights, if it is a matrix product.


@dataclass(frozen=True, slots=True)
class Block:
    """Identical layers of a stage, or what all layers share: how many, and what each calls in order."""

    count: float
    calls: tuple[Call, ...]

    def seconds(self, stage: Stage, tokens: Array) -> OperatorSeconds:
        """Return the seconds of one of them."""
        seconds = stage.nothing(len(tokens))
        for call in self.calls:
            parts = call.parts(tokens)
            if isinstance(parts, OperatorSeconds):
                seconds.add_all(parts)
            else:
                seconds.add(call.operator, parts)
        return seconds


def stage_blocks(stage: Stage, *, has_prompts: bool = True, routed: Array | None = None) -> list[Block]:
    """Return everything a stage calls that depends on a micro-batch's tokens: the one list of operators.

    ``routed``: tokens that choose experts, in place of all.

    Attention counts only with its start-up time. Where it is fitted, start, rows and waves of prompts count, and
    nothing without prompts. Under data-parallel attention the routed experts are in `shared_parts`.
    """
    model = stage.shape.model
    blocks = [Block(stage.num_layers * each.share, _attention_calls(stage, each)) for each in stage.attentions]
    if model.num_linear_layers:
        blocks.append(Block(stage.num_linear_layers, _linear_calls(stage, has_prompts=has_prompts)))
    if model.residual_passes:
        blocks.append(Block(stage.num_layers, _stream_calls(stage)))
    blocks += [*_input_blocks(stage), *_ngram_blocks(stage)]
    for each in stage.attentions:
        if each.kernel is not None and has_prompts:
            kernel = each.kernel
            waves = Call("attention", partial(_row, COMPUTE, kernel.prompt_seconds))
            blocks.append(Block(stage.num_layers * each.share, (waves,)))
        # Prompts of latent attention exchange nothing: they fetch keys. Its decodes beside them are counted apart.
        if stage.shape.decode_context_parallel_size > 1 and not (has_prompts and each.layers.mla is not None):
            exchange = partial(_row, COMMUNICATION, partial(context_exchange_seconds, stage.shape, each.layers))
            blocks.append(Block(stage.num_layers * each.share, (Call("all_gather", exchange),)))
    for layer, num_layers in model.mlp_kinds():
        count = stage.num_layers * (num_layers / model.num_hidden_layers)
        calls = _mlp_calls(stage, model.mlp_gemms(layer, stage.shape.tensor_parallel_size))
        if model.has_split_layers:
            calls += _norm_calls(stage)
        if model.moe is not None and model.is_moe_layer(layer) and stage.shape.data_parallel_size == 1:
            verified = 1 if has_prompts else stage.shape.tokens_per_decode
            experts = Call("experts", partial(_routed, stage, model.moe, routed, tokens_per_sequence=verified))
            if elsewhere := stage.shape.num_cpu_expert_layers:
                blocks.append(Block(count - elsewhere, (experts,)))  # the others: `offload`
            else:
                calls += (experts,)
        blocks.append(Block(count, calls))
    reductions = Call("all_reduce", partial(_row, COMMUNICATION, partial(_reductions, stage)))
    return [*blocks, Block(1.0, (reductions,))]


def stage_gemms(stage: Stage) -> list[Gemm]:
    """Return the matrix products of a stage, one per kind of layer, without experts and LM head."""
    return [call.gemm for block in stage_blocks(stage) for call in block.calls if call.gemm is not None]


def _row(part: int, price: Callable[[Array], Array], tokens: Array) -> Array:
    """Return seconds that all belong to one part as an array by part."""
    parts = np.zeros((len(PART_NAMES), len(tokens)))
    parts[part] = price(tokens)
    return parts


def _routed(
    stage: Stage, moe: MixtureOfExperts, routed: Array | None, tokens: Array, *, tokens_per_sequence: int
) -> Array:
    """Return `expert_block` of the tokens that choose experts: ``routed``, or all."""
    return expert_block(stage, moe, tokens if routed is None else routed, tokens_per_sequence=tokens_per_sequence)


def stage_seconds(
    stage: Stage, tokens: Array, *, has_prompts: bool = True, routed: Array | None = None
) -> OperatorSeconds:
    """Return the seconds of one stage for each number of tokens, from `stage_blocks`."""
    seconds = stage.nothing(len(tokens))
    for block in stage_blocks(stage, has_prompts=has_prompts, routed=routed):
        seconds.add_all(block.seconds(stage, tokens), block.count)
    return seconds


def stage_parts(stage: Stage, tokens: Array, *, has_prompts: bool = True) -> Array:
    """Return `stage_seconds` by part, ``[5, len(tokens)]``."""
    return stage_seconds(stage, tokens, has_prompts=has_prompts).parts


def _reductions(stage: Stage, tokens: Array) -> Array:
    """Return the seconds of all-reduces after attention and MLP; for experts under DP attention see `shared_parts`."""
    shape, model = stage.shape, stage.shape.model
    if shape.tensor_parallel_size == 1:
        return np.zeros(len(tokens))
    num_reductions = stage.num_layers * model.reductions_per_layer
    if shape.data_parallel_size > 1:
        num_reductions -= stage.num_layers * model.num_moe_layers / model.num_hidden_layers
    norm = start_latency(stage.machine, "elementwise")
    reduction = reduction_seconds(shape, tokens, norm, partial(_all_reduce, stage))
    return num_reductions * reduction + stage.num_layers * head_norm_seconds(shape, tokens)


def _all_reduce(stage: Stage, message: Array, link: Link) -> Array:
    """Return the seconds of an all-reduce over a link; a measured one includes waiting for the last rank."""
    num_ranks = stage.shape.tensor_parallel_size
    seconds = all_reduce_seconds(message, num_ranks, link)
    line = None if stage.measured is None else stage.measured.all_reduce(num_ranks)
    if line is None:
        return seconds
    wait = link.skew * math.log2(num_ranks)
    return np.asarray(line.scaled(message, (seconds - wait)[None, :])[0] + wait)


def shared_parts(stage: Stage, tokens: Array) -> OperatorSeconds:
    """Return the seconds of what the ranks of data-parallel attention do together, by the tokens of all ranks.

    The routed experts of all layers, and the collectives around them that gather tokens and scatter sums (vLLM's
    ``allgather_reducescatter``, SGLang's DP attention) or DeepEP's exchange.
    """
    shape, model = stage.shape, stage.shape.model
    together = stage.nothing(len(tokens))
    if model.moe is None or shape.data_parallel_size == 1:
        return together
    num_layers = stage.num_layers * model.num_moe_layers / model.num_hidden_layers
    together.add("experts", expert_block(stage, model.moe, tokens))
    for seconds in _exchanges(stage, model.moe, tokens):
        together.add_row("all_to_all", COMMUNICATION, seconds)
    together.scale(num_layers)
    if not shape.enable_two_batch_overlap:
        return together
    is_split = np.asarray(tokens >= SPLIT_TOKENS * shape.data_parallel_size, dtype=np.float64)
    together.scale(1.0 - is_split)
    together.add_all(_overlapped(stage, model.moe, tokens, num_layers), is_split)
    return together


def _overlapped(stage: Stage, moe: MixtureOfExperts, tokens: Array, num_layers: float) -> OperatorSeconds:
    """Return `shared_parts` of a step in two halves: one half computes while the other's tokens travel.

    Each half reads all weights, which is counted here. Exchanges show where they outlast the arithmetic beside them or
    take multiprocessors from it. Attention over contexts is left out. One exchange in each direction always shows.
    """
    half = tokens / 2.0
    halves = stage.nothing(len(tokens))
    halves.add("experts", 2.0 * num_layers * expert_block(stage, moe, half))
    own = tokens / stage.shape.data_parallel_size
    alone = [stage_parts(stage, each, has_prompts=False) for each in (own, own / 2.0)]
    halves.add("gemm", np.maximum(2.0 * alone[1] - alone[0], 0.0))
    exchange = sum(_exchanges(stage, moe, half))
    beside = 2.0 * (num_layers * expert_block(stage, moe, half) + alone[1]).sum(axis=0)
    hidden = 2.0 * num_layers * exchange
    taken = EXCHANGING_MULTIPROCESSORS[stage.shape.all2all_backend] / stage.machine.num_multiprocessors
    shown = np.maximum(hidden - beside, min(taken, 1.0) * hidden) + exchange
    halves.add_row("all_to_all", COMMUNICATION, shown)
    return halves


def _exchanges(stage: Stage, moe: MixtureOfExperts, tokens: Array) -> list[Array]:
    """Return the seconds per layer for sending tokens to their experts, and for returning the sums."""
    shape, width, backend = stage.shape, stage.shape.model.hidden_size, stage.shape.all2all_backend
    dispatched, combined = dispatched_bytes(width, element_bytes=_sent_bytes(stage)), width * COMBINED_BYTES
    if backend == "allgather_reducescatter":
        gathering = all_gather_seconds(tokens * dispatched, shape.expert_ranks, shape.expert_link)
        return [gathering, reduce_scatter_seconds(tokens * combined, shape.expert_ranks, shape.expert_link)]
    sizes = {"dispatch": dispatched, "combine": combined}
    own, links, chosen = tokens / shape.expert_ranks, shape.exchange_links, moe.num_experts_per_tok
    return [
        exchange_seconds(backend, curve, own, sizes[direction], chosen, links)
        for direction, curve in CURVES[backend].items()
    ]


def _sent_bytes(stage: Stage) -> float:
    """Return the bytes per element of a token on its way to the experts, without scales."""
    precision = stage.expert_precision
    if stage.shape.all2all_backend.startswith("deepep"):
        return max(precision.input_bytes, 1.0)
    is_rounded = stage.shape.engine.sends_rounded_tokens and not precision.is_block_scaled
    return precision.input_bytes if is_rounded else ACTIVATION_BYTES


def _attention_calls(stage: Stage, attention: StageAttention) -> tuple[Call, ...]:
    """Return norms, projections, rotary embedding, KV write and attention start-up of one layer."""
    model, machine, layers, engine = stage.shape.model, stage.machine, attention.layers, stage.shape.engine
    gemms = model.attention_gemms(stage.shape.tensor_parallel_size, layers)
    is_joined = engine.joins_index_inputs and layers.indexer is not None and layers.indexer.is_divided
    is_one_format = stage.precisions["attention"] == stage.precisions["indexer"]
    launched = launched_gemms(gemms, joins_latent=engine.joins_latent_inputs, joins_index=is_joined and is_one_format)
    calls = [*_norm_calls(stage), *(_linear(stage, gemm) for gemm in launched)]
    projected = sum(gemm.out_features for gemm in gemms if gemm.name != "output")
    attended = sum(gemm.in_features for gemm in gemms if gemm.name == "output")
    calls.append(_elementwise(stage, (2 * projected + attended) * ACTIVATION_BYTES))
    if layers.mla is None and layers.compressed is None and stage.shape.engine.unjoined_kernels:
        calls.append(Call("elementwise", partial(_unjoined, stage)))
    if model.qk_norm == "full" and stage.shape.tensor_parallel_size > 1:
        normed = sum(gemm.out_features for gemm in gemms if gemm.name == "qkv")
        calls.append(_elementwise(stage, (HEAD_NORM_CALLS + 1) * normed * ACTIVATION_BYTES, HEAD_NORM_CALLS))
    if attention.kernel is None:
        kernels = 1 if stage.shape.attention == "flash" else STANDARD_ATTENTION_CALLS
        calls.append(_waiting("attention", kernels * start_latency(machine, "attention_decode")))
    if layers.mla is not None or layers.compressed is not None:
        calls.append(_waiting("attention", stage.shape.engine.latent_attention_gap))
    if layers.compressed is not None:
        around = partial(compressed_seconds, layers, stage.shape.hardware.compute_capability)
        calls.append(Call("attention", partial(_row, COMPUTE, around)))
    if layers.indexer is not None:
        own, small = layers.indexer.on_rank(stage.shape.tensor_parallel_size), 0 if is_joined else INDEX_SMALL_CALLS
        calls.append(Call("attention", partial(indexer_parts, own, machine, small_calls=small)))
    return tuple(calls)


def _unjoined(stage: Stage, tokens: Array) -> Array:
    """Return the seconds by part of a layer's small kernels around attention beyond those counted elsewhere."""
    starts, has_norms = stage.shape.engine.unjoined_kernels, has_fused_all_reduce(stage.shape, tokens)
    kernels = starts.get("attention", 0) + np.where(has_norms, 0.0, starts.get("norms", 0))
    return elementwise_parts(0.0, tokens, stage.machine, kernels)


def _linear(stage: Stage, gemm: Gemm, *, is_beside: bool = False) -> Call:
    return Call("gemm", partial(_linear_layer, stage, gemm, is_beside=is_beside), gemm)


def _elementwise(stage: Stage, num_bytes: float, calls: int = 1) -> Call:
    """Return memory-bound kernels that together move ``num_bytes`` per token."""
    return Call("elementwise", lambda tokens: elementwise_parts(num_bytes, tokens, stage.machine, calls))


def _waiting(operator: str, seconds: float) -> Call:
    """Return a call that takes the same time for any number of tokens, without arithmetic: start-ups and gaps."""
    return Call(operator, partial(_row, HOST, lambda tokens: np.full(len(tokens), seconds)))


def _stream_calls(stage: Stage) -> tuple[Call, ...]:
    """Return the mixing of residual streams or blocks around the two sublayers of one layer (DeepSeek-V4, Kimi-K3)."""
    model = stage.shape.model
    moved = STREAM_SUBLAYERS * model.residual_passes * model.hidden_size * ACTIVATION_BYTES
    calls = 0 if model.residual_block_layers is not None else STREAM_CALLS  # blocks: in the kernel of the norm
    mixing = _elementwise(stage, moved, STREAM_SUBLAYERS * calls)
    return (mixing, *(_linear(stage, gemm) for gemm in model.stream_gemms()))


def _norm_calls(stage: Stage) -> tuple[Call, ...]:
    norms = stage.shape.model.num_norms_per_layer
    return (_elementwise(stage, norms * NORM_PASSES * stage.shape.model.hidden_size * ACTIVATION_BYTES, norms),)


def _linear_calls(stage: Stage, *, has_prompts: bool) -> tuple[Call, ...]:
    """Return norms, projections, convolution and, with prompts, the scan of one layer with a state."""
    gemms = stage.shape.model.linear_attention_gemms(stage.shape.tensor_parallel_size)
    mixing = partial(state_layer_parts, stage.shape, stage.machine, has_prompts=has_prompts)
    return (*_norm_calls(stage), *(_linear(stage, gemm) for gemm in gemms), Call("state_space", mixing))


def _input_blocks(stage: Stage) -> list[Block]:
    """Return layer inputs (Gemma 3n, 4 E) and the copies that layers update (3n): around all layers, then per layer."""
    model, share = stage.shape.model, stage.num_layers / stage.shape.model.num_hidden_layers
    blocks: list[Block] = []
    if (inputs := model.layer_inputs) is not None:
        (_, gemm), *_ = inputs.gemms(model.hidden_size, model.num_hidden_layers)
        looked_up = _elementwise(stage, INPUT_PASSES * gemm.out_features * ACTIVATION_BYTES, INPUT_CALLS)
        gated = _elementwise(stage, 3 * inputs.width * ACTIVATION_BYTES)
        normed = _elementwise(stage, NORM_PASSES * model.hidden_size * ACTIVATION_BYTES)
        gate, projection = (_linear(stage, each) for each in inputs.layer_gemms(model.hidden_size))
        blocks.append(Block(share, (looked_up, _linear(stage, gemm))))
        blocks.append(Block(stage.num_layers, (gate, gated, projection, normed)))
    if (copies := model.alternating_updates) is not None:
        moved = (copies.passes + NORM_PASSES) * model.hidden_size * ACTIVATION_BYTES
        router, *low_rank = (_linear(stage, gemm) for gemm in copies.layer_gemms(model.hidden_size))
        calls = (_elementwise(stage, moved, UPDATE_CALLS), router, router, *low_rank)
        blocks.append(Block(share, tuple(_linear(stage, gemm) for gemm in copies.around_gemms(model.hidden_size))))
        blocks.append(Block(stage.num_layers, calls))
    return blocks


def _ngram_blocks(stage: Stage) -> list[Block]:
    """Return n-grams (Qwen3.8-Flash-Next), in the layers that look them up."""
    model, share = stage.shape.model, stage.num_layers / stage.shape.model.num_hidden_layers
    if (ngrams := model.ngrams) is None:
        return []
    streams = model.num_residual_streams
    moved = ngrams.num_heads * ngrams.row_width + ngrams.passes(streams) * model.hidden_size
    gated = _elementwise(stage, moved * ACTIVATION_BYTES, NGRAM_CALLS)
    projected = (_linear(stage, gemm) for gemm in ngrams.gemms(model.hidden_size, streams))
    return [Block(share * ngrams.num_layers, (gated, *projected))]


def _mlp_calls(stage: Stage, gemms: list[Gemm]) -> tuple[Call, ...]:
    """Return projections and activation function of an MLP, or of router and shared experts, in one layer."""
    calls, engine, model = list[Call](), stage.shape.engine, stage.shape.model
    for gemm in gemms:
        calls.append(_linear(stage, gemm, is_beside=engine.overlaps_shared_experts and gemm.name.startswith("shared_")))
        if gemm.name == "shared_gate":
            calls.append(_elementwise(stage, GATE_PASSES * model.hidden_size * ACTIVATION_BYTES, GATE_PASSES))
        if gemm.name.endswith("down"):
            wide = gemm.in_features * (3 if model.is_gated_mlp else 2)
            apart = engine.unjoined_kernels.get("activation", 0) if gemm.name == "down" else 0
            calls.append(_elementwise(stage, wide * ACTIVATION_BYTES, 1 + apart))
        if gemm.name == "shared_down" and engine.adds_shared_experts:
            calls.append(_elementwise(stage, ADD_PASSES * model.hidden_size * ACTIVATION_BYTES))
    return tuple(calls)


def expert_block(stage: Stage, moe: MixtureOfExperts, tokens: Array, *, tokens_per_sequence: int = 1) -> Array:
    """Return the seconds by part of one layer's experts: choosing, sorting, grouped GEMMs, activation, weighted sum.

    ``tokens_per_sequence``: tokens that each sequence has in a step without prompts; 1 leaves out that drafts repeat
    experts, as beside prompts and under data-parallel attention.
    """
    kernels, passes = router_kernels(stage.shape, moe, gemm_class(stage.expert_precision))
    is_sent = stage.shape.all2all_backend != "allgather_reducescatter"  # a rank sees only its own tokens and pairs
    seen = tokens / stage.shape.expert_ranks if is_sent else tokens
    parts = elementwise_parts(passes * moe.num_choices * LOGIT_BYTES, seen, stage.machine, kernels)
    groups, redundant = stage.shape.expert_groups, stage.shape.num_redundant_experts
    load = load_of_experts(moe, tokens, groups, redundant, tokens_per_sequence)
    if is_sent:
        load = replace(load, routed=load.pairs)
    return parts + sum(share * _experts(stage, each, load, tokens) for each, share in stage.precisions["experts"])


def _experts(stage: Stage, precision: Precision, load: ExpertLoad, tokens: Array) -> Array:
    """Return the seconds by part of one layer's experts in a format: grouped GEMMs, activation, weighted sum."""
    model, machine = stage.shape.model, stage.machine
    parts = np.zeros((len(PART_NAMES), len(tokens)))
    up, down = model.expert_gemms(stage.shape.expert_slices)
    if precision.name in stage.shape.engine.padded_expert_formats:
        up, down = marlin_padded(up, down)
    shape = shape_of_experts(up, down, precision.weight_bits, precision.input_bytes)
    speed = stage.shape.engine.expert_speed.get(precision.name, 1.0)
    kernels, share, rows = gemm_class(precision), precision.compute_share, precision.min_tile_rows
    passes = class_local_passes(stage.shape.hardware, kernels)
    curve = expert_curve(machine, kernels, precision.arithmetic, share, rows, speed, passes)
    if not precision.has_packed_experts:
        held = float(np.max(load.held)) * (up.num_weights + down.num_weights)
        parts += unpacking_parts(precision, machine, held, np.full(len(tokens), np.inf))  # no grouped packed kernel
        shape = shape_of_experts(up, down, precision.unpacked_bits, precision.input_bytes)
    experts, line = layer_parts(curve, machine, precision.arithmetic, shape, load), _expert_line(stage, precision)
    return parts + (experts if line is None else line.scaled(tokens, experts))


def projection(stage: Stage, gemm: Gemm, tokens: Array) -> Array:
    """Return the seconds by part of one linear layer, including the rounding of its inputs."""
    return _linear_layer(stage, gemm, tokens).parts


def _linear_layer(stage: Stage, gemm: Gemm, tokens: Array, *, is_beside: bool = False) -> OperatorSeconds:
    """Return one linear layer in the formats of its part, or in the wide dtype if it stays out of them.

    ``is_beside``: runs alongside the routed experts, so that its start-up no longer shows. SGLang runs shared experts
    as further routed ones; vLLM (from 0.11.1) and TensorRT-LLM use a second stream.
    """
    seconds = stage.nothing(len(tokens))
    if gemm.name == HEAD and stage.head is not None:
        return _projection(stage, stage.head, gemm, tokens, is_beside=False)
    if gemm.part is None:
        priced = wide_parts(stage.shape, stage.machine, gemm, tokens, wide_projection(stage, gemm, tokens))
        for operator, parts in priced:
            seconds.add(operator, parts)
        return seconds
    stored = stage.precisions[gemm.part]
    if len(stored) == 1:
        return _projection(stage, stored[0][0], gemm, tokens, is_beside=is_beside)
    for each, share in stored:
        seconds.add_all(_projection(stage, each, gemm, tokens, is_beside=is_beside), share)
    return seconds


def _projection(stage: Stage, precision: Precision, gemm: Gemm, tokens: Array, *, is_beside: bool) -> OperatorSeconds:
    machine, seconds = stage.machine, stage.nothing(len(tokens))
    engine, gpu = stage.shape.engine, stage.shape.hardware
    if maker := block_scaled_maker(engine, gpu.vendor, gemm.out_features, gemm.in_features, is_beside=is_beside):
        machine = replace(machine, gemm_curves=gpu.gemm_curves_of(maker))
    curve = gemm_curve(
        machine,
        gemm_class(precision),
        precision.arithmetic,
        precision.compute_share,
        precision.min_tile_rows,
        precision.overlap,
    )
    if precision.vector_flops is not None:
        curve = curve.model_copy(update=precision.kernels_of_rows)
    if precision.is_block_scaled:
        curve, is_padded = block_scaled_curve(curve, engine, gpu.compute_capability, gemm.out_features)
        if is_padded:
            copied = PAD_PASSES * gemm.in_features * ACTIVATION_BYTES
            seconds.add("elementwise", elementwise_parts(copied, tokens, machine))
    sizes = ProductSizes(gemm.out_features, gemm.in_features, precision.weight_bits, precision.input_bytes)
    hidden = curve.start_latency if is_beside else 0.0
    parts = product_parts(curve, device_of(machine, precision.arithmetic), sizes, tokens, hidden)
    if machine.unpacking is not None:  # beyond bytes and start, a call's time is the unpacking of weights
        unpacking = np.maximum(parts[HOST] - (0.0 if is_beside else curve.start_latency), 0.0)
        parts = parts.copy()
        parts[COMPUTE] += unpacking
        parts[HOST] -= unpacking
    if precision.unpacked_from_rows is not None:
        plain = wide_projection(stage, gemm, tokens, precision.unpacked_bits)
        seconds.add("gemm", unpacked_parts(precision, machine, sizes, tokens, parts, plain))
        return seconds
    line, rounding = _gemm_line(stage, precision, gemm), _activation_quantisation(stage, precision, gemm, tokens)
    is_together = precision.arithmetic == "fp8"  # such products include the rounding of inputs
    seconds.add("gemm", parts if line is None or is_together else line.scaled(tokens, parts))
    if rounding is not None:
        seconds.add("activation_quantization", rounding)
    if line is not None and is_together:
        seconds.set_parts(line.scaled(tokens, seconds.parts))
    return seconds


def wide_projection(stage: Stage, gemm: Gemm, rows: Array, weight_bits: float | None = None) -> Array:
    """Return the seconds by part of one linear layer in the wide dtype; bits per weight default to those stored."""
    dtype = stage.precision.wide_arithmetic
    bits = stage.precision.other_bits if weight_bits is None else weight_bits
    curve = gemm_curve(stage.machine, wide_class(dtype), dtype)
    sizes = ProductSizes(gemm.out_features, gemm.in_features, bits)
    parts = product_parts(curve, device_of(stage.machine, dtype), sizes, rows)
    line = None if gemm.part is not None else _gemm_line(stage, None, gemm)
    return parts if line is None else line.scaled(rows, parts)


def _activation_quantisation(stage: Stage, precision: Precision, gemm: Gemm, rows: Array) -> Array | None:
    """Return the seconds for rounding the inputs of a linear layer to 8 bits; None if the format does not."""
    if not precision.is_quantizing_activations or _is_fused(stage, precision, gemm):
        return None
    moved = gemm.in_features * (ACTIVATION_BYTES + precision.input_bytes)
    fitted, machine = stage.machine.activation_quantisation, stage.machine
    is_apart = ~_is_rounded_by_all_reduce(stage, precision, gemm, rows)
    if fitted is None:
        return elementwise_parts(moved, rows, machine) * is_apart
    parts = np.zeros((len(PART_NAMES), len(rows)))
    parts[HOST] = fitted.start_latency
    parts[COMPUTE] = moved * rows / (machine.bandwidth * fitted.memory_efficiency)
    return parts * is_apart


BEHIND_ALL_REDUCE = ("qkv", "gate_up")  # Products whose inputs come from the norm after an all-reduce.
LEAST_ROUNDING_WIDTH = 4096
"""Hidden size above which TensorRT-LLM's all-reduce rounds (modeling_llama.py, enable_fusion: fewer lose accuracy)."""

ROUNDING_BYTES: Mapping[int, float] = {2: 16e6}
"""Tensor-parallel ranks -> largest message of TensorRT-LLM's own all-reduce, bytes (max_workspace_size_auto). NCCL
carries longer ones, after which a separate kernel rounds (thop/allreduceOp.cpp)."""

OTHER_ROUNDING_BYTES = 8e6  # The same for more ranks.


def _is_fused(stage: Stage, precision: Precision, gemm: Gemm) -> bool:
    """Return whether the preceding norm or activation function rounds a linear layer's inputs; attention does not.

    Compilers fuse rounding with one scale per tensor or token, not with block scales.
    """
    is_fusing = stage.shape.engine.fuses_activation_quantisation and not precision.is_block_scaled
    return is_fusing and gemm.name != "output"


def _is_rounded_by_all_reduce(stage: Stage, precision: Precision, gemm: Gemm, rows: Array) -> NDArray[np.bool_]:
    """Return for each number of rows whether the all-reduce before a linear layer rounds its inputs."""
    shape = stage.shape
    model, ranks = shape.model, shape.tensor_parallel_size
    is_known = model.family in shape.engine.all_reduce_rounds_families and model.hidden_size > LEAST_ROUNDING_WIDTH
    is_behind = ranks > 1 and gemm.name in BEHIND_ALL_REDUCE and not precision.is_block_scaled
    message = rows * model.hidden_size * ACTIVATION_BYTES
    limit = ROUNDING_BYTES.get(ranks, OTHER_ROUNDING_BYTES)
    return np.asarray((message <= limit) & (is_known and is_behind))


def has_fitted_gemms(stage: Stage) -> bool:
    """Return whether every matrix product of the stage runs on a fitted curve."""
    machine, model = stage.machine, stage.shape.model
    wide = stage.precision.wide_arithmetic
    used = [gemm_curve(machine, wide_class(wide), wide).fit]
    for part in dict.fromkeys(gemm.part for gemm in stage_gemms(stage) if gemm.part is not None):
        used += [gemm_curve(machine, gemm_class(each), each.arithmetic).fit for each, _ in stage.precisions[part]]
    for each, _ in stage.precisions["experts"] if model.moe is not None else ():
        used.append(expert_curve(machine, gemm_class(each), each.arithmetic, each.compute_share).fit)
    return None not in used


def transfer_seconds(shape: ReplicaShape, tokens: Array) -> Array:
    """Return the seconds to send a micro-batch to the next stage; each rank sends its share."""
    message = tokens * shape.model.hidden_size * ACTIVATION_BYTES / shape.tensor_parallel_size
    return point_to_point_seconds(message, shape.stage_link)


FUSED_BYTES: Mapping[str, Mapping[int, float]] = {
    "9.0": {2: 64 * 2.0**20, 4: 2 * 2.0**20, 8: 2.0**19},
    "10.0": {2: 64 * 2.0**20, 4: 32 * 2.0**20, 8: 2.0**20},
    "10.3": {2: 64 * 2.0**20, 4: 64 * 2.0**20, 8: 2 * 2.0**20},
}
"""CUDA compute capability -> tensor-parallel ranks -> largest message of vLLM's fused all-reduce, bytes (0.19.0
compilation/passes/fusion/allreduce_rms_fusion.py, FI_ALLREDUCE_FUSION_MAX_SIZE_MB)."""

FUSED_TOKENS = 2048
"""Most tokens of SGLang's fused all-reduce (0.5.9 layers/communicator.py, FUSE_ALLREDUCE_MAX_BATCH_SIZE)."""

FUSED_KERNELS = "tensorrt-llm"  # Whose fused kernel it is: FlashInfer's ``trtllm_allreduce_fusion``.
SUMS_BYTES = 8.0  # Bytes per token of the sums of squares of queries and keys, in FP32.


def has_fused_all_reduce(shape: ReplicaShape, tokens: Array) -> NDArray[np.bool_]:
    """Return for each number of tokens whether all-reduce, residual and norm run as one kernel."""
    families, node = shape.engine.all_reduce_norm_families, shape.hardware.intra_node.gpus_per_node
    is_fusing = shape.engine.fuses_all_reduce_norm and (not families or shape.model.family in families)
    is_fusing &= 1 < shape.tensor_parallel_size <= node  # it reads the other ranks' memory (SGLang: nnodes == 1)
    return np.asarray((tokens * shape.model.hidden_size * ACTIVATION_BYTES <= _fused_bytes(shape)) & is_fusing)


def _fused_bytes(shape: ReplicaShape) -> float:
    """Return the largest message of a fused all-reduce, bytes; 0 on GPUs without one (before Hopper)."""
    by_ranks = FUSED_BYTES.get(shape.hardware.compute_capability or "", {})
    if by_ranks and shape.engine.name == FUSED_KERNELS:
        return ROUNDING_BYTES.get(shape.tensor_parallel_size, OTHER_ROUNDING_BYTES)
    if by_ranks and shape.engine.name == "sglang":
        return FUSED_TOKENS * shape.model.hidden_size * ACTIVATION_BYTES
    return by_ranks.get(shape.tensor_parallel_size, 0.0)


def reduction_seconds(
    shape: ReplicaShape, tokens: Array, norm_start: float, all_reduce: Callable[[Array, Link], Array]
) -> Array:
    """Return the seconds of one all-reduce of the tokens' hidden states.

    Args:
        tokens: Tokens of the step.
        norm_start: Start-up time of the norm after it, which is saved if both are one kernel.
        all_reduce: Seconds of a message over a link.
    """
    message = tokens * shape.model.hidden_size * ACTIVATION_BYTES
    seconds = all_reduce(message, shape.tensor_link)
    is_fused = has_fused_all_reduce(shape, tokens)
    if not is_fused.any():
        return seconds
    fused = all_reduce(message, replace(shape.tensor_link, engine=FUSED_KERNELS)) - norm_start
    return np.where(is_fused, np.clip(fused, 0.0, seconds), seconds)


def head_norm_seconds(shape: ReplicaShape, tokens: Array) -> Array:
    """Return the seconds to add up the sums of squares of all ranks' heads, if they share one norm."""
    if shape.model.qk_norm != "full":
        return np.zeros(len(tokens))
    together = replace(shape.tensor_link, skew=0.0)  # no time to drift apart since the previous reduction
    is_aligned = shape.engine.aligns_all_reduce
    return sums_seconds(SUMS_BYTES * tokens, shape.tensor_parallel_size, together, is_aligned=is_aligned)
