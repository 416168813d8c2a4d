"""Which other fleets are worth knowing: those that no other beats in dollars, first token and pace at once."""

from __future__ import annotations

from collections.abc import Sequence

from simserve.planner.overrides import Overrides
from simserve.planner.search.member import Goal, GroupResult
from simserve.planner.search.search import Search
from simserve.planner.search.trial import Trial
from simserve.planner.space.space import PIPELINE_KEY, TENSOR_KEY, Space

FRONT_GROUPS = 3
"""Kinds of GPU whose other sizes are tried for the front: those with the cheapest plans."""


def front_candidates(
    groups: Sequence[GroupResult], spaces: Sequence[Space], goal: Goal
) -> list[tuple[Space, Overrides]]:
    """Return deployments that may be faster for more money: the best of a kind of GPU, spread over more of them."""
    search = [Search(space, goal) for space in spaces]
    held = [
        (search[index].value(group.best.trial), index)
        for index, group in enumerate(groups)
        if group.best is not None and group.best.trial is not None
    ]
    found: list[tuple[Space, Overrides]] = []
    for _, index in sorted(held)[:FRONT_GROUPS]:
        space, best = spaces[index], groups[index].best
        if best is None:
            continue
        chosen = space.chosen(best.overrides)
        for size in space.dimensions.get(TENSOR_KEY, ()):
            wider = {**chosen, TENSOR_KEY: size, PIPELINE_KEY: 1} if PIPELINE_KEY in chosen else chosen
            if size > chosen[TENSOR_KEY] and size <= goal.max_gpus and space.is_plausible(wider):
                found.append((space, space.overrides(wider)))
    return found


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


def sized(space: Space, overrides: Overrides, goal: Goal) -> Trial | None:
    """Return the run of the smallest fleet of a deployment that holds; None if none does within the limits."""
    search = Search(space, goal)
    member = search.member(overrides)
    if member.status == "not_better":
        search.try_member(member)
    return member.trial if member.status == "holds" else None
