"""Tests of the warm-up cut and of the measured window."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simserve.metrics.latency import request_latencies
from simserve.metrics.occupancy import sojourns
from simserve.metrics.steady_state import Window, find_window, mser5
from simserve.sim.records import RequestRecords
from tests.metrics.builders import make_records, single_server_queue


def window_of(records: RequestRecords, **overrides: Any) -> Window:
    """Return the window of steady arrivals under ``warmup: auto``."""
    values: dict[str, Any] = {"warmup": "auto", "is_steady": True} | overrides
    end = float(np.nanmax(records.finish_time)) if len(records) else 0.0
    return find_window(records, request_latencies(records), sojourns(records, end), **values)


def test_mser5_cuts_a_step() -> None:
    """A start at another level goes, and nothing else."""
    generator = np.random.default_rng(1)
    sequence = np.concatenate((generator.normal(0.0, 1.0, 100), generator.normal(10.0, 1.0, 900)))

    assert mser5(sequence) == pytest.approx(100, abs=5)


def test_mser5_is_the_minimum_of_its_formula() -> None:
    """The cumulative sums agree with the definition, computed cut by cut."""
    sequence = np.random.default_rng(2).normal(size=203).cumsum()
    means = sequence[:200].reshape(40, 5).mean(axis=1)
    statistic = [means[cut:].var() / (40 - cut) for cut in range(21)]

    assert mser5(sequence) == 5 * int(np.argmin(statistic))


@pytest.mark.parametrize("length", [0, 1, 9])
def test_mser5_leaves_a_short_sequence_alone(length: int) -> None:
    """Fewer than two batches show nothing."""
    assert mser5(np.arange(float(length))) == 0


def test_mser5_cuts_at_most_half() -> None:
    """A trend has no steady state to find."""
    assert mser5(np.arange(1000.0)) == 500


def test_the_system_must_have_filled_up() -> None:
    """Where no request waits for another, the window leaves out three E2E at both ends: filling up and emptying."""
    arrival = np.cumsum(np.random.default_rng(1).exponential(0.1, 5000))

    window = window_of(make_records(arrival, ttft=1.0, e2e=20.0))

    assert window.start == pytest.approx(arrival[0] + 60.0)
    assert window.end == pytest.approx(arrival[-1] - 60.0)
    assert not window.is_whole_run
    inside = (arrival >= window.start) & (arrival <= window.end)
    assert np.array_equal(window.has_arrived, inside)


def test_a_chance_burst_at_the_start_is_no_warmup() -> None:
    """M/M/1 starts empty and is low for a moment only: nothing is cut that would bias the mean."""
    shares = [
        window_of(single_server_queue(load=0.9, num_requests=2000, seed=seed)).has_arrived.mean() for seed in range(20)
    ]

    assert np.mean(shares) > 0.95


def test_without_steady_arrivals_everything_is_reported() -> None:
    """Traces, ramps, closed loops, overload: first arrival to last departure."""
    records = make_records(np.arange(10.0, 1010.0), e2e=30.0)

    window = window_of(records, is_steady=False)

    assert (window.start, window.end, window.is_whole_run) == (10.0, 1039.0, True)
    assert window.has_arrived.all()


def test_a_run_too_short_for_a_steady_state_is_reported_whole() -> None:
    """Ten mean E2E of arrivals, or a hundred requests, are not there."""
    assert window_of(make_records(np.linspace(0, 50, 500), e2e=20.0)).is_whole_run
    assert window_of(make_records(np.linspace(0, 500, 50), e2e=1.0)).is_whole_run


def test_the_user_may_set_the_warmup() -> None:
    """``none`` keeps all; a time counts from the first arrival, whatever the arrivals."""
    records = make_records(np.arange(10.0, 1010.0), e2e=30.0)

    assert window_of(records, warmup="none").is_whole_run
    assert (window_of(records, warmup=60.0).start, window_of(records, warmup=60.0).end) == (70.0, 1009.0)
    assert window_of(records, warmup=60.0, is_steady=False).end == 1039.0


def test_a_warmup_longer_than_the_run_leaves_nothing() -> None:
    """The window is empty, not reversed."""
    window = window_of(make_records(np.arange(10.0)), warmup=1000.0)

    assert window.seconds == 0
    assert not window.has_arrived.any()


def test_no_requests_no_window() -> None:
    """Its ends are undefined."""
    assert np.isnan(window_of(make_records([])).seconds)


def test_a_fleet_that_changes_is_reported_whole() -> None:
    """The hole that a start or a loss leaves is what is asked about: only a time that the scenario gives is cut."""
    records = make_records(np.cumsum(np.random.default_rng(1).exponential(0.1, 5000)), ttft=1.0, e2e=20.0)

    whole, cut = window_of(records, has_changing_fleet=True), window_of(records)
    asked = window_of(records, has_changing_fleet=True, warmup=60.0)

    assert whole.is_whole_run
    assert whole.has_arrived.all()
    assert not cut.is_whole_run
    assert asked.start == pytest.approx(records.arrival_time[0] + 60.0)
