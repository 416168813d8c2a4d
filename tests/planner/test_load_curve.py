"""Tests of a deployment at several loads."""

from __future__ import annotations

from pathlib import Path

import pytest

from simserve.planner.load_curve import LEAST_SECONDS, NUM_REQUESTS, LoadCurve
from tests.scenario.builders import make_scenario

_SLO = "slo={ttft: 500 ms, tpot: 50 ms, attainment: 0.9}"
_SEATS = "deployment.engine.max_num_seqs=4"
_OPEN = [_SLO, "workload.num_requests=200", "workload.arrivals={process: poisson, rate: 1}", _SEATS]


def test_the_capacity_lies_between_a_load_that_holds_and_one_that_does_not() -> None:
    """And within the width of the last bisection."""
    curve = LoadCurve(make_scenario(_OPEN))

    capacity = curve.capacity()

    assert capacity is not None
    held = max(level.load for level in curve.levels.values() if level.holds)
    missed = min(level.load for level in curve.levels.values() if not level.holds)
    assert capacity == held < missed <= held * 1.06


@pytest.mark.slow
def test_the_capacity_does_not_depend_on_where_the_search_starts() -> None:
    """From far above as from far below: within the width of both."""
    low, high = (LoadCurve(make_scenario([*_OPEN, f"workload.arrivals.rate={rate}"])).capacity() for rate in (0.5, 200))

    assert low == pytest.approx(high, rel=0.1)


def test_an_objective_held_at_no_load_has_no_capacity() -> None:
    """A TTFT of a microsecond."""
    curve = LoadCurve(make_scenario([*_OPEN, "slo={ttft: 1 us}"]))

    assert curve.capacity() == 0.0


@pytest.mark.parametrize("slo", [_SLO, "slo=null"])
def test_a_load_holds_where_a_run_holds_though_some_requests_fail(slo: str) -> None:
    """One prompt in 20 is longer than the context whatever the load: the SLO of 90 % counts them, and no load can be
    blamed for them where there is none. They made every load miss."""
    classes = "workload.classes=[{name: usual, share: 0.95}, {name: long, share: 0.05, prompt_tokens: 5000}]"
    limit = "deployment.engine.max_model_len=4096"
    curve = LoadCurve(make_scenario([*_OPEN, slo, classes, limit]))

    level = curve.at(0.5)

    assert 0.02 < level.lost < 0.08
    assert level.holds
    assert curve.capacity()


def test_a_load_does_not_hold_where_requests_are_refused() -> None:
    """Admission control at a load beyond the capacity, without an SLO."""
    admission = "deployment.admission={max_queue: 2}"
    curve = LoadCurve(make_scenario([*_OPEN, "slo=null", admission]))

    assert curve.at(200.0).lost > 0.0
    assert not curve.at(200.0).holds


def test_a_closed_loop_is_scaled_by_its_clients() -> None:
    """Whole ones; its capacity is the rate they get."""
    arrivals = "workload.arrivals={process: closed_loop, concurrency: 3, think_time: 1 s}"
    curve = LoadCurve(make_scenario([_SLO, _SEATS, "workload.num_requests=100", arrivals]))

    capacity = curve.capacity()

    assert capacity is not None
    assert all(load == int(load) for load in curve.levels)
    assert capacity == max(level.rate for level in curve.levels.values() if level.holds)


def test_a_batch_is_served_at_the_capacity_and_a_trace_says_nothing_of_it() -> None:
    """What arrives all at once fills the GPUs."""
    batch = LoadCurve(make_scenario(["workload.arrivals={process: all_at_once}"]))

    assert batch.own_load is None
    assert batch.capacity() == batch.as_it_is().rate > 0


def test_levels_of_a_trace_have_its_requests(tmp_path: Path) -> None:
    """Beside arrivals too it has no more than its rows, however long the load takes to settle."""
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_time,prompt_tokens,output_tokens\n" + "0,200,20\n" * 60)
    set_lengths = ["workload.prompt_tokens=null", "workload.output_tokens=null", "workload.num_requests=null"]
    curve = LoadCurve(make_scenario([*_OPEN, *set_lengths, f"workload.trace={{path: {trace}}}"]))

    curve.at(0.5)

    assert len(curve.results[0.5].simulation.records) == 60


def test_levels_are_as_long_as_they_need_and_run_once() -> None:
    """However long the scenario; long enough for a queue to grow; a level asked for twice is the same."""
    done: list[int] = []
    curve = LoadCurve(make_scenario([*_OPEN, f"workload.num_requests={3 * NUM_REQUESTS}"]), on_run=done.append)

    assert curve.at(2.0) is curve.at(2.0)
    assert done == [1]
    assert len(curve.results[2.0].simulation.records) == NUM_REQUESTS
    curve.at(50.0)
    assert len(curve.results[50.0].simulation.records) == 50 * LEAST_SECONDS


def test_between_levels_busy_and_watts_are_linear() -> None:
    """And at a level they are its own."""
    curve = LoadCurve(make_scenario(_OPEN))
    low, high = curve.at(0.2), curve.at(1.0)

    between = {name: curve.interpolate(name, 0.6) for name in ("busy", "watts_per_gpu")}

    assert between["busy"] == pytest.approx((low.busy + high.busy) / 2)
    assert between["watts_per_gpu"] == pytest.approx((low.watts_per_gpu + high.watts_per_gpu) / 2)
    assert curve.interpolate("busy", 0.2) == low.busy


def test_an_api_is_paid_by_the_request() -> None:
    """At every level the same dollars a request, however long the last answer kept the run going."""
    classes = "workload.classes=[{name: here, share: 0.5}, {name: there, share: 0.5}]"
    api = "deployment.overflow={api: gpt-4o, always: [there], ttft: 50 ms, tokens_per_second: 0.1}"
    curve = LoadCurve(make_scenario([*_OPEN, "slo={ttft: 2 s}", classes, api]))

    a_request = [curve.at(load).api_usd_per_hour / curve.at(load).rate for load in (0.5, 2.0)]

    assert curve.at(0.5).holds
    assert curve.at(2.0).holds
    assert a_request[0] == pytest.approx(a_request[1], rel=0.05)
