"""Recorder: adds up the leaps of a run, in closed form and column by column, and builds its time series.

The kernel writes one row per leap; here blocks of rows become totals by part, an inter-token-latency histogram, KV
integrals, time series in at most a thousand bins and, for a fleet, which replicas were present when. Knows no requests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simserve.engine.compiled.run import Compiled
from simserve.engine.state import (
    BLOCKED_BY_BLOCKS,
    BLOCKED_BY_BUDGET,
    BLOCKED_BY_LORAS,
    BLOCKED_BY_NOTHING,
    BLOCKED_BY_PREFIX,
    BLOCKED_BY_SCATTER,
    BLOCKED_BY_SEATS,
    LEAP_BYTES,
    LEAP_FIELDS,
    Replica,
    take_step_runs,
)
from simserve.perf.account import Account
from simserve.perf.operators import OPERATORS, PART_NAMES, PricedDeployment
from simserve.sim.records import Histogram, LeapColumns, RequestRecords, StepSums
from simserve.sim.totals import DraftSums, LoraSums, LoraTotals, OffloadSums, OffloadTotals, SpeculationTotals

if TYPE_CHECKING:
    from simserve.engine.cache_state import PrefixPaths
    from simserve.engine.config import EngineConfig
    from simserve.engine.state import StepTimes
    from simserve.sim.step_log import StepLog


_NUM_BINS = 1024
_FIRST_WIDTH = 1e-3
_ROUNDING = 1e-9  # Share of a bin below which a remainder is rounding.
FLUSH_ROWS, FLUSH_ROWS_EACH = 8192, 256
"""Leaps gathered before they are added up, in all and per replica: enough to amortise numpy, and to stay in cache."""
_DECODING = LEAP_FIELDS.index("num_decoding")
BLOCKED_NAMES = {
    BLOCKED_BY_SEATS: "seats",
    BLOCKED_BY_BLOCKS: "blocks",
    BLOCKED_BY_SCATTER: "blocks",
    BLOCKED_BY_BUDGET: "budget",
    BLOCKED_BY_LORAS: "loras",
    BLOCKED_BY_PREFIX: "prefix",
    BLOCKED_BY_NOTHING: "step",
}
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSeries:
    """Means over bins of time."""

    edges: Floats  # Seconds, shape [B + 1].
    running: Floats  # Requests being served, shape [B] as all below.
    waiting: Floats  # Requests queued for the first time.
    kv_usage: Floats  # Share of KV memory reserved.
    busy: Floats  # Share of replicas in a step.
    prefill_tokens_per_s: Floats  # Prompt tokens computed per second.
    decode_tokens_per_s: Floats
    """Tokens decoded per second; with static batching including padding, which is computed too."""
    replicas_launched: Floats | None = None  # Replicas that are paid for; None, like the next: constant.
    replicas_ready: Floats | None = None  # Replicas that take requests, or finish their last ones.


class BinnedSums:
    """Sums over bins whose width doubles whenever the run outgrows them."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._width = _FIRST_WIDTH
        self._sums: Floats = np.zeros((len(names), _NUM_BINS))

    def add(self, start: Floats, seconds: Floats, amounts: Floats, counts: Sequence[int] | None = None) -> None:
        """Spread amounts evenly over the intervals ``[start, start + seconds]``.

        Args:
            start: Seconds, shape [intervals] like the next.
            seconds: Length of each interval.
            amounts: Amount in each interval, by name; shape [names, intervals].
            counts: Number of intervals of each replica, at least one each, replica after replica; the intervals of one
                ascend and are disjoint. None: all are of one replica.
        """
        lengths = np.array([len(start)] if counts is None else counts)
        stops = np.cumsum(lengths)
        firsts, lasts = stops - lengths, stops - 1
        ends = start + seconds
        self._reach(float(ends[lasts].max()))
        low = int(start[firsts].min() / self._width)
        high = min(int(ends[lasts].max() / self._width) + 1, _NUM_BINS)
        numbers = np.arange(low, high + 1)
        edges = self._width * numbers
        # The interval that an edge falls into counts with its share before the edge; shape [replicas, edges].
        if len(lengths) == 1:
            at = np.minimum(np.searchsorted(ends, edges), lasts[0])[None, :]
        else:
            # Bins of all replicas in one ascending column, replica after replica.
            above = (_NUM_BINS + 2) * np.arange(len(lengths))
            bins = (ends * (1.0 / self._width)).astype(np.int64) + np.repeat(above, lengths)
            at = np.searchsorted(bins, above[:, None] + numbers)
            at = np.minimum(np.maximum(at, firsts[:, None]), lasts[:, None])
        share = np.minimum(np.maximum((edges - start[at]) / seconds[at], 0.0), 1.0)
        is_empty = at[:, 1:] == at[:, :-1]
        reached = share * amounts[:, at]
        between = np.add.reduceat(amounts, at.ravel(), axis=1).reshape(len(amounts), *at.shape)[:, :, :-1]
        between[:, is_empty] = 0.0
        self._sums[:, low:high] += (between + (reached[:, :, 1:] - reached[:, :, :-1])).sum(axis=1)

    def _reach(self, end: float) -> None:
        """Widen the bins until they cover a time; work outside the replicas may end after the last step."""
        while end > self._width * _NUM_BINS:
            halves = self._sums[:, ::2] + self._sums[:, 1::2]
            self._sums = np.concatenate((halves, np.zeros_like(halves)), axis=1)
            self._width *= 2

    def means(self, end_time: float) -> tuple[Floats, dict[str, Floats]]:
        """Return the edges of the bins up to ``end_time`` and the mean rate of each sum in them."""
        self._reach(end_time)
        # An end that equals a bin edge up to rounding begins no bin of its own.
        count = min(max(1, int(np.ceil(end_time / self._width - _ROUNDING))), _NUM_BINS)
        edges: Floats = self._width * np.arange(count + 1, dtype=np.float64)
        if end_time > 0:
            edges[-1] = min(edges[-1], end_time) if end_time > edges[-2] else edges[-1]
        widths = np.diff(edges)
        return edges, {name: self._sums[row, :count] / widths for row, name in enumerate(self._names)}


def mean_count(entered: Floats, left: Floats, edges: Floats) -> Floats:
    """Return the mean number present in each bin, from the times of entering and leaving.

    Entries that never entered (NaN) do not count; those that never left stay to the end.
    """
    return _mean(_area(entered, edges) - _area(left[~np.isnan(entered)], edges), edges)


def mean_running_and_waiting(
    admitted: Floats, scheduled: Floats, finish: Floats, edges: Floats
) -> tuple[Floats, Floats]:
    """Return the `mean_count` from ``scheduled`` to ``finish``, and that from ``admitted`` to ``scheduled``.

    Requests that were scheduled were admitted before.
    """
    began = _area(scheduled, edges)
    running = began - _area(finish[~np.isnan(scheduled)], edges)
    return _mean(running, edges), _mean(_area(admitted, edges) - began, edges)


def _mean(integral: Floats, edges: Floats) -> Floats:
    return np.maximum(np.diff(integral) / np.diff(edges), 0.0)


def ascending(values: Floats) -> Floats:
    """Return values in ascending order, as they are if already sorted, as arrivals are. Without NaN."""
    return values if bool((values[1:] >= values[:-1]).all()) else np.sort(values)


def _area(times: Floats, at: Floats) -> Floats:
    """Return the integral up to ``at``, edges of bins, of the number of ``times`` that have passed."""
    is_known = times <= at[-1]
    known = times if is_known.all() else times[is_known]
    # Entries at an edge add nothing there, so no sort is needed. All bins but the last are as wide as the first.
    bins = ((known - at[0]) * (1.0 / (at[1] - at[0]))).astype(np.int64) + 1
    is_early = known < at[0]
    if is_early.any():
        bins[is_early] = 0
    np.minimum(bins, len(at) - 1, out=bins)
    passed = np.cumsum(np.bincount(bins, minlength=len(at)))
    before = np.cumsum(np.bincount(bins, weights=known, minlength=len(at)))
    area: Floats = at * passed - before
    return area


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetTimeline:
    """When replicas came and went, in a run in which they did, or in which requests were tried again."""

    launched_at: Floats  # Seconds, shape [replicas] as all below; paid for from then on.
    ready_at: Floats  # When it first took requests; inf: never.
    stopped_at: Floats  # When it was given back; inf: never.
    gpus: NDArray[np.int64]  # GPUs of each.
    pool: NDArray[np.int64]  # Index of its pool.
    lost_since: Floats  # When each temporarily lost replica went down, shape [losses].
    lost_until: Floats  # When it was back, shape [losses].
    tries: Floats
    """For every failed attempt that was followed by another: when it reached the scheduler, its first step (NaN:
    none), its end; shape [attempts, 3]."""
    refusals: dict[str, int]  # Refusals by admission control, by reason, including those of repeated tries.
    num_resent: int  # Requests that clients sent again.
    lost_tokens: int  # Tokens generated for requests that were then given up or lost.
    pool_regions: tuple[str, ...] = ()  # Regions of the pools; empty texts without regions.
    ranks: NDArray[np.int64] | None = None
    """Schedulers of each, the ranks of data-parallel attention; None: one each."""
    num_killed: int = 0  # Replicas that a liveness probe restarted.
    num_missed: int = 0  # Faults and updates whose time had not come by the end of the run.
    num_replaced: int = 0  # Replicas that rolling updates replaced.
    updates: Floats = field(default_factory=lambda: np.empty((0, 2)))
    """When each rolling update began, and when its last replica was ready (inf: not yet), shape [updates, 2]."""

    def launched(self, edges: Floats) -> Floats:
        """Return the mean number of replicas that are paid for in each bin."""
        return mean_count(self.launched_at, _until(self.stopped_at), edges)

    def ready(self, edges: Floats) -> Floats:
        """Return the mean number of replicas that serve in each bin."""
        ready = np.where(np.isfinite(self.ready_at), self.ready_at, np.nan)
        serving = mean_count(ready, _until(self.stopped_at), edges)
        return np.maximum(serving - mean_count(self.lost_since, _until(self.lost_until), edges), 0.0)

    def mean_replicas(self, start: float, end: float, pool: int | None = None) -> float:
        """Return the mean number of replicas that are paid for between two instants, of one pool or of all."""
        return self._mean(np.ones(len(self.gpus)), start, end, pool)

    def mean_schedulers(self, start: float, end: float, pool: int | None = None) -> float:
        """Return the mean number of schedulers that are paid for between two instants, of one pool or of all."""
        if self.ranks is None:
            return self.mean_replicas(start, end, pool)
        return self._mean(self.ranks.astype(np.float64), start, end, pool)

    def schedulers(self, edges: Floats) -> Floats:
        """Return the mean number of schedulers that are paid for in each bin."""
        if self.ranks is None:
            return self.launched(edges)
        return mean_count(
            np.repeat(self.launched_at, self.ranks), _until(np.repeat(self.stopped_at, self.ranks)), edges
        )

    def mean_gpus(self, start: float, end: float, pool: int | None = None) -> float:
        """Return the mean number of GPUs that are paid for between two instants, of one pool or of all."""
        return self._mean(self.gpus.astype(np.float64), start, end, pool)

    def running_and_waiting(self, records: RequestRecords, edges: Floats) -> tuple[Floats, Floats]:
        """Return the mean numbers of requests being served and waiting in each bin, including failed attempts."""
        scheduled, finish = records.scheduled_time, records.finish_time
        never = np.isfinite(records.admitted_time) & ~np.isfinite(scheduled) & np.isfinite(finish)
        left_queue = np.where(never, finish, scheduled)
        running = mean_count(scheduled, finish, edges)
        waiting = mean_count(records.admitted_time, left_queue, edges)
        if len(self.tries):
            ready, started, ended = self.tries.T
            running = running + mean_count(started, ended, edges)
            waiting = waiting + mean_count(ready, np.where(np.isnan(started), ended, started), edges)
        return running, waiting

    def _mean(self, weights: Floats, start: float, end: float, pool: int | None) -> float:
        if pool is not None:
            weights = weights * (self.pool == pool)
        if not end > start:
            return float(weights @ (self.launched_at <= start))
        overlap = np.clip(np.minimum(self.stopped_at, end) - np.maximum(self.launched_at, start), 0.0, None)
        return float(weights @ overlap) / (end - start)


def _until(times: Floats) -> Floats:
    """Return times of leaving in the form that `mean_count` takes: NaN for never."""
    return np.where(np.isfinite(times), times, np.nan)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTotals:
    """Totals of a run over all replicas."""

    num_steps: int  # Engine steps.
    sequence_steps: float  # Sum over steps of the sequences in the step.
    busy_seconds: float  # Sum of step durations.
    seconds_by_part: dict[str, float]
    """Keys ``weights, kv, compute, communication, host`` and, for all drafting work, ``draft``; sums to
    ``busy_seconds``."""
    flops: float  # Arithmetic done.
    bytes: float  # Bytes of weights, KV and activations moved.
    blocked_seconds: dict[str, float]
    """Waiting requests times seconds, by what blocked the head of the queue, the values of `BLOCKED_NAMES`: ``seats,
    blocks, budget``; ``loras`` with adapters; ``prefix`` where requests wait for a prompt that another computes;
    ``step``: it arrived while a step was running."""
    kv_capacity_tokens: float  # KV capacity of all replicas; 0 without a KV cache.
    kv_reserved_token_seconds: float  # Integral of KV tokens reserved by requests.
    kv_held_token_seconds: float  # Integral of KV tokens that are filled.
    kv_unusable_token_seconds: float
    """Integral of KV tokens that are free but too fragmented for the request that is blocked at the head of the
    queue."""
    kv_peak_share: float  # Largest share of one replica's KV memory that was reserved.
    itl: Histogram
    """Every gap between consecutive tokens of a request. The tokens of one step arrive together and count once, as
    `vllm bench serve` counts chunks of a stream."""
    series: TimeSeries  # Time series of the run.
    swapped_blocks: int = 0  # KV blocks copied to host memory and back, each way counted.
    speculation: SpeculationTotals | None = None  # Totals of drafts; None without speculative decoding.
    offload: OffloadTotals | None = None  # Totals of KV tiers behind the prefix caches; None if there are none.
    loras: LoraTotals | None = None  # Totals of LoRA adapters; None if no request has one.
    accounts: tuple[Account, ...] = field(default=(), metadata={"is_stored": False})
    """Breakdown of ``busy_seconds`` by operator, one per kind of replica; none if steps have no price."""

    @property
    def seconds_by_operator(self) -> dict[str, float]:
        """Seconds of each of `simserve.perf.operators.OPERATORS`; they sum to ``busy_seconds``."""
        each = [account.seconds_by_operator() for account in self.accounts]
        return {operator: sum(seconds[operator] for seconds in each) for operator in OPERATORS}


def series_sums() -> BinnedSums:
    """Return empty sums over time, for recorders to fill."""
    return BinnedSums(("busy", "kv", "prefill", "decode"))


class Recorder:
    """Adds up the leaps of the replicas of one run."""

    def __init__(
        self,
        config: EngineConfig,
        times: StepTimes,
        priced: PricedDeployment | None,
        sums: BinnedSums | None = None,
        log: StepLog | None = None,
    ) -> None:
        """Start with empty totals; ``log`` also gets every leap."""
        self._log = log
        self._config = config
        self._times = times
        self._steps = None if priced is None else StepSums(config, times, priced)
        self._drafts: DraftSums | None = None
        if config.num_speculative_tokens:
            self._drafts = DraftSums(priced.drafting if priced is not None else None, config.data_parallel_size)
        self.clocks: dict[tuple[int, int], list[Floats]] | None = None
        """Leaps with decodes, by replica and rank (`simserve.sim.streaming.Clocks`); None: not kept."""
        self.scales_parts = False
        """Whether some steps took longer than their parts, on a slow replica; the parts are then scaled up alike."""
        self._offload = OffloadSums(config, times.token_seconds) if config.kv_tiers else None
        self._loras = LoraSums() if config.max_loras else None
        self.encodes_images = False
        """Whether steps encode images: time beyond their parts is then the encoder's arithmetic."""
        self.paths: PrefixPaths | None = None
        """What requests share on these replicas, to count what they found in tiers behind the cache."""
        self._histogram = Histogram()
        self._rows: Floats = np.empty((len(LEAP_FIELDS), 0))
        # Pools of one run share their sums over time.
        self._sums = series_sums() if sums is None else sums
        self._blocked = np.zeros(len(BLOCKED_NAMES))
        self._num_steps = self._swapped_blocks = 0
        self._sequence_steps = self._busy = 0.0
        self._reserved = self._held = self._unusable = self._peak = 0.0
        uses_cache = config.kv_allocation != "none"
        per_slot = config.max_model_len if config.kv_allocation == "static" else 0
        capacity = config.num_blocks * config.block_size
        self._usable = float((capacity // per_slot) * per_slot if per_slot else capacity)
        self._capacity = float(capacity) if uses_cache else 0.0

    def watch(self, replica: Replica) -> None:
        """Also log the steps of this scheduler, if steps are logged."""
        if self._log is not None:
            self._log.watch([replica])

    def flush_compiled(self, compiled: Compiled, num_step_runs: int, numbers: Sequence[int]) -> None:
        """Add up and clear the rows of those compiled replicas that have at least ``num_step_runs``."""
        lengths = compiled.num_step_runs(numbers)
        if sum(lengths) < num_step_runs:
            return
        self._swapped_blocks += compiled.take_swapped_blocks(numbers)
        if self._loras is not None:
            for loras in compiled.loras_of(numbers):
                self._loras.take(loras)
        if self._offload is not None:
            for tiers in compiled.tiers_of(numbers):
                self._offload.take(tiers)
            if self.paths is not None and self.paths.store is not None:
                self._offload.take_store(compiled.store_of(self.paths))
        self._add_irregular(compiled.take_gaps(numbers))
        counts = [length for length in lengths if length]
        busy = [number for number, length in zip(numbers, lengths, strict=True) if length]
        rows = self._room(sum(counts))
        for number, part in zip(busy, _parts(rows, counts), strict=True):
            compiled.take_step_runs(number, part)
            self._keep_clock(compiled.schedulers[number], part)
        advances = self._advances(rows, compiled.take_advances(numbers))
        if self._log is not None:
            changes = [compiled.take_batch_log(number) for number in busy]
            self._keep_steps([compiled.schedulers[number] for number in busy], rows, advances, changes, counts)
        self._add(rows, advances, counts)

    def flush(self, replica: Replica) -> None:
        """Add up and clear the rows that a replica has written."""
        self.flush_all([replica])

    def flush_all(self, replicas: Sequence[Replica]) -> None:
        """Add up and clear the rows that replicas have written."""
        gaps: list[float] = []
        for replica in replicas:
            self._swapped_blocks += replica.num_swapped_blocks
            replica.num_swapped_blocks = 0
            if self._loras is not None and replica.loras is not None:
                self._loras.take(replica.loras)
            if self._offload is not None and replica.cache is not None:
                self._offload.take(replica.cache.tiers)
            gaps += replica.irregular_gaps
            replica.irregular_gaps.clear()
        if self._offload is not None and self.paths is not None and self.paths.store is not None:
            self._offload.take_store(self.paths.store)
        self._add_irregular(np.array(gaps, dtype=np.float64).reshape(-1, 2))
        busy = [replica for replica in replicas if replica.step_runs]
        counts = [len(replica.step_runs) // LEAP_BYTES for replica in busy]
        rows = self._room(sum(counts))
        advances: list[float] = []
        for replica, part in zip(busy, _parts(rows, counts), strict=True):
            take_step_runs(replica.step_runs, part)
            self._keep_clock(replica, part)
            advances += replica.advances
            replica.advances.clear()
        each = self._advances(rows, advances)
        if self._log is not None:
            self._keep_steps(busy, rows, each, [_taken(replica.batch_log) for replica in busy], counts)
        self._add(rows, each, counts)

    def add_steps(
        self, rows: Floats, advances: Floats, counts: Sequence[int], gaps: Floats, swapped_blocks: int
    ) -> None:
        """Add steps that were not taken by the plane.

        Args:
            rows: One scheduler after another, shape [fields, steps].
            advances: The tokens that each step adds to the contexts.
            counts: Steps of each scheduler, at least one.
            gaps: Gaps between tokens as clients saw them, seconds.
            swapped_blocks: KV blocks copied to host memory and back, each way counted.
        """
        self._swapped_blocks += swapped_blocks
        self._add_irregular(np.stack([gaps, np.ones_like(gaps)], axis=1))
        self._add(rows, advances, counts)

    def _keep_steps(
        self,
        replicas: Sequence[Replica],
        rows: Floats,
        advances: Floats,
        changes: Sequence[Floats],
        counts: Sequence[int],
    ) -> None:
        assert self._log is not None
        stops = list(accumulate(counts))
        for replica, count, stop, own in zip(replicas, counts, stops, changes, strict=True):
            part = slice(stop - count, stop)
            self._log.add(replica, rows[:, part].copy(), advances[part].copy(), own)

    def _room(self, num_step_runs: int) -> Floats:
        """Return a reused buffer for ``num_step_runs`` leaps, shape [fields, leaps]."""
        if self._rows.shape[1] < num_step_runs:
            self._rows = np.empty((len(LEAP_FIELDS), num_step_runs + num_step_runs // 2))
        return self._rows[:, :num_step_runs]

    def _add_irregular(self, gaps: Floats) -> None:
        """Add gaps, shape [gaps, 2]: seconds, and number."""
        if len(gaps):
            self._histogram.add(gaps[:, 0], gaps[:, 1])

    def _keep_clock(self, replica: Replica, rows: Floats) -> None:
        if self.clocks is not None:
            self.clocks.setdefault((replica.identity, replica.rank), []).append(
                rows[: _DECODING + 1, rows[_DECODING] > 0]
            )

    def _advances(self, rows: Floats, drawn: Sequence[float] | Floats) -> Floats:
        """Return the tokens that a step of each leap adds to the contexts; ``drawn`` are those that drafts decide."""
        if self._drafts is None:
            steady: Floats = rows[_DECODING]
            return steady
        advances = np.zeros(rows.shape[1])
        advances[rows[_DECODING] > 0] = drawn
        return advances

    def totals(
        self, num_replicas: float, records: RequestRecords, end_time: float, timeline: FleetTimeline | None = None
    ) -> RunTotals:
        """Return the totals; every replica must have been flushed.

        Args:
            num_replicas: Schedulers that served, throughout or on average.
            end_time: The last event, seconds.
            timeline: Which replicas were present when, and failed attempts, if there were changes.
        """
        steps, drafts = self._steps, self._drafts
        parts, accounts = self._told_apart()
        edges, means = self._sums.means(end_time)
        if timeline is None:
            running, waiting = mean_running_and_waiting(
                records.admitted_time, records.scheduled_time, records.finish_time, edges
            )
            present: Floats = np.full(len(edges) - 1, float(num_replicas))
        else:
            running, waiting = timeline.running_and_waiting(records, edges)
            present = timeline.schedulers(edges)
        capacity = self._capacity * num_replicas
        most = np.maximum(present, np.finfo(np.float64).tiny)
        series = TimeSeries(
            edges=edges,
            running=running,
            waiting=waiting,
            kv_usage=means["kv"] / (self._capacity * most) if capacity else np.zeros(len(edges) - 1),
            busy=means["busy"] / most,
            prefill_tokens_per_s=means["prefill"],
            decode_tokens_per_s=means["decode"],
            replicas_launched=None if timeline is None else timeline.launched(edges),
            replicas_ready=None if timeline is None else timeline.ready(edges),
        )
        return RunTotals(
            num_steps=self._num_steps,
            sequence_steps=self._sequence_steps,
            busy_seconds=self._busy,
            seconds_by_part=dict(zip((*PART_NAMES, "draft"), parts, strict=True)),
            flops=(0.0 if steps is None else steps.flops) + (0.0 if drafts is None else drafts.flops),
            bytes=(0.0 if steps is None else steps.bytes) + (0.0 if drafts is None else drafts.bytes),
            blocked_seconds=self._blocked_seconds(),
            kv_capacity_tokens=capacity,
            kv_reserved_token_seconds=self._reserved,
            kv_held_token_seconds=self._held,
            kv_unusable_token_seconds=self._unusable,
            kv_peak_share=self._peak / self._capacity if self._capacity else 0.0,
            itl=self._histogram,
            series=series,
            swapped_blocks=self._swapped_blocks,
            speculation=None if self._drafts is None else self._drafts.totals(),
            offload=None if self._offload is None else self._offload.totals(self.paths),
            loras=None if self._loras is None else self._loras.totals(self._adapter_seconds()),
            accounts=accounts,
        )

    @property
    def _tier_seconds(self) -> float:
        """Seconds that steps waited for tiers behind the prefix cache."""
        return 0.0 if self._offload is None else self._offload.seconds

    def _adapter_seconds(self) -> float:
        """Return the seconds that adapters added to steps, without loads: the time that no other part accounts for.

        With an image encoder the two cannot be separated, and count as the encoder's arithmetic; waits for launches of
        prompts count as the adapters'.
        """
        if self._steps is None or self._loras is None or self.scales_parts or self.encodes_images:
            return 0.0
        drafting = 0.0 if self._drafts is None else self._drafts.seconds
        others = float(self._steps.parts.sum()) + drafting + self._tier_seconds + self._loras.seconds
        return max(self._busy - others, 0.0)

    def _told_apart(self) -> tuple[list[float], tuple[Account, ...]]:
        """Return the seconds of every part and, last, of drafts; and their breakdown by operator.

        For steps that ranks take together, the remaining time goes first to their joint work, then to waiting for the
        slowest rank; the experts' parts are those of equally loaded ranks.
        """
        parts: Floats = np.zeros(5) if self._steps is None else self._steps.parts
        drafting = 0.0 if self._drafts is None else self._drafts.seconds
        # Copies to and from host memory are time that steps waited for a link.
        copies = self._swapped_blocks * self._times.swap_block_seconds + self._tier_seconds
        loads, adapters = 0.0 if self._loras is None else self._loras.seconds, self._adapter_seconds()
        waiting = encoding = launching = 0.0
        factor = shared_factor = 1.0
        if self._steps is not None and self._config.data_parallel_size > 1:
            shared = self._steps.shared
            rest, together = self._busy - drafting - float(parts.sum()), float(shared.sum())
            shared_factor = min(rest / together, 1.0) if together > 0.0 else 0.0
            waiting = max(rest - together, 0.0)
            parts = parts + shared * shared_factor
        elif self.scales_parts and parts.sum() > 0:
            factor = (self._busy - drafting - (copies + loads)) / parts.sum()
            parts = parts * factor
        elif self.encodes_images:
            encoding = max(self._busy - drafting - (copies + loads) - float(parts.sum()), 0.0)
        elif self._times.launch_seconds:
            launching = max(self._busy - drafting - (copies + loads + adapters) - float(parts.sum()), 0.0)
        parts[2] += encoding
        parts[4] += launching
        parts[3] += waiting + (copies + loads)
        # Adapters are weights that are read in addition to the others.
        parts[0] += adapters
        others = {"rank_wait": waiting, "kv_copies": copies, "lora": loads + adapters, "image_encoder": encoding}
        others |= {"draft": drafting, "host": launching}
        accounts = () if self._steps is None else (self._steps.account(factor, shared_factor, others),)
        return [*parts.tolist(), drafting], accounts

    def _blocked_seconds(self) -> dict[str, float]:
        seconds = dict.fromkeys(BLOCKED_NAMES.values(), 0.0)
        for code, name in BLOCKED_NAMES.items():
            seconds[name] += float(self._blocked[code])
        if not self._config.max_loras:
            del seconds["loras"]
        if not self._config.has_prefix_waits:
            del seconds["prefix"]
        return seconds

    @property
    def is_short(self) -> bool:
        """Whether a request has waited for KV memory, or less was left than may be held beyond what is counted."""
        spare = self._config.surplus_blocks * self._config.block_size
        return bool(self._blocked[BLOCKED_BY_BLOCKS] > 0.0) or self._peak + spare > self._capacity

    def _add(self, rows: Floats, advances: Floats, counts: Sequence[int]) -> None:
        """Add leaps.

        Args:
            rows: One replica after another, shape [fields, leaps].
            advances: The tokens that a step of each leap adds to the contexts.
            counts: Leaps of each replica, at least one.
        """
        if not counts:
            return
        (start, steps, first, increment, decoding, context, prefill, prefilling, priced, alike) = rows[:10]
        (pairs, keys, first_gaps, further_gaps, held, before, after, waiting, blocked) = rows[10:]
        later = steps * (steps - 1.0) * 0.5
        amounts = np.empty((4, len(steps)))
        seconds, used, prefilled, decoded = amounts
        np.add(first * steps, increment * later, out=seconds)
        np.multiply(prefill, steps, out=prefilled)
        np.multiply(advances, steps, out=decoded)
        self._num_steps += int(np.add.reduce(steps))
        self._sequence_steps += float(np.add.reduce((decoding + prefilling) * steps))
        self._busy += float(np.add.reduce(seconds))
        if self._config.api_token_seconds:
            self._add_sent_gaps(first, increment, steps, decoding, first_gaps, further_gaps)
        else:
            self._add_gaps(first, increment, steps, first_gaps, further_gaps)
        self._blocked += np.bincount(blocked.astype(np.int64), weights=waiting, minlength=len(BLOCKED_NAMES))

        # A step's blocks are allocated before it runs; over a leap they grow evenly from `before` to `after`.
        half_way = (steps + 1.0) * 0.5
        np.multiply(before + (after - before) * half_way / steps, seconds, out=used)
        self._reserved += float(np.add.reduce(used))
        if self._capacity:
            self._held += float(np.add.reduce((held + (advances + prefill) * half_way) * seconds))
        if self._config.kv_allocation in ("pow2", "oracle"):
            is_stuck = blocked == BLOCKED_BY_SCATTER
            self._unusable += float(((self._usable - after) * seconds)[is_stuck].sum())
        self._peak = max(self._peak, float(after.max()))
        self._sums.add(start, seconds, amounts, counts)

        if self._drafts is None and self._steps is None:
            return
        columns = LeapColumns(
            steps=steps,
            decoding=decoding,
            prefilled=prefilled,
            prefilling=prefilling,
            priced=priced,
            alike=alike,
            pairs=pairs * steps + prefill * prefill * later,
            keys=keys * steps + prefill * later,
            contexts=context * steps + advances * later,
        )
        if self._drafts is not None:
            self._drafts.add(columns, advances)
        if self._steps is not None:
            self._steps.add(columns)

    def _add_sent_gaps(
        self, first: Floats, increment: Floats, steps: Floats, decoding: Floats, first_gaps: Floats, gaps: Floats
    ) -> None:
        """Add the gaps of leaps as clients see them: each at least the time the API server takes for a step."""
        sending = self._config.api_token_seconds * self._config.data_parallel_size * decoding
        # The first steps of a leap are sent more slowly than they run, until they have grown longer.
        grown = np.divide(sending - first, increment, out=np.full(len(steps), math.inf), where=increment > 0.0)
        num_sent = np.where(sending > first, np.minimum(np.ceil(grown), steps), 0.0)
        is_slower, is_cut = num_sent > 0.0, (num_sent > 0.0) & (num_sent < steps)
        pace, growth = np.where(is_slower, sending, first), np.where(is_slower, 0.0, increment)
        self._add_gaps(pace, growth, np.where(is_slower, num_sent, steps), first_gaps, gaps)
        if is_cut.any():
            rest = (first + increment * num_sent)[is_cut], increment[is_cut], (steps - num_sent)[is_cut]
            self._histogram.add_progressions(*rest, gaps[is_cut])

    def _add_gaps(self, first: Floats, increment: Floats, steps: Floats, first_gaps: Floats, gaps: Floats) -> None:
        is_other = first_gaps != gaps
        if not is_other.any():
            self._histogram.add_progressions(first, increment, steps, gaps)
            return
        self._histogram.add_progressions(first, increment, steps, np.where(is_other, 0.0, gaps))
        has_tail = is_other & (steps > 1)
        if has_tail.any():
            second = first[has_tail] + increment[has_tail]
            self._histogram.add_progressions(second, increment[has_tail], steps[has_tail] - 1, gaps[has_tail])


def _taken(entries: list[float] | None) -> Floats:
    """Return the contents of a list, and clear it."""
    taken = np.array(entries or (), dtype=np.float64)
    if entries is not None:
        entries.clear()
    return taken


def _parts(rows: Floats, counts: Sequence[int]) -> list[Floats]:
    """Split columns into those of each replica."""
    stops = list(accumulate(counts))
    return [rows[:, stop - count : stop] for stop, count in zip(stops, counts, strict=True)]
