"""Frameworks and GPUs by the dollar, and one of them against an API: the figures of `simserve cost` for a month."""

from __future__ import annotations

from typing import Any

import numpy as np

from simserve import api
from simserve.errors import InputError
from simserve.explore.frameworks import Served, per_million, replica, served
from simserve.explore.limits import Check
from simserve.explore.queries import CostQuery
from simserve.report.cost import sections

_MILLION = 1e6
_NUM_POINTS = 60
_MOST_STEPS = 200
_MONTH_SECONDS = 720 * 3600


def cost(query: CostQuery, check: Check) -> dict[str, Any]:
    """Return every framework on every GPU, and the chosen one (by default the cheapest) against the API.

    Raises:
        InputError: No combination runs, or none of those that run has a price.
        TooLongError: It took too long.
    """
    rows = [_row(each, price, query) for each, price in served(query, check)]
    priced = sorted((row for row in rows if row["usd_per_million"] is not None), key=lambda row: row["usd_per_million"])
    if not priced:
        why = next((row["why_not"] for row in rows if row["why_not"]), "no price is known of these GPUs")
        raise InputError(why, key="hardware", remedy="add a GPU, or choose a smaller format")
    chosen = next((row for row in priced if row["name"] == query.chosen), priced[0])
    return {
        "rows": [*priced, *(row for row in rows if row["usd_per_million"] is None)],
        "cheapest": priced[0]["name"],
        "chosen": chosen,
        **_against(query, chosen),
    }


def chosen_replica(query: CostQuery, check: Check) -> dict[str, Any]:
    """Return the scenario of the combination that is set against the API, at the price that is asked.

    Raises:
        InputError: As `cost`.
    """
    row = cost(query, check)["chosen"]
    mapping = replica(query, row["framework"], row["hardware"], row["gpus"])
    pricing = {"gpu_hour_usd": round(row["usd_per_hour"] / row["gpus"], 6), "api": query.api}
    return {**mapping, "pricing": pricing}


def _row(each: Served, usd_per_hour: float | None, query: CostQuery) -> dict[str, Any]:
    return {
        "name": f"{each.framework} on {each.hardware}",
        "framework": each.framework,
        "version": each.version,
        "hardware": each.hardware,
        "gpus": each.gpus,
        "output_throughput": each.output_throughput,
        "tokens_per_second_a_gpu": each.output_throughput / each.gpus if each.gpus else None,
        "ttft_ms": each.ttft_ms,
        "tpot_ms": each.tpot_ms,
        "binding": each.binding,
        "fidelity": each.fidelity,
        "why_not": each.why_not or ("" if usd_per_hour is not None else "no price of this GPU is known"),
        "usd_per_hour": usd_per_hour,
        "usd_per_million": per_million(usd_per_hour, each.output_throughput * query.utilization),
        "usd_per_million_full": per_million(usd_per_hour, each.output_throughput),
    }


def _against(query: CostQuery, row: dict[str, Any]) -> dict[str, Any]:
    """Return the month of a row, the month of the API, and the lines that cross."""
    rate, gpu_hour = row["output_throughput"], row["usd_per_hour"] / row["gpus"]
    one = rate * query.utilization / query.output_tokens * _MONTH_SECONDS
    replicas = max(int(np.ceil(query.requests_per_month / one)), 1)
    found = api.cost(
        api=query.api,
        requests_per_month=query.requests_per_month,
        gpus=replicas * row["gpus"],
        gpu_hour_usd=gpu_hour,
        operations_usd=query.operations_usd,
        output_tokens_per_second=replicas * rate,
        utilization=query.utilization,
        prompt_tokens=query.prompt_tokens,
        output_tokens=query.output_tokens,
    )
    summary = found.summary
    own, other = summary["self_host"], summary["api"]
    per_replica = row["usd_per_hour"] * 720
    even = _crossing(one, per_replica, query.operations_usd, other["usd_per_request"])
    most = 2 * max(query.requests_per_month, min(even or 0.0, 10 * query.requests_per_month))
    # A further replica is a step: a point on either side of it.
    full = one * np.arange(1, min(int(most / one), _MOST_STEPS) + 1)
    volumes = np.unique(np.concatenate([np.linspace(0, most, _NUM_POINTS), full, full * (1 + 1e-9)]))
    fleets = np.maximum(np.ceil(volumes / one), 1)
    return {
        "answer": found.answer,
        "cheaper": summary["cheaper"],
        "replicas": replicas,
        "self_host": {key: own[key] for key in ("usd_per_month", "usd_per_request", "usd_per_million_output_tokens")},
        "api": {key: other[key] for key in ("name", "date", "usd_per_month", "usd_per_request")},
        "break_even": even,
        "fleet_holds": one,
        "curve": {
            "requests": volumes.tolist(),
            "self_host": (fleets * per_replica + query.operations_usd).tolist(),
            "api": (volumes * (other["usd_per_request"] or 0.0)).tolist(),
        },
        "parts": {part.title: list(part.lines) for part in sections(summary) if part.lines and part.title in _SHOWN},
        "equations": _equations(query, row, one, replicas, own["usd_per_month"]),
    }


_SHOWN = ("Self-host", "API", "36 months")


def _crossing(holds: float, per_replica: float, operations: float, api_request: float | None) -> float | None:
    """Return the fewest requests a month from which whole replicas and people cost less than the API; None: never."""
    if not api_request:
        return None
    for count in range(1, 10_000):
        volume = (count * per_replica + operations) / api_request
        if volume <= count * holds:
            return max(volume, (count - 1) * holds)
        if per_replica >= holds * api_request:
            return None
    return None


def _equations(
    query: CostQuery, row: dict[str, Any], holds: float, replicas: int, usd_per_month: float
) -> list[dict[str, str]]:
    rate = row["output_throughput"]
    return [
        {
            "name": f"Dollars a million output tokens, {row['name']}",
            "formula": "dollars an hour / (3600 x output tokens a second x used share) x 1,000,000",
            "numbers": f"${row['usd_per_hour']:,.2f} / (3600 x {rate:,.0f} x {query.utilization:.0%}) x 1,000,000 = "
            f"${row['usd_per_million']:,.3g}",
        },
        {
            "name": "What one replica holds a month",
            "formula": "output tokens/s x used share / tokens of an answer x seconds of a month",
            "numbers": f"{rate:,.0f} x {query.utilization:.0%} / {query.output_tokens:,.0f} x {_MONTH_SECONDS:,} = "
            f"{holds / _MILLION:.3g} M requests",
        },
        {
            "name": "A month",
            "formula": "replicas x dollars an hour x 720 + operations",
            "numbers": f"{replicas} x ${row['usd_per_hour']:,.2f} x 720 + ${query.operations_usd:,.0f} = "
            f"${usd_per_month:,.0f}",
        },
    ]
