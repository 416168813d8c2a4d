"""A plan is the cheapest fleet that holds, as a brute-force search finds it that knows nothing of the planner.

Some of the problems of `benchmarks/plans.py`; docs/plan-proof.md has all of them.
"""

from __future__ import annotations

import pytest

from benchmarks.plans import PROBLEMS, examine, picks_of

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


@pytest.mark.slow
@pytest.mark.parametrize("name", TRIED)
def test_the_plan_is_the_cheapest_that_holds(name: str) -> None:
    """At most 2 % dearer than brute force finds, unless the cheaper fleet is within 2 % of its knee."""
    row = examine(BY_NAME[name])

    assert row.cheapest is not None
    assert row.tried > 1
    assert row.verdict in ("optimal", "near the knee")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["chat, 8B, 15 requests/s", "tight TPOT, 4 GPUs", "two classes", "chat, 32B, in two stages"]
)
def test_five_seeds_pick_the_same(name: str) -> None:
    """Whatever seed the search has: the same fleet at the same price; and one seed twice gives the same to the bit."""
    first, *others = picks_of(BY_NAME[name], range(1, 6))

    assert first.label is not None
    assert [(each.changes, each.usd_per_hour) for each in others] == [(first.changes, first.usd_per_hour)] * 4
    assert picks_of(BY_NAME[name], [1]) == [first]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["chat, 8B", "bursts, 8B", "8B on Ampere and Ada, INT8"])
def test_five_seeds_of_a_scenario_get_the_same(name: str) -> None:
    """The seed that a user gives draws the runs that confirm the pick: it is the same fleet at the same price."""
    first, *others = picks_of(BY_NAME[name], (1, 2, 3, 40, 500), are_own=True)

    assert first.label is not None
    assert [(each.changes, each.usd_per_hour) for each in others] == [(first.changes, first.usd_per_hour)] * 4


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
