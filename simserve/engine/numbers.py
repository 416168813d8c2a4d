"""Numbers: small questions about lists of them, and columns of them as lists.

The plane calls these instead of making slices; `simserve.engine.compiled.replacements` has the same as loops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

SEVERAL = -1
"""Position of a value that is in several places."""


earliest_of: Callable[[list[float]], float] = min
"""Return the smallest of some times, of which there is at least one."""


def least_of(loads: list[int]) -> int:
    """Return the position of the smallest of ``loads``, the first of several."""
    return loads.index(min(loads))


def find_one(times: list[float], time: float) -> int:
    """Return the position of ``time`` in ``times``, which contains it; `SEVERAL`: there is more than one."""
    return times.index(time) if times.count(time) == 1 else SEVERAL


def find_all(times: list[float], time: float, positions: list[int]) -> None:
    """Fill ``positions`` with the positions of ``time`` in ``times``."""
    positions[:] = [position for position, each in enumerate(times) if each == time]


def least_among(numbers: list[int], loads: list[int]) -> int:
    """Return which of ``numbers`` has the smallest of ``loads``, the first of several."""
    own = [loads[number] for number in numbers]
    return numbers[own.index(min(own))]


def sum_among(numbers: list[int], loads: list[int]) -> int:
    """Return the sum of the ``loads`` of ``numbers``, which are distinct."""
    if len(numbers) == len(loads):
        return sum(loads)
    return sum([loads[number] for number in numbers])


def copy_into(copy: list[int], values: list[int]) -> None:
    """Make one list equal another of the same length."""
    copy[:] = values


def sort_ascending(values: list[int]) -> None:
    """Sort a list that is usually short."""
    values.sort()


def remove_all(values: list[int], value: int) -> None:
    """Remove every entry that equals ``value`` from a list."""
    values[:] = [each for each in values if each != value]


def as_column(values: NDArray[Any], as_list: bool) -> Any:
    """Return integers or floats in a list, which Python reads fastest, or in place, as compiled code does."""
    if as_list:
        return values.tolist()
    kind = np.float64 if values.dtype.kind == "f" else np.int64
    return memoryview(cast(bytes, np.ascontiguousarray(values, dtype=kind)))
