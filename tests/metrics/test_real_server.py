"""The probability that an objective holds on a real server, against figures computed by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simserve.metrics.latency import request_latencies
from simserve.metrics.real_server import Evidence, evidence_of
from simserve.metrics.slo import SLO
from simserve.profiles.expected_errors import Expectation, MetricExpectation
from tests.metrics.builders import make_records, make_slo, make_totals

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
