"""The versions of an engine profile written out: its file says only what changed from one to the next."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simserve.errors import ProfileError


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
