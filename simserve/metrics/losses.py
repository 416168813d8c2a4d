"""What became of requests that were not simply served: refused, given up, lost, tried again; counted and told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simserve.metrics.figures import rows_where
from simserve.sim.records import (
    COMPLETED,
    DRAINED,
    REASONS,
    REPLICA_LOST,
    STATUSES,
    TIMEOUT,
    UNFINISHED,
    RequestRecords,
)

if TYPE_CHECKING:
    from simserve.sim.simulate import Simulation

NOTICEABLE = 0.01
"""Share of the requests from which a loss is part of the explanation."""
_RULES = {
    "rate_limit": "the token bucket",
    "queue_full": "max_queue",
    "kv_headroom": "kv_headroom",
    "load": "probabilistic_from",
    "deadline": "its deadline",
    "api_limit": "the API's rate limit",
}
_STORM = 1.5
"""Attempts a request from which retries are a load of their own."""


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
