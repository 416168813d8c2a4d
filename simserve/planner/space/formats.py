"""Number formats that a search may set: the model's available weight formats, and the engine's KV formats.

Offers only formats that a public checkpoint has or the engine makes itself. Simulates nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from simserve.perf.shape import ReplicaShape
from simserve.profiles.catalog import load_model
from simserve.profiles.checkpoint import WIDE_FORMATS
from simserve.profiles.hardware import load_hardware
from simserve.scenario.formats import AvailableFormat, as_offered, formats_available, kv_of_auto
from simserve.scenario.resolve import engine_of
from simserve.scenario.schema import Scenario

WEIGHTS_KEY = "deployment.quantization"
KV_KEY = "deployment.kv_cache_dtype"
EIGHT_BIT_FORMATS = ("fp8", "int8")
"""8-bit formats of the search, each named after the arithmetic that a GPU should have for it."""
FAST_INT8_CAPABILITY = (8.0, 9.0)
"""CUDA compute capabilities, from and below, of GPUs that gain from INT8 although they have FP8 or a kernel that
unpacks it: Ampere and Ada (NVIDIA data sheets of the A100 and L40S: INT8 as fast as FP8 or twice 16 bit)."""
FOUR_BIT_FORMATS = ("awq-int4", "gptq-int4", "int4", "mxfp4", "nvfp4", "nvfp4-wo")
"""4-bit formats of the search, whose weights are unpacked: those of published checkpoints."""
FOUR_BIT_ARITHMETIC = ("nvfp4", "mxfp4")  # 4-bit formats that are also tried on GPUs that multiply in 4 bit.
FILE_FORMATS = ("gguf-q8_0", "gguf-q4_k_m")  # Formats of the search for engines that have a tool to make them.


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedFormats:
    """Formats of a deployment that are worth trying."""

    weights: tuple[AvailableFormat, ...]  # Weight formats, the stored one first if it runs.
    kv_cache: tuple[str, ...]  # KV formats, ``auto`` first.
    why_no_weights: str  # Why there is no weight format but the stored one; "" if there is one.
    why_not_own: str = ""  # Why the deployment's own format is left out; "" if it is not, or there is no other.


def searched_formats(scenario: Scenario) -> SearchedFormats:
    """Return the formats worth trying: as stored, one that multiplies in 8 bit, one of 4 bit; and KV formats.

    With pools, those that suit all pools that take their weight format from the deployment; none if each has its own.

    Raises:
        InputError: A profile is missing, or the engine does not support the GPU.
    """
    parts = list(_parts(scenario))
    if not parts:
        return SearchedFormats(weights=(), kv_cache=("auto",), why_no_weights="every pool has a format of its own")
    there = formats_available(parts[0].model, parts[0].engine, parts[0].hardware)
    for part in parts[1:]:
        also = {each.format for each in formats_available(part.model, part.engine, part.hardware)}
        there = tuple(each for each in there if each.format in also)
    found = _worth_a_look(there, parts)
    is_alone = all(each.how == "stored" for each in found)
    return SearchedFormats(
        weights=found,
        kv_cache=_kv_formats(found, parts),
        why_no_weights=_why_alone(parts[0]) if is_alone else "",
        why_not_own=_why_not_own(scenario.deployment.quantization, there, parts) if found else "",
    )


def _why_not_own(own: str, there: Sequence[AvailableFormat], parts: Sequence[ReplicaShape]) -> str:
    """Return why a search leaves out the format that a deployment names: no weights in it are known."""
    offered = {each.format for each in there}
    lacking = next((part for part in parts if as_offered(own, part.model) not in offered), None)
    if own == "auto" or lacking is None or (own in WIDE_FORMATS and lacking.model.stored.is_wide):
        return ""
    model, engine = lacking.model.name, lacking.engine
    return (
        f"not {own}, which the scenario names: no such checkpoint of {model} is known, and {engine.name} "
        f"{engine.version} does not make it (--keep weights plans with it nevertheless)"
    )


def _parts(scenario: Scenario) -> Iterator[ReplicaShape]:
    """Yield a replica of each part of a deployment that takes its weight format from it, without a format."""
    deployment = scenario.deployment
    pools = [pool for pool in deployment.pools if pool.quantization is None]
    named = [(deployment.of_pool(pool), pool.model or scenario.model) for pool in pools]
    for part, model in named or ([] if deployment.pools else [(deployment, scenario.model)]):
        plain = part.model_copy(update={"quantization": "auto", "kv_cache_dtype": "auto", "pools": ()})
        there = scenario.model_copy(update={"deployment": plain, "model": model})
        yield ReplicaShape(
            hardware=load_hardware(plain.hardware, scenario.folder),
            model=load_model(model, scenario.folder),
            engine=engine_of(there),
        )


def _worth_a_look(there: Sequence[AvailableFormat], parts: Sequence[ReplicaShape]) -> tuple[AvailableFormat, ...]:
    """Return the stored format, those of 8 bit, one of each kind of 4 bit, and files: no two that cost the same."""
    stored = [each for each in there if each.how == "stored"]
    others = [each for each in there if each.how != "stored"]
    eight_bit = {each.format: each for each in others if each.format in EIGHT_BIT_FORMATS}
    if "int8" in eight_bit and not _gains_by_int8(parts, has_fp8="fp8" in eight_bit):
        del eight_bit["int8"]
    if "int8" in eight_bit and not _multiplies("fp8", parts):
        # The same bytes, and arithmetic that FP8 weights do not have here.
        eight_bit.pop("fp8", None)
    checkpoints = [each for each in others if each.how == "checkpoint"]
    four_bit = [each for each in checkpoints if each.format in FOUR_BIT_FORMATS][:1]
    if _multiplies("fp4", parts):
        four_bit += [each for each in checkpoints if each.format in FOUR_BIT_ARITHMETIC]
    made = parts[0].engine.quantises_before_loading
    files = [each for each in others if each.format in FILE_FORMATS and each.format in made]
    ordered = [eight_bit[name] for name in EIGHT_BIT_FORMATS if name in eight_bit]
    return tuple(dict.fromkeys([*stored, *ordered, *four_bit, *files]))


def _multiplies(dtype: str, parts: Sequence[ReplicaShape]) -> bool:
    return all(dtype in part.hardware.supported_dtypes for part in parts)


def _gains_by_int8(parts: Sequence[ReplicaShape], *, has_fp8: bool) -> bool:
    """Return whether INT8 may be faster than the alternatives: on Ampere and Ada, or without FP8 arithmetic."""
    if not _multiplies("int8", parts):
        return False
    low, high = FAST_INT8_CAPABILITY
    capabilities = [float(part.hardware.compute_capability or 0.0) for part in parts]
    return not (has_fp8 and _multiplies("fp8", parts)) or all(low <= each < high for each in capabilities)


def _kv_formats(weights: Sequence[AvailableFormat], parts: Sequence[ReplicaShape]) -> tuple[str, ...]:
    """Return ``auto``, and ``fp8`` if the GPUs have it and ``auto`` is not already FP8 in every format."""
    if any("fp8" not in part.hardware.supported_dtypes for part in parts):
        return ("auto",)
    kept = {kv_of_auto(replace(part, quantization=each.format)) for part in parts for each in weights}
    return ("auto",) if kept == {"fp8"} else ("auto", "fp8")


def _why_alone(part: ReplicaShape) -> str:
    """Return why there is only the stored format."""
    model, engine = part.model, part.engine.name
    stored = "16 bit" if model.stored.is_wide else model.stored.format
    lower = [each.format for each in model.checkpoints if not each.is_wide]
    public = [each for each in lower if each != model.stored.format]
    if public:
        which = f"{engine} on {part.hardware.name} runs none of its other checkpoints ({', '.join(public)})"
    else:
        which = "no checkpoint of another low-bit format is on record"
    if model.stored.is_wide:
        return f"{model.name} is stored in {stored}, {which}, and {engine} makes no other that this GPU multiplies in"
    return f"{model.name} is stored in {stored}, and {which}"
