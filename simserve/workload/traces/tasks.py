"""RecordedTasks: which calls of a trace form an agent's task, and what each waited for, known by names or by times."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simserve.workload.dependencies import Dependencies, dependencies_of

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTasks:
    """The tasks of a trace; row i is call i."""

    task: Integers  # Number of the task of each call, negative: it stands alone, int64.
    agent: Integers  # Number of the agent that makes it, int64.
    dependencies: Dependencies  # What it waits for; parents come before it.
    tool_time: Floats  # Seconds from the last answer that it waited for to its sending; 0 if it waits for none.
    offset: Floats  # For calls that wait for no answer: seconds after the first call of the task.
    earliest: Floats | None = None
    """For the others: least seconds after the first call of the task at which they are sent; None: no limit."""

    def first(self, num_calls: int) -> RecordedTasks:
        """Return those of the first calls only."""
        some = slice(0, num_calls)
        return RecordedTasks(
            task=self.task[some],
            agent=self.agent[some],
            dependencies=self.dependencies.of_rows(np.arange(min(num_calls, len(self.task)))),
            tool_time=self.tool_time[some],
            offset=self.offset[some],
            earliest=None if self.earliest is None else self.earliest[some],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """A recorded call."""

    task: Hashable  # Name of its task; None: it stands alone.
    agent: Hashable  # Name of the agent that made it.
    started_by: Hashable  # Name of the agent that started that one; None: it was there from the beginning.
    start: float  # When it was sent, seconds on any clock that the calls of a task share.
    end: float  # When it was answered.
    prompt_tokens: int  # Tokens of its prompt.
    output_tokens: int  # Tokens of its answer.
    blocks: Sequence[int] | None = None
    """Numbers of the blocks of tokens that its prompt begins with; None: not known."""


@dataclass(slots=True)
class _Agent:
    """The state of an agent while the calls of its task are processed; ``unused``: calls that no call waits for yet."""

    started_by: Hashable
    rows: list[int] = field(default_factory=list)
    unused: list[int] = field(default_factory=list)
    last: int = -1
    is_joined: bool = False


def tasks_by_time(calls: Sequence[RecordedCall]) -> RecordedTasks:
    """Return what each call waited for, as far as recorded times show.

    A call waits for its agent's earlier calls that were answered before it was sent and that no other call has waited
    for; if there are none, for the agent's last answered call. An agent's first call waits for the last answer to the
    agent that started it. The first call that this agent sends after the other's last answer waits for that answer. No
    call waits for calls that were still running when it was sent.

    Args:
        calls: The calls, in the order in which they were sent within a task.
    """
    numbers: dict[Hashable, int] = {}
    task = np.array(
        [
            -1 - row if call.task is None else numbers.setdefault(call.task, len(numbers))
            for row, call in enumerate(calls)
        ],
        dtype=np.int64,
    )
    rows_of: dict[int, list[int]] = {}
    for row, number in enumerate(task.tolist()):
        rows_of.setdefault(number, []).append(row)
    parents: list[list[int]] = [[] for _ in calls]
    for rows in rows_of.values():
        _find_parents(calls, rows, parents)
    names = [(number, call.agent) for number, call in zip(task.tolist(), calls, strict=True)]
    agents = {name: place for place, name in enumerate(dict.fromkeys(names))}
    begins = {number: calls[rows[0]].start for number, rows in rows_of.items()}
    return RecordedTasks(
        task=task,
        agent=np.array([agents[name] for name in names], dtype=np.int64),
        dependencies=dependencies_of(parents),
        tool_time=np.array(
            [
                call.start - max(calls[each].end for each in own) if own else 0.0
                for call, own in zip(calls, parents, strict=True)
            ]
        ),
        offset=np.array([call.start - begins[number] for call, number in zip(calls, task.tolist(), strict=True)]),
    )


def _find_parents(calls: Sequence[RecordedCall], rows: Sequence[int], parents: list[list[int]]) -> None:
    agents: dict[Hashable, _Agent] = {}
    for row in rows:
        agent = agents.setdefault(calls[row].agent, _Agent(calls[row].started_by))
        agent.rows.append(row)
        if agent.last < 0 or calls[row].end >= calls[agent.last].end:
            agent.last = row
    started: dict[Hashable, list[_Agent]] = {}
    for name, agent in agents.items():
        if agent.started_by in agents and agent.started_by != name:
            started.setdefault(agent.started_by, []).append(agent)
    done: dict[Hashable, list[int]] = {}
    for row in rows:
        call, agent = calls[row], agents[calls[row].agent]
        own = [each for each in agent.unused if calls[each].end <= call.start]
        agent.unused = [each for each in agent.unused if each not in own] + [row]
        if not own:
            own = _last_answered(calls, done.get(call.agent, ()), call.start)
        if not own:
            own = _last_answered(calls, done.get(agent.started_by, ()), call.start)
        for child in started.get(call.agent, ()):
            if not child.is_joined and calls[child.last].end <= call.start:
                child.is_joined = True
                own.append(child.last)
        parents[row] = own
        done.setdefault(call.agent, []).append(row)


def _last_answered(calls: Sequence[RecordedCall], rows: Sequence[int], before: float) -> list[int]:
    """Return which of some calls was the last to be answered by a time; empty if none was."""
    answered = [each for each in rows if calls[each].end <= before]
    return [max(answered, key=lambda each: calls[each].end)] if answered else []
