"""What the benchmarks in processes of their own share: how they are asked, and how their processes start."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def asked(description: str | None, hidden: str, kind: type) -> argparse.Namespace:
    """Return the flags: ``--quick``, and what the benchmark asks its own processes for, which is nobody else's."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument(f"--{hidden}", type=kind, help=argparse.SUPPRESS)
    return parser.parse_args()


def as_installed(folder: Path) -> Mapping[str, str]:
    """Return the environment of a process whose modules are kept as bytecode, as installing a wheel does.

    The first process writes it; those after it count.

    Args:
        folder: Where the bytecode goes.
    """
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder / "bytecode"), "PYTHONPATH": str(ROOT)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return environment
