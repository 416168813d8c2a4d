"""The kernel schedules as TensorRT-LLM's second KV cache manager does, as its source was read."""

from __future__ import annotations

from typing import Any

import pytest

from tests.real_engines.compare import OF_TRTLLM, SECOND, as_trtllm, earliest_difference, simulate_second
from tests.real_engines.trtllm_second import schedules_of_second
from tests.real_engines.workloads import draw_case

FEW_CASES, MANY_CASES = 2, 20


def differing(num_cases: int, *, is_overlapped: bool) -> list[tuple[str, int]]:
    """Return the class and the seed of each workload whose two schedules differ."""
    cases = [
        as_trtllm(draw_case(kind, 6000 + seed, is_async=is_overlapped), SECOND)
        for kind in OF_TRTLLM
        for seed in range(num_cases)
    ]
    return [
        (case["kind"], case["seed"])
        for case, read in zip(cases, schedules_of_second(cases), strict=True)
        if earliest_difference(read, simulate_second(case).records)
    ]


@pytest.mark.parametrize("is_overlapped", [False, True])
def test_schedules_are_those_of_the_source_as_read(is_overlapped: bool) -> None:
    """First steps, tokens, ends, preemptions and tokens found: a few workloads of each class, one may differ."""
    assert len(differing(FEW_CASES, is_overlapped=is_overlapped)) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("is_overlapped", [False, True])
def test_schedules_of_many_workloads_are_those_of_the_source_as_read(is_overlapped: bool) -> None:
    """The same of more workloads, nineteen of twenty to the step."""
    found = differing(MANY_CASES, is_overlapped=is_overlapped)

    assert len(found) <= 0.05 * MANY_CASES * len(OF_TRTLLM), found


def case_of(requests: list[tuple[float, list[int], int]], **engine: Any) -> dict[str, Any]:
    """Return a case with steps of a second: for each request, its arrival, its prompt and its number of tokens."""
    return {
        "kind": "prefix",
        "async_scheduling": False,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "max_model_len": 64,
        "enable_chunked_prefill": True,
        "num_speculative_tokens": 0,
        "block_size": 4,
        "num_blocks": 64,
        "enable_prefix_caching": False,
        "step_seconds": 1.0,
        "token_seconds": 0.0,
        "requests": [{"arrival": at, "prompt": prompt, "output": output} for at, prompt, output in requests],
        **engine,
    }


@pytest.mark.parametrize(
    ("case", "figure", "expected"),
    [
        # Both need a fourth block at 5 s: `_try_evict_for_gen` finds nobody behind the second, which gives up its own.
        (case_of([(0.0, [1] * 8, 8), (0.0, [2] * 8, 8)], num_blocks=7), "finish", [8.0, 11.0]),
        # In the second step 19 of 21 blocks are in use, as `max_util_for_resume` allows, or 20, which it does not.
        (case_of([(0.0, [1] * 76, 4), (0.5, [2] * 4, 1)], num_blocks=21), "scheduled", [0.0, 1.0]),
        (case_of([(0.0, [1] * 80, 4), (0.5, [2] * 4, 1)], num_blocks=21), "scheduled", [0.0, 5.0]),
        # `_has_context_chunk_budget`: three of eight tokens are left, enough for the last prompt.
        (
            case_of([(0.0, [1] * 8, 9), (0.5, [2] * 4, 1), (0.6, [3] * 2, 1)], max_num_batched_tokens=8),
            "scheduled",
            [0.0, 1.0, 2.0],
        ),
        # `ScheduleAction.SKIP` where blocks are missing: the third request goes before the second.
        (case_of([(0.0, [1] * 16, 4), (0.5, [2] * 20, 1), (0.6, [3] * 4, 1)], num_blocks=8), "scheduled", [0, 4, 1]),
        # `first_new_block in contributed_blocks`: a prompt alike one of this step waits for the next.
        (
            case_of([(0.0, [*range(16), each], 3) for each in (21, 22, 23)], enable_prefix_caching=True),
            "scheduled",
            [0.0, 1.0, 1.0],
        ),
        # `stop_committing` at the end of a prompt: the next turn finds the eight tokens of the prompt, no answer.
        (
            case_of(
                [(0.0, list(range(8)), 9), (20.0, [*range(8), *(10_000_000 + each for each in range(9)), 7], 1)],
                enable_prefix_caching=True,
            ),
            "cached",
            [0.0, 8.0],
        ),
    ],
)
def test_steps_laid_by_hand(case: dict[str, Any], figure: str, expected: list[float]) -> None:
    """What the functions named above say of a few requests, in steps of a second, is what both do."""
    case["max_model_len"] = 100
    read = schedules_of_second([case])[0]

    assert [row[figure] for row in read["requests"]] == expected
    assert earliest_difference(read, simulate_second(case).records) is None
