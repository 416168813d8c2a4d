"""Fleet: SimPy processes that change the set of replicas: autoscaler, faults, liveness probes, rolling updates."""

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
"""Deviation from the target that is ignored (Kubernetes, ``--horizontal-pod-autoscaler-tolerance``)."""


class Surroundings(ReplicaSurroundings, Protocol):
    """What the processes that change the fleet need from the run around them, in addition to what replicas need."""

    pools: list[Pool]
    replicas: list[Replica]
    control: Control
    specs: RequestSpecs
    fleet: Fleet

    @property
    def transfers(self) -> Transfers:
        """The links between prefill and decode replicas."""

    def num_parked(self, pool: Pool) -> int:
        """Return the number of requests that wait for a ready replica of a pool."""

    def meets_slo(self, request: Request) -> bool:
        """Whether a request that has ended met the objective of its class."""

    def ended_task(self, request: Request) -> list[Request]:
        """Return all calls of the task that ends with a request; empty if the task goes on."""


class Fleet:
    """All replicas that ever existed, and how long replicas were down.

    Attributes:
        on_launch: Called with every replica that is launched.
        downtimes: For each loss, when it began and when the replica was back; inf: it was not.
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
        """Add a replica, which costs money from now on; it takes requests when it becomes ready."""
        replica = Replica(self.cluster, pool, len(self.replicas), pool.free_place() if place is None else place)
        self.replicas.append(replica)
        pool.replicas.append(replica)
        for tell in self.on_launch:
            tell(replica)
        return replica

    def start_up(self, replica: Replica, seconds: float) -> Steps:
        """Let a launched replica take requests after ``seconds``, unless it is released meanwhile."""
        yield self.clock.timeout(seconds)
        if replica.state == "starting":
            replica.become_ready()

    def lose(self, replicas: list[Replica], *, retry: bool) -> None:
        """Lose replicas for a while; all are gone before the first one's requests are routed again."""
        for replica in replicas:
            replica.state = "down"
        for replica in replicas:
            replica.lose(retry=retry)
            self.open_downtimes[replica] = downtime = [self.clock.now, math.inf]
            self.downtimes.append(downtime)

    def restore(self, replicas: list[Replica]) -> None:
        """Bring lost replicas back, except those released in the meantime."""
        for replica in replicas:
            self.open_downtimes.pop(replica)[1] = min(replica.stopped_at, self.clock.now)
            if replica.state == "down":
                replica.become_ready()

    def give_back(self, replica: Replica, grace_period: float) -> Steps:
        """Stop a draining replica when its grace period is over, whatever it still has."""
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
        """Evaluate the metric forever (a SimPy process)."""
        while True:
            yield self.clock.timeout(self.spec.interval)
            self.scale(self.clock.now)

    def note_end(self, request: Request) -> None:
        """Count a request that has ended, if it is this pool's, and the task that ends with it."""
        self.note_task(self.cluster.ended_task(request))
        number = request.replica
        if number >= 0 and self.pool.role == "both" and self.cluster.replicas[number].pool is not self.pool:
            return
        self.num_ended += 1
        self.num_met += self.cluster.meets_slo(request)

    def note_task(self, calls: list[Request]) -> None:
        """Count a task whose calls have all ended, whichever pool served them."""
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
            # Starting replicas go first, then those with the fewest requests, the newest of them first.
            order = sorted(present, key=lambda one: (one.is_ready, one.load, -one.number))
            for replica in order[: max(count - most, 0)]:
                replica.drain()
                if replica.state == "draining":
                    self.clock.process(self.fleet.give_back(replica, spec.grace_period))

    def asked_for(self, present: list[Replica], count: int, now: float) -> int:
        """Return the number of replicas that the metric asks for, when ``count`` exist or will be back."""
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
        # The last working replica is not released: only an idle fleet scales to zero.
        return max(ceil(level / spec.target), 1 if waiting + running else 0)

    def asked_by_slo(self, count: int, load: int) -> int:
        """Return one more after a miss, or one less if all met it and the load per replica then stays below a miss."""
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
    """Faults: each waits for its time, breaks its target, and repairs it when the fault is over."""

    def __init__(self, cluster: Surroundings, faults: tuple[Any, ...]) -> None:
        self.cluster, self.clock, self.fleet, self.faults = cluster, cluster.clock, cluster.fleet, faults
        self.exposed: set[tuple[int, str, int]] = set()

    def start(self) -> None:
        """Start every fault: once at its time, or repeatedly at each place of a pool."""
        for number, fault in enumerate(self.faults):
            if fault.at is not None:
                self.clock.process(self.once(fault, *self.site(fault)))
            else:
                for replica in self.fleet.replicas:
                    self.expose(number, fault, replica)
        self.fleet.on_launch.append(self.expose_to_all)

    def expose_to_all(self, replica: Replica) -> None:
        """Let the random faults also strike the place of a new replica."""
        for number, fault in enumerate(self.faults):
            if fault.at is None:
                self.expose(number, fault, replica)

    def pools(self, fault: Any) -> list[Pool]:
        """Return the pools that a fault may strike; links belong to prefill replicas."""
        pools = [pool for pool in self.cluster.pools if fault.pool in (None, pool.name)]
        return [pool for pool in pools if fault.kind != "link" or pool.role == "prefill"]

    @staticmethod
    def size(fault: Any, pool: Pool) -> int:
        """Return the number of places that a fault strikes at once: those of a node, or one."""
        return pool.replicas_per_node if fault.kind == "node" else 1

    def site(self, fault: Any) -> tuple[Pool, int]:
        """Return the place that a timed fault strikes, counted over the replicas, or nodes, at the start."""
        left = fault.node if fault.kind == "node" else fault.replica
        for pool in self.pools(fault):
            count = ceil(len(pool.replicas) / self.size(fault, pool))
            if left < count:
                return pool, left
            left -= count
        return pool, count

    def expose(self, number: int, fault: Any, replica: Replica) -> None:
        """Let a random fault strike a place once a replica is in it, unless it already does."""
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
        """Strike once, at the fault's time."""
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
        """Let replicas hang until a probe notices and restarts them, or until they recover by themselves."""
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
        # Another fault may have struck first.
        hanging = [replica for replica in replicas if replica.is_frozen and replica.is_ready]
        for replica in hanging:
            replica.is_frozen = False
        self.fleet.lose(hanging, retry=fault.in_flight == "retry")
        yield self.clock.timeout(seconds)
        self.fleet.restore(hanging)

    def take_back(self, fault: Any, replicas: list[Replica], seconds: float) -> Steps:
        """Drain replicas for the notice period, then take them; replacements are ready ``seconds`` later."""
        for replica in replicas:
            replica.drain()
        yield self.clock.timeout(fault.notice)
        for replica in replicas:
            if replica.state != "stopped":
                replica.lose("stopped", retry=fault.in_flight == "retry")
        yield self.clock.all_of([self.clock.process(self.replace(replica, seconds)) for replica in replicas])

    def replace(self, taken: Replica, seconds: float) -> Steps:
        """Put another replica in a place, ready after ``seconds``, unless an autoscaler has filled the gap."""
        pool = taken.pool
        startup = min(pool.startup_seconds, seconds)
        yield self.clock.timeout(seconds - startup)
        if pool.wanted is not None and len(pool.present) >= pool.wanted:
            yield self.clock.timeout(startup)
        else:
            yield from self.fleet.start_up(self.fleet.launch(pool, taken.place), startup)


class Liveness:
    """Asks every replica for a token at intervals, and restarts one that is late too often."""

    def __init__(self, cluster: Surroundings, spec: LivenessSpec) -> None:
        self.cluster, self.clock, self.fleet, self.spec = cluster, cluster.clock, cluster.fleet, spec

    def start(self) -> None:
        """Probe every replica from its launch."""
        for replica in self.fleet.replicas:
            self.clock.process(self.watch(replica))
        self.fleet.on_launch.append(lambda replica: self.clock.process(self.watch(replica)))

    def watch(self, replica: Replica) -> Steps:
        """Probe a replica until it is released (a SimPy process)."""
        spec, num_late = self.spec, 0
        while replica.state != "stopped":
            yield self.clock.timeout(spec.period - spec.timeout)
            # The probe queues behind the last waiting request; if there is none, it is in the next step.
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
        """Start every update at its time."""
        for update in self.updates:
            self.clock.process(self.roll(update))

    def roll(self, spec: UpdateSpec) -> Steps:
        """Replace the replicas of one pool after another, with as many parallel lanes as the update allows."""
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
        """Replace one replica after another: with a surge, the new one starts before the old one stops."""
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
        """Drain a replica, cut off its remaining requests when its grace period is over, and wait until it is gone."""
        if replica.state not in ("draining", "stopped"):
            replica.drain()
        yield replica.gone | self.clock.timeout(spec.grace_period)
        if not replica.gone.triggered:
            if replica.state == "draining":
                replica.lose("stopped", "drained")
            yield replica.gone
