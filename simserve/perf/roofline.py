"""The operators of a deployment on the roofline of its GPU: arithmetic intensity against achieved FLOP/s.

One decode step and one prompt, on one GPU. Knows no run: the number of decoding sequences is an argument.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from simserve.perf.attention import attention_of, growing_share
from simserve.perf.efficiency import Array, start_latency
from simserve.perf.gemm import ACTIVATION_BYTES, gemm_work
from simserve.perf.moe import expert_work, load_of_experts, shape_of_experts
from simserve.perf.operators import PricedDeployment, Work, arithmetic_intensity
from simserve.perf.pipeline import micro_batch
from simserve.perf.shape import ReplicaShape
from simserve.perf.stage import HEAD, Stage, expert_block, projection, stage_gemms, stage_of
from simserve.profiles.model_blocks import Gemm

Phase = Literal["decode", "prefill"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorPoint:
    """One operator of one layer on one GPU."""

    name: str  # As in engines: ``qkv``, ``gate_up``, ``attention`` ...
    phase: Phase  # ``decode``: in a decode step; ``prefill``: in a step that computes a prompt.
    intensity: float  # FLOP per byte moved.
    flops_per_second: float  # FLOP over the modelled seconds, start-up included.
    seconds: float  # Seconds of one call.


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """A GPU's limits and the operators below them."""

    bandwidth: float  # Memory bandwidth, bytes/s.
    peaks: dict[str, float]  # Dense FLOP/s of the dtypes in which the deployment computes, ``{dtype: FLOP/s}``.
    decoding: int  # Sequences of the decode step.
    context_tokens: int  # Tokens of each in the KV cache.
    prompt_tokens: int  # Tokens of the prompt.
    points: tuple[OperatorPoint, ...]  # Operators.


def roofline(
    shape: ReplicaShape, priced: PricedDeployment, *, decoding: int, context_tokens: int, prompt_tokens: int
) -> Roofline:
    """Return the operators of one decode step and of one prompt on one GPU.

    Layers with a short sliding window are left out of attention; collectives and element-wise kernels have almost no
    arithmetic and are left out altogether.

    Args:
        priced: Cost of its steps.
        decoding: Sequences that decode, at least 1.
        context_tokens: Tokens of each in the KV cache.
        prompt_tokens: Tokens of a prompt, at least 1.

    Raises:
        InputError: The GPU does not support the deployment.
    """
    stage = stage_of(shape)
    decoding = min(max(decoding, 1), shape.engine.max_num_seqs)
    points: list[OperatorPoint] = []
    rows: tuple[tuple[Phase, int], ...] = (
        ("decode", decoding * shape.tokens_per_decode),
        ("prefill", min(prompt_tokens, shape.engine.max_num_batched_tokens)),
    )
    for phase, count in rows:
        tokens = micro_batch(np.array([float(count)]), shape.pipeline_parallel_size)
        points += [_point(name, phase, work, seconds) for name, work, seconds in _products(stage, phase, tokens)]
    points += _attention(stage, priced, decoding, context_tokens, prompt_tokens)
    dtypes = dict.fromkeys((stage.precision.arithmetic, stage.precision.wide_arithmetic))
    return Roofline(
        bandwidth=stage.machine.bandwidth,
        peaks={dtype: stage.machine.peak(dtype) for dtype in dtypes},
        decoding=decoding,
        context_tokens=context_tokens,
        prompt_tokens=prompt_tokens,
        points=tuple(points),
    )


def _point(name: str, phase: Phase, work: Work, seconds: float) -> OperatorPoint:
    return OperatorPoint(
        name=name,
        phase=phase,
        intensity=float(arithmetic_intensity(work)[0]),
        flops_per_second=float(work.flops[0]) / seconds,
        seconds=seconds,
    )


def _products(stage: Stage, phase: Phase, tokens: Array) -> Iterator[tuple[str, Work, float]]:
    """Yield name, work and seconds of matrix products with weights: of one layer of each kind, and the LM head."""
    shape, model = stage.shape, stage.shape.model
    for name, gemm in {gemm.name: gemm for gemm in stage_gemms(stage)}.items():
        yield name, _work(stage, gemm, tokens), float(projection(stage, gemm, tokens).sum())
    if model.moe is not None:
        up, down = model.expert_gemms(shape.expert_slices)
        routed = tokens * (shape.data_parallel_size if phase == "decode" else 1)
        moe = model.moe
        load = load_of_experts(moe, routed, shape.expert_groups, shape.num_redundant_experts)
        precision = stage.expert_precision
        sizes = shape_of_experts(up, down, precision.weight_bits, precision.input_bytes)
        yield "experts", expert_work(sizes, load), float(expert_block(stage, model.moe, routed).sum())
    if phase == "decode":
        head = model.lm_head_gemm(shape.tensor_parallel_size)
        yield "lm_head", _work(stage, head, tokens), float(projection(stage, head, tokens).sum())


def _work(stage: Stage, gemm: Gemm, tokens: Array) -> Work:
    bits, input_bytes = stage.stored_bits(gemm.part), ACTIVATION_BYTES
    if gemm.name == HEAD and stage.head is not None:
        bits, input_bytes = stage.head_bits, stage.head.input_bytes
    elif gemm.part is not None:
        input_bytes = sum(share * each.input_bytes for each, share in stage.precisions[gemm.part])
    return gemm_work(tokens, gemm.out_features, gemm.in_features, weight_bits=bits, input_bytes=input_bytes)


def _attention(
    stage: Stage, priced: PricedDeployment, decoding: int, context_tokens: int, prompt_tokens: int
) -> Iterator[OperatorPoint]:
    """Yield attention of one layer: of the decode step over its contexts, and of the prompt over itself.

    If layers differ, the mean of those that see the whole context.
    """
    shape, times = stage.shape, priced.step_times
    drafts = None if priced.drafting is None else priced.drafting.times
    element, ranks = shape.kv_element_bytes, shape.tensor_parallel_size
    shares = [growing_share(shape.model, each.layers, shape.contexts) for each in stage.attentions]
    share = sum(shares)
    if not share:
        return
    layers = [
        (part / share, each, attention_of(each.layers, ranks, element))
        for part, each in zip(shares, stage.attentions, strict=True)
        if part
    ]
    keys = float(decoding * context_tokens)
    slope = times.decode_slope[decoding] - (0.0 if drafts is None else drafts.decode_slope[decoding])
    groups = np.array([float(-(-decoding // shape.pipeline_parallel_size))])
    one_start = start_latency(stage.machine, "attention_decode")
    start = sum(
        part * (one_start if each.kernel is None else float(each.kernel.decode_base_seconds(groups)[0]))
        for part, each, _ in layers
    )
    flops_per_key = shape.tokens_per_decode * sum(part * one.decode_flops_per_key for part, _, one in layers)
    work = Work(
        flops=np.array([keys * flops_per_key]),
        weight_bytes=np.zeros(1),
        activation_bytes=np.array([keys * sum(part * one.kv_bytes_per_token for part, _, one in layers)]),
    )
    yield _point("attention", "decode", work, start + slope / share * keys / stage.num_layers)
    pairs = prompt_tokens * (prompt_tokens + 1) / 2
    seconds = times.prefill_request_seconds + times.prefill_pair_seconds / share * pairs
    seconds += times.prefill_context_seconds / share * prompt_tokens
    if drafts is not None:
        seconds -= drafts.prefill_request_seconds + drafts.prefill_pair_seconds / share * pairs
        seconds -= drafts.prefill_context_seconds / share * prompt_tokens
    work = Work(
        flops=np.array([pairs * sum(part * one.prefill_flops_per_pair for part, _, one in layers)]),
        weight_bytes=np.zeros(1),
        activation_bytes=np.array([prompt_tokens * sum(part * one.kv_bytes_per_token for part, _, one in layers)]),
    )
    prompt = np.array([1.0 * prompt_tokens])
    waves = sum(
        part * float(each.kernel.prompt_seconds(prompt)[0]) for part, each, _ in layers if each.kernel is not None
    )
    yield _point("attention", "prefill", work, waves + seconds / (stage.num_layers * shape.pipeline_parallel_size))
