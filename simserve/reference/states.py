"""Blocks of layers with attention beside states of linear attention, or windows, one at a time.

It specifies `simserve.engine.state_cache` as vLLM has it (``allocate_slots``, ``MambaManager``,
``SlidingWindowManager``, ``BlockPool``): each request that is looked at gives back the states, or the blocks before its
window, that it has passed, asks for what it opens, takes it and caches what it fills, before the next one is looked at.
Every block of the pool is an object here.

A layer with a window has a block for every place in it, as it has a state at the last one.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from simserve.reference.cached_blocks import Block, CachedBlocks

if TYPE_CHECKING:
    from simserve.engine.config import EngineConfig
    from simserve.reference.request import Request
    from simserve.reference.steps import Step

Name = tuple[int, int, int]
"""What a block holds: the group of layers, 0 for attention, and the segment and position of its last token."""


class Memory(Protocol):
    """What it needs to know of a scheduler (`simserve.reference.kv_memory.Scheduler`)."""

    config: EngineConfig
    cached: CachedBlocks
    empty: deque[int]
    last_used: dict[Block, int]
    capacity: int
    departing: list[Request]
    running: list[Request]

    def aligned(self, chunk: int, target: int, /) -> int:
        """Return a chunk in whole blocks, where that is the rule."""

    def blocks_of(self, tokens: int, /) -> int:
        """Return the number of blocks that hold tokens."""

    def blocks_on_path(self, request: Request, num_blocks: int, /) -> list[Block]:
        """Return blocks of a request."""

    def empty_since(self, given_up: int, count: int = 1, /) -> None:
        """Let blocks with nothing to share wait where others had waited."""

    def evict(self, block: Block, /) -> None:
        """Evict a cached block."""


@dataclass(eq=False)
class KVBlock:
    """A block of the pool: how many requests use it, what it holds that others can find, and whether it is cached.

    A full block that nobody else could find is cached too.
    """

    num_users: int = 0
    name: Name | None = None
    is_cached: bool = False


@dataclass(eq=False)
class Table:
    """The blocks of a request: those with its tokens, and its states or windows by place, the oldest first.

    A state has the number of blocks before it, and a block of a window its own number.

    ``num_cached`` of its blocks are cached. In each group of layers it has states of its drafts besides.
    """

    blocks: list[KVBlock] = field(default_factory=list)
    states: list[tuple[int, list[KVBlock]]] = field(default_factory=list)
    num_cached: int = 0
    drafts: list[list[KVBlock]] = field(default_factory=list)
    has_begun: bool = False


class StateCache:
    """The pool of a scheduler, in blocks; nothing in it is used unless blocks are counted one by one.

    Attributes:
        free: Blocks without users, in the order in which they are given out.
        copies: What is cached -> the blocks that hold it, in the order in which they were cached.
        tables: What requests hold.
        fresh: States that the step being planned computes: nobody finds them in it.
        known: Requests of the step that runs -> their tokens before it.
        num_exported: States that the chunk being planned writes before its end.
    """

    def __init__(self, scheduler: Memory) -> None:
        self.scheduler, self.config = scheduler, scheduler.config
        self.is_used, self.has_windows = scheduler.config.has_state_cache, scheduler.config.numbers_blocks
        # How many blocks before the end of a prefix hold what is needed behind it.
        self.num_needed = max(scheduler.blocks_of(scheduler.config.reach), 1)
        self.groups = range(1, scheduler.config.state_groups + 1)
        self.num_drafts = scheduler.config.num_draft_states
        self.free = deque(KVBlock() for _ in range(scheduler.capacity)) if self.is_used else deque()
        self.copies: dict[Name, list[KVBlock]] = {}
        self.tables: dict[Request, Table] = {}
        self.fresh: set[Block] = set()
        self.known: dict[Request, int] = {}
        self.num_exported = 0

    def begin(self) -> None:
        """A step is scheduled: find the states of the last one."""
        self.fresh.clear()

    def note(self, step: Step) -> None:
        """A step has run: scheduled ahead, its results are known only once the next one is scheduled."""
        if self.config.async_scheduling and self.is_used:
            self.known = {request: request.computed for request in step.requests}

    def learn(self) -> None:
        """The results of the last step are known: the next one is scheduled. Who is done keeps its own as it leaves."""
        for request in self.known:
            if request.is_decoding and request in self.tables and request not in self.scheduler.departing:
                self.cache(request, request.computed)
        self.known = {}

    def cut(self, request: Request, chunk: int, remaining: int) -> int:
        """Return a chunk of a prompt with ``remaining`` tokens left: whole blocks, or up to where a state is kept."""
        config, wide = self.config, self.config.block_size
        size = config.state_block_size or wide
        chunk = self.scheduler.aligned(chunk, remaining)
        self.num_exported = request.next_state = 0
        if not self.is_used or self.has_windows or not config.enable_prefix_caching:
            return chunk
        prompt, known = request.prompt_tokens, request.prompt_tokens + request.generated
        start, until = known - remaining, max(prompt, known - 1)
        end, junction = start + chunk, request.junction * wide
        if start >= until:
            return chunk
        last = known // size * size if config.keeps_last_state else (known - 1) // size * size
        if config.drops_last_block:
            last = max(known // size * size - size, 0)
        if config.aligns_plainly:
            is_cut = end < last and size <= config.max_chunk_tokens
            junction, end = 0, start + chunk // size * size if is_cut else end
        if self.exports(start, end, until, until):
            last = 0
        if (
            end < until
            and not config.aligns_plainly
            and (end // size * size > start or size <= config.max_chunk_tokens)
        ):
            end = end // size * size
        stops = [last, start // size * size + size if start % size and not config.aligns_plainly else 0]
        if start < junction < end:
            stops.append(start + (junction - start) // size * size)
        stop = min((each for each in stops if start < each < end), default=end)
        # A chunk that is cut in spite of it may still end with the prompt, and write one before its last block.
        self.num_exported = int(self.exports(start, stop, until, stop))
        places = [stop, (stop - 1) // size * size] if self.num_exported else [stop]
        drops = config.drops_last_block
        ends = [((prompt - each) // size - drops) * size for each in ((1, 0) if drops else (1,))]
        ends.append(junction)
        for place in places:
            if not request.next_state and (place % wide == 0 if config.keeps_every_state else place in ends):
                request.next_state = place // wide
        return stop - start

    def exports(self, start: int, end: int, until: int, last: int) -> bool:
        """Whether a chunk that ends a prompt writes a state amid it: where the last block before ``last`` ends."""
        size = self.config.state_block_size or self.config.block_size
        is_whole = end >= until and start % size == 0 and start + size <= (last - 1) // size * size
        is_whole = is_whole and self.config.enable_prefix_caching
        return self.config.exports_states and is_whole and -(-end // size) - 2 > (start - 1) // size

    def find(self, request: Request, wanted: Sequence[Block]) -> list[Block]:
        """Return the blocks of those wanted before the last cached state or window, and note if there are more."""
        cached = next((place for place, one in enumerate(wanted) if (0, *one) not in self.copies), len(wanted))
        drops = self.config.drops_last_block
        found = most = max(cached - drops, 0)
        if drops and (self.has_windows or self.config.aligns_plainly):
            # One block further, which windows drop too; up to 0.25 a state there is taken, though its block is not.
            most = cached if self.has_windows else min(found + 1, len(wanted))
        places, further = range(most, 0, -1), drops and self.has_windows
        place = next((one for one in places if all(map(self.has_state, self.tail_of(wanted[:one], further)))), 0)
        place = max(place - further, 0)
        request.junction, request.reused = found if found > place else 0, min(place, found)
        return list(wanted[:place])

    def has_state(self, block: Block) -> bool:
        """Whether the states behind a block are cached, of all groups of layers."""
        return all((group, *block) in self.copies for group in self.groups)

    def tail_of(self, found: Sequence[Block], num_dropped: int = 0) -> Sequence[Block]:
        """Return the blocks at whose places a layer with a window or a state holds what is needed behind them all.

        And those at which it has to, for ``num_dropped`` of them to be dropped.
        """
        return found[max(len(found) - self.num_needed - num_dropped, 0) :]

    def found_blocks(
        self, found: Sequence[Block], num_reused: int | None = None
    ) -> tuple[list[KVBlock], list[tuple[int, list[KVBlock]]]]:
        """Return the blocks with tokens that a request finds, of them those reused, and states or windows there."""
        blocks = [self.copies[0, *each][0] for each in found[:num_reused]]
        tail = self.tail_of(found)
        first = len(found) - len(tail) + 1
        held = [[self.copies[group, *each][0] for group in self.groups] for each in tail]
        return blocks, list(enumerate(held, start=first))

    def num_idle(self, found: Sequence[Block], num_reused: int | None = None) -> int:
        """Return how many of the blocks that a request finds nobody uses, with the states or windows."""
        if not self.is_used:
            return self.scheduler.cached.num_idle(found)
        blocks, held = self.found_blocks(found, num_reused)
        return sum(not each.num_users for each in itertools.chain(blocks, *(states for _, states in held)))

    def has_space(self, head: Request, chunk: int, found: Sequence[Block]) -> bool:
        """Whether the blocks suffice to admit the head of the queue with a chunk, and for its whole prompt."""
        if found and found[-1] in self.fresh:
            return False
        config, start = self.config, len(found) * self.config.block_size
        known = head.prompt_tokens + head.generated
        until, whole = self.blocks_until(start + chunk, is_first=True), self.scheduler.blocks_of(known)
        num_states = until - len(found) if self.has_windows else 1 + self.num_exported + self.num_drafts
        needed = until + len(self.groups) * num_states
        if config.reserve_full_prompt:
            num_states = 1 + self.exports(start, known, known, known) + self.num_drafts
            if self.has_windows:
                num_states = max(min(whole, config.most_admitted) - len(found), 0)
            needed = max(needed, whole + len(self.groups) * num_states)
        needed += self.num_idle(found, head.reused) - head.reused
        return needed + (config.watermark_blocks if self.scheduler.running else 0) <= len(self.free)

    def enter(self, request: Request, found: Sequence[Block]) -> None:
        """Let a request that is admitted use what it has found."""
        blocks, held = self.found_blocks(found, request.reused)
        for each in itertools.chain(blocks, *(states for _, states in held)):
            if not each.num_users:
                self.free.remove(each)
            each.num_users += 1
        self.tables[request] = Table(blocks, held, len(blocks))

    def pass_by(self, request: Request, *, is_alone: bool = False) -> None:
        """Let a request give back what lies before the window of its last token whose result is known.

        ``is_alone``: all but the last one, since nobody is left to make room for it; vLLM would preempt it forever.
        """
        table = self.tables[request]
        known = self.known.get(request, request.computed)
        if self.config.aligns_plainly:
            # As if none of the drafts under way held.
            known = max(request.computed, request.assumed) - self.num_drafts
        passed = [
            one for one in table.states if one[0] * self.config.block_size <= known - self.config.reach or is_alone
        ]
        if passed and passed[-1] is table.states[-1]:
            passed.pop()
        table.states = table.states[len(passed) :]
        for group in range(len(self.groups)):
            self.give_back([blocks[group] for _, blocks in reversed(passed)])

    def blocks_until(self, tokens: int, *, is_first: bool) -> int:
        """Return the blocks that hold tokens and what the drafter writes next, up to 0.24 not of the first chunk."""
        config = self.config
        ahead = 0 if is_first and config.aligns_plainly else config.num_slots_ahead
        return self.scheduler.blocks_of(min(tokens + ahead, max(config.max_model_len, tokens)))

    def is_served(self, request: Request, tokens: int) -> bool:
        """Let a running request give back the states that it has passed, and take what ``tokens`` tokens need."""
        self.pass_by(request)
        if self.takes(request, tokens):
            return True
        if len(self.scheduler.running) > 1 or self.has_windows:
            return False
        self.pass_by(request, is_alone=True)
        return self.takes(request, tokens)

    def takes(self, request: Request, tokens: int) -> bool:
        """Give a request what ``tokens`` tokens need, of states the last one and those exported; False: they lack."""
        table, place = self.tables[request], self.scheduler.blocks_of(tokens)
        until = self.blocks_until(tokens, is_first=not table.has_begun)
        num_blocks = max(until - len(table.blocks), 0)
        # Where no state is cached, a request has one for good.
        is_further = self.config.enable_prefix_caching and table.states and place > table.states[-1][0]
        places = [place] if is_further or not table.states else []
        if self.has_windows:
            places = list(range(len(table.blocks) + 1, until + 1))
        if self.num_exported:
            places.insert(0, place - 1)
        num_drafts = 0 if table.has_begun else self.num_drafts
        if num_blocks + len(self.groups) * (len(places) + num_drafts) > len(self.free):
            return False
        table.has_begun = True
        table.blocks += [self.take() for _ in range(num_blocks)]
        taken = [[self.take() for _ in places] for _ in self.groups]
        if num_drafts:
            table.drafts = [[self.take() for _ in range(num_drafts)] for _ in self.groups]
        table.states += [(each, list(blocks)) for each, *blocks in zip(places, *taken, strict=True)]
        request.blocks, request.window_blocks = len(table.blocks), len(table.states)
        return True

    def take(self) -> KVBlock:
        """Give out the next free block; what it held is evicted."""
        block = self.free.popleft()
        if block.name is not None:
            self.copies[block.name].remove(block)
            if not self.copies[block.name]:
                del self.copies[block.name]
        block.name, block.is_cached, block.num_users = None, False, 1
        return block

    def give_back(self, blocks: Sequence[KVBlock]) -> None:
        """Let one request fewer use blocks; cached ones wait for their turn in this order, others go first."""
        for block in blocks:
            block.num_users -= 1
            if block.num_users:
                continue
            if block.is_cached or self.config.ages_empty_blocks:
                self.free.append(block)
            else:
                self.free.appendleft(block)

    def cache(self, request: Request, tokens: int) -> None:
        """Cache the full blocks of the first ``tokens`` tokens of a request, and the states or windows kept with it."""
        if self.config.hashes_next_token:
            tokens = min(tokens, request.prompt_tokens + request.generated - 1)
        table, num_blocks = self.tables[request], tokens // self.config.block_size
        if not self.config.enable_prefix_caching:
            return
        path = self.scheduler.blocks_on_path(request, num_blocks)
        for place in range(table.num_cached, num_blocks):
            self.name(table.blocks[place], (0, *path[place]) if place < len(path) else None)
        kept = [request.next_state] if request.next_state else []
        if self.has_windows:
            drops, size = self.config.drops_last_block, self.config.block_size
            lengths = [request.prompt_tokens - each for each in ((1, 0) if drops else (1,))]
            ends = [max(length // size - drops, 0) for length in lengths]
            ends += [request.junction] if request.junction else []
            kept = [place for end in ends for place in range(end - self.num_needed + 1, end + 1 + drops)]
            kept = [place for place in kept if table.num_cached < place <= num_blocks]
        if self.config.keeps_every_state:
            kept += range(table.num_cached + 1, num_blocks + 1)
        request.next_state = 0
        for place, blocks in table.states:
            if place in kept and blocks and not blocks[0].is_cached:
                for group, block in enumerate(blocks, start=1):
                    self.name(block, (group, *path[place - 1]) if place <= len(path) else None)
                if not self.has_windows:
                    self.fresh |= set(path[place - 1 : place])
        table.num_cached = max(table.num_cached, num_blocks)

    def kept_by_leaving(self, tokens: int) -> int:
        """Return how many of the first ``tokens`` tokens of a request may be cached as it leaves."""
        return 0 if self.is_used and self.config.leaves_results else tokens

    def name(self, block: KVBlock, name: Name | None) -> None:
        """Let others find what a block holds."""
        block.is_cached, block.name = True, name
        if name is not None:
            self.copies.setdefault(name, []).append(block)

    def hand_over(self, request: Request, other: Request) -> None:
        """Let another one hold what a request holds."""
        if self.is_used:
            self.tables[other] = self.tables.pop(request)
            self.known.pop(request, None)

    def release(self, request: Request) -> None:
        """Take everything from a request: the blocks with its tokens, the last one first, and then its states."""
        table = self.tables.pop(request)
        self.known.pop(request, None)
        self.give_back(table.blocks[::-1])
        for group in range(len(self.groups)):
            drafts = table.drafts[group] if table.drafts else []
            self.give_back([*drafts, *(blocks[group] for _, blocks in reversed(table.states))])


def reuse_oldest(scheduler: Memory) -> None:
    """Reuse the free block that was released first, whether it is cached or not."""
    if scheduler.cached.idle:
        block = scheduler.cached.idle.first
        if not scheduler.empty or scheduler.last_used[block] < scheduler.empty[0]:
            if scheduler.config.has_prefix_waits:
                forget_behind(scheduler, block)
            scheduler.evict(block)
            return
    scheduler.empty.popleft()


def forget_behind(scheduler: Memory, evicted: Block) -> None:
    """Let nobody find what follows an evicted block in its segment: it waits for its turn with nothing to share."""
    behind = [block for group in scheduler.cached.idle.groups.values() for block in group if block[0] == evicted[0]]
    for block in [each for each in behind if each[1] > evicted[1]]:
        scheduler.cached.idle.discard(block)
        scheduler.empty_since(scheduler.last_used[block])
