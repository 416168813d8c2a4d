"""Batch sizes that an engine captures in CUDA graphs."""

from __future__ import annotations

from pydantic import Field

from simserve.profiles.tiers import Tiered
from simserve.units import Bytes
from simserve.validation import FrozenModel


class SizeRange(FrozenModel):
    """Equally spaced sizes, both ends included."""

    start: int = Field(alias="from", ge=1)
    """First size."""
    stop: int = Field(alias="to", ge=1)
    """Last size."""
    step: int = Field(ge=1)
    """Distance."""

    @property
    def sizes(self) -> range:
        """The captured sizes of the range."""
        return range(self.start, self.stop + 1, self.step)


class CudaGraphs(FrozenModel):
    """Decode batch sizes that are captured. A batch between two sizes is padded to the larger."""

    sizes: tuple[int | SizeRange, ...] = ()
    """Captured sizes, ascending; empty: no graphs."""
    exact_sizes: tuple[int | SizeRange, ...] = ()
    """Captured sizes where batches are not padded and others run without a graph; empty: batches are always padded."""
    exact_max_batch: int | None = Field(default=None, ge=1)
    """Largest of them unless the user sets it; absent: as with padding."""
    max_batch: Tiered | None = None
    """Largest captured size; absent: the last of `sizes`."""
    max_batch_per_seq: int | None = Field(default=None, ge=1)
    """Largest captured size as a multiple of `max_num_seqs`, if that is lower."""
    captures_limit: bool = False
    """Whether `max_num_seqs` itself is captured, and nothing above it."""
    max_batch_of_family: dict[str, int] = Field(default_factory=dict)
    """Model family -> largest captured size, in place of both limits above."""
    covers_prompts: bool = False
    """Whether steps with prompts also run on graphs, up to the largest captured size in tokens (vLLM V1)."""
    covers_chunks: bool = False
    """Whether parts of a layer run on graphs up to a chunk and launch Triton's experts as one operator (SGLang)."""
    memory: Bytes
    """Memory of the captured graphs, bytes."""
    is_budgeted: bool
    """Whether that memory is subtracted before KV (vLLM from 0.21); otherwise it comes out of the rest."""
    source: str
    """Where the sizes come from."""

    def every_size(self, is_padded: bool = True) -> set[int]:
        """Return the captured sizes, one by one."""
        entries = self.sizes if is_padded else self.exact_sizes
        return {size for entry in entries for size in (entry.sizes if isinstance(entry, SizeRange) else (entry,))}

    @property
    def last_step(self) -> int:
        """Distance between the largest captured sizes."""
        return next((entry.step for entry in reversed(self.sizes) if isinstance(entry, SizeRange)), 8)
