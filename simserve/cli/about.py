"""`simserve help` and `simserve version`, as other programs have them. Knows no command itself."""

from __future__ import annotations

from typing import Annotated

from simserve.cli.options import argument
from simserve.version import __version__


def help_(
    command: Annotated[list[str] | None, argument("As import vllm-command.", metavar="[COMMAND]")] = None,
) -> None:
    """Explain a command, or list them all."""
    from simserve.cli.app import command_of  # imports this module by name

    words = command or []
    run = command_of(words[0] if words else None)
    run(args=[*words, "--help"], prog_name="simserve", standalone_mode=False)


def version() -> None:
    """Print the version."""
    print(f"simserve {__version__}")
