"""The cost per token of a hosted model, and how fast it answers: one provider's list price, with date and source.

Knows prices, not traffic; `simserve.metrics.api_cost` multiplies the two.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from simserve.errors import ProfileError
from simserve.profiles import catalog
from simserve.profiles.price_dates import Date, is_past, newest
from simserve.units import PositiveSeconds
from simserve.validation import FrozenModel, read_valid

Usd = Annotated[float, Field(ge=0)]
_HOURS_PER_WEEK = 168
_Z95 = 1.6448536269514722  # 95th percentile of the standard normal distribution.


class TokenPrice(FrozenModel):
    """Dollars per million tokens."""

    input: Usd
    """Prompt tokens."""
    output: Usd
    """Generated tokens, reasoning included."""
    cached_input: Usd | None = None
    """Prompt tokens found in the provider's cache; absent: same price as other prompt tokens."""

    @property
    def cached(self) -> float:
        """Price of cached prompt tokens."""
        return self.input if self.cached_input is None else self.cached_input

    def times(self, factor: float) -> Self:
        """Return the price multiplied by a factor."""
        cached = None if self.cached_input is None else self.cached_input * factor
        return self.model_copy(
            update={"input": self.input * factor, "output": self.output * factor, "cached_input": cached}
        )


class PeakHours(FrozenModel):
    """Hours of a week in which a provider charges more."""

    factor: float = Field(gt=1)
    """Price in these hours over the price in the others."""
    hours_per_week: float = Field(gt=0, lt=_HOURS_PER_WEEK)
    """How many hours of a week they are."""
    source: str = Field(min_length=1)
    """Which hours they are, and where this was read."""

    @property
    def mean_factor(self) -> float:
        """Mean price of a load that is even over the week, over the price outside peak hours."""
        return 1.0 + (self.factor - 1.0) * self.hours_per_week / _HOURS_PER_WEEK


class PromptCaching(FrozenModel):
    """How a provider bills a prompt's beginning that an earlier prompt had too."""

    min_tokens: int = Field(ge=1)
    """Shorter prefixes are neither stored nor found."""
    step_tokens: int = Field(default=1, ge=1)
    """Prefixes are stored and found in multiples of this number of tokens."""
    lifetime: PositiveSeconds
    """Time for which a prefix is kept after its last use."""
    write_factor: float = Field(default=1.0, ge=1)
    """Price of tokens written to the cache, relative to other prompt tokens."""
    source: str = Field(min_length=1)
    """Where the rules were read."""

    def kept(self, tokens: float) -> int:
        """Return how many tokens of a prefix the cache stores."""
        return 0 if tokens < self.min_tokens else int(tokens) // self.step_tokens * self.step_tokens


class PromptTier(TokenPrice):
    """Price of a whole request whose prompt is longer than a limit."""

    above_prompt_tokens: int = Field(ge=1)
    """Prompts with more tokens than this pay this price for all their tokens."""


class VolumeDiscount(FrozenModel):
    """Discount on monthly spending beyond a sum."""

    above_usd_per_month: Usd
    """Spending beyond this sum, before any discount, gets the discount."""
    discount: float = Field(gt=0, lt=1)
    """Share of the price that is deducted."""


class ApiLatency(FrozenModel):
    """How fast a provider answers, as measured by somebody: typical latency, not a promise."""

    ttft: PositiveSeconds
    """Median time to first token."""
    ttft_p95: PositiveSeconds | None = None
    """Its 95th percentile; absent: not stated."""
    tokens_per_second: float = Field(gt=0)
    """Median tokens per second of one answer after the first token."""
    measured: str = Field(min_length=1)
    """Who measured, which model, with which requests."""
    date: Date
    """When: YYYY-MM-DD, YYYY-MM or YYYY."""
    source: str = Field(min_length=1)
    """Where this was read."""

    @model_validator(mode="after")
    def _check_percentile(self) -> Self:
        if self.ttft_p95 is not None and self.ttft_p95 < self.ttft:
            raise ValueError("has a ttft_p95 below its median ttft")
        return self

    @property
    def ttft_cv(self) -> float | None:
        """Coefficient of variation of the lognormal time with this median and 95th percentile; None: not stated."""
        return None if self.ttft_p95 is None else math.sqrt(math.expm1(self._sigma**2))

    @property
    def mean_ttft(self) -> float:
        """Mean of that time; the median if no percentile describes its spread."""
        return self.ttft * math.exp(self._sigma**2 / 2)

    @property
    def _sigma(self) -> float:
        return 0.0 if self.ttft_p95 is None else math.log(self.ttft_p95 / self.ttft) / _Z95


class Withdrawal(FrozenModel):
    """When a provider stops serving a model."""

    date: Date
    """The first day without it: YYYY-MM-DD, YYYY-MM or YYYY."""
    successor: str | None = None
    """Profile of what the provider recommends instead; absent: it recommends nothing that is in the catalogue."""
    source: str = Field(min_length=1)
    """Where this was read."""


class ApiProfile(FrozenModel):
    """A model behind an API: its cost per token, and how fast it answers if that was measured."""

    name: str = Field(min_length=1)
    """Catalogue name and file name."""
    provider: str = Field(min_length=1)
    """Who sells it."""
    model_id: str = Field(min_length=1)
    """The provider's name for the model."""
    description: str = Field(min_length=1)
    """One line by which a person recognises it."""
    weights: str | None = None
    """Model profile of the same weights, if they are open: what a deployment of your own can run."""
    price: TokenPrice
    """List price, dollars per million tokens; with peak hours: outside them."""
    peak_hours: PeakHours | None = None
    """Hours in which every price is higher, if the provider has such; a load is taken to be even over the week."""
    prompt_tiers: tuple[PromptTier, ...] = ()
    """Prices of long prompts, if the provider sets them; ascending."""
    prompt_caching: tuple[PromptCaching, ...] = ()
    """Offers to cache prompts: the cheapest for the traffic is used, which may be none. If absent, with a price of
    cached tokens: prefixes of any length, kept forever."""
    batch_discount: float | None = Field(default=None, gt=0, lt=1)
    """Discount for requests that may wait (batch interface); absent: no such offer is known."""
    volume_discounts: tuple[VolumeDiscount, ...] = ()
    """Discounts by monthly spending, if any; ascending."""
    latency: ApiLatency | None = None
    """How fast it answers; absent: no dated public measurement is on record."""
    withdrawn: Withdrawal | None = None
    """When it is no longer served; absent: no such date is known."""
    date: Date
    """When the price was seen: YYYY-MM-DD, YYYY-MM, or YYYY if no more is known."""
    source: str = Field(min_length=1)
    """Where the price was read."""

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        limits = [tier.above_prompt_tokens for tier in self.prompt_tiers]
        if limits != sorted(set(limits)):
            raise ValueError("prompt_tiers must ascend in above_prompt_tokens")
        if self.prompt_caching and self.price.cached_input is None:
            raise ValueError("has prompt_caching without a price.cached_input; add it, or leave prompt_caching out")
        sums = [each.above_usd_per_month for each in self.volume_discounts]
        if sums != sorted(set(sums)):
            raise ValueError("volume_discounts must ascend in above_usd_per_month")
        return self


def is_withdrawn(profile: ApiProfile, today: str | None) -> bool:
    """Return whether a model is certain to be no longer served at ``today``; None: the newest date of the catalogue."""
    if profile.withdrawn is None:
        return False
    judged_at = catalogue_date() if today is None else today
    return judged_at is not None and is_past(profile.withdrawn.date, judged_at)


def withdrawal_note(profile: ApiProfile, today: str | None) -> str | None:
    """Return that a model is no longer served, since when, and what is served instead; None: it is served."""
    gone = profile.withdrawn
    if gone is None or not is_withdrawn(profile, today):
        return None
    others = [] if profile.weights is None else [each.name for each in serving(profile.weights, today)]
    clauses = [f"{profile.name} is no longer served: {profile.provider} withdrew it on {gone.date}"]
    clauses += [] if gone.successor is None else [f"its successor there is {gone.successor}"]
    clauses += [f"the same weights are served as {', '.join(others)}"] if others else []
    return "; ".join(clauses)


def serving(model: str, today: str | None = None) -> list[ApiProfile]:
    """Return the APIs of the catalogue that serve a model's weights; a profile of them takes 3 ms to load."""
    named = [name for name in catalog.names("api") if model in catalog.find("api", name).read_text(encoding="utf-8")]
    return [each for each in map(load_api, named) if each.weights == model and not is_withdrawn(each, today)]


def load_api(name: str, relative_to: Path | None = None) -> ApiProfile:
    """Return the profile of a catalogue name or a path.

    Args:
        name: A catalogue name (``gpt-4o``) or the path of a profile file.
        relative_to: Folder in which a relative path is looked up first.

    Raises:
        ProfileError: There is no such profile, or the file is invalid; names file, key and remedy.
    """
    path = catalog.find("api", name, relative_to)
    profile = read_valid(ApiProfile, path)
    if path.stem == name and profile.name != name:
        rule = "must equal the name of the file"
        raise ProfileError(rule, file=path, key="name", value=profile.name, remedy=f"write {name}")
    return profile


def catalogue_date() -> str | None:
    """Return the newest date of all API prices available by name, against which their age is judged."""
    return newest(load_api(name).date for name in catalog.names("api"))
