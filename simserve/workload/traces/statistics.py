"""Statistics of a trace: rate, burstiness, lengths, shared prefixes, and tasks. Knows the columns, fits nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.workload.traces.tasks import RecordedTasks
from simserve.workload.traces.trace import PrefixBlocks, Trace

Integers = NDArray[np.int64]
PERCENTILES = (1, 10, 50, 90, 95, 99)
_MINUTE = 60.0
_FEWEST_MINUTES = 5  # From n Poisson counts, variance over mean has a standard error of sqrt(2 / (n - 1)): 0.7 here.


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalStatistics:
    """When requests arrive."""

    span_s: float  # From the first to the last request, seconds.
    mean_rate: float  # Requests per second over the span; NaN for a single instant.
    peak_rate: float  # Requests per second in the busiest minute; minutes count from the first request.
    interarrival_cv: float  # Standard deviation over mean of the times between requests: 1 for Poisson.
    dispersion_index: float
    """Variance over mean of the requests per minute: 1 for Poisson, more for bursts that last; NaN for fewer than five
    whole minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthStatistics:
    """Lengths of prompts or answers, tokens."""

    total: int  # Sum.
    mean: float  # Mean.
    cv: float  # Standard deviation over the mean.
    minimum: int  # Shortest.
    maximum: int  # Longest.
    percentiles: dict[int, float]  # Percentile -> length.

    def as_mapping(self) -> dict[str, Any]:
        """Return them by name, percentiles as ``p50``."""
        quantiles = {f"p{percentile}": value for percentile, value in self.percentiles.items()}
        return {
            "total": self.total,
            "mean": self.mean,
            "cv": self.cv,
            "min": self.minimum,
            **quantiles,
            "max": self.maximum,
        }


def arrival_statistics(arrival_time: NDArray[np.float64]) -> ArrivalStatistics | None:
    """Return the statistics of ascending start times of requests or tasks; None if they are unknown."""
    if np.isnan(arrival_time).any():
        return None
    times = arrival_time - arrival_time[0]
    span, gaps = float(times[-1]), np.diff(times)
    counts = np.bincount((times // _MINUTE).astype(np.int64))
    whole = counts[: int(span // _MINUTE)]
    busiest = counts.max() / min(_MINUTE, span) if span > 0 else float("nan")
    return ArrivalStatistics(
        span_s=span,
        mean_rate=len(gaps) / span if span > 0 else float("nan"),
        peak_rate=float(busiest),
        interarrival_cv=_cv(gaps),
        dispersion_index=_dispersion(whole),
    )


def length_statistics(lengths: NDArray[np.int64]) -> LengthStatistics:
    """Return the statistics of the lengths of prompts or answers."""
    return LengthStatistics(
        total=int(lengths.sum()),
        mean=float(lengths.mean()),
        cv=_cv(lengths),
        minimum=int(lengths.min()),
        maximum=int(lengths.max()),
        percentiles={each: float(np.percentile(lengths, each)) for each in PERCENTILES},
    )


def _dispersion(counts: NDArray[np.int64]) -> float:
    """Return variance over mean, NaN for fewer than five counts or none above 0."""
    if len(counts) < _FEWEST_MINUTES or not counts.any():
        return float("nan")
    return float(counts.var(ddof=1) / counts.mean())


def _cv(values: NDArray[Any]) -> float:
    """Return the coefficient of variation, NaN for fewer than two values or a mean of 0."""
    mean = float(values.mean()) if len(values) > 1 else 0.0
    return float(values.std(ddof=1)) / mean if mean > 0 else float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStatistics:
    """The tasks of a trace."""

    num_tasks: int  # Number of tasks.
    calls: Integers  # Calls of each main agent, one that no other agent of its task has started.
    fan_out: Integers  # Sub-agents started by each call that starts any.
    subagent_calls: Integers  # Calls of each sub-agent.
    subagent_share: float  # Share of the main agents' calls, except the last ones, that start sub-agents.
    fork_share: float
    """Share of the sub-agents whose first prompt begins with all blocks, except perhaps the last, of the call that
    starts them; NaN if there are no sub-agents, or the trace names no blocks."""
    tool_time: NDArray[np.float64]  # Seconds from an agent's answer to its next call, if that waits for no sub-agent.
    new_tokens: Integers
    """For an agent's calls after its first, except those that wait for sub-agents: tokens of the prompt beyond the
    previous prompt and answer, at least 1."""
    first_tokens: Integers  # Prompt tokens of the first calls of the main agents.
    num_shortened: int
    """Calls after an agent's first with a prompt shorter than the previous prompt and answer: the context was cut."""
    starts: NDArray[np.float64]  # When each task begins, seconds; NaN if the trace does not say.

    def as_mapping(self) -> dict[str, Any]:
        """Return them by name; NaN where undefined."""
        return {
            "tasks": self.num_tasks,
            "calls": mean(self.calls),
            "subagent_share": self.subagent_share,
            "subagents": mean(self.fan_out),
            "subagent_calls": mean(self.subagent_calls),
            "fork_share": self.fork_share,
            "tool_time_s": mean(self.tool_time),
            "tool_time_cv": spread(self.tool_time),
            "new_tokens": mean(self.new_tokens),
            "first_tokens": mean(self.first_tokens),
            "shortened_contexts": self.num_shortened,
        }


def task_statistics(trace: Trace) -> TaskStatistics | None:
    """Return the statistics of the tasks of a trace; None if it has none."""
    tasks = trace.tasks
    if tasks is None:
        return None
    _, first_row, agent = np.unique(tasks.agent, return_index=True, return_inverse=True)
    calls = np.bincount(agent)
    started_by, has_tool = _starts(tasks, agent, first_row)
    is_main = started_by < 0
    starting, fan_out = np.unique(started_by[~is_main], return_counts=True)
    # The previous call of the same agent for each call; -1: there is none.
    order, before = np.argsort(agent, kind="stable"), np.full(len(agent), -1, dtype=np.int64)
    is_same = agent[order[1:]] == agent[order[:-1]]
    before[order[1:][is_same]] = order[:-1][is_same]
    further = np.flatnonzero(before >= 0)
    grown = trace.prompt_tokens[further] - (trace.prompt_tokens + trace.output_tokens)[before[further]]
    _, begins = np.unique(tasks.task, return_index=True)
    chances = int(calls[is_main].sum() - np.count_nonzero(is_main))
    return TaskStatistics(
        num_tasks=len(begins),
        calls=calls[is_main],
        fan_out=fan_out,
        subagent_calls=calls[~is_main],
        subagent_share=min(len(starting) / chances, 1.0) if chances else 0.0,
        fork_share=_fork_share(trace.prefix_blocks, first_row[~is_main], started_by[~is_main]),
        tool_time=tasks.tool_time[has_tool],
        new_tokens=np.maximum(grown[has_tool[further]], 1),
        first_tokens=trace.prompt_tokens[first_row[is_main]],
        num_shortened=int(np.count_nonzero(grown < 0)),
        starts=np.sort(trace.arrival_time[begins]),
    )


def mean(values: NDArray[Any]) -> float:
    """Return the mean of values; NaN if there are none."""
    return float(values.mean()) if len(values) else math.nan


def spread(values: NDArray[Any]) -> float:
    """Return the standard deviation of values over their mean; NaN if that is 0 or there are none."""
    middle = mean(values)
    return float(values.std()) / middle if middle > 0 else math.nan


def _starts(tasks: RecordedTasks, agent: Integers, first_row: Integers) -> tuple[Integers, NDArray[np.bool_]]:
    """Return the row that started each agent (-1: none), and whether each row waited only for a tool."""
    graph = tasks.dependencies
    child = np.repeat(np.arange(len(graph)), graph.num_parents)
    is_own = agent[child] == agent[graph.parents]
    started_by = np.full(len(first_row), -1, dtype=np.int64)
    foreign = ~is_own & (first_row[agent[child]] == child)
    started_by[agent[child[foreign]]] = graph.parents[foreign]
    has_tool = (graph.num_parents > 0) & (np.bincount(child, weights=~is_own, minlength=len(graph)) == 0)
    return started_by, has_tool


def _fork_share(blocks: PrefixBlocks | None, first: Integers, starters: Integers) -> float:
    if blocks is None or not len(first):
        return math.nan
    edges = np.concatenate([[0], np.cumsum(blocks.counts)])
    forks = 0
    for row, starter in zip(first.tolist(), starters.tolist(), strict=True):
        own, other = blocks.ids[edges[row] : edges[row + 1]], blocks.ids[edges[starter] : edges[starter + 1]]
        length = min(len(own), len(other))
        same = own[:length] == other[:length]
        shared = length if same.all() else int(np.argmin(same))
        # The last block may be filled differently.
        forks += len(other) > 0 and shared >= len(other) - 1
    return forks / len(first)
