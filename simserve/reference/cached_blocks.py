"""Cached blocks: which requests use them, which unused one is evicted next, and the tiers behind GPU memory.

A block is (segment, position in the request). Tiers include the choice between loading and computing. RadixTree is
SGLang's prefix cache, node by node; it specifies `simserve.engine.radix_tree` and walks the whole tree every time.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simserve.engine.config import EngineConfig, KVTierConfig
    from simserve.engine.state import StepTimes
    from simserve.reference.request import Request
    from simserve.reference.steps import Step

Block = tuple[int, int]


class OrderedBlocks:
    """Blocks in the order of eviction.

    Attributes:
        groups: One group per segment, or one per block; the least recently touched group comes first.
    """

    def __init__(self, *, by_block: bool = False) -> None:
        self.by_block = by_block
        self.groups: OrderedDict[int | Block, set[Block]] = OrderedDict()
        self.num_blocks = 0

    def group_of(self, block: Block) -> int | Block:
        """Return the group that a block belongs to."""
        return block if self.by_block else block[0]

    def __contains__(self, block: Block) -> bool:
        """Whether a block is included."""
        return block in self.groups.get(self.group_of(block), ())

    def __len__(self) -> int:
        """Return the number of blocks."""
        return self.num_blocks

    @property
    def first(self) -> Block:
        """The block that is evicted next: the end of the first group."""
        return max(next(iter(self.groups.values())))

    def add(self, block: Block) -> None:
        """Add a block; its group keeps its position."""
        if block not in self:
            self.groups.setdefault(self.group_of(block), set()).add(block)
            self.num_blocks += 1

    def touch(self, block: Block) -> None:
        """Move the group of a block to the end of the order."""
        if self.group_of(block) in self.groups:
            self.groups.move_to_end(self.group_of(block))

    def discard(self, block: Block) -> None:
        """Remove a block, if it is included."""
        if block in self:
            group = self.groups[self.group_of(block)]
            group.remove(block)
            self.num_blocks -= 1
            if not group:
                del self.groups[self.group_of(block)]


class CachedBlocks:
    """The cached blocks of a scheduler.

    Attributes:
        users: Number of running requests that use each block in use.
        idle: Blocks that no request uses; a group is touched when a request releases it.
    """

    def __init__(self, *, by_block: bool) -> None:
        self.users: Counter[Block] = Counter()
        self.idle = OrderedBlocks(by_block=by_block)

    def __contains__(self, block: Block) -> bool:
        """Whether a block is cached."""
        return block in self.users or block in self.idle

    def __len__(self) -> int:
        """Return the number of cached blocks."""
        return len(self.users) + len(self.idle)

    def num_idle(self, blocks: Iterable[Block]) -> int:
        """Return how many of these blocks no request uses."""
        return sum(block not in self.users for block in blocks)

    def use(self, blocks: Iterable[Block]) -> None:
        """Let one more request use blocks; uncached ones become cached."""
        for block in blocks:
            self.idle.discard(block)
            self.users[block] += 1

    def give_up(self, blocks: Sequence[Block]) -> None:
        """Let one request fewer use blocks, from the last to the first."""
        for block in reversed(blocks):
            self.users[block] -= 1
            if not self.users[block]:
                del self.users[block]
                self.idle.add(block)
            self.idle.touch(block)


@dataclass(eq=False)
class Node:
    """Blocks that requests have had in common so far; the nodes that follow, by their first block.

    Attributes:
        has_state: Whether the state at its end is kept (`simserve.reference.tree_states`).
        state_used: When that was used last.
    """

    blocks: list[Block]
    children: dict[Block, Node] = field(default_factory=dict)
    last_used: int = 0
    has_state: bool = False
    state_used: int = 0


class RadixTree:
    """What steps have computed, below an empty root."""

    def __init__(self) -> None:
        self.root = Node([])
        self.num_uses = 0

    def follow(self, blocks: list[Block]) -> tuple[list[Node], list[Block], Node | None]:
        """Follow blocks as far as they go, and split the node where they end.

        Returns:
            The nodes, the blocks that they lack, and what has been split off.
        """
        path, rest, node = [], blocks, self.root
        tail: Node | None = None
        while rest and rest[0] in node.children and tail is None:
            child = node.children[rest[0]]
            count = sum(1 for one, other in zip(child.blocks, rest, strict=False) if one == other)
            if count < len(child.blocks):
                tail = Node(child.blocks[count:], child.children, child.last_used, child.has_state, child.state_used)
                child.blocks, child.children = child.blocks[:count], {tail.blocks[0]: tail}
                child.has_state = False
            path.append(child)
            rest, node = rest[count:], child
        return path, rest, tail

    def touch(self, nodes: list[Node]) -> None:
        """Note that nodes were used now, one after another."""
        for node in nodes:
            self.num_uses += 1
            node.last_used = self.num_uses

    def use(self, blocks: list[Block], *, is_added: bool) -> None:
        """Follow blocks, and note the use of the nodes.

        Args:
            blocks: From the beginning of a request.
            is_added: Whether to add blocks that the tree lacks.
        """
        path, rest, tail = self.follow(blocks)
        if rest and is_added:
            above = path[-1] if path else self.root
            above.children[rest[0]] = added = Node(rest)
            path.append(added)
        self.touch([*([tail] if tail is not None else []), *reversed(path)])

    def find(self, _: Request, blocks: list[Block]) -> None:
        """Note the use of what a request finds."""
        self.use(blocks, is_added=False)

    def reachable(self, blocks: list[Block]) -> list[Block]:
        """Return those of the blocks that the tree holds from which a request can go on."""
        return blocks

    def seat(self, request: Request, cached: CachedBlocks) -> None:
        """Let a request that is admitted use what it has found."""

    def keeps(self, _: Request, tokens: int) -> int:
        """Return how many of a request's computed tokens the tree keeps."""
        return tokens

    def hold(self, request: Request, blocks: list[Block], cached: CachedBlocks) -> None:
        """Hold blocks that a request has computed, and let it use them."""
        self.use(blocks, is_added=True)
        cached.give_up(request.shared)
        cached.use(blocks)
        request.shared = blocks

    def leave(self, request: Request, shared: list[Block]) -> None:
        """Let a request leave that has used ``shared``."""

    def give_up(self, blocks: list[Block], in_use: Container[Block]) -> None:
        """Note that the nodes with these blocks were used now, if no request uses them any more."""
        for node in reversed(self.nodes(self.root)):
            if node.blocks[0] in blocks and node.blocks[0] not in in_use:
                self.num_uses += 1
                node.last_used = self.num_uses

    def nodes(self, below: Node) -> list[Node]:
        """Return all nodes below one, parents before children."""
        return [each for child in below.children.values() for each in (child, *self.nodes(child))]

    def evict(self, num_blocks: int, in_use: Container[Block]) -> list[Block]:
        """Evict the least recently used leaves until ``num_blocks`` blocks have gone; return the blocks."""
        gone: list[Block] = []
        while len(gone) < num_blocks:
            leaves = [each for each in self.nodes(self.root) if not each.children and each.blocks[0] not in in_use]
            if not leaves:
                break
            gone += self.remove(min(leaves, key=lambda each: each.last_used), in_use)
        return gone

    def remove(self, leaf: Node, _: Container[Block]) -> list[Block]:
        """Remove a leaf; return its blocks."""
        for node in [self.root, *self.nodes(self.root)]:
            if node.children.get(leaf.blocks[0]) is leaf:
                del node.children[leaf.blocks[0]]
        return list(leaf.blocks)


class Tier:
    """Blocks evicted from the previous tier or from the GPU.

    Attributes:
        blocks: Its blocks; a segment is touched when one of its blocks arrives or is requested.
    """

    def __init__(self, config: KVTierConfig) -> None:
        self.config = config
        self.blocks = OrderedBlocks()

    def put(self, block: Block) -> Block | None:
        """Add a block; return the one that it evicts: the end of the least recently touched segment."""
        self.blocks.add(block)
        self.blocks.touch(block)
        return self.overflow()

    def overflow(self) -> Block | None:
        """Evict a block if there are too many."""
        if len(self.blocks) <= self.config.num_blocks:
            return None
        last = self.blocks.first
        self.blocks.discard(last)
        return last


class Store(Tier):
    """Copies of blocks that all replicas write and read.

    Attributes:
        free_at: When it has sent everything that replicas have requested.
    """

    free_at = 0.0

    def write(self, path: Sequence[Block]) -> None:
        """Copy the blocks of a request's prefix, its first block last."""
        for block in reversed(path):
            self.blocks.add(block)
            self.blocks.touch(block)
        while self.overflow() is not None:
            pass

    def promise(self, path: Sequence[Block]) -> set[Block]:
        """Return the stored blocks of a request's prefix, for a replica to load when it admits the request."""
        missing = [number for number, block in enumerate(path) if block not in self.blocks]
        found = path[: missing[0]] if missing else path
        for block in reversed(found):
            self.blocks.touch(block)
        return set(found)


def loading_seconds(config: KVTierConfig, num_blocks: int) -> float:
    """Return the seconds that a replica takes to load blocks of a tier, if no other replica loads from it."""
    return config.latency + config.block_seconds * num_blocks if num_blocks else 0.0


def worth_taking(
    config: EngineConfig, times: StepTimes, found: Sequence[Block], places: Sequence[KVTierConfig | None]
) -> int:
    """Return how many of the blocks found a request takes: as many as make its first token come soonest.

    Args:
        config: The scheduler.
        times: Seconds of its steps.
        found: Blocks of its prefix, in order.
        places: Where each of them is; None: on the GPU.
    """
    if not any(tier.has_choice for tier in config.kv_tiers):
        return len(found)
    chunk = min(config.max_chunk_tokens, len(times.token_seconds) - 1)
    token_seconds = times.token_seconds[chunk] / chunk
    size = config.block_size
    best, least = 0, 0.0
    spent = 0.0
    for taken in range(1, len(found) + 1):
        done = size * (taken - 1)
        pairs = sum(done + token for token in range(1, size + 1))
        spent -= size * token_seconds + times.prefill_pair_seconds * pairs
        loads = sum(
            loading_seconds(tier, sum(place is tier for place in places[:taken]))
            for tier in config.kv_tiers
            if tier.has_choice
        )
        if is_last_of_its_kind(found, places, taken) and spent + loads <= least:
            best, least = taken, spent + loads
    return best


def is_last_of_its_kind(found: Sequence[Block], places: Sequence[KVTierConfig | None], taken: int) -> bool:
    """Whether the next block is of another segment or place: loading does not stop in between."""
    if taken == len(found):
        return True
    return found[taken][0] != found[taken - 1][0] or places[taken] is not places[taken - 1]


def waiting_seconds(config: EngineConfig, store: Store | None, step: Step, compute_seconds: float) -> float:
    """Return how long a step waits for its loads: tier after tier; overlapped ones count only beyond the step."""
    serial = overlapped = 0.0
    for tier in config.kv_tiers:
        num_blocks = step.loaded_blocks.get(tier.name, 0)
        seconds = loading_seconds(tier, num_blocks)
        if tier.is_shared and store is not None and num_blocks and tier.store_block_seconds:
            store.free_at = max(store.free_at, step.start) + tier.store_block_seconds * num_blocks
            seconds = max(seconds, tier.latency + store.free_at - step.start)
        if tier.overlaps:
            overlapped += seconds
        else:
            serial += seconds
    return serial + max(0.0, overlapped - compute_seconds)
