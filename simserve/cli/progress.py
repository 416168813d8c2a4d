"""What a long command shows on stderr while it works. Knows no command."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Tell = Callable[[int, int | None, str], None]
"""Called with the parts done, the number of all parts (None: unknown), and the current activity."""

AFTER_SECONDS = 2.0
"""Commands that end sooner show nothing."""
REDRAWN_AFTER_SECONDS = 0.1


@contextmanager
def progress(*, is_shown: bool) -> Iterator[Tell | None]:
    """Yield a function that shows a bar on a terminal's stderr once two seconds have passed; None to show nothing.

    The bar only moves forward: if a part restarts or grows, the bar waits until the part has caught up.
    """
    if not (is_shown and sys.stderr.isatty()):
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    due = time.monotonic() + AFTER_SECONDS
    # No thread redraws it: a process with threads is not forked (`simserve.planner.workers`).
    with Bar(console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task("", total=None, visible=False)

        reached = 0.0

        def tell(done: int, total: int | None, doing: str) -> None:
            nonlocal due, reached
            is_due = time.monotonic() > due
            if total:
                reached = max(reached, done / total)
            whole = 1.0 if reached else None
            bar.update(task, completed=reached, total=whole, description=doing, visible=is_due or None, refresh=is_due)
            if is_due:
                due = time.monotonic() + REDRAWN_AFTER_SECONDS

        yield tell


@contextmanager
def progress_bar(*, is_shown: bool, label: str = "simulating") -> Iterator[Callable[[int, int], None] | None]:
    """Yield a function of the parts done and all parts, for a bar as of `progress`; None to show nothing."""
    with progress(is_shown=is_shown) as tell:
        yield None if tell is None else lambda done, total: tell(done, total, label)
