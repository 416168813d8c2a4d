"""What a GPU-hour costs on a market: the one place where the planner looks at prices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from simserve.errors import ScenarioError
from simserve.metrics.cost import gpu_hour
from simserve.planner.space.space import PRICE_KEY
from simserve.profiles.hardware import load_hardware
from simserve.scenario.schema import Scenario

PURCHASE_KEY = "pricing.purchase"

Market = Literal["on_demand", "spot"]


@dataclass(frozen=True, slots=True)
class Price:
    """A price of one GPU for an hour."""

    usd: float | None  # Dollars; None where the catalogue has none.
    overrides: dict[str, Any]  # Overrides that make the scenario use it; empty where it already does.


def price_of(scenario: Scenario, hardware: str, market: Market = "on_demand") -> Price:
    """Return what the scenario would pay for a GPU, so that all GPUs of one answer are priced alike.

    On demand: on the scenario's terms, from its seller or class of sellers; a price of its own applies only to its own
    GPU. Spot: the same on terms that a seller may end at any time.

    Raises:
        ProfileError: The GPU is unknown.
    """
    profile = load_hardware(hardware, scenario.folder)
    own = scenario.pricing.gpu_hour_usd
    overrides: dict[str, Any] = {} if own is None else {PRICE_KEY: None}
    terms: dict[str, Any] = {"gpu_hour_usd": None}
    if market == "spot":
        overrides |= {PURCHASE_KEY: "spot"} | ({} if scenario.pricing.owned is None else {"pricing.owned": None})
        terms |= {"purchase": "spot", "owned": None}
    elif own is not None and hardware == scenario.deployment.hardware:
        return Price(own, {})
    try:
        usd = gpu_hour(scenario.pricing.model_copy(update=terms), profile).usd
    except ScenarioError:  # Nobody the scenario buys from offers it.
        usd = None
    return Price(usd, {} if usd is None and market == "spot" else overrides)
