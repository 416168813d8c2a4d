"""What a simulation says about itself."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from simserve.sim.records import COMPLETED, FAILED, UNFINISHED
from simserve.sim.simulate import simulate
from tests.builders import constant_step_times, make_closed_loop, make_config, make_specs
from tests.theory.builders import make_deployment

DEPLOYMENT = make_deployment(make_config(), constant_step_times(1.0))


def test_an_open_loop_says_so() -> None:
    """Its kind, its rate and whether it is stationary come from the requests."""
    specs = dataclasses.replace(make_specs([0.0, 1.0], 4, 2), is_stationary=True, offered_rate=1.5)

    simulation = simulate(DEPLOYMENT, specs)

    assert simulation.is_open_loop
    assert simulation.is_stationary
    assert simulation.offered_rate == 1.5
    assert simulation.num_replicas == 2
    assert not simulation.was_interrupted


def test_a_closed_loop_says_so() -> None:
    """A closed loop offers no rate."""
    simulation = simulate(DEPLOYMENT, make_closed_loop(1, [4], 2))

    assert not simulation.is_open_loop
    assert math.isnan(simulation.offered_rate)


def test_the_end_is_the_last_answer() -> None:
    """Two replicas finish at 3 and 6: the run ends at 6."""
    simulation = simulate(DEPLOYMENT, make_specs([0.0, 1.0], 4, [3, 5]))

    assert simulation.end_time == 6.0


def test_the_end_counts_a_failure_after_the_last_answer() -> None:
    """A prompt that is too long arrives at 9, after everything is answered."""
    simulation = simulate(DEPLOYMENT, make_specs([0.0, 9.0], [4, 99], 1))

    assert simulation.end_time == 9.0
    assert simulation.records.status.tolist() == [COMPLETED, FAILED]


def test_progress_counts_up_to_all_requests() -> None:
    """A long run tells now and then how many are answered, of how many."""
    told: list[tuple[int, int]] = []
    specs = make_specs((np.arange(30_000) * 3.0).tolist(), 1, 2)

    simulate(DEPLOYMENT, specs, progress=lambda done, total: told.append((done, total)))

    assert told
    assert told == sorted(told)
    assert {total for _, total in told} == {30_000}


def test_an_interrupted_run_keeps_what_was_finished() -> None:
    """Ctrl-C in the middle: finished requests stay, the others are unfinished, none is lost."""

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    specs = make_specs((np.arange(30_000) * 3.0).tolist(), 1, 2)

    simulation = simulate(DEPLOYMENT, specs, progress=interrupt)

    status = simulation.records.status
    assert simulation.was_interrupted
    assert 0 < (status == COMPLETED).sum() < 30_000
    assert ((status == COMPLETED) | (status == UNFINISHED)).all()
    assert np.isfinite(simulation.records.finish_time[status == COMPLETED]).all()
    assert np.isnan(simulation.records.finish_time[status == UNFINISHED]).all()
    # What had not arrived by then was never sent: it is not among what is measured.
    sent = np.isfinite(simulation.records.arrival_time)
    assert (status == COMPLETED).sum() <= sent.sum() <= (status == COMPLETED).sum() + 10
    assert simulation.end_time < 3.0 * (sent.sum() + 10)


@pytest.mark.parametrize("routing", ["round_robin", "least_outstanding"])
def test_two_simulations_in_one_process_do_not_touch(routing: str) -> None:
    """The same deployment and requests give the same records after another run."""
    deployment = dataclasses.replace(DEPLOYMENT, routing=routing)
    specs = make_specs([0.3 * index for index in range(40)], 4, [7, 2, 12, 1, 4] * 8)

    first = simulate(deployment, specs)
    simulate(DEPLOYMENT, make_closed_loop(3, [4] * 20, 5))
    second = simulate(deployment, specs)

    assert first.records.finish_time.tolist() == second.records.finish_time.tolist()
    assert first.totals.seconds_by_part == second.totals.seconds_by_part
