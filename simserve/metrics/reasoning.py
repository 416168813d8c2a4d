"""What thinking before an answer costs its reader: time, tokens and dollars. Knows records, not what was thought."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.metrics.figures import ratio, rows_where
from simserve.metrics.latency import MS, RequestLatencies, describe
from simserve.sim.records import RequestRecords

REASONING_KEYS = (
    "ttfvt_ms",
    "thinking_tokens",
    "visible_tokens",
    "thinking_share",
    "num_without_answer",
    "usd_per_million_visible_tokens",
)


def reasoning_figures(
    records: RequestRecords,
    latencies: RequestLatencies,
    in_window: NDArray[np.bool_],
    usd_per_million_output_tokens: float,
) -> dict[str, Any]:
    """Return what completed requests of the window thought; None each where nobody thinks.

    ``ttfvt_ms``: statistics of the time to the first visible token, over the requests that have one.
    ``thinking_tokens visible_tokens thinking_share``: tokens before answers and of them, and the share of the former.
    ``num_without_answer``: requests whose limit of tokens was used up by thinking.
    ``usd_per_million_visible_tokens``: the dollars of all output tokens, on the visible ones alone.

    Args:
        records: One row a request.
        latencies: Seconds, one row a request.
        in_window: Whether the request counts, shape [requests].
        usd_per_million_output_tokens: Of thinking and answers together.
    """
    if records.thinking_tokens is None:
        return dict.fromkeys(REASONING_KEYS)
    rows = rows_where(in_window & latencies.is_completed)
    thought, generated = records.thinking_tokens[rows], records.output_tokens[rows]
    thinking, visible = int(thought.sum()), int((generated - thought).sum())
    share = ratio(thinking, thinking + visible)
    shown = usd_per_million_output_tokens / (1.0 - share) if visible else math.nan
    return {
        "ttfvt_ms": {name: value * MS for name, value in describe(latencies.ttfvt[rows]).items()},
        "thinking_tokens": thinking,
        "visible_tokens": visible,
        "thinking_share": share,
        "num_without_answer": int(np.count_nonzero(thought == generated)),
        "usd_per_million_visible_tokens": shown,
    }
