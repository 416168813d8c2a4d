"""What to buy over months: commitments, and the rest by the hour, for whole replicas that follow the day and growth.

Every replica is on a level: level k is needed in the hours that need k replicas or more. Replicas are alike, so
commitments can be taken to serve the lowest levels, and no level's purchase changes another's price. The cheapest
purchase on demand and on terms is thus the cheapest for each level by itself. It is found month by month, from the last
one back: the least of an hour's price for the hours that need the level, and of every commitment that ends within the
horizon. Nothing is left out.

Spot replicas need a reserve, which they share. So levels are settled for several prices of an hour, from that of a spot
replica alone to that of one with its reserve. Each hour takes the cheapest split between spot, its reserve and on
demand; of these purchases, the cheapest is taken.

Plain arithmetic: nothing is simulated, and no file is read.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from simserve.errors import InfeasibleError, UsageError
from simserve.planner.cost.model import API_PRICE_FALL_PER_YEAR, GPU_PRICE_FALL_PER_YEAR
from simserve.planner.cost.month import fixed_usd_per_month, mean_rate, shape_of_day
from simserve.planner.plan.findings import Findings
from simserve.planner.plan.interruptions import Reserved, cannot_be_spot, reserve_table, simulated_reserve, start_up
from simserve.planner.plan.options import Horizon, Interruptions
from simserve.planner.plan.price import price_of
from simserve.planner.scaling import steady_rate
from simserve.scenario.schema import Scenario
from simserve.units import (
    DAYS_PER_MONTH,
    HOURS_PER_DAY,
    HOURS_PER_MONTH,
    MONTHS_PER_YEAR,
    SECONDS_PER_HOUR,
    format_seconds,
)

BY_THE_HOUR = 0  # Choice for a month of a level: nothing is committed.
_TIGHT = 1e-12
_GROWTHS = [step / 100 for step in range(-50, 101)]
_FACTORS = [10 ** (step / 40) for step in range(-120, 121)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What must be served, by what, at today's prices."""

    rate: float  # Requests/s in the mean hour of the first month.
    shape: Sequence[float]  # Traffic of each hour of the day as a multiple of the mean.
    capacity: float  # Requests/s within the SLO of one replica.
    spare_replicas: int  # Replicas beside those that serve.
    gpus_per_replica: float  # GPUs of each.
    usd_per_hour: float  # Dollars of a replica for an hour on demand.
    spot_usd_per_hour: float | None = None  # The same for a spot replica; None: there are none.
    reserve: Sequence[int] = (0, 0)
    """For 0, 1, 2, ... serving spot replicas, how many more hold the SLO when some are taken back; larger numbers are
    divided into groups of the last one."""
    fixed_usd_per_month: float = 0.0  # People and platform.
    growth: float = 0.0  # Share by which traffic grows from one month to the next.
    price_decline: float = 0.0  # Share by which the price of an hour falls from one month to the next.
    api_usd_per_request: float | None = None  # What an API charges for a mean request; None: nothing to compare with.
    api_decline: float = 0.0  # Share by which that price falls from one month to the next.

    def replicas(self, factor: float) -> list[int]:
        """Return the replicas needed in each hour of a day with ``factor`` times the traffic."""
        needed = (self.rate * factor * hour / self.capacity for hour in self.shape)
        return [max(1, math.ceil(each * (1 - _TIGHT))) + self.spare_replicas for each in needed]

    def reserve_of(self, spot: int) -> int:
        """Return the reserve of ``spot`` serving spot replicas."""
        groups, rest = divmod(spot, len(self.reserve) - 1)
        return groups * self.reserve[-1] + self.reserve[rest]

    def requests(self, factor: float) -> float:
        """Return the requests of a month with ``factor`` times the traffic."""
        return self.rate * factor * HOURS_PER_MONTH * SECONDS_PER_HOUR


@dataclass(frozen=True, slots=True, kw_only=True)
class Hourly:
    """Replicas rented by the hour."""

    on_demand_replicas: int = 0  # Most replicas on demand at a time.
    on_demand_hours: float = 0.0  # Replica-hours on demand.
    spot_replicas: int = 0  # Most spot replicas at a time, with their reserve.
    spot_reserve: int = 0  # How many of them are the reserve.
    spot_hours: float = 0.0  # Replica-hours of spot replicas with their reserve.
    usd: float = 0.0  # Dollars.


@dataclass(frozen=True, slots=True)
class Bought:
    """A purchase over all months."""

    committed_usd: list[float]  # For each month, dollars for what is committed to.
    terms: list[dict[int, int]]  # For each month, years of a commitment -> replicas on it.
    hourly: list[Hourly]  # For each month, what is bought by the hour.

    @property
    def usd(self) -> list[float]:
        """Dollars of each month for replicas."""
        return [committed + hour.usd for committed, hour in zip(self.committed_usd, self.hourly, strict=True)]


def purchase(need: Need, horizon: Horizon) -> dict[str, Any]:
    """Return what to buy, month by month, compared with other ways to buy it and with an API.

    Returns:
        ``horizon_months growth_per_month price_decline_per_month capacity_per_replica gpus_per_replica``; ``terms``
        (``years usd_per_gpu_hour below_on_demand is_spot``, of the first month); ``months`` (``month requests
        peak_replicas mean_replicas committed{YEARS: replicas} on_demand_replicas on_demand_hours spot_replicas
        spot_reserve spot_hours usd on_demand_usd api_usd``); ``total_usd``, ``without_spot_usd``,
        ``all_on_demand_usd``, ``committed_at_peak_usd``, ``api_usd`` and ``cheaper``;
        ``over_budget_from``, a month or None; ``flips`` (``growth_per_month gpu_price_factor traffic_factor``), where
        the API and the purchase cost the same, None where they never do.
    """
    best = bought(need, horizon)
    firm = replace(need, spot_usd_per_hour=None)
    hourly = bought(firm, replace(horizon, commitments={}))
    growth = [(1 + need.growth) ** month for month in range(horizon.months)]
    months: list[dict[str, Any]] = []
    for number, factor in enumerate(growth):
        day = need.replicas(factor)
        months.append(
            {
                "month": number + 1,
                "requests": need.requests(factor),
                "peak_replicas": max(day),
                "mean_replicas": sum(day) / HOURS_PER_DAY,
                "committed": {str(years): count for years, count in best.terms[number].items()},
                **asdict(best.hourly[number]),
                "usd": best.usd[number] + need.fixed_usd_per_month,
                "on_demand_usd": hourly.usd[number] + need.fixed_usd_per_month,
                "api_usd": _api_usd(need, number, factor),
            }
        )
    own, api = own_usd(need, horizon), api_usd(need, horizon)
    over = None if horizon.budget is None else next((row for row in months if row["usd"] > horizon.budget), None)
    return {
        "horizon_months": horizon.months,
        "growth_per_month": need.growth,
        "price_decline_per_month": need.price_decline,
        "budget_usd_per_month": horizon.budget,
        "capacity_per_replica": need.capacity,
        "gpus_per_replica": need.gpus_per_replica,
        "terms": _terms(need, horizon),
        "months": months,
        "total_usd": own,
        "without_spot_usd": own_usd(firm, horizon),
        "all_on_demand_usd": own_usd(firm, replace(horizon, commitments={})),
        "committed_at_peak_usd": _at_peak(need, horizon),
        "api_usd": api,
        "cheaper": None if api is None else "self_host" if own < api else "api",
        "over_budget_from": None if over is None else over["month"],
        "flips": _flips(need, horizon),
    }


def bought(need: Need, horizon: Horizon) -> Bought:
    """Return the cheapest purchase."""
    found = [_bought_at(need, horizon, price) for price in _hour_prices(need, horizon)]
    return min(found, key=lambda each: sum(each.usd))


def _hour_prices(need: Need, horizon: Horizon) -> list[float]:
    """Return possible prices of an hour of a level: on demand, spot, and spot with a reserve."""
    prices = [need.usd_per_hour]
    if need.spot_usd_per_hour is not None:
        most = busiest(need, horizon)
        some = {1, most, max(most // 2, 1)}
        prices += [need.spot_usd_per_hour, *(_split(need, 1.0, count)[0] / count for count in sorted(some))]
    return list(dict.fromkeys(prices))


def _bought_at(need: Need, horizon: Horizon, price: float) -> Bought:
    """Return the cheapest purchase if an hour of a level costs ``price``, billed at what its hours really cost."""
    days = [need.replicas((1 + need.growth) ** month) for month in range(horizon.months)]
    result = Bought([0.0] * horizon.months, [{} for _ in days], [])
    falls = [(1 - need.price_decline) ** month for month in range(horizon.months)]
    monthly = {
        years: [_committed(need, horizon, years, month) for month in range(horizon.months)]
        for years in sorted(horizon.commitments)
    }
    below, ordered = 0, [sorted(day) for day in days]
    for level in sorted({count for day in days for count in day}):
        # All levels above the previous one are needed in the same hours.
        used = [DAYS_PER_MONTH * (len(day) - bisect_left(day, level)) for day in ordered]
        _commit(result, _level(used, price, falls, monthly), monthly, level - below)
        below = level
    for month, day in enumerate(days):
        committed = sum(result.terms[month].values())
        result.hourly.append(_hourly(need, month, [max(count - committed, 0) for count in day]))
    return result


def _commit(result: Bought, terms: Sequence[int], committed: Mapping[int, Sequence[float]], count: int) -> None:
    """Add the commitments of ``count`` levels that are needed in the same hours of each month."""
    start = 0
    while start < len(terms):
        years = terms[start]
        end = start + max(years * MONTHS_PER_YEAR, 1)
        for month in range(start, end) if years else ():
            result.committed_usd[month] += count * committed[years][start]
            result.terms[month][years] = result.terms[month].get(years, 0) + count
        start = end


def _hourly(need: Need, month: int, day: Sequence[int]) -> Hourly:
    """Return what the replicas of each hour of a day cost in a month, bought by the hour."""
    factor = (1 - need.price_decline) ** month
    by_count = {count: _split(need, factor, count) for count in set(day)}
    split = [by_count[count] for count in day]
    most = max((spot for *_, spot in split), default=0)
    reserves = [need.reserve_of(spot) for *_, spot in split]
    return Hourly(
        usd=DAYS_PER_MONTH * sum(usd for usd, *_ in split),
        on_demand_replicas=max((firm for _, firm, _ in split), default=0),
        on_demand_hours=float(DAYS_PER_MONTH * sum(firm for _, firm, _ in split)),
        spot_replicas=most + need.reserve_of(most),
        spot_reserve=need.reserve_of(most),
        spot_hours=float(DAYS_PER_MONTH * sum(spot + more for (*_, spot), more in zip(split, reserves, strict=True))),
    )


def _split(need: Need, factor: float, count: int) -> tuple[float, int, int]:
    """Return the least dollars of an hour of ``count`` replicas, and how many are then on demand and spot."""
    firm = factor * need.usd_per_hour
    spot = math.inf if need.spot_usd_per_hour is None else factor * need.spot_usd_per_hour
    choices = [(count * firm, count, 0)]
    group = len(need.reserve) - 1
    # All whole groups are equally good: take all or none.
    for rest in range(min(group, count + 1)) if math.isfinite(spot) else ():
        for each in {rest, rest + (count - rest) // group * group}:
            choices.append((firm * (count - each) + spot * (each + need.reserve_of(each)), count - each, each))
    return min(choices, key=lambda each: each[0])


def own_usd(need: Need, horizon: Horizon) -> float:
    """Return the dollars of the cheapest purchase over all months, including people and platform."""
    return sum(bought(need, horizon).usd) + horizon.months * need.fixed_usd_per_month


def api_usd(need: Need, horizon: Horizon) -> float | None:
    """Return what the API charges over all months; None without one."""
    bills = [_api_usd(need, month, (1 + need.growth) ** month) for month in range(horizon.months)]
    return None if need.api_usd_per_request is None else sum(bill for bill in bills if bill is not None)


def _level(
    used: Sequence[int], price: float, falls: Sequence[float], committed: Mapping[int, Sequence[float]]
) -> list[int]:
    """Return, for each month in which something is bought for a level, the years of its term; 0: by the hour.

    Args:
        used: Hours of each month in which the level is needed.
        price: Dollars of an hour at the prices of the first month.
        falls: Price of each month over that of the first.
        committed: Years of a commitment, ascending -> a month's dollars by the month in which it begins.
    """
    least = [0.0] * (len(used) + 1)
    chosen = [BY_THE_HOUR] * len(used)
    for month in reversed(range(len(used))):
        least[month] = least[month + 1] + used[month] * price * falls[month]
        for years, usd_per_month in committed.items():
            end = month + years * MONTHS_PER_YEAR
            if end > len(used):
                continue
            usd = least[end] + years * MONTHS_PER_YEAR * usd_per_month[month]
            if usd < least[month] * (1 - _TIGHT):
                least[month], chosen[month] = usd, years
    return chosen


def _committed(need: Need, horizon: Horizon, years: int, month: int) -> float:
    """Return the monthly dollars of a commitment that begins in a month, at the prices of its first day."""
    price = need.usd_per_hour * (1 - need.price_decline) ** month
    return HOURS_PER_MONTH * price * (1 - horizon.commitments[years])


def _api_usd(need: Need, month: int, factor: float) -> float | None:
    if need.api_usd_per_request is None:
        return None
    return need.requests(factor) * need.api_usd_per_request * (1 - need.api_decline) ** month


def _terms(need: Need, horizon: Horizon) -> list[dict[str, Any]]:
    terms = {BY_THE_HOUR: need.usd_per_hour}
    terms |= {years: need.usd_per_hour * (1 - share) for years, share in sorted(horizon.commitments.items())}
    offers = [(years, usd, False) for years, usd in terms.items()]
    if need.spot_usd_per_hour is not None:
        offers.insert(1, (BY_THE_HOUR, need.spot_usd_per_hour, True))
    return [
        {
            "years": years,
            "usd_per_gpu_hour": usd / need.gpus_per_replica,
            "below_on_demand": 1 - usd / need.usd_per_hour,
            "is_spot": is_spot,
            "is_offered": years * MONTHS_PER_YEAR <= horizon.months,
        }
        for years, usd, is_spot in offers
    ]


def busiest(need: Need, horizon: Horizon) -> int:
    """Return the replicas of the busiest hour in all months."""
    return max(max(need.replicas((1 + need.growth) ** month)) for month in range(horizon.months))


def _at_peak(need: Need, horizon: Horizon) -> float:
    """Return the cost of buying the replicas of the busiest hour from the first day, on any terms."""
    level = replace(
        need,
        rate=need.capacity,
        shape=(1.0,) * HOURS_PER_DAY,
        spare_replicas=0,
        growth=0.0,
        fixed_usd_per_month=0.0,
        spot_usd_per_hour=None,
    )
    return busiest(need, horizon) * own_usd(level, horizon) + horizon.months * need.fixed_usd_per_month


def _flips(need: Need, horizon: Horizon) -> dict[str, float | None]:
    """Return the growth, the GPU price and the traffic at which the API costs as much as the purchase."""
    if need.api_usd_per_request is None:
        return dict.fromkeys(("growth_per_month", "gpu_price_factor", "traffic_factor"))

    def ahead(**changed: Any) -> float:
        other = replace(need, **changed)
        return own_usd(other, horizon) - (api_usd(other, horizon) or 0.0)

    gpus = sum(bought(need, horizon).usd)
    rest = (api_usd(need, horizon) or 0.0) - horizon.months * need.fixed_usd_per_month
    return {
        "growth_per_month": _crossing(lambda growth: ahead(growth=growth), _GROWTHS, need.growth),
        "gpu_price_factor": rest / gpus if rest > 0 and gpus else None,
        "traffic_factor": _crossing(lambda factor: ahead(rate=need.rate * factor), _FACTORS, 1.0),
    }


def _crossing(function: Callable[[float], float], grid: Sequence[float], at: float) -> float | None:
    """Return where a function changes sign nearest to a point, by steps outwards and bisection; None: nowhere."""
    here = function(at) < 0
    below = [value for value in reversed(grid) if value < at]
    above = [value for value in grid if value > at]
    last = [at, at]
    for step in range(max(len(below), len(above))):
        for side, values in enumerate((above, below)):
            if step >= len(values):
                continue
            if (function(values[step]) < 0) != here:
                return _halved(function, last[side], values[step], is_negative=here)
            last[side] = values[step]
    return None


def _halved(function: Callable[[float], float], near: float, far: float, *, is_negative: bool) -> float:
    for _ in range(30):
        middle = (near + far) / 2
        if (function(middle) < 0) == is_negative:
            near = middle
        else:
            far = middle
    return far


def check_horizon(scenario: Scenario) -> None:
    """Check that a scenario's GPUs can be bought month by month.

    Raises:
        UsageError: Its traffic has no rate that could grow, or its GPUs are already owned or reserved.
    """
    if steady_rate(scenario) is None:
        rule = "needs requests that arrive at a rate, which can grow; these do not"
        raise UsageError(rule, key="--horizon", remedy="set workload.arrivals to a rate, and pricing.daily to its day")
    if scenario.pricing.purchase in ("owned", "reserved"):
        rule = f"buys GPUs, and the scenario's are {scenario.pricing.purchase}"
        raise UsageError(rule, key="--horizon", remedy="--set pricing.purchase=null")


def purchase_of(found: Findings, summary: Mapping[str, Any], horizon: Horizon) -> dict[str, Any] | None:
    """Return what to buy for a plan; None where nothing holds, nothing was confirmed, or nothing has a price.

    ``assumes`` says in words what does not come from the scenario itself.
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
    # For a fleet that scales, the average bill says nothing about one replica; pools have no single price a GPU.
    price = best["usd_per_gpu_hour"]
    hourly = best["usd_per_hour"] / best["replicas"] if price is None else price * gpus
    if summary["market"] == "spot":
        hourly = _on_demand(scenario, best["hardware"]) * gpus
    need = Need(
        rate=mean_rate(scenario, rate, day),
        shape=day,
        capacity=rate * (found.sustained_traffic or 1.0) / best["replicas_needed"],
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
    """Return the on-demand price of a GPU from any seller."""
    anybody = scenario.model_copy(update={"pricing": scenario.pricing.model_copy(update={"provider": None})})
    for asked in (scenario, anybody):
        usd = price_of(asked, hardware).usd
        if usd is not None:
            return usd
    rule = f"buys on terms that are priced below on demand, and nobody offers {hardware} on demand"
    raise UsageError(rule, key="--horizon", remedy="plan without --spot, with pricing.gpu_hour_usd")


def _offered_spot(
    found: Findings, summary: Mapping[str, Any], need: Need, horizon: Horizon
) -> tuple[Need, Sequence[Reserved]] | str:
    """Return the need with spot replicas and their simulated reserve; or in words why there are none."""
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
        return "no spot replica is bought: none is listed below the price on demand; --commitments spot=60% sets yours"
    rate = steady_rate(found.scenario)
    assert rate is not None  # as `purchase_of` has checked
    assert found.fleet is not None  # a plan that was confirmed
    fleet = replace(found.fleet, scenario=found.scenario)
    try:
        reserve = simulated_reserve(fleet, rate, need.capacity, busiest(need, horizon), horizon.interruptions)
    except InfeasibleError as refusal:
        return f"no spot replica is bought: {refusal.rule}"
    return replace(need, spot_usd_per_hour=usd, reserve=reserve_table(reserve)), reserve


def _spot_mapping(found: Findings, horizon: Horizon, reserve: Sequence[Reserved]) -> dict[str, Any]:
    """Return how spot replicas are taken back, and the simulated reserve."""
    assert found.fleet is not None  # there is a reserve
    asked = horizon.interruptions
    return {
        "mtbf_s": asked.mtbf,
        "mttr_s": start_up(found.fleet) if asked.mttr is None else asked.mttr,
        "notice_s": asked.notice,
        "reserves": [asdict(each) for each in reserve],
    }


def _monthly(per_year: float) -> float:
    return float((1 + per_year) ** (1 / MONTHS_PER_YEAR) - 1)


def _assumed(found: Findings, need: Need, horizon: Horizon, answer: Mapping[str, Any], no_spot: str) -> Iterator[str]:
    offered = [each for each in answer["terms"] if each["years"] and each["is_offered"]]
    late = [each["years"] for each in answer["terms"] if each["years"] and not each["is_offered"]]
    if horizon.is_assumed and offered:
        shares = ", ".join(f"{each['below_on_demand']:.0%} ({each['years']} y)" for each in offered)
        yield f"commitments cost less than on demand by {shares}; set yours with --commitments 1y=30%,3y=50%"
    if late:
        years = " and ".join(map(str, late))
        yield f"commitments of {years} years would outlast the {horizon.months} months: none is bought"
    if horizon.price_decline is None and need.price_decline:
        yield f"new GPU-hours get {need.price_decline:.1%} cheaper a month; set yours with --price-decline 2%/month"
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
    says = "; set yours with --interruptions mtbf=24h,mttr=10min" if interruptions.is_assumed else ""
    yield f"{often}, alone, with {format_seconds(interruptions.notice)} of notice{says}"
    yield "a seller always has spot GPUs: hours without any are not simulated"
