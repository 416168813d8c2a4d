"""Dollars of tokens at an API: price lists times traffic, and what a prompt cache saves. Knows no GPU.

The prompt cache is the API's: it depends on what requests have in common and when they are sent, not on what a
self-hosted server finds in its cache.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simserve.profiles.api import (
    ApiLatency,
    ApiProfile,
    PeakHours,
    PromptCaching,
    PromptTier,
    TokenPrice,
    VolumeDiscount,
)
from simserve.sim.records import RequestRecords
from simserve.workload.prefixes import PrefixSegments
from simserve.workload.requests import RequestSpecs

Tokens = NDArray[np.int64]
_MILLION = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiPrices:
    """What an API charges."""

    name: str  # Its name in results.
    price: TokenPrice  # Dollars a million tokens; with peak hours: the mean of a week.
    prompt_tiers: Sequence[PromptTier] = ()  # Prices of long prompts, ascending.
    prompt_caching: Sequence[PromptCaching] = ()
    """Offers to cache prompts; empty: prefixes of any length, if cached tokens have a price."""
    batch_discount: float | None = None
    """Discount for requests that may wait, as a share; None without such an offer."""
    volume_discounts: Sequence[VolumeDiscount] = ()  # Discounts by the spending in a month, ascending.
    date: str | None = None  # When the price was seen; None for a price given by the user.
    source: str = "given"  # Where it was read.
    latency: ApiLatency | None = None  # How fast it answers; None if unknown.
    peak_hours: PeakHours | None = None  # Hours in which the provider charges more; None: none.

    @classmethod
    def of(cls, profile: ApiProfile) -> ApiPrices:
        """Return the prices of a profile, those of a load that is even over the week where hours differ."""
        factor = 1.0 if profile.peak_hours is None else profile.peak_hours.mean_factor
        values = {each.name: getattr(profile, each.name) for each in fields(cls)}
        if factor > 1:
            tiers = tuple(tier.times(factor) for tier in profile.prompt_tiers)
            values |= {"price": profile.price.times(factor), "prompt_tiers": tiers}
        return cls(**values)

    def tokens_usd(
        self,
        prompt_tokens: ArrayLike,
        output_tokens: ArrayLike,
        cached_tokens: ArrayLike = 0.0,
        written_tokens: ArrayLike = 0.0,
        write_factor: float = 1.0,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the dollars of the prompt and of the answer of each request, before any discount.

        Args:
            prompt_tokens: Tokens of each prompt, cached and written ones included.
            cached_tokens: Tokens of each prompt that the API's cache holds.
            written_tokens: Tokens of each prompt that are written to it.
            write_factor: Price of written tokens over that of other prompt tokens.
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
        """Return the factor on the price if a share of the requests takes the batch discount."""
        return 1 - batch_share * (self.batch_discount or 0.0)

    def net(self, gross: float) -> float:
        """Return the cost of a month's list-price dollars after the volume discounts."""
        discounted = 0.0
        edges = [*(each.above_usd_per_month for each in self.volume_discounts[1:]), np.inf]
        for each, upper in zip(self.volume_discounts, edges, strict=False):
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


def peak_figures(api: ApiPrices) -> dict[str, Any] | None:
    """Return the hours in which an API charges more and the mean that a load even over the week pays; None: none."""
    peak = api.peak_hours
    if peak is None:
        return None
    return {"factor": peak.factor, "hours_per_week": peak.hours_per_week, "mean_factor": peak.mean_factor}


def latency_figures(api: ApiPrices) -> dict[str, Any] | None:
    """Return how fast an API answers, and who measured that when; None if unknown."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestBills:
    """Cost of each of some requests at an API."""

    input_usd: NDArray[np.float64]  # Dollars of its prompt, before any discount.
    output_usd: NDArray[np.float64]  # Dollars of its answer.
    cached_tokens: Tokens  # Tokens of its prompt that were found in the API's cache.
    caching: PromptCaching | None = None
    """The caching offer that was chosen; None if prompts are not cached, or the provider states no rules."""

    @property
    def usd(self) -> float:
        """Dollars of all requests."""
        return float(self.input_usd.sum() + self.output_usd.sum())


def request_bills(
    prices: ApiPrices,
    records: RequestRecords,
    specs: RequestSpecs,
    rows: Tokens,
    is_sent: NDArray[np.bool_] | None = None,
) -> RequestBills:
    """Return what some requests of a run would have cost at an API, with the caching that is cheapest for all of them.

    Args:
        prices: What the API charges.
        records: What happened to all requests; the API gets them at the same times.
        specs: The requests drawn, for what their prompts have in common.
        rows: Which of the records are billed.
        is_sent: Which of the records the API gets at all, whose prefixes it may find; None: all.
    """
    prompts, answers = records.prompt_tokens[rows], records.output_tokens[rows]
    inputs, outputs = prices.tokens_usd(prompts, answers)
    plain = RequestBills(input_usd=inputs, output_usd=outputs, cached_tokens=np.zeros(len(rows), dtype=np.int64))
    if specs.prefixes is None or prices.price.cached_input is None:
        return plain
    prefixes = _of_records(specs, records)
    sent_at = records.arrival_time if is_sent is None else np.where(is_sent, records.arrival_time, np.nan)
    bills = [plain]
    for offer in prices.prompt_caching or (None,):
        read, written = (each[rows] for each in cached_prefixes(prefixes, records.prompt_tokens, sent_at, offer))
        factor = 1.0 if offer is None else offer.write_factor
        inputs, outputs = prices.tokens_usd(prompts, answers, read, written, factor)
        bills.append(RequestBills(input_usd=inputs, output_usd=outputs, cached_tokens=read, caching=offer))
    return min(bills, key=lambda each: each.usd)


def cached_prefixes(
    prefixes: PrefixSegments, prompt_tokens: Tokens, arrival_time: NDArray[np.float64], offer: PromptCaching | None
) -> tuple[Tokens, Tokens]:
    """Return how many tokens of each prompt an API's cache holds when it arrives, and how many are written to it.

    A request finds the longest prefix whose parts were all part of a prompt within the lifetime. It writes to the cache
    what another request of the run also starts with: clients who pay for writes mark nothing else. Others can find a
    prompt as soon as it has arrived.

    Args:
        prefixes: What the tokens of each request are.
        arrival_time: When each is sent, seconds; NaN if never.
        offer: The rules; None: prefixes of any length, kept forever.
    """
    cache = _Cache(offer, np.bincount(prefixes.segments) > 1)
    read, written = np.zeros(len(prompt_tokens), dtype=np.int64), np.zeros(len(prompt_tokens), dtype=np.int64)
    offsets, segments, ends = prefixes.offsets.tolist(), prefixes.segments.tolist(), prefixes.ends.tolist()
    for row in np.argsort(arrival_time, kind="stable").tolist():
        now = float(arrival_time[row])
        if math.isnan(now):
            break
        entries = range(offsets[row], offsets[row + 1])
        parts = [(segments[entry], ends[entry]) for entry in entries]
        read[row], written[row] = cache.take(parts, int(prompt_tokens[row]), now)
    return read, written


@dataclass(slots=True)
class _Cache:
    """What an API keeps: segment -> (end of the tokens kept of it, time of its last use)."""

    offer: PromptCaching | None
    is_shared: NDArray[np.bool_]
    kept: dict[int, tuple[int, float]] = field(default_factory=dict)

    def take(self, parts: list[tuple[int, int]], prompt: int, now: float) -> tuple[int, int]:
        """Return the number of leading tokens of a prompt that are found, and of further ones that are written."""
        found = shared = 0
        is_found = True
        for segment, end in parts:
            until = min(end, prompt)
            has, used = self.kept.get(segment, (0, -math.inf))
            if is_found and self._is_alive(used, now):
                found = min(max(has, found), until)
            is_found = is_found and found == end
            if self.is_shared[segment]:
                shared = until
            self.kept[segment] = (max(until, has) if self._is_alive(used, now) else until, now)
            if end >= prompt:
                break
        return self._whole(found), max(self._whole(shared) - self._whole(found), 0)

    def _is_alive(self, used: float, now: float) -> bool:
        return now - used <= (math.inf if self.offer is None else self.offer.lifetime) and used > -math.inf

    def _whole(self, tokens: int) -> int:
        return tokens if self.offer is None else self.offer.kept(tokens)


def _of_records(specs: RequestSpecs, records: RequestRecords) -> PrefixSegments:
    """Return what the requests have in common, in the order of the records, which is that of arrival.

    If the two orders differ, a request is identified by its conversation, its turn and its lengths.
    """
    assert specs.prefixes is not None  # the caller has looked
    if not specs.sends_out_of_order and len(specs) == len(records):
        return specs.prefixes
    theirs, ours = _keys(specs), _keys(records)
    rows_of: dict[tuple[int, ...], list[int]] = {}
    for row in range(len(specs) - 1, -1, -1):
        rows_of.setdefault(theirs[row], []).append(row)
    rows = [rows_of[key].pop() for key in ours]
    return specs.prefixes.of_rows(np.array(rows, dtype=np.int64))


def _keys(requests: RequestSpecs | RequestRecords) -> list[tuple[int, ...]]:
    """Return what identifies each request in both tables; answers may be cut, prompts are not."""
    columns = [each for each in (requests.session, requests.turn) if each is not None] + [requests.prompt_tokens]
    return list(zip(*(column.tolist() for column in columns), strict=True))
