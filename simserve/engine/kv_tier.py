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


class KVTier:
    """The second tier of one replica.

    Segments of which anything lies here have a slot, from 1 on; the lists go by slot. Slot 0 stands for all others.

    Args:
        num_blocks: KV blocks that it holds.
        block_seconds: Seconds that loading a block adds to the step.
        latency: Seconds that a step with loads waits besides.

    Attributes:
        slots: Segment -> its slot.
        segments: The segment in each slot.
        held: Its blocks here.
        free_slots: Slots of segments that are gone.
        order: Slots in use; the one first that came least recently.
        num_stored: Blocks here.
        loading_seconds: What the step that is being planned waits for its loads.
        num_loaded: Blocks loaded so far.
        num_written: Blocks that came here so far.
        peak: Most blocks that were here at a time.
        load_seconds: Seconds that steps waited for loads so far.
    """

    __slots__ = (
        "block_seconds",
        "free_slots",
        "held",
        "latency",
        "load_seconds",
        "loading_seconds",
        "num_blocks",
        "num_loaded",
        "num_stored",
        "num_written",
        "order",
        "peak",
        "segments",
        "slots",
    )

    def __init__(self, num_blocks: int, block_seconds: float, latency: float) -> None:
        self.num_blocks, self.block_seconds, self.latency = num_blocks, block_seconds, latency
        self.slots: dict[int, int] = {}
        self.segments, self.held = [-1], [0]
        self.free_slots: list[int] = []
        self.order: OrderedDict[int, None] = OrderedDict()
        self.num_stored = self.num_loaded = self.num_written = self.peak = 0
        self.loading_seconds = self.load_seconds = 0.0


def keep_in_tier(tier: KVTier, segment: int, blocks: int) -> None:
    """Take in the last ``blocks`` blocks that the cache held of a segment."""
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
    while tier.num_stored > tier.num_blocks:
        oldest = least_recent(tier.order)
        take_from_tier(tier, oldest, min(tier.num_stored - tier.num_blocks, tier.held[oldest]))
    tier.peak = max(tier.peak, tier.num_stored)


def drop_from_tier(tier: KVTier, segment: int, blocks: int) -> None:
    """Forget up to ``blocks`` blocks of a segment: the cache has computed them itself."""
    slot = tier.slots.get(segment, 0)
    if slot:
        take_from_tier(tier, slot, min(blocks, tier.held[slot]))


def take_loading_seconds(tier: KVTier) -> float:
    """Return what the planned step waits for its loads, and count it."""
    seconds = tier.loading_seconds
    tier.loading_seconds = 0.0
    tier.load_seconds += seconds
    return seconds


def take_from_tier(tier: KVTier, slot: int, blocks: int) -> None:
    """Let blocks of a segment go: to the GPU, or for good."""
    tier.num_stored -= blocks
    tier.held[slot] -= blocks
    if not tier.held[slot]:
        del tier.order[slot]
        del tier.slots[tier.segments[slot]]
        tier.free_slots.append(slot)


def give_up(idle: OrderedDict[int, None], slot: int) -> None:
    """Make a segment the one that was given up last."""
    if slot in idle:
        idle.move_to_end(slot)
    else:
        idle[slot] = None


def least_recent(idle: OrderedDict[int, None]) -> int:
    """Return the slot of the segment that was given up least recently."""
    return next(iter(idle))
