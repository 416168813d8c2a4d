"""Prices that were read, written as profiles: a folder that SIMSERVE_PROFILE_PATH can name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from simserve.documents import read_text
from simserve.errors import ProfileError, UsageError
from simserve.profiles import catalog
from simserve.profiles.api import ApiProfile
from simserve.profiles.gpu_prices import GpuPrice
from simserve.profiles.hardware import load_hardware

_WIDTH = 110


def write_api_profiles(profiles: Sequence[ApiProfile], out: Path, *, force: bool = False) -> list[Path]:
    """Write ``out/api_profiles/NAME.yaml`` for each profile and return the files.

    Raises:
        UsageError: One of them is there already, and ``force`` is false; nothing is written then.
    """
    texts = {
        profile.name: yaml.safe_dump(
            profile.model_dump(mode="json", exclude_none=True, exclude_defaults=True), sort_keys=False, width=_WIDTH
        )
        for profile in profiles
    }
    return _write(texts, out / "api_profiles", force=force)


def write_hardware_profiles(prices: Mapping[str, Sequence[GpuPrice]], out: Path, *, force: bool = False) -> list[Path]:
    """Write ``out/hardware_profiles/NAME.yaml``: each bundled profile with these prices beside those of others.

    A price of the same provider on the same terms is replaced.

    Raises:
        UsageError: One of the files is there already, and ``force`` is false; nothing is written then.
    """
    return _write(
        {name: _with_prices(name, own) for name, own in prices.items()}, out / "hardware_profiles", force=force
    )


def _with_prices(name: str, own: Sequence[GpuPrice]) -> str:
    """Return the file of a profile with its block of prices replaced; every other line stays as it is."""
    file = catalog.find("hardware", name)
    replaced = {(price.provider.casefold(), price.kind) for price in own}
    kept = [each for each in load_hardware(name).prices if (each.provider.casefold(), each.kind) not in replaced]
    rows = [price.model_dump(mode="json", exclude_none=True) for price in (*own, *kept)]
    block = yaml.safe_dump({"prices": rows}, sort_keys=False, width=_WIDTH)
    before: list[str] = []
    after: list[str] = []
    inside = seen = False
    for line in read_text(file, ProfileError).splitlines(keepends=True):
        is_key = bool(line.strip()) and not line.startswith((" ", "#", "-"))
        if is_key:
            inside = line.startswith("prices:")
            seen = seen or inside
        if not inside:
            (after if seen else before).append(line)
    gap = "" if before and not before[-1].strip() else "\n"
    return "".join([*before, gap, block, *(["\n"] if after else []), *after])


def _write(texts: Mapping[str, str], folder: Path, *, force: bool) -> list[Path]:
    files = {folder / f"{name}.yaml": text for name, text in texts.items()}
    there = [file for file in files if file.exists()]
    if there and not force:
        raise UsageError("is there already", file=there[0], remedy="give --force to replace it, or another --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            file.write_text(text, encoding="utf-8")
    except OSError as failure:
        raise UsageError(f"cannot be written: {failure.strerror}", key="--out", value=str(folder)) from None
    return list(files)
