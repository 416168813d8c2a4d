"""llm-d benchmark reports, version 0.2 and 0.2.1, YAML or JSON: one run per file, every figure with its units.

The report copies figures from the tool that ran; its own schema (benchmark-report/llmd_benchmark_report/schema_v0_2.py)
warns that TPOT and ITL differ between tools. So the tool decides. For ``vllm-benchmark`` and ``inference-perf``,
``time_per_output_token`` is TPOT. For GuideLLM, ``inter_token_latency`` is TPOT, and ``time_per_output_token`` is
refused: early converters put the figure that includes the first token there. For other tools neither is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from simserve.workload.benchmarks.result import BenchResult
from simserve.workload.fields import Fields

_BY_TOOL = {
    "vllm-benchmark": {"time_per_output_token": "tpot", "inter_token_latency": "itl"},
    "inference-perf": {"time_per_output_token": "tpot"},
    "guidellm": {"inter_token_latency": "tpot"},
}
_COMMON = {"time_to_first_token": "ttft", "normalized_time_per_output_token": "ntpot", "request_latency": "e2e"}
_STATISTICS = {"mean": "mean", "p50": "median", "p90": "p90", "p95": "p95", "p99": "p99"}
_ENGINES = {"vllm": "vllm", "sglang": "sglang"}
VERSIONS = ("0.2", "0.2.1")


def is_llm_d(document: Mapping[str, Any]) -> bool:
    """Return whether a document is a benchmark report of llm-d."""
    return "version" in document and "scenario" in document and ("results" in document or "metrics" in document)


def read_llm_d(fields: Fields, label: str) -> BenchResult:
    """Return the run of one report.

    Raises:
        TraceError: A key is missing or wrong, or the tool's TPOT and ITL are not known.
    """
    if str(fields.values.get("version")) not in VERSIONS:
        raise fields.error("version", f"must be {' or '.join(VERSIONS)}", "convert the report to 0.2")
    load = fields.mapping("scenario").mapping("load").mapping("standardized")
    tool = load.text("tool")
    if tool not in _BY_TOOL:
        rule = f"defines TPOT and ITL in a way that is not known; known are {', '.join(_BY_TOOL)}"
        raise load.error("tool", rule, "read the tool's own result instead")
    aggregate = fields.mapping("results").mapping("request_performance").mapping("aggregate")
    latency = aggregate.mapping("latency")
    if tool == "guidellm" and "time_per_output_token" in latency:
        raise latency.error(
            "time_per_output_token",
            "holds the first token where GuideLLM ran: early converters put it here",
            "convert GuideLLM's report anew, or read it instead",
        )
    keys = _COMMON | _BY_TOOL[tool]
    measured: dict[str, float] = {}
    for theirs, ours in keys.items():
        if theirs in latency:
            block = latency.mapping(theirs)
            unit = block.unit("units")
            measured |= {
                f"{name}_{ours}": block.number(key) * unit for key, name in _STATISTICS.items() if key in block
            }
    for key, figure in (("output_token_rate", "output_throughput"), ("request_rate", "request_throughput")):
        block_found = aggregate.find("throughput", key)
        if block_found is not None:
            measured[figure] = block_found.number("mean")
    requests, server = aggregate.mapping("requests"), _server(fields)
    failures = sum(requests.optional(key) or 0.0 for key in ("failures", "incomplete"))
    return BenchResult(
        label=label,
        file=fields.file,
        tool=f"{tool} in an llm-d report",
        arrivals=_arrivals(load),
        num_requests=max(requests.count("total") - int(failures), 1),
        prompt_tokens=np.array([requests.mapping("input_length").number("mean", "tokens")]),
        output_tokens=np.array([requests.mapping("output_length").number("mean", "tokens")]),
        measured=measured,
        definitions={ours: f"{theirs} as {tool} defines it" for theirs, ours in keys.items()},
        model="" if server is None else server.text_at(("model", "name")),
        engine="" if server is None else _ENGINES.get(server.text("tool").lower(), ""),
        num_failed=int(failures),
    )


def _server(fields: Fields) -> Fields | None:
    """Return the report's entry for the first inference engine of the stack; None if it lists none."""
    stack = fields.mapping("scenario").values.get("stack")
    parts = stack if isinstance(stack, list) else []
    found = (each.get("standardized") for each in parts if isinstance(each, Mapping))
    server = next((each for each in found if isinstance(each, Mapping) and "model" in each), None)
    return None if server is None else Fields(server, fields.file, "scenario.stack")


def _arrivals(load: Fields) -> dict[str, Any]:
    if "rate_qps" in load:
        return {"rate": load.number("rate_qps", "requests/s")}
    concurrency = load.values.get("concurrency")
    if concurrency in (".inf", float("inf")):
        return {"process": "all_at_once"}
    return {} if concurrency is None else {"process": "closed_loop", "concurrency": load.count("concurrency")}
