"""StaticReserve: the memory that SGLang keeps free of weights and KV, from which it computes its share of a GPU.

Knows the formula of its releases and the server that it looks at, not how much weights and KV then take: that is
`simserve.perf.memory`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from simserve.profiles.cuda_graphs import SizeRange
from simserve.units import Bytes
from simserve.validation import FrozenModel


@dataclass(frozen=True, slots=True)
class ServerTraits:
    """What an engine's defaults depend on besides its GPU and options; the first five are the engine's to fill in."""

    chunk_tokens: int = 0  # Prefill chunk of all groups of data-parallel attention together, tokens.
    graph_sequences: int = 0  # Sequences of the largest captured CUDA graph.
    ranks: int = 1  # Ranks of all groups, tensor x pipeline.
    groups: int = 1  # Groups of data-parallel attention.
    drafter: str | None = None  # Drafter of speculative decoding; None: none.
    decode_sequences: int = 0  # Sequences of its largest decode step.
    tokens_per_decode: int = 1  # Tokens of each of them: one, and its drafts.
    is_latent: bool = False  # Whether the model has latent attention.
    has_experts: bool = False  # Whether some of its layers have routed experts.
    captures_prompts: bool = False  # Whether prompts run on graphs.
    has_delta_rule: bool = False  # Whether its linear attention is a gated delta rule, unlike Mamba's.
    role: Literal["both", "prefill", "decode"] = "both"  # What the server does for its requests.
    exchange: str = ""  # How tokens reach the ranks that hold their experts.
    model_name: str = ""  # Name of the model, without that of a format of its weights.
    divides_contexts: bool = False  # Whether ranks divide contexts among them.


class StaticReserve(FrozenModel):
    """SGLang's estimate of what must stay free besides weights and KV; the rest is the static share."""

    memory_at_least: Bytes = 0.0
    """Least GPU memory for which this estimate holds, bytes."""
    base: Bytes
    """Bytes for metadata, or for everything if no other term is given."""
    chunk_token: Bytes = 0.0
    """Bytes per token of the prefill chunk."""
    minimum_chunk_tokens: int = 0
    """Least chunk length assumed, tokens."""
    graph_sequence: Bytes = 0.0
    """Bytes per sequence of the largest captured CUDA graph."""
    prompt_graph: Bytes = 0.0
    """Bytes per captured graph of prompts, where prompts run on graphs."""
    prompt_graph_sizes: tuple[SizeRange, ...] = ()
    """Tokens of the graphs of prompts; sizes up to the chunk are captured."""
    latent_prompt_graphs: Bytes = 0.0
    """Bytes of all graphs of prompts with latent attention, in place of `prompt_graph`."""
    rank: Bytes = 0.0
    """Bytes per rank (tensor x pipeline)."""
    groups: Bytes = 0.0
    """Bytes if there are several groups of data-parallel attention, however many."""
    group_sequence: Bytes = 0.0
    """Bytes per sequence of the largest CUDA graph and group of data-parallel attention, if there are several."""
    large_group_sequence: Bytes = 0.0
    """Further bytes of the same kind if the largest graph holds more sequences than `large_graph`."""
    large_graph: int = 0
    """Sequences of the largest graph above which `large_group_sequence` counts."""
    minimum: Bytes = 0.0
    """Least reserve, bytes, on GPUs above `minimum_above`."""
    minimum_above: Bytes = 0.0
    """GPU memory above which `minimum` applies, bytes."""
    drafts: Mapping[str, Bytes] = Field(default_factory=dict)
    """Drafter of speculative decoding -> further bytes, above the minimum too."""
    deepep: Bytes = 0.0
    """Further bytes of a server that decodes and sends tokens to its experts by DeepEP, above the minimum too."""
    knows_roles: bool = False
    """Whether a server that only decodes reserves for its largest decode step in place of a chunk, and one that only
    prefills nothing for graphs of decodes."""

    def share(self, gpu_memory_bytes: float, case: ServerTraits) -> float:
        """Return the share of GPU memory for weights and KV, rounded to 0.001 as SGLang does."""
        decodes = not (self.knows_roles and case.role == "prefill")
        prefills = not (self.knows_roles and case.role == "decode")
        tokens = case.chunk_tokens if prefills else case.decode_sequences * case.tokens_per_decode
        reserved = self.base + self.chunk_token * max(tokens, self.minimum_chunk_tokens) + self.rank * case.ranks
        if decodes:
            reserved += self._decode_graphs(case)
        if case.captures_prompts:
            reserved += self._prompt_graphs(case)
        if case.groups > 1:
            reserved += self.groups
        if gpu_memory_bytes > self.minimum_above:
            reserved = max(reserved, self.minimum)
        reserved += self.drafts.get(case.drafter or "", 0.0)
        reserved += self.deepep if decodes and case.exchange.startswith("deepep") else 0.0
        return round((gpu_memory_bytes - reserved) / gpu_memory_bytes, 3)

    def _decode_graphs(self, case: ServerTraits) -> float:
        bytes_of_sequence = self.graph_sequence
        if case.groups > 1:
            is_large = case.graph_sequences > self.large_graph
            bytes_of_sequence += case.groups * (self.group_sequence + self.large_group_sequence * is_large)
        return bytes_of_sequence * case.graph_sequences

    def _prompt_graphs(self, case: ServerTraits) -> float:
        if case.is_latent:
            return self.latent_prompt_graphs
        sizes = (
            range(each.start, min(each.stop, case.chunk_tokens) + 1, each.step) for each in self.prompt_graph_sizes
        )
        return self.prompt_graph * sum(map(len, sizes))


class AttentionShare(FrozenModel):
    """A smaller share of GPU memory under some kernels of attention, which need memory of their own."""

    backend: str
    """Kernels, as `deployment.engine.attention_backend` names them."""
    gpus: tuple[str, ...]
    """Parts of the names of GPUs, in lower case, on which these kernels run unless others are asked for."""
    latent_heads: tuple[int, ...] = ()
    """Query heads of a rank with which they also run latent attention unasked; empty: they never do."""
    except_families: tuple[str, ...] = ()
    """Model families that run on other kernels unless these are asked for."""
    model_len_above: int = Field(default=0, ge=0)
    """Context length up to which the share stays as it is, tokens."""
    factor: float = Field(gt=0, le=1)
    """Factor on the share, whoever set it."""
