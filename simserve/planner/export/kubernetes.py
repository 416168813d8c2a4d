"""Kubernetes manifests of a whole deployment: Deployments, Services, disruption budgets and autoscalers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from simserve.documents import StrictDumper
from simserve.errors import ScenarioError
from simserve.planner.export.autoscalers import horizontal_pod_autoscaler, scaled_object, scaling_notes
from simserve.planner.export.deployment import Export
from simserve.planner.export.workers import CPUS_PER_RANK, PORT, PRODUCTS, Target, Worker, gib, shared_notes
from simserve.sim.control import UpdateSpec

_START_MARGIN = 3  # The startup probe gives up after this multiple of the expected time.
_DOWNLOAD = 50e6
"""Bytes/s of a slow download: a server that fetches its own weights gets at least that much time to start."""
PROBE_SECONDS = 10
_UNREADY_AFTER = 3
"""Failed probes in a row after which a server gets no more requests (Kubernetes' default): a busy one may miss one."""
_TERMINATION_SECONDS = 120  # Time for running requests to finish, where the scenario sets none.
_UNROUTED_SECONDS = 5  # Time until a cluster's routers know that a pod terminates.
_SHUTDOWN_SECONDS = 5  # Part of a pod's termination time that is left for the server to shut down.
_LEFT_OUT = ("original/*", "*.bin", "*.pth", "*.pt", "*.gguf", "*.onnx")
"""Files of a repository that a server does not read if there are safetensors."""
ON_GPU_NODES = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
"""This taint often keeps other pods off nodes with GPUs (Kubernetes docs, ExtendedResourceToleration)."""

_TOKEN = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "huggingface", "key": "token", "optional": True}}}


class _PlainDumper(StrictDumper):
    """Writes repeated content in full, without anchors and aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        """Return True: nothing is written as an alias."""
        del data
        return True


def document(manifests: Sequence[Mapping[str, Any]]) -> str:
    """Return manifests as one YAML text."""
    return yaml.dump_all([dict(each) for each in manifests], Dumper=_PlainDumper, sort_keys=False, width=110)


def applied(
    target: str, name: str, manifests: Sequence[Mapping[str, Any]], version: str, notes: Iterable[str]
) -> Export:
    """Return manifests as one file that kubectl applies."""
    file = f"{name}.{target}.yaml"
    return Export(
        target=target,
        version=version,
        command=("kubectl", "apply", "-f", file),
        files={file: document(manifests)},
        main_file=file,
        notes=tuple(dict.fromkeys(notes)),
    )


def export_kubernetes(name: str, workers: list[Worker], *, is_keda: bool = False) -> Export:
    """Return the manifests that serve a deployment.

    Args:
        is_keda: Whether KEDA scales it instead of Kubernetes itself.

    Raises:
        ScenarioError: Kubernetes cannot do what was simulated; names the key.
    """
    target = "keda" if is_keda else "k8s"
    Target(name=target).check(workers)
    if is_keda and all(worker.scaling is None for worker in workers):
        rule = "is absent, so that there is nothing for KEDA to scale"
        raise ScenarioError(rule, key="deployment.autoscaling", remedy="use --to k8s, or simulate with an autoscaler")
    manifests: list[dict[str, Any]] = []
    notes = shared_notes(workers)
    for worker in workers:
        if worker.serving.files:
            manifests.append(config_map(worker))
        manifests += [_deployment(worker), service(worker.name), disruption_budget(worker.name)]
        if worker.scaling is not None:
            manifests.append(scaled_object(worker) if is_keda else horizontal_pod_autoscaler(worker))
            notes += scaling_notes(worker, is_keda=is_keda)
        notes += _notes(worker)
    return applied(target, name, manifests, workers[0].serving.version, notes)


def node_selector(worker: Worker) -> dict[str, str]:
    """Return the label that NVIDIA's feature discovery sets on nodes with its GPU; empty where it is not known."""
    product = PRODUCTS.get(worker.deployment.resolved.shape.hardware.name)
    return {} if product is None else {"nvidia.com/gpu.product": product}


def on_gpu_nodes(worker: Worker) -> dict[str, Any]:
    """Return what places a pod on nodes with its GPU."""
    selector = node_selector(worker)
    return {"tolerations": ON_GPU_NODES} | ({"nodeSelector": selector} if selector else {})


def _deployment(worker: Worker) -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": worker.name}
    spec: dict[str, Any] = {
        "replicas": worker.replicas,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod(worker, container(worker))},
    }
    update = _update(worker)
    if update is not None:
        rolling = {"maxSurge": update.max_surge, "maxUnavailable": update.max_unavailable}
        spec["strategy"] = {"type": "RollingUpdate", "rollingUpdate": rolling}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": worker.name, "labels": labels},
        "spec": spec,
    }


def _update(worker: Worker) -> UpdateSpec | None:
    """Return how its replicas are replaced; None where that was not simulated."""
    return next(iter(worker.whole.updates), None)


def pod(worker: Worker, *containers: dict[str, Any]) -> dict[str, Any]:
    """Return the spec of a worker's pod."""
    update, scaling = _update(worker), worker.scaling
    seconds = max(
        [each.grace_period for each in (update, scaling) if each is not None], default=float(_TERMINATION_SECONDS)
    )
    grace = math.ceil(seconds)
    hook = _drain(worker, grace - _UNROUTED_SECONDS - _SHUTDOWN_SECONDS)
    volumes: list[dict[str, Any]] = [
        {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": gib(worker.shared_bytes)}},
        {"name": "weights", "emptyDir": {"sizeLimit": _weights_size(worker)}},
    ]
    if worker.serving.files:
        volumes.append({"name": "config", "configMap": {"name": worker.name}})
    return {
        **on_gpu_nodes(worker),
        "enableServiceLinks": False,  # A Service named vllm would set VLLM_PORT, which vLLM reads as its own variable.
        "terminationGracePeriodSeconds": grace,
        **_download(worker),
        "containers": [{**each, **hook} if "readinessProbe" in each else each for each in containers],
        "volumes": volumes,
    }


def _drain(worker: Worker, seconds: int) -> dict[str, Any]:
    """Return the hook that delays a server's end until its requests finish: a server told to stop drops them."""
    if seconds <= 0:
        return {}
    server = worker.server
    if server.is_counted:
        counts = "|".join(server.metrics[each] for each in ("running", "queue_depth"))
        busy = f'curl -s localhost:{PORT}/metrics | grep -E "^({counts})[{{ ]" | grep -qvE " 0(\\.0)?$"'
        script = f"sleep {_UNROUTED_SECONDS}; timeout {seconds} sh -c 'while {busy}; do sleep 1; done'; true"
    else:
        script = f"sleep {_UNROUTED_SECONDS + seconds}"
    return {"lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", script]}}}}


def _download(worker: Worker) -> dict[str, Any]:
    """Return the init container that downloads the weights, for which the server's probes allow no time; TGI downloads
    them itself."""
    checkpoint = worker.deployment.checkpoint
    if _downloads_itself(worker) or _is_folder(checkpoint):
        return {}
    load = f"snapshot_download({checkpoint!r}, ignore_patterns={list(_LEFT_OUT)!r})"
    command = ["python3", "-c", f"from huggingface_hub import snapshot_download; {load}"]
    mounts = [{"name": "weights", "mountPath": worker.server.cache}]
    found = {"name": "download", "image": worker.image, "command": command, "env": [_TOKEN], "volumeMounts": mounts}
    return {"initContainers": [found]}


def _downloads_itself(worker: Worker) -> bool:
    return worker.serving.target == "tgi" and not _is_folder(worker.deployment.checkpoint)


def _is_folder(checkpoint: str) -> bool:
    return checkpoint.startswith(("/", "."))


def container(worker: Worker, command: list[str] | None = None) -> dict[str, Any]:
    """Return the server of a worker as a container.

    Args:
        command: Words that start the server; None: the worker's own command.
    """
    gpus = worker.gpus_per_host
    mounts = [{"name": "shared-memory", "mountPath": "/dev/shm"}, {"name": "weights", "mountPath": worker.server.cache}]
    if worker.serving.files:
        mounts.append({"name": "config", "mountPath": "/config"})
    resources = {"nvidia.com/gpu": gpus}
    asked = {
        "cpu": str(CPUS_PER_RANK * gpus),
        "memory": gib(worker.host_bytes),
        "ephemeral-storage": _weights_size(worker),
        **resources,
    }
    return {
        "name": "server",
        "image": worker.image,
        "command": worker.command if command is None else command,
        "env": [_TOKEN, *variables(worker)],
        "ports": [{"name": "http", "containerPort": PORT}],
        "resources": {"requests": asked, "limits": resources},
        **probes(worker, downloads=_downloads_itself(worker)),
        "volumeMounts": mounts,
    }


def variables(worker: Worker) -> list[dict[str, Any]]:
    """Return the environment variables of a server besides its token."""
    found: list[dict[str, Any]] = [{"name": key, "value": value} for key, value in worker.serving.environment.items()]
    if worker.role != "both" and worker.serving.target == "vllm":
        address = {"fieldRef": {"fieldPath": "status.podIP"}}
        found.append({"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "valueFrom": address})
    return found


def start_limit(worker: Worker, *, downloads: bool) -> float:
    """Return the seconds after which a server without an answer has failed: three times the simulated start-up time.

    Args:
        downloads: Whether it fetches its own weights; the time of a slow download is then added.
    """
    return _START_MARGIN * worker.start_seconds + (worker.deployment.loaded_bytes / _DOWNLOAD if downloads else 0.0)


def probes(worker: Worker, *, port: int | str = "http", downloads: bool = False) -> dict[str, Any]:
    """Return the probes: a start may take three times as long as simulated; the liveness probe follows the scenario.

    Args:
        port: Port of the server: a number, or the name of a container's port.
        downloads: Whether the server fetches its own weights when it starts.
    """
    liveness = worker.whole.liveness
    alive = _probe(worker, 6, port)
    if liveness is not None:
        alive |= {
            "periodSeconds": math.ceil(liveness.period),
            "timeoutSeconds": math.ceil(liveness.timeout),
            "failureThreshold": liveness.threshold,
        }
    starting = math.ceil(start_limit(worker, downloads=downloads) / PROBE_SECONDS)
    return {
        "startupProbe": _probe(worker, starting, port),
        "readinessProbe": _probe(worker, _UNREADY_AFTER, port),
        "livenessProbe": alive,
    }


def _probe(worker: Worker, failure_threshold: int, port: int | str) -> dict[str, Any]:
    return {
        "httpGet": {"path": worker.server.health, "port": port},
        "periodSeconds": PROBE_SECONDS,
        "timeoutSeconds": 5,
        "failureThreshold": failure_threshold,
    }


def _weights_size(worker: Worker) -> str:
    return gib(1.2 * worker.deployment.loaded_bytes)


def service(name: str, labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the Service in front of a worker's pods."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": name}},
        "spec": {
            "selector": dict(labels or {"app.kubernetes.io/name": name}),
            "ports": [{"name": "http", "port": 80, "targetPort": "http"}],
        },
    }


def disruption_budget(name: str, pods: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the disruption budget: nodes are drained one replica at a time."""
    labels = {"app.kubernetes.io/name": name}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "labels": labels},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": dict(pods or labels)}},
    }


def config_map(worker: Worker) -> dict[str, Any]:
    """Return the ConfigMap with the files that a server reads."""
    data = dict(worker.serving.files)
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": worker.name}, "data": data}


def _notes(worker: Worker) -> list[str]:
    itself = _downloads_itself(worker)
    line = f", and for the weights over a line of {_DOWNLOAD / 1e6:g} MB/s" if itself else ""
    notes = [
        f"the startup probe waits {_START_MARGIN} times as long as a start is expected to take{line}",
        f"the weights are downloaded by every pod {'as' if itself else 'before'} its server starts: mount a persistent "
        "volume instead of the emptyDir to load them once",
    ]
    if not node_selector(worker):
        notes.append(f"add a nodeSelector for {worker.deployment.resolved.shape.hardware.name}")
    if worker.whole.liveness is not None:
        notes.append(
            "the simulated liveness probe asks for a token; this one asks whether the server answers at all, "
            "which an overloaded one does"
        )
    if worker.replicas > 1 or worker.scaling is not None:
        policy = worker.whole.routing.policy
        notes.append(f"the Service {worker.name} spreads connections at random; {policy} was simulated")
    return notes
