"""Clients: how long clients wait, and what they do when they get no answer: they send the request again, or give up.

What happens to them at a time of its own is an event in one heap. They know no replica and no router.
"""

from __future__ import annotations

from array import array
from collections.abc import MutableSequence, Sequence
from heapq import heappush
from math import nan

from simserve.engine.state import INFINITY, UNFINISHED, RequestTable
from simserve.engine.uniforms import Uniforms, take_uniform

ARRIVE, TIMEOUT, SUBMIT, LAND, ANSWER, TURN, FIRST_BYTE = range(7)
"""Kinds of events, in the order in which they happen at one instant."""
Event = tuple[float, int, int, int]
"""Time, kind, request, and the attempt (or the replica) that it is about."""

_MOST_DOUBLINGS = 60


class Patience:
    """What clients of each class do; one entry a class in all columns, one in all without classes.

    Attributes:
        kinds: Class of each request, shape [N].
        timeout: Seconds from its sending in which a request must be answered; inf: no limit.
        has_timeouts: Whether any class has one.
        first_byte_timeout: Seconds in which the first token must come, of any class; inf: no limit.
        max_tries: How often a request is sent again.
        backoff: Pause before the first retry, seconds; it doubles with each.
        max_backoff: Longest pause.
        jitter: Share of the pause that a random number may take off.
        honors: Whether the client waits at least as long as a refusal says.
        uniforms: For the jitter.
    """

    __slots__ = (
        "backoff",
        "first_byte_timeout",
        "has_timeouts",
        "honors",
        "jitter",
        "kinds",
        "max_backoff",
        "max_tries",
        "timeout",
        "uniforms",
    )

    def __init__(
        self,
        *,
        kinds: Sequence[int],
        timeout: Sequence[float],
        first_byte_timeout: float,
        max_tries: Sequence[int],
        backoff: Sequence[float],
        max_backoff: Sequence[float],
        jitter: Sequence[float],
        honors: Sequence[int],
        uniforms: Uniforms,
    ) -> None:
        self.kinds = kinds
        self.timeout, self.first_byte_timeout = timeout, first_byte_timeout
        self.has_timeouts = min(timeout) < INFINITY
        self.max_tries, self.backoff, self.max_backoff = max_tries, backoff, max_backoff
        self.jitter, self.honors = jitter, honors
        self.uniforms = uniforms


class Clients:
    """The clients of a run.

    Attributes:
        patience: What they do.
        events: What is still to happen, a heap of `Event`.
        latency: From its sending to the router, seconds, shape [N] as the next two.
        sent_at: When the attempt at hand was sent.
        tries: Which one that is, the first being 0.
        abandoned: Of every attempt that came to nothing and was followed by another: when it reached the scheduler, its
            first step (NaN: none), its end; three entries each.
        num_resent: How many of them clients sent again.
        num_ended: Requests that have come to an end.
    """

    __slots__ = ("abandoned", "events", "latency", "num_ended", "num_resent", "patience", "sent_at", "tries")

    def __init__(self, patience: Patience, latency: Sequence[float], sent_at: MutableSequence[float]) -> None:
        self.patience = patience
        self.events: list[Event] = []
        self.latency, self.sent_at = latency, sent_at
        self.tries = array("i", [0]) * len(sent_at)
        self.abandoned: list[float] = []
        self.num_resent = self.num_ended = 0


def wait_for(clients: Clients, index: int, now: float) -> None:
    """Start the client's time limits for the attempt that arrives ``now``."""
    patience = clients.patience
    if patience.first_byte_timeout < INFINITY:
        first = max(clients.sent_at[index] + patience.first_byte_timeout, now)
        heappush(clients.events, (first, FIRST_BYTE, index, clients.tries[index]))
    if patience.has_timeouts:
        timeout = patience.timeout[patience.kinds[index]]
        if timeout < INFINITY:
            heappush(clients.events, (max(clients.sent_at[index] + timeout, now), TIMEOUT, index, clients.tries[index]))


def wait_for_task(clients: Clients, index: int, deadline: float, now: float) -> None:
    """Let the client hang up the attempt that arrives ``now`` at the deadline of its task."""
    if deadline < INFINITY:
        heappush(clients.events, (max(deadline, now), TIMEOUT, index, clients.tries[index]))


def put(clients: Clients, requests: RequestTable, index: int, ready_time: float) -> None:
    """Let the attempt at hand arrive at ``ready_time``."""
    requests.ready_time[index] = ready_time
    heappush(clients.events, (ready_time, ARRIVE, index, clients.tries[index]))


def send_again(
    clients: Clients,
    requests: RequestTable,
    index: int,
    now: float,
    free_at: float,
    retry_after: float,
    latest: float,
) -> bool:
    """Let a client who knows ``now`` that an attempt came to nothing send the request again; False: it gives up.

    Args:
        clients: The clients.
        requests: The table.
        index: The request.
        now: Seconds.
        free_at: When the row is free for another attempt: the server has let go.
        retry_after: Seconds to wait at least, as a refusal says.
        latest: When the client gives up the task that it is of; what it would send then or later ends then.
    """
    patience, tries = clients.patience, clients.tries[index]
    kind = patience.kinds[index]
    if tries >= patience.max_tries[kind]:
        return False
    abandon(clients, requests, index, now)
    clients.tries[index] = tries + 1
    clients.num_resent += 1
    pause = patience.backoff[kind]
    doublings = 0
    while doublings < tries and doublings < _MOST_DOUBLINGS and pause < patience.max_backoff[kind]:
        pause *= 2.0
        doublings += 1
    pause = min(pause, patience.max_backoff[kind])
    pause *= 1.0 - patience.jitter[kind] * take_uniform(patience.uniforms)
    if patience.honors[kind]:
        pause = max(pause, retry_after)
    sent_at = now + pause
    ready_time = sent_at + clients.latency[index]
    if sent_at >= latest:
        sent_at = latest
        ready_time = max(latest, now)
    clients.sent_at[index] = sent_at
    put(clients, requests, index, max(ready_time, free_at))
    return True


def abandon(clients: Clients, requests: RequestTable, index: int, now: float) -> None:
    """Forget what happened to a request in an attempt that ends ``now``; its preemptions stay counted."""
    clients.abandoned.extend((requests.ready_time[index], requests.scheduled_time[index], now))
    requests.status[index] = UNFINISHED
    requests.reason[index] = 0
    requests.generated_tokens[index] = requests.computed_tokens[index] = 0
    requests.scheduled_time[index] = requests.first_token_time[index] = requests.finish_time[index] = nan
    requests.last_token_time[index] = nan
    requests.itl_max[index] = -1.0
    requests.swapped_tokens[index] = 0
    requests.replica_id[index] = -1
