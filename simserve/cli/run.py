"""`simserve run`: simulate a scenario, or a deployment given by flags."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simserve.cli.one_line import Asked, refuse_flags
from simserve.cli.options import (
    OutOption,
    SeedOption,
    SetOption,
    Shown,
    check_verbose,
    console,
    option,
    set_words,
    share,
    takes_flags,
)
from simserve.cli.progress import Tell, counted, progress
from simserve.errors import EXIT_DONE, EXIT_THRESHOLD_FAILED, InterruptedRunError

if TYPE_CHECKING:
    from simserve.api import Scenario


_LONGEST_REFERENCE = 240
"""If a scenario takes more characters to name, the commands of an answer name the file that the run wrote."""


@takes_flags(without=("html",))
def run(
    asked: Asked,
    model: Annotated[str | None, option("The model, in place of SCENARIO.")] = None,
    hardware: Annotated[str | None, option("The same as --gpus.")] = None,
    overrides: SetOption = None,
    seed: SeedOption = None,
    replications: Annotated[
        int | None, option("Independent runs; two or more give 95% confidence intervals.", min=1)
    ] = None,
    precision: Annotated[
        str | None,
        option("Run longer until runs settle, then more of them, until 95% intervals are this narrow, such as 2%."),
    ] = None,
    max_replications: Annotated[int | None, option("With --precision: the most runs, 50 if absent.", min=2)] = None,
    out: OutOption = None,
    timeline: Annotated[
        bool, option("Also write timeline.json: every step and request, for ui.perfetto.dev.", "--timeline")
    ] = False,
    film: Annotated[
        bool, option("Also write film.html: some seconds of the run, played step by step.", "--film")
    ] = False,
    prometheus: Annotated[
        bool, option("Also write metrics.prom: what vLLM's /metrics would say at the end.", "--prometheus")
    ] = False,
    force: Annotated[bool, option("Replace the result of another scenario or seed.", "--force")] = False,
    accelerate: Annotated[
        str, option("Whether the kernel runs compiled; needs simserve\\[fast].", metavar="auto|on|off")
    ] = "auto",
    by_reference: Annotated[
        bool, option("Run it step by step in plain SimPy: the same result, slowly.", "--reference")
    ] = False,
    check: Annotated[bool, option("Check the scenario, print what fits in memory, and stop.", "--check")] = False,
    *,
    shown: Shown,
) -> None:
    """Simulate a scenario and say what happens: whether the SLO holds, latencies, load, dollars, and what to do.

    simserve run chatbot

    simserve run mine.yaml --set deployment.replicas=2 --out results/two

    simserve run Qwen/Qwen3-32B --gpus 2xH100 --engine vllm==0.20 --rate 3 --prompt-tokens 2k --output-tokens 500
    """
    if precision is not None:
        share(precision, "--precision")
    changes = [
        *(overrides or ()),
        *_flag("run.seed", seed),
        *_flag("run.replications", replications),
        *_flag("run.precision", precision),
        *_flag("run.max_replications", max_replications),
    ]
    asked = _with_model(asked, model, hardware)
    shown.check()
    check_verbose(shown.verbose, {"--check": check})
    if check:
        writing = {"--force": force, "--timeline": timeline, "--film": film, "--prometheus": prometheus}
        writing["--reference"] = by_reference
        refuse_flags(
            {"--out": out, **{flag: value or None for flag, value in writing.items()}},
            "has no effect with --check, which writes nothing",
        )
    loaded = asked.load(changes, quiet=shown.quiet, needs_traffic=not check)
    if check:
        from simserve.cli.memory import show_memory
        from simserve.cli.profiles import print_resolved
        from simserve.scenario.resolve import resolve

        resolved = resolve(loaded)
        if shown.is_printed:
            print_resolved(resolved.shape.engine)
        show_memory(resolved, shown)
        return
    if by_reference:
        other = {
            "--timeline": timeline or None,
            "--film": film or None,
            "--accelerate": None if accelerate == "auto" else accelerate,
        }
        refuse_flags(other, "is not for a run with --reference", "leave one of the two out")
    reference = (*asked.words, *set_words(changes))
    files = {"force": force, "timeline": timeline, "film": film, "prometheus": prometheus, "reference": reference}
    how = {**files, "accelerate": accelerate, "by_reference": by_reference}
    raise typer.Exit(_run(loaded, out, how, shown))


_SIMULATING, _AFTERWARDS = "simulating", "weighing what to change, and writing the report"


def _told(tell: Tell) -> Callable[[int, int], None]:
    """Return the progress of a run; once its requests are done, what follows, which may take longer, is named."""
    return lambda done, total: (
        tell(done, total, _SIMULATING, counted(done, total)) if done < total else tell(done, total, _AFTERWARDS)
    )


def _run(scenario: Scenario, out: Path | None, files: dict[str, Any], shown: Shown) -> int:
    from simserve import api
    from simserve.metrics.files import summary_text
    from simserve.report.brief import STORED

    shown.notes(scenario)
    folder = out if out is not None else api.default_folder(scenario)
    if len(shlex.join(files["reference"])) > _LONGEST_REFERENCE:
        files = {**files, "reference": (str(folder / STORED[0]),)}
    with shown.misfit_printed(scenario), progress(is_shown=not shown.quiet, label=_SIMULATING) as tell:
        result = api.run(scenario, out=folder, progress=None if tell is None else _told(tell), **files)
    if shown.as_json:
        sys.stdout.write(summary_text(result.summary))
    elif shown.is_printed:
        from simserve.report.terminal import render_run

        render_run(result, console(), folder, reference=files["reference"], is_verbose=shown.verbose)
    if files["timeline"] and not shown.quiet:
        from simserve.report.timeline import MAX_STEPS

        steps = result.simulation.totals.num_steps
        if steps > MAX_STEPS:
            print(f"simserve: the timeline holds the first {MAX_STEPS:,} of {steps:,} steps", file=sys.stderr)
    for failure in result.threshold_failures:
        print(f"simserve: threshold failed: {failure}", file=sys.stderr)
    if result.simulation.was_interrupted:
        raise InterruptedRunError("interrupted; what was finished until then is written")
    return EXIT_THRESHOLD_FAILED if result.threshold_failures else EXIT_DONE


def _flag(key: str, value: object) -> list[str]:
    return [] if value is None else [f"{key}={value}"]


def _with_model(asked: Asked, model: str | None, hardware: str | None) -> Asked:
    """Return the question with `--model` and `--hardware` turned into SCENARIO and `--gpus`."""
    if model is not None and (asked.scenario is not None or asked.like is not None):
        refuse_flags({"--model": model}, "is in place of SCENARIO", "change a scenario with --set KEY=VALUE")
    if hardware is not None and asked.gpus is not None:
        refuse_flags({"--hardware": hardware}, "says the same as --gpus", "keep one of the two")
    return replace(asked, scenario=asked.scenario or model, gpus=hardware if asked.gpus is None else asked.gpus)
