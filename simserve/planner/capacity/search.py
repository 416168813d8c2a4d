"""The most load that an objective bears, from runs on common random numbers. Knows runs by what they measured only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from simserve.errors import InterruptedRunError
from simserve.metrics.batch_means import batch_means, mean_interval, needed_requests
from simserve.planner.capacity.bracket import GROWTH, TOLERANCE, Largest, largest
from simserve.planner.capacity.level import STAYS_PER_RUN, Level, Prober, Trial

COARSE_TOLERANCE = 0.15
"""How closely one short run a load looks before the search proper."""
FINE_TOLERANCE = 0.03
FINE_GROWTH = 1.05
"""How closely all replications look around what the coarse look found, and their first step."""
FEWEST_REQUESTS = 1000
COARSE_REQUESTS = 500
DEEPEST = 2.0**-10
"""Share of the starting load below which no load is tried."""
MARGIN_OF_REQUESTS = 1.2
"""Times the requests that the square of the precision asks for: the next interval is an estimate as well."""
ROUNDING = 1.001
"""Times the tolerance up to which a search counts as close: it ends at the tolerance, but for rounding."""
SLOPE_REACH = 0.2
"""Loads within this share of the capacity tell how fast the attainment falls there."""
CURVE = (0.5, 0.75, 1.25, 1.5)
CURVE_REPLICATIONS = 3
"""Shares of the capacity at which the curve of goodput is drawn; its runs are as long as those of the first look."""

OVERLOAD = "overload"
"""What binds where the objective holds and the queue grows all the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How hard a search tries.

    Attributes:
        replications: Runs a load, each with draws of its own; 1 where nothing is drawn.
        num_requests: Of one run; None: as many as the percentile and the requests in flight ask for.
        tolerance: Ratio of the load that fails to the one that holds, less one.
        precision: Half width of the interval over the capacity, which more requests are spent on.
        most_requests: Of all runs at one load together.
    """

    replications: int = 6
    num_requests: int | None = None
    tolerance: float = TOLERANCE
    precision: float = 0.02
    most_requests: int = 18_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search found.

    Attributes:
        largest: The largest load that holds, and the load above it that fails.
        levels: Every load tried with all replications, or as many as it took to fail, and the curve, ascending.
        interval: 95 % interval of the capacity; None where it is 0, or nothing was seen to fail.
        interval_method: ``replications``, ``batch means`` or ``bracket``; empty without an interval.
        num_requests: Of one run.
        needed_requests: That the attainment asked needs, ten beyond the percentile; inf at 1.
        was_interrupted: The user stopped the search: the loads are those of the longest runs until then.
    """

    largest: Largest
    levels: tuple[Level, ...]
    interval: tuple[float, float] | None
    interval_method: str
    num_requests: int
    needed_requests: float
    was_interrupted: bool = False

    def level(self, load: float | None) -> Level | None:
        """Return the runs at a load; None where it was not tried."""
        return next((level for level in self.levels if level.load == load), None)

    def binding(self, asked: float) -> str | None:
        """Return what breaks first: the bound most requests miss where it fails, or overload; None if nothing did."""
        failing = self.level(self.largest.fails_at)
        if failing is None:
            return None
        if failing.attainment >= asked or not failing.by_metric:
            return OVERLOAD
        return min(failing.by_metric, key=lambda name: failing.by_metric[name])

    @property
    def knee(self) -> Level | None:
        """The load with the most goodput: beyond it, more load is less of it. None where it was not passed."""
        defined = [level for level in self.levels if not math.isnan(level.mean("goodput"))]
        most = max(defined, key=lambda level: level.mean("goodput"), default=None)
        return most if defined and most is not defined[-1] else None


def find_capacity(
    probe: Prober,
    *,
    asked: float,
    start: float,
    effort: Effort | None = None,
    highest: float = math.inf,
    is_whole: bool = False,
) -> Found:
    """Return the largest load at which the objective holds.

    One short run a load brackets it; runs of full length with all replications then close in on it. Where the interval
    is wider than asked, that is repeated with as many more requests as it takes, up to the effort's limit. Last, single
    runs draw the curve of goodput.

    Args:
        probe: Runs the deployment.
        asked: Share of requests that must meet every bound.
        start: First load that is tried.
        effort: How hard to try.
        highest: Nothing above it is tried.
        is_whole: Whether loads are whole numbers.

    Stopped by the user, it returns what the runs until then have shown.

    Raises:
        InterruptedRunError: The user stopped it before a run was finished.
    """
    search = _Search(probe, asked, effort or Effort(), highest, is_whole)
    try:
        return search.run(start)
    except KeyboardInterrupt:
        return search.so_far()


@dataclass(slots=True)
class _Search:
    probe: Prober
    asked: float
    effort: Effort
    highest: float
    is_whole: bool
    _seen: dict[tuple[float, int, int], Trial] = field(default_factory=dict)

    def run(self, start: float) -> Found:
        coarse_requests = self._at_least(COARSE_REQUESTS)
        found = self._look(start, 1, coarse_requests, COARSE_TOLERANCE, GROWTH)
        if found.value == 0:
            return self._found(found, 1, coarse_requests, coarse_requests)
        in_flight = self._level(found.value, 1, coarse_requests).mean("in_flight")
        requests = curve_requests = self._at_least(max(FEWEST_REQUESTS, math.ceil(STAYS_PER_RUN * in_flight)))
        replications, tolerance = self.effort.replications, self.effort.tolerance
        start, fall = self._edge(found, 1, coarse_requests), self._fall(1, coarse_requests)
        found = self._look(start, replications, requests, max(tolerance, FINE_TOLERANCE), FINE_GROWTH, fall)
        more = self._more_requests(found, replications, requests)
        while more is not None:
            start, fall = self._edge(found, replications, requests), self._fall(replications, requests)
            requests = more
            found = self._look(start / (1 + tolerance / 2), replications, requests, tolerance, 1 + tolerance, fall)
            more = self._more_requests(found, replications, requests)
        return self._found(found, replications, requests, curve_requests)

    def so_far(self) -> Found:
        """Return what the runs until now have shown: the highest load that held, the lowest above it that failed."""
        levels = [self._longest(load) for load in sorted({load for load, _, _ in self._seen})]
        if not levels:
            raise InterruptedRunError("interrupted", remedy="no run was finished")
        held = max((level.load for level in levels if level.holds(self.asked)), default=0.0)
        failed = min((level.load for level in levels if level.load > held), default=None)
        interval = None if failed is None or not held else (held, failed)
        return Found(
            largest=Largest(value=held, fails_at=failed),
            levels=tuple(levels),
            interval=interval,
            interval_method="bracket" if interval else "",
            num_requests=max(length for _, _, length in self._seen),
            needed_requests=needed_requests(self.asked),
            was_interrupted=True,
        )

    def _longest(self, load: float) -> Level:
        """Return the longest runs at a load."""
        length = max(requests for seen, _, requests in self._seen if seen == load)
        trials = [trial for (seen, _, requests), trial in self._seen.items() if (seen, requests) == (load, length)]
        return Level(load=load, trials=tuple(trials))

    def _at_least(self, num_requests: int) -> int:
        if self.effort.num_requests is not None:
            return self.effort.num_requests
        needed = needed_requests(self.asked)
        return max(num_requests, int(needed) if math.isfinite(needed) else FEWEST_REQUESTS)

    def _look(
        self,
        start: float,
        replications: int,
        num_requests: int,
        tolerance: float,
        growth: float,
        fall: float | None = None,
    ) -> Largest:
        return largest(
            lambda load: self._level(load, replications, num_requests).margin(self.asked),
            start=start,
            tolerance=tolerance,
            growth=growth,
            highest=self.highest,
            lowest=start * DEEPEST,
            is_whole=self.is_whole,
            fall=fall,
        )

    def _level(self, load: float, replications: int, num_requests: int) -> Level:
        """Return the runs at a load, no more of them than it takes to know that it does not hold."""
        trials: list[Trial] = []
        for each in range(replications):
            if self._has_failed(trials, replications):
                break
            trials.append(self._trial(load, each, num_requests))
        return Level(load=load, trials=tuple(trials))

    def _has_failed(self, trials: Sequence[Trial], replications: int) -> bool:
        """Return whether a load fails whatever the runs that are still to come show."""
        missed = math.fsum(1 - trial.attainment for trial in trials)
        overloaded = sum(trial.stability == "overloaded" for trial in trials)
        return missed > (1 - self.asked) * replications + 1e-9 or 2 * overloaded > replications

    def _trial(self, load: float, replication: int, num_requests: int) -> Trial:
        key = (load, replication, num_requests)
        if key not in self._seen:
            self._seen[key] = self.probe(load, replication, num_requests)
        return self._seen[key]

    def _more_requests(self, found: Largest, replications: int, num_requests: int) -> int | None:
        """Return the requests a run that the next, closer look takes; None where this one was close enough."""
        if found.value == 0 or found.fails_at is None:
            return None
        is_close = self._is_close(found)
        most = max(num_requests, self.effort.most_requests // replications)
        if self.effort.num_requests is not None or num_requests == most:
            return None if is_close else num_requests
        interval, method = self._interval(found, self._levels(replications, num_requests), replications, num_requests)
        if interval is None or method == "bracket":
            return None if is_close else min(most, 2 * num_requests)
        share = (interval[1] - interval[0]) / 2 / found.value / self.effort.precision
        if share <= 1:
            return None if is_close else num_requests
        return min(most, max(2 * num_requests, math.ceil(num_requests * MARGIN_OF_REQUESTS * share**2)))

    def _is_close(self, found: Largest) -> bool:
        assert found.fails_at is not None
        gap = found.fails_at - found.value
        return gap <= found.value * self.effort.tolerance * ROUNDING or (self.is_whole and gap <= 1)

    def _edge(self, found: Largest, replications: int, num_requests: int) -> float:
        """Return where a line through the margins of the load that holds and the one that fails crosses zero."""
        if found.fails_at is None:
            return found.value
        held, failed = (
            self._level(load, replications, num_requests).margin(self.asked) for load in (found.value, found.fails_at)
        )
        share = held / (held - failed)
        return float(found.value * (found.fails_at / found.value) ** share)

    def _fall(self, replications: int, num_requests: int) -> float | None:
        """Return how fast the margin falls with the logarithm of the load near where it is zero; None if unknown."""
        levels = sorted(self._levels(replications, num_requests), key=lambda level: abs(level.margin(self.asked)))[:3]
        if len(levels) < 2 or any(level.stability == "overloaded" for level in levels):
            return None
        loads, margins = [math.log(level.load) for level in levels], [level.margin(self.asked) for level in levels]
        fall = -float(np.polyfit(loads, margins, 1)[0])
        return fall if fall > 0 else None

    def _levels(self, replications: int, num_requests: int) -> list[Level]:
        """Return every load of which enough replications were run with so many requests."""
        loads = sorted({load for load, _, length in self._seen if length == num_requests})
        return [
            self._level(load, replications, num_requests)
            for load in loads
            if self._is_complete(load, replications, num_requests)
        ]

    def _is_complete(self, load: float, replications: int, num_requests: int) -> bool:
        seen: list[Trial] = []
        for each in range(replications):
            if self._has_failed(seen, replications):
                return True
            if (load, each, num_requests) not in self._seen:
                return False
            seen.append(self._seen[load, each, num_requests])
        return True

    def _found(self, found: Largest, replications: int, num_requests: int, curve_requests: int) -> Found:
        levels = self._levels(replications, num_requests)
        interval, method = self._interval(found, levels, replications, num_requests)
        known = {level.load for level in levels}
        curve = [self._allowed(share * found.value) for share in CURVE] if found.value else []
        drawn = [
            self._level(load, min(CURVE_REPLICATIONS, replications), curve_requests)
            for load in sorted(set(curve) - known)
            if 0 < load <= self.highest
        ]
        return Found(
            largest=found,
            levels=tuple(sorted([*levels, *drawn], key=lambda level: level.load)),
            interval=interval,
            interval_method=method,
            num_requests=num_requests,
            needed_requests=needed_requests(self.asked),
        )

    def _allowed(self, load: float) -> float:
        return float(round(load)) if self.is_whole else load

    def _interval(
        self, found: Largest, levels: Sequence[Level], replications: int, num_requests: int
    ) -> tuple[tuple[float, float] | None, str]:
        """Return the interval of the capacity and how it was made.

        The attainment at the capacity has an interval over the replications (of one: by batch means). Divided by the
        slope of the attainment over the logarithm of the load it is one of the capacity. Where it is not the attainment
        that fails there is no such slope, and the load that holds and the one that fails are all that is known.
        """
        if found.value == 0 or found.fails_at is None:
            return None, ""
        near = [level for level in levels if abs(math.log(level.load / found.value)) <= SLOPE_REACH]
        falling = [level for level in near if level.stability != "overloaded"]
        slope = _slope(falling)
        level = self._level(found.value, replications, num_requests)
        attainments = np.array([trial.attainment for trial in level.trials])
        by_batches = replications == 1
        interval = batch_means(level.trials[0].met.astype(np.float64)) if by_batches else mean_interval(attainments)
        if not slope < 0 or math.isnan(interval.half_width) or interval.half_width == 0:
            return (found.value, found.fails_at), "bracket"
        factor = math.exp(min(interval.half_width / -slope, 1.0))
        low, high = found.value / factor, max(found.value * factor, found.fails_at if factor == 1 else 0)
        if self.is_whole:
            low, high = float(math.floor(low)), float(math.ceil(high))
        return (low, high), "batch means" if by_batches else "replications"


def _slope(levels: Sequence[Level]) -> float:
    """Return the slope of the attainment over the logarithm of the load, by least squares; NaN of fewer than two."""
    if len(levels) < 2:
        return math.nan
    slope: float = np.polyfit(np.log([level.load for level in levels]), [level.attainment for level in levels], 1)[0]
    return slope
