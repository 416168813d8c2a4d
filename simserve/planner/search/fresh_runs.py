"""Runs of a scenario as it is, of seeds that nothing was chosen on: whether 95 % of them hold. Knows no search."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class FreshRuns:
    """Runs of seeds that nothing was chosen on, up to the first that misses.

    Attributes:
        holds: Whether all hold, and a further one would by a bound.
        attainments: Share of requests in the SLO of each; empty without one.
    """

    holds: bool
    attainments: tuple[float, ...]


def further_run(attainments: Sequence[float], confidence: float = BOUND) -> tuple[float, float]:
    """Return between which shares a further run lies, with a two-sided confidence: Student's t over those of some.

    Args:
        attainments: Of at least two runs.
        confidence: Of the interval, which is cut at 0 and 1.
    """
    runs = len(attainments)
    spread = float(np.std(attainments, ddof=1)) * math.sqrt(1 + 1 / runs)
    reach = two_sided_quantile(runs - 1, confidence) * spread
    mean = float(np.mean(attainments))
    return max(mean - reach, 0.0), min(mean + reach, 1.0)


def fresh_runs(
    scenario: Scenario,
    finishable: Finishable | None = None,
    *,
    most_requests: int = MOST_FRESH_REQUESTS,
    accelerate: Accelerate = "auto",
) -> FreshRuns:
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
    count = 0
    while count < runs:
        seed = (scenario.run.seed + FRESH_SEED + SEEDS_APART * count) % SEEDS
        fresh = scenario.model_copy(update={"run": scenario.run.model_copy(update={"seed": seed})})
        found = run(resolve_like(fresh, known), explain=False, accelerate=accelerate, finishable=finishable)
        if found.simulation.was_interrupted:
            raise KeyboardInterrupt
        is_held = run_holds(fresh, found.summary)
        if asked is not None:
            shares.append(found.summary["simserve"]["slo"]["attainment"] or 0.0)
        if not is_held:
            return FreshRuns(False, tuple(shares))
        count += 1
        fewer = most_requests // max(len(found.simulation.records), 1)
        runs = min(FRESH_RUNS, max(FEWEST_FRESH_RUNS, fewer))
    return FreshRuns(asked is None or further_run(shares)[0] >= asked.attainment, tuple(shares))
