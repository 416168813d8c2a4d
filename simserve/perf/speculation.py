"""Speculative decoding: the cost of drafts in seconds and bytes, and the gain of a cycle of drafting and verifying.

A step drafts k tokens one after another and verifies k + 1 tokens per sequence at once, so it pays only while memory
bandwidth is the bottleneck of verifying. Tables are combined once; a step stays O(1). Knows no requests and draws no
random numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from simserve.engine.state import StepTimes
from simserve.perf.attention import AttentionShape
from simserve.perf.efficiency import Array, Machine, attention_efficiency
from simserve.perf.operators import Drafting, PricedDeployment
from simserve.perf.shape import ReplicaShape, Speculation, weights_bytes_per_gpu
from simserve.perf.stage import stage_of, wide_projection
from simserve.profiles.checkpoint import Checkpoint
from simserve.profiles.model import ModelProfile
from simserve.profiles.model_blocks import Gemm

NGRAM_SECONDS_PER_REQUEST = 10e-6
"""Host time to look up one request's n-gram, besides the scan: gathering token ids, handing drafts over. An estimate,
not a measurement."""

NGRAM_SECONDS_PER_TOKEN = 3e-9
"""Host time per token of context scanned by the look-up (vLLM's ngram_proposer.py passes once over the context): ten
cycles of a loop with branches. An estimate, not a measurement."""


def cycle_cost(
    num_speculative_tokens: int, draft_cost: Array | float, verify_cost: Array | float = 1.0
) -> Array | float:
    """Return the cost of k drafts and one verification, in plain decode steps of the target.

    Args:
        num_speculative_tokens: Drafts k.
        draft_cost: Cost of one draft.
        verify_cost: Cost of verifying k + 1 tokens; 1 while memory bandwidth is the bottleneck.
    """
    return num_speculative_tokens * draft_cost + verify_cost


def speedup(tokens: float, cost: Array | float) -> Array | float:
    """Return the speed of decoding relative to no drafts (Leviathan et al. 2023, theorem 3.8).

    Args:
        tokens: Mean tokens per cycle, see `expected_tokens`.
        cost: Cost of a cycle in plain decode steps, see `cycle_cost`.
    """
    return tokens / cost


def decode_speedup(
    priced: PricedDeployment, plain: PricedDeployment, tokens: float, sequences: Array, context: float
) -> Array:
    """Return the decoding speed of a batch relative to the same batch without drafts, shape of ``sequences``.

    Args:
        priced: The deployment with speculative decoding.
        plain: The same deployment without speculative decoding.
        tokens: Mean tokens per step.
        sequences: Batch sizes, >= 1, integers.
        context: Mean tokens per sequence in the KV cache.
    """
    with_step, plain_step = (_decode_seconds(each.step_times, sequences, context) for each in (priced, plain))
    drafts = _decode_seconds(priced.drafting.times, sequences, context) if priced.drafting is not None else 0.0
    return np.asarray(speedup(tokens, cycle_cost(1, drafts / plain_step, (with_step - drafts) / plain_step)))


def _decode_seconds(times: StepTimes, sequences: Array, context: float) -> Array:
    base, slope = np.asarray(times.decode_base), np.asarray(times.decode_slope)
    return np.asarray(base[sequences.astype(np.int64)] + slope[sequences.astype(np.int64)] * sequences * context)


def draft_layer(model: ModelProfile, *, is_dense: bool) -> ModelProfile:
    """Return the single layer that drafts after a target, as a model.

    EAGLE's is a dense layer of the target's width (Li et al., EAGLE, 2024), an MTP module one of its last layers
    (DeepSeek-V3 technical report, 2024, section 2.2); both draft with the target's LM head.
    """
    moe = model.moe
    if moe is not None:
        has_experts = not is_dense and model.is_moe_layer(model.num_hidden_layers - 1)
        moe = moe.model_copy(update={"first_dense_layers": 0, "dense_layers": (), "layer_step": 1})
        moe = moe if has_experts else None
    changes = {
        "name": f"{model.name}-draft-layer",
        "num_hidden_layers": 1,
        "sliding_window": None,
        "num_sliding_layers": 0,
        "linear_attention": None,
        "layer_pattern": None,
        "mamba": None,
        "mamba1": None,
        "alternating_updates": None,
        "sliding_heads": None,
        **_last_attention(model),
        "num_residual_streams": 1,
        "stream_rank": None,
        "ngrams": None,
        "residual_block_layers": None,
        "num_other_parameters": 0,
        "moe": moe,
        "num_parameters_nominal": None,
        "checkpoints": () if is_dense else tuple(map(_of_one_layer, model.checkpoints)),
    }
    return model.model_copy(update=changes)


def _last_attention(model: ModelProfile) -> dict[str, Any]:
    """Return the attention of an appended layer: its own indexer; of compressed attention only the window."""
    fields: dict[str, Any] = {}
    if model.has_attention_sinks == "sliding":
        fields["has_attention_sinks"] = False
    if model.compressed_attention is not None:
        fields["compressed_attention"] = model.compressed_attention.model_copy(update={"ratios": (0,)})
        fields["indexer"] = None
    elif model.indexer is not None:
        fields["indexer"] = model.indexer.model_copy(update={"num_layers": None, "num_unsparse_layers": 0})
    return fields


def _of_one_layer(checkpoint: Checkpoint) -> Checkpoint:
    """Return a checkpoint with the formats that apply in all of its layers."""
    everywhere = tuple(each for each in checkpoint.other_formats if each.layers is None)
    return checkpoint.model_copy(update={"other_formats": everywhere})


def layer_shape(target: ReplicaShape, quantization: str, *, is_dense: bool) -> ReplicaShape:
    """Return the drafting layer of EAGLE or MTP as a replica on the target's GPUs."""
    return draft_shape(target, draft_layer(target.model, is_dense=is_dense), quantization, target.tensor_parallel_size)


def draft_shape(target: ReplicaShape, model: ModelProfile, quantization: str, num_ranks: int) -> ReplicaShape:
    """Return the drafter as a replica on the target's GPUs."""
    return replace(
        target,
        model=model,
        tensor_parallel_size=num_ranks,
        engine=target.engine.model_copy(
            update={"cpu_offload_gb": 0.0, "n_gpu_layers": None, "num_gpu": None, "n_cpu_moe": None}
        ),
        pipeline_parallel_size=1,
        pipeline_layer_partition=None,
        quantization=quantization,
        enable_expert_parallel=target.enable_expert_parallel and model.moe is not None,
        speculation=None,
    )


def passing_shape(shape: ReplicaShape) -> ReplicaShape | None:
    """Return the drafter under the current engine of its target; its passes wait for no scheduler.

    None without speculative decoding, and if nothing drafts on the GPU.
    """
    if shape.speculation is None or shape.speculation.draft is None:
        return None
    own: dict[str, object] = dict.fromkeys(
        ("host_seconds_per_step", "host_seconds_per_request", "host_seconds_per_further_request"), 0.0
    )
    launch = shape.engine.eager_draft_seconds_per_layer
    if launch is not None and shape.speculation.method == "draft_model":
        own |= {"cuda_graph_sizes": (), "cuda_graph_max_batch": 0, "cuda_graph_max_prompt_tokens": 0}
        own |= {"eager_seconds_per_layer": launch, "eager_prompt_seconds_per_layer": launch}
    return replace(shape.speculation.draft, engine=shape.engine.model_copy(update=own))


def draft_weights_bytes(speculation: Speculation) -> float:
    """Return the bytes that the drafter adds to the weights of the GPU that holds most.

    A draft model is complete, with embedding and LM head. A drafting layer adds the layer and the matrix that fuses its
    two inputs.
    """
    draft = speculation.draft
    if draft is None:
        return 0.0
    ranks, name, model = draft.tensor_parallel_size, draft.precision.name, draft.model

    def weights(each: ModelProfile) -> float:
        whole_experts = draft.enable_expert_parallel
        return weights_bytes_per_gpu(
            each, name, ranks, enable_expert_parallel=whole_experts, expert_tile=draft.expert_tile
        )

    if not speculation.is_layer:
        return weights(model)
    layer = weights(model.model_copy(update={"num_hidden_layers": 2})) - weights(model)
    return layer + _fusion(model).num_weights * draft.precision.other_bits / 8


def wide_key_seconds(attention: AttentionShape, machine: Machine, dtype: str) -> float:
    """Return the arithmetic time per key of a decode step with several queries per sequence, one layer."""
    return attention.decode_flops_per_key / (machine.peak(dtype) * attention_efficiency(machine))


def with_drafts(priced: PricedDeployment, shape: ReplicaShape, draft: PricedDeployment | None) -> PricedDeployment:
    """Return a deployment whose steps verify drafts with the seconds of drafting added.

    Args:
        priced: The target, whose decode steps hold k + 1 tokens per sequence.
        shape: The deployment, with speculative decoding.
        draft: The drafter, priced as a separate replica with a table over the same tokens; None: n-gram look-up.
    """
    assert shape.speculation is not None
    count = shape.num_speculative_tokens
    times = _lookup_times(priced.step_times) if draft is None else _draft_times(shape.speculation, draft)
    fidelity = priced.fidelity if draft is None or draft.fidelity == priced.fidelity else "roofline"
    return replace(
        priced,
        step_times=_sum(priced.step_times, times),
        fidelity=fidelity,
        notes=(*priced.notes, *shape.speculation.notes),
        drafting=Drafting(num_speculative_tokens=count, times=times, one_pass=None if draft is None else draft.parts),
    )


def _draft_times(speculation: Speculation, draft: PricedDeployment) -> StepTimes:
    """Return the seconds of drafting: one pass over all tokens of the step, then k - 1 over one per sequence.

    The first pass catches up with what the target verified, so it holds the step's tokens; every pass samples one token
    per sequence. In a step that prefills, prefilling requests draft too, as in vLLM (v1/spec_decode/eagle.py).
    """
    count, one = speculation.num_speculative_tokens, draft.step_times
    base, tokens = np.asarray(one.decode_base), np.asarray(one.token_seconds)
    if speculation.is_layer and speculation.draft is not None:
        base = base + _fusion_seconds(speculation.draft, np.arange(float(len(base))))
        tokens = tokens + _fusion_seconds(speculation.draft, np.arange(float(len(tokens))))
    sequences = np.arange(float(len(base)))
    catching_up = _at(tokens, one.token_seconds_beyond, sequences * (count + 1))
    catching_up = catching_up - _at(tokens, one.token_seconds_beyond, sequences)
    later = (count - 1) * _together(one, speculation.draft, sequences)
    return replace(
        one,
        decode_base=np.maximum.accumulate(count * base + catching_up + later).tolist(),
        decode_slope=(count * np.asarray(one.decode_slope)).tolist(),
        token_seconds=tokens.tolist(),
        sequence_seconds=(np.asarray(one.sequence_seconds) + (count - 1) * base + later).tolist(),
    )


def _together(one: StepTimes, draft: ReplicaShape | None, sequences: Array) -> Array:
    """Return the seconds of a later pass that ranks in lockstep share, if all draft for as many ``sequences``.

    The first pass counts with the tokens of all ranks, as the target's step does; later ones with those of the slowest
    rank, which the others wait for.
    """
    if draft is None or not len(one.shared_seconds):
        return np.zeros(len(sequences))
    shared = np.asarray(one.shared_seconds)
    return _at(shared, one.shared_seconds_beyond, sequences * draft.data_parallel_size)


def verified_logit_bytes(shape: ReplicaShape) -> float:
    """Return the bytes per logit of every seat that sampling with drafts takes before the KV cache is sized.

    vLLM's dummy step verifies one draft per seat after it has sampled, however many a real step will have: logits of
    two tokens, the inputs of the seat's own sample, and the draft's with the sampler's buffers. The larger peak counts
    (v1/worker/gpu_model_runner.py, _dummy_sampler_run; v1/sample/rejection_sampler.py).
    """
    engine = shape.engine
    if shape.speculation is None or shape.is_on_second_runner:
        return engine.activation_logit_bytes
    return max(engine.activation_logit_bytes, engine.draft_activation_logit_bytes)


def _lookup_times(like: StepTimes) -> StepTimes:
    """Return the seconds of n-gram look-ups: host time that every step waits for."""
    sequences = np.arange(len(like.decode_base))
    requests = NGRAM_SECONDS_PER_REQUEST * sequences
    nothing = np.zeros(len(sequences)).tolist()
    return StepTimes(
        decode_base=requests.tolist(),
        decode_slope=np.where(sequences > 0, NGRAM_SECONDS_PER_TOKEN, 0.0).tolist(),
        token_seconds=np.zeros(len(like.token_seconds)).tolist(),
        token_seconds_beyond=0.0,
        sequence_seconds=requests.tolist(),
        decode_attention_base=nothing,
        prefill_request_seconds=0.0,
        prefill_pair_seconds=0.0,
        prefill_context_seconds=NGRAM_SECONDS_PER_TOKEN,
    )


def _at(table: Array, seconds_beyond: float, tokens: Array) -> Array:
    """Return the entry of a token table, including beyond its end."""
    last = len(table) - 1
    beyond = seconds_beyond * np.maximum(tokens - last, 0.0)
    return np.asarray(table[np.minimum(tokens, last).astype(np.int64)] + beyond)


def _fusion(model: ModelProfile) -> Gemm:
    """Return the matrix that fuses the target's hidden state with the embedding of the newest token."""
    return Gemm("fusion", model.hidden_size, 2 * model.hidden_size, "replicated")


def _fusion_seconds(draft: ReplicaShape, rows: Array) -> Array:
    seconds = np.zeros(len(rows))
    seconds[1:] = wide_projection(stage_of(draft), _fusion(draft.model), rows[1:]).sum(axis=0)
    return np.maximum.accumulate(seconds)


def _sum(first: StepTimes, second: StepTimes) -> StepTimes:
    """Return the step times of two replicas one after the other."""

    def total(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
        sums: list[float] = (np.asarray(ours) + np.asarray(theirs)).tolist()
        return sums

    # Both slopes grow equally with the batch, so that one factor covers both.
    slopes = first.decode_slope[1], second.decode_slope[1]
    mixed = slopes[0] * first.mixed_decode_factor + slopes[1] * second.mixed_decode_factor
    together = first.shared_seconds
    if np.any(second.shared_seconds):
        together = total(first.shared_seconds, second.shared_seconds)
    return replace(  # What the drafter has not, the target's stays: adapters, launches, copies.
        first,
        mixed_decode_factor=mixed / sum(slopes) if sum(slopes) > 0 else 1.0,
        decode_base=total(first.decode_base, second.decode_base),
        decode_slope=total(first.decode_slope, second.decode_slope),
        token_seconds=total(first.token_seconds, second.token_seconds),
        token_seconds_beyond=first.token_seconds_beyond + second.token_seconds_beyond,
        sequence_seconds=total(first.sequence_seconds, second.sequence_seconds),
        decode_attention_base=total(first.decode_attention_base, second.decode_attention_base),
        prefill_request_seconds=first.prefill_request_seconds + second.prefill_request_seconds,
        prefill_pair_seconds=first.prefill_pair_seconds + second.prefill_pair_seconds,
        prefill_context_seconds=first.prefill_context_seconds + second.prefill_context_seconds,
        shared_seconds=together,
        shared_seconds_beyond=first.shared_seconds_beyond + second.shared_seconds_beyond,
    )
