"""Clock: SimPy's environment with an order among things that happen at one instant, and streams of random numbers."""

from __future__ import annotations

from heapq import heappush
from itertools import count
from typing import TYPE_CHECKING, Any

import simpy

from simserve import rng

if TYPE_CHECKING:
    from collections.abc import Generator

    from simserve.workload.requests import RequestSpecs

    Steps = Generator[simpy.Event, Any, Any]
    """What a SimPy process is written as."""

STEP_ENDS, IS_SENT, ARRIVES, TIMES_OUT, SUBMITS, LANDS, IS_ANSWERED, TURNS, IS_DUE, PLANS = range(2, 12)
"""What happens at one instant, in this order, behind SimPy's own priorities 0 and 1: whoever decides (autoscaler,
faults, router) looks first; steps end before arrivals are seen, and these before the next step is planned."""

_NUMBER_BITS = 32
_DRAWN_AT_ONCE = 1024


class Clock(simpy.Environment):
    """SimPy's clock, on which events can be put at an exact time and place.

    Attributes:
        coming: Numbers everybody who is on the way to somewhere, in the order of setting off.
    """

    def __init__(self) -> None:
        super().__init__()
        self.coming = count(1)

    def at(self, time: float, kind: int, number: int = 0) -> simpy.Event:
        """Return an event that happens at ``time``, in the order of kinds, then of numbers."""
        event = simpy.Event(self)
        event._ok, event._value = True, None
        place: Any = (time, (kind << _NUMBER_BITS) + number, next(self._eid), event)
        heappush(self._queue, place)
        return event


class Chance:
    """A named stream of uniform random numbers, drawn by the thousand and used from the end of each thousand."""

    def __init__(self, specs: RequestSpecs, name: str) -> None:
        self._random = rng.stream(specs.seed, name, specs.replication)
        self._numbers: list[float] = []

    def next(self) -> float:
        """Return the next number, from 0 to 1."""
        if not self._numbers:
            self._numbers = self._random.random(_DRAWN_AT_ONCE).tolist()
        return self._numbers.pop()

    def below(self, count: int) -> int:
        """Return a whole number from 0 up to ``count``, exclusive."""
        return min(int(self.next() * count), count - 1)
