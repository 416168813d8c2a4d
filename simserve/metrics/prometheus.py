"""`metrics.prom`: what vLLM's ``/metrics`` would say at the end of a run, in Prometheus' text format 0.0.4.

Names, meanings and buckets are those of vLLM 0.33 (``vllm/v1/metrics/loggers.py``), so that dashboards and alerts made
for it can read a simulated run. Counters and histograms cover the whole run and all replicas, under ``engine="all"``;
gauges are values after the last event. node_exporter's textfile collector reads files that end in ``.prom``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.metrics.latency import request_latencies
from simserve.metrics.result import RunResult
from simserve.sim.records import COMPLETED, UNFINISHED, Histogram

PROMETHEUS_FILE = "metrics.prom"

TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0),
)
REQUEST_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
"""Upper bounds of vLLM's histograms, seconds."""
PREEMPTION_BUCKETS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)

Floats = NDArray[np.float64]
Labels = Mapping[str, str]
Measure = tuple[str, str, tuple[float, ...], NDArray[Any]]


def write_prometheus(result: RunResult, folder: Path) -> Path:
    """Write ``metrics.prom`` into ``folder`` and return its path; the same result gives the same bytes.

    Raises:
        OSError: The file cannot be written.
    """
    path = folder / PROMETHEUS_FILE
    path.write_text(prometheus_text(result), encoding="utf-8", newline="\n")
    return path


def prometheus_text(result: RunResult) -> str:
    """Return the snapshot of a run; with several replications, that of the first."""
    labels = {"model_name": str(result.scenario["model"]), "engine": "all"}
    lines = [*_gauges(result, labels), *_counters(result, labels), *_histograms(result, labels)]
    return "\n".join(lines) + "\n"


def _gauges(result: RunResult, labels: Labels) -> Iterator[str]:
    records, totals = result.simulation.records, result.simulation.totals
    is_left = (records.status == UNFINISHED) & np.isfinite(records.admitted_time)
    is_running = is_left & np.isfinite(records.scheduled_time)
    usage = float(totals.series.kv_usage[-1]) if is_left.any() else 0.0
    yield from _family("num_requests_running", "gauge", "Requests with a seat.", labels, is_running.sum())
    waiting = (is_left & ~is_running).sum()
    yield from _family("num_requests_waiting", "gauge", "Requests in the queue.", labels, waiting)
    name = "num_requests_waiting_by_reason"
    yield from _head(name, "gauge", "Requests in the queue, by what they wait for.")
    for reason, count in (("capacity", waiting), ("deferred", 0)):
        yield _sample(name, {**labels, "reason": reason}, count)
    yield from _family("kv_cache_usage_perc", "gauge", "Share of the KV cache in use, 0 to 1.", labels, usage)
    engine = result.summary["simserve"]["engine_resolved"]
    about = {
        "block_size": engine.get("block_size"),
        "cache_dtype": result.scenario["deployment"].get("kv_cache_dtype", "auto"),
        "enable_prefix_caching": engine.get("enable_prefix_caching"),
        "gpu_memory_utilization": engine.get("gpu_memory_utilization"),
        "num_gpu_blocks": result.summary["simserve"]["memory"]["num_kv_blocks"],
    }
    all_labels = {**labels, **{name: str(value) for name, value in about.items()}}
    yield from _family("cache_config_info", "gauge", "The KV cache; its figures are labels.", all_labels, 1)


def _counters(result: RunResult, labels: Labels) -> Iterator[str]:
    records = result.simulation.records
    done, scheduled = records.status == COMPLETED, np.isfinite(records.scheduled_time)
    cut = int((done & records.is_truncated).sum())
    cached, prompts = records.cached_tokens[scheduled].sum(), records.prompt_tokens[scheduled].sum()
    caches = result.summary["simserve"]["engine_resolved"].get("enable_prefix_caching") is not False
    counts: Sequence[tuple[str, str, float]] = (
        ("prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.", prompts * caches),
        ("prefix_cache_hits_total", "Prompt tokens found in the prefix cache.", cached),
        ("num_preemptions_total", "Times that a request lost its KV cache.", records.num_preemptions.sum()),
        ("prompt_tokens_total", "Prompt tokens of requests.", prompts),
        ("prompt_tokens_cached_total", "Prompt tokens that were cached.", cached),
        ("generation_tokens_total", "Tokens generated.", records.output_tokens.sum()),
    )
    for name, about, value in counts:
        yield from _family(name, "counter", about, labels, value)
    name = "request_success_total"
    yield from _head(name, "counter", "Requests that were completed.")
    for reason, count in (("stop", int(done.sum()) - cut), ("length", cut)):
        yield _sample(name, {**labels, "finished_reason": reason}, count)


def _histograms(result: RunResult, labels: Labels) -> Iterator[str]:
    done = result.simulation.records.status == COMPLETED
    for name, about, bounds, values in (*_times(result), *_sizes(result)):
        found = values[done].astype(np.float64)
        counts = np.searchsorted(np.sort(found), bounds, side="right").tolist()
        yield from _histogram(
            name, about, labels, {**dict(zip(bounds, counts, strict=True)), math.inf: len(found)}, float(found.sum())
        )
    gaps = result.simulation.totals.itl
    counts = {bound: round(gaps_up_to(gaps, bound)) for bound in TOKEN_BUCKETS}
    about = "Seconds between two tokens of a request."
    yield from _histogram(
        "inter_token_latency_seconds", about, labels, {**counts, math.inf: round(gaps.count)}, gaps.total
    )


def _times(result: RunResult) -> Sequence[Measure]:
    """Return the metrics in seconds: name, meaning, upper bounds, one value a request."""
    records = result.simulation.records
    latencies = request_latencies(records)
    tpot = np.nan_to_num(np.where(records.output_tokens > 1, latencies.tpot, 0.0))
    begin, first, end = records.scheduled_time, records.first_token_time, records.finish_time
    a_token = "Seconds a token after the first, one a request; 0 for a single token."
    return (
        ("time_to_first_token_seconds", "Seconds to the first token.", TTFT_BUCKETS, latencies.ttft),
        ("request_time_per_output_token_seconds", a_token, TOKEN_BUCKETS, tpot),
        ("e2e_request_latency_seconds", "Seconds from arrival to the last token.", REQUEST_BUCKETS, latencies.e2e),
        ("request_queue_time_seconds", "Seconds in the queue.", REQUEST_BUCKETS, begin - records.admitted_time),
        (
            "request_inference_time_seconds",
            "Seconds from the first step to the last token.",
            REQUEST_BUCKETS,
            end - begin,
        ),
        (
            "request_prefill_time_seconds",
            "Seconds from the first step to the first token.",
            REQUEST_BUCKETS,
            first - begin,
        ),
        ("request_decode_time_seconds", "Seconds from the first token to the last.", REQUEST_BUCKETS, end - first),
    )


def _sizes(result: RunResult) -> Sequence[Measure]:
    """Return the counted metrics: name, meaning, upper bounds, one value a request."""
    records = result.simulation.records
    longest = int(result.summary["simserve"]["engine_resolved"].get("max_model_len") or records.prompt_tokens.max())
    sizes = one_two_five(longest)
    computed = records.prompt_tokens - records.cached_tokens
    return (
        ("request_prompt_tokens", "Prompt tokens of requests.", sizes, records.prompt_tokens),
        ("request_generation_tokens", "Tokens generated.", sizes, records.output_tokens),
        ("request_prefill_kv_computed_tokens", "Prompt tokens that were not cached.", sizes, computed),
        ("request_num_preemptions", "Times a request lost its KV cache.", PREEMPTION_BUCKETS, records.num_preemptions),
    )


def one_two_five(most: int) -> tuple[float, ...]:
    """Return 1, 2, 5, 10, 20, ... up to ``most``, the buckets of vLLM's histograms of tokens."""
    decades = range(math.ceil(math.log10(max(most, 1))) + 1)
    return tuple(float(step * 10**decade) for decade in decades for step in (1, 2, 5) if step * 10**decade <= most)


def gaps_up_to(histogram: Histogram, seconds: float) -> float:
    """Return the weight of the durations up to ``seconds``, exact except for part of the one bin that it cuts."""
    if not histogram.count:
        return 0.0
    if seconds >= histogram.maximum:
        return histogram.count
    cumulative = np.cumsum(histogram.counts)
    edges = histogram.upper_edges()
    return float(np.interp(seconds, np.concatenate(([0.0], edges)), np.concatenate(([0.0], cumulative))))


def _histogram(name: str, about: str, labels: Labels, counts: Mapping[float, int], total: float) -> Iterator[str]:
    """Yield a histogram: for each upper bound the number of values up to it, infinity last, and their sum."""
    yield from _head(name, "histogram", about)
    for bound, count in counts.items():
        yield _sample(f"{name}_bucket", {**labels, "le": "+Inf" if math.isinf(bound) else repr(bound)}, count)
    yield _sample(f"{name}_sum", labels, total)
    yield _sample(f"{name}_count", labels, counts[math.inf])


def _family(name: str, kind: str, about: str, labels: Labels, value: float) -> Iterator[str]:
    yield from _head(name, kind, about)
    yield _sample(name, labels, value)


def _head(name: str, kind: str, about: str) -> Iterator[str]:
    yield f"# HELP vllm:{name} {about}"
    yield f"# TYPE vllm:{name} {kind}"


def _sample(name: str, labels: Labels, value: float) -> str:
    escaped = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
    shown = ",".join(f'{label}="{text.translate(escaped)}"' for label, text in labels.items())
    return f"vllm:{name}{{{shown}}} {float(value)!r}"
