"""Kubernetes manifests of a deployment: Deployment, Service and a HorizontalPodAutoscaler on the queue.

Knows the server's command as words, not how it was made.
"""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass
from typing import Any

import yaml

from simserve.errors import ScenarioError
from simserve.planner.export.deployment import Deployment, Export
from simserve.profiles.engine_profile import version_key

_GIB = 2**30
_PORT = 8000
_LOAD_BYTES_PER_SECOND = 2e9
"""Weights from storage to the GPUs of a pod: a network volume or a fast download; the scenario's own
`load_bandwidth` of DESIGN section 8 has the same default."""
_ENGINE_SECONDS = 40.0
"""From loaded weights to the first answer: compilation and graph capture; DESIGN section 8's default."""
_START_MARGIN = 3
"""The startup probe gives up after this many times the expected time."""
_PROBE_SECONDS = 10
_QUEUE_TARGET = 10
"""Requests waiting a pod from which another one is started; DESIGN section 8's default target of queue_depth."""
_STABILIZATION_SECONDS = 300
_PROCESS_BYTES = 4 * _GIB
"""Host memory of one rank's process besides shared memory and page cache; a round figure."""
_SHARED_BYTES = 2 * _GIB
"""Least shared memory for NCCL and the processes' queues, as vLLM's Kubernetes documentation has it; 1 GiB a rank
above two."""
_CPUS_PER_RANK = 4
_TERMINATION_SECONDS = 120
"""Time for running requests to finish."""

_PRODUCTS = {
    "h100-sxm-80gb": "NVIDIA-H100-80GB-HBM3",
    "h100-pcie-80gb": "NVIDIA-H100-PCIe",
    "h200-sxm-141gb": "NVIDIA-H200",
    "h20-96gb": "NVIDIA-H20",
    "a100-sxm-80gb": "NVIDIA-A100-SXM4-80GB",
    "a100-sxm-40gb": "NVIDIA-A100-SXM4-40GB",
    "a100-pcie-80gb": "NVIDIA-A100-80GB-PCIe",
    "l40s-48gb": "NVIDIA-L40S",
    "l4-24gb": "NVIDIA-L4",
    "a10-24gb": "NVIDIA-A10",
    "a10g-24gb": "NVIDIA-A10G",
    "rtx-a6000-48gb": "NVIDIA-RTX-A6000",
    "rtx-6000-ada-48gb": "NVIDIA-RTX-6000-Ada-Generation",
    "t4-16gb": "Tesla-T4",
}
"""Hardware profile -> label ``nvidia.com/gpu.product`` that NVIDIA's GPU feature discovery gives a node."""


class _PlainDumper(yaml.SafeDumper):
    """Writes out what stands twice, instead of an anchor and an alias."""

    def ignore_aliases(self, data: Any) -> bool:
        """Return that nothing is an alias."""
        del data
        return True


@dataclass(frozen=True, slots=True)
class Server:
    """What Kubernetes has to know of a server.

    Attributes:
        image: Image without tag.
        tag: Before the version.
        flags: Words that let it be reached and measured.
        health: Path that answers 200 when it can serve.
        queue_metric: Prometheus metric of the requests that wait.
        source: Where these come from.
    """

    image: str
    tag: str
    flags: tuple[str, ...]
    health: str
    queue_metric: str
    source: str


_REACHABLE = ("--host", "0.0.0.0", "--port", str(_PORT))
_SERVERS = {
    "vllm": Server(
        "vllm/vllm-openai",
        "v",
        _REACHABLE,
        "/health",
        "vllm:num_requests_waiting",
        "vLLM docs, deployment/k8s, metrics",
    ),
    "sglang": Server(
        "lmsysorg/sglang",
        "v",
        (*_REACHABLE, "--enable-metrics"),
        "/health",
        "sglang:num_queue_reqs",
        "SGLang docs, references/production_metrics",
    ),
    "trtllm": Server(
        "nvcr.io/nvidia/tensorrt-llm/release",
        "",
        _REACHABLE,
        "/health",
        "trtllm_num_requests_waiting",
        "TensorRT-LLM docs, commands/trtllm-serve",
    ),
    "tgi": Server(
        "ghcr.io/huggingface/text-generation-inference",
        "",
        ("--hostname", "0.0.0.0", "--port", str(_PORT)),
        "/health",
        "tgi_queue_size",
        "TGI docs, reference/metrics",
    ),
}


def export_kubernetes(deployment: Deployment, serving: Export) -> Export:
    """Return the manifests that serve a deployment.

    Args:
        deployment: The replica.
        serving: The command that starts it, with its variables and files.

    Raises:
        ScenarioError: A replica needs more GPUs than a node has, or they are not NVIDIA's.
    """
    _refuse(deployment)
    serving = _without_replica_note(serving)
    name = _dns_name(deployment.scenario.name)
    server = _SERVERS[serving.target]
    start = _start_seconds(deployment)
    manifests = [
        _deployment(name, deployment, serving, server, start),
        _service(name),
        _autoscaler(name, deployment, server),
    ]
    if serving.files:
        manifests.insert(0, _config_map(name, serving))
    file = f"{name}.k8s.yaml"
    return Export(
        target="k8s",
        version=serving.version,
        command=("kubectl", "apply", "-f", file),
        files={file: yaml.dump_all(manifests, Dumper=_PlainDumper, sort_keys=False, width=110)},
        main_file=file,
        notes=(*serving.notes, *_notes(name, deployment, server, start)),
    )


def _without_replica_note(serving: Export) -> Export:
    """Return the command without the note that it has to be started several times: Kubernetes does."""
    kept = tuple(note for note in serving.notes if not note.startswith("one of "))
    return dataclasses.replace(serving, notes=kept)


def _refuse(deployment: Deployment) -> None:
    hardware, size = deployment.resolved.shape.hardware, deployment.scenario.deployment.gpus_per_replica
    if hardware.vendor != "NVIDIA":
        rule = "cannot be exported to Kubernetes: the images and resources written here are for NVIDIA's GPUs"
        raise ScenarioError(rule, key="deployment.hardware", value=hardware.name)
    node = hardware.intra_node.num_host_gpus
    if size > node:
        raise ScenarioError(
            f"GPUs a replica cannot be exported to Kubernetes: a pod lies on one node, and one of "
            f"{hardware.name} has {node}",
            key="deployment",
            value=size,
            remedy="make tensor_parallel_size x pipeline_parallel_size smaller",
        )


def _dns_name(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:50].strip("-") or "simserve"


def _start_seconds(deployment: Deployment) -> float:
    """Return the time from a started container to its first answer: loading the weights, starting the engine."""
    return deployment.loaded_bytes / _LOAD_BYTES_PER_SECOND + _ENGINE_SECONDS


def _tag(version: str) -> str:
    """Return a version as images are tagged: three numbers."""
    key = version_key(version)
    return ".".join(str(part) for part in (*key, *([0] * (3 - len(key)))))


def _deployment(name: str, deployment: Deployment, serving: Export, server: Server, start: float) -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": name}
    pod: dict[str, Any] = {
        "terminationGracePeriodSeconds": _TERMINATION_SECONDS,
        "containers": [_container(deployment, serving, server, start)],
        "volumes": _volumes(name, deployment, serving),
    }
    product = _PRODUCTS.get(deployment.resolved.shape.hardware.name)
    if product is not None:
        pod = {"nodeSelector": {"nvidia.com/gpu.product": product}, **pod}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "replicas": deployment.scenario.deployment.replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def _container(deployment: Deployment, serving: Export, server: Server, start: float) -> dict[str, Any]:
    num_gpus = deployment.scenario.deployment.gpus_per_replica
    memory = num_gpus * _PROCESS_BYTES + _shared_bytes(num_gpus)
    token = {"secretKeyRef": {"name": "huggingface", "key": "token", "optional": True}}
    variables = [{"name": key, "value": value} for key, value in serving.environment.items()]
    mounts = [
        {"name": "shared-memory", "mountPath": "/dev/shm"},
        {"name": "weights", "mountPath": "/root/.cache/huggingface"},
    ]
    if serving.files:
        mounts.append({"name": "config", "mountPath": "/config"})
    resources = {"nvidia.com/gpu": num_gpus}
    return {
        "name": "server",
        "image": f"{server.image}:{server.tag}{_tag(serving.version)}",
        "command": _command(serving, server),
        "env": [{"name": "HF_TOKEN", "valueFrom": token}, *variables],
        "ports": [{"name": "http", "containerPort": _PORT}],
        "resources": {
            "requests": {"cpu": str(_CPUS_PER_RANK * num_gpus), "memory": _gib(memory), **resources},
            "limits": resources,
        },
        "startupProbe": _probe(server, math.ceil(_START_MARGIN * start / _PROBE_SECONDS)),
        "readinessProbe": _probe(server, 1),
        "livenessProbe": _probe(server, 6),
        "volumeMounts": mounts,
    }


def _command(serving: Export, server: Server) -> list[str]:
    words = ["python3" if word == "python" else word for word in serving.command]
    return [*(f"/config/{word}" if word in serving.files else word for word in words), *server.flags]


def _probe(server: Server, failure_threshold: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": server.health, "port": "http"},
        "periodSeconds": _PROBE_SECONDS,
        "timeoutSeconds": 5,
        "failureThreshold": failure_threshold,
    }


def _volumes(name: str, deployment: Deployment, serving: Export) -> list[dict[str, Any]]:
    num_gpus = deployment.scenario.deployment.gpus_per_replica
    volumes: list[dict[str, Any]] = [
        {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": _gib(_shared_bytes(num_gpus))}},
        {"name": "weights", "emptyDir": {"sizeLimit": _gib(1.2 * deployment.loaded_bytes)}},
    ]
    if serving.files:
        volumes.append({"name": "config", "configMap": {"name": name}})
    return volumes


def _shared_bytes(num_gpus: int) -> float:
    return max(_SHARED_BYTES, num_gpus * _GIB)


def _gib(size: float) -> str:
    return f"{math.ceil(size / _GIB)}Gi"


def _service(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": name}},
        "spec": {
            "selector": {"app.kubernetes.io/name": name},
            "ports": [{"name": "http", "port": 80, "targetPort": "http"}],
        },
    }


def _autoscaler(name: str, deployment: Deployment, server: Server) -> dict[str, Any]:
    replicas = deployment.scenario.deployment.replicas
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": name}},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
            "minReplicas": replicas,
            "maxReplicas": 2 * replicas,
            "metrics": [
                {
                    "type": "Pods",
                    "pods": {
                        "metric": {"name": server.queue_metric},
                        "target": {"type": "AverageValue", "averageValue": str(_QUEUE_TARGET)},
                    },
                }
            ],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": _STABILIZATION_SECONDS}},
        },
    }


def _config_map(name: str, serving: Export) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": dict(serving.files)}


def _notes(name: str, deployment: Deployment, server: Server, start: float) -> list[str]:
    load = start - _ENGINE_SECONDS
    notes = [
        f"a pod is expected to start in {start:.0f} s: {load * _LOAD_BYTES_PER_SECOND / 1e9:.1f} GB of weights at "
        f"{_LOAD_BYTES_PER_SECOND / 1e9:g} GB/s, {_ENGINE_SECONDS:.0f} s for the engine; the startup probe waits "
        f"{_START_MARGIN} times as long (without the image's download)",
        f"the autoscaler needs {server.queue_metric} as a pod metric (Prometheus Adapter), and starts a pod above "
        f"{_QUEUE_TARGET} waiting requests a pod",
        "the weights are downloaded by every pod: mount a persistent volume instead of the emptyDir to load them once",
        f"{deployment.checkpoint}: a gated repository needs its token: "
        "kubectl create secret generic huggingface --from-literal=token=...",
    ]
    if deployment.resolved.shape.hardware.name not in _PRODUCTS:
        notes.append(f"add a nodeSelector for {deployment.resolved.shape.hardware.name}")
    replicated = [note for note in deployment.notes if note.startswith("one of ")]
    return notes if not replicated else [*notes, f"the Service {name} spreads connections at random, not requests"]
