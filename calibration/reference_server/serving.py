"""The loop of the reference server: take what has arrived, schedule, compute, answer; on a real or a virtual clock.

Knows a scheduler, a clock and where requests come from; not what computes a step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Protocol

from calibration.reference_server.scheduler import Request, Scheduler, Step


class Clock(Protocol):
    """What time it is, and what passes while a step is computed."""

    def now(self) -> float:
        """Return the time, seconds."""

    def pass_step(self, step: Step) -> None:
        """Let the time of a step that has been computed pass."""

    def pass_until(self, moment: float) -> None:
        """Let time pass where there is nothing to compute."""


class RealClock:
    """Time as it passes: a step has taken what it took."""

    def now(self) -> float:
        """Return the time, seconds."""
        return time.perf_counter()

    def pass_step(self, step: Step) -> None:
        """Nothing: the time has passed."""

    def pass_until(self, moment: float) -> None:
        """Nothing: `Clients.wait` has waited."""


class ProcessorClock:
    """The processor time of the serving thread, and idle time jumped over.

    For machines that are shared: what others compute meanwhile does not count, if they slow the processor down it
    does. Kernels must run on the calling thread: one thread, no GPU. Clients are scheduled on
    it (`ScheduledClients`), since nobody else can see it.
    """

    def __init__(self) -> None:
        self.skipped = -time.thread_time()

    def now(self) -> float:
        """Return the time, seconds."""
        return time.thread_time() + self.skipped

    def pass_step(self, step: Step) -> None:
        """Nothing: the time has passed."""

    def pass_until(self, moment: float) -> None:
        """Jump to a moment ahead."""
        self.skipped += max(moment - self.now(), 0.0)


class VirtualClock:
    """Time that only steps with given durations and waiting for arrivals move.

    Args:
        duration: Seconds of a step.
    """

    def __init__(self, duration: Callable[[Step], float]) -> None:
        self.duration = duration
        self.time = 0.0

    def now(self) -> float:
        """Return the time, seconds."""
        return self.time

    def pass_step(self, step: Step) -> None:
        """Add the duration of a step."""
        self.time += self.duration(step)

    def pass_until(self, moment: float) -> None:
        """Jump to a moment ahead."""
        self.time = max(self.time, moment)


class Clients(Protocol):
    """Where requests come from and answers go to."""

    def take(self, now: float) -> list[Request]:
        """Return the requests that have reached the server by now, in order."""

    def wait(self) -> float | None:
        """Wait for the next request and return when it is there; None where no more will come."""

    def answer(self, request: Request, now: float) -> None:
        """Hand over the last token of a request."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A step that was served.

    Attributes:
        start: When it was scheduled, seconds.
        seconds: From there to its tokens.
        decodes: Index and context (tokens in the cache before it) of the decoding requests.
        chunks: Index, tokens in the cache before it, and tokens of the prefilling ones.
        num_preempted: Requests that lost their blocks for it.
    """

    start: float
    seconds: float
    decodes: tuple[tuple[int, int], ...]
    chunks: tuple[tuple[int, int, int], ...]
    num_preempted: int


def serve(
    scheduler: Scheduler, clients: Clients, clock: Clock, compute: Callable[[Step], None] | None = None
) -> list[StepRecord]:
    """Serve until the clients have no more, and return every step.

    Args:
        scheduler: Empty.
        clients: Who sends.
        clock: Real, or virtual with the durations of steps.
        compute: Computes the tokens of a step; None: nothing is computed.
    """
    records = []
    while True:
        start = clock.now()
        for request in clients.take(start):
            scheduler.add(request)
        step = scheduler.schedule()
        if step is None:
            moment = clients.wait()
            if moment is None:
                return records
            clock.pass_until(moment)
            continue
        decodes = tuple((request.index, request.num_computed_tokens) for request in step.decodes)
        chunks = tuple((request.index, request.num_computed_tokens, tokens) for request, tokens in step.chunks)
        if compute is not None:
            compute(step)
        answered = scheduler.complete(step)
        clock.pass_step(step)
        now = clock.now()
        for request in answered:
            request.token_times.append(now)
            if request.is_finished:
                clients.answer(request, now)
        records.append(StepRecord(start, now - start, decodes, chunks, step.num_preempted))


class ScheduledClients:
    """Clients on a virtual clock: an open loop at given times, or a closed loop.

    Args:
        requests: In the order in which they are sent.
        arrivals: When each is sent, seconds; None: a closed loop.
        concurrency: Closed loop: clients.
        frontend_latency: From sending to the server, seconds.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        arrivals: Sequence[float] | None = None,
        concurrency: int = 0,
        frontend_latency: float = 0.0,
    ) -> None:
        self.requests, self.frontend_latency = requests, frontend_latency
        self._coming: list[tuple[float, int]] = []
        self._num_sent = 0
        first = [0.0] * min(concurrency, len(requests)) if arrivals is None else arrivals
        self._is_closed = arrivals is None
        for moment in first:
            self._send(moment)

    def _send(self, moment: float) -> None:
        request = self.requests[self._num_sent]
        request.sent = moment
        heappush(self._coming, (moment + self.frontend_latency, self._num_sent))
        self._num_sent += 1

    def take(self, now: float) -> list[Request]:
        """Return the requests that have reached the server by now, in order."""
        taken = []
        while self._coming and self._coming[0][0] <= now:
            taken.append(self.requests[heappop(self._coming)[1]])
        return taken

    def wait(self) -> float | None:
        """Return when the next request is there; None where no more will come."""
        return self._coming[0][0] if self._coming else None

    def answer(self, request: Request, now: float) -> None:  # noqa: ARG002 (any answer lets the next one go)
        """Let the client that got its answer send the next request."""
        if self._is_closed and self._num_sent < len(self.requests):
            self._send(now)
