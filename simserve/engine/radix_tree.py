"""RadixTree: SGLang's prefix cache, whose nodes are blocks that requests have had in common so far.

A step's blocks join the tree when the step has ended, and its copies of what the tree already holds are then free.
Requests that are computed together therefore share nothing that only they have. A node is cut if a look-up, or what
joins the tree, ends within it. Unused nodes are evicted whole, the least recently used first, once a step finds fewer
free blocks than it takes: as many as it takes, however few are missing (``mem_cache/radix_cache.py`` and
``mem_cache/common.py`` of 0.5.9), or as many as are missing (``evict_to_free_tokens`` of 0.5.23).

Models with states of linear attention or Mamba go on only from a node whose state is kept (`EngineConfig.tree_states`;
``mamba_radix_cache.py`` of 0.5.9, ``unified_cache/components/mamba.py`` of 0.5.23). Without a grid, chunks and answers
join the tree whole, with the state at their end. With one, a chunk joins it up to the last place on the grid, counted
from its own beginning, or up to where the request has found more blocks than states, if it passes that; an answer up to
the last multiple of the interval. A request has states of its own while it runs; where none is free, the state that was
found or kept least recently goes, and with a leaf its blocks. What is then a leaf without a state goes, too, or stays.
A look-up that ends within a node uses its two halves, and the nodes up to the last state; who leaves uses nothing more.
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
    if tree.num_states:
        node = _last_with_state(tree, node)
        return tree.ends[node], _idle_until(tree, node)
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
    if tree.num_states:
        node = _find_state(cache, tree, found, node)
        found = tree.ends[node]
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
            if tree.num_states:
                node = _find_state(cache, tree, found, node)
            _touch(tree, node)
    tree.num_looks += 1


def use_found(replica: Replica, index: int, blocks: int) -> None:
    """Let a request that is admitted use what `look_up` has just found, and take states of its own."""
    cache = replica.cache
    assert cache is not None
    tree = cache.tree
    assert tree is not None
    node = tree.found if blocks else 0
    taken = _use(tree, node)
    if tree.num_states:
        tree.begun[index] = blocks * cache.paths.block_size
        if tree.junction:
            tree.junctions[index] = tree.junction
        for _ in range(replica.config.seat_states):
            _take_state(cache, tree)
    cache.num_idle -= taken
    cache.num_duplicates += blocks - taken
    cache.paths.shared_blocks[index] = blocks
    if node:
        tree.nodes[index] = node


def cache_computed(replica: Replica, index: int, tokens: int, is_whole: bool) -> None:
    """Let the tree hold a running request's first ``tokens`` tokens, and the request use them: its copies are free.

    Args:
        is_whole: Whether its prompt has been computed, and it decodes.
    """
    cache = replica.cache
    assert cache is not None
    tree, shared = cache.tree, cache.paths.shared_blocks
    assert tree is not None
    if tree.num_states:
        end = tokens
        tokens = _track(tree, index, end)
        if is_whole:
            tree.answering[index] = end
    blocks, before = _on_path(cache, index, tokens), shared[index]
    if blocks <= before:
        return
    if tree.num_states:
        _take_state(cache, tree)
    found = _add(cache, tree, index, blocks)
    node = tree.found
    if tree.num_states:
        _keep_state(tree, node)
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
    if tree.num_states:
        tokens = _leave_states(replica, tree, index, tokens)
    blocks = _on_path(cache, index, tokens)
    if blocks:
        cache.num_idle += blocks - _add(cache, tree, index, blocks)
        if tree.num_states:
            tree.num_free_states -= 1
            _keep_state(tree, tree.found)
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
        node = _least_recent_leaf(tree) if tree.num_states else least_recent(tree.idle)
        gone += _remove(cache, tree, node)
    cache.num_idle -= gone
    return gone


def _least_recent_leaf(tree: RadixTree) -> int:
    """Return the leaf without users that was used least recently: a look-up passes over nodes behind the last state."""
    oldest = 0
    for node in range(1, len(tree.users)):
        is_idle = tree.ends[node] > 0 and not (tree.users[node] or tree.num_children[node])
        if is_idle and (not oldest or tree.times[node] < tree.times[oldest]):
            oldest = node
    return oldest


def _remove(cache: PrefixCache, tree: RadixTree, node: int) -> int:
    """Remove a node without users; return the blocks that have gone. What is then a leaf without a state may go."""
    gone = 0
    while True:
        gone += tree.ends[node] - tree.starts[node]
        del tree.idle[node]
        del tree.children[_key(cache, tree, node)]
        tree.free_nodes.append(node)
        tree.ends[node] = 0
        if not tree.num_states:
            return gone
        if tree.states[node]:
            _drop_state(tree, node)
        node = tree.parents[node]
        tree.num_children[node] -= 1
        if not node or tree.keeps_bare_leaves or tree.num_children[node] or tree.states[node] or tree.users[node]:
            return gone


def _last_with_state(tree: RadixTree, node: int) -> int:
    """Return a node or the last one before it that has a state; 0: none has."""
    while node and not tree.states[node]:
        node = tree.parents[node]
    return node


def _find_state(cache: PrefixCache, tree: RadixTree, found: int, node: int) -> int:
    """Return the node from which a request goes on that has found so many blocks; note where it would leave a state."""
    tokens = found * cache.paths.block_size
    node = _last_with_state(tree, node)
    if tree.state_grid:
        tokens = tokens // tree.state_grid * tree.state_grid
        tree.junction = tokens if tokens > tree.ends[node] * cache.paths.block_size else 0
    if node:
        tree.clock += 1
        tree.state_times[node] = tree.clock
    return node


def _track(tree: RadixTree, index: int, tokens: int) -> int:
    """Return the tokens of a prompt before the state that its chunk leaves, which ends at ``tokens``; 0: none."""
    begun, grid = tree.begun.get(index, 0), tree.state_grid
    tree.begun[index] = tokens
    if not grid:
        return tokens
    place = begun + (tokens - begun) // grid * grid
    junction = tree.junctions.get(index, 0)
    if begun < junction <= place and not (junction - begun) % grid:
        place = junction
    return place if place > begun else 0


def _leave_states(replica: Replica, tree: RadixTree, index: int, tokens: int) -> int:
    """Free the states of a request that leaves; return its tokens before the last one, which the tree is to keep."""
    config, prompt = replica.config, tree.answering.get(index, 0)
    tree.num_free_states += config.seat_states
    place = tokens
    if tokens and tree.state_grid and prompt:
        place = tokens // config.state_interval * config.state_interval
        place = place if place > prompt else 0
    elif tokens:
        place = _track(tree, index, tokens)
    if prompt:
        del tree.answering[index]
    if tree.begun.get(index, -1) >= 0:
        del tree.begun[index]
    if tree.junctions.get(index, 0):
        del tree.junctions[index]
    return place


def _take_state(cache: PrefixCache, tree: RadixTree) -> None:
    """Take a free state; if there is none, that of the node without users that was found or kept least recently."""
    if tree.num_free_states <= 0:
        oldest = 0
        for position in range(len(tree.stateful)):
            node = tree.stateful[position]
            if not tree.state_users[node] and (not oldest or tree.state_times[node] < tree.state_times[oldest]):
                oldest = node
        if oldest and not (tree.users[oldest] or tree.num_children[oldest]):
            cache.num_idle -= _remove(cache, tree, oldest)
        elif oldest:
            _drop_state(tree, oldest)
    tree.num_free_states -= 1


def _keep_state(tree: RadixTree, node: int) -> None:
    """Let a node have the state that was taken for it; if it has one, that is free again."""
    if tree.states[node]:
        tree.num_free_states += 1
    else:
        tree.states[node] = 1
        tree.stateful.append(node)
    tree.clock += 1
    tree.state_times[node] = tree.clock


def _drop_state(tree: RadixTree, node: int) -> None:
    tree.states[node] = 0
    tree.num_free_states += 1
    for position in range(len(tree.stateful)):
        if tree.stateful[position] == node:
            tree.stateful.pop(position)
            break


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
        tree.num_children[added], tree.states[added], tree.state_users[added] = 0, 0, 0
        tree.num_children[node] += 1
        node = added
    tree.found = node
    _touch(tree, node)
    return found


def _cut(cache: PrefixCache, tree: RadixTree, node: int, position: int) -> int:
    """Cut a node before the block at a position; both parts have just been used. Return the one before the cut."""
    paths = cache.paths
    front = _new_node(tree)
    entry = tree.entries[node]
    tree.entries[front], tree.offsets[front] = entry, tree.offsets[node]
    tree.starts[front], tree.ends[front] = tree.starts[node], position
    tree.parents[front], tree.users[front] = tree.parents[node], tree.users[node]
    tree.children[_key(cache, tree, front)] = front
    tree.num_children[front], tree.states[front], tree.state_users[front] = 1, 0, 0
    start = tree.starts[node] - tree.offsets[node]
    while paths.ends[entry] <= position:
        start = paths.ends[entry]
        entry += 1
    tree.entries[node], tree.offsets[node] = entry, position - start
    tree.starts[node], tree.parents[node] = position, front
    tree.children[_key(cache, tree, node)] = node
    tree.clock += 1
    tree.times[front] = tree.times[node] = tree.clock
    if not tree.users[node]:
        give_up(tree.idle, front)
        give_up(tree.idle, node)
    return front


def _new_node(tree: RadixTree) -> int:
    if tree.free_nodes:
        return tree.free_nodes.pop()
    for column in (tree.entries, tree.offsets, tree.starts, tree.ends, tree.parents, tree.users):
        column.append(0)
    for column in (tree.states, tree.state_users, tree.state_times, tree.num_children, tree.times):
        column.append(0)
    return len(tree.users) - 1


def _key(cache: PrefixCache, tree: RadixTree, node: int) -> int:
    """Return the key of the first block of a node: its segment, and its position within that."""
    return cache.paths.segments[tree.entries[node]] << _OFFSET_BITS | tree.offsets[node]


def _touch(tree: RadixTree, node: int) -> None:
    """Make a node and its ancestors the most recently used ones."""
    tree.clock += 1
    while node:
        tree.times[node] = tree.clock
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
    tree.state_users[node] += 1
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
    tree.state_users[node] -= 1
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
