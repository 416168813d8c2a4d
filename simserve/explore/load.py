"""The load that a configuration of the simulator's tab bears: runs at other rates, around the one that is asked."""

from __future__ import annotations

from typing import Any

from simserve.explore.limits import Check
from simserve.explore.queries import SimulatorQuery
from simserve.scenario.run import run

_FACTORS = (0.25, 0.5, 0.71, 1.0, 1.41, 2.0, 4.0)
_HALVINGS = 4
_MOST_REQUESTS = 400
"""Of one run: enough to see where the line is crossed, few enough to answer at once."""
_MOST_DOUBLINGS = 4
_SHOWN = ("p95_ttft_ms", "p95_tpot_ms", "request_goodput", "output_throughput")


def load(query: SimulatorQuery, check: Check) -> dict[str, Any]:
    """Return latency, goodput and attainment over the rate of arrivals, and the most that the objective bears.

    The line between the last rate that holds and the first that does not is narrowed by halving.

    Raises:
        InfeasibleError: The model does not fit.
        InputError: The deployment is none.
        TooLongError: It took too long.
    """
    count = min(query.num_requests, _MOST_REQUESTS)
    points: dict[float, dict[str, Any]] = {}

    def measure(rate: float) -> bool:
        rate = min(float(f"{rate:.3g}"), 2000.0)
        if rate not in points:
            asked = query.model_copy(update={"rate": rate, "num_requests": count})
            summary = run(asked.scenario(), progress=check, explain=False).summary
            attainment = summary["simserve"]["slo"]["attainment"]
            points[rate] = {"rate": rate, "attainment": attainment, **{name: summary[name] for name in _SHOWN}}
        return bool((points[rate]["attainment"] or 0.0) >= query.attainment)

    holds = [rate for rate in (query.rate * factor for factor in _FACTORS) if measure(rate)]
    best, least = max(holds, default=0.0), query.rate * _FACTORS[0]
    for _ in range(_MOST_DOUBLINGS):
        if best < query.rate * _FACTORS[-1] * 0.99 or best >= 2000:
            break
        if measure(2 * best):
            best *= 2
        else:
            break
    if best:
        missed = min((rate for rate in points if rate > best), default=best)
        for _ in range(_HALVINGS):
            middle = (best * missed) ** 0.5
            if missed <= best or missed / best < 1.03:
                break
            best, missed = (middle, missed) if measure(middle) else (best, middle)
    curve = [points[rate] for rate in sorted(points)]
    most = max((each["rate"] for each in curve if (each["attainment"] or 0.0) >= query.attainment), default=None)
    return {
        "most": most,
        "open_ended": most is not None and most == curve[-1]["rate"],
        "asked": query.rate,
        "least": least,
        "num_requests": count,
        "curve": {name: [each[name] for each in curve] for name in ("rate", "attainment", *_SHOWN)},
        "equations": [
            {
                "name": "Share of the load it bears",
                "formula": "requests a second that arrive / the most within the objective",
                "numbers": "none of these rates holds"
                if most is None
                else f"{query.rate:g} / {most:g} = {query.rate / most:.0%}",
            }
        ],
    }
