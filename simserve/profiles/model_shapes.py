"""Matrix shapes and byte counts of transformer layers, from plain integers. Knows no profile or hardware."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from simserve.errors import InputError
from simserve.profiles.checkpoint import Part

Split = Literal["column", "row", "replicated"]

_MLP_PREFIXES: Mapping[Part, str] = {"mlp": "", "shared_experts": "shared_", "experts": "expert_"}
_INDEXER_SCALE_GROUP = 128
_INDEXER_SCALE_BYTES = 4


@dataclass(frozen=True, slots=True)
class Gemm:
    """One weight matrix as one rank holds it: ``y[m, out_features] = x[m, in_features] W^T``.

    Attributes:
        name: Which projection, as engines fuse them: ``qkv``, ``output``, ``gate_up``, ``down`` ...
        out_features: Width of the result on one rank.
        in_features: Width of the input on one rank.
        split: Which dimension tensor parallelism divides: ``column`` the result (no communication), ``row``
            the input (the results are summed over the ranks), ``replicated`` none.
        has_bias: Whether a bias of ``out_features`` is added.
        part: Which part of a checkpoint it belongs to, whose format it has; None: it stays 16-bit in quantised
            checkpoints, as routers and the head do.
    """

    name: str
    out_features: int
    in_features: int
    split: Split
    has_bias: bool = False
    part: Part | None = None

    @property
    def num_weights(self) -> int:
        """Elements of the matrix, without the bias."""
        return self.out_features * self.in_features

    @property
    def num_parameters(self) -> int:
        """Elements of the matrix and of the bias."""
        return self.num_weights + (self.out_features if self.has_bias else 0)


def heads_per_rank(num_heads: int, tensor_parallel_size: int) -> int:
    """Return the query heads of one rank.

    Raises:
        InputError: The heads do not divide evenly; names the sizes that do.
    """
    if tensor_parallel_size < 1 or num_heads % tensor_parallel_size:
        sizes = [str(size) for size in range(1, min(num_heads, 64) + 1) if num_heads % size == 0]
        raise InputError(
            f"must divide the {num_heads} attention heads of the model",
            key="tensor_parallel_size",
            value=tensor_parallel_size,
            remedy="choose from " + ", ".join(sizes),
        )
    return num_heads // tensor_parallel_size


def kv_heads_per_rank(num_kv_heads: int, tensor_parallel_size: int) -> int:
    """Return the key-value heads of one rank: at least one, so ranks beyond their number hold copies.

    Raises:
        InputError: Neither number divides the other, which vLLM, SGLang and TensorRT-LLM refuse.
    """
    if num_kv_heads % tensor_parallel_size == 0:
        return num_kv_heads // tensor_parallel_size
    if tensor_parallel_size % num_kv_heads == 0:
        return 1
    raise InputError(
        f"must divide the {num_kv_heads} key-value heads of the model, or be a multiple of them",
        key="tensor_parallel_size",
        value=tensor_parallel_size,
    )


def attention_gemms(
    *,
    hidden_size: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    v_head_dim: int | None = None,
    has_qkv_bias: bool = False,
    has_output_bias: bool = False,
    has_gate: bool = False,
    has_head_gate: bool = False,
    has_value_projection: bool = True,
    tensor_parallel_size: int = 1,
) -> list[Gemm]:
    """Return the projections of one MHA, GQA or MQA layer on one rank: fused ``qkv`` and ``output``.

    Args:
        hidden_size: Width of the layer.
        num_heads: Query heads.
        num_kv_heads: Key-value heads.
        head_dim: Width of a query-key head.
        v_head_dim: Width of a value head; None: as wide as keys.
        has_qkv_bias: Whether queries, keys and values have biases.
        has_output_bias: Whether the output projection has one.
        has_gate: Whether the queries are projected together with a gate of their width.
        has_head_gate: Whether a gate of one number a head has a projection of its own.
        has_value_projection: Whether values have a projection, instead of being the keys before their norm.
        tensor_parallel_size: Ranks.
    """
    query_heads = heads_per_rank(num_heads, tensor_parallel_size)
    kv_heads = kv_heads_per_rank(num_kv_heads, tensor_parallel_size)
    value_width = head_dim if v_head_dim is None else v_head_dim
    width = query_heads * head_dim
    projected = (2 if has_gate else 1) * width
    projected += kv_heads * (head_dim + (value_width if has_value_projection else 0))
    return [
        Gemm("qkv", projected, hidden_size, "column", has_qkv_bias, part="attention"),
        *([Gemm("head_gate", query_heads, hidden_size, "column")] if has_head_gate else []),
        Gemm("output", hidden_size, query_heads * value_width, "row", has_output_bias, part="attention_output"),
    ]


def linear_attention_gemms(
    *, hidden_size: int, mixed_width: int, num_value_heads: int, value_head_dim: int, tensor_parallel_size: int = 1
) -> list[Gemm]:
    """Return the projections of one Gated DeltaNet layer on one rank (``Qwen3NextGatedDeltaNet`` of transformers).

    ``linear_qkvz`` gives queries, keys, values and the gate of the output, ``linear_ba`` two numbers a value head,
    which low-bit checkpoints keep in 16 bit.

    Args:
        hidden_size: Width of the layer.
        mixed_width: Width of queries, keys and values of all heads together.
        num_value_heads: Heads of values.
        value_head_dim: Width of one of them.
        tensor_parallel_size: Ranks.
    """
    heads = heads_per_rank(num_value_heads, tensor_parallel_size)
    width = heads * value_head_dim
    return [
        Gemm(
            "linear_qkvz",
            mixed_width // tensor_parallel_size + width,
            hidden_size,
            "column",
            part="linear_attention",
        ),
        Gemm("linear_ba", 2 * heads, hidden_size, "column"),
        Gemm("linear_output", hidden_size, width, "row", part="linear_attention"),
    ]


def mamba_gemms(
    *, hidden_size: int, inner_width: int, num_heads: int, group_width: int, tensor_parallel_size: int = 1
) -> list[Gemm]:
    """Return the projections of one Mamba-2 layer on one rank (``NemotronHMamba2Mixer`` of transformers).

    ``mamba_in`` gives the gate, the heads, the matrices of the groups and a time step a head. A rank holds a group of
    its own at least (vLLM and SGLang copy groups that ranks outnumber); small widths are rounded up.

    Args:
        hidden_size: Width of the layer.
        inner_width: Width of all heads together.
        num_heads: Heads.
        group_width: Width of both matrices of all groups together.
        tensor_parallel_size: Ranks.
    """
    heads = heads_per_rank(num_heads, tensor_parallel_size)
    width = inner_width // tensor_parallel_size
    mixed = 2 * width + -(-group_width // tensor_parallel_size) + heads
    return [
        Gemm("mamba_in", mixed, hidden_size, "column", part="linear_attention"),
        Gemm("mamba_out", hidden_size, width, "row", part="linear_attention"),
    ]


def compressed_attention_gemms(
    *,
    hidden_size: int,
    num_heads: int,
    head_dim: int,
    q_lora_rank: int,
    num_output_groups: int,
    output_lora_rank: int,
    tensor_parallel_size: int = 1,
) -> list[Gemm]:
    """Return the projections of one layer of DeepSeek-V4's attention on one rank, those of its compressor left out.

    Queries are low-rank, one vector serves as key and value of all heads (replicated), and the output is projected by
    groups of heads, then to the width of the layer (``deepseek_v4.py`` of SGLang 0.5.23).
    """
    heads = heads_per_rank(num_heads, tensor_parallel_size)
    width, per_group = num_output_groups * output_lora_rank // tensor_parallel_size, num_heads // num_output_groups
    return [
        Gemm("q_a", q_lora_rank, hidden_size, "replicated", part="attention"),
        Gemm("kv_a", head_dim, hidden_size, "replicated", part="attention"),
        Gemm("q_b", heads * head_dim, q_lora_rank, "column", part="attention"),
        # The groups' matrices, each over its own heads: as many weights and FLOP as one of their width together.
        Gemm("output_a", width, per_group * head_dim, "column", part="attention_output"),
        Gemm("output", hidden_size, width, "row", part="attention_output"),
    ]


def compressor_gemms(*, hidden_size: int, width: int, prefix: str = "") -> list[Gemm]:
    """Return the two projections that a compressor pools, the vectors and their weights, on every rank, in 16 bit."""
    return [Gemm(f"{prefix}compressor", 2 * width, hidden_size, "replicated")]


def latent_attention_gemms(
    *,
    hidden_size: int,
    num_heads: int,
    kv_lora_rank: int,
    q_lora_rank: int | None,
    qk_rope_head_dim: int,
    qk_nope_head_dim: int,
    v_head_dim: int,
    tensor_parallel_size: int = 1,
) -> list[Gemm]:
    """Return the projections of one MLA layer on one rank (DeepSeek-V2, arXiv 2405.04434, section 2.1).

    The down-projections ``q_a`` and ``kv_a`` are replicated. ``kv_b`` is listed as one matrix; decode kernels
    multiply by its two halves instead (absorption), which reads the same weights.
    """
    heads = heads_per_rank(num_heads, tensor_parallel_size)
    query_width = heads * (qk_nope_head_dim + qk_rope_head_dim)
    if q_lora_rank is None:
        query = [Gemm("q", query_width, hidden_size, "column", part="attention")]
    else:
        query = [
            Gemm("q_a", q_lora_rank, hidden_size, "replicated", part="attention"),
            Gemm("q_b", query_width, q_lora_rank, "column", part="attention"),
        ]
    return [
        *query,
        Gemm("kv_a", kv_lora_rank + qk_rope_head_dim, hidden_size, "replicated", part="attention"),
        Gemm("kv_b", heads * (qk_nope_head_dim + v_head_dim), kv_lora_rank, "column", part="attention"),
        Gemm("output", hidden_size, heads * v_head_dim, "row", part="attention_output"),
    ]


def indexer_gemms(
    *, hidden_size: int, query_width: int, num_heads: int, head_dim: int, has_head_weights: bool = True
) -> list[Gemm]:
    """Return the projections of one sparse-attention indexer, replicated on every rank (DeepSeek-V3.2).

    Args:
        hidden_size: Width of the layer.
        query_width: Width of the query it reads: a low-rank one, or the layer's.
        num_heads: Heads of the indexer.
        head_dim: Width of one of them; the key is one head shared by all.
        has_head_weights: Whether a token weighs the heads' scores (not in MiniMax-M3).
    """
    return [
        Gemm("index_q", num_heads * head_dim, query_width, "replicated", part="indexer"),
        Gemm("index_k", head_dim, hidden_size, "replicated", part="indexer"),
        *([Gemm("index_weights", num_heads, hidden_size, "replicated")] if has_head_weights else []),
    ]


def mlp_gemms(
    *,
    hidden_size: int,
    intermediate_size: int,
    is_gated: bool,
    part: Part,
    has_bias: bool = False,
    tensor_parallel_size: int = 1,
) -> list[Gemm]:
    """Return the two matrices of one MLP or expert on one rank: fused ``gate_up`` (or ``up``) and ``down``.

    Those of experts and shared experts say so in their names. A width that the ranks do not divide is padded, as
    engines do.
    """
    prefix = _MLP_PREFIXES[part]
    width = -(-intermediate_size // tensor_parallel_size)
    first = ("gate_up", 2 * width) if is_gated else ("up", width)
    return [
        Gemm(prefix + first[0], first[1], hidden_size, "column", has_bias, part=part),
        Gemm(prefix + "down", hidden_size, width, "row", has_bias, part=part),
    ]


def indexer_key_bytes(head_dim: int) -> int:
    """Return the bytes a token and layer of the indexer's key cache: FP8 with one FP32 scale a group of 128.

    vLLM, ``DeepseekV32IndexerCache``: 132 bytes at a width of 128, whatever the type of the main cache.
    """
    return head_dim + -(-head_dim // _INDEXER_SCALE_GROUP) * _INDEXER_SCALE_BYTES
