"""A trial of one fleet: its replicas, its traffic, and whether it holds. Knows no search."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from simserve.metrics.latency import MS, SLO
from simserve.metrics.real_server import Evidence, evidence_of
from simserve.metrics.result import RunResult
from simserve.planner.capacity.level import Promise
from simserve.planner.overrides import Overrides, with_overrides
from simserve.planner.scaling import has_own_clock, is_scaled
from simserve.planner.space.makeup import merged, settings
from simserve.scenario.finishable import Finishable, KnownFinishable, find_finishable, has_load_ratio
from simserve.scenario.resolve import ResolvedScenario, resolve, resolve_like
from simserve.scenario.run import deploy, expectations_of, run
from simserve.scenario.schema import Scenario, objective
from simserve.units import HOURS_PER_MONTH
from simserve.workload.arrival_spec import (
    AllAtOnceArrivals,
    BurstArrivals,
    ClosedLoopArrivals,
    DailyArrivals,
    RampArrivals,
    SpikeArrivals,
    StepArrivals,
)
from simserve.workload.conversations import mean_calls, mean_requests
from simserve.workload.generate import generate
from simserve.workload.requests import RequestSpecs

UNEVEN_ARRIVALS = BurstArrivals | DailyArrivals | RampArrivals | SpikeArrivals | StepArrivals
FIRST_REQUESTS = 1000  # Requests of a first look, which drops fleets that fail by far.
MOST_REQUESTS = 5000
"""Most requests of a run that decides in the search; the plan is confirmed on all of the scenario's."""
DOUBT = 0.05  # How far below the required share a first look must be to count as a miss.
KEPT_DEPLOYMENTS = 1024
"""Resolved deployments to cache, with their finishable load: the shapes of all kinds of GPU, on which knobs are tried
later."""
REQUESTS_PER_CLIENT = 10  # Least requests of each client of a closed loop in a shortened run.
CONVERSATIONS_PER_CLIENT = 2  # Least conversations of each client, likewise.
CONVERSATIONS_PER_RUN = 10
"""Least length of a shortened run of conversations, in total think times of a mean conversation."""
WARMUPS_PER_RUN = 3  # Least length of a shortened run, in warm-ups that the scenario gives in seconds.
LATENCIES = {"ttft": "ttft", "tpot": "tpot", "e2e": "e2el"}
"""Term of an SLO -> the latency of a summary that it bounds."""
TERMS = tuple(LATENCIES)
SHOWN_PERCENTILES = ("p50", "p95", "p99")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The result of a run of one fleet."""

    overrides: Overrides  # What was deployed, without the replicas.
    replicas: int  # Number of replicas; of an autoscaled fleet the most.
    num_gpus: int  # GPUs of the replicas.
    requests: int  # Requests of the run.
    holds: bool  # Whether the SLO and the thresholds are met, nothing fails and the queue does not grow.
    attainment: float | None  # Share of requests within the SLO; None without an SLO.
    by_metric: Mapping[str, float | None]  # The same by term.
    stability: str  # ``stable``, ``backlogged`` or ``overloaded``.
    latencies: Mapping[str, float | None]  # ``p50_ttft_ms`` and so on.
    usd_per_hour: float | None  # Cost: GPUs from launch to end, and an API; None without a price.
    mean_gpus: float  # Mean number of GPUs that were paid for.
    usd_per_million_tokens: float | None  # Prompt and output tokens together; None without a price.
    watts: float  # Mean electric power of the fleet's GPU boards, an estimate (`simserve.metrics.cost`).
    busy: float  # Share of the time in which a replica works.
    duration: float  # Seconds of the run.
    figures: Mapping[str, float | None]  # Rates: ``request_throughput`` and the like.
    binding: str  # The bottleneck, as `simserve run` names it.
    fidelity: str  # Fidelity of the step times.
    share: float = 1.0
    """Share of replicas and their clients that was simulated; all figures but ``requests`` are of the whole."""
    mean_stay: float = math.nan  # Mean E2E, seconds; NaN if nothing was completed.
    load_ratio: float | None = None
    """Offered load over what the fleet finishes with its queue never empty; None if it was not determined."""
    probability: float | None = None
    """Probability that the SLO holds on a real server (`simserve.metrics.real_server`); None without an SLO."""
    error_basis: str = ""  # What the errors to expect of a real server are based on, in words.
    probability_measured: float | None = None
    """The same after loads of the server have been measured, if it performs as predicted."""
    is_unsure: bool = False  # Whether it holds, but not on the required share of real servers.
    encoder_gpus: int = 0  # GPUs of an encoder pool, which do not depend on the replicas.
    promise: Promise | None = None  # Result of fresh runs, if they decided whether it holds; else None.

    @property
    def most_missed(self) -> str | None:
        """The term of the SLO that most requests miss; None without an SLO."""
        shares = {term: share for term, share in self.by_metric.items() if share is not None}
        return min(shares, key=shares.__getitem__, default=None)

    def of(self, replicas: int) -> Trial:
        """Return the trial at the price of another number of replicas; latencies and shares are unchanged."""
        factor = replicas / self.replicas
        return replace(
            self,
            replicas=replicas,
            num_gpus=round(self.num_gpus * factor),
            mean_gpus=self.mean_gpus * factor,
            usd_per_hour=None if self.usd_per_hour is None else self.usd_per_hour * factor,
            watts=self.watts * factor,
        )

    def with_spares(self, spare_replicas: int) -> Trial:
        """Return the trial at the price of that many more replicas, which do no work."""
        whole, per_token = self.of(self.replicas + spare_replicas), self.usd_per_million_tokens
        factor = whole.replicas / self.replicas
        return replace(whole, usd_per_million_tokens=None if per_token is None else per_token * factor)

    def sure(self, confidence: float | None, *, is_measured: bool = False) -> Trial:
        """Return the trial, holding only if it does on this share of real servers; None: as simulated."""
        probability = self.probability_measured if is_measured else self.probability
        if confidence is None or not self.holds or (probability is not None and probability >= confidence):
            return self
        return replace(self, holds=False, is_unsure=True)


def try_fleet(
    scenario: Scenario,
    overrides: Overrides,
    replicas: int,
    num_requests: int | None = None,
    replications: int = 1,
    *,
    explain: bool = False,
    finishable: Finishable | Literal["find"] | None = None,
) -> Trial:
    """Simulate a scenario with overrides on some replicas.

    Args:
        overrides: Dotted keys to replace.
        num_requests: Most requests; None: all of the scenario's.
        replications: Independent runs whose figures are averaged.
        explain: Whether to analyse the bottleneck, which takes more runs.
        finishable: What the fleet finishes of this traffic, which decides whether it is overloaded; ``find``: determine
            it first; None: decide by the queue's trend alone.

    Raises:
        InputError: The overrides do not go together.
        InfeasibleError: The model does not fit.
        KeyboardInterrupt: The user stopped the run.
    """
    trial, evidence = run_fleet(
        scenario, overrides, replicas, num_requests, replications, explain=explain, finishable=finishable
    )
    return with_probability(trial, evidence)


def run_fleet(
    scenario: Scenario,
    overrides: Overrides,
    replicas: int,
    num_requests: int | None = None,
    replications: int = 1,
    *,
    explain: bool = False,
    finishable: Finishable | Literal["find"] | None = None,
) -> tuple[Trial, Evidence | None]:
    """Return the trial of `try_fleet` without its probability, and the evidence for that; None without an SLO."""
    there = fleet_of(scenario, overrides, replicas)
    asked = _shortened(there.scenario, num_requests, replications)
    resolved = resolve_like(asked, there)
    result = run(resolved, explain=explain, finishable=finishable)
    if result.simulation.was_interrupted:
        raise KeyboardInterrupt
    return _trial(asked, overrides, replicas, result.summary), _evidence(resolved, result)


def with_probability(trial: Trial, evidence: Evidence | None) -> Trial:
    """Return a trial with the probability that its SLO holds on a real server."""
    if evidence is None:
        return trial
    probability = evidence.probability(trial.load_ratio)
    measured = evidence.once_measured()
    if measured.expected != evidence.expected:
        probability_measured = measured.probability(trial.load_ratio)
    else:
        probability_measured = probability
    return replace(
        trial, probability=probability, error_basis=evidence.expected.basis, probability_measured=probability_measured
    )


def _evidence(resolved: ResolvedScenario, result: RunResult) -> Evidence | None:
    """Return what a run shows about its SLO; with several replications, the first."""
    simulation, slo = result.simulation, result.slo
    if slo is None:
        return None
    window, latencies = result.summary["simserve"]["window"], result.latencies
    arrival = simulation.records.arrival_time
    # No window: nothing arrived.
    start, end = (window[key] if window[key] is not None else math.inf for key in ("start_s", "end_s"))
    return evidence_of(
        simulation.records,
        latencies,
        (arrival >= start) & (arrival <= end),
        slo,
        simulation.totals,
        *expectations_of(resolved, simulation),
    )


def deployed_overrides(scenario: Scenario, overrides: Overrides, replicas: int) -> dict[str, Any]:
    """Return all overrides that deploy a number of replicas in a scenario."""
    return merged(overrides, settings(deployment_in(scenario, overrides).deployment, replicas))


def deployed(scenario: Scenario, overrides: Overrides, replicas: int) -> Scenario:
    """Return the scenario on a fleet."""
    there = deployment_in(scenario, overrides)
    return with_overrides(there, settings(there.deployment, replicas))


def deployment_in(scenario: Scenario, overrides: Overrides) -> Scenario:
    """Return the scenario with the overrides of a deployment, known from `keep` or made anew.

    Raises:
        InputError: The overrides do not go together.
    """
    known = _resolved.get(_key(scenario, overrides))
    return with_overrides(scenario, overrides) if known is None else known[1]


def keep(scenario: Scenario, overrides: Overrides, resolved: ResolvedScenario) -> None:
    """Keep a resolved deployment for the fleets of it that will be tried.

    Args:
        resolved: The scenario with the overrides, resolved.
    """
    _keep(scenario, overrides, resolved.scenario, resolved)


def _keep(scenario: Scenario, overrides: Overrides, there: Scenario, resolved: ResolvedScenario) -> None:
    _resolved[_key(scenario, overrides)] = scenario, there, resolved, {}
    if len(_resolved) > KEPT_DEPLOYMENTS:
        _resolved.popitem(last=False)


def fleet_of(scenario: Scenario, overrides: Overrides, replicas: int) -> ResolvedScenario:
    """Return the resolved scenario on a fleet; a deployment is resolved once for all numbers of replicas.

    Raises:
        InputError: The overrides do not go together.
    """
    key = _key(scenario, overrides)
    if key in _resolved:
        _, there, known, _ = _resolved[key]
        _resolved.move_to_end(key)
        return resolve_like(with_overrides(there, settings(there.deployment, replicas)), known)
    there = with_overrides(scenario, overrides)
    known = resolve(with_overrides(there, settings(there.deployment, replicas)))
    _keep(scenario, overrides, there, known)
    return known


def finishable_of(scenario: Scenario, overrides: Overrides, replicas: int) -> Finishable | None:
    """Return what a fleet finishes with its queue never empty, determined once; None if its traffic has no load ratio.

    Raises:
        InputError: The overrides do not go together, or the traffic cannot be drawn.
    """
    resolved = fleet_of(scenario, overrides, replicas)
    *_, known = _resolved[_key(scenario, overrides)]
    return find_finishable(resolved, deploy(resolved), known)


def _key(scenario: Scenario, overrides: Overrides) -> tuple[int, str]:
    return id(scenario), repr(sorted(overrides.items()))


_resolved: OrderedDict[tuple[int, str], tuple[Scenario, Scenario, ResolvedScenario, KnownFinishable]] = OrderedDict()
"""Identity of a scenario, and overrides -> the scenario (kept so that its identity is not reused); the same with the
overrides; resolved; and what its fleets finish."""


def is_steady(scenario: Scenario) -> bool:
    """Return whether requests arrive at one rate throughout, so that a run may have any length.

    Not conversations, whose rate rises at first (`grows_steady`).
    """
    return grows_steady(scenario) and not scenario.workload.has_sessions


def grows_steady(scenario: Scenario) -> bool:
    """Return whether requests arrive at one rate; for conversations, once as many end as begin.

    Not if an API takes the excess: then the replicas alone need not finish the offered load.
    """
    workload, deployment = scenario.workload, scenario.deployment
    is_open = has_load_ratio(scenario) and workload.trace is None
    return is_open and not has_own_clock(scenario) and deployment.liveness is None and deployment.overflow is None


def is_uneven(scenario: Scenario) -> bool:
    """Return whether open traffic, or its deployment, changes during a run, and other seeds give other runs.

    Bursts, days and other changing rates, faults, updates and autoscalers, all tried as they are. Not a trace, which is
    not drawn.
    """
    workload = scenario.workload
    sources = (workload.arrivals, *(each.arrivals for each in workload.classes or ()))
    if workload.trace is not None or workload.has_clients or any(isinstance(e, AllAtOnceArrivals) for e in sources):
        return False
    return has_own_clock(scenario) or any(isinstance(each, BurstArrivals) for each in sources)


def has_other_runs(scenario: Scenario) -> bool:
    """Return whether other seeds give other runs of traffic that is tried as it is and has an objective.

    Uneven traffic and clients of a closed loop. Not a trace, which is not drawn; nor conversations that arrive at a
    rate: sixteen runs of every near fleet would more than double the time of `plan prefix-routing` on one kind of GPU,
    so only fleets that are confirmed get them (`has_conversations`).
    """
    workload = scenario.workload
    is_asked = workload.trace is None and objective(scenario) is not None
    return is_uneven(scenario) or (is_asked and workload.has_clients)


def has_conversations(scenario: Scenario) -> bool:
    """Return whether conversations, or tasks, arrive at a rate and have an objective."""
    workload = scenario.workload
    is_asked = workload.trace is None and objective(scenario) is not None
    return workload.has_sessions and is_asked and not has_other_runs(scenario)


def is_one_job(scenario: Scenario) -> bool:
    """Return whether the traffic is a job whose length depends on the fleet: then its cost is per token.

    All requests at once; or a closed loop without an SLO, where a slow fleet only gets fewer requests.
    """
    arrivals = scenario.workload.arrivals
    return isinstance(arrivals, AllAtOnceArrivals) or (
        isinstance(arrivals, ClosedLoopArrivals) and objective(scenario) is None
    )


def request_limit(scenario: Scenario, most: int) -> int | None:
    """Return ``most`` if a run of that many requests is shorter than the scenario and shows the same; else None.

    A job has a fixed length, and a trace, a changing load, faults and scaling are not the same throughout: these are
    run whole. So are clients of a closed loop, who all start at once, and conversations, whose contexts grow, unless
    the scenario is much longer than these effects last.
    """
    workload, deployment = scenario.workload, scenario.deployment
    sources = (workload.arrivals, *(each.arrivals for each in workload.classes or ()))
    if workload.trace is not None or any(isinstance(each, AllAtOnceArrivals | UNEVEN_ARRIVALS) for each in sources):
        return None
    if workload.is_mixed and workload.has_clients:
        return None
    if deployment.faults or is_scaled(deployment) or deployment.updates:
        return None
    count = workload.num_requests
    if count is None:
        count = int(getattr(workload.arrivals, "rate", 0.0) * (workload.duration or 0.0))
    most = max(most, least_requests(scenario))
    return most if count > most else None


def deciding_requests(scenario: Scenario) -> RequestSpecs:
    """Return the requests that deciding runs serve: the same for every deployment."""
    limit, workload = request_limit(scenario, MOST_REQUESTS), scenario.workload
    if limit is not None:
        workload = workload.of_length(limit)
    return generate(workload, seed=scenario.run.seed, base_path=scenario.folder)


def least_requests(scenario: Scenario) -> int:
    """Return the fewest requests with which the beginning of a run is not too large a part of it."""
    workload = scenario.workload
    arrivals, sessions, agents = workload.arrivals, workload.sessions, workload.agents
    rate = float(getattr(arrivals, "rate", 0.0))
    turns = 1.0 if sessions is None else mean_requests(sessions, scenario.folder)
    if agents is not None:
        turns = mean_calls(agents, scenario.folder)
    if isinstance(arrivals, ClosedLoopArrivals):
        return math.ceil(arrivals.concurrency * max(REQUESTS_PER_CLIENT, CONVERSATIONS_PER_CLIENT * turns))
    warmup = 0.0 if isinstance(scenario.run.warmup, str) else float(scenario.run.warmup)
    seconds = WARMUPS_PER_RUN * warmup
    if sessions is not None:
        thinking = (1 - sessions.tool_share) * (sessions.think_time or 0.0) + sessions.tool_share * sessions.tool_time
        seconds = max(seconds, CONVERSATIONS_PER_RUN * turns * thinking)
    if agents is not None:
        # As if all calls came one after another: a bound.
        seconds = max(seconds, CONVERSATIONS_PER_RUN * turns * agents.tool_time)
    return math.ceil(rate * seconds)


def is_short(scenario: Scenario) -> bool:
    """Return whether a deciding run has at most `MOST_REQUESTS` requests, as far as the scenario says."""
    workload = scenario.workload
    if request_limit(scenario, MOST_REQUESTS) is not None or workload.trace is not None:
        return workload.trace is None
    return workload.num_requests is not None and workload.num_requests <= MOST_REQUESTS


def _shortened(scenario: Scenario, num_requests: int | None, replications: int) -> Scenario:
    if scenario.run.replications != replications:
        scenario = scenario.model_copy(update={"run": scenario.run.model_copy(update={"replications": replications})})
    return scenario if num_requests is None else scenario.of_length(num_requests)


def _trial(scenario: Scenario, overrides: Overrides, replicas: int, summary: Mapping[str, Any]) -> Trial:
    inner = summary["simserve"]
    attainment = inner["slo"]["attainment"]
    deployment, scaling = scenario.deployment, scenario.deployment.autoscaling
    paid = mean_gpus(scenario, summary)
    return Trial(
        overrides=dict(overrides),
        replicas=replicas,
        num_gpus=deployment.num_gpus if scaling is None else replicas * deployment.gpus_per_replica,
        requests=int(inner["requests"]["submitted"]),
        holds=run_holds(scenario, summary),
        attainment=attainment,
        by_metric=dict(inner["slo"]["by_metric"]),
        stability=str(inner["stability"]),
        latencies={
            f"{percentile}_{name}_ms": summary[f"{percentile}_{name}_ms"]
            for name in LATENCIES.values()
            for percentile in SHOWN_PERCENTILES
        },
        usd_per_hour=inner["cost"]["usd_per_hour"],
        mean_gpus=paid,
        usd_per_million_tokens=inner["cost"]["usd_per_million_tokens"],
        watts=paid * inner["energy"]["watts_per_gpu"] + inner["energy"]["encoder_watts"],
        busy=inner["utilization"]["busy"] or 0.0,
        duration=float(summary["duration"]),
        figures={
            **{name: summary[name] for name in ("request_throughput", "output_throughput", "total_token_throughput")},
            "total_input_tokens": summary["total_input_tokens"],
            "total_output_tokens": summary["total_output_tokens"],
            "completed": summary["completed"],
            "mean_batch": inner["steps"]["mean_batch"],
        },
        binding=str(inner["bottleneck"]["binding"]),
        fidelity=str(inner["fidelity"]),
        mean_stay=math.nan if summary["mean_e2el_ms"] is None else summary["mean_e2el_ms"] / MS,
        load_ratio=inner["load_ratio"],
        encoder_gpus=0 if deployment.encoder_disaggregation is None else deployment.encoder_disaggregation.max_workers,
    )


def mean_gpus(scenario: Scenario, summary: Mapping[str, Any]) -> float:
    """Return the mean number of GPUs that were paid for in a run."""
    deployment, inner = scenario.deployment, summary["simserve"]
    if not is_scaled(deployment):
        return float(deployment.num_gpus)
    if deployment.pools and inner["pools"]:
        return float(sum(pool["gpus"] for pool in inner["pools"].values()))
    if deployment.pools:  # a single pool has no figures by pool
        return float(inner["replicas"]["mean"] * deployment.num_gpus / deployment.pools[0].replicas)
    return float(inner["replicas"]["mean"] * deployment.gpus_per_replica)


def run_holds(scenario: Scenario, summary: Mapping[str, Any]) -> bool:
    """Return whether a run meets the SLO, those of its classes and the thresholds, and keeps up with its traffic."""
    inner = summary["simserve"]
    if not summary["completed"] or any(not each["ok"] for each in inner["thresholds"]):
        return False
    is_one = isinstance(scenario.workload.arrivals, AllAtOnceArrivals)
    if not is_one and inner["stability"] == "overloaded":
        return False
    asked = objective(scenario)
    if asked is None:
        return bool(summary["failed"] == 0)
    attainment = inner["slo"]["attainment"]
    return attainment is not None and attainment >= asked.attainment and _each_class_holds(asked, inner["classes"])


def is_attained(scenario: Scenario, trial: Trial) -> bool:
    """Return whether the required share of all requests is within the SLO, whatever else must hold."""
    asked = objective(scenario)
    return asked is None or (trial.attainment is not None and trial.attainment >= asked.attainment)


def _each_class_holds(asked: SLO, classes: Mapping[str, Any]) -> bool:
    """Return whether each class that has its own objective and sent requests reaches the required share."""
    for name, own in asked.by_class.items():
        reached = classes[name]["slo"]["attainment"] if name in classes else None
        if reached is not None and reached < own.attainment:
            return False
    return True


def usd_per_month(trial: Trial) -> float | None:
    """Return the dollars of a trial's fleet for 30 days; None without a price."""
    return None if trial.usd_per_hour is None else trial.usd_per_hour * HOURS_PER_MONTH
