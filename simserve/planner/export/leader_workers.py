"""A LeaderWorkerSet: replicas that lie on several hosts."""

from __future__ import annotations

import shlex
from typing import Any

from simserve.errors import ScenarioError
from simserve.planner.export.deployment import Export
from simserve.planner.export.kubernetes import config_map, container, disruption_budget, document, pod, service
from simserve.planner.export.workers import (
    Worker,
    refuse_disaggregated,
    refuse_other_engines,
    refuse_other_makers,
    refuse_scaling,
    shared_notes,
)

_RAY = "/vllm-workspace/examples/online_serving/multi-node-serving.sh"
"""In vLLM's image: starts the Ray cluster that ranks on several hosts need (vLLM docs, deployment/frameworks/lws)."""
_GATHER_PORT = 20000


def export_leader_workers(name: str, workers: list[Worker]) -> Export:
    """Return the manifests of replicas over several hosts (leaderworkerset.x-k8s.io/v1).

    Raises:
        ScenarioError: A replica fits one host, or something was simulated that such a set does not do.
    """
    refuse_other_makers(workers, "lws")
    refuse_disaggregated(workers, "lws")
    refuse_other_engines(workers, "lws", ("vllm", "sglang"))
    refuse_scaling(workers, "lws", "size the fleet without it, or make a replica fit one node for --to k8s")
    _refuse_one_node(workers)
    manifests: list[dict[str, Any]] = []
    notes = shared_notes(workers)
    for worker in workers:
        if worker.serving.files:
            manifests.append(config_map(worker))
        labels = {"leaderworkerset.sigs.k8s.io/name": worker.name, "role": "leader"}
        pods = {"leaderworkerset.sigs.k8s.io/name": worker.name}
        manifests += [_set(worker), service(worker.name, labels), disruption_budget(worker.name, pods)]
        notes += _notes(worker)
    file = f"{name}.lws.yaml"
    return Export(
        target="lws",
        version=workers[0].serving.version,
        command=("kubectl", "apply", "-f", file),
        files={file: document(manifests)},
        main_file=file,
        notes=tuple(dict.fromkeys(notes)),
    )


def _refuse_one_node(workers: list[Worker]) -> None:
    for worker in workers:
        if worker.num_nodes == 1:
            raise ScenarioError(
                "GPUs of a replica fit one node, and a set of leaders and workers is for replicas over several",
                key="deployment",
                value=worker.num_gpus,
                remedy="use --to k8s",
            )


def _notes(worker: Worker) -> list[str]:
    hardware = worker.deployment.resolved.shape.hardware
    found = [
        f"{worker.name}: {worker.replicas} replicas of {worker.num_nodes} nodes with {worker.gpus_per_node} GPUs; "
        "a node that fails restarts its whole replica"
    ]
    if worker.num_gpus <= hardware.intra_node.gpus_per_node:
        found.append(
            f"{worker.name}: its nodes were simulated in one NVLink domain: ask for a ComputeDomain of NVIDIA's "
            "DRA driver"
        )
    else:
        found.append(
            f"{worker.name}: its nodes were simulated over RDMA: give the pods your cluster's device (rdma/ib or the "
            "like), and set NCCL_SOCKET_IFNAME and NCCL_IB_HCA where they have several; over TCP NCCL is far slower"
        )
    return found


def _set(worker: Worker) -> dict[str, Any]:
    leader, other = _commands(worker)
    locks = {"securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}}  # RDMA registers memory that stays in place.
    first, rest = container(worker, leader) | locks, container(worker, other) | locks
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        del rest[probe]  # Only the leader answers.
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": worker.name, "labels": {"app.kubernetes.io/name": worker.name}},
        "spec": {
            "replicas": worker.replicas,
            "leaderWorkerTemplate": {
                "size": worker.num_nodes,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": {"metadata": {"labels": {"role": "leader"}}, "spec": pod(worker, first)},
                "workerTemplate": {"spec": pod(worker, rest)},
            },
        },
    }


def _ray_words(worker: Worker) -> list[str]:
    """Return how vLLM spreads one replica over Ray's nodes: its data-parallel ranks, or the GPUs of one rank."""
    spec = worker.deployment.scenario.deployment
    of_rank = worker.num_gpus // spec.data_parallel_size
    if spec.data_parallel_size == 1 or of_rank > worker.gpus_per_node:
        return ["--distributed-executor-backend", "ray"]
    return ["--data-parallel-backend", "ray", "--data-parallel-size-local", str(worker.gpus_per_node // of_rank)]


def _commands(worker: Worker) -> tuple[list[str], list[str]]:
    """Return what the leader runs and what the others do."""
    words = worker.command
    if worker.serving.target == "sglang":
        nodes = [*words, "--nnodes", str(worker.num_nodes), "--dist-init-addr"]
        both = [*nodes, f"$(LWS_LEADER_ADDRESS):{_GATHER_PORT}", "--node-rank", "$(LWS_WORKER_INDEX)"]
        return both, both
    serve = shlex.join([*words, *_ray_words(worker)])
    leader = f"bash {_RAY} leader --ray_cluster_size=$(LWS_GROUP_SIZE); {serve}"
    return ["sh", "-c", leader], ["sh", "-c", f"bash {_RAY} worker --ray_address=$(LWS_LEADER_ADDRESS)"]
