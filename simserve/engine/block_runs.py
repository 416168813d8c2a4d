"""Runs: consecutive blocks of a pool that the same requests use, or that wait one after the other to be given out.

Which blocks are cached, found and given back is decided in `simserve.engine.state_cache`. A run is what one group of
layers keeps of a segment between two places. Where more or fewer requests use its beginning, it is cut there: what is
cut off becomes a run of its own, and whoever uses both goes from one to the other (``run_rests``). One without users is
given out from its end, as vLLM gives the blocks of requests back from the last to the first.

Runs of one key are in a chain, in the order in which they were cached: where several hold a block, it is found in the
first. A run grows only as the last of its chain, and the two parts of one that is cut are neighbours, so that the order
of runs is that of each of their blocks. Neighbours that wait one after the other become one run again.

Of blocks that nobody can find, only the number counts. What a request has of each group of layers is a list of pieces,
the last one first.
"""

from __future__ import annotations

from simserve.engine.cache_state import PrefixCache
from simserve.engine.state import Replica

OPEN, KEPT = 0, -1
"""Pieces of blocks that are not cached, and of cached ones that nobody else could find."""
_PLACE_BITS = 24


def key_of(cache: PrefixCache, segment: int, place: int, group: int) -> int:
    """Return the key of the chain with the block that ends the first ``place`` blocks of requests."""
    span = (place - 1) // cache.span + 1 if group else 1
    return (segment << _PLACE_BITS | span) * cache.width + group


def find_run(cache: PrefixCache, key: int, place: int) -> tuple[int, int]:
    """Return the oldest run that has the block at a place, and up to which place it is the oldest; 0: there is none."""
    run, end = cache.chains.get(key, 0), 1 << _PLACE_BITS
    while run:
        start = cache.run_starts[run]
        if start >= place:
            end = min(end, start)
        elif cache.run_ends[run] >= place:
            return run, min(end, cache.run_ends[run])
        run = cache.newer[run]
    return 0, 0


def reach_down(cache: PrefixCache, key: int, place: int) -> tuple[bool, int]:
    """Return whether a run of windows or states has the block at a place, and the place that its first one is behind.

    If none has it: the next lower place where one could be.
    """
    run, low = cache.chains.get(key, 0), (place - 1) // cache.span * cache.span
    while run:
        if cache.run_starts[run] < place:
            end = cache.run_ends[run]
            if end >= place:
                return True, cache.run_starts[run]
            low = max(low, end)
        run = cache.newer[run]
    return False, low


def _new_run(cache: PrefixCache, key: int, start: int, end: int, num_users: int) -> int:
    if cache.free_runs:
        run = cache.free_runs.pop()
    else:
        run = len(cache.run_keys)
        for column in (cache.run_keys, cache.run_starts, cache.run_ends, cache.run_users, cache.run_rests):
            column.append(0)
        for column in (cache.older, cache.newer, cache.earlier, cache.later):
            column.append(0)
    cache.run_keys[run], cache.run_starts[run], cache.run_ends[run] = key, start, end
    cache.run_users[run], cache.run_rests[run] = num_users, 0
    return run


def _cache_run(cache: PrefixCache, key: int, start: int, end: int) -> int:
    """Let others find blocks that one request uses; return their run, the last of its chain."""
    run, first = _new_run(cache, key, start, end, 1), cache.chains.get(key, 0)
    if first:
        last = cache.older[first]
        cache.newer[last] = cache.older[first] = run
        cache.older[run] = last
    else:
        cache.chains[key] = cache.older[run] = run
    cache.newer[run] = 0
    return run


def _drop_run(cache: PrefixCache, run: int) -> None:
    """Let nobody find a run, which is gone."""
    key = cache.run_keys[run]
    if key:
        first, before, behind = cache.chains.get(key, 0), cache.older[run], cache.newer[run]
        if first == run:
            del cache.chains[key]
            if behind:
                cache.chains[key] = first = behind
        else:
            cache.newer[before] = behind
        cache.older[behind if behind else first] = before
    cache.free_runs.append(run)


def _cut_run(cache: PrefixCache, run: int, place: int) -> int:
    """Make a run of the blocks of another one up to a place, given out after the rest; return it."""
    key, num_users = cache.run_keys[run], cache.run_users[run]
    rest = _new_run(cache, key, cache.run_starts[run], place, num_users)
    cache.run_starts[run] = place
    cache.run_rests[rest], cache.run_rests[run] = cache.run_rests[run], rest
    behind = cache.newer[run]
    cache.newer[run], cache.older[rest], cache.newer[rest] = rest, run, behind
    cache.older[behind if behind else cache.chains.get(key, 0)] = rest
    if not num_users:
        _queue(cache, rest, run)
    return rest


def _queue(cache: PrefixCache, run: int, earlier: int) -> None:
    """Let a run wait directly after another one; 0: before all."""
    later = cache.later[earlier]
    cache.later[earlier] = cache.earlier[later] = run
    cache.earlier[run], cache.later[run] = earlier, later


def _unqueue(cache: PrefixCache, run: int) -> None:
    earlier, later = cache.earlier[run], cache.later[run]
    cache.later[earlier], cache.earlier[later] = later, earlier


def _wait(cache: PrefixCache, run: int) -> None:
    """Let a run wait for its turn, after all others."""
    last, key = cache.earlier[0], cache.run_keys[run]
    goes_on = cache.run_keys[last] == key and cache.run_starts[last] == cache.run_ends[run]
    if last and goes_on and (cache.newer[run] == last or cache.newer[last] == run):
        cache.run_ends[run] = cache.run_ends[last]
        _unqueue(cache, last)
        _drop_run(cache, last)
        last = cache.earlier[0]
    _queue(cache, run, last)


def _wait_unseen(cache: PrefixCache, num_blocks: int) -> None:
    """Let blocks that nobody can find wait for their turn, after all others."""
    last = cache.earlier[0]
    if last and not cache.run_keys[last]:
        cache.run_ends[last] += num_blocks
    else:
        _queue(cache, _new_run(cache, 0, 0, num_blocks, 0), last)


def take(replica: Replica, cache: PrefixCache, num_blocks: int) -> None:
    """Give out the next free blocks; what they held is evicted."""
    replica.free_blocks -= num_blocks
    taken = min(num_blocks, cache.num_empty)
    cache.num_empty -= taken
    num_blocks -= taken
    taken = min(num_blocks, cache.num_fresh)
    cache.num_fresh -= taken
    num_blocks -= taken
    while num_blocks:
        run = cache.later[0]
        taken = min(num_blocks, cache.run_ends[run] - cache.run_starts[run])
        num_blocks -= taken
        cache.run_ends[run] -= taken
        if cache.run_ends[run] == cache.run_starts[run]:
            _unqueue(cache, run)
            _drop_run(cache, run)


def new_table(cache: PrefixCache) -> int:
    """Return a table for what a request has, where it has nothing yet."""
    if cache.free_tables:
        return cache.free_tables.pop()
    table = len(cache.columns) // cache.width
    for _ in range(cache.width):
        cache.columns.append(0)
    return table


def _new_piece(cache: PrefixCache, run: int, start: int, end: int, below: int) -> int:
    if cache.free_pieces:
        piece = cache.free_pieces.pop()
    else:
        piece = len(cache.piece_runs)
        for column in (cache.piece_runs, cache.piece_starts, cache.piece_ends, cache.piece_below):
            column.append(0)
    cache.piece_runs[piece], cache.piece_below[piece] = run, below
    cache.piece_starts[piece], cache.piece_ends[piece] = start, end
    return piece


def use_run(replica: Replica, cache: PrefixCache, column: int, run: int, start: int, end: int) -> None:
    """Let a request use the blocks of a run from one place to another, after what it has of their group."""
    if end < cache.run_ends[run]:
        run = _cut_run(cache, run, end)
    if start > cache.run_starts[run]:
        _cut_run(cache, run, start)
    if not cache.run_users[run]:
        _unqueue(cache, run)
        replica.free_blocks -= end - start
    cache.run_users[run] += 1
    cache.columns[column] = _new_piece(cache, run, start, end, cache.columns[column])


def add_open(cache: PrefixCache, column: int, start: int, end: int) -> None:
    """Add blocks that have been given out to what a request has of a group; those directly before may be open too."""
    last = cache.columns[column]
    if last and not cache.piece_runs[last] and cache.piece_ends[last] == start:
        cache.piece_ends[last] = end
    else:
        cache.columns[column] = _new_piece(cache, OPEN, start, end, last)


def add_state(cache: PrefixCache, column: int, place: int) -> None:
    """Add the block of a state behind ``place`` blocks, which has been given out, to what a request has of a group."""
    cache.columns[column] = _new_piece(cache, OPEN, place - 1, place, cache.columns[column])


def cut_piece(cache: PrefixCache, piece: int, place: int) -> int:
    """Make a piece of the blocks of another one up to a place; return it."""
    run = cache.piece_runs[piece]
    if run > 0:
        while cache.run_starts[run] >= place:
            run = cache.run_rests[run]
        if cache.run_ends[run] > place:
            run = _cut_run(cache, run, place)
    lower = _new_piece(cache, run, cache.piece_starts[piece], place, cache.piece_below[piece])
    cache.piece_starts[piece], cache.piece_below[piece] = place, lower
    return lower


def keep_open(cache: PrefixCache, index: int, group: int, low: int, high: int) -> None:
    """Cache what a request has open of a group behind its first ``low`` blocks, up to ``high``."""
    piece = cache.columns[cache.paths.tables[index] * cache.width + group]
    while piece and cache.piece_ends[piece] > low:
        if cache.piece_runs[piece] == OPEN and cache.piece_starts[piece] < high:
            if cache.piece_ends[piece] > high:
                piece = cut_piece(cache, piece, high)
            if cache.piece_starts[piece] < low:
                cut_piece(cache, piece, low)
            keep_piece(cache, index, piece, group)
        piece = cache.piece_below[piece]


def keep_piece(cache: PrefixCache, index: int, piece: int, group: int) -> None:
    """Cache an open piece of a request, segment by segment from its end."""
    paths = cache.paths
    first, until = paths.starts[index], paths.starts[index + 1]
    entry, high = first, until
    while entry < high:
        middle = (entry + high) // 2
        if paths.ends[middle] < cache.piece_ends[piece]:
            entry = middle + 1
        else:
            high = middle
    is_done = False
    while not is_done:
        start, end = cache.piece_starts[piece], cache.piece_ends[piece]
        low = key = 0
        if entry > first:
            low = paths.ends[entry - 1]
        is_cut_at_span = False
        if entry < until:
            key = key_of(cache, paths.segments[entry], end, group)
            if group and (end - 1) // cache.span * cache.span > low:
                low, is_cut_at_span = (end - 1) // cache.span * cache.span, True
        is_done = low <= start
        lower = cache.piece_below[piece]
        if not is_done:
            lower = cut_piece(cache, piece, low)
            start = low
        if not is_done or not _extend(cache, piece, lower, key, group):
            cache.piece_runs[piece] = _cache_run(cache, key, start, end) if key else KEPT
        piece = lower
        entry -= not is_cut_at_span


def _extend(cache: PrefixCache, piece: int, lower: int, key: int, group: int) -> bool:
    """Let a piece that is to be cached be one with the piece below it, if that goes on like this."""
    if not lower or cache.piece_ends[lower] != cache.piece_starts[piece]:
        return False
    run = cache.piece_runs[lower]
    if key:
        # Windows are given back from their beginning: a run of them would be cut for each block.
        if group or run <= 0 or cache.run_keys[run] != key or cache.run_users[run] != 1 or cache.newer[run]:
            return False
        cache.run_ends[run] = cache.piece_ends[piece]
    elif run != KEPT or (group and not cache.has_windows):
        return False
    cache.piece_runs[piece], cache.piece_starts[piece] = run, cache.piece_starts[lower]
    cache.piece_below[piece] = cache.piece_below[lower]
    cache.free_pieces.append(lower)
    return True


def drop_unseen(replica: Replica, cache: PrefixCache, num_blocks: int) -> None:
    """Let a request give back blocks that nobody could find."""
    replica.free_blocks += num_blocks
    if not cache.ages_empty:
        cache.num_empty += num_blocks
    elif num_blocks:
        _wait_unseen(cache, num_blocks)


def drop_pieces(replica: Replica, cache: PrefixCache, piece: int) -> int:
    """Let a request give back a piece and all below it; return how many of the blocks others use."""
    num_used = 0
    while piece:
        run, start, end = cache.piece_runs[piece], cache.piece_starts[piece], cache.piece_ends[piece]
        if run > 0:
            while end > start:
                rest, num_blocks = cache.run_rests[run], end - cache.run_starts[run]
                cache.run_users[run] -= 1
                if cache.run_users[run]:
                    num_used += num_blocks
                else:
                    replica.free_blocks += num_blocks
                    _wait(cache, run)
                run = rest
                end -= num_blocks
        else:
            replica.free_blocks += end - start
            if run == KEPT or cache.ages_empty:
                _wait_unseen(cache, end - start)
            else:
                cache.num_empty += end - start
        cache.free_pieces.append(piece)
        piece = cache.piece_below[piece]
    return num_used
