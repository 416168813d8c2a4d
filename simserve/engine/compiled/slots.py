"""What the prefix cache's dict of slots and its order of idle ones can do in compiled code."""

from __future__ import annotations

import operator
from typing import Any

from numba.extending import overload, overload_method, register_jitable

from simserve.engine.compiled.types import (
    IndexType,
    OrderType,
    load_entry,
    reallocate,
    set_word,
    store_entry,
    word_at,
)

# Numbers by key: linear probing from where the key hashes to (Knuth, The Art of Computer Programming 3, 6.4).

_MULTIPLIER = -7046029254386353131
"""2^64 over the golden ratio, as a signed number: Fibonacci hashing."""


@register_jitable
def _home(key: int, mask: int) -> int:
    return ((key * _MULTIPLIER) >> 32) & mask


@register_jitable
def _find(index: Any, key: int) -> Any:
    """Return the place of a key, or the free one where it would go."""
    mask = word_at(index, 2) - 1
    at = _home(key, mask)
    while True:
        entry = load_entry(index, at)
        if entry[1] == 0 or entry[0] == key:
            return at
        at = (at + 1) & mask


@overload_method(IndexType, "get", strict=False)
def _get(index: Any, key: Any, default: Any) -> Any:
    # What is absent is 0, whatever was asked for: the kernel asks for nothing else.
    return lambda index, key, default: load_entry(index, _find(index, key))[1]


@overload(operator.setitem, strict=False)
def _set(index: Any, key: Any, number: Any) -> Any:
    if not isinstance(index, IndexType):
        return None

    def put(index: Any, key: Any, number: Any) -> Any:
        # The kernel sets no key twice.
        count = word_at(index, 1) + 1
        if 2 * count > word_at(index, 2):
            _double(index)
        set_word(index, 1, count)
        store_entry(index, _find(index, key), (key, number))

    return put


@register_jitable
def _double(index: Any) -> None:
    """Make room for twice as many; what is there waits behind the new room until it has its place."""
    size = word_at(index, 2)
    reallocate(index, 2 * 3 * size)
    set_word(index, 2, 2 * size)
    for at in range(size):
        store_entry(index, 2 * size + at, load_entry(index, at))
    for at in range(2 * size):
        store_entry(index, at, (0, 0))
    for at in range(2 * size, 3 * size):
        entry = load_entry(index, at)
        if entry[1]:
            store_entry(index, _find(index, entry[0]), entry)


@overload(operator.delitem, strict=False)
def _delete(container: Any, key: Any) -> Any:
    if isinstance(container, OrderType):
        return lambda container, key: _unlink(container, key)
    if not isinstance(container, IndexType):
        return None

    def delete(container: Any, key: Any) -> Any:
        mask = word_at(container, 2) - 1
        hole = _find(container, key)
        at = (hole + 1) & mask
        entry = load_entry(container, at)
        while entry[1]:
            # Who was put behind the hole because that was taken moves up.
            if (at - _home(entry[0], mask)) & mask >= (at - hole) & mask:
                store_entry(container, hole, entry)
                hole = at
            at = (at + 1) & mask
            entry = load_entry(container, at)
        store_entry(container, hole, (0, 0))
        set_word(container, 1, word_at(container, 1) - 1)

    return delete


# An order of slots: a ring through entry 0.


@register_jitable
def _unlink(order: Any, slot: int) -> None:
    behind, before = load_entry(order, slot)
    store_entry(order, before, (behind, load_entry(order, before)[1]))
    store_entry(order, behind, (load_entry(order, behind)[0], before))
    store_entry(order, slot, (0, 0))


@overload_method(OrderType, "move_to_end", strict=False)
def _move_to_end(order: Any, slot: Any) -> Any:
    def move_to_end(order: Any, slot: Any) -> Any:
        length = word_at(order, 1)
        if slot >= length:
            if slot >= word_at(order, 2):
                capacity = 2 * slot + 16
                reallocate(order, 2 * capacity)
                set_word(order, 2, capacity)
            for each in range(length, slot + 1):
                store_entry(order, each, (0, 0))
            set_word(order, 1, slot + 1)
        elif load_entry(order, slot)[0] or load_entry(order, 0)[1] == slot:
            _unlink(order, slot)
        last = load_entry(order, 0)[1]
        store_entry(order, last, (slot, load_entry(order, last)[1]))
        store_entry(order, slot, (0, last))
        store_entry(order, 0, (load_entry(order, 0)[0], slot))

    return move_to_end


@overload_method(OrderType, "first", strict=False)
def _first(order: Any) -> Any:
    return lambda order: load_entry(order, 0)[0]
