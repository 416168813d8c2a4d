"""Comparing values of an objective, and finding the smallest number that holds. Knows no fleet."""

from __future__ import annotations

import math
from collections.abc import Callable

Value = tuple[float, float]  # A value to minimise: the objective, then what decides between equals.
WORST: Value = (math.inf, math.inf)
EQUAL = 1e-9  # Relative difference below which two values count as equal.


def smallest_integer(
    holds: Callable[[int], bool], least: int, most: int, *, starts_high: bool = False, start: int | None = None
) -> int | None:
    """Return the smallest integer of [least, most] that holds, None if none does.

    Holding is monotone: true from some integer on. Doubling steps from ``least`` find one that holds, or ``most`` is
    tried first if it is expected to fail; then bisection. From a ``start``, a guess, the steps go up or down.
    """
    if least > most:
        return None
    if starts_high:
        if not holds(most):
            return None
        low, high = least - 1, most
    else:
        low, high, step = least - 1, least if start is None else min(max(start, least), most), 1
        guess = high
        while not holds(high):
            if high >= most:
                return None
            low, high = high, min(most, high + step)
            step *= 2
        while high == guess and guess - step > low and holds(guess - step):
            high = guess = guess - step
            step *= 2
        if high == guess:
            low = max(low, guess - step)
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle
    return high


def is_less(value: Value, other: Value) -> bool:
    """Return whether a value is smaller by more than rounding: the objective, then what decides between equals."""
    for one, two in zip(value, other, strict=True):
        if one != two and not math.isclose(one, two, rel_tol=EQUAL):
            return one < two
    return False
