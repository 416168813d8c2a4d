"""Throughput against max_num_seqs where KV memory is short."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import simserve
from simserve.scenario import seats
from simserve.scenario.resolve import resolve
from simserve.scenario.seats import limit_gains
from simserve.sim.records import COMPLETED
from simserve.workload.generate import generate
from tests.builders import make_specs
from tests.scenario.builders import make_scenario


def test_throughput_rises_flattens_and_falls_with_the_batch() -> None:
    """Fewer seats leave the GPU to the weights, too many evict each other: the turning point lies between."""
    result = simserve.run(simserve.load("batch-size-sweet-spot", ["deployment.engine.max_num_seqs=64"]))

    curve = result.summary["simserve"]["bottleneck"]["seats_curve"]
    rates = curve["output_throughput"]
    best = curve["max_num_seqs"].index(curve["best_max_num_seqs"])
    assert 0 < best < len(rates) - 1
    assert all(later > 1.02 * earlier for earlier, later in pairwise(rates[:best]))
    assert rates[-1] < 0.95 * rates[best]
    gains = [(b - a) / (y - x) for (x, a), (y, b) in pairwise(zip(curve["max_num_seqs"], rates, strict=True))]
    assert gains[0] > 3 * gains[best - 1] or gains[best] < 0


def test_a_point_of_the_curve_is_what_a_run_gives() -> None:
    """The curve's value at this run's own seats is this run, queued all at once as the scenario is."""
    result = simserve.run(simserve.load("batch-size-sweet-spot", ["deployment.engine.max_num_seqs=48"]))

    curve = result.summary["simserve"]["bottleneck"]["seats_curve"]
    at_48 = dict(zip(curve["max_num_seqs"], curve["output_throughput"], strict=True))[48]
    assert abs(at_48 / result.summary["output_throughput"] - 1) < 1e-9


def test_seats_are_tried_up_to_the_token_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """From a quarter to twice of the 40 requests that fit, and its own 64: as many as have a token of 64 each."""
    monkeypatch.setattr(seats, "requests_in_kv", lambda _simulation: 40.0)
    monkeypatch.setattr(seats, "_throughput", lambda _resolved, number, _specs: 100.0 - abs(number - 36))
    engine = SimpleNamespace(max_num_batched_tokens=64, max_num_seqs=64)
    resolved: Any = SimpleNamespace(engine=engine, shape=SimpleNamespace(tokens_per_decode=1))
    records = SimpleNamespace(status=np.full(10, COMPLETED), num_preemptions=np.ones(10))
    simulation: Any = SimpleNamespace(was_interrupted=False, records=records)

    curve = seats.seats_curve(resolved, simulation, make_specs([0.0] * 10, 4, 2))

    assert curve is not None
    assert curve["max_num_seqs"] == [10, 20, 28, 32, 36, 40, 48, 60, 64]
    assert (curve["best_max_num_seqs"], curve["requests"]) == (36, 10)


def test_a_pipeline_has_the_budget_of_all_of_its_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """One seat, and every step takes a second: 10 s for the tokens of an answer, and 1,000 / 100 s for a prompt.

    Twice the budget leaves 15 of these 20 s.
    """
    every = defaultdict[int, float](lambda: 1.0)
    times = SimpleNamespace(decode_base=every, decode_slope=defaultdict(float), token_seconds=every)
    monkeypatch.setattr(seats, "price", lambda _shape, max_tokens_in_table: SimpleNamespace(step_times=times))
    limits = ["deployment.engine.max_num_seqs=1", "deployment.engine.max_num_batched_tokens=50"]
    resolved = resolve(make_scenario([*limits, "deployment.pipeline_parallel_size=2"]))

    gains = seats.limit_gains(resolved, make_specs([0.0], 1000, 10))

    assert gains["budget"].twice == pytest.approx(20 / 15)


def test_without_preemption_there_is_no_curve() -> None:
    """Where KV memory is plentiful the question does not arise, and no time is spent on it."""
    result = simserve.run(simserve.load("chatbot", ["workload.num_requests=200"]))

    assert result.summary["simserve"]["bottleneck"]["seats_curve"] is None


def test_seats_do_not_bind_where_more_of_them_change_nothing() -> None:
    """256, 512 and 1,024 seats miss the SLO alike and a second replica holds it: the GPUs' arithmetic is what binds."""
    scenario = ["workload.arrivals.rate=16", "slo.tpot=80 ms", "workload.num_requests=3000"]

    def run(change: str) -> dict[str, Any]:
        return dict(simserve.run(simserve.load("chatbot", [*scenario, change])).summary["simserve"])

    several = [run(f"deployment.engine.max_num_seqs={number}") for number in (256, 512, 1024)]
    relieved = run("deployment.replicas=2")

    assert all(each["slo"]["attainment"] < 0.01 for each in several)
    assert relieved["slo"]["attainment"] > 0.99
    assert {each["bottleneck"]["binding"] for each in several} == {"compute"}


def test_seats_bind_where_more_of_them_relieve_the_queue() -> None:
    """What the step times promise of twice the seats is what a run with them finishes, within a tenth."""
    scenario = ["workload.arrivals.rate=16", "workload.num_requests=1000"]

    few, twice = (
        simserve.run(simserve.load("chatbot", [*scenario, f"deployment.engine.max_num_seqs={number}"])).summary
        for number in (16, 32)
    )

    assert few["simserve"]["bottleneck"]["binding"] == "max_num_seqs"
    resolved = resolve(simserve.load("chatbot", [*scenario, "deployment.engine.max_num_seqs=16"]))
    gain = limit_gains(resolved, generate(resolved.scenario.workload, seed=1))["seats"].twice
    finished = twice["simserve"]["finishable_throughput"] / few["simserve"]["finishable_throughput"]
    assert abs(gain / finished - 1) < 0.1
