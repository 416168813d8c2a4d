"""EngineProfile: the defaults of one serving engine, version by version, as its YAML file states them.

Knows what an engine does when nobody sets a knob, not what a user set: that is `simserve.profiles.engine`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from simserve.documents import read_mapping
from simserve.errors import ProfileError, nearest
from simserve.profiles import catalog
from simserve.profiles.engine_options import (
    PLAIN_TRANSFER,
    Devices,
    KernelBlock,
    KVTransfer,
    MeasuredFactors,
    MoeBackend,
    NewTokenRatio,
    RuntimeMemory,
    SizeRange,
    StaticReserve,
    TransformersBackend,
    UbatchRules,
    WindowedKV,
    complete_versions,
    version_key,
)
from simserve.profiles.kernel_curves import GemmClass
from simserve.profiles.model import Checkpoint, Fp8Scales, WeightFormatName
from simserve.units import Bytes, BytesPerSecond, FlopsPerSecond, Seconds
from simserve.validation import FrozenModel, validate

MemoryRule = Literal["total", "free_after_load", "static_fraction"]

FEATURES: Mapping[str, str] = {
    "draft_model": "speculative decoding with a draft model",
    "ngram": "speculative decoding by n-grams",
    "eagle": "speculative decoding with EAGLE layers",
    "mtp": "speculative decoding with the model's own MTP layer",
    "medusa": "speculative decoding with Medusa heads",
    "mlp_speculator": "speculative decoding with an MLP speculator",
    "suffix": "speculative decoding by suffixes",
    "ngram_gpu": "speculative decoding by n-grams on the GPU",
    "parallel_draft_model": "speculative decoding with a draft model that drafts in parallel (PARD)",
    "dflash": "speculative decoding with DFlash",
    "dspark": "speculative decoding with DSpark",
    "chunked_prefill": "chunked prefill",
    "prefix_caching": "prefix caching",
    "priority_scheduling": "queue by priority",
    "swap": "preemption by swapping",
    "expert_parallel": "expert parallelism",
    "deepep": "all-to-all of experts with DeepEP",
    "nvlink_one_sided": "one-sided all-to-all of experts over NVLink between hosts",
    "nvlink_two_sided": "two-sided all-to-all of experts over NVLink between hosts",
    "two_batch_overlap": "overlap of two halves of a batch",
    "eplb": "balancing of the load of experts (EPLB)",
    "data_parallel_attention": "data-parallel attention",
    "pipeline_layer_partition": "choice of the layers of each pipeline stage",
    "grammar_overlap": "filling of grammar masks while the GPU computes",
    "kv_transfer": "hand-over of KV caches between servers",
    "kv_offload": "second tier behind the prefix cache",
    "max_loras": "LoRA adapters",
    "cpu_offload_gb": "weights kept in host memory",
    **dict.fromkeys(("n_gpu_layers", "num_gpu"), "choice of the layers on the GPU"),
    "kv_unified": "choice of one KV buffer for all slots",
    "similar_prompts": "choice of slots by like prompts",
    "ubatch_size": "choice of the tokens of a micro-batch",
    "num_gpu_blocks_override": "number of KV blocks set by hand",
    "kv_cache_memory_bytes": "KV memory set in bytes",
    "long_prefill_token_threshold": "limit on the prompt tokens of one request in a step",
    "attention_dp_timeout_iters": "waiting of prompts for those of other ranks",
    "cudagraph_mode": "choice of the steps on CUDA graphs",
    "moe_backend": "choice of the kernels of experts",
    "language_model_only": "way to leave out the encoders of images and audio",
    "mm_encoder_tp_mode": "choice of how encoders use the ranks",
    "fp8_gemm_backend": "choice of the kernels of FP8 products",
    "attention_backend": "choice of the kernels of attention",
    "flashinfer_sampler": "choice of the kernels that sample",
    **{f"kv_cache_{name}": f"{name.upper()} KV cache" for name in ("fp8", "int8", "int4")},
    **{name: f"{name.upper()} weights" for name in ("mxfp4", "nvfp4")},
}
"""What an engine has or has not by version, in words that follow "has no"."""

FORMAT_FEATURES = ("mxfp4", "nvfp4")
"""Features that are weight formats."""

UNSIMULATED_METHODS = ("medusa", "mlp_speculator", "suffix", "ngram_gpu", "parallel_draft_model", "dflash", "dspark")
"""Features that are ways to draft which nothing here simulates: known by name, so that an answer can say so."""

_NOT_KNOWN = "defaults of"


class Tier(FrozenModel):
    """One row of a default that depends on the GPU: the first row that fits the deployment counts."""

    memory_at_least: Bytes = 0.0
    """Total memory of the GPU from which the row holds, bytes."""
    tensor_parallel_at_least: int = Field(default=1, ge=1)
    """Tensor-parallel size from which the row holds."""
    except_gpus: tuple[str, ...] = ()
    """Parts of GPU names, lower case, for which the row does not hold."""
    only_gpus: tuple[str, ...] = ()
    """Parts of GPU names, lower case, for which alone the row holds; empty: for all."""
    value: float = Field(gt=0)
    """The default."""

    def fits(self, gpu_memory_bytes: float, gpu_name: str, tensor_parallel_size: int) -> bool:
        """Return whether the row holds for a GPU and a tensor-parallel size."""
        name = gpu_name.lower()
        is_excepted = any(part in name for part in self.except_gpus)
        is_excepted |= bool(self.only_gpus) and not any(part in name for part in self.only_gpus)
        is_large = gpu_memory_bytes >= self.memory_at_least
        return is_large and tensor_parallel_size >= self.tensor_parallel_at_least and not is_excepted


Tiered = float | tuple[Tier, ...]


class Scheduling(UbatchRules):
    """Who goes first in a step, what admission requires, and how KV memory is given out."""

    batching: Literal["continuous", "static"]
    """`continuous` (iteration level) or `static` (collect, pad, answer together)."""
    scheduler: Literal["mixed", "prefill_first"]
    """`mixed`: decodes and prefill chunks share a step. `prefill_first`: a step is one or the other."""
    admission: Literal["on_demand", "estimate", "reserve"]
    """What a request needs to be admitted: blocks for the next chunk, an estimate, or all of `max_tokens`."""
    kv_allocation: Literal["paged", "static", "none"]
    """`paged` blocks, `static` slots of `max_model_len`, or no KV cache."""
    enable_prefix_caching: bool
    """Whether equal prefixes share KV blocks."""
    state_caching: Literal["off", "synchronous", "on"] = "on"
    """What that is with Mamba or linear attention: off, on without `async_scheduling` or drafts, as with others."""
    async_scheduling: bool
    """Whether the host prepares the next step while the GPU computes this one."""
    async_drafters: tuple[Literal["draft_model", "ngram", "eagle", "mtp"], ...] | None = None
    """Drafters of speculative decoding beside which `async_scheduling` stays on by default; absent: all."""
    async_pipeline: bool = True
    """Whether `async_scheduling` stays on by default with more than one pipeline stage."""
    async_prefill: bool = True
    """Whether `async_scheduling` stays on by default in a worker that only prefills."""
    releases_late: bool = False
    """With `async_scheduling`: whether a finished request keeps seat and blocks until the next step is scheduled."""
    overlaps_results: bool = False
    """With `async_scheduling`: whether who has ended decodes once more, since results are known a step late."""
    async_output: bool = False
    """Whether the tokens of a step are handed over while the next one runs, once its kernels have been launched."""
    reserve_full_prompt: bool = False
    """`on_demand`: admit only if the whole prompt fits (vLLM's `scheduler_reserve_full_isl`)."""
    lifts_chunk_limit: bool = False
    """Whether a request without another beside it is held to no `long_prefill_token_threshold`."""
    ends_pass: bool = False
    """Priorities: whether running requests behind one that preempts itself compute nothing in that step."""
    misses_next: bool = False
    """`ends_pass`: whether who comes behind one that takes the blocks of a finished request computes nothing either."""
    pads_lone_token: bool = False
    """Drafts: whether an admitted request with a single token to compute computes as many as one that decodes."""
    caches_decoded: bool = False
    """Whether requests find the blocks that a running one has decoded, not only those of one that has ended."""
    evicts_by_block: bool = False
    """Whether cached blocks give way one by one, each by its last use, or prefix by prefix."""
    ages_empty_blocks: bool = False
    """`evicts_by_block`: whether free blocks that hold nothing to share wait for their turn among the cached ones."""
    keeps_radix_tree: bool = False
    """`prefill_first`, `estimate`: whether prefixes are a tree of what steps have computed, which gives way by node."""
    evicts_missing: bool = False
    """`keeps_radix_tree`: whether nodes give way for the blocks that a step is short of, or for all that it takes."""
    touches_waiting: bool = False
    """`keeps_radix_tree`: whether looks at the queue use, now and then, what those who wait would find there."""
    waits_for_prefix: bool = False
    """`reserve`, `on_demand`: whether a request waits while another computes the first block that it lacks."""
    caches_at_end: bool = False
    """`waits_for_prefix`: whether a prompt is found once its request has ended; else once all of it is computed."""
    reserves_page: bool = False
    """`estimate`: whether a request needs a block beyond its tokens to be admitted."""
    expects_max_tokens: bool = False
    """`estimate`: whether requests with `workload.ignore_eos` are expected to take all of `max_tokens`."""
    strikes_at_once: bool = False
    """`estimate`: whether who is done has left the batch when the next step is scheduled, or the next decode step."""
    keeps_ratio: bool = False
    """`estimate`: whether the ratio begins anew only where nobody waits either, not wherever a batch is empty."""
    skips_ended: bool = False
    """`overlaps_results`: whether nobody decodes beyond an end that `max_tokens` sets; steps wait for their blocks."""
    watermark: float = Field(default=0.0, ge=0, lt=1)
    """Share of the blocks that admission leaves free."""
    static_batch_size: int | None = Field(default=None, ge=1)
    """Most requests of a static batch; absent: `max_num_seqs`."""
    static_max_wait: Seconds = 0.0
    """Longest wait of a static batch's first request, seconds."""
    source: str
    """Where the rules come from."""


class ChunkedPrefill(FrozenModel):
    """Whether a prompt may be split over steps, and what changes when it may."""

    enable_chunked_prefill: bool
    """The default."""
    enable_above_model_len: int | None = None
    """On by default for a longer `max_model_len` than this, tokens (vLLM V0)."""
    scheduler: Literal["mixed", "prefill_first"] | None = None
    """Scheduler while chunking is on, where it differs."""
    max_num_batched_tokens: Tiered | None = None
    """Token budget of a step while chunking is on, where it differs."""
    must_cover_model_len: bool = False
    """While chunking is off the engine insists on a budget of at least `max_model_len` tokens."""
    source: str
    """Where the rules come from."""


class Limits(FrozenModel):
    """Seats, token budget, block size and context length."""

    max_num_seqs: Tiered
    """Most requests that hold KV at once."""
    max_num_seqs_with_drafts: int | None = Field(default=None, ge=1)
    """The same with speculative decoding; absent: as without."""
    max_num_batched_tokens: Tiered
    """Token budget of a step."""
    groups_share_budget: bool = False
    """Whether groups of data-parallel attention divide it, where nobody says one; it does not limit the seats then."""
    seat_tokens: int | None = Field(default=None, ge=1)
    """Tokens by which `max_num_seqs`, where it is set, multiplies into the budget; absent: it does not."""
    block_size: int = Field(ge=1)
    """Tokens a KV block."""
    max_model_len: Tiered | None = None
    """Context length where the engine does not take the model's, tokens."""
    is_model_len_shared: bool = False
    """Whether the seats divide the context length among them (llama.cpp slots)."""
    ubatch_size: int | None = Field(default=None, ge=1)
    """Tokens of a step that all kernels run for at once, one such micro-batch after another, which a pipeline stage
    hands on while it works on the next; absent: all of them."""
    source: str
    """Where the limits come from."""


class Memory(FrozenModel):
    """Which share of GPU memory the engine takes, and of what."""

    rule: MemoryRule
    """The share is of the `total` (vLLM), of what is `free_after_load`, or the `static_fraction` (SGLang)."""
    gpu_memory_utilization: Tiered | None = None
    """The share; absent: computed from `static_reserve`."""
    static_reserve: tuple[StaticReserve, ...] = ()
    """SGLang's reserve by GPU memory, the largest GPU first; the first that fits counts."""
    loads_encoders: bool = True
    """Whether encoders of images and audio are loaded with the model; llama.cpp's are a file of their own."""
    source: str
    """Where the rule and the share come from."""

    @model_validator(mode="after")
    def _has_one_share(self) -> Self:
        if (self.gpu_memory_utilization is None) != bool(self.static_reserve):
            raise ValueError("needs either gpu_memory_utilization or static_reserve")
        return self

    def reserve(self, gpu_memory_bytes: float) -> StaticReserve:
        """Return the reserve on a GPU of that size, where the share is computed from one."""
        return next(each for each in self.static_reserve if gpu_memory_bytes >= each.memory_at_least)


class CudaGraphs(FrozenModel):
    """Decode batch sizes that are captured; a batch between two of them is padded to the larger."""

    sizes: tuple[int | SizeRange, ...] = ()
    """Captured sizes, ascending; empty: no graphs."""
    max_batch: Tiered | None = None
    """Largest captured size; absent: the last of `sizes`."""
    max_batch_per_seq: int | None = Field(default=None, ge=1)
    """Largest captured size as a multiple of `max_num_seqs`, where lower."""
    captures_limit: bool = False
    """Whether `max_num_seqs` itself is captured, and nothing above it."""
    max_batch_of_family: dict[str, int] = Field(default_factory=dict)
    """Family of a model -> largest captured size in place of both limits above."""
    covers_prompts: bool = False
    """Whether steps that prefill run on graphs too, up to the largest captured size in tokens (vLLM V1)."""
    covers_chunks: bool = False
    """Whether pieces of a layer run on graphs up to a chunk, which launch Triton's experts as one operator (SGLang)."""
    memory: Bytes
    """Memory of the captured graphs, bytes."""
    is_budgeted: bool
    """Whether that memory is subtracted before KV (vLLM from 0.21) or comes out of the rest."""
    source: str
    """Where the sizes come from."""

    @property
    def every_size(self) -> set[int]:
        """The captured sizes, one by one."""
        return {size for entry in self.sizes for size in (entry.sizes if isinstance(entry, SizeRange) else (entry,))}

    @property
    def last_step(self) -> int:
        """How far the largest captured sizes are apart."""
        return next((entry.step for entry in reversed(self.sizes) if isinstance(entry, SizeRange)), 8)


class Host(FrozenModel):
    """Time of the CPU side that a step and a request cost."""

    seconds_per_step: Seconds
    """Scheduling and input preparation of a step, seconds."""
    seconds_per_parallel_step: Seconds = Field(default=0.0, ge=0)
    """What that takes longer where several ranks have to agree on the step, seconds."""
    seconds_per_request: Seconds
    """Bookkeeping, sampling and output a request of a step, seconds."""
    sampling_seconds_per_vocabulary_entry: Seconds = Field(default=0.0, ge=0)
    """What an entry of the vocabulary adds where the CPU samples, request by request, seconds; 0: the GPU does."""
    seconds_per_further_request: Seconds = Field(default=0.0, ge=0)
    """What each request of a step beyond the first takes longer than that, seconds."""
    seconds_per_streamed_request: Seconds = Field(default=0.0, ge=0)
    """What a stream adds to that, seconds: an output object a step on the thread that schedules (vLLM before V1)."""
    seconds_per_verified_token: Seconds = Field(default=0.0, ge=0)
    """What a draft and the token behind the drafts add each, seconds: slots of KV, the loop over what was accepted."""
    seconds_per_nucleus_request: Seconds = Field(default=0.0, ge=0)
    """What a request adds that samples by top-k or top-p, seconds: its logits are sorted."""
    overlap: float = Field(ge=0, le=1)
    """Share of both that asynchronous scheduling hides behind the GPU; 0: the engine has none."""
    eager_seconds_per_layer: Seconds = Field(default=0.0, ge=0)
    """Least time of a layer in a step outside CUDA graphs, seconds: the host launches its kernels no faster."""
    eager_prompt_seconds_per_layer: Seconds | None = Field(default=None, ge=0)
    """The same in steps that hold prompts, seconds, whose attention is launched from more Python; absent: as above."""
    eager_gap_seconds_per_layer: Seconds = Field(default=0.0, ge=0)
    """How long a layer without routed experts leaves the GPU idle in such a step, seconds: gaps of short kernels."""
    eager_gap_seconds_per_linear_layer: Seconds = Field(default=0.0, ge=0)
    """How long a layer of linear attention leaves it idle, seconds: a dozen Triton kernels between torch operators."""
    eager_seconds_per_expert_layer: Seconds = Field(default=0.0, ge=0)
    """What routed experts add to that, seconds, where their many small kernels are launched one by one (Triton)."""
    eager_expert_formats: tuple[str, ...] = ()
    """Weight formats whose experts are launched so; empty: all."""
    eager_expert_rank_share: float = Field(default=0.0, ge=0)
    """Share by which that is longer for each doubling of the tensor-parallel ranks: all wait for the slowest host."""
    row_split_seconds_per_layer: Seconds = Field(default=0.0, ge=0)
    """What a layer takes longer whose matrices one thread cuts by rows over its GPUs, seconds (llama.cpp)."""
    row_split_seconds_per_layer_rank: Seconds = Field(default=0.0, ge=0)
    """What each of these GPUs adds to that, seconds."""
    frontend_latency: Seconds = Field(gt=0)
    """From arrival to the scheduler: HTTP, queue hand-over, seconds."""
    tokenization_per_token: Seconds = Field(default=0.0, ge=0)
    """What a token of the prompt adds to that: splitting text into tokens, seconds."""
    chat_seconds_per_request: Seconds = Field(default=0.0, ge=0)
    """How long the API server works on a chat before the engine has it, one after another, seconds; 0: not known."""
    chat_template_seconds: Seconds = Field(default=0.0, ge=0)
    """How long it parses the template of each chat, one after another, seconds; 0: it keeps what it parsed."""
    api_server_seconds_per_token: Seconds = Field(default=0.0, ge=0)
    """How long the one process that detokenises and sends takes for a token of a stream, seconds; 0: not known to bind.
    `deployment.streaming` replaces it."""
    enforced_eager_seconds_per_layer: Seconds | None = Field(default=None, ge=0)
    """`eager_seconds_per_layer` with `enforce_eager`, which switches compilation off too; absent: as without."""
    eager_draft_seconds_per_layer: Seconds | None = Field(default=None, ge=0)
    """The same of a draft model whose passes no CUDA graph covers; absent: graphs do."""
    decode_graph_gap_seconds_per_layer: Seconds = Field(default=0.0, ge=0)
    """Idle seconds a layer of a step with prompts that `cudagraph_mode: FULL_DECODE_ONLY` keeps off the graphs."""
    source: str
    """Where the figures come from."""


class KernelTraits(FrozenModel):
    """How good the engine's kernels are."""

    compute_efficiency: float = Field(gt=0, le=1.5)
    """Scale on the hardware profile's kernel efficiencies; 1: as there."""
    memory_share: float = Field(default=1.0, gt=0, le=2)
    """What that leaves of the bandwidths, times this: above 1 where arithmetic alone is behind."""
    has_paged_attention_kernel: bool = False
    """Whether vLLM's PagedAttention, in which a query head reads its keys itself, decodes where FlashAttention-2 does
    not run (before Ampere)."""
    attends_windows: bool = True
    """Whether layers with a long sliding window attend to no more than it; otherwise to all that they keep."""
    has_marlin: bool = True
    """Whether kernels that unpack weights pad to Marlin's small tiles; otherwise to those of plain products."""
    marlin_formats: tuple[str, ...] = ()
    """Weight formats whose products are Marlin's, of known speed; of others a share of plain ones is assumed."""
    machete_formats: tuple[str, ...] = ()
    """Those that Machete, a kernel for Hopper alone, multiplies there in its place."""
    has_weight_only_floats: bool = True
    """Whether FP8 and NVFP4 weights run on a GPU without arithmetic for them, in 16 bit."""
    padded_expert_formats: tuple[str, ...] = ()
    """Weight formats whose experts are padded to Marlin's tiles."""
    pads_experts: bool = True
    """Whether experts in MXFP4 lie in memory padded to the tiles of the kernels that multiply them."""
    triton_expert_capabilities: tuple[float, float] | None = None
    """CUDA compute capabilities, from and to before, on which those are Triton's, on others Marlin's; absent: all."""
    triton_expert_families: tuple[str, ...] = ()
    """Families of models whose experts those are, of others they are Marlin's there too; empty: all."""
    shared_decode_groups: tuple[int, ...] | None = None
    """Query heads a key-value head for which a decode step reads keys once for all of them; absent: any number."""
    mixed_decode_tile: int = Field(default=0, ge=0)
    """Rows of queries that a decode fills in a step that prefills too, under FlashAttention-2; 0: its own alone."""
    chunks_mixed_decodes: bool = False
    """Whether decodes of a gated delta rule pass the kernel of prompts in a step that prefills too, a chunk each."""
    has_flash_kda: bool = False
    """Whether prompts of Kimi Delta Attention with a bounded decay pass FlashKDA, where the GPU runs it."""
    all_reduce: Literal["nccl"] | None = None
    """Whose all-reduce ranks call: NCCL's; absent: one of the engine's own, which is quicker for short messages."""
    all_reduce_host_from: Bytes | None = Field(default=None, gt=0)
    """Message from which all-reduces over more than two ranks also cross the host link once, bytes; absent: none."""
    fuses_all_reduce_norm: bool = False
    """Whether the norm behind a small all-reduce is part of its kernel (Hopper and Blackwell)."""
    all_reduce_norm_families: tuple[str, ...] = ()
    """Families of models whose layers have that kernel; absent: all."""
    fuses_activation_quantisation: bool = False
    """Whether norms and activation functions write 8-bit products' inputs themselves, where weights have one scale a
    tensor or a channel; otherwise a kernel of its own does."""
    all_reduce_rounds_families: tuple[str, ...] = ()
    """Families, hidden sizes above 4,096, whose all-reduces hold norm and rounding for products of such weights."""
    block_scaled_kernels: Mapping[str, str] = Field(default_factory=dict)
    """Maker of the GPU -> whose products those are, as the curves of a GPU name them; absent: the engine's own."""
    fp4_kernels: str = ""
    """Whose products of NVFP4 weights run where a GPU has a curve that names them; empty: the engine's own."""
    expert_kernels: Mapping[GemmClass, str] = Field(default_factory=dict)
    """Number format -> whose kernels run experts where a GPU has a curve that names them; absent: the engine's own."""
    own_experts: Mapping[GemmClass, tuple[str, ...]] = Field(default_factory=dict)
    """Number format -> families of models whose experts are the engine's own all the same."""
    block_scaled_speed: float = Field(default=1.0, gt=0, le=1)
    """Share of the fitted FLOP/s that products with FP8 scales by blocks reach: kernels that came before DeepGEMM."""
    block_scaled_bandwidth: float = Field(default=1.0, gt=0, le=1)
    """Share of the fitted bandwidth at which they read."""
    block_scaled_gap: Seconds = Field(default=0, ge=0)
    """Seconds that one of them takes longer to start."""
    block_scaled_gap_since: float = 0.0
    """CUDA compute capability from which it does, and from which the step below counts."""
    block_scaled_step: Seconds = Field(default=0, ge=0)
    """Least seconds that a tile of one of them takes for 128 columns of the reduction."""
    narrow_kv_slowdown: float = Field(default=1.0, ge=1)
    """Times as long a decode step takes a key of an 8-bit KV cache as the fitted kernels, which are newer."""
    expert_speed: Mapping[str, PositiveFloat] = Field(default_factory=dict)
    """Weight format -> times as fast as the fitted kernels experts compute: older kernels, or an own build of them."""
    kernel_starts: Mapping[str, PositiveFloat] = Field(default_factory=dict)
    """Maker of the GPU -> times as long as its profile says that kernels take to start, one after another."""
    shown_start: float = Field(default=1.0, gt=0, le=1)
    """Share of its start that a kernel shows: by programmatic dependent launch it begins before the one before ends."""
    shown_start_since: float = 0.0
    """CUDA compute capability from which it does."""
    attention_backends: Mapping[str, str] = Field(default_factory=dict)
    """Maker of the GPU -> `deployment.engine.attention_backend` where nobody says one."""
    expert_backends: Mapping[str, MoeBackend] = Field(default_factory=lambda: dict[str, MoeBackend](AMD="aiter"))
    """Maker of the GPU -> `deployment.engine.moe_backend` where nobody says that or AMD's attention."""
    latent_attention_gap: Seconds = Field(default=0, ge=0)
    """Seconds that a layer's latent attention (MLA) takes longer than the fitted kernels, which are newer."""
    latent_decode_flops: Mapping[str, FlopsPerSecond] = Field(default_factory=dict)
    """Maker of the GPU -> FLOP/s beyond which latent attention gains nothing in decodes; absent: the fitted ones."""
    joins_latent_inputs: bool = True
    """Whether one product makes the latent form of queries and that of keys and values, which read the same input."""
    latent_launch: Seconds = Field(default=0, ge=0)
    """Seconds that the host takes to launch a layer with latent attention in a step that no CUDA graph covers."""
    latent_launch_since: float = 0.0
    """CUDA compute capability from which that counts; below, waits of fresh servers were fitted without it."""
    full_prefill_rate_capability: float | None = None
    """CUDA compute capability from which workers that only prefill keep up the rate of their kernels with the families
    of `simserve.profiles.engine_options.PREFILL_WORKER_EFFICIENCY` too; absent: on no GPU."""
    num_group_router_kernels: int = Field(default=1, ge=1)
    """Small kernels that choose experts where the router chooses groups of them first, and that add shared experts."""
    router_kernels: Mapping[str, PositiveInt] = Field(default_factory=dict)
    """Family of models whose router adds a bias and has one group -> those kernels on NVIDIA's GPUs; absent: one."""
    overlaps_shared_experts: bool = True
    """Whether shared experts run beside the routed ones, on a second stream or as some of them."""
    sends_rounded_tokens: bool = False
    """Whether tokens are rounded to the format of the experts' products before they go to other ranks, but for FP8 by
    blocks; DeepEP's dispatch in FP8 is its own."""
    max_bandwidth: BytesPerSecond | None = Field(default=None, gt=0)
    """Memory bandwidth beyond which the kernels gain nothing; absent: the GPU's."""
    max_share_of_fp16: float | None = Field(default=None, gt=0, le=1)
    """Share of the FP16 rate, accumulated in FP16, beyond which 16-bit products gain nothing; absent: all of it."""
    max_flops: FlopsPerSecond | None = Field(default=None, gt=0)
    """FLOP/s of 16-bit products beyond which the kernels gain nothing; absent: the GPU's."""


class Kernels(KernelTraits):
    """How good the engine's kernels are, and which weight formats they run."""

    quantizations: tuple[WeightFormatName, ...]
    """Weight formats the version can run, besides those of `FORMAT_FEATURES`, whose versions `features` says."""
    source: str
    """Where scale and formats come from."""


class LoadedMethod(FrozenModel):
    """A way of quantisation whose checkpoints an engine loads."""

    method: str
    """As checkpoints name it (``quant_method``): fp8, modelopt, mxfp4 ..."""
    formats: tuple[WeightFormatName, ...] = ()
    """Formats that it may have made; empty: all."""
    fp8_scales: tuple[Fp8Scales, ...] = ()
    """Scales that its FP8 weights may have; empty: all."""

    def covers(self, checkpoint: Checkpoint) -> bool:
        """Return whether a checkpoint is one of these."""
        is_format = not self.formats or checkpoint.format in self.formats
        has_scales = not self.fp8_scales or checkpoint.fp8_scales in self.fp8_scales
        return checkpoint.method == self.method and is_format and has_scales


class Checkpoints(FrozenModel):
    """What the engine makes of a checkpoint besides reading it."""

    loaded_methods: tuple[LoadedMethod, ...] = ()
    """Ways of quantisation whose checkpoints it loads; empty: any, of the formats that it runs."""
    quantises_on_load: tuple[WeightFormatName, ...] = ()
    """Formats that it makes of 16-bit weights while it loads them."""
    quantises_before_loading: tuple[WeightFormatName, ...] = ()
    """Formats that a tool of its own makes of 16-bit weights, once."""
    kv_cache_of_methods: tuple[str, ...] = ()
    """Ways of quantisation (``method`` of a model's checkpoints) whose KV format ``auto`` takes from the checkpoint."""
    narrow_sparse_kv_capability: float | None = Field(default=None, gt=0)
    """CUDA compute capability from which ``auto`` keeps the latent keys of sparse attention in FP8; absent: never."""
    casts_float32: bool = False
    """Whether it loads 32-bit weights in 16 bit where nobody asks for 32."""
    source: str
    """Where that stands."""


class EngineVersion(FrozenModel):
    """Every default of one version; the file writes only what changed."""

    version: str
    """Version from which these defaults hold."""
    scheduling: Scheduling
    """Scheduler family and rules."""
    chunked_prefill: ChunkedPrefill
    """Splitting prompts over steps."""
    limits: Limits
    """Seats, budget, blocks."""
    new_token_ratio: NewTokenRatio | None = None
    """Constants of `estimate` admission; absent: the engine does not estimate."""
    memory: Memory
    """Share of GPU memory."""
    runtime_memory: RuntimeMemory
    """Memory that is neither weights nor KV."""
    cuda_graphs: CudaGraphs
    """Captured decode batches."""
    host: Host
    """CPU time."""
    kernels: Kernels
    """Kernel quality and weight formats."""
    checkpoints: Checkpoints = Checkpoints(source="quantises nothing itself, and keeps KV in 16 bit")
    """What it makes of a checkpoint."""
    measured_factors: MeasuredFactors | None = None
    """What a server measured by its owner takes beside all that; absent: nobody measured one."""


class FeatureRange(FrozenModel):
    """Versions that have a feature, and the GPUs on which they have it."""

    since: str
    """First version with it."""
    until: str | None = None
    """First version without it again; absent: there is none."""
    capability_at_least: float | None = Field(default=None, gt=0)
    """CUDA compute capability from which it runs; of no meaning to other makers' GPUs."""
    note: str = ""
    """What a reader of a result with it should know."""
    source: str
    """Where first and last version are from."""

    def holds(self, version: str) -> bool:
        """Return whether a version lies in the range."""
        wanted = version_key(version)
        return version_key(self.since) <= wanted and (self.until is None or wanted < version_key(self.until))

    def runs_on(self, compute_capability: str | None) -> bool:
        """Return whether it runs on a GPU."""
        least = self.capability_at_least
        return least is None or compute_capability is None or float(compute_capability) >= least

    @property
    def words(self) -> str:
        """The range as a sentence names it."""
        text = f"{self.since} and newer" if self.until is None else f"{self.since} to before {self.until}"
        least = self.capability_at_least
        return text if least is None else f"{text} on GPUs of compute capability {least:g} or newer"


class ModelCode(FrozenModel):
    """Models for which an engine has code of its own, and the versions that have it."""

    since: str
    """First version with it; ``"0"``: all that are known here, or since when is not known."""
    until: str | None = None
    """First version without it again; absent: there is none."""
    architectures: tuple[str, ...] = Field(min_length=1)
    """Classes, as the ``architectures`` of a Hugging Face ``config.json`` name them."""
    needs: Literal["experts"] | None = None
    """What the version added to a class that it had code for before; absent: the class itself."""
    source: str
    """Where the version is from."""

    def covers(self, architecture: str, has_experts: bool) -> bool:
        """Return whether a model of a class waits for this version."""
        return architecture in self.architectures and (self.needs is None or has_experts)


def _joined(ranges: Sequence[FeatureRange]) -> list[FeatureRange]:
    """Return ranges that follow each other on the same GPUs as one."""
    found: list[FeatureRange] = []
    for each in ranges:
        last = found[-1] if found else None
        if last is not None and (last.until, last.capability_at_least) == (each.since, each.capability_at_least):
            found[-1] = last.model_copy(update={"until": each.until})
        else:
            found.append(each)
    return found


class EngineProfile(FrozenModel):
    """A serving engine: its versions, oldest first, each with every default."""

    name: str
    """Catalogue name."""
    base: str | None = None
    """Engine that it is a calibration of, whose kernels, formats, features, models and flags hold; absent: itself."""
    description: str
    """What it is and what the profile leaves out."""
    new_from: str | None = None
    """Version that changed how it serves, so that errors measured before and from it are told apart; absent: none."""
    features: Mapping[str, tuple[FeatureRange, ...]] = Field(default_factory=dict)
    """Name, of `FEATURES` -> versions that have it; what is not named the engine has not."""
    models: tuple[ModelCode, ...] = ()
    """Which versions run which models, oldest first; of a model that is not named nothing is known."""
    unlisted_models: Annotated[str, Field(min_length=1)] | None = None
    """Why nothing is known of the models that `models` does not name, in a clause that an answer leads with; absent:
    they are old enough that all versions have them."""
    transformers: TransformersBackend | None = None
    """From when on, and which, models that the engine has no code for are run through transformers; absent: none."""
    windowed_kv: tuple[WindowedKV, ...] = ()
    """How the KV of layers with a sliding window is kept, oldest first; empty: like that of all others."""
    devices: Devices | None = None
    """Whose devices it runs on; none: not known, any is accepted."""
    kv_transfers: tuple[KVTransfer, ...] = ()
    """How it hands KV caches from prefill to decode servers, oldest first; empty: as `PLAIN_TRANSFER` says."""
    kernel_blocks: tuple[KernelBlock, ...] = ()
    """KV blocks that attention kernels force, the first that holds."""
    versions: tuple[EngineVersion, ...] = Field(min_length=1)
    """Known versions, oldest first."""

    @model_validator(mode="after")
    def _has_a_clear_table(self) -> Self:
        for name, ranges in self.features.items():
            if name not in FEATURES:
                raise ValueError(f"features.{name} is not a known feature; {nearest(name, FEATURES)}")
            if any(each.until is not None and version_key(each.until) <= version_key(each.since) for each in ranges):
                raise ValueError(f"features.{name} has a range that ends before it begins")
            for earlier, later in pairwise(ranges):
                if earlier.until is None or version_key(later.since) < version_key(earlier.until):
                    raise ValueError(f"features.{name} has ranges that overlap, or not the oldest first")
        known = [(name, each.needs) for each in self.models for name in each.architectures]
        twice = sorted({name for name, needs in known if known.count((name, needs)) > 1})
        if twice:
            raise ValueError(f"models names {', '.join(twice)} more than once")
        return self

    def windows_of(self, version: str | None) -> WindowedKV | None:
        """Return how a version keeps layers with a sliding window; None: like all others. The newest without one.

        Raises:
            InputError: ``version`` is not a version number.
        """
        wanted = version_key(version or self.versions[-1].version)
        fitting = [known for known in self.windowed_kv if version_key(known.since) <= wanted]
        return fitting[-1] if fitting else None

    def kv_transfer_of(self, version: str | None) -> KVTransfer:
        """Return how a version hands KV caches over; the newest without one."""
        wanted = version_key(version or self.versions[-1].version)
        return next((each for each in reversed(self.kv_transfers) if version_key(each.since) <= wanted), PLAIN_TRANSFER)

    def nearest_version(self, requested: str | None) -> EngineVersion:
        """Return the defaults of the nearest version that is not newer than ``requested``.

        The newest known without a request; the oldest known for anything older.

        Raises:
            InputError: ``requested`` is not a version number.
        """
        if requested is None:
            return self.versions[-1]
        wanted = version_key(requested, [known.version for known in self.versions])
        fitting = [known for known in self.versions if version_key(known.version) <= wanted]
        return fitting[-1] if fitting else self.versions[0]

    def feature_range(self, feature: str, version: str | None) -> FeatureRange | None:
        """Return the range in which a version has a feature; None: it has not.

        The version is the one asked for, also where only an older one's defaults are known.
        """
        wanted = self.versions[-1].version if version is None else version
        return next((each for each in self.features.get(feature, ()) if each.holds(wanted)), None)

    def features_of(self, version: str | None, compute_capability: str | None) -> tuple[str, ...]:
        """Return the features that a version has on a GPU."""
        ranges = ((name, self.feature_range(name, version)) for name in self.features)
        return tuple(sorted(name for name, each in ranges if each is not None and each.runs_on(compute_capability)))

    def lack(self, feature: str, version: str | None, gpu_name: str, compute_capability: str | None) -> str | None:
        """Return in a clause what a version lacks on a GPU, and the versions that have it; None: it has the feature."""
        found, asked = self.feature_range(feature, version), version or self.versions[-1].version
        engine = f"{self.base or self.name} {asked}"
        if found is not None and found.runs_on(compute_capability):
            return None
        if found is not None:
            least = f"compute capability {found.capability_at_least:g} or newer"
            return f"{engine} has no {FEATURES[feature]} on {gpu_name} ({compute_capability}): that takes {least}"
        ranges = self.versions_with(feature)
        return f"{engine} has no {FEATURES[feature]} ({f'versions with it: {ranges}' if ranges else 'no version has'})"

    def lack_of_model(self, architecture: str | None, has_experts: bool, version: str | None) -> str | None:
        """Return in words which versions run a class of models; None: this one does, or that is not known."""
        wanted = version_key(self.versions[-1].version if version is None else version)
        found = [each for each in self.models if each.covers(architecture or "", has_experts)]
        newest = max((each.since for each in found), key=version_key, default="0")
        until = next((each.until for each in found if each.until is not None), None)
        if wanted < version_key(newest):
            return f"{newest} and newer" if until is None else f"{newest} to before {until}"
        return f"those before {until}" if until is not None and wanted >= version_key(until) else None

    def lists(self, architecture: str) -> bool:
        """Return whether it is known which versions run a class of models."""
        return any(architecture in each.architectures for each in self.models)

    def transformers_for(self, architecture: str | None, version: str | None) -> str | None:
        """Return the oldest transformers through which a version runs a class it has no code for; None: it does not."""
        backend, wanted = self.transformers, version_key(version or self.versions[-1].version)
        if backend is None or wanted < version_key(backend.since):
            return None
        return backend.classes.get(architecture or "")

    def versions_with(self, feature: str) -> str:
        """Return in words the versions that have a feature; empty where none has."""
        return ", ".join(each.words for each in _joined(self.features.get(feature, ())))

    def version_source(self, requested: str | None) -> str:
        """Return where the version whose defaults hold comes from, for `ResolvedEngine.sources`.

        ``scenario`` where the requested one is known, or a patch release of a known one.
        """
        if requested is None:
            return "newest known version"
        known = self.nearest_version(requested)
        wanted, found = version_key(requested), version_key(known.version)
        if wanted == found:
            return "scenario"
        if wanted < found:
            return f"{_NOT_KNOWN} {known.version}, the oldest known"
        if len(found) > 1 and wanted[: len(found)] == found:
            return f"scenario, a patch release of {known.version}"
        return f"{_NOT_KNOWN} {known.version}, the nearest older known"


def version_note(name: str, requested: str | None, source: str) -> str | None:
    """Return what an answer says first where the version asked for is not known; None where it is.

    Args:
        name: Engine.
        requested: Version asked for.
        source: `EngineProfile.version_source` of it.
    """
    return f"{name} {requested}: {source}" if source.startswith(_NOT_KNOWN) else None


def load_engine(name: str, relative_to: Path | None = None) -> EngineProfile:
    """Return an engine profile by catalogue name or path.

    The file holds ``name``, ``description``, ``defaults`` (every block, as of the oldest version) and
    ``versions``, oldest first, each with the keys that changed since the one before. A changed block says its
    own ``source``.

    Raises:
        ProfileError: There is no such profile, or the file is invalid.
    """
    return _read(catalog.find("engine", name, relative_to))


@catalog.remembered
def _read(file: Path) -> EngineProfile:
    document = read_mapping(file, ProfileError)
    versions = complete_versions(document, file)
    header = {key: value for key, value in document.items() if key not in ("defaults", "versions")}
    profile = validate(EngineProfile, {**header, "versions": versions}, file=file, error=ProfileError)
    if profile.base is not None:
        base = load_engine(profile.base)
        taken = {
            "features": profile.features or base.features,
            "models": profile.models or base.models,
            "transformers": profile.transformers or base.transformers,
            "kv_transfers": profile.kv_transfers or base.kv_transfers,
        }
        profile = profile.model_copy(update=taken)
    keys = [version_key(known.version) for known in profile.versions]
    if keys != sorted(set(keys)):
        raise ProfileError("must be in ascending order, each version once", file=file, key="versions")
    if profile.name != file.stem:
        raise ProfileError("must be the name of the file", file=file, key="name", value=profile.name)
    return profile
