"""Runs of a scenario as it is, of seeds that nothing was chosen on: whether 95 % of them hold. Knows no search."""

from __future__ import annotations

import math

import numpy as np

from simserve.metrics.student import two_sided_quantile
from simserve.planner.search.trial import run_holds
from simserve.scenario.finishable import Finishable
from simserve.scenario.objective import objective
from simserve.scenario.resolve import resolve, resolve_like
from simserve.scenario.run import run
from simserve.scenario.schema import Scenario
from simserve.sim.acceleration import Accelerate

FRESH_RUNS = 8
"""Runs of seeds that the search has not seen: all must hold, and a further one by a bound."""
FEWEST_FRESH_RUNS = 3
MOST_FRESH_REQUESTS = 60_000
"""Requests of these together from which on they are fewer: long runs differ less."""
FRESH_SEED, SEEDS_APART = 1_000_003, 7919
"""Added to the scenario's seed for the first of them, and from one to the next: neighbouring seeds share none."""
SEEDS = 2**63
"""How many seeds there are."""
BOUND = 0.96
"""Two-sided: with 98 % a further run is above the lower end."""


def keeps_holding(
    scenario: Scenario,
    finishable: Finishable | None = None,
    *,
    most_requests: int = MOST_FRESH_REQUESTS,
    accelerate: Accelerate = "auto",
) -> bool:
    """Return whether fresh runs of a scenario, as long as it says, hold its objective, and one more would by a bound.

    Args:
        scenario: What is deployed, what arrives, what is asked; one run of it, without a precision.
        finishable: What the deployment finishes with its queue never empty; None: the queue's trend alone tells
            whether a run is overloaded.
        most_requests: Of all runs together, from which on they are fewer.
        accelerate: Whether runs are compiled.

    Raises:
        InputError: The deployment does not go together.
        KeyboardInterrupt: The user stopped a run.
    """
    known = resolve(scenario)
    asked, runs = objective(scenario), FRESH_RUNS
    shares: list[float] = []
    while len(shares) < runs:
        seed = (scenario.run.seed + FRESH_SEED + SEEDS_APART * len(shares)) % SEEDS
        fresh = scenario.model_copy(update={"run": scenario.run.model_copy(update={"seed": seed})})
        found = run(resolve_like(fresh, known), explain=False, accelerate=accelerate, finishable=finishable)
        if found.simulation.was_interrupted:
            raise KeyboardInterrupt
        if not run_holds(fresh, found.summary):
            return False
        shares.append(found.summary["simserve"]["slo"]["attainment"])
        fewer = most_requests // max(len(found.simulation.records), 1)
        runs = min(FRESH_RUNS, max(FEWEST_FRESH_RUNS, fewer))
    if asked is None:
        return True
    spread = float(np.std(shares, ddof=1)) * math.sqrt(1 + 1 / len(shares))
    return bool(np.mean(shares) - two_sided_quantile(len(shares) - 1, BOUND) * spread >= asked.attainment)
