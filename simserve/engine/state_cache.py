"""States of linear attention and Mamba in the prefix cache: where they are kept, and the chunks that end there.

A prompt can go on behind a cached prefix only where its states are cached too. vLLM (``mamba_cache_mode: align``) keeps
a layer's state where a chunk of a prompt ends with a full block, so that chunks end there: the last one begins with the
prompt's last block. From 0.29 on it keeps only those behind which another prompt can go on: at the last full block of a
prompt that leaves a token to compute, and where a request has found a longer prefix than its states
(``_mamba_block_aligned_split`` of v1/core/sched/scheduler.py, ``reachable_block_mask`` of
v1/core/single_type_kv_cache_manager.py). Kernels that can write a state amid a chunk spare the last cut.

Where ranks divide the tokens of a block among them (decode context parallelism), chunks end at the blocks of one rank
(``cache_config.block_size``), of which a block of tokens spans several. Requests find prefixes in whole blocks of
tokens; up to 0.28 a state elsewhere is found by nobody, later ones stand for the block before them.

A state takes a block of every group of layers that keep states. Its request holds it until a later chunk has run, and
scheduled ahead, for one more step; then it waits for its turn among the cached blocks. In the step that computes a
state no other request can go on behind it.

Not modelled: up to 0.28, states at the ends of blocks that are decoded.
"""

from __future__ import annotations

from simserve.engine.cache_state import PrefixCache, PrefixPaths
from simserve.engine.idle_blocks import add_stretch, drop_stretch
from simserve.engine.state import Replica, RequestTable
from simserve.engine.windows import window_growth_of_step

_PLACE_BITS = 24
_NOT_YET = 1 << 40
"""Blocks that nobody finds: a state that is being computed."""
_LATE, _PASSED = 2, 4
"""Added to a pin whose state a step under way has passed, and one whose request holds it until it is looked at."""


def to_state(replica: Replica, requests: RequestTable, index: int, remaining: int, chunk: int) -> int:
    """Return a chunk of a prompt that has ``remaining`` tokens left, cut where a state is to be kept."""
    config, cache, wide = replica.config, replica.cache, replica.block_size
    block_size = config.state_block_size if config.state_block_size else wide
    pass_states(replica, index)
    prompt = requests.prompt_tokens[index]
    known = prompt + requests.generated_tokens[index]
    start = known - remaining
    junction = 0
    replica.exported_states = 0
    if cache is not None:
        cache.paths.next_state[index] = 0
        junction = cache.paths.junctions[index] * wide
    # A preempted request computes all but its last token again as a prompt.
    prefill_end = max(prompt, known - 1)
    if start >= prefill_end:
        return chunk
    end = start + chunk
    kept = (prompt - 1) // block_size * block_size
    last = (known if config.keeps_last_state else known - 1) // block_size * block_size
    inside = (prefill_end - 1) // block_size * block_size
    is_exported = config.exports_states and end >= prefill_end and start % block_size == 0
    if is_exported and start + block_size <= inside and -(-end // block_size) - 2 > (start - 1) // block_size:
        replica.exported_states = 1
        last = 0
    if end < prefill_end:
        aligned = end // block_size * block_size
        if aligned > start or block_size <= config.max_chunk_tokens:
            end = aligned
    stop = end
    boundary = (start // block_size + 1) * block_size
    if start % block_size and boundary < stop:
        stop = boundary
    if start < last < stop:
        stop = last
    if start < junction < end and start < start + (junction - start) // block_size * block_size < stop:
        stop = start + (junction - start) // block_size * block_size
    place = stop
    if replica.exported_states:
        # A chunk that ends before writes nothing amid it.
        replica.exported_states, place = int(stop == end), inside if stop == end else stop
    is_kept = place % wide == 0 if config.keeps_every_state else place in (kept, junction)
    if cache is not None and is_kept:
        cache.paths.next_state[index] = place // wide
    return stop - start


def keep_state(cache: PrefixCache, index: int) -> None:
    """Keep the state of a request at the place that `to_state` noted."""
    paths = cache.paths
    place = paths.next_state[index]
    paths.next_state[index] = 0
    key = _key(paths, index, place)
    if key < 0:
        return
    state = cache.states.get(key, 0)
    if not state:
        if cache.free_states:
            state = cache.free_states.pop()
        else:
            state = len(cache.state_keys)
            for column in (cache.state_keys, cache.state_users, cache.state_stretch, cache.state_charged):
                column.append(0)
        cache.states[key] = state
        cache.state_keys[state] = key
        cache.state_users[state], cache.state_charged[state] = 1, 0
        cache.pins.extend((index, state, place, 1))
    if state not in cache.fresh_states:
        cache.fresh_states.append(state)


def _key(paths: PrefixPaths, index: int, place: int) -> int:
    """Return the key of the state behind the first ``place`` blocks of a request; -1: nobody could find it."""
    for entry in range(paths.starts[index], paths.starts[index + 1]):
        if paths.ends[entry] >= place:
            return paths.segments[entry] << _PLACE_BITS | place
    return -1


def find_state(cache: PrefixCache, index: int, found: int) -> tuple[int, int]:
    """Return how many of the ``found`` blocks of a request lie before its last cached state, as `find_prefix` does.

    Notes where the request will keep a state if it finds more blocks than states.
    """
    paths = cache.paths
    first, place, state = paths.starts[index], found, 0
    entry = first
    while entry + 1 < paths.starts[index + 1] and paths.ends[entry] < found:
        entry += 1
    while place > 0:
        while entry > first and paths.ends[entry - 1] >= place:
            entry -= 1
        state = cache.states.get(paths.segments[entry] << _PLACE_BITS | place, 0)
        if state:
            break
        place -= 1
    paths.junctions[index] = found if found > place else 0
    if not place:
        return 0, 0
    if state in cache.fresh_states:
        return place, _NOT_YET
    idle = 0 if cache.state_users[state] else cache.state_weight
    start = 0
    for entry in range(first, paths.starts[index + 1]):
        if start >= place:
            break
        end = min(paths.ends[entry], place)
        idle += max(end - start - cache.used[cache.slots.get(paths.segments[entry], 0)], 0)
        start = end
    return place, idle


def pin_state(cache: PrefixCache, index: int, blocks: int) -> int:
    """Let a request use the state that `find_state` has found; return its blocks if they have waited for their turn."""
    state = cache.states.get(_key(cache.paths, index, blocks), 0)
    is_idle = cache.state_users[state] == 0
    cache.state_users[state] += 1
    cache.pins.extend((index, state, blocks, 0))
    if not is_idle:
        return 0
    drop_stretch(cache, cache.state_stretch[state])
    cache.num_idle -= cache.state_weight
    cache.state_charged[state] = 1
    return cache.state_weight


def begin_states(replica: Replica, requests: RequestTable) -> None:
    """Let states of the last step be found, and note those that their requests have passed: a step is scheduled."""
    cache, replica.peak_states = replica.cache, 0
    if cache is None:
        return
    cache.fresh_states.clear()
    pins = cache.pins
    for position in range(0, len(pins), 4):
        index, place = pins[position], pins[position + 2] * replica.block_size
        computed, end = (
            requests.computed_tokens[index],
            requests.prompt_tokens[index] + requests.generated_tokens[index],
        )
        if index in replica.departing:
            end = replica.departing_tokens[replica.departing.index(index)]
        if computed > place or not computed:
            # A step that is under way has passed it, if the next one is scheduled ahead.
            is_last = pins[position + 3] >= _LATE or not replica.config.async_scheduling
            pins[position + 3] = pins[position + 3] % _LATE + (_PASSED if is_last else _LATE)
            if place < end:
                # Behind the whole prompt it is its request's only one, or its second (`windows.second_states`).
                _charge(replica, cache, pins[position + 1])
    if replica.num_running == 1:
        # One that is alone gives back first, and then asks what it finds (``allocate_slots``).
        pass_states(replica)


def pass_states(replica: Replica, index: int = -1) -> int:
    """Let a request that the step being planned looks at, or -1: all, hold the states no more that it has passed.

    Returns the blocks that become free.
    """
    cache, before = replica.cache, replica.free_blocks
    if cache is None:
        return 0
    _let_go(replica, cache, index, _PASSED)
    return replica.free_blocks - before


def frees_states(replica: Replica) -> bool:
    """Return whether states become free in the steps after the one being planned."""
    is_pinned = replica.cache is not None and len(replica.cache.pins) > 0
    return is_pinned or (len(replica.waiting) > 0 and window_growth_of_step(replica) > 0)


def let_go_of_states(replica: Replica, cache: PrefixCache, index: int) -> None:
    """Let a request that leaves hold no state."""
    _let_go(replica, cache, index, 0)


def _let_go(replica: Replica, cache: PrefixCache, index: int, least_kind: int) -> None:
    """Let a request, or -1: all, hold no state of that kind or above."""
    pins, kept = cache.pins, 0
    for position in range(0, len(pins), 4):
        user, state, place, kind = pins[position], pins[position + 1], pins[position + 2], pins[position + 3]
        if kind >= least_kind and (index < 0 or user == index):
            _release(replica, cache, state, kind % _LATE)
        else:
            pins[kept], pins[kept + 1], pins[kept + 2], pins[kept + 3] = user, state, place, kind
            kept += 4
    while len(pins) > kept:
        pins.pop()


def _charge(replica: Replica, cache: PrefixCache, state: int) -> None:
    """Count the blocks of a state as taken, besides those of requests."""
    if not cache.state_charged[state]:
        cache.state_charged[state] = 1
        replica.free_blocks -= cache.state_weight


def _release(replica: Replica, cache: PrefixCache, state: int, is_own: int) -> None:
    """Let one request fewer use a state; ``is_own``: the one that has computed it."""
    cache.state_users[state] -= 1
    if cache.state_users[state]:
        if is_own:
            _charge(replica, cache, state)
        return
    if cache.state_charged[state]:
        cache.state_charged[state] = 0
        replica.free_blocks += cache.state_weight
    cache.num_idle += cache.state_weight
    cache.state_stretch[state] = add_stretch(cache, -state, cache.state_weight)


def drop_state(cache: PrefixCache, stretch: int) -> None:
    """Let nobody find a state that is evicted: its blocks wait for their turn with nothing to share."""
    state = -cache.stretch_slot[stretch]
    del cache.states[cache.state_keys[state]]
    cache.free_states.append(state)
    cache.stretch_slot[stretch] = 0
    cache.num_idle -= cache.state_weight
    cache.num_empty += cache.state_weight


def hand_over_copies(replica: Replica, cache: PrefixCache, index: int) -> int:
    """Let copies that others have computed stand in for blocks that only a request that leaves holds; return how many.

    vLLM finds any copy of a block. The others are counted as users of those blocks, in addition to their copies.
    """
    paths, num_handed = cache.paths, 0
    if index in cache.copiers:
        cache.copiers.remove(index)
    for position in range(len(cache.copiers) - 1, -1, -1):
        other = cache.copiers[position]
        first = paths.first_copied[other]
        end = first + paths.copied_blocks[other]
        kept = first
        reach = min(end, _common_blocks(cache, index, other), paths.shared_blocks[index])
        for seat in range(len(replica.running)):
            each = replica.running[seat]
            if each != other and each != index and paths.shared_blocks[each] > first:
                held = min(paths.shared_blocks[each], _common_blocks(cache, each, other))
                if paths.copied_blocks[each] and paths.first_copied[each] < held:
                    held = paths.first_copied[each]
                kept = max(kept, held)
        count = max(reach - kept, 0)
        paths.copied_blocks[other] -= count
        num_handed += count
        if not paths.copied_blocks[other]:
            cache.copiers.pop(position)
    return num_handed


def _common_blocks(cache: PrefixCache, one: int, other: int) -> int:
    """Return how many blocks two requests have in common from their beginning."""
    paths = cache.paths
    first, second, common = paths.starts[one], paths.starts[other], 0
    while first < paths.starts[one + 1] and second < paths.starts[other + 1]:
        if paths.segments[first] != paths.segments[second]:
            break
        common = min(paths.ends[first], paths.ends[second])
        first, second = first + 1, second + 1
    return common
