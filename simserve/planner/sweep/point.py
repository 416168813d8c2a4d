"""One point of a sweep: runs it, and returns a row with what came out or why nothing did. Runs in a worker process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simserve.errors import InfeasibleError, SimserveError
from simserve.metrics.thresholds import figure_at
from simserve.planner.compare import FIGURES
from simserve.planner.workers import leave_interrupts_to_the_parent
from simserve.scenario.formats import formats_line
from simserve.scenario.load import from_mapping
from simserve.scenario.run import run
from simserve.scenario.schema import Scenario

Row = dict[str, Any]
"""``point values status error scenario_hash`` and, for a point that ran, figures; plain values only."""
Task = tuple[int, dict[str, Any], dict[str, Any], str | None]
"""Index in the grid, its values, the resolved scenario as a mapping, and the folder that its paths start from."""

OK = "ok"
INFEASIBLE = "infeasible"
INVALID = "invalid"
TEXTS = ("stability", "binding", "load", "fidelity", "weights_format", "kv_cache_format", "formats")
"""Text columns, besides those of every row."""


def task_of(index: int, values: Mapping[str, Any], scenario: Scenario) -> Task:
    """Return what a worker needs to run a point."""
    folder = None if scenario.folder is None else str(scenario.folder.resolve())
    return index, dict(values), scenario.as_mapping(), folder


def run_task(task: Task) -> Row:
    """Return the row of a point.

    Raises:
        KeyboardInterrupt: The user stopped it in this very process; workers leave that to their parent process.
    """
    leave_interrupts_to_the_parent()
    index, values, mapping, folder = task
    scenario = from_mapping(mapping, folder=None if folder is None else Path(folder))
    try:
        result = run(scenario)
    except SimserveError as failure:
        status = INFEASIBLE if isinstance(failure, InfeasibleError) else INVALID
        return failed_row(index, values, str(failure), status=status, scenario_hash=scenario.hash)
    if result.simulation.was_interrupted:
        raise KeyboardInterrupt
    summary = result.summary
    inner = summary["simserve"]
    row: Row = {
        "point": index,
        "values": values,
        "status": OK,
        "error": None,
        "scenario_hash": scenario.hash,
        "stability": inner["stability"],
        "binding": inner["bottleneck"]["binding"],
        "load": inner["load"],
        "fidelity": inner["fidelity"],
        "weights_format": inner["formats"]["weights"],
        "kv_cache_format": inner["formats"]["kv_cache"],
        "formats": formats_line(inner["formats"]),
        "num_gpus": float(scenario.deployment.num_gpus),
    }
    return row | {name: figure_at(summary, key) for name, key in FIGURES.items()}


def failed_row(
    index: int, values: Mapping[str, Any], error: str, *, status: str = INVALID, scenario_hash: str | None = None
) -> Row:
    """Return the row of a point that did not run."""
    return {"point": index, "values": dict(values), "status": status, "error": error, "scenario_hash": scenario_hash}
