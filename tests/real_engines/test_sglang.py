"""The kernel schedules as SGLang's own scheduler does, where a release is installed (`tests.real_engines`)."""

from __future__ import annotations

import pytest

from tests.real_engines import environment
from tests.real_engines.compare import (
    OF_SGLANG,
    SGLANG,
    as_sglang,
    earliest_difference,
    schedules_of,
    simulate_sglang,
)
from tests.real_engines.workloads import RANKED, draw_case

NUM_CASES = {"0.5.9": 6, "0.5.22": 18, "0.5.23": 18}
"""Of each class; from 0.5.22 on it counts on longer answers when it admits, and retracts a third as often."""


@pytest.mark.slow
@pytest.mark.parametrize("release", SGLANG)
@pytest.mark.parametrize("is_overlapped", [False, True])
def test_schedules_are_those_of_its_loops(is_overlapped: bool, release: str) -> None:
    """First steps, tokens, ends, retractions, tokens from the radix cache: 95 of 100 workloads to the step."""
    python = environment.python_of(release, "sglang")
    if python is None:
        pytest.skip(f"not installed: python -m tests.real_engines --version sglang-{release}")
    drawn = [
        draw_case(kind, 5000 + seed, is_async=is_overlapped) for kind in OF_SGLANG for seed in range(NUM_CASES[release])
    ]
    cases = [as_sglang(case) for case in drawn]

    schedules = schedules_of(python, cases, "sglang")

    simulated = [simulate_sglang(case, release).records for case in cases]
    differing = [
        case for case, real, own in zip(cases, schedules, simulated, strict=True) if earliest_difference(real, own)
    ]
    assert len(differing) <= 0.05 * len(cases), [(case["kind"], case["seed"]) for case in differing]
    assert sum(row["preemptions"] for schedule in schedules for row in schedule["requests"]) > 10


@pytest.mark.slow
@pytest.mark.parametrize("is_overlapped", [False, True])
@pytest.mark.parametrize("release", SGLANG)
def test_ranks_delay_prompts_as_its_delayer_does(is_overlapped: bool, release: str) -> None:
    """Schedulers that step together, each with the delayer of the wheel: nine of ten workloads to the step."""
    python = environment.python_of(release, "sglang")
    if python is None:
        pytest.skip(f"not installed: python -m tests.real_engines --version sglang-{release}")
    cases = [as_sglang(draw_case(kind, 5000 + seed, is_async=is_overlapped)) for kind in RANKED for seed in range(7)]

    schedules = schedules_of(python, cases, "sglang")

    differing = [
        case
        for case, real in zip(cases, schedules, strict=True)
        if earliest_difference(real, simulate_sglang(case, release).records)
    ]
    assert len(differing) <= 0.1 * len(cases), [(case["kind"], case["seed"]) for case in differing]


@pytest.mark.slow
@pytest.mark.parametrize("grid", [0, 8])
@pytest.mark.parametrize("is_overlapped", [False, True])
@pytest.mark.parametrize("num_beyond", [1, 40])
def test_prefixes_are_found_where_its_tree_keeps_a_state(num_beyond: int, is_overlapped: bool, grid: int) -> None:
    """Models with states, with their extra buffer and without, where states have to give way and where none has to."""
    python = environment.python_of("0.5.23", "sglang")
    if python is None:
        pytest.skip("not installed: python -m tests.real_engines --version sglang-0.5.23")
    drawn = [
        as_sglang(draw_case(kind, 5000 + seed, is_async=is_overlapped))
        for kind in ("prefix", "prefix_short", "conversations", "forks")
        for seed in range(5)
    ]
    # What a running request goes on from does not give way, either.
    states_per_seat = 2 + ((2 if is_overlapped else 1) if grid else 0)
    cases = [
        case | {"num_states": states_per_seat * case["max_num_seqs"] + num_beyond, "state_grid": grid} for case in drawn
    ]

    schedules = schedules_of(python, cases, "sglang")

    differing = [
        case
        for case, real in zip(cases, schedules, strict=True)
        if earliest_difference(real, simulate_sglang(case, "0.5.23").records)
    ]
    assert len(differing) <= 0.1 * len(cases), [(case["kind"], case["seed"]) for case in differing]
