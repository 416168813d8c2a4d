"""Why nothing holds, the nearest miss, and what to relax."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from simserve.planner.overrides import Overrides
from simserve.planner.plan.explain import counted
from simserve.planner.search.deciding_run import deciding_run
from simserve.planner.search.member import Goal, GroupResult, Member
from simserve.planner.search.trial import LATENCIES, TERMS, Trial
from simserve.scenario.schema import Scenario, objective

MOST_GPUS_TRIED = 64  # Most GPUs of the fleet that shows what can be reached where a bound rules out the SLO.
_PERCENTILES = ((0.97, "p99"), (0.7, "p95"), (0.0, "p50"))
"""Share that the share asked for must exceed -> the nearest percentile that a trial keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """The nearest miss."""

    member: Member | None  # The deployment; None where none even fits.
    metric: str  # What is missed: ``ttft``, ``tpot``, ``e2e``, ``slo``, ``confidence``, ``gpus`` or ``memory``.
    relax: str  # What to relax, in words.
    limit: float | None = None  # What was asked: seconds, a share, or GPUs.
    reached: float | None = None
    """The best that is reached: a bound if ``is_bound``, else simulated, at the share asked for."""
    is_bound: bool = False  # Whether ``reached`` is proven for every deployment of the space.
    trial: Trial | None = None  # A run of the nearest deployment.
    relaxed_terms: tuple[str, ...] = ()  # SLO terms that nothing in the space can meet.
    highest_probability: float | None = None
    """The largest share of real servers on which the SLO holds, of all fleets that were tried; None if none was."""
    relaxed_plan: Mapping[str, Any] | None = None  # The plan without those terms.
    drafted: Trial | None = None
    """A run of the nearest deployment with drafts that the scenario does not have, with assumed acceptance, where a
    bound rules out the limit without them; None where no draft is known."""


def nearest_miss(groups: Sequence[GroupResult], scenario: Scenario, goal: Goal) -> Miss:
    """Return the nearest miss: by the bound where that proves it, else by simulation."""
    surest = _surest(groups)
    highest = None if surest is None else surest.probability
    return replace(_nearest_miss(groups, scenario, goal), highest_probability=highest)


def _surest(groups: Sequence[GroupResult]) -> Trial | None:
    """Return the run with the highest probability of all."""
    known = [trial for group in groups for trial in group.trials if trial.probability is not None]
    return max(known, key=lambda trial: trial.probability or 0.0, default=None)


def _nearest_miss(groups: Sequence[GroupResult], scenario: Scenario, goal: Goal) -> Miss:
    members = [member for group in groups for member in group.members]
    fitting = [member for member in members if member.num_gpus and member.bound.e2e >= 0]
    if not fitting:
        reasons = [member.reason for member in members if member.status == "does_not_fit"]
        reason = reasons[-1] if reasons else "the engine refuses every deployment"
        relax = "more GPUs a replica, fewer bits, or shorter requests"
        return Miss(member=None, metric="memory", is_bound=True, relax=f"{relax} ({reason})")
    slo = scenario.slo
    tried = [member for member in fitting if member.trial is not None]
    smallest = min(fitting, key=lambda each: each.num_gpus + each.encoders)
    if smallest.num_gpus + smallest.encoders > goal.max_gpus:
        return _gpus_miss(smallest, smallest.num_gpus * (1 + goal.spare_replicas) + smallest.encoders, goal)
    if slo is not None:
        unreachable = _unreachable(fitting, scenario)
        if unreachable:
            return _bound_miss(fitting, unreachable, scenario, goal)
    if tried and goal.confidence is not None and (unsure := _unsure_miss(groups, tried, scenario, goal)) is not None:
        return unsure
    if tried:
        return _simulated_miss(tried, scenario, goal)
    nearest = min(fitting, key=lambda each: each.bound.least_replicas * each.num_gpus)
    needed = (nearest.bound.least_replicas + goal.spare_replicas) * nearest.num_gpus + nearest.encoders
    return _gpus_miss(nearest, needed, goal)


def _gpus_miss(nearest: Member, needed: float, goal: Goal) -> Miss:
    """Return the miss where more GPUs are needed than are allowed."""
    return Miss(
        member=nearest,
        metric="gpus",
        limit=float(goal.max_gpus),
        reached=float(needed),
        is_bound=True,
        relax=f"allow at least {needed:.0f} GPUs (--max-gpus {needed:.0f}; bound)",
    )


def _unreachable(fitting: Sequence[Member], scenario: Scenario) -> dict[str, float]:
    """Return the terms whose limit is below the bound of every deployment, with the least bound in seconds.

    Deployments that no proof covers were simulated, and missed.
    """
    proven = [member for member in fitting if member.bound.is_proven]
    if not proven:
        return {}
    least = {term: min(member.bound.of(term) for member in proven) for term in TERMS}
    limits = {term: getattr(scenario.slo, term) for term in TERMS}
    return {term: least[term] for term in TERMS if limits[term] is not None and least[term] > limits[term]}


def _bound_miss(fitting: Sequence[Member], unreachable: Mapping[str, float], scenario: Scenario, goal: Goal) -> Miss:
    slo = scenario.slo
    term = max(unreachable, key=lambda each: unreachable[each] / getattr(slo, each))
    nearest = min((each for each in fitting if each.bound.is_proven), key=lambda each: each.bound.of(term))
    words = [f"{each.upper()} of at least {unreachable[each] * 1e3:,.0f} ms" for each in unreachable]
    return Miss(
        member=nearest,
        metric=term,
        limit=getattr(slo, term),
        reached=unreachable[term],
        is_bound=True,
        trial=shown(nearest.overrides, nearest.num_gpus, scenario, goal),
        relaxed_terms=tuple(unreachable),
        relax=f"allow {' and '.join(words)} (bound; queueing comes on top), shorten what is sent, or drop the limit",
    )


def shown(overrides: Overrides, num_gpus: int, scenario: Scenario, goal: Goal) -> Trial | None:
    """Return a run of a deployment with many replicas of ``num_gpus`` GPUs, to show what it reaches without
    queueing."""
    replicas = min(goal.max_gpus, MOST_GPUS_TRIED) // num_gpus
    if replicas < 1:
        return None
    return deciding_run(scenario, overrides, replicas)


def _unsure_miss(groups: Sequence[GroupResult], tried: Sequence[Member], scenario: Scenario, goal: Goal) -> Miss | None:
    """Return the surest fleet that holds as simulated; None if none does."""
    trial, asked = _surest(groups), objective(scenario)
    if trial is None or trial.probability is None or asked is None or (trial.attainment or 0.0) < asked.attainment:
        return None
    floor = math.floor(100 * trial.probability) / 100
    return Miss(
        member=next((each for each in tried if each.overrides == trial.overrides), tried[0]),
        metric="confidence",
        limit=goal.confidence,
        reached=trial.probability,
        trial=trial,
        relax=f"--confidence {floor:g} at most, wider limits, more than {goal.max_gpus} GPUs, or measure a server "
        "(simserve calibrate serving), which says how far it is off",
    )


def unconfirmed_miss(
    confirmations: Sequence[Trial], groups: Sequence[GroupResult], scenario: Scenario, goal: Goal
) -> Miss:
    """Return the nearest miss of the fleets that held in the search but in none of their longer runs."""
    trial = max(confirmations, key=_share)
    members = [member for group in groups for member in group.members]
    nearest = next(member for member in members if member.overrides == trial.overrides)
    miss = _simulated_miss([replace(nearest, trial=trial)], scenario, goal)
    failed = counted(len(confirmations), "fleet")
    relax = f"{miss.relax} ({failed} that held in the search failed when confirmed)"
    return replace(miss, relax=relax, highest_probability=trial.probability)


def stopped_miss(groups: Sequence[GroupResult], scenario: Scenario, goal: Goal) -> Miss | None:
    """Return the nearest miss among the runs of a stopped search; None if there were none. Runs nothing."""
    tried = [each for group in groups for each in group.members if each.trial is not None]
    if not tried:
        return None
    miss = _simulated_miss(tried, scenario, goal)
    return replace(miss, relax="let the search end: what it has not tried yet may hold")


def _simulated_miss(tried: Sequence[Member], scenario: Scenario, goal: Goal) -> Miss:
    nearest = max(tried, key=lambda each: _share(each.trial))
    trial = nearest.trial
    slo = scenario.slo
    metric, limit, reached = "slo", None, None
    if trial is not None and slo is not None and trial.most_missed is not None:
        metric = trial.most_missed
        limit = getattr(slo, metric)
        percentile = next(name for share, name in _PERCENTILES if slo.attainment > share)
        # For tasks there is a share, but no percentile of requests.
        milliseconds = trial.latencies.get(f"{percentile}_{LATENCIES.get(metric, metric)}_ms")
        reached = None if milliseconds is None else milliseconds / 1e3
    return Miss(
        member=nearest,
        metric=metric,
        limit=limit,
        reached=reached,
        trial=trial,
        relax=f"allow more than {goal.max_gpus} GPUs, a lower share than asked, or a wider limit on {metric}",
    )


def _share(trial: Trial | None) -> tuple[float, float]:
    if trial is None:
        return 0.0, 0.0
    return trial.attainment or 0.0, -(trial.latencies["p95_ttft_ms"] or 0.0)
