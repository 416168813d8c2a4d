"""From a resolved scenario to what decides in its runs. Checks nothing, decides nothing."""

from __future__ import annotations

from simserve.profiles.api import load_api
from simserve.scenario.objective import limits_by_class
from simserve.scenario.pools import (
    replica_weights_bytes,
    replicas_per_node,
    startup_seconds,
    transferred_bytes_per_token,
)
from simserve.scenario.resolve import ResolvedScenario
from simserve.scenario.schema import Scenario
from simserve.sim.control import Control
from simserve.sim.overflow_spec import OverflowSpec
from simserve.sim.streaming_spec import StreamingSpec


def control_of(resolved: ResolvedScenario) -> Control:
    """Return everything that decides while a run of the scenario goes on."""
    deployment = resolved.scenario.deployment
    return Control(
        routing=deployment.routing,
        admission=deployment.admission,
        limits=limits_by_class(resolved.scenario),
        task_limit=None if resolved.scenario.slo is None else resolved.scenario.slo.task,
        autoscaling=deployment.autoscaling,
        startup_seconds=startup_seconds(deployment.autoscaling, replica_weights_bytes(resolved)),
        faults=deployment.faults,
        liveness=deployment.liveness,
        updates=deployment.updates,
        regions=deployment.regions,
        overflow=_overflow(resolved.scenario),
        streaming=_streaming(resolved),
        response_cache=deployment.response_cache,
        fairness=deployment.fairness,
        disaggregation=deployment.disaggregation,
        kv_bytes_per_token=0.0 if deployment.disaggregation is None else transferred_bytes_per_token(resolved),
        allowed=_allowed(resolved),
        replicas_per_node=replicas_per_node(resolved),
        weights_bytes=replica_weights_bytes(resolved),
    )


def _overflow(scenario: Scenario) -> OverflowSpec | None:
    """Return what goes to an API; what the scenario does not say of its speed is that of the API's profile."""
    spec = scenario.deployment.overflow
    if spec is None:
        return None
    with scenario.blaming("deployment.overflow.api"):
        measured = load_api(spec.api, scenario.folder).latency
    if measured is None:
        return spec
    known = {
        "ttft": measured.mean_ttft,
        "ttft_cv": measured.ttft_cv,
        "tokens_per_second": measured.tokens_per_second,
    }
    is_given = "ttft" in spec.model_fields_set
    told = {
        name: value
        for name, value in known.items()
        if value is not None and name not in spec.model_fields_set and not (name == "ttft_cv" and is_given)
    }
    return spec.model_copy(update=told)


def _streaming(resolved: ResolvedScenario) -> StreamingSpec | None:
    """Return how tokens reach the clients; an event costs what the engine takes for a token, where that is known."""
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
