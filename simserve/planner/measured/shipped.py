"""The sources that ship, by name, and the published figures among them: facts with citations, as YAML."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

from pydantic import Field

from simserve.planner.measured import build
from simserve.planner.measured.point import LoadKind, MeasuredMemory, MeasuredPoint, Metric, Protocol, Statistic
from simserve.planner.measured.reports import UNSEEN, Figures, read_unseen, read_unseen_memory, served_by
from simserve.profiles import catalog
from simserve.units import Seconds
from simserve.validation import NAME_PATTERN, FrozenModel, read_valid

PUBLISHED: Final = "published"  # Source name of the figures that ship with simserve.
SHIPPED = (PUBLISHED, UNSEEN)  # Names of the sources that ship.


class _PublishedFigure(FrozenModel):
    """One measured server."""

    name: Annotated[str, Field(pattern=NAME_PATTERN, max_length=100)]
    load: float | None = None
    """Clients, requests/s or requests of a batch, as the workload says."""
    load_kind: LoadKind
    model: str
    deployment: dict[str, Any]
    workload: dict[str, Any]
    measured: Figures
    cold_seconds: Seconds = 0.0
    """How much longer the first requests of the fresh server waited for their first tokens."""
    shown_only: tuple[Metric, ...] = ()
    is_fitted: bool = False
    """Whether constants of the catalogue were fitted to its figures."""


class _Publication(FrozenModel):
    """Figures of one publication."""

    title: str
    citation: str
    """Author, work, version or commit, date, and where to find it."""
    statistic: Statistic = "mean"
    is_server_side: bool = False
    figures: tuple[_PublishedFigure, ...]


def read_published() -> list[MeasuredPoint]:
    """Return the figures of every file in ``calibration/published``.

    Raises:
        ProfileError: A file is invalid.
    """
    points: list[MeasuredPoint] = []
    for name in catalog.names("published"):
        publication = read_valid(_Publication, catalog.find("published", name))
        points.extend(_point(each, publication, name) for each in publication.figures)
    return points


def _point(figure: _PublishedFigure, publication: _Publication, file: str) -> MeasuredPoint:
    return MeasuredPoint(
        source=PUBLISHED,
        label=f"{file}: {figure.name}",
        **served_by(figure.deployment),
        model=figure.model,
        load_kind=figure.load_kind,
        load=float("nan") if figure.load is None else figure.load,
        scenario=build.scenario(figure.name, figure.model, figure.deployment, figure.workload),
        measured=figure.measured.by_metric,
        shown_only=frozenset(figure.shown_only),
        fitted=frozenset(figure.measured.by_metric) if figure.is_fitted else frozenset(),
        protocol=Protocol(
            statistic=publication.statistic, is_server_side=publication.is_server_side, cold_seconds=figure.cold_seconds
        ),
    )


def read_shipped(sources: Sequence[str] = ()) -> list[MeasuredPoint]:
    """Return the points of the shipped sources among those asked for; if none are named, the published figures.

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
