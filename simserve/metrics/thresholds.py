"""Conditions on the figures of a run, as k6 writes them: ``ttft_ms: ["p(95)<1000"]``; and figures by their dotted keys.

Knows no files and no exit codes.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.errors import nearest
from simserve.metrics.cost import COST_KEYS
from simserve.metrics.latency import LATENCIES, MS
from simserve.sim.records import Histogram

SCALARS = (
    *("duration", "completed", "failed", "total_input_tokens", "total_output_tokens"),
    *("request_throughput", "request_goodput", "output_throughput", "total_token_throughput"),
    *COST_KEYS,
)
"""Figures of `result.json` with one value each."""
ATTAINMENT = "slo_attainment"
_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}
_EXPRESSION = re.compile(
    r"\s*(?P<aggregation>[a-z]+)(?:\((?P<percentile>[0-9.]+)\))?\s*(?P<operator><=|>=|==|!=|<|>)\s*"
    r"(?P<limit>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*"
)

_FIGURE = re.compile(r"(?:p(?P<percentile>\d+(?:\.\d+)?)|(?P<mean>mean|median))_(?P<latency>\w+)")
"""Name of a latency's figure in `result.json`: ``p95_ttft_ms``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """One condition: an aggregation of a metric, compared with a limit."""

    metric: str  # A latency (ms), ``slo_attainment``, or one of `SCALARS`.
    aggregation: str  # ``avg min max med p`` of a latency, ``rate`` of the attainment, ``value`` of a scalar.
    percentile: float | None  # q of ``p(q)``, in 0..100; None for the others.
    comparison: str  # ``< <= > >= == !=``.
    limit: float  # What the figure is compared with, in the metric's unit.

    def holds(self, value: float) -> bool:
        """Return whether ``value`` meets the condition; an undefined value (NaN) never does."""
        return not math.isnan(value) and _OPERATORS[self.comparison](value, self.limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures that thresholds can use."""

    latencies: Mapping[str, NDArray[np.float64]]
    """``ttft_ms tpot_ms e2el_ms`` -> defined values of the measured requests, **seconds**."""
    itl: Histogram  # The gaps between tokens, seconds.
    slo_attainment: float  # Share, NaN without an SLO.
    scalars: Mapping[str, float]  # Value of each of `SCALARS`, NaN where undefined.


def parse_threshold(metric: str, expression: str) -> Threshold:
    """Return the condition that a scenario states.

    Raises:
        ValueError: Unknown metric, an expression that cannot be read, or an aggregation that the metric does
            not have; the message is a rule and a remedy, to be appended to ``thresholds``.
    """
    known = (*LATENCIES, ATTAINMENT, *SCALARS)
    figure = _FIGURE.fullmatch(metric)
    if figure is not None and figure["latency"] in LATENCIES:
        percentile = figure["percentile"]
        what = f"p({percentile})" if percentile else {"median": "med"}.get(figure["mean"], "avg")
        raise ValueError(f"'{metric}' is a figure of a result; write {figure['latency']}: [\"{what}<1000\"]")
    if metric not in known:
        raise ValueError(f"'{metric}' is not a metric; {nearest(metric, known)}")
    match = _EXPRESSION.fullmatch(expression)
    aggregations, example = _forms(metric)
    if match is None:
        raise ValueError(f"'{expression}' is not a threshold of {metric}; write for example \"{example}\"")
    aggregation, percentile = match["aggregation"], match["percentile"]
    if aggregation not in aggregations or (percentile is not None) != (aggregation == "p"):
        written = ", ".join("p(N)" if name == "p" else name for name in aggregations)
        raise ValueError(
            f"'{expression}' is not a threshold of {metric}, which has {written}; write for example \"{example}\""
        )
    return Threshold(
        metric=metric,
        aggregation=aggregation,
        percentile=None if percentile is None else _percentile(percentile, expression),
        comparison=match["operator"],
        limit=float(match["limit"]),
    )


def evaluate_thresholds(thresholds: Mapping[str, Sequence[str]], figures: Figures) -> list[dict[str, Any]]:
    """Return ``metric expression value ok`` of every condition, in the order written; ``value`` may be NaN.

    Raises:
        ValueError: As `parse_threshold`.
    """
    results = []
    for metric, expressions in thresholds.items():
        for expression in expressions:
            threshold = parse_threshold(metric, expression)
            value = _value(threshold, figures)
            results.append({"metric": metric, "expression": expression, "value": value, "ok": threshold.holds(value)})
    return results


def _forms(metric: str) -> tuple[tuple[str, ...], str]:
    """Return the aggregations that a metric has, and an example."""
    if metric in LATENCIES:
        return ("avg", "min", "max", "med", "p"), "p(95)<1000"
    return (("rate",), "rate>=0.95") if metric == ATTAINMENT else (("value",), "value>10")


def _percentile(text: str, expression: str) -> float:
    try:
        percentile = float(text)
    except ValueError:
        percentile = math.nan
    if not 0 <= percentile <= 100:
        raise ValueError(f"'{expression}' has the percentile {text}; it must be in 0..100")
    return percentile


def _value(threshold: Threshold, figures: Figures) -> float:
    if threshold.metric == ATTAINMENT:
        return figures.slo_attainment
    if threshold.metric in SCALARS:
        return figures.scalars[threshold.metric]
    if threshold.metric == "itl_ms":
        return MS * _of_histogram(threshold, figures.itl)
    return MS * _of_values(threshold, figures.latencies[threshold.metric])


def _of_histogram(threshold: Threshold, itl: Histogram) -> float:
    known = {"avg": itl.total / itl.count if itl.count else math.nan, "min": itl.minimum, "max": itl.maximum}
    if threshold.aggregation in known:
        return known[threshold.aggregation]
    return itl.percentile(50.0 if threshold.percentile is None else threshold.percentile)


def _of_values(threshold: Threshold, values: NDArray[np.float64]) -> float:
    if not len(values):
        return math.nan
    known: dict[str, Callable[[NDArray[np.float64]], Any]] = {"avg": np.mean, "min": np.min, "max": np.max}
    if threshold.aggregation in known:
        return float(known[threshold.aggregation](values))
    return float(np.percentile(values, 50.0 if threshold.percentile is None else threshold.percentile))


def at(summary: Mapping[str, Any], key: str) -> Any:
    """Return the value at a dotted key of a summary.

    Raises:
        KeyError: There is none.
    """
    value: Any = summary
    for part in key.split("."):
        value = value[part]
    return value


def figure_at(summary: Mapping[str, Any], key: str) -> float | None:
    """Return the figure at a dotted key of a summary; None where it is undefined.

    Raises:
        KeyError: There is no such key.
    """
    value = at(summary, key)
    return None if value is None else float(value)
