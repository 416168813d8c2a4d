"""A plan is the cheapest fleet that holds, as a brute-force search finds it that knows nothing of the planner.

Some of the problems of `benchmarks/plans.py`; docs/plan-proof.md has all of them.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.plans import PROBLEMS, Problem, examine
from simserve.planner.plan.plan import plan

TRIED = (
    "chat, 8B",
    "chat, 8B, half a request/s",
    "first tokens alone",
    "tight TPOT",
    "E2E, half of them",
    "chat, 32B",
    "experts, small, tight TTFT",
    "steady arrivals",
)
"""The cheaper ones to search."""
BY_NAME = {each.name: each for each in PROBLEMS}


def seeded(problem: Problem, seed: int) -> Any:
    """Return the plan of a problem under another seed of the search."""
    return plan(
        problem.loaded.model_copy(update={"run": problem.loaded.run.model_copy(update={"seed": seed})}),
        problem.options(),
    ).summary["best"]


@pytest.mark.slow
@pytest.mark.parametrize("name", TRIED)
def test_the_plan_is_the_cheapest_that_holds(name: str) -> None:
    """At most 2 % dearer than brute force finds, unless the cheaper fleet is within 2 % of its knee."""
    row = examine(BY_NAME[name])

    assert row.cheapest is not None
    assert row.tried > 1
    assert row.verdict in ("optimal", "near the knee")


@pytest.mark.slow
def test_another_seed_picks_the_same() -> None:
    """Five seeds of the traffic: the same GPUs, the same price; and one seed twice writes the same bytes."""
    problem = BY_NAME["chat, 8B, 15 requests/s"]

    picked = [seeded(problem, seed) for seed in range(1, 6)]

    assert len({(each["label"], each["usd_per_hour"]) for each in picked}) == 1
    assert json.dumps(seeded(problem, 1)) == json.dumps(picked[0])


def test_there_are_problems_of_every_kind() -> None:
    """Models, GPUs, limits, arrivals, classes, pools and scaling; each larger than a handful of fleets."""
    assert len(PROBLEMS) >= 25
    assert len(BY_NAME) == len(PROBLEMS)
    assert len({each.scenario["model"] for each in PROBLEMS}) >= 7
    assert len({name for each in PROBLEMS for name in each.hardware}) >= 6
    assert {each.scenario["workload"]["arrivals"]["process"] for each in PROBLEMS} >= {
        "poisson",
        "gamma",
        "constant",
        "daily",
    }
    assert sum(each.pools > 0 for each in PROBLEMS) >= 2
    assert sum(bool(each.scaling) for each in PROBLEMS) >= 2
    assert sum("classes" in each.scenario["workload"] for each in PROBLEMS) >= 2
