"""The commands in one place. Knows their names, not how an error ends them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.main import get_command

from simserve.cli.options import option
from simserve.version import __version__

EXIT_INTERRUPTED = 130  # What the app returns after Ctrl-C.
WrongFlagsError: type[Exception] = typer.BadParameter.__bases__[0]
"""What the app raises for flags it does not understand."""

_PANELS = {
    "Answer a question": ("run", "plan", "capacity", "compare", "sweep", "cost", "memory", "frameworks"),
    "Bring your own, take it away": ("import", "trace", "export", "schema"),
    "Check it against measurements": ("validate", "verify", "observe", "calibrate", "twin"),
    "Look": ("explore", "report", "diff", "scenarios", "gpus", "models", "engines", "apis", "help", "version"),
}
"""Commands by panel of the help, in its order."""
_HOMES = {
    "import": "importing",
    "calibrate": "calibrate",
    "export": "exporting.export",
    **{name: f"profiles.{name}" for name in ("gpus", "models", "engines")},
    "help": "about.help_",
    "version": "about.version",
}
"""Where a command is if that is not ``NAME.NAME`` in `simserve.cli`: ``MODULE.FUNCTION``, or the module of a group."""
_COMMANDS = {name: (_HOMES.get(name, f"{name}.{name}"), panel) for panel, names in _PANELS.items() for name in names}


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print(f"simserve {__version__}")
        raise typer.Exit


def command_of(word: str | None = None) -> Callable[..., Any]:
    """Return what reads and runs a command line that starts with a word, as in `app_of`; made once per process."""
    return _command_of(word if word in _COMMANDS else None)


@cache
def _command_of(word: str | None) -> Callable[..., Any]:
    return get_command(app_of(word))


def app_of(word: str | None = None) -> typer.Typer:
    """Return the app with the command asked for, or with all.

    Importing two dozen commands and reading their flags takes as long as some answers.

    Args:
        word: The first word after ``simserve``; one that is not a command, such as ``--help``, needs them all.
    """
    app = typer.Typer(
        name="simserve",
        help="What will this LLM deployment do under this traffic, and what will it cost?",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",  # the default of newer releases only
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name in [word] if word is not None and word in _COMMANDS else _COMMANDS:
        place, panel = _COMMANDS[name]
        home, _, function = place.partition(".")
        module = import_module(f"simserve.cli.{home}")
        if function:
            told = _paragraphs(getattr(module, function))
            app.command(name, rich_help_panel=panel, help=told)(getattr(module, function))
        else:
            for each in module.app.registered_commands:
                each.help = each.help or _paragraphs(each.callback)
            app.add_typer(module.app, name=name, rich_help_panel=panel)
    app.callback()(_options)
    return app


def _paragraphs(command: Callable[..., object]) -> str:
    """Return the help of a command, each paragraph on one line: a terminal wraps it to its width."""
    return "\n\n".join(" ".join(each.split()) for each in (inspect.getdoc(command) or "").split("\n\n"))


def _options(
    version: Annotated[
        bool, option("Print the version and stop.", "--version", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass
