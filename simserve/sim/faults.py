"""Faults as SimPy processes: each waits for its time, breaks what it breaks, and mends it when it is over."""

from __future__ import annotations

from collections.abc import Generator
from math import ceil
from typing import Any

import numpy as np
import simpy

from simserve import rng
from simserve.engine.slowing import slowed
from simserve.sim.ailments import change_pace, freeze, thaw
from simserve.sim.fault_spec import BlackHoleFault, FaultSpec, NodeFault, SlowFault, SpotFault
from simserve.sim.fleet import Fleet
from simserve.sim.units import DOWN, READY, STOPPED, Unit
from simserve.workload.requests import RequestSpecs

Steps = Generator[simpy.Event, Any, None]


class Faults:
    """Starts the processes of all faults of a run.

    Args:
        env: SimPy's clock.
        fleet: What breaks; its first replicas are there.
        specs: What arrives, for its seed.
        replicas_per_node: How many replicas fill a node.

    Attributes:
        lost_since: When each replica that took no requests went down.
        lost_until: When it was back; as long as it is not, inf.
    """

    def __init__(self, env: simpy.Environment, fleet: Fleet, specs: RequestSpecs, replicas_per_node: int) -> None:
        self.lost_since: list[float] = []
        self.lost_until: list[float] = []
        self._open: dict[int, int] = {}
        self._env, self._fleet, self._specs = env, fleet, specs
        self._replicas_per_node = replicas_per_node

    def start(self, faults: tuple[FaultSpec, ...]) -> None:
        """Let every fault wait for its time."""
        units = list(self._fleet.units)
        for number, fault in enumerate(faults):
            if fault.at is not None:
                self._env.process(self._once(fault, self._struck(fault, units)))
                continue
            size = self._replicas_per_node if isinstance(fault, NodeFault) else 1
            for place in range(0, len(units), size):
                name = f"faults.{number}.{place}"
                generator = rng.stream(self._specs.seed, name, self._specs.replication)
                self._env.process(self._again_and_again(fault, units[place : place + size], generator))

    def _struck(self, fault: FaultSpec, units: list[Unit]) -> list[Unit]:
        if isinstance(fault, NodeFault):
            first = fault.node * self._replicas_per_node
            return units[first : first + self._replicas_per_node]
        return [units[fault.replica]]

    def _once(self, fault: FaultSpec, units: list[Unit]) -> Steps:
        assert fault.at is not None
        assert fault.duration is not None
        yield self._env.timeout(fault.at)
        yield self._env.process(self._strike(fault, units, fault.duration))

    def _again_and_again(self, fault: FaultSpec, units: list[Unit], generator: np.random.Generator) -> Steps:
        assert fault.mtbf is not None
        assert fault.mttr is not None
        while True:
            yield self._env.timeout(float(generator.exponential(fault.mtbf)))
            yield self._env.process(self._strike(fault, units, float(generator.exponential(fault.mttr))))

    def _strike(self, fault: FaultSpec, units: list[Unit], seconds: float) -> Steps:
        """Break what is there, for ``seconds``."""
        struck = [unit for unit in units if unit.state == READY]
        if isinstance(fault, SlowFault):
            yield from self._slow(fault, struck, seconds)
        elif isinstance(fault, BlackHoleFault):
            yield from self._hang(fault, struck, seconds)
        elif isinstance(fault, SpotFault):
            yield from self._take_back(fault, struck, seconds)
        else:
            self._lose(struck, retry=fault.in_flight == "retry")
            yield self._env.timeout(seconds)
            self._restore(struck)

    def _lose(self, units: list[Unit], *, retry: bool) -> None:
        # All go before the first one's requests look for another.
        for unit in units:
            self._fleet.withdraw(unit, DOWN)
        for unit in units:
            self._fleet.lose(unit, self._env.now, retry=retry)
            self._open[unit.number] = len(self.lost_since)
            self.lost_since.append(self._env.now)
            self.lost_until.append(float("inf"))

    def _restore(self, units: list[Unit]) -> None:
        for unit in units:
            place = self._open.pop(unit.number)
            self.lost_until[place] = min(unit.stopped_at, self._env.now)
            if unit.state == DOWN:
                self._fleet.ready(unit, self._env.now)

    def _slow(self, fault: SlowFault, units: list[Unit], seconds: float) -> Steps:
        for unit in units:
            change_pace(self._fleet, unit, slowed(unit.pool.times, fault.factor), self._env.now)
        yield self._env.timeout(seconds)
        for unit in units:
            change_pace(self._fleet, unit, unit.pool.times, self._env.now)

    def _hang(self, fault: BlackHoleFault, units: list[Unit], seconds: float) -> Steps:
        for unit in units:
            freeze(self._fleet, unit, self._env.now)
        if fault.probe.depth == "shallow":
            yield self._env.timeout(seconds)
            for unit in units:
                thaw(self._fleet, unit, self._env.now)
            return
        period = fault.probe.period
        first = (ceil(self._env.now / period + 1e-9) or 1) * period
        yield self._env.timeout(first + (fault.probe.threshold - 1) * period - self._env.now)
        # Another fault may have come first.
        hanging = [unit for unit in units if unit.is_frozen and unit.state == READY]
        for unit in hanging:
            unit.is_frozen = False
        self._lose(hanging, retry=fault.in_flight == "retry")
        yield self._env.timeout(seconds)
        self._restore(hanging)

    def _take_back(self, fault: SpotFault, units: list[Unit], seconds: float) -> Steps:
        """Drain for the length of the notice, then take it; another instance is ready when it is over."""
        for unit in units:
            self._fleet.drain(unit, self._env.now)
        yield self._env.timeout(fault.notice)
        for unit in units:
            if unit.state != STOPPED:
                self._fleet.lose(unit, self._env.now, then=STOPPED, retry=fault.in_flight == "retry")
        yield self._env.timeout(seconds)
        for unit in units:
            self._fleet.launch(unit.pool, self._env.now, is_ready=True)
