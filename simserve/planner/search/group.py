"""The search on one kind of GPU, whole: every combination where they are few, shapes and sampled knobs where many.

One kind of GPU is one task: its result depends on nothing but its arguments, so any number of workers gives the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from simserve.planner.search.member import Goal, GroupResult, Member
from simserve.planner.search.search import Search
from simserve.planner.space.space import HARDWARE_KEY, Space

EXHAUSTIVE_COMBINATIONS = 256
"""Combinations on one kind of GPU up to which each is looked at."""
PENALTY = 10.0
"""A sampled deployment that cannot hold counts as so many times the best known value."""


def search_group(space: Space, goal: Goal) -> GroupResult:
    """Return the best fleet of a space: exact over all dimensions, or over the shapes where those are too many.

    Shapes are searched with every option plain, and with the scenario's own choices where nothing plain holds.
    """
    search = Search(space, goal)
    is_small = space.size <= EXHAUSTIVE_COMBINATIONS
    search.run(("shape", "knob", "option") if is_small else ("shape",))
    if not is_small and search.best is None and space.has_own_options:
        search.run(("shape",), {name: space.own[name] for name in space.options})
    return _result(search, "exhaustive" if is_small else "shapes")


def refine_group(space: Space, goal: Goal, start: Member, num_trials: int, seed: int) -> GroupResult:
    """Return the best fleet of a large space found by sampling all its dimensions, from a known one on.

    Optuna's tree-structured Parzen estimator proposes a deployment; bounds and simulation judge it as in the
    exact search, against the best so far. First of all it is shown the best of the shapes with each choice of each
    option, so that none goes unseen.

    Args:
        space: What may be deployed.
        goal: What is to be small.
        start: The best of the shapes.
        num_trials: Deployments proposed beside those.
        seed: Of the sampler.
    """
    import optuna  # a second, needed by large spaces only

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    search = Search(space, goal)
    first = search.member(start.overrides)
    search.try_member(first)
    reference = search.best_value[0]
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=max(5, num_trials // 4)))
    keys = [key for key, values in space.dimensions.items() if len(values) > 1]
    shown = list(_first_proposals(space, keys, start))
    for proposal in shown:
        study.enqueue_trial(proposal)
    for _ in range(num_trials + len(shown)):
        asked = study.ask()
        chosen = {key: asked.suggest_categorical(key, list(range(len(space.dimensions[key])))) for key in keys}
        values = {key: space.dimensions[key][int(index)] for key, index in chosen.items()}
        study.tell(asked, _judge(search, values, reference))
    return _result(search, "sampled")


def _judge(search: Search, values: dict[str, Any], reference: float) -> float:
    """Return what the sampler is told: the value of a fleet that holds, else how far it is from holding."""
    if not search.space.is_plausible(values):
        return PENALTY * reference
    member = search.member(search.space.overrides(values))
    if member.status not in ("not_better", "holds", "misses"):
        return PENALTY * reference
    value = search.try_member(member)[0] if member.trial is None else math.inf
    if math.isfinite(value):
        return value
    missed = 1.0 - ((member.trial.attainment or 0.0) if member.trial is not None else 0.0)
    return reference * (1.0 + missed)


def _first_proposals(space: Space, keys: Sequence[str], start: Member) -> Iterator[dict[str, int]]:
    """Yield the start, and the start with every other choice of one option."""
    chosen = space.chosen(start.overrides)
    own = {key: space.dimensions[key].index(chosen[key]) for key in keys}
    yield own
    for name, choices in space.options.items():
        for place in range(len(choices)):
            if name in own and place != own[name]:
                yield {**own, name: place}


def _result(search: Search, method: str) -> GroupResult:
    space = search.space
    return GroupResult(
        hardware=str(space.base.get(HARDWARE_KEY, space.scenario.deployment.hardware)),
        base=space.base,
        members=search.members,
        best=search.best,
        trials=search.trials,
        size=space.size,
        method=method,
    )
