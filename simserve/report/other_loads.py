"""A run's deployment at other loads, by short runs: where goodput is highest, and what latency does until there.

Plain values for the pictures of a run's page. `simserve capacity` finds the same by longer runs and replications.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from simserve.planner.capacity.probe import has_two_loads, is_closed_loop, load_of, own_traffic, probe_of
from simserve.planner.scaling import has_own_clock
from simserve.scenario.finishable import Finishable
from simserve.scenario.objective import objective
from simserve.scenario.resolve import ResolvedScenario
from simserve.scenario.schema import Scenario
from simserve.workload.arrival_spec import AllAtOnceArrivals

if TYPE_CHECKING:
    from simserve.planner.capacity.level import Trial

NUM_REQUESTS = 600
"""Of one run, at least."""
_FACTORS = (1.0, 1.41, 0.71, 2.0, 0.5, 1.19, 2.83, 1.68)
"""Times the scenario's load, the most telling first."""
BUDGET = 20_000
"""Requests that all runs may simulate together: a load that takes more than what is left is not tried."""
_LEAST_LOADS = 3
_MOST_FURTHER = 3
"""Halvings below and doublings above, where goodput is highest at the end of what was tried."""
_KEPT = ("p95_ttft", "p95_tpot", "goodput", "throughput", "attainment")


def other_loads(asked: Scenario | ResolvedScenario, finishable_rate: float | None = None) -> dict[str, Any] | None:
    """Return what short runs at other loads measured; None without an objective, or without a load to scale.

    A trace, all requests at once, and what happens at times of its own (faults, autoscaling, a day's curve, a probe
    that restarts replicas) have no such load; where the budget does not reach for three loads, it is None too. A load
    above what the deployment finishes is ``overloaded``, however short the run.

    Args:
        asked: What is deployed, what arrives, what is asked.
        finishable_rate: Requests/s that it finishes with its queue never empty, where that is known.

    Returns:
        ``loads`` ascending, ``own`` the scenario's, ``is_closed`` whether they are clients, ``requests`` of the
        shortest run, the ``stability`` of each, and of each load p95 TTFT and TPOT (seconds), goodput and throughput
        (requests/s) and attainment, None where undefined.
    """
    scenario = asked if isinstance(asked, Scenario) else asked.scenario
    workload = scenario.workload
    no_load = workload.trace is not None or isinstance(workload.arrivals, AllAtOnceArrivals) or has_two_loads(scenario)
    # A fleet that restarts replicas because they are busy, and tries what they held again, may never come to an end.
    has_clock = has_own_clock(scenario) or scenario.deployment.liveness is not None
    if no_load or objective(scenario) is None or has_clock:
        return None
    finishable = None if finishable_rate is None else Finishable(rate=finishable_rate, half_width=0.0, requests=0)
    is_closed, probe = is_closed_loop(scenario), probe_of(asked, finishable)
    own = load_of(scenario, own_traffic(scenario))
    found: dict[float, Trial] = {}

    def measure(load: float) -> None:
        load = float(max(1, round(load))) if is_closed else float(f"{load:.4g}")
        left = BUDGET - sum(trial.num_simulated for trial in found.values())
        if load not in found and probe.num_simulated(load, NUM_REQUESTS) <= left:
            found[load] = probe(load, 0, NUM_REQUESTS)

    for factor in _FACTORS:
        measure(own * factor)
    if len(found) < _LEAST_LOADS:
        return None
    for end, factor in ((max, 2.0), (min, 0.5)):
        _further(found, measure, end, factor)
    loads = sorted(found)
    return {
        "own": own,
        "is_closed": is_closed,
        "requests": NUM_REQUESTS,
        "loads": loads,
        "stability": [found[load].stability for load in loads],
        **{name: [_known(getattr(found[load], name)) for load in loads] for name in _KEPT},
    }


def _further(
    found: dict[float, Trial], measure: Callable[[float], None], end: Callable[[Any], float], factor: float
) -> None:
    """Try loads beyond one end, until goodput is highest inside."""
    for _ in range(_MOST_FURTHER):
        last = end(found)
        if _knee(found) != last:
            return
        measure(last * factor)
        if end(found) == last:
            return


def _knee(found: dict[float, Trial]) -> float:
    """Return the load at which most requests a second were within the objective."""
    return max(sorted(found), key=lambda load: _known(found[load].goodput) or 0.0)


def _known(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
