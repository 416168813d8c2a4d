"""RadixTree: SGLang's prefix cache by its nodes, which specifies `simserve.engine.radix_tree`.

Every question walks the whole tree.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

Block = tuple[int, int]
"""Segment, and position in the request."""


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
