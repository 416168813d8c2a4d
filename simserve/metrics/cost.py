"""What a run costs: dollars at the throughput reached, watts, joules and grams of CO2. Knows no price list.

A board that runs a step draws what that step is bound by: matrix products near the board limit, reading memory
less than half of it. Published: the prefill of large models reaches the board limit while decoding does not
(Patel et al., POLCA, arXiv:2308.12908; Splitwise, arXiv:2311.18677), and decoding drew 137 to 300 W on an H200 of
700 W (Ma et al., arXiv:2605.11999). `BUSY_SHARES` are rounded from those figures and fitted to nothing: an
estimate, not a measurement.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from simserve.metrics.statistics import ratio
from simserve.metrics.steady_state import Throughput
from simserve.units import SECONDS_PER_HOUR

_MILLION = 1e6
COST_KEYS = (
    "usd_per_hour",
    "usd_per_million_output_tokens",
    "usd_per_million_tokens",
    "usd_per_request",
    "tokens_per_usd",
    "requests_per_usd",
)
BUSY_SHARES: Mapping[str, float] = {
    "compute": 1.0,
    "weights": 0.36,
    "kv": 0.36,
    "communication": 0.36,
    "host": 0.1,
    "draft": 0.36,
}
"""Part of a step -> share of the span from idle to the board limit that it draws. Reading memory: 300 of 700 W on
an H200 that idles at 76 W. Communication and drafting: as reading memory. Host: clocks are up and the
cores wait, 137 W."""
_JOULES_PER_KWH = 3.6e6


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
    usd_per_second = usd_per_hour / SECONDS_PER_HOUR
    return {
        "usd_per_hour": usd_per_hour,
        "usd_per_million_output_tokens": ratio(usd_per_second * _MILLION, throughput.output_tokens),
        "usd_per_million_tokens": ratio(usd_per_second * _MILLION, throughput.tokens),
        "usd_per_request": ratio(usd_per_second, throughput.requests),
        "tokens_per_usd": ratio(throughput.tokens, usd_per_second),
        "requests_per_usd": ratio(throughput.requests, usd_per_second),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Where the electricity comes from.

    Attributes:
        usd_per_kwh: Dollars a kWh.
        grams_co2_per_kwh: Grams of CO2 a kWh.
        pue: Power of the site over that of its computers.
        host_watts_per_gpu: Power of the server beside its GPUs, a GPU's share.
    """

    usd_per_kwh: float
    grams_co2_per_kwh: float
    pue: float
    host_watts_per_gpu: float

    def site_watts(self, watts: float) -> float:
        """Return the power that the site draws for a GPU of ``watts``."""
        return (watts + self.host_watts_per_gpu) * self.pue


def board_watts(idle: float, board: float, busy_share: float, seconds_by_part: Mapping[str, float]) -> float:
    """Return the mean power of one board, watts.

    Args:
        idle: Power without work, watts.
        board: The most it draws, watts.
        busy_share: Share of the time with a step running.
        seconds_by_part: Where the time of the steps goes; only proportions matter.
    """
    total = sum(seconds_by_part.values())
    if not total or not busy_share:
        return idle
    share = sum(BUSY_SHARES[part] * seconds for part, seconds in seconds_by_part.items()) / total
    return idle + (board - idle) * busy_share * share


def energy(
    *,
    num_gpus: float,
    watts_per_gpu: float,
    grid: Grid,
    tokens_per_second: float,
    output_tokens_per_second: float,
    num_encoders: float = 0,
    watts_per_encoder: float = 0.0,
) -> dict[str, float]:
    """Return the energy of a run: power, energy a token, CO2 and dollars.

    ``encoder_watts`` are those of all boards of an encoder pool together, ``watts_mean`` those of the site.
    ``joules_per_token`` and ``grams_co2_per_thousand_tokens`` are over prompt and output tokens together,
    ``joules_per_output_token`` over output tokens alone; NaN where there are none.

    Args:
        num_gpus: GPUs that are on.
        watts_per_gpu: Mean power of one board.
        grid: Where the electricity comes from.
        tokens_per_second: Prompt and output tokens a second.
        output_tokens_per_second: Output tokens a second.
        num_encoders: GPUs of an encoder pool, which ``num_gpus`` leaves out; a mean where they come and go.
        watts_per_encoder: Mean power of one of their boards.
    """
    site_watts = num_gpus * grid.site_watts(watts_per_gpu) + num_encoders * grid.site_watts(watts_per_encoder)
    joules = ratio(site_watts, tokens_per_second)
    kwh_per_thousand = joules * 1000 / _JOULES_PER_KWH
    return {
        "watts_per_gpu": watts_per_gpu,
        "encoder_watts": num_encoders * watts_per_encoder,
        "watts_mean": site_watts,
        "joules_per_token": joules,
        "joules_per_output_token": ratio(site_watts, output_tokens_per_second),
        "kwh_per_million_tokens": kwh_per_thousand * 1000,
        "grams_co2_per_thousand_tokens": kwh_per_thousand * grid.grams_co2_per_kwh,
        "electricity_usd_per_hour": site_watts / 1000 * grid.usd_per_kwh,
        "pue": grid.pue,
        "host_watts_per_gpu": grid.host_watts_per_gpu,
        "carbon_g_per_kwh": grid.grams_co2_per_kwh,
        "electricity_usd_per_kwh": grid.usd_per_kwh,
    }
