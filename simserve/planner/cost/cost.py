"""Self-host or API: the one entry to both ways of asking, and what is said of the age of prices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simserve.errors import UsageError, nearest
from simserve.metrics.api_cost import ApiPrices
from simserve.planner.cost.arithmetic import CostTerms, cost_arithmetic
from simserve.profiles.api import catalogue_date, load_api
from simserve.profiles.price_dates import check_today, is_old
from simserve.scenario.load import Overrides, from_mapping
from simserve.scenario.run import Progress
from simserve.scenario.schema import Scenario

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
        summary = {"scenario": None} | cost_arithmetic(
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
    date = summary["api"]["date"]
    summary["api"]["is_old"] = date is not None and judged_at is not None and is_old(date, judged_at)
    return summary
