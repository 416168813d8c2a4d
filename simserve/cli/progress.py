"""What a long command shows on stderr while it works: a bar on a terminal, else lines. Knows no command."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

AFTER_SECONDS = 2.0  # Commands that end sooner show nothing.
REDRAWN_AFTER_SECONDS = 0.1
EVERY_SECONDS = 10.0  # Time between two lines about the same activity.
STAGES_APART_SECONDS = 2.0  # Least time between two lines.
TICK_SECONDS = 1.0  # How often it is checked whether a line is due while the command says nothing.


class Tell(Protocol):
    """Takes what a command does."""

    def __call__(self, done: int, total: int | None, doing: str, detail: str = "", /) -> None:
        """Take the parts done, the number of all parts (None: unknown), the activity, and more about it."""


@contextmanager
def progress(*, is_shown: bool, label: str = "working") -> Iterator[Tell | None]:
    """Yield a function that shows on stderr what a command does, once two seconds have passed; None to show nothing.

    On a terminal that is a bar. It only moves forward: if a part restarts or grows, the bar waits until the part has
    caught up. Elsewhere, as in the log of a CI job, it is a line when an activity begins and every ten seconds.

    Args:
        is_shown: Whether anything is shown.
        label: The activity until the command names one.
    """
    if not is_shown:
        yield None
    elif sys.stderr.isatty():
        with _bar(label) as tell:
            yield tell
    else:
        lines = _Lines(label)
        with _ticking(lines.show_if_due):
            yield lines.tell


@contextmanager
def progress_bar(
    *, is_shown: bool, label: str = "simulating", noun: str = ""
) -> Iterator[Callable[[int, int], None] | None]:
    """Yield a function of the parts done and all parts (each a ``noun``), as for `progress`; None to show nothing."""
    with progress(is_shown=is_shown, label=label) as tell:
        yield None if tell is None else lambda done, total: tell(done, total, label, counted(done, total) + noun)


class Steps:
    """Stages of a command, each told before what is done of all."""

    def __init__(self, tell: Tell) -> None:
        self._tell, self._doing, self._detail, self._before = tell, "", "", 0
        self._is_new = True

    def begin(self, doing: str, detail: str) -> None:
        """Take what is being done, and more about it."""
        self._is_new = self._is_new or doing != self._doing
        self._doing, self._detail = doing, detail

    def count(self, done: int, total: int) -> None:
        """Take the parts done and all parts; those of this stage are told."""
        if self._is_new:
            self._before, self._is_new = done, False
        of_stage = counted(done - self._before, total - self._before)
        self._tell(done, total, self._doing, "; ".join(each for each in (of_stage, self._detail) if each))


def counted(done: int, total: int) -> str:
    """Return how much of an activity is done, for `Tell`."""
    return f"{done:,} of {total:,}"


def _words(doing: str, detail: str) -> str:
    return f"{doing}, {detail}" if detail else doing


@contextmanager
def _bar(label: str) -> Iterator[Tell]:
    from rich.console import Console
    from rich.progress import Progress as Bar

    due = time.monotonic() + AFTER_SECONDS
    # No thread redraws it: a process with threads is not forked (`simserve.planner.workers`).
    with Bar(console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task(label, total=None, visible=False)

        reached = 0.0

        def tell(done: int, total: int | None, doing: str, detail: str = "", /) -> None:
            nonlocal due, reached
            is_due = time.monotonic() > due
            if total:
                reached = max(reached, done / total)
            whole = 1.0 if reached else None
            told = _words(doing, detail)
            bar.update(task, completed=reached, total=whole, description=told, visible=is_due or None, refresh=is_due)
            if is_due:
                due = time.monotonic() + REDRAWN_AFTER_SECONDS

        def show_if_due() -> None:
            nonlocal due
            if time.monotonic() > due:
                bar.update(task, visible=True, refresh=True)
                due = time.monotonic() + REDRAWN_AFTER_SECONDS

        with _ticking(show_if_due):
            yield tell


class _Lines:
    """Lines on stderr, each complete in itself, so that they can be read in a log."""

    def __init__(self, label: str) -> None:
        self._begin = time.monotonic()
        self._due = self._stage_due = self._begin + AFTER_SECONDS
        self._shown = ""
        self._told = label, ""

    def tell(self, _done: int, _total: int | None, doing: str, detail: str = "", /) -> None:
        """Take what the command does, and show it if a line is due."""
        self._told = doing, detail
        self.show_if_due()

    def show_if_due(self) -> None:
        """Show what the command does if it is something new, or if nothing was shown for some time."""
        now, (doing, detail) = time.monotonic(), self._told
        if now < (self._due if doing == self._shown else self._stage_due):
            return
        self._shown, self._due, self._stage_due = doing, now + EVERY_SECONDS, now + STAGES_APART_SECONDS
        print(f"simserve: {now - self._begin:.0f} s: {_words(doing, detail)}", file=sys.stderr, flush=True)


@contextmanager
def _ticking(look: Callable[[], None]) -> Iterator[None]:
    """Call a function every second, between two instructions of this thread, where the system has timers for it.

    No thread does: a process with threads is not forked. A fork has the handler, but no timer.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not (is_main and hasattr(signal, "setitimer")) or signal.getitimer(signal.ITIMER_REAL)[0]:
        yield
        return

    def tick(_signal: int, _frame: object) -> None:
        try:
            look()
        except RuntimeError:  # the signal came while a line was being written
            return

    before = signal.signal(signal.SIGALRM, tick)
    signal.setitimer(signal.ITIMER_REAL, TICK_SECONDS, TICK_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
