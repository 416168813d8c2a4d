"""llm-d: Helm values of its model service, and of the InferencePool whose scheduler picks a replica."""

from __future__ import annotations

from typing import Any

from simserve.errors import ScenarioError
from simserve.planner.export.deployment import Export
from simserve.planner.export.flags import without
from simserve.planner.export.kubernetes import document, on_gpu_nodes, probes, variables
from simserve.planner.export.workers import (
    CPUS_PER_RANK,
    PORT,
    SERVERS,
    WITHOUT_SCALING,
    Target,
    Worker,
    gib,
    is_disaggregated,
    link_note,
    shared_notes,
    together,
)

_TARGET = Target(name="llm-d", engines=("vllm",), has_roles=True, without_scaling=WITHOUT_SCALING)
"""Its chart requests all GPUs for every pod, and starts no ranks on other nodes."""
_BEHIND_SIDECAR = 8200
"""Port of a decode server; its sidecar answers on the pool's port and requests the prefill first."""
_SCHEDULER = {"name": "llm-d-inference-scheduler", "hub": "ghcr.io/llm-d", "tag": "v0.5.0"}
"""Image that has the plugins named here; the chart's default image has neither roles nor these scorers (llm-d/llm-d at
126f65d, guides/pd-disaggregation/gaie-pd/values.yaml)."""
_POOL_CHART = "v1.4.0"
"""Version of the chart that llm-d's guides install (guides/tiered-prefix-cache); older ones take flags as a list with
names, and one port."""
_BY_HAND = (
    "the chart's values have no pod affinity (templates/decode-deployment.yaml at 04ae170): patch both Deployments"
)
_ONE_PROFILE = "single-profile-handler"
_ALWAYS_SPLIT = {"threshold": 0, "hashBlockSize": 5}
"""As simulated, the prefill pool takes every prompt, however much of it is cached (the same values)."""
SCORERS: dict[str, list[tuple[str, int]]] = {
    "least_outstanding": [("active-request-scorer", 1)],
    "prefix": [("prefix-cache-scorer", 2), ("active-request-scorer", 1)],
    "lora": [("lora-affinity-scorer", 2), ("active-request-scorer", 1)],
    "session": [("session-affinity-scorer", 2), ("active-request-scorer", 1)],
    "random": [],
}
"""Routing policy -> scorers of the inference scheduler and their weights (llm-d-inference-scheduler,
docs/architecture)."""


def export_llm_d(name: str, workers: list[Worker]) -> Export:
    """Return the values of both charts.

    Raises:
        ScenarioError: llm-d cannot do what was simulated; names the key.
    """
    _TARGET.check(workers)
    decode, prefill = by_role(workers, "llm-d")
    label = {"llm-d.ai/inferenceServing": "true", "llm-d.ai/model": name}
    checkpoint = decode.deployment.checkpoint
    values: dict[str, Any] = {
        "fullnameOverride": name,
        "modelArtifacts": {
            "name": checkpoint,
            "uri": f"hf://{checkpoint}",
            "size": gib(1.2 * decode.deployment.loaded_bytes),
            "authSecretName": "huggingface",
            "labels": label,
        },
        "multinode": False,
        "accelerator": {"type": "nvidia"},
        "routing": {
            "servicePort": PORT,
            "proxy": {"enabled": prefill is not None, "targetPort": _BEHIND_SIDECAR, "connector": "nixlv2"},
        },
        "decode": _role(decode, _BEHIND_SIDECAR if prefill is not None else PORT),
        "prefill": {"create": False, "replicas": 0} if prefill is None else _role(prefill, PORT),
    }
    scorers = _TARGET.route([decode], SCORERS, [], "whose scheduler has no such scorer")
    pool = _pool(label, scorers, is_split=prefill is not None)
    file, other = f"{name}.llm-d.yaml", f"{name}.inferencepool.yaml"
    return Export(
        target="llm-d",
        version=decode.serving.version,
        command=("helm", "install", name, "llm-d-modelservice/llm-d-modelservice", "-f", file),
        files={file: document([values]), other: document([pool])},
        main_file=file,
        notes=(
            f"{other} holds the values of the inferencepool chart of the Gateway API inference extension: "
            f"helm install {name}-pool oci://registry.k8s.io/gateway-api-inference-extension/charts/inferencepool "
            f"--version {_POOL_CHART} -f {other}",
            *link_note(workers),
            *([_BY_HAND] if together(name, workers)[0] else []),
            *(note.replace("literal=token=", "literal=HF_TOKEN=") for note in shared_notes(workers)),
        ),
    )


def by_role(workers: list[Worker], target: str) -> tuple[Worker, Worker | None]:
    """Return the workers that decode, or do both, and those that prefill for them; None: no others.

    Raises:
        ScenarioError: There are other pools.
    """
    roles = [worker.role for worker in workers]
    if is_disaggregated(workers) and sorted(roles) == ["decode", "prefill"]:
        return workers[roles.index("decode")], workers[roles.index("prefill")]
    if len(workers) > 1:
        raise ScenarioError(
            f"cannot be exported to {target}: it serves one model, with one pool that decodes and one that prefills",
            key="deployment.pools",
            value=len(workers),
            remedy="use --to k8s",
        )
    return workers[0], None


def _role(worker: Worker, port: int) -> dict[str, Any]:
    deployment = worker.deployment.scenario.deployment
    tensor, data = deployment.tensor_parallel_size, deployment.data_parallel_size
    gpus = worker.num_gpus
    words = [*without(worker.command[3:], {"--port": 1, "--tensor-parallel-size": 1}), "--port", str(port)]
    # The chart writes a flag of its own before these, from `parallelism`, which has the GPUs of all stages.
    words += ["--tensor-parallel-size", str(tensor)]
    container: dict[str, Any] = {
        "name": "vllm",
        "image": worker.image,
        "modelCommand": "vllmServe",
        "args": words,
        "ports": [{"containerPort": port, "name": "metrics", "protocol": "TCP"}],
        "resources": {
            "limits": {"nvidia.com/gpu": str(gpus)},
            "requests": {
                "nvidia.com/gpu": str(gpus),
                "cpu": str(CPUS_PER_RANK * gpus),
                "memory": gib(worker.host_bytes),
            },
        },
        **probes(worker, port=port, downloads=True),
        "mountModelVolume": True,
        "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}],
    }
    found = variables(worker)
    if found:
        container["env"] = found
    memory = {"medium": "Memory", "sizeLimit": gib(worker.shared_bytes)}
    return {
        "create": True,
        "replicas": worker.replicas,
        "parallelism": {
            "tensor": tensor * deployment.pipeline_parallel_size,
            "data": data,
            "dataLocal": data,
            "workers": 1,
        },
        "containers": [container],
        "volumes": [{"name": "shared-memory", "emptyDir": memory}],
        **on_gpu_nodes(worker),
    }


def _pool(label: dict[str, str], scorers: list[tuple[str, int]], *, is_split: bool) -> dict[str, Any]:
    """Return the pool and its scheduler's plugins: filters, scorers and picker."""
    picker = "max-score-picker" if scorers else "random-picker"
    weighed = [{"pluginRef": scorer, "weight": weight} for scorer, weight in scorers]
    profiles = [{"name": "default", "plugins": [*weighed, {"pluginRef": picker}]}]
    plugins = [*(scorer for scorer, _ in scorers), picker]
    if is_split:
        profiles = [
            {"name": role, "plugins": [{"pluginRef": f"{role}-filter"}, *weighed, {"pluginRef": picker}]}
            for role in ("prefill", "decode")
        ]
        plugins += ["prefill-header-handler", "prefill-filter", "decode-filter"]
    handler = {"type": "pd-profile-handler", "parameters": _ALWAYS_SPLIT} if is_split else {"type": _ONE_PROFILE}
    config = {
        "apiVersion": "inference.networking.x-k8s.io/v1alpha1",
        "kind": "EndpointPickerConfig",
        "plugins": [*({"type": plugin} for plugin in plugins), handler],
        "schedulingProfiles": profiles,
    }
    return {
        "inferencePool": {
            "modelServers": {"matchLabels": label},
            "modelServerType": "vllm",
            "targetPorts": [{"number": PORT}],
        },
        "inferenceExtension": {
            "replicas": 1,
            "image": _SCHEDULER,
            "flags": {"kv-cache-usage-percentage-metric": SERVERS["vllm"].metrics["kv_usage"]},
            "pluginsConfigFile": "simulated.yaml",
            "pluginsCustomConfig": {"simulated.yaml": document([config])},
        },
    }
