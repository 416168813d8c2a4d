"""The simulated autoscaler in the words of Kubernetes and of KEDA: units, windows, bounds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from simserve.errors import ScenarioError
from simserve.planner.export.autoscalers import horizontal_pod_autoscaler, scaled_object
from simserve.planner.export.workers import Worker
from simserve.sim.control import AutoscalingSpec
from simserve.validation import validate


def worker(**rules: Any) -> Worker:
    """Return a worker that is scaled so."""
    known = {"metric": "busy", "target": 0.8, "min_replicas": 1, "max_replicas": 9}
    scaling = validate(AutoscalingSpec, {**known, **rules})
    return cast("Worker", SimpleNamespace(name="chat", scaling=scaling, metric=lambda: "m"))


@pytest.mark.parametrize(
    ("rules", "quantity", "threshold"),
    [
        ({"metric": "busy", "target": 0.8}, "80", "80"),  # DCGM exports percent
        ({"metric": "kv_usage", "target": 0.75}, "750m", "0.75"),
        ({"metric": "queue_depth", "target": 12}, "12", "12"),
        ({"metric": "running", "target": 2.5}, "2500m", "2.5"),
    ],
)
def test_targets_are_in_the_unit_of_the_metric(rules: dict[str, Any], quantity: str, threshold: str) -> None:
    """Kubernetes' quantities are whole or in thousandths, KEDA's thresholds plain."""
    metrics = horizontal_pod_autoscaler(worker(**rules))["spec"]["metrics"]
    trigger = scaled_object(worker(**rules))["spec"]["triggers"][0]

    assert metrics[0]["pods"]["target"] == {"type": "AverageValue", "averageValue": quantity}
    assert trigger["metadata"]["threshold"] == threshold


def test_keda_looks_at_the_interval_and_waits_for_the_window() -> None:
    """Down to none after the stabilization, by the highest number in the window; seconds are rounded up."""
    spec = scaled_object(worker(interval="14.2 s", stabilization="95.5 s", min_replicas=0))["spec"]
    behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]

    assert (spec["pollingInterval"], spec["cooldownPeriod"]) == (15, 96)
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (0, 9)
    assert behavior["scaleDown"]["stabilizationWindowSeconds"] == 96
    assert behavior["scaleUp"]["stabilizationWindowSeconds"] == 0


def test_a_window_of_an_hour_is_the_longest() -> None:
    """What the Kubernetes API allows."""
    spec = horizontal_pod_autoscaler(worker(stabilization="3600 s"))["spec"]

    assert spec["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 3600
    with pytest.raises(ScenarioError, match="looks back an hour at most"):
        horizontal_pod_autoscaler(worker(stabilization="3601 s"))
