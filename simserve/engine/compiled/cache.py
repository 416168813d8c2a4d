"""Where the compiled kernel is kept: a folder of the user's, one for each version of the sources it was compiled
from."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

from simserve.unfinished import remove_abandoned, unfinished

_DIGEST_BYTES = 32


def cache_folder() -> Path:
    """Return the folder of the compiled kernel, whether or not it exists.

    ``SIMSERVE_CACHE_DIR`` moves it. Its name changes with the sources of the engine, with Python and with the
    compiler.
    """
    return _base() / f"kernel-{_key()}"


def is_warm() -> bool:
    """Return whether it holds a compiled kernel."""
    return any(cache_folder().glob("*.kernel"))


def read(path: Path) -> bytes | None:
    """Return what `write` wrote, None if that is missing or damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest, code = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    return code if hashlib.sha256(code).digest() == digest else None


def write(path: Path, code: bytes) -> None:
    """Store compiled code, whole or not at all; if the folder cannot be written to, not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(path.parent)
        beside = unfinished(path)
        beside.write_bytes(hashlib.sha256(code).digest() + code)
        beside.replace(path)
    except OSError:
        return


def _base() -> Path:
    given = os.environ.get("SIMSERVE_CACHE_DIR")
    if given:
        return Path(given)
    if os.name == "nt":
        return Path(os.environ.get("LOCALAPPDATA", str(Path.home()))) / "simserve"
    if sys.platform == "darwin":
        return Path.home() / "Library/Caches/simserve"
    return Path(os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))) / "simserve"


def _digest_of_sources() -> bytes:
    digest = hashlib.sha256()
    package = Path(__file__).parents[2]
    for path in [*sorted((package / "engine").rglob("*.py")), package / "errors.py"]:
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.digest()


_SOURCES = _digest_of_sources()
"""Digest of the sources as they were imported: later edits are not what this process compiles."""


@cache
def _key() -> str:
    versions = [_version(name) for name in ("numba", "llvmlite", "numpy")]
    described = repr([_SOURCES, sys.version, platform.machine(), *versions])
    return hashlib.sha256(described.encode()).hexdigest()[:16]


def _version(name: str) -> str:
    """Return the version of a package; one that can be imported may still have none."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "unknown"
