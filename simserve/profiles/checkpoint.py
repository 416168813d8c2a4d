"""A published set of weights: the number format of each of its parts, and where it is found.

Knows names of number formats, but not their bits (see `simserve.perf.quantization`), and no architecture.
"""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from simserve.profiles.model_blocks import Part
from simserve.validation import FrozenModel

_WideFormatName = Literal["none", "fp32", "fp16", "bf16"]
WeightFormatName = Literal[
    _WideFormatName,
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
    "gguf-q6_k",
    "gguf-q5_k_m",
    "gguf-q4_k_m",
    "gguf-q4_0",
    "gguf-iq4_xs",
    "gguf-q3_k_m",
    "gguf-q2_k",
    "mxfp4",
    "nvfp4",
    "nvfp4-wo",
]
"""Formats of linear weights; ``none``: the model's own ``dtype``."""
WIDE_FORMATS: tuple[WeightFormatName, ...] = get_args(_WideFormatName)  # Formats without rounding: 16 bit and more.
Fp8Scales = Literal["tensor", "channel", "block"]
Quantization = Literal["auto", WeightFormatName]
KVCacheDtype = Literal["auto", "fp16", "bf16", "fp8", "int8", "int4"]


class OtherFormat(FrozenModel):
    """Parts of a checkpoint, or some of their layers, that are stored in another format than the checkpoint's own."""

    parts: tuple[Part | Literal["mtp", "lm_head"], ...] = Field(min_length=1)
    """Which matrices; ``mtp``: all of the layers for multi-token prediction; ``lm_head``: the LM head."""
    format: WeightFormatName = "none"
    """The format in which they are stored."""
    layers: tuple[NonNegativeInt, ...] | None = None
    """Layers, counted from 0, to which this applies; absent: all that have such a part."""


class Checkpoint(FrozenModel):
    """One published set of weights."""

    format: WeightFormatName
    """Format of the linear layers; ``none``: the model's ``dtype``."""
    repository: str | None = None
    """Its repository on huggingface.co, as engines take it; null if it has none."""
    method: str | None = None
    """Name of the quantisation method in its configuration (``quant_method``): fp8, fbgemm_fp8, compressed-tensors,
    modelopt, gptq, awq, mxfp4 ...; ``gguf`` for a file of llama.cpp; null if not quantised."""
    other_formats: tuple[OtherFormat, ...] = ()
    """Parts stored in another format; later entries win."""
    rest_format: WeightFormatName | None = None
    """Format of embeddings, LM head, norms and routers; null: 16 bit unless ``format`` is a GGUF format, and an LM head
    among ``other_formats``."""
    engine: str | None = None
    """Engine that uses it by default for the model's name, before other checkpoints of its format; null: none."""
    fp8_scales: Fp8Scales = "tensor"
    """Scales of FP8 weights: one per tensor, per channel (row of weights), or per block of 128 x 128 weights."""
    group_size: PositiveInt | None = None
    """Weights that share a scale in an integer format; null: as usual for the format."""
    kv_cache: Literal["fp8"] | None = None
    """Format of the KV cache that the checkpoint asks for; each engine decides whether to follow it."""
    source: str
    """Where this comes from."""

    @model_validator(mode="after")
    def _consistent(self) -> Checkpoint:
        if self.group_size is not None and "int" not in self.format:
            raise ValueError(f"group_size goes with integer formats, and format is {self.format}")
        return self

    @property
    def is_wide(self) -> bool:
        """Whether no part of it is below 16 bit."""
        return self.format in WIDE_FORMATS and all(each.format in WIDE_FORMATS for each in self.other_formats)

    @property
    def all_formats(self) -> tuple[WeightFormatName, ...]:
        """Every format in it."""
        rest = () if self.rest_format is None else (self.rest_format,)
        return (self.format, *(each.format for each in self.other_formats), *rest)

    @property
    def mtp_format(self) -> WeightFormatName:
        """Format of the layers for multi-token prediction."""
        return next((each.format for each in reversed(self.other_formats) if "mtp" in each.parts), self.format)


class TunedWeights(FrozenModel):
    """Weights that were fine-tuned from a model, with checkpoints of their own in other formats."""

    weights: str
    """Their repository, in the format that the model's name refers to."""
    checkpoints: tuple[Checkpoint, ...] = Field(min_length=1)
    """The same weights in other formats."""
