"""Rates that change over time: piecewise linear curves, their integral, and its inverse (the time change of a Poisson
process: Cinlar, Introduction to Stochastic Processes, 1975, section 4.7)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RateCurve:
    """A rate over time, linear within segments; jumps between them are allowed.

    Attributes:
        edges: Start of each segment and the end of the last, seconds, ascending from 0, shape [n + 1].
        left: Rate at the start of each segment, >= 0, shape [n].
        right: Rate at the end of each segment, >= 0, shape [n].
        is_periodic: Whether it starts over after the last segment; otherwise its last rate holds for ever.
    """

    edges: Floats
    left: Floats
    right: Floats
    is_periodic: bool = False

    @cached_property
    def _sums(self) -> Floats:
        areas = np.diff(self.edges) * (self.left + self.right) / 2
        return np.concatenate([[0.0], np.cumsum(areas)])

    @property
    def mean(self) -> float:
        """Mean rate over the segments."""
        return float(self._sums[-1] / self.edges[-1])

    def integral(self, until: float) -> float:
        """Return the number of arrivals expected from 0 to ``until`` seconds."""
        length, total = float(self.edges[-1]), float(self._sums[-1])
        if until >= length and not self.is_periodic:
            return total + (until - length) * float(self.right[-1])
        cycles, rest = divmod(until, length) if self.is_periodic else (0.0, until)
        segment = min(int(np.searchsorted(self.edges, rest, side="right")) - 1, len(self.left) - 1)
        elapsed = rest - self.edges[segment]
        return float(
            cycles * total + self._sums[segment] + elapsed * (self.left[segment] + self._slope[segment] * elapsed / 2)
        )

    def inverse(self, amounts: Floats) -> Floats:
        """Return when the integral reaches each amount, seconds; inf where it never does.

        Args:
            amounts: Expected arrivals, >= 0, shape [m].
        """
        length, total = float(self.edges[-1]), float(self._sums[-1])
        cycles = np.floor(amounts / total) if self.is_periodic else np.zeros(len(amounts))
        rest = amounts - cycles * total
        segment = np.clip(np.searchsorted(self._sums, rest, side="right") - 1, 0, len(self.left) - 1)
        # A segment without traffic is skipped: the amount is reached where the next one with traffic starts.
        missing = rest - self._sums[segment]
        left, slope = self.left[segment], self._slope[segment]
        root = np.sqrt(np.maximum(left * left + 2.0 * slope * missing, 0.0))
        with np.errstate(invalid="ignore", divide="ignore"):
            elapsed = np.where(missing > 0.0, 2.0 * missing / (left + root), 0.0)
        times = cycles * length + self.edges[segment] + elapsed
        if not self.is_periodic:
            beyond = rest > total
            with np.errstate(divide="ignore"):
                times[beyond] = length + (rest[beyond] - total) / self.right[-1]
        return np.asarray(times, dtype=np.float64)

    @cached_property
    def _slope(self) -> Floats:
        return np.asarray((self.right - self.left) / np.diff(self.edges), dtype=np.float64)


def through(times: Floats, rates: Floats, *, is_periodic: bool = False) -> RateCurve:
    """Return the continuous curve through points; the first time is 0.

    Args:
        times: Seconds, ascending, shape [n + 1].
        rates: Requests a second, shape [n + 1].
        is_periodic: Whether it starts over after the last point.
    """
    return RateCurve(times, rates[:-1], rates[1:], is_periodic)


def steps(durations: Floats, rates: Floats) -> RateCurve:
    """Return a curve of constant pieces, the last of which holds for ever.

    Args:
        durations: Seconds, > 0, shape [n].
        rates: Requests a second, shape [n].
    """
    return RateCurve(np.concatenate([[0.0], np.cumsum(durations)]), rates, rates)
