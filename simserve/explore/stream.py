"""An answer in parts, a line of JSON each: a first answer, how far the work is, the answer or its failure."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from simserve.explore.limits import Check, TooLongError

MEDIA_TYPE = "application/x-ndjson"
_SECONDS = 0.15
"""Between two looks at what is new."""

Tell = Callable[[dict[str, Any]], None]
Work = Callable[[Check, Tell], dict[str, Any]]


class AnswerInParts(Response):  # type: ignore[misc]
    """Sends ``{"first": ...}`` and ``{"progress": [done, known]}`` meanwhile, and ``{"answer": ...}`` in the end.

    A failure is a last line ``{"error": ..., "kind": ..., "status": ...}``, as the status line is sent by then. Work
    that nobody waits for any more is ended.

    Args:
        run: Calls the work it is handed, beside the server.
        work: Is handed what ends it in time, and what to call with a line.
        failed: Returns the line of an exception; None: it is a defect, and raised.
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
        self._is_abandoned = False

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Work, and send what is found."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        done = anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(self._worked, done)
            group.start_soon(self._listen, receive)
            while not done.is_set():
                with anyio.move_on_after(_SECONDS):
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
            if self._is_abandoned:
                raise TooLongError("nobody waits for the answer any more")
            check(done, known)
            if known > 1:
                self._lines.append({"progress": [done, known]})

        return self._work(watched, self._lines.append)

    async def _listen(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._is_abandoned = True

    async def _send_lines(self, send: Send) -> None:
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
        if text:
            await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
