"""Where the fields of the kernel's records are in flat memory, and views of these records as objects. Knows no numba.

The views behave like the objects that the records stand for: for what Python reads, and sets, between drives. They
cover numbers, lists of numbers, and records that a record refers to. They are slow; nothing here is on a hot path.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

WORD = 8
_LIBRARY = ctypes.CDLL("msvcrt" if os.name == "nt" else None)
_reallocate = _LIBRARY.realloc
_reallocate.argtypes, _reallocate.restype = (ctypes.c_void_p, ctypes.c_size_t), ctypes.c_void_p
_view = ctypes.pythonapi.PyMemoryView_FromMemory
_view.argtypes, _view.restype = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int), ctypes.py_object
_READ_ONLY = 0x100
INTEGER, FLOAT, BOOLEAN = "integer", "float", "boolean"


@dataclass(frozen=True, slots=True)
class Column:
    """One entry per request; ``code`` as in `array.array`."""

    code: str


@dataclass(frozen=True, slots=True)
class Items:
    """A list; an entry is a word, or a tuple of several: ``codes`` as in `array.array`."""

    codes: str


@dataclass(frozen=True, slots=True)
class Table(Items):
    """A list that does not change and belongs to another object."""


@dataclass(frozen=True, slots=True)
class Queue:
    """Requests in order of arrival or by rank. First place and length; from word 4 on, as for a list, the ring that
    holds them, or a heap of (rank, ready time, request); ranks, ready times, what a second adds to a rank; 1: by
    rank."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Positive whole numbers by segment; 0 where a dict would have no entry."""


@dataclass(frozen=True, slots=True)
class Order:
    """Slots, from 1 on, in an order: entries, length and capacity; for each slot (the next one, the previous one),
    entry 0 joining the two ends."""


@dataclass(frozen=True, slots=True)
class Index:
    """Positive whole numbers by key: entries, how many are taken, and how many there are, a power of two; an entry is
    (key, number), where number 0 means none, at the place that the key hashes to, or after it."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """Another record, or none."""

    record: Record


@dataclass(frozen=True, slots=True)
class Records:
    """Records of one kind, side by side."""

    record: Record


Kind = str | Column | Items | Queue | Counts | Order | Index | Pointer | Records
_INDEX_SIZE = 64


class Record:
    """The fields of a record, one after the other.

    Attributes:
        fields: Kind of each.
        offsets: Words before each.
        num_words: Words of all.
        owned: Words before each address of memory that the record owns.
        numbers: Names of the fields that are plain numbers: whole ones, and floats.
        places: Words before each of them.
    """

    __slots__ = ("fields", "name", "num_words", "numbers", "offsets", "owned", "places")

    def __init__(self, name: str, fields: Mapping[str, Kind]) -> None:
        self.name = name
        self.fields = dict(fields)
        self.offsets: dict[str, int] = {}
        self.num_words = 0
        self.owned: list[int] = []
        for field, kind in fields.items():
            self.offsets[field] = self.num_words
            if isinstance(kind, Items | Queue | Order | Index) and not isinstance(kind, Table):
                self.owned.append(self.num_words + (4 if isinstance(kind, Queue) else 0))
            self.num_words += {Items: 3, Table: 3, Queue: 11, Order: 3, Index: 3}.get(type(kind), 1)
        plain = [name for name, kind in fields.items() if isinstance(kind, str)]
        whole = [name for name in plain if fields[name] != FLOAT]
        self.numbers = whole, [name for name in plain if fields[name] == FLOAT]
        self.places = tuple(np.array([self.offsets[name] for name in names], dtype=np.int64) for names in self.numbers)


@dataclass(frozen=True, slots=True)
class Copy:
    """A record as it was, for writing it again.

    Attributes:
        words: Its words.
        lists: Its lists: words before each, and their contents.
    """

    words: NDArray[np.int64]
    lists: list[tuple[int, bytes]]


class Memory:
    """Records of one kind in flat memory. Memory that their lists have grown to is returned to the C library with it.

    Attributes:
        kept: Other memories that a field points to, the last one for each field.
    """

    def __init__(self, record: Record, count: int = 1) -> None:
        self.record = record
        self.words: NDArray[np.int64] = np.zeros(record.num_words * count, dtype=np.int64)
        self._floats = self.words.view(np.float64)
        self._kept: list[Any] = []
        self.kept: dict[str, Memory] = {}

    @property
    def address(self) -> int:
        """Address of the first record."""
        return self.words.ctypes.data

    def put(self, name: str, value: Any, number: int = 0) -> None:
        """Set a field of a record; an array or another memory is kept alive and pointed to."""
        at = number * self.record.num_words + self.record.offsets[name]
        kind = self.record.fields[name]
        if isinstance(kind, str):
            (self._floats if kind == FLOAT else self.words)[at] = value
        elif isinstance(kind, Table):
            self._kept.append(value)
            self.words[at], self.words[at + 1] = value.ctypes.data, len(value)
        elif isinstance(kind, Items):
            self._put_items(at, kind, value)
        elif isinstance(kind, Queue):
            # Empty to begin with: it takes memory when a request enters it.
            return
        elif isinstance(kind, Order | Index):
            # Both are empty to begin with.
            size = _INDEX_SIZE if isinstance(kind, Index) else 1
            self.words[at] = _allocate(2 * size * WORD)
            ctypes.memset(int(self.words[at]), 0, 2 * size * WORD)
            self.words[at + 1], self.words[at + 2] = 0 if isinstance(kind, Index) else 1, size
        elif isinstance(value, Memory):
            self._kept.append(value)
            self.kept[name] = value
            self.words[at] = value.address
        elif value is not None:
            column = np.frombuffer(value, dtype=np.uint8) if len(value) else np.zeros(1)
            self._kept.append((value, column))
            self.words[at] = column.ctypes.data

    def put_numbers(self, source: object, number: int = 0) -> None:
        """Set all plain numbers of a record from an object's fields of the same names, at once: `put` is slow."""
        start = number * self.record.num_words
        whole, floats = self.record.numbers
        self.words[self.record.places[0] + start] = np.array([getattr(source, name) for name in whole], dtype=np.int64)
        self._floats[self.record.places[1] + start] = [getattr(source, name) for name in floats]

    def point(self, name: str, others: Memory, first: int, number: int = 0) -> None:
        """Let a field of a record refer to other records, beginning with number ``first``."""
        self.kept[name] = others
        at = number * self.record.num_words + self.record.offsets[name]
        self.words[at] = others.address + first * others.record.num_words * WORD

    def get(self, name: str, number: int = 0) -> Any:
        """Return a number."""
        at = number * self.record.num_words + self.record.offsets[name]
        return self._floats[at] if self.record.fields[name] == FLOAT else int(self.words[at])

    def drain(self, name: str, number: int = 0) -> NDArray[np.float64]:
        """Return a copy of a list of floats and clear it."""
        taken = self.peek(name, number).copy()
        self.lengths(name)[number] = 0
        return taken

    def peek(self, name: str, number: int = 0) -> NDArray[np.float64]:
        """Return a view of a list of floats in place; it is valid until something is added to the list."""
        at = number * self.record.num_words + self.record.offsets[name]
        size = int(self.words[at + 1]) * WORD
        return np.frombuffer(_view(int(self.words[at]), size, _READ_ONLY)) if size else np.zeros(0)

    def lengths(self, name: str) -> NDArray[np.int64]:
        """Return a view of the lengths of a list in all records."""
        return self.words[self.record.offsets[name] + 1 :: self.record.num_words]

    def numbers(self, name: str) -> NDArray[np.int64]:
        """Return a view of a whole number in all records."""
        return self.words[self.record.offsets[name] :: self.record.num_words]

    def rank(self, name: str, ranks: NDArray[np.float64], ready_time: Any, ageing: float, number: int = 0) -> None:
        """Order a queue by rank."""
        at = number * self.record.num_words + self.record.offsets[name]
        column = np.frombuffer(ready_time, dtype=np.float64)
        self._kept.append((ranks, column))
        self.words[at + 7], self.words[at + 8] = ranks.ctypes.data, column.ctypes.data
        self._floats[at + 9] = ageing
        self.words[at + 10] = 1

    @property
    def count(self) -> int:
        """Number of records."""
        return len(self.words) // self.record.num_words

    def grow(self) -> int:
        """Add a record and return its number. All of them move: pointers to them must be updated."""
        number = self.count
        self.words = np.concatenate((self.words, np.zeros(self.record.num_words, dtype=np.int64)))
        self._floats = self.words.view(np.float64)
        return number

    def clear(self, number: int) -> None:
        """Return the memory of a record's lists, and clear the record."""
        start = number * self.record.num_words
        for at in self.record.owned:
            _free(int(self.words[start + at]))
        self.words[start : start + self.record.num_words] = 0

    def copy_of(self, number: int) -> Copy:
        """Return a copy of a record and the contents of its lists."""
        start, lists = number * self.record.num_words, []
        for name, kind in self.record.fields.items():
            at = self.record.offsets[name]
            if isinstance(kind, Items) and not isinstance(kind, Table) and self.words[start + at]:
                size = int(self.words[start + at + 1]) * len(kind.codes) * WORD
                lists.append((at, ctypes.string_at(int(self.words[start + at]), size)))
        return Copy(self.words[start : start + self.record.num_words].copy(), lists)

    def write_copy(self, copy: Copy, number: int) -> None:
        """Make an empty record equal to another one; its lists are its own, its queues empty."""
        start = number * self.record.num_words
        self.words[start : start + self.record.num_words] = copy.words
        for at, content in copy.lists:
            self.words[start + at] = address = _allocate(max(len(content), WORD))
            ctypes.memmove(address, content, len(content))

    def replace(self, name: str, values: Sequence[Any], number: int = 0) -> None:
        """Replace the numbers of a list."""
        at = number * self.record.num_words + self.record.offsets[name]
        _free(int(self.words[at]))
        self.words[at : at + 3] = 0
        self.put(name, values, number)

    def items(self, name: str, kind: Any, number: int = 0) -> Any:
        """Return a view of the numbers of a list, as an array of a `ctypes` type."""
        at = number * self.record.num_words + self.record.offsets[name]
        return (kind * int(self.words[at + 1])).from_address(int(self.words[at]))

    def entries(self, name: str) -> list[Any]:
        """Return a list of tuples."""
        at = self.record.offsets[name]
        kind, count = self.record.fields[name], int(self.words[at + 1])
        assert isinstance(kind, Items)
        if not count:
            return []
        width = len(kind.codes)
        words = np.array((ctypes.c_int64 * (width * count)).from_address(int(self.words[at]))).reshape(count, width)
        columns = [np.ascontiguousarray(column) for column in words.T]
        typed = [
            column.view(np.float64) if code == "d" else column for column, code in zip(columns, kind.codes, strict=True)
        ]
        return list(zip(*(column.tolist() for column in typed), strict=True))

    def length(self, name: str, number: int = 0) -> int:
        """Return the length of a list."""
        return int(self.words[number * self.record.num_words + self.record.offsets[name] + 1])

    def _put_items(self, at: int, kind: Items, values: Sequence[Any] | None) -> None:
        """Copy a list. An absent one gets no memory, by which compiled code recognises it."""
        if values is None:
            return
        if not len(values):
            self.words[at] = _allocate(WORD)
            self.words[at + 1] = self.words[at + 2] = 0
            return
        if len(kind.codes) == 1:
            items = np.array(values, dtype=kind.codes)
        else:
            items = np.empty((len(values), len(kind.codes)), dtype=np.int64)
            for position, code in enumerate(kind.codes):
                items[:, position] = np.array([each[position] for each in values], dtype=code).view(np.int64)
        self.words[at] = _allocate(max(items.nbytes, WORD))
        ctypes.memmove(int(self.words[at]), items.ctypes.data, items.nbytes)
        self.words[at + 1] = self.words[at + 2] = len(items)

    def __del__(self) -> None:
        for first in self.record.owned:
            for at in range(first, len(self.words), self.record.num_words):
                _free(int(self.words[at]))


def reallocate_address() -> int:
    """Return the address of the C library's ``realloc``."""
    return ctypes.cast(_reallocate, ctypes.c_void_p).value or 0


def _allocate(size: int) -> int:
    return int(_reallocate(None, size))


def _free(address: int) -> None:
    if address:
        _LIBRARY.free(ctypes.c_void_p(address))


ENTRY = "simserve_drive"
SENDING_ENTRY = "simserve_send"


REALLOCATE = "simserve_reallocate"
"""Name of the function that compiled code calls to let a list grow."""


class View:
    """A record in flat memory, seen as an object.

    Args:
        memory: Memory that holds it.
        number: Number of the record there.
        known: Values of fields that are not to be looked up.
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
        """Return the number of items."""
        return self._memory.length(self._name, self._number)

    def __getitem__(self, position: Any) -> Any:
        """Return one item, or several as a list."""
        return self._entries()[position]

    def __setitem__(self, position: int, value: float) -> None:
        """Set one item."""
        self._entries()[range(len(self))[position]] = value

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the current items."""
        return iter(self._entries()[:])

    def append(self, value: float) -> None:
        """Add an item."""
        self.fill([*self, value])

    def fill(self, values: Sequence[float]) -> None:
        """Replace all items."""
        self._memory.replace(self._name, values, self._number)

    def _entries(self) -> Any:
        return self._memory.items(self._name, self._kind, self._number)


def fill(values: Any, others: Sequence[Any]) -> None:
    """Replace the contents of a list, or of the view of one."""
    if isinstance(values, FlatList):
        values.fill(others)
    else:
        values[:] = others
