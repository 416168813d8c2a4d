"""Reads published price lists of APIs and GPU-hours, and writes them as profiles that a path can name.

APIs: litellm `model_prices_and_context_window.json`, a mapping of model to dollars per token; genai-prices
`prices/data.json` and `data_slim.json`, a list of providers whose models have dollars per million tokens.

GPU-hours: SkyPilot catalogue `catalogs/vN/CLOUD/vms.csv` (dollars per hour of the instance, on demand and spot);
gpuhunt `PROVIDER.csv` (one row per offer, `spot` true or false). Neither names a date; the cloud is in the path.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from simserve.documents import read_document, read_text, yaml_text
from simserve.errors import ProfileError, UsageError
from simserve.profiles import catalog
from simserve.profiles.api import ApiProfile
from simserve.profiles.gpu_prices import GpuPrice, RentalKind
from simserve.profiles.hardware import hardware_name, load_hardware
from simserve.validation import validate

_TOKEN_MODES = ("chat", "completion", "responses", None)  # Modes of litellm that are priced per text token.
_ABOVE = re.compile(r"input_cost_per_token_above_(\d+)k_tokens")
_DAY = re.compile(r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])")
_GENAI = {"input": "input_mtok", "cached_input": "cache_read_mtok", "output": "output_mtok"}
_MILLION = 1e6
_DIGITS = 10  # Decimal places kept in dollars per million tokens.
_SKYPILOT = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "Region")
_GPUHUNT = ("instance_name", "location", "price", "gpu_count", "gpu_name", "gpu_memory", "spot")
_PROFILES: Mapping[str, str | None] = {"A100": "a100-sxm-40gb", "V100": None}
"""Name of an accelerator that means something else in the catalogue -> hardware profile; the lists' V100 have 16 GB
or 32. H100 and A100 are SXM unless the instance says PCIe."""
_PCIE = {"h100-sxm-80gb": "h100-pcie-80gb", "a100-sxm-80gb": "a100-pcie-80gb"}
_WIDTH = 110  # Line width of the profiles that are written.


def read_api_prices(file: Path, date: str) -> list[ApiProfile]:
    """Return the APIs of a price list that are priced per text token, in the order of the file.

    The top level tells the two layouts apart: litellm's is a mapping, genai-prices' a list.

    Args:
        date: When it was fetched, YYYY-MM-DD, which the files do not say; prices that start later are left out, unless
            the format falls back on them.

    Raises:
        ProfileError: The file cannot be read, has neither layout, or holds an invalid price.
    """
    if file.suffix != ".json":
        raise ProfileError("must be a JSON file, of litellm or genai-prices", file=file)
    document = read_document(file, ProfileError)
    if isinstance(document, Mapping) and any(isinstance(each, Mapping) for each in document.values()):
        found = _litellm(document, file)
        source = f"litellm, {file.name}"
    elif isinstance(document, list) and document and all(_is_provider(each) for each in document):
        found = _genai_prices(document, file, date)
        source = f"genai-prices, {file.name}"
    else:
        rule = "is no price list of litellm (a mapping of model to prices) or genai-prices (a list of providers)"
        raise ProfileError(rule, file=file)
    profiles: dict[str, ApiProfile] = {}
    for raw in found:
        name = _unused(_name(raw["provider"], raw["model_id"]), profiles)
        where = f"{raw['provider']} {raw['model_id']}"
        document = {**raw, "name": name, "description": f"{raw['model_id']} at {raw['provider']}", "date": date}
        try:
            profiles[name] = validate(ApiProfile, {**document, "source": f"{source}, {where}"}, error=ProfileError)
        except ProfileError as failure:  # report the model's name in the file, not that of the profile
            raise ProfileError(failure.rule, file=file, key=where, value=failure.value) from None
    return list(profiles.values())


def _is_provider(entry: object) -> bool:
    return isinstance(entry, Mapping) and "id" in entry and isinstance(entry.get("models"), list)


def _litellm(document: Mapping[str, Any], file: Path) -> Iterator[dict[str, Any]]:
    for model, entry in document.items():
        if model == "sample_spec":
            continue
        if not isinstance(entry, Mapping):
            raise ProfileError("must be a mapping of prices", file=file, key=model, value=entry)
        if entry.get("mode") not in _TOKEN_MODES or "input_cost_per_token" not in entry:
            continue
        if "output_cost_per_token" not in entry:
            continue
        price = _litellm_price(entry, "", file, model)
        tiers = [
            {
                "above_prompt_tokens": int(match[1]) * 1000,
                **_litellm_price(entry, f"_above_{match[1]}k_tokens", file, model),
            }
            for match in map(_ABOVE.fullmatch, entry)
            if match
        ]
        yield {
            "provider": str(entry.get("litellm_provider", "unknown")),
            "model_id": model,
            "price": price,
            "prompt_tiers": sorted(tiers, key=lambda tier: tier["above_prompt_tokens"]),
            "batch_discount": _discount(
                _number(entry.get("input_cost_per_token_batches"), file, model), entry["input_cost_per_token"]
            ),
            "withdrawn": _litellm_withdrawal(entry),
        }


def _litellm_withdrawal(entry: Mapping[str, Any]) -> dict[str, str] | None:
    """Return litellm's ``deprecation_date``, the day on which a provider stops serving a model."""
    date = str(entry.get("deprecation_date", ""))
    return {"date": date, "source": "deprecation_date"} if _DAY.fullmatch(date) else None


def _litellm_price(entry: Mapping[str, Any], suffix: str, file: Path, model: str) -> dict[str, float | None]:
    keys = {
        "input": "input_cost_per_token",
        "cached_input": "cache_read_input_token_cost",
        "output": "output_cost_per_token",
    }
    price = {}
    for name, key in keys.items():
        value = _number(entry.get(key + suffix, entry.get(key)), file, f"{model}.{key}{suffix}")
        price[name] = None if value is None else round(value * _MILLION, _DIGITS)
    return price


def _genai_prices(document: Sequence[Mapping[str, Any]], file: Path, date: str) -> Iterator[dict[str, Any]]:
    for provider in document:
        for model in provider["models"]:
            where = f"{provider['id']}.{model.get('id') if isinstance(model, Mapping) else model}"
            if not isinstance(model, Mapping) or "prices" not in model or "id" not in model:
                raise ProfileError("must have id and prices", file=file, key=where)
            prices = _at(model["prices"], date, file, where)
            if "input_mtok" not in prices or "output_mtok" not in prices:
                continue
            base, tiers = _tiered(prices, file, where)
            yield {
                "provider": str(provider.get("name", provider["id"])),
                "model_id": str(model["id"]),
                "price": base,
                "prompt_tiers": tiers,
            }


def _at(prices: Any, date: str, file: Path, where: str) -> Mapping[str, Any]:
    """Return the prices valid on a date: the last ones that have started; prices for hours of the day are skipped.

    Where that leaves none, the first of the list hold, even if they are those of some hours or of a later date: so says
    genai-prices itself (`ModelInfo.prices`: "If no conditional models match the conditions, the first one is used").
    """
    if isinstance(prices, Mapping):
        return prices
    if not isinstance(prices, list) or not prices or not all(isinstance(each, Mapping) for each in prices):
        raise ProfileError("must be prices, or a list of prices with constraints", file=file, key=where)
    holds = prices[0]
    for each in prices:
        constraint = each.get("constraint") or {}
        if "start_time" not in constraint and str(constraint.get("start_date", "")) <= date:
            holds = each
    found = holds.get("prices")
    if not isinstance(found, Mapping):
        raise ProfileError("must hold a mapping of prices", file=file, key=where)
    return found


def _tiered(prices: Mapping[str, Any], file: Path, where: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    base: dict[str, Any] = {}
    steps: dict[str, dict[int, float]] = {}
    for name, key in _GENAI.items():
        value = prices.get(key)
        if isinstance(value, Mapping):
            base[name] = _number(value.get("base"), file, f"{where}.{key}")
            tiers = value.get("tiers")
            if not isinstance(tiers, list) or not all(isinstance(tier, Mapping) for tier in tiers):
                raise ProfileError("must have tiers", file=file, key=f"{where}.{key}")
            steps[name] = {
                int(tier["start"]): _number(tier.get("price"), file, f"{where}.{key}") or 0.0 for tier in tiers
            }
        else:
            base[name] = _number(value, file, f"{where}.{key}")
    limits = sorted({start for each in steps.values() for start in each})
    rows = []
    for limit in limits:
        row = {
            name: max(((s, p) for s, p in steps.get(name, {}).items() if s <= limit), default=(0, base[name]))[1]
            for name in _GENAI
        }
        rows.append({"above_prompt_tokens": limit, **row})
    return base, rows


def _number(value: Any, file: Path, key: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ProfileError("must be a price in dollars", file=file, key=key, value=value)
    return float(value)


def _discount(batch: float | None, full: float) -> float | None:
    return None if batch is None or not full or not 0 < batch < full else round(1 - batch / full, 6)


def _name(provider: str, model: str) -> str:
    """Return a catalogue name: the provider once, then the model, in characters that a file name may hold."""
    slug = [re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.") for text in (provider, model)]
    return slug[1] if slug[1].startswith(slug[0]) else "-".join(slug)


def _unused(name: str, taken: Mapping[str, object]) -> str:
    number, free = 2, name
    while free in taken:
        free, number = f"{name}-{number}", number + 1
    return free


@dataclass(frozen=True, slots=True)
class GpuPriceList:
    """Contents of a price list."""

    prices: Mapping[str, tuple[GpuPrice, ...]]
    """Hardware profile -> the lowest price of each kind, over regions and instances."""
    skipped: tuple[str, ...]  # Accelerators without a bundled profile, sorted.


@dataclass(frozen=True, slots=True)
class _Offer:
    accelerator: str
    count: int
    instance: str
    region: str
    kind: RentalKind
    usd: float


def read_gpu_prices(file: Path, date: str, provider: str | None = None) -> GpuPriceList:
    """Return the prices of a list, per GPU.

    Args:
        date: When it was fetched, YYYY-MM-DD.
        provider: Name of the seller; None: the folder of a SkyPilot catalogue, or the name of a gpuhunt file.

    Raises:
        ProfileError: The file cannot be read, has neither layout, or a row lacks a required number.
    """
    reader = csv.DictReader(io.StringIO(read_text(file, ProfileError)))
    columns = reader.fieldnames or []
    if all(column in columns for column in _SKYPILOT):
        layout, whose = "SkyPilot catalogue", file.resolve().parent.name
    elif all(column in columns for column in _GPUHUNT):
        layout, whose = "gpuhunt", file.stem
    else:
        rule = f"is no price list of SkyPilot (columns {', '.join(_SKYPILOT)}) or gpuhunt ({', '.join(_GPUHUNT)})"
        raise ProfileError(rule, file=file)
    best: dict[tuple[str, RentalKind], _Offer] = {}
    skipped: set[str] = set()
    for row in reader:
        offers = _skypilot(row, file, reader.line_num) if layout[0] == "S" else _gpuhunt(row, file, reader.line_num)
        for offer in offers:
            profile = _profile(offer.accelerator, offer.instance)
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
    count = _cell(row, "AcceleratorCount", file, line) or 0.0
    if not row["AcceleratorName"] or count < 1:
        return []
    kinds: dict[RentalKind, str] = {"on_demand": "Price", "spot": "SpotPrice"}
    offers = []
    for kind, column in kinds.items():
        usd = _cell(row, column, file, line)
        if usd:
            offers.append(_Offer(row["AcceleratorName"], int(count), row["InstanceType"], row["Region"], kind, usd))
    return offers


def _gpuhunt(row: Mapping[str, str], file: Path, line: int) -> list[_Offer]:
    count, usd = _cell(row, "gpu_count", file, line), _cell(row, "price", file, line)
    if not row["gpu_name"] or not count or not usd:
        return []
    spot = row["spot"].lower()
    if spot not in ("true", "false"):
        raise ProfileError("must be True or False", file=file, key=f"line {line}, spot", value=row["spot"])
    name, memory = row["gpu_name"], _cell(row, "gpu_memory", file, line)
    if name == "A100" and memory:
        name = f"A100-{memory:.0f}GB"
    kind: RentalKind = "spot" if spot == "true" else "on_demand"
    return [_Offer(name, int(count), row["instance_name"], row["location"], kind, usd)]


@cache
def _profile(accelerator: str, instance: str) -> str | None:
    name = accelerator.upper().replace(" ", "")
    wants_pcie = "PCIE" in name or "pcie" in instance.lower()
    name = name.removesuffix("-PCIE").removesuffix("PCIE")
    known = hardware_name(name)
    profile = _PROFILES.get(name, known if catalog.has("hardware", known) else None)
    return _PCIE.get(profile, profile) if wants_pcie and profile is not None else profile


def _cell(row: Mapping[str, str], column: str, file: Path, line: int) -> float | None:
    """Return a number in a row; None where the cell is empty or absent."""
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


def write_api_profiles(profiles: Sequence[ApiProfile], out: Path, *, force: bool = False) -> list[Path]:
    """Write ``out/api_profiles/NAME.yaml`` for each profile and return the files.

    Raises:
        UsageError: One of the files exists, and ``force`` is false; nothing is written then.
    """
    texts = {
        profile.name: yaml_text(profile.model_dump(mode="json", exclude_none=True, exclude_defaults=True), width=_WIDTH)
        for profile in profiles
    }
    return _write(texts, out / "api_profiles", force=force)


def write_hardware_profiles(prices: Mapping[str, Sequence[GpuPrice]], out: Path, *, force: bool = False) -> list[Path]:
    """Write ``out/hardware_profiles/NAME.yaml``: each bundled profile with these prices added.

    A price of the same provider on the same terms is replaced.

    Raises:
        UsageError: One of the files exists, and ``force`` is false; nothing is written then.
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
    block = yaml_text({"prices": rows}, width=_WIDTH)
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
