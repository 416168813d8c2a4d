"""ResolvedEngine: every knob of one deployment's engine as a plain number, and where each came from.

Joins an engine profile with what the user set; knows neither the model's shapes nor what a step costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from simserve.profiles.checkpoint import WeightFormatName
from simserve.profiles.engine_offload import resolve_offload
from simserve.profiles.engine_overrides import Choices, read_overrides
from simserve.profiles.engine_profile import (
    EngineProfile,
    MemoryRule,
    load_engine,
)
from simserve.profiles.engine_resolution import (
    Place,
    resolve_host,
    resolve_limits,
    resolve_memory,
    resolve_new_token_ratio,
    resolve_scheduling,
)

__all__ = ["EngineProfile", "ResolvedEngine", "load_engine", "resolve_engine"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedEngine:
    """An engine as deployed; times in seconds, memory in bytes a GPU, lengths in tokens.

    Attributes:
        name: Engine.
        version: Known version whose defaults hold.
        requested_version: What the user asked for; None: nothing.
        batching: ``continuous`` or ``static``.
        scheduler: ``mixed`` or ``prefill_first``.
        admission: ``on_demand``, ``estimate`` or ``reserve``.
        scheduling_policy: ``fcfs``, ``priority`` or ``shortest_first``.
        priority_ageing: ``priority``: seconds of waiting that outweigh one level; 0: it does not count.
        priority_preemption: ``priority``: whether running requests make way for a better one.
        preemption_mode: ``recompute`` or ``swap``.
        swap_space: ``swap``: host memory for KV, bytes a GPU; else 0.
        kv_allocation: ``paged``, ``static``, ``pow2``, ``oracle`` or ``none``.
        max_num_seqs: Most requests that hold KV at once.
        max_num_batched_tokens: Token budget of a step.
        max_chunk_tokens: Most prefill tokens of one request in a step.
        max_model_len: Longest prompt plus output.
        enable_chunked_prefill: Whether a prompt may be split over steps.
        enable_prefix_caching: Whether equal prefixes share blocks.
        reserve_full_prompt: Whether ``on_demand`` admits only if the whole prompt fits.
        watermark: Share of the blocks that admission leaves free.
        block_size: Tokens a KV block.
        micro_batch_tokens: Tokens of a step that a pipeline stage hands on at once; None: all of them.
        static_batch_size: Most requests of a static batch.
        static_max_wait: Longest wait of a static batch's first request.
        new_token_ratio_initial: ``estimate``: share of ``max_tokens`` expected at first.
        new_token_ratio_minimum: ``estimate``: where it stops decaying.
        new_token_ratio_decay: ``estimate``: fall a decode step.
        memory_rule: What ``gpu_memory_utilization`` is a share of: ``total``, ``free_after_load``, or
            ``static_fraction`` (of the total, for weights and KV; the rest stays free for everything else).
        gpu_memory_utilization: The share.
        non_torch_bytes_single: CUDA context and libraries at tensor-parallel size 1.
        non_torch_bytes_parallel: The same above 1.
        activation_token_bytes_factor: Activation peak of a forward pass: this times
            ``max_num_batched_tokens`` x (hidden + intermediate / TP) x bytes an element. 3 reproduces vLLM
            issue 10517 within 1 %.
        activation_logit_bytes: Peak of sampling: this times ``max_num_seqs`` x vocabulary, while the hidden
            states of the step (``max_num_batched_tokens`` x hidden) still live. The two peaks do not add up:
            the larger counts.
        activation_base_bytes: Bytes of that peak however many seats there are.
        relaid_expert_formats: Weight formats whose experts' first matrices stay in memory twice.
        cuda_graph_bytes: Memory of the captured graphs.
        counts_cuda_graphs: Whether that is subtracted before KV; otherwise it comes out of the unused share.
        cuda_graph_sizes: Captured decode batches, ascending; a batch pads up to the next. Empty: no graphs.
        cuda_graph_max_batch: The last of them, 0 without graphs.
        cuda_graph_max_prompt_tokens: Tokens up to which a step that prefills runs on graphs too.
        enforce_eager: Whether nothing is captured in CUDA graphs; every step then waits for its launches.
        max_cudagraph_capture_size: Tokens of the largest captured batch as asked for, else of the largest there is.
        sampling: ``greedy`` or ``nucleus`` (by top-k or top-p), what clients ask for.
        async_scheduling: Whether the host prepares the next step while the GPU computes.
        attention_dp_timeout_iters: Steps for which the prompts of data-parallel ranks wait for each other; 0: none.
        async_output: Whether tokens are handed over while the next step runs, once its kernels have been launched.
        host_slowdown: Times as long as in the engine's profile that work on the CPU takes; the times below hold it.
        host_seconds_per_step: CPU time of a step.
        row_split_seconds_per_layer: What a layer takes longer whose products one thread gathers from the ranks.
        host_seconds_per_request: CPU time a request of a step.
        host_seconds_per_streamed_request: Part of it that hands tokens over one by one.
        eager_seconds_per_layer: Least seconds of a layer in a step that no CUDA graph covers.
        eager_prompt_seconds_per_layer: The same in steps that hold prompts; None: as much.
        eager_gap_seconds_per_layer: Idle time of the GPU in a layer without routed experts of such a step.
        eager_gap_seconds_per_linear_layer: The same in a layer of linear attention.
        eager_seconds_per_expert_layer: What routed experts add to it.
        eager_expert_formats: Weight formats whose experts do; empty: all.
        host_overlap: Share of both hidden behind the GPU; 0 without ``async_scheduling``.
        frontend_latency: From arrival to the scheduler.
        tokenization_per_token: What a token of the prompt adds to it; 0 where the scenario sets the latency.
        api_server_seconds_per_token: Seconds of the API server for a token of a stream.
        compute_efficiency: Scale on the hardware profile's kernel efficiencies.
        memory_share: Times that, the scale on its bandwidths.
        shared_decode_groups: Query heads a key-value head for which decode attention reads keys once for all of
            them, others read them each; None: any number.
        all_reduce: ``nccl``, or None for one of the engine's own.
        all_reduce_host_from: Bytes from which it also crosses the host link; infinite where it never does.
        mixed_decode_tile: Rows of queries that a decode fills beside a prompt under FlashAttention-2; 0: its own.
        fuses_all_reduce_norm: Whether the norm behind a small all-reduce is part of its kernel.
        fuses_activation_quantisation: Whether norms and activation functions round their results to 8 bits.
        narrow_kv_slowdown: Times as long a decode step takes a key of an 8-bit KV cache as the fitted kernels.
        expert_speed: Weight format -> times as fast as the fitted kernels experts compute.
        kernel_starts: Maker of the GPU -> times as long as its profile says that kernels take to start.
        plugin: What brings the kernels for the GPU's maker, "" where they are the engine's own.
        latent_attention_gap: Seconds that a layer's latent attention takes longer than the fitted kernels.
        num_group_router_kernels: Small kernels of a layer whose router chooses groups of experts first.
        max_bandwidth: Memory bandwidth beyond which the kernels gain nothing; infinite where they follow the GPU.
        max_flops: The same of the FLOP/s of 16-bit products.
        max_share_of_fp16: The same as a share of the FP16 rate, accumulated in FP16; None: all of it.
        supported_quantizations: Weight formats the version can run.
        quantises_on_load: Weight formats it makes of 16-bit weights while it loads them.
        quantises_before_loading: Weight formats that a tool of its own makes of 16-bit weights.
        kv_cache_of_methods: Ways of quantisation whose KV format ``auto`` takes from the checkpoint.
        narrow_sparse_kv_capability: CUDA compute capability from which ``auto`` keeps the keys of sparse attention in
            FP8; None: never.
        cpu_offload_gb: Weights a GPU that stay in host memory and are read over the host link in each step, GiB.
        n_gpu_layers: Layers on the GPU under llama.cpp, the others run on the CPU; None: all.
        num_gpu: The same under Ollama.
        sources: Knob -> ``scenario`` or ``vllm 0.12 default on h100-sxm-80gb``, with what moved a default.
    """

    name: str
    version: str
    requested_version: str | None
    batching: Literal["continuous", "static"]
    scheduler: Literal["mixed", "prefill_first"]
    admission: Literal["on_demand", "estimate", "reserve"]
    scheduling_policy: Literal["fcfs", "priority", "shortest_first"]
    priority_ageing: float
    priority_preemption: bool
    preemption_mode: Literal["recompute", "swap"]
    swap_space: float
    kv_allocation: Literal["paged", "static", "pow2", "oracle", "none"]
    max_num_seqs: int
    max_num_batched_tokens: int
    max_chunk_tokens: int
    max_model_len: int
    enable_chunked_prefill: bool
    enable_prefix_caching: bool
    reserve_full_prompt: bool
    watermark: float
    block_size: int
    micro_batch_tokens: int | None
    static_batch_size: int
    static_max_wait: float
    new_token_ratio_initial: float
    new_token_ratio_minimum: float
    new_token_ratio_decay: float
    memory_rule: MemoryRule
    gpu_memory_utilization: float
    non_torch_bytes_single: float
    non_torch_bytes_parallel: float
    activation_token_bytes_factor: float
    activation_logit_bytes: float
    activation_base_bytes: float
    relaid_expert_formats: tuple[str, ...]
    cuda_graph_bytes: float
    counts_cuda_graphs: bool
    cuda_graph_sizes: tuple[int, ...]
    cuda_graph_max_batch: int
    cuda_graph_max_prompt_tokens: int
    enforce_eager: bool
    max_cudagraph_capture_size: int
    sampling: str
    async_scheduling: bool
    attention_dp_timeout_iters: int
    async_output: bool
    host_slowdown: float
    host_seconds_per_step: float
    row_split_seconds_per_layer: float
    host_seconds_per_request: float
    host_seconds_per_streamed_request: float
    eager_seconds_per_layer: float
    eager_prompt_seconds_per_layer: float | None
    eager_gap_seconds_per_layer: float
    eager_gap_seconds_per_linear_layer: float
    eager_seconds_per_expert_layer: float
    eager_expert_formats: tuple[str, ...]
    host_overlap: float
    frontend_latency: float
    tokenization_per_token: float
    api_server_seconds_per_token: float
    compute_efficiency: float
    memory_share: float
    shared_decode_groups: tuple[int, ...] | None
    all_reduce: str | None
    all_reduce_host_from: float
    mixed_decode_tile: int
    fuses_all_reduce_norm: bool
    fuses_activation_quantisation: bool
    narrow_kv_slowdown: float
    expert_speed: Mapping[str, float]
    kernel_starts: Mapping[str, float]
    plugin: str
    latent_attention_gap: float
    num_group_router_kernels: int
    max_bandwidth: float
    max_flops: float
    max_share_of_fp16: float | None
    supported_quantizations: tuple[WeightFormatName, ...]
    quantises_on_load: tuple[WeightFormatName, ...]
    quantises_before_loading: tuple[WeightFormatName, ...]
    kv_cache_of_methods: tuple[str, ...]
    narrow_sparse_kv_capability: float | None
    cpu_offload_gb: float
    n_gpu_layers: int | None
    num_gpu: int | None
    sources: Mapping[str, str]


def resolve_engine(
    profile: EngineProfile,
    *,
    version: str | None,
    gpu_memory_bytes: float,
    gpu_name: str,
    model_max_len: int,
    overrides: Mapping[str, Any],
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    host_slowdown: float = 1.0,
) -> ResolvedEngine:
    """Return every knob of an engine as that version resolves it on that GPU.

    Args:
        profile: The engine.
        version: Version asked for; the nearest older known one is used, the newest known without one.
        gpu_memory_bytes: Total memory of a GPU, bytes.
        gpu_name: Name of the GPU, for defaults that except one and for the sources.
        model_max_len: Longest context of the model, tokens.
        overrides: What the user set, by DESIGN's names, in SI; absent and None are the same.
        tensor_parallel_size: For defaults that depend on it (SGLang).
        pipeline_parallel_size: Likewise.
        host_slowdown: Of the node, as its hardware profile has it.

    Raises:
        InputError: A value is out of range or not supported, or two contradict each other.
    """
    known = profile.nearest_version(version)
    ranks = tensor_parallel_size * pipeline_parallel_size
    place = Place(gpu_memory_bytes, gpu_name, tensor_parallel_size, ranks, host_slowdown)
    choices = Choices(read_overrides(overrides), f"{profile.name} {known.version} default on {gpu_name}")
    choices.sources["version"] = profile.version_source(version)
    scheduling = resolve_scheduling(choices, known)
    limits = resolve_limits(choices, known, place, model_max_len, scheduling["batching"])
    settings = {
        **scheduling,
        **limits,
        **resolve_new_token_ratio(choices, known),
        **resolve_memory(choices, known, place, limits["max_num_batched_tokens"], limits["max_num_seqs"]),
        **resolve_host(choices, known, place),
        **resolve_offload(choices, profile.name, known.version),
    }
    for key in set(settings) - set(choices.sources):
        choices.default(key, settings[key])
    return ResolvedEngine(
        name=profile.base or profile.name,
        version=known.version,
        requested_version=version,
        sources=dict(sorted(choices.sources.items())),
        **settings,
    )
