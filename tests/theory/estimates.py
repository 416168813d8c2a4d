"""Means over independent runs, with their standard errors, and the comparison with theory.

A run of the simulator is compared with theory twice. Directly, within 4 standard errors over `NUM_RUNS` runs;
at high load these are several per cent wide. And sharply: the recursions of `recursions` see the same requests,
and the simulator's mean minus theirs (zero, if the simulator is right) corrects their own mean over many more
requests. This estimate has the mean of the simulator, whatever it is, and a standard error under 0.5 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from simserve import rng
from tests.theory.builders import Service
from tests.theory.recursions import Floats, Integers

SEED = 20240701
NUM_RUNS = 24
WARM_UP = 1_000
NUM_REQUESTS = 3_000

NUM_LONG_RUNS = 200
LONG_WARM_UP = 2_000
NUM_LONG_REQUESTS = 8_000

STANDARD_ERRORS = 4.0
VISIBLE_ERROR = 0.03
"""Relative error of a mean wait that a comparison must be able to see, with 2 standard errors of luck against it."""

Recursion = Callable[[Floats, Integers], Floats]
"""From arrival times and steps to waits, all ``[num_requests, num_runs]``."""

Simulator = Callable[[Floats, Integers], Floats]
"""From arrival times and steps to waits, all ``[num_requests]``."""


@dataclass(frozen=True)
class Estimate:
    """A mean and its standard error."""

    mean: float
    error: float

    def __sub__(self, other: Estimate) -> Estimate:
        """Return the difference of two independent estimates."""
        return Estimate(self.mean - other.mean, math.hypot(self.error, other.error))

    def __add__(self, other: Estimate) -> Estimate:
        """Return the sum of two independent estimates."""
        return Estimate(self.mean + other.mean, math.hypot(self.error, other.error))

    @property
    def num_errors(self) -> float:
        """Standard errors above zero."""
        return self.mean / self.error


def estimate(run_means: Floats) -> Estimate:
    """Return the mean of independent runs and its standard error."""
    return Estimate(float(run_means.mean()), float(run_means.std(ddof=1) / math.sqrt(len(run_means))))


def draw(
    name: str, rate: float, service: Service, step_seconds: float, shape: tuple[int, int], replication: int = 0
) -> tuple[Floats, Integers]:
    """Return Poisson arrival times and steps, ``[num_requests, num_runs]``.

    Args:
        name: Names the random stream.
        rate: Arrivals a mean service time.
        service: Steps of a request.
        step_seconds: Seconds of a step.
        shape: ``(num_requests, num_runs)``.
        replication: Of the stream.
    """
    generator = rng.stream(SEED, name, replication)
    gaps = generator.exponential(service.mean * step_seconds / rate, shape)
    return np.cumsum(gaps, axis=0), service.sample(generator, shape)


def assert_mean_wait(
    expected: float,
    simulator: Simulator,
    recursion: Recursion,
    *,
    name: str,
    rate: float,
    service: Service,
    step_seconds: float,
    num_blocks_of_runs: int,
) -> None:
    """Assert that the simulator's stationary mean wait is ``expected`` seconds, within 4 standard errors.

    Args:
        expected: What theory says, seconds.
        simulator: What is tested.
        recursion: The same queue by recursion.
        name: Names the random streams; a name of their own keeps comparisons independent.
        rate: Arrivals a mean service time.
        service: Steps of a request.
        step_seconds: Seconds of a step.
        num_blocks_of_runs: How many times `NUM_LONG_RUNS` runs the recursion is averaged over.
    """
    arrivals, steps = draw(f"{name}, simulated", rate, service, step_seconds, (NUM_REQUESTS, NUM_RUNS))
    simulated = np.stack([simulator(arrivals[:, run], steps[:, run]) for run in range(NUM_RUNS)], axis=1)
    same_by_recursion = recursion(arrivals, steps)
    direct = estimate(simulated[WARM_UP:].mean(axis=0))
    correction = estimate((simulated - same_by_recursion)[WARM_UP:].mean(axis=0))
    shape = (NUM_LONG_REQUESTS, NUM_LONG_RUNS)
    means = [
        recursion(*draw(f"{name}, recursion", rate, service, step_seconds, shape, block))[LONG_WARM_UP:].mean(axis=0)
        for block in range(num_blocks_of_runs)
    ]
    sharp = estimate(np.concatenate(means)) + correction

    assert (STANDARD_ERRORS + 2) * sharp.error <= VISIBLE_ERROR * expected
    assert abs(sharp.mean - expected) <= STANDARD_ERRORS * sharp.error
    assert abs(direct.mean - expected) <= STANDARD_ERRORS * direct.error
