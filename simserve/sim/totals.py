"""Totals of optional features of a run: drafts, LoRA adapters, KV tiers; in closed form, column by column."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from simserve.engine.cache_state import KVTier, Loras, PrefixPaths
from simserve.engine.compiled.layout import View
from simserve.engine.config import EngineConfig
from simserve.perf.operators import Drafting
from simserve.sim.records import LeapColumns

Floats = NDArray[np.float64]
_LORA_COUNTS = ("num_asked", "num_hits", "num_swaps", "num_disk_loads")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationTotals:
    """Totals of a run's drafts over all replicas."""

    num_drafts: int  # Sequences that a step drafted for and verified, summed over steps.
    num_tokens: float  # Tokens gained in those steps, at the mean pace of each request.
    num_steps: int  # Steps in which a sequence decoded.
    context_tokens: float  # Tokens in the KV cache of the decoding sequences, summed over steps.


class DraftSums:
    """Adds up the drafts of leaps.

    Args:
        drafting: Cost of drafts; None: they are counted, not priced.
        num_ranks: Ranks that step together; all are taken to have as many tokens as the one that is added.
    """

    def __init__(self, drafting: Drafting | None, num_ranks: int = 1) -> None:
        self.seconds = self.flops = self.bytes = 0.0
        self._drafting, self._num_ranks = drafting, num_ranks
        self._num_drafts = self._num_tokens = self._num_steps = self._contexts = 0.0

    def add(self, step_runs: LeapColumns, advances: Floats) -> None:
        """Add leaps; the decoding sequences together gain ``advances`` tokens in each step of a leap."""
        self._num_drafts += _dot(step_runs.decoding, step_runs.steps)
        self._num_tokens += _dot(advances, step_runs.steps)
        self._num_steps += float(step_runs.steps[step_runs.decoding > 0].sum())
        self._contexts += float(step_runs.contexts.sum())
        if self._drafting is not None:
            self._add_seconds(step_runs)
            self._add_work(step_runs)

    def totals(self) -> SpeculationTotals:
        """Return the sums."""
        return SpeculationTotals(
            num_drafts=round(self._num_drafts),
            num_tokens=self._num_tokens,
            num_steps=round(self._num_steps),
            context_tokens=self._contexts,
        )

    def _add_seconds(self, step_runs: LeapColumns) -> None:
        assert self._drafting is not None
        times = self._drafting.times
        decoding, prefilling = step_runs.decoding.astype(np.int64), step_runs.prefilling.astype(np.int64)
        is_mixed = prefilling > 0
        token = np.asarray(times.token_seconds)
        last = len(token) - 1
        mixed = token[np.minimum(step_runs.priced.astype(np.int64), last)]
        mixed = mixed + times.token_seconds_beyond * np.maximum(step_runs.priced - last, 0.0)
        mixed += np.asarray(times.sequence_seconds)[decoding + prefilling * is_mixed]
        mixed += (
            np.asarray(times.decode_attention_base)[decoding] + times.prefill_request_seconds * step_runs.prefilling
        )
        per_step = np.where(is_mixed, mixed, np.asarray(times.decode_base)[decoding])
        if len(times.shared_seconds):
            shared, together = np.asarray(times.shared_seconds), step_runs.priced * self._num_ranks
            last = len(shared) - 1
            per_step = per_step + shared[np.minimum(together.astype(np.int64), last)]
            per_step = per_step + times.shared_seconds_beyond * np.maximum(together - last, 0.0)
        self.seconds += _dot(per_step, step_runs.steps)
        slope = np.asarray(times.decode_slope)[decoding] * np.where(is_mixed, times.mixed_decode_factor, 1.0)
        self.seconds += _dot(slope, step_runs.contexts)
        self.seconds += times.prefill_pair_seconds * float(step_runs.pairs.sum())
        self.seconds += times.prefill_context_seconds * float(step_runs.keys.sum())

    def _add_work(self, step_runs: LeapColumns) -> None:
        """Add FLOP and bytes: one pass over all tokens of a step, k - 1 over one token per sequence, k samples each."""
        assert self._drafting is not None
        parts, count = self._drafting.one_pass, self._drafting.num_speculative_tokens
        if parts is None:
            return
        sequences = (step_runs.decoding + step_runs.prefilling) * step_runs.steps
        first = step_runs.decoding * (count + 1) * step_runs.steps + step_runs.prefilled
        tokens = float(first.sum() + (count - 1) * sequences.sum())
        keys = count * float(step_runs.contexts.sum())
        self.flops += parts.token_flops * tokens + parts.sequence_flops * count * float(sequences.sum())
        self.flops += parts.pair_flops * (keys + float(step_runs.pairs.sum()))
        last = len(parts.weight_bytes) - 1
        later = (step_runs.decoding + step_runs.prefilling).astype(np.int64)
        read = parts.weight_bytes[np.minimum(step_runs.priced.astype(np.int64), last)]
        read = read + (count - 1) * parts.weight_bytes[np.minimum(later, last)]
        self.bytes += _dot(read, step_runs.steps) + parts.token_bytes * tokens
        self.bytes += parts.kv_bytes_per_token * (keys + float(step_runs.keys.sum()) + tokens)


def _dot(values: Floats, weights: Floats) -> float:
    """Return the sum of products. BLAS would divide it between threads, and its order of summation would vary."""
    return float((values * weights).sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraTotals:
    """Totals of LoRA adapters over all replicas."""

    num_asked: int  # Admissions of requests with an adapter.
    num_hits: int  # Admissions that found the adapter on the GPU.
    num_swaps: int  # Loads of an adapter to a GPU.
    num_disk_loads: int  # Loads that came from disk.
    load_seconds: float  # Seconds that steps waited for loads.
    step_seconds: float = 0.0  # Seconds by which adapters otherwise lengthened steps; 0 if steps have no price.


class LoraSums:
    """Adds up the adapter counts of replicas; a replica may be added repeatedly."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._counts = dict.fromkeys(_LORA_COUNTS, 0)

    def take(self, loras: Loras | View) -> None:
        """Add what a replica has counted since the last call, and reset its counts."""
        for name in _LORA_COUNTS:
            self._counts[name] += getattr(loras, name)
            setattr(loras, name, 0)
        self.seconds += loras.load_seconds
        loras.load_seconds = 0.0

    def totals(self, step_seconds: float) -> LoraTotals:
        """Return the sums."""
        return LoraTotals(**self._counts, load_seconds=self.seconds, step_seconds=step_seconds)


_Added = TypeVar("_Added", SpeculationTotals, LoraTotals)


def added(totals: Iterable[_Added | None]) -> _Added | None:
    """Return the sum of the totals of several pools, field by field; None if no pool has any."""
    found = [each for each in totals if each is not None]
    if not found:
        return None
    return replace(found[0], **{each.name: sum(getattr(one, each.name) for one in found) for each in fields(found[0])})


@dataclass(frozen=True, slots=True, kw_only=True)
class TierTotals:
    """Sums over the tiers of one name on all replicas, or over the store that they share."""

    name: str  # Its name in the scenario.
    is_shared: bool  # Whether it is one store shared by all replicas.
    num_blocks: int  # Capacity of one tier, KV blocks.
    peak_blocks: int  # Most blocks that one tier held.
    loaded_blocks: int  # Blocks loaded to a GPU.
    written_blocks: int  # Blocks written to the tier.
    declined_blocks: int  # Blocks that requests found there but computed again.
    load_seconds: float  # Seconds that steps waited for loads.
    loaded_tokens: int  # Prompt tokens that requests loaded from it when they were first admitted.
    load_token_seconds: float  # Seconds to load a token, without latency; the least over several pools.


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadTotals:
    """All tiers of a run."""

    tiers: tuple[TierTotals, ...]  # The tiers, the nearest to the GPU first.
    token_seconds: float  # Seconds to compute a prompt token at the pace of a full chunk, without attention.

    @property
    def num_blocks(self) -> int:
        """Capacity of one tier of each name, summed, KV blocks."""
        return sum(each.num_blocks for each in self.tiers)

    @property
    def peak_blocks(self) -> int:
        """Most blocks that one tier of each name held, summed."""
        return sum(each.peak_blocks for each in self.tiers)

    @property
    def loaded_blocks(self) -> int:
        """Blocks loaded to a GPU."""
        return sum(each.loaded_blocks for each in self.tiers)

    @property
    def written_blocks(self) -> int:
        """Blocks written to a tier, from a GPU or from the tier before it."""
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
    """Adds up the counts of tiers; a tier may be added repeatedly."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.loaded = self.written = self.declined = self.peak = 0

    def take(self, tier: KVTier | View) -> None:
        """Add what a tier has counted since the last call, and reset its counts."""
        self.loaded += tier.num_loaded
        self.written += tier.num_written
        self.declined += tier.num_declined
        self.peak = max(self.peak, tier.peak)
        self.seconds += tier.load_seconds
        tier.num_loaded = tier.num_written = tier.num_declined = 0
        tier.load_seconds = 0.0


class OffloadSums:
    """Adds up the tiers behind the prefix caches of replicas with the same configuration.

    Args:
        token_seconds: Seconds of a step by its number of tokens, from 0 up.
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
        """Add what the tiers of one replica have counted since the last call."""
        for sums, tier in zip(self._sums, tiers, strict=False):
            sums.take(tier)

    def take_store(self, store: KVTier | View) -> None:
        """Add what the shared store has counted since the last call."""
        self._sums[-1].take(store)

    def totals(self, paths: PrefixPaths | None) -> OffloadTotals:
        """Return the sums.

        Args:
            paths: What requests share on these replicas, and what they found; None: nothing.
        """
        tiers = self._config.kv_tiers
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
    """Return the sum of the tier totals of several pools, by name; None if no pool has tiers."""
    found = [each for each in totals if each is not None]
    if not found:
        return None
    by_name: dict[tuple[str, bool], list[TierTotals]] = {}
    for tier in (tier for each in found for tier in each.tiers):
        by_name.setdefault((tier.name, tier.is_shared), []).append(tier)
    whole = [
        replace(tiers[0], **{name: join(getattr(each, name) for each in tiers) for name, join in _TOGETHER.items()})
        for tiers in by_name.values()
    ]
    return OffloadTotals(tiers=tuple(whole), token_seconds=min(each.token_seconds for each in found))


_TOGETHER: Mapping[str, Callable[[Iterable[Any]], Any]] = {
    **dict.fromkeys(("num_blocks", "peak_blocks"), max),
    **dict.fromkeys(("loaded_blocks", "written_blocks", "declined_blocks", "load_seconds", "loaded_tokens"), sum),
    "load_token_seconds": min,
}
"""Figure of a tier -> how those of several pools become one."""
