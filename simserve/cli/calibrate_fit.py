"""`simserve calibrate fit`: a hardware profile from measured kernels, with its errors and a roofline plot."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simserve.cli.options import JsonOption, QuietOption, print_json, print_lines, print_table
from simserve.errors import ProfileError, UsageError

if TYPE_CHECKING:
    from simserve.calibrate.kernel_fit import KernelFit
    from simserve.calibrate.run_folder import KernelRun
    from simserve.profiles.hardware import HardwareProfile
    from simserve.profiles.model import ModelProfile

PROFILE_FILE = "profile.yaml"


def fit(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", readable=False, help="Folder that simserve calibrate kernels wrote.", show_default=False
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Profile to write. Default: RUN/profile.yaml.", show_default=False),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Profile of the same GPU to lay the curves over, or none. Default: the bundled one, if there is one.",
            show_default=False,
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Roofline plot, .svg or .png. Default: beside the profile.", show_default=False
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a profile of another run.")] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Fit a GPU's profile to its measured kernels, for deployment.hardware.

    Where a bundled profile has the curve of the very kernel that PyTorch ran, the device's factor on it (measured over
    predicted) scales the engines' curves of that family. Without one, PyTorch's kernels are fitted in absolute terms.
    Prints each constant with its 95 % interval and the error on calls that the fit did not see. Not yet run on a GPU's
    own measurement: tried on CPUs, and on published tables of GPUs.

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
    _check(target, picture, measured, force=force)
    found = KernelFit(_base(base, measured)).fit(measured)
    if not found.kinds_:
        why = "; ".join(f"{name}: {reason}" for name, reason in found.not_fitted_.items())
        raise UsageError(
            f"holds too few calls for any fit ({why})",
            file=run,
            remedy=f"simserve calibrate kernels --out {run} goes on with it",
        )
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
    if as_json:
        print_json(files | summary)
    elif not quiet:
        _render(measured, found, summary, files)


def _check(target: Path, picture: Path, run: KernelRun, *, force: bool) -> None:
    """Refuse, before anything is fitted, files that cannot be written or belong to something else."""
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
    """Return the profile to lay the fit over: the one that was named, or the bundled one of the same GPU."""
    from simserve.calibrate.fitted_profile import bundled_profile_of
    from simserve.profiles.hardware import load_hardware

    if name == "none":
        return None
    return bundled_profile_of(run.provenance) if name is None else load_hardware(name)


def _models(run: KernelRun) -> list[ModelProfile]:
    """Return the models of a run that can still be found; layers of others are not compared."""
    from simserve.profiles.model import load_model

    models = []
    for name in run.provenance["models"]:
        try:
            models.append(load_model(str(name)))
        except ProfileError:
            continue
    return models


def _render(run: KernelRun, found: KernelFit, summary: Mapping[str, Any], files: Mapping[str, str]) -> None:
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
        print_table(
            columns,
            factor_rows(device_factors(found)),
            note="error of the base profile's curve of the very kernel -> times the factor",
        )
    for mode, layers in summary["layers"].items():
        share = f"whole layers, {mode}: their operators add up to {1.0 + layers['bias']:.2f} of what they took"
        print_lines([f"{share} ({layers['calls']} calls that no fit saw, median error {layers['median_error']:.0%})"])
    launches = ", ".join(f"{mode} {format_seconds(seconds)}" for mode, seconds in summary["launch_s"].items())
    print_lines([f"host time of a launch: {launches}"] if launches else [])
    print_lines([f"WARNING: {line}" for line in warnings(run, found)])
    print_lines([f"profile: {files['profile']}   roofline: {files['plot']}"])
    print_lines([f"next: simserve run chatbot --set {shlex.quote('deployment.hardware=' + files['profile'])}"])
