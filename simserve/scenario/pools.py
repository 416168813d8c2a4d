"""The pools of a resolved scenario as they are simulated, and what goes over the links between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simserve.perf.parts import PricedDeployment
from simserve.perf.pricing import price
from simserve.scenario.fit import check_fit
from simserve.scenario.resolve import ResolvedScenario
from simserve.sim.autoscaling_spec import AutoscalingSpec, StartupSpec

if TYPE_CHECKING:
    from simserve.sim.pools import PoolSetup


def pool_setups(resolved: ResolvedScenario) -> tuple[PoolSetup, ...]:
    """Return the pools of a scenario, priced; empty where it has none.

    Raises:
        InfeasibleError: The model of a pool does not fit.
        InputError: A profile does not go with the rest.
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
        engine=own.engine,
        step_times=priced.step_times,
        priced=priced,
        num_replicas=deployment.replicas,
        gpus_per_replica=deployment.gpus_per_replica,
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


def startup_seconds(scaling: AutoscalingSpec | None, weights_bytes: float) -> float:
    """Return the seconds from the launch of a replica to its first request."""
    return (StartupSpec() if scaling is None else scaling.startup).seconds(weights_bytes)


def replica_weights_bytes(resolved: ResolvedScenario) -> float:
    """Return the bytes of weights of one replica, over all its GPUs: what a start loads."""
    return float(resolved.memory.weights_bytes * resolved.scenario.deployment.gpus_per_replica)


def replicas_per_node(resolved: ResolvedScenario) -> int:
    """Return how many replicas fill a host."""
    gpus = resolved.shape.hardware.intra_node.num_host_gpus
    return max(gpus // resolved.scenario.deployment.gpus_per_replica, 1)


def kv_layout(resolved: ResolvedScenario) -> str:
    """Return what two replicas must have in common to read each other's KV caches: model and number format."""
    return f"{resolved.shape.model.name} {resolved.shape.kv_cache_dtype}"


def transferred_bytes_per_token(resolved: ResolvedScenario) -> float:
    """Return the bytes of KV cache of one token over all layers and heads: what crosses a link.

    Layers with a sliding window count like all others: an upper bound for prompts that outgrow it, where the engine
    keeps, and sends, the window alone.
    """
    shape = resolved.shape
    return shape.model.kv_bytes_per_token(shape.kv_element_bytes)
