"""Machine-made questions from the page's own OpenAPI, slow and silent clients: never a 500, nobody waits for them."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, given, settings

pytest.importorskip("uvicorn", reason="needs simserve[explore]")

from simserve.explore.app import create_app
from simserve.explore.server import Runner
from tests.explore.builders import served
from tests.fuzzing import examples

pytestmark = pytest.mark.slow

try:
    import schemathesis
except ImportError:
    schemathesis = None


@pytest.fixture(scope="module")
def address() -> Iterator[tuple[str, int]]:
    """Return host and port of a real server."""
    with served() as found:
        parts = urlsplit(found)
        yield parts.hostname or "", parts.port or 0


def ask(address: tuple[str, int], path: str, body: dict[str, Any] | None = None) -> int:
    """Return the status of a question."""
    connection = http.client.HTTPConnection(*address, timeout=20)
    try:
        if body is None:
            connection.request("GET", path)
        else:
            connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


def test_silent_and_slow_clients_hold_nobody_up(address: tuple[str, int]) -> None:
    """Forty that say nothing, half a header or half a body: others are answered, and they are hung up on."""
    beginnings = (
        b"",
        b"GET /core.js HTTP/1.1\r\nhost: local",
        b"POST /api/simulator HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        b"content-length: 100\r\n\r\n{",
        b"GET /" + b"a" * 60_000,
    )
    with ExitStack() as stack:
        clients = []
        for number in range(40):
            client = stack.enter_context(socket.create_connection(address, timeout=20))
            client.sendall(beginnings[number % len(beginnings)])
            clients.append(client)

        assert ask(address, "/") == 200
        assert ask(address, "/api/batching", {}) == 200

        end = time.monotonic() + 30
        for client in clients:
            received = b""
            while time.monotonic() < end and (part := client.recv(65_536)):
                received += part
            assert not received or received.split()[1] in (b"400", b"408", b"404", b"414", b"431")
        assert time.monotonic() < end
    assert ask(address, "/api/batching", {}) == 200


def dribble(client: socket.socket) -> None:
    """Send a header now and then, for three times as long as anybody is waited for."""
    for _ in range(60):
        client.sendall(b"x-a: b\r\n")
        time.sleep(0.25)


def test_idle_connections_keep_nobody_out(address: tuple[str, int]) -> None:
    """Three hundred of one client, opened again as fast as they are hung up on: others are answered at once."""
    with ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(socket.create_connection(address, timeout=20))

        assert [ask(address, "/"), ask(address, "/api/batching", {})] == [200, 200]


def test_a_client_that_dribbles_bytes_is_hung_up_on(address: tuple[str, int]) -> None:
    """However regularly it sends."""
    with socket.create_connection(address, timeout=20) as client:
        client.sendall(b"GET / HTTP/1.1\r\n")
        with pytest.raises(OSError, match=r"reset|pipe"):
            dribble(client)


@pytest.mark.parametrize(
    "line",
    [
        b"GET /../../../../etc/passwd HTTP/1.1",
        b"GET /..%2f..%2f..%2fetc%2fpasswd HTTP/1.1",
        b"GET //etc/passwd HTTP/1.1",
        b"GET /%00 HTTP/1.1",
        b"GET file:///etc/passwd HTTP/1.1",
        b"POST /api/..%2fapp.py HTTP/1.1",
        b"TRACE / HTTP/1.1",
    ],
)
def test_no_path_reads_a_file(address: tuple[str, int], line: bytes) -> None:
    """As it goes over the wire, where no client tidies it up."""
    with socket.create_connection(address, timeout=20) as client:
        client.sendall(line + b"\r\nhost: localhost\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        answer = b""
        while part := client.recv(65_536):
            answer += part

    status = int(answer.split()[1])
    assert 400 <= status < 500
    assert b"root:" not in answer
    assert b"import " not in answer


@pytest.mark.skipif(schemathesis is None, reason="needs schemathesis")
def test_questions_made_from_the_schema_are_answered() -> None:
    """With an answer or a documented refusal, of the documented type; cases are made here, not at collection."""
    app = create_app(hosts=("*",), runner=Runner(seconds=0.05))
    schema = schemathesis.openapi.from_asgi("/api/openapi.json", app).exclude(path_regex="load/scenario")
    operations = [found.ok() for found in schema.get_all_operations()]

    assert len(operations) > 10
    for operation in operations:

        @given(case=operation.as_strategy())
        @settings(max_examples=examples(2), deadline=None, suppress_health_check=list(HealthCheck))
        def is_answered(case: Any) -> None:
            answer = case.call(timeout=60)

            assert answer.status_code in (200, 400, 404, 405, 413, 415, 422, 429), answer.text[:400]
            if answer.status_code != 200 and answer.status_code != 405:
                assert "Traceback" not in answer.text

        is_answered()
