"""The files of a result, written and read: `result.json`, requests and time series in Parquet, the resolved scenario.

The same result gives the same bytes. Tables are read back as they were written. The metadata hold what is in no other
file: the simulation as plain JSON values, records, arrays and histograms of the classes listed here; no other class is
ever created from a file. Knows where a result goes, not how it came about or how a report looks.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simserve.documents import read_mapping, read_text, yaml_text
from simserve.errors import InputError
from simserve.metrics.latency import MS
from simserve.metrics.result import Column, RunResult, request_columns, series_columns
from simserve.metrics.summary import frozen
from simserve.sim.recorder import RunTotals
from simserve.sim.records import SERVERS, STATUSES, Histogram, RequestRecords
from simserve.unfinished import write_text, write_whole

if TYPE_CHECKING:
    from simserve.sim.recorder import TimeSeries
    from simserve.sim.simulate import Simulation

Columns = Mapping[str, NDArray[Any]]
RESULT_FILE = "result.json"
REQUESTS_FILE = "requests.parquet"
TIMESERIES_FILE = "timeseries.parquet"
SCENARIO_FILE = "scenario.resolved.yaml"
CSV_ENDING = ".csv"
BACKGROUND_KEY = "simserve"  # Key of the metadata of `requests.parquet`.
DIGEST_KEY = "simserve_digest"
"""Likewise: SHA-256 of the two text files, so that a page never shows figures that no run returned."""
_HOMES: Mapping[str, str] = {
    "RunTotals": "simserve.sim.recorder",
    "TimeSeries": "simserve.sim.recorder",
    "SpeculationTotals": "simserve.sim.totals",
    "OffloadTotals": "simserve.sim.totals",
    "LoraTotals": "simserve.sim.totals",
    "TierTotals": "simserve.sim.totals",
    "PoolOutcome": "simserve.sim.pools",
    "StreamTotals": "simserve.sim.streaming",
    "FrontTotals": "simserve.sim.gateway",
    "FleetTimeline": "simserve.sim.recorder",
    "EncoderLives": "simserve.sim.autoscaler",
    "SLO": "simserve.metrics.latency",
}
"""The known records and the module of each: most results hold two of them and import no others."""
_KIND = "kind"
_MOMENTS = ("count", "total", "total_squares", "minimum", "maximum")
_ENCODING = "PARQUET_VERSION v2, COMPRESSION snappy, DICTIONARY_SIZE_LIMIT 1000"
"""Of Parquet: floats are split by byte and whole numbers stored as differences before compression. The files are
smaller than plain pages under zstd, and written in less than half the time; dictionaries are for names, not for times
that never recur."""


def background_text(result: RunResult) -> str:
    """Return, as JSON, the parts of a result that are in none of its tables: totals, the ITL histogram, the background.

    Raises:
        TypeError: A part of the simulation cannot be written.
    """
    simulation = result.simulation
    document = {
        "simulation": {
            name: encoded(getattr(simulation, name))
            for name in _stored_fields(simulation)
            if name not in ("records", "totals", "steps")
        },
        "totals": {
            name: encoded(getattr(simulation.totals, name))
            for name in _stored_fields(simulation.totals)
            if name != "series"
        },
        "slo": encoded(result.slo),
        "class_names": simulation.records.class_names,
        "background": result.background,
    }
    return json.dumps(document, separators=(",", ":"))


def read_result(folder: Path) -> RunResult:
    """Return the result in a folder, with everything that a report shows.

    Why requests failed and which were cut at a length limit is only counted in the summary.

    Raises:
        InputError: A file is missing from the folder, or one was not written by simserve.
    """
    if not folder.is_dir():
        raise InputError("is no folder of a result", file=folder, remedy="name what a run wrote with --out")
    for name in (RESULT_FILE, REQUESTS_FILE, TIMESERIES_FILE, SCENARIO_FILE):
        if not (folder / name).is_file():
            raise InputError(f"holds no {name}", file=folder, remedy="name the folder that a run wrote")
    texts = {name: read_text(folder / name) for name in (RESULT_FILE, SCENARIO_FILE)}
    try:
        summary = json.loads(texts[RESULT_FILE])
        is_result = isinstance(summary["simserve"]["scenario_hash"], str)
    except (ValueError, KeyError, TypeError, RecursionError):
        is_result = False
    if not is_result:
        raise InputError("is no result of simserve", file=folder / RESULT_FILE)
    requests, metadata = _read_table(folder / REQUESTS_FILE)
    text = metadata.get(BACKGROUND_KEY)
    if text is None:
        raise InputError(
            "lacks what a report needs besides its rows", file=folder / REQUESTS_FILE, remedy="run the scenario again"
        )
    if metadata.get(DIGEST_KEY) not in (None, digest_of(texts[RESULT_FILE], texts[SCENARIO_FILE])):
        raise _changed(folder, f"{RESULT_FILE} or {SCENARIO_FILE}")
    series, _ = _read_table(folder / TIMESERIES_FILE)
    try:
        document = json.loads(text)
        return RunResult(
            summary=frozen(summary),
            scenario=read_mapping(folder / SCENARIO_FILE, InputError),
            simulation=_simulation(document, requests, series),
            slo=decoded(document["slo"]),
            background=document["background"],
        )
    except (AttributeError, IndexError, KeyError, ValueError):
        raise _changed(folder, f"{REQUESTS_FILE} or {TIMESERIES_FILE}") from None


def check_unchanged(folder: Path) -> None:
    """Refuse a result whose text files differ from what the run wrote, by the digest in `requests.parquet`, if any.

    Raises:
        InputError: They differ, or the requests cannot be read.
    """
    if not all((folder / name).is_file() for name in (RESULT_FILE, SCENARIO_FILE, REQUESTS_FILE)):
        return
    texts = [read_text(folder / name) for name in (RESULT_FILE, SCENARIO_FILE)]
    if _read_table(folder / REQUESTS_FILE)[1].get(DIGEST_KEY) not in (None, digest_of(*texts)):
        raise _changed(folder, f"{RESULT_FILE} or {SCENARIO_FILE}")


def digest_of(summary: str, scenario: str) -> str:
    """Return the digest by which a reader checks that the text files of a result are unchanged."""
    return hashlib.sha256(f"{summary}\0{scenario}".encode()).hexdigest()


def _changed(folder: Path, files: str) -> InputError:
    return InputError(f"holds a {files} that is not what the run wrote", file=folder, remedy="run the scenario again")


def _read_table(path: Path) -> tuple[Columns, dict[str, str]]:
    """Return the columns of a Parquet file and its metadata."""
    import duckdb  # lazy: only reports of stored results need it

    try:
        with _database() as database:
            columns = database.execute("SELECT * FROM read_parquet(?)", [str(path)]).fetchnumpy()
            entries = database.execute("SELECT key, value FROM parquet_kv_metadata(?)", [str(path)]).fetchall()
    except duckdb.Error as failure:
        raise InputError(f"cannot be read: {str(failure).splitlines()[0]}", file=path) from None
    texts = {key.decode(): value.decode() for key, value in entries}
    return {name: np.ma.asarray(column) for name, column in columns.items()}, texts


def _simulation(document: Mapping[str, Any], requests: Columns, series: Columns) -> Simulation:
    from simserve.sim.simulate import Simulation  # SimPy: not needed to read a summary

    records = _records(requests, tuple(document["class_names"]))
    try:
        totals = RunTotals(series=_series(series), **decoded(document["totals"]))
        return Simulation(records=records, totals=totals, **decoded(document["simulation"]))
    except TypeError:
        raise InputError(
            "was written by another version, whose records are others", file=REQUESTS_FILE, remedy="run it again"
        ) from None


def _records(columns: Columns, class_names: tuple[str, ...]) -> RequestRecords:
    num_requests = len(columns["request_id"])
    floats = {
        "arrival_time": "arrival_s",
        "admitted_time": "admitted_s",
        "scheduled_time": "scheduled_s",
        "first_token_time": "first_token_s",
        "finish_time": "finish_s",
    }
    codes = {status: code for code, status in enumerate(STATUSES)}
    known: dict[str, Any] = {
        **{name: _floats(columns[column]) for name, column in floats.items()},
        **{
            name: np.ma.getdata(columns[name])
            for name in ("prompt_tokens", "output_tokens", "cached_tokens", "num_preemptions")
        },
        "replica_id": np.ma.filled(columns["replica_id"], -1),
        "itl_max": _floats(columns["itl_max_ms"]) / MS,
        "status": np.array([codes[status] for status in columns["status"]], dtype=np.int8),
        "reason": np.zeros(num_requests, dtype=np.int8),
        "is_truncated": np.zeros(num_requests, dtype=np.bool_),
        "class_names": class_names,
    }
    if class_names:
        places = {name: place for place, name in enumerate(class_names)}
        known["request_class"] = np.array([places[name] for name in columns["class"]], dtype=np.int16)
    if "served_by" in columns:
        servers: dict[str | None, int] = {name: place for place, name in enumerate(SERVERS)}
        known["served_by"] = np.array([servers.get(name, 0) for name in _texts(columns["served_by"])], dtype=np.int8)
    for name, column in (("session", "session_id"), ("turn", "turn"), ("task", "task_id")):
        cells = np.ma.asarray(columns.get(column, ()))
        if cells.count():
            known[name] = np.asarray(cells.filled(-1), dtype=np.int64)
    if "adapter" in columns:
        known["adapter"] = np.asarray(np.ma.asarray(columns["adapter"]).filled(-1), dtype=np.int64)
    if "transfer_start_s" in columns:
        known["prefill_replica_id"] = np.ma.getdata(columns["prefill_replica_id"])
        for name in ("prefill_end", "transfer_start", "transfer_end"):
            known[f"{name}_time"] = _floats(columns[f"{name}_s"])
    if "answer_s" in columns:
        known["thinking_tokens"] = np.ma.getdata(columns["thinking_tokens"])
        known["answer_time"] = _floats(columns["answer_s"])
    if "region" in columns:
        names = tuple(dict.fromkeys(columns["region"]))
        known["region_names"] = names
        known["client_region"] = np.array([names.index(name) for name in columns["region"]], dtype=np.int16)
    return RequestRecords(**known)


def _series(columns: Columns) -> TimeSeries:
    from simserve.sim.recorder import TimeSeries

    ends = _floats(columns["end_s"])
    means = {name: _floats(columns[name]) for name in {each.name for each in fields(TimeSeries)} if name in columns}
    return TimeSeries(edges=np.concatenate((_floats(columns["start_s"])[:1], ends)), **means)


def _texts(column: NDArray[Any]) -> list[str | None]:
    """Return a column of strings, None where it is null."""
    texts: list[str | None] = np.ma.filled(np.ma.asarray(column, dtype=object), None).tolist()
    return texts


def _floats(column: NDArray[Any]) -> NDArray[np.float64]:
    """Return a column as floats, NaN where it is null."""
    return np.ma.filled(np.ma.asarray(column, dtype=np.float64), np.nan)


def encoded(value: Any) -> Any:
    """Return a value as JSON values; a record carries its kind.

    Raises:
        TypeError: Its class is not listed.
    """
    if isinstance(value, Histogram):
        filled = np.flatnonzero(value.counts)
        moments = {name: float(getattr(value, name)) for name in _MOMENTS}
        return {_KIND: "Histogram", "bins": filled.tolist(), "counts": value.counts[filled].tolist(), **moments}
    if isinstance(value, np.ndarray):
        return {_KIND: "array", "dtype": value.dtype.str, "shape": list(value.shape), "cells": value.ravel().tolist()}
    if isinstance(value, np.generic):
        return value.item()
    if is_dataclass(value) and not isinstance(value, type):
        name = type(value).__name__
        if _HOMES.get(name) != type(value).__module__:
            raise TypeError(f"{name} has no place in the metadata of a result")
        return {_KIND: name, **{field: encoded(getattr(value, field)) for field in _stored_fields(value)}}
    if isinstance(value, Mapping):
        return {str(key): encoded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [encoded(each) for each in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{type(value).__name__} has no place in the metadata of a result")


def _stored_fields(record: Any) -> list[str]:
    """Return the fields of a record, except those whose metadata exclude them from files."""
    return [each.name for each in fields(record) if each.metadata.get("is_stored", True)]


def decoded(value: Any) -> Any:
    """Return what `encoded` was given; lists come back as tuples.

    Raises:
        InputError: The file was written by a version with different records.
    """
    if isinstance(value, list):
        return tuple(decoded(each) for each in value)
    if not isinstance(value, dict):
        return value
    kind = value.get(_KIND)
    if kind is None:
        return {key: decoded(each) for key, each in value.items()}
    try:
        if kind == "array":
            return np.array(value["cells"], dtype=np.dtype(value["dtype"])).reshape(value["shape"])
        if kind == "Histogram":
            histogram = Histogram()
            histogram.counts[np.array(value["bins"], dtype=np.int64)] = value["counts"]
            for name in _MOMENTS:
                setattr(histogram, name, value[name])
            return histogram
        return getattr(import_module(_HOMES[kind]), kind)(
            **{name: decoded(each) for name, each in value.items() if name != _KIND}
        )
    except (KeyError, TypeError, ValueError):
        raise InputError(
            f"holds a {kind} of another version", file="requests.parquet", remedy="run the scenario again"
        ) from None


def write_result(result: RunResult, folder: Path) -> list[Path]:
    """Write the files of a result into ``folder``, which is created if needed, and return their paths.

    Each file appears whole or not at all; `result.json` is the last. The metadata of `requests.parquet` hold what a
    report needs and is in no other file: see `simserve.metrics.files`.

    Raises:
        OSError: The folder or a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    records, series = result.simulation.records, result.simulation.totals.series
    summary, scenario = summary_text(result.summary), scenario_text(result.scenario)
    metadata = {BACKGROUND_KEY: background_text(result), DIGEST_KEY: digest_of(summary, scenario)}
    write_text(folder / SCENARIO_FILE, scenario)
    write_table(folder / REQUESTS_FILE, request_columns(records, result.slo), metadata)
    write_table(folder / TIMESERIES_FILE, series_columns(series))
    write_text(folder / RESULT_FILE, summary)
    return [folder / name for name in (SCENARIO_FILE, REQUESTS_FILE, TIMESERIES_FILE, RESULT_FILE)]


def write_table(path: Path, columns: Sequence[Column], metadata: Mapping[str, str] | None = None) -> None:
    """Write a table, whole or not at all: as CSV if the name ends so, or Parquet; the same columns give the same bytes.

    Args:
        metadata: Texts that a Parquet file holds beside it, by their keys.

    Raises:
        OSError: The file cannot be written.
    """
    with _database() as database:
        is_csv = path.suffix == CSV_ENDING
        write_whole(path, lambda unfinished: _write_table(database, unfinished, columns, metadata, is_csv=is_csv))


def summary_text(summary: Mapping[str, Any]) -> str:
    """Return `result.json` as text; its keys in the order of the summary, no NaN."""
    return json.dumps(summary, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def scenario_of_result(folder: Path) -> str:
    """Return which file to name in place of the folder of a run or its result; empty if it holds no scenario."""
    stored = folder / SCENARIO_FILE
    return f"name the scenario in it: {stored}" if stored.is_file() else ""


def scenario_text(scenario: Mapping[str, Any]) -> str:
    """Return `scenario.resolved.yaml` as text; its keys in the order of the scenario."""
    return yaml_text(dict(scenario), allow_unicode=True, width=110)


@contextmanager
def _database() -> Iterator[Any]:
    """Yield a connection that reads and writes tables; no other connection sees them."""
    connection = _opened().cursor()
    try:
        yield connection
    finally:
        connection.close()


@cache
def _opened() -> Any:
    """Return an empty database with one thread, so that rows and bytes come in the same order every time.

    Opened once per process: opening takes as long as writing a dozen short tables.
    """
    import duckdb  # lazy: only runs that write files need it

    return duckdb.connect(":memory:", config={"threads": 1, "preserve_insertion_order": True})


def _write_table(
    database: Any,
    path: Path,
    columns: Sequence[Column],
    metadata: Mapping[str, str] | None = None,
    *,
    is_csv: bool = False,
) -> None:
    import duckdb

    arrays = {column.name: np.ascontiguousarray(column.cells) for column in columns if column.cells is not None}
    selected = ", ".join(_select(column) for column in columns)
    target = _quoted(str(path))
    entries = ", ".join(f"{key}: {_quoted(text)}" for key, text in (metadata or {}).items())
    options = f", KV_METADATA {{{entries}}}" if entries else ""
    written = "FORMAT csv, HEADER" if is_csv else f"FORMAT parquet, {_ENCODING}{options}"
    database.register("rows_of_table", arrays)
    try:
        database.execute(f"COPY (SELECT {selected} FROM rows_of_table) TO {target} ({written})")
    except duckdb.IOException as failure:
        if os.strerror(errno.ENOSPC) in str(failure):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from None
        raise OSError(f"{path}: {failure}") from None
    finally:
        database.unregister("rows_of_table")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _select(column: Column) -> str:
    name = f'"{column.name}"'
    if column.cells is None:
        return f"CAST(NULL AS {column.sql_type}) AS {name}"
    if column.cells.dtype.kind in "iu" and len(column.cells) > 0 and bool((column.cells == column.cells[0]).all()):
        only = int(column.cells[0])
        if column.labels and only >= 0:
            return f"{_quoted(column.labels[only])} AS {name}"
        if not column.labels:
            cell = "NULL" if column.is_null_below_zero and only < 0 else str(only)
            return f"CAST({cell} AS {column.sql_type}) AS {name}"
    if column.labels:
        labels = ", ".join("'" + label.replace("'", "''") + "'" for label in column.labels)
        return f"[{labels}][{name} + 1] AS {name}"
    if column.sql_type == "DOUBLE":
        return f"CASE WHEN isnan({name}) THEN NULL ELSE {name} END AS {name}"
    cell = f"CASE WHEN {name} < 0 THEN NULL ELSE {name} END" if column.is_null_below_zero else name
    return f"CAST({cell} AS {column.sql_type}) AS {name}"
