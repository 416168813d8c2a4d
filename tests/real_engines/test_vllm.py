"""The kernel schedules as vLLM's own scheduler does, where that is installed (``python -m tests.real_engines``)."""

from __future__ import annotations

import pytest

from tests.real_engines import environment
from tests.real_engines.compare import RULES, as_vllm, first_difference, schedules_of
from tests.real_engines.workloads import DRAFTING, OWN_DRAFTS, WINDOWED, WINDOWED_CACHED, draw_case

IDENTICAL = ("plain", "chunked", "kv_short", "priority", "prefix", "prefix_short", "conversations", "threshold")
"""Classes in which every schedule is meant to be the same."""
STATES = {
    **dict.fromkeys(("0.12.0", "0.20.2"), ("states", "states_short")),
    "0.33.0": ("states", "states_short", "states_prefix", "states_conversations"),
}
"""The same where layers keep a state."""
NUM_CASES = 12


@pytest.mark.slow
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("version", sorted(RULES))
def test_schedules_are_those_of_the_release(version: str, is_async: bool) -> None:
    """First steps, tokens, ends, preemptions: nine of ten workloads to the step, short of KV memory too."""
    python = environment.python_of(version)
    if python is None:
        pytest.skip(f"vLLM {version} is not installed: python -m tests.real_engines --version {version}")
    kinds = (*IDENTICAL, *STATES[version], *WINDOWED, *WINDOWED_CACHED)
    kinds = (*kinds, *(DRAFTING if version == "0.33.0" else ()))
    kinds = (*kinds, *(OWN_DRAFTS if version != "0.12.0" else ()))
    drawn = [draw_case(kind, 5000 + seed, is_async=is_async) for kind in kinds for seed in range(NUM_CASES)]
    cases = [as_vllm(case, version) for case in drawn]

    schedules = schedules_of(python, cases)

    pairs = list(zip(cases, schedules, strict=True))
    differing = [case for case, schedule in pairs if first_difference(case, schedule, RULES[version]) is not None]
    assert len(differing) <= 0.1 * len(cases), [(case["kind"], case["seed"]) for case in differing]
    assert sum(row["preemptions"] for schedule in schedules for row in schedule["requests"]) > 100
