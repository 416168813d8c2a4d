"""States of linear attention in the prefix cache, one at a time. Specifies `simserve.engine.state_cache`.

It looks at every request and every state in every step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from simserve.reference.cached_blocks import Block, CachedBlocks

if TYPE_CHECKING:
    from simserve.engine.config import EngineConfig
    from simserve.reference.request import Request


class Memory(Protocol):
    """What it needs to know of a scheduler (`simserve.reference.kv_memory.Scheduler`)."""

    config: EngineConfig
    cached: CachedBlocks
    states: StateCache
    empty: deque[int]
    last_used: dict[Block, int]
    num_given_up: int
    capacity: int
    running: list[Request]
    departing: list[Request]

    @property
    def active(self) -> list[Request]:
        """Requests with a seat that are not done."""

    @property
    def free(self) -> int:
        """Free blocks."""

    def aligned(self, chunk: int, target: int, /) -> int:
        """Return a chunk in whole blocks, where that is the rule."""

    def blocks_needed(self, request: Request, /) -> int:
        """Return the blocks that the next step of a decoding request opens."""

    def blocks_on_path(self, request: Request, num_blocks: int, /) -> list[Block]:
        """Return blocks of a request."""

    def empty_since(self, given_up: int, count: int = 1, /) -> None:
        """Let blocks with nothing to share wait where others had waited."""

    def evict(self, block: Block, /) -> None:
        """Evict a cached block."""

    def reuse_for_taken(self) -> None:
        """Evict as much as the blocks that requests have taken leave no room for."""

    def window_growth(self, request: Request, /) -> int:
        """Return the blocks opened in a layer with a window."""

    def window_of(self, blocks: int, /) -> int:
        """Return the blocks in a layer with a window beside ``blocks`` in the others."""

    def windows_with(self, held: int, blocks: int, /) -> int:
        """Return the same while a chunk of ``blocks`` is computed."""


@dataclass(eq=False)
class State:
    """A cached state: behind which block it is, how many requests hold it, and since when it has waited.

    ``is_charged``: whether its blocks are taken besides those of requests.
    """

    block: Block
    num_users: int = 1
    is_charged: bool = False
    given_up: int = 0


@dataclass(eq=False)
class Pin:
    """A request's hold on a state behind its first ``place`` blocks; ``is_own``: it has computed the state."""

    request: Request
    state: State
    place: int
    is_own: bool
    is_late: bool = False
    is_passed: bool = False


class StateCache:
    """The cached states of a scheduler; nothing in it is used unless chunks end where states are cached.

    Attributes:
        states: By the last block before each.
        fresh: Those that the step being planned computes.
        pins: What requests hold, the oldest first.
        num_exported: States that the chunk being planned writes before its end.
        copiers: Requests that have copies of blocks that others use, in the order in which they began.
    """

    def __init__(self, scheduler: Memory) -> None:
        self.scheduler, self.config = scheduler, scheduler.config
        self.is_used = scheduler.config.has_state_cache
        self.states: dict[Block, State] = {}
        self.fresh: list[State] = []
        self.pins: list[Pin] = []
        self.num_exported = 0
        self.copiers: list[Request] = []

    @property
    def num_charged(self) -> int:
        """Blocks of states that requests hold besides their own."""
        return self.config.window_groups * sum(one.is_charged for one in self.states.values() if one.num_users)

    @property
    def idle(self) -> list[State]:
        """States that nobody holds, the one that has waited longest first."""
        return sorted((one for one in self.states.values() if not one.num_users), key=lambda one: one.given_up)

    @property
    def num_idle_blocks(self) -> int:
        """Blocks of states that nobody holds."""
        return self.config.window_groups * len(self.idle)

    def begin(self) -> None:
        """A step is scheduled: find the states of the last one, and note those that their requests have passed."""
        self.fresh.clear()
        for pin in self.pins:
            request, place = pin.request, pin.place * self.config.block_size
            if request.is_decoding or request.computed > place:
                pin.is_passed = pin.is_late or not self.config.async_scheduling
                pin.is_late = True
                # Behind the whole prompt it is its request's only one, or its second, which `growths` counts.
                is_done = request in self.scheduler.departing
                if place < (request.computed if is_done else request.target):
                    pin.state.is_charged = True
        if self.is_used and len(self.scheduler.active) == 1:
            # One that is alone gives back first, and then asks what it finds.
            self.pass_by()

    def pass_by(self, request: Request | None = None) -> None:
        """Let a request, or all, hold the states no more that it has passed."""
        for pin in list(self.pins):
            if pin.is_passed and (request is None or pin.request is request):
                self.release(pin)

    def pass_all(self) -> None:
        """Let all hold the states no more that they have passed, and evict what that leaves no room for."""
        self.pass_by()
        self.make_room()

    def make_room(self) -> None:
        """Evict what the blocks taken so far leave no room for."""
        if self.is_used:
            self.scheduler.reuse_for_taken()

    def let_go(self, request: Request) -> None:
        """Let a request that leaves hold no state."""
        for pin in list(self.pins):
            if pin.request is request:
                self.release(pin)

    def release(self, pin: Pin) -> None:
        """Take back a request's hold on a state; nobody holds it: it waits to be evicted."""
        self.pins.remove(pin)
        pin.state.num_users -= 1
        if pin.state.num_users:
            pin.state.is_charged = pin.state.is_charged or pin.is_own
        else:
            pin.state.is_charged = False
            self.scheduler.num_given_up += 1
            pin.state.given_up = self.scheduler.num_given_up

    def cut(self, request: Request, chunk: int, remaining: int) -> int:
        """Return a chunk of a prompt with ``remaining`` tokens left: whole blocks, or up to where a state is kept."""
        config, wide = self.config, self.config.block_size
        size = config.state_block_size or wide
        chunk = self.scheduler.aligned(chunk, remaining)
        self.num_exported = request.next_state = 0
        if not self.is_used:
            return chunk
        self.pass_by(request)
        prompt, known = request.prompt_tokens, request.prompt_tokens + request.generated
        start, until = known - remaining, max(prompt, known - 1)
        end, junction = start + chunk, request.junction * wide
        if start >= until:
            return chunk
        last = known // size * size if config.keeps_last_state else (known - 1) // size * size
        inside = (until - 1) // size * size
        is_whole = end >= until and start % size == 0 and start + size <= inside
        if config.exports_states and is_whole and -(-end // size) - 2 > (start - 1) // size:
            self.num_exported, last = 1, 0
        if end < until and (end // size * size > start or size <= config.max_chunk_tokens):
            end = end // size * size
        stops = [last, start // size * size + size if start % size else 0]
        if start < junction < end:
            stops.append(start + (junction - start) // size * size)
        stop = min((each for each in stops if start < each < end), default=end)
        self.num_exported *= stop == end
        place = inside if self.num_exported else stop
        last_kept = (prompt - 1) // size * size
        if place % wide == 0 if config.keeps_every_state else place in (last_kept, junction):
            request.next_state = place // wide
        return stop - start

    def keep(self, request: Request) -> None:
        """Keep the state of a request at the place that `cut` noted."""
        place, request.next_state = request.next_state, 0
        blocks = self.scheduler.blocks_on_path(request, place)
        if not place or len(blocks) < place:
            return
        state = self.states.get(blocks[-1])
        if state is None:
            state = self.states[blocks[-1]] = State(blocks[-1])
            self.pins.append(Pin(request, state, place, is_own=True))
        if state not in self.fresh:
            self.fresh.append(state)

    def resume(self, request: Request, found: list[Block]) -> list[Block]:
        """Return the blocks of those found that lie before the last cached state, and note if there are more."""
        if not self.is_used:
            return found
        place = next((place for place in range(len(found), 0, -1) if found[place - 1] in self.states), 0)
        request.junction = len(found) if len(found) > place else 0
        return found[:place]

    def blocks_to_use(self, found: Sequence[Block]) -> int:
        """Return the free blocks that the use of the state behind blocks takes; more than there are: it is fresh."""
        if not self.is_used or not found:
            return 0
        state = self.states[found[-1]]
        if state in self.fresh:
            return self.scheduler.capacity + 1
        return 0 if state.num_users else self.config.window_groups

    def pin(self, request: Request, found: Sequence[Block]) -> None:
        """Let a request that is admitted use the state behind the blocks that it has found."""
        if self.is_used and found:
            state = self.states[found[-1]]
            state.is_charged = state.is_charged or not state.num_users
            state.num_users += 1
            self.pins.append(Pin(request, state, len(found), is_own=False))

    def windows_of(self, request: Request, blocks: int) -> int:
        """Return the blocks in a layer with a window that a running prompt takes for a chunk of ``blocks``.

        States: a second one, and one amid the chunk; one that is alone does not make room for itself.
        """
        scheduler, states = self.scheduler, (blocks > 0) + self.num_exported
        if not self.is_used:
            return scheduler.windows_with(request.blocks, blocks) - scheduler.window_of(request.blocks)
        is_alone = len(scheduler.active) == 1
        return 0 if is_alone and blocks + self.config.window_groups * states > scheduler.free else states

    def growths(self, decoding: Sequence[Request]) -> list[int]:
        """Return the blocks in a layer with a window that decoding requests take in a step.

        Those that cross the end of a block hold a second state; scheduled ahead, for one more step. One that is alone
        does not make room for itself.
        """
        if not self.is_used:
            return [self.scheduler.window_growth(one) for one in decoding]
        size, free, num_running = self.config.block_size, self.scheduler.free, len(self.scheduler.active)
        opened = [self.scheduler.blocks_needed(one) for one in decoding]
        states = list(opened)
        if self.config.async_scheduling and not self.config.num_speculative_tokens:
            late = [(one.computed - 1) % size == 0 for one in decoding]
            states = [own + each for own, each in zip(opened, late, strict=True)]
        if num_running == 1 and sum(opened) + self.config.window_groups * sum(states) > free:
            return [0] * len(states)
        return states

    def is_first(self, empty: Sequence[int]) -> bool:
        """Whether an idle state has waited longer than any cached block, and than ``empty`` ones."""
        scheduler, oldest = self.scheduler, self.idle[0].given_up
        if scheduler.cached.idle and scheduler.last_used[scheduler.cached.idle.first] < oldest:
            return False
        return not empty or oldest < empty[0]

    def evict_first(self) -> None:
        """Let nobody find the state that has waited longest: its blocks wait in its place with nothing to share."""
        state = self.idle[0]
        del self.states[state.block]
        self.scheduler.empty_since(state.given_up, self.config.window_groups)

    def adopt(self, request: Request, block: Block) -> None:
        """Let a request use a cached block that it has computed once more.

        Its own stands in for an idle one, which keeps its place in the order of eviction. One that others use it has in
        addition.
        """
        scheduler = self.scheduler
        if block in scheduler.cached.users:
            request.copied.append(block)
            if request not in self.copiers:
                self.copiers.append(request)
        else:
            scheduler.empty_since(scheduler.last_used[block])
        scheduler.cached.use([block])
        request.shared.append(block)

    def hand_over(self, request: Request) -> int:
        """Let copies of others stand in for blocks that only a request that leaves holds; return how many."""
        num_handed = 0
        if request in self.copiers:
            self.copiers.remove(request)
        for other in reversed(list(self.copiers)):
            others = [one for one in self.scheduler.running if one not in (request, other)]
            for block in list(other.copied):
                is_held = any(block in one.shared and block not in one.copied for one in others)
                if block in request.shared and not is_held:
                    other.copied.remove(block)
                    num_handed += 1
            if not other.copied:
                self.copiers.remove(other)
        return num_handed


def reuse_oldest(scheduler: Memory) -> None:
    """Reuse the free block that was released first, whether it is cached or not."""
    if scheduler.states.idle and scheduler.states.is_first(scheduler.empty):
        scheduler.states.evict_first()
    elif scheduler.cached.idle:
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
