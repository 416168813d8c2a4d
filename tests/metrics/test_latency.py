"""Tests of TTFT, TPOT, ITL and E2E."""

from __future__ import annotations

import numpy as np
import pytest

from simserve.metrics.latency import further_latencies, latency_summary, request_latencies
from simserve.sim.records import FAILED
from tests.metrics.builders import make_histogram, make_records


def test_latencies_are_differences_of_times() -> None:
    """TTFT and E2E start at the arrival; TPOT divides the rest by the tokens after the first."""
    latencies = request_latencies(make_records([10.0], ttft=1.0, e2e=3.0))

    assert latencies.ttft == pytest.approx([1.0])
    assert latencies.e2e == pytest.approx([3.0])
    assert latencies.tpot == pytest.approx([2.0 / 4])


def test_tpot_is_undefined_for_one_token() -> None:
    """One token has no gap: NaN, not 0."""
    latencies = request_latencies(make_records([0.0, 0.0], output_tokens=[1, 1], itl_max=[np.nan, 0.5]))

    assert np.isnan(latencies.tpot).all()


def test_tpot_is_undefined_for_an_answer_in_one_piece() -> None:
    """Static batching returns all tokens at once: TTFT is E2E, and no gap between tokens was seen."""
    latencies = request_latencies(make_records([0.0], ttft=3.0, e2e=3.0, itl_max=[np.nan]))

    assert latencies.ttft == latencies.e2e
    assert np.isnan(latencies.tpot).all()


def test_a_failed_request_has_no_latency() -> None:
    """Only completed requests enter the figures."""
    records = make_records([0.0, 0.0], e2e=[3.0, np.nan], ttft=[1.0, np.nan], status=[0, FAILED])

    summary = latency_summary(request_latencies(records), np.ones(2, bool), make_histogram([]))

    assert summary["mean_e2el_ms"] == pytest.approx(3000.0)
    assert summary["mean_ttft_ms"] == pytest.approx(1000.0)


def test_percentiles_are_those_of_numpy() -> None:
    """Linear interpolation, population standard deviation, milliseconds."""
    e2e = np.random.default_rng(1).exponential(2.0, 101) + 1.0
    records = make_records(np.arange(101.0), e2e=e2e)

    summary = latency_summary(request_latencies(records), np.ones(101, bool), make_histogram([]))

    assert summary["p95_e2el_ms"] == pytest.approx(1e3 * np.percentile(e2e, 95))
    assert summary["median_e2el_ms"] == summary["p50_e2el_ms"] == pytest.approx(1e3 * np.median(e2e))
    assert summary["std_e2el_ms"] == pytest.approx(1e3 * e2e.std())


def test_itl_comes_from_the_histogram() -> None:
    """Mean and standard deviation are exact, percentiles within one percent."""
    gaps = np.random.default_rng(1).gamma(4.0, 0.01, 2000)
    records = make_records([0.0])

    summary = latency_summary(request_latencies(records), np.ones(1, bool), make_histogram(gaps))

    assert summary["mean_itl_ms"] == pytest.approx(1e3 * gaps.mean())
    assert summary["std_itl_ms"] == pytest.approx(1e3 * gaps.std())
    assert summary["p99_itl_ms"] == pytest.approx(1e3 * np.percentile(gaps, 99), rel=0.01)


def test_requests_outside_the_window_do_not_count() -> None:
    """The window decides by arrival."""
    records = make_records([0.0, 5.0], e2e=[100.0, 2.0], ttft=1.0)

    summary = latency_summary(request_latencies(records), np.array([False, True]), make_histogram([]))

    assert summary["mean_e2el_ms"] == pytest.approx(2000.0)


def test_queue_time_and_normalized_time_per_token() -> None:
    """From the queue to the first step; E2E over all tokens, the first among them; failed requests count in neither."""
    records = make_records([10.0, 0.0], ttft=[1.0, np.nan], e2e=[3.0, np.nan], status=[0, FAILED])
    latencies = request_latencies(records)

    found = further_latencies(records, latencies, np.array([True, True]))

    waited = records.scheduled_time[0] - records.admitted_time[0]
    assert found["queue_time_ms"]["mean"] == found["queue_time_ms"]["p99"] == pytest.approx(1e3 * waited)
    assert found["ntpot_ms"]["median"] == pytest.approx(1e3 * 3.0 / records.output_tokens[0])


def test_the_queue_is_the_schedulers() -> None:
    """What a request waits for in front of it, such as its tokens, is no part: 1 s after its arrival less 0.25 s."""
    records = make_records([5.0], wait=1.0, ttft=2.0, admitted_time=[5.25])

    figures = further_latencies(records, request_latencies(records), np.ones(1, bool))

    assert figures["queue_time_ms"]["mean"] == pytest.approx(750.0)
