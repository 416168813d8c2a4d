"""An address with a page `/metrics`, for a Prometheus server to scrape. Knows nothing of what stands on it."""

from __future__ import annotations

import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

from simserve.errors import UsageError

_CLIENT_SECONDS = 10.0
"""How long a client may take to ask."""
_CONTENT = "text/plain; version=0.0.4; charset=utf-8"
_LARGEST_PORT = 65_535
LOOPBACK = "127.0.0.1"


class MetricsEndpoint:
    """Serves one page from a thread of its own while the block runs; empty until the first `show`.

    Args:
        address: ``PORT`` or ``HOST:PORT``; without a host, this machine alone. Port 0 is any that is free.

    Raises:
        UsageError: It is no address, or cannot be listened at.
    """

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        if not port.isdecimal() or int(port) > _LARGEST_PORT:
            rule = "must be PORT or HOST:PORT"
            raise UsageError(rule, key="--metrics-address", value=address, remedy="for example 9464")
        endpoint = self
        self._page = b""

        class Handler(BaseHTTPRequestHandler):
            timeout = _CLIENT_SECONDS

            def do_GET(self) -> None:
                is_there = self.path.partition("?")[0] == "/metrics"
                body = endpoint._page if is_there else b""
                self.send_response(HTTPStatus.OK if is_there else HTTPStatus.NOT_FOUND)
                self.send_header("Content-Type", _CONTENT)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing: a line a round is all that is printed."""

        try:
            self._server = ThreadingHTTPServer((host.strip("[]") or LOOPBACK, int(port)), Handler)
        except OSError as failure:
            rule = f"cannot be listened at: {failure.strerror}"
            raise UsageError(rule, key="--metrics-address", value=address, remedy="choose another port") from None
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        """Where the page is."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}/metrics"

    def show(self, text: str) -> None:
        """Put a text on the page."""
        self._page = text.encode()

    def __enter__(self) -> Self:
        """Begin to serve."""
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()
