"""A published checkpoint of a model: the number format of each of its parts, and where its weights are.

Knows names of formats and of parts; bits and arithmetic are `simserve.perf.quantization`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from simserve.validation import FrozenModel

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

    def formats(self, part: Part, layers: Sequence[int]) -> dict[WeightFormatName, float]:
        """Return the formats that a part is stored in, each with its share of the layers that have the part.

        Args:
            part: Which matrices.
            layers: Layers that have them, counted from 0.
        """
        if not self.other_formats:
            return {self.format: 1.0}
        stored: dict[int, WeightFormatName] = dict.fromkeys(layers, self.format)
        for other in self.other_formats:
            if part in other.parts:
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
