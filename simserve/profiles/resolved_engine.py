"""ResolvedEngine: every option of one deployment's engine as a plain number; knows not how it came about."""

from __future__ import annotations

from collections.abc import Mapping

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
    StatePool,
    UbatchRules,
)
from simserve.profiles.engine_profile import KernelTraits, LoadedMethod, MemoryRule
from simserve.profiles.model import WeightFormatName

DEFAULT_MAX_LORA_RANK = 16
"""Largest rank of an adapter by default: vLLM's ``max_lora_rank`` (config/lora.py)."""


class ResolvedEngine(EngineOptions, KernelTraits, UbatchRules):
    """An engine as deployed: its options, each with a value where there is one, and what the version brings with it.

    Times in seconds, memory in bytes a GPU, lengths in tokens. Made by `resolve_engine`, whose inputs were checked.
    """

    name: str
    """Engine."""
    version: str
    """Known version whose defaults hold."""
    requested_version: str | None
    """What the user asked for; None: nothing."""

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
    block_size: int
    max_model_len: int
    async_scheduling: bool
    attention_dp_timeout_iters: int = 0
    sampling: Sampling = "greedy"
    endpoint: Endpoint = "completions"
    enforce_eager: bool = False
    max_cudagraph_capture_size: int
    cudagraph_mode: CudagraphMode | None = None
    moe_backend: MoeBackend | None = None
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
    """Times as long that a measured server's GPUs take for a step."""
    prompt_time_factor: float = 1.0
    """Times as long, beside that, in steps that hold prompts."""
    batch_time_factor: float = 1.0
    """Times as long, beside the first, for what decode steps take beyond one request without context."""
    kernel_start_factor: float = 1.0
    """Times as long that its kernels take to start."""
    measured_on: str = ""
    """Which server the factors were measured on; empty: none was."""

    max_chunk_tokens: int
    """Most prefill tokens of one request in a step."""
    reserve_full_prompt: bool
    lifts_chunk_limit: bool
    ends_pass: bool
    misses_next: bool
    pads_lone_token: bool
    caches_decoded: bool
    evicts_by_block: bool
    ages_empty_blocks: bool
    keeps_radix_tree: bool
    evicts_missing: bool
    touches_waiting: bool
    waits_for_prefix: bool
    caches_at_end: bool
    reserves_page: bool
    expects_max_tokens: bool
    strikes_at_once: bool
    skips_ended: bool
    keeps_ratio: bool
    """What the release's scheduler does, as the engine's profile has it."""
    watermark: float
    """Share of the blocks that admission leaves free."""
    ubatch_size: int | None
    """Tokens of a micro-batch: of a step, all kernels run for so many at once; None: for all of them."""
    new_token_ratio_initial: float
    """`estimate`: share of `max_tokens` expected at first."""
    new_token_ratio_minimum: float
    """`estimate`: where it stops decaying."""
    new_token_ratio_decay: float
    """`estimate`: fall a decode step."""
    memory_rule: MemoryRule
    """What `gpu_memory_utilization` is a share of; `static_fraction`: of the total, for weights and KV alone."""
    loads_encoders: bool  # of images and audio, whatever prompts have
    non_torch_bytes_single: float
    non_torch_bytes_parallel: float
    non_torch_bytes_pcie: float
    """CUDA context and libraries at tensor-parallel size 1, above it, and there where PCIe alone joins the GPUs."""
    activation_token_bytes_factor: float
    activation_hidden_share: float
    """Activation peak of a forward pass: this times `max_num_batched_tokens` x (hidden + intermediate / TP) x bytes an
    element. 3 reproduces vLLM issue 10517 within 1 %."""
    activation_logit_bytes: float
    """Peak of sampling: this times `max_num_seqs` x vocabulary, while the hidden states of the step
    (`max_num_batched_tokens` x hidden) still live. The two peaks do not add up: the larger counts."""
    draft_activation_logit_bytes: float  # the same with drafts
    second_runner: SecondRunner | None  # on which that does not hold
    activation_base_bytes: float  # of that peak however many seats there are
    linear_states_per_cached_seat: int  # states of linear attention of a seat beside a prefix cache; one without
    linear_states_to_overlap: int  # as many more with `async_scheduling`
    state_pool: StatePool | None  # how states share the KV pool; None: they lie beside it
    relaid_expert_formats: tuple[str, ...]
    """Weight formats whose experts' first matrices stay in memory twice."""
    keeps_reduced: bool  # what ranks have summed, see `RuntimeMemory`
    cuda_graph_bytes: float  # memory of the captured graphs
    counts_cuda_graphs: bool  # whether that is subtracted before KV; otherwise it comes out of the unused share
    cuda_graph_sizes: tuple[int, ...]
    """Captured decode batches, ascending; a batch pads up to the next. Empty: no graphs."""
    cuda_graph_max_batch: int  # the last of them, 0 without graphs
    cuda_graph_max_prompt_tokens: int  # up to which a step that prefills runs on graphs too
    cuda_graph_max_expert_tokens: int  # up to which its routed experts do
    releases_late: bool
    overlaps_results: bool
    async_output: bool
    """Whether tokens are handed over while the next step runs, once its kernels have been launched."""
    host_seconds_per_step: float  # CPU time
    row_split_seconds_per_layer: float
    """What a layer takes longer whose products one thread gathers from the ranks."""
    host_seconds_per_request: float
    """CPU time a request of a step."""
    host_seconds_per_further_request: float = 0.0
    """What each request of a step takes beyond the first one."""
    host_seconds_per_streamed_request: float  # part of it that hands tokens over one by one
    eager_seconds_per_layer: float
    """Least seconds of a layer in a step that no CUDA graph covers."""
    eager_prompt_seconds_per_layer: float | None  # the same in steps that hold prompts; None: as much
    eager_draft_seconds_per_layer: float | None  # of a draft model without CUDA graphs; None: it has them
    eager_gap_seconds_per_layer: float
    """Idle time of the GPU in a layer without routed experts of such a step."""
    eager_gap_seconds_per_linear_layer: float
    """The same in a layer of linear attention."""
    eager_seconds_per_expert_layer: float
    """What routed experts add to it."""
    eager_expert_formats: tuple[str, ...]
    """Weight formats whose experts do; empty: all."""
    similar_prompts: bool | None = None
    """Whether requests take the slots that similar ones have left."""
    host_overlap: float
    """Share of both hidden behind the GPU; 0 without `async_scheduling`."""
    tokenization_per_token: float
    """What a token of the prompt adds to it; 0 where the scenario sets the latency."""
    frontend_seconds_per_request: float
    """What any request adds to it, of which the API server does one after another; 0 where the scenario sets it."""
    api_server_seconds_per_token: float
    """Seconds of the API server for a token of a stream."""
    plugin: str
    """What brings the kernels for the GPU's maker, "" where they are the engine's own."""
    supported_quantizations: tuple[WeightFormatName, ...]
    """Weight formats the version can run on this GPU."""
    loaded_methods: tuple[LoadedMethod, ...]
    """Ways of quantisation whose checkpoints it loads; empty: any, of the formats that it runs."""
    quantises_on_load: tuple[WeightFormatName, ...]
    """Weight formats it makes of 16-bit weights while it loads them."""
    quantises_before_loading: tuple[WeightFormatName, ...]
    """Weight formats that a tool of its own makes of 16-bit weights."""
    kv_cache_of_methods: tuple[str, ...]
    """Ways of quantisation whose KV format `auto` takes from the checkpoint."""
    narrow_sparse_kv_capability: float | None
    """CUDA compute capability from which `auto` keeps the keys of sparse attention in FP8; None: never."""
    casts_float32: bool
    """Whether it loads 32-bit weights in 16 bit where nobody asks for 32."""
    kv_transfer: KVTransfer
    """How it hands KV caches from prefill to decode servers."""
    features: tuple[str, ...]
    """What the version asked for can do on this GPU, of `simserve.profiles.engine_profile.FEATURES`."""
    sources: Mapping[str, str]
    """Name -> `scenario` or `vllm 0.12 default on h100-sxm-80gb`, with what moved a default."""
