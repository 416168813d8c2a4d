"""`simserve validate`: measured servers replayed, and how far off the simulator is."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from simserve.cli.options import PAGE, Shown, argument, check_page, console, option, takes_flags
from simserve.cli.progress import progress_bar
from simserve.errors import InputError, InterruptedRunError, UsageError

_TABLE_ENDINGS = (".parquet", ".csv")
_RESULT_ENDINGS = (".json", ".jsonl")
_DATED = ("--accuracy", "--expected-errors")


@takes_flags(without=PAGE)
def validate(
    files: Annotated[
        list[Path] | None,
        argument(
            "Your own measurements, as docs/measurements.md has them. Default: the published figures that ship.",
            metavar="[FILE]...",
        ),
    ] = None,
    data: Annotated[
        Path | None, option("Folder of the project's measurements; needs a development install.", metavar="DIR")
    ] = None,
    source: Annotated[
        list[str] | None, option("Take only this source; repeats. Default: all that are there.", metavar="NAME")
    ] = None,
    out: Annotated[Path | None, option("Write every point to a .parquet or .csv file.", metavar="FILE")] = None,
    report: Annotated[
        Path | None, option("Write a page: predicted against measured, errors, what was not run.", metavar="FILE")
    ] = None,
    accuracy: Annotated[
        Path | None,
        option(
            "Write the error tables as Markdown; needs --date, and a development install. With --source unseen "
            "alone, by report and GPU.",
            metavar="FILE",
        ),
    ] = None,
    expected_errors: Annotated[
        Path | None,
        option(
            "Write what runs expect of a server that nobody fitted, as JSON; needs --date and --data. Learnt from "
            "all sources, and the unseen reports.",
            metavar="FILE",
        ),
    ] = None,
    date: Annotated[str | None, option("Date that the tables carry.", metavar="YYYY-MM-DD")] = None,
    jobs: Annotated[int | None, option("Worker processes. Default: one a core.", min=1)] = None,
    *,
    shown: Shown,
) -> None:
    """Say how far to trust the simulator: replay measured servers and print the errors.

    Errors are of the mean over requests (the median where the source says so): median, mean, 90th percentile of
    the absolute error, and the bias (above 0: the simulator is too high).

    simserve validate

    simserve validate --source unseen

    simserve validate --data measurements --report validation.html

    simserve validate --data measurements --source inferencex_agg --json
    """
    from simserve.api import validate as replay_measurements
    from simserve.planner.measured.reports import UNSEEN
    from simserve.planner.validation.validate import load_laboratory

    _check_outputs(
        {"--out": out, "--report": report, "--accuracy": accuracy, "--expected-errors": expected_errors}, date
    )
    _check_own(files or ())
    pages = [(flag, str(file)) for flag, file in zip(_DATED, (accuracy, expected_errors), strict=True) if file]
    laboratory = load_laboratory(*pages[0]) if pages else None
    with progress_bar(is_shown=not shown.quiet, label="replaying") as progress:
        result = replay_measurements(
            data, source or (), files=files or (), jobs=jobs or os.cpu_count() or 1, progress=progress
        )
    if out is not None:
        from simserve.planner.validation.validate import write_parquet

        if out.suffix == ".csv":
            result.points.to_csv(out, index=False)
        else:
            write_parquet(result, out)
    if report is not None:
        from simserve.report.validation import write_validation_page

        asked = [*(["FILE"] if files else ()), *(["--data DIR"] if data is not None else ())]
        write_validation_page(result, report, asked=" ".join(asked))
    if laboratory is not None:
        model = None
        if expected_errors is not None:
            model = laboratory.write_error_model(result, expected_errors, date, jobs or os.cpu_count() or 1)
        if accuracy is not None:
            is_exam = source == [UNSEEN] and not files
            laboratory.write_accuracy(result, accuracy, date, data=data, is_exam=is_exam, model=model)
    from simserve.report.validation import render_validation

    shown.tell(result.summary, lambda: render_validation(result.summary, console()))
    if result.was_interrupted:
        raise InterruptedRunError(f"interrupted after {len(result.predictions)} points; their errors are printed")


def _check_outputs(files: Mapping[str, Path | None], date: str | None) -> None:
    out = files["--out"]
    if out is not None and out.suffix not in _TABLE_ENDINGS:
        raise UsageError("must end in .parquet or .csv", key="--out", value=str(out))
    for key, file in files.items():
        if file is not None and key in _DATED and date is None:
            raise UsageError("needs --date", key=key, remedy="for example --date 2026-11-30")
        check_page(file, key)


def _is_scenario(file: Path) -> bool:
    from simserve.documents import read_mapping  # YAML: needed with files alone

    try:
        return {"deployment", "workload"} <= read_mapping(file, InputError).keys()
    except InputError:  # reported with what a file of measurements contains
        return False


def _check_own(files: Sequence[Path]) -> None:
    """Refuse scenarios and results of benchmark tools, which other commands read."""
    from simserve.workload.benchmarks.reading import read_results

    for file in files:
        if _is_scenario(file):
            remedy = f"simserve run {file} runs it; put what was measured under servers (docs/measurements.md)"
            raise InputError("is a scenario, not a file of measurements", file=file, remedy=remedy)
        if file.suffix not in _RESULT_ENDINGS:
            continue
        try:
            tool = read_results([file])[0].tool
        except InputError:  # reported with what a file of measurements contains
            continue
        remedy = f"simserve import bench {file} makes a scenario of it, simserve calibrate serving {file} fits to it"
        raise InputError(f"is a result of {tool}, not a file of measurements", file=file, remedy=remedy)
