"""What a step waits for the host to launch kernels that no CUDA graph holds. Knows no requests."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simserve.perf.efficiency import Array
from simserve.perf.moe import has_one_operator
from simserve.perf.stage import Stage

UNGATED_LAUNCHES = 1.25
"""Times as long as Llama's that the host launches a layer with two norms and an MLP without a gate, whose biases are
kernels of their own behind both all-reduces: fit to the decode steps of BLOOM-176B on Splitwise's H100 nodes (0.45 ms a
layer, Llama-2-70B 0.36; vLLM of 2023), tested on its A100 nodes."""


def launch_wait(
    stage: Stage, gpu_seconds: Array, is_eager: NDArray[np.bool_], layer_seconds: float, *, has_prompts: bool
) -> Array:
    """Return the time that the GPU waits for launches, in the steps that no CUDA graph covers.

    ``step = max(gpu, layers * layer_seconds) + gaps``; contexts and prompts' pairs, which are added to a
    step later, are not set against it.

    Args:
        stage: The layers of a stage.
        gpu_seconds: Of the steps.
        is_eager: Which steps no graph covers.
        layer_seconds: What launching a layer takes.
        has_prompts: Whether the steps hold prompts. What an expert layer takes beyond other layers was measured there;
            of an engine that compiles its layers (graphs cover its prompts too) nothing shows it in steps that only
            decode, whose GPU work is longer than a dozen compiled launches a layer.
    """
    engine, model = stage.shape.engine, stage.shape.model
    num_launched = 0 if has_one_operator(stage.machine, stage.expert_precision) else model.num_moe_layers
    with_experts = stage.num_layers * num_launched / model.num_hidden_layers
    gaps = max(stage.num_whole_layers - with_experts, 0.0) * engine.eager_gap_seconds_per_layer
    gaps += stage.num_linear_layers * engine.eager_gap_seconds_per_linear_layer
    launching = stage.num_whole_layers * layer_seconds
    if not model.is_gated_mlp and model.num_norms_per_layer > 1:
        launching *= UNGATED_LAUNCHES
    is_compiled = engine.cuda_graph_max_prompt_tokens > 0
    if not has_prompts and is_compiled:
        with_experts = 0.0
    if not engine.eager_expert_formats or stage.expert_precision.name in engine.eager_expert_formats:
        launching += with_experts * engine.eager_seconds_per_expert_layer
    return np.where(is_eager, np.maximum(launching - gpu_seconds, 0.0) + gaps, 0.0)
