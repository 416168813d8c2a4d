"""The exceptions a user of simserve can meet, and the exit code each one ends the command with.

    SimserveError              1    anything simserve raises on purpose
    ├── UsageError             2    wrong flags, or an output folder that cannot be used
    ├── InfeasibleError        3    the deployment does not fit, or no plan is feasible
    ├── InputError           104    a file or a value given by the user
    │   ├── ScenarioError           a scenario file or an override
    │   ├── ProfileError            a hardware, model, engine or price profile
    │   └── TraceError              a trace of requests or lengths
    ├── InterruptedRunError  105    stopped by the user; what was finished is kept
    └── InvariantError         1    a defect in simserve: a rule of its own is broken

A failed threshold (exit code 99) is an outcome, not an exception. This module knows nothing else of simserve.
"""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, TypeVar

EXIT_DONE = 0
EXIT_THRESHOLD_FAILED = 99


class SimserveError(Exception):
    """Base of every error that simserve raises on purpose: one line of place, value, rule and remedy.

    Args:
        rule: What must hold, or what went wrong, as a clause: ``must be > 0``.
        file: File the value came from.
        key: Dotted key path, column or flag.
        value: The offending value, shown as written.
        remedy: What to do instead.
        others: Further errors in the same input; all are reported at once.
    """

    exit_code: ClassVar[int] = 1

    def __init__(
        self,
        rule: str,
        *,
        file: object = None,
        key: str | None = None,
        value: object = None,
        remedy: str | None = None,
        others: Sequence[SimserveError] = (),
    ) -> None:
        self.rule = rule
        self.file = None if file is None else str(file)
        self.key = key
        self.value = value
        self.remedy = remedy
        self.others = tuple(others)
        super().__init__("\n".join([self._message(), *map(str, self.others)]))

    @property
    def lines(self) -> list[str]:
        """One line per error."""
        return [" ".join(each.splitlines()) for each in (self._message(), *(str(other) for other in self.others))]

    def _message(self) -> str:
        parts = [part for part in (self.file, self.key) if part]
        statement = self.rule if self.value is None else f"{_shown(self.value)} {self.rule}"
        message = ": ".join([*parts, statement])
        return f"{message}; {self.remedy}" if self.remedy else message


class UsageError(SimserveError):
    """Wrong flags, or an output folder that cannot be used."""

    exit_code = 2


class InfeasibleError(SimserveError):
    """The deployment does not fit on its hardware, or no plan meets the objectives."""

    exit_code = 3


class InputError(SimserveError):
    """A file or a value given by the user is missing, unreadable or invalid."""

    exit_code = 104


class ScenarioError(InputError):
    """A scenario file or an override is invalid."""


class ProfileError(InputError):
    """A hardware, model, engine or price profile is missing or invalid."""


class TraceError(InputError):
    """A trace of requests, or a file of lengths, is missing or invalid."""


class InterruptedRunError(SimserveError):
    """The user stopped the run; everything finished until then is kept."""

    exit_code = 105


class InvariantError(SimserveError):
    """A rule of simserve itself is broken: a defect, never the user's fault."""


_MOST_CHOICES = 24
"""Most names that an error lists in full."""
_WORD = re.compile(r"[a-z0-9.]+")
"""A word of a name: the text between hyphens, slashes and the like."""
_LEAST_LIKENESS = 0.5
"""Least share of letters in common for a name to be suggested."""
_LEAST_LIKENESS_OF_EXAMPLES = 0.35
"""The same for examples of the choices."""
_LIKENESS_BEHIND = 0.15
"""Names that are this much less similar than the most similar one are not suggested."""
_Failure = TypeVar("_Failure", bound=SimserveError)

_MOST_NAMED = 3
"""Most choices that a remedy names."""


def all_at_once(failures: Sequence[_Failure]) -> _Failure:
    """Return the first of some errors in one input, at least one, with the others in it."""
    first, *others = failures
    return type(first)(
        first.rule, file=first.file, key=first.key, value=first.value, remedy=first.remedy, others=others
    )


def nearest(
    name: str,
    choices: Iterable[str],
    *,
    meaning: Callable[[str], str] = lambda choice: choice,
    likeness: float = _LEAST_LIKENESS,
) -> str:
    """Return a remedy that names the choices nearest to ``name``: ``did you mean 'a' or 'b'?``.

    Args:
        name: As written.
        choices: The available names.
        meaning: Meaning of a choice; of choices with the same meaning only the nearest is named.
        likeness: Least share of letters in common, from 0 to 1, of a choice that is named.
    """
    options = sorted(choices)
    close = _with_its_words(name, options)
    close = close or [option for option in options if len(name) > 1 and name.lower() in option.lower()]
    close = close or [option for option in options if len(name) > 1 and _joined(option).startswith(_joined(name))]
    close = close or _most_like(name, options, likeness)
    distinct: dict[str, str] = {}
    for option in close:
        distinct.setdefault(meaning(option), option)
    close = [*distinct.values()][:_MOST_NAMED]
    if close:
        return "did you mean " + " or ".join(f"'{choice}'" for choice in close) + "?"
    if not options:
        return "there is nothing to choose from"
    if len(options) <= _MOST_CHOICES:
        return "choose from " + ", ".join(options)
    first = name[:1].lower()
    like = [option for option in options if option[:1].lower() == first] or options
    likely = difflib.get_close_matches(name, like, n=_MOST_NAMED, cutoff=_LEAST_LIKENESS_OF_EXAMPLES)
    return f"there are {len(options)}, {'such as ' + ', '.join(likely) if likely else 'none like it'}"


def _joined(name: str) -> str:
    """Return a name without its word separators: ``gemma4`` and ``gemma-4`` are equal."""
    return "".join(re.findall(r"[a-z0-9]", name.lower()))


def _with_its_words(name: str, options: Sequence[str]) -> list[str]:
    """Return the options with all words of a name of several: those beginning with it, or the newest first."""
    words = _WORD.findall(name.lower())
    if len(words) < 2:
        return []
    having = [option for option in options if set(words) <= set(_WORD.findall(option.lower()))]
    beginning = [option for option in having if option.lower().startswith(name.lower())]
    return beginning or having[::-1]


def _most_like(name: str, options: Sequence[str], likeness_of_one: float) -> list[str]:
    """Return the options similar to a name, ignoring case, the most similar first."""
    matcher = difflib.SequenceMatcher(b=name.lower())
    likeness = {}
    for option in options:
        matcher.set_seq1(option.lower())
        likeness[option] = matcher.ratio()
    least = max(likeness_of_one, max(likeness.values(), default=0.0) - _LIKENESS_BEHIND)
    return sorted((option for option in options if likeness[option] >= least), key=lambda option: -likeness[option])


def _shown(value: object) -> str:
    """Return a value as Python would write it, truncated while it is written: a container may expand hugely."""
    shortened = reprlib.Repr()
    shortened.maxlevel, shortened.maxstring, shortened.maxother, shortened.maxlong = 2, 80, 80, 80
    if isinstance(value, int) and value.bit_length() > 1000:
        return f"a number of about {value.bit_length() * 3 // 10} digits"
    text = shortened.repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
