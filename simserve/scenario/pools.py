"""The pools of a resolved scenario as they are simulated, and what goes over the links between them."""

from __future__ import annotations

from simserve.perf.parts import PricedDeployment
from simserve.perf.pricing import price
from simserve.perf.quantization import KV_BITS
from simserve.scenario.fit import check_fit
from simserve.scenario.resolve import ResolvedScenario
from simserve.sim.pools import PoolSetup


def pool_setups(resolved: ResolvedScenario) -> tuple[PoolSetup, ...]:
    """Return the pools of a scenario, priced; empty where it has none.

    Raises:
        InfeasibleError: The model of a pool does not fit.
        InputError: A profile does not go with the rest.
    """
    return tuple(_setup(resolved, number) for number in range(len(resolved.pools)))


def _setup(resolved: ResolvedScenario, number: int) -> PoolSetup:
    own, spec = resolved.pools[number], resolved.scenario.deployment.pools[number]
    check_fit(own)
    with resolved.scenario.blaming(f"deployment.pools.{number}"):
        priced: PricedDeployment = price(own.shape)
    deployment = own.scenario.deployment
    return PoolSetup(
        name=spec.name,
        engine=own.engine,
        step_times=priced.step_times,
        priced=priced,
        num_replicas=deployment.replicas,
        gpus_per_replica=deployment.gpus_per_replica,
        role=spec.role,
    )


def transferred_bytes_per_token(resolved: ResolvedScenario) -> float:
    """Return the bytes of KV cache of one token over all layers and heads: what crosses a link."""
    shape = resolved.shape
    return shape.model.kv_bytes_per_token(KV_BITS[shape.kv_cache_dtype] / 8)
