"""What went to an API instead of the replicas, and what that cost."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from simserve.metrics.gateway import served_by
from simserve.metrics.latency import MS
from simserve.metrics.prompt_caching import request_bills
from simserve.metrics.steady_state import Window
from simserve.sim.records import API, COMPLETED, RequestRecords

if TYPE_CHECKING:
    from simserve.metrics.api_cost import ApiPrices
    from simserve.sim.gateway import FrontTotals
    from simserve.workload.requests import RequestSpecs

_SECONDS_PER_HOUR = 3600.0


def overflow_figures(
    records: RequestRecords,
    window: Window,
    prices: ApiPrices | None,
    front: FrontTotals | None = None,
    specs: RequestSpecs | None = None,
) -> dict[str, Any]:
    """Return ``api requests share usd_per_hour limited p95_ttft_ms``; None each without an overflow.

    ``requests`` and their ``share`` of the completed ones are over the whole run, as are ``limited``, the times that
    the API answered 429, and ``p95_ttft_ms`` of what it answered; the dollars are over those that were completed in the
    measured window, at list price. With ``specs``, which tell what prompts have in common, the API's prompt cache is
    used as `simserve.metrics.prompt_caching` has it: it knows the requests that it gets, and no others.
    """
    if prices is None:
        return dict.fromkeys(("api", "requests", "share", "usd_per_hour", "limited", "p95_ttft_ms"))
    went = served_by(records, API)
    finish = records.finish_time
    paid = went & (finish >= window.start) & (finish <= window.end)
    if specs is None:
        prompts, answers = prices.tokens_usd(records.prompt_tokens[paid], records.output_tokens[paid])
    else:
        bills = request_bills(prices, records, specs, np.flatnonzero(paid), is_sent=went)
        prompts, answers = bills.input_usd, bills.output_usd
    hours = window.seconds / _SECONDS_PER_HOUR
    count = int(np.count_nonzero(went))
    ttft = (records.first_token_time - records.arrival_time)[went]
    return {
        "api": prices.name,
        "requests": count,
        "share": overflow_share(records),
        "usd_per_hour": float(prompts.sum() + answers.sum()) / hours if hours > 0 else math.nan,
        "limited": 0 if front is None else front.limited,
        "p95_ttft_ms": MS * float(np.percentile(ttft, 95)) if len(ttft) else math.nan,
    }


def overflow_share(records: RequestRecords) -> float:
    """Return the share of the completed requests that the API answered; NaN without one."""
    completed = int(np.count_nonzero(records.status == COMPLETED))
    return int(np.count_nonzero(served_by(records, API))) / completed if completed else math.nan
