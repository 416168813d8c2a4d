"""One run of a fleet in which something is decided as it goes: the counterpart of the plain run in `simulate`."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import simpy
from numpy.typing import NDArray

from simserve.engine.config import EngineConfig
from simserve.engine.state import RequestTable
from simserve.engine.tables import StepTimes
from simserve.perf.tables import PricedDeployment
from simserve.sim.autoscaler import Autoscaler
from simserve.sim.callers import Callers, Event
from simserve.sim.control import Control, Limits
from simserve.sim.faults import Faults
from simserve.sim.fleet import Fleet
from simserve.sim.gate import Gate
from simserve.sim.prefixes import prefix_paths
from simserve.sim.recorder import Recorder
from simserve.sim.records import COMPLETED, REASONS
from simserve.sim.routing import Router
from simserve.sim.step_log import StepLog
from simserve.sim.timeline import FleetTimeline
from simserve.sim.units import Pool
from simserve.workload.requests import RequestSpecs


class ManagedRun:
    """A fleet, its clients and its control, ready to run.

    Args:
        control: What decides.
        config: What the scheduler of each replica obeys.
        times: Seconds of a step.
        priced: Where they come from.
        num_replicas: Replicas at the start.
        gpus_per_replica: GPUs of each.
        specs: What arrives.
        latency: Seconds from sending to the router, shape [N].
        on_progress: Called now and then with the number of requests that have ended.
        log: Keeps every step; None: nobody asks.
    """

    def __init__(
        self,
        control: Control,
        config: EngineConfig,
        times: StepTimes,
        priced: PricedDeployment | None,
        num_replicas: int,
        gpus_per_replica: int,
        specs: RequestSpecs,
        latency: NDArray[np.float64],
        on_progress: Callable[[int], None] | None,
        log: StepLog | None = None,
    ) -> None:
        times = times.as_lists()
        self.requests = RequestTable(specs.prompt_tokens, specs.output_tokens, specs.max_tokens, config, specs.pace)
        self.arrival_time = np.array(specs.arrival_time, dtype=np.float64)
        self._control, self._specs = control, specs
        self._faults: Faults | None = None
        self.paths = prefix_paths(config, specs)
        recorder = Recorder(config, times, priced, log)
        self._pool = Pool("", config, times, recorder, gpus_per_replica, self.paths)
        events: list[Event] = []
        self.fleet = Fleet([self._pool], self.requests, events, on_progress)
        self.fleet.router = Router(control.routing, self.fleet.units, self.requests, specs)
        self.fleet.callers = Callers(specs, self.requests, events, self.arrival_time, latency)
        if control.admission is not None:
            self.fleet.gate = Gate(control.admission, specs, self._patience)
        for _ in range(num_replicas):
            self.fleet.launch(self._pool, 0.0, is_ready=True)
        if specs.concurrency is None:
            # One tokeniser, in order: nobody overtakes a long prompt.
            np.frombuffer(self.requests.ready_time)[:] = np.maximum.accumulate(self.arrival_time + latency)
            self.fleet.schedule_all()
        self.fleet.callers.start()

    def run(self) -> bool:
        """Run to the end; return whether the user stopped it."""
        env = simpy.Environment()
        control = self._control
        if control.autoscaling is not None:
            autoscaler = Autoscaler(
                control.autoscaling, control.startup_seconds, env, self.fleet, self._pool, self._meets_slo
            )
            env.process(autoscaler.run())
        if control.faults:
            self._faults = Faults(env, self.fleet, self._specs, control.replicas_per_node)
            self._faults.start(control.faults)
        interval = self._control.routing.update_interval
        if interval:
            env.process(self._renew(env, interval))
        done = env.process(self._data_plane(env))
        try:
            env.run(until=done)
        except KeyboardInterrupt:
            if self._specs.concurrency is None:
                # What was still to come was never sent.
                self.arrival_time[self.fleet.num_arrived :] = np.nan
                np.frombuffer(self.requests.ready_time)[self.fleet.num_arrived :] = np.nan
            return True
        finally:
            self.fleet.flush()
        return False

    @property
    def recorder(self) -> Recorder:
        """What added up the leaps."""
        return self._pool.recorder

    @property
    def timeline(self) -> FleetTimeline:
        """The lives of the replicas."""
        units, callers = self.fleet.units, self.fleet.callers
        lost, back = ([], []) if self._faults is None else (self._faults.lost_since, self._faults.lost_until)
        return FleetTimeline(
            launched_at=np.array([unit.launched_at for unit in units]),
            ready_at=np.array([unit.ready_at for unit in units]),
            stopped_at=np.array([unit.stopped_at for unit in units]),
            gpus=np.array([unit.pool.gpus_per_replica for unit in units], dtype=np.int64),
            pool=np.zeros(len(units), dtype=np.int64),
            pool_names=tuple(pool.name for pool in self.fleet.pools),
            lost_since=np.array(lost, dtype=np.float64),
            lost_until=np.array(back, dtype=np.float64),
            tries=np.array(callers.abandoned, dtype=np.float64).reshape(-1, 3),
            refusals={
                reason: count for reason, count in zip(REASONS, self.fleet.refusals, strict=True) if count and reason
            },
            num_resent=callers.num_resent,
            lost_tokens=self.fleet.num_lost_tokens,
        )

    def _data_plane(self, env: simpy.Environment) -> Generator[simpy.Event, Any, None]:
        """Drive the fleet from decision to decision, until every request has come to its end or nothing is to come."""
        # Whoever starts at time 0 comes first.
        yield env.timeout(0)
        while not self.fleet.is_done:
            until = env.peek()
            self.fleet.drive(until)
            if until == float("inf"):
                return
            yield env.timeout(max(until - env.now, 0.0))

    def _renew(self, env: simpy.Environment, interval: float) -> Generator[simpy.Event, Any, None]:
        """Let the router look at the replicas every so often."""
        while True:
            self.fleet.router.refresh()
            yield env.timeout(interval)

    def _patience(self, index: int) -> float | None:
        """Return the seconds from its arrival in which a request's first token must come; None: no limit."""
        ttft, _, _ = self._limits(index)
        if ttft is not None:
            return ttft
        own = self.fleet.callers.class_of(index)
        return None if own is None else own.timeout

    def _limits(self, index: int) -> Limits:
        """Return the objective of a request's class."""
        limits, classes = self._control.limits, self._specs.request_class
        return limits[0] if classes is None else limits[int(classes[index])]

    def _meets_slo(self, index: int) -> bool:
        """Return whether a request that has ended met its objective."""
        requests, (ttft, tpot, e2e) = self.requests, self._limits(index)
        if requests.status[index] != COMPLETED:
            return False
        sent_at, first, last = self.arrival_time[index], requests.first_token_time[index], requests.finish_time[index]
        gaps = requests.generated_tokens[index] - 1
        return (
            (ttft is None or first - sent_at <= ttft)
            and (e2e is None or last - sent_at <= e2e)
            and (tpot is None or not gaps or last - first <= tpot * gaps)
        )
