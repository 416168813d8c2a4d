"""Which deployments a user's own parts go with. Calls none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simserve.errors import UsageError

if TYPE_CHECKING:
    from simserve.scenario.resolve import ResolvedScenario
    from simserve.sim.own_parts import OwnParts


def check_own_parts(own: OwnParts, resolved: ResolvedScenario) -> None:
    """Refuse what a part of one's own would have no effect on, or is not told enough to decide.

    Raises:
        UsageError: A part is no function, or does not go with the deployment.
    """
    for name in own.names:
        if not callable(getattr(own, name)):
            raise UsageError(
                "is not a function", key=name, value=getattr(own, name), remedy="pass what is called with its arguments"
            )
    deployment = resolved.scenario.deployment
    if own.autoscaler is not None:
        scaled = [deployment.autoscaling, *(pool.autoscaling for pool in deployment.pools)]
        if not any(scaled):
            raise UsageError(
                "has nothing to decide without deployment.autoscaling, which says how often it is asked",
                key="autoscaler",
                remedy="set deployment.autoscaling; its metric and target are then not looked at",
            )
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
