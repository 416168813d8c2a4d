"""Conditions of a run: waiting, bursts, host time and requests in flight."""

from __future__ import annotations

import math

import numpy as np
import pytest

from simserve.metrics.conditions import conditions
from tests.metrics.builders import make_records, make_totals


def test_waiting_is_a_share_of_the_time_to_first_tokens() -> None:
    """Half a second of two."""
    assert conditions(make_records([0.0, 1.0], wait=0.5, ttft=2.0), make_totals(), 1).waiting == pytest.approx(0.25)


def test_requests_in_flight_are_those_of_one_replica() -> None:
    """Four requests of 3 s in 6 s are two at a time, one each on two replicas."""
    found = conditions(make_records([0.0, 1.0, 2.0, 3.0]), make_totals(), 2)

    assert found.in_flight == pytest.approx(1.0)


def test_a_burst_arrives_in_the_first_instant() -> None:
    """Three of four requests."""
    assert conditions(make_records([0.0, 0.0, 0.0, 5.0]), make_totals(), 1).at_once == 0.75


def test_without_answers_the_load_is_unknown() -> None:
    """Nothing was finished."""
    records = make_records([0.0, 1.0])
    records.finish_time[:] = np.nan

    found = conditions(records, make_totals(), 1)

    assert math.isnan(found.in_flight)
    assert (found.waiting, found.at_once) == (0.0, 0.0)


def test_host_time_is_a_share_of_the_steps() -> None:
    """Between none and all."""
    totals = make_totals()

    share = conditions(make_records([0.0]), totals, 1).host

    assert share == pytest.approx(totals.seconds_by_part["host"] / totals.busy_seconds)
