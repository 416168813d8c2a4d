"""Which of several ways to serve is cheapest at which volume: staircases of whole replicas, and the API's line."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

from simserve.planner.cost.model import Comparison

API = "API"
FEWEST_REQUESTS = 1e3
MOST_REQUESTS = 1e9
"""Requests a month between which the cheapest way is looked for."""
_STEPS_PER_DECADE = 400
_CLOSE = 1e-6

Bill = Callable[[float], float]


def ways(models: Mapping[str, Comparison]) -> list[dict[str, Any]]:
    """Return the cheapest way of each stretch of volume, in order: ``name``, ``from_`` and ``to_requests_per_month``.

    The first begins at 0, the last has no end. Stretches shorter than 0.6 % of their volume, such as the ends of
    single stairs, may go unseen.

    Args:
        models: Name -> what a replica costs and holds; the API is that of the first.
    """
    first = next(iter(models.values()))
    bills: dict[str, Bill] = {API: first.api_usd}
    for name, model in models.items():
        bills[name] = model.from_one_unit.self_host_usd
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
