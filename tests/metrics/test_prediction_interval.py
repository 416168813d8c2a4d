"""Intervals of a run's figures: what each error does to each figure."""

from __future__ import annotations

import math
from typing import Any

import pytest

from simserve.metrics.prediction_interval import DOLLARS, RATES, STATISTICS, prediction_interval
from tests.metrics.builders import make_expectation


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
