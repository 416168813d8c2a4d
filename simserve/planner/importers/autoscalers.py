"""Autoscalers of Kubernetes and KEDA as the scaling of a scenario: the opposite of the exports' autoscalers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from simserve.errors import ScenarioError
from simserve.planner.export.autoscalers import PERIOD
from simserve.planner.export.workers import GPU_USE, OLD_KV_USAGE, SERVERS

_MOST, _INTERVAL = 100, 30  # KEDA's defaults for `maxReplicaCount` and `pollingInterval` (keda.sh/v1alpha1).
_DOWN_AFTER = 300  # Kubernetes' default for `stabilizationWindowSeconds` on the way down (autoscaling/v2).


def pod_scaling(spec: Mapping[str, Any], name: str, grace: float | None = None) -> dict[str, Any]:
    """Return the scaling of a HorizontalPodAutoscaler.

    Args:
        spec: Its spec.
        name: Name of what it scales, for errors.
        grace: Seconds that a replica has to finish its requests; None: not given.

    Raises:
        ScenarioError: It follows no metric of pods, or none that is simulated.
    """
    pods = next((each["pods"] for each in spec.get("metrics", ()) if each.get("type") == "Pods"), None)
    if pods is None:
        rule = "scales on no metric of its pods"
        raise ScenarioError(rule, file="manifest", key="HorizontalPodAutoscaler", value=name)
    value = str(pods["target"]["averageValue"])
    target = float(value[:-1]) / 1000 if value.endswith("m") else float(value)
    bounds = {"min_replicas": spec.get("minReplicas", 1), "max_replicas": spec["maxReplicas"]}
    interval = {"interval": _seconds(PERIOD)}
    return {**_metric(pods["metric"]["name"], target, name), **bounds, **interval, **_pace(spec, grace)}


def keda_scaling(spec: Mapping[str, Any], name: str, grace: float | None = None) -> dict[str, Any]:
    """Return the scaling of a ScaledObject (arguments as for `pod_scaling`).

    Raises:
        ScenarioError: It follows no metric of Prometheus, or none that is simulated.
    """
    trigger = next((each["metadata"] for each in spec["triggers"] if each["type"] == "prometheus"), None)
    if trigger is None:
        raise ScenarioError("scales on no metric of Prometheus", file="manifest", key="ScaledObject", value=name)
    bounds = {"min_replicas": spec.get("minReplicaCount", 0), "max_replicas": spec.get("maxReplicaCount", _MOST)}
    interval = {"interval": _seconds(spec.get("pollingInterval", _INTERVAL))}
    pace = _pace((spec.get("advanced") or {}).get("horizontalPodAutoscalerConfig") or {}, grace)
    return {**_metric(trigger["query"], float(trigger["threshold"]), name), **bounds, **interval, **pace}


SCALERS: Mapping[str, Callable[[Mapping[str, Any], str, float | None], dict[str, Any]]] = {
    "HorizontalPodAutoscaler": pod_scaling,
    "ScaledObject": keda_scaling,
}
"""Kind of an autoscaler -> function that reads its spec."""


def _metric(text: str, target: float, name: str) -> dict[str, Any]:
    """Return the metric that a name or a query stands for, with its target in the scenario's unit."""
    if GPU_USE in text:
        return {"metric": "busy", "target": target / 100}
    names = {name: key for each in SERVERS.values() for key, name in each.metrics.items()} | {OLD_KV_USAGE: "kv_usage"}
    found = next((key for name, key in names.items() if name in text), None)
    if found is None:
        remedy = "scale on " + ", ".join(names)
        raise ScenarioError("is no metric that is simulated", file="manifest", key=name, value=text, remedy=remedy)
    return {"metric": found, "target": target}


def _pace(spec: Mapping[str, Any], grace: float | None) -> dict[str, Any]:
    down = ((spec.get("behavior") or {}).get("scaleDown") or {}).get("stabilizationWindowSeconds", _DOWN_AFTER)
    return {"stabilization": _seconds(down)} | ({} if grace is None else {"grace_period": _seconds(grace)})


def _seconds(value: float) -> str:
    return f"{value:g} s"
