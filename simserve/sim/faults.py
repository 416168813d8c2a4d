"""Faults as SimPy processes: each waits for its time, breaks what it breaks, and mends it when it is over."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from math import ceil, inf
from typing import Any

import numpy as np
import simpy

from simserve import rng
from simserve.engine.data_parallel import break_off, look_again
from simserve.engine.state import INFINITY, StepTimes, slowed
from simserve.sim.cluster import DOWN, READY, STARTING, STOPPED, ManagedReplica, Pool
from simserve.sim.control import BlackHoleFault, FaultSpec, LinkFault, NodeFault, SlowFault, SpotFault
from simserve.sim.lifecycle import Lifecycle
from simserve.workload.requests import RequestSpecs

Steps = Generator[simpy.Event, Any, None]
Site = tuple[Pool, int]
"""A place in a pool, or with a fault of nodes a node; who has the place changes as replicas are replaced."""


class Faults:
    """Starts the processes of all faults of a run.

    Args:
        env: SimPy's clock.
        fleet: What breaks; its first replicas are there.
        specs: What arrives, for its seed.
        outages: Where losses are noted.
    """

    def __init__(self, env: simpy.Environment, fleet: Lifecycle, specs: RequestSpecs, outages: Outages) -> None:
        self._env, self._fleet, self._specs, self._outages = env, fleet, specs, outages
        self._random: list[tuple[int, FaultSpec]] = []
        self._exposed: set[tuple[int, str, int]] = set()

    def start(self, faults: tuple[FaultSpec, ...]) -> None:
        """Let every fault wait for its time."""
        for number, fault in enumerate(faults):
            if fault.at is not None:
                self._env.process(self._once(fault, self._site(fault)))
                continue
            for replica in self._fleet.replicas:
                self._expose(number, fault, replica)
        self._random = [(number, fault) for number, fault in enumerate(faults) if fault.at is None]
        if self._random:
            self._fleet.on_launch.append(self._expose_to_all)

    def _expose_to_all(self, replica: ManagedReplica) -> None:
        for number, fault in self._random:
            self._expose(number, fault, replica)

    def _pools(self, fault: FaultSpec) -> list[Pool]:
        links = isinstance(fault, LinkFault)
        pools = [pool for pool in self._fleet.pools if fault.pool in (None, pool.name)]
        return [pool for pool in pools if pool.role == "prefill"] if links else pools

    def _site(self, fault: FaultSpec) -> Site:
        """Return what a fault at a time strikes: it counts over the replicas, or nodes, of the start."""
        left = fault.node if isinstance(fault, NodeFault) else fault.replica
        pools = self._pools(fault)
        for pool in pools:
            size = pool.replicas_per_node if isinstance(fault, NodeFault) else 1
            count = ceil(len(pool.replicas) / size)
            if left < count:
                return pool, left
            left -= count
        return pools[-1], ceil(len(pools[-1].replicas))

    def _expose(self, number: int, fault: FaultSpec, replica: ManagedReplica) -> None:
        """Let a random fault strike the place of a replica again and again, once there is somebody in it."""
        pool = replica.pool
        if pool not in self._pools(fault):
            return
        size = pool.replicas_per_node if isinstance(fault, NodeFault) else 1
        site = replica.place // size
        if (number, pool.name, site) in self._exposed:
            return
        self._exposed.add((number, pool.name, site))
        prefix = f"{pool.name}." if pool.name else ""
        name = f"faults.{number}.{prefix}{site * size}"
        generator = rng.stream(self._specs.seed, name, self._specs.replication)
        self._env.process(self._again_and_again(fault, (pool, site), generator))

    def _struck(self, fault: FaultSpec, site: Site) -> list[ManagedReplica]:
        pool, place = site
        size = pool.replicas_per_node if isinstance(fault, NodeFault) else 1
        return [replica for replica in pool.replicas if replica.place // size == place and replica.state == READY]

    def _once(self, fault: FaultSpec, site: Site) -> Steps:
        assert fault.at is not None
        assert fault.duration is not None
        yield self._env.timeout(fault.at)
        yield self._env.process(self._strike(fault, self._struck(fault, site), fault.duration))

    def _again_and_again(self, fault: FaultSpec, site: Site, generator: np.random.Generator) -> Steps:
        assert fault.mtbf is not None
        assert fault.mttr is not None
        while True:
            yield self._env.timeout(float(generator.exponential(fault.mtbf)))
            struck = self._struck(fault, site)
            yield self._env.process(self._strike(fault, struck, float(generator.exponential(fault.mttr))))

    def _strike(self, fault: FaultSpec, struck: list[ManagedReplica], seconds: float) -> Steps:
        """Break what is there, for ``seconds``."""
        if isinstance(fault, SlowFault):
            yield from self._slow(fault, struck, seconds)
        elif isinstance(fault, BlackHoleFault):
            yield from self._hang(fault, struck, seconds)
        elif isinstance(fault, SpotFault):
            yield from self._take_back(fault, struck, seconds)
        elif isinstance(fault, LinkFault):
            yield from self._throttle(fault, struck, seconds)
        else:
            self._outages.lose(struck, self._env.now, retry=fault.in_flight == "retry")
            yield self._env.timeout(seconds)
            self._outages.restore(struck, self._env.now)

    def _slow(self, fault: SlowFault, replicas: list[ManagedReplica], seconds: float) -> Steps:
        for replica in replicas:
            change_pace(self._fleet, replica, slowed(replica.pool.times, fault.factor), self._env.now)
        yield self._env.timeout(seconds)
        for replica in replicas:
            change_pace(self._fleet, replica, replica.pool.times, self._env.now)

    def _throttle(self, fault: LinkFault, replicas: list[ManagedReplica], seconds: float) -> Steps:
        for replica in replicas:
            self._fleet.set_link_pace(replica, self._env.now, inf if fault.factor is None else fault.factor)
        yield self._env.timeout(seconds)
        for replica in replicas:
            self._fleet.set_link_pace(replica, self._env.now, 1.0)

    def _hang(self, fault: BlackHoleFault, replicas: list[ManagedReplica], seconds: float) -> Steps:
        for replica in replicas:
            freeze(self._fleet, replica, self._env.now)
        if fault.probe.depth == "shallow":
            yield self._env.timeout(seconds)
            for replica in replicas:
                thaw(self._fleet, replica, self._env.now)
            return
        period = fault.probe.period
        first = (ceil(self._env.now / period + 1e-9) or 1) * period
        yield self._env.timeout(first + (fault.probe.threshold - 1) * period - self._env.now)
        # Another fault may have come first.
        hanging = [replica for replica in replicas if replica.is_frozen and replica.state == READY]
        for replica in hanging:
            replica.is_frozen = False
        self._outages.lose(hanging, self._env.now, retry=fault.in_flight == "retry")
        yield self._env.timeout(seconds)
        self._outages.restore(hanging, self._env.now)

    def _take_back(self, fault: SpotFault, replicas: list[ManagedReplica], seconds: float) -> Steps:
        """Drain for the length of the notice, then take it; another instance is ready when it is over.

        It is launched, and paid for, so long before as a start takes. Under an autoscaler only if that has not filled
        the gap by then.
        """
        for replica in replicas:
            self._fleet.drain(replica, self._env.now)
        yield self._env.timeout(fault.notice)
        for replica in replicas:
            if replica.state != STOPPED:
                self._fleet.lose(replica, self._env.now, then=STOPPED, retry=fault.in_flight == "retry")
        yield self._env.all_of([self._env.process(self._replace(replica, seconds)) for replica in replicas])

    def _replace(self, replica: ManagedReplica, seconds: float) -> Steps:
        """Have another instance in the place of one that was taken, ready after ``seconds``."""
        pool = replica.pool
        startup = min(pool.startup_seconds, seconds)
        yield self._env.timeout(seconds - startup)
        if pool.wanted is not None and len(pool.present) >= pool.wanted:
            yield self._env.timeout(startup)
            return
        instance = self._fleet.launch(pool, self._env.now, is_ready=False, place=replica.place)
        yield self._env.timeout(startup)
        if instance.state == STARTING:
            self._fleet.ready(instance, self._env.now)


def freeze(fleet: Lifecycle, replica: ManagedReplica, now: float) -> None:
    """Let a replica hang from the end of the running step on: it takes requests and does nothing.

    A static batch that hangs begins anew when the replica goes on.
    """
    replica.is_freezing = True
    break_off(replica.schedulers, now)
    if not fleet.ends_leap(replica, now):
        fleet.complete(replica, now)
        fleet.note_end(replica)


def thaw(fleet: Lifecycle, replica: ManagedReplica, now: float) -> None:
    """Let a replica that hangs go on."""
    replica.is_freezing = False
    if replica.is_frozen:
        replica.is_frozen = False
        if replica.schedulers.end_time != INFINITY:
            look_again(replica.schedulers, now)
        fleet.note_end(replica)


def change_pace(fleet: Lifecycle, replica: ManagedReplica, times: StepTimes, now: float) -> None:
    """Let the steps of a replica take ``times`` after the one that runs."""
    replica.next_times = times
    replica.pool.recorder.scales_parts = True
    if not fleet.ends_leap(replica, now):
        fleet.complete(replica, now)


class Outages:
    """Takes replicas down and brings them back.

    Args:
        fleet: The replicas.

    Attributes:
        lost_since: When each replica that took no requests went down.
        lost_until: When it was back; as long as it is not, inf.
        num_killed: How many a liveness probe took down.
    """

    def __init__(self, fleet: Lifecycle) -> None:
        self.lost_since: list[float] = []
        self.lost_until: list[float] = []
        self.num_killed = 0
        self._open: dict[int, int] = {}
        self._fleet = fleet

    def lose(self, replicas: Sequence[ManagedReplica], now: float, *, retry: bool) -> None:
        """Lose ready replicas with everything on them; ``retry``: the router sends it elsewhere."""
        # All go before the first one's requests look for another.
        for replica in replicas:
            self._fleet.withdraw(replica, DOWN)
        for replica in replicas:
            self._fleet.lose(replica, now, retry=retry)
            self._open[replica.number] = len(self.lost_since)
            self.lost_since.append(now)
            self.lost_until.append(float("inf"))

    def restore(self, replicas: Sequence[ManagedReplica], now: float) -> None:
        """Bring lost replicas back, but for those that were given back in the meantime."""
        for replica in replicas:
            self.lost_until[self._open.pop(replica.number)] = min(replica.stopped_at, now)
            if replica.state == DOWN:
                self._fleet.ready(replica, now)
