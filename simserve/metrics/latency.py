"""Latencies of requests (TTFT, TPOT, ITL, E2E), durations of agents' tasks, and which of them met their objectives.

A task has finished if all of its calls were answered in full; what a call waited for does not matter here. Knows no
scheduler and no rates: goodput is in `simserve.metrics.throughput`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from simserve.sim.records import COMPLETED, TASK_CANCELLED, UNFINISHED, Histogram, RequestRecords

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
PERCENTILES = (50, 90, 95, 99)
LATENCIES = ("ttft_ms", "tpot_ms", "itl_ms", "e2el_ms")
"""The names of the latencies in results, as ``vllm bench serve`` writes them."""
MS = 1e3  # Milliseconds a second.
TERMS = ("ttft", "tpot", "e2e", "ttfvt")
NAMED_TERMS = TERMS[:3]  # The terms in every result; the remaining one appears only if it has a bound.
TASK = "task"  # The bound on the makespan of agents' tasks, beside those on latencies of requests.


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLatencies:
    """Latencies of the agent's task that each request belongs to, shape [requests]; 0 for a request without a task."""

    makespan: NDArray[np.float64]
    """From the first call of the task to its last answer, seconds; NaN if it has not finished."""
    model: NDArray[np.float64]  # How long at least one of its calls was at the server, seconds.
    is_first: NDArray[np.bool_]  # Whether the request is the first call of a task.


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLatencies:
    """Latencies of every request, seconds, shape [requests]; NaN where undefined."""

    ttft: NDArray[np.float64]
    """First token's time - arrival. Under static batching the whole answer arrives at once, so it is E2E."""
    tpot: NDArray[np.float64]
    """(E2E - TTFT) / (output tokens - 1). Undefined below two tokens, and where no gap between tokens was seen
    (static batching)."""
    e2e: NDArray[np.float64]  # Last token's time - arrival, of completed requests.
    is_completed: NDArray[np.bool_]  # Whether the request was answered in full.
    request_class: NDArray[np.int16] | None = None  # Index into ``class_names``; None without classes.
    class_names: tuple[str, ...] = ()  # The classes of requests.
    task: TaskLatencies | None = None  # Latencies of the tasks that requests belong to; None without tasks.
    thinking_ttfvt: NDArray[np.float64] | None = None
    """First visible token's time - arrival, of completed requests that have one; None if no request thinks."""

    @property
    def ttfvt(self) -> NDArray[np.float64]:
        """First visible token's time - arrival: TTFT if no hidden token precedes it."""
        return self.ttft if self.thinking_ttfvt is None else self.thinking_ttfvt


def request_latencies(records: RequestRecords) -> RequestLatencies:
    """Return the latencies of every request, in the order of ``records``."""
    is_completed = records.status == COMPLETED
    ttft = records.first_token_time - records.arrival_time
    e2e = records.finish_time - records.arrival_time
    # The difference of the two times, not of the two latencies, so that a late arrival loses no digits.
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
    # Index -1 (no task) selects the appended last entry.
    makespan, model = np.append(tasks.makespan, 0.0), np.append(tasks.model, 0.0)
    return TaskLatencies(makespan=makespan[tasks.of_row], model=model[tasks.of_row], is_first=is_first)


def latency_summary(latencies: RequestLatencies, in_window: NDArray[np.bool_], itl: Histogram) -> dict[str, float]:
    """Return ``mean_ median_ std_ p50_ p90_ p95_ p99_`` of the four latencies, ms, NaN where undefined.

    TTFT, TPOT and E2E are over the completed requests that arrived in the window (TPOT: those that have one). ITL pools
    every gap between consecutive tokens over the whole run, from a histogram. Percentiles are numpy's linear ones and
    standard deviations those of the population, as in ``vllm bench serve``.

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
    """Return further latencies that other tools report, with their statistics, ms, over the same requests.

    ``queue_time_ms`` is the time from the scheduler's queue to the first step (vLLM's ``request_queue_time_seconds``);
    ``ntpot_ms`` is E2E over all output tokens, including the first (inference-perf's normalized time per output token).
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
    """Return ``mean median std p50 p90 p95 p99`` of the defined values, in their unit; NaN if there are none."""
    mean = float(values.mean()) if len(values) else np.nan
    if not np.isfinite(mean):
        # Some are undefined.
        values = values[np.isfinite(values)]
        if not len(values):
            return _statistics(np.nan, np.nan, [np.nan] * len(PERCENTILES))
        mean = float(values.mean())
    # The same as numpy's own, which computes the mean once more.
    deviations = values - mean
    np.multiply(deviations, deviations, out=deviations)
    std = float(np.sqrt(deviations.sum() / len(values)))
    return _statistics(mean, std, percentiles(values, PERCENTILES))


def _describe_histogram(histogram: Histogram) -> dict[str, float]:
    if histogram.count == 0:
        return _statistics(np.nan, np.nan, [np.nan] * len(PERCENTILES))
    mean = histogram.total / histogram.count
    variance = max(0.0, histogram.total_squares / histogram.count - mean**2)
    return _statistics(mean, variance**0.5, histogram.percentiles_of(histogram.counts, PERCENTILES))


def _statistics(mean: float, std: float, values: list[float]) -> dict[str, float]:
    named = {f"p{q}": value for q, value in zip(PERCENTILES, values, strict=True)}
    return {"mean": mean, "median": named["p50"], "std": std, **named}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tasks:
    """The tasks of a run, by number; times are seconds."""

    task: Integers  # Numbers of the tasks, ascending, shape [T] like all others.
    row: Integers  # The row in the records of its first call.
    calls: Integers  # Calls that were sent.
    begin: Floats  # When its first call was sent.
    end: Floats  # When the last answer came; NaN for a task that has not finished.
    model: Floats  # How long at least one of its calls was at the server: blocked on the model.
    input_tokens: Integers  # Prompt tokens of its calls that were answered.
    output_tokens: Integers  # Generated tokens, likewise.
    computed_tokens: Integers  # Prompt tokens found in no cache and generated tokens, of all calls.
    computed_share: float  # Share of tasks in the computed tokens of the whole run; 1 if there are only tasks.
    has_failed: NDArray[np.bool_]  # Whether a call failed although the client did not give the task up.
    is_cancelled: NDArray[np.bool_]  # Whether its client gave it up: a call was cancelled for that or never sent.
    of_row: Integers  # Index of the task of each row in these columns, -1 for none, shape [requests].

    @property
    def makespan(self) -> Floats:
        """From its first call to its last answer; NaN for a task that has not finished."""
        return self.end - self.begin

    @property
    def tool(self) -> Floats:
        """How long none of its calls was at the server: blocked on tools, and on clients that wait before a retry."""
        return np.maximum(self.makespan - self.model, 0.0)

    def usd(self, total: float) -> Floats:
        """Return the dollars of each task: its share of ``total`` by computed tokens.

        They add up to ``total``, or where there are other requests too, to the share of tasks.
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
    # Prompt tokens found in no cache, and answers.
    was_served = (records.status == COMPLETED) | np.isfinite(records.scheduled_time)
    new_tokens = np.maximum(records.prompt_tokens - records.cached_tokens, 0) * was_served + records.output_tokens
    computed = np.where(np.isfinite(records.arrival_time), new_tokens, 0).astype(np.int64)
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


def _covered(group: Integers, num_groups: int, begin: Floats, end: Floats) -> Floats:
    """Return how long at least one interval of each group lasts; ``group`` ascends, and ``begin`` within a group."""
    count = len(group)
    by_end = np.argsort(end, kind="stable")
    rank = np.empty(count, dtype=np.int64)
    rank[by_end] = np.arange(count)
    # The latest end so far, group by group: ranks of a later group are above those of all earlier groups.
    latest = np.maximum.accumulate(group * count + rank)
    before = np.full(count, -math.inf)
    is_same = group[1:] == group[:-1]
    before[1:][is_same] = end[by_end[latest[:-1][is_same] % count]] if count else end
    seconds = np.maximum(end - np.maximum(begin, before), 0.0)
    return np.bincount(group, weights=seconds, minlength=num_groups).astype(np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class SLO:
    """Upper bounds on a request's latencies, seconds (None: no bound), and the share that must meet them."""

    ttft: float | None  # Bound on TTFT.
    tpot: float | None  # Bound on TPOT.
    e2e: float | None  # Bound on E2E.
    attainment: float
    """Share of submitted requests that must meet every bound, in (0, 1]; also of tasks that must meet theirs."""
    task: float | None = None  # Bound on the makespan of agents' tasks.
    by_class: Mapping[str, SLO] = field(default_factory=dict)
    """Objectives of classes of requests, which replace this one for them."""
    ttfvt: float | None = None  # Bound on the time to the first visible token.

    @property
    def limits_requests(self) -> bool:
        """Whether any request has a bound on a latency of its own."""
        return any(self.has_bound(term) for term in TERMS)

    def has_bound(self, term: str) -> bool:
        """Return whether any request has a bound on ``term``."""
        return any(getattr(each, term) is not None for each in (self, *self.by_class.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Attainment:
    """Shares of submitted requests, NaN without a request."""

    all_terms: float
    """Share that met every bound. With a bound on tasks: the share of requests that met their bounds or that of
    tasks, whichever is smaller."""
    by_metric: dict[str, float]
    """Share that met the bound on ``ttft``, ``tpot``, ``e2e``, ``ttfvt``; NaN where there is no bound. With a bound
    on tasks: also ``task``, the share of started tasks that finished in time."""
    met: NDArray[np.bool_] = field(repr=False)
    """Whether each submitted request (or task) met the objective; ``all_terms`` is the mean of these."""


def requests_meeting(latencies: RequestLatencies, slo: SLO, terms: tuple[str, ...] = TERMS) -> NDArray[np.bool_]:
    """Return whether each request was completed within every bound of ``terms``, shape [requests].

    With all of `TERMS`, also within the bound on its task, if there is one. A latency equal to its bound meets it. An
    undefined TPOT (a single token, or an answer that arrives in one piece) meets its bound: no gap between tokens can
    be too long.
    """
    met = latencies.is_completed.copy()
    if slo.task is not None and latencies.task is not None and terms == TERMS:
        met &= latencies.task.makespan <= slo.task
    for term in terms:
        values, limits = getattr(latencies, term), bounds(latencies, slo, term)
        met &= (values <= limits) | np.isinf(limits) | (np.isnan(values) if term == "tpot" else False)
    return met


def bounds(latencies: RequestLatencies, slo: SLO, term: str) -> NDArray[np.float64]:
    """Return the bound on ``term`` of each request, inf if there is none; without classes, one bound for all."""
    whole = np.array([_bound(slo, term)])
    if latencies.request_class is None or not slo.by_class:
        return whole
    by_class = [_bound(slo.by_class.get(name, slo), term) for name in latencies.class_names]
    return np.array(by_class)[latencies.request_class]


def _bound(slo: SLO, term: str) -> float:
    bound: float | None = getattr(slo, term)
    return np.inf if bound is None else bound


def attainment(latencies: RequestLatencies, slo: SLO, submitted: NDArray[np.bool_]) -> Attainment:
    """Return the shares of ``submitted`` requests that met the objective.

    A request that was rejected, failed, timed out or left unfinished missed every term.

    Args:
        latencies: Seconds, one row a request.
        submitted: Whether the request counts, shape [requests]: it was sent, and in the measured window.
    """
    by_metric = {
        term: _share(requests_meeting(latencies, slo, (term,)), submitted) if slo.has_bound(term) else np.nan
        for term in TERMS
        if term in NAMED_TERMS or slo.has_bound(term)
    }
    met = requests_meeting(latencies, replace(slo, task=None))
    share = _share(met, submitted)
    if slo.task is None or latencies.task is None:
        return Attainment(all_terms=share, by_metric=by_metric, met=met[submitted])
    begun = submitted & latencies.task.is_first
    in_time = latencies.task.makespan <= slo.task
    by_metric[TASK] = _share(in_time, begun)
    if slo.limits_requests and not by_metric[TASK] < share:
        return Attainment(all_terms=share, by_metric=by_metric, met=met[submitted])
    return Attainment(all_terms=by_metric[TASK], by_metric=by_metric, met=in_time[begun])


def _share(met: NDArray[np.bool_], submitted: NDArray[np.bool_]) -> float:
    num_submitted = np.count_nonzero(submitted)
    return np.count_nonzero(met & submitted) / num_submitted if num_submitted else float("nan")


def percentiles(values: NDArray[np.float64], shares: Sequence[float]) -> list[float]:
    """Return what ``np.percentile(values, shares)`` returns.

    Values are partitioned at one percentile after the other, the smallest first; values below it are not visited again.

    Args:
        values: At least one, none of them NaN.
        shares: In 0..100.
    """
    left, gone = values.copy(), 0
    found: dict[float, float] = {}
    for share in sorted(set(shares)):
        place = (len(values) - 1) * (share / 100)
        before = min(int(place), len(values) - 1)
        left.partition(before - gone)
        left, gone = left[before - gone :], before
        low, part = float(left[0]), place - before
        found[share] = low
        if len(left) > 1:
            high = float(left[1:].min())
            # Interpolated as in numpy: from the nearer end, so that it is monotone.
            found[share] = high - (high - low) * (1.0 - part) if part >= 0.5 else low + (high - low) * part
    return [found[share] for share in shares]


def rows_where(counted: NDArray[np.bool_]) -> NDArray[np.bool_] | slice:
    """Return an index of the rows that count; if all do, a slice, which copies nothing."""
    return slice(None) if counted.all() else counted
