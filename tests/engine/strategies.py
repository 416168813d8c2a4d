"""Hypothesis strategies: small replicas and workloads in which every rule of the scheduler comes into play.

Seconds are integers times square roots and other irrational units, one a source of time, so that an arrival
never falls on the end of a step by accident.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, get_args

import numpy as np
from hypothesis import strategies as st

from simserve.engine.config import EngineConfig, KVTierConfig
from simserve.engine.state import StepTimes
from simserve.reference.request import ONE_TOKEN
from simserve.sim.control import RoutingPolicy, RoutingSpec
from simserve.workload.conversations import Shape, agent_contexts, contexts, dependencies_of_agents, draw_agents
from simserve.workload.distributions import Draws
from simserve.workload.length_spec import UniformLength
from simserve.workload.prefixes import Beginnings, PrefixSegments
from simserve.workload.requests import OPEN, ClientLoop, RequestSpecs
from simserve.workload.session_spec import AgentsSpec

# batching, scheduler, admission, kv_allocation; those with the most to go wrong come more often.
SCHEDULERS = ("mixed", "prefill_first")
GROWING_RULES = [
    ("continuous", scheduler, admission, "paged") for scheduler in SCHEDULERS for admission in ("on_demand", "estimate")
]
RULES = [
    *GROWING_RULES * 3,
    *(("continuous", scheduler, "reserve", "paged") for scheduler in SCHEDULERS),
    *(
        ("continuous", scheduler, "on_demand", kv_allocation)
        for scheduler in SCHEDULERS
        for kv_allocation in ("static", "pow2", "oracle", "none")
    ),
    *(("static", "mixed", "on_demand", kv_allocation) for kv_allocation in ("paged", "static", "none")),
]
SPECULATIVE_RULES = [
    *GROWING_RULES * 3,
    *(("continuous", scheduler, "reserve", "paged") for scheduler in SCHEDULERS),
]
DRAFTING_RULES = [*SPECULATIVE_RULES, *(("continuous", scheduler, "on_demand", "static") for scheduler in SCHEDULERS)]
Rules = Sequence[tuple[str, str, str, str]]
CONTINUOUS_RULES: Rules = [each for each in RULES if each[0] == "continuous"]
SEATED_RULES: Rules = [each for each in CONTINUOUS_RULES if each[3] in ("paged", "static")]
ON_DEMAND_RULES: Rules = [each for each in GROWING_RULES if each[2] == "on_demand"]
PASSING_RULES: Rules = [each for each in ON_DEMAND_RULES if each[1] == "mixed"]
TREE_RULES: Rules = [each for each in GROWING_RULES if each[1:3] == ("prefill_first", "estimate")]
WAITING_RULES: Rules = [each for each in SPECULATIVE_RULES if each[1] == "mixed"]
"""Those of which a kind of case needs one: what it cannot be is then not drawn, with its requests, for nothing."""
ARRIVAL_UNIT = math.sqrt(2.0) / 8.0
FRONTEND_UNIT = math.sqrt(5.0) / 64.0
THINK_UNIT = math.sqrt(3.0) / 8.0
WAIT_UNIT = math.sqrt(7.0) / 4.0

CHECKPOINTS = ((0, 0), (0, 0), (4, 4), (9, 3), (0, 0), (16, 1), (0, 0), (1, 1), (6, 5))
"""Tokens before the end of a prompt at which chunks end, by the size of static batches, which only those look at."""


@lru_cache(maxsize=None, typed=True)
def among(*values: Any) -> st.SearchStrategy[Any]:
    """Return what draws one of some values; made once, as Hypothesis checks every new one."""
    return st.sampled_from(values)


@dataclass(frozen=True)
class Case:
    """One replica and what arrives at it."""

    config: EngineConfig
    times: StepTimes
    specs: RequestSpecs


@st.composite
def cases(draw: st.DrawFn, rules: Rules = RULES, is_alone: bool = False) -> Case:
    """Draw a replica, its step times and its requests; alone, it has one stage."""
    config = draw(configs(False, rules, is_alone))
    return Case(config, draw(step_times(config)), draw(request_specs(config)))


@st.composite
def pressed_cases(draw: st.DrawFn, rules: Rules = GROWING_RULES, is_alone: bool = False) -> Case:
    """Draw a replica whose memory runs out: many seats, few blocks, long outputs, requests in clusters."""
    config = draw(configs(True, rules, is_alone))
    return Case(config, draw(step_times(config)), draw(request_specs(config, is_pressed=True)))


@st.composite
def waits_of_prompts(draw: st.DrawFn) -> dict[str, Any]:
    """Draw how prompts wait for those of other ranks: not at all, as by TensorRT-LLM or as by SGLang."""
    timeout = draw(among(0, 0, 2, 5))
    if not timeout or draw(st.booleans()):
        return {"attention_dp_timeout_iters": timeout}
    return draw(delays_of_prompts())


@st.composite
def delays_of_prompts(draw: st.DrawFn) -> dict[str, Any]:
    """Draw how SGLang delays prompts."""
    for_seats = draw(st.booleans())
    is_bounded = for_seats and draw(st.booleans())
    return {
        "prefill_delayer_max_delay_passes": draw(among(2, 5)),
        "prefill_delayer_token_usage_low_watermark": draw(among(0.0, 0.0, 0.3)),
        "delays_for_seats": for_seats,
        "bounds_prompt_delay": is_bounded,
        "forgets_batches": is_bounded and draw(st.booleans()),
    }


@st.composite
def ranked_cases(
    draw: st.DrawFn, rules: Rules = SPECULATIVE_RULES, waits: Callable[[], st.SearchStrategy[Any]] = waits_of_prompts
) -> Case:
    """Draw ranks that step together: continuous batching in blocks, one stage, more requests than one rank holds."""
    growing = [each for each in rules if each in GROWING_RULES]
    kinds = [
        cases(rules, is_alone=True),
        pressed_cases(growing, is_alone=True),
        speculative_cases(rules, is_alone=True),
    ]
    return draw(in_lockstep(draw(st.one_of(*kinds)), waits))


@st.composite
def in_lockstep(draw: st.DrawFn, case: Case, waits: Callable[[], st.SearchStrategy[Any]] = waits_of_prompts) -> Case:
    """Draw ranks that step together of a replica, and what they do together."""
    in_turn = draw(st.booleans())
    config = replace(case.config, data_parallel_size=draw(st.integers(2, 4)), rotates_ranks=in_turn, **draw(waits()))
    rises = draw(st.lists(st.integers(0, 5), max_size=60))
    times = replace(
        case.times,
        shared_seconds=(math.sqrt(29.0) / 128.0 * np.concatenate([[0.0], np.cumsum(rises)])).tolist(),
        shared_seconds_beyond=draw(st.integers(0, 5)) * math.sqrt(31.0) / 256.0,
    )
    return Case(config, times, case.specs)


@st.composite
def speculative_cases(draw: st.DrawFn, rules: Rules = DRAFTING_RULES, is_alone: bool = False) -> Case:
    """Draw a replica that verifies drafts, with or without enough memory, and requests of uneven paces."""
    is_pressed = draw(st.booleans())
    plain = draw(configs(is_pressed, rules, is_alone))
    drafts = draw(st.integers(1, 5))
    width = 1 + drafts
    budget = max(plain.max_num_batched_tokens, width * plain.max_num_seqs)
    config = replace(
        plain,
        num_speculative_tokens=drafts,
        pads_lone_token=draw(st.booleans()),
        max_num_batched_tokens=budget,
        max_chunk_tokens=plain.max_chunk_tokens if plain.enable_chunked_prefill else budget * _overlapped(plain),
        num_blocks=plain.num_blocks + math.ceil(drafts / plain.block_size),
    )
    specs = draw(request_specs(config, is_pressed))
    paces = st.lists(st.integers(ONE_TOKEN, ONE_TOKEN * width), min_size=len(specs), max_size=len(specs))
    return Case(config, draw(step_times(config)), replace(specs, pace=np.array(draw(paces), dtype=np.int64)))


@st.composite
def configs(draw: st.DrawFn, is_pressed: bool, rules: Rules, is_alone: bool = False) -> EngineConfig:
    """Draw a replica that the specification allows; alone, it has one stage."""
    batching, scheduler, admission, kv_allocation = draw(st.sampled_from(rules))
    is_growing = batching == "continuous" and kv_allocation == "paged" and admission != "reserve"
    block_size = draw(among(1, 2, 3, 4, 16))
    max_model_len = draw(st.integers(20 if is_pressed else 4, 40))
    num_blocks = math.ceil(max_model_len / block_size)
    num_blocks += draw(st.integers(0, num_blocks // 2 if is_pressed else 2 * num_blocks))
    max_num_seqs = draw(st.integers(3 if is_pressed else 1, 6))
    is_chunked = draw(st.booleans())
    most = max(4, max_num_seqs, max_model_len if is_growing and not is_chunked else 0)
    max_num_batched_tokens = draw(st.integers(most, 64))
    chunk = draw(st.integers(1, max_num_batched_tokens)) if is_chunked else max_num_batched_tokens
    initial = draw(st.sampled_from([0.0, 0.1, 0.31830988] if is_pressed else [0.0, 0.31830988, 0.7, 1.0]))
    config = EngineConfig(
        batching=batching,
        scheduler=scheduler,
        admission=admission,
        kv_allocation=kv_allocation,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_chunk_tokens=chunk,
        lifts_chunk_limit=is_chunked and draw(st.booleans()),
        max_model_len=max_model_len,
        enable_chunked_prefill=is_chunked,
        reserve_full_prompt=draw(st.booleans()),
        block_size=block_size,
        num_blocks=num_blocks,
        watermark_blocks=draw(among(0, 1, 3)) if is_growing and not is_pressed else 0,
        static_batch_size=draw(st.integers(1, 8)),
        static_max_wait=draw(st.integers(0, 12)) * WAIT_UNIT,
        strikes_at_once=draw(st.booleans()) if admission == "estimate" else False,
        expects_max_tokens=draw(st.booleans()) if admission == "estimate" else False,
        reserves_page=draw(st.booleans()) if admission == "estimate" else False,
        evicts_missing=draw(st.booleans()) if admission == "estimate" else False,
        new_token_ratio_initial=initial,
        new_token_ratio_minimum=initial * draw(among(0.0, 0.14142136, 1.0)),
        new_token_ratio_decay=draw(among(0.0010033333, 0.017320508, 0.22360680)),
        pipeline_parallel_size=1 if is_alone or kv_allocation == "none" else draw(among(1, 1, 2, 3, 4)),
        frontend_latency=draw(st.integers(0, 2)) * FRONTEND_UNIT,
        async_output=draw(st.booleans()),
        transfer_step_seconds=0.01,
        transfer_request_seconds=0.003,
        transfer_prompt_seconds=draw(among(0.0, 0.07)),
    )
    # All combinations, of what has been drawn: no draw more, so that the examples stay what they were.
    checkpoint_tokens, last_checkpoint_tokens = CHECKPOINTS[config.static_batch_size]
    has_stages = config.pipeline_parallel_size > 1
    overlaps = has_stages and config.static_batch_size % 2 == 0
    return replace(
        config,
        overlaps_chunks=overlaps,
        keeps_micro_batches=has_stages and config.static_batch_size in (1, 2, 5, 6),
        samples_in_turn=has_stages and config.static_batch_size in (3, 4),
        max_chunk_tokens=config.max_chunk_tokens * (config.pipeline_parallel_size if overlaps else 1),
        aligns_chunks=config.transfer_prompt_seconds > 0.0,
        checkpoint_tokens=checkpoint_tokens,
        last_checkpoint_tokens=last_checkpoint_tokens,
        skips_ended=config.strikes_at_once != config.evicts_missing,
        keeps_ratio=config.strikes_at_once != config.reserves_page,
    )


def _overlapped(config: EngineConfig) -> int:
    """Return the micro-batches over which a prompt of one step may spread."""
    return config.pipeline_parallel_size if config.overlaps_chunks else 1


@st.composite
def step_times(draw: st.DrawFn, config: EngineConfig) -> StepTimes:
    """Draw tables that rise with what a step holds: constant, affine, or in uneven steps."""
    seats = config.max_num_seqs * (1 + (config.keeps_micro_batches or config.samples_in_turn) * 3)
    base = draw(st.integers(1, 8)) * math.pi / 32.0
    uneven = st.integers(0, 5)

    def rising(unit: float, size: int, start: float = 0.0) -> list[float]:
        kind = draw(among("flat", "straight", "uneven"))
        if kind == "uneven":
            rises = draw(st.lists(uneven, min_size=size, max_size=size))
        else:
            rises = [0 if kind == "flat" else draw(uneven)] * size
        return (start + unit * np.concatenate([[0.0], np.cumsum(rises)])).tolist()

    slope_unit = math.e / 1024.0
    return StepTimes(
        decode_base=[0.0, *rising(math.e / 64.0, seats, base)[1:]],
        decode_slope=[0.0, *rising(slope_unit / 4.0, seats, draw(uneven) * slope_unit)[1:]],
        token_seconds=rising(math.log(2.0) / 64.0, draw(st.integers(1, 80)), base),
        token_seconds_beyond=draw(uneven) * math.log(3.0) / 64.0,
        sequence_seconds=rising(math.sqrt(11.0) / 256.0, seats),
        decode_attention_base=rising(math.sqrt(13.0) / 256.0, seats),
        prefill_request_seconds=draw(uneven) * math.sqrt(17.0) / 512.0,
        prefill_pair_seconds=draw(uneven) * math.sqrt(19.0) / 4096.0,
        prefill_context_seconds=draw(uneven) * math.sqrt(23.0) / 2048.0,
        mixed_decode_factor=draw(among(1.0, 1.75)),
        launch_seconds=draw(uneven) * math.sqrt(41.0) / 32.0,
        launch_max_tokens=float(draw(among(0, 5, 20, 1000))),
    )


@st.composite
def request_specs(draw: st.DrawFn, config: EngineConfig, is_pressed: bool = False) -> RequestSpecs:
    """Draw an open or a closed loop, with lengths up to and above what the model takes."""
    count = draw(st.integers(6 if is_pressed else 1, 16))
    longest = config.max_model_len
    short, middling, long = st.integers(1, 6), st.integers(1, longest), st.integers(longest // 2, longest + 1)
    several = [short, st.one_of(short, middling), middling, long]
    prompt_lengths = draw(st.sampled_from(several[:2] if is_pressed else several))
    output_lengths = draw(st.sampled_from(several[2:] if is_pressed else several))
    prompts = np.array(draw(st.lists(prompt_lengths, min_size=count, max_size=count)), dtype=np.int64)
    outputs = np.array(draw(st.lists(output_lengths, min_size=count, max_size=count)), dtype=np.int64)
    changes = draw(st.lists(max_tokens_changes(), min_size=count, max_size=count))
    asked = [
        -1 if change is None else max(1, output + change)
        for output, change in zip(outputs.tolist(), changes, strict=True)
    ]
    columns: dict[str, Any] = {
        "prompt_tokens": prompts,
        "output_tokens": outputs,
        "max_tokens": np.array(asked, dtype=np.int64),
        "is_stationary": False,
        "offered_rate": math.nan,
    }
    if draw(st.integers(0, 3)) == 0:
        thinks = draw(st.lists(among(0, 0, 1, 7), min_size=count, max_size=count))
        return RequestSpecs(
            arrival_time=np.full(count, math.nan),
            think_time=np.array(thinks) * THINK_UNIT,
            concurrency=draw(st.integers(1, 8)),
            **columns,
        )
    scale = draw(st.sampled_from([1, 1, 2] if is_pressed else [1, 1, 8]))
    pauses = draw(st.lists(among(0, 0, 0, 1, 1, 2, 5, 40), min_size=count, max_size=count))
    return RequestSpecs(
        arrival_time=np.cumsum(np.array(pauses) * scale) * ARRIVAL_UNIT,
        think_time=np.empty(0),
        concurrency=None,
        **columns,
    )


def max_tokens_changes() -> st.SearchStrategy[int | None]:
    """Draw what the client asks for beyond the true output; None stands for the model's limit."""
    return st.one_of(st.just(0), st.integers(-4, 12), st.just(5000), st.none())


@st.composite
def shared_cases(draw: st.DrawFn, rules: Rules = SPECULATIVE_RULES, is_alone: bool = False) -> Case:
    """Draw a replica with a prefix cache, with or without enough memory, and requests that begin alike.

    Alone, it has one stage and one rank.
    """
    is_pressed = draw(st.booleans())
    plain = draw(configs(is_pressed, rules, is_alone))
    config = replace(plain, enable_prefix_caching=True)
    kind = draw(among("conversations", "branches", "forks", "tasks"))
    if kind in ("conversations", "tasks"):
        drawn = draw(conversations(config) if kind == "conversations" else tasks(config))
    else:
        with_paths = with_prefixes if kind == "branches" else with_forks
        drawn = draw(with_paths(draw(request_specs(config, is_pressed)), config))
    config = replace(
        config,
        caches_decoded=config.scheduler == "mixed" and draw(st.booleans()),
        evicts_by_block=draw(st.booleans()),
        ages_empty_blocks=draw(st.booleans()),
        keeps_radix_tree=draw(st.booleans()),
        touches_waiting=draw(st.booleans()),
        waits_for_prefix=draw(st.integers(0, 3)) == 0,
        caches_at_end=draw(st.booleans()),
        ignores_found=config.reserve_full_prompt,
    )
    if draw(st.integers(0, 4)) == 0:
        drafts = draw(st.integers(1, 3))
        budget = max(config.max_num_batched_tokens, (1 + drafts) * config.max_num_seqs)
        config = replace(
            config,
            num_speculative_tokens=drafts,
            pads_lone_token=draw(st.booleans()),
            max_num_batched_tokens=budget,
            max_chunk_tokens=config.max_chunk_tokens if config.enable_chunked_prefill else budget * _overlapped(config),
            num_blocks=config.num_blocks + math.ceil(drafts / config.block_size),
        )
        paces = st.lists(st.integers(ONE_TOKEN, ONE_TOKEN * (1 + drafts)), min_size=len(drawn), max_size=len(drawn))
        drawn = replace(drawn, pace=np.array(draw(paces), dtype=np.int64))
    elif not is_alone and config.pipeline_parallel_size == 1 and draw(st.integers(0, 4)) == 0:
        config = replace(config, data_parallel_size=draw(st.integers(2, 3)))
    times = draw(step_times(config))
    if config.data_parallel_size > 1:
        times = replace(times, shared_seconds=[0.0, math.sqrt(29.0) / 128.0])
    return Case(config, times, drawn)


@st.composite
def delayed_tree_cases(draw: st.DrawFn, waits: Callable[[], st.SearchStrategy[Any]] = delays_of_prompts) -> Case:
    """Draw ranks that step together, whose prompts begin alike in a tree and wait as by SGLang's delayer, or not."""
    case = draw(shared_cases(TREE_RULES, is_alone=True).filter(lambda each: each.config.has_radix_tree))
    return replace(case, config=replace(case.config, data_parallel_size=draw(st.integers(2, 3)), **draw(waits())))


@st.composite
def stateful_tree_cases(draw: st.DrawFn) -> Case:
    """Draw a radix tree that keeps states of linear attention, few or many, at the ends of chunks or on a grid."""
    case = draw(shared_cases(TREE_RULES, is_alone=True).filter(lambda each: each.config.has_radix_tree))
    config, seat_states = case.config, draw(st.integers(1, 3))
    grid = config.block_size * draw(st.integers(0, 3))
    states = {
        "seat_states": seat_states,
        "tree_states": seat_states * config.max_num_seqs + draw(st.integers(0, 6)),
        "state_grid": grid,
        "state_interval": max(grid, config.block_size) * draw(st.integers(1, 3)),
        "keeps_bare_leaves": draw(st.booleans()),
    }
    return replace(case, config=replace(config, **states))


@st.composite
def offloading_cases(draw: st.DrawFn, rules: Rules = SPECULATIVE_RULES) -> Case:
    """Draw a replica with a prefix cache and a tier behind it, that may be too small, slow, or free of cost."""
    case = draw(shared_cases(rules).filter(_has_one_rank))
    tier = KVTierConfig(
        name="host",
        num_blocks=draw(among(1, 3, 10, 1000)),
        block_seconds=draw(st.integers(0, 5)) * math.sqrt(41.0) / 512.0,
        latency=draw(among(0, 1)) * math.sqrt(43.0) / 64.0,
    )
    return Case(replace(case.config, kv_tiers=(tier,)), case.times, case.specs)


@st.composite
def suspending_cases(draw: st.DrawFn) -> Case:
    """Draw a replica that suspends requests, with or without enough memory, a prefix cache and a tier behind it."""
    kinds = (cases, pressed_cases, shared_cases, offloading_cases)
    case = draw(st.one_of([each(PASSING_RULES) for each in kinds]).filter(_may_suspend))
    return Case(suspending(case.config, draw(among(0.4, 0.8, 0.95, 1.0))), case.times, case.specs)


def _may_suspend(case: Case) -> bool:
    return suspending(case.config, 1.0).has_suspension


def suspending(config: EngineConfig, most: float) -> EngineConfig:
    """Return an engine that suspends requests, and admits none while more than a share of its blocks are in use."""
    return replace(
        config,
        suspends=True,
        lifts_chunk_limit=False,
        max_used_blocks=int(most * config.num_blocks),
        reserve_full_prompt=False,
        watermark_blocks=0,
        caches_decoded=False,
        evicts_by_block=True,
        # Rules of other engines' stages.
        overlaps_chunks=False,
        keeps_micro_batches=False,
        samples_in_turn=False,
        # Rules of the first manager, which give way.
        waits_for_prefix=True,
        allocates_prompt=True,
        checkpoint_tokens=0,
        last_checkpoint_tokens=0,
    )


@st.composite
def tiered_cases(draw: st.DrawFn) -> Case:
    """Draw a replica with several tiers, that may leave the choice, overlap, or be a store that others could read."""
    case = draw(shared_cases().filter(_has_one_rank))
    return Case(replace(case.config, kv_tiers=draw(kv_tiers())), case.times, case.specs)


@st.composite
def kv_tiers(draw: st.DrawFn) -> tuple[KVTierConfig, ...]:
    """Draw one to three tiers of a replica, a store that replicas share, or both."""
    names = draw(among((), ("host",), ("host", "disk"), ("host", "disk", "remote")))
    own = tuple(
        KVTierConfig(
            name=name,
            num_blocks=draw(among(1, 3, 10, 1000)),
            block_seconds=draw(st.integers(0, 5)) * math.sqrt(41.0 + place) / 512.0,
            latency=draw(among(0, 1)) * math.sqrt(47.0 + place) / 64.0,
            has_choice=draw(st.booleans()),
            overlaps=draw(st.booleans()),
        )
        for place, name in enumerate(names)
    )
    return (*own, draw(stores())) if not own or draw(st.booleans()) else own


@st.composite
def stores(draw: st.DrawFn) -> KVTierConfig:
    """Draw a store that replicas share, at a bandwidth that they may share, too."""
    return KVTierConfig(
        name="store",
        num_blocks=draw(among(1, 3, 10, 1000)),
        block_seconds=draw(st.integers(0, 5)) * math.sqrt(59.0) / 512.0,
        latency=draw(among(0, 1)) * math.sqrt(67.0) / 64.0,
        is_shared=True,
        store_block_seconds=draw(st.integers(0, 3)) * math.sqrt(61.0) / 512.0,
        has_choice=draw(st.booleans()),
        overlaps=draw(st.booleans()),
    )


@st.composite
def adapted_cases(draw: st.DrawFn, rules: Rules = SEATED_RULES) -> Case:
    """Draw a replica with few LoRA seats and requests with a few adapters, or none; loads may be free of cost."""
    paged = [each for each in rules if each in SPECULATIVE_RULES]
    growing = [each for each in rules if each in GROWING_RULES]
    kinds = [cases(rules), pressed_cases(growing), pressed_cases(growing), shared_cases(paged)]
    kinds += [speculative_cases(paged), ordered_cases(rules), windowed_cases(growing)]
    case = draw(st.one_of(*kinds).filter(_can_have_adapters))
    seats, count = draw(st.integers(1, 3)), len(case.specs)
    config = replace(
        case.config,
        max_loras=seats,
        max_cpu_loras=seats + draw(among(0, 1, 2, 100)),
        lora_host_seconds=draw(st.integers(0, 3)) * math.sqrt(47.0) / 64.0,
        lora_disk_seconds=draw(st.integers(0, 3)) * math.sqrt(53.0) / 32.0,
    )
    times = replace(
        case.times,
        lora_step_seconds=draw(st.integers(0, 2)) * math.sqrt(59.0) / 128.0,
        lora_adapter_seconds=draw(st.integers(0, 2)) * math.sqrt(61.0) / 256.0,
        lora_token_seconds=draw(st.integers(0, 2)) * math.sqrt(67.0) / 512.0,
    )
    adapter = np.array(draw(st.lists(st.integers(-1, 4), min_size=count, max_size=count)), dtype=np.int64)
    specs = replace(case.specs, adapter=adapter)
    if draw(st.booleans()) and config.kv_allocation == "paged":
        is_vllm = config.admission == "on_demand"
        config = replace(config, async_scheduling=True, releases_late=is_vllm)
    return Case(config, times, specs)


def _can_have_adapters(case: Case) -> bool:
    config = case.config
    is_plain = config.data_parallel_size == 1 and not config.priority_preemption
    return _is_continuous(case) and config.kv_allocation in ("paged", "static") and is_plain


def _has_one_rank(case: Case) -> bool:
    return case.config.data_parallel_size == 1


@st.composite
def with_prefixes(draw: st.DrawFn, specs: RequestSpecs, _config: EngineConfig) -> RequestSpecs:
    """Draw which of a few branching beginnings each request has; it may end within one."""
    lengths = draw(st.lists(st.integers(1, 12), min_size=6, max_size=6))
    branches = [(), (0,), (0, 1), (0, 1, 2), (0, 3), (4,), (4, 5)]
    offsets, segments, ends = [0], [], []
    for index, prompt in enumerate(specs.prompt_tokens.tolist()):
        end = 0
        for segment in draw(st.sampled_from(branches)):
            if end < prompt:
                end = min(end + lengths[segment], prompt)
                segments.append(segment)
                ends.append(end)
        segments.append(len(lengths) + index)
        ends.append(prompt + int(specs.output_tokens[index]))
        offsets.append(len(segments))
    prefixes = PrefixSegments(
        offsets=np.array(offsets), segments=np.array(segments, dtype=np.int64), ends=np.array(ends, dtype=np.int64)
    )
    return replace(specs, prefixes=prefixes)


@st.composite
def with_forks(draw: st.DrawFn, specs: RequestSpecs, config: EngineConfig) -> RequestSpecs:
    """Draw requests that begin with an earlier one and a part of its answer, whether that has been given or not."""
    prompts, outputs = specs.prompt_tokens.tolist(), specs.output_tokens.tolist()
    longest = config.max_model_len if config.enable_chunked_prefill else config.max_num_batched_tokens
    parents: list[tuple[int, int] | None] = []
    forks: list[set[int]] = [{prompt + output} for prompt, output in zip(prompts, outputs, strict=True)]
    for index in range(len(prompts)):
        parent = draw(st.integers(-1, index - 1))
        parents.append(None)
        if parent >= 0:
            fork = prompts[parent] + draw(st.integers(0, outputs[parent]))
            prompt = fork + draw(st.integers(1, 5))
            if prompt + outputs[index] <= min(longest, config.max_model_len):
                prompts[index], parents[index] = prompt, (parent, fork)
                forks[index] = {prompt + outputs[index]}
                forks[parent].add(fork)
    paths: list[list[tuple[int, int]]] = []
    for index, parent in enumerate(parents):
        inherited = [] if parent is None else [each for each in paths[parent[0]] if each[1] <= parent[1]]
        paths.append(inherited + [(100 * index + number, end) for number, end in enumerate(sorted(forks[index]))])
    prefixes = PrefixSegments(
        offsets=np.cumsum([0, *(len(path) for path in paths)]),
        segments=np.array([segment for path in paths for segment, _ in path], dtype=np.int64),
        ends=np.array([end for path in paths for _, end in path], dtype=np.int64),
    )
    return replace(specs, prompt_tokens=np.array(prompts, dtype=np.int64), prefixes=prefixes)


@st.composite
def conversations(draw: st.DrawFn, config: EngineConfig) -> RequestSpecs:
    """Draw conversations of a few turns, some of which hold several requests, up to and above what the model takes."""
    calls = draw(st.lists(st.lists(among(1, 1, 1, 2), min_size=1, max_size=4), min_size=1, max_size=5))
    rows = [
        (session, turn, call)
        for session, turns in enumerate(calls)
        for turn, count in enumerate(turns, 1)
        for call in range(count)
    ]
    count = len(rows)
    session, turn, call = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    shape = Shape(session=session, turn=turn, call=call)
    new = np.array(draw(st.lists(st.integers(1, 5), min_size=count, max_size=count)), dtype=np.int64)
    outputs = np.array(draw(st.lists(st.integers(1, 8), min_size=count, max_size=count)), dtype=np.int64)
    beginnings = None
    if draw(st.booleans()):
        group = np.array(draw(st.lists(st.integers(-1, 1), min_size=len(calls), max_size=len(calls))), dtype=np.int64)
        system = draw(st.integers(1, config.max_model_len // 2))
        beginnings = Beginnings(group=group, tokens=np.where(group < 0, 0, system), num_groups=2)
    growth = draw(among(1.0, 1.0, 0.5, 0.0))
    prompts, prefixes = contexts(shape, new, outputs, growth, beginnings)
    pauses = draw(st.lists(among(0, 1, 5), min_size=len(calls), max_size=len(calls)))
    starts = np.cumsum(np.array(pauses)) * ARRIVAL_UNIT
    # Who holds each conversation: nobody, or the clients of one closed loop or another; those of a loop are neighbours.
    owners = [draw(among(OPEN, OPEN, 0))] * len(calls)
    if draw(st.booleans()):
        owners = sorted(draw(st.lists(st.integers(OPEN, 1), min_size=len(calls), max_size=len(calls))))
    owner = np.array(owners, dtype=np.int8)[session]
    clients = [draw(st.integers(1, 3)) for _ in range(max(owners) + 1)]
    thinks = draw(st.lists(among(0, 1, 7), min_size=count, max_size=count))
    # Some turns are not sent before a time of their own, recorded turns for one.
    units = draw(st.lists(among(math.nan, math.nan, 3.0, 40.0), min_size=count, max_size=count))
    earliest = np.where(turn == 1, math.nan, np.array(units) * ARRIVAL_UNIT)
    return RequestSpecs(
        arrival_time=np.where((turn == 1) & (owner == OPEN), starts[session], earliest),
        prompt_tokens=prompts,
        output_tokens=outputs,
        max_tokens=outputs.copy(),
        think_time=np.array(thinks) * THINK_UNIT,
        concurrency=sum(clients) or None,
        loop=owner if len(set(owners)) > 1 or len(clients) > 1 else None,
        loops=tuple(ClientLoop(count) for count in clients),
        is_stationary=False,
        offered_rate=math.nan,
        prefixes=prefixes,
        session=session,
        turn=turn,
    )


@st.composite
def routings(draw: st.DrawFn) -> RoutingSpec:
    """Draw a router: any policy, looking all the time or now and then, with an affinity that is strict or not."""
    policy = draw(st.sampled_from(get_args(RoutingPolicy)))
    options: dict[str, Any] = {"update_interval": f"{draw(among(0, 0, 0.37, 2.9))} s"}
    if policy in ("session", "prefix"):
        options["imbalance_guard"] = draw(among(None, 1.0, 1.3))
    if policy == "prefix":
        options["cache_threshold"] = draw(among(None, 0.0, 0.2, 0.9))
    return RoutingSpec(policy=policy, **options)


@st.composite
def ordered_cases(draw: st.DrawFn, rules: Rules = CONTINUOUS_RULES, is_alone: bool = False) -> Case:
    """Draw a replica whose queue goes by priority or by size, with few levels, so that many are alike."""
    paged = [each for each in rules if each in SPECULATIVE_RULES]
    pressed = pressed_cases([each for each in rules if each in GROWING_RULES], is_alone)
    case = draw(st.one_of(cases(rules, is_alone), pressed, pressed, shared_cases(paged, is_alone)))
    policy = draw(among("priority", "priority", "shortest_first"))
    config = replace(case.config, scheduling_policy=policy)
    if policy == "priority":
        is_on_demand = (config.kv_allocation, config.admission) == ("paged", "on_demand")
        config = replace(
            config,
            priority_ageing=draw(among(0.0, 0.0, 0.37, 2.9)),
            priority_preemption=is_on_demand and draw(st.booleans()),
        )
    priorities = st.lists(st.integers(0, 2), min_size=len(case.specs), max_size=len(case.specs))
    return Case(config, case.times, replace(case.specs, priority=np.array(draw(priorities), dtype=np.int64)))


@st.composite
def passing_cases(draw: st.DrawFn) -> Case:
    """Draw a replica short of blocks whose steps may pass over requests, as vLLM's with priorities up to 0.32."""
    rules = PASSING_RULES
    kinds = [pressed_cases(rules), pressed_cases(rules), shared_cases(rules), windowed_cases(rules)]
    kinds += [adapted_cases(rules), ranked_cases(rules), thinking_cases(rules)]
    case = draw(st.one_of(*kinds).filter(_may_pass_over))
    config = replace(
        case.config,
        scheduling_policy="priority",
        ends_pass=True,
        misses_next=draw(st.booleans()),
        priority_preemption=draw(st.integers(0, 4)) == 0 and not case.config.max_loras,
    )
    if config.data_parallel_size == 1:
        config = replace(config, async_scheduling=draw(st.booleans()), releases_late=True)
    levels = st.integers(0, draw(among(0, 1, 2, 20)))
    priorities = draw(st.lists(levels, min_size=len(case.specs), max_size=len(case.specs)))
    return Case(config, case.times, replace(case.specs, priority=np.array(priorities, dtype=np.int64)))


def _may_pass_over(case: Case) -> bool:
    return replace(case.config, scheduling_policy="priority", ends_pass=True).has_ordered_pass


def _is_continuous(case: Case) -> bool:
    return case.config.batching == "continuous"


@st.composite
def swapping_cases(draw: st.DrawFn, rules: Rules = ON_DEMAND_RULES) -> Case:
    """Draw a replica that runs short of blocks and swaps, to host memory that may be too small."""
    kinds = [pressed_cases(rules), ordered_cases(rules)]
    case = draw(st.one_of(*kinds).filter(_can_swap))
    config = replace(case.config, preemption_mode="swap", num_swap_blocks=draw(among(0, 3, 10, 1000)))
    times = replace(case.times, swap_block_seconds=draw(st.integers(0, 5)) * math.sqrt(37.0) / 512.0)
    return Case(config, times, case.specs)


def _can_swap(case: Case) -> bool:
    config = case.config
    is_plain = config.num_speculative_tokens == 0 and config.data_parallel_size == 1
    is_on_demand = (config.kv_allocation, config.admission) == ("paged", "on_demand")
    return is_plain and is_on_demand and not config.enable_prefix_caching


@st.composite
def windowed_cases(draw: st.DrawFn, rules: Rules = GROWING_RULES) -> Case:
    """Draw a replica whose layers keep a window of each request, in the pool of the others or in one of their own.

    Or a state, as a window of one block that chunks leave as it is.
    """
    kinds = [pressed_cases(rules), pressed_cases(rules), cases(rules), shared_cases(rules), speculative_cases(rules)]
    kinds += [ranked_cases(rules), ordered_cases(rules), offloading_cases(rules)]
    case = draw(st.one_of(*kinds).filter(_grows))
    config = case.config
    full_groups = 1 if config.enable_prefix_caching else draw(among(1, 1, 1, 0))
    longest = math.ceil((config.max_model_len + config.num_speculative_tokens) / config.block_size)
    window = draw(st.integers(1, longest + 1))
    chunk = config.max_chunk_tokens if config.enable_chunked_prefill else config.max_model_len
    if config.lifts_chunk_limit:
        chunk = max(chunk, config.max_num_batched_tokens * _overlapped(config))
    # What a lone request needs: its window, and the chunk or the drafts that it computes beside it.
    beside = math.ceil(max(chunk, 1 + config.num_speculative_tokens) / config.block_size)
    most = min(longest, window + beside)
    has_pool = full_groups == 1 and draw(st.booleans())
    keeps_states = full_groups == 1 and not has_pool and draw(st.booleans())
    if keeps_states:
        window = most = 1
    groups = 0 if has_pool else draw(st.integers(1, 4))
    spare = draw(st.integers(0, 2 * (longest + groups * window)))
    return Case(
        replace(
            config,
            full_groups=full_groups,
            window_groups=groups,
            window_blocks=window,
            num_window_blocks=most + draw(st.integers(0, longest)) if has_pool else 0,
            keeps_states=keeps_states,
            num_blocks=full_groups * longest + groups * most + spare,
        ),
        case.times,
        case.specs,
    )


def _grows(case: Case) -> bool:
    config = case.config
    is_growing = config.kv_allocation == "paged" and config.admission in ("on_demand", "estimate")
    return _is_continuous(case) and is_growing and config.preemption_mode == "recompute"


@st.composite
def thinking_cases(draw: st.DrawFn, rules: Rules = RULES) -> Case:
    """Draw a replica with a KV cache, and requests a part of whose tokens is thinking, up to all of them.

    Some have images, whose encoding makes a step longer.
    """
    paged = [each for each in rules if each in SPECULATIVE_RULES]
    growing = [each for each in paged if each in GROWING_RULES]
    kinds = [cases([each for each in rules if each[3] != "none"]), pressed_cases(growing), ranked_cases(paged)]
    kinds += [shared_cases(paged), speculative_cases(paged)]
    kinds.append(swapping_cases([each for each in growing if each in ON_DEMAND_RULES]))
    case = draw(st.one_of(*kinds))
    outputs = case.specs.output_tokens.tolist()
    thinking = [draw(st.integers(0, output)) for output in outputs]
    ahead = draw(st.booleans()) and case.config.batching == "continuous"
    sending = draw(among(0.0, 0.0, 0.011, 0.2))
    config = replace(case.config, async_scheduling=ahead, api_token_seconds=sending, async_output=False)
    specs = replace(case.specs, thinking_tokens=np.array(thinking, dtype=np.int64))
    if case.config.batching == "continuous" and draw(st.booleans()):
        images = [draw(among(0, 0, 1, 5)) for _ in outputs]
        seconds = np.array(images) * np.sqrt(47.0) / 32.0
        ends = np.maximum(specs.prompt_tokens // 2, 1) if draw(st.booleans()) else None
        earlier = earlier_images(specs.prompt_tokens)
        specs = replace(specs, encoder_seconds=seconds, earlier_images=earlier, image_ends=ends)
    return Case(config, case.times, specs)


def earlier_images(prompt_tokens: np.ndarray) -> np.ndarray:
    """Return of each request the one before it that may have the images its prompt begins with: it is shorter."""
    shorter = np.tril(prompt_tokens[:, None] > prompt_tokens[None, :], -1)
    return np.where(shorter.any(axis=1), len(shorter) - 1 - shorter[:, ::-1].argmax(axis=1), -1)


@st.composite
def tasks(draw: st.DrawFn, config: EngineConfig) -> RequestSpecs:
    """Draw tasks of agents with sub-agents and forks, open or of the clients of a closed loop."""
    spec = AgentsSpec(
        calls=UniformLength(min=1, max=4),
        subagent_share=0.5,
        subagents=UniformLength(min=1, max=3),
        subagent_calls=UniformLength(min=1, max=2),
        fork_share=0.5,
    )
    num_tasks = draw(st.integers(1, 3))
    agents = draw_agents(spec, Draws(draw(st.integers(0, 999))), num_sessions=num_tasks)
    count = len(agents.task)
    new = np.array(draw(st.lists(st.integers(1, 5), min_size=count, max_size=count)), dtype=np.int64)
    outputs = np.array(draw(st.lists(st.integers(1, 8), min_size=count, max_size=count)), dtype=np.int64)
    prompts, prefixes = agent_contexts(agents, new, outputs, draw(among(1.0, 1.0, 0.5, 0.0)), None)
    graph = dependencies_of_agents(agents)
    clients = draw(among(None, 1, 2))
    pauses = draw(st.lists(among(0, 1, 5), min_size=num_tasks, max_size=num_tasks))
    starts = np.cumsum(np.array(pauses)) * ARRIVAL_UNIT
    thinks = draw(st.lists(among(0, 1, 7), min_size=count, max_size=count))
    is_open_root = (graph.num_parents == 0) & (clients is None)
    return RequestSpecs(
        arrival_time=np.where(is_open_root, starts[agents.task], math.nan),
        prompt_tokens=prompts,
        output_tokens=outputs,
        max_tokens=outputs.copy(),
        think_time=np.array(thinks) * THINK_UNIT,
        concurrency=clients,
        is_stationary=False,
        offered_rate=math.nan,
        prefixes=prefixes,
        session=agents.task,
        turn=graph.depths(),
        dependencies=graph,
    )
