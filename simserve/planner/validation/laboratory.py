"""Where the project's own laboratory is: in a checkout, beside the package. Knows nothing of what it measures."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from simserve.errors import UsageError
from simserve.profiles import catalog

HOME = "calibration/laboratory/command.py"
"""The laboratory's side of `simserve validate`, from the root of a checkout."""

REMEDY = "clone the repository and run `pip install -e .` in it"


def load_laboratory(key: str, value: object) -> ModuleType:
    """Return `calibration.laboratory.command`: ``read_points read_memory_logs write_error_model write_accuracy``.

    Args:
        key: The flag that asks for it.
        value: What the flag was given.

    Raises:
        UsageError: The package was installed without a checkout.
    """
    if not catalog.bundled_file(HOME).is_file():
        raise UsageError("needs a development install of simserve", key=key, value=value, remedy=REMEDY)
    return import_module("calibration.laboratory.command")
