"""The load that a configuration of the simulator's tab bears: runs at other rates, around the one that is asked."""

from __future__ import annotations

from typing import Any

from simserve.explore.limits import Check
from simserve.explore.queries import SimulatorQuery
from simserve.scenario.run import run

_FACTORS = (0.25, 0.5, 0.71, 1.0, 1.41, 2.0, 4.0)
_HALVINGS = 4
NUM_REQUESTS = 2000
"""Of one run. Fewer would be over before the queue of an overload has grown, and promise too much."""
_MOST_DOUBLINGS = 4
_SHOWN = ("p95_ttft_ms", "p95_tpot_ms", "request_goodput", "output_throughput")


def load(query: SimulatorQuery, check: Check) -> dict[str, Any]:
    """Return latency, goodput and attainment over the rate of arrivals, and the most that the objective bears.

    The line between the last rate that holds and the first that does not is narrowed by halving. One run a rate, on the
    same draws; `simserve capacity` confirms by replications and longer runs.

    Raises:
        InfeasibleError: The model does not fit.
        InputError: The deployment is none.
        TooLongError: It took too long.
    """
    points: dict[float, dict[str, Any]] = {}

    def measure(rate: float) -> bool:
        rate = min(float(f"{rate:.3g}"), 2000.0)
        if rate not in points:
            asked = query.model_copy(update={"rate": rate, "num_requests": NUM_REQUESTS})
            summary = run(asked.scenario(), progress=check, explain=False).summary
            inner = summary["simserve"]
            found = {"attainment": inner["slo"]["attainment"], "stability": inner["stability"]}
            points[rate] = {"rate": rate, **found, **{name: summary[name] for name in _SHOWN}}
        return _holds(points[rate], query)

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
    most = max((each["rate"] for each in curve if _holds(each, query)), default=None)
    return {
        "most": most,
        "open_ended": most is not None and most == curve[-1]["rate"],
        "asked": query.rate,
        "least": least,
        "num_requests": NUM_REQUESTS,
        "curve": {name: [each[name] for each in curve] for name in ("rate", "attainment", "stability", *_SHOWN)},
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


def _holds(point: dict[str, Any], query: SimulatorQuery) -> bool:
    """Return whether the objective is met, and by a queue that does not grow."""
    return (point["attainment"] or 0.0) >= query.attainment and point["stability"] != "overloaded"
