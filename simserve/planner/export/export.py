"""Export: one scenario, one target."""

from __future__ import annotations

from dataclasses import replace

from simserve.errors import ScenarioError, UsageError, nearest
from simserve.planner.export.deployment import Deployment, Export, prepare
from simserve.planner.export.kubernetes import export_kubernetes
from simserve.planner.export.ollama import export_ollama
from simserve.planner.export.sglang import export_sglang
from simserve.planner.export.tgi import export_tgi
from simserve.planner.export.trtllm import export_trtllm
from simserve.planner.export.vllm import export_vllm
from simserve.profiles.engine import load_engine
from simserve.scenario.fit import leading_warnings
from simserve.scenario.formats import formats_line
from simserve.scenario.schema import Scenario

ENGINES = {"vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrt-llm", "tgi": "tgi", "ollama": "ollama"}
"""Target -> engine whose command it is."""
KUBERNETES = "k8s"
TARGETS = (*ENGINES, KUBERNETES)

_EXPORTERS = {
    "vllm": export_vllm,
    "sglang": export_sglang,
    "trtllm": export_trtllm,
    "tgi": export_tgi,
    "ollama": export_ollama,
}


def export(scenario: Scenario, target: str, *, explicit: bool = False, checkpoint: str | None = None) -> Export:
    """Return what starts one replica of a scenario.

    A scenario of another engine is written for the target's newest known version with the knobs it sets, and a
    note says that it was not simulated so.

    Args:
        scenario: What was simulated.
        target: One of `TARGETS`.
        explicit: Say the knobs too that equal the engine's defaults.
        checkpoint: Repository or path that the engine loads; None: the model's own.

    Raises:
        UsageError: There is no such target.
        InputError: The scenario is invalid, or cannot be said to that engine; with the reason.
        InfeasibleError: It does not fit.
    """
    if target not in TARGETS:
        raise UsageError("is not a target", key="--to", value=target, remedy=nearest(target, TARGETS))
    if target == KUBERNETES:
        deployment = prepare(scenario, explicit=explicit, checkpoint=checkpoint)
        written = export_kubernetes(deployment, _EXPORTERS[_engine_target(deployment)](deployment))
    else:
        deployment = _prepared(scenario, ENGINES[target], explicit=explicit, checkpoint=checkpoint)
        written = _EXPORTERS[target](deployment)
    formats = deployment.resolved.formats
    notes = (*leading_warnings(scenario), f"simulated with {formats_line(formats)}", *written.notes)
    return replace(written, formats=formats, notes=notes)


def _prepared(scenario: Scenario, engine: str, *, explicit: bool, checkpoint: str | None) -> Deployment:
    asked = scenario.deployment.engine
    if asked.name == engine:
        return prepare(scenario, explicit=explicit, checkpoint=checkpoint)
    profile = load_engine(asked.name, scenario.folder)
    version = (asked.version or profile.versions[-1].version) if profile.base == engine else None
    other = asked.model_copy(update={"name": engine, "version": version})
    deployment = scenario.deployment.model_copy(update={"engine": other})
    prepared = prepare(scenario.model_copy(update={"deployment": deployment}), explicit=explicit, checkpoint=checkpoint)
    if profile.base == engine:  # calibrated: the same engine with other seconds, which no flag says
        return prepared
    simulated = f"{asked.name} {asked.version}" if asked.version else asked.name
    prepared.notes.insert(
        0, f"the scenario simulates {simulated}; simulate this one with --set deployment.engine.name={engine}"
    )
    return prepared


def _engine_target(deployment: Deployment) -> str:
    """Return the target whose command a deployment's engine is started with."""
    name = deployment.engine.name
    target = next((target for target, engine in ENGINES.items() if engine == name and target != "ollama"), None)
    if target is None:
        raise ScenarioError(
            "cannot be exported to Kubernetes: there is no server image that takes its settings as arguments",
            key="deployment.engine.name",
            value=name,
            remedy="use one of " + ", ".join(engine for engine in ENGINES.values() if engine != "ollama"),
        )
    return target
