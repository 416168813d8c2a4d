"""Decisions: SimPy's side of a run, the processes that change a fleet and the clock they share with its data plane."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
import simpy
from numpy.typing import NDArray

from simserve.engine.clients import Clients
from simserve.sim.autoscaler import Autoscaler, EncoderAutoscaler, EncoderLives, Objective
from simserve.sim.cluster import READY, STOPPED, ManagedReplica, end_of
from simserve.sim.control import Control, LivenessSpec
from simserve.sim.faults import Faults, Outages
from simserve.sim.lifecycle import Lifecycle, Updates
from simserve.sim.pools import PoolSetup
from simserve.sim.recorder import FleetTimeline
from simserve.workload.requests import RequestSpecs


class Decisions:
    """What decides over time in a run.

    Args:
        control: The rules.
        setups: The pools before the run.
        fleet: The replicas; the first of them are there.
        specs: What arrives.
        arrival_time: When each request was first sent; filled for a closed loop.
        clients: Who sends them, and the workers of an encoder pool.
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
        """Let everybody begin who decides."""
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
        """When the workers of an encoder pool were there; None where their number does not change."""
        return None if self._encoders is None else self._encoders.lives

    def timeline(
        self,
        tries: NDArray[np.float64],
        refusals: dict[str, int],
        num_resent: int,
        lost_tokens: int,
        ranks: NDArray[np.int64] | None = None,
    ) -> FleetTimeline:
        """Return the lives of the replicas, and what requests tried in vain (arguments as of `FleetTimeline`)."""
        replicas, pools, outages, updates = self._fleet.replicas, self._fleet.pools, self._outages, self._updates
        return FleetTimeline(
            launched_at=np.array([replica.launched_at for replica in replicas]),
            ready_at=np.array([replica.ready_at for replica in replicas]),
            stopped_at=np.array([replica.stopped_at for replica in replicas]),
            gpus=np.array([replica.pool.gpus_per_replica for replica in replicas], dtype=np.int64),
            ranks=ranks,
            pool=np.array([pools.index(replica.pool) for replica in replicas], dtype=np.int64),
            pool_regions=tuple(pool.region for pool in pools),
            pool_names=tuple(pool.name for pool in pools),
            lost_since=np.array(outages.lost_since, dtype=np.float64),
            lost_until=np.array(outages.lost_until, dtype=np.float64),
            num_killed=outages.num_killed,
            num_missed=self._num_missed(),
            num_replaced=0 if updates is None else updates.num_replaced,
            updates=np.array([] if updates is None else updates.spans, dtype=np.float64).reshape(-1, 2),
            tries=tries,
            refusals=refusals,
            num_resent=num_resent,
            lost_tokens=lost_tokens,
        )

    def _num_missed(self) -> int:
        """Return how many faults and updates have a time that the run did not come to."""
        end = end_of(self._fleet.requests)
        times = [each.at for each in (*self._control.faults, *self._control.updates)]
        return sum(time is not None and time > end for time in times)


def data_plane(env: simpy.Environment, fleet: Lifecycle, *, is_fed: bool = False) -> Generator[simpy.Event, Any, None]:
    """Drive a fleet from decision to decision, until every request has come to its end or nothing is to come.

    Args:
        env: SimPy's clock.
        fleet: The replicas.
        is_fed: Whether somebody else sends requests, so that an end of those that are there is none.
    """
    # Whoever starts at time 0 comes first.
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
            # What would have been decided at that time is no part of the run.
            return
        yield env.timeout(max(until - env.now, 0.0))


def _renew(env: simpy.Environment, fleet: Lifecycle, interval: float) -> Generator[simpy.Event, Any, None]:
    """Let the router look at the replicas every so often."""
    while True:
        fleet.refresh(env.now)
        yield env.timeout(interval)


Steps = Generator[simpy.Event, Any, None]


class Liveness:
    """Probes every replica from its launch until it is given back.

    Args:
        spec: How often, and how late an answer may be.
        env: SimPy's clock.
        fleet: The replicas; the first of them are there.
        outages: Where losses are noted.
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
        """Return the request behind which the probe's takes its place; None: it comes into the next step."""
        last = self._fleet.last_of(replica)
        return last if last is not None and self._waits(last, replica) else None

    def _waits(self, index: int, replica: ManagedReplica) -> bool:
        """Return whether a request still waits at a replica for its first step there."""
        requests = self._fleet.requests
        began = requests.first_token_time if replica.pool.role == "decode" else requests.scheduled_time
        return self._fleet.holds(replica, index) and not began[index] >= 0.0
