"""The optional parts of a model's architecture: routed experts, latent attention, sparse-attention indexer.

Fields only; what follows from them is derived in `simserve.profiles.architecture`.
"""

from __future__ import annotations

from pydantic import NonNegativeInt, PositiveInt, model_validator

from simserve.validation import FrozenModel


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


class SparseIndexer(FrozenModel):
    """The indexer of sparse attention: picks the tokens a query attends to, and caches a key of its own."""

    num_heads: PositiveInt
    """Heads of the indexer."""
    head_dim: PositiveInt
    """Width of its keys."""
    topk: PositiveInt
    """Most tokens that a query attends to."""
