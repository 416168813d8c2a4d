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
"""At once; where all of them are being answered, the next request is told to come back later."""
_LARGEST_HEADER = 16_384
"""Bytes."""


class HurriedProtocol(H11Protocol):  # type: ignore[misc]
    """HTTP that hangs up on who connects and says nothing, or one byte now and then, so that others find a place."""

    def connection_made(self, transport: BaseTransport) -> None:
        """Begin to watch a connection."""
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
        """Hang up on who has been silent for longest: nobody keeps others out with connections that ask nothing."""
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


def server(app: Starlette) -> Any:
    """Return uvicorn's server of the page."""
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=HurriedProtocol,
            log_level="warning",
            limit_concurrency=_MOST_CONNECTIONS + 1,  # with the newest, that it may make room first
            timeout_keep_alive=int(HEADER_SECONDS),
            h11_max_incomplete_event_size=_LARGEST_HEADER,
            server_header=False,
        )
    )
