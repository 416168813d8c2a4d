"""FLOP and bytes of a step of the whole replica, against which utilization is measured. Knows no seconds."""

from __future__ import annotations

from typing import TypedDict

import numpy as np

from simserve.perf.attention import attention_of, growing_share
from simserve.perf.context_parallel import head_ranks
from simserve.perf.efficiency import Array
from simserve.perf.gemm import ACTIVATION_BYTES
from simserve.perf.moe import expected_distinct_experts
from simserve.perf.pipeline import micro_batch, num_micro_batches
from simserve.perf.stage import NORM_PASSES, Stage
from simserve.perf.ubatches import runs_of
from simserve.profiles.model_blocks import Gemm


class Traffic(TypedDict):
    """The FLOP and bytes of `simserve.perf.operators.StepParts`, by their names there."""

    token_flops: float
    sequence_flops: float
    pair_flops: float
    weight_bytes: Array
    token_bytes: float
    kv_bytes_per_token: float
    peak_flops: float
    peak_bandwidth: float


def traffic_of(stage: Stage, tokens: Array) -> Traffic:
    """Return the FLOP and bytes of a replica; weights for each number of tokens of a step."""
    shape = stage.shape
    model, num_ranks = shape.model, shape.tensor_parallel_size
    head = model.lm_head_gemm(num_ranks)
    rounds = num_micro_batches(tokens, shape.pipeline_parallel_size)
    runs = runs_of(micro_batch(tokens, shape.pipeline_parallel_size), shape.engine.ubatch_size)
    read = runs.total(layer_weight_bytes(stage, runs.lengths))
    read += num_ranks * head.num_weights * stage.head_bits / 8
    element = shape.kv_element_bytes
    return Traffic(
        token_flops=layer_flops(stage),
        sequence_flops=2.0 * num_ranks * head.num_weights,
        pair_flops=sum(
            attention_of(layers, 1, element).prefill_flops_per_pair
            * model.num_hidden_layers
            * growing_share(model, layers, shape.contexts)
            for layers in model.attention_layers
        ),
        weight_bytes=rounds * read,
        token_bytes=_token_bytes(stage),
        kv_bytes_per_token=sum(
            num_ranks
            * model.num_hidden_layers
            * layers.read_bytes(element, head_ranks(shape))
            / shape.decode_context_parallel_size
            * growing_share(model, layers, shape.contexts)
            for layers in model.attention_layers
        ),
        peak_flops=stage.machine.peak(stage.precision.arithmetic) * shape.num_gpus / shape.data_parallel_size,
        peak_bandwidth=stage.machine.bandwidth * shape.num_gpus / shape.data_parallel_size,
    )


def layer_flops(stage: Stage) -> float:
    """Return the FLOP per token in all layers, without attention."""
    return 2.0 * sum(count * gemm.num_weights for count, gemm in _visited(stage, 1))


def _visited(stage: Stage, num_ranks: int) -> list[tuple[float, Gemm]]:
    """Return every matrix that a token passes on one rank, and how often, over all layers."""
    model = stage.shape.model
    visited: list[tuple[float, Gemm]] = [*model.gemms_beside_experts(num_ranks)]
    if model.moe is not None:
        groups = stage.shape.expert_groups if num_ranks > 1 and stage.shape.data_parallel_size == 1 else 1
        chosen = model.num_moe_layers * model.moe.num_experts_per_tok / groups
        visited += [(chosen, gemm) for gemm in model.expert_gemms(num_ranks // groups)]
    return visited


def _token_bytes(stage: Stage) -> float:
    """Return the bytes that one token's activations move on all ranks: products and norms."""
    model, num_ranks = stage.shape.model, stage.shape.tensor_parallel_size
    products = sum(count * (gemm.in_features + gemm.out_features) for count, gemm in _visited(stage, num_ranks))
    norms = model.num_hidden_layers * model.num_norms_per_layer * NORM_PASSES * model.hidden_size
    return num_ranks * (products + norms) * ACTIVATION_BYTES


def layer_weight_bytes(stage: Stage, tokens: Array) -> Array:
    """Return the bytes of weights read by a micro-batch on all ranks of all stages."""
    model, num_ranks = stage.shape.model, stage.shape.tensor_parallel_size
    matrices = model.gemms_beside_experts(num_ranks)
    read = np.full(len(tokens), sum(count * stage.stored_bytes([gemm]) for count, gemm in matrices))
    if model.moe is not None:
        # Under data-parallel attention the experts are read once for all ranks, and each counts a share.
        together = tokens * stage.shape.data_parallel_size
        distinct = expected_distinct_experts(model.moe.num_experts, model.moe.num_experts_per_tok, together)
        expert = stage.stored_bytes(model.expert_gemms(stage.shape.expert_slices))
        read += model.num_moe_layers * distinct * expert / stage.shape.expert_groups
    return num_ranks * read
