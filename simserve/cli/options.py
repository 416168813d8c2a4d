"""The options that several commands share, and JSON on stdout. Knows typer, but no commands."""

from __future__ import annotations

import errno
import inspect
import json
import math
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simserve.errors import InfeasibleError, SimserveError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from simserve.report.brief import Brief
    from simserve.scenario.schema import Scenario

_PIPE_WIDTH, _FEW_COLUMNS = 160, 80
"""Columns of a pipe, and those of the widest brief: only fewer are taken from COLUMNS, which many shells export."""
_SHOWING = ("--html", "--json", "--quiet", "-q", "--verbose", "-v")
"""Flags that change how an answer is shown, not the answer."""
PAGE = ("html", "verbose")  # Flags of `Shown` that a command without a page and a brief leaves out.


def _out_folder(text: str) -> Path:
    if not text:
        raise UsageError("is empty", key="--out", remedy="name a folder, or leave --out away")
    return Path(text)


def share(text: str, key: str | None = None) -> float:
    """Return a share written as ``2%`` or ``0.02``, given with the flag ``key``.

    Raises:
        UsageError: It has neither form, or is not between 0 and 1.
    """
    number, percent, rest = text.strip().partition("%")
    try:
        value = float(number) / (100 if percent else 1)
    except ValueError:
        value = math.nan
    if rest or not 0 < value < 1:
        raise UsageError("must be a share between 0 and 1", key=key, value=text, remedy="for example 2% or 0.02")
    return value


def seconds_of(text: str, key: str, least: float = 0.0) -> float:
    """Return the seconds of a flag such as ``15s``.

    Raises:
        UsageError: It is not a time, or too short.
    """
    from simserve.units import parse

    try:
        value = parse(text, "time")
    except ValueError as failure:
        raise UsageError(str(failure), key=key, value=text) from None
    if value <= 0 or value < least:
        raise UsageError(f"must be at least {least:g} s" if least else "must be above 0", key=key, value=text)
    return value


def option(text: str, *names: str, **settings: Any) -> Any:
    """Return a flag with its text in ``--help``, its names unless they are the parameter's, and typer's settings."""
    return typer.Option(*names, help=text, **settings)


def argument(text: str, **settings: Any) -> Any:
    """Return an argument without a flag, with its text in ``--help`` and typer's settings."""
    return typer.Argument(help=text, **settings)


SetOption = Annotated[
    list[str] | None, option("Override a key of the scenario, by dotted path; repeats.", "--set", metavar="KEY=VALUE")
]
JsonOption = Annotated[bool, option("Print one JSON object on stdout, and nothing else.", "--json")]
OutOption = Annotated[
    Path | None, option("Folder of the result. Default: results/NAME-HASH.", "--out", metavar="DIR", parser=_out_folder)
]
SeedOption = Annotated[int | None, option("Seed; short for --set run.seed=N.", "--seed", min=0)]
HtmlOption = Annotated[
    Path | None, option("Also write the answer as one self-contained page.", "--html", metavar="FILE")
]
VerboseOption = Annotated[bool, option("Print every figure, not only the brief answer.", "--verbose", "-v")]
QuietOption = Annotated[bool, option("Print errors only (and the JSON of --json).", "--quiet", "-q")]


def takes_flags(*, without: Sequence[str] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that expands the groups of flags that a command takes as one parameter each.

    A group is a dataclass whose fields are flags, declared once for all commands that have them. The fields replace the
    parameter; the context of the command comes first.

    Args:
        without: Flags that the command does not have, or that have another meaning there.
    """
    return partial(_with_flags, without=frozenset(without))


def _with_flags(command: Callable[..., None], without: frozenset[str]) -> Callable[..., None]:
    own = inspect.signature(command, eval_str=True).parameters
    kinds: dict[str, type] = {
        name: one.annotation
        for name, one in own.items()
        if isinstance(one.annotation, type) and is_dataclass(one.annotation)
    }
    groups = {
        name: [each for each in inspect.signature(kind, eval_str=True).parameters.values() if each.name not in without]
        for name, kind in kinds.items()
    }

    def run(**values: Any) -> None:
        for name, flags in groups.items():
            values[name] = kinds[name](**{each.name: values.pop(each.name) for each in flags})
        command(**values)

    spread = [each for name, one in own.items() for each in groups.get(name, [one])]
    parameters = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for each in sorted(spread, key=lambda each: each.annotation is not typer.Context)
    ]
    run.__name__, run.__doc__, run.__module__ = command.__name__, command.__doc__, command.__module__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def changes_of(overrides: Sequence[str] | None, seed: int | None) -> list[str]:
    """Return the changes to a scenario by ``--set`` and ``--seed``."""
    return [*(overrides or ()), *([] if seed is None else [f"run.seed={seed}"])]


def set_words(changes: Sequence[str]) -> list[str]:
    """Return changes to a scenario as words of a command line."""
    return [word for change in changes for word in ("--set", change)]


def check_page(file: Path | None, key: str = "--html") -> None:
    """Refuse a file that cannot be written, before anything is simulated.

    Raises:
        UsageError: Its folder does not exist or is not writable, or it is a folder itself.
    """
    if file is None:
        return
    if file.is_dir() or not file.parent.is_dir():
        raise UsageError("cannot be written: no such folder, or a folder itself", key=key, value=str(file))
    if not os.access(file.parent, os.W_OK | os.X_OK):
        raise UsageError("cannot be written: permission denied", key=key, value=str(file))


def write_all(texts: Mapping[Path, str], *, force: bool) -> None:
    """Write several new files, or none if one of them exists.

    Raises:
        UsageError: One exists and ``force`` is not given, one is a folder, or one cannot be written.
    """
    from simserve.unfinished import write_text

    for path in texts:
        if path.is_dir():
            raise UsageError("is a folder", file=path, remedy=f"name a file in it: {path / 'NAME'}")
        if path.exists() and not force:
            raise UsageError("is there already", file=path, remedy="name another file, or replace it with --force")
    for path, text in texts.items():
        try:
            if path.exists() and not path.is_file():  # a pipe, or a device such as /dev/stdout
                path.write_text(text, encoding="utf-8")
            else:
                write_text(path, text)
        except OSError as failure:
            is_full = failure.errno in (errno.ENOSPC, errno.EDQUOT)
            kind = SimserveError if is_full else UsageError  # as everywhere: 1 for a full disk, 2 for a wrong --out
            raise kind(f"cannot be written: {failure.strerror}", file=path) from None


def make_folder(folder: Path, names: Iterable[str], *, force: bool) -> None:
    """Make the folder of ``--out``, before anything is measured.

    Raises:
        UsageError: It is no folder, or not writable, or it holds one of the files and ``force`` is not given.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError("is not a folder", key="--out", value=str(folder))
    there = [folder / name for name in names if (folder / name).exists() and (folder / name).stat().st_size]
    if there and not force:
        raise UsageError("is there already", file=there[0], remedy="name another folder, or replace it with --force")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as failure:
        raise UsageError(f"cannot be made: {failure.strerror}", key="--out", value=str(folder)) from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError("cannot be written: permission denied", key="--out", value=str(folder))


def variants_of(texts: Sequence[str]) -> dict[str, list[str]]:
    """Return the changes of each ``--with NAME: KEY=VALUE, ...`` by its name.

    Raises:
        UsageError: One has not that form, or two have one name.
    """
    from simserve.planner.compare import parse_variant

    found: dict[str, list[str]] = {}
    for text in texts:
        name, changes = parse_variant(text)
        if name in found:
            raise UsageError("stands twice", key="--with", value=name, remedy="give each variant a name of its own")
        found[name] = changes
    return found


def check_verbose(verbose: bool, flags: Mapping[str, bool]) -> None:
    """Refuse ``--verbose`` together with flags under which it has no effect.

    Raises:
        UsageError: One of them was given.
    """
    silent = [flag for flag, is_given in flags.items() if is_given]
    if verbose and silent:
        raise UsageError("prints no answer that --verbose could lengthen", key=silent[0])


def given_command(context: typer.Context) -> str:
    """Return the command line as given, without flags on how the answer is shown; empty if it was not passed on."""
    words: list[str] = list(context.find_root().obj or ())
    kept = [
        word
        for place, word in enumerate(words)
        if word.partition("=")[0] not in _SHOWING and words[place - 1 : place] != ["--html"]
    ]
    return shlex.join(["simserve", *kept]) if kept else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """How the answer of a command is shown: a group of flags of `takes_flags`."""

    context: typer.Context
    html: HtmlOption = None
    verbose: VerboseOption = False
    as_json: JsonOption = False
    quiet: QuietOption = False

    @property
    def is_printed(self) -> bool:
        """Whether the answer is printed on stdout for people."""
        return not (self.as_json or self.quiet)

    def check(self) -> None:
        """Refuse what cannot be shown, before anything is simulated.

        Raises:
            UsageError: ``--verbose`` has no effect, or the page cannot be written.
        """
        check_verbose(self.verbose, {"--json": self.as_json, "--quiet": self.quiet})
        check_page(self.html)

    def notes(self, *scenarios: Scenario) -> None:
        """Print before the answer which engine versions are unknown and whose defaults apply; with JSON on stderr.

        Raises:
            InputError: A profile that a scenario names is missing or invalid; all are reported at once.
        """
        from rich.console import Console

        from simserve.profiles.engine_profile import load_engine, version_note
        from simserve.scenario.resolve import check_names

        notes: dict[str, None] = {}
        for scenario in scenarios:
            check_names(scenario)
            deployment = scenario.deployment
            for asked in [deployment.of_pool(pool).engine for pool in deployment.pools] or [deployment.engine]:
                profile = load_engine(asked.name, scenario.folder)
                note = version_note(profile.base or profile.name, asked.version, profile.version_source(asked.version))
                if note:
                    notes[note] = None
        if not self.quiet:
            out = Console(highlight=False, stderr=True) if self.as_json else console()
            for note in notes:
                out.print(note, style="yellow", markup=False, soft_wrap=True)

    @contextmanager
    def misfit_printed(self, scenario: Scenario | None) -> Iterator[None]:
        """Print the JSON of a deployment that does not fit, if JSON is asked for: its memory, with the arithmetic.

        Args:
            scenario: The scenario of the deployment; if it fits, or if there is none, the object says why nothing was
                found.

        Raises:
            InfeasibleError: It does not fit.
        """
        try:
            yield
        except InfeasibleError as failure:
            if self.as_json:
                from simserve.api import memory

                fit = None if scenario is None else memory(scenario)
                print_json(fit if fit is not None and not fit["fits"] else {"feasible": False, "reason": str(failure)})
            raise

    def tell(self, summary: Mapping[str, Any], render: Callable[[], None]) -> None:
        """Print an answer that has no page: ``summary`` as JSON, or what ``render`` prints for people."""
        if self.as_json:
            print_json(summary)
        elif not self.quiet:
            render()

    def write_page(self, write: Callable[[Path, str], None]) -> None:
        """Write the page if it was asked for, with the command as given."""
        if self.html is not None:
            write(self.html, given_command(self.context))

    def answer(
        self,
        summary: Mapping[str, Any],
        brief: Callable[[], Brief],
        write: Callable[[Path, str, Brief], None],
        render: Callable[[Console], None],
        written: Path | None = None,
    ) -> None:
        """Show an answer: as JSON, as a page, as its brief, and with ``--verbose`` everything else below.

        Args:
            summary: What ``--json`` prints.
            brief: Makes its brief, which JSON does not need.
            write: Writes its page to a file, with a command and the brief.
            render: Prints every other figure.
            written: Another file of the answer besides its page; None without one.
        """
        if self.as_json:
            print_json(summary)
        if self.html is None and not self.is_printed:
            return
        made = brief()
        self.write_page(lambda file, command: write(file, command, made))
        if not self.is_printed:
            return
        from simserve.report.brief import with_page
        from simserve.report.terminal import render_brief

        out = console()
        render_brief(with_page(made, self.html, written), out, is_whole=self.verbose)
        if self.verbose:
            out.print()
            render(out)


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object on stdout, keys in their order; an undefined number is null."""
    try:
        text = json.dumps(value, indent=2, allow_nan=False)
    except (TypeError, ValueError):
        from simserve.metrics.summary import in_json  # half a second, and most answers are plain already

        text = json.dumps(in_json(value), indent=2, allow_nan=False)
    sys.stdout.write(f"{text}\n")


def console() -> Console:
    """Return the console for answers; a pipe gets lines wide enough for every table, unless COLUMNS asks for few."""
    from rich.console import Console

    asked = os.environ.get("COLUMNS", "")
    is_narrow = asked.isdecimal() and 0 < int(asked) < _FEW_COLUMNS
    width = int(asked) if is_narrow else _PIPE_WIDTH
    return Console(highlight=False, width=None if sys.stdout.isatty() else width)


def print_lines(lines: Iterable[str]) -> None:
    """Print lines of text: wrapped on a terminal, keeping their indentation; whole in a pipe."""
    from rich.padding import Padding
    from rich.text import Text

    out = console()
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if out.is_terminal and indent:
            out.print(Padding(Text(line.lstrip()), (0, 0, 0, indent), expand=False))
        else:
            out.print(line, markup=False, soft_wrap=not out.is_terminal)


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]], note: str = "") -> None:
    """Print a plain table whose first column is never cut and whose figures are flush right, and a note below it."""
    from rich.table import Table

    from simserve.report.quantities import text_columns

    table = Table(box=None, pad_edge=False)
    cells = list(rows)
    is_text = text_columns(cells) or (True,) * len(header)
    for position, title in enumerate(header):
        table.add_column(
            title, justify="left" if is_text[position] else "right", no_wrap=position == 0, overflow="fold"
        )
    for row in cells:
        table.add_row(*row)
    out = console()
    out.print(table)
    if note:
        out.print(f"[dim]{note}[/dim]", soft_wrap=not out.is_terminal)
