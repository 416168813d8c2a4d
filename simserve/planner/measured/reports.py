"""Measured servers as YAML: public reports that nothing was fitted to (``calibration/unseen``), and a user's own.

Knows how those files are written (docs/measurements.md), not where other sources keep their figures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import Field, model_validator

from simserve.planner.measured import build
from simserve.planner.measured.point import LoadKind, MeasuredMemory, MeasuredPoint, Metric, Protocol, Statistic
from simserve.profiles import catalog
from simserve.units import GIB, PositiveSeconds, Seconds
from simserve.validation import NAME_PATTERN, FrozenModel, read_valid
from simserve.workload.session_spec import SharedPrefixSpec
from simserve.workload.spec import BenchmarkClient
from simserve.workload.traces.table import find_file

UNSEEN: Final = "unseen"  # Source name of the public reports, which are replayed only when asked for.
OWN: Final = "own"  # Source name of a user's own measurements.
_Name = Annotated[str, Field(pattern=NAME_PATTERN, max_length=60)]
_Count = Annotated[int, Field(ge=1)]


class _Lengths(FrozenModel):
    """Lengths of prompts or answers: uniform between two values, or given by mean and coefficient of variation."""

    min: _Count | None = None
    mean: Annotated[float, Field(gt=0)] | None = None
    cv: Annotated[float, Field(gt=0)] | None = None
    max: _Count

    @property
    def block(self) -> dict[str, Any]:
        """The lengths as in a scenario file."""
        if self.mean is not None and self.cv is not None:
            return build.around(self.mean, self.cv, self.max)
        return {"distribution": "uniform", "min": self.min or 1, "max": self.max}


class _Listed(FrozenModel):
    """Lengths of prompts or answers that a file lists, drawn with replacement."""

    path: str
    """CSV or text file with one length a row; relative to the folder of the measurements, then to the working
    folder."""
    column: str | None = None
    """Column that holds the lengths; by default the file has only one."""

    def block(self, folder: Path) -> dict[str, Any]:
        """Return the lengths as in a scenario file."""
        return build.listed(find_file(self.path, folder), self.column)


class _Rows(FrozenModel):
    """Lengths of a run's own requests: each row of a file is sent once, in the file's order."""

    path: str
    """CSV with one request a row; looked up as that of lengths."""
    prompt: str
    """Column of the prompts."""
    output: str
    """Column of the answers."""


_Length = _Count | _Listed | _Lengths


class Figures(FrozenModel):
    """Measured figures; for a batch, ``e2e`` is the time until its last answer."""

    ttft: Seconds | None = None
    tpot: Seconds | None = None
    e2e: Seconds | None = None
    throughput: Annotated[float, Field(gt=0)] | None = None
    """Output tokens/s of the whole deployment."""
    total_throughput: Annotated[float, Field(gt=0)] | None = None
    """Prompt and output tokens/s of the whole deployment, where the report gives no other throughput."""

    @model_validator(mode="after")
    def _one_throughput(self) -> Self:
        given = (self.ttft, self.tpot, self.e2e, self.throughput, self.total_throughput)
        if all(each is None for each in given):
            raise ValueError("must hold a figure")
        if self.throughput is not None and self.total_throughput is not None:
            raise ValueError("throughput and total_throughput cannot both be given")
        return self

    @property
    def by_metric(self) -> dict[Metric, float]:
        """Measured figures, in seconds and tokens/s."""
        given: dict[Metric, float | None] = {
            "tpot": self.tpot,
            "ttft": self.ttft,
            "e2e": self.e2e,
            "throughput": self.throughput or self.total_throughput,
        }
        return {metric: value for metric, value in given.items() if value is not None}


class _Run(FrozenModel):
    """One load on a server: exactly one of ``clients``, ``rate``, ``batch`` and ``queued``."""

    name: _Name
    clients: _Count | None = None
    """Requests in flight, each replaced when it is answered; as many as ``requests`` where all were sent at once."""
    ramp_up: PositiveSeconds | None = None
    """Time over which the clients begin, evenly, where their first requests are not all sent at once."""
    rate: Annotated[float, Field(gt=0)] | None = None
    """Requests/s, Poisson."""
    batch: _Count | None = None
    """Requests of one batch in the engine's own process."""
    queued: _Count | None = None
    """Requests that are all waiting when an engine in its own process starts."""
    requests: _Count | None = None
    prompt: _Length | None = None
    output: _Length | None = None
    rows: _Rows | None = None
    """The lengths of the requests that were sent, in their order, in place of ``prompt`` and ``output``."""
    shared_prefix: SharedPrefixSpec | None = None
    """Texts that prompts begin with, on top of ``prompt``, as in a scenario."""
    measured: Figures
    shown_only: tuple[Metric, ...] = ()
    """Figures that are compared but not scored; the server's ``assumed`` says why."""

    @model_validator(mode="after")
    def _one_load(self) -> Self:
        if sum(each is not None for each in (self.clients, self.rate, self.batch, self.queued)) != 1:
            raise ValueError("needs exactly one of clients, rate, batch and queued")
        if self.ramp_up is not None and self.clients is None:
            raise ValueError("needs clients beside ramp_up")
        if self.requests is None and (self.clients is not None or self.rate is not None):
            raise ValueError("needs requests: how many were sent")
        if any((each is None) == (self.rows is None) for each in (self.prompt, self.output)):
            raise ValueError("needs prompt and output, or rows alone")
        if self.shared_prefix is not None and (self.rows is not None or self.batch is not None):
            raise ValueError("needs clients, rate or queued, and prompt, beside shared_prefix")
        return self

    @property
    def load(self) -> tuple[LoadKind, float]:
        """What the load counts, and its value."""
        if self.clients is not None:
            return "concurrency", float(self.clients)
        if self.rate is not None:
            return "rate", self.rate
        return ("offline", float("nan")) if self.batch is None else ("batch", float(self.batch))

    def is_drawn_by(self, client: BenchmarkClient | None) -> bool:
        """Whether times or lengths are draws of a benchmark's client."""
        has_even = any(isinstance(each, _Lengths) and each.mean is None for each in (self.prompt, self.output))
        knows = self.rate is not None or (has_even and self.clients is not None and client != "vllm")
        return client is not None and self.rows is None and knows

    def workload(self, folder: Path, client: BenchmarkClient | None = None) -> dict[str, Any]:
        """Return the workload as in a scenario file; ``folder`` holds the measurements, a ``client`` sent them."""
        lengths = _block(self.prompt or 1, folder), _block(self.output or 1, folder)
        if self.clients is not None:
            workload = build.closed_loop(self.clients, *lengths, self.requests, self.ramp_up)
        elif self.rate is not None:
            workload = build.poisson(self.rate, self.requests or 1, *lengths)
        else:
            workload = build.all_at_once(self.batch or self.queued or 1, *lengths)
        if self.is_drawn_by(client):
            workload["client"] = client
        if self.shared_prefix is not None:
            workload["shared_prefix"] = self.shared_prefix.model_dump()
        if self.rows is None:
            return workload
        return build.in_order(workload, find_file(self.rows.path, folder), self.rows.prompt, self.rows.output)


class _Deployed(FrozenModel):
    """What was measured."""

    name: _Name
    model: str
    deployment: dict[str, Any]
    assumed: str = ""
    """What the report does not say, and what is assumed instead."""


class _Server(_Deployed):
    """One deployment and the loads that it was put under."""

    statistic: Statistic = "mean"
    client: BenchmarkClient | None = None
    """Benchmark that sent the requests with its default seed, as `workload.client` has it."""
    runs: Annotated[tuple[_Run, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _has_draws(self) -> Self:
        if self.client is not None and not any(each.is_drawn_by(self.client) for each in self.runs):
            raise ValueError("names a client, and no run has requests that it draws; leave client out")
        return self


class _KvRoom(_Deployed):
    """The KV room that a server's log states."""

    tokens: _Count | None = None
    gib: Annotated[float, Field(gt=0)] | None = None
    """GiB of one GPU; where the log gives tokens too, those are more exact."""

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        if (self.tokens is None) == (self.gib is None):
            raise ValueError("needs tokens or gib, not both")
        return self


class Excluded(FrozenModel):
    """A result of the same report that is left out here."""

    what: str
    why: str


class _Measurements(FrozenModel):
    """A user's measurements: servers under loads, and what their logs say about KV memory."""

    servers: tuple[_Server, ...] = ()
    kv_rooms: tuple[_KvRoom, ...] = ()

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not self.servers and not self.kv_rooms:
            raise ValueError("must hold servers or kv_rooms")
        return self


class _Report(_Measurements):
    """One public report."""

    title: str
    laboratory: str = ""
    """Who measured it, if several files are from one laboratory: the same nodes, client and habits."""
    citation: str
    url: Annotated[str, Field(pattern=r"^https?://")]
    date: date
    """Date of the measurement, or of the version of the report that was read."""
    excluded: tuple[Excluded, ...] = ()
    """What else the report contains and is left out, and why."""


def read_unseen() -> list[MeasuredPoint]:
    """Return the measured servers of every file in ``calibration/unseen``.

    Raises:
        ProfileError: A file is invalid.
    """
    return [
        replace(point, laboratory=report.laboratory)
        for path, report in _reports()
        for point in _points(UNSEEN, path, report)
    ]


def read_unseen_memory() -> list[MeasuredMemory]:
    """Return the KV rooms of every file in ``calibration/unseen``.

    Raises:
        ProfileError: A file is invalid.
    """
    return [_room(path.stem, room) for path, report in _reports() for room in report.kv_rooms]


def read_own(files: Sequence[Path]) -> tuple[list[MeasuredPoint], list[MeasuredMemory]]:
    """Return the measured servers and the KV rooms of a user's own files.

    Raises:
        InputError: A file is missing or invalid.
    """
    own = [(path, read_valid(_Measurements, path)) for path in files]
    points = [point for path, measured in own for point in _points(OWN, path, measured)]
    return points, [_room(path.stem, room) for path, measured in own for room in measured.kv_rooms]


def read_exclusions() -> list[tuple[str, Excluded]]:
    """Return what is left out of the reports and why, each with the file of its report.

    Raises:
        ProfileError: A file is invalid.
    """
    return [(path.stem, each) for path, report in _reports() for each in report.excluded]


def _reports() -> list[tuple[Path, _Report]]:
    paths = [catalog.find(UNSEEN, name) for name in catalog.names(UNSEEN)]
    return [(path, read_valid(_Report, path)) for path in paths]


def _block(length: _Length, folder: Path) -> dict[str, Any]:
    if isinstance(length, int):
        return build.fixed(length)
    return length.block(folder) if isinstance(length, _Listed) else length.block


def served_by(deployment: Mapping[str, Any]) -> dict[str, Any]:
    """Return the engine, its version and the GPU of a deployment, as a measured point has them."""
    engine = deployment.get("engine", {})
    named = {"engine": engine.get("name", "vllm"), "version": engine.get("version", "")}
    return {key: str(value) for key, value in {**named, "hardware": deployment.get("hardware", "")}.items()}


def _points(source: str, path: Path, measured: _Measurements) -> list[MeasuredPoint]:
    return [_point(source, path, server, run) for server in measured.servers for run in server.runs]


def _point(source: str, path: Path, server: _Server, run: _Run) -> MeasuredPoint:
    kind, load = run.load
    return MeasuredPoint(
        source=source,
        label=f"{path.stem}: {server.name} {run.name}",
        **served_by(server.deployment),
        model=server.model,
        load_kind=kind,
        load=load,
        scenario=build.scenario(
            f"{server.name}-{run.name}", server.model, server.deployment, run.workload(path.parent, server.client)
        ),
        measured=run.measured.by_metric,
        shown_only=frozenset(run.shown_only),
        protocol=Protocol(
            statistic=server.statistic,
            is_total_throughput=run.measured.total_throughput is not None,
            is_last_answer=run.batch is not None,
        ),
    )


def _room(file: str, room: _KvRoom) -> MeasuredMemory:
    workload = build.all_at_once(1, build.fixed(1), build.fixed(1))
    return MeasuredMemory(
        label=f"{file}: {room.name}",
        **served_by(room.deployment),
        model=room.model,
        scenario=build.scenario(room.name, room.model, room.deployment, workload),
        kv_bytes=math.nan if room.gib is None else room.gib * GIB,
        kv_tokens=math.nan if room.gib is not None else float(room.tokens or 0),
    )
