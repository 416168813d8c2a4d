"""Kinds of attention that cache something else than keys and values of heads, or choose among them: their widths.

Latent, sparse and compressed attention, and heads of layers with a window. Plain figures; matrices and caches of whole
layers are in `simserve.profiles.model_blocks`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeInt, PositiveInt, model_validator

from simserve.validation import FrozenModel

_INDEXER_SCALE_GROUP = 128
_INDEXER_SCALE_BYTES = 4
PACKED_LATENT_GROUP = 128
"""Elements of a latent that share a scale in FlashMLA's FP8 (vLLM 0.20.2 v1/kv_cache_interface.py, ``fp8_ds_mla``)."""
_PACKED_ROTARY = 64
COMPRESSED_SCALE_BYTES = 8
"""Bytes of scales and padding per vector of compressed attention: with 448 in FP8 and 64 in BF16, 584 bytes in all
(``deepseek_v4_memory_pool.py`` of SGLang 0.5.23)."""


def indexer_key_bytes(head_dim: int) -> int:
    """Return the bytes per token and layer of the indexer's key cache: FP8 with one FP32 scale per group of 128.

    vLLM, ``DeepseekV32IndexerCache``: 132 bytes at a width of 128, for any type of the main cache.
    """
    return head_dim + -(-head_dim // _INDEXER_SCALE_GROUP) * _INDEXER_SCALE_BYTES


class LatentAttention(FrozenModel):
    """Multi-head latent attention (MLA): one low-rank vector is cached as keys and values of all heads."""

    kv_lora_rank: PositiveInt
    """Width of the cached latent vector."""
    q_lora_rank: PositiveInt | None = None
    """Width of the low-rank query; null for a full-rank query projection."""
    qk_rope_head_dim: NonNegativeInt
    """Width of the rotary part of keys, cached once for all heads; not rotated in Kimi Linear, 0 in GLM-5.3-Flash."""
    qk_nope_head_dim: PositiveInt
    """Width per head of the part of queries and keys without rotation."""
    v_head_dim: PositiveInt
    """Width per head of the values."""

    @property
    def width(self) -> int:
        """Cached elements per token."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def packed_bytes(self) -> float:
        """Bytes per token in FlashMLA's FP8: one FP32 scale per 128 elements, and the rotary part in BF16, whose space
        is reserved even without one (656 bytes per token of GLM-5.3-Flash in a log of vLLM)."""
        rotary = self.qk_rope_head_dim or _PACKED_ROTARY
        return self.kv_lora_rank + 4.0 * self.kv_lora_rank / PACKED_LATENT_GROUP + 2.0 * rotary


class SparseIndexer(FrozenModel):
    """The indexer of sparse attention: chooses the tokens that a query attends to, and caches its own keys."""

    num_heads: PositiveInt
    """Heads of the indexer."""
    head_dim: PositiveInt
    """Width of its keys."""
    topk: PositiveInt
    """Most tokens that a query attends to; with compressed attention, most entries."""
    num_layers: PositiveInt | None = None
    """Layers with an indexer of their own; null: all that choose. Each other layer uses the choice of the last layer
    with an indexer (GLM-5.2)."""
    num_unsparse_layers: NonNegativeInt = 0
    """First layers, which attend to everything (MiniMax-M3)."""
    key_format: Literal["fp8", "bf16"] = "fp8"
    """Format of its cached keys, whatever the format of the KV cache: FP8 with scales (DeepSeek-V3.2), or BF16."""
    pooled_tokens: PositiveInt = 1
    """Tokens whose keys are pooled into one, with weights from a separate projection (4 in GLM-5.3-Flash); 1: none."""
    is_divided: bool = False
    """Whether ranks divide the heads as they do key-value heads (MiniMax-M3), or have all of them each."""
    is_mean_pooled: bool = False
    """Whether pooled keys are plain means, without weights (Qwen3.8-Flash-Next)."""

    @property
    def has_pool_weights(self) -> bool:
        """Whether tokens weight the keys that are pooled."""
        return self.pooled_tokens > 1 and not self.is_mean_pooled

    @property
    def num_pool_biases(self) -> int:
        """Vectors as wide as a key, one for each position among the tokens whose keys are pooled."""
        return self.pooled_tokens if self.has_pool_weights else 0

    def on_rank(self, num_ranks: int) -> SparseIndexer:
        """Return what one rank computes: its heads; the keys, which all heads share, are on every rank."""
        if not self.is_divided or num_ranks == 1:
            return self
        return self.model_copy(update={"num_heads": max(self.num_heads // num_ranks, 1)})

    @property
    def key_bytes(self) -> float:
        """Bytes of cached keys per token."""
        whole = 2.0 * self.head_dim if self.key_format == "bf16" else float(indexer_key_bytes(self.head_dim))
        return whole / self.pooled_tokens


class SlidingHeads(FrozenModel):
    """Heads of the layers with a window, if they differ from those of other layers."""

    num_attention_heads: PositiveInt
    """Query heads."""
    num_key_value_heads: PositiveInt
    """Key-value heads."""
    head_dim: PositiveInt
    """Width of a query-key head."""
    v_head_dim: PositiveInt | None = None
    """Width of a value head; null: as wide as keys."""

    @model_validator(mode="after")
    def _consistent(self) -> SlidingHeads:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(f"num_key_value_heads must divide num_attention_heads (={self.num_attention_heads})")
        return self


class CompressedAttention(FrozenModel):
    """One vector per token for keys and values of all heads: complete inside a window, compressed before it.

    DeepSeek-V4: compressed sparse attention (CSA) keeps one entry per few tokens, from which an indexer chooses;
    heavily compressed attention (HCA) keeps one per many tokens and attends to all.
    """

    q_lora_rank: PositiveInt
    """Width of the low-rank query."""
    qk_rope_head_dim: PositiveInt
    """Width of the vector's rotary part, at the end of ``head_dim``."""
    num_output_groups: PositiveInt
    """Groups of heads with separate output projections."""
    output_lora_rank: PositiveInt
    """Width of each group's low-rank output."""
    window: PositiveInt
    """Tokens kept complete."""
    indexed_ratio: PositiveInt
    """Tokens per entry in the layers whose indexer chooses; entries there overlap by this number of tokens."""
    ratios: tuple[NonNegativeInt, ...]
    """Tokens per entry in each layer; 0: only the window."""

    @property
    def entry_bytes(self) -> float:
        """Bytes per token or entry beyond those of ``head_dim``: BF16 for the rotary part, scales of the rest."""
        return float(self.qk_rope_head_dim + COMPRESSED_SCALE_BYTES)
