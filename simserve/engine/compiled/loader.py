"""From compiled code to a function: llvmlite links machine code into the process, without numba.

numba is imported only if the kernel has to be compiled; every later run loads the code from disk.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from llvmlite import binding

from simserve.engine.compiled.cache import cache_folder, read, write
from simserve.engine.compiled.fields import SENDING
from simserve.engine.compiled.layout import ENTRY, REALLOCATE, SENDING_ENTRY, Memory, reallocate_address
from simserve.engine.sending import Sending
from simserve.errors import InvariantError

Drive = Callable[[int, int, float], int]
_WORD, _ADDRESS = ctypes.c_int64, ctypes.POINTER(ctypes.c_void_p)
_Function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(_WORD), _ADDRESS, _WORD, _WORD, ctypes.c_double)
_SendingFunction = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(_WORD), _ADDRESS, _WORD)


def load_kernel() -> Drive:
    """Return the compiled loop of the data plane, compiling it if needed.

    It takes the addresses of the plane and of the table, and the time to drive to; it releases the GIL.
    """
    engine = _kept_engine()
    function = _Function(engine.get_function_address(ENTRY))

    def drive(plane: int, requests: int, until: float) -> int:
        assert engine is not None  # It owns the code.
        reason, error = _WORD(), ctypes.c_void_p()
        if function(ctypes.byref(reason), ctypes.byref(error), plane, requests, until):
            raise InvariantError("requests wait at an empty replica and none can be admitted")
        return reason.value

    return drive


def send_all(sending: Sending) -> Sending:
    """Send events on compiled code (`simserve.engine.sending.send_all`), and return the results."""
    engine, memory = _kept_engine(), Memory(SENDING)
    for name in SENDING.fields:
        memory.put(name, getattr(sending, name))
    count, error = _WORD(), ctypes.c_void_p()
    _SendingFunction(engine.get_function_address(SENDING_ENTRY))(
        ctypes.byref(count), ctypes.byref(error), memory.address
    )
    sending.squares, sending.smallest, sending.delay = map(memory.get, ("squares", "smallest", "delay"))
    return sending


@cache
def _kept_engine() -> Any:
    """Return the engine that owns the code, which is loaded from disk or stored there."""
    path = _path()
    code = read(path)
    if code is None:
        code = _compiled()
        write(path, code)
    return _linked(code)


def _compiled() -> bytes:
    from simserve.engine.compiled.build import compile_kernel  # numba: a third of a second and 80 MB

    binding.add_symbol(REALLOCATE, reallocate_address())
    return compile_kernel(target_machine())


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


def _linked(code: bytes) -> Any:
    """Return the engine that owns the code, linked into this process."""
    binding.add_symbol(REALLOCATE, reallocate_address())
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), target_machine())
    engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine
