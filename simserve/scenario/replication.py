"""One replication of a scenario: its pools, its traffic, and the simulation. Summarises nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simserve import rng
from simserve.errors import ScenarioError
from simserve.perf.operators import PricedDeployment
from simserve.perf.tables import price
from simserve.scenario.combinations import check_traffic
from simserve.scenario.deployment_spec import DeploymentSpec
from simserve.scenario.fit import check_fit
from simserve.scenario.media import with_media
from simserve.scenario.resolve import ResolvedScenario
from simserve.scenario.schema import Scenario
from simserve.scenario.speculative import with_paces
from simserve.sim.control import AutoscalingSpec, StartupSpec
from simserve.sim.simulate import Deployment, Simulation, simulate
from simserve.units import to_text
from simserve.workload.arrival_spec import MAX_REQUESTS
from simserve.workload.generate import generate
from simserve.workload.requests import RequestSpecs
from simserve.workload.spec import StructuredOutputSpec

if TYPE_CHECKING:
    from simserve.engine.config import EngineConfig
    from simserve.sim.pools import PoolSetup

_MARGIN, _LEAST_GROWTH, _MOST_GROWTH = 1.2, 2.0, 100.0
"""Factor on the requests drawn when clients ran out: the margin times the time left, within the limits."""


def replicate(
    deployment: Deployment,
    scenario: Scenario,
    replication: int,
    serve: Callable[..., Simulation] = simulate,
    **options: Any,
) -> tuple[RequestSpecs, Simulation]:
    """Return the requests of one replication and their simulation.

    Clients of a closed loop that stop at a given time send as many requests as they get to. If too few were drawn, the
    run is repeated with more of them, the first of which are the same.

    Args:
        replication: Index of the replication, >= 0.
        serve: Function that serves them: the plane, or the reference.
        options: Passed to ``serve``.

    Raises:
        ScenarioError: Nothing arrives, a warm-up leaves nothing to measure, or clients send too many requests.
        InputError: A trace is missing or invalid.
    """
    specs = traffic(scenario, replication)
    simulation = serve(deployment, specs, **options)
    while _ran_out(specs, simulation):
        more = traffic(scenario, replication, _enough(scenario, specs, simulation))
        if len(more) == len(specs):
            break
        specs, simulation = more, serve(deployment, more, **options)
    return specs, simulation


def arrived(scenario: Scenario, num_records: int) -> RequestSpecs:
    """Return the requests of the first replication again, at least as many as its run has records.

    Raises:
        InputError: The traffic can no longer be drawn.
    """
    with scenario.blaming("workload"):
        specs = generate(scenario.workload, seed=scenario.run.seed, base_path=scenario.folder)
        if len(specs) < num_records:  # clients that stop at a given time: they sent more
            seed, folder = scenario.run.seed, scenario.folder
            specs = generate(scenario.workload, seed=seed, base_path=folder, num_requests=num_records)
    return specs


def traffic(scenario: Scenario, replication: int, num_requests: int | None = None) -> RequestSpecs:
    """Return the requests of one replication; a warm-up must leave some of them to measure."""
    seed = scenario.run.seed
    with scenario.blaming("workload"):
        specs = generate(
            scenario.workload, seed=seed, replication=replication, base_path=scenario.folder, num_requests=num_requests
        )
    specs = as_sent(specs, scenario, replication)
    warmup = scenario.run.warmup
    last = float(specs.arrival_time[np.isfinite(specs.arrival_time)].max(initial=-np.inf))
    if not isinstance(warmup, str) and specs.concurrency is None and warmup >= last:
        with scenario.blaming("run"):
            rule = f"must end before the last of the arrivals, {to_text(last, 'time')}"
            remedy = "nothing would be left to measure"
            raise ScenarioError(rule, key="warmup", value=to_text(warmup, "time"), remedy=remedy)
    return specs


def as_sent(specs: RequestSpecs, scenario: Scenario, replication: int) -> RequestSpecs:
    """Return requests as the scenario's deployment receives them: with images, grammars, and the paces of drafts.

    Raises:
        ScenarioError: The model takes no images, or a trace does not say what a tier behind the cache keeps.
    """
    check_traffic(scenario, specs)
    seed, structured = scenario.run.seed, scenario.workload.structured_output
    if scenario.workload.has_media:
        specs = with_media(specs, scenario, replication)
    if structured is not None:
        replicas = num_replicas(scenario.deployment)
        specs = with_grammars(specs, structured, replicas, seed=seed, replication=replication)
    if scenario.deployment.speculative is not None:
        specs = with_paces(specs, scenario.deployment.speculative, seed, replication)
    return specs.in_order_of_readiness()


def num_replicas(deployment: DeploymentSpec) -> int:
    """Return the replicas that take requests at the start, of all pools."""
    if not deployment.pools:
        return deployment.replicas
    return sum(pool.replicas for pool in deployment.pools if pool.role != "decode")


def _ran_out(specs: RequestSpecs, simulation: Simulation) -> bool:
    """Return whether clients that stop at a given time had nothing more to send before it."""
    if specs.closes_at is None or simulation.was_interrupted:
        return False
    # Every client that stops leaves one request, or conversation, unsent.
    if specs.turn is None:
        return len(specs) - len(simulation.records) < (specs.concurrency or 0)
    assert specs.session is not None
    assert simulation.records.session is not None
    unsent = ~np.isin(specs.session, simulation.records.session)
    owner = specs.loop_of_each
    return any(
        len(np.unique(specs.session[unsent & (owner == loop)])) < clients.concurrency
        for loop, clients in enumerate(specs.client_loops)
    )


def _enough(scenario: Scenario, specs: RequestSpecs, simulation: Simulation) -> int:
    """Return a number of requests, for one of several loops, that the clients can hardly reach by the end."""
    assert specs.closes_at is not None
    owner = specs.loop_of_each
    drawn = int(np.bincount(owner[owner >= 0]).max(initial=0))
    # If there are open arrivals too, the last request does not say how far the clients got.
    reached = float(simulation.records.arrival_time.max(initial=0.0)) if specs.loop is None else 0.0
    growth = _MARGIN * specs.closes_at / reached if reached > 0 else _LEAST_GROWTH
    count = math.ceil(drawn * min(max(growth, _LEAST_GROWTH), _MOST_GROWTH))
    if count > MAX_REQUESTS:
        with scenario.blaming("workload"):
            rule = f"is so long that the clients send more than {MAX_REQUESTS:,} requests"
            raise ScenarioError(rule, key="duration", remedy="shorten it, or give the clients a think_time")
    return count


def with_grammars(
    specs: RequestSpecs, spec: StructuredOutputSpec, num_replicas: int, *, seed: int, replication: int
) -> RequestSpecs:
    """Return requests that wait until their grammar is compiled; the others pass them.

    A schema is compiled once per replica: by the first ``num_replicas`` requests that have it, which routers spread. A
    request of the same schema that arrives meanwhile waits for the rest of that time. For clients who wait for answers,
    whose times are not known beforehand, only those first requests wait.

    Args:
        num_replicas: Replicas that compile, each for itself.
        seed: Seed of the run: the stream is ``schemas``.
    """
    uniforms = rng.stream(seed, "schemas", replication).random(len(specs)) / spec.share
    schema = np.minimum((uniforms * spec.num_schemas).astype(np.int64), spec.num_schemas - 1)
    schema[uniforms >= 1.0] = -1
    is_open = specs.turn is None and specs.loop is None and specs.concurrency is None
    times = specs.arrival_time if is_open else np.full(len(specs), np.nan)
    waits = grammar_waits(schema, times, spec.cost.compile_time, num_replicas)
    return specs.waiting(waits)


def grammar_waits(
    schema: NDArray[np.int64], times: NDArray[np.float64], compile_time: float, num_replicas: int
) -> NDArray[np.float64]:
    """Return how long each request waits for its grammar, seconds.

    Args:
        schema: Schema of each request in order of arrival; negative: none.
        times: When each arrives, seconds; NaN: not known.
        compile_time: Seconds.
        num_replicas: Replicas, to which requests of one schema go in turn.
    """
    waits = np.zeros(len(schema))
    order = np.argsort(schema, kind="stable")
    order = order[schema[order] >= 0]
    own = schema[order]
    first = np.searchsorted(own, own, side="left")
    place = np.arange(len(order)) - first
    compiled_by = order[first + place % num_replicas]
    is_first = place < num_replicas
    left = np.where(is_first, compile_time, times[compiled_by] + compile_time - times[order])
    waits[order] = np.maximum(np.nan_to_num(left, nan=0.0), 0.0)
    return waits


def pool_setups(resolved: ResolvedScenario) -> tuple[PoolSetup, ...]:
    """Return the pools of a scenario, priced; empty if it has none.

    Raises:
        InfeasibleError: The model of a pool does not fit.
        InputError: A profile is incompatible with the rest.
    """
    return tuple(_setup(resolved, number) for number in range(len(resolved.pools)))


def _setup(resolved: ResolvedScenario, number: int) -> PoolSetup:
    from simserve.sim.pools import PoolSetup

    own, spec = resolved.pools[number], resolved.scenario.deployment.pools[number]
    check_fit(own)
    with resolved.scenario.blaming(f"deployment.pools.{number}"):
        priced: PricedDeployment = price(own.shape)
    deployment, whole = own.scenario.deployment, resolved.scenario.deployment
    scaling = spec.autoscaling or whole.autoscaling
    speculative = deployment.speculative
    weights_bytes = replica_weights_bytes(own)
    return PoolSetup(
        name=spec.name,
        engine=decoding(own) if spec.role == "decode" else own.engine,
        step_times=priced.step_times,
        priced=priced,
        num_replicas=deployment.replicas,
        gpus_per_replica=own.shape.num_gpus,
        role=spec.role,
        region=spec.region or "",
        autoscaling=scaling,
        startup_seconds=startup_seconds(scaling, weights_bytes),
        weights_bytes=weights_bytes,
        replicas_per_node=replicas_per_node(own),
        kv_layout=kv_layout(own),
        kv_bytes_per_token=transferred_bytes_per_token(own),
        acceptance=() if speculative is None else speculative.conditional_acceptance,
    )


def decoding(resolved: ResolvedScenario) -> EngineConfig:
    """Return the scheduler's configuration of a replica that decodes what others prefill."""
    return replace(resolved.engine, recomputes_last_token=resolved.shape.engine.kv_transfer.recomputes_last_token)


def startup_seconds(scaling: AutoscalingSpec | None, weights_bytes: float) -> float:
    """Return the seconds from the launch of a replica to its first request."""
    return (StartupSpec() if scaling is None else scaling.startup).seconds(weights_bytes)


def replica_weights_bytes(resolved: ResolvedScenario) -> float:
    """Return the bytes of weights of one replica, over all its GPUs: what a start loads."""
    return float(resolved.memory.weights_bytes * resolved.shape.num_gpus)


def replicas_per_node(resolved: ResolvedScenario) -> int:
    """Return how many replicas fill a node."""
    gpus = resolved.shape.hardware.intra_node.num_host_gpus
    return max(gpus // resolved.shape.num_gpus, 1)


def kv_layout(resolved: ResolvedScenario) -> str:
    """Return what two replicas must share to read each other's KV caches: model and number format."""
    return f"{resolved.shape.model.name} {resolved.shape.kv_cache_dtype}"


def transferred_bytes_per_token(resolved: ResolvedScenario) -> float:
    """Return the bytes of KV cache of one token over all layers and heads: what crosses a link.

    Layers with a sliding window count like all others: an upper bound for prompts longer than the window if the engine
    keeps, and sends, only the window.
    """
    shape = resolved.shape
    return shape.model.kv_bytes_per_token(shape.kv_element_bytes)
