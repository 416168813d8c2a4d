"""What a call does, which of its limits its seconds are booked to, and the element-wise kernels.

Knows no model, no engine and no GEMM curve.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from simserve.perf.efficiency import Array, Machine, memory_efficiency, start_latency

PART_NAMES = ("weights", "kv", "compute", "communication", "host")
"""What the seconds of a step are spent on: reading weights, reading KV, arithmetic with activations, links between
GPUs, the host with the start-up of kernels."""

WEIGHTS, KV, COMPUTE, COMMUNICATION, HOST = range(len(PART_NAMES))

OPERATORS: Mapping[str, str] = {
    "gemm": "linear layers",
    "experts": "routed experts",
    "attention": "attention",
    "state_space": "linear attention and state space",
    "activation_quantization": "quantising activations",
    "elementwise": "norms and activation functions",
    "lm_head": "LM head",
    "sampling": "sampling",
    "all_reduce": "all-reduce",
    "all_to_all": "exchange of tokens between experts' ranks",
    "all_gather": "gathering logits",
    "pipeline_transfer": "transfers between pipeline stages",
    "rank_wait": "waiting for the slowest rank",
    "host": "the host",
    "offload": "weights outside the GPU",
    "kv_copies": "KV cache to and from host memory",
    "lora": "LoRA adapters",
    "image_encoder": "the image encoder",
    "draft": "drafting",
}
"""Whose the seconds of a step are: the name of each operator in `result.json`, and in words. Copies of KV between
pools are no part of a step."""


class OperatorSeconds:
    """Seconds by part of what a step calls, for every number of tokens at once; where asked, by operator too.

    Args:
        num_columns: Numbers of tokens.
        by_operator: Whether to keep whose the seconds are.

    Attributes:
        parts: ``[5, num_columns]``, rows as in `PART_NAMES`.
        shares: Operator -> its seconds, ``[num_columns]``; None: not kept. They sum to those of ``parts``.
    """

    __slots__ = ("parts", "shares")

    def __init__(self, num_columns: int, *, by_operator: bool) -> None:
        self.parts: Array = np.zeros((len(PART_NAMES), num_columns))
        self.shares: dict[str, Array] | None = {} if by_operator else None

    def add(self, operator: str, parts: Array) -> None:
        """Add the seconds by part of calls of an operator."""
        self.parts += parts
        self._credit(operator, parts.sum(axis=0) if self.shares is not None else parts)

    def add_row(self, operator: str, part: int, seconds: Array | float) -> None:
        """Add seconds of an operator that are all of one part."""
        self.parts[part] += seconds
        self._credit(operator, seconds)

    def add_all(self, other: OperatorSeconds, times: Array | float = 1.0) -> None:
        """Add what others took, ``times`` over."""
        self.parts += other.parts if isinstance(times, float) and times == 1.0 else times * other.parts
        for operator, seconds in (other.shares or {}).items():
            self._credit(operator, times * seconds)

    def scale(self, factor: Array | float) -> None:
        """Make everything ``factor`` times as long."""
        self.parts *= factor
        if self.shares is not None:
            self.shares = {operator: seconds * factor for operator, seconds in self.shares.items()}

    def set_parts(self, parts: Array) -> None:
        """Say what the seconds really are; operators keep their shares of them."""
        before, self.parts = self.parts, parts
        if self.shares is not None:
            old, new = before.sum(axis=0), parts.sum(axis=0)
            ratio = np.divide(new, old, out=np.ones_like(new), where=old > 0)
            self.shares = {operator: seconds * ratio for operator, seconds in self.shares.items()}

    def mapped(self, change: Callable[[Array], Array]) -> OperatorSeconds:
        """Return the same with other columns, made alike of those of every row: ``change`` is linear."""
        changed = OperatorSeconds(0, by_operator=self.shares is not None)
        changed.parts = change(self.parts)
        if self.shares is not None:
            changed.shares = {operator: change(seconds) for operator, seconds in self.shares.items()}
        return changed

    def _credit(self, operator: str, seconds: Array | float) -> None:
        if self.shares is not None:
            known = self.shares.get(operator)
            self.shares[operator] = (np.zeros(self.parts.shape[1]) if known is None else known) + seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one call does, for every number of tokens at once.

    Attributes:
        flops: Floating point operations, a multiply-add counts two.
        weight_bytes: Bytes of weights read, group scales included.
        activation_bytes: Bytes of activations read and written.
    """

    flops: Array
    weight_bytes: Array
    activation_bytes: Array


def arithmetic_intensity(work: Work) -> Array:
    """Return the FLOP a byte of a call; below the ridge point (peak over bandwidth) memory binds."""
    return work.flops / (work.weight_bytes + work.activation_bytes)


def bound_parts(work: Work, *, arithmetic: Array, memory: Array, total: Array) -> Array:
    """Return the seconds of a call by part, shape ``[5, tokens]`` (rows as in `PART_NAMES`).

    Where the bytes take longer than the arithmetic, the weights get the time of their bytes, the activations theirs
    (as compute), and what is left, start-up and gaps, is the host's. Else all is compute: arithmetic, and what tiles
    and imperfect overlap cost.

    Args:
        work: Bytes of the call.
        arithmetic: Seconds of the flops alone.
        memory: Seconds of the bytes alone; at most ``total``.
        total: Seconds of the call.
    """
    parts = np.zeros((len(PART_NAMES), len(total)))
    share = work.weight_bytes / (work.weight_bytes + work.activation_bytes)
    is_memory_bound = memory > arithmetic
    parts[WEIGHTS] = np.where(is_memory_bound, memory * share, 0.0)
    parts[COMPUTE] = np.where(is_memory_bound, memory * (1.0 - share), total)
    parts[HOST] = total - parts[WEIGHTS] - parts[COMPUTE]
    return parts


def elementwise_parts(
    bytes_per_token: float,
    tokens: Array,
    machine: Machine,
    calls: int = 1,
    operator: Literal["elementwise", "sampling"] = "elementwise",
) -> Array:
    """Return the seconds by part of ``calls`` memory-bound kernels that move ``bytes_per_token`` in all.

    Norms, activations, rotary embedding, residuals, quantisation of activations: their flops never bind. Sampling's may
    on a CPU, where it was measured apart.
    """
    memory = bytes_per_token * tokens / (machine.bandwidth * memory_efficiency(machine, operator))
    parts = np.zeros((len(PART_NAMES), len(tokens)))
    parts[COMPUTE] = memory
    parts[HOST] = calls * start_latency(machine, "elementwise")
    return parts
