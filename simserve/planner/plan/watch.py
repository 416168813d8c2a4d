"""Reports the progress of a plan: what is being done, how much of it, and the best fleet so far."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from simserve.planner.plan.explain import describe
from simserve.planner.search.member import Objective
from simserve.planner.search.trial import Trial, deployed
from simserve.scenario.schema import Scenario

Progress = Callable[[int, int], None]
"""Called now and then with the pieces of work done, and all that are known so far."""
Stage = Callable[[str, str], None]
"""Called before `Progress` with what is being done and the best fleet so far, in words; empty if none holds."""


class Watch:
    """The progress of a plan.

    Args:
        progress: Called when a stage begins and when a task of it is done; None: not reported.
        on_stage: Likewise, before it.
    """

    def __init__(self, progress: Progress | None, on_stage: Stage | None) -> None:
        self._progress, self._on_stage = progress, on_stage
        self._done = self._known = 0

    def begin(self, num_tasks: int, doing: str, best: Callable[[], str]) -> None:
        """Tell that a stage of some tasks begins; ``best`` returns the best fleet so far in words."""
        self._known += num_tasks
        self._tell(doing, best)

    def done(self, doing: str, best: Callable[[], str]) -> None:
        """Tell that a task of the stage is done."""
        self._done += 1
        self._tell(doing, best)

    def within(self, doing: str, best: Callable[[], str], num_run: int) -> None:
        """Report how many fleets the tasks of the stage have tried so far."""
        self._tell(doing, best, f"{num_run:,} fleet{'' if num_run == 1 else 's'} tried")

    def _tell(self, doing: str, best: Callable[[], str], within: str = "") -> None:
        if self._on_stage is not None:
            self._on_stage(doing, "; ".join(filter(None, [within, best()])))
        if self._progress is not None:
            self._progress(self._done, self._known)


def best_in_words(scenario: Scenario, objective: Objective, trials: Sequence[Trial], confirmed: Trial | None) -> str:
    """Return the confirmed fleet, or else the best that holds in the search, with what it is worth; empty if none does.

    Args:
        scenario: What the trials' overrides change.
        confirmed: The run that confirmed a fleet; None if none is confirmed.
    """
    best = confirmed or min(trials, key=lambda trial: worth(objective, trial), default=None)
    if best is None:
        return ""
    name = "best so far" if confirmed is None else "confirmed"
    return f"{name}: {describe(deployed(scenario, best.overrides, best.replicas))}{_worth_in_words(objective, best)}"


def worth(objective: Objective, trial: Trial) -> float:
    """Return the value that an objective minimises; for fleets without a price, the number of GPUs."""
    if objective == "latency":
        return trial.latencies["p95_e2el_ms"] or math.inf
    if objective == "energy":
        return trial.watts
    return float(trial.num_gpus) if objective == "gpus" or trial.usd_per_hour is None else trial.usd_per_hour


def _worth_in_words(objective: Objective, trial: Trial) -> str:
    if objective == "latency":
        latency = trial.latencies["p95_e2el_ms"]
        return "" if latency is None else f", p95 E2E {latency / 1e3:.3g} s"
    if objective == "energy":
        return f", {trial.watts:,.0f} W"
    return "" if trial.usd_per_hour is None else f", ${trial.usd_per_hour:,.2f}/h"
