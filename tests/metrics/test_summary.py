"""Tests of the summary: its keys, its definitions, and what must hold for any run."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.metrics.summary import summarize
from simserve.sim.records import (
    COMPLETED,
    FAILED,
    PROMPT_TOO_LONG,
    REJECTED,
    TIMED_OUT,
    UNFINISHED,
    RequestRecords,
)
from tests.metrics.builders import (
    make_facts,
    make_histogram,
    make_records,
    make_simulation,
    make_slo,
    make_totals,
    single_server_queue,
)

TOP_LEVEL = [
    "duration",
    "completed",
    "failed",
    "total_input_tokens",
    "total_output_tokens",
    "request_throughput",
    "request_goodput",
    "output_throughput",
    "total_token_throughput",
    *(
        f"{statistic}_{latency}_ms"
        for latency in ("ttft", "tpot", "itl", "e2el")
        for statistic in ("mean", "median", "std", "p50", "p90", "p95", "p99")
    ),
    "simserve",
]
INNER = {
    "warnings": None,
    "version": None,
    "seed": None,
    "scenario_name": None,
    "scenario_hash": None,
    "fidelity": None,
    "fidelity_by_operator": None,
    "expected_error": "basis tpot ttft throughput",
    "engine_resolved": None,
    "formats": "weights weights_source checkpoint kv_cache kv_cache_source pools",
    "load": None,
    "queue_time_ms": "mean median std p50 p90 p95 p99",
    "ntpot_ms": "mean median std p50 p90 p95 p99",
    "stability": None,
    "load_ratio": None,
    "peak_load_ratio": None,
    "finishable_throughput": None,
    "settled": None,
    "bottleneck": "binding explanation step_shares waiting_shares",
    "utilization": "busy mfu mbu",
    "kv": "num_blocks usage_mean usage_peak internal_waste external_waste prefix_hit_rate preemptions "
    "gpu_hit_rate offload_hit_rate tiers",
    "window": "start_s end_s requests",
    "slo": "attainment by_metric",
    "classes": None,
    "cost": "usd_per_hour usd_per_million_output_tokens usd_per_million_tokens usd_per_request "
    "tokens_per_usd requests_per_usd gpu_hour_usd gpu_hour_source",
    "energy": "watts_per_gpu encoder_watts watts_mean joules_per_token joules_per_output_token kwh_per_million_tokens "
    "grams_co2_per_thousand_tokens electricity_usd_per_hour pue host_watts_per_gpu carbon_g_per_kwh "
    "electricity_usd_per_kwh",
    "steps": "count mean_batch seconds_by_part seconds_by_operator",
    "speculation": "method draft_model num_speculative_tokens num_drafts num_draft_tokens num_accepted_tokens "
    "acceptance_rate mean_acceptance_length expected_acceptance_length draft_seconds mean_batch decode_speedup "
    "break_even_batch",
    "reasoning": "ttfvt_ms thinking_tokens visible_tokens thinking_share num_without_answer "
    "usd_per_million_visible_tokens",
    "images": (
        "requests images tokens token_share mean_preprocess_ms mean_encoder_ms mean_encoder_wait_ms mean_transfer_ms "
        "encoder_utilization mean_encoders peak_encoders ttft_share"
    ),
    "audio": (
        "requests recordings tokens token_share mean_preprocess_ms mean_encoder_ms mean_encoder_wait_ms "
        "mean_transfer_ms encoder_utilization mean_encoders peak_encoders ttft_share"
    ),
    "confidence_intervals": None,
    "prediction_interval": "level basis metrics queues",
    "pools": None,
    "transfers": "count link_seconds waited_seconds stalled_seconds",
    "regions": None,
    "offload": "num_blocks peak_usage loaded_bytes written_bytes load_seconds",
    "loras": "num_adapters adapters_used swaps disk_loads hit_rate load_seconds step_seconds busy_share",
    "streaming": "events tokens_per_event api_server_busy mean_event_delay_ms",
    "overflow": "api requests share usd_per_hour limited p95_ttft_ms",
    "response_cache": "requests hit_share by_class output_tokens asked_first expired",
    "asked_again": "requests share discarded_output_tokens",
    "fairness": None,
    "users": "users clients request_rate waiting waiting_share pause_s requests_per_user_hour",
    "tasks": "begun finished failed cancelled cancelled_tokens cancelled_usd calls_per_task task_throughput "
    "mean_makespan_s p50_makespan_s p90_makespan_s "
    "p95_makespan_s p99_makespan_s mean_model_s mean_tool_s model_share input_tokens_per_task "
    "output_tokens_per_task usd_per_task attainment",
    "rounds": "begun finished mean_round_s max_round_s mean_half_s tail_share generating_share usd_per_round",
    "replicas": "mean peak launched gpu_hours timeline killed replaced updates",
    "requests": "submitted completed rejected timed_out failed unfinished truncated resent",
    "rejected": "by_reason refusals",
    "memory": "fits total_bytes usable_bytes weights_bytes draft_weights_bytes states_bytes lora_bytes kv_bytes "
    "activation_bytes non_torch_bytes cuda_graph_bytes kv_bytes_per_token draft_kv_bytes_per_token num_kv_blocks "
    "block_size max_concurrent_full_length longest_sequence shortage_bytes host_bytes",
    "quality": None,
    "thresholds": None,
}


def assert_complete(summary: dict[str, Any]) -> None:
    """Check that every key of DESIGN section 9 is there, in order, and that JSON can hold the values."""
    assert list(summary) == TOP_LEVEL
    assert list(summary["simserve"]) == list(INNER)
    for key, names in INNER.items():
        if names is not None:
            assert list(summary["simserve"][key]) == names.split()
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary


def empty_totals() -> Any:
    """Return the sums of a run in which nothing happened."""
    names = ("weights", "kv", "compute", "communication", "host")
    return make_totals(
        num_steps=0,
        sequence_steps=0.0,
        busy_seconds=0.0,
        seconds_by_part=dict.fromkeys(names, 0.0),
        flops=0.0,
        bytes=0.0,
        kv_capacity_tokens=0.0,
        kv_reserved_token_seconds=0.0,
        kv_held_token_seconds=0.0,
        kv_unusable_token_seconds=0.0,
        kv_peak_share=0.0,
        itl=make_histogram([]),
    )


def test_every_key_is_there() -> None:
    """The keys are public API; a run with an SLO and a price has them all."""
    simulation = make_simulation(make_records([0.0, 1.0]))

    assert_complete(summarize(simulation, make_facts(slo=make_slo(1.0, 1.0, 5.0))))


@pytest.mark.parametrize("count", [0, 3])
def test_every_key_is_there_when_nothing_was_completed(count: int) -> None:
    """What is undefined is null: no request at all, or none that was answered."""
    records = make_records(np.arange(count), ttft=np.nan, e2e=np.nan, wait=np.nan, status=[REJECTED] * count)
    simulation = make_simulation(records, empty_totals(), end_time=0.0)

    summary = summarize(simulation, make_facts(slo=make_slo(1.0), gpu_hour_usd=None))

    assert_complete(summary)
    assert summary["completed"] == 0
    assert summary["mean_ttft_ms"] is None
    assert summary["p99_itl_ms"] is None
    assert summary["simserve"]["utilization"] == {"busy": None, "mfu": None, "mbu": None}
    assert summary["simserve"]["slo"]["attainment"] == (0.0 if count else None)
    assert summary["simserve"]["bottleneck"]["binding"] == "none"


def test_figures_of_a_run_by_hand() -> None:
    """Two requests on one replica, ten seconds, two GPUs at three dollars."""
    records = make_records([0.0, 2.0], ttft=[1.0, 2.0], e2e=[5.0, 8.0], cached_tokens=[5, 0])

    summary = summarize(make_simulation(records), make_facts(slo=make_slo(ttft=1.0)))

    assert (summary["duration"], summary["completed"], summary["failed"]) == (10.0, 2, 0)
    assert (summary["total_input_tokens"], summary["total_output_tokens"]) == (20, 10)
    assert (summary["request_throughput"], summary["request_goodput"]) == (0.2, 0.1)
    assert (summary["output_throughput"], summary["total_token_throughput"]) == (1.0, 3.0)
    assert (summary["mean_ttft_ms"], summary["mean_e2el_ms"]) == (1500.0, 6500.0)
    assert summary["mean_tpot_ms"] == pytest.approx(1250.0)
    inner = summary["simserve"]
    assert inner["utilization"] == pytest.approx({"busy": 0.2, "mfu": 0.5, "mbu": 0.75})
    assert inner["kv"].pop("tiers") == []
    assert inner["kv"] == pytest.approx(
        {
            "num_blocks": 3125,
            "usage_mean": 0.1,
            "usage_peak": 0.75,
            "internal_waste": 0.2,
            "external_waste": 0.01,
            "prefix_hit_rate": 0.25,
            "preemptions": 0,
            "gpu_hit_rate": 0.25,
            "offload_hit_rate": None,
        }
    )
    assert inner["slo"] == {"attainment": 0.5, "by_metric": {"ttft": 0.5, "tpot": None, "e2e": None}}
    assert inner["window"] == {"start_s": 0.0, "end_s": 10.0, "requests": 2}
    assert inner["cost"]["usd_per_request"] == pytest.approx(6 / 3600 / 0.2)
    assert inner["steps"]["mean_batch"] == 2.5
    assert inner["load"] == "open"


def test_lost_requests_are_counted_by_status_and_reason() -> None:
    """Submitted = completed + rejected + timed out + failed + unfinished; those never sent are not in it."""
    status = [COMPLETED, FAILED, REJECTED, TIMED_OUT, UNFINISHED, UNFINISHED]
    records = make_records(
        [0.0, 1.0, 2.0, 3.0, 4.0, np.nan],
        status=status,
        reason=[0, PROMPT_TOO_LONG, 0, 0, 0, 0],
        is_truncated=[True, False, False, False, False, False],
    )

    summary = summarize(make_simulation(records, end_time=20.0), make_facts())

    assert summary["simserve"]["requests"] == {
        "submitted": 5,
        "completed": 1,
        "rejected": 1,
        "timed_out": 1,
        "failed": 1,
        "unfinished": 1,
        "truncated": 1,
        "resent": 0,
    }
    assert summary["failed"] == 3
    by_reason = summary["simserve"]["rejected"]["by_reason"]
    assert {reason: count for reason, count in by_reason.items() if count} == {
        "prompt_too_long": 1,
        "rejected": 1,
        "timed_out": 1,
    }


def test_a_prefix_cache_that_is_off_has_no_hit_rate() -> None:
    """Off is undefined, on without a hit is 0."""
    simulation = make_simulation(make_records([0.0]))

    off = summarize(simulation, make_facts(engine_resolved={"enable_prefix_caching": False, "max_num_seqs": 256}))

    assert off["simserve"]["kv"]["prefix_hit_rate"] is None
    assert summarize(simulation, make_facts())["simserve"]["kv"]["prefix_hit_rate"] == 0.0


def test_an_overloaded_run_is_reported_whole() -> None:
    """It has no steady state: warm-up is not cut although arrivals are stationary."""
    records = single_server_queue(load=1.5, num_requests=2000, seed=1)

    summary = summarize(make_simulation(records, is_stationary=True), make_facts())

    assert summary["simserve"]["stability"] == "overloaded"
    assert summary["simserve"]["window"]["requests"] == 2000
    assert summary["request_throughput"] == pytest.approx(1.0, rel=0.1)


def test_thresholds_are_judged() -> None:
    """On the figures of the window."""
    facts = make_facts(thresholds={"ttft_ms": ["p(95)<500"], "completed": ["value>=2"], "usd_per_hour": ["value==6"]})

    summary = summarize(make_simulation(make_records([0.0, 1.0])), facts)

    assert [result["ok"] for result in summary["simserve"]["thresholds"]] == [False, True, True]
    assert summary["simserve"]["thresholds"][0]["value"] == 1000.0


@st.composite
def any_records(draw: st.DrawFn) -> RequestRecords:
    """Return up to 40 requests of any fate with times in order."""
    count = draw(st.integers(0, 40))
    columns = [
        np.array(draw(st.lists(st.floats(0, 100), min_size=count, max_size=count)), dtype=float) for _ in range(4)
    ]
    status = np.array(draw(st.lists(st.integers(0, 4), min_size=count, max_size=count)), dtype=np.int8)
    tokens = np.array(draw(st.lists(st.integers(1, 9), min_size=count, max_size=count)), dtype=np.int64)
    wait, ttft, e2e = np.cumsum(columns[:3], axis=0)
    gone = status != COMPLETED
    ttft[gone], e2e[gone] = np.nan, np.nan
    return make_records(
        np.sort(columns[3]),
        wait=np.where(gone, np.nan, wait),
        ttft=ttft,
        e2e=e2e,
        status=status,
        output_tokens=tokens,
        itl_max=np.where(tokens > 1, 1.0, np.nan),
    )


@settings(max_examples=60, deadline=None)
@given(
    records=any_records(),
    is_open=st.booleans(),
    warmup=st.sampled_from(["auto", "none", 20.0]),
    slo=st.builds(make_slo, *(st.none() | st.floats(0, 200) for _ in range(3))),
)
def test_what_holds_for_any_run(records: RequestRecords, is_open: bool, warmup: str | float, slo: Any) -> None:
    """Shares are shares, goodput is no more than throughput, E2E no less than TTFT, percentiles ascend."""
    simulation = make_simulation(records, is_open_loop=is_open, is_stationary=is_open, end_time=500.0)

    summary = summarize(simulation, make_facts(slo=slo, warmup=warmup))

    assert_complete(summary)
    attained = summary["simserve"]["slo"]["attainment"]
    assert attained is None or 0 <= attained <= 1
    if summary["request_throughput"] is not None:
        assert 0 <= summary["request_goodput"] <= summary["request_throughput"]
    for latency in ("ttft_ms", "tpot_ms", "itl_ms", "e2el_ms"):
        ascending = [summary[f"{name}_{latency}"] for name in ("p50", "p90", "p95", "p99")]
        assert ascending[0] is None or ascending == sorted(ascending)
    for name in ("mean", "median", "p99"):
        ttft, e2e = summary[f"{name}_ttft_ms"], summary[f"{name}_e2el_ms"]
        assert (ttft is None and e2e is None) or ttft <= e2e * (1 + 1e-12)
    counts = summary["simserve"]["requests"]
    assert counts["submitted"] == sum(
        counts[name] for name in ("completed", "rejected", "timed_out", "failed", "unfinished")
    )
    assert not any(isinstance(value, float) and math.isnan(value) for value in summary.values())
