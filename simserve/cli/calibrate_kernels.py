"""`simserve calibrate kernels`: what kernels take on the device at hand."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from simserve.cli.options import JsonOption, QuietOption, budget_seconds, print_json, print_lines, print_table
from simserve.cli.progress import progress
from simserve.errors import InterruptedRunError

if TYPE_CHECKING:
    from simserve.calibrate.run_folder import KernelRun

DEFAULT_MODELS = {"cuda": "llama-3.1-8b", "cpu": "qwen2.5-0.5b"}
_MOST_REASONS = 12
SPARE_SECONDS, SPARE_SHARE = 2.0, 0.1
"""What of a budget is kept for the start of the process and for writing the tables, at most."""


def kernels(
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder of the run; one that was stopped is taken up again.")
    ],
    device: Annotated[
        Literal["cuda", "cpu"] | None, typer.Option(help="What to measure. Default: the GPU if there is one.")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Model whose layer shapes are measured; repeats. Default: llama-3.1-8b, on a CPU qwen2.5-0.5b.",
        ),
    ] = None,
    number_format: Annotated[
        list[str] | None,
        typer.Option(
            "--format",
            metavar="NAME",
            help="Number format of products: bfloat16, fp8, sq (INT8), int8_wo, int4_wo; repeats. "
            "Default: all on a GPU, bfloat16 on a CPU.",
        ),
    ] = None,
    budget: Annotated[
        str, typer.Option(metavar="TIME", help="It ends within this time, such as 5min or 90s.")
    ] = "5min",
    date: Annotated[
        str | None, typer.Option(metavar="YYYY-MM-DD", help="Date that provenance names. Default: today.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a run of another device or of other models.")] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Measure what the kernels of a model take on this machine, as operator tables for deployment.operator_tables.

    Every result is checked against double precision before it is timed. Stopped by Ctrl-C or worse, the same command
    goes on where it was. It has run on one GPU so far, an H200, for 20 s; what others would run is tested on stand-ins.

    simserve calibrate kernels --model llama-3.1-8b --budget 5min --out calibration/runs/my-gpu
    """
    seconds = budget_seconds(budget)
    deadline = time.monotonic() + seconds - min(SPARE_SECONDS, SPARE_SHARE * seconds)
    from simserve.calibrate.kernels.measure import check_choices, measure
    from simserve.calibrate.kernels.torch_device import open_device
    from simserve.calibrate.run_folder import read_run
    from simserve.profiles.model import load_model

    opened = open_device(device)
    models = [load_model(name) for name in model or [DEFAULT_MODELS[opened.kind]]]
    check_choices(models, number_format or ())
    with progress(is_shown=not quiet) as tell:
        try:
            measure(
                out,
                opened,
                models,
                deadline=deadline,
                formats=number_format,
                command=_command(),
                date=date,
                force=force,
                tell=tell,
            )
        except KeyboardInterrupt:
            raise InterruptedRunError(
                "interrupted; what was measured is kept", file=out, remedy="the same command goes on from there"
            ) from None
    run = read_run(out)
    if as_json:
        print_json(run_summary(run))
    elif not quiet:
        _render(run)


def run_summary(run: KernelRun) -> dict[str, Any]:
    """Return what a run holds, as ``--json`` prints it."""
    keys = ("device_name", "torch", "date", "models", "ended", "is_complete", "planned_points", "measured_points")
    summary = {"out": str(run.folder)} | {key: run.provenance.get(key) for key in keys}
    return summary | {"tables": run.provenance.get("tables"), "skipped": run.provenance.get("skipped")}


def _command() -> str:
    return shlex.join(["simserve", *sys.argv[1:]])


def _render(run: KernelRun) -> None:
    from simserve.calibrate.run_report import clock_lines, ending_line, spread_line, table_rows

    provenance: Mapping[str, Any] = run.provenance
    print_lines([f"{provenance['device_name']}, PyTorch {provenance['torch']}: {ending_line(run)}"])
    header = ("kernels", "calls", "from", "to", "spread", "fastest")
    print_table(header, table_rows(run), note="spread: median of 10th to 90th percentile over the median of a call")
    print_lines(clock_lines(run))
    print_lines([f"WARNING: {line}" for line in [spread_line(run)] if line])
    skipped = provenance.get("skipped") or []
    if skipped:
        print_lines(["not measured:"])
    for each in skipped[:_MOST_REASONS]:
        print_lines([f"  {each['points']:4d}  {each['what']}: {each['reason']}"])
    others = sum(each["points"] for each in skipped[_MOST_REASONS:])
    if others:
        print_lines([f"  {others:4d}  for other reasons (provenance.json lists them)"])
    print_lines([f"next: simserve calibrate fit {shlex.quote(str(run.folder))}"])
