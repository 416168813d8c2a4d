"""ResolvedEngine: every option of one deployment's engine as a plain number; knows nothing of its derivation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from simserve.profiles.checkpoint import WeightFormatName
from simserve.profiles.engine_options import (
    Admission,
    Batching,
    CudagraphMode,
    Endpoint,
    EngineOptions,
    KVAllocation,
    KVTransfer,
    MoeBackend,
    PreemptionMode,
    Sampling,
    Scheduler,
    SchedulingPolicy,
    SecondRunner,
    StateDtype,
    StatePool,
    UbatchRules,
)
from simserve.profiles.engine_profile import LoadedMethod, MemoryRule
from simserve.profiles.kernel_traits import KernelTraits

DEFAULT_MAX_LORA_RANK = 16  # Default of the largest rank of an adapter: vLLM's ``max_lora_rank`` (config/lora.py).
NVFP4_ON_MARLIN_SINCE = 12.0
"""CUDA compute capability from which `wide_nvfp4_families` are known to run on Marlin (vLLM issue 47047: RTX PRO 6000);
B200's kernels by TensorRT-LLM were not looked at."""


class ResolvedEngine(EngineOptions, KernelTraits, UbatchRules):
    """An engine as deployed: its options, each with its value if it has one, and the properties of its version.

    Times in seconds, memory in bytes per GPU, lengths in tokens. Made by `resolve_engine` from checked inputs.
    """

    name: str
    """Engine."""
    version: str
    """Known version whose defaults apply."""
    requested_version: str | None
    """Version that the user asked for; None: none."""

    batching: Batching
    scheduler: Scheduler
    admission: Admission
    scheduling_policy: SchedulingPolicy = "fcfs"
    priority_ageing: float = 0.0
    priority_preemption: bool = False
    preemption_mode: PreemptionMode = "recompute"
    kv_allocation: KVAllocation
    max_num_seqs: int
    max_num_batched_tokens: int
    enable_chunked_prefill: bool
    enable_prefix_caching: bool
    gpu_memory_utilization: float
    max_loras: int = 0
    max_lora_rank: int = DEFAULT_MAX_LORA_RANK
    max_cpu_loras: int = 0
    swa_full_tokens_ratio: float | None = None
    disable_hybrid_kv_cache_manager: bool = False
    block_size: int
    max_model_len: int
    async_scheduling: bool
    attention_dp_timeout_iters: int = 0
    schedule_conservativeness: float = 1.0
    enable_prefill_delayer: bool = False
    prefill_delayer_max_delay_passes: int = 0
    prefill_delayer_token_usage_low_watermark: float = 0.0
    sampling: Sampling = "greedy"
    endpoint: Endpoint = "completions"
    enforce_eager: bool = False
    max_cudagraph_capture_size: int
    cuda_graph_padding: bool = True
    piecewise_cuda_graph_max_tokens: int = 0
    cudagraph_mode: CudagraphMode | None = None
    moe_backend: MoeBackend | None = None
    mamba_ssm_cache_dtype: StateDtype | None = None
    mamba_full_memory_ratio: float | None = None
    max_mamba_cache_size: int | None = None
    flashinfer_sampler: bool = False
    frontend_latency: float
    host_slowdown: float
    static_batch_size: int
    static_max_wait: float
    cpu_offload_gb: float = 0.0
    swap_space: float

    all_reduce_host_from: float
    max_bandwidth: float
    max_flops: float

    gpu_time_factor: float = 1.0
    """Measured factor on the GPU time of a step."""
    prompt_time_factor: float = 1.0
    """Further factor on steps with prompts."""
    batch_time_factor: float = 1.0
    """Besides `gpu_time_factor`: factor on the part of decode steps beyond one request without context."""
    kernel_start_factor: float = 1.0
    """Factor on the start-up time of its kernels."""
    measured_on: str = ""
    """Server on which the factors were measured; empty: none."""

    max_chunk_tokens: int
    """Most prefill tokens of one request in a step, or in a micro-batch of pipeline stages."""
    reserve_full_prompt: bool
    allocates_prompt: bool
    suspends: bool
    aligns_chunks: bool
    overlaps_chunks: bool
    keeps_micro_batches: bool
    samples_in_turn: bool
    lifts_chunk_limit: bool
    ends_pass: bool
    misses_next: bool
    pads_lone_token: bool
    caches_results: bool
    caches_decoded: bool
    evicts_by_block: bool
    ages_empty_blocks: bool
    keeps_radix_tree: bool
    evicts_missing: bool
    touches_waiting: bool
    keeps_bare_leaves: bool
    waits_for_prefix: bool
    caches_at_end: bool
    ignores_found: bool
    reserves_page: bool
    expects_max_tokens: bool
    strikes_at_once: bool
    skips_ended: bool
    keeps_ratio: bool
    rotates_ranks: bool
    delays_for_seats: bool
    bounds_prompt_delay: bool
    forgets_batches: bool
    reserved_decode_tokens: int
    """Behaviour of the release's scheduler, from the engine's profile."""
    watermark: float
    """Share of the blocks that admission keeps free."""
    max_used_share: float
    """`suspends`: share of the blocks in use above which no request begins."""
    ubatch_size: int | None
    """Tokens per micro-batch: all kernels of a step run for this many at once; None: for all of them."""
    new_token_ratio_initial: float
    """`estimate`: initial share of `max_tokens` that is expected."""
    new_token_ratio_minimum: float
    """`estimate`: share at which it stops decaying."""
    new_token_ratio_decay: float
    """`estimate`: decrease per decode step."""
    memory_rule: MemoryRule
    """Base of `gpu_memory_utilization`; `static_fraction`: the total, for weights and KV only."""
    loads_encoders: bool  # for images and audio, whatever prompts contain
    loads_embeddings: bool = True  # on the GPU, for looking tokens up
    cpu_layers: Literal["before_context", "after_context"] | None = None
    """Whether the CPU takes layers that do not fit, before or after the context is shortened; None: it does not."""
    non_torch_bytes_single: float
    non_torch_bytes_parallel: float
    non_torch_bytes_pcie: float
    """CUDA context and libraries at tensor-parallel size 1, above it, and above it if only PCIe joins the GPUs."""
    activation_token_bytes_factor: float
    activation_hidden_share: float
    """Activation peak of a forward pass: factor on `max_num_batched_tokens` x (hidden + intermediate / TP) x bytes per
    element. 3 reproduces vLLM issue 10517 within 1 %."""
    activation_logit_bytes: float
    """Peak of sampling: factor on `max_num_seqs` x vocabulary, while the hidden states of the step
    (`max_num_batched_tokens` x hidden) still exist. The two peaks are not added: the larger counts."""
    draft_activation_logit_bytes: float  # the same with drafts
    second_runner: SecondRunner | None  # where that does not apply
    activation_base_bytes: float  # part of that peak independent of the number of seats
    linear_states_per_cached_seat: int  # states of linear attention per seat with a prefix cache; without: one
    linear_states_to_overlap: int  # further ones with `async_scheduling`
    sizes_states_by_share: bool  # whether seats do not limit the memory of states beside a prefix cache
    shares_uncached_states: bool  # the same without a prefix cache, unless seats are set
    padding_states: int  # states besides those of seats, for padded sequences
    keeps_float32_states: bool  # states of Mamba in 32 bit whatever the checkpoint says
    counts_whole_index_keys: bool  # an indexer's key for each token even if keys of several are pooled with weights
    keeps_unused_index_keys: bool  # a cache of indexers' keys also in layers without an indexer
    draft_states: Literal["first", "joint", "each"] | None  # states of drafts, see `RuntimeMemory`
    state_pool: StatePool | None  # how states share the KV pool; None: they are outside it
    relaid_expert_formats: tuple[str, ...]
    """Weight formats whose experts' first matrices are kept in memory twice."""
    keeps_reduced: bool  # sums over ranks, see `RuntimeMemory`
    cuda_graph_bytes: float  # memory of the captured graphs
    counts_cuda_graphs: bool  # whether that is subtracted before KV; otherwise it comes out of the unused share
    cuda_graph_sizes: tuple[int, ...]
    """Captured decode batch sizes, ascending; with `cuda_graph_padding` a batch is padded to the next. Empty: none."""
    cuda_graph_max_batch: int  # the last of them, 0 without graphs
    cuda_graph_max_prompt_tokens: int  # most tokens of a prefill step on graphs
    piecewise_cuda_graph_sizes: tuple[int, ...] = ()
    """Tokens of steps with prompts that are captured in pieces, ascending; fewer are padded to the next."""
    cuda_graph_max_expert_tokens: int  # most tokens for its routed experts
    releases_late: bool
    overlaps_results: bool
    async_output: bool
    """Whether tokens are handed over while the next step runs, once its kernels have been launched."""
    host_seconds_per_step: float  # CPU time
    row_split_seconds_per_layer: float
    """Additional time of a layer whose products one thread gathers from the ranks."""
    host_seconds_per_request: float
    """CPU time per request of a step."""
    host_seconds_per_further_request: float = 0.0
    """Additional CPU time per request of a step beyond the first."""
    host_seconds_per_streamed_request: float  # part of it for handing over tokens one by one
    eager_seconds_per_layer: float
    """Least seconds per layer in a step that no CUDA graph covers."""
    eager_prompt_seconds_per_layer: float | None  # the same in steps with prompts; None: the same value
    eager_draft_seconds_per_layer: float | None  # of a draft model without CUDA graphs; None: it has them
    eager_gap_seconds_per_layer: float
    """GPU idle time per layer without routed experts in such a step."""
    eager_gap_seconds_per_linear_layer: float
    """The same in a layer of linear attention."""
    eager_seconds_per_linear_layer: float
    """Least time of a layer of linear attention in steps with prompts or outside CUDA graphs; 0: as any other layer."""
    eager_seconds_per_compressed_layer: float
    """Least time of a layer of compressed attention outside CUDA graphs; 0: as any other layer."""
    eager_seconds_per_expert_layer: float
    """Additional time for routed experts."""
    piecewise_seconds_per_layer: float
    """Least time of a layer in decode steps on piecewise graphs; 0: one graph holds a whole step."""
    piecewise_prompt_seconds_per_layer: float
    """The same in steps with prompts, unless the host launched them earlier."""
    eager_expert_formats: tuple[str, ...]
    """Weight formats whose experts add it; empty: all."""
    similar_prompts: bool | None = None
    """Whether requests take the slots that similar ones have left."""
    equal_answers: bool = False
    """Whether requests leave their slots in the order in which they took them."""
    host_overlap: float
    """Share of step and request time hidden behind the GPU; 0 without `async_scheduling`."""
    tokenizer_wait: float
    """Seconds of `frontend_latency` until the tokeniser begins; 0 if the scenario sets the latency."""
    tokenization_per_token: float
    """Additional front-end time per prompt token; 0 if the scenario sets the latency."""
    frontend_seconds_per_request: float
    """Additional front-end time per request, serial in the API server; 0 if the scenario sets the latency, and for
    batches in the engine's own process."""
    api_server_seconds_per_token: float
    """Seconds of the API server per streamed token."""
    plugin: str
    """Plug-in with the kernels for the GPU's maker, "" if they are the engine's own."""
    supported_quantizations: tuple[WeightFormatName, ...]
    """Weight formats that the version can run on this GPU."""
    loaded_methods: tuple[LoadedMethod, ...]
    """Quantisation methods whose checkpoints it loads; empty: any, in formats that it runs."""
    quantises_on_load: tuple[WeightFormatName, ...]
    """Weight formats to which it converts 16-bit weights while loading them."""
    quantises_before_loading: tuple[WeightFormatName, ...]
    """Weight formats to which a tool of its own converts 16-bit weights."""
    kv_cache_of_methods: tuple[str, ...]
    """Quantisation methods whose KV format `auto` takes from the checkpoint."""
    narrow_sparse_kv_capability: float | None
    """CUDA compute capability from which `auto` keeps the keys of sparse attention in FP8; None: never."""
    narrow_kv_families: Mapping[str, int]
    """Model family -> CUDA compute capability, before the point, on which `auto` keeps its KV in FP8."""
    casts_float32: bool
    """Whether it loads 32-bit weights in 16 bit unless 32 is asked for."""
    kv_transfer: KVTransfer
    """How it sends KV caches from prefill to decode servers."""
    features: tuple[str, ...]
    """Features of the requested version on this GPU, from `simserve.profiles.engine_profile.FEATURES`."""
    sources: Mapping[str, str]
    """Name -> `scenario` or `vllm 0.12 default on h100-sxm-80gb`, with what changed a default."""

    def formats_of_experts(
        self, shares: Mapping[WeightFormatName, float], family: str, compute_capability: str | None
    ) -> dict[WeightFormatName, float]:
        """Return the formats in which routed experts run, each with its share: Marlin leaves inputs in 16 bit.

        Args:
            shares: The formats in which they are stored, each with its share.
            compute_capability: CUDA compute capability of the GPU; None for other makers.
        """
        is_chosen = family in self.wide_nvfp4_families and float(compute_capability or 0.0) >= NVFP4_ON_MARLIN_SINCE
        is_marlin = self.moe_backend == "marlin" if self.moe_backend is not None else is_chosen
        if "nvfp4" not in shares or not is_marlin or "nvfp4-wo" not in self.supported_quantizations:
            return dict(shares)
        found = dict(shares)
        found["nvfp4-wo"] = found.pop("nvfp4") + found.get("nvfp4-wo", 0.0)
        return found
