"""A month (720 hours) of a scenario's traffic in dollars, with an API to compare, as `run`, `plan` and `cost` count it.

The traffic is the scenario's own, round the clock, with a curve of the day only if the scenario has one. The fleet is
the deployment as it is; how it would grow with the volume is for `simserve.planner.cost.scenario` to find.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simserve.metrics.api_cost import ApiPrices, request_bills
from simserve.metrics.result import RunResult
from simserve.planner.cost import model as cost_model
from simserve.planner.cost.model import Comparison, day_shape
from simserve.planner.load_curve import LoadCurve
from simserve.planner.scaling import steady_rate
from simserve.planner.search.trial import run_holds
from simserve.profiles.api import PromptCaching, load_api, serving
from simserve.profiles.catalog import weights_name
from simserve.scenario.finishable import KnownFinishable
from simserve.scenario.replication import arrived
from simserve.scenario.resolve import ResolvedScenario
from simserve.scenario.schema import Scenario, objective
from simserve.sim.records import COMPLETED
from simserve.units import HOURS_PER_DAY, HOURS_PER_MONTH, SECONDS_PER_MONTH
from simserve.workload.arrival_spec import ClosedLoopArrivals
from simserve.workload.requests import RequestSpecs

_MILLION = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanRequest:
    """The mean request of a run, and what an API charges for it."""

    prompt_tokens: float  # Tokens of its prompt.
    output_tokens: float  # Tokens of its answer.
    cached_share: float  # Share of the prompt tokens that the API finds in its cache.
    input_usd: float  # Dollars for its prompt at list price.
    output_usd: float  # Dollars for its answer at list price.
    caching: PromptCaching | None  # The prompt-caching offer that was taken; None: none.

    @property
    def usd(self) -> float:
        """Dollars for the whole request at list price."""
        return self.input_usd + self.output_usd


def mean_request(result: RunResult, specs: RequestSpecs, api: ApiPrices) -> MeanRequest:
    """Return the mean of the completed requests of a run, as an API would charge them, including its prompt cache."""
    records = result.simulation.records
    rows = np.flatnonzero(records.status == COMPLETED)
    prompt, output = (column[rows].astype(np.float64) for column in (records.prompt_tokens, records.output_tokens))
    bills = request_bills(api, records, specs, rows)
    return MeanRequest(
        prompt_tokens=float(prompt.mean()),
        output_tokens=float(output.mean()),
        cached_share=float(bills.cached_tokens.sum() / prompt.sum()),
        input_usd=float(bills.input_usd.mean()),
        output_usd=float(bills.output_usd.mean()),
        caching=bills.caching,
    )


def compared_api(scenario: Scenario, result: RunResult, specs: RequestSpecs) -> tuple[ApiPrices, str | None] | None:
    """Return the prices to compare a scenario with, and the reason where nobody named them; None where none are known.

    They are those of the API that the scenario names or overflows to, else of the cheapest in the catalogue for its
    requests that serves the same weights.

    Raises:
        InputError: The API has no profile.
    """
    if scenario.pricing.api is not None:
        with scenario.blaming("pricing.api"):
            return ApiPrices.of(load_api(scenario.pricing.api, scenario.folder)), None
    overflow = scenario.deployment.overflow
    if overflow is not None:
        with scenario.blaming("deployment.overflow.api"):
            return ApiPrices.of(load_api(overflow.api, scenario.folder)), f"compared with all of it at {overflow.api}"
    if any(pool.model is not None for pool in scenario.deployment.pools):
        return None  # Several models answer: no single API does.
    same = [ApiPrices.of(each) for each in serving(weights_name(scenario.model, scenario.folder))]
    if not same:
        return None
    cheapest = min(same, key=lambda each: (mean_request(result, specs, each).usd, each.name))
    return cheapest, f"no API is named: compared with {cheapest.name}, the cheapest that serves the same weights"


def shape_of_day(scenario: Scenario) -> tuple[float, ...]:
    """Return the traffic of each hour as a multiple of the mean: even, unless ``pricing.daily`` says otherwise.

    Traffic without a load that a day could scale (a trace, a batch, a curve of its own) is the same all day.

    Raises:
        ScenarioError: There is no such day.
    """
    spec = scenario.pricing.daily
    has_load = steady_rate(scenario) is not None or isinstance(scenario.workload.arrivals, ClosedLoopArrivals)
    if spec is None or not has_load:
        return (1.0,) * HOURS_PER_DAY
    with scenario.blaming("pricing.daily"):
        return day_shape(spec.hourly, spec.peak_to_mean, spec.peak_to_trough)


def sent_rate(scenario: Scenario, specs: RequestSpecs) -> float | None:
    """Return the requests/s that are sent whatever is deployed; None where answers set the pace, or all come at once.

    It is the scenario's own rate; if rates vary, their mean until the last arrival; for a trace whose requests all come
    at their own times, its gaps over the time between first and last. So a month is the same for every fleet.
    """
    steady = steady_rate(scenario)
    if steady is not None:
        return steady
    if math.isfinite(specs.offered_rate):
        return specs.offered_rate
    times = specs.arrival_time
    is_trace = scenario.workload.trace is not None and scenario.workload.arrivals is None
    if not is_trace or not np.isfinite(times).all():
        return None
    span = float(times.max() - times.min())
    return (len(times) - 1) / span if span > 0 else None


def mean_rate(scenario: Scenario, offered: float, shape: tuple[float, ...]) -> float:
    """Return the requests/s of a mean hour, where ``offered`` is what the scenario says, or serves, a second."""
    spec = scenario.pricing.daily
    is_peak = spec is not None and spec.rate_is == "peak"
    return offered / max(shape) if is_peak else offered


def month(resolved: ResolvedScenario, result: RunResult, known: KnownFinishable | None = None) -> dict[str, Any] | None:
    """Return a month of a run's traffic on its deployment and at an API; None without a price or a finished request.

    Args:
        known: What is known of what its deployment can finish.

    Returns:
        ``requests_per_month tokens_per_month`` (prompts and answers), ``self_host_usd_per_month
        self_host_usd_per_request self_host_usd_per_million_tokens``, ``break_even_requests_per_month``
        from which the deployment costs less (None where it does not hold the objective at that volume, as ``why_never``
        says), ``cheaper`` (``self_host`` or ``api``; None where the deployment cannot serve the traffic) and ``api``
        (``name date is_named usd_per_month usd_per_request``); the last two are None where no API is known.

    Raises:
        InputError: A profile no longer exists.
    """
    scenario = resolved.scenario
    hourly = result.summary["simserve"]["cost"]["usd_per_hour"]
    if hourly is None or not result.summary["completed"] or not result.summary["request_throughput"]:
        return None
    specs = arrived(scenario, len(result.simulation.records))
    found = compared_api(scenario, result, specs)
    prices, why = (None, None) if found is None else found
    model = _as_deployed(resolved, result, hourly, specs, prices)
    requests = model.requests_per_month or 0.0
    own = model.self_host_usd(requests)
    even, why_never = _break_even(resolved, result, model, known or {})
    bill = model.api_usd(requests)
    tokens = requests * _mean_tokens(result)
    is_served = prices is not None and result.summary["simserve"]["stability"] != "overloaded"
    return {
        "requests_per_month": requests,
        "tokens_per_month": tokens,
        "self_host_usd_per_month": own,
        "self_host_usd_per_request": own / requests,
        "self_host_usd_per_million_tokens": own / tokens * _MILLION,
        "break_even_requests_per_month": even,
        "why_never": why_never,
        "cheaper": ("self_host" if own < bill else "api") if is_served else None,
        "api": None
        if prices is None
        else {
            "name": prices.name,
            "date": prices.date,
            "is_named": why is None,
            "usd_per_month": bill,
            "usd_per_request": model.api_usd_per_request,
        },
    }


def _mean_tokens(result: RunResult) -> float:
    """Return the mean tokens of a completed request of a run, prompt and answer together, as `mean_request` counts."""
    records = result.simulation.records
    done = records.status == COMPLETED
    return float(records.prompt_tokens[done].mean() + records.output_tokens[done].mean())


def as_deployed(model: Comparison) -> dict[str, Any]:
    """Return the break-even of a deployment as it is: no replica fewer at a small volume, none more at a large one."""
    return cost_model.break_even(replace(model.beside_overflow(), capacity=None))


def _break_even(
    resolved: ResolvedScenario, result: RunResult, model: Comparison, known: KnownFinishable
) -> tuple[float | None, str | None]:
    """Return the break-even of a run's deployment; None, and the reason, where it does not hold the objective there.

    Both are None if the run was interrupted, or this is.
    """
    even: float | None = as_deployed(model)["requests_per_month"]
    if even is None or not model.requests_per_month or result.simulation.was_interrupted:
        return None, None
    try:
        is_held = _holds_at(resolved, result, even / model.requests_per_month, known)
    except KeyboardInterrupt:
        return None, None
    if is_held:
        return even, None
    fails = "be overloaded" if objective(resolved.scenario) is None else "not hold the SLO"
    return None, f"at {even / 1e6:.3g} million requests a month it would {fails}"


def _holds_at(resolved: ResolvedScenario, result: RunResult, multiple: float, known: KnownFinishable) -> bool:
    """Return whether the deployment holds its objective at a multiple of a run's traffic, as `simserve cost` means it.

    No further run is made where it finishes less. A trace, or clients of a closed loop, cannot be scaled to a rate:
    these are taken to hold unless the run misses the objective at no more traffic than that. A deployment whose excess
    goes to an API is taken to hold.
    """
    scenario, inner = resolved.scenario, result.summary["simserve"]
    own = steady_rate(scenario)
    if scenario.deployment.overflow is not None:
        return True
    if own is None:
        return multiple < 1 or run_holds(scenario, result.summary)
    if inner["load_ratio"] is not None and multiple * inner["load_ratio"] >= 1:
        return False
    curve = LoadCurve(scenario, known=known)
    return (multiple <= 1 and curve.as_it_is().holds) or curve.at(multiple * own).holds


def _as_deployed(
    resolved: ResolvedScenario, result: RunResult, hourly: float, specs: RequestSpecs, api: ApiPrices | None
) -> Comparison:
    scenario, pricing, shape = resolved.scenario, resolved.scenario.pricing, shape_of_day(resolved.scenario)
    rate = sent_rate(scenario, specs)
    served = float(result.summary["request_throughput"])
    requests = mean_rate(scenario, served if rate is None else rate, shape) * SECONDS_PER_MONTH
    overflow = result.summary["simserve"]["overflow"]["usd_per_hour"] or 0.0
    units, billed = max(scenario.deployment.replicas, 1), None if api is None else mean_request(result, specs, api)
    return Comparison(
        unit_usd_per_month=(hourly - overflow) * HOURS_PER_MONTH / units,
        gpus_per_unit=scenario.deployment.num_gpus / units,
        units=units,
        spare_units=pricing.spare_replicas or 0,
        fixed_usd_per_month=fixed_usd_per_month(scenario),
        overflow_usd_per_request=overflow * HOURS_PER_MONTH / (served * SECONDS_PER_MONTH),
        api=api,
        api_usd_per_request=None
        if api is None or billed is None
        else billed.usd * api.batch_factor(pricing.batch_share or 0.0),
        tokens_per_request=None if billed is None else billed.prompt_tokens + billed.output_tokens,
        requests_per_month=requests,
        shape=shape,
    )


def fixed_usd_per_month(scenario: Scenario) -> float:
    """Return what people and platform cost a month, as far as the scenario says."""
    return scenario.pricing.operations_usd_per_month + (scenario.pricing.platform_usd_per_month or 0.0)
