"""Shifts: replicas that come and go on the event plane, interpreted or compiled.

The plane (`simserve.engine.event_plane`) moves them; what is decided over time (`simserve.sim.decisions`) reaches it
between two drives, and where it calls because a step has ended that somebody waits for. What the plane does not know is
a `simserve.sim.fleet.Fleet`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from simserve.engine.attendance import HELD, Attendance
from simserve.engine.compiled.view import fill
from simserve.engine.data_parallel import Ranks, end_leap
from simserve.engine.data_plane import CALLED, CHORES
from simserve.engine.door import Finishes
from simserve.engine.entrance import RETRIED
from simserve.engine.presence import CALLS, DRAINS, FROZEN, HAND_OVER, LOSE, OFFER, SETTLE
from simserve.engine.routing import LEAST
from simserve.engine.state import INFINITY, UNFINISHED, RequestTable
from simserve.engine.tables import StepTimes
from simserve.sim.cluster import Cluster
from simserve.sim.lives import Lives
from simserve.sim.units import DRAINING, READY, STARTING, Pool, Unit, fresh_replica
from simserve.workload.requests import RequestSpecs


class ShiftUnit(Unit):
    """One replica, as those who decide see it; what it does is the plane's.

    Args:
        cluster: The plane.
        number: Its place in the plane.
        pool: What it is one of.
        launched_at: Seconds.
        place: Its place in the pool.
    """

    __slots__ = ("_cluster",)

    def __init__(self, cluster: Cluster, number: int, pool: Pool, launched_at: float, place: int) -> None:
        self._cluster = cluster
        self.number, self.pool, self.place = number, pool, place
        self.state = STARTING
        self.is_dying = self.is_loss_retried = self.is_freezing = self.is_frozen = False
        self.loss = 0
        self.launched_at = launched_at
        self.ready_at = self.stopped_at = INFINITY
        self.next_times: StepTimes | None = None

    @property
    def replica(self) -> Ranks:  # type: ignore[override]
        """Its schedulers as they are, only to be looked at."""
        return self._cluster.unit(self.number)

    @property
    def load(self) -> int:  # type: ignore[override]
        """Requests routed to it and not answered."""
        return self._cluster.plane.loads[self.number]

    @property
    def busy_seconds(self) -> float:  # type: ignore[override]
        """Seconds of its steps so far."""
        return self._cluster.presence.busy_seconds[self.number]

    @property
    def finishes(self) -> Finishes:  # type: ignore[override]
        """How fast it finishes requests."""
        return self._cluster.attendance.finishes[self.number]

    def new_replica(self) -> Ranks:
        """Give the unit schedulers that hold nothing, and return them."""
        replica = fresh_replica(self.pool, self.number)
        self._cluster.replace(self.number, replica)
        return replica

    def flush(self) -> None:
        """Hand what the schedulers have written down to the recorder."""
        self._cluster.flush_one(self.pool.recorder, self.number)


class Shifts(Lives):
    """Replicas on the event plane that come and go.

    Args:
        pools: One or more, without replicas yet.
        cluster: The plane, with the replicas of the start, pool by pool.
        attendance: What the plane was given to know of its clients.
        counts: How many replicas of the start are of each pool.
        specs: What arrives.
        allowed: Indices of pools by class; one entry for all without classes.
    """

    def __init__(
        self,
        pools: list[Pool],
        cluster: Cluster,
        attendance: Attendance,
        counts: Sequence[int],
        specs: RequestSpecs,
        allowed: Sequence[Sequence[int]],
    ) -> None:
        super().__init__(pools)
        self.requests: RequestTable = cluster.requests
        self._cluster, self._allowed = cluster, allowed
        self._concurrency = specs.concurrency
        self._tells: list[Callable[[int], None]] = []
        presence = attendance.presence
        assert presence is not None
        # Compiled code fills these columns where they are.
        self._place = np.frombuffer(attendance.place, dtype=np.int32)
        self._joined = np.frombuffer(presence.joined, dtype=np.int64)
        # Of the table, the first row that has not ended.
        self._first = 0
        for pool, count in zip(pools, counts, strict=True):
            for place in range(count):
                unit = ShiftUnit(cluster, len(self.units), pool, 0.0, place)
                unit.state, unit.ready_at = READY, 0.0
                self.units.append(unit)
                pool.units.append(unit)
                pool.ready.append(unit.number)
        # Where all that were ever launched are there, the router need not look which are.
        router, plane = cluster.plane.router, cluster.plane
        goes_by_load = router.policy == LEAST and router.affinity is None and not plane.weighs_tokens
        self._routes_least = goes_by_load and not plane.is_stale and len(pools) == 1
        self._publish()

    # Replicas come and go.

    def _look_at(self, unit: Unit, time: float) -> None:
        self._cluster.plane.ends[unit.number] = time
        self._mark(unit)

    def _new_unit(self, pool: Pool, now: float, place: int) -> Unit:
        number = len(self.units)
        like = next((unit.number for unit in pool.units), 0)
        self._cluster.add(fresh_replica(pool, number), pool.recorder, now, like=like)
        # It is there, and takes no requests yet.
        self._cluster.plane.routes_least = False
        return ShiftUnit(self._cluster, number, pool, now, place)

    def ready(self, unit: Unit, now: float) -> None:
        """Let a replica take requests; those that waited for one are routed."""
        super().ready(unit, now)
        self._mark(unit)

    def withdraw(self, unit: Unit, state: int) -> None:
        """Send a replica no more requests."""
        super().withdraw(unit, state)
        self._publish()
        self._mark(unit)

    def ends_leap(self, unit: Unit, now: float) -> bool:
        """Let the leap of a replica end with the running step; return whether one runs."""
        is_running = end_leap(self._cluster.unit(unit.number), now)
        self.note_end(unit)
        return is_running

    def _mark(self, unit: Unit) -> None:
        """Tell the plane when to call for a replica, and whether it does anything."""
        is_awaited = unit.is_dying or unit.is_freezing or unit.next_times is not None
        mark = CALLS * is_awaited + DRAINS * (unit.state == DRAINING) + FROZEN * unit.is_frozen
        self._cluster.presence.marks[unit.number] = mark

    def _publish(self) -> None:
        """Tell the router which replicas take requests."""
        plane = self._cluster.plane
        for part, pools in zip(plane.parts, self._allowed, strict=True):
            is_open = [number for number in pools if self.pools[number].ready]
            fill(part.pools, is_open)
            fill(part.ready, [each for number in is_open for each in self.pools[number].ready])
        for part, pool in zip(plane.pools, self.pools, strict=False):
            fill(part.ready, pool.ready)
        plane.routes_least = self._routes_least and len(self.pools[0].ready) == len(self.units)

    def _route_parked(self, now: float) -> None:
        self._publish()
        presence = self._cluster.presence
        parked = list(presence.parked)
        fill(presence.parked, [])
        # They have passed the door already, so they are not refused any more.
        for index in parked:
            self._cluster.tell(HAND_OVER, index, now)
        if self._cluster.attendance.gateway is not None:
            self._cluster.tell(OFFER, 0, now)

    def _take_members(self, unit: Unit) -> list[int]:
        plane, number = self._cluster.plane, unit.number
        rows = self._rows_at(number)
        plane.loads[number] = plane.tokens[number] = 0
        members: list[int] = rows[np.argsort(self._joined[rows])].tolist()
        return members

    def _rows_at(self, number: int) -> Any:
        """Return the requests at a replica."""
        status = np.frombuffer(self.requests.status, dtype=np.int8)
        while self._first < len(status) and status[self._first] != UNFINISHED:
            self._first += 1
        place, status = self._place[self._first :], status[self._first :]
        at_it = ((place == number) | (place == HELD - number)) & (status == UNFINISHED)
        return np.flatnonzero(at_it) + self._first

    def _lose_request(self, index: int, unit: Unit, now: float) -> None:
        self._cluster.tell(LOSE, index, now, reason=RETRIED if self._is_tried_again(index, unit) else unit.loss)

    def complete(self, unit: Unit, now: float) -> None:
        """End the step of a replica, or whatever waits for that where none runs."""
        self._cluster.tell(SETTLE, unit.number, now)
        self._answer_calls()

    def _answer_calls(self) -> None:
        """Look after replicas whose steps have ended, or that hold nothing any more."""
        presence = self._cluster.presence
        now, calls = presence.called_at, list(presence.calls)
        fill(presence.calls, [])
        for unit in (self.units[number] for number in calls):
            if unit.next_times is not None:
                self._cluster.use_times(unit.number, unit.next_times)
                unit.next_times = None
            if unit.is_freezing:
                unit.is_freezing, unit.is_frozen = False, True
            if unit.is_dying:
                self._bury(unit, now)
            elif unit.state == DRAINING and not unit.load:
                self.stop(unit, now)
            self._mark(unit)

    # What those who decide go by.

    @property
    def is_done(self) -> bool:
        """Whether every request has come to its end."""
        conversations = self._cluster.plane.conversations
        due = len(self.requests.ready_time)
        if conversations is not None and conversations.num_idle == self._concurrency:
            # Clients stop by a time: how many requests there are in all is known when the last of them has.
            due = conversations.num_begun
        return self._cluster.num_ended == due

    def drive(self, until: float) -> None:
        """Advance to ``until`` (exclusive), to news for SimPy's side, or until nothing is left to do."""
        cluster = self._cluster
        cluster.top_up()
        while True:
            # What has begun at the instant of the news is finished first.
            why = cluster.advance(min(until, self.news_time) if self.news else until)
            if why == CALLED:
                self._answer_calls()
            elif why == CHORES:
                cluster.do_chores()
            else:
                return

    def refresh(self, _now: float) -> None:
        """Let the router look at the replicas; until the next look, that is what it knows."""
        plane = self._cluster.plane
        fill(plane.seen, plane.tokens if plane.weighs_tokens else plane.loads)

    def tell_ends(self, tell: Callable[[int], None]) -> None:
        """Call ``tell`` with every request that comes to its end, in `settle`."""
        self._tells.append(tell)

    def settle(self) -> None:
        """Tell who asks which requests have ended so far."""
        presence = self._cluster.presence
        ended = list(presence.ended)
        fill(presence.ended, [])
        for tell in self._tells:
            for index in ended:
                tell(index)

    def num_parked(self, pool: Pool) -> int:
        """Return how many requests wait for a replica of a pool to be ready, whether or not others may serve them."""
        number, parked = self.pools.index(pool), [*self._cluster.presence.parked, *self._cluster.waiting_in_turn()]
        return sum(number in self._allowed[self._cluster.kind_of(index)] for index in parked)

    def holds(self, unit: Unit, index: int) -> bool:
        """Return whether a request is at a replica."""
        place = int(self._place[index])
        return place in (unit.number, HELD - unit.number) and self.requests.status[index] == UNFINISHED

    def last_of(self, unit: Unit) -> int | None:
        """Return the request of a replica that came last; None: it has none."""
        if not unit.load:
            return None
        last = self._cluster.presence.last_joined[unit.number]
        if last >= 0 and self.holds(unit, last):
            return int(last)
        rows = self._rows_at(unit.number)
        return int(rows[np.argmax(self._joined[rows])])
