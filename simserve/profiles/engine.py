"""Resolves an engine: every option of one deployment as a plain number, with its source.

Combines an engine profile with what the user set; knows neither the model's shapes nor the cost of a step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from simserve.profiles.cuda_graphs import CudaGraphs
from simserve.profiles.engine_options import (
    EngineOptions,
    UbatchRules,
    block_scaled_kernels,
    check_options,
    prefill_worker_efficiency,
    refuse,
    refuse_admission,
    refuse_expert_kernels,
    refuse_order,
    refuse_sharing,
    refuse_static_keys,
    refuse_threshold,
)
from simserve.profiles.engine_profile import (
    FORMAT_FEATURES,
    Checkpoints,
    EngineProfile,
    EngineVersion,
    Host,
    NewTokenRatio,
    Scheduling,
    load_engine,
)
from simserve.profiles.kernel_traits import KernelTraits
from simserve.profiles.resolved_engine import ResolvedEngine
from simserve.profiles.static_reserve import ServerTraits
from simserve.profiles.tiers import Tiered

__all__ = ["EngineProfile", "ResolvedEngine", "load_engine", "resolve_engine"]

_ValueT = TypeVar("_ValueT")

_SGLANG_RATIO = NewTokenRatio(
    initial=0.7, minimum_factor=0.14, decay_steps=600, source="SGLang 0.5's, as this engine does not estimate"
)
DEFAULT_SWAP_SPACE = 4.0 * 2**30
"""Bytes of host memory per GPU: vLLM's ``--swap-space 4`` (GiB), in versions up to 0.17."""
DELAY_PASSES = 30  # Default of SGLang's ``prefill_delayer_max_delay_passes`` (server_args.py, 0.5.8 to 0.5.23).
_OF_CHECKPOINTS = [name for name in Checkpoints.model_fields if name != "source"]
"""How an engine converts checkpoints, under the same names."""


@dataclass(frozen=True, slots=True)
class _Choices:
    """Chooses the user's value or the engine's default for each option, and records which."""

    asked: EngineOptions  # What the user set.
    default_label: str  # How a default is cited: ``vllm 0.12 default on h100-sxm-80gb``.
    sources: dict[str, str] = field(default_factory=dict)  # Option -> where its value came from.

    def is_set(self, key: str) -> bool:
        """Return whether the user set an option."""
        return getattr(self.asked, key) is not None

    def pick(self, key: str, default: _ValueT, note: str = "") -> _ValueT:
        """Return the user's value of an option, otherwise ``default``; ``note`` says what changed the default."""
        value: _ValueT | None = getattr(self.asked, key)
        if value is not None:
            self.sources[key] = "scenario"
            return value
        return self.default(key, default, note)

    def default(self, key: str, value: _ValueT, note: str = "") -> _ValueT:
        """Return ``value``, recorded as the engine's default."""
        self.sources[key] = f"{self.default_label}, {note}" if note else self.default_label
        return value


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an engine runs: everything on which its defaults depend."""

    gpu_memory_bytes: float  # Total memory of a GPU, bytes.
    gpu_name: str  # Name of the GPU.
    tensor_parallel_size: int  # Tensor-parallel ranks.
    num_ranks: int  # Tensor- times pipeline-parallel ranks.
    data_parallel_size: int = 1  # Groups of ranks that share the experts.
    host_slowdown: float = 1.0  # Factor on CPU time relative to an H100 node.
    drafter: str | None = None  # Drafter of speculative decoding; None: none.
    model_family: str = ""  # Family of the served model.
    only_prefills: bool = False  # Whether other replicas decode.
    has_linear_layers: bool = False
    """Whether layers of the model keep a state of fixed size: Mamba or linear attention."""
    vocab_size: int = 0  # Size of the model's vocabulary.
    traits: ServerTraits = field(default_factory=ServerTraits)
    """What the server does, for which model and with which drafts."""

    def value(self, tiered: Tiered) -> float:
        """Return the default that applies here."""
        if not isinstance(tiered, tuple):
            return tiered
        ranks = self.tensor_parallel_size * self.data_parallel_size
        fitting = (tier.value for tier in tiered if tier.fits(self.gpu_memory_bytes, self.gpu_name, ranks))
        return next(fitting, tiered[-1].value)

    def count(self, tiered: Tiered) -> int:
        """Return the default that applies here, a whole number."""
        return round(self.value(tiered))


def resolve_engine(
    profile: EngineProfile,
    *,
    version: str | None,
    gpu_memory_bytes: float,
    gpu_name: str,
    model_max_len: int,
    options: EngineOptions,
    compute_capability: str | None = None,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    data_parallel_size: int = 1,
    host_slowdown: float = 1.0,
    drafter: str | None = None,
    model_family: str = "",
    only_prefills: bool = False,
    has_block_scales: bool = False,
    has_linear_layers: bool = False,
    vocab_size: int = 0,
    traits: ServerTraits | None = None,
) -> ResolvedEngine:
    """Return every option of an engine as a version resolves it on a GPU.

    Options without a rule here are the user's, otherwise the defaults that `ResolvedEngine` states.

    Args:
        profile: The engine.
        version: Version asked for; the nearest older known one is used. None: the newest known.
        gpu_memory_bytes: Total memory of a GPU, bytes.
        gpu_name: Name of the GPU, for defaults with exceptions and for the sources.
        model_max_len: Longest context of the model, tokens.
        options: What the user set; the caller checks that the engine has these options.
        compute_capability: Of the GPU, for features of newer ones only; None for other makers.
        tensor_parallel_size: For defaults that depend on it (SGLang).
        pipeline_parallel_size: Likewise.
        data_parallel_size: Likewise: groups that share the experts; SGLang's tensor-parallel size counts all of them.
        host_slowdown: Of the node, from its hardware profile.
        drafter: Drafter of speculative decoding; None: none.
        model_family: Family of the served model, for settings of one family only.
        only_prefills: Whether other replicas decode.
        has_linear_layers: Whether layers of the model keep a state of fixed size, Mamba or linear attention.
        vocab_size: Size of its vocabulary, for engines that sample on the CPU.
        traits: What the server does, for which model and with which drafts. None: one for text, with plain attention.

    Raises:
        InputError: A value is not supported, or two contradict each other.
    """
    known = profile.nearest_version(version)
    ranks = tensor_parallel_size * pipeline_parallel_size
    graphs = known.cuda_graphs.prompts
    is_captured = graphs is not None and not (data_parallel_size > 1 and "data_parallel" in graphs.off_with)
    traits = traits or ServerTraits(captures_prompts=is_captured)
    place = _Place(
        *(gpu_memory_bytes, gpu_name, tensor_parallel_size, ranks, data_parallel_size, host_slowdown),
        *(drafter, model_family, only_prefills, has_linear_layers, vocab_size, traits),
    )
    check_options(options)
    refuse_expert_kernels(options, known.kernels.triton_expert_capabilities, compute_capability)
    features = profile.features_of(version, compute_capability)
    choices = _Choices(options, f"{profile.name} {known.version} default on {gpu_name}")
    choices.sources["version"] = profile.version_source(version)
    may_fuse_sampling = known.runtime_memory.flashinfer_sampler and bool(compute_capability)
    settings = {
        **_steps(choices, known, place, model_max_len, features, may_fuse_sampling=may_fuse_sampling),
        "mamba_ssm_cache_dtype": choices.pick("mamba_ssm_cache_dtype", None, "as the checkpoint says"),
        **_kernels(known, features),
        "disable_cascade_attn": choices.pick("disable_cascade_attn", known.kernels.disable_cascade_attn),
        "enable_nccl_nvls": choices.pick("enable_nccl_nvls", known.kernels.enable_nccl_nvls),
        **block_scaled_kernels(options, compute_capability, known.kernels.block_scaled_kernels),
        **{name: getattr(known.checkpoints, name) for name in _OF_CHECKPOINTS},
        "features": features,
        "kv_transfer": profile.kv_transfer_of(version),
        "plugin": "",
        "equal_answers": False,  # until the traffic is known
    }
    full_rate_from = known.kernels.full_prefill_rate_capability or math.inf
    if only_prefills and float(compute_capability or 0.0) < full_rate_from:
        settings["compute_efficiency"] *= prefill_worker_efficiency(options, model_family, has_block_scales)
    measured, is_latency_set = known.measured_factors, choices.is_set("frontend_latency")
    settings |= _scaled(settings, {} if measured is None else measured.values, is_latency_set=is_latency_set)
    settings["measured_on"] = "" if measured is None else measured.measured_on
    for key in EngineOptions.model_fields.keys() - settings.keys():
        settings[key] = choices.pick(key, ResolvedEngine.model_fields[key].default)
    for key in settings.keys() - choices.sources.keys():
        choices.default(key, settings[key])
    return ResolvedEngine.model_construct(
        name=profile.base or profile.name,
        version=known.version,
        requested_version=version,
        sources=dict(sorted(choices.sources.items())),
        **settings,
    )


def _steps(
    choices: _Choices,
    known: EngineVersion,
    place: _Place,
    model_max_len: int,
    features: Sequence[str],
    *,
    may_fuse_sampling: bool,
) -> dict[str, Any]:
    """Return what decides how requests share steps, and the memory and host time that follow from it."""
    unified = choices.pick("kv_unified", not choices.is_set("max_num_seqs") if "kv_unified" in features else None)
    scheduling = _scheduling(choices, known, place, is_shared=unified is True)
    limits = _limits(choices, known, place, model_max_len, scheduling)
    stages = place.num_ranks // place.tensor_parallel_size
    if known.scheduling.overlaps_lone_chunks and limits["max_num_seqs"] == 1 and stages > 1:
        chunk = limits["max_chunk_tokens"]
        scheduling["overlaps_chunks"], limits["max_chunk_tokens"] = True, min(chunk, limits["ubatch_size"] or chunk)
    fused = choices.pick("flashinfer_sampler", may_fuse_sampling)
    return {
        **scheduling,
        **limits,
        **_new_token_ratio(choices, known, place),
        **_memory(choices, known, place, limits["max_num_batched_tokens"], limits["max_num_seqs"]),
        **_host(choices, known, place, scheduling["enable_prefix_caching"], sorts=not fused),
        "activation_logit_bytes": known.runtime_memory.logit_bytes(fused),
        "flashinfer_sampler": fused,
        "kv_unified": unified,
    }


def _scheduling(choices: _Choices, known: EngineVersion, place: _Place, *, is_shared: bool) -> dict[str, Any]:
    """Return the scheduling order, the admission rule and the allocation of KV memory.

    Slots that share one buffer take what they need from it, token by token (llama.cpp's pull request 16736).
    """
    rules = known.scheduling
    batching = choices.pick("batching", rules.batching)
    refuse_static_keys(choices.asked, batching)
    is_shared &= rules.kv_allocation == "static" and batching == "continuous"
    rule, why = ("paged", "one buffer for all slots") if is_shared else (str(rules.kv_allocation), "")
    kv_allocation = choices.pick("kv_allocation", rule, why)
    refuse_admission(choices.asked, kv_allocation)
    admission, note = rules.admission, ""
    if kv_allocation != "paged" and admission != "on_demand":
        admission, note = "on_demand", f"as {kv_allocation} KV reserves by itself"
    shares_blocks, reason = batching == "continuous" and kv_allocation == "paged", ""
    if is_shared:
        shares_blocks, reason = False, "as each slot keeps its own last prompt"
    elif not shares_blocks:
        reason = "as only continuous batching in paged KV shares blocks"
    elif choices.asked.preemption_mode == "swap":
        shares_blocks, reason = False, "as swapped blocks are not shared"
    elif not _caches_states(rules, place):
        shares_blocks, reason = False, "off with Mamba or linear attention"
    refuse_sharing(choices.asked, batching, kv_allocation)
    admission = choices.pick("admission", admission, note)
    is_by_priority = choices.asked.scheduling_policy == "priority"
    refuse_order(choices.asked, batching, kv_allocation, admission)
    return {
        "batching": batching,
        "kv_allocation": kv_allocation,
        "admission": admission,
        "priority_ageing": choices.pick("priority_ageing", 0.0) if is_by_priority else 0.0,
        "priority_preemption": choices.pick("priority_preemption", False) if is_by_priority else False,
        "swap_space": choices.pick("swap_space", DEFAULT_SWAP_SPACE)
        if choices.asked.preemption_mode == "swap"
        else choices.default("swap_space", 0.0, "as nothing is swapped"),
        "prefill_delayer_max_delay_passes": choices.pick("prefill_delayer_max_delay_passes", DELAY_PASSES)
        if choices.asked.enable_prefill_delayer
        else 0,
        "enable_prefix_caching": choices.pick(
            "enable_prefix_caching", rules.enable_prefix_caching and shares_blocks, reason
        ),
        **{name: getattr(rules, name) for name in _OF_THE_RELEASE},
        "static_max_wait": choices.pick("static_max_wait", rules.static_max_wait),
    }


_OF_THE_RELEASE = (
    *("reserve_full_prompt", "lifts_chunk_limit", "ends_pass", "misses_next", "pads_lone_token", "caches_decoded"),
    *("evicts_by_block", "ages_empty_blocks", "keeps_radix_tree", "evicts_missing", "touches_waiting", "reserves_page"),
    *("caches_results", "keeps_bare_leaves"),
    *("expects_max_tokens", "strikes_at_once", "skips_ended", "keeps_ratio", "rotates_ranks"),
    "reserved_decode_tokens",
    *("delays_for_seats", "bounds_prompt_delay", "forgets_batches"),
    "watermark",
    *("waits_for_prefix", "caches_at_end", "ignores_found", "aligns_chunks", "allocates_prompt"),
    *("suspends", "max_used_share"),
    *("overlaps_chunks", "keeps_micro_batches", "samples_in_turn"),
    *UbatchRules.model_fields,
)
"""Rules of the scheduler that have no option."""


def _caches_states(rules: Scheduling, place: _Place) -> bool:
    """Return whether prefixes are shared by default, given the model's layers; SGLang's drafts excluded it."""
    if not place.has_linear_layers:
        return True
    return rules.state_caching != "off" and not (place.drafter and _caches_states_alone(rules, place))


def _caches_states_alone(rules: Scheduling, place: _Place) -> bool:
    """Return whether states are cached only without steps that are scheduled ahead and without drafts."""
    is_excepted = rules.state_caching == "on" and place.model_family in rules.synchronous_state_families
    return rules.state_caching == "synchronous" or is_excepted


def _limits(
    choices: _Choices, known: EngineVersion, place: _Place, model_max_len: int, scheduling: Mapping[str, Any]
) -> dict[str, Any]:
    """Return seats, budget, chunking, context length, block size and static batch size."""
    batching = scheduling["batching"]
    seats = _seats(choices, known, place, batching)
    slots = seats if scheduling["kv_allocation"] == "static" else 1
    max_model_len = _max_model_len(choices, known, place, model_max_len, slots)
    chunking = known.chunked_prefill
    is_long = chunking.enable_above_model_len is not None and max_model_len > chunking.enable_above_model_len
    is_chunked = choices.pick(
        "enable_chunked_prefill",
        chunking.enable_chunked_prefill or is_long,
        f"as max_model_len exceeds {chunking.enable_above_model_len}" if is_long else "",
    )
    refuse_threshold(choices.asked, batching, is_chunked, max_model_len)
    scheduler, note = known.scheduling.scheduler, ""
    if is_chunked and chunking.scheduler is not None:
        scheduler, note = chunking.scheduler, "with chunked prefill"
    budget = _budget(choices, known, place, seats, max_model_len if not is_chunked else 0, batching)
    is_shared = known.limits.groups_share_budget and place.data_parallel_size > 1
    if seats > budget and not is_shared:  # the user set only the budget, or both are defaults
        seats = choices.default("max_num_seqs", budget, "capped at max_num_batched_tokens")
    size = seats
    if batching == "static":
        usual = None if choices.is_set("max_num_seqs") else known.scheduling.static_batch_size
        size = choices.pick("static_batch_size", min(seats, usual or seats), "" if usual else "max_num_seqs")
    return {
        "max_num_seqs": seats,
        "max_num_batched_tokens": budget,
        "max_chunk_tokens": min(budget, choices.asked.long_prefill_token_threshold or budget),
        "max_model_len": max_model_len,
        "enable_chunked_prefill": is_chunked,
        "scheduler": choices.pick("scheduler", scheduler, note),
        "block_size": choices.pick("block_size", known.limits.block_size),
        "ubatch_size": choices.pick("ubatch_size", known.limits.ubatch_size),
        "static_batch_size": size,
    }


def _seats(choices: _Choices, known: EngineVersion, place: _Place, batching: str) -> int:
    limits = known.limits
    default, note = place.count(limits.max_num_seqs), ""
    server, reason = limits.max_num_seqs_of_families.get(place.model_family), f"of {place.model_family} models"
    if server is None and place.drafter:
        server, reason = limits.max_num_seqs_with_drafts, f"with drafts by {place.drafter}"
    if server is not None:
        default, note = max(server // place.data_parallel_size, 1), reason
        if place.data_parallel_size > 1:
            note = f"a rank's share of {server} {reason}"
    size = choices.asked.static_batch_size
    if batching == "static" and size is not None:
        default, note = size, "set to static_batch_size"
    return choices.pick("max_num_seqs", default, note)


def _max_model_len(choices: _Choices, known: EngineVersion, place: _Place, model_max_len: int, slots: int) -> int:
    limits = known.limits
    default, note = model_max_len, "the model's"
    if limits.max_model_len is not None:
        default, note = place.count(limits.max_model_len), ""
    if limits.is_model_len_shared and slots > 1:
        default, note = max(default // slots, 1), f"shared by {slots} slots"
    if default > model_max_len:
        default, note = model_max_len, "capped at the model's"
    chosen = choices.pick("max_model_len", default, note)
    if chosen > model_max_len:
        choices.sources["max_model_len"] = f"scenario, beyond the model's {model_max_len}"
    return chosen


def _budget(
    choices: _Choices, known: EngineVersion, place: _Place, seats: int, unchunked_len: int, batching: str
) -> int:
    """Return the token budget; ``unchunked_len`` is ``max_model_len`` while chunking is off, else 0."""
    chunking = known.chunked_prefill
    default, note = place.count(known.limits.max_num_batched_tokens), ""
    if not unchunked_len and chunking.max_num_batched_tokens is not None:
        default, note = place.count(chunking.max_num_batched_tokens), "with chunked prefill"
    if chunking.must_cover_model_len and unchunked_len > default:
        default, note = unchunked_len, "raised to max_model_len, as chunked prefill is off"
    exchange = place.traits.exchange
    if exchange in known.limits.budget_of_exchanges and place.data_parallel_size > 1:
        default, note = known.limits.budget_of_exchanges[exchange], f"with {exchange}"
    if known.limits.groups_share_budget and place.data_parallel_size > 1:
        default, note = default // place.data_parallel_size, "a rank's share"
    is_asked = choices.is_set("max_num_seqs") or choices.is_set("static_batch_size")
    if is_asked and seats > default:
        default, note = seats, "raised to max_num_seqs"
    if is_asked and batching == "continuous" and known.limits.seat_tokens is not None:
        default, note = seats * known.limits.seat_tokens, f"max_num_seqs x {known.limits.seat_tokens:,} tokens of input"
    budget = choices.pick("max_num_batched_tokens", default, note)
    if chunking.must_cover_model_len and budget < unchunked_len and batching == "continuous":
        rule = f"must be at least max_model_len ({unchunked_len}) while chunked prefill is off"
        remedy = "set enable_chunked_prefill to true, raise it, or lower max_model_len"
        raise refuse("max_num_batched_tokens", budget, rule, remedy)
    return budget


def _new_token_ratio(choices: _Choices, known: EngineVersion, place: _Place) -> dict[str, float]:
    """Return the constants of `estimate` admission."""
    ratio = known.new_token_ratio or _SGLANG_RATIO
    initial = min(ratio.first(place.data_parallel_size) * choices.pick("schedule_conservativeness", 1.0), 1.0)
    minimum = initial * ratio.minimum_factor
    constants = {
        "new_token_ratio_initial": initial,
        "new_token_ratio_minimum": minimum,
        "new_token_ratio_decay": (initial - minimum) / ratio.decay_steps,
    }
    for key, value in constants.items():
        choices.default(key, value, "" if known.new_token_ratio else ratio.source)
    return constants


def _graph_sizes(
    graphs: CudaGraphs, place: _Place, max_num_seqs: int, largest: int | None, is_padded: bool
) -> tuple[int, ...]:
    """Return the captured sizes; ``largest``, if the user sets it, replaces the engine's limits."""
    sizes = graphs.every_size(is_padded=is_padded, drafts=place.drafter is not None)
    largest = graphs.max_batch_of_family.get(place.model_family) if largest is None else largest
    if sizes and largest is not None:
        sizes |= {largest, *(range(max(sizes) + graphs.last_step, largest, graphs.last_step) if is_padded else ())}
        return tuple(sorted(size for size in sizes if size <= largest))
    if not is_padded:
        limit = graphs.exact_max_batch or max(graphs.every_size())
        sizes = {size for size in sizes if size <= limit}
    if graphs.max_batch is not None:
        sizes = {size for size in sizes if size <= place.count(graphs.max_batch)}
    if graphs.max_batch_per_seq is not None:
        width = place.traits.tokens_per_decode if graphs.counts_drafts else 1
        sizes = {size for size in sizes if size <= graphs.max_batch_per_seq * max_num_seqs * width}
    return tuple(sorted({min(size, max_num_seqs) if graphs.captures_limit else size for size in sizes}))


def _memory(choices: _Choices, known: EngineVersion, place: _Place, budget: int, max_num_seqs: int) -> dict[str, Any]:
    """Return the share of GPU memory and the inputs of the rule for what is neither weights nor KV."""
    memory, runtime, graphs = known.memory, known.runtime_memory, known.cuda_graphs
    mode = choices.asked.cudagraph_mode
    if graphs.interpreted_sizes and _is_interpreted(choices.asked):
        graphs = graphs.model_copy(update={"sizes": graphs.interpreted_sizes})
    is_eager = _is_eager(choices.asked, known.host)
    asked = choices.asked.max_cudagraph_capture_size
    if asked is not None and (is_eager or not graphs.sizes):
        why = f"version {known.version} of this engine captures none"
        if is_eager:
            why = "cudagraph_mode is NONE" if mode else "enforce_eager is on"
        raise refuse("max_cudagraph_capture_size", asked, f"needs CUDA graphs, and {why}", "leave it out")
    is_padded = choices.pick("cuda_graph_padding", True)
    if not is_padded and (is_eager or not graphs.exact_sizes):
        rule = "must be true: " + ("no step runs on a CUDA graph" if is_eager else "this engine always pads")
        raise refuse("cuda_graph_padding", is_padded, rule, "leave it out")
    graph_sizes = () if is_eager else _graph_sizes(graphs, place, max_num_seqs, asked, is_padded)
    groups, seats = place.data_parallel_size, max_num_seqs * place.data_parallel_size
    if graphs.stays_within_seats and asked is None and choices.is_set("max_num_seqs") and graph_sizes[-1:] > (seats,):
        graph_sizes = _graph_sizes(graphs, place, max_num_seqs, seats, is_padded)
    largest = graph_sizes[-1] if graph_sizes else 0
    share = 0.0
    if memory.gpu_memory_utilization is not None:
        share = place.value(memory.gpu_memory_utilization)
    elif memory.static_reserve:
        case = replace(
            place.traits,
            chunk_tokens=budget * groups,
            graph_sequences=largest,
            ranks=place.num_ranks * groups,
            groups=groups,
            drafter=place.drafter,
            decode_sequences=seats if choices.is_set("max_num_seqs") else max(largest, 1),
        )
        share = memory.reserve(place.gpu_memory_bytes).share(place.gpu_memory_bytes, case)
    return {
        "max_cudagraph_capture_size": choices.pick("max_cudagraph_capture_size", largest),
        "memory_rule": memory.rule,
        "loads_encoders": memory.loads_encoders,
        "loads_embeddings": memory.loads_embeddings,
        "cpu_layers": memory.cpu_layers,
        "gpu_memory_utilization": choices.pick("gpu_memory_utilization", share),
        "non_torch_bytes_single": runtime.non_torch_single,
        "non_torch_bytes_parallel": runtime.non_torch_parallel,
        "non_torch_bytes_pcie": runtime.between_pcie,
        "activation_token_bytes_factor": runtime.activation_token_factor,
        "draft_activation_logit_bytes": runtime.draft_activation_logit,
        "activation_base_bytes": runtime.activation_base,
        **{name: value for name, value in runtime if name in ResolvedEngine.model_fields},
        "cuda_graph_bytes": graphs.memory if graph_sizes else 0.0,
        "counts_cuda_graphs": graphs.is_budgeted,
        "cuda_graph_sizes": graph_sizes,
        "cuda_graph_max_batch": largest,
        **_pieces(choices, graphs, budget, is_eager=is_eager),
        "cuda_graph_max_expert_tokens": 0,
        "cuda_graph_max_prompt_tokens": largest if graphs.covers_prompts and mode != "FULL_DECODE_ONLY" else 0,
    }


def _pieces(choices: _Choices, graphs: CudaGraphs, budget: int, *, is_eager: bool) -> dict[str, Any]:
    """Return which steps with prompts run on graphs in pieces; ``budget`` is the most tokens of a step."""
    asked = choices.pick("piecewise_cuda_graph_max_tokens", 0)
    if asked and is_eager:
        rule = "needs CUDA graphs, and enforce_eager is on"
        raise refuse("piecewise_cuda_graph_max_tokens", asked, rule, "leave one of the two out")
    largest = min(asked, budget)
    sizes = graphs.piecewise_up_to(largest) if largest else ()
    return {"piecewise_cuda_graph_max_tokens": largest, "piecewise_cuda_graph_sizes": sizes}


def _is_interpreted(asked: EngineOptions) -> bool:
    """Return whether an option is set that a compiled engine has not."""
    return bool(asked.enforce_eager or asked.async_scheduling) or asked.cuda_graph_padding is not None


def _is_eager(asked: EngineOptions, host: Host) -> bool:
    """Return whether no step has a graph: so the user says, or nothing asks an interpreter beside engines for one."""
    if asked.enforce_eager or asked.cudagraph_mode == "NONE":
        return True
    asking = (asked.cuda_graph_padding, asked.max_cudagraph_capture_size)
    is_asked = asked.enforce_eager is False or any(each is not None for each in asking)
    return bool(host.interpreted and asked.async_scheduling) and not is_asked


def _launched_singly(asked: EngineOptions, host: Host, graphs: CudaGraphs) -> dict[str, float]:
    """Return the launch time per layer in steps that run without graphs because the user said so."""
    if graphs.prompts is not None and asked.cudagraph_mode not in (None, "FULL_DECODE_ONLY"):
        rule = "is vLLM's; this engine can only keep prompts off its graphs"
        raise refuse("cudagraph_mode", asked.cudagraph_mode, rule, "choose FULL_DECODE_ONLY or leave it out")
    seconds = host.enforced_eager_seconds_per_layer
    if seconds is None:
        return {}
    if _is_eager(asked, host):
        return {"eager_seconds_per_layer": seconds}
    if asked.cuda_graph_padding is False and not host.eager_seconds_per_layer:
        prompts = host.eager_prompt_seconds_per_layer or 0.0
        return {"eager_seconds_per_layer": seconds, "eager_prompt_seconds_per_layer": prompts}
    if asked.cudagraph_mode != "FULL_DECODE_ONLY" or graphs.prompts is not None:
        return {}
    gap = host.decode_graph_gap_seconds_per_layer
    return {"eager_prompt_seconds_per_layer": seconds, "eager_gap_seconds_per_layer": gap}


def _host(choices: _Choices, known: EngineVersion, place: _Place, shares_prefixes: bool, sorts: bool) -> dict[str, Any]:
    """Return CPU times and their overlap; ``sorts``: whether top-k and top-p sort the logits."""
    host = known.host
    if _is_interpreted(choices.asked):
        host = host.model_copy(update=dict(host.interpreted))
    host = host.model_copy(update=_launched_singly(choices.asked, host, known.cuda_graphs))
    is_async = _is_async(choices, known.scheduling, place, shares_prefixes)
    if is_async and not host.overlap:
        rule = f"is not possible: version {known.version} of this engine has no asynchronous scheduling"
        raise refuse("async_scheduling", is_async, rule, "leave it out or use a newer version")
    sorting = host.seconds_per_nucleus_request if sorts and choices.asked.sampling == "nucleus" else 0.0
    agreeing = host.seconds_per_parallel_step if place.num_ranks > 1 else 0.0
    streamed = host.seconds_per_streamed_request
    served = host.seconds_per_request + streamed + host.seconds_per_verified_token * (place.drafter is not None)
    served += host.sampling_seconds_per_vocabulary_entry * place.vocab_size * (choices.asked.sampling != "none")
    prompt_launching, drafting = host.eager_prompt_seconds_per_layer, host.eager_draft_seconds_per_layer
    if host.eager_dense_prompt_seconds_per_layer and not (place.traits.has_experts or place.traits.captures_prompts):
        prompt_launching = host.eager_dense_prompt_seconds_per_layer
    linear_gap = host.eager_gap_seconds_per_linear_layer
    is_timed = place.traits.captures_prompts and place.traits.has_delta_rule
    if is_timed and host.captured_gap_seconds_per_linear_layer is not None:
        linear_gap = host.captured_gap_seconds_per_linear_layer
    mode, piecewise = choices.asked.cudagraph_mode, known.cuda_graphs.piecewise_families
    is_piecewise = mode == "PIECEWISE" or (mode is None and place.model_family in piecewise)
    is_piecewise |= place.traits.divides_contexts and known.cuda_graphs.piecewise_with_context_ranks and mode != "NONE"
    is_piecewise &= not choices.asked.enforce_eager  # the host launches attention between the graphs of a decode step
    ranks = place.tensor_parallel_size if place.tensor_parallel_size > 1 else 0
    splitting = host.row_split_seconds_per_layer * (ranks > 0) + host.row_split_seconds_per_layer_rank * ranks
    slowdown: float = choices.pick("host_slowdown", place.host_slowdown)
    waiting = 1.0 + host.eager_expert_rank_share * math.log2(place.tensor_parallel_size)
    return {
        "async_scheduling": is_async,
        "releases_late": is_async and known.scheduling.releases_late,
        "overlaps_results": is_async and known.scheduling.overlaps_results,
        "async_output": known.scheduling.async_output,
        "host_slowdown": slowdown,
        "host_seconds_per_step": slowdown * (host.seconds_per_step + agreeing),
        "row_split_seconds_per_layer": slowdown * splitting,
        "host_seconds_per_request": slowdown * served + sorting,
        "host_seconds_per_further_request": slowdown * host.seconds_per_further_request,
        "host_seconds_per_streamed_request": slowdown * streamed,
        "eager_seconds_per_layer": slowdown * host.eager_seconds_per_layer,
        "eager_prompt_seconds_per_layer": None if prompt_launching is None else slowdown * prompt_launching,
        "eager_draft_seconds_per_layer": drafting and slowdown * drafting,
        "eager_gap_seconds_per_layer": slowdown * host.eager_gap_seconds_per_layer,
        "eager_gap_seconds_per_linear_layer": slowdown * linear_gap,
        "eager_seconds_per_linear_layer": slowdown * host.eager_seconds_per_linear_layer,
        "eager_seconds_per_compressed_layer": slowdown * host.eager_seconds_per_compressed_layer,
        "eager_seconds_per_expert_layer": slowdown * waiting * host.eager_seconds_per_expert_layer,
        "piecewise_seconds_per_layer": slowdown * host.piecewise_seconds_per_layer * is_piecewise,
        "piecewise_prompt_seconds_per_layer": slowdown * host.piecewise_seconds_per_layer * (mode != "FULL"),
        "eager_expert_formats": host.eager_expert_formats,
        "host_overlap": host.overlap if is_async else 0.0,
        "frontend_latency": choices.pick("frontend_latency", slowdown * host.frontend_latency + host.tokenizer_wait),
        "tokenizer_wait": 0.0 if choices.is_set("frontend_latency") else host.tokenizer_wait,
        "tokenization_per_token": 0.0 if choices.is_set("frontend_latency") else slowdown * host.tokenization_per_token,
        "frontend_seconds_per_request": slowdown * _api_server_seconds(choices, host, place),
        "api_server_seconds_per_token": slowdown
        * host.api_server_seconds_per_token_of.get(place.model_family, host.api_server_seconds_per_token),
    }


_FORMATTED_WITHOUT_TEMPLATE = ("gpt_oss",)
"""Families whose chats vLLM formats in code (openai-harmony; entrypoints/openai/serving_chat.py, `use_harmony`)."""


def _api_server_seconds(choices: _Choices, host: Host, place: _Place) -> float:
    """Return the API server's time for a request during which others wait."""
    if choices.is_set("frontend_latency"):
        return 0.0
    has_template = choices.asked.endpoint == "chat" and place.model_family not in _FORMATTED_WITHOUT_TEMPLATE
    template = 0.0
    if has_template and host.chat_template_seconds:
        known, name = host.chat_template_seconds_of, place.traits.model_name.lower()
        template = known.get(place.model_family, host.chat_template_seconds)
        template = next((seconds for ending, seconds in known.items() if name.endswith(ending)), template)
    return host.api_server_seconds_per_request + template


_HOST_SECONDS = (
    "host_seconds_per_step",
    "row_split_seconds_per_layer",
    "host_seconds_per_request",
    "host_seconds_per_further_request",
    "host_seconds_per_streamed_request",
    "eager_seconds_per_layer",
    "eager_prompt_seconds_per_layer",
    "eager_draft_seconds_per_layer",
    "eager_gap_seconds_per_layer",
    "eager_gap_seconds_per_linear_layer",
    "eager_seconds_per_linear_layer",
    "eager_seconds_per_compressed_layer",
    "eager_seconds_per_expert_layer",
    "piecewise_seconds_per_layer",
    "piecewise_prompt_seconds_per_layer",
    "api_server_seconds_per_token",
    "latent_attention_gap",
)
"""Times of `ResolvedEngine` that depend on the host: CPU work, and gaps between kernels."""


def scaled_by(engine: ResolvedEngine, factors: Mapping[str, float]) -> ResolvedEngine:
    """Return an engine with its times multiplied by factors named in `FACTORS`; an absent one is 1.

    A latency that the scenario sets is not changed.
    """
    values = {name: getattr(engine, name) for name in ResolvedEngine.model_fields}
    is_set = engine.sources.get("frontend_latency") == "scenario"
    return engine.model_copy(update=_scaled(values, factors, is_latency_set=is_set))


def _scaled(settings: Mapping[str, Any], factors: Mapping[str, float], *, is_latency_set: bool) -> dict[str, Any]:
    host, frontend = factors.get("host", 1.0), 1.0 if is_latency_set else factors.get("frontend", 1.0)
    times = {name: settings[name] for name in _HOST_SECONDS}
    of_gpu = {"gpu_time_factor": "gpu", "prompt_time_factor": "prompts", "batch_time_factor": "batch"}
    of_frontend = ("frontend_latency", "tokenization_per_token", "frontend_seconds_per_request")
    return {
        **{name: host * value if value else value for name, value in times.items()},
        **{name: settings.get(name, 1.0) * factors.get(factor, 1.0) for name, factor in of_gpu.items()},
        "kernel_start_factor": settings.get("kernel_start_factor", 1.0) * host,
        **{name: frontend * settings[name] for name in of_frontend},
    }


def _is_async(choices: _Choices, rules: Scheduling, place: _Place, shares_prefixes: bool) -> bool:
    """Return whether the next step is prepared while this one runs; which features allow that by default differs."""
    drafts = place.drafter and rules.async_drafters is not None and place.drafter not in rules.async_drafters
    excluded = {
        "off with pipeline stages": not rules.async_pipeline and place.num_ranks > place.tensor_parallel_size,
        f"off with drafts by {place.drafter}": drafts,
        "off in a worker that only prefills": place.only_prefills and not rules.async_prefill,
        "off with a prefix cache of Mamba or linear attention": (
            _caches_states_alone(rules, place) and place.has_linear_layers and shares_prefixes
        ),
    }
    note = next((why for why, holds in excluded.items() if holds and rules.async_scheduling), "")
    return choices.pick("async_scheduling", rules.async_scheduling and not note, note)


def _kernels(known: EngineVersion, features: tuple[str, ...]) -> dict[str, Any]:
    """Return what the kernels can do; an absent limit means none."""
    kernels = known.kernels
    return {
        **{name: getattr(kernels, name) for name in KernelTraits.model_fields},
        "all_reduce_host_from": kernels.all_reduce_host_from or math.inf,
        "max_bandwidth": kernels.max_bandwidth or math.inf,
        "max_flops": kernels.max_flops or math.inf,
        "supported_quantizations": (*kernels.quantizations, *(name for name in FORMAT_FEATURES if name in features)),
    }
