"""Number formats that a search may set: what the model can be had in, and what the engine keeps a KV cache in.

Offers nothing that no public checkpoint holds and the engine does not make itself. Simulates nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from simserve.errors import InputError
from simserve.perf.shape import ReplicaShape
from simserve.profiles.engine import ResolvedEngine
from simserve.profiles.hardware import HardwareProfile, load_hardware
from simserve.profiles.model import ModelProfile, load_model
from simserve.scenario.formats import AvailableFormat, formats_available, with_formats
from simserve.scenario.resolve import replica_shape
from simserve.scenario.schema import Scenario

WEIGHTS_KEY = "deployment.quantization"
KV_KEY = "deployment.kv_cache_dtype"
NATIVE_FORMATS = (("fp8", "fp8"), ("int8", "int8"))
"""Weight formats that multiply in 8 bit, each with the arithmetic that a GPU must have for it."""
FOUR_BIT_FORMATS = ("awq-int4", "gptq-int4", "int4", "mxfp4", "nvfp4")
"""4-bit formats of the search: those of published checkpoints."""
FILE_FORMATS = ("gguf-q8_0", "gguf-q4_k_m")
"""Formats of the search for engines whose own tool makes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedFormats:
    """Formats of a deployment that are worth a look.

    Attributes:
        weights: Weight formats, the stored one first where it runs.
        kv_cache: KV formats, ``auto`` first.
        why_no_weights: Why there is no weight format but the stored one; "": there is.
    """

    weights: tuple[AvailableFormat, ...]
    kv_cache: tuple[str, ...]
    why_no_weights: str


def searched_formats(
    scenario: Scenario, model: ModelProfile, engine: ResolvedEngine, hardware: HardwareProfile
) -> SearchedFormats:
    """Return the formats worth a look: as stored, one that multiplies in 8 bit, one of 4 bit; and those of KV.

    Of pools, what all of them can have that take their format from the deployment.

    Args:
        scenario: The scenario on the GPU in question.
        model: Its model.
        engine: Its engine.
        hardware: That GPU.
    """
    there = formats_available(model, engine, hardware)
    for other in _other_hardware(scenario, hardware):
        also = {each.format for each in formats_available(model, engine, other)}
        there = tuple(each for each in there if each.format in also)
    found = _worth_a_look(there, engine, hardware)
    is_alone = all(each.how == "stored" for each in found)
    return SearchedFormats(
        weights=found,
        kv_cache=_kv_formats(found, model, engine, hardware),
        why_no_weights=_why_alone(model, engine, hardware) if is_alone else "",
    )


def formats_of_scenario(scenario: Scenario) -> SearchedFormats:
    """Return the formats worth a look for a deployment as it stands.

    Raises:
        InputError: A profile is missing, or the deployment is none.
    """
    model, hardware = load_model(scenario.model, scenario.folder), scenario.deployment.hardware
    engine = replica_shape(scenario).engine
    return searched_formats(scenario, model, engine, load_hardware(hardware, scenario.folder))


def _other_hardware(scenario: Scenario, hardware: HardwareProfile) -> list[HardwareProfile]:
    """Return the GPUs of pools that take their weight format from the deployment."""
    names = {each.hardware for each in scenario.deployment.pools if each.hardware and each.quantization is None}
    return [load_hardware(name, scenario.folder) for name in sorted(names) if name != hardware.name]


def _worth_a_look(
    there: tuple[AvailableFormat, ...], engine: ResolvedEngine, hardware: HardwareProfile
) -> tuple[AvailableFormat, ...]:
    stored = [each for each in there if each.how == "stored"]
    others = [each for each in there if each.how != "stored"]
    peaks = hardware.supported_dtypes
    # One 8-bit format is enough: FP8 where the GPU has it, as its checkpoints lose least.
    native = [each for name, dtype in NATIVE_FORMATS for each in there if each.format == name and dtype in peaks]
    four_bit = [each for each in others if each.how == "checkpoint" and each.format in FOUR_BIT_FORMATS]
    files = [each for each in others if each.format in FILE_FORMATS and each.format in engine.quantises_before_loading]
    return tuple(dict.fromkeys([*stored, *native[:1], *four_bit[:1], *files]))


def _kv_formats(
    weights: tuple[AvailableFormat, ...], model: ModelProfile, engine: ResolvedEngine, hardware: HardwareProfile
) -> tuple[str, ...]:
    """Return ``auto``, and ``fp8`` where the GPU has it and ``auto`` is not that already in every format."""
    if "fp8" not in hardware.supported_dtypes:
        return ("auto",)
    shape = ReplicaShape(hardware=hardware, model=model, engine=engine)
    kept = {with_formats(shape, each.format, "auto").kv_cache_dtype for each in weights}
    return ("auto",) if kept == {"fp8"} else ("auto", "fp8")


def _why_alone(model: ModelProfile, engine: ResolvedEngine, hardware: HardwareProfile) -> str:
    """Return why nothing but the stored format is there."""
    public = [each.format for each in model.checkpoints[1:] if not each.is_wide]
    stored = "16 bit" if model.stored.is_wide else model.stored.format
    if public:
        return f"{model.name} is stored in {stored}; {engine.name} on {hardware.name} runs none of its others ({', '.join(public)})"
    made = (
        f"{engine.name} makes none in 8 or 4 bit of 16-bit weights"
        if model.stored.is_wide
        else "no engine makes another of weights that are rounded already"
    )
    return f"{model.name} is stored in {stored}, no other checkpoint is on record, and {made}"


def kv_of_auto(scenario: Scenario) -> str | None:
    """Return the KV format that ``auto`` stands for in a deployment; None where it does not run."""
    deployment = scenario.deployment.model_copy(update={"kv_cache_dtype": "auto"})
    try:
        return replica_shape(scenario.model_copy(update={"deployment": deployment})).kv_cache_dtype
    except InputError:
        return None
