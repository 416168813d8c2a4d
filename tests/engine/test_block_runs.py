"""Runs of blocks: one that is cut is in the order of its blocks, and becomes whole again; no block is lost."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simserve.engine.block_runs import add_open, drop_pieces, find_run, keep_open, key_of, new_table, take, use_run
from simserve.engine.cache_state import PrefixCache, PrefixPaths
from simserve.engine.state import Replica
from tests.builders import constant_step_times, make_config

NUM_BLOCKS = 12
WHOLE = 6
"""Blocks of the segment that all requests share."""


def make_pool(num_requests: int) -> tuple[Replica, PrefixCache]:
    """Return an empty pool whose requests share a segment of ``WHOLE`` blocks."""
    config = make_config(
        block_size=1,
        num_blocks=NUM_BLOCKS,
        window_groups=1,
        window_tokens=3,
        window_blocks=3,
        enable_prefix_caching=True,
        evicts_by_block=True,
    )
    offsets, ends = np.arange(num_requests + 1), np.full(num_requests, WHOLE)
    cache = PrefixCache(PrefixPaths(offsets, np.zeros(num_requests, dtype=np.int64), ends, 1), config)
    return Replica(0, config, constant_step_times()), cache


def compute(replica: Replica, cache: PrefixCache, index: int, found: int, blocks: int) -> None:
    """Let a request use the first ``found`` blocks of the segment, and compute and cache those up to ``blocks``."""
    cache.paths.tables[index] = new_table(cache)
    column, place = cache.paths.tables[index] * cache.width, 0
    while place < found:
        run, end = find_run(cache, key_of(cache, 0, place + 1, 0), place + 1)
        use_run(replica, cache, column, run, place, min(end, found))
        place = min(end, found)
    if blocks > found:
        take(replica, cache, blocks - found)
        add_open(cache, column, found, blocks)
        keep_open(cache, index, 0, found, blocks)


def leave(replica: Replica, cache: PrefixCache, index: int) -> int:
    """Let a request give everything back; return how many of its blocks others use."""
    column = cache.paths.tables[index] * cache.width
    num_used = drop_pieces(replica, cache, cache.columns[column])
    cache.columns[column] = 0
    return num_used


def waiting_runs(cache: PrefixCache) -> list[tuple[int, int]]:
    """Return the first and last blocks of the runs without users, in the order in which they are given out."""
    runs, run = [], cache.later[0]
    while run:
        runs.append((cache.run_starts[run], cache.run_ends[run]))
        run = cache.later[run]
    return runs


def num_found(cache: PrefixCache) -> int:
    """Return how many blocks of the segment a request would find."""
    place = 0
    while place < WHOLE:
        run, end = find_run(cache, key_of(cache, 0, place + 1, 0), place + 1)
        if not run:
            break
        place = end
    return place


def test_a_run_that_is_cut_is_one_again_once_nobody_uses_it() -> None:
    """A request that uses the beginning keeps it, while the rest waits."""
    replica, cache = make_pool(2)
    compute(replica, cache, 0, found=0, blocks=6)
    compute(replica, cache, 1, found=4, blocks=4)
    used_by_both = leave(replica, cache, 0)
    while_used = waiting_runs(cache)
    leave(replica, cache, 1)

    assert used_by_both == 4
    assert while_used == [(4, 6)]
    assert waiting_runs(cache) == [(0, 6)]


def test_blocks_are_given_out_from_the_end_of_the_run_that_waits_longest() -> None:
    """Two blocks beyond those that held nothing take the last two of a prefix."""
    replica, cache = make_pool(2)
    compute(replica, cache, 0, found=0, blocks=6)
    leave(replica, cache, 0)
    take(replica, cache, NUM_BLOCKS - 6 + 2)

    assert waiting_runs(cache) == [(0, 4)]
    assert num_found(cache) == 4


def test_the_older_copy_is_found_block_by_block() -> None:
    """What lies behind an older copy is found in a newer one, which is cut where it begins to be used."""
    replica, cache = make_pool(3)
    compute(replica, cache, 0, found=0, blocks=3)
    compute(replica, cache, 1, found=0, blocks=6)
    older, end = find_run(cache, key_of(cache, 0, 1, 0), 1)
    newer, _ = find_run(cache, key_of(cache, 0, 4, 0), 4)
    compute(replica, cache, 2, found=6, blocks=6)

    assert (end, older != newer) == (3, True)
    assert cache.run_users[older] == 2
    assert (cache.run_starts[newer], cache.run_users[newer]) == (3, 2)
    assert cache.run_users[cache.run_rests[newer]] == 1


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, WHOLE), st.integers(0, WHOLE)), max_size=40))
def test_every_block_is_in_use_or_free(moves: list[tuple[int, int, int]]) -> None:
    """Requests that come and go in any order leave no block behind, and no run with users."""
    replica, cache = make_pool(4)
    running: dict[int, int] = {}
    for index, blocks, most in moves:
        if index in running:
            leave(replica, cache, index)
            del running[index]
        elif replica.free_blocks >= blocks:
            compute(replica, cache, index, min(most, blocks, num_found(cache)), blocks)
            running[index] = blocks
        waiting = sum(end - start for start, end in waiting_runs(cache))

        assert waiting + cache.num_empty + cache.num_fresh == replica.free_blocks
    for index in running:
        leave(replica, cache, index)

    assert replica.free_blocks == NUM_BLOCKS
    assert not any(cache.run_users)
