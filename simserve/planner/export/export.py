"""Export: one scenario, one target."""

from __future__ import annotations

from simserve.errors import UsageError, nearest
from simserve.planner.export.deployment import Deployment, Export, prepare
from simserve.planner.export.vllm import export_vllm
from simserve.scenario.schema import Scenario

ENGINES = {"vllm": "vllm"}
"""Target -> engine whose command it is."""
TARGETS = tuple(ENGINES)

_EXPORTERS = {"vllm": export_vllm}


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
    deployment = _prepared(scenario, ENGINES[target], explicit=explicit, checkpoint=checkpoint)
    return _EXPORTERS[target](deployment)


def _prepared(scenario: Scenario, engine: str, *, explicit: bool, checkpoint: str | None) -> Deployment:
    asked = scenario.deployment.engine
    if asked.name == engine:
        return prepare(scenario, explicit=explicit, checkpoint=checkpoint)
    other = asked.model_copy(update={"name": engine, "version": None})
    deployment = scenario.deployment.model_copy(update={"engine": other})
    prepared = prepare(scenario.model_copy(update={"deployment": deployment}), explicit=explicit, checkpoint=checkpoint)
    simulated = f"{asked.name} {asked.version}" if asked.version else asked.name
    prepared.notes.insert(
        0, f"the scenario simulates {simulated}; simulate this one with --set deployment.engine.name={engine}"
    )
    return prepared
