"""Arrival processes: their statistics, their scaling, their ends."""

import numpy as np
import pytest

from simserve import rng
from simserve.errors import ScenarioError
from simserve.workload.arrival_spec import (
    BurstArrivals,
    ConstantArrivals,
    DailyArrivals,
    GammaArrivals,
    PoissonArrivals,
    RampArrivals,
    SpikeArrivals,
    StepArrivals,
    WeibullArrivals,
)
from simserve.workload.distributions import arrival_times, rate_curve_of

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
        (WeibullArrivals(rate=4.0, cv=0.3), 0.3),
        (WeibullArrivals(rate=4.0, cv=1.0), 1.0),
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


@pytest.mark.parametrize(
    "make",
    [
        PoissonArrivals,
        lambda rate: GammaArrivals(rate=rate, cv=3.0),
        lambda rate: WeibullArrivals(rate=rate, cv=3.0),
        ConstantArrivals,
    ],
)
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


def times_of(arrivals, duration, seed=1):
    """Return the arrivals within a duration."""
    phases = rng.stream(seed, "arrival_phases")
    return arrival_times(arrivals, rng.stream(seed, "arrivals"), duration=duration, phases=phases)


def test_a_weibull_time_between_arrivals_has_the_tail_of_its_shape():
    """At cv = sqrt(5) the shape is 0.5: P(gap > x) = exp(-sqrt(2 x)) at mean 1."""
    gaps = gaps_of(WeibullArrivals(rate=1.0, cv=5.0**0.5))

    for gap in (0.1, 1.0, 5.0):
        expected = np.exp(-np.sqrt(2.0 * gap))
        assert abs(np.mean(gaps > gap) - expected) < 4 * np.sqrt(expected * (1 - expected) / NUM_REQUESTS)


@pytest.mark.parametrize(
    ("arrivals", "windows"),
    [
        (
            RampArrivals(start_rate=10.0, rate=50.0, ramp_duration="100.0 s"),
            [(0, 50, 1000), (50, 100, 2000), (100, 200, 5000)],
        ),
        (RampArrivals(rate=50.0, ramp_duration="100.0 s"), [(0, 50, 625), (50, 100, 1875)]),
        (
            StepArrivals(
                steps=[
                    {"rate": 20, "duration": "50 s"},
                    {"rate": 0, "duration": "50 s"},
                    {"rate": 60, "duration": "1 s"},
                ]
            ),
            [(0, 50, 1000), (50, 100, 0), (100, 200, 6000)],
        ),
        (
            SpikeArrivals(rate=10.0, factor=8.0, at="100.0 s", spike_duration="20.0 s"),
            [(0, 100, 1000), (100, 120, 1600), (120, 200, 800)],
        ),
        (
            DailyArrivals(rate=10.0, peak_to_mean=1.5, peak_hour=12.0, day="240.0 s"),
            [(0, 240, 2400), (60, 180, 1200 + 5 * 240 * 2 / (2 * np.pi)), (240, 480, 2400)],
        ),
        (
            DailyArrivals(rate=10.0, hours=[0.0] * 23 + [1.0], start_hour=22.5, day="240.0 s"),
            [(0, 5, 0), (5, 15, 2400), (15, 245, 0), (245, 255, 2400)],
        ),
        (
            DailyArrivals(rate=10.0, weekdays=[2, 2, 2, 2, 2, 0, 0], peak_to_mean=1.0, start_hour=12.0, day="100.0 s"),
            [(0, 450, 6300), (450, 650, 0), (650, 700, 700)],
        ),
    ],
)
def test_as_many_arrive_in_each_part_as_the_curve_says(arrivals, windows):
    """The integral of the rate, within 4 standard errors of a Poisson count; exactly none where the rate is 0."""
    times = times_of(arrivals, duration=max(end for _, end, _ in windows))

    for start, end, expected in windows:
        count = np.sum((times > start) & (times <= end))
        assert abs(count - expected) <= 4 * np.sqrt(expected), (start, end)


def test_a_varying_rate_ends_by_number_as_it_does_by_time():
    """The same arrivals, whichever end is asked for."""
    for arrivals in (
        DailyArrivals(rate=5.0, start_hour=7.3, day="100.0 s"),
        BurstArrivals(rate=5.0, factor=4.0, burst_duration="3.0 s", quiet_duration="17.0 s"),
        SpikeArrivals(rate=5.0, factor=3.0, at="30.0 s", spike_duration="10.0 s"),
    ):
        until = times_of(arrivals, duration=150.0)
        phases = rng.stream(1, "arrival_phases")
        many = arrival_times(arrivals, rng.stream(1, "arrivals"), num_requests=2_000, phases=phases)

        assert np.allclose(until, many[many <= 150.0], rtol=1e-9)
        assert many[-1] > 150.0


def test_bursts_keep_the_mean_and_spread_the_counts():
    """Mean rate 5; counts in windows much longer than a cycle have the index of dispersion of the process.

    Of an on-off modulated Poisson process it is 1 + 2 v / (m (r + s)) with r, s the rates of leaving a state, v the
    variance and m the mean of the modulated rate (Fischer and Meier-Hellstern, Performance Evaluation 18, 1993).
    """
    arrivals = BurstArrivals(rate=5.0, factor=4.0, burst_duration="2.0 s", quiet_duration="8.0 s")
    counts = []
    for seed in range(40):
        counts.append(np.histogram(times_of(arrivals, 20_000.0, seed), bins=50, range=(0.0, 20_000.0))[0])
    counts = np.concatenate(counts)

    variance = 0.2 * (20.0 - 5.0) ** 2 + 0.8 * (1.25 - 5.0) ** 2
    dispersion = 1.0 + 2.0 * variance / (5.0 * (1 / 2.0 + 1 / 8.0))
    assert abs(counts.mean() / 400.0 - 5.0) < 4 * np.sqrt(dispersion * 5.0 / 400.0 / len(counts))
    assert abs(counts.var() / counts.mean() / dispersion - 1.0) < 4 * np.sqrt(2 / len(counts))


def test_bursts_stand_at_the_same_times_at_any_rate():
    """So that a search over rates compares the same traffic: a burst that is one at 5/s is one at 50/s."""
    few = times_of(BurstArrivals(rate=50.0, factor=4.0, burst_duration="3.0 s", quiet_duration="17.0 s"), 400.0)
    many = times_of(BurstArrivals(rate=500.0, factor=4.0, burst_duration="3.0 s", quiet_duration="17.0 s"), 400.0)

    few_counts = np.histogram(few, bins=200, range=(0.0, 400.0))[0]
    many_counts = np.histogram(many, bins=200, range=(0.0, 400.0))[0]
    assert np.corrcoef(few_counts, many_counts)[0, 1] > 0.95


def test_more_than_a_run_can_hold_is_refused():
    """Before a single number is drawn."""
    with pytest.raises(ScenarioError, match="more than"):
        times_of(SpikeArrivals(rate=1e6, factor=1e6, at="1.0 s", spike_duration="100.0 s"), duration=100.0)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: BurstArrivals(rate=1.0, factor=9.0, burst_duration="5.0 s", quiet_duration="5.0 s"), "at most 2"),
        (lambda: StepArrivals(steps=[{"rate": 0, "duration": "1 s"}]), "above 0"),
        (lambda: DailyArrivals(rate=1.0, hours=[0] * 24), "nothing would arrive"),
        (lambda: DailyArrivals(rate=1.0, hours=[1, 2]), "24"),
    ],
)
def test_arrivals_that_cannot_be_are_refused(make, says):
    """With the rule that they break."""
    with pytest.raises(ValueError, match=says):
        make()


def test_a_spike_is_so_many_times_the_rate_and_ends():
    """2 requests/s, five times as many for 4 s from 10 s on: 20 by then, 60 by 14 s, 72 by 20 s."""
    curve = rate_curve_of(SpikeArrivals(rate=2.0, factor=5.0, at="10 s", spike_duration="4 s"))

    assert [curve.integral(until) for until in (10.0, 14.0, 20.0)] == pytest.approx([20.0, 60.0, 72.0])


def test_a_run_begins_in_a_burst_as_often_as_there_is_one():
    """Bursts of 10 s and quiet times of 30 s: a quarter of 2,000 runs, within 4 standard errors."""
    bursts = BurstArrivals(rate=1.0, factor=2.0, burst_duration="10 s", quiet_duration="30 s")
    starts = [rate_curve_of(bursts, rng.stream(seed, "phases"), until=1.0).left[0] for seed in range(2000)]

    assert abs(np.mean(np.equal(starts, 2.0)) - 0.25) < 4 * np.sqrt(0.25 * 0.75 / 2000)
