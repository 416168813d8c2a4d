"""Write the page of commands, ``docs/commands.md``: ``python docs/write_commands.py``.

Every command with its options, as the command line declares them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from simserve.cli.app import app_of

PAGE = Path(__file__).parent / "commands.md"


def page() -> str:
    """Return the page of all commands with their options, as the command line declares them."""
    root: Any = typer.main.get_command(app_of())
    opening = (
        "Every command and its options, as `simserve COMMAND --help` prints them. The [README](../README.md) says",
        "which command answers which question.",
    )
    lines = ["# Commands", "", *opening, ""]
    for name, command in _leaves(root, ()):
        about = (command.help or "").strip().split("\n\n")
        lines += [f"## {' '.join(name)}", "", about[0].replace("\n", " ").replace("\\[", "["), ""]
        lines += [f"    {' '.join(each.split())}" for each in about[1:] if each.strip().startswith("simserve ")]
        rows = [row for option in command.params if (row := _row(option)) is not None]
        if rows:
            lines += ["", "| option | says |", "|---|---|", *rows]
        lines.append("")
    return "\n".join(lines)


def _leaves(command: Any, name: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not hasattr(command, "commands"):
        yield ("simserve", *name), command
        return
    for each in command.commands:
        yield from _leaves(command.commands[each], (*name, each))


def _row(option: Any) -> str | None:
    if option.hidden or "--help" in option.opts:
        return None
    about = " ".join((option.help or "").split()).replace("|", "\\|").replace("\\[", "[")
    metavar = option.metavar or (option.name.upper() if option.param_type_name == "argument" else "")
    flags = ", ".join((*option.opts, *option.secondary_opts)) if option.param_type_name == "option" else ""
    shown = f"{flags} {metavar}".strip().replace("|", "\\|")
    return f"| `{shown}` | {about} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
