"""What the tiers behind the prefix caches of a run's replicas add up to (`simserve.engine.kv_tier`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from simserve.engine.cache_state import KVTier, PrefixPaths
from simserve.engine.compiled.view import View
from simserve.engine.config import EngineConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class TierTotals:
    """Sums over the tiers of one name of all replicas, or of the store that they share.

    Attributes:
        name: How the scenario calls it.
        is_shared: Whether it is one store of all replicas.
        num_blocks: KV blocks that one of them holds.
        peak_blocks: Most that one of them held.
        loaded_blocks: Blocks that went back to a GPU.
        written_blocks: Blocks that came to it.
        declined_blocks: Blocks that requests found there and computed all the same.
        load_seconds: Seconds that steps waited for loads.
        loaded_tokens: Prompt tokens that requests loaded from there when they were first admitted.
        load_token_seconds: What a replica takes to load a token, but for latency; the least of several pools.
    """

    name: str
    is_shared: bool
    num_blocks: int
    peak_blocks: int
    loaded_blocks: int
    written_blocks: int
    declined_blocks: int
    load_seconds: float
    loaded_tokens: int
    load_token_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadTotals:
    """All tiers of a run.

    Attributes:
        tiers: Each of them, the nearest to the GPU first.
        token_seconds: What computing a token of a prompt takes at the pace of a full chunk, but for attention.
    """

    tiers: tuple[TierTotals, ...]
    token_seconds: float

    @property
    def num_blocks(self) -> int:
        """KV blocks that one tier of each name holds, together."""
        return sum(each.num_blocks for each in self.tiers)

    @property
    def peak_blocks(self) -> int:
        """Most that one tier of each name held, together."""
        return sum(each.peak_blocks for each in self.tiers)

    @property
    def loaded_blocks(self) -> int:
        """Blocks that went back to a GPU."""
        return sum(each.loaded_blocks for each in self.tiers)

    @property
    def written_blocks(self) -> int:
        """Blocks that came to a tier, from a GPU or from the tier before."""
        return sum(each.written_blocks for each in self.tiers)

    @property
    def load_seconds(self) -> float:
        """Seconds that steps waited for loads."""
        return sum(each.load_seconds for each in self.tiers)

    @property
    def loaded_tokens(self) -> int:
        """Prompt tokens that requests loaded when they were first admitted."""
        return sum(each.loaded_tokens for each in self.tiers)


class _TierSums:
    """Adds up tiers, one after another or the same again."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.loaded = self.written = self.declined = self.peak = 0

    def take(self, tier: KVTier | View) -> None:
        """Add what a tier has counted since it was last looked at, and let it count from nothing."""
        self.loaded += tier.num_loaded
        self.written += tier.num_written
        self.declined += tier.num_declined
        self.peak = max(self.peak, tier.peak)
        self.seconds += tier.load_seconds
        tier.num_loaded = tier.num_written = tier.num_declined = 0
        tier.load_seconds = 0.0


class OffloadSums:
    """Adds up what stands behind the prefix caches of replicas that are configured alike.

    Args:
        config: Their schedulers.
        token_seconds: Seconds of a step by the tokens in it, from 0 on.
    """

    def __init__(self, config: EngineConfig, token_seconds: Sequence[float]) -> None:
        self._config, self._sums = config, [_TierSums() for _ in config.kv_tiers]
        chunk = min(config.max_chunk_tokens, len(token_seconds) - 1)
        self._token_seconds = token_seconds[chunk] / max(chunk, 1)

    @property
    def seconds(self) -> float:
        """Seconds that steps waited for loads."""
        return sum((each.seconds for each in self._sums), start=0.0)

    def take(self, tiers: Iterable[KVTier | View]) -> None:
        """Add what the tiers of one replica have counted since they were last looked at."""
        for sums, tier in zip(self._sums, tiers, strict=False):
            sums.take(tier)

    def take_store(self, store: KVTier | View) -> None:
        """Add likewise what the store of all of them has counted."""
        self._sums[-1].take(store)

    def totals(self, paths: PrefixPaths | None) -> OffloadTotals | None:
        """Return the sums; None where nothing stands behind a cache.

        Args:
            paths: What requests share on these replicas, and found; None: nothing.
        """
        tiers = self._config.kv_tiers
        if not tiers:
            return None
        found = (
            [0] * len(tiers)
            if paths is None
            else [sum(paths.loaded_tokens[n :: len(tiers)]) for n in range(len(tiers))]
        )
        return OffloadTotals(
            tiers=tuple(
                TierTotals(
                    name=tier.name,
                    is_shared=tier.is_shared,
                    num_blocks=tier.num_blocks,
                    peak_blocks=sums.peak,
                    loaded_blocks=sums.loaded,
                    written_blocks=sums.written,
                    declined_blocks=sums.declined,
                    load_seconds=sums.seconds,
                    loaded_tokens=tokens,
                    load_token_seconds=tier.block_seconds / self._config.block_size,
                )
                for tier, sums, tokens in zip(tiers, self._sums, found, strict=True)
            ),
            token_seconds=self._token_seconds,
        )


def offloaded_together(totals: Iterable[OffloadTotals | None]) -> OffloadTotals | None:
    """Return what the tiers of several pools add up to, by name; None where none has one."""
    found = [each for each in totals if each is not None]
    if not found:
        return None
    by_name: dict[tuple[str, bool], list[TierTotals]] = {}
    for tier in (tier for each in found for tier in each.tiers):
        by_name.setdefault((tier.name, tier.is_shared), []).append(tier)
    return OffloadTotals(
        tiers=tuple(_tiers_together(name, is_shared, each) for (name, is_shared), each in by_name.items()),
        token_seconds=min(each.token_seconds for each in found),
    )


def _tiers_together(name: str, is_shared: bool, tiers: Sequence[TierTotals]) -> TierTotals:
    return TierTotals(
        name=name,
        is_shared=is_shared,
        num_blocks=max(each.num_blocks for each in tiers),
        peak_blocks=max(each.peak_blocks for each in tiers),
        loaded_blocks=sum(each.loaded_blocks for each in tiers),
        written_blocks=sum(each.written_blocks for each in tiers),
        declined_blocks=sum(each.declined_blocks for each in tiers),
        load_seconds=sum(each.load_seconds for each in tiers),
        loaded_tokens=sum(each.loaded_tokens for each in tiers),
        load_token_seconds=min(each.load_token_seconds for each in tiers),
    )
