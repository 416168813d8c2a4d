"""The optional parts of a model's architecture: experts, latent, sparse and linear attention.

Fields only; what follows from them is derived in `simserve.profiles.architecture`.
"""

from __future__ import annotations

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt, model_validator

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
