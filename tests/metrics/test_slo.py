"""Tests of SLO attainment."""

from __future__ import annotations

import numpy as np
import pytest

from simserve.metrics.latency import attainment, request_latencies, requests_meeting
from simserve.sim.records import REJECTED, TIMED_OUT, UNFINISHED
from tests.metrics.builders import make_records, make_slo


def test_a_latency_on_its_bound_meets_it() -> None:
    """Bounds are inclusive, as in ``vllm bench serve --goodput``."""
    latencies = request_latencies(make_records([0.0, 0.0], ttft=[1.0, 1.5]))

    assert requests_meeting(latencies, make_slo(ttft=1.0)).tolist() == [True, False]


def test_every_lost_request_missed() -> None:
    """The denominator is what was submitted: rejected, timed out and unfinished requests count as missed."""
    records = make_records([0.0] * 4, e2e=[3.0, np.nan, np.nan, np.nan], status=[0, REJECTED, TIMED_OUT, UNFINISHED])

    shares = attainment(request_latencies(records), make_slo(ttft=10.0, e2e=10.0), np.ones(4, bool))

    assert shares.all_terms == 0.25
    assert shares.by_metric["ttft"] == shares.by_metric["e2e"] == 0.25


def test_a_single_token_meets_tpot() -> None:
    """Where there is no gap between tokens, none is too long."""
    latencies = request_latencies(make_records([0.0], output_tokens=[1], itl_max=[np.nan]))

    assert requests_meeting(latencies, make_slo(tpot=1e-6)).all()


def test_attainment_is_never_above_its_smallest_term() -> None:
    """Meeting all bounds is meeting each."""
    generator = np.random.default_rng(2)
    ttft = generator.exponential(1.0, 500)
    records = make_records(np.arange(500.0), ttft=ttft, e2e=ttft + generator.exponential(2.0, 500))

    shares = attainment(request_latencies(records), make_slo(ttft=1.0, tpot=0.5, e2e=3.0), np.ones(500, bool))

    assert 0 < shares.all_terms <= min(shares.by_metric.values()) <= 1


def test_no_bound_no_share() -> None:
    """A term without a bound, and an objective without requests, are undefined."""
    latencies = request_latencies(make_records([0.0]))

    shares = attainment(latencies, make_slo(ttft=2.0), np.ones(1, bool))
    none = attainment(latencies, make_slo(ttft=2.0), np.zeros(1, bool))

    assert np.isnan(shares.by_metric["tpot"])
    assert shares.by_metric["ttft"] == pytest.approx(1.0)
    assert np.isnan(none.all_terms)
