"""Fields: a mapping in a user's file, read key by key; errors name the file, the key and what was expected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.errors import TraceError
from simserve.workload.traces.table import LARGEST, MAX_TOKENS, is_number

UNITS = {
    "s": 1.0,
    "sec": 1.0,
    "seconds": 1.0,
    "ms": 1e-3,
    "milliseconds": 1e-3,
    "us": 1e-6,
    "ns": 1e-9,
    "s/token": 1.0,
    "ms/token": 1e-3,
    "us/token": 1e-6,
}
"""Seconds of each unit that a tool may name beside a figure."""


@dataclass(frozen=True, slots=True)
class Fields:
    """A mapping somewhere in a file."""

    values: Mapping[str, Any]  # Its content.
    file: str  # The file.
    path: str = ""  # Key of the mapping, or its row; empty at the top.
    separator: str = "."  # What stands between that and a key below it.

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def key(self, name: str) -> str:
        """Return the whole key of a name in this mapping."""
        return f"{self.path}{self.separator}{name}" if self.path else name

    def error(self, name: str, rule: str, remedy: str | None = None) -> TraceError:
        """Return the error about one key."""
        return TraceError(rule, file=self.file, key=self.key(name), value=self.values.get(name), remedy=remedy)

    def mapping(self, name: str, *, may_lack: bool = False) -> Fields:
        """Return the mapping below a key; an empty one if there is none and ``may_lack`` is set.

        Raises:
            TraceError: There is none.
        """
        value = self.values.get(name) or ({} if may_lack else self.values.get(name))
        if not isinstance(value, Mapping):
            raise self.error(name, "is missing: a mapping is expected" if value is None else "is not a mapping")
        return Fields(value, self.file, self.key(name))

    def find(self, *names: str) -> Fields | None:
        """Return the mapping at the end of a path of keys; None if the path does not exist."""
        found: Any = self.values
        for name in names:
            found = found.get(name) if isinstance(found, Mapping) else None
        if not isinstance(found, Mapping) or not found:
            return None
        return Fields(found, self.file, ".".join((*([self.path] if self.path else []), *names)))

    def items_of(self, name: str) -> Iterator[Fields]:
        """Yield the mappings of a list below a key.

        Raises:
            TraceError: There is no list, or it contains something else.
        """
        value = self.values.get(name)
        if not isinstance(value, Sequence) or isinstance(value, str) or not value:
            raise self.error(name, "is missing: a list is expected" if value is None else "is not a filled list")
        for index, each in enumerate(value):
            if not isinstance(each, Mapping):
                raise TraceError("is not a mapping", file=self.file, key=f"{self.key(name)}[{index}]")
            yield Fields(each, self.file, f"{self.key(name)}[{index}]")

    def text(self, name: str) -> str:
        """Return a text; empty if there is none."""
        value = self.values.get(name)
        return value if isinstance(value, str) else ""

    def text_at(self, *paths: tuple[str, ...]) -> str:
        """Return the first text found at one of several paths, or in a list there; empty if there is none."""
        for *above, last in paths:
            place = self.find(*above) if above else self
            value = None if place is None else place.values.get(last)
            value = value[0] if isinstance(value, list) and value else value
            value = value.get("name") if isinstance(value, Mapping) else value
            if isinstance(value, str) and value:
                return value
        return ""

    def number(self, name: str, expected: str = "a number", least: float = -LARGEST, most: float = LARGEST) -> float:
        """Return a finite number in a range.

        Raises:
            TraceError: It is missing or something else; ``expected`` says what it should be.
        """
        value = self.values.get(name)
        if value is None:
            raise self.error(name, f"is missing: {expected} is expected")
        if not is_number(value, least, most):
            raise self.error(name, f"is not {expected}")
        return float(value)

    def optional(
        self, name: str, expected: str = "a number", least: float = -LARGEST, most: float = LARGEST
    ) -> float | None:
        """Return a finite number in a range; None if the key is missing.

        Raises:
            TraceError: It is something else.
        """
        return self.number(name, expected, least, most) if name in self else None

    def tokens(self, name: str) -> int:
        """Return a number of tokens, >= 1.

        Raises:
            TraceError: It is missing, or is not a whole number of tokens.
        """
        value = self.number(name)
        if not value.is_integer():
            raise self.error(name, "is not a whole number")
        if not 1 <= value <= MAX_TOKENS:
            remedy = "correct the row or remove it: nothing was served" if value < 1 else None
            raise self.error(name, "must be >= 1" if value < 1 else f"must be <= {MAX_TOKENS}", remedy)
        return int(value)

    def count(self, name: str) -> int:
        """Return a whole number of at least 1.

        Raises:
            TraceError: It is missing or something else.
        """
        value = self.number(name, "a whole number")
        if not value.is_integer() or value < 1:
            raise self.error(name, "must be a whole number >= 1", "nothing was served" if value == 0 else None)
        return int(value)

    def numbers(self, name: str) -> NDArray[np.float64]:
        """Return a list of numbers.

        Raises:
            TraceError: It is missing, or contains something else.
        """
        value = self.values.get(name)
        if not isinstance(value, list) or any(
            isinstance(each, bool) or not isinstance(each, int | float) for each in value
        ):
            raise TraceError("must be a list of numbers", file=self.file, key=self.key(name))
        return np.asarray(value, dtype=np.float64)

    def integers(self, name: str) -> list[int]:
        """Return a list of whole numbers.

        Raises:
            TraceError: It is missing, or is something else.
        """
        value = self.values.get(name)
        if not isinstance(value, list) or not all(type(each) is int for each in value):
            raise self.error(name, "is not a list of whole numbers")
        return value

    def unit(self, name: str) -> float:
        """Return the seconds of the unit that a key names.

        Raises:
            TraceError: The unit is missing or unknown.
        """
        text = self.text(name)
        if text not in UNITS:
            raise self.error(name, f"must be a unit of time: {', '.join(UNITS)}")
        return UNITS[text]
