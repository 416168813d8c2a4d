"""What a cost comparison must say beside its figures: from the naive price to the real one, and what it cannot know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simserve.planner.cost.model import SECONDS_PER_MONTH, Comparison, break_even
from simserve.profiles.api import load_api
from simserve.profiles.checkpoint import WIDE_FORMATS
from simserve.profiles.model import weights_name
from simserve.scenario.resolve import ResolvedScenario


def ladder(model: Comparison, *, assumed: float) -> list[dict[str, Any]]:
    """Return the month from GPUs that are always full to what is paid, term by term, and what is still left out.

    Args:
        model: The month.
        assumed: Dollars of operations shown where the scenario gives none.
    """
    requests = model.requests_per_month or 0.0
    serving = model.units_for(requests) * model.unit_usd_per_month
    rows: list[tuple[str, float, bool]] = []
    if model.capacity is not None:
        full = requests / SECONDS_PER_MONTH / model.capacity * model.unit_usd_per_month
        rows += [("GPUs, always full", full, True), ("whole replicas for the busiest hour", serving - full, True)]
    else:
        rows.append(("the GPUs of the deployment", serving, True))
    if model.spare_units:
        rows.append((f"{model.spare_units} spare", model.spare_units * model.unit_usd_per_month, True))
    if model.fixed_usd_per_month:
        rows.append(("operations and platform", model.fixed_usd_per_month, True))
    else:
        rows.append(("operations (assumed: 30 hours at $100)", assumed, False))
    if not model.spare_units:
        rows.append(("one spare replica", model.unit_usd_per_month, False))
    # Where more GPUs never catch up with the API, no sum of a month is a volume at which they would.
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


_FIDELITY = {
    "roofline": "a roofline of datasheet peaks",
    "fitted": "curves fitted to measurements",
    "measured": "measured operators",
}


def caveats(
    resolved: ResolvedScenario,
    model: Comparison,
    why_api: str | None,
    *,
    is_scaled: bool,
    fidelity: str,
    expected_error: Mapping[str, Any],
) -> list[str]:
    """Return what the figures leave open: the quality of the answers, the fleet, the API, the day, the simulation."""
    scenario = resolved.scenario
    said = [_quality(resolved, model)]
    scaling, overflow = scenario.deployment.autoscaling, scenario.deployment.overflow
    deployed = scenario.deployment.replicas if scaling is None else scaling.max_replicas
    if scaling is not None:
        said.append(
            f"the fleet is scaled from {scaling.min_replicas} to {scaling.max_replicas} replicas: what is paid is "
            "their GPU-hours from launch to end, simulated at the loads of the day"
        )
    if overflow is not None:
        said.append(
            f"{overflow.api} takes what finds more than {overflow.max_queue} waiting, and is paid a request at the "
            "share of today; how far the replicas alone reach is not asked"
        )
    if model.units > deployed and model.capacity is not None:
        said.append(
            f"the busiest hour takes {model.units} replicas, of which the scenario has {deployed}: one holds "
            f"{model.capacity:.3g} requests/s; {model.units} are priced"
        )
    if why_api is not None:
        said.append(why_api)
    if not is_scaled:
        said.append("this traffic is priced as it is, round the clock: it has no rate that a day could scale")
    elif scenario.pricing.daily is None:
        said.append("traffic arrives round the clock, a month of 720 hours; pricing.daily takes the curve of a day")
    steps = _FIDELITY.get(fidelity, fidelity)
    said.append(f"what a replica can sustain is simulated; step times: {steps}{_error(expected_error)}")
    return said


def _error(expected: Mapping[str, Any]) -> str:
    """Return how far servers that nobody fitted are from such figures."""
    found, basis = expected["throughput"], expected["basis"].removeprefix("foreign: ")
    return f"; the throughput of 9 in 10 real servers is within {found['p90']:.0%} ({basis})"


def _quality(resolved: ResolvedScenario, model: Comparison) -> str:
    scenario, name = resolved.scenario, "the API" if model.api is None else model.api.name
    weights = _weights(name)
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


def _weights(name: str) -> str | None:
    from simserve.profiles import catalog

    return load_api(name).weights if catalog.has("api", name) else None
