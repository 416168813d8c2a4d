"""Export: one scenario, one target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from simserve.errors import ScenarioError, UsageError, nearest
from simserve.planner.export.compose import export_compose
from simserve.planner.export.deployment import Deployment, Export, prepare
from simserve.planner.export.dynamo import export_dynamo
from simserve.planner.export.encoders import refuse_encoders
from simserve.planner.export.kserve import export_kserve
from simserve.planner.export.kubernetes import export_kubernetes
from simserve.planner.export.leader_workers import export_leader_workers
from simserve.planner.export.llm_d import export_llm_d
from simserve.planner.export.manifest_schemas import checked_against
from simserve.planner.export.ollama import export_ollama
from simserve.planner.export.production_stack import export_production_stack
from simserve.planner.export.role_servers import export_role_servers
from simserve.planner.export.sglang import export_sglang
from simserve.planner.export.tgi import export_tgi
from simserve.planner.export.trtllm import export_trtllm, export_trtllm_pools
from simserve.planner.export.vllm import export_vllm
from simserve.planner.export.workers import Worker, dns_name, workers_of
from simserve.profiles.engine import load_engine
from simserve.scenario.fit import leading_warnings
from simserve.scenario.formats import formats_line
from simserve.scenario.resolve import check_names, resolve
from simserve.scenario.schema import Scenario

ENGINES = {"vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrt-llm", "tgi": "tgi", "ollama": "ollama"}
"""Target -> engine whose command it is."""
WHOLE: dict[str, Callable[[str, list[Worker]], Export]] = {
    "k8s": export_kubernetes,
    "keda": partial(export_kubernetes, is_keda=True),
    "lws": export_leader_workers,
    "compose": export_compose,
    "dynamo": export_dynamo,
    "llm-d": export_llm_d,
    "kserve": export_kserve,
    "production-stack": export_production_stack,
}
"""Target -> function that exports the whole deployment: all its replicas, pools and their autoscaler."""
TARGETS = (*ENGINES, *WHOLE)
_SHORT = {"kubernetes": "k8s", "docker-compose": "compose", "docker": "compose", "tensorrt-llm": "trtllm"}
"""Other name of a target -> the target."""
_LIKENESS = 0.6  # Below it the choices are listed: half the letters of `helm` are those of `vllm`.
_WITH_ROLES = {"dynamo": ("vllm", "sglang", "trtllm")}
"""Target -> engines whose servers it can start to prefill or decode only, where it is not only vLLM and SGLang."""

_POOLS: dict[str, Callable[[list[Worker]], Export]] = {
    "vllm": export_role_servers,
    "sglang": export_role_servers,
    "trtllm": export_trtllm_pools,
}
"""Target -> function that exports the servers of prefill, decode and encoder pools, and their router."""
_EXPORTERS = {
    "vllm": export_vllm,
    "sglang": export_sglang,
    "trtllm": export_trtllm,
    "tgi": export_tgi,
    "ollama": export_ollama,
}


def export(scenario: Scenario, target: str, *, explicit: bool = False, checkpoint: str | None = None) -> Export:
    """Return what starts one replica of a scenario, or the whole deployment.

    A scenario of another engine is exported for the target's newest known version with the knobs it sets, and a
    note says that this was not simulated.

    Args:
        target: One of `TARGETS`, in any case, or another common name of it.
        explicit: Also set the knobs that equal the engine's defaults.
        checkpoint: Repository or path that the engine loads; None: the model's own.

    Raises:
        UsageError: There is no such target.
        InputError: The scenario is invalid, or cannot be expressed for that engine; with the reason.
        InfeasibleError: It does not fit.
        InvariantError: A manifest has a field that its API does not have.
    """
    target = _SHORT.get(target.lower(), target.lower())
    if target not in TARGETS:
        remedy = nearest(target, TARGETS, likeness=_LIKENESS)
        raise UsageError("is not a target", key="--to", value=target, remedy=remedy)
    with scenario.blaming(""):
        return _export(scenario, target, explicit=explicit, checkpoint=checkpoint)


def _export(scenario: Scenario, target: str, *, explicit: bool, checkpoint: str | None) -> Export:
    refuse_encoders(scenario, target)
    asked, engine = scenario.deployment, ENGINES.get(target, "")
    has_roles, pools = asked.disaggregation is not None or asked.encoder_disaggregation is not None, asked.pools
    if target in WHOLE:
        with_roles = _WITH_ROLES.get(target, ("vllm", "sglang"))
        workers = workers_of(scenario, _command_of, explicit=explicit, checkpoint=checkpoint, with_roles=with_roles)
        deployment = workers[0].deployment
        written = WHOLE[target](dns_name(scenario.name), workers)
        schemas = " and ".join(checked_against(written.files))
        written = replace(written, notes=(*written.notes, f"fields and types checked against {schemas}"))
    elif target in _POOLS and has_roles:
        simulated, note = _under(scenario, engine)
        others = {pool.shape.engine.name for pool in resolve(simulated).pools} - {engine}
        if others:
            rule = f"cannot be exported here: its gateway sends requests to servers of {engine} alone"
            remedy = "leave out deployment.pools.N.engine.name"
            raise ScenarioError(rule, key="deployment.pools", value=", ".join(sorted(others)), remedy=remedy)
        write, export_pools = _EXPORTERS[target], _POOLS[target]
        workers = workers_of(simulated, write, explicit=explicit, checkpoint=checkpoint, with_roles=(target,))
        deployment, written = workers[0].deployment, export_pools(workers)
        written = replace(written, notes=(*note, *written.notes))
    else:
        if pools:
            rule = "cannot be exported as one command: each pool has servers of its own"
            remedy = "use --to k8s, or --set 'deployment.pools=[]' with the keys of one pool"
            value = ", ".join(pool.name for pool in pools)
            raise ScenarioError(rule, key="deployment.pools", value=value, remedy=remedy)
        check_names(scenario)
        simulated, note = _under(scenario, engine)
        deployment = prepare(simulated, explicit=explicit, checkpoint=checkpoint)
        deployment.notes[:0] = note
        written = _EXPORTERS[target](deployment)
    resolved, formats = deployment.resolved, deployment.resolved.formats
    notes = (
        *leading_warnings(resolved if resolved.scenario is scenario else scenario),
        f"simulated with {formats_line(formats)}",
        *written.notes,
    )
    return replace(written, formats=formats, notes=notes, checkpoint=deployment.checkpoint)


def _under(scenario: Scenario, engine: str) -> tuple[Scenario, list[str]]:
    """Return a scenario for an engine with the knobs that it sets, and a note if another was simulated.

    A calibrated profile is the same engine with other step times, which no flag expresses.
    """
    asked = scenario.deployment.engine
    if asked.name == engine:
        return scenario, []
    profile = load_engine(asked.name, scenario.folder)
    is_same = profile.base == engine
    version = (asked.version or profile.newest.version) if is_same else None
    other = asked.model_copy(update={"name": engine, "version": version})
    simulated = f"{asked.name} {asked.version}" if asked.version else asked.name
    note = f"the scenario simulates {simulated}; simulate this one with --set deployment.engine.name={engine}"
    deployment = scenario.deployment.model_copy(update={"engine": other})
    return scenario.model_copy(update={"deployment": deployment}), [] if is_same else [note]


def _command_of(deployment: Deployment) -> Export:
    name = deployment.engine.name
    target = next((target for target, engine in ENGINES.items() if engine == name and target != "ollama"), None)
    if target is None:
        rule = "cannot be exported as a deployment: there is no server image that takes its settings as arguments"
        remedy = "use one of " + ", ".join(engine for engine in ENGINES.values() if engine != "ollama")
        raise ScenarioError(rule, key="deployment.engine.name", value=name, remedy=remedy)
    return _EXPORTERS[target](deployment)
