"""`sweep`: a scenario at every point of a grid, one row each; resumable, with the same bytes however it was run."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simserve import rng
from simserve.errors import ScenarioError, UsageError
from simserve.metrics.files import CSV_ENDING, write_table
from simserve.metrics.result import Column
from simserve.planner.compare import FIGURES
from simserve.planner.overrides import split_values
from simserve.planner.plan.explain import counted
from simserve.planner.sweep.point import OK, TEXTS, Row, failed_row, task_of
from simserve.planner.sweep.workers import check_backend, rows_of
from simserve.scenario.fit import leading_warnings
from simserve.scenario.folder import check_name
from simserve.scenario.load import from_mapping, parse_override, plain
from simserve.scenario.schema import Scenario, objective
from simserve.unfinished import only_writer
from simserve.version import __version__

if TYPE_CHECKING:
    import pandas as pd

Progress = Callable[[int, int], None]  # Called after each point with the number of points done and of all points.
MOST_POINTS = 1_000_000
ENDINGS = (".parquet", CSV_ENDING)
_FORCE_REMEDY = "choose another file, or --force to replace it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One point of a grid."""

    index: int  # Its index in the whole grid, in which the last key varies fastest.
    values: Mapping[str, Any]  # Key -> value, as the scenario takes it.
    scenario: Scenario | None  # What is run; None where the values do not make a scenario.
    problem: str = ""  # Why not.


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """The rows of a sweep.

    Attributes:
        keys: The keys of the grid.
        rows: One for each point that was done, in the order of the grid.
        num_points: Number of all points asked for.
        num_resumed: Rows that an earlier, interrupted sweep had left.
        was_interrupted: The user stopped it.
        seed: The scenario's seed.
        warnings: What a reader has to know first, from any point.
        asked: For each row, the share of requests that must meet the SLO; None where none is asked for, or the point is
            not a scenario.
    """

    keys: tuple[str, ...]
    rows: tuple[Row, ...]
    num_points: int
    num_resumed: int = 0
    was_interrupted: bool = False
    seed: int = 0
    warnings: tuple[str, ...] = ()
    asked: tuple[float | None, ...] = ()

    @property
    def num_failed(self) -> int:
        """Points whose row holds an error."""
        return sum(row["status"] != OK for row in self.rows)

    @property
    def formats(self) -> dict[str, int]:
        """Number formats and where they come from, in words -> number of points that ran in them."""
        return dict(Counter(row["formats"] for row in self.rows if row["status"] == OK))

    @property
    def points(self) -> pd.DataFrame:
        """One row a point, with the columns of the Parquet file."""
        import pandas as pd  # takes 0.2 s, and only notebooks need it

        names = ("point", "status", "error", "scenario_hash", *TEXTS, "num_gpus", *FIGURES)
        table = {name: [row.get(name) for row in self.rows] for name in names}
        keys = {key: [row["values"][key] for row in self.rows] for key in self.keys}
        return pd.DataFrame({"point": table["point"], **keys, **table})

    @property
    def summary(self) -> dict[str, Any]:
        """What `simserve sweep --json` prints."""
        return {
            "warnings": list(self.warnings),
            "points": self.num_points,
            "done": len(self.rows),
            "failed": self.num_failed,
            "resumed": self.num_resumed,
            "interrupted": self.was_interrupted,
            "keys": list(self.keys),
            "formats": self.formats,
            "errors": [{"point": row["point"], "error": row["error"]} for row in self.rows if row["status"] != OK],
            "seed": self.seed,
            "version": __version__,
        }


def sweep(
    scenario: Scenario,
    grid: Mapping[str, Any],
    *,
    sample: int | None = None,
    out: Path | None = None,
    force: bool = False,
    workers: int = 1,
    backend: str = "auto",
    scheduler: str | None = None,
    progress: Progress | None = None,
) -> Sweep:
    """Run a scenario at every point of a grid.

    Finished points are kept beside ``out`` until all are done; the next sweep reuses those with the same scenario and
    version. A point that cannot be run is a row with its error. `simserve.api.sweep` has the arguments and errors.
    """
    check_backend(backend, scheduler)
    grid = {key: _values(values) for key, values in grid.items()}
    points = _points(scenario, grid, sample)
    hashes = [each.scenario.hash for each in points if each.scenario is not None]
    with nullcontext() if out is None else Finished.beside(out, hashes, force=force) as finished:
        rows: dict[int, Row] = {
            each.index: failed_row(each.index, each.values, each.problem) for each in points if each.scenario is None
        }
        known = {} if finished is None else finished.rows
        tasks = []
        for point in points:
            if point.scenario is None:
                continue
            if point.scenario.hash in known:
                rows[point.index] = {**known[point.scenario.hash], "point": point.index, "values": dict(point.values)}
            else:
                tasks.append(task_of(point.index, point.values, point.scenario))
        num_resumed = len(points) - len(tasks) - sum(each.scenario is None for each in points)
        was_interrupted = False
        try:
            for row in rows_of(tasks, workers=workers, backend=backend, scheduler=scheduler):
                rows[row["point"]] = row
                if finished is not None:
                    finished.add(row)
                if progress is not None:
                    progress(len(rows), len(points))
        except KeyboardInterrupt:
            was_interrupted = True
        result = Sweep(
            keys=tuple(grid),
            rows=tuple(rows[index] for index in sorted(rows)),
            num_points=len(points),
            num_resumed=num_resumed,
            was_interrupted=was_interrupted,
            seed=scenario.run.seed,
            warnings=tuple(leading_warnings(*(point.scenario for point in points if point.scenario is not None))),
            asked=tuple(_asked(each.scenario) for each in points if each.index in rows),
        )
        if finished is not None and out is not None and not was_interrupted:
            write_table(out, columns(result.keys, result.rows))
            finished.remove()
        return result


def _asked(scenario: Scenario | None) -> float | None:
    slo = None if scenario is None else objective(scenario)
    return None if slo is None else slo.attainment


def parse_grid(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Return the grid of texts ``KEY=VALUE,VALUE``, each value YAML; commas in brackets or quotes separate nothing.

    ``FIRST:LAST:STEP`` stands for the numbers from the first to the last, both included.

    Raises:
        UsageError: A text has no key or no value, a key occurs twice, or a range has no end or too many values.
        ScenarioError: A value is not YAML.
    """
    grid: dict[str, list[Any]] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        key = key.strip()
        parts = split_values(values)
        if not equals or not all(key.split(".")) or not all(parts):
            rule = "must be KEY=VALUE,VALUE with a dotted key"
            raise UsageError(rule, key="--grid", value=text, remedy="for example --grid deployment.replicas=1,2,4")
        if key in grid:
            raise UsageError("stands twice", key="--grid", value=key, remedy="give all its values at once")
        written = [each for part in parts for each in _in_range(part)]
        grid[key] = [parse_override(f"{key}={each}")[1] for each in written]
    return grid


_RANGE = re.compile(r"(-?\d+(?:\.\d+)?):(-?\d+(?:\.\d+)?):(-?\d+(?:\.\d+)?)")


def _in_range(text: str) -> list[str]:
    """Return the values that a text of a grid stands for: those of a range, or itself."""
    found = _RANGE.fullmatch(text)
    if found is None:
        return [text]
    first, last, step = map(Decimal, found.groups())
    if step == 0 or (last - first) / step < 0:
        remedy = "FIRST:LAST:STEP, such as --grid workload.arrivals.rate=1:12:0.5"
        raise UsageError("is a range whose steps do not lead to its end", key="--grid", value=text, remedy=remedy)
    number = int((last - first) / step) + 1
    if number > MOST_POINTS:
        raise UsageError(f"is a range of {number:,} values", key="--grid", value=text, remedy="take a larger step")
    return [format(first + index * step, "f") for index in range(number)]


def _values(values: Any) -> list[Any]:
    """Return the values of a key in Python's own types; one that is no collection is the only one."""
    listed = plain(values)
    if isinstance(listed, str | Mapping) or not isinstance(listed, Iterable):
        return [listed]
    return [plain(each) for each in listed]


def _points(scenario: Scenario, grid: Mapping[str, Sequence[Any]], sample: int | None) -> list[Point]:
    if not grid or not all(len(values) for values in grid.values()):
        remedy = "for example --grid deployment.replicas=1,2"
        raise UsageError("needs a key and its values", key="--grid", remedy=remedy)
    size = int(np.prod([len(values) for values in grid.values()], dtype=np.float64))
    if sample is None and size > MOST_POINTS:
        raise UsageError(f"has {size:,} points", key="--grid", remedy="--sample N runs N of them")
    chosen = _chosen(size, sample, scenario.run.seed)
    shape = [len(values) for values in grid.values()]
    base = scenario.as_mapping()
    points = [_point(scenario, base, index, grid, shape) for index in chosen]
    if all(point.scenario is None for point in points):
        raise ScenarioError(f"no point of the grid is a scenario; the first: {points[0].problem}", key="--grid")
    return points


def _chosen(size: int, sample: int | None, seed: int) -> list[int]:
    if sample is None or sample >= size:
        return list(range(size))
    drawn: set[int] = set()
    generator = rng.stream(seed, "sweep sample")
    while len(drawn) < sample:
        drawn.add(int(generator.integers(size)))
    return sorted(drawn)


def _point(
    scenario: Scenario, base: Mapping[str, Any], index: int, grid: Mapping[str, Sequence[Any]], shape: Sequence[int]
) -> Point:
    places = np.unravel_index(index, shape)
    values = {key: options[int(place)] for (key, options), place in zip(grid.items(), places, strict=True)}
    try:
        varied = from_mapping(base, values, folder=scenario.folder)
    except ScenarioError as failure:
        return Point(index=index, values=values, scenario=None, problem=str(failure).replace("override ", "--grid "))
    return Point(index=index, values=values, scenario=varied)


@dataclass(slots=True)
class Finished:
    """Finished points, one line of JSON each, in ``X.parquet.partial``.

    A line is written at once and is on disk before the next point; a last line that was cut short by a crash is
    dropped.
    """

    file: Path  # File that holds them.
    rows: dict[str, Row]  # Scenario hash -> row, of this version of simserve.

    @classmethod
    @contextmanager
    def beside(cls, out: Path, hashes: Sequence[str], *, force: bool) -> Iterator[Finished]:
        """Yield what was finished before, after checking that ``out`` can be written; meanwhile no other sweep may.

        Args:
            out: Where the table goes.
            hashes: Hashes of this sweep's scenarios.
            force: Whether another sweep's table and finished points may be replaced.

        Raises:
            UsageError: ``out`` is no Parquet or CSV file, cannot be written, is being written, or holds another sweep.
        """
        check_name(out)
        if out.suffix not in ENDINGS:
            raise UsageError(f"must end in {' or '.join(ENDINGS)}", file=out, key="--out")
        if out.is_dir():
            raise UsageError("is a folder", file=out, key="--out")
        with ExitStack() as stack:
            try:
                out.parent.mkdir(parents=True, exist_ok=True)
                if not stack.enter_context(only_writer(out)):
                    rule, remedy = "is being written by another sweep", "wait for it, or choose another file"
                    raise UsageError(rule, file=out, key="--out", remedy=remedy)
                found = cls._found(out, hashes, force=force)
            except OSError as failure:
                reason = failure.strerror or str(failure)
                raise UsageError(f"cannot be written: {reason}", file=out, key="--out") from None
            yield found

    @classmethod
    def _found(cls, out: Path, hashes: Sequence[str], *, force: bool) -> Finished:
        if out.exists() and not force and _hashes_in(out) != sorted(hashes):
            raise UsageError("holds another table", file=out, key="--out", remedy=_FORCE_REMEDY)
        file = out.with_name(f"{out.name}.partial")
        with file.open("ab"):
            pass
        rows = _read(file)
        if not rows:
            file.unlink()
        others = len(rows.keys() - set(hashes))
        if others and not force:
            held = f"holds {counted(others, 'finished point')} of another sweep"
            raise UsageError(held, file=file, key="--out", remedy=_FORCE_REMEDY)
        return cls(file, rows)

    def add(self, row: Row) -> None:
        """Keep a row."""
        line = json.dumps({"version": __version__, "row": row}, allow_nan=False) + "\n"
        with self.file.open("ab", buffering=0) as file:
            file.write(line.encode())
            os.fsync(file.fileno())

    def remove(self) -> None:
        """Delete the file: the table now holds its rows."""
        self.file.unlink(missing_ok=True)


def columns(keys: Sequence[str], rows: Sequence[Row]) -> list[Column]:
    """Return the columns: the point, the keys of the grid, the outcome, then every figure."""
    points = np.array([row["point"] for row in rows], dtype=np.int64)
    found = [Column("point", points, "BIGINT")]
    found += [_grid_column(key, [row["values"][key] for row in rows]) for key in keys]
    found += [_text(name, [row.get(name) for row in rows]) for name in ("status", "error", "scenario_hash", *TEXTS)]
    return found + [_number(name, [row.get(name) for row in rows]) for name in ("num_gpus", *FIGURES)]


def _grid_column(key: str, values: Sequence[Any]) -> Column:
    """Return a column of whole numbers or numbers as such, of anything else as it would be written."""
    if all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        return Column(key, np.array(values, dtype=np.int64), "BIGINT")
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return Column(key, np.array(values, dtype=np.float64), "DOUBLE")
    return _text(key, [value if isinstance(value, str) else json.dumps(value) for value in values])


def _text(name: str, values: Sequence[str | None]) -> Column:
    labels = tuple(sorted({value for value in values if value is not None}))
    if not labels:
        return Column(name, None, "VARCHAR")
    places: Mapping[str | None, int] = {label: place for place, label in enumerate(labels)}
    return Column(name, np.array([places.get(value, -1) for value in values], dtype=np.int64), "VARCHAR", labels)


def _number(name: str, values: Sequence[float | None]) -> Column:
    return Column(name, np.array([np.nan if value is None else value for value in values], dtype=np.float64), "DOUBLE")


def _read(file: Path) -> dict[str, Row]:
    """Return the rows of this version, and cut off an unfinished line."""
    whole, _, torn = file.read_bytes().rpartition(b"\n")
    if torn:
        with file.open("rb+") as opened:
            opened.truncate(len(whole) + 1 if whole else 0)
    rows: dict[str, Row] = {}
    for line in whole.splitlines():
        try:
            kept = json.loads(line)
            if kept["version"] == __version__ and kept["row"]["scenario_hash"] is not None:
                rows[kept["row"]["scenario_hash"]] = kept["row"]
        except (ValueError, KeyError, TypeError):
            raise UsageError(
                "holds something else than the points of a sweep", file=file, key="--out", remedy="move it away"
            ) from None
    return rows


def _hashes_in(table: Path) -> list[str] | None:
    """Return the hashes of a table's scenarios, sorted; None where it is not a sweep's."""
    import duckdb  # lazy: only a sweep over an old file needs it

    reader = "read_csv" if table.suffix == CSV_ENDING else "read_parquet"

    try:
        with duckdb.connect(":memory:") as connection:
            found = connection.execute(
                f"SELECT scenario_hash FROM {reader}(?) WHERE scenario_hash IS NOT NULL ORDER BY 1", [str(table)]
            ).fetchall()
    except duckdb.Error:
        return None
    return [row[0] for row in found]
