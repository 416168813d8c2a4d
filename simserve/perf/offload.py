"""Weights outside the GPU: time and bytes of layers on the CPU, and of weights that cross the host link each step.

Knows bytes, links and cores; which engine does what is in its profile, under `features`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simserve.perf.attention import AttentionShape
from simserve.perf.efficiency import Array
from simserve.perf.gemm import ACTIVATION_BYTES
from simserve.perf.operators import COMMUNICATION, COMPUTE, PART_NAMES, WEIGHTS
from simserve.perf.shape import ReplicaShape
from simserve.perf.stage import Stage, stage_parts
from simserve.perf.traffic import layer_flops, layer_weight_bytes

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

EVERY_TOKEN = 1e9
"""Tokens of a step that reads every expert."""


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
    return parts


def _cpu_layer(stage: Stage, tokens: Array) -> Array:
    """Return the seconds by part of one layer on the CPU; with many tokens its weights are copied if that is faster."""
    shape, host = stage.shape, stage.shape.hardware.host_of_node
    layers = shape.model.num_hidden_layers
    num_bytes = layer_weight_bytes(stage, tokens) / layers
    memory = num_bytes / (host.memory_bandwidth * HOST_MEMORY_SHARE)
    compute = tokens * layer_flops(stage) / layers / (host.compute * HOST_COMPUTE_SHARE)
    cores = np.zeros((len(PART_NAMES), len(tokens)))
    cores[WEIGHTS] = np.where(memory >= compute, memory, 0.0)
    cores[COMPUTE] = np.where(memory >= compute, 0.0, compute)
    copied = stage_parts(replace(stage, num_layers=1), tokens)
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
