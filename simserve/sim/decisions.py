"""Decisions: SimPy's side of a run, the processes that change a fleet and the clock they share with its data plane.

This includes faults: each waits for its time, breaks its target, and restores it afterwards.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import fields, replace
from math import ceil, inf
from typing import Any

import numpy as np
import simpy
from numpy.typing import NDArray

from simserve import rng
from simserve.engine.data_parallel import break_off, look_again
from simserve.engine.plane_state import Clients
from simserve.engine.state import INFINITY, StepTimes
from simserve.sim.autoscaler import Autoscaler, EncoderAutoscaler, EncoderLives, Objective
from simserve.sim.cluster import end_of
from simserve.sim.control import (
    BlackHoleFault,
    Control,
    FaultSpec,
    LinkFault,
    LivenessSpec,
    NodeFault,
    SlowFault,
    SpotFault,
)
from simserve.sim.lifecycle import DOWN, READY, STARTING, STOPPED, Lifecycle, ManagedReplica, Pool, Updates
from simserve.sim.pools import PoolSetup
from simserve.sim.recorder import FleetTimeline
from simserve.workload.requests import RequestSpecs

Site = tuple[Pool, int]
"""A place in a pool, or for node faults a node; the replica in that place changes as replicas are replaced."""


class Faults:
    """Starts the processes of all faults of a run.

    Args:
        fleet: The replicas that may break; the initial ones exist.
    """

    def __init__(self, env: simpy.Environment, fleet: Lifecycle, specs: RequestSpecs, outages: Outages) -> None:
        self._env, self._fleet, self._specs, self._outages = env, fleet, specs, outages
        self._random: list[tuple[int, FaultSpec]] = []
        self._exposed: set[tuple[int, str, int]] = set()

    def start(self, faults: tuple[FaultSpec, ...]) -> None:
        """Schedule every fault for its time."""
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
        """Return the target of a fault with a given time: counted over the replicas, or nodes, of the start."""
        left = fault.node if isinstance(fault, NodeFault) else fault.replica
        pools = self._pools(fault)
        for pool in pools:
            size = pool.replicas_per_node if isinstance(fault, NodeFault) else 1
            count = ceil(len(pool.replicas) / size)
            if left < count:
                return pool, left
            left -= count
        return pools[-1], len(pools[-1].replicas)

    def _expose(self, number: int, fault: FaultSpec, replica: ManagedReplica) -> None:
        """Let a random fault hit the place of a replica again and again, whenever a replica is in it."""
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
        """Break the given replicas for ``seconds``."""
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
        """Drain the instance during the notice, then take it; its replacement is ready when the outage is over.

        The replacement is launched, and paid for, one startup time before that; under an autoscaler only if that has
        not filled the gap by then.
        """
        for replica in replicas:
            self._fleet.drain(replica, self._env.now)
        yield self._env.timeout(fault.notice)
        for replica in replicas:
            if replica.state != STOPPED:
                self._fleet.lose(replica, self._env.now, then=STOPPED, retry=fault.in_flight == "retry")
        yield self._env.all_of([self._env.process(self._replace(replica, seconds)) for replica in replicas])

    def _replace(self, replica: ManagedReplica, seconds: float) -> Steps:
        """Put another instance in the place of one that was taken, ready after ``seconds``."""
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

    A static batch that hangs starts over when the replica resumes.
    """
    replica.is_freezing = True
    break_off(replica.schedulers, now)
    if not fleet.ends_leap(replica, now):
        fleet.complete(replica, now)
        fleet.note_end(replica)


def thaw(fleet: Lifecycle, replica: ManagedReplica, now: float) -> None:
    """Let a replica that hangs resume."""
    replica.is_freezing = False
    if replica.is_frozen:
        replica.is_frozen = False
        if replica.schedulers.end_time != INFINITY:
            look_again(replica.schedulers, now)
        fleet.note_end(replica)


def change_pace(fleet: Lifecycle, replica: ManagedReplica, times: StepTimes, now: float) -> None:
    """Use ``times`` for the steps of a replica after the running one."""
    replica.next_times = times
    replica.pool.recorder.scales_parts = True
    if not fleet.ends_leap(replica, now):
        fleet.complete(replica, now)


def slowed(times: StepTimes, factor: float) -> StepTimes:
    """Return step times multiplied by ``factor``, as lists."""
    kept = ("mixed_decode_factor", "swap_block_seconds", "launch_max_tokens")
    names = (each.name for each in fields(times) if each.name not in kept)
    return replace(times, **{name: np.multiply(factor, getattr(times, name)).tolist() for name in names})


class Outages:
    """Takes replicas down and brings them back.

    Attributes:
        lost_since: When each replica that took no requests went down.
        lost_until: When it was back; inf until then.
        num_killed: Replicas that a liveness probe took down.
    """

    def __init__(self, fleet: Lifecycle) -> None:
        self.lost_since: list[float] = []
        self.lost_until: list[float] = []
        self.num_killed = 0
        self._open: dict[int, int] = {}
        self._fleet = fleet

    def lose(self, replicas: Sequence[ManagedReplica], now: float, *, retry: bool) -> None:
        """Lose ready replicas with all their requests; ``retry``: the router sends those elsewhere."""
        # All are withdrawn before the first one's requests look for another replica.
        for replica in replicas:
            self._fleet.withdraw(replica, DOWN)
        for replica in replicas:
            self._fleet.lose(replica, now, retry=retry)
            self._open[replica.number] = len(self.lost_since)
            self.lost_since.append(now)
            self.lost_until.append(float("inf"))

    def restore(self, replicas: Sequence[ManagedReplica], now: float) -> None:
        """Bring lost replicas back, except those that were given back in the meantime."""
        for replica in replicas:
            self.lost_until[self._open.pop(replica.number)] = min(replica.stopped_at, now)
            if replica.state == DOWN:
                self._fleet.ready(replica, now)


class Decisions:
    """The decision makers of a run.

    Args:
        fleet: The replicas; the initial ones exist.
        arrival_time: When each request was first sent; filled in during a closed loop.
    """

    _encoders: EncoderAutoscaler | None = None

    def __init__(
        self,
        control: Control,
        setups: Sequence[PoolSetup],
        fleet: Lifecycle,
        specs: RequestSpecs,
        arrival_time: NDArray[np.float64],
        clients: Clients,
    ) -> None:
        self._clients = clients
        self._control, self._setups, self._fleet, self._specs = control, setups, fleet, specs
        self._arrival_time = arrival_time
        self._outages = Outages(fleet)
        self._updates: Updates | None = None

    def start(self, env: simpy.Environment) -> None:
        """Start all processes that make decisions."""
        control, fleet = self._control, self._fleet
        for pool, setup in zip(fleet.pools, self._setups, strict=True):
            scaling = setup.autoscaling if pool.name else control.autoscaling
            if scaling is not None:
                objective = Objective(control, self._specs, fleet.requests, self._arrival_time)
                autoscaler = Autoscaler(scaling, env, fleet, pool, objective)
                autoscaler.judge = fleet.judge
                env.process(autoscaler.run())
        if control.encoder_scaling is not None and self._clients.num_encoders:
            seconds = control.encoder_startup_seconds
            self._encoders = EncoderAutoscaler(control.encoder_scaling, seconds, self._clients, env)
            env.process(self._encoders.run())
        if control.faults:
            Faults(env, fleet, self._specs, self._outages).start(control.faults)
        if control.liveness is not None:
            Liveness(control.liveness, env, fleet, self._outages)
        if control.updates:
            self._updates = Updates(env, fleet)
            self._updates.start(control.updates)
        interval = control.routing.update_interval
        if interval:
            env.process(_renew(env, fleet, interval))

    def run(self) -> bool:
        """Run to the end; return whether the user stopped it."""
        env, fleet = simpy.Environment(), self._fleet
        self.start(env)
        done = env.process(data_plane(env, fleet))
        try:
            env.run(until=done)
        except KeyboardInterrupt:
            return True
        return False

    @property
    def encoder_lives(self) -> EncoderLives | None:
        """When the workers of an encoder pool were there; None if their number is fixed."""
        return None if self._encoders is None else self._encoders.lives

    def timeline(
        self,
        tries: NDArray[np.float64],
        refusals: dict[str, int],
        num_resent: int,
        lost_tokens: int,
        ranks: NDArray[np.int64] | None = None,
    ) -> FleetTimeline:
        """Return when replicas came and went, and failed attempts of requests (arguments as for `FleetTimeline`)."""
        replicas, pools, outages, updates = self._fleet.replicas, self._fleet.pools, self._outages, self._updates
        end = end_of(self._fleet.requests)
        times = [each.at for each in (*self._control.faults, *self._control.updates)]
        return FleetTimeline(
            launched_at=np.array([replica.launched_at for replica in replicas]),
            ready_at=np.array([replica.ready_at for replica in replicas]),
            stopped_at=np.array([replica.stopped_at for replica in replicas]),
            gpus=np.array([replica.pool.gpus_per_replica for replica in replicas], dtype=np.int64),
            ranks=ranks,
            pool=np.array([pools.index(replica.pool) for replica in replicas], dtype=np.int64),
            pool_regions=tuple(pool.region for pool in pools),
            lost_since=np.array(outages.lost_since, dtype=np.float64),
            lost_until=np.array(outages.lost_until, dtype=np.float64),
            num_killed=outages.num_killed,
            num_missed=sum(time is not None and time > end for time in times),
            num_replaced=0 if updates is None else updates.num_replaced,
            updates=np.array([] if updates is None else updates.spans, dtype=np.float64).reshape(-1, 2),
            tries=tries,
            refusals=refusals,
            num_resent=num_resent,
            lost_tokens=lost_tokens,
        )


def data_plane(env: simpy.Environment, fleet: Lifecycle, *, is_fed: bool = False) -> Generator[simpy.Event, Any, None]:
    """Drive a fleet from decision to decision, until every request has ended or nothing is left to do.

    Args:
        is_fed: Whether requests are also sent from elsewhere, so that the run goes on when all present ones have ended.
    """
    # Processes that start at time 0 come first.
    yield env.timeout(0)
    while is_fed or not fleet.is_done:
        until = env.peek()
        fleet.drive(until)
        if fleet.news:
            yield env.timeout(max(fleet.news_time - env.now, 0.0))
            news, fleet.news = fleet.news, []
            for tell in news:
                tell()
            yield env.timeout(0)
            continue
        if until == float("inf") or (fleet.is_done and not is_fed):
            # Decisions due at that time are not part of the run.
            break
        yield env.timeout(max(until - env.now, 0.0))
    # Steps that have begun run to their end, whenever the next decision would have been.
    fleet.news = []
    fleet.drive(float("inf"))


def _renew(env: simpy.Environment, fleet: Lifecycle, interval: float) -> Generator[simpy.Event, Any, None]:
    """Update the router's view of the replicas at every interval."""
    while True:
        fleet.refresh(env.now)
        yield env.timeout(interval)


Steps = Generator[simpy.Event, Any, None]


class Liveness:
    """Probes every replica from its launch until it is given back.

    Args:
        spec: The interval, and how late an answer may be.
        fleet: The replicas; the initial ones exist.
    """

    def __init__(self, spec: LivenessSpec, env: simpy.Environment, fleet: Lifecycle, outages: Outages) -> None:
        self._spec, self._env, self._fleet, self._outages = spec, env, fleet, outages
        for replica in fleet.replicas:
            self._begin(replica)
        fleet.on_launch.append(self._begin)

    def _begin(self, replica: ManagedReplica) -> None:
        self._env.process(self._watch(replica))

    def _watch(self, replica: ManagedReplica) -> Steps:
        spec, num_late = self._spec, 0
        while replica.state != STOPPED:
            yield self._env.timeout(spec.period - spec.timeout)
            last = self._last_waiting(replica)
            yield self._env.timeout(spec.timeout)
            is_late = replica.state == READY and (
                replica.is_frozen or (last is not None and self._waits(last, replica))
            )
            num_late = num_late + 1 if is_late else 0
            if num_late == spec.threshold:
                num_late = 0
                replica.is_frozen = False
                self._outages.num_killed += 1
                self._outages.lose([replica], self._env.now, retry=spec.in_flight == "retry")
                yield self._env.timeout(spec.restart)
                self._outages.restore([replica], self._env.now)

    def _last_waiting(self, replica: ManagedReplica) -> int | None:
        """Return the request that the probe queues behind; None: the probe joins the next step."""
        last = self._fleet.last_of(replica)
        return last if last is not None and self._waits(last, replica) else None

    def _waits(self, index: int, replica: ManagedReplica) -> bool:
        """Return whether a request still waits at a replica for its first step there."""
        requests = self._fleet.requests
        began = requests.first_token_time if replica.pool.role == "decode" else requests.scheduled_time
        return self._fleet.holds(replica, index) and not began[index] >= 0.0
