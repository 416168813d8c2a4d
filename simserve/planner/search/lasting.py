"""Whether a fleet that held once holds for long: runs of seeds that the search has not seen.

A fleet just beyond its knee holds in a short run, as its queue has not grown yet. If it is taken for the best,
everything dearer is left out, and what is bought in the end is a replica more of the wrong deployment: twice the price.
"""

from __future__ import annotations

from simserve.planner.overrides import Overrides, with_overrides
from simserve.planner.scaling import has_own_clock
from simserve.planner.search.trial import try_fleet
from simserve.scenario.finishable import has_load_ratio
from simserve.scenario.schema import Scenario

LASTING_REQUESTS = 12_000
"""Requests of a long run of steady traffic."""
FRESH_SEED = 104_729
"""Added to the scenario's seed."""


def lasts(scenario: Scenario, overrides: Overrides, replicas: int, num_runs: int) -> bool:
    """Return whether a fleet holds in long runs of fresh seeds; true where the traffic is no steady one.

    A trace, a pattern in time, conversations and closed loops are as long as they are: they are not made longer.
    """
    if not is_steady(with_overrides(scenario, overrides)):
        return True
    workload = scenario.workload
    count = max(LASTING_REQUESTS, workload.num_requests or 0)
    longer = workload.model_copy(update={"num_requests": count, "duration": None})
    for number in range(num_runs):
        run = scenario.run.model_copy(update={"seed": scenario.run.seed + FRESH_SEED + number})
        fresh = scenario.model_copy(update={"workload": longer, "run": run})
        if not try_fleet(fresh, overrides, replicas).holds:
            return False
    return True


def is_steady(scenario: Scenario) -> bool:
    """Return whether a longer run of a scenario is like a shorter one."""
    workload = scenario.workload
    return (
        workload.trace is None
        and not workload.has_sessions
        and has_load_ratio(scenario)
        and not has_own_clock(scenario)
    )
