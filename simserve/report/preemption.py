"""What preemption costs a run, and how many of its requests KV memory holds at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from simserve.metrics.result import RunResult
from simserve.report.quantities import count, counted, number, share

if TYPE_CHECKING:
    from simserve.sim.simulate import Simulation

_RARE_SHARE = 0.005
_PAST_TURNING_SHARE = 0.05
"""Throughput against ``max_num_seqs`` peaks where a few per cent of the tokens are computed twice: beyond this,
each seat more has cost throughput in every case looked at (scenario batch-size-sweet-spot)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionCost:
    """What was thrown away.

    Attributes:
        preemptions: How often a request lost its KV cache.
        recomputed_tokens: Tokens computed again for it.
        recomputed_share: Of all tokens computed.
    """

    preemptions: int
    recomputed_tokens: float
    recomputed_share: float


def preemption_cost(simulation: Simulation) -> PreemptionCost | None:
    """Return the cost of preemption; None where there was none, or where an interrupted run cannot tell it.

    What was prefilled beyond the prompts is what was computed again.
    """
    records, series = simulation.records, simulation.totals.series
    preemptions = int(records.num_preemptions.sum())
    if preemptions == 0 or simulation.was_interrupted:
        return None
    widths = np.diff(series.edges)
    prefilled, decoded = float(series.prefill_tokens_per_s @ widths), float(series.decode_tokens_per_s @ widths)
    was_scheduled = np.isfinite(records.scheduled_time)
    prompts = float((records.prompt_tokens - records.cached_tokens)[was_scheduled].sum())
    recomputed = max(0.0, prefilled - prompts)
    return PreemptionCost(
        preemptions=preemptions,
        recomputed_tokens=recomputed,
        recomputed_share=recomputed / (prefilled + decoded),
    )


def requests_in_kv(simulation: Simulation) -> float | None:
    """Return about how many requests of this traffic the KV memory of one replica holds at once.

    Its capacity over the mean reservation of a running request; None without a KV cache or a finished request.
    """
    records, totals = simulation.records, simulation.totals
    running_seconds = float(np.nansum(records.finish_time - records.scheduled_time))
    if totals.kv_reserved_token_seconds <= 0 or running_seconds <= 0:
        return None
    reservation = totals.kv_reserved_token_seconds / running_seconds
    return totals.kv_capacity_tokens / simulation.num_replicas / reservation


def preemption_statement(result: RunResult) -> str | None:
    """Return what preemption cost and on which side of the turning point the run is; None without any."""
    cost = preemption_cost(result.simulation)
    if cost is None:
        return None
    again = (
        f"{counted(cost.preemptions, 'preemption')}; {count(round(cost.recomputed_tokens))} tokens were "
        f"computed again, {share(cost.recomputed_share)} of all tokens computed"
    )
    if cost.recomputed_share < _RARE_SHARE:
        return f"Preemption is rare: {again}."
    limit = result.summary["simserve"]["engine_resolved"].get("max_num_seqs")
    room = requests_in_kv(result.simulation)
    holds = "" if room is None else f" KV memory holds about {number(room, 2)} of these requests at once"
    seats = f"{holds}; max_num_seqs is {limit}." if holds else ""
    if cost.recomputed_share < _PAST_TURNING_SHARE:
        return f"Preemption has started to cost: {again}.{seats} This is the turning point: more seats gain nothing."
    return (
        f"Preemption costs: {again}.{seats} The run is past its turning point: fewer seats or more KV memory "
        f"raise throughput."
    )
