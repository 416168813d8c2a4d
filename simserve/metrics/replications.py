"""From several independent runs of one scenario to one summary with confidence intervals.

Knows summaries only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from simserve.metrics.latency import LATENCIES
from simserve.metrics.thresholds import parse_threshold

_CONFIDENCE = 0.95
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
        "simserve.speculation.num_drafts",
        "simserve.speculation.num_draft_tokens",
        "simserve.speculation.num_accepted_tokens",
        "simserve.speculation.draft_seconds",
    }
)
_TOTAL_GROUPS = ("simserve.steps.seconds_by_part.", "simserve.requests.", "simserve.rejected.by_reason.")
_FACTS = (
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


def _interval(values: Sequence[float]) -> dict[str, float | None]:
    count = len(values)
    if not count:
        return {"mean": None, "half_width": None, "low": None, "high": None, "replications": 0}
    mean = float(np.mean(values))
    if count < 2:
        return {"mean": mean, "half_width": None, "low": None, "high": None, "replications": count}
    half_width = _t_quantile(count - 1) * float(np.std(values, ddof=1)) / math.sqrt(count)
    return {
        "mean": mean,
        "half_width": half_width,
        "low": mean - half_width,
        "high": mean + half_width,
        "replications": count,
    }


def _t_quantile(degrees_of_freedom: int) -> float:
    from scipy.special import stdtrit  # a fifth of a second, needed by replicated runs only

    return float(stdtrit(degrees_of_freedom, 0.5 + _CONFIDENCE / 2))


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
    return float(np.mean(numbers))


def _pool_thresholds(replications: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    pooled = []
    for results in zip(*replications, strict=True):
        defined = [result["value"] for result in results if result["value"] is not None]
        value = float(np.mean(defined)) if defined else None
        metric, expression = results[0]["metric"], results[0]["expression"]
        is_met = value is not None and parse_threshold(metric, expression).holds(value)
        pooled.append({"metric": metric, "expression": expression, "value": value, "ok": is_met})
    return pooled
