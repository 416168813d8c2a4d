"""The matrices of a model's layers, its attention layers in groups that are alike, and its experts.

Also their bytes, from plain integers. Kinds of attention are described in `simserve.profiles.attention_kinds`, layers
with a state instead of keys and values in `simserve.profiles.state_blocks`, what joins layers in
`simserve.profiles.residual_blocks`; figures of a whole model are derived in `simserve.profiles.model`. Knows no seconds
and no engine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal, get_args

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt, model_validator

from simserve.errors import InputError
from simserve.profiles.attention_kinds import CompressedAttention, LatentAttention, SparseIndexer
from simserve.validation import FrozenModel

Split = Literal["column", "row", "replicated"]
_Multiplied = Literal[
    "attention", "attention_output", "indexer", "linear_attention", "mlp", "shared_experts", "experts"
]
Part = Literal[_Multiplied, "ngram_table"]
"""Groups of matrices that a checkpoint keeps in one format: attention's projections from the hidden state (with MLA's
up-projections), its output projection, the indexer of sparse attention, linear attention, the MLP of dense layers,
shared experts, routed experts, and the table of n-grams, of which tokens look up rows. Embeddings, LM head, norms and
routers stay 16-bit in all but GGUF."""
PARTS: tuple[Part, ...] = get_args(_Multiplied)  # Those that tokens are multiplied by: all but the table.
_COMPRESSOR_STATE_BYTES = 4


@dataclass(frozen=True, slots=True)
class Gemm:
    """One weight matrix as one rank holds it: ``y[m, out_features] = x[m, in_features] W^T``."""

    name: str  # The projection, as engines fuse them: ``qkv``, ``output``, ``gate_up``, ``down`` ...
    out_features: int  # Width of the result on one rank.
    in_features: int  # Width of the input on one rank.
    split: Split
    """Dimension that tensor parallelism divides: ``column`` the result (no communication), ``row`` the input (the
    results are summed over the ranks), ``replicated`` none."""
    has_bias: bool = False  # Whether a bias of ``out_features`` is added.
    part: Part | None = None
    """Part of a checkpoint whose format it has; None: it stays 16-bit in quantised checkpoints, as routers and the
    head do."""

    @property
    def num_weights(self) -> int:
        """Elements of the matrix, without the bias."""
        return self.out_features * self.in_features

    @property
    def num_parameters(self) -> int:
        """Elements of the matrix and the bias."""
        return self.num_weights + (self.out_features if self.has_bias else 0)


def heads_per_rank(num_heads: int, tensor_parallel_size: int) -> int:
    """Return the query heads of one rank.

    Raises:
        InputError: The heads do not divide evenly; names the sizes that do.
    """
    if tensor_parallel_size < 1 or num_heads % tensor_parallel_size:
        sizes = [str(size) for size in range(1, min(num_heads, 64) + 1) if num_heads % size == 0]
        rule = f"must divide the {num_heads} attention heads of the model"
        remedy = "choose from " + ", ".join(sizes)
        raise InputError(rule, key="tensor_parallel_size", value=tensor_parallel_size, remedy=remedy)
    return num_heads // tensor_parallel_size


def kv_heads_per_rank(num_kv_heads: int, tensor_parallel_size: int) -> int:
    """Return the key-value heads of one rank: at least one, so additional ranks hold copies.

    Raises:
        InputError: Neither number divides the other, which vLLM, SGLang and TensorRT-LLM refuse.
    """
    if num_kv_heads % tensor_parallel_size == 0:
        return num_kv_heads // tensor_parallel_size
    if tensor_parallel_size % num_kv_heads == 0:
        return 1
    rule = f"must divide the {num_kv_heads} key-value heads of the model, or be a multiple of them"
    raise InputError(rule, key="tensor_parallel_size", value=tensor_parallel_size)


class MixtureOfExperts(FrozenModel):
    """Routed experts in place of the dense MLP, in some or all layers."""

    num_experts: PositiveInt
    """Routed experts per layer."""
    num_experts_per_tok: PositiveInt
    """Routed experts that each token visits; the mean if it may also choose experts that compute nothing."""
    num_zero_experts: NonNegativeInt = 0
    """Further experts that the router may choose and that compute nothing (LongCat-Flash)."""
    moe_intermediate_size: PositiveInt
    """Width of one routed expert."""
    num_shared_experts: NonNegativeInt = 0
    """Experts that every token visits."""
    shared_intermediate_size: NonNegativeInt = 0
    """Width of one shared expert."""
    first_dense_layers: NonNegativeInt = 0
    """First layers, which keep the dense MLP."""
    layer_step: PositiveInt = 1
    """Every ``layer_step``-th layer has experts, the others a dense MLP."""
    dense_layers: tuple[NonNegativeInt, ...] = ()
    """Further layers, counted from 0, that keep the dense MLP."""
    num_router_groups: PositiveInt = 1
    """Groups of neighbouring experts from which the router first chooses; 1: no groups."""
    num_router_groups_per_tok: PositiveInt = 1
    """Groups from which the experts of a token come."""
    routing_decay: NonNegativeFloat | None = None
    """How steeply the popularity of experts falls by rank: the last is e^-routing_decay as popular as the first; null:
    it was not counted, and falls with the power of `simserve.perf.moe.ROUTING_SKEW`."""
    routing_repeats: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """Share of its experts that a draft takes over from the tokens before it, beyond what popularity explains; 0: it
    was not counted, and drafts choose as tokens of other sequences do."""
    has_router_bias: bool = False
    """Whether the router adds one number per expert (a bias or a score correction)."""
    has_expert_bias: bool = False
    """Whether the matrices of the experts have biases."""
    has_shared_expert_gate: bool = False
    """Whether a gate with ``hidden_size`` weights scales the shared expert."""
    latent_size: PositiveInt | None = None
    """Width to which hidden states are projected for the routed experts (Nemotron-3 Super); null: no projection."""
    image_intermediate_size: PositiveInt | None = None
    """Width of as many further experts, which only tokens of images visit, with a router of their own (ERNIE 4.5 VL);
    null: none. Tokens of images are counted as if they visited the experts of text, which are wider."""

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
    def num_choices(self) -> int:
        """Experts from which the router chooses."""
        return self.num_experts + self.num_zero_experts

    @property
    def router_groups(self) -> tuple[int, int]:
        """Number of expert groups, and number of groups from which the experts of a token come."""
        return self.num_router_groups, self.num_router_groups_per_tok


@dataclass(frozen=True, kw_only=True)
class AttentionLayers:
    """Layers with identical matrices and caches; those of them with a window are counted separately."""

    num_layers: int  # Number of layers.
    hidden_size: int  # Width of the layers.
    num_heads: int  # Query heads.
    num_kv_heads: int  # Key-value heads.
    head_dim: int  # Width of a query-key head.
    v_head_dim: int  # Width of a value head.
    num_sliding_layers: int = 0  # Layers among them that see only a window (or a chunk).
    sliding_window: int | None = None  # Tokens of the window; None without such layers.
    has_qkv_bias: bool = False  # Whether query, key and value projections have biases.
    has_output_bias: bool = False  # Whether the output projection has one.
    has_gate: bool = False  # Whether a gate scales the output: as wide as the queries, with MLA as the values.
    has_head_gate: bool = False  # Whether a gate of one number per head scales it.
    has_value_projection: bool = True  # Whether values have a projection of their own.
    has_sinks: bool = False  # Whether each query head has a learned sink.
    shares_keys: bool = False  # Whether they attend to keys and values computed and cached by other layers.
    head_norm_width: int = 0  # Weights of the norms of queries and keys in a layer.
    query_rank: int | None = None  # Width of a low-rank query with a norm; None: full rank, or in ``mla``.
    mla: LatentAttention | None = None  # Latent attention; None: key-value heads.
    compressed: CompressedAttention | None = None  # Compressed attention; None: every token is cached whole.
    ratio: int = 1  # Tokens per entry of compressed attention; 0: only the window.
    indexer: SparseIndexer | None = None  # The indexer that these layers run and whose keys they cache; None without.
    topk: int | None = None  # Most tokens (or entries) that a query attends to; None: all.

    @property
    def name(self) -> str:
        """Name of these layers for readers."""
        if self.compressed is not None:
            return "window" if not self.ratio else f"compressed {self.ratio}:1"
        if self.mla is not None:
            return "latent"
        if self.num_sliding_layers == self.num_layers:
            return "sliding"
        return "sparse" if self.topk is not None else "full"

    @property
    def has_plain_heads(self) -> bool:
        """Whether a query sees all keys of MHA, GQA or MQA, or a window of them, as common kernels assume."""
        return self.mla is None and self.compressed is None and self.topk is None

    @property
    def is_overlapping(self) -> bool:
        """Whether entries of compressed attention overlap and two series are kept: if an indexer chooses them."""
        return self.compressed is not None and self.ratio == self.compressed.indexed_ratio

    def by_choice(self, indexer: SparseIndexer) -> tuple[AttentionLayers, ...]:
        """Return layers by what they attend to: those that choose, those that use that choice, those that see all."""
        sparse = self.num_layers - indexer.num_unsparse_layers
        own = sparse if indexer.num_layers is None else indexer.num_layers
        groups = (
            replace(self, num_layers=own, indexer=indexer, topk=indexer.topk),
            replace(self, num_layers=sparse - own, topk=indexer.topk),
            replace(self, num_layers=indexer.num_unsparse_layers),
        )
        return tuple(group for group in groups if group.num_layers)

    def by_ratio(self, compressed: CompressedAttention, indexer: SparseIndexer | None) -> tuple[AttentionLayers, ...]:
        """Return layers by the number of tokens per entry of compressed attention."""
        groups = []
        for ratio in sorted(set(compressed.ratios)):
            own = indexer if ratio == compressed.indexed_ratio else None
            topk, count = None if own is None else own.topk, compressed.ratios.count(ratio)
            groups.append(replace(self, num_layers=count, ratio=ratio, indexer=own, topk=topk, has_sinks=True))
        return tuple(groups)

    def gemms(self, tensor_parallel_size: int = 1) -> list[Gemm]:
        """Return the projections of one layer on one rank; KV heads are replicated when ranks outnumber them.

        Raises:
            InputError: The heads do not divide by the ranks.
        """
        if self.compressed is not None:
            return self._compressed_gemms(self.compressed, tensor_parallel_size)
        if self.mla is not None:
            gemms = self._latent_gemms(self.mla, tensor_parallel_size)
        else:
            gemms = self._head_gemms(tensor_parallel_size)
        return (
            gemms if self.indexer is None else gemms + self._indexer_gemms(self.indexer.on_rank(tensor_parallel_size))
        )

    def _head_gemms(self, tensor_parallel_size: int) -> list[Gemm]:
        """Return the projections of an MHA, GQA or MQA layer on one rank: fused ``qkv`` and ``output``.

        A gate as wide as the queries is projected together with them, one of a number per head on its own. With a
        low-rank query, ``qkv`` gives its first half with keys and values on every rank, and ``q_b`` the heads
        (``Step3TextAttention`` of vLLM's step3_text.py). Without a projection, values are the keys before their norm.
        """
        query_heads = heads_per_rank(self.num_heads, tensor_parallel_size)
        kv_heads = kv_heads_per_rank(self.num_kv_heads, tensor_parallel_size)
        width, values = query_heads * self.head_dim, query_heads * self.v_head_dim
        if self.query_rank is not None:
            shared = self.query_rank + self.num_kv_heads * (self.head_dim + self.v_head_dim)
            inputs = [
                Gemm("qkv", shared, self.hidden_size, "replicated", self.has_qkv_bias, part="attention"),
                Gemm("q_b", width, self.query_rank, "column", part="attention"),
            ]
        else:
            keys = self.head_dim + (self.v_head_dim if self.has_value_projection else 0)
            projected = (2 if self.has_gate else 1) * width + (0 if self.shares_keys else kv_heads * keys)
            inputs = [Gemm("qkv", projected, self.hidden_size, "column", self.has_qkv_bias, part="attention")]
            inputs += [Gemm("head_gate", query_heads, self.hidden_size, "column")] if self.has_head_gate else []
        output = Gemm("output", self.hidden_size, values, "row", self.has_output_bias, part="attention_output")
        return [*inputs, output]

    def _latent_gemms(self, mla: LatentAttention, tensor_parallel_size: int) -> list[Gemm]:
        """Return the projections of an MLA layer on one rank (DeepSeek-V2, arXiv 2405.04434, section 2.1).

        The down-projections ``q_a`` and ``kv_a`` are replicated. ``kv_b`` is listed as one matrix; decode kernels
        multiply by its two halves instead (absorption), which reads the same weights. A gate as wide as the values
        scales the output in Kimi-K3, one number per head in Ling 3.
        """
        heads = heads_per_rank(self.num_heads, tensor_parallel_size)
        query_width, values = heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim), heads * mla.v_head_dim
        if mla.q_lora_rank is None:
            query = [Gemm("q", query_width, self.hidden_size, "column", part="attention")]
        else:
            query = [
                Gemm("q_a", mla.q_lora_rank, self.hidden_size, "replicated", part="attention"),
                Gemm("q_b", query_width, mla.q_lora_rank, "column", part="attention"),
            ]
        keys = heads * (mla.qk_nope_head_dim + mla.v_head_dim)
        return [
            *query,
            Gemm("kv_a", mla.width, self.hidden_size, "replicated", part="attention"),
            Gemm("kv_b", keys, mla.kv_lora_rank, "column", part="attention"),
            *([Gemm("head_gate", heads, self.hidden_size, "column")] if self.has_head_gate else []),
            *([Gemm("latent_gate", values, self.hidden_size, "column", part="attention")] if self.has_gate else []),
            Gemm("output", self.hidden_size, values, "row", part="attention_output"),
        ]

    def _indexer_gemms(self, indexer: SparseIndexer) -> list[Gemm]:
        """Return the projections of a sparse-attention indexer on one rank: all of it, unless its heads are divided.

        All heads share one key. Tokens weight the heads' scores (not in MiniMax-M3), and the keys that are pooled.
        """
        low_rank = None if self.mla is None else self.mla.q_lora_rank
        weights = indexer.num_heads if self.mla is not None else 0
        pools = indexer.head_dim if indexer.has_pool_weights else 0
        return [
            Gemm(
                "index_q",
                indexer.num_heads * indexer.head_dim,
                low_rank or self.hidden_size,
                "replicated",
                part="indexer",
            ),
            Gemm("index_k", indexer.head_dim, self.hidden_size, "replicated", part="indexer"),
            *([Gemm("index_weights", weights, self.hidden_size, "replicated")] if weights else []),
            *([Gemm("index_pools", pools, self.hidden_size, "replicated")] if pools else []),
        ]

    def _compressed_gemms(self, compressed: CompressedAttention, tensor_parallel_size: int) -> list[Gemm]:
        """Return the projections of a layer of DeepSeek-V4's attention on one rank.

        Queries are low-rank, one vector serves as key and value of all heads (replicated), and the output is projected
        per group of heads, then to the width of the layer (``deepseek_v4.py`` of SGLang 0.5.23). A compressor pools
        vectors with their weights, in 16 bit on every rank.
        """
        heads, rank = heads_per_rank(self.num_heads, tensor_parallel_size), compressed.q_lora_rank
        width = compressed.num_output_groups * compressed.output_lora_rank // tensor_parallel_size
        per_group = self.num_heads // compressed.num_output_groups
        gemms = [
            Gemm("q_a", rank, self.hidden_size, "replicated", part="attention"),
            Gemm("kv_a", self.head_dim, self.hidden_size, "replicated", part="attention"),
            Gemm("q_b", heads * self.head_dim, rank, "column", part="attention"),
            # The groups' matrices, each over its own heads: same weights and FLOP as one of their combined width.
            Gemm("output_a", width, per_group * self.head_dim, "column", part="attention_output"),
            Gemm("output", self.hidden_size, width, "row", part="attention_output"),
        ]
        pooled = 2 * (2 if self.is_overlapping else 1)
        if self.ratio:
            gemms.append(Gemm("compressor", pooled * self.head_dim, self.hidden_size, "replicated"))
        if self.indexer is not None:
            heads, key = self.indexer.num_heads, self.indexer.head_dim
            gemms += [
                Gemm("index_q", heads * key, rank, "replicated", part="indexer"),
                Gemm("index_weights", heads, self.hidden_size, "replicated"),
                Gemm("index_compressor", pooled * key, self.hidden_size, "replicated"),
            ]
        return gemms

    @property
    def num_small_parameters(self) -> int:
        """Parameters per layer outside its matrices and full-width norms: norms of heads and ranks, sinks."""
        count = self.head_norm_width + (self.num_heads if self.has_sinks else 0) + (self.query_rank or 0)
        if self.mla is not None:
            count += self.mla.kv_lora_rank + (self.mla.q_lora_rank or 0)
        if self.indexer is not None and self.compressed is None:
            count += (2 + self.indexer.num_pool_biases) * self.indexer.head_dim
        if self.compressed is not None:
            count += self.compressed.q_lora_rank + self.head_dim
            series = 2 if self.is_overlapping else 1
            widths = [self.head_dim] if self.ratio else []
            widths += [self.indexer.head_dim] if self.indexer is not None else []
            # A bias per position of the pooled tokens, and the norm of the entry.
            count += sum(self.ratio * series * width + width for width in widths)
        return count

    def kv_bytes_per_token(self, bytes_per_element: float, tensor_parallel_size: int = 1) -> float:
        """Return the KV bytes per additional token of context in one layer on one rank.

        ``heads * (head_dim + v_head_dim) * bytes``, with key-value heads replicated when ranks outnumber them. MLA
        caches ``(kv_lora_rank + qk_rope_head_dim) * bytes`` on every rank, an indexer its key. Compressed attention
        caches one entry per ``ratio`` tokens; its window is among the states. A sliding layer counts like a full one; a
        layer that shares another's keys takes nothing.

        Args:
            bytes_per_element: Bytes of one cached element: 2 for FP16, 1 for FP8, 0.5 for INT4; compressed attention
                has a format of its own.
            tensor_parallel_size: Ranks; 1 gives the whole model.

        Raises:
            InputError: The key-value heads do not divide by the ranks.
        """
        return 0.0 if self.shares_keys else self.read_bytes(bytes_per_element, tensor_parallel_size)

    def read_bytes(self, bytes_per_element: float, tensor_parallel_size: int = 1) -> float:
        """Return the KV bytes that a query reads per additional token of context; arguments as `kv_bytes_per_token`."""
        index = self.indexer.key_bytes if self.indexer else 0
        if self.compressed is not None:
            return (self.entry_bytes(bytes_per_element) + index) / self.ratio if self.ratio else 0.0
        if self.mla is not None:
            return (self.mla.kv_lora_rank + self.mla.qk_rope_head_dim) * bytes_per_element + index
        heads = kv_heads_per_rank(self.num_kv_heads, tensor_parallel_size)
        return heads * (self.head_dim + self.v_head_dim) * bytes_per_element + index

    def entry_bytes(self, bytes_per_element: float, tensor_parallel_size: int = 1) -> float:
        """Return the bytes per token or entry that attention reads in one layer on one rank, without the indexer's.

        Args:
            bytes_per_element: Bytes of one cached element.

        Raises:
            InputError: The key-value heads do not divide by the ranks.
        """
        if self.compressed is not None:
            return self.head_dim + self.compressed.entry_bytes
        index = self.indexer.key_bytes if self.indexer else 0
        return self.read_bytes(bytes_per_element, tensor_parallel_size) - index

    @property
    def state_bytes(self) -> float:
        """Bytes of compressed attention per sequence in one layer on every rank, independent of its length.

        The window, and what a compressor has not yet pooled: vectors and weights in FP32 of as many tokens as make one
            entry (``deepseek_v4_compress_state.py`` of SGLang 0.5.23). 0 for other attention.
        """
        if self.compressed is None:
            return 0.0
        window = self.compressed.window * self.entry_bytes(0.0)
        if not self.ratio:
            return window
        series = 2 if self.is_overlapping else 1
        width = self.head_dim + (self.indexer.head_dim if self.indexer is not None else 0)
        return window + series * self.ratio * 2 * series * width * _COMPRESSOR_STATE_BYTES


class SharedKeys(FrozenModel):
    """Last layers, which attend to keys and values of the last earlier layer of their kind (Gemma 4 E).

    They project only queries and cache nothing (``Gemma4Attention`` of vLLM, ``kv_sharing_target_layer_name``).
    """

    num_layers: PositiveInt
    """Number of such layers."""
    num_sliding_layers: NonNegativeInt
    """Number of them with a window."""
    intermediate_size: PositiveInt | None = None
    """Width of their dense MLP (twice that of the others in Gemma 4 E2B); null: as in other layers."""

    def check(self, num_hidden_layers: int, num_sliding_layers: int, has_sliding_heads: bool) -> None:
        """Raise ValueError if the model lacks layers of either kind that keep keys."""
        if not has_sliding_heads:
            raise ValueError("shared_keys needs sliding_heads; others have no formula")
        full, windowed = num_hidden_layers - num_sliding_layers, num_sliding_layers
        if self.num_sliding_layers >= windowed or self.num_layers - self.num_sliding_layers >= full:
            raise ValueError("shared_keys must leave layers of both kinds that keep keys and values")

    def parted(self, groups: tuple[AttentionLayers, ...]) -> tuple[AttentionLayers, ...]:
        """Return layers without and with a window, first those that keep keys."""
        parted = []
        for group in groups:
            count = self.num_sliding_layers if group.num_sliding_layers else self.num_layers - self.num_sliding_layers
            for layers, shares in ((group.num_layers - count, False), (count, True)):
                sliding = layers if group.num_sliding_layers else 0
                parted.append(replace(group, num_layers=layers, num_sliding_layers=sliding, shares_keys=shares))
        return tuple(each for each in parted if each.num_layers)

    def mlp_width(self, layer: int, num_hidden_layers: int) -> int | None:
        """Return the width of the MLP of a layer, counted from 0; None: the model's."""
        return self.intermediate_size if layer >= num_hidden_layers - self.num_layers else None
