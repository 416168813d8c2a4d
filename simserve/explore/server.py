"""Serving the page: limits on connections, on questions per client and on time, and answers in parts."""

from __future__ import annotations

import json
import time
from asyncio import BaseTransport
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any, TypeVar

import anyio
import uvicorn
from anyio.to_thread import run_sync
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from simserve.explore.queries import BusyError, Check, TooLongError

Answer = TypeVar("Answer")
Tell = Callable[[dict[str, Any]], None]
Work = Callable[[Check, Tell], dict[str, Any]]
HEADER_SECONDS = 5.0
"""How long a connection may be open without a request in progress; bodies have their own limit in
`simserve.explore.app`."""
_MOST_CONNECTIONS = 256
"""Most connections at once; if all of them are being answered, the next request is told to come back later."""
_LARGEST_HEADER = 16_384  # Most bytes of a header.
_LOOK_AGAIN = 0.05  # Seconds between two checks for a free place.
MOST_TIMES = 24.0  # Largest multiple of the usual time for a question that needs more.
MEDIA_TYPE = "application/x-ndjson"
_SECONDS_BETWEEN_PARTS = 0.15  # Seconds between two checks for new parts.
_NOBODY = "nobody waits for the answer any more"


class HurriedProtocol(H11Protocol):  # type: ignore[misc]
    """HTTP that closes connections which send nothing, or a byte now and then, so that others get a place."""

    def connection_made(self, transport: BaseTransport) -> None:
        """Start to watch a connection."""
        super().connection_made(transport)
        self._idle_since = self.loop.time()
        if len(self.connections) > _MOST_CONNECTIONS:
            self._make_room()
        self._watch()

    def on_response_complete(self) -> None:
        """Give the connection the same time again for its next request."""
        self._idle_since = self.loop.time()
        super().on_response_complete()

    def _make_room(self) -> None:
        """Close the connection that has been silent for longest, so that idle connections cannot keep others out."""
        others = [each for each in self.connections if each is not self and isinstance(each, HurriedProtocol)]
        silent = [each for each in others if not each._is_working and not each.transport.is_closing()]
        if silent:
            min(silent, key=lambda each: each._idle_since).transport.close()

    @property
    def _is_working(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _watch(self) -> None:
        if self.transport.is_closing():
            return
        if not self._is_working and self.loop.time() - self._idle_since >= HEADER_SECONDS:
            self.transport.close()
        else:
            self.loop.call_later(HEADER_SECONDS / 4, self._watch)


class _Server(uvicorn.Server):  # type: ignore[misc]
    """A server that ends the questions being worked on before it ends: their threads would keep the process alive."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End on Ctrl-C or SIGTERM."""
        self.config.app.state.runner.is_ending = True
        super().handle_exit(sig, frame)


def server(app: Starlette) -> Any:
    """Return uvicorn's server of the page."""
    return _Server(
        uvicorn.Config(
            app,
            http=HurriedProtocol,
            log_level="warning",
            limit_concurrency=_MOST_CONNECTIONS + 1,  # plus the newest, which makes room first
            timeout_keep_alive=int(HEADER_SECONDS),
            h11_max_incomplete_event_size=_LARGEST_HEADER,
            server_header=False,
        )
    )


@dataclass(slots=True)
class Runner:
    """Workers and their queue.

    Args:
        workers: Questions that run at once.
        max_waiting: Most open questions of all clients.
        max_of_client: Most open questions of one client, so that others get their turn.
        seconds: How long a question may take.
        patience: Seconds that one more question of a client waits for another one of it to end before it is refused:
            two pages of one person, each with two configurations, already ask as many as allowed.
        is_ending: Whether the questions that are open end at their next check, as the server ends.
    """

    workers: int = 2
    max_waiting: int = 32
    max_of_client: int = 4
    seconds: float = 5.0
    patience: float = 5.0
    is_ending: bool = False
    _limiter: anyio.CapacityLimiter | None = None
    _open: dict[str, int] = field(default_factory=dict)

    async def run(
        self,
        client: str,
        work: Callable[[Check], Answer],
        seconds: float | None = None,
        *,
        has_left: Callable[[], bool] = lambda: False,
    ) -> Answer:
        """Return what ``work`` returns; it may take ``seconds``, by default as long as the runner allows.

        Raises:
            BusyError: Too many questions are open.
            TooLongError: It took too long, the client ``has_left``, or the server ends.
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
            most = self.seconds if seconds is None else min(seconds, MOST_TIMES * self.seconds)
            answer: Answer = await run_sync(partial(self._timed, work, most, has_left), limiter=self._limiter)
            return answer
        finally:
            self._open[client] -= 1
            if not self._open[client]:
                del self._open[client]

    def _timed(self, work: Callable[[Check], Answer], seconds: float, has_left: Callable[[], bool]) -> Answer:
        end = time.monotonic() + seconds

        def check(_done: int, _total: int) -> None:
            if self.is_ending:
                raise TooLongError("the page is being closed")
            if has_left():
                raise TooLongError(_NOBODY)
            if time.monotonic() > end:
                rule = f"this takes longer than {seconds:g} s here"
                raise TooLongError(rule, remedy="ask for fewer requests, GPUs or choices, or a lower rate")

        return work(check)


async def while_connected(receive: Receive, ask: Callable[[Callable[[], bool]], Awaitable[Answer]]) -> Answer:
    """Return what ``ask`` returns; it gets a function that says whether its client has left."""
    left = anyio.Event()
    failure: Exception | None = None
    async with anyio.create_task_group() as group:
        group.start_soon(_listen, receive, left)
        try:
            answer = await ask(left.is_set)
        except Exception as error:  # outside the group, which would wrap it
            failure = error
        group.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return answer


async def _listen(receive: Receive, left: anyio.Event) -> None:
    """Note when a client leaves."""
    while (await receive())["type"] != "http.disconnect":
        pass
    left.set()


class AnswerInParts(Response):  # type: ignore[misc]
    """Sends ``{"first": ...}`` and ``{"progress": [done, known]}`` on the way, and ``{"answer": ...}`` at the end.

    A failure is a last line ``{"error": ..., "kind": ..., "status": ...}``, as the status line has been sent by then.
    Work that nobody waits for any more is stopped.

    Args:
        run: Calls the given work without blocking the server.
        work: Gets a function that stops it in time, and one to call with a line.
        failed: Returns the line for an exception; None: it is a defect, and raised.
    """

    media_type = MEDIA_TYPE

    def __init__(
        self,
        run: Callable[[Callable[[Check], dict[str, Any]]], Awaitable[dict[str, Any]]],
        work: Work,
        failed: Callable[[Exception], dict[str, Any] | None],
    ) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._run, self._work, self._failed = run, work, failed
        self._lines: deque[dict[str, Any]] = deque()
        self._left = anyio.Event()

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Work, and send the results."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        done = anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(self._worked, done)
            group.start_soon(_listen, receive, self._left)
            while not done.is_set():
                with anyio.move_on_after(_SECONDS_BETWEEN_PARTS):
                    await done.wait()
                await self._send_lines(send)
            group.cancel_scope.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _worked(self, done: anyio.Event) -> None:
        try:
            self._lines.append({"answer": await self._run(self._watched)})
        except Exception as error:
            line = self._failed(error)
            if line is None:
                raise
            self._lines.append(line)
        finally:
            done.set()

    def _watched(self, check: Check) -> dict[str, Any]:
        def watched(done: int, known: int) -> None:
            if self._left.is_set():
                raise TooLongError(_NOBODY)
            check(done, known)
            if known > 1:
                self._lines.append({"progress": [done, known]})

        return self._work(watched, self._lines.append)

    async def _send_lines(self, send: Send) -> None:
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
        if text:
            await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
