"""Manifests as they are found: what is read of them, what is said of the rest, and what is refused in a line."""

from __future__ import annotations

import re

import pytest
import yaml

from simserve.errors import ScenarioError
from simserve.planner.export.dynamo import version_in
from simserve.planner.export.export import export
from simserve.planner.importers.manifest import import_manifest
from simserve.scenario.load import load


def text_of(name: str, target: str) -> str:
    """Return the main manifest of a bundled scenario."""
    result = export(load(name), target)
    assert result.main_file is not None
    return result.files[result.main_file]


def test_prefill_and_decode_workers_become_pools() -> None:
    """With their roles and counts, on the GPU of their nodes; the link is assumed, and said to be."""
    draft = import_manifest([text_of("disaggregation", "dynamo")], version="0.12")

    deployment = draft.scenario.deployment
    assert [(pool.name, pool.role, pool.replicas) for pool in deployment.pools] == [
        ("prefill", "prefill", 2),
        ("decode", "decode", 2),
    ]
    assert deployment.hardware == "h100-sxm-80gb"
    assert deployment.disaggregation is not None
    assert any("link" in note for note in draft.notes)


def test_what_differs_between_workers_stands_with_its_pool() -> None:
    """A size of its own, and a plain one where the first worker has more."""
    pools = "[{name: p, role: prefill, tensor_parallel_size: 2}, {name: d, role: decode, replicas: 3}]"
    result = export(load("disaggregation", [f"deployment.pools={pools}"]), "llm-d")

    deployment = import_manifest(list(result.files.values())).scenario.deployment

    assert {pool.role: (pool.replicas, pool.tensor_parallel_size) for pool in deployment.pools} == {
        "prefill": (1, None),
        "decode": (3, 1),
    }
    assert deployment.tensor_parallel_size == 2


def test_a_changed_manifest_is_read_as_it_stands() -> None:
    """Not as it was exported: number, flag and threshold are those of the file."""
    documents = list(yaml.safe_load_all(text_of("cold-start", "keda")))
    server = next(each for each in documents if each["kind"] == "Deployment")
    server["spec"]["replicas"] = 5
    command = server["spec"]["template"]["spec"]["containers"][0]["command"]
    command[command.index("--max-num-seqs") + 1] = "64"
    scaler = next(each for each in documents if each["kind"] == "ScaledObject")
    scaler["spec"]["triggers"][0]["metadata"]["threshold"] = "7"

    deployment = import_manifest([yaml.safe_dump_all(documents)]).scenario.deployment

    assert (deployment.replicas, deployment.engine.max_num_seqs) == (5, 64)
    assert deployment.autoscaling is not None
    assert (deployment.autoscaling.metric, deployment.autoscaling.target) == ("queue_depth", 7)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "manifest: "),
        ("kind: Service\nspec: {}", "holds no server that can be read: Service; give"),
        (
            "kind: InferenceService\nspec: {predictor: {model: {modelFormat: {name: sklearn}}}}",
            "read: InferenceService;",
        ),
        ("- 1", "holds no server"),
        ("kind: Deployment\nmetadata: {name: a}\nspec: {}", "KeyError 'template'"),
        ("---\n---\na: 1", "holds no server"),
        ("services: {a: {image: nginx, command: [nginx]}}", "holds no server"),
    ],
)
def test_what_is_no_deployment_is_refused(text: str, words: str) -> None:
    """In a line."""
    with pytest.raises(ScenarioError, match=words) as refusal:
        import_manifest([text])

    assert "\n" not in str(refusal.value)


def test_a_compose_file_as_people_write_it() -> None:
    """A command in one line, variables in a list, a GPU that is named on the terminal."""
    text = """
services:
  llm:
    image: vllm/vllm-openai:v0.12.0
    entrypoint: vllm serve meta-llama/Llama-3.1-8B
    command: --max-num-seqs 32 --max-model-len 4096
    environment: [VLLM_LOGGING_LEVEL=INFO, HF_TOKEN]
"""
    draft = import_manifest([text], hardware="l4-24gb")

    deployment = draft.scenario.deployment
    assert (deployment.engine.version, deployment.engine.max_num_seqs) == ("0.12.0", 32)
    assert deployment.hardware == "l4-24gb"
    assert draft.scenario.model == "llama-3.1-8b"
    assert not any("Which server" in note for note in draft.notes)  # there is one


_STACK = """
servingEngineSpec:
  modelSpec:
  - name: llama3
    repository: vllm/vllm-openai
    tag: v0.11.0
    modelURL: meta-llama/Llama-3.1-8B-Instruct
    replicaCount: 2
    requestGPU: 1
    nodeSelectorTerms:
    - matchExpressions: [{key: nvidia.com/gpu.product, operator: In, values: [NVIDIA-L40S]}]
"""
"""Values of the production stack, before what each test adds to the model."""


_POD = """
apiVersion: apps/v1
kind: Deployment
metadata: {{name: chat}}
spec:
  template:
    spec:
      {where}
      containers:
      - {{name: vllm, image: "vllm/vllm-openai:v0.11.0", command: [vllm, serve, Qwen/Qwen3-8B]}}
"""
_REQUIRED = "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{TERM}]}}}"


@pytest.mark.parametrize(
    ("where", "gpu"),
    [
        ("nodeSelector: {cloud.google.com/gke-accelerator: nvidia-l4}", "l4-24gb"),
        ("nodeSelector: {cloud.google.com/gke-accelerator: nvidia-tesla-a100}", "a100-sxm-40gb"),
        ("nodeSelector: {cloud.google.com/gke-accelerator: nvidia-h100-mega-80gb}", "h100-sxm-80gb"),
        ("nodeSelector: {karpenter.k8s.aws/instance-gpu-name: l40s}", "l40s-48gb"),
        ("nodeSelector: {nvidia.com/gpu.product: NVIDIA-GeForce-RTX-4090}", "rtx-4090-24gb"),
        ("nodeSelector: {nvidia.com/gpu.product: NVIDIA-L4-SHARED}", "l4-24gb"),
        (
            _REQUIRED.replace(
                "TERM", "matchExpressions: [{key: nvidia.com/gpu.product, operator: In, values: [NVIDIA-L40S]}]"
            ),
            "l40s-48gb",
        ),
    ],
)
def test_the_gpu_is_that_of_the_nodes_that_a_pod_selects(where: str, gpu: str) -> None:
    """By the labels of clouds too: an L4 of GKE was simulated as the H100 that is assumed where nothing is said."""
    draft = import_manifest([_POD.format(where=where)])

    assert draft.scenario.deployment.hardware == gpu
    assert not any("is assumed" in note and "GPU" in note for note in draft.notes)


def test_nodes_that_must_not_have_a_gpu_do_not_name_it() -> None:
    """And a label that names no GPU of the catalogue is told."""
    term = "matchExpressions: [{key: nvidia.com/gpu.product, operator: NotIn, values: [NVIDIA-L40S]}]"
    without = import_manifest([_POD.format(where=_REQUIRED.replace("TERM", term))])
    unknown = import_manifest([_POD.format(where="nodeSelector: {nvidia.com/gpu.product: NVIDIA-X1}")])

    assert any("does not say its GPU" in note for note in without.notes)
    assert any(note.startswith("NVIDIA-X1 is no GPU of the catalogue") for note in unknown.notes)


def test_the_production_stack_is_read_as_its_chart_reads_it() -> None:
    """Every key of vllmConfig is a flag, and extraArgs come last, so that they win."""
    config = """
    vllmConfig: {enableChunkedPrefill: true, enablePrefixCaching: true, maxModelLen: 16384, dtype: bfloat16,
      maxNumSeqs: 128, gpuMemoryUtilization: 0.92, extraArgs: ["--max-num-batched-tokens", "4096",
      "--max-num-seqs", "96"]}
"""
    engine = import_manifest([_STACK + config]).scenario.deployment.engine

    assert (engine.max_model_len, engine.max_num_seqs, engine.gpu_memory_utilization) == (16384, 96, 0.92)
    assert engine.max_num_batched_tokens == 4096
    assert engine.enable_prefix_caching is not False


@pytest.mark.parametrize(
    ("config", "caches"),
    [
        ("{maxModelLen: 4096}", False),
        ("{enablePrefixCaching: false}", False),
        ("{enablePrefixCaching: true}", True),
        ('{extraArgs: ["--enable-prefix-caching"]}', True),
        ("{}", None),  # the chart adds no flags
    ],
)
def test_the_chart_of_the_production_stack_turns_prefix_caching_off(config: str, caches: bool | None) -> None:
    """Wherever vllmConfig has keys and does not switch it on; a note says so where nothing is said."""
    draft = import_manifest([f"{_STACK}    vllmConfig: {config}\n"])

    assert draft.scenario.deployment.engine.enable_prefix_caching is caches
    assert any("enablePrefixCaching" in note for note in draft.notes) is (config == "{maxModelLen: 4096}")


def test_what_lmcache_keeps_beside_the_production_stack_is_named() -> None:
    """Its buffers are no flags of vLLM: they are left out, and a note says where they belong."""
    text = f'{_STACK}    lmcacheConfig: {{enabled: true, cpuOffloadingBufferSize: "20"}}\n'

    assert any("lmcacheConfig" in note and "kv_offload" in note for note in import_manifest([text]).notes)


def test_the_autoscaler_of_the_production_stack_is_read_where_it_is_enabled() -> None:
    """Its chart writes none otherwise, and waiting requests are its trigger where none is named."""
    off, on = (f"{_STACK}    keda: {{enabled: {each}, minReplicaCount: 1}}\n" for each in ("false", "true"))

    assert import_manifest([off]).scenario.deployment.autoscaling is None
    found = import_manifest([on]).scenario.deployment.autoscaling
    assert found is not None
    assert (found.metric, found.target, found.min_replicas, found.max_replicas) == ("queue_depth", 5, 1, 100)


_LLM_D = """
modelArtifacts: {{uri: "hf://Qwen/Qwen3-32B", name: Qwen/Qwen3-32B}}
decode:
  create: true
  replicas: 4
  parallelism: {{tensor: 2, data: 1}}
  containers:
  - {{name: vllm, image: "ghcr.io/llm-d/llm-d-cuda:v0.3.1", {started}}}
"""
"""Values of llm-d's model service as its examples have them, whose container is still to be started."""


@pytest.mark.parametrize(
    ("started", "tensor"),
    [
        ('modelCommand: vllmServe, args: ["--max-num-seqs", "64"]', 2),
        ('modelCommand: vllmServe, args: ["--tensor-parallel-size", "1", "--max-num-seqs", "64"]', 1),
        ('modelCommand: imageDefault, args: ["--max-num-seqs", "64"]', 2),
        (
            'modelCommand: custom, command: ["/bin/bash", "-c"], '
            'args: ["vllm serve Qwen/Qwen3-32B --tensor-parallel-size 2 --max-num-seqs 64"]',
            2,
        ),
    ],
)
def test_llm_d_is_read_as_its_chart_reads_it(started: str, tensor: int) -> None:
    """The chart makes flags of `parallelism`, before the container's own; its image's tag is llm-d's own version."""
    draft = import_manifest([_LLM_D.format(started=started)], hardware="h100-sxm-80gb")
    deployment = draft.scenario.deployment

    assert (deployment.tensor_parallel_size, deployment.replicas, deployment.engine.max_num_seqs) == (tensor, 4, 64)
    assert (draft.scenario.name, deployment.engine.version != "0.3.1") == ("Qwen3-32B", True)
    assert not any("cannot be run" in note for note in draft.notes)


def test_what_cannot_be_run_is_said_once() -> None:
    """Not for the server and again for the deployment."""
    text = _STACK.replace("meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-8B").replace("v0.11.0", "v0.3.1")

    assert sum("cannot be run" in note for note in import_manifest([text]).notes) == 1


_CONTAINER = """
apiVersion: apps/v1
kind: Deployment
metadata: {{name: qwen}}
spec:
  replicas: 2
  template: {{spec: {{containers: [{{name: server, image: "vllm/vllm-openai:v0.12.0", {started}}}]}}}}
"""
"""A deployment whose container is still to be started."""


@pytest.mark.parametrize(
    "started",
    [
        'args: ["--model", "Qwen/Qwen3-8B", "--max-num-seqs", "32"]',
        'command: ["vllm", "serve", "Qwen/Qwen3-8B"], args: ["--max-num-seqs", "32"]',
        'command: ["/bin/sh", "-c"], args: ["vllm serve Qwen/Qwen3-8B --max-num-seqs 32"]',
        'command: ["bash", "-lc", "sleep 1 && vllm serve Qwen/Qwen3-8B --max-num-seqs 32"]',
        'command: ["sh", "-c", "ulimit -n 65535; exec vllm serve Qwen/Qwen3-8B --max-num-seqs 32"]',
    ],
)
def test_a_container_is_started_as_people_write_it(started: str) -> None:
    """By the entrypoint of vLLM's image, by a command, or behind a shell, as vLLM's own page on Kubernetes has it."""
    draft = import_manifest([_CONTAINER.format(started=started)], hardware="l4-24gb")

    deployment = draft.scenario.deployment
    assert (draft.scenario.model, deployment.replicas) == ("qwen3-8b", 2)
    assert (deployment.engine.version, deployment.engine.max_num_seqs) == ("0.12.0", 32)


@pytest.mark.parametrize(("length", "is_refused"), [("", True), (", --max-model-len, '4096'", False)])
def test_a_container_that_vllm_refuses_says_so(length: str, is_refused: bool) -> None:
    """As a pasted line does: with the context that there is room for."""
    started = f"args: [--model, Qwen/Qwen3-8B{length}]"
    draft = import_manifest([_CONTAINER.format(started=started)], hardware="l4-24gb")

    told = [note for note in draft.notes if note.startswith("vLLM refuses to start with the line of qwen: ")]
    assert len(told) == is_refused
    assert all("add --max-model-len " in note for note in told)


@pytest.mark.parametrize(
    ("tag", "version"),
    [
        ("1.3.0rc29", "1.3.0"),
        ("1.3.0rc29@sha256:0123456789abcdef", "1.3.0"),
        ("1.2.0rc6.post3", "1.2.0"),
        ("1.3.0-cu130-amd64", "1.3.0"),
        ("1.3.0-mine", "1.3"),
        ("latest@sha256:0123456789abcdef", "1.3"),
    ],
)
def test_the_version_is_that_of_the_image_s_tag(tag: str, version: str) -> None:
    """Beside a digest and the build that it names; of a name of one's own it is not known, and the newest is taken."""
    image, command = f"nvcr.io/nvidia/tensorrt-llm/release:{tag}", "trtllm-serve meta-llama/Llama-3.1-8B --tp_size 1"
    text = f"services: {{llm: {{image: '{image}', command: {command}}}}}"

    assert import_manifest([text], hardware="h100-sxm-80gb").scenario.deployment.engine.version == version


_LLAMA = """
services:
  llama:
    image: ghcr.io/ggml-org/llama.cpp:server-cuda-b9400
"""
_LLAMA_POD = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: llama}
spec:
  replicas: 2
  template:
    spec:
      containers:
      - {name: s, image: 'ghcr.io/ggml-org/llama.cpp:server-b9400', args: [-hf, 'unsloth/Qwen3-8B-GGUF:Q8_0', -np, '2']}
"""
_TGI = """
services:
  tgi:
    image: ghcr.io/huggingface/text-generation-inference:3.3.5
    command: --model-id meta-llama/Llama-3.1-8B-Instruct
"""


@pytest.mark.parametrize(
    ("text", "engine", "version", "seats", "replicas"),
    [
        (f"{_LLAMA}    command: -hf unsloth/Qwen3-8B-GGUF:Q8_0 -np 2\n", "llama.cpp", "b9400", 2, 1),
        (f"{_LLAMA}    command: /app/llama-server -hf unsloth/Qwen3-8B-GGUF:Q8_0 -np 2\n", "llama.cpp", "b9400", 2, 1),
        (
            f"{_LLAMA}    environment: {{LLAMA_ARG_HF_REPO: unsloth/Qwen3-8B-GGUF:Q8_0, LLAMA_ARG_N_PARALLEL: 2}}\n",
            "llama.cpp",
            "b9400",
            2,
            1,
        ),
        (_LLAMA_POD, "llama.cpp", "b9400", 2, 2),
        (_TGI, "tgi", "3.3.5", None, 1),
    ],
    ids=["arguments", "command", "variables", "kubernetes", "tgi"],
)
def test_containers_of_llama_cpp_and_tgi_are_servers(
    text: str, engine: str, version: str, seats: int | None, replicas: int
) -> None:
    """The manifest held "no server", though the same words were read from a command line."""
    deployment = import_manifest([text], hardware="rtx-4090-24gb").scenario.deployment

    assert (deployment.engine.name, deployment.engine.version) == (engine, version)
    assert (deployment.engine.max_num_seqs, deployment.replicas) == (seats, replicas)


def test_replicas_of_a_compose_file_are_counted() -> None:
    """Those of deploy, and services that are alike."""
    service = "{image: 'vllm/vllm-openai:v0.12.0', command: --model Qwen/Qwen3-8B, deploy: {replicas: 3}}"
    draft = import_manifest([f"services:\n  one: {service}\n  two: {service}\n"], hardware="h100-sxm-80gb")

    assert draft.scenario.deployment.replicas == 6


def test_numbered_services_of_a_compose_file_have_one_name() -> None:
    """Not that of the first: it is each of them."""
    service = "{image: 'vllm/vllm-openai:v0.12.0', command: --model Qwen/Qwen3-8B}"
    text = f"services: {{chat-0: {service}, chat-1: {service}}}"

    draft = import_manifest([text], hardware="h100-sxm-80gb")

    assert (draft.scenario.name, draft.scenario.deployment.replicas) == ("chat", 2)


def changed(target: str, kind: str, **fields: object) -> str:
    """Return the manifests of a bundled scenario with fields of one kind's spec set; None: left out."""
    documents = list(yaml.safe_load_all(text_of("cold-start", target)))
    spec = next(each["spec"] for each in documents if each["kind"] == kind)
    spec |= fields
    for name in [name for name, value in fields.items() if value is None]:
        del spec[name]
    return yaml.safe_dump_all(documents)


def test_what_an_autoscaler_leaves_out_is_the_default_of_kubernetes_and_keda() -> None:
    """One replica at least, or with KEDA none and at most 100; down after five minutes; a quantity in thousandths."""
    pods = {
        "metric": {"name": "vllm:num_requests_waiting"},
        "target": {"type": "AverageValue", "averageValue": "1500m"},
    }
    plain = changed(
        "k8s", "HorizontalPodAutoscaler", minReplicas=None, behavior=None, metrics=[{"type": "Pods", "pods": pods}]
    )
    bare = changed(
        "keda", "ScaledObject", minReplicaCount=None, maxReplicaCount=None, advanced=None, pollingInterval=None
    )

    kubernetes, keda = (import_manifest([each]).scenario.deployment.autoscaling for each in (plain, bare))

    assert kubernetes is not None
    assert keda is not None
    assert (kubernetes.min_replicas, kubernetes.target, kubernetes.stabilization) == (1, 1.5, 300.0)
    assert (keda.min_replicas, keda.max_replicas, keda.stabilization, keda.interval) == (0, 100, 300.0, 30.0)


def test_requests_go_where_the_last_profile_of_llm_d_sends_them() -> None:
    """That of the decode workers, which answer: the profile of prefill comes first, and may have other scorers."""
    result = export(load("disaggregation", ["deployment.routing=prefix"]), "llm-d")
    values = {name: yaml.safe_load(text) for name, text in result.files.items()}
    picker = next(each["inferenceExtension"] for each in values.values() if "inferenceExtension" in each)
    config = yaml.safe_load(picker["pluginsCustomConfig"]["simulated.yaml"])
    first, *others = config["schedulingProfiles"]
    first["plugins"] = [each for each in first["plugins"] if "weight" not in each]
    picker["pluginsCustomConfig"]["simulated.yaml"] = yaml.safe_dump(config)

    draft = import_manifest([yaml.safe_dump(each) for each in values.values()])

    assert others
    assert draft.mapping["deployment"]["routing"] == {"policy": "prefix"}


def test_services_of_a_compose_file_that_are_no_servers_are_named() -> None:
    """With their images; the router of a Compose file as it is exported is read, and not named."""
    server = "{image: 'vllm/vllm-openai:v0.12.0', command: --model Qwen/Qwen3-8B}"
    others = "{ui: {image: 'ghcr.io/open-webui/open-webui:main'}, cache: {build: ./cache}}"
    text = f"services: {{llm: {server}, {others[1:]}"

    with_others = import_manifest([text], hardware="h100-sxm-80gb")
    exported = export(load("chatbot", ["deployment.replicas=2"]), "compose")
    assert exported.main_file is not None
    of_export = import_manifest([exported.files[exported.main_file]])

    (told,) = [note for note in with_others.notes if note.startswith("Left out")]
    assert told.endswith("no server that can be read: ui (ghcr.io/open-webui/open-webui:main), cache.")
    assert "nginx" in exported.files[exported.main_file]
    assert not any(note.startswith("Left out") for note in of_export.notes)


def test_a_metric_that_is_not_simulated_is_refused_by_its_name() -> None:
    """Nothing is taken in its place."""
    text = text_of("cold-start", "k8s").replace("vllm:num_requests_waiting", "my_metric")

    with pytest.raises(ScenarioError, match="my_metric"):
        import_manifest([text])


def test_graphs_of_dynamo_before_v1beta1_are_read() -> None:
    """Services of v1alpha1 are the components of v1beta1, with the role as a kind of worker of its own."""
    services = {
        "Frontend": {"componentType": "frontend", "envs": [{"name": "DYN_ROUTER_MODE", "value": "kv"}]},
        "D": {
            "componentType": "worker",
            "subComponentType": "decode",
            "replicas": 2,
            "extraPodSpec": {
                "mainContainer": {
                    "command": ["python3", "-m", "dynamo.vllm"],
                    "args": ["--model", "Qwen/Qwen3-32B", "--max-model-len", "8192", "--disaggregation-mode", "decode"],
                }
            },
        },
        "P": {
            "componentType": "worker",
            "replicas": 3,
            "extraPodSpec": {
                "mainContainer": {
                    "command": ["python3", "-m", "dynamo.vllm"],
                    "args": [
                        "--model",
                        "Qwen/Qwen3-32B",
                        "--max-model-len",
                        "8192",
                        "--disaggregation-mode",
                        "prefill",
                    ],
                }
            },
        },
    }
    graph = {"apiVersion": "nvidia.com/v1alpha1", "kind": "DynamoGraphDeployment", "metadata": {"name": "old"}}

    draft = import_manifest([yaml.safe_dump({**graph, "spec": {"services": services}})], hardware="h100-sxm-80gb")
    deployment = yaml.safe_load(draft.text)["deployment"]

    assert {pool["role"]: pool["replicas"] for pool in deployment["pools"]} == {"decode": 2, "prefill": 3}
    assert deployment["routing"] == {"policy": "prefix"}


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.4.0", "0.26.0"),
        ("nvcr.io/nvidia/ai-dynamo/vllm-runtime-cu13:1.1.1", "0.19.0"),
        ("registry.local/ai-dynamo/sglang-runtime:v1.5.0@sha256:00", "0.5.18"),
        ("nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime:0.8.1.post2", "1.2.0"),
        ("nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.2.0-deepseek-v4-dev.2", None),
        ("nvcr.io/nvidia/ai-dynamo/vllm-runtime:my-tag", None),
        ("nvcr.io/nvidia/ai-dynamo/vllm-runtime:9.9.0", None),
        ("vllm/vllm-openai:v0.26.0", None),
    ],
)
def test_releases_of_dynamo_say_which_engine_they_hold(image: str, version: str | None) -> None:
    """A graph of 1.4.0 was read as the newest vLLM, 0.33; its image holds 0.26.0."""
    assert version_in(image) == version


def test_a_graph_of_dynamo_is_read_as_the_engine_in_its_image() -> None:
    """An export simulated 0.12; what starts is what the image holds."""
    text = text_of("disaggregation", "dynamo")

    found = import_manifest([text]).mapping["deployment"]["engine"]["version"]
    other = import_manifest([text.replace(":1.4.0", ":mine")], version="0.12")

    assert found == "0.26.0"
    assert other.mapping["deployment"]["engine"]["version"] == "0.12"


def test_an_empty_file_and_one_without_a_server_are_named() -> None:
    """ "manifest" stood there, whatever the files were called."""
    with pytest.raises(ScenarioError, match=r"^a\.yaml: is empty"):
        import_manifest(["\n", "kind: Service"], names=["a.yaml", "b.yaml"])
    with pytest.raises(ScenarioError, match=r"^a\.yaml, b\.yaml: holds no server that can be read: Service"):
        import_manifest(["kind: Service", "kind: Service"], names=["a.yaml", "b.yaml"])
    with pytest.raises(ScenarioError, match=r"^b\.yaml: line 2, column 1: not valid YAML"):
        import_manifest(["kind: Service", "a: [1"], names=["a.yaml", "b.yaml"])


def workers(**arguments: list[str]) -> str:
    """Return a Deployment of vLLM or SGLang for each name, on eight H100s, with these arguments."""
    found = []
    for name, words in arguments.items():
        container = {"image": "x", "args": words, "resources": {"limits": {"nvidia.com/gpu": 8}}}
        pod = {"containers": [container], "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}}
        metadata, spec = {"name": name.replace("_", "-")}, {"replicas": 1, "template": {"spec": pod}}
        found.append({"kind": "Deployment", "metadata": metadata, "spec": spec})
    return yaml.safe_dump_all(found)


_SGLANG = ["python3", "-m", "sglang.launch_server", "--model-path", "Qwen/Qwen3-32B", "--tp", "8"]
_VLLM = ["vllm", "serve", "Qwen/Qwen3-32B", "--tensor-parallel-size", "8"]


def roles_of(text: str) -> list[tuple[str, str]]:
    """Return the names and roles of the pools of manifests."""
    return [(pool["name"], pool["role"]) for pool in import_manifest([text]).mapping["deployment"]["pools"]]


@pytest.mark.parametrize(
    "text",
    [
        workers(a=[*_SGLANG, "--disaggregation-mode", "prefill"], b=[*_SGLANG, "--disaggregation-mode=decode"]),
        workers(
            a=[*_VLLM, "--kv-transfer-config", '{"kv_connector": "P2pNcclConnector", "kv_role": "kv_producer"}'],
            b=[*_VLLM, '--kv-transfer-config={"kv_connector": "P2pNcclConnector", "kv_role": "kv_consumer"}'],
        ),
        workers(
            my_prefill=[*_VLLM, "--kv-transfer-config", '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'],
            my_decode=[*_VLLM, "--kv-transfer-config", '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'],
        ),
    ],
    ids=["sglang", "vllm", "nixl"],
)
def test_deployments_of_prefill_and_decode_workers_are_pools_of_them(text: str) -> None:
    """They were two pools that do both, and their flags were gone without a word."""
    assert roles_of(text) == [("prefill", "prefill"), ("decode", "decode")]


def test_replicas_of_a_pool_count_the_groups_within_a_server() -> None:
    """Groups that share neither attention nor experts are replicas: three servers with two of them are six."""
    server = ["vllm", "serve", "Qwen/Qwen3-32B", "--data-parallel-size", "2", "--kv-transfer-config"]
    roles = {"p": "kv_producer", "d": "kv_consumer"}
    own = {
        name: [*server, f'{{"kv_connector": "P2pNcclConnector", "kv_role": "{role}"}}'] for name, role in roles.items()
    }
    text = workers(**own).replace("replicas: 1", "replicas: 3")

    pools = import_manifest([text]).scenario.deployment.pools

    assert [(pool.role, pool.replicas) for pool in pools] == [("prefill", 6), ("decode", 6)]


def test_a_server_that_keeps_its_cache_elsewhere_does_both() -> None:
    """A connector to host memory is no role; a name alone is none either."""
    both = ["--kv-transfer-config", '{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}']
    found = import_manifest([workers(chat=[*_VLLM, *both])]).mapping["deployment"]
    named = import_manifest([workers(prefill_heavy=_VLLM)]).mapping["deployment"]

    assert "pools" not in found
    assert "pools" not in named


def test_workers_of_one_role_alone_are_refused() -> None:
    """A prefill worker without one that decodes answers nothing."""
    with pytest.raises(ScenarioError, match="holds prefill workers and no decode workers; give the manifest of the"):
        import_manifest([workers(a=[*_SGLANG, "--disaggregation-mode", "prefill"])])


def test_pools_of_one_role_keep_the_names_of_their_servers() -> None:
    """Names are unique."""
    decode = ["--disaggregation-mode", "decode"]
    text = workers(
        p=[*_SGLANG, "--disaggregation-mode", "prefill"],
        small=[*_SGLANG, *decode, "--max-running-requests", "8"],
        large=[*_SGLANG, *decode, "--max-running-requests", "256"],
    )

    assert roles_of(text) == [("prefill", "prefill"), ("small", "decode"), ("large", "decode")]


KSERVE = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: chat}
spec:
  predictor:
    minReplicas: 2
    maxReplicas: 4
    model:
      modelFormat: {name: huggingface}
      args: ["--model_name=llama3", "--model_id=meta-llama/Llama-3.1-8B-Instruct", "--max-model-len=8192"]
      resources: {limits: {nvidia.com/gpu: "1"}}
"""


def test_kserve_s_hugging_face_runtime_is_vllm() -> None:
    """Its own arguments name the model; the others are the engine's."""
    draft = import_manifest([KSERVE], hardware="h100-sxm-80gb")
    stored = "storageUri: hf://meta-llama/Llama-3.1-8B-Instruct\n      args:"
    by_uri = import_manifest(
        [KSERVE.replace('"--model_id=meta-llama/Llama-3.1-8B-Instruct", ', "").replace("args:", stored)]
    )

    deployment = draft.scenario.deployment
    assert (deployment.engine.name, deployment.engine.max_model_len, deployment.replicas) == ("vllm", 8192, 2)
    assert draft.scenario.model == by_uri.scenario.model == "meta-llama/Llama-3.1-8B-Instruct"
    assert "How KServe scales from 2 to 4 replicas is not read: set deployment.autoscaling." in draft.notes


LLM_SERVICE = """
apiVersion: serving.kserve.io/v1alpha1
kind: LLMInferenceService
metadata: {name: chat}
spec:
  model: {uri: "hf://Qwen/Qwen2.5-7B-Instruct", name: chat}
  replicas: 3
  router: {scheduler: {}}
"""


@pytest.mark.parametrize("separator", ["=", '", "'])
def test_arguments_of_kserve_s_runtime_are_one_word_or_two(separator: str) -> None:
    """Python's parser takes both; a switch takes no word."""
    arguments = [
        f'"{flag}{separator}{value}"' for flag, value in (("--model_id", "Qwen/Qwen3-8B"), ("--model_name", "q"))
    ]
    given = f"args: [{', '.join(arguments)}, --disable_lower_case, --max-model-len, '4096']\n"
    scaled = KSERVE.replace("minReplicas: 2", "minReplicas: 0")
    draft = import_manifest([re.sub(r"args: .*\n", lambda _: given, scaled)], hardware="h100-sxm-80gb")

    assert (draft.scenario.model, draft.scenario.deployment.engine.max_model_len) == ("qwen3-8b", 4096)
    assert "How KServe scales from 0 to 4 replicas is not read: set deployment.autoscaling." in draft.notes


def test_an_llm_service_without_a_template_takes_that_of_kserve() -> None:
    """Its containers are optional."""
    deployment = import_manifest([LLM_SERVICE], hardware="h100-sxm-80gb").scenario.deployment

    assert (deployment.engine.name, deployment.replicas) == ("vllm", 3)


def test_a_worker_that_says_no_version_has_that_of_the_other() -> None:
    """They exchange KV caches."""
    image = "template: {containers: [{name: main, image: 'vllm/vllm-openai:v0.17.1'}]}"
    text = f"{LLM_SERVICE.rstrip()}\n  {image}\n  prefill: {{replicas: 1}}\n"
    found = import_manifest([text], hardware="h100-sxm-80gb").scenario.deployment

    assert found.engine.version == "0.17.1"
    assert [pool.engine for pool in found.pools] == [None, None]


RAY_SERVE = """
applications:
- name: llm
  import_path: ray.serve.llm:build_openai_app
  args:
    llm_configs:
    - model_loading_config: {model_id: my-qwen, model_source: Qwen/Qwen3-32B}
      accelerator_type: A100-80G
      deployment_config:
        autoscaling_config: {min_replicas: 1, max_replicas: 4, target_ongoing_requests: 64, downscale_delay_s: 120}
      engine_kwargs: {tensor_parallel_size: 2, max_model_len: 16384, enable_prefix_caching: false, hf_token: secret}
"""


def as_ray_service(configuration: str) -> str:
    """Return KubeRay's resource with a configuration of Ray Serve in it."""
    return yaml.safe_dump({"kind": "RayService", "metadata": {"name": "llm"}, "spec": {"serveConfigV2": configuration}})


@pytest.mark.parametrize("text", [RAY_SERVE, as_ray_service(RAY_SERVE)], ids=["configuration", "RayService"])
def test_ray_serve_starts_vllm_with_the_arguments_of_its_engine(text: str) -> None:
    """Its GPU, sizes, switches and scaling are read; a token is not."""
    draft = import_manifest([text], version="0.20")

    deployment = draft.scenario.deployment
    assert (deployment.hardware, deployment.tensor_parallel_size) == ("a100-sxm-80gb", 2)
    assert (deployment.engine.max_model_len, deployment.engine.enable_prefix_caching) == (16384, False)
    scaling = deployment.autoscaling
    assert scaling is not None
    assert (scaling.metric, scaling.target, scaling.max_replicas, scaling.stabilization) == ("running", 64, 4, 120)
    assert not any("secret" in note for note in draft.notes)


@pytest.mark.parametrize(("told", "replicas"), [("min_replicas: 2", 2), ("min_replicas: 0, initial_replicas: 3", 3)])
def test_ray_serve_begins_with_the_fewest_replicas_or_those_it_is_told(told: str, replicas: int) -> None:
    """It looks every 10 s, and takes a replica away after ten minutes, unless told (AutoscalingConfig)."""
    text = RAY_SERVE.replace("min_replicas: 1", told).replace(", downscale_delay_s: 120", "")

    deployment = import_manifest([text], version="0.20").scenario.deployment

    assert deployment.replicas == replicas
    assert deployment.autoscaling is not None
    assert (deployment.autoscaling.interval, deployment.autoscaling.stabilization) == (10, 600)


def test_ray_serve_without_a_target_does_not_say_how_it_scales() -> None:
    """The fewest replicas are simulated, and it is said."""
    draft = import_manifest([RAY_SERVE.replace("target_ongoing_requests: 64, ", "")])

    assert draft.scenario.deployment.autoscaling is None
    assert any("How Ray Serve scales from 1 to 4 replicas" in note for note in draft.notes)


@pytest.mark.parametrize("scaling", [{}, {"autoscaling_config": {"target_ongoing_requests": 8}}])
def test_ray_serve_that_scales_by_its_own_defaults_says_so(scaling: dict[str, object]) -> None:
    """``auto`` is no number of replicas: one is simulated, which nobody asked for."""
    config = {
        "model_loading_config": {"model_id": "Qwen/Qwen3-8B"},
        "deployment_config": {"num_replicas": "auto", **scaling},
    }

    draft = import_manifest([yaml.safe_dump({"applications": [{"args": {"llm_configs": [config]}}]})])

    assert draft.scenario.deployment.replicas == 1
    assert any("num_replicas: auto" in note for note in draft.notes)


def test_ray_serve_s_prefill_and_decode_are_pools() -> None:
    """As `build_pd_openai_app` takes them."""
    loading = {"model_loading_config": {"model_id": "Qwen/Qwen3-8B"}, "accelerator_type": "L40S"}
    decode = {**loading, "deployment_config": {"num_replicas": 3}}
    arguments = {"prefill_config": loading, "decode_config": decode}

    draft = import_manifest([yaml.safe_dump({"applications": [{"name": "pd", "args": arguments}]})])

    pools = draft.scenario.deployment.pools
    assert [(pool.role, pool.replicas) for pool in pools] == [("prefill", 1), ("decode", 3)]


@pytest.mark.parametrize(
    "directive",
    ["--gres=gpu:a100:8", "--gpus-per-node=a100:8", "--gpus a100:8", "-G a100:8"],
)
def test_a_batch_job_names_its_gpus(directive: str) -> None:
    """And itself."""
    script = f"#!/bin/bash\n#SBATCH --job-name=r1\n#SBATCH {directive}\nsrun vllm serve Qwen/Qwen3-8B\n"

    scenario = import_manifest([script]).scenario

    assert (scenario.name, scenario.deployment.hardware) == ("r1", "a100-sxm-80gb")


def test_a_script_without_a_job_is_called_after_its_model() -> None:
    """Not after the role of its server."""
    assert "qwen3-8b" in import_manifest(["#!/bin/sh\nvllm serve Qwen/Qwen3-8B\n"]).scenario.name.lower()


@pytest.mark.parametrize("written", ["$(TP)", "${TP}", "$TP"])
def test_a_command_has_the_variables_of_its_container(written: str) -> None:
    """Behind what its shell runs first; a variable without a value stays."""
    line = f"export HF_HOME=/data; exec vllm serve Qwen/Qwen3-32B --tensor-parallel-size {written} --host $(POD_IP)"
    container = {
        "name": "vllm",
        "image": "vllm/vllm-openai:v0.24.0",
        "command": ["/bin/bash", "-lc"],
        "args": [line],
        "env": [{"name": "TP", "value": "4"}, {"name": "POD_IP", "valueFrom": {}}],
    }
    pod = {"kind": "Deployment", "metadata": {"name": "a"}, "spec": {"template": {"spec": {"containers": [container]}}}}

    deployment = import_manifest([yaml.safe_dump(pod)]).scenario.deployment

    assert (deployment.tensor_parallel_size, deployment.engine.version) == (4, "0.24.0")
