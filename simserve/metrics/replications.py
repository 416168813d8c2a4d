"""From several independent runs of one scenario to one summary with confidence intervals.

Knows summaries only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simserve.metrics.batch_means import t_quantile
from simserve.metrics.latency import LATENCIES
from simserve.metrics.thresholds import parse_threshold

PILOT_RUNS = 5
"""Runs before an interval is asked how narrow it is: of fewer, the spread is mostly chance."""
ATTAINMENT_HALF_WIDTH = 0.01
"""How narrow the interval of the attainment must be whatever the precision of latencies: a percentage point."""
_CONFIDENCE = 0.95
_SHOWN_STATISTICS = ("mean", "median", "p90", "p95", "p99")
_STATISTICS = ("mean", "median", "std", "p50", "p90", "p95", "p99")
_RATES = ("request_throughput", "request_goodput", "output_throughput", "total_token_throughput")
_TOTALS = frozenset(
    {
        "duration",
        "completed",
        "failed",
        "total_input_tokens",
        "total_output_tokens",
        "simserve.kv.preemptions",
        "simserve.steps.count",
        "simserve.replicas.gpu_hours",
        "simserve.speculation.num_drafts",
        "simserve.speculation.num_draft_tokens",
        "simserve.speculation.num_accepted_tokens",
        "simserve.speculation.draft_seconds",
    }
)
_TOTAL_GROUPS = (
    "simserve.steps.seconds_by_part.",
    "simserve.requests.",
    "simserve.rejected.by_reason.",
    "simserve.rejected.refusals.",
)
_FACTS = (
    "simserve.warnings",
    "simserve.version",
    "simserve.seed",
    "simserve.scenario_",
    "simserve.fidelity",
    "simserve.expected_error",
    "simserve.engine_resolved",
    "simserve.memory",
    "simserve.kv.num_blocks",
    "simserve.speculation.num_speculative_tokens",
    "simserve.speculation.expected_acceptance_length",
)
_SEVERITY = ("stable", "backlogged", "overloaded")


def confidence_intervals(summaries: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float | None]]:
    """Return 95 % intervals of the headline figures over independent replications.

    The headline figures are all statistics of the four latencies, the four rates, and ``slo_attainment``.
    Each has ``mean half_width low high replications``: Student's t on the values of the replications in which
    the figure is defined; the interval is None below two of them.

    Args:
        summaries: What `simserve.metrics.summary.summarize` returned, one a replication.
    """
    names = (*_RATES, *(f"{statistic}_{latency}" for latency in LATENCIES for statistic in _STATISTICS))
    columns = {name: [summary[name] for summary in summaries] for name in names}
    columns["slo_attainment"] = [summary["simserve"]["slo"]["attainment"] for summary in summaries]
    return {name: _interval([value for value in values if value is not None]) for name, values in columns.items()}


def pool(summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the summary of all replications together, with their confidence intervals.

    What counts a whole run (``duration completed failed total_*``, requests, reasons, preemptions, steps)
    adds up. Every other figure is the mean over the replications in which it is defined: a percentile is the
    mean of their percentiles. The stability is the worst, the bottleneck and what describes the scenario are
    the first's; thresholds are judged on the pooled figures.

    Args:
        summaries: One a replication, at least one.
    """
    pooled: dict[str, Any] = _pool("", [dict(summary) for summary in summaries])
    inner = pooled["simserve"]
    if inner["window"]["requests"] is not None:
        inner["window"]["requests"] = round(inner["window"]["requests"])
    inner["stability"] = max((each["simserve"]["stability"] for each in summaries), key=_SEVERITY.index)
    inner["thresholds"] = _pool_thresholds([each["simserve"]["thresholds"] for each in summaries])
    inner["confidence_intervals"] = confidence_intervals(summaries)
    return pooled


@dataclass(frozen=True, slots=True)
class Width:
    """How wide the interval of one figure is.

    Attributes:
        metric: The figure, such as `p99_ttft_ms`.
        half_width: Half the interval over the mean (of the attainment: half the interval); inf where fewer than two
            runs define the figure.
        allowed: What it may be.
    """

    metric: str
    half_width: float
    allowed: float

    @property
    def is_narrow(self) -> bool:
        """Whether the figure is known as precisely as was asked."""
        return self.half_width <= self.allowed


def widest(summaries: Sequence[Mapping[str, Any]], precision: float) -> Width | None:
    """Return the figure that is furthest from the asked precision: mean, median, p90, p95 or p99 of a latency, or
    the attainment. None where none is defined.

    Args:
        summaries: What `simserve.metrics.summary.summarize` returned, one a replication.
        precision: The half width asked of latencies, over their mean.
    """
    intervals = confidence_intervals(summaries)
    names = [f"{statistic}_{latency}" for latency in LATENCIES for statistic in _SHOWN_STATISTICS]
    widths = [Width(name, _relative(intervals[name]), precision) for name in names if intervals[name]["replications"]]
    attainment = intervals["slo_attainment"]
    if attainment["replications"]:
        half_width = attainment["half_width"]
        widths.append(Width("slo_attainment", math.inf if half_width is None else half_width, ATTAINMENT_HALF_WIDTH))
    return max(widths, key=lambda width: width.half_width / width.allowed, default=None)


def _relative(interval: Mapping[str, float | None]) -> float:
    mean, half_width = interval["mean"], interval["half_width"]
    if mean is None or half_width is None:
        return math.inf
    return half_width / mean if mean else 0.0


def _interval(values: Sequence[float]) -> dict[str, float | None]:
    count = len(values)
    if not count:
        return {"mean": None, "half_width": None, "low": None, "high": None, "replications": 0}
    mean = float(np.mean(values))
    if count < 2:
        return {"mean": mean, "half_width": None, "low": None, "high": None, "replications": count}
    half_width = t_quantile(count - 1, _CONFIDENCE) * float(np.std(values, ddof=1)) / math.sqrt(count)
    return {
        "mean": mean,
        "half_width": half_width,
        "low": mean - half_width,
        "high": mean + half_width,
        "replications": count,
    }


def _pool(path: str, values: Sequence[Any]) -> Any:
    """Pool what stands at one key path; ``path`` is dotted and empty at the top."""
    first = values[0]
    if path.startswith(_FACTS):
        return first
    if isinstance(first, Mapping):
        keys = dict.fromkeys(key for value in values for key in value)
        return {key: _pool(f"{path}.{key}".lstrip("."), [value.get(key) for value in values]) for key in keys}
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if not numbers:
        return first
    if path in _TOTALS or path.startswith(_TOTAL_GROUPS):
        return sum(numbers)
    # Of equal numbers the mean is the number, and a count stays one.
    return numbers[0] if min(numbers) == max(numbers) else float(np.mean(numbers))


def _pool_thresholds(replications: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    pooled = []
    for results in zip(*replications, strict=True):
        defined = [result["value"] for result in results if result["value"] is not None]
        value = float(np.mean(defined)) if defined else None
        metric, expression = results[0]["metric"], results[0]["expression"]
        is_met = value is not None and parse_threshold(metric, expression).holds(value)
        pooled.append({"metric": metric, "expression": expression, "value": value, "ok": is_met})
    return pooled
