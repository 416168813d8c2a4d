"""Figures of optional features: KV tiers behind the prefix cache, speculative decoding, and kinds of requests (classes,
thinking, images, audio, LoRA adapters, agents' tasks, rounds).

Knows records and totals; knows no text of thoughts, no pixels, no sounds, no weights, no scheduler.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simserve.metrics.latency import (
    MS,
    NAMED_TERMS,
    PERCENTILES,
    SLO,
    TERMS,
    RequestLatencies,
    attainment,
    describe,
    requests_meeting,
    rows_where,
    tasks_of,
)
from simserve.metrics.throughput import PARTS, Window, ratio, throughput
from simserve.sim.records import COMPLETED, STATUSES, RequestRecords, on_replicas
from simserve.units import SECONDS_PER_HOUR, format_seconds

if TYPE_CHECKING:
    from simserve.sim.recorder import RunTotals
    from simserve.sim.simulate import Simulation
    from simserve.sim.totals import LoraTotals, OffloadTotals, SpeculationTotals
    from simserve.workload.requests import EncoderPool, MediaColumns, RequestSpecs

OFFLOAD = "KV offload"  # The bottleneck where steps wait for the second tier more than for anything else.
_NOTICEABLE = 0.05  # Waiting for loads is part of the explanation from this share of the busy time on.
OFFLOAD_KEYS = ("num_blocks", "peak_usage", "loaded_bytes", "written_bytes", "load_seconds")
_SPECULATION_KEYS = (
    *("method", "draft_model", "num_speculative_tokens", "num_drafts", "num_draft_tokens"),
    *("num_accepted_tokens", "acceptance_rate", "mean_acceptance_length", "expected_acceptance_length"),
    *("draft_seconds", "mean_batch", "decode_speedup", "break_even_batch"),
)
REASONING_KEYS = (
    *("ttfvt_ms", "thinking_tokens", "visible_tokens", "thinking_share"),
    *("num_without_answer", "usd_per_million_visible_tokens"),
)
MEDIA_KEYS = (
    *("tokens", "token_share", "mean_preprocess_ms", "mean_encoder_ms", "mean_encoder_wait_ms"),
    *("mean_transfer_ms", "encoder_utilization", "mean_encoders", "peak_encoders", "ttft_share"),
)
_WAITING_SHARE = 0.2
"""The encoder pool is the bottleneck if waiting for it takes this share of TTFT, as for other waits
(`metrics.throughput`)."""
ENCODERS = "encoder_disaggregation.replicas"  # The name of that bottleneck.
LORA_KEYS = (
    *("num_adapters", "adapters_used", "swaps", "disk_loads"),
    *("hit_rate", "load_seconds", "step_seconds", "busy_share"),
)
LOADING = "LoRA loads"  # The bottleneck where steps wait for adapters more than for anything else.
_TAIL = 0.9  # The tail of a round starts after this share of its answers.
ROUND_KEYS = (
    *("begun", "finished", "mean_round_s", "max_round_s"),
    *("mean_half_s", "tail_share", "generating_share", "usd_per_round"),
)
TASK_KEYS = (
    *("begun", "finished", "failed", "cancelled", "cancelled_tokens"),
    *("cancelled_usd", "calls_per_task", "task_throughput", "mean_makespan_s"),
    *(f"p{each}_makespan_s" for each in PERCENTILES),
    *("mean_model_s", "mean_tool_s", "model_share", "input_tokens_per_task"),
    *("output_tokens_per_task", "usd_per_task", "attainment"),
)
WITHOUT: Mapping[str, dict[str, Any]] = {
    "classes": {},
    "speculation": dict.fromkeys(_SPECULATION_KEYS),
    "reasoning": dict.fromkeys(REASONING_KEYS),
    "images": dict.fromkeys(("requests", "images", *MEDIA_KEYS)),
    "audio": dict.fromkeys(("requests", "recordings", *MEDIA_KEYS)),
    "offload": dict.fromkeys(OFFLOAD_KEYS),
    "loras": dict.fromkeys(LORA_KEYS),
    "tasks": dict.fromkeys(TASK_KEYS),
    "rounds": dict.fromkeys(ROUND_KEYS),
}
"""Blocks of a summary for a run without these features."""
LATENCIES = {"ttft_ms": "ttft", "tpot_ms": "tpot", "e2el_ms": "e2e"}
"""Latencies reported for a class; inter-token gaps are pooled over all classes."""


@dataclass(frozen=True, slots=True)
class TierPrices:
    """Cost of KV tiers on top of the GPUs."""

    usd_per_gpu_hour: float = 0.0  # Of the tiers of each replica, divided by its GPUs.
    store_usd_per_hour: float = 0.0  # Of a store that replicas share.

    def usd_per_hour(self, num_gpus: float) -> float:
        """Return the dollars an hour for a fleet of ``num_gpus`` GPUs."""
        return num_gpus * self.usd_per_gpu_hour + self.store_usd_per_hour


def offload_figures(offload: OffloadTotals, block_bytes: float) -> dict[str, Any]:
    """Return `OFFLOAD_KEYS` of the tiers.

    Args:
        block_bytes: Of a KV block, over all GPUs of a replica.
    """
    return {
        "num_blocks": offload.num_blocks,
        "peak_usage": offload.peak_blocks / offload.num_blocks,
        "loaded_bytes": offload.loaded_blocks * block_bytes,
        "written_bytes": offload.written_blocks * block_bytes,
        "load_seconds": offload.load_seconds,
    }


def tier_figures(offload: OffloadTotals, records: RequestRecords, block_bytes: float) -> list[dict[str, Any]]:
    """Return the figures of each tier behind the prefix cache, the nearest first.

    ``hit_rate``: share of the prompt tokens of scheduled requests that was loaded from it. ``recomputed_bytes``: blocks
    found there but computed again because that was faster. ``load_us_per_token compute_us_per_token``: time of a
    replica for a token; the latter is an estimate at the speed of a full chunk, without attention. ``is_used``: whether
    anything was loaded from it.

    Args:
        block_bytes: Of a KV block, over all GPUs of a replica.
    """
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


def unused_tiers(offload: OffloadTotals) -> list[str]:
    """Return the tiers that held blocks of requests but were not used because computing those was faster."""
    return [
        f"{each.name} tier not used: a token takes {format_seconds(each.load_token_seconds)} to load, about "
        f"{format_seconds(offload.token_seconds)} to compute"
        for each in offload.tiers
        if each.declined_blocks and not each.loaded_blocks
    ]


def name_offload(found: dict[str, Any], offload: OffloadTotals, totals: RunTotals) -> None:
    """Name the second tier the bottleneck if steps wait for it half of their time, or for links and mostly for it."""
    part = (
        totals.seconds_by_part["communication"] if found["binding"] == PARTS["communication"] else totals.busy_seconds
    )
    if offload.load_seconds > 0.5 * part:
        found["binding"] = OFFLOAD


def offload_sentences(offload: OffloadTotals, busy: float) -> list[str]:
    """Return a sentence if steps, which ran for ``busy`` seconds, waited long for the second tier."""
    if not busy > 0 or offload.load_seconds < _NOTICEABLE * busy:
        return []
    share = f"{offload.load_seconds / busy:.0%} of their time"
    if len(offload.tiers) == 1:
        return [f"Steps waited for KV blocks from the second tier {share}."]
    slowest = max(offload.tiers, key=lambda each: each.load_seconds)
    return [f"Steps waited for KV blocks from the tiers {share}, most of it for the {slowest.name} tier."]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationFacts:
    """What is known about speculative decoding besides what a run counts."""

    method: str  # How drafts are made.
    draft_model: str | None  # Its name; None without a separate draft model.
    num_speculative_tokens: int  # Drafts a step.
    expected_tokens: float  # Tokens a step that follow from the given acceptance, for an endless answer.
    mean_batch: float | None  # Mean number of sequences in a decode step; None if no request decoded.
    decode_speedup: float | None  # Speed of decode steps at that batch over that of the same batch without drafts.
    break_even_batch: int | None
    """Fewest sequences at which decode steps are slower than without drafts; None if there is no such batch."""


def speculation_summary(facts: SpeculationFacts, counted: SpeculationTotals, totals: RunTotals) -> dict[str, Any]:
    """Return the block ``speculation`` of a summary.

    vLLM's terms: ``num_drafts`` counts the times a sequence was drafted for, ``acceptance_rate`` is accepted over
    drafted tokens, ``mean_acceptance_length`` one more than accepted tokens a draft. Tokens that the last step would
    have added beyond the end of an answer do not count, so short answers stay below ``expected_acceptance_length``. If
    pools differ, ``counted`` and the facts are those of the pool that drafts most.
    """
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


def reasoning_figures(
    records: RequestRecords,
    thinking_tokens: NDArray[np.int64],
    latencies: RequestLatencies,
    in_window: NDArray[np.bool_],
    usd_per_million_output_tokens: float,
) -> dict[str, Any]:
    """Return the figures of thinking, over the completed requests of the window.

    ``ttfvt_ms``: statistics of the time to the first visible token, over the requests that have one. ``thinking_tokens
    visible_tokens thinking_share``: tokens before answers and in answers, and the share of the former.
    ``num_without_answer``: requests that used up their token limit by thinking. ``usd_per_million_visible_tokens``: the
    dollars of all output tokens, over the visible ones alone.

    Args:
        thinking_tokens: Of ``records``.
        latencies: Seconds, one row a request.
        in_window: Whether the request counts, shape [requests].
        usd_per_million_output_tokens: Dollars, over thinking and answers together.
    """
    rows = rows_where(in_window & latencies.is_completed)
    thought, generated = thinking_tokens[rows], records.output_tokens[rows]
    thinking, visible = int(thought.sum()), int((generated - thought).sum())
    share = ratio(thinking, thinking + visible)
    shown = usd_per_million_output_tokens / (1.0 - share) if visible else math.nan
    return {
        "ttfvt_ms": {name: value * MS for name, value in describe(latencies.ttfvt[rows]).items()},
        "thinking_tokens": thinking,
        "visible_tokens": visible,
        "thinking_share": share,
        "num_without_answer": int(np.count_nonzero(thought == generated)),
        "usd_per_million_visible_tokens": shown,
    }


def media_figures(
    simulation: Simulation,
    specs: RequestSpecs,
    columns: MediaColumns,
    latencies: RequestLatencies,
    in_window: NDArray[np.bool_],
    counted: str,
) -> dict[str, Any]:
    """Return what images, or recordings, add.

    ``requests``, ``counted`` and ``tokens``: requests with media, the media, and the tokens these become, of all
    requests drawn; ``token_share``: their share of all prompt tokens, those that prompts repeat from earlier turns
    included. ``mean_preprocess_ms mean_encoder_ms``: CPU and GPU time of a request for its own media; what a turn
    encodes again because no cache holds it does not count. ``mean_encoder_wait_ms mean_transfer_ms
    encoder_utilization``: of an encoder pool, how long media wait for a worker and how long their embeddings take to
    cross the link, each a mean over the requests with media, and the share of the run in which its GPUs encode;
    ``mean_encoders peak_encoders``: how many of these there were; all None if the replicas encode. ``ttft_share``: the
    mean of all these times over the completed requests of the window, divided by their mean TTFT; waiting of other
    requests does not count.

    Args:
        latencies: Seconds, one row a request.
        in_window: Whether the request counts, shape [requests].
        counted: ``images`` or ``recordings``.
    """
    found: dict[str, Any] = dict.fromkeys(("requests", counted, *MEDIA_KEYS))
    pool, has_any = specs.encoder_pool, columns.count > 0
    num_owners = int(np.count_nonzero(has_any))
    seconds = {"preprocess": columns.preprocess_seconds}
    if specs.encoder_seconds is not None:
        seconds["encoder"] = columns.encoder_seconds
    elif pool is not None and simulation.encoder_wait is not None and simulation.encoder_parts is not None:
        waits, parts = simulation.encoder_wait, simulation.encoder_parts
        was_encoded = np.isfinite(waits)
        seconds["encoder"] = np.where(was_encoded, columns.encoder_seconds / parts, 0.0)
        seconds["encoder_wait"] = np.where(was_encoded & has_any, waits, 0.0)
        seconds["transfer"] = np.where(was_encoded & has_any, pool.transfer_seconds, 0.0)
        found["encoder_utilization"] = encoder_utilization(simulation, specs)
        found["mean_encoders"] = mean_encoders(simulation, pool, 0.0, simulation.end_time)
        lives = simulation.encoder_lives
        found["peak_encoders"] = pool.num_workers if lives is None else lives.most(simulation.end_time)
    is_measured = in_window & latencies.is_completed
    spent = float(sum(each[is_measured].sum() for each in seconds.values()))
    return found | {
        "requests": num_owners,
        counted: int(columns.count.sum()),
        "tokens": int(columns.tokens.sum()),
        "token_share": ratio(float(columns.prompt_tokens.sum()), float(specs.prompt_tokens.sum())),
        **{f"mean_{name}_ms": ratio(MS * float(each.sum()), num_owners) for name, each in seconds.items()},
        "ttft_share": ratio(spent, float(latencies.ttft[is_measured].sum())) if is_measured.any() else np.nan,
    }


def encoder_utilization(simulation: Simulation, specs: RequestSpecs | None) -> float:
    """Return the share of the run in which the GPUs of the encoder pool encode; 0 without a pool."""
    if specs is None or specs.encoder_pool is None or simulation.encoder_wait is None:
        return 0.0
    pool = specs.encoder_pool
    worked = float(pool.seconds[np.isfinite(simulation.encoder_wait)].sum())
    return ratio(worked, mean_encoders(simulation, pool, 0.0, simulation.end_time) * simulation.end_time)


def mean_encoders(simulation: Simulation, pool: EncoderPool, start: float, end: float) -> float:
    """Return the mean number of workers of an encoder pool that are paid for between two instants."""
    lives = simulation.encoder_lives
    return float(pool.num_workers) if lives is None else lives.mean(start, end)


def name_encoders(bottleneck: dict[str, Any], waits: NDArray[np.float64], latencies: RequestLatencies) -> None:
    """Name the encoder pool the bottleneck if waiting for it is a large share of the time to first token."""
    if not np.isfinite(waits).any():
        return
    ttft = latencies.ttft[np.isfinite(latencies.ttft)]
    share = float(np.nansum(waits)) / float(ttft.sum()) if len(ttft) else 0.0
    if share >= _WAITING_SHARE:
        bottleneck["binding"] = ENCODERS
        clause = (
            f"Images or audio waited for a worker of the encoder pool for {share:.0%} of the time to first tokens. "
        )
        bottleneck["explanation"] = clause + bottleneck["explanation"]


def lora_figures(loras: LoraTotals, specs: RequestSpecs | None, num_adapters: int, busy: float) -> dict[str, Any]:
    """Return `LORA_KEYS`.

    ``swaps`` are loads to a GPU, ``disk_loads`` those from disk; ``hit_rate`` is the share of admissions of requests
    with an adapter that found it on the GPU; ``load_seconds`` and ``step_seconds`` are how long steps of all replicas
    waited for loads, and how much longer they took besides; ``busy_share`` is both over ``busy``, the seconds of all
    steps.
    """
    drawn = None if specs is None else specs.adapter
    return {
        "num_adapters": num_adapters,
        "adapters_used": None if drawn is None else len(np.unique(drawn[drawn >= 0])),
        "swaps": loras.num_swaps,
        "disk_loads": loras.num_disk_loads,
        "hit_rate": ratio(loras.num_hits, loras.num_asked),
        "load_seconds": loras.load_seconds,
        "step_seconds": loras.step_seconds,
        "busy_share": ratio(loras.load_seconds + loras.step_seconds, busy),
    }


def name_loading(found: dict[str, Any], loras: LoraTotals, busy: float) -> None:
    """Name loading adapters the bottleneck if steps wait for it half of their time."""
    if loras.load_seconds > 0.5 * busy:
        found["binding"] = LOADING


def lora_sentences(loras: LoraTotals, busy: float) -> list[str]:
    """Return a sentence if steps waited long for adapters."""
    if not busy > 0 or loras.load_seconds < _NOTICEABLE * busy:
        return []
    return [f"Steps waited for LoRA adapters to be loaded {loras.load_seconds / busy:.0%} of their time."]


def round_figures(
    records: RequestRecords, turn: NDArray[np.int64], pause: float, usd_per_hour: float | None
) -> dict[str, Any]:
    """Return `ROUND_KEYS`.

    A round lasts from when it is sent to its last answer, and has finished if all its requests were answered; times are
    those of finished rounds. ``mean_half_s`` is when half of the answers are in, ``tail_share`` the part of the rounds
    in which fewer than 10 % are still missing, ``generating_share`` the share of rounds in rounds and pauses together,
    and ``usd_per_round`` what the deployment costs over both.

    Args:
        turn: Of ``records``: the round.
        pause: Seconds from the last answer of a round to the next one.
        usd_per_hour: Of the deployment; None or NaN without a price.
    """
    sent = turn[np.isfinite(records.arrival_time)]
    lasted, halves, tails = [], [], []
    for number in np.unique(sent).tolist():
        rows = turn == number
        if (records.status[rows] != COMPLETED).any():
            continue
        answered = np.sort(records.finish_time[rows]) - records.arrival_time[rows].min()
        lasted.append(float(answered[-1]))
        halves.append(float(answered[(len(answered) - 1) // 2]))
        tails.append(float(answered[-1] - answered[math.ceil(_TAIL * len(answered)) - 1]))
    mean = float(np.mean(lasted)) if lasted else math.nan
    return {
        "begun": len(np.unique(sent)),
        "finished": len(lasted),
        "mean_round_s": mean,
        "max_round_s": max(lasted, default=math.nan),
        "mean_half_s": float(np.mean(halves)) if lasted else math.nan,
        "tail_share": ratio(sum(tails), sum(lasted)),
        "generating_share": ratio(mean, mean + pause),
        "usd_per_round": math.nan if usd_per_hour is None else usd_per_hour * (mean + pause) / SECONDS_PER_HOUR,
    }


def task_figures(
    records: RequestRecords, window: Window, slo: SLO | None, usd_per_hour: float | None
) -> dict[str, Any]:
    """Return `TASK_KEYS`.

    Figures are of the tasks whose first call was sent in the measured window, times and tokens of those that have
    finished; ``cancelled_tokens`` were computed for those that clients gave up, and ``cancelled_usd`` is their share of
    the cost of the window. ``task_throughput`` is the number that finish in the window, a second; ``usd_per_task`` is
    the cost of the deployment over that, or where there are other requests too, the tasks' share of it by computed
    tokens.

    Args:
        slo: The objective; None without one.
        usd_per_hour: Of the deployment; None or NaN without a price.
    """
    tasks = tasks_of(records)
    assert tasks is not None
    counted = window.has_arrived[tasks.row]
    done = counted & np.isfinite(tasks.end)
    makespan, model = tasks.makespan[done], tasks.model[done]
    lasted = describe(makespan)
    cancelled = counted & tasks.is_cancelled
    spent = tasks.usd(math.nan if usd_per_hour is None else usd_per_hour * window.seconds / SECONDS_PER_HOUR)
    in_window = (tasks.end >= window.start) & (tasks.end <= window.end)
    rate = ratio(float(np.count_nonzero(in_window)), window.seconds)
    is_kept = None if slo is None or slo.task is None else (tasks.makespan <= slo.task)[counted]
    return {
        "begun": int(np.count_nonzero(counted)),
        "finished": int(np.count_nonzero(done)),
        "failed": int(np.count_nonzero(counted & tasks.has_failed)),
        "cancelled": int(np.count_nonzero(cancelled)),
        "cancelled_tokens": int(tasks.computed_tokens[cancelled].sum()),
        "cancelled_usd": math.nan if usd_per_hour is None else float(spent[cancelled].sum()),
        "calls_per_task": _mean(tasks.calls[counted]),
        "task_throughput": rate,
        **{f"{each}_makespan_s": lasted[each] for each in ("mean", *(f"p{q}" for q in PERCENTILES))},
        "mean_model_s": _mean(model),
        "mean_tool_s": _mean(tasks.tool[done]),
        "model_share": ratio(float(model.sum()), float(makespan.sum())),
        "input_tokens_per_task": _mean(tasks.input_tokens[done]),
        "output_tokens_per_task": _mean(tasks.output_tokens[done]),
        "usd_per_task": math.nan
        if usd_per_hour is None
        else ratio(usd_per_hour * tasks.computed_share / SECONDS_PER_HOUR, rate),
        "attainment": math.nan if is_kept is None else _mean(is_kept),
    }


def _mean(values: NDArray[Any]) -> float:
    return float(values.mean()) if len(values) else math.nan


def class_figures(
    records: RequestRecords, latencies: RequestLatencies, window: Window, slo: SLO | None
) -> dict[str, dict[str, Any]]:
    """Return the figures of each class by its name, in the order of the scenario.

    ``submitted``, how requests ended and ``total_*`` cover the whole run, all else the measured window, defined as for
    all requests: ``request_throughput request_goodput output_throughput``, ``mean_ median_ p50_ p90_ p95_ p99_`` of
    ``ttft_ms tpot_ms e2el_ms``, and ``slo`` with ``attainment`` and ``by_metric``. Undefined figures are NaN.
    """
    request_class = records.request_class
    assert request_class is not None
    meets = None if slo is None else requests_meeting(latencies, slo)
    return {
        name: _figures(records, latencies, window, slo, meets, request_class == number)
        for number, name in enumerate(records.class_names)
    }


def _figures(
    records: RequestRecords,
    latencies: RequestLatencies,
    window: Window,
    slo: SLO | None,
    meets: NDArray[np.bool_] | None,
    is_own: NDArray[np.bool_],
) -> dict[str, Any]:
    sent = is_own & np.isfinite(records.arrival_time)
    by_status = np.bincount(records.status[sent], minlength=len(STATUSES))
    completed = is_own & latencies.is_completed
    rates = throughput(records, window, meets, completed)
    counted = completed & window.has_arrived
    return {
        "submitted": int(np.count_nonzero(sent)),
        **{status: int(count) for status, count in zip(STATUSES, by_status, strict=True)},
        "total_input_tokens": int(records.prompt_tokens[completed].sum()),
        "total_output_tokens": int(records.output_tokens[completed].sum()),
        **{name: value for name, value in rates.by_name.items() if name != "total_token_throughput"},
        **{
            f"{statistic}_{name}": value * MS
            for name, field in LATENCIES.items()
            for statistic, value in describe(getattr(latencies, field)[counted]).items()
            if statistic != "std"
        },
        "slo": _slo(latencies, slo, window.has_arrived & is_own, is_own, records.class_names),
    }


def _slo(
    latencies: RequestLatencies,
    slo: SLO | None,
    submitted: NDArray[np.bool_],
    is_own: NDArray[np.bool_],
    names: tuple[str, ...],
) -> dict[str, Any]:
    if slo is None or not is_own.any() or latencies.request_class is None:
        return {"attainment": np.nan, "by_metric": dict.fromkeys(NAMED_TERMS, np.nan)}
    name = names[int(latencies.request_class[is_own][0])]
    own = slo.by_class.get(name, slo)
    shares = attainment(latencies, slo, submitted)
    by_metric = {term: value if getattr(own, term) is not None else np.nan for term, value in shares.by_metric.items()}
    has_bounds = any(getattr(own, term) is not None for term in TERMS)
    return {"attainment": shares.all_terms if has_bounds else np.nan, "by_metric": by_metric}
