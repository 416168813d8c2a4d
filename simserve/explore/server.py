"""The web server of the page: how many may be connected, and how long one may take to say what it wants."""

from __future__ import annotations

from asyncio import BaseTransport
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 5.0
"""A connection may be open without a request being worked on; the body has its own time in `simserve.explore.app`."""
_MOST_CONNECTIONS = 256
_LARGEST_HEADER = 16_384
"""Bytes."""


class HurriedProtocol(H11Protocol):  # type: ignore[misc]
    """HTTP that hangs up on who connects and says nothing, or one byte now and then, so that others find a place."""

    def connection_made(self, transport: BaseTransport) -> None:
        """Begin to watch a connection."""
        super().connection_made(transport)
        self._idle_since = self.loop.time()
        self._watch()

    def on_response_complete(self) -> None:
        """Give the connection the same time again for its next request."""
        self._idle_since = self.loop.time()
        super().on_response_complete()

    def _watch(self) -> None:
        if self.transport.is_closing():
            return
        is_working = self.cycle is not None and not self.cycle.response_complete
        if not is_working and self.loop.time() - self._idle_since >= HEADER_SECONDS:
            self.transport.close()
        else:
            self.loop.call_later(HEADER_SECONDS / 4, self._watch)


def server(app: Starlette) -> Any:
    """Return uvicorn's server of the page."""
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=HurriedProtocol,
            log_level="warning",
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_keep_alive=int(HEADER_SECONDS),
            h11_max_incomplete_event_size=_LARGEST_HEADER,
            server_header=False,
        )
    )
