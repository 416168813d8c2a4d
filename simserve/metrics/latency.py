"""From records to TTFT, TPOT, ITL and E2E, a request and in summary. Knows no scheduler and no objective."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simserve.engine.histogram import Histogram
from simserve.metrics.figures import rows_where
from simserve.metrics.percentiles import percentiles
from simserve.metrics.tasks import tasks_of
from simserve.sim.records import COMPLETED, RequestRecords

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
