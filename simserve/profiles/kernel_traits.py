"""Kernels: how efficient an engine's kernels are and what they can do, release by release.

Knows neither a GPU's rates nor the time of a kernel: those are hardware profiles and `perf`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from simserve.profiles.checkpoint import WeightFormatName
from simserve.profiles.engine_options import MoeBackend
from simserve.profiles.kernel_curves import GemmClass
from simserve.units import Bytes, BytesPerSecond, FlopsPerSecond, Seconds
from simserve.validation import FrozenModel


class KernelTraits(FrozenModel):
    """Efficiency and features of the engine's kernels."""

    compute_efficiency: float = Field(gt=0, le=1.5)
    """Factor on the hardware profile's kernel efficiencies; 1: unchanged."""
    memory_share: float = Field(default=1.0, gt=0, le=2)
    """Factor on the bandwidths after `compute_efficiency`; above 1 where only arithmetic is less efficient."""
    has_paged_attention_kernel: bool = False
    """Whether vLLM's PagedAttention, in which each query head reads its own keys, decodes where FlashAttention-2 does
    not run (before Ampere)."""
    attends_windows: bool = True
    """Whether layers with a long sliding window attend only to the window; otherwise to everything that they keep."""
    has_marlin: bool = True
    """Whether kernels that unpack weights pad to Marlin's small tiles; otherwise to those of plain products."""
    marlin_formats: tuple[str, ...] = ()
    """Weight formats whose products run on Marlin, of known speed; others are assumed a share of plain ones."""
    machete_formats: tuple[str, ...] = ()
    """Formats that on Hopper run on Machete, a kernel for Hopper alone, instead."""
    has_weight_only_floats: bool = True
    """Whether FP8 and NVFP4 weights run in 16 bit on a GPU without arithmetic for them."""
    padded_expert_formats: tuple[str, ...] = ()
    """Weight formats whose experts are padded to Marlin's tiles."""
    pads_experts: bool = True
    """Whether experts in MXFP4 are padded in memory to the tiles of the kernels that multiply them."""
    triton_expert_capabilities: tuple[float, float] | None = None
    """CUDA compute capabilities [from, before) on which those kernels are Triton's, elsewhere Marlin's; absent: all."""
    triton_expert_families: tuple[str, ...] = ()
    """Model families whose experts run on Triton there, others on Marlin; empty: all."""
    shared_decode_groups: tuple[int, ...] | None = None
    """Query heads per key-value head for which decode reads keys once for the whole group; absent: any number."""
    mixed_decode_tile: int = Field(default=0, ge=0)
    """Rows of queries that a decode fills in a step that also prefills, under FlashAttention-2; 0: only its own."""
    disable_cascade_attn: bool = True
    """Whether decodes read a prefix that all requests share once for each (vLLM, from 0.18 on and before 0.8)."""
    chunks_mixed_decodes: bool = False
    """Whether decodes of a gated delta rule use the kernel of prompts in a step that also prefills, one chunk each."""
    skips_padding_families: tuple[str, ...] = ()
    """Model families whose router leaves out the rows that pad a decode step to its CUDA graph, where the second model
    runner marks them: they choose no experts. Others choose as any token does."""
    has_flash_kda: bool = False
    """Whether prompts of Kimi Delta Attention with a bounded decay run on FlashKDA where the GPU supports it."""
    all_reduce: Literal["nccl"] | None = None
    """Which all-reduce ranks call: NCCL's; absent: the engine's own, which is faster for short messages."""
    all_reduce_host_from: Bytes | None = Field(default=None, gt=0)
    """Least message whose all-reduce over more than two ranks also crosses the host link once, bytes; absent: none."""
    aligns_all_reduce: bool = False
    """Whether the engine's own all-reduce refuses sums of squares of an odd number of tokens, for norms over the heads
    of all ranks: 8 bytes a token, where it takes multiples of 16. NCCL adds them up."""
    enable_nccl_nvls: bool = True
    """Whether NCCL may reduce in the NVSwitch (NVLS, NCCL's default); otherwise it reduces in a ring."""
    fuses_all_reduce_norm: bool = False
    """Whether a small all-reduce and the norm after it are one kernel (Hopper and Blackwell)."""
    all_reduce_norm_families: tuple[str, ...] = ()
    """Model families whose layers have that kernel; absent: all."""
    fuses_activation_quantisation: bool = False
    """Whether norms and activation functions write the inputs of 8-bit products themselves, where weights have one
    scale per tensor or channel; otherwise a separate kernel does."""
    all_reduce_rounds_families: tuple[str, ...] = ()
    """Model families whose all-reduces include norm and rounding for such products, at hidden sizes above 4,096."""
    block_scaled_kernels: Mapping[str, str] = Field(default_factory=dict)
    """Maker of the GPU -> whose such products run, as the curves of a GPU name them; absent: the engine's own. Its own
    by Triton (``triton_own``) give way to AITER's where that is switched on."""
    block_scaled_tuned: tuple[tuple[int, int], ...] = ()
    """Columns and reduction of the matrices, on one rank, for which Triton's such products have tiles of their own."""
    wide_kernels: Mapping[str, str] = Field(default_factory=dict)
    """Maker of the GPU -> whose products of 16-bit weights run where a GPU has a curve of that name; absent: the
    engine's own."""
    narrow_kernels: Mapping[str, str] = Field(default_factory=dict)
    """The same of FP8 weights with one scale per tensor or channel. AMD's: AITER's run where that is switched on."""
    fp4_kernels: str = ""
    """Whose products of NVFP4 weights run where a GPU has a curve of that name; empty: the engine's own."""
    expert_kernels: Mapping[GemmClass, str] = Field(default_factory=dict)
    """Number format -> whose kernels run experts where a GPU has a curve of that name; absent: the engine's own."""
    own_experts: Mapping[GemmClass, tuple[str, ...]] = Field(default_factory=dict)
    """Number format -> model families whose experts run on the engine's own kernels all the same."""
    cutlass_experts: Mapping[GemmClass, tuple[str, ...]] = Field(default_factory=dict)
    """Number format -> model families whose experts run on FlashInfer's CUTLASS kernels on Blackwell's server GPUs."""
    wide_mxfp4_since: float | None = None
    """CUDA compute capability from which MXFP4 weights meet inputs in 16 bit (Marlin's kernels) on GPUs that have
    arithmetic in 4 bit; absent: their inputs are in 8 bit there."""
    narrow_mxfp4_families: tuple[str, ...] = ()
    """Model families whose inputs are in 8 bit there all the same."""
    wide_nvfp4_families: tuple[str, ...] = ()
    """Model families whose experts in NVFP4 run on Marlin, beside inputs in 16 bit, on workstations' Blackwell
    (`simserve.profiles.resolved_engine.NVFP4_ON_MARLIN_SINCE`), as no kernel in 4 bit has their activation function."""
    default_tiles: Mapping[GemmClass, str] = Field(default_factory=dict)
    """Number format -> whose fitted kernels are this engine's with default tiles, on the GPUs of `tuned_experts`."""
    tuned_experts: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)
    """GPU -> shapes of experts with tuned tiles there, as experts x columns of one on a rank; absent: all have."""
    block_scaled_speed: float = Field(default=1.0, gt=0, le=1)
    """Share of the fitted FLOP/s that products with FP8 block scales reach: kernels older than DeepGEMM."""
    block_scaled_bandwidth: float = Field(default=1.0, gt=0, le=1)
    """Share of the fitted bandwidth at which they read weights."""
    block_scaled_gap: Seconds = Field(default=0, ge=0)
    """Additional start-up time of one of them, seconds."""
    block_scaled_gap_since: float = 0.0
    """CUDA compute capability from which `block_scaled_gap` and `block_scaled_step` apply."""
    block_scaled_step: Seconds = Field(default=0, ge=0)
    """Least time of a tile of one of them per 128 columns of the reduction, seconds."""
    block_scaled_steps: Mapping[str, PositiveFloat] = Field(default_factory=dict)
    """CUDA compute capability -> that time where kernels have tiles of 64 rows and more that nobody tuned for the GPU
    (Triton's defaults, CUTLASS's first ones), seconds; absent: `block_scaled_step`."""
    block_scaled_columns: Mapping[str, PositiveInt] = Field(default_factory=dict)
    """CUDA compute capability -> the number that divides the columns of weights which the fitted kernels take. The four
    above then count there for other weights alone, whose inputs are first copied to padded rows, and on no other GPU;
    absent: they count for every weight, and nothing is padded."""
    narrow_kv_slowdown: float = Field(default=1.0, ge=1)
    """Factor on the time of a decode step per key of an 8-bit KV cache; the fitted kernels are newer."""
    linear_state_element_seconds: Annotated[Seconds, Field(ge=0)] | None = None
    """Arithmetic of a decode step per element of a state of linear attention, seconds; absent: as fitted."""
    expert_speed: Mapping[str, PositiveFloat] = Field(default_factory=dict)
    """Weight format -> speed of experts relative to the fitted kernels: older kernels, or an own build of them."""
    kernel_starts: Mapping[str, PositiveFloat] = Field(default_factory=dict)
    """Maker of the GPU -> factor on the start-up time of kernels that its profile states."""
    shown_start: float = Field(default=1.0, gt=0, le=1)
    """Share of its start-up that shows: with programmatic dependent launch a kernel starts before the last one ends."""
    shown_start_since: float = 0.0
    """CUDA compute capability from which `shown_start` applies."""
    attention_backends: Mapping[str, str] = Field(default_factory=dict)
    """Maker of the GPU -> default of `deployment.engine.attention_backend`."""
    serial_decode_keys: Mapping[str, Seconds] = Field(default_factory=dict)
    """Maker of the GPU -> least time per key of a decoding sequence in one layer, seconds, where a head's keys are read
    one after another; on AMD's with heads of 256 in models with recurrent layers, if no `attention_backend` is set."""
    expert_backends: Mapping[str, MoeBackend] = Field(default_factory=lambda: dict[str, MoeBackend](AMD="aiter"))
    """Maker of the GPU -> `deployment.engine.moe_backend` if neither that nor AMD's attention is set."""
    has_flydsl_indexer: bool = False
    """Whether FlyDSL's kernel scores the indexer's keys of prompts on AMD's GPUs that state its pace."""
    sends_partial_outputs: bool = False
    """Whether ranks that divide contexts send outputs and log-sum-exps of attention together, in one all-to-all."""
    latent_attention_gap: Seconds = Field(default=0, ge=0)
    """Additional time of latent attention (MLA) per layer, seconds; the fitted kernels are newer."""
    latent_decode_flops: Mapping[str, FlopsPerSecond] = Field(default_factory=dict)
    """Maker of the GPU -> FLOP/s beyond which decodes of latent attention gain nothing; absent: as fitted."""
    joins_latent_inputs: bool = True
    """Whether one product computes the latent form of queries and of keys and values, which read the same input."""
    joins_index_inputs: bool = False
    """Whether the product of heads also computes queries and keys of an indexer that is divided as they are, if their
    formats agree, and one kernel then norms, turns and stores all of them."""
    fp32_router_rows: int = Field(default=0, ge=0)
    """Most tokens whose router in FP32 a kernel of its own multiplies on Hopper and data-centre Blackwell; 0: none."""
    latent_launch: Seconds = Field(default=0, ge=0)
    """Host time to launch a layer with latent attention in a step that no CUDA graph covers, seconds."""
    latent_launch_since: float = 0.0
    """CUDA compute capability from which that counts; below it, the waits of fresh servers were fitted without it."""
    full_prefill_rate_capability: float | None = None
    """CUDA compute capability from which workers that only prefill reach the full rate of their kernels with the
    families of `simserve.profiles.engine_options.PREFILL_WORKER_EFFICIENCY` too; absent: on no GPU."""
    num_group_router_kernels: int = Field(default=1, ge=1)
    """Small kernels that choose experts where the router first chooses groups of them, and that add shared experts."""
    router_kernels: Mapping[str, PositiveInt] = Field(default_factory=dict)
    """Model family whose router adds a bias and has one group -> those kernels on NVIDIA GPUs; absent: one."""
    overlaps_shared_experts: bool = True
    """Whether shared experts run alongside the routed ones, on a second stream or as further routed experts."""
    adds_shared_experts: bool = False
    """Whether a kernel of its own adds the outputs of shared experts to those of the routed ones."""
    unjoined_kernels: Mapping[Literal["norms", "attention", "activation"], PositiveInt] = Field(default_factory=dict)
    """Time of a layer's small kernels beyond what is counted, in starts of one, where no compiler joins them: norms
    (none where all-reduces hold them), norms of heads, rotary embedding and the write of keys and values (not of latent
    attention, as the norms), and the activation of an MLP without routed experts."""
    sends_rounded_tokens: bool = False
    """Whether tokens are rounded to the format of the experts' products before they go to other ranks, except FP8 with
    block scales; DeepEP's FP8 dispatch is its own."""
    max_bandwidth: BytesPerSecond | None = Field(default=None, gt=0)
    """Memory bandwidth beyond which the kernels gain nothing; absent: the GPU's."""
    max_share_of_fp16: float | None = Field(default=None, gt=0, le=1)
    """Share of the FP16 rate, accumulated in FP16, beyond which 16-bit products gain nothing; absent: all of it."""
    max_share_of_int8: float | None = Field(default=None, gt=0, le=1)
    """Share of the INT8 rate of an RTX 4090's multiprocessor at which each of a GPU's multiplies GGUF weights as stored
    (`simserve.perf.quantization.GGUF_INT8_RATES`); absent: they are written out in 16 bit first."""
    max_flops: FlopsPerSecond | None = Field(default=None, gt=0)
    """FLOP/s of 16-bit products beyond which the kernels gain nothing; absent: the GPU's."""


class Kernels(KernelTraits):
    """Efficiency of the engine's kernels, and the weight formats that they run."""

    quantizations: tuple[WeightFormatName, ...]
    """Weight formats that the version can run, besides `FORMAT_FEATURES`, whose versions are in `features`."""
    source: str
    """Where efficiency and formats come from."""
