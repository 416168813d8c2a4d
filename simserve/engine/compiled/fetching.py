"""Fetching ahead: asking the processor for the entries of columns that the next steps of a replica will touch.

Requests finish in another order than they arrive in, so that each column would be waited for once a request. What is
fetched is known when a leap is planned, and there by the time other replicas have had their turn. It changes no value.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from simserve.engine.compiled.types import ADDRESS, ColumnType
from simserve.engine.kernel import plan, submit
from simserve.engine.state import MASK

_FETCH = "llvm.prefetch.p0"
_READ, _KEEP, _DATA = 0, 3, 1
_ARRIVALS_AHEAD = 24


@intrinsic
def fetch(typing_context: Any, column: Any, index: Any) -> Any:
    """Begin to load the cache line of an entry; wait for nothing."""
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
    # Who finishes next is first in the heap, who comes after that second or third.
    heap = replica.finish_heap
    for position in range(min(len(heap), 3)):
        fetch_finishing(requests, heap[position] & MASK)
    if replica.waiting:
        fetch_waiting(requests, replica.waiting[0])


def submit_and_fetch(replica: Any, requests: Any, index: int, now: float) -> None:
    """Submit as `simserve.engine.kernel.submit` does, and fetch what arrivals to come will touch."""
    submit(replica, requests, index, now)
    # Columns in their order too: others are touched so often in between that the processor sees no order.
    fetch(requests.ready_time, index + _ARRIVALS_AHEAD)
    if len(replica.waiting) == 1:
        fetch_waiting(requests, index + _ARRIVALS_AHEAD)


def fetch_finishing(requests: Any, index: int) -> None:
    """Fetch what a request is asked for and told when it finishes."""
    fetch(requests.joined_leap, index)
    fetch(requests.itl_max, index)
    fetch(requests.context_base, index)
    fetch(requests.output_tokens, index)
    fetch(requests.finish_time, index)
    fetch(requests.generated_tokens, index)
    fetch(requests.status, index)


def fetch_waiting(requests: Any, index: int) -> None:
    """Fetch what a request is asked for and told when it is admitted."""
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
