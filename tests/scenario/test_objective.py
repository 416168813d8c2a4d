"""What a scenario asks of latencies: for all requests, or class by class."""

from __future__ import annotations

import simserve as ss
from simserve.scenario.objective import objective, objective_mapping
from simserve.scenario.schema import Scenario
from tests.scenario.builders import make_scenario

_CHAT = {"name": "chat", "share": 0.5, "slo": {"ttft": "1 s", "attainment": 0.9}}
_BATCH = {"name": "batch", "share": 0.5}


def by_class() -> Scenario:
    """Return a scenario of which one class alone has an objective."""
    return make_scenario([f"workload.classes={[_CHAT, _BATCH]}"])


def test_without_an_objective_there_is_none() -> None:
    """Neither to judge by nor to write."""
    assert objective(make_scenario()) is None
    assert objective_mapping(make_scenario()) is None


def test_the_scenario_s_own_is_written_as_it_stands() -> None:
    """With its defaults."""
    assert objective_mapping(make_scenario(slo={"ttft": "1 s"}))["attainment"] == 0.95


def test_objectives_of_classes_are_named() -> None:
    """The share is the least that one of them asks."""
    written = objective_mapping(by_class())

    assert written is not None
    assert written["attainment"] == 0.9
    assert written["by_class"]["chat"]["ttft"] == "1 s"
    assert written["by_class"]["batch"] is None


def test_capacity_holds_what_the_classes_ask() -> None:
    """A stricter class bears less; the answer says the objective."""
    loose, strict = (
        ss.capacity(
            make_scenario(
                [
                    "workload.classes="
                    + str([{"name": "chat", "share": 1.0, "slo": {"tpot": bound, "attainment": 0.9}}]),
                    "workload.num_requests=300",
                ]
            )
        ).summary
        for bound in ("10 ms", "3 ms")
    )

    assert loose["slo"]["by_class"]["chat"]["tpot"] == "10 ms"
    assert loose["max_rate"] > strict["max_rate"] > 0
