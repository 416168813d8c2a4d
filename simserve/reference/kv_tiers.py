"""Tier and Store: what stands behind the cached blocks of a replica, and the choice between loading and computing.

A block is (segment, position in the request).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simserve.reference.cached_blocks import Block, OrderedBlocks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simserve.engine.config import EngineConfig, KVTierConfig
    from simserve.engine.state import StepTimes
    from simserve.reference.steps import Step


class Tier:
    """Blocks that gave way in the tier before, or on the GPU.

    Attributes:
        blocks: Those that lie here; a segment is touched when a block of it comes, or is asked for.
    """

    def __init__(self, config: KVTierConfig) -> None:
        self.config = config
        self.blocks = OrderedBlocks()

    def put(self, block: Block) -> Block | None:
        """Take a block in; return the one that gives way to it: the end of the segment that came least recently."""
        self.blocks.add(block)
        self.blocks.touch(block)
        return self.overflow()

    def overflow(self) -> Block | None:
        """Let a block give way, if there are too many."""
        if len(self.blocks) <= self.config.num_blocks:
            return None
        last = self.blocks.first
        self.blocks.discard(last)
        return last


class Store(Tier):
    """Copies of blocks that all replicas write and read.

    Attributes:
        free_at: When it has sent everything that replicas have asked for.
    """

    free_at = 0.0

    def write(self, path: Sequence[Block]) -> None:
        """Keep a copy of the blocks that a request begins with; its beginning comes last."""
        for block in reversed(path):
            self.blocks.add(block)
            self.blocks.touch(block)
        while self.overflow() is not None:
            pass

    def promise(self, path: Sequence[Block]) -> set[Block]:
        """Return the blocks of a request's beginning that it has, for a replica to load when it gets there."""
        missing = [number for number, block in enumerate(path) if block not in self.blocks]
        found = path[: missing[0]] if missing else path
        for block in reversed(found):
            self.blocks.touch(block)
        return set(found)


def loading_seconds(config: KVTierConfig, num_blocks: int) -> float:
    """Return what a replica takes for so many blocks of a tier, if nobody else asks for any."""
    return config.latency + config.block_seconds * num_blocks if num_blocks else 0.0


def worth_taking(
    config: EngineConfig, times: StepTimes, found: Sequence[Block], places: Sequence[KVTierConfig | None]
) -> int:
    """Return how many of the blocks found a request takes: those after which its first token comes soonest.

    Args:
        config: The scheduler.
        times: Seconds of its steps.
        found: What it begins with, in order.
        places: Where each of them lies; None: on the GPU.
    """
    if not any(tier.has_choice for tier in config.kv_tiers):
        return len(found)
    chunk = min(config.max_chunk_tokens, len(times.token_seconds) - 1)
    token_seconds = times.token_seconds[chunk] / chunk
    size = config.block_size
    best, least = 0, 0.0
    spent = 0.0
    for taken in range(1, len(found) + 1):
        done = size * (taken - 1)
        pairs = sum(done + token for token in range(1, size + 1))
        spent -= size * token_seconds + times.prefill_pair_seconds * pairs
        loads = sum(
            loading_seconds(tier, sum(place is tier for place in places[:taken]))
            for tier in config.kv_tiers
            if tier.has_choice
        )
        if is_last_of_its_kind(found, places, taken) and spent + loads <= least:
            best, least = taken, spent + loads
    return best


def is_last_of_its_kind(found: Sequence[Block], places: Sequence[KVTierConfig | None], taken: int) -> bool:
    """Whether the next block is of another segment or lies elsewhere: nobody stops loading halfway."""
    if taken == len(found):
        return True
    return found[taken][0] != found[taken - 1][0] or places[taken] is not places[taken - 1]


def waiting_seconds(config: EngineConfig, store: Store | None, step: Step, compute_seconds: float) -> float:
    """Return what a step waits for its loads: tier after tier, and for those that overlap only what outlasts it."""
    serial = overlapped = 0.0
    for tier in config.kv_tiers:
        num_blocks = step.loaded_blocks.get(tier.name, 0)
        seconds = loading_seconds(tier, num_blocks)
        if tier.is_shared and store is not None and num_blocks and tier.store_block_seconds:
            store.free_at = max(store.free_at, step.start) + tier.store_block_seconds * num_blocks
            seconds = max(seconds, tier.latency + store.free_at - step.start)
        if tier.overlaps:
            overlapped += seconds
        else:
            serial += seconds
    return serial + max(0.0, overlapped - compute_seconds)
