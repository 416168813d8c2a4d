"""What an engine keeps free of GPU memory besides weights and KV: constants of its rules, computed elsewhere."""

from __future__ import annotations

from pydantic import Field

from simserve.units import Bytes
from simserve.validation import FrozenModel


class StaticReserve(FrozenModel):
    """SGLang's estimate of what must stay free besides weights and KV; the rest is the static share."""

    base: Bytes
    """Bytes for metadata."""
    chunk_token: Bytes
    """Bytes a token of the prefill chunk."""
    minimum_chunk_tokens: int
    """The chunk is taken to be at least this long, tokens."""
    graph_sequence: Bytes
    """Bytes a sequence of the largest captured CUDA graph."""
    rank: Bytes
    """Bytes a rank (tensor x pipeline)."""
    minimum: Bytes
    """Least reserve, bytes, on GPUs above `minimum_above`."""
    minimum_above: Bytes
    """GPU memory above which `minimum` holds, bytes."""

    def share(self, gpu_memory_bytes: float, chunk_tokens: int, graph_sequences: int, ranks: int) -> float:
        """Return the share of GPU memory for weights and KV, rounded to 0.001 as SGLang does."""
        reserved = self.base + self.chunk_token * max(chunk_tokens, self.minimum_chunk_tokens)
        reserved += self.graph_sequence * graph_sequences + self.rank * ranks
        if gpu_memory_bytes > self.minimum_above:
            reserved = max(reserved, self.minimum)
        return round((gpu_memory_bytes - reserved) / gpu_memory_bytes, 3)


class RuntimeMemory(FrozenModel):
    """Inputs of the rule for memory that is neither weights nor KV; `perf` computes the bytes."""

    non_torch_single: Bytes
    """CUDA context and libraries on one GPU, bytes."""
    non_torch_parallel: Bytes
    """The same a GPU under tensor parallelism, with communication buffers, bytes."""
    activation_token_factor: float = Field(ge=0)
    """Peak activations: times `max_num_batched_tokens` x (hidden + intermediate / TP) x bytes an element."""
    activation_logit: Bytes
    """Peak of sampling: bytes a logit, times `max_num_seqs` x vocabulary."""
    activation_base: Bytes = 0.0
    """Peak of sampling: bytes beside the logits, however many seats (workspaces of kernels and of the sampler)."""
    linear_states_per_cached_seat: int = Field(default=1, ge=1)
    """States of linear attention that a seat holds beside a prefix cache; one without."""
    relaid_expert_formats: tuple[str, ...] = ()
    """Weight formats whose experts are laid out anew on the GPU, where their first matrices then stay twice."""
    source: str
    """Where the figures come from."""
