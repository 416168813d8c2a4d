"""Exports of AIPerf and GenAI-Perf: the summary (``profile_export_aiperf.json``) and AIPerf's ``profile_export.jsonl``.

Definitions (docs/metrics-reference.md of ai-dynamo/aiperf): ``inter_token_latency`` is ``(request latency - TTFT) /
(output tokens - tokens of the first chunk)`` of each request, so it is TPOT here; ``inter_chunk_latency`` is between
chunks of unknown size and is left out. Every figure is read in the ``unit`` that it names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simserve.documents import read_mapping
from simserve.errors import TraceError
from simserve.workload.benchmarks.result import Array, BenchResult, statistics
from simserve.workload.fields import Fields

DEFINITIONS = {
    "ttft": "time_to_first_token",
    "tpot": "inter_token_latency: (latency - TTFT) / (output tokens - first chunk's) a request",
    "e2e": "request_latency",
}
SUMMARY = "profile_export_aiperf.json"  # AIPerf's name for the summary, in the folder of the records.
_KEYS = {"time_to_first_token": "ttft", "inter_token_latency": "tpot", "request_latency": "e2e"}
_STATISTICS = {"avg": "mean", "p50": "median", "p90": "p90", "p95": "p95", "p99": "p99"}
_LOADS = (
    ("input_config", "loadgen"),
    ("input_config", "perf_analyzer", "stimulus"),
    ("input_config", "phases", "profiling"),
    ("input_config",),
)
"""Paths to concurrency and request rate by version: AIPerf, GenAI-Perf, AIPerf with named phases, older ones. If
``phases`` is a list, each phase has its own ``kind``, ``type``, ``rate``, ``smoothness`` and ``concurrency``."""

_MODELS = (
    ("input_config", "models", "items"),
    ("input_config", "endpoint", "model_names"),
    ("input_config", "model_names"),
    ("input_config", "model"),
)
"""Paths to the name of the model: AIPerf from 0.13, earlier AIPerf, and GenAI-Perf."""


def is_aiperf(document: Mapping[str, Any]) -> bool:
    """Return whether a JSON object is a summary of AIPerf or GenAI-Perf."""
    return isinstance(document.get("request_latency"), Mapping) and "unit" in document["request_latency"]


def is_aiperf_record(document: Mapping[str, Any]) -> bool:
    """Return whether a JSON object is one request of AIPerf's ``profile_export.jsonl``."""
    return isinstance(document.get("metadata"), Mapping) and isinstance(document.get("metrics"), Mapping)


def read_aiperf(fields: Fields, label: str) -> BenchResult:
    """Return the run of a summary.

    Raises:
        TraceError: A key is missing or wrong, or it was cancelled.
    """
    if fields.values.get("was_cancelled") is True:
        raise fields.error("was_cancelled", "is true: part of a run is no result")
    measured: dict[str, float] = {}
    for key, latency in _KEYS.items():
        block = fields.find(key)
        if block is not None:
            unit = block.unit("unit")
            measured |= {
                f"{ours}_{latency}": block.number(theirs) * unit
                for theirs, ours in _STATISTICS.items()
                if theirs in block
            }
    for key, figure in (("output_token_throughput", "output_throughput"), ("request_throughput", "request_throughput")):
        if key in fields:
            measured[figure] = fields.mapping(key).number("avg")
    prompts, outputs = (
        np.array([fields.mapping(key).number("avg", "tokens")] if key in fields else [])
        for key in ("input_sequence_length", "output_sequence_length")
    )
    duration = fields.find("benchmark_duration")
    failed = fields.find("error_request_count")
    return BenchResult(
        label=label,
        file=fields.file,
        tool="AIPerf",
        arrivals=_arrivals(fields),
        num_requests=_num_requests(fields),
        prompt_tokens=prompts,
        output_tokens=outputs,
        measured=measured,
        definitions=DEFINITIONS,
        notes=_notes(fields),
        model=fields.text_at(*_MODELS),
        duration=None if duration is None else duration.number("avg", "seconds"),
        num_failed=None if failed is None else int(failed.number("avg", "requests")),
    )


def _num_requests(fields: Fields) -> int:
    if "request_count" in fields:
        return round(fields.mapping("request_count").number("avg", "requests"))
    return fields.mapping("request_latency").count("count")


def _notes(fields: Fields) -> list[str]:
    notes = ["inter_chunk_latency is between chunks, not tokens: left out"] if "inter_chunk_latency" in fields else []
    if "time_to_first_token" not in fields:
        notes.append("answers were not streamed; deployment.streaming={stream: false} simulates that")
    bounds = [block.values["concurrency"] for block in _load_blocks(fields) if "concurrency" in block]
    if bounds and "rate" in _arrivals(fields):
        notes.append(
            f"at most {bounds[0]} requests were in flight; the simulation sends at the rate without that bound"
        )
    return notes


def _arrivals(fields: Fields) -> dict[str, Any]:
    """Return the load in the export's own configuration; empty if it has none."""
    for block in _load_blocks(fields):
        rate = block.optional("rate" if "rate" in block else "request_rate", "requests/s")
        if rate is not None:
            return _at_rate(block, rate)
        if "concurrency" in block:
            return {"process": "closed_loop", "concurrency": block.count("concurrency")}
    return {}


def _load_blocks(fields: Fields) -> Iterator[Fields]:
    """Yield the mappings that may contain the load; in a list of phases, the profiled ones first."""
    config = fields.find("input_config")
    if config is not None and isinstance(config.values.get("phases"), list):
        phases = [each for each in config.items_of("phases") if "profiling" in (each.text("kind"), each.text("name"))]
        if len(phases) > 1:
            rule = f"holds {len(phases)} profiled phases, whose figures are mixed here"
            remedy = "read phases/NAME/profile_export_aiperf.json of each"
            raise TraceError(rule, file=fields.file, key=config.key("phases"), remedy=remedy)
        yield from phases
    yield from (block for path in _LOADS if (block := fields.find(*path)) is not None)


def _at_rate(block: Fields, rate: float) -> dict[str, Any]:
    """Return arrivals at a rate, with the pattern given beside it."""
    pattern = block.text("arrival_pattern") or block.text("request_rate_mode") or block.text("type")
    if pattern in ("poisson", "constant"):
        return {"process": pattern, "rate": rate}
    if pattern == "gamma":
        key = "smoothness" if "smoothness" in block else "arrival_smoothness"
        smoothness = block.optional(key, "the shape of the gamma distribution")
        if smoothness is not None and smoothness <= 0:
            raise block.error(key, "must be > 0")
        return {"process": "gamma", "rate": rate, "cv": (1.0 if smoothness is None else smoothness) ** -0.5}
    return {"rate": rate}


def read_aiperf_records(rows: Sequence[Fields], label: str) -> BenchResult:
    """Return the run whose requests a file lists: profiled ones without an error.

    The model, and how requests were sent, come from the summary in the same folder, if there is one.

    Raises:
        TraceError: A request lacks a key, or none was served.
    """
    served = [row for row in rows if row.values.get("error") is None and _is_profiled(row)]
    if not served:
        raise TraceError("holds no request that was served", file=rows[0].file)
    starts = np.array([row.mapping("metadata").number("request_start_ns", "nanoseconds") for row in served])
    order = np.argsort(starts, kind="stable")
    prompts, outputs = (
        _lengths(served, key)[order] if any(key in row.mapping("metrics") for row in served) else np.array([])
        for key in ("input_sequence_length", "output_sequence_length")
    )
    is_streamed = any("time_to_first_token" in row.mapping("metrics") for row in served)
    latency = np.array([_seconds(row, "request_latency") for row in served])[order]
    ttft = np.array([_seconds(row, "time_to_first_token") for row in served])[order] if is_streamed else None
    times = (starts[order] - starts[order[0]]) * 1e-9
    seconds = float(np.max(times + latency))
    measured = statistics(latency, "e2e") | {"request_throughput": len(served) / seconds}
    if ttft is not None:
        measured |= statistics(ttft, "ttft")
    if len(outputs):
        measured["output_throughput"] = float(outputs.sum()) / seconds
    if ttft is not None and len(outputs):
        tpot = np.where(outputs > 1, (latency - ttft) / np.maximum(outputs - 1.0, 1.0), np.nan)
        measured |= statistics(tpot, "tpot")
    beside = Path(rows[0].file).with_name(SUMMARY)
    summary = Fields(read_mapping(beside, TraceError), str(beside)) if beside.is_file() else None
    return BenchResult(
        label=label,
        file=rows[0].file,
        tool="AIPerf",
        arrivals={} if summary is None else _arrivals(summary),
        num_requests=len(served),
        prompt_tokens=prompts,
        output_tokens=outputs,
        arrival_time=times,
        measured=measured,
        definitions=DEFINITIONS | {"tpot": "(request_latency - time_to_first_token) / (output_sequence_length - 1)"},
        notes=[] if summary is None else _notes(summary),
        model="" if summary is None else summary.text_at(*_MODELS),
        duration=seconds,
        num_failed=sum(row.values.get("error") is not None and _is_profiled(row) for row in rows),
    )


def _lengths(rows: Sequence[Fields], key: str) -> Array:
    return np.array([row.mapping("metrics").mapping(key).number("value", "tokens") for row in rows])


def _is_profiled(row: Fields) -> bool:
    return row.mapping("metadata").text("benchmark_phase") in ("", "profiling")


def _seconds(row: Fields, key: str) -> float:
    block = row.mapping("metrics").mapping(key)
    return block.number("value", "a duration") * block.unit("unit")
