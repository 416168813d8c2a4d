"""Tests of who was in the system when."""

from __future__ import annotations

import numpy as np

from simserve.metrics.occupancy import num_present, sojourns
from simserve.sim.records import FAILED, UNFINISHED
from tests.metrics.builders import make_records


def test_counts_arrivals_without_departures() -> None:
    """Someone who arrives at t is there at t, someone who leaves at t is not."""
    present = num_present(np.array([0.0, 1.0, 2.0]), np.array([2.0, 3.0, np.inf]), np.array([0.0, 1.5, 2.0, 5.0]))

    assert present.tolist() == [1, 2, 2, 1]


def test_counts_agree_with_a_walk_over_the_events() -> None:
    """The number each request meets is the number of earlier ones that have not left."""
    generator = np.random.default_rng(5)
    arrival = np.sort(generator.uniform(0, 100, 300))
    e2e = generator.exponential(5.0, 300)

    met = sojourns(make_records(arrival, e2e=e2e), 200.0).num_in_system_at_arrivals()

    expected = [np.sum(arrival[:i] + e2e[:i] > arrival[i]) for i in range(300)]
    assert met.tolist() == expected


def test_a_refused_request_waits_for_nothing() -> None:
    """It leaves as it comes; one that is left unfinished stays to the end."""
    records = make_records(
        [1.0, 2.0],
        wait=np.nan,
        ttft=np.nan,
        e2e=np.nan,
        status=[FAILED, UNFINISHED],
    )

    stayed = sojourns(records, 10.0)

    assert stayed.waits().tolist() == [0.0, 8.0]
    assert stayed.times_in_system().tolist() == [0.0, 8.0]
    assert stayed.run_end == 10.0


def test_a_request_that_was_never_sent_is_no_part_of_it() -> None:
    """An interrupted closed loop has requests without an arrival."""
    stayed = sojourns(make_records([0.0, np.nan]), 10.0)

    assert len(stayed) == 1
    assert stayed.run_end == 3.0


def test_closed_loop_requests_are_put_in_order_of_arrival() -> None:
    """Rows of a closed loop need not ascend."""
    stayed = sojourns(make_records([4.0, 1.0], e2e=[1.0, 2.0]), 5.0)

    assert stayed.arrival.tolist() == [1.0, 4.0]
    assert stayed.system_exit.tolist() == [3.0, 5.0]
