"""The public functions: load a scenario, run it, ask what fits, what to deploy, compare with measurements."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simserve.metrics.files import write_result
from simserve.metrics.result import RunResult
from simserve.scenario.fit import memory_report
from simserve.scenario.folder import default_folder, staged_folder
from simserve.scenario.load import load
from simserve.scenario.resolve import resolve
from simserve.scenario.run import Progress
from simserve.scenario.run import run as run_scenario
from simserve.scenario.schema import Scenario

if TYPE_CHECKING:
    from simserve.planner.plan_price import Market
    from simserve.planner.search import Objective
    from simserve.planner.validate import Validation
    from simserve.report.plan import PlanPage

__all__ = ["Progress", "RunResult", "Scenario", "default_folder", "load", "memory", "plan", "run", "validate"]


def run(
    scenario: Scenario | str | Path,
    *,
    out: str | Path | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> RunResult:
    """Return what happens when the scenario's traffic meets its deployment.

    Args:
        scenario: A loaded scenario, a path, or a bundled name.
        out: Folder for `result.json`, `requests.parquet`, `timeseries.parquet`, `scenario.resolved.yaml` and
            `report.html`, written all together or not at all; None: no file is written.
        force: Whether ``out`` may hold the result of another scenario or seed, which is then replaced.
        progress: Called now and then with the requests done and all requests.

    Raises:
        UsageError: ``out`` cannot be used; known before anything is simulated.
        InfeasibleError: The model does not fit; the message carries the arithmetic and what would.
        InputError: A scenario, profile or trace is missing or invalid.
    """
    loaded = scenario if isinstance(scenario, Scenario) else load(scenario)
    if out is None:
        return run_scenario(loaded, progress=progress)
    from simserve.report.html import write_report  # matplotlib: half a second, needed by runs that write

    with staged_folder(Path(out), loaded, force=force) as folder:
        result = run_scenario(loaded, progress=progress)
        write_result(result, folder)
        write_report(result, folder)
    return result


def memory(scenario: Scenario | str | Path) -> dict[str, Any]:
    """Return what fits: bytes of one GPU by use, KV blocks, requests of full length at once, the arithmetic.

    Args:
        scenario: A loaded scenario, a path, or a bundled name.

    Raises:
        InputError: A scenario or profile is missing or invalid.
    """
    return memory_report(resolve(scenario if isinstance(scenario, Scenario) else load(scenario)))


def plan(
    scenario: Scenario | str | Path,
    *,
    hardware: Sequence[str] = (),
    max_gpus: int | None = None,
    objective: Objective = "cost",
    headroom: float = 0.0,
    spare_replicas: int = 0,
    over: Sequence[str] = (),
    spot: bool = False,
    trials: int = 40,
    jobs: int = 1,
    reference: Sequence[str] = (),
    progress: Progress | None = None,
) -> PlanPage:
    """Return what to deploy for a scenario's traffic at its SLO: ``.summary`` holds what ``plan --json`` prints.

    Args:
        scenario: A loaded scenario, a path, or a bundled name.
        hardware: GPUs to choose from; empty: the scenario's, and those of the catalogue with an on-demand price.
        max_gpus: GPUs of the fleet at most; None: 256, and for ``latency`` those of the scenario.
        objective: What is to be small: ``cost``, ``gpus``, ``latency`` (p95 of E2E) or ``energy`` (watts).
        headroom: Share of traffic that must be borne on top.
        spare_replicas: Replicas that may be lost; they are paid for.
        over: ``KEY=V1,V2``: values to search for a dotted key, in place of the default ones.
        spot: Whether GPUs are bought at spot prices.
        trials: Deployments that are sampled on a GPU whose engine knobs are too many to try each.
        jobs: Worker processes; the plan is the same with any number.
        reference: What stands after ``simserve run`` to run the scenario; for the commands that the plan prints.
        progress: Called now and then with the pieces of work done and all that are known.

    Raises:
        UsageError: An option is out of range.
        InputError: A scenario, profile or trace is missing or invalid.
    """
    from simserve.planner.plan import PlanOptions  # joblib and the search: needed by this function only
    from simserve.planner.plan import plan as find_plan
    from simserve.planner.space import parse_choices
    from simserve.report.plan import PlanPage

    market: Market = "spot" if spot else "on_demand"
    options = PlanOptions(
        hardware=tuple(hardware),
        max_gpus=max_gpus,
        objective=objective,
        headroom=headroom,
        spare_replicas=spare_replicas,
        choices=parse_choices(over),
        market=market,
        trials=trials,
        jobs=jobs,
    )
    if not isinstance(scenario, Scenario):
        reference = reference or (str(scenario),)
        scenario = load(scenario)
    found = find_plan(scenario, options, reference=reference, progress=progress)
    return PlanPage(summary=found.summary, was_interrupted=found.was_interrupted)


def validate(
    data: str | Path | None = None,
    sources: Sequence[str] = (),
    *,
    jobs: int = 1,
    progress: Progress | None = None,
) -> Validation:
    """Return measured servers beside what the simulator says of them: ``.summary`` and ``.points``.

    Args:
        data: Folder of measurements; None: the published figures that ship with simserve.
        sources: Names of the sources to take; empty: all that are there.
        jobs: Worker processes.
        progress: Called now and then with the points done and all points.

    Raises:
        UsageError: A source is unknown, or ``data`` is no folder.
        InputError: A file is missing or cannot be read.
    """
    from simserve.planner.validate import validate as replay_measurements  # joblib: needed by this function only

    return replay_measurements(data, sources, jobs=jobs, progress=progress)
