"""Asynchronous scheduling: the step after the running one has been scheduled when a request arrives."""

from __future__ import annotations

import numpy as np
import pytest

from simserve.sim.records import RequestRecords
from simserve.sim.simulate import replay
from simserve.workload.requests import RequestSpecs
from tests.builders import constant_step_times, make_closed_loop, make_config, make_specs


def served(specs: RequestSpecs, *, is_async: bool = True, **limits: object) -> RequestRecords:
    """Return the records of one replica whose every step takes a second."""
    config = make_config(async_scheduling=is_async, **limits)
    return replay(config, constant_step_times(1.0), specs).records


def test_an_arrival_joins_the_step_after_next() -> None:
    """It arrives in the step from 2 to 3; that from 3 to 4 is scheduled already, so it runs from 4 to 5."""
    specs = make_specs([0.0, 2.5], 4, [20, 2])

    ahead, in_turn = served(specs), served(specs, is_async=False)

    assert in_turn.first_token_time[1] == 4.0
    assert ahead.first_token_time[1] == pytest.approx(5.0)
    assert ahead.finish_time[0] == in_turn.finish_time[0]


def test_an_arrival_beside_a_prefill_waits_as_long() -> None:
    """The first step prefills and is no leap; who arrives in it misses the next."""
    records = served(make_specs([0.0, 0.5], 4, 20))

    assert records.first_token_time[1] == pytest.approx(3.0)


def test_an_arrival_at_ranks_that_step_together_waits_as_long() -> None:
    """It goes to the rank without requests, and that one keeps the pace of the other, whose next step is scheduled."""
    specs = make_specs([0.0, 2.5], 4, [20, 2])

    ahead, in_turn = (served(specs, is_async=is_async, data_parallel_size=2) for is_async in (True, False))

    assert in_turn.first_token_time[1] == 4.0
    assert ahead.first_token_time[1] == pytest.approx(5.0)


def test_an_idle_replica_starts_at_once() -> None:
    """Nothing runs, so nothing has been scheduled ahead."""
    records = served(make_specs([0.0, 7.25], 4, 2))

    assert records.first_token_time[1] == 8.25


def test_a_replica_that_falls_idle_first_starts_when_it_does() -> None:
    """The last step ends at 2; there is no next one to wait for."""
    records = served(make_specs([0.0, 1.5], 4, 2))

    assert records.first_token_time[1] == pytest.approx(3.0)


def test_arrivals_of_one_step_are_served_together_and_in_order() -> None:
    """All three of a step start in the same later step."""
    records = served(make_specs([0.0, 4.25, 4.5, 4.75], 4, 30))

    assert np.allclose(records.first_token_time[1:], 7.0)


def test_clients_wait_a_step_more_for_each_request() -> None:
    """Of two clients in a closed loop, whoever sends while the other decodes."""
    specs = make_closed_loop(2, [4] * 6, [3, 9, 4, 9, 4, 9])

    ahead, in_turn = (served(specs, is_async=each, frontend_latency=0.25) for each in (True, False))

    assert ahead.first_token_time.mean() > in_turn.first_token_time.mean()
    assert np.isfinite(ahead.finish_time).all()


def test_a_queue_hides_the_wait() -> None:
    """With every seat taken, who waits is admitted when a seat falls free, ahead of time or not."""
    specs = make_specs([0.0, 1.5, 2.5], 4, [8, 8, 8])

    ahead, in_turn = (served(specs, is_async=each, max_num_seqs=1) for each in (True, False))

    assert ahead.first_token_time == pytest.approx(in_turn.first_token_time)
