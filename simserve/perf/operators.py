"""The work of a call, the division of its time among its limits, element-wise kernels, and the results of pricing.

Knows no model, no engine and no GEMM curve. `StepParts` and `PricedDeployment` are plain records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from simserve.engine.state import StepTimes
from simserve.perf.efficiency import Array, Machine, memory_efficiency, start_latency
from simserve.perf.shape import ReplicaShape

PART_NAMES = ("weights", "kv", "compute", "communication", "host")
"""What the seconds of a step are spent on: reading weights, reading KV, arithmetic with activations, links between
GPUs, the host including the start-up of kernels."""
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
    "all_gather": "gathering logits, and queries and outputs of ranks that divide contexts",
    "pipeline_transfer": "transfers between pipeline stages",
    "rank_wait": "waiting for the slowest rank",
    "host": "the host",
    "offload": "weights outside the GPU",
    "kv_copies": "KV cache to and from host memory",
    "lora": "LoRA adapters",
    "image_encoder": "the image encoder",
    "draft": "drafting",
}
"""Operators of a step: their names in `result.json`, and in words. Copies of KV between pools are not part of a
step."""
Fidelity = Literal["roofline", "fitted", "measured"]


class OperatorSeconds:
    """Seconds by part of a step's calls, for every number of tokens at once; optionally also by operator.

    Args:
        num_columns: Numbers of tokens.
        by_operator: Whether to keep the seconds by operator.

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
        """Add seconds of an operator that all belong to one part."""
        self.parts[part] += seconds
        self._credit(operator, seconds)

    def add_all(self, other: OperatorSeconds, times: Array | float = 1.0) -> None:
        """Add the seconds of another, times ``times``."""
        self.parts += other.parts if isinstance(times, float) and times == 1.0 else times * other.parts
        for operator, seconds in (other.shares or {}).items():
            self._credit(operator, times * seconds)

    def scale(self, factor: Array | float) -> None:
        """Multiply all seconds by ``factor``."""
        self.parts *= factor
        if self.shares is not None:
            self.shares = {operator: seconds * factor for operator, seconds in self.shares.items()}

    def set_parts(self, parts: Array) -> None:
        """Replace the seconds; operators keep their shares of them."""
        before, self.parts = self.parts, parts
        if self.shares is not None:
            old, new = before.sum(axis=0), parts.sum(axis=0)
            ratio = np.divide(new, old, out=np.ones_like(new), where=old > 0)
            self.shares = {operator: seconds * ratio for operator, seconds in self.shares.items()}

    def mapped(self, change: Callable[[Array], Array]) -> OperatorSeconds:
        """Return the same with each row's columns changed by ``change``, which is linear."""
        changed = OperatorSeconds(0, by_operator=self.shares is not None)
        changed.parts = change(self.parts)
        if self.shares is not None:
            changed.shares = {operator: change(seconds) for operator, seconds in self.shares.items()}
        return changed

    def _credit(self, operator: str, seconds: Array | float) -> None:
        if self.shares is not None:
            known = self.shares.get(operator)
            self.shares[operator] = (np.zeros(self.parts.shape[1]) if known is None else known) + seconds


STREAM_SUBLAYERS = 2  # Sublayers between which residual streams are mixed: attention and MLP.
STREAM_CALLS = 2
"""Kernels that mix them around a sublayer: one before it, with the normalisation of the weights, and one after it
(``deepseek_v4_mhc.py`` of SGLang 0.5.23)."""

INPUT_PASSES = 6
"""Passes over the parts of the layer-input embedding: looked up, written, normalised beside its projection (read and
written), and both read with their sum written."""

INPUT_CALLS = 3
"""Kernels for these: the look-up, the norm, the scaled sum (``project_per_layer_inputs`` of vLLM's gemma4.py)."""

NGRAM_CALLS = 4
"""Kernels around the two projections of looked-up n-grams: hashing, the look-up, the gate, the convolution
(models/qwen4_exp/nvidia/ops of vLLM)."""

UPDATE_CALLS = 8
"""Kernels around the two routers of AltUp per layer: a norm, the coefficients and the sum, to predict and to correct;
the inputs that copies get; the norm of the low-rank path (``Gemma3nDecoderLayer`` of vLLM's gemma3n.py, compiled)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work of one call, for every number of tokens at once."""

    flops: Array  # Floating-point operations; a multiply-add counts as two.
    weight_bytes: Array  # Bytes of weights read, group scales included.
    activation_bytes: Array  # Bytes of activations read and written.


def arithmetic_intensity(work: Work) -> Array:
    """Return the FLOP per byte of a call; below the ridge point (peak over bandwidth) memory is the bottleneck."""
    return work.flops / (work.weight_bytes + work.activation_bytes)


def bound_parts(work: Work, *, arithmetic: Array, memory: Array, total: Array) -> Array:
    """Return the seconds of a call by part, shape ``[5, tokens]`` (rows as in `PART_NAMES`).

    If the bytes take longer than the arithmetic, the weights get the time of their bytes, the activations theirs (as
    compute), and the remainder, start-up and gaps, is the host's. Otherwise everything is compute: arithmetic, and the
    cost of tiles and imperfect overlap.

    Args:
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
    calls: int | Array = 1,
    operator: Literal["elementwise", "sampling"] = "elementwise",
) -> Array:
    """Return the seconds by part of ``calls`` memory-bound kernels that move ``bytes_per_token`` in total.

    Norms, activations, rotary embedding, residuals, quantisation of activations: compute is never their bottleneck. On
    a CPU it may be for sampling, which was measured separately.
    """
    memory = bytes_per_token * tokens / (machine.bandwidth * memory_efficiency(machine, operator))
    parts = np.zeros((len(PART_NAMES), len(tokens)))
    parts[COMPUTE] = memory
    parts[HOST] = calls * start_latency(machine, "elementwise")
    return parts


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParts:
    """The seconds of `StepTimes` by part, and the FLOP and bytes behind them, for the whole replica.

    Rows are `simserve.perf.operators.PART_NAMES`; columns sum to the array of the same meaning.
    ``decode_slope * S`` and the prefill's context seconds count as ``kv``, its pair and request seconds as
    ``compute``.
    """

    decode: Array  # ``[5, max_num_seqs + 1]``, sums to ``decode_base``.
    token: Array  # ``[5, T]``, sums to ``token_seconds``.
    token_beyond: Array  # ``[5]``, sums to ``token_seconds_beyond``.
    sequence: Array  # ``[5, max_num_seqs + 1]``, sums to ``sequence_seconds``.
    decode_attention: Array  # ``[5, max_num_seqs + 1]``, sums to ``decode_attention_base``.
    token_flops: float  # FLOP per token in the layers.
    sequence_flops: float  # FLOP of the LM head per sampled sequence.
    pair_flops: float  # FLOP per attended query-key pair, all layers.
    weight_bytes: Array
    """``[T]``, bytes of weights that a step of x tokens reads, LM head included; with p pipeline stages each
    micro-batch of a round reads them."""
    token_bytes: float  # Bytes moved by the activations of a token.
    kv_bytes_per_token: float  # KV bytes per token, including copies of replicated heads.
    peak_flops: float  # Dense FLOP/s of all GPUs of a scheduler in the dtype of the linear layers.
    peak_bandwidth: float  # Bytes/s of all GPUs of a scheduler.
    shared: Array = field(default_factory=lambda: np.zeros((5, 0)))
    """``[5, T]``, sums to ``shared_seconds``; no columns without ranks in lockstep."""

    @property
    def ridge_point(self) -> float:
        """FLOP per byte above which compute is the bottleneck: peak / bandwidth (Williams et al., CACM 52(4), 2009)."""
        return self.peak_flops / self.peak_bandwidth


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """The cost of drafting on a replica with speculative decoding."""

    num_speculative_tokens: int  # Drafts per step, k.
    times: StepTimes  # Its share of the deployment's `StepTimes`, in the same form.
    one_pass: StepParts | None
    """FLOP and bytes of the drafter, as if it decoded alone; None: nothing runs on the GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedDeployment:
    """The cost of a step of one replica."""

    step_times: StepTimes  # What the engine reads.
    parts: StepParts  # The same by part, with FLOP and bytes; with speculative decoding only the target's share.
    fidelity: Fidelity
    """Where the figures come from, the worst of the operators: ``roofline`` (data sheet and class efficiencies),
    ``fitted`` curves, ``measured`` tables."""
    notes: tuple[str, ...] = ()
    """What a reader of the result should know, such as arithmetic that differs from a format's name."""
    operators: Mapping[str, Fidelity] = field(default_factory=dict)
    """The same by operator: ``gemm lm_head attention experts all_reduce``, those that a step has."""
    drafting: Drafting | None = None
    """Speculative decoding: the part of ``step_times`` spent on drafts; None: no drafts."""
    shape: ReplicaShape | None = None  # The deployment; None: the figures are from elsewhere, with unknown operators.
