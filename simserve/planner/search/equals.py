"""Choosing among fleets of equal price: measured step times, then the most headroom, then lower latencies."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from simserve.planner.capacity.search import NEAR_FULL
from simserve.planner.overrides import with_overrides
from simserve.planner.scaling import scaled_traffic
from simserve.planner.search.deciding_run import deciding_run
from simserve.planner.search.member import Member
from simserve.planner.search.order import smallest_integer
from simserve.planner.search.trial import LATENCIES, MOST_REQUESTS, Trial, is_steady, request_limit, try_fleet
from simserve.scenario.schema import Scenario, objective

HEADROOM_STEP = 0.05  # Step of headroom, as a share of the traffic.
SAME_HEADROOM = 1
"""Steps below the most headroom within which fleets count as equal: short runs do not resolve it better."""
SAME_LATENCY = 0.05
"""Share of the lowest latency within which fleets count as equal: another seed could reverse their order."""
MOST_STEPS = 60  # Most steps of headroom that are searched: four times the traffic.


def ranked(scenario: Scenario, members: Sequence[Member]) -> list[int]:
    """Return the indices of members that hold at one price, the best first.

    Step times from fitted curves come before bounds from the data sheet, which are too optimistic; then headroom, to
    `HEADROOM_STEP`; among those within `SAME_HEADROOM` of the most, lower p95 latencies as shares of their limits;
    among those within `SAME_LATENCY` of the lowest, the order in which they are given. So the seed of the traffic does
    not decide. A member that cannot sustain about what the best so far can is not examined further: its headroom is
    only known to be less.

    Args:
        members: Members of one price, with trials that hold.
    """
    best = 0
    found: dict[bool, list[_Place]] = {False: [], True: []}
    can_scale = scaled_traffic(scenario, 1.0) is not None
    bounds = [member.run.fidelity == "roofline" for member in members]
    for place in sorted(range(len(members)), key=bounds.__getitem__):
        member = members[place]
        least = max(best - SAME_HEADROOM, 0)
        steps = _headroom(scenario, member, least) if can_scale and len(members) > 1 else 0
        best = max(best, steps)
        found[bounds[place]].append(_Place(place, steps, _latency(scenario, member.run)))
    return [each.place for alike in found.values() for each in _ordered(alike)]


class _Place(NamedTuple):
    """Index of a member, its steps of headroom (-1: less than the best), and latency as a share of its limits."""

    place: int
    steps: int
    latency: float


def _ordered(found: Sequence[_Place]) -> list[_Place]:
    """Return members in order: those as good as the best in the given order, then the others by their figures."""
    most = max((each.steps for each in found), default=0)
    lowest = min((each.latency for each in found if each.steps >= most - SAME_HEADROOM), default=0.0)

    def rank(each: _Place) -> tuple[int, float, int]:
        if each.steps < most - SAME_HEADROOM:
            return -each.steps, each.latency, each.place
        return -most, 0.0 if each.latency <= (1 + SAME_LATENCY) * lowest else each.latency, each.place

    return sorted(found, key=rank)


def _headroom(scenario: Scenario, member: Member, least: int) -> int:
    """Return the steps of more traffic that a member can sustain; -1 if it cannot sustain ``least`` steps."""
    fails = _failing(scenario, member)
    if least and fails(least):
        return -1
    first = smallest_integer(fails, least + 1, MOST_STEPS)
    return MOST_STEPS if first is None else first - 1


def _failing(scenario: Scenario, member: Member) -> Callable[[int], bool]:
    """Return a function that tells whether a member fails with a number of steps more traffic.

    What it finishes with its queue never empty is known from its trial; below that, a run of a few thousand requests
    resolves such coarse steps.
    """
    trial = member.run
    there = with_overrides(scenario, member.overrides)

    def fails(step: int) -> bool:
        share = 1 + step * HEADROOM_STEP
        busier = scaled_traffic(scenario, share)
        if busier is None or (trial.load_ratio or 0.0) * share > NEAR_FULL:
            return True
        if not is_steady(there):
            return not deciding_run(busier, member.overrides, trial.replicas).holds
        return not try_fleet(busier, member.overrides, trial.replicas, request_limit(there, MOST_REQUESTS)).holds

    return fails


def _latency(scenario: Scenario, trial: Trial) -> float:
    """Return the mean of the p95 latencies as shares of their limits, or E2E in seconds if there is no limit."""
    asked = objective(scenario)
    shares = []
    for term, name in LATENCIES.items():
        limit = None if asked is None else getattr(asked, term)
        reached = trial.latencies[f"p95_{name}_ms"]
        if limit and reached is not None:
            shares.append(reached / 1e3 / limit)
    if shares:
        return math.fsum(shares) / len(shares)
    reached = trial.latencies[f"p95_{LATENCIES['e2e']}_ms"]
    return math.inf if reached is None else reached / 1e3
