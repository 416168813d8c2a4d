"""Which of many replicas is first, or has the least to do: kept in an order while times and loads change.

Of few replicas a look at all is faster, which `simserve.engine.numbers` answers. Python keeps heaps in which what was
before stays until it comes to the top; compiled code keeps tournaments
(`simserve.engine.compiled.replacements`). Both give the same answers.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Any, cast

from simserve.engine.numbers import SEVERAL
from simserve.engine.state import INFINITY, MASK, SHIFT

_LEAST_UNITS = 24
"""From so many on a heap says faster than a look at all which is the first."""


def has_order(num_schedulers: int) -> bool:
    """Return whether an order of so many replicas pays."""
    return num_schedulers >= _LEAST_UNITS


def arrange_times(order: list[Any], times: list[float]) -> None:
    """Let ``order`` know some times, in whatever form serves the next three functions."""
    order[:] = [(time, position) for position, time in enumerate(times) if time < INFINITY]
    heapify(order)


def note_time(order: list[Any], position: int, time: float) -> None:
    """Let ``order`` know that the time at a position is now another."""
    if time < INFINITY:
        heappush(order, (time, position))


def first_time(order: list[Any], times: list[float]) -> float:
    """Return the smallest of ``times``, all changes of which ``order`` knows of; infinity: there is none."""
    while order:
        time, position = order[0]
        if times[position] == time:
            return cast(float, time)
        heappop(order)
    return INFINITY


def find_first(order: list[Any], times: list[float]) -> int:
    """Return where `first_time`, which has just been asked for, stands; `SEVERAL`: in more places than one.

    What stands there is forgotten: it must be noted anew.
    """
    entry = heappop(order)
    while order and (order[0] == entry or times[order[0][1]] != order[0][0]):
        heappop(order)
    if order and order[0][0] == entry[0]:
        return SEVERAL
    return cast(int, entry[1])


def arrange_loads(order: list[int], loads: list[int]) -> None:
    """Let ``order`` know some loads, in whatever form serves the next two functions."""
    order[:] = [load << SHIFT | position for position, load in enumerate(loads)]
    heapify(order)


def note_load(order: list[int], position: int, load: int) -> None:
    """Let ``order`` know that the load at a position is now another."""
    heappush(order, load << SHIFT | position)


def least_load(order: list[int], loads: list[int]) -> int:
    """Return the position of the smallest of ``loads``, the first of several; ``order`` knows of all changes."""
    while True:
        entry = order[0]
        position = entry & MASK
        if loads[position] == entry >> SHIFT:
            return position
        heappop(order)
