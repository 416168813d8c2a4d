"""Self-host or API: the one entry to both ways of asking, and the one by arithmetic alone. Simulates nothing itself.

By arithmetic, any sensible subset of the terms (GPUs, a month's requests, prices) gives what answers it can: a price
and a rate give dollars a million tokens; a volume and an API price give its bill; all of them give a break-even.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from simserve.errors import UsageError, nearest
from simserve.metrics.api_cost import ApiPrices, latency_figures, peak_figures
from simserve.planner.cost import model as cost_model
from simserve.planner.cost.model import Comparison, day_shape
from simserve.profiles import catalog
from simserve.profiles.api import catalogue_date, load_api, withdrawal_note
from simserve.profiles.price_dates import check_today, is_old
from simserve.scenario.load import Overrides, from_mapping
from simserve.scenario.run import Progress
from simserve.scenario.schema import Scenario
from simserve.units import HOURS_PER_MONTH, SECONDS_PER_MONTH

USUAL_UTILIZATION = (0.8, 0.7)
"""Shares of a GPU's rate that steady operation uses, for what a comparison at full use leaves out."""
_MILLION = 1e6
_OWN_KEYS = (
    "usd_per_month",
    "usd_per_request",
    "usd_per_million_tokens",
    "usd_per_million_input_tokens",
    "usd_per_million_output_tokens",
    "utilization",
    "gpus",
    "gpu_usd_per_month",
    "fleet_usd_per_month",
    "operations_usd_per_month",
)
_MAY_BE_ZERO = ("gpu_hour_usd", "operations_usd", "prompt_tokens", "cached_share", "api_request_usd")
_SHARES = ("share", "utilization", "cached_share")


@dataclass(frozen=True, slots=True, kw_only=True)
class CostTerms:
    """What is known of the two ways to serve.

    Attributes:
        gpus: GPUs of the fleet.
        gpu_hour_usd: Dollars a GPU-hour.
        operations_usd: Dollars a month for people and platform; None: not counted.
        share: Share of the fleet that this use pays for.
        utilization: Share of the fleet's rate that is used on average.
        requests_per_month: Requests of a month.
        prompt_tokens: Tokens in the prompt of a mean request.
        output_tokens: Tokens in the answer to a mean request.
        cached_share: Share of the prompt tokens that the API finds in its cache.
        requests_per_second: The fleet's rate at full use.
        output_tokens_per_second: The fleet's rate at full use.
        api: What the API charges for tokens.
        api_request_usd: What a request costs at the API, if tokens are not counted.
    """

    gpus: float | None = None
    gpu_hour_usd: float | None = None
    operations_usd: float | None = None
    share: float = 1.0
    utilization: float | None = None
    requests_per_month: float | None = None
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    cached_share: float = 0.0
    requests_per_second: float | None = None
    output_tokens_per_second: float | None = None
    api: ApiPrices | None = None
    api_request_usd: float | None = None

    @property
    def tokens_per_request(self) -> float | None:
        """Prompt and output tokens; None unless both are known."""
        if self.prompt_tokens is None or self.output_tokens is None:
            return None
        return self.prompt_tokens + self.output_tokens

    @property
    def rate(self) -> float | None:
        """Requests/s at full use, computed from output tokens/s if those are known instead."""
        if self.requests_per_second is not None:
            return self.requests_per_second
        if self.output_tokens_per_second is None or not self.output_tokens:
            return None
        return self.output_tokens_per_second / self.output_tokens

    @property
    def output_rate(self) -> float | None:
        """Output tokens/s at full use, computed from requests/s if those are known instead."""
        if self.output_tokens_per_second is not None:
            return self.output_tokens_per_second
        if self.requests_per_second is None or self.output_tokens is None:
            return None
        return self.requests_per_second * self.output_tokens

    @property
    def gpu_usd_per_month(self) -> float | None:
        """Dollars a month for the GPUs of the whole fleet; None without a price."""
        if self.gpu_hour_usd is None:
            return None
        return (1.0 if self.gpus is None else self.gpus) * self.gpu_hour_usd * HOURS_PER_MONTH


def _cost_arithmetic(terms: CostTerms) -> dict[str, Any]:
    """Return both sides of a month and where they cross; None for what cannot be told from the terms."""
    _check(terms)
    model = _model(terms)
    api = _api_side(terms, model)
    own = _self_host_side(terms, model)
    compares = model is not None and model.api_usd_per_request is not None
    both = own["usd_per_month"] is not None and api["usd_per_month"] is not None
    saving = api["usd_per_month"] - own["usd_per_month"] if both else None
    return {
        "self_host": own,
        "api": api,
        "cheaper": None if saving is None else "self_host" if saving > 0 else "api",
        "saving_usd_per_month": saving,
        "hybrid": cost_model.hybrid(replace(model, shape=day_shape())) if model is not None and compares else None,
        "break_even": _break_even(terms, model),
        "left_out": _left_out(terms, model),
        "capacity": _capacity(terms, model),
        "outlook": None if model is None else cost_model.outlook(model),
        "sensitivity": [] if model is None else cost_model.sensitivity(model, cost_model.usual_ranges(model)),
        "terms": _given(terms),
    }


def _check(terms: CostTerms) -> None:
    for name, value in _given(terms).items():
        is_zero = value == 0 and name in _MAY_BE_ZERO
        if not (is_zero or 0 < value < math.inf):
            raise UsageError("must be above 0 and finite", key=name, value=value)
        if name in _SHARES and value > 1:
            raise UsageError("is a share, and must be at most 1", key=name, value=value)
    # Where the prefix is too short for all its offers, an API caches nothing.
    api, cached = terms.api, (terms.prompt_tokens or 0.0) * terms.cached_share
    offers = () if api is None else api.prompt_caching
    if cached and offers and not any(offer.kept(cached) for offer in offers):
        least = min(offer.min_tokens for offer in offers)
        raise UsageError(
            f"makes a prefix of {cached:,.0f} tokens, and {'' if api is None else api.name} caches from {least:,} on",
            key="--cached-share",
            value=terms.cached_share,
            remedy="leave it out",
        )
    has_fleet = terms.gpu_usd_per_month is not None
    has_api = terms.api is not None or terms.api_request_usd is not None
    if not has_fleet and terms.gpus is not None:
        raise UsageError("has no price", key="--gpus", remedy="add --gpu-hour-usd")
    if not has_fleet and not has_api:
        remedy = "name a scenario, or give --gpu-hour-usd, --api, or both of --api-input-usd and --api-output-usd"
        raise UsageError("has nothing to price", key="cost", remedy=remedy)
    if terms.api is not None and terms.tokens_per_request is None and not _is_flat(terms.api) and not has_fleet:
        raise UsageError("needs --prompt-tokens and --output-tokens", key="--api", remedy="prices are by the token")


def _is_flat(api: ApiPrices) -> bool:
    return api.price.input == api.price.output and not api.prompt_tiers


def _request_usd(terms: CostTerms) -> float | None:
    """Return the list price of a mean request."""
    if terms.api_request_usd is not None:
        return terms.api_request_usd
    if terms.api is None or terms.prompt_tokens is None or terms.output_tokens is None:
        return None
    cached = terms.prompt_tokens * terms.cached_share
    prompt, output = terms.api.tokens_usd(terms.prompt_tokens, terms.output_tokens, cached)
    return float(prompt[0] + output[0])


def _model(terms: CostTerms) -> Comparison | None:
    """Return the cost model of the two sides; None without GPUs."""
    fleet = terms.gpu_usd_per_month
    if fleet is None:
        return None
    used = 1.0 if terms.utilization is None else terms.utilization
    return Comparison(
        unit_usd_per_month=fleet,
        gpus_per_unit=1.0 if terms.gpus is None else terms.gpus,
        capacity=None if terms.rate is None else terms.rate * used,
        fixed_usd_per_month=terms.operations_usd or 0.0,
        share=terms.share,
        api=terms.api,
        api_usd_per_request=_request_usd(terms),
        tokens_per_request=terms.tokens_per_request,
        requests_per_month=terms.requests_per_month,
    )


def _self_host_side(terms: CostTerms, model: Comparison | None) -> dict[str, Any]:
    if model is None:
        return dict.fromkeys(_OWN_KEYS)
    requests = _served(terms, model)
    units = model.units if terms.requests_per_month is None else model.units_for(terms.requests_per_month)
    month = model.fleet_usd(units)
    fleet = units * model.unit_usd_per_month
    output = None if requests is None or terms.output_tokens is None else requests * terms.output_tokens
    if output is None and terms.output_tokens_per_second is not None:
        output = terms.output_tokens_per_second * SECONDS_PER_MONTH * (terms.utilization or 1.0)
    prompt = None if requests is None or terms.prompt_tokens is None else requests * terms.prompt_tokens
    tokens = output if prompt is None or output is None else prompt + output
    full = None if terms.rate is None else units * terms.rate * SECONDS_PER_MONTH
    values: list[Any] = [
        month,
        _per(month, requests),
        _per(month, tokens, _MILLION),
        _per(month, prompt, _MILLION),
        _per(month, output, _MILLION),
        terms.utilization if full is None or requests is None else requests / full,
        units * model.gpus_per_unit,
        fleet * model.share,
        fleet,
        model.fixed_usd_per_month,
    ]
    return dict(zip(_OWN_KEYS, values, strict=True))


def _served(terms: CostTerms, model: Comparison) -> float | None:
    """Return the requests of a month: the volume, or as much of it as the fleet can serve."""
    if terms.requests_per_month is not None:
        return terms.requests_per_month
    return None if model.capacity is None else model.capacity * SECONDS_PER_MONTH


def _api_side(terms: CostTerms, model: Comparison | None) -> dict[str, Any]:
    request, requests, api = _request_usd(terms), terms.requests_per_month, terms.api
    month = None if request is None or requests is None else request * requests
    net = month if month is None or api is None else api.net(month)
    parts: tuple[float | None, float | None] = (None, None)
    if api is not None and terms.prompt_tokens is not None and terms.output_tokens is not None and requests is not None:
        cached = terms.prompt_tokens * terms.cached_share
        prompt, output = api.tokens_usd(terms.prompt_tokens, terms.output_tokens, cached)
        parts = float(prompt[0]) * requests, float(output[0]) * requests
    per_token = _per(request, terms.tokens_per_request, _MILLION)
    if per_token is None and api is not None and _is_flat(api):
        per_token = api.price.input
    served = None if model is None else _served(terms, model)
    return {
        "name": None if api is None and request is None else "given" if api is None else api.name,
        "usd_per_month": net,
        "usd_per_million_tokens": per_token,
        "usd_per_request": request,
        "input_usd_per_month": parts[0],
        "output_usd_per_month": parts[1],
        "tokens_per_month": None
        if requests is None or terms.tokens_per_request is None
        else requests * terms.tokens_per_request,
        "usd_per_month_of_the_capacity": None if request is None or served is None else request * served,
        "date": None if api is None else api.date,
        "source": None if api is None else api.source,
        "latency": None if api is None else latency_figures(api),
        "peak_hours": None if api is None else peak_figures(api),
    }


def _break_even(terms: CostTerms, model: Comparison | None) -> dict[str, Any]:
    if model is None:
        return dict.fromkeys(("tokens_per_month", "requests_per_month"))
    found = cost_model.break_even(model)
    tokens = _tokens_for(terms, model, model.fleet_usd(1)) if model.api_usd_per_request is None else None
    if tokens is not None:
        return {**found, "tokens_per_month": tokens, "why_never": None, "gpus": model.gpus_per_unit}
    return found


def _tokens_for(terms: CostTerms, model: Comparison, usd: float) -> float | None:
    """Return the tokens a month that cost ``usd`` at the API; None where neither a mix nor a single price is known."""
    if model.api_usd_per_request and model.tokens_per_request is not None:
        return model.api_requests(usd) * model.tokens_per_request
    if terms.api is None or not _is_flat(terms.api) or not terms.api.price.input:
        return None
    return terms.api.gross(usd) / terms.api.price.input * _MILLION


def _left_out(terms: CostTerms, model: Comparison | None) -> list[dict[str, Any]]:
    """Return what a comparison of GPUs at full use with an API leaves out, each with its effect on the crossing.

    Each row is for the GPUs and this one term alone; the last for all of them at the lowest utilization.
    """
    if model is None:
        return []
    bare = replace(model, fixed_usd_per_month=0.0, capacity=None)
    unit = bare.unit_usd_per_month * bare.share
    per_gpu = unit / bare.gpus_per_unit
    operations = cost_model.ASSUMED_OPERATIONS_USD if terms.operations_usd is None else terms.operations_usd
    named = "assumed: 30 hours at $100" if terms.operations_usd is None else "given"
    low = min(USUAL_UTILIZATION)
    rows = [("GPUs alone, always full", 0.0, True), (f"operations ({named})", operations, bool(terms.operations_usd))]
    rows += [
        (f"utilization of {share:.0%}", unit / share - unit, terms.utilization == share) for share in USUAL_UTILIZATION
    ]
    rows.append(("a second GPU" if bare.gpus_per_unit == 1 else "one more GPU", per_gpu, False))
    rows.append((f"all of these, at {low:.0%}", operations + (unit + per_gpu) / low - unit, False))
    return [
        {
            "term": term,
            "adds_usd_per_month": added,
            "is_counted": counted,
            "self_host_usd_per_month": unit + added,
            "break_even_requests_per_month": model.api_requests(unit + added) if model.api_usd_per_request else None,
            "break_even_tokens_per_month": _tokens_for(terms, model, unit + added),
        }
        for term, added, counted in rows
    ]


def _capacity(terms: CostTerms, model: Comparison | None) -> list[dict[str, Any]]:
    """Return what the fleet serves in a month, and at what price, at full use and at the usual shares of it."""
    if model is None or (terms.rate is None and terms.output_rate is None):
        return []
    month = model.fleet_usd(1)
    shares = sorted({1.0, *USUAL_UTILIZATION, *([terms.utilization] if terms.utilization else [])}, reverse=True)
    rows = []
    for share in shares:
        requests = None if terms.rate is None else terms.rate * SECONDS_PER_MONTH * share
        output = None if terms.output_rate is None else terms.output_rate * SECONDS_PER_MONTH * share
        each = _per(month, requests)
        api = model.api_usd_per_request
        rows.append(
            {
                "utilization": share,
                "requests_per_month": requests,
                "output_tokens_per_month": output,
                "usd_per_request": each,
                "usd_per_million_output_tokens": _per(month, output, _MILLION),
                "api_over_self_host": None if api is None or each is None else api / each,
            }
        )
    return rows


def _given(terms: CostTerms) -> dict[str, Any]:
    values = {name: getattr(terms, name) for name in terms.__dataclass_fields__ if name != "api"}
    return {name: value for name, value in values.items() if value is not None}


def _per(usd: float | None, amount: float | None, scale: float = 1.0) -> float | None:
    return None if usd is None or not amount else usd / amount * scale


_TERMS = sorted(set(CostTerms.__dataclass_fields__) - {"api", "requests_per_month"})


def cost_summary(
    scenario: Scenario | None = None,
    *,
    api: str | ApiPrices | None = None,
    requests_per_month: float | None = None,
    today: str | None = None,
    progress: Progress | None = None,
    terms: Mapping[str, float] | None = None,
    variants: Mapping[str, Overrides] | None = None,
) -> dict[str, Any]:
    """Return what `simserve cost` prints; see `simserve.api.cost` for the arguments and errors."""
    given = dict(terms or {})
    for name in given:
        if name not in _TERMS:
            raise UsageError("is not a known term", key=name, remedy=nearest(name, _TERMS))
    judged_at = check_today(today) if today is not None else catalogue_date()
    if scenario is None:
        if variants:
            raise UsageError("needs a scenario", key="--with", remedy="name one, or price each way by itself")
        prices = ApiPrices.of(load_api(api)) if isinstance(api, str) else api
        summary = {"scenario": None} | _cost_arithmetic(
            CostTerms(api=prices, requests_per_month=requests_per_month, **given)
        )
    else:
        if given:
            raise UsageError("is for arithmetic without a scenario", key=next(iter(given)))
        from simserve.planner.cost.scenario import cost_of_scenario

        others = {
            name: from_mapping(scenario.as_mapping(), changes, folder=scenario.folder)
            for name, changes in (variants or {}).items()
        }
        summary = cost_of_scenario(
            scenario, api=api, requests_per_month=requests_per_month, progress=progress, others=others
        )
    date, name = summary["api"]["date"], api if isinstance(api, str) else summary["api"]["name"]
    is_known = isinstance(api, str) or (date is not None and name is not None and catalog.has("api", name))
    if is_known:
        # A run of the scenario judges at the catalogue's newest day.
        at_newest, note = (withdrawal_note(load_api(name), each) for each in (None, judged_at))
        warnings = [each for each in summary.get("warnings", ()) if each != at_newest]
        summary["warnings"] = warnings if note is None else [*warnings, note]
    summary["api"]["is_old"] = date is not None and judged_at is not None and is_old(date, judged_at)
    return summary
