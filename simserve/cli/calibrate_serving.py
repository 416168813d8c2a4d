"""`simserve calibrate serving`: an engine's constants from end-to-end benchmarks."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simserve.cli.importing import ForceOption, write_text
from simserve.cli.options import (
    JsonOption,
    QuietOption,
    SetOption,
    check_page,
    console,
    print_json,
    print_lines,
    print_table,
)
from simserve.cli.progress import progress
from simserve.errors import UsageError

if TYPE_CHECKING:
    from simserve.calibrate.serving import RunErrors, ServingFit

STATISTICS = ("median", "mean")
_WORDS = {
    "host_seconds_per_step": "host time a step",
    "host_seconds_per_request": "host time a request",
    "compute_efficiency": "kernel efficiency",
    "frontend_latency": "frontend latency",
}
_COLUMNS = (("TTFT", "ttft"), ("TPOT", "tpot"), ("throughput", "output_throughput"))

ResultsArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="RESULTS...",
        help="Files of vllm bench serve, SGLang, GuideLLM, AIPerf, inference-perf, llm-d, or a documented CSV.",
        show_default=False,
    ),
]
ScenarioOption = Annotated[
    str,
    typer.Option("--scenario", metavar="SCENARIO", help="What served them: deployment, and lengths that a file lacks."),
]


def serving(
    results: ResultsArgument,
    scenario: ScenarioOption,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="PROFILE", help="Write the calibrated engine profile there, NAME.yaml.", show_default=False
        ),
    ] = None,
    fit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PARAMETER",
            help="Fit this one: host_seconds_per_step, host_seconds_per_request, compute_efficiency or "
            "frontend_latency; repeats. Default: those that the files can tell apart.",
        ),
    ] = None,
    statistic: Annotated[str, typer.Option(metavar="median|mean", help="TTFT and TPOT that are fitted.")] = "median",
    set_: SetOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Fit an engine's few constants to benchmarks of a server, and say what it brought.

    simserve calibrate serving results/*.json --scenario mine.yaml --out my-vllm.yaml
    """
    from simserve.calibrate.serving import ServingCalibration, as_mapping
    from simserve.calibrate.serving_profile import profile_text
    from simserve.calibrate.simulated import ServingModel
    from simserve.scenario.load import load
    from simserve.workload.benchmarks.reading import read_results

    if statistic not in STATISTICS:
        raise UsageError("must be median or mean", key="--statistic", value=statistic)
    _check_out(out, force=force)
    loaded = load(scenario, set_ or ())
    measured = read_results(results)
    with progress(is_shown=not quiet) as tell:
        calibration = ServingCalibration(ServingModel(loaded), fit, statistic, tell).fit(measured)
    found = calibration.fit_
    if out is not None:
        write_text(out, profile_text(found, loaded, out.stem), force=force)
    if as_json:
        print_json(as_mapping(found) | {"file": None if out is None else str(out)})
    elif not quiet:
        _render(found, out)


def _check_out(out: Path | None, *, force: bool) -> None:
    """Refuse what could not be written before anything is simulated."""
    if out is None:
        return
    if out.suffix != ".yaml":
        raise UsageError("must end in .yaml", key="--out", value=str(out))
    if out.exists() and not force:
        raise UsageError("is there already", file=out, remedy="name another file, or replace it with --force")
    check_page(out, "--out")


def _render(fit: ServingFit, out: Path | None) -> None:
    from simserve.calibrate.serving_search import shown

    for name, each in fit.parameters.items():
        was = shown(name, getattr(fit.before, name))
        if each.half_width is None:
            print_lines([f"{_WORDS[name]}: {was}, not fitted ({each.reason})"])
        else:
            value, width = shown(name, each.value), shown(name, each.half_width)
            print_lines([f"{_WORDS[name]}: {was} -> {value} +- {width}"])
    print_lines([f"(+-: half of the 95 % interval, from {fit.noise:.1%} noise a figure)", ""])
    has_held_out = any(run.held_out for run in fit.runs)
    header = ["run", *(title for title, _ in _COLUMNS)]
    print_table(header, [_row(run) for run in fit.runs], note=_note(has_held_out=has_held_out))
    errors = [
        f"{title} {before:.1%} -> {after:.1%}" + ("" if held_out is None else f" (held out {held_out:.1%})")
        for title, latency in _COLUMNS
        if (before := fit.median_error("before", latency)) is not None
        and (after := fit.median_error("after", latency)) is not None
        for held_out in [fit.median_error("held_out", latency)]
    ]
    console().print()
    print_lines([f"median error: {', '.join(errors)}"])
    for note in dict.fromkeys(note for run in fit.runs for note in (*run.replay.result.notes, *run.replay.notes)):
        print_lines([f"- {note}"])
    if out is not None:
        print_lines([f"{out}: in a scenario, deployment.engine.name: {out}"])
    sys.stdout.flush()


def _note(*, has_held_out: bool) -> str:
    note = "simulated against measured, before -> after the fit"
    return f"{note}; in brackets: constants fitted to the other files" if has_held_out else note


def _row(run: RunErrors) -> list[str]:
    result = run.replay.result
    name = f"{result.label}, {result.load}" if result.load else result.label
    return [name, *(_cell(run, latency) for _, latency in _COLUMNS)]


def _cell(run: RunErrors, latency: str) -> str:
    figure = next((name for name in run.measured if name.endswith(latency)), None)
    if figure is None:
        return ""
    before, after = run.error("before", figure), run.error("after", figure)
    if before is None or after is None:
        return ""
    held_out = run.error("held_out", figure)
    measured = _measured(run.measured, figure)
    return f"{measured}: {_signed(before)} -> {_signed(after)}" + (
        "" if held_out is None else f" ({_signed(held_out)})"
    )


def _signed(error: float) -> str:
    return f"{round(error, 3) + 0.0:+.1%}"  # without the sign of a nought


def _measured(measured: Mapping[str, float], figure: str) -> str:
    if figure in ("output_throughput", "request_throughput"):
        return f"{measured[figure]:.4g}/s"
    return f"{measured[figure] * 1e3:.4g} ms"
