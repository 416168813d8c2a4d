"""`simserve`: the commands in one place, and the one place that turns errors into a line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from simserve import __version__
from simserve.cli import memory, profiles, run, scenarios, schema, validate
from simserve.errors import EXIT_DONE, InterruptedRunError, InvariantError, SimserveError, UsageError

DEBUG_VARIABLE = "SIMSERVE_DEBUG"
"""Environment variable that lets a defect's traceback through."""

_CLICK_EXIT_INTERRUPTED = 130
_ClickUsageError: type[Exception] = typer.BadParameter.__bases__[0]

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
app.command("validate")(validate.validate)
app.command("scenarios")(scenarios.scenarios)
app.command("gpus")(profiles.gpus)
app.command("models")(profiles.models)
app.command("engines")(profiles.engines)
app.command("schema")(schema.schema)


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    An error is one line on stderr. Codes: 0 done; 2 wrong flags or an unusable ``--out``; 3 it does not fit;
    99 a threshold failed; 104 a scenario, profile, trace or ``--set`` is missing or invalid; 105 interrupted;
    1 a defect (its traceback with ``SIMSERVE_DEBUG=1``).

    Args:
        arguments: What stands after ``simserve``; None: the process's own.
    """
    try:
        code = app(args=None if arguments is None else list(arguments), prog_name="simserve", standalone_mode=False)
    except SimserveError as error:
        return _report(error)
    except _ClickUsageError as error:
        return _report_usage(error)
    except Exception as error:  # the one place where a defect becomes an exit code
        if os.environ.get(DEBUG_VARIABLE):
            raise
        return _report(
            InvariantError(
                f"a defect in simserve: {type(error).__name__}: {error}",
                remedy=f"please report it with the traceback that {DEBUG_VARIABLE}=1 prints",
            )
        )
    if code == _CLICK_EXIT_INTERRUPTED:
        return _report(InterruptedRunError("interrupted"))
    return code if isinstance(code, int) else EXIT_DONE


def _report_usage(error: Exception) -> int:
    message = getattr(error, "format_message", lambda: str(error))()
    if not message:  # no command at all: the help has been printed
        return UsageError.exit_code
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "simserve"
    return _report(UsageError(" ".join(message.split()).rstrip("."), remedy=f"try '{command} --help'"))


def _report(error: SimserveError) -> int:
    line = " ".join(str(error).splitlines())
    print(f"simserve: error: {line}", file=sys.stderr)
    return error.exit_code
