"""LoRA adapters: their bytes on disk, in host memory and in GPU slots, and the time they add to a step.

An adapter adds ``x A B`` to each matrix that it is made for, A as wide as its rank. Engines compute it for all adapters
of a batch with two kernels per matrix, shrink and expand (Punica's SGMV, arXiv 2310.18547; vLLM's lora/ops/triton_ops;
SGLang's csgmv). Routed experts have none here. Estimates: nothing here is fitted to a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from simserve.perf.efficiency import Machine, memory_efficiency, start_latency
from simserve.perf.gemm import ACTIVATION_BYTES
from simserve.perf.shape import LoraTarget, ReplicaShape
from simserve.profiles.model_blocks import Gemm, Part

ELEMENT_BYTES = 2.0
"""Bytes per element of an adapter: 16 bit, also with quantised weights (vLLM's ``lora_dtype: auto``)."""

KERNELS_PER_MATRIX = 2.0
"""Kernels started per matrix with adapters, shrink and expand, each with the least time of a matrix product: 8 us a
matrix on an A100. Punica reports 2 ms more a token (arXiv 2310.18547, abstract): over the 7 x 32 matrices of Llama-2-7B
9 us each. Engines fuse them into 4 x 32, which leaves 1.0 ms here. vLLM 0.6 took far longer with older kernels at rank
64 (issue 10062: 35 s instead of 28 s)."""

DISK_BANDWIDTH = 2.7e9
"""Bytes/s at which safetensors loads an adapter from NVMe to the GPU's host: 370 ms for 1 GB (LLaMA-70B at rank 32;
ServerlessLLM, OSDI 2024, section 7.2, arXiv 2401.14351)."""

PARTS: Mapping[LoraTarget, tuple[Part, ...]] = {
    "attention": ("attention", "attention_output"),
    "mlp": ("mlp", "shared_experts"),
    "all": ("attention", "attention_output", "mlp", "shared_experts"),
}
"""Parts of a model whose matrices have adapters, by the target of the adapter."""

_FUSED = {"qkv": 3, "gate_up": 2, "shared_gate_up": 2}
"""Projections that engines fuse into one matrix: each has an A of its own."""

_WRAPS_ALL = ("vllm",)
"""Engines whose slots have space for every matrix that may have an adapter (vLLM lora/model_manager.py wraps all
supported modules); others have space only for what the adapters are made for."""


class LoraTimes(NamedTuple):
    """Seconds that adapters add to a step: per step, per adapter, per token (`StepTimes`)."""

    step: float
    adapter: float
    token: float


def lora_gemms(shape: ReplicaShape, target: LoraTarget, num_ranks: int) -> list[tuple[float, Gemm]]:
    """Return the matrices with adapters on one rank, and the number of layers that have each."""
    parts = PARTS[target]
    return [(count, gemm) for count, gemm in shape.model.gemms_beside_experts(num_ranks) if gemm.part in parts]


def _weights_of_rank(gemm: Gemm) -> float:
    """Return the weights of A and B for one matrix, per unit of rank."""
    return _FUSED.get(gemm.name, 1) * gemm.in_features + gemm.out_features


def adapter_bytes(shape: ReplicaShape, rank: int, target: LoraTarget) -> float:
    """Return the bytes of an adapter on one GPU: for a split matrix, one of A and B is whole on every rank.

    As in vLLM without ``fully_sharded_loras``.
    """
    share = shape.num_layers_per_stage / shape.model.num_hidden_layers
    gemms = lora_gemms(shape, target, shape.tensor_parallel_size)
    return share * ELEMENT_BYTES * rank * sum(count * _weights_of_rank(gemm) for count, gemm in gemms)


def stored_adapter_bytes(shape: ReplicaShape, rank: int, target: LoraTarget) -> float:
    """Return the bytes of an adapter on disk."""
    return ELEMENT_BYTES * rank * sum(count * _weights_of_rank(gemm) for count, gemm in lora_gemms(shape, target, 1))


def slot_bytes(shape: ReplicaShape) -> float:
    """Return the bytes of one slot on one GPU, for an adapter of the largest rank; 0 without slots."""
    engine = shape.engine
    if not engine.max_loras:
        return 0.0
    return adapter_bytes(shape, engine.max_lora_rank, "all" if engine.name in _WRAPS_ALL else shape.lora_target)


def lora_times(shape: ReplicaShape, machine: Machine) -> LoraTimes:
    """Return the time adapters add to a replica's steps; slots are as wide as the largest rank, and computed whole.

    Covers the layers of all pipeline stages: each reads the adapters of a batch, tokens share the stages.
    """
    rank, target = shape.engine.max_lora_rank, shape.lora_target
    gemms = lora_gemms(shape, target, shape.tensor_parallel_size)
    bandwidth = machine.bandwidth * memory_efficiency(machine, "gemm")
    starts = KERNELS_PER_MATRIX * start_latency(machine, "gemm") * sum(count for count, _ in gemms)
    weights = ELEMENT_BYTES * rank * sum(count * _weights_of_rank(gemm) for count, gemm in gemms)
    moved = flops = 0.0
    for count, gemm in gemms:
        narrow = _FUSED.get(gemm.name, 1) * rank
        # The input is read, the narrow product written and read, the result read and written.
        moved += count * (gemm.in_features + 2.0 * narrow + 2.0 * gemm.out_features) * ACTIVATION_BYTES
        flops += count * 2.0 * rank * _weights_of_rank(gemm)
    peak = machine.peak("bf16" if "bf16" in machine.peaks else "fp16") * machine.gemm_efficiency
    factor, stages = shape.engine.gpu_time_factor, shape.pipeline_parallel_size
    return LoraTimes(
        step=factor * starts,
        adapter=factor * weights / bandwidth,
        token=factor * max(moved / bandwidth, flops / peak) / stages,
    )
