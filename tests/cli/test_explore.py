"""`simserve explore`: where it listens, and where it refuses to."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Simserve


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.1", "example.com"])
def test_an_address_that_others_reach_needs_a_flag(simserve: Simserve, host: str) -> None:
    """Nobody opens a port to the world by accident."""
    outcome = simserve("explore", "--host", host)

    assert outcome.code == 2
    assert outcome.error_line == (
        f"--host: '{host}' can be reached from other machines; add --public if that is wanted"
    )


def test_a_port_that_is_taken_is_said(simserve: Simserve) -> None:
    """In one line."""
    pytest.importorskip("uvicorn")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        outcome = simserve("explore", "--port", str(port))

    assert outcome.code == 2
    assert f"--port: {port} cannot be listened on" in outcome.error_line


def test_what_is_missing_is_named(simserve: Simserve, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it."""
    monkeypatch.setitem(sys.modules, "uvicorn", None)

    outcome = simserve("explore")

    assert outcome.code == 2
    assert "pip install 'simserve[explore]'" in outcome.error_line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--scenario", "chatbot"), "--scenario: goes with --twin"),
        (("--watch", "5min"), "--watch: goes with --twin"),
        (("--twin", "s.prom"), "--scenario: is missing; name what is thought to be deployed, beside --twin"),
        (("--twin", "s.prom", "--scenario", "chatbot", "--export", "site"), "s.prom: no such file or folder"),
        (
            ("--twin", "s.prom", "--scenario", "chatbot", "--export", "site", "--watch", "5min"),
            "--watch: is for the page that is served: leave --export out",
        ),
        (("--twin", "s.prom", "--scenario", "chatbot", "--watch", "5min"), "--watch: is for an address"),
        (("--twin", "s.prom", "--scenario", "chatbot"), "s.prom: no such file or folder"),
        (("--twin", "http://localhost:1", "--scenario", "chatbot", "--watch", "20 s"), "must be at least 5 times"),
    ],
)
def test_a_twin_that_cannot_be_watched_is_refused(simserve: Simserve, words: tuple[str, ...], message: str) -> None:
    """Before a page is served."""
    pytest.importorskip("uvicorn")

    outcome = simserve("explore", *words)

    assert outcome.code == 2 or outcome.code == 104
    assert message in outcome.error_line


@pytest.mark.slow
def test_pages_are_not_written_among_other_files(simserve: Simserve, tmp_path: Path) -> None:
    """Nor does --force mean anything without a folder."""
    (tmp_path / "thesis.txt").write_text("mine")

    assert "holds other files" in simserve("explore", "--export", str(tmp_path)).error_line
    assert "--export" in simserve("explore", "--force").error_line
