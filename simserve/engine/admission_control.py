"""The admission control of a cluster: which arrivals are refused, and why.

It sees what a front end sees of the replica that the router has chosen, never how long an answer will be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simserve.engine.data_parallel import kv_share, num_running_at, num_seats_of
from simserve.engine.slots import slotted
from simserve.engine.state import INFINITY, DataParallelReplica, Finishes, Uniforms, take_uniform

ANY_NUMBER = -1
_NEW_SHARE = 0.1
"""Weight of a new interval between finishes in the running mean."""


@dataclass(slots=True, eq=False, kw_only=True)
class AdmissionControl:
    """Rules, and the state that they use.

    Attributes:
        bucket: A rate limit, in front of all replicas; None: there is none.
        max_queue: Most requests that wait at a replica; `ANY_NUMBER`: no rule.
        kv_headroom: Share of a replica's KV memory that must be free; 0: no rule.
        probabilistic_from: Load from which requests are refused at random; inf: no rule.
        patience: By class, the seconds from arrival within which a request's first token must come; inf: no limit.
        kinds: Class of each request.
        has_patience: Whether any class has such a limit, and a rule uses it.
        retry_after: Wait that a refusal asks of the client, seconds.
        uniforms: For refusals at random.
    """

    bucket: Bucket | None
    max_queue: int
    kv_headroom: float
    probabilistic_from: float
    patience: Sequence[float]
    kinds: Sequence[int]
    has_patience: bool
    retry_after: float
    uniforms: Uniforms


def end_pause(finishes: Finishes, now: float) -> None:
    """Record that a replica has received a request after a pause."""
    finishes.last, finishes.is_warm = now, False


def note_finishes(finishes: Finishes, count: int, num_running: int, now: float) -> None:
    """Update the running mean of the seconds between two finishes, with weight 0.1 for the new interval.

    Args:
        finishes: Finishes of the replica.
        count: Requests that have finished ``now``.
        num_running: Requests that go on.
        now: Seconds.
    """
    interval = (now - finishes.last) / count
    if not finishes.is_warm:
        # All running requests arrived within this time, and will finish in about the same.
        interval /= num_running + 1
    finishes.is_warm = True
    finishes.last = now
    finishes.interval += (interval - finishes.interval) * (_NEW_SHARE if finishes.interval else 1.0)


def refusal(
    admission_control: AdmissionControl,
    index: int,
    replica: DataParallelReplica,
    load: int,
    finish_interval: float,
    now: float,
) -> int:
    """Return why a request is refused at ``now``, `ADMITTED`: it is not.

    Args:
        admission_control: The rules; the first that refuses is the reason.
        index: The request.
        replica: Where the router would send it.
        load: Requests there, including those that its scheduler has not seen yet.
        finish_interval: Mean seconds between two finishes there.
        now: Seconds.
    """
    bucket = admission_control.bucket
    if bucket is not None and not holds(bucket, 1.0, now):
        return RATE_LIMIT
    reason = refusal_by(admission_control, index, replica, load, finish_interval, now)
    if reason == ADMITTED and bucket is not None:
        take(bucket, 1.0)
    return reason


def refusal_at_gateway(
    admission_control: AdmissionControl, index: int, num_parked: int, seconds: float, now: float
) -> int:
    """Return why a request that no replica may take yet is refused, like `refusal`.

    Args:
        admission_control: The rules.
        index: The request.
        num_parked: Requests waiting in front of all replicas that come before it.
        seconds: How long it would wait there, as far as known.
        now: Seconds.
    """
    bucket = admission_control.bucket
    if bucket is not None and not holds(bucket, 1.0, now):
        return RATE_LIMIT
    if admission_control.max_queue >= 0 and num_parked >= admission_control.max_queue:
        return QUEUE_FULL
    if admission_control.has_patience and seconds > admission_control.patience[admission_control.kinds[index]]:
        return DEADLINE
    if bucket is not None:
        take(bucket, 1.0)
    return ADMITTED


def refusal_by(
    admission_control: AdmissionControl,
    index: int,
    replica: DataParallelReplica,
    load: int,
    finish_interval: float,
    now: float,
) -> int:
    """Return why a replica would not take a request; arguments as in `refusal`."""
    num_waiting = load - num_running_at(replica)
    # An idle replica has no queue, even one of 0.
    if admission_control.max_queue >= 0 and num_waiting >= admission_control.max_queue and load:
        return QUEUE_FULL
    if admission_control.kv_headroom > 0.0 and 1.0 - kv_share(replica, now) < admission_control.kv_headroom:
        return KV_HEADROOM
    if admission_control.probabilistic_from < INFINITY and _is_drawn(admission_control, replica, load, now):
        return LOAD
    if (
        admission_control.has_patience
        and num_waiting * finish_interval > admission_control.patience[admission_control.kinds[index]]
    ):
        return DEADLINE
    return ADMITTED


def _is_drawn(admission_control: AdmissionControl, replica: DataParallelReplica, load: int, now: float) -> bool:
    share = max(kv_share(replica, now), load / num_seats_of(replica))
    start = admission_control.probabilistic_from
    if share < start:
        return False
    return take_uniform(admission_control.uniforms) < (share - start) / (1.0 - start)


@slotted
class Bucket:
    """What a rate limit admits.

    Args:
            rate: Units per second in the long run.
            burst: Units that an unused bucket holds.

        Attributes:
            level: Units that it held when last updated; may be negative.
            filled_at: When that was, seconds.
    """

    def __init__(self, rate: float, burst: float) -> None:
        self.rate, self.burst = rate, burst
        self.level, self.filled_at = burst, 0.0


def fill(bucket: Bucket, now: float) -> float:
    """Return the level of a bucket ``now``."""
    level = min(bucket.burst, bucket.level + bucket.rate * (now - bucket.filled_at))
    bucket.level, bucket.filled_at = level, now
    return level


def holds(bucket: Bucket, amount: float, now: float) -> bool:
    """Return whether ``amount`` may pass; more than the bucket ever holds passes when it is full."""
    return fill(bucket, now) >= min(amount, bucket.burst)


def wait(bucket: Bucket, amount: float, now: float) -> float:
    """Return the seconds until ``amount`` may pass, by the rule of `holds`."""
    return max(0.0, (min(amount, bucket.burst) - fill(bucket, now)) / bucket.rate)


def take(bucket: Bucket, amount: float) -> None:
    """Take ``amount`` from the bucket; its level may become negative."""
    bucket.level -= amount


REJECTED, TIMED_OUT = 1, 2
"""Statuses besides COMPLETED, FAILED and UNFINISHED of `simserve.engine.state`."""

ADMITTED = 0
RATE_LIMIT, QUEUE_FULL, KV_HEADROOM, LOAD, DEADLINE, GAVE_UP = range(2, 8)
"""Refused at the admission control, by its rules; given up by its client."""
API_LIMIT = 10
"""Refused by the API that it went to."""
TASK_CANCELLED = 11
"""Given up together with the agent's task that it is a call of, or never sent for that reason."""
