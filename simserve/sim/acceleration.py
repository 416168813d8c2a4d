"""Whether a run uses compiled code: if that is requested or pays, numba works, and compiled code covers the run.

Other runs are interpreted, with the same results; the reason is logged once, on stderr.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from threading import Event, Thread
from typing import Literal

from simserve.engine.compiled.cache import cache_folder, is_warm
from simserve.errors import UsageError

Accelerate = Literal["auto", "on", "off"]
CHOICES: tuple[Accelerate, ...] = ("auto", "on", "off")

LEAST_REQUESTS = 500
"""``auto``: below it, loading the compiled kernel takes longer than it saves. Loading takes 50 ms once per process; one
run of 3,000 requests, or the few runs of a search, saves as much."""
LEAST_REQUESTS_ONCE_LOADED = 100
"""``auto``: the same in a process that has loaded it. Below it, laying out flat memory takes longer than it saves: 240
requests take 8 ms compiled and 16 ms interpreted, and of conversations 8 and 26 ms (`chatbot`, `multi-turn`,
2026-11-27)."""
LEAST_REQUESTS_TO_COMPILE = 4_000_000
"""``auto``: the same if the kernel must first be compiled, which happens once. That takes 40 CPU seconds, as long as
3.6 million requests of a plain run take interpreted (11 s per million). ``on`` compiles for any run."""

_INSTALL = "pip install 'simserve[fast]'"
_COMPILING = "from simserve.engine.compiled.loader import load_kernel; load_kernel()"
_SECONDS_BEFORE_A_WORD = 2.0
_SECONDS_BETWEEN_WORDS = 10.0
_log = logging.getLogger("simserve")

Drive = Callable[[int, int, float], int]


def compiled_for(accelerate: Accelerate, num_requests: int, obstacle: str | None) -> Drive | None:
    """Return the compiled kernel for a run; None: it is interpreted.

    Args:
        obstacle: The part of the run that compiled code does not cover; None: it covers all.

    Raises:
        UsageError: ``on``, and numba is missing or broken; or there is no such choice.
    """
    if accelerate not in CHOICES:
        raise UsageError("is not a choice", key="accelerate", value=accelerate, remedy="use auto, on or off")
    if accelerate == "off":
        return None
    if accelerate == "on":
        if find_spec("numba") is None:
            raise UsageError("needs numba, which is not installed", key="accelerate", value="on", remedy=_INSTALL)
        if obstacle is not None:
            _say(f"accelerate: runs interpreted, since {obstacle} is not compiled")
            return None
        drive, failure = _load()
        if failure is not None:
            remedy = f"{_INSTALL}, or run without it"
            raise UsageError(f"cannot compile: {failure}", key="accelerate", value="on", remedy=remedy)
        return drive
    if obstacle is not None or num_requests < LEAST_REQUESTS_ONCE_LOADED:
        return None
    if not _is_loaded():
        if num_requests < LEAST_REQUESTS or find_spec("numba") is None:
            return None
        if num_requests < LEAST_REQUESTS_TO_COMPILE and not is_warm():
            return None
    drive, failure = _load()
    if failure is not None:
        _say(f"accelerate: runs interpreted, since numba does not work here: {failure}")
    return drive


def _is_loaded() -> bool:
    """Return whether this process has loaded the kernel, or has found out that it cannot."""
    return _load.cache_info().currsize > 0


@cache
def _say(line: str) -> None:
    _log.warning("simserve: %s", line)


@cache
def _load() -> tuple[Drive | None, str | None]:
    """Return the compiled kernel, or why there is none."""
    is_loaded = Event()
    teller = Thread(target=_tell, args=(is_loaded,), daemon=True)
    teller.start()
    try:
        if not is_warm():
            _compile()
        from simserve.engine.compiled.loader import load_kernel  # imports llvmlite, and numba if it must compile

        return load_kernel(), None
    except Exception as error:  # whatever is wrong with an optional compiler is no reason not to run
        lines = str(error).splitlines()
        return None, f"{type(error).__name__}: {lines[0] if lines else ''}"
    finally:
        is_loaded.set()
        teller.join()


def _compile() -> None:
    """Compile and cache the kernel in a separate process: LLVM loses interrupts, and numba takes 80 MB.

    If that fails, loading the kernel compiles it, or shows why it cannot be compiled.
    """
    if sys.executable:
        nowhere = subprocess.DEVNULL
        subprocess.run(
            [sys.executable, "-c", _COMPILING],
            check=False,
            stdin=nowhere,
            stdout=nowhere,
            stderr=nowhere,
            start_new_session=True,
        )


def _tell(is_loaded: Event) -> None:
    """Log that the kernel is being compiled, and now and then for how long, until it is loaded."""
    begin = time.monotonic()
    if not is_loaded.wait(_SECONDS_BEFORE_A_WORD):
        _say(f"compiling the kernel, once, in half a minute or so; it is kept in {cache_folder()}")
    while not is_loaded.wait(_SECONDS_BETWEEN_WORDS):
        _log.warning("simserve: compiling the kernel: %.0f s so far", time.monotonic() - begin)
