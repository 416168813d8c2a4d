"""`simserve apis`, and the prices of `simserve gpus`: what tokens and GPU-hours cost, seen when, and whether that is
old."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from simserve.cli.one_line import refuse_flags
from simserve.cli.options import JsonOption, argument, option, print_json, print_table
from simserve.errors import ProfileError, UsageError, nearest

if TYPE_CHECKING:
    from simserve.profiles.api import ApiProfile
    from simserve.profiles.hardware import HardwareProfile

NameArgument = Annotated[str | None, argument("Only those with this in their name.", metavar="[NAME]")]
TodayOption = Annotated[
    str | None,
    option(
        "Date at which prices are checked for age. Default: the newest date in the catalogue.", metavar="YYYY-MM-DD"
    ),
]
PricesOption = Annotated[
    Path | None, option("Prices of this file instead of the catalogue's.", "--prices", metavar="FILE")
]
DateOption = Annotated[str | None, option("With --prices: when the file was fetched.", "--date", metavar="YYYY-MM-DD")]
OutOption = Annotated[
    Path | None, option("With --prices: write profiles there, for SIMSERVE_PROFILE_PATH.", "--out", metavar="DIR")
]
ForceOption = Annotated[bool, option("With --out: replace existing profiles.", "--force")]
_OLD = "old"
_MONTH = len("2026-11")


def apis(
    name: NameArgument = None,
    prices: PricesOption = None,
    only: Annotated[
        list[str] | None,
        option("With --prices: take the names that hold this text; repeats.", "--only", metavar="TEXT"),
    ] = None,
    date: DateOption = None,
    out: OutOption = None,
    force: ForceOption = False,
    today: TodayOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the APIs: dollars a million tokens, cached input, batch discount, when the price was seen.

    simserve apis llama-3.3

    With --prices they are those of a file: litellm's model_prices_and_context_window.json, or genai-prices' data.json.

    simserve apis --prices model_prices_and_context_window.json --date 2026-11-20 --only mistral --out my-prices
    """
    from simserve.profiles import catalog
    from simserve.profiles.api import load_api
    from simserve.profiles.price_dates import check_today, newest

    if prices is None:
        of_file = {"--only": only, "--date": date, "--out": out, "--force": force or None}
        refuse_flags(of_file, "needs --prices FILE")
        every = [load_api(each) for each in catalog.names("api")]
        profiles = [each for each in every if is_named(name, [each.name, each.provider, each.weights or ""])]
        refuse_none(profiles, name, [each.name for each in every])
    elif name is not None:
        raise UsageError("filters the list of APIs, not a price file", key="NAME", value=name, remedy="use --only")
    else:
        profiles = _from_file(prices, only or (), fetched_at(date), out, force=force)
    reference = check_today(today) if today is not None else newest(each.date for each in profiles)
    rows = [_api(profile, reference) for profile in profiles]
    if as_json:
        print_json({"apis": rows, "judged_at": reference})
        return
    print_table(
        ("api", "provider", "input", "cached", "output", "batch", "ttft", "tokens/s", "seen", "served"),
        [
            (
                row["name"],
                row["provider"],
                _usd(row["input_usd_per_million_tokens"]),
                _usd(row["cached_input_usd_per_million_tokens"]),
                _usd(row["output_usd_per_million_tokens"]),
                "-" if row["batch_discount"] is None else f"-{row['batch_discount']:.0%}",
                "-" if row["latency"] is None else row["latency"]["ttft"],
                "-" if row["latency"] is None else f"{row['latency']['tokens_per_second']:.0f}",
                seen(row["date"], row["is_old"]),
                _until(row),
            )
            for row in rows
        ],
        "Dollars a million tokens, list prices. old: seen more than a year before the newest. "
        "Tiers by prompt length: --json. ttft, tokens/s of one answer: medians that somebody measured, no promise."
        + " served: until when, if its provider has said so; --json names what follows."
        + _peaks(profiles),
    )


def _until(row: Mapping[str, Any]) -> str:
    """Return until when a model is served; a dash: no end is known."""
    gone = row["withdrawn"]
    return "-" if gone is None else f"{'ended' if row['is_withdrawn'] else 'until'} {gone['date'][:_MONTH]}"


def _peaks(profiles: Sequence[ApiProfile]) -> str:
    """Return the sentence that names the APIs with peak hours; empty: none."""
    told = [
        f"{each.name} x{each.peak_hours.factor:g} in {each.peak_hours.hours_per_week:g} hours a week"
        for each in profiles
        if each.peak_hours is not None
    ]
    return f" Peak hours, which cost more than these prices: {', '.join(told)}." if told else ""


def _from_file(file: Path, only: Sequence[str], date: str, out: Path | None, *, force: bool) -> list[ApiProfile]:
    from simserve.planner.importers.prices import read_api_prices, write_api_profiles

    profiles = [
        each for each in read_api_prices(file, date) if not only or any(text.lower() in each.name for text in only)
    ]
    if not profiles:
        raise ProfileError("holds no API of these names", file=file, remedy=f"--only {' '.join(only)} matches none")
    if out is not None:
        say_written(write_api_profiles(profiles, out, force=force), out)
    return profiles


def is_named(wanted: str | None, names: Sequence[str]) -> bool:
    """Return whether ``wanted`` is part of any name, or all its words are in one name.

    Case, spaces, dashes and underscores do not count.
    """
    plain = [re.sub(r"[\s_-]", "", each.casefold()) for each in names]
    words = [re.sub(r"[_-]", "", word) for word in (wanted or "").casefold().split()]
    return any("".join(words) in each or all(word in each for word in words) for each in plain)


def refuse_none(found: Sequence[object], wanted: str | None, names: Sequence[str]) -> None:
    """Refuse a name that matches nothing.

    Raises:
        ProfileError: Nothing is left.
    """
    if not found and wanted is not None:
        raise ProfileError("is in no name", value=wanted, remedy=nearest(wanted, names))


def fetched_at(date: str | None) -> str:
    """Return when a price file was fetched, which the file itself does not say."""
    from simserve.profiles.price_dates import check_date

    if date is None:
        raise UsageError("needs --date, the day that the file was fetched", key="--prices")
    return check_date(date, "--date")


def say_written(files: Sequence[Path], out: Path) -> None:
    """Say on stderr what was written and how to use it."""
    print(
        f"simserve: {len(files)} profile{'s' if len(files) > 1 else ''} written; use with SIMSERVE_PROFILE_PATH={out}",
        file=sys.stderr,
    )


def _api(profile: ApiProfile, today: str | None) -> dict[str, Any]:
    from simserve.profiles.api import is_withdrawn
    from simserve.profiles.price_dates import is_old

    return {
        "name": profile.name,
        "provider": profile.provider,
        "model_id": profile.model_id,
        "description": profile.description,
        "weights": profile.weights,
        "input_usd_per_million_tokens": profile.price.input,
        "cached_input_usd_per_million_tokens": profile.price.cached_input,
        "output_usd_per_million_tokens": profile.price.output,
        "peak_hours": None if profile.peak_hours is None else profile.peak_hours.model_dump(),
        "prompt_tiers": [tier.model_dump() for tier in profile.prompt_tiers],
        "prompt_caching": [each.model_dump(mode="json") for each in profile.prompt_caching],
        "batch_discount": profile.batch_discount,
        "volume_discounts": [each.model_dump() for each in profile.volume_discounts],
        "latency": None if profile.latency is None else profile.latency.model_dump(mode="json"),
        "date": profile.date,
        "is_old": today is not None and is_old(profile.date, today),
        "withdrawn": None if profile.withdrawn is None else profile.withdrawn.model_dump(),
        "is_withdrawn": is_withdrawn(profile, today),
        "source": profile.source,
    }


def price_facts(profile: HardwareProfile, today: str | None) -> list[dict[str, Any]]:
    """Return the rental offers of a GPU, the most expensive first, each with its date and whether it is old."""
    from simserve.profiles.price_dates import is_old

    return [
        {**price.model_dump(), "is_old": today is not None and is_old(price.date, today)}
        for price in sorted(profile.prices, key=lambda price: (price.kind, -price.usd_per_hour))
    ]


def print_offers(rows: list[dict[str, Any]]) -> None:
    """Print every offer of every GPU."""
    print_table(
        ("gpu", "terms", "provider", "USD/h", "seen"),
        [
            (row["name"], price["kind"].replace("_", "-"), price["provider"], f"{price['usd_per_hour']:.2f}",
             seen(price["date"], price["is_old"]))
            for row in rows
            for price in row["prices"]
        ]
        + [
            (row["name"], "purchase", "-", f"{row['purchase_usd']:,.0f} once", seen(row["purchase_date"], False))
            for row in rows
            if row["purchase_usd"] is not None
        ],
        "Dollars an hour for one GPU with its share of the host. old: seen more than a year before the newest.",
    )  # fmt: skip


def seen(date: str | None, old: bool) -> str:
    """Return when a price was seen: ``2023-06, old``."""
    return "-" if date is None else f"{date}, {_OLD}" if old else date


def _usd(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if value == round(value, 2) else f"{value:.3g}"
