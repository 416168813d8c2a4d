"""Rolling updates as SimPy processes: replicas are drained and replaced, a few at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import Any

import simpy

from simserve.sim.cluster import DRAINING, STARTING, STOPPED, ManagedReplica, Pool
from simserve.sim.control import UpdateSpec
from simserve.sim.lifecycle import Lifecycle
from simserve.sim.records import DRAINED

Steps = Generator[simpy.Event, Any, None]


class Updates:
    """Rolls out every update of a run at its time.

    Args:
        env: SimPy's clock.
        fleet: The replicas.

    Attributes:
        num_replaced: Replicas that were replaced so far.
        spans: When each update began, and when the last of its replicas was ready.
    """

    def __init__(self, env: simpy.Environment, fleet: Lifecycle) -> None:
        self.num_replaced = 0
        self.spans: list[tuple[float, float]] = []
        self._env, self._fleet = env, fleet

    def start(self, updates: tuple[UpdateSpec, ...]) -> None:
        """Let every update wait for its time."""
        for update in updates:
            self._env.process(self._roll(update))

    def _roll(self, spec: UpdateSpec) -> Steps:
        yield self._env.timeout(spec.at)
        number = len(self.spans)
        self.spans.append((self._env.now, float("inf")))
        for pool in self._fleet.pools:
            if spec.pool not in (None, pool.name):
                continue
            old = deque(pool.present)
            count = len(old)
            lanes = [self._lane(spec, pool, old, is_surge=True) for _ in range(min(spec.max_surge, count))]
            lanes += [self._lane(spec, pool, old, is_surge=False) for _ in range(min(spec.max_unavailable, count))]
            yield self._env.all_of([self._env.process(lane) for lane in lanes])
        self.spans[number] = (spec.at, self._env.now)

    def _lane(self, spec: UpdateSpec, pool: Pool, old: deque[ManagedReplica], *, is_surge: bool) -> Steps:
        """Replace one replica after another: with a surge the new one comes before the old one goes."""
        startup = spec.startup.seconds(pool.weights_bytes)
        while old:
            replica = old.popleft()
            if replica not in pool.present:
                continue
            if is_surge:
                pool.in_flux -= 1
                yield from self._start(pool, replica.place, startup)
                pool.in_flux += 1
                yield from self._retire(spec, replica)
            else:
                pool.in_flux += 1
                yield from self._retire(spec, replica)
                pool.in_flux -= 1
                yield from self._start(pool, replica.place, startup)
            self.num_replaced += 1

    def _start(self, pool: Pool, place: int, seconds: float) -> Steps:
        replica = self._fleet.launch(pool, self._env.now, is_ready=False, place=place)
        yield self._env.timeout(seconds)
        if replica.state == STARTING:
            self._fleet.ready(replica, self._env.now)

    def _retire(self, spec: UpdateSpec, replica: ManagedReplica) -> Steps:
        """Drain a replica, cut off what it still has when its grace period is over, and wait until it is gone."""
        if replica.state not in (DRAINING, STOPPED):
            self._fleet.drain(replica, self._env.now)
        is_gone = self._env.event()
        self._fleet.when_stopped(replica, lambda: _tell(is_gone))
        yield is_gone | self._env.timeout(spec.grace_period)
        if not is_gone.triggered:
            if replica.state == DRAINING:
                self._fleet.lose(replica, self._env.now, then=STOPPED, reason=DRAINED)
            yield is_gone


def _tell(event: simpy.Event) -> None:
    event.succeed()
