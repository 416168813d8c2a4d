"""What to deploy for a scenario's traffic at its SLO: the search over every kind of GPU, confirmed and explained.

Searches each kind of GPU by itself (`simserve.planner.search.search`), confirms the best fleet on all requests of the
scenario in several replications, then looks at it with more traffic, other lengths and a replica lost.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from simserve.errors import InputError, ScenarioError, UsageError
from simserve.planner.capacity.level import Promise
from simserve.planner.capacity.probe import REMEDY, check_load
from simserve.planner.overrides import Overrides, with_overrides, with_seed
from simserve.planner.plan.findings import Findings
from simserve.planner.plan.fleet import (
    Fleet,
    changes_of,
    confirm,
    confirmed_or_none,
    month_of,
    one_fewer,
    resized_or_refused,
    traffic_sustained,
    with_room,
)
from simserve.planner.plan.infeasible import Miss, nearest_miss, shown, stopped_miss, unconfirmed_miss
from simserve.planner.plan.levers import LEVERS, Lever, format_levers, levers_of, option_levers, single_changes
from simserve.planner.plan.options import PlanOptions, check_options
from simserve.planner.plan.price import price_of
from simserve.planner.plan.purchase import check_horizon, purchase_of
from simserve.planner.plan.roles import link_limits, role_limits
from simserve.planner.plan.runners import front_candidates, sized
from simserve.planner.plan.summary import summary_of
from simserve.planner.plan.thresholds import check_autoscaler, thresholds_of
from simserve.planner.plan.throughput import Throughput
from simserve.planner.plan.watch import Progress, Stage, Watch, best_in_words, worth
from simserve.planner.scaling import scaled_traffic
from simserve.planner.search.deciding_run import promise_of
from simserve.planner.search.equals import ranked
from simserve.planner.search.member import Goal, GroupResult, Member
from simserve.planner.search.order import EQUAL, Value, is_less
from simserve.planner.search.roles import (
    KnownWorkers,
    fronts,
    has_role_search,
    mixed_space,
    price_workers,
    search_mixed,
    search_roles,
    unit_cost,
)
from simserve.planner.search.search import (
    Search,
    best_on,
    held_neighbours,
    held_on,
    joined,
    refine_group,
    renewed,
    search_group,
    stopped_result,
)
from simserve.planner.search.trial import Trial, deployed, has_conversations, is_one_job, is_short, is_uneven
from simserve.planner.space.makeup import replicas_of
from simserve.planner.space.roles import is_split
from simserve.planner.space.space import GPUS, REPLICAS, Space, default_hardware, kept_of, space_on
from simserve.planner.space.traffic import traffic_of
from simserve.planner.workers import each_result
from simserve.profiles.hardware import hardware_name, load_hardware
from simserve.scenario.formats import with_stored_format
from simserve.scenario.resolve import replica_shape
from simserve.scenario.schema import Scenario, objective

_SearchKinds = Callable[[Sequence[Space], Sequence[int]], list[float]]

MAX_GPUS = 256
CONFIRMED_AT_MOST = 12  # Most fleets that are confirmed until one holds in every respect.
AGAIN_AT_MOST = 3
"""Most repeated searches up to the price of what was confirmed, where cheaper fleets held but failed to be
confirmed."""
UNCONFIRMED = "held in the search, but not when it was confirmed"
UNSURE = "held in the search, but is no surer to hold than one that was not confirmed"
SEARCH_SEED = 1
"""Seed of the runs that decide which fleet is picked, whatever ``run.seed`` says: asking again with another seed asks
about the same problem. ``run.seed`` draws the runs that confirm the pick, and the figures reported of it."""
CEILING = 3.0
"""A kind of GPU is sized up to this multiple of the best plan on those searched before it; where a run is long, up to
1."""
FIRST_KINDS = 4
"""Kinds of GPU that are searched right after the scenario's own: those with the most arithmetic for what is minimised.
What they need is the ceiling of all others. The number is the same for any number of processes, and so is the plan."""
ARITHMETIC = ("bf16", "fp16", "fp8", "fp4", "int8")  # Types in which weight formats compute.


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to deploy.

    Attributes:
        summary: What ``simserve plan --json`` prints.
        was_interrupted: The user stopped the search; the plan is the best found so far.
    """

    summary: Mapping[str, Any]
    was_interrupted: bool = False

    @property
    def is_feasible(self) -> bool:
        """Whether any fleet holds."""
        return bool(self.summary["feasible"])


def plan(
    scenario: Scenario,
    options: PlanOptions | None = None,
    *,
    reference: Sequence[str] = (),
    progress: Progress | None = None,
    on_stage: Stage | None = None,
    search_seed: int = SEARCH_SEED,
) -> Plan:
    """Return what to deploy for a scenario's traffic at its SLO.

    The pick is a property of the problem: its search draws requests from its own seed. The scenario's seed draws the
    runs that confirm the pick, in which it must hold, and its figures. Ctrl-C ends the search early: the plan is then
    the best found so far, not confirmed.

    Args:
        scenario: Traffic, model, SLO, and a deployment to start from.
        options: What is searched, and for what.
        reference: What follows ``simserve run`` to run this scenario, for the command that reproduces the plan.
        progress: Called now and then.
        on_stage: Called before ``progress``, with what is being done and the best fleet so far.
        search_seed: Seed of the deciding runs, to test whether other seeds make the same choice.

    Raises:
        UsageError: An option is out of range, or does not fit the scenario.
        InputError: A profile or a trace is missing or invalid.
    """
    planning = _Planning(scenario, options or PlanOptions(), reference, Watch(progress, on_stage), search_seed)
    return planning.throughput() if planning.goal.objective == "throughput" else planning.plan()


@dataclass(frozen=True, slots=True, eq=False)
class _Open:
    """A fleet that may be confirmed: its value, the index of its space, its replicas, and its deployment."""

    value: Value
    index: int
    replicas: int
    member: Member

    @property
    def is_searched(self) -> bool:
        """Whether the search ran exactly this fleet, rather than one with a replica less."""
        return self.replicas == self.member.run.replicas


class _Planning:
    """One plan being made."""

    def __init__(
        self, scenario: Scenario, options: PlanOptions, reference: Sequence[str], watch: Watch, search_seed: int
    ) -> None:
        check_options(options)
        scenario = with_stored_format(scenario)
        self.scenario = scenario
        self.options = options
        self.goal = _goal(scenario, options)
        self.reference = tuple(reference)
        self.planned = _with_headroom(scenario, options.headroom)
        self.search_seed = search_seed
        self.searched = with_seed(self.planned, search_seed)
        if options.horizon is not None:
            check_horizon(scenario)
        if options.autoscaler:
            check_autoscaler(scenario)
        self.findings = Findings(
            scenario=scenario, planned=self.planned, goal=self.goal, reference=self.reference, kept=options.keep
        )
        self._watch = watch
        self._equals: list[tuple[int, Member]] = []
        self._confirmed: dict[str, tuple[Fleet, Trial]] = {}
        self._passed: dict[str, _Open] = {}
        self._picked: _Open | None = None
        self._shapes: list[GroupResult] = []
        self._places: list[int] = []  # Index of the space of each group, ascending.
        self._so_far: dict[int, tuple[int, Member | None]] = {}

    def plan(self) -> Plan:
        was_interrupted, scaled = False, None
        try:
            self._find()
            if self.options.autoscaler:
                searched = replace(self.findings, planned=self.searched)
                scaled = next(self._each(thresholds_of, [(searched,)], "autoscaler thresholds"))
        except KeyboardInterrupt:
            was_interrupted = True
            self._settle()
        summary = summary_of(self.findings, headroom=self.options.headroom, market=self.options.market)
        if self.options.horizon is not None:
            try:
                summary["purchase"] = purchase_of(self.findings, summary, self.options.horizon)
            except KeyboardInterrupt:
                summary["purchase"], was_interrupted = None, True
        if self.options.autoscaler:
            summary["autoscaling"] = scaled
        return Plan(summary={**summary, "interrupted": was_interrupted}, was_interrupted=was_interrupted)

    def throughput(self) -> Plan:
        """Return what fixed GPUs can do."""
        found = Throughput(asked=self.findings, market=self.options.market, spaces=self._spaces())
        was_interrupted = False
        try:
            found.find(self._each, self.options.trials)
        except KeyboardInterrupt:
            was_interrupted = True
        return Plan(summary={**found.summary(), "interrupted": was_interrupted}, was_interrupted=was_interrupted)

    def _find(self) -> None:
        found = self.findings
        spaces = self._spaces()
        self._close(spaces, self._search_shapes(spaces), self._search_shapes)
        self._close(spaces, self._refine(spaces), self._refine)
        if self._split(spaces):
            self._choose(spaces)
        if any(group.best for group in found.groups):
            self._settle_equals(spaces)
            self._choose(spaces)
        if found.fleet is not None:
            self._look_around(spaces, found.fleet)
        elif found.confirmations:
            found.miss = unconfirmed_miss(found.confirmations, found.groups, self.planned, self.goal)
        else:
            found.miss = self._missed(spaces)

    def _close(self, spaces: Sequence[Space], limits: list[float], search: _SearchKinds) -> None:
        """Confirm the best, then search again each kind of GPU whose search stopped below the value confirmed.

        A search leaves out what is more expensive than the best it knows. If that best fails to be confirmed, fleets
        between the two were passed over; if nothing was confirmed, so was every more expensive one. From here on the
        searches know what failed.

        Args:
            limits: The value up to which each was searched.
            search: Searches some kinds again, up to the value of what was confirmed, and returns the new limits.
        """
        self._choose(spaces)
        for _ in range(AGAIN_AT_MOST):
            places = [place for place, limit in enumerate(limits) if self._is_below(limit)]
            if not places:
                return
            for place, limit in zip(places, search(spaces, places), strict=True):
                limits[place] = limit
            self._choose(spaces)

    def _choose(self, spaces: Sequence[Space]) -> None:
        """Confirm the best of what holds, equals in their order; what failed no longer counts as holding."""
        found, known = self.findings, self._confirmed
        if any(group.best for group in found.groups):
            self._confirm(spaces)
        if self._picked is None and not self._passed:
            return
        passed = {
            fleet: each for fleet, each in self._passed.items() if fleet in known or self._is_below(each.value[0])
        }
        self.goal = replace(self.goal, refused=self.goal.refused | passed.keys())
        for fleet, each in passed.items():
            each.member.status, each.member.reason = "misses", UNCONFIRMED if fleet in known else UNSURE
            each.member.trial = replace(each.member.run, holds=False)
        for index, (space, group) in enumerate(zip(spaces, found.groups, strict=True)):
            found.groups[index] = replace(group, best=best_on(Search(space, self.goal), group))
        if self._picked is not None:
            found.group = found.groups[self._picked.index]

    def _is_below(self, value: float) -> bool:
        """Return whether a value is better than that of what was confirmed; where all failed, any finite value is."""
        if self._picked is None:
            return bool(self._passed) and math.isfinite(value)
        return is_less((value, 0.0), (self._picked.value[0], 0.0))

    def _seen_to(self, spaces: Sequence[Space], groups: Sequence[GroupResult], limits: Sequence[float]) -> list[float]:
        """Return the value up to which each search has looked: its limit, or its best value if that is lower."""
        worth = [
            math.inf if group.best is None else Search(space, self.goal).value(group.best.run)[0]
            for space, group in zip(spaces, groups, strict=True)
        ]
        return [min(each) for each in zip(worth, limits, strict=True)]

    def _search_shapes(self, spaces: Sequence[Space], places: Sequence[int] | None = None) -> list[float]:
        """Search the shapes of kinds of GPU up to the value of what was confirmed, without what failed.

        Where nothing was confirmed, the first kind, the scenario's own, is searched first, then those that promise
        most: what costs several times the best of them is not worth sizing.

        Args:
            places: Indices of the kinds that are searched; None: all.

        Returns:
            The value up to which each was searched.
        """
        places, ceiling = range(len(spaces)) if places is None else places, self._ceiling()
        if math.isfinite(ceiling):
            return self._search_up_to(spaces, places, replace(self.goal, ceiling=ceiling, is_tight=True))
        is_tight, limits = not is_short(self.searched), dict.fromkeys(places, math.inf)
        ranked_places = sorted(places[1:], key=lambda place: _cost_of_arithmetic(spaces[place], self.goal))
        best = math.inf
        for wave in (places[:1], sorted(ranked_places[:FIRST_KINDS]), sorted(ranked_places[FIRST_KINDS:])):
            goal = replace(self.goal, ceiling=best * (1.0 if is_tight else CEILING), is_tight=is_tight)
            limits |= dict(zip(wave, self._search_up_to(spaces, wave, goal), strict=True))
            known = zip(self._places, self.findings.groups, strict=True)
            best = min(_best_value(spaces[place], group, self.goal) for place, group in known)
        return [limits[place] for place in places]

    def _search_up_to(self, spaces: Sequence[Space], places: Sequence[int], goal: Goal) -> list[float]:
        """Search the shapes of some kinds of GPU, with what is known of them; return the value up to which each was."""
        groups, again = self.findings.groups, []
        if not places:
            return []
        tasks = [(spaces[place], goal, *groups[self._group_of(place)]) for place in places]
        with self._kept(spaces, places):
            for place, found in zip(places, self._each(search_group, tasks, _on(tasks), reports=True), strict=True):
                again.append(found)
                at = self._group_of(place)
                known = [renewed(Search(spaces[place], self.goal), each, found) for each in groups[at]]
                groups[at] = known or [found]
                self._shapes[at] = [found]
                self._places[at] = [place]
        return self._seen_to([spaces[place] for place in places], again, [goal.ceiling for _ in places])

    def _group_of(self, place: int) -> slice:
        """Return where among the groups that of a space is; an empty slice if it has none yet."""
        at = bisect_left(self._places, place)
        return slice(at, at + (place in self._places[at : at + 1]))

    def _ceiling(self) -> float:
        """Return the value of what was confirmed; infinite for latency, or without one."""
        return math.inf if self._picked is None or self.goal.objective == "latency" else self._picked.value[0]

    def _each(
        self, function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], doing: str, *, reports: bool = False
    ) -> Iterator[Any]:
        """Yield the results of tasks in their order, and tell what is being done.

        Args:
            doing: What they do, in words.
            reports: Whether the function tells how far its search is.
        """
        self._so_far = {}
        if not tasks:
            return
        self._watch.begin(len(tasks), doing, self._best_in_words)

        def report(place: int, so_far: tuple[int, Member | None]) -> None:
            self._so_far[place] = so_far
            self._watch.within(doing, self._best_in_words, sum(number for number, _ in self._so_far.values()))

        for result in each_result(function, tasks, self.options.jobs, report if reports else None):
            self._watch.done(doing, self._best_in_words)
            yield result

    @contextmanager
    def _kept(self, spaces: Sequence[Space], places: Sequence[int]) -> Iterator[None]:
        """Keep the best, or else the nearest miss, of searches of kinds of GPU that are stopped before their end."""
        try:
            yield
        except KeyboardInterrupt:
            groups = self.findings.groups
            for place, (_, so_far) in self._so_far.items():
                if so_far is None:
                    continue
                space, at = spaces[places[place]], self._group_of(places[place])
                found = stopped_result(space, so_far)
                for group in groups[at]:
                    if so_far.run.holds or not any(so_far.key == each.key for each in group.members):
                        groups[at] = [joined(space, self.goal, group, found)]
                if at.start == at.stop:
                    groups[at], self._places[at] = [found], [places[place]]
            raise

    def _best_in_words(self) -> str:
        found = self.findings
        held = [group.best.run for group in found.groups if group.best is not None and group.best.trial is not None]
        held += [each.run for _, each in self._so_far.values() if each is not None and each.run.holds]
        return best_in_words(self.searched, self.goal.objective, held, found.confirmed)

    def _spaces(self) -> list[Space]:
        options, spaces = self.options, []
        for key, values in options.choices.items():
            for value in values:
                with_overrides(self.scenario, {key: value})  # An unknown key or value is refused here, by its name.
        replica_shape(self.scenario)  # A model, GPU or engine that is not known is refused here.
        traffic = traffic_of(self.searched)
        own_pools = any(pool.hardware is not None for pool in self.scenario.deployment.pools)
        kept = kept_of(options.keep, options.hardware, options.choices)
        own_hardware = [self.scenario.deployment.hardware] if own_pools or GPUS in options.keep else []
        for name in map(hardware_name, options.hardware or own_hardware or default_hardware(self.scenario)):
            price = price_of(self.scenario, name, options.market)
            if price.usd is None:
                if options.market == "spot":
                    self.findings.skipped[name] = "has no spot price"
                    continue
                if options.objective == "cost":
                    self.findings.skipped[name] = "has no price; set pricing.gpu_hour_usd"
                    continue
            space = space_on(
                self.searched,
                name,
                price.overrides,
                options.choices,
                traffic,
                wants_latency=options.objective == "latency",
                has_spares=options.spare_replicas > 0,
                kept=kept,
            )
            spaces.append(space)
        if own_pools and not options.hardware:
            self.findings.skipped["other GPUs"] = "the pools have hardware of their own; name others with --over"
        if spaces:
            self.findings.options, self.findings.left_out = spaces[0].options, dict(spaces[0].left_out)
        if not spaces:
            reasons = "; ".join(f"{name} {reason.partition(';')[0]}" for name, reason in self.findings.skipped.items())
            by_hand = "--set pricing.gpu_hour_usd=DOLLARS, or --objective gpus"
            remedy = "use on-demand prices" if options.market == "spot" else by_hand
            raise ScenarioError(f"nothing can be priced: {reasons}", remedy=remedy)
        return spaces

    def _refine(self, spaces: Sequence[Space], places: Sequence[int] | None = None) -> list[float]:
        """Search engine knobs and options as well, where a shape could still beat the best of all shapes.

        Args:
            places: Indices of the kinds that are searched; None: all.

        Returns:
            The value up to which each was searched; infinite where there was nothing but the shapes.
        """
        groups = self.findings.groups
        asked = range(len(groups)) if places is None else places
        order = [place for place in asked if self._shapes[place].method == "shapes"]
        limits = dict.fromkeys(asked, math.inf)
        while self.options.trials and order:
            values = [_best_value(space, group, self.goal) for space, group in zip(spaces, groups, strict=True)]
            goal = replace(self.goal, ceiling=min(values), is_tight=True)
            tasks = [(spaces[place], goal, self._shapes[place], self.options.trials, groups[place]) for place in order]
            with self._kept(spaces, order):
                again = list(self._each(refine_group, tasks, "engine settings", reports=True))
            for place, refined in zip(order, again, strict=True):
                groups[place] = joined(spaces[place], self.goal, groups[place], refined)
            seen = self._seen_to([spaces[place] for place in order], again, [goal.ceiling for _ in order])
            limits |= dict(zip(order, seen, strict=True))
            # Where nothing held, only a few shapes were refined; what holds now is a limit for all of them.
            if math.isfinite(goal.ceiling) or self.goal.objective == "latency" or not any(each.best for each in groups):
                break
            self._shapes = list(groups)
        return [limits[place] for place in asked]

    def _split(self, spaces: list[Space]) -> bool:
        """Search prefill and decode workers with shapes of their own, where they cost no more than the best.

        First on each kind of GPU, then with a kind for each role, which adds a kind of its own. Return whether any were
        found.
        """
        groups, able, costs, has_found = self.findings.groups, [], [], False
        ceiling, known = self._ceiling(), KnownWorkers()
        self._price_workers(spaces, replace(self.goal, ceiling=ceiling, is_tight=True), known)
        for index, space in enumerate(spaces):
            if not has_role_search(space, self.goal):
                continue
            goal, gpu = replace(self.goal, ceiling=ceiling, is_tight=True), space.scenario.deployment.hardware
            found = next(self._each(search_roles, [(space, goal, known)], f"prefill and decode workers on {gpu}"))
            groups[index] = joined(space, self.goal, groups[index], found)
            has_found |= bool(held_on(found))
            ceiling = min(ceiling, _best_value(space, found, goal))
            able.append(space)
            costs.append(found.role_costs)
        if len(able) < 2:
            return has_found
        goal = replace(self.goal, ceiling=ceiling, is_tight=True)
        mixed = mixed_space(able, costs, goal.ceiling)
        if mixed is None:
            return has_found
        names = [space.scenario.deployment.hardware for space in able]
        known = replace(known, least=dict(zip(names, costs, strict=True)))
        self._price_workers([mixed], goal, known)
        found = next(self._each(search_mixed, [(mixed, goal, known)], "prefill and decode workers on two GPUs"))
        if found.best is None:
            return has_found
        spaces.append(mixed)
        groups.append(found)
        return True

    def _price_workers(self, spaces: Sequence[Space], goal: Goal, known: KnownWorkers) -> None:
        """Let several processes price the workers of searches that then come one after another."""
        able = [space for space in spaces if has_role_search(space, self.goal)]
        tasks = [(space, goal, known, front) for space in able for front in fronts(space)]
        if self.options.jobs > 1:
            for priced in self._each(price_workers, tasks, "prices of prefill and decode workers"):
                known.workers.update(priced)

    def _promise(self, member: Member) -> Promise:
        """Return whether the fleet of a member's trial holds in fresh runs; evaluated once."""
        if member.promise is None:
            trial = member.run
            member.promise = trial.promise or self._promised(trial.overrides, trial.replicas)
        return member.promise

    def _promised(self, overrides: Overrides, replicas: int, *, is_picked: bool = False) -> Promise:
        tasks = [(self.searched, overrides, replicas, is_picked)]
        promise: Promise = next(self._each(promise_of, tasks, "confirming in fresh runs"))
        return promise

    def _settle_equals(self, spaces: Sequence[Space]) -> None:
        """Rank fleets of equal cost: headroom decides, then latency."""
        groups, goal = self.findings.groups, self.goal
        least = min(_best_value(space, group, goal) for space, group in zip(spaces, groups, strict=True))
        if goal.objective not in ("cost", "gpus") or not math.isfinite(least) or is_one_job(self.planned):
            return
        self._equals = [
            (index, member)
            for index, (space, group) in enumerate(zip(spaces, groups, strict=True))
            for member in held_on(group)
            if math.isclose(Search(space, goal).value(member.run)[0], least, rel_tol=EQUAL)
        ]
        self._rank()
        if self.options.trials and not is_split(self._equals[0][1].overrides):
            index, best = self._equals[0]
            asked = [(spaces[index], goal, best)]
            held = next(self._each(held_neighbours, asked, "fleets of the same price", reports=True))
            groups[index].members.extend(held)
            self._equals = [self._equals[0], *((index, member) for member in held), *self._equals[1:]]
            self._rank()
        index, best = self._equals[0]
        groups[index] = replace(groups[index], best=best)

    def _rank(self) -> None:
        order = ranked(self.searched, [member for _, member in self._equals])
        self._equals = [self._equals[place] for place in order]

    def _missed(self, spaces: Sequence[Space]) -> Miss:
        """Return the nearest miss, and the plan without the bounds that nothing can meet."""
        miss = nearest_miss(self.findings.groups, self.searched, self.goal)
        miss = replace(miss, drafted=self._drafted(spaces, miss))
        slo = self.scenario.slo
        if not miss.relaxed_terms or slo is None:
            return miss
        left = dict.fromkeys(miss.relaxed_terms)
        terms = {term: getattr(slo, term) for term in ("ttft", "tpot", "e2e")} | left
        if all(limit is None for limit in terms.values()):
            return miss
        relaxed = self.scenario.model_copy(update={"slo": slo.model_copy(update=left)})
        unset = (word for term in miss.relaxed_terms for word in ("--set", f"slo.{term}=null"))
        inner = _Planning(relaxed, self.options, (*self.reference, *unset), self._watch, self.search_seed)
        return replace(miss, relaxed_plan=inner.plan().summary)

    def _drafted(self, spaces: Sequence[Space], miss: Miss) -> Trial | None:
        """Return what the nearest deployment reaches with drafts, where a bound shows that it misses without them."""
        if miss.member is None or not miss.is_bound or miss.metric not in ("tpot", "e2e"):
            return None
        for space, group in zip(spaces, self.findings.groups, strict=True):
            choices = space.options.get("speculate", ())
            if miss.member not in group.members or len(choices) < 2:
                continue
            overrides = space.overrides({**space.chosen(miss.member.overrides), "speculate": choices[1]})
            try:
                return shown(overrides, miss.member.num_gpus, self.searched, self.goal)
            except InputError:
                return None
        return None

    def _confirm(self, spaces: Sequence[Space]) -> None:
        """Take the best fleet that holds on all requests and in several replications, with more replicas if need be.

        Whatever held in the search is tried, the best first. Where too many of them fail, only the best and the surest
        of each kind of GPU are, with more and more replicas.
        """
        groups = self.findings.groups
        bests = [(index, group.best) for index, group in enumerate(groups) if group.best is not None]
        surest = [(index, max(held_on(groups[index]), key=_surety)) for index, _ in bests]
        bests += [each for each, (_, best) in zip(surest, bests, strict=True) if each[1] is not best]
        known = {id(member) for _, member in self._equals}
        held = [(index, member) for index, group in enumerate(groups) for member in held_on(group)]
        others = [(index, member) for index, member in held if id(member) not in known]
        if not self._has_confirmed(spaces, [*self._equals, *others]):
            self._has_confirmed(spaces, bests)

    def _has_confirmed(self, spaces: Sequence[Space], members: Sequence[tuple[int, Member]]) -> bool:
        """Return whether one of the members, each with the index of its space, was confirmed; take the best such.

        Of equals, the first. A member that is no surer to hold than one that has since failed is left out: it would
        only cost a confirmation.
        """
        found, left = self.findings, CONFIRMED_AT_MOST
        open_fleets = [
            _Open(self._objective_of(spaces[index], member.run), index, member.run.replicas, member)
            for index, member in members
        ]
        while left and open_fleets:
            best = open_fleets[0]
            for each in open_fleets[1:]:
                if is_less(each.value, best.value):
                    best = each
            open_fleets.remove(best)
            known = len(self._confirmed)
            fleet, trial = self._confirmed_fleet(spaces, best)
            left -= len(self._confirmed) - known
            if trial.holds:
                found.fleet, found.confirmed, found.member = fleet, trial, best.member
                if not best.is_searched:
                    found.member = replace(best.member, status="holds", trial=trial, promise=fleet.promise)
                    found.groups[best.index].members.append(found.member)
                found.group, self._picked = found.groups[best.index], best
                return True
            failed = [best]
            # How sure a fleet is on real servers says nothing about other days: of uneven traffic, all are tried.
            if best.is_searched and not is_uneven(self.planned):
                failed += [
                    each for each in open_fleets if each.is_searched and not _may_be_surer(each.member, best.member)
                ]
                open_fleets = [each for each in open_fleets if each not in failed]
            self._passed |= {self._hash(spaces, each): each for each in failed}
            if best.replicas < Search(spaces[best.index], self.goal).most_replicas(best.member):
                value = self._objective_of(spaces[best.index], trial.of(best.replicas + 1))
                open_fleets.append(replace(best, value=value, replicas=best.replicas + 1))
        return False

    def _confirmed_fleet(self, spaces: Sequence[Space], tried: _Open) -> tuple[Fleet, Trial]:
        """Return a fleet and the run that confirms or refuses it; evaluated once."""
        key, member, replicas = self._hash(spaces, tried), tried.member, tried.replicas
        if key not in self._confirmed:
            fleet = Fleet(
                scenario=self.planned,
                overrides=member.overrides,
                replicas=replicas,
                confidence=self.goal.confidence,
                promise=self._promise(member) if tried.is_searched else self._promised(member.overrides, replicas),
            )
            trial = next(self._each(confirm, [(fleet,)], "confirming with the scenario's own seed"))
            if trial.holds and has_conversations(deployed(self.searched, member.overrides, replicas)):
                # The sixteen runs of conversations come last: most fleets fail earlier.
                promise = self._promised(member.overrides, replicas, is_picked=True)
                fleet, trial = replace(fleet, promise=promise), replace(trial, holds=promise.holds)
            self._confirmed[key] = fleet, trial
            self.findings.confirmations.append(trial)
        return self._confirmed[key]

    def _hash(self, spaces: Sequence[Space], tried: _Open) -> str:
        """Return what identifies a fleet, as in the search."""
        return deployed(spaces[tried.index].scenario, tried.member.overrides, tried.replicas).hash

    def _objective_of(self, space: Space, trial: Trial) -> Value:
        """Return what decides between fleets; once equals are ranked, the objective alone."""
        value = Search(space, self.goal).value(trial)
        return (value[0], 0.0) if self._equals else value

    def _settle(self) -> None:
        """Take the best so far, unconfirmed, where a search was stopped before any was confirmed; else the nearest."""
        found = self.findings
        if self._picked is not None:
            found.group = found.groups[self._picked.index]
        held = [(group.best, group) for group in found.groups if group.best is not None]
        if found.member is None and held:
            search = Search(self._spaces()[0], self.goal)
            found.member, found.group = min(held, key=lambda each: search.value(each[0].run))
        if found.member is None:
            found.miss = stopped_miss(found.groups, self.searched, self.goal)

    def _cheaper_once_measured(self) -> Fleet | None:
        """Return the cheapest fleet, below the plan's price, that lacks only a measurement to be as sure as asked."""
        trial = self.findings.confirmed
        assert trial is not None  # only a confirmed fleet is looked at
        asked = self.goal.confidence
        if asked is None:
            return None
        unsure = [each for group in self.findings.groups for each in group.trials if each.is_unsure]
        sure_then = [each for each in unsure if (each.probability_measured or 0.0) >= asked]
        cheapest = min(sure_then, key=partial(worth, "cost"), default=trial)
        if worth("cost", cheapest) >= worth("cost", trial):
            return None
        return Fleet(
            scenario=self.searched,
            overrides=cheapest.overrides,
            replicas=cheapest.replicas,
            confidence=asked,
            is_measured=True,
        )

    def _look_around(self, spaces: Sequence[Space], fleet: Fleet) -> None:
        """Fill in headroom, spare, sensitivity, levers and the front; each is its own task."""
        found = self.findings
        own = replace(fleet, scenario=self.scenario, promise=None)
        bought = replace(own, replicas=own.replicas + self.goal.spare_replicas)
        # Other sizes, formats and traffic are compared with what the search saw, so they get its requests.
        plain = replace(own, scenario=with_seed(self.scenario, self.search_seed))
        tasks: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
            (traffic_sustained, (own,)),
            (one_fewer, (plain,)),
            (month_of, (bought,)),
            (role_limits, (plain,)),
            (link_limits, (plain,)),
            (confirmed_or_none, (self._cheaper_once_measured(),)),
        ]
        changes = list(changes_of(plain.scenario))
        tasks += [(resized_or_refused, (with_room(plain, changed),)) for _, _, changed in changes]
        space = next(each for each, group in zip(spaces, found.groups, strict=True) if group is found.group)
        planned = replace(fleet, scenario=self.searched, promise=None)
        formats = format_levers(with_overrides(planned.scenario, planned.overrides))
        levers = [*levers_of(planned, [*formats, *LEVERS]), *option_levers(planned, space)]
        tasks += [(resized_or_refused, (replace(planned, overrides=overrides),)) for _, overrides in levers]
        tasks += [(sized, (*each, self.goal)) for each in front_candidates(found.groups, spaces, self.goal)]
        tasks.append((single_changes, (plain.scenario, spaces[0])))
        *results, found.singles = self._each(_call, tasks, "what would change the plan")
        found.sustained_traffic, found.fewer, found.month, found.roles, found.link, found.once_measured = results[:6]
        rest = iter(results[6:])
        found.sensitivity += [(name, change, next(rest)) for name, change, _ in changes]
        found.levers += [(lever, overrides, next(rest)) for lever, overrides in levers]
        found.front_trials += [trial for trial in rest if trial is not None]


def _best_value(space: Space, group: GroupResult, goal: Goal) -> float:
    """Return the value of the best on a kind of GPU; infinite for latency, or if there is no best."""
    if group.best is None or group.best.trial is None or goal.objective == "latency":
        return math.inf
    return Search(space, goal).value(group.best.trial)[0]


def _cost_of_arithmetic(space: Space, goal: Goal) -> float:
    """Return what one GPU of a kind adds to the objective, for each FLOP/s of its fastest number format."""
    hardware = load_hardware(space.scenario.deployment.hardware, space.scenario.folder)
    peak = max((hardware.peak_flops(dtype) or 0.0 for dtype in ARITHMETIC), default=0.0)
    return unit_cost(Search(space, goal), space.base, hardware.name) / peak if peak else math.inf


def _on(tasks: Sequence[tuple[Any, ...]]) -> str:
    """Return in words what searches on kinds of GPU do."""
    gpus = [task[0].scenario.deployment.hardware for task in tasks]
    return f"deployments on {gpus[0] if len(gpus) == 1 else f'{len(gpus)} kinds of GPU'}"


def _call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return function(*arguments)


def _surety(member: Member) -> float:
    """Return the probability that a deployment holds, from the search's run; infinite if unknown."""
    probability = member.run.probability
    return math.inf if probability is None else probability


def _may_be_surer(member: Member, failed: Member) -> bool:
    """Return whether a deployment holds in fresh runs, or may be surer to hold than one that failed."""
    is_promised = member.promise is not None and member.promise.holds
    return is_promised or math.isinf(_surety(member)) or _surety(member) > _surety(failed)


def _goal(scenario: Scenario, options: PlanOptions) -> Goal:
    most = options.max_gpus
    if most is None:
        most = scenario.deployment.num_gpus if options.objective in ("latency", "throughput") else MAX_GPUS
    kept = replicas_of(scenario.deployment) if REPLICAS in options.keep else None
    if options.objective == "throughput":
        check_load(scenario)
    if options.confidence is not None and objective(scenario) is None:
        with scenario.blaming("slo"):
            raise ScenarioError("is missing: --confidence says how sure it is that one holds", remedy=REMEDY)
    return Goal(
        objective=options.objective,
        max_gpus=sum(options.gpus_by_kind.values()) or most,
        gpus_by_kind=options.gpus_by_kind,
        spare_replicas=options.spare_replicas,
        replicas=kept,
        confidence=options.confidence,
    )


def _with_headroom(scenario: Scenario, headroom: float) -> Scenario:
    if not headroom:
        return scenario
    planned = scaled_traffic(scenario, 1 + headroom)
    if planned is None:
        is_trace = scenario.workload.trace is not None
        remedy = f"instead, send the trace faster: --set workload.trace.time_scale={1 / (1 + headroom):.3g}"
        raise UsageError(
            "needs arrivals with a rate, or clients",
            key="--headroom",
            value=headroom,
            remedy=remedy if is_trace else "leave it out",
        )
    return planned


__all__ = ["Lever", "Plan", "PlanOptions", "plan"]
