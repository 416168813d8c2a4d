"""`simserve calibrate`: measure kernels, fit a profile, choose loads of a server, check whether a profile holds."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from simserve.cli import calibrate_serving
from simserve.cli.one_line import Asked
from simserve.cli.options import (
    PAGE,
    SetOption,
    Shown,
    argument,
    option,
    print_lines,
    print_table,
    seconds_of,
    set_words,
    share,
    takes_flags,
)
from simserve.cli.progress import progress
from simserve.errors import EXIT_THRESHOLD_FAILED, InterruptedRunError, ProfileError, UsageError

if TYPE_CHECKING:
    from simserve.calibrate.drift import Drift
    from simserve.calibrate.kernel_fit import KernelFit
    from simserve.calibrate.loads import Proposal
    from simserve.calibrate.run_folder import KernelRun
    from simserve.profiles.expected_errors import Expectation
    from simserve.profiles.hardware import HardwareProfile
    from simserve.profiles.model import ModelProfile
    from simserve.scenario.schema import Scenario

DEFAULT_MODELS = {"cuda": "llama-3.1-8b", "cpu": "qwen2.5-0.5b"}
_MOST_REASONS = 12
SPARE_SECONDS, SPARE_SHARE = 2.0, 0.1
"""Most of a budget reserved for the start of the process and for writing the tables."""
PROFILE_FILE = "profile.yaml"
FORMATS = ("text", "md")
app = typer.Typer(
    help="Bring the model to your own GPU: measure kernels, fit curves, compare with servers, gate drift.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",  # the default of newer releases only
)


@app.callback()
def _calibrate() -> None:
    pass


@takes_flags(without=PAGE)
def kernels(
    out: Annotated[Path, option("Folder of the run; one that was stopped is taken up again.", "--out", metavar="DIR")],
    device: Annotated[
        Literal["cuda", "cpu"] | None, option("What to measure. Default: the GPU if there is one.")
    ] = None,
    model: Annotated[
        list[str] | None,
        option(
            "Model whose layer shapes are measured; repeats. Default: llama-3.1-8b, on a CPU qwen2.5-0.5b.",
            metavar="NAME",
        ),
    ] = None,
    number_format: Annotated[
        list[str] | None,
        option(
            "Number format of products: bfloat16, fp8, sq (INT8), int8_wo, int4_wo; repeats. "
            "Default: all on a GPU, bfloat16 on a CPU.",
            "--format",
            metavar="NAME",
        ),
    ] = None,
    engine: Annotated[
        Literal["vllm", "none"] | None,
        option(
            "Whose attention and products a CPU is measured with: vLLM's own, which this environment must hold, "
            "or none's (PyTorch's). Default: vLLM's where it is there."
        ),
    ] = None,
    budget: Annotated[str, option("It ends within this time, such as 5min or 90s.", metavar="TIME")] = "5min",
    date: Annotated[str | None, option("Date that provenance names. Default: today.", metavar="YYYY-MM-DD")] = None,
    force: Annotated[bool, option("Replace a run of another device or of other models.", "--force")] = False,
    *,
    shown: Shown,
) -> None:
    """Measure what the kernels of a model take on this machine, as operator tables for deployment.operator_tables.

    Every result is checked against double precision before it is timed. On a CPU, run it in the environment of its
    vLLM: vLLM's own attention and products are timed then, else PyTorch's. After Ctrl-C or a crash, the same command
    resumes where it stopped. So far it has run on one GPU, an H200, twice; paths of other GPUs are tested on stand-ins.

    simserve calibrate kernels --model llama-3.1-8b --budget 5min --out calibration/runs/my-gpu
    """
    seconds = seconds_of(budget, "--budget")
    deadline = time.monotonic() + seconds - min(SPARE_SECONDS, SPARE_SHARE * seconds)
    from simserve.calibrate.kernels.cpu_engine import engine_kernels
    from simserve.calibrate.kernels.measure import check_choices, measure
    from simserve.calibrate.kernels.torch_device import open_device
    from simserve.calibrate.run_folder import read_run
    from simserve.profiles.catalog import load_model

    opened = open_device(device)
    opened.engine = engine_kernels(opened.torch, opened.kind, engine)
    models = [load_model(name) for name in model or [DEFAULT_MODELS[opened.kind]]]
    check_choices(models, number_format or ())
    with progress(is_shown=not shown.quiet) as tell:
        try:
            measure(
                out,
                opened,
                models,
                deadline=deadline,
                formats=number_format,
                command=shlex.join(["simserve", *sys.argv[1:]]),
                date=date,
                force=force,
                tell=tell,
            )
        except KeyboardInterrupt:
            raise InterruptedRunError(
                "interrupted; what was measured is kept", file=out, remedy="the same command goes on from there"
            ) from None
    run = read_run(out)
    shown.tell(_run_summary(run), lambda: _render_kernels(run))


def _run_summary(run: KernelRun) -> dict[str, Any]:
    """Return the content of a run, as ``--json`` prints it."""
    keys = [*("device_name", "torch", "engine", "date", "models"), "ended", "is_complete", "planned_points"]
    keys.append("measured_points")
    summary = {"out": str(run.folder)} | {key: run.provenance.get(key) for key in keys}
    return summary | {"tables": run.provenance.get("tables"), "skipped": run.provenance.get("skipped")}


def _render_kernels(run: KernelRun) -> None:
    from simserve.calibrate.run_report import clock_lines, ending_line, spread_line, table_rows

    provenance: Mapping[str, Any] = run.provenance
    kernels_of = f"PyTorch {provenance['torch']}"
    if provenance.get("engine"):
        kernels_of = f"{kernels_of}, attention and products of {provenance['engine']}"
    print_lines([f"{provenance['device_name']}, {kernels_of}: {ending_line(run)}"])
    if provenance["device"]["kind"] == "cpu" and not provenance.get("engine"):
        print_lines(["attention is PyTorch's, slower than vLLM's: run this in the environment of vLLM to time its own"])
    header = ("kernels", "calls", "from", "to", "spread", "fastest")
    print_table(header, table_rows(run), note="spread: median of 10th to 90th percentile over the median of a call")
    print_lines(clock_lines(run))
    print_lines([f"WARNING: {line}" for line in [spread_line(run)] if line])
    skipped = provenance.get("skipped") or []
    lines = ["not measured:"] if skipped else []
    lines += [f"  {each['points']:4d}  {each['what']}: {each['reason']}" for each in skipped[:_MOST_REASONS]]
    if others := sum(each["points"] for each in skipped[_MOST_REASONS:]):
        lines.append(f"  {others:4d}  for other reasons (provenance.json lists them)")
    print_lines([*lines, f"next: simserve calibrate fit {shlex.quote(str(run.folder))}"])


@takes_flags(without=PAGE)
def fit(
    run: Annotated[Path, argument("Folder that simserve calibrate kernels wrote.", metavar="RUN", readable=False)],
    out: Annotated[Path | None, option("Profile to write. Default: RUN/profile.yaml.", "--out", metavar="FILE")] = None,
    base: Annotated[
        str | None,
        option(
            "Profile of the same GPU to lay the curves over, or none. Default: the bundled one, if there is one.",
            metavar="NAME",
        ),
    ] = None,
    plot: Annotated[
        Path | None, option("Roofline plot, .svg or .png. Default: beside the profile.", metavar="FILE")
    ] = None,
    force: Annotated[bool, option("Replace a profile of another run.", "--force")] = False,
    *,
    shown: Shown,
) -> None:
    """Fit a GPU's profile to its measured kernels, for deployment.hardware.

    Where a bundled profile has the curve of the very kernel that PyTorch ran, the device's factor on it (measured over
    predicted) scales the engines' curves of that family. Without one, PyTorch's kernels are fitted in absolute terms.
    Prints each constant with its 95 % interval and the error on calls that the fit did not see. Run on an H200's
    own measurements so far, beside CPUs and published tables of GPUs.

    simserve calibrate fit calibration/runs/my-gpu --out my-gpu.yaml
    """
    from simserve.calibrate.fit_report import fit_summary, profile_header, roofline_series
    from simserve.calibrate.fitted_profile import fitted_profile, write_profile
    from simserve.calibrate.kernel_fit import KernelFit
    from simserve.calibrate.run_folder import read_run
    from simserve.report.roofline import roofline, write_figure

    measured = read_run(run)
    target = out or run / PROFILE_FILE
    picture = plot or target.with_suffix(".svg")
    _check_files(target, picture, measured, force=force)
    found = KernelFit(_base(base, measured)).fit(measured)
    if not found.kinds_:
        why = "; ".join(f"{name}: {reason}" for name, reason in found.not_fitted_.items())
        rule = f"holds too few calls for any fit ({why})"
        raise UsageError(rule, file=run, remedy=f"simserve calibrate kernels --out {run} goes on with it")
    profile = fitted_profile(measured, found)
    command = " ".join(["simserve", *sys.argv[1:]])
    write_profile(profile, target, profile_header(measured, found, command))
    peaks = {dtype: profile.peak_flops(dtype) or 0.0 for dtype in profile.supported_dtypes}
    series = roofline_series(found, peaks)
    used = {
        dtype: peak for dtype, peak in peaks.items() if any(each.peak == peak for each in series) and dtype != "fp16"
    }
    write_figure(roofline(series, used, profile.memory.bandwidth, str(measured.provenance["device_name"])), picture)
    summary = fit_summary(measured, found, _models(measured))
    files = {"profile": str(target), "plot": str(picture), "name": profile.name}
    shown.tell(files | summary, lambda: _render_fit(measured, found, summary, files))


def _check_files(target: Path, picture: Path, run: KernelRun, *, force: bool) -> None:
    """Before anything is fitted, refuse files that cannot be written or belong to something else."""
    from simserve.report.roofline import ENDINGS

    for key, file, endings in (("--out", target, (".yaml", ".yml")), ("--plot", picture, ENDINGS)):
        if file.suffix not in endings:
            raise UsageError(f"must end in {' or '.join(endings)}", key=key, value=str(file))
        if file.is_dir() or not file.absolute().parent.is_dir() or not os.access(file.absolute().parent, os.W_OK):
            raise UsageError("cannot be written: a folder, or no such folder", file=file, key=key)
    if target.exists() and not force and not _is_of(target, run):
        raise UsageError(
            "is there, and is no fit of this run", file=target, key="--out", remedy="choose another file, or --force"
        )


def _is_of(target: Path, run: KernelRun) -> bool:
    from simserve.documents import read_mapping

    try:
        calibration = read_mapping(target, ProfileError).get("calibration")
    except ProfileError:
        return False
    return isinstance(calibration, dict) and calibration.get("run") == run.folder.resolve().name


def _base(name: str | None, run: KernelRun) -> HardwareProfile | None:
    """Return the profile that the fit modifies: the one named, or the bundled one of the same GPU."""
    from simserve.calibrate.fitted_profile import bundled_profile_of
    from simserve.profiles.hardware import load_hardware

    if name == "none":
        return None
    return bundled_profile_of(run.provenance) if name is None else load_hardware(name)


def _models(run: KernelRun) -> list[ModelProfile]:
    """Return the models of a run that can still be found; the layers of others are not compared."""
    from simserve.profiles.catalog import load_model

    models = []
    for name in run.provenance["models"]:
        try:
            models.append(load_model(str(name)))
        except ProfileError:
            continue
    return models


def _render_fit(run: KernelRun, found: KernelFit, summary: Mapping[str, Any], files: Mapping[str, str]) -> None:
    from simserve.calibrate.device_factors import device_factors, factor_rows
    from simserve.calibrate.fit_report import table_rows, warnings
    from simserve.units import format_seconds

    over = f", over {found.base.name}" if found.base is not None else ""
    print_lines([f"{run.provenance['device_name']}: {len(found.kinds_)} kinds of kernels fitted{over}"])
    header = ("kernels", "calls", "start", "compute", "memory", "error", "held out")
    note = "± is the 95 % interval; error: median of the calls fitted to, and of calls held out in turn"
    print_table(header, table_rows(found), note=note)
    if found.base is not None:
        columns = ("kernels", "engines' curves", "factor (95 %)", "error", "held out", "why")
        note = "error of the base profile's curve of the very kernel -> times the factor"
        print_table(columns, factor_rows(device_factors(found)), note=note)
    for mode, layers in summary["layers"].items():
        share = f"whole layers, {mode}: their operators add up to {1.0 + layers['bias']:.2f} of what they took"
        print_lines([f"{share} ({layers['calls']} calls that no fit saw, median error {layers['median_error']:.0%})"])
    launches = ", ".join(f"{mode} {format_seconds(seconds)}" for mode, seconds in summary["launch_s"].items())
    print_lines([f"host time of a launch: {launches}"] if launches else [])
    print_lines([f"WARNING: {line}" for line in warnings(run, found)])
    print_lines([f"profile: {files['profile']}   roofline: {files['plot']}"])
    print_lines([f"next: simserve run chatbot --set {shlex.quote('deployment.hardware=' + files['profile'])}"])


@takes_flags(without=PAGE)
def loads(asked: Asked, overrides: SetOption = None, *, shown: Shown) -> None:
    """Name the two loads of a server that are most worth measuring, with the commands and the expected gain.

    They stand for all loads from one client to as many requests as the scenario has in flight at a time.

    simserve calibrate loads chatbot
    """
    from simserve.calibrate.loads import as_mapping, propose
    from simserve.calibrate.simulated import ServingModel

    scenario = asked.load(overrides or ())
    shown.notes(scenario)
    with progress(is_shown=not shown.quiet) as tell:
        proposal = propose(ServingModel(scenario), tell)
    shown.tell(as_mapping(proposal), lambda: _render_loads(proposal, [*asked.words, *set_words(overrides or ())]))


def _render_loads(proposal: Proposal, words: Sequence[str]) -> None:
    metrics = tuple(proposal.open_before)
    now, later = (f"{_widths(each, metrics)} ({each.basis})" for each in (proposal.expected, proposal.calibrated))
    print_lines([f"Now: {now}", "", f"Two loads stand for all from 1 to {proposal.most_clients} clients:"])
    for number, each in enumerate(proposal.loads, 1):
        title = f"{number}. {each.num_clients} client{'s' * (each.num_clients > 1)}"
        open_by = ", ".join(f"{share:.1%} in {name.upper()}" for name, share in each.deviations.items())
        print_lines([f"{title}: leaves the engine's pace open by {open_by}"])
        sys.stdout.write(f"  {each.command}\n")
    files = " ".join(f"clients-{each.num_clients}.json" for each in proposal.loads)
    print_lines(["", "Then:"])
    scenario = shlex.join(words)
    if len(words) > 1:  # flags: `calibrate serving` takes a file
        sys.stdout.write(f"  simserve run {scenario} --out my-server\n")
        scenario = "my-server/scenario.resolved.yaml"
    sys.stdout.write(f"  simserve calibrate serving {files} --scenario {scenario} --out my-engine.yaml\n")
    sys.stdout.write(f"  simserve run {scenario} --set deployment.engine.name=my-engine.yaml\n")
    print_lines(["", f"After that: {later}"])
    sys.stdout.flush()


def _widths(expected: Expectation, metrics: Sequence[str]) -> str:
    pairs = ((name.upper(), expected.metrics[name]) for name in metrics)
    return ", ".join(f"{name} x {each.low:.2f} to {each.high:.2f}" for name, each in pairs) + " on 90% of servers"


@takes_flags(without=PAGE)
def check(
    profile: Annotated[str, argument("A hardware or engine profile, by name or path.", metavar="PROFILE")],
    against: Annotated[
        list[Path],
        option("A folder of operator tables, or a file of benchmark results, which repeats.", metavar="RUN|RESULTS"),
    ],
    tolerance: Annotated[str, option("How far anything may have moved, either way.", metavar="SHARE")] = "5%",
    scenario: Annotated[
        str | None, option("What served the benchmarks; needed for RESULTS.", "--scenario", metavar="SCENARIO")
    ] = None,
    engine: Annotated[
        str, option("Whose kernels, where a profile or a folder has several engines'.", "--engine", metavar="ENGINE")
    ] = "vllm",
    may_be_faster: Annotated[
        bool, option("Benchmarks that are faster than promised pass; only slower ones fail.", "--may-be-faster")
    ] = False,
    as_format: Annotated[str, option("md: for a pull request.", "--format", metavar="text|md")] = "text",
    set_: SetOption = None,
    *,
    shown: Shown,
) -> None:
    """Fail with exit code 99 where kernels or benchmarks have moved away from a profile, slower or faster.

    A profile that is too slow is as wrong as one that is too fast. A promise holds where the server is faster: with
    --may-be-faster, as the benchmark.sh of exports has it.

    simserve calibrate check h100-sxm-80gb --against runs/new

    simserve calibrate check my-vllm.yaml --against results.json --scenario mine.yaml --tolerance 10%
    """
    from simserve.calibrate.drift import markdown

    if as_format not in FORMATS:
        raise UsageError("must be text or md", key="--format", value=as_format)
    if shown.as_json and as_format == "md":
        raise UsageError("cannot be had with --json", key="--format", value="md")
    limit = share(tolerance, "--tolerance")
    drift = _drift(profile, against, limit, scenario, engine, set_ or (), may_be_faster=may_be_faster)
    if as_format == "md":
        print_lines(markdown(drift).splitlines())
    else:
        shown.tell(drift.as_mapping(), lambda: _render_check(drift))
    if not drift.passed:
        raise typer.Exit(EXIT_THRESHOLD_FAILED)


def _drift(
    profile: str,
    against: list[Path],
    tolerance: float,
    scenario: str | None,
    engine: str,
    overrides: list[str] | tuple[()],
    *,
    may_be_faster: bool,
) -> Drift:
    from simserve.calibrate.drift import check_kernels, check_serving
    from simserve.profiles.hardware import load_hardware
    from simserve.scenario.load import load
    from simserve.workload.benchmarks.reading import read_results

    folders = [path for path in against if path.is_dir()]
    is_engine = _is_engine(profile)
    if folders and len(against) > 1:
        raise UsageError("must be one folder of operator tables, or files of results", key="--against")
    if folders:
        if is_engine:
            rule = "is an engine profile: operator tables say nothing of it"
            raise UsageError(rule, key="PROFILE", value=profile, remedy="give the hardware profile")
        if scenario is not None or overrides:
            raise UsageError("has no use with operator tables", key="--set" if overrides else "--scenario")
        if may_be_faster:
            rule = "has no use with operator tables: kernels that are faster need a new profile too"
            raise UsageError(rule, key="--may-be-faster", remedy="leave it out")
        return check_kernels(load_hardware(profile), folders[0], engine, tolerance, profile)
    if scenario is None:
        raise UsageError("is missing: benchmarks need what served them", key="--scenario")
    results = read_results(against)
    key = "deployment.engine.name" if is_engine else "deployment.hardware"
    named = str(Path(profile).resolve()) if _is_path(profile) else profile  # also from the scenario's folder
    loaded: Scenario = load(scenario, [*overrides, f"{key}={named}"])
    files = [str(path) for path in against]
    return check_serving(loaded, results, tolerance, profile, files, may_be_faster=may_be_faster)


def _is_engine(profile: str) -> bool:
    """Return whether a profile is an engine profile; only these have versions."""
    from simserve.documents import read_mapping
    from simserve.errors import ProfileError, nearest
    from simserve.profiles import catalog

    if _is_path(profile):
        return "versions" in read_mapping(catalog.find("hardware", profile), ProfileError)
    for kind in ("hardware", "engine"):
        if profile in catalog.names(kind):
            return kind == "engine"
    known = [*catalog.names("hardware"), *catalog.names("engine")]
    raise ProfileError("is no hardware and no engine profile", value=profile, remedy=nearest(profile, known))


def _is_path(profile: str) -> bool:
    return profile.endswith((".yaml", ".yml", ".json")) or "/" in profile


def _render_check(drift: Drift) -> None:
    from simserve.calibrate.drift import cells

    count = len(drift.comparisons)
    faster = sum(each.verdict == "faster" for each in drift.comparisons if each.is_within)
    if drift.passed:
        more = f", {faster} of them faster than promised" if faster else ""
        within = "no slower than the tolerance allows" if faster else "within the tolerance"
        print_lines([f"{drift.profile} still holds: {count} of {count} {within}{more}"])
    else:
        print_lines([f"{drift.profile} has drifted: {len(drift.moved)} of {count} moved"])
    rest = [each for each in drift.comparisons if each.is_within]
    header = ("what", "calls", "profile", "measured", "change", "tolerance", "")
    print_table(header, [cells(each) for each in (*drift.moved, *rest)])
    print_lines([f"- {each}" for each in drift.left_out])


app.command("kernels")(kernels)
app.command("fit")(fit)
app.command("loads")(loads)
app.command("serving")(calibrate_serving.serving)
app.command("check")(check)
