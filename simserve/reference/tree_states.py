"""States in SGLang's radix tree: where a prompt can go on, where chunks and answers leave states, which one is evicted.

It specifies the part of `simserve.engine.radix_tree` on states, and looks at every node each time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from typing import TYPE_CHECKING

from simserve.reference.cached_blocks import Block, CachedBlocks, Node, RadixTree

if TYPE_CHECKING:
    from simserve.engine.config import EngineConfig
    from simserve.reference.request import Request


class StatefulTree(RadixTree):
    """A tree in which a prefix ends at a node with a state.

    Attributes:
        num_free: States that neither a running request nor a node has.
        used_at_end: Running requests that go on from the end of a block.
        begun: Running request -> tokens before the chunk under way.
        answering: Running request whose prompt is computed -> the tokens of that.
        junctions: Request -> tokens in the tree beyond the state from which it goes on.
    """

    def __init__(self, config: EngineConfig) -> None:
        super().__init__()
        self.config, self.num_free = config, config.tree_states
        self.used_at_end: Counter[Block] = Counter()
        self.begun: dict[int, int] = {}
        self.answering: dict[int, int] = {}
        self.junctions: dict[int, int] = {}

    def find(self, request: Request, blocks: list[Block]) -> None:
        """Note the use of the last state before the end of what the tree holds, and of the nodes before it."""
        path, _, tail = self.follow(blocks)
        if tail is not None:
            self.touch([path[-1], tail])
        size, grid = self.config.block_size, self.config.state_grid
        held = size * sum(len(node.blocks) for node in path)
        while path and not path[-1].has_state:
            path.pop()
        self.touch(list(reversed(path)))
        if grid:
            place = held // grid * grid
            is_beyond = place > size * sum(len(node.blocks) for node in path)
            self.junctions[request.index] = place if is_beyond else 0
        if path:
            self.num_uses += 1
            path[-1].state_used = self.num_uses

    def reachable(self, blocks: list[Block]) -> list[Block]:
        """Return the blocks up to the last state."""
        node, count, reached = self.root, 0, 0
        while blocks[count:] and blocks[count] in node.children:
            node = node.children[blocks[count]]
            count += len(node.blocks)
            if count <= len(blocks) and node.has_state:
                reached = count
        return blocks[:reached]

    def seat(self, request: Request, cached: CachedBlocks) -> None:
        """Let a request that is admitted go on from what it has found, and take states of its own."""
        self.begun[request.index] = len(request.shared) * self.config.block_size
        self.used_at_end.update(request.shared[-1:])
        for _ in range(self.config.seat_states):
            self.take(cached)

    def place_of(self, request: Request, tokens: int) -> int:
        """Return the tokens before the state that a chunk up to ``tokens`` leaves; 0: none."""
        begun, grid = self.begun[request.index], self.config.state_grid
        self.begun[request.index] = tokens
        if not grid:
            return tokens
        junction = self.junctions.get(request.index, 0)
        last = begun + (tokens - begun) // grid * grid
        if begun < junction <= last and (junction - begun) % grid == 0:
            return junction
        return last if last > begun else 0

    def keeps(self, request: Request, tokens: int) -> int:
        """Return how many of a request's computed tokens the tree keeps, and note that its prompt is computed."""
        prompt = self.answering.get(request.index)
        if request.generated < request.output_tokens:
            place = self.place_of(request, tokens)
            if tokens == request.target:
                self.answering[request.index] = tokens
            return place
        if prompt is None or not self.config.state_grid:
            return self.place_of(request, tokens)
        last = tokens // self.config.state_interval * self.config.state_interval
        return last if last > prompt else 0

    def hold(self, request: Request, blocks: list[Block], cached: CachedBlocks) -> None:
        """Hold blocks with the state behind them, which a request that leaves gives away and another one copies."""
        is_leaving = request.generated >= request.output_tokens
        if not is_leaving:
            self.take(cached)
        before = request.shared
        super().hold(request, blocks, cached)
        node = self.follow(blocks)[0][-1]
        self.num_free += int(node.has_state) if not is_leaving else -int(not node.has_state)
        self.num_uses += 1
        node.has_state, node.state_used = True, self.num_uses
        self.used_at_end.subtract(before[-1:])
        self.used_at_end.update(blocks[-1:])

    def leave(self, request: Request, shared: list[Block]) -> None:
        """Free the states of a request that leaves."""
        self.num_free += self.config.seat_states
        self.used_at_end.subtract(shared[-1:])
        for known in (self.answering, self.begun, self.junctions):
            known.pop(request.index, None)

    def give_up(self, blocks: list[Block], in_use: Container[Block]) -> None:
        """Leave the times as they are: nodes that nobody uses any more were used when they were found or held."""

    def take(self, cached: CachedBlocks) -> None:
        """Take a free state, or that of the node that nobody goes on from and that was used least recently."""
        if self.num_free <= 0:
            idle = [each for each in self.nodes(self.root) if each.has_state and not self.used_at_end[each.blocks[-1]]]
            oldest = min(idle, key=lambda each: each.state_used, default=None)
            if oldest is not None and not oldest.children and oldest.blocks[0] not in cached.users:
                for block in self.remove(oldest, cached.users):
                    cached.idle.discard(block)
            elif oldest is not None:
                oldest.has_state = False
                self.num_free += 1
        self.num_free -= 1

    def remove(self, leaf: Node, in_use: Container[Block]) -> list[Block]:
        """Remove a leaf, and what is then a leaf without a state and without users; return the blocks."""
        above = next((each for each in self.nodes(self.root) if leaf in each.children.values()), None)
        gone = super().remove(leaf, in_use)
        self.num_free += leaf.has_state
        if self.config.keeps_bare_leaves or above is None:
            return gone
        if above.children or above.has_state or above.blocks[0] in in_use:
            return gone
        return gone + self.remove(above, in_use)


def tree_of(config: EngineConfig) -> RadixTree | None:
    """Return the tree of a scheduler; None: it keeps none."""
    if not config.has_radix_tree:
        return None
    return StatefulTree(config) if config.tree_states else RadixTree()
