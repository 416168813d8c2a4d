"""The cost of a GPU: rented by the hour on three kinds of terms, or bought; knows no scenario and no month.

Prices of the same GPU differ by a factor of four between sellers, and no two GPUs are offered by the same sellers. The
prices of one answer are therefore those of one seller, or of one class of sellers. The price of a class is fitted: in
``log(price) = seller + GPU`` the first term is the seller's level (`SELLERS`), and the second, this GPU's, is the mean
over its offers of the price minus the level of its seller.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from pydantic import Field

from simserve.profiles.price_dates import Date
from simserve.validation import FrozenModel

Source = Annotated[str, Field(min_length=1)]  # Where a figure was read.
RentalKind = Literal["on_demand", "reserved", "spot"]
SellerClass = Literal["hyperscaler", "specialised cloud", "marketplace"]
SELLER_CLASSES: tuple[SellerClass, ...] = get_args(SellerClass)
DEFAULT_CLASS: SellerClass = "specialised cloud"
"""Class whose prices are used if a scenario names no seller. On 2026-10-24 eight clouds that the fit does not
know asked $3.84 for an H100 in the median (compute-screener), within 10 % of the fitted price of this class."""


@dataclass(frozen=True, slots=True)
class Seller:
    """A company that rents out GPUs."""

    kind: SellerClass  # Class of seller.
    level: float  # Its prices relative to those of specialised clouds for the same GPUs.


SELLERS: dict[str, Seller] = {
    "AWS": Seller("hyperscaler", 1.769),
    "Azure": Seller("hyperscaler", 2.988),
    "Google Cloud": Seller("hyperscaler", 2.500),
    "Oracle Cloud": Seller("hyperscaler", 2.170),
    "Hyperstack": Seller("specialised cloud", 0.768),
    "Lambda": Seller("specialised cloud", 1.219),
    "Nebius": Seller("specialised cloud", 1.143),
    "RunPod": Seller("specialised cloud", 1.000),
    "Verda": Seller("specialised cloud", 0.935),
    "Vast.ai": Seller("marketplace", 0.922),
}
"""Sellers of the catalogue. Levels: least squares over the on-demand prices of ``hardware_profiles/`` (63 prices of 23
GPUs; 10 % root mean square residual), which ``tests/profiles/test_gpu_prices.py`` repeats and prints."""


class GpuPrice(FrozenModel):
    """The price of one GPU at one provider on one date."""

    usd_per_hour: float = Field(gt=0)
    """Dollars per hour for one GPU, including its share of the host."""
    provider: str = Field(min_length=1)
    """Who sells it."""
    kind: RentalKind
    """Terms of the offer: `on_demand`; `reserved` for a term; `spot`, which may be interrupted at any time."""
    term: str | None = None
    """Length of a reservation, in words."""
    date: Date
    """When the price was seen: YYYY-MM-DD, YYYY-MM, or YYYY if no more is known."""
    source: Source
    """Where the price was read."""


class GpuPurchase(FrozenModel):
    """The purchase price of one GPU, with its share of the server."""

    usd: float = Field(gt=0)
    """Dollars for one GPU and its share of its server."""
    date: Date
    """When the price was seen."""
    source: Source
    """Where the price was read."""


def offers(prices: Sequence[GpuPrice], kind: RentalKind, provider: str | None = None) -> list[GpuPrice]:
    """Return the offers on some terms, of one provider (ignoring case) or of all.

    Of several prices of one provider only the newest date counts.
    """
    found = [price for price in prices if price.kind == kind]
    if provider is not None:
        found = [price for price in found if price.provider.casefold() == provider.casefold()]
    latest = {price.provider: max(each.date for each in found if each.provider == price.provider) for price in found}
    return [price for price in found if price.date == latest[price.provider]]


def seller_class(name: str | None) -> SellerClass | None:
    """Return the class of sellers that a scenario names, ignoring case; the default one if it names none."""
    if name is None:
        return DEFAULT_CLASS
    return next((each for each in SELLER_CLASSES if each == name.casefold()), None)


@dataclass(frozen=True, slots=True)
class ClassPrice:
    """The price of a GPU at a class of sellers."""

    usd_per_hour: float  # Dollars per hour, in whole cents.
    offers: tuple[GpuPrice, ...]  # The offers to which it is fitted; those of unknown sellers if there are no others.
    num_there: int  # Number of them from the class itself.

    @property
    def is_fitted(self) -> bool:
        """Whether the sellers' levels are known; otherwise it is the median of their offers."""
        return self.offers[0].provider in SELLERS


def class_price(
    prices: Sequence[GpuPrice], kind: RentalKind = "on_demand", at: SellerClass = DEFAULT_CLASS
) -> ClassPrice | None:
    """Return the price of a GPU at a class of sellers; None if nobody offers it on these terms.

    Every offer counts, of any class, relative to the level of its seller. If all sellers are unknown, as in a user's
    own list, it is the median of their prices.
    """
    found = offers(prices, kind)
    known = tuple(price for price in found if price.provider in SELLERS)
    if not found:
        return None
    if not known:
        return ClassPrice(statistics.median(price.usd_per_hour for price in found), tuple(found), 0)
    gpu = statistics.fmean(math.log(price.usd_per_hour / SELLERS[price.provider].level) for price in known)
    there = statistics.fmean(math.log(each.level) for each in SELLERS.values() if each.kind == at)
    num_there = sum(SELLERS[price.provider].kind == at for price in known)
    return ClassPrice(round(math.exp(gpu + there), 2), known, num_there)


def dear_reservation(prices: Sequence[GpuPrice]) -> tuple[GpuPrice, GpuPrice] | None:
    """Return a reservation that costs more than the same seller asks without one, and that offer; None: none.

    Compares the newest prices.
    """
    for reserved in offers(prices, "reserved"):
        for price in offers(prices, "on_demand", reserved.provider):
            if reserved.usd_per_hour > price.usd_per_hour:
                return reserved, price
    return None


def listed_offers(prices: Sequence[GpuPrice]) -> str:
    """Return the available offers, for a remedy: ``on_demand (AWS, Lambda), spot (Nebius)``."""
    by_kind: dict[str, list[str]] = {}
    for price in prices:
        names = by_kind.setdefault(price.kind, [])
        if price.provider not in names:
            names.append(price.provider)
    return ", ".join(f"{kind} ({', '.join(names)})" for kind, names in by_kind.items()) or "nothing"
