"""What is exported, imported again, is the same replica: as a command line, and out of a manifest."""

from __future__ import annotations

import dataclasses
import itertools
import re
from functools import cache, partial
from pathlib import Path

import pytest

from simserve.errors import InfeasibleError, InputError
from simserve.perf.shape import ReplicaShape
from simserve.planner.export.deployment import Export, public_checkpoint
from simserve.planner.export.export import WHOLE, export
from simserve.planner.importers.manifest import import_manifest
from simserve.planner.importers.server import import_line
from simserve.planner.importers.sglang_command import SGLANG
from simserve.planner.importers.trtllm_command import TRTLLM
from simserve.planner.importers.vllm_command import VLLM
from simserve.profiles.engine_profile import load_engine
from simserve.profiles.hardware import hardware_name
from simserve.scenario.load import from_mapping, load, scenario_names
from simserve.scenario.resolve import resolve
from simserve.scenario.schema import Scenario

NAMES = scenario_names()
COMMANDS = {"vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrt-llm"}
"""Target whose command line is read -> its engine."""
UNROUTED = ("k8s", "keda", "lws", "kserve")
"""Targets whose manifests do not say which replica a request goes to."""
LENGTHS = {
    "prompt_tokens": {"distribution": "fixed", "value": 100},
    "output_tokens": {"distribution": "fixed", "value": 20},
}
IMPORTS = {
    "vllm": partial(import_line, VLLM),
    "sglang": partial(import_line, SGLANG),
    "tensorrt-llm": partial(import_line, TRTLLM),
}


def replica(scenario: Scenario, result: Export) -> object:
    """Return what decides how one replica serves, but for knobs that the export says it does not hold."""
    unsaid = re.findall(r"deployment\.engine\.(\w+) (?:is not in|describes)", " ".join(result.notes))
    return plain(resolve(scenario).shape, unsaid)


def plain(shape: ReplicaShape, unsaid: list[str]) -> ReplicaShape:
    """Return a shape without where its knobs are from, and of its checkpoints with the one that is loaded."""
    own = {"sources": {}, "requested_version": None} | dict.fromkeys(unsaid)
    speculation = shape.speculation
    if speculation is not None:
        draft = None if speculation.draft is None else plain(speculation.draft, unsaid)
        speculation = dataclasses.replace(speculation, draft=draft, notes=())  # words on where its settings are from
    loaded = public_checkpoint(shape.model, shape.quantization)
    model = shape.model.model_copy(update={"checkpoints": (loaded,)})
    return dataclasses.replace(shape, model=model, engine=shape.engine.model_copy(update=own), speculation=speculation)


def imported(line: str, scenario: Scenario) -> Scenario:
    """Return the scenario of a command line on the same GPU, under the same version and traffic."""
    engine = scenario.deployment.engine
    take = IMPORTS[engine.name]
    found = take(line, hardware=scenario.deployment.hardware, version=engine.version, model=scenario.model).scenario
    return found.model_copy(update={"workload": scenario.workload})


@cache
def under(name: str, engine: str) -> Scenario:
    """Return a bundled scenario under an engine; where it is another's, the newest version with its knobs.

    Raises:
        InputError: That engine has not what it asks for.
    """
    scenario = load(name)
    if scenario.deployment.engine.name == engine:
        return scenario
    return load(name, [f"deployment.engine.name={engine}", "deployment.engine.version=null"])


@pytest.mark.parametrize(
    ("name", "target"),
    [
        pytest.param(name, target, marks=[] if target == "vllm" or (place + other) % 3 == 0 else pytest.mark.slow)
        for place, name in enumerate(NAMES)
        for other, target in enumerate(COMMANDS)
    ],
)
def test_a_command_line_comes_back(name: str, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every bundled scenario that can be told to an engine, in few flags and in all, with the files it reads."""
    monkeypatch.chdir(tmp_path)
    for explicit in (False, True):
        try:
            scenario = under(name, COMMANDS[target])
            result = export(scenario, target, explicit=explicit)
        except (InputError, InfeasibleError):
            pytest.skip("cannot be told to this engine")
        if scenario.deployment.pools or scenario.deployment.encoder_disaggregation:
            pytest.skip("several servers: a manifest says them")
        for file, text in result.files.items():
            Path(file).write_text(text)

        assert replica(imported(result.line, scenario), result) == replica(scenario, result)


def shapes(scenario: Scenario, result: Export) -> list[tuple[str, int, ReplicaShape]]:
    """Return role, number and what decides how one serves, of every kind of replica."""
    unsaid = re.findall(r"deployment\.engine\.(\w+) (?:is not in|describes)", " ".join(result.notes))
    resolved, scaling = resolve(scenario), scenario.deployment.autoscaling
    owned = zip(scenario.deployment.pools, resolved.pools, strict=True)
    pools = [(pool.role, pool.replicas, own.shape) for pool, own in owned]
    found = pools or [("both", scenario.deployment.replicas, resolved.shape)]
    least, most = (0, 10**6) if scaling is None else (scaling.min_replicas, scaling.max_replicas)
    told = [(role, min(max(count, least), most), plain(shape, unsaid)) for role, count, shape in found]
    return sorted(told, key=lambda each: each[0])


def told_scaling(scenario: Scenario) -> object:
    """Return what manifests say of the autoscaler."""
    scaling = scenario.deployment.autoscaling
    return None if scaling is None else scaling.model_dump(exclude={"startup"})


@pytest.mark.parametrize(
    ("name", "target", "engines"),
    [
        pytest.param(name, target, [list(COMMANDS.values())[(place // 3 + other) % len(COMMANDS)]])
        for place, name in enumerate(NAMES)
        for other, target in enumerate(WHOLE)
        if place % 3 == 0
    ],
    ids=str,
)
def test_some_manifests_come_back(name: str, target: str, engines: list[str]) -> None:
    """Of every third bundled scenario and every target, under engines that take turns."""
    check_manifests(name, target, engines)


@pytest.mark.slow
@pytest.mark.parametrize("target", WHOLE)
@pytest.mark.parametrize("name", NAMES)
def test_a_manifest_comes_back(name: str, target: str) -> None:
    """Of every bundled scenario and target, under every engine."""
    check_manifests(name, target, list(COMMANDS.values()))


def check_manifests(name: str, target: str, engines: list[str]) -> None:
    """Check that shapes, roles, numbers, autoscaler and, where manifests say it, the router come back."""
    written = 0
    for engine in engines:
        try:
            scenario = under(name, engine)
            result = export(scenario, target)
        except (InputError, InfeasibleError):
            continue
        # Compose says no GPU, and an image of Dynamo holds a version of its own.
        hardware = scenario.deployment.hardware if target == "compose" or _is_unlabelled(result) else None
        simulated = scenario.deployment.engine
        newest = load_engine(simulated.name, scenario.folder).newest.version
        version = simulated.version or newest if target == "dynamo" else None
        again = import_manifest(list(result.files.values()), hardware=hardware, version=version).scenario
        if not any(each.pool or each.region for each in scenario.workload.classes or ()):
            again = again.model_copy(update={"workload": scenario.workload})

        own = shapes(scenario, result)
        assert shapes(again, result) == own
        assert told_scaling(again) == told_scaling(scenario)
        if target not in UNROUTED and any(count > 1 for _, count, _ in own):
            assert again.deployment.routing.policy == scenario.deployment.routing.policy
        written += 1
    if not written:
        pytest.skip("cannot be told to this target")


@pytest.mark.parametrize("target", COMMANDS)
@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["deployment.pools.0.replicas=7", "deployment.pools.1.tensor_parallel_size=2"],
        ["deployment.pools.0.hardware=h200-sxm-141gb", "deployment.routing=prefix"],
    ],
    ids=["as bundled", "on two hosts", "two kinds of GPU"],
)
def test_the_scripts_of_prefill_and_decode_servers_come_back(target: str, overrides: list[str]) -> None:
    """Roles, numbers, GPUs and what decides how each serves, by the commands of the servers and of their router."""
    other = ["deployment.engine.version=null", f"deployment.engine.name={COMMANDS[target]}"]
    scenario = load("disaggregation", [*overrides, *(other if target != "vllm" else [])])
    result = export(scenario, target)
    version = scenario.deployment.engine.version

    names, texts = ["serve.sh", *result.files], [f"#!/bin/sh\nexec {result.lines}\n", *result.files.values()]
    again = import_manifest(texts, names=names, version=version).scenario

    assert shapes(again, result) == shapes(scenario, result)
    if target != "trtllm" and "deployment.routing=prefix" in overrides:
        assert again.deployment.routing.policy == "prefix"


_ENCODERS = [
    ("vllm", []),
    ("vllm", ["deployment.replicas=3", "deployment.encoder_disaggregation.hardware=null"]),
    ("sglang", ["deployment.engine.name=sglang", "deployment.engine.version=0.5.7"]),
    ("sglang", ["deployment.engine.name=sglang", "deployment.engine.version=0.5.9", "deployment.replicas=2"]),
    ("dynamo", []),
    ("dynamo", ["deployment.engine.name=sglang", "deployment.engine.version=0.5.9"]),
]
_SGLANG = ["deployment.engine.name=sglang", "deployment.quantization=auto"]
_SPLIT = [
    "deployment.pools=[{name: prefill, role: prefill, replicas: 2}, {name: decode, role: decode, replicas: 1}]",
    "deployment.disaggregation={}",
]


@pytest.mark.parametrize("is_split", [False, True])
@pytest.mark.parametrize(("target", "overrides"), _ENCODERS)
def test_an_encoder_pool_comes_back(target: str, overrides: list[str], is_split: bool) -> None:
    """Its workers, their GPU, and the servers that take their embeddings, prefill and decode apart too."""
    split = [*(each for each in overrides if "replicas" not in each), *_SPLIT]
    scenario = load("encoder-pool", split if is_split else overrides)
    result = export(scenario, target)

    files = [*result.files.values()]
    texts = files if target == "dynamo" else [f"#!/bin/sh\nexec {result.lines}\n", *files]
    draft = import_manifest(texts, version=scenario.deployment.engine.version)
    again = draft.scenario
    assert len(set(draft.notes)) == len(draft.notes)
    asked, told = scenario.deployment.encoder_disaggregation, again.deployment.encoder_disaggregation
    assert asked is not None
    assert told is not None
    assert told.replicas == asked.replicas
    assert hardware_name(told.hardware or again.deployment.hardware) == hardware_name(
        asked.hardware or scenario.deployment.hardware
    )
    again = again.model_copy(update={"workload": scenario.workload})
    assert shapes(again, result) == shapes(scenario, result)


def test_servers_are_told_of_their_encoders() -> None:
    """SGLang's by their addresses, vLLM's by the folder that embeddings lie in; the front of vLLM knows both."""
    sglang = export(load("encoder-pool", _ENCODERS[2][1]), "sglang").files["start_servers.sh"].splitlines()
    vllm = export(load("encoder-pool"), "vllm")

    (serving,) = (line for line in sglang if "--language-only" in line)
    urls = [f"http://node-2:{port}" for port in re.findall(r"--encoder-only.*--port (\d+)", "\n".join(sglang))]
    assert f"--encoder-urls {' '.join(urls)} --encoder-transfer-backend" in serving
    assert len(urls) == 2
    assert vllm.command[:2] == ("python", "disagg_epd_proxy.py")
    assert vllm.command[vllm.command.index("--encode-servers-urls") + 1].count("http://") == 2
    assert vllm.command[vllm.command.index("--prefill-servers-urls") + 1] == "disable"
    assert vllm.files["start_servers.sh"].count("ec_producer") == 2
    assert vllm.files["start_servers.sh"].count("ec_consumer") == 1


@pytest.mark.parametrize(
    ("target", "overrides", "rule"),
    [
        ("k8s", [], "to k8s, which starts no workers that only encode"),
        ("kserve", [], "to kserve, which starts no workers that only encode"),
        ("vllm", ["deployment.engine.version=0.14"], "vllm 0.14, which has no --mm-encoder-only"),
        ("sglang", ["deployment.engine.name=sglang", "deployment.engine.version=0.5.4"], "has no --language-only"),
        ("sglang", [*_SGLANG, "deployment.engine.version=0.5.9", "model=qwen3-omni-30b-a3b"], "from 0.5.10 on it does"),
        ("sglang", [*_SGLANG, "deployment.engine.version=0.5.23", "model=gemma-3-12b"], "encoder of Gemma3ForCond"),
        (
            "dynamo",
            ["deployment.quantization=auto", "model=gemma-3-12b"],
            "encode workers do not know Gemma3ForConditionalGeneration",
        ),
        (
            "dynamo",
            ["deployment.quantization=auto", "model=qwen3-omni-30b-a3b"],
            "encode workers do not know Qwen3OmniMoe",
        ),
    ],
)
def test_an_encoder_pool_is_refused_where_nothing_starts_it(target: str, overrides: list[str], rule: str) -> None:
    """By its key, in a line: targets without such workers, releases that would load the language model too."""
    with pytest.raises(InputError, match=rf"deployment\.encoder_disaggregation.*{rule}"):
        export(load("encoder-pool", overrides), target)


def test_workers_of_dynamo_take_media_only_where_they_are_told_to() -> None:
    """Its workers refuse images unasked; text alone needs no flag."""
    with_images = "".join(export(load("images"), "dynamo").files.values())
    text = "".join(export(load("chatbot"), "dynamo").files.values())

    assert "--enable-multimodal" in with_images
    assert "--enable-multimodal" not in text


def _is_unlabelled(result: Export) -> bool:
    return not any("nvidia.com/gpu.product" in text for text in result.files.values())


def test_replicas_over_several_nodes_come_back() -> None:
    """A set of leaders and workers: the command of its leader, and as many replicas as there are groups."""
    sglang = {"name": "sglang", "version": "0.5.4", "gpu_memory_utilization": 0.8}  # its rule leaves 16 groups less
    for engine in ({"name": "vllm", "version": "0.12"}, sglang):
        asked = {
            "name": "large",
            "model": "llama-3.1-405b",
            "deployment": {
                "hardware": "h100-sxm-80gb",
                "tensor_parallel_size": 16,
                "replicas": 2,
                "engine": {**engine, "max_model_len": 4096},
            },
            "workload": {"arrivals": {"process": "poisson", "rate": 1}, **LENGTHS, "num_requests": 50},
        }
        ranks = ["model=deepseek-v3", "deployment.tensor_parallel_size=1", "deployment.data_parallel_size=16"]
        ranks.append("deployment.enable_expert_parallel=true")
        for scenario in (from_mapping(asked), from_mapping(asked, overrides=ranks)):
            result = export(scenario, "lws")

            again = import_manifest(list(result.files.values())).scenario
            assert shapes(again, result) == shapes(scenario, result)


_DEEPEP = [
    ["deployment.all2all_backend=deepep_low_latency"],
    ["deployment.all2all_backend=deepep_high_throughput"],
    ["deployment.all2all_backend=deepep_high_throughput", "deployment.enable_two_batch_overlap=true"],
    ["deployment.all2all_backend=deepep_low_latency", "deployment.enable_two_batch_overlap=false"],
]
_ON_MANY_NODES = [[], ["deployment.num_redundant_experts=32"], ["deployment.all2all_backend=allgather_reducescatter"]]


@pytest.mark.parametrize(
    ("engine", "version", "overrides"),
    [
        *itertools.product(["vllm"], ["0.20.2", "0.11"], _ON_MANY_NODES),
        *itertools.product(["sglang"], ["0.5.10"], _ON_MANY_NODES),
        *itertools.product(["vllm"], ["0.20.2", "0.11"], _DEEPEP),
        *itertools.product(["sglang"], ["0.5.10"], _DEEPEP),
    ],
)
def test_experts_on_many_nodes_come_back(engine: str, version: str, overrides: list[str]) -> None:
    """DeepEP, overlap and copies of experts, asked for or assumed; a line without them is taken at its word."""
    asked = {
        "name": "wide",
        "model": "deepseek-v3",
        "deployment": {
            "hardware": "h200-sxm-141gb",
            "data_parallel_size": 72,
            "enable_expert_parallel": True,
            "engine": {"name": engine, "version": version, "max_model_len": 8192, "gpu_memory_utilization": 0.8},
        },
        "workload": {"arrivals": {"process": "poisson", "rate": 5}, **LENGTHS, "num_requests": 50},
    }
    scenario = from_mapping(asked, overrides=overrides)

    result = export(scenario, engine)

    assert replica(imported(result.line, scenario), result) == replica(scenario, result)
