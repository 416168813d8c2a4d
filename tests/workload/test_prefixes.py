"""Which prompts begin alike, from the blocks that a trace names."""

from __future__ import annotations

import numpy as np

from simserve.workload.prefixes import joined, recorded_prefixes, system_prompts
from simserve.workload.traces.trace import PrefixBlocks
from tests.workload.test_conversations import path


def recorded(rows: list[list[int]], prompts: list[int], block_tokens: int = 10, scale: float = 1.0) -> list[object]:
    """Return the paths of requests with answers of 5 tokens."""
    blocks = PrefixBlocks(
        block_tokens=block_tokens,
        ids=np.array([each for row in rows for each in row], dtype=np.int64),
        counts=np.array([len(row) for row in rows], dtype=np.int64),
    )
    prefixes = recorded_prefixes(blocks, np.array(prompts), np.full(len(prompts), 5), scale)
    return [path(prefixes, index) for index in range(len(prompts))]


def test_blocks_that_the_same_requests_begin_with_are_one_segment() -> None:
    """Blocks 1 and 2 are shared by all three, 3 by two; the rest is each one's own."""
    first, second, third = recorded([[1, 2, 3, 4], [1, 2, 3], [1, 2, 9]], [38, 30, 25])

    assert [end for _, end in first] == [20, 30, 43]
    assert [end for _, end in second] == [20, 30, 35]
    assert [end for _, end in third] == [20, 30]
    assert first[:2] == second[:2]
    assert first[0] == third[0]
    assert len({segments[-1][0] for segments in (first, second, third)}) == 3


def test_a_block_counts_only_behind_the_same_blocks() -> None:
    """An id that follows on another one, or stands elsewhere, holds other tokens as far as a cache can tell."""
    first, second, third = recorded([[1, 2], [3, 2], [2]], [20, 20, 10])

    assert {len(each) for each in (first, second, third)} == {1}


def test_scaled_prompts_share_as_much_of_them() -> None:
    """At half the length the shared block of 10 tokens ends at 5."""
    first, second = recorded([[1, 2], [1, 3]], [10, 9], scale=0.5)

    assert first[0] == second[0]
    assert first[0][1] == 5


def test_the_first_requests_alone() -> None:
    """Cutting keeps their paths."""
    blocks = PrefixBlocks(block_tokens=10, ids=np.array([1, 1, 1]), counts=np.array([1, 1, 1]))
    prefixes = recorded_prefixes(blocks, np.array([12, 13, 14]), np.array([1, 1, 1]))

    cut = prefixes.first(2)
    assert len(cut.offsets) == 3
    assert [path(cut, index) for index in range(2)] == [path(prefixes, index) for index in range(2)]


def test_lists_of_requests_that_share_nothing_go_on_sharing_nothing() -> None:
    """Two of two requests each, with one system prompt between them all: five segments, of which one is shared."""
    lengths = np.array([100, 100])
    parts = [system_prompts(np.zeros(2, dtype=np.int64), 1, np.full(2, 30), lengths) for _ in range(2)]

    together = joined(parts, 1)

    assert np.unique(together.segments, return_counts=True)[1].tolist() == [4, 1, 1, 1, 1]
