"""KVTier: host memory or disk behind the prefix cache of one replica; what the cache drops goes there, and comes back.

A block that gives way on the GPU is kept in the tier (TensorRT-LLM's rule for its host cache; vLLM's connector and
LMCache copy every block when it is computed, which differs where the tier is not much larger than the GPU's cache).
A request that is admitted and finds the next blocks of its prefix there has them loaded instead of computed: they take
free GPU blocks, leave the tier, and the step that admits it waits for the copies, as LMCache loads by default. (vLLM's
own connector loads behind the steps before, at best for nothing.) Copies to the tier run beside the steps. Where the
tier is full, the end of the segment that came least recently is forgotten.

Of every segment the tier holds the blocks right behind those that the cache holds.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from simserve.engine.prefix_cache import new_slot

if TYPE_CHECKING:
    from simserve.engine.prefix_cache import PrefixCache
    from simserve.engine.state import Replica, RequestTable


class KVTier:
    """The second tier of one replica.

    Args:
        num_blocks: KV blocks that it holds.
        block_seconds: Seconds that loading a block adds to the step.
        latency: Seconds that a step with loads waits besides.

    Attributes:
        stored: Segment -> its blocks here; the one first that came least recently.
        num_stored: Those blocks.
        loading_seconds: What the step that is being planned waits for its loads.
        num_loaded: Blocks loaded so far.
        num_written: Blocks that came here so far.
        peak: Most blocks that were here at a time.
        load_seconds: Seconds that steps waited for loads so far.
    """

    __slots__ = (
        "block_seconds",
        "latency",
        "load_seconds",
        "loading_seconds",
        "num_blocks",
        "num_loaded",
        "num_stored",
        "num_written",
        "peak",
        "stored",
    )

    def __init__(self, num_blocks: int, block_seconds: float, latency: float) -> None:
        self.num_blocks, self.block_seconds, self.latency = num_blocks, block_seconds, latency
        self.stored: OrderedDict[int, int] = OrderedDict()
        self.num_stored = self.num_loaded = self.num_written = self.peak = 0
        self.loading_seconds = self.load_seconds = 0.0

    def keep(self, segment: int, blocks: int) -> None:
        """Take in the last ``blocks`` blocks that the cache held of a segment."""
        stored = self.stored
        stored[segment] = stored.get(segment, 0) + blocks
        stored.move_to_end(segment)
        self.num_stored += blocks
        self.num_written += blocks
        while self.num_stored > self.num_blocks:
            oldest = next(iter(stored))
            self._take(oldest, min(self.num_stored - self.num_blocks, stored[oldest]))
        self.peak = max(self.peak, self.num_stored)

    def drop(self, segment: int, blocks: int) -> None:
        """Forget up to ``blocks`` blocks of a segment: the cache has computed them itself."""
        here = self.stored.get(segment, 0)
        if here:
            self._take(segment, min(blocks, here))

    def take_loading_seconds(self) -> float:
        """Return what the planned step waits for its loads, and count it."""
        seconds, self.loading_seconds = self.loading_seconds, 0.0
        self.load_seconds += seconds
        return seconds

    def load(self, segment: int, blocks: int) -> None:
        """Let blocks of a segment go to the GPU, in the step that is being planned."""
        self._take(segment, blocks)
        if not self.loading_seconds:
            self.loading_seconds = self.latency
        self.loading_seconds += blocks * self.block_seconds
        self.num_loaded += blocks

    def _take(self, segment: int, blocks: int) -> None:
        self.num_stored -= blocks
        if self.stored[segment] == blocks:
            del self.stored[segment]
        else:
            self.stored[segment] -= blocks


def load_prefix(replica: Replica, requests: RequestTable, index: int, blocks: int) -> None:
    """Bring what a request that is admitted found in the tier, of its first ``blocks`` blocks, into the cache.

    It is idle there until `simserve.engine.prefix_cache.use_prefix`, and counts as found on the first admission alone.
    """
    cache = replica.cache
    assert cache is not None
    assert cache.tier is not None
    loaded = _load(cache, cache.tier, index, blocks)
    if requests.scheduled_time[index] == replica.start_time:
        cache.paths.loaded_tokens[index] = loaded * replica.block_size


def _load(cache: PrefixCache, tier: KVTier, index: int, blocks: int) -> int:
    paths, slots, held = cache.paths, cache.slots, cache.held
    entry, start, loaded = paths.starts[index], 0, 0
    while start < blocks:
        segment, end = paths.segments[entry], min(paths.ends[entry], blocks)
        slot = slots.get(segment, 0)
        here = held[slot]
        missing = end - start - here
        if missing > 0:
            tier.load(segment, missing)
            slot = slot or new_slot(cache, segment)
            held[slot] = here + missing
            cache.num_idle += missing
            cache.idle.setdefault(slot, None)
            loaded += missing
        start = end
        entry += 1
    return loaded
