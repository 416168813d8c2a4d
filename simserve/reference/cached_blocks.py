"""Cached blocks: who uses them, and which of those that nobody uses gives way next. A block is (segment, position)."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field

Block = tuple[int, int]


class OrderedBlocks:
    """Blocks in the order in which they give way.

    Attributes:
        groups: Those of a segment together, or each by itself; the group that was touched least recently comes first.
    """

    def __init__(self, *, by_block: bool = False) -> None:
        self.by_block = by_block
        self.groups: OrderedDict[int | Block, set[Block]] = OrderedDict()
        self.num_blocks = 0

    def group_of(self, block: Block) -> int | Block:
        """Return what gives way together with a block."""
        return block if self.by_block else block[0]

    def __contains__(self, block: Block) -> bool:
        """Whether a block is among them."""
        return block in self.groups.get(self.group_of(block), ())

    def __len__(self) -> int:
        """Return how many there are."""
        return self.num_blocks

    @property
    def first(self) -> Block:
        """The one that gives way next: the end of the first group."""
        return max(next(iter(self.groups.values())))

    def add(self, block: Block) -> None:
        """Take a block in; its group keeps its place."""
        if block not in self:
            self.groups.setdefault(self.group_of(block), set()).add(block)
            self.num_blocks += 1

    def touch(self, block: Block) -> None:
        """Let the group of a block give way last of all."""
        if self.group_of(block) in self.groups:
            self.groups.move_to_end(self.group_of(block))

    def discard(self, block: Block) -> None:
        """Take a block out, if it is there."""
        if block in self:
            group = self.groups[self.group_of(block)]
            group.remove(block)
            self.num_blocks -= 1
            if not group:
                del self.groups[self.group_of(block)]


class CachedBlocks:
    """The cached blocks of a scheduler.

    Attributes:
        users: How many running requests use each of those that are in use.
        idle: Those that nobody uses; a group is touched when a request gives it up.
    """

    def __init__(self, *, by_block: bool) -> None:
        self.users: Counter[Block] = Counter()
        self.idle = OrderedBlocks(by_block=by_block)

    def __contains__(self, block: Block) -> bool:
        """Whether a block is cached."""
        return block in self.users or block in self.idle

    def __len__(self) -> int:
        """Return how many are cached."""
        return len(self.users) + len(self.idle)

    def num_idle(self, blocks: Iterable[Block]) -> int:
        """Return how many of these nobody uses."""
        return sum(block not in self.users for block in blocks)

    def use(self, blocks: Iterable[Block]) -> None:
        """Let one more request use blocks; those that are not cached are from now on."""
        for block in blocks:
            self.idle.discard(block)
            self.users[block] += 1

    def give_up(self, blocks: Sequence[Block]) -> None:
        """Let one request fewer use blocks, from the last of them to the first."""
        for block in reversed(blocks):
            self.users[block] -= 1
            if not self.users[block]:
                del self.users[block]
                self.idle.add(block)
            self.idle.touch(block)


@dataclass(eq=False)
class Node:
    """Blocks that requests have so far had in common; what follows on them, by its first block."""

    blocks: list[Block]
    children: dict[Block, Node] = field(default_factory=dict)
    last_used: int = 0


class RadixTree:
    """What steps have computed, from a root that holds nothing."""

    def __init__(self) -> None:
        self.root = Node([])
        self.num_uses = 0

    def use(self, blocks: list[Block], *, is_added: bool) -> None:
        """Follow blocks as far as they go, cut the node in which they end, and note its use and that of all before it.

        Args:
            blocks: From the beginning of a request.
            is_added: Whether what the tree lacks of them joins it.
        """
        path, rest, node = [], blocks, self.root
        tail: Node | None = None
        while rest and rest[0] in node.children and tail is None:
            child = node.children[rest[0]]
            count = sum(1 for one, other in zip(child.blocks, rest, strict=False) if one == other)
            if count < len(child.blocks):
                tail = Node(child.blocks[count:], child.children)
                child.blocks, child.children = child.blocks[:count], {tail.blocks[0]: tail}
            path.append(child)
            rest, node = rest[count:], child
        if rest and is_added:
            node.children[rest[0]] = added = Node(rest)
            path.append(added)
        for each in [*([tail] if tail is not None else []), *reversed(path)]:
            self.num_uses += 1
            each.last_used = self.num_uses

    def give_up(self, blocks: list[Block], in_use: Container[Block]) -> None:
        """Note that the nodes that hold these blocks were used just now, as far as nobody uses them any more."""
        for node in reversed(self.nodes(self.root)):
            if node.blocks[0] in blocks and node.blocks[0] not in in_use:
                self.num_uses += 1
                node.last_used = self.num_uses

    def nodes(self, below: Node) -> list[Node]:
        """Return all nodes below one, each before those that follow on it."""
        return [each for child in below.children.values() for each in (child, *self.nodes(child))]

    def evict(self, num_blocks: int, in_use: Container[Block]) -> list[Block]:
        """Drop the leaves that were used least recently until so many blocks have gone; return them."""
        gone: list[Block] = []
        while len(gone) < num_blocks:
            leaves = [each for each in self.nodes(self.root) if not each.children and each.blocks[0] not in in_use]
            if not leaves:
                break
            oldest = min(leaves, key=lambda each: each.last_used)
            gone += oldest.blocks
            for node in [self.root, *self.nodes(self.root)]:
                if node.children.get(oldest.blocks[0]) is oldest:
                    del node.children[oldest.blocks[0]]
        return gone
