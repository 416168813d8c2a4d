"""Price lists of APIs that others keep: litellm's and genai-prices' JSON, read into API profiles.

Layouts: litellm `model_prices_and_context_window.json`, a mapping of model to dollars a token; genai-prices
`prices/data.json` and `data_slim.json`, a list of providers whose models have dollars a million tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from simserve.documents import read_document
from simserve.errors import ProfileError
from simserve.profiles.api import ApiProfile
from simserve.validation import validate

_TOKEN_MODES = ("chat", "completion", "responses", None)
"""Modes of litellm that are priced by text tokens."""
_ABOVE = re.compile(r"input_cost_per_token_above_(\d+)k_tokens")
_GENAI = {"input": "input_mtok", "cached_input": "cache_read_mtok", "output": "output_mtok"}
_MILLION = 1e6
_DIGITS = 10


def read_api_prices(file: Path, date: str) -> list[ApiProfile]:
    """Return the APIs of a price list that are priced by text tokens, in the order of the file.

    Which of the two layouts it is shows at its top: litellm's is a mapping, genai-prices' a list.

    Args:
        file: The price list.
        date: When it was fetched, YYYY-MM-DD: prices that start later are left out, and no file says so itself.

    Raises:
        ProfileError: The file cannot be read, has neither layout, or holds a price that is none.
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
        raise ProfileError(
            "is no price list of litellm (a mapping of model to prices) or genai-prices (a list of providers)",
            file=file,
        )
    profiles: dict[str, ApiProfile] = {}
    for raw in found:
        name = _unused(_name(raw["provider"], raw["model_id"]), profiles)
        where = f"{raw['provider']} {raw['model_id']}"
        document = {**raw, "name": name, "description": f"{raw['model_id']} at {raw['provider']}", "date": date}
        try:
            profiles[name] = validate(ApiProfile, {**document, "source": f"{source}, {where}"}, error=ProfileError)
        except ProfileError as failure:  # under the model's name, which the file has and the profile has not
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
        }


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
    """Return the prices that hold on a date: the last whose start has come; those of an hour of the day never do."""
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
    if batch is None or not full or not 0 < batch < full:
        return None
    return round(1 - batch / full, 6)


def _name(provider: str, model: str) -> str:
    """Return a catalogue name: the provider once, then the model, in what a file name may hold."""
    slug = [re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.") for text in (provider, model)]
    return slug[1] if slug[1].startswith(slug[0]) else "-".join(slug)


def _unused(name: str, taken: Mapping[str, object]) -> str:
    number, free = 2, name
    while free in taken:
        free, number = f"{name}-{number}", number + 1
    return free
