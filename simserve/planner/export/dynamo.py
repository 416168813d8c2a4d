"""A DynamoGraphDeployment: NVIDIA Dynamo's frontend, router and workers."""

from __future__ import annotations

from typing import Any

from simserve.errors import ScenarioError
from simserve.planner.export.deployment import Export
from simserve.planner.export.kubernetes import document, node_selector, variables
from simserve.planner.export.workers import (
    Worker,
    gib,
    refuse_other_engines,
    refuse_other_makers,
    refuse_scaling,
    shared_notes,
)

RELEASE = "1.0.2"
"""Dynamo's release whose examples and images these manifests follow (ai-dynamo/dynamo, examples/backends)."""
_MODES = {
    "round_robin": {"DYN_ROUTER_MODE": "round-robin"},
    "random": {"DYN_ROUTER_MODE": "random"},
    "prefix": {"DYN_ROUTER_MODE": "kv"},
    "least_tokens": {"DYN_ROUTER_MODE": "kv", "DYN_KV_OVERLAP_SCORE_WEIGHT": "0"},
    "least_outstanding": {"DYN_ROUTER_MODE": "kv", "DYN_KV_OVERLAP_SCORE_WEIGHT": "0"},
}
"""Routing policy -> how Dynamo's frontend routes; its KV router without a weight for prefixes looks at load alone
(Dynamo docs, components/router)."""
_ROLE_WORDS = {
    ("vllm", "prefill"): ["--is-prefill-worker"],
    ("vllm", "decode"): ["--is-decode-worker"],
    ("sglang", "prefill"): ["--disaggregation-mode", "prefill", "--disaggregation-transfer-backend", "nixl"],
    ("sglang", "decode"): ["--disaggregation-mode", "decode", "--disaggregation-transfer-backend", "nixl"],
}


def export_dynamo(name: str, workers: list[Worker]) -> Export:
    """Return the graph that serves a deployment (nvidia.com/v1alpha1).

    Raises:
        ScenarioError: Dynamo cannot do what was simulated; names the key.
    """
    refuse_other_makers(workers, "dynamo")
    refuse_other_engines(workers, "dynamo", ("vllm", "sglang"))
    refuse_scaling(workers, "dynamo", "size the pools without it, or use --to keda")
    _refuse_other_pools(workers)
    target = workers[0].serving.target
    image = f"nvcr.io/nvidia/ai-dynamo/{target}-runtime:{RELEASE}"
    modes = _router_mode(workers)
    frontend = {
        "componentType": "frontend",
        "replicas": 1,
        "envs": [{"name": key, "value": value} for key, value in modes.items()],
        "extraPodSpec": {"mainContainer": {"image": image}},
    }
    services = {"Frontend": frontend} | {_name(worker): _service(worker, image) for worker in workers}
    graph = {
        "apiVersion": "nvidia.com/v1alpha1",
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": name},
        "spec": {"services": services},
    }
    file = f"{name}.dynamo.yaml"
    engine = workers[0].deployment.label
    routing = workers[0].whole.routing.policy
    counted = ["its router counts KV blocks in use, and least_outstanding counts requests"]
    return Export(
        target="dynamo",
        version=RELEASE,
        command=("kubectl", "apply", "-f", file),
        files={file: document([graph])},
        main_file=file,
        notes=(
            f"the image of Dynamo {RELEASE} holds a {target} of its own; {engine} was simulated",
            *(counted if routing == "least_outstanding" else []),
            "Hugging Face's token: kubectl create secret generic hf-token-secret --from-literal=HF_TOKEN=...",
            *(note for note in shared_notes(workers) if "kubectl create secret" not in note),
        ),
    )


def _name(worker: Worker) -> str:
    role = "" if worker.role == "both" else worker.role.capitalize()
    return {"vllm": "Vllm", "sglang": "Sglang"}[worker.serving.target] + role + "Worker"


def _refuse_other_pools(workers: list[Worker]) -> None:
    names = [_name(worker) for worker in workers]
    if len(set(names)) < len(names):
        raise ScenarioError(
            "cannot be exported to dynamo: one graph serves one model with workers of one kind a role",
            key="deployment.pools",
            value=len(workers),
            remedy="use --to k8s, or one pool of each role",
        )


def _router_mode(workers: list[Worker]) -> dict[str, str]:
    """Return how the frontend picks a worker; with one there is nothing to pick."""
    routing = workers[0].whole.routing
    is_alone = all(worker.replicas == 1 for worker in workers)
    mode = _MODES.get(routing.policy, _MODES["round_robin"] if is_alone else None)
    if mode is None:
        raise ScenarioError(
            "cannot be exported to dynamo, whose frontend has no such policy",
            key="deployment.routing.policy",
            value=routing.policy,
            remedy="simulate and export with one of " + ", ".join(_MODES),
        )
    return mode


def _service(worker: Worker, image: str) -> dict[str, Any]:
    target, gpus = worker.serving.target, min(worker.num_gpus, worker.gpus_per_node)
    model = ["--model-path" if target == "sglang" else "--model", worker.deployment.checkpoint]
    extra: dict[str, Any] = {
        "mainContainer": {
            "image": image,
            "workingDir": f"/workspace/examples/backends/{target}",
            "command": ["python3", "-m", f"dynamo.{target}"],
            "args": [*model, *worker.flags, *_ROLE_WORDS.get((target, worker.role), [])],
        }
    }
    selector = node_selector(worker)
    if selector:
        extra["nodeSelector"] = selector
    service: dict[str, Any] = {
        "envFromSecret": "hf-token-secret",
        "componentType": "worker",
        "replicas": worker.replicas,
        "sharedMemory": {"size": gib(worker.shared_bytes)},
        "resources": {"limits": {"gpu": str(gpus)}},
        "extraPodSpec": extra,
    }
    if worker.role != "both":
        service["subComponentType"] = worker.role
    if worker.num_nodes > 1:
        service["multinode"] = {"nodeCount": worker.num_nodes}
    found = [each for each in variables(worker) if "value" in each]
    if found:
        service["envs"] = found
    return service
