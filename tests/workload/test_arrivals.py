"""Arrival processes: their statistics, their scaling, their ends."""

import numpy as np
import pytest

from simserve import rng
from simserve.workload.arrivals import arrival_times
from simserve.workload.spec import ConstantArrivals, GammaArrivals, PoissonArrivals

NUM_REQUESTS = 40_000


def gaps_of(arrivals, seed=1, num_requests=NUM_REQUESTS):
    """Return the times between arrivals, the first one from 0."""
    times = arrival_times(arrivals, rng.stream(seed, "arrivals"), num_requests=num_requests)
    return np.diff(times, prepend=0.0)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(
    ("arrivals", "cv"),
    [
        (PoissonArrivals(rate=4.0), 1.0),
        (GammaArrivals(rate=4.0, cv=0.5), 0.5),
        (GammaArrivals(rate=4.0, cv=1.0), 1.0),
        (GammaArrivals(rate=4.0, cv=2.5), 2.5),
    ],
)
def test_mean_and_variance_of_the_time_between_arrivals_are_those_asked_for(arrivals, cv, seed):
    """Both lie within 4 standard errors; a gamma distribution has the excess kurtosis 6 cv^2."""
    scaled = gaps_of(arrivals, seed) * 4.0

    assert abs(scaled.mean() - 1.0) < 4 * cv / np.sqrt(NUM_REQUESTS)
    variance_error = cv**2 * np.sqrt((2 + 6 * cv**2) / NUM_REQUESTS)
    assert abs(scaled.var() - cv**2) < 4 * variance_error


def test_poisson_counts_have_a_variance_equal_to_their_mean():
    """Counts in equal windows are dispersed as Poisson counts are, within 4 standard errors."""
    times = arrival_times(PoissonArrivals(rate=5.0), rng.stream(1, "arrivals"), duration=20_000.0)

    counts = np.histogram(times, bins=10_000, range=(0.0, 20_000.0))[0]
    assert abs(counts.var() / counts.mean() - 1.0) < 4 * np.sqrt(2 / 10_000)


def test_gamma_with_cv_1_is_the_poisson_process():
    """At cv = 1 both turn the same uniforms into the same times."""
    assert np.array_equal(gaps_of(GammaArrivals(rate=2.0, cv=1.0)), gaps_of(PoissonArrivals(rate=2.0)))


@pytest.mark.parametrize("make", [PoissonArrivals, lambda rate: GammaArrivals(rate=rate, cv=3.0), ConstantArrivals])
def test_another_rate_only_stretches_the_same_draws(make):
    """Twice the rate gives the same arrivals in half the time, to the last bit."""
    slow = arrival_times(make(rate=1.5), rng.stream(7, "arrivals"), num_requests=1000)
    fast = arrival_times(make(rate=3.0), rng.stream(7, "arrivals"), num_requests=1000)

    assert np.array_equal(slow, 2.0 * fast)


def test_constant_arrivals_start_one_distance_after_zero():
    """The first arrival is at 1 / rate, the last within the duration."""
    arrivals = ConstantArrivals(rate=0.29)

    times = arrival_times(arrivals, rng.stream(1, "arrivals"), duration=100.0)
    assert len(times) == 29
    assert np.allclose(times, np.arange(1, 30) / 0.29)


@pytest.mark.parametrize("arrivals", [PoissonArrivals(rate=3.0), GammaArrivals(rate=3.0, cv=30.0)])
def test_duration_cuts_the_same_arrivals_that_a_number_would_give(arrivals):
    """Arrivals until a time are the first ones of the stream, none after it and none missing."""
    for seed in range(20):
        many = arrival_times(arrivals, rng.stream(seed, "arrivals"), num_requests=20_000)
        until = arrival_times(arrivals, rng.stream(seed, "arrivals"), duration=100.0)

        assert np.allclose(until, many[many <= 100.0], rtol=1e-12)
        assert many[-1] > 100.0
