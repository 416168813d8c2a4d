"""`simserve validate`: measured servers replayed, and how far off the simulator is."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simserve.cli.options import JsonOption, QuietOption, console, print_json, print_table
from simserve.errors import InterruptedRunError, UsageError

if TYPE_CHECKING:
    from simserve.api import Progress
    from simserve.planner.validate import Validation

_TABLE_ENDINGS = (".parquet", ".csv")
_DATED = ("--accuracy", "--expected-errors")
_MOST_REASONS = 12
_METRICS = ("tpot", "ttft", "e2e", "throughput")


def validate(
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of measurements. Default: the published figures that ship."),
    ] = None,
    source: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Take only this source; repeats. Default: all that are there."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write every point to a .parquet or .csv file."),
    ] = None,
    accuracy: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the error tables as Markdown; needs --date."),
    ] = None,
    expected_errors: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the errors by class that runs report, as JSON; needs --date."),
    ] = None,
    date: Annotated[str | None, typer.Option(metavar="YYYY-MM-DD", help="Date that the tables carry.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Worker processes. Default: one a core.")] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Say how far to trust the simulator: replay measured servers and print the errors.

    Errors are of the mean over requests (the median where the source says so): median, mean, 90th percentile of
    the absolute error, and the bias (above 0: the simulator is too high).

    simserve validate

    simserve validate --data measurements --source inferencex_agg --json
    """
    from simserve.api import validate as replay_measurements

    _check_outputs({"--out": out, "--accuracy": accuracy, "--expected-errors": expected_errors}, date)
    with _progress(is_shown=not quiet and sys.stderr.isatty()) as progress:
        result = replay_measurements(data, source or (), jobs=jobs or os.cpu_count() or 1, progress=progress)
    if out is not None:
        _write_points(result, out)
    if accuracy is not None and date is not None:
        from simserve.planner.accuracy import accuracy_page

        accuracy.write_text(accuracy_page(result, date), encoding="utf-8")
    if expected_errors is not None and date is not None:
        from simserve.planner.expected import write_expected_errors

        write_expected_errors(result, date, expected_errors)
    if as_json:
        print_json(result.summary)
    elif not quiet:
        _render(result.summary)
    if result.was_interrupted:
        raise InterruptedRunError(f"interrupted after {len(result.predictions)} points; their errors are printed")


def _check_outputs(files: Mapping[str, Path | None], date: str | None) -> None:
    out = files["--out"]
    if out is not None and out.suffix not in _TABLE_ENDINGS:
        raise UsageError("must end in .parquet or .csv", key="--out", value=str(out))
    for key, file in files.items():
        if file is not None and key in _DATED and date is None:
            raise UsageError("needs --date", key=key, remedy="for example --date 2026-11-30")
        if file is not None and (file.is_dir() or not file.parent.is_dir()):
            raise UsageError("cannot be written: no such folder, or a folder itself", file=file, key=key)


def _write_points(result: Validation, file: Path) -> None:
    if file.suffix == ".csv":
        result.points.to_csv(file, index=False)
        return
    from simserve.planner.validate import write_parquet

    write_parquet(result, file)


@contextmanager
def _progress(is_shown: bool) -> Iterator[Progress | None]:
    """Yield what shows the progress on stderr; nothing is shown where it is no terminal."""
    if not is_shown:
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("replaying", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _render(summary: Mapping[str, Any]) -> None:
    from simserve.planner.accuracy import coverage_sentence

    header = ("source", "engine", "hardware", "model", "points", "run", *_METRICS)
    rows = [(*(str(group[key]) for key in header[:6] if key != "run"), *_cells(group)) for group in summary["groups"]]
    if rows:
        print_table(header, rows, note="median absolute error, bias in brackets; * compared, not scored")
    _render_memory(summary["memory"])
    if not summary["points"]:
        return
    out = console()
    out.print(f"{summary['covered']} of {summary['points']} points were run")
    out.print(coverage_sentence(summary["coverage"]), soft_wrap=True)
    for each in summary["not_covered"][:_MOST_REASONS]:
        out.print(f"  {each['points']:5d}  {each['source']}: {each['reason']}", markup=False, soft_wrap=True)
    others = sum(each["points"] for each in summary["not_covered"][_MOST_REASONS:])
    if others:
        out.print(f"  {others:5d}  for other reasons (--json lists them)")


def _render_memory(rows: Sequence[Mapping[str, Any]]) -> None:
    if not rows:
        return
    header = ("memory", "hardware", "model", "measured KV GiB", "planned", "of the KV", "of the GPU")
    print_table(
        header,
        [
            (
                f"{row['engine']} {row['version']}",
                str(row["hardware"]),
                str(row["model"]),
                f"{row['measured_kv_gib']:.2f}",
                f"{row['predicted_kv_gib']:.2f}",
                f"{row['error_of_kv']:+.1%}",
                f"{row['error_of_gpu']:+.2%}",
            )
            for row in rows
        ],
        note="KV room as the engine logs it, and errors of the plan",
    )


def _cells(group: Mapping[str, Any]) -> Sequence[str]:
    return (str(group["covered"]), *(_cell(group, metric) for metric in _METRICS))


def _cell(group: Mapping[str, Any], metric: str) -> str:
    if metric in group["metrics"]:
        return _shown(group["metrics"][metric])
    return f"{_shown(group['shown_only'][metric])}*" if metric in group["shown_only"] else ""


def _shown(errors: Mapping[str, float]) -> str:
    return f"{errors['median_ape']:.1%} ({errors['bias']:+.1%})"
