"""GPUs of one's own or an API, by arithmetic: the figures of `simserve cost`, and the lines that cross."""

from __future__ import annotations

from typing import Any

import numpy as np

from simserve import api
from simserve.explore.limits import Check
from simserve.explore.queries import CostQuery
from simserve.report.cost import sections

_MILLION = 1e6


def cost(query: CostQuery, _check: Check) -> dict[str, Any]:
    """Return what a month costs on both sides, from what volume self-hosting pays, and the curves behind it."""
    found = api.cost(
        api=query.api,
        requests_per_month=query.requests_per_month,
        gpus=query.gpus,
        gpu_hour_usd=query.gpu_hour_usd,
        operations_usd=query.operations_usd,
        output_tokens_per_second=query.output_tokens_per_second,
        utilization=query.utilization,
        prompt_tokens=query.prompt_tokens,
        output_tokens=query.output_tokens,
    )
    summary = found.summary
    own, other, even = summary["self_host"], summary["api"], summary["break_even"]["requests_per_month"]
    most = 2 * max(query.requests_per_month, min(even or 0.0, 10 * query.requests_per_month))
    volumes = np.linspace(0, most, 60)
    one = query.output_tokens_per_second * query.utilization / query.output_tokens * 3600 * 720
    fleets = np.maximum(np.ceil(volumes / one), 1)
    per_fleet = query.gpus * query.gpu_hour_usd * 720
    parts = {part.title: list(part.lines) for part in sections(summary) if part.lines}
    return {
        "answer": found.answer,
        "cheaper": summary["cheaper"],
        "self_host": {key: own[key] for key in ("usd_per_month", "usd_per_request", "usd_per_million_output_tokens")},
        "api": {key: other[key] for key in ("name", "date", "usd_per_month", "usd_per_request")},
        "break_even": even,
        "fleet_holds": one,
        "curve": {
            "requests": volumes.tolist(),
            "self_host": (fleets * per_fleet + query.operations_usd).tolist(),
            "api": (volumes * (other["usd_per_request"] or 0.0)).tolist(),
        },
        "parts": parts,
        "equations": [
            {
                "name": "A month of GPUs",
                "formula": "GPUs x dollars an hour x 720 + operations",
                "numbers": f"{query.gpus} x ${query.gpu_hour_usd:,.2f} x 720 + ${query.operations_usd:,.0f} = "
                f"${own['usd_per_month']:,.0f}",
            },
            {
                "name": "What one fleet holds",
                "formula": "output tokens/s x use / tokens of an answer x seconds of a month",
                "numbers": f"{query.output_tokens_per_second:,.0f} x {query.utilization:.0%} / "
                f"{query.output_tokens:,.0f} x 2,592,000 = {one / _MILLION:.3g} M requests",
            },
        ],
    }
