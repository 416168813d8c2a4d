"""Decode context parallelism: tensor-parallel ranks divide the tokens of each request's KV cache among them.

Ranks that would hold copies of the same keys, those of latent attention or of key-value heads that ranks outnumber,
hold every n-th token instead. A decode gathers the queries of the group's ranks, attends with all of them to the keys
that a rank holds, and adds up the partial outputs, weighted by their log-sum-exp (vLLM ``cp_lse_ag_out_rs`` of
v1/attention/ops/common.py, ``_forward_with_dcp`` of its FlashAttention backend). Knows layers, ranks and links; not
which requests a step holds.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from simserve.errors import InputError
from simserve.perf.collectives import all_gather_seconds, reduce_scatter_seconds
from simserve.perf.efficiency import Array
from simserve.perf.gemm import ACTIVATION_BYTES
from simserve.perf.shape import ReplicaShape
from simserve.profiles.model_blocks import AttentionLayers

LSE_BYTES = 4.0  # Bytes of a log-sum-exp, FP32.
_KEY = "decode_context_parallel_size"
_HEADS, _STATES = "decode_context_parallel_heads", "decode_context_parallel_states"
"""Features of versions that divide other keys than latent ones, and those of models with states of linear attention,
which each rank keeps as without it."""


def head_ranks(shape: ReplicaShape) -> int:
    """Return the groups of ranks over which heads are distributed in decodes; the ranks of a group divide tokens."""
    return shape.tensor_parallel_size // shape.decode_context_parallel_size


def check_context_ranks(shape: ReplicaShape) -> None:
    """Check that ranks can divide tokens among them, as they are told to.

    Raises:
        InputError: They do not divide the tensor-parallel ranks, hold no copies to give up, or something that is set
            beside is not simulated with it.
    """
    size, tensor = shape.decode_context_parallel_size, shape.tensor_parallel_size
    if tensor % size:
        rule = f"must divide tensor_parallel_size ({tensor}): its ranks divide the tokens among them"
        raise InputError(rule, key=_KEY, value=size, remedy="choose a divisor of it")
    if reason := _unsupported(shape):
        raise InputError(f"is not simulated {reason}", key=_KEY, value=size, remedy="leave one of the two out")
    if shape.model.num_linear_layers and _STATES not in shape.engine.features:
        rule = f"is not possible beside layers that keep a state: {_named(shape)} divides contexts of no such model"
        raise InputError(rule, key=_KEY, value=size, remedy="leave it out")
    if shape.model.mla is None:
        _check_heads(shape)


def _named(shape: ReplicaShape) -> str:
    return f"{shape.engine.name} {shape.engine.requested_version or shape.engine.version}"


def _unsupported(shape: ReplicaShape) -> str:
    """Return what is not simulated beside it; empty: nothing."""
    model, engine = shape.model, shape.engine
    reasons = {
        "for sparse attention, whose ranks also merge what their indexers choose (vLLM from 0.32 on)": (
            model.indexer is not None
        ),
        "for compressed attention, which vLLM refuses with it": model.compressed_attention is not None,
        "for layers with a sliding window, of which each rank keeps a copy in blocks of another length": bool(
            model.num_sliding_layers
        ),
        "without paged KV": engine.kv_allocation != "paged" or engine.batching != "continuous",
        "with preemption_mode swap": engine.preemption_mode == "swap",
        "with enable_two_batch_overlap": shape.enable_two_batch_overlap,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _check_heads(shape: ReplicaShape) -> None:
    """Check the rules for key-value heads (vLLM config/model.py, verify_with_parallel_config).

    Raises:
        InputError: The engine's version divides latent keys only, or the ranks hold too few copies of a head.
    """
    size, tensor, model = shape.decode_context_parallel_size, shape.tensor_parallel_size, shape.model
    heads = model.num_key_value_heads
    if _HEADS not in shape.engine.features:
        rule = f"needs latent attention (MLA): {_named(shape)} divides the tokens of no other KV cache"
        raise InputError(rule, key=_KEY, value=size, remedy="leave it out")
    copies, group = max(tensor // heads, 1), model.num_attention_heads // heads
    if size > copies:
        held = f"tensor_parallel_size {tensor} holds {copies} of each of the {heads} key-value heads"
        remedy = "raise tensor_parallel_size, or leave it out" if copies == 1 else f"at most {copies}"
        raise InputError(f"must be at most the copies that ranks hold: {held}", key=_KEY, value=size, remedy=remedy)
    if group % size:
        rule = f"must divide the {group} query heads of a key-value head"
        raise InputError(rule, key=_KEY, value=size, remedy="choose a divisor of it")


def with_context_blocks(shape: ReplicaShape) -> ReplicaShape:
    """Return a deployment whose blocks of tokens span the ranks that divide them.

    The scheduler counts, shares and frees such blocks, of which each rank holds a block of its own size (vLLM
    ``resolve_dcp_kv_block_size`` of v1/core/kv_cache_utils.py; SGLang widens its pages in the same way).

    Raises:
        InputError: No request is as long as such a block.
    """
    size, engine = shape.decode_context_parallel_size, shape.engine
    if engine.block_size * size > engine.max_model_len:
        rule = f"makes blocks of {engine.block_size * size} tokens, more than max_model_len ({engine.max_model_len})"
        raise InputError(rule, key=_KEY, value=size, remedy="a request would never fill its first block")
    source = f"{engine.block_size} on each of {size} ranks ({engine.sources['block_size']})"
    sources = {**engine.sources, "block_size": source}
    return replace(shape, engine=engine.model_copy(update={"block_size": engine.block_size * size, "sources": sources}))


def context_exchange_seconds(shape: ReplicaShape, layers: AttentionLayers, tokens: Array) -> Array:
    """Return the seconds of the collectives around decode attention in one layer, shape of ``tokens``.

    Queries of all ranks of the group to each of them, their log-sum-exps, and the weighted outputs added up; or, where
    the engine sends outputs and log-sum-exps together in one all-to-all, which moves as many bytes as the sum, two
    collectives. Waits for the slowest rank count with the first one.

    Args:
        tokens: Queries of a step.
    """
    size = shape.decode_context_parallel_size
    heads = layers.num_heads * size / shape.tensor_parallel_size
    query, output = layers.head_dim, layers.v_head_dim
    if layers.mla is not None:  # in the latent space (absorption)
        query, output = layers.mla.width, layers.mla.kv_lora_rank
    link = shape.tensor_link
    together = replace(link, skew=0.0, host_skew=0.0)
    rows = np.asarray(tokens, dtype=np.float64) * heads
    seconds = all_gather_seconds(rows * query * ACTIVATION_BYTES, size, link)
    outputs = rows * output * ACTIVATION_BYTES
    if shape.engine.sends_partial_outputs:
        return seconds + reduce_scatter_seconds(outputs + rows * LSE_BYTES, size, together)
    seconds = seconds + all_gather_seconds(rows * LSE_BYTES * size, size, together)
    return np.asarray(seconds + reduce_scatter_seconds(outputs, size, together))


def context_gather_seconds(shape: ReplicaShape, layers: AttentionLayers) -> float:
    """Return the seconds per key of earlier tokens that a chunk of a prompt fetches from other ranks, in one layer.

    Latent attention expands the keys of all of them on each rank (vLLM ``_context_parallel_compute_prefill_context``).
    The start of a transfer, once per chunk and layer, is left out. Other attention exchanges queries instead.
    """
    size = shape.decode_context_parallel_size
    if size == 1 or layers.mla is None:
        return 0.0
    key = layers.kv_bytes_per_token(shape.kv_element_bytes, shape.tensor_parallel_size)
    far = math.ldexp(1.0, 40)
    more = all_gather_seconds(np.array([far, 2.0 * far]), size, shape.tensor_link)
    return float(more[1] - more[0]) / far * key
