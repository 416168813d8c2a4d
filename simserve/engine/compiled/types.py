"""Flat memory seen as objects: numba types for records, columns, lists and queues that the kernel's source works on.

Every value is a bare pointer, so nothing is reference-counted or copied: an attribute is a load at an offset. Lists own
memory of the C library and grow by themselves; `simserve.engine.compiled.layout` lays the same memory out from Python
and frees it. It knows how fields are stored, not what they mean.
"""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.core.typing.templates import AttributeTemplate, signature
from numba.extending import (
    infer_getattr,
    intrinsic,
    lower_builtin,
    lower_getattr_generic,
    lower_setattr_generic,
    register_model,
)

from simserve.engine.compiled.layout import (
    BOOLEAN,
    FLOAT,
    INTEGER,
    REALLOCATE,
    WORD,
    Column,
    Counts,
    Index,
    Items,
    Order,
    Pointer,
    Queue,
    Record,
    Records,
)

BYTE = ir.IntType(8)
WORD_TYPE = ir.IntType(64)
ADDRESS = BYTE.as_pointer()
_STORED = {"b": types.int8, "i": types.int32, "q": types.int64, "d": types.float64}
_MISSING = object()


class RecordType(types.Type):
    """A record of named fields; may be absent (``None``)."""

    def __init__(self, record: Record) -> None:
        self.record = record
        super().__init__(name=f"simserve.{record.name}")


class RecordsType(types.Type):
    """Records of one kind, side by side."""

    def __init__(self, record: Record) -> None:
        self.element = RecordType(record)
        super().__init__(name=f"simserve.records({record.name})")


class ColumnType(types.Type):
    """One entry per request, of a fixed size."""

    def __init__(self, code: str) -> None:
        self.stored = _STORED[code]
        self.element = types.float64 if code == "d" else types.int64
        super().__init__(name=f"simserve.column({code})")


class ItemsType(types.Type):
    """A list of numbers, or of equal tuples of numbers."""

    def __init__(self, codes: str) -> None:
        self.codes = codes
        elements = [_STORED[code] for code in codes]
        self.element = elements[0] if len(elements) == 1 else types.Tuple(elements)
        super().__init__(name=f"simserve.items({codes})")


class QueueType(types.Type):
    """Requests in a row, linked by a column."""

    def __init__(self) -> None:
        super().__init__(name="simserve.queue")


class CountsType(types.Type):
    """Positive whole numbers by segment."""

    def __init__(self) -> None:
        super().__init__(name="simserve.counts")


_PAIR = types.UniTuple(types.int64, 2)


class OrderType(types.Type):
    """Slots in an order."""

    element = _PAIR

    def __init__(self) -> None:
        super().__init__(name="simserve.order")


class IndexType(types.Type):
    """Positive whole numbers by key."""

    element = _PAIR

    def __init__(self) -> None:
        super().__init__(name="simserve.index")


class _PointerModel(models.PrimitiveModel):
    def __init__(self, manager: Any, fe_type: Any) -> None:
        super().__init__(manager, fe_type, ADDRESS)


for _each in (RecordType, RecordsType, ColumnType, ItemsType, QueueType, CountsType, OrderType, IndexType):
    register_model(_each)(_PointerModel)


def type_of(kind: Any) -> Any:
    """Return the numba type of a field."""
    if kind in (INTEGER, FLOAT, BOOLEAN):
        return {INTEGER: types.int64, FLOAT: types.float64, BOOLEAN: types.boolean}[kind]
    if isinstance(kind, Column):
        return ColumnType(kind.code)
    if isinstance(kind, Items):
        return ItemsType(kind.codes)
    if isinstance(kind, Queue | Counts | Order | Index):
        return {Queue: QueueType, Counts: CountsType, Order: OrderType, Index: IndexType}[type(kind)]()
    if isinstance(kind, Records):
        return RecordsType(kind.record)
    assert isinstance(kind, Pointer)
    return RecordType(kind.record)


def place(builder: Any, address: Any, words: Any, element: Any) -> Any:
    """Return a pointer to ``element``, ``words`` words after an address."""
    if isinstance(words, int):
        words = ir.Constant(WORD_TYPE, words)
    moved = builder.gep(address, [builder.mul(words, ir.Constant(WORD_TYPE, WORD))], inbounds=True)
    return builder.bitcast(moved, element.as_pointer())


# Attributes.


@infer_getattr
class _RecordAttributes(AttributeTemplate):
    key = RecordType

    def generic_resolve(self, record: RecordType, name: str) -> Any:
        kind = record.record.fields.get(name, _MISSING)
        return None if kind is _MISSING else type_of(kind)


@lower_getattr_generic(RecordType)
def _get_attribute(context: Any, builder: Any, record: RecordType, value: Any, name: str) -> Any:
    kind, offset = record.record.fields[name], record.record.offsets[name]
    if kind == FLOAT:
        return builder.load(place(builder, value, offset, ir.DoubleType()))
    if kind in (INTEGER, BOOLEAN):
        word = builder.load(place(builder, value, offset, WORD_TYPE))
        return builder.trunc(word, ir.IntType(1)) if kind == BOOLEAN else word
    if isinstance(kind, Items | Queue | Order | Index):
        return place(builder, value, offset, BYTE)
    return builder.load(place(builder, value, offset, ADDRESS))


@lower_setattr_generic(RecordType)
def _set_attribute(context: Any, builder: Any, sig: Any, args: Any, name: str) -> None:
    record, source = sig.args
    kind, offset = record.record.fields[name], record.record.offsets[name]
    value = context.cast(builder, args[1], source, type_of(kind))
    if kind == BOOLEAN:
        value = builder.zext(value, WORD_TYPE)
    builder.store(value, place(builder, args[0], offset, value.type))


def _is_none(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    value = args[0]
    if isinstance(sig.args[0], ItemsType):
        # A list that is read has memory from the start.
        value = builder.load(builder.bitcast(value, ADDRESS.as_pointer()))
    return builder.icmp_unsigned("==", value, ir.Constant(ADDRESS, None))


def _is_not_none(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return builder.not_(_is_none(context, builder, sig, args))


for _each in (RecordType, ItemsType):
    lower_builtin(operator.is_, _each, types.NoneType)(_is_none)
    lower_builtin(operator.is_not, _each, types.NoneType)(_is_not_none)


@intrinsic
def next_float(typing_context: Any, value: Any) -> Any:
    """Return the next float after one that is not negative."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        bits = builder.add(builder.bitcast(args[0], WORD_TYPE), ir.Constant(WORD_TYPE, 1))
        return builder.bitcast(bits, ir.DoubleType())

    return types.float64(types.float64), lower


@intrinsic
def record_at(typing_context: Any, address: Any, record: Any) -> Any:
    """Return the record that begins at an address; ``record`` is its type."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], ADDRESS)

    return signature(record.instance_type, types.int64, record), lower


# Words of headers and elements.


@intrinsic
def word_at(typing_context: Any, container: Any, position: Any) -> Any:
    """Load a word of a header."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.load(place(builder, args[0], args[1], WORD_TYPE))

    return types.int64(container, types.int64), lower


@intrinsic
def set_word(typing_context: Any, container: Any, position: Any, value: Any) -> Any:
    """Store a word of a header."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.store(args[2], place(builder, args[0], args[1], WORD_TYPE))
        return context.get_dummy_value()

    return types.none(container, types.int64, types.int64), lower


def _elements(container: Any) -> list[Any]:
    return list(container.element) if isinstance(container.element, types.BaseTuple) else [container.element]


@intrinsic
def load_entry(typing_context: Any, container: Any, position: Any) -> Any:
    """Load an entry of a list."""
    elements = _elements(container)

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        data = builder.load(builder.bitcast(args[0], ADDRESS.as_pointer()))
        first = builder.mul(args[1], ir.Constant(WORD_TYPE, len(elements)))
        values = []
        for number, element in enumerate(elements):
            word = builder.add(first, ir.Constant(WORD_TYPE, number))
            values.append(builder.load(place(builder, data, word, context.get_value_type(element))))
        return values[0] if len(values) == 1 else context.make_tuple(builder, container.element, values)

    return container.element(container, types.int64), lower


@intrinsic
def store_entry(typing_context: Any, container: Any, position: Any, value: Any) -> Any:
    """Store an entry of a list."""
    elements = _elements(container)
    values = list(value) if isinstance(value, types.BaseTuple) else [value]
    if len(values) != len(elements):
        return None

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        data = builder.load(builder.bitcast(args[0], ADDRESS.as_pointer()))
        first = builder.mul(args[1], ir.Constant(WORD_TYPE, len(elements)))
        parts = cgutils.unpack_tuple(builder, args[2]) if len(elements) > 1 else [args[2]]
        for number, (element, given, part) in enumerate(zip(elements, values, parts, strict=True)):
            word = builder.add(first, ir.Constant(WORD_TYPE, number))
            cast = context.cast(builder, part, given, element)
            builder.store(cast, place(builder, data, word, cast.type))
        return context.get_dummy_value()

    return types.none(container, types.int64, value), lower


@intrinsic
def store_entries(typing_context: Any, container: Any, position: Any, values: Any) -> Any:
    """Store a tuple of numbers in a list of numbers, from a position on."""
    given = list(values)

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        data = builder.load(builder.bitcast(args[0], ADDRESS.as_pointer()))
        for number, part in enumerate(cgutils.unpack_tuple(builder, args[2])):
            word = builder.add(args[1], ir.Constant(WORD_TYPE, number))
            cast = context.cast(builder, part, given[number], container.element)
            builder.store(cast, place(builder, data, word, cast.type))
        return context.get_dummy_value()

    return types.none(container, types.int64, values), lower


@intrinsic
def reallocate(typing_context: Any, container: Any, num_words: Any) -> Any:
    """Give a list space for ``num_words`` words."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = ir.FunctionType(ADDRESS, [ADDRESS, WORD_TYPE])
        function = cgutils.get_or_insert_function(builder.module, kind, REALLOCATE)
        place = builder.bitcast(args[0], ADDRESS.as_pointer())
        moved = builder.call(function, [builder.load(place), builder.mul(args[1], ir.Constant(WORD_TYPE, WORD))])
        builder.store(moved, place)
        return context.get_dummy_value()

    return types.none(container, types.int64), lower
