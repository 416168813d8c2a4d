"""Compiling the kernel: its functions as they stand, each with the compiled others in place of those it calls.

Compiled code is kept on disk (`simserve.engine.compiled.cache`).
"""

from __future__ import annotations

import dis
import types as python_types
from collections.abc import Callable
from typing import Any

import numba
from numba.core import types
from numba.extending import overload_method

from simserve.engine.compiled import containers, fields, replacements  # noqa: F401 (numba learns what containers do)
from simserve.engine.compiled.disk import KernelCache
from simserve.engine.compiled.types import RecordType, record_at
from simserve.engine.data_plane import driver
from simserve.engine.kernel import complete, plan, seen_time, submit

_PLANE, _REQUESTS = RecordType(fields.PLANE), RecordType(fields.REQUESTS)


def compiled_drive() -> Callable[[int, int, float], int]:
    """Return `simserve.engine.data_plane.driver`'s function over replicas, compiled.

    It takes the addresses of the plane and of the table, and the time to drive to.
    """
    drive = _Rebinding().dispatcher(driver(submit, complete, plan, seen_time))

    def drive_at(plane: int, requests: int, until: float) -> int:
        return drive(record_at(plane, _PLANE), record_at(requests, _REQUESTS), until)  # type: ignore[no-any-return]

    entry = numba.njit(drive_at, nogil=True, error_model="numpy")
    cache = KernelCache.over(drive_at)
    if cache is not None:
        entry._cache = cache
    entry.compile(types.int64(types.int64, types.int64, types.float64))
    return entry  # type: ignore[no-any-return]


class _Rebinding:
    """Functions that have been compiled, by what they were made of."""

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
            self._done[function] = numba.njit(copy, error_model="numpy")
        return self._done[function]

    def _seen_as(self, name: str, value: Any) -> Any:
        """Return what compiled code finds under a name."""
        replaced = replacements.REPLACED.get(name)
        if replaced is not None:
            return self.dispatcher(replaced)
        if isinstance(value, python_types.FunctionType):
            return self.dispatcher(replacements.UNREACHED.get(name, value))
        return value


def _globals_of(code: python_types.CodeType, function: Any) -> set[str]:
    loaded = {each.argval for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL"}
    names = {name for name in loaded if name in function.__globals__}
    for constant in code.co_consts:
        if isinstance(constant, python_types.CodeType):
            names |= _globals_of(constant, function)
    return names


def _progress_method(name: str) -> None:
    @overload_method(RecordType, name, strict=False)
    def method(progress: Any, *arguments: Any) -> Any:
        return lambda progress, *arguments: 0


for _name in ("growth", "take", "affordable_steps"):
    _progress_method(_name)
