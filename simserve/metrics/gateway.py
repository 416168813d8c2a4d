"""The gateway in figures: what stands between clients and replicas, and requests refused, given up, lost, tried again.

Response cache, second answers, fair turns, an API beside the replicas, regions, streams.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simserve.metrics.api_cost import request_bills
from simserve.metrics.latency import MS, RequestLatencies
from simserve.metrics.statistics import rows_where
from simserve.metrics.steady_state import Window
from simserve.sim.records import (
    API,
    CACHE,
    COMPLETED,
    DRAINED,
    REASONS,
    REPLICA,
    REPLICA_LOST,
    STATUSES,
    TIMEOUT,
    UNFINISHED,
    RequestRecords,
)
from simserve.units import SECONDS_PER_HOUR, format_seconds

if TYPE_CHECKING:
    from simserve.metrics.api_cost import ApiPrices
    from simserve.sim.gateway import FrontTotals
    from simserve.sim.simulate import Simulation
    from simserve.workload.requests import RequestSpecs

NOTICEABLE = 0.01
"""Share of the requests from which a mechanism is part of the explanation."""
_LONG_WAIT = 1.0
"""Mean seconds of waiting from which turns are part of the explanation."""
CACHE_KEYS = ("requests", "hit_share", "by_class", "output_tokens", "asked_first", "expired")
SECOND_KEYS = ("requests", "share", "discarded_output_tokens")
STREAM_KEYS = ("events", "tokens_per_event", "api_server_busy", "mean_event_delay_ms")
SATURATED = 0.95
"""Share of the run in which a core is at work from which it is what binds: the rest is the run's start and end."""
FALLING_BEHIND = 0.85
"""The same of an engine's own server, which closed loops that start and end together leave idle for a while."""
API_SERVER = "API server"
_RULES = {
    "rate_limit": "the token bucket",
    "queue_full": "max_queue",
    "kv_headroom": "kv_headroom",
    "load": "probabilistic_from",
    "deadline": "its deadline",
    "api_limit": "the API's rate limit",
}
"""Reason of a refusal -> what refused, in words."""
_STORM = 1.5
"""Attempts a request from which retries are a load of their own."""


def served_by(records: RequestRecords, server: int) -> NDArray[np.bool_]:
    """Return which requests were answered by a server, an index into `simserve.sim.records.SERVERS`."""
    completed: NDArray[np.bool_] = records.status == COMPLETED
    if records.served_by is None:
        return completed if server == REPLICA else np.zeros(len(records), dtype=bool)
    found: NDArray[np.bool_] = completed & (records.served_by == server)
    return found


def gateway_figures(simulation: Simulation) -> dict[str, dict[str, Any]]:
    """Return the figures of each mechanism: ``response_cache asked_again fairness``."""
    return {
        "response_cache": _cache_figures(simulation),
        "asked_again": _second_figures(simulation),
        "fairness": _fairness_figures(simulation),
    }


def on_replicas(records: RequestRecords) -> NDArray[np.bool_]:
    """Return which requests a replica took up, whatever became of them."""
    taken: NDArray[np.bool_] = np.isfinite(records.scheduled_time)
    return taken if records.served_by is None else taken & (records.served_by == REPLICA)


def _cache_figures(simulation: Simulation) -> dict[str, Any]:
    """Return ``requests hit_share by_class output_tokens asked_first expired``; None each without a response cache.

    All over the whole run. ``hit_share``: hits over completed requests, and ``by_class`` over those of each class;
    ``output_tokens``: of the answers it gave; ``asked_first``: requests whose question nobody had asked before;
    ``expired``: requests that found their answer too old.
    """
    front, records = simulation.front, simulation.records
    if front is None or front.first_questions is None:
        return dict.fromkeys(CACHE_KEYS)
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


def _second_figures(simulation: Simulation) -> dict[str, Any]:
    """Return ``requests share discarded_output_tokens`` of requests asked twice; None each without such a rule.

    ``share``: of all requests that were sent; the tokens are those of the first answers, which nobody reads.
    """
    front, records = simulation.front, simulation.records
    if front is None or front.asked_again is None:
        return dict.fromkeys(SECOND_KEYS)
    sent = int(np.count_nonzero(np.isfinite(records.arrival_time)))
    return {
        "requests": front.asked_again,
        "share": front.asked_again / sent if sent else math.nan,
        "discarded_output_tokens": front.discarded_tokens,
    }


def _fairness_figures(simulation: Simulation) -> dict[str, dict[str, float]]:
    """Return ``service_share mean_wait_s`` by class under fair turns; empty without them.

    ``service_share``: of prompt tokens plus twice the generated ones that replicas worked on, over the whole run;
    ``mean_wait_s``: from arrival to the first step, over the requests that a replica answered.
    """
    front, records = simulation.front, simulation.records
    if front is None or not front.service or records.request_class is None:
        return {}
    total = sum(front.service.values())
    answered = served_by(records, REPLICA)
    waits = records.scheduled_time - records.arrival_time
    found = {}
    for number, name in enumerate(records.class_names):
        own = waits[answered & (records.request_class == number)]
        found[name] = {
            "service_share": front.service[name] / total if total else math.nan,
            "mean_wait_s": float(own.mean()) if len(own) else math.nan,
        }
    return found


def gateway_sentences(simulation: Simulation) -> list[str]:
    """Return what the front kept from the replicas, and what it gave them twice."""
    front, records = simulation.front, simulation.records
    sent = int(np.count_nonzero(np.isfinite(records.arrival_time)))
    if front is None or not sent:
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
    waits = {name: each["mean_wait_s"] for name, each in _fairness_figures(simulation).items()}
    if any(wait > _LONG_WAIT for wait in waits.values()):
        told = ", ".join(f"{name} {format_seconds(wait)}" for name, wait in waits.items() if math.isfinite(wait))
        found.append(f"Classes take turns by their shares, and waited for them: {told}.")
    return found


def _share(some: NDArray[np.bool_], of: NDArray[np.bool_]) -> float:
    count = int(np.count_nonzero(of))
    return int(np.count_nonzero(some)) / count if count else math.nan


def overflow_figures(
    records: RequestRecords,
    window: Window,
    prices: ApiPrices | None,
    front: FrontTotals | None = None,
    specs: RequestSpecs | None = None,
) -> dict[str, Any]:
    """Return ``api requests share usd_per_hour limited p95_ttft_ms``; None each without an overflow.

    ``requests`` and their ``share`` of the completed ones are over the whole run, as are ``limited``, the times that
    the API answered 429, and ``p95_ttft_ms`` of what it answered; the dollars are over those that were completed in the
    measured window, at list price. With ``specs``, which tell what prompts have in common, the API's prompt cache is
    used as `simserve.metrics.api_cost` has it: it knows the requests that it gets, and no others.
    """
    if prices is None:
        return dict.fromkeys(("api", "requests", "share", "usd_per_hour", "limited", "p95_ttft_ms"))
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
    completed = int(np.count_nonzero(records.status == COMPLETED))
    return int(np.count_nonzero(served_by(records, API))) / completed if completed else math.nan


def region_figures(
    simulation: Simulation, latencies: RequestLatencies, window: Window, meets_slo: NDArray[np.bool_] | None
) -> dict[str, dict[str, Any]]:
    """Return ``requests served_elsewhere mean_ttft_ms p95_ttft_ms attainment`` by region of the clients.

    ``served_elsewhere`` is the share of the answered ones whose replica was in another region; all figures are of the
    measured window. Empty without regions.
    """
    home = simulation.records.client_region
    if home is None:
        return {}
    elsewhere = _served_elsewhere(simulation)
    return {
        name: _of_region(window.has_arrived & (home == number), elsewhere, latencies, meets_slo)
        for number, name in enumerate(simulation.records.region_names)
    }


def region_sentences(simulation: Simulation) -> list[str]:
    """Return how many requests went to another region than the nearest, where that is noticeable."""
    if simulation.records.client_region is None:
        return []
    elsewhere = _served_elsewhere(simulation)
    share = float(np.nanmean(elsewhere)) if np.isfinite(elsewhere).any() else 0.0
    return [f"{share:.0%} of the requests were served in another region than their client's."] * (share >= NOTICEABLE)


def _served_elsewhere(simulation: Simulation) -> NDArray[np.float64]:
    """Return 1 where the replica is in another region than the client, else 0; NaN where none served it."""
    records, timeline = simulation.records, simulation.timeline
    assert records.client_region is not None
    assert timeline is not None
    served = records.replica_id >= 0
    found = np.full(len(records), math.nan)
    regions = np.array(timeline.pool_regions)[timeline.pool[records.replica_id[served]]]
    found[served] = np.array(records.region_names)[records.client_region[served]] != regions
    return found


def _of_region(
    is_own: NDArray[np.bool_],
    elsewhere: NDArray[np.float64],
    latencies: RequestLatencies,
    meets_slo: NDArray[np.bool_] | None,
) -> dict[str, Any]:
    count = int(np.count_nonzero(is_own))
    ttft, away = latencies.ttft[is_own], elsewhere[is_own]
    ttft, away = ttft[~np.isnan(ttft)], away[~np.isnan(away)]
    return {
        "requests": count,
        "served_elsewhere": float(away.mean()) if len(away) else math.nan,
        "mean_ttft_ms": float(ttft.mean()) * MS if len(ttft) else math.nan,
        "p95_ttft_ms": float(np.percentile(ttft, 95)) * MS if len(ttft) else math.nan,
        "attainment": math.nan if meets_slo is None or not count else float(meets_slo[is_own].mean()),
    }


def stream_figures(simulation: Simulation) -> dict[str, Any]:
    """Return ``events tokens_per_event api_server_busy mean_event_delay_ms``; None each where nothing is streamed.

    ``api_server_busy``: share of the run in which the API-server cores of the busiest replica were at work.
    ``mean_event_delay_ms``: how long an event waited for its core.
    """
    stream = simulation.stream
    if stream is None:
        return dict.fromkeys(STREAM_KEYS)
    count = stream.num_events
    return {
        "events": count,
        "tokens_per_event": stream.num_tokens / count if count else math.nan,
        "api_server_busy": stream.busiest_share,
        "mean_event_delay_ms": MS * stream.delay_seconds / count if count else math.nan,
    }


def name_api_server(bottleneck: dict[str, Any], simulation: Simulation) -> None:
    """Name the API server as what binds, where the cores of one are at work nearly all the time."""
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
    """Return the share of the run in which the engine's own API server of the busiest replica was at work."""
    records, end_time = simulation.records, simulation.end_time
    served = records.replica_id >= 0
    if not simulation.api_token_seconds or not served.any() or not end_time > 0.0:
        return 0.0
    tokens = np.bincount(records.replica_id[served], weights=records.output_tokens[served])
    return min(float(tokens.max()) * simulation.api_token_seconds / end_time, 1.0)


def statuses(records: RequestRecords) -> dict[str, int]:
    """Return how many requests were sent, how each ended, and how many the model's length limit cut."""
    sent = np.isfinite(records.arrival_time)
    counts = np.bincount(records.status[rows_where(sent)], minlength=len(STATUSES))
    by_status = {status: int(count) for status, count in zip(STATUSES, counts, strict=True)}
    truncated = int(np.count_nonzero(records.is_truncated & sent))
    return {"submitted": int(np.count_nonzero(sent)), **by_status, "truncated": truncated}


def reasons(records: RequestRecords) -> dict[str, int]:
    """Return how many requests were lost for each known reason; without one, under their status."""
    lost = np.isfinite(records.arrival_time) & (records.status != COMPLETED) & (records.status != UNFINISHED)
    counts = np.bincount(records.reason[lost], minlength=len(REASONS))
    by_reason = {reason: int(count) for reason, count in zip(REASONS, counts, strict=True) if reason}
    unexplained = np.bincount(records.status[lost & (records.reason == 0)], minlength=len(STATUSES))
    return by_reason | {STATUSES[index]: int(unexplained[index]) for index in np.flatnonzero(unexplained)}


def loss_sentences(simulation: Simulation) -> list[str]:
    """Return what limited the run beside its steps: refusals, clients that hung up, losses, retries."""
    records, timeline = simulation.records, simulation.timeline
    sent = int(np.count_nonzero(np.isfinite(records.arrival_time)))
    if timeline is None or not sent:
        return []
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
    """Return which capacity was missing for a while because of what was done to the replicas."""
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
