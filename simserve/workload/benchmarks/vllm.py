"""Results of ``vllm bench serve``, plain or with ``--save-detailed``, of every version since 0.6.

Definitions (vllm/benchmarks/serve.py, ``calculate_metrics``, and before 0.9 benchmarks/benchmark_serving.py): TPOT is
``(latency - ttft) / (output_len - 1)`` of each request with more than one token; ITL pools every gap between chunks.
Summary figures are in ms, the lists of a detailed result in seconds. Versions differ in keys that are not read here:
until 0.8.5 goodput stands under ``"request_goodput:"``; ``failed`` and ``max_concurrent_requests`` came by 0.12,
``start_times`` by 0.17.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from simserve.errors import TraceError
from simserve.workload.benchmarks.result import BenchResult, statistics
from simserve.workload.fields import Fields
from simserve.workload.traces.vllm_bench import requests_of

DEFINITIONS = {
    "ttft": "ttft_ms: first chunk - send",
    "tpot": "tpot_ms: (latency - ttft) / (output tokens - 1) a request",
    "itl": "itl_ms: gaps between chunks, pooled over requests",
    "e2e": "e2el_ms: last chunk - send",
}
_KEYS = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2el": "e2e"}
_STATISTICS = {"mean": "mean", "median": "median", "p50": "median", "p90": "p90", "p95": "p95", "p99": "p99"}
_ENGINES = {
    "vllm": "vllm",
    "sglang": "sglang",
    "tensorrt": "tensorrt-llm",
    "trt": "tensorrt-llm",
    "lmdeploy": "lmdeploy",
    "tgi": "tgi",
    "llama.cpp": "llama.cpp",
}
"""Beginning of a client's name -> the engine that it talks to; a client of the OpenAI protocol identifies none."""
AGREEMENT = 0.02
"""Share by which a summary may differ from the lists of the same file, because of failed requests and rounding."""


def is_vllm(result: Mapping[str, Any]) -> bool:
    """Return whether a JSON object is a result of ``vllm bench serve``."""
    has_tokens = "total_input_tokens" in result or "input_lens" in result
    return "completed" in result and has_tokens and "mean_e2e_latency_ms" not in result


def read_vllm(fields: Fields, label: str) -> BenchResult:
    """Return one result.

    Raises:
        TraceError: A key is missing or wrong, or the summary contradicts the lists.
    """
    num_requests = fields.count("completed")
    measured = summary_figures(fields, _KEYS)
    arrivals = arrivals_of(fields)
    notes = load_notes(fields, arrivals)
    times = None
    if not fields.values.get("input_lens"):
        totals = [fields.number(key, "tokens") for key in ("total_input_tokens", "total_output_tokens")]
        prompts, outputs = (np.array([total / num_requests]) for total in totals)
    else:
        trace = requests_of(fields.values, Path(fields.file))
        prompts, outputs = trace.prompt_tokens.astype(np.float64), trace.output_tokens.astype(np.float64)
        times = trace.arrival_time if trace.has_arrival_times else None
        num_requests = len(prompts)
        if fields.values.get("ttfts") and fields.values.get("itls"):
            measured = _detailed(fields, measured, notes)
    return BenchResult(
        label=label,
        file=fields.file,
        tool="vllm bench serve",
        arrivals=arrivals,
        num_requests=num_requests,
        prompt_tokens=prompts,
        output_tokens=outputs,
        arrival_time=times,
        measured=measured,
        definitions=DEFINITIONS,
        notes=notes,
        length_range=_length_range(fields),
        **server_of(fields),
    )


def _length_range(fields: Fields) -> tuple[float, float] | None:
    """Return the bounds of random lengths over their mean, if the file was saved with its range ratio.

    ``--metadata random_range_ratio=0.3`` saves it; lengths lie between 1 - ratio and 1 + ratio times the requested one
    (vllm/benchmarks/datasets.py, RandomDataset). A ratio of 1, the default before 0.8.5, made them equal.
    """
    if "random_range_ratio" not in fields:
        return None
    ratio = share_at(fields, "random_range_ratio")
    return (1.0 - ratio, 1.0 + ratio) if ratio < 1.0 else (1.0, 1.0)


def share_at(fields: Fields, name: str) -> float:
    """Return a number from 0 to 1, which metadata contain as text.

    Raises:
        TraceError: It is not such a number.
    """
    try:
        value = float(fields.values[name])
    except (TypeError, ValueError):
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise fields.error(name, "must be a number from 0 to 1")
    return value


def server_of(fields: Fields) -> dict[str, Any]:
    """Return what a flat result says about the run besides its figures, by the names of `BenchResult`."""
    failed = fields.optional("failed", "a number of requests")
    backend = fields.text("backend")
    day = re.match(r"(\d{4})-?(\d{2})-?(\d{2})", fields.text("date"))  # of a timestamp such as 20261123-101500
    return {
        "model": fields.text_at(("model_id",), ("server_info", "model_path")),
        "engine": next((engine for start, engine in _ENGINES.items() if backend.startswith(start)), ""),
        "duration": fields.optional("duration", "seconds"),
        "num_failed": None if failed is None else int(failed),
        "date": "-".join(day.groups()) if day else "",
    }


def summary_figures(fields: Fields, keys: Mapping[str, str]) -> dict[str, float]:
    """Return the figures of a flat result: ``mean_ttft_ms`` ... in seconds, and throughputs.

    Args:
        keys: The tool's name of a latency -> the name in `FIGURES`.
    """
    found: dict[str, float] = {}
    for theirs, ours in keys.items():
        for statistic, name in _STATISTICS.items():
            value = fields.optional(f"{statistic}_{theirs}_ms", "a number of ms")
            if value:  # 0: nothing was streamed, or no request had two tokens
                found[f"{name}_{ours}"] = value * 1e-3
    for rate in ("output_throughput", "request_throughput"):
        value = fields.optional(rate)
        if value is not None:
            found[rate] = value
    return found


def arrivals_of(fields: Fields) -> dict[str, Any]:
    """Return how a flat result's requests were sent: at a rate, by a number of clients, or all at once.

    Raises:
        TraceError: The rate or the concurrency is invalid.
    """
    rate = fields.values.get("request_rate")
    concurrency = fields.optional("max_concurrency", "a number of clients")
    if rate in (None, "inf") or rate == float("inf"):
        if concurrency is None:
            return {"process": "all_at_once"}
        return {"process": "closed_loop", "concurrency": fields.count("max_concurrency")}
    requests_per_second = fields.number("request_rate", 'requests/s or "inf"')
    if requests_per_second <= 0:
        raise fields.error("request_rate", "must be > 0")
    burstiness = fields.optional("burstiness")
    if burstiness is None or burstiness == 1.0:
        return {"process": "poisson", "rate": requests_per_second}
    if burstiness <= 0:
        raise fields.error("burstiness", "must be > 0")
    return {"process": "gamma", "rate": requests_per_second, "cv": burstiness**-0.5}


def load_notes(fields: Fields, arrivals: Mapping[str, Any]) -> list[str]:
    """Return a note if the load is not recorded, or if requests in flight were limited in addition to a rate."""
    bound = fields.values.get("max_concurrency")
    if bound is None and "request_rate" not in fields:
        return ["the result does not say how requests were sent: all at once is taken"]
    if bound is None or "rate" not in arrivals:
        return []
    return [f"at most {bound} requests were in flight; the simulation sends at the rate without that bound"]


def _detailed(fields: Fields, summary: Mapping[str, float], notes: list[str]) -> dict[str, float]:
    """Return the figures computed from the lists of a detailed result; the summary must agree with them."""
    ttft, outputs = fields.numbers("ttfts"), fields.numbers("output_lens")
    gaps = fields.values["itls"]
    if not isinstance(gaps, list) or not all(isinstance(each, list) for each in gaps):
        raise TraceError("must be a list of lists of seconds", file=fields.file, key="itls")
    if not len(ttft) == len(outputs) == len(gaps):
        rule = f"hold {len(ttft)}, {len(gaps)} and {len(outputs)} requests"
        raise TraceError(rule, file=fields.file, key="ttfts, itls, output_lens")
    served = outputs >= 1
    decode = np.array([float(sum(each)) for each in gaps])
    tpot = np.where(served & (outputs > 1), decode / np.maximum(outputs - 1.0, 1.0), np.nan)
    found = statistics(ttft[served], "ttft") | statistics(tpot, "tpot") | statistics((ttft + decode)[served], "e2e")
    chunks = np.array([len(each) for each in gaps], dtype=np.float64)
    if np.any(chunks[served] < outputs[served] - 1.0):
        notes.append("ITL is between chunks of several tokens here: left out")
    else:
        found |= statistics(np.array([gap for each in gaps for gap in each], dtype=np.float64), "itl")
    for figure in ("mean_ttft", "mean_tpot"):
        stated, computed = summary.get(figure), found.get(figure)
        if stated and computed and abs(stated / computed - 1.0) > AGREEMENT:
            raise fields.error(
                f"{figure}_ms",
                f"contradicts the lists of the file, which give {computed * 1e3:.5g} ms",
                "the summary and the lists are of different runs or definitions",
            )
    return found | {key: value for key, value in summary.items() if key.endswith("throughput")}
