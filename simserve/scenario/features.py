"""What a deployment asks of its engine that not every version has, and whether the version asked for has it.

The versions stand in the engine profile; knows no mechanism.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from simserve.errors import ScenarioError
from simserve.profiles.engine_options import EngineOptions
from simserve.profiles.engine_profile import FEATURES, FORMAT_FEATURES, EngineProfile, load_engine
from simserve.profiles.hardware import HardwareProfile, load_hardware
from simserve.profiles.model import ModelProfile, load_model
from simserve.scenario.speculative import load_draft

if TYPE_CHECKING:
    from pathlib import Path

    from simserve.scenario.deployment_spec import DeploymentSpec
    from simserve.scenario.schema import Scenario

_SWITCHES = {"enable_chunked_prefill": "chunked_prefill", "enable_prefix_caching": "prefix_caching"}
"""Options of the engine -> the feature that switching them on takes."""
_CHOICES = {("scheduling_policy", "priority"): "priority_scheduling", ("preemption_mode", "swap"): "swap"}
"""Options of the engine and a value -> the feature that it takes."""

_HOST_MEMORY = ("cpu_offload_gb", "n_gpu_layers", "num_gpu")
"""What engines call keeping weights outside the GPU."""


class AskedFeature(NamedTuple):
    """A feature that a deployment uses.

    Attributes:
        name: Of `simserve.profiles.engine_profile.FEATURES`.
        key: Key of the deployment that asks for it.
        value: Its value.
    """

    name: str
    key: str
    value: object


def asked_features(deployment: DeploymentSpec) -> Iterator[AskedFeature]:
    """Yield what a deployment without pools of its own asks of its engine."""
    yield from _of_options(deployment.engine)
    if deployment.engine.kv_offload is not None:
        yield AskedFeature("kv_offload", "engine.kv_offload", None)
    if deployment.engine.kv_tiers:
        yield AskedFeature("kv_offload", "engine.kv_tiers", None)
    if deployment.quantization in FORMAT_FEATURES:
        yield AskedFeature(deployment.quantization, "quantization", deployment.quantization)
    kv_format = f"kv_cache_{deployment.kv_cache_dtype}"
    if kv_format in FEATURES:
        yield AskedFeature(kv_format, "kv_cache_dtype", deployment.kv_cache_dtype)
    if deployment.data_parallel_size > 1:
        yield AskedFeature("data_parallel_attention", "data_parallel_size", deployment.data_parallel_size)
    if deployment.enable_expert_parallel:
        yield AskedFeature("expert_parallel", "enable_expert_parallel", True)
    if deployment.all2all_backend not in ("auto", "allgather_reducescatter"):
        name = "deepep" if deployment.all2all_backend.startswith("deepep") else deployment.all2all_backend
        yield AskedFeature(name, "all2all_backend", deployment.all2all_backend)
    if deployment.num_redundant_experts is not None:
        yield AskedFeature("eplb", "num_redundant_experts", deployment.num_redundant_experts)
    if deployment.enable_two_batch_overlap:
        yield AskedFeature("two_batch_overlap", "enable_two_batch_overlap", True)
    if deployment.pipeline_layer_partition is not None:
        yield AskedFeature("pipeline_layer_partition", "pipeline_layer_partition", deployment.pipeline_layer_partition)
    if deployment.speculative is not None:
        yield AskedFeature(deployment.speculative.method, "speculative.method", deployment.speculative.method)


def _of_options(options: EngineOptions) -> Iterator[AskedFeature]:
    """Yield what options of the engine ask for: each that is called as a feature is asks for it, whatever its value."""
    for key, value in options.overrides().items():
        switched = _SWITCHES.get(key) if value is True else None
        name = key if key in FEATURES else switched or _CHOICES.get((key, str(value)))
        if name is not None:
            yield AskedFeature(name, f"engine.{key}", value)


def lack_of(scenario: Scenario, feature: str) -> str | None:
    """Return in a clause that the scenario's engine has no such feature on its GPU; None: it has.

    Raises:
        InputError: The engine or the GPU has no profile.
    """
    deployment = scenario.deployment
    profile = load_engine(deployment.engine.name, scenario.folder)
    hardware = load_hardware(deployment.hardware, scenario.folder)
    return profile.lack(feature, deployment.engine.version, hardware.name, hardware.compute_capability)


def check_features(deployment: DeploymentSpec, profile: EngineProfile, hardware: HardwareProfile) -> None:
    """Do nothing where the engine's version has all that a deployment asks of it on its GPU.

    Raises:
        ScenarioError: It lacks something; says which versions have it.
    """
    for asked in asked_features(deployment):
        check_feature(deployment, profile, hardware, asked)


def model_lack_of(scenario: Scenario, version: str | None) -> str | None:
    """Return in a clause that a version of the scenario's engine has no code for its model or draft.

    None: it has, or that is not known.

    Raises:
        InputError: The engine or the model has no profile.
    """
    profile = load_engine(scenario.deployment.engine.name, scenario.folder)
    models = _models_of(scenario.deployment, load_model(scenario.model, scenario.folder), scenario.folder)
    return next((lack for each in models if (lack := _model_lack(profile, version, each)) is not None), None)


def _model_lack(profile: EngineProfile, version: str | None, model: ModelProfile) -> str | None:
    if profile.transformers_for(model.architecture, version) is not None:
        return None
    others = profile.lack_of_model(model.architecture, model.moe is not None, version)
    if others is None:
        return None
    return f"{_named(profile, version)} has no code for {model.name} ({model.architecture}; versions with it: {others})"


def _named(profile: EngineProfile, version: str | None) -> str:
    return f"{profile.base or profile.name} {version or profile.versions[-1].version}"


def model_notes(scenario: Scenario) -> list[str]:
    """Return what an answer says first of models that an engine's version has no code of its own for, or may not have.

    Raises:
        InputError: An engine or a model has no profile.
    """
    deployment, notes = scenario.deployment, []
    for spec in deployment.pools or [None]:
        each = deployment if spec is None else deployment.of_pool(spec)
        name = scenario.model if spec is None or spec.model is None else spec.model
        profile = load_engine(each.engine.name, scenario.folder)
        for model in _models_of(each, load_model(name, scenario.folder), scenario.folder):
            notes.append(_model_note(profile, each.engine.version, model))
    return list(dict.fromkeys(note for note in notes if note is not None))


def _model_note(profile: EngineProfile, version: str | None, model: ModelProfile) -> str | None:
    engine, its = _named(profile, version), model.architecture
    others = profile.lack_of_model(its, model.moe is not None, version)
    oldest = profile.transformers_for(its, version)
    if oldest is not None and (others is not None or not profile.lists(its or "")):
        known = f"versions with it: {others or 'none is known'}"
        return (
            f"{engine} has no code of its own for {model.name} ({its}; {known}): it takes that of "
            f"transformers {oldest} or newer, where that is installed; the times are those of the engine's own code"
        )
    if its is not None and profile.unlisted_models is not None and not profile.lists(its):
        return f"whether {engine} has code for {model.name} ({its}) is not checked: {profile.unlisted_models}"
    return None


def _models_of(deployment: DeploymentSpec, model: ModelProfile, folder: Path | None) -> Iterator[ModelProfile]:
    """Yield the models that a deployment without pools of its own loads: the one that answers, and its draft."""
    yield model
    draft = None if deployment.speculative is None else deployment.speculative.draft_model
    if draft is not None:
        yield load_draft(draft, folder)


def check_model(
    deployment: DeploymentSpec, profile: EngineProfile, model: ModelProfile, folder: Path | None = None
) -> None:
    """Do nothing where the engine's version has code for a model and its draft, or where that is not known.

    Raises:
        ScenarioError: It has none; says which versions have it.
    """
    version = deployment.engine.version
    for each in _models_of(deployment, model, folder):
        lack = _model_lack(profile, version, each)
        if lack is not None:
            asked = version or profile.versions[-1].version
            what = "choose another engine" if each is model else "choose another draft_model"
            remedy = f"set deployment.engine.version to one that has it, or {what}"
            raise ScenarioError(f"does not run: {lack}", key="deployment.engine.version", value=asked, remedy=remedy)


def check_feature(
    deployment: DeploymentSpec, profile: EngineProfile, hardware: HardwareProfile, asked: AskedFeature
) -> None:
    """Do nothing where the engine's version has one feature on its GPU.

    Raises:
        ScenarioError: It lacks it; says which versions have it.
    """
    lack = profile.lack(asked.name, deployment.engine.version, hardware.name, hardware.compute_capability)
    if lack is not None:
        others = [key for key in _HOST_MEMORY if profile.feature_range(key, deployment.engine.version) is not None]
        remedy = "leave it out"
        if asked.name in _HOST_MEMORY and others:
            remedy = f"write deployment.engine.{others[0]}"
        elif profile.features.get(asked.name):
            remedy = "set deployment.engine.version to one that has it, or leave it out"
        raise ScenarioError(f"does not run: {lack}", key=f"deployment.{asked.key}", value=asked.value, remedy=remedy)


def feature_notes(scenario: Scenario) -> list[str]:
    """Return what a reader should know of the features that a scenario uses, as they are in its engine's version."""
    deployment, notes = scenario.deployment, []
    for each in [deployment.of_pool(pool) for pool in deployment.pools] or [deployment]:
        profile = load_engine(each.engine.name, scenario.folder)
        ranges = (profile.feature_range(asked.name, each.engine.version) for asked in asked_features(each))
        notes += [found.note for found in ranges if found is not None and found.note]
    return list(dict.fromkeys(notes))
