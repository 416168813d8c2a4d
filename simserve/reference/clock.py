"""Clock: SimPy's environment with an order among simultaneous events, and streams of random numbers."""

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
    """Type of a SimPy process."""

STEP_ENDS, IS_SENT, ARRIVES, TIMES_OUT, SUBMITS, LANDS, IS_ANSWERED, TURNS, IS_DUE, PLANS, PARSES = range(2, 13)
"""Order of simultaneous events, after SimPy's own priorities 0 and 1: controllers (autoscaler, faults, router) act
first; steps end before arrivals are seen, and arrivals are seen before the next step is planned."""

_NUMBER_BITS = 32
_DRAWN_AT_ONCE = 1024


class Clock(simpy.Environment):
    """SimPy's clock, on which events can be put at an exact time and position.

    Attributes:
        coming: Numbers all requests in transit, in the order of departure.
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
    """A named stream of uniform random numbers, drawn in batches of a thousand and used from the end of each."""

    def __init__(self, specs: RequestSpecs, name: str) -> None:
        self._random = rng.stream(specs.seed, name, specs.replication)
        self._numbers: list[float] = []

    def next(self) -> float:
        """Return the next number, from 0 to 1."""
        if not self._numbers:
            self._numbers = self._random.random(_DRAWN_AT_ONCE).tolist()
        return self._numbers.pop()

    def below(self, count: int) -> int:
        """Return an integer from 0 up to, but excluding, ``count``."""
        return min(int(self.next() * count), count - 1)
