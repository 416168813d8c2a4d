"""The files of a sweep: the table, and beside it the points that an interrupted sweep has finished. Runs nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simserve.errors import UsageError
from simserve.metrics.files import write_table
from simserve.metrics.tables import Column
from simserve.planner.compare import FIGURES
from simserve.planner.sweep.point import TEXTS, Row
from simserve.version import __version__

ENDING = ".parquet"
_FORCE = "choose another file, or --force to replace it"


@dataclass(slots=True)
class Finished:
    """Points that are done, one line of JSON each in ``X.parquet.partial``.

    A line is written at once and reaches the disk before the next point; a last line cut short by a crash is dropped.

    Attributes:
        file: Where they are kept.
        rows: Scenario hash -> row, of this version of simserve.
    """

    file: Path
    rows: dict[str, Row]

    @classmethod
    def beside(cls, out: Path, hashes: Sequence[str], *, force: bool) -> Finished:
        """Return what was finished before, after a look at whether ``out`` can be written.

        Args:
            out: Where the table goes.
            hashes: Of the scenarios of this sweep.
            force: Whether another sweep's table may be replaced.

        Raises:
            UsageError: ``out`` is no Parquet file, cannot be written, or holds another sweep.
        """
        if out.suffix != ENDING:
            raise UsageError(f"must end in {ENDING}", file=out, key="--out")
        if out.is_dir():
            raise UsageError("is a folder", file=out, key="--out")
        if out.exists() and not force and _hashes_in(out) != sorted(hashes):
            raise UsageError("holds another table", file=out, key="--out", remedy=_FORCE)
        file = out.with_name(f"{out.name}.partial")
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            with file.open("ab"):
                pass
            rows = _read(file)
            if not rows:
                file.unlink()
            return cls(file, rows)
        except OSError as failure:
            reason = failure.strerror or str(failure)
            raise UsageError(f"cannot be written: {reason}", file=out, key="--out") from None

    def add(self, row: Row) -> None:
        """Keep a row."""
        line = json.dumps({"version": __version__, "row": row}, allow_nan=False) + "\n"
        with self.file.open("ab", buffering=0) as file:
            file.write(line.encode())
            os.fsync(file.fileno())

    def remove(self) -> None:
        """Forget all: the table holds them."""
        self.file.unlink(missing_ok=True)


def save_table(out: Path, keys: Sequence[str], rows: Sequence[Row]) -> None:
    """Write the table, whole or not at all; the same rows give the same bytes."""
    write_table(out, columns(keys, rows))


def columns(keys: Sequence[str], rows: Sequence[Row]) -> list[Column]:
    """Return the columns: the point, the keys of the grid, how it went, then every figure."""
    points = np.array([row["point"] for row in rows], dtype=np.int64)
    found = [Column("point", points, "BIGINT")]
    found += [_grid_column(key, [row["values"][key] for row in rows]) for key in keys]
    found += [_text(name, [row.get(name) for row in rows]) for name in ("status", "error", "scenario_hash", *TEXTS)]
    return found + [_number(name, [row.get(name) for row in rows]) for name in ("num_gpus", *FIGURES)]


def column_table(keys: Sequence[str], rows: Sequence[Row]) -> dict[str, list[Any]]:
    """Return the same columns as plain lists."""
    table = {"point": [row["point"] for row in rows]}
    table |= {key: [row["values"][key] for row in rows] for key in keys}
    names = ("status", "error", "scenario_hash", *TEXTS, "num_gpus", *FIGURES)
    return table | {name: [row.get(name) for row in rows] for name in names}


def _grid_column(key: str, values: Sequence[Any]) -> Column:
    """Return whole numbers and numbers as such, everything else as it would be written."""
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
    """Return the rows of this version, and cut off a line that was not finished."""
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
    """Return the scenarios of a table, sorted; None where it is none of a sweep."""
    import duckdb  # lazy: only a sweep over an old file needs it

    try:
        with duckdb.connect(":memory:") as connection:
            found = connection.execute(
                "SELECT scenario_hash FROM read_parquet(?) WHERE scenario_hash IS NOT NULL ORDER BY 1", [str(table)]
            ).fetchall()
    except duckdb.Error:
        return None
    return [row[0] for row in found]
