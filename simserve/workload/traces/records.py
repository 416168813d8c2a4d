"""The user's JSON and JSON lines: read and checked field by field; errors name the row.

Rows are counted from 1, as lines of the file or elements of a JSON list. Knows fields, not what a trace is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.errors import TraceError
from simserve.workload.fields import Fields
from simserve.workload.traces.table import LATEST, MAX_TOKENS, files_of, is_number, read_text

_BETWEEN = re.compile(r"[\s,\[]*")
_NUM_SAMPLED = 1_000
"""Objects whose fields are looked at: the first one may be of a request that failed, without what others have."""


@dataclass(frozen=True, slots=True)
class Records:
    """Objects of a file."""

    file: Path  # The file they were read from.
    rows: Sequence[Mapping[str, Any]]  # The objects.
    lines: Sequence[int | str]  # Row of each in the file; with several files ``3 of NAME``.

    def row(self, index: int) -> Fields:
        """Return one of the objects, counted from 0."""
        return Fields(self.rows[index], str(self.file), f"row {self.lines[index]}", separator=", ")

    def each(self) -> Iterator[Fields]:
        """Yield the objects."""
        return map(self.row, range(len(self.rows)))

    def in_order(self, order: Iterable[int]) -> Records:
        """Return some of the objects, in that order."""
        places = list(order)
        return Records(self.file, [self.rows[each] for each in places], [self.lines[each] for each in places])

    def only(self, names: Iterable[str]) -> Records:
        """Return the objects with these fields alone; one of an object within has a dotted name: ``usage.input``."""
        wanted = tuple(names)
        return Records(self.file, [{name: _field(row, name) for name in wanted} for row in self.rows], self.lines)

    def error(self, index: int, field: str, rule: str, remedy: str | None = None) -> TraceError:
        """Return the error about one field; ``index`` counts the objects from 0."""
        return self.row(index).error(field, rule, remedy)

    def whole_numbers(self, field: str) -> NDArray[np.int64]:
        """Return a field of token counts, >= 1.

        Raises:
            TraceError: It is missing in a row, or is not a whole number of tokens.
        """
        values = [row.get(field) for row in self.rows]
        if not all(type(each) is int and 1 <= each <= MAX_TOKENS for each in values):
            values = [row.tokens(field) for row in self.each()]
        return np.array(values, dtype=np.int64)

    def seconds(self, field: str, unit: float = 1.0) -> NDArray[np.float64]:
        """Return a field of times from the start of the run in seconds, >= 0 and ascending.

        Args:
            unit: Seconds per unit of the field.

        Raises:
            TraceError: It is missing in a row, is not a number, is a date, or is below the row before.
        """
        values = [row.get(field) for row in self.rows]
        if not all(map(is_number, values)):
            values = [row.number(field) for row in self.each()]
        times = np.array(values, dtype=np.float64) * unit
        wrong = np.flatnonzero((times < 0) | (times > LATEST))
        if len(wrong):
            index = int(wrong[0])
            raise self.error(index, field, "must be a time from the start of the run", "subtract the first from each")
        falls = np.flatnonzero(np.diff(times) < 0)
        if len(falls):
            index = int(falls[0]) + 1
            before = self.rows[index - 1][field]
            raise self.error(index, field, f"is earlier than the row before it ({before})", f"sort by {field}")
        return times

    def lists(self, field: str) -> list[list[int]]:
        """Return a field of lists of whole numbers, which serve as names: those from 2^63 up become negative ones.

        Raises:
            TraceError: It is missing in a row, or is something else.
        """
        found = []
        for index, row in enumerate(self.rows):
            value = row.get(field)
            if type(value) is not list or not all(type(each) is int for each in value):
                value = self.row(index).integers(field)
            if value and not -(2**63) <= min(value) <= max(value) < 2**63:
                if not 0 <= min(value) <= max(value) < 2**64:
                    raise self.error(index, field, "holds numbers of more than 64 bits")
                value = [each - 2**64 if each >= 2**63 else each for each in value]
            found.append(value)
        return found


def read_records(path: Path) -> Records:
    """Return the objects of JSON lines or of a JSON list, the one object of a JSON file, or all objects of a folder.

    Raises:
        TraceError: The file cannot be read, is not JSON, or contains anything but objects.
    """
    if not path.is_dir():
        return _of_file(path)
    parts = [_of_file(file) for file in files_of(path)]
    rows = [row for part in parts for row in part.rows]
    return Records(path, rows, [f"{line} of {part.file.name}" for part in parts for line in part.lines])


def field_samples(text: str) -> dict[str, object]:
    """Return the fields of the first objects of JSON lines or a JSON list, each with its first value that is not null.

    A field of an object within has a dotted name. What is no JSON ends the search: reading the file says what is wrong.
    """
    decoder, place = json.JSONDecoder(), 0
    found: dict[str, object] = {}
    for _ in range(_NUM_SAMPLED):
        between = _BETWEEN.match(text, place)
        try:
            row, place = decoder.raw_decode(text, between.end() if between else place)
        except (ValueError, RecursionError):
            break
        for name, value in _fields(row, "") if isinstance(row, dict) else ():
            if found.get(name) is None:
                found[name] = value
    return found


def _fields(row: Mapping[str, Any], start: str) -> Iterator[tuple[str, object]]:
    """Yield the names of an object's fields with their values, then dotted those of objects within."""
    for name, value in row.items():
        yield start + name, value
        if isinstance(value, dict):
            yield from _fields(value, f"{start}{name}.")


def _field(row: Mapping[str, Any], name: str) -> object:
    """Return a field of an object by its name, dotted within others; None if it has none."""
    if name in row:
        return row[name]
    first, _, rest = name.partition(".")
    inner = row.get(first) if rest else None
    return _field(inner, rest) if isinstance(inner, dict) else None


def _of_file(path: Path) -> Records:
    text = read_text(path)
    if text.lstrip().startswith("["):
        rows = _parse(text, path, None)
        lines: Sequence[int] = range(1, len(rows) + 1)
    else:
        rows, lines = _lines(text, path)
    if not rows:
        raise TraceError("holds no rows", file=path, remedy="a trace needs at least one request")
    for row, line in zip(rows, lines, strict=True):
        if not isinstance(row, dict):
            raise TraceError("is not a JSON object", file=path, key=f"row {line}")
    return Records(path, rows, lines)


def _lines(text: str, path: Path) -> tuple[list[Any], Sequence[int]]:
    filled = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    try:
        return [json.loads(line) for _, line in filled], [number for number, _ in filled]
    except (ValueError, RecursionError):
        pass
    if filled[0][1].strip() == "{":  # one object over several lines
        return [_parse(text, path, None)], [1]
    for number, line in filled:
        _parse(line, path, number)
    raise TraceError("is not JSON", file=path)


def _parse(text: str, path: Path, line: int | None) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as broken:
        where = f"row {line}" if line is not None else f"line {broken.lineno}, column {broken.colno}"
        raise TraceError(f"is not valid JSON: {broken.msg}", file=path, key=where) from None
    except (ValueError, RecursionError) as broken:
        rule = f"is not valid JSON: {broken}"
        raise TraceError(rule, file=path, key=None if line is None else f"row {line}") from None
