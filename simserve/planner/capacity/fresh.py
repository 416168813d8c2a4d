"""From a load that holds on average to one that holds in runs that the search has not seen.

Of traffic that is tried as it is: bursts, patterns in time, faults, autoscaling, clients of a closed loop. Half of its
runs miss at a load that holds on average. Steady open traffic has a search of its own
(`simserve.planner.capacity.search`), whose runs are made longer until they are alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from simserve.metrics.statistics import t_quantile
from simserve.planner.capacity.bracket import Largest
from simserve.planner.capacity.level import Found, Level, Prober, Trial
from simserve.planner.capacity.search import FINE_TOLERANCE, FRESH_CONFIDENCE, FRESH_RUNS, Effort, rounded

TIMES_FRESH = 2
"""Times the runs that decide on steady traffic: of those the quarters tell how runs differ, of these whole runs do."""
FEWEST_RUNS = 3
MOST_REQUESTS = 240_000
"""Requests of the runs at one load together, from which on they are fewer: long runs differ less."""
FIRST_STEP, MOST_STEP = 0.02, 0.5
"""Share by which the second load lies below the first; each further one lies twice as far below, up to the other."""
LEAST_SHARE = 0.1
"""Of the load that holds on average, below which none is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshRun:
    """One run of a seed that nothing was chosen on.

    Attributes:
        holds: Whether it meets the objective and keeps up.
        attainment: Share of its requests in the objective; None without one.
        num_requests: Of the run.
    """

    holds: bool
    attainment: float | None
    num_requests: int


@dataclass(frozen=True, slots=True)
class FreshRuns:
    """Runs of seeds that nothing was chosen on, up to the first that misses.

    Attributes:
        holds: Whether all hold, and a further one would by a bound.
        attainments: Share of requests in the objective of each; empty without one.
    """

    holds: bool
    attainments: tuple[float, ...]


def is_one_more_held(attainments: Sequence[float], asked: float) -> bool:
    """Return whether one more run would hold, by Student's t (98 %) in square roots of the share that misses."""
    missed = np.sqrt(1 - np.array(attainments))
    spread = float(np.std(missed, ddof=1)) * math.sqrt(1 + 1 / len(missed))
    reach = t_quantile(len(missed) - 1, FRESH_CONFIDENCE) * spread
    return math.sqrt(1 - asked) - float(missed.mean()) - reach + 1e-9 >= 0


def fresh_runs(
    run: Callable[[int], FreshRun],
    *,
    asked: float | None,
    most_runs: int = TIMES_FRESH * FRESH_RUNS,
    most_requests: int = MOST_REQUESTS,
    is_borne: Callable[[Sequence[float], float], bool] = is_one_more_held,
) -> FreshRuns:
    """Return whether fresh runs all hold, and one more would by a bound; after the first that misses none is run.

    Args:
        run: From the index of a run, 0 and up, to what it shows.
        asked: Share of requests that must meet the objective; None: there is none, and that all runs hold is enough.
        most_runs: How many; fewer where they are long, at least `FEWEST_RUNS`.
        most_requests: Of all runs together, from which on they are fewer.
        is_borne: The bound: from the attainments of the runs, and what is asked, to whether one more would hold.
    """
    shares: list[float] = []
    count, most = 0, max(most_runs, FEWEST_RUNS)
    while count < most:
        found = run(count)
        if found.attainment is not None:
            shares.append(found.attainment)
        if not found.holds:
            return FreshRuns(False, tuple(shares))
        count += 1
        most = min(most, max(FEWEST_RUNS, most_requests // max(found.num_requests, 1)))
    return FreshRuns(asked is None or is_borne(shares, asked), tuple(shares))


def hold_in_fresh_runs(probe: Prober, found: Found, *, asked: float, effort: Effort, is_whole: bool) -> Found:
    """Return what was found with the highest load at which all fresh runs hold, and a further one would by a bound.

    The bound is Student's t (98 %) over whole runs, in square roots of the share that misses. Loads below the one that
    holds on average are tried, ever further apart, and then halved to 3 %. What holds on average becomes ``capacity``,
    and its interval reaches down to the load that is returned. Where no load down to a tenth of it is held, what was
    found is returned as it is.

    Args:
        probe: Runs the deployment.
        found: What the search found, on its own replications.
        asked: Share of requests that must meet every bound.
        effort: Of the search; replications from its number on are fresh.
        is_whole: Whether loads are whole numbers.

    Raises:
        KeyboardInterrupt: The user stopped a run.
    """
    mean = found.largest.value
    fresh = _Tried(probe, asked, effort, found.num_requests, is_whole)
    load, failed, step = fresh.allowed(mean), math.inf, FIRST_STEP
    while (held := fresh.at(load)) is None:
        failed, load = load, fresh.allowed(min(load * (1 - step), load - is_whole))
        step = min(2 * step, MOST_STEP)
        if load < LEAST_SHARE * mean or load < is_whole:
            return found
    while math.isfinite(failed) and failed > (1 + FINE_TOLERANCE) * held.load:
        load = fresh.allowed(math.sqrt(held.load * failed))
        if not held.load < load < failed:
            break
        closer = fresh.at(load)
        held, failed = (held, load) if closer is None else (closer, failed)
    levels = [each for each in found.levels if each.load != held.load]
    interval = None if found.interval is None else (min(found.interval[0], held.load), found.interval[1])
    return replace(
        found,
        largest=Largest(value=held.load, fails_at=found.largest.fails_at),
        levels=tuple(sorted([*levels, held], key=lambda level: level.load)),
        interval=interval,
        capacity=None if found.largest.fails_at is None else mean,
        num_fresh=len(held.trials),
    )


class _Tried:
    """Runs that the search has not seen, at any load."""

    def __init__(self, probe: Prober, asked: float, effort: Effort, num_requests: int, is_whole: bool) -> None:
        self._probe = probe
        self._asked = asked
        self._first = effort.replications
        self._most = TIMES_FRESH * effort.fresh_runs
        self._num_requests = num_requests
        self._is_whole = is_whole

    def allowed(self, load: float) -> float:
        """Return a load rounded down, to a whole number or to three digits."""
        return float(math.floor(load + 1e-9)) if self._is_whole else rounded(load)

    def at(self, load: float) -> Level | None:
        """Return the runs at a load, all of which hold, and one more would; None where they do not."""
        trials: list[Trial] = []

        def run(index: int) -> FreshRun:
            trial = self._probe(load, self._first + index, self._num_requests)
            trials.append(trial)
            holds = Level(load=load, trials=(trial,)).holds(self._asked)
            return FreshRun(holds=holds, attainment=trial.attainment, num_requests=trial.num_simulated)

        found = fresh_runs(run, asked=self._asked, most_runs=self._most)
        return Level(load=load, trials=tuple(trials)) if found.holds else None
