"""The sources that ship, by name. Knows no folder of measurements; the project's laboratory reads those."""

from __future__ import annotations

from collections.abc import Sequence

from simserve.planner.measured.point import MeasuredMemory, MeasuredPoint
from simserve.planner.measured.published import PUBLISHED, read_published
from simserve.planner.measured.reports import UNSEEN, read_unseen, read_unseen_memory

SHIPPED = (PUBLISHED, UNSEEN)
"""Names of the sources that ship."""


def read_shipped(sources: Sequence[str] = ()) -> list[MeasuredPoint]:
    """Return the points of the shipped sources among those asked for; of no names, the published figures.

    Raises:
        ProfileError: A file is invalid.
    """
    points = read_published() if not sources or PUBLISHED in sources else []
    return [*points, *(read_unseen() if UNSEEN in sources else ())]


def read_shipped_memory(sources: Sequence[str] = ()) -> list[MeasuredMemory]:
    """Return the KV rooms of the shipped sources that were asked for by name.

    Raises:
        ProfileError: A file is invalid.
    """
    return read_unseen_memory() if UNSEEN in sources else []
