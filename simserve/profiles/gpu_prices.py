"""What a GPU costs: rented by the hour on three kinds of terms, or bought. Knows no scenario and no month."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from simserve.profiles.price_dates import Date
from simserve.validation import FrozenModel

Source = Annotated[str, Field(min_length=1)]
RentalKind = Literal["on_demand", "reserved", "spot"]


class GpuPrice(FrozenModel):
    """What one GPU cost at one provider on one date."""

    usd_per_hour: float = Field(gt=0)
    """Dollars an hour for one GPU, its share of the host included."""
    provider: str = Field(min_length=1)
    """Who sells it."""
    kind: RentalKind
    """Terms of the offer: `on_demand`; `reserved` for a term; `spot`, which may be taken back at any time."""
    term: str | None = None
    """Length that a reservation binds for, in words."""
    date: Date
    """When the price was seen: YYYY-MM-DD, YYYY-MM, or YYYY where no more is known."""
    source: Source
    """Where the price was read."""


class GpuPurchase(FrozenModel):
    """What one GPU costs to buy, with its share of the server."""

    usd: float = Field(gt=0)
    """Dollars for one GPU and its share of the server it sits in."""
    date: Date
    """When the price was seen."""
    source: Source
    """Where the price was read."""


def offers(prices: Sequence[GpuPrice], kind: RentalKind, provider: str | None = None) -> list[GpuPrice]:
    """Return the offers on some terms, of one provider (whatever the case of its letters) or of all.

    Of several prices of one provider only those with its newest date count.
    """
    found = [price for price in prices if price.kind == kind]
    if provider is not None:
        found = [price for price in found if price.provider.casefold() == provider.casefold()]
    latest = {price.provider: max(each.date for each in found if each.provider == price.provider) for price in found}
    return [price for price in found if price.date == latest[price.provider]]


def listed_offers(prices: Sequence[GpuPrice]) -> str:
    """Return what is on offer, for a remedy: ``on_demand (AWS, Lambda), spot (Nebius)``."""
    by_kind: dict[str, list[str]] = {}
    for price in prices:
        names = by_kind.setdefault(price.kind, [])
        if price.provider not in names:
            names.append(price.provider)
    return ", ".join(f"{kind} ({', '.join(names)})" for kind, names in by_kind.items()) or "nothing"
