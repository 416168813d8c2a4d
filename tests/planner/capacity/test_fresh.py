"""A load that holds on average, and the one that runs hold which the search has not seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import simserve as ss
from simserve import rng
from simserve.planner.capacity.answer import capacity
from simserve.planner.capacity.fresh import (
    FEWEST_RUNS,
    FIRST_STEP,
    MOST_REQUESTS,
    FreshRun,
    fresh_runs,
    hold_in_fresh_runs,
    is_one_more_held,
)
from simserve.planner.capacity.level import Found, Level, Prober, Trial
from simserve.planner.capacity.probe import probe_of
from simserve.planner.capacity.search import Effort, find_capacity

ASKED, EDGE = 0.95, 40.0
EFFORT = Effort(num_requests=500)


def probe(spread: float, num_simulated: int = 500, name: str = "edge") -> Prober:
    """Return runs whose edge differs from one to the next by a share: at it, 5 % miss."""

    def run(load: float, replication: int, num_requests: int) -> Trial:
        edge = EDGE * float(np.exp(spread * rng.stream(1, name, replication).standard_normal()))
        attained = float(np.clip(1 - 0.05 * (load / edge) ** 4, 0, 1))
        met = np.arange(num_requests) >= (1 - attained) * num_requests
        return Trial(
            attainment=attained,
            by_metric={"tpot": attained},
            stability="stable",
            in_flight=load,
            met=met,
            num_simulated=num_simulated,
        )

    return run


def searched(run: Prober, *, is_whole: bool = False) -> Found:
    """Return what the search finds: what holds on average."""
    return find_capacity(run, asked=ASKED, start=10.0, effort=EFFORT, is_whole=is_whole)


@pytest.mark.slow
@pytest.mark.parametrize("is_whole", [False, True])
def test_what_is_promised_holds_in_95_of_100_further_runs(is_whole: bool) -> None:
    """Where half of them miss what holds on average, which becomes the capacity with its interval."""
    at_mean: list[float] = []
    holding: list[float] = []
    promised: list[float] = []
    for draw in range(20):
        run = probe(0.08, name=f"edge {draw}")
        mean = searched(run, is_whole=is_whole)

        found = hold_in_fresh_runs(run, mean, asked=ASKED, effort=EFFORT, is_whole=is_whole)

        load = found.largest.value
        assert (found.capacity, found.num_fresh, found.is_promised) == (mean.largest.value, 16, True)
        assert found.interval is not None
        assert found.interval[0] <= load < found.interval[1]
        assert load == round(load, 0 if is_whole else 1)
        level = found.level(load)
        assert level is not None
        assert level.num_measured == 16 * 500
        further = range(1000, 1200)
        for shares, at in ((at_mean, mean.largest.value), (holding, load)):
            shares.append(float(np.mean([run(at, each, 500).attainment >= ASKED for each in further])))
        promised.append(load)

    assert np.mean(at_mean) < 0.65
    assert np.mean(holding) >= 0.95
    assert np.mean(promised) > 0.8 * EDGE


def test_runs_that_are_all_alike_hold_what_they_hold_on_average() -> None:
    """Rounded down to three digits."""
    run = probe(0.0)
    mean = searched(run)

    found = hold_in_fresh_runs(run, mean, asked=ASKED, effort=EFFORT, is_whole=False)

    assert 0.995 * mean.largest.value < found.largest.value <= mean.largest.value


@pytest.mark.parametrize(
    ("missed", "asked", "holds", "runs"),
    [
        ([0.02, 0.02, 0.02, 0.02], 0.95, True, 4),
        ([0.02, 0.06, 0.02, 0.02], 0.95, False, 2),
        ([0.0, 0.0, 0.04, 0.04], 0.95, False, 4),
        ([0.0, 0.0, 0.04, 0.04], None, True, 4),
    ],
)
def test_fresh_runs_hold_where_all_do_and_a_further_one_would(
    missed: list[float], asked: float | None, holds: bool, runs: int
) -> None:
    """They end with the first that misses; runs that differ widely say that a further one may."""

    def run(index: int) -> FreshRun:
        return FreshRun(holds=missed[index] <= 0.05, attainment=1 - missed[index], num_requests=100)

    found = fresh_runs(run, asked=asked, most_runs=4)

    assert found.holds is holds
    assert found.attainments == tuple(1 - share for share in missed[:runs])


def test_long_runs_are_fewer() -> None:
    """Three, of a third of the requests at one load each."""
    run = probe(0.01, num_simulated=MOST_REQUESTS // FEWEST_RUNS)

    assert hold_in_fresh_runs(run, searched(run), asked=ASKED, effort=EFFORT, is_whole=False).num_fresh == FEWEST_RUNS


def test_where_fresh_runs_miss_at_any_load_the_mean_is_all_that_is_known() -> None:
    """What was found comes back as it was, and promises nothing."""
    first = searched(probe(0.05))

    def unlucky(load: float, replication: int, num_requests: int) -> Trial:
        return replace(probe(0.0)(load, replication, num_requests), attainment=0.9)

    found = hold_in_fresh_runs(unlucky, first, asked=ASKED, effort=EFFORT, is_whole=False)

    assert found is first
    assert not found.is_promised


def test_one_client_is_the_fewest() -> None:
    """Below it there is nothing to try."""
    loads: list[float] = []

    def missed(load: float, replication: int, num_requests: int) -> Trial:
        loads.append(load)
        return replace(probe(0.0)(load, replication, num_requests), attainment=0.9)

    first = replace(searched(probe(0.0), is_whole=True), largest=replace(searched(probe(0.0)).largest, value=3.0))
    hold_in_fresh_runs(missed, first, asked=ASKED, effort=EFFORT, is_whole=True)

    assert FIRST_STEP * 3 < 1
    assert loads == [3, 2, 1]


@pytest.mark.slow
def test_bursts_hold_what_capacity_promises_of_them() -> None:
    """On average they hold a tenth more, and half of the fresh runs miss there."""
    scenario = ss.load("urgent-first")
    answer = capacity(scenario)
    run, summary = probe_of(scenario), answer.summary

    def holding(load: float) -> int:
        trials = [run(load, each, answer.found.num_requests) for each in range(100, 110)]
        return sum(Level(load=load, trials=(trial,)).holds(answer.asked) for trial in trials)

    assert holding(summary["max_rate"]) >= 9
    assert holding(summary["mean_capacity"]) < 9
    assert summary["confidence_interval"]["low"] <= summary["max_rate"] < summary["mean_capacity"]
    assert 0 < summary["max_rate_90"] <= summary["max_rate"]
    assert any("runs differ; --precision lengthens them" in note for note in answer.notes)


def test_one_more_run_varies_beside_the_mean_of_those_that_were_made() -> None:
    """Six runs: 2.757 (98 %, five degrees of freedom) times their spread, times the root of 1 + 1/6."""
    missed = np.array([0.18, 0.19, 0.20, 0.20, 0.21, 0.22])
    edge = 0.20 + 2.7565 * float(np.std(missed, ddof=1)) * (1 + 1 / 6) ** 0.5
    verdicts = [is_one_more_held((1 - missed**2).tolist(), 1 - (edge + each) ** 2) for each in (0.0005, -0.0005)]

    assert verdicts == [True, False]


def test_a_load_is_not_overloaded_because_half_of_its_runs_look_so() -> None:
    """Near a capacity one of two does by chance; two of three do not."""
    calm = Trial(attainment=1.0, by_metric={}, stability="stable")
    grown = replace(calm, stability="overloaded")
    verdicts = [Level(load=1.0, trials=each).stability for each in ((calm, grown), (grown, calm), (grown, calm, grown))]

    assert verdicts == ["stable", "stable", "overloaded"]
