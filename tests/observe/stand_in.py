"""A small server that speaks as an engine does over HTTP, at a pace of its own, and counts what it is sent."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any

VLLM_METRICS = """# HELP vllm:num_requests_running Number of requests.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 0.0
vllm:cache_config_info{block_size="16",cache_dtype="auto",num_gpu_blocks="4096"} 1.0
"""
_PROBE_TOKENS = 2
"""Tokens that are asked for to find out how a server wants to be asked, one request at a time."""
_PATIENCE = 20.0
"""Seconds."""


@dataclass
class Ways:
    """How the server behaves.

    Attributes:
        token_seconds: Between two tokens, and before the first.
        takes_ids: Whether a prompt may be token ids.
        highest_id: Token ids of this and above are refused.
        takes_ignore_eos: Whether it knows the field.
        has_completions: Whether it has completions, beside chat completions.
        counts: Whether it knows ``stream_options``.
        says_ids: Whether it says the ids of an answer's tokens to who asks for them: 7, 8, 9 and so on.
        tokens_per_word: Of a prompt of words.
        pages: Pages beside ``/v1/models``: path -> text.
        models: Names that it serves.
        error: What it answers to every request instead; empty: an answer.
        broken: What it streams instead of events; empty: events.
        kind: What it says that an answer is.
        key: Bearer token without which it refuses.
        waits_for: Requests that must have been in flight at once before it answers any of more than two tokens: none is
            done before the last of them comes, however slow the machine. Gives up after `_PATIENCE` seconds.
        most_at_once: Requests in flight beyond which it refuses, and says to come again in a minute.
        breaks_after: Pieces after which an answer breaks off.
        is_endless: Whether answers have no end.
        longest: Tokens after which an answer ends by itself, as one without ``ignore_eos`` may.
        is_held_back: Whether an answer comes in one piece, once it is whole, as through a proxy that buffers.
        certificate: File with key and certificate, of a server that speaks TLS; empty: plain HTTP.
        moved_to: Where ``/v1/models`` has moved; empty: nowhere.
    """

    token_seconds: float = 0.002
    takes_ids: bool = True
    highest_id: int = 1 << 30
    takes_ignore_eos: bool = True
    has_completions: bool = True
    counts: bool = True
    says_ids: bool = True
    tokens_per_word: int = 1
    pages: dict[str, str] = field(
        default_factory=lambda: {"/metrics": VLLM_METRICS, "/version": '{"version": "0.20.2"}'}
    )
    models: tuple[str, ...] = ("tiny",)
    error: str = ""
    broken: bytes = b""
    kind: str = "text/event-stream"
    key: str = ""
    waits_for: int = 1
    most_at_once: int = 1 << 30
    breaks_after: int = 1 << 30
    is_endless: bool = False
    longest: int = 1 << 30
    is_held_back: bool = False
    certificate: str = ""
    moved_to: str = ""


@dataclass
class StandIn:
    """A running server.

    Attributes:
        url: Its address.
        ways: How it behaves.
        bodies: What it was asked for, in the order of arrival.
        most_in_flight: Most requests that were being answered at once. An answer whose end is about to be sent no
            longer counts: its client may be the first to know.
        last_arrival: When the last request came, seconds of `time.perf_counter`.
    """

    url: str
    ways: Ways
    bodies: list[dict[str, Any]] = field(default_factory=list)
    most_in_flight: int = 0
    last_arrival: float = 0.0
    in_flight: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


@contextmanager
def stand_in(ways: Ways | None = None) -> Iterator[StandIn]:
    """Yield a server on a free port of this machine."""
    http = _Http(("127.0.0.1", 0), _Handler)
    server = StandIn(f"http://127.0.0.1:{http.server_port}", ways or Ways())
    if server.ways.certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(server.ways.certificate)
        http.socket = context.wrap_socket(http.socket, server_side=True)
        server.url = server.url.replace("http:", "https:")
    http.server = server  # type: ignore[attr-defined]
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    """As servers that stream have it: a small packet does not wait until the one before it is acknowledged, 40 ms."""
    _is_in_flight = False

    @property
    def _standing(self) -> StandIn:
        return self.server.server  # type: ignore[attr-defined, no-any-return]

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        ways = self._standing.ways
        if ways.key and self.headers.get("Authorization") != f"Bearer {ways.key}":
            self._answer(401, "no key")
        elif ways.moved_to:
            self._answer(307, "", {"Location": ways.moved_to})
        elif self.path == "/v1/models" and ways.models:
            data = [{"id": name, "owned_by": "nobody", "max_model_len": 4096} for name in ways.models]
            self._answer(200, json.dumps({"object": "list", "data": data}))
        elif self.path in ways.pages:
            self._answer(200, ways.pages[self.path])
        else:
            self._answer(404, "not found")

    def do_POST(self) -> None:
        server, body = self._standing, json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with server.changed:
            server.bodies.append(body)
            server.last_arrival = time.perf_counter()
            server.in_flight += 1
            self._is_in_flight = True
            server.most_in_flight = max(server.most_in_flight, server.in_flight)
            is_full = server.in_flight > server.ways.most_at_once
            server.changed.notify_all()
            if body["max_tokens"] > _PROBE_TOKENS:
                server.changed.wait_for(lambda: server.most_in_flight >= server.ways.waits_for, _PATIENCE)
        try:
            refusal = self._refusal(body)
            if is_full:
                self._answer(429, "too many requests", {"Retry-After": "60"})
            elif refusal:
                self._answer(400, refusal)
            else:
                self._stream(body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        finally:
            self._leave()

    def _leave(self) -> None:
        """Count the request as no longer in flight, once."""
        with self._standing.changed:
            self._standing.in_flight -= self._is_in_flight
            self._is_in_flight = False

    def _refusal(self, body: dict[str, Any]) -> str:
        ways, prompt = self._standing.ways, body.get("prompt", "")
        if ways.error or (self.path == "/v1/completions" and not ways.has_completions):
            return ways.error or "no such path"
        if isinstance(prompt, list) and (not ways.takes_ids or max(prompt) >= ways.highest_id):
            return "a token id that is none"
        if "ignore_eos" in body and not ways.takes_ignore_eos:
            return "unknown field ignore_eos"
        return "unknown field stream_options" if "stream_options" in body and not ways.counts else ""

    def _stream(self, body: dict[str, Any]) -> None:
        ways, is_chat = self._standing.ways, "messages" in body
        self.send_response(200)
        self.send_header("Content-Type", ways.kind)
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        if ways.broken:
            self.wfile.write(ways.broken)
            return
        if is_chat:
            self._event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        length = min(body["max_tokens"], ways.longest)
        for number in count() if ways.is_endless else range(length):
            if number == ways.breaks_after:
                return
            time.sleep(ways.token_seconds)
            if ways.is_held_back and number + 1 < length:
                continue
            end = "length" if number + 1 == length and not ways.is_endless else None
            piece: dict[str, Any] = {"delta": {"content": "a "}} if is_chat else {"text": "a "}
            if ways.says_ids and body.get("return_token_ids"):
                piece["token_ids"] = [7 + number]
            self._event({"choices": [piece | {"finish_reason": end}]})
        if "stream_options" in body:
            prompt = body["messages"][0]["content"] if is_chat else body["prompt"]
            words = len(prompt) if isinstance(prompt, list) else len(prompt.split()) * ways.tokens_per_word + 3
            self._event({"choices": [], "usage": {"prompt_tokens": words, "completion_tokens": length}})
        self._leave()
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, event: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        self.wfile.flush()

    def _answer(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        data = text.encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
