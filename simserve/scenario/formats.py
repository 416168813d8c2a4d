"""Number formats of a deployment: from ``auto`` to what its checkpoint holds, and which others are available.

Also what others have published about the quality of a format: simserve measures none, and speed does not depend on it.
Knows names of formats and where they come from; their costs are in `simserve.perf.quantization`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import Field

from simserve.errors import InputError, ScenarioError
from simserve.perf.quantization import weight_format
from simserve.perf.shape import ReplicaShape, weights_bytes
from simserve.profiles import catalog
from simserve.profiles.catalog import load_model
from simserve.profiles.checkpoint import WIDE_FORMATS, Checkpoint, KVCacheDtype, Quantization, WeightFormatName
from simserve.profiles.engine_profile import load_engine
from simserve.profiles.hardware import HardwareProfile
from simserve.profiles.kernel_curves import GemmClass
from simserve.profiles.model import ModelProfile
from simserve.profiles.resolved_engine import ResolvedEngine
from simserve.validation import FrozenModel, read_valid

if TYPE_CHECKING:
    from simserve.scenario.schema import Scenario

_EXPERT_CLASSES: Mapping[str, GemmClass] = {"none": "bf16", "bf16": "bf16", "fp16": "bf16", "fp8": "fp8"}
"""Weight format of experts -> its kernels, of which some AMD GPUs have two sets."""

How = Literal["stored", "checkpoint", "quantised on load", "quantised before loading"]

NO_CHECKPOINT: Final = "as asked (no such checkpoint is on record)"
"""Source of weights that are not known to be published, and that the engine does not make."""

COMPRESSED_KV: Final = "fp8"
"""KV format of compressed attention: FP8 with scales, the rotary part in BF16 (vLLM 0.20.2 and 0.33.0 refuse others in
the kernels that they choose by default, deepseek_v4 attention.py; SGLang 0.5.23 deepseek_v4 memory pool)."""
GGUF: Final = "gguf"  # A checkpoint's ``method``: a file of llama.cpp, loaded by engines that run all formats in it.
FILE = "calibration/quality.yaml"
SIZE_FACTOR = 2.5
"""Largest ratio, either way, between a studied model's size and this one: losses halve at least from 7 B to 70 B."""
Kind = Literal["weights", "kv_cache"]
Metric = Literal[
    "wikitext2_perplexity",
    "openllm_v1_average",
    "openllm_v1_recovery",
    "openllm_v2_recovery",
    "arena_hard_recovery",
    "mean_recovery",
    "mean_accuracy",
    "mmlu",
    "gsm8k",
]
_LABELS: Mapping[str, str] = {
    "wikitext2_perplexity": "perplexity (WikiText-2)",
    "openllm_v1_average": "OpenLLM v1",
    "openllm_v1_recovery": "OpenLLM v1",
    "openllm_v2_recovery": "OpenLLM v2",
    "arena_hard_recovery": "Arena-Hard",
    "mean_recovery": "mean of benchmarks",
    "mean_accuracy": "mean of benchmarks",
    "mmlu": "MMLU",
    "gsm8k": "GSM8K",
}
_STAND_INS: Mapping[str, tuple[str, ...]] = {
    "int4": ("int4", "gptq-int4", "awq-int4"),
    "gptq-int4-exllama": ("gptq-int4",),
    "awq-int4-gemm": ("awq-int4",),
}
"""Formats whose studies also apply to another: plain INT4 does not say how the codes were found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AvailableFormat:
    """A weight format that a model can be served in."""

    format: WeightFormatName  # Its name.
    how: How
    """Where its weights come from: the checkpoint that the model's name stands for, another public one, the engine
    while it loads, or a tool of the engine."""
    repository: str | None = None  # Location of the checkpoint that is loaded; None if none is on record.
    engine: str | None = None  # Engine that quantises; None: none does.

    @property
    def label(self) -> str:
        """In words: ``as stored``, ``checkpoint ORG/NAME``, ``quantised on load by vllm``."""
        if self.how == "checkpoint":
            return f"checkpoint {self.repository}" if self.repository else self.how
        return "as stored" if self.how == "stored" else f"{self.how} by {self.engine}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Formats:
    """The number formats of a deployment, and where they come from."""

    weights: str  # Weight format, 16 bit by the dtype's name.
    weights_source: str
    """``as stored``, ``checkpoint ORG/NAME``, ``quantised on load by ENGINE``, ``cast on load by ENGINE`` (16 bit of
    another kind), ``dequantised`` or `NO_CHECKPOINT`."""
    checkpoint: str | None  # Repository of the weights; None if none is on record.
    kv_cache: str  # KV format.
    kv_cache_source: str
    """``16 bit by default``, ``as the checkpoint asks``, ``the engine's default``, ``as asked``, or ``chosen by the
    plan``."""


def formats_line(formats: Mapping[str, Any]) -> str:
    """Return a block ``formats`` in words: ``weights mxfp4, as stored in openai/gpt-oss-120b; KV bf16``."""
    pools = {name: formats_line({**each, "pools": {}}) for name, each in formats["pools"].items()}
    if len(set(pools.values())) > 1:
        return "; ".join(f"{name}: {line}" for name, line in pools.items())
    source, repository = formats["weights_source"], formats["checkpoint"]
    if repository and not source.startswith("checkpoint "):
        source = f"{source} {'in' if source == 'as stored' else 'from'} {repository}"
    kv_source = formats["kv_cache_source"]
    kv = formats["kv_cache"] + ("" if kv_source == "16 bit by default" else f", {kv_source}")
    return f"weights {formats['weights']}, {source}; KV {kv}"


def with_formats(shape: ReplicaShape, weights: Quantization, kv_cache: KVCacheDtype) -> ReplicaShape:
    """Return a replica in the requested formats, ``auto`` resolved.

    Raises:
        ScenarioError: The stored format does not run here (names what does), or the model caches in another one.
    """
    model, engine = shape.model, shape.engine
    if model.compressed_attention is not None and kv_cache not in ("auto", COMPRESSED_KV):
        rule = f"does not run: {model.name} has compressed attention, which is cached in {COMPRESSED_KV} alone"
        raise ScenarioError(rule, key="kv_cache_dtype", value=kv_cache, remedy="leave it out")
    if weights != "auto":
        chosen = replace(shape, model=as_loaded(model, engine), quantization=weights)
        return replace(chosen, kv_cache_dtype=_kv_cache(chosen, kv_cache))
    is_float32 = model.dtype == "fp32" and model.stored.is_wide
    as_stored = "fp16" if is_float32 and engine.casts_float32 else model.stored.format
    stored = replace(shape, model=as_loaded(model, engine), quantization=as_stored)
    try:
        if not loads(engine, model.stored):
            scales = f", one scale a {model.stored.fp8_scales}" if model.stored.format == "fp8" else ""
            made = f"{model.stored.format} by {model.stored.method}{scales}"
            raise ScenarioError(f"{engine.name} {engine.version} does not load ({made})")
        kept = _kv_cache(stored, kv_cache)
    except InputError as failure:
        where = f" in {model.stored.repository}" if model.stored.repository else ""
        why = _lacking_arithmetic(model.stored.format, engine, shape.hardware) or failure.rule
        rule = f"is {model.stored.format}, as {model.name} is stored{where}, which {why}"
        remedy = _remedy(model, engine, shape.hardware)
        raise ScenarioError(rule, key="quantization", value="auto", remedy=remedy) from None
    return replace(stored, kv_cache_dtype=kept)


def _lacking_arithmetic(name: WeightFormatName, engine: ResolvedEngine, hardware: HardwareProfile) -> str | None:
    """Return a clause saying that the engine has the format but the GPU is too old for it; None: not the reason."""
    if not catalog.has("engine", engine.name):
        return None
    found, has = load_engine(engine.name).feature_range(name, engine.version), hardware.compute_capability
    if found is None or found.runs_on(has):
        return None
    return (
        f"{engine.name} {engine.version} runs on GPUs of compute capability {found.capability_at_least:g} or newer, "
        f"and {hardware.name} has {has}"
    )


def loads(engine: ResolvedEngine, checkpoint: Checkpoint) -> bool:
    """Return whether an engine loads checkpoints made by this one's method, whatever the format."""
    if checkpoint.method == GGUF:
        return {*checkpoint.all_formats} <= {*engine.supported_quantizations}
    if checkpoint.method is None or not engine.loaded_methods:
        return True
    return any(each.covers(checkpoint) for each in engine.loaded_methods)


def as_loaded(model: ModelProfile, engine: ResolvedEngine) -> ModelProfile:
    """Return a model without the checkpoints that an engine does not load, except the one that its name stands for.

    The engine's own come before others of their format, unless the weights are not those of the model's name.
    """
    loaded = tuple(each for each in model.checkpoints if loads(engine, each))
    if model.shape_of is None and any(each.engine == engine.name for each in loaded):
        kinds = [each.format for each in model.checkpoints]
        ordered = sorted(loaded, key=lambda each: (kinds.index(each.format), each.engine != engine.name))
        return model.model_copy(update={"checkpoints": tuple(ordered)})
    if len(loaded) == len(model.checkpoints):
        return model
    last = () if model.stored in loaded else (model.stored,)
    return model.model_copy(update={"checkpoints": (*loaded, *last)})


def kv_of_auto(shape: ReplicaShape) -> str:
    """Return the KV format that an engine uses by default for the weights of a replica.

    Raises:
        InputError: The engine does not run the weights, or the GPU has no arithmetic for them.
    """
    return _kv_cache(shape, "auto")


def _kv_cache(shape: ReplicaShape, asked: KVCacheDtype) -> str:
    """Return the KV format that an engine uses for a checkpoint."""
    wide = shape.precision.wide_arithmetic
    _ = shape.precisions
    if shape.model.compressed_attention is not None:
        return COMPRESSED_KV
    if asked != "auto":
        return asked
    if _kv_of_checkpoint(shape) is not None:
        return str(_kv_of_checkpoint(shape))
    if _keeps_sparse_keys_narrow(shape):
        return "fp8"
    return "fp16" if wide == "fp32" else wide


def _kv_of_checkpoint(shape: ReplicaShape) -> str | None:
    """Return the KV format that the weights' checkpoint asks for, if the engine follows it."""
    checkpoint = shape.model.checkpoint(shape.quantization)
    if checkpoint is None or checkpoint.method not in shape.engine.kv_cache_of_methods:
        return None
    return checkpoint.kv_cache


def _keeps_sparse_keys_narrow(shape: ReplicaShape) -> bool:
    since, capability = shape.engine.narrow_sparse_kv_capability, shape.hardware.compute_capability
    if capability is not None and shape.engine.narrow_kv_families.get(shape.model.family) == int(float(capability)):
        return True
    if since is None or capability is None or shape.model.indexer is None or shape.model.mla is None:
        return False
    return float(capability) >= since


def _remedy(model: ModelProfile, engine: ResolvedEngine, hardware: HardwareProfile) -> str:
    """Return what runs instead: a version that has the stored format, another checkpoint, another engine or GPU."""
    later = _later_versions(model.stored.format, engine)
    found = [] if later is None else [f"{engine.name} {later}"]
    others = [each for each in formats_available(model, engine, hardware) if each.how != "stored"]
    others.sort(key=lambda each: weights_bytes(model, each.format))
    found += [f"deployment.quantization={each.format} ({each.label})" for each in others]
    is_gguf = model.stored.format.startswith("gguf")
    found.append("deployment.engine.name=llama.cpp runs it" if is_gguf else "another engine or GPU runs it")
    return "; ".join(found)


def _later_versions(name: WeightFormatName, engine: ResolvedEngine) -> str | None:
    """Return in words which versions of an engine run a format; None if this one does, or none is known to."""
    if name in engine.supported_quantizations or not catalog.has("engine", engine.name):
        return None
    profile = load_engine(engine.name)
    if name in profile.features:
        is_lacking = profile.feature_range(name, engine.version) is None
        return f"has it in versions {profile.versions_with(name)}" if is_lacking else None
    if name in profile.nearest_version(engine.version).kernels.quantizations:
        return None  # The maker's devices lack it, and no other version is known to add it.
    having = [known.version for known in profile.versions if name in known.kernels.quantizations]
    if not having:
        return None
    span = f"from {having[0]} on" if having[-1] == profile.versions[-1].version else f"from {having[0]} to {having[-1]}"
    return f"runs it {span}, on GPUs that have its arithmetic"


def formats_available(
    model: ModelProfile, engine: ResolvedEngine, hardware: HardwareProfile
) -> tuple[AvailableFormat, ...]:
    """Return the weight formats that a model can be served in on a GPU, the stored one first.

    These are the formats of its public checkpoints and, if it is stored in 16 bit, those that the engine makes from it,
    as far as the engine runs them and the GPU has the arithmetic. Weights stored in fewer bits are not rounded again.
    """
    found = dict[WeightFormatName, AvailableFormat]()
    for each in _offers(model, engine):
        found.setdefault(each.format, each)
    shape = ReplicaShape(hardware=hardware, model=as_loaded(model, engine), engine=engine)
    return tuple(each for each in found.values() if _runs(replace(shape, quantization=each.format)))


def _offers(model: ModelProfile, engine: ResolvedEngine) -> Iterator[AvailableFormat]:
    """Yield the weights that an engine can load or make, those of its name first; the first of a format counts."""
    stored = model.stored
    if loads(engine, stored):
        yield AvailableFormat(format=stored.format, how="stored", repository=stored.repository)
    for checkpoint in (each for each in model.checkpoints[1:] if loads(engine, each)):
        yield AvailableFormat(format=checkpoint.format, how="checkpoint", repository=checkpoint.repository)
    if stored.is_wide:
        made: list[tuple[WeightFormatName, How]] = [(name, "quantised on load") for name in engine.quantises_on_load]
        made += [(name, "quantised before loading") for name in engine.quantises_before_loading]
        for name, how in made:
            yield AvailableFormat(format=name, how=how, repository=stored.repository, engine=engine.name)


def _runs(shape: ReplicaShape) -> bool:
    try:
        _ = shape.precisions
    except InputError:
        return False
    return True


def formats_of(shape: ReplicaShape, asked_kv_cache: str) -> Formats:
    """Return the formats of a replica and where they come from.

    Args:
        asked_kv_cache: KV format in the scenario.
    """
    how = available_as(shape)
    kv_source = "16 bit by default"
    if asked_kv_cache != "auto":
        kv_source = "as asked"
    elif shape.model.compressed_attention is not None:
        kv_source = "the one format of compressed attention"
    elif _kv_of_checkpoint(shape) is not None:
        kv_source = "as the checkpoint asks"
    elif _keeps_sparse_keys_narrow(shape):
        kv_source = f"{shape.engine.name}'s default for sparse attention"
    source = NO_CHECKPOINT if how is None else how.label
    if how is None and shape.quantization in WIDE_FORMATS:
        source = f"cast on load by {shape.engine.name}" if shape.model.stored.is_wide else "dequantised"
    return Formats(
        weights=shape.precision.wide_arithmetic if shape.quantization == "none" else shape.quantization,
        weights_source=source,
        checkpoint=None if how is None else how.repository,
        kv_cache=shape.kv_cache_dtype,
        kv_cache_source=kv_source,
    )


def available_as(shape: ReplicaShape) -> AvailableFormat | None:
    """Return how the weights of a replica are available in its format; None if they are not."""
    asked = as_offered(shape.quantization, shape.model)
    offered = next((each for each in _offers(shape.model, shape.engine) if each.format == asked), None)
    if offered is None:
        return None
    loaded = ReplicaShape(hardware=shape.hardware, model=as_loaded(shape.model, shape.engine), engine=shape.engine)
    return offered if _runs(replace(loaded, quantization=offered.format)) else None


def as_offered(asked: str, model: ModelProfile) -> str:
    """Return the name under which a format is listed as available: 16 bit by the model's dtype is ``none``."""
    return "none" if asked == model.dtype else asked


def lacking_weights_notes(shape: ReplicaShape) -> list[str]:
    """Return notes that weights in the format of a replica, or of its draft, are not known to exist, and which do.

    Only for formats of fewer bits: 16 bit can be unpacked from any checkpoint.
    """
    speculation = shape.speculation
    drafts = [] if speculation is None or speculation.is_layer or speculation.draft is None else [speculation.draft]
    asked = [(shape, "deployment.quantization")]
    asked += [(draft, "deployment.speculative.draft_quantization") for draft in drafts]
    notes = [_lacking_weights_note(each, key) for each, key in asked]
    return [note for note in notes if note is not None]


_WIDE_BITS = 16.0  # Bits of weights that are stored as the model's own dtype.
_PUBLISHED = ("stored", "checkpoint")


def _bits(name: str) -> int:
    """Return the whole bits of a weight, without the share of group scales."""
    return math.floor(weight_format(name).bits or _WIDE_BITS)


def _lacking_weights_note(shape: ReplicaShape, key: str) -> str | None:
    if shape.quantization in WIDE_FORMATS or available_as(shape) is not None:
        return None
    there = formats_available(shape.model, shape.engine, shape.hardware)
    asked = _bits(shape.quantization)
    # Of formats with as many bits the published checkpoint.
    nearest = min(there, key=lambda each: (abs(_bits(each.format) - asked), each.how not in _PUBLISHED), default=None)
    named = "" if nearest is None else f"; known: --set {key}={nearest.format} ({nearest.label})"
    return (
        f"{shape.quantization} weights of {shape.model.name} are assumed to exist: no checkpoint of them is known, and "
        f"{shape.engine.name} {shape.engine.version} does not make them{named}"
    )


def with_stored_format(scenario: Scenario) -> Scenario:
    """Return the scenario with the weight format that ``auto`` stands for: the starting point of a search.

    Pools with a model of their own name that model's format.
    """
    from simserve.profiles.catalog import load_model

    deployment = scenario.deployment
    if deployment.quantization != "auto":
        return scenario

    def stored(model: str, key: str) -> WeightFormatName:
        with scenario.blaming(key):
            return load_model(model, scenario.folder).stored.format

    pools = tuple(
        pool.model_copy(update={"quantization": stored(pool.model, f"deployment.pools.{number}.model")})
        if pool.model is not None and pool.quantization is None
        else pool
        for number, pool in enumerate(deployment.pools)
    )
    named = deployment.model_copy(update={"quantization": stored(scenario.model, "model"), "pools": pools})
    return scenario.model_copy(update={"deployment": named})


class QualityFact(FrozenModel):
    """One model in one format compared with the same model in 16 bit."""

    format: str = Field(min_length=1)
    """Weight or KV format, as a scenario names it."""
    model: str = Field(min_length=1)
    """The studied model."""
    model_size_b: float = Field(gt=0)
    """Its number of parameters, billions."""
    baseline: float = Field(gt=0)
    """Score in 16 bit; 100 if only the recovery is published."""
    value: float = Field(gt=0)
    """Score in the format."""


class QualityStudy(FrozenModel):
    """Figures of one source by one metric."""

    source: str = Field(min_length=1)
    """Paper, model card or documentation."""
    cited_as: str = Field(min_length=1)
    """The source in one or two words, for one line of text."""
    metric: Metric
    """Perplexity (lower is better), or a score or recovery in per cent (higher is better)."""
    quantises: Kind = "weights"
    """What is stored in the format."""
    facts: tuple[QualityFact, ...] = Field(min_length=1)
    """The figures."""


class QualityCatalogue(FrozenModel):
    """Every study."""

    studies: tuple[QualityStudy, ...]
    """Studies, in the order they are shown."""


@cache
def load_quality() -> QualityCatalogue:
    """Return the committed studies.

    Raises:
        ProfileError: The file is invalid.
    """
    return read_valid(QualityCatalogue, catalog.bundled_file(FILE))


def quality_of(shape: ReplicaShape) -> list[dict[str, Any]]:
    """Return what is published about the quality cost of the deployment's number formats."""
    return published_quality(shape.quantization, shape.kv_cache_dtype, shape.model.num_parameters / 1e9)


def published_quality(quantization: str, kv_cache_dtype: str, model_size_b: float) -> list[dict[str, Any]]:
    """Return what is published about a deployment's formats for models of about its size; empty if nothing is.

    Each: ``quantises`` (``weights`` or ``kv_cache``), ``format``, ``metric``, ``baseline``, ``value``, ``delta`` (value
    minus baseline, in the metric's unit), ``loss`` (share of the baseline lost, negative for a gain), ``model``,
    ``model_size_b``, ``cited_as`` and ``source``.

    Args:
        model_size_b: Parameters of the model, billions.
    """
    asked: Mapping[Kind, tuple[str, ...]] = {
        "weights": _STAND_INS.get(quantization, (quantization,)),
        "kv_cache": (kv_cache_dtype,),
    }
    return [
        _as_mapping(study, fact)
        for study in load_quality().studies
        for fact in study.facts
        if fact.format in asked[study.quantises] and 1 / SIZE_FACTOR <= fact.model_size_b / model_size_b <= SIZE_FACTOR
    ]


def _as_mapping(study: QualityStudy, fact: QualityFact) -> dict[str, Any]:
    delta = fact.value - fact.baseline
    lost = delta if study.metric.endswith("perplexity") else -delta
    return {
        "quantises": study.quantises,
        "format": fact.format,
        "metric": study.metric,
        "baseline": fact.baseline,
        "value": fact.value,
        "delta": round(delta, 6),
        "loss": round(lost / fact.baseline, 6),
        "model": fact.model,
        "model_size_b": fact.model_size_b,
        "cited_as": study.cited_as,
        "source": study.source,
    }


def quality_lines(facts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return one line for weights and one for the KV cache: the range of the published figures, and its ends.

    No line if nothing is published.
    """
    lines = []
    for kind, name in (("weights", "weights"), ("kv_cache", "KV cache")):
        found = sorted((fact for fact in facts if fact["quantises"] == kind), key=lambda fact: float(fact["loss"]))
        if found:
            formats = "/".join(dict.fromkeys(fact["format"] for fact in found))
            lines.append(f"{formats} {name}: {_range(found)}")
    return lines


def _range(found: Sequence[Mapping[str, Any]]) -> str:
    mildest, worst = found[0], found[-1]
    if len(found) == 1:
        return f"{_change(worst)}, the one published figure of about this size"
    return f"{_change(mildest)} to {_change(worst)}, {len(found)} published figures of about this size"


def _change(fact: Mapping[str, Any]) -> str:
    """Return the change of a score, per cent of the 16-bit one: ``'Arena-Hard -7.0% (llama-3.1-8b, Neural
    Magic)'``."""
    change = 100 * fact["loss"] * (1 if fact["metric"].endswith("perplexity") else -1)
    return f"{_LABELS[fact['metric']]} {change + 0.0:+.1f}% ({fact['model']}, {fact['cited_as']})"


def has_block_scaled_weights(scenario: Scenario) -> bool:
    """Return whether the checkpoint of a scenario has FP8 weights with scales by blocks."""
    model, weights = load_model(scenario.model, scenario.folder), scenario.deployment.quantization
    checkpoint = model.stored if weights == "auto" else model.checkpoint(weights)
    return checkpoint is not None and (checkpoint.format, checkpoint.fp8_scales) == ("fp8", "block")


def _brings_products(scenario: Scenario, hardware: HardwareProfile) -> bool:
    """Return whether AMD's kernels, once on, multiply FP8 by blocks where the engine's own would, which the GPU has."""
    engine = scenario.deployment.engine
    if not has_block_scaled_weights(scenario):
        return False
    kernels = load_engine(engine.name, scenario.folder).nearest_version(engine.version).kernels
    own = kernels.block_scaled_kernels.get(hardware.vendor)
    return own == "triton_own" and any(own in each.engines for each in hardware.gemm_curves.get("fp8_block", ()))


def no_choice_of_experts(scenario: Scenario, hardware: HardwareProfile) -> str:
    """Return why the requested expert kernels change nothing; empty: they change something."""
    model, weights = load_model(scenario.model, scenario.folder), scenario.deployment.quantization
    named = model.stored.format if weights == "auto" else weights
    formats = () if model.moe is None else tuple(model.formats_of("experts", named))
    asked = scenario.deployment.engine.moe_backend
    if asked == "aiter" and _brings_products(scenario, hardware):
        return ""
    if "mxfp4" in formats or ("nvfp4" in formats and asked == "marlin" and hardware.compute.fp4 is not None):
        return ""
    if not formats or hardware.vendor != "AMD":
        return "the model has no experts in MXFP4"
    curves = hardware.grouped_gemm_curves
    chosen = [_EXPERT_CLASSES[each] for each in formats if each in _EXPERT_CLASSES]
    if any(curve.backend == "triton" for name in chosen for curve in curves.get(name, ())):
        return ""
    if not chosen and all("int4" in each for each in formats):
        return "experts in INT4 are Triton's with and without AITER"
    return f"{hardware.name} has one rate for all kernels of experts in this format"
