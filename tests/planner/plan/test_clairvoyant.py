"""Who knows the load ahead: its steps, the rates that fleets sustain, and the fewest replica-seconds, by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from simserve.errors import InvariantError
from simserve.planner.plan.clairvoyant import (
    LEVEL_STEP,
    Load,
    load_over_time,
    rates_by_replicas,
    replica_seconds,
    replicas_needed,
    sustained_rate,
)
from tests.scenario.builders import make_scenario


def test_the_load_of_a_curve_is_its_rate() -> None:
    """A day of four times the trough at its peak, in steps whose mean is the mean rate."""
    daily = {"process": "daily", "rate": 2.0, "peak_to_mean": 1.6}
    scenario = make_scenario({"workload.arrivals": daily, "workload.num_requests": None, "workload.duration": "24 h"})
    load = load_over_time(scenario)

    assert load.seconds == 86_400
    assert load.rates.mean() == pytest.approx(2.0)
    assert load.peak == pytest.approx(3.2, rel=2e-3)
    assert load.peak / load.rates.min() == pytest.approx(4.0, rel=5e-3)


def test_the_load_of_other_traffic_is_what_arrives() -> None:
    """Every request but those on the last edge is in one of the steps."""
    arrivals = {"process": "poisson", "rate": 2.0}
    load = load_over_time(make_scenario({"workload.arrivals": arrivals, "workload.num_requests": 500}))

    assert (load.rates * np.diff(load.edges)).sum() == pytest.approx(500)


@pytest.mark.parametrize("guess", [0.1, 3.0, 70.0])
def test_the_sustained_rate_is_found_from_any_guess(guess: float) -> None:
    """To its step, from below."""
    found = sustained_rate(lambda rate: rate <= 3.3, guess)

    assert 3.3 / (1 + LEVEL_STEP) <= found <= 3.3


def test_fleets_between_those_measured_lie_on_a_line() -> None:
    """From none, which sustain nothing."""
    rates = rates_by_replicas({1: 1.0, 2: 2.2, 4: 5.0})

    assert rates.tolist() == pytest.approx([0.0, 1.0, 2.2, 3.6, 5.0])


def test_each_step_needs_the_fewest_replicas_that_sustain_it() -> None:
    """A rate just sustained needs no replica more; one that none sustains is a broken invariant."""
    sustained = np.array([0.0, 1.0, 2.2])
    load = Load(edges=np.arange(5.0), rates=np.array([0.0, 1.0, 1.1, 2.2]))

    assert replicas_needed(load, sustained).tolist() == [0, 1, 2, 2]
    with pytest.raises(InvariantError, match="2 replicas sustain"):
        replicas_needed(Load(edges=np.arange(2.0), rates=np.array([2.3])), sustained)


def test_a_start_is_paid_and_a_short_gap_is_kept() -> None:
    """By hand: 100 s each; the second replica is launched 30 s early, and kept over a gap of a start at most."""
    edges = np.array([0.0, 100.0, 200.0, 220.0, 300.0])

    assert replica_seconds(edges, np.array([1, 2, 1, 1]), 30.0) == pytest.approx(300 + 130)
    assert replica_seconds(edges, np.array([2, 2, 1, 2]), 30.0) == pytest.approx(300 + 300)
    assert replica_seconds(edges, np.array([2, 1, 1, 2]), 30.0) == pytest.approx(300 + 100 + 110)


def test_no_schedule_of_one_replica_takes_less() -> None:
    """Against every way to keep or to give it back between the steps that need it."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        edges = np.cumsum([0.0, *rng.uniform(5, 60, 8)])
        needed = rng.integers(0, 2, 8)
        best = min(
            _paid(edges, there, startup=30.0)
            for there in itertools.product([0, 1], repeat=8)
            if all(np.array(there) >= needed)
        )

        assert replica_seconds(edges, needed, 30.0) == pytest.approx(best)


def _paid(edges: np.ndarray, there: tuple[int, ...], startup: float) -> float:
    """Return the seconds of a replica that is ready in some steps: each time it comes back it starts."""
    seconds = float(np.diff(edges) @ np.array(there))
    ready = [step for step in range(len(there)) if there[step] and (step == 0 or not there[step - 1])]
    for step in ready:
        gone = max((edges[before + 1] for before in range(step) if there[before]), default=0.0)
        seconds += min(startup, edges[step] - gone)
    return seconds
