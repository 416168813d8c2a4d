"""What a queue in flat memory can do in compiled code: in a ring, or by rank (`layout.Queue`)."""

from __future__ import annotations

import operator
from types import FunctionType
from typing import Any

import numba
from numba.core import types
from numba.extending import intrinsic, overload, overload_method, register_jitable

from simserve.engine.compiled import replacements
from simserve.engine.compiled.types import (
    BYTE,
    ColumnType,
    ItemsType,
    QueueType,
    load_entry,
    place,
    reallocate,
    set_word,
    store_entry,
    word_at,
)

_FIRST, _LENGTH, _ENTRIES, _CAPACITY, _RANKS, _READY, _AGEING, _IS_RANKED = 0, 1, 4, 6, 7, 8, 9, 10
_LEAST_CAPACITY = 16
_sift = numba.njit(replacements.sift)
_heappush = numba.njit(replacements.heappush)
_heappop = numba.njit(FunctionType(replacements.heappop.__code__, {"__name__": __name__, "sift": _sift, "len": len}))


def _queue_part(kind: Any, word: int, is_inside: bool = False) -> Any:
    """Return a function for what lies in, or where a word of a queue points to."""

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
    """Double the ring; those who stand before its first place go behind its last."""
    capacity = word_at(queue, _CAPACITY)
    wider = 2 * capacity if capacity else _LEAST_CAPACITY
    ring = _ring(queue)
    reallocate(ring, wider)
    set_word(queue, _CAPACITY, wider)
    for each in range(word_at(queue, _FIRST)):
        store_entry(ring, capacity + each, load_entry(ring, each))


@register_jitable
def _at(queue: Any, position: int) -> Any:
    """Return where in the ring somebody stands."""
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
        store_entry(_ring(queue), _at(queue, length), index)
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
        first = _at(queue, -1)
        store_entry(_ring(queue), first, index)
        set_word(queue, _FIRST, first)
        set_word(queue, _LENGTH, length + 1)

    return appendleft


@overload_method(QueueType, "requeue", strict=False)
def _queue_requeue(queue: Any, index: Any, time: Any) -> Any:
    # As `simserve.engine.queue.OrderedQueue.requeue`.
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
        set_word(queue, _FIRST, _at(queue, 1))
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
        # What takes its place goes down, or up, to where it belongs.
        while position and last < load_entry(heap, (position - 1) >> 1):
            store_entry(heap, position, load_entry(heap, (position - 1) >> 1))
            position = (position - 1) >> 1
        _sift(heap, position, len(heap), last)


@register_jitable
def _remove_from_ring(queue: Any, index: Any) -> None:
    ring = _ring(queue)
    position = 0
    while load_entry(ring, _at(queue, position)) != index:
        position += 1
    for each in range(position + 1, word_at(queue, _LENGTH)):
        store_entry(ring, _at(queue, each - 1), load_entry(ring, _at(queue, each)))


@overload_method(QueueType, "pop", strict=False)
def _queue_pop(queue: Any) -> Any:
    # Nobody takes the last one of those that are by rank.
    def pop(queue: Any) -> Any:
        last = word_at(queue, _LENGTH) - 1
        set_word(queue, _LENGTH, last)
        return load_entry(_ring(queue), _at(queue, last))

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
            elif load_entry(_ring(queue), _at(queue, position)) == index:
                return True
        return False

    return contains


@register_jitable
def exchange_queues(replica: Any) -> None:
    """As `simserve.engine.data_parallel.exchange_queues`."""
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
    # As `simserve.engine.queue.OrderedQueue.rank`.
    return lambda queue, index: _ranks(queue)[index] + _ready(queue)[index] * _ageing(queue)


@register_jitable
def _get(queue: Any, position: Any) -> Any:
    if word_at(queue, _IS_RANKED):
        return load_entry(_heap(queue), position)[2]
    return load_entry(_ring(queue), _at(queue, position))


@overload(operator.getitem, strict=False)
def _queue_get(queue: Any, position: Any) -> Any:
    return (lambda queue, position: _get(queue, position)) if isinstance(queue, QueueType) else None
