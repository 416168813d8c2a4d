"""What arrived, in words: one process, several, and how requests waited for their turn."""

from __future__ import annotations

from typing import Any

import pytest

from simserve.report.facts import LOOPS, measured, throughput_lines, traffic, waiting_lines
from simserve.scenario.run import run
from tests.scenario.builders import make_scenario

SHORT = {
    "prompt_tokens": {"distribution": "fixed", "value": 50},
    "output_tokens": {"distribution": "fixed", "value": 5},
}
POISSON = {"process": "poisson", "rate": 4.0}


def ran(workload: dict[str, Any], **deployment: Any) -> Any:
    """Return the result of a workload of short requests."""
    overrides: dict[str, Any] = {"workload": {**SHORT, **workload}}
    overrides |= {f"deployment.{key}": value for key, value in deployment.items()}
    return run(make_scenario(overrides), explain=False)


def test_every_kind_of_arrival_is_named() -> None:
    """Conversations, clients and a batch beside each other; the load is said to be of both kinds."""
    talks = {"turns": {"distribution": "fixed", "value": 2}, "think_time": "1 s"}
    classes = [
        {"name": "chat", "share": 1.0},
        {"name": "bench", "arrivals": {"process": "closed_loop", "concurrency": 2}},
        {"name": "batch", "arrivals": {"process": "all_at_once"}, "num_requests": 7},
    ]
    result = ran({"arrivals": POISSON, "sessions": talks, "classes": classes, "duration": "20 s"})

    words = traffic(result)
    for part in ("chat: poisson (rate 4.0), in conversations", "bench: closed loop (concurrency 2", "(7 requests)"):
        assert part in words
    assert result.summary["simserve"]["load"] == "mixed"
    assert any(LOOPS["mixed"] in line for line in throughput_lines(result))
    ids = result.requests["session_id"]
    assert ids[result.requests["class"] != "chat"].isna().all()
    assert ids[result.requests["class"] == "chat"].notna().all()


def test_one_process_is_named_alone() -> None:
    """As the scenario has it."""
    assert ", poisson (rate 4.0); 50" in traffic(ran({"arrivals": POISSON, "num_requests": 50}))


def test_a_batch_of_one_round_says_nothing_of_training() -> None:
    """Which is between the rounds of several."""
    once, twice = ({"process": "all_at_once"} | more for more in ({}, {"rounds": 2, "training_time": "9 s"}))

    assert ", all at once; " in traffic(ran({"arrivals": once, "num_requests": 20}))
    assert ", all at once (rounds 2, training time 9 s" in traffic(ran({"arrivals": twice, "num_requests": 20}))


@pytest.mark.parametrize("process", ["poisson", "ramp"])
def test_a_fleet_that_changes_says_why_nothing_was_cut(process: str) -> None:
    """Where a warm-up would be looked for; a ramp has none anyway."""
    arrivals = {**POISSON, "process": process} | ({"ramp_duration": "5 s"} if process == "ramp" else {})
    fault = {"kind": "replica", "at": "5 s", "duration": "5 s"}
    result = ran({"arrivals": arrivals, "num_requests": 200}, replicas=2, faults=[fault])

    assert ("since the fleet changes" in measured(result)) == (process == "poisson")


def test_waiting_for_a_turn_is_told_apart() -> None:
    """A flood waits in front of the replicas, not for the step that runs."""
    classes = [{"name": "a", "share": 0.5}, {"name": "b", "share": 0.5}]
    workload = {"arrivals": {"process": "poisson", "rate": 400.0}, "num_requests": 300, "classes": classes}
    fair = ran(workload, fairness={"shares": {"a": 1, "b": 1}, "max_outstanding": 1})
    plain = ran(workload)

    assert "in front of the replicas for their turn" in waiting_lines(fair)[0]
    assert "in front" not in waiting_lines(plain)[0]
