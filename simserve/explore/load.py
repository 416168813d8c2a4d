"""The load that a configuration of the simulator's tab can sustain: the search of `simserve capacity`, in its time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from simserve.errors import InterruptedRunError
from simserve.explore.limits import Check, TooLongError
from simserve.explore.queries import SimulatorQuery
from simserve.metrics.figures import or_null
from simserve.planner.capacity.found import Found
from simserve.planner.capacity.level import Level, Trial
from simserve.planner.capacity.probe import probe_of
from simserve.planner.capacity.search import find_capacity

MOST_RATE = 2000.0
_MS = 1e3


def load(query: SimulatorQuery, check: Check) -> dict[str, Any]:
    """Return latency, goodput and attainment over the rate of arrivals, and the most within the SLO.

    Several runs a rate on the same draws, long enough for the queue of an overload to show: one run of 2,000 requests
    promised 5 to 10 % more. When its time is over, what the runs have shown by then is the answer.

    Raises:
        InfeasibleError: The model does not fit.
        InputError: The deployment is none.
        TooLongError: It took too long for a single run.
        KeyboardInterrupt: Ctrl-C, as of an export.
    """
    stopped: list[TooLongError] = []

    def watch(done: int, total: int) -> None:
        try:
            check(done, total)
        except TooLongError as late:
            stopped.append(late)
            raise KeyboardInterrupt from None

    probe = replace(probe_of(query.scenario()), watch=watch)

    def run(rate: float, replication: int, num_requests: int) -> Trial:
        watch(0, num_requests)
        return probe(rate, replication, num_requests)

    try:
        found = find_capacity(
            run,
            asked=query.attainment,
            start=query.rate,
            highest=MOST_RATE,
            finishable=probe.finishable if probe.is_steady else None,
        )
    except InterruptedRunError:
        raise (stopped[0] if stopped else KeyboardInterrupt) from None
    if found.was_interrupted and not stopped:
        raise KeyboardInterrupt
    return _answer(query, found)


def _answer(query: SimulatorQuery, found: Found) -> dict[str, Any]:
    most = found.largest.value or None
    points = [_point(level) for level in found.levels]
    return {
        "most": most,
        "open_ended": most is not None and found.largest.fails_at is None,
        "asked": query.rate,
        "least": points[0]["rate"],
        "num_requests": found.num_requests,
        "curve": {name: [each[name] for each in points] for name in points[0]},
        "equations": [
            {
                "name": "Share of the load it can sustain",
                "formula": "requests a second that arrive / the most within the SLO",
                "numbers": "none of these rates holds"
                if most is None
                else f"{query.rate:g} / {most:.3g} = {query.rate / most:.0%}",
            }
        ],
    }


def _point(level: Level) -> dict[str, Any]:
    return {
        "rate": level.load,
        "attainment": or_null(level.attainment),
        "stability": level.stability,
        "p95_ttft_ms": or_null(_MS * level.mean("p95_ttft")),
        "p95_tpot_ms": or_null(_MS * level.mean("p95_tpot")),
        "request_goodput": or_null(level.mean("goodput")),
        "output_throughput": or_null(level.mean("output_throughput")),
    }
