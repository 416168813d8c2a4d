"""`simserve calibrate serving`: an engine's constants from end-to-end benchmarks."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from simserve.cli.importing import ForceOption
from simserve.cli.options import (
    PAGE,
    SetOption,
    Shown,
    argument,
    check_page,
    console,
    option,
    print_lines,
    print_table,
    takes_flags,
    write_all,
)
from simserve.cli.progress import progress
from simserve.errors import UsageError

if TYPE_CHECKING:
    from simserve.calibrate.serving import RunErrors, ServingFit
    from simserve.calibrate.serving_factors import ServerFactors
    from simserve.scenario.schema import Scenario
    from simserve.workload.benchmarks.result import BenchResult

STATISTICS = ("median", "mean")
_WORDS = {
    "host_seconds_per_step": "host time a step",
    "host_seconds_per_request": "host time a request",
    "compute_efficiency": "kernel efficiency",
    "frontend_latency": "frontend latency",
}
_FACTORS = {
    "gpu": "GPU time of a step",
    "host": "CPU time and kernel launches",
    "prompts": "steps with prompts, beside that",
    "batch": "decode steps beyond one request, beside that",
    "frontend": "frontend latency",
}
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_COLUMNS = (("TTFT", "ttft"), ("TPOT", "tpot"), ("throughput", "output_throughput"))

ResultsArgument = Annotated[
    list[Path],
    argument(
        "Files of vllm bench serve, SGLang, GuideLLM, AIPerf, inference-perf, llm-d, or a documented CSV.",
        metavar="RESULTS...",
    ),
]
ScenarioOption = Annotated[
    str, option("What served them: deployment, and lengths that a file lacks.", "--scenario", metavar="SCENARIO")
]


@takes_flags(without=PAGE)
def serving(
    results: ResultsArgument,
    scenario: ScenarioOption,
    out: Annotated[
        Path | None, option("Write the calibrated engine profile there, NAME.yaml.", metavar="PROFILE")
    ] = None,
    fit: Annotated[
        list[str] | None,
        option(
            "Fit this constant alone, by least squares: host_seconds_per_step, host_seconds_per_request, "
            "compute_efficiency or frontend_latency; repeats. Default: five factors on the profile, from one file up.",
            metavar="PARAMETER",
        ),
    ] = None,
    log: Annotated[Path | None, option("Start-up log of the server: its KV blocks.", "--log", metavar="FILE")] = None,
    date: Annotated[
        str | None, option("Day of the measurements. Default: as the files say.", metavar="YYYY-MM-DD")
    ] = None,
    statistic: Annotated[str, option("TTFT and TPOT that are fitted.", metavar="median|mean")] = "median",
    set_: SetOption = None,
    force: ForceOption = False,
    *,
    shown: Shown,
) -> None:
    """Fit five factors of a server to its benchmarks, from one file up, and say how much it helped.

    What the files say nothing about keeps the profile's value. Names the load to measure next.

    simserve calibrate serving results/*.json --scenario mine.yaml --out my-vllm.yaml
    """
    from simserve.calibrate import serving, serving_factors
    from simserve.calibrate.serving_profile import factors_text, profile_text
    from simserve.calibrate.simulated import ServingModel
    from simserve.scenario.load import load
    from simserve.workload.benchmarks.reading import read_results

    if date is not None and not _DAY.fullmatch(date):
        raise UsageError("must be a day such as 2026-11-23", key="--date", value=date)
    if date is not None and fit:
        raise UsageError("goes with the five factors alone", key="--date", value=date, remedy="leave out --fit")
    if statistic not in STATISTICS:
        raise UsageError("must be median or mean", key="--statistic", value=statistic)
    _check_out(out, force=force)
    loaded = load(scenario, set_ or ())
    if log is not None:
        settings = _kv_settings(log, loaded)
        loaded = load(scenario, [*settings, *(set_ or ())])
    else:
        settings = []
    measured = read_results(results)
    _check_models(measured, loaded)
    days = [each.date for each in measured if each.date]
    said = {"file": None if out is None else str(out), "settings": settings, "date": date or max(days, default=None)}
    with progress(is_shown=not shown.quiet) as tell:
        model = ServingModel(loaded)
        if fit:
            constants = serving.ServingCalibration(model, fit, statistic, tell).fit(measured).fit_
            text, answer = profile_text(constants, loaded, out.stem if out else ""), serving.as_mapping(constants)
        else:
            server = serving_factors.FactorCalibration(model, statistic, tell).fit(measured).fit_
            text = factors_text(server, loaded, out.stem if out else "", date or "")
            answer = serving_factors.as_mapping(server)
    doubt = serving_factors.misfit((constants if fit else server).runs)
    if doubt is not None and not shown.quiet:
        print(f"simserve: warning: {doubt}", file=sys.stderr)
    if out is not None:
        write_all({out: text}, force=force)
    shown.tell(answer | said, lambda: _render(constants, out) if fit else _render_factors(server, settings, out))


def _kv_settings(log: Path, scenario: Scenario) -> list[str]:
    """Return the scenario override that sets the KV blocks of a start-up log."""
    from simserve.errors import TraceError
    from simserve.planner.importers.engine_log import read_engine_log

    room = read_engine_log(log, scenario.deployment.engine.version).kv
    if room.blocks is None:
        raise TraceError("says no number of KV blocks or tokens", file=log, remedy="leave --log out")
    return [f"deployment.engine.num_gpu_blocks_override={room.blocks}"]


def _check_models(results: list[BenchResult], scenario: Scenario) -> None:
    """Refuse a benchmark of a model other than the scenario's; names without a profile are accepted."""
    from simserve.errors import ScenarioError, TraceError
    from simserve.planner.importers.model_names import find_model
    from simserve.profiles.catalog import load_model

    served = load_model(scenario.model, scenario.folder)
    for result in results:
        if not result.model or result.model == served.huggingface_id:
            continue
        try:
            named = load_model(find_model(result.model, result.file).model)
        except ScenarioError:
            continue
        if named.catalogue_name != served.catalogue_name:
            rule = f"was measured with another model than the scenario's {served.name}"
            remedy = "name the scenario that served it, or --set model=..."
            raise TraceError(rule, file=result.file, key=result.label, value=result.model, remedy=remedy)


def _check_out(out: Path | None, *, force: bool) -> None:
    """Before anything is simulated, refuse a file that could not be written."""
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
    _render_runs(fit)
    if out is not None:
        print_lines([f"{out}: in a scenario, deployment.engine.name: {out}"])
    sys.stdout.flush()


def _render_factors(server: ServerFactors, settings: list[str], out: Path | None) -> None:
    fit = server.fit
    for name, words in _FACTORS.items():
        low, high = fit.interval(name)
        state = server.state_of(name)
        note = "" if state == "fitted" else f" ({state})"
        print_lines([f"{words}: x {fit.factors[name]:.3f} ({low:.3f} to {high:.3f}){note}"])
    print_lines([f"(in brackets: 95 %, from {fit.num_simulations} simulations)", ""])
    _render_runs(server)
    if not any(run.held_out for run in server.runs):
        few = {1: "here there is one", 2: "here there are two"}.get(
            len(server.runs), "and two loads; here there is one"
        )
        print_lines([f"leave-one-out error: from three runs up{' ' if len(server.runs) > 2 else '; '}{few}"])
    else:
        pairs = [
            (title, before, after)
            for title, latency in _COLUMNS
            if (before := server.median_error("before", latency)) is not None
            and (after := server.median_error("held_out", latency)) is not None
        ]
        said = ", ".join(f"{title} {before:.1%} -> {after:.1%}" for title, before, after in pairs)
        print_lines([f"leave-one-out error: {said}"])
        no_better = [title for title, before, after in pairs if after >= before > 0.0]
        if not server.fit.is_kept:
            print_lines(
                [
                    "the profile predicts each load at least as well as factors of the others do, so its values stay. "
                    "If its errors are larger than repeats are apart, measure another load, or look for what differs"
                ]
            )
        elif no_better:
            what = ", ".join(no_better)
            print_lines([f"the loads do not agree in {what}: the others tell no more of each than the profile alone"])
    if server.next_load is not None:
        clients = server.next_load.num_clients
        open_ = ", ".join(f"{name.upper()} +- {each:.1%}" for name, each in server.next_load.deviations.items())
        print_lines([f"next load worth measuring: {clients} client{'s' if clients != 1 else ''} ({open_})"])
        sys.stdout.write(f"  {server.next_load.command}\n")
    print_lines([f"from the log: {setting}; set it in the scenario too" for setting in settings])
    if out is not None:
        print_lines([f"{out}: in a scenario, deployment.engine.name: {out}"])
    sys.stdout.flush()


def _render_runs(fit: ServingFit | ServerFactors) -> None:
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
    missed = [f"{title} of {count}" for title, latency in _COLUMNS if (count := fit.num_unexplained(latency))]
    if missed:
        from simserve.report.quantities import counted, listed

        where = f"{listed(missed)} of {counted(len(fit.runs), 'run')}"
        told = f"Warning: in {where} the fit is further off than that of nine in ten calibrated servers: "
        told += "check the GPU, the model, the settings and what the client measured. "
        print_lines([f"{told}Ranges of simserve run on the written profile are as wide as that"])
    for note in dict.fromkeys(note for run in fit.runs for note in (*run.replay.result.notes, *run.replay.notes)):
        print_lines([f"- {note}"])


def _note(*, has_held_out: bool) -> str:
    note = "simulated against measured, before -> after the fit"
    return f"{note}; in brackets: fitted to the others" if has_held_out else note


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
    return f"{round(error, 3) + 0.0:+.1%}"  # no sign for zero


def _measured(measured: Mapping[str, float], figure: str) -> str:
    if figure in ("output_throughput", "request_throughput"):
        return f"{measured[figure]:.4g}/s"
    return f"{measured[figure] * 1e3:.4g} ms"
