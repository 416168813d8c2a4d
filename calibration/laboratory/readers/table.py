"""Rows of a measured CSV file, and the figures in them. Knows columns by name, not what a server is."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping
from pathlib import Path

from simserve.errors import TraceError
from simserve.planner.measured.point import Metric
from simserve.workload.traces.table import read_text

MS = 1e-3
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


class Row:
    """One row: text by column, with its place for messages.

    Attributes:
        file: Name of the file.
        number: Row number, 1 for the first after the header.
    """

    def __init__(self, cells: Mapping[str, str], file: str, number: int) -> None:
        self._cells = cells
        self.file = file
        self.number = number

    @property
    def label(self) -> str:
        """File and row."""
        return f"{self.file} row {self.number}"

    def text(self, column: str) -> str:
        """Return a cell, "" if the column or the value is absent."""
        return (self._cells.get(column) or "").strip()

    def number_of(self, column: str) -> float:
        """Return the number with which a cell begins, NaN if there is none."""
        found = _NUMBER.match(self.text(column))
        return float(found.group()) if found else math.nan

    def count(self, column: str, default: int) -> int:
        """Return a whole number, ``default`` if the cell has none."""
        number = self.number_of(column)
        return default if math.isnan(number) else round(number)

    def corrected(self, column: str) -> float:
        """Return the number of ``column_corr`` if filled, else of ``column``."""
        corrected = self.number_of(f"{column}_corr")
        return self.number_of(column) if math.isnan(corrected) else corrected

    def note(self, name: str) -> str:
        """Return the value of ``name=value`` in the notes, "" if absent."""
        found = re.search(rf"\b{re.escape(name)}=([^;,\s]*)", self.text("notes"))
        return found.group(1) if found else ""

    def latencies(self, *metrics: Metric) -> dict[Metric, float]:
        """Return the latencies of ``<metric>_ms`` that are filled, seconds."""
        values = {metric: self.corrected(f"{metric}_ms") * MS for metric in metrics}
        return {metric: value for metric, value in values.items() if value > 0}


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a CSV file, plain or gzip.

    Raises:
        TraceError: The file is missing or unreadable.
    """
    lines = io.StringIO(read_text(path), newline="")
    try:
        return [Row(cells, path.name, number) for number, cells in enumerate(csv.DictReader(lines), start=1)]
    except csv.Error as failure:
        raise TraceError(f"cannot be read: {failure}", file=path) from None
