"""The search for the largest load that holds: it finds it, in few tries, whatever the margin looks like."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.planner.capacity.bracket import Largest, Margin, largest


def counted(margin: Margin) -> tuple[Margin, list[float]]:
    """Return a margin that notes the loads it was asked about."""
    asked: list[float] = []

    def noting(load: float) -> float:
        asked.append(load)
        return float(margin(load))

    return noting, asked


@given(
    truth=st.floats(1e-3, 1e4),
    start=st.floats(1e-2, 1e3),
    tolerance=st.sampled_from([0.002, 0.01, 0.1]),
    steepness=st.floats(0.2, 50),
    kind=st.sampled_from(["log", "sign", "square"]),
)
def test_the_edge_is_bracketed_to_the_tolerance(
    truth: float, start: float, tolerance: float, steepness: float, kind: str
) -> None:
    """The load found holds, the one above it fails, they are as close as asked, and no load is tried twice."""

    def margin(load: float) -> float:
        distance = steepness * math.log(truth / load)
        if kind == "sign":
            return 1.0 if load <= truth else -1.0
        return distance if kind == "log" else math.copysign(distance**2, distance)

    noting, asked = counted(margin)
    found = largest(noting, start=start, tolerance=tolerance)

    assert found.fails_at is not None
    assert found.value <= truth * (1 + 1e-12)
    assert truth < found.fails_at * (1 + 1e-12)
    assert found.fails_at <= found.value * (1 + tolerance) * (1 + 1e-12)
    assert len(set(asked)) == len(asked)
    assert len(asked) <= abs(math.log2(truth / start)) + 3 * math.log2(1 / tolerance) + 4


@given(truth=st.integers(1, 5000), start=st.integers(1, 5000))
def test_whole_loads_end_one_apart_or_within_tolerance(truth: int, start: int) -> None:
    """Clients come in whole numbers."""
    noting, asked = counted(lambda load: 1.0 if load <= truth else -1.0)
    found = largest(noting, start=start, tolerance=1e-6, is_whole=True)

    assert found == Largest(value=truth, fails_at=truth + 1)
    assert all(load == round(load) >= 1 for load in asked)


def test_what_always_holds_ends_at_the_highest() -> None:
    """And says that nothing was seen to fail."""
    assert largest(lambda load: 1.0, start=3.0, highest=40.0) == Largest(value=40.0, fails_at=None)


def test_what_never_holds_ends_at_nothing() -> None:
    """The smallest load that was tried is the one that fails."""
    assert largest(lambda load: -1.0, start=3.0, lowest=0.5) == Largest(value=0.0, fails_at=0.5)
    assert largest(lambda load: -1.0, start=3.0, is_whole=True) == Largest(value=0.0, fails_at=1.0)


def test_a_smooth_margin_takes_few_tries() -> None:
    """A line through the margins lands on the edge; halving alone would take ten tries after the bracket."""
    noting, asked = counted(lambda load: math.log(7.3 / load))

    largest(noting, start=1.0, tolerance=0.001)

    assert len(asked) <= 8


@pytest.mark.parametrize("wrong", [{"start": 0.0}, {"start": 1.0, "growth": 1.0}, {"start": 1.0, "tolerance": 0.0}])
def test_a_search_that_could_not_end_is_refused(wrong: dict[str, float]) -> None:
    """By the numbers that make it so."""
    with pytest.raises(ValueError, match="must be > 0"):
        largest(lambda load: 1.0, **wrong)
