"""Files and folders that are being written, next to their destination: their names, and remains of killed processes.

A name contains the host and the process that writes, so that a later one can tell remains from another's work.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Callable
from pathlib import Path

_UNSAFE = re.compile(r"[^A-Za-z0-9]+")


def unfinished(path: Path) -> Path:
    """Return where this process writes the future ``path``: ``.NAME.MACHINE-PROCESS.unfinished`` beside it."""
    return path.with_name(f".{path.name}.{_machine()}-{os.getpid()}.unfinished")


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file whole or not at all: ``write`` gets a path beside it, which becomes ``path``.

    Raises:
        OSError: The file cannot be written.
    """
    remove_abandoned(path.parent)
    beside = unfinished(path)
    try:
        write(beside)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all.

    Raises:
        OSError: The file cannot be written.
    """
    write_whole(path, lambda beside: beside.write_text(text, encoding="utf-8", newline="\n"))


def remove_abandoned(folder: Path) -> None:
    """Remove what killed processes of this host have left in a folder."""
    if os.name != "posix":  # on other systems, asking for a process by its number would end it
        return
    for left in folder.glob(f".*.{_machine()}-*.unfinished"):
        number = left.name.rpartition("-")[2].partition(".")[0]
        if not number.isdigit() or _lives(int(number)):
            continue
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


def _machine() -> str:
    return _UNSAFE.sub("", platform.node()) or "here"


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
