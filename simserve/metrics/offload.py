"""What a second KV tier brought: hit rates by tier, bytes over its link, and what steps waited for them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from simserve.metrics.bottleneck import PARTS
from simserve.metrics.gateway import on_replicas

if TYPE_CHECKING:
    from simserve.sim.simulate import Simulation

OFFLOAD = "KV offload"
"""What binds where steps wait for the second tier more than for anything else."""
_NOTICEABLE = 0.05
"""Share of the busy time from which waiting for loads is part of the explanation."""


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
    return [f"Steps waited for KV blocks from the second tier {offload.load_seconds / busy:.0%} of their time."]
