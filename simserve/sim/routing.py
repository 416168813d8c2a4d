"""Routers: from what a scenario says to what `simserve.engine.routing` goes by."""

from __future__ import annotations

from collections.abc import Sequence

from simserve.engine.plane_state import LEAST, Router, Shares
from simserve.engine.routing import NUMBERS
from simserve.sim.affinity import affinity_of
from simserve.sim.chance import Chance
from simserve.sim.routing_spec import RoutingSpec
from simserve.workload.requests import RequestSpecs

DEFAULT_GUARD = 1.5
"""Load over the mean load from which a replica is passed over (SGLang's router: ``--balance-rel-threshold``)."""
DRAWS = {"random": 1, "power_of_two": 2}
"""Random numbers that a request takes."""


def router_of(spec: RoutingSpec, specs: RequestSpecs, as_lists: bool = True, chance: Chance | None = None) -> Router:
    """Return the router of a run.

    Args:
        spec: The policy.
        specs: What arrives.
        as_lists: Whether it is read from Python, not from compiled code.
        chance: Its random numbers, which the caller tops up; None: each request is routed once, by numbers drawn here.
    """
    if chance is None:
        needed = len(specs) * DRAWS.get(spec.policy, 0)
        chance = Chance(specs, "routing", needed)
        chance.top_up(needed)
    guard = DEFAULT_GUARD if spec.imbalance_guard is None else spec.imbalance_guard
    policy = NUMBERS.get(spec.policy, LEAST)
    return Router(policy, affinity_of(spec, specs, as_lists), guard, chance.uniforms)


def shares_of(spec: RoutingSpec, names: Sequence[str]) -> Shares | None:
    """Return how the pools of these names share requests; None: as their loads have it."""
    return Shares([spec.weights[name] for name in names]) if spec.weights else None
