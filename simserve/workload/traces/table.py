"""The user's tables, as text or Parquet: found, decompressed, split into columns and checked; errors name the row.

Rows are counted as lines of the file; the header is row 1. Knows columns, not what a trace is.
"""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import os
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

import numpy as np
from numpy.typing import NDArray

from simserve.documents import MAX_DOCUMENT_BYTES, MEGABYTE, decoded, read_bytes
from simserve.errors import TraceError

_GZIP_MAGIC = b"\x1f\x8b"
_PARQUET_MAGIC = b"PAR1"
_NESTED = ("STRUCT(", "MAP(", "UNION(")  # Beginnings of DuckDB's types of structures; its lists end in a bracket.
_ROW = "row_of_the_file"  # Name of a row in queries, which no column has.
_WHOLE_NUMBER = re.compile(r"\s*[+-]?\d{1,18}\s*", re.ASCII)
_NUMBER = re.compile(r"\s*[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?\s*", re.ASCII)
MAX_TOKENS = 1_000_000_000
MAX_TRACE_BYTES = 1_000 * MEGABYTE  # Largest table that is read, after decompression: some 20 million requests.
MAX_COMPRESSION = 100
"""Most times that a decompressed table may be larger than its file; public traces are 3 to 8 times larger. Files that
decompress to at most `MAX_DOCUMENT_BYTES` are exempt."""
LATEST = 1e8  # Seconds; three years. A larger arrival time is a date, not a time from the start of the run.
LARGEST = 1e19  # Larger numbers are not times: nanoseconds since 1970 are 2e18.


@dataclass(frozen=True, slots=True)
class Table:
    """Columns of text cells."""

    file: Path  # The file it was read from.
    text: str  # The whole file.
    columns: dict[str, Sequence[str]]  # Cells by column name, from the first row below the header.
    num_header_rows: int = 1  # 1, or 0 for a file without a header.

    def error(self, index: int, column: str, rule: str, remedy: str | None = None) -> TraceError:
        """Return the error about one cell; ``index`` counts the rows below the header from 0."""
        line = _line_of(self.text, index + self.num_header_rows)
        key = f"row {line}, {column}"
        return TraceError(rule, file=self.file, key=key, value=self.columns[column][index], remedy=remedy)

    def whole_numbers(self, column: str, minimum: int = 1) -> NDArray[np.int64]:
        """Return a column of token counts, >= ``minimum``.

        Raises:
            TraceError: A cell is not a whole number of tokens.
        """
        cells = self.columns[column]
        self._require(_WHOLE_NUMBER, column, "is not a whole number")
        values = np.array([int(cell) for cell in cells], dtype=np.int64)
        wrong = np.flatnonzero((values < minimum) | (values > MAX_TOKENS))
        if len(wrong):
            index = int(wrong[0])
            if values[index] > MAX_TOKENS:
                raise self.error(index, column, f"must be <= {MAX_TOKENS}")
            remedy = "correct the row or remove it: nothing was served"
            raise self.error(index, column, f"must be >= {minimum}", remedy)
        return values

    def seconds(self, column: str) -> NDArray[np.float64]:
        """Return a column of times from the start of the run, >= 0.

        Raises:
            TraceError: A cell is not a number of seconds, or is a date.
        """
        self._require(_NUMBER, column, "is not a number of seconds")
        values = np.array([float(cell) for cell in self.columns[column]], dtype=np.float64)
        wrong = np.flatnonzero((values < 0) | (values > LATEST))
        if len(wrong):
            index = int(wrong[0])
            if values[index] < 0:
                raise self.error(index, column, "must be >= 0")
            rule = "must be in seconds from the start of the run"
            raise self.error(index, column, rule, "subtract the first arrival from every row")
        return values

    def _require(self, pattern: re.Pattern[str], column: str, rule: str) -> None:
        matches = pattern.fullmatch
        for index, cell in enumerate(self.columns[column]):
            if matches(cell) is None:
                raise self.error(index, column, rule)


_JSON_ENDINGS = (".json", ".jsonl", ".ndjson", ".gz")  # Endings of the files that are read if a trace is a folder.


def files_of(path: Path) -> list[Path]:
    """Return the files of a trace: the file itself, or those of a folder that may be JSON, plain or gzip, by name.

    Raises:
        TraceError: A folder has no such files, or more than `MAX_TRACE_BYTES` of them.
    """
    if not path.is_dir():
        return [path]
    files = sorted(each for each in path.iterdir() if each.suffix in _JSON_ENDINGS and each.is_file())
    if not files:
        endings = ", ".join(_JSON_ENDINGS)
        raise TraceError(f"is a folder without files that end in {endings}", file=path, remedy="name a file")
    if sum(each.stat().st_size for each in files) > MAX_TRACE_BYTES:
        raise TraceError(f"has more than {MAX_TRACE_BYTES // 10**6} MB", file=path, remedy="name one of its files")
    return files


def find_file(path: str, base_path: Path | None = None, *, takes_folder: bool = False) -> Path:
    """Return the file a path means: in ``base_path`` first, then in the working folder.

    Raises:
        TraceError: There is no such file, or it is a device, a pipe, or a folder where only a file is allowed.
    """
    given = Path(path).expanduser()
    candidates = [given] if given.is_absolute() or base_path is None else [base_path / given, given]
    for candidate in candidates:
        if os.path.isfile(candidate) or (takes_folder and os.path.isdir(candidate)):
            return candidate
    if any(os.path.isdir(candidate) for candidate in candidates):
        raise TraceError("is a folder, not a file", file=path)
    if any(os.path.exists(candidate) for candidate in candidates):
        raise TraceError("is a device or a pipe, not a file", file=path, remedy="save it as a file, and name that")
    places = "" if base_path is None or given.is_absolute() else f" in the working folder or {base_path}"
    raise TraceError(f"no such file{places}", file=path)


def read_table(path: Path, required: Sequence[str], optional: Sequence[str] = ()) -> Table:
    """Return the named columns of a CSV file with a header; other columns are ignored.

    Raises:
        TraceError: The file cannot be read, is empty, lacks a column, or has a row of another
            length than its header.
    """
    text = read_text(path)
    rows = _rows(path, text)
    header = [name.strip() for name in rows[0]]
    for name in required:
        if name not in header:
            raise TraceError("is missing", file=path, key=name, remedy="the columns are " + ", ".join(header))
    wanted = [name for name in header if name in required or name in optional]
    for name in wanted:
        if wanted.count(name) > 1:
            raise TraceError("stands twice in the header", file=path, key=name, remedy="keep one of them")
    if len(rows) == 1:
        raise TraceError("has a header but no rows", file=path, remedy="a trace needs at least one request")
    _require_equal_lengths(path, text, rows)
    cells = list(zip(*rows[1:], strict=True))
    return Table(path, text, {name: cells[header.index(name)] for name in wanted})


def read_lengths(file: Path, column: str | None) -> NDArray[np.int64]:
    """Return lengths in tokens from one column of a CSV or text file.

    Args:
        column: Name of the column; None: the file has only one, with or without a header.

    Raises:
        TraceError: The file cannot be read, or a cell is not a whole number >= 1.
    """
    if column is not None:
        return read_table(file, required=(column,)).whole_numbers(column)
    text = read_text(file)
    rows = _rows(file, text)
    if len(rows[0]) > 1:
        names = ", ".join(cell.strip() for cell in rows[0])
        raise TraceError("has several columns", file=file, remedy=f"name one with column: {names}")
    if _WHOLE_NUMBER.fullmatch(rows[0][0]) is None:
        name = rows[0][0].strip()
        return read_table(file, required=(name,)).whole_numbers(name)
    _require_equal_lengths(file, text, rows)
    return Table(file, text, {"length": [row[0] for row in rows]}, num_header_rows=0).whole_numbers("length")


def read_text(path: Path) -> str:
    """Return the text of a file, decompressed if it is gzip; of a Parquet file its rows as CSV, or as JSON lines if
    cells hold lists or structures.

    Raises:
        TraceError: The file cannot be read, is damaged, larger than `MAX_TRACE_BYTES`, compressed more than
            `MAX_COMPRESSION` times, not UTF-8, or empty.
    """
    content = read_bytes(path, TraceError, MAX_TRACE_BYTES)
    if content.startswith(_PARQUET_MAGIC):
        return _of_parquet(path)
    if content.startswith(_GZIP_MAGIC):
        content = _decompressed(path, content)
    text = decoded(content, path, TraceError)
    if not text.strip():
        raise TraceError("is empty", file=path)
    return text


def _of_parquet(path: Path) -> str:
    import duckdb  # lazy: most traces are text

    try:
        with duckdb.connect(":memory:", config={"preserve_insertion_order": True}) as connection:
            # What repeats takes no room in the file: the text of its cells is counted before any is held.
            counted = "SELECT sum(strlen(COLUMNS(*)::VARCHAR)) FROM read_parquet(?)"
            sizes = connection.execute(counted, [str(path)]).fetchall()[0]
            if sum(size or 0 for size in sizes) > MAX_TRACE_BYTES:
                raise TraceError(f"holds more than {MAX_TRACE_BYTES // MEGABYTE:,} MB", file=path, remedy="cut it")
            columns = connection.execute("DESCRIBE SELECT * FROM read_parquet(?)", [str(path)]).fetchall()
            is_nested = any(each[1].startswith(_NESTED) or each[1].endswith("]") for each in columns)
            selected = f"to_json({_ROW})" if is_nested else "COLUMNS(*)::VARCHAR"
            rows = connection.execute(f"SELECT {selected} FROM read_parquet(?) AS {_ROW}", [str(path)]).fetchall()
    except duckdb.Error:
        raise TraceError("is a damaged Parquet file", file=path, remedy="copy or download it again") from None
    if is_nested:
        return "\n".join(row[0] for row in rows)
    text = io.StringIO()
    csv.writer(text).writerows([[each[0] for each in columns], *rows])
    return text.getvalue()


def _decompressed(path: Path, content: bytes) -> bytes:
    most = min(max(MAX_COMPRESSION * len(content), MAX_DOCUMENT_BYTES), MAX_TRACE_BYTES)
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            plain = file.read(most + 1)
    except EOFError:
        raise TraceError("is a truncated gzip file", file=path, remedy="copy or download it again") from None
    except (gzip.BadGzipFile, zlib.error):
        raise TraceError("is a damaged gzip file", file=path, remedy="copy or download it again") from None
    if len(plain) > most:
        times = f"{MAX_COMPRESSION} times its size, or more than {MAX_TRACE_BYTES // MEGABYTE:,} MB"
        raise TraceError(f"decompresses to more than {times}", file=path, remedy="decompress it, or cut it")
    return plain


def delimiter_of(text: str) -> str:
    """Return the separator of a header's cells: a comma, or else a tab or a semicolon if it has one."""
    header = text.lstrip().partition("\n")[0]
    return "," if "," in header else next((sign for sign in "\t;" if sign in header), ",")


def _rows(path: Path, text: str) -> list[list[str]]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter_of(text), strict=True)
    try:
        return [row for row in reader if row]
    except csv.Error as broken:
        raise TraceError(f"is not valid CSV: {broken}", file=path, key=f"row {reader.line_num}") from None


def _require_equal_lengths(path: Path, text: str, rows: list[list[str]]) -> None:
    width = len(rows[0])
    for index, row in enumerate(rows):
        if len(row) != width:
            rule = f"has {len(row)} fields, the first row has {width}"
            raise TraceError(rule, file=path, key=f"row {_line_of(text, index)}")


def _line_of(text: str, index: int) -> int:
    """Return the line of a row of the file; lines are counted from 1, rows from 0."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter_of(text), strict=True)
    return next(itertools.islice((reader.line_num for row in reader if row), index, None), 0)


def is_number(value: object, least: float = -LARGEST, most: float = LARGEST) -> TypeGuard[float]:
    """Return whether a JSON value is a number in a range; NaN and whole numbers of hundreds of digits are not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most
