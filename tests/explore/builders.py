"""What the tests of the page share."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def no_limit(_done: int, _total: int) -> None:
    """Let a run take as long as it does."""


@contextmanager
def served(*options: str) -> Iterator[str]:
    """Run `simserve explore` on a free port of this machine, and yield the address of its page."""
    command = [sys.executable, "-m", "simserve", "explore", "--port", "0", *options]
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stderr is not None
        try:
            line = process.stderr.readline()
            assert line.startswith("simserve: http://127.0.0.1:"), line
            yield line.split()[1]
        finally:
            process.terminate()
