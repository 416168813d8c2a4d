"""What fixed GPUs can do: the highest load at which the SLO holds for each deployment on them, and the best.

One kind of GPU is one task. Every shape is looked at under loads up to what it finishes with its queue never empty;
other deployments only where they finish nearly what the best so far sustains, and hold at nearly that load. Then engine
knobs are changed around the best, one at a time. Looks are short runs. The load of the best few deployments is found as
`simserve capacity` finds it, and that decides. Prints nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from simserve.errors import InfeasibleError, InputError
from simserve.metrics.latency import MS, NAMED_TERMS, TERMS
from simserve.metrics.summary import or_null
from simserve.planner.capacity.answer import Capacity, capacity, quantile
from simserve.planner.capacity.level import Level, Trial
from simserve.planner.capacity.probe import LoadProbe, is_closed_loop, load_of, own_traffic, probe_of
from simserve.planner.capacity.search import highest_promised, is_load_sustained, settled_requests
from simserve.planner.overrides import with_seed
from simserve.planner.plan.explain import command, describe
from simserve.planner.plan.findings import Findings
from simserve.planner.plan.price import Market
from simserve.planner.plan.runners import front
from simserve.planner.plan.summary import drafts_assumed
from simserve.planner.search.explain import clause, plain
from simserve.planner.search.member import Goal, Member
from simserve.planner.search.role_rates import Rates
from simserve.planner.search.roles import fronts, mixed_space
from simserve.planner.search.search import Search, Tell, settings_around
from simserve.planner.search.trial import deployed, deployed_overrides, is_steady
from simserve.planner.space.formats import WEIGHTS_KEY
from simserve.planner.space.makeup import POOLS_KEY, REPLICAS_KEY
from simserve.planner.space.roles import FORMAT, GPU, SIZE_KEYS, is_split
from simserve.planner.space.space import Space
from simserve.scenario.fit import leading_warnings
from simserve.scenario.resolve import assumed_architectures, resolve
from simserve.scenario.schema import Scenario, objective, objective_mapping

SHARES = (0.03, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 1.0)
"""Loads at which a shape is looked at, as shares of the highest that can be promised."""
LOOK_REQUESTS = 1000
CLOSE_REQUESTS = 3000
MOST_REQUESTS = 20_000
"""Requests of a look; least requests of a look that closes in on the highest load that holds; most where more
settle."""
CLOSE = 1.03  # Ratio of the failing load to the holding one at which looks end.
MOST_DOUBLINGS = 14
MORE_THROUGHPUT = 1.01
"""Most doublings of the load, where it is not known what can be finished; and ratio of the tokens/s of twice the
clients to those before, up to which more clients bring nothing."""
CONTENDERS = 6
NEAR_BEST = 1.15
"""Most layouts whose load is found as `simserve capacity` finds it; and largest ratio of what the best does in short
looks to what they do: near the load that is finished, a single run may hold that far above what is promised."""
WORTH_A_SEARCH = 1.01
"""Factor on the load that the best so far sustains: another must hold there before its own load is found."""
WEIGHTS_OF_POOLS = "deployment.routing.weights"
MIXED = " + "  # Separator of the names of several kinds of GPU.
KNOBS = "deployment.engine."  # Beginning of the keys of engine knobs.
UNSCALED = frozenset({"scale", "overflow", "admit"})
"""Options without effect on what fixed GPUs can do: they stay as in the scenario."""

Each = Callable[..., Iterable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A short run at one load."""

    load: float  # Requests/s, or clients.
    margin: float  # By how much the SLO holds at the confidence asked for; negative if it does not.
    trial: Trial  # What the run measured, without its individual requests.
    num_requests: int  # Least requests of the run.


@dataclass(slots=True, kw_only=True)
class Able:
    """A deployment on all of the GPUs, and the loads that it sustains."""

    hardware: str  # The GPU.
    member: Member  # The deployment.
    replicas: int = 0  # As many as fit on the GPUs; 0: none.
    num_gpus: int = 0  # GPUs that they take.
    looks: list[Look] = field(default_factory=list)  # Loads that were looked at, ascending.
    capacity: Capacity | None = None  # What was found about its load, if it is a contender.

    @property
    def held(self) -> Look | None:
        """The highest load up to which all hold; None if none does."""
        found = None
        for look in self.looks:
            if look.margin < 0:
                break
            found = look
        return found


class _Group:
    """The search on one kind of GPU."""

    def __init__(self, space: Space, goal: Goal, num_settings: int, tell: Tell | None = None) -> None:
        self.space = space
        self._tell = tell
        self.num_settings = num_settings
        self.search = Search(space, goal)
        self.able: list[Able] = []
        self.is_closed = is_closed_loop(space.scenario)
        self.hardware = MIXED.join(goal.gpus_by_kind) or space.scenario.deployment.hardware
        self._seen: set[tuple[tuple[str, str], ...]] = set()

    def run_side_by_side(self, beside: Sequence[Able]) -> list[Able]:
        """Return the fleets with several kinds of GPU that were judged.

        Args:
            beside: Deployments on one kind each; the best equal replicas of each kind are combined.
        """
        equal = [found for kind in self.search.goal.gpus_by_kind for found in self._equal(kind, beside)]
        if len(equal) > 1 and self.search.goal.spare_replicas == 0:
            fleet = {**_shared(equal), POOLS_KEY: [self._pool_of(each) for each in equal], REPLICAS_KEY: 1}
            loads = [value_of(each.held, is_closed=self.is_closed) for each in equal]
            weights = {each.hardware: float(f"{load:.3g}") for each, load in zip(equal, loads, strict=True)}
            self._try(fleet, is_drawn=True)
            self._try({**fleet, WEIGHTS_OF_POOLS: weights}, is_drawn=True)
        self._try_roles()
        return self.able

    def _equal(self, hardware: str, beside: Sequence[Able]) -> list[Able]:
        """Return the equal replicas of a kind of GPU that do the most; empty where none hold."""
        scenario = self.space.scenario
        held = [each for each in beside if each.hardware == hardware and each.held is not None]
        equal = [each for each in held if not deployed(scenario, each.member.overrides, 1).deployment.pools]
        return sorted(equal, key=lambda each: -value_of(each.held, is_closed=self.is_closed))[:1]

    def _pool_of(self, able: Able) -> dict[str, Any]:
        """Return equal replicas as a pool, named for their GPU."""
        there = deployed(self.space.scenario, able.member.overrides, able.replicas).as_mapping()["deployment"]
        own = {key: there[key] for key in _OF_A_POOL if key in there}
        return {"name": able.hardware, "replicas": able.replicas, **own}

    def run(self) -> list[Able]:
        """Return every deployment that was judged, in that order."""
        space = self.space
        # The scenario's own deployment too, unless its weight format is excluded.
        own = () if WEIGHTS_KEY in space.plain else (space.base,)
        for overrides in (space.plain, *own, *space.members(space.shape_keys)):
            self._try(overrides, is_drawn=True)
        names = [name for name in space.options if name not in space.shape_keys and name not in UNSCALED]
        for overrides in space.members((*space.shape_keys, *names)):
            self._try(overrides)
        self._try_roles()
        best, left = None, self.num_settings
        while self.best is not best and left > 0:
            best = self.best
            assert best is not None  # it changed
            if is_split(best.member.overrides):
                break
            chosen = space.chosen(best.member.overrides)
            for setting in settings_around(space, chosen, most_changes=1):
                if setting and not UNSCALED & setting.keys() and left > 0:
                    left -= self._try(space.overrides({**chosen, **setting}))
        return self.able

    def _try_roles(self) -> None:
        """Judge prefill and decode workers with shapes of their own, then the knobs of the best of them."""
        space, scenario = self.space, self.space.scenario
        if space.roles is None or self.is_closed or not is_steady(scenario) or self.search.goal.spare_replicas:
            return
        offered = load_of(scenario, own_traffic(scenario))
        for shared in fronts(space):
            rates = Rates(self.search, shared, space.roles, offered)
            before = self.best
            for overrides in rates.pairs(self._best_load):
                self._try(overrides)
            if self.best is not before and self.best is not None and self.num_settings:
                for overrides in rates.with_other_knobs(self.best.member.overrides):
                    self._try(overrides)

    def _best_load(self) -> float:
        return value_of(None if self.best is None else self.best.held, is_closed=False)

    @property
    def best(self) -> Able | None:
        """The deployment that does the most."""
        held = [each for each in self.able if each.held is not None]
        return max(held, key=lambda each: value_of(each.held, is_closed=self.is_closed), default=None)

    def _try(self, overrides: dict[str, Any] | Any, *, is_drawn: bool = False) -> bool:
        """Judge a deployment once; return whether it was run.

        Args:
            is_drawn: Whether to look at it under all loads, whatever the best does.
        """
        key = tuple(sorted((name, repr(value)) for name, value in overrides.items()))
        if key in self._seen:
            return False
        self._seen.add(key)
        member = replace(self.search.member(overrides))  # the search keeps its own
        able = Able(hardware=self.hardware, member=member)
        self.able.append(able)
        if self._tell is not None:
            self._tell((len(self.able), None))
        makeup = member.makeup
        if makeup is None or member.status not in ("not_better", "too_many_gpus"):
            return False  # refused, or out of reach at any load
        is_mixed = bool(self.search.goal.gpus_by_kind)
        able.replicas = sum(makeup.weights) if is_mixed else max(self.search.most_replicas(member), 0)
        if able.replicas < max(makeup.smallest, 1):
            able.replicas = 0
            member.status, member.reason = "too_many_gpus", f"{makeup.num_gpus(makeup.smallest)} GPUs are the fewest"
            return False
        able.num_gpus = makeup.num_gpus(able.replicas)
        try:
            self._look(able, is_drawn=is_drawn)
        except InfeasibleError as refusal:
            member.status, member.reason = "does_not_fit", f"does not fit: {refusal.rule}".partition(" (")[0]
        except InputError as refusal:
            member.status, member.reason = "invalid", clause(refusal)
        return True

    def _look(self, able: Able, *, is_drawn: bool) -> None:
        member, best = able.member, self.best
        probe = probe_of(deployed(self.space.scenario, member.overrides, able.replicas))
        finishable = probe.finishable
        is_steady = finishable is not None and probe.is_steady
        most = 0.0 if finishable is None else highest_promised(finishable)
        least = None if best is None or best.held is None or is_drawn or not is_steady else best.held.load / NEAR_BEST
        if least is not None and most <= least:
            member.status, member.reason = "not_better", "finishes too little to sustain what the best does"
            return
        if least is not None and self._add(able, probe, least, LOOK_REQUESTS).margin >= 0:
            self._add(able, probe, most, LOOK_REQUESTS)
        elif is_steady and least is None:
            for share in SHARES:
                before = able.looks[-1] if able.looks else None
                self._add(able, probe, share * most, _needed(probe, before, share * most, LOOK_REQUESTS))
        elif least is None:
            self._double(able, probe)
        self._close_in(able, probe)
        if able.held is not None:
            member.status = "holds"
        elif least is not None:
            member.status, member.reason = "not_better", "does not hold near the load of the best"
        else:
            unit = "clients" if self.is_closed else "requests/s"
            member.status, member.reason = "misses", f"misses the SLO even at {able.looks[0].load:.3g} {unit}"

    def _double(self, able: Able, probe: LoadProbe) -> None:
        """Look at loads that double until two fail, or more clients bring nothing."""
        scenario = self.space.scenario
        load = float(able.replicas) if self.is_closed else load_of(scenario, own_traffic(scenario)) / 2**4
        most = float(len(own_traffic(scenario))) if self.is_closed and scenario.workload.trace is not None else math.inf
        failed, reached = 0, 0.0
        for _ in range(MOST_DOUBLINGS):
            look = self._add(able, probe, min(load, most), LOOK_REQUESTS)
            failed += look.margin < 0
            is_full = self.is_closed and look.trial.output_throughput <= MORE_THROUGHPUT * reached
            if failed == 2 or is_full or load >= most:
                return
            load, reached = 2 * load, look.trial.output_throughput

    def _close_in(self, able: Able, probe: LoadProbe) -> None:
        """Look between the highest holding load and the next one, on a line through their margins.

        What holds in a run that is too short to settle is run again, longer.
        """
        while (held := able.held) is not None:
            needed = _needed(probe, held, held.load, CLOSE_REQUESTS)
            if held.num_requests < needed:
                self._add(able, probe, held.load, needed)
                continue
            above = next((look for look in able.looks if look.load > held.load), None)
            if above is None or above.load <= CLOSE * held.load:
                return
            part = held.margin / (held.margin - above.margin) if math.isfinite(held.margin) else 0.5
            part = min(max(part, 0.15), 0.85)
            load = held.load * (above.load / held.load) ** part
            if self.is_closed:
                load = float(round(load))
                if not held.load < load < above.load:
                    return
            self._add(able, probe, load, needed)

    def _add(self, able: Able, probe: LoadProbe, load: float, num_requests: int) -> Look:
        trial = probe(load, 0, num_requests)
        margin = Level(load=load, trials=(trial,)).margin(probe.slo.attainment)
        if self.search.goal.confidence is not None:
            margin = min(margin, quantile(trial.probability) - quantile(self.search.goal.confidence))
        bare = replace(trial, met=np.zeros(0, dtype=np.bool_))
        look = Look(load=load, margin=margin, trial=bare, num_requests=num_requests)
        able.looks = sorted([*(each for each in able.looks if each.load != load), look], key=lambda each: each.load)
        return look


_OF_A_POOL = (GPU, FORMAT, *SIZE_KEYS, "engine")
"""Keys of the deployment that a pool of equal replicas sets for itself."""


def _shared(able: Sequence[Able]) -> dict[str, Any]:
    """Return the changes that deployments share, except what their pools say: the KV format, drafts, routing."""
    first, *others = (each.member.overrides for each in able)
    own = tuple(f"deployment.{key}" for key in _OF_A_POOL)
    return {
        key: value
        for key, value in first.items()
        if not key.startswith(own) and all(key in each and each[key] == value for each in others)
    }


def _needed(probe: LoadProbe, look: Look | None, load: float, least: int) -> int:
    """Return the requests of a run that settles at a load, by a look at this or another, within the limit of looks."""
    if look is None or probe.finishable is None or not probe.is_steady or math.isnan(look.trial.in_flight):
        return least
    in_flight = look.trial.in_flight * (load / look.load)
    return min(max(least, settled_requests(load / probe.finishable.rate, in_flight)), MOST_REQUESTS)


def able_group(space: Space, goal: Goal, num_settings: int, tell: Tell | None = None) -> list[Able]:
    """Return what every deployment on a kind of GPU can do, by short looks."""
    return _Group(space, goal, num_settings, tell).run()


def mixed_group(space: Space, goal: Goal, num_settings: int, beside: Sequence[Able]) -> list[Able]:
    """Return what fleets of several kinds of GPU can do: a role on each, or equal replicas of each side by side."""
    return _Group(space, goal, num_settings).run_side_by_side(beside)


def value_of(look: Look | None, *, is_closed: bool) -> float:
    """Return what to maximize: for open arrivals the load, as all answer the same requests; else output tokens/s."""
    if look is None:
        return 0.0
    return look.trial.output_throughput if is_closed else look.load


def contenders(able: Sequence[Able], *, is_closed: bool) -> list[Able]:
    """Return the deployments that short looks cannot distinguish from the best, best first.

    Of those that differ in engine knobs alone, only one. With open arrivals the best layout has two, where another
    setting holds by more at nearly the same load: a setting that barely holds in one run may not hold in the next.
    """
    held = sorted(
        (each for each in able if each.held is not None), key=lambda each: -value_of(each.held, is_closed=is_closed)
    )
    found: dict[str, list[Able]] = {}
    for each in held:
        if value_of(each.held, is_closed=is_closed) * NEAR_BEST >= value_of(held[0].held, is_closed=is_closed):
            laid = {key: value for key, value in each.member.overrides.items() if not key.startswith(KNOBS)}
            pools = laid.get(POOLS_KEY) or ()
            laid[POOLS_KEY] = [{key: pool[key] for key in sorted(pool) if key != "engine"} for pool in pools]
            found.setdefault(f"{each.hardware} {sorted(laid.items(), key=str)}", []).append(each)
    chosen = [alike[0] for alike in found.values()][:CONTENDERS]
    if chosen and not is_closed:
        surest = _surest(next(iter(found.values())))
        chosen[1:1] = [] if surest is chosen[0] else [surest]
    return chosen


def _surest(alike: Sequence[Able]) -> Able:
    """Return the deployment with the largest margin among those that hold about as much as the first, the best."""
    most = value_of(alike[0].held, is_closed=False)
    looks = [(each.held, each) for each in alike]
    near = [(look.margin, each) for look, each in looks if look is not None and look.load * WORTH_A_SEARCH >= most]
    return max(near, key=lambda pair: pair[0])[1]


def find_load(scenario: Scenario, able: Able, confidence: float | None, least: float | None = None) -> Able:
    """Return a deployment with its load as `simserve capacity` finds it.

    Args:
        confidence: Share of real servers that must sustain a load; None: it must hold as simulated.
        least: Requests/s at which steady traffic must hold for the load to be found; None: it is always found.
    """
    there = deployed(scenario, able.member.overrides, able.replicas)
    if least is not None and confidence is None:
        probe = probe_of(there)
        if probe.is_steady and probe.finishable is not None:
            asked = probe.slo.attainment
            if not is_load_sustained(probe, WORTH_A_SEARCH * least, asked=asked, finishable=probe.finishable).holds:
                return able
    return replace(able, capacity=capacity(there, confidence=confidence))


def done(able: Able, confidence: float | None) -> Level | None:
    """Return the runs of a contender at the load that counts; None where it holds at no load, or none was found.

    That is the highest load that holds; with a confidence, the highest that holds on that share of real servers.
    """
    if able.capacity is None:
        return None
    found, sure = able.capacity.found, able.capacity.sustained
    level = found.level(found.largest.value)
    if confidence is not None:
        if sure is None or sure.load is None or sure.trial is None:
            return None
        level = Level(load=sure.load, trials=(sure.trial,))
    return level if level is not None and level.load else None


@dataclass(kw_only=True)
class Throughput:
    """What fixed GPUs can do, as far as it was found."""

    asked: Findings
    """What was asked: the scenario, whose seed draws the requests that determine the load of the best, and the GPUs
    that are available."""
    market: Market  # Where GPUs are bought.
    spaces: Sequence[Space]  # What may be deployed, by kind of GPU, with the requests that the search draws.
    able: list[Able] = field(default_factory=list)  # Every deployment that was judged.
    best: Able | None = None  # The one that does the most; None: nothing holds, or no load was found.

    @property
    def scenario(self) -> Scenario:
        """What was asked."""
        return self.asked.scenario

    @property
    def goal(self) -> Goal:
        """The GPUs that are available."""
        return self.asked.goal

    @property
    def is_closed(self) -> bool:
        """Whether load is a number of clients."""
        return is_closed_loop(self.scenario)

    def find(self, each: Each, num_settings: int) -> None:
        """Find what every deployment can do, then the load of the contenders.

        Args:
            each: Runs a function over tasks, as `simserve.planner.workers.each_result` does, said in words.
            num_settings: Most settings of engine knobs that are tried on a kind of GPU.
        """
        tasks: list[tuple[Any, ...]] = [(space, self._alone(space), num_settings) for space in self.spaces]
        for found in each(able_group, tasks, "deployments", reports=True):
            self.able += found
        by_hardware = {space.scenario.deployment.hardware: space for space in self.spaces}
        if self.goal.gpus_by_kind:
            mixed = mixed_space(self.spaces) or replace(self.spaces[0], roles=None)
            by_hardware[MIXED.join(self.goal.gpus_by_kind)] = mixed
            (found,) = each(mixed_group, [(mixed, self.goal, num_settings, self.able)], "several kinds of GPU together")
            self.able += found
        chosen = contenders(self.able, is_closed=self.is_closed)
        confidence, most = self.goal.confidence, 0.0
        # The first two one after the other: their loads save searches of the others.
        for batch in (chosen[:1], chosen[1:2], chosen[2:]):
            least = most if most and not self.is_closed else None
            tasks = [(by_hardware[able.hardware].scenario, able, confidence, least) for able in batch]
            for able, tried in zip(batch, each(find_load, tasks, "their highest load"), strict=True):
                self.able[next(place for place, other in enumerate(self.able) if other is able)] = tried
                if (reached := done(tried, confidence)) is not None:
                    value = reached.mean("output_throughput") if self.is_closed else reached.load
                    self.best, most = (tried, value) if value > most else (self.best, most)
        if self.best is not None:
            self._find_again(each, by_hardware[self.best.hardware].scenario, self.best)

    def _find_again(self, each: Each, searched: Scenario, best: Able) -> None:
        """Find the load of the best with requests drawn by the scenario's own seed, where the search had another."""
        own = with_seed(searched, self.scenario.run.seed)
        if own is searched:
            return
        (again,) = each(find_load, [(own, best, self.goal.confidence)], "the load of the best")
        if done(again, self.goal.confidence) is not None:
            self.able[next(place for place, other in enumerate(self.able) if other is best)] = again
            self.best = again

    def _alone(self, space: Space) -> Goal:
        """Return the goal for one kind of GPU: as many as are available of it."""
        there = self.goal.gpus_by_kind
        return replace(
            self.goal, max_gpus=there.get(space.scenario.deployment.hardware, self.goal.max_gpus), gpus_by_kind={}
        )

    def summary(self) -> dict[str, Any]:
        """Return what `simserve plan --objective throughput --json` prints."""
        asked = objective(self.scenario)
        assert asked is not None  # as the plan required
        best = None if self.best is None else self._best(self.best)
        limits = {name: getattr(asked, name) for name in TERMS}
        limits = {name: value for name, value in limits.items() if name in NAMED_TERMS or value is not None}
        return {
            "warnings": self._warnings(),
            "feasible": best is not None,
            "scenario": self.scenario.name,
            "seed": self.scenario.run.seed,
            "objective": self.goal.objective,
            "slo": objective_mapping(self.scenario),
            "judged": {
                "by": "requests",
                "share": asked.attainment,
                "limits_ms": {name: None if value is None else MS * value for name, value in limits.items()},
                "words": judged_words(asked.attainment),
            },
            "load": "closed" if self.is_closed else "open",
            "max_gpus": self.goal.max_gpus,
            "gpus_by_kind": dict(self.goal.gpus_by_kind),
            "spare_replicas": self.goal.spare_replicas,
            "market": self.market,
            "confidence": self.goal.confidence,
            "kept": list(self.asked.kept),
            "best": best,
            "binding": None if self.best is None or self.best.capacity is None else self.best.capacity.binding,
            "candidates": [self._candidate(each) for each in self.able],
            "pareto": self._pareto(),
            "nearest_miss": None if best is not None else self._miss(),
            "search": {
                "combinations": sum(space.size for space in self.spaces),
                "looked_at": len(self.able),
                "by_status": dict(Counter(each.member.status for each in self.able)),
                "simulations": sum(len(each.looks) for each in self.able),
                "hardware": [space.scenario.deployment.hardware for space in self.spaces],
                "skipped": dict(self.asked.skipped),
                "left_out": {} if not self.spaces else dict(self.spaces[0].left_out),
            },
        }

    def _best(self, able: Able) -> dict[str, Any]:
        level, capacity_found = done(able, self.goal.confidence), able.capacity
        assert level is not None  # it is the best
        assert capacity_found is not None
        there = self._deployed(able)
        throughput, tpot = level.mean("output_throughput"), level.mean("mean_tpot")
        sure, makeup = capacity_found.sustained, able.member.makeup
        assert makeup is not None  # it was run
        changes = plain(deployed_overrides(self.scenario, able.member.overrides, able.replicas))
        hourly = makeup.usd_per_hour(able.replicas + self.goal.spare_replicas)
        usd = hourly if math.isfinite(hourly) else None
        key = capacity_found.load_key
        return {
            "label": describe(there),
            "formats": resolve(there).formats,
            "hardware": able.hardware,
            "deployment": there.as_mapping()["deployment"],
            "overrides": changes,
            "command": command(self.asked.reference, changes | self._load_change(level.load)),
            "assumes": drafts_assumed(self.scenario, there),
            "replicas": able.replicas,
            "num_gpus": able.num_gpus,
            f"max_{key}": capacity_found.summary[f"max_{key}"],
            f"max_{key}_90": capacity_found.summary[f"max_{key}_90"] if self.goal.confidence in (None, 0.9) else None,
            key: round(level.load) if self.is_closed else level.load,
            "output_throughput": throughput,
            "tokens_per_second_per_gpu": throughput / self.goal.max_gpus,
            "tokens_per_second_per_user": 1 / tpot,
            "attainment": or_null(level.attainment),
            "by_metric": {name: or_null(value) for name, value in level.by_metric.items()},
            "p95_ttft_ms": or_null(MS * level.mean("p95_ttft")),
            "p95_tpot_ms": or_null(MS * level.mean("p95_tpot")),
            "mean_tpot_ms": or_null(MS * tpot),
            "probability": or_null(level.mean("probability")),
            "probability_basis": None if sure is None else sure.basis,
            "usd_per_hour": usd,
            "usd_per_million_output_tokens": None if usd is None else usd / (throughput * 3600) * 1e6,
            "requests": capacity_found.summary["requests"],
        }

    def _warnings(self) -> list[str]:
        """Return the warnings that lead the answer: what is assumed of the model and of the best deployment."""
        if self.best is None:
            return assumed_architectures(self.scenario)
        return leading_warnings(self._deployed(self.best))

    def _deployed(self, able: Able) -> Scenario:
        return deployed(self.scenario, able.member.overrides, max(able.replicas, 1))

    def _load_change(self, load: float) -> dict[str, Any]:
        """Return the change that sets the load, where one key does."""
        arrivals = self.scenario.workload.arrivals
        for key, value in (("concurrency", round(load)), ("rate", float(f"{load:.4g}"))):
            if hasattr(arrivals, key):
                return {f"workload.arrivals.{key}": value}
        return {}

    def _candidate(self, able: Able) -> dict[str, Any]:
        held, is_found = able.held, able.capacity is not None
        reached = done(able, self.goal.confidence)
        throughput = held.trial.output_throughput if held is not None else None
        load, tpot = (None, None) if held is None else (held.load, held.trial.mean_tpot)
        if reached is not None:
            load, throughput, tpot = reached.load, reached.mean("output_throughput"), reached.mean("mean_tpot")
        key = "concurrency" if self.is_closed else "rate"
        return {
            "hardware": able.hardware,
            "label": describe(self._deployed(able)) if able.replicas else None,
            "overrides": plain(able.member.overrides),
            "status": "best" if able is self.best else able.member.status,
            "reason": able.member.reason,
            "replicas": able.replicas,
            "num_gpus": able.num_gpus,
            "is_promised": is_found and reached is not None,
            key: load,
            "output_throughput": throughput,
            "tokens_per_second_per_gpu": None if throughput is None else throughput / self.goal.max_gpus,
            "tokens_per_second_per_user": None if not tpot or math.isnan(tpot) else 1 / tpot,
        }

    def _points(self) -> Iterator[tuple[Able, Look]]:
        """Yield every load of every deployment at which queues do not grow and first tokens come in time."""
        asked = objective(self.scenario)
        share = 0.0 if asked is None else asked.attainment
        for able in self.able:
            for look in able.looks:
                trial = look.trial
                is_in_time = trial.by_metric.get("ttft", 1.0) >= share
                has_settled = trial.stability == "stable" and trial.has_settled is not False
                if has_settled and is_in_time and trial.mean_tpot > 0:
                    yield able, look
            if able.capacity is not None:
                found = able.capacity.found
                level = found.level(found.largest.value)
                if level is not None and level.mean("mean_tpot") > 0:
                    look = Look(load=level.load, margin=0.0, trial=level.trials[0], num_requests=found.num_requests)
                    yield able, look

    def _pareto(self) -> list[dict[str, Any]]:
        """Return the Pareto front of loads in tokens/s a GPU and tokens/s a user, the fastest for a user first."""
        key = "concurrency" if self.is_closed else "rate"
        points = [
            ((-1 / look.trial.mean_tpot, -look.trial.output_throughput / self.goal.max_gpus), (able, look))
            for able, look in self._points()
        ]
        return [
            {
                "label": describe(self._deployed(able)),
                "overrides": plain(able.member.overrides),
                "hardware": able.hardware,
                key: look.load,
                "tokens_per_second_per_gpu": look.trial.output_throughput / self.goal.max_gpus,
                "tokens_per_second_per_user": 1 / look.trial.mean_tpot,
                "p95_ttft_ms": or_null(MS * look.trial.p95_ttft),
                "p95_tpot_ms": or_null(MS * look.trial.p95_tpot),
                "holds": look.margin >= 0,
                "assumes": drafts_assumed(self.scenario, self._deployed(able)),
            }
            for able, look in front(points)
        ]

    def _miss(self) -> dict[str, Any]:
        """Return the nearest miss, where nothing holds."""
        asked, looked = objective(self.scenario), [each for each in self.able if each.looks]
        if looked:
            nearest = max(looked, key=lambda each: each.looks[0].margin)
            reached = nearest.looks[0].trial
            if self.goal.confidence is not None and asked is not None and reached.attainment >= asked.attainment:
                return {
                    "metric": "confidence",
                    "label": describe(self._deployed(nearest)),
                    "highest_probability": reached.probability,
                    "relax": f"--confidence {math.floor(100 * reached.probability) / 100:g} at most, or wider limits",
                }
            shares = nearest.looks[0].trial.by_metric
            metric = min(shares, key=lambda name: shares[name]) if shares else "slo"
            return {
                "metric": metric,
                "label": describe(self._deployed(nearest)),
                "attainment": or_null(nearest.looks[0].trial.attainment),
                "relax": f"a wider limit on {metric.upper()}: {nearest.member.reason}",
            }
        refused = next((each.member for each in self.able if each.member.status == "out_of_reach"), None)
        if refused is not None:
            relax = f"wider limits, or other GPUs: {refused.reason}"
            return {"metric": refused.bound.out_of_reach, "label": None, "relax": relax}
        reasons = Counter(each.member.reason for each in self.able if each.member.reason).most_common(1)
        reason = reasons[0][0] if reasons else "nothing was looked at"
        return {"metric": "memory", "label": None, "relax": f"more GPUs, or fewer bits: {reason}"}


def judged_words(share: float) -> str:
    """Return in words how an SLO is judged."""
    return (
        f"each request is judged by its own latencies, and {100 * share:g}% of them must keep every limit: "
        "percentiles, not means"
    )


__all__ = ["Able", "Look", "Throughput", "able_group", "contenders", "done", "find_load"]
