"""The public functions: load a scenario, run it, ask what fits, compare with measurements."""

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
    from simserve.metrics.api_cost import ApiPrices
    from simserve.planner.validate import Validation
    from simserve.report.cost import CostResult

__all__ = ["Progress", "RunResult", "Scenario", "cost", "default_folder", "load", "memory", "run", "validate"]


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


def cost(
    scenario: Scenario | str | Path | None = None,
    *,
    api: str | ApiPrices | None = None,
    requests_per_month: float | None = None,
    today: str | None = None,
    progress: Progress | None = None,
    **terms: float,
) -> CostResult:
    """Return what a month costs on GPUs of one's own and at an API: ``.summary``, with the keys of `simserve cost`.

    Args:
        scenario: Whose deployment is simulated over a day; None: arithmetic on ``terms`` alone.
        api: Name of an API profile, or prices; None: the scenario's ``pricing.api``.
        requests_per_month: Volume; None: the scenario's traffic over its day.
        today: Day (YYYY-MM-DD) that prices are judged old at; None: the newest date of the catalogue.
        progress: Called now and then with the runs done and all runs.
        terms: Without a scenario: fields of `simserve.planner.cost_arithmetic.CostTerms`, such as ``gpus``,
            ``gpu_hour_usd``, ``prompt_tokens``.

    Raises:
        UsageError: Terms beside a scenario, unknown ones, or too few to answer anything.
        InfeasibleError: The model does not fit.
        InputError: A scenario or profile is missing or invalid.
    """
    from simserve.planner.cost import cost_summary
    from simserve.report.cost import CostResult

    loaded = scenario if scenario is None or isinstance(scenario, Scenario) else load(scenario)
    summary = cost_summary(
        loaded, api=api, requests_per_month=requests_per_month, today=today, progress=progress, terms=terms
    )
    return CostResult(summary)


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
