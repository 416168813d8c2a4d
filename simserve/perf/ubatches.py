"""Micro-batches: the number of runs of all kernels into which an engine splits a step (llama.cpp's ``n_ubatch``).

Each run reads all weights again, and the experts that its own tokens visit. Knows tokens and slots, not costs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simserve.perf.efficiency import Array
from simserve.perf.shape import ReplicaShape


@dataclass(frozen=True, slots=True)
class Runs:
    """How steps are split into runs of all kernels, one after another: llama.cpp's micro-batches."""

    lengths: Array  # Distinct lengths of runs in tokens.
    last: NDArray[np.intp]  # For each step, the index of its last run among the lengths.
    stretch: Array  # For each step, the factor on the time of its last run.
    num_full: Array  # For each step, the number of full-length runs before it.
    full: int = -1  # The index of these among the lengths.

    def total(self, row: Array) -> Array:
        """Return the total time of the runs of each step, from the time of one run by its length."""
        if self.full < 0:
            return row
        return np.asarray(row[..., self.last] * self.stretch + self.num_full * row[..., self.full : self.full + 1])

    def longest(self, row: Array) -> Array:
        """Return the time of the longest run of each step."""
        if self.full < 0:
            return row
        last = row[..., self.last] * self.stretch
        return np.where(self.num_full > 0, np.maximum(row[..., self.full : self.full + 1], last), last)


def runs_of(tokens: Array, size: int | None, num_apart: int = 0) -> Runs:
    """Return the runs of steps.

    A step of n tokens is ``ceil(n / size) - 1`` full runs and one of the remainder.

    Args:
        tokens: Tokens of the steps, above 0.
        size: Most tokens of a run (llama.cpp's ``n_ubatch``); None: a step is one run.
        num_apart: Most tokens of a step that are computed apart from the others, and so fill no run: this many more
            than ``size`` are still one run, proportionally longer.
    """
    if size is None or float(tokens.max()) <= size:
        return Runs(tokens, np.arange(len(tokens)), np.ones_like(tokens), np.zeros_like(tokens))
    num_full = np.maximum(np.ceil((tokens - num_apart) / size) - 1.0, 0.0)
    last = tokens - num_full * size
    lengths, places = np.unique(np.append(np.minimum(last, size), float(size)), return_inverse=True)
    return Runs(lengths, places[:-1], np.maximum(last / size, 1.0), num_full, int(places[-1]))


def slot_runs(shape: ReplicaShape, decoding: Array) -> Array:
    """Return the number of runs of consecutive slots that ``decoding`` sequences form; each is computed separately.

    llama.cpp with a KV buffer per slot computes only consecutive ones together (src/llama-batch.cpp, `split_equal` with
    `sequential`), and so did models with recurrent layers in one buffer for all. The slot that has been free longest is
    next (tools/server). Answers of many lengths leave them in random order: any n of N slots are equally likely, in
    ``n (N - n + 1) / N`` runs on average. Those of one length leave them in order, so that n slots one after another
    are busy, and in two runs where these go on from the last slot to the first. Requests with similar prompts take the
    slot that one of them has left instead, so that the first n slots are busy.
    """
    if not is_in_slot_order(shape) or shape.engine.similar_prompts:
        return np.ones_like(decoding)
    slots = float(shape.engine.max_num_seqs)
    if shape.engine.equal_answers:
        return np.asarray(np.where(decoding < slots, 1.0 + (decoding - 1.0) / slots, 1.0))
    return np.asarray(decoding * (slots - decoding + 1.0) / slots)


def is_in_slot_order(shape: ReplicaShape) -> bool:
    """Return whether only consecutive slots are computed together."""
    is_of_states = shape.engine.state_ubatches == "consecutive" and shape.model.num_linear_layers > 0
    return shape.engine.kv_unified is False or is_of_states


def most_apart(shape: ReplicaShape) -> int:
    """Return the most decoding tokens of a step with prompts that are computed apart from these."""
    is_of_states = shape.engine.state_ubatches is not None and shape.model.num_linear_layers > 0
    if shape.engine.kv_unified is not False and not is_of_states:
        return 0
    return (shape.engine.max_num_seqs - 1) * shape.tokens_per_decode
