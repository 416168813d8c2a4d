"""The time that a GPU waits for its host, which launches one by one what no CUDA graph covers. Knows no tables."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simserve.perf.efficiency import Array
from simserve.perf.moe import has_one_operator
from simserve.perf.shape import ReplicaShape
from simserve.perf.stage import Stage, stage_blocks
from simserve.profiles.model_blocks import MixtureOfExperts

UNGATED_LAUNCHES = 1.25
"""Factor on Llama's host time to launch a layer for a layer with two norms and an MLP without a gate, whose biases are
separate kernels after both all-reduces. Fitted to the decode steps of BLOOM-176B on Splitwise's H100 nodes (0.45 ms a
layer, Llama-2-70B 0.36; vLLM of 2023), tested on its A100 nodes."""
LLAMA_LAUNCHES = 10
"""Kernels of a layer of Llama: two norms, four products, rotary embedding, cache, attention, activation function. Each
further norm adds one: of queries, of keys (Qwen3), after attention and MLP (Gemma). So does each rounding of inputs to
8 bits by blocks. Rounding by tensor or token takes little time to launch: servers of W8A8 without graphs (AccelMark,
A100 and RTX 4090) are met without it, and come out 25 % too slow with it."""
LATENT_LAUNCHES = 3
"""Further kernels of latent attention: a norm of the latent form, a product into it before attention and one out of it
after. If queries have a latent form too: one more norm and one more product."""
SHARED_EXPERT_LAUNCHES = 4  # Further kernels of shared experts: two products, an activation function, a sum.
MLP_LAUNCHES = 3  # Llama's kernels for an MLP, which routed experts replace.


def launch_wait(
    stage: Stage,
    gpu_seconds: Array,
    is_eager: NDArray[np.bool_],
    layer_seconds: float,
    *,
    calls_experts: bool = False,
) -> Array:
    """Return the time that the GPU waits for launches in steps that no CUDA graph covers.

    ``step = max(gpu, layers * layer_seconds) + gaps``, where layers of linear attention, experts, latent and compressed
    attention take longer to launch than others. Contexts and prompts' pairs are added to a step later and not
    compared with it. A CPU's worker calls its kernels one after another on the thread that runs them, and the engine's
    own code between calls adds up: ``step = kernels + layers * layer_seconds + gaps``.

    Args:
        gpu_seconds: GPU time of the steps.
        is_eager: Which steps no graph covers.
        layer_seconds: Time to launch a layer.
        calls_experts: Whether one call launches routed experts, whichever kernels they use.
    """
    engine, model = stage.shape.engine, stage.shape.model
    is_called = calls_experts or has_one_operator(stage.shape, stage.machine, stage.expert_precision)
    num_launched = 0 if is_called else model.num_moe_layers
    with_experts = stage.num_layers * num_launched / model.num_hidden_layers
    gaps = max(stage.num_whole_layers - with_experts, 0.0) * engine.eager_gap_seconds_per_layer
    gaps += stage.num_linear_layers * engine.eager_gap_seconds_per_linear_layer
    launching = stage.num_whole_layers * layer_seconds
    if not model.is_gated_mlp and model.num_norms_per_layer > 1:
        launching *= UNGATED_LAUNCHES
    launching *= 1 + _further_launches(stage) / LLAMA_LAUNCHES
    launching += stage.num_linear_layers * max(linear_launch(stage) - layer_seconds, 0.0)
    if not engine.eager_expert_formats or stage.expert_precision.name in engine.eager_expert_formats:
        launching += with_experts * engine.eager_seconds_per_expert_layer
    elif model.moe is not None:
        launching += with_experts * layer_seconds * _one_operator_launches(stage, model.moe) / LLAMA_LAUNCHES
    if float(stage.shape.hardware.compute_capability or 0.0) >= engine.latent_launch_since:
        latent = sum(each.share for each in stage.attentions if each.layers.mla is not None)
        launching = max(launching, stage.num_layers * latent * engine.latent_launch * engine.host_slowdown)
    compressed = sum(each.share for each in stage.attentions if each.layers.compressed is not None)
    launching = max(launching, stage.num_layers * compressed * engine.eager_seconds_per_compressed_layer)
    beside = 0.0 if stage.shape.hardware.is_cpu else gpu_seconds
    return np.where(is_eager, np.maximum(launching - beside, 0.0) + gaps, 0.0)


def piecewise_wait(stage: Stage, gpu_seconds: Array, is_eager: NDArray[np.bool_]) -> Array:
    """Return the time that the GPU waits for its host in decode steps on piecewise graphs: 0 where no graph is.

    Each layer ends one graph at its attention, which the host launches, with the next graph, before it goes on.
    """
    launching = stage.num_attention_layers * stage.shape.engine.piecewise_seconds_per_layer
    return np.where(is_eager, 0.0, np.maximum(launching - gpu_seconds, 0.0))


def graphed_prompt_tokens(shape: ReplicaShape) -> int:
    """Return the most tokens of a step with prompts on CUDA graphs, whole or in pieces."""
    return max(shape.engine.cuda_graph_max_prompt_tokens, shape.engine.piecewise_cuda_graph_max_tokens)


def padded_to_pieces(shape: ReplicaShape, tokens: Array) -> Array:
    """Return the tokens that steps with prompts compute outside attention: those of the next graph in pieces."""
    sizes = np.array(shape.engine.piecewise_cuda_graph_sizes, dtype=float)
    if not len(sizes):
        return tokens
    place = np.minimum(np.searchsorted(sizes, tokens), len(sizes) - 1)
    return np.where(tokens <= sizes[-1], sizes[place], tokens)


def prompt_launching(stage: Stage) -> float:
    """Return the time that the host takes for a step with prompts on piecewise graphs, in all stages; 0: no such step.

    It launches attention between the graphs of two layers, and prepares the step before, as far as that is not hidden.
    Ranks in lockstep are left out: none launches more than their tables hold.
    """
    shape, engine = stage.shape, stage.shape.engine
    launching = stage.num_attention_layers * engine.piecewise_prompt_seconds_per_layer
    if not (launching and graphed_prompt_tokens(shape)) or shape.hardware.is_cpu or shape.data_parallel_size > 1:
        return 0.0
    launching += stage.num_linear_layers * linear_launch(stage)
    preparing = (1.0 - engine.host_overlap) * engine.host_seconds_per_step
    return shape.pipeline_parallel_size * launching + preparing


def linear_launch(stage: Stage) -> float:
    """Return the seconds that the host launches a layer of linear attention; 0: as any other (a short convolution)."""
    if stage.shape.model.short_convolution is not None or stage.shape.hardware.is_cpu:
        return 0.0
    return stage.shape.engine.eager_seconds_per_linear_layer


def _further_launches(stage: Stage) -> float:
    """Return the number of kernels per layer beyond Llama's, apart from the MLP."""
    model = stage.shape.model
    norms = max(model.num_norms_per_layer - 2, 0) + (0 if model.qk_norm == "none" else 2)
    roundings = sum(
        block.count * share
        for block in stage_blocks(stage)
        for call in block.calls
        if call.gemm is not None and call.gemm.part is not None
        for precision, share in stage.precisions[call.gemm.part]
        if precision.is_block_scaled
    )
    latent = 0
    if model.mla is not None:
        latent = LATENT_LAUNCHES + (2 if model.mla.q_lora_rank else 0)
    return norms + latent + roundings / stage.num_layers


def _one_operator_launches(stage: Stage, moe: MixtureOfExperts) -> int:
    """Return the number of kernels beyond an MLP's in a layer whose routed experts are one operator: router and shared
    experts."""
    router = 1 + (stage.shape.engine.num_group_router_kernels if moe.num_router_groups > 1 else 1)
    shared = SHARED_EXPERT_LAUNCHES if moe.num_shared_experts else 0
    return router + 1 + shared - MLP_LAUNCHES
