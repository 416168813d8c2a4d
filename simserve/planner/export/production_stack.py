"""vLLM's production stack: values of its Helm chart, including the router."""

from __future__ import annotations

import math
from typing import Any

from simserve.planner.export.autoscalers import scaled_object, scaling_notes
from simserve.planner.export.deployment import Export
from simserve.planner.export.flags import without
from simserve.planner.export.kubernetes import (
    ON_GPU_NODES,
    PROBE_SECONDS,
    document,
    node_selector,
    start_limit,
    variables,
)
from simserve.planner.export.workers import CPUS_PER_RANK, Target, Worker, gib, release, shared_notes

_TARGET = Target(name="production-stack", engines=("vllm",))
_SKIP = "--skip-schema-validation"
"""Helm's flag, since 3.16, to install values that the chart's own schema refuses (Helm docs, helm install)."""
_DEPLOYMENT = "{release}-{model}-deployment-vllm"
"""Name of a model's Deployment in the chart (helm/templates/deployment-vllm-multi.yaml)."""
LOGIC = {"round_robin": "roundrobin", "session": "session", "prefix": "prefixaware"}
"""Routing policy -> `routerSpec.routingLogic`."""


def export_production_stack(name: str, workers: list[Worker]) -> Export:
    """Return the values of the chart.

    Raises:
        ScenarioError: The stack cannot do what was simulated; names the key.
    """
    _TARGET.check(workers)
    # The chart has one startup probe: for the slowest worker. Each fetches its weights when it starts.
    longest = max(start_limit(worker, downloads=True) for worker in workers)
    models = [_model(worker, name) for worker in workers]
    logic = _TARGET.route(workers, LOGIC, "roundrobin", "whose router has no such policy")
    by_user = {"sessionKey": "x-user-id"} if logic == "session" else {}
    values = {
        "servingEngineSpec": {
            "enableEngine": True,
            "startupProbe": {"periodSeconds": PROBE_SECONDS, "failureThreshold": math.ceil(longest / PROBE_SECONDS)},
            "modelSpec": models,
        },
        "routerSpec": {"enableRouter": True, "replicaCount": 1, "routingLogic": logic, **by_user},
    }
    file = f"{name}.production-stack.yaml"
    notes, install = shared_notes(workers), ["helm", "install", name, "vllm/vllm-stack", "-f", file]
    for worker in workers:
        if worker.scaling is not None:
            notes += scaling_notes(worker, is_keda=True)
    if any(worker.scaling is not None for worker in workers):
        install.append(_SKIP)
        notes.append(f"the chart's schema takes its own list of triggers for an object: install with {_SKIP}")
    return Export(
        target="production-stack",
        version=workers[0].serving.version,
        command=tuple(install),
        files={file: document([values])},
        main_file=file,
        notes=tuple(dict.fromkeys(notes)),
    )


def _model(worker: Worker, release_name: str) -> dict[str, Any]:
    image, _, _ = worker.image.rpartition(":")
    gpus = worker.num_gpus
    tensor = worker.deployment.scenario.deployment.tensor_parallel_size
    words = without(worker.flags, {"--tensor-parallel-size": 1})
    # The chart writes --no-enable-prefix-caching where this is not set (helm/templates/deployment-vllm-multi.yaml).
    caches = worker.deployment.engine.enable_prefix_caching
    model: dict[str, Any] = {
        "name": worker.name,
        "repository": image,
        "tag": f"v{release(worker.serving.version)}",
        "modelURL": worker.deployment.checkpoint,
        "replicaCount": worker.replicas,
        "requestCPU": CPUS_PER_RANK * gpus,
        "requestMemory": gib(worker.host_bytes),
        "requestGPU": gpus,
        "shmSize": gib(worker.shared_bytes),
        "vllmConfig": {"enablePrefixCaching": caches, "tensorParallelSize": tensor, "extraArgs": words},
        "hf_token": {"secretName": "huggingface", "secretKey": "token"},
        "tolerations": ON_GPU_NODES,
    }
    for key, value in node_selector(worker).items():
        expression = {"key": key, "operator": "In", "values": [value]}
        model["nodeSelectorTerms"] = [{"matchExpressions": [expression]}]
    if found := variables(worker):
        model["env"] = found
    if worker.scaling is not None:
        spec = scaled_object(worker, _DEPLOYMENT.format(release=release_name, model=worker.name))["spec"]
        del spec["scaleTargetRef"]
        model["keda"] = {"enabled": True, **spec}
    return model
