"""Batch sizes that an engine captures in CUDA graphs."""

from __future__ import annotations

from typing import Literal

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


KeptOff = Literal[
    "data_parallel",
    "pipeline",
    "pools",
    "drafts",
    "loras",
    "offload",
    "redundant_experts",
    "gguf",
    "pictures",
    "latent",
    "sparse",
    "exchange",
    "two_batch_overlap",
]
"""What may keep prompts off graphs: options of a server, and properties of its model."""


class PromptGraphs(FrozenModel):
    """Graphs that hold all of a prompt's layers but attention (SGLang), and the servers that capture none."""

    off_with: tuple[KeptOff, ...]
    """What keeps a server from them; `latent` attention is here what is not also `sparse`."""
    off_for_families: tuple[str, ...] = ()
    """Model families without them."""
    pictured_families: tuple[str, ...] = ()
    """Model families with a vision tower that have them all the same."""
    latent_tokens: int = Field(default=0, ge=0)
    """Largest graph with latent attention, tokens; otherwise a chunk."""


class CudaGraphs(FrozenModel):
    """Decode batch sizes that are captured. A batch between two sizes is padded to the larger."""

    sizes: tuple[int | SizeRange, ...] = ()
    """Captured sizes, ascending; empty: no graphs."""
    interpreted_sizes: tuple[int | SizeRange, ...] = ()
    """The same where an option is set that compiled engines have not, as in `Host.interpreted`; empty: as `sizes`."""
    exact_sizes: tuple[int | SizeRange, ...] = ()
    """Captured sizes where batches are not padded and others run without a graph; empty: batches are always padded."""
    exact_max_batch: int | None = Field(default=None, ge=1)
    """Largest of them unless the user sets it; absent: as with padding."""
    max_batch: Tiered | None = None
    """Largest captured size; absent: the last of `sizes`."""
    max_batch_per_seq: int | None = Field(default=None, ge=1)
    """Largest captured size as a multiple of `max_num_seqs`, if that is lower."""
    counts_drafts: bool = False
    """Whether it is a multiple of their tokens with drafts, the sizes being tokens."""
    captures_limit: bool = False
    """Whether `max_num_seqs` itself is captured, and nothing above it."""
    sizes_with_drafts: tuple[int | SizeRange, ...] = ()
    """The same with speculative decoding; empty: as `sizes`."""
    stays_within_seats: bool = False
    """Whether a `max_num_seqs` that is set, of all groups, is captured, and nothing above it."""
    max_batch_of_family: dict[str, int] = Field(default_factory=dict)
    """Model family -> largest captured size, in place of both limits above."""
    piecewise_families: tuple[str, ...] = ()
    """Model families whose decode steps run on piecewise graphs where the user does not say which, as their attention
    cannot be captured."""
    piecewise_with_context_ranks: bool = False
    """Whether those of servers whose ranks divide contexts do too, whatever the user says, as collectives in attention
    cannot be captured (vLLM, ``decode_context_parallel_size``)."""
    piecewise_sizes: tuple[int | SizeRange, ...] = ()
    """Tokens of steps with prompts that are captured in pieces where the user asks for it; above the last ones, in the
    same steps up to the user's largest."""
    covers_prompts: bool = False
    """Whether steps with prompts also run on graphs, up to the largest captured size in tokens (vLLM V1)."""
    prompts: PromptGraphs | None = None
    """Graphs of prompts up to a chunk, which launch Triton's experts as one operator; absent: none."""
    memory: Bytes
    """Memory of the captured graphs, bytes."""
    is_budgeted: bool
    """Whether that memory is subtracted before KV (vLLM from 0.21); otherwise it comes out of the rest."""
    source: str
    """Where the sizes come from."""

    def every_size(self, *, is_padded: bool = True, drafts: bool = False) -> set[int]:
        """Return the captured sizes, one by one, with padding and speculative decoding or without."""
        entries = self.exact_sizes if not is_padded else (drafts and self.sizes_with_drafts) or self.sizes
        return {size for entry in entries for size in (entry.sizes if isinstance(entry, SizeRange) else (entry,))}

    def piecewise_up_to(self, largest: int) -> tuple[int, ...]:
        """Return the tokens of steps with prompts that are captured in pieces, ``largest`` included."""
        found = {largest}
        for entry in self.piecewise_sizes:
            sizes = entry.sizes if isinstance(entry, SizeRange) else (entry,)
            found |= {size for size in sizes if size < largest}
            if isinstance(entry, SizeRange):
                found |= set(range(entry.start, largest, entry.step))
        return tuple(sorted(found))

    @property
    def last_step(self) -> int:
        """Distance between the largest captured sizes."""
        return next((entry.step for entry in reversed(self.sizes) if isinstance(entry, SizeRange)), 8)
