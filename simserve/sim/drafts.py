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

    def add(self, step_runs: LeapColumns, advances: Floats) -> None:
        """Add leaps, each step of which brings ``advances`` tokens to the decoding sequences together."""
        self._num_drafts += _dot(step_runs.decoding, step_runs.steps)
        self._num_tokens += _dot(advances, step_runs.steps)
        self._num_steps += float(step_runs.steps[step_runs.decoding > 0].sum())
        self._contexts += float(step_runs.contexts.sum())
        if self._drafting is not None:
            self._add_seconds(step_runs)
            self._add_work(step_runs)

    def totals(self) -> SpeculationTotals:
        """Return the sums."""
        return SpeculationTotals(
            num_drafts=round(self._num_drafts),
            num_tokens=self._num_tokens,
            num_steps=round(self._num_steps),
            context_tokens=self._contexts,
        )

    def _add_seconds(self, step_runs: LeapColumns) -> None:
        assert self._drafting is not None
        times = self._drafting.times
        decoding, prefilling = step_runs.decoding.astype(np.int64), step_runs.prefilling.astype(np.int64)
        is_mixed = prefilling > 0
        token = np.asarray(times.token_seconds)
        last = len(token) - 1
        mixed = token[np.minimum(step_runs.priced.astype(np.int64), last)]
        mixed = mixed + times.token_seconds_beyond * np.maximum(step_runs.priced - last, 0.0)
        mixed += np.asarray(times.sequence_seconds)[decoding + prefilling * is_mixed]
        mixed += (
            np.asarray(times.decode_attention_base)[decoding] + times.prefill_request_seconds * step_runs.prefilling
        )
        per_step = np.where(is_mixed, mixed, np.asarray(times.decode_base)[decoding])
        self.seconds += _dot(per_step, step_runs.steps)
        slope = np.asarray(times.decode_slope)[decoding] * np.where(is_mixed, times.mixed_decode_factor, 1.0)
        self.seconds += _dot(slope, step_runs.contexts)
        self.seconds += times.prefill_pair_seconds * float(step_runs.pairs.sum())
        self.seconds += times.prefill_context_seconds * float(step_runs.keys.sum())

    def _add_work(self, step_runs: LeapColumns) -> None:
        """Add flops and bytes: one pass over all tokens of a step, k - 1 over one a sequence, k samples each."""
        assert self._drafting is not None
        parts, count = self._drafting.one_pass, self._drafting.num_speculative_tokens
        if parts is None:
            return
        sequences = (step_runs.decoding + step_runs.prefilling) * step_runs.steps
        first = step_runs.decoding * (count + 1) * step_runs.steps + step_runs.prefilled
        tokens = float(first.sum() + (count - 1) * sequences.sum())
        keys = count * float(step_runs.contexts.sum())
        self.flops += parts.token_flops * tokens + parts.sequence_flops * count * float(sequences.sum())
        self.flops += parts.pair_flops * (keys + float(step_runs.pairs.sum()))
        last = len(parts.weight_bytes) - 1
        later = (step_runs.decoding + step_runs.prefilling).astype(np.int64)
        read = parts.weight_bytes[np.minimum(step_runs.priced.astype(np.int64), last)]
        read = read + (count - 1) * parts.weight_bytes[np.minimum(later, last)]
        self.bytes += _dot(read, step_runs.steps) + parts.token_bytes * tokens
        self.bytes += parts.kv_bytes_per_token * (keys + float(step_runs.keys.sum()) + tokens)


def _dot(values: Floats, weights: Floats) -> float:
    """Return the sum of products. A BLAS would share it between threads, and add in an order of their own."""
    return float((values * weights).sum())
