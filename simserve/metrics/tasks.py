"""Agents' tasks, as columns: how long each took, blocked on the model or on tools, its tokens and its dollars.

A task has finished if all of its calls were answered in full. Knows records, no graph: what a call waited for does not
matter here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simserve.sim.records import COMPLETED, UNFINISHED, RequestRecords

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
        has_failed: Whether a call came to nothing.
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
    has_failed: NDArray[np.bool_]
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
        """Return the dollars of each task: its share of ``total`` by computed tokens, so that they add up to it."""
        return total * self.computed_tokens / max(int(self.computed_tokens.sum()), 1)


def tasks_of(records: RequestRecords) -> Tasks | None:
    """Return the tasks of a run; None where there are none."""
    if records.task is None:
        return None
    rows = np.flatnonzero((records.task >= 0) & np.isfinite(records.arrival_time))
    order = rows[np.lexsort((records.arrival_time[rows], records.task[rows]))]
    task, first, group = np.unique(records.task[order], return_index=True, return_inverse=True)
    is_answered = records.status[order] == COMPLETED
    answered = np.where(np.isnan(records.finish_time[order]), records.arrival_time[order], records.finish_time[order])
    has_ended = np.bincount(group, weights=~is_answered, minlength=len(task)) == 0
    has_failed = np.bincount(group, weights=~is_answered & (records.status[order] != UNFINISHED)) > 0
    of_row = np.full(len(records), -1, dtype=np.int64)
    of_row[order] = group

    def total(values: Integers) -> Integers:
        return np.bincount(group, weights=values, minlength=len(task)).astype(np.int64)

    prompts, outputs = records.prompt_tokens[order], records.output_tokens[order]
    was_served = is_answered | np.isfinite(records.scheduled_time[order])
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
        computed_tokens=total(np.maximum(prompts - records.cached_tokens[order], 0) * was_served + outputs),
        has_failed=has_failed,
        of_row=of_row,
    )


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
