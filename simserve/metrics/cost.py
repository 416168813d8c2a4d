"""Dollars of one deployment at the throughput reached. Knows GPU hours and rates, not whose price it is."""

from __future__ import annotations

import math

from simserve.metrics.figures import ratio
from simserve.metrics.throughput import Throughput

_SECONDS_PER_HOUR = 3600.0
_MILLION = 1e6
COST_KEYS = (
    "usd_per_hour",
    "usd_per_million_output_tokens",
    "usd_per_million_tokens",
    "usd_per_request",
    "tokens_per_usd",
    "requests_per_usd",
)


def cost(
    *,
    num_gpus: float,
    gpu_hour_usd: float | None,
    throughput: Throughput,
    electricity_usd_per_hour: float = 0.0,
    api_usd_per_hour: float = 0.0,
    tiers_usd_per_hour: float = 0.0,
    encoders_usd_per_hour: float = 0.0,
) -> dict[str, float]:
    """Return the dollars of the run, every key of `COST_KEYS`; NaN without a price or any work.

    Every GPU is paid for the whole time, busy or not. ``usd_per_million_output_tokens`` puts all of it on the
    generated tokens; ``usd_per_million_tokens`` and ``tokens_per_usd`` count prompt tokens too.

    Args:
        num_gpus: GPUs that are paid for; a mean where replicas come and go.
        gpu_hour_usd: Price of one GPU for an hour; None if there is none.
        electricity_usd_per_hour: What electricity costs on top.
        api_usd_per_hour: What an API costs that serves a part of the requests.
        tiers_usd_per_hour: What KV tiers cost that are paid for apart.
        encoders_usd_per_hour: What the GPUs of an encoder pool cost, which ``num_gpus`` leaves out; NaN: no price.
        throughput: Rates over the measured window.
    """
    if gpu_hour_usd is None:
        return dict.fromkeys(COST_KEYS, math.nan)
    usd_per_hour = num_gpus * gpu_hour_usd + electricity_usd_per_hour + api_usd_per_hour
    usd_per_hour += tiers_usd_per_hour + encoders_usd_per_hour
    usd_per_second = usd_per_hour / _SECONDS_PER_HOUR
    return {
        "usd_per_hour": usd_per_hour,
        "usd_per_million_output_tokens": ratio(usd_per_second * _MILLION, throughput.output_tokens),
        "usd_per_million_tokens": ratio(usd_per_second * _MILLION, throughput.tokens),
        "usd_per_request": ratio(usd_per_second, throughput.requests),
        "tokens_per_usd": ratio(throughput.tokens, usd_per_second),
        "requests_per_usd": ratio(throughput.requests, usd_per_second),
    }
