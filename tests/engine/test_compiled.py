"""The compiled kernel against the interpreted one: the same bits, whatever comes; and what happens without numba."""

from __future__ import annotations

import dataclasses
import importlib.util
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.engine.compiled.run import reason_against
from simserve.sim.simulate import Replay, replay
from tests.engine.strategies import Case, cases, pressed_cases
from tests.engine.test_fuzz import CHECKS

needs_numba = pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="numba is not installed")


def is_covered(case: Case) -> bool:
    """Return whether the case runs compiled."""
    is_open = case.specs.concurrency is None and case.specs.turn is None
    shares = case.config.enable_prefix_caching and case.specs.prefixes is not None
    return reason_against(case.config, shares, is_open, False) is None


@needs_numba
@given(
    case=st.one_of(cases(), pressed_cases()).filter(is_covered),
    num_replicas=st.integers(1, 3),
    routing=st.sampled_from(["round_robin", "least_outstanding"]),
    async_scheduling=st.booleans(),
)
@settings(max_examples=400, deadline=None, derandomize=True, suppress_health_check=CHECKS)
def test_compiled_equals_interpreted(case: Case, num_replicas: int, routing: Any, async_scheduling: bool) -> None:
    """Any replicas, router and workload: every record and every total is the same, to the bit."""
    config = dataclasses.replace(case.config, async_scheduling=async_scheduling)
    runs = [
        replay(config, case.times, case.specs, num_replicas=num_replicas, routing=routing, accelerate=accelerate)
        for accelerate in ("off", "on")
    ]

    assert_same(*runs)


def assert_same(expected: Replay, actual: Replay) -> None:
    """Assert that two runs are the same to the bit."""
    for part in ("records", "totals"):
        one, other = getattr(expected, part), getattr(actual, part)
        for field in dataclasses.fields(one):
            assert_same_values(field.name, getattr(one, field.name), getattr(other, field.name))


def assert_same_values(name: str, expected: Any, actual: Any) -> None:
    """Assert the same arrays, numbers, or objects that hold such."""
    if isinstance(expected, np.ndarray):
        np.testing.assert_array_equal(actual, expected, err_msg=name)
    elif dataclasses.is_dataclass(expected):
        for field in dataclasses.fields(expected):
            assert_same_values(field.name, getattr(expected, field.name), getattr(actual, field.name))
    elif hasattr(expected, "upper_edges"):
        for each in expected.__slots__:
            np.testing.assert_array_equal(getattr(actual, each), getattr(expected, each), err_msg=each)
    else:
        assert actual == expected, name
