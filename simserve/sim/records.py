"""RequestRecords: what happened to every request, as columns, one row a request in order of arrival."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.engine.state import RequestTable
from simserve.workload.requests import RequestSpecs

STATUSES = ("completed", "rejected", "timed_out", "failed", "unfinished")
COMPLETED, REJECTED, TIMED_OUT, FAILED, UNFINISHED = range(5)
REASONS = (
    "",
    "prompt_too_long",
    "rate_limit",
    "queue_full",
    "kv_headroom",
    "load",
    "deadline",
    "timeout",
    "replica_lost",
    "drained",
    "api_limit",
    "task_cancelled",
)
"""Why a request was not completed: too long for the model; refused by a rule of `deployment.admission`;
given up by its client; lost with its replica, or when its time to drain was over; refused by the API it went to;
given up with the agent's task that it is a call of, or never sent for that (its ``arrival_time`` is NaN then)."""
(
    PROMPT_TOO_LONG,
    RATE_LIMIT,
    QUEUE_FULL,
    KV_HEADROOM,
    LOAD,
    DEADLINE,
    TIMEOUT,
    REPLICA_LOST,
    DRAINED,
    API_LIMIT,
    TASK_CANCELLED,
) = range(1, len(REASONS))
SERVERS = ("replica", "api", "cache")
"""Who answered a request: a replica, the API of `deployment.overflow`, the response cache."""
REPLICA, API, CACHE = range(len(SERVERS))


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecords:
    """The outcome of every request; times are seconds on the simulation clock, NaN where undefined.

    Attributes:
        arrival_time: When the client sent it; NaN if it never did (a closed loop that was interrupted).
        admitted_time: When it reached the scheduler's queue.
        scheduled_time: Start of the first step that worked on it.
        first_token_time: When its first token was there.
        finish_time: When its last token was there.
        prompt_tokens: Tokens of its prompt.
        output_tokens: Tokens generated.
        cached_tokens: Prompt tokens found in the prefix cache.
        num_preemptions: How often it lost its KV cache.
        replica_id: Replica that served it; -1 if none did.
        itl_max: Largest gap between two of its tokens, seconds; NaN below two tokens.
        status: Index into `STATUSES`.
        reason: Index into `REASONS`, why it was not completed.
        is_truncated: Whether the model's length limit cut what the client asked for.
        request_class: Index into ``class_names``; None without classes.
        class_names: The classes, in the order of the scenario.
        session: Number of its conversation; None: no conversations.
        turn: Its turn there, from 1; None: no conversations that wait for answers.
        task: Number of the agent's task that it is a call of, negative: of none; None: there are no tasks.
        adapter: Its LoRA adapter, -1: none; None: no request has one.
        served_by: Index into `SERVERS`, for completed requests; None: replicas answered all.
        prefill_end_time: When its KV cache was ready to be sent to a decode replica, NaN if it never was; this and the
            three below: None without disaggregation.
        transfer_start_time: When the link began to send it.
        transfer_end_time: When it had arrived; the request then waits for a seat until ``first_token_time``.
        prefill_replica_id: Replica that computed it; -1: it was not handed over.
        client_region: Index into ``region_names``; None: regions do not matter.
        region_names: The regions that clients are in.
        thinking_tokens: Of ``output_tokens``, those before the answer; None, as the next one: nobody thinks.
        answer_time: When the first visible token was there, of completed requests; NaN: ``max_tokens`` left none.
    """

    arrival_time: NDArray[np.float64]
    admitted_time: NDArray[np.float64]
    scheduled_time: NDArray[np.float64]
    first_token_time: NDArray[np.float64]
    finish_time: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    cached_tokens: NDArray[np.int64]
    num_preemptions: NDArray[np.int32]
    replica_id: NDArray[np.int32]
    itl_max: NDArray[np.float64]
    status: NDArray[np.int8]
    reason: NDArray[np.int8]
    is_truncated: NDArray[np.bool_]
    request_class: NDArray[np.int16] | None = None
    class_names: tuple[str, ...] = ()
    session: NDArray[np.int64] | None = None
    turn: NDArray[np.int64] | None = None
    task: NDArray[np.int64] | None = None
    adapter: NDArray[np.int64] | None = None
    served_by: NDArray[np.int8] | None = None
    prefill_end_time: NDArray[np.float64] | None = None
    transfer_start_time: NDArray[np.float64] | None = None
    transfer_end_time: NDArray[np.float64] | None = None
    prefill_replica_id: NDArray[np.int32] | None = None
    client_region: NDArray[np.int16] | None = None
    region_names: tuple[str, ...] = ()
    thinking_tokens: NDArray[np.int64] | None = None
    answer_time: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.arrival_time)

    def by_arrival(self) -> RequestRecords:
        """Return the same in order of arrival, those that were never sent last."""
        return self.rows(np.argsort(self.arrival_time, kind="stable"))

    def sent(self) -> RequestRecords:
        """Return those that were sent alone, in the same order."""
        return self.rows(np.flatnonzero(np.isfinite(self.arrival_time)))

    def rows(self, order: NDArray[np.intp]) -> RequestRecords:
        """Return some of the requests, in the order of the indices given."""
        columns = {each.name: getattr(self, each.name) for each in fields(self)}
        sorted_columns: dict[str, Any] = {
            name: column[order] for name, column in columns.items() if isinstance(column, np.ndarray)
        }
        return replace(self, **sorted_columns)


def answer_columns(requests: RequestTable, specs: RequestSpecs) -> dict[str, Any]:
    """Return ``thinking_tokens answer_time`` of `RequestRecords`; empty where nobody thinks."""
    if specs.thinking_tokens is None:
        return {}
    generated = np.frombuffer(requests.generated_tokens, dtype=np.int64)
    first, last = np.frombuffer(requests.first_token_time), np.frombuffer(requests.finish_time)
    noted = np.frombuffer(requests.answer_time)
    is_completed = np.frombuffer(requests.status, dtype=np.int8) == COMPLETED
    is_elsewhere = np.frombuffer(requests.replica_id, dtype=np.int32) < 0
    times = answer_times(specs.thinking_tokens, generated, first, last, noted, is_elsewhere=is_elsewhere)
    return {
        "thinking_tokens": np.minimum(specs.thinking_tokens, generated),
        "answer_time": np.where(is_completed, times, np.nan),
    }


def answer_times(
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
