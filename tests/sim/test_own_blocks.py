"""Requests that share nothing: a run that takes it that nobody is preempted is the same as one that does not."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

import simserve as ss
from simserve.scenario.replication import replicate
from simserve.scenario.resolve import resolve
from simserve.scenario.run import deploy
from simserve.sim.cluster import OwnBlocks
from simserve.sim.simulate import simulate
from tests.builders import make_config, make_specs

SHORT_OF_KV = {
    "deployment.engine.num_gpu_blocks_override": 900,
    "deployment.engine.max_model_len": 8192,
    "workload.num_requests": None,
}
ROOMY = {"workload.num_requests": 400}
EARLY = SHORT_OF_KV | {"workload.arrivals": {"process": "poisson", "rate": 30}, "workload.duration": "30 s"}
STEPS = [{"rate": 1, "duration": "300 s"}, {"rate": 60, "duration": "20 s"}]
LATE = SHORT_OF_KV | {"workload.arrivals": {"process": "steps", "steps": STEPS}, "workload.duration": "320 s"}
DECIDED = {"deployment.streaming": {"network_latency": "5 ms"}}
PATIENT = "60 s"
HASTY = "300 ms"


def clients_that_wait(timeout: str) -> dict[str, Any]:
    """Return one class of clients that try again after a while."""
    return {"workload.classes": [{"name": "chat", "share": 1, "timeout": timeout, "retries": 2}]}


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return whether each run kept what requests had computed themselves, in order."""
    seen: list[bool] = []
    finds_any = OwnBlocks.finds_any

    def noted(own: OwnBlocks, *arguments: Any) -> bool:
        seen.append(own.are_kept)
        return finds_any(own, *arguments)

    monkeypatch.setattr(OwnBlocks, "finds_any", noted)
    return seen


@pytest.mark.parametrize("accelerate", ["off", "on"])
@pytest.mark.parametrize("decided", [{}, DECIDED], ids=["plain", "decided"])
@pytest.mark.parametrize(
    ("changes", "attempts"),
    [
        (ROOMY, [False]),
        (EARLY, [False, True]),
        (LATE, [False, True]),
        (ROOMY | clients_that_wait(PATIENT), [False]),
        (ROOMY | clients_that_wait(HASTY), [False, True]),
    ],
    ids=["nobody is preempted", "somebody is", "somebody is at the end", "nobody tries again", "somebody does"],
)
def test_a_run_is_the_same_whatever_it_began_with(
    begun: list[bool],
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    attempts: list[bool],
    decided: dict[str, Any],
    accelerate: Any,
) -> None:
    """Somebody who is preempted, early or late, or is sent again, has the run begin again."""
    scenario = ss.load("single-gpu-7b", changes | decided)
    deployment = deploy(resolve(scenario))
    specs, _ = replicate(deployment, scenario, 0, accelerate="off")
    begun.clear()

    quick = simulate(deployment, specs, accelerate=accelerate)

    assert begun == attempts
    assert (quick.records.num_preemptions.sum() > 0) == ("workload.duration" in changes)
    monkeypatch.setattr(OwnBlocks, "of", classmethod(lambda *_, **__: OwnBlocks(are_kept=True)))
    whole = simulate(deployment, specs, accelerate=accelerate)
    for each in fields(quick.records):
        np.testing.assert_array_equal(getattr(quick.records, each.name), getattr(whole.records, each.name))
    assert quick.totals.busy_seconds == whole.totals.busy_seconds
    assert quick.end_time == whole.end_time


def test_nothing_is_assumed_where_requests_may_be_lost() -> None:
    """One may find at its next replica what it had computed; nor where steps are kept, which are kept once."""
    specs, config = make_specs([0.0] * 4, 30, 30), make_config(num_blocks=8, enable_prefix_caching=True)
    assumed = OwnBlocks.of([config], specs, may_return=False)

    assert OwnBlocks.of([config], specs, may_return=True) == OwnBlocks(are_kept=True)
    assert assumed == OwnBlocks(are_kept=False, is_assumed=True)
    assert assumed.settled == OwnBlocks(are_kept=True)
