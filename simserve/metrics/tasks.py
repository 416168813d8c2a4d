"""Agents' tasks, as columns: how long each took, blocked on the model or on tools, its tokens and its dollars.

A task has finished if all of its calls were answered in full. Knows records, no graph: what a call waited for does not
matter here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simserve.sim.records import COMPLETED, TASK_CANCELLED, UNFINISHED, RequestRecords

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tasks:
    """The tasks of a run, by number; times are seconds.

    Attributes:
        task: Numbers of the tasks, ascending, shape [T] as all others.
        row: The first of its calls to be sent, as a row of the records.
        calls: Calls that were sent.
        begin: When that one was sent.
        end: When the last answer came; NaN of a task that has not finished.
        model: How long at least one of its calls was with the server: blocked on the model.
        input_tokens: Prompt tokens of its calls that were answered.
        output_tokens: Generated tokens, likewise.
        computed_tokens: Prompt tokens that no cache held, and generated ones, of all calls.
        computed_share: Share of the computed tokens of the whole run that are theirs; 1 where there are only tasks.
        has_failed: Whether a call came to nothing, and the client did not give the task up.
        is_cancelled: Whether its client gave it up: a call was hung up for that, or never sent.
        of_row: Place of the task of each row in these columns, -1: of none, shape [requests].
    """

    task: Integers
    row: Integers
    calls: Integers
    begin: Floats
    end: Floats
    model: Floats
    input_tokens: Integers
    output_tokens: Integers
    computed_tokens: Integers
    computed_share: float
    has_failed: NDArray[np.bool_]
    is_cancelled: NDArray[np.bool_]
    of_row: Integers

    @property
    def makespan(self) -> Floats:
        """From its first call to its last answer; NaN of a task that has not finished."""
        return self.end - self.begin

    @property
    def tool(self) -> Floats:
        """How long none of its calls was with the server: blocked on tools, and on clients that wait to try again."""
        return np.maximum(self.makespan - self.model, 0.0)

    def usd(self, total: float) -> Floats:
        """Return the dollars of each task: its share of ``total`` by computed tokens.

        They add up to that, or beside other requests to the share of tasks.
        """
        return total * self.computed_share * self.computed_tokens / max(int(self.computed_tokens.sum()), 1)


def tasks_of(records: RequestRecords) -> Tasks | None:
    """Return the tasks of a run; None where there are none."""
    if records.task is None:
        return None
    rows = np.flatnonzero((records.task >= 0) & np.isfinite(records.arrival_time))
    order = rows[np.lexsort((records.arrival_time[rows], records.task[rows]))]
    task, first, group = np.unique(records.task[order], return_index=True, return_inverse=True)
    is_answered = records.status[order] == COMPLETED
    answered = np.where(np.isnan(records.finish_time[order]), records.arrival_time[order], records.finish_time[order])
    is_cancelled = np.isin(task, records.task[records.reason == TASK_CANCELLED])
    has_ended = (np.bincount(group, weights=~is_answered, minlength=len(task)) == 0) & ~is_cancelled
    has_failed = np.bincount(group, weights=~is_answered & (records.status[order] != UNFINISHED)) > 0
    of_row = np.full(len(records), -1, dtype=np.int64)
    of_row[order] = group

    def total(values: Integers) -> Integers:
        return np.bincount(group, weights=values, minlength=len(task)).astype(np.int64)

    prompts, outputs = records.prompt_tokens[order], records.output_tokens[order]
    computed = _computed(records)
    computed_by_task = total(computed[order])
    last = np.maximum.reduceat(answered, first) if len(task) else answered
    return Tasks(
        task=task,
        row=order[first],
        calls=np.bincount(group, minlength=len(task)),
        begin=records.arrival_time[order[first]],
        end=np.where(has_ended, last, np.nan),
        model=_covered(group, len(task), records.arrival_time[order], answered),
        input_tokens=total(prompts * is_answered),
        output_tokens=total(outputs * is_answered),
        computed_tokens=computed_by_task,
        computed_share=float(computed_by_task.sum() / max(int(computed.sum()), 1)),
        has_failed=has_failed & ~is_cancelled,
        is_cancelled=is_cancelled,
        of_row=of_row,
    )


def _computed(records: RequestRecords) -> Integers:
    """Return the tokens that were computed for each request: of its prompt those that no cache held, and its answer."""
    was_served = (records.status == COMPLETED) | np.isfinite(records.scheduled_time)
    prompts = np.maximum(records.prompt_tokens - records.cached_tokens, 0) * was_served
    return np.where(np.isfinite(records.arrival_time), prompts + records.output_tokens, 0).astype(np.int64)


def _covered(group: Integers, num_groups: int, begin: Floats, end: Floats) -> Floats:
    """Return how long at least one interval of each group lasts.

    Args:
        group: Of each interval, ascending.
        num_groups: How many.
        begin: Of each interval, ascending within a group.
        end: Of each interval.
    """
    count = len(group)
    by_end = np.argsort(end, kind="stable")
    rank = np.empty(count, dtype=np.int64)
    rank[by_end] = np.arange(count)
    # The latest end so far, group by group: ranks of a later group are above all of those before it.
    latest = np.maximum.accumulate(group * count + rank)
    before = np.full(count, -math.inf)
    is_same = group[1:] == group[:-1]
    before[1:][is_same] = end[by_end[latest[:-1][is_same] % count]] if count else end
    seconds = np.maximum(end - np.maximum(begin, before), 0.0)
    return np.bincount(group, weights=seconds, minlength=num_groups).astype(np.float64)
