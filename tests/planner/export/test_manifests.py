"""Manifests of whole deployments: what each target says of a scenario, or which key it refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from simserve.errors import InfeasibleError, InputError, ScenarioError
from simserve.planner.export.deployment import Export
from simserve.planner.export.export import ENGINES, WHOLE, export
from simserve.scenario.load import load, scenario_names
from tests.scenario.builders import make_scenario


def main_text(result: Export) -> str:
    """Return the file that is the answer."""
    assert result.main_file is not None
    return result.files[result.main_file]


def only(result: Export) -> Any:
    """Return its one document."""
    (found,) = yaml.safe_load_all(main_text(result))
    return found


def of_kind(result: Export, kind: str) -> dict[str, Any]:
    """Return the one manifest of a kind."""
    (found,) = (each for each in yaml.safe_load_all(main_text(result)) if each["kind"] == kind)
    return dict(found)


def flags_in(words: list[str]) -> dict[str, str]:
    """Return the flags of a command and the word after each."""
    return {word: following for word, following in zip(words, [*words[1:], ""], strict=True) if word.startswith("--")}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if place % 3 == 1 else pytest.mark.slow)
        for place, name in enumerate(scenario_names())
    ],
)
def test_every_scenario_is_written_for_every_target_or_refused_in_a_line(name: str) -> None:
    """YAML that reads back, with as many servers as were simulated; a refusal is one line with its key and a remedy.

    In the quick tier others than those that come back whole (`test_round_trip`).
    """
    scenario, written = load(name), 0
    refusals: list[str] = []
    for target in WHOLE:
        try:
            result = export(scenario, target)
        except (InputError, InfeasibleError) as refusal:
            refusals.append(str(refusal))
            continue
        for text in result.files.values():
            assert list(yaml.safe_load_all(text)), target
        written += 1
        if target == "k8s":
            kinds = [each["kind"] for each in yaml.safe_load_all(main_text(result))]
            pools = scenario.deployment.pools
            assert kinds.count("Deployment") == max(len(pools), 1)
            has_scaler = scenario.deployment.autoscaling or any(pool.autoscaling for pool in pools)
            assert ("HorizontalPodAutoscaler" in kinds) == bool(has_scaler)
    assert not any("\n" in each for each in refusals)
    engine = scenario.deployment.engine
    is_served = engine.name in [each for target, each in ENGINES.items() if target != "ollama"]
    by_hand = scenario.deployment.pools or scenario.deployment.encoder_disaggregation
    assert written or engine.batching == "static" or not is_served or by_hand


@pytest.mark.parametrize("target", ["k8s", "compose", "kserve"])
def test_no_repository_is_called_gated(target: str) -> None:
    """Whether one is, its page says; RedHatAI's checkpoint of `chatbot` is open to all."""
    notes = [note for note in export(load("chatbot"), target).notes if "asks to accept its terms" in note]

    assert len(notes) == 1
    assert notes[0].startswith("only if the page of RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8")


def test_keda_scales_between_the_simulated_bounds() -> None:
    """The metric summed over the pods, its target a replica; none without an autoscaler; from no replica at all."""
    spec = of_kind(export(load("cold-start"), "keda"), "ScaledObject")["spec"]
    busy = of_kind(export(load("busy-scales-late"), "keda"), "ScaledObject")["spec"]

    (trigger,) = spec["triggers"]
    assert (spec["minReplicaCount"], spec["maxReplicaCount"], spec["pollingInterval"]) == (2, 8, 15)
    assert trigger["metadata"]["query"] == 'sum(vllm:num_requests_waiting{pod=~"cold-start-[a-z0-9]+-[a-z0-9]+"})'
    assert trigger["metadata"]["threshold"] == "10"
    assert busy["triggers"][0]["metadata"]["threshold"] == "80"
    assert "avg by (pod) (DCGM_FI_DEV_GPU_UTIL" in busy["triggers"][0]["metadata"]["query"]
    from_none = export(load("cold-start", ["deployment.autoscaling.min_replicas=0"]), "keda")
    assert of_kind(from_none, "ScaledObject")["spec"]["minReplicaCount"] == 0
    assert any("KEDA starts none by this trigger" in note for note in from_none.notes)
    with pytest.raises(ScenarioError, match="autoscaling"):
        export(load("chatbot"), "keda")


def container_of(component: dict[str, Any]) -> dict[str, Any]:
    """Return the container of a component of Dynamo."""
    (container,) = component["podTemplate"]["spec"]["containers"]
    return dict(container)


def args_of(component: dict[str, Any]) -> list[str]:
    """Return its arguments."""
    return list(container_of(component)["args"])


def test_dynamo_gets_the_pools_with_their_counts() -> None:
    """Workers of each role with the simulated flags; the router by the simulated policy."""
    few = ["deployment.pools=[{name: p, role: prefill, replicas: 3}, {name: d, role: decode, replicas: 2}]"]
    frontend, prefill, decode = only(export(load("disaggregation", few), "dynamo"))["spec"]["components"]
    by_prefix = only(export(load("disaggregation", ["deployment.routing=prefix"]), "dynamo"))["spec"]["components"]

    assert [prefill["name"], decode["name"]] == ["VllmPrefillWorker", "VllmDecodeWorker"]
    assert (prefill["replicas"], decode["replicas"]) == (3, 2)
    assert (prefill["type"], decode["type"]) == ("prefill", "decode")
    words = args_of(prefill)
    assert flags_in(words)["--max-model-len"] == "32768"
    assert flags_in(words)["--disaggregation-mode"] == "prefill"
    for worker in (prefill, decode):  # Dynamo starts no vLLM with a role that is not told how KV caches are sent.
        told = flags_in(args_of(worker))["--kv-transfer-config"]
        assert json.loads(told) == {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
    modes = [container_of(each)["env"] for each in (frontend, by_prefix[0])]
    assert modes == [[{"name": "DYN_ROUTER_MODE", "value": mode}] for mode in ("least-loaded", "kv")]
    assert ["--kv-events-config" in args_of(each) for each in (prefill, *by_prefix[1:])] == [False, True, False]


_TRTLLM = ["deployment.engine={name: tensorrt-llm, version: '1.2', max_model_len: 32768, max_num_seqs: 64}"]


def test_dynamo_gives_workers_of_tensorrt_llm_their_options_by_role() -> None:
    """Each in a ConfigMap, sizes among them; prompts without the overlapped scheduler, their prefixes published."""
    pools = "[{name: p, role: prefill, replicas: 3}, {name: d, role: decode, tensor_parallel_size: 2}]"
    asked = [*_TRTLLM, f"deployment.pools={pools}", "deployment.routing=prefix", "deployment.kv_cache_dtype=fp8"]
    result = export(load("disaggregation", asked), "dynamo")

    documents = list(yaml.safe_load_all(main_text(result)))
    options = {each["metadata"]["name"]: yaml.safe_load(each["data"]["engine.yaml"]) for each in documents[:-1]}
    _, prefill, decode = documents[-1]["spec"]["components"]
    transfer = {"backend": "DEFAULT", "max_tokens_in_buffer": 32768}
    shared = {"cache_transceiver_config": transfer, "max_seq_len": 32768, "max_batch_size": 64}
    graphs = {"enable_padding": True, "max_batch_size": 64}
    cache = {"kv_cache_config": {"dtype": "fp8"}, "cuda_graph_config": graphs}
    assert options["disaggregation-p"] == {"disable_overlap_scheduler": True, **cache, **shared}
    assert options["disaggregation-d"] == {"tensor_parallel_size": 2, **cache, **shared}
    assert (prefill["replicas"], decode["replicas"]) == (3, 1)
    assert container_of(decode)["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    args = [args_of(each) for each in (prefill, decode)]
    assert [words[words.index("--disaggregation-mode") + 1] for words in args] == ["prefill", "decode"]
    assert ["--publish-events-and-metrics" in words for words in args] == [True, False]
    assert flags_in(args[0])["--extra-engine-args"] == "/config/engine.yaml"
    assert decode["podTemplate"]["spec"]["volumes"] == [{"name": "options", "configMap": {"name": "disaggregation-d"}}]
    assert any("TensorRT-LLM 1.3; tensorrt-llm 1.2 was simulated" in note for note in result.notes)


@pytest.mark.parametrize(
    ("pools", "target", "words"),
    [
        (
            "[{name: p, role: prefill}, {name: d, role: decode, tensor_parallel_size: 8, pipeline_parallel_size: 2}]",
            "dynamo",
            "started by MPI",
        ),
        ("[{name: p, role: prefill}, {name: d, role: decode}]", "llm-d", "or --to trtllm or dynamo"),
        ("[{name: p, role: prefill}, {name: d, role: decode}]", "kserve", "or --to trtllm or dynamo"),
    ],
)
def test_what_no_target_can_say_of_tensorrt_llm_is_refused(pools: str, target: str, words: str) -> None:
    """Workers over several hosts; and charts that start vLLM alone name those that can."""
    scenario = load("disaggregation", [*_TRTLLM, f"deployment.pools={pools}"])

    with pytest.raises(ScenarioError, match=words):
        export(scenario, target)


def test_dynamo_starts_every_worker_from_one_image() -> None:
    """Pools of two engines are refused, which one image does not hold."""
    pools = "[{name: a, engine: {name: vllm, version: '0.12'}}, {name: b, engine: {name: sglang, version: '0.5.4'}}]"
    scenario = make_scenario(["deployment.engine.max_model_len=4096", f"deployment.pools={pools}"])

    with pytest.raises(ScenarioError, match="one image starts the workers of every role"):
        export(scenario, "dynamo")


def test_llm_d_scores_as_was_simulated() -> None:
    """Values for both roles, and a scheduler that filters by role and weighs by the policy."""
    result = export(load("disaggregation", ["deployment.routing=prefix"]), "llm-d")
    values, pool = only(result), yaml.safe_load(result.files["disaggregation.inferencepool.yaml"])

    config = yaml.safe_load(pool["inferenceExtension"]["pluginsCustomConfig"]["simulated.yaml"])
    assert (values["prefill"]["replicas"], values["decode"]["replicas"]) == (2, 2)
    assert values["routing"]["proxy"]["enabled"]
    assert flags_in(values["decode"]["containers"][0]["args"])["--port"] == "8200"
    assert [each["name"] for each in config["schedulingProfiles"]] == ["prefill", "decode"]
    assert {"pluginRef": "prefix-cache-scorer", "weight": 2} in config["schedulingProfiles"][0]["plugins"]
    assert pool["inferencePool"]["modelServers"]["matchLabels"] == values["modelArtifacts"]["labels"]


def test_llm_d_is_given_a_scheduler_that_has_the_roles() -> None:
    """Its image, the plugin that tells a decoding server who prefills, and no prompt that is too short for that."""
    result = export(load("disaggregation"), "llm-d")
    one_role = export(load("chatbot"), "llm-d").files["chatbot.inferencepool.yaml"]

    picker = yaml.safe_load(result.files["disaggregation.inferencepool.yaml"])["inferenceExtension"]
    config = yaml.safe_load(picker["pluginsCustomConfig"]["simulated.yaml"])
    assert (picker["image"]["hub"], picker["image"]["name"]) == ("ghcr.io/llm-d", "llm-d-inference-scheduler")
    plugins = {each["type"]: each.get("parameters") for each in config["plugins"]}
    assert "prefill-header-handler" in plugins
    assert plugins["pd-profile-handler"]["threshold"] == 0
    assert "*id" not in picker["pluginsCustomConfig"]["simulated.yaml"]
    assert "pd-profile-handler" not in one_role
    assert any("a link of 50 GB/s" in note for note in result.notes)


def test_kserve_prefills_apart_and_takes_the_flags_in_a_variable() -> None:
    """Tensor parallelism is a field of its own."""
    wide = ["deployment.tensor_parallel_size=2"]
    result = export(load("disaggregation", wide), "kserve")
    spec = of_kind(result, "LLMInferenceService")["spec"]

    assert (spec["replicas"], spec["prefill"]["replicas"]) == (2, 2)
    assert spec["parallelism"] == spec["prefill"]["parallelism"] == {"tensor": 2}
    told = {each["name"]: each.get("value") for each in spec["template"]["containers"][0]["env"]}
    assert re.search(r"--max-model-len 32768 .*--kv-transfer-config '\{\"kv_connector\"", told["VLLM_ADDITIONAL_ARGS"])
    assert "--tensor-parallel-size" not in told["VLLM_ADDITIONAL_ARGS"]
    assert "--port" not in told["VLLM_ADDITIONAL_ARGS"]
    decode, prefill = (each["template"]["containers"][0] for each in (spec, spec["prefill"]))
    ports = [each["startupProbe"]["httpGet"]["port"] for each in (decode, prefill)]
    assert ports == [8001, 8000]  # a sidecar stands before the one that decodes
    assert decode["securityContext"] == {"runAsNonRoot": False}
    account = of_kind(result, "ServiceAccount")
    assert spec["template"]["serviceAccountName"] == account["metadata"]["name"]
    assert any(f"generic {account['secrets'][0]['name']} --from-literal=HF_TOKEN=" in note for note in result.notes)


def test_the_production_stack_routes_and_scales_as_was_simulated() -> None:
    """Its router has three of the policies."""
    values = only(export(load("cold-start", ["deployment.routing=round_robin"]), "production-stack"))

    (model,) = values["servingEngineSpec"]["modelSpec"]
    assert values["routerSpec"]["routingLogic"] == "roundrobin"
    assert (model["replicaCount"], model["requestGPU"]) == (2, 1)
    assert (model["keda"]["minReplicaCount"], model["keda"]["maxReplicaCount"]) == (2, 8)
    assert "cold-start-cold-start-deployment-vllm-" in model["keda"]["triggers"][0]["metadata"]["query"]
    with pytest.raises(ScenarioError, match=r"deployment\.routing\.policy"):
        export(load("cold-start"), "production-stack")


@pytest.mark.parametrize("caches", [True, False])
def test_the_production_stack_is_told_of_the_prefix_cache(caches: bool) -> None:
    """Its chart starts servers with --no-enable-prefix-caching unless the values say otherwise."""
    scenario = load("chatbot", [f"deployment.engine.enable_prefix_caching={str(caches).lower()}"])
    default = load("chatbot", ["deployment.engine.enable_prefix_caching=null"])
    models = [
        only(export(each, "production-stack"))["servingEngineSpec"]["modelSpec"][0] for each in (scenario, default)
    ]

    assert models[0]["vllmConfig"]["enablePrefixCaching"] is caches
    assert models[1]["vllmConfig"]["enablePrefixCaching"] is True  # vLLM's own default from 0.8 on


def test_llm_d_starts_the_stages_that_were_simulated() -> None:
    """Its chart writes --tensor-parallel-size from `parallelism`, the GPUs of all stages: the last flag wins."""
    shape = ["deployment.tensor_parallel_size=1", "deployment.pipeline_parallel_size=4"]
    decode = yaml.safe_load(export(load("chatbot", shape), "llm-d").files["chatbot.llm-d.yaml"])["decode"]
    words = decode["containers"][0]["args"]

    assert decode["parallelism"]["tensor"] == 4
    assert words[words.index("--tensor-parallel-size") + 1] == "1"
    assert words[words.index("--pipeline-parallel-size") + 1] == "4"


def test_a_length_of_the_ports_number_stays_a_length_in_llm_d() -> None:
    """Only the port of the server that decodes behind the sidecar is changed."""
    scenario = load("disaggregation", ["deployment.engine.max_model_len=8000"])
    values = yaml.safe_load(export(scenario, "llm-d").files["disaggregation.llm-d.yaml"])
    words = values["decode"]["containers"][0]["args"]

    assert words[words.index("--max-model-len") + 1] == "8000"
    assert words[words.index("--port") + 1] == "8200"


@pytest.mark.parametrize("engine", [("vllm", "0.12"), ("sglang", "0.5.4")])
def test_replicas_over_several_nodes_are_leader_worker_sets(engine: tuple[str, str]) -> None:
    """A pod a node with all its GPUs; only the leader answers."""
    name, version = engine
    scenario = make_scenario(
        [f"deployment.engine={{name: {name}, version: '{version}', max_model_len: 4096}}"],
        model="llama-3.1-405b",
        deployment={"hardware": "h100-sxm-80gb", "tensor_parallel_size": 16, "replicas": 2},
    )
    spec = of_kind(export(scenario, "lws"), "LeaderWorkerSet")["spec"]

    template = spec["leaderWorkerTemplate"]
    leader, other = (template[each]["spec"]["containers"][0] for each in ("leaderTemplate", "workerTemplate"))
    assert (spec["replicas"], template["size"]) == (2, 2)
    assert leader["resources"]["limits"] == other["resources"]["limits"] == {"nvidia.com/gpu": 8}
    assert "readinessProbe" in leader
    assert "readinessProbe" not in other
    assert "$(LWS_LEADER_ADDRESS)" in " ".join(other["command"])
    if name == "vllm":
        # One rank over both nodes: the same words for both, and the second answers nobody.
        assert other["command"] == [*leader["command"], "--headless"]
        assert "--nnodes 2 --node-rank $(LWS_WORKER_INDEX) --master-addr $(LWS" in " ".join(leader["command"])
    assert leader["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
    with pytest.raises(ScenarioError, match="use --to k8s"):
        export(make_scenario(["deployment.engine.max_model_len=4096"]), "lws")


def started(result: Export) -> list[str]:
    """Return what the leader of a set runs, and what the others run."""
    template = of_kind(result, "LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]
    pods = (template[each]["spec"]["containers"][0] for each in ("leaderTemplate", "workerTemplate"))
    return [" ".join(each["command"]) for each in pods]


def test_data_parallel_ranks_over_several_nodes_are_started_by_their_number() -> None:
    """By processes of their own, by Ray in older releases; a budget takes a pod at a time; the link is a note."""
    wide = ["deployment.data_parallel_size=16", "deployment.enable_expert_parallel=true"]
    engine = "deployment.engine={{name: vllm, version: '{}', max_model_len: 4096}}"
    found = [
        export(
            make_scenario([*wide, engine.format(version)], model="deepseek-v3", deployment={"hardware": name}), "lws"
        )
        for name, version in (("h200-sxm-141gb", "0.12"), ("gb200-186gb", "0.12"), ("h200-sxm-141gb", "0.11"))
    ]

    words = [started(each) for each in found]
    for (leader, other), local in zip(words, (8, 4, 8), strict=True):
        assert f"--data-parallel-size-local {local}" in leader
        assert ("ray" in leader) == ("ray" in other) == (leader is words[2][0])
    for (leader, other), local in zip(words[:2], (8, 4), strict=False):
        assert "--data-parallel-address $(LWS_LEADER_ADDRESS) --data-parallel-rpc-port 13345" in leader
        assert other.endswith(f"--headless --data-parallel-start-rank $((LWS_WORKER_INDEX * {local}))")
    budget = of_kind(found[0], "PodDisruptionBudget")["spec"]
    assert list(budget["selector"]["matchLabels"]) == ["leaderworkerset.sigs.k8s.io/name"]
    assert any("over RDMA" in note for note in found[0].notes)
    assert any("ComputeDomain" in note for note in found[1].notes)


def test_compose_deals_the_gpus_of_a_host_and_routes() -> None:
    """Each replica has GPUs of its own; nginx follows the policy, and streams."""
    scenario = make_scenario(
        ["deployment.engine.max_model_len=4096"],
        deployment={"hardware": "h100-sxm-80gb", "tensor_parallel_size": 2, "replicas": 3},
    )
    found = only(export(scenario, "compose"))

    servers = {name: each for name, each in found["services"].items() if name != "router"}
    devices = [each["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"] for each in servers.values()]
    assert devices == [["0", "1"], ["2", "3"], ["4", "5"]]
    nginx = found["configs"]["nginx"]["content"]
    assert "least_conn;" in nginx
    assert all(f"server {name}:8000;" in nginx for name in servers)
    with pytest.raises(ScenarioError, match=r"one of h100-sxm-80gb has 8"):
        export(
            make_scenario(
                ["deployment.engine.max_model_len=4096"], deployment={"hardware": "h100-sxm-80gb", "replicas": 9}
            ),
            "compose",
        )


def test_a_link_that_only_a_node_has_is_said_to_need_one() -> None:
    """NVLink between containers of one node; over the network of the GPUs it is RDMA."""
    inside = ["deployment.disaggregation={transfer_bandwidth: 450 GB/s}"]
    near, far = (export(load("disaggregation", changes), "dynamo").notes for changes in (inside, []))

    assert any("cross NVLink at 450 GB/s: all pods must run on one node" in note for note in near)
    assert any("cross a link of 50 GB/s" in note and "RDMA" in note for note in far)


@pytest.mark.parametrize(
    ("hardware", "label"), [("h100-sxm-80gb", "kubernetes.io/hostname"), ("gb200-186gb", "nvidia.com/gpu.clique")]
)
@pytest.mark.parametrize("target", ["dynamo", "kserve"])
def test_roles_that_share_nvlink_are_placed_together(target: str, hardware: str, label: str) -> None:
    """On one host, or in one domain over many; over the network pods may lie anywhere."""
    asked = [f"deployment.hardware={hardware}", "deployment.engine.version=0.20"]
    near = only_kind(export(load("disaggregation", [*asked, _NVLINK]), target))
    far = only_kind(export(load("disaggregation", asked), target))

    pods = list(pods_of(near))
    assert len(pods) == 2
    for labels, pod in pods:
        (term,) = pod["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert term["topologyKey"] == label
        assert term["labelSelector"]["matchLabels"].items() <= labels.items()
    assert not any("affinity" in pod for _, pod in pods_of(far))


_NVLINK = "deployment.disaggregation.transfer_bandwidth=900 GB/s"


def only_kind(result: Export) -> dict[str, Any]:
    """Return the manifest of the servers."""
    documents = yaml.safe_load_all(main_text(result))
    return next(each for each in documents if each["kind"] in ("DynamoGraphDeployment", "LLMInferenceService"))


def pods_of(manifest: dict[str, Any]) -> Iterator[tuple[dict[str, str], dict[str, Any]]]:
    """Yield labels and pod of each kind of server."""
    spec = manifest["spec"]
    for component in spec.get("components", ()):
        if component["type"] != "frontend":
            template = component["podTemplate"]
            yield template.get("metadata", {}).get("labels", {}), template["spec"]
    for workload in (spec, spec.get("prefill")) if "template" in spec else ():
        yield workload.get("labels", {}), workload["template"]


@pytest.mark.parametrize("target", WHOLE)
def test_pods_in_every_manifest_are_those_of_kubernetes(target: str) -> None:
    """Against its published schemas, also where they stand in a resource or in values of somebody else."""
    validator = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    found = 0
    for name in ("chatbot", "cold-start", "disaggregation", "images", "encoder-pool"):
        try:
            result = export(load(name), target)
        except InputError:
            continue
        for text in (result.files[file] for file in result.files if file.endswith((".yaml", ".yml"))):
            for each in yaml.safe_load_all(text):
                for pod in embedded_pods(each):
                    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": pod}
                    validator.validate(manifest, "1.37", strict=True)
                    found += 1
                for behavior in embedded(each, "behavior"):
                    scaler = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler"}
                    reference = {"kind": "Deployment", "name": "there"}
                    spec = {"scaleTargetRef": reference, "maxReplicas": 9, "behavior": behavior}
                    validator.validate({**scaler, "spec": spec}, "1.37", strict=True)
    if target == "lws":
        wide = {"hardware": "h100-sxm-80gb", "tensor_parallel_size": 16}
        result = export(
            make_scenario(["deployment.engine.max_model_len=4096"], model="llama-3.1-405b", deployment=wide), target
        )
        for each in yaml.safe_load_all(main_text(result)):
            for pod in embedded_pods(each):
                manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": pod}
                validator.validate(manifest, "1.37", strict=True)
                found += 1
    assert found or target == "compose"


def embedded(value: Any, key: str) -> Iterator[Any]:
    """Yield what stands under a key, at any depth."""
    if isinstance(value, dict):
        if key in value:
            yield value[key]
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from embedded(each, key)


def embedded_pods(value: Any) -> Iterator[dict[str, Any]]:
    """Yield what has containers: pods, roles of charts with the fields of a pod alone, and a chart's model as one."""
    if isinstance(value, dict):
        if "image" in str(value.get("containers")):
            keys = ("containers", "initContainers", "volumes", "tolerations", "nodeSelector", "affinity")
            more = ("serviceAccountName", "enableServiceLinks", "terminationGracePeriodSeconds")
            pod = {key: value[key] for key in (*keys, *more) if key in value}
            own = ("modelCommand", "mountModelVolume")  # fields of llm-d's chart beside those of a container
            containers = [{key: each[key] for key in each if key not in own} for each in pod["containers"]]
            yield {**pod, "containers": containers}
        elif "modelURL" in value:  # vLLM's chart takes tolerations and variables as a pod has them
            alone = {"name": "there", "image": "there", "env": value.get("env", [])}
            yield {"containers": [alone], "tolerations": value["tolerations"]}
        else:
            for each in value.values():
                yield from embedded_pods(each)
    elif isinstance(value, list):
        for each in value:
            yield from embedded_pods(each)


@pytest.mark.parametrize("target", ["vllm", "sglang", "dynamo"])
def test_an_encoder_pool_that_follows_its_load_is_refused(target: str) -> None:
    """No target has an autoscaler for workers that only encode: the line says what to set instead."""
    scaling = "deployment.encoder_disaggregation.autoscaling={target: 1, max_replicas: 4}"

    with pytest.raises(ScenarioError) as caught:
        export(load("encoder-pool", (scaling,)), target)

    assert "encoder_disaggregation.autoscaling" in str(caught.value)
    assert "set deployment.encoder_disaggregation.replicas to the peak that simserve run reports" in str(caught.value)
