"""Tests of the warm-up cut, the measured window, the counts of who waits, and the verdict on a run."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
import pytest

from simserve.metrics.latency import request_latencies
from simserve.metrics.throughput import (
    Offered,
    Window,
    _is_unabated,
    find_window,
    mser5,
    num_present,
    sojourns,
    stability,
    waiting_share,
)
from simserve.sim.records import FAILED, UNFINISHED, RequestRecords
from tests.metrics.builders import make_records, single_server_queue

_SEEDS = range(20)


def window_of(records: RequestRecords, **overrides: Any) -> Window:
    """Return the window of steady arrivals under ``warmup: auto``."""
    values: dict[str, Any] = {"warmup": "auto", "is_steady": True} | overrides
    end = float(np.nanmax(records.finish_time)) if len(records) else 0.0
    return find_window(records, request_latencies(records), sojourns(records, end), **values)


def is_whole(window: Window, records: RequestRecords) -> bool:
    """Return whether a window reaches from the first arrival to the last departure."""
    return (window.start, window.end) == (float(records.arrival_time[0]), float(np.nanmax(records.finish_time)))


def test_mser5_cuts_a_step() -> None:
    """A start at another level goes, and nothing else."""
    generator = np.random.default_rng(1)
    sequence = np.concatenate((generator.normal(0.0, 1.0, 100), generator.normal(10.0, 1.0, 900)))

    assert mser5(sequence) == pytest.approx(100, abs=5)


def test_mser5_is_the_minimum_of_its_formula() -> None:
    """The cumulative sums agree with the definition, computed cut by cut."""
    sequence = np.random.default_rng(2).normal(size=203).cumsum()
    means = sequence[:200].reshape(40, 5).mean(axis=1)
    statistic = [means[cut:].var() / (40 - cut) for cut in range(21)]

    assert mser5(sequence) == 5 * int(np.argmin(statistic))


@pytest.mark.parametrize("length", [0, 1, 9])
def test_mser5_leaves_a_short_sequence_alone(length: int) -> None:
    """Fewer than two batches show nothing."""
    assert mser5(np.arange(float(length))) == 0


def test_mser5_cuts_at_most_half() -> None:
    """A trend has no steady state to find."""
    assert mser5(np.arange(1000.0)) == 500


def test_the_system_must_have_filled_up() -> None:
    """Where no request waits for another, the window leaves out three E2E at both ends: filling up and emptying."""
    arrival = np.cumsum(np.random.default_rng(1).exponential(0.1, 5000))

    window = window_of(make_records(arrival, ttft=1.0, e2e=20.0))

    assert window.start == pytest.approx(arrival[0] + 60.0)
    assert window.end == pytest.approx(arrival[-1] - 60.0)
    inside = (arrival >= window.start) & (arrival <= window.end)
    assert np.array_equal(window.has_arrived, inside)


def test_a_chance_burst_at_the_start_is_no_warmup() -> None:
    """M/M/1 starts empty and is low for a moment only: nothing is cut that would bias the mean."""
    shares = [
        window_of(single_server_queue(load=0.9, num_requests=2000, seed=seed)).has_arrived.mean() for seed in range(20)
    ]

    assert np.mean(shares) > 0.95


def test_without_steady_arrivals_everything_is_reported() -> None:
    """Traces, ramps, closed loops, overload: first arrival to last departure."""
    records = make_records(np.arange(10.0, 1010.0), e2e=30.0)

    window = window_of(records, is_steady=False)

    assert (window.start, window.end) == (10.0, 1039.0)
    assert window.has_arrived.all()


def test_a_run_too_short_for_a_steady_state_is_reported_whole() -> None:
    """Ten mean E2E of arrivals, or a hundred requests, are not there."""
    for last, count, e2e in ((50, 500, 20.0), (500, 50, 1.0), (50, 5000, 6.0)):
        records = make_records(np.linspace(0, last, count), e2e=e2e)

        assert is_whole(window_of(records), records)


def test_the_user_may_set_the_warmup() -> None:
    """``none`` keeps all; a time counts from the first arrival, whatever the arrivals."""
    records = make_records(np.arange(10.0, 1010.0), e2e=30.0)

    assert is_whole(window_of(records, warmup="none"), records)
    assert (window_of(records, warmup=60.0).start, window_of(records, warmup=60.0).end) == (70.0, 1009.0)
    assert window_of(records, warmup=60.0, is_steady=False).end == 1039.0


def test_a_warmup_longer_than_the_run_leaves_nothing() -> None:
    """The window is empty, not reversed."""
    window = window_of(make_records(np.arange(10.0)), warmup=1000.0)

    assert window.seconds == 0
    assert not window.has_arrived.any()


def test_no_requests_no_window() -> None:
    """Its ends are undefined."""
    assert np.isnan(window_of(make_records([])).seconds)


def test_a_fleet_that_changes_is_reported_whole() -> None:
    """The hole that a start or a loss leaves is what is asked about: only a time that the scenario gives is cut."""
    records = make_records(np.cumsum(np.random.default_rng(1).exponential(0.1, 5000)), ttft=1.0, e2e=20.0)

    whole, cut = window_of(records, has_changing_fleet=True), window_of(records)
    asked = window_of(records, has_changing_fleet=True, warmup=60.0)

    assert is_whole(whole, records)
    assert whole.has_arrived.all()
    assert not is_whole(cut, records)
    assert asked.start == pytest.approx(records.arrival_time[0] + 60.0)


def test_counts_arrivals_without_departures() -> None:
    """Someone who arrives at t is there at t, someone who leaves at t is not."""
    present = num_present(np.array([0.0, 1.0, 2.0]), np.array([2.0, 3.0, np.inf]), np.array([0.0, 1.5, 2.0, 5.0]))

    assert present.tolist() == [1, 2, 2, 1]


def test_counts_agree_with_a_walk_over_the_events() -> None:
    """The number each request meets is the number of earlier ones that have not left."""
    generator = np.random.default_rng(5)
    arrival = np.sort(generator.uniform(0, 100, 300))
    e2e = generator.exponential(5.0, 300)

    met = sojourns(make_records(arrival, e2e=e2e), 200.0).num_in_system_at_arrivals()

    expected = [np.sum(arrival[:i] + e2e[:i] > arrival[i]) for i in range(300)]
    assert met.tolist() == expected


def test_a_refused_request_waits_for_nothing() -> None:
    """It leaves as it comes; one that is left unfinished stays to the end."""
    records = make_records(
        [1.0, 2.0],
        wait=np.nan,
        ttft=np.nan,
        e2e=np.nan,
        status=[FAILED, UNFINISHED],
    )

    stayed = sojourns(records, 10.0)

    assert stayed.waits().tolist() == [0.0, 8.0]
    assert stayed.times_in_system().tolist() == [0.0, 8.0]
    assert stayed.run_end == 10.0


def test_a_request_that_was_never_sent_is_no_part_of_it() -> None:
    """An interrupted closed loop has requests without an arrival."""
    stayed = sojourns(make_records([0.0, np.nan]), 10.0)

    assert len(stayed) == 1
    assert stayed.run_end == 3.0


def test_closed_loop_requests_are_put_in_order_of_arrival() -> None:
    """Rows of a closed loop need not ascend."""
    stayed = sojourns(make_records([4.0, 1.0], e2e=[1.0, 2.0]), 5.0)

    assert stayed.arrival.tolist() == [1.0, 4.0]
    assert stayed.system_exit.tolist() == [3.0, 5.0]


def verdict(records: RequestRecords, *, is_open_loop: bool = True) -> str:
    """Return the verdict on records that end with their last departure."""
    return stability(sojourns(records, float(np.nanmax(records.finish_time))), is_open_loop=is_open_loop)


@pytest.mark.parametrize("is_deterministic", [False, True])
@pytest.mark.parametrize("load", [0.5, 0.9])
def test_a_queue_below_its_capacity_is_stable(load: float, is_deterministic: bool) -> None:
    """M/M/1 and M/D/1 at half load and at 90 %, 5,000 requests: at least 19 of 20 runs."""
    verdicts = [
        verdict(single_server_queue(load=load, num_requests=5000, seed=seed, is_deterministic=is_deterministic))
        for seed in _SEEDS
    ]

    assert verdicts.count("stable") >= 19


@pytest.mark.parametrize("is_deterministic", [False, True])
@pytest.mark.parametrize("load", [1.2, 3.0])
def test_a_queue_above_its_capacity_is_overloaded(load: float, is_deterministic: bool) -> None:
    """M/M/1 and M/D/1 at 1.2 and 3 times the capacity, 5,000 requests: every run."""
    verdicts = {
        verdict(single_server_queue(load=load, num_requests=5000, seed=seed, is_deterministic=is_deterministic))
        for seed in _SEEDS
    }

    assert verdicts == {"overloaded"}


def test_bursty_arrivals_are_no_overload() -> None:
    """Gamma arrivals of cv 3 at 70 % load queue a lot and drift nowhere."""
    verdicts = [
        verdict(single_server_queue(load=0.7, num_requests=5000, seed=seed, interarrival_cv=3.0)) for seed in _SEEDS
    ]

    assert verdicts.count("overloaded") == 0


def processor_sharing(rate: float, num_requests: int, seed: int) -> RequestRecords:
    """Return a batch without a seat limit: N requests are served at N / (5 + 0.1 N) a second."""
    generator = np.random.default_rng(seed)
    arrival = np.cumsum(generator.exponential(1 / rate, num_requests))
    work = generator.exponential(1.0, num_requests)
    finish = np.zeros(num_requests)
    present: list[tuple[float, int]] = []
    time = progress = 0.0
    index = 0
    while index < num_requests or present:
        speed = 1 / (5 + 0.1 * len(present))
        departure = time + (present[0][0] - progress) / speed if present else np.inf
        if index < num_requests and arrival[index] <= departure:
            progress += (arrival[index] - time) * speed if present else 0.0
            time = arrival[index]
            heapq.heappush(present, (progress + work[index], index))
            index += 1
        else:
            progress, done = heapq.heappop(present)
            time = finish[done] = departure
    return make_records(arrival, ttft=0.1, e2e=np.maximum(finish - arrival, 0.1))


def test_a_batch_that_slows_down_is_overloaded_before_anything_waits() -> None:
    """With seats to spare an overload shows in the number in the system, not in the queue."""
    assert verdict(processor_sharing(6.0, 4000, seed=1)) == "stable"
    assert verdict(processor_sharing(12.0, 4000, seed=1)) == "overloaded"


@pytest.mark.parametrize("stay", [5.0, 60.0, 500.0])
def test_filling_up_is_no_overload(stay: float) -> None:
    """Where nobody waits for anybody, the number in the system grows only until the first ones leave."""
    generator = np.random.default_rng(3)
    arrival = np.cumsum(generator.exponential(0.1, 2000))

    assert verdict(make_records(arrival, e2e=stay + np.zeros(2000))) == "stable"
    assert verdict(make_records(arrival, ttft=0.0, e2e=generator.exponential(stay, 2000))) == "stable"


def test_a_burst_that_was_worked_off_is_a_backlog() -> None:
    """A crowd at 200 s that is served by 500 s of 1,000 s."""
    generator = np.random.default_rng(3)
    arrival = np.sort(np.concatenate((generator.uniform(0, 1000, 700), generator.uniform(200, 260, 300))))
    before = 0.8 * np.arange(1000)
    start = before + np.maximum.accumulate(arrival - before)

    assert verdict(make_records(arrival, wait=start - arrival, e2e=start + 0.8 - arrival)) == "backlogged"


@pytest.mark.parametrize("num_requests", [1, 3, 49, 50, 500])
def test_a_low_load_is_stable_however_few_requests_show_it(num_requests: int) -> None:
    """Ten prompts a second that wait longer than they take, at 3 % of what can be finished: no backlog."""
    records = make_records(0.1 * np.arange(num_requests), wait=0.02, ttft=0.03, e2e=0.04)
    times = sojourns(records, float(records.finish_time[-1]))

    verdict = stability(times, is_open_loop=True, offered=Offered(mean=0.033, peak=None))

    assert verdict == "stable"


def test_all_at_once_beyond_the_seats_is_a_backlog() -> None:
    """Everything arrives at 0 and is served one after the other."""
    wait = 0.5 * np.arange(500)

    assert verdict(make_records(np.zeros(500), wait=wait, ttft=wait + 0.1, e2e=wait + 2.0)) == "backlogged"


def test_a_closed_loop_is_never_overloaded() -> None:
    """Its queue is bounded: beyond the seats it is backlogged, within them stable."""
    arrival = np.arange(0.0, 100.0, 0.1)

    assert verdict(make_records(arrival, wait=5.0, ttft=6.0, e2e=10.0), is_open_loop=False) == "backlogged"
    assert verdict(make_records(arrival, wait=0.1, ttft=1.0, e2e=10.0), is_open_loop=False) == "stable"


def test_waiting_share_is_a_share_of_the_time_in_the_system() -> None:
    """Two seconds of eight; undefined without a request."""
    assert waiting_share(sojourns(make_records([0.0, 1.0], wait=1.0, e2e=4.0), 5.0)) == pytest.approx(0.25)
    assert np.isnan(waiting_share(sojourns(make_records([]), 0.0)))


def test_an_empty_run_is_stable() -> None:
    """Nothing waits."""
    assert stability(sojourns(make_records([]), 0.0), is_open_loop=True) == "stable"


def test_bursts_that_are_worked_off_are_a_backlog() -> None:
    """Ten bursts an hour, each waited out within minutes: no steady state to speak of, and no overload."""
    bursts = np.repeat(np.arange(10) * 360.0, 60)
    service = 2.0
    waits = np.tile(np.arange(60) * service, 10)
    records = make_records(bursts.tolist(), wait=waits, ttft=waits + service, e2e=waits + service)

    times = sojourns(records, float(records.finish_time[-1]))

    assert stability(times, is_open_loop=True, is_stationary=False) == "backlogged"


@pytest.mark.parametrize(("grows_late", "expected"), [(True, "overloaded"), (False, "stable")])
def test_only_the_second_half_of_the_arrivals_says_whether_the_system_grows(grows_late: bool, expected: str) -> None:
    """One request a second without a queue: stays get longer for 200 s, before as many steady seconds or after them."""
    arrival = np.arange(400.0)
    stay = 20.0 + 0.25 * (np.maximum(arrival - 200.0, 0.0) if grows_late else np.minimum(arrival, 200.0))

    records = make_records(arrival.tolist(), e2e=stay.tolist(), ttft=0.5)

    assert verdict(records) == expected


def test_growth_is_unabated_where_the_last_half_of_the_blocks_keeps_up_with_the_first() -> None:
    """10 in the first quarter, none in the next, and 7 in the rest: 7 of 10 is more than 0.6, 3.5 of 10 is not."""
    blocks = np.concatenate([np.linspace(0, 10, 6), np.full(4, 10.0), np.linspace(10, 17, 10)])

    assert _is_unabated(np.repeat(blocks, 10))
    assert not _is_unabated(np.repeat(np.minimum(blocks, 15.5), 10))


def test_a_load_of_exactly_what_can_be_finished_is_too_much() -> None:
    """A queue at its capacity has no steady state, however it looks; just below it has one."""
    calm = sojourns(make_records(np.arange(100.0), ttft=0.1, e2e=0.2), 100.0)
    verdicts = [stability(calm, is_open_loop=True, offered=Offered(mean=each, peak=None)) for each in (0.999, 1.0)]

    assert verdicts == ["stable", "overloaded"]


def test_who_leaves_as_another_comes_is_not_met() -> None:
    """Requests of a second each, one a second: nobody finds anybody there; of two seconds, one other."""
    met = [
        sojourns(make_records(np.arange(5.0), e2e=stay), 10.0).num_in_system_at_arrivals().tolist()
        for stay in (1.0, 2.0)
    ]

    assert met == [[0.0] * 5, [0.0, 1.0, 1.0, 1.0, 1.0]]
