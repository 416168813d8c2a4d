"""What the page of a run shows besides its figures: operators on the roofline, and the deployment at other loads.

Plain values, computed once with the run and stored with its files. Knows scenario and profiles, no plots.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from simserve.metrics.latency import rows_where
from simserve.metrics.result import RunResult
from simserve.perf.roofline import roofline
from simserve.perf.tables import price
from simserve.scenario.resolve import ResolvedScenario, resolve
from simserve.scenario.schema import Scenario
from simserve.sim.records import COMPLETED


def background(asked: Scenario | ResolvedScenario, result: RunResult, *, with_page: bool = False) -> dict[str, Any]:
    """Return ``roofline`` and ``loads``, each None if there is nothing to show.

    The decode step of the roofline is the run's mean step: its mean number of sequences, halfway through their output.

    Args:
        with_page: Whether the deployment is run at other loads too, up to a second (`simserve.report.other_loads`).

    Raises:
        InputError: A profile no longer exists.
    """
    resolved, records = resolve(asked), result.simulation.records
    done = records.status == COMPLETED
    if not done.any():
        return {"roofline": None, "loads": None}
    # If all requests were answered elsewhere, there is no step to place on the roofline.
    has_steps = result.summary["simserve"]["steps"]["mean_batch"] is not None
    found = loads = None
    if has_steps:
        rows = rows_where(done)
        prompt, output = float(records.prompt_tokens[rows].mean()), float(records.output_tokens[rows].mean())
        placed = roofline(
            resolved.shape,
            price(resolved.shape),
            decoding=round(result.summary["simserve"]["steps"]["mean_batch"]),
            context_tokens=round(prompt + output / 2),
            prompt_tokens=max(round(prompt), 1),
        )
        found = {**asdict(placed), "points": [asdict(point) for point in placed.points]}
    if with_page and not result.simulation.was_interrupted:
        loads = _loads(resolved, result.summary["simserve"]["finishable_throughput"])
    return {"roofline": found, "loads": loads}


def _loads(resolved: ResolvedScenario, finishable_rate: float | None) -> dict[str, Any] | None:
    """Return the deployment at other loads; None if the user interrupts it: the run itself is already done."""
    from simserve.report.other_loads import other_loads  # imports the planner; only needed by runs that write a page

    try:
        return other_loads(resolved, finishable_rate)
    except KeyboardInterrupt:
        return None
