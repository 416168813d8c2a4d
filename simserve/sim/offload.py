"""What the second KV tiers of a run's replicas add up to (`simserve.engine.kv_tier`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from simserve.engine.compiled.view import View
from simserve.engine.kv_tier import KVTier


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadTotals:
    """Sums over all replicas.

    Attributes:
        num_blocks: KV blocks that one tier holds.
        peak_blocks: Most that one of them held.
        loaded_blocks: Blocks that went back to a GPU.
        written_blocks: Blocks that came from one.
        load_seconds: Seconds that steps waited for loads.
        loaded_tokens: Prompt tokens that requests found there when they were first admitted.
    """

    num_blocks: int
    peak_blocks: int
    loaded_blocks: int
    written_blocks: int
    load_seconds: float
    loaded_tokens: int = 0


class OffloadSums:
    """Adds up tiers, one after another or the same again."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._loaded = self._written = self._peak = 0

    def take(self, tier: KVTier | View) -> None:
        """Add what a tier has counted since it was last looked at, and let it count from nothing."""
        self._loaded += tier.num_loaded
        self._written += tier.num_written
        self._peak = max(self._peak, tier.peak)
        self.seconds += tier.load_seconds
        tier.num_loaded = tier.num_written = 0
        tier.load_seconds = 0.0

    def totals(self, num_blocks: int, loaded_tokens: int) -> OffloadTotals:
        """Return the sums.

        Args:
            num_blocks: KV blocks of one tier.
            loaded_tokens: What requests found there.
        """
        return OffloadTotals(
            num_blocks=num_blocks,
            peak_blocks=self._peak,
            loaded_blocks=self._loaded,
            written_blocks=self._written,
            load_seconds=self.seconds,
            loaded_tokens=loaded_tokens,
        )


def offloaded_together(totals: Iterable[OffloadTotals | None]) -> OffloadTotals | None:
    """Return what the tiers of several pools add up to; None where none has one."""
    found = [each for each in totals if each is not None]
    if not found:
        return None
    return OffloadTotals(
        num_blocks=max(each.num_blocks for each in found),
        peak_blocks=max(each.peak_blocks for each in found),
        loaded_blocks=sum(each.loaded_blocks for each in found),
        written_blocks=sum(each.written_blocks for each in found),
        load_seconds=sum(each.load_seconds for each in found),
        loaded_tokens=sum(each.loaded_tokens for each in found),
    )
