"""What an API with a prompt cache charges for the requests of a run: which prefixes it finds, and which it is to keep.

Knows what requests have in common and when they are sent, not what a server of one's own finds in its cache.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simserve.metrics.api_cost import ApiPrices
from simserve.profiles.api import PromptCaching
from simserve.sim.records import RequestRecords
from simserve.workload.prefixes import PrefixSegments
from simserve.workload.requests import RequestSpecs

Tokens = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestBills:
    """What each of some requests costs at an API.

    Attributes:
        input_usd: Dollars of its prompt, before any discount.
        output_usd: Dollars of its answer.
        cached_tokens: Tokens of its prompt that were found in the API's cache.
        caching: The offer that was taken; None: prompts are not cached, or the provider states no rules.
    """

    input_usd: NDArray[np.float64]
    output_usd: NDArray[np.float64]
    cached_tokens: Tokens
    caching: PromptCaching | None = None

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
    """Return what some requests of a run would have cost at an API, cached as is cheapest for all of them.

    Args:
        prices: What the API charges.
        records: What happened to all requests; the API gets them at the same times.
        specs: What arrived, for what the prompts have in common.
        rows: Which of the records are billed.
        is_sent: Which of the records the API gets at all, and so may find the prefixes of; None: every one.
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
    """Return how many tokens of each prompt an API's cache holds when it arrives, and how many it is given to keep.

    A request finds the longest prefix whose parts were all part of a prompt within the lifetime, and gives the cache
    what another request of the run begins with, too: who caches at a price marks nothing else. A prompt is there for
    others as soon as it has arrived.

    Args:
        prefixes: What the tokens of each request are.
        prompt_tokens: Tokens of each prompt.
        arrival_time: When each is sent, seconds; NaN: never.
        offer: The rules; None: prefixes of any length, kept for good.
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
    """What an API keeps: segment -> (the token before which what it has of it ends, when it was used last)."""

    offer: PromptCaching | None
    is_shared: NDArray[np.bool_]
    kept: dict[int, tuple[int, float]] = field(default_factory=dict)

    def take(self, parts: list[tuple[int, int]], prompt: int, now: float) -> tuple[int, int]:
        """Return the tokens of a prompt that are found, and those that are put there, from the first one on."""
        found = shared = 0
        is_found = True
        for segment, end in parts:
            until = min(end, prompt)
            has, used = self.kept.get(segment, (0, -math.inf))
            if is_found and self._lives(used, now):
                found = min(max(has, found), until)
            is_found = is_found and found == end
            if self.is_shared[segment]:
                shared = until
            self.kept[segment] = (max(until, has) if self._lives(used, now) else until, now)
            if end >= prompt:
                break
        return self._whole(found), max(self._whole(shared) - self._whole(found), 0)

    def _lives(self, used: float, now: float) -> bool:
        return now - used <= (math.inf if self.offer is None else self.offer.lifetime) and used > -math.inf

    def _whole(self, tokens: int) -> int:
        return tokens if self.offer is None else self.offer.kept(tokens)


def _of_records(specs: RequestSpecs, records: RequestRecords) -> PrefixSegments:
    """Return what the requests have in common, in the order of the records, which is that of arrival.

    Where the two orders differ, a request is known by its conversation, its turn and its lengths.
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
    """Return what a request is known by in both tables; answers may be cut, prompts are not."""
    columns = [each for each in (requests.session, requests.turn) if each is not None] + [requests.prompt_tokens]
    return list(zip(*(column.tolist() for column in columns), strict=True))
