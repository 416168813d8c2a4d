"""Which profile of the catalogue a measured GPU has. Knows names and sizes, no curves."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from simserve.profiles import catalog
from simserve.profiles.hardware import HardwareProfile, load_hardware

FORMS, OTHER_FORMS = frozenset({"sxm", "pcie", "nvl"}), frozenset({"pcie", "nvl"})
"""Form factors in catalogue names; drivers name SXM boards only sometimes, the others always."""

MEMORY_TOLERANCE = 0.05
"""Share by which the memory of a GPU may be off its profile's, which drivers state a little differently."""


def bundled_profile_of(provenance: Mapping[str, Any]) -> HardwareProfile | None:
    """Return the catalogue's profile of a measured GPU; none where none fits.

    The chip of the catalogue name (``h100`` of ``h100-sxm-80gb``) must stand in the name that the driver gives, the
    form factor in both or neither, and the memory must agree; of several the nearest is taken.
    """
    device = provenance["device"]
    if device["kind"] != "cuda":
        return None
    words = set(re.split(r"[^a-z0-9]+", str(device["name"]).lower()))
    found = []
    for name in catalog.names("hardware"):
        parts = set(name.split("-"))
        chip = {part for part in parts if part not in FORMS and not part.endswith("gb")}
        if chip <= words and parts & OTHER_FORMS == words & OTHER_FORMS:
            profile = load_hardware(name)
            found.append((abs(profile.memory.total / float(device["total_memory_bytes"]) - 1.0), name, profile))
    near = [each for each in found if each[0] < MEMORY_TOLERANCE]
    return min(near, key=lambda each: each[:2])[2] if near else None
