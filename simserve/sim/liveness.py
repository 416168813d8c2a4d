"""Liveness: SimPy processes that ask every replica for a token now and then, and restart the one that is late."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import simpy

from simserve.sim.lifecycle import Lifecycle
from simserve.sim.liveness_spec import LivenessSpec
from simserve.sim.outages import Outages
from simserve.sim.replicas import READY, STOPPED, ManagedReplica

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
