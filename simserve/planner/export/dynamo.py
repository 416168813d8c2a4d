"""A DynamoGraphDeployment: NVIDIA Dynamo's frontend, router and workers."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from typing import Any

from simserve.errors import ScenarioError
from simserve.planner.export.deployment import Export
from simserve.planner.export.encoders import DYNAMO_ENCODER, KEY, dynamo_encoded_words, encoders_of, refuse_unencoded
from simserve.planner.export.kubernetes import applied, on_gpu_nodes, variables
from simserve.planner.export.trtllm import options_text, role_options
from simserve.planner.export.workers import (
    WITHOUT_SCALING,
    Target,
    Worker,
    gib,
    is_disaggregated,
    link_note,
    role_words,
    shared_notes,
    together,
)

_TARGET = Target(
    name="dynamo",
    engines=("vllm", "sglang", "trtllm"),
    has_roles=True,
    spans_nodes=True,
    without_scaling=WITHOUT_SCALING,
)
RELEASE = "1.4.0"
"""Release of Dynamo whose API, examples and images these manifests follow (ai-dynamo/dynamo, examples/backends)."""
MODES = {
    "round_robin": {"DYN_ROUTER_MODE": "round-robin"},
    "random": {"DYN_ROUTER_MODE": "random"},
    "power_of_two": {"DYN_ROUTER_MODE": "power-of-two"},
    "least_outstanding": {"DYN_ROUTER_MODE": "least-loaded"},
    "prefix": {"DYN_ROUTER_MODE": "kv"},
    "least_tokens": {"DYN_ROUTER_MODE": "kv", "DYN_ROUTER_LOAD_AWARE": "true"},
}
"""Routing policy -> variables of Dynamo's frontend (Dynamo docs v1.5.0, modular-components/router/router-guide). In
load-aware mode, its KV router considers only the blocks and prompt tokens of a worker (ai-dynamo/dynamo,
components/src/dynamo/common/configuration/groups)."""
_BACKENDS = {"vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrtllm"}  # Engine -> its name in the image.
_NAMES = {"vllm": "Vllm", "sglang": "Sglang", "trtllm": "TRTLLM"}
_TRTLLM = "1.3"
"""TensorRT-LLM in that image: 1.3.0rc22 (ai-dynamo/dynamo, docs-website, fern/assets/releases.json of 2026-08-14)."""
_OWN = {"vllm": "vLLM 0.26.0", "sglang": "SGLang 0.5.16", "trtllm": f"TensorRT-LLM {_TRTLLM}"}
"""Engine -> the version in its image, from the same file."""
_HELD = {
    "0.6": {"vllm": "0.11.0", "sglang": "0.5.3", "trtllm": "1.1.0"},
    "0.7": {"vllm": "0.11.0", "sglang": "0.5.4", "trtllm": "1.2.0"},
    "0.8": {"vllm": "0.12.0", "sglang": "0.5.6", "trtllm": "1.2.0"},
    "0.9": {"vllm": "0.14.1", "sglang": "0.5.8", "trtllm": "1.3.0"},
    "1.0": {"vllm": "0.16.0", "sglang": "0.5.9", "trtllm": "1.3.0"},
    "1.1": {"vllm": "0.19.0", "sglang": "0.5.10", "trtllm": "1.3.0"},
    "1.2": {"vllm": "0.20.1", "sglang": "0.5.11", "trtllm": "1.3.0"},
    "1.3": {"vllm": "0.23.0", "sglang": "0.5.14", "trtllm": "1.3.0"},
    "1.4": {"vllm": "0.26.0", "sglang": "0.5.16", "trtllm": "1.3.0"},
    "1.5": {"vllm": "0.28.0", "sglang": "0.5.18", "trtllm": "1.3.0"},
}
"""Line of releases of Dynamo -> engine -> the version in its images; patches of a line keep them (NVIDIA's support
matrix at v1.2.0, compatibility by version at v1.3.1 to v1.5.0; candidates and post releases as what they lead to)."""
_IMAGE = re.compile(r"/(vllm|sglang|tensorrtllm)-runtime(?:-cu\d+)?:v?(\d+\.\d+)\.\d+(?!-\S*dev)\S*$")
MAIN = "main"  # Name of a component's container that Dynamo's operator completes.
_TOKEN = [{"secretRef": {"name": "hf-token-secret"}}]
OPTIONS = "engine.yaml"
OPTIONS_FOLDER = "/config"
"""Folder of a TensorRT-LLM worker's options, which override dynamo.trtllm's own flags (components/src/dynamo/trtllm,
workers/llm_worker.py); mounted as in examples/backends/trtllm/deploy, agg-with-config.yaml."""
_EVENTS = {
    "trtllm": ["--publish-events-and-metrics"],
    "vllm": [
        "--kv-events-config",
        json.dumps(
            {"publisher": "zmq", "topic": "kv-events", "endpoint": "tcp://*:20080", "enable_kv_cache_events": True}
        ),
    ],
}
"""Engine -> flags that make a worker report its cached prefixes to the router (ai-dynamo/dynamo, examples/backends,
agg_router.yaml at 2ac51dd)."""
_OPTION_KEYS: dict[str, tuple[str, type]] = {
    "--tp_size": ("tensor_parallel_size", int),
    "--pp_size": ("pipeline_parallel_size", int),
    "--ep_size": ("moe_expert_parallel_size", int),
    "--max_seq_len": ("max_seq_len", int),
    "--max_batch_size": ("max_batch_size", int),
    "--max_num_tokens": ("max_num_tokens", int),
    "--kv_cache_free_gpu_memory_fraction": ("kv_cache_config.free_gpu_memory_fraction", float),
}
"""Flag of `trtllm-serve` -> its key in the options, and the type of the value."""


def export_dynamo(name: str, workers: list[Worker]) -> Export:
    """Return the graph that serves a deployment (nvidia.com/v1beta1).

    Raises:
        ScenarioError: Dynamo cannot do what was simulated; names the key.
    """
    _TARGET.check(workers)
    _refuse_other_pools(workers)
    target = workers[0].serving.target
    for worker in workers if target == "trtllm" else []:
        if worker.num_nodes > 1:
            rule = "GPUs a worker cannot be exported to dynamo: TensorRT-LLM's are started by MPI over several hosts"
            key = "deployment.pools" if worker.role != "both" else "deployment"
            remedy = "make tensor_parallel_size x pipeline_parallel_size smaller"
            raise ScenarioError(rule, key=key, value=worker.num_gpus, remedy=remedy)
    encoders = encoders_of(workers)
    if encoders is not None and target == "trtllm":
        rule, remedy = "cannot be exported to dynamo with TensorRT-LLM's workers", "use vllm or sglang"
        raise ScenarioError(rule, key=KEY, remedy=remedy)
    if encoders is not None:
        refuse_unencoded(encoders, "dynamo")
    image = f"nvcr.io/nvidia/ai-dynamo/{_BACKENDS[target]}-runtime:{RELEASE}"
    mode = _TARGET.route(workers, MODES, MODES["round_robin"], "whose frontend has no such policy")
    variables_of_mode = [{"name": key, "value": value} for key, value in mode.items()]
    frontend = _component("Frontend", "frontend", 1, {"image": image, "env": variables_of_mode})
    graph_workers = [_worker(worker, image) for worker in workers]
    labels, affinity = together(name, workers)
    for each in graph_workers if labels else []:
        each["podTemplate"]["metadata"] = {"labels": labels}
        each["podTemplate"]["spec"] |= affinity
    if encoders is not None:
        graph_workers.append(_encoder(encoders, image))
    graph = {
        "apiVersion": "nvidia.com/v1beta1",
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": name},
        "spec": {"components": [frontend, *graph_workers]},
    }
    simulated = workers[0].deployment.label
    return applied(
        "dynamo",
        name,
        [*(_options(worker) for worker in workers if target == "trtllm"), graph],
        RELEASE,
        notes=(
            f"the image of Dynamo {RELEASE} holds {_OWN[target]}; {simulated} was simulated",
            *(_TRTLLM_NOTES if target == "trtllm" and is_disaggregated(workers) else []),
            *link_note(workers),
            *([] if encoders is None else [_ENCODER_NOTE]),
            "Hugging Face's token: kubectl create secret generic hf-token-secret --from-literal=HF_TOKEN=...",
            *(note for note in shared_notes(workers) if "kubectl create secret" not in note),
        ),
    )


_TRTLLM_NOTES = (
    "servers that prefill run without the overlapped scheduler, which TensorRT-LLM does not have for them",
    "the options of TensorRT-LLM's workers are those of its documentation and of Dynamo's examples, and were not run",
)


_ENCODER_NOTE = (
    "the encode workers are those of Dynamo's arguments and were not run; embeddings go over NIXL, at the speed of "
    "your network"
)


def _options(worker: Worker) -> dict[str, Any]:
    """Return the options of a TensorRT-LLM worker, including its flags, as a ConfigMap."""
    options = role_options(worker)
    words = worker.flags
    for flag, value in itertools.pairwise(words):
        if flag in _OPTION_KEYS:
            key, kind = _OPTION_KEYS[flag]
            block, _, name = key.rpartition(".")
            (options.setdefault(block, {}) if block else options)[name] = kind(value)
    text = options_text(options, _TRTLLM, reader="dynamo.trtllm --extra-engine-args")
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": worker.name}, "data": {OPTIONS: text}}


def _name(worker: Worker) -> str:
    role = "" if worker.role == "both" else worker.role.capitalize()
    return _NAMES[worker.serving.target] + role + "Worker"


def _refuse_other_pools(workers: list[Worker]) -> None:
    names = [_name(worker) for worker in workers]
    if len(set(names)) < len(names):
        rule = "cannot be exported to dynamo: one graph serves one model with workers of one kind a role"
        remedy = "use --to k8s, or one pool of each role"
        raise ScenarioError(rule, key="deployment.pools", value=len(workers), remedy=remedy)
    engines = sorted({worker.deployment.label for worker in workers})
    if len(engines) > 1:
        rule = "cannot be exported to dynamo: one image starts the workers of every role"
        remedy = "use --to k8s, or one engine and version in every pool"
        raise ScenarioError(rule, key="deployment.pools", value=", ".join(engines), remedy=remedy)


def _role_flags(worker: Worker) -> list[str]:
    """Return the flags of a worker that only prefills or decodes, and of its KV transfer; SGLang has both itself."""
    if worker.role == "both":
        return []
    mode = [] if worker.serving.target == "sglang" else ["--disaggregation-mode", worker.role]
    return mode if worker.serving.target == "trtllm" else [*mode, *role_words(worker)]


def _event_flags(worker: Worker) -> list[str]:
    """Return the flags that make a worker report its prefix cache to the router, where routing depends on it."""
    if worker.role == "decode" or worker.whole.routing.policy != "prefix":
        return []
    return _EVENTS.get(worker.serving.target, [])


def _component(
    name: str, kind: str, replicas: int, container: dict[str, Any], pod: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return a component of a graph with its main container and the rest of its pod spec."""
    spec = {"containers": [{"name": MAIN, **container}], **(pod or {})}
    return {"name": name, "type": kind, "replicas": replicas, "podTemplate": {"spec": spec}}


def _encoder(encoders: Worker, image: str) -> dict[str, Any]:
    """Return the component of the encoder pool: one GPU per worker, and no settings of the language model."""
    container = _container(encoders, image, DYNAMO_ENCODER, 1)
    name = f"{_NAMES[encoders.serving.target]}EncodeWorker"
    return _component(name, "worker", encoders.replicas, container, on_gpu_nodes(encoders))


def _container(worker: Worker, image: str, words: Sequence[str], gpus: int) -> dict[str, Any]:
    target = worker.serving.target
    model = ["--model" if target == "vllm" else "--model-path", worker.deployment.checkpoint]
    return {
        "image": image,
        "workingDir": f"/workspace/examples/backends/{target}",
        "command": ["python3", "-m", f"dynamo.{target}"],
        "args": [*model, *words],
        "envFrom": _TOKEN,
        "resources": {"limits": {"nvidia.com/gpu": str(gpus)}},
    }


def _worker(worker: Worker, image: str) -> dict[str, Any]:
    is_trtllm = worker.serving.target == "trtllm"
    words = ["--extra-engine-args", f"{OPTIONS_FOLDER}/{OPTIONS}"] if is_trtllm else worker.flags
    words = [*words, *_role_flags(worker), *_event_flags(worker)]
    words += dynamo_encoded_words(worker)
    container, pod = _container(worker, image, words, worker.gpus_per_host), on_gpu_nodes(worker)
    if is_trtllm:
        container["volumeMounts"] = [{"name": "options", "mountPath": OPTIONS_FOLDER}]
        pod["volumes"] = [{"name": "options", "configMap": {"name": worker.name}}]
    found = [each for each in variables(worker) if "value" in each]
    if found:
        container["env"] = found
    kind = "worker" if worker.role == "both" else worker.role
    component = _component(_name(worker), kind, worker.replicas, container, pod)
    component["sharedMemorySize"] = gib(worker.shared_bytes)
    if worker.num_nodes > 1:
        component["multinode"] = {"nodeCount": worker.num_nodes}
    return component


def version_in(image: str) -> str | None:
    """Return the version of the engine that an image of Dynamo's workers holds; None: it is none that is known."""
    found = _IMAGE.search(image.partition("@")[0])
    if found is None:
        return None
    engine = next(each for each, name in _BACKENDS.items() if name == found[1])
    return _HELD.get(found[2], {}).get(engine)
