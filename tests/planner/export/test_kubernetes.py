"""Kubernetes manifests: valid against the published schemas, and holding what the deployment says."""

from __future__ import annotations

import math
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from simserve.errors import ScenarioError
from simserve.planner.export.deployment import Export
from simserve.planner.export.export import export
from simserve.planner.export.workers import SERVERS, Worker
from simserve.scenario.load import load
from tests.scenario.builders import make_scenario

_PUBLISHED = "1.37"
"""Version of Kubernetes whose schemas the manifests are checked against."""


SCALED = "deployment.autoscaling={metric: queue_depth, target: 7, min_replicas: 3, max_replicas: 9}"


def exported(*overrides: str, checkpoint: str | None = None, **changes: Any) -> Export:
    """Return the manifests of the small scenario."""
    return export(
        make_scenario(["deployment.engine.max_model_len=4096", *overrides], **changes), "k8s", checkpoint=checkpoint
    )


def manifests(result: Export) -> dict[str, dict[str, Any]]:
    """Return them by kind."""
    assert result.main_file is not None
    return {each["kind"]: each for each in yaml.safe_load_all(result.files[result.main_file])}


def container(result: Export) -> dict[str, Any]:
    """Return the server's container."""
    found: dict[str, Any] = manifests(result)["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    return found


_ENGINES = {
    "vllm": "0.12",
    "sglang": "0.5.4",
    "tensorrt-llm": "1.0",
    "tgi": "3.0",
}


def under(engine: str) -> list[str]:
    """Return the overrides that choose an engine, with a setting that needs a file or a variable of some."""
    return [
        f"deployment.engine.name={engine}",
        f"deployment.engine.version={_ENGINES[engine]}",
        "deployment.engine.enable_prefix_caching=false",
    ]


@pytest.mark.parametrize("engine", _ENGINES)
def test_manifests_are_valid(engine: str) -> None:
    """Against the strict schemas of Kubernetes: no unknown field, every type right."""
    validator = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")

    for each in manifests(exported(*under(engine), SCALED)).values():
        validator.validate(each, _PUBLISHED, strict=True)


@pytest.mark.parametrize("engine", _ENGINES)
def test_the_parts_of_a_manifest_fit_together(engine: str) -> None:
    """Selectors, ports, volumes and names that one part gives another."""
    found = manifests(exported(*under(engine), SCALED))

    name = found["Deployment"]["metadata"]["name"]
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    pod = found["Deployment"]["spec"]["template"]["spec"]
    server = pod["containers"][0]
    assert found["Deployment"]["spec"]["selector"]["matchLabels"] == labels == found["Service"]["spec"]["selector"]
    assert found["Service"]["spec"]["ports"][0]["targetPort"] == server["ports"][0]["name"]
    assert found["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["name"] == name
    assert {each["name"] for each in server["volumeMounts"]} == {each["name"] for each in pod["volumes"]}
    loaders = pod.get("initContainers", [])
    assert all(each["image"] == server["image"] for each in loaders)
    assert all(mount in server["volumeMounts"] for each in loaders for mount in each["volumeMounts"])
    assert str(server["ports"][0]["containerPort"]) in server["command"]
    assert all(
        server[probe]["httpGet"]["port"] == "http" for probe in ("startupProbe", "readinessProbe", "livenessProbe")
    )
    if engine == "tensorrt-llm":
        assert found["ConfigMap"]["data"].keys() == {"extra_llm_api_options.yaml"}
        assert "/config/extra_llm_api_options.yaml" in server["command"]
    if engine == "tgi":
        assert {"name": "PREFIX_CACHING", "value": "0"} in server["env"]


@pytest.mark.parametrize(
    ("engine", "image", "metric"),
    [
        ("vllm", "vllm/vllm-openai:v0.12.0", "vllm:num_requests_waiting"),
        ("sglang", "lmsysorg/sglang:v0.5.4", "sglang:num_queue_reqs"),
        ("tensorrt-llm", "nvcr.io/nvidia/tensorrt-llm/release:1.0.0", "trtllm_num_requests_waiting"),
        ("tgi", "ghcr.io/huggingface/text-generation-inference:3.0.0", "tgi_queue_size"),
    ],
)
def test_image_and_queue_metric_are_the_engines(engine: str, image: str, metric: str) -> None:
    """The tag is the version with three numbers."""
    result = exported(*under(engine), SCALED)

    metrics = manifests(result)["HorizontalPodAutoscaler"]["spec"]["metrics"]
    assert container(result)["image"] == image
    assert [each["pods"]["metric"]["name"] for each in metrics] == [metric]


@pytest.mark.parametrize(
    ("engine", "version", "tag"), [("tensorrt-llm", "1.3", "1.3.0rc29"), ("sglang", "0.5", "v0.5.1")]
)
def test_an_image_is_one_that_was_released(engine: str, version: str, tag: str) -> None:
    """TensorRT-LLM 1.3.0 has release candidates alone, and SGLang began its 0.5 with 0.5.1."""
    result = exported(f"deployment.engine={{name: {engine}, version: '{version}'}}")

    assert container(result)["image"].endswith(f":{tag}")


def test_weights_are_loaded_before_the_probes_count() -> None:
    """By a container of its own, into the server's volume, with its token; TGI and weights of a path need none."""
    pods = [
        manifests(each)["Deployment"]["spec"]["template"]["spec"]
        for each in (exported(), exported(*under("tgi")), exported(checkpoint="/models/own"))
    ]

    (loader,) = pods[0]["initContainers"]
    compile(loader["command"][-1], "download", "exec")
    assert "snapshot_download('meta-llama/Llama-3.2-1B'" in loader["command"][-1]
    assert loader["env"] == [each for each in pods[0]["containers"][0]["env"] if each["name"] == "HF_TOKEN"]
    assert not any("initContainers" in each for each in pods[1:])
    assert pods[0]["containers"][0]["resources"]["requests"]["ephemeral-storage"] == "3Gi"
    assert [each["containers"][0]["volumeMounts"][1]["mountPath"] for each in pods[:2]] == [
        "/root/.cache/huggingface",
        "/data",
    ]
    assert pods[1]["containers"][0]["command"][0] == "/tgi-entrypoint.sh"


def test_a_pod_is_placed_on_nodes_of_gpus_and_hears_of_no_service() -> None:
    """Their taint is tolerated; a Service named vllm would otherwise set the variable of vLLM's port."""
    pod = manifests(exported(name="vllm"))["Deployment"]["spec"]["template"]["spec"]

    assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert pod["enableServiceLinks"] is False


class _Metrics(BaseHTTPRequestHandler):
    """Answers how many requests run: one for the first two askings, then none."""

    asked = 0

    def do_GET(self) -> None:
        """Write Prometheus' text."""
        type(self).asked += 1
        running = 1.0 if self.asked <= 2 else 0.0
        text = f'# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{{model_name="m"}} {running}\n'
        self.send_response(200)
        self.end_headers()
        self.wfile.write((text + 'vllm:num_requests_waiting{model_name="m"} 0.0\n').encode())

    def log_message(self, *words: object) -> None:
        """Say nothing."""


@pytest.mark.slow
def test_a_pod_that_ends_waits_for_its_requests() -> None:
    """The hook asks the server until it runs none, within the pod's time; without time there is no hook."""
    pace = "deployment.autoscaling={metric: queue_depth, target: 7, max_replicas: 9, grace_period: "
    hook = container(exported(pace + "45 s}"))["lifecycle"]["preStop"]["exec"]["command"]
    by_engine = [container(exported(*under(engine)))["lifecycle"]["preStop"] for engine in _ENGINES]
    served = HTTPServer(("localhost", 0), _Metrics)
    threading.Thread(target=served.serve_forever, daemon=True).start()
    _Metrics.asked = 0

    script = hook[-1].replace("localhost:8000", f"localhost:{served.server_port}").replace("sleep 5;", "")
    subprocess.run([*hook[:-1], script], check=True, timeout=30)

    served.shutdown()
    served.server_close()
    assert _Metrics.asked == 3
    assert "timeout 35 " in hook[-1]
    assert "lifecycle" not in container(exported(pace + "10 s}"))
    assert ["curl" in each["exec"]["command"][-1] for each in by_engine] == [True, True, False, True]


def test_every_engine_of_a_server_image_is_here() -> None:
    """One for each target that has flags."""
    assert set(SERVERS) == {"vllm", "sglang", "trtllm", "tgi"}


def test_gpus_and_replicas_follow_the_deployment() -> None:
    """A pod takes the GPUs of one replica."""
    result = exported(
        "deployment.tensor_parallel_size=2", "deployment.pipeline_parallel_size=2", "deployment.replicas=3"
    )

    resources = container(result)["resources"]
    spec = manifests(result)["Deployment"]["spec"]
    assert resources["limits"]["nvidia.com/gpu"] == resources["requests"]["nvidia.com/gpu"] == 4
    assert resources["requests"]["memory"] == "20Gi"
    assert spec["template"]["spec"]["volumes"][0]["emptyDir"] == {"medium": "Memory", "sizeLimit": "4Gi"}
    assert spec["template"]["spec"]["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    assert spec["replicas"] == 3
    assert "HorizontalPodAutoscaler" not in manifests(result)
    assert not any(note.startswith("one of 3") for note in result.notes)


def test_the_autoscaler_is_the_simulated_one() -> None:
    """Bounds, metric, target and pace; replicas at the start; none where none was simulated."""
    pace = "interval: 15 s, stabilization: 120 s, grace_period: 45 s, startup: {engine: 100 s}"
    result = exported(
        "deployment.replicas=4",
        f"deployment.autoscaling={{metric: kv_usage, target: 0.75, min_replicas: 2, max_replicas: 8, {pace}}}",
    )
    found, bare = manifests(result), manifests(exported(SCALED, "deployment.engine.version='0.9'"))

    spec = found["HorizontalPodAutoscaler"]["spec"]
    (metric,) = spec["metrics"]
    assert (spec["minReplicas"], spec["maxReplicas"], found["Deployment"]["spec"]["replicas"]) == (2, 8, 4)
    assert metric["pods"]["metric"]["name"] == "vllm:kv_cache_usage_perc"
    assert metric["pods"]["target"]["averageValue"] == "750m"
    assert spec["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 120
    assert spec["behavior"]["scaleUp"]["policies"] == [{"type": "Pods", "value": 8, "periodSeconds": 15}]
    assert found["Deployment"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 45
    assert container(result)["startupProbe"]["failureThreshold"] == math.ceil(3 * (2.47e9 / 2e9 + 100) / 10)
    assert bare["HorizontalPodAutoscaler"]["spec"]["metrics"][0]["pods"]["target"]["averageValue"] == "7"


@pytest.mark.parametrize(
    ("scaling", "key"),
    [
        ("metric: slo, target: 0.9, max_replicas: 8", "autoscaling.metric"),
        ("metric: queue_depth, target: 10, min_replicas: 0, max_replicas: 8", "autoscaling.min_replicas"),
        ("metric: queue_depth, target: 10, max_replicas: 8, stabilization: 2 h", "autoscaling.stabilization"),
    ],
)
def test_an_autoscaler_that_kubernetes_has_not_is_refused(scaling: str, key: str) -> None:
    """By its key, with what to do."""
    with pytest.raises(ScenarioError, match=key):
        exported(f"deployment.autoscaling={{{scaling}}}")


def test_updates_and_liveness_are_those_that_were_simulated() -> None:
    """Surge and missing replicas, the pace of the probe; a budget lets one replica go at a time."""
    result = exported(
        "deployment.replicas=3",
        "deployment.updates=[{at: 1 min, max_unavailable: 0, max_surge: 2, grace_period: 70 s}]",
        "deployment.liveness={period: 20 s, timeout: 3 s, threshold: 4}",
    )
    spec, probe = manifests(result)["Deployment"]["spec"], container(result)["livenessProbe"]

    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 2, "maxUnavailable": 0}
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] == 70
    assert (probe["periodSeconds"], probe["timeoutSeconds"], probe["failureThreshold"]) == (20, 3, 4)
    assert manifests(result)["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1


def test_the_startup_probe_waits_for_the_weights() -> None:
    """Bytes of the checkpoint over the load bandwidth, and the engine's start, three times."""
    small, large = exported(), exported("deployment.tensor_parallel_size=4", model="llama-3.1-70b")

    def seconds(result: Export) -> int:
        probe = container(result)["startupProbe"]
        return int(probe["periodSeconds"] * probe["failureThreshold"])

    assert seconds(small) == pytest.approx(3 * (2.47e9 / 2e9 + 40), abs=10)
    assert seconds(large) == pytest.approx(3 * (141.1e9 / 2e9 + 40), abs=10)
    assert any("expected to start in 111 s: 141.1 GB of weights at 2 GB/s" in note for note in large.notes)


def test_a_checkpoint_of_the_users_is_loaded_in_its_format() -> None:
    """FP8 weights are half of the download; in 16 bit, the model's own are loaded whole."""
    own, named = exported(), exported("deployment.quantization=fp8", checkpoint="org/Llama-3.2-1B-FP8")
    sizes = [
        manifests(each)["Deployment"]["spec"]["template"]["spec"]["volumes"][1]["emptyDir"]["sizeLimit"]
        for each in (own, named)
    ]
    assert sizes == ["3Gi", "2Gi"]


def test_names_are_made_valid() -> None:
    """Lower case, letters, digits and dashes."""
    result = exported(name="My_Chat.bot")

    assert result.main_file == "my-chat-bot.k8s.yaml"
    assert manifests(result)["Service"]["metadata"]["name"] == "my-chat-bot"
    assert result.line == "kubectl apply -f my-chat-bot.k8s.yaml"


def test_a_gpu_without_a_label_is_a_note() -> None:
    """The node has to be chosen by hand."""
    result = exported(deployment={"hardware": "rtx-4090-24gb"})

    assert "nodeSelector" not in manifests(result)["Deployment"]["spec"]["template"]["spec"]
    assert "add a nodeSelector for rtx-4090-24gb" in result.notes


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["deployment.hardware=mi300x-192gb"], "are for NVIDIA's GPUs"),
        (["deployment.tensor_parallel_size=8", "deployment.pipeline_parallel_size=2"], "one of h100-sxm-80gb has 8"),
        (["deployment.hardware=gb200", "deployment.tensor_parallel_size=8"], "one of gb200-186gb has 4"),
        (["deployment.engine.name=llama.cpp", "deployment.engine.version=b8000"], "no server image"),
        (["deployment.engine.batching=static"], "knows continuous only"),
    ],
)
def test_what_cannot_be_a_pod_is_refused(overrides: list[str], reason: str) -> None:
    """With the reason."""
    with pytest.raises(ScenarioError, match=reason):
        exported(*overrides, model="llama-3.1-8b")


def test_servers_that_fetch_their_weights_have_time_for_it() -> None:
    """TGI, llm-d's and the production stack's: over 50 MB/s beside thrice the start; nobody is ready before."""
    tgi = load("chatbot", ["deployment.engine={name: tgi, max_model_len: 8192}", "deployment.quantization=none"])
    chat = load("chatbot")
    weights = 141.1e9  # 16-bit
    seconds = 3 * (weights / 2e9 + 40) + weights / 50e6

    probe = container(export(tgi, "k8s"))["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == pytest.approx(seconds, abs=10)
    assert any("over a line of 50 MB/s" in note for note in export(tgi, "k8s").notes)
    stored = 72.7e9  # its FP8 checkpoint
    seconds = 3 * (stored / 2e9 + 40) + stored / 50e6
    (server,) = yaml.safe_load(export(chat, "llm-d").files["chatbot.llm-d.yaml"])["decode"]["containers"]
    ports = {server[name]["httpGet"]["port"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    stack = yaml.safe_load(export(chat, "production-stack").files["chatbot.production-stack.yaml"])
    for start in (server["startupProbe"], stack["servingEngineSpec"]["startupProbe"]):
        assert start["periodSeconds"] * start["failureThreshold"] == pytest.approx(seconds, rel=0.02)
    assert ports == {8000}
    split = yaml.safe_load(export(load("disaggregation"), "llm-d").files["disaggregation.llm-d.yaml"])
    (behind,) = split["decode"]["containers"]
    assert behind["readinessProbe"]["httpGet"] == {"path": "/health", "port": 8200}  # the sidecar has 8000


def test_a_pod_has_the_longest_of_the_times_that_were_simulated_to_end() -> None:
    """An update lets requests 70 s, the autoscaler 45 s; 120 s where neither says any."""
    scaling = "deployment.autoscaling={metric: running, target: 8, max_replicas: 4, grace_period: 45 s}"
    update = "deployment.updates=[{at: 1 min, grace_period: 70 s}]"

    def seconds(*overrides: str) -> int:
        spec = manifests(exported(*overrides))["Deployment"]["spec"]["template"]["spec"]
        return int(spec["terminationGracePeriodSeconds"])

    assert (seconds(scaling, update), seconds(scaling), seconds()) == (70, 45, 120)


@pytest.mark.parametrize(("gpus", "nodes", "on_one"), [(4, 1, 4), (8, 1, 8), (12, 2, 8), (16, 2, 8)])
def test_a_replica_takes_whole_hosts(gpus: int, nodes: int, on_one: int) -> None:
    """Of eight GPUs each."""
    hardware = SimpleNamespace(intra_node=SimpleNamespace(num_host_gpus=8))
    deployment: Any = SimpleNamespace(
        resolved=SimpleNamespace(shape=SimpleNamespace(hardware=hardware)),
        scenario=SimpleNamespace(deployment=SimpleNamespace(gpus_per_replica=gpus)),
    )
    nothing: Any = None
    worker = Worker(
        name="w", role="both", replicas=1, deployment=deployment, serving=nothing, scaling=None, whole=nothing
    )

    assert (worker.num_nodes, worker.gpus_per_host) == (nodes, on_one)
    assert worker.shared_bytes == max(2, on_one) * 2**30
    assert worker.host_bytes == on_one * 4 * 2**30 + worker.shared_bytes


@pytest.mark.parametrize(("asked", "started"), [(1, 2), (4, 4), (8, 8)])
def test_replicas_at_the_start_are_within_the_autoscalers_bounds(asked: int, started: int) -> None:
    """As Kubernetes would have them at its first look."""
    scaling = "deployment.autoscaling={metric: running, target: 8, min_replicas: 2, max_replicas: 8}"
    result = exported(f"deployment.replicas={asked}", scaling)

    assert manifests(result)["Deployment"]["spec"]["replicas"] == started
