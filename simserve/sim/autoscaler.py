"""Autoscaler: a SimPy process that looks at the fleet every so often, launches replicas and gives them back.

For the metric ``slo`` it knows whether what has ended kept its limits: requests, and the tasks that end with them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from math import ceil
from typing import Any

import numpy as np
import simpy
from numpy.typing import NDArray

from simserve.engine.data_parallel import kv_share, num_running_at, num_steps_of, start_time_of
from simserve.engine.state import RequestTable
from simserve.sim.cluster import DRAINING, READY, STARTING, STOPPED, ManagedReplica, Pool, gauges_of
from simserve.sim.control import AutoscalingSpec, Control, HorizontalScaling
from simserve.sim.lifecycle import Lifecycle
from simserve.sim.own_parts import Judge
from simserve.sim.records import COMPLETED, DRAINED, answer_times
from simserve.workload.requests import RequestSpecs

TOLERANCE = 0.1
"""Deviation from the target that changes nothing (Kubernetes, ``--horizontal-pod-autoscaler-tolerance``)."""


def replicas_for(level: float, count: int, target: float, *, is_used: bool) -> int:
    """Return how many replicas a level of the metric, summed over ``count`` of them, asks for.

    Args:
        level: Of the metric.
        count: Replicas that are there or will be, at least 1.
        target: What it should be of one replica.
        is_used: Whether there is anything to do: then there is not none of them.
    """
    if abs(level / (target * count) - 1) <= TOLERANCE:
        return count
    # A replica that works is not given back to nothing: only an idle fleet goes to zero.
    return max(ceil(level / target), 1 if is_used else 0)


class Stabilization:
    """What was asked for within a window, of which the most counts before anything is given back.

    Args:
        spec: The bounds and the window.
    """

    def __init__(self, spec: HorizontalScaling) -> None:
        self._spec = spec
        self._asked: deque[tuple[float, int]] = deque()

    def ask(self, replicas: int, now: float) -> tuple[int, int]:
        """Return a number asked for now, within the bounds, and the most asked for in the window."""
        spec = self._spec
        asked = min(max(replicas, spec.min_replicas), spec.max_replicas)
        while self._asked and self._asked[0][0] < now - spec.stabilization:
            self._asked.popleft()
        self._asked.append((now, asked))
        return asked, max(each for _, each in self._asked)


def num_running_in(replicas: Sequence[ManagedReplica]) -> int:
    """Return the requests with a seat, in all of some replicas."""
    return sum(num_running_at(replica.schedulers) for replica in replicas)


class Objective:
    """The limits of a run, and how the tasks at hand stand.

    Args:
        control: Holds the limits.
        specs: What arrives.
        requests: The table of what became of it.
        arrival_time: When each request was first sent; filled for a closed loop.
    """

    def __init__(
        self, control: Control, specs: RequestSpecs, requests: RequestTable, arrival_time: NDArray[np.float64]
    ) -> None:
        self._limits, self._task_limit = control.limits, control.task_limit
        self._specs, self._requests, self._arrival_time = specs, requests, arrival_time
        self._task: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        if control.task_limit is not None and specs.dependencies is not None and specs.session is not None:
            # A negative number is that of a request which is of no task.
            numbers, places = np.unique(specs.session, return_inverse=True)
            self._task = places.astype(np.int64) - np.count_nonzero(numbers < 0)
        num_tasks = int(self._task.max(initial=-1)) + 1
        self._num_left = np.bincount(self._task[self._task >= 0], minlength=num_tasks)
        self._begin, self._end = np.full(num_tasks, np.inf), np.full(num_tasks, -np.inf)

    def is_met(self, index: int) -> bool:
        """Return whether a request that has ended kept the limits of its class."""
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
        """Return when the first visible token of a completed request was there, seconds; NaN: it has none."""
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
        """Note that a request has ended, once each; return the tasks that end with it, and those of them in time."""
        if self._task_limit is None or not len(self._task) or self._task[index] < 0:
            return 0, 0
        task, requests = self._task[index], self._requests
        self._num_left[task] -= 1
        self._begin[task] = min(self._begin[task], self._arrival_time[index])
        # A call that came to nothing leaves its task unfinished: it never ends.
        end = requests.finish_time[index] if requests.status[index] == COMPLETED else np.inf
        self._end[task] = max(self._end[task], end)
        if self._num_left[task]:
            return 0, 0
        return 1, int(self._end[task] - self._begin[task] <= self._task_limit)


class Autoscaler:
    """Keeps one pool at the size that its metric asks for.

    Args:
        spec: The rules.
        env: SimPy's clock.
        fleet: Whose pool it is.
        pool: The replicas.
        objective: Whether what has ended kept its limits; for the metric ``slo``.
    """

    def __init__(
        self,
        spec: AutoscalingSpec,
        env: simpy.Environment,
        fleet: Lifecycle,
        pool: Pool,
        objective: Objective,
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
        """Look at the metric for ever."""
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
        """Return how many replicas the metric asks for, where ``count`` are there or will be back."""
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
        """Return replicas in the order in which they go: those that start, then those with the fewest requests."""
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
        """Stop a replica whose grace period is over, with what it still has."""
        yield self._env.timeout(self._spec.grace_period)
        if replica.state == DRAINING:
            self._fleet.lose(replica, self._env.now, then=STOPPED, reason=DRAINED)
