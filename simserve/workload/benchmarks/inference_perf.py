"""Reports of inference-perf: ``stage_N_lifecycle_metrics.json`` and ``summary_lifecycle_metrics.json``.

Definitions (inference_perf/reportgen/base.py, ``compute_request_latency_metrics``): ``time_per_output_token`` is
``(last - first token) / (tokens - 1)`` of each request, so it is TPOT; ``normalized_time_per_output_token`` is E2E over
tokens, so it is NTPOT; ``inter_token_latency`` pools gaps and counts tokens of one chunk as gaps of 0, so only its mean
is that of the gaps. All are in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from simserve.documents import read_mapping
from simserve.errors import TraceError
from simserve.workload.benchmarks.result import BenchResult
from simserve.workload.fields import Fields

DEFINITIONS = {
    "ttft": "time_to_first_token",
    "tpot": "time_per_output_token: (last - first token) / (output tokens - 1) a request",
    "ntpot": "normalized_time_per_output_token: E2E / output tokens a request",
    "itl": "inter_token_latency, its mean: gaps pooled over requests",
    "e2e": "request_latency",
}
_KEYS = {
    "time_to_first_token": "ttft",
    "time_per_output_token": "tpot",
    "normalized_time_per_output_token": "ntpot",
    "request_latency": "e2e",
}
_STATISTICS = ("mean", "median", "p90", "p95", "p99")
_ENGINES = {"vllm": "vllm", "sglang": "sglang", "tgi": "tgi"}
"""Kind of server -> its engine profile, if there is one."""
BEHIND = 0.05  # Share by which a client may fall behind the requested rate before the rate it achieved is used.


def is_inference_perf(document: Mapping[str, Any]) -> bool:
    """Return whether a JSON object is a lifecycle report of inference-perf."""
    return isinstance(document.get("successes"), Mapping) and "load_summary" in document


def is_inference_perf_record(document: Mapping[str, Any]) -> bool:
    """Return whether a JSON object is one request of ``per_request_lifecycle_metrics.json``."""
    return all(key in document for key in ("start_time", "end_time", "info", "request"))


def read_inference_perf(fields: Fields, label: str) -> BenchResult:
    """Return the run of one report.

    Raises:
        TraceError: A key is missing or wrong.
    """
    successes = fields.mapping("successes")
    latency = successes.mapping("latency")
    measured: dict[str, float] = {}
    for theirs, ours in _KEYS.items():
        if theirs in latency:
            measured |= _statistics(latency.mapping(theirs), ours)
    if "inter_token_latency" in latency:
        measured["mean_itl"] = latency.mapping("inter_token_latency").number("mean", "seconds")
    throughput = successes.mapping("throughput")
    measured["output_throughput"] = throughput.number("output_tokens_per_sec", "tokens/s")
    measured["request_throughput"] = throughput.number("requests_per_sec", "requests/s")
    num_requests = successes.count("count")
    failures = fields.find("failures")
    beside = Path(fields.file).parent / "config.yaml"
    config = Fields(read_mapping(beside, TraceError), str(beside)) if beside.is_file() else None
    notes: list[str] = []
    return BenchResult(
        label=label,
        file=fields.file,
        tool="inference-perf",
        arrivals=_arrivals(fields, config, notes),
        num_requests=num_requests,
        prompt_tokens=np.array([_mean_tokens(successes, ("prompt_tokens", "prompt_len"), num_requests)]),
        output_tokens=np.array([_mean_tokens(successes, ("output_tokens", "output_len"), num_requests)]),
        measured=measured,
        definitions=DEFINITIONS,
        notes=notes,
        model="" if config is None else config.text_at(("server", "model_name")),
        engine="" if config is None else _ENGINES.get(config.text_at(("server", "type")), ""),
        duration=fields.optional("benchmark_time_seconds", "seconds"),
        num_failed=None if failures is None else int(failures.number("count", "requests")),
    )


def _statistics(block: Fields, name: str) -> dict[str, float]:
    """Return the figures of a latency; percentiles may be in a mapping of their own, with the median as ``p50``."""
    found = {}
    for each in _STATISTICS:
        places = (block, each), (block.find("percentiles"), "p50" if each == "median" else each)
        place = next(((where, key) for where, key in places if where is not None and where.values.get(key)), None)
        if place is not None:
            found[f"{each}_{name}"] = place[0].number(place[1], "seconds")
    return found


def _mean_tokens(successes: Fields, names: tuple[str, str], num_requests: int) -> float:
    for name in names:
        block = successes.find(name)
        if block is not None and "mean" in block:
            return block.number("mean", "tokens")
        if block is not None and "total" in block:
            return block.number("total", "tokens") / num_requests
    raise successes.error(names[0], "is missing: the mean or the total of tokens is expected")


def _arrivals(fields: Fields, config: Fields | None, notes: list[str]) -> dict[str, Any]:
    """Return the load of a stage, with the process from the ``config.yaml`` in the report's folder.

    The rate is the requested one, or the achieved one if the client fell behind, which is noted.
    """
    load = fields.mapping("load_summary")
    if "concurrency" in load:
        return {"process": "closed_loop", "concurrency": load.count("concurrency")}
    if "requested_rate" not in load:
        # A summary of several loads: the ``config.yaml`` in its folder lists the stages.
        planned = None if config is None else config.find("load")
        stages = None if planned is None else planned.values.get("stages")
        if isinstance(stages, list) and len(stages) > 1:
            rule = f"mixes {len(stages)} stages of different loads"
            remedy = "read stage_0_lifecycle_metrics.json beside it, and so on"
            raise TraceError(rule, file=fields.file, remedy=remedy)
        return {}
    rate = load.number("requested_rate", "requests/s")
    if rate <= 0:
        raise load.error("requested_rate", "must be > 0")
    sent = load.optional("achieved_rate", "requests/s")
    if sent is not None and 0 < sent < (1.0 - BEHIND) * rate:
        notes.append(f"the client sent {sent:.4g} requests/s of the {rate:.4g} asked for: simulated at what it sent")
        rate = sent
    kind = "" if config is None else config.text_at(("load", "type"))
    return {"process": kind, "rate": rate} if kind in ("poisson", "constant") else {"rate": rate}
