"""A LeaderWorkerSet: replicas that span several hosts."""

from __future__ import annotations

import shlex
from typing import Any

from simserve.errors import ScenarioError
from simserve.planner.export.deployment import Export
from simserve.planner.export.kubernetes import applied, config_map, container, disruption_budget, pod, service
from simserve.planner.export.workers import Target, Worker, shared_notes
from simserve.profiles.engine_options import version_key

_TARGET = Target(
    name="lws",
    engines=("vllm", "sglang"),
    spans_nodes=True,
    without_scaling="size the fleet without it, or make a replica fit one node for --to k8s",
)
_RAY = "/vllm-workspace/examples/*_serving/multi-node-serving.sh"
"""Script in vLLM's image that starts the Ray cluster of ranks on several hosts (vLLM docs, deployment/frameworks/lws).
It is under online_serving, in later images under ray_serving."""
_WITHOUT_RAY = "0.12"
"""First version of vLLM in which one rank spans hosts with vLLM's own processes: `--nnodes`, `--node-rank` and
`--master-addr` of engine/arg_utils.py, run_headless of entrypoints/cli/serve.py."""
_GATHER_PORT, _RANKS_PORT = 20000, 13345
"""Ports of SGLang's ranks, and of vLLM's data-parallel ranks, from their documentation."""


def export_leader_workers(name: str, workers: list[Worker]) -> Export:
    """Return the manifests of replicas over several hosts (leaderworkerset.x-k8s.io/v1).

    Raises:
        ScenarioError: A replica fits one host, or such a set cannot do what was simulated.
    """
    _TARGET.check(workers)
    manifests: list[dict[str, Any]] = []
    notes = shared_notes(workers)
    for worker in workers:
        if worker.num_nodes == 1:
            rule = "GPUs of a replica fit one node, and a set of leaders and workers is for replicas over several"
            raise ScenarioError(rule, key="deployment", value=worker.num_gpus, remedy="use --to k8s")
        if worker.serving.files:
            manifests.append(config_map(worker))
        pods = {"leaderworkerset.sigs.k8s.io/name": worker.name}
        leaders = service(worker.name, {**pods, "role": "leader"})
        manifests += [_set(worker), leaders, disruption_budget(worker.name, pods)]
        notes += _notes(worker)
    return applied("lws", name, manifests, workers[0].serving.version, notes)


def _notes(worker: Worker) -> list[str]:
    link = (
        "over RDMA: give the pods your cluster's device (rdma/ib or the like), and set NCCL_SOCKET_IFNAME and "
        "NCCL_IB_HCA where they have several; over TCP NCCL is far slower"
    )
    if worker.num_gpus <= worker.deployment.resolved.shape.hardware.intra_node.gpus_per_node:
        link = "in one NVLink domain: ask for a ComputeDomain of NVIDIA's DRA driver"
    return [
        f"{worker.name}: {worker.replicas} replicas of {worker.num_nodes} nodes with {worker.gpus_per_node} GPUs; "
        "a node that fails restarts its whole replica",
        f"{worker.name}: its nodes were simulated {link}",
    ]


def _set(worker: Worker) -> dict[str, Any]:
    leader, other = _commands(worker)
    locks = {"securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}}  # RDMA registers locked memory.
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


def _ranks_on_a_node(worker: Worker) -> int:
    """Return the number of data-parallel ranks per node; 0: there is one rank, or each needs several nodes."""
    ranks = worker.deployment.scenario.deployment.data_parallel_size
    return 0 if ranks == 1 else worker.gpus_per_node // (worker.num_gpus // ranks)


def _by_ray(worker: Worker) -> tuple[list[str], list[str]]:
    """Return the commands of vLLM's leader and the others where Ray spreads ranks, or the GPUs of one, over nodes."""
    local = _ranks_on_a_node(worker)
    words = ["--distributed-executor-backend", "ray"]
    if local:
        words = ["--data-parallel-backend", "ray", "--data-parallel-size-local", str(local)]
    leader = f"bash {_RAY} leader --ray_cluster_size=$(LWS_GROUP_SIZE); {shlex.join([*worker.command, *words])}"
    return ["sh", "-c", leader], ["sh", "-c", f"bash {_RAY} worker --ray_address=$(LWS_LEADER_ADDRESS)"]


def _by_processes(worker: Worker) -> tuple[list[str], list[str]]:
    """Return commands of vLLM's leader and the others without Ray: a rank over all nodes, or whole ranks in each."""
    local, leader = _ranks_on_a_node(worker), "$(LWS_LEADER_ADDRESS)"
    if not local:
        both = [*worker.command, "--distributed-executor-backend", "mp", "--nnodes", str(worker.num_nodes)]
        both += ["--node-rank", "$(LWS_WORKER_INDEX)", "--master-addr", leader]
        return both, [*both, "--headless"]
    both = [*worker.command, "--data-parallel-size-local", str(local), "--data-parallel-address", leader]
    both += ["--data-parallel-rpc-port", str(_RANKS_PORT)]
    first = f"--headless --data-parallel-start-rank $((LWS_WORKER_INDEX * {local}))"
    return both, ["sh", "-c", f"{shlex.join(both)} {first}"]


def _commands(worker: Worker) -> tuple[list[str], list[str]]:
    words = worker.command
    if worker.serving.target == "sglang":
        nodes = [*words, "--nnodes", str(worker.num_nodes), "--dist-init-addr"]
        both = [*nodes, f"$(LWS_LEADER_ADDRESS):{_GATHER_PORT}", "--node-rank", "$(LWS_WORKER_INDEX)"]
        return both, both
    is_old = version_key(worker.serving.version) < version_key(_WITHOUT_RAY)
    has_wide_ranks = worker.deployment.scenario.deployment.data_parallel_size > 1 and not _ranks_on_a_node(worker)
    return _by_ray(worker) if is_old or has_wide_ranks else _by_processes(worker)
