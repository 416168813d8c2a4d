"""A scenario made from something else: its keys, notes for the reader, and its YAML text."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simserve.documents import yaml_text
from simserve.errors import InfeasibleError, InputError
from simserve.scenario.fit import check_fit
from simserve.scenario.formats import formats_line
from simserve.scenario.load import from_mapping
from simserve.scenario.resolve import resolve
from simserve.scenario.schema import Scenario

_WIDTH = 110
_LONGEST_PATH = 1000
REFUSED = "It cannot be run as it is"
"""Beginning of the note of a draft that does not fit or is not valid on the assumed GPU."""


def scenario_name(text: str) -> str:
    """Return a scenario name made from any text: all but letters, digits, dots, dashes and underscores become
    dashes."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:100] or "imported"


@dataclass(frozen=True, slots=True)
class Draft:
    """A scenario to be written."""

    mapping: Mapping[str, Any]  # Keys of the scenario.
    notes: tuple[str, ...]  # What was assumed, left out or not understood, in full sentences.
    title: str  # First line of the file.

    @property
    def scenario(self) -> Scenario:
        """The scenario; its relative paths refer to the working folder.

        Raises:
            ScenarioError: The keys are not a valid scenario.
        """
        return from_mapping(self.mapping, file="imported scenario")

    @property
    def text(self) -> str:
        """Text of the file: the title, the notes as comments, and the keys in order."""
        wrap = textwrap.TextWrapper(_WIDTH, break_on_hyphens=False, break_long_words=False)
        lines = wrap.wrap(self.title)
        wrap.initial_indent, wrap.subsequent_indent = "- ", "  "
        for note in self.notes:
            lines += wrap.wrap(note)
        comment = "".join(f"# {line}\n" for line in lines)
        return comment + yaml_text(dict(self.mapping), default_flow_style=None, width=_WIDTH)

    def checked(self) -> Draft:
        """Return the draft with a note on its number formats, or on why it is not valid or does not fit."""
        try:
            resolved = resolve(self.scenario)
            check_fit(resolved)
            note = f"Simulated with {formats_line(resolved.formats)}."
        except (InputError, InfeasibleError) as failure:
            note = f"{REFUSED}: {failure}."
        others = (each for each in self.notes if each != note)  # it is already there if a part was checked
        return replace(self, notes=(*others, note))


@dataclass(frozen=True, slots=True)
class Imported:
    """A scenario made from a measurement."""

    draft: Draft  # The scenario.
    files: Mapping[str, str]  # Name -> text of the files of requests or lengths that it reads; empty: it reads none.
    measured: Mapping[str, float]  # The measured figures, not part of the scenario.


def moved(value: Any, source: Path, target: Path) -> Any:
    """Return a part of a scenario with its relative paths rewritten from ``source`` to ``target``."""
    if isinstance(value, dict):
        return {key: moved(each, source, target) for key, each in value.items()}
    if isinstance(value, list):
        return [moved(each, source, target) for each in value]
    if not isinstance(value, str) or not Path(value).suffix or Path(value).is_absolute():
        return value
    path = source / value
    return os.path.relpath(path.resolve(), target.resolve()) if len(value) < _LONGEST_PATH and path.exists() else value
