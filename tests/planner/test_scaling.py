"""A scenario at another load: rates times a factor, times kept; and capacities that run such patterns whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simserve.errors import ScenarioError
from simserve.planner.capacity.probe import check_load, probe_of, whole_traffic
from simserve.planner.scaling import has_own_clock, scaled_arrivals, scaled_traffic
from simserve.scenario.load import load
from tests.scenario.builders import make_scenario

STEPS = [{"rate": 5, "duration": "20 s"}, {"rate": 20, "duration": "20 s"}, {"rate": 5, "duration": "20 s"}]
WORKLOAD: dict[str, Any] = {
    "arrivals": {"process": "steps", "steps": STEPS},
    "prompt_tokens": {"distribution": "fixed", "value": 100},
    "output_tokens": {"distribution": "fixed", "value": 20},
    "duration": "60 s",
}


@pytest.mark.parametrize(
    "arrivals",
    [
        {"process": "poisson", "rate": 3.0},
        {"process": "gamma", "rate": 3.0, "cv": 2.0},
        {"process": "ramp", "rate": 3.0, "start_rate": 1.0, "ramp_duration": "10 s"},
        {"process": "spike", "rate": 3.0, "factor": 4, "at": "10 s", "spike_duration": "10 s"},
        {"process": "daily", "rate": 3.0},
        {"process": "steps", "steps": STEPS},
        {"process": "closed_loop", "concurrency": 4},
    ],
)
def test_every_rate_is_scaled_and_no_time(arrivals: dict[str, Any]) -> None:
    """Twice the requests in the same pattern."""
    workload = {**WORKLOAD, "arrivals": arrivals, "duration": None, "num_requests": 50}
    own = make_scenario(workload=workload).workload.arrivals
    assert own is not None

    scaled = scaled_arrivals(own, 2.0)

    assert scaled is not None
    rates, times = own.model_dump(), scaled.model_dump()
    changed = {key for key in rates if rates[key] != times[key]}
    assert changed <= {"rate", "start_rate", "steps", "concurrency"}
    assert changed
    if "steps" in rates:
        assert [each["rate"] for each in times["steps"]] == [2 * each["rate"] for each in rates["steps"]]
        assert [each["duration"] for each in times["steps"]] == [each["duration"] for each in rates["steps"]]


def test_requests_that_come_at_once_have_no_rate() -> None:
    """Nothing to scale."""
    assert scaled_traffic(load("offline-batch"), 2.0) is None


def test_classes_with_arrivals_of_their_own_are_scaled_too() -> None:
    """All of them, or the mix would change."""
    classes = [{"name": name, "arrivals": {"process": "poisson", "rate": rate}} for name, rate in (("a", 1), ("b", 3))]
    workload = {**WORKLOAD, "classes": classes}
    del workload["arrivals"]

    scaled = scaled_traffic(make_scenario(workload=workload), 1.5)

    assert scaled is not None
    assert [each.arrivals.rate for each in scaled.workload.classes or ()] == [1.5, 4.5]  # type: ignore[union-attr]


def test_what_has_times_of_its_own_is_run_whole() -> None:
    """A part of a pattern, or a run that ends before its fault, says nothing of the whole."""
    assert [has_own_clock(load(name)) for name in ("cold-start", "lost-replica", "chatbot", "single-gpu-7b")] == [
        True,
        True,
        False,
        False,
    ]


def test_a_capacity_of_a_pattern_stands_for_its_mean_and_its_peak() -> None:
    """Any load keeps the pattern: as long as the scenario's run, with the peak where it was."""
    scenario = make_scenario(workload=WORKLOAD, slo={"ttft": "1 s"})
    probe, own = probe_of(scenario), whole_traffic(scenario)
    assert probe.draw_whole is not None

    double = probe.draw_whole(2 * own.offered_rate, 0)

    assert len(double) == pytest.approx(2 * len(own), rel=0.1)
    assert double.arrival_time[-1] == pytest.approx(60, abs=2)
    middle = np.count_nonzero((double.arrival_time > 20) & (double.arrival_time < 40))
    assert middle / len(double) == pytest.approx(20 / 30, abs=0.05)


def test_drafts_are_drawn_for_a_capacity() -> None:
    """The pace of each request, as in a run."""
    probe = probe_of(load("speculative-decoding"))

    assert probe(4.0, 0, 100).attainment > 0


def test_clients_beside_a_rate_are_two_loads() -> None:
    """Which of them should grow is not said; conversations beside single requests grow together."""
    bench = {"name": "bench", "arrivals": {"process": "closed_loop", "concurrency": 2}}
    batch = {"name": "batch", "arrivals": {"process": "all_at_once"}, "num_requests": 10}
    workload = {
        "arrivals": {"process": "poisson", "rate": 4.0},
        "prompt_tokens": {"distribution": "fixed", "value": 50},
        "output_tokens": {"distribution": "fixed", "value": 5},
        "duration": "20 s",
    }
    two, one = (
        make_scenario(workload={**workload, "classes": [{"name": "chat", "share": 1.0}, each]}, slo={"ttft": "1 s"})
        for each in (bench, batch)
    )

    with pytest.raises(ScenarioError, match="which of the two is the load"):
        check_load(two)
    check_load(one)
    doubled = scaled_traffic(one, 2.0)
    assert doubled is not None
    assert doubled.workload.classes is not None
    assert doubled.workload.classes[1].num_requests == 20


def test_a_run_with_a_warmup_in_seconds_lasts_as_long_at_twice_the_load() -> None:
    """So it has twice the requests; one that finds its own warm-up has as many, in half the time."""
    plain = make_scenario(workload={**WORKLOAD, "arrivals": {"process": "poisson", "rate": 3.0}})
    plain = plain.model_copy(update={"workload": plain.workload.model_copy(update={"num_requests": 100})})
    timed = plain.model_copy(update={"run": plain.run.model_copy(update={"warmup": 10.0})})
    doubled = [scaled_traffic(each, 2.0) for each in (plain, timed)]

    assert [each.workload.num_requests for each in doubled if each is not None] == [100, 200]
