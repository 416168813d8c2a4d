"""From a scenario to its result: resolve, price, draw the traffic, simulate, summarise. Writes no file.

Also how the error model sees a deployment and its run, and the errors that it expects.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from simserve.errors import UsageError
from simserve.metrics.cost import grid
from simserve.metrics.features import SpeculationFacts, TierPrices
from simserve.metrics.gateway import drafted
from simserve.metrics.replications import PILOT_RUNS, Sample, Width, have_settled, pool, widest, widths
from simserve.metrics.result import RunResult
from simserve.metrics.summary import (
    FrozenDict,
    RunFacts,
    add_interval,
    frozen,
    in_json,
    latency_values,
    measure,
    steady_rates,
    summarize,
)
from simserve.metrics.throughput import LIMITS, Conditions, UsersFacts, conditions
from simserve.perf.operators import PricedDeployment
from simserve.perf.tables import KEPT_BY_IDENTITY, price
from simserve.profiles.api import load_api
from simserve.profiles.catalog import Itself
from simserve.profiles.engine_options import MeasuredFactors
from simserve.profiles.engine_profile import load_engine, version_note
from simserve.profiles.expected_errors import (
    FEWEST_CALIBRATED_RUNS,
    SPECULATION,
    Expectation,
    Server,
    expect,
    generation_of,
    load_error_model,
)
from simserve.profiles.resolved_engine import ResolvedEngine
from simserve.scenario.combinations import feature_notes, without_effect
from simserve.scenario.deployment_spec import tiers_usd_per_hour
from simserve.scenario.finishable import Finishable, KnownFinishable, find_finishable, offered_load
from simserve.scenario.fit import check_fit, leading_warnings
from simserve.scenario.formats import quality_of
from simserve.scenario.media import encoder_power, encoder_startup_seconds, encoders_usd_per_hour
from simserve.scenario.replication import (
    pool_setups,
    replica_weights_bytes,
    replicas_per_node,
    replicate,
    startup_seconds,
    transferred_bytes_per_token,
)
from simserve.scenario.resolve import ResolvedScenario, resolve
from simserve.scenario.schema import Scenario, limits_by_class, objective
from simserve.scenario.seats import limit_gains, seats_curve
from simserve.scenario.speculative import speculation_facts
from simserve.sim.acceleration import Accelerate
from simserve.sim.control import Control, DisaggregationSpec, OverflowSpec, StreamingSpec
from simserve.sim.simulate import Deployment, Simulation
from simserve.version import __version__
from simserve.workload.arrival_spec import AllAtOnceArrivals
from simserve.workload.requests import RequestSpecs

if TYPE_CHECKING:
    from simserve.metrics.api_cost import ApiPrices
    from simserve.sim.own_parts import OwnParts

LEAST_WAITING_SHARE = 0.1
"""Share of time spent waiting below which limits of the scheduler are not examined; half of what
`simserve.metrics.throughput` requires."""
MOST_LENGTHENED = 1_000_000
"""Most requests of one run when runs are lengthened for a precision: longer ones take minutes."""
MOST_TOGETHER = 1_000_000
"""Most requests of all runs together when the maximum number of runs misses the precision and they are lengthened
instead: it takes some ten CPU seconds, compiled."""
OUT_OF_REACH = 4
"""Factor on `MOST_TOGETHER`: a precision that seems to need more requests than that is not tried for with longer runs.
The number is an estimate from a spread that is an estimate itself."""
LOOK_AGAIN = 1.1
"""Factor on the number of runs before the precision is checked again: pooling all requests takes as long as a run."""
Progress = Callable[[int, int], None]  # Called periodically with the requests done and all requests of the run.


def server_of(resolved: ResolvedScenario, found: Conditions, *, has_pools: bool = False) -> Server:
    """Return the query to the error model.

    Args:
        resolved: The deployment; for separate workers that were measured, a decode worker.
        has_pools: Whether prompts and answers have replicas of their own.
    """
    shape = resolved.shape
    version = shape.engine.requested_version or shape.engine.version
    calibration = calibration_of(resolved)
    rare = (each.shape.model.rare_layers for each in resolved.pools or (resolved,))
    return Server(
        generation=generation_of(shape.engine.name, version),
        hardware=shape.hardware.name,
        has_experts=shape.model.moe is not None,
        num_gpus=shape.num_gpus,
        is_served=not isinstance(resolved.scenario.workload.arrivals, AllAtOnceArrivals),
        has_pools=has_pools,
        in_flight=found.in_flight,
        at_once=found.at_once,
        host=found.host,
        mechanism=SPECULATION if shape.speculation is not None else next(filter(None, rare), ""),
        calibrated_runs=(calibration.runs or 0) if calibration else 0,
        calibrated_date=(calibration.date or "") if calibration else "",
        own_errors={str(name): own for name, own in calibration.own_errors.items()} if calibration else {},
    )


def expectation_of(resolved: ResolvedScenario, simulation: Simulation, found: Conditions | None = None) -> Expectation:
    """Return the errors to expect of a run compared with a real server; ``found``: the run's conditions, if known."""
    found = found or conditions(simulation.records, simulation.totals, simulation.num_replicas)
    return expect(load_error_model(), server_of(resolved, found))


def expectations_of(
    resolved: ResolvedScenario, simulation: Simulation, found: Conditions | None = None
) -> tuple[Expectation, Expectation]:
    """Return the same, and the errors once `FEWEST_CALIBRATED_RUNS` loads of the server have been measured."""
    found = found or conditions(simulation.records, simulation.totals, simulation.num_replicas)
    server, errors = server_of(resolved, found), load_error_model()
    measured = replace(server, calibrated_runs=max(server.calibrated_runs, FEWEST_CALIBRATED_RUNS))
    # Separate workers are not calibrated as a whole.
    return expect(errors, server), expect(errors, server if resolved.pools else measured)


def calibration_of(resolved: ResolvedScenario) -> MeasuredFactors | None:
    """Return the measured factors of this very deployment; None: its engine profile has none, or those of another."""
    shape, engine = resolved.shape, resolved.scenario.deployment.engine
    measured = load_engine(engine.name, resolved.scenario.folder).nearest_version(engine.version).measured_factors
    if measured is None or resolved.pools:
        return None
    served = measured.model, measured.hardware, measured.gpus
    return None if served != (shape.model.catalogue_name, shape.hardware.name, shape.num_gpus) else measured


def run(
    asked: Scenario | ResolvedScenario,
    *,
    progress: Progress | None = None,
    explain: bool = True,
    keep_steps: bool = False,
    accelerate: Accelerate = "auto",
    finishable: Finishable | KnownFinishable | Literal["find"] | None = "find",
    by_reference: bool = False,
    own: OwnParts | None = None,
    served: tuple[RequestSpecs, Simulation] | None = None,
) -> RunResult:
    """Return what happens when the scenario's traffic meets its deployment.

    An interrupt (Ctrl-C) ends the run early: the result then holds what was finished, and says so in
    ``simulation.was_interrupted``. Of several replications the interrupted one is left out, except the first.

    Args:
        asked: What to run; a search has already resolved it.
        progress: Called periodically.
        explain: Whether to find, with more runs, what a change of another limit of the scheduler would bring. A search
            that needs only latencies and dollars does without; the bottleneck is then named without these runs, and
            step times are not broken down by operator.
        keep_steps: Whether the first replication keeps every step in ``simulation.steps``, for a timeline.
        accelerate: Whether the kernel runs compiled (`simserve.sim.acceleration`).
        finishable: What the deployment finishes of this traffic, if a search knows it; ``find``: it is found first; a
            mapping: it is found and kept there; None: only the queue's trend says whether the run keeps up.
        by_reference: Whether the reference in plain SimPy (`simserve.reference`) makes the run, step by step.
            Statements about other limits and the load ratio come from further runs by the data plane.
        own: A user's own parts. Other limits and the load ratio are then left out: they come from runs of the scenario
            alone.
        served: A run made by a user's own clients, whose result is returned; None: the run is made here.

    Raises:
        InfeasibleError: The model does not fit; the message carries the arithmetic and what would fit.
        InputError: A profile or a trace is missing or invalid, or they are incompatible.
    """
    resolved = resolve(asked)
    scenario = resolved.scenario
    tells_operators = explain
    # The effect of another limit is examined only for one kind of replica.
    explain = explain and not resolved.pools and own is None and served is None
    check_fit(resolved)
    if own is not None:
        check_own_parts(own, resolved)
    if own is not None or served is not None:
        finishable = None
    with scenario.blaming("deployment"):
        priced = price(resolved.shape)
    runs = _replicate(
        resolved,
        priced,
        progress,
        explain=explain,
        tells_operators=tells_operators,
        keep_steps=keep_steps,
        accelerate=accelerate,
        finishable=finishable,
        by_reference=by_reference,
        own=own,
        served=served,
    )
    first = runs.first
    summary = runs.summaries[0]
    if _plans_several(scenario):
        summary = pool(runs.summaries, runs.samples)
        add_interval(summary, runs.facts)
    try:
        curve = seats_curve(resolved, first, runs.specs) if explain else None
        _weigh_seats(summary["simserve"]["bottleneck"], curve, resolved)
    except KeyboardInterrupt:
        first = replace(first, was_interrupted=True)
    summary["simserve"]["interrupted"] = first.was_interrupted
    summary["simserve"]["replications"] = _replications(scenario, runs)
    summary["simserve"]["month"] = None  # What a month costs and what would hold are the planner's to find.
    summary["simserve"]["advice"] = None
    return RunResult(
        summary=frozen(summary),
        scenario=scenario.as_mapping(),
        simulation=first,
        slo=runs.facts.slo,
        folder=scenario.folder,
    )


def _has_queued(simulation: Simulation) -> bool:
    """Return whether requests spent a noticeable share of their time waiting, so that a limit may be the bottleneck."""
    records = simulation.records
    waited = float(np.nansum(records.scheduled_time - records.admitted_time))
    return waited > LEAST_WAITING_SHARE * float(np.nansum(records.finish_time - records.admitted_time))


def _weigh_seats(bottleneck: dict[str, Any], curve: dict[str, Any] | None, resolved: ResolvedScenario) -> None:
    """Add the curve over ``max_num_seqs``; if more seats would lower throughput, the bottleneck is KV memory."""
    bottleneck["seats_curve"] = curve
    seats = resolved.engine.max_num_seqs
    if curve is not None and curve["best_max_num_seqs"] <= seats and bottleneck["binding"] != LIMITS["blocks"]:
        bottleneck["binding"] = LIMITS["blocks"]
        bottleneck["explanation"] += (
            f" KV memory is full: with a full queue, more than {curve['best_max_num_seqs']} seats lower throughput."
        )


def _plans_several(scenario: Scenario) -> bool:
    return scenario.run.replications > 1 or scenario.run.precision is not None


def _replications(scenario: Scenario, runs: _Runs) -> dict[str, Any]:
    """Return how many runs were requested and done, how long each was, and whether a precision was reached."""
    precision = scenario.run.precision
    every = [] if precision is None else widths(runs.summaries, precision, runs.samples)
    width = max(every, key=lambda each: each.half_width / each.allowed, default=None)
    return {
        "asked": scenario.run.replications if precision is None else scenario.run.max_replications,
        "done": len(runs.summaries),
        "requests_each": len(runs.specs),
        "precision": precision,
        "reached": None if precision is None else width is None or width.is_narrow,
        "widest": None
        if width is None
        else {
            "metric": width.metric,
            "half_width": width.half_width if math.isfinite(width.half_width) else None,
            "allowed": width.allowed,
        },
        "by_share": [each.metric for each in every if each.is_of_share and each.is_narrow],
        "needed_requests": None if width is None or width.is_narrow else _needed(runs, width),
    }


def _needed(runs: _Runs, width: Width) -> int | None:
    """Return about how many requests of all runs together would reach a precision: half widths fall with the root."""
    if not math.isfinite(width.half_width):
        return None
    return math.ceil((width.half_width / width.allowed) ** 2 * len(runs.specs) * len(runs.summaries))


@dataclass(slots=True)
class _Runs:
    """Replications done so far."""

    scenario: Scenario  # What is run: as given, or with longer runs.
    first: Simulation  # The first run, marked as interrupted if fewer runs were done than requested.
    specs: RequestSpecs  # Its traffic.
    facts: RunFacts  # What else a summary says.
    summaries: list[dict[str, Any]] = field(default_factory=list)  # One per replication.
    samples: list[Sample] = field(default_factory=list)  # The latencies of each, if several are requested.
    next_look: int = 0  # Number of runs at which the precision is checked again.

    def add(self, simulation: Simulation, specs: RequestSpecs) -> None:
        """Keep the results of one more run."""
        facts = self.facts
        measured = measure(simulation, slo=facts.slo, warmup=facts.warmup, offered=facts.offered)
        self.summaries.append(summarize(simulation, facts, measured, specs))
        if _plans_several(self.scenario):
            rates = steady_rates(simulation, measured) if facts.warmup == "auto" else {}
            self.samples.append(Sample(latency_values(measured), simulation.totals.itl, rates))


def _replicate(
    resolved: ResolvedScenario,
    priced: PricedDeployment,
    progress: Progress | None,
    *,
    explain: bool,
    tells_operators: bool,
    keep_steps: bool = False,
    accelerate: Accelerate = "auto",
    finishable: Finishable | KnownFinishable | Literal["find"] | None = "find",
    by_reference: bool = False,
    own: OwnParts | None = None,
    served: tuple[RequestSpecs, Simulation] | None = None,
) -> _Runs:
    """Return every requested replication; with a precision, from runs long enough to have settled.

    For runs after the first, only figures are kept. An interrupted run is dropped, unless it is the first.
    """
    scenario = resolved.scenario
    deployment = deployment_of(resolved, priced)
    count = max(scenario.run.replications, 1 if scenario.run.precision is None else PILOT_RUNS)
    count = min(count, scenario.run.max_replications) if scenario.run.precision is not None else count
    options: dict[str, Any] = {"keep_steps": keep_steps, "accelerate": accelerate}
    further: dict[str, Any] = {"accelerate": accelerate}
    if by_reference:
        further = {"serve": _referee(scenario, deployment)}
        options = {**further, "keep_steps": keep_steps}
    if own is not None:
        options["own"] = further["own"] = own
    shown = _part(progress, 0, count)
    specs, first = served or replicate(deployment, scenario, 0, progress=shown, **options)
    facts = replace(_facts(resolved, priced, first, specs, explain=explain), tells_operators=tells_operators)
    if own is not None:
        facts = replace(facts, warnings=[*facts.warnings, *own.notes(specs)])
    runs = _Runs(scenario, first, specs, facts)
    try:
        if finishable == "find" or isinstance(finishable, dict):
            known = finishable if isinstance(finishable, dict) else None
            finishable = None if first.was_interrupted else find_finishable(resolved, deployment, known)
        runs.facts = _with_load(facts, specs, finishable)
        runs.add(first, specs)
        if shown is not None:
            shown(len(specs), len(specs))
        while True:
            if not _asks_longer(runs):
                _add_more(runs, deployment, count, progress, further)
            if not _asks_longer(runs):
                break
            longer = _twice_as_long(runs)
            specs, first = replicate(deployment, longer, 0, progress=shown, **options)
            if first.was_interrupted:
                break
            its = _with_load(replace(facts, **_of_run(resolved, first)), specs, finishable)
            runs = _Runs(longer, first, specs, its)
            runs.add(first, specs)
    except KeyboardInterrupt:
        if not runs.summaries:
            runs.add(runs.first, runs.specs)
        runs.first = replace(runs.first, was_interrupted=True)
    return runs


def _twice_as_long(runs: _Runs) -> Scenario:
    """Return what is run, with twice the requests or twice the time."""
    workload = runs.scenario.workload
    twice: dict[str, Any] = {"num_requests": 2 * len(runs.specs)}
    if workload.duration is not None:
        twice = {"duration": 2 * workload.duration}
    return runs.scenario.model_copy(update={"workload": workload.model_copy(update=twice)})


def _referee(scenario: Scenario, deployment: Deployment) -> Callable[..., Simulation]:
    """Return the function that serves requests by the reference."""
    from simserve.scenario.reference_run import refuse, simulate_by_reference, uncounted

    refuse(scenario, uncounted(deployment, scenario.deployment), "run the scenario without --reference")

    def serve(
        served: Deployment,
        specs: RequestSpecs,
        *,
        progress: Progress | None = None,
        keep_steps: bool = False,
        own: OwnParts | None = None,
    ) -> Simulation:
        simulation = simulate_by_reference(served, specs, keep_steps=keep_steps, own=own)
        if progress is not None:
            progress(len(specs), len(specs))
        return simulation

    return serve


def _add_more(
    runs: _Runs, deployment: Deployment, count: int, progress: Progress | None, options: dict[str, Any]
) -> None:
    """Run the replications after the first."""
    while not runs.first.was_interrupted and _asks_another(runs, count):
        done = len(runs.summaries)
        shown = _part(progress, done, max(count, done + 1))
        specs, simulation = replicate(deployment, runs.scenario, done, progress=shown, **options)
        if simulation.was_interrupted:
            runs.first = replace(runs.first, was_interrupted=True)
        else:
            runs.add(simulation, specs)
        if shown is not None:
            shown(len(runs.specs), len(runs.specs))


def _of_run(resolved: ResolvedScenario, simulation: Simulation) -> dict[str, Any]:
    """Return the facts that depend on the length of a run."""
    found = conditions(simulation.records, simulation.totals, simulation.num_replicas)
    return {"expectation": expectation_of(resolved, simulation, found), "waiting": found.waiting}


def _asks_longer(runs: _Runs) -> bool:
    """Return whether a precision needs longer runs: they are too short to have settled, and may be lengthened.

    Or the maximum number of runs have settled, but do not reach it. A trace has no more requests than its own.
    """
    asked = runs.scenario.run
    if asked.precision is None or runs.first.was_interrupted or runs.scenario.workload.trace is not None:
        return False
    if runs.summaries[0]["simserve"]["stability"] == "overloaded" or 2 * len(runs.specs) > MOST_LENGTHENED:
        return False
    have = have_settled(runs.summaries)
    if have is False:
        return True
    if have is None or len(runs.summaries) < max(asked.max_replications, PILOT_RUNS):
        return False
    width = widest(runs.summaries, asked.precision, runs.samples)
    if width is None or width.is_narrow or 2 * len(runs.specs) * asked.max_replications > MOST_TOGETHER:
        return False
    return (_needed(runs, width) or 0) <= OUT_OF_REACH * MOST_TOGETHER


def _with_load(facts: RunFacts, specs: RequestSpecs, finishable: Finishable | None) -> RunFacts:
    """Return the facts of a run with its traffic compared to what can be finished, if that is known."""
    if finishable is None:
        return facts
    return replace(facts, offered=offered_load(specs, finishable), finishable=finishable.rate)


def _asks_another(runs: _Runs, count: int) -> bool:
    """Return whether to run one more replication: the first ``count``, then until the precision is reached."""
    run, done = runs.scenario.run, len(runs.summaries)
    if run.precision is not None and _asks_longer(runs):
        return False  # longer runs replace them
    if done < count or run.precision is None:
        return done < count
    if done >= run.max_replications or have_settled(runs.summaries) is False:
        return False
    if done < runs.next_look:
        return True
    runs.next_look = math.ceil(LOOK_AGAIN * done)
    width = widest(runs.summaries, run.precision, runs.samples)
    return width is not None and not width.is_narrow


def _part(progress: Progress | None, replication: int, replications: int) -> Progress | None:
    """Return the progress of one replication as a part of all planned ones."""
    if progress is None:
        return None
    return lambda done, total: progress(replication * total + done, replications * total)


def _facts(
    resolved: ResolvedScenario, priced: PricedDeployment, simulation: Simulation, specs: RequestSpecs, *, explain: bool
) -> RunFacts:
    scenario, engine = resolved.scenario, resolved.shape.engine
    version = version_note(engine.name, engine.requested_version, engine.sources["version"])
    notes = [version, *priced.notes, *feature_notes(scenario), *without_effect(scenario, specs)]
    pools = {spec.name: own for spec, own in zip(scenario.deployment.pools, resolved.pools, strict=True)}
    return RunFacts(
        version=__version__,
        seed=scenario.run.seed,
        scenario_hash=scenario.hash,
        scenario_name=scenario.name,
        fidelity=priced.fidelity,
        fidelity_by_operator=dict(priced.operators),
        **_of_run(resolved, simulation),
        warnings=leading_warnings(resolved),
        engine_resolved=FrozenDict(_knobs_of(Itself(engine)), notes=tuple(note for note in notes if note)),
        formats=resolved.formats,
        memory=resolved.memory,
        num_gpus=resolved.num_gpus,
        gpu_hour_usd=resolved.gpu_hour_usd,
        gpu_hour_source=resolved.gpu_hour_source,
        pays_electricity=resolved.gpu_hour.pays_electricity,
        grid=grid(scenario.pricing),
        idle_watts=resolved.shape.hardware.power.idle,
        board_watts=resolved.shape.hardware.power.board,
        slo=objective(scenario),
        warmup=scenario.run.warmup,
        overflow=_overflow_prices(scenario),
        peak_flops=priced.parts.peak_flops,
        peak_bandwidth=priced.parts.peak_bandwidth,
        thresholds=scenario.thresholds,
        quality=quality_of(resolved.shape),
        limit_gains=limit_gains(resolved, specs) if explain and _has_queued(simulation) else {},
        gpus_per_replica=resolved.shape.num_gpus,
        tier_prices=_tier_prices(resolved),
        **_encoder_facts(resolved),
        users=_users(scenario, specs),
        num_adapters=None if scenario.workload.loras is None else scenario.workload.loras.num_adapters,
        round_pause=getattr(scenario.workload.arrivals, "round_pause", None),
        speculation=_speculation(resolved, priced, simulation),
        pool_gpu_hour_usd={name: own.gpu_hour_usd for name, own in pools.items()},
        pool_memory={name: own.memory for name, own in pools.items()},
    )


@lru_cache(maxsize=KEPT_BY_IDENTITY)
def _knobs_of(engine: Itself[ResolvedEngine]) -> FrozenDict:
    """Return every knob of an engine for a summary: more than half of its values, the same for run after run."""
    return frozen(in_json(engine.value.model_dump()))


def _tier_prices(resolved: ResolvedScenario) -> TierPrices | None:
    """Return the price of the KV tiers of all pools, in addition to the GPUs; None: there are none."""
    pools = [(each, each.scenario.deployment) for each in resolved.pools or (resolved,)]
    if not any(deployment.engine.kv_tiers for _, deployment in pools):
        return None
    own = sum(tiers_usd_per_hour(each.engine.kv_tiers or (), each.replicas, is_shared=False) for _, each in pools)
    shared = sum(tiers_usd_per_hour(each.engine.kv_tiers or (), 1, is_shared=True) for _, each in pools)
    return TierPrices(own / resolved.num_gpus, shared)


def _encoder_facts(resolved: ResolvedScenario) -> dict[str, Any]:
    """Return what a pool of encoders costs and draws, as fields of `RunFacts`; empty without one."""
    if resolved.scenario.deployment.encoder_disaggregation is None:
        return {}
    return {"encoders_usd_per_hour": encoders_usd_per_hour(resolved), "encoder_power": encoder_power(resolved)}


def _users(scenario: Scenario, specs: RequestSpecs) -> UsersFacts | None:
    """Return how many users the arrivals represent; None if the scenario does not say."""
    arrivals = scenario.workload.arrivals
    users = getattr(arrivals, "users", None)
    if users is None:
        return None
    # If classes have arrivals of their own, only the other requests are the users'.
    shares = np.array([each.share is not None for each in specs.classes], dtype=np.bool_)
    are_theirs = np.ones(len(specs), dtype=np.bool_) if specs.request_class is None else shares[specs.request_class]
    clients = getattr(arrivals, "concurrency", None)
    later = specs.think_time[are_theirs][clients or 0 :] if clients else np.zeros(0)
    return UsersFacts(
        users=users,
        clients=clients,
        think_time=float(later.mean()) if len(later) else 0.0,
        rate=float(getattr(arrivals, "rate", math.nan)),
        classes=None if shares.all() else tuple(np.flatnonzero(shares).tolist()),
    )


def _speculation(
    resolved: ResolvedScenario, priced: PricedDeployment, simulation: Simulation
) -> SpeculationFacts | None:
    """Return what is known of speculative decoding; with several pools, of the one that drafts most."""
    totals, own = drafted(simulation) if resolved.pools else simulation.totals.speculation, resolved
    if totals is None:
        return None
    if resolved.pools:
        number = next(number for number, pool in enumerate(simulation.pools) if pool.totals.speculation is totals)
        own = resolved.pools[number]
        priced = price(own.shape)
    spec = own.scenario.deployment.speculative
    return None if spec is None else speculation_facts(spec, own.shape, priced, totals)


def _overflow_prices(scenario: Scenario) -> ApiPrices | None:
    overflow = scenario.deployment.overflow
    if overflow is None:
        return None
    from simserve.metrics.api_cost import ApiPrices

    with scenario.blaming("deployment.overflow.api"):
        return ApiPrices.of(load_api(overflow.api, scenario.folder))


def deploy(resolved: ResolvedScenario) -> Deployment:
    """Return the deployment of a resolved scenario, priced.

    Raises:
        InfeasibleError: The model does not fit; the message carries the arithmetic and what would fit.
        InputError: A profile is incompatible with the rest.
    """
    check_fit(resolved)
    with resolved.scenario.blaming("deployment"):
        priced = price(resolved.shape)
    return deployment_of(resolved, priced)


def deployment_of(resolved: ResolvedScenario, priced: PricedDeployment) -> Deployment:
    """Return the deployment that runs a resolved scenario with step times from ``priced``, including pools and control.

    Raises:
        InfeasibleError: The model does not fit into a replica of a pool.
        InputError: A profile of a pool is incompatible with the rest.
    """
    scenario = resolved.scenario
    return Deployment(
        num_replicas=scenario.deployment.replicas,
        engine=resolved.engine,
        priced=priced,
        routing=scenario.deployment.routing.policy,
        gpus_per_replica=resolved.shape.num_gpus,
        control=control_of(resolved),
        pools=pool_setups(resolved),
    )


class Replicator:
    """Runs replications of one scenario by their index, for comparisons: resolved and priced once.

    Args:
        scenario: What to run; its own number of replications is ignored.

    Raises:
        InfeasibleError: The model does not fit; the message carries the arithmetic and what would fit.
        InputError: A profile or a trace is missing or invalid, or they are incompatible.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._resolved = resolve(scenario)
        self._deployment = deploy(self._resolved)
        self._known_facts: RunFacts | None = None

    def summary(self, replication: int) -> dict[str, Any]:
        """Return the figures of one replication; the part that describes the scenario is from the first one run.

        Raises:
            KeyboardInterrupt: The user stopped it; part of a run is not a replication.
        """
        specs, simulation = replicate(self._deployment, self._resolved.scenario, replication)
        if simulation.was_interrupted:
            raise KeyboardInterrupt
        if self._known_facts is None:
            facts = _facts(self._resolved, self._deployment.priced, simulation, specs, explain=True)
            self._known_facts = _with_load(facts, specs, find_finishable(self._resolved, self._deployment))
        return summarize(simulation, self._known_facts, specs=specs)


def check_own_parts(own: OwnParts, resolved: ResolvedScenario) -> None:
    """Refuse a user's own part that would have no effect, or would get too little information to decide.

    Raises:
        UsageError: A part is not a function, or is incompatible with the deployment.
    """
    for name in own.names:
        if not callable(getattr(own, name)):
            remedy = "pass what is called with its arguments"
            raise UsageError("is not a function", key=name, value=getattr(own, name), remedy=remedy)
    deployment = resolved.scenario.deployment
    if own.autoscaler is not None:
        scaled = [deployment.autoscaling, *(pool.autoscaling for pool in deployment.pools)]
        if not any(scaled):
            rule = "has nothing to decide without deployment.autoscaling, which says how often it is asked"
            remedy = "set deployment.autoscaling; its metric and target are then not looked at"
            raise UsageError(rule, key="autoscaler", remedy=remedy)
    if own.router is not None and deployment.routing.rules:
        raise UsageError("does not go with deployment.routing.rules", key="router", remedy="leave one of the two out")
    if own.step_seconds is not None:
        _check_step_seconds(resolved)


def _check_step_seconds(resolved: ResolvedScenario) -> None:
    engines = [pool.engine for pool in resolved.pools] or [resolved.engine]
    checks = {
        "static batching": any(each.batching == "static" for each in engines),
        "serving without a KV cache": any(each.kv_allocation == "none" for each in engines),
        "data-parallel attention": any(each.data_parallel_size > 1 for each in engines),
        "LoRA adapters": any(each.max_loras for each in engines),
        "a tier behind the prefix cache": any(each.kv_tiers for each in engines),
        "a fault that slows replicas": any(fault.kind == "slow" for fault in resolved.scenario.deployment.faults),
    }
    found = next((name for name, applies in checks.items() if applies), None)
    if found is not None:
        raise UsageError(f"does not go with {found}", key="step_seconds", remedy="leave one of the two out")


def control_of(resolved: ResolvedScenario) -> Control:
    """Return everything that makes decisions during a run of the scenario."""
    deployment = resolved.scenario.deployment
    encoders = deployment.encoder_disaggregation
    scaling = None if encoders is None else encoders.autoscaling
    starts = deployment.autoscaling or deployment.faults or deployment.updates or deployment.liveness
    weights_bytes = replica_weights_bytes(resolved)
    links, per_token = _links(resolved)
    return Control(
        routing=deployment.routing,
        admission=deployment.admission,
        limits=limits_by_class(resolved.scenario),
        task_limit=None if resolved.scenario.slo is None else resolved.scenario.slo.task,
        autoscaling=deployment.autoscaling,
        startup_seconds=startup_seconds(deployment.autoscaling, weights_bytes) if starts else 0.0,
        encoder_scaling=scaling,
        encoder_startup_seconds=0.0 if scaling is None else encoder_startup_seconds(scaling, resolved),
        faults=deployment.faults,
        liveness=deployment.liveness,
        updates=deployment.updates,
        regions=deployment.regions,
        overflow=_overflow(resolved.scenario),
        streaming=_streaming(resolved),
        response_cache=deployment.response_cache,
        fairness=deployment.fairness,
        disaggregation=links,
        landing_seconds_per_token=per_token,
        kv_bytes_per_token=0.0 if deployment.disaggregation is None else transferred_bytes_per_token(resolved),
        allowed=_allowed(resolved),
        replicas_per_node=replicas_per_node(resolved),
        weights_bytes=weights_bytes,
    )


def _links(resolved: ResolvedScenario) -> tuple[DisaggregationSpec | None, float]:
    """Return the links, with the engine's latency if the scenario sets none, and the latency added per token."""
    spec = resolved.scenario.deployment.disaggregation
    if spec is None or spec.transfer_latency is not None:
        return spec, 0.0
    roles = [pool.role for pool in resolved.scenario.deployment.pools]
    reader = resolved.pools[roles.index("decode")]
    rules, config = reader.shape.engine.kv_transfer, reader.engine
    seconds, per_token = rules.latency, 0.0
    if rules.repeats_frontend:
        seconds += config.frontend_latency + config.frontend_seconds_per_request
        per_token = config.tokenization_per_token
    return spec.model_copy(update={"transfer_latency": seconds}), per_token


def _overflow(scenario: Scenario) -> OverflowSpec | None:
    """Return what goes to an API; speeds that the scenario omits come from the API's profile."""
    spec = scenario.deployment.overflow
    if spec is None:
        return None
    with scenario.blaming("deployment.overflow.api"):
        measured = load_api(spec.api, scenario.folder).latency
    if measured is None:
        return spec
    speed, given = measured.tokens_per_second, spec.model_fields_set
    known = {"ttft": measured.mean_ttft, "ttft_cv": measured.ttft_cv, "tokens_per_second": speed}
    known = {name: value for name, value in known.items() if value is not None and name not in given}
    if "ttft" in given:
        known.pop("ttft_cv", None)
    return spec.model_copy(update=known)


def _streaming(resolved: ResolvedScenario) -> StreamingSpec | None:
    """Return how tokens reach the clients; an event costs what the engine takes for a token, if that is known."""
    spec, seconds = resolved.scenario.deployment.streaming, resolved.shape.engine.api_server_seconds_per_token
    if spec is None or "cost_per_event" in spec.model_fields_set or not seconds:
        return spec
    return spec.model_copy(update={"cost_per_event": seconds})


def _allowed(resolved: ResolvedScenario) -> tuple[tuple[int, ...], ...]:
    """Return which pools may serve each class, counted among those that take requests; empty: all, for all."""
    classes, pools = resolved.scenario.workload.classes, resolved.scenario.deployment.pools
    if not pools or not any(each.pool is not None for each in classes or ()):
        return ()
    entrances = [pool.name for pool in pools if pool.role != "decode"]
    everywhere = tuple(range(len(entrances)))
    return tuple(everywhere if each.pool is None else (entrances.index(each.pool),) for each in classes or ())
