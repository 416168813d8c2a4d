"""What a plan buys over months: the figures of `simserve.planner.plan.purchase` out of what the search has found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from simserve.errors import UsageError
from simserve.planner.cost.model import API_PRICE_FALL_PER_YEAR, GPU_PRICE_FALL_PER_YEAR
from simserve.planner.cost.month import fixed_usd_per_month, mean_rate, shape_of_day
from simserve.planner.plan.findings import Findings
from simserve.planner.plan.horizon import MONTHS_PER_YEAR, Horizon
from simserve.planner.plan.price import price_of
from simserve.planner.plan.purchase import Need, purchase
from simserve.planner.scaling import steady_rate
from simserve.scenario.schema import Scenario


def check_horizon(scenario: Scenario) -> None:
    """Do nothing where a scenario's GPUs can be bought month by month.

    Raises:
        UsageError: Its traffic has no rate that could grow, or its GPUs are owned or reserved already.
    """
    if steady_rate(scenario) is None:
        rule = "needs requests that arrive at a rate, which can grow; these do not"
        raise UsageError(rule, key="--horizon", remedy="set workload.arrivals to a rate, and pricing.daily to its day")
    if scenario.pricing.purchase in ("owned", "reserved"):
        rule = f"buys GPUs, and the scenario's are {scenario.pricing.purchase}"
        raise UsageError(rule, key="--horizon", remedy="--set pricing.purchase=null")


def purchase_of(found: Findings, summary: Mapping[str, Any], horizon: Horizon) -> dict[str, Any] | None:
    """Return what to buy for a plan; None where nothing holds, was confirmed, or has a price.

    ``assumes`` says in words what is not the scenario's own.
    """
    best, rate = summary["best"], steady_rate(found.scenario)
    if best is None or rate is None or found.confirmed is None or best["usd_per_hour"] is None:
        return None
    scenario, pricing, day = found.scenario, found.scenario.pricing, shape_of_day(found.scenario)
    gpus = best["num_gpus"] / best["replicas"]
    fall = GPU_PRICE_FALL_PER_YEAR if pricing.gpu_price_fall_per_year is None else pricing.gpu_price_fall_per_year
    api = (summary["month"] or {}).get("api")
    api_fall = API_PRICE_FALL_PER_YEAR if pricing.api_price_fall_per_year is None else pricing.api_price_fall_per_year
    growth = _monthly(pricing.traffic_growth_per_year or 0.0) if horizon.growth is None else horizon.growth
    # Of a fleet that scales, what is billed on average says nothing of one replica; pools have no one price a GPU.
    price = best["usd_per_gpu_hour"]
    hourly = best["usd_per_hour"] / best["replicas"] if price is None else price * gpus
    listed = price_of(scenario, best["hardware"]).usd if summary["market"] == "spot" else None
    need = Need(
        rate=mean_rate(scenario, rate, day),
        shape=day,
        capacity=rate * (found.borne_traffic or 1.0) / best["replicas_needed"],
        spare_replicas=found.goal.spare_replicas,
        gpus_per_replica=gpus,
        usd_per_hour=hourly,
        committed_usd_per_hour=hourly if listed is None else listed * gpus,
        fixed_usd_per_month=fixed_usd_per_month(scenario),
        growth=growth,
        price_decline=-_monthly(-fall) if horizon.price_decline is None else horizon.price_decline,
        api_usd_per_request=None if api is None else api["usd_per_month"] / summary["month"]["requests_per_month"],
        api_decline=-_monthly(-api_fall),
    )
    answer = purchase(need, horizon)
    return {
        **answer,
        "api": None if api is None else api["name"],
        "market": summary["market"],
        "assumes": list(_assumed(found, need, horizon, answer)),
    }


def _monthly(per_year: float) -> float:
    return float((1 + per_year) ** (1 / MONTHS_PER_YEAR) - 1)


def _assumed(found: Findings, need: Need, horizon: Horizon, answer: Mapping[str, Any]) -> Iterator[str]:
    offered = [each for each in answer["terms"] if each["years"] and each["is_offered"]]
    late = [each["years"] for each in answer["terms"] if each["years"] and not each["is_offered"]]
    if horizon.is_assumed and offered:
        shares = ", ".join(f"{each['below_on_demand']:.0%} ({each['years']} y)" for each in offered)
        yield f"commitments cost less than on demand by {shares}; --commitments 1y=30%,3y=50% says yours"
    if late:
        years = " and ".join(map(str, late))
        yield f"commitments of {years} years would outlast the {horizon.months} months: none is bought"
    if horizon.price_decline is None and need.price_decline:
        yield f"new GPU-hours get {need.price_decline:.1%} cheaper a month; --price-decline 2%/month says yours"
    if found.scenario.deployment.overflow is not None:
        yield "no request overflows to an API"
    if len(set(need.shape)) > 1:
        yield "replicas follow the hours of the day at once: their start-up is not counted"
    if need.usd_per_hour != need.committed_usd_per_hour:
        yield "spot replicas are there when they are needed: interruptions are not counted"
    if answer["api_usd"] is not None and need.api_decline:
        yield f"the API gets {need.api_decline:.1%} cheaper a month"
