"""How lines start the servers of each engine, and which of their flags set one key each: for reading lines and writing.

Knows the meaning of no flag that sets more than one key, or needs the others to be understood.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from simserve.documents import read_mapping
from simserve.validation import FrozenModel, validate

_TABLE = Path(__file__).with_name("servers.yaml")


class Choice(FrozenModel):
    """A flag of which some values are simulated."""

    key: str
    known: Mapping[str, Any]  # Value -> its meaning in a scenario.
    default: str = ""  # Value that sets nothing.


class ServerTable(FrozenModel):
    """What ``servers.yaml`` says of an engine's server.

    A flag sets a key of the engine's options; ``deployment.x`` is one of another part of the reading, ``.x`` an
    attribute of the reading itself.
    """

    title: str  # The engine's name in the title of a scenario.
    sign: re.Pattern[str]  # Pattern that occurs only in its lines.
    starts: tuple[str, ...]  # Ways to start it: patterns of one or two words, separated by a blank.
    image: re.Pattern[str]  # Pattern of its container image; the group is the version, if the tag gives it.
    is_entrypoint: bool = False
    """Whether the image starts the server by itself, with the words after it as arguments."""
    lacks: str = ""  # Rule of the error for a line that starts no such server; empty: a line need not start one.
    example: str = ""  # A line that starts one.
    names_model: str  # How a line names its model, for the remedy.
    others: Mapping[str, str] = {}  # Sign of another engine's lines -> their import, for the remedy.
    aliases: Mapping[str, str] = {}  # Short form of a flag -> its name in the engine's parser.
    counts: Mapping[str, str] = {}  # Flag -> key of a whole number.
    numbers: Mapping[str, tuple[str, str]] = {}  # Flag -> option, and what a value is not that is no such number.
    switches: Mapping[str, str] = {}  # Switch -> key that it makes true.
    off_switches: Mapping[str, str] = {}  # Switch -> key that it makes false.
    implied: Mapping[str, tuple[str, Any]] = {}  # Switch -> key and the value that it has unless another flag sets it.
    texts: Mapping[str, str] = {}  # Flag -> key of a text.
    attributes: Mapping[str, str] = {}  # Flag -> attribute of the reading that keeps the value as it is.
    only: Mapping[str, tuple[str | bool, ...]] = {}  # Flag -> its values that are what is simulated anyway.
    choices: Mapping[str, Choice] = {}
    weights: Mapping[str, Mapping[str, tuple[str, ...]]] = {}  # Flag -> weight format -> the engine's names of it.
    without_effect: tuple[str, ...] = ()
    """Patterns of flags without effect on the simulation, which begin with two dashes unless they say one."""

    def flag_of(self, key: str) -> str:
        """Return the flag that sets a key: the first that is listed, else that with the key's own name."""
        numbers = {flag: option for flag, (option, _) in self.numbers.items()}
        listed = {**self.counts, **numbers, **self.switches}
        own = "--" + key.rpartition(".")[2].replace("_", "-")
        return next((flag for flag, option in listed.items() if option == key), own)


@cache
def server_table(engine: str) -> ServerTable:
    """Return the table of an engine's server."""
    return validate(ServerTable, read_mapping(_TABLE)[engine], file=_TABLE)
