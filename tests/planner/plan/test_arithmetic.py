"""The lines that say why a plan has so many GPUs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import simserve
from simserve.planner.plan.summary import _arithmetic, _unconfirmed


@pytest.mark.parametrize(
    ("sustained", "spare", "needed"),
    [
        (1.3, 0, "4 / 2.6 = 1.54, so 2 replicas"),
        (2.42, 0, "4 / 4.84 = 0.83; 2 replicas, as fewer have not held in every run"),
        (2.42, 1, "4 / 4.84 = 0.83; 2 replicas, as some are spare"),
    ],
)
def test_more_replicas_than_the_division_asks_for_are_given_a_reason(sustained: float, spare: int, needed: str) -> None:
    """ "4 / 4.85 = 0.82, so 2 replicas" was said where one had failed to be confirmed."""
    scenario = simserve.load("chatbot", ["workload.arrivals.rate=4"])
    found: Any = SimpleNamespace(
        planned=scenario,
        scenario=scenario,
        sustained_traffic=sustained,
        roles=None,
        goal=SimpleNamespace(spare_replicas=spare),
    )
    trial: Any = SimpleNamespace(figures={"completed": 0}, replicas=2)
    member: Any = SimpleNamespace(bound=SimpleNamespace(least_replicas=1))

    line = next(_arithmetic(found, member, trial))

    assert line.endswith(f"within the SLO (simulated): {needed}")


def test_a_fleet_that_was_not_confirmed_is_told_from_the_plan() -> None:
    """Where both have the same name: "1 x H100 held in the search, but not ..." stood below "Deploy 1 x H100"."""

    def said(replicas: int) -> str:
        plan, failed = (SimpleNamespace(overrides={}, replicas=number, holds=False) for number in (replicas, 1))
        found: Any = SimpleNamespace(scenario=simserve.load("chatbot"), confirmed=plan, confirmations=[failed])
        return next(iter(_unconfirmed(found)))

    assert said(1) == "the same fleet with other engine settings held in the search, but not in the runs that confirm"
    assert said(2).startswith("4 x h100-sxm-80gb, TP 4, fp8, KV fp8 held in the search")
