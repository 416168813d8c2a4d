"""Callers: what clients do when they get an answer, and when they get none. Knows no replica.

The clients of a fleet that changes; how long they wait, and when they try again, is `simserve.engine.callers`', as
everywhere.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from simserve.engine import callers as rules
from simserve.engine.callers import ARRIVE, Event
from simserve.engine.delivery import Delivery, seconds_to_client
from simserve.engine.state import RequestTable
from simserve.sim.chance import Chance
from simserve.sim.patience import callers_of
from simserve.sim.streaming_spec import StreamingSpec
from simserve.workload.requests import RequestSpecs


class Callers:
    """The clients of a run, with patience and retries by class.

    Attributes:
        on_end: Told of every request that comes to its end, and when its client knows.
        delivery: How long answers are on their way; None: they are with the client at once, or nobody waits for them.

    Args:
        specs: What they send.
        requests: The table of all requests.
        events: Where arrivals and time limits are put, a heap.
        arrival_time: When each request was first sent; filled for a closed loop.
        latency: Seconds from sending to the router, shape [N].
        streaming: How tokens reach them, and how long a connection stays open; None: at once, and for ever.
    """

    delivery: Delivery | None = None

    def __init__(
        self,
        specs: RequestSpecs,
        requests: RequestTable,
        events: list[Event],
        arrival_time: NDArray[np.float64],
        latency: NDArray[np.float64],
        streaming: StreamingSpec | None = None,
    ) -> None:
        self._chance = Chance(specs, "retries")
        self._callers = callers_of(specs, streaming, latency, arrival_time, self._chance.uniforms)
        self._callers.events = events
        # Requests that come to an end in all; of clients who stop by a time, known when the last of them has.
        self.num_due = len(specs)
        self.on_end: list[Callable[[int, float], None]] = []
        self._not_before = 0.0
        self._requests = requests
        self._arrival_time = arrival_time

    @property
    def num_ended(self) -> int:
        """Requests that have come to an end."""
        return self._callers.num_ended

    @property
    def num_resent(self) -> int:
        """How often clients have sent a request again."""
        return self._callers.num_resent

    @property
    def tries(self) -> NDArray[np.float64]:
        """Attempts that another one followed: arrival at the scheduler, first step, end (seconds); shape [N, 3]."""
        return np.array(self._callers.abandoned, dtype=np.float64).reshape(-1, 3)

    def attempt(self, index: int) -> int:
        """Return which attempt at a request is under way, the first being 0."""
        return self._callers.tries[index]

    def wait_for(self, index: int, now: float) -> None:
        """Start the client's time limits for the attempt that arrives ``now``."""
        rules.wait_for(self._callers, index, now)

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
        self._chance.top_up(1)
        if rules.send_again(self._callers, self._requests, index, now, free_at, retry_after):
            return
        self._requests.status[index] = status
        self._requests.reason[index] = reason
        self._requests.finish_time[index] = now
        self.ended(index, now, free_at)

    def again(self, index: int, now: float) -> None:
        """Let the server try a request again by itself: the attempt before is forgotten, the client knows nothing."""
        rules.abandon(self._callers, self._requests, index, now)
        self._requests.ready_time[index] = now

    def ended(self, index: int, now: float, not_before: float = 0.0) -> None:
        """Note that a request has come to its end, and tell who wants to know: what follows on it is sent.

        Args:
            index: The request.
            now: When the server is done with it, and its client knows unless answers take time on their way.
            not_before: When the next one arrives at the earliest.
        """
        self._callers.num_ended += 1
        self._not_before = not_before
        if self.delivery is not None:
            now += seconds_to_client(self.delivery, self._requests, index)
        for tell in self.on_end:
            tell(index, now)

    @property
    def unsent(self) -> list[tuple[float, int]]:
        """Requests whose first attempt was to reach the router, and has not: their times and indices."""
        return [(time, index) for time, kind, index, attempt in self._callers.events if kind == ARRIVE and not attempt]

    def submit(self, index: int, ready_time: float) -> None:
        """Let a request that was sent at its ``arrival_time`` arrive at ``ready_time``; it follows on no other."""
        self._callers.sent_at[index] = float(self._arrival_time[index])
        rules.put(self._callers, self._requests, index, ready_time)

    def send(self, index: int, ready_time: float) -> None:
        """Let a request of a conversation arrive at ``ready_time``, not before the one before it is off the server."""
        self._callers.sent_at[index] = float(self._arrival_time[index])
        rules.put(self._callers, self._requests, index, max(ready_time, self._not_before))
