"""How the knobs of an engine resolve: the user's value, else the version's default on that GPU.

Knows one version of one engine and one place; not which version was meant, nor the model beyond its length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from simserve.profiles.engine_memory import SizeRange
from simserve.profiles.engine_overrides import (
    Choices,
    refuse,
    refuse_admission,
    refuse_order,
    refuse_sharing,
    refuse_static_keys,
)
from simserve.profiles.engine_profile import CudaGraphs, EngineVersion, NewTokenRatio, Tiered

_SGLANG_RATIO = NewTokenRatio(
    initial=0.7, minimum_factor=0.14, decay_steps=600, source="SGLang 0.5's, as this engine does not estimate"
)


DEFAULT_SWAP_SPACE = 4.0 * 2**30
"""Bytes of host memory a GPU: vLLM's ``--swap-space 4`` (GiB), in its versions up to 0.17."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an engine runs, as far as its defaults depend on it.

    Attributes:
        gpu_memory_bytes: Total memory of a GPU, bytes.
        gpu_name: Name of the GPU.
        tensor_parallel_size: Tensor-parallel ranks.
        num_ranks: Tensor- times pipeline-parallel ranks.
        host_slowdown: Times as long as on an H100 node that work on the CPU takes.
    """

    gpu_memory_bytes: float
    gpu_name: str
    tensor_parallel_size: int
    num_ranks: int
    host_slowdown: float = 1.0

    def value(self, tiered: Tiered) -> float:
        """Return the default that holds here."""
        if not isinstance(tiered, tuple):
            return tiered
        fitting = (
            tier.value for tier in tiered if tier.fits(self.gpu_memory_bytes, self.gpu_name, self.tensor_parallel_size)
        )
        return next(fitting, tiered[-1].value)

    def count(self, tiered: Tiered) -> int:
        """Return the default that holds here, a whole number."""
        return round(self.value(tiered))


def resolve_scheduling(choices: Choices, known: EngineVersion) -> dict[str, Any]:
    """Return who goes first, what admission requires and how KV memory is given out.

    Raises:
        ScenarioError: A key of static batching without it, or an admission rule that does not fit the KV.
    """
    rules = known.scheduling
    batching = choices.pick("batching", rules.batching)
    refuse_static_keys(choices.asked, batching)
    kv_allocation = choices.pick("kv_allocation", str(rules.kv_allocation))
    refuse_admission(choices.asked, kv_allocation)
    admission, note = rules.admission, ""
    if kv_allocation != "paged" and admission != "on_demand":
        admission, note = "on_demand", f"as {kv_allocation} KV reserves by itself"
    shares_blocks, reason = batching == "continuous" and kv_allocation == "paged", ""
    if not shares_blocks:
        reason = "as only continuous batching in paged KV shares blocks"
    elif choices.asked.preemption_mode == "swap":
        shares_blocks, reason = False, "as swapped blocks are not shared"
    refuse_sharing(choices.asked, batching, kv_allocation)
    admission = choices.pick("admission", admission, note)
    is_by_priority = choices.asked.scheduling_policy == "priority"
    refuse_order(choices.asked, batching, kv_allocation, admission)
    return {
        "batching": batching,
        "kv_allocation": kv_allocation,
        "admission": admission,
        "scheduling_policy": choices.pick("scheduling_policy", "fcfs"),
        "priority_ageing": choices.pick("priority_ageing", 0.0) if is_by_priority else 0.0,
        "priority_preemption": choices.pick("priority_preemption", False) if is_by_priority else False,
        "preemption_mode": choices.pick("preemption_mode", "recompute"),
        "swap_space": choices.pick("swap_space", DEFAULT_SWAP_SPACE)
        if choices.asked.preemption_mode == "swap"
        else choices.default("swap_space", 0.0, "as nothing is swapped"),
        "enable_prefix_caching": choices.pick(
            "enable_prefix_caching",
            rules.enable_prefix_caching and shares_blocks,
            reason,
        ),
        "reserve_full_prompt": rules.reserve_full_prompt,
        "watermark": rules.watermark,
        "static_max_wait": choices.pick("static_max_wait", rules.static_max_wait),
    }


def resolve_limits(
    choices: Choices, known: EngineVersion, place: Place, model_max_len: int, batching: str
) -> dict[str, Any]:
    """Return seats, budget, chunking, context length, block size and static batch size.

    Raises:
        ScenarioError: The budget the user set cannot hold a prompt that may not be split.
    """
    seats = _seats(choices, known, place, batching)
    max_model_len = _max_model_len(choices, known, place, model_max_len, seats)
    chunking = known.chunked_prefill
    is_long = chunking.enable_above_model_len is not None and max_model_len > chunking.enable_above_model_len
    is_chunked = choices.pick(
        "enable_chunked_prefill",
        chunking.enable_chunked_prefill or is_long,
        f"as max_model_len exceeds {chunking.enable_above_model_len}" if is_long else "",
    )
    scheduler, note = known.scheduling.scheduler, ""
    if is_chunked and chunking.scheduler is not None:
        scheduler, note = chunking.scheduler, "with chunked prefill"
    budget = _budget(choices, known, place, seats, max_model_len if not is_chunked else 0, batching)
    if seats > budget:  # the user set the budget only, or both defaults
        seats = choices.default("max_num_seqs", budget, "capped at max_num_batched_tokens")
    size = seats
    if batching == "static":
        usual = None if choices.is_set("max_num_seqs") else known.scheduling.static_batch_size
        size = choices.pick("static_batch_size", min(seats, usual or seats), "" if usual else "max_num_seqs")
    return {
        "max_num_seqs": seats,
        "max_num_batched_tokens": budget,
        "max_chunk_tokens": budget,
        "max_model_len": max_model_len,
        "enable_chunked_prefill": is_chunked,
        "scheduler": choices.pick("scheduler", scheduler, note),
        "block_size": choices.pick("block_size", known.limits.block_size),
        "micro_batch_tokens": known.limits.micro_batch_tokens,
        "static_batch_size": size,
    }


def _seats(choices: Choices, known: EngineVersion, place: Place, batching: str) -> int:
    default, note = place.count(known.limits.max_num_seqs), ""
    size = choices.asked.static_batch_size
    if batching == "static" and size is not None:
        default, note = size, "set to static_batch_size"
    return choices.pick("max_num_seqs", default, note)


def _max_model_len(choices: Choices, known: EngineVersion, place: Place, model_max_len: int, seats: int) -> int:
    limits = known.limits
    default, note = model_max_len, "the model's"
    if limits.max_model_len is not None:
        default, note = place.count(limits.max_model_len), ""
    if limits.is_model_len_shared:
        default, note = max(default // seats, 1), f"shared by {seats} slots"
    if default > model_max_len:
        default, note = model_max_len, "capped at the model's"
    chosen = choices.pick("max_model_len", default, note)
    if chosen > model_max_len:
        choices.sources["max_model_len"] = f"scenario, beyond the model's {model_max_len}"
    return chosen


def _budget(choices: Choices, known: EngineVersion, place: Place, seats: int, unchunked_len: int, batching: str) -> int:
    """Return the token budget; ``unchunked_len`` is ``max_model_len`` while chunking is off, else 0."""
    chunking = known.chunked_prefill
    default, note = place.count(known.limits.max_num_batched_tokens), ""
    if not unchunked_len and chunking.max_num_batched_tokens is not None:
        default, note = place.count(chunking.max_num_batched_tokens), "with chunked prefill"
    if chunking.must_cover_model_len and unchunked_len > default:
        default, note = unchunked_len, "raised to max_model_len, as chunked prefill is off"
    is_asked = choices.is_set("max_num_seqs") or choices.is_set("static_batch_size")
    if is_asked and seats > default:
        default, note = seats, "raised to max_num_seqs"
    budget = choices.pick("max_num_batched_tokens", default, note)
    if chunking.must_cover_model_len and budget < unchunked_len and batching == "continuous":
        rule = f"must be at least max_model_len ({unchunked_len}) while chunked prefill is off"
        remedy = "set enable_chunked_prefill to true, raise it, or lower max_model_len"
        raise refuse("max_num_batched_tokens", budget, rule, remedy)
    return budget


def resolve_new_token_ratio(choices: Choices, known: EngineVersion) -> dict[str, float]:
    """Return the constants of `estimate` admission."""
    ratio = known.new_token_ratio or _SGLANG_RATIO
    minimum = ratio.initial * ratio.minimum_factor
    constants = {
        "new_token_ratio_initial": ratio.initial,
        "new_token_ratio_minimum": minimum,
        "new_token_ratio_decay": (ratio.initial - minimum) / ratio.decay_steps,
    }
    for key, value in constants.items():
        choices.default(key, value, "" if known.new_token_ratio else ratio.source)
    return constants


def _graph_sizes(graphs: CudaGraphs, place: Place, max_num_seqs: int, largest: int | None) -> tuple[int, ...]:
    """Return the captured sizes; ``largest``, where the user says it, in place of the engine's limits."""
    sizes = {
        size
        for entry in graphs.sizes
        for size in (range(entry.start, entry.stop + 1, entry.step) if isinstance(entry, SizeRange) else (entry,))
    }
    if sizes and largest is not None:
        last, step = max(sizes), _last_step(graphs)
        sizes |= {largest, *range(last + step, largest, step)}
        return tuple(sorted(size for size in sizes if size <= largest))
    if graphs.max_batch is not None:
        sizes = {size for size in sizes if size <= place.count(graphs.max_batch)}
    if graphs.max_batch_per_seq is not None:
        sizes = {size for size in sizes if size <= graphs.max_batch_per_seq * max_num_seqs}
    return tuple(sorted(sizes))


def _last_step(graphs: CudaGraphs) -> int:
    """Return how far the engine's largest captured sizes are apart."""
    return next((entry.step for entry in reversed(graphs.sizes) if isinstance(entry, SizeRange)), 8)


def resolve_memory(
    choices: Choices, known: EngineVersion, place: Place, budget: int, max_num_seqs: int
) -> dict[str, Any]:
    """Return the share of GPU memory and the inputs of the rule for what is neither weights nor KV.

    Raises:
        ScenarioError: A largest CUDA graph where there are none.
    """
    memory, runtime, graphs = known.memory, known.runtime_memory, known.cuda_graphs
    is_eager = choices.pick("enforce_eager", False)
    asked = choices.asked.max_cudagraph_capture_size
    if asked is not None and (is_eager or not graphs.sizes):
        why = "enforce_eager is on" if is_eager else f"version {known.version} of this engine captures none"
        raise refuse("max_cudagraph_capture_size", asked, f"needs CUDA graphs, and {why}", "leave it out")
    graph_sizes = () if is_eager else _graph_sizes(graphs, place, max_num_seqs, asked)
    largest = graph_sizes[-1] if graph_sizes else 0
    share = 0.0
    if memory.gpu_memory_utilization is not None:
        share = place.value(memory.gpu_memory_utilization)
    elif memory.static_reserve:
        share = memory.reserve(place.gpu_memory_bytes).share(place.gpu_memory_bytes, budget, largest, place.num_ranks)
    return {
        "enforce_eager": is_eager,
        "max_cudagraph_capture_size": choices.pick("max_cudagraph_capture_size", largest),
        "memory_rule": memory.rule,
        "gpu_memory_utilization": choices.pick("gpu_memory_utilization", share),
        "non_torch_bytes_single": runtime.non_torch_single,
        "non_torch_bytes_parallel": runtime.non_torch_parallel,
        "activation_token_bytes_factor": runtime.activation_token_factor,
        "activation_logit_bytes": runtime.activation_logit,
        "activation_base_bytes": runtime.activation_base,
        "relaid_expert_formats": runtime.relaid_expert_formats,
        "cuda_graph_bytes": graphs.memory if graph_sizes else 0.0,
        "counts_cuda_graphs": graphs.is_budgeted,
        "cuda_graph_sizes": graph_sizes,
        "cuda_graph_max_batch": largest,
        "cuda_graph_max_prompt_tokens": largest if graphs.covers_prompts else 0,
    }


def resolve_host(choices: Choices, known: EngineVersion, place: Place) -> dict[str, Any]:
    """Return CPU times, their overlap, and what the kernels can do.

    Raises:
        ScenarioError: Asynchronous scheduling of a version that has none.
    """
    host = known.host
    if choices.asked.enforce_eager and host.enforced_eager_seconds_per_layer is not None:
        host = host.model_copy(update={"eager_seconds_per_layer": host.enforced_eager_seconds_per_layer})
    is_async = choices.pick("async_scheduling", known.scheduling.async_scheduling)
    if is_async and not host.overlap:
        rule = f"is not possible: version {known.version} of this engine has no asynchronous scheduling"
        raise refuse("async_scheduling", is_async, rule, "leave it out or use a newer version")
    sampling: str = choices.pick("sampling", "greedy")
    sorting = host.seconds_per_nucleus_request if sampling == "nucleus" else 0.0
    agreeing = host.seconds_per_parallel_step if place.num_ranks > 1 else 0.0
    prompt_launching = host.eager_prompt_seconds_per_layer
    ranks = place.tensor_parallel_size if place.tensor_parallel_size > 1 else 0
    splitting = host.row_split_seconds_per_layer * (ranks > 0) + host.row_split_seconds_per_layer_rank * ranks
    slowdown: float = choices.pick("host_slowdown", place.host_slowdown)
    waiting = 1.0 + host.eager_expert_rank_share * math.log2(place.tensor_parallel_size)
    return {
        "async_scheduling": is_async,
        "attention_dp_timeout_iters": choices.pick("attention_dp_timeout_iters", 0),
        "async_output": known.scheduling.async_output,
        "host_slowdown": slowdown,
        "host_seconds_per_step": slowdown * (host.seconds_per_step + agreeing),
        "row_split_seconds_per_layer": slowdown * splitting,
        "sampling": sampling,
        "host_seconds_per_request": slowdown * (host.seconds_per_request + host.seconds_per_streamed_request) + sorting,
        "host_seconds_per_streamed_request": slowdown * host.seconds_per_streamed_request,
        "eager_seconds_per_layer": slowdown * host.eager_seconds_per_layer,
        "eager_prompt_seconds_per_layer": None if prompt_launching is None else slowdown * prompt_launching,
        "eager_gap_seconds_per_layer": slowdown * host.eager_gap_seconds_per_layer,
        "eager_gap_seconds_per_linear_layer": slowdown * host.eager_gap_seconds_per_linear_layer,
        "eager_seconds_per_expert_layer": slowdown * waiting * host.eager_seconds_per_expert_layer,
        "eager_expert_formats": host.eager_expert_formats,
        "host_overlap": host.overlap if is_async else 0.0,
        "frontend_latency": choices.pick("frontend_latency", slowdown * host.frontend_latency),
        "tokenization_per_token": 0.0 if choices.is_set("frontend_latency") else slowdown * host.tokenization_per_token,
        "api_server_seconds_per_token": slowdown * host.api_server_seconds_per_token,
        "compute_efficiency": known.kernels.compute_efficiency,
        "memory_share": known.kernels.memory_share,
        "shared_decode_groups": known.kernels.shared_decode_groups,
        "all_reduce": known.kernels.all_reduce,
        "all_reduce_host_from": known.kernels.all_reduce_host_from or math.inf,
        "fuses_activation_quantisation": known.kernels.fuses_activation_quantisation,
        "mixed_decode_tile": known.kernels.mixed_decode_tile,
        "fuses_all_reduce_norm": known.kernels.fuses_all_reduce_norm,
        "narrow_kv_slowdown": known.kernels.narrow_kv_slowdown,
        "expert_speed": known.kernels.expert_speed,
        "kernel_starts": known.kernels.kernel_starts,
        "plugin": "",
        "latent_attention_gap": known.kernels.latent_attention_gap,
        "num_group_router_kernels": known.kernels.num_group_router_kernels,
        "max_bandwidth": known.kernels.max_bandwidth or math.inf,
        "max_flops": known.kernels.max_flops or math.inf,
        "max_share_of_fp16": known.kernels.max_share_of_fp16,
        "supported_quantizations": known.kernels.quantizations,
        "quantises_on_load": known.checkpoints.quantises_on_load,
        "quantises_before_loading": known.checkpoints.quantises_before_loading,
        "kv_cache_of_methods": known.checkpoints.kv_cache_of_methods,
        "narrow_sparse_kv_capability": known.checkpoints.narrow_sparse_kv_capability,
    }
