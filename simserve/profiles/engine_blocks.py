"""The versions of an engine profile written out: its file says only what changed from one to the next."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from simserve.errors import InputError, ProfileError


def complete_versions(document: Mapping[str, Any], file: Path) -> list[dict[str, Any]]:
    """Return every block of each version, oldest first, as the file writes them: units and sources included.

    Args:
        document: What the file holds: ``defaults``, and ``versions`` with the keys that changed since the one before.
        file: Named in errors.

    Raises:
        ProfileError: A part is missing, or a changed block says no ``source``.
    """
    blocks = document.get("defaults")
    changes = document.get("versions")
    if not isinstance(blocks, dict):
        raise ProfileError("must be a mapping of blocks", file=file, key="defaults")
    if not isinstance(changes, list) or not all(isinstance(change, dict) for change in changes):
        raise ProfileError("must be a list of mappings", file=file, key="versions")
    complete: list[dict[str, Any]] = []
    for change in changes:
        merged = dict(blocks)
        for block, values in change.items():
            if isinstance(values, dict):
                if "source" not in values:
                    key = f"versions.{change.get('version')}.{block}.source"
                    raise ProfileError("is missing", file=file, key=key, remedy="say where the numbers come from")
                merged[block] = {**merged.get(block, {}), **values}
            else:
                merged[block] = values
        complete.append(merged)
        blocks = {block: values for block, values in merged.items() if block != "version"}
    return complete


_VERSION = re.compile(r"[vb]?(\d+(?:\.\d+)*)")


KEPT_VERSIONS = 1024
"""Version numbers that are read once: a search compares a few with each other in every trial."""


def version_key(version: str, known: list[str] | None = None) -> tuple[int, ...]:
    """Return a version as numbers that compare as versions do: ``"0.10.2"`` -> ``(0, 10, 2)``.

    A leading ``v`` or ``b`` (llama.cpp builds) and what follows the numbers (``rc2``) are ignored.

    Raises:
        InputError: The text does not begin with a number.
    """
    numbers = _numbers_of(version)
    if numbers is None:
        remedy = f"known are {', '.join(known)}" if known else None
        raise InputError("is not a version number", key="deployment.engine.version", value=version, remedy=remedy)
    return numbers


@lru_cache(maxsize=KEPT_VERSIONS)
def _numbers_of(version: str) -> tuple[int, ...] | None:
    """Return the numbers of a version without zeros at its end; None where the text does not begin with one."""
    match = _VERSION.match(version.strip())
    if match is None:
        return None
    numbers = [int(part) for part in match[1].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
