"""How lines of text are printed."""

from __future__ import annotations

import errno
import os
import typing
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
import typer
from rich.console import Console
from typer.models import OptionInfo

from simserve.cli import options
from simserve.cli.app import app_of
from simserve.errors import SimserveError, UsageError

_LINE = "  the cheapest of all that hold"


def printed(monkeypatch: pytest.MonkeyPatch, *, is_terminal: bool) -> list[str]:
    """Return what a line of 31 characters becomes at 20 columns."""
    out = StringIO()
    console = Console(file=out, width=20, force_terminal=is_terminal, color_system=None)
    monkeypatch.setattr(options, "console", lambda: console)
    options.print_lines([_LINE])
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_an_indented_line_goes_on_below_its_own_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal."""
    assert printed(monkeypatch, is_terminal=True) == ["  the cheapest of", "  all that hold"]


def test_a_line_stays_whole_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its length."""
    assert printed(monkeypatch, is_terminal=False) == [_LINE]


def commands(app: typer.Typer) -> Iterator[typing.Any]:
    """Return the functions of all commands."""
    yield from (each.callback for each in app.registered_commands)
    for group in app.registered_groups:
        assert group.typer_instance is not None
        yield from commands(group.typer_instance)


def test_an_option_does_not_take_its_name_from_its_placeholder() -> None:
    """Typer 0.27 names an option ``rate`` with the placeholder ``RATE`` ``--RATE`` where no name is given."""
    taken, seen = [], 0
    for command in commands(app_of()):
        for name, hint in typing.get_type_hints(command, include_extras=True).items():
            for info in getattr(hint, "__metadata__", ()):
                if isinstance(info, OptionInfo) and not str(info.default).startswith("-"):
                    seen += 1
                    if (info.metavar or "").lower() == name:
                        taken.append(f"{command.__name__} {name}")

    assert seen > 50
    assert not taken


def test_what_reads_an_option_has_a_name() -> None:
    """Typer 0.19 asks a ``parser`` for its ``__name__``, which ``functools.partial`` does not have."""
    parsers = [
        (command.__name__, name, info.parser)
        for command in commands(app_of())
        for name, hint in typing.get_type_hints(command, include_extras=True).items()
        for info in getattr(hint, "__metadata__", ())
        if isinstance(info, OptionInfo) and info.parser is not None
    ]

    assert len(parsers) > 10
    assert not [(command, name) for command, name, parser in parsers if not hasattr(parser, "__name__")]


def test_a_folder_keeps_what_was_measured_and_takes_an_empty_file_for_nothing(tmp_path: Path) -> None:
    """An interrupted call leaves an empty file, which the next one replaces; what holds something needs --force."""
    (tmp_path / "empty.json").touch()
    (tmp_path / "kept.json").write_text("{}")

    options.make_folder(tmp_path, ["empty.json", "new.json"], force=False)
    with pytest.raises(UsageError, match="is there already"):
        options.make_folder(tmp_path, ["empty.json", "kept.json"], force=False)
    options.make_folder(tmp_path, ["kept.json"], force=True)


@pytest.mark.parametrize(("columns", "width"), [("40", 40), ("", 160), ("120", 160), ("wide", 160), ("0", 160)])
def test_a_pipe_is_wide_unless_fewer_columns_than_a_brief_has_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, columns: str, width: int
) -> None:
    """`COLUMNS=40 simserve run chatbot | less` fits 40 columns."""
    monkeypatch.setattr("sys.stdout", StringIO())
    monkeypatch.setenv("COLUMNS", columns)

    assert options.console().width == width


def test_files_are_written_whole_or_refused(tmp_path: Path) -> None:
    """A folder in place of a file is named as one; a device stays a device."""
    with pytest.raises(UsageError, match="is a folder; name a file in it"):
        options.write_all({tmp_path: "text"}, force=True)
    options.write_all({Path(os.devnull): "text", tmp_path / "new": "text"}, force=True)

    assert (tmp_path / "new").read_text() == "text"
    assert not Path(os.devnull).is_file()
    assert [each.name for each in tmp_path.iterdir()] == ["new"]


@pytest.mark.parametrize(("number", "code"), [(errno.ENOSPC, 1), (errno.EACCES, 2)])
def test_a_full_disk_is_not_a_wrong_flag(
    number: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1 and 2, as for every other command; nothing of the file is left."""

    def fail(*arguments: object, **keywords: object) -> None:
        raise OSError(number, "cannot")

    monkeypatch.setattr("os.replace", fail)

    with pytest.raises(SimserveError, match="cannot be written") as refused:
        options.write_all({tmp_path / "new": "text"}, force=False)

    assert refused.value.exit_code == code
    assert not [*tmp_path.iterdir()]
