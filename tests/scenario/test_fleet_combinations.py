"""Options of a fleet in one scenario: pools that scale, break, draft, cache, shed and are updated."""

from __future__ import annotations

from typing import Any

import pytest

from simserve.metrics.result import RunResult
from simserve.report.facts import fleet_lines
from simserve.scenario.load import load
from simserve.scenario.run import run
from tests.scenario.builders import make_scenario

L40S = 1.26


def changed(*overrides: str, name: str = "two-pools") -> RunResult:
    """Return a short run of a bundled scenario."""
    return run(load(name, ["workload.num_requests=900", *overrides]), explain=False)


def test_everything_at_once_on_pools() -> None:
    """Scaling, a fault, drafts, prefixes, admission control, patience, retries, an update and a probe on two pools."""
    result = changed(
        "deployment.pools.0.autoscaling={metric: running, target: 8, max_replicas: 4}",
        "deployment.pools.1.speculative={method: ngram, num_speculative_tokens: 3, acceptance_rate: 0.5}",
        "deployment.faults=[{kind: replica, pool: small, at: 30 s, duration: 20 s, in_flight: retry}]",
        "deployment.updates=[{at: 40 s, pool: large, max_unavailable: 0, max_surge: 1, "
        "startup: {schedule: 0 s, image: 0 s, load_bandwidth: 10 GB/s, engine: 1 s}}]",
        "deployment.liveness={timeout: 5 s}",
        "deployment.admission={max_queue: 200}",
        "deployment.routing=prefix",
        "deployment.engine.kv_offload={size: 8 GiB}",
        "workload.shared_prefix={num_groups: 3, tokens: 300}",
        "workload.classes.0.timeout=60 s",
        "workload.classes.0.retries=2",
    )

    summary, inner = result.summary, result.summary["simserve"]
    requests = inner["requests"]
    statuses = ("completed", "rejected", "timed_out", "failed", "unfinished")
    assert requests["submitted"] == 900 == sum(requests[fate] for fate in statuses)
    assert summary["completed"] > 850
    assert inner["replicas"]["peak"] > 3
    assert inner["replicas"]["replaced"] == 1
    assert inner["speculation"]["num_drafts"] > 0
    assert inner["speculation"]["num_speculative_tokens"] == 3
    assert inner["kv"]["prefix_hit_rate"] > 0.3
    words = " ".join(fleet_lines(result))
    for part in ("small (both)", "large (both)", "rolling update", "an hour"):
        assert part in words


def test_each_pool_says_what_it_answered_and_what_it_costs() -> None:
    """Two models on one budget: requests, objective and dollars by pool add up to those of the whole."""
    inner = changed().summary["simserve"]
    pools = inner["pools"]

    assert sum(each["requests"] for each in pools.values()) == inner["window"]["requests"]
    assert pools["small"]["usd_per_hour"] == pytest.approx(2 * L40S, abs=0.01)
    assert sum(each["usd_per_hour"] for each in pools.values()) == pytest.approx(inner["cost"]["usd_per_hour"])
    met = sum(each["attainment"] * each["requests"] for each in pools.values())
    assert met == pytest.approx(inner["slo"]["attainment"] * inner["window"]["requests"])
    assert pools["large"]["usd_per_million_output_tokens"] > 3 * pools["small"]["usd_per_million_output_tokens"]


def test_the_price_follows_the_pool_that_grew() -> None:
    """Only the cheap pool scales: the mean price of a GPU-hour falls."""
    plain, scaled = (
        changed(*more).summary["simserve"]["cost"]
        for more in ([], ["deployment.pools.0.autoscaling={metric: running, target: 4, max_replicas: 8}"])
    )

    assert scaled["gpu_hour_usd"] < 0.9 * plain["gpu_hour_usd"]
    assert scaled["usd_per_hour"] > plain["usd_per_hour"]


def test_pools_go_by_the_rules_of_the_deployment() -> None:
    """What is written once holds for every pool that does not say otherwise."""
    scaling = "{metric: running, target: 4, max_replicas: 3}"
    inner = changed(f"deployment.autoscaling={scaling}", "deployment.pools.1.autoscaling={target: 50, max_replicas: 1}")

    pools = inner.summary["simserve"]["pools"]
    assert pools["small"]["replicas"] > 2.0
    assert pools["large"]["replicas"] == 1.0


def test_autoscaling_goes_with_faults() -> None:
    """A spot instance is taken back; the autoscaler replaces it long before the market does."""
    base = ["workload.num_requests=3000", "workload.duration=null"]
    spot = "deployment.faults=[{kind: spot, at: 20 s, duration: 10 min, notice: 5 s, in_flight: retry}]"
    scaling = (
        "deployment.autoscaling={metric: queue_depth, target: 10, min_replicas: 4, max_replicas: 4, interval: 5 s, "
        "startup: {schedule: 1 s, image: 1 s, load_bandwidth: 10 GB/s, engine: 5 s}}"
    )
    alone, replaced = (
        run(load("lost-replica", [*base, spot, *more]), explain=False).summary["simserve"]["replicas"]
        for more in ([], [scaling])
    )

    assert alone["timeline"][-1]["ready"] == 3
    assert replaced["timeline"][-1]["ready"] == 4


@pytest.mark.parametrize(
    ("size", "words"), [("64 GiB", "524,288 tokens behind the prefix cache"), ("2 TB", "15,258,784 tokens")]
)
def test_memory_says_what_the_second_tier_holds(size: str, words: str) -> None:
    """The arithmetic is a line that a person can check."""
    from simserve.scenario.fit import memory_report
    from simserve.scenario.resolve import resolve

    report: dict[str, Any] = memory_report(resolve(load("kv-offload", [f"deployment.engine.kv_offload.size={size}"])))

    assert words in report["arithmetic"][-1]
    assert "loading a token takes 5.24 us" in report["arithmetic"][-1]


def test_a_tier_of_several_gpus_is_shared_by_them() -> None:
    """Each GPU loads its part of a block at once: twice the GPUs, as many blocks, half the time each."""
    from simserve.scenario.resolve import resolve

    workload = {
        "arrivals": {"process": "poisson", "rate": 5.0},
        "prompt_tokens": {"distribution": "fixed", "value": 100},
        "output_tokens": {"distribution": "fixed", "value": 20},
        "shared_prefix": {"num_groups": 2, "tokens": 50},
        "num_requests": 20,
    }
    offload = "deployment.engine.kv_offload={size: 10 GB, bandwidth: 10 GB/s, latency: 1 ms}"
    one, two = (
        resolve(make_scenario([offload, f"deployment.tensor_parallel_size={size}"], workload=workload)).engine
        for size in (1, 2)
    )

    ((first,), (second,)) = (one.kv_tiers, two.kv_tiers)
    assert first.num_blocks == second.num_blocks > 1000
    assert first.block_seconds == pytest.approx(2 * second.block_seconds)
    assert first.latency == 0.001
