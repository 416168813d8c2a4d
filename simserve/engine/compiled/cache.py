"""Where compiled code is kept: a folder of the user's, one for each state of the sources it was compiled from."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from importlib import metadata
from pathlib import Path

import simserve


def cache_folder() -> Path:
    """Return the folder of the compiled kernel, whether or not it exists.

    ``NUMBA_CACHE_DIR`` moves it. Its name changes with the sources of the engine, Python, numba and the machine's kind.
    """
    return _base() / f"simserve-kernel-{_key()}"


def is_warm() -> bool:
    """Return whether a compiled kernel lies there."""
    folder = cache_folder()
    return folder.is_dir() and any(folder.glob("*.nbc"))


def _base() -> Path:
    given = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    if given:
        return Path(given)
    if os.name == "nt":
        return Path(os.environ.get("LOCALAPPDATA", str(Path.home())))
    return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")


def _key() -> str:
    digest = hashlib.sha256()
    package = Path(simserve.__file__).parent
    for path in [*sorted((package / "engine").rglob("*.py")), package / "errors.py"]:
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    versions = [metadata.version(name) for name in ("numba", "llvmlite", "numpy")]
    digest.update(repr([sys.version, platform.machine(), *versions]).encode())
    return digest.hexdigest()[:16]
