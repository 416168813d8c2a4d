"""Lives: replicas that are launched, get ready, drain, are lost and given back. Serves nothing."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

from simserve.engine.data_parallel import end_leap
from simserve.engine.state import INFINITY, RequestTable
from simserve.sim.records import REPLICA_LOST
from simserve.sim.schedulers import break_off
from simserve.sim.units import DOWN, DRAINING, READY, STOPPED, Pool, Unit

MOST_LOSSES = 10
"""Replicas that a request may be lost with and still be tried on another, where a scenario says so. Without a bound a
fleet whose probe restarts replicas for being busy never comes to an end."""


class Lives:
    """The replicas of a fleet, and how each of them comes and goes.

    Args:
        pools: One or more, without replicas yet.

    Attributes:
        requests: The table of all requests.
        units: Every replica that was ever launched, by number.
        on_launch: Called with every replica that is launched.
        news: What waits to be told on SimPy's side, at `news_time`; the data plane stops until that is done.
    """

    requests: RequestTable

    def __init__(self, pools: list[Pool]) -> None:
        self.pools = pools
        self.units: list[Unit] = []
        self.on_launch: list[Callable[[Unit], None]] = []
        self.news: list[Callable[[], None]] = []
        self.news_time = 0.0
        self._awaited: dict[int, list[Callable[[], None]]] = {}
        self._num_losses: dict[int, int] = {}

    def launch(self, pool: Pool, now: float, *, is_ready: bool, place: int | None = None) -> Unit:
        """Add a replica, paid for from ``now``; it takes requests when it is said to be `ready`.

        Args:
            pool: What it is one of.
            now: Seconds.
            is_ready: Whether it is ready at once.
            place: Whose place in the pool it takes over; None: the first that is free.
        """
        unit = self._new_unit(pool, now, pool.free_place() if place is None else place)
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

    def ends_leap(self, unit: Unit, now: float) -> bool:
        """Let the leap of a replica end with the running step; return whether one runs."""
        is_running = end_leap(unit.replica, now)
        self.note_end(unit)
        return is_running

    def note_end(self, unit: Unit) -> None:
        """Note when the data plane must look at a replica next."""
        self._look_at(unit, INFINITY if unit.is_frozen else unit.replica.end_time)

    def _note_stop(self, unit: Unit, now: float) -> None:
        unit.stopped_at = now
        self._look_at(unit, INFINITY)
        awaited = self._awaited.pop(unit.number, [])
        if awaited:
            self.news += awaited
            self.news_time = now

    def _bury(self, unit: Unit, now: float) -> None:
        """Forget the scheduler of a replica that is lost; its requests are tried again, or lost with it."""
        members = self._take_members(unit)
        unit.is_dying = unit.is_freezing = unit.is_frozen = False
        unit.flush()
        unit.new_replica()
        self._look_at(unit, INFINITY)
        if unit.state == DRAINING:
            unit.state = STOPPED
        if unit.state == STOPPED:
            self._note_stop(unit, now)
        for index in members:
            if unit.pool.paths is not None:
                unit.pool.paths.forget(index)
            self._lose_request(index, unit, now)

    def _is_tried_again(self, index: int, unit: Unit) -> bool:
        """Return whether a request that was lost with its replica goes to another one; it is noted that it was."""
        if not unit.is_loss_retried:
            return False
        self._num_losses[index] = self._num_losses.get(index, 0) + 1
        return self._num_losses[index] < MOST_LOSSES

    @abstractmethod
    def _look_at(self, unit: Unit, time: float) -> None:
        """Note when the data plane must look at a replica next."""

    @abstractmethod
    def _new_unit(self, pool: Pool, now: float, place: int) -> Unit:
        """Return a replica that starts."""

    @abstractmethod
    def _take_members(self, unit: Unit) -> list[int]:
        """Return the requests of a replica in the order of their coming, and let it hold none of them."""

    @abstractmethod
    def _lose_request(self, index: int, unit: Unit, now: float) -> None:
        """Let a request that was lost with its replica be tried again, or be gone."""

    @abstractmethod
    def _route_parked(self, now: float) -> None:
        """Route the requests that waited for a replica to be ready."""

    @abstractmethod
    def complete(self, unit: Unit, now: float) -> None:
        """End the step of a replica, or whatever waits for that where none runs."""

    # What those who decide go by.

    @property
    @abstractmethod
    def is_done(self) -> bool:
        """Whether every request has come to its end."""

    @abstractmethod
    def drive(self, until: float) -> None:
        """Advance to ``until`` (exclusive), to news for SimPy's side, or until nothing is left to do."""

    @abstractmethod
    def refresh(self, now: float) -> None:
        """Let the router look at the replicas; until the next look, that is what it knows."""

    @abstractmethod
    def tell_ends(self, tell: Callable[[int], None]) -> None:
        """Call ``tell`` with every request that comes to its end, at the latest in `settle`."""

    def settle(self) -> None:
        """Tell who asks which requests have ended so far."""

    @abstractmethod
    def num_parked(self, pool: Pool) -> int:
        """Return how many requests wait for a replica of a pool to be ready, whether or not others may serve them."""

    def holds(self, unit: Unit, index: int) -> bool:
        """Return whether a request is at a replica."""
        return index in unit.members

    def last_of(self, unit: Unit) -> int | None:
        """Return the request of a replica that came last; None: it has none."""
        return next(reversed(unit.members), None)
