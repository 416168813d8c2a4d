"""Idle blocks of a prefix cache: stretches of blocks that no request uses, in the order in which they are evicted.

Which blocks become idle, and when they are evicted, is decided in `prefix_cache` and `state_cache`.
"""

from __future__ import annotations

from simserve.engine.cache_state import PrefixCache
from simserve.engine.kv_tier import give_up


def add_stretch(cache: PrefixCache, slot: int, start: int) -> int:
    """Put a stretch before all others of its slot, and after all that were given up before; return it.

    Slots below 0 are states (`simserve.engine.state_cache`), which have one stretch each.
    """
    if cache.free_stretches:
        stretch = cache.free_stretches.pop()
    else:
        stretch = len(cache.stretch_slot)
        cache.stretch_slot.append(0)
        cache.stretch_start.append(0)
        cache.above.append(0)
        cache.below.append(0)
    cache.stretch_slot[stretch], cache.stretch_start[stretch] = slot, start
    cache.above[stretch] = cache.below[stretch] = 0
    if slot > 0:
        behind = cache.shallowest[slot]
        cache.below[stretch] = behind
        if behind:
            cache.above[behind] = stretch
        cache.shallowest[slot] = stretch
    give_up(cache.idle, stretch)
    return stretch


def add_deepest_stretch(cache: PrefixCache, slot: int, start: int) -> None:
    """Put a stretch behind all others of its slot, although it was given up after them."""
    deepest = cache.shallowest[slot]
    while deepest and cache.below[deepest]:
        deepest = cache.below[deepest]
    shallowest = cache.shallowest[slot]
    cache.shallowest[slot] = 0
    add_stretch(cache, slot, start)
    if deepest:
        stretch = cache.shallowest[slot]
        cache.shallowest[slot] = shallowest
        cache.above[stretch] = deepest
        cache.below[deepest] = stretch


def forget_behind(cache: PrefixCache, stretch: int) -> None:
    """Let nobody find the blocks behind a stretch: they wait for their turn with nothing to share."""
    slot, behind = cache.stretch_slot[stretch], cache.below[stretch]
    end, cache.held[slot] = cache.held[slot], cache.stretch_start[behind]
    cache.below[stretch] = 0
    while behind:
        below = cache.below[behind]
        count = (cache.stretch_start[below] if below else end) - cache.stretch_start[behind]
        cache.num_idle -= count
        cache.num_empty += count
        cache.stretch_slot[behind], cache.stretch_start[behind] = 0, count
        cache.above[behind] = cache.below[behind] = 0
        behind = below


def drop_stretch(cache: PrefixCache, stretch: int) -> None:
    """Remove a stretch from the order, and from those of its segment."""
    slot, above, below = cache.stretch_slot[stretch], cache.above[stretch], cache.below[stretch]
    if above:
        cache.below[above] = below
    elif slot > 0:
        cache.shallowest[slot] = below
    if below:
        cache.above[below] = above
    del cache.idle[stretch]
    cache.free_stretches.append(stretch)


def take_idle(cache: PrefixCache, slot: int, reach: int) -> None:
    """Mark the first ``reach`` blocks of a segment as in use; those after them keep their order."""
    stretch = cache.shallowest[slot]
    while stretch:
        below = cache.below[stretch]
        end = cache.held[slot]
        if below:
            end = cache.stretch_start[below]
        if end > reach:
            cache.stretch_start[stretch] = max(cache.stretch_start[stretch], reach)
            return
        drop_stretch(cache, stretch)
        stretch = below
