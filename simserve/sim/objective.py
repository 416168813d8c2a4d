"""Whether what has ended kept its limits: requests, and the agents' tasks that end with them. Knows no fleet."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.engine.state import COMPLETED, RequestTable
from simserve.sim.control import Control
from simserve.workload.requests import RequestSpecs


class Objective:
    """The limits of a run, and how the tasks at hand stand.

    Args:
        control: Holds the limits.
        specs: What arrives.
        requests: The table of what became of it.
        arrival_time: When each request was first sent; filled for a closed loop.
    """

    def __init__(
        self, control: Control, specs: RequestSpecs, requests: RequestTable, arrival_time: NDArray[np.float64]
    ) -> None:
        self._limits, self._task_limit = control.limits, control.task_limit
        self._specs, self._requests, self._arrival_time = specs, requests, arrival_time
        self._task: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        if control.task_limit is not None and specs.dependencies is not None and specs.session is not None:
            # A negative number is that of a request which is of no task.
            numbers, places = np.unique(specs.session, return_inverse=True)
            self._task = places.astype(np.int64) - np.count_nonzero(numbers < 0)
        num_tasks = int(self._task.max(initial=-1)) + 1
        self._num_left = np.bincount(self._task[self._task >= 0], minlength=num_tasks)
        self._begin, self._end = np.full(num_tasks, np.inf), np.full(num_tasks, -np.inf)

    def is_met(self, index: int) -> bool:
        """Return whether a request that has ended kept the limits of its class."""
        requests, classes = self._requests, self._specs.request_class
        limits = self._limits[0 if classes is None else int(classes[index])]
        if requests.status[index] != COMPLETED:
            return False
        sent_at, first, last = self._arrival_time[index], requests.first_token_time[index], requests.finish_time[index]
        gaps = requests.generated_tokens[index] - 1
        return bool(
            (limits.ttft is None or first - sent_at <= limits.ttft)
            and (limits.e2e is None or last - sent_at <= limits.e2e)
            and (limits.tpot is None or not gaps or last - first <= limits.tpot * gaps)
            and (limits.ttfvt is None or self._answer_time(index) - sent_at <= limits.ttfvt)
        )

    def _answer_time(self, index: int) -> float:
        """Return when the first visible token of a completed request was there, seconds; NaN: it has none."""
        thinking, requests = self._specs.thinking_tokens, self._requests
        if thinking is None:
            return requests.first_token_time[index]
        times = _answer_times(
            thinking[index : index + 1],
            np.array([requests.generated_tokens[index]]),
            np.array([requests.first_token_time[index]]),
            np.array([requests.finish_time[index]]),
            np.array([requests.answer_time[index]]),
            is_elsewhere=np.array([requests.replica_id[index] < 0]),
        )
        return float(times[0])

    def count_task(self, index: int) -> tuple[int, int]:
        """Note that a request has ended, once each; return the tasks that end with it, and those of them in time."""
        if self._task_limit is None or not len(self._task) or self._task[index] < 0:
            return 0, 0
        task, requests = self._task[index], self._requests
        self._num_left[task] -= 1
        self._begin[task] = min(self._begin[task], self._arrival_time[index])
        # A call that came to nothing leaves its task unfinished: it never ends.
        end = requests.finish_time[index] if requests.status[index] == COMPLETED else np.inf
        self._end[task] = max(self._end[task], end)
        if self._num_left[task]:
            return 0, 0
        return 1, int(self._end[task] - self._begin[task] <= self._task_limit)


def answer_columns(requests: RequestTable, specs: RequestSpecs) -> dict[str, Any]:
    """Return ``thinking_tokens answer_time`` of `simserve.sim.records.RequestRecords`; empty where nobody thinks."""
    if specs.thinking_tokens is None:
        return {}
    generated = np.frombuffer(requests.generated_tokens, dtype=np.int64)
    first, last = np.frombuffer(requests.first_token_time), np.frombuffer(requests.finish_time)
    noted = np.frombuffer(requests.answer_time)
    is_completed = np.frombuffer(requests.status, dtype=np.int8) == COMPLETED
    is_elsewhere = np.frombuffer(requests.replica_id, dtype=np.int32) < 0
    times = _answer_times(specs.thinking_tokens, generated, first, last, noted, is_elsewhere=is_elsewhere)
    return {
        "thinking_tokens": np.minimum(specs.thinking_tokens, generated),
        "answer_time": np.where(is_completed, times, np.nan),
    }


def _answer_times(
    thinking: NDArray[np.int64],
    generated: NDArray[np.int64],
    first: NDArray[np.float64],
    last: NDArray[np.float64],
    noted: NDArray[np.float64],
    *,
    is_elsewhere: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """Return when each answer began, seconds; NaN where the limit of its tokens left none of it.

    A static batch answers in one piece, at its end. The tokens of an API, or of a response cache, come evenly.

    Args:
        thinking: Tokens before the answer.
        generated: Tokens in all.
        first: When the first of them was there, seconds.
        last: When the last one was.
        noted: When the replica began the answer; NaN: it did not say.
        is_elsewhere: Whether no replica answered.
    """
    evenly = first + (last - first) * (thinking / np.maximum(generated - 1, 1))
    times = np.where(is_elsewhere, evenly, np.where(np.isnan(noted), last, noted))
    times = np.where(thinking == 0, first, times)
    return np.where(thinking < generated, times, np.nan)
