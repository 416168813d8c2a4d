"""DraftSums: what speculative decoding adds up to over the leaps of a run, in closed form and column by column."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simserve.perf.parts import Drafting
from simserve.sim.step_sums import LeapColumns

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationTotals:
    """What a run's drafts add up to over all replicas.

    Attributes:
        num_drafts: Sequences that a step drafted for and verified, summed over steps.
        num_tokens: Tokens that those steps brought, means of each request.
        num_steps: Steps in which a sequence decoded.
        context_tokens: Tokens in the KV cache of the decoding sequences, summed over steps.
    """

    num_drafts: int
    num_tokens: float
    num_steps: int
    context_tokens: float


class DraftSums:
    """Adds up leaps.

    Args:
        drafting: What drafts cost; None: nothing is priced, only counted.
    """

    def __init__(self, drafting: Drafting | None) -> None:
        self.seconds = self.flops = self.bytes = 0.0
        self._drafting = drafting
        self._num_drafts = self._num_tokens = self._num_steps = self._contexts = 0.0

    def add(self, leaps: LeapColumns, advances: Floats) -> None:
        """Add leaps, each step of which brings ``advances`` tokens to the decoding sequences together."""
        self._num_drafts += _dot(leaps.decoding, leaps.steps)
        self._num_tokens += _dot(advances, leaps.steps)
        self._num_steps += float(leaps.steps[leaps.decoding > 0].sum())
        self._contexts += float(leaps.contexts.sum())
        if self._drafting is not None:
            self._add_seconds(leaps)
            self._add_work(leaps)

    def totals(self) -> SpeculationTotals:
        """Return the sums."""
        return SpeculationTotals(
            num_drafts=round(self._num_drafts),
            num_tokens=self._num_tokens,
            num_steps=round(self._num_steps),
            context_tokens=self._contexts,
        )

    def _add_seconds(self, leaps: LeapColumns) -> None:
        assert self._drafting is not None
        times = self._drafting.times
        decoding, prefilling = leaps.decoding.astype(np.int64), leaps.prefilling.astype(np.int64)
        is_mixed = prefilling > 0
        token = np.asarray(times.token_seconds)
        last = len(token) - 1
        mixed = token[np.minimum(leaps.priced.astype(np.int64), last)]
        mixed = mixed + times.token_seconds_beyond * np.maximum(leaps.priced - last, 0.0)
        mixed += np.asarray(times.sequence_seconds)[decoding + prefilling * is_mixed]
        mixed += np.asarray(times.decode_attention_base)[decoding] + times.prefill_request_seconds * leaps.prefilling
        per_step = np.where(is_mixed, mixed, np.asarray(times.decode_base)[decoding])
        self.seconds += _dot(per_step, leaps.steps)
        slope = np.asarray(times.decode_slope)[decoding] * np.where(is_mixed, times.mixed_decode_factor, 1.0)
        self.seconds += _dot(slope, leaps.contexts)
        self.seconds += times.prefill_pair_seconds * float(leaps.pairs.sum())
        self.seconds += times.prefill_context_seconds * float(leaps.keys.sum())

    def _add_work(self, leaps: LeapColumns) -> None:
        """Add flops and bytes: one pass over all tokens of a step, k - 1 over one a sequence, k samples each."""
        assert self._drafting is not None
        parts, count = self._drafting.one_pass, self._drafting.num_speculative_tokens
        if parts is None:
            return
        sequences = (leaps.decoding + leaps.prefilling) * leaps.steps
        first = leaps.decoding * (count + 1) * leaps.steps + leaps.prefilled
        tokens = float(first.sum() + (count - 1) * sequences.sum())
        keys = count * float(leaps.contexts.sum())
        self.flops += parts.token_flops * tokens + parts.sequence_flops * count * float(sequences.sum())
        self.flops += parts.pair_flops * (keys + float(leaps.pairs.sum()))
        last = len(parts.weight_bytes) - 1
        later = (leaps.decoding + leaps.prefilling).astype(np.int64)
        read = parts.weight_bytes[np.minimum(leaps.priced.astype(np.int64), last)]
        read = read + (count - 1) * parts.weight_bytes[np.minimum(later, last)]
        self.bytes += _dot(read, leaps.steps) + parts.token_bytes * tokens
        self.bytes += parts.kv_bytes_per_token * (keys + float(leaps.keys.sum()) + tokens)


def _dot(values: Floats, weights: Floats) -> float:
    """Return the sum of products. A BLAS would share it between threads, and add in an order of their own."""
    return float((values * weights).sum())
