"""The parts of a whole deployment: its kinds of worker, each with its command, count and start-up time.

Does not know the form of any manifest.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from simserve.documents import read_mapping
from simserve.errors import ScenarioError
from simserve.planner.export.deployment import Deployment, Export, prepare
from simserve.planner.space.links import Link, Side, domain_of, network_of
from simserve.profiles.engine_options import version_key
from simserve.scenario.deployment_spec import DeploymentSpec
from simserve.scenario.resolve import resolve
from simserve.scenario.schema import Scenario
from simserve.sim.control import AutoscalingSpec, Role, StartupSpec
from simserve.validation import FrozenModel, validate

PORT = 8000
GIB = 2**30
_PROCESS_BYTES = 4 * GIB  # Host memory of one rank's process without shared memory and page cache; a round figure.
_SHARED_BYTES = 2 * GIB
"""Least shared memory for NCCL and the processes' queues (vLLM's Kubernetes documentation); 1 GiB per rank with more
than two."""
CPUS_PER_RANK = 4
_TAGS = {("sglang", "0.5"): "0.5.1", ("trtllm", "1.3"): "1.3.0rc29"}
"""Server and version -> tag of its image, where no release has that version number in three parts (releases on PyPI,
November 2026)."""

VLLM_NIXL = ("--kv-transfer-config", json.dumps({"kv_connector": "NixlConnector", "kv_role": "kv_both"}))
"""Makes a vLLM server send or receive KV caches over NIXL (vLLM docs, nixl_connector_usage)."""


class Server(FrozenModel):
    """What a cluster needs to know about a server."""

    image: str  # Image without tag.
    tag: str  # Part of the tag before the version.
    flags: tuple[str, ...]  # Words that make it reachable at ``{port}`` and expose its metrics.
    health: str  # Path that answers 200 when it can serve.
    metrics: Mapping[str, str]  # Metric of the autoscaler -> its name in Prometheus; ``kv_usage`` is a share.
    source: str  # Where these come from.
    cache: str = "/root/.cache/huggingface"  # Folder that the image keeps weights in.
    is_counted: bool = True  # Whether, started this way, it reports its number of requests under ``/metrics``.


_KNOWN = read_mapping(Path(__file__).with_name("clusters.yaml"))
SERVERS = {name: validate(Server, each) for name, each in _KNOWN["servers"].items()}
PRODUCTS: Mapping[str, str] = _KNOWN["products"]
"""Hardware profile -> label ``nvidia.com/gpu.product`` that NVIDIA's GPU feature discovery sets on a node."""
GPU_USE = "DCGM_FI_DEV_GPU_UTIL"
"""DCGM exporter's name of the metric ``busy``: percentage of time in which a GPU works."""
OLD_KV_USAGE = "vllm:gpu_cache_usage_perc"
_TGI_START = "/tgi-entrypoint.sh"
"""Entrypoint of TGI's image: finds the Python environment and runs `text-generation-launcher` with the arguments."""
_TGI_START_SINCE = (2, 2)
_KV_USAGE_SINCE = (0, 10)
"""vLLM has `kv_cache_usage_perc` since V1 became its only engine; before, the metric's name mentioned the GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """Equal replicas of a deployment."""

    name: str  # Name that Kubernetes accepts.
    role: Role  # Whether it prefills, decodes or both.
    replicas: int  # Number of replicas at the start.
    deployment: Deployment  # One of the replicas.
    serving: Export  # The command that starts one.
    scaling: AutoscalingSpec | None  # Autoscaling of the replicas; None: their number is fixed.
    whole: DeploymentSpec  # The deployment they belong to, with its router, probes and updates.

    @property
    def num_gpus(self) -> int:
        """GPUs of one replica."""
        return self.deployment.scenario.deployment.gpus_per_replica

    @property
    def num_nodes(self) -> int:
        """Hosts that one replica spans."""
        return math.ceil(self.num_gpus / self.gpus_per_node)

    @property
    def gpus_per_node(self) -> int:
        """GPUs of a host of this kind."""
        return self.deployment.resolved.shape.hardware.intra_node.num_host_gpus

    @property
    def gpus_per_host(self) -> int:
        """GPUs of the replica on one of its hosts."""
        return min(self.num_gpus, self.gpus_per_node)

    @property
    def startup(self) -> StartupSpec:
        """Start-up of a new replica: the scenario's, or the defaults."""
        return StartupSpec() if self.scaling is None else self.scaling.startup

    @property
    def load_seconds(self) -> float:
        """Time to read the weights."""
        return self.deployment.loaded_bytes / self.startup.load_bandwidth

    @property
    def start_seconds(self) -> float:
        """Time from the start of a container to its first answer: loading the weights and starting the engine."""
        return self.load_seconds + self.startup.engine

    @property
    def server(self) -> Server:
        """What a cluster needs to know about its server."""
        return SERVERS[self.serving.target]

    @property
    def image(self) -> str:
        """Image of the simulated version, with a three-part version number in its tag, or the nearest one published."""
        version = self.serving.version
        number = _TAGS.get((self.serving.target, version)) or release(version)
        return f"{self.server.image}:{self.server.tag}{number}"

    @property
    def command(self) -> list[str]:
        """Words that start the server in a container, with its files under ``/config``."""
        words = ["python3" if word == "python" else word for word in self.serving.command]
        if self.serving.target == "tgi" and version_key(self.serving.version) >= _TGI_START_SINCE:
            words[0] = _TGI_START
        return [
            *(f"/config/{word}" if word in self.serving.files else word for word in words),
            *role_words(self),
            *(word.format(port=PORT) for word in self.server.flags),
        ]

    @property
    def flags(self) -> list[str]:
        """The flags alone, without the command and the checkpoint."""
        words = list(self.serving.command)
        return [*words[next((n for n, word in enumerate(words) if word.startswith("--")), len(words)) :]]

    @property
    def shared_bytes(self) -> float:
        """Shared memory that the ranks on one host need."""
        return max(_SHARED_BYTES, self.gpus_per_host * GIB)

    @property
    def host_bytes(self) -> float:
        """Host memory that the ranks on one host need."""
        return self.gpus_per_host * _PROCESS_BYTES + self.shared_bytes

    def metric(self) -> str:
        """Return the Prometheus name of the metric that the autoscaler follows.

        Raises:
            ScenarioError: The server does not expose it.
        """
        assert self.scaling is not None
        asked = self.scaling.metric
        if asked == "busy":
            return GPU_USE
        name = self.server.metrics.get(asked)
        if name is None:
            rule = f"cannot be exported: {self.deployment.label} exposes no such metric"
            remedy = "scale on " + " or ".join([*self.server.metrics, "busy"])
            raise ScenarioError(rule, key="deployment.autoscaling.metric", value=asked, remedy=remedy)
        is_vllm = self.serving.target == "vllm"
        is_old = is_vllm and asked == "kv_usage" and version_key(self.serving.version) < _KV_USAGE_SINCE
        return OLD_KV_USAGE if is_old else name


def workers_of(
    scenario: Scenario,
    write: Callable[[Deployment], Export],
    *,
    explicit: bool,
    checkpoint: str | None,
    with_roles: tuple[str, ...] = ("vllm", "sglang"),
) -> list[Worker]:
    """Return the kinds of worker of a scenario: one per pool, or a single one.

    Args:
        write: Function that makes the command of one replica.
        explicit: Also set the knobs that equal the engine's defaults.
        checkpoint: Repository or path that every engine loads; None: the model's own.
        with_roles: Targets whose servers can be started here to prefill or decode only.

    Raises:
        InputError: The scenario is invalid, or cannot be expressed for its engine.
        InfeasibleError: It does not fit.
    """
    whole, name = scenario.deployment, dns_name(scenario.name)

    def worker(
        name: str, role: Role, scenario: Scenario, scaling: AutoscalingSpec | None = whole.autoscaling
    ) -> Worker:
        deployment = prepare(scenario, explicit=explicit, checkpoint=checkpoint)
        for key in _SAID_BY_MANIFESTS:
            deployment.take(key)
        serving = write(deployment)
        kept = tuple(note for note in serving.notes if not note.startswith("one of "))
        serving = dataclasses.replace(serving, notes=kept)
        if role != "both" and serving.target not in with_roles:
            own = "use vllm or sglang" + (", or --to trtllm or dynamo" if serving.target == "trtllm" else "")
            rule = f"cannot be exported here with a prefill and a decode pool: {' and '.join(with_roles)} can"
            raise ScenarioError(rule, key="deployment.engine.name", value=deployment.engine.name, remedy=own)
        return Worker(
            name=name,
            role=role,
            replicas=scenario.deployment.replicas,
            deployment=deployment,
            serving=serving,
            scaling=scaling,
            whole=whole,
        )

    if not whole.pools:
        return [worker(name, "both", scenario)]
    resolved, found = resolve(scenario), []
    if checkpoint is not None and len({own.shape.model.name for own in resolved.pools}) > 1:
        rule = "is one checkpoint, and the pools serve several models"
        raise ScenarioError(rule, file="--checkpoint", value=checkpoint, remedy="leave it out")
    for number, (pool, own) in enumerate(zip(whole.pools, resolved.pools, strict=True)):
        with scenario.blaming(f"deployment.pools.{number}"):
            scaling = pool.autoscaling or whole.autoscaling
            found.append(worker(dns_name(f"{name}-{pool.name}"), pool.role, own.scenario, scaling))
    _refuse_other_weights(found)
    return found


def _refuse_other_weights(workers: list[Worker]) -> None:
    """Refuse roles that load different checkpoints: engines transfer no KV caches between them."""
    loaded: dict[str, set[str]] = {}
    for each in workers:
        if each.role != "both":
            model = each.deployment.resolved.shape.model.name
            loaded.setdefault(model, set()).add(each.deployment.checkpoint)
    several = next((sorted(names) for names in loaded.values() if len(names) > 1), None)
    if several:
        rule = "cannot be exported: engines hand over KV caches between servers of one checkpoint alone"
        remedy = "give both roles one quantization"
        raise ScenarioError(rule, key="deployment.pools", value=" and ".join(several), remedy=remedy)


_SAID_BY_MANIFESTS = (
    *("autoscaling", "pools", "disaggregation", "encoder_disaggregation"),
    *("liveness", "updates", "faults"),
)
"""Keys that manifests express or refuse; faults exist only in the simulation."""


def role_words(worker: Worker) -> list[str]:
    """Return the flags that make a server send or receive KV caches over NIXL."""
    if worker.role == "both":
        return []
    if worker.serving.target == "sglang":
        return ["--disaggregation-mode", worker.role, "--disaggregation-transfer-backend", "nixl"]
    return [*VLLM_NIXL]


def link_note(workers: list[Worker]) -> list[str]:
    """Return a note on the link that carries KV caches between the pools, and what a cluster needs for it."""
    link = workers[0].whole.disaggregation
    if link is None or not is_disaggregated(workers):
        return []
    speed, domain = f"{link.transfer_bandwidth / 1e9:g} GB/s", _domain(workers)
    if domain is None:
        needed = "pods need your cluster's RDMA device for it (rdma/ib or the like): measure yours"
        return [f"KV caches were simulated to cross a link of {speed}: over TCP they take longer; {needed}"]
    where = "all pods must run in one NVLink domain, and share a ComputeDomain of NVIDIA's DRA driver"
    if _domain_label(workers) == NODE_LABEL:
        where = "all pods must run on one node, and their containers must share GPU memory (CUDA IPC)"
    text = f"{domain.name} at {speed}: {where}: over the network first tokens are later"
    return [f"KV caches were simulated to cross {text}; measure yours"]


def together(name: str, workers: list[Worker]) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the labels and the affinity of pods that must run in one node or NVLink domain; both empty for others.

    The first pod goes wherever there is room, as no other pod has the label yet (Kubernetes docs, assign-pod-node).
    """
    if _domain(workers) is None:
        return {}, {}
    labels = {"app.kubernetes.io/part-of": name}
    term = {"labelSelector": {"matchLabels": labels}, "topologyKey": _domain_label(workers)}
    return labels, {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


def _domain(workers: list[Worker]) -> Link | None:
    """Return the link inside a node or NVLink domain where the simulated KV transfer uses it; else None."""
    link = workers[0].whole.disaggregation
    if link is None or not is_disaggregated(workers):
        return None
    sides = [Side(each.deployment.resolved.shape.hardware, each.num_gpus, each.replicas) for each in workers]
    domain, network = domain_of(sides), network_of(sides)
    return domain if network is None or link.transfer_bandwidth > network.bandwidth else None


def _domain_label(workers: list[Worker]) -> str:
    """Return the label that all nodes of one domain share."""
    shared = workers[0].deployment.resolved.shape.hardware.intra_node
    return NODE_LABEL if shared.num_host_gpus == shared.gpus_per_node else CLIQUE_LABEL


NODE_LABEL = "kubernetes.io/hostname"
CLIQUE_LABEL = "nvidia.com/gpu.clique"
"""Label that NVIDIA's DRA driver gives an NVLink domain over several hosts (Topograph docs, providers/dra)."""


def is_disaggregated(workers: list[Worker]) -> bool:
    """Return whether some workers prefill for others."""
    return any(each.role != "both" for each in workers)


_Rule = TypeVar("_Rule")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a target of whole deployments can start."""

    name: str  # Its name.
    engines: tuple[str, ...] = ()  # Targets of the engines that it has workers of; empty: of all.
    has_roles: bool = False  # Whether it has a router that prefills on one server and decodes on another.
    spans_nodes: bool = False  # Whether one replica may span several hosts.
    without_scaling: str = ""  # What to do instead of autoscaling; empty: it has an autoscaler.

    def check(self, workers: Sequence[Worker]) -> None:
        """Refuse what cannot be started.

        Raises:
            ScenarioError: Names the key.
        """
        cannot = f"cannot be exported to {self.name}"
        for worker in workers:
            hardware = worker.deployment.resolved.shape.hardware
            if hardware.vendor != "NVIDIA":
                rule = f"{cannot}: the images and resources written here are for NVIDIA's GPUs"
                raise ScenarioError(rule, key="deployment.hardware", value=hardware.name)
            if worker.role != "both" and not self.has_roles:
                rule = "which has no router that prefills on one server and decodes on another"
                remedy = "use --to dynamo, --to llm-d or --to kserve"
                raise ScenarioError(f"{cannot}, {rule}", key="deployment.disaggregation", remedy=remedy)
            if self.engines and worker.serving.target not in self.engines:
                rule = f"{cannot}, whose workers are those of {' and '.join(self.engines)}"
                own = worker.deployment.engine.name
                remedy = f"use --to k8s, or --set deployment.engine.name={self.engines[0]}"
                raise ScenarioError(rule, key="deployment.engine.name", value=own, remedy=remedy)
            if self.without_scaling:
                refuse_scaling(worker, self.name, self.without_scaling)
            if worker.num_nodes > 1 and not self.spans_nodes:
                why = f"a pod lies on one node, and one of {hardware.name} has {worker.gpus_per_node}"
                remedy = "use --to lws, or make tensor_parallel_size x pipeline_parallel_size smaller"
                rule = f"GPUs a replica {cannot}: {why}"
                raise ScenarioError(rule, key="deployment", value=worker.num_gpus, remedy=remedy)

    def route(self, workers: Sequence[Worker], policies: Mapping[str, _Rule], alone: _Rule | None, why: str) -> _Rule:
        """Return what stands for the simulated routing policy.

        Args:
            workers: The workers that are routed to.
            policies: Routing policy -> what stands for it.
            alone: What any policy comes to where none of them has a second replica; None: the same.
            why: What the target has instead of other policies.

        Raises:
            ScenarioError: Nothing stands for the policy.
        """
        is_alone = all(worker.replicas == 1 and worker.scaling is None for worker in workers)
        policy = workers[0].whole.routing.policy
        found = policies.get(policy, alone if is_alone else None)
        if found is None:
            rule = f"cannot be exported to {self.name}, {why}"
            remedy = "simulate and export with one of " + ", ".join(policies)
            raise ScenarioError(rule, key="deployment.routing.policy", value=policy, remedy=remedy)
        return found


WITHOUT_SCALING = "size the pools without it, or use --to keda"


def refuse_scaling(worker: Worker, target: str, remedy: str) -> None:
    """Refuse autoscaling.

    Raises:
        ScenarioError: There is an autoscaler.
    """
    if worker.scaling is not None:
        rule = f"cannot be exported to {target}: the autoscaler that was simulated has no counterpart there"
        raise ScenarioError(rule, key="deployment.autoscaling", value=worker.scaling.metric, remedy=remedy)


def dns_name(name: str) -> str:
    """Return a valid name of a Kubernetes Service: lower-case letters, digits and dashes, starting with a letter."""
    label = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return (label if label[:1].isalpha() else f"simserve-{label}")[:50].strip("-")


def gib(size: float) -> str:
    """Return bytes in Kubernetes' notation, rounded up."""
    return f"{math.ceil(size / GIB)}Gi"


def release(version: str) -> str:
    """Return a version in the form of image tags: three numbers."""
    key = version_key(version)
    return ".".join(str(part) for part in (*key, *([0] * (3 - len(key)))))


def shared_notes(workers: list[Worker]) -> list[str]:
    """Return notes that apply to every worker: its start-up time, what it loads, what is left to do by hand."""
    notes: list[str] = []
    for worker in workers:
        who = "a pod" if len(workers) == 1 else f"a pod of {worker.name}"
        load, size = worker.load_seconds, worker.deployment.loaded_bytes / 1e9
        notes += [
            *worker.serving.notes,
            f"{who} is expected to start in {worker.start_seconds:.0f} s: {size:.1f} GB of weights at "
            f"{size / load:g} GB/s, {worker.startup.engine:.0f} s for the engine (without the image's download)",
            f"only if the page of {worker.deployment.checkpoint} asks to accept its terms: "
            "kubectl create secret generic huggingface --from-literal=token=...",
        ]
    return list(dict.fromkeys(notes))
