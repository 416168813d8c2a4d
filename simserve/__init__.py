"""simserve: what will this LLM deployment do under this traffic, and what will it cost?

    import simserve as ss

    result = ss.run(ss.load("chatbot"))
    result.summary["p95_ttft_ms"]

The public names are imported when they are first used, so that `import simserve` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from simserve.version import __version__

if TYPE_CHECKING:
    from simserve.api import (
        RunResult,
        Scenario,
        Simulation,
        capacity,
        compare,
        cost,
        diff,
        load,
        memory,
        plan,
        run,
        sweep,
        validate,
        verify,
    )
    from simserve.errors import SimserveError

__all__ = [
    "RunResult",
    "Scenario",
    "SimserveError",
    "Simulation",
    "__version__",
    "capacity",
    "compare",
    "cost",
    "diff",
    "load",
    "memory",
    "plan",
    "run",
    "sweep",
    "validate",
    "verify",
]


def __getattr__(name: str) -> Any:
    """Return a public name from the module that defines it (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module 'simserve' has no attribute '{name}'")
    module = importlib.import_module("simserve.errors" if name == "SimserveError" else "simserve.api")
    return getattr(module, name)


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
