"""From compiled code to a function: machine code is linked into the process by llvmlite, without numba.

numba is imported only where the kernel has to be compiled; the code of every later run comes from disk.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llvmlite import binding

from simserve.engine.compiled.cache import cache_folder, read, write
from simserve.engine.compiled.layout import ENTRY, REALLOCATE, reallocate_address
from simserve.errors import InvariantError

Drive = Callable[[int, int, float], int]
_Function = ctypes.CFUNCTYPE(
    ctypes.c_int32,
    ctypes.POINTER(ctypes.c_int64),
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.c_double,
)


def load_kernel(is_kept: bool = True) -> Drive:
    """Return the compiled loop of the data plane, compiling it if it has not been.

    It takes the addresses of the plane and of the table, and the time to drive to; it leaves the GIL to others.

    Args:
        is_kept: Whether it may come from disk, and is put there.
    """
    binding.add_symbol(REALLOCATE, reallocate_address())
    path = _path()
    code = read(path) if is_kept else None
    if code is None:
        from simserve.engine.compiled.build import compile_kernel  # numba: a third of a second and 80 MB

        code = compile_kernel(target_machine())
        if is_kept:
            write(path, code)
    return _linked(code)


def target_machine() -> Any:
    """Return LLVM's description of this machine."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(),
        features=binding.get_host_cpu_features().flatten(),
        opt=3,
        codemodel="jitdefault",
        jit=True,
    )


def _path() -> Path:
    machine = f"{binding.get_host_cpu_name()} {binding.get_host_cpu_features().flatten()}"
    return cache_folder() / f"{hashlib.sha256(machine.encode()).hexdigest()[:16]}.kernel"


def _linked(code: bytes) -> Drive:
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), target_machine())
    engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    function = _Function(engine.get_function_address(ENTRY))

    def drive(plane: int, requests: int, until: float) -> int:
        assert engine is not None  # It owns the code.
        reason, error = ctypes.c_int64(), ctypes.c_void_p()
        if function(ctypes.byref(reason), ctypes.byref(error), plane, requests, until):
            raise InvariantError("requests wait at an empty replica and none can be admitted")
        return reason.value

    return drive
