"""A run beside real servers, against figures computed by hand: whether an objective holds, intervals, conditions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simserve.metrics.latency import LATENCIES, SLO, request_latencies
from simserve.metrics.real_server import Evidence, evidence_of
from simserve.metrics.throughput import conditions
from simserve.profiles.expected_errors import (
    DOLLARS,
    FLOORS,
    LATENCY_ERRORS,
    RATES,
    STATISTICS,
    Expectation,
    MetricExpectation,
    prediction_interval,
)
from tests.metrics.builders import make_expectation, make_records, make_slo, make_totals

LAPLACE = 0.1
"""Scale of the errors: of Laplace ones, so that shares can be computed by hand."""


def expectation(center: float = 0.0, **scale: float) -> Expectation:
    """Return Laplace errors."""
    scales = {"tpot": LAPLACE, "ttft": LAPLACE, "throughput": LAPLACE, **scale}
    metrics = {
        name: MetricExpectation(center, each * math.log(2), each * math.log(10), 3) for name, each in scales.items()
    }
    return Expectation("made up", "known family", metrics)


def evidence(
    slo: SLO, *, expected: Expectation | None = None, classes: Mapping[str, Any] | None = None, **columns: Any
) -> Evidence:
    """Return what ten requests show, with a TTFT of 1 s and a TPOT of 0.5 s unless said otherwise."""
    totals = make_totals(
        busy_seconds=4.0,
        seconds_by_part={"weights": 1.0, "kv": 1.0, "compute": 1.0, "communication": 0.0, "host": 1.0},
    )
    records = replace(make_records(np.arange(10.0).tolist(), **columns), **(classes or {}))
    counted = np.ones(10, dtype=np.bool_)
    return evidence_of(records, request_latencies(records), counted, slo, totals, expected or expectation())


def laplace_below(log_factor: float) -> float:
    """Return the share of servers at or below a factor."""
    tail = math.exp(-abs(log_factor) / LAPLACE) / 2
    return 1 - tail if log_factor > 0 else tail


@pytest.mark.parametrize("room", [0.8, 1.0, 1.1, 1.5])
def test_a_limit_on_tpot_holds_on_the_servers_that_are_not_slower_than_it(room: float) -> None:
    """TPOT 0.5 s in a closed loop: by the Laplace distribution; one half where the limit lies at the prediction."""
    assert evidence(make_slo(tpot=0.5 * room)).probability(None) == pytest.approx(laplace_below(math.log(room)))


def test_a_bias_of_the_simulator_moves_it() -> None:
    """Where simulations are 10 % too high in the median, a limit 10 % below what is simulated holds on half."""
    found = evidence(make_slo(tpot=0.5 / 1.1), expected=expectation(math.log(1.1)))

    assert found.probability(None) == pytest.approx(0.5)


def test_first_tokens_and_steps_are_drawn_apart() -> None:
    """Two limits with the same room each hold on the product of the shares."""
    both = evidence(make_slo(ttft=1.2, tpot=0.6)).probability(None)

    assert both == pytest.approx(laplace_below(math.log(1.2)) ** 2, abs=1e-6)


def test_end_to_end_times_take_the_error_of_both() -> None:
    """1 s of first token and 2 s behind it, within 3.6 s: the integral over the steps, by brute force."""
    draws = np.random.default_rng(1).laplace(0.0, LAPLACE, (2, 400_000))

    by_chance = float((np.exp(draws[0]) + 2 * np.exp(draws[1]) <= 3.6).mean())

    assert evidence(make_slo(e2e=3.6)).probability(None) == pytest.approx(by_chance, abs=0.003)


def test_the_first_visible_token_takes_the_error_of_both() -> None:
    """1 s of first token and 1.5 s of thinking behind it, within 3 s; without a visible token on no server."""
    draws = np.random.default_rng(1).laplace(0.0, LAPLACE, (2, 400_000))
    answered = np.arange(10.0) + 1.0 + 1.5

    by_chance = float((np.exp(draws[0]) + 1.5 * np.exp(draws[1]) <= 3.0).mean())

    found = evidence(replace(make_slo(), ttfvt=3.0), classes={"answer_time": answered})
    assert found.probability(None) == pytest.approx(by_chance, abs=0.003)
    assert evidence(replace(make_slo(), ttfvt=30.0), classes={"answer_time": answered}).probability(None) > 0.999
    assert (
        evidence(replace(make_slo(), ttfvt=30.0), classes={"answer_time": answered * np.nan}).probability(None) == 0.0
    )


def test_the_share_asked_for_decides_which_request_counts() -> None:
    """Of ten TTFTs from 1 to 10 s within 6 s, half must be: the fifth decides, as all are slower by one factor."""
    ttft = np.arange(1.0, 11.0)

    found = evidence(make_slo(ttft=6.0, share=0.5), ttft=ttft, e2e=ttft + 2).probability(None)

    assert found == pytest.approx(laplace_below(math.log(6 / 5)))


def test_a_wider_limit_is_never_less_probable() -> None:
    """Nor is a lower share, nor a lighter load."""
    rooms = [evidence(make_slo(ttft=room, tpot=0.5 * room)).probability(0.6) for room in (0.9, 1.0, 1.3, 2.0)]
    shares = [evidence(make_slo(tpot=0.55, share=share), e2e=np.linspace(2.0, 4.0, 10)) for share in (1.0, 0.7, 0.4)]
    loads = [evidence(make_slo(ttft=3.0, tpot=0.6), wait=0.5).probability(ratio) for ratio in (0.97, 0.8, 0.4)]

    for found in (rooms, [each.probability(None) for each in shares], loads):
        assert found == sorted(found)
        assert found[0] < found[-1]


def test_under_open_arrivals_slower_steps_hold_more_requests() -> None:
    """At half load, half of a step growing, 0.5 s become 0.6 s where steps are slower by 1.2 / (0.5 + 0.6)."""
    slowest = 1.2 / (0.5 + 0.5 * 1.2)

    assert evidence(make_slo(tpot=0.6)).probability(0.5) == pytest.approx(laplace_below(math.log(slowest)))


def test_a_server_that_cannot_keep_up_does_not_hold() -> None:
    """With no latency near its limit, the load alone decides: throughput may be lower by the load ratio."""
    assert evidence(make_slo(tpot=50.0)).probability(0.9) == pytest.approx(1 - laplace_below(math.log(0.9)))
    assert evidence(make_slo(tpot=50.0)).probability(1.0) == 0.0


def test_requests_that_were_not_answered_miss_on_every_server() -> None:
    """Two of ten failed, and one may."""
    status = np.zeros(10, dtype=np.int8)
    status[:2] = 1

    assert evidence(make_slo(tpot=5.0, share=0.9), status=status).probability(None) == 0.0
    assert evidence(make_slo(tpot=5.0, share=0.8), status=status).probability(None) > 0.99


def test_each_class_must_reach_its_share() -> None:
    """The loose class alone holds on nearly all servers; the strict one has 10 % of room."""
    slo = SLO(ttft=None, tpot=5.0, e2e=None, attainment=0.3, by_class={"strict": make_slo(tpot=0.55)})
    classes = {"request_class": np.array([0, 1] * 5, dtype=np.int16), "class_names": ("loose", "strict")}

    found = evidence(slo, classes=classes).probability(None)

    assert found == pytest.approx(laplace_below(math.log(1.1)))


def summary(load_ratio: float | None = None, **changes: Any) -> dict[str, Any]:
    """Return a run of 100 s: TTFT 200 ms, TPOT and gaps 20 ms, E2E 2,200 ms, 1,000 output tokens/s, 2 dollars."""
    means = {"ttft_ms": 200.0, "tpot_ms": 20.0, "itl_ms": 20.0, "e2el_ms": 2200.0}
    values: dict[str, Any] = {f"{each}_{name}": value for name, value in means.items() for each in STATISTICS}
    values |= {"request_throughput": 5.0, "output_throughput": 1000.0, "total_token_throughput": 3000.0}
    cost = dict.fromkeys(DOLLARS, 2.0)
    return {**values, "duration": 100.0, "simserve": {"load_ratio": load_ratio, "cost": cost}, **changes}


def metrics(run: dict[str, Any], waiting: float = 0.0, **half_90: float) -> dict[str, Any]:
    """Return the intervals of a run."""
    found: dict[str, Any] = prediction_interval(run, make_expectation(**half_90), waiting)["metrics"]
    return found


def test_latencies_carry_the_error_of_their_metric() -> None:
    """TPOT within 20 %, TTFT within 50 %, and every statistic alike."""
    found = metrics(summary())

    for each in STATISTICS:
        assert found[f"{each}_tpot_ms"] == pytest.approx([20 / 1.2, 24.0])
        assert found[f"{each}_itl_ms"] == pytest.approx([20 / 1.2, 24.0])
        assert found[f"{each}_ttft_ms"] == pytest.approx([200 / 1.5, 300.0])


def test_dollars_are_highest_where_throughput_is_lowest() -> None:
    """Both ends of their interval, low one first."""
    found = metrics(summary())
    low, high = (end / 1000.0 for end in found["output_throughput"])

    assert low < 1 < high
    for each in DOLLARS:
        assert found[each] == pytest.approx([2.0 / high, 2.0 / low])


def test_every_latency_of_a_result_takes_the_error_of_a_metric() -> None:
    """In the order of results."""
    assert tuple(LATENCY_ERRORS) == LATENCIES
    assert {each for errors in LATENCY_ERRORS.values() for each in errors} < set(FLOORS)


def test_end_to_end_times_are_made_of_both() -> None:
    """200 ms carry the error of TTFT, 2,000 that of TPOT."""
    low, high = metrics(summary())["mean_e2el_ms"]

    assert low == pytest.approx(200 / 1.5 + 2000 / 1.2)
    assert high == pytest.approx(300 + 2400)


def test_a_closed_loop_is_as_fast_as_its_server() -> None:
    """Throughput carries its own error, and dollars a token are its inverse."""
    found = metrics(summary())

    for name in RATES:
        assert found[name] == pytest.approx([summary()[name] / 1.2, summary()[name] * 1.2])
    for name in DOLLARS:
        assert found[name] == pytest.approx([2 / 1.2, 2.4])


def test_open_arrivals_that_are_kept_up_with_leave_throughput_alone() -> None:
    """At a load of 0.5 a server 20 % slower finishes what arrives; at 0.95 it does not."""
    light, heavy = (metrics(summary(ratio))["output_throughput"] for ratio in (0.5, 0.95))

    assert light == pytest.approx([1000 * math.exp(-0.02), 1000 * math.exp(0.02)])
    assert heavy[0] == pytest.approx(1000 / 1.2 / 0.95)
    assert heavy[1] == light[1]


def test_an_overloaded_run_is_as_fast_as_its_server() -> None:
    """What arrives does not matter when it is too much."""
    assert metrics(summary(1.4))["output_throughput"] == pytest.approx([1000 / 1.2, 1200.0])


def test_near_saturation_first_tokens_are_less_certain() -> None:
    """The nearer the load to 1, the higher the upper end, as a slower server queues for longer."""
    highs = [metrics(summary(ratio), waiting=0.5)["mean_ttft_ms"][1] for ratio in (0.2, 0.7, 0.8, 0.9)]

    assert highs == sorted(highs)
    assert highs[0] == pytest.approx(300.0)
    assert highs[3] > 10 * highs[0]


def test_waiting_grows_as_in_heavy_traffic() -> None:
    """At 0.8 a server 10 % slower is at 0.88: waiting is (1 - 0.8) / (1 - 0.88) times as long."""
    (_, high) = metrics(summary(0.8), waiting=0.9, tpot=math.log(1.1), ttft=0.05)["mean_ttft_ms"]

    assert high == pytest.approx(20 * math.exp(0.05) + 180 * 0.2 / 0.12)


def test_a_server_too_slow_for_its_load_queues_no_more_than_is_left_over() -> None:
    """At 0.95 and 20 % slower, 19 % of the work of 100 s is left: half of that on average."""
    (_, high) = metrics(summary(0.95), waiting=0.9)["mean_ttft_ms"]

    assert high == pytest.approx(200 * 1.5 + 0.95 * 0.2 * 100_000 / 2)


@pytest.mark.parametrize(
    ("load_ratio", "queues"), [(None, False), (0.5, False), (0.8, False), (0.84, True), (1.2, True)]
)
def test_a_load_that_the_slow_end_cannot_keep_up_with_is_told(load_ratio: float | None, queues: bool) -> None:
    """A server 20 % slower is full from 0.83 of the load on; clients of a closed loop wait for it."""
    assert prediction_interval(summary(load_ratio), make_expectation(), 0.0)["queues"] is queues


def test_what_is_undefined_has_no_interval() -> None:
    """Answers of one token have no TPOT, and no price is no dollars."""
    run = summary(mean_tpot_ms=None, mean_ttft_ms=None)
    run["simserve"]["cost"] = dict.fromkeys(DOLLARS)

    found = metrics(run)

    assert found["mean_tpot_ms"] is found["mean_ttft_ms"] is found["mean_e2el_ms"] is None
    assert found[DOLLARS[0]] is None


def test_waiting_is_a_share_of_the_time_to_first_tokens() -> None:
    """Half a second of two."""
    assert conditions(make_records([0.0, 1.0], wait=0.5, ttft=2.0), make_totals(), 1).waiting == pytest.approx(0.25)


def test_requests_in_flight_are_those_of_one_replica() -> None:
    """Four requests of 3 s in 6 s are two at a time, one each on two replicas."""
    found = conditions(make_records([0.0, 1.0, 2.0, 3.0]), make_totals(), 2)

    assert found.in_flight == pytest.approx(1.0)


def test_a_burst_arrives_in_the_first_instant() -> None:
    """Three of four requests."""
    assert conditions(make_records([0.0, 0.0, 0.0, 5.0]), make_totals(), 1).at_once == 0.75


def test_without_answers_the_load_is_unknown() -> None:
    """Nothing was finished."""
    records = make_records([0.0, 1.0])
    records.finish_time[:] = np.nan

    found = conditions(records, make_totals(), 1)

    assert math.isnan(found.in_flight)
    assert (found.waiting, found.at_once) == (0.0, 0.0)


def test_host_time_is_a_share_of_the_steps() -> None:
    """Between none and all."""
    totals = make_totals()

    share = conditions(make_records([0.0]), totals, 1).host

    assert share == pytest.approx(totals.seconds_by_part["host"] / totals.busy_seconds)


def test_slower_steps_and_a_longer_queue_add_up_under_open_arrivals() -> None:
    """By chance, from the rules as they are written: 0.4 s of waiting, 0.6 s of prompt, 2 s of steps, within 4.5 s.

    A step of which half grows with its requests slows down by ``s / (2 - s)``; a server at 0.6 of its load queues
    ``0.4 / (1 - 0.6 s)`` times as long, and first tokens take their own error.
    """
    steps, first = np.exp(np.random.default_rng(1).laplace(0.0, LAPLACE, (2, 400_000)))
    queue = 0.4 / np.maximum(1 - 0.6 * steps, 1e-12)
    slowed = 0.5 * steps / np.maximum(1 - 0.5 * steps, 1e-12)

    by_chance = float((0.6 * first + 0.4 * np.maximum(first, queue) + 2 * slowed <= 4.5).mean())

    found = evidence(make_slo(e2e=4.5), wait=0.4).probability(0.6)
    assert 0.5 < by_chance < 0.99
    assert found == pytest.approx(by_chance, abs=0.003)


def test_tools_take_as_long_beside_any_server() -> None:
    """Two calls of 0.5 s, half of it to the first token, and 0.5 s of a tool between them, within 1.7 s, by chance."""
    first, steps = np.exp(np.random.default_rng(1).laplace(0.0, LAPLACE, (2, 400_000)))
    by_chance = float((0.5 * first + 0.5 * steps + 0.5 <= 1.7).mean())
    tasks = {"task": np.repeat(np.arange(5), 2)}

    found = evidence(replace(make_slo(), task=1.7), classes=tasks, ttft=0.25, e2e=0.5).probability(None)

    assert found == pytest.approx(by_chance, abs=0.003)
