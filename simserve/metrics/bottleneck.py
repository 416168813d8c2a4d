"""Which constraint binds: from where the steps spent their time and what the waiting requests waited for.

Knows totals of a run, not how they came about.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from simserve.sim.simulate import Simulation

PARTS = {
    "weights": "memory bandwidth (weights)",
    "kv": "memory bandwidth (KV reads)",
    "compute": "compute",
    "communication": "communication",
    "host": "CPU and kernel launches",
    "draft": "drafting",
}
"""What a share of the step time is bound by."""
LIMITS = {"seats": "max_num_seqs", "blocks": "KV memory", "budget": "max_num_batched_tokens", "loras": "max_loras"}
"""What holds up the head of the queue. ``step``, that it arrived while a step was running, is no limit."""
NONE = "none"
_ACTIVITIES = {
    "weights": "reading the weights",
    "kv": "reading the KV cache",
    "compute": "arithmetic",
    "communication": "communication over links",
    "host": "CPU work, such as launching kernels,",
    "draft": "drafting",
}
STATIC_LIMIT = "static_batch_size"
"""What holds up the queue of static batching: the running batch is full, and nobody joins it."""
_LEAST_GAIN = 1.1
"""What twice a limit must bring in throughput for it to be what binds."""
_NOTICEABLE_GAIN = 1.005
"""What is written as a gain of one percent at least."""
_THROTTLING_GAIN = 2.0
"""What binds whatever the load is: a limit that halves what the GPUs could do."""
_WAITING_SHARE = 0.2
"""Waiting binds when it is a fifth of the time that requests spend in the system."""
_PREEMPTIONS_PER_REQUEST = 0.1
_IDLE_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class LimitGain:
    """By which factor throughput would grow with a larger limit of the scheduler.

    Attributes:
        twice: With twice the limit.
        most: With whatever multiple of it brings most.
    """

    twice: float
    most: float


def bottleneck(
    *,
    seconds_by_part: Mapping[str, float],
    blocked_seconds: Mapping[str, float],
    busy_share: float,
    waiting_share: float,
    preemptions_per_request: float,
    mean_batch: float,
    max_batch: int,
    is_static: bool = False,
    limit_gains: Mapping[str, LimitGain] | None = None,
    load_ratio: float | None = None,
    swaps: bool = False,
) -> dict[str, Any]:
    """Return ``binding`` (a name), ``explanation`` (a sentence), ``step_shares`` and ``waiting_shares``.

    In this order: KV memory, if there was a preemption for every tenth request; the limit that held up most of the
    queue, if requests waited a fifth of their time in the system and more of that limit would relieve it (twice as
    much gains a tenth or more; at an overload, up to eight times as much also gains what is lacking, or doubles what
    can be finished), else what takes most of the step time; nothing, if the fleet was idle for half of the run; else
    the part that takes most of the step time, which is what a faster step must shorten.

    Args:
        seconds_by_part: Seconds of steps by part, keys of `PARTS`.
        blocked_seconds: Waiting requests x seconds by what held up the head of the queue, keys of `LIMITS`
            and ``step``.
        busy_share: Share of the run in which the replicas ran a step, NaN if there was no run.
        waiting_share: Share of the requests' time in the system before their first step; NaN if there was
            none.
        preemptions_per_request: Preemptions over completed requests, NaN if none was completed.
        mean_batch: Sequences in a step on average, NaN if there was no step.
        max_batch: Sequences that a step may hold at most.
        is_static: Whether requests are batched statically: then a batch, not a seat, is waited for.
        limit_gains: By key of `LIMITS`, the factor on throughput that a larger limit would bring.
        load_ratio: Offered over finishable throughput; None where the traffic is not offered at a rate.
        swaps: Whether preempted requests keep their KV in host memory.
    """
    step_shares, waiting_shares = _shares(seconds_by_part), _shares(blocked_seconds)
    limit_gains = limit_gains or {}
    reason = _largest(waiting_shares)
    if math.isnan(busy_share) or busy_share == 0:
        binding, explanation = NONE, "No step ran"
    elif preemptions_per_request >= _PREEMPTIONS_PER_REQUEST:
        binding = LIMITS["blocks"]
        explanation = f"KV memory ran out: {preemptions_per_request:.2g} preemptions a completed request, " + (
            "their KV copied to host memory and back" if swaps else "each of them computed again"
        )
    elif waiting_share >= _WAITING_SHARE and reason in LIMITS:
        limit = STATIC_LIMIT if is_static and reason == "seats" else LIMITS[reason]
        explanation = (
            f"Requests spent {waiting_share:.0%} of their time waiting, {waiting_shares[reason]:.0%} of it for {limit}"
        )
        binding = limit
        part, why_not = _largest(step_shares), _does_not_relieve(limit_gains.get(reason), load_ratio)
        if limit in LIMITS.values() and why_not and part in PARTS:
            # A larger limit would only make each step as much longer.
            binding = PARTS[part]
            explanation += f", but {why_not}"
    elif busy_share < 1 - _IDLE_SHARE:
        binding, explanation = NONE, f"The fleet is idle {1 - busy_share:.0%} of the time"
    else:
        binding = PARTS[_largest(step_shares)]
        # One request is enough to keep a step running: how full the steps are says how much room is left.
        explanation = (
            f"The GPUs are busy {busy_share:.0%} of the time and serve {mean_batch:.3g} requests at once on average, "
            f"of {max_batch:,} at most"
        )
    return {
        "binding": binding,
        "explanation": f"{explanation}{_step_clause(step_shares)}.",
        "step_shares": step_shares,
        "waiting_shares": waiting_shares,
    }


def _does_not_relieve(gain: LimitGain | None, load_ratio: float | None) -> str:
    """Return why more of a limit would leave the queue as it is; "" where it would not, or nothing is known of it."""
    if gain is None:
        return ""
    if gain.twice < _LEAST_GAIN:
        gained = f"only {gain.twice - 1:.0%}" if gain.twice >= _NOTICEABLE_GAIN else "nothing"
        return f"twice that limit would gain {gained}"
    if load_ratio is not None and load_ratio >= 1 and gain.most < min(load_ratio, _THROTTLING_GAIN):
        return (
            f"more of it would gain {gain.most - 1:.0%} at most, and the load is {load_ratio:.2f} of what can be "
            "finished: it takes more or faster GPUs"
        )
    return ""


def _step_clause(shares: Mapping[str, float]) -> str:
    largest = _largest(shares)
    return f"; {_ACTIVITIES[largest]} takes {shares[largest]:.0%} of the step time" if largest in PARTS else ""


def _largest(shares: Mapping[str, float]) -> str:
    """Return the name of the largest share; ``none`` where shares are undefined."""
    return max(shares, key=lambda name: shares[name]) if sum(shares.values()) > 0 else NONE


def _shares(amounts: Mapping[str, float]) -> dict[str, float]:
    total = sum(amounts.values())
    return {name: amount / total if total > 0 else math.nan for name, amount in amounts.items()}


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
