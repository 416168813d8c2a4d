"""Files and folders that are being written, next to their destination: their names, remains of killed processes, locks.

A name contains the host and the process that writes, so that a later one can tell remains from another's work.
"""

from __future__ import annotations

import errno
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_WITHOUT_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)
"""Errors of a file system that has no locks, such as Lustre without ``-o flock``."""
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


@contextmanager
def only_writer(path: Path) -> Iterator[bool]:
    """Yield whether nobody else is writing ``path``; until the block ends, nobody else may.

    It is locked by ``.NAME.lock`` beside it. The system releases the lock when a process ends, even if it is killed.
    On a file system without locks nobody is kept out.

    Raises:
        OSError: The lock cannot be written.
    """
    file = path.with_name(f".{path.name}.lock")
    handle = _locked(file)
    if handle is None:
        yield False
        return
    try:
        yield True
    finally:
        if os.name == "posix":  # other systems do not remove an open file, and the next one may have opened it by then
            file.unlink(missing_ok=True)
        os.close(handle)


def _locked(file: Path) -> int | None:
    """Return the open, locked file; None if another has locked it."""
    while True:
        handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(handle)
            if file.exists() and os.path.samestat(os.fstat(handle), file.stat()):
                return handle
        except BlockingIOError:
            os.close(handle)
            return None
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # the one before removed it after it was opened here


def _lock(handle: int) -> None:
    """Lock an open file.

    Raises:
        BlockingIOError: It is locked.
    """
    if sys.platform == "win32":
        import msvcrt

        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except PermissionError as failure:
            raise BlockingIOError(*failure.args) from failure
    else:
        import fcntl

        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as failure:
            if failure.errno not in _WITHOUT_LOCKS:
                raise


def remove_abandoned(folder: Path) -> None:
    """Remove what killed processes of this host have left in a folder."""
    if os.name != "posix":  # on other systems, asking for a process by its number would end it
        return
    for left in folder.glob(f".*.{_machine()}-*.unfinished"):
        number = left.name.rpartition("-")[2].partition(".")[0]
        if not number.isdigit() or _is_running(int(number)):
            continue
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


def _machine() -> str:
    return _UNSAFE.sub("", platform.node()) or "here"


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
