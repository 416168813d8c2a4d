"""Attention layers of a model that are alike: how many, their heads, what they see, what the KV cache keeps of them.

Plain numbers, derived from a profile by `simserve.profiles.architecture`; knows no seconds and no engine.
"""

from __future__ import annotations

from dataclasses import dataclass

from simserve.profiles import model_shapes
from simserve.profiles.model_blocks import CompressedAttention, LatentAttention, SparseIndexer
from simserve.profiles.model_shapes import Gemm

_COMPRESSOR_STATE_BYTES = 4


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
