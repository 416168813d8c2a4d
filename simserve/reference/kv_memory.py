"""Scheduler: the queue, the batch and the KV memory of one replica, independent of how it batches.

Blocks are counted; cached ones are named by segment and position. Every answer comes from looking at all requests.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from simserve.reference.arrival_order import came, growth
from simserve.reference.cached_blocks import CachedBlocks, Store, Tier, worth_taking
from simserve.reference.micro_batches import smallest
from simserve.reference.request import ONE_TOKEN, Request
from simserve.reference.states import StateCache, reuse_oldest
from simserve.reference.steps import Step
from simserve.reference.suspension import is_alike, known_tokens
from simserve.reference.tree_states import tree_of

if TYPE_CHECKING:
    from simserve.engine.config import EngineConfig, KVTierConfig
    from simserve.engine.state import StepTimes
    from simserve.sim.own_parts import Judge


class Scheduler(ABC):
    """A replica's own decisions: which requests are in a step, and which memory each holds. It has no clock.

    Attributes:
        times: Seconds of its steps.
        waiting: Its queue, the head first.
        running: Requests with a seat, in the order of their admission.
        departing: Running requests that are done: with asynchronous scheduling, step n + 1 is scheduled before it is
            known which requests step n finishes.
        closest_estimate: ``estimate``: smallest difference between the two sides of the admission test, tokens.
        num_admitted: Requests that have taken a seat so far, including those readmitted after a preemption.
        num_preempted: Requests that have lost their KV cache so far.
    """

    def __init__(self, config: EngineConfig, times: StepTimes) -> None:
        self.config, self.times = config, times
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.departing: list[Request] = []
        self.capacity = config.num_blocks
        if config.kv_allocation == "static":
            self.capacity = self.kv_tokens // config.max_model_len
        self.cached = CachedBlocks(by_block=config.evicts_by_block)
        # Of a tree: what the step being planned has taken.
        self.tree, self.num_taken = tree_of(config), 0
        # Blocks reserved while a step is planned for requests that the budget leaves less than a block of tokens.
        self.set_aside = 0
        # When each free block without a cached prefix, and each cached one, was released, if both are reused in turn.
        self.empty = deque([0] * config.num_blocks if self.ages_empty_blocks else [])
        self.last_used: dict[tuple[int, int], int] = {}
        self.num_given_up = 0
        self.states = StateCache(self)
        # Places behind GPU memory: the tiers of this replica, and the store that it may share with others.
        self.tiers = [Tier(each) for each in config.kv_tiers if not each.is_shared]
        self.store: Store | None = None
        self.free_in_host = config.num_swap_blocks
        self.spans: list[tuple[int, int]] = []
        # Prompts that are computed but not yet findable, and the number of tokens of each.
        self.late_prompts: list[tuple[Request, int]] = []
        # LoRA adapters no longer in use, the longest idle first; and those requested.
        self.idle_adapters: list[int] = []
        self.adapters_asked = self.adapter_hits = self.adapter_swaps = self.adapters_from_disk = 0
        self.adapter_seconds = 0.0
        # What the next step loads for KV caches that arrived from elsewhere.
        self.loads = Step(0.0)
        self.closest_estimate = math.inf
        self.num_admitted = self.num_preempted = 0
        # When a preempted request was requeued, where that matters.
        self.requeued: dict[int, float] = {}
        self.last_requeued = 0.0

    @abstractmethod
    def schedule(self, now: float) -> Step | None:
        """Choose the step that starts ``now``; None if there is nothing to do yet."""

    @abstractmethod
    def complete(self, step: Step, end: float, /) -> list[Request]:
        """Apply the effects of a step; return the finished requests in the order of their indices."""

    def take_own_seconds(self, step: Step, judge: Judge) -> None:
        """Set a planned step's seconds by a user's own function, plus those of its KV block copies."""
        decodes = (1 + self.config.num_speculative_tokens) * len(step.decoding)
        contexts = sum(request.computed + request.fraction for request in step.decoding)
        seconds = judge.seconds(sum(chunk for _, chunk in step.chunks), decodes, contexts, step.start)
        step.seconds = seconds + self.times.swap_block_seconds * step.moved_blocks

    def submit(self, request: Request) -> None:
        """Queue a request; a store reserves the blocks that it has of the request's prefix."""
        self.waiting.append(request)
        self.requeued.pop(request.index, None)
        if self.store is not None:
            longest = max((end for _, end in request.path), default=0)
            request.promised = self.store.promise(self.blocks_on_path(request, longest // self.config.block_size))

    def look_again(self, _now: float) -> float:
        """Return when there is something to do although nothing arrives; inf: never."""
        return math.inf

    def let_go(self, request: Request) -> None:
        """Take a request from the queue, or from the batch with all its memory."""
        if request in self.waiting:
            self.waiting.remove(request)
            if request.is_swapped:
                self.free_in_host += self.blocks_of(request.computed)
        else:
            # Full blocks stay cached, like those of a finished request.
            self.leave_cached(request, known_tokens(self.config, request, request.computed))
            self.write_through(request, request.computed)
            self.running.remove(request)
            self.release(request)
            self.drop_adapter(request)

    def rank(self, request: Request) -> float:
        """Return the priority of a request, adjusted for ageing."""
        ageing = 1.0 / self.config.priority_ageing if self.config.priority_ageing else 0.0
        return request.priority + request.ready * ageing

    @property
    def adapters_in_use(self) -> set[int]:
        """LoRA adapters of the requests in the batch."""
        return {request.adapter for request in self.active if request.adapter >= 0}

    def has_adapter_seat(self, request: Request) -> bool:
        """Whether the batch has the adapter of a request, or may have one more."""
        if request.adapter < 0 or not self.config.max_loras:
            return True
        in_use = self.adapters_in_use
        return request.adapter in in_use or len(in_use) < self.config.max_loras

    def take_adapter(self, request: Request, step: Step) -> None:
        """Let a request that is about to be admitted use its adapter, loaded from where it is.

        The GPU keeps the last ``max_loras`` adapters used, host memory the last ``max_cpu_loras``; both include those
        in use.
        """
        if request.adapter < 0 or not self.config.max_loras:
            return
        self.adapters_asked += 1
        in_use = self.adapters_in_use
        by_use = [*self.idle_adapters, *in_use]
        if request.adapter in by_use[-self.config.max_loras :]:
            self.adapter_hits += 1
        else:
            step.loaded_adapters += 1
            step.adapters_from_disk += request.adapter not in by_use[-self.config.max_cpu_loras :]
        if request.adapter in self.idle_adapters:
            self.idle_adapters.remove(request.adapter)

    def drop_adapter(self, request: Request) -> None:
        """Note that a request no longer uses its adapter."""
        if request.adapter >= 0 and request.adapter not in self.adapters_in_use:
            self.idle_adapters.append(request.adapter)

    def seconds_of_adapters(self, step: Step) -> float:
        """Return the seconds that LoRA adapters add to a planned step: for loading, and for computing with them."""
        loading = self.config.lora_host_seconds * step.loaded_adapters
        loading += self.config.lora_disk_seconds * step.adapters_from_disk
        self.adapter_seconds += loading
        self.adapter_swaps += step.loaded_adapters
        self.adapters_from_disk += step.adapters_from_disk
        tokens = [(request.adapter, self.tokens_per_decode) for request in step.decoding]
        tokens = [each for each in (*tokens, *((one.adapter, chunk) for one, chunk in step.chunks)) if each[0] >= 0]
        if not tokens or not self.config.max_loras:
            return loading
        read = self.adapters_in_use
        if self.config.scheduler == "prefill_first" and not step.decoding:
            read = {adapter for adapter, _ in tokens}
        times = self.times
        through = times.lora_token_seconds * sum(count for _, count in tokens)
        return loading + times.lora_step_seconds + times.lora_adapter_seconds * len(read) + through

    def release_departing(self) -> None:
        """Release what requests hold that were done when the step was scheduled; their blocks stay cached.

        The request admitted first goes first, except where blocks are kept as a tree.
        """
        leaving = self.departing if self.tree is not None else self.running
        for request in [each for each in leaving if each in self.departing]:
            self.release_departed(request, request.prompt_tokens + request.output_tokens - 1)

    def release_departed(self, request: Request, tokens: int) -> None:
        """Release what a done request holds; its first ``tokens`` tokens stay cached."""
        self.departing.remove(request)
        self.leave_cached(request, known_tokens(self.config, request, tokens))
        self.write_through(request, tokens)
        self.running.remove(request)
        self.release(request)

    def let_stand_in(self, request: Request) -> None:
        """Move the seat and blocks of a request that is done here, and goes on elsewhere, to a stand-in.

        They are never taken from the stand-in: what it computed is in flight or no longer wanted.
        """
        for scheduler in self.schedulers:
            if request in scheduler.departing:
                other = replace(request, output_tokens=request.generated, is_stand_in=True)
                for each in (scheduler.departing, scheduler.running):
                    each[each.index(request)] = other
                self.states.hand_over(request, other)
                request.blocks, request.window_blocks, request.shared, request.span = 0, 0, [], (0, 0)

    @property
    def schedulers(self) -> list[Scheduler]:
        """The schedulers behind this one that each have their own memory: itself."""
        return [self]

    @property
    def num_running(self) -> int:
        """Number of requests with a seat that are not done."""
        return len(self.active)

    @property
    def active(self) -> list[Request]:
        """Requests with a seat that are not done; done ones keep it until the next step is scheduled (`departing`)."""
        return [request for request in self.running if request not in self.departing]

    @property
    def num_outstanding(self) -> int:
        """Number of requests that wait or run."""
        return len(self.waiting) + len(self.active)

    @property
    def max_num_seqs(self) -> int:
        """Seats."""
        return self.config.max_num_seqs

    @property
    def is_empty(self) -> bool:
        """Whether no request holds anything."""
        return (
            not self.waiting
            and not self.running
            and self.free == self.capacity
            and not self.spans
            and self.free_in_host == self.config.num_swap_blocks
        )

    @property
    def used_tokens(self) -> int:
        """KV tokens that are reserved, including for the running step."""
        if self.config.kv_allocation == "none":
            return 0
        if self.config.kv_allocation in ("pow2", "oracle"):
            return sum(end - start for start, end in self.spans)
        per_block = self.config.max_model_len if self.config.kv_allocation == "static" else self.config.block_size
        return (self.capacity - self.free) * per_block

    @property
    def kv_share(self) -> float:
        """Share of KV memory that is reserved; 0 without a KV cache."""
        return min(self.used_tokens / self.kv_tokens, 1.0) if self.kv_tokens else 0.0

    @property
    def kv_tokens(self) -> int:
        """Number of tokens that fit into the KV cache."""
        return self.config.num_blocks * self.config.block_size

    @property
    def is_growing(self) -> bool:
        """Whether requests take blocks as they grow, and may therefore be preempted."""
        return self.config.kv_allocation == "paged" and self.config.admission in ("on_demand", "estimate")

    @property
    def tokens_per_decode(self) -> int:
        """Number of tokens that a decoding request computes in a step: the newest one, and the drafts after it."""
        return 1 + self.config.num_speculative_tokens

    def blocks_needed(self, request: Request) -> int:
        """Return the number of blocks that the next step of a decoding request opens."""
        if not self.is_growing or (request in self.departing and self.config.window_blocks):
            return 0
        return max(self.blocks_of(max(request.computed, request.assumed) + self.tokens_per_decode) - request.blocks, 0)

    def window_growth(self, request: Request) -> int:
        """Return the number of blocks opened in a layer with a window: as in other layers, until the window is full."""
        is_full = request.window_blocks >= self.config.window_blocks
        return 0 if is_full else self.blocks_needed(request)

    def blocks_of(self, tokens: int) -> int:
        """Return the number of blocks that hold ``tokens``."""
        return math.ceil(tokens / self.config.block_size)

    def first_fit(self, tokens: int) -> int | None:
        """Return the lowest address at which ``tokens`` contiguous tokens are free."""
        address = 0
        for start, end in sorted(self.spans):
            if start - address >= tokens:
                return address
            address = end
        return address if self.kv_tokens - address >= tokens else None

    @property
    def free(self) -> int:
        """Blocks (or slots) of the pool that no running request holds, alone or shared."""
        if self.states.is_used:
            return len(self.states.free)
        return self.capacity - self.own - self.in_pool(len(self.cached.users), 0) - self.set_aside

    @property
    def own(self) -> int:
        """Blocks (or slots) of the pool that running requests hold unshared."""
        blocks = sum(request.blocks - len(request.shared) for request in self.running)
        return self.in_pool(blocks, sum(request.window_blocks for request in self.running))

    @property
    def held(self) -> int:
        """Blocks of those that running requests have taken."""
        return sum(self.blocks_taken(one) - len(one.shared) for one in self.running)

    @property
    def free_window(self) -> float:
        """Free blocks in the pool that only layers with a window use; unlimited if there is no such pool."""
        if not self.keeps_windows or not self.config.num_window_blocks:
            return math.inf
        return self.config.num_window_blocks - sum(request.window_blocks for request in self.running)

    @property
    def keeps_windows(self) -> bool:
        """Whether layers with a window keep only the window of a request."""
        config = self.config
        is_growing = config.kv_allocation == "paged" and config.admission in ("on_demand", "estimate")
        return config.window_blocks > 0 and is_growing

    def in_pool(self, blocks: int, window_blocks: int) -> int:
        """Return the pool blocks for ``blocks`` of a full layer and ``window_blocks`` of one with a window."""
        if not self.keeps_windows:
            return blocks
        return self.config.full_groups * blocks + self.config.window_groups * window_blocks

    def fits(self, blocks: int, window_blocks: int) -> bool:
        """Whether that many blocks are free in every pool."""
        return self.in_pool(blocks, window_blocks) <= self.free and window_blocks <= self.free_window

    def keeps_reserve(self, blocks: int, num_others: int) -> bool:
        """Whether ``blocks`` for a request that came with them leave what is reserved for each while others run."""
        reserved = self.config.reserved_decode_tokens * (num_others + 1) if num_others else 0
        held = blocks + self.blocks_of(reserved)
        return self.in_pool(held, self.window_of(held)) <= self.free

    def window_of(self, blocks: int) -> int:
        """Return the blocks in a layer with a window, for a request that has ``blocks`` blocks in the others."""
        return min(blocks, self.config.window_blocks)

    def windows_with(self, held: int, blocks: int) -> int:
        """Return what a layer with a window holds of ``held`` blocks while a chunk of ``blocks`` more is computed.

        It holds everything computed until the step has ended; a state holds no more than before.
        """
        return self.window_of(held + blocks) if self.config.keeps_states else self.window_of(held) + blocks

    def take(self, request: Request, blocks: int, window_blocks: int) -> None:
        """Give blocks (or slots) to a request; cached ones are evicted, least recently used first."""
        if not blocks and not window_blocks:
            return
        request.blocks += blocks
        request.window_blocks += window_blocks
        assert self.free >= 0
        assert self.free_window >= 0
        self.num_taken += blocks
        if not (self.config.takes_lazily or self.config.has_whole_prompts):
            self.reuse_for_taken()

    def take_space(self, request: Request, chunk: int) -> None:
        """Give a request that has just been admitted, with its first chunk, what it takes of the KV memory."""
        if self.states.is_used:
            assert self.states.takes(request, request.computed + chunk)
        elif self.is_growing:
            tokens = request.target if self.config.has_whole_prompts else request.computed + chunk
            blocks = self.blocks_of(tokens) - request.blocks
            self.take(request, blocks, self.windows_with(request.blocks, blocks))
        elif self.config.kv_allocation == "paged":
            self.take(request, self.blocks_of(self.longest(request)) - request.blocks, 0)
        elif self.config.kv_allocation == "static":
            self.take(request, 1, 0)
        else:
            address, size = self.first_fit(self.span_of(request)), self.span_of(request)
            assert address is not None
            request.span = (address, address + size)
            self.spans.append(request.span)

    def reuse_for_taken(self) -> None:
        """Evict as much as the blocks that requests have taken leave no room for."""
        most = self.capacity - self.held
        while self.tree is None and not self.states.is_used and self.num_kept > most:
            reuse_oldest(self)

    @property
    def num_kept(self) -> int:
        """Blocks that are cached, and those that wait to be reused."""
        return self.in_pool(len(self.cached), 0) + len(self.empty)

    def blocks_taken(self, request: Request) -> int:
        """Return the blocks that a request has taken; some only as it grows, though all are reserved for it."""
        if not self.config.takes_lazily:
            return self.in_pool(request.blocks, request.window_blocks)
        return self.blocks_of(max(request.computed, request.prompt_tokens))

    def longest(self, request: Request) -> int:
        """Return the most tokens that a request may ever need slots for."""
        return request.prompt_tokens + request.max_tokens + self.config.num_speculative_tokens

    def span_of(self, request: Request) -> int:
        """Return the number of tokens in the contiguous range that a request takes (``pow2`` and ``oracle``)."""
        if self.config.kv_allocation == "oracle":
            return request.prompt_tokens + request.output_tokens
        power = 1
        while power < request.max_tokens:
            power *= 2
        return min(request.prompt_tokens + power, self.config.max_model_len)

    def give_way(self) -> None:
        """Evict nodes of the tree if a planned step has taken too much: what is missing, or as much as it took."""
        missing = self.own + len(self.cached) - self.capacity
        if self.tree is not None and missing > 0:
            self.evict_nodes(missing if self.config.evicts_missing else self.num_taken)
        self.num_taken = 0

    def make_free(self, num_blocks: int) -> None:
        """Evict nodes of the tree if fewer than ``num_blocks`` blocks are free without that."""
        free = self.capacity - self.own - len(self.cached)
        if free < num_blocks:
            self.evict_nodes(num_blocks - free if self.config.evicts_missing else num_blocks)

    def evict_nodes(self, num_blocks: int) -> None:
        """Evict the least recently used nodes of the tree until ``num_blocks`` blocks have gone."""
        if self.tree is not None:
            for block in self.tree.evict(num_blocks, self.cached.users):
                self.cached.idle.discard(block)

    def evict(self, block: tuple[int, int]) -> None:
        """Evict a cached block."""
        self.cached.idle.discard(block)
        self.keep(block)

    @property
    def ages_empty_blocks(self) -> bool:
        """Whether free blocks without a cached prefix are reused in the order in which all blocks were released."""
        config = self.config
        is_by_block = config.evicts_by_block and not (config.has_radix_tree or config.has_suspension)
        return config.enable_prefix_caching and is_by_block and config.ages_empty_blocks

    def empty_since(self, given_up: int, count: int = 1) -> None:
        """Let blocks with nothing to share wait where others had waited."""
        self.empty = deque(sorted([*self.empty, *[given_up] * count]))

    def keep(self, block: tuple[int, int]) -> None:
        """Take a block into the first tier; what it evicts moves to the next tier, and is dropped from the last."""
        given: tuple[int, int] | None = block
        for tier in self.tiers:
            if given is not None:
                given = tier.put(given)

    def write_through(self, request: Request, tokens: int) -> None:
        """Write the first ``tokens`` tokens of a request to the store, if there is one."""
        if self.store is not None:
            self.store.write(self.blocks_on_path(request, tokens // self.config.block_size))

    def place_of(self, request: Request, block: tuple[int, int]) -> KVTierConfig | Literal["gpu", "nowhere"]:
        """Return the nearest place from which a request could get a block."""
        if block in self.cached:
            return "gpu"
        for tier in self.tiers:
            if block in tier.blocks:
                return tier.config
        if self.store is not None and block in request.promised:
            return self.store.config
        return "nowhere"

    def blocks_on_path(self, request: Request, num_blocks: int, first: int = 0) -> list[tuple[int, int]]:
        """Return blocks of a request from the ``first`` on, by segment and position of each block's last token."""
        found: list[tuple[int, int]] = []
        for segment, end in request.path if self.config.enable_prefix_caching else ():
            last = min((end - self.config.hashes_next_token) // self.config.block_size, num_blocks)
            found += [(segment, position) for position in range(first, last)]
            first = max(first, last)
        return found

    def cached_prefix(self, request: Request, tokens: int) -> list[tuple[int, int]]:
        """Return the cached blocks at the start of a request; its last token is always computed."""
        tokens = request.suspended + 1 if request.suspended else tokens
        wanted = self.blocks_on_path(request, (tokens - 1) // self.config.block_size)
        if self.states.is_used:
            return self.states.find(request, wanted)
        places: list[KVTierConfig | None] = []
        for block in wanted:
            place = self.place_of(request, block)
            if place == "nowhere":
                break
            places.append(None if place == "gpu" else place)
        found = wanted[: len(places)] if self.tree is None else self.tree.reachable(wanted[: len(places)])
        return found[: worth_taking(self.config, self.times, found, places)]

    def cache(self, request: Request, tokens: int) -> None:
        """Cache the full blocks of the first ``tokens`` tokens, up to one that the cache has from another request.

        In a tree, the other request's blocks are used.
        """
        num_blocks = tokens // self.config.block_size
        if self.tree is not None:
            blocks = self.blocks_on_path(request, self.tree.keeps(request, tokens) // self.config.block_size)
            if len(blocks) > len(request.shared):
                self.tree.hold(request, blocks, self.cached)
            return
        if self.states.is_used:
            self.states.cache(request, tokens)
            return
        for block in self.blocks_on_path(request, num_blocks, len(request.shared)):
            if block in self.cached:
                break
            self.cached.use([block])
            for tier in self.tiers:
                tier.blocks.discard(block)
            request.shared.append(block)
        # Its own full blocks that duplicate what others cached first, or follow such a block.
        request.num_duplicates = max(num_blocks - len(request.shared), 0)

    def leave_cached(self, request: Request, tokens: int) -> None:
        """Cache the full blocks of the first ``tokens`` tokens of a request that leaves.

        TensorRT-LLM's ``storeBlocks`` passes over those that the cache has from others, and stores what follows them.
        """
        request.next_state = 0
        blocks = self.blocks_on_path(request, tokens // self.config.block_size)
        found = next((place for place, one in enumerate(blocks) if one not in self.cached), len(blocks))
        if not self.config.has_prefix_waits or not len(request.shared) < found < len(blocks):
            self.cache(request, self.states.kept_by_leaving(tokens))
            return
        # Up to what has outlasted the blocks before it.
        lacking = itertools.takewhile(lambda block: block not in self.cached, blocks[found:])
        request.stored, request.num_copies = list(lacking), found - len(request.shared)
        self.cached.use(request.stored)
        request.num_duplicates = tokens // self.config.block_size - len(request.shared) - len(request.stored)

    def computed_before(self, head: Request, found: list[tuple[int, int]]) -> int:
        """Return the tokens that the head of the queue need not compute: those found, or all that it had computed."""
        return head.suspended or len(found) * self.config.block_size

    def aligned(self, chunk: int, target: int) -> int:
        """Return a chunk of ``target`` tokens that are left: whole blocks, unless it is all of them (TensorRT-LLM)."""
        is_cut = self.config.has_aligned_chunks and chunk < target
        return chunk - chunk % self.config.block_size if is_cut else chunk

    @property
    def keeps_order(self) -> bool:
        """Whether running prompts and waiting requests are looked at together, in the order of arrival."""
        return self.config.has_suspension or (self.config.has_prefix_waits and self.config.enable_prefix_caching)

    @property
    def ignores_found(self) -> bool:
        """Whether admission and the budget take a request as if it found nothing."""
        counts_found = self.config.takes_lazily or self.config.has_whole_prompts
        return counts_found and self.config.ignores_found and self.config.enable_prefix_caching

    def charge(self, step: Step, chunk: int) -> int:
        """Return what a chunk of the head of the queue takes of the budget; more where found tokens count."""
        head = self.waiting[0]
        whole = head.prompt_tokens + head.generated
        if not self.ignores_found or not self.cached_prefix(head, whole):
            return chunk
        if not self.config.enable_chunked_prefill:
            return whole
        return self.aligned(min(whole, step.longest_chunk, step.budget), whole)

    def surplus(self, step: Step, head: Request) -> int:
        """Return how many blocks in use the head finds that count as needed: those of requests that the step admits."""
        if not (self.config.takes_lazily or self.config.has_whole_prompts):
            return 0
        found = self.cached_prefix(head, head.prompt_tokens + head.generated)
        counted = set() if self.ignores_found else step.in_use
        return sum(block in self.cached.users and block not in counted for block in found)

    def asked_blocks(self, step: Step, head: Request) -> int:
        """Return the blocks that the head needs of those free: of its prompt, or of all that is reserved for it."""
        whole = head.prompt_tokens + head.generated
        found = self.cached_prefix(head, whole)
        tokens = whole if self.config.has_whole_prompts else self.longest(head)
        return self.blocks_of(tokens) - len(found) + self.cached.num_idle(found) + self.surplus(step, head)

    def sets_aside(self, step: Step) -> bool:
        """Whether the head lacks only a block of budget; its blocks are then reserved, and the next one is tried."""
        head = self.waiting[0]
        target = head.prompt_tokens + head.generated
        found = self.cached_prefix(head, target)
        takes_prompt = self.config.admission == "reserve" or self.config.has_whole_prompts
        is_cut = self.config.has_aligned_chunks and takes_prompt and step.budget > 0
        if not self.ignores_found:
            target -= len(found) * self.config.block_size
        if not is_cut or self.aligned(min(target, step.longest_chunk, step.budget), target):
            return False
        need, room = self.asked_blocks(step, head), self.free
        if self.config.has_whole_prompts:
            room += growth(self, head) - growth(self)
        if need > room:
            return False
        self.set_aside += need
        step.is_cut = True
        step.deferred.append(head)
        return True

    def swap_in(self, step: Step) -> None:
        """Swap in requests from the head of the queue while a seat and the blocks of a step are free."""
        while self.waiting and self.waiting[0].is_swapped and len(self.running) < self.config.max_num_seqs:
            growth = sum(self.blocks_needed(request) for request in self.active if request.is_decoding)
            head = self.waiting[0]
            if growth + self.blocks_of(head.computed + 1) > self.free:
                break
            head.micro_batch = smallest(self, [], may_be_empty=False)
            self.running.append(self.waiting.popleft())
            self.num_admitted += 1
            self.take(head, self.blocks_of(head.computed), 0)
            head.is_swapped = False
            self.free_in_host += head.blocks
            step.moved_blocks += head.blocks

    def resume(self, request: Request, found: list[tuple[int, int]], step: Step) -> None:
        """Let a suspended request decode again in a step, with cached blocks at its start."""
        self.waiting.remove(request)
        request.computed, request.suspended, request.shared, request.blocks = request.suspended, 0, found, len(found)
        self.load(request, step)
        self.cached.use(found)
        self.seat(request)
        self.take(request, self.blocks_of(request.computed) - len(found), 0)

    def seat(self, request: Request) -> None:
        """Give a request a seat: the last one, or that of its arrival."""
        config = self.config
        keeps_order = self.keeps_order or config.has_whole_prompts
        later = itertools.takewhile(lambda one: keeps_order and came(request) < came(one), reversed(self.running))
        self.running.insert(len(self.running) - len(list(later)), request)
        self.num_admitted += 1

    def tokens_gained(self, request: Request) -> float:
        """Return the mean number of tokens that a request gains per decode step, drawn beforehand."""
        return request.pace / ONE_TOKEN

    def first_missing(self, request: Request) -> tuple[int, int] | None:
        """Return the first full block of a request that others could share but the cache lacks, if there is one."""
        tokens = request.prompt_tokens + request.generated - self.config.has_suspension
        on_path = self.blocks_on_path(request, tokens // self.config.block_size)
        if not self.config.has_suspension or not (self.tiers or self.store):
            return next((block for block in on_path if block not in self.cached), None)
        found = len(self.cached_prefix(request, tokens + 1))
        return on_path[found] if found < len(on_path) else None

    def waits_for_prefix(self, step: Step, request: Request) -> bool:
        """Whether another computes the first block that a request lacks; else note that this one will (TensorRT-LLM).

        The others are requests that the step admits and those with running prompts.
        """
        if self.config.has_suspension:
            return is_alike(self, step, request)
        if not self.config.has_prefix_waits:
            return False
        if step.contributed is None:
            prompts = [self.first_missing(one) for one in self.active if not one.is_decoding]
            step.contributed = {block for block in prompts if block is not None}
        block = self.first_missing(request)
        if block is None or block not in step.contributed:
            step.contributed |= {block} if block is not None else set()
            return False
        step.deferred.append(request)
        return True

    @property
    def caches_chunks(self) -> bool:
        """Whether others find a chunk of a prompt as soon as it is scheduled."""
        return self.tree is None and not (self.config.has_prefix_waits or self.config.has_suspension)

    def keep_prompt(self, request: Request) -> None:
        """Cache a computed prompt: at once, a step later if steps are scheduled ahead, or when the request ends."""
        if self.config.has_prefix_waits and not self.config.caches_at_end:
            if self.config.async_scheduling:
                self.late_prompts.append((request, request.target))
            else:
                self.cache(request, request.target)

    def keep_late_prompts(self) -> None:
        """Cache the prompts computed by the step before the one that has just ended."""
        for request, tokens in self.late_prompts:
            self.cache(request, tokens)
        self.late_prompts.clear()

    def release(self, request: Request) -> None:
        """Release everything that a request holds."""
        if self.states.is_used:
            self.states.release(request)
            request.blocks = request.window_blocks = 0
            return
        shared, stored = request.shared, request.stored
        self.late_prompts = [each for each in self.late_prompts if each[0] is not request]
        self.cached.give_up(stored)
        self.cached.give_up(shared)
        if self.tree is not None:
            request.blocks, request.window_blocks, request.shared = 0, 0, []
            self.tree.give_up(shared, self.cached.users)
            self.tree.leave(request, shared)
            return
        num_waiting, num_copies = request.num_duplicates, request.num_copies
        if self.ages_empty_blocks:
            num_waiting = self.blocks_taken(request) - len(shared) - len(stored)
        elif stored:
            num_copies = num_waiting
        request.blocks, request.window_blocks, request.shared, request.stored = 0, 0, [], []
        request.num_duplicates = request.num_copies = 0
        if self.config.enable_prefix_caching and self.config.evicts_by_block:
            # From its last block to its first: the rest, what it stored, its copies, what it shared.
            self.wait_empty(num_waiting - num_copies)
            self.wait_cached(stored)
            self.wait_empty(num_copies)
            self.wait_cached(shared)
        if request.span in self.spans:
            self.spans.remove(request.span)

    def wait_empty(self, num_blocks: int) -> None:
        """Let blocks without a cached prefix wait to be reused."""
        self.num_given_up += 1
        self.empty.extend([self.num_given_up] * num_blocks)

    def wait_cached(self, blocks: list[tuple[int, int]]) -> None:
        """Let cached blocks wait to be evicted that nobody uses any more, the last one first."""
        for block in reversed([each for each in blocks if each not in self.cached.users]):
            self.num_given_up += 1
            self.last_used[block] = self.num_given_up

    def load(self, request: Request, step: Step) -> None:
        """Load what a request finds in tiers onto the GPU; the step that admits it waits for the load."""
        for block in request.shared:
            place = self.place_of(request, block)
            if place == "gpu" or place == "nowhere":
                continue
            for tier in self.tiers:
                tier.blocks.discard(block)
            step.loaded_blocks[place.name] = step.loaded_blocks.get(place.name, 0) + 1

    def seat_computed(self, request: Request) -> bool:
        """Seat a request whose prompt was computed elsewhere; False, with nothing changed, without room for it.

        Requests preempted here go first. It needs blocks for its cache, for the next step, and for what is reserved.
        """
        if not self.active:
            # No other request runs: the next step is scheduled after requests that are done have gone.
            self.release_departing()
        if len(self.running) == self.config.max_num_seqs or self.waiting or not self.has_adapter_seat(request):
            return False
        computed = request.prompt_tokens - self.config.has_late_first_token
        blocks, grown = self.blocks_of(computed), self.blocks_of(computed + 1)
        if self.is_growing:
            decoding = [one for one in self.active if one.is_decoding]
            needed = grown + sum(self.blocks_needed(one) for one in decoding)
            windows = self.window_of(grown) + sum(self.window_growth(one) for one in decoding)
            if not (self.fits(needed, windows) and self.keeps_reserve(blocks, len(self.active))):
                return False
        elif self.config.kv_allocation == "paged" and self.free < self.blocks_of(self.longest(request)):
            return False
        request.computed = request.assumed = request.target = computed
        request.micro_batch = smallest(self, [], may_be_empty=False)
        self.take_adapter(request, self.loads)
        self.running.append(request)
        self.num_admitted += 1
        self.take(request, blocks if self.is_growing else self.blocks_of(self.longest(request)), self.window_of(blocks))
        return True

    def queued(self, request: Request) -> float:
        """Return when a request was queued last, where the order depends on it."""
        return self.requeued.get(request.index, request.ready)

    def enter(self, step: Step) -> Request:
        """Move the head of the queue into the batch."""
        request = self.waiting.popleft()
        self.take_adapter(request, step)
        request.target = request.prompt_tokens + request.generated
        is_first = math.isnan(request.scheduled)
        if is_first:
            request.scheduled = step.start
        found = self.cached_prefix(request, request.target)
        request.blocks = len(found)
        if self.states.is_used:
            self.states.enter(request, found)
        else:
            request.shared = found
            self.load(request, step)
            self.cached.use(found)
            if self.tree is not None:
                self.tree.seat(request, self.cached)
        request.computed, request.suspended = self.computed_before(request, found), 0
        if is_first:
            request.cached_tokens = request.computed
            step.encoder_seconds += sum(seconds for end, seconds in request.images if end > request.computed)
        self.seat(request)
        step.num_admitted += 1
        return request
