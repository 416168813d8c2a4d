"""Time series of a run in at most a thousand bins, exact means, and of its fleet: which replicas were there when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simserve.sim.records import RequestRecords

Floats = NDArray[np.float64]
_NUM_BINS = 1024
_FIRST_WIDTH = 1e-3
_ROUNDING = 1e-9
"""Share of a bin that is no bin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSeries:
    """Means over bins of time.

    Attributes:
        edges: Seconds, shape [B + 1].
        running: Requests being served, shape [B] as all below.
        waiting: Requests queued for the first time.
        kv_usage: Share of KV memory reserved.
        busy: Share of replicas in a step.
        prefill_tokens_per_s: Prompt tokens computed a second.
        decode_tokens_per_s: Tokens decoded a second; of static batching with the padding, which is computed too.
        replicas_launched: Replicas that are paid for; None, like the next: the same throughout.
        replicas_ready: Replicas that take requests, or answer the last of them.
    """

    edges: Floats
    running: Floats
    waiting: Floats
    kv_usage: Floats
    busy: Floats
    prefill_tokens_per_s: Floats
    decode_tokens_per_s: Floats
    replicas_launched: Floats | None = None
    replicas_ready: Floats | None = None


class BinnedSums:
    """Sums over bins whose width doubles whenever the run outgrows them.

    Args:
        names: What is summed.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._width = _FIRST_WIDTH
        self._sums: Floats = np.zeros((len(names), _NUM_BINS))

    def add(self, start: Floats, seconds: Floats, amounts: Floats, counts: Sequence[int] | None = None) -> None:
        """Spread amounts evenly over the intervals ``[start, start + seconds]``.

        Args:
            start: Seconds, shape [intervals] as the next.
            seconds: How long each is.
            amounts: What each brings, by name; shape [names, intervals].
            counts: How many intervals of each replica there are, one replica's behind the other's, none of them
                without any; those of one ascend and are disjoint. None: all are of one.
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
        # Of the interval that an edge falls into, the share before the edge counts; shape [replicas, edges].
        if len(lengths) == 1:
            at = np.minimum(np.searchsorted(ends, edges), lasts[0])[None, :]
        else:
            # Bins of all replicas in one ascending column, each replica's above those before it.
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
        """Widen the bins until they cover a time; what runs elsewhere may end after the last step."""
        while end > self._width * _NUM_BINS:
            halves = self._sums[:, ::2] + self._sums[:, 1::2]
            self._sums = np.concatenate((halves, np.zeros_like(halves)), axis=1)
            self._width *= 2

    def means(self, end_time: float) -> tuple[Floats, dict[str, Floats]]:
        """Return the edges of the bins up to ``end_time`` and the mean rate of each sum in them."""
        self._reach(end_time)
        # An end that is the edge of a bin but for rounding begins no bin of its own.
        count = min(max(1, int(np.ceil(end_time / self._width - _ROUNDING))), _NUM_BINS)
        edges: Floats = self._width * np.arange(count + 1, dtype=np.float64)
        if end_time > 0:
            edges[-1] = min(edges[-1], end_time) if end_time > edges[-2] else edges[-1]
        widths = np.diff(edges)
        return edges, {name: self._sums[row, :count] / widths for row, name in enumerate(self._names)}


def mean_count(entered: Floats, left: Floats, edges: Floats) -> Floats:
    """Return the mean number inside over each bin, from the times of entering and leaving.

    Entries that never entered (NaN) do not count; those that never left stay to the end.
    """
    return _mean(_area(entered, edges) - _area(left[~np.isnan(entered)], edges), edges)


def mean_running_and_waiting(
    admitted: Floats, scheduled: Floats, finish: Floats, edges: Floats
) -> tuple[Floats, Floats]:
    """Return the `mean_count` from ``scheduled`` to ``finish``, and that from ``admitted`` to ``scheduled``.

    Who was scheduled was admitted before.
    """
    began = _area(scheduled, edges)
    running = began - _area(finish[~np.isnan(scheduled)], edges)
    return _mean(running, edges), _mean(_area(admitted, edges) - began, edges)


def _mean(integral: Floats, edges: Floats) -> Floats:
    return np.maximum(np.diff(integral) / np.diff(edges), 0.0)


def ascending(values: Floats) -> Floats:
    """Return values in ascending order: themselves where they are, as arrivals are. None is NaN."""
    return values if bool((values[1:] >= values[:-1]).all()) else np.sort(values)


def _area(times: Floats, at: Floats) -> Floats:
    """Return the integral up to ``at``, edges of bins, of the number of ``times`` that have passed."""
    is_known = times <= at[-1]
    known = times if is_known.all() else times[is_known]
    # Whoever comes at an edge adds nothing there: no need to sort. All bins but the last are as wide as the first.
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
    """The lives of the replicas of a run in which they came and went, or in which requests were tried again.

    Attributes:
        launched_at: Seconds, shape [replicas] as all below; paid for from then on.
        ready_at: When it first took requests; inf: never.
        stopped_at: When it was given back; inf: never.
        gpus: GPUs of each.
        ranks: Schedulers of each, the ranks of data-parallel attention; None: one each.
        pool: Index of its pool.
        pool_names: Of the pools.
        pool_regions: Theirs; empty texts without regions.
        lost_since: When each replica that was lost at a time went down, shape [losses].
        lost_until: When it was back, shape [losses].
        tries: Of every attempt that came to nothing and was followed by another: when it reached the scheduler,
            its first step (NaN: none), its end; shape [attempts, 3].
        refusals: Refusals at the admission control by reason, repeated tries included.
        num_resent: Requests that clients sent again.
        lost_tokens: Tokens generated for requests that were then given up or lost.
        num_killed: Replicas that a liveness probe restarted.
        num_missed: Faults and updates whose time had not come when the run was over.
        num_replaced: Replicas that rolling updates replaced.
        updates: When each rolling update began, and when its last replica was ready (inf: not yet), shape [updates, 2].
    """

    launched_at: Floats
    ready_at: Floats
    stopped_at: Floats
    gpus: NDArray[np.int64]
    pool: NDArray[np.int64]
    pool_names: tuple[str, ...]
    lost_since: Floats
    lost_until: Floats
    tries: Floats
    refusals: dict[str, int]
    num_resent: int
    lost_tokens: int
    pool_regions: tuple[str, ...] = ()
    ranks: NDArray[np.int64] | None = None
    num_killed: int = 0
    num_missed: int = 0
    num_replaced: int = 0
    updates: Floats = field(default_factory=lambda: np.empty((0, 2)))

    def launched(self, edges: Floats) -> Floats:
        """Return the mean number of replicas that are paid for, over each bin."""
        return mean_count(self.launched_at, _until(self.stopped_at), edges)

    def ready(self, edges: Floats) -> Floats:
        """Return the mean number of replicas that serve, over each bin."""
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
        """Return the mean number of schedulers that are paid for, over each bin."""
        if self.ranks is None:
            return self.launched(edges)
        return mean_count(
            np.repeat(self.launched_at, self.ranks), _until(np.repeat(self.stopped_at, self.ranks)), edges
        )

    def mean_gpus(self, start: float, end: float, pool: int | None = None) -> float:
        """Return the mean number of GPUs that are paid for between two instants, of one pool or of all."""
        return self._mean(self.gpus.astype(np.float64), start, end, pool)

    def running_and_waiting(self, records: RequestRecords, edges: Floats) -> tuple[Floats, Floats]:
        """Return the mean numbers of requests being served and waiting, over each bin, vain attempts included."""
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
    """Return times of leaving as `mean_count` takes them: NaN for never."""
    return np.where(np.isfinite(times), times, np.nan)
