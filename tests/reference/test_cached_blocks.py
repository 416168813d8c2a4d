"""The order in which cached blocks give way, held to a look at all of them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.reference.cached_blocks import Block, CachedBlocks
from tests.fuzzing import examples


class EveryBlock:
    """The same by looking at every block, each time."""

    def __init__(self, *, by_block: bool) -> None:
        self.by_block = by_block
        self.cached: set[Block] = set()
        self.held: list[list[Block]] = []
        self.given_up: dict[int | Block, int] = {}
        self.num_given_up = 0

    @property
    def idle(self) -> set[Block]:
        """Those that nobody uses."""
        return self.cached - {block for held in self.held for block in held}

    def give_up(self, blocks: list[Block]) -> None:
        """Let one request go, which uses these."""
        self.held.remove(blocks)
        groups = [block for block in blocks if block in self.idle] if self.by_block else [block[0] for block in blocks]
        for group in reversed(groups):
            self.num_given_up += 1
            self.given_up[group] = self.num_given_up

    @property
    def first(self) -> Block:
        """The one that gives way next."""
        if self.by_block:
            return min(self.idle, key=lambda block: self.given_up[block])
        oldest = min({segment for segment, _ in self.idle}, key=lambda segment: self.given_up[segment])
        return max(block for block in self.idle if block[0] == oldest)


@pytest.mark.parametrize("by_block", [False, True])
@given(data=st.data())
@settings(max_examples=examples(60), deadline=None, derandomize=True)
def test_the_block_that_gives_way_is_the_one_that_a_look_at_all_finds(by_block: bool, data: st.DataObject) -> None:
    """Requests of shared beginnings come, go, and have their blocks taken, in any order."""
    blocks, every = CachedBlocks(by_block=by_block), EveryBlock(by_block=by_block)
    for _ in range(data.draw(st.integers(1, 30))):
        act = data.draw(st.sampled_from(["come", "come", "go", "evict"]))
        if act == "come":
            shared, segment, own = (
                data.draw(st.integers(0, 4)),
                data.draw(st.integers(0, 2)),
                data.draw(st.integers(3, 6)),
            )
            path = [(segment, position) for position in range(shared)]
            path += [(own, shared + position) for position in range(data.draw(st.integers(0, 3)))]
            blocks.use(path)
            every.held.append(path)
            every.cached.update(path)
        elif act == "go" and every.held:
            path = every.held[data.draw(st.integers(0, len(every.held) - 1))]
            blocks.give_up(path)
            every.give_up(path)
        elif act == "evict" and every.idle:
            gone = blocks.idle.first

            assert gone == every.first
            blocks.idle.discard(gone)
            every.cached.remove(gone)
        assert len(blocks) == len(every.cached)
        assert len(blocks.idle) == len(every.idle)
