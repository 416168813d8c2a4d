"""The page on prefill and decode workers says what its rows say."""

from __future__ import annotations

from benchmarks.pools import PAGE, PROBLEMS, ROWS, page, read_rows, smaller_fleets


def test_the_page_is_that_of_its_rows() -> None:
    """`python -m benchmarks.pools --page` would write the same."""
    assert PAGE.read_text() == page(read_rows(ROWS))


MISSES = {("llama-3.1-70b", 0.95)}
"""Plans that do not hold on all ten fresh long seeds, as the page says."""


def test_every_plan_held_but_those_that_are_named_and_no_smaller_fleet_did() -> None:
    """On ten fresh long seeds, and each plan was found within 120 CPU seconds."""
    for row in read_rows(ROWS):
        assert row["plan_holds"] == ((row["problem"], row["attainment"]) not in MISSES), row["problem"]
        assert row["smaller"] is None, row["problem"]
        assert row["plan_seconds"] < 120.0


def test_brute_force_runs_the_largest_fleets_below_the_plan() -> None:
    """None takes as many GPUs, and each leaves fewer free than another worker of its second role takes."""
    fleets = list(smaller_fleets(PROBLEMS[1], 5))

    gpus = [PROBLEMS[1].scenario(0.5, **each).deployment.num_gpus for each in fleets]
    assert fleets
    assert max(gpus) == 4
    assert min(gpus) >= 3
