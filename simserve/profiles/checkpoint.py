"""A published checkpoint of a model: the number format of each of its parts, its weights, the quality of a format.

Knows names of formats and of parts; bits and arithmetic are `simserve.perf.quantization`'s. The cost is in quality, as
others published it: simserve measures none, and speed does not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Literal, get_args

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from simserve.documents import read_mapping
from simserve.errors import ProfileError
from simserve.profiles import catalog
from simserve.validation import FrozenModel, validate

WeightFormatName = Literal[
    "none",
    "fp32",
    "fp16",
    "bf16",
    "fp8",
    "int8",
    "int8-wo",
    "int4",
    "gptq-int4",
    "gptq-int4-exllama",
    "awq-int4",
    "awq-int4-gemm",
    "int3",
    "nf4",
    "gguf-q8_0",
    "gguf-q4_k_m",
    "gguf-q4_0",
    "gguf-q2_k",
    "mxfp4",
    "nvfp4",
]
"""Formats of linear weights; ``none``: the model's own ``dtype``."""
WIDE_FORMATS: tuple[WeightFormatName, ...] = ("none", "fp32", "fp16", "bf16")
"""Formats that round nothing: 16 bit and more."""
Part = Literal["attention", "attention_output", "indexer", "linear_attention", "mlp", "shared_experts", "experts"]
"""Matrices that a checkpoint keeps in one format: what attention projects from the hidden state (with MLA's
up-projections), its output projection, the indexer of sparse attention, linear attention, the MLP of dense layers,
shared experts, routed experts. Embeddings, LM head, norms and routers stay 16-bit in all but GGUF."""
PARTS: tuple[Part, ...] = get_args(Part)
Fp8Scales = Literal["tensor", "channel", "block"]
FILE = "calibration/quality.yaml"
SIZE_FACTOR = 2.5
"""How much larger or smaller the studied model may be: losses fall with size, by half or more from 7 B to 70 B."""
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
"""Formats whose studies speak for another: plain INT4 says nothing of how the codes were found."""


class OtherFormat(FrozenModel):
    """Parts of a checkpoint, or layers of them, that are stored in another format than its name says."""

    parts: tuple[Part | Literal["mtp"], ...] = Field(min_length=1)
    """Which matrices; ``mtp``: the layers for multi-token prediction, as a whole."""
    format: WeightFormatName = "none"
    """What they are stored in."""
    layers: tuple[NonNegativeInt, ...] | None = None
    """Layers, counted from 0, in which they are; absent: all that have such a part."""


class Checkpoint(FrozenModel):
    """One published set of weights."""

    format: WeightFormatName
    """Format of the linear layers; ``none``: the model's ``dtype``."""
    repository: str | None = None
    """Where it is on huggingface.co, as engines take it; null where it is not there."""
    method: str | None = None
    """How its configuration names the way it was made (``quant_method``): fp8, fbgemm_fp8, compressed-tensors,
    modelopt, gptq, awq, mxfp4 ...; null for what was not quantised."""
    other_formats: tuple[OtherFormat, ...] = ()
    """What is stored in another format; later entries win."""
    fp8_scales: Fp8Scales = "tensor"
    """Scales of FP8 weights: one a tensor, one a channel (row of weights), or one for 128 x 128 weights."""
    group_size: PositiveInt | None = None
    """Weights that share a scale in an integer format; null: as is usual in the format."""
    kv_cache: Literal["fp8"] | None = None
    """Format of the KV cache that the checkpoint asks for; whether an engine does so is the engine's."""
    source: str
    """Where this is from."""

    @model_validator(mode="after")
    def _consistent(self) -> Checkpoint:
        if self.group_size is not None and "int" not in self.format:
            raise ValueError(f"group_size goes with integer formats, and format is {self.format}")
        return self

    @property
    def is_wide(self) -> bool:
        """Whether nothing of it is below 16 bit."""
        return self.format in WIDE_FORMATS and all(each.format in WIDE_FORMATS for each in self.other_formats)

    def formats(self, part: Part, layers_with: Callable[[Part], Sequence[int]]) -> dict[WeightFormatName, float]:
        """Return the formats that a part is stored in, each with its share of the layers that have the part.

        Args:
            part: Which matrices.
            layers_with: The layers that have a part, counted from 0; asked only where some are stored otherwise.
        """
        others = [each for each in self.other_formats if part in each.parts]
        if not others:
            return {self.format: 1.0}
        layers = layers_with(part)
        stored: dict[int, WeightFormatName] = dict.fromkeys(layers, self.format)
        for other in others:
            chosen = layers if other.layers is None else set(other.layers) & set(layers)
            stored |= dict.fromkeys(chosen, other.format)
        kinds = dict.fromkeys(stored.values())
        return {kind: sum(each == kind for each in stored.values()) / len(layers) for kind in kinds}

    @property
    def mtp_format(self) -> WeightFormatName:
        """Format of the layers for multi-token prediction."""
        return next((each.format for each in reversed(self.other_formats) if "mtp" in each.parts), self.format)


class TunedWeights(FrozenModel):
    """Weights that were tuned from a model, and their own checkpoints in other formats."""

    weights: str
    """Their repository, in the format that the model's name stands for."""
    checkpoints: tuple[Checkpoint, ...] = Field(min_length=1)
    """The same weights in other formats."""


Quantization = Literal["auto", WeightFormatName]
KVCacheDtype = Literal["auto", "fp16", "bf16", "fp8", "int8", "int4"]


class QualityFact(FrozenModel):
    """One model in one format against the same model in 16 bit."""

    format: str = Field(min_length=1)
    """Weight or KV format, as a scenario names it."""
    model: str = Field(min_length=1)
    """Model that was studied."""
    model_size_b: float = Field(gt=0)
    """Its parameters, billions."""
    baseline: float = Field(gt=0)
    """Score in 16 bit; 100 where only the recovery is published."""
    value: float = Field(gt=0)
    """Score in the format."""


class QualityStudy(FrozenModel):
    """Figures of one source by one metric."""

    source: str = Field(min_length=1)
    """Paper, model card or documentation."""
    cited_as: str = Field(min_length=1)
    """The source in a word or two, for one line of text."""
    metric: Metric
    """Perplexity (lower is better), or a score or recovery in per cent (higher is better)."""
    quantises: Kind = "weights"
    """What is in the format."""
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
    path = catalog.bundled_file(FILE)
    return validate(QualityCatalogue, read_mapping(path, ProfileError), file=path, error=ProfileError)


def published_quality(quantization: str, kv_cache_dtype: str, model_size_b: float) -> list[dict[str, Any]]:
    """Return what is published of a deployment's formats on models of about its size; empty where nothing is.

    Each: ``quantises`` (``weights`` or ``kv_cache``), ``format``, ``metric``, ``baseline``, ``value``, ``delta``
    (value less baseline, in the metric's unit), ``loss`` (share of the baseline lost, negative for a gain), ``model``,
    ``model_size_b``, ``cited_as`` and ``source``.

    Args:
        quantization: Weight format.
        kv_cache_dtype: KV format.
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

    Nothing where nothing is published.
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
    """Return how a score changed, per cent of the 16-bit one: ``'Arena-Hard -7.0% (llama-3.1-8b, Neural Magic)'``."""
    change = 100 * fact["loss"] * (1 if fact["metric"].endswith("perplexity") else -1)
    return f"{_LABELS[fact['metric']]} {change + 0.0:+.1f}% ({fact['model']}, {fact['cited_as']})"
