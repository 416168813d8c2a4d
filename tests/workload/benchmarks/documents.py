"""Hand-written results in the documented layout of each tool: one run of 4 requests, 100 tokens in and 11 out.

TTFT 0.1 s, then ten gaps of 20 ms: E2E 0.3 s, TPOT 20 ms, and 27.27 ms a token with the first one.
"""

from __future__ import annotations

from typing import Any

TTFT, TPOT, E2E, TOKENS = 0.1, 0.02, 0.3, 11
NTPOT = E2E / TOKENS


def vllm() -> dict[str, Any]:
    """``vllm bench serve``, 0.12, plain."""
    document: dict[str, Any] = {
        "date": "20251201-120000",
        "endpoint_type": "openai",
        "backend": "openai",
        "label": None,
        "model_id": "meta-llama/Llama-3.1-8B",
        "tokenizer_id": "meta-llama/Llama-3.1-8B",
        "num_prompts": 4,
        "request_rate": 2.0,
        "burstiness": 1.0,
        "max_concurrency": None,
        "duration": 2.0,
        "completed": 4,
        "failed": 0,
        "total_input_tokens": 400,
        "total_output_tokens": 44,
        "request_throughput": 2.0,
        "request_goodput": None,
        "output_throughput": 22.0,
        "total_token_throughput": 222.0,
    }
    for name, seconds in (("ttft", TTFT), ("tpot", TPOT), ("itl", TPOT)):
        document |= {f"{each}_{name}_ms": seconds * 1e3 for each in ("mean", "median", "p99")} | {f"std_{name}_ms": 0.0}
    return document


def vllm_detailed() -> dict[str, Any]:
    """The same of 0.17 with ``--save-detailed``."""
    return vllm() | {
        "start_times": [1000.0, 1000.5, 1001.0, 1001.5],
        "input_lens": [100] * 4,
        "output_lens": [TOKENS] * 4,
        "ttfts": [TTFT] * 4,
        "itls": [[TPOT] * (TOKENS - 1) for _ in range(4)],
        "generated_texts": [""] * 4,
        "errors": [""] * 4,
    }


def vllm_old() -> dict[str, Any]:
    """``benchmark_serving.py`` of 0.6 to 0.8.5: the goodput's key ends in a colon, and nothing counts failures."""
    document = vllm() | {"request_goodput:": None, "request_rate": "inf", "max_concurrency": 4}
    return {key: value for key, value in document.items() if key not in ("failed", "request_goodput", "endpoint_type")}


def sglang() -> dict[str, Any]:
    """SGLang's bench_serving."""
    document: dict[str, Any] = {
        "backend": "sglang",
        "dataset_name": "random",
        "request_rate": float("inf"),
        "max_concurrency": 4,
        "duration": 2.0,
        "completed": 4,
        "total_input_tokens": 400,
        "total_output_tokens": 44,
        "total_output_tokens_retokenized": 44,
        "request_throughput": 2.0,
        "input_throughput": 200.0,
        "output_throughput": 22.0,
        "concurrency": 0.6,
        "accept_length": None,
    }
    for name, seconds in (("ttft", TTFT), ("tpot", TPOT), ("itl", TPOT), ("e2e_latency", E2E)):
        document |= {f"{each}_{name}_ms": seconds * 1e3 for each in ("mean", "median", "p99")}
    return document


def _distribution(value: float) -> dict[str, Any]:
    return {
        "mean": value,
        "median": value,
        "std_dev": 0.0,
        "count": 4,
        "percentiles": {"p50": value, "p90": value, "p95": value, "p99": value},
    }


def guidellm() -> dict[str, Any]:
    """GuideLLM 0.7: two benchmarks of a sweep."""
    metrics = {
        "request_totals": {"successful": 4, "errored": 0, "incomplete": 0, "total": 4},
        "prompt_token_count": {"successful": _distribution(100.0)},
        "output_token_count": {"successful": _distribution(float(TOKENS))},
        "requests_per_second": {"successful": _distribution(2.0)},
        "output_tokens_per_second": {"successful": _distribution(22.0)},
        "time_to_first_token_ms": {"successful": _distribution(TTFT * 1e3)},
        "time_per_output_token_ms": {"successful": _distribution(NTPOT * 1e3)},
        "inter_token_latency_ms": {"successful": _distribution(TPOT * 1e3)},
        "request_latency": {"successful": _distribution(E2E)},
    }
    strategies: list[dict[str, Any]] = [
        {"type_": "constant", "rate": 2.0},
        {"type_": "concurrent", "streams": 4, "max_concurrency": 4},
    ]
    return {
        "metadata": {"version": 2, "guidellm_version": "0.7.2"},
        "config": {"kind": "benchmark"},
        "benchmarks": [
            {"type_": "generative_benchmark", "config": {"strategy": each}, "metrics": metrics, "duration": 2.0}
            for each in strategies
        ],
    }


def aiperf() -> dict[str, Any]:
    """AIPerf 0.13, schema 1.4."""

    def block(value: float, unit: str) -> dict[str, Any]:
        return {"unit": unit, "avg": value, "p50": value, "p90": value, "p95": value, "p99": value, "std": 0.0}

    return {
        "schema_version": "1.4",
        "aiperf_version": "0.13.0",
        "was_cancelled": False,
        "input_config": {"loadgen": {"concurrency": 4, "request_rate": None}},
        "time_to_first_token": block(TTFT * 1e3, "ms"),
        "inter_token_latency": block(TPOT * 1e3, "ms"),
        "inter_chunk_latency": block(TPOT * 1e3, "ms"),
        "request_latency": block(E2E * 1e3, "ms"),
        "input_sequence_length": block(100.0, "tokens"),
        "output_sequence_length": block(float(TOKENS), "tokens"),
        "output_token_throughput": {"unit": "tokens/sec", "avg": 22.0},
        "request_throughput": {"unit": "requests/sec", "avg": 2.0},
        "request_count": {"unit": "requests", "avg": 4.0},
    }


def aiperf_records() -> list[dict[str, Any]]:
    """AIPerf's ``profile_export.jsonl``: four requests, one of the warm-up, one that failed."""

    def record(start: float, phase: str = "profiling", error: dict[str, Any] | None = None) -> dict[str, Any]:
        return {
            "metadata": {"request_start_ns": round(start * 1e9), "benchmark_phase": phase, "was_cancelled": False},
            "metrics": {
                "input_sequence_length": {"value": 100, "unit": "tokens"},
                "output_sequence_length": {"value": TOKENS, "unit": "tokens"},
                "time_to_first_token": {"value": TTFT * 1e3, "unit": "ms"},
                "request_latency": {"value": E2E * 1e3, "unit": "ms"},
            },
            "error": error,
        }

    served = [record(start) for start in (1001.5, 1000.0, 1000.5, 1001.0)]
    return [record(990.0, "warmup"), *served, record(1001.2, error={"code": 500, "type": "x", "message": "y"})]


def inference_perf() -> dict[str, Any]:
    """inference-perf 0.7, ``stage_0_lifecycle_metrics.json``."""

    def block(seconds: float) -> dict[str, float]:
        return {"mean": seconds, "min": seconds, "median": seconds, "p90": seconds, "p95": seconds, "p99": seconds}

    return {
        "benchmark_time_seconds": 2.0,
        "load_summary": {"count": 4, "send_duration": 2.0, "requested_rate": 2.0, "achieved_rate": 2.0},
        "successes": {
            "count": 4,
            "latency": {
                "request_latency": block(E2E),
                "normalized_time_per_output_token": block(NTPOT),
                "time_per_output_token": block(TPOT),
                "time_to_first_token": block(TTFT),
                "inter_token_latency": block(TPOT),
            },
            "throughput": {
                "input_tokens_per_sec": 200.0,
                "output_tokens_per_sec": 22.0,
                "total_tokens_per_sec": 222.0,
                "requests_per_sec": 2.0,
            },
            "prompt_tokens": {"total": 400.0, "cached": 0.0, "uncached": 400.0},
            "output_len": {"mean": float(TOKENS)},
        },
        "failures": {"count": 0},
    }


def llm_d(tool: str = "vllm-benchmark") -> dict[str, Any]:
    """llm-d benchmark report 0.2."""

    def block(value: float, units: str) -> dict[str, Any]:
        return {"units": units, "mean": value, "p50": value, "p90": value, "p95": value, "p99": value}

    latency = {
        "time_to_first_token": block(TTFT * 1e3, "ms"),
        "time_per_output_token": block(TPOT, "s/token"),
        "inter_token_latency": block(TPOT * 1e3, "ms/token"),
        "request_latency": block(E2E, "s"),
    }
    return {
        "version": "0.2",
        "run": {"uid": "1"},
        "scenario": {"load": {"standardized": {"tool": tool, "tool_version": "1", "rate_qps": 2.0}}},
        "results": {
            "request_performance": {
                "aggregate": {
                    "requests": {
                        "total": 5,
                        "failures": 1,
                        "input_length": block(100.0, "count"),
                        "output_length": block(float(TOKENS), "count"),
                    },
                    "latency": latency,
                    "throughput": {
                        "output_token_rate": block(22.0, "tokens/s"),
                        "request_rate": block(2.0, "queries/s"),
                    },
                }
            }
        },
    }


CSV = """label,request_rate,max_concurrency,num_requests,input_len,output_len,mean_ttft_ms,median_ttft_ms,\
mean_tpot_ms,median_tpot_ms,mean_e2el_ms,output_throughput
slow,2.0,,4,100,11,100,100,20,20,300,22
full,,4,4,100,11,100,100,20,,300,22
"""
