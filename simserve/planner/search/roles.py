"""The best fleet of prefill and decode workers, each role with its own shape.

The cost of a fleet is the sum over its roles, and each role can be judged with more than enough workers of the other,
as fewer make nothing faster. So for each role the numbers of each shape that pass alone are listed by cost, starting at
a proven bound (`simserve.planner.search.role_bound`). Then pairs are simulated whole in the order of cost, and the
first that holds is the best. A size or number is dropped only if its role fails alone, beside the fastest workers of
the other, by more than the error of a short run; of the settings of a knob, only the best is kept.

A shape has its own GPU and weight format. Only workers that can read each other's KV caches form a pair. A cache is
sent as raw bytes: of one checkpoint, in one number format, in the layout of one attention kernel, which an engine
chooses by the generation of the GPU. vLLM's NIXL connector compares all three before the first transfer and refuses
what differs (`compute_nixl_compatibility_hash` of its nixl_connector.py); the other engines are assumed to require the
same. So weight formats differ between roles only where the engine makes them from one checkpoint while loading.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, TypeVar

from simserve.errors import InfeasibleError, InputError
from simserve.metrics.cost import gpu_hour
from simserve.perf.shape import ReplicaShape
from simserve.perf.tables import step_times_of
from simserve.planner.overrides import Overrides, with_overrides
from simserve.planner.search.deciding_run import promise_of
from simserve.planner.search.explain import context_shortage, is_short
from simserve.planner.search.member import Goal, GroupResult, Objective
from simserve.planner.search.order import EQUAL, is_less, smallest_integer
from simserve.planner.search.role_bound import covers_roles, role_bound
from simserve.planner.search.search import Search, group_result
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

Each = TypeVar("Each")
KVFormat = tuple[str, ...]  # What two workers must share: checkpoint, KV format and cache layout.
FLASH_GENERATIONS = ("8", "9")
"""CUDA major versions (Ampere, Ada and Hopper) on which engines use FlashAttention for all but latent attention
(vLLM 0.20, `vllm/platforms/cuda.py`: FLASH_ATTN first; on 10 FLASHINFER is)."""
FRONT_KEYS = (KV_KEY, DRAFTS_NAME, ROUTE_NAME)
"""What both roles share and the search may set: a cache is read in the format that it is sent in."""
AMPLE = 3  # Factor on the least workers that a role needs, to have more than enough; doubled while the fleet is busy.
AT_EASE = 0.6  # Largest busy share of a fleet at which no role waits for the other.
MOST_DOUBLINGS = 6
KNOB_GAIN = 0.85  # Least workers with other knobs as a share of those needed with the scenario's own; an assumption.
TIED = 2 * EQUAL
"""Relative difference up to which a fleet is tried against the best known: headroom decides between equals."""
HELD = 6  # Number of pairs that hold, cheapest first, to pass on: one of them is confirmed.
MOST_PAIRS = 240  # Most pairs that are simulated whole.
OBJECTIVES: tuple[Objective, ...] = ("cost", "gpus", "energy")
"""Objectives that are sums over the workers, unlike the latency of a fleet."""


def kv_format_of(shape: ReplicaShape) -> KVFormat:
    """Return what another worker must share with a replica to read its KV caches."""
    checkpoint = formats_of(shape, "auto").checkpoint or shape.model.name
    return checkpoint, shape.kv_cache_dtype, *layout_of(shape.hardware, shape.model)


def layout_of(hardware: HardwareProfile, model: ModelProfile) -> tuple[str, str]:
    """Return the GPU vendor and generation that determine the layout of a model's KV cache."""
    generation = (hardware.compute_capability or hardware.name).partition(".")[0]
    if generation in FLASH_GENERATIONS and model.mla is None:
        generation = FLASH_GENERATIONS[0]
    return hardware.vendor, generation


class NoRoom(Enum):
    """Why a shape cannot be used."""

    NO_ROOM = "its memory does not hold the model and one request"


NO_ROOM = NoRoom.NO_ROOM


@dataclass(slots=True, kw_only=True)
class Worker:
    """A shape of a role."""

    pool: Pool  # Its pool, without the number of replicas.
    gpus: int  # GPUs of one worker.
    usd_per_hour: float  # Price of one worker; infinite if unknown.
    watts: float  # Power of one idle worker.
    needed: float  # Fewest workers that can do the work (bound); a fraction.
    idle_seconds: float  # Least mean seconds of a first token, or of a further one, on an idle worker.
    most_rate: float  # Most requests a second that one can serve (bound).
    kv_format: KVFormat  # What another worker must share with it to read its KV caches.

    @property
    def least(self) -> int:
        """Fewest whole workers."""
        return max(1, math.ceil(self.needed))

    def cost(self, goal: Goal) -> float:
        """Return the objective of one worker."""
        return {"gpus": float(self.gpus), "energy": self.watts}.get(goal.objective, self.usd_per_hour)


@dataclass(frozen=True, slots=True)
class KnownWorkers:
    """Workers known from earlier searches, passed from one search to the next."""

    workers: dict[tuple[str, bool, str], Worker | NoRoom | None] = field(default_factory=dict)
    """Role, whether the bounds are proven, and hash of the scenario with only one worker -> the worker, or why there
    is none. The search adds to them."""
    least: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """GPU -> role -> least objective of all workers of the role on such GPUs (bound)."""


@dataclass(frozen=True, slots=True)
class Count:
    """A number of workers of a shape."""

    worker: Worker
    number: int

    @property
    def gpus(self) -> int:
        """GPUs of all of them."""
        return self.number * self.worker.gpus

    @property
    def laid(self) -> str:
        """Number, GPU, format and sizes without the knob: one holding setting of each is enough."""
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
    """Return the best fleet of prefill and decode workers on a kind of GPU; without a best if none is better.

    Its members include those that are as good as the best known.

    Args:
        goal: What to minimise; its ceiling is the best value known.
        known: Results of earlier searches; this one adds the workers that it prices.
    """
    search, known = Search(space, goal), KnownWorkers() if known is None else known
    search.best_value = (goal.ceiling, -math.inf)
    for front in fronts(space):
        _Split(search, front, known).run()
    return group_result(search, "roles")


def price_workers(
    space: Space, goal: Goal, known: KnownWorkers, front: Overrides
) -> dict[tuple[str, bool, str], Worker | NoRoom | None]:
    """Return the unknown workers that a search of one front would price.

    Several processes can do the parts of a search at once, which then prices none itself.
    """
    assert space.roles is not None  # the space has a role search
    own = replace(known, workers=dict(known.workers))
    workers_of(Search(space, goal), front, space.roles, goal.ceiling * (1 + TIED), own)
    return {key: worker for key, worker in own.workers.items() if key not in known.workers}


def mixed_space(
    spaces: Sequence[Space], costs: Sequence[Mapping[str, float]] = (), ceiling: float = math.inf
) -> Space | None:
    """Return the space of pairs whose roles may have different kinds of GPU; None if there is no choice.

    If the scenario sets one price itself, the prices of two kinds of GPU are unknown.

    Args:
        spaces: Spaces on one kind of GPU each.
        costs: For each of these, role -> least cost of its workers (`GroupResult.role_costs`); empty: unknown.
        ceiling: Fleets of this value or more are of no interest.
    """
    bounds = [dict(each) for each in costs] or [{} for _ in spaces]
    able = [(space, bound) for space, bound in zip(spaces, bounds, strict=True) if space.roles is not None]
    if len(able) < 2 or able[0][0].scenario.pricing.gpu_hour_usd is not None:
        return None
    left: list[Roles] = []
    for space, bound in able:
        partners = [each for other, each in able if other is not space and _layout(other) == _layout(space)]
        assert space.roles is not None  # the space has a role search
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
    """Yield what both roles share: KV format, drafts and routing, with everything else unchanged."""
    plain = {POOL_NAME: space.dimensions[POOL_NAME][0]}
    yield from space.members([key for key in FRONT_KEYS if key in space.dimensions], plain)


class _Split:
    """The search of pairs that share one front.

    Args:
        front: What both roles share.
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
        """Find the best pair; keep it and the next ones that hold in the search."""
        for workers in by_kv_format(workers_of(self.search, self.front, self.roles, self.limit, self.known)):
            self.limit = min(self.limit, self.search.best_value[0] * (1 + TIED))
            self._run(self._winnable(workers))

    def _run(self, least: dict[str, list[Worker]]) -> None:
        """Find the best pair of workers that can read each other's KV caches."""
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
        """Return the workers whose bounds allow a pair that is no more expensive than the best known."""
        kept = dict(workers)
        for role in (PREFILL, DECODE):
            kept[role] = [each for each in kept[role] if self._least_cost(each) + self._rest(each, kept) < self.limit]
        return kept

    def _rest(self, worker: Worker, workers: Mapping[str, list[Worker]]) -> float:
        """Return the least cost of the other role beside a worker (bound); infinite if it has no counterpart."""
        return min((self._least_cost(each) for each in self._others(worker, workers)), default=math.inf)

    def _others(self, worker: Worker, workers: Mapping[str, list[Worker]]) -> Iterator[Worker]:
        """Yield the workers of the other role that a worker may be paired with."""
        other = DECODE if worker.pool["role"] == PREFILL else PREFILL
        return (each for each in workers[other] if self._are_a_pair(worker, each))

    def _are_a_pair(self, one: Worker, other: Worker) -> bool:
        """Return whether two workers may be paired: where kinds of GPU are mixed, only those of two kinds."""
        return not self._is_mixed or one.pool[GPU] != other.pool[GPU]

    def _holds(self, prefill: Count, decode: Count) -> bool:
        """Return whether a pair holds: over the network, or inside one node where first tokens are late over it."""
        replicas = prefill.number + decode.number
        trial = self._judged(deployed_pair(self.roles, self.front, prefill, decode), replicas)
        if trial is None or trial.holds or not _may_be_the_link(trial, self.search.space.scenario):
            return trial is not None and trial.holds
        domain = self.roles.domain_link([(each.worker.pool, each.number) for each in (prefill, decode)])
        if domain is None:
            return False
        trial = self._judged(deployed_pair(self.roles, self.front, prefill, decode, domain), replicas)
        return trial is not None and trial.holds

    def _judged(self, overrides: Overrides, replicas: int) -> Trial | None:
        """Simulate a pair whole, keep it if it is the best, and return its run; None if it cannot be run.

        The best must hold in fresh long runs as well; the others are checked for that only when one of them is taken.
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
        """Return whether the bounds allow a pair on the available GPUs that costs no more than the best known."""
        cost = sum(min(each.least * each.cost(self.goal) for each in workers[role]) for role in workers)
        gpus = sum(min(each.least * each.gpus for each in workers[role]) for role in workers)
        return cost < self.limit and gpus <= self.goal.max_gpus

    def _pairs(self, workers: dict[str, list[Worker]]) -> Iterator[tuple[float, Count, Count]]:
        """Yield pairs whose roles pass alone, by cost, without those more expensive than the best known.

        After the first that holds, pairs that cost up to a worker more follow: one of them may have to replace it.
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
        """Yield the numbers of workers of each kind that pass alone, by cost, with only the best knob setting."""
        groups = by_kind(workers, lambda worker: worker.pool)
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
                number, groups[place] = fewest.number, [fewest.worker]  # more workers than that pass, too
            if number <= most:
                heapq.heappush(heap, (number * group[0].cost(self.goal), place, number))

    def _most(self, worker: Worker) -> int:
        """Return the most workers of interest: the other role costs at least its cheapest count that passes alone."""
        most, cost = self.goal.max_gpus // worker.gpus, worker.cost(self.goal)
        other = DECODE if worker.pool["role"] == PREFILL else PREFILL
        left = self.limit - max(self._rest(worker, self._all), self._cheapest.get(other, 0.0))
        if cost > 0 and math.isfinite(left):
            most = min(most, math.ceil(left / cost) - 1)
        return most

    def _fewest(self, role: str, knobs: Sequence[Worker], most: int) -> Count | None:
        """Return the fewest workers of a kind that pass alone, with the best knob at that number; None if none pass.

        Attainment is assumed to rise with their number, so a kind that fails with the most is dropped.
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
        """Return whether a kind may pass with at most ``most`` workers, over the link of the fewest.

        It may if it passes with the scenario's own knob and as many more workers as another knob might save.
        """
        own = [each for each in knobs if KNOBS[role] not in (each.pool.get("engine") or {})]
        count = math.ceil(most / KNOB_GAIN) if own else most
        return any(self._alone(role, Count(each, count), each.least) is not None for each in own or knobs)

    def _least_cost(self, worker: Worker) -> float:
        return worker.least * worker.cost(self.goal)

    def _find_ample(self, workers: dict[str, list[Worker]]) -> bool:
        """Find numbers of workers of each role at which neither waits for the other; return whether there are any."""
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
        """Return the attainment of workers of a role with more than enough of the other; None if they do not pass.

        The link is that of ``linked`` workers; None: of as many as there are.
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
        """Return the deciding run of a role over a link; None if the pair is refused."""
        scenario = self.search.space.scenario
        overrides = deployed_pair(self.roles, self.front, prefill, decode, link)
        try:
            limit = request_limit(with_overrides(scenario, overrides), MOST_REQUESTS)
            return run_fleet(scenario, overrides, prefill.number + decode.number, limit)[0]
        except (InputError, InfeasibleError):
            return None


def deployed_pair(
    roles: Roles, front: Overrides, prefill: Count, decode: Count, link: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the overrides that deploy prefill and decode workers (`Roles.deployed`)."""
    workers = [(each.worker.pool, each.number) for each in (prefill, decode)]
    return roles.deployed(front, workers, link=link)


def _may_be_the_link(trial: Trial, scenario: Scenario) -> bool:
    """Return whether a fleet that misses may hold over a faster link, which shortens only first tokens."""
    asked, between = objective(scenario), trial.by_metric.get("tpot")
    return asked is not None and (between is None or between >= asked.attainment - DOUBT)


class _Listed:
    """The items of an iterator, by index."""

    def __init__(self, source: Iterator[Count]) -> None:
        self._source = source
        self._found: list[Count] = []

    def at(self, place: int) -> Count | None:
        """Return the item at an index, or None past the end."""
        while len(self._found) <= place:
            following = next(self._source, None)
            if following is None:
                return None
            self._found.append(following)
        return self._found[place]


def by_kv_format(workers: Mapping[str, Sequence[Worker]]) -> list[dict[str, list[Worker]]]:
    """Return the workers by role, in groups that can read each other's KV caches."""
    found: dict[KVFormat, dict[str, list[Worker]]] = {}
    for role, each in workers.items():
        for worker in each:
            found.setdefault(worker.kv_format, {PREFILL: [], DECODE: []})[role].append(worker)
    return list(found.values())


def workers_of(
    search: Search, front: Overrides, roles: Roles, limit: float = math.inf, known: KnownWorkers | None = None
) -> dict[str, list[Worker]]:
    """Return the shapes of each role that fit and meet its limit on an idle worker, with their bounds.

    Args:
        front: What both roles share.
        roles: The shapes.
        limit: Fleets of this value or more are of no interest. Left out are sizes of which one worker is too expensive;
            settings of a knob with which a size would have to do much better than with the scenario's own; and all
            other settings if no bound holds and the limit was raised because a fleet that held was not confirmed.
        known: What is known about workers: priced ones are not priced again, and the least cost of a role on its kind
            of GPU is used.
    """
    shapes = _Shapes(search, front, roles, limit, KnownWorkers() if known is None else known)
    found = shapes.found()
    for role, cost in shapes.bounds.items():
        search.role_costs[role] = min(cost, search.role_costs.get(role, math.inf))
    return found


@dataclass(frozen=True, slots=True)
class _Judged:
    """A kind of worker as judged so far."""

    own: Worker | None  # The worker with the scenario's own knob; None if there is none.
    others: Sequence[tuple[float, Pool]]  # Its other settings, each with the least cost of its workers.
    cost: float  # The least cost of its workers with any setting.


class _Shapes:
    """The shapes that share a front, judged as far as a limit on the cost of a fleet requires.

    A kind of worker is priced only if its cost plus the least cost of the other role lies below the limit. That least
    is first the cost of one worker, then that of the cheapest sufficient workers of the role: kinds are priced in the
    order of the cost of one worker until no remaining one can be cheaper.

    Args:
        search, front, roles, limit, known: As in `workers_of`.

    Attributes:
        bounds: Role -> the least cost of its workers.
    """

    def __init__(self, search: Search, front: Overrides, roles: Roles, limit: float, known: KnownWorkers) -> None:
        self._search, self._front, self._roles, self._limit, self._known = search, front, roles, limit, known
        self._kinds = {role: by_kind(roles.shapes(role), lambda pool: pool) for role in (PREFILL, DECODE)}
        names = {roles.hardware_of(pool) for pool in (*roles.prefill, *roles.decode)}
        self._units = {name: unit_cost(search, front, name) for name in names}
        self._judged: dict[tuple[str, int], _Judged] = {}
        self._is_proven = False
        self.bounds = {role: min(map(self._least_cost, each)) for role, each in self._kinds.items()}

    def found(self) -> dict[str, list[Worker]]:
        """Return the workers of each role; none if the bounds allow no pair."""
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
        """Return the least cost of workers of a role, as far as it allows a pair below the limit."""
        heap = [(self._least_cost(knobs), place, False) for place, knobs in enumerate(self._kinds[role])]
        heapq.heapify(heap)
        while heap:
            cost, place, is_judged = heapq.heappop(heap)
            if is_judged or cost + self._rest(role) >= self._limit:
                return cost
            heapq.heappush(heap, (max(cost, self._judge(role, place).cost), place, True))
        return math.inf

    def _below(self, role: str) -> list[Worker]:
        """Return the workers of a role that allow a pair below the limit, with the scenario's own knobs first."""
        limit, own, others = self._limit - self._rest(role), [], []
        for place, knobs in enumerate(self._kinds[role]):
            if self._least_cost(knobs) < limit:
                judged = self._judge(role, place)
                own += [] if judged.own is None else [judged.own]
                others += [pool for cost, pool in judged.others if cost < limit]
        tried = [self._worker(pool) for pool in others]
        return own + [each for each in tried if isinstance(each, Worker) and math.isfinite(each.needed)]

    def _judge(self, role: str, place: int) -> _Judged:
        """Return a kind of worker, judged once."""
        if (role, place) not in self._judged:
            knobs = self._kinds[role][place]
            own = self._worker(knobs[0])
            others: list[tuple[float, Pool]] = []
            # After a fleet was not confirmed, other settings are tried only if a bound holds.
            if self._is_proven or not self._search.goal.refused:
                others = self._others(own, knobs)
            kept = own if isinstance(own, Worker) and math.isfinite(own.needed) else None
            costs = [cost for cost, _ in others]
            if kept is not None:
                costs.append(kept.least * kept.cost(self._search.goal))
            self._judged[role, place] = _Judged(kept, others, min(costs, default=math.inf))
        return self._judged[role, place]

    def _others(self, own: Worker | NoRoom | None, knobs: Sequence[Pool]) -> list[tuple[float, Pool]]:
        """Return the other settings of a kind with their least cost: not much below that of the scenario's own."""
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
        """Return the least cost of the other role."""
        return self.bounds[DECODE if role == PREFILL else PREFILL]

    def _may_pair(self) -> bool:
        return sum(self.bounds.values()) < self._limit

    def _unit(self, pool: Pool) -> float:
        """Return the objective of one worker."""
        return gpus_of_size(pool) * self._units[self._roles.hardware_of(pool)]

    def _least_cost(self, knobs: Sequence[Pool]) -> float:
        """Return the least cost of workers of a kind: of one of them, or the known least of its GPU and role."""
        pool = knobs[0]
        return max(self._unit(pool), self._known.least.get(self._roles.hardware_of(pool), {}).get(pool["role"], 0.0))

    def _worker(self, pool: Pool) -> Worker | NoRoom | None:
        """Return a shape with its bound, priced once; None if it is refused, `NO_ROOM` if nothing fits."""
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


def by_kind(workers: Sequence[Each], pool_of: Callable[[Each], Pool]) -> list[list[Each]]:
    """Return the settings of the knob of each kind of worker, the scenario's own first."""
    kinds: dict[tuple[Any, ...], list[Each]] = {}
    for each in workers:
        kinds.setdefault(kind_of(pool_of(each)), []).append(each)
    return list(kinds.values())


def unit_cost(search: Search, front: Overrides, name: str) -> float:
    """Return the objective of one GPU; 0 if unknown."""
    scenario = search.space.apply(front)
    hardware = load_hardware(name, scenario.folder)
    if search.goal.objective == "gpus":
        return 1.0
    if search.goal.objective == "energy":
        return hardware.power.idle
    return gpu_hour(scenario.pricing, hardware).usd or 0.0


def _sparing(knobs: Sequence[Pool]) -> Pool:
    """Return the setting of a knob that leaves the most memory: the fewest seats, or tokens per step."""
    knob = KNOBS[knobs[0]["role"]]
    return min(knobs, key=lambda pool: (pool.get("engine") or {}).get(knob) or math.inf)


def _priced(search: Search, alone: Scenario, pool: Pool, *, is_proven: bool) -> Worker | NoRoom | None:
    """Return a shape with its bound; None if it is refused, `NO_ROOM` if it does not fit or no request does.

    If it is too slow even when idle, whatever its knob, it needs an infinite number of workers.
    """
    try:
        resolved = resolve(alone, "a KV connector between pools")
        if is_short(resolved):
            return NO_ROOM
        times = step_times_of(resolved.shape)
    except InputError:
        return None
    specs, role = search.requests(alone), pool["role"]
    if context_shortage(resolved, specs):
        return NO_ROOM
    bound = role_bound(role, alone, resolved.engine, times, specs, is_proven=is_proven)
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
    """Return the overrides that deploy only one worker of a shape."""
    own = {f"deployment.{key}": value for key, value in pool.items() if key not in ("name", "role", "model", "region")}
    model = {"model": pool["model"]} if "model" in pool else {}
    return {**front, **own, **model, POOLS_KEY: [], LINK_KEY: None, REPLICAS_KEY: 1}
