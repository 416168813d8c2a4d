"""What keeps a question of the page within bounds: the check that a run calls, and what it raises."""

from __future__ import annotations

from collections.abc import Callable

from simserve.errors import SimserveError
from simserve.metrics.result import RunResult

Check = Callable[[int, int], None]
"""Handed to a run as its progress: ends it once its time is over."""


class TooLongError(SimserveError):
    """A run of the page took longer than it may."""


class BusyError(SimserveError):
    """A client has as many questions open as it may, or the server has."""


def whole(result: RunResult) -> RunResult:
    """Return a result that is one of all its requests.

    Raises:
        KeyboardInterrupt: Ctrl-C, as of an export, has broken the run off: what it has shown until then is no answer.
    """
    if result.simulation.was_interrupted:
        raise KeyboardInterrupt
    return result
