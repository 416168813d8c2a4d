"""Which layouts of a replica over its GPUs are possible: tensor ranks, stages, experts, data-parallel attention."""

from __future__ import annotations

from simserve.errors import ScenarioError
from simserve.perf.measured import measured_operators
from simserve.perf.shape import ReplicaShape
from simserve.profiles.model_blocks import heads_per_rank


def check_rank_layout(shape: ReplicaShape) -> None:
    """Refuse a layout of ranks, stages and experts that the model, the engine or the links do not support.

    Raises:
        ScenarioError: Names the key, and what would be right.
    """
    tensor, stages, layers = (
        shape.tensor_parallel_size,
        shape.pipeline_parallel_size,
        shape.model.num_hidden_layers,
    )
    if stages > layers:
        raise ScenarioError(
            f"must be at most the {layers} layers of {shape.model.name}",
            key="pipeline_parallel_size",
            value=stages,
        )
    if shape.pipeline_layer_partition is not None:
        _ = shape.layers_per_stage
    if shape.operator_tables is not None:
        measured_operators(shape.operator_tables, shape.engine.name)
    if shape.num_cpu_layers and shape.num_gpus > 1:
        key = "engine.n_gpu_layers" if shape.engine.n_gpu_layers is not None else "engine.num_gpu"
        value = shape.model.num_hidden_layers - shape.num_cpu_layers
        raise ScenarioError(
            f"leaves layers to the CPU, which needs one GPU, not {shape.num_gpus}", key=key, value=value
        )
    if stages > 1 and shape.engine.kv_allocation == "none":
        raise ScenarioError(
            "must be 1 without a KV cache (kv_allocation: none)", key="pipeline_parallel_size", value=stages
        )
    _check_shared_layers(shape)
    _check_experts(shape)
    _check_ranks(shape)
    if shape.engine.preemption_mode == "swap" and shape.data_parallel_size > 1:
        rule = "must be 1 with preemption_mode swap: ranks that step together would wait for each other's copies"
        raise ScenarioError(rule, key="data_parallel_size", value=shape.data_parallel_size)
    if shape.engine.kv_allocation == "paged" and shape.engine.block_size > shape.engine.max_model_len:
        raise ScenarioError(
            f"must be at most max_model_len, {shape.engine.max_model_len}",
            key="engine.block_size",
            value=shape.engine.block_size,
            remedy="a request would never fill its first block",
        )
    heads_per_rank(shape.model.num_attention_heads, tensor)
    if tensor > 1:
        shape.check_link(tensor, "tensor_parallel_size")
    if stages > 1:
        shape.check_link(shape.num_gpus, "pipeline_parallel_size")
    _ = shape.precision


def _check_shared_layers(shape: ReplicaShape) -> None:
    """Do nothing unless several GPUs are to share a layer under Ollama, which gives each layers of its own.

    Its only setting over GPUs is whether it takes all of them (`OLLAMA_SCHED_SPREAD`, envconfig/config.go).
    """
    size = shape.tensor_parallel_size
    if size > 1 and "num_gpu" in shape.engine.features:
        rule = f"must be 1: {shape.engine.name} gives each GPU layers of its own"
        remedy = f"set pipeline_parallel_size to {size * shape.pipeline_parallel_size} instead"
        raise ScenarioError(rule, key="tensor_parallel_size", value=size, remedy=remedy)


def _check_experts(shape: ReplicaShape) -> None:
    _check_whole_experts(shape)
    if not shape.enable_expert_parallel:
        return
    key, moe = "enable_expert_parallel", shape.model.moe
    if moe is None:
        raise ScenarioError(f"needs a model with experts, and {shape.model.name} has none", key=key, value=True)
    if shape.expert_ranks > moe.num_experts:
        rule = f"must be at most the {moe.num_experts} experts of a layer with enable_expert_parallel"
        raise ScenarioError(rule, key="tensor_parallel_size", value=shape.expert_ranks)


def _check_whole_experts(shape: ReplicaShape) -> None:
    """Refuse settings of whole experts on ranks of data-parallel attention where there are none."""
    is_sent, has_ranks = shape.all2all_backend != "allgather_reducescatter", shape.data_parallel_size > 1
    if shape.enable_two_batch_overlap and not shape.all2all_backend.startswith("deepep"):
        rule, key = "needs an all2all_backend of DeepEP", "enable_two_batch_overlap"
        raise ScenarioError(rule, key=key, value=True, remedy="set deployment.all2all_backend, or leave it out")
    if is_sent and not (shape.enable_expert_parallel and has_ranks):
        rule = "needs enable_expert_parallel and a data_parallel_size above 1"
        raise ScenarioError(rule, key="all2all_backend", value=shape.all2all_backend, remedy="leave it out")
    joined = shape.hardware.intra_node.gpus_per_node if shape.hardware.intra_node.kind == "nvlink" else 0
    if shape.all2all_backend.startswith("nvlink") and shape.expert_ranks > joined:
        rule = f"needs all {shape.expert_ranks} GPUs of the experts on one NVLink, which joins {joined} GPUs here"
        raise ScenarioError(rule, key="all2all_backend", value=shape.all2all_backend, remedy="leave it out")
    if shape.num_redundant_experts is not None and not shape.enable_expert_parallel:
        rule = "needs enable_expert_parallel"
        raise ScenarioError(rule, key="num_redundant_experts", value=shape.num_redundant_experts, remedy="leave it out")


def _check_ranks(shape: ReplicaShape) -> None:
    """Refuse data-parallel attention where it has no meaning, or no scheduler that steps in lockstep."""
    key, size, engine = "data_parallel_size", shape.data_parallel_size, shape.engine
    waits = engine.attention_dp_timeout_iters
    if waits and size == 1:
        rule = "has no meaning without data_parallel_size above 1"
        raise ScenarioError(rule, key="engine.attention_dp_timeout_iters", value=waits, remedy="leave it out")
    if size == 1:
        return
    if shape.model.moe is None:
        rule = f"must be 1: {shape.model.name} has no experts that the ranks could share"
        raise ScenarioError(rule, key=key, value=size, remedy="raise replicas instead")
    if shape.pipeline_parallel_size > 1:
        raise ScenarioError("must be 1 with pipeline stages", key=key, value=size)
    if engine.batching != "continuous" or engine.kv_allocation != "paged":
        raise ScenarioError("needs continuous batching and paged KV allocation", key=key, value=size)
    _ = shape.expert_link
