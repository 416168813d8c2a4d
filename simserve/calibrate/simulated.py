"""What the simulator says of a benchmark: its requests through a scenario's deployment, and the same figures.

Knows resolved scenarios and benchmark results; fits nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from simserve.calibrate.benchmarks.result import Array, BenchResult, statistics
from simserve.engine.histogram import Histogram
from simserve.errors import InfeasibleError, InputError, TraceError
from simserve.metrics.latency import request_latencies
from simserve.perf.parts import PricedDeployment
from simserve.perf.pricing import price
from simserve.profiles.engine import ResolvedEngine
from simserve.scenario.fit import check_fit
from simserve.scenario.resolve import ResolvedScenario, resolve
from simserve.scenario.schema import Scenario
from simserve.sim.records import COMPLETED, RequestRecords
from simserve.sim.simulate import Deployment, simulate
from simserve.validation import validate
from simserve.workload.generate import generate
from simserve.workload.requests import RequestSpecs
from simserve.workload.spec import WorkloadSpec

SAME_LENGTHS = 0.05
SAME_LENGTHS_ERRORS = 3.0
"""A scenario's lengths are drawn where their mean is this near to the file's, as a share or in standard errors."""

RATED = ("poisson", "constant", "gamma")
"""Processes of a scenario that take the rate of a file that names no process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParameters:
    """The few constants of an engine that end-to-end results can tell.

    Attributes:
        host_seconds_per_step: CPU time of a step, seconds.
        host_seconds_per_request: CPU time a request of a step, seconds.
        compute_efficiency: Scale on the kernels' efficiencies: 1.1 makes every kernel 10 % faster but its start.
        frontend_latency: From arrival to the scheduler, seconds.
    """

    host_seconds_per_step: float
    host_seconds_per_request: float
    compute_efficiency: float
    frontend_latency: float


PARAMETERS = ("host_seconds_per_step", "host_seconds_per_request", "compute_efficiency", "frontend_latency")


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A benchmark made ready to be simulated.

    Attributes:
        result: What was measured.
        specs: Its requests.
        notes: What the file did not say, and what was taken instead.
    """

    result: BenchResult
    specs: RequestSpecs
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class ServingModel:
    """A scenario's deployment as a function of its engine's constants; what was priced is kept.

    Attributes:
        scenario: Deployment, and the workload where a file does not say its own.
        resolved: The same with its profiles.
    """

    scenario: Scenario
    resolved: ResolvedScenario = field(init=False)
    _priced: dict[EngineParameters, PricedDeployment] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Resolve the scenario.

        Raises:
            InfeasibleError: It does not fit.
        """
        self.resolved = resolve(self.scenario)
        check_fit(self.resolved)

    @property
    def stated(self) -> EngineParameters:
        """The constants that the scenario's engine profile states."""
        return parameters_of(self.resolved.shape.engine)

    def predict(self, replay: Replay, parameters: EngineParameters | None = None) -> dict[str, float]:
        """Return the figures of a benchmark under some constants of the engine; None: the stated ones.

        Raises:
            InfeasibleError: Some of its requests cannot be served.
            KeyboardInterrupt: The user stopped it.
        """
        parameters = parameters or self.stated
        engine = replace(
            self.resolved.engine,
            frontend_latency=parameters.frontend_latency,
        )
        deployment = Deployment(
            num_replicas=self.scenario.deployment.replicas,
            engine=engine,
            priced=self._price(parameters),
            routing=self.scenario.deployment.routing.policy,
        )
        simulation = simulate(deployment, replay.specs)
        if simulation.was_interrupted:
            raise KeyboardInterrupt
        unserved = int((simulation.records.status != COMPLETED).sum())
        if unserved:
            raise InfeasibleError(
                f"{unserved} of its {len(replay.specs)} requests cannot be served by the scenario's deployment",
                file=replay.result.file,
                remedy="deployment.engine.max_model_len or max_num_batched_tokens must hold its prompts",
            )
        return figures(simulation.records, simulation.totals.itl)

    def _price(self, parameters: EngineParameters) -> PricedDeployment:
        if parameters not in self._priced:
            shape = self.resolved.shape
            values = {name: getattr(parameters, name) for name in PARAMETERS}
            if len(self._priced) > 64:
                self._priced.clear()
            with self.scenario.blaming("deployment"):
                self._priced[parameters] = price(replace(shape, engine=shape.engine.model_copy(update=values)))
        return self._priced[parameters]


def parameters_of(engine: ResolvedEngine) -> EngineParameters:
    """Return the constants of an engine as resolved."""
    return EngineParameters(**{name: getattr(engine, name) for name in PARAMETERS})


def figures(records: RequestRecords, gaps: Histogram) -> dict[str, float]:
    """Return the figures of a run over all its requests, as benchmark tools take them: nothing is cut.

    Latencies in seconds and rates a second, under the names of `simserve.calibrate.benchmarks.result`.

    Args:
        records: What happened to every request.
        gaps: Every gap between tokens, seconds.
    """
    latencies = request_latencies(records)
    normalized = latencies.e2e / np.maximum(records.output_tokens, 1)
    duration = float(np.nanmax(records.finish_time) - np.nanmin(records.arrival_time))
    found = (
        statistics(latencies.ttft, "ttft")
        | statistics(latencies.tpot, "tpot")
        | statistics(normalized, "ntpot")
        | statistics(latencies.e2e, "e2e")
    )
    if gaps.count:
        found["mean_itl"] = gaps.total / gaps.count
        found |= {f"{name}_itl": gaps.percentile(share) for name, share in _SHARES.items()}
    if duration > 0:
        found["output_throughput"] = float(records.output_tokens.sum()) / duration
        found["request_throughput"] = len(records) / duration
    return found


_SHARES = {"median": 50, "p90": 90, "p95": 95, "p99": 99}


def replay_of(result: BenchResult, scenario: Scenario) -> Replay:
    """Return the requests of a benchmark: as recorded where it recorded them, drawn where it did not.

    Lengths are the file's own; with means alone, the scenario's distribution where its mean is the file's, or one
    length for all. Load is the file's own; where it says none, the scenario's.

    Raises:
        InputError: Neither says how requests arrive.
    """
    notes: list[str] = []
    arrivals = _arrivals(result, scenario, notes)
    workload = validate(
        WorkloadSpec,
        {
            "arrivals": arrivals,
            "prompt_tokens": {"distribution": "fixed", "value": max(round(float(result.prompt_tokens.mean())), 1)},
            "output_tokens": {"distribution": "fixed", "value": max(round(float(result.output_tokens.mean())), 1)},
            "num_requests": result.num_requests,
        },
        file=result.file,
        error=TraceError,
    )
    specs = generate(workload, seed=scenario.run.seed)
    prompts, outputs = _lengths(result, scenario, specs, notes)
    specs = replace(specs, prompt_tokens=prompts, output_tokens=outputs, max_tokens=outputs)
    if result.arrival_time is not None and specs.concurrency is None:
        specs = replace(specs, arrival_time=result.arrival_time, is_stationary=False, offered_rate=float("nan"))
    return Replay(result=result, specs=specs, notes=tuple(notes))


def _arrivals(result: BenchResult, scenario: Scenario, notes: list[str]) -> Any:
    stated = dict(result.arrivals)
    if "process" in stated:
        return stated
    if not stated and result.arrival_time is not None:
        return {"process": "all_at_once"}  # its times replace these
    own = scenario.workload.arrivals
    if stated:
        process = own.process if own is not None and own.process in RATED else "poisson"
        notes.append(f"the file says a rate and no process: {process} is taken")
        cv = {"cv": getattr(own, "cv", 1.0)} if process == "gamma" else {}
        return {"process": process, **stated, **cv}
    if own is None:
        raise InputError(
            "says no load, and the scenario's workload has no arrivals",
            file=result.file,
            remedy="add workload.arrivals",
        )
    notes.append("the file says no load: the scenario's is taken")
    return own


def _lengths(
    result: BenchResult, scenario: Scenario, specs: RequestSpecs, notes: list[str]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    if result.has_lengths:
        return result.prompt_tokens.astype(np.int64), result.output_tokens.astype(np.int64)
    workload = scenario.workload
    if workload.trace is None and workload.prompt_tokens is not None and workload.output_tokens is not None:
        drawn = generate(
            workload.model_copy(update={"num_requests": result.num_requests, "duration": None}),
            seed=scenario.run.seed,
            base_path=scenario.folder,
        )
        if _is_near(drawn.prompt_tokens, result.prompt_tokens) and _is_near(drawn.output_tokens, result.output_tokens):
            notes.append("lengths are drawn as the scenario's workload says; their means are the file's")
            return drawn.prompt_tokens, drawn.output_tokens
    if result.num_requests > 1:
        notes.append("every request has the file's mean lengths: the scenario's have other means")
    return specs.prompt_tokens, specs.output_tokens


def _is_near(drawn: np.ndarray[Any, Any], measured: Array) -> bool:
    distance = abs(float(drawn.mean()) - float(measured.mean()))
    error = float(drawn.std()) / len(drawn) ** 0.5
    return bool(distance <= max(SAME_LENGTHS * float(measured.mean()), SAME_LENGTHS_ERRORS * error))
