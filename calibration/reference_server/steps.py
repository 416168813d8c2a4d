"""From steps that were served one after another to the tables of seconds that the simulator reads.

The tables are affine in what a step holds (`simserve.engine.state.StepTimes`); their constants are fitted by
non-negative least squares on relative errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from calibration.reference_server.scheduler import Limits
from calibration.reference_server.serving import StepRecord
from simserve.engine.state import StepTimes

Array = NDArray[np.float64]

OUTLIER = 3.0
"""Steps whose error is this many median absolute deviations away were disturbed by something else."""

ROUNDS = 3


@dataclass(frozen=True, slots=True)
class StepFit:
    """Fitted tables.

    Attributes:
        times: What the simulator reads.
        num_steps: Steps that were measured.
        num_dropped: Of them, disturbed ones.
        median_error: Median absolute relative error of a step.
        p90_error: 90th percentile of it.
        held_out_error: Median over the steps of batches that the fit did not see.
    """

    times: StepTimes
    num_steps: int
    num_dropped: int
    median_error: float
    p90_error: float
    held_out_error: float


IDLE_SECONDS = 1e-3
"""A longer pause between two steps is waiting for a request, a shorter one the server's own."""


def durations(records: Sequence[StepRecord]) -> Array:
    """Return the seconds of steps: to the start of the next one, where the server did not wait in between."""
    ends = np.array([record.start + record.seconds for record in records])
    pauses = np.append(np.array([record.start for record in records[1:]]) - ends[:-1], np.inf)
    return np.array([record.seconds for record in records]) + np.where(pauses < IDLE_SECONDS, pauses, 0.0)


def fit_steps(batches: Sequence[Sequence[StepRecord]], limits: Limits) -> StepFit:
    """Return the tables of some batches of steps; every fourth batch is held out once to state the error."""
    records = [record for batch in batches for record in batch]
    seconds = np.concatenate([durations(batch) for batch in batches])
    terms = np.array([_terms(record, limits) for record in records])
    is_held = np.concatenate([np.full(len(batch), number % 4 == 3) for number, batch in enumerate(batches)])
    partial, _ = _solve(terms[~is_held], seconds[~is_held])
    held_out = np.abs(terms[is_held] @ partial / seconds[is_held] - 1.0) if is_held.any() else np.array([np.nan])
    solution, kept = _solve(terms, seconds)
    errors = np.abs(terms[kept] @ solution / seconds[kept] - 1.0)
    return StepFit(
        times=_times(solution, limits),
        num_steps=len(records),
        num_dropped=int((~kept).sum()),
        median_error=float(np.median(errors)),
        p90_error=float(np.percentile(errors, 90)),
        held_out_error=float(np.median(held_out)),
    )


def _knots(largest: int) -> Array:
    """Return 1, 2, 4 ... up to the largest size, itself included."""
    powers = [float(1 << power) for power in range(largest.bit_length()) if 1 << power < largest]
    return np.array([*powers, float(largest)])


def _hats(knots: Array, size: float) -> Array:
    """Return the weights of the knots in a piecewise linear curve at one size."""
    weights = np.zeros(len(knots))
    above = min(int(np.searchsorted(knots, size)), len(knots) - 1)
    if above == 0 or size >= knots[-1]:
        weights[above] = 1.0
        return weights
    share = (size - knots[above - 1]) / (knots[above] - knots[above - 1])
    weights[above - 1], weights[above] = 1.0 - share, share
    return weights


def _terms(record: StepRecord, limits: Limits) -> Array:
    """Return what multiplies each constant in a step: base by batch, base by tokens, context, decode, request ..."""
    sequences, tokens = _knots(limits.max_num_seqs), _knots(limits.max_num_batched_tokens)
    num_decodes, num_chunks = len(record.decodes), len(record.chunks)
    context = float(sum(tokens_before for _, tokens_before in record.decodes))
    if not record.chunks:
        return np.concatenate((_hats(sequences, num_decodes), np.zeros(len(tokens)), [context, 0, 0, 0, 0]))
    computed = num_decodes + sum(size for _, _, size in record.chunks)
    pairs = sum(size * done + size * (size + 1) / 2 for _, done, size in record.chunks)
    keys = sum(done + size for _, done, size in record.chunks)
    rest = [context, num_decodes, num_chunks, pairs, keys]
    return np.concatenate((np.zeros(len(sequences)), _hats(tokens, computed), rest))


def _solve(terms: Array, seconds: Array) -> tuple[Array, NDArray[np.bool_]]:
    """Return the constants, and which steps they stand on."""
    kept = np.ones(len(seconds), dtype=bool)
    solution = np.zeros(terms.shape[1])
    for _ in range(ROUNDS):
        weighted = terms[kept] / seconds[kept, None]
        scale = np.maximum(np.abs(weighted).max(axis=0), 1e-30)
        solution = nnls(weighted / scale, np.ones(int(kept.sum())))[0] / scale
        errors = np.log(np.maximum(terms @ solution, 1e-12) / seconds)
        spread = np.median(np.abs(errors - np.median(errors))) * 1.4826
        kept = np.abs(errors - np.median(errors)) <= max(OUTLIER * spread, 0.05)
    # Relative squares pull noisy steps to their short side; a request waits for their sum.
    return solution * float(seconds[kept].sum() / (terms[kept] @ solution).sum()), kept


def _times(solution: Array, limits: Limits) -> StepTimes:
    sequences, tokens = _knots(limits.max_num_seqs), _knots(limits.max_num_batched_tokens)
    base, rest = solution[: len(sequences)], solution[len(sequences) :]
    by_tokens, (context, decode, request, pair, key) = rest[: len(tokens)], rest[len(tokens) :]
    counts = np.arange(limits.max_num_seqs + 1.0)
    sizes = np.arange(limits.max_num_batched_tokens + 1.0)
    decode_base = np.maximum.accumulate(np.interp(counts, sequences, base))
    decode_base[0] = 0.0
    token_seconds = np.maximum.accumulate(np.interp(sizes, tokens, by_tokens))
    token_seconds[0] = 0.0
    return StepTimes(
        decode_base=decode_base.tolist(),
        decode_slope=[0.0, *[float(context)] * limits.max_num_seqs],
        token_seconds=token_seconds.tolist(),
        token_seconds_beyond=float((token_seconds[-1] - token_seconds[len(sizes) // 2]) / (len(sizes) / 2)),
        sequence_seconds=[0.0] * (2 * limits.max_num_seqs + 1),
        decode_attention_base=(float(decode) * counts).tolist(),
        prefill_request_seconds=float(request),
        prefill_pair_seconds=float(pair),
        prefill_context_seconds=float(key),
    )
