"""Which other fleets are worth knowing: those that no other beats in dollars, first token and pace at once."""

from __future__ import annotations

from collections.abc import Sequence

from simserve.planner.search import Goal, GroupResult, Member, Search
from simserve.planner.search_trial import Trial
from simserve.planner.space import Space

MOST_MEMBERS = 12
"""Deployments that are sized for the front beyond those that the search has tried."""


def front_members(groups: Sequence[GroupResult], goal: Goal) -> list[tuple[int, Member]]:
    """Return deployments that may lie on the front and were not tried, with the number of their group.

    Those that no other beats in three bounds: dollars at the fewest replicas, TTFT and TPOT. The cheapest first.
    """
    open_ones = [
        (index, member)
        for index, group in enumerate(groups)
        for member in group.members
        if member.status in ("not_better", "holds") and member.usd_per_gpu_hour is not None
    ]
    points = {id(member): _bounds(member) for _, member in open_ones}
    best = [
        (index, member)
        for index, member in open_ones
        if not any(dominates(points[id(other)], points[id(member)]) for _, other in open_ones)
    ]
    untried = [each for each in best if each[1].status == "not_better" and _fits_goal(each[1], goal)]
    return sorted(untried, key=lambda each: points[id(each[1])])[:MOST_MEMBERS]


def dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether ``one`` is nowhere larger than ``other`` and somewhere smaller."""
    return all(a <= b for a, b in zip(one, other, strict=True)) and tuple(one) != tuple(other)


def front(points: Sequence[tuple[tuple[float, ...], Trial]]) -> list[Trial]:
    """Return the trials that no other dominates, by their first coordinate; of equal ones the first."""
    kept: dict[tuple[float, ...], Trial] = {}
    for coordinates, trial in points:
        if coordinates not in kept and not any(dominates(other, coordinates) for other, _ in points):
            kept[coordinates] = trial
    return [kept[coordinates] for coordinates in sorted(kept)]


def sized(space: Space, member: Member, goal: Goal) -> Trial | None:
    """Return the run of the smallest fleet of a deployment that holds; None if none does within the limits."""
    search = Search(space, goal)
    fresh = search.member(member.overrides)
    search.try_member(fresh)
    return fresh.trial if fresh.status == "holds" else None


def _bounds(member: Member) -> tuple[float, float, float]:
    dollars = member.bound.least_replicas * member.num_gpus * (member.usd_per_gpu_hour or 0.0)
    return dollars, member.bound.ttft, member.bound.tpot


def _fits_goal(member: Member, goal: Goal) -> bool:
    return (member.bound.least_replicas + goal.spare_replicas) * member.num_gpus <= goal.max_gpus
