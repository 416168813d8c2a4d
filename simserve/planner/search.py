"""The best fleet on one kind of GPU: bounds first, then simulation in the order of the objective.

Branch and bound. A member of the space is judged without simulating: it may be refused by the engine, not fit, or
be proven unable to meet the SLO (`simserve.planner.bound`). The others are tried in the order of what they cost
at the fewest replicas the bound allows. Once a fleet holds, another member is tried only with so few replicas that
it would be better; where that fails, more would not be better either. One that is dearer with a single replica is
not even judged.

Attainment is taken to rise with the replicas; simulated ones do, up to the luck of single requests.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from simserve.errors import InputError
from simserve.perf.tables import price
from simserve.planner.bound import NO_BOUND, Bound, fleet_bound
from simserve.planner.search_order import EQUAL, WORST, Value, is_less, smallest_integer
from simserve.planner.search_trial import (
    DOUBT,
    FIRST_REQUESTS,
    MOST_REQUESTS,
    Trial,
    fleet_watts,
    is_one_job,
    request_limit,
    try_fleet,
)
from simserve.planner.search_words import bound_reason, clause, shortage
from simserve.planner.space import Kind, Overrides, Space, gpus_of
from simserve.scenario.resolve import resolve
from simserve.scenario.schema import Scenario
from simserve.workload.generate import generate
from simserve.workload.requests import RequestSpecs

Objective = Literal["cost", "gpus", "latency", "energy"]
OBJECTIVES: tuple[Objective, ...] = ("cost", "gpus", "latency", "energy")
Status = Literal["invalid", "does_not_fit", "out_of_reach", "too_many_gpus", "not_better", "misses", "holds"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What the search is after.

    Attributes:
        objective: What is to be small.
        max_gpus: GPUs of the fleet at most, spares included.
        spare_replicas: Replicas that are paid for and may be lost.
        ceiling: Value from which on a fleet is of no interest.
    """

    objective: Objective = "cost"
    max_gpus: int = 256
    spare_replicas: int = 0
    ceiling: float = math.inf


@dataclass(slots=True, kw_only=True)
class Member:
    """One deployment of the space and what became of it.

    Attributes:
        overrides: What it changes in the scenario, without the number of replicas.
        status: How it ended.
        reason: In words.
        bound: Proven bounds.
        num_gpus: GPUs of one replica.
        usd_per_gpu_hour: Price.
        trial: Its deciding run: the best fleet that holds, else the nearest.
        idle_watts: Power of one GPU that does nothing.
        tokens: Of all requests, prompts included.
    """

    overrides: Overrides
    status: Status
    reason: str = ""
    bound: Bound = NO_BOUND
    num_gpus: int = 0
    usd_per_gpu_hour: float | None = None
    trial: Trial | None = None
    idle_watts: float = 0.0
    tokens: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResult:
    """The search on one kind of GPU.

    Attributes:
        hardware: The GPU.
        base: Overrides that set it.
        members: Every deployment judged.
        best: The one that holds and is best; None if none holds.
        trials: All runs, in order.
        size: Combinations of the space.
        method: ``exhaustive`` or ``sampled``.
    """

    hardware: str
    base: Overrides
    members: list[Member]
    best: Member | None
    trials: list[Trial] = field(default_factory=list)
    size: int
    method: str


class Search:
    """The search on one kind of GPU: members judged, fleets tried, the best kept.

    Args:
        space: What may be deployed.
        goal: What is to be small, and within which limits.
    """

    def __init__(self, space: Space, goal: Goal) -> None:
        self.space = space
        self.goal = goal
        self.trials: list[Trial] = []
        self.members: list[Member] = []
        self.best: Member | None = None
        self.best_value = (goal.ceiling, math.inf)
        self._seen: dict[tuple[tuple[str, str], ...], Member] = {}
        self._specs: RequestSpecs | None = None
        self._has_missed = False

    def run(self, kinds: tuple[Kind, ...]) -> None:
        """Find the best fleet among all combinations of some dimensions, the most promising first.

        The scenario's own deployment comes first, so that another must be better than it, not as good.
        """
        queue: list[tuple[Value, int, dict[str, Any], Member | None]] = []
        for number, overrides in enumerate(self.space.members(kinds)):
            if overrides == self.space.base:
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

    def least_unit(self, overrides: Overrides) -> Value:
        """Return a bound below the value of every fleet of a deployment from its GPUs alone: one replica of it."""
        known = next((each for each in self.members if each.num_gpus), None)
        if known is None:
            return 0.0, 0.0
        one = replace(known, num_gpus=gpus_of(self.space.scenario, overrides), bound=NO_BOUND)
        return self.least_value(one)

    def member(self, overrides: Overrides) -> Member:
        """Return what is known of a deployment without simulating it."""
        key = tuple(sorted((name, repr(value)) for name, value in overrides.items()))
        if key not in self._seen:
            self._seen[key] = self._judged(overrides)
            self.members.append(self._seen[key])
        return self._seen[key]

    def _judged(self, overrides: Overrides) -> Member:
        try:
            scenario = self.space.apply(overrides)
            resolved = resolve(scenario)
            if not resolved.memory.fits:
                return Member(overrides=overrides, status="does_not_fit", reason=shortage(resolved))
            priced = price(resolved.shape)
        except InputError as refusal:
            return Member(overrides=overrides, status="invalid", reason=clause(refusal))
        specs = self._requests(scenario)
        bound = fleet_bound(scenario, resolved.engine, priced.step_times, specs)
        member = Member(
            overrides=overrides,
            status="not_better",
            bound=bound,
            num_gpus=resolved.shape.num_gpus,
            usd_per_gpu_hour=resolved.gpu_hour_usd,
            idle_watts=fleet_watts(resolved.shape.hardware, 1, 0.0),
            tokens=float(specs.prompt_tokens.sum() + specs.output_tokens.sum()),
        )
        if bound.out_of_reach is not None:
            return replace(member, status="out_of_reach", reason=bound_reason(bound, scenario))
        if bound.least_replicas > self.most_replicas(member):
            needed = (bound.least_replicas + self.goal.spare_replicas) * member.num_gpus
            reason = f"needs at least {needed} GPUs (bound), and {self.goal.max_gpus} are allowed"
            return replace(member, status="too_many_gpus", reason=reason)
        return member

    def _requests(self, scenario: Scenario) -> RequestSpecs:
        """Return the requests that the deciding runs serve: the same for every member."""
        if self._specs is None:
            limit = request_limit(scenario, MOST_REQUESTS)
            workload = scenario.workload
            if limit is not None:
                workload = workload.model_copy(update={"num_requests": limit, "duration": None})
            self._specs = generate(workload, seed=scenario.run.seed, base_path=scenario.folder)
        return self._specs

    def most_replicas(self, member: Member) -> int:
        """Return the replicas that the limit on GPUs leaves, spares not counted."""
        return self.goal.max_gpus // member.num_gpus - self.goal.spare_replicas

    def least_value(self, member: Member) -> Value:
        """Return a bound below the value of every fleet of a member that holds."""
        replicas = member.bound.least_replicas
        gpus = float((replicas + self.goal.spare_replicas) * member.num_gpus)
        usd = math.inf if member.usd_per_gpu_hour is None else member.usd_per_gpu_hour
        if self.goal.objective == "latency":
            return member.bound.e2e * 1e3, 0.0
        if self.goal.objective == "gpus":
            return gpus, 0.0
        if self.goal.objective == "energy":
            return gpus * member.idle_watts, 0.0
        if is_one_job(self.space.scenario):
            return member.bound.replica_seconds * member.num_gpus * usd / 3600 / (member.tokens / 1e6), 0.0
        return gpus * usd, 0.0

    def value(self, trial: Trial) -> Value:
        """Return the objective of a fleet that was tried, spares included."""
        share = (trial.replicas + self.goal.spare_replicas) / trial.replicas
        gpus = trial.num_gpus * share
        usd = math.inf if trial.usd_per_hour is None else trial.usd_per_hour * share
        if self.goal.objective == "latency":
            return trial.latencies["p95_e2el_ms"] or math.inf, usd
        if self.goal.objective == "gpus":
            return gpus, usd
        if self.goal.objective == "energy":
            return trial.watts * share, usd
        if is_one_job(self.space.scenario):
            per_token = trial.usd_per_million_tokens
            return (math.inf if per_token is None else per_token * share), gpus
        return usd, gpus

    def try_member(self, member: Member) -> Value:
        """Find the smallest fleet of a member that holds and would be the best; keep it if it is."""
        if not is_less(self.least_value(member), self.best_value):
            member.reason = "cannot be better (bound)"
            return WORST
        least, most = member.bound.least_replicas, self.most_replicas(member)
        if self.goal.objective == "latency":
            least = most
        elif math.isfinite(self.best_value[0]) and not is_one_job(self.space.scenario):
            most = self._most_that_is_better(member, least, most)
            if most < least:
                member.reason = "cannot be better with that many GPUs (bound)"
                return WORST
        held = self._smallest(member, least, most)
        if held is None:
            if self.best is not None:
                member.status, member.reason = "not_better", "misses the SLO with fewer dollars or GPUs than the best"
            elif math.isfinite(self.goal.ceiling):
                member.status, member.reason = (
                    "misses",
                    "misses the SLO at several times the price of the scenario's GPU",
                )
            else:
                member.status, member.reason = "misses", "misses the SLO with as many GPUs as are allowed"
            return WORST
        member.status, member.trial = "holds", held
        value = self.value(held)
        if is_less(value, self.best_value):
            self.best, self.best_value = member, value
        return value

    def _most_that_is_better(self, member: Member, least: int, most: int) -> int:
        """Return the most replicas at which the member would beat the best: what is bought grows with them."""
        spare = self.goal.spare_replicas
        unit = float(member.num_gpus)
        if self.goal.objective == "cost":
            unit *= math.inf if member.usd_per_gpu_hour is None else member.usd_per_gpu_hour
        elif self.goal.objective == "energy":
            unit *= member.idle_watts
        if not math.isfinite(unit) or unit <= 0 or not math.isfinite(self.best_value[0]):
            return most
        affordable = math.ceil(self.best_value[0] / unit * (1 + EQUAL)) - spare
        while affordable >= least and not is_less(
            ((affordable + spare) * unit, affordable * member.num_gpus), self.best_value
        ):
            affordable -= 1
        return min(most, affordable)

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

        expects_failure = self.best is not None or self._has_missed
        starts_high = expects_failure and not is_one_job(self.space.scenario)
        found = smallest_integer(holds, least, most, starts_high=starts_high)
        self._has_missed = self._has_missed or found is None
        return None if found is None else held[found]

    def trial(self, member: Member, replicas: int) -> Trial:
        """Run a fleet: a short look first, all requests only where that does not fail by far."""
        scenario = self.space.scenario
        first, limit = request_limit(scenario, FIRST_REQUESTS), request_limit(scenario, MOST_REQUESTS)
        if first is not None and scenario.slo is not None:
            look = try_fleet(scenario, member.overrides, replicas, _enough(scenario, first))
            if look.attainment is not None and look.attainment < scenario.slo.attainment - DOUBT:
                self.trials.append(look)
                return replace(look, holds=False)
        trial = try_fleet(scenario, member.overrides, replicas, limit)
        self.trials.append(trial)
        return trial


def _enough(scenario: Scenario, first: int) -> int:
    """Return the requests of a first look: more where arrivals are so dense that the fleet would not fill up."""
    rate = float(getattr(scenario.workload.arrivals, "rate", 0.0))
    return max(first, min(MOST_REQUESTS, math.ceil(20 * rate)))


def _is_nearer(trial: Trial, other: Trial) -> bool:
    return (trial.attainment or 0.0, trial.requests) > (other.attainment or 0.0, other.requests)
