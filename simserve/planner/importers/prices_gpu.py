"""Price lists of GPU-hours that others keep: SkyPilot's and gpuhunt's CSV, read into prices of hardware profiles.

Layouts: SkyPilot catalogue `catalogs/vN/CLOUD/vms.csv` (dollars an hour of the instance, spot beside it); gpuhunt
`PROVIDER.csv` (one row an offer, `spot` true or false). Neither names a date; the cloud is in the path.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from simserve.documents import read_text
from simserve.errors import ProfileError
from simserve.profiles.gpu_prices import GpuPrice, RentalKind

_SKYPILOT = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "Region")
_GPUHUNT = ("instance_name", "location", "price", "gpu_count", "gpu_name", "gpu_memory", "spot")
_PROFILES: Mapping[str, str] = {
    "A10": "a10-24gb",
    "A10G": "a10g-24gb",
    "A100": "a100-sxm-40gb",
    "A100-40GB": "a100-sxm-40gb",
    "A100-80GB": "a100-sxm-80gb",
    "A40": "a40-48gb",
    "A800": "a800-sxm-80gb",
    "B200": "b200-sxm-180gb",
    "B300": "b300-sxm-270gb",
    "GB200": "gb200-186gb",
    "GB300": "gb300-279gb",
    "GH200": "gh200-96gb",
    "H100": "h100-sxm-80gb",
    "H100-80GB": "h100-sxm-80gb",
    "H100-SXM": "h100-sxm-80gb",
    "H20": "h20-96gb",
    "H200": "h200-sxm-141gb",
    "H200-SXM": "h200-sxm-141gb",
    "L4": "l4-24gb",
    "L40S": "l40s-48gb",
    "MI300X": "mi300x-192gb",
    "MI325X": "mi325x-256gb",
    "MI350X": "mi350x-288gb",
    "MI355X": "mi355x-288gb",
    "RTX3090": "rtx-3090-24gb",
    "RTX4090": "rtx-4090-24gb",
    "RTX5090": "rtx-5090-32gb",
    "RTX4000-Ada": "rtx-4000-ada-20gb",
    "RTX5000-Ada": "rtx-5000-ada-32gb",
    "RTX6000-Ada": "rtx-6000-ada-48gb",
    "RTXA6000": "rtx-a6000-48gb",
    "RTXPRO6000": "rtx-pro-6000-96gb",
    "T4": "t4-16gb",
    "V100S": "v100s-32gb",
}
"""Accelerator as the lists name it -> hardware profile; H100 and A100 are SXM unless the instance says PCIe."""
_PCIE = {"h100-sxm-80gb": "h100-pcie-80gb", "a100-sxm-80gb": "a100-pcie-80gb"}


@dataclass(frozen=True, slots=True)
class GpuPriceList:
    """What a price list holds.

    Attributes:
        prices: Hardware profile -> the lowest price of each kind, over regions and instances.
        skipped: Accelerators that no bundled profile stands for, sorted.
    """

    prices: Mapping[str, tuple[GpuPrice, ...]]
    skipped: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Offer:
    accelerator: str
    count: int
    instance: str
    region: str
    kind: RentalKind
    usd: float


def read_gpu_prices(file: Path, date: str, provider: str | None = None) -> GpuPriceList:
    """Return the prices of a list, a GPU.

    Args:
        file: The price list.
        date: When it was fetched, YYYY-MM-DD.
        provider: Who sells; None: the folder of a SkyPilot catalogue, the name of a gpuhunt file.

    Raises:
        ProfileError: The file cannot be read, has neither layout, or a row holds no number where one must be.
    """
    reader = csv.DictReader(io.StringIO(read_text(file, ProfileError)))
    columns = reader.fieldnames or []
    if all(column in columns for column in _SKYPILOT):
        layout, whose = "SkyPilot catalogue", file.resolve().parent.name
    elif all(column in columns for column in _GPUHUNT):
        layout, whose = "gpuhunt", file.stem
    else:
        raise ProfileError(
            f"is no price list of SkyPilot (columns {', '.join(_SKYPILOT)}) or gpuhunt ({', '.join(_GPUHUNT)})",
            file=file,
        )
    best: dict[tuple[str, RentalKind], _Offer] = {}
    skipped: set[str] = set()
    for row in reader:
        offers = _skypilot(row, file, reader.line_num) if layout[0] == "S" else _gpuhunt(row, file, reader.line_num)
        for offer in offers:
            profile = _profile(offer)
            if profile is None:
                skipped.add(offer.accelerator)
                continue
            key = (profile, offer.kind)
            if key not in best or offer.usd / offer.count < best[key].usd / best[key].count:
                best[key] = offer
    prices: dict[str, list[GpuPrice]] = {}
    for (profile, kind), offer in sorted(best.items()):
        prices.setdefault(profile, []).append(
            GpuPrice(
                usd_per_hour=round(offer.usd / offer.count, 6),
                provider=provider or whose,
                kind=kind,
                date=date,
                source=f"{layout}, {file.name}: {offer.instance} in {offer.region}, {offer.usd:g} for {offer.count}",
            )
        )
    return GpuPriceList({name: tuple(found) for name, found in prices.items()}, tuple(sorted(skipped)))


def _skypilot(row: Mapping[str, str], file: Path, line: int) -> list[_Offer]:
    count = _number(row, "AcceleratorCount", file, line) or 0.0
    if not row["AcceleratorName"] or count < 1:
        return []
    kinds: dict[RentalKind, str] = {"on_demand": "Price", "spot": "SpotPrice"}
    offers = []
    for kind, column in kinds.items():
        usd = _number(row, column, file, line)
        if usd:
            offers.append(_Offer(row["AcceleratorName"], int(count), row["InstanceType"], row["Region"], kind, usd))
    return offers


def _gpuhunt(row: Mapping[str, str], file: Path, line: int) -> list[_Offer]:
    count, usd = _number(row, "gpu_count", file, line), _number(row, "price", file, line)
    if not row["gpu_name"] or not count or not usd:
        return []
    spot = row["spot"].lower()
    if spot not in ("true", "false"):
        raise ProfileError("must be True or False", file=file, key=f"line {line}, spot", value=row["spot"])
    name, memory = row["gpu_name"], _number(row, "gpu_memory", file, line)
    if name == "A100" and memory:
        name = f"A100-{memory:.0f}GB"
    kind: RentalKind = "spot" if spot == "true" else "on_demand"
    return [_Offer(name, int(count), row["instance_name"], row["location"], kind, usd)]


def _profile(offer: _Offer) -> str | None:
    name = offer.accelerator.upper().replace(" ", "")
    wants_pcie = "PCIE" in name or "pcie" in offer.instance.lower()
    profile = _PROFILES.get(name.removesuffix("-PCIE").removesuffix("PCIE"))
    return _PCIE.get(profile, profile) if wants_pcie and profile is not None else profile


def _number(row: Mapping[str, str], column: str, file: Path, line: int) -> float | None:
    """Return a number of a row; None where the cell is empty or absent."""
    text = (row.get(column) or "").strip()
    if not text or text.lower() == "nan":
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ProfileError("must be a number >= 0", file=file, key=f"line {line}, {column}", value=text)
    return value
