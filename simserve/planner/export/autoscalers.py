"""The simulated autoscaler, in the forms of Kubernetes' own and of KEDA's."""

from __future__ import annotations

import math
from typing import Any

from simserve.errors import ScenarioError
from simserve.planner.export.workers import Worker
from simserve.sim.control import AutoscalingSpec

_LONGEST_WINDOW = 3600
"""Longest `stabilizationWindowSeconds` of a HorizontalPodAutoscaler (Kubernetes API, autoscaling/v2)."""
PERIOD = 15
"""Seconds between checks of Kubernetes' autoscaler (kube-controller-manager: horizontal-pod-autoscaler-sync-period)."""
_OF_DEPLOYMENT = "[a-z0-9]+-[a-z0-9]+"
"""Suffix of a Deployment's name in the names of its pods: the hash of the template and that of the pod, each without a
dash."""
PROMETHEUS = "http://prometheus-operated.monitoring.svc:9090"
"""Default address of the Prometheus operator in a namespace `monitoring`; users replace it with their own."""


def horizontal_pod_autoscaler(worker: Worker) -> dict[str, Any]:
    """Return the autoscaler of a Deployment.

    Raises:
        ScenarioError: It cannot do what was simulated.
    """
    scaling, metric = _followed(worker)
    if scaling.min_replicas == 0:
        rule = "cannot be exported to k8s: its own autoscaler keeps one replica"
        remedy = "use --to keda, or set it to 1"
        raise ScenarioError(rule, key="deployment.autoscaling.min_replicas", value=0, remedy=remedy)
    target = {"type": "AverageValue", "averageValue": _quantity(_target(scaling))}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": worker.name, "labels": {"app.kubernetes.io/name": worker.name}},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": worker.name},
            "minReplicas": scaling.min_replicas,
            "maxReplicas": scaling.max_replicas,
            "metrics": [{"type": "Pods", "pods": {"metric": {"name": metric}, "target": target}}],
            "behavior": _behavior(scaling),
        },
    }


def scaled_object(worker: Worker, deployment: str | None = None) -> dict[str, Any]:
    """Return KEDA's autoscaler of a Deployment, on Prometheus (keda.sh/v1alpha1, KEDA 2.17).

    Args:
        deployment: Name of the Deployment; None: the worker's.

    Raises:
        ScenarioError: It cannot do what was simulated.
    """
    scaling, metric = _followed(worker)
    pods = f'{metric}{{pod=~"{deployment or worker.name}-{_OF_DEPLOYMENT}"}}'
    query = f"sum(avg by (pod) ({pods}))" if scaling.metric == "busy" else f"sum({pods})"
    asked = {"serverAddress": PROMETHEUS, "query": query, "threshold": f"{_target(scaling):g}"}
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": worker.name, "labels": {"app.kubernetes.io/name": worker.name}},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": worker.name},
            "minReplicaCount": scaling.min_replicas,
            "maxReplicaCount": scaling.max_replicas,
            "pollingInterval": math.ceil(scaling.interval),
            "cooldownPeriod": math.ceil(scaling.stabilization),
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _behavior(scaling)}},
            "triggers": [{"type": "prometheus", "metricType": "AverageValue", "metadata": asked}],
        },
    }


def scaling_notes(worker: Worker, *, is_keda: bool) -> list[str]:
    """Return notes for whoever runs the autoscaler."""
    scaling, metric = _followed(worker)
    where = "in Prometheus" if is_keda else "as a pod metric (Prometheus Adapter)"
    notes = [
        f"the autoscaler needs {metric} {where}; it was simulated on {scaling.metric} with target {scaling.target:g}, "
        f"{scaling.min_replicas} to {scaling.max_replicas} replicas"
    ]
    if scaling.metric == "busy":
        notes.append(
            "busy, the share of time with a step running, is read as the GPU utilization that DCGM exports: scrape it "
            "with honorLabels, so that it has the name of the server's pod"
            + ("" if is_keda or worker.num_gpus == 1 else ", and let the adapter average over a pod's GPUs")
        )
    if scaling.min_replicas == 0:
        notes.append(
            f"without a pod there is no {metric}: from zero replicas KEDA starts none by this trigger; add one on the "
            "requests at your gateway, or keep one replica"
        )
    if not is_keda and scaling.interval != PERIOD:
        notes.append(
            f"simulated with a look every {scaling.interval:g} s: set the controller manager's "
            f"--horizontal-pod-autoscaler-sync-period, which is {PERIOD} s"
        )
    return notes


def _target(scaling: AutoscalingSpec) -> float:
    """Return the target in the metric's own unit: percent for DCGM."""
    return 100 * scaling.target if scaling.metric == "busy" else scaling.target


def _quantity(value: float) -> str:
    return f"{value:g}" if value == int(value) else f"{round(1000 * value)}m"


def _followed(worker: Worker) -> tuple[AutoscalingSpec, str]:
    """Return the autoscaling of a worker, and the metric that it follows."""
    scaling = worker.scaling
    assert scaling is not None
    if scaling.metric == "slo":
        rule = "cannot be exported: no autoscaler of a cluster adds a replica while attainment is below its target"
        remedy = "scale on queue_depth, running, kv_usage or busy"
        raise ScenarioError(rule, key="deployment.autoscaling.metric", value="slo", remedy=remedy)
    return scaling, worker.metric()


def _behavior(scaling: AutoscalingSpec) -> dict[str, Any]:
    """Return the scaling behavior: up at once and as far as needed, down to the highest number in the window."""
    if scaling.stabilization > _LONGEST_WINDOW:
        raise ScenarioError(
            "cannot be exported: Kubernetes' autoscaler looks back an hour at most",
            key="deployment.autoscaling.stabilization",
            value=f"{scaling.stabilization:g} s",
            remedy="set it to 3600 s or less",
        )
    everything = [{"type": "Pods", "value": scaling.max_replicas, "periodSeconds": PERIOD}]
    return {
        "scaleUp": {"stabilizationWindowSeconds": 0, "policies": everything},
        "scaleDown": {"stabilizationWindowSeconds": math.ceil(scaling.stabilization), "policies": everything},
    }
