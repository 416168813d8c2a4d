"""What compiled code keeps replicas in order by (`simserve.engine.order`): tournaments in lists of numbers.

The winner of two stands above both, the first of all at 1, and those who play in the second half.
"""

from __future__ import annotations

from typing import Any

from simserve.engine.numbers import SEVERAL
from simserve.engine.state import INFINITY, MASK, SHIFT

_MOST = (1 << 62) - 1
"""More than any load with its position."""


def has_order(num_schedulers: int) -> bool:
    """As `simserve.engine.order.has_order`."""
    return num_schedulers > 1


def arrange_times(order: Any, times: Any) -> None:
    """As `simserve.engine.order.arrange_times`: a tournament, the earlier of two above both, the first at 1."""
    count = len(times)
    size = 1
    while size < count:
        size *= 2
    order.clear()
    for _ in range(size):
        order.append(INFINITY)
    for position in range(size):
        order.append(times[position] if position < count else INFINITY)
    for position in range(size - 1, 0, -1):
        order[position] = min(order[2 * position], order[2 * position + 1])


def note_time(order: Any, position: int, time: float) -> None:
    """As `simserve.engine.order.note_time`."""
    place = (len(order) >> 1) + position
    order[place] = time
    while place > 1:
        # Only the other of two is loaded: none waits for what has just been stored.
        other = order[place ^ 1]
        time = other if other < time else time
        place >>= 1
        order[place] = time


def first_time(order: Any, times: Any) -> float:
    """As `simserve.engine.order.first_time`."""
    first: float = order[1]
    return first


def find_first(order: Any, times: Any) -> int:
    """As `simserve.engine.order.find_first`."""
    size = len(order) >> 1
    first = order[1]
    place = 1
    num_ties = 0
    while place < size:
        place *= 2
        one, other = order[place], order[place + 1]
        num_ties += one == other
        place += one != first
    return SEVERAL if num_ties else place - size


def arrange_loads(order: Any, loads: Any) -> None:
    """As `simserve.engine.order.arrange_loads`: a tournament of loads, each with its position in the lower half."""
    count = len(loads)
    size = 1
    while size < count:
        size *= 2
    order.clear()
    for _ in range(size):
        order.append(_MOST)
    for position in range(size):
        order.append(loads[position] << SHIFT | position if position < count else _MOST)
    for position in range(size - 1, 0, -1):
        order[position] = min(order[2 * position], order[2 * position + 1])


def note_load(order: Any, position: int, load: int) -> None:
    """As `simserve.engine.order.note_load`."""
    place = (len(order) >> 1) + position
    entry = load << SHIFT | position
    order[place] = entry
    while place > 1:
        other = order[place ^ 1]
        entry = other if other < entry else entry
        place >>= 1
        order[place] = entry


def least_load(order: Any, loads: Any) -> int:
    """As `simserve.engine.order.least_load`."""
    return int(order[1]) & MASK


ORDER = (has_order, arrange_times, note_time, first_time, find_first, arrange_loads, note_load, least_load)
