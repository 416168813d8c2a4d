"""FleetTimeline: which replicas were there when, and what requests tried in vain. Knows no scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simserve.sim.records import RequestRecords
from simserve.sim.series import mean_count

Floats = NDArray[np.float64]


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
