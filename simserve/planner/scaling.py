"""A scenario at another load: the same pattern of arrivals, with more or fewer requests in it. Simulates nothing."""

from __future__ import annotations

from typing import Any

from simserve.scenario.deployment_spec import DeploymentSpec
from simserve.scenario.schema import Scenario
from simserve.workload.arrival_spec import (
    AllAtOnceArrivals,
    Arrivals,
    ClosedLoopArrivals,
    ConstantArrivals,
    DailyArrivals,
    GammaArrivals,
    PoissonArrivals,
    RampArrivals,
    SpikeArrivals,
    StepArrivals,
    WeibullArrivals,
)
from simserve.workload.class_spec import ClassSpec

PATTERNS = RampArrivals | StepArrivals | SpikeArrivals | DailyArrivals
"""Arrivals whose rate changes at given times: a part of a run is not like the whole of it."""


def steady_rate(scenario: Scenario) -> float | None:
    """Return the requests/s that arrive from beginning to end; None where some arrive otherwise."""
    arrivals = scenario.workload.arrivals
    if any(each.arrivals for each in scenario.workload.classes or ()):
        return None
    if isinstance(arrivals, PoissonArrivals | GammaArrivals | WeibullArrivals | ConstantArrivals):
        return float(arrivals.rate)
    return None


def has_own_clock(scenario: Scenario) -> bool:
    """Return whether something happens at its own times, so that a run must last as long as the scenario says.

    That is rates that change, faults, updates, and an autoscaler whose replicas take minutes to start; but not in a
    closed loop, which has no length in seconds.
    """
    return clock_of(scenario) is not None


def clock_of(scenario: Scenario) -> str | None:
    """Return what happens at its own times, in words; None where nothing does, as `has_own_clock` says."""
    workload, deployment = scenario.workload, scenario.deployment
    if workload.trace is not None or isinstance(workload.arrivals, ClosedLoopArrivals | AllAtOnceArrivals):
        return None
    own = [each.arrivals for each in workload.classes or ()]
    if any(isinstance(each, PATTERNS | AllAtOnceArrivals) for each in (workload.arrivals, *own)):
        return "arrivals have a pattern in time"
    if deployment.faults:
        return "faults happen at times of their own"
    if is_scaled(deployment):
        return "replicas take minutes to come and go"
    return "replicas are updated at times of their own" if deployment.updates else None


def is_scaled(deployment: DeploymentSpec) -> bool:
    """Return whether replicas come and go with the load, in one of its pools at least."""
    return deployment.autoscaling is not None or any(pool.autoscaling is not None for pool in deployment.pools)


def at_most(deployment: DeploymentSpec) -> DeploymentSpec:
    """Return a deployment that starts with the most replicas that its autoscaling allows, in each of its pools."""
    scaling = deployment.autoscaling
    if not deployment.pools:
        return deployment if scaling is None else deployment.model_copy(update={"replicas": scaling.max_replicas})
    pools = []
    for pool in deployment.pools:
        own = pool.autoscaling or scaling
        pools.append(pool if own is None else pool.model_copy(update={"replicas": own.max_replicas}))
    return deployment.model_copy(update={"pools": tuple(pools)})


def scaled_arrivals(arrivals: Arrivals, factor: float) -> Arrivals | None:
    """Return arrivals with every rate, or the clients, times ``factor``; None where all requests come at once."""
    if isinstance(arrivals, AllAtOnceArrivals):
        return None
    if isinstance(arrivals, ClosedLoopArrivals):
        return arrivals.model_copy(update={"concurrency": max(1, round(arrivals.concurrency * factor))})
    if isinstance(arrivals, StepArrivals):
        steps = tuple(each.model_copy(update={"rate": each.rate * factor}) for each in arrivals.steps)
        return arrivals.model_copy(update={"steps": steps})
    changed: dict[str, Any] = {"rate": arrivals.rate * factor}
    if isinstance(arrivals, RampArrivals):
        changed["start_rate"] = arrivals.start_rate * factor
    return arrivals.model_copy(update=changed)


def _scaled_class(each: ClassSpec, factor: float) -> ClassSpec:
    """Return a class with its own arrivals times ``factor``; of a batch, its requests."""
    if each.arrivals is None:
        return each
    if each.num_requests is not None:
        return each.model_copy(update={"num_requests": max(1, round(each.num_requests * factor))})
    return each.model_copy(update={"arrivals": scaled_arrivals(each.arrivals, factor)})


def _has_length(scenario: Scenario) -> bool:
    """Return whether a run must last equally long at any load: a warm-up in seconds, conversations, clients."""
    workload = scenario.workload
    is_closed = isinstance(workload.arrivals, ClosedLoopArrivals)
    return is_closed or workload.has_sessions or not isinstance(scenario.run.warmup, str)


def scaled_traffic(scenario: Scenario, factor: float) -> Scenario | None:
    """Return the scenario with all its arrivals times ``factor``; None where it has none that can be scaled.

    The same number of requests in less time, unless the length of the run matters: then as many more.
    """
    workload = scenario.workload
    changed: dict[str, Any] = {}
    if workload.arrivals is not None:
        changed["arrivals"] = scaled_arrivals(workload.arrivals, factor)
        if changed["arrivals"] is None:
            return None
    if workload.classes is not None:
        changed["classes"] = tuple(_scaled_class(each, factor) for each in workload.classes)
    if workload.arrivals is None and all(each.arrivals is None for each in workload.classes or ()):
        return None
    if workload.num_requests is not None and _has_length(scenario):
        changed["num_requests"] = max(1, round(workload.num_requests * factor))
    return scenario.model_copy(update={"workload": workload.model_copy(update=changed)})
