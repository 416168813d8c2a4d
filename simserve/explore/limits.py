"""What keeps a question of the page within bounds: the check that a run calls, and what it raises."""

from __future__ import annotations

from collections.abc import Callable

from simserve.errors import SimserveError

Check = Callable[[int, int], None]
"""Handed to a run as its progress: ends it once its time is over."""


class TooLongError(SimserveError):
    """A run of the page took longer than it may."""


class BusyError(SimserveError):
    """A client has as many questions open as it may, or the server has."""
