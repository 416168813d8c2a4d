"""What a number format costs in quality, as published: a committed catalogue of studies, and looking a format up.

Knows what others measured. simserve measures no quality, and speed does not depend on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal

from pydantic import Field

from simserve.documents import read_mapping
from simserve.errors import ProfileError
from simserve.profiles import catalog
from simserve.validation import FrozenModel, validate

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
