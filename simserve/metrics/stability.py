"""Did the run keep up with its traffic: stable, backlogged or overloaded. Knows times, not causes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from simserve.metrics.occupancy import Sojourns, num_present
from simserve.metrics.percentiles import percentiles

Stability = Literal["stable", "backlogged", "overloaded"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """How the traffic compares with what the deployment finishes with its queue never empty.

    Attributes:
        mean: Load ratio: requests offered a second over those that can be finished.
        peak: Of rates that vary, the same of the highest five minutes; None where they do not.
    """

    mean: float
    peak: float | None


_MIN_ARRIVALS = 50
"""Fewest arrivals that can show a trend, or at a steady rate a queue that was worked off."""
_NUM_BLOCKS = 20
_POINTS_PER_BLOCK = 10
_SIGNIFICANCE = 3.0
"""Growth over the period, in standard deviations of a queue without drift whose steps are as large."""
_LEAST_QUEUE_GROWTH = 0.01
"""Share of the arrivals that must pile up in the queue: the load exceeds the capacity by 1 %."""
_LEAST_SYSTEM_GROWTH = 0.05
"""The same for the number in the system, which grows a little wherever the load does."""
_LEAST_END = 0.5
"""Share of its peak at which a queue that grows to the end must end."""
_LEAST_STEADINESS = 0.6
"""Growth of the number in the system in the last quarter of the arrivals, over that in the quarter before: it
falls while a system fills up, and does not under overload."""
_LONGEST_STAY = 0.25
"""The arrivals must last four times the typical stay, or the system is still filling up."""
_WAITING_SHARE = 0.2
_WAIT_OF_RUN = 0.05
"""A run is backlogged when waiting is a fifth of the time in the system and the slowest twentieth of the
requests waited a twentieth of the run. The second keeps a steady queue at high load apart from one that was worked
off; it is dropped where there is no steady state to keep apart: a closed loop, a trace, all at once. A few requests at
a steady rate last so short a time that any wait is a twentieth of it: they show no backlog."""


def stability(
    sojourns: Sojourns, *, is_open_loop: bool, is_stationary: bool = True, offered: Offered | None = None
) -> Stability:
    """Return the verdict on a run.

    Where it is known how the traffic compares with what the deployment can finish, that decides: a load ratio of 1 and
    more is ``overloaded``, however short the run. Otherwise the queue's trend does:

    * ``overloaded``: open loop, and what waits (or what is in the system, over the second half of the
      arrivals) grows through to the last arrival. The growth must exceed three standard deviations of what a
      queue at exactly its capacity would show, estimated from the steps between the means of 20 blocks of the
      period, be a noticeable share of the arrivals (1 % waiting, 5 % in the system), and end near its peak.
    * ``backlogged``: not overloaded, but requests waited long: all came at once, a closed loop has more
      clients than seats, a burst was worked off.
    * ``stable``: neither.

    The number in the system is tested too because a replica with free seats slows down before it queues; it
    must not be levelling off, as it does while a system fills up.
    """
    is_overload = _is_growing(sojourns) if offered is None else offered.mean >= 1
    if is_open_loop and is_overload:
        return "overloaded"
    return "backlogged" if _is_waiting(sojourns, is_open_loop and is_stationary) else "stable"


def waiting_share(sojourns: Sojourns) -> float:
    """Return the share of the time in the system that was waiting for a first step; NaN if there was none."""
    total = float(sojourns.times_in_system().sum())
    return float(sojourns.waits().sum()) / total if total > 0 else math.nan


def _is_growing(sojourns: Sojourns) -> bool:
    if len(sojourns) < _MIN_ARRIVALS:
        return False
    start, end = float(sojourns.arrival[0]), sojourns.last_beginning
    if end <= start:
        return False
    num_arrivals = int(np.searchsorted(sojourns.arrival, end, side="right"))
    if _has_trend(_levels(sojourns, sojourns.queue_exit, start, end), num_arrivals, _LEAST_QUEUE_GROWTH):
        return True
    middle = (start + end) / 2
    num_early = int(np.searchsorted(sojourns.arrival, middle, side="right"))
    if percentiles(sojourns.times_in_system()[:num_early], [50])[0] > _LONGEST_STAY * (end - start):
        return False
    levels = _levels(sojourns, sojourns.system_exit, middle, end)
    return _is_unabated(levels) and _has_trend(levels, num_arrivals - num_early, _LEAST_SYSTEM_GROWTH)


def _levels(sojourns: Sojourns, leave: NDArray[np.float64], start: float, end: float) -> NDArray[np.float64]:
    grid = np.linspace(start, end, _NUM_BLOCKS * _POINTS_PER_BLOCK + 1)[1:]
    return num_present(sojourns.arrival, leave, grid).astype(np.float64)


def _has_trend(levels: NDArray[np.float64], num_arrivals: int, least_growth: float) -> bool:
    blocks = _block_means(levels)
    growth = float(blocks[-1] - blocks[0])
    steps = np.diff(blocks)
    fluctuation = float(steps.std(ddof=1)) * math.sqrt(len(steps))
    ends_high = float(blocks[-2:].mean()) >= _LEAST_END * float(levels.max())
    return growth >= least_growth * num_arrivals and growth > _SIGNIFICANCE * fluctuation and ends_high


def _is_unabated(levels: NDArray[np.float64]) -> bool:
    blocks = _block_means(levels)
    half = _NUM_BLOCKS // 2
    return float(blocks[-1] - blocks[-1 - half]) >= _LEAST_STEADINESS * float(blocks[half] - blocks[0])


def _block_means(levels: NDArray[np.float64]) -> NDArray[np.float64]:
    means: NDArray[np.float64] = levels.reshape(_NUM_BLOCKS, _POINTS_PER_BLOCK).mean(axis=1)
    return means


def _is_waiting(sojourns: Sojourns, has_steady_state: bool) -> bool:
    share = waiting_share(sojourns)
    if math.isnan(share) or share < _WAITING_SHARE:
        return False
    if has_steady_state and len(sojourns) < _MIN_ARRIVALS:
        return False
    run = sojourns.run_end - float(sojourns.arrival[0])
    return not has_steady_state or percentiles(sojourns.waits(), [95])[0] >= _WAIT_OF_RUN * run
