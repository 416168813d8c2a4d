"""Fleet: SimPy processes that change which replicas there are: autoscaler, faults, liveness probes, rolling updates."""

from __future__ import annotations

import math
from collections import deque
from math import ceil
from typing import TYPE_CHECKING, Any, Protocol

from simserve import rng
from simserve.reference.replica import Pool, Replica
from simserve.reference.replica import Surroundings as ReplicaSurroundings

if TYPE_CHECKING:
    from simserve.reference.clock import Steps
    from simserve.reference.request import Request
    from simserve.reference.transfers import Transfers
    from simserve.sim.control import AutoscalingSpec, Control, LivenessSpec, UpdateSpec
    from simserve.workload.requests import RequestSpecs

TOLERANCE = 0.1
"""Deviation from the target that changes nothing (Kubernetes, ``--horizontal-pod-autoscaler-tolerance``)."""


class Surroundings(ReplicaSurroundings, Protocol):
    """What those who change the fleet ask of the run around them, beside what its replicas do."""

    pools: list[Pool]
    replicas: list[Replica]
    control: Control
    specs: RequestSpecs
    fleet: Fleet

    @property
    def transfers(self) -> Transfers:
        """The links between prefill and decode replicas."""

    def num_parked(self, pool: Pool) -> int:
        """Return how many requests wait for a replica of a pool to be ready."""

    def meets_slo(self, request: Request) -> bool:
        """Whether a request that has ended met the objective of its class."""

    def ended_task(self, request: Request) -> list[Request]:
        """Return all calls of the task that has come to its end with a request; none if it goes on."""


class Fleet:
    """Every replica there ever was, and how long replicas were down.

    Attributes:
        on_launch: Called with every replica that is launched.
        downtimes: Of each loss when it began and when the replica was back, inf: it was not.
        updates: When each rolling update began, and when the last of its replicas was ready.
    """

    def __init__(self, cluster: Surroundings) -> None:
        self.cluster, self.clock = cluster, cluster.clock
        self.replicas: list[Replica] = cluster.replicas
        self.on_launch: list[Any] = []
        self.downtimes: list[list[float]] = []
        self.open_downtimes: dict[Replica, list[float]] = {}
        self.updates: list[list[float]] = []
        self.num_killed = self.num_replaced = 0

    def launch(self, pool: Pool, place: int | None = None) -> Replica:
        """Add a replica, paid for from now on; it takes requests when it becomes ready."""
        replica = Replica(self.cluster, pool, len(self.replicas), pool.free_place() if place is None else place)
        self.replicas.append(replica)
        pool.replicas.append(replica)
        for tell in self.on_launch:
            tell(replica)
        return replica

    def start_up(self, replica: Replica, seconds: float) -> Steps:
        """Let a launched replica take requests after a time, unless it was given back meanwhile."""
        yield self.clock.timeout(seconds)
        if replica.state == "starting":
            replica.become_ready()

    def lose(self, replicas: list[Replica], *, retry: bool) -> None:
        """Lose replicas for a while; all are gone before the first one's requests look for another."""
        for replica in replicas:
            replica.state = "down"
        for replica in replicas:
            replica.lose(retry=retry)
            self.open_downtimes[replica] = downtime = [self.clock.now, math.inf]
            self.downtimes.append(downtime)

    def restore(self, replicas: list[Replica]) -> None:
        """Bring lost replicas back, but for those that were given back in the meantime."""
        for replica in replicas:
            self.open_downtimes.pop(replica)[1] = min(replica.stopped_at, self.clock.now)
            if replica.state == "down":
                replica.become_ready()

    def give_back(self, replica: Replica, grace_period: float) -> Steps:
        """Stop a draining replica whose grace period is over, with what it still has."""
        yield self.clock.timeout(grace_period)
        if replica.state == "draining":
            replica.lose("stopped", "drained")


class Autoscaler:
    """Keeps one pool at the size that its metric asks for, as Kubernetes' horizontal pod autoscaler does."""

    def __init__(self, cluster: Surroundings, spec: AutoscalingSpec, pool: Pool) -> None:
        self.cluster, self.clock, self.fleet = cluster, cluster.clock, cluster.fleet
        self.spec, self.pool = spec, pool
        self.asked: deque[tuple[float, int]] = deque()
        self.busy_before: dict[Replica, float] = {}
        self.num_ended = self.num_met = self.num_tasks = self.num_tasks_met = 0
        self.load_at_miss = 0.0

    def run(self) -> Steps:
        """Look at the metric for ever (a SimPy process)."""
        while True:
            yield self.clock.timeout(self.spec.interval)
            self.scale(self.clock.now)

    def note_end(self, request: Request) -> None:
        """Count a request that has come to its end, if it is this pool's, and the task that ends with it."""
        self.note_task(self.cluster.ended_task(request))
        number = request.replica
        if number >= 0 and self.pool.role == "both" and self.cluster.replicas[number].pool is not self.pool:
            return
        self.num_ended += 1
        self.num_met += self.cluster.meets_slo(request)

    def note_task(self, calls: list[Request]) -> None:
        """Count a task whose calls have all come to their end, whichever pool served them."""
        limit = self.cluster.control.task_limit
        if limit is None or not calls:
            return
        self.num_tasks += 1
        makespan = max(call.finish for call in calls) - min(call.arrival for call in calls)
        self.num_tasks_met += makespan <= limit and all(call.status == "completed" for call in calls)

    def scale(self, now: float) -> None:
        """Grow at once; shrink to the most that was asked for within the stabilisation window."""
        spec, present = self.spec, self.pool.present
        count = len(present) + self.pool.in_flux
        asked = min(max(self.asked_for(present, count, now), spec.min_replicas), spec.max_replicas)
        self.asked.append((now, asked))
        while self.asked[0][0] < now - spec.stabilization:
            self.asked.popleft()
        most = self.pool.wanted = max(each for _, each in self.asked)
        for _ in range(asked - count):
            self.clock.process(self.fleet.start_up(self.fleet.launch(self.pool), self.pool.startup_seconds))
        if asked <= count:
            # Those that start go first, then those with the fewest requests, the newest of them.
            order = sorted(present, key=lambda one: (one.is_ready, one.load, -one.number))
            for replica in order[: max(count - most, 0)]:
                replica.drain()
                if replica.state == "draining":
                    self.clock.process(self.fleet.give_back(replica, spec.grace_period))

    def asked_for(self, present: list[Replica], count: int, now: float) -> int:
        """Return how many replicas the metric asks for, where ``count`` are there or will be back."""
        spec, ready = self.spec, [replica for replica in present if replica.is_ready]
        parked = self.cluster.num_parked(self.pool)
        judge = self.cluster.judge
        if judge is not None and judge.parts.autoscaler is not None:
            return judge.wanted_in(self.pool.name, now, count, [replica.gauges for replica in ready], parked)
        waiting = parked + sum(replica.num_waiting for replica in ready)
        running = sum(replica.scheduler.num_running for replica in ready)
        if not count:
            return 1 if waiting else 0
        if spec.metric == "slo":
            return self.asked_by_slo(count, waiting + running)
        if spec.metric == "queue_depth":
            level = float(waiting)
        elif spec.metric == "running":
            level = float(running + parked)
        elif spec.metric == "kv_usage":
            level = sum(replica.kv_share for replica in ready)
        else:
            level = sum(self.busy_share(replica, now) for replica in ready)
        if abs(level / (spec.target * count) - 1) <= TOLERANCE:
            return count
        # A replica that works is not given back to nothing: only an idle fleet goes to zero.
        return max(ceil(level / spec.target), 1 if waiting + running else 0)

    def asked_by_slo(self, count: int, load: int) -> int:
        """Return one more after a miss, one less where all met it and the others are safe from the last miss."""
        ended, met, self.num_ended, self.num_met = self.num_ended, self.num_met, 0, 0
        tasks, in_time, self.num_tasks, self.num_tasks_met = self.num_tasks, self.num_tasks_met, 0, 0
        if met < self.spec.target * ended or in_time < self.spec.target * tasks:
            self.load_at_miss = load / count
            return count + 1
        if not load and not ended:
            return 0
        is_safe = count > 1 and load / (count - 1) <= self.load_at_miss * (1 - TOLERANCE)
        return count - 1 if is_safe and met == ended and in_time == tasks else count

    def busy_share(self, replica: Replica, now: float) -> float:
        """Return the share of the interval in which a step ran."""
        busy = replica.busy_seconds + (0.0 if replica.step is None else now - replica.step.start)
        before = self.busy_before.get(replica, busy)
        self.busy_before[replica] = busy
        return min((busy - before) / self.spec.interval, 1.0)


class Faults:
    """What goes wrong: each fault waits for its time, breaks what it breaks, and mends it when it is over."""

    def __init__(self, cluster: Surroundings, faults: tuple[Any, ...]) -> None:
        self.cluster, self.clock, self.fleet, self.faults = cluster, cluster.clock, cluster.fleet, faults
        self.exposed: set[tuple[int, str, int]] = set()

    def start(self) -> None:
        """Let every fault wait: once for its time, or again and again at each place of a pool."""
        for number, fault in enumerate(self.faults):
            if fault.at is not None:
                self.clock.process(self.once(fault, *self.site(fault)))
            else:
                for replica in self.fleet.replicas:
                    self.expose(number, fault, replica)
        self.fleet.on_launch.append(self.expose_to_all)

    def expose_to_all(self, replica: Replica) -> None:
        """Let the random faults strike the place of a new replica too."""
        for number, fault in enumerate(self.faults):
            if fault.at is None:
                self.expose(number, fault, replica)

    def pools(self, fault: Any) -> list[Pool]:
        """Return the pools that a fault may strike; links belong to prefill replicas."""
        pools = [pool for pool in self.cluster.pools if fault.pool in (None, pool.name)]
        return [pool for pool in pools if fault.kind != "link" or pool.role == "prefill"]

    @staticmethod
    def size(fault: Any, pool: Pool) -> int:
        """Return how many places a fault strikes at once: those of a node, or one."""
        return pool.replicas_per_node if fault.kind == "node" else 1

    def site(self, fault: Any) -> tuple[Pool, int]:
        """Return what a fault at a time strikes: it counts over the replicas, or nodes, of the start."""
        left = fault.node if fault.kind == "node" else fault.replica
        for pool in self.pools(fault):
            count = ceil(len(pool.replicas) / self.size(fault, pool))
            if left < count:
                return pool, left
            left -= count
        return pool, count

    def expose(self, number: int, fault: Any, replica: Replica) -> None:
        """Let a random fault strike a place from when somebody is in it, if it does not yet."""
        pool = replica.pool
        site = replica.place // self.size(fault, pool)
        if pool not in self.pools(fault) or (number, pool.name, site) in self.exposed:
            return
        self.exposed.add((number, pool.name, site))
        prefix = f"{pool.name}." if pool.name else ""
        name = f"faults.{number}.{prefix}{site * self.size(fault, pool)}"
        specs = self.cluster.specs
        self.clock.process(self.again_and_again(fault, pool, site, rng.stream(specs.seed, name, specs.replication)))

    def struck(self, fault: Any, pool: Pool, site: int) -> list[Replica]:
        """Return the replicas that take requests at a place."""
        return [one for one in pool.replicas if one.place // self.size(fault, pool) == site and one.is_ready]

    def once(self, fault: Any, pool: Pool, site: int) -> Steps:
        """Strike at a time."""
        yield self.clock.timeout(fault.at)
        yield self.clock.process(self.strike(fault, self.struck(fault, pool, site), fault.duration))

    def again_and_again(self, fault: Any, pool: Pool, site: int, generator: Any) -> Steps:
        """Strike at random times, for random times."""
        while True:
            yield self.clock.timeout(float(generator.exponential(fault.mtbf)))
            struck = self.struck(fault, pool, site)
            yield self.clock.process(self.strike(fault, struck, float(generator.exponential(fault.mttr))))

    def strike(self, fault: Any, struck: list[Replica], seconds: float) -> Steps:
        """Break replicas for ``seconds``."""
        if fault.kind == "slow":
            for replica in struck:
                replica.change_pace(fault.factor)
            yield self.clock.timeout(seconds)
            for replica in struck:
                replica.change_pace(1.0)
        elif fault.kind == "link":
            for replica in struck:
                self.cluster.transfers.set_pace(replica, math.inf if fault.factor is None else fault.factor)
            yield self.clock.timeout(seconds)
            for replica in struck:
                self.cluster.transfers.set_pace(replica, 1.0)
        elif fault.kind == "black_hole":
            yield from self.hang(fault, struck, seconds)
        elif fault.kind == "spot":
            yield from self.take_back(fault, struck, seconds)
        else:
            self.fleet.lose(struck, retry=fault.in_flight == "retry")
            yield self.clock.timeout(seconds)
            self.fleet.restore(struck)

    def hang(self, fault: Any, replicas: list[Replica], seconds: float) -> Steps:
        """Let replicas hang until a probe notices and they are restarted, or until they go on by themselves."""
        for replica in replicas:
            replica.freeze()
        if fault.probe.depth == "shallow":
            yield self.clock.timeout(seconds)
            for replica in replicas:
                replica.thaw()
            return
        period = fault.probe.period
        first = (ceil(self.clock.now / period + 1e-9) or 1) * period
        yield self.clock.timeout(first + (fault.probe.threshold - 1) * period - self.clock.now)
        # Another fault may have come first.
        hanging = [replica for replica in replicas if replica.is_frozen and replica.is_ready]
        for replica in hanging:
            replica.is_frozen = False
        self.fleet.lose(hanging, retry=fault.in_flight == "retry")
        yield self.clock.timeout(seconds)
        self.fleet.restore(hanging)

    def take_back(self, fault: Any, replicas: list[Replica], seconds: float) -> Steps:
        """Drain for the length of the notice, then take them; others are ready ``seconds`` later."""
        for replica in replicas:
            replica.drain()
        yield self.clock.timeout(fault.notice)
        for replica in replicas:
            if replica.state != "stopped":
                replica.lose("stopped", retry=fault.in_flight == "retry")
        yield self.clock.all_of([self.clock.process(self.replace(replica, seconds)) for replica in replicas])

    def replace(self, taken: Replica, seconds: float) -> Steps:
        """Have another instance in a place, ready after ``seconds``, unless an autoscaler has filled the gap."""
        pool = taken.pool
        startup = min(pool.startup_seconds, seconds)
        yield self.clock.timeout(seconds - startup)
        if pool.wanted is not None and len(pool.present) >= pool.wanted:
            yield self.clock.timeout(startup)
        else:
            yield from self.fleet.start_up(self.fleet.launch(pool, taken.place), startup)


class Liveness:
    """Asks every replica for a token now and then, and restarts the one that is late too often."""

    def __init__(self, cluster: Surroundings, spec: LivenessSpec) -> None:
        self.cluster, self.clock, self.fleet, self.spec = cluster, cluster.clock, cluster.fleet, spec

    def start(self) -> None:
        """Probe every replica from its launch on."""
        for replica in self.fleet.replicas:
            self.clock.process(self.watch(replica))
        self.fleet.on_launch.append(lambda replica: self.clock.process(self.watch(replica)))

    def watch(self, replica: Replica) -> Steps:
        """Probe a replica until it is given back (a SimPy process)."""
        spec, num_late = self.spec, 0
        while replica.state != "stopped":
            yield self.clock.timeout(spec.period - spec.timeout)
            # The probe takes its place behind the last request that waits; without one it is in the next step.
            last = next(reversed(replica.members), None)
            last = last if last is not None and self.waits(last, replica) else None
            yield self.clock.timeout(spec.timeout)
            is_late = replica.is_ready and (replica.is_frozen or (last is not None and self.waits(last, replica)))
            num_late = num_late + 1 if is_late else 0
            if num_late == spec.threshold:
                num_late, replica.is_frozen = 0, False
                self.fleet.num_killed += 1
                self.fleet.lose([replica], retry=spec.in_flight == "retry")
                yield self.clock.timeout(spec.restart)
                self.fleet.restore([replica])

    @staticmethod
    def waits(request: Request, replica: Replica) -> bool:
        """Whether a request still waits at a replica for its first step there."""
        began = request.first_token if replica.pool.role == "decode" else request.scheduled
        return request in replica.members and math.isnan(began)


class Updates:
    """Rolls out every update at its time: replicas are drained and replaced, a few at a time."""

    def __init__(self, cluster: Surroundings, updates: tuple[UpdateSpec, ...]) -> None:
        self.cluster, self.clock, self.fleet, self.updates = cluster, cluster.clock, cluster.fleet, updates

    def start(self) -> None:
        """Let every update wait for its time."""
        for update in self.updates:
            self.clock.process(self.roll(update))

    def roll(self, spec: UpdateSpec) -> Steps:
        """Replace the replicas of one pool after the other, each by as many lanes as may work at a time."""
        yield self.clock.timeout(spec.at)
        span = [self.clock.now, math.inf]
        self.fleet.updates.append(span)
        for pool in self.cluster.pools:
            if spec.pool not in (None, pool.name):
                continue
            old = deque(pool.present)
            num_surge = min(spec.max_surge, len(old))
            num_lanes = num_surge + min(spec.max_unavailable, len(old) - num_surge)
            lanes = [self.lane(spec, pool, old, is_surge=number < num_surge) for number in range(num_lanes)]
            yield self.clock.all_of([self.clock.process(lane) for lane in lanes])
        span[1] = self.clock.now

    def lane(self, spec: UpdateSpec, pool: Pool, old: deque[Replica], *, is_surge: bool) -> Steps:
        """Replace one replica after another: with a surge the new one comes before the old one goes."""
        startup = spec.startup.seconds(pool.weights_bytes)
        while old:
            replica = old.popleft()
            if replica not in pool.present:
                continue
            pool.in_flux += -1 if is_surge else 1
            if is_surge:
                yield from self.fleet.start_up(self.fleet.launch(pool, replica.place), startup)
                pool.in_flux += 1
                yield from self.retire(spec, replica)
            else:
                yield from self.retire(spec, replica)
                pool.in_flux -= 1
                yield from self.fleet.start_up(self.fleet.launch(pool, replica.place), startup)
            self.fleet.num_replaced += 1

    def retire(self, spec: UpdateSpec, replica: Replica) -> Steps:
        """Drain a replica, cut off what it still has when its grace period is over, and wait until it is gone."""
        if replica.state not in ("draining", "stopped"):
            replica.drain()
        yield replica.gone | self.clock.timeout(spec.grace_period)
        if not replica.gone.triggered:
            if replica.state == "draining":
                replica.lose("stopped", "drained")
            yield replica.gone
