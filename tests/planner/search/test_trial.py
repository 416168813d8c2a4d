"""Trials of fleets: what is worked out once for all of them."""

from __future__ import annotations

import pytest

from simserve.planner.overrides import with_overrides
from simserve.planner.search import trial
from simserve.planner.search.trial import deployment_in, fleet_of, keep
from simserve.scenario.load import load
from simserve.scenario.resolve import resolve
from simserve.scenario.schema import Scenario

TWO_GPUS = {"deployment.tensor_parallel_size": 2}


def refuse(*_: object) -> object:
    """Stand in for what nobody may call."""
    raise AssertionError("resolved again")


def judged(scenario: Scenario, overrides: dict[str, object]) -> Scenario:
    """Keep a deployment as the search does that has judged it, and return its scenario."""
    there = with_overrides(scenario, overrides)
    keep(scenario, overrides, resolve(there))
    return there


def test_a_deployment_that_was_judged_is_not_resolved_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its fleets, of any number of replicas, have the shape and the memory that were judged."""
    scenario = load("chatbot")
    there = judged(scenario, TWO_GPUS)
    monkeypatch.setattr(trial, "resolve", refuse)

    fleets = [fleet_of(scenario, TWO_GPUS, replicas) for replicas in (1, 3)]

    assert [each.scenario.deployment.replicas for each in fleets] == [1, 3]
    assert fleets[0].shape is fleets[1].shape
    assert deployment_in(scenario, TWO_GPUS) is there


def test_the_deployments_that_are_kept_are_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three, where two are kept, the first is made anew."""
    scenario = load("chatbot")
    monkeypatch.setattr(trial, "KEPT_DEPLOYMENTS", 2)
    monkeypatch.setattr(trial, "_resolved", type(trial._resolved)())

    first, *others = (judged(scenario, {"deployment.tensor_parallel_size": size}) for size in (2, 4, 8))

    sizes = {size: deployment_in(scenario, {"deployment.tensor_parallel_size": size}) for size in (2, 4, 8)}
    assert sizes[2] is not first
    assert [sizes[4], sizes[8]] == others
    assert sizes[4] is others[0]
