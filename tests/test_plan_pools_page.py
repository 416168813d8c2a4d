"""The page on prefill and decode workers says what its rows say."""

from __future__ import annotations

import pytest

from benchmarks.pools import PAGE, PROBLEMS, ROWS, page, read_rows, smaller_fleets


def test_the_page_is_that_of_its_rows() -> None:
    """`python -m benchmarks.pools --page` would write the same."""
    assert PAGE.read_text() == page(read_rows(ROWS))


NAMES = [(row["problem"], row["attainment"]) for row in read_rows(ROWS)]


@pytest.mark.parametrize(("problem", "attainment"), NAMES)
def test_every_plan_held(problem: str, attainment: float) -> None:
    """On ten fresh long seeds."""
    (row,) = [each for each in read_rows(ROWS) if (each["problem"], each["attainment"]) == (problem, attainment)]

    assert row["plan_holds"]


def test_no_smaller_fleet_held_and_plans_were_found_in_time() -> None:
    """By brute force, and each plan within 120 CPU seconds."""
    for row in read_rows(ROWS):
        assert row["smaller"] is None, row["problem"]
        assert row["plan_seconds"] < 120.0


def test_brute_force_runs_the_largest_fleets_below_the_plan() -> None:
    """None takes as many GPUs, and each leaves fewer free than another worker of its second role takes."""
    fleets = list(smaller_fleets(PROBLEMS[1], 5))

    gpus = [PROBLEMS[1].scenario(0.5, **each).deployment.num_gpus for each in fleets]
    assert fleets
    assert max(gpus) == 4
    assert min(gpus) >= 3
