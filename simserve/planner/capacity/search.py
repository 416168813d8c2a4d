"""Finds the highest load that meets an objective, from runs on common random numbers. Sees only measurements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from simserve.errors import InterruptedRunError
from simserve.metrics.statistics import NUM_BATCHES, batch_means, mean_interval, needed_requests, t_quantile
from simserve.metrics.summary import settling_requests
from simserve.metrics.throughput import EDGE_SOJOURNS
from simserve.planner.capacity.bracket import GROWTH, TOLERANCE, Largest, largest
from simserve.planner.capacity.level import SOJOURNS_PER_RUN, Found, Level, Prober, Promise, Trial
from simserve.scenario.finishable import Finishable

COARSE_TOLERANCE = 0.15  # Tolerance of the first look, one short run a load, before the search proper.
FINE_TOLERANCE = 0.03
FINE_GROWTH = 1.05
"""Tolerance of the look with all replications around what the coarse look found, and growth of its first step."""
FEWEST_REQUESTS = 1000
COARSE_REQUESTS = 500
ALL_AT_ONCE = 1e-3
"""Shortest time, in seconds, in which the requests of a run may arrive: higher loads cannot be told apart, and a few
requests hold at any load."""
DEEPEST = 2.0**-10  # Share of the starting load below which no load is tried.
MARGIN_OF_REQUESTS = 1.2
"""Factor on the requests that the square of the precision asks for: the next interval is an estimate as well."""
ROUNDING = 1.001
"""Factor on the tolerance within which a search counts as close: it ends at the tolerance, except for rounding."""
SLOPE_REACH = 0.2  # Loads within this share of the capacity tell how fast the attainment falls there.
CURVE = (0.5, 0.75, 1.25, 1.5)
CURVE_REPLICATIONS = 3
"""Shares of the capacity at which the curve of goodput is drawn; its runs are as long as those of the first look."""

NEAR_FULL = 0.965
"""Load ratio above which nothing is promised. Runs there must be ever longer to agree with each other (`settled`:
38,000 requests here, 475,000 at 0.99), and what a deployment finishes is itself known only to about 1 %."""
FIRST_SHARE = 0.8  # First load that is tried, as a share of what can be finished.
LONG_RUN_REQUESTS = 30_000  # Least requests of a run near the capacity; more where it has not settled.
LONG_RUN_SECONDS = 1200.0
LEAST_LONG_RUN_REQUESTS = 5000
FIRST_FRESH = 1  # First fresh replication: the search looks at replication 0 alone.
FEW_FRESH_RUNS = 4
FRESH_RUNS = 8
MANY_FRESH_RUNS = 24
"""Runs that must hold at a load once 8 have: a quarter of the loads at which a tenth of all runs miss pass 8."""
LONG_ENOUGH = 0.5  # Share of the requests of a long run from which a miss is no longer put down to too few requests.
WELL_ABOVE = 1.1  # Factor on a load at which short runs must hold too, for them to be enough.
QUARTERS = 4
FRESH_CONFIDENCE = 0.96
"""Two-sided confidence of the bound on one more run: 98 % hold where the estimates are right, so that 95 % do where
they are slightly off."""
CONFIDENCE_BY_FAR = 0.99
"""The same where fewer runs are to be enough. It also applies to the bound by whole runs, which shows how far they
wander. Of loads at which a tenth of all runs miss, four runs pass at most 1.3 %, eight 0.7 %, if the quarters of a run
share up to 0.6 of their variance, as normal deviates (200,000 draws each)."""
FAR = 2.0  # Least ratio of the share that may miss to the share that does, for fewer runs to be enough.
ABOVE = 1.01  # Factor on the expected capacity, at which fresh runs should fail.
STEP_DOWN = 0.995
MOST_CLIMBS = 5
WORTH_A_LOOK = 1.015  # Least ratio of a candidate load to the highest that holds for the candidate to be tried.
MOST_BELOW = 0.04  # Share by which the promised load may be below the mean capacity before runs are made longer.
NARROW = 1.03
"""Ratio of the load that fails to the mean capacity up to which a straight line between the two is trusted."""
USUAL_FALL = 20.0
"""How fast the log-odds of the attainment are taken to fall with the logarithm of the load, until two loads show it."""
LOOKS = 3
SHARE_SPENT = 5
"""Loads at which longer runs are expected; and the limit of a whole search, over the most requests at one load."""
WORTH_LENGTHENING = 1.3
"""Least factor on the requests of a run for longer runs to be worth it, where all of them together are limited."""
LONGER = 4.0
LONGEST = 8.0  # Largest factor on the requests of a run: to the next length, and from the first length to the last.
MORE_FOR_A_PROMISE = 2
"""Factor on the requests at one load where the promised load is too far below the mean capacity: runs of 100,000 bursty
requests differ so much that 95 of 100 hold only at 6 % below it."""
LONGEST_OF_SLOW = 100_000
"""Requests up to which any run may be lengthened: after eight times the 5,000 of a slow fleet a promise may still be
6 % below the capacity."""

CLEAR_MISS = 0.02  # Shortfall of the mean attainment of short runs beyond which longer runs would not help.


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How hard a search tries."""

    replications: int = 6  # Runs at each load, each with its own draws; 1 where nothing is drawn.
    num_requests: int | None = None
    """Requests of one run; None: as many as the percentile and the requests in flight ask for."""
    tolerance: float = TOLERANCE  # Ratio of the load that fails to the one that holds, minus one.
    precision: float = 0.02  # Half width of the interval over the capacity; more requests are spent to reach it.
    most_requests: int = 18_000  # Most requests of all runs at one load together.
    fresh_runs: int = FRESH_RUNS
    """For steady open traffic, runs at the promised load, none of which the search has seen."""
    most_fresh_requests: int = 800_000  # Most requests of all those together.
    long_run_requests: int = LONG_RUN_REQUESTS  # Least requests of a run near the capacity.
    promise_only: bool = False
    """Whether only the promised load of steady open traffic is asked for: the capacity above it is then known only as
    well as that takes, and has no curve."""
    most_below: float = MOST_BELOW
    """Share by which the promised load may be below the mean capacity before runs are made longer."""


def find_capacity(
    probe: Prober,
    *,
    asked: float,
    start: float,
    effort: Effort | None = None,
    highest: float = math.inf,
    is_whole: bool = False,
    finishable: Finishable | None = None,
) -> Found:
    """Return the largest load at which the objective holds.

    For steady open traffic (``finishable`` is given) it is the load that fresh runs hold, see `_SteadySearch`. For
    other traffic one short run a load brackets it; full-length runs with all replications then close in on it. Where
    the interval is wider than asked, that is repeated with as many more requests as it takes, up to the effort's limit.
    Last, single runs draw the curve of goodput. If the user stops it, it returns what the runs so far have shown.

    Args:
        asked: Share of requests that must meet every bound.
        start: First load that is tried.
        highest: Nothing above it is tried.
        is_whole: Whether loads are whole numbers.
        finishable: For steady open traffic, what the deployment finishes with its queue never empty: nothing near it is
            promised, and the search begins from it, not from ``start``.

    Raises:
        InterruptedRunError: The user stopped it before a run was finished.
    """
    search = _Search(probe, asked, effort or Effort(), highest, is_whole)
    if finishable is not None:
        search = _SteadySearch(probe, asked, effort or Effort(), highest, is_whole, finishable=finishable)
    try:
        return search.run(start)
    except KeyboardInterrupt:
        return search.so_far()


def is_load_sustained(probe: Prober, load: float, *, asked: float, finishable: Finishable) -> Promise:
    """Return whether runs of steady open traffic at one load hold the objective, as `find_capacity` promises it.

    It uses runs that the search has not seen; none where the load is too near to what can be finished. The shortest
    runs that settle refuse clear misses, and pass what also holds at a tenth more load. In between, runs of 20 minutes
    decide, or of 30,000 requests where 20 minutes hold few: the batches of a fleet that is far from what it can finish,
    but near its limit on TPOT, wander for minutes, and a short run is over before they are large.

    Args:
        load: Requests/s.
        asked: Share of requests that must meet every bound.
        finishable: What the deployment finishes with its queue never empty.
    """
    return _SteadySearch(probe, asked, Effort(), load, False, finishable=finishable).at(load)


def highest_promised(finishable: Finishable) -> float:
    """Return the load above which nothing is promised: runs there must be ever longer to agree with each other."""
    rate = finishable.rate
    return rounded(min(NEAR_FULL * rate, max(rate - finishable.half_width, rate / 2)))


def long_run_requests(load: float) -> int:
    """Return the requests of 20 minutes, for a run near the capacity where not all can have `LONG_RUN_REQUESTS`."""
    return math.ceil(min(LONG_RUN_REQUESTS, max(LEAST_LONG_RUN_REQUESTS, LONG_RUN_SECONDS * load)))


def settled_requests(load_ratio: float, in_flight: float) -> int:
    """Return the requests of a run that settles, including those while it fills up and empties."""
    ratio = min(load_ratio, NEAR_FULL)
    unmeasured = in_flight * (2 / (1 - ratio) + EDGE_SOJOURNS)
    return math.ceil(max(settling_requests(ratio, in_flight) + unmeasured, SOJOURNS_PER_RUN * in_flight))


@dataclass(slots=True)
class _Search:
    """For traffic that is not steady: a trace, a pattern in time, clients of a closed loop; runs of a given length."""

    probe: Prober
    asked: float
    effort: Effort
    highest: float
    is_whole: bool
    _seen: dict[tuple[float, int, int], Trial] = field(default_factory=dict, kw_only=True)

    def run(self, start: float) -> Found:
        coarse_requests = self._at_least(COARSE_REQUESTS)
        found = self._look(start, 1, coarse_requests, COARSE_TOLERANCE, GROWTH)
        if found.value == 0:
            return self._found(found, 1, coarse_requests, coarse_requests)
        in_flight = self._level(found.value, 1, coarse_requests).mean("in_flight")
        requests = curve_requests = self._at_least(max(FEWEST_REQUESTS, math.ceil(SOJOURNS_PER_RUN * in_flight)))
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
        """Return what the runs so far have shown: the highest load that held, and the lowest above it that failed.

        A short run is kind to a load: what it held does not count where longer runs failed at that load or a lower one.
        """
        levels = [self._longest(load) for load in sorted({load for load, _, _ in self._seen})]
        if not levels:
            raise InterruptedRunError("interrupted", remedy="no run was finished")
        standing = [level for level in levels if not any(self._refutes(other, level) for other in levels)]
        held = max((level.load for level in standing if level.holds(self.asked)), default=0.0)
        failed = min((level.load for level in standing if level.load > held), default=None)
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
        length = self._length(load)
        trials = [trial for (seen, _, requests), trial in self._seen.items() if (seen, requests) == (load, length)]
        return Level(load=load, trials=tuple(trials))

    def _refutes(self, longer: Level, level: Level) -> bool:
        """Return whether longer runs failed at no higher load than one that shorter runs held."""
        is_longer = self._length(longer.load) > self._length(level.load)
        is_contrary = level.holds(self.asked) and not longer.holds(self.asked)
        return is_longer and is_contrary and longer.load <= level.load

    def _length(self, load: float) -> int:
        """Return the requests of the longest runs at a load."""
        return max(requests for seen, _, requests in self._seen if seen == load)

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
            highest=min(self._most(), num_requests / ALL_AT_ONCE),
            lowest=start * DEEPEST,
            is_whole=self.is_whole,
            fall=fall,
        )

    def _most(self) -> float:
        return self.highest

    def _level(self, load: float, replications: int, num_requests: int) -> Level:
        """Return the runs at a load, stopping as soon as they show that it does not hold."""
        trials: list[Trial] = []
        for each in range(replications):
            if self._has_failed(trials, replications):
                break
            trials.append(self._trial(load, each, num_requests))
        return Level(load=load, trials=tuple(trials))

    def _has_failed(self, trials: Sequence[Trial], replications: int) -> bool:
        """Return whether a load fails whatever the remaining runs show."""
        missed = math.fsum(1 - trial.attainment for trial in trials)
        overloaded = sum(trial.stability == "overloaded" for trial in trials)
        return missed > (1 - self.asked) * replications + 1e-9 or 2 * overloaded > replications

    def _trial(self, load: float, replication: int, num_requests: int) -> Trial:
        key = (load, replication, num_requests)
        if key not in self._seen:
            self._seen[key] = self.probe(load, replication, num_requests)
        return self._seen[key]

    def _more_requests(self, found: Largest, replications: int, num_requests: int) -> int | None:
        """Return the requests per run of the next, closer look; None where this one was close enough."""
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
        """Return how fast the margin falls with the logarithm of the load near its zero; None if unknown."""
        levels = sorted(self._levels(replications, num_requests), key=lambda level: abs(level.margin(self.asked)))[:3]
        if len(levels) < 2 or any(level.stability == "overloaded" for level in levels):
            return None
        loads, margins = [math.log(level.load) for level in levels], [level.margin(self.asked) for level in levels]
        fall = -float(np.polyfit(loads, margins, 1)[0])
        return fall if fall > 0 else None

    def _levels(self, replications: int, num_requests: int) -> list[Level]:
        """Return the runs at every load with enough replications of ``num_requests`` requests."""
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
        answer = Found(
            largest=found,
            levels=tuple(levels),
            interval=interval,
            interval_method=method,
            num_requests=num_requests,
            needed_requests=needed_requests(self.asked),
        )
        return self._with_curve(answer, curve_requests, min(CURVE_REPLICATIONS, replications))

    def _with_curve(self, found: Found, num_requests: int, replications: int) -> Found:
        """Return what was found with the levels that draw the curve of goodput around it, as many as the user let it.

        Nothing that was found is lost if the user stops it here.
        """
        value, known = found.largest.value, {level.load for level in found.levels}
        curve = {self._allowed(share * value) for share in CURVE} if value else set()
        levels, was_interrupted = [*found.levels], False
        try:
            for load in sorted(curve - known):
                if 0 < load <= self.highest:
                    levels.append(self._level(load, replications, num_requests))
        except KeyboardInterrupt:
            was_interrupted = True
        ordered = tuple(sorted(levels, key=lambda level: level.load))
        return replace(found, levels=ordered, was_interrupted=was_interrupted, is_complete=True)

    def _allowed(self, load: float) -> float:
        return float(round(load)) if self.is_whole else load

    def _interval(
        self, found: Largest, levels: Sequence[Level], replications: int, num_requests: int
    ) -> tuple[tuple[float, float] | None, str]:
        """Return the interval of the capacity and how it was made.

        The attainment at the capacity has an interval over the replications (for one: by batch means). Divided by the
        slope of the attainment over the logarithm of the load, it becomes an interval of the capacity. Where it is not
        the attainment that fails, there is no such slope: all that is known is the load that holds and the one that
        fails.
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


@dataclass(slots=True)
class _SteadySearch(_Search):
    """For steady open traffic: the load at which 95 % of runs that the search has not seen hold.

    Short runs of one replication find roughly where the objective ends, below what can be finished; longer runs of the
    same find it to 3 %. Then fresh replications decide, in runs long enough for their halves to agree: at one load
    slightly too high, and at the highest, rounded down to three digits, at which all of them hold and one more would,
    by a bound on its attainment (Student's t, see `_spare`). Where the bound is too far below the mean, runs are made
    longer.
    """

    finishable: Finishable
    _ceiling: float = 0.0

    def run(self, start: float) -> Found:
        self._ceiling = min(highest_promised(self.finishable), self.highest)
        coarse_requests = self._at_least(COARSE_REQUESTS)
        start = min(FIRST_SHARE * self.finishable.rate, self._ceiling)
        found = self._look(start, 1, coarse_requests, COARSE_TOLERANCE, GROWTH)
        if found.value == 0:
            return self._found(found, 1, coarse_requests, coarse_requests)
        in_flight = self._level(found.value, 1, coarse_requests).mean("in_flight")
        curve_requests = self._at_least(max(FEWEST_REQUESTS, math.ceil(SOJOURNS_PER_RUN * in_flight)))
        requests = self._long_run(found.value, in_flight)
        start, fall = self._edge(found, 1, coarse_requests), self._fall(1, coarse_requests)
        found = self._look(start, 1, requests, FINE_TOLERANCE, FINE_GROWTH, fall)
        if found.value == 0:
            return self._found(found, 1, requests, curve_requests)
        return self._promised(self._edge(found, 1, requests), self._fall(1, requests), requests, curve_requests)

    def _most(self) -> float:
        return self._ceiling

    def _long_run(self, load: float, in_flight: float) -> int:
        """Return the requests of a run near a load that settles, as far as a short run tells."""
        if self.effort.num_requests is not None:
            return self.effort.num_requests
        settling = settled_requests(load / self.finishable.rate, in_flight)
        return self._at_least(max(self.effort.long_run_requests, settling))

    def at(self, load: float) -> Promise:
        """Return whether the deployment can sustain one load: see `is_load_sustained`."""
        if load > highest_promised(self.finishable):
            return Promise(holds=False, num_requests=0, finishable=self.finishable)
        fewest = self._at_least(FEWEST_REQUESTS)
        in_flight = self._level(load, 1, fewest).mean("in_flight")
        num_requests = max(fewest, settled_requests(load / self.finishable.rate, in_flight))
        level = self._fresh(load, num_requests)
        holds = self._is_sustained(level) and self._has_settled(level) and self._is_far(load, num_requests)
        if holds or level.attainment < self.asked - CLEAR_MISS:
            return self._promise(level, num_requests, holds=holds)
        num_requests = max(num_requests, long_run_requests(load))
        most = max(num_requests, math.ceil(LONGEST * LONG_RUN_REQUESTS))
        while True:
            level = self._until_known(load, num_requests, MANY_FRESH_RUNS)
            holds = self._is_sustained(level) and self._has_settled(level)
            is_long = num_requests >= LONG_ENOUGH * LONG_RUN_REQUESTS
            if holds or num_requests >= most or (is_long and not self._all_hold(level)):
                return self._promise(level, num_requests, holds=holds)
            num_requests = min(most if is_long else LONG_RUN_REQUESTS, math.ceil(LONGER * num_requests))

    def _promise(self, level: Level, num_requests: int, *, holds: bool) -> Promise:
        attainments = tuple(trial.attainment for trial in level.trials)
        return Promise(holds=holds, num_requests=num_requests, finishable=self.finishable, attainments=attainments)

    def _promised(self, capacity: float, fall: float | None, num_requests: int, curve_requests: int) -> Found:
        first, bracket = num_requests, None
        while True:
            if bracket is None or not self.effort.promise_only:
                level = upper = self._failing(capacity, fall or USUAL_FALL, num_requests)
            else:
                level = self._fresh(self._expected(*bracket, num_requests), num_requests)
            lower = self._sustained(level, upper, fall or USUAL_FALL, num_requests)
            if lower is None:
                return self._answer(lower, upper, None, num_requests, curve_requests)
            lower, inner, upper = self._closer(lower, upper, num_requests)
            known = None if upper.holds(self.asked) else self._capacity(lower, inner, upper)
            capacity = upper.load if known is None else known[0]
            bracket = None if known is None else (lower, upper)
            more = self._longer(lower, capacity, known, first, num_requests)
            if more is None:
                return self._answer(lower, upper, known, num_requests, curve_requests)
            num_requests, fall = more, self._margin_fall(inner, upper) or fall

    def _failing(self, capacity: float, fall: float, num_requests: int) -> Level:
        """Return fresh runs at a load whose mean fails; where there is none, at the highest load that is tried."""
        load, step = min(rounded(capacity * ABOVE, up=True), self._ceiling), ABOVE
        while True:
            level = self._fresh(load, num_requests)
            if load >= self._ceiling or not level.holds(self.asked):
                return level
            further = max(load * math.exp(min(level.margin(self.asked) / fall, 1.0)), load) * step
            load, step = min(rounded(further, up=True), self._ceiling), step**2

    def _expected(self, lower: Level, upper: Level, num_requests: int) -> float:
        """Return the load at which one more run of a length would just hold, from shorter runs at two loads."""
        held, failed = (self._spare(level, num_requests=num_requests) for level in (lower, upper))
        share = held / (held - failed) if held > failed else 0.0
        load = lower.load * (upper.load / lower.load) ** max(0.0, min(share, 1.0))
        return max(rounded(load * STEP_DOWN), lower.load)

    def _sustained(self, level: Level, upper: Level, fall: float, num_requests: int) -> Level | None:
        """Return runs at a load at which fresh runs hold and one more would, from one down; None where there is none.

        Args:
            level: Runs at the load to begin with.
            upper: Runs at a load that fails, or at the highest that is tried.
            fall: How fast the log-odds of the attainment fall with the logarithm of the load.
        """
        load, step = level.load, STEP_DOWN
        missed = max(1 - self.asked, 0.5 / max(upper.num_measured, 1))
        spare_fall = fall * math.sqrt(missed) * (1 - missed) / 2  # of the square root, from that of the log-odds
        while not self._is_sustained(level):
            load = rounded(min(self._bound(level, spare_fall), load) * step)
            if load <= DEEPEST * upper.load:
                return None
            step **= 2
            level = self._fresh(load, num_requests)
            spare_fall = self._spare_fall(level, upper) or spare_fall
        return level

    def _closer(self, lower: Level, upper: Level, num_requests: int) -> tuple[Level, Level, Level]:
        """Return the highest load at which fresh runs hold, and the two between which their mean ceases to hold."""
        if not upper.holds(self.asked) and not self.effort.promise_only:
            expected = math.exp(self._crossing(lower, upper))
            load = rounded(expected * ABOVE, up=True)
            if upper.load > NARROW * expected and lower.load < load < upper.load:
                self._fresh(load, num_requests)
        has_climbed = False
        for _ in range(MOST_CLIMBS):
            above = lower
            for each in self._all_fresh(num_requests):
                if each.load > lower.load:
                    above = each
                    if not self._is_sustained(each):
                        break
                    lower = each
            fall = self._spare_fall(lower, above)
            load = lower.load if fall is None else rounded(self._bound(lower, fall) * STEP_DOWN)
            if has_climbed:  # the line was too low before: without randomness it is a step
                load = max(load, rounded(math.sqrt(lower.load * above.load)))
            if not WORTH_A_LOOK * lower.load < load < above.load:
                break
            higher = self._fresh(load, num_requests)
            if self._is_sustained(higher):
                lower, has_climbed = higher, True
        failing = [each for each in self._all_fresh(num_requests) if not each.holds(self.asked)]
        upper = failing[0] if failing else upper
        below = [each for each in self._all_fresh(num_requests) if each.load < upper.load]
        return lower, max([lower, *below], key=lambda each: each.load), upper

    def _all_fresh(self, num_requests: int) -> list[Level]:
        """Return the fresh runs of a length, by their loads."""
        loads = {load for load, each, length in self._seen if each >= FIRST_FRESH and length == num_requests}
        return [self._fresh(load, num_requests) for load in sorted(loads)]

    def _fresh(self, load: float, num_requests: int, runs: int | None = None) -> Level:
        """Return runs at a load that the search has not seen: as many as the effort says, or ``runs``."""
        fresh = range(FIRST_FRESH, FIRST_FRESH + (runs or self.effort.fresh_runs))
        return Level(load=load, trials=tuple(self._trial(load, each, num_requests) for each in fresh))

    def _until_known(self, load: float, num_requests: int, most_runs: int) -> Level:
        """Return fresh runs at a load until one fails, the usual number does not pass, or they hold by far.

        At most ``most_runs``. Runs after the first that fails, or after a few that hold by far, could not change the
        verdict.
        """
        usual = min(self.effort.fresh_runs, most_runs)
        level = self._fresh(load, num_requests, 1)
        while self._all_hold(level) and len(level.trials) < most_runs:
            runs = len(level.trials)
            if runs in (FEW_FRESH_RUNS, usual) and self._is_sustained_by_far(level):
                break
            if runs == usual and not self._is_sustained(level):
                break
            level = self._fresh(load, num_requests, runs + 1)
        return level

    def _is_sustained(self, level: Level) -> bool:
        return self._all_hold(level) and self._spare(level) >= 0

    def _is_sustained_by_far(self, level: Level) -> bool:
        spare = min(self._spare(level, CONFIDENCE_BY_FAR, parts=parts) for parts in (1, QUARTERS))
        return spare >= 0 and FAR * (1 - level.attainment) <= 1 - self.asked and self._has_settled(level)

    def _all_hold(self, level: Level) -> bool:
        return all(Level(load=level.load, trials=(trial,)).holds(self.asked) for trial in level.trials)

    def _is_far(self, load: float, num_requests: int) -> bool:
        """Return whether runs well above a load hold as well."""
        above = WELL_ABOVE * load
        if above > highest_promised(self.finishable):
            return False
        return self._is_sustained(self._until_known(above, num_requests, self.effort.fresh_runs))

    def _bound(self, level: Level, fall: float) -> float:
        """Return the load at which one more run would just hold, from the runs at another load."""
        return level.load * math.exp(max(-1.0, min(1.0, self._spare(level) / fall)))

    def _spare(
        self,
        level: Level,
        confidence: float = FRESH_CONFIDENCE,
        *,
        parts: int = QUARTERS,
        num_requests: int | None = None,
    ) -> float:
        """Return a lower bound of how much one more run at a load has to spare.

        In square roots of the share that misses, whose spread hardly depends on the load, over the quarters of all
        runs: Student's t for the mean of four further quarters.

        Args:
            confidence: Two-sided confidence of the bound.
            num_requests: Requests of the one more run; None: as many as in those at the load.
        """
        shares = [part.mean() for trial in level.trials for part in np.array_split(trial.met, parts) if len(part)]
        missed = np.sqrt(1 - np.array(shares, dtype=np.float64))
        if len(missed) < 2:
            return math.sqrt(1 - self.asked) - float(missed.sum())
        spread = float(np.std(missed, ddof=1)) * math.sqrt(1 / parts + 1 / len(missed))
        if num_requests is not None:
            spread *= math.sqrt(level.trials[0].num_simulated / num_requests)
        return math.sqrt(1 - self.asked) - float(missed.mean()) - t_quantile(len(missed) - 1, confidence) * spread

    def _spare_fall(self, lower: Level, upper: Level) -> float | None:
        """Return how fast `_spare` falls with the logarithm of the load; None if it does not."""
        fall = self._spare(lower) - self._spare(upper)
        return fall / math.log(upper.load / lower.load) if fall > 0 and upper.load > lower.load else None

    def _margin_fall(self, lower: Level, upper: Level) -> float | None:
        fall = lower.margin(self.asked) - upper.margin(self.asked)
        return fall / math.log(upper.load / lower.load) if fall > 0 and upper.load > lower.load else None

    def _capacity(self, lower: Level, inner: Level, upper: Level) -> tuple[float, float, float]:
        """Return the load between two at which the pooled attainment is as asked, and its interval, by jackknife."""
        count = len(inner.trials)
        whole = self._crossing(inner, upper)
        if count <= 2:
            within = [batch_means(trial.met.astype(np.float64)).half_width for trial in upper.trials]
            slope = (inner.attainment - upper.attainment) / math.log(upper.load / inner.load)
            half_width = float(np.sqrt(np.nansum(np.square(within)))) / count / slope
        else:
            left_out = [self._crossing(inner.without(each), upper.without(each)) for each in range(count)]
            half_width = mean_interval((count - 1) * np.array(left_out)).half_width
        # Where runs do not differ at all, all that is known is that their mean fails between the two loads.
        high = math.exp(whole + half_width) if half_width > 0 else upper.load
        return math.exp(whole), min(math.exp(whole - half_width), lower.load), high

    def _crossing(self, lower: Level, upper: Level) -> float:
        """Return the logarithm of the load between two at which a line through the margins is zero."""
        held, failed = lower.margin(self.asked), upper.margin(self.asked)
        share = held / (held - failed) if held > failed else 0.5
        return math.log(lower.load) + max(-1.0, min(share, 2.0)) * math.log(upper.load / lower.load)

    def _longer(
        self, lower: Level, capacity: float, known: tuple[float, float, float] | None, first: int, num_requests: int
    ) -> int | None:
        """Return the requests of longer runs; None where these are long enough, or must not be longer."""
        below = (1 - lower.load / capacity) / self.effort.most_below
        fresh = self.effort.most_fresh_requests * (MORE_FOR_A_PROMISE if below > 1 else 1)
        longest = max(math.ceil(LONGEST * first), LONGEST_OF_SLOW)
        most = max(first, min(fresh // self.effort.fresh_runs, longest))
        if self.effort.num_requests is not None or num_requests >= most:
            return None
        spent = sum(length for _, _, length in self._seen)
        is_wide = known is not None and not self.effort.promise_only
        width = (known[2] / known[0] - 1) / self.effort.precision if is_wide and known is not None else 0.0
        factor = max(below, width) ** 2 * MARGIN_OF_REQUESTS if max(below, width) > 1 else 1.0
        if not self._has_settled(lower):
            factor = max(factor, 2.0)
        left = (SHARE_SPENT * fresh - spent) // (LOOKS * self.effort.fresh_runs)
        most_times = LONGEST if self.effort.promise_only else LONGER
        longer = min(most, math.ceil(num_requests * min(factor, most_times)), left)
        return None if factor == 1 or longer < WORTH_LENGTHENING * num_requests else longer

    def _has_settled(self, level: Level) -> bool:
        """Return whether the runs at a load are long enough and their halves agree."""
        if any(trial.has_settled is False for trial in level.trials):
            return False
        halves = [(trial.met[: len(trial.met) // 2], trial.met[len(trial.met) // 2 :]) for trial in level.trials]
        growth = np.array([late.mean() - early.mean() for early, late in halves if len(early)])
        if len(growth) < 3:
            return all(_agree(early, late) for early, late in halves)
        error = float(np.std(growth, ddof=1)) / math.sqrt(len(growth))
        return abs(float(growth.mean())) <= t_quantile(len(growth) - 1, FRESH_CONFIDENCE) * error + ROUNDING - 1

    def _answer(
        self,
        lower: Level | None,
        upper: Level,
        known: tuple[float, float, float] | None,
        num_requests: int,
        curve_requests: int,
    ) -> Found:
        """Return what was found; without ``lower``, that no load can be sustained."""
        rate = self.finishable.rate
        interval: tuple[float, float] | None
        fails_at: float | None
        if lower is None:
            interval, method, fails_at = None, "", upper.load
        elif known is not None:
            method = "bracket" if known[2] == upper.load else "replications"
            interval, fails_at = (known[1], known[2]), upper.load
        elif self._ceiling < self.highest:
            interval, method, fails_at = (lower.load, rate + self.finishable.half_width), "load ratio", rate
        else:
            interval, method, fails_at = None, "", None
        found = Found(
            largest=Largest(value=0.0 if lower is None else lower.load, fails_at=fails_at),
            levels=tuple(self._all_fresh(num_requests)),
            interval=interval,
            interval_method=method,
            num_requests=num_requests,
            needed_requests=needed_requests(self.asked),
            finishable=self.finishable,
            capacity=None if known is None else known[0],
            has_settled=None if lower is None else self._has_settled(lower),
        )
        if self.effort.promise_only:
            return replace(found, is_complete=True)
        return self._with_curve(found, curve_requests, min(CURVE_REPLICATIONS, self.effort.fresh_runs))


def _agree(early: NDArray[np.bool_ | np.float64], late: NDArray[np.bool_ | np.float64]) -> bool:
    """Return whether the attainments of the two halves of a run differ by no more than their intervals."""
    first, second = (batch_means(half.astype(np.float64), NUM_BATCHES // 2) for half in (early, late))
    width = math.hypot(first.half_width, second.half_width)
    return math.isnan(width) or abs(first.mean - second.mean) <= width + ROUNDING - 1


def rounded(load: float, *, up: bool = False) -> float:
    """Return a load rounded down, or up, to three digits."""
    unit = 10.0 ** (math.floor(math.log10(load)) - 2)
    units = math.ceil(load / unit - 1e-9) if up else math.floor(load / unit + 1e-9)
    return float(f"{units * unit:.4g}")


def _slope(levels: Sequence[Level]) -> float:
    """Return the slope of the attainment over the logarithm of the load, by least squares; NaN for fewer than two."""
    if len(levels) < 2:
        return math.nan
    slope: float = np.polyfit(np.log([level.load for level in levels]), [level.attainment for level in levels], 1)[0]
    return slope
