"""What KV tiers behind the prefix cache brought: hit rates, bytes, and what steps waited for them; what they cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simserve.metrics.bottleneck import PARTS
from simserve.metrics.figures import ratio
from simserve.metrics.gateway import on_replicas
from simserve.units import format_seconds

if TYPE_CHECKING:
    from simserve.sim.simulate import Simulation

OFFLOAD = "KV offload"
"""What binds where steps wait for the second tier more than for anything else."""
_NOTICEABLE = 0.05
"""Share of the busy time from which waiting for loads is part of the explanation."""


@dataclass(frozen=True, slots=True)
class TierPrices:
    """What KV tiers cost beside the GPUs.

    Attributes:
        usd_per_gpu_hour: Those of replicas, over their GPUs.
        store_usd_per_hour: A store that they share.
    """

    usd_per_gpu_hour: float = 0.0
    store_usd_per_hour: float = 0.0

    def usd_per_hour(self, num_gpus: float) -> float:
        """Return the dollars of an hour for a fleet of so many GPUs."""
        return num_gpus * self.usd_per_gpu_hour + self.store_usd_per_hour


def hit_rates(simulation: Simulation, *, caches_prefixes: bool) -> dict[str, float]:
    """Return ``prefix_hit_rate`` and its parts, ``gpu_hit_rate`` and ``offload_hit_rate``.

    Shares of the prompt tokens of the requests that were scheduled; the last is NaN without a second tier.
    """
    records, offload = simulation.records, simulation.totals.offload
    scheduled = on_replicas(records)
    cached, prompt = float(records.cached_tokens[scheduled].sum()), float(records.prompt_tokens[scheduled].sum())
    if not caches_prefixes or prompt <= 0:
        return dict.fromkeys(("prefix_hit_rate", "gpu_hit_rate", "offload_hit_rate"), math.nan)
    loaded = 0.0 if offload is None else min(float(offload.loaded_tokens), cached)
    return {
        "prefix_hit_rate": cached / prompt,
        "gpu_hit_rate": (cached - loaded) / prompt,
        "offload_hit_rate": math.nan if offload is None else loaded / prompt,
    }


def offload_figures(simulation: Simulation, block_bytes: float) -> dict[str, Any]:
    """Return ``num_blocks peak_usage loaded_bytes written_bytes load_seconds`` of the tiers; None without one.

    Args:
        simulation: The run.
        block_bytes: Of a KV block, over all GPUs of a replica.
    """
    offload = simulation.totals.offload
    if offload is None:
        return dict.fromkeys(("num_blocks", "peak_usage", "loaded_bytes", "written_bytes", "load_seconds"))
    return {
        "num_blocks": offload.num_blocks,
        "peak_usage": offload.peak_blocks / offload.num_blocks,
        "loaded_bytes": offload.loaded_blocks * block_bytes,
        "written_bytes": offload.written_blocks * block_bytes,
        "load_seconds": offload.load_seconds,
    }


def tier_figures(simulation: Simulation, block_bytes: float) -> list[dict[str, Any]]:
    """Return the figures of each tier behind the prefix cache, the nearest first; none without one.

    ``hit_rate``: share of the prompt tokens of the requests that were scheduled that was loaded from it.
    ``recomputed_bytes``: blocks that were found there and computed all the same, as that was faster.
    ``load_us_per_token compute_us_per_token``: what a replica takes for a token; the latter is an estimate at the pace
    of a full chunk, without attention. ``is_used``: whether anything was loaded from it.

    Args:
        simulation: The run.
        block_bytes: Of a KV block, over all GPUs of a replica.
    """
    offload = simulation.totals.offload
    if offload is None:
        return []
    records = simulation.records
    prompt = float(records.prompt_tokens[on_replicas(records)].sum())
    return [
        {
            "tier": each.name,
            "shared": each.is_shared,
            "num_blocks": each.num_blocks,
            "capacity_bytes": each.num_blocks * block_bytes,
            "peak_usage": each.peak_blocks / each.num_blocks,
            "hit_rate": ratio(float(each.loaded_tokens), prompt),
            "loaded_bytes": each.loaded_blocks * block_bytes,
            "written_bytes": each.written_blocks * block_bytes,
            "recomputed_bytes": each.declined_blocks * block_bytes,
            "load_seconds": each.load_seconds,
            "load_us_per_token": each.load_token_seconds * 1e6,
            "compute_us_per_token": offload.token_seconds * 1e6,
            "is_used": each.loaded_blocks > 0,
        }
        for each in offload.tiers
    ]


def unused_tiers(simulation: Simulation) -> list[str]:
    """Return which tiers had what requests asked for, and were not used since computing it was faster."""
    offload = simulation.totals.offload
    if offload is None:
        return []
    return [
        f"{each.name} tier not used: a token takes {format_seconds(each.load_token_seconds)} to load, about "
        f"{format_seconds(offload.token_seconds)} to compute"
        for each in offload.tiers
        if each.declined_blocks and not each.loaded_blocks
    ]


def name_offload(found: dict[str, Any], simulation: Simulation) -> None:
    """Let the second tier be what binds, where steps wait for it half of their time, or for links and mostly for it."""
    offload, totals = simulation.totals.offload, simulation.totals
    if offload is None:
        return
    part = (
        totals.seconds_by_part["communication"] if found["binding"] == PARTS["communication"] else totals.busy_seconds
    )
    if offload.load_seconds > 0.5 * part:
        found["binding"] = OFFLOAD


def offload_sentences(simulation: Simulation) -> list[str]:
    """Return that steps waited for the second tier, where they did for long."""
    offload, busy = simulation.totals.offload, simulation.totals.busy_seconds
    if offload is None or not busy > 0 or offload.load_seconds < _NOTICEABLE * busy:
        return []
    share = f"{offload.load_seconds / busy:.0%} of their time"
    if len(offload.tiers) == 1:
        return [f"Steps waited for KV blocks from the second tier {share}."]
    slowest = max(offload.tiers, key=lambda each: each.load_seconds)
    return [f"Steps waited for KV blocks from the tiers {share}, most of it for the {slowest.name} tier."]
