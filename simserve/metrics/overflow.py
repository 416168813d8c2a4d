"""What went to an API instead of the replicas, and what that cost."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.metrics.api_cost import ApiPrices
from simserve.metrics.steady_state import Window
from simserve.sim.records import COMPLETED, RequestRecords

_SECONDS_PER_HOUR = 3600.0


def overflow_figures(records: RequestRecords, window: Window, prices: ApiPrices | None) -> dict[str, Any]:
    """Return ``api requests share usd_per_hour``; None each without an overflow.

    ``requests`` and their ``share`` of the completed ones are over the whole run, the dollars over those that were
    completed in the measured window, at list price.
    """
    if prices is None:
        return dict.fromkeys(("api", "requests", "share", "usd_per_hour"))
    went = served_elsewhere(records)
    finish = records.finish_time
    paid = went & (finish >= window.start) & (finish <= window.end)
    prompts, answers = prices.tokens_usd(records.prompt_tokens[paid], records.output_tokens[paid])
    hours = window.seconds / _SECONDS_PER_HOUR
    count = int(np.count_nonzero(went))
    return {
        "api": prices.name,
        "requests": count,
        "share": overflow_share(records),
        "usd_per_hour": float(prompts.sum() + answers.sum()) / hours if hours > 0 else math.nan,
    }


def overflow_share(records: RequestRecords) -> float:
    """Return the share of the completed requests that no replica answered; NaN without one."""
    completed = int(np.count_nonzero(records.status == COMPLETED))
    return int(np.count_nonzero(served_elsewhere(records))) / completed if completed else math.nan


def served_elsewhere(records: RequestRecords) -> NDArray[np.bool_]:
    """Return which requests were answered by no replica."""
    elsewhere: NDArray[np.bool_] = (records.status == COMPLETED) & (records.replica_id < 0)
    return elsewhere
