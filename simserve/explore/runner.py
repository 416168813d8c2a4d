"""Runs what the page asks, beside the server: few at a time, each client in turn, none longer than its time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import anyio
from anyio.to_thread import run_sync

from simserve.explore.limits import BusyError, Check, TooLongError

Answer = TypeVar("Answer")
_LOOK_AGAIN = 0.05
"""Seconds."""
MOST_TIMES = 24.0
"""Times the usual seconds that a question may take that asks for more."""


@dataclass(slots=True)
class Runner:
    """Workers and their queue.

    Args:
        workers: Questions that are worked on at once.
        max_waiting: Questions of all clients that may wait.
        max_of_client: Questions of one client that may be open, so that others get their turn.
        seconds: A question may take.
        patience: Seconds that a further question of a client waits for one of its own to end before it is refused: two
            pages of one person, each with two configurations, ask as many as are allowed.
    """

    workers: int = 2
    max_waiting: int = 32
    max_of_client: int = 4
    seconds: float = 5.0
    patience: float = 5.0
    _limiter: anyio.CapacityLimiter | None = None
    _open: dict[str, int] = field(default_factory=dict)

    async def run(self, client: str, work: Callable[[Check], Answer], seconds: float | None = None) -> Answer:
        """Return what ``work`` returns; it may take ``seconds``, by default those of the runner.

        Raises:
            BusyError: Too many questions are open.
            TooLongError: It took too long.
        """
        until = time.monotonic() + self.patience
        while self._open.get(client, 0) >= self.max_of_client and time.monotonic() < until:
            await anyio.sleep(_LOOK_AGAIN)
        if self._open.get(client, 0) >= self.max_of_client:
            raise BusyError(f"{self.max_of_client} questions of this page are being worked on; wait for one of them")
        if sum(self._open.values()) >= self.max_waiting:
            raise BusyError("too many people are asking; try again in a moment")
        self._open[client] = self._open.get(client, 0) + 1
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(self.workers)
        try:
            answer: Answer = await run_sync(
                partial(
                    self._timed, work, self.seconds if seconds is None else min(seconds, MOST_TIMES * self.seconds)
                ),
                limiter=self._limiter,
            )
            return answer
        finally:
            self._open[client] -= 1
            if not self._open[client]:
                del self._open[client]

    def _timed(self, work: Callable[[Check], Answer], seconds: float) -> Answer:
        end = time.monotonic() + seconds

        def check(_done: int, _total: int) -> None:
            if time.monotonic() > end:
                raise TooLongError(
                    f"this takes longer than {seconds:g} s here",
                    remedy="ask for fewer requests, GPUs or choices, or a lower rate",
                )

        return work(check)
