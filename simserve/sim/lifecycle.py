"""Lifecycle: replicas that are launched, get ready, drain, are lost and given back, on the plane.

The plane (`simserve.engine.event_plane`) moves them, interpreted or compiled; what is decided over time
(`simserve.sim.decisions`) reaches it between two drives, and where it calls because a step has ended, or a request,
that somebody waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from simserve.engine.attendance import HELD, NOBODY, Attendance
from simserve.engine.callers import put
from simserve.engine.compiled.view import fill
from simserve.engine.data_parallel import break_off, end_leap
from simserve.engine.data_plane import CALLED, CALLS, CHORES, DRAINS, FROZEN
from simserve.engine.entrance import RETRIED, add_open
from simserve.engine.presence import ADMIT, HAND_OVER, LAND_AGAIN, LOSE, OFFER, SETTLE
from simserve.engine.routing import LEAST
from simserve.engine.state import INFINITY, UNFINISHED, RequestTable
from simserve.engine.transfers import Port, Transfers
from simserve.sim.cluster import Cluster
from simserve.sim.links import Links
from simserve.sim.own_parts import Gauges, Judge
from simserve.sim.records import REPLICA_LOST
from simserve.sim.transfers import ROLES
from simserve.sim.units import DOWN, DRAINING, READY, STOPPED, Pool, Unit, fresh_replica, gauges_of
from simserve.workload.requests import RequestSpecs

MOST_LOSSES = 10
"""Replicas that a request may be lost with and still be tried on another, where a scenario says so. Without a bound a
fleet whose probe restarts replicas for being busy never comes to an end."""


class Lifecycle:
    """The replicas of a run, and how each of them comes and goes.

    Args:
        pools: One or more, without replicas yet.
        cluster: The plane, with the replicas of the start, pool by pool.
        attendance: What the plane was given to know of its clients.
        counts: How many replicas of the start are of each pool.
        specs: What arrives.
        allowed: Indices of pools by class, of those that arrivals go to; one entry for all without classes.
        kv_bytes_per_token: Of the whole model, where a pool does not say.

    Attributes:
        requests: The table of all requests.
        units: Every replica that was ever launched, by number.
        on_launch: Called with every replica that is launched.
        news: What waits to be told on SimPy's side, at `news_time`; the data plane stops until that is done.
        judge: Asks a user's own parts; None: there are none.
    """

    judge: Judge | None = None

    def __init__(
        self,
        pools: list[Pool],
        cluster: Cluster,
        attendance: Attendance,
        counts: Sequence[int],
        specs: RequestSpecs,
        allowed: Sequence[Sequence[int]],
        kv_bytes_per_token: float = 0.0,
    ) -> None:
        self.pools = pools
        self.units: list[Unit] = []
        self.on_launch: list[Callable[[Unit], None]] = []
        self.news: list[Callable[[], None]] = []
        self.news_time = 0.0
        self.requests: RequestTable = cluster.requests
        self._awaited: dict[int, list[Callable[[], None]]] = {}
        self._num_losses: dict[int, int] = {}
        self._cluster, self._allowed, self._kv_bytes_per_token = cluster, allowed, kv_bytes_per_token
        self._concurrency, self._count = specs.concurrency, len(specs)
        self._tells: list[Callable[[int, float], None]] = []
        self._entrances = [pool for pool in pools if pool.role != "decode"]
        presence = attendance.presence
        assert presence is not None
        # Compiled code fills these columns where they are.
        self._place = np.frombuffer(attendance.place, dtype=np.int32)
        self._joined = np.frombuffer(presence.joined, dtype=np.int64)
        self._transfers: Transfers | None = attendance.transfers
        self._links = None if attendance.transfers is None else Links(cluster, attendance.transfers)
        # Of the table, the first row that has not ended.
        self._first = 0
        for pool, count in zip(pools, counts, strict=True):
            for place in range(count):
                unit = Unit(cluster, len(self.units), pool, 0.0, place)
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

    def launch(self, pool: Pool, now: float, *, is_ready: bool, place: int | None = None) -> Unit:
        """Add a replica, paid for from ``now``; it takes requests when it is said to be `ready`.

        Args:
            pool: What it is one of.
            now: Seconds.
            is_ready: Whether it is ready at once.
            place: Whose place in the pool it takes over; None: the first that is free.
        """
        unit = Unit(self._cluster, len(self.units), pool, now, pool.free_place() if place is None else place)
        number, port = self.pools.index(pool), None
        if self._transfers is not None:
            own = pool.kv_bytes_per_token
            port = Port(ROLES[pool.role], self._kv_bytes_per_token if own is None else own, [])
        self._cluster.add(
            fresh_replica(pool, unit.number),
            pool.recorder,
            now,
            place=list(dict.fromkeys(each.region for each in self.pools)).index(pool.region),
            first_pace=number * self._count,
            port=port,
        )
        # It is there, and takes no requests yet.
        self._cluster.plane.routes_least = False
        self.units.append(unit)
        pool.units.append(unit)
        if is_ready:
            self.ready(unit, now)
        for tell in self.on_launch:
            tell(unit)
        return unit

    def ready(self, unit: Unit, now: float) -> None:
        """Let a replica take requests; those that waited for one are routed."""
        unit.state = READY
        unit.ready_at = min(unit.ready_at, now)
        unit.finishes.last = now
        unit.pool.ready.append(unit.number)
        unit.pool.ready.sort()
        self._route_parked(now)
        self._mark(unit)

    def drain(self, unit: Unit, now: float) -> None:
        """Send a replica no more requests; when it has answered those it has, it is given back."""
        self.withdraw(unit, DRAINING)
        if not unit.load:
            self.stop(unit, now)

    def stop(self, unit: Unit, now: float) -> None:
        """Give a replica back; it holds nothing any more."""
        self.withdraw(unit, STOPPED)
        self._note_stop(unit, now)

    def when_stopped(self, unit: Unit, tell: Callable[[], None]) -> None:
        """Call ``tell`` on SimPy's side when a replica has been given back."""
        if unit.stopped_at < INFINITY:
            tell()
        else:
            self._awaited.setdefault(unit.number, []).append(tell)

    def lose(
        self, unit: Unit, now: float, *, then: int = DOWN, reason: int = REPLICA_LOST, retry: bool = False
    ) -> None:
        """Lose a replica with everything on it, at the end of the step that runs.

        Args:
            unit: The replica.
            now: Seconds.
            then: Its state afterwards: DOWN, or STOPPED.
            reason: Why, of its requests that are lost.
            retry: Whether the router sends them to another replica instead.
        """
        self.withdraw(unit, then)
        unit.is_dying, unit.loss, unit.is_loss_retried = True, reason, retry
        break_off(unit.replica, now)
        if not self.ends_leap(unit, now):
            self._bury(unit, now)

    def withdraw(self, unit: Unit, state: int) -> None:
        """Send a replica no more requests."""
        if unit.number in unit.pool.ready:
            unit.pool.ready.remove(unit.number)
        unit.state = state
        self._publish()
        self._mark(unit)

    def ends_leap(self, unit: Unit, now: float) -> bool:
        """Let the leap of a replica end with the running step; return whether one runs."""
        is_running = end_leap(self._cluster.unit(unit.number), now)
        self.note_end(unit)
        return is_running

    def note_end(self, unit: Unit) -> None:
        """Note when the data plane must look at a replica next."""
        self._look_at(unit, INFINITY if unit.is_frozen else unit.replica.end_time)

    def set_link_pace(self, unit: Unit, now: float, pace: float) -> None:
        """Let the link of a prefill replica take ``pace`` times as long from now on; inf: it is down."""
        assert self._links is not None
        for index in self._links.set_pace(unit.number, now, pace):
            self._cluster.tell(LAND_AGAIN, index, now)

    def complete(self, unit: Unit, now: float) -> None:
        """End the step of a replica, or whatever waits for that where none runs."""
        self._cluster.tell(SETTLE, unit.number, now)
        self._answer_calls()

    def _look_at(self, unit: Unit, time: float) -> None:
        self._cluster.plane.ends[unit.number] = time
        self._mark(unit)

    def _note_stop(self, unit: Unit, now: float) -> None:
        unit.stopped_at = now
        self._look_at(unit, INFINITY)
        awaited = self._awaited.pop(unit.number, [])
        if awaited:
            self.news += awaited
            self.news_time = now

    def _mark(self, unit: Unit) -> None:
        """Tell the plane when to call for a replica, and whether it does anything."""
        is_awaited = unit.is_dying or unit.is_freezing or unit.next_times is not None
        mark = CALLS * is_awaited + DRAINS * (unit.state == DRAINING) + FROZEN * unit.is_frozen
        self._cluster.presence.marks[unit.number] = mark

    def _publish(self) -> None:
        """Tell the router which replicas take requests, and the links which take caches."""
        plane, entrances = self._cluster.plane, self._entrances
        for part, pools in zip(plane.parts, self._allowed, strict=True):
            is_open = [number for number in pools if entrances[number].ready]
            fill(part.pools, is_open)
            fill(part.ready, [each for number in is_open for each in entrances[number].ready])
        for part, pool in zip(plane.pools, entrances, strict=False):
            fill(part.ready, pool.ready)
        plane.routes_least = self._routes_least and len(self.pools[0].ready) == len(self.units)
        if self._transfers is None:
            return
        ports = self._live_transfers.ports
        for pool in self.pools:
            if pool.role == "prefill":
                readers = [number for other in self._readers(pool) for number in other.ready]
                for unit in pool.units:
                    fill(ports[unit.number].readers, readers)

    @property
    def _live_transfers(self) -> Transfers:
        transfers = self._cluster.attendance.transfers
        assert transfers is not None
        return transfers

    def _readers(self, source: Pool) -> list[Pool]:
        """Return the decode pools that take in what a prefill pool computes."""
        return [pool for pool in self.pools if pool.role == "decode" and pool.reads(source)]

    def _route_parked(self, now: float) -> None:
        """Route the requests that waited for a replica to be ready, and the caches that have landed meanwhile."""
        self._publish()
        presence = self._cluster.presence
        parked = list(presence.parked)
        fill(presence.parked, [])
        # They have passed the door already, so they are not refused any more.
        for index in parked:
            self._cluster.tell(HAND_OVER, index, now)
        if self._cluster.attendance.gateway is not None:
            self._cluster.tell(OFFER, 0, now)
        if self._transfers is not None:
            transfers = self._live_transfers
            stranded = list(transfers.stranded)
            fill(transfers.stranded, [])
            for index in stranded:
                self._cluster.tell(ADMIT, index, now)

    def _bury(self, unit: Unit, now: float) -> None:
        """Forget the schedulers of a replica that is lost; its requests are tried again, or lost with it."""
        members = self._take_members(unit)
        unit.is_dying = unit.is_freezing = unit.is_frozen = False
        unit.flush()
        unit.new_replica()
        self._look_at(unit, INFINITY)
        if unit.state == DRAINING:
            unit.state = STOPPED
        if unit.state == STOPPED:
            self._note_stop(unit, now)
        if self._links is not None and unit.pool.role == "prefill":
            members += self._links.cut_off(unit.number, now)
        for index in members:
            if unit.pool.paths is not None:
                unit.pool.paths.forget(index)
            is_retried = self._is_tried_again(index, unit)
            self._cluster.tell(LOSE, index, now, reason=RETRIED if is_retried else unit.loss)

    def _is_tried_again(self, index: int, unit: Unit) -> bool:
        """Return whether a request that was lost with its replica goes to another one; it is noted that it was."""
        if not unit.is_loss_retried:
            return False
        self._num_losses[index] = self._num_losses.get(index, 0) + 1
        return self._num_losses[index] < MOST_LOSSES

    def _take_members(self, unit: Unit) -> list[int]:
        """Return the requests of a replica in the order of their coming, and let it hold none of them."""
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

    def _answer_calls(self) -> None:
        """Look after replicas whose steps have ended, or that hold nothing any more; tell who waits for an end."""
        presence = self._cluster.presence
        now, calls = presence.time, list(presence.calls)
        fill(presence.calls, [])
        if NOBODY in calls:
            self.news_time = now
            self.settle()
        for unit in (self.units[number] for number in calls if number != NOBODY):
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
        due = self._count
        if conversations is not None and conversations.num_idle == self._concurrency:
            # Clients stop by a time: how many requests there are in all is known when the last of them has.
            due = conversations.num_begun
        return self._cluster.num_ended == due

    def drive(self, until: float) -> None:
        """Advance to ``until`` (exclusive), to news for SimPy's side, or until nothing is left to do."""
        cluster = self._cluster
        if cluster.presence.calls:
            # A request has ended by what was decided.
            self._answer_calls()
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

    def submit(self, index: int, sent_at: float, ready_time: float) -> None:
        """Let a request that was sent at ``sent_at`` arrive at ``ready_time``; only where nothing is compiled."""
        callers = self._cluster.attendance.callers
        callers.sent_at[index] = sent_at
        put(callers, self.requests, index, ready_time)

    def refresh(self, now: float) -> None:
        """Let the router look at the replicas; until the next look, that is what it knows."""
        plane = self._cluster.plane
        fill(plane.seen, plane.tokens if plane.weighs_tokens else plane.loads)
        if self.judge is not None:
            self.judge.refresh(gauges_of(unit, now) for unit in self.units)

    def tell_ends(self, tell: Callable[[int, float], None]) -> None:
        """Call ``tell`` with every request that comes to its end, and when its client hears of it, in `settle`."""
        self._tells.append(tell)

    def settle(self) -> None:
        """Tell who asks which requests have ended so far."""
        presence = self._cluster.presence
        ended, heard_at = list(presence.ended), presence.heard_at
        fill(presence.ended, [])
        for tell in self._tells:
            for index in ended:
                tell(index, heard_at[index] if len(heard_at) else presence.time)

    def num_parked(self, pool: Pool) -> int:
        """Return how many requests, or caches, wait for a replica of a pool, whoever else may serve them."""
        if pool.role == "decode":
            assert self._transfers is not None
            waiting = self._live_transfers.stranded
            sources = [self.units[self._transfers.prefill_replica[index]].pool for index in waiting]
            return sum(pool.reads(source) for source in sources)
        number = self._entrances.index(pool)
        parked = [*self._cluster.presence.parked, *self._cluster.waiting_in_turn()]
        return sum(number in self._allowed[self._cluster.kind_of(index)] for index in parked)

    @property
    def time(self) -> float:
        """The instant at hand, seconds."""
        time: float = self._cluster.presence.time
        return time

    def gauges(self, numbers: Sequence[int]) -> list[Gauges]:
        """Return what a user's own functions see of replicas, as they are."""
        return [gauges_of(self.units[number], self.time) for number in numbers]

    def open_to(self, index: int) -> list[int]:
        """Return the replicas that a request may go to, in whichever of its pools; only where nothing is compiled."""
        plane, attendance = self._cluster.plane, self._cluster.attendance
        attendance.open.clear()
        for number in self._allowed[self._cluster.kind_of(index)]:
            add_open(plane, attendance, self._entrances[number].ready)
        return list(attendance.open)

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
