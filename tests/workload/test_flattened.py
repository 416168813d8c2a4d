"""Agents that a capture has flattened are told apart by the blocks that their prompts begin with."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from simserve.workload.traces.tasks import RecordedCall, tasks_by_time
from simserve.workload.traces.weka import FEWEST_SUSPICIOUS, told_apart

Row = tuple[float, float, Sequence[int]]
"""When a call is sent, how long it takes, the blocks of its prompt."""


def agents(*rows: Row, models: Sequence[str] | None = None) -> list[str]:
    """Return the agent of each call of a list that all stand in as the main agent's."""
    return [str(call.agent) for call in told_apart(calls(*rows), models or ["m"] * len(rows))]


def calls(*rows: Row) -> list[RecordedCall]:
    """Return calls of one agent."""
    return [
        RecordedCall(
            task=1,
            agent="main",
            started_by=None,
            start=start,
            end=start + seconds,
            prompt_tokens=64,
            output_tokens=5,
            blocks=blocks or None,
        )
        for start, seconds, blocks in rows
    ]


FAN_OUT: tuple[Row, ...] = ((0, 1, [1, 2, 3]), (2, 3, [1, 2, 50]), (2.5, 4, [1, 2, 60]), (9, 1, [1, 2, 3, 4, 5]))


def test_calls_that_do_not_go_on_from_each_other_are_several_agents() -> None:
    """The example of AIPerf's page: two workers with a part of the main agent's context, which goes on afterwards."""
    found = told_apart(calls(*FAN_OUT), ["m"] * 4)

    assert [call.agent for call in found] == ["main", "main~1", "main~2", "main"]
    assert [call.started_by for call in found] == [None, "main", "main", None]
    tasks = tasks_by_time(found)
    offsets, parents = tasks.dependencies.offsets, tasks.dependencies.parents
    waits = [set(parents[start:end].tolist()) for start, end in pairwise(offsets)]
    assert waits == [set(), {0}, {0}, {0, 1, 2}]
    assert tasks.tool_time.tolist() == [0.0, 1.0, 1.5, 2.5]


def test_a_context_that_was_edited_is_the_same_agents() -> None:
    """It keeps the first block alone, and nothing takes up the longer one again; with somebody who does, it is not."""
    rows: tuple[Row, ...] = ((0, 1, [1, 2, 3, 4]), (2, 1, [1, 9]), (4, 1, [1, 9, 10]))

    assert agents(*rows) == ["main"] * 3
    assert agents(*rows, (6, 1, [1, 2, 3, 4, 5])) == ["main", "main~1", "main~1", "main"]


def test_what_overlaps_or_has_another_model_is_another_agent() -> None:
    """Though its prompt goes on from the one before."""
    assert agents((0, 5, [1]), (1, 1, [1, 2])) == ["main", "main~1"]
    assert agents((0, 1, [1]), (2, 1, [1, 2]), models=["opus", "haiku"]) == ["main", "main~1"]


def test_calls_of_unknown_prompts_stay() -> None:
    """They tell nothing, and neither do ids of which no two prompts share one."""
    assert agents((0, 1, []), (0.5, 1, []), (2, 1, [])) == ["main"] * 3
    strangers: list[Row] = [(float(each), 0.5, [each, 100 + each]) for each in range(FEWEST_SUSPICIOUS)]
    assert agents(*strangers) == ["main"] * FEWEST_SUSPICIOUS


def test_agents_of_other_tasks_and_other_agents_are_left_alone() -> None:
    """Each list is looked at by itself."""
    one, other = calls((0, 1, [1]), (2, 1, [1, 2])), calls((0, 1, [7]))
    both = [
        *one,
        *(RecordedCall(**{name: getattr(call, name) for name in call.__slots__} | {"task": 2}) for call in other),
    ]

    assert told_apart(both, ["m"] * 3) == both
