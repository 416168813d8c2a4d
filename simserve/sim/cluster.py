"""Cluster: replicas behind a router, advanced event by event to the next decision.

Ties at one instant are ordered finish, arrival, plan. It is the data plane: it knows the scheduler's records and the
arrivals, and leaves every decision over time (clients, later autoscaling and faults) to SimPy's side.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

import numpy as np

from simserve.engine.kernel import complete, plan, seen_time, submit
from simserve.engine.lockstep import Ranks, complete_ranks, plan_ranks, seen_by_ranks, submit_to_rank
from simserve.engine.state import FAILED, INFINITY, LEAP_WIDTH, STATIC, Replica, RequestTable
from simserve.sim.recorder import FLUSH_ROWS, Recorder
from simserve.sim.routing_spec import RoutingPolicy

Routing = RoutingPolicy
EVENTS_BETWEEN_CHORES = 1024


class Cluster:
    """Replicas, their queue of arrivals, and the router between them.

    Args:
        replicas: At least one; those of a replica that steps in lockstep stand side by side.
        requests: The table of all requests of the run.
        recorder: Takes the leaps.
        routing: ``round_robin``, or ``least_outstanding`` (ties: the lowest replica).
        on_progress: Called now and then with the number of requests that have finished.
        num_ranks: How many of ``replicas`` step together as one replica.
    """

    def __init__(
        self,
        replicas: list[Replica],
        requests: RequestTable,
        recorder: Recorder,
        routing: Routing,
        on_progress: Callable[[int], None] | None = None,
        num_ranks: int = 1,
    ) -> None:
        self.replicas = replicas
        starts = range(0, len(replicas), num_ranks)
        # What the router sees: replicas, or the ranks of one together; and the three functions that move them.
        self._units: list[Any] = list(replicas)
        self._submit: Callable[[Any, RequestTable, int, float], None] = submit
        self._complete: Callable[[Any, RequestTable], int] = complete
        self._plan: Callable[[Any, RequestTable], None] = plan
        self._seen: Callable[[Any, float], float] = seen_time
        if num_ranks > 1:
            self._units = [Ranks(replicas[at : at + num_ranks]) for at in starts]
            self._submit, self._complete, self._plan = submit_to_rank, complete_ranks, plan_ranks
            self._seen = seen_by_ranks
        self.requests = requests
        self.num_finished = 0
        self._recorder = recorder
        self._routes_least = routing == "least_outstanding" and len(self._units) > 1
        self._ends = [INFINITY] * len(self._units)
        self._loads = [0] * len(self._units)
        self._turn = 0
        self._cursor = 0
        self._num_scheduled = 0
        self._sent: list[tuple[float, int]] = []
        self._held: list[tuple[float, int, int]] = []
        self._schedules_ahead = replicas[0].config.async_scheduling and replicas[0].mode != STATIC
        self._on_progress = on_progress
        self.lists_failures = False
        self._failed: list[int] = []

    @property
    def num_arrived(self) -> int:
        """Open loop: requests that have arrived so far."""
        return self._cursor

    @property
    def unsent(self) -> list[tuple[float, int]]:
        """Requests that were to reach the cluster, and have not: their times and indices."""
        return list(self._sent)

    def schedule_all(self) -> None:
        """Open loop: every request of the table arrives at its ``ready_time`` (ascending)."""
        self._num_scheduled = len(self.requests.ready_time)

    def send(self, index: int, ready_time: float) -> None:
        """Closed loop: one request reaches the cluster at ``ready_time``, not before the time driven to."""
        self.requests.ready_time[index] = ready_time
        heappush(self._sent, (ready_time, index))

    def drive(self, until: float) -> list[int]:
        """Advance to ``until`` (exclusive), or to the first instant at which a request finishes that is listened to.

        Returns:
            The requests that finished then, ascending; empty if ``until`` was reached or nothing is left to do. In a
            listened-to instant the arrivals and plans of that instant are still to come: call again.
        """
        ends, replicas, requests = self._ends, self._units, self.requests
        submit, complete, plan = self._submit, self._complete, self._plan
        ready_times, statuses = requests.ready_time, requests.status
        loads, num_scheduled = self._loads, self._num_scheduled
        due = [0]
        has_news = False
        countdown = EVENTS_BETWEEN_CHORES
        is_single = len(replicas) == 1
        is_plain = is_single and not self._schedules_ahead
        only = replicas[0]
        ready = self._next_ready()
        while True:
            end = only.end_time if is_single else min(ends)
            if ready < end:
                if ready >= until:
                    return []
                cursor = self._cursor
                if is_plain and cursor < num_scheduled:
                    # Nothing to route, nothing to look up: the path of most requests of most runs.
                    self._cursor = cursor + 1
                    if statuses[cursor] != FAILED:
                        loads[0] += 1
                        submit(only, requests, cursor, ready)
                    cursor += 1
                else:
                    self._admit(ready)
                    if self._failed:
                        return self._collect_finished()
                    cursor = self._cursor
                ready = ready_times[cursor] if is_plain and cursor < num_scheduled else self._next_ready()
                continue
            if end >= until or end == INFINITY:
                return []
            if not is_single:
                due = [number for number, time in enumerate(ends) if time == end]
            for number in due:
                replica = replicas[number]
                num_finished = complete(replica, requests)
                if num_finished:
                    loads[number] -= num_finished
                    self.num_finished += num_finished
                    has_news = replica.finished is not None
            if has_news:
                return self._collect_finished()
            while ready == end:
                self._admit(ready)
                if self._failed:
                    return self._collect_finished()
                ready = self._next_ready()
            if is_single:
                plan(only, requests)
            else:
                for number in due:
                    replica = replicas[number]
                    plan(replica, requests)
                    ends[number] = replica.end_time
            countdown -= 1
            if not countdown:
                countdown = EVENTS_BETWEEN_CHORES
                self._do_chores()

    def _do_chores(self) -> None:
        """Hand long lists of leaps to the recorder, and tell how far the run is."""
        limit = FLUSH_ROWS * LEAP_WIDTH
        for replica in self.replicas:
            if len(replica.leaps) >= limit:
                self._recorder.flush(replica)
        if self._on_progress is not None:
            self._on_progress(self.num_finished)

    def _collect_finished(self) -> list[int]:
        """Return, ascending, the requests that finished or failed at this instant, and forget them."""
        finished, self._failed = self._failed, []
        for replica in self.replicas:
            if replica.finished:
                finished += replica.finished
                replica.finished = []
        return sorted(finished)

    def flush(self) -> None:
        """Hand all leaps to the recorder."""
        for replica in self.replicas:
            self._recorder.flush(replica)

    def _next_ready(self) -> float:
        if self._cursor < self._num_scheduled:
            ready = self.requests.ready_time[self._cursor]
        else:
            ready = self._sent[0][0] if self._sent else INFINITY
        return min(ready, self._held[0][0]) if self._held else ready

    def _admit(self, ready: float) -> None:
        """Route the next arrival and hand it to its replica, or hand over one that was held back."""
        if self._held and self._held[0][0] == ready:
            _, index, number = heappop(self._held)
            self._hand_over(number, index, ready)
            return
        if self._cursor < self._num_scheduled:
            index = self._cursor
            self._cursor += 1
        else:
            index = heappop(self._sent)[1]
        requests = self.requests
        if requests.status[index] == FAILED:
            if self.lists_failures:
                self._failed.append(index)
            return
        if self._routes_least:
            number = self._loads.index(min(self._loads))
        else:
            number = self._turn
            self._turn = number + 1 if number + 1 < len(self._units) else 0
        self._loads[number] += 1
        unit = self._units[number]
        if self._schedules_ahead:
            seen = self._seen(unit, ready)
            if seen > ready:
                self._ends[number] = unit.end_time
                heappush(self._held, (seen, index, number))
                return
        self._hand_over(number, index, ready)

    def _hand_over(self, number: int, index: int, now: float) -> None:
        replica = self._units[number]
        self._submit(replica, self.requests, index, now)
        self._ends[number] = replica.end_time


def end_of(requests: RequestTable) -> float:
    """Return the last instant at which anything happened to a request, seconds."""
    times = np.concatenate([np.frombuffer(column) for column in (requests.ready_time, requests.finish_time)])
    return float(np.nanmax(times)) if not np.isnan(times).all() else 0.0
