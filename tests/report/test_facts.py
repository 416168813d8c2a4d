"""The figures of a run in sentences: units, denominators, and which figure stands where."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from simserve.report import facts
from simserve.report.kinds import reasoning_lines


def result_of(simserve: dict[str, Any], **summary: Any) -> Any:
    """Return a run with such a summary."""
    return SimpleNamespace(summary={"simserve": simserve, **summary}, scenario={"deployment": {}})


def test_gpus_on_average_are_gpu_hours_over_the_hours_of_the_run() -> None:
    """10.5 GPU-hours in two hours; a fleet that never changed has its own number."""
    changing, steady = ({"replicas": {"timeline": [{}] * count, "gpu_hours": 10.5}} for count in (3, 1))

    assert facts.gpus_text(result_of(changing, duration=7200.0), 4) == "5.25 GPUs on average"
    assert facts.gpus_text(result_of(steady, duration=7200.0), 4) == "4 GPUs"


def test_a_lost_replica_is_paid_for() -> None:
    """Its fleet changed, and kept its number of GPUs: "4.00 GPUs on average" said neither."""
    lost = {"replicas": {"timeline": [{}] * 3, "gpu_hours": 8.0}}

    assert facts.gpus_text(result_of(lost, duration=7200.0), 4) == "4 GPUs"


@pytest.mark.parametrize(
    ("count", "said"),
    [(2, "steps (rate 5.00 for 30 s then 6.00 for 30 s)"), (50, "steps (rate 5.00 to 54.0 in 50 steps)")],
)
def test_many_steps_are_told_by_their_range(count: int, said: str) -> None:
    """Fifty of them, as metrics give, filled seven lines of the report."""
    steps = [{"rate": 5.0 + place, "duration": "30 s"} for place in range(count)]

    assert facts._process({"arrivals": {"process": "steps", "steps": steps}}, "") == said
    assert ("in 6 steps" in facts._process({"arrivals": {"process": "steps", "steps": steps[:6]}}, "")) is False


def test_a_scaled_fleet_names_the_gpus_of_a_replica() -> None:
    """Two replicas of four GPUs at first: one to five of four."""
    scaling = {"min_replicas": 1, "max_replicas": 5}
    deployment = {"hardware": "l4-24gb", "replicas": 2, "tensor_parallel_size": 4, "autoscaling": scaling}

    assert facts.fleet_title({"model": "m", "deployment": deployment}) == "m on 1 to 5 replicas of 4 x l4-24gb, TP 4"
    fixed = {key: value for key, value in deployment.items() if key != "autoscaling"}
    assert facts.fleet_title({"model": "m", "deployment": fixed}) == "m on 8 x l4-24gb, 2 replicas of TP 4"
    boxes = {"model": "m", "deployment": {**fixed, "replicas": 1, "gpus_per_node": 2}}
    assert facts.fleet_title(boxes) == "m on 4 x l4-24gb, TP 4, nodes of 2"


def test_attempts_are_requests_and_what_clients_sent_again() -> None:
    """100 requests and 20 more tries: 30 of 120 attempts are refused."""
    simserve = {
        "rejected": {"refusals": {"queue_full": 25, "rate_limit": 5}},
        "requests": {"submitted": 100, "resent": 20},
    }

    assert facts.admission_lines(result_of(simserve)) == [
        "30 of 120 attempts refused: queue full 25 and rate limit 5",
        "clients sent 20 requests again: 1.200 attempts a request",
    ]


def test_times_of_transfers_are_those_of_each_and_what_prefill_lost_is_in_all() -> None:
    """Four of them: 2 s on the link and 1 s before it, and half a second of standing still."""
    transfers = {"count": 4, "link_seconds": 2.0, "waited_seconds": 1.0, "stalled_seconds": 0.5}

    (line,) = facts.pool_lines(result_of({"pools": {}, "transfers": transfers}))

    assert line == (
        "4 KV caches handed over, 500 ms on the link each after 250 ms of waiting for it; prefill stood still 500 ms "
        "in all"
    )


def test_blocks_that_were_swapped_are_bytes_of_their_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten blocks of 16 tokens with 131,072 bytes each are 20.97 MB."""
    monkeypatch.setattr(facts, "requests_in_kv", lambda _simulation: None)
    monkeypatch.setattr(facts, "_offload_lines", lambda _result: [])
    monkeypatch.setattr(facts, "lora_lines", lambda _result: [])
    memory = dict.fromkeys(("draft_weights_bytes", "states_bytes", "lora_bytes"), 0.0)
    memory |= {"weights_bytes": 2e9, "kv_bytes": 4e9, "total_bytes": 24e9, "block_size": 16}
    memory |= {"kv_bytes_per_token": 131_072.0, "max_concurrent_full_length": 2.0, "num_kv_blocks": 100}
    kv = {"usage_mean": 0.5, "usage_peak": 1.0, "prefix_hit_rate": 0.0, "preemptions": 3, "num_blocks": 100}
    result = result_of({"memory": memory, "kv": kv, "pools": {}})
    result.simulation = SimpleNamespace(totals=SimpleNamespace(swapped_blocks=10))

    assert "10 blocks (20.97 MB a GPU) went to host memory or came back" in facts.memory_lines(result)


def test_events_wait_in_seconds_or_milliseconds() -> None:
    """The figure is in milliseconds."""
    stream = {"events": 1000, "tokens_per_event": 2.0, "api_server_busy": 0.3, "mean_event_delay_ms": 1500.0}

    (line,) = facts.stream_lines(result_of({"streaming": stream}))

    assert line.startswith("1,000 events of 2.00 tokens; the busiest API server works 30% of the time")
    assert line.endswith("an event waits 1.5 s for it")


def test_the_first_visible_token_is_told_in_seconds() -> None:
    """Mean, median and tails of TTFVT are in milliseconds in the summary."""
    block = {
        "ttfvt_ms": {"mean": 2500.0, "p50": 2000.0, "p95": 9000.0, "p99": None},
        "thinking_share": 0.75,
        "thinking_tokens": 300,
        "visible_tokens": 100,
        "usd_per_million_visible_tokens": None,
        "num_without_answer": 0,
    }

    lines = reasoning_lines(result_of({"reasoning": block}))

    assert lines[0].startswith("first visible token: 2.50 s mean, 2.00 s median, 9.00 s p95, \N{EN DASH} p99")
    assert lines[1] == "75% of the output tokens are thinking: 300 before 100 visible ones"


def test_lengths_on_average_are_those_of_the_completed() -> None:
    """Ten of twelve requests, 5,000 prompt tokens and 500 of answers."""
    result = result_of({"requests": {"submitted": 12}}, completed=10, total_input_tokens=5000, total_output_tokens=500)
    result.scenario = {"workload": {"arrivals": {"process": "poisson", "rate": 2.0}}}

    assert facts.traffic(result) == "12 requests, poisson (rate 2.0); 500 prompt and 50.0 output tokens on average"
