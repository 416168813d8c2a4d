"""Fitted curves of the kernels of one GPU: products, attention, collectives. Parameters, source, error and range.

Defines the parameters. The resulting times are in `simserve.perf.gemm`, `simserve.perf.attention_curve` and
`simserve.perf.collectives`, the fits in `simserve.calibrate`.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from simserve.units import Bytes, PositiveBytesPerSecond, Seconds
from simserve.validation import FrozenModel

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
CurveEngine = Literal["vllm", "sglang", "tensorrt-llm"]
GemmClass = Literal[
    "bf16", "fp8", "fp8_block", "nvfp4", "mxfp4", "int8", "int8_weight_only", "int4_weight_only", "mxfp4_weight_only"
]
"""Number formats with kernels of their own: 16 bit (BF16 and FP16), FP8 with one scale per tensor or token, FP8 with
one scale per 128 x 128 weights, NVFP4, MXFP4 weights with FP8 activations (Blackwell), INT8, and 8-bit, 4-bit and MXFP4
weights with 16-bit arithmetic."""
Share = Annotated[float, Field(gt=0, le=1)]


class CurveFit(FrozenModel):
    """Quality of a fit."""

    points: int = Field(ge=1)
    """Rows of the table; a fit sees at most 5,000 of them."""
    median_error: NotNegative
    """Median absolute error over the calls of the table above 10 us, in sample."""
    valid_to: str = Field(min_length=1)
    """Largest sizes in the table."""
    held_out_error: NotNegative | None = None
    """The same median over calls left out of a fit; None: not computed."""
    intervals: dict[str, str] = Field(default_factory=dict)
    """95 % intervals of the fitted constants, in words: ``"3.1 us to 3.4 us"``."""


class DecodeAttentionCurve(FrozenModel):
    """One decode step of one layer: start, waves of thread blocks, and bytes or flops of the keys."""

    start: Seconds
    """Time of a call with almost no keys."""
    start_per_width: Seconds
    """Further start-up per 128 of head width."""
    context_doubling: Seconds
    """Further start-up per doubling of the context beyond 128: more splits to combine."""
    wave: Seconds
    """Time of a wave of blocks after the first, with one key-value head of one sequence per multiprocessor."""
    wave_per_width: Seconds
    """Further time of a wave per 128 of head width and four query heads per key-value head."""
    overlap: float = Field(ge=1)
    """Overlap of waves and keys: the p of ``(waves^p + keys^p)^(1/p)``; 1 adds, a large p takes the longer."""
    compute: Positive
    """Share of the 16-bit peak that the padded products over the keys reach."""
    extra_width: NotNegative
    """Equivalent head width of further work per key: softmax, and conversion of 8-bit KV."""
    wide_penalty: float = Field(ge=1)
    """Factor on the products of heads wider than 128; with ``splits: waves`` also on their waves."""
    memory: Annotated[float, Field(gt=0, le=1)]
    """Share of the memory bandwidth that reading keys and values reaches."""
    cache_bandwidth: PositiveBytesPerSecond
    """Bandwidth of keys and values that are still in the L2 cache."""
    splits: Literal["none", "waves", "filling"] = "none"
    """How contexts are split over thread blocks, if it shows (`simserve.perf.attention_curve`): ``waves`` as in
    TensorRT-LLM's XQA kernels, ``filling`` as in its MMHA kernel; ``none``: too smoothly to see."""
    tail: Annotated[float, Field(ge=0, le=1)] = 0.0
    """``filling``: time of a piece alone relative to one in a full wave, which shares the memory."""
    combine: Seconds = 0.0
    """``filling``: further start-up if contexts are split, as their pieces are summed."""


class PrefillAttentionCurve(FrozenModel):
    """Attention over prompts of one layer: start, rows, attended pairs, the longest tile, and waves."""

    start: Seconds
    """Time of a call with almost no tokens."""
    compute: Positive
    """Share of the 16-bit peak reached by the products of attended pairs, extra width included."""
    extra_width: NotNegative
    """Equivalent head width of further work per pair: softmax."""
    query_element: Seconds
    """Time to load and store one element of a token's queries."""
    kv_element: Seconds
    """Time to load (and cache) one element of a token's keys."""
    tile_compute: Positive
    """Share of one multiprocessor's peak at which the longest tile runs, for which a lone short prompt waits."""
    wave: Seconds
    """Time of a wave of tiles (128 tokens of a head) after the first."""
    wide_compute: Positive | None = None
    """Most of the 16-bit peak that pairs of heads wider than 192 to 256 reach, whose tiles are smaller; absent: as much
    as ``compute`` gives them."""
    widest_compute: Positive | None = None
    """Share of the 16-bit peak for pairs of heads wider than 256, which have their own kernel (FlashAttention-4,
    Triton, FlashInfer); absent: as for other heads."""


class AttentionKernel(FrozenModel):
    """The curves of one engine's kernels for one kind of attention and one width of KV elements."""

    engine: CurveEngine
    """Engine whose kernels these are."""
    kind: Literal["heads", "latent"]
    """``heads`` (MHA, GQA, MQA) or ``latent`` (MLA)."""
    kv_bits: Literal[16, 8]
    """Bits per KV element."""
    min_group: int = Field(default=1, ge=1)
    """Fewest query heads per key-value head for which the kernel is used."""
    decode: DecodeAttentionCurve
    """Curve of decode steps."""
    decode_fit: CurveFit
    """Quality of its fit."""
    prefill: PrefillAttentionCurve
    """Curve of prefill."""
    prefill_fit: CurveFit
    """Quality of its fit."""


class AttentionCurves(FrozenModel):
    """Attention on one GPU."""

    num_multiprocessors: int = Field(ge=1)
    """Streaming multiprocessors."""
    l2_cache: Bytes
    """Capacity of the L2 cache."""
    kernels: tuple[AttentionKernel, ...] = Field(min_length=1)
    """One entry per engine, kind and width; other engines use the first of the kind."""
    source: str = Field(min_length=1)
    """Where the constants come from."""

    def kernel(self, engine: str, kind: str, kv_bits: int, group: float) -> AttentionKernel | None:
        """Return the kernel of an engine, or of the first engine with one of the kind; None if there is none.

        Args:
            kind: ``heads`` or ``latent``.
            kv_bits: 16 or 8.
            group: Query heads per key-value head.
        """
        fitting = [each for each in self.kernels if each.kind == kind and each.min_group <= group]
        if not fitting:
            return None
        home = engine if any(each.engine == engine for each in fitting) else fitting[0].engine
        return min(fitting, key=lambda each: (each.engine != home, each.kv_bits != kv_bits, -each.min_group))


class AllReduceCurve(FrozenModel):
    """All-reduce of one engine: the fastest of one-shot, two-shot, ring, and reduction in the switch."""

    engine: CurveEngine | Literal["nccl"]
    """Whose kernels these are: an engine's own, or NCCL's."""
    start: Seconds
    """Time of a small all-reduce over two ranks, minus one doubling."""
    start_per_doubling: Seconds
    """Further time per doubling of the ranks."""
    one_shot: Positive
    """Share of the link bandwidth at which every rank reads the messages of all others."""
    two_shot_start_per_doubling: Seconds
    """Further start-up of reduce-scatter and all-gather in one kernel, per doubling of the ranks."""
    two_shot: Positive
    """Share of the link bandwidth reached by that kernel."""
    ring_start: Seconds
    """Further start-up of NCCL's all-reduce."""
    ring: Positive
    """Share of the link bandwidth reached by NCCL's ring."""
    switch: Positive | None = None
    """Share of the link bandwidth of reduction in the NVSwitch (NVLS), from 8 ranks; absent: not available."""
    skew_kernels: Positive | None = None
    """Kernel latencies between the arrivals of the engine's ranks at a collective, per doubling of their number;
    absent: `simserve.perf.efficiency.COLLECTIVE_SKEW_KERNELS`."""
    fit: CurveFit
    """Quality of its fit."""


class TransferCurve(FrozenModel):
    """Another collective: the faster of a low-latency and a high-bandwidth protocol."""

    kind: Literal["all_gather", "reduce_scatter", "all_to_all"]
    """Which collective."""
    start: Seconds
    """Time of a small one over two ranks, minus one doubling."""
    start_per_doubling: Seconds
    """Further time per doubling of the ranks."""
    small: Positive
    """Share of the link bandwidth reached by the low-latency protocol."""
    large_start: Seconds
    """Further start-up of the high-bandwidth protocol."""
    large: Positive
    """Share of the link bandwidth reached by that protocol."""
    fit: CurveFit
    """Quality of its fit."""


class CollectiveCurves(FrozenModel):
    """Collectives between the GPUs of one node."""

    all_reduce: tuple[AllReduceCurve, ...] = Field(min_length=1)
    """One entry per engine; other engines use the first."""
    transfers: tuple[TransferCurve, ...] = ()
    """NCCL's other collectives."""
    source: str = Field(min_length=1)
    """Where the constants come from."""

    @model_validator(mode="after")
    def _no_two_of_a_kind(self) -> Self:
        kinds = [each.kind for each in self.transfers]
        if len(set(kinds)) != len(kinds):
            raise ValueError("must have at most one entry a kind")
        return self

    @cached_property
    def without_switch(self) -> Self:
        """The same where NCCL does not reduce in the NVSwitch."""
        rings = tuple(each.model_copy(update={"switch": None}) for each in self.all_reduce)
        return self.model_copy(update={"all_reduce": rings})

    def all_reduce_of(self, engine: str) -> AllReduceCurve:
        """Return the all-reduce of an engine, or the first."""
        return next((each for each in self.all_reduce if each.engine == engine), self.all_reduce[0])

    def transfer_of(self, kind: str) -> TransferCurve | None:
        """Return the curve of another collective; None if it was not fitted."""
        return next((each for each in self.transfers if each.kind == kind), None)


class Fit(FrozenModel):
    """Where the parameters of a curve come from and how far to trust them."""

    source: str = Field(min_length=1)
    """Measurements to which the curve was fitted."""
    num_points: PositiveInt
    """Calls on which it was fitted or tested, whichever ``median_error`` describes."""
    median_error: float = Field(ge=0)
    """Median of the absolute relative error over those calls."""
    range: str = Field(min_length=1)
    """Sizes that the measurements cover; beyond, the curve extrapolates."""
    held_out_error: float | None = Field(default=None, ge=0)
    """The same median over calls left out of a fit; None: not computed."""
    intervals: dict[str, str] = Field(default_factory=dict)
    """95 % intervals of the fitted parameters, in words: ``"3.1 us to 3.4 us"``."""


class TileCurve(FrozenModel):
    """Share of the peaks reached by kernels that split their output into tiles of 64 columns."""

    engines: tuple[str, ...] = ()
    """Engines whose kernels these are; empty: any engine not named by another curve of the class."""
    start_latency: Seconds
    """Least seconds of a call."""
    efficiency: Share
    """Share of the compute peak in the main loop of short calls."""
    loop_overhead: float = Field(ge=0)
    """Time of a tile outside its main loop, in columns of the reduction (k)."""
    overlap: float = Field(ge=1)
    """Exponent p of ``(compute^p + memory^p)^(1/p)``: 1 adds them up, infinity is the hard roofline."""
    memory_efficiency: Share
    """Share of the memory bandwidth reached by a call that streams weights."""
    fit: Fit | None = None
    """Measurements on which it is based; None: class defaults."""


class GemmCurve(TileCurve):
    """A matrix product ``y[m, n] = x[m, k] W[k, n]``."""

    sustained_efficiency: Share
    """Share of the compute peak reached by long calls (10 TFLOP and more): the clock falls under power."""
    wave_quantisation: Share
    """Share of the last, partly filled round of tiles for which a call waits: 1 all of it, near 0 nothing."""
    split_latency: Seconds = 0.0
    """Seconds added by splitting the reduction over more than one SM."""
    max_splits: PositiveInt = 1
    """Most SMs that share one tile's reduction."""
    step_latency: Seconds = 0.0
    """Least seconds of a tile per 128 columns of the reduction, for any number of columns."""
    narrow_memory_efficiency: Share | None = None
    """Share of the bandwidth at which weights pass if there is little to compute, which arithmetic does not add to.

    None: as with many rows."""
    min_tile_rows: PositiveInt = 64
    """Rows of the smallest tile: 64 (CUTLASS; Hopper wgmma m64), or 16 in weight-only kernels (Marlin)."""
    max_tile_rows: PositiveInt = 64
    """Rows of the largest tile; tiles start at the smallest and double with m up to it."""
    narrow_rows: PositiveInt | None = None
    """Rows up to which a call runs kernels with swapped operands; absent: no such kernels."""
    wide_slowdown: float = Field(default=0.0, ge=0)
    """Additional time of a call with more rows that do not fill a tile, as a share of its memory time."""
    skinny_rows: PositiveInt | None = None
    """Rows up to which a call runs kernels that only read the weights (vLLM's wvSplitK); absent: no such kernels."""
    skinny_memory_efficiency: Share | None = None
    """Share of the bandwidth that they reach; absent: as with more rows."""
    vector_flops: Positive | None = None
    """FLOP/s of kernels that multiply fewer rows than fill a tile one by one (ggml); absent: no such kernels."""
    matrix_tile_rows: PositiveInt | None = None
    """Rows of a tile beyond eight, which are multiplied one by one (ggml on Apple's GPUs); absent: as with fewer."""

    @model_validator(mode="after")
    def _falls_with_length(self) -> Self:
        if self.sustained_efficiency > self.efficiency:
            raise ValueError("must have a sustained_efficiency at most as high as its efficiency")
        return self


class GroupedGemmCurve(TileCurve):
    """All routed experts of one layer on one rank: sorting, both GEMMs, activation, weighted sum."""

    backend: Literal["marlin", "triton"] | None = None
    """`moe_backend` that runs these kernels; absent: any not named by an earlier curve of the class."""
    expert_latency: Seconds
    """Seconds added per expert that the rank holds, used or not."""
    routed_passes: float = Field(ge=0)
    """Passes of the expert activations through memory for every routed pair, including other ranks' experts."""
    local_passes: float = Field(ge=0)
    """Further passes for the pairs that this rank computes, quantisation included."""
    tile_rows: PositiveInt = 64
    """Rows of a tile: 64, or 16 in kernels made for few tokens per expert (Marlin)."""
    narrow_tile_rows: PositiveInt | None = None
    """The same in steps of few tokens, for kernels with tiles for them; absent: as `tile_rows`."""
    narrow_tokens: PositiveInt | None = None
    """Most tokens for which those tiles are used."""
    step_latency: Seconds = 0.0
    """Additional seconds of a call per 128 columns of each reduction: a tile's steps, for which its first waits."""


class ActivationQuantisation(FrozenModel):
    """The kernel that rounds 16-bit activations to 8 bits with one scale per token."""

    start_latency: Seconds
    """Least seconds of a call."""
    memory_efficiency: Share
    """Share of the memory bandwidth that it reaches."""
    fit: Fit
    """Measurements on which it is based."""
