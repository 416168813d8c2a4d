"""`metrics.prom`: vLLM's names and buckets, counts of the run, in a form that Prometheus parses."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from simserve import api
from simserve.metrics.prometheus import TOKEN_BUCKETS, gaps_up_to, one_two_five, prometheus_text
from simserve.metrics.result import RunResult
from simserve.sim.records import Histogram

parser = pytest.importorskip("prometheus_client.parser")


@cache
def run(*overrides: str) -> RunResult:
    """Return a run of the chatbot, changed."""
    return api.run(api.load("chatbot", ["workload.num_requests=300", *overrides]))


def families(*overrides: str) -> dict[str, Any]:
    """Return the parsed families of a run, by name."""
    return {each.name: each for each in parser.text_string_to_metric_families(prometheus_text(run(*overrides)))}


def value(family: Any, suffix: str = "", **labels: str) -> float:
    """Return one sample."""
    found = [
        sample.value
        for sample in family.samples
        if sample.name == family.name + suffix and labels.items() <= sample.labels.items()
    ]
    assert len(found) == 1, found
    return float(found[0])


def test_it_is_all_vllm_names_and_kinds() -> None:
    """As its dashboards ask for them."""
    found = families()

    assert {name: found[name].type for name in found if found[name].type != "histogram"} == {
        "vllm:num_requests_running": "gauge",
        "vllm:num_requests_waiting": "gauge",
        "vllm:num_requests_waiting_by_reason": "gauge",
        "vllm:kv_cache_usage_perc": "gauge",
        "vllm:cache_config_info": "gauge",
        "vllm:prefix_cache_queries": "counter",
        "vllm:prefix_cache_hits": "counter",
        "vllm:num_preemptions": "counter",
        "vllm:prompt_tokens": "counter",
        "vllm:prompt_tokens_cached": "counter",
        "vllm:generation_tokens": "counter",
        "vllm:request_success": "counter",
    }
    assert all(sample.labels["model_name"] == "llama-3.1-70b" for each in found.values() for sample in each.samples)


@pytest.mark.parametrize(
    "name",
    [
        "time_to_first_token_seconds",
        "request_time_per_output_token_seconds",
        "e2e_request_latency_seconds",
        "request_queue_time_seconds",
        "request_inference_time_seconds",
        "request_prefill_time_seconds",
        "request_decode_time_seconds",
        "request_prompt_tokens",
        "request_generation_tokens",
        "request_prefill_kv_computed_tokens",
        "request_num_preemptions",
    ],
)
def test_a_histogram_counts_the_completed_requests(name: str) -> None:
    """Buckets rise to the count; the last is everything."""
    family = families()[f"vllm:{name}"]
    buckets = [sample.value for sample in family.samples if sample.name.endswith("_bucket")]

    assert family.type == "histogram"
    assert value(family, "_count") == buckets[-1] == run().summary["completed"] == 300
    assert buckets == sorted(buckets)


def test_sums_are_those_of_the_run() -> None:
    """Means over the whole run, phases that add up, tokens and gaps."""
    found, result = families(), run("run.warmup=none")
    found = families("run.warmup=none")
    sums = {name: value(each, "_sum") for name, each in found.items() if each.type == "histogram"}

    assert sums["vllm:time_to_first_token_seconds"] / 300 == pytest.approx(1e-3 * result.summary["mean_ttft_ms"])
    assert sums["vllm:e2e_request_latency_seconds"] / 300 == pytest.approx(1e-3 * result.summary["mean_e2el_ms"])
    prefill, decode = sums["vllm:request_prefill_time_seconds"], sums["vllm:request_decode_time_seconds"]
    assert prefill + decode == pytest.approx(sums["vllm:request_inference_time_seconds"])
    assert value(found["vllm:generation_tokens"], "_total") == result.summary["total_output_tokens"]
    assert sums["vllm:request_prefill_kv_computed_tokens"] == sums["vllm:request_prompt_tokens"] - value(
        found["vllm:prompt_tokens_cached"], "_total"
    )
    assert sums["vllm:request_num_preemptions"] == value(found["vllm:num_preemptions"], "_total")
    gaps = found["vllm:inter_token_latency_seconds"]
    assert value(gaps, "_count") == result.summary["total_output_tokens"] - 300
    assert value(gaps, "_sum") / value(gaps, "_count") == pytest.approx(1e-3 * result.summary["mean_itl_ms"])


def test_a_quantile_of_the_buckets_is_near_that_of_the_run() -> None:
    """Between the bounds of the bucket that holds it."""
    family, result = families("run.warmup=none")["vllm:time_to_first_token_seconds"], run("run.warmup=none")
    buckets = [
        (float(sample.labels["le"]), sample.value) for sample in family.samples if sample.name.endswith("_bucket")
    ]
    above = next(bound for bound, count in buckets if count >= 0.95 * 300)
    below = max(bound for bound, count in buckets if count < 0.95 * 300)

    assert below <= 1e-3 * result.summary["p95_ttft_ms"] <= above


def test_a_reason_is_given_for_every_end() -> None:
    """Those that the length limit cut ended by length."""
    overrides = ("workload.max_tokens=model_limit", "deployment.engine.max_model_len=1500")
    success, result = families(*overrides)["vllm:request_success"], run(*overrides)
    records = result.simulation.records

    cut = value(success, "_total", finished_reason="length")
    assert cut == (records.is_truncated & (records.status == 0)).sum() > 0
    assert cut + value(success, "_total", finished_reason="stop") == result.summary["completed"]


def test_gaps_up_to_a_bound_are_within_a_bin() -> None:
    """Of durations that are known one by one."""
    durations = np.random.default_rng(1).lognormal(-4, 1, 20_000)
    histogram = Histogram()
    histogram.add(durations, np.ones_like(durations))

    for bound in TOKEN_BUCKETS:
        assert gaps_up_to(histogram, bound) == pytest.approx((durations <= bound).sum(), abs=0.003 * len(durations))
    assert gaps_up_to(histogram, 1e9) == len(durations)
    assert gaps_up_to(Histogram(), 1.0) == 0


def test_token_buckets_end_at_the_longest_sequence() -> None:
    """1, 2, 5 and so on."""
    assert one_two_five(60) == (1, 2, 5, 10, 20, 50)
    assert one_two_five(50) == (1, 2, 5, 10, 20, 50)
    assert one_two_five(1) == (1,)
