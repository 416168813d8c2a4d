"""The optional parts of a model's architecture: experts, latent, sparse, compressed and linear attention, Mamba-2.

Fields only; what follows from them is derived in `simserve.profiles.architecture`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from simserve.profiles.model_shapes import indexer_key_bytes
from simserve.validation import FrozenModel

PACKED_LATENT_GROUP = 128
"""Elements of a latent that share a scale in FlashMLA's FP8 (vLLM 0.20.2 v1/kv_cache_interface.py, ``fp8_ds_mla``)."""

COMPRESSED_SCALE_BYTES = 8
"""Bytes of scales and padding beside a vector of compressed attention: 448 in FP8, 64 in BF16, 584 bytes in all
(``deepseek_v4_memory_pool.py`` of SGLang 0.5.23)."""


class MixtureOfExperts(FrozenModel):
    """Routed experts in place of the dense MLP, in some or all layers."""

    num_experts: PositiveInt
    """Routed experts a layer."""
    num_experts_per_tok: PositiveInt
    """Routed experts that each token visits."""
    moe_intermediate_size: PositiveInt
    """Width of one routed expert."""
    num_shared_experts: NonNegativeInt = 0
    """Experts that every token visits."""
    shared_intermediate_size: NonNegativeInt = 0
    """Width of one shared expert."""
    first_dense_layers: NonNegativeInt = 0
    """Layers at the bottom that keep the dense MLP."""
    layer_step: PositiveInt = 1
    """Every ``layer_step``-th layer has experts, the others a dense MLP."""
    dense_layers: tuple[NonNegativeInt, ...] = ()
    """Further layers, counted from 0, that keep the dense MLP."""
    num_router_groups: PositiveInt = 1
    """Groups of neighbouring experts that the router chooses among first; 1: it does not."""
    num_router_groups_per_tok: PositiveInt = 1
    """Groups that the experts of a token come from."""
    has_router_bias: bool = False
    """Whether the router adds a number per expert (a bias or a score correction)."""
    has_expert_bias: bool = False
    """Whether the matrices of the experts have biases."""
    has_shared_expert_gate: bool = False
    """Whether a gate of ``hidden_size`` weights scales the shared expert."""
    latent_size: PositiveInt | None = None
    """Width to which hidden states are projected for the routed experts (Nemotron-3 Super); null: not at all."""

    @model_validator(mode="after")
    def _consistent(self) -> MixtureOfExperts:
        if self.num_experts_per_tok > self.num_experts:
            raise ValueError(f"num_experts_per_tok must not exceed num_experts (={self.num_experts})")
        if bool(self.num_shared_experts) != bool(self.shared_intermediate_size):
            raise ValueError("num_shared_experts and shared_intermediate_size go together")
        if self.num_experts % self.num_router_groups:
            raise ValueError(f"num_router_groups must divide num_experts (={self.num_experts})")
        if self.num_router_groups_per_tok > self.num_router_groups:
            raise ValueError(f"num_router_groups_per_tok must not exceed num_router_groups (={self.num_router_groups})")
        return self

    @property
    def router_groups(self) -> tuple[int, int]:
        """Groups of experts, and how many of them the experts of a token come from."""
        return self.num_router_groups, self.num_router_groups_per_tok


class LatentAttention(FrozenModel):
    """Multi-head latent attention (MLA): keys and values cached as one low-rank vector for all heads."""

    kv_lora_rank: PositiveInt
    """Width of the cached latent vector."""
    q_lora_rank: PositiveInt | None = None
    """Width of the low-rank query; null for a full-rank query projection."""
    qk_rope_head_dim: PositiveInt
    """Width of the rotary part of keys, cached once for all heads."""
    qk_nope_head_dim: PositiveInt
    """Width a head of the part of queries and keys without rotation."""
    v_head_dim: PositiveInt
    """Width a head of the values."""

    @property
    def width(self) -> int:
        """Elements that are cached of a token."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def packed_bytes(self) -> float:
        """Bytes of a token in FlashMLA's FP8: an FP32 scale for 128 elements, the rotary part in BF16."""
        return self.kv_lora_rank + 4.0 * self.kv_lora_rank / PACKED_LATENT_GROUP + 2.0 * self.qk_rope_head_dim


class SparseIndexer(FrozenModel):
    """The indexer of sparse attention: picks the tokens a query attends to, and caches a key of its own."""

    num_heads: PositiveInt
    """Heads of the indexer."""
    head_dim: PositiveInt
    """Width of its keys."""
    topk: PositiveInt
    """Most tokens that a query attends to; with compressed attention, most entries."""
    num_layers: PositiveInt | None = None
    """Layers with an indexer of their own; null: all that choose. The others take the choice of the last that has one
    (GLM-5.2)."""
    num_unsparse_layers: NonNegativeInt = 0
    """Layers at the bottom that attend to everything (MiniMax-M3)."""
    key_format: Literal["fp8", "bf16"] = "fp8"
    """How its keys are cached, whatever the format of the KV cache: FP8 with scales (DeepSeek-V3.2), or BF16."""

    @property
    def key_bytes(self) -> float:
        """Bytes of a key in the cache."""
        return 2.0 * self.head_dim if self.key_format == "bf16" else float(indexer_key_bytes(self.head_dim))


class SlidingHeads(FrozenModel):
    """Heads of the layers of a window, where they are not those of the other layers."""

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
    """One vector a token for keys and values of all heads: whole in a window, compressed for what lies before it.

    DeepSeek-V4: compressed sparse attention (CSA) keeps an entry for a few tokens, of which an indexer chooses, heavily
    compressed attention (HCA) an entry for many, all attended to.
    """

    q_lora_rank: PositiveInt
    """Width of the low-rank query."""
    qk_rope_head_dim: PositiveInt
    """Width of the rotary part of the vector, the end of ``head_dim``."""
    num_output_groups: PositiveInt
    """Groups of heads whose outputs are projected apart."""
    output_lora_rank: PositiveInt
    """Width of the low-rank output of a group."""
    window: PositiveInt
    """Tokens kept whole."""
    indexed_ratio: PositiveInt
    """Tokens an entry in the layers whose indexer chooses; entries there overlap by as many tokens."""
    ratios: tuple[NonNegativeInt, ...]
    """Tokens an entry in each layer; 0: the window alone."""

    @property
    def entry_bytes(self) -> float:
        """Bytes of a token or an entry beyond those of ``head_dim``: BF16 for the rotary part, scales of the rest."""
        return float(self.qk_rope_head_dim + COMPRESSED_SCALE_BYTES)


class Mamba2(FrozenModel):
    """Layers of a selective state space (Mamba-2, arXiv 2405.21060): a state of fixed size a sequence."""

    num_heads: PositiveInt
    """Heads, each with a state of its own."""
    head_dim: PositiveInt
    """Width of a head."""
    state_size: PositiveInt
    """Elements of the state for each channel."""
    num_groups: PositiveInt = 1
    """Groups of heads that share the input and output matrices of their states."""
    conv_kernel: PositiveInt = 4
    """Tokens that the convolution sees."""
    has_conv_bias: bool = True
    """Whether the convolution has biases."""
    chunk_size: PositiveInt = 128
    """Tokens of a prompt that the scan takes at once."""
    state_element_bytes: PositiveFloat = 4.0
    """Bytes of an element of the state."""

    @model_validator(mode="after")
    def _consistent(self) -> Mamba2:
        if self.num_heads % self.num_groups:
            raise ValueError(f"num_groups must divide num_heads (={self.num_heads})")
        return self

    @property
    def inner_width(self) -> int:
        """Width of all heads together."""
        return self.num_heads * self.head_dim

    @property
    def mixed_width(self) -> int:
        """Width of what passes the convolution: the heads, and the matrices of the groups."""
        return self.inner_width + 2 * self.num_groups * self.state_size

    @property
    def state_elements(self) -> int:
        """Elements of the state of one sequence in one layer."""
        return self.inner_width * self.state_size

    @property
    def num_small_parameters(self) -> int:
        """Parameters outside the matrices: convolution, decay, time step and skip a head, the gated norm."""
        return self.mixed_width * (self.conv_kernel + self.has_conv_bias) + 3 * self.num_heads + self.inner_width


class LinearAttention(FrozenModel):
    """Layers of a gated delta rule (Gated DeltaNet): a state of fixed size a sequence instead of keys and values."""

    num_layers: PositiveInt
    """Layers of this kind; the others keep keys and values."""
    num_key_heads: PositiveInt
    """Heads of queries and keys."""
    num_value_heads: PositiveInt
    """Heads of values, outputs and states; a multiple of the key heads."""
    key_head_dim: PositiveInt
    """Width of a query and key head."""
    value_head_dim: PositiveInt
    """Width of a value head."""
    conv_kernel: PositiveInt = 4
    """Tokens that the convolution over queries, keys and values sees."""
    state_element_bytes: PositiveFloat = 4.0
    """Bytes of an element of the state: FP32, as SGLang and the configuration of Qwen3.5 have it."""

    @model_validator(mode="after")
    def _consistent(self) -> LinearAttention:
        if self.num_value_heads % self.num_key_heads:
            raise ValueError(f"num_key_heads must divide num_value_heads (={self.num_value_heads})")
        return self

    @property
    def mixed_width(self) -> int:
        """Width of queries, keys and values of all heads together, which pass the convolution."""
        return 2 * self.num_key_heads * self.key_head_dim + self.num_value_heads * self.value_head_dim

    @property
    def state_elements(self) -> int:
        """Elements of the state of one sequence in one layer: a matrix a value head."""
        return self.num_value_heads * self.key_head_dim * self.value_head_dim

    @property
    def num_small_parameters(self) -> int:
        """Parameters of a layer outside its matrices: the convolution, decay and time step a head, the gated norm."""
        return self.mixed_width * self.conv_kernel + 2 * self.num_value_heads + self.value_head_dim
