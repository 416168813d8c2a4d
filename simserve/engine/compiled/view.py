"""Records in flat memory seen as the objects that they stand for: for what Python looks at, and sets, between drives.

Numbers, lists of numbers, and records that a record refers to. Slow; nothing here is on anybody's path. Knows no numba.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any

from simserve.engine.compiled.layout import BOOLEAN, FLOAT, INTEGER, Items, Memory, Pointer, Records


class View:
    """A record.

    Args:
        memory: Where it lies.
        number: Which of those that lie there.
        known: What is said to stand in fields of it that are not to be looked up.
    """

    def __init__(self, memory: Memory, number: int = 0, **known: Any) -> None:
        self.__dict__.update(known, _memory=memory, _number=number)

    def __getattr__(self, name: str) -> Any:
        """Return a number, or a view of a list or of other records."""
        memory, number = self._memory, self._number
        kind = memory.record.fields.get(name)
        if kind in (INTEGER, FLOAT, BOOLEAN):
            value = memory.get(name, number)
            return float(value) if kind == FLOAT else bool(value) if kind == BOOLEAN else value
        if isinstance(kind, Items):
            return FlatList(memory, name, number)
        if isinstance(kind, Records):
            others = memory.kept.get(name)
            return [] if others is None else [View(others, position) for position in range(others.count)]
        if isinstance(kind, Pointer):
            found = memory.kept.get(name)
            return None if found is None else View(found)
        raise AttributeError(name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a number."""
        self._memory.put(name, value, self._number)


class FlatList(Sequence[Any]):
    """A list of numbers."""

    def __init__(self, memory: Memory, name: str, number: int) -> None:
        self._memory, self._name, self._number = memory, name, number
        kind = memory.record.fields[name]
        assert isinstance(kind, Items)
        self._kind = ctypes.c_double if kind.codes == "d" else ctypes.c_int64

    def __len__(self) -> int:
        """Return how many there are."""
        return self._memory.length(self._name, self._number)

    def __getitem__(self, position: Any) -> Any:
        """Return one of them, or several as a list."""
        return self._entries()[position]

    def __setitem__(self, position: int, value: float) -> None:
        """Change one of them."""
        self._entries()[range(len(self))[position]] = value

    def __iter__(self) -> Iterator[Any]:
        """Return them as they are now."""
        return iter(self._entries()[:])

    def append(self, value: float) -> None:
        """Add one."""
        self.fill([*self, value])

    def fill(self, values: Sequence[float]) -> None:
        """Have these instead."""
        self._memory.replace(self._name, values, self._number)

    def _entries(self) -> Any:
        return self._memory.items(self._name, self._kind, self._number)


def fill(values: Any, others: Sequence[Any]) -> None:
    """Make a list, or the view of one, hold others."""
    if isinstance(values, FlatList):
        values.fill(others)
    else:
        values[:] = others
