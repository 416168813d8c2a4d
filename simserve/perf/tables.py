"""The costs of every step, evaluated once per deployment into the arrays that the engine reads.

Entries are for the whole replica. With p pipeline stages, x tokens travel as p micro-batches of x / p, and a round
takes ``p * stage(x / p) + (p - 1) * transfer``. Sweeps, searches and curves over seats ask for the same deployment
again, which costs only a look-up. Knows no requests.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from simserve.engine.state import StepTimes
from simserve.errors import InputError
from simserve.perf.attention import (
    TILE_PAIRS,
    AttentionShape,
    attention_of,
    decode_key_seconds,
    growing_share,
    index_key_seconds,
    index_pair_seconds,
    index_share,
    prefill_key_seconds,
    prefill_pair_seconds,
    reads_keys_by_query_head,
    serial_key_seconds,
    sparse_prompt_seconds,
    triton_latent_seconds,
    triton_wide_share,
    unshared_key_seconds,
    window_keys,
)
from simserve.perf.attention_curve import NARROW_KV_BYTES
from simserve.perf.cascade import FLASH_ATTENTION_2, shared_read_share
from simserve.perf.collectives import all_gather_seconds
from simserve.perf.context_parallel import context_exchange_seconds, context_gather_seconds, head_ranks
from simserve.perf.efficiency import Array
from simserve.perf.gemm import ACTIVATION_BYTES
from simserve.perf.latent_context import expansion_of
from simserve.perf.launches import (
    graphed_prompt_tokens,
    launch_wait,
    linear_launch,
    padded_to_pieces,
    piecewise_wait,
    prompt_launching,
)
from simserve.perf.linear_attention import step_state_seconds
from simserve.perf.loras import lora_times
from simserve.perf.memory import kv_bytes_per_token
from simserve.perf.offload import cpu_key_seconds, cpu_pair_seconds, link_bandwidth, offload_notes, offload_parts
from simserve.perf.operators import (
    COMMUNICATION,
    COMPUTE,
    HOST,
    KV,
    Fidelity,
    OperatorSeconds,
    PricedDeployment,
    StepParts,
    elementwise_parts,
)
from simserve.perf.pipeline import exposed_head, micro_batch, num_micro_batches, rounds
from simserve.perf.quantization import kv_element_bytes
from simserve.perf.shape import ReplicaShape, exposed_mask_seconds
from simserve.perf.speculation import passing_shape, wide_key_seconds, with_drafts
from simserve.perf.stage import (
    LOGIT_BYTES,
    Stage,
    StageAttention,
    has_fitted_gemms,
    measured_parts,
    projection,
    shared_parts,
    stage_of,
    stage_parts,
    stage_seconds,
    transfer_seconds,
)
from simserve.perf.traffic import traffic_of
from simserve.perf.ubatches import Runs, is_in_slot_order, most_apart, runs_of, slot_runs
from simserve.profiles.attention_kinds import SparseIndexer
from simserve.profiles.catalog import Itself
from simserve.profiles.model_blocks import AttentionLayers
from simserve.profiles.resolved_engine import ResolvedEngine

MIN_TABLE_TOKENS = 8192
"""Least tokens in the table: enough for compute to be the bottleneck where the straight line takes over."""
MAX_TABLE_TOKENS = 32768  # Most tokens in the table. Beyond it the time of a step is linear in its tokens.
FAR_TOKENS = 2.0**26  # Tokens per micro-batch at which the cost of one more token is all that counts.
_OTHER_FIELDS = [each.name for each in fields(ReplicaShape) if each.name not in ("hardware", "model", "speculation")]
KEPT = 128
"""Deployments kept, about 0.8 MB each: a search prices the shapes of a kind of GPU, about a hundred, before it runs the
first."""
KEPT_TIMES = 2048
"""Deployments whose step times alone are kept, about 0.1 MB each: a plan asks for those of all kinds of GPU again when
it sizes prefill and decode workers."""
KEPT_BY_IDENTITY = 8  # Deployments found again without being compared by value, whose text takes 1 ms to write.
_TABLES = ("decode_base", "decode_slope", "token_seconds", "sequence_seconds", "decode_attention_base")


def price_anew(shape: ReplicaShape, max_tokens_in_table: int | None = None) -> PricedDeployment:
    """Return the seconds of every step that a replica can take.

    Args:
        max_tokens_in_table: Tokens up to which a step is tabulated; beyond, it grows by the compute-bound cost of one
            more token. Default: token budget times pipeline stages, within 8,192 to 32,768.

    Raises:
        InputError: The GPU, the engine or the links do not support the deployment.
    """
    stage = stage_of(shape)
    tokens = np.arange(_last_token(shape, max_tokens_in_table) + 1.0)
    # Of a round of stages, micro-batches as large as the largest that may occur.
    largest = shape.pipeline_parallel_size if shape.keeps_micro_batches or shape.samples_in_turn else 1
    tables = tables_of(stage, tokens, np.arange(shape.engine.max_num_seqs * largest + 1.0), tokens)
    may_fall = stage.measured is not None and stage.measured.has_dips
    in_runs = is_in_slot_order(shape)  # a full server computes one run, a half-full one several
    is_exact = not shape.engine.cuda_graph_padding  # a larger batch may have a graph
    parts = StepParts(
        decode=_monotone(tables.decode.parts, may_fall=may_fall or in_runs or is_exact),
        token=_monotone(tables.token.parts, may_fall=may_fall),
        token_beyond=tables.token_beyond.parts[:, 0],
        sequence=_monotone(tables.sequence.parts, may_fall=may_fall),
        decode_attention=_monotone(tables.decode_attention.parts, may_fall=in_runs),
        shared=_monotone(tables.shared.parts),
        **traffic_of(stage, tokens),
    )
    operators = _fidelity(stage)
    priced = PricedDeployment(
        shape=shape,
        step_times=_step_times(stage, parts, tables.slope),
        parts=parts,
        fidelity=_worst(operators),
        operators=operators,
        notes=(*shape.notes, *offload_notes(shape)),
    )
    if shape.speculation is None:
        return priced
    draft = passing_shape(shape)
    return with_drafts(priced, shape, None if draft is None else price(draft, len(tokens) - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """The tables of `StepParts` as priced, before sums are made monotone, and the seconds of contexts."""

    decode: OperatorSeconds
    token: OperatorSeconds
    token_beyond: OperatorSeconds
    sequence: OperatorSeconds
    decode_attention: OperatorSeconds
    shared: OperatorSeconds
    slope: Array  # Seconds per context token as priced, by number of sequences.


def tables_of(stage: Stage, tokens: Array, sequences: Array, together: Array) -> Tables:
    """Return the seconds of steps by their content.

    Args:
        tokens: Tokens of steps with prompts, ascending, 0 first.
        sequences: Numbers of sequences: 0, 1, 2 and so on.
        together: Tokens of all ranks in lockstep, ascending, 0 first.
    """
    slope, window = _decode_slopes(stage, sequences)
    return Tables(
        decode=_decode_rounds(stage, sequences, window),
        token=_token_rounds(stage, tokens),
        token_beyond=_marginal_token(stage),
        sequence=_sequence_rounds(stage, sequences),
        decode_attention=_decode_attention(stage, sequences, window),
        shared=_shared_rounds(stage, together),
        slope=slope,
    )


def _fidelity(stage: Stage) -> dict[str, Fidelity]:
    """Return for each operator of a step whether its time is measured, fitted or a roofline."""
    shape = stage.shape
    gemms: Fidelity = "fitted" if has_fitted_gemms(stage) else "roofline"
    is_own = shape.hardware.kernels_of is None
    collectives: Fidelity = "fitted" if is_own and shape.hardware.collective_curves is not None else "roofline"
    curves: dict[str, Fidelity] = {
        "gemm": gemms,
        "lm_head": gemms,
        "attention": "fitted" if is_own and all(each.kernel for each in stage.attentions) else "roofline",
        "experts": gemms,
        "all_reduce": collectives,
    }
    measured = measured_parts(stage)
    operators: dict[str, Fidelity] = {
        name: "measured" if is_measured else curves[name] for name, is_measured in measured.items()
    }
    if shape.num_gpus > 1 and "all_reduce" not in operators:
        operators["all_reduce"] = curves["all_reduce"]
    if shape.model.mamba is not None or shape.model.mamba1 is not None:
        operators["state_space"] = "roofline"
    return operators


def _worst(operators: Mapping[str, Fidelity]) -> Fidelity:
    order: tuple[Fidelity, ...] = ("roofline", "fitted", "measured")
    return min(operators.values(), key=order.index)


def _last_token(shape: ReplicaShape, asked: int | None) -> int:
    if asked is not None:
        if asked < 1:
            raise InputError("must be >= 1", key="max_tokens_in_table", value=asked)
        return asked
    budget = shape.engine.max_num_batched_tokens * shape.pipeline_parallel_size
    return min(max(budget, MIN_TABLE_TOKENS), MAX_TABLE_TOKENS)


def _step_times(stage: Stage, parts: StepParts, slope: Array) -> StepTimes:
    request, pair, attended, key = _prompt_seconds(stage)
    gpu, prompts = stage.shape.engine.gpu_time_factor, _prompt_factor(stage)
    num_layers = stage.num_layers * stage.shape.pipeline_parallel_size
    factor = mixed_decode_factor(stage.shape, float(slope[1]) / num_layers, attended)
    loras = lora_times(stage.shape, stage.machine) if stage.shape.engine.max_loras else (0.0, 0.0, 0.0)
    return StepTimes(
        mixed_decode_factor=factor,
        decode_base=_sums(parts.decode),
        decode_slope=_column(gpu * stage.shape.engine.batch_time_factor * slope),
        token_seconds=_sums(parts.token),
        token_seconds_beyond=float(parts.token_beyond.sum()),
        sequence_seconds=_sums(parts.sequence),
        decode_attention_base=_sums(parts.decode_attention),
        prefill_request_seconds=prompts * request,
        prefill_pair_seconds=prompts * pair,
        prefill_context_seconds=prompts * key,
        swap_block_seconds=kv_bytes_per_token(stage.shape)
        * stage.shape.engine.block_size
        / link_bandwidth(stage.shape),
        lora_step_seconds=loras[0],
        lora_adapter_seconds=loras[1],
        lora_token_seconds=loras[2],
        shared_seconds=_sums(parts.shared),
        shared_seconds_beyond=_marginal_shared(stage),
        launch_seconds=prompt_launching(stage),
        launch_max_tokens=float(graphed_prompt_tokens(stage.shape)),
    )


def _prompt_factor(stage: Stage) -> float:
    """Return the measured factor on GPU time in steps with prompts."""
    return stage.shape.engine.gpu_time_factor * stage.shape.engine.prompt_time_factor


def _prompt_seconds(stage: Stage) -> tuple[float, float, float, float]:
    """Return the seconds per prefilling request, attended pair and key read, in all layers of the replica.

    The third value is for an attended pair in one layer, the mean of all, without indexers.
    """
    model, request, pair, attended, key = stage.shape.model, 0.0, 0.0, 0.0, 0.0
    num_layers = stage.num_layers * stage.shape.pipeline_parallel_size
    for each in stage.attentions:
        growing, layers = growing_share(model, each.layers, stage.shape.contexts), each.layers
        of_request, of_pair, of_key = _prefill_seconds(stage, each)
        request += of_request * num_layers * each.share
        attended += of_pair * growing
        key += (of_key + context_gather_seconds(stage.shape, layers)) * num_layers * growing
        on_cpu = cpu_pair_seconds(stage.shape, _attention_shape(stage, each))
        if layers.topk is None or layers.mla is None:
            pair += (of_pair * num_layers + on_cpu) * growing
            pair += index_pair_seconds(_indexer(stage, layers), stage.machine) * num_layers * index_share(model, layers)
        else:
            pair += (index_pair_seconds(_indexer(stage, layers), stage.machine) * num_layers + on_cpu) * growing
    key += expansion_of(stage).seconds * stage.shape.pipeline_parallel_size
    return request, pair, attended, key


def _attention_shape(stage: Stage, attention: StageAttention, *, is_decode: bool = False) -> AttentionShape:
    """Return one layer on one rank; decodes have the queries of all ranks that divide the tokens among them."""
    shape = stage.shape
    ranks = head_ranks(shape) if is_decode else shape.tensor_parallel_size
    return attention_of(attention.layers, ranks, shape.kv_element_bytes)


def _prefill_seconds(stage: Stage, attention: StageAttention) -> tuple[float, float, float]:
    """Return the seconds per prefilling request, attended pair and key read, in one layer."""
    kernel, layer = attention.kernel, _attention_shape(stage, attention)
    if kernel is not None:
        return kernel.request_seconds, kernel.pair_seconds, kernel.prompt_key_seconds
    is_flash = stage.shape.attention == "flash"
    wide = triton_wide_share(stage.shape, attention.layers) if is_flash else None
    dtype = stage.precision.wide_arithmetic
    pair = prefill_pair_seconds(layer, stage.machine, dtype, is_flash=is_flash, peak_share=wide)
    return TILE_PAIRS * pair, pair, prefill_key_seconds(layer, stage.machine)


def _token_rounds(stage: Stage, tokens: Array) -> OperatorSeconds:
    """Return the seconds of a round of ``tokens`` (0 first), without attended keys."""
    shape, num_stages = stage.shape, stage.shape.pipeline_parallel_size
    travelling = micro_batch(tokens[1:], num_stages)
    size = shape.engine.ubatch_size
    # Where chunks overlap, more than a micro-batch for each stage is further ones that enter one after another.
    apart = travelling if size is None or not shape.overlaps_chunks else np.minimum(travelling, size)
    runs = runs_of(apart, size, most_apart(shape))
    seconds = stage_seconds(stage, padded_to_pieces(shape, runs.lengths))
    seconds.add("offload", offload_parts(stage, runs.lengths))
    for each in stage.attentions:
        pair = _prefill_seconds(stage, each)[1]
        window = stage.num_layers * runs.lengths * window_keys(shape.model, each.layers, shape.contexts) * pair
        seconds.add_row("attention", COMPUTE, window)
        seconds.add_row("attention", COMPUTE, _sparse_seconds(stage, each, runs.lengths, pair))
    expansion_of(stage).take_own(seconds, runs.lengths)
    seconds.scale(_prompt_factor(stage))
    is_eager = runs.lengths > graphed_prompt_tokens(shape)
    in_run = _gpu_seconds(stage, seconds.parts, runs.lengths)
    launch = shape.engine.eager_prompt_seconds_per_layer
    launch = shape.engine.eager_seconds_per_layer if launch is None else launch
    waits = launch_wait(stage, in_run, is_eager, launch)
    is_graphed = runs.lengths <= shape.engine.cuda_graph_max_expert_tokens
    if is_graphed.any():
        waits = np.where(is_graphed, launch_wait(stage, in_run, is_eager, launch, calls_experts=True), waits)
    waits = np.maximum(waits, stage.num_linear_layers * linear_launch(stage) - in_run)
    seconds, gpu_seconds = seconds.mapped(runs.total), runs.total(in_run)
    # The host prepares a run of kernels while the GPU computes the previous one: only the first run waits for it.
    host = runs.total(waits) + _exposed_host_seconds(stage, gpu_seconds, _host_seconds_of_a_stage(stage))
    seconds.add_row("host", HOST, host)
    # Runs follow each other through the stages; each stage waits for the longest one only once. Where chunks overlap,
    # a round holds a micro-batch for each stage, and what it is priced for includes the way of the last one.
    passes = 1.0 + (num_stages - 1) * runs.longest(in_run) / gpu_seconds
    seconds.scale(num_stages * travelling / apart if shape.overlaps_chunks else passes)
    if num_stages > 1:
        transfers = (num_stages - 1) * transfer_seconds(shape, travelling)
        seconds.add_row("pipeline_transfer", COMMUNICATION, transfers)
    return _with_empty_step(seconds)


def _sparse_seconds(stage: Stage, attention: StageAttention, tokens: Array, pair: float) -> Array:
    """Return the seconds of attention to the chosen part of a latent cache, in all layers of a stage."""
    ranks = stage.shape.tensor_parallel_size
    chosen = sparse_prompt_seconds(attention.layers, ranks, stage.machine, tokens, pair)
    return np.asarray(stage.num_layers * attention.share * chosen)


def _shared_rounds(stage: Stage, tokens: Array) -> OperatorSeconds:
    """Return the seconds of what ranks in lockstep do together, by the tokens of all ranks (0 first)."""
    if stage.shape.data_parallel_size == 1:
        return stage.nothing(0)
    seconds = shared_parts(stage, tokens[1:])
    seconds.scale(stage.shape.engine.gpu_time_factor)
    return _with_empty_step(seconds)


def _marginal_shared(stage: Stage) -> float:
    seconds = shared_parts(stage, np.array([FAR_TOKENS, 2.0 * FAR_TOKENS])).parts.sum(axis=0)
    return stage.shape.engine.gpu_time_factor * max(float(seconds[1] - seconds[0]), 0.0) / FAR_TOKENS


def _gpu_seconds(stage: Stage, parts: Array, tokens: Array) -> Array:
    """Return the GPU time of a step, including its ranks' experts, to which host and launches are compared."""
    shared = shared_parts(stage, tokens * stage.shape.data_parallel_size).parts
    return np.asarray(parts.sum(axis=0) + stage.shape.engine.gpu_time_factor * shared.sum(axis=0))


def _sequence_rounds(stage: Stage, sequences: Array) -> OperatorSeconds:
    """Return the seconds of LM head, sampling and host work per request, by number of sequences (0 first)."""
    num_stages = stage.shape.pipeline_parallel_size
    sampled, layers = np.ceil(sequences[1:] / num_stages), stage.shape.layers_per_stage
    seconds = head_seconds(stage, sampled)
    if layers[-1] < max(layers):
        busy = seconds.parts.sum(axis=0)
        seconds.scale(exposed_head(busy, stage_parts(stage, sampled).sum(axis=0), layers))
    seconds.scale(stage.shape.engine.gpu_time_factor)
    host = _host_seconds_of_requests(stage, sampled)
    seconds.add_row("host", HOST, _exposed_host_seconds(stage, seconds.parts.sum(axis=0), host))
    # Besides prompts the GPU has enough work to hide masks behind, if they are hidden at all.
    masks = exposed_mask_seconds(stage.shape.masks, sampled, np.full_like(sampled, np.inf))
    seconds.add_row("host", HOST, masks)
    seconds.scale(num_micro_batches(sequences[1:], num_stages))
    return _with_empty_step(seconds)


def _host_seconds_of_requests(stage: Stage, requests: Array, tokens: int = 1) -> Array:
    """Return the host's time for ``requests`` in a step that samples ``tokens`` for each, without overlap."""
    engine = stage.shape.engine
    further = engine.host_seconds_per_further_request * np.maximum(requests - 1.0, 0.0)
    return np.asarray(tokens * engine.host_seconds_per_request * requests + further)


def _decode_rounds(stage: Stage, sequences: Array, slope: Array) -> OperatorSeconds:
    """Return the seconds of a round of decodes only, by number of sequences (0 first), without contexts.

    Batches are padded to the CUDA graph that holds them; experts are those of the batch where padding chooses none.
    """
    shape, num_stages = stage.shape, stage.shape.pipeline_parallel_size
    decoding = np.ceil(sequences[1:] / num_stages)
    # Graphs are captured by tokens if they also cover prompts, otherwise by sequences.
    width, counted = shape.tokens_per_decode, shape.tokens_per_decode
    if not shape.engine.cuda_graph_max_prompt_tokens:
        counted = 1
    captured, is_eager = _graph_batches(counted * decoding, shape.engine)
    padded = captured * (width // counted)
    in_flight, layers = num_micro_batches(sequences[1:], num_stages), shape.layers_per_stage
    passes, runs = rounds(in_flight, layers), slot_runs(shape, decoding)
    cut = runs_of(padded / runs, shape.engine.ubatch_size)
    head = head_seconds(stage, cut.lengths).mapped(cut.total)
    seconds = _without_prompts(stage, cut, width * decoding if shape.skips_padding else None)
    seconds.add_all(head, in_flight / passes * exposed_head(head.parts.sum(axis=0), seconds.parts.sum(axis=0), layers))
    seconds.scale(runs)
    for each in stage.attentions:
        if each.kernel is not None:
            start = stage.num_layers * each.share * each.kernel.decode_base_seconds(decoding)
            seconds.add_row("attention", KV, start)
    seconds.add_row("state_space", KV, step_state_seconds(shape, stage.machine, decoding))
    seconds.add_row("attention", KV, sequences[1:] * slope[1:] / passes)
    seconds.scale(shape.engine.gpu_time_factor)
    seconds = seconds.mapped(partial(_with_batch_factor, factor=shape.engine.batch_time_factor))
    # Every verified token is sampled and handed over, like the one token of a plain step.
    host = _host_seconds_of_a_stage(stage) + _host_seconds_of_requests(stage, decoding, width)
    gpu_seconds = _gpu_seconds(stage, seconds.parts, padded)
    waits = launch_wait(stage, gpu_seconds, is_eager, shape.engine.eager_seconds_per_layer)
    waits = waits + piecewise_wait(stage, gpu_seconds, is_eager)
    seconds.add_row("host", HOST, waits + _exposed_host_seconds(stage, gpu_seconds, host))
    seconds.add_row("host", HOST, exposed_mask_seconds(shape.masks, decoding, gpu_seconds, width))
    seconds.scale(passes)
    if num_stages > 1:
        seconds.add_row("pipeline_transfer", COMMUNICATION, (num_stages - 1) * transfer_seconds(shape, padded))
    return _with_empty_step(seconds)


def _without_prompts(stage: Stage, runs: Runs, routed: Array | None = None) -> OperatorSeconds:
    """Return the seconds of steps that only decode, without contexts and LM head; ``routed`` as in `stage_blocks`."""
    seconds = stage_seconds(stage, runs.lengths, has_prompts=False, routed=routed)
    seconds.add("offload", offload_parts(stage, runs.lengths))
    return seconds.mapped(runs.total)


def _apart_from_prompts(stage: Stage, sequences: Array) -> OperatorSeconds:
    """Return the additional time of a step with prompts whose decodes are computed separately, in their runs."""
    decoding = sequences[1:]
    runs = slot_runs(stage.shape, decoding)
    seconds = _without_prompts(stage, runs_of(decoding / runs, stage.shape.engine.ubatch_size))
    seconds.scale(runs)
    beside = _far_token(stage).mapped(lambda row: row * decoding)
    seconds.set_parts(np.maximum(seconds.parts - beside.parts, 0.0))
    return _with_empty_step(seconds)


def _with_batch_factor(row: Array, factor: float) -> Array:
    """Return the times of decode steps, one sequence first, with the part beyond the first scaled by ``factor``."""
    if factor == 1.0:
        return row
    return np.asarray(row[..., :1] + factor * (row - row[..., :1]))


def _decode_slopes(stage: Stage, sequences: Array) -> tuple[Array, Array]:
    """Return the seconds per token of context in a round, and the seconds per sequence, by number of sequences.

    The second is a context of one token: its growth, and the keys that are read at any length.
    """
    shape, model = stage.shape, stage.shape.model
    slope, window = np.zeros_like(sequences), np.zeros_like(sequences)
    for each in stage.attentions:
        growing, own = (share(model, each.layers, shape.contexts) for share in (growing_share, window_keys))
        key = _decode_slope(stage, each, sequences)
        slope += key * growing
        window += key * (growing + own)
        if each.layers.indexer is not None and not _is_indexed_by_key(each.layers):
            index = shape.tokens_per_decode * index_key_seconds(_indexer(stage, each.layers), stage.machine)
            keys = _by_groups(stage, index, sequences) * index_share(model, each.layers)
            slope, window = slope + keys, window + keys
    return slope, window


def _indexer(stage: Stage, layers: AttentionLayers) -> SparseIndexer | None:
    """Return the indexer of one rank."""
    return None if layers.indexer is None else layers.indexer.on_rank(stage.shape.tensor_parallel_size)


def _is_indexed_by_key(layers: AttentionLayers) -> bool:
    """Return whether an indexer scores one key for each key that attention reads, so that one price covers both."""
    return layers.indexer is not None and layers.mla is not None


def _decode_slope(stage: Stage, each: StageAttention, sequences: Array) -> Array:
    """Return the seconds per token of context in a round if all layers were of this kind, by number of sequences."""
    width, kernel = stage.shape.tokens_per_decode, each.kernel
    attention = _attention_shape(stage, each, is_decode=True)
    if width > 1:
        # The queries of a sequence read its keys once; each computes its own scores.
        num_heads, flops = width * attention.num_heads, width * attention.decode_flops_per_key
        attention = replace(attention, num_heads=num_heads, decode_flops_per_key=flops)
    if kernel is not None:
        key = kernel.decode_key_seconds
        if width > 1:
            key = max(key, wide_key_seconds(attention, stage.machine, stage.precision.wide_arithmetic))
    else:
        is_flash = stage.shape.attention == "flash"
        key = decode_key_seconds(attention, stage.machine, stage.precision.wide_arithmetic, is_flash=is_flash)
    if kv_element_bytes(stage.shape.kv_cache_dtype) <= NARROW_KV_BYTES and each.layers.compressed is None:
        key *= stage.shape.engine.narrow_kv_slowdown
    read = each.layers, attention.kv_bytes_per_token
    unshared = unshared_key_seconds(*read, stage.shape.engine.shared_decode_groups)
    if reads_keys_by_query_head(stage.shape):
        unshared = unshared_key_seconds(*read, (), stage.machine.bandwidth)
    key = max(key, unshared)
    if _is_indexed_by_key(each.layers):
        key = key + width * index_key_seconds(_indexer(stage, each.layers), stage.machine)
    if each.layers.mla is None:
        least = serial_key_seconds(stage.shape, each.layers, sequences)
    else:
        least = triton_latent_seconds(stage.shape, stage.machine, attention, sequences)
    seconds = np.maximum(key, least)
    if stage.shape.common_prefix_tokens:
        pair = _prefill_seconds(stage, each)[1]
        seconds = seconds * shared_read_share(stage.shape, each.layers, stage.machine, sequences, seconds, pair)
    held = 1.0 / stage.shape.decode_context_parallel_size  # keys of the context that a rank reads
    return held * _by_groups(stage, seconds, sequences) + cpu_key_seconds(stage.shape, attention)


def _by_groups(stage: Stage, key: float | Array, sequences: Array) -> Array:
    """Return the seconds per key in each layer, in a round of a pipeline, by number of sequences.

    Contexts are spread evenly over the groups in flight, so each stage waits for its share of the sum. Fewer sequences
    than stages leave groups empty.
    """
    groups = num_micro_batches(np.maximum(sequences, 1.0), stage.shape.pipeline_parallel_size)
    passes = rounds(groups, stage.shape.layers_per_stage)
    return np.asarray(key * stage.num_layers * passes / groups)


def _decode_attention(stage: Stage, sequences: Array, slope: Array) -> OperatorSeconds:
    """Return the seconds of decode attention in a step that also prefills, without contexts.

    The key that each sequence has just written, and waves; start-up counts with the prompts.
    """
    seconds = stage.nothing(len(sequences))
    seconds.add_row("attention", KV, sequences * slope)
    num_stages = stage.shape.pipeline_parallel_size
    decoding = np.ceil(np.maximum(sequences, 1.0) / num_stages)
    for each in stage.attentions:
        if each.kernel is not None:
            base = each.kernel.decode_base_seconds(decoding)
            one = each.kernel.decode_base_seconds(np.ones(1))
            seconds.add_row("attention", KV, stage.num_layers * each.share * num_stages * (base - one))
    seconds.add_row("state_space", KV, step_state_seconds(stage.shape, stage.machine, sequences, is_mixed=True))
    if stage.shape.decode_context_parallel_size > 1:
        _add_exchanges(seconds, stage, decoding * stage.shape.tokens_per_decode, sequences > 0)
    width = stage.shape.tokens_per_decode
    if width > 1:
        # The LM head over the drafts; over the newest token it is counted per sequence.
        drafts = head_seconds(stage, width * sequences[1:])
        drafts.add_all(head_seconds(stage, sequences[1:]), -1.0)
        seconds.add_all(_with_empty_step(drafts))
    engine = stage.shape.engine
    if most_apart(stage.shape):
        seconds.add_all(_apart_from_prompts(stage, sequences))
    seconds.scale(engine.gpu_time_factor * engine.batch_time_factor)
    if width > 1:
        host = (1.0 - engine.host_overlap) * (width - 1) * engine.host_seconds_per_request * sequences
        seconds.add_row("host", HOST, host)
    return seconds


def _add_exchanges(seconds: OperatorSeconds, stage: Stage, decoding: Array, are_there: NDArray[np.bool_]) -> None:
    """Add what ``decoding`` tokens of latent attention exchange in a step with prompts; others count with theirs."""
    num_stages = stage.shape.pipeline_parallel_size
    for each in stage.attentions:
        if each.layers.mla is not None:
            exchange = context_exchange_seconds(stage.shape, each.layers, decoding)
            shown = np.where(are_there, stage.num_layers * each.share * num_stages * exchange, 0.0)
            seconds.add_row("all_gather", COMMUNICATION, shown)


def _marginal_token(stage: Stage) -> OperatorSeconds:
    """Return the seconds of one more token in a round beyond the table, shape [5, 1]; in runs, its share of a full one.

    The pipeline is then full, so each stage adds its own time once; where chunks overlap, so do all micro-batches.
    """
    size = stage.shape.engine.ubatch_size
    if size is None:
        return _far_token(stage)
    full = np.array([float(size)])
    seconds = stage_seconds(stage, full)
    seconds.add("offload", offload_parts(stage, full))
    for each in stage.attentions:
        seconds.add_row("attention", COMPUTE, _sparse_seconds(stage, each, full, 0.0))
    seconds.scale(_prompt_factor(stage))
    passes = 1 if stage.shape.overlaps_chunks else stage.shape.pipeline_parallel_size
    return seconds.mapped(lambda row: row / (size * passes))


def _far_token(stage: Stage) -> OperatorSeconds:
    """Return the seconds of one more token in a round so large that compute is the bottleneck, shape [5, 1]."""
    num_stages = stage.shape.pipeline_parallel_size
    far = np.array([FAR_TOKENS, 2.0 * FAR_TOKENS])
    seconds = stage_seconds(stage, far)
    seconds.add("offload", offload_parts(stage, far))
    seconds.scale(num_stages)
    for each in stage.attentions:
        seconds.add_row("attention", COMPUTE, num_stages * _sparse_seconds(stage, each, far, 0.0))
    seconds.scale(_prompt_factor(stage))
    if num_stages > 1:
        seconds.add_row("pipeline_transfer", COMMUNICATION, (num_stages - 1) * transfer_seconds(stage.shape, far))
    one = seconds.mapped(lambda row: (row[..., 1:] - row[..., :1]) / (FAR_TOKENS * num_stages))
    one.set_parts(np.maximum(one.parts, 0.0))
    return one


def _exposed_host_seconds(stage: Stage, gpu_seconds: Array, host_seconds: Array | float) -> Array:
    """Return the host time that a step waits for.

    The share ``host_overlap`` runs in parallel with the GPU and shows only if it takes longer; the rest always shows:
    ``step = max(gpu, overlap * host) + (1 - overlap) * host``.
    """
    overlap = stage.shape.engine.host_overlap
    return np.maximum(overlap * host_seconds - gpu_seconds, 0.0) + (1.0 - overlap) * host_seconds


def _host_seconds_of_a_stage(stage: Stage) -> float:
    """Return the host time of a step in each stage: all of it if stages are processes, its share in one process.

    llama.cpp, which splits prompts, drives its GPUs from one thread: eight RTX 4090 take 0.8 ms longer per token than
    one (XiongjieDai/GPU-Benchmarks-on-LLM-Inference, Llama 3 8B Q4_K_M).
    """
    engine = stage.shape.engine
    stages = 1 if engine.ubatch_size is None else stage.shape.pipeline_parallel_size
    return engine.host_seconds_per_step / stages + stage.num_layers * engine.row_split_seconds_per_layer


def _graph_batches(batches: Array, engine: ResolvedEngine) -> tuple[Array, NDArray[np.bool_]]:
    """Return the batch sizes that run, the next captured size or the batch itself, and which run without a graph."""
    if not engine.cuda_graph_padding:
        return batches, ~np.isin(batches, engine.cuda_graph_sizes)
    padded = batches
    if engine.cuda_graph_sizes:
        captured = np.asarray(engine.cuda_graph_sizes, dtype=np.float64)
        index = np.minimum(np.searchsorted(captured, batches), captured.size - 1)
        padded = np.maximum(batches, captured[index])
    return padded, padded > engine.cuda_graph_max_batch


def _with_empty_step(seconds: OperatorSeconds) -> OperatorSeconds:
    """Return ``seconds`` with an empty step, which takes no time, in front."""
    return seconds.mapped(lambda row: np.concatenate((np.zeros((*row.shape[:-1], 1)), row), axis=-1))


def _monotone(parts: Array, *, may_fall: bool = False) -> Array:
    """Return ``parts`` scaled so that their sums never fall from one column to the next, except where ``may_fall``."""
    if may_fall:
        return parts
    sums = parts.sum(axis=0)
    raised = np.maximum.accumulate(sums)
    return np.asarray(parts * np.divide(raised, sums, out=np.ones_like(sums), where=sums > 0))


def _column(seconds: Array) -> array[float]:
    """Return a table that is read as fast as a list and taken over as an array without a copy, equal by value."""
    return array("d", seconds.tobytes())


def _sums(parts: Array) -> array[float]:
    """Return the sums over the parts without last-bit dips from summation; real dips stay."""
    sums = parts.sum(axis=0)
    raised = np.maximum.accumulate(sums)
    return _column(np.where(raised - sums > LAST_BITS * raised, sums, raised))


LAST_BITS = 1e-12  # Share of a sum below which a dip is rounding.


SAMPLING_PASSES = 4  # Passes of sampling over the logits: cast, softmax, cumulate, pick.


def head_seconds(stage: Stage, sequences: Array) -> OperatorSeconds:
    """Return the seconds of LM head, gathering of logits and sampling, by number of sampled sequences."""
    model, num_ranks = stage.shape.model, stage.shape.tensor_parallel_size
    seconds = stage.nothing(len(sequences))
    seconds.add("lm_head", projection(stage, model.lm_head_gemm(num_ranks), sequences))
    logits = model.vocab_size * LOGIT_BYTES
    passes = SAMPLING_PASSES
    seconds.add("sampling", elementwise_parts(passes * logits, sequences, stage.machine, passes, "sampling"))
    if num_ranks > 1:
        gathered = sequences * model.vocab_size * ACTIVATION_BYTES
        gathering = all_gather_seconds(gathered, num_ranks, stage.shape.tensor_link)
        seconds.add_row("all_gather", COMMUNICATION, gathering)
    return seconds


def mixed_decode_factor(shape: ReplicaShape, key_seconds: float, pair_seconds: float) -> float:
    """Return the factor on the time of a key in a mixed step relative to one that only decodes.

    A row of queries and a key are an attended pair; for each one needed the tile computes ``mixed_decode_tile``. Tables
    of LLMServingSim (vLLM 0.19, Llama-3.1-8B, contexts of 512 to 1,024): 1.3 to 1.7 on an RTX PRO 6000, 1.6 to 2.5 on
    an RTX 4090; twice that if the keys of 128 long contexts exceed the L2 cache, which is left out.

    Args:
        key_seconds: Time of a key in one layer, for one decoding sequence.
        pair_seconds: Time of an attended pair of a prompt in one layer.
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


class _ByValue:
    """A deployment that compares by value: profiles hold mappings, which have no hash.

    GPU and model compare by identity, as the catalogue reads each file once: spelling out their curves takes 10 % of
    the time of pricing.
    """

    __slots__ = ("profiles", "shape", "text")

    def __init__(self, shape: ReplicaShape) -> None:
        self.shape = shape
        self.profiles: list[object] = []
        self.text = self._spelled(shape)

    def _spelled(self, shape: ReplicaShape) -> str:
        self.profiles += (shape.hardware, shape.model)
        others = [getattr(shape, name) for name in _OTHER_FIELDS]
        speculation = shape.speculation
        if speculation is None or speculation.draft is None:
            return repr((others, speculation))
        return repr((others, replace(speculation, draft=None), self._spelled(speculation.draft)))

    def __hash__(self) -> int:
        return hash(self.text)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _ByValue)
            and self.text == other.text
            and all(mine is theirs for mine, theirs in zip(self.profiles, other.profiles, strict=True))
        )


def price(shape: ReplicaShape, max_tokens_in_table: int | None = None) -> PricedDeployment:
    """Return the seconds of every step that a replica can take, as `price_anew`, kept for the next call.

    The result is shared: nobody may change its arrays. Deployments with operator tables are always priced anew, since
    files change.

    Raises:
        InputError: The GPU, the engine or the links do not support the deployment.
    """
    if shape.operator_tables is not None:
        return price_anew(shape, max_tokens_in_table)
    return _price_again(Itself(shape), max_tokens_in_table)


@lru_cache(maxsize=KEPT_BY_IDENTITY)
def _price_again(key: Itself[ReplicaShape], max_tokens_in_table: int | None) -> PricedDeployment:
    return _price(_ByValue(key.value), max_tokens_in_table)


@lru_cache(maxsize=KEPT)
def _price(key: _ByValue, max_tokens_in_table: int | None) -> PricedDeployment:
    return price_anew(key.shape, max_tokens_in_table)


def step_times_of(shape: ReplicaShape) -> StepTimes:
    """Return the step times that `price` gives, with tables as arrays, kept for far more deployments.

    The result is shared: nobody may change its arrays.

    Raises:
        InputError: The GPU, the engine or the links do not support the deployment.
    """
    if shape.operator_tables is not None:
        return in_arrays(price_anew(shape).step_times)
    return _times(_ByValue(shape))


@lru_cache(maxsize=KEPT_TIMES)
def _times(key: _ByValue) -> StepTimes:
    return in_arrays(_price(key, None).step_times)


def in_arrays(times: StepTimes) -> StepTimes:
    """Return step times with their tables as arrays."""
    arrays = {name: np.asarray(getattr(times, name), dtype=np.float64) for name in _TABLES}
    return replace(times, **arrays)  # type: ignore[arg-type]
