"""What is exported, imported again, is the same replica: as a command line, and out of a manifest."""

from __future__ import annotations

import dataclasses
import itertools
import re
import shlex

import pytest
import yaml

from simserve.errors import InfeasibleError, InputError
from simserve.perf.shape import ReplicaShape
from simserve.planner.export.deployment import Export
from simserve.planner.export.export import export
from simserve.planner.importers.sglang_command import import_sglang_command
from simserve.planner.importers.vllm_command import import_vllm_command
from simserve.scenario.bundled import scenario_names
from simserve.scenario.load import from_mapping, load
from simserve.scenario.resolve import resolve
from simserve.scenario.schema import Scenario

SERVED = [
    name
    for name in scenario_names()
    if load(name).deployment.engine.name in ("vllm", "sglang") and not load(name).deployment.pools
]
LENGTHS = {
    "prompt_tokens": {"distribution": "fixed", "value": 100},
    "output_tokens": {"distribution": "fixed", "value": 20},
}
IMPORTS = {"vllm": import_vllm_command, "sglang": import_sglang_command}


def replica(scenario: Scenario, result: Export) -> object:
    """Return what decides how one replica serves, but for knobs that the export says it does not hold."""
    unsaid = re.findall(r"deployment\.engine\.(\w+) (?:is not in|describes)", " ".join(result.notes))
    return plain(resolve(scenario).shape, unsaid)


def plain(shape: ReplicaShape, unsaid: list[str]) -> ReplicaShape:
    """Return a shape without where its knobs are from."""
    own = {"sources": {}, "requested_version": None} | dict.fromkeys(unsaid)
    speculation = shape.speculation
    if speculation is not None and speculation.draft is not None:
        speculation = dataclasses.replace(speculation, draft=plain(speculation.draft, unsaid))
    return dataclasses.replace(shape, engine=shape.engine.model_copy(update=own), speculation=speculation)


def imported(line: str, scenario: Scenario) -> Scenario:
    """Return the scenario of a command line on the same GPU, under the same version and traffic."""
    engine = scenario.deployment.engine
    take = IMPORTS[engine.name]
    found = take(line, hardware=scenario.deployment.hardware, version=engine.version, model=scenario.model).scenario
    return found.model_copy(update={"workload": scenario.workload})


@pytest.mark.parametrize("name", SERVED)
def test_a_command_line_comes_back(name: str) -> None:
    """Of every bundled scenario that can be told to its engine, in few flags and in all."""
    scenario = load(name)
    for explicit in (False, True):
        try:
            result = export(scenario, scenario.deployment.engine.name, explicit=explicit)
        except (InputError, InfeasibleError):
            pytest.skip("cannot be told to its engine")

        assert replica(imported(result.line, scenario), result) == replica(scenario, result)


@pytest.mark.parametrize("name", ["chatbot", "cold-start", "long-context", "hundred-requests-a-second"])
def test_the_container_of_a_manifest_comes_back(name: str) -> None:
    """Its command is the server's, with an address that changes nothing."""
    scenario = load(name)
    result = export(scenario, "k8s")
    assert result.main_file is not None
    manifests = list(yaml.safe_load_all(result.files[result.main_file]))
    (deployment,) = (each for each in manifests if each["kind"] == "Deployment")
    command = deployment["spec"]["template"]["spec"]["containers"][0]["command"]

    again = imported(shlex.join(command), scenario)
    assert replica(again, result) == replica(scenario, result)
    assert deployment["spec"]["replicas"] == scenario.deployment.replicas


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
        *itertools.product(["vllm"], ["0.20.2"], _DEEPEP),
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
            "engine": {"name": engine, "version": version, "max_model_len": 8192},
        },
        "workload": {"arrivals": {"process": "poisson", "rate": 5}, **LENGTHS, "num_requests": 50},
    }
    scenario = from_mapping(asked, overrides=overrides)

    result = export(scenario, engine)

    assert replica(imported(shlex.join(result.command), scenario), result) == replica(scenario, result)
