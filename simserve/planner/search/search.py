"""The best fleet on one kind of GPU: bounds first, then simulation in the order of the objective.

Branch and bound. A member of the space is judged without simulating: it may be refused by the engine, not fit, or
be proven unable to meet the SLO (`simserve.planner.search.bound`). The others are tried in the order of their cost at
the fewest replicas that the bound allows. Once a fleet holds, another member is tried only with so few replicas that
it would be better; if that fails, more would not be better either. One that is more expensive with a single replica is
not even judged. Every shape is searched with its drafts, and engine knobs where a shape could still win.

One kind of GPU is one task: its result depends only on its arguments, so any number of workers gives the same.

Attainment is assumed to rise with the replicas; in simulation it does, apart from chance in single requests.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from simserve.errors import InputError
from simserve.perf.tables import step_times_of
from simserve.planner.capacity.probe import own_traffic
from simserve.planner.overrides import Overrides
from simserve.planner.search.bound import NO_BOUND, fleet_bound
from simserve.planner.search.deciding_run import deciding_run, narrow_run, narrowed
from simserve.planner.search.explain import bound_reason, clause, context_shortage, is_short, shortage
from simserve.planner.search.member import Goal, GroupResult, Member, key_of
from simserve.planner.search.order import EQUAL, WORST, Value, is_less, smallest_integer
from simserve.planner.search.trial import (
    DOUBT,
    FIRST_REQUESTS,
    MOST_REQUESTS,
    Trial,
    deciding_requests,
    deployed,
    deployment_in,
    finishable_of,
    fleet_of,
    is_one_job,
    keep,
    request_limit,
    run_fleet,
    with_probability,
)
from simserve.planner.space.makeup import POOLS_KEY, SCALING_KEY, makeup_of, merged
from simserve.planner.space.space import BUDGET_KEY, HARDWARE_KEY, SEATS_KEY, Space, gpus_of
from simserve.scenario.finishable import has_load_ratio
from simserve.scenario.media import check_encoders, with_media
from simserve.scenario.resolve import resolve
from simserve.scenario.run import run
from simserve.scenario.schema import Scenario, objective
from simserve.units import SECONDS_PER_HOUR
from simserve.workload.requests import RequestSpecs

EXHAUSTIVE_COMBINATIONS = 256  # Most combinations on one kind of GPU for which all are tried.
MOST_SHAPES = 24  # Most shapes of one kind of GPU on which other engine knobs are tried, the cheapest first.
MOST_NEAREST = 4  # Likewise if nothing holds yet, the nearest first.
HOPELESS = 1.1
"""Load ratio with ample seats and steps above which no knob lets a fleet keep up. The finished rate is known to 3 %;
other knobs raise it by less than 7 % over ample ones."""
LOOK_REQUESTS = 100  # Requests of the run that reports a load ratio: the ratio has separate runs.
NEAR = 0.5  # Share of the required attainment that one change must reach before several are tried together.
NEUTRAL_OPTIONS = frozenset({"pool", "scale", "admit"})  # Options that do not raise what a replica finishes.
JUDGED_OUT = ("invalid", "does_not_fit", "out_of_reach", "too_many_gpus")
"""Statuses of deployments that needed no run."""
FURTHEST = ("holds", "misses", "not_better", "too_many_gpus", "invalid", "out_of_reach", "does_not_fit")
"""Statuses in the order of how far a deployment came, for when nothing holds and other knobs may help."""
EARLY_SHARE = 0.2
"""Share of a run that cannot be shortened that is run first: what it misses, the whole run misses too."""

FIRST_SECONDS = 20.0
"""Least seconds of arrivals in a first look: the time of several requests from arrival to finish."""


Tell = Callable[[tuple[int, Member | None]], None]
"""Called after every fleet that was run, with their number and the best deployment so far, or else the nearest miss."""


class Search:
    """The search on one kind of GPU: members judged, fleets tried, the best kept."""

    def __init__(self, space: Space, goal: Goal, tell: Tell | None = None) -> None:
        self.space = space
        self.goal = goal
        self._tell = tell
        self._num_run = 0
        self.trials: list[Trial] = []
        self.members: list[Member] = []
        self.best: Member | None = None
        self.nearest: Member | None = None
        self.known: Member | None = None
        self.best_value = (goal.ceiling, math.inf)
        self.role_costs: dict[str, float] = {}
        self.tried: dict[str, Trial] = {}
        self._seen: dict[tuple[tuple[str, str], ...], Member] = {}
        self._known_members: dict[tuple[tuple[str, str], ...], Member] = {}
        self._looks: dict[tuple[tuple[tuple[str, str], ...], int], Trial] = {}
        self._specs: RequestSpecs | None = None
        self._has_missed = False

    def run(self, keys: Sequence[str] | None = None, fixed: Mapping[str, Any] | None = None) -> None:
        """Find the best fleet among all combinations of some dimensions, trying the most promising first.

        Args:
            keys: Dimensions that vary; None: all.
            fixed: Values of some of the others.
        """
        queue: list[tuple[Value, int, dict[str, Any], Member | None]] = []
        first = (self.space.base, self.space.plain)
        for number, overrides in enumerate(self.space.members(keys, fixed)):
            if overrides in first:
                own = self.member(overrides)
                if own.status == "not_better":
                    self.try_member(own)
            else:
                heapq.heappush(queue, (self.least_unit(overrides), number, overrides, None))
        while queue:
            least, number, overrides, member = heapq.heappop(queue)
            if not is_less(least, self.best_value):
                return
            if member is not None:
                self.try_member(member)
                continue
            member = self.member(overrides)
            if member.status == "not_better":
                heapq.heappush(queue, (self.least_value(member), number, overrides, member))

    @property
    def longest_prompt(self) -> int:
        """Tokens of the longest prompt of the deciding runs."""
        return int(self.requests(self.space.scenario).prompt_tokens.max())

    def recall(self, found: GroupResult) -> None:
        """Adopt what another search of the space has judged and run, and a GPU's price."""
        self.known = next(filter(_has_one_kind, found.members), None)
        self._known_members = {each.key: each for each in found.members}
        self.tried = dict(found.tried)

    def least_unit(self, overrides: Overrides) -> Value:
        """Return a lower bound on the value of every fleet of a deployment from its GPUs alone: one replica."""
        known = next((each for each in self.members if _has_one_kind(each)), self.known)
        scaling = overrides.get(SCALING_KEY) or {}
        if known is None or known.makeup is None or self.space.scenario.deployment.pools:
            return 0.0, 0.0
        if not scaling.get("min_replicas", 1):  # no replica is paid for all the time
            return 0.0, 0.0
        gpus = gpus_of(self.space.scenario, overrides)
        makeup = replace(known.makeup.without_encoders(), gpus=(gpus,), weights=(1,), scaled=None, smallest=1)
        return self.least_value(replace(known, num_gpus=gpus, makeup=makeup, bound=NO_BOUND))

    def member(self, overrides: Overrides) -> Member:
        """Return what is known about a deployment without simulating it."""
        key = key_of(overrides)
        if key not in self._seen:
            known = self._known_members.get(key)
            self._seen[key] = self._judged(overrides) if known is None else known.untried()
            self.members.append(self._seen[key])
        return self._seen[key]

    def _judged(self, overrides: Overrides) -> Member:
        try:
            scenario = self.space.apply(overrides)
            resolved = resolve(scenario)
            if scenario.deployment.pools and scenario.deployment.autoscaling is not None:
                return Member(overrides=overrides, status="invalid", reason="pools are not scaled together")
            check_encoders(scenario)
            for each in resolved.pools or (resolved,):
                if is_short(each):
                    return Member(overrides=overrides, status="does_not_fit", reason=shortage(each))
            times = step_times_of(resolved.shape)
        except InputError as refusal:
            return Member(overrides=overrides, status="invalid", reason=clause(refusal))
        specs = self.requests(scenario)
        for each in resolved.pools or (resolved,):
            if cut := context_shortage(each, specs):
                return Member(overrides=overrides, status="does_not_fit", reason=cut)
        bound = fleet_bound(scenario, resolved.engine, times, specs)
        member = Member(
            overrides=overrides,
            status="not_better",
            bound=bound,
            num_gpus=resolved.shape.num_gpus,
            usd_per_gpu_hour=resolved.gpu_hour_usd,
            makeup=makeup_of(resolved),
            max_model_len=min(each.memory.max_model_len for each in resolved.pools or (resolved,)),
            tokens=float(specs.prompt_tokens.sum() + specs.output_tokens.sum()),
        )
        if bound.out_of_reach is not None:
            return replace(member, status="out_of_reach", reason=bound_reason(bound, scenario))
        if bound.least_replicas > self.most_replicas(member):
            needed = (bound.least_replicas + self.goal.spare_replicas) * member.num_gpus + member.encoders
            reason = f"needs at least {needed} GPUs (bound), and {self.goal.max_gpus} are allowed"
            if self.goal.replicas is not None:
                reason = f"needs at least {bound.least_replicas} replicas (bound), and {self.goal.replicas} are kept"
            return replace(member, status="too_many_gpus", reason=reason)
        keep(self.space.scenario, overrides, resolved)
        return member

    def requests(self, scenario: Scenario) -> RequestSpecs:
        """Return the requests that the deciding runs serve: the same for every member."""
        if self._specs is None:
            self._specs = deciding_requests(scenario)
            # Tokens of images and recordings depend on the model, not on what it runs on. If this deployment cannot
            # encode them, they are left out and no bound applies.
            with suppress(InputError):
                self._specs = with_media(self._specs, scenario, 0)
        return self._specs

    def most_replicas(self, member: Member) -> int:
        """Return the most replicas within the limit on GPUs, not counting spares."""
        assert member.makeup is not None  # as every member has that may be tried
        most = member.makeup.most(self.goal.max_gpus) - self.goal.spare_replicas
        return most if self.goal.replicas is None else min(most, self.goal.replicas)

    def least_replicas(self, member: Member) -> int:
        """Return the fewest replicas with which a member may hold and can be simulated."""
        return max(
            member.bound.least_replicas, 1 if member.makeup is None else member.makeup.smallest, self.goal.replicas or 1
        )

    def least_value(self, member: Member) -> Value:
        """Return a lower bound on the value of every fleet of a member that holds."""
        return self._least_value_of(member, self.least_replicas(member))

    def _least_value_of(self, member: Member, replicas: int) -> Value:
        """Return a lower bound on the value of a fleet of at least ``replicas`` replicas that holds."""
        makeup = member.makeup
        assert makeup is not None
        bought = replicas + (self.goal.spare_replicas if makeup.scaled is None else 0)
        if self.goal.objective == "latency":
            return member.bound.e2e * 1e3, 0.0
        if self.goal.objective == "gpus":
            return float(makeup.num_gpus(bought)), 0.0
        if self.goal.objective == "energy":
            return makeup.watts(bought), 0.0
        if is_one_job(self.space.scenario):
            usd = makeup.usd_per_hour(1) if makeup.scaled is None else 0.0
            return member.bound.replica_seconds * usd / SECONDS_PER_HOUR / (member.tokens / 1e6), 0.0
        return makeup.usd_per_hour(bought), 0.0

    def value(self, trial: Trial) -> Value:
        """Return the objective of a tried fleet, including spares."""
        whole = trial.with_spares(self.goal.spare_replicas)
        gpus = float(whole.num_gpus + whole.encoder_gpus)
        usd = math.inf if whole.usd_per_hour is None else whole.usd_per_hour
        if self.goal.objective == "latency":
            return trial.latencies["p95_e2el_ms"] or math.inf, usd
        if self.goal.objective == "gpus":
            return gpus, usd
        if self.goal.objective == "energy":
            return whole.watts, usd
        if is_one_job(self.space.scenario):
            per_token = whole.usd_per_million_tokens
            return (math.inf if per_token is None else per_token), gpus
        return usd, gpus

    def try_member(self, member: Member) -> Value:
        """Find the smallest fleet of a member that holds and would be the best; keep it if it is."""
        if not is_less(self.least_value(member), self.best_value):
            member.reason = "cannot be better (bound)"
            return WORST
        least, most = self.least_replicas(member), self.most_replicas(member)
        if self.goal.objective == "latency":
            least = most
        else:
            most = self.most_that_is_better(member)
            if most < least:
                member.reason = "cannot be better with that many GPUs (bound)"
                return WORST
        held = self._smallest(member, least, most)
        if held is None:
            if self.best is not None:
                member.status, member.reason = "not_better", "misses the SLO with fewer dollars or GPUs than the best"
            elif math.isfinite(self.goal.ceiling):
                member.status, member.reason = "misses", f"misses the SLO at {self._ceiling_words}"
            else:
                member.status, member.reason = "misses", "misses the SLO with as many GPUs as are allowed"
            return WORST
        member.status, member.trial = "holds", held
        member = self._trimmed(member, self._climbed(member, held, most))
        value = self.value(member.run)
        if is_less(value, self.best_value):
            self.best, self.best_value = member, value
            self._tell_so_far()
        return value

    def _note_miss(self, member: Member, trial: Trial) -> None:
        """Keep the nearest miss, in case the search is stopped before anything holds."""
        if self._tell is None or trial.holds:
            return
        if self.nearest is None or _is_nearer(trial, self.nearest.run):
            own = replace(trial, overrides=dict(member.overrides))
            self.nearest = replace(member, status="misses", reason="", trial=own)

    def _tell_so_far(self) -> None:
        if self._tell is not None:
            self._tell((self._num_run, self.best or self.nearest))

    @property
    def _ceiling_words(self) -> str:
        times = "" if self.goal.is_tight else "several times "
        return f"{times}the price of the best plan on other GPUs"

    def _climbed(self, member: Member, held: Trial, most: int) -> Trial:
        """Return the best fleet from the smallest that holds upwards, as more replicas leave less to an API."""
        if deployment_in(self.space.scenario, member.overrides).deployment.overflow is None:
            return held
        for replicas in range(held.replicas + 1, most + 1):
            larger = self.trial(member, replicas)
            if not larger.holds or not is_less(self.value(larger), self.value(held)):
                break
            held = larger
        member.trial = held
        return held

    def _trimmed(self, member: Member, held: Trial) -> Member:
        """Remove replicas, from the most expensive pool first, until no pool can lose another; return that fleet."""
        makeup = member.makeup
        if makeup is None or len(makeup.gpus) == 1 or self.goal.objective == "latency" or self.goal.replicas:
            return member
        counts = list(makeup.counts(held.replicas))
        usd = [gpus * (price or 0.0) for gpus, price in zip(makeup.gpus, makeup.usd_per_gpu_hour, strict=True)]
        places = sorted(range(len(counts)), key=lambda place: (-usd[place], place))
        while True:
            for place in places:
                fewer = [count - (each == place) for each, count in enumerate(counts)]
                if fewer[place] < 1:
                    continue
                replicas = {f"{POOLS_KEY}.{number}.replicas": count for number, count in enumerate(fewer)}
                slim = self.member(merged(member.overrides, replicas))
                trial = self.trial(slim, sum(fewer))
                if trial.holds:
                    slim.status, slim.trial = "holds", trial
                    member, counts = slim, fewer
                    break
            else:
                return member

    def most_that_is_better(self, member: Member) -> int:
        """Return the most replicas at which the member could beat the best: its cost grows with them."""
        least, most = self.least_replicas(member), self.most_replicas(member)
        if not math.isfinite(self.best_value[0]) or is_one_job(self.space.scenario):
            return most
        first = smallest_integer(
            lambda count: not is_less(self._least_value_of(member, count), self.best_value), least, most
        )
        return max(most, least - 1) if first is None else first - 1

    def _smallest(self, member: Member, least: int, most: int) -> Trial | None:
        """Return the run of the fewest replicas in [least, most] that hold, by doubling and bisection."""
        if most < least:
            return None
        held: dict[int, Trial] = {}

        def holds(replicas: int) -> bool:
            trial = self.trial(member, replicas)
            if trial.holds:
                held[replicas] = trial
            elif member.trial is None or _is_nearer(trial, member.trial):
                member.trial = trial
            return trial.holds

        expects_failure = self.best is not None or self._has_missed or math.isfinite(self.goal.ceiling)
        starts_high = expects_failure and not is_one_job(self.space.scenario)
        start = None if expects_failure else self.space.scenario.deployment.replicas
        guess = self._guess(member, least, most)
        if guess is not None:
            starts_high, start = False, guess
        found = smallest_integer(holds, least, most, starts_high=starts_high, start=start)
        self._has_missed = self._has_missed or found is None
        return None if found is None else held[found]

    def _guess(self, member: Member, least: int, most: int) -> int | None:
        """Return the fewest replicas that first looks do not rule out, if these are much shorter; else None."""
        there = deployment_in(self.space.scenario, member.overrides)
        asked = objective(self.space.scenario)
        if asked is None or self.goal.objective == "latency":
            return None
        wanted = asked.attainment - DOUBT

        def seems_to_hold(replicas: int) -> bool:
            fewer = narrowed(there, replicas, FIRST_REQUESTS)
            if fewer is None:
                return False
            look = self._look(member, replicas, fewer)
            return look.attainment is not None and look.attainment >= wanted

        if narrowed(there, most, FIRST_REQUESTS) is None:
            return None
        return smallest_integer(seems_to_hold, least, most, starts_high=True)

    def trial(self, member: Member, replicas: int) -> Trial:
        """Run a fleet once: members that differ in the replicas of a pool may lead to the same fleet."""
        fleet = deployed(self.space.scenario, member.overrides, replicas).hash
        if fleet not in self.tried:
            self.tried[fleet] = self._trial(member, replicas)
            self._num_run += 1
            self._note_miss(member, self.tried[fleet])
            self._tell_so_far()
        trial = replace(self.tried[fleet], overrides=dict(member.overrides))
        return replace(trial, holds=False) if fleet in self.goal.refused else trial

    def _trial(self, member: Member, replicas: int) -> Trial:
        """Run a fleet: a short look first, and all requests only if that does not fail by far."""
        scenario = self.space.scenario
        there = deployment_in(self.space.scenario, member.overrides)
        first, fewer = request_limit(there, FIRST_REQUESTS), narrowed(there, replicas, FIRST_REQUESTS)
        asked = objective(scenario)
        if asked is not None and (fewer is not None or first is not None):
            evidence = None
            if fewer is not None:
                look = self._look(member, replicas, fewer)
            else:
                count = _enough(scenario, first or FIRST_REQUESTS)
                look, evidence = run_fleet(scenario, member.overrides, replicas, count)
            if look.attainment is not None and look.attainment < asked.attainment - DOUBT:
                look = with_probability(look, evidence)
                self.trials.append(look)
                return replace(look, holds=False)
        elif asked is not None and there.workload.trace is None:
            doomed = self._doomed(scenario, member, replicas, asked.attainment)
            if doomed is not None:
                return doomed
        trial = deciding_run(scenario, member.overrides, replicas).sure(self.goal.confidence)
        self.trials.append(trial)
        return trial

    def _look(self, member: Member, replicas: int, fewer: int) -> Trial:
        """Run ``fewer`` of a fleet's replicas for the first requests, once."""
        key = member.key, replicas
        if key not in self._looks:
            self._looks[key] = narrow_run(self.space.scenario, member.overrides, replicas, fewer)
        return self._looks[key]

    def _doomed(self, scenario: Scenario, member: Member, replicas: int, asked: float) -> Trial | None:
        """Return a run of only the first requests if these miss more often than the whole run may; else None."""
        count = 0 if self._specs is None else len(self._specs)
        first = round(EARLY_SHARE * count)
        if self._specs is None or first < FIRST_REQUESTS:
            return None
        look, evidence = run_fleet(scenario, member.overrides, replicas, first)
        missed = 0.0 if look.attainment is None else (1.0 - look.attainment) * look.requests
        if missed <= (1.0 - asked) * count + DOUBT * first:
            return None
        look = with_probability(look, evidence)
        self.trials.append(look)
        return replace(look, holds=False)


def _enough(scenario: Scenario, first: int) -> int:
    """Return the requests of a first look: more if arrivals are so dense that the fleet would not fill up."""
    rate = float(getattr(scenario.workload.arrivals, "rate", 0.0))
    return max(first, min(MOST_REQUESTS, math.ceil(FIRST_SECONDS * rate)))


def _has_one_kind(member: Member) -> bool:
    return member.makeup is not None and len(member.makeup.gpus) == 1


def _is_nearer(trial: Trial, other: Trial) -> bool:
    return (trial.attainment or 0.0, trial.requests) > (other.attainment or 0.0, other.requests)


def search_group(space: Space, goal: Goal, known: GroupResult | None = None, tell: Tell | None = None) -> GroupResult:
    """Return the best fleet of a space: exact over all dimensions, or over the shapes if those are too many.

    Shapes are searched with every option plain, and again with the scenario's own choices.

    Args:
        goal: What to minimise, and within which limits.
        known: What earlier searches of the space have judged and run; None if there was none.
        tell: Told how far it is; None: nobody asks.
    """
    search = Search(space, goal, tell)
    if known is not None:
        search.recall(known)
    is_small = space.size <= EXHAUSTIVE_COMBINATIONS
    search.run(None if is_small else space.shape_keys)
    if not is_small and space.has_own_options:
        search.run(space.shape_keys, {name: space.own[name] for name in space.options if name not in space.shape_keys})
    return group_result(search, "exhaustive" if is_small else "shapes")


def refine_group(
    space: Space,
    goal: Goal,
    found: GroupResult,
    num_settings: int,
    known: GroupResult | None = None,
    tell: Tell | None = None,
) -> GroupResult:
    """Return the best fleet of the shapes with other engine knobs and options; without a best if there is none.

    A shape is tried if a bound allows it a fleet better than the goal's ceiling, at its own knobs or at ample ones, and
    if it can finish the traffic with that many replicas. Settings are tried in the order of how many choices they
    change, first from the scenario's, then from each that proved better; nothing is random.

    Args:
        goal: What to minimise; its ceiling is the best value known.
        found: The search over the shapes.
        num_settings: Number of settings to try on a shape.
        known: What earlier searches of the space have judged and run; None: only that of the shapes.
        tell: Told how far it is; None: nobody asks.
    """
    search = Search(space, goal, tell)
    search.best_value = (goal.ceiling, -math.inf)
    search.recall(known or found)
    for _, shape in _shapes(search, found):
        if not _may_win(search, shape):
            continue
        chosen, before = space.chosen(shape.overrides), None
        while before != search.best_value:
            before = search.best_value
            _try_settings(search, chosen, num_settings)
            if search.best is None:
                break
            chosen = space.chosen(search.best.overrides)
    return group_result(search, "settings")


def held_neighbours(space: Space, goal: Goal, best: Member, tell: Tell | None = None) -> list[Member]:
    """Return the fleets that hold with as many replicas, at the same price, with one engine knob or option changed.

    A knob that shortens the longest request that fits the memory is not equal.
    """
    search, found = Search(space, goal, tell), []
    replicas, value = best.run.replicas, search.value(best.run)[0]
    chosen = space.chosen(best.overrides)
    for setting in settings_around(space, chosen, most_changes=1):
        member = search.member(space.overrides({**chosen, **setting}))
        if not setting or member.status != "not_better" or search.least_replicas(member) > replicas:
            continue
        if (member.max_model_len or 0) < (best.max_model_len or 0):
            continue
        trial = search.trial(member, replicas)
        if trial.holds and math.isclose(search.value(trial)[0], value, rel_tol=EQUAL):
            member.status, member.trial = "holds", trial
            found.append(member)
    return found


def _try_settings(search: Search, chosen: Mapping[str, Any], most: int) -> None:
    """Try settings around the chosen one, ample ones first; several changes only if one brings it near."""
    near = 0.0
    ample = {key: value for key, value in _sizes(search.space, max).items() if value != chosen[key]}
    asked = objective(search.space.scenario)
    for setting in itertools.islice(itertools.chain([ample], settings_around(search.space, chosen)), most + 1):
        if len(setting) > 1 and setting is not ample and asked is not None and near < NEAR * asked.attainment:
            return
        member = search.member(search.space.overrides({**chosen, **setting}))
        if setting and member.status == "not_better" and member.trial is None:
            search.try_member(member)
        if member.trial is not None:
            near = max(near, member.trial.attainment or 0.0)


def _shapes(search: Search, found: GroupResult) -> list[tuple[Value, Member]]:
    """Return the shapes on which other knobs are tried, in order."""
    goal, kept = search.goal, []
    for member in found.members:
        least = search.least_unit(member.overrides)
        if not math.isfinite(goal.ceiling):
            reached = 0.0 if member.trial is None else member.trial.attainment or 0.0
            gpus = gpus_of(search.space.scenario, search.space.chosen(member.overrides))
            kept.append(((float(FURTHEST.index(member.status)) - reached, float(gpus)), member))
        elif is_less(least, search.best_value) and not (goal.refused and _is_far(search, member)):
            kept.append((least, member))
    most = MOST_SHAPES if math.isfinite(goal.ceiling) else MOST_NEAREST
    return sorted(kept, key=lambda each: each[0])[:most]


def _is_far(search: Search, shape: Member) -> bool:
    """Return whether a shape has been run and missed by far, or has not been run.

    If a fleet that held in the search was not confirmed, the ceiling is higher and many more shapes lie below it: knobs
    are then tried only on those that come near with the scenario's own.
    """
    asked, trial = objective(search.space.scenario), shape.trial
    return asked is not None and (trial is None or (trial.attainment or 0.0) < NEAR * asked.attainment)


def _may_win(search: Search, shape: Member) -> bool:
    """Return whether a shape, at its own knobs or others, may hold with few enough replicas to be better.

    No knob makes a step shorter than with a token budget above every prompt, so a bound that rules out a shape with
    such steps holds for all its knobs.
    """
    space, most = search.space, 0
    kinds, chosen = [], space.chosen(shape.overrides)
    if shape.status == "out_of_reach" and (chosen[BUDGET_KEY] or 0) >= search.longest_prompt:
        return False
    others = _sizes(space, min if shape.status == "does_not_fit" else max)
    settings = [others]
    if shape.status == "invalid":
        settings += [each | others for each in settings_around(space, chosen, most_changes=1) if each]
    for member in (shape, *(search.member(space.overrides({**chosen, **each})) for each in settings)):
        if (
            member.makeup is None
            or member.status in JUDGED_OUT
            or not is_less(search.least_value(member), search.best_value)
        ):
            continue
        most = max(most, search.most_that_is_better(member))
        kinds.append(member)
    if most < 1:
        return False
    if not math.isfinite(search.goal.ceiling) or not _is_bound_by_work(space):
        return True
    return any(_load_ratio(search, member, most) < HOPELESS for member in kinds)


def _sizes(space: Space, choose: Callable[[list[int]], int]) -> dict[str, Any]:
    """Return the most seats and tokens per step that are searched, or the fewest, which leave the most memory."""
    numbers = {key: [each for each in space.dimensions[key] if each is not None] for key in (SEATS_KEY, BUDGET_KEY)}
    return {key: choose(each) for key, each in numbers.items() if each}


def _is_bound_by_work(space: Space) -> bool:
    """Return whether the load ratio of a fleet decides for every option whether it can keep up."""
    others = {name for name in space.options if name not in space.shape_keys}
    return has_load_ratio(space.scenario) and others <= NEUTRAL_OPTIONS


def _load_ratio(search: Search, member: Member, replicas: int) -> float:
    """Return the load divided by what replicas finish with their queue never empty; 0 if unknown."""
    scenario = search.space.scenario
    offered = own_traffic(fleet_of(scenario, member.overrides, replicas).scenario)
    if offered.is_stationary:
        finishable = finishable_of(scenario, member.overrides, replicas)
        return 0.0 if finishable is None else offered.offered_rate / finishable.rate
    few = deployed(scenario, member.overrides, replicas).of_length(LOOK_REQUESTS)
    found = run(few, explain=False).summary["simserve"]["load_ratio"]
    return 0.0 if found is None else float(found)


def settings_around(
    space: Space, chosen: Mapping[str, Any], most_changes: int | None = None
) -> Iterator[dict[str, Any]]:
    """Yield choices of engine knobs and options, those with the fewest changes from ``chosen`` first."""
    keys = [key for key, values in space.dimensions.items() if len(values) > 1 and key not in space.shape_keys]
    most = len(keys) if most_changes is None else most_changes
    others = {key: [value for value in space.dimensions[key] if value != chosen[key]] for key in keys}
    for number in range(most + 1):
        for changed in itertools.combinations(keys, number):
            for values in itertools.product(*(others[key] for key in changed)):
                yield dict(zip(changed, values, strict=True))


def group_result(search: Search, method: str) -> GroupResult:
    """Return the result of a search of some kind."""
    space = search.space
    return GroupResult(
        hardware=str(space.base.get(HARDWARE_KEY, space.scenario.deployment.hardware)),
        members=search.members,
        best=search.best,
        trials=search.trials,
        size=space.size,
        method=method,
        role_costs=search.role_costs,
        tried=search.tried,
    )


def stopped_result(space: Space, so_far: Member) -> GroupResult:
    """Return the result of a search that was stopped: the best that it had found, or else its nearest miss."""
    hardware = str(space.base.get(HARDWARE_KEY, space.scenario.deployment.hardware))
    best = so_far if so_far.run.holds else None
    return GroupResult(
        hardware=hardware, members=[so_far], best=best, trials=[so_far.run], size=space.size, method="shapes"
    )


def held_on(group: GroupResult) -> list[Member]:
    """Return the deployments that hold on a kind of GPU, the best first."""
    held = [member for member in group.members if member.trial is not None and member.trial.holds]
    return sorted(held, key=lambda member: member is not group.best)


def best_on(search: Search, group: GroupResult) -> Member | None:
    """Return the best of what holds; of equals the present best, or the first."""
    best, least = None, math.inf
    for member in held_on(group):
        value = search.value(member.run)[0]
        if best is None or is_less((value, 0.0), (least, 0.0)):
            best, least = member, value
    return best


def renewed(search: Search, group: GroupResult, again: GroupResult) -> GroupResult:
    """Return a search of a kind of GPU, updated by a later search."""
    members: dict[tuple[tuple[str, str], ...], Member] = {}
    for member in (*group.members, *again.members):
        before = members.get(member.key)
        if before is None or before.trial is None or (member.trial is not None and not before.trial.holds):
            members[member.key] = member
    trials = [*group.trials, *again.trials]
    both = replace(group, members=[*members.values()], trials=trials, tried={**group.tried, **again.tried})
    return replace(both, best=best_on(search, both))


def joined(space: Space, goal: Goal, group: GroupResult, refined: GroupResult) -> GroupResult:
    """Return two searches of one kind of GPU merged."""
    search = Search(space, goal)
    bests = [best for best in (refined.best, group.best) if best is not None]
    best = min(bests, key=lambda each: search.value(each.run), default=None)
    return replace(
        group,
        members=[*group.members, *refined.members],
        best=best,
        trials=[*group.trials, *refined.trials],
        tried={**group.tried, **refined.tried},
        method=refined.method if refined.method == "settings" else group.method,
    )
