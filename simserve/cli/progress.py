"""What a long command shows on stderr while it works. Knows no command."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Tell = Callable[[int, int | None, str], None]
"""Called with the parts done, all parts (None: unknown), and what is being done."""

AFTER_SECONDS = 2.0
"""Commands that end sooner show nothing."""


@contextmanager
def progress(*, is_shown: bool) -> Iterator[Tell | None]:
    """Yield what shows a bar on a terminal's stderr once two seconds have passed; None where nothing is to be shown."""
    if not (is_shown and sys.stderr.isatty()):
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    start = time.monotonic()
    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None, visible=False)

        def tell(done: int, total: int | None, doing: str) -> None:
            is_long = time.monotonic() - start > AFTER_SECONDS
            bar.update(task, completed=done, total=total, description=doing, visible=is_long)

        yield tell
