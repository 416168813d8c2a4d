"""Weights outside the GPU: time and bytes of layers and of experts on the CPU, and of what crosses the host link.

Knows bytes, links and cores; which engine does what is in its profile, under `features`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simserve.perf.attention import AttentionShape
from simserve.perf.efficiency import Array
from simserve.perf.gemm import ACTIVATION_BYTES
from simserve.perf.moe import load_of_experts
from simserve.perf.operators import COMMUNICATION, COMPUTE, HOST, PART_NAMES, WEIGHTS
from simserve.perf.shape import ReplicaShape
from simserve.perf.stage import Stage, expert_block, stage_parts
from simserve.perf.traffic import layer_flops, layer_weight_bytes
from simserve.profiles.model_blocks import MixtureOfExperts
from simserve.units import format_bytes

HOST_LINK_SHARE = 0.8
"""Share of the link's bandwidth reached by copies from pinned host memory: 25 to 26 of 32 GB/s over PCIe 4.0 on an
A100, 52 to 55 of 64 GB/s over PCIe 5.0 on an H100 (CUDA bandwidthTest, nvbandwidth, as reported by users)."""

HOST_MEMORY_SHARE = 0.6
"""Share of the host memory's bandwidth reached by llama.cpp's matrix-vector products. Its time per token is linear in
the layers on the CPU (a published sweep of -ngl: tests/perf/test_offload.py). vLLM's streaming on a GH200 reached 276
GB/s of 512 (issue 6317: Llama-3-70B at 4.6 tok/s). Estimate for other hosts, to be calibrated."""

HOST_COMPUTE_SHARE = 0.3
"""Share of the cores' peak reached by its quantised matrix products. Estimate, to be calibrated."""

COPIED_FROM_TOKENS = 32
"""Tokens of a step from which llama.cpp copies a CPU layer's weights to the GPU and multiplies there
(ggml-cuda.cu, GGML_OP_OFFLOAD_MIN_BATCH, 32)."""

EXPERTS_LATENCY = 0.12e-3
"""Seconds that a layer with experts on the CPU takes beyond reading them: the GPU and the cores wait for each other
twice. From Qwen3.6-35B-A3B in 4 bits on an RTX 5070 Ti with a Ryzen 9800X3D, 51 tokens/s with the experts of 40 layers
there and 79 with those of 20 (r/LocalLLaMA, 2026); copies that overlap with other layers pay none of it."""

EVERY_TOKEN = 1e9  # Tokens of a step that reads every expert.


def link_bandwidth(shape: ReplicaShape) -> float:
    """Return bytes/s from host memory to one GPU while all GPUs of the replica read at once."""
    host = shape.hardware.host_of_node
    node = min(shape.num_gpus, shape.hardware.intra_node.num_host_gpus)
    memory = host.memory_bandwidth * HOST_MEMORY_SHARE / node
    return min(shape.hardware.host_link.bandwidth * HOST_LINK_SHARE, memory)


def offload_parts(stage: Stage, tokens: Array) -> Array:
    """Return the seconds by part that weights outside the GPU add to a step, ``[5, len(tokens)]``."""
    parts = np.zeros((len(PART_NAMES), len(tokens)))
    shape = stage.shape
    if shape.streamed_bytes:
        read = layer_weight_bytes(stage, tokens) / layer_weight_bytes(stage, np.array([EVERY_TOKEN]))
        parts[WEIGHTS] += shape.streamed_bytes * read / link_bandwidth(shape)
    if shape.num_cpu_layers:
        parts += shape.num_cpu_layers * _cpu_layer(stage, tokens)
        crossing = 2.0 * tokens * shape.model.hidden_size * ACTIVATION_BYTES
        parts[COMMUNICATION] += crossing / link_bandwidth(shape)
    if shape.model.moe is not None and shape.num_cpu_expert_layers:
        parts += shape.num_cpu_expert_layers * _cpu_experts(stage, shape.model.moe, tokens)
    return parts


def offload_notes(shape: ReplicaShape) -> tuple[str, ...]:
    """Return what lies outside the GPU, and at which bandwidth it is read; empty: nothing does."""
    host, layers = shape.hardware.host_of_node, shape.model.num_hidden_layers
    memory = f"from host memory of {host.memory_bandwidth / 1e9:.3g} GB/s"
    notes = []
    if shape.num_cpu_layers:
        notes.append(f"{shape.num_cpu_layers} of {layers} layers run on the CPU, {memory}")
    if shape.num_cpu_expert_layers:
        notes.append(f"the experts of {shape.num_cpu_expert_layers} of {layers} layers run on the CPU, {memory}")
    if shape.streamed_bytes:
        what = f"{format_bytes(shape.streamed_bytes)} of weights a GPU stay in host memory"
        notes.append(f"{what} and cross a link of {shape.hardware.host_link.bandwidth / 1e9:.3g} GB/s in every step")
    return tuple(notes)


def _cpu_layer(stage: Stage, tokens: Array) -> Array:
    """Return the seconds by part of one layer on the CPU; with many tokens its weights are copied if that is faster."""
    shape, layers = stage.shape, stage.shape.model.num_hidden_layers
    num_bytes = layer_weight_bytes(stage, tokens) / layers
    cores = _core_parts(shape, num_bytes, tokens * layer_flops(stage) / layers)
    return _faster(shape, tokens, cores, stage_parts(replace(stage, num_layers=1), tokens), num_bytes)


def _cpu_experts(stage: Stage, moe: MixtureOfExperts, tokens: Array) -> Array:
    """Return the seconds by part of one layer's routed experts on the CPU, each token going there and back.

    With many tokens the experts that are used are copied, if that is faster (llama.cpp pull request 15346).
    """
    shape = stage.shape
    gemms = shape.model.expert_gemms()
    used = load_of_experts(moe, tokens).distinct
    num_bytes = used * stage.stored_bytes(gemms)
    flops = tokens * moe.num_experts_per_tok * 2.0 * sum(gemm.num_weights for gemm in gemms)
    cores = _core_parts(shape, num_bytes, flops)
    cores[COMMUNICATION] += 2.0 * tokens * shape.model.hidden_size * ACTIVATION_BYTES / link_bandwidth(shape)
    cores[HOST] += EXPERTS_LATENCY
    return _faster(shape, tokens, cores, expert_block(stage, moe, tokens), num_bytes)


def _core_parts(shape: ReplicaShape, num_bytes: Array, flops: Array) -> Array:
    """Return the seconds by part in which the cores read weights or compute, whichever takes longer."""
    host = shape.hardware.host_of_node
    memory = num_bytes / (host.memory_bandwidth * HOST_MEMORY_SHARE)
    compute = flops / (host.compute * HOST_COMPUTE_SHARE)
    cores = np.zeros((len(PART_NAMES), len(num_bytes)))
    cores[WEIGHTS] = np.where(memory >= compute, memory, 0.0)
    cores[COMPUTE] = np.where(memory >= compute, 0.0, compute)
    return cores


def _faster(shape: ReplicaShape, tokens: Array, cores: Array, on_gpu: Array, num_bytes: Array) -> Array:
    """Return the seconds by part on the cores, or on the GPU after a copy of the weights where that is faster."""
    copied = on_gpu.copy()
    copied[WEIGHTS] += num_bytes / link_bandwidth(shape)
    is_copied = (tokens >= COPIED_FROM_TOKENS) & (copied.sum(axis=0) < cores.sum(axis=0))
    return np.where(is_copied, copied, cores)


def cpu_key_seconds(shape: ReplicaShape, attention: AttentionShape) -> float:
    """Return the seconds per key of context in a decode step in the layers on the CPU."""
    rate = shape.hardware.host_of_node.memory_bandwidth * HOST_MEMORY_SHARE
    return shape.num_cpu_layers * attention.kv_bytes_per_token / rate


def cpu_pair_seconds(shape: ReplicaShape, attention: AttentionShape) -> float:
    """Return the seconds per attended query-key pair of a prompt in the layers on the CPU."""
    rate = shape.hardware.host_of_node.compute * HOST_COMPUTE_SHARE
    return shape.num_cpu_layers * attention.prefill_flops_per_pair / rate
