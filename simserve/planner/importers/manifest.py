"""Turns the manifests of a deployment into a scenario: servers (from their commands), their number, roles and scaling.

Reads what `simserve export` writes for k8s, keda, lws, compose, dynamo, llm-d, kserve and production-stack, the scripts
that start prefill and decode servers without a cluster, and others of the same form. The importer of each engine reads
its command lines; a note names what the manifests leave open.
"""

from __future__ import annotations

import itertools
import operator
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from simserve.documents import parse_yaml
from simserve.errors import ScenarioError
from simserve.planner.export.compose import POLICIES
from simserve.planner.export.dynamo import MAIN, MODES, version_in
from simserve.planner.export.flags import ALL, without
from simserve.planner.export.llm_d import SCORERS
from simserve.planner.export.production_stack import LOGIC
from simserve.planner.export.role_servers import ROLES
from simserve.planner.export.workers import PRODUCTS
from simserve.planner.importers.autoscalers import SCALERS, keda_scaling
from simserve.planner.importers.command import PROGRAMS, refused_note
from simserve.planner.importers.draft import Draft, scenario_name
from simserve.planner.importers.llama_cpp_command import LLAMA_CPP
from simserve.planner.importers.ray_serve import ray_servers
from simserve.planner.importers.server import ASSUMED_HARDWARE, import_line
from simserve.planner.importers.start_script import (
    commands_of,
    engine_of,
    front_policy,
    host_of,
    is_front,
    is_script,
    parts_of,
    roles_by_address,
    slurm_job,
    split_variables,
)
from simserve.planner.importers.tgi_command import TGI
from simserve.planner.importers.trtllm_command import with_files
from simserve.planner.importers.vllm_command import VLLM
from simserve.profiles.hardware import hardware_name, is_known_gpu
from simserve.scenario.deployment_spec import DeploymentSpec

_WHERE = "manifest"
_BETWEEN = re.compile(r"^---(?:[ \t].*)?$", re.MULTILINE)
"""Separator between two documents of a text. An indented line is part of a document."""
_GPU_LABELS = (
    *("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator"),
    *("karpenter.k8s.aws/instance-gpu-name", "eks.amazonaws.com/instance-gpu-name"),
)
"""Labels of nodes that name their GPU: of NVIDIA's GPU feature discovery, GKE, Karpenter and EKS Auto Mode
(docs.aws.amazon.com/eks/latest/userguide/ml-workload-placement.md)."""
_GKE_GPUS = {
    "nvidia-tesla-a100": "a100-sxm-40gb",
    "nvidia-h100-mega-80gb": "h100-sxm-80gb",
    "nvidia-h200-141gb": "h200-sxm-141gb",
}
"""Values of GKE's label that match no other name of the GPU (cloud.google.com/compute/docs/gpus: a2-highgpu has A100
with 40 GB, a3-megagpu H100 and a3-ultragpu H200 on SXM boards)."""
_SHARED = "-SHARED"  # Ending of NVIDIA's label on nodes whose GPUs are time-sliced.
_VERSION = re.compile(
    r"v?(\d+(?:\.\d+)+)(?:rc\d+)?(?:\.post\d+)?(?:-(?:cu\d+|rocm[\d.]*|ubuntu\d+|x86_64|amd64|aarch64|arm64|runtime))*"
)
"""Tag of an engine's image: its version, and for which driver, system and processor it was built."""
_ROLE_FLAGS = {
    "--is-prefill-worker": 0,
    "--is-decode-worker": 0,
    "--kv-transfer-config": 1,
    "--kv-events-config": 1,
    "--disaggregation-mode": 1,
    "--disaggregation-transfer-backend": 1,
    "--disaggregation-bootstrap-port": 1,
    "--ec-transfer-config": 1,
    "--enable-request-id-headers": 0,
    "--language-only": 0,
    "--encoder-urls": ALL,
    "--encoder-transfer-backend": 1,
    "--enable-multimodal": 0,
    "--dedicated-mm-encoder": 0,
    "--route-to-encoder": 0,
    "--enable-mm-embeds": 0,
}
"""Flags that set a worker's role, which a scenario sets in the pool -> number of words after each."""
_ADDRESS_FLAGS = {"--host": 1, "--port": 1, "--disaggregation-bootstrap-port": 1}
"""Flags that differ between identical servers -> number of words after each."""
_READABLE = (
    "give the manifests of a deployment: Deployment, LeaderWorkerSet, DynamoGraphDeployment, LLMInferenceService, "
    "InferenceService, RayService, a configuration of Ray Serve, a Compose file, values of llm-d or of the production "
    "stack, or a start script"
)
"""Remedy where texts hold no server that can be read."""
_ADDRESS_VARIABLES = ("CUDA_VISIBLE_DEVICES", "VLLM_NIXL_SIDE_CHANNEL_HOST", "VLLM_NIXL_SIDE_CHANNEL_PORT")
_SIZES = {"tensor": "--tensor-parallel-size", "pipeline": "--pipeline-parallel-size", "data": "--data-parallel-size"}


@dataclass(slots=True, kw_only=True)
class _Server:
    """Identical servers in a manifest."""

    name: str  # Name in the manifest.
    words: list[str]  # Command line.
    replicas: int = 1  # Number of replicas.
    role: str = "both"  # ``prefill``, ``decode`` or ``both``; ``encode`` in an encoder pool.
    version: str | None = None  # Version of the engine; None: not given.
    product: str | None = None  # GPU, from the label of its nodes; None: not given.
    hardware: str | None = None  # GPU, by its name in the catalogue; None: not given.
    variables: dict[str, str] = field(default_factory=dict)  # Environment variables.
    files: dict[str, str] = field(default_factory=dict)  # Path in its container -> text.
    config_map: str = ""  # Name of the ConfigMap that holds these files; empty: its own.
    scaling: dict[str, Any] | None = None  # Autoscaling of the replicas; None: their number is fixed.
    grace: float | None = None  # Seconds that a replica has to finish its requests; None: not given.
    notes: tuple[str, ...] = ()  # What a reader should know of how it was read.


def import_manifest(
    texts: Sequence[str],
    *,
    names: Sequence[str] = (),
    hardware: str | None = None,
    version: str | None = None,
    model: str | None = None,
) -> Draft:
    """Return the scenario that describes a deployment.

    Args:
        texts: Its manifests, the values of a chart or a Compose file; each may hold several documents. Or the scripts
            that start its servers and router, with the files that they read.
        names: File names of the texts, as the scripts refer to them.
        hardware: GPU of every server; None: from the label of its nodes, or else assumed, with a note.
        version: The engine's version; None: the image's tag, else the newest known.
        model: Profile or configuration to use instead of the one closest to the servers' model.

    Raises:
        ScenarioError: A text is not YAML, no server can be read, or one of the commands is invalid.
    """
    scripts = [text for text in texts if is_script(text)]
    named = itertools.zip_longest(texts, names[: len(texts)], fillvalue=_WHERE)
    documents = [each for text, name in named if text not in scripts for each in _documents(text, name)]
    where = ", ".join(names) or _WHERE
    try:
        servers = [_with_role(server) for each in documents for server in _servers(each)]
        _add_files(servers, documents)
        if scripts:
            servers += _of_scripts(scripts, documents, dict(zip(names, texts, strict=False)))
        _add_scaling(servers, documents)
        policy = next((found for each in documents if (found := _policy(each)) is not None), front_policy(scripts))
    except (AttributeError, KeyError, TypeError, ValueError) as failure:
        # A field that the API requires is missing, or a field has the wrong type.
        rule = f"has a manifest with a field missing or of another type: {type(failure).__name__} {failure}"
        raise ScenarioError(rule, file=where, remedy="check it with kubectl apply --dry-run=server") from None
    encoders = [each for each in servers if each.role == _ENCODE]
    servers = [each for each in servers if each.role != _ENCODE]
    _check_whole(servers, documents, where)
    versions = {each.version for each in servers if each.version is not None}
    if version is None and len(versions) == len({engine_of(each.words) for each in servers}) == 1:
        (version,) = versions  # also for servers that do not state theirs: workers exchange KV caches
    drafts = [_draft(server, hardware, version, model) for server in servers]
    first, deployment = drafts[0].mapping, _deployment(servers, [draft.mapping for draft in drafts])
    media = _with_encoders(deployment, encoders)
    if policy is not None:
        deployment["routing"] = {"policy": policy}
    notes = [*dict.fromkeys(note for draft in drafts for note in draft.notes), *_open_questions(deployment, policy)]
    left_out = [name for each in documents for name in _other_services(each)]
    if left_out:
        notes.append(f"Left out, as they start no server that can be read: {', '.join(left_out)}.")
    name = _name(servers, documents)
    mapping = {**first, "name": first["name"] if name == "both" else scenario_name(name), "deployment": deployment}
    mapping["workload"] = {**first["workload"], **media}
    return Draft(mapping, tuple(notes), "What does this deployment do?").checked()


def _check_whole(servers: Sequence[_Server], documents: Sequence[Mapping[str, Any]], where: str) -> None:
    """Check that there are servers, and of both roles if of one."""
    if not servers:
        kinds = dict.fromkeys(str(each["kind"]) for each in documents if each.get("kind"))
        rule = f"holds no server that can be read: {', '.join(kinds)}" if kinds else "holds no server"
        raise ScenarioError(rule, file=where, remedy=_READABLE)
    roles = {each.role for each in servers}
    if len(roles) == 1 and roles < set(ROLES):
        (alone,) = roles
        other = next(each for each in ROLES if each != alone)
        remedy = f"give the manifest of the {other} workers too"
        raise ScenarioError(f"holds {alone} workers and no {other} workers", file=where, remedy=remedy)


def _deployment(servers: Sequence[_Server], mappings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the deployment that servers form together, from the scenario of each: replicas of one, or pools."""
    deployment: dict[str, Any] = dict(mappings[0]["deployment"])
    if len(servers) == 1 and servers[0].role == "both":
        deployment["replicas"] = deployment.get("replicas", 1) * servers[0].replicas
        if servers[0].scaling is not None:
            deployment["autoscaling"] = servers[0].scaling
    else:
        deployment.pop("replicas", None)
        pools = [_pool(server, own, mappings[0]) for server, own in zip(servers, mappings, strict=True)]
        _name_apart(pools, servers)
        deployment["pools"] = pools
    if any(server.role != "both" for server in servers):
        deployment["disaggregation"] = {}
    return deployment


def _with_encoders(deployment: dict[str, Any], encoders: Sequence[_Server]) -> dict[str, Any]:
    """Add the encoder pool to a deployment; return the assumed media that its workload then needs."""
    if not encoders:
        return {}
    pool: dict[str, Any] = {"replicas": sum(each.replicas for each in encoders)}
    hardware = encoders[0].hardware or _labelled(encoders[0].product)
    if hardware not in (None, deployment["hardware"]):
        pool["hardware"] = hardware
    deployment["encoder_disaggregation"] = pool
    return {"images": _ASSUMED_IMAGES}


_ENCODE = "encode"
_ASSUMED_IMAGES = {"sizes": [{"width": 1024, "height": 1024}]}
"""One image per request where a deployment has encoder workers; manifests do not describe the traffic."""


def _labelled(product: str | None) -> str | None:
    """Return the profile of the GPU that a node's label names; None: no label, or no GPU of the catalogue."""
    if product is None:
        return None
    plain = product.removesuffix(_SHARED)
    known = {label: name for name, label in PRODUCTS.items()} | _GKE_GPUS
    found = known.get(plain) or hardware_name(plain)
    return found if is_known_gpu(found) else None


def _selected(pod: Mapping[str, Any]) -> str | None:
    """Return the GPU named by the node labels that a pod selects; None: none is named."""
    affinity = (pod.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    return _named_gpu(pod.get("nodeSelector") or {}, required.get("nodeSelectorTerms") or ())


def _named_gpu(labels: Mapping[str, Any], terms: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the first GPU among labels that nodes must have, and terms that they must match."""
    pairs = [(key, str(value)) for key, value in labels.items()]
    pairs += [
        (expression["key"], str(value))
        for term in terms
        for expression in term.get("matchExpressions") or ()
        if expression.get("operator", "In") == "In"
        for value in expression.get("values") or ()
    ]
    return next((value for label in _GPU_LABELS for key, value in pairs if key == label), None)


def _of_scripts(
    scripts: Sequence[str], documents: Sequence[Mapping[str, Any]], files: Mapping[str, str]
) -> list[_Server]:
    """Return the servers that scripts start, identical ones merged, with the roles that the router assigns."""
    commands = [(slurm_job(text), *each) for text in scripts for each in commands_of(text)]
    roles = roles_by_address([words for _, _, words in commands if is_front(words)], documents)
    found: list[_Server] = []
    for (job, node), above, line in commands:
        variables, words = split_variables(line)
        if engine_of(words) is None or is_front(words):
            continue
        host, product = host_of(above)
        port = words[words.index("--port") + 1] if "--port" in words else ""
        role = roles.get(f"{host}:{port}", "both")
        if "--disaggregation-mode" in words:
            role = words[words.index("--disaggregation-mode") + 1]
        if "--encoder-only" in words or "--mm-encoder-only" in words or "ec_producer" in " ".join(words):
            role = _ENCODE
        server = _Server(
            name=(job or role) if role == "both" else role,
            words=without(words, _ADDRESS_FLAGS),
            role=role,
            product=node,
            hardware=product,
            variables={key: value for key, value in variables.items() if key not in _ADDRESS_VARIABLES},
            files=dict(files),
        )
        found.append(server)
    return sorted(_merged(found), key=lambda each: (*ROLES, "both", _ENCODE).index(each.role))


def _merged(servers: Iterable[_Server]) -> list[_Server]:
    """Return servers with equal ones as replicas of the first."""
    found: list[_Server] = []
    alike = operator.attrgetter("words", "role", "hardware", "variables")
    for server in servers:
        first = next((each for each in found if alike(each) == alike(server)), None)
        if first is None:
            found.append(server)
        else:
            first.replicas += server.replicas
    return found


def _documents(text: str, name: str) -> list[Mapping[str, Any]]:
    """Return the documents of a text that are mappings."""
    if not text.strip():
        raise ScenarioError("is empty", file=name, remedy=_READABLE)
    found = [parse_yaml(part, name, ScenarioError) for part in _BETWEEN.split(text)]
    return [each for each in found if isinstance(each, Mapping)]


def _servers(document: Mapping[str, Any]) -> Iterator[_Server]:
    """Yield the servers of one document."""
    kind, spec = document.get("kind"), document.get("spec") or {}
    name = (document.get("metadata") or {}).get("name", "")
    if kind in ("Deployment", "StatefulSet"):
        yield from _of_pod(name, spec["template"]["spec"], spec.get("replicas", 1))
    elif kind == "LeaderWorkerSet":
        leader = spec["leaderWorkerTemplate"].get("leaderTemplate") or spec["leaderWorkerTemplate"]["workerTemplate"]
        yield from _of_pod(name, leader["spec"], spec.get("replicas", 1))
    elif kind == "DynamoGraphDeployment":
        for component in _dynamo_components(spec):
            if component.get("type") != "frontend":
                yield _of_dynamo(component)
    elif kind == "LLMInferenceService":
        yield _of_kserve(name, spec["model"], spec, "decode" if "prefill" in spec else "both")
        if "prefill" in spec:
            yield _of_kserve(f"{name}-prefill", spec["model"], spec["prefill"], "prefill")
    elif kind == "InferenceService":
        yield from _of_predictor(name, spec["predictor"])
    elif "servingEngineSpec" in document:
        for each in document["servingEngineSpec"]["modelSpec"]:
            yield _of_production_stack(each)
    elif "modelArtifacts" in document:
        is_split = bool((document.get("prefill") or {}).get("create"))
        for role in ("prefill", "decode"):
            if (document.get(role) or {}).get("create"):
                yield _of_llm_d(role if is_split else "both", document["modelArtifacts"], document[role])
    elif kind is None and isinstance(document.get("services"), Mapping):
        yield from _of_compose(document["services"])
    yield from (_Server(**each) for each in ray_servers(document))


def _of_pod(name: str, pod: Mapping[str, Any], replicas: int) -> Iterator[_Server]:
    for container in pod["containers"]:
        words = [*map(str, container.get("command") or ()), *map(str, container.get("args") or ())]
        words = _started(words, container.get("image", ""))
        if engine_of(words) is None:
            continue
        server = _in_pod(name, words, pod, container, replicas)
        server.grace = pod.get("terminationGracePeriodSeconds")
        yield server


def _in_pod(
    name: str, words: list[str], pod: Mapping[str, Any], container: Mapping[str, Any], replicas: int, role: str = "both"
) -> _Server:
    variables = _variables(container)
    return _Server(
        name=name,
        words=[
            _VARIABLE.sub(lambda found: variables.get(found[found.lastindex or 0], found[0]), word) for word in words
        ],
        replicas=replicas,
        role=role,
        version=_tag(container.get("image", "")),
        product=_selected(pod),
        variables=variables,
    )


_VARIABLE = re.compile(r"\$(?:\((\w+)\)|\{(\w+)\}|(\w+))")
"""A variable in a command, as Kubernetes and shells write it."""


def _dynamo_components(spec: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the components of a graph; services of v1alpha1 are converted to the form of v1beta1."""
    yield from spec.get("components", ())
    for name, service in spec.get("services", {}).items():
        pod = {**(service.get("extraPodSpec") or {})}
        container = {**pod.pop("mainContainer", {}), "name": MAIN, "env": service.get("envs", ())}
        kind = service.get("subComponentType") or service.get("componentType")
        template = {"spec": {**pod, "containers": [container]}}
        yield {"name": name, "type": kind, "replicas": service.get("replicas", 1), "podTemplate": template}


def _dynamo_pod(component: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the pod of a component and its main container."""
    pod = (component.get("podTemplate") or {}).get("spec") or {}
    return pod, next((each for each in pod.get("containers", ()) if each.get("name") == MAIN), {})


def _of_dynamo(component: Mapping[str, Any]) -> _Server:
    name = component["name"]
    pod, container = _dynamo_pod(component)
    started = " ".join(map(str, container.get("command", ())))
    words = [*map(str, container.get("args", ()))]
    engine = next((each for each in _STARTS if started.endswith(f"dynamo.{each}")), None)
    if engine is None:
        rule, remedy = "is started by no worker of Dynamo that can be read", f"one of {', '.join(_STARTS)} can"
        raise ScenarioError(rule, file=_WHERE, key=name, value=started, remedy=remedy)
    if engine == "trtllm":
        # Arguments of dynamo.trtllm, in the form that `trtllm-serve` takes.
        found: list[str] = []
        rest = iter(words)
        for word in rest:
            if word in ("--model-path", "--model"):
                found.insert(0, next(rest))
            elif word == "--extra-engine-args":
                found += ["--extra_llm_api_options", next(rest)]
            elif word != "--publish-events-and-metrics":
                found.append(word)
        words = found
    volumes = (each.get("configMap") for each in pod.get("volumes", ()))
    role = component["type"] if component.get("type") in ("prefill", "decode") else _mode(words)
    server = _in_pod(name, [*_STARTS[engine], *words], pod, container, component.get("replicas", 1), role)
    server.version = version_in(container.get("image", ""))  # the tag is Dynamo's
    server.config_map = next((each["name"] for each in volumes if each), "")
    return server


def _with_role(server: _Server) -> _Server:
    """Return a server with the role that its flags give it, or its name where its KV cache goes both ways (NIXL)."""
    words = [part for word in server.words for part in _apart(word)]
    role = server.role if server.role != "both" else _mode(words)
    notes = server.notes
    transfer = next((after for word, after in itertools.pairwise(words) if word == "--kv-transfer-config"), "")
    if role == "both" and transfer:
        role = next((each for word, each in _KV_ROLES.items() if word in transfer), "both")
        named = [each for each in ROLES if each in server.name.lower()]
        if role == "both" and len(named) == 1:
            (role,) = named
            notes = (*notes, f"{server.name} is taken for {role} workers: its name says it, and its flags do not.")
    return replace(server, words=words, role=role, notes=notes)


_KV_ROLES = {"kv_producer": "prefill", "kv_consumer": "decode"}
"""``kv_role`` of vLLM's ``--kv-transfer-config`` -> the role of a worker (vLLM 0.33.0 config/kv_transfer.py)."""


def _apart(word: str) -> list[str]:
    """Return a flag of a role and its value as two words, where they are written as one."""
    flag, sign, value = word.partition("=")
    return [flag, value] if sign and flag in _ROLE_FLAGS else [word]


def _name_apart(pools: Sequence[dict[str, Any]], servers: Sequence[_Server]) -> None:
    """Give pools of one role the names of their servers."""
    for pool, server in zip(pools, servers, strict=True):
        if sum(each["role"] == pool["role"] for each in pools) > 1:
            pool["name"] = scenario_name(server.name)


def _mode(words: Sequence[str]) -> str:
    """Return the role of a worker from its arguments, where its type does not give it."""
    mode = next((following for word, following in itertools.pairwise(words) if word == "--disaggregation-mode"), "both")
    return mode if mode in ("prefill", "decode", _ENCODE) else "both"


_STARTS = {"vllm": ("vllm", "serve"), "sglang": ("python3", "-m", "sglang.launch_server"), "trtllm": ("trtllm-serve",)}
"""Worker of Dynamo -> command of its engine's own server, which takes the same flags."""


def _of_kserve(name: str, model: Mapping[str, Any], workload: Mapping[str, Any], role: str) -> _Server:
    pod = workload.get("template") or {}  # KServe's own configuration stands for what is not in it
    container: Mapping[str, Any] = next((each for each in pod.get("containers", ()) if each["name"] == "main"), {})
    arguments = shlex.split(_variables(container).get("VLLM_ADDITIONAL_ARGS", ""))
    sizes = workload.get("parallelism") or {}
    expert = ["--enable-expert-parallel"] if sizes.get("expert") else []
    line = ["vllm", "serve", model["uri"].removeprefix("hf://"), *_flags(_SIZES, sizes), *expert, *arguments]
    server = _in_pod(name, line, pod, container, workload.get("replicas", 1), role)
    server.variables.pop("VLLM_ADDITIONAL_ARGS", None)
    return server


def _of_predictor(name: str, predictor: Mapping[str, Any]) -> Iterator[_Server]:
    """Yield the server of KServe's InferenceService: containers of its own, or its Hugging Face runtime, which is vLLM
    with further arguments (kserve.github.io, model-serving/generative-inference, overview)."""
    replicas = max(int(predictor.get("minReplicas", 1)), 1)
    if predictor.get("containers"):
        yield from _of_pod(name, predictor, replicas)
        return
    model = predictor.get("model") or {}
    if (model.get("modelFormat") or {}).get("name") != "huggingface":
        return
    joined = re.sub(r"(?m)^(--(?:model_\w+|backend))\n", r"\1=", "\n".join(map(str, model.get("args") or ())))
    given = [each.partition("=") for each in joined.splitlines()]
    own = {flag: value for flag, _, value in given if flag in _OF_RUNTIME}
    words = ["".join(each) for each in given if each[0] not in _OF_RUNTIME]
    served = own.get("--model_id") or str(model.get("storageUri", "")).removeprefix("hf://")
    server = _in_pod(name, ["vllm", "serve", served, *words], predictor, model, replicas)
    if predictor.get("maxReplicas", replicas) != replicas:
        bounds = f"from {predictor.get('minReplicas', 1)} to {predictor['maxReplicas']} replicas"
        server.notes = (f"How KServe scales {bounds} is not read: set deployment.autoscaling.",)
    yield server


_OF_RUNTIME = ("--model_id", "--model_name", "--model_dir", "--model_revision", "--backend", "--disable_lower_case")
"""Arguments of KServe's Hugging Face runtime that are not vLLM's."""


def _flags(named: Mapping[str, str], values: Mapping[str, Any]) -> list[str]:
    return [word for key, flag in named.items() if key in values for word in (flag, str(values[key]))]


_LLM_D_SIZES = {"tensor": "--tensor-parallel-size", "data": "--data-parallel-size"}
"""Key of `parallelism` -> flag that llm-d's chart writes before a container's own (templates/_helpers.tpl)."""


def _of_llm_d(role: str, model: Mapping[str, Any], values: Mapping[str, Any]) -> _Server:
    (container,) = values["containers"]
    words = [*map(str, container.get("args") or ())]
    if container.get("modelCommand") == "custom":
        words = _started([*map(str, container.get("command") or ()), *words], container.get("image", ""))
    else:
        sizes = values.get("parallelism") or {}
        words = ["vllm", "serve", model["uri"].removeprefix("hf://"), *_flags(_LLM_D_SIZES, sizes), *words]
    name = role if role != "both" else str(model.get("name") or model["uri"]).rpartition("/")[2]
    return _in_pod(name, words, values, container, values.get("replicas", 1), role)


_STACK_FLAGS = {
    "maxModelLen": "--max-model-len",
    "dtype": "--dtype",
    "tensorParallelSize": "--tensor-parallel-size",
    "maxNumSeqs": "--max-num-seqs",
    "gpuMemoryUtilization": "--gpu-memory-utilization",
    "maxLoras": "--max-loras",
}
"""Key of the production stack's `vllmConfig` -> flag of its chart (helm/templates/deployment-vllm-multi.yaml)."""
_STACK_TRIGGER = {
    "type": "prometheus",
    "metadata": {"query": "vllm:num_requests_waiting", "threshold": 5},
}
"""The chart's own trigger of KEDA (helm/templates/scaledobject-vllm.yaml)."""
_UNCACHED = (
    "Prefix caching is off: vLLM's chart starts servers with --no-enable-prefix-caching unless vllmConfig has "
    "enablePrefixCaching: true."
)
_LMCACHE = "lmcacheConfig is not in it: describe its buffers by deployment.engine.kv_offload or kv_tiers."


def _of_production_stack(model: Mapping[str, Any]) -> _Server:
    config = model.get("vllmConfig") or {}
    # Arguments as the chart writes them, in its order: the last one wins.
    words = ["--enable-lora"] if model.get("enableLoRA") else []
    if "enableChunkedPrefill" in config:
        words.append("--enable-chunked-prefill" if config["enableChunkedPrefill"] else "--no-enable-chunked-prefill")
    if config:
        words.append("--enable-prefix-caching" if config.get("enablePrefixCaching") else "--no-enable-prefix-caching")
    words += _flags(_STACK_FLAGS, config)
    words += map(str, config.get("extraArgs") or ())
    is_told = "enablePrefixCaching" in config or "--enable-prefix-caching" in words
    keda = model.get("keda") or {}
    notes = [_UNCACHED] if config and not is_told else []
    notes += [_LMCACHE] if (model.get("lmcacheConfig") or {}).get("enabled") else []
    server = _Server(
        name=model["name"],
        words=["vllm", "serve", model["modelURL"], *words],
        replicas=model.get("replicaCount", 1),
        version=_tag(f"{model.get('repository', '')}:{model.get('tag', '')}"),
        product=_named_gpu({}, model.get("nodeSelectorTerms") or ()),
        variables=_variables(model),
        notes=tuple(notes),
    )
    if keda.get("enabled"):
        server.scaling = keda_scaling({"triggers": [_STACK_TRIGGER], **keda}, server.name)
    return server


def _of_compose(services: Mapping[str, Any]) -> list[_Server]:
    """Return the servers of a Compose file; equal ones are replicas."""
    found: list[_Server] = []
    for name, service in services.items():
        words = _service_words(service)
        if engine_of(words) is None:
            continue
        environment = service.get("environment") or {}
        pairs = (
            environment.items()
            if isinstance(environment, Mapping)
            else (each.split("=", 1) for each in environment if "=" in each)
        )
        variables = {key: str(value) for key, value in pairs}
        replicas, version = (service.get("deploy") or {}).get("replicas", 1), _tag(service.get("image", ""))
        files = {each["target"]: each["source"] for each in service.get("configs", ())}
        own: dict[str, Any] = {"replicas": replicas, "version": version, "variables": variables, "files": files}
        found.append(_Server(name=re.sub(r"-0$", "", name), words=words, **own))
    return _merged(found)


def _service_words(service: Mapping[str, Any]) -> list[str]:
    words = [*_words(service.get("entrypoint")), *_words(service.get("command"))]
    return _started(words, service.get("image", ""))


def _other_services(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the services of a Compose file that are no servers, each with its image; without the router of an export.

    The router is `nginx`, whose rule is read from its ConfigMap.
    """
    services = document.get("services")
    if document.get("kind") is not None or not isinstance(services, Mapping):
        return
    is_routed = "nginx" in (document.get("configs") or {})
    for name, service in services.items():
        image = str(service.get("image", ""))
        if engine_of(_service_words(service)) is None and not (is_routed and "nginx" in image):
            yield f"{name} ({image})" if image else str(name)


def _words(value: str | Sequence[Any] | None) -> list[str]:
    """Return the words of a Compose command, which is a string or a list."""
    return shlex.split(value) if isinstance(value, str) else [*map(str, value or ())]


def _add_files(servers: Sequence[_Server], documents: Sequence[Mapping[str, Any]]) -> None:
    """Add to servers the texts of the files in their containers."""
    contents = {
        name: each["content"]
        for document in documents
        if document.get("kind") is None
        for name, each in (document.get("configs") or {}).items()
    }
    for server in servers:
        server.files = {path: contents[source] for path, source in server.files.items() if source in contents}
        named = server.config_map or server.name
        for document in documents:
            if document.get("kind") == "ConfigMap" and document["metadata"]["name"] == named:
                server.files |= {f"/config/{name}": text for name, text in document["data"].items()}


def _add_scaling(servers: Sequence[_Server], documents: Sequence[Mapping[str, Any]]) -> None:
    for document in documents:
        if document.get("kind") not in SCALERS:
            continue
        target = document["spec"]["scaleTargetRef"]["name"]
        for server in servers:
            if server.name == target:
                server.scaling = SCALERS[document["kind"]](document["spec"], target, server.grace)


def _policy(document: Mapping[str, Any]) -> str | None:
    """Return the routing policy that a document sets; None: it sets none, or one that is not simulated."""
    if document.get("kind") == "DynamoGraphDeployment":
        frontends = (each for each in _dynamo_components(document["spec"]) if each.get("type") == "frontend")
        given = {each["name"]: each.get("value") for one in frontends for each in _dynamo_pod(one)[1].get("env", ())}
        return next((policy for policy, variables in MODES.items() if variables == given), None)
    if "routerSpec" in document:
        logic = document["routerSpec"].get("routingLogic")
        return next((policy for policy, name in LOGIC.items() if name == logic), None)
    if "inferenceExtension" in document:
        return _scored(document["inferenceExtension"])
    if document.get("kind") is None and "nginx" in (document.get("configs") or {}):
        text = document["configs"]["nginx"]["content"]
        lines = {line.strip() for line in text.partition("server ")[0].splitlines()[1:]}
        return next((policy for policy, line in POLICIES.items() if line and line in lines), "round_robin")
    return None


def _scored(extension: Mapping[str, Any]) -> str | None:
    texts = extension.get("pluginsCustomConfig") or {}
    text = texts.get(extension.get("pluginsConfigFile"))
    if text is None:
        return None
    config = parse_yaml(text, _WHERE, ScenarioError)
    plugins = config["schedulingProfiles"][-1]["plugins"]
    weights = {each["pluginRef"]: each["weight"] for each in plugins if "weight" in each}
    return next((policy for policy, scorers in SCORERS.items() if dict(scorers) == weights), None)


def _draft(server: _Server, hardware: str | None, version: str | None, model: str | None) -> Draft:
    engine = engine_of(server.words)
    known = hardware or server.hardware or _labelled(server.product)
    words, variables = without(server.words, _ROLE_FLAGS), server.variables
    line = shlex.join([*(f"{key}={value}" for key, value in variables.items()), *words])
    asked: dict[str, Any] = {"hardware": known, "version": version or server.version, "model": model}
    program = {**PROGRAMS, "trtllm": with_files(server.files)}[str(engine)]
    found = import_line(program, line, **asked)
    notes = (*server.notes, *found.notes)
    if program is VLLM and (refused := refused_note(line, found.scenario)) is not None:
        notes = (refused.replace("this line", f"the line of {server.name}"), *notes)
    if known is None and server.product is not None:
        label = f"{server.product} is no GPU of the catalogue by that label"
        notes = (*notes, f"{label}: {ASSUMED_HARDWARE} is assumed; --gpus names yours.")
    return replace(found, notes=notes)


def _pool(server: _Server, own: Mapping[str, Any], first: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pool of a server: number of replicas, role, and the keys in which it differs from the first."""
    deployment, shared = own["deployment"], first["deployment"]
    pool: dict[str, Any] = {"name": server.name if server.role == "both" else server.role, "role": server.role}
    pool["replicas"] = server.replicas * deployment.get("replicas", 1)
    if own["model"] != first["model"]:
        pool["model"] = own["model"]
    for key in dict.fromkeys([*deployment, *shared]):
        plain = DeploymentSpec.model_fields[key].default
        if key != "replicas" and deployment.get(key, plain) != shared.get(key, plain):
            pool[key] = deployment.get(key, plain)
    return pool | ({} if server.scaling is None else {"autoscaling": server.scaling})


def _started(words: list[str], image: str) -> list[str]:
    """Return the command of a container: the one that its shell runs, or that of an image that gets only arguments."""
    if len(words) > 2 and words[0].rpartition("/")[2] in ("sh", "bash") and re.match("-.*c", words[1]):
        lines = words[2].replace("\\\n", " ").splitlines()
        commands = (part for line in lines for part in parts_of(line))
        return next((part for part in commands if engine_of(part) is not None), words)
    if words and not words[0].startswith("-"):
        return words
    started = next((start for pattern, start in _OWN_IMAGES if pattern.search(image)), ())
    return [*started, *words]


_OWN_IMAGES = (
    (re.compile(r"(?:^|/)vllm-openai(?:[:@]|$)"), ("vllm", "serve")),
    (LLAMA_CPP.table.image, ("llama-server",)),
    (TGI.table.image, ("text-generation-launcher",)),
)
"""Image, and the server that is its entrypoint (vLLM's docker/Dockerfile, llama.cpp's .devops/cuda.Dockerfile, TGI's
Dockerfile)."""


def _tag(image: str) -> str | None:
    """Return the version of the engine that an image's tag names; None: it names none."""
    named = image.partition("@")[0]  # A digest behind the tag names the same image.
    if (own := LLAMA_CPP.table.image.search(named)) is not None:
        return own[1]
    found = _VERSION.fullmatch(named.rpartition(":")[2])
    return None if found is None or _OTHER_TAG.search(image) else found[1]


_OTHER_TAG = re.compile(r"(?:^|/)(?:lmcache/|llm-d)")  # Image of vLLM whose tag is the version of LMCache or llm-d.


def _variables(container: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables with literal values, without tokens and addresses of pods."""
    return {each["name"]: str(each["value"]) for each in container.get("env") or () if "value" in each}


def _name(servers: Sequence[_Server], documents: Sequence[Mapping[str, Any]]) -> str:
    names = (each.get("fullnameOverride") or each.get("name") for each in documents if each.get("kind") is None)
    graph = ((each.get("metadata") or {}).get("name") for each in documents if each.get("kind") is not None)
    return next((name for name in (*names, *graph) if name), servers[0].name)


def _open_questions(deployment: Mapping[str, Any], policy: str | None) -> Iterator[str]:
    """Yield notes on what a run needs and manifests do not state."""
    if "encoder_disaggregation" in deployment:
        yield "Each request is assumed to have one image of 1024 x 1024; set yours with workload.images."
        yield "The link over which embeddings are sent is assumed; set yours with deployment.encoder_disaggregation."
    if "disaggregation" in deployment:
        yield "The link over which KV caches are sent is assumed; set yours with deployment.disaggregation."
    is_many = deployment.get("replicas", 1) > 1 or len(deployment.get("pools", ())) > 1 or "autoscaling" in deployment
    if policy is None and is_many:
        yield "Which server a request goes to is not in it: set deployment.routing.policy."
    if "autoscaling" in deployment or any("autoscaling" in pool for pool in deployment.get("pools", ())):
        yield "How long a new replica takes to start is not in it: set deployment.autoscaling.startup."
