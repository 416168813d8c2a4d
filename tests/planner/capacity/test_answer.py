"""Answers of capacity: what is looked at beside an API, and where a search ends that nothing fails."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest

from simserve.errors import UsageError
from simserve.metrics.latency import SLO, RequestLatencies
from simserve.planner.capacity.answer import (
    CLOSE,
    MOST_RUNS,
    MOST_RUNS_BELOW,
    Sustained,
    _without_api,
    capacity,
    sustained,
)
from simserve.planner.capacity.bracket import Largest
from simserve.planner.capacity.level import Found, Level, Trial
from simserve.planner.capacity.probe import _asked, probe_of
from simserve.scenario.finishable import Finishable
from simserve.scenario.load import load
from simserve.scenario.run import run

Chance = Callable[[float], float]


def test_what_is_too_much_stays_with_the_replicas() -> None:
    """A queue that overflows at any load has no limit: the API is left out."""
    assert _without_api(load("overflow-to-api")).deployment.overflow is None


@pytest.mark.parametrize(
    ("name", "overrides"),
    [("halve-the-api-bill", []), ("overflow-to-api", ["workload.classes=[{name: a, share: 1.0}]"])],
)
def test_what_rules_and_classes_send_to_the_api_still_goes_there(name: str, overrides: list[str]) -> None:
    """They are no load of the replicas; the limits on queue and rate are gone, and the probe can be made."""
    if overrides:
        overrides = [*overrides, "deployment.overflow.always=[a]", "deployment.overflow.above_rate={rate: 5, burst: 5}"]
    alone = _without_api(load(name, overrides))

    overflow = alone.deployment.overflow
    assert overflow is not None
    assert (overflow.max_queue, overflow.above_rate) == (None, None)
    assert probe_of(alone).slo.attainment == 0.95


@pytest.mark.parametrize(
    ("arrivals", "highest", "said"),
    [
        ("{process: poisson, rate: 4}", 0.0, "must be above 0"),
        ("{process: poisson, rate: 4}", -1.0, "must be above 0"),
        ("{process: poisson, rate: 4}", math.nan, "must be above 0"),
        ("{process: closed_loop, concurrency: 4}", 0.5, "must be at least 1 client"),
    ],
)
def test_a_limit_below_every_load_is_refused(arrivals: str, highest: float, said: str) -> None:
    """It leaves nothing to try, which is no answer about the deployment."""
    scenario = load("chatbot", [f"workload.arrivals={arrivals}"])

    with pytest.raises(UsageError, match=f"--max: .*{said}"):
        capacity(scenario, highest=highest)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("deployment.faults=[{kind: replica, at: 1 min, duration: 1 min}]", "faults happen at times of their own"),
        ("workload.arrivals={process: daily, rate: 4}", "arrivals have a pattern in time"),
        (
            "deployment.autoscaling={metric: running, target: 8, max_replicas: 3}",
            "replicas take minutes to come and go",
        ),
    ],
)
def test_requests_of_a_run_that_has_a_length_of_its_own_are_refused_with_the_reason(change: str, why: str) -> None:
    """And with how to change that length."""
    scenario = load("chatbot", ["deployment.replicas=2", change])

    with pytest.raises(UsageError, match=f"--requests: 50 has no effect: {why}, .* --set workload.num_requests=50"):
        capacity(scenario, num_requests=50)


def test_an_autoscaler_is_said_to_be_part_of_the_answer_and_runs_are_told_with_what_they_held() -> None:
    """With the replicas that a run's own load is compared with; the range is that of the answer."""
    scaled = "deployment.autoscaling={metric: running, target: 8, max_replicas: 3}"
    tried: list[tuple[float, bool]] = []

    found = capacity(
        load("chatbot", ["workload.num_requests=200", scaled]),
        replications=2,
        highest=8.0,
        tried=lambda rate, _, held: tried.append((rate, held)),
    )

    assert any("1 to 3: the load of a run is compared with what all 3 can sustain" in note for note in found.notes)
    assert found.found.largest.value in {rate for rate, held in tried if held}
    assert {level.load for level in found.found.levels} <= {rate for rate, _ in tried}


def test_a_list_of_requests_has_no_more_clients_than_requests(tmp_path: Path) -> None:
    """Where all of them at once still hold, more clients would find none left, and the search ends."""
    rows = "".join(f"{time},100,20\n" for time in range(7))
    (tmp_path / "seven.csv").write_text("arrival_time,prompt_tokens,output_tokens\n" + rows)
    (tmp_path / "seven.yaml").write_text(
        "name: seven\nmodel: llama-3.1-8b\ndeployment: {hardware: h100-sxm-80gb}\nslo: {ttft: 1 s}\n"
        "workload: {arrivals: {process: closed_loop, concurrency: 2}, trace: {path: seven.csv, format: csv}}\n"
    )
    found = capacity(load(tmp_path / "seven.yaml"))

    assert (found.found.largest.value, found.found.largest.fails_at) == (7, None)
    assert any("all 7 requests" in note for note in found.notes)

    far_below = replace(found.found, finishable=Finishable(rate=10.0, half_width=0.1, requests=4000), capacity=8.0)
    assert any(
        note.startswith("what is promised is 12% below the mean capacity of 8, as ")
        for note in replace(found, found=far_below).notes
    )
    near = replace(far_below, capacity=7.2)
    assert not any(note.startswith("promised") for note in replace(found, found=near).notes)


def falling(middle: float, spread: float = 0.3) -> Chance:
    """Return a probability that falls with the logarithm of the load: one half at ``middle``."""
    return lambda load: NormalDist().cdf((math.log(middle) - math.log(load)) / spread)


def make_trial(probability: float) -> Trial:
    """Return a run that holds."""
    met = np.ones(10, dtype=np.bool_)
    return Trial(
        attainment=1.0, by_metric={}, stability="stable", met=met, probability=probability, error_basis="made up"
    )


def test_a_run_in_which_no_task_ended_says_nothing_of_tasks() -> None:
    """Of two runs one has ended tasks, half of them in time: the bound is that of the other requests of both."""
    runs = [replace(make_trial(0.5), by_metric=shares) for shares in ({"ttft": 1.0, "task": 0.5}, {"ttft": 0.5})]

    for trials in (runs, runs[::-1]):
        assert Level(load=1.0, trials=tuple(trials)).by_metric == {"ttft": 0.75, "task": 0.5}


def asked(chance: Chance, most: float, *, is_whole: bool = False) -> tuple[Sustained, list[float]]:
    """Return what is sustained, and the loads that were run for it; the search saw half, 3/4 and all of the most."""
    tried: list[float] = []

    def probe(load: float, _replication: int, _num_requests: int) -> Trial:
        tried.append(load)
        return make_trial(chance(load))

    loads = [math.floor(share * most) if is_whole else share * most for share in (0.5, 0.75, 1.0)]
    levels = tuple(Level(load=load, trials=(make_trial(chance(load)),)) for load in loads)
    found = Found(
        largest=Largest(value=most, fails_at=None),
        levels=levels,
        interval=None,
        interval_method="",
        num_requests=10,
        needed_requests=1.0,
    )
    answer = sustained(probe, found, is_whole=is_whole)
    assert answer is not None
    return answer, tried


@pytest.mark.parametrize("middle", [8.0, 9.0, 10.0, 12.0])
def test_it_lies_within_a_few_percent_below_where_nine_in_ten_hold(middle: float) -> None:
    """Between loads that the search has run, in two runs at most."""
    true = middle * math.exp(-0.3 * NormalDist().inv_cdf(0.9))

    answer, tried = asked(falling(middle), 10.0)

    assert answer.load is not None
    assert true / CLOSE**2 <= answer.load <= true
    assert len(tried) <= MOST_RUNS
    assert answer.basis == "made up"


def test_it_is_never_above_what_holds_as_simulated() -> None:
    """Where even the largest load holds on all servers, nothing more is run."""
    answer, tried = asked(falling(100.0), 10.0)

    assert (answer.load, tried) == (10.0, [])


def test_below_the_loads_of_the_search_it_goes_on() -> None:
    """A tenth of what holds as simulated, in a few runs more."""
    answer, tried = asked(falling(1.5), 10.0)

    assert answer.load is not None
    assert 0.5 < answer.load <= 1.5 * math.exp(-0.3 * NormalDist().inv_cdf(0.9))
    assert len(tried) <= MOST_RUNS_BELOW


def test_where_nothing_is_sure_it_says_so() -> None:
    """Four in five servers hold at any load."""
    answer, tried = asked(lambda _: 0.8, 10.0)

    assert answer.load is None
    assert answer.lowest == min(tried)


def test_clients_are_whole_numbers() -> None:
    """Of a closed loop; the answer holds and one client more does not, or hardly."""
    answer, tried = asked(falling(40.0), 50.0, is_whole=True)

    assert answer.load == round(answer.load or 0.0)
    assert all(load == round(load) for load in tried)
    assert falling(40.0)(answer.load or 0.0) >= 0.9


CLASSES = (
    "workload.classes=[{name: chat, share: 0.2, slo: {ttft: 1 s, tpot: 60 ms, attainment: %s}}, "
    "{name: jobs, share: 0.8}]"
)
ONE_GPU = ["model=llama-3.1-8b", "deployment.hardware=l40s-48gb", "deployment.tensor_parallel_size=1"]
UNASKED = ["deployment.quantization=auto", "deployment.kv_cache_dtype=auto", "slo=null"]


@pytest.mark.slow
@pytest.mark.parametrize("asked", ["0.95", "0.99"])
def test_a_class_with_an_objective_holds_it_where_the_others_have_none(asked: str) -> None:
    """As `simserve run` judges; four fifths of the requests, of which nothing is asked, make up for no miss."""
    changes = [*ONE_GPU, *UNASKED, CLASSES % asked]
    answer = capacity(load("chatbot", changes), num_requests=4000)

    def share(rate: float) -> float:
        there = load("chatbot", [*changes, f"workload.arrivals.rate={rate}", "workload.num_requests=8000"])
        inner = run(there, explain=False, finishable=None).summary["simserve"]
        return float(inner["classes"]["chat"]["slo"]["attainment"])

    promised = answer.found.largest.value
    assert share(promised) >= float(asked) - 0.002
    assert share(1.15 * promised) < float(asked)
    assert answer.binding == "tpot"
    assert any("class" in note for note in answer.notes)


def test_a_miss_counts_as_often_as_fewer_may_miss() -> None:
    """Of the few 4 of 500 miss, where 1 in 100 may; of all 24 of 1,000, where 5 in 100 may."""
    bound = SLO(ttft=1.0, tpot=None, e2e=None, attainment=0.95)
    ttft = np.full(1000, 0.5)
    ttft[:20], ttft[500:504] = 2.0, 2.0
    latencies = RequestLatencies(
        ttft=ttft,
        tpot=np.full(1000, 0.01),
        e2e=ttft,
        is_completed=np.ones(1000, dtype=bool),
        request_class=np.repeat([0, 1], 500).astype(np.int16),
        class_names=("many", "few"),
    )

    asked = _asked(latencies, replace(bound, by_class={"few": replace(bound, attainment=0.99)}), latencies.is_completed)

    assert asked.attainment == pytest.approx(1 - 5 * 4 / 500)
    assert asked.by_metric == {"ttft": pytest.approx(1 - 4 / 500)}
    assert len(asked.met) == 500
    alike = _asked(latencies, replace(bound, by_class={"few": bound}), latencies.is_completed)
    assert alike.attainment == pytest.approx(0.976)
    assert len(alike.met) == 1000
