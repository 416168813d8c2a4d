"""From a load that holds on average to one that holds in fresh runs, which the search has not seen.

For traffic whose runs are as long as the scenario says: bursts, patterns in time, faults, autoscaling, clients of a
closed loop. At a load that holds on average, half of its runs miss. Steady open traffic has its own search
(`simserve.planner.capacity.search`), which lengthens its runs until they are alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from simserve.metrics.statistics import t_quantile
from simserve.planner.capacity.bracket import Largest
from simserve.planner.capacity.level import Found, Level, Prober, Promise, Trial
from simserve.planner.capacity.search import FINE_TOLERANCE, FRESH_CONFIDENCE, FRESH_RUNS, Effort, rounded

TIMES_FRESH = 2
"""Factor on the runs that decide on steady traffic: there the quarters of runs tell how runs differ, here whole
runs."""
FEWEST_RUNS = 3
MOST_REQUESTS = 240_000  # Requests of all runs at one load above which there are fewer runs: long runs differ less.
FIRST_STEP, MOST_STEP = 0.02, 0.5
"""Share by which the second load is below the first; it doubles from step to step, up to the other value."""
LEAST_SHARE = 0.1  # Lowest load that is tried, as a share of the load that holds on average.


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshRun:
    """One run with a seed that no choice was based on."""

    holds: bool  # Whether it meets the objective and keeps up.
    attainment: float | None  # Share of its requests within the objective; None without one.
    num_requests: int  # Requests of the run.


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
    is_sustained: Callable[[Sequence[float], float], bool] = is_one_more_held,
) -> Promise:
    """Return whether fresh runs all hold and, by a bound, one more would; none is run after the first that misses.

    Args:
        run: Maps the index of a run, from 0 on, to its result.
        asked: Share of requests that must meet the objective; None: there is none, and it is enough that all runs hold.
        most_runs: Most runs; fewer where they are long, but at least `FEWEST_RUNS`.
        most_requests: Requests of all runs together above which there are fewer runs.
        is_sustained: The bound: whether one more run would hold, by the attainments and the share asked for.
    """
    shares: list[float] = []
    count, most = 0, max(most_runs, FEWEST_RUNS)
    while count < most:
        found = run(count)
        if found.attainment is not None:
            shares.append(found.attainment)
        if not found.holds:
            return Promise(holds=False, attainments=tuple(shares))
        count += 1
        most = min(most, max(FEWEST_RUNS, most_requests // max(found.num_requests, 1)))
    return Promise(holds=asked is None or is_sustained(shares, asked), attainments=tuple(shares))


def hold_in_fresh_runs(probe: Prober, found: Found, *, asked: float, effort: Effort, is_whole: bool) -> Found:
    """Return what was found, with the highest load at which all fresh runs hold and, by a bound, one more would.

    The bound is Student's t (98 %) over whole runs, in square roots of the share that misses. Loads below the one that
    holds on average are tried, ever further apart, and then halved to 3 %. The load that holds on average becomes
    ``capacity``, and its interval is extended down to the load that is returned. If no load down to a tenth of it
    holds, what was found is returned unchanged.

    Args:
        found: What the search found, on its own replications.
        asked: Share of requests that must meet every bound.
        effort: Effort of the search; replications from its number on are fresh.
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


@dataclass(frozen=True, slots=True)
class _Tried:
    """Runs that the search has not seen, at any load."""

    probe: Prober
    asked: float
    effort: Effort
    num_requests: int
    is_whole: bool

    def allowed(self, load: float) -> float:
        """Return a load rounded down, to a whole number or to three digits."""
        return float(math.floor(load + 1e-9)) if self.is_whole else rounded(load)

    def at(self, load: float) -> Level | None:
        """Return the runs at a load if all of them hold and one more would; else None."""
        trials: list[Trial] = []

        def run(index: int) -> FreshRun:
            trial = self.probe(load, self.effort.replications + index, self.num_requests)
            trials.append(trial)
            holds = Level(load=load, trials=(trial,)).holds(self.asked)
            return FreshRun(holds=holds, attainment=trial.attainment, num_requests=trial.num_simulated)

        found = fresh_runs(run, asked=self.asked, most_runs=TIMES_FRESH * self.effort.fresh_runs)
        return Level(load=load, trials=tuple(trials)) if found.holds else None
