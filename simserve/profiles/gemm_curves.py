"""Fitted curves of GEMM kernels as a hardware profile states them: parameters, source, error, range.

Knows the parameters and what they mean; the seconds that follow are in `simserve.perf.gemm_curve`.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from simserve.units import Seconds
from simserve.validation import FrozenModel

GemmClass = Literal[
    "bf16", "fp8", "fp8_block", "nvfp4", "mxfp4", "int8", "int8_weight_only", "int4_weight_only", "mxfp4_weight_only"
]
"""Number formats that have kernels of their own: 16 bit (BF16 and FP16), FP8 with a scale a tensor or a token,
FP8 with a scale for 128 x 128 weights, NVFP4, MXFP4 weights with FP8 activations (Blackwell), INT8, and
8-bit, 4-bit and MXFP4 weights with 16-bit arithmetic."""

Share = Annotated[float, Field(gt=0, le=1)]


class Fit(FrozenModel):
    """Where the parameters of a curve come from and how far to trust them."""

    source: str = Field(min_length=1)
    """Measurements that the curve was fitted on."""
    num_points: PositiveInt
    """Calls it was fitted on or tested on, whichever ``median_error`` speaks of."""
    median_error: float = Field(ge=0)
    """Median of the absolute relative error over those calls."""
    range: str = Field(min_length=1)
    """Sizes that the measurements cover; beyond, the curve extrapolates."""
    held_out_error: float | None = Field(default=None, ge=0)
    """The same median over calls that a fit did not see; none: not asked for."""
    intervals: dict[str, str] = Field(default_factory=dict)
    """95 % intervals of the fitted parameters, in words: ``"3.1 us to 3.4 us"``."""


class TileCurve(FrozenModel):
    """Share of the peaks that kernels reach which cut their output into tiles of 64 columns."""

    engines: tuple[str, ...] = ()
    """Engines whose kernels these are; empty: any engine that no other curve of the class names."""
    start_latency: Seconds
    """Seconds of a call however small."""
    efficiency: Share
    """Share of the compute peak in the main loop of short calls."""
    loop_overhead: float = Field(ge=0)
    """Time a tile spends outside its main loop, in columns of the reduction (k)."""
    overlap: float = Field(ge=1)
    """Exponent p of ``(compute^p + memory^p)^(1/p)``: 1 adds them up, infinity is the hard roofline."""
    memory_efficiency: Share
    """Share of the memory bandwidth that a call reaches which streams weights."""
    fit: Fit | None = None
    """Measurements behind it; none: class defaults."""


class GemmCurve(TileCurve):
    """A matrix product ``y[m, n] = x[m, k] W[k, n]``."""

    sustained_efficiency: Share
    """Share of the compute peak that long calls (10 TFLOP and more) settle at: the clock falls under power."""
    wave_quantisation: Share
    """How much of its last, partly filled round of tiles a call waits for: 1 the whole, near 0 nothing."""
    split_latency: Seconds = 0.0
    """Seconds that cutting the reduction over more than one SM adds."""
    max_splits: PositiveInt = 1
    """Most SMs that share one tile's reduction."""
    min_tile_rows: PositiveInt = 64
    """Rows of the smallest tile: 64 (CUTLASS; Hopper wgmma m64), or 16 in weight-only kernels (Marlin)."""
    max_tile_rows: PositiveInt = 64
    """Rows of the largest tile; tiles start at the smallest and double with m up to it."""
    narrow_rows: PositiveInt | None = None
    """Rows up to which a call runs kernels with the operands exchanged; absent: it has none."""
    wide_slowdown: float = Field(default=0.0, ge=0)
    """What a call of more rows takes longer while its rows fill no tile, as a share of its memory time."""

    @model_validator(mode="after")
    def _falls_with_length(self) -> Self:
        if self.sustained_efficiency > self.efficiency:
            raise ValueError("must have a sustained_efficiency at most as high as its efficiency")
        return self


class GroupedGemmCurve(TileCurve):
    """All routed experts of one layer on one rank: sorting, both GEMMs, activation, weighted sum."""

    expert_latency: Seconds
    """Seconds an expert that the rank holds adds, used or not."""
    routed_passes: float = Field(ge=0)
    """Times the expert activations move through memory for every routed pair, also of other ranks' experts."""
    local_passes: float = Field(ge=0)
    """Times they move for the pairs that this rank computes; quantisation included."""
    tile_rows: PositiveInt = 64
    """Rows of a tile: 64, or 16 in kernels made for few tokens an expert (Marlin)."""
    narrow_tile_rows: PositiveInt | None = None
    """The same in steps of few tokens, where kernels have tiles for them; absent: as above."""
    narrow_tokens: PositiveInt | None = None
    """Tokens up to which those tiles are taken."""


class ActivationQuantisation(FrozenModel):
    """The kernel that rounds 16-bit activations to 8 bits with one scale a token."""

    start_latency: Seconds
    """Seconds of a call however small."""
    memory_efficiency: Share
    """Share of the memory bandwidth it reaches."""
    fit: Fit
    """Measurements behind it."""
