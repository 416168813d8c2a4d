"""Writing a hardware profile as YAML that reads back as the same profile. Knows no fit."""

from __future__ import annotations

import os
from pathlib import Path

import yaml

from simserve.profiles.hardware import HardwareProfile
from simserve.unfinished import remove_abandoned, unfinished


def profile_text(profile: HardwareProfile, header: str = "") -> str:
    """Return a profile as YAML, units in the quantities, what is at its default left out.

    Args:
        profile: The profile.
        header: Comment above it, whole lines.
    """
    mapping = profile.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    return header + yaml.safe_dump(mapping, sort_keys=False, allow_unicode=True, width=116)


def write_profile(profile: HardwareProfile, file: Path, header: str = "") -> None:
    """Write a profile, whole or not at all.

    Raises:
        OSError: The file cannot be written.
    """
    remove_abandoned(file.parent)
    beside = unfinished(file)
    try:
        beside.write_text(profile_text(profile, header), encoding="utf-8", newline="\n")
        os.replace(beside, file)
    finally:
        beside.unlink(missing_ok=True)
