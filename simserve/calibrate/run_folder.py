"""A folder of measured kernels: the log that grows call by call, the operator tables made from it, and provenance.

``points.jsonl`` gets one line per call, written to disk before the next call starts, so that an interrupted measurement
loses no finished call. The tables (``gemm_perf.parquet`` ...) and ``provenance.json`` are written from it, each whole
or not at all. Knows files and rows; measures and fits nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from simserve.calibrate.kernels.points import TABLES, Size, key_of
from simserve.documents import read_text
from simserve.errors import InputError, UsageError
from simserve.metrics.files import write_table
from simserve.metrics.result import Column
from simserve.unfinished import write_text

LOG_FILE, PROVENANCE_FILE = "points.jsonl", "provenance.json"
FORMAT_VERSION = 1

MEASURED_COLUMNS = ("latency", "latency_p10", "latency_p90", "num_samples", "relative_error", "kernel_source", "timing")
"""Columns of a row beside those that identify the call; ``latency`` in ms, as in every operator table."""

MAX_DEATHS = 2  # Number of times a call may kill the process before it is left out.


@dataclass(slots=True)
class Log:
    """What has been measured so far."""

    file: Path  # File of the log.
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Key of a call -> its row: table, sizes and measured values."""
    skipped: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Key of a call -> its row with the reason why there is no time."""
    starts: dict[str, int] = field(default_factory=dict)
    """Key of a call -> number of times it was started but neither measured nor skipped."""

    def start(self, key: str) -> None:
        """Record that a call starts, so that one that kills the process is known."""
        self._take(self._append({"event": "start", "key": key}))

    def withdraw(self, key: str) -> None:
        """Record that the user stopped a call, which does not count against it."""
        self._take(self._append({"event": "withdrawn", "key": key}))

    def add(self, table: str, sizes: Mapping[str, Size], measured: Mapping[str, Any]) -> None:
        """Record the time of a call."""
        self._take(self._append({"event": "measured", "table": table, "sizes": dict(sizes), **measured}))

    def skip(self, table: str, sizes: Mapping[str, Size], reason: str) -> None:
        """Record why a call has no time."""
        self._take(self._append({"event": "skipped", "table": table, "sizes": dict(sizes), "reason": reason}))

    def _append(self, row: dict[str, Any]) -> dict[str, Any]:
        line = json.dumps(row, allow_nan=False) + "\n"
        with self.file.open("ab", buffering=0) as file:
            file.write(line.encode())
            os.fsync(file.fileno())
        return row

    def _take(self, row: dict[str, Any]) -> None:
        if row["event"] == "start":
            self.starts[row["key"]] = self.starts.get(row["key"], 0) + 1
            return
        if row["event"] == "withdrawn":
            self.starts.pop(row["key"], None)
            return
        key = key_of(row["table"], row["sizes"])
        self.starts.pop(key, None)
        kept, other = (self.rows, self.skipped) if row["event"] == "measured" else (self.skipped, self.rows)
        kept[key] = row
        other.pop(key, None)


def read_log(folder: Path, *, is_to_grow: bool = False) -> Log:
    """Return the log of a folder; a last line cut short by a crash is left out.

    Args:
        is_to_grow: Whether to cut that line off the file, so that the next row is not appended to it.

    Raises:
        InputError: A line before the last is not a row, or the file cannot be read.
    """
    log = Log(folder / LOG_FILE)
    try:
        content = log.file.read_bytes()
    except FileNotFoundError:
        return log
    except OSError as failure:
        raise InputError(f"cannot be read: {failure.strerror}", file=log.file) from None
    lines = content.split(b"\n")
    if lines[-1] and is_to_grow:
        with log.file.open("r+b") as file:
            file.truncate(len(content) - len(lines[-1]))
    for number, line in enumerate(lines[:-1], start=1):
        try:
            row = json.loads(line)
            log._take(row)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InputError(
                "is not a row of a measurement", file=log.file, key=f"line {number}", remedy="remove the line"
            ) from None
    return log


def open_run(folder: Path, facts: Mapping[str, Any], *, force: bool) -> Log:
    """Return the log of a run to start or to resume.

    Args:
        folder: Where it is written.
        facts: What must be the same as before: device and models.
        force: Whether a run of another device or other models may be replaced.

    Raises:
        UsageError: The folder cannot be written, or holds another run or something else.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError("is no folder", file=folder, key="--out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / LOG_FILE).open("ab"):
            pass
        provenance = read_provenance(folder) if (folder / PROVENANCE_FILE).exists() else None
    except OSError as failure:
        raise UsageError(f"cannot be written: {failure.strerror}", file=folder, key="--out") from None
    if provenance is None:
        return read_log(folder, is_to_grow=True)
    moved = [
        f"{name} is {provenance.get(name)!r}, not {value!r}"
        for name, value in facts.items()
        if provenance.get(name) != value
    ]
    if not moved:
        return read_log(folder, is_to_grow=True)
    if not force:
        remedy = "choose another folder, or --force to replace it"
        raise UsageError(f"holds a run whose {' and '.join(moved)}", file=folder, key="--out", remedy=remedy)
    for name in (LOG_FILE, PROVENANCE_FILE, *(f"{table}.parquet" for table in TABLES)):
        (folder / name).unlink(missing_ok=True)
    return Log(folder / LOG_FILE)


def write_tables(folder: Path, log: Log) -> dict[str, int]:
    """Write the operator tables of a log and return the number of rows of each."""
    counts = {}
    for table in TABLES:
        rows = [row for row in log.rows.values() if row["table"] == table]
        if rows:
            names = list(dict.fromkeys(name for row in rows for name in row["sizes"]))
            values = {name: [row["sizes"].get(name) for row in rows] for name in names}
            values |= {name: [row[name] for row in rows] for name in MEASURED_COLUMNS}
            write_table(folder / f"{table}.parquet", [_column(name, cells) for name, cells in values.items()])
            counts[table] = len(rows)
    return counts


def _column(name: str, cells: Sequence[Any]) -> Column:
    if any(isinstance(cell, str) for cell in cells):
        labels = tuple(dict.fromkeys(str(cell) for cell in cells))
        return Column(name, np.array([labels.index(str(cell)) for cell in cells], dtype=np.int32), "VARCHAR", labels)
    if all(isinstance(cell, int) for cell in cells):
        return Column(name, np.array(cells, dtype=np.int64), "BIGINT")
    return Column(name, np.array(cells, dtype=np.float64), "DOUBLE")


def write_provenance(folder: Path, provenance: Mapping[str, Any]) -> None:
    """Write the provenance of a run, whole or not at all."""
    write_text(folder / PROVENANCE_FILE, json.dumps(provenance, indent=2, allow_nan=False) + "\n")


def read_provenance(folder: Path) -> dict[str, Any]:
    """Return the provenance of a run.

    Raises:
        InputError: There is no such file, or `write_provenance` did not write it.
    """
    file = folder / PROVENANCE_FILE
    if not file.exists():
        raise InputError("no such file", file=file, remedy="give a folder that simserve calibrate kernels wrote")
    try:
        document = json.loads(read_text(file))
    except ValueError as failure:
        raise InputError(f"cannot be read: {failure}", file=file) from None
    if not isinstance(document, dict) or document.get("format") != FORMAT_VERSION:
        raise InputError(f"must hold format {FORMAT_VERSION}", file=file, key="format")
    return document


@dataclass(frozen=True, slots=True)
class KernelRun:
    """A run as read by a fit or the drift gate."""

    folder: Path  # Folder of the run.
    provenance: Mapping[str, Any]  # Its provenance.
    tables: Mapping[str, pd.DataFrame]  # Table -> its rows: the columns of the file and ``seconds``.

    @property
    def is_complete(self) -> bool:
        """Whether every planned call was measured or found not to run here."""
        return bool(self.provenance.get("is_complete"))

    @property
    def num_points(self) -> int:
        """Number of calls that have a time."""
        return sum(len(table) for table in self.tables.values())


def read_run(folder: Path) -> KernelRun:
    """Return a run: its tables, and the logged calls that a killed measurement did not write to them.

    Raises:
        InputError: The folder is not a run, a table cannot be read, or a latency is not above 0.
    """
    import duckdb

    if not folder.is_dir():
        raise InputError("is no folder", file=folder, remedy="give a folder that simserve calibrate kernels wrote")
    provenance = read_provenance(folder)
    log, tables = read_log(folder), {}
    for table in TABLES:
        file = folder / f"{table}.parquet"
        frames = []
        if file.is_file():
            try:
                frames.append(duckdb.read_parquet(str(file)).df())
            except duckdb.Error as failure:
                raise InputError(f"is no Parquet table: {str(failure).splitlines()[0]}", file=file) from None
        frames += _unwritten(table, log, frames)
        if frames:
            tables[table] = _checked(pd.concat(frames, ignore_index=True), file)
    return KernelRun(folder, provenance, tables)


def _unwritten(table: str, log: Log, written: Sequence[pd.DataFrame]) -> list[pd.DataFrame]:
    rows = [row for row in log.rows.values() if row["table"] == table]
    if not rows or (written and len(written[0]) >= len(rows)):
        return []
    flat = [{**row["sizes"], **{name: row[name] for name in MEASURED_COLUMNS}} for row in rows]
    missing = pd.DataFrame(flat)
    if written:
        names = list(rows[0]["sizes"])
        known = set(map(tuple, written[0][names].astype(str).to_numpy()))
        missing = missing[[tuple(row) not in known for row in missing[names].astype(str).to_numpy()]]
    return [missing]


def _checked(table: pd.DataFrame, file: Path) -> pd.DataFrame:
    if "latency" not in table:
        raise InputError("lacks the column latency", file=file)
    latency = table["latency"].to_numpy(dtype=np.float64)
    if not np.all(np.isfinite(latency)) or np.any(latency <= 0):
        raise InputError("must be above 0 ms in every row", file=file, key="latency")
    return table.assign(seconds=latency * 1e-3)
