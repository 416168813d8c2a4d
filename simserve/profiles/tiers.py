"""Defaults of an engine that depend on the GPU."""

from __future__ import annotations

from pydantic import Field

from simserve.units import Bytes
from simserve.validation import FrozenModel


class Tier(FrozenModel):
    """One row of a default that depends on the GPU. The first row that fits the deployment counts."""

    memory_at_least: Bytes = 0.0
    """Least total memory of the GPU for which the row holds, bytes."""
    tensor_parallel_at_least: int = Field(default=1, ge=1)
    """Least tensor-parallel size for which the row holds."""
    except_gpus: tuple[str, ...] = ()
    """Parts of GPU names, in lower case, for which the row does not hold."""
    only_gpus: tuple[str, ...] = ()
    """Parts of GPU names, in lower case, for which alone the row holds; empty: all."""
    value: float = Field(gt=0)
    """The default."""

    def fits(self, gpu_memory_bytes: float, gpu_name: str, tensor_parallel_size: int) -> bool:
        """Return whether the row holds for a GPU and a tensor-parallel size."""
        name = gpu_name.lower()
        is_excepted = any(part in name for part in self.except_gpus)
        is_excepted |= bool(self.only_gpus) and not any(part in name for part in self.only_gpus)
        is_large = gpu_memory_bytes >= self.memory_at_least
        return is_large and tensor_parallel_size >= self.tensor_parallel_at_least and not is_excepted


Tiered = float | tuple[Tier, ...]
