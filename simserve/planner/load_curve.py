"""A deployment at several loads: what it serves, how busy it is, whether it holds its objective; and its capacity.

Runs scenarios; prices nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from simserve.metrics.result import RunResult
from simserve.planner.capacity.search import highest_promised, settled_requests
from simserve.planner.scaling import at_most, is_scaled, steady_rate
from simserve.planner.search.trial import mean_gpus
from simserve.scenario.finishable import Finishable, KnownFinishable, find_finishable
from simserve.scenario.replication import arrived
from simserve.scenario.resolve import resolve
from simserve.scenario.run import deploy, run
from simserve.scenario.schema import Scenario, objective
from simserve.workload.arrival_spec import ClosedLoopArrivals
from simserve.workload.requests import RequestSpecs

NUM_REQUESTS = 2000
"""Requests of one run: percentiles at a load need no more. The scenario's own load is run unchanged, so that its month
is that of `simserve run`."""
LEAST_SECONDS = 60.0
"""Shortest time over which requests of an open loop arrive, so that a growing queue has time to show."""
LEAST_SCALED_SECONDS = 1800.0  # The same for a fleet that is scaled, whose replicas take minutes to come and go.
LEAST_PER_CLIENT = 20  # Least requests of each client of a closed loop.
MOST_REQUESTS = 50_000
_MOST_STEPS = 12
_BISECTIONS = 4  # Bisections between a load that holds and twice as much: the capacity is known to 5 %.


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One load, simulated."""

    load: float  # The load asked for: requests/s, or clients of a closed loop.
    rate: float  # Requests/s served, also at a load that does not hold.
    busy: float  # Share of the time with a step running.
    watts_per_gpu: float  # Mean power of one board.
    attainment: float | None  # Share of the requests within the SLO; None without one.
    stability: str  # `stable`, `backlogged` or `overloaded`.
    holds: bool
    """Whether the SLO was met, which counts requests that were not served as missing it, without a growing queue;
    without an SLO, whether the load cost no request: those that fail at any load (prompts that are too long, lost
    replicas) do not count."""
    lost: float = 0.0  # Share of the requests that were not served.
    mean_gpus: float = 0.0  # GPUs that were paid for on average; fewer than there may be where a fleet is scaled.
    gpu_hour_usd: float | None = None
    """Mean price of one of them for an hour, by how many of each pool were there; None without a price."""
    api_usd_per_hour: float = 0.0  # Dollars an hour for an API that served part of the load.

    @property
    def gpu_usd_per_hour(self) -> float:
        """Dollars an hour for the GPUs."""
        return self.mean_gpus * (self.gpu_hour_usd or 0.0)


@dataclass(slots=True)
class LoadCurve:
    """The levels of one scenario, each run when it is first asked for."""

    scenario: Scenario  # The scenario whose deployment and requests are run.
    on_run: Callable[[int], None] | None = None  # Called after every run with the number of runs.
    num_requests: int = NUM_REQUESTS  # Least requests of one run of an open loop.
    levels: dict[float, Level] = field(default_factory=dict)  # Load -> what was simulated there.
    results: dict[float, RunResult] = field(default_factory=dict)
    known: KnownFinishable = field(default_factory=dict)  # What is known of what the deployment can finish.
    _finishable: list[Finishable | None] = field(default_factory=list)

    @property
    def own_load(self) -> float | None:
        """The load the scenario asks for; None where it cannot be scaled (a trace, a batch, a curve of its own)."""
        arrivals = self.scenario.workload.arrivals
        return float(arrivals.concurrency) if isinstance(arrivals, ClosedLoopArrivals) else steady_rate(self.scenario)

    @property
    def is_closed(self) -> bool:
        """Whether the load is a number of clients."""
        arrivals = self.scenario.workload.arrivals
        return arrivals is not None and arrivals.process == "closed_loop"

    def at(self, load: float) -> Level:
        """Return the level at a load, which is simulated once."""
        load = float(max(1, round(load))) if self.is_closed else load
        if load not in self.levels:
            self._run(load, self._scaled(load))
        return self.levels[load]

    def finishable(self) -> Finishable | None:
        """Return what the deployment finishes with its queue never empty, the same at every load."""
        if not self._finishable:
            resolved = resolve(self.scenario)
            self._finishable.append(find_finishable(resolved, deploy(resolved), self.known))
        return self._finishable[0]

    def as_it_is(self) -> Level:
        """Return the level at the scenario's own traffic."""
        own = self.own_load
        if own is not None:
            return self.at(own)
        if 0.0 not in self.levels:
            self._run(0.0, self.scenario)
        return self.levels[0.0]

    def first(self) -> tuple[RunResult, RequestSpecs]:
        """Return the first run, and its requests."""
        load, result = next(iter(self.results.items()))
        scenario = self.scenario if self.own_load is None else self._scaled(load)
        return result, arrived(scenario, len(result.simulation.records))

    def _run(self, load: float, scenario: Scenario) -> None:
        once = scenario.model_copy(
            update={"thresholds": {}, "run": scenario.run.model_copy(update={"replications": 1})}
        )
        result = run(once, explain=False, finishable=self.finishable())
        if result.simulation.was_interrupted:
            raise KeyboardInterrupt
        self.results[load] = result
        self.levels[load] = _level(load, result, self.scenario)
        if self.on_run is not None:
            self.on_run(len(self.levels))

    def _scaled(self, load: float) -> Scenario:
        workload = self.scenario.workload
        assert workload.arrivals is not None  # only such loads are scaled
        value: float | int = int(load) if self.is_closed else load
        arrivals = workload.arrivals.model_copy(update={"concurrency" if self.is_closed else "rate": value})
        deployment = self.scenario.deployment
        scales = is_scaled(deployment)
        seconds = LEAST_SCALED_SECONDS if scales else LEAST_SECONDS
        if load == self.own_load and not scales and (workload.num_requests or MOST_REQUESTS) < MOST_REQUESTS:
            return self.scenario
        least = load * (LEAST_PER_CLIENT if self.is_closed else seconds)
        # An open load is run for as long as it takes to settle, whatever number of requests the scenario gives.
        asked = min(workload.num_requests or NUM_REQUESTS, NUM_REQUESTS) if self.is_closed else self._settling(load)
        num_requests: int | None = min(max(asked, math.ceil(least)), MOST_REQUESTS)
        if workload.trace is not None:
            num_requests = workload.num_requests  # with arrivals set beside it, too, it has no more requests
        changes = {"arrivals": arrivals, "num_requests": num_requests, "duration": None}
        # A fleet has scaled in the hour before: one that starts small would show its start, not the hour.
        return self.scenario.model_copy(
            update={"workload": workload.model_copy(update=changes), "deployment": at_most(deployment)}
        )

    def _settling(self, load: float) -> int:
        """Return the requests in which the queue of an open load settles, as far as the load ratio tells."""
        known = self.finishable()
        if known is None or load > highest_promised(known):
            return self.num_requests
        return max(self.num_requests, settled_requests(load / known.rate, 0.0))

    def capacity(self) -> float | None:
        """Return the highest rate, requests/s, at which the deployment holds; None where the load cannot be scaled.

        Doubles or halves the scenario's own load until one holds and the next does not, then bisects. 0 where even a
        4096th of it does not hold; the last doubling where everything holds. A batch that arrives all at once is
        served at the capacity.
        """
        own = self.own_load
        if own is None:
            arrivals = self.scenario.workload.arrivals
            is_batch = arrivals is not None and arrivals.process == "all_at_once"
            return self.as_it_is().rate if is_batch else None
        low, high = (own, math.inf) if self.at(own).holds else (0.0, own)
        for _ in range(_MOST_STEPS):
            if low and math.isfinite(high):
                break
            load = 2 * low if low else high / 2
            low, high = (load, high) if self.at(load).holds else (low, load)
        for _ in range(_BISECTIONS if low and math.isfinite(high) else 0):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if self.at(middle).holds else (low, middle)
        return self.at(low).rate if low else 0.0

    def interpolate(self, name: str, rate: float) -> float:
        """Return a figure of a level for an hour at a rate, by linear interpolation between the levels that hold."""
        held = [level for level in self.levels.values() if level.holds] or list(self.levels.values())
        known = sorted(held, key=lambda level: level.rate)
        return float(np.interp(rate, [level.rate for level in known], [getattr(level, name) for level in known]))


def _level(load: float, result: RunResult, scenario: Scenario) -> Level:
    summary = result.summary
    inner = summary["simserve"]
    attainment, asked = inner["slo"]["attainment"], objective(scenario)
    requests = inner["requests"]
    in_time = attainment is not None and asked is not None and attainment >= asked.attainment
    if asked is None:
        in_time = summary["completed"] + requests["failed"] == requests["submitted"]
    is_open = inner["load"] == "open" and load > 0
    holds = summary["completed"] > 0 and in_time and inner["stability"] != "overloaded"
    throughput = summary["request_throughput"] or 0.0
    rate = load if is_open and holds else throughput
    return Level(
        load=load,
        rate=rate,
        busy=inner["utilization"]["busy"] or 0.0,
        watts_per_gpu=inner["energy"]["watts_per_gpu"],
        attainment=attainment,
        stability=inner["stability"],
        holds=holds,
        lost=1.0 - summary["completed"] / requests["submitted"] if requests["submitted"] else 0.0,
        mean_gpus=mean_gpus(scenario, summary),
        gpu_hour_usd=inner["cost"]["gpu_hour_usd"],
        # By the request, at the level's rate: a run that waits for a last long answer has a lower rate.
        api_usd_per_hour=(inner["overflow"]["usd_per_hour"] or 0.0) * (rate / throughput if throughput else 0.0),
    )
