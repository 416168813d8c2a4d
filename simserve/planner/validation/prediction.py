"""What the simulator predicts for one measured point, by the point's own protocol. Scores nothing.

Knows no measurement of separate prefill and decode workers: those bring their own replay (`Workers`).
"""

from __future__ import annotations

import json
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from simserve.errors import InputError, SimserveError
from simserve.metrics.throughput import conditions
from simserve.perf.operators import PricedDeployment
from simserve.perf.tables import price
from simserve.planner.measured.point import MeasuredPoint, Metric, Protocol
from simserve.profiles.expected_errors import Server
from simserve.scenario.load import from_mapping
from simserve.scenario.resolve import ResolvedScenario, resolve
from simserve.scenario.run import deployment_of, server_of
from simserve.scenario.schema import Scenario
from simserve.scenario.speculative import with_paces
from simserve.sim.control import Role
from simserve.sim.simulate import Simulation, simulate
from simserve.workload.arrival_spec import AllAtOnceArrivals
from simserve.workload.generate import decode_contexts, generate
from simserve.workload.requests import RequestSpecs


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A measured point and its simulation."""

    point: MeasuredPoint  # What was measured.
    predicted: Mapping[Metric, float] = field(default_factory=dict)
    """Metric -> seconds or tokens/s, for the metrics that were measured and are defined here."""
    server: Server | None = None  # What was run, as the error model knows it; None where nothing was.
    reason: str = ""  # Why it could not be run; empty where it was.

    @property
    def is_covered(self) -> bool:
        """Whether the point was simulated."""
        return not self.reason


@dataclass(frozen=True, slots=True)
class Replayed:
    """Results of a replay."""

    figures: Mapping[Metric, float]  # Every metric.
    num_unserved: int  # Requests that were not served.
    server: Server  # What was run.


@dataclass(slots=True)
class Pricer:
    """Resolves and prices each deployment once, and keeps the figures of replays."""

    replayed: dict[str, Replayed] = field(default_factory=dict)  # Replays by `replay_key`.
    _known: dict[str, tuple[ResolvedScenario, PricedDeployment]] = field(default_factory=dict)

    def of(self, scenario: Scenario, role: Role = "both") -> tuple[ResolvedScenario, PricedDeployment]:
        """Return the deployment of a scenario with its step times; ``role`` is that of its replicas.

        Raises:
            InputError: A profile is missing or not compatible with the rest, or the model does not fit.
        """
        key = f"{role} {_deployment_key(scenario)} {scenario.workload.common_prefix_tokens}"
        priced_for = self._known[key][0].shape.contexts if key in self._known else None
        if priced_for is not None:  # windows that are not always full: the traffic sets what layers cost
            contexts = decode_contexts(scenario.workload, scenario.folder)
            key += "" if contexts == priced_for else f" {contexts}"
        if key not in self._known:
            resolved = resolve(scenario, role=role)
            if not resolved.memory.fits:
                raise InputError("does not fit in the memory left", key="deployment")
            resolved = _long_enough(resolved)
            self._known[key] = resolved, price(resolved.shape)
        return self._known[key]


def _deployment_key(scenario: Scenario) -> str:
    """Return a key that scenarios share if the same deployment serves them.

    An engine without clients, as for a batch that is there at once, saves host time that a server spends.
    """
    is_served = not isinstance(scenario.workload.arrivals, AllAtOnceArrivals)
    return json.dumps([scenario.model, scenario.deployment.model_dump(mode="json"), is_served], sort_keys=True)


def replay_key(point: MeasuredPoint) -> str:
    """Return a key that points with the same replay share: all but their names; "" where arrivals are recorded.

    Tables from many submitters contain one configuration many times.
    """
    if point.requests is not None:
        return ""
    if point.pools:
        return json.dumps([workers.key for workers in point.pools])
    asked = {key: value for key, value in point.scenario.items() if key != "name"}
    return json.dumps([asked, asdict(point.protocol)], sort_keys=True)


def _long_enough(resolved: ResolvedScenario) -> ResolvedScenario:
    """Return the deployment with the length that was measured, even where the model's own limit is shorter.

    Benchmarks send random tokens, and exceed the positions that a model was trained on.
    """
    asked = resolved.scenario.deployment.engine.max_model_len
    if asked is None or asked <= resolved.engine.max_model_len:
        return resolved
    return replace(resolved, engine=replace(resolved.engine, max_model_len=asked))


def predict(point: MeasuredPoint, pricer: Pricer) -> Prediction:
    """Return the figures of a point, or the reason why it cannot be run."""
    if point.reason:
        return Prediction(point=point, reason=point.reason)
    if point.pools:
        return _predict_pools(point, pricer)
    key = replay_key(point)
    if key in pricer.replayed:
        return _compared(point, pricer.replayed[key])
    try:
        scenario = from_mapping(point.scenario)
        resolved, priced = pricer.of(scenario)
        deployment, specs = deployment_of(resolved, priced), _specs(point, scenario)
    except SimserveError as failure:
        return Prediction(point=point, reason=reason_of(failure))
    simulation = simulate(point.protocol.heard(deployment), specs)
    if simulation.was_interrupted:
        raise KeyboardInterrupt
    found = _replayed(simulation, point.protocol, resolved, has_pools=bool(resolved.pools))
    if key:
        pricer.replayed[key] = found
    return _compared(point, found)


def _replayed(
    simulation: Simulation, protocol: Protocol, resolved: ResolvedScenario, *, has_pools: bool = False
) -> Replayed:
    records = simulation.records
    return Replayed(
        protocol.figures(records),
        int(np.isnan(records.finish_time).sum()),
        server_of(resolved, conditions(records, simulation.totals, simulation.num_replicas), has_pools=has_pools),
    )


def _predict_pools(point: MeasuredPoint, pricer: Pricer) -> Prediction:
    """Return the figures of those workers a point may have had whose TPOT is nearest to its own."""
    try:
        found = [_pool_figures(workers, point.protocol, pricer) for workers in point.pools]
    except SimserveError as failure:
        return Prediction(point=point, reason=reason_of(failure))
    measured = point.measured.get("tpot", float("nan"))
    distances = [abs(np.log(each.figures["tpot"] / measured)) for each in found]
    return _compared(point, found[int(np.argmin(distances))])


class Workers(typing.Protocol):
    """Separate workers for prompts and for answers that may have served a point."""

    @property
    def key(self) -> str:
        """Text that workers share if their replays are the same."""

    def replay(self, pricer: Pricer) -> tuple[Simulation, ResolvedScenario]:
        """Return the run of the point's clients, and the workers that decode.

        Raises:
            InputError: A worker's profile is missing or not compatible with the rest, or the model does not fit.
        """


def _pool_figures(workers: Workers, protocol: Protocol, pricer: Pricer) -> Replayed:
    if workers.key not in pricer.replayed:
        simulation, resolved = workers.replay(pricer)
        if simulation.was_interrupted:
            raise KeyboardInterrupt
        pricer.replayed[workers.key] = _replayed(simulation, protocol, resolved, has_pools=True)
    return pricer.replayed[workers.key]


def _specs(point: MeasuredPoint, scenario: Scenario) -> RequestSpecs:
    if point.requests is not None:
        return point.requests
    specs, spec = generate(scenario.workload, seed=scenario.run.seed), scenario.deployment.speculative
    return specs if spec is None else with_paces(specs, spec, scenario.run.seed, 0)


def reason_of(failure: SimserveError) -> str:
    """Return what stopped a point, without the name of the point in it."""
    key = f"{failure.key}: " if failure.key else ""
    value = "" if failure.value is None else f"{failure.value} "
    return f"{key}{value}{failure.rule}"


def _compared(point: MeasuredPoint, replayed: Replayed) -> Prediction:
    found = replayed.figures
    predicted = {metric: found[metric] for metric in point.measured if np.isfinite(found[metric])}
    if predicted and not replayed.num_unserved:
        return Prediction(point=point, predicted=predicted, server=replayed.server)
    return Prediction(point=point, reason=f"{replayed.num_unserved} requests cannot be served")
