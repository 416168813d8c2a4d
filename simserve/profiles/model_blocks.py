"""The parts of a model's architecture: its attention layers by kind, experts, latent, sparse and linear attention.

Plain numbers; what follows from them is derived in `simserve.profiles.architecture`. Knows no seconds and no engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from simserve.profiles import model_shapes
from simserve.profiles.model_shapes import Gemm, indexer_key_bytes
from simserve.validation import FrozenModel

PACKED_LATENT_GROUP = 128
"""Elements of a latent that share a scale in FlashMLA's FP8 (vLLM 0.20.2 v1/kv_cache_interface.py, ``fp8_ds_mla``)."""
COMPRESSED_SCALE_BYTES = 8
"""Bytes of scales and padding beside a vector of compressed attention: 448 in FP8, 64 in BF16, 584 bytes in all
(``deepseek_v4_memory_pool.py`` of SGLang 0.5.23)."""
_COMPRESSOR_STATE_BYTES = 4


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


@dataclass(frozen=True, kw_only=True)
class AttentionLayers:
    """Layers whose matrices and caches are alike; those of them that see a window are counted apart.

    Attributes:
        num_layers: How many.
        hidden_size: Width of the layers.
        num_heads: Query heads.
        num_kv_heads: Key-value heads.
        head_dim: Width of a query-key head.
        v_head_dim: Width of a value head.
        num_sliding_layers: Layers of these that see a window (or a chunk) only.
        sliding_window: Tokens of it; None without such layers.
        has_qkv_bias: Whether query, key and value projections have biases.
        has_output_bias: Whether the output projection has one.
        has_gate: Whether the output is scaled by a gate as wide as the queries.
        has_head_gate: Whether it is scaled by a gate of one number a head.
        has_value_projection: Whether values have a projection of their own.
        has_sinks: Whether each query head has a learned sink.
        head_norm_width: Weights of the norms of queries and keys of a layer.
        mla: Latent attention; None: key-value heads.
        compressed: Compressed attention; None: every token is cached whole.
        ratio: Tokens an entry of compressed attention; 0: the window alone.
        indexer: The indexer that these layers run and whose keys they cache; None without.
        topk: Most tokens (entries) that a query attends to; None: all.
    """

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    num_sliding_layers: int = 0
    sliding_window: int | None = None
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    has_gate: bool = False
    has_head_gate: bool = False
    has_value_projection: bool = True
    has_sinks: bool = False
    head_norm_width: int = 0
    mla: LatentAttention | None = None
    compressed: CompressedAttention | None = None
    ratio: int = 1
    indexer: SparseIndexer | None = None
    topk: int | None = None

    @property
    def name(self) -> str:
        """What a reader calls these layers."""
        if self.compressed is not None:
            return "window" if not self.ratio else f"compressed {self.ratio}:1"
        if self.mla is not None:
            return "latent"
        if self.num_sliding_layers == self.num_layers:
            return "sliding"
        return "sparse" if self.topk is not None else "full"

    @property
    def has_plain_heads(self) -> bool:
        """Whether a query sees all keys of MHA, GQA or MQA, or a window of them, as the common kernels have it."""
        return self.mla is None and self.compressed is None and self.topk is None

    @property
    def is_overlapping(self) -> bool:
        """Whether entries of compressed attention overlap, so that two series are kept; those an indexer chooses of."""
        return self.compressed is not None and self.ratio == self.compressed.indexed_ratio

    def gemms(self, tensor_parallel_size: int = 1) -> list[Gemm]:
        """Return the projections of one layer on one rank; KV heads are replicated when ranks outnumber them.

        Raises:
            InputError: The heads do not divide over the ranks.
        """
        if self.compressed is not None:
            return self._compressed_gemms(self.compressed, tensor_parallel_size)
        if self.mla is not None:
            gemms = model_shapes.latent_attention_gemms(
                hidden_size=self.hidden_size,
                num_heads=self.num_heads,
                tensor_parallel_size=tensor_parallel_size,
                **self.mla.model_dump(),
            )
        else:
            gemms = model_shapes.attention_gemms(
                hidden_size=self.hidden_size,
                num_heads=self.num_heads,
                num_kv_heads=self.num_kv_heads,
                head_dim=self.head_dim,
                v_head_dim=self.v_head_dim,
                has_qkv_bias=self.has_qkv_bias,
                has_output_bias=self.has_output_bias,
                has_gate=self.has_gate,
                has_head_gate=self.has_head_gate,
                has_value_projection=self.has_value_projection,
                tensor_parallel_size=tensor_parallel_size,
            )
        if self.indexer is None:
            return gemms
        low_rank = None if self.mla is None else self.mla.q_lora_rank
        return gemms + model_shapes.indexer_gemms(
            hidden_size=self.hidden_size,
            query_width=low_rank or self.hidden_size,
            num_heads=self.indexer.num_heads,
            head_dim=self.indexer.head_dim,
            has_head_weights=self.mla is not None,
        )

    def _compressed_gemms(self, compressed: CompressedAttention, tensor_parallel_size: int) -> list[Gemm]:
        gemms = model_shapes.compressed_attention_gemms(
            hidden_size=self.hidden_size,
            num_heads=self.num_heads,
            head_dim=self.head_dim,
            q_lora_rank=compressed.q_lora_rank,
            num_output_groups=compressed.num_output_groups,
            output_lora_rank=compressed.output_lora_rank,
            tensor_parallel_size=tensor_parallel_size,
        )
        series = 2 if self.is_overlapping else 1
        if self.ratio:
            gemms += model_shapes.compressor_gemms(hidden_size=self.hidden_size, width=series * self.head_dim)
        if self.indexer is not None:
            heads, width = self.indexer.num_heads, self.indexer.head_dim
            gemms += [
                Gemm("index_q", heads * width, compressed.q_lora_rank, "replicated", part="indexer"),
                Gemm("index_weights", heads, self.hidden_size, "replicated"),
                *model_shapes.compressor_gemms(hidden_size=self.hidden_size, width=series * width, prefix="index_"),
            ]
        return gemms

    @property
    def num_small_parameters(self) -> int:
        """Parameters of a layer outside its matrices and the norms of its width: norms of heads and ranks, sinks."""
        count = self.head_norm_width + (self.num_heads if self.has_sinks else 0)
        if self.mla is not None:
            count += self.mla.kv_lora_rank + (self.mla.q_lora_rank or 0)
        if self.indexer is not None and self.compressed is None:
            count += 2 * self.indexer.head_dim
        if self.compressed is not None:
            count += self.compressed.q_lora_rank + self.head_dim
            series = 2 if self.is_overlapping else 1
            widths = [self.head_dim] if self.ratio else []
            widths += [self.indexer.head_dim] if self.indexer is not None else []
            # A bias of each position of the pooled tokens, and the norm of the entry.
            count += sum(self.ratio * series * width + width for width in widths)
        return count

    def kv_bytes_per_token(self, bytes_per_element: float, tensor_parallel_size: int = 1) -> float:
        """Return the KV bytes that one more token of context takes in one layer on one rank.

        ``heads * (head_dim + v_head_dim) * bytes``, key-value heads replicated when ranks outnumber them. MLA caches
        ``(kv_lora_rank + qk_rope_head_dim) * bytes`` on every rank, an indexer its key. Compressed attention caches
        an entry for ``ratio`` tokens; its window is among the states. A sliding layer counts like a full one.

        Args:
            bytes_per_element: Bytes of one cached element: 2 for FP16, 1 for FP8, 0.5 for INT4; compressed attention
                has a format of its own.
            tensor_parallel_size: Ranks; 1 gives the whole model.

        Raises:
            InputError: The key-value heads do not divide over the ranks.
        """
        index = self.indexer.key_bytes if self.indexer else 0
        if self.compressed is not None:
            return (self.entry_bytes(bytes_per_element) + index) / self.ratio if self.ratio else 0.0
        if self.mla is not None:
            return (self.mla.kv_lora_rank + self.mla.qk_rope_head_dim) * bytes_per_element + index
        heads = model_shapes.kv_heads_per_rank(self.num_kv_heads, tensor_parallel_size)
        return heads * (self.head_dim + self.v_head_dim) * bytes_per_element + index

    def entry_bytes(self, bytes_per_element: float, tensor_parallel_size: int = 1) -> float:
        """Return the bytes that attention reads of one token or entry in one layer on one rank, the indexer's left out.

        Args:
            bytes_per_element: Bytes of one cached element.
            tensor_parallel_size: Ranks.

        Raises:
            InputError: The key-value heads do not divide over the ranks.
        """
        if self.compressed is not None:
            return self.head_dim + self.compressed.entry_bytes
        index = self.indexer.key_bytes if self.indexer else 0
        return self.kv_bytes_per_token(bytes_per_element, tensor_parallel_size) - index

    @property
    def state_bytes(self) -> float:
        """Bytes that compressed attention keeps of a sequence in one layer on every rank, whatever its length.

        The window, and what a compressor has not yet pooled: vectors and weights in FP32 of as many tokens as an entry
        is made of (``deepseek_v4_compress_state.py`` of SGLang 0.5.23). 0 for other attention.
        """
        if self.compressed is None:
            return 0.0
        window = self.compressed.window * self.entry_bytes(0.0)
        if not self.ratio:
            return window
        series = 2 if self.is_overlapping else 1
        width = self.head_dim + (self.indexer.head_dim if self.indexer is not None else 0)
        return window + series * self.ratio * 2 * series * width * _COMPRESSOR_STATE_BYTES
