"""What optional features of an engine did in a run: KV tiers behind the prefix cache, speculative decoding."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simserve.metrics.bottleneck import PARTS
from simserve.metrics.gateway import on_replicas
from simserve.metrics.statistics import ratio
from simserve.units import format_seconds

if TYPE_CHECKING:
    from simserve.sim.recorder import RunTotals
    from simserve.sim.simulate import Simulation
    from simserve.sim.totals import SpeculationTotals

OFFLOAD = "KV offload"
"""What binds where steps wait for the second tier more than for anything else."""
_NOTICEABLE = 0.05
"""Share of the busy time from which waiting for loads is part of the explanation."""
_SPECULATION_KEYS = (
    "method",
    "draft_model",
    "num_speculative_tokens",
    "num_drafts",
    "num_draft_tokens",
    "num_accepted_tokens",
    "acceptance_rate",
    "mean_acceptance_length",
    "expected_acceptance_length",
    "draft_seconds",
    "mean_batch",
    "decode_speedup",
    "break_even_batch",
)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationFacts:
    """What is known of speculative decoding besides what a run counts.

    Attributes:
        method: Who drafts.
        draft_model: Its name; None where no model of its own drafts.
        num_speculative_tokens: Drafts a step.
        expected_tokens: Tokens a step that the acceptance given leads to, of an answer without end.
        mean_batch: Sequences in a decode step on average; None: no request decoded.
        decode_speedup: Of decode steps at that batch, against the same batch without drafts.
        break_even_batch: Fewest sequences at which decode steps are slower than without drafts; None: none.
    """

    method: str
    draft_model: str | None
    num_speculative_tokens: int
    expected_tokens: float
    mean_batch: float | None
    decode_speedup: float | None
    break_even_batch: int | None


def speculation_summary(
    facts: SpeculationFacts | None, counted: SpeculationTotals | None, totals: RunTotals
) -> dict[str, Any]:
    """Return the block ``speculation`` of a summary, every value None without speculative decoding.

    vLLM's terms: ``num_drafts`` counts the times a sequence was drafted for, ``acceptance_rate`` is accepted over
    drafted tokens, ``mean_acceptance_length`` one more than accepted tokens a draft. What the last step of an answer
    would have brought beyond its end does not count, so short answers stay below ``expected_acceptance_length``. Where
    pools differ, ``counted`` and the facts are those of the one that drafts most.
    """
    if facts is None or counted is None:
        return dict.fromkeys(_SPECULATION_KEYS)
    drafted = counted.num_drafts * facts.num_speculative_tokens
    accepted = counted.num_tokens - counted.num_drafts
    values = (
        facts.method,
        facts.draft_model,
        facts.num_speculative_tokens,
        counted.num_drafts,
        drafted,
        round(accepted),
        accepted / drafted if drafted else math.nan,
        1.0 + accepted / counted.num_drafts if drafted else math.nan,
        facts.expected_tokens,
        totals.seconds_by_part["draft"],
        facts.mean_batch,
        facts.decode_speedup,
        facts.break_even_batch,
    )
    return dict(zip(_SPECULATION_KEYS, values, strict=True))
