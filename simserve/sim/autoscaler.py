"""Autoscaler: a SimPy process that reads a metric at every interval, launches replicas and gives them back.

For the metric ``slo`` it knows whether ended requests, and the tasks that end with them, met their limits. It does the
same for a pool of encoders, and records when their workers were there: the plane gives images to the workers by a
column that says when each is free (`simserve.engine.clients`); a worker that takes no images is never free.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import Any

import numpy as np
import simpy
from numpy.typing import NDArray

from simserve.engine.data_parallel import kv_share, num_running_at, num_steps_of, start_time_of
from simserve.engine.plane_state import Clients
from simserve.engine.state import RequestTable
from simserve.sim.control import AutoscalingSpec, Control, EncoderAutoscalingSpec, HorizontalScaling
from simserve.sim.lifecycle import DRAINING, READY, STARTING, STOPPED, Lifecycle, ManagedReplica, Pool, gauges_of
from simserve.sim.own_parts import Judge
from simserve.sim.records import COMPLETED, DRAINED, answer_times
from simserve.workload.requests import RequestSpecs

TOLERANCE = 0.1
"""Relative deviation from the target that is ignored (Kubernetes, ``--horizontal-pod-autoscaler-tolerance``)."""


def replicas_for(level: float, count: int, target: float, *, is_used: bool) -> int:
    """Return how many replicas a level of the metric, summed over ``count`` of them, asks for.

    Args:
        level: Sum of the metric.
        count: Replicas that are there or will be, at least 1.
        target: Target of the metric for one replica.
        is_used: Whether there is work: at least one replica is then kept.
    """
    if abs(level / (target * count) - 1) <= TOLERANCE:
        return count
    # A busy fleet keeps at least one replica: only an idle one goes to zero.
    return max(ceil(level / target), 1 if is_used else 0)


class Stabilization:
    """Numbers asked for within a window, the largest of which counts before any replica is removed."""

    def __init__(self, spec: HorizontalScaling) -> None:
        self._spec = spec
        self._asked: deque[tuple[float, int]] = deque()

    def ask(self, replicas: int, now: float) -> tuple[int, int]:
        """Return a number asked for now, within the bounds, and the largest asked for in the window."""
        spec = self._spec
        asked = min(max(replicas, spec.min_replicas), spec.max_replicas)
        while self._asked and self._asked[0][0] < now - spec.stabilization:
            self._asked.popleft()
        self._asked.append((now, asked))
        return asked, max(each for _, each in self._asked)


def num_running_in(replicas: Sequence[ManagedReplica]) -> int:
    """Return the number of requests with a seat, over the given replicas."""
    return sum(num_running_at(replica.schedulers) for replica in replicas)


class Objective:
    """The limits of a run, and the state of the current tasks.

    Args:
        arrival_time: When each request was first sent; filled in during a closed loop.
    """

    def __init__(
        self, control: Control, specs: RequestSpecs, requests: RequestTable, arrival_time: NDArray[np.float64]
    ) -> None:
        self._limits, self._task_limit = control.limits, control.task_limit
        self._specs, self._requests, self._arrival_time = specs, requests, arrival_time
        self._task: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        if control.task_limit is not None and specs.dependencies is not None and specs.session is not None:
            # A negative number marks a request that belongs to no task.
            numbers, places = np.unique(specs.session, return_inverse=True)
            self._task = places.astype(np.int64) - np.count_nonzero(numbers < 0)
        num_tasks = int(self._task.max(initial=-1)) + 1
        self._num_left = np.bincount(self._task[self._task >= 0], minlength=num_tasks)
        self._begin, self._end = np.full(num_tasks, np.inf), np.full(num_tasks, -np.inf)

    def is_met(self, index: int) -> bool:
        """Return whether a request that has ended met the limits of its class."""
        requests, classes = self._requests, self._specs.request_class
        limits = self._limits[0 if classes is None else int(classes[index])]
        if requests.status[index] != COMPLETED:
            return False
        sent_at, first, last = self._arrival_time[index], requests.first_token_time[index], requests.finish_time[index]
        gaps = requests.generated_tokens[index] - 1
        return bool(
            (limits.ttft is None or first - sent_at <= limits.ttft)
            and (limits.e2e is None or last - sent_at <= limits.e2e)
            and (limits.tpot is None or not gaps or last - first <= limits.tpot * gaps)
            and (limits.ttfvt is None or self._answer_time(index) - sent_at <= limits.ttfvt)
        )

    def _answer_time(self, index: int) -> float:
        """Return when the first visible token of a completed request was ready, seconds; NaN: it has none."""
        thinking, requests = self._specs.thinking_tokens, self._requests
        if thinking is None:
            return requests.first_token_time[index]
        times = answer_times(
            thinking[index : index + 1],
            np.array([requests.generated_tokens[index]]),
            np.array([requests.first_token_time[index]]),
            np.array([requests.finish_time[index]]),
            np.array([requests.answer_time[index]]),
            is_elsewhere=np.array([requests.replica_id[index] < 0]),
        )
        return float(times[0])

    def count_task(self, index: int) -> tuple[int, int]:
        """Count the end of a request, once each; return the tasks that end with it, and those of them in time."""
        if self._task_limit is None or not len(self._task) or self._task[index] < 0:
            return 0, 0
        task, requests = self._task[index], self._requests
        self._num_left[task] -= 1
        self._begin[task] = min(self._begin[task], self._arrival_time[index])
        # A call that failed leaves its task unfinished: the task never ends.
        end = requests.finish_time[index] if requests.status[index] == COMPLETED else np.inf
        self._end[task] = max(self._end[task], end)
        if self._num_left[task]:
            return 0, 0
        return 1, int(self._end[task] - self._begin[task] <= self._task_limit)


class Autoscaler:
    """Keeps one pool at the size that its metric asks for.

    Args:
        objective: Whether ended requests met their limits; for the metric ``slo``.
    """

    def __init__(
        self, spec: AutoscalingSpec, env: simpy.Environment, fleet: Lifecycle, pool: Pool, objective: Objective
    ) -> None:
        self._spec = spec
        self._env, self._fleet, self._pool = env, fleet, pool
        self._objective = objective
        self._stabilization = Stabilization(spec)
        self._busy_before: dict[int, float] = {}
        self._num_ended = self._num_met = self._num_tasks = self._num_tasks_met = 0
        self._load_at_miss = 0.0
        self.judge: Judge | None = None
        if spec.metric == "slo":
            fleet.tell_ends(self._count_end)

    def run(self) -> Generator[simpy.Event, Any, None]:
        """Check the metric for ever."""
        while True:
            yield self._env.timeout(self._spec.interval)
            self._scale(self._env.now)

    def _count_end(self, index: int, _heard_at: float) -> None:
        tasks, in_time = self._objective.count_task(index)
        self._num_tasks += tasks
        self._num_tasks_met += in_time
        number = self._fleet.requests.replica_id[index]
        if number >= 0 and self._pool.role == "both" and self._fleet.replicas[number].pool is not self._pool:
            return
        self._num_ended += 1
        self._num_met += self._objective.is_met(index)

    def _scale(self, now: float) -> None:
        self._fleet.settle()
        present = self._pool.present
        count = len(present) + self._pool.in_flux
        asked, most = self._stabilization.ask(self._asked_for(present, count, now), now)
        self._pool.wanted = most
        if asked > count:
            for _ in range(asked - count):
                self._launch(now)
        elif count > most:
            for replica in self._least_needed(present)[: count - most]:
                self._give_back(replica, now)

    def _asked_for(self, present: list[ManagedReplica], count: int, now: float) -> int:
        """Return how many replicas the metric asks for, given ``count`` that are there or will be back."""
        spec = self._spec
        ready = [replica for replica in present if replica.state == READY]
        parked = self._fleet.num_parked(self._pool)
        if self.judge is not None and self.judge.parts.autoscaler is not None:
            gauges = [gauges_of(replica, now) for replica in ready]
            return self.judge.wanted_in(self._pool.name, now, count, gauges, parked)
        load = parked + sum(replica.load for replica in ready)
        if not count:
            return 1 if load else 0
        if spec.metric == "slo":
            return self._asked_by_slo(count, load)
        match spec.metric:
            case "queue_depth":
                level = float(load - num_running_in(ready))
            case "running":
                running = num_running_in(ready)
                level = float(running + parked)
            case "kv_usage":
                level = sum(kv_share(replica.schedulers, now) for replica in ready)
            case _:
                level = sum(self._busy_share(replica, now) for replica in ready)
        return replicas_for(level, count, spec.target, is_used=load > 0)

    def _asked_by_slo(self, count: int, load: int) -> int:
        ended, met, tasks, in_time = self._num_ended, self._num_met, self._num_tasks, self._num_tasks_met
        self._num_ended = self._num_met = self._num_tasks = self._num_tasks_met = 0
        target = self._spec.target
        if met < target * ended or in_time < target * tasks:
            self._load_at_miss = load / count
            return count + 1
        if not load and not ended:
            return 0
        is_safe = count > 1 and load / (count - 1) <= self._load_at_miss * (1 - TOLERANCE)
        return count - 1 if is_safe and met == ended and in_time == tasks else count

    def _busy_share(self, replica: ManagedReplica, now: float) -> float:
        busy = replica.busy_seconds
        schedulers = replica.schedulers
        if num_steps_of(schedulers) and start_time_of(schedulers) < now:
            busy += now - start_time_of(schedulers)
        before = self._busy_before.get(replica.number, busy)
        self._busy_before[replica.number] = busy
        return min((busy - before) / self._spec.interval, 1.0)

    def _least_needed(self, present: list[ManagedReplica]) -> list[ManagedReplica]:
        """Return replicas in order of removal: those that are starting, then those with the fewest requests."""
        return sorted(present, key=lambda replica: (replica.state == READY, replica.load, -replica.number))

    def _launch(self, now: float) -> None:
        replica = self._fleet.launch(self._pool, now, is_ready=False)
        self._env.process(self._start(replica))

    def _start(self, replica: ManagedReplica) -> Generator[simpy.Event, Any, None]:
        yield self._env.timeout(self._pool.startup_seconds)
        if replica.state == STARTING:
            self._fleet.ready(replica, self._env.now)

    def _give_back(self, replica: ManagedReplica, now: float) -> None:
        self._fleet.drain(replica, now)
        if replica.state == DRAINING:
            self._env.process(self._cut_off(replica))

    def _cut_off(self, replica: ManagedReplica) -> Generator[simpy.Event, Any, None]:
        """Stop a replica whose grace period is over, with its remaining requests."""
        yield self._env.timeout(self._spec.grace_period)
        if replica.state == DRAINING:
            self._fleet.lose(replica, self._env.now, then=STOPPED, reason=DRAINED)


def _shared(column: Any) -> NDArray[np.float64]:
    """Return a column of the plane as an array that shares its memory."""
    return np.frombuffer(column, dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderLives:
    """When the workers of an encoder pool were there, one row per worker."""

    launched_at: NDArray[np.float64]  # Seconds; paid for from then on.
    stopped_at: NDArray[np.float64]  # When it was given back and had encoded all its images; inf: never.

    def mean(self, start: float, end: float) -> float:
        """Return the mean number of workers that are paid for between two instants."""
        if not end > start:
            return float(np.count_nonzero((self.launched_at <= start) & (self.stopped_at > start)))
        overlap = np.minimum(self.stopped_at, end) - np.maximum(self.launched_at, start)
        return float(np.clip(overlap, 0.0, None).sum()) / (end - start)

    def most(self, end: float) -> int:
        """Return the most workers that are paid for at once, until ``end``."""
        launches = self.launched_at[self.launched_at <= end]
        return max(
            (
                int(np.count_nonzero((launches <= each) & (self.stopped_at[: len(launches)] > each)))
                for each in launches
            ),
            default=0,
        )


@dataclass(slots=True, kw_only=True)
class _Worker:
    """A worker; ``place`` in the columns of the plane once it is ready."""

    launched_at: float
    place: int | None = None
    stopped_at: float = inf
    busy_before: float = 0.0


class EncoderAutoscaler:
    """Keeps an encoder pool at the size that its metric asks for.

    Args:
        startup_seconds: From the launch of a worker to its first image.
        clients: The plane's state of the workers; those of the start take images at once.
    """

    def __init__(
        self, spec: EncoderAutoscalingSpec, startup_seconds: float, clients: Clients, env: simpy.Environment
    ) -> None:
        self._spec, self._startup_seconds, self._env = spec, startup_seconds, env
        # Compiled code writes these columns in place.
        self._free_at = _shared(clients.encoders)
        self._given = _shared(clients.encoder_given)
        self._starts = _shared(clients.encoder_starts)
        self._num_seen, self._later = 0, np.array([], dtype=np.float64)
        self._stabilization = Stabilization(spec)
        places = np.flatnonzero(np.isfinite(self._free_at)).tolist()
        self._workers = [_Worker(launched_at=0.0, place=place) for place in places]

    @property
    def lives(self) -> EncoderLives:
        """When each worker was there, in order of launch."""
        return EncoderLives(
            launched_at=np.array([each.launched_at for each in self._workers]),
            stopped_at=np.array([each.stopped_at for each in self._workers]),
        )

    def run(self) -> Generator[simpy.Event, Any, None]:
        """Check the metric for ever."""
        while True:
            yield self._env.timeout(self._spec.interval)
            self._scale(self._env.now)

    def _scale(self, now: float) -> None:
        present = [each for each in self._workers if each.stopped_at == inf]
        wanted = replicas_for(self._level(present, now), len(present), self._spec.target, is_used=True)
        asked, most = self._stabilization.ask(wanted, now)
        for _ in range(asked - len(present)):
            self._workers.append(_Worker(launched_at=now))
            self._env.process(self._start(self._workers[-1]))
        if asked <= len(present):
            for worker in self._least_needed(present, now)[: max(len(present) - most, 0)]:
                self._give_back(worker, now)

    def _level(self, present: list[_Worker], now: float) -> float:
        """Return the metric, summed over the workers."""
        if self._spec.metric == "busy":
            return sum(self._busy_share(each, now) for each in present)
        num_given = int(np.count_nonzero(np.isfinite(self._starts[self._num_seen :])))
        later = np.concatenate([self._later, self._starts[self._num_seen : self._num_seen + num_given]])
        self._num_seen += num_given
        self._later = later[later > now]
        return float(len(self._later))

    def _busy_share(self, worker: _Worker, now: float) -> float:
        """Return the share of the interval in which a worker encoded; it works without pause until it is free."""
        if worker.place is None:
            return 0.0
        busy = self._given[worker.place] - max(self._free_at[worker.place] - now, 0.0)
        before, worker.busy_before = worker.busy_before, busy
        return min(float(busy - before) / self._spec.interval, 1.0)

    def _least_needed(self, present: list[_Worker], now: float) -> list[_Worker]:
        """Return workers in order of removal: those that are starting, then those with the least work."""
        left = [0.0 if each.place is None else max(self._free_at[each.place] - now, 0.0) for each in present]
        order = sorted(range(len(present)), key=lambda each: (present[each].place is not None, left[each], -each))
        return [present[each] for each in order]

    def _start(self, worker: _Worker) -> Generator[simpy.Event, Any, None]:
        yield self._env.timeout(self._startup_seconds)
        if worker.stopped_at == inf:
            worker.place = int(np.flatnonzero(np.isinf(self._free_at))[0])
            self._free_at[worker.place] = self._env.now
            worker.busy_before = float(self._given[worker.place])

    def _give_back(self, worker: _Worker, now: float) -> None:
        worker.stopped_at = now
        if worker.place is not None:
            worker.stopped_at = max(float(self._free_at[worker.place]), now)
            self._free_at[worker.place] = inf
