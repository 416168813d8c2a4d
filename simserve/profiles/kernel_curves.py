"""Fitted curves of the kernels of one GPU: products, attention, collectives. Parameters, source, error and range.

What the parameters mean is said here; the seconds that follow are in `simserve.perf.gemm`,
`simserve.perf.attention_curve` and `simserve.perf.collectives`, the fits in `simserve.calibrate`.
"""

from __future__ import annotations

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
"""Number formats that have kernels of their own: 16 bit (BF16 and FP16), FP8 with a scale a tensor or a token,
FP8 with a scale for 128 x 128 weights, NVFP4, MXFP4 weights with FP8 activations (Blackwell), INT8, and
8-bit, 4-bit and MXFP4 weights with 16-bit arithmetic."""
Share = Annotated[float, Field(gt=0, le=1)]


class CurveFit(FrozenModel):
    """How good a fit is."""

    points: int = Field(ge=1)
    """Rows of the table; a fit sees at most 5,000 of them."""
    median_error: NotNegative
    """Median absolute error over the calls of the table above 10 us, in sample."""
    valid_to: str = Field(min_length=1)
    """Largest sizes in the table."""
    held_out_error: NotNegative | None = None
    """The same median over calls that a fit did not see; none: not asked for."""
    intervals: dict[str, str] = Field(default_factory=dict)
    """95 % intervals of the fitted constants, in words: ``"3.1 us to 3.4 us"``."""


class DecodeAttentionCurve(FrozenModel):
    """One decode step of one layer: start, waves of thread blocks, and bytes or flops of the keys."""

    start: Seconds
    """Time of a call over next to no keys."""
    start_per_width: Seconds
    """Further start for each 128 of head width."""
    context_doubling: Seconds
    """Further start each time the context doubles beyond 128: more splits to combine."""
    wave: Seconds
    """Time of a wave of blocks, one key-value head of one sequence a multiprocessor, after the first."""
    wave_per_width: Seconds
    """Further time of a wave for each 128 of head width and four query heads to a key-value head."""
    overlap: float = Field(ge=1)
    """How waves and keys overlap: the p of ``(waves^p + keys^p)^(1/p)``; 1 adds, large takes the longer."""
    compute: Positive
    """Share of the 16-bit peak that the padded products over the keys reach."""
    extra_width: NotNegative
    """Head width that a key costs beyond its own: softmax, and conversion of 8-bit KV."""
    wide_penalty: float = Field(ge=1)
    """Factor on the products of heads wider than 128; with ``splits: waves`` also on their waves."""
    memory: Annotated[float, Field(gt=0, le=1)]
    """Share of the memory bandwidth that reading keys and values reaches."""
    cache_bandwidth: PositiveBytesPerSecond
    """Bandwidth of keys and values that the L2 cache still holds."""
    splits: Literal["none", "waves", "filling"] = "none"
    """How contexts are cut over thread blocks, where it shows (`simserve.perf.attention_curve`): ``waves`` as
    TensorRT-LLM's XQA kernels do, ``filling`` as its MMHA kernel does; ``none``: too smoothly to see."""
    tail: Annotated[float, Field(ge=0, le=1)] = 0.0
    """``filling``: time of a piece alone over that of a piece in a full wave, which shares the memory."""
    combine: Seconds = 0.0
    """``filling``: further start of contexts that are cut: their pieces are summed."""


class PrefillAttentionCurve(FrozenModel):
    """Attention over prompts of one layer: start, rows, attended pairs, the longest tile, and waves."""

    start: Seconds
    """Time of a call over next to no tokens."""
    compute: Positive
    """Share of the 16-bit peak that the products of attended pairs reach, extra width included."""
    extra_width: NotNegative
    """Head width that a pair costs beyond its own: softmax."""
    query_element: Seconds
    """Time of loading and storing one element of the queries of a token."""
    kv_element: Seconds
    """Time of loading (and caching) one element of the keys of a token."""
    tile_compute: Positive
    """Share of one multiprocessor's peak at which the longest tile runs: what a lone short prompt waits for."""
    wave: Seconds
    """Time of a wave of tiles (128 tokens of a head) after the first."""
    widest_compute: Positive | None = None
    """Share of the 16-bit peak that the pairs of heads wider than 256 reach, which have a kernel of their own
    (FlashAttention-4, Triton, FlashInfer); none: as of the others."""


class AttentionKernel(FrozenModel):
    """The curves of one engine's kernels for one kind of attention and one width of KV elements."""

    engine: CurveEngine
    """Whose kernels."""
    kind: Literal["heads", "latent"]
    """``heads`` (MHA, GQA, MQA) or ``latent`` (MLA)."""
    kv_bits: Literal[16, 8]
    """Bits of a KV element."""
    min_group: int = Field(default=1, ge=1)
    """Fewest query heads to a key-value head that the kernel serves."""
    decode: DecodeAttentionCurve
    """Decode."""
    decode_fit: CurveFit
    """How good it is."""
    prefill: PrefillAttentionCurve
    """Prefill."""
    prefill_fit: CurveFit
    """How good it is."""


class AttentionCurves(FrozenModel):
    """Attention on one GPU."""

    num_multiprocessors: int = Field(ge=1)
    """Streaming multiprocessors."""
    l2_cache: Bytes
    """Capacity of the L2 cache."""
    kernels: tuple[AttentionKernel, ...] = Field(min_length=1)
    """One entry an engine, kind and width; other engines take the first of the kind."""
    source: str = Field(min_length=1)
    """Where the constants come from."""

    def kernel(self, engine: str, kind: str, kv_bits: int, group: float) -> AttentionKernel | None:
        """Return the kernel of an engine, or of the first engine that has one of the kind; none without.

        Args:
            engine: Name of the engine.
            kind: ``heads`` or ``latent``.
            kv_bits: 16 or 8.
            group: Query heads to a key-value head.
        """
        fitting = [each for each in self.kernels if each.kind == kind and each.min_group <= group]
        if not fitting:
            return None
        home = engine if any(each.engine == engine for each in fitting) else fitting[0].engine
        return min(fitting, key=lambda each: (each.engine != home, each.kv_bits != kv_bits, -each.min_group))


class AllReduceCurve(FrozenModel):
    """All-reduce of one engine: the quickest of one-shot, two-shot, ring, and reduction in the switch."""

    engine: CurveEngine | Literal["nccl"]
    """Whose kernels: an engine's own, or those of NCCL."""
    start: Seconds
    """Time of a small all-reduce over two ranks, less one doubling."""
    start_per_doubling: Seconds
    """Further time for each doubling of the ranks."""
    one_shot: Positive
    """Share of the link bandwidth at which every rank reads the messages of all others."""
    two_shot_start_per_doubling: Seconds
    """Further start of reduce-scatter and all-gather in one kernel, for each doubling of the ranks."""
    two_shot: Positive
    """Share of the link bandwidth of that kernel."""
    ring_start: Seconds
    """Further start of NCCL's all-reduce."""
    ring: Positive
    """Share of the link bandwidth of NCCL's ring."""
    switch: Positive | None = None
    """Share of the link bandwidth of reduction in the NVSwitch (NVLS), 8 ranks and more; none without it."""
    skew_kernels: Positive | None = None
    """Kernel latencies that the engine's ranks reach a collective apart, for each doubling of their number; none: as
    `simserve.perf.efficiency.COLLECTIVE_SKEW_KERNELS` has them."""
    fit: CurveFit
    """How good it is."""


class TransferCurve(FrozenModel):
    """Another collective: the quicker of a low-latency and a high-bandwidth protocol."""

    kind: Literal["all_gather", "reduce_scatter", "all_to_all"]
    """Which."""
    start: Seconds
    """Time of a small one over two ranks, less one doubling."""
    start_per_doubling: Seconds
    """Further time for each doubling of the ranks."""
    small: Positive
    """Share of the link bandwidth of the low-latency protocol."""
    large_start: Seconds
    """Further start of the high-bandwidth protocol."""
    large: Positive
    """Share of the link bandwidth of that protocol."""
    fit: CurveFit
    """How good it is."""


class CollectiveCurves(FrozenModel):
    """Collectives between the GPUs of one node."""

    all_reduce: tuple[AllReduceCurve, ...] = Field(min_length=1)
    """One entry an engine; other engines take the first."""
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

    def all_reduce_of(self, engine: str) -> AllReduceCurve:
        """Return the all-reduce of an engine, or the first."""
        return next((each for each in self.all_reduce if each.engine == engine), self.all_reduce[0])

    def transfer_of(self, kind: str) -> TransferCurve | None:
        """Return the curve of another collective; none where it was not fitted."""
        return next((each for each in self.transfers if each.kind == kind), None)


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
    step_latency: Seconds = 0.0
    """Least seconds that a tile takes for 128 columns of the reduction, however few there are."""
    min_tile_rows: PositiveInt = 64
    """Rows of the smallest tile: 64 (CUTLASS; Hopper wgmma m64), or 16 in weight-only kernels (Marlin)."""
    max_tile_rows: PositiveInt = 64
    """Rows of the largest tile; tiles start at the smallest and double with m up to it."""
    narrow_rows: PositiveInt | None = None
    """Rows up to which a call runs kernels with the operands exchanged; absent: it has none."""
    wide_slowdown: float = Field(default=0.0, ge=0)
    """What a call of more rows takes longer while its rows fill no tile, as a share of its memory time."""
    vector_flops: Positive | None = None
    """FLOP/s of kernels that multiply fewer rows than fill a tile one by one (ggml); absent: there are none."""

    @model_validator(mode="after")
    def _falls_with_length(self) -> Self:
        if self.sustained_efficiency > self.efficiency:
            raise ValueError("must have a sustained_efficiency at most as high as its efficiency")
        return self


class GroupedGemmCurve(TileCurve):
    """All routed experts of one layer on one rank: sorting, both GEMMs, activation, weighted sum."""

    backend: Literal["marlin", "triton"] | None = None
    """`moe_backend` that runs these kernels; absent: any that no curve before it in the class names."""
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
    step_latency: Seconds = 0.0
    """Seconds that a call takes longer for 128 columns of each reduction: a tile's steps, which its first waits for."""


class ActivationQuantisation(FrozenModel):
    """The kernel that rounds 16-bit activations to 8 bits with one scale a token."""

    start_latency: Seconds
    """Seconds of a call however small."""
    memory_efficiency: Share
    """Share of the memory bandwidth it reaches."""
    fit: Fit
    """Measurements behind it."""
