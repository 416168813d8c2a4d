"""Choosing among fleets of one price: measured step times, then what bears most more traffic, then lower latencies."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simserve.planner.capacity.search import NEAR_FULL
from simserve.planner.overrides import with_overrides
from simserve.planner.scaling import scaled_traffic
from simserve.planner.search.deciding_run import deciding_run
from simserve.planner.search.member import Member
from simserve.planner.search.order import smallest_integer
from simserve.planner.search.trial import LATENCIES, MOST_REQUESTS, Trial, is_steady, request_limit, try_fleet
from simserve.scenario.schema import Scenario, objective

HEADROOM_STEP = 0.05
"""Share of the traffic by which headroom is told apart."""
SAME_HEADROOM = 1
"""Steps below the most headroom within which fleets bear as much: the short runs that tell know it no better."""
SAME_LATENCY = 0.05
"""Share of the lowest latency within which fleets are as quick: what another seed would turn round."""
MOST_STEPS = 60
"""Steps of headroom up to which it is looked for: four times the traffic."""


def ranked(scenario: Scenario, members: Sequence[Member]) -> list[int]:
    """Return the places of members that hold at one price, the best first, and note the headroom of each.

    Step times on fitted curves before those that are a bound of the data sheet, which flatters; then headroom, to
    `HEADROOM_STEP`; of those within `SAME_HEADROOM` of the most, the lower p95 latencies as shares of their limits; of
    those within `SAME_LATENCY` of the lowest, the order in which they are given. So no seed of the traffic decides. A
    member that does not bear about what the best so far does is not looked at any further, so its headroom is known to
    be less and no more.

    Args:
        scenario: The traffic.
        members: With trials that hold, of one price.
    """
    best = 0
    found: dict[bool, list[_Place]] = {False: [], True: []}
    can_scale = scaled_traffic(scenario, 1.0) is not None
    bounds = [_trial(member).fidelity == "roofline" for member in members]
    for place in sorted(range(len(members)), key=bounds.__getitem__):
        member = members[place]
        least = max(best - SAME_HEADROOM, 0)
        steps = _headroom(scenario, member, least) if can_scale and len(members) > 1 else 0
        best = max(best, steps)
        member.headroom = max(steps, 0)
        found[bounds[place]].append(_Place(place, steps, _latency(scenario, _trial(member))))
    return [each.place for alike in found.values() for each in _ordered(alike)]


@dataclass(frozen=True, slots=True)
class _Place:
    """What is known of a member.

    Attributes:
        place: Among those that are given.
        steps: Of headroom; -1: less than the best.
        latency: As a share of its limits.
    """

    place: int
    steps: int
    latency: float


def _ordered(found: Sequence[_Place]) -> list[_Place]:
    """Return members in order: those that are as good as the best as they are given, the others by their figures."""
    most = max((each.steps for each in found), default=0)
    lowest = min((each.latency for each in found if each.steps >= most - SAME_HEADROOM), default=0.0)

    def rank(each: _Place) -> tuple[int, float, int]:
        if each.steps < most - SAME_HEADROOM:
            return -each.steps, each.latency, each.place
        return -most, 0.0 if each.latency <= (1 + SAME_LATENCY) * lowest else each.latency, each.place

    return sorted(found, key=rank)


def _headroom(scenario: Scenario, member: Member, least: int) -> int:
    """Return the steps of more traffic that a member bears; -1 where it does not bear ``least`` of them."""
    fails = _failing(scenario, member)
    if least and fails(least):
        return -1
    first = smallest_integer(fails, least + 1, MOST_STEPS)
    return MOST_STEPS if first is None else first - 1


def _failing(scenario: Scenario, member: Member) -> Callable[[int], bool]:
    """Return what tells whether a member fails under so many steps more of traffic.

    What it finishes with its queue never empty is known from its trial; below that a run of a few thousand requests
    tells steps apart that are as coarse as these.
    """
    trial = _trial(member)
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
    """Return the mean of the p95 latencies as shares of their limits; of E2E in seconds where nothing has one."""
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


def _trial(member: Member) -> Trial:
    assert member.trial is not None  # it holds
    return member.trial
