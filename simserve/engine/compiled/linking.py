"""Functions that numba compiles, brought into one module of LLVM's and optimised there, once.

numba optimises each function with all that it calls, makes machine code of it that can be called from Python, and does
so again in each of its callers: six hundred times here, of which one is used. Nothing here knows what the functions do.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numba
from llvmlite import binding
from numba.core.codegen import JITCodeLibrary, JITCPUCodegen
from numba.core.registry import cpu_target

_SPEED_LEVEL = 3
_WRAPPERS = "create_cpython_wrapper", "create_cfunc_wrapper"


class _Library(JITCodeLibrary):
    """A function as numba translated it, beside the libraries of those that it calls; nobody calls it from Python."""

    _shared_module: Any = None

    def _optimize_functions(self, module: Any) -> None:
        module.data_layout = self._codegen._data_layout

    def finalize(self) -> None:
        self._finalized = True

    def _get_module_for_linking(self) -> Any:
        """Return what a library of numba's own, later in the same process, needs of this one: all that it calls too."""
        if self._shared_module is None:
            module = _merged(_modules([self]))
            for function in module.functions:
                if not function.is_declaration:
                    function.linkage = "linkonce_odr"
            self._shared_module = module
        return self._shared_module

    def get_pointer_to_function(self, name: str) -> int:
        return 0


class _Codegen(JITCPUCodegen):
    """What makes such libraries."""

    _library_class = _Library

    def set_env(self, name: str, environment: Any) -> None:
        """Leave out what only Python's objects need."""


def linked(functions: Mapping[str, tuple[Callable[..., Any], tuple[Any, ...]]], target_machine: Any) -> Any:
    """Return a module of LLVM's with functions and all that they call, optimised.

    Args:
        functions: Under which name which function goes, compiled for arguments of which types.
        target_machine: LLVM's description of the machine.
    """
    names, libraries = {}, []
    with _translating(), _without_collecting():
        for name, (function, arguments) in functions.items():
            entry = numba.njit(function, error_model="numpy")
            entry.compile(arguments)
            compiled = entry.overloads[entry.signatures[0]]
            names[compiled.fndesc.llvm_func_name] = name
            libraries.append(compiled.library)
    module = _merged(_modules(libraries))
    for function in module.functions:
        if function.name in names:
            function.name = names[function.name]
        elif not function.is_declaration:
            # Whoever knows all callers of a function may leave it out.
            function.linkage = "internal"
    _optimize(module, target_machine)
    return module


def _merged(modules: list[Any]) -> Any:
    """Return one of some modules with all of the others in it.

    Two by two: each time LLVM looks through all that is there already.
    """
    while len(modules) > 1:
        for one, other in zip(modules[::2], modules[1::2], strict=False):
            one.link_in(other)
        modules = modules[::2]
    return modules[0]


def _optimize(module: Any, target_machine: Any) -> None:
    options = binding.create_pipeline_tuning_options(_SPEED_LEVEL)
    options.loop_vectorization = True
    options.slp_vectorization = False  # As numba has it.
    builder = binding.create_pass_builder(target_machine, options)
    builder.getModulePassManager().run(module, builder)


def _modules(libraries: list[_Library]) -> list[Any]:
    """Return copies of the modules of some libraries and of those that they need."""
    found: dict[_Library, Any] = {}
    waiting = [*libraries]
    while waiting:
        each = waiting.pop()
        if each not in found:
            found[each] = each._final_module.clone()
            # The others are numba's own, which count references to Python's objects.
            waiting += [needed for needed in each._linking_libraries if isinstance(needed, _Library)]
    return list(found.values())


@contextmanager
def _translating() -> Iterator[None]:
    """Let numba translate functions to LLVM's language, and no further."""
    context = cpu_target.target_context
    context.refresh()
    others: dict[str, Any] = {"_internal_codegen": _Codegen("simserve"), "cached_internal_func": {}}
    others |= dict.fromkeys(_WRAPPERS, _nothing)
    before = {name: vars(context)[name] for name in others if name in vars(context)}
    vars(context).update(others)
    try:
        yield
    finally:
        for name in others:
            del vars(context)[name]
        vars(context).update(before)


def _nothing(*arguments: Any, **options: Any) -> None:
    return None


@contextmanager
def _without_collecting() -> Iterator[None]:
    """Keep Python from looking for garbage among millions of objects that are all in use."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
