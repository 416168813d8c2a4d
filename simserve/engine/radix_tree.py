"""RadixTree: SGLang's prefix cache, whose nodes are blocks that requests have had in common so far.

A step's blocks join the tree when the step has ended, and its copies of what the tree already holds are then free.
Requests that are computed together therefore share nothing that only they have. A node is cut if a look-up, or what
joins the tree, ends within it. Unused nodes are evicted whole, the least recently used first, once a step finds fewer
free blocks than it takes: as many as it takes, however few are missing (``mem_cache/radix_cache.py`` and
``mem_cache/common.py`` of 0.5.9), or as many as are missing (``evict_to_free_tokens`` of 0.5.23).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simserve.engine.cache_state import RadixTree
from simserve.engine.kv_tier import give_up, least_recent

if TYPE_CHECKING:
    from simserve.engine.cache_state import PrefixCache
    from simserve.engine.state import Replica, RequestTable

LOOKS, TOUCHED = 32, 128
"""Every 32 looks at the queue, the first 128 waiting requests count as users of what they would find
(``WAITING_PREFIX_REFRESH_INTERVAL`` and ``WAITING_QUEUE_PREFIX_MATCH_MAX`` of SGLang's ``schedule_policy.py``)."""
RETRACT_DECODE_STEPS = 20
"""Steps of the remaining requests for which a retraction makes room, and for which SGLang's new-token ratio looks ahead
(``SGLANG_RETRACT_DECODE_STEPS``)."""
_OFFSET_BITS = 24


def find_in_tree(cache: PrefixCache, index: int, tokens: int) -> tuple[int, int]:
    """Like `simserve.engine.prefix_cache.find_prefix`, without changing the tree."""
    tree = cache.tree
    assert tree is not None
    found, node, partial = _follow(cache, tree, index, (tokens - 1) // cache.paths.block_size)
    idle = 0
    if partial and not tree.users[partial]:
        idle = found - tree.starts[partial]
    return found, idle + _idle_until(tree, node)


def look_up(cache: PrefixCache, index: int, tokens: int) -> tuple[int, int]:
    """Like `find_in_tree`, for a request up for admission: what it finds counts as used, admitted or not."""
    tree = cache.tree
    assert tree is not None
    found, node, partial = _follow(cache, tree, index, (tokens - 1) // cache.paths.block_size)
    if partial:
        node = _cut(cache, tree, partial, found)
    tree.found = node
    _touch(tree, node)
    return found, _idle_until(tree, node)


def touch_waiting(replica: Replica, requests: RequestTable) -> None:
    """Count a look at the queue; every 32, mark what waiting requests would find as used, that of the head last."""
    cache, waiting = replica.cache, replica.waiting
    assert cache is not None
    tree = cache.tree
    assert tree is not None
    if not tree.num_looks % LOOKS:
        for position in range(min(len(waiting), TOUCHED) - 1, -1, -1):
            index = waiting[position]
            tokens = requests.prompt_tokens[index] + requests.generated_tokens[index]
            found, node, partial = _follow(cache, tree, index, _on_path(cache, index, tokens))
            if partial:
                node = _cut(cache, tree, partial, found)
            _touch(tree, node)
    tree.num_looks += 1


def use_found(cache: PrefixCache, index: int, blocks: int) -> None:
    """Let a request that is admitted use what `look_up` has just found."""
    tree = cache.tree
    assert tree is not None
    node = tree.found
    taken = _use(tree, node)
    cache.num_idle -= taken
    cache.num_duplicates += blocks - taken
    cache.paths.shared_blocks[index] = blocks
    if node:
        tree.nodes[index] = node


def cache_computed(replica: Replica, index: int, tokens: int) -> None:
    """Let the tree hold a running request's first ``tokens`` tokens, and the request use them: its copies are free."""
    cache = replica.cache
    assert cache is not None
    tree, shared = cache.tree, cache.paths.shared_blocks
    assert tree is not None
    blocks, before = _on_path(cache, index, tokens), shared[index]
    if blocks <= before:
        return
    found = _add(cache, tree, index, blocks)
    node = tree.found
    # What it has added counts as free until it is used.
    taken = _use(tree, node)
    _leave(tree, tree.nodes.get(index, 0))
    replica.free_blocks += blocks - before - taken
    cache.num_idle += blocks - found - taken
    cache.num_duplicates += blocks - before - taken
    tree.nodes[index] = node
    shared[index] = blocks


def leave_tree(replica: Replica, index: int, tokens: int) -> None:
    """Let a request that leaves add its first ``tokens`` tokens to the tree, and stop using it.

    All its blocks have already been counted as free; those that others use are taken back.
    """
    cache = replica.cache
    assert cache is not None
    tree, shared = cache.tree, cache.paths.shared_blocks
    assert tree is not None
    blocks = _on_path(cache, index, tokens)
    if blocks:
        cache.num_idle += blocks - _add(cache, tree, index, blocks)
    freed = _leave(tree, tree.nodes.get(index, 0))
    returned = freed - shared[index]
    replica.free_blocks += returned
    cache.num_idle += freed
    cache.num_duplicates += returned
    shared[index] = 0
    if tree.nodes.get(index, 0):
        del tree.nodes[index]


def make_free(replica: Replica, num_blocks: int) -> None:
    """Evict nodes of a replica's tree if a step that takes ``num_blocks`` blocks finds fewer free."""
    cache = replica.cache
    assert cache is not None
    free_blocks = replica.free_blocks - cache.num_idle
    if free_blocks < num_blocks:
        evict_nodes(cache, num_blocks - free_blocks if replica.config.evicts_missing else num_blocks)


def make_free_for_leap(replica: Replica, num_steps: int) -> None:
    """Evict nodes for the decodes of a leap, step by step, before its blocks are taken."""
    cache, progress = replica.cache, replica.progress
    assert cache is not None
    free = replica.free_blocks - cache.num_idle
    most = num_steps * replica.tokens_per_decode // replica.block_size + 2
    if replica.num_decoding * most <= free:
        return
    step = 0
    while step < num_steps and cache.num_idle:
        if progress is not None:
            taken = progress.growth(replica.step, step + 1) - progress.growth(replica.step, step)
        else:
            taken = replica.residues[(replica.step + step) % replica.block_size]
        if free < taken:
            free += evict_nodes(cache, taken - free if replica.config.evicts_missing else taken)
        free -= taken
        step += 1
        if replica.block_size == 1 and progress is None:
            # Every step takes the same number.
            steps = min(free // taken, num_steps - step)
            free -= steps * taken
            step += steps


def evict_nodes(cache: PrefixCache, num_blocks: int) -> int:
    """Evict the least recently used nodes until ``num_blocks`` blocks are gone, or none is idle; return how many."""
    tree = cache.tree
    assert tree is not None
    gone = 0
    while gone < num_blocks and gone < cache.num_idle:
        node = least_recent(tree.idle)
        gone += tree.ends[node] - tree.starts[node]
        del tree.idle[node]
        del tree.children[_key(cache, tree, node)]
        tree.free_nodes.append(node)
    cache.num_idle -= gone
    return gone


def _follow(cache: PrefixCache, tree: RadixTree, index: int, limit: int) -> tuple[int, int, int]:
    """Return how many of a request's first ``limit`` blocks the tree holds, and where it ends.

    Returns:
        The blocks, the last node that holds nothing else, and the next node, which also holds more; 0: none.
    """
    paths, ends = cache.paths, tree.ends
    segments, until = paths.segments, paths.ends
    entry, last = paths.starts[index], paths.starts[index + 1]
    node = found = start = 0
    while found < limit:
        while entry < last and until[entry] <= found:
            start = until[entry]
            entry += 1
        if entry == last:
            break
        child = tree.children.get(segments[entry] << _OFFSET_BITS | found - start, 0)
        if not child:
            break
        other = tree.entries[child]
        end = min(ends[child], limit)
        while found < end and entry < last and segments[entry] == segments[other]:
            found = min(until[entry], until[other], end)
            if until[entry] == found:
                start = found
                entry += 1
            if until[other] == found:
                other += 1
        if found < ends[child]:
            return found, node, child
        node = child
    return found, node, 0


def _on_path(cache: PrefixCache, index: int, tokens: int) -> int:
    """Return how many of the full blocks of a request's first ``tokens`` tokens any request could find."""
    paths = cache.paths
    first, last = paths.starts[index], paths.starts[index + 1]
    if first == last:
        return 0
    return min(tokens // paths.block_size, paths.ends[last - 1])


def _add(cache: PrefixCache, tree: RadixTree, index: int, blocks: int) -> int:
    """Let the tree hold a request's first ``blocks`` blocks; return how many it held before. New ones are idle."""
    paths = cache.paths
    found, node, partial = _follow(cache, tree, index, blocks)
    if partial:
        node = _cut(cache, tree, partial, found)
    if found < blocks:
        entry, start = paths.starts[index], 0
        while paths.ends[entry] <= found:
            start = paths.ends[entry]
            entry += 1
        added = _new_node(tree)
        tree.entries[added], tree.offsets[added] = entry, found - start
        tree.starts[added], tree.ends[added] = found, blocks
        tree.parents[added], tree.users[added] = node, 0
        tree.children[_key(cache, tree, added)] = added
        node = added
    tree.found = node
    _touch(tree, node)
    return found


def _cut(cache: PrefixCache, tree: RadixTree, node: int, position: int) -> int:
    """Cut a node before the block at a position, which has just been used; return the part before the cut."""
    paths = cache.paths
    front = _new_node(tree)
    entry = tree.entries[node]
    tree.entries[front], tree.offsets[front] = entry, tree.offsets[node]
    tree.starts[front], tree.ends[front] = tree.starts[node], position
    tree.parents[front], tree.users[front] = tree.parents[node], tree.users[node]
    tree.children[_key(cache, tree, front)] = front
    start = tree.starts[node] - tree.offsets[node]
    while paths.ends[entry] <= position:
        start = paths.ends[entry]
        entry += 1
    tree.entries[node], tree.offsets[node] = entry, position - start
    tree.starts[node], tree.parents[node] = position, front
    tree.children[_key(cache, tree, node)] = node
    if not tree.users[node]:
        give_up(tree.idle, node)
    return front


def _new_node(tree: RadixTree) -> int:
    if tree.free_nodes:
        return tree.free_nodes.pop()
    for column in (tree.entries, tree.offsets, tree.starts, tree.ends, tree.parents, tree.users):
        column.append(0)
    return len(tree.users) - 1


def _key(cache: PrefixCache, tree: RadixTree, node: int) -> int:
    """Return the key of the first block of a node: its segment, and its position within that."""
    return cache.paths.segments[tree.entries[node]] << _OFFSET_BITS | tree.offsets[node]


def _touch(tree: RadixTree, node: int) -> None:
    """Make a node and its ancestors the most recently used ones."""
    while node:
        if not tree.users[node]:
            give_up(tree.idle, node)
        node = tree.parents[node]


def _idle_until(tree: RadixTree, node: int) -> int:
    """Return the blocks without users of a node and its ancestors."""
    blocks = 0
    while node and not tree.users[node]:
        blocks += tree.ends[node] - tree.starts[node]
        node = tree.parents[node]
    return blocks


def _use(tree: RadixTree, node: int) -> int:
    """Add a user to a node and its ancestors; return the blocks that had none."""
    blocks = 0
    while node:
        if not tree.users[node]:
            blocks += tree.ends[node] - tree.starts[node]
            del tree.idle[node]
        tree.users[node] += 1
        node = tree.parents[node]
    return blocks


def _leave(tree: RadixTree, node: int) -> int:
    """Remove a user from a node and its ancestors; return the blocks that have none any more."""
    blocks = 0
    while node:
        tree.users[node] -= 1
        if not tree.users[node]:
            blocks += tree.ends[node] - tree.starts[node]
            give_up(tree.idle, node)
        node = tree.parents[node]
    return blocks


def looks_at_queue(replica: Replica) -> bool:
    """Return whether SGLang looks at its queue: if a seat is free and the batch is not full, or beside a chunk."""
    if replica.is_ordered or not replica.waiting:
        return False
    if replica.prefilling:
        return True
    num_batch = replica.num_left + len(replica.departing)
    is_full = replica.is_full and (replica.num_decoding > 0 or num_batch > 0)
    return not is_full and replica.num_running + num_batch < replica.max_num_seqs
