"""What a plan buys over months: the figures of `simserve.planner.plan.purchase` out of what the search has found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from simserve.errors import InfeasibleError, UsageError
from simserve.planner.cost.model import API_PRICE_FALL_PER_YEAR, GPU_PRICE_FALL_PER_YEAR
from simserve.planner.cost.month import fixed_usd_per_month, mean_rate, shape_of_day
from simserve.planner.plan.findings import Findings
from simserve.planner.plan.horizon import MONTHS_PER_YEAR, Horizon, Interruptions
from simserve.planner.plan.interruptions import Reserve, cannot_be_spot, simulated_reserve, start_up
from simserve.planner.plan.price import price_of
from simserve.planner.plan.purchase import Need, busiest, purchase
from simserve.planner.scaling import steady_rate
from simserve.scenario.schema import Scenario
from simserve.units import format_seconds


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
    if summary["market"] == "spot":
        hourly = _on_demand(scenario, best["hardware"]) * gpus
    need = Need(
        rate=mean_rate(scenario, rate, day),
        shape=day,
        capacity=rate * (found.borne_traffic or 1.0) / best["replicas_needed"],
        spare_replicas=found.goal.spare_replicas,
        gpus_per_replica=gpus,
        usd_per_hour=hourly,
        fixed_usd_per_month=fixed_usd_per_month(scenario),
        growth=growth,
        price_decline=-_monthly(-fall) if horizon.price_decline is None else horizon.price_decline,
        api_usd_per_request=None if api is None else api["usd_per_month"] / summary["month"]["requests_per_month"],
        api_decline=-_monthly(-api_fall),
    )
    offered = _offered_spot(found, summary, need, horizon)
    if not isinstance(offered, str):
        need, reserve = offered
    answer = purchase(need, horizon)
    return {
        **answer,
        "api": None if api is None else api["name"],
        "market": summary["market"],
        "spot": None if isinstance(offered, str) else _spot_mapping(found, horizon, reserve),
        "assumes": list(_assumed(found, need, horizon, answer, offered if isinstance(offered, str) else "")),
    }


def _on_demand(scenario: Scenario, hardware: str) -> float:
    """Return the price of a GPU on demand, by whoever offers that."""
    anybody = scenario.model_copy(update={"pricing": scenario.pricing.model_copy(update={"provider": None})})
    for asked in (scenario, anybody):
        usd = price_of(asked, hardware).usd
        if usd is not None:
            return usd
    rule = f"buys on terms that are priced below on demand, and nobody offers {hardware} on demand"
    raise UsageError(rule, key="--horizon", remedy="plan without --spot, with pricing.gpu_hour_usd")


def _offered_spot(
    found: Findings, summary: Mapping[str, Any], need: Need, horizon: Horizon
) -> tuple[Need, Reserve] | str:
    """Return the need with spot replicas and their simulated reserve; or why there are none, in words."""
    best = summary["best"]
    if not horizon.offers_spot:
        return "no spot replica is on offer"
    reason = cannot_be_spot(found.scenario, found.fleet)
    if reason is not None:
        return f"no spot replica is bought: {reason}"
    if horizon.spot_below is not None:
        usd: float | None = need.usd_per_hour * (1 - horizon.spot_below)
    else:
        own = found.scenario.pricing.gpu_hour_usd is not None and summary["market"] != "spot"
        listed = None if own else price_of(found.scenario, best["hardware"], "spot").usd
        usd = None if listed is None else listed * need.gpus_per_replica
    if usd is None or usd >= need.usd_per_hour:
        return "no spot replica is bought: none is listed below the price on demand; --commitments spot=60% says yours"
    rate = steady_rate(found.scenario)
    assert rate is not None  # as `purchase_of` has asked
    assert found.fleet is not None  # a plan that was confirmed
    fleet = replace(found.fleet, scenario=found.scenario)
    try:
        reserve = simulated_reserve(fleet, rate, need.capacity, busiest(need, horizon), horizon.interruptions)
    except InfeasibleError as refusal:
        return f"no spot replica is bought: {refusal.rule}"
    return replace(need, spot_usd_per_hour=usd, reserve=reserve.table), reserve


def _spot_mapping(found: Findings, horizon: Horizon, reserve: Reserve) -> dict[str, Any]:
    """Return how spot replicas are taken back, and the reserve that was simulated."""
    assert found.fleet is not None  # there is a reserve
    asked = horizon.interruptions
    return {
        "mtbf_s": asked.mtbf,
        "mttr_s": start_up(found.fleet) if asked.mttr is None else asked.mttr,
        "notice_s": asked.notice,
        "reserves": [asdict(each) for each in reserve.sizes],
    }


def _monthly(per_year: float) -> float:
    return float((1 + per_year) ** (1 / MONTHS_PER_YEAR) - 1)


def _assumed(found: Findings, need: Need, horizon: Horizon, answer: Mapping[str, Any], no_spot: str) -> Iterator[str]:
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
    if found.roles:
        yield "prefill and decode workers are bought in the proportion of the plan, in whole workers of their mean size"
    if no_spot:
        yield no_spot
    else:
        yield from _of_spot(horizon.interruptions)
    if answer["api_usd"] is not None and need.api_decline:
        yield f"the API gets {need.api_decline:.1%} cheaper a month"


def _of_spot(interruptions: Interruptions) -> Iterator[str]:
    often = f"a spot replica is taken back every {format_seconds(interruptions.mtbf)} on average"
    says = "; --interruptions mtbf=24h,mttr=10min says yours" if interruptions.is_assumed else ""
    yield f"{often}, alone, with {format_seconds(interruptions.notice)} of notice{says}"
    yield "a seller always has spot GPUs: hours without any are not simulated"
