"""KServe's LLMInferenceService: a model, its replicas and, where asked for, a prefill pool in front of them."""

from __future__ import annotations

from typing import Any

from simserve.planner.export.deployment import Export
from simserve.planner.export.flags import without
from simserve.planner.export.kubernetes import applied, on_gpu_nodes, probes, variables
from simserve.planner.export.llm_d import by_role
from simserve.planner.export.workers import (
    CPUS_PER_RANK,
    PORT,
    WITHOUT_SCALING,
    Target,
    Worker,
    gib,
    link_note,
    shared_notes,
    together,
)

_TARGET = Target(name="kserve", engines=("vllm",), has_roles=True, without_scaling=WITHOUT_SCALING)
_ACCOUNT = "huggingface"  # Service account whose secret gives KServe's loader the Hugging Face token.
_SECRET = {"name": "huggingface"}
_SET_BY_KSERVE = {
    "--enable-expert-parallel": 0,
    **dict.fromkeys(("--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size"), 1),
    **dict.fromkeys(("--host", "--port"), 1),
}
"""Flags that KServe sets itself -> number of words after each."""
_BEHIND_SIDECAR = 8001
"""Port of a decode server; the sidecar that KServe puts in front of it requests the prefill (config/llmisvcconfig,
config-llm-decode-template.yaml)."""
_POLICIES = ("prefix", "least_outstanding")
"""Routing policies that KServe's default scheduler resembles: it weighs known prefixes, queues and KV use."""


def export_kserve(name: str, workers: list[Worker]) -> Export:
    """Return the service of a deployment (serving.kserve.io/v1alpha2).

    Raises:
        ScenarioError: KServe cannot do what was simulated; names the key.
    """
    _TARGET.check(workers)
    main, prefill = by_role(workers, "kserve")
    why = "whose scheduler weighs prefixes, queues and KV use"
    _TARGET.route([main], dict.fromkeys(_POLICIES, True), True, why)
    checkpoint = main.deployment.checkpoint
    spec: dict[str, Any] = {
        "model": {"uri": f"hf://{checkpoint}", "name": checkpoint},
        "router": {"route": {}, "gateway": {}, "scheduler": {}},
        **_workload(main, PORT if prefill is None else _BEHIND_SIDECAR),
    }
    if prefill is not None:
        spec["prefill"] = _workload(prefill, PORT)
    labels, affinity = together(name, workers)
    for each in (spec, spec["prefill"]) if labels else ():
        each["labels"] = labels
        each["template"] |= affinity
    api, kind = "serving.kserve.io/v1alpha2", "LLMInferenceService"
    service = {"apiVersion": api, "kind": kind, "metadata": {"name": name}, "spec": spec}
    return applied(
        "kserve",
        name,
        [service, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": _ACCOUNT}, "secrets": [_SECRET]}],
        main.serving.version,
        notes=(
            "the router is KServe's default scheduler, which weighs known prefixes, queues and KV use; "
            f"{main.whole.routing.policy} was simulated",
            *link_note(workers),
            *(note.replace("literal=token=", "literal=HF_TOKEN=") for note in shared_notes(workers)),
        ),
    )


def _workload(worker: Worker, port: int) -> dict[str, Any]:
    """Return the replicas of a role; KServe's template starts vLLM and takes its flags from a variable."""
    deployment = worker.deployment.scenario.deployment
    gpus = str(worker.num_gpus)
    sizes = {
        "tensor": deployment.tensor_parallel_size,
        "pipeline": deployment.pipeline_parallel_size,
        "data": deployment.data_parallel_size,
    }
    parallelism: dict[str, Any] = {key: size for key, size in sizes.items() if size > 1}
    if deployment.enable_expert_parallel:
        parallelism["expert"] = True
    words = without(worker.command[3:], _SET_BY_KSERVE)
    quoted = " ".join(f"'{word}'" if any(sign in word for sign in ' {"') else word for word in words)
    container: dict[str, Any] = {
        "name": "main",
        "image": worker.image,
        "env": [{"name": "VLLM_ADDITIONAL_ARGS", "value": quoted}, *variables(worker)],
        "resources": {
            "limits": {"nvidia.com/gpu": gpus},
            "requests": {
                "cpu": str(CPUS_PER_RANK * worker.num_gpus),
                "memory": gib(worker.host_bytes),
                "nvidia.com/gpu": gpus,
            },
        },
        "securityContext": {"runAsNonRoot": False},  # KServe's own image has a user; vLLM's runs as root.
        "startupProbe": {
            **probes(worker)["startupProbe"],
            "httpGet": {"path": worker.server.health, "port": port, "scheme": "HTTPS"},
        },
    }
    template: dict[str, Any] = {"serviceAccountName": _ACCOUNT, **on_gpu_nodes(worker), "containers": [container]}
    found: dict[str, Any] = {"replicas": worker.replicas, "template": template}
    return found | {"parallelism": parallelism} if parallelism else found
