"""KVTier: what is behind the prefix cache of a replica: host memory, a disk, a store that all replicas share.

*Tiers of a replica* form a chain. A block evicted from the GPU goes to the first, one evicted there to the next
(TensorRT-LLM's rule for its host cache; vLLM's connector, LMCache and HiCache copy every block when it is computed,
which differs if a tier is not much larger than the previous one). Of every segment a tier holds the blocks directly
after those that the previous tier holds. If it is full, it evicts from the end of the least recently added segment.

*A shared store* holds copies. A prompt is written there when it has been computed, and everything that a request has
computed when it leaves its replica, as LMCache, HiCache and the Mooncake store write through. A request queries the
store when it comes to a replica; the blocks that it finds are promised to it until it leaves (Mooncake's leases). If
the store is full, it evicts from the end of the segment least recently written or queried.

A request that is admitted and finds the next blocks of its prefix there has them loaded instead of computed: they take
free GPU blocks, leave the tier unless it is shared, and the step that admits the request waits for the copies, one tier
after the other, as LMCache loads by default. If they are copied layer by layer (``overlaps``), it waits only for the
time by which they outlast the step. A request that has the choice loads as much as brings its first token soonest
(`simserve.engine.prefix_cache`). Copies to a tier run beside the steps and take no time.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from simserve.engine.cache_state import KVTier

if TYPE_CHECKING:
    from simserve.engine.cache_state import PrefixCache


def keep_in_tiers(cache: PrefixCache, segment: int, blocks: int) -> None:
    """Put the last ``blocks`` blocks that the cache held of a segment into the first tier; full tiers pass on."""
    num_tiers = cache.num_tiers
    if not num_tiers:
        return
    _add(cache.tiers[0], segment, blocks)
    level = 0
    while level >= 0:
        tier = cache.tiers[level]
        excess = tier.num_stored - tier.num_blocks
        if excess <= 0:
            tier.peak = max(tier.peak, tier.num_stored)
            level -= 1
            continue
        oldest = least_recent(tier.order)
        passed, count = tier.segments[oldest], min(excess, tier.held[oldest])
        take_from_tier(tier, oldest, count)
        if level + 1 < num_tiers:
            # The next tier makes room for what it receives before it receives more.
            level += 1
            _add(cache.tiers[level], passed, count)


def drop_from_tiers(cache: PrefixCache, segment: int, blocks: int) -> None:
    """Remove up to ``blocks`` blocks of a segment: the cache has computed them itself."""
    for level in range(cache.num_tiers):
        tier = cache.tiers[level]
        slot = tier.slots.get(segment, 0)
        if slot:
            count = min(blocks, tier.held[slot])
            take_from_tier(tier, slot, count)
            blocks -= count


def keep_in_store(store: KVTier, cache: PrefixCache, index: int, tokens: int) -> None:
    """Write the full blocks of the first ``tokens`` tokens of a request; its beginning becomes the most recent."""
    paths = cache.paths
    blocks = tokens // paths.block_size
    first = paths.starts[index]
    for entry in range(paths.starts[index + 1] - 1, first - 1, -1):
        start = paths.ends[entry - 1] if entry > first else 0
        if start >= blocks:
            continue
        slot = store.slots.get(paths.segments[entry], 0)
        missing = min(paths.ends[entry], blocks) - start - store.held[slot]
        if missing > 0:
            _add(store, paths.segments[entry], missing)
        else:
            give_up(store.order, slot)
    while store.num_stored > store.num_blocks:
        oldest = least_recent(store.order)
        take_from_tier(store, oldest, min(store.num_stored - store.num_blocks, store.held[oldest]))
    store.peak = max(store.peak, store.num_stored)


def ask_store(store: KVTier, cache: PrefixCache, index: int) -> None:
    """Promise a request that comes to a replica the blocks of its prefix that the store has."""
    paths = cache.paths
    first = paths.starts[index]
    entry, until, found = first, paths.starts[index + 1], 0
    while entry < until:
        blocks = min(store.held[store.slots.get(paths.segments[entry], 0)], paths.ends[entry] - found)
        if not blocks:
            break
        found += blocks
        entry += 1
        if found < paths.ends[entry - 1]:
            break
    paths.promised_blocks[index] = found
    for each in range(entry - 1, first - 1, -1):
        give_up(store.order, store.slots.get(paths.segments[each], 0))


def take_loading_seconds(cache: PrefixCache, now: float) -> float:
    """Return how long the step planned ``now`` waits for loads that do not overlap with it, and count that."""
    seconds = 0.0
    for level in range(cache.num_tiers):
        tier = cache.tiers[level]
        if not tier.overlaps:
            seconds += tier.loading_seconds
            tier.load_seconds += tier.loading_seconds
            tier.loading_seconds = 0.0
    store = cache.paths.store
    if store is not None and cache.num_loading:
        _queue_at_store(store, cache, now)
        if not store.overlaps:
            seconds += cache.loading_seconds
            store.load_seconds += cache.loading_seconds
            cache.loading_seconds = 0.0
    return seconds


def take_overlapped_seconds(cache: PrefixCache, step_seconds: float) -> float:
    """Return by how much the loads beside a step outlast it, and count that for each tier by its share of the loads."""
    loading = cache.loading_seconds
    for level in range(cache.num_tiers):
        loading += cache.tiers[level].loading_seconds
    waiting = max(loading - step_seconds, 0.0)
    share = 0.0
    if waiting:
        share = waiting / loading
    for level in range(cache.num_tiers):
        tier = cache.tiers[level]
        tier.load_seconds += share * tier.loading_seconds
        tier.loading_seconds = 0.0
    store = cache.paths.store
    if store is not None:
        store.load_seconds += share * cache.loading_seconds
        cache.loading_seconds = 0.0
    return waiting


def _queue_at_store(store: KVTier, cache: PrefixCache, now: float) -> None:
    """Let the loads of a step wait for earlier ones of other replicas from the store."""
    if store.store_block_seconds:
        store.free_at = max(store.free_at, now) + cache.num_loading * store.store_block_seconds
        cache.loading_seconds = max(cache.loading_seconds, store.latency + (store.free_at - now))
    cache.num_loading = 0


def _add(tier: KVTier, segment: int, blocks: int) -> None:
    """Add blocks of a segment, which then is the one that came last."""
    slot = tier.slots.get(segment, 0)
    if not slot:
        if tier.free_slots:
            slot = tier.free_slots.pop()
            tier.segments[slot] = segment
        else:
            slot = len(tier.held)
            tier.segments.append(segment)
            tier.held.append(0)
        tier.slots[segment] = slot
    tier.held[slot] += blocks
    give_up(tier.order, slot)
    tier.num_stored += blocks
    tier.num_written += blocks


def take_from_tier(tier: KVTier, slot: int, blocks: int) -> None:
    """Remove blocks of a segment: to the GPU, to the next tier, or for good."""
    tier.num_stored -= blocks
    tier.held[slot] -= blocks
    if not tier.held[slot]:
        del tier.order[slot]
        del tier.slots[tier.segments[slot]]
        tier.free_slots.append(slot)


def give_up(idle: OrderedDict[int, None], slot: int) -> None:
    """Make a segment the most recently given up one."""
    if slot in idle:
        idle.move_to_end(slot)
    else:
        idle[slot] = None


def least_recent(idle: OrderedDict[int, None]) -> int:
    """Return the slot of the segment that was given up least recently."""
    return next(iter(idle))
