"""Recorded conversations and tasks: rows of a trace as turns, or calls, that wait for answers. Reads no file."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simserve.workload.conversations import Shape, draw_think_times
from simserve.workload.distributions import Draws
from simserve.workload.prefixes import Beginnings, PrefixSegments
from simserve.workload.requests import RequestSpecs
from simserve.workload.session_spec import SessionsSpec
from simserve.workload.traces.tasks import RecordedTasks

Integers = NDArray[np.int64]


def in_turns(specs: RequestSpecs, sessions: SessionsSpec, draws: Draws) -> RequestSpecs:
    """Return the rows of a trace that identifies conversations as their turns, each after the one before it.

    A turn is sent ``think_time`` after the answer to the one before it; if the scenario gives none, at its recorded
    time, or with that answer if it comes later.

    Args:
        specs: The rows, in order of their times.
    """
    assert specs.session is not None
    _, first_row, owner = np.unique(specs.session, return_index=True, return_inverse=True)
    rows = np.argsort(first_row[owner], kind="stable")
    ordered = specs.of_rows(rows)
    is_first = np.ones(len(rows), dtype=bool)
    is_first[1:] = np.diff(owner[rows]) != 0
    place = np.arange(len(rows))
    turn = place - np.maximum.accumulate(np.where(is_first, place, 0)) + 1
    shape = Shape(session=np.cumsum(is_first) - 1, turn=turn, call=np.zeros(len(rows), dtype=np.int64))
    think_time = draw_think_times(sessions, shape, draws)
    if len(ordered.think_time):
        think_time[is_first] = ordered.think_time[is_first]
    waits = sessions.think_time is not None
    arrival_time = np.where(is_first | (not waits), ordered.arrival_time, np.nan)
    return replace(ordered, arrival_time=arrival_time, think_time=think_time, turn=turn)


def in_tasks(specs: RequestSpecs, tasks: RecordedTasks) -> RequestSpecs:
    """Return the rows of a trace as the calls of tasks, each sent when the calls it waited for are answered.

    A task begins at the time of its first row. Tools take their recorded times.

    Args:
        specs: The rows, in their order.
        tasks: What each call waited for.
    """
    graph = tasks.dependencies
    _, first_row, owner = np.unique(tasks.task, return_index=True, return_inverse=True)
    is_root = graph.num_parents == 0
    begin = specs.arrival_time[first_row[owner]]
    think_time = tasks.tool_time.copy()
    if len(specs.think_time):
        think_time[is_root] = specs.think_time[is_root]
    depth = graph.depths()
    called = replace(
        specs,
        arrival_time=np.where(
            is_root, begin + tasks.offset, np.nan if tasks.earliest is None else begin + tasks.earliest
        ),
        think_time=think_time,
        session=tasks.task,
        turn=depth,
        dependencies=graph,
    )
    return called.of_rows(np.lexsort((depth > 1, first_row[owner])))


def session_prefixes(
    session: Integers, prompts: Integers, outputs: Integers, growth: float, beginnings: Beginnings | None
) -> PrefixSegments:
    """Return what prompts share if a trace identifies conversations but not the blocks of tokens that they share.

    A prompt begins with each whole earlier turn that it is long enough to contain: a prompt shorter than the
    conversation before it was cut off. Its first tokens are the system prompt.

    Args:
        session: Conversation of each row, negative: none; rows in order of their times, shape [N].
        prompts: Prompt tokens, shape [N].
        outputs: Answer tokens, shape [N].
        growth: Share of an answer that is kept; below 1, answers return as new text.
        beginnings: The system prompt of each row; None: there is none.
    """
    num_groups = 0 if beginnings is None else beginnings.num_groups
    num_rows, is_whole = len(prompts), growth == 1.0
    said: dict[int, list[tuple[int, int]]] = {}
    offsets, segments, ends = [0], list[int](), list[int]()
    rows = zip(session.tolist(), prompts.tolist(), outputs.tolist(), strict=True)
    for row, (owner, prompt, output) in enumerate(rows):
        known = said.get(owner)
        if known is None:
            known = []
            if beginnings is not None and beginnings.group[row] >= 0:
                known.append((int(beginnings.group[row]), int(beginnings.tokens[row])))
        path = [entry for entry in known if entry[1] <= prompt]
        if is_whole:
            path.append((num_groups + row, prompt + output))
        elif not path or path[-1][1] < prompt:
            path.append((num_groups + row, prompt))
        if owner >= 0:
            said[owner] = path
        if not is_whole:
            path = [*path, (num_groups + num_rows + row, prompt + output)]
        segments += [number for number, _ in path]
        ends += [end for _, end in path]
        offsets.append(len(segments))
    return PrefixSegments(
        offsets=np.array(offsets, dtype=np.int64),
        segments=np.array(segments, dtype=np.int64),
        ends=np.array(ends, dtype=np.int64),
    )
