"""What a scenario says about money: how its GPUs are paid for, against which API, by what day. Looks nothing up."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from simserve.units import Watts
from simserve.validation import FrozenModel

HOURS_PER_DAY = 24
Purchase = Literal["on_demand", "reserved", "spot", "owned"]
Usd = Annotated[float, Field(ge=0)]
Fall = Annotated[float, Field(ge=-1, lt=1)]


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
    """How traffic moves over 24 hours. `daily: {}` is a wave as of a public chat service."""

    hourly: tuple[Annotated[float, Field(ge=0)], ...] | None = None
    """24 numbers in proportion to the traffic of each hour. Absent: one wave a day, of the two ratios below."""
    peak_to_mean: Annotated[float, Field(ge=1, le=100)] | None = None
    """Traffic of the busiest hour over the mean. Absent: 1.7."""
    peak_to_trough: Annotated[float, Field(ge=1, le=1e6)] | None = None
    """Traffic of the busiest hour over that of the quietest. Absent: 3.3."""
    rate_is: Literal["peak", "mean"] = "peak"
    """Whether the scenario's own rate is that of the busiest hour, which a fleet must hold, or the mean."""

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
    """Whose price: a seller, as the hardware profile names it, or a class of sellers, whose price is fitted:
    `specialised cloud` (as if absent), `hyperscaler` or `marketplace`."""
    owned: OwnedSpec | None = None
    """Price and years of GPUs that are bought; only with `purchase: owned`."""
    electricity_usd_per_kwh: Usd | None = None
    """Dollars a kWh; charged for owned GPUs alone, a rented one includes it. Absent: 0.08."""
    pue: Annotated[float, Field(ge=1, le=5)] | None = None
    """Power of the whole site over that of its computers. Absent: 1.3."""
    host_watts_per_gpu: Watts | None = None
    """Power of the server beside its GPUs, a GPU's share of it. Absent: none, and figures are of the boards."""
    carbon_g_per_kwh: Annotated[float, Field(ge=0)] | None = None
    """Grams of CO2 a kWh of the grid. Absent: 473, the world's mean of 2024."""
    api: str | None = None
    """API that `simserve cost` compares with: a name that `simserve apis` lists, or the path of a profile file."""
    batch_share: Annotated[float, Field(ge=0, le=1)] | None = None
    """Share of the requests that could take the API's batch discount. Absent: none."""
    operations_hours_per_month: Usd | None = None
    """Hours a month that people spend on running the deployment."""
    engineer_usd_per_hour: Usd | None = None
    """Dollars an hour of theirs."""
    platform_usd_per_month: Usd | None = None
    """Dollars a month for what runs beside the GPUs: gateway, monitoring, storage."""
    spare_replicas: Annotated[int, Field(ge=0, le=1000)] | None = None
    """Replicas that are paid for beside those that serve, for when one fails. Absent: none."""
    daily: DailySpec | None = None
    """How traffic moves over the day, for `simserve cost`. Absent: the same all day."""
    api_price_fall_per_year: Fall | None = None
    """Share by which the API's price falls in a year; below 0 it rises. Absent: 0.3."""
    gpu_price_fall_per_year: Fall | None = None
    """Share by which the price of a rented GPU-hour falls in a year. Absent: 0.2; what is owned does not fall."""
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
        """Dollars a month of people's hours; 0 where none are given."""
        return (self.operations_hours_per_month or 0.0) * (self.engineer_usd_per_hour or 0.0)
