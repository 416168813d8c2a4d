"""Prefix caching: KV blocks of a prefix that several requests share are computed once and kept while there is room.

The tokens of a request are given as a path of *segments* (`PrefixPaths`): equal segment numbers mean equal tokens, from
the first one on. Full blocks are shared; they are counted, never objects. vLLM's rules: a block is cached as soon as
the step that computes it is scheduled, a request looks for its prefix when it is admitted, the last token is always
computed, and unused blocks stay until their memory is needed. Then the least recently used segment is evicted from its
end (SGLang orders nodes of a radix tree; segments are such nodes), or block by block (vLLM). Blocks that hold nothing
to share are taken before any of those, or wait for their turn among them (`EngineConfig.ages_empty_blocks`).

The tiers behind the cache (`simserve.engine.kv_tier`) are searched, too. If a tier leaves the choice, a request loads
as much of what it finds as brings its first token soonest: the time to load, latency included, against the time to
compute those tokens at the pace of a full chunk.

Prompts with a common prefix, where a request waits while another computes it: TensorRT-LLM's rule.

A full block is in its cache once the whole prompt that it belongs to is computed (``storeContextBlocks``), not while
chunks of it run; scheduled ahead, one step later, since results are processed after the next step is scheduled. So that
two prompts do not compute the same at once, a request is passed over if the first block that it lacks in the cache is
also the first that a running prompt lacks, or one that the step admits: the requests after it are tried, and it keeps
its place (``beneficialToSkip`` in its ``capacityScheduler.cpp``, ``_beneficial_to_skip`` in its ``scheduler.py``). Its
PyTorch runtime cached nothing before a request had ended, until pull request 6683: identical prompts then ran one by
one, whole.
"""

from __future__ import annotations

from simserve.engine.cache_state import KVTier, PrefixCache
from simserve.engine.idle_blocks import add_deepest_stretch, add_stretch, drop_stretch, forget_behind, take_idle
from simserve.engine.kv_tier import drop_from_tiers, give_up, keep_in_store, keep_in_tiers, least_recent, take_from_tier
from simserve.engine.radix_tree import evict_nodes, find_in_tree, leave_tree
from simserve.engine.state import Replica, RequestTable
from simserve.engine.state_cache import find_state, keep_blocks, leave_pool


def cached_tokens(replica: Replica, requests: RequestTable, index: int) -> int:
    """Return how many tokens of a request's prompt are in the cache of a replica now, for a router.

    What the running leap evicts is seen at its end.
    """
    if replica.cache is None:
        return 0
    tokens = requests.prompt_tokens[index] + requests.generated_tokens[index]
    return find_prefix(replica.cache, index, tokens)[0] * replica.block_size


def find_prefix(cache: PrefixCache, index: int, tokens: int) -> tuple[int, int]:
    """Look up a request that has ``tokens`` to compute, the last of which is always computed.

    Returns:
        The blocks that it would find, and how many of them would no longer count as free if it used them: idle ones,
        and those that it would load into free ones.
    """
    if cache.has_tiers:
        return _find_in_tiers(cache, index, tokens)
    if cache.tree is not None:
        return find_in_tree(cache, index, tokens)
    if cache.has_states:
        return find_state(cache, index, tokens)
    paths = cache.paths
    limit = (tokens - 1) // paths.block_size
    slots, held, used, ends, segments = cache.slots, cache.held, cache.used, paths.ends, paths.segments
    found = idle = 0
    for entry in range(paths.starts[index], paths.starts[index + 1]):
        slot = slots.get(segments[entry], 0)
        blocks = held[slot]
        size = ends[entry] - found
        is_whole = blocks >= size
        if is_whole:
            blocks = size
        if blocks > limit - found:
            blocks = limit - found
        if not blocks:
            break
        in_use = used[slot]
        if blocks > in_use:
            idle += blocks - in_use
        found += blocks
        if not is_whole:
            break
    return found, idle


def first_missing(cache: PrefixCache, index: int, tokens: int) -> tuple[int, int]:
    """Return the first full block of a request's first ``tokens`` tokens that others could share and the cache lacks.

    Returns:
        Its segment, and its place from the beginning of the request; segment -1: there is none.
    """
    paths = cache.paths
    limit = tokens // paths.block_size
    found = 0
    for entry in range(paths.starts[index], paths.starts[index + 1]):
        segment, end = paths.segments[entry], paths.ends[entry]
        if end > limit:
            end = limit
        missing = found + cache.held[cache.slots.get(segment, 0)]
        if missing < end:
            return segment, missing
        if end == limit:
            break
        found = end
    return -1, 0


def _find_in_tiers(cache: PrefixCache, index: int, tokens: int) -> tuple[int, int]:
    """Like `find_prefix`, through the tiers behind the cache, up to where going on would gain nothing."""
    paths, tiers, num_tiers, store = cache.paths, cache.tiers, cache.num_tiers, cache.paths.store
    limit = (tokens - 1) // paths.block_size
    slots, held, used, ends, segments = cache.slots, cache.held, cache.used, paths.ends, paths.segments
    has_choice = cache.has_choice
    promised = 0
    if store is not None:
        promised = paths.promised_blocks[index]
    found = idle = taken = taken_idle = asked = 0
    gain = most = 0.0
    for entry in range(paths.starts[index], paths.starts[index + 1]):
        segment, missing = segments[entry], min(ends[entry], limit) - found
        slot = slots.get(segment, 0)
        for level in range(-1, num_tiers + 1):
            seconds = 0.0
            if level < 0:
                blocks = min(held[slot], missing)
                idle += max(blocks - used[slot], 0)
            elif level < num_tiers:
                tier = tiers[level]
                blocks = min(tier.held[tier.slots.get(segment, 0)], missing)
                idle += blocks
                if has_choice and blocks:
                    seconds = _loading_seconds(tier, blocks, asked >> level & 1)
            else:
                blocks = min(max(promised - found, 0), missing)
                idle += blocks
                if has_choice and blocks and store is not None:
                    seconds = _loading_seconds(store, blocks, asked >> level & 1)
            if not blocks:
                continue
            if has_choice:
                gain += _computing_seconds(cache, found, blocks) - seconds
                if level >= 0:
                    asked |= 1 << level
            found += blocks
            missing -= blocks
            if gain >= most:
                taken, taken_idle, most = found, idle, gain
        if missing or found == limit:
            break
    return taken, taken_idle


def _loading_seconds(tier: KVTier, blocks: int, is_asked: int) -> float:
    """Return the time to load blocks for a request that has the choice; the first from a tier waits for its latency."""
    if not tier.has_choice:
        return 0.0
    seconds = blocks * tier.block_seconds
    if not is_asked:
        seconds += tier.latency
    return seconds


def _computing_seconds(cache: PrefixCache, position: int, blocks: int) -> float:
    """Return the time to compute blocks after the first ``position`` of a prompt, at the pace of a full chunk."""
    block_size = cache.paths.block_size
    tokens = blocks * block_size
    pairs = tokens * (position * block_size) + tokens * (tokens + 1) * 0.5
    return tokens * cache.token_seconds + pairs * cache.pair_seconds


def use_prefix(cache: PrefixCache, index: int, blocks: int, idle: int) -> None:
    """Let a request that is admitted use what `find_prefix` found, at least one block."""
    paths, slots = cache.paths, cache.slots
    segments, ends = paths.segments, paths.ends
    entry = paths.starts[index]
    start = 0
    while start < blocks:
        end = ends[entry]
        reach = (end if end < blocks else blocks) - start
        _use(cache, slots.get(segments[entry], 0), reach)
        start += reach
        entry += 1
    cache.num_idle -= idle
    cache.num_duplicates += blocks - idle
    paths.pinned_until[index] = entry
    paths.shared_blocks[index] = blocks


def _use(cache: PrefixCache, slot: int, reach: int) -> None:
    """Record that one request more uses the first ``reach`` blocks of a segment."""
    used, users = cache.used, cache.users
    in_use = used[slot]
    if reach == in_use:
        users[slot] += 1
    elif reach < in_use:
        add_reach(cache, slot, reach, 1)
    else:
        if in_use:
            add_reach(cache, slot, in_use, users[slot])
        used[slot] = reach
        users[slot] = 1
        take_idle(cache, slot, reach)


def cache_blocks(cache: PrefixCache, index: int, tokens: int) -> None:
    """Cache the full blocks of the first ``tokens`` tokens of a request, up to one that the cache has from another.

    vLLM keeps every copy of a block: once the one that is found here is gone, the request's own takes its place.
    """
    paths = cache.paths
    blocks = tokens // paths.block_size
    if cache.has_states:
        keep_blocks(cache, index, tokens)
        return
    shared = paths.shared_blocks[index]
    if shared >= blocks:
        return
    paths.is_private[index] = 0
    first, until = paths.starts[index], paths.pinned_until[index]
    slots, held, users, ends, segments = cache.slots, cache.held, cache.users, paths.ends, paths.segments
    while shared < blocks:
        if until == first or ends[until - 1] <= shared:
            if until == paths.starts[index + 1]:
                break
            start = shared
            slot = slots.get(segments[until], 0)
            if slot:
                paths.is_private[index] = 1
                break
            slot = new_slot(cache, segments[until])
            until += 1
        else:
            slot = slots.get(segments[until - 1], 0)
            start = ends[until - 2] if until - 1 > first else 0
            reach = shared - start
            if held[slot] != reach:
                paths.is_private[index] = 1
                break
            if users[slot] > 1:
                # Other users stay behind with fewer blocks than this request.
                add_reach(cache, slot, reach, users[slot] - 1)
        end = ends[until - 1]
        before = shared
        shared = end if end < blocks else blocks
        held[slot] = cache.used[slot] = shared - start
        if cache.num_tiers:
            drop_from_tiers(cache, segments[until - 1], shared - before)
        users[slot] = 1
    paths.pinned_until[index] = until
    paths.shared_blocks[index] = shared


def leave_prefix(replica: Replica, index: int, tokens: int, blocks: int) -> None:
    """Let a request that has computed ``tokens`` and leaves the replica cache its blocks and release them.

    All its ``blocks`` have already been counted as free; those that others use are taken back.
    """
    cache = replica.cache
    if cache is None:
        return
    if cache.tree is not None:
        leave_tree(replica, index, tokens)
        return
    if cache.has_states:
        # A state that is still noted would have come from a chunk that is not computed.
        cache.paths.next_state[index] = 0
        if not cache.leaves_results:
            keep_blocks(cache, index, tokens)
        leave_pool(replica, index)
        return
    if cache.num_decoders or cache.contested:
        forget_decoder(cache, index)
    if replica.late_prefixes and index in replica.late_prefixes:
        position = replica.late_prefixes.index(index)
        replica.late_prefixes.pop(position)
        replica.late_prefix_tokens.pop(position)
    num_given_up = store_behind_copies(replica, index, tokens, blocks) if replica.has_prefix_waits else 0
    cache_blocks(cache, index, tokens)
    if cache.num_decoders:
        note_contests(cache, index)
    store = cache.paths.store
    if store is not None:
        keep_in_store(store, cache, index, tokens)
    if cache.evicts_by_block:
        # Full blocks that another request cached first wait for their turn too. The request's end is given up first.
        waiting = (blocks if cache.ages_empty else tokens // cache.paths.block_size) - cache.paths.shared_blocks[index]
        waiting -= num_given_up
        if waiting > 0:
            cache.num_empty += waiting
            add_stretch(cache, 0, waiting)
    paths, slots, used, users = cache.paths, cache.slots, cache.used, cache.users
    num_others = cache.num_others
    segments, ends = paths.segments, paths.ends
    first, shared = paths.starts[index], paths.shared_blocks[index]
    end = shared
    freed = 0
    for entry in range(paths.pinned_until[index] - 1, first - 1, -1):
        slot = slots.get(segments[entry], 0)
        start = ends[entry - 1] if entry > first else 0
        in_use = used[slot]
        if end - start < in_use:
            remove_reach(cache, slot, end - start)
        elif users[slot] > 1:
            users[slot] -= 1
        else:
            freed += in_use
            most = count = 0
            if num_others[slot]:
                # The requests that use most of what is left come after this one.
                most, count = take_longest_reach(cache, slot)
                freed -= most
            used[slot], users[slot] = most, count
        end = start
        _give_up_blocks(cache, slot, in_use)
    returned = freed - shared
    replica.free_blocks += returned
    cache.num_idle += freed
    cache.num_duplicates += returned
    paths.pinned_until[index] = first
    paths.shared_blocks[index] = 0
    paths.is_private[index] = 0


def store_behind_copies(replica: Replica, index: int, tokens: int, blocks: int) -> int:
    """Cache what a request that leaves has computed behind copies of blocks that the cache has from others.

    Those keep the place at which they wait, so that they may be evicted before what follows them (``storeBlocks``).

    Args:
        replica: The replica.
        index: The request.
        tokens: What it has computed.
        blocks: The blocks that it has taken.

    Returns:
        How many blocks it has given up so: those stored, and before them what is not a full block.
    """
    cache = replica.cache
    if cache is None:
        return 0
    paths, segments, ends = cache.paths, cache.paths.segments, cache.paths.ends
    first, last = paths.starts[index], paths.starts[index + 1]
    until = tokens // paths.block_size
    found = end = find_prefix(cache, index, tokens + 1)[0]
    if found <= paths.shared_blocks[index] or found >= until:
        return 0
    for entry in range(first, last):
        start = ends[entry - 1] if entry > first else 0
        if ends[entry] <= found or start >= until:
            continue
        slot = cache.slots.get(segments[entry], 0)
        if slot and start > found:
            # It has outlasted what came before it.
            break
        if not slot:
            slot = new_slot(cache, segments[entry])
        end = min(ends[entry], until)
        cache.held[slot] = end - start
    num_given_up = end - found
    cache.num_idle += num_given_up
    if cache.ages_empty and blocks > end:
        cache.num_empty += blocks - end
        add_stretch(cache, 0, blocks - end)
        num_given_up += blocks - end
    # The last one first.
    for entry in range(last - 1, first - 1, -1):
        start = ends[entry - 1] if entry > first else 0
        if start < end and ends[entry] > found:
            add_deepest_stretch(cache, cache.slots.get(segments[entry], 0), max(found - start, 0))
    return num_given_up


def new_slot(cache: PrefixCache, segment: int) -> int:
    """Give a segment a slot, and return the slot."""
    if cache.free_slots:
        slot = cache.free_slots.pop()
        cache.segments[slot] = segment
    else:
        slot = len(cache.held)
        cache.segments.append(segment)
        for column in (cache.held, cache.used, cache.users, cache.num_others, cache.shallowest):
            column.append(0)
    cache.slots[segment] = slot
    return slot


def add_reach(cache: PrefixCache, slot: int, reach: int, count: int) -> None:
    """Record that ``count`` requests use ``reach`` blocks of a segment, fewer than others do."""
    cache.num_others[slot] += count
    cache.reaches.setdefault(slot, []).extend([reach] * count)


def remove_reach(cache: PrefixCache, slot: int, reach: int) -> None:
    """Remove one of those requests."""
    cache.num_others[slot] -= 1
    cache.reaches[slot].remove(reach)


def take_longest_reach(cache: PrefixCache, slot: int) -> tuple[int, int]:
    """Return the most blocks that such requests use, of which there are some, and how many use them; remove those."""
    reaches = cache.reaches[slot]
    most = max(reaches)
    count = reaches.count(most)
    reaches[:] = [each for each in reaches if each != most]
    cache.num_others[slot] -= count
    return most, count


def evict(cache: PrefixCache, free_blocks: int) -> None:
    """Evict what was given up least recently until no more idle blocks are kept than there are free ones."""
    if cache.tree is not None:
        evict_nodes(cache, cache.num_idle - free_blocks)
    if cache.tree is not None or cache.has_states:
        return
    excess = cache.num_idle + cache.num_empty + cache.num_fresh - free_blocks
    if excess > 0 and cache.num_fresh:
        fresh = min(cache.num_fresh, excess)
        cache.num_fresh -= fresh
        excess -= fresh
    while excess > 0:
        stretch = least_recent(cache.idle)
        slot, start = cache.stretch_slot[stretch], cache.stretch_start[stretch]
        if not slot:
            taken = min(start, excess)
            cache.stretch_start[stretch] = start - taken
            cache.num_empty -= taken
            if taken == start:
                drop_stretch(cache, stretch)
            excess -= taken
            continue
        if cache.below[stretch]:
            forget_behind(cache, stretch)
        taken = min(cache.held[slot] - start, excess)
        if cache.num_tiers:
            keep_in_tiers(cache, cache.segments[slot], taken)
        cache.held[slot] -= taken
        cache.num_idle -= taken
        excess -= taken
        if cache.held[slot] == start:
            drop_stretch(cache, stretch)
            if not start:
                del cache.slots[cache.segments[slot]]
                cache.free_slots.append(slot)


def _give_up_blocks(cache: PrefixCache, slot: int, used_before: int) -> None:
    """Put the blocks of a segment that have no users any more after all that were given up before."""
    in_use, stretch = cache.used[slot], cache.shallowest[slot]
    if cache.evicts_by_block:
        if in_use < used_before:
            add_stretch(cache, slot, in_use)
    elif stretch:
        cache.stretch_start[stretch] = in_use
        give_up(cache.idle, stretch)
    elif cache.held[slot] > in_use:
        add_stretch(cache, slot, in_use)


def note_decoder(cache: PrefixCache, index: int) -> None:
    """Record that a request decodes, if others have tokens that it is going to decode."""
    if cache.has_states:
        return
    paths = cache.paths
    first, until = paths.starts[index], paths.starts[index + 1]
    for entry in range(max(paths.pinned_until[index] - 1, first), until):
        segment = paths.segments[entry]
        if paths.is_shared[entry]:
            other = cache.decoders.get(segment, 0)
            if not other:
                cache.decoders[segment] = index + 1
                cache.num_decoders += 1
            elif other != index + 1:
                _contest(cache, other - 1)
                _contest(cache, index)
    if not paths.is_private[index] and _is_contested(cache, index):
        _contest(cache, index)


def forget_decoder(cache: PrefixCache, index: int) -> None:
    """Record that a request no longer decodes."""
    paths = cache.paths
    for entry in range(paths.starts[index], paths.starts[index + 1]):
        segment = paths.segments[entry]
        if paths.is_shared[entry] and cache.decoders.get(segment, 0) == index + 1:
            del cache.decoders[segment]
            cache.num_decoders -= 1
    if index in cache.contested:
        cache.contested.remove(index)


def note_contests(cache: PrefixCache, index: int) -> None:
    """Record which requests decode what the cache holds more of, now that a request has cached blocks."""
    paths = cache.paths
    for entry in range(paths.starts[index], paths.starts[index + 1]):
        if not paths.is_shared[entry]:
            continue
        other = cache.decoders.get(paths.segments[entry], 0)
        if other and other != index + 1 and not paths.is_private[other - 1] and _is_contested(cache, other - 1):
            _contest(cache, other - 1)


def _contest(cache: PrefixCache, index: int) -> None:
    """Let no leap pass the blocks that a request fills."""
    if index not in cache.contested:
        cache.contested.append(index)


def _is_contested(cache: PrefixCache, index: int) -> bool:
    """Return whether the cache holds more of what a request decodes than the request has."""
    paths = cache.paths
    first, pinned = paths.starts[index], paths.pinned_until[index]
    for entry in range(max(pinned - 1, first), paths.starts[index + 1]):
        slot = cache.slots.get(paths.segments[entry], 0)
        if slot:
            reach = 0
            if entry < pinned:
                reach = paths.shared_blocks[index]
                if entry > first:
                    reach -= paths.ends[entry - 1]
            if cache.held[slot] > reach:
                return True
    return False


def is_decoded(cache: PrefixCache, index: int) -> bool:
    """Return whether another request is decoding the prefix of a request."""
    if cache.num_decoders:
        paths = cache.paths
        for entry in range(paths.starts[index], paths.starts[index + 1]):
            if paths.is_shared[entry]:
                decoder = cache.decoders.get(paths.segments[entry], 0)
                if decoder and decoder != index + 1:
                    return True
    return False


def load_prefix(replica: Replica, requests: RequestTable, index: int, blocks: int) -> None:
    """Load what a request that is admitted takes from behind the cache, of its first ``blocks`` blocks, into the cache.

    It is idle there until `use_prefix`, and counts as found only on the first admission.
    """
    cache = replica.cache
    assert cache is not None
    paths = cache.paths
    is_first = requests.scheduled_time[index] == replica.start_time
    if cache.has_choice:
        _note_declined(cache, index, blocks, requests.prompt_tokens[index] + requests.generated_tokens[index])
    slots, held = cache.slots, cache.held
    entry, start = paths.starts[index], 0
    while start < blocks:
        segment, end = paths.segments[entry], min(paths.ends[entry], blocks)
        slot = slots.get(segment, 0)
        here = held[slot]
        missing = end - start - here
        if missing > 0:
            for level in range(paths.num_levels):
                loaded = _load(cache, level, segment, missing)
                here += loaded
                missing -= loaded
                if is_first:
                    paths.loaded_tokens[index * paths.num_levels + level] += loaded * paths.block_size
            if not slot:
                slot = new_slot(cache, segment)
            before = held[slot]
            held[slot] = here
            cache.num_idle += here - before
            if here > before and not cache.shallowest[slot]:
                add_stretch(cache, slot, before)
        start = end
        entry += 1


def _load(cache: PrefixCache, level: int, segment: int, missing: int) -> int:
    """Load up to ``missing`` blocks of a segment from a tier, or all from the store; return how many."""
    if not missing:
        return 0
    store = cache.paths.store
    if level == cache.num_tiers and store is not None:
        if not cache.loading_seconds:
            cache.loading_seconds = store.latency
        cache.loading_seconds += missing * store.block_seconds
        cache.num_loading += missing
        store.num_loaded += missing
        return missing
    tier = cache.tiers[level]
    slot = tier.slots.get(segment, 0)
    blocks = min(tier.held[slot], missing)
    if blocks:
        take_from_tier(tier, slot, blocks)
        if not tier.loading_seconds:
            tier.loading_seconds = tier.latency
        tier.loading_seconds += blocks * tier.block_seconds
        tier.num_loaded += blocks
    return blocks


def _note_declined(cache: PrefixCache, index: int, taken: int, tokens: int) -> None:
    """Count the blocks of a request in tiers directly after the ``taken`` ones that are computed instead."""
    paths, store = cache.paths, cache.paths.store
    limit = (tokens - 1) // paths.block_size
    found = 0
    for entry in range(paths.starts[index], paths.starts[index + 1]):
        segment, end = paths.segments[entry], min(paths.ends[entry], limit)
        found += min(cache.held[cache.slots.get(segment, 0)], end - found)
        for level in range(cache.num_tiers):
            tier = cache.tiers[level]
            blocks = min(tier.held[tier.slots.get(segment, 0)], end - found)
            found += blocks
            tier.num_declined += max(min(blocks, found - taken), 0)
        if store is not None:
            blocks = min(max(paths.promised_blocks[index] - found, 0), end - found)
            found += blocks
            store.num_declined += max(min(blocks, found - taken), 0)
        if found < end or found == limit:
            break


def seconds_to_encode(requests: RequestTable, index: int, cached: int) -> float:
    """Return the time to encode the images of a prompt that its prefix cache lacks: its own, and those before them."""
    seconds, place = 0.0, index
    while place >= 0 and requests.image_ends[place] > cached:
        seconds += requests.encoder_seconds[place]
        place = requests.earlier_images[place]
    return seconds


def note_contributions(replica: Replica, requests: RequestTable) -> None:
    """Record, for each prompt being computed, the first block that the cache lacks."""
    replica.contributed.clear()
    for position in range(len(replica.prefilling)):
        is_contributed(replica, requests, replica.prefilling[position])


def is_contributed(replica: Replica, requests: RequestTable, index: int, is_noted: bool = True) -> bool:
    """Return whether another request computes the first block that a request lacks; else record that this one will.

    Not ``is_noted``: record nothing.
    """
    cache, contributed = replica.cache, replica.contributed
    if cache is None:
        return False
    tokens = requests.prompt_tokens[index] + requests.generated_tokens[index] - replica.has_suspension
    segment, place = first_missing(cache, index, tokens)
    if segment >= 0 and cache.has_tiers:
        segment, place = _first_nowhere(cache, index, tokens)
    if segment < 0:
        return False
    for position in range(0, len(contributed), 2):
        if contributed[position] == segment and contributed[position + 1] == place:
            return True
    if is_noted:
        contributed.append(segment)
        contributed.append(place)
    return False


def _first_nowhere(cache: PrefixCache, index: int, tokens: int) -> tuple[int, int]:
    """Like `first_missing`, of blocks that no tier has either."""
    paths = cache.paths
    found = find_prefix(cache, index, tokens + 1)[0]
    for entry in range(paths.starts[index], paths.starts[index + 1]):
        if found < min(paths.ends[entry], tokens // paths.block_size):
            return paths.segments[entry], found
    return -1, 0


def note_claims(replica: Replica, cache: PrefixCache, index: int, blocks: int) -> None:
    """Record up to where segments were in use before the first of the requests that a step admits uses more of them."""
    paths, claimed = cache.paths, replica.claimed
    entry, start = paths.starts[index], 0
    while start < blocks:
        end = paths.ends[entry]
        slot = cache.slots.get(paths.segments[entry], 0)
        if (end if end < blocks else blocks) - start > cache.used[slot] and _claimed_from(claimed, slot) < 0:
            claimed.append(slot)
            claimed.append(cache.used[slot])
        start = end
        entry += 1


def claimed_blocks(replica: Replica, cache: PrefixCache, index: int, blocks: int) -> int:
    """Return how many of the ``blocks`` that a request finds are in use only since this step has admitted others.

    TensorRT-LLM asks for all of them before it gives any out, so that they count as needed.
    """
    paths = cache.paths
    entry, start, num_claimed = paths.starts[index], 0, 0
    while start < blocks and replica.claimed:
        end = paths.ends[entry]
        slot = cache.slots.get(paths.segments[entry], 0)
        before = _claimed_from(replica.claimed, slot)
        if before >= 0:
            num_claimed += max(min((end if end < blocks else blocks) - start, cache.used[slot]) - before, 0)
        start = end
        entry += 1
    return num_claimed


def _claimed_from(claimed: list[int], slot: int) -> int:
    for position in range(0, len(claimed), 2):
        if claimed[position] == slot:
            return claimed[position + 1]
    return -1


def defer(replica: Replica) -> None:
    """Pass over the head of the queue, until `restore_deferred`."""
    replica.deferred.append(replica.waiting.popleft())


def restore_deferred(replica: Replica) -> None:
    """Put the requests that were passed over back at the head of the queue, in their order."""
    while replica.deferred:
        replica.waiting.appendleft(replica.deferred.pop())


def keep_prompt(replica: Replica, cache: PrefixCache, index: int, tokens: int) -> None:
    """Cache a computed prompt of ``tokens`` tokens, or defer that until the next step has ended."""
    if replica.config.caches_at_end:
        return
    if replica.config.async_scheduling:
        replica.late_prefixes.append(index)
        replica.late_prefix_tokens.append(tokens)
    else:
        cache_blocks(cache, index, tokens)


def keep_late_prompts(replica: Replica, cache: PrefixCache) -> None:
    """Cache the prompts that were computed by the step before the one that has ended."""
    late, tokens = replica.late_prefixes, replica.late_prefix_tokens
    for position in range(len(late)):
        cache_blocks(cache, late[position], tokens[position])
    late.clear()
    tokens.clear()
