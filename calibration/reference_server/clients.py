"""Clients in real time: a thread that sends Poisson arrivals or keeps a number of requests in flight."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence

from calibration.reference_server.scheduler import Request


class LiveClients:
    """A client thread beside the server.

    Args:
        requests: In the order in which they are sent.
        offsets: Open loop: when each is sent, seconds from the start; None: a closed loop.
        concurrency: Closed loop: requests in flight.
    """

    def __init__(
        self, requests: Sequence[Request], offsets: Sequence[float] | None = None, concurrency: int = 0
    ) -> None:
        self.requests, self.offsets, self.concurrency = requests, offsets, concurrency
        self._arrived: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._answered: queue.SimpleQueue[float] = queue.SimpleQueue()
        self._held: list[Request] = []
        self._is_over = False
        self._thread = threading.Thread(target=self._send_all, name="clients", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def _send_all(self) -> None:
        start = time.perf_counter()
        for number, request in enumerate(self.requests):
            if self.offsets is not None:
                _wait_until(start + self.offsets[number])
            elif number >= self.concurrency:
                self._answered.get()
            request.sent = time.perf_counter()
            self._arrived.put(request)
        self._arrived.put(None)

    def take(self, now: float) -> list[Request]:  # noqa: ARG002 (what has arrived by now is in the queue)
        """Return the requests that have reached the server, in order."""
        taken, self._held = self._held, []
        while not self._arrived.empty():
            request = self._arrived.get()
            if request is None:
                self._is_over = True
            else:
                taken.append(request)
        return taken

    def wait(self) -> float | None:
        """Wait for the next request and return when it is there; None where no more will come."""
        if self._is_over:
            return None
        request = self._arrived.get()
        if request is None:
            self._is_over = True
            return None
        self._held.append(request)
        return time.perf_counter()

    def answer(self, request: Request, now: float) -> None:  # noqa: ARG002 (any answer lets the next one go)
        """Let the client that got its answer send the next request."""
        self._answered.put(now)


def _wait_until(moment: float) -> None:
    while (left := moment - time.perf_counter()) > 0:
        time.sleep(left)  # no spinning: the server's thread wants the interpreter
