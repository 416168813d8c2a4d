"""Shares of the peaks that kernels reach, by operator class, dtype and size.

The only place to change when fitted curves or measured tables become available: operators state FLOP and bytes and get
their speed from here. Every curve ensures that time never falls with more work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from simserve.errors import InvariantError
from simserve.profiles.kernel_curves import ActivationQuantisation, GemmClass, GemmCurve, GroupedGemmCurve

Array = NDArray[np.float64]
OperatorClass = Literal["gemm", "grouped_gemm", "attention_prefill", "attention_decode", "elementwise", "sampling"]

NARROW_DTYPE_SHARE: Mapping[str, float] = {"fp8": 0.75, "fp4": 0.8, "int8": 0.75}
"""Share of the 16-bit GEMM efficiency that 8-bit GEMMs reach: ideal over measured is 0.3 to 0.55 against
0.60 to 0.83 in NVIDIA's AIConfigurator tables, where part of the gap is small sizes (counted by the rows)
and activation quantisation (counted as an operator of its own). FP4: RTX PRO 6000, Llama-3.3-70B
offline within 10 %; with 0.7 it is 12 % too slow."""

ATTENTION_MEMORY_SHARE = 1.05
"""Bandwidth of attention on long contexts relative to a kernel that streams weights. vLLM 0.19 on H100, Llama-3.1-8B,
one request: the slope of ITL over context is 3.0 TB/s (BF16 KV) and 2.8 TB/s (FP8 KV) of 3.35 (vLLM blog,
2026-04-22)."""

FP4_OF_FP8 = 0.7
"""Share of the FP4 peak that NVFP4 products reach, relative to that of FP8 with one scale per tensor: fitted to prompts
of 2,048 tokens of Llama-3.3-70B on one B200 (TensorRT-LLM 1.0 perf-overview), tested on the rest of that page (405B,
Llama 4 Scout, Qwen3 and other lengths)."""

COLLECTIVE_SHARE = 0.9
"""Share of the link bandwidth that a large all-reduce reaches (NCCL bus bandwidth over NVLink peak: 0.8 to
0.95)."""

COLLECTIVE_SKEW_KERNELS = 0.8
"""Kernel latencies between the arrivals of ranks at a collective, per doubling of their number: 2.4 us on an H100.
Between the best fits to the TPOT of InferenceX's Llama-3.1-70B on H100 (1.0, vLLM 0.11, 24 servers) and of its models
with experts (0.6, 165 servers); on the 32 left-out servers of Llama-3.1-70B on H200 the bias is -2 %."""

KERNEL_LATENCIES: Mapping[str, float] = {
    "gemm": 1.0,
    "grouped_gemm": 2.0,
    "attention_prefill": 2.5,
    "attention_decode": 2.5,
    "elementwise": 0.5,
}
"""Start-up of a call, in units of the hardware's kernel latency: a GEMM call costs at least 2.5 to 4 us,
attention 9 to 14 us (AIConfigurator tables, CUDA-graph replay); element-wise kernels are the shortest,
grouped GEMMs sort first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One GPU as seen by the operators: peaks and the shares of them that its class reaches."""

    name: str  # Hardware profile, for messages.
    peaks: Mapping[str, float]  # Dense FLOP/s by dtype; unsupported dtypes are absent.
    bandwidth: float  # Memory bandwidth, bytes/s.
    gemm_efficiency: float  # Share of the peak FLOP/s in a large 16-bit GEMM.
    attention_efficiency: float  # Share of the peak FLOP/s in prefill attention on long prompts.
    memory_efficiency: float  # Share of the bandwidth in a kernel that streams weights.
    kernel_latency: float  # Seconds from one small kernel to the next in a CUDA graph.
    gemm_overlap: float | None = None
    """How well arithmetic hides memory traffic in large products, if the hardware profile says so."""
    grouped_gemm_overlap: float | None = None  # The same in routed experts; None: as in other products.
    tile_rows: int | None = None  # Rows of the smallest tile of any product, if the hardware profile says so.
    unpacking: float | None = None
    """Share of a 16-bit product's FLOP/s left if kernels unpack weights at any number of rows."""
    indexer_efficiency: float | None = None
    """Share of the FP8 peak in an indexer's scores of prompts, if measured; None: as prefill attention."""
    decode_efficiency: float | None = None
    """The same in decode attention, if measured separately; None: slightly more."""
    sampling_efficiency: float | None = None
    """The same in sampling, if measured separately; None: as other memory-bound kernels."""
    engine_scale: float = 1.0  # Efficiency of the engine's kernels relative to the hardware's class.
    memory_share: float = 1.0  # Times `engine_scale`, the factor on the bandwidth.
    num_multiprocessors: int = 1  # Streaming multiprocessors; 1 if unknown.
    gemm_curves: Mapping[GemmClass, GemmCurve] = field(default_factory=dict)
    """Fitted matrix products of the engine by number format."""
    grouped_gemm_curves: Mapping[GemmClass, GroupedGemmCurve] = field(default_factory=dict)
    """Fitted routed experts of the engine by number format."""
    activation_quantisation: ActivationQuantisation | None = None  # Fitted rounding of activations to 8 bits.

    @property
    def memory_scale(self) -> float:
        """Bandwidth of the engine's kernels relative to the hardware's class."""
        return self.engine_scale * self.memory_share

    def peak(self, dtype: str) -> float:
        """Return the dense peak of a dtype, FLOP/s.

        Raises:
            InvariantError: The dtype is unsupported; `simserve.perf.quantization` refuses such a choice
            before.
        """
        if dtype not in self.peaks:
            raise InvariantError(f"{self.name} has no {dtype} arithmetic")
        return self.peaks[dtype]


def attention_efficiency(machine: Machine) -> float:
    """Return the share of the peak FLOP/s that prefill attention reaches without a fit."""
    return min(machine.attention_efficiency * machine.engine_scale, 1.0)


def memory_efficiency(machine: Machine, operator: OperatorClass) -> float:
    """Return the share of the memory bandwidth that a call reaches, independent of its size."""
    if operator == "attention_decode" and machine.decode_efficiency is not None:
        return min(machine.decode_efficiency * machine.memory_scale, 1.0)
    if operator == "sampling" and machine.sampling_efficiency is not None:
        return min(machine.sampling_efficiency * machine.memory_scale, 1.0)
    share = ATTENTION_MEMORY_SHARE if operator in ("attention_decode", "attention_prefill") else 1.0
    return min(machine.memory_efficiency * share * machine.memory_scale, 1.0)


def start_latency(machine: Machine, operator: OperatorClass) -> float:
    """Return the least seconds of a call, whatever its size."""
    return KERNEL_LATENCIES[operator] * machine.kernel_latency
