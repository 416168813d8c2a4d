"""What preemption costs a run, and up to which batch size a larger batch pays."""

from __future__ import annotations

import numpy as np

from simserve.metrics.result import RunResult
from simserve.metrics.throughput import requests_in_kv
from simserve.report.curves import turning_point
from simserve.report.quantities import count, counted, number, share

_RARE_SHARE = 0.005  # Below this share of repeated work, preemption is incidental and not a cost.


def preemption_statement(result: RunResult) -> str | None:
    """Return what preemption cost, and on which side of its turning point throughput is.

    None if there was none, or if that is unknown because the run was interrupted. Tokens prefilled beyond the prompts
    were computed again.
    """
    records, series = result.simulation.records, result.simulation.totals.series
    preemptions = int(records.num_preemptions.sum())
    if preemptions == 0 or result.simulation.was_interrupted:
        return None
    widths = np.diff(series.edges)
    prefilled, decoded = float(series.prefill_tokens_per_s @ widths), float(series.decode_tokens_per_s @ widths)
    was_scheduled = np.isfinite(records.scheduled_time)
    prompts = float((records.prompt_tokens - records.cached_tokens)[was_scheduled].sum())
    recomputed = max(0.0, prefilled - prompts)
    of_all = recomputed / (prefilled + decoded)
    again = (
        f"{counted(preemptions, 'preemption')}; {count(round(recomputed))} tokens were computed again, "
        f"{share(of_all)} of all tokens computed"
    )
    if of_all < _RARE_SHARE:
        return f"Preemption is rare: {again}."
    return f"Preemption has started to cost: {again}.{_turning_point(result)}"


def _turning_point(result: RunResult) -> str:
    """Return up to which ``max_num_seqs`` a larger batch pays, from short runs in addition to this one."""
    points = seats_points(result)
    seats = result.summary["simserve"]["engine_resolved"]["max_num_seqs"]
    room = requests_in_kv(result.simulation)
    if not points or room is None:
        return ""
    best = turning_point(points)
    at_this = dict(points).get(seats, points[-1][1])
    where = (
        f" KV memory holds about {number(room, 2)} of these requests at once. With a full queue, output is highest at "
        f"max_num_seqs {count(best.at)}, {number(best.value)} tokens/s"
    )
    if seats == best.at:
        return f"{where}, which is this run's."
    return f"{where}; at this run's {count(seats)} it is {number(at_this)}."


def seats_points(result: RunResult) -> list[tuple[int, float]]:
    """Return (``max_num_seqs``, output tokens/s) of the short runs added to a run with preemptions; else none."""
    curve = result.summary["simserve"]["bottleneck"]["seats_curve"]
    return [] if curve is None else list(zip(curve["max_num_seqs"], curve["output_throughput"], strict=True))
