"""Router: which pools a request may go to, and which of their replicas, from a view that may be out of date."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from simserve import rng
from simserve.reference.clock import Chance

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simserve.reference.clock import Clock, Steps
    from simserve.reference.replica import Pool, Replica
    from simserve.reference.request import Request
    from simserve.sim.control import RegionsSpec, RoutingSpec, RuleSpec
    from simserve.sim.own_parts import Judge
    from simserve.workload.requests import RequestSpecs

DEFAULT_GUARD = 1.5
DEFAULT_CACHE_THRESHOLD = 0.5
SESSION_WORTH = 4
"""Number of requests by which a session's own replica may exceed the least loaded one, whatever the mean."""
ADAPTER_WORTH = 4
"""The same for a LoRA adapter's own replica."""


class Router:
    """One policy and its state.

    Args:
        spec: The policy.
        pools: The pools to choose from.
        allowed: Indices of pools by class; empty: all pools for all classes.
        specs: The requests that arrive, with their seed.
        replicas: The fleet, which may grow.

    Attributes:
        obeys_rules: Whether a request goes to the pools that a rule names.
        has_room: Whether a replica may take one more request.
        reads: Whether a pool may serve a request, apart from its class; for the KV caches of prefill pools.
        judge: Calls a user's own router; None: the policy decides.
        regions: Which pools are near which clients; None: it does not matter.
    """

    def __init__(
        self,
        spec: RoutingSpec,
        pools: Sequence[Pool],
        allowed: Sequence[Sequence[int]],
        specs: RequestSpecs,
        replicas: list[Replica],
    ) -> None:
        self.spec, self.pools, self.allowed, self.specs, self.replicas = spec, list(pools), allowed, specs, replicas
        self.obeys_rules = True
        self.has_room: Callable[[Replica], bool] = lambda _: True
        self.reads: Callable[[Request, Pool], bool] = lambda _request, _pool: True
        self.judge: Judge | None = None
        self.regions: Regions | None = None
        self.chance = Chance(specs, "routing")
        self.turn = 0
        self.credits = [0.0] * len(self.pools)
        self.seen: dict[int, int] = {}
        self.places: dict[tuple[str, int], tuple[int, int]] = {}

    def refresh(self) -> None:
        """Look at every replica; the policy uses this view until the next look."""
        self.seen = {replica.number: self.load_now(replica) for replica in self.replicas}
        if self.judge is not None:
            self.judge.refresh(replica.gauges for replica in self.replicas)

    def look(self, clock: Clock) -> Steps:
        """Refresh the view at intervals (a SimPy process)."""
        while True:
            self.refresh()
            yield clock.timeout(self.spec.update_interval)

    def load_now(self, replica: Replica) -> int:
        """Return the load of a replica as the policy counts it: requests, or their tokens."""
        return replica.tokens if self.spec.policy in ("least_tokens", "prefix") else replica.load

    def load(self, replica: Replica) -> int:
        """Return the load at the last look; a replica newer than that counts as empty."""
        return self.seen.get(replica.number, 0) if self.spec.update_interval else self.load_now(replica)

    def pools_for(self, request: Request) -> list[Pool]:
        """Return the pools that may serve a request."""
        pools = [self.pools[number] for number in self.allowed[request.kind]] if self.allowed else self.pools
        if request.pools is not None and self.obeys_rules:
            pools = self.named(request.pools)
        return [pool for pool in pools if self.reads(request, pool)]

    def named(self, names: Sequence[str]) -> list[Pool]:
        """Return the pools with some names."""
        return [pool for pool in self.pools if pool.name in names]

    def choose(self, request: Request) -> Replica | None:
        """Return the replica that a request goes to; None while no replica is ready or has room."""
        pools = self.pools_for(request)
        if self.regions is not None:
            pools = self.regions.near(request, pools)
        pools = [pool for pool in pools if self.open_in(pool)]
        if self.spec.weights and len(pools) > 1:
            pools = [self.deal(pools)]
        ready = [replica for pool in pools for replica in self.open_in(pool)]
        if not ready:
            return None
        if self.judge is not None and self.judge.parts.router is not None:
            gauges = [replica.gauges for replica in ready]
            chosen = self.judge.route(request.index, ready[0].clock.now, request.max_tokens, gauges)
            return self.replicas[chosen]
        if self.spec.policy == "session" and self.specs.session is not None:
            session = int(self.specs.session[request.index])
            return self.by_memory(ready, [(session, SESSION_WORTH)] if session >= 0 else [], 0.0)
        if self.spec.policy == "lora" and self.specs.adapter is not None:
            return self.by_memory(ready, [(request.adapter, ADAPTER_WORTH)] if request.adapter >= 0 else [], 0.0)
        if self.spec.policy == "prefix" and self.specs.prefixes is not None:
            threshold = self.spec.cache_threshold
            least = (DEFAULT_CACHE_THRESHOLD if threshold is None else threshold) * request.prompt_tokens
            return self.by_memory(ready, request.path, least)
        return self.by_policy(ready)

    def open_in(self, pool: Pool) -> list[Replica]:
        """Return the replicas of a pool that may take a request, the oldest first."""
        return [replica for replica in pool.replicas if replica.is_ready and self.has_room(replica)]

    def deal(self, pools: list[Pool]) -> Pool:
        """Return the next pool by weight: each gains its weight per request, and the chosen one pays the sum.

        Smooth weighted round robin, as in nginx's upstream module.
        """
        assert self.spec.weights is not None
        for pool in pools:
            self.credits[self.pools.index(pool)] += self.spec.weights[pool.name]
        chosen = max(pools, key=lambda pool: self.credits[self.pools.index(pool)])
        self.credits[self.pools.index(chosen)] -= sum(self.spec.weights[pool.name] for pool in pools)
        return chosen

    def by_policy(self, ready: list[Replica]) -> Replica:
        """Return one of the ready replicas; ties go to the first."""
        policy = self.spec.policy
        if len(ready) == 1:
            return ready[0]
        if policy == "round_robin":
            self.turn = self.turn if self.turn < len(ready) else 0
            chosen = ready[self.turn]
            self.turn += 1
            return chosen
        if policy == "random":
            return ready[self.chance.below(len(ready))]
        if policy == "power_of_two":
            first = self.chance.below(len(ready))
            others = [number for number in range(len(ready)) if number != first]
            second = others[self.chance.below(len(others))]
            return min((ready[number] for number in sorted((first, second))), key=self.load)
        return min(ready, key=self.load)

    def by_memory(self, ready: list[Replica], keys: list[tuple[int, int]], least: float) -> Replica:
        """Return the replica that knows most of a request, or the least loaded one if that replica is overloaded.

        Args:
            ready: Replicas that the request may go to.
            keys: Keys of the request's prefixes, and what each is worth in the unit of the loads; the shortest first.
            least: Least worth for which the least loaded replica is not chosen.
        """
        chosen = None
        for key, worth in reversed(keys):
            if worth < least:
                break
            number, known = self.places.get((self.spec.policy, key), (-1, 0))
            knowing = next((replica for replica in ready if replica.number == number), None)
            if knowing is not None:
                if min(known, worth) >= least and not self.is_overloaded(knowing, ready, min(known, worth)):
                    chosen = knowing
                break
        chosen = chosen or min(ready, key=self.load)
        for key, worth in keys:
            number, known = self.places.get((self.spec.policy, key), (-1, 0))
            # A replica that knew more of a key still does; what another one knew no longer counts.
            self.places[self.spec.policy, key] = (
                chosen.number,
                max(known, worth) if number == chosen.number else worth,
            )
        return chosen

    def is_overloaded(self, replica: Replica, ready: list[Replica], worth: int) -> bool:
        """Whether a replica has more than guard times the mean, and more than ``worth`` above the least loaded."""
        guard = self.spec.imbalance_guard or DEFAULT_GUARD
        loads = [self.load(each) for each in ready]
        own = self.load(replica)
        return own > guard * math.fsum(loads) / len(loads) and own > min(loads) + worth and own > worth


class Rules:
    """Which pools requests go to by class and length, and whose first answers are rejected.

    Args:
        rules: In order; the first that matches applies.
        pools: Pools that take requests.
        allowed: Indices of pools by class; empty: all pools for all classes.
        specs: The requests that arrive.
    """

    def __init__(
        self, rules: Sequence[RuleSpec], pools: Sequence[Pool], allowed: Sequence[Sequence[int]], specs: RequestSpecs
    ) -> None:
        self.rules, self.pools, self.allowed, self.classes = rules, pools, allowed, specs.classes
        self.uniforms = rng.stream(specs.seed, "misclassified", specs.replication).random(len(specs)).tolist()
        self.num_asked_again = self.num_discarded_tokens = 0

    def apply(self, request: Request) -> None:
        """Note which pools a request goes to, and which for a second answer."""
        rule = next((each for each in self.rules if self.fits(each, request)), None)
        if rule is None:
            return
        request.pools = self.named(rule.pool)
        if rule.misclassified is not None and self.uniforms[request.index] < rule.misclassified:
            request.second_pools = self.named(str(rule.retry_pool))

    def fits(self, rule: RuleSpec, request: Request) -> bool:
        """Whether a rule matches a request; a class that is bound to pools follows only rules that name it."""
        if rule.min_prompt_tokens is not None and request.prompt_tokens < rule.min_prompt_tokens:
            return False
        if rule.max_prompt_tokens is not None and request.prompt_tokens > rule.max_prompt_tokens:
            return False
        if rule.classes is not None:
            return self.classes[request.kind].name in rule.classes
        return not self.allowed or set(self.allowed[request.kind]) == set(range(len(self.pools)))

    def named(self, name: str) -> list[str]:
        """Return the name if it is a pool's; empty if it is the API."""
        return [pool.name for pool in self.pools if pool.name == name]

    def asks_again(self, request: Request) -> bool:
        """Whether the answer that a replica has just given is rejected; the request then goes to its second pools."""
        if request.second_pools is None:
            return False
        self.num_asked_again += 1
        self.num_discarded_tokens += request.generated
        request.pools, request.second_pools = request.second_pools, None
        request.cached_tokens = 0
        return True


class Regions:
    """Where clients are, and which pools are near them.

    Args:
        spec: Distances between regions.
        pools: All pools, each with its region.
        specs: The requests that arrive.

    Attributes:
        names: The regions of clients.
    """

    def __init__(self, spec: RegionsSpec, pools: Sequence[Pool], specs: RequestSpecs) -> None:
        self.spec, self.pools, self.classes = spec, pools, specs.classes
        self.has_classes = specs.request_class is not None
        self.uniforms = rng.stream(specs.seed, "regions", specs.replication).random(len(specs)).tolist()
        own = [each.region for each in specs.classes if each.region is not None]
        self.names = tuple(dict.fromkeys([*spec.clients, *own]))

    def home_of(self, request: Request) -> str:
        """Return the region of a client: that of its class, or drawn by the shares."""
        own = self.classes[request.kind].region if self.has_classes else None
        if own is not None:
            return own
        names, shares = list(self.spec.clients), list(self.spec.clients.values())
        ends = [sum(shares[: number + 1]) for number in range(len(shares) - 1)]
        home: str = names[sum(end <= self.uniforms[request.index] for end in ends)]
        return home

    def one_way(self, request: Request, pool: Pool) -> float:
        """Return the seconds between the client of a request and a pool."""
        return self.spec.one_way(request.home, pool.region) or 0.0

    def near(self, request: Request, pools: Sequence[Pool]) -> list[Pool]:
        """Return the pools in the region that a request goes to.

        This is the nearest region with a ready replica whose mean load is below ``spill_above``, or else the one with
        the lowest mean load.
        """
        places: dict[str, list[Pool]] = {}
        for pool in sorted(self.pools, key=lambda one: self.one_way(request, one)):
            if pool in pools and any(replica.is_ready for replica in pool.replicas):
                places.setdefault(pool.region, []).append(pool)
        if not places:
            return []
        limit = math.inf if self.spec.spill_above is None else self.spec.spill_above
        means = {place: mean_load(near) for place, near in places.items()}
        chosen = next((place for place, mean in means.items() if mean < limit), None)
        chosen = min(means, key=lambda place: means[place]) if chosen is None else chosen
        return [pool for pool in pools if pool in places[chosen]]


def mean_load(pools: Sequence[Pool]) -> float:
    """Return the mean number of requests per ready replica of some pools."""
    loads = [replica.load for pool in pools for replica in pool.replicas if replica.is_ready]
    return sum(loads) / len(loads)
