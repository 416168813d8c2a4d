"""StepParts and PricedDeployment: what pricing a deployment leaves behind. Plain records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from simserve.engine.state import StepTimes
from simserve.perf.efficiency import Array
from simserve.perf.shape import ReplicaShape

Fidelity = Literal["roofline", "fitted", "measured"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParts:
    """The seconds of `StepTimes` by part, and the flops and bytes behind them, for the whole replica.

    Rows are `simserve.perf.operators.PART_NAMES`; columns sum to the array of the same meaning.
    ``decode_slope * S`` and the prefill's context seconds count as ``kv``, its pair and request seconds as
    ``compute``.

    Attributes:
        decode: ``[5, max_num_seqs + 1]``, sums to ``decode_base``.
        token: ``[5, T]``, sums to ``token_seconds``.
        token_beyond: ``[5]``, sums to ``token_seconds_beyond``.
        sequence: ``[5, max_num_seqs + 1]``, sums to ``sequence_seconds``.
        decode_attention: ``[5, max_num_seqs + 1]``, sums to ``decode_attention_base``.
        token_flops: FLOP a token in the layers.
        sequence_flops: FLOP of the LM head a sampled sequence.
        pair_flops: FLOP an attended query-key pair, all layers.
        weight_bytes: ``[T]``, bytes of weights that a step of x tokens reads, LM head included; with p
            pipeline stages each micro-batch of a round reads them.
        token_bytes: Bytes that the activations of a token move.
        kv_bytes_per_token: Bytes of KV a token, copies of replicated heads included.
        shared: ``[5, T]``, sums to ``shared_seconds``; no columns without ranks in lockstep.
        peak_flops: Dense FLOP/s of all GPUs of a scheduler in the dtype of the linear layers.
        peak_bandwidth: Bytes/s of all GPUs of a scheduler.
    """

    decode: Array
    token: Array
    token_beyond: Array
    sequence: Array
    decode_attention: Array
    token_flops: float
    sequence_flops: float
    pair_flops: float
    weight_bytes: Array
    token_bytes: float
    kv_bytes_per_token: float
    peak_flops: float
    peak_bandwidth: float
    shared: Array = field(default_factory=lambda: np.zeros((5, 0)))

    @property
    def ridge_point(self) -> float:
        """FLOP a byte above which arithmetic binds: peak over bandwidth (Williams et al., CACM 52(4), 2009)."""
        return self.peak_flops / self.peak_bandwidth


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """What drafting costs a replica that decodes speculatively.

    Attributes:
        num_speculative_tokens: Drafts a step, k.
        times: Its share of the deployment's `StepTimes`, in the same form.
        one_pass: Flops and bytes of what drafts, as if it decoded alone; None: nothing runs on the GPU.
    """

    num_speculative_tokens: int
    times: StepTimes
    one_pass: StepParts | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedDeployment:
    """What a step of one replica costs.

    Attributes:
        step_times: What the engine reads.
        parts: The same by part, with flops and bytes; of speculative decoding the target's share alone.
        fidelity: Where the figures come from, the worst of the operators: ``roofline`` (data sheet and class
            efficiencies), ``fitted`` curves, ``measured`` tables.
        operators: The same by operator: ``gemm lm_head attention experts all_reduce``, those that a step has.
        notes: What a reader of the result should know, such as arithmetic other than a format's name says.
        drafting: Speculative decoding: what of ``step_times`` goes into drafts; None: no drafts.
        shape: The deployment; None: the figures are from elsewhere, and no operators behind them are known.
    """

    step_times: StepTimes
    parts: StepParts
    fidelity: Fidelity
    notes: tuple[str, ...] = ()
    operators: Mapping[str, Fidelity] = field(default_factory=dict)
    drafting: Drafting | None = None
    shape: ReplicaShape | None = None
