"""Router: which of the ready replicas of a fleet an arrival goes to, from signals that may be stale.

How it chooses between them is `simserve.engine.routing`'s; here is which it may choose from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from simserve.engine import routing
from simserve.engine.data_parallel import kv_share, num_running_at
from simserve.engine.routing import Affinity, Shares, choose, deal
from simserve.sim.affinity import affinity_of
from simserve.sim.chance import Chance
from simserve.sim.routing_spec import BLIND_POLICIES, TOKEN_POLICIES, RoutingSpec
from simserve.workload.requests import RequestSpecs

if TYPE_CHECKING:
    from simserve.sim.own_parts import Gauges, Judge
    from simserve.sim.units import Pool, Unit

NONE_READY = -1
DEFAULT_GUARD = 1.5
"""Load over the mean load from which a replica is passed over (SGLang's router: ``--balance-rel-threshold``)."""
_POLICIES = {"round_robin": routing.ROUND_ROBIN, "random": routing.RANDOM, "power_of_two": routing.TWO_CHOICES}
DRAWS = {"random": 1, "power_of_two": 2}
"""Random numbers that a request takes."""


def plain_router(
    spec: RoutingSpec, specs: RequestSpecs, as_lists: bool = True, chance: Chance | None = None
) -> routing.Router:
    """Return the router of replicas that are there throughout.

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
    return _router(spec, affinity_of(spec, specs, as_lists), chance)


def shares_of(spec: RoutingSpec, names: Sequence[str]) -> Shares | None:
    """Return how the pools of these names share requests; None: as their loads have it."""
    return Shares([spec.weights[name] for name in names]) if spec.weights else None


def _router(spec: RoutingSpec, affinity: Affinity | None, chance: Chance) -> routing.Router:
    guard = DEFAULT_GUARD if spec.imbalance_guard is None else spec.imbalance_guard
    return routing.Router(_POLICIES.get(spec.policy, routing.LEAST), affinity, guard, chance.uniforms)


def gauges_of(unit: Unit, now: float) -> Gauges:
    """Return what a user's own functions see of a replica."""
    replica = unit.replica
    share = kv_share(replica, now)
    return unit.number, unit.pool.name, num_running_at(replica), unit.num_waiting, unit.tokens, share


class Router:
    """Chooses replicas by one policy.

    Args:
        spec: The policy.
        units: The fleet, as it grows.
        pools: Those it chooses from; of a class, those at the indices in ``allowed``.
        specs: What arrives, for its seed and its classes.
        allowed: Indices of pools by class; empty: all, for all.
        affinity: ``session`` and ``prefix``: what is remembered of earlier requests.
        kinds: Of each request an index into ``allowed``; None: its class.

    Attributes:
        has_room: Whether a replica may be given one more request; None: every ready one may.
        near: Which of the pools that may serve a request it goes to; None: any.
        judge: Asks a user's own router; None: the policy decides.
        max_tokens: With it: the most tokens of each answer.
    """

    has_room: Callable[[Unit], bool] | None = None
    judge: Judge | None = None
    max_tokens: Sequence[int] = ()

    def __init__(
        self,
        spec: RoutingSpec,
        units: list[Unit],
        pools: Sequence[Pool],
        specs: RequestSpecs,
        allowed: Sequence[Sequence[int]] = (),
        affinity: Affinity | None = None,
        kinds: Sequence[int] | None = None,
    ) -> None:
        self.near: Callable[[int, list[Pool]], list[Pool]] | None = None
        self._chance = Chance(specs, "routing")
        self._router = _router(spec, affinity, self._chance)
        self._units = units
        self._pools = list(pools)
        self._allowed = [[self._pools[number] for number in each] for each in allowed]
        if kinds is None and specs.request_class is not None and allowed:
            kinds = specs.request_class.tolist()
        self._kinds: list[int] | None = None if kinds is None else list(kinds)
        self._shares = shares_of(spec, [pool.name for pool in pools])
        self._is_stale = spec.update_interval > 0
        self._is_blind = spec.policy in BLIND_POLICIES
        self._seen: list[int] = []
        self._draws = DRAWS.get(spec.policy, 0)
        self._weighs_tokens = spec.policy in TOKEN_POLICIES

    def refresh(self, now: float = 0.0) -> None:
        """Look at every replica; until the next look, this is what the router knows."""
        self._seen = self._live_signals()
        if self.judge is not None:
            self.judge.refresh(gauges_of(unit, now) for unit in self._units)

    def redirect(self, index: int, kind: int) -> None:
        """Let a request go to other pools from now on.

        Args:
            index: The request.
            kind: An index into ``allowed``.
        """
        assert self._kinds is not None
        self._kinds[index] = kind

    def choose(self, index: int, now: float = 0.0) -> int:
        """Return the number of the replica that a request goes to; -1 while none is ready (or has room)."""
        ready = self.open_to(index)
        if not ready:
            return NONE_READY
        if self.judge is not None and self.judge.parts.router is not None:
            return self.judge.route(index, now, self.max_tokens[index], self.gauges(ready, now))
        self._chance.top_up(self._draws)
        return choose(self._router, index, ready, self._signals())

    def gauges(self, numbers: Sequence[int], now: float) -> list[Gauges]:
        """Return what a user's own functions see of replicas, as they are."""
        return [gauges_of(self._units[number], now) for number in numbers]

    def ready_for(self, index: int) -> list[int]:
        """Return the replicas that a request may go to, whichever pool's turn it is."""
        return [number for pool in self.allowed_pools(index) for number in self._open(pool)]

    def open_to(self, index: int) -> list[int]:
        """Return the replicas that a request may go to, of the pool whose turn it is where pools have shares."""
        pools = self.allowed_pools(index)
        if self.near is not None:
            pools = self.near(index, pools)
        if len(pools) == 1:
            return self._open(pools[0])
        pools = [pool for pool in pools if self._open(pool)]
        if self._shares is not None and len(pools) > 1:
            pools = [self._pools[deal(self._shares, [self._pools.index(pool) for pool in pools])]]
        return [number for pool in pools for number in self._open(pool)]

    def _open(self, pool: Pool) -> list[int]:
        """Return the replicas of a pool that a request may go to, ascending."""
        if self.has_room is None:
            return pool.ready
        return [number for number in pool.ready if self.has_room(self._units[number])]

    def allowed_pools(self, index: int) -> list[Pool]:
        """Return the pools that may serve a request."""
        return self._pools if self._kinds is None else self._allowed[self._kinds[index]]

    def _signals(self) -> list[int]:
        """Return the load of every replica as far as the router knows; one newer than its last look is empty."""
        if self._is_blind:
            return []
        if not self._is_stale:
            return self._live_signals()
        self._seen += [0] * (len(self._units) - len(self._seen))
        return self._seen

    def _live_signals(self) -> list[int]:
        if self._weighs_tokens:
            return [unit.tokens for unit in self._units]
        return [unit.load for unit in self._units]
