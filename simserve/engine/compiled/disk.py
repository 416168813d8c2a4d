"""numba's cache on disk, in a folder that changes with every source of the kernel and not with one file alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba.core import caching

from simserve.engine.compiled.cache import cache_folder


class _Locator(caching._CacheLocator):
    """All that could make the compiled code stale is in the name of the folder."""

    def get_cache_path(self) -> str:
        return str(cache_folder())

    def get_source_stamp(self) -> str:
        return cache_folder().name

    def get_disambiguator(self) -> None:
        return None

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> Any:
        locator = cls()
        try:
            locator.ensure_cache_path()
        except OSError:
            return None
        return locator


class _Implementation(caching.CompileResultCacheImpl):
    _locator_classes = (_Locator,)


class KernelCache(caching.FunctionCache):
    """The compiled kernel on disk."""

    _impl_class = _Implementation

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        return sig, codegen.magic_tuple()

    @classmethod
    def over(cls, function: Callable[..., Any]) -> KernelCache | None:
        """Return the cache of a function, None where the folder cannot be written to."""
        try:
            return cls(function)
        except RuntimeError:
            # numba's answer when no locator takes a function.
            return None
