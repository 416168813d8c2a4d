"""Operations of compiled code on lists, columns, queues and the prefix cache's slots in flat memory.

A list's header is its data, length and capacity; a full list doubles. A queue is a ring, or sorted by rank
(`layout.Queue`).
"""

from __future__ import annotations

import operator
from types import FunctionType
from typing import Any

import numba
from llvmlite import ir
from numba.core import types
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, overload, overload_method, register_jitable

from simserve.engine.compiled import replacements
from simserve.engine.compiled.types import (
    BYTE,
    WORD_TYPE,
    ColumnType,
    CountsType,
    IndexType,
    ItemsType,
    OrderType,
    QueueType,
    RecordsType,
    load_entry,
    place,
    reallocate,
    set_word,
    store_entries,
    store_entry,
    word_at,
)

_FIRST, _LENGTH, _ENTRIES, _CAPACITY, _RANKS, _READY, _AGEING, _IS_RANKED = 0, 1, 4, 6, 7, 8, 9, 10
_LEAST_CAPACITY = 16
_sift = numba.njit(replacements.sift)
_heappush = numba.njit(replacements.heappush)
_heappop = numba.njit(FunctionType(replacements.heappop.__code__, {"__name__": __name__, "sift": _sift, "len": len}))


# Columns.


@infer_global(operator.getitem)
class _ColumnGetItem(AbstractTemplate):
    def generic(self, args: Any, kws: Any) -> Any:
        column, index = args
        if isinstance(column, ColumnType | RecordsType) and isinstance(index, types.Integer):
            return signature(column.element, column, types.int64)
        return None


@infer_global(operator.setitem)
class _ColumnSetItem(AbstractTemplate):
    def generic(self, args: Any, kws: Any) -> Any:
        column, index, _value = args
        if isinstance(column, ColumnType) and isinstance(index, types.Integer):
            return signature(types.none, column, types.int64, column.element)
        return None


def _column_entry(context: Any, builder: Any, column: ColumnType, args: Any) -> Any:
    stored = context.get_value_type(column.stored)
    return builder.gep(builder.bitcast(args[0], stored.as_pointer()), [args[1]], inbounds=True)


@lower_builtin(operator.getitem, ColumnType, types.int64)
def _column_get(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    column = sig.args[0]
    value = builder.load(_column_entry(context, builder, column, args))
    return context.cast(builder, value, column.stored, column.element)


@lower_builtin(operator.setitem, ColumnType, types.int64, types.Any)
def _column_set(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    column = sig.args[0]
    value = context.cast(builder, args[2], column.element, column.stored)
    builder.store(value, _column_entry(context, builder, column, args))
    return context.get_dummy_value()


@lower_builtin(operator.getitem, RecordsType, types.int64)
def _records_get(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    size = ir.Constant(WORD_TYPE, sig.args[0].element.record.num_words)
    return place(builder, args[0], builder.mul(args[1], size), BYTE)


# Lists: data, length, capacity.


@overload(len, strict=False)
def _len(container: Any) -> Any:
    if isinstance(container, ItemsType | QueueType):
        return lambda container: word_at(container, 1)
    return None


@overload(bool, strict=False)
def _bool(container: Any) -> Any:
    if isinstance(container, ItemsType | QueueType):
        return lambda container: word_at(container, 1) != 0
    return None


@overload(operator.not_, strict=False)
def _not(container: Any) -> Any:
    if isinstance(container, ItemsType | QueueType):
        return lambda container: word_at(container, 1) == 0
    return None


def _is_from_end(position: Any) -> bool:
    """Whether a position counts from the end: only literal ones may."""
    return isinstance(position, types.IntegerLiteral) and position.literal_value < 0


@overload(operator.getitem, strict=False, prefer_literal=True)
def _items_get(container: Any, position: Any) -> Any:
    if isinstance(container, ItemsType) and isinstance(position, types.Integer):
        if _is_from_end(position):
            return lambda container, position: load_entry(container, word_at(container, 1) + position)
        return lambda container, position: load_entry(container, position)
    return None


@overload(operator.setitem, strict=False, prefer_literal=True)
def _items_set(container: Any, position: Any, value: Any) -> Any:
    if isinstance(container, ItemsType):
        if _is_from_end(position):
            return lambda container, position, value: store_entry(container, word_at(container, 1) + position, value)
        return lambda container, position, value: store_entry(container, position, value)
    return None


@overload_method(ItemsType, "append", strict=False)
def _append(container: Any, value: Any) -> Any:
    size = len(container.codes)

    def append(container: Any, value: Any) -> Any:
        length = word_at(container, 1)
        if length == word_at(container, 2):
            capacity = 2 * length + 16
            reallocate(container, capacity * size)
            set_word(container, 2, capacity)
        store_entry(container, length, value)
        set_word(container, 1, length + 1)

    return append


@overload_method(ItemsType, "extend", strict=False)
def _extend(container: Any, values: Any) -> Any:
    count = len(values)

    def extend(container: Any, values: Any) -> Any:
        length = word_at(container, 1)
        if length + count > word_at(container, 2):
            capacity = 2 * length + 16 * count
            reallocate(container, capacity)
            set_word(container, 2, capacity)
        store_entries(container, length, values)
        set_word(container, 1, length + count)

    return extend


@overload_method(ItemsType, "clear", strict=False)
def _clear(container: Any) -> Any:
    return lambda container: set_word(container, 1, 0)


@overload_method(ItemsType, "pop", strict=False)
def _pop(container: Any, position: Any = -1) -> Any:
    if isinstance(position, types.Omitted | int):

        def pop(container: Any, position: Any = -1) -> Any:
            last = word_at(container, 1) - 1
            set_word(container, 1, last)
            return load_entry(container, last)

        return pop

    def pop_at(container: Any, position: Any = -1) -> Any:
        value = load_entry(container, position)
        last = word_at(container, 1) - 1
        for each in range(position, last):
            store_entry(container, each, load_entry(container, each + 1))
        set_word(container, 1, last)
        return value

    return pop_at


@overload_method(ItemsType, "index", strict=False)
def _index(container: Any, value: Any) -> Any:
    def index(container: Any, value: Any) -> Any:
        position = 0
        while load_entry(container, position) != value:
            position += 1
        return position

    return index


@overload_method(ItemsType, "remove", strict=False)
def _remove(container: Any, value: Any) -> Any:
    def remove(container: Any, value: Any) -> Any:
        container.pop(container.index(value))

    return remove


@overload(operator.contains, strict=False)
def _contains(container: Any, value: Any) -> Any:
    if isinstance(container, ItemsType):

        def contains(container: Any, value: Any) -> Any:
            for position in range(word_at(container, 1)):  # noqa: SIM110
                if load_entry(container, position) == value:
                    return True
            return False

        return contains
    return None


# Numbers by position: the role of a dict for paces, and for a tier.


@overload(operator.getitem, strict=False)
def _counts_get(counts: Any, segment: Any) -> Any:
    if isinstance(counts, CountsType):
        return lambda counts, segment: word_at(counts, segment)
    return None


@overload(operator.setitem, strict=False)
def _counts_set(counts: Any, segment: Any, value: Any) -> Any:
    if isinstance(counts, CountsType):
        return lambda counts, segment, value: set_word(counts, segment, value)
    return None


@overload(operator.delitem, strict=False)
def _counts_del(counts: Any, segment: Any) -> Any:
    if isinstance(counts, CountsType):
        return lambda counts, segment: set_word(counts, segment, 0)
    return None


@overload(operator.contains, strict=False)
def _counts_contain(counts: Any, segment: Any) -> Any:
    if isinstance(counts, CountsType):
        return lambda counts, segment: word_at(counts, segment) != 0
    return None


@overload_method(CountsType, "get", strict=False)
def _counts_get_or(counts: Any, segment: Any, default: Any) -> Any:
    return lambda counts, segment, default: word_at(counts, segment)


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
    # An absent key is 0, whatever the default: the kernel passes no other.
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
    """Double the capacity; existing entries are kept after the new space until they have their place."""
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
            # An entry that was put after the hole because the hole was taken moves up.
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


def _queue_part(kind: Any, word: int, is_inside: bool = False) -> Any:
    """Return a function for the content, or the target, of a word of a queue."""

    @intrinsic
    def part(typing_context: Any, queue: Any) -> Any:
        def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            if is_inside:
                return place(builder, args[0], word, BYTE)
            return builder.load(place(builder, args[0], word, context.get_value_type(kind)))

        return kind(queue), lower

    return part


_ring = _queue_part(ItemsType("q"), _ENTRIES, is_inside=True)
_heap = _queue_part(ItemsType("ddq"), _ENTRIES, is_inside=True)
_ranks = _queue_part(ColumnType("d"), _RANKS)
_ready = _queue_part(ColumnType("d"), _READY)
_ageing = _queue_part(types.float64, _AGEING)


@register_jitable
def _push_by_rank(queue: Any, index: Any) -> None:
    ready = _ready(queue)[index]
    _heappush(_heap(queue), (_ranks(queue)[index] + ready * _ageing(queue), ready, index))
    set_word(queue, _LENGTH, word_at(queue, _LENGTH) + 1)


@register_jitable
def _widen(queue: Any) -> None:
    """Double the ring; entries before its first place move to after its last."""
    capacity = word_at(queue, _CAPACITY)
    wider = 2 * capacity if capacity else _LEAST_CAPACITY
    ring = _ring(queue)
    reallocate(ring, wider)
    set_word(queue, _CAPACITY, wider)
    for each in range(word_at(queue, _FIRST)):
        store_entry(ring, capacity + each, load_entry(ring, each))


@register_jitable
def _ring_place(queue: Any, position: int) -> Any:
    """Return the place in the ring of a position in the queue."""
    return (word_at(queue, _FIRST) + position) & (word_at(queue, _CAPACITY) - 1)


@overload_method(QueueType, "append", strict=False)
def _queue_append(queue: Any, index: Any) -> Any:
    def append(queue: Any, index: Any) -> Any:
        if word_at(queue, _IS_RANKED):
            _push_by_rank(queue, index)
            return
        length = word_at(queue, _LENGTH)
        if length == word_at(queue, _CAPACITY):
            _widen(queue)
        store_entry(_ring(queue), _ring_place(queue, length), index)
        set_word(queue, _LENGTH, length + 1)

    return append


@overload_method(QueueType, "appendleft", strict=False)
def _queue_appendleft(queue: Any, index: Any) -> Any:
    def appendleft(queue: Any, index: Any) -> Any:
        if word_at(queue, _IS_RANKED):
            _push_by_rank(queue, index)
            return
        length = word_at(queue, _LENGTH)
        if length == word_at(queue, _CAPACITY):
            _widen(queue)
        first = _ring_place(queue, -1)
        store_entry(_ring(queue), first, index)
        set_word(queue, _FIRST, first)
        set_word(queue, _LENGTH, length + 1)

    return appendleft


@overload_method(QueueType, "requeue", strict=False)
def _queue_requeue(queue: Any, index: Any, time: Any) -> Any:
    # Like `simserve.engine.queue.OrderedQueue.requeue`.
    def requeue(queue: Any, index: Any, time: Any) -> Any:
        ready = _ready(queue)[index]
        _heappush(_heap(queue), (_ranks(queue)[index] + ready * _ageing(queue), time, index))
        set_word(queue, _LENGTH, word_at(queue, _LENGTH) + 1)

    return requeue


@overload_method(QueueType, "popleft", strict=False)
def _queue_popleft(queue: Any) -> Any:
    def popleft(queue: Any) -> Any:
        set_word(queue, _LENGTH, word_at(queue, _LENGTH) - 1)
        if word_at(queue, _IS_RANKED):
            return _heappop(_heap(queue))[2]
        index = load_entry(_ring(queue), word_at(queue, _FIRST))
        set_word(queue, _FIRST, _ring_place(queue, 1))
        return index

    return popleft


@register_jitable
def _remove_from_heap(queue: Any, index: Any) -> None:
    heap = _heap(queue)
    position = 0
    while load_entry(heap, position)[2] != index:
        position += 1
    last = heap.pop()
    if position < len(heap):
        # The entry that replaces it moves down, or up, to its place.
        while position and last < load_entry(heap, (position - 1) >> 1):
            store_entry(heap, position, load_entry(heap, (position - 1) >> 1))
            position = (position - 1) >> 1
        _sift(heap, position, len(heap), last)


@register_jitable
def _remove_from_ring(queue: Any, index: Any) -> None:
    ring = _ring(queue)
    position = 0
    while load_entry(ring, _ring_place(queue, position)) != index:
        position += 1
    for each in range(position + 1, word_at(queue, _LENGTH)):
        store_entry(ring, _ring_place(queue, each - 1), load_entry(ring, _ring_place(queue, each)))


@overload_method(QueueType, "pop", strict=False)
def _queue_pop(queue: Any) -> Any:
    # The last entry of a queue by rank is never popped.
    def pop(queue: Any) -> Any:
        last = word_at(queue, _LENGTH) - 1
        set_word(queue, _LENGTH, last)
        return load_entry(_ring(queue), _ring_place(queue, last))

    return pop


@overload(operator.contains, strict=False)
def _queue_contains(queue: Any, index: Any) -> Any:
    if not isinstance(queue, QueueType):
        return None

    def contains(queue: Any, index: Any) -> Any:
        for position in range(word_at(queue, _LENGTH)):
            if word_at(queue, _IS_RANKED):
                if load_entry(_heap(queue), position)[2] == index:
                    return True
            elif load_entry(_ring(queue), _ring_place(queue, position)) == index:
                return True
        return False

    return contains


@register_jitable
def exchange_queues(replica: Any) -> None:
    """Like `simserve.engine.data_parallel.exchange_queues`."""
    waiting, held_back = replica.waiting, replica.held_back
    for word in range(_IS_RANKED + 1):
        other = word_at(held_back, word)
        set_word(held_back, word, word_at(waiting, word))
        set_word(waiting, word, other)


@overload_method(QueueType, "remove", strict=False)
def _queue_remove(queue: Any, index: Any) -> Any:
    def remove(queue: Any, index: Any) -> Any:
        if word_at(queue, _IS_RANKED):
            _remove_from_heap(queue, index)
        else:
            _remove_from_ring(queue, index)
        set_word(queue, _LENGTH, word_at(queue, _LENGTH) - 1)

    return remove


@overload_method(QueueType, "rank", strict=False)
def _queue_rank(queue: Any, index: Any) -> Any:
    # Like `simserve.engine.queue.OrderedQueue.rank`.
    return lambda queue, index: _ranks(queue)[index] + _ready(queue)[index] * _ageing(queue)


@register_jitable
def _queue_item(queue: Any, position: Any) -> Any:
    if word_at(queue, _IS_RANKED):
        return load_entry(_heap(queue), position)[2]
    return load_entry(_ring(queue), _ring_place(queue, position))


@overload(operator.getitem, strict=False)
def _queue_get(queue: Any, position: Any) -> Any:
    return (lambda queue, position: _queue_item(queue, position)) if isinstance(queue, QueueType) else None
