"""The search against queues whose capacity is known in closed form, and what must hold of any answer."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import brentq

from simserve import rng
from simserve.errors import InterruptedRunError
from simserve.metrics.latency import SLO
from simserve.planner.capacity.level import Found, Prober, Promise, Trial
from simserve.planner.capacity.probe import LoadProbe
from simserve.planner.capacity.search import (
    FEW_FRESH_RUNS,
    MOST_BELOW,
    NEAR_FULL,
    Effort,
    find_capacity,
    is_load_sustained,
    long_run_requests,
)
from simserve.scenario.finishable import Finishable
from simserve.workload.requests import RequestSpecs
from tests.builders import constant_step_times, make_specs
from tests.theory.builders import Service, fixed_steps, geometric_steps, make_deployment, seats

STEP = 1 / 256
"""Seconds of a step; a service is 256 of them, so a second."""


def queue_probe(
    service: Service, *, max_num_seqs: int, ttft: float, num_replicas: int = 1, name: str = "capacity"
) -> LoadProbe:
    """Return a probe of a queue: Poisson arrivals, seats that serve steps of a constant length."""

    def draw(replication: int, num_requests: int) -> RequestSpecs:
        gaps = rng.stream(1, f"{name} gaps", replication).exponential(1.0, num_requests)
        steps = service.sample(rng.stream(1, f"{name} steps", replication), (num_requests,))
        specs = make_specs(np.cumsum(gaps).tolist(), 1, steps.tolist())
        return replace(specs, is_stationary=True, offered_rate=1.0)

    deployment = make_deployment(seats(max_num_seqs), constant_step_times(STEP, max_num_seqs), num_replicas)
    return LoadProbe(
        deployment=replace(deployment, routing="least_outstanding"),
        slo=SLO(ttft=ttft, tpot=None, e2e=None, attainment=0.9),
        draw=draw,
    )


def share_within_m_d_1(rate: float, wait: float) -> float:
    """Return P(W <= wait) of M/D/1 with a service of 1: Erlang 1909, as in Tijms, Stochastic Models (1994), 4.4.

    ``(1 - rate) sum_k (rate (k - wait))^k / k! exp(-rate (k - wait))`` for k from 0 to the whole part of the wait.
    """
    terms = ((rate * (k - wait)) ** k / math.factorial(k) * math.exp(-rate * (k - wait)) for k in range(int(wait) + 1))
    return (1 - rate) * sum(terms)


def share_within_m_m_c(rate: float, wait: float, num_servers: int) -> float:
    """Return P(W <= wait) of M/M/c with a mean service of 1: ``1 - C exp(-(c - rate) wait)``, C by Erlang."""
    utilization = rate / num_servers
    all_busy = rate**num_servers / math.factorial(num_servers) / (1 - utilization)
    some_free = sum(rate**busy / math.factorial(busy) for busy in range(num_servers))
    return 1 - all_busy / (some_free + all_busy) * math.exp(-(num_servers - rate) * wait)


THOROUGH = Effort(replications=6, tolerance=0.008, precision=0.015, most_requests=30_000)


def test_one_seat_and_fixed_lengths_bear_what_m_d_1_bears() -> None:
    """The rate at which 90 % wait at most one and a half services, to 2 %."""
    wait = 1.5
    theory = brentq(lambda rate: share_within_m_d_1(rate, wait) - 0.9, 0.05, 0.99)
    probe = queue_probe(fixed_steps(256), max_num_seqs=1, ttft=wait + STEP)

    found = find_capacity(probe, asked=0.9, start=0.1, effort=THOROUGH)

    assert found.largest.value == pytest.approx(theory, rel=0.02)
    assert found.interval is not None
    assert found.interval[0] <= theory <= found.interval[1]
    assert found.binding(0.9) == "ttft"


def test_seats_of_one_replica_bear_what_m_m_c_bears() -> None:
    """Four seats, exponential lengths: Erlang C, to 2 %. A request joins at the next step: half a step of wait."""
    wait = 0.25
    theory = brentq(lambda rate: share_within_m_m_c(rate, wait, 4) - 0.9, 0.1, 3.99)
    probe = queue_probe(geometric_steps(256), max_num_seqs=4, ttft=wait + 1.5 * STEP)

    found = find_capacity(probe, asked=0.9, start=1.0, effort=THOROUGH)

    assert found.largest.value == pytest.approx(theory, rel=0.02)


def test_where_nobody_waits_for_long_the_queue_itself_is_the_limit() -> None:
    """A TTFT of a thousand services: 90 % may still make it in a run, and yet an overloaded run does not hold."""
    probe = queue_probe(fixed_steps(256), max_num_seqs=1, ttft=1000.0)

    found = find_capacity(probe, asked=0.9, start=0.3, effort=Effort(replications=3, num_requests=3000))

    assert found.largest.value == pytest.approx(1.0, rel=0.06)
    assert found.binding(0.9) == "overload"


QUICK = Effort(replications=2, num_requests=1500, tolerance=0.02)


@pytest.mark.slow
def test_more_replicas_and_a_looser_objective_bear_more() -> None:
    """Monotone in both, on the same requests."""
    by_replicas = [
        find_capacity(
            queue_probe(geometric_steps(16), max_num_seqs=1, ttft=40 * STEP, num_replicas=count),
            asked=0.9,
            start=10.0,
            effort=QUICK,
        ).largest.value
        for count in (1, 2, 4)
    ]
    by_bound = [
        find_capacity(
            queue_probe(geometric_steps(16), max_num_seqs=2, ttft=bound * STEP), asked=0.9, start=10.0, effort=QUICK
        ).largest.value
        for bound in (8, 20, 60)
    ]

    assert by_replicas == sorted(by_replicas)
    assert by_bound == sorted(by_bound)
    assert by_replicas[2] > 3 * by_replicas[0]
    assert by_bound[2] > 1.5 * by_bound[0]


def trial(load: float, edge: float, num_requests: int = 1000, name: str = "tpot") -> Trial:
    """Return a run in which the share that meets the bound falls from 1 at no load through 0.95 at the edge."""
    attained = float(np.clip(1 - 0.05 * (load / edge) ** 8, 0, 1))
    met = np.arange(num_requests) >= (1 - attained) * num_requests
    by_metric = {"ttft": 1.0, name: attained}
    return Trial(
        attainment=attained, by_metric=by_metric, stability="stable", goodput=load * attained, in_flight=load, met=met
    )


def search(edge: float, **changes: float) -> Found:
    """Return what is found where replications differ by 2 % in the load they bear."""
    return find_capacity(
        lambda load, replication, num_requests: trial(load, edge * (1 + 0.01 * (-1) ** replication), num_requests),
        asked=0.95,
        start=2.0,
        effort=Effort(**changes),
    )


def test_the_interval_covers_the_edge_and_narrows_with_the_replications() -> None:
    """Over replications, divided by the slope."""
    few, many = search(7.0, replications=4), search(7.0, replications=12)

    for found in (few, many):
        assert found.interval is not None
        assert found.interval[0] < 7.0 < found.interval[1]
        assert found.interval_method == "replications"
    assert many.interval[1] - many.interval[0] < 0.6 * (few.interval[1] - few.interval[0])  # type: ignore[index]


def test_the_curve_goes_beyond_the_capacity_and_shows_the_knee() -> None:
    """The most goodput lies past the last load that holds, and before the end of the curve."""
    found = search(7.0)

    assert found.levels[0].load < 0.6 * 7 < 1.4 * 7 < found.levels[-1].load
    assert found.knee is not None
    assert found.largest.value <= found.knee.load < found.levels[-1].load


def test_an_objective_that_no_load_meets_is_zero_and_names_the_bound() -> None:
    """After a handful of tries."""
    missed = Trial(
        attainment=0.2, by_metric={"ttft": 1.0, "tpot": 0.2}, stability="stable", in_flight=3.0, met=np.zeros(9, bool)
    )

    found = find_capacity(lambda *_: missed, asked=0.95, start=2.0)

    assert (found.largest.value, found.interval, found.binding(0.95)) == (0.0, None, "tpot")


def test_the_highest_load_allowed_is_an_answer_without_an_interval() -> None:
    """Nothing was seen to fail."""
    found = find_capacity(lambda load, *_: trial(load, 1e9), asked=0.95, start=2.0, highest=11.0)

    assert (found.largest.value, found.largest.fails_at, found.interval) == (11.0, None, None)
    assert found.binding(0.95) is None


def test_a_high_attainment_takes_more_requests() -> None:
    """Ten must lie beyond the percentile: 10,000 for 99.9 %."""
    asked: set[int] = set()

    def probe(load: float, replication: int, num_requests: int) -> Trial:
        asked.add(num_requests)
        return trial(load, 7.0)

    found = find_capacity(probe, asked=0.999, start=2.0)

    assert min(asked) >= 10_000
    assert found.needed_requests == 10_000


def test_more_precision_takes_more_requests() -> None:
    """Until the interval is as narrow as asked, or the limit is reached."""

    def noisy(load: float, replication: int, num_requests: int) -> Trial:
        return trial(load, 7.0 * (1 + 0.5 * (-1) ** replication / math.sqrt(num_requests)), num_requests)

    lax = find_capacity(noisy, asked=0.95, start=2.0, effort=Effort(precision=0.02))
    strict = find_capacity(noisy, asked=0.95, start=2.0, effort=Effort(precision=0.003, most_requests=1_000_000))

    assert strict.num_requests > 2 * lax.num_requests
    assert strict.interval is not None
    assert (strict.interval[1] - strict.interval[0]) / 2 / strict.largest.value <= 0.0035


@pytest.mark.parametrize(("runs", "held", "failed"), [(1, 2, None), (3, 4, 8)])
def test_an_interrupt_keeps_what_was_shown_until_then(runs: int, held: float, failed: float | None) -> None:
    """The bracket so far is worth something; without a run there is nothing to say."""
    found = find_capacity(interrupted_after(runs), asked=0.95, start=2.0)

    assert found.was_interrupted
    assert (found.largest.value, found.largest.fails_at) == (held, failed)
    assert [level.load for level in found.levels] == [2, 4, 8][:runs]
    with pytest.raises(InterruptedRunError, match="no run was finished"):
        find_capacity(interrupted_after(0), asked=0.95, start=2.0)


def interrupted_after(runs: int) -> Prober:
    """Return runs that hold up to 4.2, of which the user stops one."""
    done = 0

    def probe(load: float, replication: int, num_requests: int) -> Trial:
        nonlocal done
        if done == runs:
            raise KeyboardInterrupt
        done += 1
        return trial(load, 4.2, num_requests)

    return probe


def test_an_interrupt_trusts_longer_runs() -> None:
    """What a short run held is not stated where longer ones failed at a lower load."""
    long_runs = 0

    def probe(load: float, replication: int, num_requests: int) -> Trial:
        nonlocal long_runs
        long_runs += num_requests > 500
        if long_runs == 9:
            raise KeyboardInterrupt
        return trial(load, 8.0 if num_requests <= 500 else 6.0, num_requests)

    found = find_capacity(probe, asked=0.95, start=2.0)

    assert found.was_interrupted
    assert found.largest.value < 6.0 < (found.largest.fails_at or 0.0)


def test_an_interrupt_of_the_curve_keeps_the_answer() -> None:
    """The last runs draw the curve of goodput: the load, its interval and what breaks are known before them."""
    runs = 0

    def probe(load: float, replication: int, num_requests: int) -> Trial:
        nonlocal runs
        runs += 1
        if runs == stop:
            raise KeyboardInterrupt
        return trial(load, 4.2, num_requests)

    stop = 0
    whole = find_capacity(probe, asked=0.95, start=2.0)
    stop, runs = runs, 0
    cut = find_capacity(probe, asked=0.95, start=2.0)

    assert (cut.was_interrupted, cut.is_complete) == (True, True)
    assert (cut.largest, cut.interval, cut.binding(0.95)) == (whole.largest, whole.interval, whole.binding(0.95))
    assert len(cut.levels) == len(whole.levels) - 1


def test_a_load_that_fails_for_certain_is_not_run_again() -> None:
    """Once what was missed is more than all runs together may miss, the others of that load are spared."""
    runs: list[float] = []

    def probe(load: float, replication: int, num_requests: int) -> Trial:
        runs.append(load)
        return trial(load, 4.2, num_requests)

    found = find_capacity(probe, asked=0.95, start=2.0, effort=Effort(replications=6))

    far = [level for level in found.levels if level.attainment < 0.7]
    assert far
    assert all(len(level.trials) == 1 for level in far)
    assert len(found.level(found.largest.value).trials) == 6  # type: ignore[union-attr]


UNIT = Finishable(rate=1.0, half_width=0.005, requests=4000)
"""Of one seat whose services last a second."""


def steady(probe: LoadProbe, *, asked: float = 0.9, **changes: float) -> Found:
    """Return what fresh runs of a queue of one seat hold."""
    known = replace(probe, finishable=UNIT, is_steady=True)
    return find_capacity(known, asked=asked, start=0.1, effort=Effort(**changes), finishable=UNIT)


@pytest.mark.slow
def test_what_is_promised_lies_just_below_m_d_1() -> None:
    """At most 5 % below the rate at which 90 % wait at most one and a half services; the interval covers it."""
    wait = 1.5
    theory = brentq(lambda rate: share_within_m_d_1(rate, wait) - 0.9, 0.05, 0.99)
    probe = queue_probe(fixed_steps(256), max_num_seqs=1, ttft=wait + STEP)

    found = steady(probe)

    assert 0.95 * theory <= found.largest.value <= theory
    assert found.interval is not None
    assert found.interval[0] <= theory <= found.interval[1]
    assert found.has_settled
    assert found.num_requests >= 30_000


@pytest.mark.slow
def test_seeds_that_the_search_has_not_seen_hold_at_what_is_promised() -> None:
    """Twenty other draws, of the trial's own length; at the mean capacity about half of them do not."""
    probe = queue_probe(fixed_steps(256), max_num_seqs=1, ttft=1.5 + STEP)
    others = queue_probe(fixed_steps(256), max_num_seqs=1, ttft=1.5 + STEP, name="others")

    found = steady(probe, num_requests=3000)

    assert found.capacity is not None
    at_promise = [others(found.largest.value, each, 3000).attainment >= 0.9 for each in range(20)]
    at_mean = [others(found.capacity, each, 3000).attainment >= 0.9 for each in range(20)]
    assert sum(at_promise) >= 19
    assert sum(at_mean) <= 17


@pytest.mark.slow
def test_no_load_near_what_can_be_finished_is_tried_but_for_the_curve() -> None:
    """A TTFT that is hardly ever missed: the load ratio is the limit, and the interval reaches up to it."""
    tried: list[tuple[float, int]] = []
    queue = replace(queue_probe(fixed_steps(256), max_num_seqs=1, ttft=1000.0), finishable=UNIT, is_steady=True)

    def probe(load: float, replication: int, num_requests: int) -> Trial:
        tried.append((load, num_requests))
        return queue(load, replication, num_requests)

    found = find_capacity(probe, asked=0.9, start=5.0, effort=Effort(num_requests=3000), finishable=UNIT)

    assert found.largest.value == pytest.approx(NEAR_FULL, rel=0.01)
    assert found.largest.fails_at == 1.0
    assert found.binding(0.9) == "overload"
    assert found.interval == (found.largest.value, 1.005)
    assert found.interval_method == "load ratio"
    assert sorted({load for load, _ in tried if load > NEAR_FULL}) == pytest.approx(
        [share * found.largest.value for share in (1.25, 1.5)]
    )
    assert found.levels[-1].stability == "overloaded"


def spread(seen: Trial) -> Trial:
    """Return a run whose requests that miss are spread evenly over it."""
    count = len(seen.met)
    return replace(seen, met=np.diff(np.floor(np.arange(count + 1) * seen.met.mean() + 1e-9)) > 0)


def test_runs_that_differ_widely_are_made_longer() -> None:
    """Until what is promised lies close below the mean; runs of a given length stay as they are."""

    def noisy(load: float, replication: int, num_requests: int) -> Trial:
        edge = 7.0 * (1 + 9 * (-1) ** replication / math.sqrt(num_requests))
        return spread(trial(load, edge, num_requests))

    finishable = Finishable(rate=10.0, half_width=0.1, requests=4000)
    free = find_capacity(noisy, asked=0.95, start=2.0, finishable=finishable)
    given = find_capacity(noisy, asked=0.95, start=2.0, effort=Effort(num_requests=5000), finishable=finishable)

    assert free.num_requests > 30_000
    assert free.capacity is not None
    assert 0.94 * 7 < (1 - MOST_BELOW) * free.capacity <= free.largest.value < free.capacity < 7
    assert given.num_requests == 5000
    assert given.largest.value < 0.9 * 7


def test_a_promise_far_below_the_mean_may_take_twice_as_long_runs() -> None:
    """Where runs of 100,000 requests differ by too much still, they go on to 200,000; else they end there."""

    def noisy(load: float, replication: int, num_requests: int) -> Trial:
        edge = 7.0 * (1 + 14 * (-1) ** replication / math.sqrt(num_requests))
        return spread(trial(load, edge, num_requests))

    finishable = Finishable(rate=10.0, half_width=0.1, requests=4000)
    lengths = {
        most_below: find_capacity(
            noisy, asked=0.95, start=2.0, effort=Effort(most_below=most_below), finishable=finishable
        ).num_requests
        for most_below in (MOST_BELOW, 0.2)
    }

    assert 100_000 < lengths[MOST_BELOW] <= 200_000
    assert lengths[0.2] <= 100_000


def test_traffic_without_chance_is_promised_close_below_its_step() -> None:
    """Attainment of fixed lengths at a constant rate falls from 1 to nothing: a line from below stops far too soon."""

    def step(load: float, replication: int, num_requests: int) -> Trial:
        met = np.full(num_requests, load <= 7.0)
        return replace(trial(load, 7.0, num_requests), attainment=float(met.mean()), met=met)

    finishable = Finishable(rate=10.0, half_width=0.0, requests=4000)

    found = find_capacity(step, asked=0.95, start=2.0, finishable=finishable)

    assert 0.97 * 7 < found.largest.value <= 7
    assert found.interval is not None
    assert found.interval[0] <= 7 <= found.interval[1]
    assert found.interval_method == "bracket"


def sustained(load: float, edge: float = 7.0) -> Promise:
    """Return whether a load is sustained where runs differ by a tenth of their share that misses."""

    def noisy(load: float, replication: int, num_requests: int) -> Trial:
        return spread(trial(load, edge * (1 + 3 * (-1) ** replication / math.sqrt(num_requests)), num_requests))

    return is_load_sustained(noisy, load, asked=0.95, finishable=Finishable(rate=10.0, half_width=0.1, requests=4000))


def test_a_load_far_from_the_capacity_is_settled_by_short_runs() -> None:
    """Half of it holds, and more than can be finished is not tried at all."""
    half, near, above, double = sustained(3.0), sustained(6.8), sustained(7.1), sustained(9.7)

    assert (half.holds, near.holds, above.holds, double.holds) == (True, True, False, False)
    assert half.num_requests <= long_run_requests(3.0) < near.num_requests
    assert double.attainments == ()


def test_a_load_at_which_one_long_run_in_nine_misses_is_not_borne() -> None:
    """Of 24 runs some miss, of the first eight none, and not where runs are short."""

    def wandering(load: float, replication: int, num_requests: int) -> Trial:
        misses = num_requests > 15_000 and replication % 9 == 0
        return spread(trial(load, 15.5 if misses else 17.0, num_requests))

    finishable = Finishable(rate=20.0, half_width=0.1, requests=4000)
    found = is_load_sustained(wandering, 16.0, asked=0.95, finishable=finishable)

    assert not found.holds
    assert found.num_requests == long_run_requests(16.0)


def runs_until_known(load: float, edges: Callable[[int, int], float]) -> tuple[Promise, list[int]]:
    """Return whether a load is sustained, and the replications of its longest runs, by the load at which each fails."""
    seen: list[tuple[int, int]] = []

    def counted(at: float, replication: int, num_requests: int) -> Trial:
        if at == load:
            seen.append((num_requests, replication))
        return spread(trial(at, edges(replication, num_requests), num_requests))

    finishable = Finishable(rate=20.0, half_width=0.1, requests=4000)
    found = is_load_sustained(counted, load, asked=0.95, finishable=finishable)
    return found, [replication for length, replication in seen if length == found.num_requests]


def test_a_load_that_holds_by_far_takes_four_long_runs() -> None:
    """Where fewer than half as many miss as may; nearer to the capacity it is 24 of them. Short runs differ more."""

    def wandering(by: float) -> Callable[[int, int], float]:
        return lambda replication, length: 16.0 if length > 10_000 else 16.0 - by * (replication % 2)

    far, far_runs = runs_until_known(13.0, wandering(2.5))
    near, near_runs = runs_until_known(15.5, wandering(0.8))

    assert (far.holds, near.holds) == (True, True)
    assert (far_runs, near_runs) == ([1, 2, 3, 4], list(range(1, 25)))


def test_the_first_long_run_that_misses_is_the_last() -> None:
    """Those after it could not change that the load is not sustained."""
    found, runs = runs_until_known(
        15.5, lambda replication, length: 15.0 if length > 10_000 and replication == 6 else 16.0 - 0.1 * replication % 2
    )

    assert not found.holds
    assert runs == [1, 2, 3, 4, 5, 6]


def test_what_is_promised_alone_takes_fewer_requests() -> None:
    """No interval and no curve: a load 3 % lower at most, in a third of the requests."""
    spent: list[int] = []

    def noisy(load: float, replication: int, num_requests: int) -> Trial:
        spent.append(num_requests)
        edge = 7.0 * (1 + 3 * (-1) ** replication / math.sqrt(num_requests))
        return replace(spread(trial(load, edge, num_requests)), num_simulated=num_requests)

    finishable, first = Finishable(rate=10.0, half_width=0.1, requests=4000), Effort(long_run_requests=5000)
    whole = find_capacity(noisy, asked=0.95, start=2.0, effort=first, finishable=finishable)
    of_whole = sum(spent)
    effort = replace(first, fresh_runs=FEW_FRESH_RUNS, promise_only=True, most_below=0.05)
    promised = find_capacity(noisy, asked=0.95, start=2.0, effort=effort, finishable=finishable)

    assert promised.largest.value == pytest.approx(whole.largest.value, rel=0.03)
    assert promised.capacity is not None
    assert 0.95 * promised.capacity <= promised.largest.value < 7
    assert sum(spent) - of_whole < of_whole / 3


def test_runs_of_a_slow_fleet_are_made_as_long_as_those_of_a_fast_one() -> None:
    """Not eight times 5,000 requests but up to 100,000, where that brings the promise within 3.5 % of the capacity."""

    def noisy(load: float, replication: int, num_requests: int) -> Trial:
        edge = 7.0 * (1 + 9 * (-1) ** replication / math.sqrt(num_requests))
        return spread(trial(load, edge, num_requests))

    finishable = Finishable(rate=30.0, half_width=0.1, requests=4000)
    effort = Effort(long_run_requests=5000, fresh_runs=FEW_FRESH_RUNS, promise_only=True, most_below=0.035)
    found = find_capacity(noisy, asked=0.95, start=2.0, effort=effort, finishable=finishable)

    assert 40_000 < found.num_requests <= 100_000
    assert found.capacity is not None
    assert found.largest.value > 0.96 * found.capacity


def test_twenty_minutes_near_the_capacity_are_enough_of_a_plan() -> None:
    """30,000 requests or 20 minutes, and never fewer than 5,000."""
    assert [long_run_requests(rate) for rate in (0.5, 10.0, 80.0)] == [5000, 12_000, 30_000]


def test_runs_whose_halves_differ_have_not_settled() -> None:
    """All requests that miss come in the second half of every run, as where a queue grows."""

    def growing(load: float, replication: int, num_requests: int) -> Trial:
        seen = trial(load, 7.0, num_requests)
        return replace(seen, met=seen.met[::-1])

    finishable = Finishable(rate=10.0, half_width=0.1, requests=4000)

    found = find_capacity(growing, asked=0.95, start=2.0, finishable=finishable)

    assert found.has_settled is False
    assert found.num_requests > 30_000


def test_an_objective_that_no_load_meets_is_found_out_by_short_runs() -> None:
    """Below what can be finished too: zero, and the bound that is missed."""
    missed = Trial(
        attainment=0.2, by_metric={"ttft": 1.0, "tpot": 0.2}, stability="stable", in_flight=3.0, met=np.zeros(9, bool)
    )

    found = find_capacity(lambda *_: missed, asked=0.95, start=2.0, finishable=UNIT)

    assert (found.largest.value, found.interval, found.binding(0.95)) == (0.0, None, "tpot")
    assert found.num_requests == 500


def test_a_load_of_whose_runs_half_look_overloaded_is_run_to_the_end() -> None:
    """Two of four are chance, and all requests are in time: the load is not given up after the third."""

    def probe(load: float, replication: int, num_requests: int) -> Trial:
        return replace(trial(load, 4.2, num_requests), stability="overloaded" if replication in (1, 2) else "stable")

    found = find_capacity(probe, asked=0.95, start=2.0, effort=Effort(replications=4))

    assert found.largest.value == pytest.approx(4.2, rel=0.05)
