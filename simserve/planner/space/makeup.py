"""What a number of replicas stands for: equal ones, replicas divided among pools, or the most of an autoscaled fleet.

The search sizes every deployment by one number. It is divided among pools in the proportions of the deployment's own
replicas; for an autoscaled fleet it is the most replicas, and the fewest follow in the proportion of ``min_replicas``
to ``max_replicas``. A larger number never means fewer replicas anywhere. Simulates nothing.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from simserve.scenario.deployment_spec import DeploymentSpec
from simserve.scenario.media import encoder_power, encoders_usd_per_hour
from simserve.scenario.resolve import ResolvedScenario

REPLICAS_KEY = "deployment.replicas"
POOLS_KEY = "deployment.pools"
SCALING_KEY = "deployment.autoscaling"


@dataclass(frozen=True, slots=True, kw_only=True)
class Makeup:
    """GPUs, dollars and idle watts of a number of replicas, pool by pool (equal replicas are one pool)."""

    weights: tuple[int, ...]  # Proportions in which replicas are divided among the pools.
    gpus: tuple[int, ...]  # GPUs of one replica.
    usd_per_gpu_hour: tuple[float | None, ...]  # Price; None if unknown.
    idle_watts: tuple[float, ...]  # Power of one idle GPU.
    scaled: tuple[int, int] | None = None
    """Fewest to most replicas of an autoscaled fleet, as a proportion; None: their number is fixed."""
    smallest: int = 1  # Fewest replicas that can be deployed: one per pool, and each that a fault names.
    encoders: int = 0  # Most GPUs of an encoder pool, independent of the number of replicas.
    encoders_usd_per_hour: float = 0.0  # Cost of those that are always there; NaN without a price.
    encoders_watts: float = 0.0  # Power of those when idle.

    def counts(self, replicas: int) -> tuple[int, ...]:
        """Return the replicas of each pool."""
        return dealt(self.weights, replicas)

    def num_gpus(self, replicas: int) -> int:
        """Return the GPUs of a number of replicas, all launched, and of the encoder pool."""
        return self.encoders + sum(count * gpus for count, gpus in zip(self.counts(replicas), self.gpus, strict=True))

    def always(self, replicas: int) -> tuple[int, ...]:
        """Return the replicas of each pool that are always there and paid for."""
        return self.counts(replicas) if self.scaled is None else (fewest_of(self.scaled, replicas),)

    def usd_per_hour(self, replicas: int) -> float:
        """Return the least dollars per hour of a number of replicas; infinite without a price."""
        total = math.inf if math.isnan(self.encoders_usd_per_hour) else self.encoders_usd_per_hour
        for count, gpus, usd in zip(self.always(replicas), self.gpus, self.usd_per_gpu_hour, strict=True):
            total += count * gpus * (math.inf if usd is None else usd) if count else 0.0
        return total

    def watts(self, replicas: int) -> float:
        """Return the watts of a number of idle replicas."""
        parts = zip(self.always(replicas), self.gpus, self.idle_watts, strict=True)
        return self.encoders_watts + sum(count * gpus * watts for count, gpus, watts in parts)

    def without_encoders(self) -> Makeup:
        """Return the same without an encoder pool."""
        return replace(self, encoders=0, encoders_usd_per_hour=0.0, encoders_watts=0.0)

    def most(self, max_gpus: int) -> int:
        """Return the most replicas that ``max_gpus`` GPUs hold."""
        replicas = max(max_gpus - self.encoders, 0) // min(self.gpus)
        while replicas > 0 and self.num_gpus(replicas) > max_gpus:
            replicas -= 1
        return replicas


def makeup_of(resolved: ResolvedScenario) -> Makeup:
    """Return what the replicas of a resolved deployment stand for."""
    deployment = resolved.scenario.deployment
    pools = resolved.pools or (resolved,)
    scaling, spec = deployment.autoscaling, deployment.encoder_disaggregation
    power, always = encoder_power(resolved), 0 if spec is None else spec.min_workers
    return Makeup(
        weights=tuple(pool.replicas for pool in deployment.pools) or (1,),
        gpus=tuple(pool.shape.num_gpus for pool in pools),
        usd_per_gpu_hour=tuple(pool.gpu_hour_usd for pool in pools),
        idle_watts=tuple(pool.shape.hardware.power.idle for pool in pools),
        scaled=None if scaling is None else (scaling.min_replicas, scaling.max_replicas),
        smallest=smallest_fleet(deployment),
        encoders=0 if spec is None else spec.max_workers,
        encoders_usd_per_hour=0.0 if spec is None else encoders_usd_per_hour(resolved) / spec.replicas * always,
        encoders_watts=0.0 if power is None else always * power[0],
    )


def smallest_fleet(deployment: DeploymentSpec) -> int:
    """Return the fewest replicas that a deployment can be simulated with."""
    named = [getattr(fault, "replica", 0) + 1 for fault in deployment.faults if fault.at is not None]
    return max(len(deployment.pools), *named, 1)


def replicas_of(deployment: DeploymentSpec) -> int:
    """Return the number that a deployment is sized by at present: its replicas, or its most if autoscaled."""
    if deployment.autoscaling is not None:
        return deployment.autoscaling.max_replicas
    return sum(pool.replicas for pool in deployment.pools) or deployment.replicas


@cache
def dealt(weights: tuple[int, ...], replicas: int) -> tuple[int, ...]:
    """Return a number divided in proportion to weights, one each first, then by highest averages.

    Webster's divisors 1, 3, 5 ... make it monotone: with a larger number no share becomes smaller.
    """
    counts = [1] * len(weights)
    for _ in range(replicas - len(weights)):
        places = range(len(weights))
        counts[max(places, key=lambda each: (weights[each] / (2 * counts[each] + 1), -each))] += 1
    return tuple(counts)


def fewest_of(scaled: tuple[int, int], replicas: int) -> int:
    """Return the fewest replicas of a fleet autoscaled up to ``replicas``: the same share, at least one."""
    fewest, most = scaled
    return max(1, fewest * replicas // most) if fewest else 0


def settings(deployment: DeploymentSpec, replicas: int) -> dict[str, Any]:
    """Return the overrides that give a deployment ``replicas`` replicas."""
    if deployment.pools:
        counts = dealt(tuple(pool.replicas for pool in deployment.pools), replicas)
        return {f"{POOLS_KEY}.{number}.replicas": count for number, count in enumerate(counts)}
    scaling = deployment.autoscaling
    if scaling is None:
        return {REPLICAS_KEY: replicas}
    fewest = fewest_of((scaling.min_replicas, scaling.max_replicas), replicas)
    return {
        REPLICAS_KEY: max(fewest, 1),
        f"{SCALING_KEY}.min_replicas": fewest,
        f"{SCALING_KEY}.max_replicas": replicas,
    }


def merged(overrides: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return overrides with others applied on top; one below a block that is set as a whole goes inside it."""
    found = copy.deepcopy(dict(overrides))
    for key, value in changes.items():
        block = next((each for each in found if key.startswith(f"{each}.") and found[each] is not None), None)
        if block is None:
            found[key] = value
            continue
        part: Any = found[block]
        *parts, last = key[len(block) + 1 :].split(".")
        for each in parts:
            part = part[int(each)] if isinstance(part, list) else part[each]
        part[last] = value
    return found
