"""Reports of GuideLLM (``benchmarks.json``): one run per benchmark in the list.

Definitions (src/guidellm/schemas/request_stats.py): ``time_per_output_token_ms`` is ``(last token - start) / tokens``
and includes the first token, so it is NTPOT here; ``inter_token_latency_ms`` is ``(last - first token) / (tokens - 1)``
of each request, so it is TPOT. Gaps are never pooled, so there is no ITL. Only ``request_latency`` is in seconds.
Statistics are over successful requests outside warm-up and cool-down. The load is in ``config.strategy`` (until 0.3:
``args.strategy``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from simserve.workload.benchmarks.result import Array, BenchResult
from simserve.workload.fields import Fields

DEFINITIONS = {
    "ttft": "time_to_first_token_ms",
    "tpot": "inter_token_latency_ms: (last - first token) / (output tokens - 1) a request",
    "ntpot": "time_per_output_token_ms: (last token - start) / output tokens a request",
    "e2e": "request_latency, seconds",
}
_KEYS = {
    "time_to_first_token_ms": ("ttft", 1e-3),
    "inter_token_latency_ms": ("tpot", 1e-3),
    "time_per_output_token_ms": ("ntpot", 1e-3),
    "request_latency": ("e2e", 1.0),
}


def is_guidellm(document: Mapping[str, Any]) -> bool:
    """Return whether a JSON object is a report of GuideLLM."""
    return isinstance(document.get("benchmarks"), list)


def read_guidellm(fields: Fields, label: str) -> list[BenchResult]:
    """Return every benchmark of a report.

    Raises:
        TraceError: A key is missing or wrong.
    """
    benchmarks = list(fields.items_of("benchmarks"))
    several, model = len(benchmarks) > 1, fields.text_at(("config", "model"), ("args", "model"))
    return [
        _benchmark(each, f"{label} benchmarks[{index}]" if several else label, model)
        for index, each in enumerate(benchmarks)
    ]


def _benchmark(fields: Fields, label: str, model: str) -> BenchResult:
    metrics = fields.mapping("metrics")
    measured: dict[str, float] = {}
    for key, (latency, unit) in _KEYS.items():
        if key in metrics:
            measured |= _distribution(metrics.mapping(key).mapping("successful"), latency, unit)
    if not any(figure.endswith("_tpot") for figure in measured) and any(each.endswith("_ntpot") for each in measured):
        raise metrics.error(
            "inter_token_latency_ms",
            "is missing: time_per_output_token_ms holds the first token and cannot stand for it",
            "write the report with streaming on",
        )
    for key, figure in (
        ("output_tokens_per_second", "output_throughput"),
        ("requests_per_second", "request_throughput"),
    ):
        if key in metrics:
            measured[figure] = metrics.mapping(key).mapping("successful").number("mean")
    totals = (metrics if "request_totals" in metrics else fields).mapping("request_totals")
    prompts, outputs = (
        np.array([metrics.mapping(key).mapping("successful").number("mean", "tokens")])
        for key in ("prompt_token_count", "output_token_count")
    )
    num_requests, times = totals.count("successful"), None
    requests = _requests(fields, num_requests)
    if requests is not None:
        times, prompts, outputs = requests
    return BenchResult(
        label=label,
        file=fields.file,
        tool="GuideLLM",
        arrivals=_arrivals(fields),
        num_requests=num_requests,
        prompt_tokens=prompts,
        output_tokens=outputs,
        arrival_time=times,
        measured=measured,
        definitions=DEFINITIONS,
        notes=("ITL is not pooled over gaps in GuideLLM: left out",),
        model=fields.text_at(("config", "backend", "model"), ("worker", "backend_model")) or model,
        duration=fields.optional("duration", "seconds"),
        num_failed=None if "errored" not in totals else int(totals.number("errored", "requests")),
    )


def _distribution(fields: Fields, latency: str, unit: float) -> dict[str, float]:
    found = {f"mean_{latency}": fields.number("mean") * unit}
    if "median" in fields:
        found[f"median_{latency}"] = fields.number("median") * unit
    percentiles = fields.find("percentiles")
    for share in ("p90", "p95", "p99"):
        if percentiles is not None and share in percentiles:
            found[f"{share}_{latency}"] = percentiles.number(share) * unit
    return {figure: value for figure, value in found.items() if value > 0}


def _arrivals(fields: Fields) -> dict[str, Any]:
    """Return the load in a benchmark's own strategy."""
    strategy = fields.find("config", "strategy") or fields.find("args", "strategy")
    if strategy is None:
        raise fields.error("config.strategy", "is missing: a strategy with type_ is expected")
    kind = strategy.text("type_") or strategy.text("kind")
    if kind in ("constant", "poisson"):
        return {"process": kind, "rate": strategy.number("rate", "requests/s")}
    if kind in ("async", "replay") and "rate" in strategy:
        return {"rate": strategy.number("rate", "requests/s")}
    if kind == "concurrent":
        return {"process": "closed_loop", "concurrency": strategy.count("streams")}
    if kind == "synchronous":
        return {"process": "closed_loop", "concurrency": 1}
    if kind == "throughput":
        if "max_concurrency" in strategy:
            return {"process": "closed_loop", "concurrency": strategy.count("max_concurrency")}
        return {"process": "all_at_once"}
    raise strategy.error("type_", "is no load: constant, poisson, concurrent, synchronous or throughput is expected")


def _requests(fields: Fields, num_requests: int) -> tuple[Array, Array, Array] | None:
    """Return start times and lengths of the successful requests; None if the report does not list all of them."""
    rows = (fields.find("requests") or fields).values.get("successful")
    if not isinstance(rows, list) or len(rows) != num_requests:
        return None
    keys = ("request_start_time", "prompt_tokens", "output_tokens")
    values = [[row.get(key) for key in keys] for row in rows if isinstance(row, Mapping)]
    if len(values) != num_requests or any(not isinstance(one, int | float) for row in values for one in row):
        return None
    table = np.array(values, dtype=np.float64)
    table = table[np.argsort(table[:, 0], kind="stable")]
    return table[:, 0] - table[0, 0], table[:, 1], table[:, 2]
