"""A run's deployment at other loads: where goodput is highest, and latency up to there.

Plain values for the plots of a run's page. Steady open traffic is run until it settles, as far as the budget allows;
`simserve capacity` finds the same with more runs and with replications.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from simserve.planner.capacity.level import Trial
from simserve.planner.capacity.probe import LoadProbe, has_two_loads, is_closed_loop, load_of, own_traffic, probe_of
from simserve.planner.capacity.search import highest_promised, long_run_requests, settled_requests
from simserve.planner.scaling import has_own_clock
from simserve.scenario.finishable import Finishable
from simserve.scenario.resolve import ResolvedScenario
from simserve.scenario.schema import Scenario, objective
from simserve.workload.arrival_spec import AllAtOnceArrivals

NUM_REQUESTS = 600  # Least number of requests of the first run at a load.
OVERLOADED_REQUESTS = 2000  # Requests at a load that is above the capacity, or so close to it that nothing settles.
_FACTORS = (1.0, 1.41, 0.71, 2.0, 0.5, 1.19, 2.83, 1.68)
"""Multiples of the scenario's load, the most informative first."""
BUDGET = 60_000
"""Requests that all runs together may simulate: a run that needs more than what is left is skipped. The number for
conversations is estimated to a few percent."""
_LEAST_LOADS = 3
_MOST_FURTHER = 3  # Most halvings below or doublings above, if goodput is highest at an end of the loads tried.
_LOOKS = 2
_SPARE = 1.2  # Factor on the requests that a run needs by the concurrency of a shorter one, which may be lower.
_KEPT = ("p95_ttft", "p95_tpot", "goodput", "throughput", "attainment")


def other_loads(asked: Scenario | ResolvedScenario, finishable_rate: float | None = None) -> dict[str, Any] | None:
    """Return the measurements of runs at other loads; None without an objective, or without a load to scale.

    A trace, all requests at once, and events at fixed times (faults, autoscaling, a daily curve, a probe that restarts
    replicas) have no such load; also None if the budget is too small for three loads. A load above what the deployment
    can finish is ``overloaded``, however short the run.

    Args:
        asked: The deployment, its traffic and its objective.
        finishable_rate: Requests/s that it finishes while its queue is never empty, if known.

    Returns:
        ``loads`` ascending, ``own`` the scenario's, ``is_closed`` whether they are clients, ``requests`` of the run of
            each, its ``stability``, whether it has ``settled`` (None if unknown), and for each load p95 TTFT and TPOT
            (seconds), goodput and throughput (requests/s) and attainment, None where undefined.
    """
    scenario = asked if isinstance(asked, Scenario) else asked.scenario
    workload = scenario.workload
    no_load = workload.trace is not None or isinstance(workload.arrivals, AllAtOnceArrivals) or has_two_loads(scenario)
    # A fleet that restarts replicas because they are busy, and then retries their requests, may never finish.
    has_clock = has_own_clock(scenario) or scenario.deployment.liveness is not None
    slo = objective(scenario)
    if no_load or slo is None or has_clock:
        return None
    finishable = None if finishable_rate is None else Finishable(rate=finishable_rate, half_width=0.0, requests=0)
    loads = _Loads(probe_of(asked, finishable), is_closed_loop(scenario))
    own = load_of(scenario, own_traffic(scenario))
    for factor in _FACTORS:
        loads.measure(own * factor)
    if len(loads.found) < _LEAST_LOADS:
        return None
    for _ in range(_LOOKS):  # the knee by short runs, then by settled ones
        for end, factor in ((max, 2.0), (min, 0.5)):
            loads.further(end, factor)
        loads.settle(slo.attainment)
    found = [loads.found[load] for load in sorted(loads.found)]
    return {
        "own": own,
        "is_closed": loads.is_closed,
        "loads": sorted(loads.found),
        "requests": [trial.num_simulated for trial in found],
        "stability": [trial.stability for trial in found],
        "settled": [trial.has_settled for trial in found],
        **{name: [_known(getattr(trial, name)) for trial in found] for name in _KEPT},
    }


@dataclass(slots=True)
class _Loads:
    """The loads tried for one deployment, each with its longest run, within a budget of simulated requests."""

    probe: LoadProbe
    is_closed: bool
    found: dict[float, Trial] = field(default_factory=dict)
    _spent: int = 0

    def measure(self, load: float, num_requests: int = NUM_REQUESTS) -> None:
        """Run a load unless it was already run for as long, if the budget allows."""
        load = float(max(1, round(load))) if self.is_closed else float(f"{load:.4g}")
        needed = self.probe.num_simulated(load, num_requests)
        if (load in self.found and self.found[load].num_simulated >= needed) or self._spent + needed > BUDGET:
            return
        self.found[load] = self.probe(load, 0, num_requests)
        self._spent += self.found[load].num_simulated

    def settle(self, asked: float) -> None:
        """Run steady traffic until it settles: the shortest such runs first, the longest where the SLO ends."""
        if not self.probe.is_steady:
            return
        for needed, load in sorted((self._settling(load), load) for load in self.found):
            self.measure(load, needed)
        for load in self._around(asked):
            self.measure(load, max(self._settling(load), long_run_requests(load)))

    def further(self, end: Callable[[Any], float], factor: float) -> None:
        """Try loads beyond one end until goodput no longer peaks at that end."""
        for _ in range(_MOST_FURTHER):
            last = end(self.found)
            if max(sorted(self.found), key=lambda load: _known(self.found[load].goodput) or 0.0) != last:
                return
            self.measure(last * factor)
            if end(self.found) == last:
                return

    def _settling(self, load: float) -> int:
        """Return the number of requests of a run that settles, or if none settles, of one that shows an overload."""
        assert self.probe.finishable is not None  # the traffic is steady
        if load > highest_promised(self.probe.finishable):
            return OVERLOADED_REQUESTS
        seen = self.found[load]
        if seen.has_settled:
            return seen.num_simulated
        needed = settled_requests(load / self.probe.finishable.rate, seen.in_flight)
        return math.ceil(_SPARE * max(needed, seen.num_simulated))

    def _around(self, asked: float) -> list[float]:
        """Return the highest load up to which the SLO holds and the next one, without those that cannot settle."""
        assert self.probe.finishable is not None  # the traffic is steady
        loads = sorted(self.found)
        held = [self.found[load].stability != "overloaded" and self.found[load].attainment >= asked for load in loads]
        first = held.index(False) if False in held else len(held)
        most = highest_promised(self.probe.finishable)
        return [load for load in loads[max(first - 1, 0) : first + 1] if load <= most]


def _known(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
