"""Empty modules for those that SGLang imports and nobody has installed: GPU kernels, which no scheduling calls."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from unittest.mock import MagicMock


class Anything(type):
    """A class of a module that is not there."""

    def __getattr__(cls, name):
        if name == "__get_pydantic_core_schema__":
            # A field of such a class takes anything.
            return lambda *arguments: {"type": "any"}
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=name)


class Absent(types.ModuleType):
    """A module that is not there, with whatever is asked of it."""

    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(name, (object,), {}) if name[:1].isupper() else MagicMock(name=name)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds what SGLang imports and nobody has installed."""

    def __init__(self):
        self.absent = set()

    def find_spec(self, name, path, target=None):
        """Return an empty module where SGLang itself asks for one."""
        top = name.split(".")[0]
        frame = sys._getframe(1)
        while "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        is_asked = "/sglang/" in frame.f_code.co_filename
        if top in sys.stdlib_module_names or top == "sglang" or not (is_asked or top in self.absent):
            return None
        if path is not None and top not in self.absent:
            return None
        self.absent.add(top)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        """Return an empty module."""
        return Absent(spec.name)

    def exec_module(self, module):
        """Do nothing."""


sys.meta_path.append(Finder())
