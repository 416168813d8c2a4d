"""The runs that decide on a fleet: shorter or narrower ones if they suffice, and runs with fresh seeds.

Steady open traffic is run until it settles, whatever the scenario's number of requests: what the fleet finishes with
its queue never empty refuses early, and what is far from the limit passes early. Other open-loop traffic that is the
same throughout is run for fewer requests. Days, bursts, clients of a closed loop and conversations are run as long as
the scenario says: rates change, all clients start at once, contexts grow. If about as many requests miss as may, runs
of fresh seeds decide. With many clients, fewer replicas get their share of the clients; the load per replica is the
same, and so is the behaviour: 1 to 8 replicas of the 38 that `scenarios/ten-thousand-users.yaml` needs hold with the
same share of the clients to within one replica of 38.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from simserve.metrics.statistics import t_quantile
from simserve.planner.capacity.fresh import MOST_REQUESTS as MOST_FRESH_REQUESTS
from simserve.planner.capacity.fresh import TIMES_FRESH, FreshRun, fresh_runs, is_one_more_held
from simserve.planner.capacity.level import Promise
from simserve.planner.capacity.probe import LoadProbe, load_of, own_traffic, probe_of
from simserve.planner.capacity.search import (
    FRESH_CONFIDENCE,
    FRESH_RUNS,
    highest_promised,
    is_load_sustained,
    long_run_requests,
    settled_requests,
)
from simserve.planner.overrides import ONCE, Overrides, with_seed
from simserve.planner.scaling import scaled_traffic
from simserve.planner.search.trial import (
    MOST_REQUESTS,
    Trial,
    deployed,
    deployment_in,
    finishable_of,
    fleet_of,
    grows_steady,
    has_conversations,
    has_other_runs,
    is_steady,
    is_uneven,
    least_requests,
    request_limit,
    run_fleet,
    run_holds,
    try_fleet,
    with_probability,
)
from simserve.scenario.finishable import Finishable
from simserve.scenario.resolve import resolve, resolve_like
from simserve.scenario.run import run
from simserve.scenario.schema import Scenario, objective
from simserve.sim.acceleration import Accelerate
from simserve.workload.arrival_spec import ClosedLoopArrivals

NARROW_REQUESTS = 2500  # Approximate requests of a narrower run.
SHORT_REQUESTS = 2000  # Requests of the first run of steady traffic.
FAR = 2.0
"""Ratio of the share that misses to the share that may, or its inverse, from which a short run decides alone."""
ROUTING_KEY = "deployment.routing"
_ANY_ROUTING = "round_robin"
"""Any router sends everything to one replica; this one makes no decisions that would interrupt the kernel's leaps."""
_OF_EQUAL_REPLICAS = (
    *("pools", "autoscaling", "faults", "updates", "overflow", "admission", "response_cache", "fairness"),
)
FRESH_SEED, SEEDS_APART = 1_000_003, 7919
"""Added to the scenario's seed for the first fresh run, and for each further one: neighbouring seeds share none."""
SEEDS = 2**63  # Number of seeds.


def deciding_run(scenario: Scenario, overrides: Overrides, replicas: int) -> Trial:
    """Run a fleet as long as a search needs; see `simserve.planner.search.trial.try_fleet`."""
    there = deployment_in(scenario, overrides)
    fewer = narrowed(there, replicas, NARROW_REQUESTS)
    if fewer is not None:
        return narrow_run(scenario, overrides, replicas, fewer)
    if is_steady(there):
        return settled_run(scenario, overrides, replicas)
    limit = request_limit(there, MOST_REQUESTS)
    trial = try_fleet(scenario, overrides, replicas, limit)
    has_others = limit is None and has_other_runs(deployed(scenario, overrides, replicas))
    if not has_others or not _is_near(scenario, trial):
        return trial
    promise = promise_of(scenario, overrides, replicas)
    return replace(trial, holds=promise.holds, promise=promise)


def _is_near(scenario: Scenario, trial: Trial) -> bool:
    """Return whether the share that misses is so near its limit that another run may decide otherwise."""
    return not _misses_by_far(scenario, trial) and not (trial.holds and _holds_by_far(scenario, trial))


def settled_run(scenario: Scenario, overrides: Overrides, replicas: int) -> Trial:
    """Run steady open traffic until it is known whether a fleet holds.

    A short run drops what misses by far, and passes what meets the objective by far and has settled. A load that is too
    close to what the fleet can finish, or above it, is refused; in between, longer runs decide.
    """
    resolved = fleet_of(scenario, overrides, replicas)
    there = resolved.scenario
    least = least_requests(there)
    trial, evidence = run_fleet(scenario, overrides, replicas, max(SHORT_REQUESTS, least))
    if not trial.holds and _misses_by_far(scenario, trial):
        return with_probability(trial, evidence)
    offered = own_traffic(there)
    finishable = finishable_of(scenario, overrides, replicas) if offered.is_stationary else None
    if finishable is None or math.isnan(trial.mean_stay):
        return with_probability(trial, evidence)
    rate, ratio = offered.offered_rate, offered.offered_rate / finishable.rate
    if rate > highest_promised(finishable):
        verdict = "overloaded" if ratio >= 1 else trial.stability
        trial = replace(trial, holds=False, load_ratio=ratio, stability=verdict)
        return with_probability(trial, evidence)
    for fewest in (SHORT_REQUESTS, MOST_REQUESTS, long_run_requests(rate)):
        needed = max(fewest, least, settled_requests(ratio, rate * trial.mean_stay))
        if needed > trial.requests:
            trial, evidence = run_fleet(scenario, overrides, replicas, needed, finishable=finishable)
        if _misses_by_far(scenario, trial) or (trial.holds and _holds_by_far(scenario, trial)):
            break
    return with_probability(replace(trial, load_ratio=ratio), evidence)


def steady_probe(scenario: Scenario, overrides: Overrides, replicas: int) -> LoadProbe | None:
    """Return a probe of a fleet at any rate, if its traffic becomes steady and has an objective; else None."""
    there = deployed(scenario, overrides, replicas)
    if not grows_steady(there) or objective(there) is None or not own_traffic(there).is_stationary:
        return None
    probe = probe_of(fleet_of(scenario, overrides, replicas), finishable_of(scenario, overrides, replicas))
    return probe if probe.is_steady else None


def promise_of(scenario: Scenario, overrides: Overrides, replicas: int, is_picked: bool = False) -> Promise:
    """Return whether 95 % of fresh runs of a fleet hold at the scenario's rate.

    As promised by `simserve capacity`: for steady traffic; for bursts, days, clients of a closed loop and the like in
    runs as long as the scenario says, with other random requests; for conversations only if the fleet is to be chosen
    (``is_picked``). A trace needs no fresh runs.
    """
    probe = steady_probe(scenario, overrides, replicas) if is_steady(scenario) else None
    if probe is None:
        return _promise_of_other_runs(scenario, overrides, replicas, is_picked)
    assert probe.finishable is not None  # of a steady probe
    rate = load_of(scenario, own_traffic(scenario))
    return is_load_sustained(probe, rate, asked=probe.slo.attainment, finishable=probe.finishable)


def _promise_of_other_runs(scenario: Scenario, overrides: Overrides, replicas: int, is_picked: bool) -> Promise:
    """Return whether fresh runs as long as the scenario says hold, and what the fleet finishes if determined.

    Eight runs for days, bursts and the like; for clients and conversations as many as `simserve capacity` requires.
    """
    once = {**overrides, **ONCE}
    there = deployed(scenario, once, replicas)
    if not (has_other_runs(there) or (is_picked and has_conversations(there))):
        return Promise(holds=True)
    many: dict[str, Any] = {"most_runs": TIMES_FRESH * FRESH_RUNS, "is_sustained": is_one_more_held}
    many = {} if is_uneven(there) else many
    fresh, asked = None, objective(there)
    if asked is not None:
        # A run in which too many requests miss fails whatever the fleet finishes, which takes longer to determine.
        fresh = fresh_runs_of(there, None, **many)
        if min(fresh.attainments, default=1.0) < asked.attainment:
            return replace(fresh, holds=False)
    known = None if there.deployment.overflow else finishable_of(scenario, overrides, replicas)
    if fresh is None or known is not None:
        fresh = fresh_runs_of(there, known, **many)
    return replace(fresh, finishable=known)


def _misses_by_far(scenario: Scenario, trial: Trial) -> bool:
    missed = _missed(scenario, trial)
    return missed > FAR if missed is not None else not trial.holds


def _holds_by_far(scenario: Scenario, trial: Trial) -> bool:
    missed = _missed(scenario, trial)
    return missed is None or missed * FAR <= 1


def _missed(scenario: Scenario, trial: Trial) -> float | None:
    """Return the share that missed, divided by the share that may; None without an objective, or if none may."""
    asked = objective(scenario)
    if asked is None or trial.attainment is None or asked.attainment >= 1:
        return None
    return (1 - trial.attainment) / (1 - asked.attainment)


def narrowed(there: Scenario, replicas: int, most_requests: int) -> int | None:
    """Return the number of replicas that serve about ``most_requests``; None if fewer do not behave like all.

    Args:
        there: The scenario with the overrides of the deployment.
        most_requests: Number of requests that is enough.
    """
    workload, deployment = there.workload, there.deployment
    arrivals, count = workload.arrivals, workload.num_requests
    if not isinstance(arrivals, ClosedLoopArrivals) or count is None or count <= most_requests:
        return None
    if any(getattr(deployment, name, None) for name in _OF_EQUAL_REPLICAS):
        return None
    fewer = math.ceil(replicas * most_requests / count)
    return fewer if fewer < replicas and arrivals.concurrency * fewer >= replicas else None


def narrow_run(scenario: Scenario, overrides: Overrides, replicas: int, fewer: int) -> Trial:
    """Run ``fewer`` of the replicas with their share of the clients, and return the result for all replicas.

    Latencies and shares are those of the run; GPUs, dollars, watts and rates are those of all replicas.
    """
    share = fewer / replicas
    narrow = scaled_traffic(scenario, share)
    assert narrow is not None  # a closed loop
    assert scenario.workload.num_requests is not None  # as `narrowed` requires
    count = max(1, round(scenario.workload.num_requests * share))
    narrow = narrow.model_copy(update={"workload": narrow.workload.model_copy(update={"num_requests": count})})
    deployed = overrides if fewer > 1 else {**overrides, ROUTING_KEY: _ANY_ROUTING}
    trial = try_fleet(narrow, deployed, fewer)
    rates = {name: None if value is None else value / share for name, value in trial.figures.items()}
    return replace(
        trial,
        overrides=dict(overrides),
        replicas=replicas,
        num_gpus=round(trial.num_gpus / share),
        usd_per_hour=None if trial.usd_per_hour is None else trial.usd_per_hour / share,
        mean_gpus=trial.mean_gpus / share,
        watts=trial.watts / share,
        figures={**rates, "mean_batch": trial.figures["mean_batch"]},
        share=share,
    )


def further_run(attainments: Sequence[float]) -> tuple[float, float]:
    """Return the interval of a further run's share, from Student's t over the shares of some runs.

    Its two-sided confidence is `FRESH_CONFIDENCE`; it is cut at 0 and 1.

    Args:
        attainments: Shares of at least two runs.
    """
    runs = len(attainments)
    spread = float(np.std(attainments, ddof=1)) * math.sqrt(1 + 1 / runs)
    reach = t_quantile(runs - 1, FRESH_CONFIDENCE) * spread
    mean = float(np.mean(attainments))
    return max(mean - reach, 0.0), min(mean + reach, 1.0)


def _is_attained(attainments: Sequence[float], asked: float) -> bool:
    return further_run(attainments)[0] >= asked


def fresh_runs_of(
    scenario: Scenario,
    finishable: Finishable | None = None,
    *,
    most_runs: int = FRESH_RUNS,
    most_requests: int = MOST_FRESH_REQUESTS,
    is_sustained: Callable[[Sequence[float], float], bool] = _is_attained,
    accelerate: Accelerate = "auto",
) -> Promise:
    """Return whether fresh runs of a scenario, as long as it says, meet its objective, and one more would by a bound.

    Args:
        scenario: The scenario, for a single run without a precision.
        finishable: What the deployment finishes with its queue never empty; None: the queue's trend alone decides
            whether a run is overloaded.
        most_runs: Number of runs; fewer if they are long.
        most_requests: Requests of all runs together, above which there are fewer runs.
        is_sustained: The bound on one more run, by default the lower end of `further_run`.
        accelerate: Whether runs are compiled.

    Raises:
        InputError: The deployment does not go together.
        KeyboardInterrupt: The user stopped a run.
    """
    known, asked = resolve(scenario), objective(scenario)

    def run_of(index: int) -> FreshRun:
        fresh = with_seed(scenario, (scenario.run.seed + FRESH_SEED + SEEDS_APART * index) % SEEDS)
        found = run(resolve_like(fresh, known), explain=False, accelerate=accelerate, finishable=finishable)
        if found.simulation.was_interrupted:
            raise KeyboardInterrupt
        return FreshRun(
            holds=run_holds(fresh, found.summary),
            attainment=None if asked is None else found.summary["simserve"]["slo"]["attainment"] or 0.0,
            num_requests=len(found.simulation.records),
        )

    share = None if asked is None else asked.attainment
    return fresh_runs(run_of, asked=share, most_runs=most_runs, most_requests=most_requests, is_sustained=is_sustained)
