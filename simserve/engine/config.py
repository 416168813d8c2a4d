"""EngineConfig: the rules of one replica's scheduler as plain resolved numbers, and the request lengths it accepts.

Presets and versions live in ``engine_profiles/``; nothing here has a default that depends on an engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Batching = Literal["continuous", "static"]
Scheduler = Literal["mixed", "prefill_first"]
Admission = Literal["on_demand", "estimate", "reserve"]
SchedulingPolicy = Literal["fcfs", "priority", "shortest_first"]
PreemptionMode = Literal["recompute", "swap"]
KVAllocation = Literal["paged", "static", "pow2", "oracle", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KVTierConfig:
    """A place behind the prefix cache of a replica.

    Attributes:
        name: Name in the results.
        num_blocks: KV blocks that it holds.
        block_seconds: Seconds that a replica takes to load one of them.
        latency: Additional seconds of a step with loads.
        is_shared: Whether it is one store of all replicas, not a tier of each.
        store_block_seconds: For a shared store: seconds for which a block occupies the bandwidth that all replicas
            share; 0: none is shared.
        has_choice: Whether blocks are loaded only if that is faster than computing their tokens.
        overlaps: Whether loads run beside the step that waits for them, layer by layer.
    """

    name: str = "tier"
    num_blocks: int
    block_seconds: float = 0.0
    latency: float = 0.0
    is_shared: bool = False
    store_block_seconds: float = 0.0
    has_choice: bool = False
    overlaps: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Limits and rules of one replica's scheduler.

    Attributes:
        batching: ``continuous`` (iteration level, Orca) or ``static`` (collect, pad, answer together).
        scheduler: Which requests go first in a step. ``mixed``: decodes, then prefill chunks, share one token budget
            (vLLM V1, TensorRT-LLM). ``prefill_first``: a step is either prefill or decode, and prefill wins
            (SGLang, TGI, vLLM V0).
        admission: What admission requires. ``on_demand``: blocks for the next chunk. ``estimate``: SGLang's
            decaying new-token ratio. ``reserve``: blocks for the prompt and all of ``max_tokens``.
        scheduling_policy: Order of the queue. ``fcfs``; ``priority``: smallest number first, then by arrival, and
            preemption takes the request that comes last in this order (vLLM); ``shortest_first``: prompt plus
            ``max_tokens``.
        priority_ageing: ``priority``: seconds of waiting that outweigh one level; 0: waiting changes nothing.
        priority_preemption: ``priority``: whether running requests of a worse priority are preempted for the head of
            the queue if it finds no seat or no blocks. ``on_demand`` only.
        ends_pass: ``priority``: whether a request that preempts itself ends the pass over the running ones, so that
            those after it compute nothing in that step (vLLM up to 0.32); effective if `has_ordered_pass`.
        misses_next: ``ends_pass``: whether the pass misses the request after one that takes the blocks of a finished
            request before it (vLLM up to 0.27; `simserve.engine.preemption`).
        preemption_mode: What happens to a victim's KV: ``recompute`` or ``swap`` (`simserve.engine.preemption`).
        num_swap_blocks: ``swap``: KV blocks that host memory holds.
        kv_allocation: ``paged`` blocks; ``static`` slots of ``max_model_len``; ``pow2`` and ``oracle`` contiguous
            ranges, first fit (baselines of the vLLM paper); ``none``: no cache.
        max_num_seqs: Seats: most requests that hold KV at once.
        max_num_batched_tokens: Token budget of a step.
        max_chunk_tokens: Most prefill tokens of one request in a step, <= ``max_num_batched_tokens``; with
            ``overlaps_chunks`` those of all micro-batches.
        lifts_chunk_limit: Whether a request is limited only by the budget, not by ``max_chunk_tokens``, while no other
            request runs or waits (vLLM 0.33).
        aligns_chunks: With chunked prefill: whether a chunk that does not complete its prompt is as long as whole KV
            blocks (TensorRT-LLM, ``microBatchScheduler.cpp``); effective if `has_aligned_chunks`.
        checkpoint_tokens: With chunked prefill: a chunk ends this many tokens before the end of a prompt, so that a
            checkpoint of a cache that cannot be rolled back is made there (llama.cpp); 0: nowhere.
        last_checkpoint_tokens: A second such point, at most ``checkpoint_tokens``; if equal, there is only one.
        max_model_len: Longest prompt plus output, tokens.
        enable_chunked_prefill: Whether a prompt may be split over steps.
        reserve_full_prompt: ``on_demand`` admits only if the whole prompt fits in free blocks (vLLM's
            ``scheduler_reserve_full_isl``).
        allocates_prompt: ``on_demand``: whether a request takes all blocks of its prompt when it is admitted, not chunk
            by chunk (TensorRT-LLM's ``MAX_UTILIZATION``); effective if `has_whole_prompts`.
        suspends: ``on_demand``: whether steps are scheduled as by TensorRT-LLM's second KV cache manager, where victims
            keep their KV cache in host memory (`simserve.engine.suspension`); effective if `has_suspension`.
        max_used_blocks: ``suspends``: no request is admitted while more blocks are in use.
        enable_prefix_caching: Whether requests with the same prefix share KV blocks; ``continuous`` and ``paged`` only.
        caches_decoded: With ``enable_prefix_caching``: whether others find what a running request decodes (vLLM V1), or
            only once it has ended.
        evicts_by_block: With ``enable_prefix_caching``: whether cached blocks are evicted one by one, each by its last
            use (vLLM), or segment by segment.
        keeps_radix_tree: With ``enable_prefix_caching``: whether shared prefixes are a tree of what steps have computed
            (SGLang; `simserve.engine.radix_tree`); effective only if `has_radix_tree`.
        evicts_missing: ``keeps_radix_tree``: whether nodes are evicted for the blocks that a step lacks (SGLang
            0.5.18), or for all that it takes.
        touches_waiting: ``keeps_radix_tree``, ``fcfs``: whether looking at the queue periodically counts as a use of
            what its requests would find (SGLang 0.5.22; `simserve.engine.radix_tree`).
        ages_empty_blocks: ``evicts_by_block``: whether free blocks without shareable content wait for their turn among
            the cached ones (vLLM up to pull request 42656); else they are taken first.
        waits_for_prefix: With ``enable_prefix_caching``: whether a request waits while another computes the first block
            that it lacks, and prompts are cached when they are computed in full (TensorRT-LLM;
            `simserve.engine.prefix_cache`); effective if `has_prefix_waits`.
        caches_at_end: ``waits_for_prefix``: whether others find a prompt only once its request has ended.
        ignores_found: ``waits_for_prefix``: whether admission and the budget take a request as if it found nothing in
            the cache (TensorRT-LLM before 1.3, pull requests 11637 and 11731).
        max_loras: Most LoRA adapters in a batch, and their slots on the GPU (`simserve.engine.loras`); 0: none.
            ``continuous`` only.
        max_cpu_loras: Adapters that host memory keeps, including those on the GPU; at least ``max_loras``.
        lora_host_seconds: Seconds that a step waits for an adapter from host memory.
        lora_disk_seconds: Additional wait if it comes from disk, seconds.
        kv_tiers: With ``enable_prefix_caching``: the tiers behind the cache, the nearest first; one that replicas share
            is the last (`simserve.engine.kv_tier`).
        block_size: Tokens per KV block.
        num_blocks: KV blocks of the replica; ``num_blocks * block_size`` tokens of KV, of ``full_groups +
            window_groups`` groups of layers if windows are kept.
        full_groups: Blocks of the pool per KV block for the layers that see everything: 1, or 0 if no layer does.
        window_groups: Blocks of the pool per KV block for the layers with a window: groups of layers that share the
            pool (vLLM). 0 if they have a pool of their own.
        window_blocks: Most blocks of a request that a layer with a window holds, not counting the chunk being computed
            (`simserve.engine.windows`); 0: all layers keep everything.
        num_window_blocks: Blocks of a separate pool for layers with a window (SGLang); 0: they share the pool.
        tree_states: States of linear attention that requests and the radix tree share (SGLang); 0: prefixes are found
            without them. Effective if `has_radix_tree`.
        seat_states: Those that a running request has.
        state_grid: Tokens between the places of a prompt behind which a chunk can leave a state, the last of which it
            leaves; 0: a chunk leaves the state at its end, and so does an answer (`simserve.engine.radix_tree`).
        state_interval: With a grid, tokens between the states of answers.
        keeps_bare_leaves: ``tree_states``: whether a leaf without a state keeps its tokens until memory is short
            (SGLang 0.5.16), or goes with the node behind it.
        window_tokens: Tokens of the window, if the blocks of requests are counted one by one as vLLM does
            (`simserve.engine.state_cache`); effective if `has_state_cache`. 0: as ``window_blocks`` says.
        keeps_states: Whether a layer with a window holds a state, which chunks do not lengthen.
        caches_states: ``keeps_states``, with ``enable_prefix_caching``: whether a prefix is found only where its state
            is cached, for which chunks end there (vLLM; `simserve.engine.state_cache`); effective if `has_state_cache`.
        keeps_every_state: ``caches_states``: whether a state is cached at every full block that ends a chunk (vLLM up
            to 0.29), or only where another prompt may go on; with ``window_tokens`` every block of a window, or only
            the windows before those places.
        keeps_last_state: ``caches_states``: whether a prompt of full blocks ends with one chunk less, without a state
            behind which the same prompt could go on (vLLM up to 0.31).
        aligns_plainly: ``caches_states``: whether a chunk that does not reach the last block is cut to whole blocks,
            and the others only at that block; and whether a request gives back a state once the step under way goes on
            from it, and not when that step's result is known (vLLM up to 0.25). With ``num_lookahead_tokens``: whether
            the first chunk of a request takes none of those slots.
        exports_states: ``caches_states``: whether a state can be cached amid the last chunk of a prompt.
        state_block_size: ``caches_states``: tokens between the places where a state can be cached, a divisor of
            ``block_size``; 0: those of a block.
        watermark_blocks: Blocks that ``on_demand`` admission leaves free (vLLM V0 kept 1 %).
        reserved_decode_tokens: Tokens that a decode replica keeps free for each request with a seat when it takes in
            another one (SGLang's ``num_reserved_decode_tokens``); 0: those of the next step.
        static_batch_size: Most requests of a static batch.
        static_max_wait: Longest wait of a static batch's first request, seconds.
        new_token_ratio_initial: ``estimate``: share of ``max_tokens`` expected of a running request at first.
        new_token_ratio_minimum: ``estimate``: where the ratio stops decaying.
        new_token_ratio_decay: ``estimate``: decrease of the ratio per decode step.
        strikes_at_once: ``estimate``: whether finished requests have left the batch when the next step is scheduled
            (SGLang 0.5.23), or only when the next decode step is.
        skips_ended: ``overlaps_results``: whether requests do not decode beyond an end set by ``max_tokens``, and a
            step waits for those that end so instead of retracting others (SGLang 0.5.22).
        keeps_ratio: ``estimate``: whether the ratio is reset only if no request waits either (SGLang 0.5.11), or
            whenever a batch turns out to be empty.
        expects_max_tokens: ``estimate``: whether decoding requests are expected to take all of ``max_tokens``, whatever
            the ratio (SGLang 0.5.23 for those that ignore the end of the sequence).
        reserves_page: ``estimate``: whether admission needs a block beyond the request's tokens.
        pipeline_parallel_size: Groups of requests in flight, DESIGN section 4.
        overlaps_chunks: With pipeline stages: whether the next chunk of a prompt enters the first stage while the one
            before it is in a later one (`simserve.engine.micro_batches`).
        keeps_micro_batches: With pipeline stages: whether a request stays in the micro-batch that completed its prompt;
            otherwise they are spread evenly.
        samples_in_turn: With pipeline stages: whether no stage goes on before the last one has sampled, so that the
            requests of a step with decodes are one micro-batch.
        data_parallel_size: Ranks with a scheduler and a KV cache each, all as described here, that step together.
        rotates_ranks: Whether requests go to the ranks in turn (SGLang); otherwise to the one with the fewest.
        attention_dp_timeout_iters: With ranks: most steps for which prompts wait until every rank has one; 0: they do
            not wait.
        prefill_delayer_max_delay_passes: With ranks: prompts wait for those of other ranks as by SGLang's delayer, for
            fewer steps than this (`simserve.engine.data_parallel`); 0: they do not.
        prefill_delayer_token_usage_low_watermark: The share of KV memory in use below which a rank's prompts do not.
        delays_for_seats: Whether they also wait for seats when every rank has one (SGLang 0.5.10).
        bounds_prompt_delay: ``delays_for_seats``: whether that wait is bounded too, the largest batch of prompts
            decays, and a rank has a prompt amid one and none if memory refuses it (SGLang 0.5.17).
        forgets_batches: ``bounds_prompt_delay``: whether the largest batch is that of a rank's last ones, refused ones
            among them, and does not decay (SGLang 0.5.18).
        async_scheduling: Whether a step is scheduled while the previous one runs, so that an arrival joins the step
            after next.
        releases_late: ``async_scheduling``: whether a finished request keeps its seat and blocks until the step after
            its last one is scheduled (vLLM; `simserve.engine.decoding`). Only continuous batching with a KV cache.
        overlaps_results: ``async_scheduling``: whether a step is scheduled before the results of the previous one are
            known, so that a finished request decodes once more (SGLang; `simserve.engine.overlap`); effective if
            `has_overlap`.
        async_output: Whether tokens are delivered while the next step runs (`simserve.engine.kernel`); not for ranks
            that step together.
        transfer_step_seconds: ``async_output``: seconds of a step before the tokens of the previous one are delivered.
        transfer_request_seconds: ``async_output``: what each sequence of the step adds to that.
        transfer_prompt_seconds: ``async_output``: what launching prompts adds.
        api_token_seconds: Seconds that the API server takes per token of a request (`simserve.engine.kernel`); 0:
            clients get tokens immediately.
        num_lookahead_tokens: Slots of KV beyond those of a step's tokens: of the drafts that a layer with a KV cache of
            its own makes next (vLLM, EAGLE and MTP); effective if `has_state_cache`, without ``priority_preemption``.
        num_draft_states: ``keeps_states``: states of drafts that a request has beside its own in each group of layers;
            ``window_groups`` counts them.
        hashes_next_token: Whether a block is cached with the token behind it, so that it is found only where prompts go
            on alike (vLLM from 0.33, EAGLE and MTP).
        caches_results: With drafts and steps that are not scheduled ahead: whether blocks are cached as soon as a step
            has filled them (vLLM 0.33), or only once the next one is scheduled.
        drops_last_block: With drafts of such layers, whether a prompt computes the last block that it has found once
            more (vLLM up to 0.32); effective if `has_state_cache`.
        num_speculative_tokens: Drafts that a step verifies for a decoding request; each takes a token of the budget and
            a slot of KV, and so does the token after them. 0: no speculative decoding.
        pads_lone_token: With drafts: whether a request admitted with a single token to compute computes as many as a
            decoding one, beside no chunk of a running prompt, and if requests decode or its prefix was found (vLLM
            0.30); effective if `has_padding`.
        recomputes_last_token: For a replica that decodes what others prefill: whether it computes the last token of a
            prompt again, and with it the first of the answer (vLLM from 0.9); effective if `has_late_first_token`.
        frontend_latency: Seconds from arrival to the scheduler (HTTP).
        tokenization_per_token: Seconds that each token of the prompt adds to that.
        frontend_seconds_per_request: Seconds that each request adds to that, in which the API server does nothing else.
    """

    batching: Batching = "continuous"
    scheduler: Scheduler = "mixed"
    admission: Admission = "on_demand"
    scheduling_policy: SchedulingPolicy = "fcfs"
    priority_ageing: float = 0.0
    priority_preemption: bool = False
    ends_pass: bool = False
    misses_next: bool = False
    preemption_mode: PreemptionMode = "recompute"
    num_swap_blocks: int = 0
    kv_allocation: KVAllocation = "paged"
    max_num_seqs: int
    max_num_batched_tokens: int
    max_chunk_tokens: int
    lifts_chunk_limit: bool = False
    aligns_chunks: bool = False
    checkpoint_tokens: int = 0
    last_checkpoint_tokens: int = 0
    max_model_len: int
    enable_chunked_prefill: bool = True
    reserve_full_prompt: bool = False
    allocates_prompt: bool = False
    suspends: bool = False
    max_used_blocks: int = 0
    enable_prefix_caching: bool = False
    caches_decoded: bool = False
    evicts_by_block: bool = False
    ages_empty_blocks: bool = False
    keeps_radix_tree: bool = False
    evicts_missing: bool = False
    touches_waiting: bool = False
    waits_for_prefix: bool = False
    caches_at_end: bool = False
    ignores_found: bool = False
    max_loras: int = 0
    max_cpu_loras: int = 0
    lora_host_seconds: float = 0.0
    lora_disk_seconds: float = 0.0
    kv_tiers: tuple[KVTierConfig, ...] = ()
    block_size: int
    num_blocks: int
    full_groups: int = 1
    window_groups: int = 0
    window_blocks: int = 0
    window_tokens: int = 0
    num_window_blocks: int = 0
    tree_states: int = 0
    seat_states: int = 1
    state_grid: int = 0
    state_interval: int = 256
    keeps_bare_leaves: bool = False
    keeps_states: bool = False
    caches_states: bool = False
    keeps_every_state: bool = False
    keeps_last_state: bool = False
    aligns_plainly: bool = False
    exports_states: bool = False
    state_block_size: int = 0
    watermark_blocks: int = 0
    reserved_decode_tokens: int = 0
    static_batch_size: int = 1
    static_max_wait: float = 0.0
    new_token_ratio_initial: float = 0.7
    new_token_ratio_minimum: float = 0.098
    new_token_ratio_decay: float = 0.602 / 600
    strikes_at_once: bool = False
    skips_ended: bool = False
    keeps_ratio: bool = False
    expects_max_tokens: bool = False
    reserves_page: bool = False
    pipeline_parallel_size: int = 1
    overlaps_chunks: bool = False
    keeps_micro_batches: bool = False
    samples_in_turn: bool = False
    data_parallel_size: int = 1
    rotates_ranks: bool = False
    attention_dp_timeout_iters: int = 0
    prefill_delayer_max_delay_passes: int = 0
    prefill_delayer_token_usage_low_watermark: float = 0.0
    delays_for_seats: bool = False
    bounds_prompt_delay: bool = False
    forgets_batches: bool = False
    async_scheduling: bool = False
    releases_late: bool = False
    overlaps_results: bool = False
    async_output: bool = False
    transfer_step_seconds: float = 0.0
    transfer_request_seconds: float = 0.0
    transfer_prompt_seconds: float = 0.0
    api_token_seconds: float = 0.0
    num_lookahead_tokens: int = 0
    num_draft_states: int = 0
    hashes_next_token: bool = False
    caches_results: bool = False
    drops_last_block: bool = False
    num_speculative_tokens: int = 0
    pads_lone_token: bool = False
    recomputes_last_token: bool = False
    frontend_latency: float = 0.0
    tokenization_per_token: float = 0.0
    frontend_seconds_per_request: float = 0.0

    @property
    def has_radix_tree(self) -> bool:
        """Whether prefixes are kept in a tree: without tiers behind the cache, windows and late release."""
        is_growing = self.kv_allocation == "paged" and self.admission == "estimate"
        is_plain = not (self.kv_tiers or self.window_blocks or self.releases_late)
        return self.keeps_radix_tree and self.scheduler == "prefill_first" and is_growing and is_plain

    @property
    def has_prefix_waits(self) -> bool:
        """Whether requests wait for prefixes; such engines give them the blocks of their prompts at once."""
        return self._may_wait and (self.admission == "reserve" or self.has_whole_prompts)

    @property
    def has_whole_prompts(self) -> bool:
        """Whether growing requests take the blocks of their prompts at once: without windows, swapping and padding."""
        is_growing = self.kv_allocation == "paged" and self.admission == "on_demand" and self.batching == "continuous"
        is_plain = self.window_blocks == 0 and self.preemption_mode == "recompute" and not self.pads_lone_token
        is_plain = is_plain and (self._may_wait or not self.enable_prefix_caching)
        is_plain = is_plain and not self.has_suspension
        return self.allocates_prompt and self.scheduler == "mixed" and is_growing and is_plain

    @property
    def has_suspension(self) -> bool:
        """Whether victims are suspended: growing requests in the order of arrival, with nothing in the way of it.

        Without windows, adapters, drafts, swapping and checkpoints; a cache evicts by block.
        """
        is_growing = self.kv_allocation == "paged" and self.admission == "on_demand" and self.batching == "continuous"
        is_plain = not (self.window_blocks or self.max_loras or self.num_speculative_tokens)
        is_plain = is_plain and not (self.reserve_full_prompt or self.watermark_blocks or self.caches_decoded)
        is_plain = is_plain and self.checkpoint_tokens == 0 and not self.lifts_chunk_limit
        is_plain = is_plain and (self.evicts_by_block or not self.enable_prefix_caching)
        keeps_order = self.scheduling_policy == "fcfs" and self.preemption_mode == "recompute"
        return self.suspends and self.scheduler == "mixed" and is_growing and is_plain and keeps_order

    @property
    def _may_wait(self) -> bool:
        """Whether requests may wait: first come, first served, with blocks evicted one by one.

        Without tiers, windows, adapters, swapping and checkpoints.
        """
        is_paged = self.kv_allocation == "paged" and self.batching == "continuous" and self.scheduler == "mixed"
        is_plain = not (self.kv_tiers or self.window_blocks or self.max_loras or self.caches_decoded)
        keeps_order = self.scheduling_policy == "fcfs" and self.preemption_mode == "recompute"
        is_plain = is_plain and self.evicts_by_block and self.checkpoint_tokens == 0 and not self.has_suspension
        return self.waits_for_prefix and is_paged and is_plain and keeps_order

    @property
    def takes_lazily(self) -> bool:
        """Whether reserved blocks may hold cached prefixes until a request grows into them (TensorRT-LLM).

        A request takes the blocks of its prompt when it is admitted. Without drafts.
        """
        return self.has_prefix_waits and self.admission == "reserve" and self.num_speculative_tokens == 0

    @property
    def has_aligned_chunks(self) -> bool:
        """Whether chunks are whole blocks: in mixed steps that have room for one, without checkpoints."""
        is_mixed = self.batching == "continuous" and self.scheduler == "mixed" and self.kv_allocation == "paged"
        has_room = self.max_chunk_tokens >= self.block_size and self.checkpoint_tokens == 0
        return self.aligns_chunks and self.enable_chunked_prefill and is_mixed and has_room

    @property
    def has_ordered_pass(self) -> bool:
        """Whether a step may pass over decoding requests: growing ones without drafts, none of which is swapped."""
        is_growing = self.kv_allocation == "paged" and self.admission == "on_demand" and self.batching == "continuous"
        is_plain = self.num_speculative_tokens == 0 and self.preemption_mode == "recompute"
        is_ordered = self.scheduling_policy == "priority" and self.scheduler == "mixed"
        return self.ends_pass and is_ordered and is_growing and is_plain

    @property
    def has_state_cache(self) -> bool:
        """Whether blocks are counted one by one, for windows, cached states, or slots ahead."""
        is_cached = self.enable_prefix_caching and self.evicts_by_block
        is_ahead = self.num_lookahead_tokens > 0 and not self.enable_prefix_caching
        has_states = (
            self.caches_states and self.keeps_states and (is_cached or is_ahead) and self.enable_chunked_prefill
        )
        has_states = has_states and self.window_blocks > 0
        return self.numbers_blocks or (has_states and self._may_number_blocks)

    @property
    def numbers_blocks(self) -> bool:
        """Whether blocks are counted one by one without states: for windows that share a pool, or for slots ahead."""
        has_windows = self.window_tokens > 0 and self.window_groups > 0 and self.num_window_blocks == 0
        is_ahead = self.num_lookahead_tokens > 0 and self.window_blocks == 0
        is_plain = self.preemption_mode == "recompute" and (self.evicts_by_block or not self.enable_prefix_caching)
        is_plain = is_plain and self.full_groups == 1 and not self.keeps_states and self._may_number_blocks
        return is_plain and (is_ahead or (has_windows and self.window_blocks > 0))

    @property
    def _may_number_blocks(self) -> bool:
        """Whether steps are mixed, of growing requests, and no tiers are behind the cache."""
        is_growing = self.kv_allocation == "paged" and self.admission == "on_demand" and self.batching == "continuous"
        return is_growing and self.scheduler == "mixed" and not self.kv_tiers

    @property
    def surplus_blocks(self) -> int:
        """Most blocks held that are not counted unless one by one: of chunks before windows, and for drafts ahead."""
        chunks = -(-self.max_num_batched_tokens // self.block_size) + 2 * self.max_num_seqs
        drafts = self.num_lookahead_tokens + 2 * (1 + self.num_speculative_tokens)
        ahead = (1 + -(-drafts // self.block_size)) * self.max_num_seqs if self.num_speculative_tokens else 0
        chunks = self.window_groups * (self.pipeline_parallel_size + self.async_scheduling) * chunks
        return chunks + (1 + self.window_groups) * ahead

    @property
    def reach(self) -> int:
        """Tokens before the end of a prefix that a request needs to go on from it in layers with a window or state."""
        return self.window_tokens - 1 if self.window_blocks and self.numbers_blocks else 1

    @property
    def is_mixed(self) -> bool:
        """Whether a step computes prompts beside decodes, with paged KV, and requests come and go between steps."""
        return self.batching == "continuous" and self.scheduler == "mixed" and self.kv_allocation == "paged"

    @property
    def num_slots_ahead(self) -> int:
        """``num_lookahead_tokens`` where they are counted."""
        return self.num_lookahead_tokens if self.has_state_cache and not self.priority_preemption else 0

    @property
    def decodes_beyond(self) -> bool:
        """Whether a request that ends sooner than was certain, by drafts, computes a step more (vLLM, ahead)."""
        is_ahead = self.async_scheduling and self.releases_late and self.num_speculative_tokens > 0
        is_alone = self.pipeline_parallel_size == self.data_parallel_size == 1 and not self.max_loras
        is_plain = self.is_mixed and self.admission == "on_demand" and self.preemption_mode == "recompute"
        is_other = self.has_whole_prompts or self.priority_preemption
        return is_ahead and is_alone and is_plain and not is_other

    @property
    def assumes_drafts(self) -> bool:
        """Whether drafts of the step under way take slots as if they held: unless windows are counted together."""
        return self.decodes_beyond and (self.window_blocks == 0 or self.has_state_cache)

    @property
    def leaves_results(self) -> bool:
        """Whether a request that leaves has cached all that it ever does, as its last step was scheduled."""
        return self.num_speculative_tokens > 0 and not (self.async_scheduling or self.caches_results)

    @property
    def state_groups(self) -> int:
        """Groups of layers with a window, or with states that others can find."""
        return self.window_groups // (1 + self.num_draft_states)

    @property
    def most_admitted(self) -> int:
        """Blocks of a window that admission counts at most (vLLM's ``max_admission_blocks_per_request``)."""
        num_batches = 1 if self.aligns_plainly else self.pipeline_parallel_size + self.async_scheduling
        tokens = min(self.reach + num_batches * self.max_num_batched_tokens, self.max_model_len)
        return -(-tokens // self.block_size) + 1

    @property
    def has_padding(self) -> bool:
        """Whether lone tokens are padded: in mixed steps, and without windows unless blocks are counted one by one."""
        is_plain = not self.window_blocks or self.keeps_states or self.has_state_cache
        return self.pads_lone_token and self.num_speculative_tokens > 0 and self.is_mixed and is_plain

    @property
    def has_late_first_token(self) -> bool:
        """Whether a request that comes with its KV cache gets its first token a step later: decodes join any step."""
        is_mixed = self.batching == "continuous" and self.scheduler == "mixed" and self.kv_allocation != "none"
        return self.recomputes_last_token and is_mixed

    @property
    def has_overlap(self) -> bool:
        """Whether results are known a step late: growing requests, no pipeline stages, no preemption by priority."""
        is_growing = self.kv_allocation == "paged" and self.admission == "estimate" and self.batching == "continuous"
        is_plain = not (self.kv_tiers or self.window_blocks or self.max_loras or self.num_speculative_tokens)
        is_plain = is_plain and (self.has_radix_tree or not self.enable_prefix_caching)
        keeps_order = not self.priority_preemption and self.preemption_mode == "recompute"
        is_overlapped = self.async_scheduling and self.overlaps_results and self.scheduler == "prefill_first"
        return is_overlapped and is_growing and self.pipeline_parallel_size == 1 and is_plain and keeps_order


@dataclass(frozen=True, slots=True)
class Limited:
    """Requests within the limits, shape [N] each.

    Attributes:
        max_tokens: Tokens that each may generate.
        output_tokens: Tokens that it generates; 0 if the prompt is too long.
        is_truncated: Whether a limit shortened the request.
        is_too_long: Whether the prompt is too long.
    """

    max_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    is_truncated: NDArray[np.bool_]
    is_too_long: NDArray[np.bool_]


def limited(
    prompt_tokens: NDArray[np.int64],
    output_tokens: NDArray[np.int64],
    max_tokens: NDArray[np.int64],
    config: EngineConfig,
) -> Limited:
    """Return requests after the length limits of an engine; ``max_tokens`` of -1 is the model's limit."""
    prompt_limit = config.max_model_len - 1
    if config.batching == "continuous" and not config.enable_chunked_prefill and config.kv_allocation != "none":
        prompt_limit = min(prompt_limit, config.max_num_batched_tokens)
    if len(prompt_tokens) and int(max_tokens.min()) >= 0:
        longest_prompt = int(prompt_tokens.max())
        if longest_prompt <= prompt_limit and longest_prompt + int(max_tokens.max()) <= config.max_model_len:
            nobody = np.zeros(len(prompt_tokens), dtype=np.bool_)
            return Limited(max_tokens, np.minimum(output_tokens, max_tokens), nobody, nobody)
    longest = np.maximum(config.max_model_len - prompt_tokens, 0)
    allowed = np.where(max_tokens < 0, longest, np.minimum(max_tokens, longest))
    wanted = np.where(max_tokens < 0, output_tokens, np.minimum(output_tokens, max_tokens))
    too_long = prompt_tokens > prompt_limit
    return Limited(
        max_tokens=allowed,
        output_tokens=np.where(too_long, 0, np.minimum(output_tokens, allowed)),
        is_truncated=((max_tokens > longest) | (wanted > longest)) & ~too_long,
        is_too_long=too_long,
    )


def finds_itself(config: EngineConfig, lengths: NDArray[np.int64]) -> bool:
    """Return whether a preempted request may find its own blocks in the prefix cache when it is computed again.

    If the longest requests that have seats fit the KV cache together, none is preempted.

    Args:
        config: The engine.
        lengths: Tokens of each request, prompt and answer together, shape [N].
    """
    if not config.enable_prefix_caching or config.admission == "reserve" or not len(lengths):
        return False
    if config.priority_preemption:
        return True
    seats = min(config.max_num_seqs, len(lengths))
    longest = np.partition(lengths, len(lengths) - seats)[len(lengths) - seats :] + config.num_speculative_tokens
    blocks = int((longest // config.block_size + 1).sum()) * (config.full_groups + config.window_groups)
    return blocks > config.num_blocks - config.watermark_blocks
