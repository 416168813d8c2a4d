"""DisaggregatedFleet: prefill replicas that hand each request over to a decode replica, with its KV cache.

Replicas that do both may stand beside them; what they answer crosses no link.
"""

from __future__ import annotations

from collections import deque

from simserve.engine.data_parallel import go_on, look_again, num_outstanding_at, stand_still
from simserve.engine.state import INFINITY
from simserve.sim.fleet import NOWHERE, Fleet
from simserve.sim.handover import Handover
from simserve.sim.records import TIMED_OUT, TIMEOUT
from simserve.sim.routing import Router
from simserve.sim.units import Pool, Unit

_ON_ITS_WAY = -3


class DisaggregatedFleet(Fleet):
    """A fleet some of whose pools prefill or decode.

    Attributes:
        handover: The links between them.
        decode_router: Which decode replica a cache goes to when it has crossed its link.
        landed: Caches that have, while no decode replica is ready.
    """

    handover: Handover
    decode_router: Router
    landed: deque[int]

    def readers(self, index: int, pools: list[Pool]) -> list[Pool]:
        """Return the decode pools that can read the KV cache of a request: of its model and format, in its region."""
        return [pool for pool in pools if pool.reads(self._source(index))]

    def _source(self, index: int) -> Pool:
        """Return the pool that computed the KV cache of a request."""
        return self.units[self.handover.prefill_replica[index]].pool

    def _begin(self, index: int, unit: Unit) -> None:
        self.handover.begin(index, is_split=unit.pool.role == "prefill")

    def _leave(self, unit: Unit, index: int) -> None:
        super()._leave(unit, index)
        self.handover.restore(index)

    def _may_step(self, unit: Unit, now: float) -> bool:
        if unit.pool.role == "prefill":
            if num_outstanding_at(unit.replica) and self.handover.is_full(unit, now):
                stand_still(unit.replica)
                return False
            return True
        if unit.pool.role == "decode":
            self._go_on(self.handover.take_in(unit, now), now)
        return True

    def _go_on(self, freed: list[Unit], now: float) -> None:
        """Let prefill replicas that stood still plan a step."""
        for unit in freed:
            if unit.replica.end_time == INFINITY and num_outstanding_at(unit.replica):
                go_on(unit.replica, now)
                self.note_end(unit)

    def _goes_on(self, index: int, unit: Unit, now: float) -> bool:
        if unit.pool.role != "prefill" or not self.handover.send(index, unit, now):
            return False
        self._place[index] = _ON_ITS_WAY
        return True

    def _land(self, index: int, now: float) -> None:
        """Route a KV cache that has arrived to a decode replica."""
        if self._place[index] != _ON_ITS_WAY or not self.handover.has_landed(index, now):
            return
        self._take_to_decode(index, now)

    def _take_to_decode(self, index: int, now: float) -> None:
        number = self.decode_router.choose(index)
        if number < 0:
            self.landed.append(index)
            return
        unit = self.units[number]
        self._join(unit, index, now)
        if self.handover.arrive(index, unit) and not self.ends_leap(unit, now):
            look_again(unit.replica, now)
            self.note_end(unit)

    def _route_parked(self, now: float) -> None:
        super()._route_parked(now)
        landed, self.landed = self.landed, deque()
        for index in landed:
            self._take_to_decode(index, now)

    def num_parked(self, pool: Pool) -> int:
        """Return how many requests, or caches that have landed, wait for a replica of a pool to be ready."""
        if pool.role != "decode":
            return super().num_parked(pool)
        return sum(pool.reads(self._source(index)) for index in self.landed)

    def _bury(self, unit: Unit, now: float) -> None:
        members = list(unit.members)
        if unit.pool.role == "prefill":
            for index in members:
                self.handover.restore(index)
            lost = self.handover.lose_source(unit, now)
        else:
            lost = []
            for index in members:
                self._go_on(self.handover.drop(index, unit, now), now)
        super()._bury(unit, now)
        for index in lost:
            if self._place[index] == _ON_ITS_WAY and index not in self.landed:
                self._place[index] = NOWHERE
                self._lose_request(index, unit, now)

    def _drops(self, index: int, place: int, now: float) -> bool:
        is_queued = place >= 0 and self.handover.is_queued(index, self.units[place])
        if place != _ON_ITS_WAY and not is_queued:
            return False
        unit = self.units[place] if is_queued else None
        if index in self.landed:
            self.landed.remove(index)
        freed = self.handover.drop(index, unit, now)
        if unit is not None:
            self._leave(unit, index)
        self._place[index] = NOWHERE
        self._go_on(freed, now)
        self.callers.without_answer(index, now, TIMED_OUT, TIMEOUT, free_at=now)
        return True
