"""Of fleets of one price: measured step times first, then headroom, then latency."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

import simserve as ss
from simserve.planner.search import equals


@dataclass
class Fleet:
    """A member of a search, as far as the choice among equals looks at it."""

    fidelity: str
    bears: int
    latency: float
    asked: list[int] = field(default_factory=list)

    @property
    def run(self) -> Any:
        """Its deciding run: itself."""
        return self


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a fleet say itself what it bears, at most, and how slow it is."""

    def headroom(_: object, fleet: Fleet, least: int) -> int:
        fleet.asked.append(least)
        return fleet.bears if fleet.bears >= least else -1

    monkeypatch.setattr(equals, "_headroom", headroom)
    monkeypatch.setattr(equals, "_latency", lambda _, fleet: fleet.latency)


def order(*fleets: Fleet) -> list[int]:
    """Return the places of fleets of one price, the best first."""
    members: Any = fleets
    return equals.ranked(ss.load("chatbot"), members)


def test_a_bound_comes_after_what_was_measured() -> None:
    """A data sheet's peaks flatter: the fleet that rests on them bears more and is faster only on paper."""
    bound, fitted = Fleet("roofline", 40, 1.0), Fleet("fitted", 10, 2.0)

    assert order(bound, fitted) == [1, 0]
    assert fitted.asked == [0], "what the bound bears must not cut short the look at the measured fleet"


def test_headroom_then_latency_decide_among_measured_fleets() -> None:
    """More headroom wins; of as much, the lower latency; of equal ones, the first."""
    slow, fast, small = Fleet("fitted", 20, 2.0), Fleet("fitted", 20, 1.0), Fleet("fitted", 5, 0.1)

    assert order(small, slow, fast) == [2, 1, 0]
    assert order(Fleet("fitted", 3, 1.0), Fleet("fitted", 3, 1.0)) == [0, 1]


def test_what_hardly_differs_leaves_the_order_as_it_is() -> None:
    """Within a step of headroom and 5 % of latency the first comes first: other seeds would turn them round."""
    first, second = Fleet("fitted", 3, 1.04), Fleet("fitted", 4, 1.0)

    assert order(first, second, Fleet("fitted", 4, 1.1)) == [0, 1, 2]
    assert order(second, first) == [0, 1]
    assert order(Fleet("fitted", 3, 1.1), second) == [1, 0], "a lower latency wins"
    assert order(Fleet("fitted", 2, 0.5), second) == [1, 0], "more headroom wins"
