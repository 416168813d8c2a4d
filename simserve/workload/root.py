"""The root of a monotone function of one number. Knows nothing of what the function means."""

from __future__ import annotations

import math
from collections.abc import Callable

from simserve.errors import InvariantError

_MAX_STEPS = 400
_EPSILON = 2.0**-52


def increasing_root(function: Callable[[float], float], start: float, step: float, tolerance: float) -> float:
    """Return where an increasing function crosses zero.

    The bracket grows from ``start`` by doubling steps; inside it Chandrupatla's method (Advances in
    Engineering Software 28 (3), 1997) chooses between inverse quadratic interpolation and bisection. It is as
    safe as ``scipy.optimize.brentq``, whose import takes longer than drawing a workload.

    Args:
        function: Increasing, negative far below and positive far above the root.
        start: First guess.
        step: First width of the bracket, > 0.
        tolerance: A function value this close to zero is taken as zero.

    Raises:
        InvariantError: No sign change was found.
    """
    low, high = start, start
    value = low_value = high_value = function(start)
    while abs(value) > tolerance and low_value * high_value > 0:
        if value < 0:
            low, low_value = high, high_value
            high += step
            value = high_value = function(high)
        else:
            high, high_value = low, low_value
            low -= step
            value = low_value = function(low)
        step *= 2.0
        if not math.isfinite(step):
            raise InvariantError(f"no sign change of an increasing function around {start}")
    if abs(low_value) <= tolerance:
        return low
    if abs(high_value) <= tolerance:
        return high
    return _bracketed_root(function, (low, low_value), (high, high_value), tolerance)


def _bracketed_root(
    function: Callable[[float], float],
    newest: tuple[float, float],
    opposite: tuple[float, float],
    tolerance: float,
) -> float:
    previous = newest
    share = 0.5
    for _ in range(_MAX_STEPS):
        (a, value_a), (b, _) = newest, opposite
        point = a + share * (b - a)
        value = function(point)
        if (value > 0) == (value_a > 0):
            previous = newest
        else:
            previous, opposite = opposite, newest
        newest = (point, value)
        best = min(newest, opposite, key=lambda pair: abs(pair[1]))
        width = abs(opposite[0] - newest[0])
        shortest = 2.0 * _EPSILON * abs(best[0])
        if abs(best[1]) <= tolerance or width <= 2.0 * shortest or width == 0.0:
            return best[0]
        share = min(max(_next_share(newest, opposite, previous), shortest / width), 1.0 - shortest / width)
    raise InvariantError(f"no root after {_MAX_STEPS} steps, last bracket {newest[0]} to {opposite[0]}")


def _next_share(newest: tuple[float, float], opposite: tuple[float, float], previous: tuple[float, float]) -> float:
    (a, value_a), (b, value_b), (c, value_c) = newest, opposite, previous
    xi = (a - b) / (c - b)
    phi = (value_a - value_b) / (value_c - value_b)
    if not (phi * phi < xi and (1.0 - phi) ** 2 < 1.0 - xi):
        return 0.5
    return value_a / (value_b - value_a) * value_c / (value_b - value_c) + (c - a) / (b - a) * value_a / (
        value_c - value_a
    ) * value_b / (value_c - value_b)
