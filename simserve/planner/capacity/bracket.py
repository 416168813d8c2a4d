"""Finds the largest load that holds: brackets it, then closes in. Knows only a function of the load."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

TOLERANCE = 0.01  # Ratio of the load that fails to the one that holds, minus one, at which a search ends.
GROWTH = 2.0  # Factor between the loads that are tried until one holds and one fails.
DEEPEST = 2.0**-20  # Share of the starting load below which nothing is tried.
OVERSHOOT = 0.9
"""Share of the tolerance by which a step goes beyond the expected limit: enough to pass it, but hardly more."""
PUSH = 0.4
"""Share of the tolerance by which a load between two is pushed towards the end that is not close yet: two such pushes
are within the tolerance."""

Margin = Callable[[float], float]
"""The margin of a load: it holds at or above 0, and fails below. Only the sign must be right; a margin that falls
evenly in the logarithm of the load is closed in on faster than one that only says yes or no."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Largest:
    """Where a search ended."""

    value: float  # The largest load that was seen to hold; 0 where none did.
    fails_at: float | None  # The smallest load above it that was seen to fail; None where all that may be tried hold.


def largest(
    margin: Margin,
    *,
    start: float,
    tolerance: float = TOLERANCE,
    growth: float = GROWTH,
    lowest: float = 0.0,
    highest: float = math.inf,
    is_whole: bool = False,
    fall: float | None = None,
) -> Largest:
    """Return the largest load whose margin is not negative, to a relative ``tolerance``.

    The load is multiplied or divided by ``growth``, and by its square from step to step up to 2, until one holds and
    the next fails. Between the two, the next load is where a line through their margins, over the logarithm of the
    load, crosses zero, pushed a little towards the end that is not close yet. Every third time it is their geometric
    mean, so that no shape of margin stalls the search. A margin that holds again beyond a load that fails is not
    sought.

    Args:
        margin: Called once for each load.
        start: The first load that is tried, > 0.
        tolerance: The search ends when ``fails_at <= value * (1 + tolerance)``; whole loads also end one apart.
        growth: First factor between loads, > 1; a small one suits a start that is nearly right.
        lowest: Nothing below it is tried; 0: nothing below ``start`` times 2^-20.
        highest: Nothing above it is tried.
        is_whole: Whether loads are whole numbers, >= 1.
        fall: How fast the margin falls with the logarithm of the load, > 0, where known: the second load is then
            slightly beyond where it leads, instead of one step of ``growth``.
    """
    if not start > 0 or not growth > 1 or not tolerance > 0:
        raise ValueError(f"start={start}, growth={growth} - 1 and tolerance={tolerance} must be > 0")
    floor = max(math.ceil(lowest), 1.0) if is_whole else max(lowest, start * DEEPEST)
    ceiling = math.floor(highest) if is_whole and math.isfinite(highest) else highest
    if ceiling < floor:
        return Largest(value=0.0, fails_at=None)
    return _Search(margin, tolerance, growth, floor, ceiling, is_whole, fall).run(start)


@dataclass(slots=True)
class _Search:
    margin: Margin
    tolerance: float
    growth: float
    floor: float
    ceiling: float
    is_whole: bool
    fall: float | None

    def run(self, start: float) -> Largest:
        load = self._allowed(start)
        held, failed = self._bracket(load, self.margin(load))
        if held is None:
            return Largest(value=0.0, fails_at=None if failed is None else failed[0])
        if failed is None:
            return Largest(value=held[0], fails_at=None)
        return self._close_in(held, failed)

    def _bracket(self, load: float, margin: float) -> tuple[tuple[float, float] | None, tuple[float, float] | None]:
        """Return a load that holds and one above it that fails, with their margins; None where there is none."""
        holds = margin >= 0
        factor = self._first_factor(margin)
        end = self.ceiling if holds else self.floor
        seen = (load, margin)
        while seen[0] != end:
            following = self._allowed(self._stepped(seen[0], factor))
            probed = (following, self.margin(following))
            if (probed[1] >= 0) != holds:
                return (seen, probed) if holds else (probed, seen)
            seen = probed
            step = min(max(factor, 1 / factor, self.growth) ** 2, max(self.growth, GROWTH))
            factor = step if holds else 1 / step
        return (seen, None) if holds else (None, seen)

    def _first_factor(self, margin: float) -> float:
        """Return the factor to the second load."""
        step = self.growth
        if self.fall is not None:
            step = math.exp(min(abs(margin) / self.fall, math.log(GROWTH))) * (1 + self.tolerance) ** OVERSHOOT
        return step if margin >= 0 else 1 / step

    def _close_in(self, held: tuple[float, float], failed: tuple[float, float]) -> Largest:
        turn = 0
        moved_up = False
        while not self._is_close(held[0], failed[0]):
            turn += 1
            load = self._between(held, failed, is_middle=turn % 3 == 0, pushes_up=moved_up)
            probed = (load, self.margin(load))
            moved_up = probed[1] >= 0
            if moved_up:
                held = probed
            else:
                failed = probed
        return Largest(value=held[0], fails_at=failed[0])

    def _between(
        self, held: tuple[float, float], failed: tuple[float, float], *, is_middle: bool, pushes_up: bool
    ) -> float:
        low, high = math.log(held[0]), math.log(failed[0])
        push = PUSH * math.log1p(self.tolerance)
        share = 0.5
        if not is_middle and math.isfinite(held[1]) and math.isfinite(failed[1]):
            share = held[1] / (held[1] - failed[1])
        point = low + share * (high - low)
        if not is_middle:
            point += push if pushes_up else -push
        edge = min(push, 0.5 * (high - low))
        load = math.exp(min(max(point, low + edge), high - edge))
        if not self.is_whole:
            return load
        return float(min(max(round(load), round(held[0]) + 1), round(failed[0]) - 1))

    def _is_close(self, held: float, failed: float) -> bool:
        return failed <= held * (1 + self.tolerance) or (self.is_whole and failed - held <= 1)

    def _stepped(self, load: float, factor: float) -> float:
        if not self.is_whole:
            return load * factor
        return float(max(round(load * factor), round(load) + 1) if factor > 1 else math.floor(load * factor))

    def _allowed(self, load: float) -> float:
        within = min(max(load, self.floor), self.ceiling)
        return float(round(within)) if self.is_whole else within
