"""Several seats and Poisson arrivals: one queue (M/M/c), a queue each dealt in turn (E_c/M/1), the shortest.

Output lengths are geometric with a mean of 4,096 steps, so services are exponential but for a lattice of 1/4096 of
their mean: mean waits are below those of exponential services by 1/8192, and up to 1/8192 of a service longer
where a request joins a busy replica at the end of the running step. Both are under a tenth of a standard error.
"""

from __future__ import annotations

import numpy as np
import pytest

from simserve.sim.cluster import Routing
from tests.theory.builders import geometric_steps, served, waits
from tests.theory.estimates import (
    NUM_RUNS,
    STANDARD_ERRORS,
    assert_mean_wait,
    draw,
    estimate,
)
from tests.theory.queues import erlang_arrivals, erlang_c
from tests.theory.recursions import Floats, Integers, round_robin, shared_seats

SERVICE = geometric_steps(4096)
STEP_SECONDS = 1 / 4096


def one_queue(arrivals: Floats, steps: Integers, num_seats: int) -> Floats:
    """Return the waits at one replica of ``num_seats``."""
    return waits(served(arrivals, steps, STEP_SECONDS, max_num_seqs=num_seats))


def queue_each(arrivals: Floats, steps: Integers, num_replicas: int, routing: Routing) -> Floats:
    """Return the waits at ``num_replicas`` of one seat."""
    return waits(served(arrivals, steps, STEP_SECONDS, num_replicas=num_replicas, routing=routing))


@pytest.mark.parametrize(
    ("num_seats", "utilization", "num_blocks_of_runs"), [(2, 0.7, 5), pytest.param(4, 0.8, 14, marks=pytest.mark.slow)]
)
def test_one_replica_of_c_seats_waits_as_m_m_c(num_seats: int, utilization: float, num_blocks_of_runs: int) -> None:
    """Steps as long whatever the batch: the seats are c servers behind one queue, Erlang C."""
    assert_mean_wait(
        erlang_c(utilization * num_seats, 1.0, num_seats),
        lambda arrivals, steps: one_queue(arrivals, steps, num_seats),
        lambda arrivals, steps: shared_seats(arrivals, steps, STEP_SECONDS, num_seats),
        name=f"{num_seats} seats at {utilization}",
        rate=utilization * num_seats,
        service=SERVICE,
        step_seconds=STEP_SECONDS,
        num_blocks_of_runs=num_blocks_of_runs,
    )


@pytest.mark.slow
@pytest.mark.parametrize("num_replicas", [2, 4])
def test_round_robin_waits_as_erlang_arrivals(num_replicas: int) -> None:
    """Each of c one-seat replicas sees every c-th Poisson arrival: E_c/M/1, by the root of GI/M/1."""
    assert_mean_wait(
        erlang_arrivals(0.8, 1.0, num_replicas),
        lambda arrivals, steps: queue_each(arrivals, steps, num_replicas, "round_robin"),
        lambda arrivals, steps: round_robin(arrivals, steps, STEP_SECONDS, num_replicas),
        name=f"round robin over {num_replicas}",
        rate=0.8 * num_replicas,
        service=SERVICE,
        step_seconds=STEP_SECONDS,
        num_blocks_of_runs=8,
    )


@pytest.mark.parametrize("num_replicas", [2, 4])
def test_least_outstanding_lies_between_one_queue_and_round_robin(num_replicas: int) -> None:
    """Joining the shortest queue loses to one queue and beats round robin, on the same requests."""
    arrivals, steps = draw(f"routing over {num_replicas}", 0.8 * num_replicas, SERVICE, STEP_SECONDS, (1_500, NUM_RUNS))
    runs = [(arrivals[:, run], steps[:, run]) for run in range(NUM_RUNS)]

    shared = run_means([one_queue(*run, num_replicas) for run in runs])
    shortest = run_means([queue_each(*run, num_replicas, "least_outstanding") for run in runs])
    in_turn = run_means([queue_each(*run, num_replicas, "round_robin") for run in runs])

    assert estimate(shortest - shared).num_errors > STANDARD_ERRORS
    assert estimate(in_turn - shortest).num_errors > STANDARD_ERRORS


def test_every_wait_follows_kiefer_and_wolfowitz() -> None:
    """Not only the mean: each of 5,000 waits for 4 seats, with services of 16 steps, is exact to 1e-9."""
    arrivals, steps = draw("kiefer and wolfowitz", 3.6, geometric_steps(16), 0.0625, (5_000, 1))

    simulated = waits(served(arrivals[:, 0], steps[:, 0], 0.0625, max_num_seqs=4, accelerate="off"))

    expected = shared_seats(arrivals, steps, 0.0625, 4)[:, 0]
    np.testing.assert_allclose(simulated, expected, rtol=1e-9, atol=1e-9)


def run_means(runs: list[Floats]) -> Floats:
    """Return the mean wait of each run after its warm-up."""
    return np.array([run[500:].mean() for run in runs])
