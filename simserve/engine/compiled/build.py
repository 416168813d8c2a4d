"""Compiling the kernel: its functions unchanged, except that each calls the other compiled functions.

Prefetching: the processor loads in advance the column entries that the next steps of a replica will touch.

Requests finish in another order than they arrive in, so without this each column would cost a wait per request. The
entries needed are known when a leap is planned, and loaded by the time other replicas have had their turn. It changes
no value.
"""

from __future__ import annotations

import dis
import types as python_types
from typing import Any

import numba
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic, overload_method

from simserve.engine.compiled import containers, fields, replacements
from simserve.engine.compiled.layout import ENTRY, REALLOCATE, SENDING_ENTRY
from simserve.engine.compiled.linking import linked
from simserve.engine.compiled.types import ADDRESS, ColumnType, RecordType, next_float, record_at
from simserve.engine.event_plane import drive
from simserve.engine.kernel import plan, submit
from simserve.engine.progress import Progress
from simserve.engine.sending import send_all
from simserve.engine.state import MASK
from simserve.errors import InvariantError

_FETCH = "llvm.prefetch.p0"
_READ, _KEEP, _DATA = 0, 3, 1
_ARRIVALS_AHEAD = 24


@intrinsic
def fetch(typing_context: Any, column: Any, index: Any) -> Any:
    """Begin to load the cache line of an entry, without waiting."""
    if not isinstance(column, ColumnType):
        return None

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        stored = context.get_value_type(sig.args[0].stored)
        entry = builder.gep(builder.bitcast(args[0], stored.as_pointer()), [args[1]], inbounds=True)
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [ADDRESS, word, word, word])
        function = builder.module.globals.get(_FETCH) or ir.Function(builder.module, kind, _FETCH)
        hints = [ir.Constant(word, each) for each in (_READ, _KEEP, _DATA)]
        builder.call(function, [builder.bitcast(entry, ADDRESS), *hints])
        return context.get_dummy_value()

    return types.none(column, types.int64), lower


def plan_and_fetch(replica: Any, requests: Any) -> None:
    """Plan as `simserve.engine.kernel.plan` does, and fetch what the end of the leap and the next one will touch."""
    plan(replica, requests)
    # The next request to finish is first in the heap, the one after that second or third.
    heap = replica.finish_heap
    for position in range(min(len(heap), 3)):
        fetch_finishing(requests, heap[position] & MASK)
    if replica.waiting:
        fetch_waiting(requests, replica.waiting[0])


def submit_and_fetch(replica: Any, requests: Any, index: int, now: float) -> None:
    """Submit as `simserve.engine.kernel.submit` does, and fetch what arrivals to come will touch."""
    submit(replica, requests, index, now)
    # Also columns accessed in order: others are touched so often in between that the processor does not detect it.
    fetch(requests.ready_time, index + _ARRIVALS_AHEAD)
    if len(replica.waiting) == 1:
        fetch_waiting(requests, index + _ARRIVALS_AHEAD)


def fetch_finishing(requests: Any, index: int) -> None:
    """Fetch the entries of a request that are read and written when it finishes."""
    fetch(requests.joined_leap, index)
    fetch(requests.itl_max, index)
    fetch(requests.context_base, index)
    fetch(requests.output_tokens, index)
    fetch(requests.finish_time, index)
    fetch(requests.generated_tokens, index)
    fetch(requests.status, index)


def fetch_waiting(requests: Any, index: int) -> None:
    """Fetch the entries of a request that are read and written when it is admitted."""
    fetch(requests.prompt_tokens, index)
    fetch(requests.generated_tokens, index)
    fetch(requests.scheduled_time, index)
    fetch(requests.replica_id, index)
    fetch(requests.computed_tokens, index)
    fetch(requests.output_tokens, index)
    fetch(requests.first_token_time, index)
    fetch(requests.context_base, index)
    fetch(requests.finish_step, index)
    fetch(requests.joined_leap, index)
    fetch(requests.last_token_time, index)


_PLANE, _REQUESTS, _SENDING = (RecordType(each) for each in (fields.PLANE, fields.REQUESTS, fields.SENDING))
_FETCHING = {"plan_rank": plan_and_fetch, "submit_to_rank": submit_and_fetch}
"""Functions that drive a scheduler, by their names in the plane, with versions that prefetch what they touch next."""
_LIBRARY = {REALLOCATE, "sqrt"}
"""Outside functions that compiled code may call: all of them are in the process without numba."""


def compile_kernel(target_machine: Any) -> bytes:
    """Return machine code that drives a data plane, under the name `ENTRY`, and sends events, under `SENDING_ENTRY`.

    Raises:
        InvariantError: The code depends on numba at run time.
    """
    rebinding = _Rebinding()
    drive_records, send_records = rebinding.dispatcher(drive), rebinding.dispatcher(send_all)

    def drive_at(plane_address: int, requests_address: int, until: float) -> int:
        plane, requests = record_at(plane_address, _PLANE), record_at(requests_address, _REQUESTS)
        return drive_records(plane, requests, until)  # type: ignore[no-any-return]

    def send_at(address: int) -> int:
        return send_records(record_at(address, _SENDING))  # type: ignore[no-any-return]

    entries: dict[str, tuple[Any, tuple[Any, ...]]] = {
        ENTRY: (drive_at, (types.int64, types.int64, types.float64)),
        SENDING_ENTRY: (send_at, (types.int64,)),
    }
    module = linked(entries, target_machine)
    called = {each.name for each in module.functions if each.is_declaration and not each.name.startswith("llvm.")}
    if called - _LIBRARY:
        raise InvariantError(f"compiled code calls {sorted(called - _LIBRARY)}")
    return bytes(target_machine.emit_object(module))


def _nextafter(time: float, towards: float) -> float:
    return next_float(time)  # type: ignore[no-any-return]


class _Rebinding:
    """Compiled functions, by the functions that they were made from."""

    def __init__(self) -> None:
        self._done: dict[Any, Any] = {}

    def dispatcher(self, function: Any) -> Any:
        """Return a numba function with the code of ``function``."""
        if function not in self._done:
            code = function.__code__
            namespace = {name: self._seen_as(name, function.__globals__[name]) for name in _globals_of(code, function)}
            cells = tuple(
                python_types.CellType(self._seen_as(name, cell.cell_contents))
                for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True)
            )
            namespace["__name__"] = function.__module__
            copy = python_types.FunctionType(code, namespace, function.__name__, function.__defaults__, cells)
            self._done[function] = _for_any_number(numba.njit(copy, error_model="numpy"))
        return self._done[function]

    def _seen_as(self, name: str, value: Any) -> Any:
        """Return what a name refers to in compiled code."""
        if name == "nextafter":
            return self.dispatcher(_nextafter)
        if name == "exchange_queues":
            return containers.exchange_queues
        replaced = _FETCHING.get(name) or replacements.REPLACED.get(name)
        if replaced is not None:
            return self.dispatcher(replaced)
        if isinstance(value, python_types.FunctionType):
            return self.dispatcher(replacements.UNREACHED.get(name, value))
        return value


def _for_any_number(dispatcher: Any) -> Any:
    """Return a numba function that is compiled by types only, not again for each literal number in calls."""
    get_call_template = dispatcher.get_call_template

    def get_without_literals(arguments: Any, keywords: Any) -> Any:
        plain = {name: types.unliteral(each) for name, each in keywords.items()}
        return get_call_template([types.unliteral(each) for each in arguments], plain)

    dispatcher.get_call_template = get_without_literals
    return dispatcher


def _globals_of(code: python_types.CodeType, function: Any) -> set[str]:
    loaded = {each.argval for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL"}
    names = {name for name in loaded if name in function.__globals__}
    for constant in code.co_consts:
        if isinstance(constant, python_types.CodeType):
            names |= _globals_of(constant, function)
    return names


def _method(name: str, function: Any) -> None:
    """Add a method to a record."""

    @overload_method(RecordType, name, strict=False)
    def method(record: Any, *arguments: Any) -> Any:
        return lambda record, *arguments: function(record, *arguments)


def _add_methods() -> None:
    """Give `Progress` its methods in compiled code."""
    rebinding = _Rebinding()
    own = {"growth": replacements.growth, "_count": replacements.count_pace, "num_requests": replacements.num_requests}
    for name in (
        "affordable_steps",
        "join",
        "leave",
        "most_growth",
        "steps_to_hold",
        "take",
        "_first_growth",
        "_late_growth",
    ):
        own[name] = getattr(Progress, name)
    for name, function in own.items():
        _method(name, rebinding.dispatcher(function))


_add_methods()
