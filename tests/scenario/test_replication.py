"""One replication: clients of a closed loop that stop at a time, however many requests that takes."""

from __future__ import annotations

from typing import Any

import pytest

from simserve.errors import ScenarioError
from simserve.scenario import replication
from simserve.scenario.run import run
from tests.scenario.builders import make_scenario

CLIENTS = {"process": "closed_loop", "concurrency": 3}


def loop(seconds: float, **workload: Any) -> Any:
    """Return the records of three clients for so many seconds."""
    overrides: dict[str, Any] = {"workload.arrivals": CLIENTS, "workload.num_requests": None}
    overrides |= {"workload.duration": f"{seconds} s", **{f"workload.{key}": value for key, value in workload.items()}}
    return run(make_scenario(overrides), explain=False).simulation.records


def test_clients_send_as_much_as_they_come_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same as a run of just so many requests, and whatever was drawn at first."""
    timed = loop(20.0)
    overrides = {"workload.arrivals": CLIENTS, "workload.num_requests": len(timed)}
    counted = run(make_scenario(overrides), explain=False).simulation.records
    monkeypatch.setattr("simserve.workload.generate._FEWEST_DRAWN", 3)
    redrawn = loop(20.0)

    assert timed.arrival_time.max() < 20.0 < timed.finish_time.max()
    assert timed.finish_time.tolist() == counted.finish_time.tolist()
    assert redrawn.finish_time.tolist() == timed.finish_time.tolist()


def test_clients_that_think_differently_stop_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who sends late leaves a hole in the list of requests, not in the result; conversations go on to their end."""
    arrivals = {**CLIENTS, "think_time": "3 s", "think_time_cv": 1.0, "ramp_up": "10 s"}
    turns = {"turns": {"distribution": "fixed", "value": 3}, "think_time": "1 s"}
    for workload in ({"arrivals": arrivals}, {"arrivals": arrivals, "sessions": turns}):
        drawn = loop(40.0, **workload)
        with monkeypatch.context() as patch:
            patch.setattr("simserve.workload.generate._FEWEST_DRAWN", 1)
            redrawn = loop(40.0, **workload)

        assert redrawn.arrival_time.tolist() == drawn.arrival_time.tolist()
        assert (drawn.arrival_time[drawn.turn == 1] if drawn.turn is not None else drawn.arrival_time).max() < 40.0
        assert len(drawn) > 12


def test_clients_that_never_stop_asking_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """More requests than any run may have: one line."""
    monkeypatch.setattr(replication, "MAX_REQUESTS", 2000)

    with pytest.raises(ScenarioError, match="is so long that the clients send more than 2,000 requests"):
        loop(1e5)
