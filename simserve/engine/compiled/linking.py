"""Functions compiled by numba, merged into one LLVM module and optimised there, once.

numba optimises each function together with all that it calls, generates machine code that can be called from Python,
and does so again in each of its callers: six hundred times here, of which one is used. Nothing here knows what the
functions do.
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
    """A function as numba translated it, beside the libraries of those that it calls; never called from Python."""

    _shared_module: Any = None

    def _optimize_functions(self, module: Any) -> None:
        module.data_layout = self._codegen._data_layout

    def finalize(self) -> None:
        self._finalized = True

    def _get_module_for_linking(self) -> Any:
        """Return what a later library of numba's own in the same process needs of this one: all that it calls too."""
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
    """Makes such libraries."""

    _library_class = _Library

    def set_env(self, name: str, environment: Any) -> None:
        """Leave out what only Python objects need."""


def linked(functions: Mapping[str, tuple[Callable[..., Any], tuple[Any, ...]]], target_machine: Any) -> Any:
    """Return an LLVM module with functions and all that they call, optimised.

    Args:
        functions: Name -> function, and the types of the arguments to compile it for.
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
            # If all callers of a function are known, the function itself may be left out.
            function.linkage = "internal"
    _optimize(module, target_machine)
    return module


def _merged(modules: list[Any]) -> Any:
    """Return one of some modules with all of the others merged into it.

    Pairwise: at each merge, LLVM looks through everything that is already there.
    """
    while len(modules) > 1:
        for one, other in zip(modules[::2], modules[1::2], strict=False):
            one.link_in(other)
        modules = modules[::2]
    return modules[0]


def _optimize(module: Any, target_machine: Any) -> None:
    options = binding.create_pipeline_tuning_options(_SPEED_LEVEL)
    options.loop_vectorization = True
    options.slp_vectorization = False  # As in numba.
    builder = binding.create_pass_builder(target_machine, options)
    builder.getModulePassManager().run(module, builder)


def _modules(libraries: list[_Library]) -> list[Any]:
    """Return copies of the modules of some libraries and of the libraries that they need."""
    found: dict[_Library, Any] = {}
    waiting = [*libraries]
    while waiting:
        each = waiting.pop()
        if each not in found:
            found[each] = each._final_module.clone()
            # The others are numba's own, which count references to Python objects.
            waiting += [needed for needed in each._linking_libraries if isinstance(needed, _Library)]
    return list(found.values())


@contextmanager
def _translating() -> Iterator[None]:
    """Let numba translate functions to LLVM's language, and go no further."""
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
    """Keep Python from searching for garbage among millions of objects that are all in use."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
