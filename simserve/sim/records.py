"""The results of a run: the outcome of each request, as columns, totals of its steps, and the gaps between tokens.

Requests: one row each, in order of arrival. Steps: counted by batch size and by tokens; prices are looked up once,
after all are counted. Gaps: a mergeable, log-spaced histogram in 25 kB; bins are 0.8 % wide, from 1 us to 28 hours, and
a percentile is interpolated in its bin. It knows durations and weights, not where they come from.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simserve.engine.config import EngineConfig
from simserve.engine.state import RequestTable
from simserve.perf.account import Account, StepCounts
from simserve.perf.operators import PricedDeployment
from simserve.workload.requests import RequestSpecs

if TYPE_CHECKING:
    from simserve.engine.state import StepTimes

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
STATUSES = ("completed", "rejected", "timed_out", "failed", "unfinished")
COMPLETED, REJECTED, TIMED_OUT, FAILED, UNFINISHED = range(5)
REASONS = (
    *("", "prompt_too_long", "rate_limit", "queue_full", "kv_headroom", "load"),
    *("deadline", "timeout", "replica_lost", "drained", "api_limit", "task_cancelled"),
)
"""Why a request was not completed: too long for the model; refused by a rule of `deployment.admission`; given up by its
client; lost with its replica, or when the replica's time to drain was over; refused by the API it went to; given up
with its agent's task, or never sent for that reason (its ``arrival_time`` is then NaN)."""
(
    PROMPT_TOO_LONG,
    RATE_LIMIT,
    QUEUE_FULL,
    KV_HEADROOM,
    LOAD,
    DEADLINE,
    TIMEOUT,
    REPLICA_LOST,
    DRAINED,
    API_LIMIT,
    TASK_CANCELLED,
) = range(1, len(REASONS))
SERVERS = ("replica", "api", "cache")
"""Who answered a request: a replica, the API of `deployment.overflow`, the response cache."""
REPLICA, API, CACHE = range(len(SERVERS))
_FURTHER = ("adapter", "thinking_tokens", "encoder_seconds", "earlier_images", "image_ends")
"""Columns of the table that have their own name in `RequestSpecs`, and that few workloads have."""
_LOWEST = 1e-6
_GROWTH = math.log(1.008)
NUM_BINS = 3180


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecords:
    """The outcome of every request; times are seconds on the simulation clock, NaN where undefined."""

    arrival_time: NDArray[np.float64]
    """When the client sent it; NaN if it never did (a closed loop that was interrupted)."""
    admitted_time: NDArray[np.float64]  # When it reached the scheduler's queue.
    scheduled_time: NDArray[np.float64]  # Start of the first step that worked on it.
    first_token_time: NDArray[np.float64]  # When its first token was ready.
    finish_time: NDArray[np.float64]  # When its last token was ready.
    prompt_tokens: NDArray[np.int64]  # Tokens of its prompt.
    output_tokens: NDArray[np.int64]  # Tokens generated.
    cached_tokens: NDArray[np.int64]  # Prompt tokens found in the prefix cache.
    num_preemptions: NDArray[np.int32]  # How often it lost its KV cache.
    replica_id: NDArray[np.int32]  # Replica that served it; -1 if none did.
    itl_max: NDArray[np.float64]  # Largest gap between two of its tokens, seconds; NaN below two tokens.
    status: NDArray[np.int8]  # Index into `STATUSES`.
    reason: NDArray[np.int8]  # Index into `REASONS`: why it was not completed.
    is_truncated: NDArray[np.bool_]  # Whether the model's length limit cut the tokens that the client asked for.
    request_class: NDArray[np.int16] | None = None  # Index into ``class_names``; None without classes.
    class_names: tuple[str, ...] = ()  # The classes, in the order of the scenario.
    session: NDArray[np.int64] | None = None  # Number of its conversation; None: no conversations.
    turn: NDArray[np.int64] | None = None  # Its turn there, from 1; None: no conversations that wait for answers.
    task: NDArray[np.int64] | None = None
    """Number of its agent's task, negative if it has none; None: there are no tasks."""
    adapter: NDArray[np.int64] | None = None  # Its LoRA adapter, -1: none; None: no request has one.
    served_by: NDArray[np.int8] | None = None
    """Index into `SERVERS`, for completed requests; None: replicas answered all."""
    prefill_end_time: NDArray[np.float64] | None = None
    """When its KV cache was ready to be sent to a decode replica, NaN if it never was; this and the three below: None
    without disaggregation."""
    transfer_start_time: NDArray[np.float64] | None = None  # When the link began to send it.
    transfer_end_time: NDArray[np.float64] | None = None
    """When it had arrived; the request then waits for a seat, until ``first_token_time``, or a decode step before it
    if the decode replica computes the first token."""
    prefill_replica_id: NDArray[np.int32] | None = None  # Replica that computed it; -1: no KV transfer.
    client_region: NDArray[np.int16] | None = None  # Index into ``region_names``; None: regions do not matter.
    region_names: tuple[str, ...] = ()  # The regions that clients are in.
    thinking_tokens: NDArray[np.int64] | None = None
    """Of ``output_tokens``, those before the answer; None, like the next: no request thinks."""
    answer_time: NDArray[np.float64] | None = None
    """When the first visible token of a completed request was ready; NaN: ``max_tokens`` left none."""

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.arrival_time)

    def by_arrival(self) -> RequestRecords:
        """Return the same in order of arrival, those that were never sent last."""
        return self.rows(np.argsort(self.arrival_time, kind="stable"))

    def sent(self) -> RequestRecords:
        """Return only those that were sent, in the same order."""
        return self.rows(np.flatnonzero(np.isfinite(self.arrival_time)))

    def rows(self, order: NDArray[np.intp]) -> RequestRecords:
        """Return some of the requests, in the order of the given indices."""
        columns = {each.name: getattr(self, each.name) for each in fields(self)}
        sorted_columns: dict[str, Any] = {
            name: column[order] for name, column in columns.items() if isinstance(column, np.ndarray)
        }
        return replace(self, **sorted_columns)


def table_for(specs: RequestSpecs, config: EngineConfig, *, is_lean: bool = False) -> RequestTable:
    """Return the table of requests under the length limits of an engine; arguments as for `RequestTable`."""
    further = {name: getattr(specs, name) for name in _FURTHER}
    tokens = specs.prompt_tokens, specs.output_tokens, specs.max_tokens
    return RequestTable(*tokens, config, specs.pace, specs.priority, is_lean=is_lean, **further)


def answer_columns(requests: RequestTable, specs: RequestSpecs) -> dict[str, Any]:
    """Return ``thinking_tokens answer_time`` of `RequestRecords`; empty if no request thinks."""
    if specs.thinking_tokens is None:
        return {}
    generated = np.frombuffer(requests.generated_tokens, dtype=np.int64)
    first, last = np.frombuffer(requests.first_token_time), np.frombuffer(requests.finish_time)
    noted = np.frombuffer(requests.answer_time)
    is_completed = np.frombuffer(requests.status, dtype=np.int8) == COMPLETED
    is_elsewhere = np.frombuffer(requests.replica_id, dtype=np.int32) < 0
    times = answer_times(specs.thinking_tokens, generated, first, last, noted, is_elsewhere=is_elsewhere)
    return {
        "thinking_tokens": np.minimum(specs.thinking_tokens, generated),
        "answer_time": np.where(is_completed, times, np.nan),
    }


def answer_times(
    thinking: NDArray[np.int64],
    generated: NDArray[np.int64],
    first: NDArray[np.float64],
    last: NDArray[np.float64],
    noted: NDArray[np.float64],
    *,
    is_elsewhere: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """Return when each answer began, seconds; NaN if the limit of its tokens left none of it.

    A static batch answers all at once, at its end. The tokens of an API, or of a response cache, are evenly spaced.

    Args:
        thinking: Tokens before the answer.
        generated: Tokens in all.
        first: When the first of them was ready, seconds.
        last: When the last one was ready.
        noted: When the replica began the answer; NaN: not recorded.
        is_elsewhere: Whether no replica answered.
    """
    evenly = first + (last - first) * (thinking / np.maximum(generated - 1, 1))
    times = np.where(is_elsewhere, evenly, np.where(np.isnan(noted), last, noted))
    times = np.where(thinking == 0, first, times)
    return np.where(thinking < generated, times, np.nan)


def served_by(records: RequestRecords, server: int) -> NDArray[np.bool_]:
    """Return which requests were answered by a server, an index into `SERVERS`."""
    completed: NDArray[np.bool_] = records.status == COMPLETED
    if records.served_by is None:
        return completed if server == REPLICA else np.zeros(len(records), dtype=bool)
    found: NDArray[np.bool_] = completed & (records.served_by == server)
    return found


def on_replicas(records: RequestRecords) -> NDArray[np.bool_]:
    """Return which requests a replica accepted, whatever their outcome."""
    taken: NDArray[np.bool_] = np.isfinite(records.scheduled_time)
    return taken if records.served_by is None else taken & (records.served_by == REPLICA)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeapColumns:
    """Columns of leaps; sums are over all steps of a leap."""

    steps: Floats  # Steps.
    decoding: Floats  # Sequences that decode in each step.
    prefilled: Floats  # Prefill tokens, summed.
    prefilling: Floats  # Requests with a chunk in each step.
    priced: Floats  # Tokens that each step is priced for, x of `StepTimes`.
    alike: Floats  # Sequences as which several stages take those that decode.
    pairs: Floats  # Attended pairs of the chunks, summed.
    keys: Floats  # Keys that the chunks read, summed.
    contexts: Floats  # Tokens in the KV cache of the decoding sequences, summed.


class StepSums:
    """Counts the steps of one kind of replica.

    Args:
        priced: Breakdown of those seconds by part.
    """

    def __init__(self, config: EngineConfig, times: StepTimes, priced: PricedDeployment) -> None:
        self._priced, self._parts = priced, priced.parts
        self._width = 1 + config.num_speculative_tokens
        self._num_ranks = config.data_parallel_size
        self._is_uneven = config.keeps_micro_batches or config.samples_in_turn
        self._slope = np.asarray(times.decode_slope, dtype=np.float64)
        self._mixed_slope = times.mixed_decode_factor * self._slope
        request, pair, context = (
            times.prefill_request_seconds,
            times.prefill_pair_seconds,
            times.prefill_context_seconds,
        )
        if priced.drafting is not None:
            # The parts are those of the target model: drafting is a separate part.
            draft = priced.drafting.times
            drafting = np.asarray(draft.decode_slope)
            self._slope = self._slope - drafting
            self._mixed_slope = self._mixed_slope - draft.mixed_decode_factor * drafting
            request -= draft.prefill_request_seconds
            pair -= draft.prefill_pair_seconds
            context -= draft.prefill_context_seconds
        self._request_seconds, self._pair_seconds, self._context_seconds = request, pair, context
        # Steps by batch size, without a chunk and then with one; contexts likewise; steps with a chunk by sequences.
        self._size = self._parts.decode.shape[1]
        self._by_decoding: Floats = np.zeros(2 * self._size)
        self._contexts_by_decoding: Floats = np.zeros(2 * self._size)
        self._by_sequences: Floats = np.zeros(self._size)
        # Steps with a chunk by tokens, and tokens beyond the table.
        self._by_tokens: Floats = np.zeros(self._parts.token.shape[1])
        self._tokens_beyond = 0.0
        # Steps of ranks in lockstep, by the tokens of all ranks.
        self._by_together: Floats = np.zeros(self._parts.shared.shape[1])
        self._pairs = self._keys = self._prefill_tokens = self._prefilling = 0.0
        # What is priced beyond the sequences that decode, and beyond their contexts, where micro-batches differ.
        self._further_decodes = self._further_contexts = 0.0

    def add(self, step_runs: LeapColumns) -> None:
        """Add leaps."""
        steps, prefilling = step_runs.steps, step_runs.prefilling
        kinds = step_runs.decoding.astype(np.int64)
        is_mixed = prefilling > 0
        if is_mixed.any():
            # Steps without a chunk get weight 0, which is faster than leaving them out.
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
        contexts = step_runs.contexts
        if self._is_uneven:
            kinds, contexts = self._priced_decodes(step_runs, kinds)
        kinds = kinds + self._size * is_mixed
        _count(self._by_decoding, kinds, steps)
        _count(self._contexts_by_decoding, kinds, contexts)
        if self._parts.shared.shape[1]:
            together = (step_runs.priced * self._num_ranks).astype(np.int64)
            _count(self._by_together, np.minimum(together, self._parts.shared.shape[1] - 1), steps)

    def _priced_decodes(self, step_runs: LeapColumns, kinds: Integers) -> tuple[Integers, Floats]:
        """Return the sequences that decode, and their contexts, as they are priced: as if every micro-batch were as
        large as the largest. What that is beyond those there are is remembered."""
        alike = np.where(kinds > 0, step_runs.alike, 0.0)
        contexts = step_runs.contexts * np.divide(alike, kinds, out=np.ones(len(kinds)), where=kinds > 0)
        self._further_decodes += float(((alike - kinds) * step_runs.steps).sum())
        self._further_contexts += float((contexts - step_runs.contexts).sum())
        return alike.astype(np.int64), contexts

    @property
    def parts(self) -> Floats:
        """Seconds of ``weights, kv, compute, communication, host``, shape [5], without the joint work of ranks."""
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
        """Seconds by part, shape [5], of the joint work of ranks if all are equally full."""
        return _weigh(self._parts.shared, self._by_together)

    def account(self, factor: float, shared_factor: float, others: Mapping[str, float]) -> Account:
        """Return what is needed to break the seconds down by operator; the arguments are those of `Account`."""
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
        """Return the attention seconds that are in no table: of keys and values read, and of pairs and requests."""
        size = self._size
        contexts = self._slope * self._contexts_by_decoding[:size]
        contexts = contexts + self._mixed_slope * self._contexts_by_decoding[size:]
        read = float(contexts.sum()) + self._context_seconds * self._keys
        return read, self._pair_seconds * self._pairs + self._request_seconds * self._prefilling

    @property
    def flops(self) -> float:
        """Arithmetic done, FLOP."""
        parts, decodes = self._parts, self._width * self._num_decodes()
        attended = (
            self._pairs + self._width * (float(self._contexts_by_decoding.sum()) - self._further_contexts) + decodes
        )
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
        kv_tokens = (float(self._contexts_by_decoding.sum()) - self._further_contexts) + self._keys + tokens
        return float(weights + parts.token_bytes * tokens + parts.kv_bytes_per_token * kv_tokens)

    def _num_decodes(self) -> float:
        """Return the sequences that decoded, summed over steps."""
        return float((np.tile(np.arange(self._size), 2) * self._by_decoding).sum()) - self._further_decodes


def _count(counts: Floats, kinds: Integers, weights: Floats) -> None:
    """Add weights by kind; the largest kinds are rare, so most of a long table need not be touched."""
    found = np.bincount(kinds, weights=weights)
    counts[: len(found)] += found


def _weigh(table: NDArray[np.float64], counts: Floats) -> Floats:
    """Return the rows of a table weighted by counts. Not with BLAS, whose sums depend on its number of threads."""
    total: Floats = (table * counts).sum(axis=1)
    return total


class Histogram:
    """Weighted durations in seconds.

    Attributes:
        counts: Weight in each bin, shape [num_bins], float64.
        count: Sum of weights.
        total: Weighted sum, seconds; exact, not from the bins.
        total_squares: Weighted sum of squares, seconds^2; exact.
        minimum: Smallest duration, NaN when empty.
        maximum: Largest duration, NaN when empty.
    """

    __slots__ = ("count", "counts", "maximum", "minimum", "total", "total_squares")

    def __init__(self) -> None:
        self.counts: NDArray[np.float64] = np.zeros(NUM_BINS)
        self.count = 0.0
        self.total = 0.0
        self.total_squares = 0.0
        self.minimum = math.nan
        self.maximum = math.nan

    def add(self, values: ArrayLike, weights: ArrayLike | None = None) -> None:
        """Add durations (seconds, > 0) with their weights, arrays of one shape; None: each counts once."""
        durations = np.asarray(values, dtype=np.float64)
        mass = np.ones(len(durations)) if weights is None else np.asarray(weights, dtype=np.float64)
        self.count += float(mass.sum())
        self.total += float((durations * mass).sum())
        self.total_squares += float((durations * durations * mass).sum())
        used = durations[mass > 0]
        self._extend_range(used, used)
        self._fill(bins_of(durations), mass)

    def add_progressions(
        self,
        first: NDArray[np.float64],
        increment: NDArray[np.float64],
        length: NDArray[np.float64],
        weight: NDArray[np.float64],
    ) -> None:
        """Add arithmetic progressions ``first + increment * k`` for ``k = 0 .. length - 1``, each with a weight.

        All arrays have one shape; ``first > 0``, ``increment >= 0``, ``length >= 1``. A weight of 0 counts for nothing.
        """
        mass = weight * length
        pairs = length * (length - 1.0) * 0.5
        grown = increment * pairs
        sums = first * length + grown
        last = first + increment * (length - 1.0)
        self.count += float(mass.sum())
        self.total += float((weight * sums).sum())
        # first^2 n + 2 first increment pairs + increment^2 pairs (2 n - 1) / 3
        squares = first * (sums + grown) + increment * grown * ((2.0 * length - 1.0) * (1.0 / 3.0))
        self.total_squares += float((weight * squares).sum())
        used = mass > 0
        if not used.all():
            if not used.any():
                return
            self._extend_range(first[used], last[used])
        else:
            self._extend_range(first, last)
        low, high = bins_of(first), bins_of(last)
        is_wide = low != high
        if not is_wide.any():
            self._fill(low, mass)
            return
        self._fill(low, np.where(is_wide, 0.0, mass))
        wide = np.flatnonzero(is_wide & used)
        if len(wide):
            self._spread(first[wide], increment[wide], length[wide], weight[wide], low[wide], high[wide])

    def add_counted(
        self, counts: NDArray[np.float64], total: float, total_squares: float, minimum: float, maximum: float
    ) -> None:
        """Add durations that are already in bins (`bins_of`); arguments as the attributes of the class."""
        self.counts += counts
        self.count += float(counts.sum())
        self.total += total
        self.total_squares += total_squares
        self.minimum = float(np.fmin(self.minimum, minimum))
        self.maximum = float(np.fmax(self.maximum, maximum))

    def merge(self, other: Histogram) -> None:
        """Add all of another histogram."""
        self.counts += other.counts
        self.count += other.count
        self.total += other.total
        self.total_squares += other.total_squares
        self.minimum = float(np.fmin(self.minimum, other.minimum))
        self.maximum = float(np.fmax(self.maximum, other.maximum))

    def percentile(self, q: float) -> float:
        """Return the q-th percentile in seconds (q in 0..100), interpolated in its bin; NaN when empty."""
        return self.percentiles_of(self.counts, (q,))[0]

    def percentiles_of(self, counts: NDArray[np.float64], asked: Iterable[float]) -> list[float]:
        """Return percentiles of weights in the same bins, within the range of this histogram; one cumulative sum."""
        cumulative = np.cumsum(counts)
        if not cumulative[-1] > 0:
            return [math.nan for _ in asked]
        last = int(np.flatnonzero(counts)[-1])
        return [self._interpolated(counts, cumulative, q / 100 * cumulative[-1], last) for q in asked]

    def share_above(self, value: float) -> float:
        """Return the share of the weight above a duration (seconds), interpolated in its bin; NaN when empty."""
        if not self.count > 0:
            return math.nan
        place = min(max(math.log(max(value, _LOWEST) / _LOWEST) / _GROWTH, 0.0), NUM_BINS - 1.0)
        index = int(place)
        return float(self.counts[index + 1 :].sum() + (index + 1 - place) * self.counts[index]) / self.count

    def _interpolated(
        self, counts: NDArray[np.float64], cumulative: NDArray[np.float64], rank: float, last: int
    ) -> float:
        index = min(int(np.searchsorted(cumulative, rank, side="left")), last)
        below = cumulative[index - 1] if index else 0.0
        part = min(max((rank - below) / counts[index], 0.0), 1.0) if counts[index] else 0.0
        value = _LOWEST * math.exp(_GROWTH * (index + part))
        return min(max(value, self.minimum), self.maximum)

    def upper_edges(self) -> NDArray[np.float64]:
        """Return the upper edge of each bin, seconds, shape [num_bins]."""
        return _LOWEST * np.exp(_GROWTH * np.arange(1.0, NUM_BINS + 1.0))

    def _extend_range(self, least: NDArray[np.float64], most: NDArray[np.float64]) -> None:
        if len(least):
            self.minimum = float(np.fmin(self.minimum, least.min()))
            self.maximum = float(np.fmax(self.maximum, most.max()))

    def _fill(self, bins: NDArray[np.int64], mass: NDArray[np.float64]) -> None:
        self.counts += np.bincount(bins, weights=mass, minlength=NUM_BINS)

    def _spread(
        self,
        first: NDArray[np.float64],
        increment: NDArray[np.float64],
        length: NDArray[np.float64],
        weight: NDArray[np.float64],
        low: NDArray[np.int64],
        high: NDArray[np.int64],
    ) -> None:
        """Fill in progressions that cross bins: the terms below each bin's upper edge are counted in closed form."""
        spans = high - low + 1
        rows = np.repeat(np.arange(len(first)), spans)
        position = np.arange(len(rows)) - np.repeat(np.cumsum(spans) - spans, spans)
        bins = low[rows] + position
        edge = _LOWEST * np.exp(_GROWTH * (bins + 1))
        below = np.ceil((edge - first[rows]) / increment[rows])
        below = np.where(position == spans[rows] - 1, length[rows], np.clip(below, 0, length[rows]))
        previous = np.where(position == 0, 0, np.concatenate(([0.0], below[:-1])))
        self._fill(bins, np.maximum(below - previous, 0) * weight[rows])


def bins_of(durations: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the bin of each duration (seconds)."""
    index = np.log(np.maximum(durations, _LOWEST) * (1.0 / _LOWEST)) * (1.0 / _GROWTH)
    return np.minimum(index, NUM_BINS - 1.0).astype(np.int64)


@cache
def bin_edges() -> NDArray[np.float64]:
    """Return the least duration of each bin of `bins_of`, exact to the bit, shape [num_bins + 1].

    It is -inf for the first bin; inf follows the last.
    """
    number = np.arange(1, NUM_BINS)
    low = _LOWEST * np.exp(_GROWTH * (number - 0.5))
    high = _LOWEST * np.exp(_GROWTH * (number + 0.5))
    # Positive floats keep their order when their bits are read as integers.
    below, edges = low.view(np.int64), high.view(np.int64)
    while (edges - below > 1).any():
        middle = below + (edges - below) // 2
        reaches = bins_of(middle.view(np.float64)) >= number
        below, edges = np.where(reaches, below, middle), np.where(reaches, middle, edges)
    return np.concatenate(([-np.inf], edges.view(np.float64), [np.inf]))
