"""`simserve apis`, and the prices of `simserve gpus`: what tokens and GPU-hours cost, seen when, and whether old."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from simserve.cli.options import JsonOption, print_json, print_table

if TYPE_CHECKING:
    from simserve.profiles.api import ApiProfile
    from simserve.profiles.hardware import HardwareProfile

TodayOption = Annotated[
    str | None,
    typer.Option(
        metavar="YYYY-MM-DD", help="Day that prices are judged old at. Default: the newest date of the catalogue."
    ),
]
_OLD = "old"


def apis(today: TodayOption = None, as_json: JsonOption = False) -> None:
    """List the APIs: dollars a million tokens, cached input, batch discount, when the price was seen."""
    from simserve.profiles import catalog
    from simserve.profiles.api import load_api
    from simserve.profiles.price_dates import check_today, newest

    profiles = [load_api(name) for name in catalog.names("api")]
    reference = check_today(today) if today is not None else newest(each.date for each in profiles)
    rows = [_api(profile, reference) for profile in profiles]
    if as_json:
        print_json({"apis": rows, "judged_at": reference})
        return
    print_table(
        ("api", "provider", "input", "cached", "output", "batch", "seen"),
        [
            (
                row["name"],
                row["provider"],
                _usd(row["input_usd_per_million_tokens"]),
                _usd(row["cached_input_usd_per_million_tokens"]),
                _usd(row["output_usd_per_million_tokens"]),
                "-" if row["batch_discount"] is None else f"-{row['batch_discount']:.0%}",
                seen(row["date"], row["is_old"]),
            )
            for row in rows
        ],
        "Dollars a million tokens, list prices. old: seen more than a year before the newest. "
        "Tiers by prompt length: --json.",
    )


def _api(profile: ApiProfile, today: str | None) -> dict[str, Any]:
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
        "prompt_tiers": [tier.model_dump() for tier in profile.prompt_tiers],
        "batch_discount": profile.batch_discount,
        "volume_discounts": [each.model_dump() for each in profile.volume_discounts],
        "date": profile.date,
        "is_old": today is not None and is_old(profile.date, today),
        "source": profile.source,
    }


def price_facts(profile: HardwareProfile, today: str | None) -> list[dict[str, Any]]:
    """Return the offers of a GPU: rented by the hour, dearest first, each with its date and whether it is old."""
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
