"""From a scenario to its result: resolve, price, draw the traffic, simulate, summarise. Writes no file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from simserve import __version__
from simserve.errors import ScenarioError
from simserve.metrics.bottleneck import LIMITS
from simserve.metrics.replications import pool
from simserve.metrics.result import RunResult
from simserve.metrics.slo import SLO
from simserve.metrics.summary import RunFacts, summarize
from simserve.perf.parts import PricedDeployment
from simserve.perf.tables import price
from simserve.profiles.expected_errors import UNVALIDATED, expected_error, generation_of, load_expected_errors
from simserve.scenario.fit import check_fit
from simserve.scenario.resolve import ResolvedScenario, resolve
from simserve.scenario.schema import Scenario
from simserve.scenario.seats import limit_gains, seats_curve
from simserve.scenario.speculative import speculation_facts, with_paces
from simserve.sim.records import RequestRecords
from simserve.sim.simulate import Deployment, Simulation, simulate
from simserve.units import to_text
from simserve.workload.generate import generate
from simserve.workload.requests import RequestSpecs

LEAST_WAITING_SHARE = 0.1
"""Below it, no limit of the scheduler is looked into; half of what `simserve.metrics.bottleneck` asks for."""
Progress = Callable[[int, int], None]
"""Called now and then with the requests done and all requests of the run."""


def run(scenario: Scenario, *, progress: Progress | None = None) -> RunResult:
    """Return what happens when the scenario's traffic meets its deployment.

    An interrupt (Ctrl-C) ends the run early: the result then holds what was finished, and says so in
    ``simulation.was_interrupted``. Of several replications the interrupted one is left out, except the first.

    Args:
        scenario: What to run.
        progress: Called now and then.

    Raises:
        InfeasibleError: The model does not fit; the message carries the arithmetic and what would.
        InputError: A profile or a trace is missing or invalid, or they do not go together.
    """
    resolved = resolve(scenario)
    check_fit(resolved)
    with scenario.blaming("deployment"):
        priced = price(resolved.shape)
    simulations, specs = _simulate(resolved, priced, progress)
    facts = _facts(resolved, priced, simulations[0], specs)
    summaries = [summarize(simulation, facts) for simulation in simulations]
    first = simulations[0]
    if len(simulations) < scenario.run.replications:
        first = replace(first, was_interrupted=True)
    summary = summaries[0] if scenario.run.replications == 1 else pool(summaries)
    try:
        _weigh_seats(summary["simserve"]["bottleneck"], seats_curve(resolved, first, specs), resolved)
    except KeyboardInterrupt:
        first = replace(first, was_interrupted=True)
    summary["simserve"]["interrupted"] = first.was_interrupted
    summary["simserve"]["replications"] = {"asked": scenario.run.replications, "done": len(simulations)}
    return RunResult(
        summary=summary,
        scenario=scenario.as_mapping(),
        simulation=first,
        slo=facts.slo,
    )


def _has_queued(simulation: Simulation) -> bool:
    """Return whether requests spent a noticeable share of their time waiting, so that a limit may bind."""
    records = simulation.records
    waited = float(np.nansum(records.scheduled_time - records.admitted_time))
    return waited > LEAST_WAITING_SHARE * float(np.nansum(records.finish_time - records.admitted_time))


def _weigh_seats(bottleneck: dict[str, Any], curve: dict[str, Any] | None, resolved: ResolvedScenario) -> None:
    """Add the curve over ``max_num_seqs``; where more seats would lower throughput, KV memory is what binds."""
    bottleneck["seats_curve"] = curve
    seats = resolved.engine.max_num_seqs
    if curve is not None and curve["best_max_num_seqs"] <= seats and bottleneck["binding"] != LIMITS["blocks"]:
        bottleneck["binding"] = LIMITS["blocks"]
        bottleneck["explanation"] += (
            f" KV memory is full: with a full queue, more than {curve['best_max_num_seqs']} seats lower throughput."
        )


def _simulate(
    resolved: ResolvedScenario, priced: PricedDeployment, progress: Progress | None
) -> tuple[Sequence[Simulation], RequestSpecs]:
    """Return the run of every replication, and the traffic of the first."""
    scenario = resolved.scenario
    deployment = Deployment(
        num_replicas=scenario.deployment.replicas,
        engine=resolved.engine,
        priced=priced,
        routing=scenario.deployment.routing.policy,
    )
    simulations: list[Simulation] = []
    traffic: list[RequestSpecs] = []
    try:
        for replication in range(scenario.run.replications):
            specs = _traffic(scenario, replication)
            traffic.append(specs)
            shown = None if progress is None else _shifted(progress, replication, scenario.run.replications)
            simulation = simulate(deployment, specs, progress=shown)
            if not simulation.was_interrupted or not simulations:
                simulations.append(simulation)
            if simulation.was_interrupted:
                break
            if shown is not None:
                shown(len(specs), len(specs))
            del traffic[1:]
    except KeyboardInterrupt:
        if not simulations:
            raise
    return simulations, traffic[0]


def _traffic(scenario: Scenario, replication: int) -> RequestSpecs:
    """Return the requests of one replication; a warm-up must leave some of them to measure."""
    with scenario.blaming("workload"):
        specs = generate(scenario.workload, seed=scenario.run.seed, replication=replication, base_path=scenario.folder)
    specs = with_paces(specs, scenario.deployment.speculative, scenario.run.seed, replication)
    warmup = scenario.run.warmup
    if not isinstance(warmup, str) and specs.concurrency is None and warmup >= float(specs.arrival_time[-1]):
        with scenario.blaming("run"):
            raise ScenarioError(
                f"must end before the last of the arrivals, {to_text(float(specs.arrival_time[-1]), 'time')}",
                key="warmup",
                value=to_text(warmup, "time"),
                remedy="nothing would be left to measure",
            )
    return specs


def _shifted(progress: Progress, replication: int, replications: int) -> Progress:
    """Return the progress of one replication as a part of all of them."""
    return lambda done, total: progress(replication * total + done, replications * total)


def _facts(
    resolved: ResolvedScenario, priced: PricedDeployment, simulation: Simulation, specs: RequestSpecs
) -> RunFacts:
    scenario = resolved.scenario
    return RunFacts(
        version=__version__,
        seed=scenario.run.seed,
        scenario_hash=scenario.hash,
        scenario_name=scenario.name,
        fidelity=priced.fidelity,
        expected_error=_expected_error(resolved, simulation),
        engine_resolved={**asdict(resolved.shape.engine), "notes": list(priced.notes)},
        memory=resolved.memory,
        num_gpus=resolved.num_gpus,
        gpu_hour_usd=resolved.gpu_hour_usd,
        gpu_hour_source=resolved.gpu_hour_source,
        slo=_slo(scenario),
        warmup=scenario.run.warmup,
        peak_flops=priced.parts.peak_flops,
        peak_bandwidth=priced.parts.peak_bandwidth,
        thresholds=scenario.thresholds,
        limit_gains=limit_gains(resolved, specs) if _has_queued(simulation) else {},
        speculation=speculation_facts(scenario.deployment.speculative, resolved.shape, priced, simulation),
    )


def _expected_error(resolved: ResolvedScenario, simulation: Simulation) -> dict[str, Any] | str:
    """Return how wrong runs of this class were, by the requests that were in flight on average."""
    shape = resolved.shape
    if shape.speculation is not None:
        # No server that decodes speculatively has been compared.
        return UNVALIDATED
    in_flight = _requests_in_flight(simulation.records) / resolved.scenario.deployment.replicas
    return expected_error(
        load_expected_errors(),
        engine=generation_of(shape.engine.name, shape.engine.requested_version or shape.engine.version),
        hardware=shape.hardware.name,
        has_experts=shape.model.moe is not None,
        concurrency=in_flight,
    )


def _requests_in_flight(records: RequestRecords) -> float:
    """Return the mean number of requests in the system (Little's law); NaN where none was answered."""
    seconds = records.finish_time - records.arrival_time
    answered = np.isfinite(seconds)
    if not answered.any():
        return float("nan")
    duration = float(records.finish_time[answered].max() - records.arrival_time[answered].min())
    return float(seconds[answered].sum()) / duration if duration > 0 else float("nan")


def _slo(scenario: Scenario) -> SLO | None:
    return None if scenario.slo is None else SLO(**scenario.slo.model_dump())
