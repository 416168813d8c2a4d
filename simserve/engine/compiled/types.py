"""Flat memory seen as objects: numba types for records, columns, lists and queues that the kernel's source works on.

Every value is a bare pointer, so that nothing is counted and nothing is copied: an attribute is a load at an offset.
Lists own memory of the C library and grow by themselves; `simserve.engine.compiled.layout` lays the same memory out
from Python and gives it back. It knows how fields look, not what they mean.
"""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import binding, ir
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.core.imputils import lower_constant
from numba.core.typing.templates import AbstractTemplate, AttributeTemplate, infer_global, signature
from numba.extending import (
    infer_getattr,
    intrinsic,
    lower_builtin,
    lower_getattr_generic,
    lower_setattr_generic,
    overload,
    overload_method,
    register_model,
)

from simserve.engine.compiled.layout import (
    BOOLEAN,
    FLOAT,
    INTEGER,
    WORD,
    Column,
    Items,
    Pointer,
    Queue,
    Record,
    Records,
    reallocate_address,
)

_BYTE = ir.IntType(8)
_WORD = ir.IntType(64)
_ADDRESS = _BYTE.as_pointer()
_STORED = {"b": types.int8, "i": types.int32, "q": types.int64, "d": types.float64}
_REALLOCATE = "simserve_reallocate"
_MISSING = object()

binding.add_symbol(_REALLOCATE, reallocate_address())


class RecordType(types.Type):
    """A record of named fields; may be absent (``None``)."""

    def __init__(self, record: Record) -> None:
        self.record = record
        super().__init__(name=f"simserve.{record.name}")


class RecordsType(types.Type):
    """Equal records side by side."""

    def __init__(self, record: Record) -> None:
        self.element = RecordType(record)
        super().__init__(name=f"simserve.records({record.name})")


class ColumnType(types.Type):
    """One entry a request, of a fixed size."""

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


class _PointerModel(models.PrimitiveModel):
    def __init__(self, manager: Any, fe_type: Any) -> None:
        super().__init__(manager, fe_type, _ADDRESS)


for _each in (RecordType, RecordsType, ColumnType, ItemsType, QueueType):
    register_model(_each)(_PointerModel)


def type_of(kind: Any) -> Any:
    """Return the numba type of a field."""
    if kind in (INTEGER, FLOAT, BOOLEAN):
        return {INTEGER: types.int64, FLOAT: types.float64, BOOLEAN: types.boolean}[kind]
    if isinstance(kind, Column):
        return ColumnType(kind.code)
    if isinstance(kind, Items):
        return ItemsType(kind.codes)
    if isinstance(kind, Queue):
        return QueueType()
    if isinstance(kind, Records):
        return RecordsType(kind.record)
    assert isinstance(kind, Pointer)
    return RecordType(kind.record)


def _at(builder: Any, address: Any, words: Any, element: Any) -> Any:
    """Return a pointer to ``element`` so many words behind an address."""
    if isinstance(words, int):
        words = ir.Constant(_WORD, words)
    moved = builder.gep(address, [builder.mul(words, ir.Constant(_WORD, WORD))], inbounds=True)
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
        return builder.load(_at(builder, value, offset, ir.DoubleType()))
    if kind in (INTEGER, BOOLEAN):
        word = builder.load(_at(builder, value, offset, _WORD))
        return builder.trunc(word, ir.IntType(1)) if kind == BOOLEAN else word
    if isinstance(kind, Items | Queue):
        return _at(builder, value, offset, _BYTE)
    return builder.load(_at(builder, value, offset, _ADDRESS))


@lower_setattr_generic(RecordType)
def _set_attribute(context: Any, builder: Any, sig: Any, args: Any, name: str) -> None:
    record, source = sig.args
    kind, offset = record.record.fields[name], record.record.offsets[name]
    value = context.cast(builder, args[1], source, type_of(kind))
    if kind == BOOLEAN:
        value = builder.zext(value, _WORD)
    builder.store(value, _at(builder, args[0], offset, value.type))


def _is_none(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    value = args[0]
    if isinstance(sig.args[0], ItemsType):
        # A list that somebody reads has memory from the start.
        value = builder.load(builder.bitcast(value, _ADDRESS.as_pointer()))
    return builder.icmp_unsigned("==", value, ir.Constant(_ADDRESS, None))


def _is_not_none(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return builder.not_(_is_none(context, builder, sig, args))


for _each in (RecordType, ItemsType):
    lower_builtin(operator.is_, _each, types.NoneType)(_is_none)
    lower_builtin(operator.is_not, _each, types.NoneType)(_is_not_none)


@intrinsic
def record_at(typing_context: Any, address: Any, record: Any) -> Any:
    """Return the record that begins at an address; ``record`` is its type."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], _ADDRESS)

    return signature(record.instance_type, types.int64, record), lower


# Words of headers and elements.


@intrinsic
def _word(typing_context: Any, container: Any, position: Any) -> Any:
    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.load(_at(builder, args[0], args[1], _WORD))

    return types.int64(container, types.int64), lower


@intrinsic
def _set_word(typing_context: Any, container: Any, position: Any, value: Any) -> Any:
    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.store(args[2], _at(builder, args[0], args[1], _WORD))
        return context.get_dummy_value()

    return types.none(container, types.int64, types.int64), lower


def _elements(container: Any) -> list[Any]:
    return list(container.element) if isinstance(container.element, types.BaseTuple) else [container.element]


@intrinsic
def _load(typing_context: Any, container: Any, position: Any) -> Any:
    """Load an entry of a list."""
    elements = _elements(container)

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        data = builder.load(builder.bitcast(args[0], _ADDRESS.as_pointer()))
        first = builder.mul(args[1], ir.Constant(_WORD, len(elements)))
        values = []
        for number, element in enumerate(elements):
            word = builder.add(first, ir.Constant(_WORD, number))
            values.append(builder.load(_at(builder, data, word, context.get_value_type(element))))
        return values[0] if len(values) == 1 else context.make_tuple(builder, container.element, values)

    return container.element(container, types.int64), lower


@intrinsic
def _store(typing_context: Any, container: Any, position: Any, value: Any) -> Any:
    """Store an entry of a list."""
    elements = _elements(container)
    values = list(value) if isinstance(value, types.BaseTuple) else [value]
    if len(values) != len(elements):
        return None

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        data = builder.load(builder.bitcast(args[0], _ADDRESS.as_pointer()))
        first = builder.mul(args[1], ir.Constant(_WORD, len(elements)))
        parts = cgutils.unpack_tuple(builder, args[2]) if len(elements) > 1 else [args[2]]
        for number, (element, given, part) in enumerate(zip(elements, values, parts, strict=True)):
            word = builder.add(first, ir.Constant(_WORD, number))
            cast = context.cast(builder, part, given, element)
            builder.store(cast, _at(builder, data, word, cast.type))
        return context.get_dummy_value()

    return types.none(container, types.int64, value), lower


@intrinsic
def _store_all(typing_context: Any, container: Any, position: Any, values: Any) -> Any:
    """Store a tuple of numbers in a list of numbers, from a position on."""
    given = list(values)

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        data = builder.load(builder.bitcast(args[0], _ADDRESS.as_pointer()))
        for number, part in enumerate(cgutils.unpack_tuple(builder, args[2])):
            word = builder.add(args[1], ir.Constant(_WORD, number))
            cast = context.cast(builder, part, given[number], container.element)
            builder.store(cast, _at(builder, data, word, cast.type))
        return context.get_dummy_value()

    return types.none(container, types.int64, values), lower


@intrinsic
def _reallocate(typing_context: Any, container: Any, num_words: Any) -> Any:
    """Give a list room for so many words."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = ir.FunctionType(_ADDRESS, [_ADDRESS, _WORD])
        function = cgutils.get_or_insert_function(builder.module, kind, _REALLOCATE)
        place = builder.bitcast(args[0], _ADDRESS.as_pointer())
        moved = builder.call(function, [builder.load(place), builder.mul(args[1], ir.Constant(_WORD, WORD))])
        builder.store(moved, place)
        return context.get_dummy_value()

    return types.none(container, types.int64), lower


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
    size = ir.Constant(_WORD, sig.args[0].element.record.num_words)
    return _at(builder, args[0], builder.mul(args[1], size), _BYTE)


# Lists: data, length, capacity.


@overload(len, strict=False)
def _len(container: Any) -> Any:
    if isinstance(container, ItemsType | QueueType):
        return lambda container: _word(container, 1)
    return None


@overload(bool, strict=False)
def _bool(container: Any) -> Any:
    if isinstance(container, ItemsType | QueueType):
        return lambda container: _word(container, 1) != 0
    return None


@overload(operator.not_, strict=False)
def _not(container: Any) -> Any:
    if isinstance(container, ItemsType | QueueType):
        return lambda container: _word(container, 1) == 0
    return None


@overload(operator.getitem, strict=False)
def _items_get(container: Any, position: Any) -> Any:
    if isinstance(container, ItemsType) and isinstance(position, types.Integer):

        def get(container: Any, position: Any) -> Any:
            if position < 0:
                position += _word(container, 1)
            return _load(container, position)

        return get
    if isinstance(container, QueueType):
        return lambda container, position: _word(container, 0)
    return None


@overload(operator.setitem, strict=False)
def _items_set(container: Any, position: Any, value: Any) -> Any:
    if isinstance(container, ItemsType):

        def put(container: Any, position: Any, value: Any) -> Any:
            if position < 0:
                position += _word(container, 1)
            _store(container, position, value)

        return put
    return None


@overload_method(ItemsType, "append", strict=False)
def _append(container: Any, value: Any) -> Any:
    size = len(container.codes)

    def append(container: Any, value: Any) -> Any:
        length = _word(container, 1)
        if length == _word(container, 2):
            capacity = 2 * length + 16
            _reallocate(container, capacity * size)
            _set_word(container, 2, capacity)
        _store(container, length, value)
        _set_word(container, 1, length + 1)

    return append


@overload_method(ItemsType, "extend", strict=False)
def _extend(container: Any, values: Any) -> Any:
    count = len(values)

    def extend(container: Any, values: Any) -> Any:
        length = _word(container, 1)
        if length + count > _word(container, 2):
            capacity = 2 * length + 16 * count
            _reallocate(container, capacity)
            _set_word(container, 2, capacity)
        _store_all(container, length, values)
        _set_word(container, 1, length + count)

    return extend


@overload_method(ItemsType, "clear", strict=False)
def _clear(container: Any) -> Any:
    return lambda container: _set_word(container, 1, 0)


@overload_method(ItemsType, "pop", strict=False)
def _pop(container: Any, position: Any = -1) -> Any:
    if isinstance(position, types.Omitted | int):

        def pop(container: Any, position: Any = -1) -> Any:
            last = _word(container, 1) - 1
            _set_word(container, 1, last)
            return _load(container, last)

        return pop

    def pop_at(container: Any, position: Any = -1) -> Any:
        value = _load(container, position)
        last = _word(container, 1) - 1
        for each in range(position, last):
            _store(container, each, _load(container, each + 1))
        _set_word(container, 1, last)
        return value

    return pop_at


@overload_method(ItemsType, "index", strict=False)
def _index(container: Any, value: Any) -> Any:
    def index(container: Any, value: Any) -> Any:
        position = 0
        while _load(container, position) != value:
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
            for position in range(_word(container, 1)):  # noqa: SIM110
                if _load(container, position) == value:
                    return True
            return False

        return contains
    return None


# The queue: head, length, tail, and the column of those who stand behind.


@intrinsic
def _behind(typing_context: Any, queue: Any) -> Any:
    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.load(_at(builder, args[0], 3, _ADDRESS))

    return ColumnType("q")(queue), lower


@overload_method(QueueType, "append", strict=False)
def _queue_append(queue: Any, index: Any) -> Any:
    def append(queue: Any, index: Any) -> Any:
        length = _word(queue, 1)
        if length:
            _behind(queue)[_word(queue, 2)] = index
        else:
            _set_word(queue, 0, index)
        _set_word(queue, 2, index)
        _set_word(queue, 1, length + 1)

    return append


@overload_method(QueueType, "appendleft", strict=False)
def _queue_appendleft(queue: Any, index: Any) -> Any:
    def appendleft(queue: Any, index: Any) -> Any:
        length = _word(queue, 1)
        if length:
            _behind(queue)[index] = _word(queue, 0)
        else:
            _set_word(queue, 2, index)
        _set_word(queue, 0, index)
        _set_word(queue, 1, length + 1)

    return appendleft


@overload_method(QueueType, "popleft", strict=False)
def _queue_popleft(queue: Any) -> Any:
    def popleft(queue: Any) -> Any:
        index = _word(queue, 0)
        length = _word(queue, 1) - 1
        _set_word(queue, 1, length)
        if length:
            _set_word(queue, 0, _behind(queue)[index])
        return index

    return popleft
