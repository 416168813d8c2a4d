"""One replication: clients of a closed loop that stop at a time, however many requests that takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
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


def test_far_too_few_requests_become_at_most_a_hundred_times_as_many() -> None:
    """Clients that had come to 1 s of a day: 3 requests each of two loops were drawn, and 300 are next."""
    specs: Any = SimpleNamespace(closes_at=86_400.0, loop=None, loop_of_each=np.array([0, 0, 0, 1, 1]))
    reached: Any = SimpleNamespace(records=SimpleNamespace(arrival_time=np.array([0.0, 1.0])))
    nearly: Any = SimpleNamespace(records=SimpleNamespace(arrival_time=np.array([0.0, 86_000.0])))

    assert replication._enough(make_scenario(), specs, reached) == 300
    assert replication._enough(make_scenario(), specs, nearly) == 6


def test_whole_replicas_fill_a_node_and_their_weights_are_those_of_all_gpus() -> None:
    """Eight GPUs hold two replicas of three; one of 16 takes nodes of its own."""

    def resolved(num_gpus: int) -> Any:
        node = SimpleNamespace(num_host_gpus=8)
        shape = SimpleNamespace(num_gpus=num_gpus, hardware=SimpleNamespace(intra_node=node))
        return SimpleNamespace(shape=shape, memory=SimpleNamespace(weights_bytes=5e9))

    assert [replication.replicas_per_node(resolved(gpus)) for gpus in (1, 3, 4, 8, 16)] == [8, 2, 2, 1, 1]
    assert replication.replica_weights_bytes(resolved(3)) == 15e9


def test_requests_come_to_replicas_that_prefill() -> None:
    """Two that prefill and one that does all; three that only decode take none."""
    pools = [SimpleNamespace(role=role, replicas=count) for role, count in (("prefill", 2), ("decode", 3), ("both", 1))]
    split: Any = SimpleNamespace(pools=pools, replicas=1)

    assert replication.num_replicas(split) == 3


def test_a_warm_up_must_end_before_the_last_arrival() -> None:
    """Up to that very instant nothing would be left to measure."""
    last = float(replication.traffic(make_scenario(), 0).arrival_time[-1])

    assert len(replication.traffic(make_scenario({"run.warmup": f"{last * 0.999} s"}), 0)) == 20
    with pytest.raises(ScenarioError, match="must end before the last of the arrivals"):
        replication.traffic(make_scenario({"run.warmup": f"{last!r} s"}), 0)
