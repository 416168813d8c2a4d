"""Self-host or API for a scenario: its deployment is simulated at the loads of a day, then priced by the month."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from simserve.errors import InfeasibleError, ScenarioError
from simserve.metrics.api_cost import ApiPrices, latency_figures, peak_figures
from simserve.metrics.cost import grid
from simserve.planner.cost import model as cost_model
from simserve.planner.cost.model import Comparison, break_even, day_shape
from simserve.planner.cost.month import (
    MeanRequest,
    as_deployed,
    compared_api,
    fixed_usd_per_month,
    mean_rate,
    mean_request,
    sent_rate,
    shape_of_day,
)
from simserve.planner.load_curve import NUM_REQUESTS, LoadCurve
from simserve.planner.scaling import at_most, is_scaled, steady_rate
from simserve.profiles import catalog
from simserve.profiles.api import load_api, withdrawal_note
from simserve.profiles.catalog import weights_name
from simserve.profiles.checkpoint import WIDE_FORMATS
from simserve.profiles.gpu_prices import offers
from simserve.scenario.formats import formats_line
from simserve.scenario.resolve import ResolvedScenario, resolve
from simserve.scenario.run import Progress
from simserve.scenario.schema import Scenario
from simserve.sim.control import AutoscalingSpec
from simserve.units import HOURS_PER_MONTH, SECONDS_PER_MONTH

Bill = Callable[[float], float]
FALLBACK_API = "gpt-4o"  # API to compare with where none is named and none is known to serve the same weights.
NO_API_SERVES_THEM = f"no API is named: compared with {FALLBACK_API}"
"""Caveat where the API compared with is none that anybody asked about, and serves other weights."""
_EXPECTED_RUNS = 11
_PEAKS = (1.2, 2.5)  # Range of a tornado: the load of the busiest hour, over the mean.
_MILLION = 1e6
API = "API"
FEWEST_REQUESTS = 1e3
MOST_REQUESTS = 1e9  # Requests a month between which the cheapest way is sought.
_STEPS_PER_DECADE = 400
_CLOSE = 1e-6  # Volumes per decade at which the ways are compared, and how closely a crossing is then found.
MOST_TOGETHER = 16
"""Most replicas that are simulated together: with the turns of a conversation spread over so many, hardly any prefix
hit is left to lose."""
_NO_LOSS = 0.05  # Capacities are found to 5 %: smaller losses are not mentioned.
_PREFIX_ROUTING = ("prefix", "session")
_NO_CROSSING = dict.fromkeys(("break_even_requests_per_month", "break_even_tokens_per_month"))
_NOT_SHOWN = ("mean_gpus", "gpu_hour_usd", "api_usd_per_hour")
"""Figures of a level that the answer adds up over the day."""
_FIDELITY = {
    "roofline": "a roofline of datasheet peaks",
    "fitted": "curves fitted to measurements",
    "measured": "measured operators",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Together:
    """A fleet simulated as a whole, because its prefix caches find what routing sends their way."""

    fleet: str  # Replicas, or copies of the pools, that were simulated together.
    routing: str  # The policy that spreads requests over them.
    before: str  # The fewer of the scenario itself.
    alone: float  # Requests/s that each of those holds.
    each: float  # Requests/s that each of these holds.

    @property
    def loses(self) -> bool:
        """Whether each holds less than one alone, by more than the search for capacities misses."""
        return self.each < self.alone * (1 - _NO_LOSS)

    @property
    def note(self) -> str:
        """What the fleet holds, beside what its number of replicas would promise."""
        held = f"{self.fleet}, simulated together and routed by {self.routing}, hold {self.each:.3g} requests/s each"
        if not self.loses:
            return held
        remedy = "" if self.routing in _PREFIX_ROUTING else "; --routing prefix sends requests to where their prefix is"
        lost = 1 - self.each / self.alone
        return f"{held}, {lost:.0%} less than {self.before}: each replica has a prefix cache of its own{remedy}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Day:
    """Results of the simulated hours."""

    shape: tuple[float, ...]  # Traffic of each hour as a multiple of the mean.
    mean_rate: float  # Requests/s on average.
    capacity: float | None  # Requests/s of one replica; None where the load cannot be scaled.
    units: int  # Replicas that serve.
    gpus_per_unit: float  # GPUs of each, at most.
    paid_share: float  # Mean share of the day for which each of them is paid: 1 unless the fleet is scaled.
    gpu_hour_usd: float
    """Price of a GPU-hour; the mean over the GPUs that are paid, where pools have prices of their own."""
    api_usd_per_month: float  # Cost of an API that serves the peaks of the deployment itself.
    busy: float  # Share of the time with a step running, over the day.
    watts_per_gpu: float  # Mean power of one board over the day.

    @property
    def requests_per_month(self) -> float:
        return self.mean_rate * SECONDS_PER_MONTH


def cost_of_scenario(
    scenario: Scenario,
    *,
    api: str | ApiPrices | None,
    requests_per_month: float | None,
    progress: Progress | None,
    others: Mapping[str, Scenario] | None = None,
) -> dict[str, Any]:
    """Return both sides of a month for a scenario, with its deployment simulated at the loads of its day.

    Args:
        scenario: What is deployed and what arrives.
        api: API to compare with; None: the scenario's own, else the cheapest that serves the same weights.
        requests_per_month: Volume; None: by the scenario's rate, taken as that of the busiest hour or the mean.
        progress: Called after every run.
        others: Name -> another deployment for the same traffic: the answer then says from what volume each is cheapest.

    Raises:
        InfeasibleError: The model does not fit, or the objective holds at no load.
        InputError: A profile or price is missing.
    """
    summary, model = _priced(scenario, api, requests_per_month, progress)
    if not others:
        return summary
    models = {name: _priced(other, api, requests_per_month, progress)[1] for name, other in others.items()}
    models = {"the scenario": model, **models}
    options = [_option(name, each) for name, each in models.items()]
    found = [{**each, "name": summary["api"]["name"] if each["name"] == API else each["name"]} for each in ways(models)]
    return {**summary, "options": options, "ways": found}


def _option(name: str, model: Comparison) -> dict[str, Any]:
    """Return what a month of the traffic costs on a deployment, and how many GPUs serve it at most."""
    requests = model.requests_per_month or 0.0
    units = model.units_for(requests) + model.spare_units
    usd = model.self_host_usd(requests)
    return {"name": name, "usd_per_month": usd, "gpus": units * model.gpus_per_unit}


def _priced(
    scenario: Scenario, api: str | ApiPrices | None, requests_per_month: float | None, progress: Progress | None
) -> tuple[dict[str, Any], Comparison]:
    """Return what a scenario's month costs: in plain values, and as the model that prices other volumes."""
    resolved = resolve(scenario)
    if resolved.gpu_hour_usd is None:
        with scenario.blaming("pricing"):
            raise ScenarioError("is missing", key="gpu_hour_usd", remedy=resolved.gpu_hour_source)
    if isinstance(api, str):
        load_api(api)  # A wrong name is reported before anything is simulated.
    shown = None if progress is None else lambda done: progress(min(done, _EXPECTED_RUNS), _EXPECTED_RUNS)
    curve = LoadCurve(scenario, on_run=shown)
    day = _day(resolved, curve, requests_per_month)
    together = None
    if day.units > at_most(scenario.deployment).replicas and _finds_prefixes(curve):
        day, together = _whole_fleet(resolved, curve, day)
    prices, why_api = _api(scenario, api, curve)
    traffic = mean_request(*curve.first(), prices)
    model = _comparison(resolved, day, traffic, prices)
    summary = _summary(resolved, curve, day, traffic, model, why_api)
    if together is not None:
        kind = "warnings" if together.loses else "caveats"
        summary[kind] = [*summary[kind], together.note]
        summary["break_even"]["least_requests_per_month"] = _least_break_even(model, together)
    return summary, model


def _api(scenario: Scenario, api: str | ApiPrices | None, curve: LoadCurve) -> tuple[ApiPrices, str | None]:
    """Return the API's prices to compare with, and the reason for them where nobody named an API."""
    if isinstance(api, ApiPrices):
        return api, None
    if api is not None:
        return ApiPrices.of(load_api(api)), None
    found = compared_api(scenario, *curve.first())
    return found or (ApiPrices.of(load_api(FALLBACK_API)), NO_API_SERVES_THEM)


def _day(
    resolved: ResolvedScenario, curve: LoadCurve, requests_per_month: float | None, copies: int | None = None
) -> _Day:
    """Return the day: how much arrives in each hour, how many replicas can sustain it, and how busy they are.

    ``copies``: how many times the deployment holds the pools of the scenario; None: as it is.
    """
    scenario, own = resolved.scenario, curve.as_it_is()
    deployed, shape = copies or at_most(scenario.deployment).replicas, shape_of_day(scenario)
    flat = curve.own_load is None
    offered = sent_rate(scenario, curve.first()[1]) or own.rate
    if not offered:
        with scenario.blaming("workload"):
            raise ScenarioError("serves no request in the measured part of the run", remedy="let it be longer")
    # With an API for the excess, any load holds; the replicas' own share is as simulated.
    capacity = None if scenario.deployment.overflow is not None else curve.capacity()
    if capacity == 0.0:
        raise _held_nowhere(curve)
    if capacity is not None and curve.is_closed and not own.holds:
        offered = _sent_within_objective(curve, own.load)
    mean = mean_rate(scenario, offered, shape)
    if requests_per_month is not None:
        mean = requests_per_month / SECONDS_PER_MONTH
    peak = mean * max(shape)
    units = deployed if capacity is None else max(deployed, math.ceil(peak / (capacity / deployed) * (1 - 1e-9)))
    per_deployed = deployed / units
    scales = is_scaled(scenario.deployment)
    gpus = at_most(scenario.deployment).num_gpus / deployed
    if not flat and curve.own_load is not None:
        quietest, busiest = min(shape) * mean * per_deployed, peak * per_deployed
        for rate in np.linspace(quietest, busiest, 3):
            curve.at(float(rate) * curve.own_load / offered)

    def over_the_day(name: str) -> float:
        return math.fsum(curve.interpolate(name, mean * share * per_deployed) for share in shape) / len(shape)

    paid, hour = deployed * gpus, resolved.gpu_hour_usd or 0.0
    if scales:
        paid = over_the_day("mean_gpus")
        if all(level.gpu_hour_usd is not None for level in curve.levels.values()):
            hour = over_the_day("gpu_usd_per_hour") / paid if paid else hour
    return _Day(
        shape=shape,
        mean_rate=mean,
        capacity=None if capacity is None else capacity / deployed,
        units=units,
        gpus_per_unit=gpus,
        paid_share=paid / (deployed * gpus),
        gpu_hour_usd=hour,
        api_usd_per_month=over_the_day("api_usd_per_hour") * HOURS_PER_MONTH,
        busy=over_the_day("busy"),
        watts_per_gpu=over_the_day("watts_per_gpu"),
    )


def _finds_prefixes(curve: LoadCurve) -> bool:
    """Return whether prefix caches find some of what requests share."""
    result, specs = curve.first()
    return specs.prefixes is not None and bool(result.summary["simserve"]["engine_resolved"]["enable_prefix_caching"])


def _least_break_even(model: Comparison, together: _Together) -> float | None:
    """Return a lower bound on the break-even, as if no replica lost prefix hits; None where it is the break-even.

    The break-even itself takes for every replica what each of the priced fleet holds. Fewer replicas lose less.
    """
    if not together.loses:
        return None
    free = model.beside_overflow().from_one_unit
    least, known = (break_even(each)["requests_per_month"] for each in (replace(free, capacity=together.alone), free))
    is_same = least is None or (known is not None and least > known * (1 - _NO_LOSS))
    return None if is_same else float(least)


def _whole_fleet(resolved: ResolvedScenario, curve: LoadCurve, day: _Day) -> tuple[_Day, _Together]:
    """Return the day of as many replicas, or copies of the pools, as hold it together, and what each of them holds.

    What the scenario's own hold, times their number, counts prefix hits that a fleet loses where the turns of a
    conversation go to several replicas. So the fleet is simulated at its own size, until that is enough; of a larger
    one than `MOST_TOGETHER`, that many. Fewer lose less: if fewer are enough, these are.
    """
    scenario, alone = resolved.scenario, day.capacity or 0.0
    deployment = at_most(scenario.deployment)
    members = sum(pool.replicas for pool in deployment.pools) or 1
    most, before = max(MOST_TOGETHER // members, 1), "one alone"
    if deployment.pools or deployment.replicas > 1:
        before = "the scenario's pools" if deployment.pools else f"each of {deployment.replicas}"
    while True:
        count = max(min(day.units, most), deployment.replicas)
        rate = day.mean_rate * max(day.shape) * count / day.units
        fleet = _with_traffic(_enlarged(scenario, count), rate)
        whole = LoadCurve(fleet, on_run=curve.on_run, num_requests=NUM_REQUESTS * count)
        day = _day(resolve(fleet), whole, day.requests_per_month, count if deployment.pools else None)
        if day.units <= count or count >= most:
            fleet_text = f"the pools {count} times" if deployment.pools else f"{count} replicas"
            routing = scenario.deployment.routing.policy
            return day, _Together(
                fleet=fleet_text, routing=routing, before=before, alone=alone, each=day.capacity or 0.0
            )


def _enlarged(scenario: Scenario, count: int) -> Scenario:
    """Return a scenario with so many replicas, at most as many where it is scaled, or its pools so many times."""
    deployment = scenario.deployment

    def times(scaling: AutoscalingSpec | None) -> AutoscalingSpec | None:
        if scaling is None:
            return None
        ends = {name: getattr(scaling, name) * count for name in ("min_replicas", "max_replicas")}
        return scaling.model_copy(update=ends)

    changed: dict[str, Any] = {"replicas": count}
    if deployment.pools:
        pools = tuple(
            pool.model_copy(update={"replicas": pool.replicas * count, "autoscaling": times(pool.autoscaling)})
            for pool in deployment.pools
        )
        changed = {"pools": pools, "autoscaling": times(deployment.autoscaling)}
    elif deployment.autoscaling is not None:
        changed = {"autoscaling": deployment.autoscaling.model_copy(update={"max_replicas": count})}
    return scenario.model_copy(update={"deployment": deployment.model_copy(update=changed)})


def _with_traffic(scenario: Scenario, rate: float) -> Scenario:
    """Return a scenario with so many requests/s, where arrivals are open, for as long as now."""
    workload = scenario.workload
    arrivals, own = workload.arrivals, steady_rate(scenario)
    if arrivals is None or own is None:
        return scenario
    changed: dict[str, Any] = {"arrivals": arrivals.model_copy(update={"rate": rate})}
    if workload.num_requests is not None and workload.trace is None:
        changed["num_requests"] = max(1, round(workload.num_requests * rate / own))
    return scenario.model_copy(update={"workload": workload.model_copy(update=changed)})


def _sent_within_objective(curve: LoadCurve, clients: float) -> float:
    """Return the requests/s of clients of a closed loop whom enough replicas serve as they serve the most that hold.

    What too few replicas answer is no measure of what the clients ask: they wait, and send less.
    """
    held = max((level for level in curve.levels.values() if level.holds), key=lambda level: level.load)
    return held.rate * clients / held.load


def _held_nowhere(curve: LoadCurve) -> InfeasibleError:
    """Return the error of an objective that holds at no load, with what the lowest load shows."""
    lowest = curve.levels[min(curve.levels)]
    unit = "requests/s" if not curve.is_closed else "client" if lowest.load == 1 else "clients"
    load = f"{lowest.load:.3g} {unit}"
    met = "" if lowest.attainment is None else f", {lowest.attainment:.1%} of requests meet it"
    lost = f"; {lowest.lost:.1%} are not served at all" if lowest.lost else ""
    return InfeasibleError(
        f"the objective is held at no load: at {load}{met}{lost}",
        remedy="see simserve run; relax the objective or change the deployment",
    )


def _comparison(resolved: ResolvedScenario, day: _Day, traffic: MeanRequest, api: ApiPrices) -> Comparison:
    pricing, deployment = resolved.scenario.pricing, resolved.scenario.deployment
    hour = day.gpu_hour_usd * HOURS_PER_MONTH + _electricity(resolved, day)
    return Comparison(
        unit_usd_per_month=day.gpus_per_unit * day.paid_share * hour,
        gpus_per_unit=day.gpus_per_unit,
        units=day.units,
        paid_share=day.paid_share,
        is_scaled=deployment.autoscaling is not None and not deployment.pools,
        spare_units=pricing.spare_replicas or 0,
        capacity=day.capacity,
        fixed_usd_per_month=fixed_usd_per_month(resolved.scenario),
        overflow_usd_per_request=day.api_usd_per_month / day.requests_per_month,
        api=api,
        api_usd_per_request=(traffic.input_usd + traffic.output_usd) * api.batch_factor(pricing.batch_share or 0.0),
        tokens_per_request=traffic.prompt_tokens + traffic.output_tokens,
        requests_per_month=day.requests_per_month,
        shape=day.shape,
        gpus_fall=pricing.purchase != "owned",
    )


def _electricity(resolved: ResolvedScenario, day: _Day) -> float:
    """Return a month's electricity for one GPU in dollars, where it is paid separately."""
    if not resolved.gpu_hour.pays_electricity:
        return 0.0
    site = grid(resolved.scenario.pricing)
    return site.site_watts(day.watts_per_gpu) / 1000 * HOURS_PER_MONTH * site.usd_per_kwh


def _of_compared(scenario: Scenario, model: Comparison, warnings: Sequence[str]) -> list[str]:
    """Return the warnings without that on the scenario's API, if another is compared with."""
    own, overflow = scenario.pricing.api, scenario.deployment.overflow
    is_used = (model.api is not None and model.api.name == own) or (overflow is not None and overflow.api == own)
    left_out = None if own is None or is_used else withdrawal_note(load_api(own, scenario.folder), None)
    return [each for each in warnings if each != left_out]


def _summary(
    resolved: ResolvedScenario,
    curve: LoadCurve,
    day: _Day,
    traffic: MeanRequest,
    model: Comparison,
    why_api: str | None,
) -> dict[str, Any]:
    pricing, requests = resolved.scenario.pricing, day.requests_per_month
    month, bill = model.self_host_usd(requests), model.api_usd(requests)
    free, even = model.beside_overflow().from_one_unit, as_deployed(model)["requests_per_month"]
    is_known = day.capacity is not None or resolved.scenario.deployment.overflow is not None
    most = math.inf if is_known or curve.as_it_is().holds else requests
    if even is not None and even > min(model.units * model.capacity_per_month, most):
        even = None  # The units that the traffic needs cannot sustain it.
    crossing = _held_crossing(cost_model.break_even(free), most)
    is_simulated = is_known or (crossing["requests_per_month"] or 0.0) <= requests
    ladder_rows = ladder(model.beside_overflow(), assumed=cost_model.ASSUMED_OPERATIONS_USD)
    simulated = next(iter(curve.results.values())).summary["simserve"]
    return {
        "warnings": _of_compared(resolved.scenario, model, simulated["warnings"]),
        "scenario": resolved.scenario.name,
        "question": _question(resolved, day),
        "formats": resolved.formats,
        "self_host": _self_host(resolved, day, traffic, model, month),
        "api": _api_side(day, traffic, model, bill, pricing.batch_share),
        "cheaper": "self_host" if month < bill else "api",
        "saving_usd_per_month": bill - month,
        "hybrid": cost_model.hybrid(free),
        "break_even": {**crossing, "as_deployed_requests_per_month": even, "is_simulated": is_simulated},
        "left_out": [row if _is_within(row, most) else {**row, **_NO_CROSSING} for row in ladder_rows],
        "load_is_clients": curve.is_closed,
        "load_levels": [
            {name: value for name, value in asdict(curve.levels[load]).items() if name not in _NOT_SHOWN}
            for load in sorted(curve.levels)
        ],
        "outlook": _held_outlook(
            cost_model.outlook(
                model,
                api_fall=pricing.api_price_fall_per_year,
                gpu_fall=pricing.gpu_price_fall_per_year,
                growth=pricing.traffic_growth_per_year or 0.0,
            ),
            most,
        ),
        "sensitivity": cost_model.sensitivity(model, _ranges(resolved, model)),
        "day": {
            "requests_per_month": requests,
            "mean_rate": day.mean_rate,
            "peak_rate": day.mean_rate * max(day.shape),
            "hourly_over_mean": list(day.shape),
            "capacity_rate_per_replica": day.capacity,
        },
        "fidelity": simulated["fidelity"],
        "expected_error": simulated["expected_error"],
        "caveats": caveats(resolved, model, why_api, simulated, is_scaled=curve.own_load is not None),
    }


def _held_crossing(crossing: Mapping[str, Any], most: float) -> dict[str, Any]:
    """Return a break-even; that there is none, and why, where it lies above a volume at which the objective fails."""
    found = crossing["requests_per_month"]
    if found is None or found <= most:
        return dict(crossing)
    missed = f"at {found / 1e6:.3g} M requests a month these miss the SLO, as at the {most / 1e6:.3g} M of this traffic"
    return {**dict.fromkeys(crossing), "why_never": missed}


def _is_within(row: Mapping[str, Any], most: float) -> bool:
    crossing = row["break_even_requests_per_month"]
    return crossing is None or bool(crossing <= most)


def _held_outlook(outlook: Mapping[str, Any] | None, most: float) -> dict[str, Any] | None:
    """Return an outlook without the break-evens that lie above a volume at which the objective fails."""
    if outlook is None:
        return None
    none = {"break_even_requests_per_month": None}
    rows = [row if _is_within(row, most) else {**row, **none} for row in outlook["by_month"]]
    return {**outlook, "by_month": rows}


def _question(resolved: ResolvedScenario, day: _Day) -> str:
    scenario = resolved.scenario
    rates = f"{day.mean_rate:.3g} a second"
    if max(day.shape) > 1:
        rates = f"{day.mean_rate * max(day.shape):.3g} a second in the busiest hour, {day.mean_rate:.3g} on average"
    return (
        f"{scenario.name}: {scenario.model} on {scenario.deployment.hardware}, {formats_line(resolved.formats)}; "
        f"{day.requests_per_month / 1e6:.3g} M requests a month, {rates}"
    )


def _self_host(
    resolved: ResolvedScenario, day: _Day, traffic: MeanRequest, model: Comparison, month: float
) -> dict[str, Any]:
    pricing, requests = resolved.scenario.pricing, day.requests_per_month
    prompt, output = requests * traffic.prompt_tokens, requests * traffic.output_tokens
    gpus = (day.units + model.spare_units) * model.gpus_per_unit
    paid = (day.units * day.paid_share + model.spare_units) * model.gpus_per_unit
    full = None if day.capacity is None else day.units * day.capacity
    site = grid(pricing)
    kwh = paid * site.site_watts(day.watts_per_gpu) / 1000 * HOURS_PER_MONTH
    return {
        "purchase": pricing.purchase or "on_demand",
        "usd_per_month": month,
        "usd_per_request": month / requests,
        "usd_per_million_tokens": month / (prompt + output) * _MILLION,
        "usd_per_million_input_tokens": month / prompt * _MILLION,
        "usd_per_million_output_tokens": month / output * _MILLION if output else None,
        "utilization": day.busy if full is None else day.mean_rate / full,
        "busy": day.busy,
        "gpus": gpus,
        "gpus_paid_on_average": paid,
        "replicas": day.units,
        "spare_replicas": model.spare_units,
        "gpu_hour_usd": day.gpu_hour_usd,
        "gpu_hour_source": resolved.gpu_hour_source,
        "gpu_usd_per_month": paid * day.gpu_hour_usd * HOURS_PER_MONTH,
        "fleet_usd_per_month": paid * day.gpu_hour_usd * HOURS_PER_MONTH,
        "overflow_usd_per_month": day.api_usd_per_month,
        "electricity_usd_per_month": paid * _electricity(resolved, day),
        "operations_usd_per_month": pricing.operations_usd_per_month,
        "platform_usd_per_month": pricing.platform_usd_per_month or 0.0,
        "watts_per_gpu": day.watts_per_gpu,
        "kwh_per_month": kwh,
        "kg_co2_per_month": kwh * site.grams_co2_per_kwh / 1000,
    }


def _api_side(
    day: _Day, traffic: MeanRequest, model: Comparison, bill: float, batch_share: float | None
) -> dict[str, Any]:
    api, requests = model.api, day.requests_per_month
    assert api is not None  # _comparison sets it
    assert model.tokens_per_request is not None  # likewise
    factor = api.batch_factor(batch_share or 0.0)
    return {
        "name": api.name,
        "usd_per_month": bill,
        "usd_per_million_tokens": bill / (requests * model.tokens_per_request) * _MILLION,
        "usd_per_request": bill / requests,
        "input_usd_per_month": requests * traffic.input_usd * factor,
        "output_usd_per_month": requests * traffic.output_usd * factor,
        "prompt_tokens": traffic.prompt_tokens,
        "output_tokens": traffic.output_tokens,
        "cached_share": traffic.cached_share,
        "prompt_caching": None if traffic.caching is None else traffic.caching.model_dump(mode="json"),
        "tokens_per_month": requests * model.tokens_per_request,
        "date": api.date,
        "source": api.source,
        "latency": latency_figures(api),
        "peak_hours": peak_figures(api),
    }


def _ranges(resolved: ResolvedScenario, model: Comparison) -> dict[str, tuple[Any, Any]]:
    """Return the tornado: the GPU's price over the offers that exist, the rest by factors."""
    ranges = cost_model.usual_ranges(model)
    pricing = resolved.scenario.pricing
    found = offers(resolved.shape.hardware.prices, "on_demand")
    usd = resolved.gpu_hour_usd
    if usd and pricing.gpu_hour_usd is None and pricing.purchase in (None, "on_demand") and len(found) > 1:
        prices = sorted({usd, *(price.usd_per_hour for price in found)})
        low, high = (
            replace(model, unit_usd_per_month=model.unit_usd_per_month * p / usd) for p in (prices[0], prices[-1])
        )
        del ranges[cost_model.GPUS]
        ranges["GPU-hour, $ (the offers there are)"] = ((prices[0], low), (prices[-1], high))
    if max(model.shape) > 1:
        flat, sharp = (replace(model, shape=day_shape(peak_to_mean=peak)) for peak in _PEAKS)
        ranges["busiest hour over the mean"] = ((_PEAKS[0], flat), (_PEAKS[1], sharp))
    return ranges


def ways(models: Mapping[str, Comparison]) -> list[dict[str, Any]]:
    """Return the cheapest way for each range of volume, in order: ``name``, ``from_`` and ``to_requests_per_month``.

    The first begins at 0, the last has no end. Ranges shorter than 0.6 % of their volume, such as the ends of single
    stairs, may be missed.

    Args:
        models: Name -> what a replica costs and can sustain; the API is that of the first.
    """
    first = next(iter(models.values()))
    bills: dict[str, Bill] = {API: first.api_usd}
    bills |= {name: model.from_one_unit.self_host_usd for name, model in models.items()}
    decades = math.log10(MOST_REQUESTS / FEWEST_REQUESTS)
    volumes = [
        FEWEST_REQUESTS * 10 ** (step / _STEPS_PER_DECADE) for step in range(round(decades * _STEPS_PER_DECADE) + 1)
    ]
    found: list[dict[str, Any]] = []
    last, name = 0.0, _cheapest(bills, volumes[0])
    for volume, following in itertools.pairwise(volumes):
        other = _cheapest(bills, following)
        if other == name:
            continue
        change = _change(bills, volume, following)
        found.append({"name": name, "from_requests_per_month": last, "to_requests_per_month": change})
        last, name = change, other
    return [*found, {"name": name, "from_requests_per_month": last, "to_requests_per_month": None}]


def _cheapest(bills: Mapping[str, Bill], requests: float) -> str:
    return min(bills, key=lambda name: bills[name](requests))


def _change(bills: Mapping[str, Bill], low: float, high: float) -> float:
    """Return the volume between two at which the cheapest way changes, by bisection."""
    before = _cheapest(bills, low)
    while high > low * (1 + _CLOSE):
        middle = math.sqrt(low * high)
        if _cheapest(bills, middle) == before:
            low = middle
        else:
            high = middle
    return high


def ladder(model: Comparison, *, assumed: float) -> list[dict[str, Any]]:
    """Return a month's cost from GPUs that are always full to what is paid, term by term, and what is still left out.

    Args:
        assumed: Dollars of operations shown where the scenario gives none.
    """
    requests = model.requests_per_month or 0.0
    serving = model.units_for(requests) * model.unit_usd_per_month
    rows: list[tuple[str, float, bool]] = []
    if model.capacity is not None:
        full = requests / SECONDS_PER_MONTH / model.capacity * model.full_unit_usd
        rows += [("GPUs, always full", full, True), ("whole replicas for the busiest hour", serving - full, True)]
    else:
        rows.append(("the GPUs of the deployment", serving, True))
    if model.spare_units:
        rows.append((f"{model.spare_units} spare", model.spare_units * model.full_unit_usd, True))
    if model.fixed_usd_per_month:
        rows.append(("operations and platform", model.fixed_usd_per_month, True))
    else:
        rows.append(("operations (assumed: 30 hours at $100)", assumed, False))
    if not model.spare_units:
        rows.append(("one spare replica", model.full_unit_usd, False))
    # Where more GPUs never catch up with the API, no monthly sum gives a volume at which they would.
    crosses = bool(model.api_usd_per_request) and break_even(model.from_one_unit)["requests_per_month"] is not None
    counted = 0.0
    shown = []
    for term, usd, is_counted in rows:
        counted += usd if is_counted else 0.0
        total = counted if is_counted else counted + usd
        crossing = model.api_requests(total) if crosses else None
        shown.append(
            {
                "term": term,
                "adds_usd_per_month": usd,
                "is_counted": is_counted,
                "self_host_usd_per_month": total,
                "break_even_requests_per_month": crossing,
                "break_even_tokens_per_month": None
                if crossing is None or model.tokens_per_request is None
                else crossing * model.tokens_per_request,
            }
        )
    return shown


def caveats(
    resolved: ResolvedScenario, model: Comparison, why_api: str | None, simulated: Mapping[str, Any], *, is_scaled: bool
) -> list[str]:
    """Return what the figures leave open: the quality of the answers, the fleet, the API, the day, the simulation."""
    scenario = resolved.scenario
    notes = [_quality(resolved, model)]
    scaling, overflow = scenario.deployment.autoscaling, scenario.deployment.overflow
    deployed = at_most(scenario.deployment).replicas
    notes += [
        f"the pool {pool.name} is scaled from {own.min_replicas} to {own.max_replicas} replicas: what is paid is their "
        "GPU-hours from launch to end, simulated at the loads of the day"
        for pool in scenario.deployment.pools
        if (own := pool.autoscaling or scaling) is not None
    ]
    if scaling is not None and not scenario.deployment.pools:
        notes.append(
            f"the fleet is scaled from {scaling.min_replicas} to {scaling.max_replicas} replicas: what is paid is "
            "their GPU-hours from launch to end, simulated at the loads of the day; at other volumes, the replicas "
            "that each hour needs"
        )
    if overflow is not None:
        notes.append(
            f"{overflow.api} takes what finds more than {overflow.max_queue} waiting, and is paid a request at the "
            "share of today; how far the replicas alone reach is not asked"
        )
    if model.units > deployed and model.capacity is not None:
        notes.append(
            f"the busiest hour takes {model.units} replicas, of which the scenario has {deployed}: one holds "
            f"{model.capacity:.3g} requests/s; {model.units} are priced"
        )
    if scenario.pricing.purchase == "spot" and all(each.kind != "spot" for each in scenario.deployment.faults):
        notes.append("spot GPUs may be taken back at any time: deployment.faults with kind: spot simulates that")
    if why_api is not None:
        notes.append(why_api)
    if not is_scaled:
        notes.append("this traffic is priced as it is, round the clock: it has no rate that a day could scale")
    elif scenario.pricing.daily is None:
        notes.append("traffic arrives round the clock, a month of 720 hours; pricing.daily takes the curve of a day")
    steps, expected = _FIDELITY.get(simulated["fidelity"], simulated["fidelity"]), simulated["expected_error"]
    error = f"{expected['throughput']['p90']:.0%} ({expected['basis'].removeprefix('foreign: ')})"
    notes.append(
        f"what a replica can sustain is simulated; step times: {steps}; the throughput of 9 in 10 real servers is "
        f"within {error}"
    )
    return notes


def _quality(resolved: ResolvedScenario, model: Comparison) -> str:
    scenario, name = resolved.scenario, "the API" if model.api is None else model.api.name
    weights = load_api(name).weights if catalog.has("api", name) else None
    is_same = weights == weights_name(scenario.model, scenario.folder)
    formats = resolved.formats
    if is_same and formats["weights_source"] == "as stored":
        return f"{name} serves the same weights, in a number format of its provider's choice; yours are as stored"
    if is_same and formats["weights"] in WIDE_FORMATS:
        return f"{name} serves the same weights, in a number format of its provider's choice"
    if is_same:
        return f"{name} serves the same weights; yours are rounded to {formats['weights']}"
    return (
        f"{name} is not known to be {scenario.model}: prices say nothing of the answers; compare both on your own "
        "tasks first"
    )
