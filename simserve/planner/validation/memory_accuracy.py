"""KV room of measured deployments beside the memory plan's. Reads no file and replays nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from simserve.perf.memory import MemoryPlan
from simserve.planner.measured.point import MeasuredMemory
from simserve.scenario.load import from_mapping
from simserve.scenario.resolve import resolve
from simserve.units import GIB

OF_GPU = 0.01
"""Share of the GPU's memory that the KV room is to be right within."""

OF_KV = 0.03
"""Share of the KV room itself that it is to be right within where KV takes `MUCH_KV` of the GPU."""

MUCH_KV = 1.0 / 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryComparison:
    """One deployment; bytes are a GPU's.

    Attributes:
        measured: What the log says.
        measured_bytes: KV bytes of the log.
        predicted_bytes: KV bytes of the plan; where the log says tokens, of the plan's whole blocks.
        gpu_bytes: Memory of the GPU.
    """

    measured: MeasuredMemory
    measured_bytes: float
    predicted_bytes: float
    gpu_bytes: float

    @property
    def error_of_kv(self) -> float:
        """Predicted over measured KV, less 1."""
        return self.predicted_bytes / self.measured_bytes - 1.0

    @property
    def error_of_gpu(self) -> float:
        """The difference as a share of the GPU's memory."""
        return (self.predicted_bytes - self.measured_bytes) / self.gpu_bytes

    @property
    def is_within(self) -> bool:
        """Whether both limits are kept."""
        is_much = self.measured_bytes > MUCH_KV * self.gpu_bytes
        return abs(self.error_of_gpu) <= OF_GPU and (not is_much or abs(self.error_of_kv) <= OF_KV)

    @property
    def summary(self) -> dict[str, Any]:
        """The row as results show it."""
        return {
            "label": self.measured.label,
            "engine": self.measured.engine,
            "version": self.measured.version,
            "hardware": self.measured.hardware,
            "model": self.measured.model,
            "measured_kv_gib": self.measured_bytes / GIB,
            "predicted_kv_gib": self.predicted_bytes / GIB,
            "error_of_kv": self.error_of_kv,
            "error_of_gpu": self.error_of_gpu,
            "is_within": self.is_within,
        }


def compare_memory(measured: Iterable[MeasuredMemory]) -> tuple[MemoryComparison, ...]:
    """Return every deployment beside its plan.

    Raises:
        InputError: A profile is missing or does not go with the rest.
    """
    return tuple(_compared(each) for each in measured)


def _compared(measured: MeasuredMemory) -> MemoryComparison:
    plan: MemoryPlan = resolve(from_mapping(measured.scenario)).memory
    says_tokens = math.isnan(measured.kv_bytes)
    block_bytes = plan.kv_bytes_per_token * plan.block_size
    return MemoryComparison(
        measured=measured,
        measured_bytes=measured.kv_tokens * plan.kv_bytes_per_token if says_tokens else measured.kv_bytes,
        predicted_bytes=plan.num_kv_blocks * block_bytes if says_tokens else plan.kv_bytes,
        gpu_bytes=plan.total_bytes,
    )
