"""What numba translates, brought into one module: it computes the same, and numba is afterwards as it was before."""

from __future__ import annotations

import ctypes
import gc
import importlib.util

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="numba is not installed")


def test_functions_are_one_module_that_shows_nothing_else() -> None:
    """Both compute what they compute in Python; what they share and call is in the module, and hidden."""
    import numba
    from llvmlite import binding
    from numba.core import types

    from simserve.engine.compiled.linking import linked
    from simserve.engine.compiled.loader import target_machine

    @numba.njit
    def power(base: int, exponent: int) -> int:
        product = 1
        for _ in range(exponent):
            product *= base
        return product

    def cube(base: int) -> int:
        return power(base, 3)

    def larger(one: int, other: int) -> int:
        return max(power(one, 2), power(other, 2))

    integer = types.int64
    module = linked({"cube": (cube, (integer,)), "larger": (larger, (integer, integer))}, target_machine())
    external = binding.Linkage.external
    seen = {each.name for each in module.functions if each.linkage is external and not each.is_declaration}
    engine = binding.create_mcjit_compiler(module, target_machine())
    engine.finalize_object()

    assert seen == {"cube", "larger"}
    assert _called(engine, "cube", 7) == 343
    assert _called(engine, "larger", -9, 4) == 81


def test_numba_is_as_before() -> None:
    """Functions that are called from Python get machine code, also those that were translated for a module before."""
    import numba
    from numba.core import types
    from numba.core.registry import cpu_target

    from simserve.engine.compiled.linking import linked
    from simserve.engine.compiled.loader import target_machine

    @numba.njit
    def larger(one: int, other: int) -> int:
        return max(one, abs(other))

    def doubled(one: int, other: int) -> int:
        return 2 * larger(one, other)

    context = cpu_target.target_context
    context.refresh()
    before = dict(vars(context))
    linked({"doubled": (doubled, (types.int64, types.int64))}, target_machine())

    assert vars(context) == before
    assert gc.isenabled()
    assert numba.njit(lambda one, other: larger(one, other) + max(one, other))(-3, -5) == 2


def _called(engine: object, name: str, *arguments: int) -> int:
    """Call machine code as numba lays calls out: where the result goes, where an error goes, arguments."""
    result, error = ctypes.c_int64(), ctypes.c_void_p()
    kinds = [ctypes.c_int64] * len(arguments)
    function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *kinds)
    address = engine.get_function_address(name)  # type: ignore[attr-defined]
    status = function(address)(ctypes.addressof(result), ctypes.addressof(error), *arguments)

    assert status == 0
    return result.value
