"""The flags of each version of an engine's command line; writes and reads lines of them.

The lists are in ``engine_flags/``, read from the argument parsers of the engines' own releases. Knows names of
flags and what values they take, not what they mean.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import Field

from simserve.errors import ScenarioError
from simserve.profiles.engine_options import version_key
from simserve.validation import FrozenModel, read_valid

Takes = Literal["value", "values", "optional", "switch", "toggle", "boolean"]

_FOLDER = Path(__file__).resolve().parent / "engine_flags"
_NEGATION = "--no-"
_ABBREVIATED = ("vllm", "sglang")
"""Engines whose parser is Python's argparse, which accepts flags by their beginning: ``allow_abbrev`` is not changed in
vLLM 0.32.0 (utils/argparse_utils.py) and SGLang 0.5.9 and 0.5.23 (srt/server_args.py)."""
ALL = 1_000_000  # Number of words after a flag that stands for all of them up to the next flag.


class ReadVersion(FrozenModel):
    """A release whose argument parser was read."""

    version: str
    """Its version."""
    source: str
    """The files that were read."""


class FlagGroup(FrozenModel):
    """Flags that take the same kind of value, and were added and removed together."""

    takes: Takes
    """Kind of value: `value`, `values` (one or more), `optional` (none or one), `switch` (nothing), `toggle` (nothing,
    with a `--no-` form), `boolean` (nothing, True or False)."""
    since: str
    """First version read that has them."""
    until: str | None = None
    """First version read without them; None: the newest still has them."""
    names: tuple[str, ...]
    """The flags."""


class Choices(FrozenModel):
    """The values that a flag accepts over a range of versions."""

    since: str
    """First version read."""
    until: str | None = None
    """First version read that no longer accepts them; None: the newest still does."""
    values: tuple[str | int, ...]
    """The accepted values."""


class FlagFile(FrozenModel):
    """The flags of one engine."""

    engine: str
    """The engine."""
    versions: tuple[ReadVersion, ...] = Field(min_length=1)
    """Versions read, oldest first; any other counts as the nearest older one."""
    flags: tuple[FlagGroup, ...]
    """Every flag."""
    choices: dict[str, tuple[Choices, ...]] = Field(default_factory=dict)
    """Flag, or flag and key of the JSON that it takes -> accepted values, where these are a closed list."""


@dataclass(frozen=True, slots=True)
class Flags:
    """The flags of one version of an engine."""

    engine: str  # The engine.
    version: str  # The version read that represents the requested one.
    source: str  # The files that were read.
    takes: dict[str, Takes]  # Flag -> kind of value that it takes.
    choices: dict[str, tuple[str, ...]]  # Flag -> the values it accepts, as strings.

    def has(self, flag: str, value: str | None = None) -> bool:
        """Return whether the version has a flag and accepts ``value`` for it."""
        return flag in self.takes and (value is None or self.accepts(flag, value))

    def accepts(self, flag: str, value: str) -> bool:
        """Return whether a value is listed for a flag or a key of its JSON; True where no values are listed."""
        return value in self.choices.get(flag, (value,))

    def render(self, flag: str, value: object, *, key: str) -> list[str]:
        """Return a flag set to a value, as words of a command line.

        Args:
            flag: The flag with its dashes.
            value: True or False for a switch; anything else is written as text.
            key: Key of the scenario that requires it, for the error.

        Raises:
            ScenarioError: The version has no such flag, or does not accept the value.
        """
        takes = self.takes.get(flag)
        name = f"{self.engine} {self.version}"
        if takes is None:
            raise ScenarioError(f"cannot be passed to {name}, which has no {flag}", key=key, value=value)
        if not isinstance(value, bool):
            if not self.has(flag, str(value)):
                choices = ", ".join(self.choices[flag])
                raise ScenarioError(f"is not accepted by {flag} of {name}", key=key, value=value, remedy=choices)
            return [flag, str(value)]
        if takes == "boolean":
            return [flag] if value else [flag, "False"]
        if takes == "toggle":
            return [flag if value else _NEGATION + flag.removeprefix("--")]
        if takes == "switch" and value:
            return [flag]
        raise ScenarioError(f"cannot be passed to {name}: {flag} has no opposite", key=key, value=value)


@dataclass(frozen=True, slots=True)
class Word:
    """One flag of a command line as given."""

    flag: str  # Its name in the engine's parser, without ``--no-``.
    value: str | list[str] | bool | None
    """Text, or a list of several; True or False for a switch; None: an unknown flag without a value."""
    is_known: bool  # Whether the version has it.


@cache
def load_flags(engine: str) -> FlagFile:
    """Return the flags of all versions of an engine.

    Raises:
        ProfileError: There is no list of that engine's flags.
    """
    return read_valid(FlagFile, _FOLDER / f"{engine}.yaml")


def flags_of(engine: str, version: str) -> Flags:
    """Return the flags of a version: those of the nearest older one read, or of the oldest where there is none."""
    listed = load_flags(engine)
    wanted = version_key(version)
    older = [read for read in listed.versions if version_key(read.version) <= wanted]
    read = older[-1] if older else listed.versions[0]
    key = version_key(read.version)
    return Flags(
        engine=engine,
        version=read.version,
        source=read.source,
        takes={name: group.takes for group in listed.flags if _holds(group, key) for name in group.names},
        choices={
            flag: tuple(str(value) for value in each.values)
            for flag, ranges in listed.choices.items()
            for each in ranges
            if _holds(each, key)
        },
    )


def newest_with(engine: str, flags: Sequence[str]) -> tuple[str, list[str]] | None:
    """Return the newest version read that has the given flags, and those of them that the newest of all lacks.

    Flags that no version has are not looked at. None where the newest has all others, or where no version has.
    """
    listed = load_flags(engine)
    versions = [flags_of(engine, read.version) for read in reversed(listed.versions)]
    known = {name for group in listed.flags for name in group.names}
    spelled = (name if name in known else name.replace("_", "-") for name in flags)
    wanted = dict.fromkeys(name for name in spelled if name in known)
    gone = [name for name in wanted if name not in versions[0].takes]
    if not gone:
        return None
    return next(((each.version, gone) for each in versions if all(name in each.takes for name in wanted)), None)


def _holds(part: FlagGroup | Choices, key: tuple[int, ...]) -> bool:
    return version_key(part.since) <= key and (part.until is None or key < version_key(part.until))


def read_words(flags: Flags, arguments: Sequence[str]) -> tuple[list[Word], list[str]]:
    """Return the flags of a command line in order, and the words that belong to none.

    Understands ``--a=b``, underscores for dashes, ``--no-`` of toggles, several values of a list, and the beginning of
    a flag where the engine's parser does. A flag that the version does not have takes one word, unless that is a flag
    itself.

    Raises:
        ScenarioError: A flag lacks the value it takes, or a switch is given one.
    """
    words: list[Word] = []
    loose: list[str] = []
    position = 0
    while position < len(arguments):
        argument = arguments[position]
        position += 1
        if argument == "--":
            continue  # separates kubectl's own arguments from these
        if not _is_flag(argument):
            loose.append(argument)
            continue
        name, equals, given = argument.partition("=")
        flag, is_negated = _canonical(flags, name)
        takes = flags.takes.get(flag)
        following = [given] if equals else _values_after(arguments, position, takes)
        position += 0 if equals else len(following)
        words.append(_word(flags.engine, flag, takes, following, is_negated=is_negated))
    return words, loose


def _is_flag(argument: str) -> bool:
    return len(argument) > 1 and argument.startswith("-") and not argument[1:2].isdigit() and argument[1] != "."


def _canonical(flags: Flags, name: str) -> tuple[str, bool]:
    """Return a flag by its name in the parser, and whether it was given in its negated form."""
    spelled = name if name in flags.takes else name.replace("_", "-")
    if spelled in flags.takes:
        return spelled, False
    positive = "--" + spelled.removeprefix(_NEGATION)
    if spelled.startswith(_NEGATION) and flags.takes.get(positive) == "toggle":
        return positive, True
    if not _may_be_short(flags, spelled):
        return spelled, False
    longer = [(flag, False) for flag in flags.takes if flag.startswith(spelled)]
    if spelled.startswith(_NEGATION):
        longer += [
            (flag, True) for flag, takes in flags.takes.items() if takes == "toggle" and flag.startswith(positive)
        ]
    return longer[0] if len(longer) == 1 else (spelled, False)


def _may_be_short(flags: Flags, name: str) -> bool:
    """Return whether a flag may be the beginning of another: Python's parser takes one that fits a single flag."""
    return flags.engine in _ABBREVIATED and name.startswith("--") and len(name) > len("--")


def _values_after(arguments: Sequence[str], start: int, takes: Takes | None) -> list[str]:
    most = {"switch": 0, "toggle": 0, "values": len(arguments)}.get(takes or "", 1)
    found: list[str] = []
    for argument in arguments[start : start + most]:
        if _is_flag(argument) or (takes == "boolean" and argument.lower() not in ("true", "false")):
            break
        found.append(argument)
    return found


def _word(engine: str, flag: str, takes: Takes | None, given: list[str], *, is_negated: bool) -> Word:
    if takes is None:
        return Word(flag, given if len(given) > 1 else given[0] if given else None, is_known=False)
    if takes in ("switch", "toggle"):
        if given:
            raise ScenarioError("takes no value", file=f"{engine} command", key=flag, value=given[0])
        return Word(flag, not is_negated, is_known=True)
    if takes == "boolean":
        return Word(flag, not given or given[0].lower() == "true", is_known=True)
    if takes == "values":
        return Word(flag, given, is_known=True)
    if not given and takes == "value":
        raise ScenarioError("lacks its value", file=f"{engine} command", key=flag)
    return Word(flag, given[0] if given else True, is_known=True)


def similar(flags: Flags, flag: str) -> str:
    """Return the flag that an unknown one was probably meant to be; "" where none is similar."""
    return next(iter(difflib.get_close_matches(flag, flags.takes, n=1, cutoff=0.8)), "")


def without(words: Sequence[str], flags: Mapping[str, int]) -> list[str]:
    """Return a command without some flags and the given number of words after each."""
    kept, skip = [], 0
    for word in words:
        if skip and not (skip > 1 and word.startswith("--")):
            skip -= 1
        elif word in flags:
            skip = flags[word]
        else:
            kept.append(word)
            skip = 0
    return kept
