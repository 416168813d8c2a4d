"""Writing a result: `result.json`, `requests.parquet`, `timeseries.parquet`, `scenario.resolved.yaml`.

The same result gives the same bytes. Knows where a result goes, not how it came about.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from simserve.metrics.result import Column, RunResult, request_columns, series_columns
from simserve.metrics.stored import (
    BACKGROUND_KEY,
    DIGEST_KEY,
    REQUESTS_FILE,
    RESULT_FILE,
    SCENARIO_FILE,
    TIMESERIES_FILE,
    background_text,
    digest_of,
)
from simserve.unfinished import remove_abandoned, unfinished

_ENCODING = "PARQUET_VERSION v2, COMPRESSION snappy, DICTIONARY_SIZE_LIMIT 1000"
"""Of Parquet: floats split by byte and whole numbers by difference, before they are compressed. Smaller than one page
after another under zstd, in less than half the time; dictionaries are for names, not for times that never recur."""


def write_result(result: RunResult, folder: Path) -> list[Path]:
    """Write the files of a result into ``folder``, which is made if need be, and return their paths.

    Each file appears whole or not at all; `result.json` is the last. The metadata of `requests.parquet` hold what no
    other file does and a report needs: see `simserve.metrics.stored`.

    Raises:
        OSError: The folder or a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    records, series = result.simulation.records, result.simulation.totals.series
    summary, scenario = summary_text(result.summary), scenario_text(result.scenario)
    metadata = {BACKGROUND_KEY: background_text(result), DIGEST_KEY: digest_of(summary, scenario)}
    with _database() as database:
        writers: dict[str, Callable[[Path], None]] = {
            SCENARIO_FILE: lambda path: _write_text(path, scenario),
            REQUESTS_FILE: lambda path: _write_parquet(database, path, request_columns(records, result.slo), metadata),
            TIMESERIES_FILE: lambda path: _write_parquet(database, path, series_columns(series)),
            RESULT_FILE: lambda path: _write_text(path, summary),
        }
        for name, write in writers.items():
            _write_whole(folder / name, write)
    return [folder / name for name in writers]


def write_table(path: Path, columns: Sequence[Column]) -> None:
    """Write a table as Parquet, whole or not at all; the same columns give the same bytes.

    Raises:
        OSError: The file cannot be written.
    """
    with _database() as database:
        _write_whole(path, lambda unfinished: _write_parquet(database, unfinished, columns))


def summary_text(summary: Mapping[str, Any]) -> str:
    """Return `result.json` as text; its keys in the order of the summary, no NaN."""
    return json.dumps(summary, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def scenario_text(scenario: Mapping[str, Any]) -> str:
    """Return `scenario.resolved.yaml` as text; its keys in the order of the scenario."""
    return yaml.safe_dump(dict(scenario), sort_keys=False, allow_unicode=True, width=110)


def _write_whole(path: Path, write: Callable[[Path], None]) -> None:
    remove_abandoned(path.parent)
    beside = unfinished(path)
    try:
        write(beside)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")


@contextmanager
def _database() -> Iterator[Any]:
    """Yield what writes tables, with one thread, so that rows and bytes come in the same order every time.

    Opening it takes as long as writing several short tables.
    """
    import duckdb  # lazy: only runs that write files need it

    database = duckdb.connect(":memory:", config={"threads": 1, "preserve_insertion_order": True})
    try:
        yield database
    finally:
        database.close()


def _write_parquet(
    database: Any, path: Path, columns: Sequence[Column], metadata: Mapping[str, str] | None = None
) -> None:
    import duckdb

    arrays = {column.name: np.ascontiguousarray(column.cells) for column in columns if column.cells is not None}
    selected = ", ".join(_select(column) for column in columns)
    target = _quoted(str(path))
    entries = ", ".join(f"{key}: {_quoted(text)}" for key, text in (metadata or {}).items())
    options = f", KV_METADATA {{{entries}}}" if entries else ""
    database.register("rows_of_table", arrays)
    try:
        database.execute(
            f"COPY (SELECT {selected} FROM rows_of_table) TO {target} (FORMAT parquet, {_ENCODING}{options})"
        )
    except duckdb.IOException as failure:
        raise OSError(f"{path}: {failure}") from None
    finally:
        database.unregister("rows_of_table")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _select(column: Column) -> str:
    name = f'"{column.name}"'
    if column.cells is None:
        return f"CAST(NULL AS {column.sql_type}) AS {name}"
    if _is_constant(column.cells):
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


def _is_constant(cells: NDArray[Any]) -> bool:
    """Return whether whole numbers are all the same, as often who served or how a request ended: one is enough."""
    return cells.dtype.kind in "iu" and len(cells) > 0 and bool((cells == cells[0]).all())
