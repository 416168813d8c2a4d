"""Routing: from what a scenario says to the pools that a request may go to, near or far, and the replica of them.

Resolved here and obeyed by `simserve.engine.routing`: the policy; affinity, which sends a request where what it begins
with has probably been kept; rules, which choose pools by class and length. Draws who is misclassified; knows no load.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simserve import rng
from simserve.engine import plane_state
from simserve.engine.numbers import as_column, column
from simserve.engine.plane_state import LEAST, Affinity, Router, Shares
from simserve.engine.routing import NUMBERS
from simserve.engine.state import INFINITY
from simserve.sim.chance import Chance
from simserve.sim.control import API_POOL, RegionsSpec, RoutingSpec, RuleSpec
from simserve.sim.pools import PoolSetup
from simserve.sim.prefixes import prefixes_of
from simserve.workload.requests import RequestSpecs

Kinds = NDArray[np.int16]
DEFAULT_GUARD = 1.5
"""Load over the mean load from which a replica is passed over (SGLang's router: ``--balance-rel-threshold``)."""
DRAWS = {"random": 1, "power_of_two": 2}
"""Random numbers that a request takes."""
DEFAULT_CACHE_THRESHOLD = 0.5
"""Share of the prompt that must be known (as ``cache_threshold`` of SGLang's router)."""
LEAST_EXCESS = 4
"""Requests more than the least loaded one, below which the replica of a session or adapter is not passed over."""
_SPARSE = 4
"""Numbers are dense enough to be used as they are while there are at least one in so many."""
NEVER = -1


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
    return Router(policy, _affinity_of(spec, specs, as_lists), guard, chance.uniforms)


def shares_of(spec: RoutingSpec, names: Sequence[str]) -> Shares | None:
    """Return how the pools of these names share requests; None: as their loads have it."""
    return Shares([spec.weights[name] for name in names]) if spec.weights else None


def session_affinity(sessions: Sequence[int] | NDArray[np.int64], as_lists: bool = True) -> Affinity:
    """Return that every request of a session goes where the one before it went.

    How long what is kept is, is not known: it is worth `LEAST_EXCESS`.

    Args:
        sessions: Session of each request; negative: none.
        as_lists: Whether it is read from Python, not from compiled code.
    """
    numbers = np.asarray(sessions, dtype=np.int64)
    has_session = numbers >= 0
    offsets = np.concatenate([[0], np.cumsum(has_session)])
    keys = numbers[has_session]
    return _affinity(offsets, keys, np.full(len(keys), LEAST_EXCESS), np.zeros(len(numbers)), as_lists)


def prefix_affinity(
    offsets: Sequence[int] | NDArray[np.int64],
    segments: Sequence[int] | NDArray[np.int64],
    ends: Sequence[int] | NDArray[np.int64],
    least: Sequence[float] | NDArray[np.floating],
    as_lists: bool = True,
) -> Affinity:
    """Return that a request goes where the longest part of what it begins with was served last.

    Equal segment numbers mean equal tokens from the first one on, so one number stands for the whole path to it. What
    is known is worth the tokens that need not be computed. Too short a part is not worth a detour: a system prompt that
    all have in common would send everybody to one replica.

    Args:
        offsets: Request i has the entries ``offsets[i] .. offsets[i + 1] - 1``.
        segments: Number of each segment, in order within a request.
        ends: Token of the request before which it ends.
        least: Tokens of each request that must be known to a replica at least.
        as_lists: Whether it is read from Python, not from compiled code.
    """
    return _affinity(np.asarray(offsets), np.asarray(segments), np.asarray(ends), np.asarray(least), as_lists)


def _affinity(
    offsets: NDArray[np.int64],
    numbers: NDArray[np.int64],
    ends: NDArray[np.int64],
    least: NDArray[np.floating],
    as_lists: bool,
) -> Affinity:
    keys, num_keys = dense(numbers)
    starts, values, worth = (as_column(each, as_lists) for each in (offsets, keys, ends))
    return Affinity(starts, values, worth, as_column(least.astype(np.float64), as_lists), num_keys)


def _affinity_of(routing: RoutingSpec, specs: RequestSpecs, as_lists: bool = True) -> Affinity | None:
    """Return what the router remembers under its policy; None where it goes by load alone, or has nothing to go by."""
    if routing.policy == "session" and specs.session is not None:
        return session_affinity(specs.session, as_lists)
    if routing.policy == "lora" and specs.adapter is not None:
        # As a session that goes on: its replica has the adapter in a slot, or at least in host memory.
        return session_affinity(specs.adapter, as_lists)
    prefixes = prefixes_of(specs) if routing.policy == "prefix" else None
    if prefixes is not None:
        threshold = DEFAULT_CACHE_THRESHOLD if routing.cache_threshold is None else routing.cache_threshold
        least = threshold * specs.prompt_tokens
        return prefix_affinity(prefixes.offsets, prefixes.segments, prefixes.ends, least, as_lists)
    return None


def dense(numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    """Return numbers from 0 up that are equal where ``numbers`` are, and one more than the largest."""
    if not len(numbers):
        return numbers, 0
    if numbers.min() >= 0 and numbers.max() < _SPARSE * len(numbers):
        return numbers, int(numbers.max()) + 1
    distinct, inverse = np.unique(numbers, return_inverse=True)
    return inverse.astype(np.int64), len(distinct)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Where every request may go.

    Attributes:
        allowed: Indices of the pools that take requests, by kind of request; none: the API does.
        kinds: Kind of each request, shape [N].
        second: Kind that a request becomes when its first answer does not do; -1: it does. Shape [N].
        asks_twice: Whether any rule misclassifies.
    """

    allowed: tuple[tuple[int, ...], ...]
    kinds: Kinds
    second: Kinds
    asks_twice: bool

    def for_limits(self) -> tuple[tuple[tuple[int, ...], ...], Kinds]:
        """Return all pools that may see a request, by kind, and those kinds: their length limits hold for it."""
        pairs, numbers = np.unique(np.stack([self.kinds, self.second]), axis=1, return_inverse=True)
        both = [
            tuple(sorted({*self.allowed[first], *(self.allowed[second] if second != NEVER else ())}))
            for first, second in pairs.T.tolist()
        ]
        return tuple(both), numbers.reshape(-1).astype(np.int16)


def rules_of(
    rules: Sequence[RuleSpec], allowed: Sequence[Sequence[int]], pools: Sequence[str], specs: RequestSpecs
) -> Rules | None:
    """Return where requests go under the rules of a router; None without rules.

    Args:
        rules: In order; the first that fits counts.
        allowed: Indices of pools by class; empty: all, for all. A class that is bound to a pool obeys a rule only
            where that names it.
        pools: Names of the pools that take requests.
        specs: What arrives.
    """
    if not rules:
        return None
    count = len(specs)
    everywhere = tuple(range(len(pools)))
    by_class = [tuple(each) for each in allowed] or [everywhere] * max(len(specs.classes), 1)
    own = np.zeros(count, dtype=np.int16) if specs.request_class is None else specs.request_class
    known = list(by_class)
    kinds, second = own.astype(np.int16), np.full(count, NEVER, dtype=np.int16)
    uniforms = rng.stream(specs.seed, "misclassified", specs.replication).random(count)
    is_open = np.ones(count, dtype=bool)
    for rule in rules:
        fits = is_open & _fits(rule, specs, own, by_class, everywhere)
        is_open &= ~fits
        known.append(_places(rule.pool, pools))
        kinds[fits] = len(known) - 1
        if rule.misclassified is not None and rule.retry_pool is not None:
            known.append(_places(rule.retry_pool, pools))
            second[fits & (uniforms < rule.misclassified)] = len(known) - 1
    asks_twice = any(rule.misclassified is not None for rule in rules)
    return Rules(allowed=tuple(known), kinds=kinds, second=second, asks_twice=asks_twice)


def _places(name: str, pools: Sequence[str]) -> tuple[int, ...]:
    return () if name == API_POOL else (pools.index(name),)


def _fits(
    rule: RuleSpec,
    specs: RequestSpecs,
    own: Kinds,
    by_class: Sequence[tuple[int, ...]],
    everywhere: tuple[int, ...],
) -> NDArray[np.bool_]:
    """Return which requests a rule is about."""
    fits = np.ones(len(specs), dtype=bool)
    if rule.min_prompt_tokens is not None:
        fits &= specs.prompt_tokens >= rule.min_prompt_tokens
    if rule.max_prompt_tokens is not None:
        fits &= specs.prompt_tokens <= rule.max_prompt_tokens
    names = [each.name for each in specs.classes]
    if rule.classes is not None:
        return fits & np.isin(own, [names.index(name) for name in rule.classes])
    bound = [number for number, each in enumerate(by_class) if each != everywhere]
    return fits & ~np.isin(own, bound)


class Regions:
    """The regions of a run.

    Args:
        spec: Where clients are, and how far apart regions are; it covers all that are named.
        pools: All pools of the run, each with its region.
        specs: What arrives, for its seed and its classes.

    Attributes:
        names: The regions that clients are in.
        home: Of each request an index into ``names``, shape [N].
    """

    def __init__(self, spec: RegionsSpec, pools: Sequence[PoolSetup], specs: RequestSpecs) -> None:
        own = [each.region for each in specs.classes if each.region is not None]
        self.names = tuple(dict.fromkeys([*spec.clients, *own]))
        self.home = _homes(spec, self.names, specs)
        self._pools, self._spill_above = pools, spec.spill_above
        self._has_thinking = specs.thinking_tokens is not None
        self._places = places = list(dict.fromkeys(pool.region for pool in pools))
        self._seconds = [{place: spec.one_way(name, place) or 0.0 for place in places} for name in self.names]
        self._nearest = [sorted(places, key=seconds.__getitem__) for seconds in self._seconds]

    def on_plane(self, members: Sequence[Sequence[int]], *, is_streamed: bool) -> plane_state.Regions:
        """Return them as the plane goes by them.

        Args:
            members: The replicas of each pool.
            is_streamed: Whether tokens are on their way one by one.
        """
        places, pools = self._places, self._pools
        place_of_pool = [places.index(each.region) for each in pools]
        return plane_state.Regions(
            home=column(self.home, np.int32),
            num_places=len(places),
            nearest=[places.index(place) for own in self._nearest for place in own],
            seconds=[own[place] for own in self._seconds for place in places],
            place_of_pool=[place for each, place in zip(pools, place_of_pool, strict=True) if each.role != "decode"],
            place_of=[place for place, numbers in zip(place_of_pool, members, strict=True) for _ in numbers],
            spill_above=INFINITY if self._spill_above is None else self._spill_above,
            is_streamed=is_streamed,
            has_thinking=self._has_thinking,
        )


def _homes(spec: RegionsSpec, names: tuple[str, ...], specs: RequestSpecs) -> NDArray[np.int16]:
    """Return the region of every client: its class's, or drawn by the shares."""
    count = len(specs)
    homes = np.zeros(count, dtype=np.int16)
    if spec.clients:
        generator = rng.stream(specs.seed, "regions", specs.replication)
        edges = np.cumsum(list(spec.clients.values()))[:-1]
        homes = np.searchsorted(edges, generator.random(count), side="right").astype(np.int16)
    if specs.request_class is not None:
        for number, each in enumerate(specs.classes):
            if each.region is not None:
                homes[specs.request_class == number] = names.index(each.region)
    return homes
