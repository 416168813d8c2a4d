"""One seat and Poisson arrivals: M/D/1 and M/G/1.

A prompt of one token and n output tokens hold the seat for n steps, so the service time is discrete and its
moments are exact. 4 standard errors are 0.9 to 1.7 % of the mean wait.
"""

from __future__ import annotations

import numpy as np
import pytest

from simserve.sim.acceleration import Accelerate
from tests.theory.builders import (
    Service,
    fixed_steps,
    geometric_steps,
    served,
    two_point_steps,
    uniform_steps,
    waits,
)
from tests.theory.estimates import assert_mean_wait, draw
from tests.theory.queues import pollaczek_khinchine
from tests.theory.recursions import Floats, Integers, one_seat

STEP_SECONDS = 0.0625


def simulated_waits(arrivals: Floats, steps: Integers, accelerate: Accelerate = "auto") -> Floats:
    """Return the waits at a replica with one seat."""
    return waits(served(arrivals, steps, STEP_SECONDS, accelerate=accelerate))


def waits_by_recursion(arrivals: Floats, steps: Integers) -> Floats:
    """Return the waits by Lindley's recursion."""
    return one_seat(arrivals, steps, STEP_SECONDS)


def assert_pollaczek_khinchine(name: str, utilization: float, service: Service, num_blocks_of_runs: int) -> None:
    """Assert the mean wait of M/G/1 at a utilization."""
    mean = service.mean * STEP_SECONDS
    assert_mean_wait(
        pollaczek_khinchine(utilization / mean, mean, service.second_moment * STEP_SECONDS**2),
        simulated_waits,
        waits_by_recursion,
        name=f"{name} at {utilization}",
        rate=utilization,
        service=service,
        step_seconds=STEP_SECONDS,
        num_blocks_of_runs=num_blocks_of_runs,
    )


@pytest.mark.parametrize(
    ("utilization", "num_blocks_of_runs"), [(0.5, 2), (0.7, 3), pytest.param(0.9, 10, marks=pytest.mark.slow)]
)
def test_fixed_lengths_wait_as_in_m_d_1(utilization: float, num_blocks_of_runs: int) -> None:
    """Every answer of 16 tokens: M/D/1, at half, 70 % and 90 % load."""
    assert_pollaczek_khinchine("fixed", utilization, fixed_steps(16), num_blocks_of_runs)


@pytest.mark.parametrize(
    ("name", "service", "utilization", "num_blocks_of_runs"),
    [
        ("uniform, cv 0.56", uniform_steps(1, 31), 0.7, 3),
        ("two lengths, cv 0.96", two_point_steps(4, 24, 0.25), 0.7, 4),
        ("geometric, cv 0.97", geometric_steps(16), 0.7, 4),
        pytest.param("geometric, cv 0.97", geometric_steps(16), 0.85, 12, marks=pytest.mark.slow),
    ],
)
def test_random_lengths_wait_as_in_m_g_1(
    name: str, service: Service, utilization: float, num_blocks_of_runs: int
) -> None:
    """Pollaczek and Khinchine, with the exact second moment of the discrete lengths."""
    assert_pollaczek_khinchine(name, utilization, service, num_blocks_of_runs)


def test_every_wait_follows_lindley() -> None:
    """Not only the mean: each of 5,000 waits at 90 % load is Lindley's, to 1e-9, interpreted too."""
    arrivals, steps = draw("lindley", 0.9, geometric_steps(16), STEP_SECONDS, (5_000, 1))

    simulated = simulated_waits(arrivals[:, 0], steps[:, 0], "off")

    np.testing.assert_allclose(simulated, waits_by_recursion(arrivals, steps)[:, 0], rtol=1e-9, atol=1e-9)
