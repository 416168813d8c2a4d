"""From records to TTFT, TPOT, ITL and E2E, and how long agents' tasks took. Knows no scheduler and no objective.

A task has finished if all of its calls were answered in full; what a call waited for does not matter here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simserve.engine.histogram import Histogram
from simserve.metrics.figures import rows_where
from simserve.metrics.statistics import percentiles
from simserve.sim.records import COMPLETED, TASK_CANCELLED, UNFINISHED, RequestRecords

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
PERCENTILES = (50, 90, 95, 99)
LATENCIES = ("ttft_ms", "tpot_ms", "itl_ms", "e2el_ms")
"""The names of the latencies in results, as ``vllm bench serve`` writes them."""
MS = 1e3
"""Milliseconds a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLatencies:
    """Latencies of the agent's task that each request is a call of, shape [requests]; 0 where it is of none.

    Attributes:
        makespan: From the first call of the task to its last answer, seconds; NaN if it has not finished.
        model: How long of it at least one of its calls was with the server, seconds.
        is_first: Whether the request is the first call of a task.
    """

    makespan: NDArray[np.float64]
    model: NDArray[np.float64]
    is_first: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLatencies:
    """Latencies of every request, seconds, shape [requests]; NaN where undefined.

    Attributes:
        ttft: First token's time - arrival. Under static batching the whole answer arrives at once, so it is
            E2E.
        tpot: (E2E - TTFT) / (output tokens - 1). Undefined below two tokens, and where no gap between tokens
            was seen (static batching).
        e2e: Last token's time - arrival, of completed requests.
        is_completed: Whether the request was answered in full.
        request_class: Index into ``class_names``; None without classes.
        class_names: The classes of requests.
        task: Of the tasks that requests are calls of; None: there are none.
        thinking_ttfvt: First visible token's time - arrival, of completed requests that have one; None: nobody thinks.
    """

    ttft: NDArray[np.float64]
    tpot: NDArray[np.float64]
    e2e: NDArray[np.float64]
    is_completed: NDArray[np.bool_]
    request_class: NDArray[np.int16] | None = None
    class_names: tuple[str, ...] = ()
    task: TaskLatencies | None = None
    thinking_ttfvt: NDArray[np.float64] | None = None

    @property
    def ttfvt(self) -> NDArray[np.float64]:
        """First visible token's time - arrival: TTFT where nothing is hidden before it."""
        return self.ttft if self.thinking_ttfvt is None else self.thinking_ttfvt


def request_latencies(records: RequestRecords) -> RequestLatencies:
    """Return the latencies of every request, in the order of ``records``."""
    is_completed = records.status == COMPLETED
    ttft = records.first_token_time - records.arrival_time
    e2e = records.finish_time - records.arrival_time
    # The difference of the two times, not of the two latencies, so that a late arrival costs no digits.
    tpot = (records.finish_time - records.first_token_time) / np.maximum(records.output_tokens - 1, 1)
    has_gaps = is_completed & (records.output_tokens >= 2) & np.isfinite(records.itl_max)
    if not has_gaps.all():
        e2e[~is_completed] = tpot[~has_gaps] = np.nan
    return RequestLatencies(
        ttft=ttft,
        tpot=tpot,
        e2e=e2e,
        is_completed=is_completed,
        request_class=records.request_class,
        class_names=records.class_names,
        task=_task_latencies(records),
        thinking_ttfvt=None if records.answer_time is None else records.answer_time - records.arrival_time,
    )


def _task_latencies(records: RequestRecords) -> TaskLatencies | None:
    tasks = tasks_of(records)
    if tasks is None:
        return None
    is_first = np.zeros(len(records), dtype=bool)
    is_first[tasks.row] = True
    # Place -1, of no task, is the one behind the last.
    makespan, model = np.append(tasks.makespan, 0.0), np.append(tasks.model, 0.0)
    return TaskLatencies(makespan=makespan[tasks.of_row], model=model[tasks.of_row], is_first=is_first)


def latency_summary(latencies: RequestLatencies, in_window: NDArray[np.bool_], itl: Histogram) -> dict[str, float]:
    """Return ``mean_ median_ std_ p50_ p90_ p95_ p99_`` of the four latencies, ms, NaN where undefined.

    TTFT, TPOT and E2E are over the completed requests that arrived in the window (TPOT: those of them that
    have one). ITL pools every gap between consecutive tokens over the whole run, from a histogram.
    Percentiles are numpy's linear ones, standard deviations those of the population, as in ``vllm bench
    serve``.

    Args:
        latencies: Seconds, one row a request.
        in_window: Whether the request counts, shape [requests].
        itl: The gaps, seconds.
    """
    rows = rows_where(in_window & latencies.is_completed)
    summaries = (
        describe(latencies.ttft[rows]),
        describe(latencies.tpot[rows]),
        _describe_histogram(itl),
        describe(latencies.e2e[rows]),
    )
    return {
        f"{statistic}_{name}": value * MS
        for name, summary in zip(LATENCIES, summaries, strict=True)
        for statistic, value in summary.items()
    }


def further_latencies(
    records: RequestRecords, latencies: RequestLatencies, in_window: NDArray[np.bool_]
) -> dict[str, dict[str, float]]:
    """Return what other tools report beside the four, with their statistics, ms, over the same requests.

    ``queue_time_ms`` is the time from the scheduler's queue to the first step (vLLM's
    ``request_queue_time_seconds``); ``ntpot_ms`` is E2E over all output tokens, the first among them (inference-perf's
    normalized time per output token).

    Args:
        records: One row a request.
        latencies: Seconds, one row a request.
        in_window: Whether the request counts, shape [requests].
    """
    rows = rows_where(in_window & latencies.is_completed)
    columns = {
        "queue_time_ms": records.scheduled_time[rows] - records.admitted_time[rows],
        "ntpot_ms": latencies.e2e[rows] / np.maximum(records.output_tokens[rows], 1),
    }
    return {
        name: {statistic: value * MS for statistic, value in describe(values).items()}
        for name, values in columns.items()
    }


def describe(values: NDArray[np.float64]) -> dict[str, float]:
    """Return ``mean median std p50 p90 p95 p99`` of those values that are defined, in their unit; NaN without any."""
    mean = float(values.mean()) if len(values) else np.nan
    if not np.isfinite(mean):
        # Some are undefined.
        values = values[np.isfinite(values)]
        if not len(values):
            return _statistics(np.nan, np.nan, [np.nan] * len(PERCENTILES))
        mean = float(values.mean())
    # As numpy's own, which takes the mean once more.
    deviations = values - mean
    np.multiply(deviations, deviations, out=deviations)
    std = float(np.sqrt(deviations.sum() / len(values)))
    return _statistics(mean, std, percentiles(values, PERCENTILES))


def _describe_histogram(histogram: Histogram) -> dict[str, float]:
    if histogram.count == 0:
        return _statistics(np.nan, np.nan, [np.nan] * len(PERCENTILES))
    mean = histogram.total / histogram.count
    variance = max(0.0, histogram.total_squares / histogram.count - mean**2)
    return _statistics(mean, variance**0.5, [histogram.percentile(q) for q in PERCENTILES])


def _statistics(mean: float, std: float, values: list[float]) -> dict[str, float]:
    named = {f"p{q}": value for q, value in zip(PERCENTILES, values, strict=True)}
    return {"mean": mean, "median": named["p50"], "std": std, **named}


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
