"""Classes with a slot for each attribute that ``__init__`` sets: quick to reach, and no other can be set by mistake."""

from __future__ import annotations

import dis
from typing import Any, TypeVar, cast

_ClassT = TypeVar("_ClassT", bound=type[Any])


def slotted(made: _ClassT) -> _ClassT:
    """Return a class made again with slots, as `dataclasses.dataclass` does: ``__init__`` is where each is declared."""
    code = vars(made)["__init__"].__code__
    names = {each.argval for each in dis.get_instructions(code) if each.opname == "STORE_ATTR"}
    body = {name: value for name, value in vars(made).items() if name not in ("__dict__", "__weakref__")}
    remake: Any = type(made)
    return cast(_ClassT, remake(made.__name__, made.__bases__, {**body, "__slots__": tuple(sorted(names))}))
