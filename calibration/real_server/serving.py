"""A vLLM that serves on this machine, and its own client."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ADDRESS, PORT = "127.0.0.1", 8123
MODEL = "tiny"
_START_SECONDS = 600.0
_STOP_SECONDS = 30.0
_ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_NO_USAGE_STATS": "1"}


class ServerError(Exception):
    """A server that does not start, or a client that fails."""


@contextmanager
def served(commands: Path, model: Path, flags: Sequence[str], log: Path) -> Iterator[str]:
    """Serve a model folder with dummy weights while the block runs, and give its address.

    Raises:
        ServerError: It ends before it answers, or does not answer in ten minutes.
    """
    base = [str(commands / "vllm"), "serve", str(model), "--served-model-name", MODEL, "--load-format", "dummy"]
    address = [*("--dtype", "bfloat16"), *("--host", ADDRESS, "--port", str(PORT)), "--disable-uvicorn-access-log"]
    with log.open("wb") as written:
        server = subprocess.Popen(
            [*base, *address, *flags],
            stdout=written,
            stderr=subprocess.STDOUT,
            env={**os.environ, **_ENVIRONMENT},
            start_new_session=True,
        )
    try:
        _wait(server, log)
        yield f"http://{ADDRESS}:{PORT}"
    finally:
        _stop(server)


def metrics(address: str) -> str:
    """Return what the server counts."""
    with urllib.request.urlopen(f"{address}/metrics", timeout=30) as page:
        text: str = page.read().decode()
    return text


def bench(commands: Path, model: Path, address: str, arguments: Sequence[str], out: Path) -> None:
    """Send a load with vLLM's own client; its result is written to ``out``.

    Raises:
        ServerError: The client fails.
    """
    base = [str(commands / "vllm"), "bench", "serve", "--backend", "openai", "--base-url", address, "--model", MODEL]
    base += ["--tokenizer", str(model), "--ignore-eos", "--percentile-metrics", "ttft,tpot,itl,e2el", "--save-result"]
    base += ["--save-detailed", "--result-dir", str(out.parent), "--result-filename", out.name, "--disable-tqdm"]
    client = subprocess.run(
        [*base, *arguments], capture_output=True, text=True, check=False, env={**os.environ, **_ENVIRONMENT}
    )
    if client.returncode or not out.is_file():
        raise ServerError(f"{' '.join(arguments)}: {client.stderr[-2000:]}")


def _wait(server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end:
        if server.poll() is not None:
            raise ServerError(f"the server has ended with {server.returncode}: see {log}")
        try:
            with urllib.request.urlopen(f"http://{ADDRESS}:{PORT}/health", timeout=5):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(1.0)
    raise ServerError(f"the server does not answer after {_START_SECONDS:.0f} s: see {log}")


def _stop(server: subprocess.Popen[bytes]) -> None:
    for sign in (signal.SIGINT, signal.SIGKILL):
        try:
            os.killpg(server.pid, sign)
            server.wait(_STOP_SECONDS)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
        return
