"""Simulation of a benchmark: its requests through a scenario's deployment, and the same figures.

Knows resolved scenarios and benchmark results; fits nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from simserve.engine.config import EngineConfig
from simserve.errors import InfeasibleError, TraceError
from simserve.metrics.latency import request_latencies
from simserve.perf.operators import PricedDeployment
from simserve.perf.tables import price
from simserve.profiles.engine import scaled_by
from simserve.profiles.resolved_engine import ResolvedEngine
from simserve.scenario.benchmark import arrivals_of, lengths_of
from simserve.scenario.fit import check_fit
from simserve.scenario.resolve import ResolvedScenario, engine_config, resolve
from simserve.scenario.schema import Scenario
from simserve.scenario.speculative import with_paces
from simserve.sim.records import COMPLETED, Histogram, RequestRecords
from simserve.sim.simulate import Deployment, simulate
from simserve.validation import validate
from simserve.workload.benchmarks.result import BenchResult, statistics
from simserve.workload.generate import generate
from simserve.workload.requests import RequestSpecs
from simserve.workload.spec import WorkloadSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParameters:
    """The few constants of an engine that end-to-end results can determine."""

    host_seconds_per_step: float  # CPU time of a step, seconds.
    host_seconds_per_request: float  # CPU time per request of a step, seconds.
    compute_efficiency: float
    """Scale on the kernels' efficiencies: 1.1 makes every kernel 10 % faster except its start."""
    frontend_latency: float  # From arrival to the scheduler, seconds.


PARAMETERS = ("host_seconds_per_step", "host_seconds_per_request", "compute_efficiency", "frontend_latency")


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A benchmark that is ready to be simulated."""

    result: BenchResult  # The measured result.
    specs: RequestSpecs  # Its requests.
    notes: tuple[str, ...] = ()  # What the file did not say, and what was assumed instead.


@dataclass(slots=True)
class ServingModel:
    """A scenario's deployment as a function of its engine's constants; priced deployments are cached."""

    scenario: Scenario  # The deployment, and the workload for files that do not state their own.
    resolved: ResolvedScenario = field(init=False)  # The scenario with its profiles.
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

    @property
    def priced(self) -> PricedDeployment:
        """The deployment priced with the constants that the profile states."""
        return self._price(self.stated)

    def of_one_replica(self) -> ServingModel:
        """Return the same with one fixed replica: what a benchmark of a server measures."""
        deployment = self.scenario.deployment
        changes = {"autoscaling": None, "faults": (), "liveness": None, "updates": ()}
        alone = deployment.model_copy(update={"replicas": 1, **changes})
        return self if alone == deployment else ServingModel(self.scenario.model_copy(update={"deployment": alone}))

    def predict(self, replay: Replay, parameters: EngineParameters | None = None) -> dict[str, float]:
        """Return the figures of a benchmark with some constants of the engine; None: the stated ones.

        Raises:
            InfeasibleError: Some of its requests cannot be served.
            KeyboardInterrupt: The user stopped it.
        """
        parameters = parameters or self.stated
        engine = replace(self.resolved.engine, frontend_latency=parameters.frontend_latency)
        return self._simulated(replay, engine, self._price(parameters))

    def predict_slowed(self, replay: Replay, factors: Mapping[str, float]) -> dict[str, float]:
        """Return the figures of a benchmark of a server whose times are multiplied by factors (`slowed`).

        Raises:
            InfeasibleError: Some of its requests cannot be served.
            KeyboardInterrupt: The user stopped it.
        """
        resolved = slowed(self.resolved, factors)
        with self.scenario.blaming("deployment"):
            priced = price(resolved.shape)
        return self._simulated(replay, resolved.engine, priced)

    def _simulated(self, replay: Replay, engine: EngineConfig, priced: PricedDeployment) -> dict[str, float]:
        deployment = Deployment(
            num_replicas=self.scenario.deployment.replicas,
            engine=engine,
            priced=priced,
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
        """Return the deployment with some constants; the time before the scheduler does not lengthen any step."""
        shape = self.resolved.shape
        parameters = replace(parameters, frontend_latency=shape.engine.frontend_latency)
        if parameters not in self._priced:
            values = {name: getattr(parameters, name) for name in PARAMETERS}
            if len(self._priced) > 64:
                self._priced.clear()
            with self.scenario.blaming("deployment"):
                self._priced[parameters] = price(replace(shape, engine=shape.engine.model_copy(update=values)))
        return self._priced[parameters]


def slowed(resolved: ResolvedScenario, factors: Mapping[str, float]) -> ResolvedScenario:
    """Return a deployment whose times are multiplied by the factors of `FACTORS`."""
    shape = replace(resolved.shape, engine=scaled_by(resolved.shape.engine, factors))
    before, after = engine_config(resolved.shape, resolved.memory), engine_config(shape, resolved.memory)
    own = [name for name in _TIMES if getattr(resolved.engine, name) == getattr(before, name)]  # not the scenario's
    engine = replace(resolved.engine, **{name: getattr(after, name) for name in own})
    return replace(resolved, shape=shape, engine=engine)


_TIMES = (
    *("frontend_latency", "tokenization_per_token", "frontend_seconds_per_request"),
    *("transfer_step_seconds", "transfer_request_seconds", "transfer_prompt_seconds", "api_token_seconds"),
)
"""Host times that the scheduler uses."""


def parameters_of(engine: ResolvedEngine) -> EngineParameters:
    """Return the constants of a resolved engine."""
    return EngineParameters(**{name: getattr(engine, name) for name in PARAMETERS})


def figures(records: RequestRecords, gaps: Histogram) -> dict[str, float]:
    """Return the figures of a run over all its requests, as benchmark tools do: no warm-up is cut.

    Latencies in seconds and rates a second, under the names of `simserve.workload.benchmarks.result`.

    Args:
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
    """Return the requests of a benchmark: as recorded if the file has them, otherwise drawn.

    Load and lengths come from the file, or from the scenario where the file has none.

    Raises:
        InputError: Neither says how requests arrive, or how long they are.
    """
    notes: list[str] = []
    arrivals = arrivals_of(result, scenario, notes)
    lengths = lengths_of(result, scenario, notes)
    workload = validate(
        WorkloadSpec,
        {
            "arrivals": arrivals,
            "prompt_tokens": {"distribution": "fixed", "value": 1},
            "output_tokens": {"distribution": "fixed", "value": 1},
            "num_requests": result.num_requests,
        },
        file=result.file,
        error=TraceError,
    )
    specs = replace(
        generate(workload, seed=scenario.run.seed),
        prompt_tokens=lengths.prompt_tokens,
        output_tokens=lengths.output_tokens,
        max_tokens=lengths.output_tokens,
    )
    if result.arrival_time is not None and specs.concurrency is None:
        specs = replace(specs, arrival_time=result.arrival_time, is_stationary=False, offered_rate=float("nan"))
    if scenario.deployment.speculative is not None:
        specs = with_paces(specs, scenario.deployment.speculative, scenario.run.seed, 0)
    return Replay(result=result, specs=specs, notes=tuple(notes))
