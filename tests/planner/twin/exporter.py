"""An engine's /metrics written from the requests of a run, scrape by scrape; knows nothing of how they are read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simserve.api import RunResult

LENGTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 40.0)


def page_at(result: RunResult, at: float, model: str = "llama-3.1-8b") -> str:
    """Return vLLM's page at a time of a run, seconds from its start."""
    records = result.simulation.records
    arrived, started = records.arrival_time <= at, records.scheduled_time <= at
    first, done = records.first_token_time <= at, records.finish_time <= at
    rest = records.finish_time - records.first_token_time
    tpot = rest / np.maximum(records.output_tokens - 1, 1)
    label = f'model_name="{model}"'
    lines = [
        f"vllm:num_requests_running{{{label}}} {(started & ~done).sum()}",
        f"vllm:num_requests_waiting{{{label}}} {(arrived & ~started).sum()}",
        f'vllm:request_success_total{{finished_reason="stop",{label}}} {done.sum()}',
        f"vllm:num_preemptions_total{{{label}}} 0",
        f"vllm:prefix_cache_queries_total{{{label}}} {records.prompt_tokens[started].sum()}",
        f"vllm:prefix_cache_hits_total{{{label}}} {records.cached_tokens[started].sum()}",
        f'vllm:cache_config_info{{block_size="16",cache_dtype="auto",enable_prefix_caching="True",{label}}} 1',
    ]
    ttft = records.first_token_time - records.arrival_time
    lines += _histogram("request_prompt_tokens", LENGTHS, records.prompt_tokens[done], label)
    lines += _histogram("request_generation_tokens", LENGTHS, records.output_tokens[done], label)
    lines += _histogram("time_to_first_token_seconds", SECONDS, ttft[first], label)
    lines += _histogram("request_time_per_output_token_seconds", SECONDS, tpot[done], label)
    lines += _histogram(
        "e2e_request_latency_seconds", SECONDS, (records.finish_time - records.arrival_time)[done], label
    )
    return "\n".join(lines) + "\n"


def series(result: RunResult, *, begin: float, end: float, step: float = 15.0, epoch: float = 1_700_000_000.0) -> str:
    """Return scrapes of a run between two of its times."""
    times = np.arange(begin, end + 1e-9, step)
    return "".join(f"# scraped_at {epoch + at:.3f}\n{page_at(result, at)}" for at in times.tolist())


def _histogram(name: str, bounds: Sequence[float], values: np.ndarray, label: str) -> list[str]:
    lines = [f'vllm:{name}_bucket{{le="{bound:g}",{label}}} {(values <= bound).sum()}' for bound in bounds]
    lines += [f'vllm:{name}_bucket{{le="+Inf",{label}}} {len(values)}']
    return [
        *lines,
        f"vllm:{name}_sum{{{label}}} {float(values.sum())!r}",
        f"vllm:{name}_count{{{label}}} {len(values)}",
    ]
