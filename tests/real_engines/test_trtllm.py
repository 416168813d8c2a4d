"""The kernel schedules as TensorRT-LLM's own Python scheduler does, where a folder with it is given."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.real_engines.compare import (
    OF_TRTLLM,
    POLICIES,
    TRTLLM,
    as_trtllm,
    earliest_difference,
    schedules_of,
    simulate_trtllm,
)
from tests.real_engines.environment import SOURCE_OF_TRTLLM
from tests.real_engines.workloads import draw_case

NUM_CASES = 12


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("release", TRTLLM)
@pytest.mark.parametrize("is_overlapped", [False, True])
def test_schedules_are_those_of_its_loops(is_overlapped: bool, release: str, policy: str) -> None:
    """First steps, tokens, ends, preemptions, tokens found in the cache: nine of ten workloads to the step."""
    folder = os.environ.get(SOURCE_OF_TRTLLM)
    if not folder:
        pytest.skip(f"{SOURCE_OF_TRTLLM} names no folder with a checkout or an unpacked wheel of TensorRT-LLM")
    cases = [
        as_trtllm(draw_case(kind, 5000 + seed, is_async=is_overlapped), release, policy)
        for kind in OF_TRTLLM
        for seed in range(NUM_CASES)
    ]

    schedules = schedules_of(Path(sys.executable), cases, "trtllm", Path(folder))

    differing = [
        case
        for case, real in zip(cases, schedules, strict=True)
        if earliest_difference(real, simulate_trtllm(case).records)
    ]
    assert len(differing) <= 0.1 * len(cases), [(case["kind"], case["seed"]) for case in differing]
