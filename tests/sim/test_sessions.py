"""Conversations in the simulation: when the next turn is sent, and what becomes of one that cannot be served."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from simserve.sim.records import FAILED, STATUSES
from simserve.workload.requests import RequestSpecs
from tests.agreement import assert_agrees
from tests.builders import constant_step_times, make_config

SECOND = constant_step_times(1.0)


def conversations(
    turns: list[int],
    starts: list[float] | None,
    *,
    calls: int = 1,
    prompt: int = 8,
    output: int = 2,
    think_time: float = 0.0,
    concurrency: int | None = None,
) -> RequestSpecs:
    """Return conversations of so many turns, each of ``calls`` equal requests."""
    rows = [
        (session, turn) for session, count in enumerate(turns) for turn in range(1, count + 1) for _ in range(calls)
    ]
    session, turn = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    first = [math.nan] * len(turns) if starts is None else starts
    return RequestSpecs(
        arrival_time=np.where(turn == 1, np.array(first)[session], np.nan),
        prompt_tokens=np.full(len(rows), prompt, dtype=np.int64),
        output_tokens=np.full(len(rows), output, dtype=np.int64),
        max_tokens=np.full(len(rows), output, dtype=np.int64),
        think_time=np.where(turn == 1, 0.0, think_time) if concurrency is None else np.full(len(rows), think_time),
        concurrency=concurrency,
        is_stationary=False,
        offered_rate=math.nan,
        session=session,
        turn=turn,
    )


def served(specs: RequestSpecs, **config: Any) -> Any:
    """Return the records on which kernel and walker agree."""
    return assert_agrees(make_config(**config), SECOND, specs).records


def test_a_turn_leaves_when_the_one_before_it_is_answered() -> None:
    """Answers take 2 s, thinking 5 s: turns at 1, 8 and 15 s."""
    records = served(conversations([3], [1.0], think_time=5.0))

    assert records.arrival_time.tolist() == [1.0, 8.0, 15.0]


def test_without_thinking_a_turn_joins_the_very_next_step() -> None:
    """The answer at 2 s and the next turn's first step fall together."""
    records = served(conversations([2], [0.0]))

    assert records.scheduled_time.tolist() == [0.0, 2.0]


def test_the_next_turn_waits_for_all_calls() -> None:
    """Two calls on one seat are answered at 2 and 4 s; both of the next turn leave at 4 s."""
    records = served(conversations([2], [0.0], calls=2), max_num_seqs=1)

    assert records.arrival_time.tolist() == [0.0, 0.0, 4.0, 4.0]


def test_conversations_do_not_wait_for_each_other() -> None:
    """Each keeps its own time."""
    records = served(conversations([2, 2], [0.0, 0.5], think_time=10.0))

    assert records.arrival_time.tolist() == [0.0, 12.0, 0.5, 13.0]


def test_in_a_closed_loop_a_client_holds_one_conversation_after_another() -> None:
    """One client, two conversations of two turns, 1 s of thinking between all of them."""
    records = served(conversations([2, 2], None, think_time=1.0, concurrency=1))

    assert records.arrival_time.tolist() == [0.0, 3.0, 6.0, 9.0]


def test_a_turn_that_is_too_long_fails_and_the_next_one_is_sent() -> None:
    """Nothing is lost: both turns fail, the second 1 s after the first."""
    records = served(conversations([2], [0.0], prompt=90, think_time=1.0))

    assert [STATUSES[status] for status in records.status] == [STATUSES[FAILED]] * 2
    assert records.arrival_time.tolist() == [0.0, 1.0]


def test_a_failing_conversation_gives_its_client_back() -> None:
    """The closed loop goes on with the next conversation."""
    specs = conversations([1, 1, 1], None, think_time=1.0, concurrency=1)
    specs.prompt_tokens[1] = 90
    records = served(specs)

    assert records.arrival_time.tolist() == [0.0, 3.0, 4.0]
