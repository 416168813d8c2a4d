"""Tests of what binds."""

from __future__ import annotations

import math
from typing import Any

import pytest

from simserve.metrics.throughput import LIMITS, PARTS, LimitGain, bottleneck

_PARTS = {"weights": 5.0, "kv": 2.0, "compute": 1.0, "communication": 1.0, "host": 1.0}
_BLOCKED = {"seats": 0.0, "blocks": 0.0, "budget": 0.0, "step": 0.0}


def binding(**overrides: Any) -> dict[str, Any]:
    """Return the answer for a busy replica without a queue that reads weights half of its time."""
    values: dict[str, Any] = {
        "seconds_by_part": _PARTS,
        "blocked_seconds": _BLOCKED,
        "busy_share": 0.9,
        "waiting_share": 0.01,
        "preemptions_per_request": 0.0,
        "mean_batch": 12.0,
        "max_batch": 256,
    }
    return bottleneck(**(values | overrides))


@pytest.mark.parametrize("part", PARTS)
def test_without_a_queue_the_longest_part_of_the_step_binds(part: str) -> None:
    """The largest share of the step time has a name."""
    answer = binding(seconds_by_part={**_PARTS, part: 100.0})

    assert answer["binding"] == PARTS[part]
    assert answer["step_shares"][part] > 0.9
    assert answer["explanation"].endswith(f"takes {answer['step_shares'][part]:.0%} of the step time.")
    assert sum(answer["step_shares"].values()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("reason", "name"),
    [("seats", "max_num_seqs"), ("blocks", "KV memory"), ("budget", "max_num_batched_tokens")],
)
def test_a_queue_binds_by_what_it_waits_for(reason: str, name: str) -> None:
    """The limit that held up most of the queue."""
    answer = binding(waiting_share=0.6, blocked_seconds={**_BLOCKED, reason: 8.0, "step": 2.0})

    assert answer["binding"] == name
    assert answer["waiting_shares"][reason] == 0.8
    assert "spent 60% of their time waiting" in answer["explanation"]
    assert f"80% of it for {name}" in answer["explanation"]


def test_waiting_for_the_running_step_is_no_limit() -> None:
    """Then it is the step that must become shorter."""
    answer = binding(waiting_share=0.6, blocked_seconds={**_BLOCKED, "step": 5.0})

    assert answer["binding"] == "memory bandwidth (weights)"


def test_many_preemptions_mean_kv_memory() -> None:
    """Whatever the queue waits for."""
    answer = binding(preemptions_per_request=0.5, waiting_share=0.6, blocked_seconds={**_BLOCKED, "seats": 8.0})

    assert answer["binding"] == "KV memory"
    assert "0.5 preemptions" in answer["explanation"]


def test_an_idle_fleet_is_bound_by_nothing() -> None:
    """It says how idle."""
    answer = binding(busy_share=0.2)

    assert answer["binding"] == "none"
    assert "idle 80% of the time" in answer["explanation"]


def test_no_step_no_shares() -> None:
    """An empty run has an answer too."""
    answer = binding(seconds_by_part=dict.fromkeys(_PARTS, 0.0), busy_share=math.nan, waiting_share=math.nan)

    assert answer["binding"] == "none"
    assert answer["explanation"] == "No step ran."
    assert all(math.isnan(share) for share in answer["step_shares"].values())


def test_a_busy_fleet_says_how_full_its_steps_are() -> None:
    """One request keeps a step running: the share of time alone would look like full load."""
    answer = binding(busy_share=1.0, mean_batch=20.0, max_batch=256)

    assert "20 requests at once on average, of 256 at most" in answer["explanation"]


@pytest.mark.parametrize("reason", ["seats", "budget"])
def test_a_limit_binds_only_if_raising_it_would_help(reason: str) -> None:
    """Requests wait for it, but twice as much of it would only make the steps twice as long."""
    waits = {"waiting_share": 0.5, "blocked_seconds": {**_BLOCKED, reason: 9.0}}

    helps = binding(**waits, limit_gains={reason: LimitGain(1.5, 1.5)})
    gains_nothing = binding(**waits, limit_gains={reason: LimitGain(1.02, 1.02)})

    assert helps["binding"] == LIMITS[reason]
    assert gains_nothing["binding"] == PARTS["weights"]
    assert "would gain only 2%" in gains_nothing["explanation"]


def test_at_an_overload_a_limit_binds_only_if_more_of_it_would_end_it() -> None:
    """A gain of a third ends an overload of a fifth, not one of two thirds; what halves throughput always binds."""
    waits = {"waiting_share": 0.5, "blocked_seconds": {**_BLOCKED, "seats": 9.0}}

    ends = binding(**waits, limit_gains={"seats": LimitGain(1.2, 1.33)}, load_ratio=1.2)
    lacks = binding(**waits, limit_gains={"seats": LimitGain(1.2, 1.33)}, load_ratio=1.66)
    halves = binding(**waits, limit_gains={"seats": LimitGain(1.5, 2.5)}, load_ratio=6.0)

    assert ends["binding"] == halves["binding"] == LIMITS["seats"]
    assert lacks["binding"] == PARTS["weights"]
    assert "would gain 33% at most, and the load is 1.66 of what can be finished" in lacks["explanation"]


def test_static_batching_waits_for_the_running_batch() -> None:
    """Nobody joins a running batch: its size is the limit, not the seats."""
    answer = binding(waiting_share=0.5, blocked_seconds={**_BLOCKED, "seats": 9.0}, is_static=True)

    assert answer["binding"] == "static_batch_size"


def test_a_tenth_of_the_requests_and_a_fifth_of_their_time_are_enough() -> None:
    """The smallest share of preemptions, and of waiting, that is named; a hair less is not."""
    seats = {**_BLOCKED, "seats": 1.0}
    preempted = [binding(preemptions_per_request=each)["binding"] for each in (0.1, 0.0999)]
    waiting = [binding(waiting_share=each, blocked_seconds=seats)["binding"] for each in (0.2, 0.1999)]

    assert preempted == [LIMITS["blocks"], PARTS["weights"]]
    assert waiting == [LIMITS["seats"], PARTS["weights"]]
