"""What a run costs: from the prices in a scenario and GPU-hours to dollars, watts, joules and grams of CO2.

The scenario chooses the offer, its provider and its terms; the hardware profile has the prices to choose from.

The power of a board depends on what limits the running step: matrix products draw close to the board limit, reading
memory less than half of it. Published: the prefill of large models reaches the board limit while decoding does not
(Patel et al., POLCA, arXiv:2308.12908; Splitwise, arXiv:2311.18677), and decoding drew 137 to 300 W on an H200 of 700 W
(Ma et al., arXiv:2605.11999). `BUSY_SHARES` are rounded from those figures and not fitted to anything: an estimate, not
a measurement.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from simserve.errors import ScenarioError
from simserve.metrics.throughput import Throughput, ratio
from simserve.profiles.gpu_prices import (
    GpuPrice,
    RentalKind,
    SellerClass,
    class_price,
    listed_offers,
    offers,
    seller_class,
)
from simserve.profiles.hardware import HardwareProfile
from simserve.units import HOURS_PER_DAY, HOURS_PER_MONTH, MONTHS_PER_YEAR, SECONDS_PER_HOUR, Watts
from simserve.validation import FrozenModel

Purchase = Literal["on_demand", "reserved", "spot", "owned"]
Usd = Annotated[float, Field(ge=0)]
Fall = Annotated[float, Field(ge=-1, lt=1)]
PUE = 1.3
"""Power usage effectiveness where none is given: an assumption between new sites (1.1 to 1.2) and the mean of all
sites, 1.56 (Uptime Institute, Global Data Center Survey 2024)."""
ELECTRICITY_USD_PER_KWH = 0.08
"""Dollars a kWh where none are given: about the mean of US industry in 2024, 8.1 cents (EIA, Electric Power
Monthly, table 5.3)."""
CARBON_G_PER_KWH = 473.0
"""Grams of CO2 a kWh where none are given: the world mean of 2024 (Ember, Global Electricity Review 2025)."""
_TERMS = {"on_demand": "on-demand", "reserved": "reserved", "spot": "spot"}

_MILLION = 1e6
COST_KEYS = (
    *("usd_per_hour", "usd_per_million_output_tokens", "usd_per_million_tokens"),
    *("usd_per_request", "tokens_per_usd", "requests_per_usd"),
)
BUSY_SHARES: Mapping[str, float] = {
    "compute": 1.0,
    "weights": 0.36,
    "kv": 0.36,
    "communication": 0.36,
    "host": 0.1,
    "draft": 0.36,
}
"""Part of a step -> share of the span from idle to the board limit that it draws. Reading memory: 300 of 700 W on an
H200 that idles at 76 W. Communication and drafting: like reading memory. Host: clocks are high and the cores wait, 137
W."""
_JOULES_PER_KWH = 3.6e6


class OwnedSpec(FrozenModel):
    """GPUs that are bought: their price is spread evenly over the years they are used."""

    gpu_usd: Annotated[float, Field(gt=0)] | None = None
    """Dollars for one GPU with its share of the server. Absent: the purchase price of the hardware profile."""
    years: Annotated[float, Field(gt=0, le=20)] = 4.0
    """Years of use, of twelve months of 720 hours."""
    residual_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the price that a sale brings at the end."""
    hosting_usd_per_gpu_month: Usd = 0.0
    """Dollars a month and GPU for space, network and repairs; electricity is counted by itself."""


class DailySpec(FrozenModel):
    """How traffic varies over 24 hours. `daily: {}` is a wave like that of a public chat service."""

    hourly: tuple[Annotated[float, Field(ge=0)], ...] | None = None
    """24 numbers in proportion to the traffic of each hour. Absent: one wave a day with the two ratios below."""
    peak_to_mean: Annotated[float, Field(ge=1, le=100)] | None = None
    """Traffic of the busiest hour over the mean. Absent: 1.7."""
    peak_to_trough: Annotated[float, Field(ge=1, le=1e6)] | None = None
    """Traffic of the busiest hour over that of the quietest. Absent: 3.3."""
    rate_is: Literal["peak", "mean"] = "peak"
    """Whether the scenario's own rate is that of the busiest hour, which the fleet must sustain, or the mean."""

    @field_validator("hourly")
    @classmethod
    def _check_hours(cls, hourly: tuple[float, ...] | None) -> tuple[float, ...] | None:
        if hourly is not None and (len(hourly) != HOURS_PER_DAY or not any(hourly)):
            raise ValueError(f"must be {HOURS_PER_DAY} numbers, not all of them 0")
        return hourly

    @model_validator(mode="after")
    def _check_one_shape(self) -> Self:
        if self.hourly is not None and (self.peak_to_mean is not None or self.peak_to_trough is not None):
            raise ValueError("has hourly and also peak_to_mean or peak_to_trough; keep one of the two")
        return self


class PricingSpec(FrozenModel):
    """What the deployment costs, and what it is compared with."""

    gpu_hour_usd: Usd | None = None
    """Dollars a GPU-hour. Absent: the hardware profile's own price, named in the result."""
    purchase: Purchase | None = None
    """Terms: `on_demand` (as if absent), `reserved`, `spot`, or `owned`, which is bought and written off."""
    provider: Annotated[str, Field(min_length=1)] | None = None
    """Whose price: a provider named in the hardware profile, or a class of providers with a fitted price:
    `specialised cloud` (as if absent), `hyperscaler` or `marketplace`."""
    owned: OwnedSpec | None = None
    """Price and years of GPUs that are bought; only with `purchase: owned`."""
    electricity_usd_per_kwh: Usd | None = None
    """Dollars a kWh; charged for owned GPUs alone, a rented one includes it. Absent: 0.08."""
    pue: Annotated[float, Field(ge=1, le=5)] | None = None
    """Power of the whole site over that of its computers. Absent: 1.3."""
    host_watts_per_gpu: Watts | None = None
    """Power of the rest of the server, per GPU. Absent: none, and figures cover the boards alone."""
    carbon_g_per_kwh: Annotated[float, Field(ge=0)] | None = None
    """Grams of CO2 a kWh of the grid. Absent: 473, the world mean of 2024."""
    api: str | None = None
    """API that `simserve cost` compares with: a name that `simserve apis` lists, or the path of a profile file."""
    batch_share: Annotated[float, Field(ge=0, le=1)] | None = None
    """Share of the requests that could take the API's batch discount. Absent: none."""
    operations_hours_per_month: Usd | None = None
    """Hours a month that engineers spend on running the deployment."""
    engineer_usd_per_hour: Usd | None = None
    """Dollars for one hour of an engineer."""
    platform_usd_per_month: Usd | None = None
    """Dollars a month for what runs besides the GPUs: gateway, monitoring, storage."""
    spare_replicas: Annotated[int, Field(ge=0, le=1000)] | None = None
    """Replicas paid for in addition to those that serve, in case one fails. Absent: none."""
    daily: DailySpec | None = None
    """How traffic varies over the day, for `simserve cost`. Absent: the same all day."""
    api_price_fall_per_year: Fall | None = None
    """Share by which the API's price falls in a year; negative if it rises. Absent: 0.3."""
    gpu_price_fall_per_year: Fall | None = None
    """Share by which the price of a rented GPU-hour falls in a year. Absent: 0.2; owned GPUs do not get cheaper."""
    traffic_growth_per_year: Annotated[float, Field(ge=-1, le=100)] | None = None
    """Share by which traffic grows in a year. Absent: none."""

    @model_validator(mode="after")
    def _check_terms(self) -> Self:
        terms = {"purchase": self.purchase, "provider": self.provider, "owned": self.owned}
        given = [name for name, value in terms.items() if value is not None]
        if self.gpu_hour_usd is not None and given:
            raise ValueError(f"has gpu_hour_usd and also {' and '.join(given)}; keep one of the two")
        if self.owned is not None and self.purchase != "owned":
            raise ValueError("has owned without purchase: owned; add it, or leave owned out")
        if self.purchase == "owned" and self.provider is not None:
            raise ValueError("has a provider, and what is owned is rented from nobody; leave provider out")
        return self

    @model_validator(mode="after")
    def _check_operations(self) -> Self:
        if (self.operations_hours_per_month is None) != (self.engineer_usd_per_hour is None):
            raise ValueError("needs both operations_hours_per_month and engineer_usd_per_hour, or none of them")
        if self.batch_share is not None and self.api is None:
            raise ValueError("has a batch_share without an api that it is sent to")
        return self

    @property
    def operations_usd_per_month(self) -> float:
        """Dollars a month for the hours of engineers; 0 if none are given."""
        return (self.operations_hours_per_month or 0.0) * (self.engineer_usd_per_hour or 0.0)


@dataclass(frozen=True, slots=True)
class GpuHour:
    """What one GPU costs for an hour."""

    usd: float | None  # Dollars, without electricity where that is paid separately; None if no price is known.
    source: str  # Where the price comes from, in words.
    pays_electricity: bool = False  # Whether electricity comes on top: owned GPUs.
    date: str | None = None  # When the newest of the prices was seen; None for a price given in the scenario.


def with_link(price: GpuHour, usd_per_gpu_hour: float | None) -> GpuHour:
    """Return the price of a GPU plus its share of a separately billed link; unchanged without such a price."""
    if not usd_per_gpu_hour or price.usd is None:
        return price
    source = f"{price.source}, and ${usd_per_gpu_hour:g} for the link between the pools"
    return replace(price, usd=price.usd + usd_per_gpu_hour, source=source)


def gpu_hour(pricing: PricingSpec, hardware: HardwareProfile) -> GpuHour:
    """Return what one GPU costs for an hour on the scenario's terms.

    Raises:
        ScenarioError: The hardware profile has no price on these terms or from this provider; the message lists those
            it has.
    """
    if pricing.gpu_hour_usd is not None:
        return GpuHour(pricing.gpu_hour_usd, "scenario")
    if pricing.purchase == "owned":
        return _owned(pricing.owned or OwnedSpec(), hardware)
    kind: RentalKind = pricing.purchase or "on_demand"
    at = seller_class(pricing.provider)
    price = _of_seller(pricing, hardware, kind) if at is None else _of_class(at, hardware, kind)
    if price is None:
        if pricing.purchase is None and pricing.provider is None:
            return GpuHour(None, f"no price in {hardware.name}; set pricing.gpu_hour_usd")
        of_whom = "" if pricing.provider is None else f" of {pricing.provider}"
        raise ScenarioError(
            f"has no price: {hardware.name} has no {kind} price{of_whom}",
            key="pricing.purchase" if pricing.provider is None else "pricing.provider",
            value=pricing.purchase if pricing.provider is None else pricing.provider,
            remedy=f"it has {listed_offers(hardware.prices)}; or set pricing.gpu_hour_usd",
        )
    return price


def _of_seller(pricing: PricingSpec, hardware: HardwareProfile, kind: RentalKind) -> GpuHour | None:
    """Return the price of one provider; the median of several offers of one day."""
    found = offers(hardware.prices, kind, pricing.provider)
    if not found:
        return None
    term = f" for {found[0].term}" if len(found) == 1 and found[0].term else ""
    source = f"{_TERMS[kind]} price of {hardware.name}{term} at {found[0].provider}, seen {_seen(found)}"
    return GpuHour(statistics.median(price.usd_per_hour for price in found), source, date=found[0].date)


def _of_class(at: SellerClass, hardware: HardwareProfile, kind: RentalKind) -> GpuHour | None:
    """Return the price of a class of providers, and what it is fitted to."""
    price = class_price(hardware.prices, kind, at)
    if price is None:
        return None
    terms = {each.term for each in price.offers}
    term = f" for {price.offers[0].term}" if len(terms) == 1 and price.offers[0].term else ""
    whose = f"{_TERMS[kind]} price of {hardware.name}{term}"
    count = f"{len(price.offers)} offer{'s' if len(price.offers) > 1 else ''}"
    if price.is_fitted:
        there = f"{price.num_there or 'none'} there"
        source = f"fitted {whose} at {at}s, from {count} ({there}), seen {_seen(price.offers)}"
    else:
        source = f"median {whose} of {count}, seen {_seen(price.offers)}"
    return GpuHour(price.usd_per_hour, source, date=max(each.date for each in price.offers))


def _seen(found: Sequence[GpuPrice]) -> str:
    dates = sorted({price.date for price in found})
    return dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"


def _owned(owned: OwnedSpec, hardware: HardwareProfile) -> GpuHour:
    bought = hardware.purchase
    if owned.gpu_usd is None and bought is None:
        rule = f"has no price: {hardware.name} has no purchase price"
        raise ScenarioError(rule, key="pricing.purchase", value="owned", remedy="set pricing.owned.gpu_usd")
    price = owned.gpu_usd if owned.gpu_usd is not None else (bought.usd if bought is not None else 0.0)
    hours = owned.years * MONTHS_PER_YEAR * HOURS_PER_MONTH
    capital = price * (1 - owned.residual_share) / hours
    hosting = owned.hosting_usd_per_gpu_month / HOURS_PER_MONTH
    whose = "" if owned.gpu_usd is not None or bought is None else f", price of {hardware.name} seen {bought.date}"
    rest = f" less {owned.residual_share:.0%}" if owned.residual_share else ""
    hosted = f" + ${owned.hosting_usd_per_gpu_month:,.2f} a month of hosting" if hosting else ""
    source = f"owned: ${price:,.0f} a GPU{rest} over {owned.years:g} years{hosted}{whose}; electricity apart"
    date = None if owned.gpu_usd is not None or bought is None else bought.date
    return GpuHour(capital + hosting, source, pays_electricity=True, date=date)


def grid(pricing: PricingSpec) -> Grid:
    """Return the source and price of electricity, with defaults for what the scenario does not state."""
    usd, carbon = pricing.electricity_usd_per_kwh, pricing.carbon_g_per_kwh
    return Grid(
        usd_per_kwh=ELECTRICITY_USD_PER_KWH if usd is None else usd,
        grams_co2_per_kwh=CARBON_G_PER_KWH if carbon is None else carbon,
        pue=PUE if pricing.pue is None else pricing.pue,
        host_watts_per_gpu=pricing.host_watts_per_gpu or 0.0,
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
    """Return the dollars of the run, every key of `COST_KEYS`; NaN without a price or without any work.

    Every GPU is paid for the whole time, busy or not. ``usd_per_million_output_tokens`` divides all of it by the
    generated tokens; ``usd_per_million_tokens`` and ``tokens_per_usd`` count prompt tokens too.

    Args:
        num_gpus: GPUs that are paid for; a mean if replicas start and stop.
        gpu_hour_usd: Price of one GPU for an hour; None if there is none.
        electricity_usd_per_hour: Cost of electricity, if charged on top.
        api_usd_per_hour: Cost of an API that serves some of the requests.
        tiers_usd_per_hour: Cost of KV tiers that are paid for separately.
        encoders_usd_per_hour: Cost of the GPUs of an encoder pool, which are not in ``num_gpus``; NaN without a price.
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
    """Where the electricity comes from."""

    usd_per_kwh: float  # Dollars a kWh.
    grams_co2_per_kwh: float  # Grams of CO2 a kWh.
    pue: float  # Power of the site over that of its computers.
    host_watts_per_gpu: float  # Power of the rest of the server, per GPU.

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

    ``encoder_watts`` is the power of all boards of an encoder pool together, ``watts_mean`` that of the site.
    ``joules_per_token`` and ``grams_co2_per_thousand_tokens`` are over prompt and output tokens together,
    ``joules_per_output_token`` over output tokens alone; NaN where there are none.

    Args:
        watts_per_gpu: Mean power of one board.
        grid: Where the electricity comes from.
        tokens_per_second: Prompt and output tokens a second.
        num_encoders: GPUs of an encoder pool, which are not in ``num_gpus``; a mean if they start and stop.
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
