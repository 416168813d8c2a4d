"""Dollars of tokens behind an API: price lists times traffic. Knows no GPU and no month's end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simserve.profiles.api import ApiLatency, PromptCaching, PromptTier, TokenPrice, VolumeDiscount

if TYPE_CHECKING:
    from simserve.profiles.api import ApiProfile

_MILLION = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiPrices:
    """What an API charges.

    Attributes:
        name: How results call it.
        price: Dollars a million tokens.
        prompt_tiers: Prices of long prompts, ascending.
        prompt_caching: Offers to cache prompts; empty: where cached tokens have a price, prefixes of any length.
        batch_discount: Share taken off for requests that may wait; None: no such offer.
        volume_discounts: Discounts by the spending of a month, ascending.
        date: When the price was seen; None for a price of the user's own.
        source: Where it was read.
        latency: How fast it answers; None: not known.
    """

    name: str
    price: TokenPrice
    prompt_tiers: Sequence[PromptTier] = ()
    prompt_caching: Sequence[PromptCaching] = ()
    batch_discount: float | None = None
    volume_discounts: Sequence[VolumeDiscount] = ()
    date: str | None = None
    source: str = "given"
    latency: ApiLatency | None = None

    @classmethod
    def of(cls, profile: ApiProfile) -> ApiPrices:
        """Return the prices of a profile."""
        return cls(
            name=profile.name,
            price=profile.price,
            prompt_tiers=profile.prompt_tiers,
            prompt_caching=profile.prompt_caching,
            batch_discount=profile.batch_discount,
            volume_discounts=profile.volume_discounts,
            date=profile.date,
            source=profile.source,
            latency=profile.latency,
        )

    def tokens_usd(
        self,
        prompt_tokens: ArrayLike,
        output_tokens: ArrayLike,
        cached_tokens: ArrayLike = 0.0,
        written_tokens: ArrayLike = 0.0,
        write_factor: float = 1.0,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the dollars of prompts and of answers, one each a request, before any discount.

        Args:
            prompt_tokens: Tokens of each prompt, cached and written ones included.
            output_tokens: Tokens of each answer.
            cached_tokens: Tokens of each prompt that the API's cache holds.
            written_tokens: Tokens of each prompt that are put into it.
            write_factor: Price of those over that of other prompt tokens.
        """
        prompt = np.atleast_1d(np.asarray(prompt_tokens, dtype=np.float64))
        output, cached, written = (
            np.broadcast_to(np.asarray(each, dtype=np.float64), prompt.shape)
            for each in (output_tokens, cached_tokens, written_tokens)
        )
        full = prompt - cached + written * (write_factor - 1)
        price = self.price
        if not self.prompt_tiers:
            return (full * price.input + cached * price.cached) / _MILLION, output * price.output / _MILLION
        limits = [tier.above_prompt_tokens for tier in self.prompt_tiers]
        tier = np.searchsorted(np.asarray(limits, dtype=np.float64), prompt, side="left")
        prices: list[TokenPrice] = [self.price, *self.prompt_tiers]
        per_input = np.array([each.input for each in prices])[tier]
        per_cached = np.array([each.cached for each in prices])[tier]
        per_output = np.array([each.output for each in prices])[tier]
        return (full * per_input + cached * per_cached) / _MILLION, output * per_output / _MILLION

    def batch_factor(self, batch_share: float) -> float:
        """Return what is left of the price when a share of the requests takes the batch discount."""
        return 1 - batch_share * (self.batch_discount or 0.0)

    def net(self, gross: float) -> float:
        """Return what a month's list-price dollars cost after the volume discounts."""
        discounted = 0.0
        for each, upper in zip(self.volume_discounts, self._upper_sums(), strict=True):
            discounted += each.discount * max(0.0, min(gross, upper) - each.above_usd_per_month)
        return gross - discounted

    def gross(self, net: float) -> float:
        """Return the list-price dollars of a month that cost ``net`` after the volume discounts."""
        spent, gross = net, 0.0
        edges = [each.above_usd_per_month for each in self.volume_discounts]
        discounts = [0.0, *(each.discount for each in self.volume_discounts)]
        for lower, upper, discount in zip([0.0, *edges], [*edges, np.inf], discounts, strict=True):
            step = min(spent, (upper - lower) * (1 - discount))
            gross += step / (1 - discount)
            spent -= step
        return gross

    def _upper_sums(self) -> list[float]:
        return [*(each.above_usd_per_month for each in self.volume_discounts[1:]), np.inf][: len(self.volume_discounts)]


def latency_figures(api: ApiPrices) -> dict[str, Any] | None:
    """Return how fast an API answers, by whom and when that was measured; None where it is not known."""
    found = api.latency
    if found is None:
        return None
    return {
        "median_ttft_ms": found.ttft * 1e3,
        "p95_ttft_ms": None if found.ttft_p95 is None else found.ttft_p95 * 1e3,
        "tokens_per_second": found.tokens_per_second,
        "measured": found.measured,
        "date": found.date,
        "source": found.source,
    }
