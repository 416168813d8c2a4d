"""Router: which of the ready replicas an arrival goes to, from signals that may be stale."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from simserve import rng
from simserve.sim.affinity import Affinity
from simserve.sim.routing_spec import TOKEN_POLICIES, RoutingSpec
from simserve.sim.units import Pool, Unit
from simserve.workload.requests import RequestSpecs

_UNIFORMS_AT_ONCE = 1024
NONE_READY = -1
DEFAULT_GUARD = 1.5
"""Load over the mean load from which a replica is passed over (SGLang's router: ``--balance-rel-threshold``)."""


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
    """

    has_room: Callable[[Unit], bool] | None = None

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
        self._affinity = affinity
        self._guard = DEFAULT_GUARD if spec.imbalance_guard is None else spec.imbalance_guard
        self._policy = spec.policy
        self._units = units
        self._pools = list(pools)
        self._allowed = [[self._pools[number] for number in each] for each in allowed]
        if kinds is None and specs.request_class is not None and allowed:
            kinds = specs.request_class.tolist()
        self._kinds: list[int] | None = None if kinds is None else list(kinds)
        self._weights = dict(spec.weights or {})
        self._credits = dict.fromkeys(self._weights, 0.0)
        self._is_stale = spec.update_interval > 0
        self._seen: list[int] = []
        self._turn = 0
        self._random = rng.stream(specs.seed, "routing", specs.replication)
        self._uniforms: list[float] = []
        self._weighs_tokens = spec.policy in TOKEN_POLICIES

    def refresh(self) -> None:
        """Look at every replica; until the next look, this is what the router knows."""
        self._seen = [self._signal(unit) for unit in self._units]

    def redirect(self, index: int, kind: int) -> None:
        """Let a request go to other pools from now on.

        Args:
            index: The request.
            kind: An index into ``allowed``.
        """
        assert self._kinds is not None
        self._kinds[index] = kind

    def choose(self, index: int) -> int:
        """Return the number of the replica that a request goes to; -1 while none is ready (or has room)."""
        pools = self.allowed_pools(index)
        if self.near is not None:
            pools = self.near(index, pools)
        if len(pools) == 1:
            ready = self._open(pools[0])
        else:
            pools = [pool for pool in pools if self._open(pool)]
            if self._weights and len(pools) > 1:
                pools = [self._draw_pool(pools)]
            ready = [number for pool in pools for number in self._open(pool)]
        if not ready:
            return NONE_READY
        return self._among(ready) if self._affinity is None else self._near(index, ready, self._affinity)

    def _open(self, pool: Pool) -> list[int]:
        """Return the replicas of a pool that a request may go to, ascending."""
        if self.has_room is None:
            return pool.ready
        return [number for number in pool.ready if self.has_room(self._units[number])]

    def allowed_pools(self, index: int) -> list[Pool]:
        """Return the pools that may serve a request."""
        return self._pools if self._kinds is None else self._allowed[self._kinds[index]]

    def _near(self, index: int, ready: Sequence[int], affinity: Affinity) -> int:
        """Return the replica that knows a request, unless it has far more to do than the others."""
        number = affinity.preferred(index, ready)
        if number is None or self._is_overloaded(number, ready, affinity.worth):
            number = self._least(ready)
        affinity.routed(index, number)
        return number

    def _is_overloaded(self, number: int, ready: Sequence[int], worth: int) -> bool:
        """Return whether a replica has far more to do than the mean, and so much more than the least that it shows."""
        own = self._known(number)
        if own <= worth:
            return False
        units = self._units
        if self._is_stale:
            loads = [self._known(each) for each in ready]
        elif self._weighs_tokens:
            loads = [units[each].tokens for each in ready]
        else:
            loads = [units[each].load for each in ready]
        return own > self._guard * sum(loads) / len(loads) and own > min(loads) + worth

    def _known(self, number: int) -> int:
        """Return the load of a replica as far as the router knows."""
        if not self._is_stale:
            return self._signal(self._units[number])
        return self._seen[number] if number < len(self._seen) else 0

    def _draw_pool(self, pools: list[Pool]) -> Pool:
        """Return the pool whose turn it is by weight: smooth weighted round robin, as nginx deals."""
        for pool in pools:
            self._credits[pool.name] += self._weights[pool.name]
        chosen = max(pools, key=lambda pool: self._credits[pool.name])
        self._credits[chosen.name] -= sum(self._weights[pool.name] for pool in pools)
        return chosen

    def _among(self, ready: Sequence[int]) -> int:
        if len(ready) == 1:
            return ready[0]
        if self._policy == "round_robin":
            turn = self._turn if self._turn < len(ready) else 0
            self._turn = turn + 1
            return ready[turn]
        if self._policy == "random":
            return ready[self._draw(len(ready))]
        if self._policy == "power_of_two":
            first = self._draw(len(ready))
            second = self._draw(len(ready) - 1)
            second += second >= first
            # The lower number first, so that ties go to it.
            return self._least((ready[min(first, second)], ready[max(first, second)]))
        return self._least(ready)

    def _least(self, ready: Sequence[int]) -> int:
        if not self._is_stale:
            units = self._units
            loads = [units[number].tokens if self._weighs_tokens else units[number].load for number in ready]
            return ready[loads.index(min(loads))]
        # A replica that is newer than the last look is thought to be empty.
        return min(ready, key=self._known)

    def _signal(self, unit: Unit) -> int:
        return unit.tokens if self._weighs_tokens else unit.load

    def _draw(self, below: int) -> int:
        if not self._uniforms:
            self._uniforms = self._random.random(_UNIFORMS_AT_ONCE).tolist()
        return min(int(self._uniforms.pop() * below), below - 1)
