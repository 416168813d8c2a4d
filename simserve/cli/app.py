"""The commands in one place. Knows their names, not how an error ends them."""

from __future__ import annotations

from typing import Annotated

import typer

from simserve import __version__
from simserve.cli import (
    apis,
    calibrate,
    capacity,
    compare,
    cost,
    diff,
    explore,
    exporting,
    frameworks,
    importing,
    memory,
    plan,
    profiles,
    report,
    run,
    scenarios,
    schema,
    sweep,
    trace,
    validate,
)

EXIT_INTERRUPTED = 130
"""What the app returns after Ctrl-C."""

WrongFlagsError: type[Exception] = typer.BadParameter.__bases__[0]
"""What the app raises for flags it does not understand."""

app = typer.Typer(
    name="simserve",
    help="What will this LLM deployment do under this traffic, and what will it cost?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run.run)
app.command("memory")(memory.memory)
app.command("capacity")(capacity.capacity)
app.command("compare")(compare.compare)
app.command("sweep")(sweep.sweep)
app.command("diff")(diff.diff)
app.command("explore")(explore.explore)
app.command("export")(exporting.export)
app.add_typer(importing.app, name="import")
app.add_typer(calibrate.app, name="calibrate")
app.command("plan")(plan.plan)
app.command("report")(report.report)
app.command("scenarios")(scenarios.scenarios)
app.command("gpus")(profiles.gpus)
app.command("models")(profiles.models)
app.command("engines")(profiles.engines)
app.command("trace")(trace.trace)
app.command("cost")(cost.cost)
app.command("apis")(apis.apis)
app.command("schema")(schema.schema)
app.command("validate")(validate.validate)
app.command("frameworks")(frameworks.frameworks)
app.add_typer(calibrate.app, name="calibrate")


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print(f"simserve {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and stop.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    pass
