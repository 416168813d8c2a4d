"""Tests of the questions about lists of numbers: Python's answers and those of compiled code are the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.engine import numbers, state

replacements: Any = pytest.importorskip("simserve.engine.compiled.replacements")

NUMBERS = st.lists(st.integers(0, 5), min_size=1, max_size=20)


@given(values=NUMBERS, places=st.tuples(st.integers(0, 19), st.integers(0, 19)))
def test_a_sum_goes_on_at_the_front(values: list[int], places: tuple[int, int]) -> None:
    """As if the list were there twice."""
    start, count = places[0] % len(values), places[1] % len(values)

    expected = sum((values + values)[start : start + count])

    assert state.sum_around(values, start, count) == expected
    assert replacements.sum_around(values, start, count) == expected


@given(values=NUMBERS)
def test_one_place_or_several(values: list[int]) -> None:
    """Where the earliest of some times stands: one place, or that there are several, and then all of them."""
    earliest = min(values)
    places = [position for position, value in enumerate(values) if value == earliest]
    found: list[int] = [99]

    numbers.find_all([float(value) for value in values], float(earliest), found)

    expected = places[0] if len(places) == 1 else numbers.SEVERAL
    assert numbers.find_one([float(value) for value in values], float(earliest)) == expected
    assert replacements.find_one(values, earliest) == expected
    assert found == places
