"""What a search for the most load found. Knows nothing of how it searches."""

from __future__ import annotations

import math
from dataclasses import dataclass

from simserve.planner.capacity.bracket import Largest
from simserve.planner.capacity.level import Level
from simserve.scenario.finishable import Finishable

OVERLOAD = "overload"
"""What binds where the objective holds and the queue grows all the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search found.

    Attributes:
        largest: The largest load that holds, and the load above it that fails. Of steady open traffic the first is
            what 95 % of fresh runs hold, and the second may be what can be finished, which is not tried.
        levels: Every load tried with all replications, or as many as it took to fail, and the curve, ascending.
        interval: 95 % interval of the capacity, the load at which the attainment of a run without end is what is asked;
            None where it is 0, or nothing was seen to fail.
        interval_method: ``replications``, ``batch means``, ``bracket``, or ``load ratio`` where it reaches to what can
            be finished; empty without an interval.
        num_requests: Of one run.
        needed_requests: That the attainment asked needs, ten beyond the percentile; inf at 1.
        was_interrupted: The user stopped the search: the loads are those of the longest runs until then.
        finishable: What the deployment finishes with its queue never empty; None where it is not known.
        capacity: Of steady open traffic the load at which the mean of the fresh runs is what is asked; None where they
            hold up to the highest load that is tried.
        has_settled: Whether the runs at the largest load are long enough for their halves to agree; None where this
            is not looked at.
    """

    largest: Largest
    levels: tuple[Level, ...]
    interval: tuple[float, float] | None
    interval_method: str
    num_requests: int
    needed_requests: float
    was_interrupted: bool = False
    finishable: Finishable | None = None
    capacity: float | None = None
    has_settled: bool | None = None

    def level(self, load: float | None) -> Level | None:
        """Return the runs at a load; None where it was not tried."""
        return next((level for level in self.levels if level.load == load), None)

    def binding(self, asked: float) -> str | None:
        """Return what breaks first: the bound most requests miss where it fails, or overload; None if nothing did."""
        failing = self.level(self.largest.fails_at)
        if failing is None:
            return None if self.largest.fails_at is None else OVERLOAD
        if failing.attainment >= asked or not failing.by_metric:
            return OVERLOAD
        return min(failing.by_metric, key=lambda name: failing.by_metric[name])

    @property
    def knee(self) -> Level | None:
        """The load with the most goodput: beyond it, more load is less of it. None where it was not passed."""
        defined = [level for level in self.levels if not math.isnan(level.mean("goodput"))]
        most = max(defined, key=lambda level: level.mean("goodput"), default=None)
        return most if defined and most is not defined[-1] else None
