"""What a GPU-hour costs on a market: the one place where the planner looks at prices."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any, Literal

from simserve.planner.space.space import PRICE_KEY
from simserve.profiles.hardware import load_hardware
from simserve.scenario.schema import Scenario

Market = Literal["on_demand", "spot"]


@dataclass(frozen=True, slots=True)
class Price:
    """A price of one GPU for an hour.

    Attributes:
        usd: Dollars; None where the catalogue has none.
        overrides: What makes the scenario use it; empty where it does so anyway.
    """

    usd: float | None
    overrides: dict[str, Any]


def price_of(scenario: Scenario, hardware: str, market: Market = "on_demand") -> Price:
    """Return what the scenario would pay for a GPU.

    On demand: the scenario's own price for its own GPU, for others the median of the catalogue. Spot: the median of the
    catalogue's spot prices, which a provider may end at any time.

    Args:
        scenario: The scenario.
        hardware: The GPU.
        market: Where it is bought.

    Raises:
        ProfileError: The GPU is unknown.
    """
    profile = load_hardware(hardware, scenario.folder)
    own = scenario.pricing.gpu_hour_usd
    if market == "spot":
        spot = [each.usd_per_hour for each in profile.prices if each.kind == "spot"]
        usd = statistics.median(spot) if spot else None
        return Price(usd, {} if usd is None else {PRICE_KEY: usd})
    if hardware == scenario.deployment.hardware:
        return Price(profile.default_price if own is None else own, {})
    return Price(profile.default_price, {} if own is None else {PRICE_KEY: None})
