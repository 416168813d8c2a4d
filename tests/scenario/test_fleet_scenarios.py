"""The bundled scenarios of fleets that change: each shows what its comment promises."""

from __future__ import annotations

from typing import Any

import pytest

from simserve.metrics.result import RunResult
from simserve.scenario.load import load
from simserve.scenario.run import run


def result_of(name: str, *overrides: str) -> RunResult:
    """Return the result of a bundled scenario."""
    return run(load(name, overrides), explain=False)


def inner(result: RunResult) -> dict[str, Any]:
    """Return the figures of simserve's own."""
    return dict(result.summary["simserve"])


def met_between(result: RunResult, start: float, end: float) -> float:
    """Return the share of the requests that arrived in a span and met the objective."""
    frame = result.requests
    return float(frame.slo_ok[(frame.arrival_s >= start) & (frame.arrival_s < end)].mean())


@pytest.mark.slow
def test_host_memory_behind_the_cache_pays_and_a_slow_disk_does_not() -> None:
    """Hits of both tiers add up; loading faster than computing meets the objective, slower is worse than nothing."""
    offload = "deployment.engine.kv_offload"
    host, none, disk = (
        result_of("kv-offload", *more)
        for more in ([], [f"{offload}=null"], [f"{offload}={{size: 2 TB, bandwidth: 300 MB/s, latency: 5 ms}}"])
    )

    kv = inner(host)["kv"]
    assert kv["gpu_hit_rate"] + kv["offload_hit_rate"] == pytest.approx(kv["prefix_hit_rate"])
    assert kv["offload_hit_rate"] > 0.1
    assert kv["prefix_hit_rate"] > inner(none)["kv"]["prefix_hit_rate"] + 0.1
    assert inner(none)["kv"]["offload_hit_rate"] is None
    attained = [inner(each)["slo"]["attainment"] for each in (host, none, disk)]
    assert attained[0] > 0.98 > attained[1] > attained[2]
    assert "second tier" in inner(disk)["bottleneck"]["explanation"]
    assert inner(disk)["bottleneck"]["binding"] == "KV offload" != inner(host)["bottleneck"]["binding"]
    assert inner(host)["offload"]["loaded_bytes"] > 1e11


@pytest.mark.slow
def test_a_store_that_replicas_share_finds_what_others_computed() -> None:
    """Tiers of each replica know its own turns alone; a store knows all, unless it is slower than computing."""
    tiers = "deployment.engine.kv_tiers"
    shared, alone, slow = (
        result_of("kv-tiers", "workload.num_requests=1500", *more)
        for more in ([], [f"{tiers}.2.shared=false"], [f"{tiers}.2.bandwidth=300 MB/s"])
    )

    kv = inner(shared)["kv"]
    rates = [tier["hit_rate"] for tier in kv["tiers"]]
    assert [tier["tier"] for tier in kv["tiers"]] == ["host", "disk", "remote"]
    assert kv["gpu_hit_rate"] + sum(rates) == pytest.approx(kv["prefix_hit_rate"])
    assert kv["prefix_hit_rate"] > inner(alone)["kv"]["prefix_hit_rate"] + 0.1
    assert kv["tiers"][2]["is_used"]
    assert not inner(shared)["warnings"]
    remote = inner(slow)["kv"]["tiers"][2]
    assert (remote["is_used"], remote["loaded_bytes"]) == (False, 0.0)
    assert remote["recomputed_bytes"] > 1e9
    assert inner(slow)["warnings"][0].startswith("remote tier not used: a token takes 437 us to load")


@pytest.mark.slow
def test_a_tier_is_paid_for_beside_the_gpus() -> None:
    """A terabyte that all share once, 32 GiB of each of four replicas four times."""
    key = "deployment.engine.kv_tiers"
    free, store, host = (
        inner(result_of("kv-tiers", "workload.num_requests=200", f"{key}.2.usd_per_gib_hour=0", *more))["cost"]
        for more in ([], [f"{key}.2.usd_per_gib_hour=0.001"], [f"{key}.0.usd_per_gib_hour=0.001"])
    )

    assert store["usd_per_hour"] - free["usd_per_hour"] == pytest.approx(1e12 / 2**30 * 0.001)
    assert host["usd_per_hour"] - free["usd_per_hour"] == pytest.approx(4 * 32 * 0.001)


def test_a_roll_out_has_a_hole_that_a_surge_fills() -> None:
    """One at a time is felt, three at a time is an outage, and a fifth GPU for the time leaves nothing to be felt."""
    one, three, surge = (
        result_of("rolling-update", *more)
        for more in (
            [],
            ["deployment.updates.0.max_unavailable=3"],
            ["deployment.updates.0.max_unavailable=0", "deployment.updates.0.max_surge=1"],
        )
    )

    spans = [inner(each)["replicas"]["updates"][0] for each in (one, three, surge)]
    assert [each["fewest_ready"] for each in spans] == [3, 1, 4]
    assert spans[1]["end_s"] < spans[0]["end_s"]
    assert met_between(one, 0, 120) > 0.99 < met_between(one, 500, 660)
    assert met_between(three, 130, 280) < 0.5 < met_between(one, 120, 430) < 0.95 < met_between(surge, 120, 430)
    hours = [inner(each)["replicas"]["gpu_hours"] for each in (one, surge)]
    assert hours[1] > hours[0]
    assert "Rolling updates replaced 4 replicas." in inner(one)["bottleneck"]["explanation"]


def test_a_probe_that_is_in_the_queue_kills_a_busy_fleet() -> None:
    """With it the burst never ends; without it, or with shedding, the last minute is as the first."""
    probed, left_alone, shed = (
        result_of("liveness-cascade", *more)
        for more in ([], ["deployment.liveness=null"], ["deployment.admission={max_queue: 30}"])
    )

    assert inner(probed)["replicas"]["killed"] > 5
    assert "liveness probe restarted" in inner(probed)["bottleneck"]["explanation"]
    assert met_between(probed, 420, 480) < 0.2
    assert inner(left_alone)["replicas"]["killed"] == inner(shed)["replicas"]["killed"] == 0
    assert met_between(left_alone, 420, 480) > 0.99
    assert met_between(shed, 240, 480) > 0.99


def test_a_region_takes_what_its_neighbour_cannot() -> None:
    """Crossing the ocean costs two ways of 45 ms; waiting at home costs seconds."""
    spilling, staying = (result_of("two-regions", *more) for more in ([], ["deployment.regions.spill_above=null"]))

    regions = inner(spilling)["regions"]
    assert 0.1 < regions["eu"]["served_elsewhere"] < 0.5 > regions["us"]["served_elsewhere"]
    assert inner(staying)["regions"]["eu"]["served_elsewhere"] == 0.0
    assert inner(staying)["regions"]["eu"]["p95_ttft_ms"] > 20 * regions["eu"]["p95_ttft_ms"]
    frame, records = spilling.requests, spilling.simulation.records
    crossed = (frame["class"] == "eu-clients") & (records.replica_id >= 2)
    stayed = (frame["class"] == "eu-clients") & (records.replica_id < 2)
    quiet = frame.arrival_s < 120
    assert frame.ttft_ms[crossed].min() > 90.0 > frame.ttft_ms[stayed & quiet].median()
    assert "served in another region" in inner(spilling)["bottleneck"]["explanation"]


def test_utilisation_asks_for_a_quarter_more_and_only_once_a_start() -> None:
    """The queue brings eight at the first two looks; utilisation takes ten minutes longer, near 100 % never scales."""
    busy, queue, near = (
        result_of("busy-scales-late", *more)
        for more in (
            [],
            ["deployment.autoscaling.metric=queue_depth", "deployment.autoscaling.target=20"],
            ["deployment.autoscaling.target=0.95"],
        )
    )

    def ready_at(result: RunResult, count: int) -> float:
        return float(next(row["time_s"] for row in inner(result)["replicas"]["timeline"] if row["ready"] >= count))

    assert ready_at(queue, 4) == pytest.approx(315.0, abs=1.0)
    assert ready_at(busy, 4) > ready_at(queue, 4) + 240
    assert inner(near)["replicas"]["peak"] == 1
    assert inner(queue)["slo"]["attainment"] > inner(busy)["slo"]["attainment"] + 0.3
