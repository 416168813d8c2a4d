"""Callers: who sends requests, how long they wait, and what they do when they get no answer. Knows no replica."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappush

import numpy as np
from numpy.typing import NDArray

from simserve import rng
from simserve.engine.state import RequestTable
from simserve.sim.delivery import Delivery
from simserve.sim.records import UNFINISHED
from simserve.workload.class_spec import ClassSpec, RetrySpec
from simserve.workload.requests import RequestSpecs

ARRIVE, TIMEOUT, SUBMIT, LAND, ANSWER, TURN = range(6)
"""Kinds of events, in the order in which they happen at one instant."""
Event = tuple[float, int, int, int]
"""Time, kind, request, and the attempt (or the unit) that it is about."""
_UNIFORMS_AT_ONCE = 1024


class Callers:
    """The clients of a run: open loop or closed, with patience and retries by class.

    Attributes:
        on_end: Told of every request that comes to its end, and when its client knows.
        delivery: How long answers are on their way; None: they are with the client at once, or nobody waits for them.

    Args:
        specs: What they send.
        requests: The table of all requests.
        events: Where arrivals and time limits are put, a heap.
        arrival_time: When each request was first sent; filled for a closed loop.
        latency: Seconds from sending to the router, shape [N].
        http_timeout: Seconds after which a connection without an answer is closed; None: never.
    """

    delivery: Delivery | None = None

    def __init__(
        self,
        specs: RequestSpecs,
        requests: RequestTable,
        events: list[Event],
        arrival_time: NDArray[np.float64],
        latency: NDArray[np.float64],
        http_timeout: float | None = None,
    ) -> None:
        self.num_ended = 0
        # Requests that come to an end in all; of clients who stop by a time, known when the last of them has.
        self.num_due = len(specs)
        self._num_idle = self._num_unsent = 0
        self.num_resent = 0
        self.abandoned: list[tuple[float, float, float]] = []
        self.on_end: list[Callable[[int, float], None]] = []
        self._not_before = 0.0
        self._specs, self._requests, self._events = specs, requests, events
        self._arrival_time, self._latency = arrival_time, latency
        self._sent_at = arrival_time.tolist()
        self._tries: dict[int, int] = {}
        self._next = 0
        self._random = rng.stream(specs.seed, "retries", specs.replication)
        self._uniforms: list[float] = []
        self._class_of = None if specs.request_class is None else specs.request_class.tolist()
        limits = [(each.timeout, http_timeout) for each in specs.classes] or [(None, http_timeout)]
        self._timeouts = [min((one for one in each if one is not None), default=None) for each in limits]
        self._has_timeouts = any(timeout is not None for timeout in self._timeouts)

    def start(self) -> None:
        """Closed loop without conversations: let every client send its first request, at 0 or over the ramp-up."""
        for _ in range(self._specs.concurrency or 0 if self._specs.turn is None else 0):
            self._send_next(0.0)

    def class_of(self, index: int) -> ClassSpec | None:
        """Return the class of a request, None without classes."""
        return None if self._class_of is None else self._specs.classes[self._class_of[index]]

    def attempt(self, index: int) -> int:
        """Return which attempt at a request is under way, the first being 0."""
        return self._tries.get(index, 0)

    def wait_for(self, index: int, now: float) -> None:
        """Start the client's time limit for the attempt that arrives ``now``."""
        if not self._has_timeouts:
            return
        timeout = self._timeouts[0 if self._class_of is None else self._class_of[index]]
        if timeout is not None:
            deadline = max(self._sent_at[index] + timeout, now)
            heappush(self._events, (deadline, TIMEOUT, index, self.attempt(index)))

    def without_answer(
        self, index: int, now: float, status: int, reason: int, *, free_at: float, retry_after: float = 0.0
    ) -> None:
        """Let the client react at ``now`` to an attempt that came to nothing: it tries again, or that was it.

        Args:
            index: The request.
            now: When the client knows.
            status: What becomes of the request if it gives up.
            reason: Why, see `simserve.sim.records.REASONS`.
            free_at: When the row is free for another attempt: the server has let go.
            retry_after: Seconds to wait at least, as a 503 says.
        """
        requests = self._requests
        own = self.class_of(index)
        tries = self._tries.get(index, 0)
        retries = None if own is None else own.retries
        if retries is None or tries >= retries.max:
            requests.status[index] = status
            requests.reason[index] = reason
            requests.finish_time[index] = now
            self.ended(index, now, free_at)
            return
        self.abandoned.append((requests.ready_time[index], requests.scheduled_time[index], now))
        _reset(requests, index)
        self._tries[index] = tries + 1
        self.num_resent += 1
        self._sent_at[index] = sent_at = now + self._pause(retries, tries, retry_after)
        self._put(index, max(sent_at + float(self._latency[index]), free_at))

    def again(self, index: int, now: float) -> None:
        """Let the server try a request again by itself: the attempt before is forgotten, the client knows nothing."""
        requests = self._requests
        self.abandoned.append((requests.ready_time[index], requests.scheduled_time[index], now))
        _reset(requests, index)
        requests.ready_time[index] = now

    def ended(self, index: int, now: float, not_before: float = 0.0) -> None:
        """Note that a request has come to its end; in a closed loop its client thinks, then sends the next.

        Args:
            index: The request.
            now: When the server is done with it, and its client knows unless answers take time on their way.
            not_before: When the next one arrives at the earliest.
        """
        self.num_ended += 1
        self._not_before = not_before
        if self.delivery is not None:
            now += self.delivery.seconds(index)
        for tell in self.on_end:
            tell(index, now)
        if self._specs.concurrency is not None and self._specs.turn is None:
            self._send_next(now, not_before)

    @property
    def unsent(self) -> list[tuple[float, int]]:
        """Requests whose first attempt was to reach the router, and has not: their times and indices."""
        return [(time, index) for time, kind, index, attempt in self._events if kind == ARRIVE and not attempt]

    def send(self, index: int, ready_time: float) -> None:
        """Let a turn of a conversation arrive at ``ready_time``, not before the turn before it is off the server."""
        self._sent_at[index] = float(self._arrival_time[index])
        self._put(index, max(ready_time, self._not_before))

    def _send_next(self, answered_at: float, not_before: float = 0.0) -> None:
        index, specs = self._next, self._specs
        if index < len(specs):
            self._next = index + 1
            is_first = index < (specs.concurrency or 0)
            sent_at = specs.begins_at(index) if is_first else answered_at + float(specs.think_time[index])
            if not specs.is_over(sent_at):
                self._arrival_time[index] = self._sent_at[index] = sent_at
                self._put(index, max(sent_at + float(self._latency[index]), not_before))
                return
            self._num_unsent += 1
        self._num_idle += 1
        if self._num_idle == specs.concurrency:
            self.num_due = self._next - self._num_unsent

    def _put(self, index: int, ready_time: float) -> None:
        self._requests.ready_time[index] = ready_time
        heappush(self._events, (ready_time, ARRIVE, index, self.attempt(index)))

    def _pause(self, retries: RetrySpec, tries: int, retry_after: float) -> float:
        pause = min(retries.backoff * 2.0 ** min(tries, 60), retries.max_backoff)
        if not self._uniforms:
            self._uniforms = self._random.random(_UNIFORMS_AT_ONCE).tolist()
        pause *= 1.0 - retries.jitter * self._uniforms.pop()
        return max(pause, retry_after) if retries.honor_retry_after else pause


def _reset(requests: RequestTable, index: int) -> None:
    """Forget what happened to a request; its preemptions stay counted."""
    requests.status[index] = UNFINISHED
    requests.reason[index] = 0
    requests.generated_tokens[index] = requests.computed_tokens[index] = 0
    requests.scheduled_time[index] = requests.first_token_time[index] = requests.finish_time[index] = float("nan")
    requests.last_token_time[index] = float("nan")
    requests.itl_max[index] = -1.0
    requests.replica_id[index] = -1
