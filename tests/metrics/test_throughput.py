"""Tests of the rates, and of the users that they come from."""

from __future__ import annotations

import numpy as np
import pytest

from simserve.metrics.latency import request_latencies
from simserve.metrics.throughput import (
    UsersFacts,
    Window,
    find_window,
    sojourns,
    steady_throughput,
    throughput,
    users_figures,
)
from simserve.sim.records import FAILED
from tests.metrics.builders import make_records, single_server_queue


def test_a_whole_run_is_total_over_duration() -> None:
    """As ``vllm bench serve`` divides: what was completed over first arrival to last departure."""
    records = make_records([0.0, 1.0, 2.0], e2e=[3.0, 3.0, np.nan], status=[0, 0, FAILED])
    window = find_window(records, request_latencies(records), sojourns(records, 4.0), warmup="auto", is_steady=False)

    rates = throughput(records, window, np.array([True, False, False]))

    assert rates.requests == pytest.approx(2 / 4)
    assert rates.good_requests == pytest.approx(1 / 4)
    assert rates.output_tokens == pytest.approx(10 / 4)
    assert rates.tokens == pytest.approx(30 / 4)


@pytest.mark.parametrize("warmup", ["none", 500.0])
def test_littles_law_holds_in_the_window(warmup: str | float) -> None:
    """Mean number in the system = throughput x mean E2E: exact over a whole run, 3 % in a cut window."""
    records = single_server_queue(load=0.7, num_requests=4000, seed=4)
    latencies = request_latencies(records)
    window = find_window(records, latencies, sojourns(records, 1e9), warmup=warmup, is_steady=warmup != "none")
    rates = throughput(records, window, None)
    overlap = np.minimum(records.finish_time, window.end) - np.maximum(records.arrival_time, window.start)
    mean_number = np.maximum(overlap, 0).sum() / window.seconds

    mean_e2e = latencies.e2e[window.has_arrived].mean()

    assert rates.requests * mean_e2e == pytest.approx(mean_number, rel=1e-9 if warmup == "none" else 0.03)


def test_the_steady_rate_is_the_arrival_rate() -> None:
    """Neither filling up nor draining biases the window: within 4 standard errors over 20 runs."""
    rates = []
    for seed in range(20):
        arrival = np.cumsum(np.random.default_rng(seed).exponential(0.1, 3000))
        records = make_records(arrival, e2e=15.0)
        window = find_window(records, request_latencies(records), sojourns(records, 1e9), warmup="auto", is_steady=True)
        rates.append(throughput(records, window, None).requests)

    assert abs(np.mean(rates) - 10.0) < 4 * np.std(rates, ddof=1) / np.sqrt(20)


def test_a_moment_has_no_rate() -> None:
    """A window without length divides by nothing."""
    records = make_records([1.0], e2e=0.0)
    window = find_window(records, request_latencies(records), sojourns(records, 1.0), warmup="none", is_steady=False)

    assert np.isnan(throughput(records, window, None).requests)


def test_what_is_sustained_is_what_came_at_its_rate() -> None:
    """Three gaps of two seconds between four requests, of which one failed; of those in the window half are good."""
    records = make_records([1.0, 3.0, 5.0, 7.0], e2e=[40.0, 3.0, np.nan, 3.0], status=[0, 0, FAILED, 0])
    window = find_window(records, request_latencies(records), sojourns(records, 50.0), warmup="none", is_steady=True)

    rates = steady_throughput(records, window, np.array([True, True, False, False]))

    assert rates.requests == pytest.approx(3 / 8)
    assert rates.good_requests == pytest.approx(2 / 8)
    assert rates.output_tokens == pytest.approx(15 / 8)
    assert rates.tokens == pytest.approx(45 / 8)


def test_of_several_classes_only_the_users_count() -> None:
    """Two classes alternate, of which the second takes 5 s: 10 users at 1 request/s that take 1 s wait 1 at a time."""
    records = make_records(np.arange(200.0), ttft=0.5, e2e=np.tile([1.0, 5.0], 100).tolist())
    latencies = request_latencies(records)
    whole = Window(start=0.0, end=200.0, has_arrived=np.ones(200, dtype=bool))
    facts = UsersFacts(users=10, clients=None, think_time=0.0, rate=1.0, classes=(0,))

    figures = users_figures(facts, latencies, whole, np.tile([0, 1], 100).astype(np.int16))

    assert figures["waiting"] == pytest.approx(1.0)
    assert figures["pause_s"] == pytest.approx(10 - 1)
    assert figures["requests_per_user_hour"] == pytest.approx(360)


def test_the_share_that_is_good_is_that_of_the_window() -> None:
    """Four requests, the first two of which warm up and miss: half a request/s comes, and all of it is good."""
    records = make_records([0.0, 2.0, 4.0, 6.0])
    window = Window(start=3.0, end=6.0, has_arrived=np.array([False, False, True, True]))

    rates = steady_throughput(records, window, np.array([False, False, True, True]))

    assert rates.good_requests == rates.requests == pytest.approx(0.5)
