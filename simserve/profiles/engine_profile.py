"""EngineProfile: the defaults of one serving engine, version by version, as its YAML file states them.

Knows what an engine does by default, not what a user set: that is `simserve.profiles.engine`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from simserve.documents import read_mapping
from simserve.errors import ProfileError, nearest
from simserve.profiles import catalog
from simserve.profiles.checkpoint import Checkpoint, Fp8Scales, WeightFormatName
from simserve.profiles.cuda_graphs import CudaGraphs
from simserve.profiles.engine_options import (
    PLAIN_TRANSFER,
    Devices,
    KernelBlock,
    KVTransfer,
    MeasuredFactors,
    RuntimeMemory,
    TransformersBackend,
    UbatchRules,
    WindowedKV,
    version_key,
)
from simserve.profiles.kernel_traits import Kernels
from simserve.profiles.static_reserve import AttentionShare, StaticReserve
from simserve.profiles.tiers import Tiered
from simserve.units import Seconds
from simserve.validation import FrozenModel, validate

MemoryRule = Literal["total", "free_after_load", "static_fraction"]

FEATURES: Mapping[str, str] = read_mapping(Path(__file__).with_name("engine_features.yaml"))
"""What a version may have or lack, in words that follow "has no"."""

FORMAT_FEATURES = ("mxfp4", "nvfp4", "nvfp4-wo")  # Features that are weight formats.
UNSIMULATED_METHODS = ("medusa", "mlp_speculator", "suffix", "ngram_gpu", "parallel_draft_model", "dflash", "dspark")
"""Drafting methods that nothing here simulates, listed as features so that an answer can name them."""

_NOT_KNOWN = "defaults of"


class NewTokenRatio(FrozenModel):
    """SGLang's decaying estimate of the share of `max_tokens` that a running request still needs."""

    initial: float = Field(ge=0, le=1)
    """Initial share."""
    minimum_factor: float = Field(ge=0, le=1)
    """The share stops decaying at this factor of `initial`."""
    decay_steps: int = Field(ge=1)
    """Decode steps from `initial` to the minimum."""
    groups_factor: float = Field(default=1.0, gt=0, le=1)
    """Factor on `initial` if there are several groups of data-parallel attention."""
    source: str
    """Where the constants come from."""

    def first(self, groups: int) -> float:
        """Return the initial share for that many groups of data-parallel attention."""
        return self.initial * (self.groups_factor if groups > 1 else 1.0)


class Scheduling(UbatchRules):
    """Scheduling order in a step, admission rule, and allocation of KV memory."""

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
    """Prefix caching with Mamba or linear attention: off, on only without `async_scheduling` and drafts, or on."""
    synchronous_state_families: tuple[str, ...] = ()
    """Model families for which `on` means only without `async_scheduling` and drafts."""
    async_scheduling: bool
    """Whether the host prepares the next step while the GPU computes this one."""
    async_drafters: tuple[Literal["draft_model", "ngram", "eagle", "mtp"], ...] | None = None
    """Drafters of speculative decoding with which `async_scheduling` stays on by default; absent: all."""
    async_pipeline: bool = True
    """Whether `async_scheduling` stays on by default with more than one pipeline stage."""
    async_prefill: bool = True
    """Whether `async_scheduling` stays on by default in a worker that only runs prefill."""
    releases_late: bool = False
    """With `async_scheduling`: whether a finished request keeps seat and blocks until the next step is scheduled."""
    overlaps_results: bool = False
    """With `async_scheduling`: whether a finished request decodes once more because results are known a step late."""
    async_output: bool = False
    """Whether the tokens of a step are handed over while the next one runs, once its kernels have been launched."""
    reserve_full_prompt: bool = False
    """`on_demand`: admit only if the whole prompt fits (vLLM's `scheduler_reserve_full_isl`)."""
    allocates_prompt: bool = False
    """`on_demand`: whether a request takes all blocks of its prompt when it is admitted; otherwise chunk by chunk."""
    suspends: bool = False
    """`on_demand`: whether preempted requests keep their KV cache, and other rules of `simserve.engine.suspension`."""
    max_used_share: float = Field(default=1.0, gt=0, le=1)
    """`suspends`: share of the blocks in use above which no request begins."""
    aligns_chunks: bool = False
    """Whether a chunk that does not complete its prompt is as long as whole KV blocks."""
    overlaps_chunks: bool = False
    """Pipeline stages: whether a chunk of a prompt enters the first while the one before it is in a later one."""
    overlaps_lone_chunks: bool = False
    """Pipeline stages: `overlaps_chunks` of a server with one seat, where no decode of another holds the chunks up."""
    keeps_micro_batches: bool = False
    """Pipeline stages: whether a request decodes in the micro-batch that completed its prompt; or spread evenly."""
    samples_in_turn: bool = False
    """Stages, `async_scheduling`: whether each waits for what the last one samples; not where `second_runner` runs."""
    lifts_chunk_limit: bool = False
    """Whether `long_prefill_token_threshold` does not apply to a request that is alone."""
    ends_pass: bool = False
    """Priorities: whether running requests after one that preempts itself compute nothing in that step."""
    misses_next: bool = False
    """`ends_pass`: whether the request after one that takes a finished request's blocks computes nothing either."""
    pads_lone_token: bool = False
    """Drafts: whether an admitted request with one token left to compute computes as many as a decoding one."""
    caches_results: bool = False
    """Drafts: whether blocks are cached once a step has filled them; those of a drafting layer, with the next token."""
    caches_decoded: bool = False
    """Whether requests can share blocks that a running request has decoded, not only those of a finished one."""
    evicts_by_block: bool = False
    """Whether cached blocks are evicted one by one, each by its last use; otherwise prefix by prefix."""
    ages_empty_blocks: bool = False
    """`evicts_by_block`: whether free blocks with nothing to share wait their turn among the cached ones."""
    keeps_radix_tree: bool = False
    """`prefill_first`, `estimate`: whether prefixes form a tree of what steps have computed, evicted node by node."""
    evicts_missing: bool = False
    """`keeps_radix_tree`: whether eviction frees only the blocks that a step lacks; otherwise all that it takes."""
    touches_waiting: bool = False
    """`keeps_radix_tree`: whether looking at the queue sometimes counts as a use of its requests' prefixes."""
    keeps_bare_leaves: bool = False
    """`keeps_radix_tree`: whether a leaf whose state of linear attention has gone keeps its tokens."""
    waits_for_prefix: bool = False
    """`reserve`, `on_demand`: whether a request waits while another computes the first block that it lacks."""
    caches_at_end: bool = False
    """`waits_for_prefix`: whether a prompt is shared only once its request has ended, or once it is computed."""
    ignores_found: bool = False
    """`waits_for_prefix`: whether admission and the budget take a request as if it found nothing."""
    reserves_page: bool = False
    """`estimate`: whether admission requires one block beyond a request's tokens."""
    expects_max_tokens: bool = False
    """`estimate`: whether requests with `workload.ignore_eos` are expected to take all of `max_tokens`."""
    strikes_at_once: bool = False
    """`estimate`: whether finished requests leave the batch before the next step is scheduled, or before a decode."""
    keeps_ratio: bool = False
    """`estimate`: whether the ratio restarts only when no request waits either; otherwise whenever a batch is empty."""
    rotates_ranks: bool = False
    """Whether ranks of data-parallel attention get requests in turn; otherwise the one with the fewest is next."""
    delays_for_seats: bool = False
    """`enable_prefill_delayer`: whether prompts wait for seats too, those of the largest batch of prompts so far."""
    bounds_prompt_delay: bool = False
    """`delays_for_seats`: whether that wait is bounded as the other one, the largest batch decays, and a rank has a
    prompt amid one and none if memory refuses it."""
    forgets_batches: bool = False
    """`bounds_prompt_delay`: whether the largest batch is that of a rank's last 16, refused ones among them."""
    skips_ended: bool = False
    """`overlaps_results`: whether no request decodes beyond an end set by `max_tokens`; steps wait for their blocks."""
    reserved_decode_tokens: int = Field(default=0, ge=0)
    """Tokens that a decode server keeps free for each running request when it takes another one."""
    watermark: float = Field(default=0.0, ge=0, lt=1)
    """Share of the blocks that admission keeps free."""
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
    """On by default if `max_model_len` is longer than this, tokens (vLLM V0)."""
    scheduler: Literal["mixed", "prefill_first"] | None = None
    """Scheduler while chunking is on, where it differs."""
    max_num_batched_tokens: Tiered | None = None
    """Token budget of a step while chunking is on, where it differs."""
    must_cover_model_len: bool = False
    """Whether the engine requires a budget of at least `max_model_len` tokens while chunking is off."""
    source: str
    """Where the rules come from."""


class Limits(FrozenModel):
    """Seats, token budget, block size and context length."""

    max_num_seqs: Tiered
    """Most requests that hold KV memory at once."""
    max_num_seqs_with_drafts: int | None = Field(default=None, ge=1)
    """The same of a server with speculative decoding, which data-parallel groups divide; absent: unchanged."""
    max_num_seqs_of_families: Mapping[str, int] = {}
    """The same of a server for families of models; it goes before drafts."""
    max_num_batched_tokens: Tiered
    """Token budget of a step."""
    budget_of_exchanges: Mapping[str, int] = Field(default_factory=dict)
    """`deployment.all2all_backend` -> that budget for each of several data-parallel ranks that use it."""
    groups_share_budget: bool = False
    """Whether groups of data-parallel attention divide a budget that nobody set; it does not limit the seats then."""
    seat_tokens: int | None = Field(default=None, ge=1)
    """Tokens by which a `max_num_seqs` that is set is multiplied for the default budget; absent: no effect."""
    block_size: int = Field(ge=1)
    """Tokens per KV block."""
    max_model_len: Tiered | None = None
    """Context length if the engine does not take the model's, tokens."""
    is_model_len_shared: bool = False
    """Whether the seats divide the context length among them (llama.cpp slots)."""
    ubatch_size: int | None = Field(default=None, ge=1)
    """Tokens of a step that all kernels run for at once, a micro-batch, which pipeline stages hand on; absent: all."""
    source: str
    """Where the limits come from."""


class Memory(FrozenModel):
    """The share of GPU memory that the engine takes, and of which memory."""

    rule: MemoryRule
    """Base of the share: `total` memory (vLLM), `free_after_load`, or SGLang's `static_fraction`."""
    gpu_memory_utilization: Tiered | None = None
    """The share; absent: computed from `static_reserve`."""
    static_reserve: tuple[StaticReserve, ...] = ()
    """SGLang's reserve by GPU memory, largest first; the first that fits counts."""
    attention_share: AttentionShare | None = None
    """Kernels of attention that make the share smaller; absent: none."""
    loads_encoders: bool = True
    """Whether encoders of images and audio are loaded with the model; in llama.cpp they are a separate file."""
    loads_embeddings: bool = True
    """Whether the tables that tokens are looked up in are on the GPU; llama.cpp leaves them in host memory."""
    cpu_layers: Literal["before_context", "after_context"] | None = None
    """Whether the CPU takes the layers that do not fit if nobody sets their number: before a context that nobody set is
    shortened, or after; absent: it does not."""
    source: str
    """Where the rule and the share come from."""

    @model_validator(mode="after")
    def _has_one_share(self) -> Self:
        if (self.gpu_memory_utilization is None) != bool(self.static_reserve):
            raise ValueError("needs either gpu_memory_utilization or static_reserve")
        return self

    def reserve(self, gpu_memory_bytes: float) -> StaticReserve:
        """Return the reserve on a GPU with that much memory, for engines that compute the share from one."""
        return next(each for each in self.static_reserve if gpu_memory_bytes >= each.memory_at_least)


class Host(FrozenModel):
    """CPU time per step and per request."""

    seconds_per_step: Seconds
    """Scheduling and input preparation per step, seconds."""
    seconds_per_parallel_step: Seconds = Field(default=0.0, ge=0)
    """Additional time where several ranks have to agree on the step, seconds."""
    seconds_per_request: Seconds
    """Bookkeeping, sampling and output per request of a step, seconds."""
    sampling_seconds_per_vocabulary_entry: Seconds = Field(default=0.0, ge=0)
    """Additional time per vocabulary entry where the CPU samples, request by request, seconds; 0: the GPU samples."""
    seconds_per_further_request: Seconds = Field(default=0.0, ge=0)
    """Additional time for each request of a step beyond the first, seconds."""
    seconds_per_streamed_request: Seconds = Field(default=0.0, ge=0)
    """Additional time per stream, seconds: an output object a step on the scheduler's thread (vLLM before V1)."""
    seconds_per_verified_token: Seconds = Field(default=0.0, ge=0)
    """Additional time per draft and for the token after the drafts, seconds: KV slots, loop over accepted tokens."""
    seconds_per_nucleus_request: Seconds = Field(default=0.0, ge=0)
    """Additional time for a request that samples by top-k or top-p, seconds: its logits are sorted."""
    overlap: float = Field(ge=0, le=1)
    """Share of step and request time that asynchronous scheduling hides behind the GPU; 0: the engine has none."""
    eager_seconds_per_layer: Seconds = Field(default=0.0, ge=0)
    """Least time per layer in a step outside CUDA graphs, seconds: the host cannot launch its kernels faster."""
    eager_prompt_seconds_per_layer: Seconds | None = Field(default=None, ge=0)
    """The same in steps with prompts, whose attention is launched from more Python, seconds; absent: as above."""
    eager_dense_prompt_seconds_per_layer: Seconds | None = Field(default=None, ge=0)
    """The same for models without routed experts where no graphs of prompts are captured, seconds; absent: as above."""
    eager_gap_seconds_per_layer: Seconds = Field(default=0.0, ge=0)
    """GPU idle time per layer without routed experts in such a step, seconds: gaps between short kernels."""
    eager_gap_seconds_per_linear_layer: Seconds = Field(default=0.0, ge=0)
    """GPU idle time per layer of linear attention, seconds: a dozen Triton kernels between torch operators."""
    captured_gap_seconds_per_linear_layer: Seconds | None = Field(default=None, ge=0)
    """That of a gated delta rule where graphs of prompts are captured, each of which ends at the layer, seconds;
    absent: the same. Mamba's layers keep the other one."""
    eager_seconds_per_linear_layer: Seconds = Field(default=0.0, ge=0)
    """Least time of a layer of linear attention in steps with prompts or outside CUDA graphs, seconds: piecewise graphs
    leave its kernels out, and the host cannot launch them faster; 0: as any other layer."""
    eager_seconds_per_compressed_layer: Seconds = Field(default=0.0, ge=0)
    """Least time of a layer of compressed attention (DeepSeek-V4) outside CUDA graphs, with its experts and residual
    streams, seconds: the host cannot launch its kernels faster; 0: as any other layer."""
    eager_seconds_per_expert_layer: Seconds = Field(default=0.0, ge=0)
    """Additional time for routed experts whose many small kernels are launched one by one (Triton), seconds."""
    eager_expert_formats: tuple[str, ...] = ()
    """Weight formats whose experts are launched that way; empty: all."""
    eager_expert_rank_share: float = Field(default=0.0, ge=0)
    """Relative increase of that for each doubling of the tensor-parallel ranks: all wait for the slowest host."""
    row_split_seconds_per_layer: Seconds = Field(default=0.0, ge=0)
    """Additional time per layer where one thread splits matrices by rows over its GPUs, seconds (llama.cpp)."""
    row_split_seconds_per_layer_rank: Seconds = Field(default=0.0, ge=0)
    """What each of these GPUs adds to that, seconds."""
    frontend_latency: Seconds = Field(gt=0)
    """From arrival to the scheduler, seconds: HTTP and the hand-over to the queue."""
    tokenizer_wait: Seconds = Field(default=0.0, ge=0)
    """Time for which a prompt waits for others to be split into tokens with it, seconds: a timer, on any CPU."""
    tokenization_per_token: Seconds = Field(default=0.0, ge=0)
    """Additional time per prompt token, seconds: splitting text into tokens."""
    api_server_seconds_per_request: Seconds = Field(default=0.0, ge=0)
    """Time of the API server for a request before the engine gets it, one request after another, seconds; 0: not
    known."""
    chat_template_seconds: Seconds = Field(default=0.0, ge=0)
    """Time to parse the template of each chat, one after another, seconds; 0: the parsed template is kept."""
    chat_template_seconds_of: Mapping[str, Seconds] = Field(default_factory=dict)
    """Family of models, or ending of their names in lower case -> that time where their template is another one."""
    api_server_seconds_per_token: Seconds = Field(default=0.0, ge=0)
    """Time of the one process that detokenises and sends per streamed token, seconds; 0: not known to be a bottleneck.
    `deployment.streaming` replaces it."""
    api_server_seconds_per_token_of: Mapping[str, Seconds] = Field(default_factory=dict)
    """Family of models -> that time where their tokeniser is slower than others: one without compiled code."""
    enforced_eager_seconds_per_layer: Seconds | None = Field(default=None, ge=0)
    """`eager_seconds_per_layer` with `enforce_eager`, which also switches off compilation; absent: the same."""
    eager_draft_seconds_per_layer: Seconds | None = Field(default=None, ge=0)
    """The same for a draft model whose passes no CUDA graph covers; absent: graphs cover them."""
    decode_graph_gap_seconds_per_layer: Seconds = Field(default=0.0, ge=0)
    """GPU idle seconds per layer of a step with prompts kept off graphs by `cudagraph_mode: FULL_DECODE_ONLY`."""
    piecewise_seconds_per_layer: Seconds = Field(default=0.0, ge=0)
    """Least time of a layer in steps on piecewise graphs, between which the host launches attention, seconds: short
    prompts, unless `cudagraph_mode` is FULL, and decode steps where it is PIECEWISE."""
    interpreted: Mapping[str, Seconds] = Field(default_factory=dict)
    """Fields of this block that differ where an option is set that compiled engines have not: TensorRT-LLM's PyTorch
    backend beside them (`enforce_eager`, `async_scheduling`, `cuda_graph_padding`)."""
    source: str
    """Where the figures come from."""

    @field_validator("interpreted")
    @classmethod
    def _of_this_block(cls, value: Mapping[str, float]) -> Mapping[str, float]:
        unknown = sorted(value.keys() - cls.model_fields.keys())
        if unknown:
            raise ValueError(f"no times of the host: {', '.join(unknown)}")
        return value

    @model_validator(mode="before")
    @classmethod
    def _renamed(cls, data: Any) -> Any:
        """Read files of before November 2026, in which chats alone occupied the API server."""
        if not isinstance(data, Mapping) or "chat_seconds_per_request" not in data:
            return data
        known = dict(data)
        known.setdefault("api_server_seconds_per_request", known.pop("chat_seconds_per_request"))
        return known


class LoadedMethod(FrozenModel):
    """A quantisation method whose checkpoints an engine loads."""

    method: str
    """Name in checkpoints (``quant_method``): fp8, modelopt, mxfp4 ..."""
    formats: tuple[WeightFormatName, ...] = ()
    """Formats that it may have produced; empty: all."""
    fp8_scales: tuple[Fp8Scales, ...] = ()
    """Scales that its FP8 weights may have; empty: all."""

    def covers(self, checkpoint: Checkpoint) -> bool:
        """Return whether a checkpoint was made by this method."""
        is_format = not self.formats or checkpoint.format in self.formats
        is_scaled = bool(self.fp8_scales) and "fp8" in checkpoint.all_formats
        has_scales = not is_scaled or checkpoint.fp8_scales in self.fp8_scales
        return checkpoint.method == self.method and is_format and has_scales


class Checkpoints(FrozenModel):
    """How the engine converts checkpoints."""

    loaded_methods: tuple[LoadedMethod, ...] = ()
    """Quantisation methods whose checkpoints it loads; empty: any, in formats that it runs."""
    quantises_on_load: tuple[WeightFormatName, ...] = ()
    """Formats to which it converts 16-bit weights while loading them."""
    quantises_before_loading: tuple[WeightFormatName, ...] = ()
    """Formats to which a tool of its own converts 16-bit weights, once."""
    kv_cache_of_methods: tuple[str, ...] = ()
    """Quantisation methods (``method`` of a model's checkpoints) whose KV format ``auto`` takes from the checkpoint."""
    narrow_sparse_kv_capability: float | None = Field(default=None, gt=0)
    """CUDA compute capability from which ``auto`` keeps the latent keys of sparse attention in FP8; absent: never."""
    narrow_kv_families: Mapping[str, int] = Field(default_factory=dict)
    """Model family -> CUDA compute capability, before the point, on which ``auto`` keeps its KV in FP8."""
    casts_float32: bool = False
    """Whether it loads 32-bit weights in 16 bit unless 32 is asked for."""
    source: str
    """Where that is stated."""


class EngineVersion(FrozenModel):
    """Every default of one version. The file writes only what changed."""

    version: str
    """Version from which these defaults hold."""
    is_default: bool = True
    """Whether scenarios that name no version may get it; not one of which there are only a few release candidates."""
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
    """Measured factors of a server that its owner calibrated; absent: not calibrated."""


class FeatureRange(FrozenModel):
    """Versions that have a feature, and the GPUs on which they have it."""

    since: str
    """First version with it."""
    until: str | None = None
    """First version without it again; absent: no such version."""
    capability_at_least: float | None = Field(default=None, gt=0)
    """Least CUDA compute capability on which it runs; ignored for other makers' GPUs."""
    note: str = ""
    """What a reader of a result with it should know."""
    source: str
    """Where first and last version come from."""

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
        """The range in words, for a sentence."""
        text = f"{self.since} and newer" if self.until is None else f"{self.since} to before {self.until}"
        least = self.capability_at_least
        return text if least is None else f"{text} on GPUs of compute capability {least:g} or newer"


class ModelCode(FrozenModel):
    """Models for which an engine has code of its own, and the versions that have it."""

    since: str
    """First version with it; ``"0"``: all that are known here, or the first is unknown."""
    until: str | None = None
    """First version without it again; absent: no such version."""
    architectures: tuple[str, ...] = Field(min_length=1)
    """Classes, as the ``architectures`` of a Hugging Face ``config.json`` name them."""
    needs: Literal["experts"] | None = None
    """What the version added to a class that was already supported; absent: the class itself."""
    source: str
    """Where the version comes from."""

    def covers(self, architecture: str, has_experts: bool) -> bool:
        """Return whether a model of a class needs this version."""
        return architecture in self.architectures and (self.needs is None or has_experts)


def _joined(ranges: Sequence[FeatureRange]) -> list[FeatureRange]:
    """Return ranges with adjacent ones on the same GPUs merged."""
    found: list[FeatureRange] = []
    for each in ranges:
        last = found[-1] if found else None
        if last is not None and (last.until, last.capability_at_least) == (each.since, each.capability_at_least):
            found[-1] = last.model_copy(update={"until": each.until})
        else:
            found.append(each)
    return found


class LeftOut(FrozenModel):
    """A feature that versions of an engine have and that is not simulated."""

    since: str
    """First version with it."""
    why: Annotated[str, Field(min_length=1)]
    """What it does there, as a clause whose subject is the engine."""
    source: str
    """Where version and clause come from."""


class EngineProfile(FrozenModel):
    """A serving engine: its versions, oldest first, each with every default."""

    name: str
    """Catalogue name."""
    base: str | None = None
    """Engine that it is a calibration of, whose kernels, formats, features, models and flags hold; absent: none."""
    description: str
    """What it is and what the profile leaves out."""
    new_from: str | None = None
    """Version that changed how it serves: errors measured before it and from it on are reported apart; absent: none."""
    features: Mapping[str, tuple[FeatureRange, ...]] = Field(default_factory=dict)
    """Feature, a key of `FEATURES` -> versions that have it; features not named are absent from every version."""
    left_out: Mapping[str, LeftOut] = Field(default_factory=dict)
    """Feature, a key of `FEATURES` that `features` does not name -> the message if it is requested."""
    models: tuple[ModelCode, ...] = ()
    """Which versions run which models, oldest first; nothing is known of models not named."""
    unlisted_models: Annotated[str, Field(min_length=1)] | None = None
    """Why nothing is known of the models that `models` does not name, as a clause that begins an answer; absent: they
    are old enough that all versions have them."""
    transformers: TransformersBackend | None = None
    """Models without code of their own that run through transformers, and since which version; absent: none."""
    windowed_kv: tuple[WindowedKV, ...] = ()
    """How the KV of layers with a sliding window is kept, oldest first; empty: like that of all other layers."""
    devices: Devices | None = None
    """Makers whose devices it runs on; absent: not known, any is accepted."""
    kv_transfers: tuple[KVTransfer, ...] = ()
    """How it sends KV caches from prefill to decode servers, oldest first; empty: `PLAIN_TRANSFER`."""
    kernel_blocks: tuple[KernelBlock, ...] = ()
    """KV block sizes that attention kernels force; the first that applies counts."""
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
        both = sorted(name for name in self.left_out if name in self.features or name not in FEATURES)
        if both:
            raise ValueError(f"left_out names {', '.join(both)}, which is no feature, or has versions")
        known = [(name, each.needs) for each in self.models for name in each.architectures]
        twice = sorted({name for name, needs in known if known.count((name, needs)) > 1})
        if twice:
            raise ValueError(f"models names {', '.join(twice)} more than once")
        return self

    def windows_of(self, version: str | None) -> WindowedKV | None:
        """Return how a version keeps layers with a sliding window; None: like all others. No version: the newest.

        Raises:
            InputError: ``version`` is not a version number.
        """
        wanted = version_key(version or self.newest.version)
        fitting = [known for known in self.windowed_kv if version_key(known.since) <= wanted]
        return fitting[-1] if fitting else None

    def kv_transfer_of(self, version: str | None) -> KVTransfer:
        """Return how a version transfers KV caches; no version: the newest."""
        wanted = version_key(version or self.newest.version)
        return next((each for each in reversed(self.kv_transfers) if version_key(each.since) <= wanted), PLAIN_TRANSFER)

    @property
    def newest(self) -> EngineVersion:
        """The newest version that scenarios get which name none."""
        return next((known for known in reversed(self.versions) if known.is_default), self.versions[-1])

    def nearest_version(self, requested: str | None) -> EngineVersion:
        """Return the defaults of the nearest version that is not newer than ``requested``.

        No version: the newest known. Older than all known: the oldest known.

        Raises:
            InputError: ``requested`` is not a version number.
        """
        if requested is None:
            return self.newest
        wanted = version_key(requested, [known.version for known in self.versions])
        fitting = [known for known in self.versions if version_key(known.version) <= wanted]
        return fitting[-1] if fitting else self.versions[0]

    def feature_range(self, feature: str, version: str | None) -> FeatureRange | None:
        """Return the range in which a version has a feature; None: it lacks the feature.

        Uses the version asked for, even if only an older one's defaults are known.
        """
        wanted = self.newest.version if version is None else version
        return next((each for each in self.features.get(feature, ()) if each.holds(wanted)), None)

    def features_of(self, version: str | None, compute_capability: str | None) -> tuple[str, ...]:
        """Return the features that a version has on a GPU."""
        ranges = ((name, self.feature_range(name, version)) for name in self.features)
        return tuple(sorted(name for name, each in ranges if each is not None and each.runs_on(compute_capability)))

    def lack(self, feature: str, version: str | None, gpu_name: str, compute_capability: str | None) -> str | None:
        """Return as a clause what a version lacks on a GPU and which versions have it; None: it has the feature."""
        found, asked = self.feature_range(feature, version), version or self.newest.version
        engine = f"{self.base or self.name} {asked}"
        if found is not None and found.runs_on(compute_capability):
            return None
        if found is not None:
            least = f"compute capability {found.capability_at_least:g} or newer"
            return f"{engine} has no {FEATURES[feature]} on {gpu_name} ({compute_capability}): that takes {least}"
        left_out = self.left_out.get(feature)
        if left_out is not None and version_key(asked) >= version_key(left_out.since):
            return f"{engine} {left_out.why}, which is not simulated"
        if left_out is not None:
            return f"{engine} has no {FEATURES[feature]} (that of {left_out.since} and newer is not simulated)"
        ranges = self.versions_with(feature)
        return f"{engine} has no {FEATURES[feature]} ({f'versions with it: {ranges}' if ranges else 'no version has'})"

    def lack_of_model(self, architecture: str | None, has_experts: bool, version: str | None) -> str | None:
        """Return in words which versions run a class of models; None: this one does, or it is not known."""
        wanted = version_key(self.newest.version if version is None else version)
        found = [each for each in self.models if each.covers(architecture or "", has_experts)]
        newest = max((each.since for each in found), key=version_key, default="0")
        until = next((each.until for each in found if each.until is not None), None)
        if wanted < version_key(newest):
            return f"{newest} and newer" if until is None else f"{newest} to before {until}"
        return f"those before {until}" if until is not None and wanted >= version_key(until) else None

    def lists(self, architecture: str) -> bool:
        """Return whether the versions that run a class of models are known."""
        return any(architecture in each.architectures for each in self.models)

    def transformers_for(self, architecture: str | None, version: str | None) -> str | None:
        """Return the oldest transformers release that lets a version run a class without code; None: it cannot."""
        backend, wanted = self.transformers, version_key(version or self.newest.version)
        if backend is None or wanted < version_key(backend.since):
            return None
        return backend.classes.get(architecture or "")

    def versions_with(self, feature: str) -> str:
        """Return in words the versions that have a feature; empty if none has."""
        return ", ".join(each.words for each in _joined(self.features.get(feature, ())))

    def version_source(self, requested: str | None) -> str:
        """Return how the version whose defaults apply was chosen, for `ResolvedEngine.sources`.

        ``scenario`` if the requested one is known, or is a patch release of a known one.
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
    """Return the notice for an answer if the version asked for is not known; None if it is.

    Args:
        source: `EngineProfile.version_source` of it.
    """
    return f"{name} {requested}: {source}" if source.startswith(_NOT_KNOWN) else None


def complete_versions(document: Mapping[str, Any], file: Path) -> list[dict[str, Any]]:
    """Return every block of each version, oldest first, as in the file: with units and sources.

    Args:
        document: Content of the file: ``defaults``, and ``versions`` with the keys that changed since the previous one,
            within mappings of a block too; null takes a key away.
        file: Named in errors.

    Raises:
        ProfileError: A part is missing, a changed block has no ``source``, an empty mapping stands for no change, or
            null for a key that is not there.
    """
    blocks = document.get("defaults")
    changes = document.get("versions")
    if not isinstance(blocks, dict):
        raise ProfileError("must be a mapping of blocks", file=file, key="defaults")
    if not isinstance(changes, list) or not all(isinstance(change, dict) for change in changes):
        raise ProfileError("must be a list of mappings", file=file, key="versions")
    complete: list[dict[str, Any]] = []
    for change in changes:
        merged = dict(blocks)
        for block, values in change.items():
            if isinstance(values, dict):
                where = f"versions.{change.get('version')}.{block}"
                if "source" not in values:
                    remedy = "say where the numbers come from"
                    raise ProfileError("is missing", file=file, key=f"{where}.source", remedy=remedy)
                merged[block] = _merged(merged.get(block), values, file, where)
            else:
                merged[block] = values
        complete.append(merged)
        blocks = {block: values for block, values in merged.items() if block != "version"}
    return complete


def _merged(earlier: Any, changes: Mapping[str, Any], file: Path, where: str) -> dict[str, Any]:
    """Return a mapping with what a version changes in it, key by key at every depth; null takes a key away."""
    merged = dict(earlier) if isinstance(earlier, dict) else {}
    for key, value in changes.items():
        if isinstance(value, dict):
            if not value and merged.get(key):
                rule, remedy = "is empty, which changes nothing", "null takes the whole key away"
                raise ProfileError(rule, file=file, key=f"{where}.{key}", remedy=remedy)
            merged[key] = _merged(merged.get(key), value, file, f"{where}.{key}")
        elif value is None:
            if key not in merged:
                rule, remedy = "takes away a key that no earlier version has", "leave it out, or correct its name"
                raise ProfileError(rule, file=file, key=f"{where}.{key}", remedy=remedy)
            del merged[key]
        else:
            merged[key] = value
    return merged


def load_engine(name: str, relative_to: Path | None = None) -> EngineProfile:
    """Return an engine profile by catalogue name or path.

    The file holds ``name``, ``description``, ``defaults`` (every block of the oldest version) and ``versions``, oldest
    first, each with the keys that changed since the previous one, as `complete_versions` merges them.

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
