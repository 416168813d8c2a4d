"""The whole search on one kind of GPU: every shape with its drafts, and engine knobs where a shape could still win.

One kind of GPU is one task: its result depends only on its arguments, so any number of workers gives the same.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from simserve.planner.capacity.probe import own_traffic
from simserve.planner.search.member import Goal, GroupResult, Member
from simserve.planner.search.order import EQUAL, Value, is_less
from simserve.planner.search.search import Search
from simserve.planner.search.trial import deployed, finishable_of, fleet_of
from simserve.planner.space.space import BUDGET_KEY, HARDWARE_KEY, SEATS_KEY, Space, gpus_of
from simserve.scenario.finishable import has_load_ratio
from simserve.scenario.run import run
from simserve.scenario.schema import objective

EXHAUSTIVE_COMBINATIONS = 256
"""Most combinations on one kind of GPU for which all are tried."""
MOST_SHAPES = 24
"""Most shapes of one kind of GPU on which other engine knobs are tried, the cheapest first."""
MOST_NEAREST = 4
"""Likewise if nothing holds yet, the nearest first."""
HOPELESS = 1.1
"""Load ratio with ample seats and steps above which no knob lets a fleet keep up. The finished rate is known to 3 %;
other knobs raise it by less than 7 % over ample ones."""
LOOK_REQUESTS = 100
"""Requests of the run that reports a load ratio: the ratio has separate runs."""
NEAR = 0.5
"""Share of the required attainment that one change must reach before several are tried together."""
NEUTRAL_OPTIONS = frozenset({"pool", "scale", "admit"})
"""Options that do not raise what a replica finishes."""


JUDGED_OUT = ("invalid", "does_not_fit", "out_of_reach", "too_many_gpus")
"""Statuses of deployments that needed no run."""
FURTHEST = ("holds", "misses", "not_better", "too_many_gpus", "invalid", "out_of_reach", "does_not_fit")
"""Statuses in the order of how far a deployment came, for when nothing holds and other knobs may help."""


def search_group(space: Space, goal: Goal, known: GroupResult | None = None) -> GroupResult:
    """Return the best fleet of a space: exact over all dimensions, or over the shapes if those are too many.

    Shapes are searched with every option plain, and again with the scenario's own choices.

    Args:
        space: What may be deployed.
        goal: What to minimise, and within which limits.
        known: What earlier searches of the space have judged and run; None if there was none.
    """
    search = Search(space, goal)
    if known is not None:
        search.recall(known)
    is_small = space.size <= EXHAUSTIVE_COMBINATIONS
    search.run(None if is_small else space.shape_keys)
    if not is_small and space.has_own_options:
        search.run(space.shape_keys, {name: space.own[name] for name in space.options if name not in space.shape_keys})
    return group_result(search, "exhaustive" if is_small else "shapes")


def refine_group(
    space: Space, goal: Goal, found: GroupResult, num_settings: int, known: GroupResult | None = None
) -> GroupResult:
    """Return the best fleet of the shapes with other engine knobs and options; without a best if there is none.

    A shape is tried if a bound allows it a fleet better than the goal's ceiling, at its own knobs or at ample ones, and
    if it can finish the traffic with that many replicas. Settings are tried in the order of how many choices they
    change, first from the scenario's, then from each that proved better; nothing is random.

    Args:
        space: What may be deployed.
        goal: What to minimise; its ceiling is the best value known.
        found: The search over the shapes.
        num_settings: Number of settings to try on a shape.
        known: What earlier searches of the space have judged and run; None: only that of the shapes.
    """
    search = Search(space, goal)
    search.best_value = (goal.ceiling, -math.inf)
    search.recall(known or found)
    for _, shape in _shapes(search, found):
        if not _may_win(search, shape):
            continue
        chosen, before = space.chosen(shape.overrides), None
        while before != search.best_value:
            before = search.best_value
            _try_settings(search, chosen, num_settings)
            if search.best is None:
                break
            chosen = space.chosen(search.best.overrides)
    return group_result(search, "settings")


def held_neighbours(space: Space, goal: Goal, best: Member) -> list[Member]:
    """Return the fleets that hold with as many replicas, at the same price, with one engine knob or option changed.

    A knob that shortens the longest request that fits the memory is not equal.
    """
    search, found = Search(space, goal), []
    replicas, value = best.run.replicas, search.value(best.run)[0]
    chosen = space.chosen(best.overrides)
    for setting in settings_around(space, chosen, most_changes=1):
        member = search.member(space.overrides({**chosen, **setting}))
        if not setting or member.status != "not_better" or search.least_replicas(member) > replicas:
            continue
        if (member.max_model_len or 0) < (best.max_model_len or 0):
            continue
        trial = search.trial(member, replicas)
        if trial.holds and math.isclose(search.value(trial)[0], value, rel_tol=EQUAL):
            member.status, member.trial = "holds", trial
            found.append(member)
    return found


def _try_settings(search: Search, chosen: Mapping[str, Any], most: int) -> None:
    """Try settings around the chosen one, ample ones first; several changes only if one brings it near."""
    near = 0.0
    ample = {key: value for key, value in _sizes(search.space, max).items() if value != chosen[key]}
    asked = objective(search.space.scenario)
    for setting in itertools.islice(itertools.chain([ample], settings_around(search.space, chosen)), most + 1):
        if len(setting) > 1 and setting is not ample and asked is not None and near < NEAR * asked.attainment:
            return
        member = search.member(search.space.overrides({**chosen, **setting}))
        if setting and member.status == "not_better" and member.trial is None:
            search.try_member(member)
        if member.trial is not None:
            near = max(near, member.trial.attainment or 0.0)


def _shapes(search: Search, found: GroupResult) -> list[tuple[Value, Member]]:
    """Return the shapes on which other knobs are tried, in order."""
    goal, kept = search.goal, []
    for member in found.members:
        least = search.least_unit(member.overrides)
        if not math.isfinite(goal.ceiling):
            reached = 0.0 if member.trial is None else member.trial.attainment or 0.0
            gpus = gpus_of(search.space.scenario, search.space.chosen(member.overrides))
            kept.append(((float(FURTHEST.index(member.status)) - reached, float(gpus)), member))
        elif is_less(least, search.best_value) and not (goal.refused and _is_far(search, member)):
            kept.append((least, member))
    most = MOST_SHAPES if math.isfinite(goal.ceiling) else MOST_NEAREST
    return sorted(kept, key=lambda each: each[0])[:most]


def _is_far(search: Search, shape: Member) -> bool:
    """Return whether a shape has been run and missed by far, or has not been run.

    If a fleet that held in the search was not confirmed, the ceiling is higher and many more shapes lie below it: knobs
    are then tried only on those that come near with the scenario's own.
    """
    asked, trial = objective(search.space.scenario), shape.trial
    return asked is not None and (trial is None or (trial.attainment or 0.0) < NEAR * asked.attainment)


def _may_win(search: Search, shape: Member) -> bool:
    """Return whether a shape, at its own knobs or others, may hold with few enough replicas to be better.

    No knob makes a step shorter than with a token budget above every prompt, so a bound that rules out a shape with
    such steps holds for all its knobs.
    """
    space, most = search.space, 0
    kinds, chosen = [], space.chosen(shape.overrides)
    if shape.status == "out_of_reach" and (chosen[BUDGET_KEY] or 0) >= search.longest_prompt:
        return False
    others = _sizes(space, min if shape.status == "does_not_fit" else max)
    settings = [others]
    if shape.status == "invalid":
        settings += [each | others for each in settings_around(space, chosen, most_changes=1) if each]
    for member in (shape, *(search.member(space.overrides({**chosen, **each})) for each in settings)):
        if (
            member.makeup is None
            or member.status in JUDGED_OUT
            or not is_less(search.least_value(member), search.best_value)
        ):
            continue
        most = max(most, search.most_that_is_better(member))
        kinds.append(member)
    if most < 1:
        return False
    if not math.isfinite(search.goal.ceiling) or not _is_bound_by_work(space):
        return True
    return any(_load_ratio(search, member, most) < HOPELESS for member in kinds)


def _sizes(space: Space, choose: Callable[[list[int]], int]) -> dict[str, Any]:
    """Return the most seats and tokens per step that are searched, or the fewest, which leave the most memory."""
    numbers = {key: [each for each in space.dimensions[key] if each is not None] for key in (SEATS_KEY, BUDGET_KEY)}
    return {key: choose(each) for key, each in numbers.items() if each}


def _is_bound_by_work(space: Space) -> bool:
    """Return whether a fleet's load ratio shows for every option whether it can keep up."""
    others = {name for name in space.options if name not in space.shape_keys}
    return has_load_ratio(space.scenario) and others <= NEUTRAL_OPTIONS


def _load_ratio(search: Search, member: Member, replicas: int) -> float:
    """Return the load divided by what replicas finish with their queue never empty; 0 if unknown."""
    scenario = search.space.scenario
    offered = own_traffic(fleet_of(scenario, member.overrides, replicas).scenario)
    if offered.is_stationary:
        finishable = finishable_of(scenario, member.overrides, replicas)
        return 0.0 if finishable is None else offered.offered_rate / finishable.rate
    scenario = deployed(scenario, member.overrides, replicas)
    few = scenario.workload.model_copy(update={"num_requests": LOOK_REQUESTS, "duration": None})
    found = run(scenario.model_copy(update={"workload": few}), explain=False).summary["simserve"]["load_ratio"]
    return 0.0 if found is None else float(found)


def _setting_keys(space: Space) -> list[str]:
    shapes = space.shape_keys
    return [key for key, values in space.dimensions.items() if len(values) > 1 and key not in shapes]


def settings_around(
    space: Space, chosen: Mapping[str, Any], most_changes: int | None = None
) -> Iterator[dict[str, Any]]:
    """Yield choices of engine knobs and options, those with the fewest changes from ``chosen`` first."""
    keys = _setting_keys(space)
    most = len(keys) if most_changes is None else most_changes
    others = {key: [value for value in space.dimensions[key] if value != chosen[key]] for key in keys}
    for number in range(most + 1):
        for changed in itertools.combinations(keys, number):
            for values in itertools.product(*(others[key] for key in changed)):
                yield dict(zip(changed, values, strict=True))


def group_result(search: Search, method: str) -> GroupResult:
    """Return the result of a search of some kind."""
    space = search.space
    return GroupResult(
        hardware=str(space.base.get(HARDWARE_KEY, space.scenario.deployment.hardware)),
        members=search.members,
        best=search.best,
        trials=search.trials,
        size=space.size,
        method=method,
        role_costs=search.role_costs,
        tried=search.tried,
    )
