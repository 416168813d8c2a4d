"""StepSums: how many steps had how much in them, and what they took by part, in flops and in bytes.

Steps are counted by batch size and by tokens; prices are looked up once, when all are counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simserve.perf.account import Account, StepCounts
from simserve.perf.parts import PricedDeployment

if TYPE_CHECKING:
    from simserve.engine.config import EngineConfig
    from simserve.engine.tables import StepTimes

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeapColumns:
    """Columns of leaps; sums are over all steps of a leap.

    Attributes:
        steps: Steps.
        decoding: Sequences that decode in each.
        prefilled: Prefill tokens, summed.
        prefilling: Requests with a chunk in each.
        priced: Tokens of each, x of `StepTimes`.
        pairs: Attended pairs of the chunks, summed.
        keys: Keys that the chunks read, summed.
        contexts: Tokens in the KV cache of the decoding sequences, summed.
    """

    steps: Floats
    decoding: Floats
    prefilled: Floats
    prefilling: Floats
    priced: Floats
    pairs: Floats
    keys: Floats
    contexts: Floats


class StepSums:
    """Counts the steps of one kind of replica.

    Args:
        config: Of the replicas.
        times: Seconds of their steps.
        priced: The same by part.
    """

    def __init__(self, config: EngineConfig, times: StepTimes, priced: PricedDeployment) -> None:
        self._priced, self._parts = priced, priced.parts
        self._width = 1 + config.num_speculative_tokens
        self._num_ranks = config.data_parallel_size
        self._slope = np.asarray(times.decode_slope, dtype=np.float64)
        self._mixed_slope = times.mixed_decode_factor * self._slope
        request, pair, context = (
            times.prefill_request_seconds,
            times.prefill_pair_seconds,
            times.prefill_context_seconds,
        )
        if priced.drafting is not None:
            # The parts are the target's: what drafts take is a part of its own.
            draft = priced.drafting.times
            drafting = np.asarray(draft.decode_slope)
            self._slope = self._slope - drafting
            self._mixed_slope = self._mixed_slope - draft.mixed_decode_factor * drafting
            request -= draft.prefill_request_seconds
            pair -= draft.prefill_pair_seconds
            context -= draft.prefill_context_seconds
        self._request_seconds, self._pair_seconds, self._context_seconds = request, pair, context
        # Steps by batch size: without a chunk, then with; contexts alike; sequences of those with a chunk.
        self._size = self._parts.decode.shape[1]
        self._by_decoding: Floats = np.zeros(2 * self._size)
        self._contexts_by_decoding: Floats = np.zeros(2 * self._size)
        self._by_sequences: Floats = np.zeros(self._size)
        # Steps with a chunk by tokens, and tokens beyond the table.
        self._by_tokens: Floats = np.zeros(self._parts.token.shape[1])
        self._tokens_beyond = 0.0
        # Steps of ranks in lockstep by the tokens of all.
        self._by_together: Floats = np.zeros(self._parts.shared.shape[1])
        self._pairs = self._keys = self._contexts = 0.0
        self._decodes = self._prefill_tokens = self._prefilling = 0.0

    def add(self, step_runs: LeapColumns) -> None:
        """Add leaps."""
        steps, prefilling = step_runs.steps, step_runs.prefilling
        kinds = step_runs.decoding.astype(np.int64)
        is_mixed = prefilling > 0
        if is_mixed.any():
            # Those without a chunk count for nothing: faster than to leave them out.
            repeated = steps * is_mixed
            tokens = step_runs.priced.astype(np.int64)
            last = len(self._by_tokens) - 1
            if int(tokens.max()) > last:
                self._tokens_beyond += float((np.maximum(tokens - last, 0) * repeated).sum())
                tokens = np.minimum(tokens, last)
            _count(self._by_tokens, tokens, repeated)
            _count(self._by_sequences, kinds + prefilling.astype(np.int64), repeated)
            self._prefill_tokens += float(step_runs.prefilled.sum())
            self._prefilling += float((prefilling * steps).sum())
            self._pairs += float(step_runs.pairs.sum())
            self._keys += float(step_runs.keys.sum())
            kinds += self._size * is_mixed
        _count(self._by_decoding, kinds, steps)
        _count(self._contexts_by_decoding, kinds, step_runs.contexts)
        if self._parts.shared.shape[1]:
            together = (step_runs.priced * self._num_ranks).astype(np.int64)
            _count(self._by_together, np.minimum(together, self._parts.shared.shape[1] - 1), steps)

    @property
    def parts(self) -> Floats:
        """Seconds of ``weights, kv, compute, communication, host``, shape [5]; without what ranks do together."""
        parts, size = self._parts, self._size
        alone, beside = self._by_decoding[:size], self._by_decoding[size:]
        seconds = _weigh(parts.decode, alone) + _weigh(parts.decode_attention, beside)
        seconds += _weigh(parts.token, self._by_tokens) + parts.token_beyond * self._tokens_beyond
        seconds += _weigh(parts.sequence, self._by_sequences)
        read, attended = self._attention()
        seconds[1] += read
        seconds[2] += attended
        return seconds

    @property
    def shared(self) -> Floats:
        """Seconds by part, shape [5], of what ranks do together where all are equally full."""
        return _weigh(self._parts.shared, self._by_together)

    def account(self, factor: float, shared_factor: float, others: Mapping[str, float]) -> Account:
        """Return what is needed to tell the seconds by operator; the arguments are those of `Account`."""
        size = self._size
        counts = StepCounts(
            decode=self._by_decoding[:size],
            decode_attention=self._by_decoding[size:],
            sequence=self._by_sequences,
            token=self._by_tokens,
            tokens_beyond=self._tokens_beyond,
            shared=self._by_together,
        )
        attended = sum(self._attention())
        return Account(
            priced=self._priced,
            counts=counts,
            attended=attended,
            factor=factor,
            shared_factor=shared_factor,
            others=others,
        )

    def _attention(self) -> tuple[float, float]:
        """Return the seconds of attention that no table holds: of keys and values read, and of pairs and requests."""
        size = self._size
        contexts = self._slope * self._contexts_by_decoding[:size]
        contexts = contexts + self._mixed_slope * self._contexts_by_decoding[size:]
        read = float(contexts.sum()) + self._context_seconds * self._keys
        return read, self._pair_seconds * self._pairs + self._request_seconds * self._prefilling

    @property
    def flops(self) -> float:
        """Arithmetic done."""
        parts, decodes = self._parts, self._width * self._num_decodes()
        attended = self._pairs + self._width * float(self._contexts_by_decoding.sum()) + decodes
        tokens, sequences = decodes + self._prefill_tokens, decodes + self._prefilling
        return float(parts.token_flops * tokens + parts.pair_flops * attended + parts.sequence_flops * sequences)

    @property
    def bytes(self) -> float:
        """Bytes of weights, KV and activations moved."""
        parts, size = self._parts, self._size
        last = len(parts.weight_bytes) - 1
        alone = parts.weight_bytes[np.minimum(self._width * np.arange(size), last)]
        beside = parts.weight_bytes[np.minimum(np.arange(len(self._by_tokens)), last)]
        weights = float((alone * self._by_decoding[:size]).sum()) + float((beside * self._by_tokens).sum())
        tokens = self._width * self._num_decodes() + self._prefill_tokens
        kv_tokens = float(self._contexts_by_decoding.sum()) + self._keys + tokens
        return float(weights + parts.token_bytes * tokens + parts.kv_bytes_per_token * kv_tokens)

    def _num_decodes(self) -> float:
        """Return the sequences that decoded, summed over steps."""
        return float((np.tile(np.arange(self._size), 2) * self._by_decoding).sum())


def _count(counts: Floats, kinds: Integers, weights: Floats) -> None:
    """Add weights by kind; the largest kinds are rare, so that most of a long table is left alone."""
    found = np.bincount(kinds, weights=weights)
    counts[: len(found)] += found


def _weigh(table: NDArray[np.float64], counts: Floats) -> Floats:
    """Return the rows of a table weighed by counts. No library of matrices: their sums change with its threads."""
    total: Floats = (table * counts).sum(axis=1)
    return total
