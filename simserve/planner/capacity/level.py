"""Results of runs against an objective: a trial for each run, a level for each load, and the result of a search."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simserve.metrics.throughput import Stability
from simserve.planner.capacity.bracket import Largest
from simserve.scenario.finishable import Finishable

SOJOURNS_PER_RUN = 20  # Requests of a run over those in flight at once, so that filling up is a small part of it.
_OVERLOADED_MARGIN = -1.0
_LEAST_MARGIN = 1e-9
OVERLOAD = "overload"  # The limit to name if the objective holds but the queue grows.
LOST = "lost"
"""The limit that is named where more requests are lost (fail, or are refused) than may miss the objective."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run at one load."""

    attainment: float
    """Share of the measured requests that met every bound; NaN without any. Where a class with its own objective is
    nearer to missing it, the share of that class."""
    by_metric: Mapping[str, float]  # The same for each bound that is set: ``ttft tpot e2e``.
    stability: Stability  # Stability of the run.
    p95_ttft: float = math.nan  # Seconds; NaN where undefined, as for all that follow.
    p95_tpot: float = math.nan  # Seconds.
    mean_tpot: float = math.nan  # Seconds.
    goodput: float = math.nan
    """Requests/s within the objective: in an open loop the arrivals a second times the share that meets it; in a
    closed loop the answers a second that meet it."""
    throughput: float = math.nan  # Requests answered a second.
    output_throughput: float = math.nan  # Output tokens/s.
    in_flight: float = math.nan  # Requests in the system on average.
    met: NDArray[np.bool_ | np.float64] = field(default_factory=lambda: np.zeros(0, dtype=np.bool_), repr=False)
    """Whether each measured request met every bound, in order of arrival; where a class asks for another share than
    all do, a miss is one minus its weight."""
    has_settled: bool | None = None
    """Whether it is long enough to show a steady state (`simserve.metrics.summary.settled`); None where the load
    ratio is not known."""
    num_simulated: int = 0  # Requests of the run, including the warm-up.
    lost: float = 0.0  # Share of the measured requests that were not answered in full.
    probability: float = math.nan
    """Probability that the objective holds on a real server (`simserve.metrics.real_server`); NaN where it was not
    computed."""
    error_basis: str = ""  # The basis of that probability, in words.


Prober = Callable[[float, int, int], Trial]
"""Maps a load, the index of a replication and a number of requests to a run. The same replication draws the same
lengths at every load, and the same gaps, stretched to it; more requests begin with the same ones as fewer. A run may
have more requests than asked for, where its load needs them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Runs at one load, one for each replication."""

    load: float
    trials: tuple[Trial, ...]

    def without(self, index: int) -> Level:
        """Return the level without one of its runs."""
        return Level(load=self.load, trials=self.trials[:index] + self.trials[index + 1 :])

    @property
    def attainment(self) -> float:
        """Mean attainment of the runs."""
        return self.mean("attainment")

    @property
    def by_metric(self) -> dict[str, float]:
        """Mean attainment of the runs, by bound; runs in which no task ended say nothing of tasks."""
        names = {name: None for trial in self.trials for name in trial.by_metric}
        return {
            name: float(np.mean([trial.by_metric[name] for trial in self.trials if name in trial.by_metric]))
            for name in names
        }

    @property
    def stability(self) -> Stability:
        """Stability of most runs, the better one in a tie: near its capacity a single run may look overloaded by
        chance."""
        verdicts = [trial.stability for trial in self.trials]
        order: tuple[Stability, ...] = ("stable", "backlogged", "overloaded")
        return max(order, key=lambda verdict: (verdicts.count(verdict), -order.index(verdict)))

    @property
    def num_measured(self) -> int:
        """Requests measured, over all runs."""
        return sum(len(trial.met) for trial in self.trials)

    def mean(self, name: str) -> float:
        """Return the mean of a figure over the runs in which it is defined; NaN if in none."""
        values = np.array([getattr(trial, name) for trial in self.trials], dtype=np.float64)
        return float(np.mean(values[~np.isnan(values)])) if not np.isnan(values).all() else math.nan

    def holds(self, asked: float) -> bool:
        """Return whether the objective holds: enough requests met it, and the queue does not grow without end."""
        return self.stability != "overloaded" and self.attainment >= asked - 1e-12

    def margin(self, asked: float) -> float:
        """Return by how much the objective holds, in log-odds of the attainment; its sign is that of `holds`."""
        if self.stability == "overloaded" or math.isnan(self.attainment):
            return _OVERLOADED_MARGIN
        edge = 0.5 / max(self.num_measured, 1)
        attained, wanted = (math.log(x / (1 - x)) for x in np.clip([self.attainment, asked], edge, 1 - edge))
        margin = attained - wanted
        return max(margin, 0.0) if self.holds(asked) else min(margin, -_LEAST_MARGIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """Whether a deployment holds at one load in runs that its search has not seen."""

    holds: bool  # Whether it holds in 95 % of them; true if no such runs are required.
    num_requests: int | None = None  # Requests of one run; None if runs are as long as the scenario says.
    finishable: Finishable | None = None
    """What it finishes with its queue never empty; None if it was not determined."""
    attainments: tuple[float, ...] = ()
    """Share of requests within the SLO in each run, up to one that misses; empty without runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search found."""

    largest: Largest
    """The largest load that holds, and the load above it that fails. If `is_promised`, 95 % of fresh runs hold the
    first; for steady open traffic the second may be what can be finished, which is not tried."""
    levels: tuple[Level, ...]
    """Every load tried with all replications, or as many as it took to fail, and the curve, ascending."""
    interval: tuple[float, float] | None
    """95 % interval of the capacity, the load at which the attainment of an endless run is what is asked; None where
    the capacity is 0, or nothing was seen to fail."""
    interval_method: str
    """``replications``, ``batch means``, ``bracket``, or ``load ratio`` where it reaches to what can be finished;
    empty without an interval."""
    num_requests: int  # Requests of one run.
    needed_requests: float  # Requests that the attainment asked for needs, ten beyond the percentile; inf at 1.
    was_interrupted: bool = False
    """The user stopped the search. Unless `is_complete`, the levels are those of the longest runs until then."""
    is_complete: bool = False
    """Whether the largest load is what the search was after; a stop later leaves it as it is."""
    finishable: Finishable | None = None
    """What the deployment finishes with its queue never empty; None where it is not known."""
    capacity: float | None = None
    """If `is_promised`, the load at which the mean of the runs is what is asked; None where they hold up to the
    highest load that is tried."""
    has_settled: bool | None = None
    """Whether the runs at the largest load are long enough for their halves to agree; None where this is not
    checked."""
    num_fresh: int = 0
    """For other traffic, the runs at the largest load that the search has not seen, all of which hold (see
    `simserve.planner.capacity.fresh`); 0 where the largest load is one that holds on average."""

    @property
    def is_promised(self) -> bool:
        """Whether 95 % of runs hold at the largest load, rather than their mean."""
        return self.has_settled is not None or self.num_fresh > 0

    def level(self, load: float | None) -> Level | None:
        """Return the runs at a load; None where it was not tried."""
        return next((level for level in self.levels if level.load == load), None)

    def binding(self, asked: float) -> str | None:
        """Return what breaks first where it fails: lost requests, the bound most requests miss, or overload; None if
        nothing did."""
        failing = self.level(self.largest.fails_at)
        if failing is None:
            return None if self.largest.fails_at is None else OVERLOAD
        if failing.attainment >= asked or not failing.by_metric:
            return OVERLOAD
        if failing.mean("lost") > 1.0 - asked:
            return LOST
        return min(failing.by_metric, key=lambda name: failing.by_metric[name])

    @property
    def knee(self) -> Level | None:
        """The load with the highest goodput: beyond it, more load gives less goodput. None where it was not passed."""
        defined = [level for level in self.levels if not math.isnan(level.mean("goodput"))]
        most = max(defined, key=lambda level: level.mean("goodput"), default=None)
        return most if defined and most is not defined[-1] else None
