"""Figures of the fleet and its gateway: what is between clients and replicas, and the replicas behind it.

Requests refused, given up, lost, retried; response cache, second answers, fair turns, an API beside the replicas,
regions, streams; pools, the number of replicas over time, the KV caches sent between them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simserve.metrics.api_cost import request_bills
from simserve.metrics.latency import MS, RequestLatencies
from simserve.metrics.throughput import Window, ratio
from simserve.sim.records import (
    API,
    CACHE,
    COMPLETED,
    DRAINED,
    REPLICA,
    REPLICA_LOST,
    TIMEOUT,
    RequestRecords,
    served_by,
)
from simserve.units import SECONDS_PER_HOUR, format_seconds

if TYPE_CHECKING:
    from simserve.metrics.api_cost import ApiPrices
    from simserve.sim.gateway import FrontTotals
    from simserve.sim.pools import PoolOutcome
    from simserve.sim.recorder import FleetTimeline
    from simserve.sim.simulate import Simulation
    from simserve.sim.streaming import StreamTotals
    from simserve.sim.totals import SpeculationTotals
    from simserve.workload.requests import RequestSpecs

NOTICEABLE = 0.01  # A mechanism is part of the explanation if it affects this share of the requests or more.
_LONG_WAIT = 1.0  # Fair turns are part of the explanation if a class waits for this many seconds or more on average.
CACHE_KEYS = ("requests", "hit_share", "by_class", "output_tokens", "asked_first", "expired")
SECOND_KEYS = ("requests", "share", "discarded_output_tokens")
STREAM_KEYS = ("events", "tokens_per_event", "api_server_busy", "mean_event_delay_ms")
SATURATED = 0.95
"""A core that is busy for this share of the run is the bottleneck: the rest is the start and end of the run."""
FALLING_BEHIND = 0.85
"""The same for an engine's own server, which idles for a while if closed-loop clients start and end together."""
API_SERVER = "API server"
_RULES = {
    "rate_limit": "the token bucket",
    "queue_full": "max_queue",
    "kv_headroom": "kv_headroom",
    "load": "probabilistic_from",
    "deadline": "its deadline",
    "api_limit": "the API's rate limit",
}
"""Reason for a refusal -> what refused, in words."""
_STORM = 1.5  # From this many attempts per request on, retries are a load of their own.
TRANSFER_KEYS = ("count", "link_seconds", "waited_seconds", "stalled_seconds")
"""KV caches that crossed a link, how long links were in use, how long caches waited for theirs, and how long prefill
replicas stood still because ``max_in_transfer`` caches were in transfer."""
_NOTICEABLE = 0.05
OVERFLOW_KEYS = ("api", "requests", "share", "usd_per_hour", "limited", "p95_ttft_ms")
WITHOUT: Mapping[str, dict[str, Any]] = {
    "pools": {},
    "transfers": dict.fromkeys(TRANSFER_KEYS),
    "regions": {},
    "streaming": dict.fromkeys(STREAM_KEYS),
    "overflow": dict.fromkeys(OVERFLOW_KEYS),
    "response_cache": dict.fromkeys(CACHE_KEYS),
    "asked_again": dict.fromkeys(SECOND_KEYS),
    "fairness": {},
}
"""Blocks of a summary for a run without these features."""
Prices = Mapping[str, float | None]  # Dollars a GPU-hour by pool; None: unknown.


def gateway_figures(front: FrontTotals, records: RequestRecords) -> dict[str, dict[str, Any]]:
    """Return the figures of those of ``response_cache asked_again fairness`` that the run uses."""
    found: dict[str, dict[str, Any]] = {}
    if front.first_questions is not None:
        found["response_cache"] = _cache_figures(front, records)
    if front.asked_again is not None:
        # Of all requests that were sent; the tokens are those of the discarded first answers.
        found["asked_again"] = {
            "requests": front.asked_again,
            "share": ratio(front.asked_again, float(np.isfinite(records.arrival_time).sum())),
            "discarded_output_tokens": front.discarded_tokens,
        }
    if front.service and records.request_class is not None:
        found["fairness"] = _fairness_figures(front, records, records.request_class)
    return found


def _cache_figures(front: FrontTotals, records: RequestRecords) -> dict[str, Any]:
    """Return `CACHE_KEYS`.

    All cover the whole run. ``hit_share``: hits over completed requests, and ``by_class`` over those of each class;
    ``output_tokens``: of the answers from the cache; ``asked_first``: requests whose question no model had answered
    yet, several where they come before the first answer; ``expired``: requests whose cached answer was too old.
    """
    hits, completed = served_by(records, CACHE), records.status == COMPLETED
    by_class = {
        name: _share(hits & (records.request_class == number), completed & (records.request_class == number))
        for number, name in enumerate(records.class_names)
        if records.request_class is not None
    }
    return {
        "requests": int(np.count_nonzero(hits)),
        "hit_share": _share(hits, completed),
        "by_class": by_class,
        "output_tokens": int(records.output_tokens[hits].sum()),
        "asked_first": front.first_questions,
        "expired": front.expired,
    }


def _fairness_figures(
    front: FrontTotals, records: RequestRecords, request_class: NDArray[np.int16]
) -> dict[str, dict[str, float]]:
    """Return ``service_share mean_wait_s`` by class under fair turns.

    ``service_share``: of prompt tokens plus twice the generated ones that replicas worked on, over the whole run;
    ``mean_wait_s``: from arrival to the first step, over the requests that a replica answered.
    """
    total = sum(front.service.values())
    answered = served_by(records, REPLICA)
    waits = records.scheduled_time - records.arrival_time
    found = {}
    for number, name in enumerate(records.class_names):
        own = waits[answered & (request_class == number)]
        found[name] = {
            "service_share": ratio(front.service[name], total),
            "mean_wait_s": float(own.mean()) if len(own) else math.nan,
        }
    return found


def gateway_sentences(front: FrontTotals, records: RequestRecords) -> list[str]:
    """Return sentences on what the gateway kept from the replicas and what it sent them twice."""
    sent = int(np.count_nonzero(np.isfinite(records.arrival_time)))
    if not sent:
        return []
    found = []
    hits = int(np.count_nonzero(served_by(records, CACHE)))
    if hits >= NOTICEABLE * sent:
        found.append(f"The response cache answered {hits / sent:.0%} of the requests.")
    if front.asked_again and front.asked_again >= NOTICEABLE * sent:
        found.append(
            f"{front.asked_again / sent:.0%} of the requests were asked a second time, after "
            f"{front.discarded_tokens:,} tokens that did not do."
        )
    if front.limited >= NOTICEABLE * sent:
        found.append(f"The API answered 429 {front.limited:,} times: its rate limit is the bottleneck.")
    turns = gateway_figures(front, records).get("fairness", {})
    waits = {name: each["mean_wait_s"] for name, each in turns.items()}
    if any(wait > _LONG_WAIT for wait in waits.values()):
        waits_text = ", ".join(f"{name} {format_seconds(wait)}" for name, wait in waits.items() if math.isfinite(wait))
        found.append(f"Classes take turns by their shares, and waited for them: {waits_text}.")
    return found


def _share(some: NDArray[np.bool_], of: NDArray[np.bool_]) -> float:
    return ratio(float(some.sum()), float(of.sum()))


def overflow_figures(
    records: RequestRecords,
    window: Window,
    prices: ApiPrices,
    front: FrontTotals | None = None,
    specs: RequestSpecs | None = None,
) -> dict[str, Any]:
    """Return `OVERFLOW_KEYS`.

    ``requests`` and their ``share`` of the completed ones cover the whole run, as do ``limited``, the number of answers
    429 of the API, and ``p95_ttft_ms`` of its other answers; the dollars cover the requests completed in the measured
    window, at list price. With ``specs``, which tell what prompts have in common, the API's prompt cache works as in
    `simserve.metrics.api_cost`: it sees only the requests that the API gets.
    """
    went = served_by(records, API)
    finish = records.finish_time
    paid = went & (finish >= window.start) & (finish <= window.end)
    if specs is None:
        prompts, answers = prices.tokens_usd(records.prompt_tokens[paid], records.output_tokens[paid])
    else:
        bills = request_bills(prices, records, specs, np.flatnonzero(paid), is_sent=went)
        prompts, answers = bills.input_usd, bills.output_usd
    hours = window.seconds / SECONDS_PER_HOUR
    count = int(np.count_nonzero(went))
    ttft = (records.first_token_time - records.arrival_time)[went]
    return {
        "api": prices.name,
        "requests": count,
        "share": overflow_share(records),
        "usd_per_hour": float(prompts.sum() + answers.sum()) / hours if hours > 0 else math.nan,
        "limited": 0 if front is None else front.limited,
        "p95_ttft_ms": MS * float(np.percentile(ttft, 95)) if len(ttft) else math.nan,
    }


def overflow_share(records: RequestRecords) -> float:
    """Return the share of the completed requests that the API answered; NaN without one."""
    return _share(served_by(records, API), records.status == COMPLETED)


def region_figures(
    simulation: Simulation, latencies: RequestLatencies, window: Window, meets_slo: NDArray[np.bool_] | None
) -> dict[str, dict[str, Any]]:
    """Return ``requests served_elsewhere mean_ttft_ms p95_ttft_ms attainment`` by region of the clients.

    ``served_elsewhere`` is the share of the answered ones whose replica was in another region; all figures cover the
    measured window.
    """
    home = simulation.records.client_region
    assert home is not None
    elsewhere, found = _served_elsewhere(simulation), {}
    for number, name in enumerate(simulation.records.region_names):
        is_own = window.has_arrived & (home == number)
        count = int(np.count_nonzero(is_own))
        ttft, away = latencies.ttft[is_own], elsewhere[is_own]
        ttft, away = ttft[~np.isnan(ttft)], away[~np.isnan(away)]
        found[name] = {
            "requests": count,
            "served_elsewhere": float(away.mean()) if len(away) else math.nan,
            "mean_ttft_ms": float(ttft.mean()) * MS if len(ttft) else math.nan,
            "p95_ttft_ms": float(np.percentile(ttft, 95)) * MS if len(ttft) else math.nan,
            "attainment": math.nan if meets_slo is None or not count else float(meets_slo[is_own].mean()),
        }
    return found


def region_sentences(simulation: Simulation) -> list[str]:
    """Return how many requests went to a region other than the nearest, if that is noticeable."""
    elsewhere = _served_elsewhere(simulation)
    share = float(np.nanmean(elsewhere)) if np.isfinite(elsewhere).any() else 0.0
    return [f"{share:.0%} of the requests were served in another region than their client's."] * (share >= NOTICEABLE)


def _served_elsewhere(simulation: Simulation) -> NDArray[np.float64]:
    """Return 1 if the replica is in another region than the client, else 0; NaN if none served the request."""
    records, timeline = simulation.records, simulation.timeline
    assert records.client_region is not None
    assert timeline is not None
    served = records.replica_id >= 0
    found = np.full(len(records), math.nan)
    regions = np.array(timeline.pool_regions)[timeline.pool[records.replica_id[served]]]
    found[served] = np.array(records.region_names)[records.client_region[served]] != regions
    return found


def stream_figures(stream: StreamTotals) -> dict[str, Any]:
    """Return `STREAM_KEYS`.

    ``api_server_busy``: share of the run in which the API-server cores of the busiest replica were busy.
    ``mean_event_delay_ms``: how long an event waited for its core.
    """
    count = stream.num_events
    return {
        "events": count,
        "tokens_per_event": ratio(stream.num_tokens, count),
        "api_server_busy": stream.busiest_share,
        "mean_event_delay_ms": ratio(MS * stream.delay_seconds, count),
    }


def name_api_server(bottleneck: dict[str, Any], simulation: Simulation) -> None:
    """Name the API server the bottleneck if the cores of one are busy nearly all the time."""
    stream, seconds = simulation.stream, simulation.api_token_seconds
    if stream is not None and stream.busiest_share >= SATURATED:
        bottleneck["binding"] = API_SERVER
        bottleneck["explanation"] += (
            f" An API server is at work {stream.busiest_share:.0%} of the time: events times their cost fill its "
            f"cores, whatever the GPU could do; send more tokens an event, or add api_servers."
        )
    elif stream is None and (share := _busiest_share(simulation)) >= FALLING_BEHIND:
        bottleneck["binding"] = API_SERVER
        bottleneck["explanation"] += (
            f" An API server is at work {share:.0%} of the time: it detokenises and sends {1.0 / seconds:,.0f} "
            f"tokens/s at most, whatever the GPU could do; add replicas, send more tokens an event or add API servers "
            f"(deployment.streaming: buffer_tokens, api_servers)."
        )


def _busiest_share(simulation: Simulation) -> float:
    """Return the share of the run in which the engine's own API server of the busiest replica was busy."""
    records, end_time = simulation.records, simulation.end_time
    served = records.replica_id >= 0
    if not simulation.api_token_seconds or not served.any() or not end_time > 0.0:
        return 0.0
    tokens = np.bincount(records.replica_id[served], weights=records.output_tokens[served])
    return min(float(tokens.max()) * simulation.api_token_seconds / end_time, 1.0)


def loss_sentences(simulation: Simulation) -> list[str]:
    """Return sentences on what limited the run besides its steps: refusals, clients that hung up, losses, retries."""
    records, timeline = simulation.records, simulation.timeline
    sent = int(np.count_nonzero(np.isfinite(records.arrival_time)))
    if not sent:
        return []
    assert timeline is not None
    found = []
    refused = sum(timeline.refusals.values())
    if refused >= NOTICEABLE * sent:
        reason = max(timeline.refusals, key=lambda name: timeline.refusals[name])
        found.append(f"Admission turned {refused:,} attempts away, most of them for {_RULES[reason]}.")
    hung_up = _count(records, TIMEOUT)
    if hung_up >= NOTICEABLE * sent:
        wasted = f" after {timeline.lost_tokens:,} tokens that nobody read" if timeline.lost_tokens else ""
        found.append(f"Clients gave up {hung_up / sent:.0%} of the requests{wasted}.")
    attempts = 1 + timeline.num_resent / sent
    if attempts >= _STORM:
        found.append(f"Retries are a load of their own: {attempts:.2g} attempts a request.")
    found += _capacity_sentences(simulation)
    lost = _count(records, REPLICA_LOST) + _count(records, DRAINED)
    if lost:
        found.append(f"{lost:,} requests were lost with their replica.")
    return found


def _capacity_sentences(simulation: Simulation) -> list[str]:
    """Return sentences on capacity that was missing for a while because of faults, updates and starts of replicas."""
    timeline = simulation.timeline
    assert timeline is not None
    found = []
    if timeline.num_missed:
        what = "A fault or update was" if timeline.num_missed == 1 else f"{timeline.num_missed} faults and updates were"
        found.append(f"{what} to come after the end of the run, without effect.")
    if timeline.num_killed:
        found.append(f"The liveness probe restarted a replica that answered too late {_times(timeline.num_killed)}.")
    if timeline.num_replaced:
        found.append(f"Rolling updates replaced {timeline.num_replaced:,} replicas.")
    end = simulation.end_time
    paid = timeline.mean_replicas(0.0, end) * end
    down = np.minimum(timeline.lost_until, end) - np.minimum(timeline.lost_since, end)
    if len(down) and paid > 0 and down.sum() >= NOTICEABLE * paid:
        found.append(f"Replicas were down {down.sum() / paid:.0%} of their time, lost {_times(len(down))}.")
    starting = np.minimum(timeline.ready_at, np.minimum(timeline.stopped_at, end)) - np.minimum(
        timeline.launched_at, end
    )
    if paid > 0 and starting.sum() >= NOTICEABLE * paid:
        found.append(f"Replicas were paid for {starting.sum() / paid:.0%} of their time while they started.")
    return found


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _count(records: RequestRecords, reason: int) -> int:
    return int(np.count_nonzero((records.reason == reason) & (records.status != COMPLETED)))


def pool_figures(
    simulation: Simulation, window: Window, meets_slo: NDArray[np.bool_] | None, prices: Prices
) -> dict[str, dict[str, Any]]:
    """Return the figures of each pool.

    ``role replicas gpus busy mfu mbu kv_usage_mean kv_usage_peak mean_batch seconds_by_part``: over the replicas of the
    pool and the whole run. ``requests attainment usd_per_hour usd_per_million_output_tokens``: of the requests of the
    measured window that the pool answered (with disaggregation: decoded), and of its GPUs in that time.
    """
    return {
        pool.name: _figures(pool, simulation.end_time)
        | _answered(simulation, number, window, meets_slo, prices.get(pool.name))
        for number, pool in enumerate(simulation.pools)
    }


def mean_gpu_hour_usd(simulation: Simulation, window: Window, prices: Prices, otherwise: float | None) -> float | None:
    """Return the mean price of a GPU-hour over the GPUs of all pools that were paid for in a window; None if unknown.

    If the price of one of them is unknown, return ``otherwise``.
    """
    gpus = [_gpus(simulation, number, window) for number in range(len(simulation.pools))]
    costs = [
        price * count
        for count, pool in zip(gpus, simulation.pools, strict=True)
        if (price := prices.get(pool.name)) is not None
    ]
    return sum(costs) / sum(gpus) if sum(gpus) and len(costs) == len(gpus) else otherwise


def drafted(simulation: Simulation) -> SpeculationTotals | None:
    """Return the totals of drafts on the pool that drafted most; None if none drafts."""
    found = [pool.totals.speculation for pool in simulation.pools if pool.totals.speculation is not None]
    return max(found, key=lambda each: each.num_drafts) if found else simulation.totals.speculation


def _gpus(simulation: Simulation, number: int, window: Window) -> float:
    timeline = simulation.timeline
    if timeline is None or not window.seconds > 0:
        return simulation.pools[number].num_gpus
    return timeline.mean_gpus(window.start, window.end, number)


def _answered(
    simulation: Simulation, number: int, window: Window, meets_slo: NDArray[np.bool_] | None, price: float | None
) -> dict[str, Any]:
    """Return what a pool answered in the window, and what its GPUs cost then."""
    timeline, replica = simulation.timeline, simulation.records.replica_id
    pool_of = np.zeros(0, dtype=np.int64) if timeline is None else timeline.pool
    served: NDArray[np.bool_] = (replica >= 0) & window.has_arrived
    served[served] = pool_of[replica[served]] == number
    count = int(np.count_nonzero(served))
    hourly = None if price is None else price * _gpus(simulation, number, window)
    tokens = float(simulation.records.output_tokens[served].sum())
    return {
        "requests": count,
        "attainment": math.nan if meets_slo is None else ratio(float(np.count_nonzero(meets_slo & served)), count),
        "usd_per_hour": hourly,
        "usd_per_million_output_tokens": None
        if hourly is None
        else ratio(hourly * window.seconds / SECONDS_PER_HOUR, tokens / 1e6),
    }


def pool_sentences(simulation: Simulation) -> list[str]:
    """Return which pool is more heavily loaded, and whether links or back-pressure hold up the other."""
    pools = simulation.pools
    figures = {pool.name: _figures(pool, simulation.end_time) for pool in pools}
    busy = ", ".join(f"{name} {each['busy']:.0%}" for name, each in figures.items())
    found = [f"Busy by pool: {busy}."]
    transfers = simulation.transfers
    if transfers.get("stalled_seconds", 0.0) > 0:
        prefill_seconds = simulation.end_time * sum(pool.num_replicas for pool in pools if pool.role == "prefill")
        share = transfers["stalled_seconds"] / prefill_seconds
        if share >= _NOTICEABLE:
            found.append(f"Prefill replicas stood still {share:.0%} of the time: decode replicas take in too little.")
    if transfers.get("count") and transfers["waited_seconds"] > transfers["link_seconds"]:
        found.append("KV caches waited longer for their link than they took on it.")
    return [*found, *_kv_transfer_sentences(simulation.records)]


def _kv_transfer_sentences(records: RequestRecords) -> list[str]:
    """Return what KV transfers from prefill to decode replicas add to TTFT; empty if there were none."""
    if records.prefill_end_time is None:
        return []
    handed_over = np.isfinite(records.prefill_end_time) & np.isfinite(records.first_token_time)
    if not handed_over.any():
        return []
    first = records.first_token_time[handed_over]
    way = float((first - records.prefill_end_time[handed_over]).mean())
    ttft = float((first - records.arrival_time[handed_over]).mean())
    return [
        f"Between the end of a prompt and its first token lies the way to a decode replica: {format_seconds(way)} of a "
        f"TTFT of {format_seconds(ttft)} on average."
    ]


def _figures(pool: PoolOutcome, end_time: float) -> dict[str, Any]:
    totals = pool.totals
    capacity_seconds = totals.kv_capacity_tokens * end_time
    return {
        "role": pool.role,
        "replicas": pool.num_replicas,
        "gpus": pool.num_gpus,
        "busy": min(ratio(totals.busy_seconds, pool.num_schedulers * end_time), 1.0),
        "mfu": ratio(totals.flops, pool.peak_flops * totals.busy_seconds),
        "mbu": ratio(totals.bytes, pool.peak_bandwidth * totals.busy_seconds),
        "kv_usage_mean": ratio(totals.kv_reserved_token_seconds, capacity_seconds),
        "kv_usage_peak": totals.kv_peak_share if totals.kv_capacity_tokens > 0 else math.nan,
        "mean_batch": ratio(totals.sequence_steps, totals.num_steps),
        "seconds_by_part": dict(totals.seconds_by_part),
    }


def replica_figures(simulation: Simulation) -> dict[str, Any]:
    """Return ``mean peak launched gpu_hours timeline killed replaced updates`` of the replicas over the whole run.

    A replica counts, and its GPUs are paid for, from its launch until it is given back. ``timeline`` has an entry for
    every change of the fleet: ``time_s``, ``launched`` (paid for) and ``ready`` (taking requests or answering the last
    of them). ``killed``: restarts by the liveness probe. ``updates``: for each rolling update its ``start_s end_s``
    (None: not finished), the replicas that were ready before it and the fewest ready during it.
    """
    timeline, end = simulation.timeline, simulation.end_time
    assert timeline is not None
    changes: dict[float, list[int]] = {}
    for column, sign, place in (
        (timeline.launched_at, 1, 0),
        (timeline.stopped_at, -1, 0),
        (timeline.ready_at, 1, 1),
        (np.where(np.isfinite(timeline.ready_at), timeline.stopped_at, np.inf), -1, 1),
        (timeline.lost_since, -1, 1),
        (timeline.lost_until, 1, 1),
    ):
        for time in column[np.isfinite(column)]:
            if time <= end:
                changes.setdefault(float(time), [0, 0])[place] += sign
    rows, launched, ready = [], 0, 0
    for time in sorted(changes):
        launched, ready = launched + changes[time][0], ready + changes[time][1]
        rows.append({"time_s": time, "launched": launched, "ready": ready})
    return {
        "mean": timeline.mean_replicas(0.0, end),
        "peak": max((row["launched"] for row in rows), default=0),
        "launched": len(timeline.launched_at),
        "gpu_hours": timeline.mean_gpus(0.0, end) * end / SECONDS_PER_HOUR,
        "timeline": rows,
        "killed": timeline.num_killed,
        "replaced": timeline.num_replaced,
        "updates": [_update(rows, start, until) for start, until in timeline.updates.tolist()],
    }


def _update(rows: list[dict[str, Any]], start: float, end: float) -> dict[str, Any]:
    before = [row["ready"] for row in rows if row["time_s"] < start] or [rows[0]["ready"]]
    during = [row["ready"] for row in rows if start <= row["time_s"] < end]
    return {
        "start_s": start,
        "end_s": end if math.isfinite(end) else None,
        "ready_before": before[-1],
        "fewest_ready": min([before[-1], *during]),
    }


def mean_gpus(timeline: FleetTimeline, window: Window, num_gpus: int) -> float:
    """Return the mean number of GPUs that are paid for in the measured window; ``num_gpus`` where it is empty."""
    return timeline.mean_gpus(window.start, window.end) if window.seconds > 0 else float(num_gpus)
