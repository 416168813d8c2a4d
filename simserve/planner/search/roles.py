"""The best fleet of prefill and decode workers, each role with a shape of its own.

What a fleet costs is the sum over its roles, and each role can be judged with more than enough workers of the other:
with fewer of them nothing is faster. So for each role the numbers of each shape that pass alone are listed by their
cost, from a proven bound on (`simserve.planner.search.role_bound`); then pairs are simulated whole in the order of
their cost, and the first that holds is the best. No size and no number is given up unless its role fails alone, beside
the fastest workers of the other, by more than a short run may be wrong; of the settings of a knob, the best alone is
taken.

A shape has a GPU and a weight format of its own. Only workers that can read each other's KV caches are a pair. A cache
is handed over as the bytes that it is: of one checkpoint, in one number format, laid out by one attention kernel, which
an engine chooses by the generation of the GPU. vLLM's NIXL connector compares all three before the first transfer and
refuses what differs (`compute_nixl_compatibility_hash` of its nixl_connector.py); the other engines are taken to ask
for the same. So weight formats differ between roles only where the engine makes them of one checkpoint while it loads.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from simserve.errors import InfeasibleError, InputError
from simserve.metrics.cost import gpu_hour
from simserve.perf.shape import ReplicaShape
from simserve.perf.tables import price
from simserve.planner.overrides import Overrides, with_overrides
from simserve.planner.search.deciding_run import promise_of
from simserve.planner.search.explain import context_shortage
from simserve.planner.search.group import group_result
from simserve.planner.search.member import Goal, GroupResult, Objective
from simserve.planner.search.order import EQUAL, is_less, smallest_integer
from simserve.planner.search.role_bound import covers_roles, role_bound
from simserve.planner.search.search import Search
from simserve.planner.search.trial import DOUBT, MOST_REQUESTS, Trial, is_one_job, request_limit, run_fleet
from simserve.planner.space.formats import KV_KEY
from simserve.planner.space.makeup import POOLS_KEY, REPLICAS_KEY
from simserve.planner.space.roles import (
    DECODE,
    GPU,
    KNOBS,
    LINK_KEY,
    PREFILL,
    Pool,
    Roles,
    gpus_of_size,
    kind_of,
    mixed_roles,
)
from simserve.planner.space.space import DRAFTS_NAME, POOL_NAME, ROUTE_NAME, Space
from simserve.profiles.catalog import load_model
from simserve.profiles.hardware import HardwareProfile, load_hardware
from simserve.profiles.model import ModelProfile
from simserve.scenario.formats import formats_of
from simserve.scenario.resolve import resolve
from simserve.scenario.schema import Scenario, objective

KVFormat = tuple[str, ...]
"""What two workers must have in common: checkpoint, KV format, and who lays the cache out."""
FLASH_GENERATIONS = ("8", "9")
"""CUDA major versions, Ampere, Ada and Hopper, on which engines take FlashAttention for everything but latent attention
(vLLM 0.20, `vllm/platforms/cuda.py`: FLASH_ATTN first; on 10 FLASHINFER is)."""
FRONT_KEYS = (KV_KEY, DRAFTS_NAME, ROUTE_NAME)
"""What both roles share and the search may set: a cache is read in the format in which it is sent."""
AMPLE = 3
"""Times the workers that a role needs at least, which are more than enough; doubled while the fleet is busy."""
AT_EASE = 0.6
"""Busy share of a fleet in which nobody waits for the other role."""
MOST_DOUBLINGS = 6
KNOB_GAIN = 0.85
"""Share of the workers with the scenario's own knobs that others are taken to need at least; an assumption."""
TIED = 2 * EQUAL
"""Relative difference up to which a fleet is looked at beside what is known: headroom decides between equals."""
HELD = 6
"""Pairs that hold, the cheapest first, which are handed on: one of them is confirmed."""
MOST_PAIRS = 240
"""Pairs that are simulated whole."""
OBJECTIVES: tuple[Objective, ...] = ("cost", "gpus", "energy")
"""What is small where the sum over the workers is; the latency of a fleet is not."""


def kv_format_of(shape: ReplicaShape) -> KVFormat:
    """Return what another worker must have in common with a replica to read its KV caches."""
    checkpoint = formats_of(shape, "auto").checkpoint or shape.model.name
    return checkpoint, shape.kv_cache_dtype, *layout_of(shape.hardware, shape.model)


def layout_of(hardware: HardwareProfile, model: ModelProfile) -> tuple[str, str]:
    """Return whose GPU and which generation lays a model's KV cache out."""
    generation = (hardware.compute_capability or hardware.name).partition(".")[0]
    if generation in FLASH_GENERATIONS and model.mla is None:
        generation = FLASH_GENERATIONS[0]
    return hardware.vendor, generation


class NoRoom(Enum):
    """Why a shape is none."""

    NO_ROOM = "its memory does not hold the model and one request"


NO_ROOM = NoRoom.NO_ROOM


@dataclass(slots=True, kw_only=True)
class Worker:
    """A shape of a role.

    Attributes:
        pool: Its pool, without the number of replicas.
        gpus: Of one worker.
        usd_per_hour: Of one worker; infinite without a price.
        watts: Of one worker that does nothing.
        needed: Fewer cannot do the work (bound); a fraction.
        idle_seconds: A first token, or a further one, takes at least on it when idle, on average.
        most_rate: Requests a second that one can do at most (bound).
        kv_format: What another must have in common with it to read its KV caches.
    """

    pool: Pool
    gpus: int
    usd_per_hour: float
    watts: float
    needed: float
    idle_seconds: float
    most_rate: float
    kv_format: KVFormat

    @property
    def least(self) -> int:
        """Whole workers that are the fewest."""
        return max(1, math.ceil(self.needed))

    def cost(self, goal: Goal) -> float:
        """Return what is to be small, of one worker."""
        return {"gpus": float(self.gpus), "energy": self.watts}.get(goal.objective, self.usd_per_hour)


@dataclass(frozen=True, slots=True)
class KnownWorkers:
    """What searches have found out about workers, handed from one to the next.

    Attributes:
        workers: Role, whether the bounds are proven, and hash of the scenario in which one is all there is -> the
            worker, or why there is none. The search adds to them.
        least: GPU -> role -> what is to be small, of all workers of it on such GPUs, at least (bound).
    """

    workers: dict[tuple[str, bool, str], Worker | NoRoom | None] = field(default_factory=dict)
    least: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Count:
    """So many workers of a shape."""

    worker: Worker
    number: int

    @property
    def gpus(self) -> int:
        """GPUs of all of them."""
        return self.number * self.worker.gpus

    @property
    def laid(self) -> str:
        """Number, GPU, format and sizes, whatever the knob: of those that hold, one is enough."""
        return f"{self.number} of {kind_of(self.worker.pool)}"


def has_role_search(space: Space, goal: Goal) -> bool:
    """Return whether prefill and decode workers of a space are sized by role."""
    return (
        space.roles is not None
        and goal.objective in OBJECTIVES
        and goal.replicas is None
        and not goal.spare_replicas
        and not is_one_job(space.scenario)
    )


def search_roles(space: Space, goal: Goal, known: KnownWorkers | None = None) -> GroupResult:
    """Return the best fleet of prefill and decode workers on a kind of GPU; without a best where none is better.

    Those that are as good as what is known are among its members.

    Args:
        space: What may be deployed.
        goal: What is to be small; its ceiling is the best value known.
        known: What earlier searches have found out; this one adds the workers that it prices.
    """
    search, known = Search(space, goal), KnownWorkers() if known is None else known
    search.best_value = (goal.ceiling, -math.inf)
    for front in fronts(space):
        _Split(search, front, known).run()
    return group_result(search, "roles")


def mixed_space(
    spaces: Sequence[Space], costs: Sequence[Mapping[str, float]] = (), ceiling: float = math.inf
) -> Space | None:
    """Return the space of pairs whose roles may have different kinds of GPU; None where there are none to choose from.

    One price of the scenario's own does not say what two kinds of GPU cost.

    Args:
        spaces: Those on one kind of GPU.
        costs: Role -> what its workers cost at least, of each of these (`GroupResult.role_costs`); empty: not known.
        ceiling: Value from which on a fleet is of no interest.
    """
    bounds = [dict(each) for each in costs] or [{} for _ in spaces]
    able = [(space, bound) for space, bound in zip(spaces, bounds, strict=True) if space.roles is not None]
    if len(able) < 2 or able[0][0].scenario.pricing.gpu_hour_usd is not None:
        return None
    left: list[Roles] = []
    for space, bound in able:
        partners = [each for other, each in able if other is not space and _layout(other) == _layout(space)]
        assert space.roles is not None  # it is able
        kept = {
            role: bound.get(role, 0.0) + min((each.get(rest, 0.0) for each in partners), default=math.inf)
            < ceiling * (1 + TIED)
            for role, rest in ((PREFILL, DECODE), (DECODE, PREFILL))
        }
        prefill = space.roles.prefill if kept[PREFILL] else ()
        left.append(replace(space.roles, prefill=prefill, decode=space.roles.decode if kept[DECODE] else ()))
    roles = mixed_roles(left)
    if roles is None or not roles.prefill or not roles.decode:
        return None
    first = able[0][0]
    formats = dict.fromkeys(value for space, _ in able for value in space.dimensions.get(KV_KEY, ()))
    return replace(first, roles=roles, dimensions={**first.dimensions, KV_KEY: tuple(formats)})


def _layout(space: Space) -> tuple[str, str]:
    scenario = space.scenario
    hardware = load_hardware(scenario.deployment.hardware, scenario.folder)
    return layout_of(hardware, load_model(scenario.model, scenario.folder))


def search_mixed(space: Space, goal: Goal, known: KnownWorkers | None = None) -> GroupResult:
    """Return the best fleet whose prefill workers have another GPU than its decode workers (`mixed_space`)."""
    found = search_roles(space, goal, known)
    pools = [] if found.best is None else found.best.overrides[POOLS_KEY]
    return replace(found, hardware=" + ".join(pool[GPU] for pool in pools))


def fronts(space: Space) -> Iterator[Overrides]:
    """Yield what both roles share: KV format, drafts and routing, everything else as it is."""
    plain = {POOL_NAME: space.dimensions[POOL_NAME][0]}
    yield from space.members([key for key in FRONT_KEYS if key in space.dimensions], plain)


class _Split:
    """The search of pairs that share one front.

    Args:
        search: Judges and keeps members.
        front: What both roles share.
        known: What is known of workers.
    """

    def __init__(self, search: Search, front: Overrides, known: KnownWorkers) -> None:
        assert search.space.roles is not None  # as `has_role_search` says
        self.search, self.front, self.goal, self.known = search, front, search.goal, known
        self.roles: Roles = search.space.roles
        self.limit = min(self.goal.ceiling, search.best_value[0]) * (1 + TIED)
        self._ample: dict[str, Count] = {}
        self._cheapest: dict[str, float] = {}
        self._reached: dict[tuple[str, str, int, int], float | None] = {}
        self._all: dict[str, list[Worker]] = {}
        self._is_mixed = any(GPU in pool for pool in (*self.roles.prefill, *self.roles.decode))

    def run(self) -> None:
        """Find the best pair; keep it, and those next to it that hold, in the search."""
        for workers in by_kv_format(workers_of(self.search, self.front, self.roles, self.limit, self.known)):
            self.limit = min(self.limit, self.search.best_value[0] * (1 + TIED))
            self._run(self._winnable(workers))

    def _run(self, least: dict[str, list[Worker]]) -> None:
        """Find the best pair of workers that read each other's KV caches."""
        if not least[PREFILL] or not least[DECODE] or not self._can_win(least):
            return
        if not self._find_ample(least):
            return
        held: set[str] = set()
        for _, prefill, decode in self._pairs(least):
            laid = f"{prefill.laid} + {decode.laid}"
            if laid not in held and self._holds(prefill, decode):
                held.add(laid)
                if len(held) == HELD:
                    return

    def _winnable(self, workers: Mapping[str, list[Worker]]) -> dict[str, list[Worker]]:
        """Return the workers whose bounds leave them a pair that is no dearer than what is known."""
        kept = dict(workers)
        for role in (PREFILL, DECODE):
            kept[role] = [each for each in kept[role] if self._least_cost(each) + self._rest(each, kept) < self.limit]
        return kept

    def _rest(self, worker: Worker, workers: Mapping[str, list[Worker]]) -> float:
        """Return what the other role costs at least beside a worker (bound); infinite where it has no counterpart."""
        return min((self._least_cost(each) for each in self._others(worker, workers)), default=math.inf)

    def _others(self, worker: Worker, workers: Mapping[str, list[Worker]]) -> Iterator[Worker]:
        """Yield what may do the other role beside a worker."""
        other = DECODE if worker.pool["role"] == PREFILL else PREFILL
        return (each for each in workers[other] if self._are_a_pair(worker, each))

    def _are_a_pair(self, one: Worker, other: Worker) -> bool:
        """Return whether two workers are looked at together: where kinds of GPU are mixed, those of two kinds."""
        return not self._is_mixed or one.pool[GPU] != other.pool[GPU]

    def _holds(self, prefill: Count, decode: Count) -> bool:
        """Return whether a pair holds: over the network, or where first tokens are late there, inside one node."""
        replicas = prefill.number + decode.number
        trial = self._judged(self._overrides(prefill, decode), replicas)
        if trial is None or trial.holds or not _may_be_the_link(trial, self.search.space.scenario):
            return trial is not None and trial.holds
        domain = self.roles.domain_link([(each.worker.pool, each.number) for each in (prefill, decode)])
        if domain is None:
            return False
        trial = self._judged(self._overrides(prefill, decode, domain), replicas)
        return trial is not None and trial.holds

    def _judged(self, overrides: Overrides, replicas: int) -> Trial | None:
        """Simulate a pair whole, keep it if it is the best, and return its run; None where it cannot be run.

        What would be the best must hold in fresh long runs as well. Of the others that is asked when one is taken.
        """
        member = self.search.member(overrides)
        if member.status != "not_better":
            return None
        trial = self.search.trial(member, replicas)
        value = self.search.value(trial)
        if trial.holds and is_less(value, self.search.best_value):
            member.promise = trial.promise or promise_of(self.search.space.scenario, member.overrides, replicas)
            trial = replace(trial, holds=member.promise.holds)
            if trial.holds:
                self.search.best, self.search.best_value = member, value
        member.trial = trial
        member.status = "holds" if trial.holds else "misses"
        member.reason = "" if trial.holds else "misses the SLO with so many workers of each role"
        return trial

    def _can_win(self, workers: dict[str, list[Worker]]) -> bool:
        """Return whether the bounds leave a pair that is no dearer than what is known, on the GPUs there are."""
        cost = sum(min(each.least * each.cost(self.goal) for each in workers[role]) for role in workers)
        gpus = sum(min(each.least * each.gpus for each in workers[role]) for role in workers)
        return cost < self.limit and gpus <= self.goal.max_gpus

    def _pairs(self, workers: dict[str, list[Worker]]) -> Iterator[tuple[float, Count, Count]]:
        """Yield pairs whose roles pass alone, by their cost; those that are dearer than what is known are left out.

        After the first that holds, those that cost up to a worker more follow: one of them may have to stand in.
        """
        self._cheapest = {}
        sides = {role: _Listed(self._passing(role, each)) for role, each in workers.items()}
        heap: list[tuple[float, int, int]] = [(0.0, 0, 0)]
        seen, dearest = {(0, 0)}, max(each.cost(self.goal) for side in workers.values() for each in side)
        for _ in range(MOST_PAIRS):
            if not heap:
                return
            _, one, other = heapq.heappop(heap)
            prefill, decode = sides[PREFILL].at(one), sides[DECODE].at(other)
            if prefill is None or decode is None:
                continue
            cost = self._cost(prefill) + self._cost(decode)
            if cost >= self.limit or cost > self.search.best_value[0] + dearest:
                return
            fits = prefill.gpus + decode.gpus <= self.goal.max_gpus
            if fits and self._are_a_pair(prefill.worker, decode.worker):
                yield cost, prefill, decode
            for place in ((one + 1, other), (one, other + 1)):
                ahead = sides[PREFILL].at(place[0]), sides[DECODE].at(place[1])
                if place not in seen and ahead[0] is not None and ahead[1] is not None:
                    seen.add(place)
                    heapq.heappush(heap, (self._cost(ahead[0]) + self._cost(ahead[1]), *place))

    def _cost(self, count: Count) -> float:
        return count.number * count.worker.cost(self.goal)

    def _passing(self, role: str, workers: Sequence[Worker]) -> Iterator[Count]:
        """Yield the numbers of workers of each kind that pass alone, by their cost; of its knobs, the best alone."""
        kinds: dict[tuple[Any, ...], list[Worker]] = {}
        for worker in workers:
            kinds.setdefault(kind_of(worker.pool), []).append(worker)
        groups = list(kinds.values())
        heap = [(min(map(self._least_cost, each)), place, 0) for place, each in enumerate(groups)]
        heapq.heapify(heap)
        while heap:
            cost, place, number = heapq.heappop(heap)
            group = groups[place]
            most = self._most(group[0])
            if number:
                self._cheapest.setdefault(role, cost)
                yield Count(group[0], number)
                number += 1
            else:
                fewest = self._fewest(role, group, most)
                if fewest is None:
                    continue
                number, groups[place] = fewest.number, [fewest.worker]  # more of what passes pass, too
            if number <= most:
                heapq.heappush(heap, (number * group[0].cost(self.goal), place, number))

    def _most(self, worker: Worker) -> int:
        """Return the most workers with which a pair is of interest: the other role costs at least what passes alone."""
        most, cost = self.goal.max_gpus // worker.gpus, worker.cost(self.goal)
        other = DECODE if worker.pool["role"] == PREFILL else PREFILL
        left = self.limit - max(self._rest(worker, self._all), self._cheapest.get(other, 0.0))
        if cost > 0 and math.isfinite(left):
            most = min(most, math.ceil(left / cost) - 1)
        return most

    def _fewest(self, role: str, knobs: Sequence[Worker], most: int) -> Count | None:
        """Return the fewest workers of a kind that pass alone, with the knob that is best then; None: no number does.

        Attainment is taken to rise with their number, so that a kind which fails with the most is done with.
        """
        least = min(each.least for each in knobs)
        if least > most or (math.isfinite(self.limit) and not self._may_pass(role, knobs, most)):
            return None

        def passes(number: int) -> bool:
            return any(self._alone(role, Count(each, number)) is not None for each in knobs if each.least <= number)

        fewest = smallest_integer(passes, least, most)
        if fewest is None:
            return None
        able = [each for each in knobs if each.least <= fewest]
        reached = [self._alone(role, Count(each, fewest)) for each in able]
        shares = [-math.inf if share is None else share for share in reached]
        return Count(able[shares.index(max(shares))], fewest)

    def _may_pass(self, role: str, knobs: Sequence[Worker], most: int) -> bool:
        """Return whether a kind may pass with so many workers at most, over the link that the fewest have.

        It may if the scenario's own knob does with as many more workers as another may save.
        """
        own = [each for each in knobs if KNOBS[role] not in (each.pool.get("engine") or {})]
        count = math.ceil(most / KNOB_GAIN) if own else most
        return any(self._alone(role, Count(each, count), each.least) is not None for each in own or knobs)

    def _least_cost(self, worker: Worker) -> float:
        return worker.least * worker.cost(self.goal)

    def _find_ample(self, workers: dict[str, list[Worker]]) -> bool:
        """Find numbers of workers of each role with which nobody waits for the other; return whether there are."""
        self._all = workers
        fastest = {role: min(each, key=lambda worker: worker.idle_seconds) for role, each in workers.items()}
        times = AMPLE
        for _ in range(MOST_DOUBLINGS):
            self._ample = {role: Count(each, times * each.least) for role, each in fastest.items()}
            trial = self._try(self._ample[PREFILL], self._ample[DECODE], self.roles.link_of(()))
            if trial is None:
                return False
            if trial.stability == "stable" and trial.busy <= AT_EASE:
                return True
            times *= 2
        return False

    def _alone(self, role: str, count: Count, linked: int | None = None) -> float | None:
        """Return what so many workers of a role reach with more than enough of the other; None: they do not pass.

        Args:
            role: Whose workers they are.
            count: The workers.
            linked: How many have the link over which caches are sent; None: those that there are.
        """
        key = role, repr(count.worker.pool), count.number, linked or count.number
        if key not in self._reached:
            self._reached[key] = self._run_alone(role, count, linked or count.number)
        return self._reached[key]

    def _run_alone(self, role: str, count: Count, linked: int) -> float | None:
        others = self._ample | {role: count}
        trial = self._try(others[PREFILL], others[DECODE], self.roles.fastest_link(count.worker.pool, linked))
        asked = objective(self.search.space.scenario)
        if trial is None or asked is None or trial.attainment is None or trial.stability == "overloaded":
            return None
        return trial.attainment if trial.attainment >= asked.attainment - DOUBT else None

    def _try(self, prefill: Count, decode: Count, link: Mapping[str, Any]) -> Trial | None:
        """Return a run that decides about a role, over a link; None where the pair is refused."""
        scenario = self.search.space.scenario
        overrides = self._overrides(prefill, decode, link)
        try:
            limit = request_limit(with_overrides(scenario, overrides), MOST_REQUESTS)
            return run_fleet(scenario, overrides, prefill.number + decode.number, limit)[0]
        except (InputError, InfeasibleError):
            return None

    def _overrides(self, prefill: Count, decode: Count, link: Mapping[str, Any] | None = None) -> dict[str, Any]:
        workers = [(each.worker.pool, each.number) for each in (prefill, decode)]
        return self.roles.deployed(self.front, workers, link=link)


def _may_be_the_link(trial: Trial, scenario: Scenario) -> bool:
    """Return whether a fleet that misses may hold over a faster link, which only first tokens wait for."""
    asked, between = objective(scenario), trial.by_metric.get("tpot")
    return asked is not None and (between is None or between >= asked.attainment - DOUBT)


class _Listed:
    """What an iterator yields, by its place."""

    def __init__(self, source: Iterator[Count]) -> None:
        self._source = source
        self._found: list[Count] = []

    def at(self, place: int) -> Count | None:
        """Return what comes at a place; None: nothing does."""
        while len(self._found) <= place:
            following = next(self._source, None)
            if following is None:
                return None
            self._found.append(following)
        return self._found[place]


def by_kv_format(workers: Mapping[str, Sequence[Worker]]) -> list[dict[str, list[Worker]]]:
    """Return the workers of each role that read each other's KV caches, apart from the others."""
    found: dict[KVFormat, dict[str, list[Worker]]] = {}
    for role, each in workers.items():
        for worker in each:
            found.setdefault(worker.kv_format, {PREFILL: [], DECODE: []})[role].append(worker)
    return list(found.values())


def workers_of(
    search: Search, front: Overrides, roles: Roles, limit: float = math.inf, known: KnownWorkers | None = None
) -> dict[str, list[Worker]]:
    """Return the shapes of each role that fit and keep its limit on an idle worker, with their bounds.

    Args:
        search: Whose space and goal it is.
        front: What both roles share.
        roles: The shapes.
        limit: Value from which on a fleet is of no interest. Sizes one worker of which makes it too dear are left out,
            and settings of a knob where its size would have to do much better than with the scenario's own; all other
            settings where no bound holds and the limit is higher since a fleet that held was not confirmed.
        known: What is known of workers: one that was priced is not priced again, and a role costs what it does at least
            on its kind of GPU.
    """
    shapes = _Shapes(search, front, roles, limit, KnownWorkers() if known is None else known)
    found = shapes.found()
    for role, cost in shapes.bounds.items():
        search.role_costs[role] = min(cost, search.role_costs.get(role, math.inf))
    return found


@dataclass(frozen=True, slots=True)
class _Judged:
    """What is known of a kind of worker.

    Attributes:
        own: It with the scenario's own knob; None: there is none.
        others: Its other settings, each with the least that its workers cost.
        cost: The least that its workers cost, whatever the setting.
    """

    own: Worker | None
    others: Sequence[tuple[float, Pool]]
    cost: float


class _Shapes:
    """The shapes that share a front, judged as far as a limit on what a fleet costs asks for.

    A kind of worker is priced only where it and the least that the other role costs lie below the limit. That least is
    first what one worker costs, then what the cheapest workers of the role do that are enough: kinds are priced in the
    order of what one costs until nothing that is left can be cheaper.

    Args:
        search, front, roles, limit, known: As of `workers_of`.

    Attributes:
        bounds: Role -> the least that its workers cost.
    """

    def __init__(self, search: Search, front: Overrides, roles: Roles, limit: float, known: KnownWorkers) -> None:
        self._search, self._front, self._roles, self._limit, self._known = search, front, roles, limit, known
        self._kinds = {role: _by_kind(roles.shapes(role)) for role in (PREFILL, DECODE)}
        names = {roles.hardware_of(pool) for pool in (*roles.prefill, *roles.decode)}
        self._units = {name: _unit_cost(search, front, name) for name in names}
        self._judged: dict[tuple[str, int], _Judged] = {}
        self._is_proven = False
        self.bounds = {role: min(map(self._least_cost, each)) for role, each in self._kinds.items()}

    def found(self) -> dict[str, list[Worker]]:
        """Return the workers of each role; none where the bounds leave no pair."""
        nothing: dict[str, list[Worker]] = {PREFILL: [], DECODE: []}
        if not self._may_pair():
            return nothing
        search = self._search
        alone = search.space.apply(alone_overrides(self._front, self._roles.decode[0]))
        self._is_proven = covers_roles(alone, search.requests(alone))
        for role in (PREFILL, DECODE):
            self.bounds[role] = self._least(role)
            if not self._may_pair():
                return nothing
        return {role: self._below(role) for role in (PREFILL, DECODE)}

    def _least(self, role: str) -> float:
        """Return the least that workers of a role cost, as far as it leaves a pair below the limit."""
        heap = [(self._least_cost(knobs), place, False) for place, knobs in enumerate(self._kinds[role])]
        heapq.heapify(heap)
        while heap:
            cost, place, is_judged = heapq.heappop(heap)
            if is_judged or cost + self._rest(role) >= self._limit:
                return cost
            heapq.heappush(heap, (max(cost, self._judge(role, place).cost), place, True))
        return math.inf

    def _below(self, role: str) -> list[Worker]:
        """Return the workers of a role that leave a pair below the limit, with the scenario's own knobs first."""
        limit, own, others = self._limit - self._rest(role), [], []
        for place, knobs in enumerate(self._kinds[role]):
            if self._least_cost(knobs) < limit:
                judged = self._judge(role, place)
                own += [] if judged.own is None else [judged.own]
                others += [pool for cost, pool in judged.others if cost < limit]
        tried = [self._worker(pool) for pool in others]
        return own + [each for each in tried if isinstance(each, Worker) and math.isfinite(each.needed)]

    def _judge(self, role: str, place: int) -> _Judged:
        """Return what is known of a kind of worker, looked at once."""
        if (role, place) not in self._judged:
            knobs = self._kinds[role][place]
            own = self._worker(knobs[0])
            others: list[tuple[float, Pool]] = []
            # Where what failed is known, other settings are tried only if a bound holds.
            if self._is_proven or not self._search.goal.refused:
                others = self._others(own, knobs)
            kept = own if isinstance(own, Worker) and math.isfinite(own.needed) else None
            costs = [cost for cost, _ in others]
            if kept is not None:
                costs.append(kept.least * kept.cost(self._search.goal))
            self._judged[role, place] = _Judged(kept, others, min(costs, default=math.inf))
        return self._judged[role, place]

    def _others(self, own: Worker | NoRoom | None, knobs: Sequence[Pool]) -> list[tuple[float, Pool]]:
        """Return the other settings of a kind with what they cost at least: not much less than the scenario's own."""
        if isinstance(own, Worker):
            least = max(1.0, own.needed if math.isinf(own.needed) else math.ceil(KNOB_GAIN * own.needed))
            return [(least * self._unit(each), each) for each in knobs[1:]]
        if own is NO_ROOM and self._worker(_sparing(knobs)) is NO_ROOM:
            return []
        workers = [(self._worker(each), each) for each in knobs[1:]]
        return [
            (each.least * self._unit(pool), pool)
            for each, pool in workers
            if isinstance(each, Worker) and math.isfinite(each.needed)
        ]

    def _rest(self, role: str) -> float:
        """Return what the other role costs at least."""
        return self.bounds[DECODE if role == PREFILL else PREFILL]

    def _may_pair(self) -> bool:
        return sum(self.bounds.values()) < self._limit

    def _unit(self, pool: Pool) -> float:
        """Return what is to be small, of one worker."""
        return gpus_of_size(pool) * self._units[self._roles.hardware_of(pool)]

    def _least_cost(self, knobs: Sequence[Pool]) -> float:
        """Return what workers of a kind cost at least: one of them, or what is known of its GPU and role."""
        pool = knobs[0]
        return max(self._unit(pool), self._known.least.get(self._roles.hardware_of(pool), {}).get(pool["role"], 0.0))

    def _worker(self, pool: Pool) -> Worker | NoRoom | None:
        """Return a shape with its bound, priced once; None where it is refused, `NO_ROOM` where nothing fits."""
        search = self._search
        try:
            alone = search.space.apply(alone_overrides(self._front, pool))
        except InputError:
            return None
        key, known = (pool["role"], self._is_proven, alone.hash), self._known.workers
        if key not in known:
            known[key] = _priced(search, alone, pool, is_proven=self._is_proven)
        worker = known[key]
        return replace(worker, pool=pool) if isinstance(worker, Worker) else worker


def _by_kind(shapes: Sequence[Pool]) -> list[list[Pool]]:
    """Return the settings of the knob of each kind of worker, the scenario's own first."""
    kinds: dict[tuple[Any, ...], list[Pool]] = {}
    for each in shapes:
        kinds.setdefault(kind_of(each), []).append(each)
    return list(kinds.values())


def _unit_cost(search: Search, front: Overrides, name: str) -> float:
    """Return what is to be small, of one GPU; 0 where it is not known."""
    scenario = search.space.apply(front)
    hardware = load_hardware(name, scenario.folder)
    if search.goal.objective == "gpus":
        return 1.0
    if search.goal.objective == "energy":
        return hardware.power.idle
    return gpu_hour(scenario.pricing, hardware).usd or 0.0


def _sparing(knobs: Sequence[Pool]) -> Pool:
    """Return the setting of a knob that leaves the most memory: the fewest seats, or tokens of a step."""
    knob = KNOBS[knobs[0]["role"]]
    return min(knobs, key=lambda pool: (pool.get("engine") or {}).get(knob) or math.inf)


def _priced(search: Search, alone: Scenario, pool: Pool, *, is_proven: bool) -> Worker | NoRoom | None:
    """Return a shape with its bound; None where it is refused, `NO_ROOM` where it does not fit or no request does.

    Where it is too slow even when idle, whatever its knob, an infinite number of workers is needed.
    """
    try:
        resolved = resolve(alone, "a KV connector between pools")
        if not resolved.memory.fits or resolved.memory.shortage_bytes:
            return NO_ROOM
        priced = price(resolved.shape)
    except InputError:
        return None
    specs, role = search.requests(alone), pool["role"]
    if context_shortage(resolved, specs):
        return NO_ROOM
    bound = role_bound(role, alone, resolved.engine, priced.step_times, specs, is_proven=is_proven)
    is_chunked = role == PREFILL and resolved.engine.max_num_batched_tokens < search.longest_prompt
    if bound.out_of_reach and is_chunked:
        return None
    gpus, usd = resolved.shape.num_gpus, resolved.gpu_hour_usd
    return Worker(
        pool=pool,
        gpus=gpus,
        usd_per_hour=math.inf if usd is None else gpus * usd,
        watts=gpus * resolved.shape.hardware.power.idle,
        needed=math.inf if bound.out_of_reach else bound.needed_workers,
        idle_seconds=bound.idle_seconds,
        most_rate=bound.most_rate,
        kv_format=kv_format_of(resolved.shape),
    )


def alone_overrides(front: Overrides, pool: Pool) -> dict[str, Any]:
    """Return the overrides that make one worker of a shape all there is."""
    own = {f"deployment.{key}": value for key, value in pool.items() if key not in ("name", "role", "model", "region")}
    model = {"model": pool["model"]} if "model" in pool else {}
    return {**front, **own, **model, POOLS_KEY: [], LINK_KEY: None, REPLICAS_KEY: 1}
