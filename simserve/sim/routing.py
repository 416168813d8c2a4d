"""Router: which of the ready replicas an arrival goes to, from signals that may be stale."""

from __future__ import annotations

from collections.abc import Sequence

from simserve import rng
from simserve.engine.state import RequestTable
from simserve.sim.routing_spec import RoutingSpec
from simserve.sim.units import Unit
from simserve.workload.requests import RequestSpecs

_UNIFORMS_AT_ONCE = 1024


class Router:
    """Chooses replicas by one policy.

    Args:
        spec: The policy.
        units: The fleet, as it grows.
        requests: The table of all requests.
        specs: What arrives, for its seed.
    """

    def __init__(self, spec: RoutingSpec, units: list[Unit], requests: RequestTable, specs: RequestSpecs) -> None:
        self._policy = spec.policy
        self._units = units
        self._requests = requests
        self._is_stale = spec.update_interval > 0
        self._seen: list[int] = []
        self._turn = 0
        self._random = rng.stream(specs.seed, "routing", specs.replication)
        self._uniforms: list[float] = []
        self._weighs_tokens = spec.policy == "least_tokens"

    def refresh(self) -> None:
        """Look at every replica; until the next look, this is what the router knows."""
        self._seen = [self._signal(unit) for unit in self._units]

    def choose(self, ready: Sequence[int]) -> int:
        """Return one of the ``ready`` replicas, by number; there is at least one."""
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
            if self._weighs_tokens:
                return min(ready, key=lambda number: units[number].tokens)
            return min(ready, key=lambda number: units[number].load)
        seen = self._seen
        # A replica that is newer than the last look is thought to be empty.
        return min(ready, key=lambda number: seen[number] if number < len(seen) else 0)

    def _signal(self, unit: Unit) -> int:
        return unit.tokens if self._weighs_tokens else unit.load

    def _draw(self, below: int) -> int:
        if not self._uniforms:
            self._uniforms = self._random.random(_UNIFORMS_AT_ONCE).tolist()
        return min(int(self._uniforms.pop() * below), below - 1)
