"""Reads a pasted command line into words and variables, even where a chat, a script or a web page has altered it.

Understands continued lines that have lost their line breaks, their backslashes, or both; typographic quotes and
dashes; JSON that lost its quotes; `NAME=value` in front, with `export` or docker's ``-e``, and `$NAME` after it;
prompts, comments, and redirected output. Knows no flag of any engine.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simserve.errors import ScenarioError

MAX_LENGTH = 100_000  # Most characters of a command line.

_TYPOGRAPHIC = str.maketrans(
    {
        **dict.fromkeys("\u201c\u201d\u201e", '"'),
        **dict.fromkeys("\u2018\u2019", "'"),
        **dict.fromkeys("\u200b\ufeff"),
        "\u00a0": " ",
    }
)
"""Typographic quotation marks and spaces that editors insert -> plain ones."""
_DASHES = re.compile("(?:(?<=\\s)|^)[\u2010-\u2015\u2212](?=[A-Za-z])")
_PIECES = re.compile(
    r"""(?P<quoted>'[^']*'|"(?:[^"\\]|\\.)*")"""
    r"""|(?P<joined>[\\^`][ \t]*\r?\n)"""
    r"""|(?P<lost>\\+(?=[ \t]|$|--?[A-Za-z])|(?<=\s)\\n(?=\s|-|$))"""
    r"""|(?P<broken>\r?\n)"""
    r"""|(?P<json>(?:(?<=\s)|(?<==))\{)"""
    r"""|(?P<other>\\?.)""",
    re.DOTALL,
)
_BRACE = re.compile(r"[{}]")
_PROMPT = re.compile(r"\s*(?:\(\w+\)\s*)?(?:[$%>]\s+|[\w.-]+@[\w.-]+:[^\s]*[$#]\s+)")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?-([^}]*))?\})")
_SHELL = re.compile(r"(?:\||\|\||&&|&|;|[012&]?>>?.*|<(?![^>]*>).*)")
_GLUED = re.compile(r"(?<=[0-9])(?=--[a-z]{2})")
"""Place where a line break is missing between a number and the next flag."""
_NEWLINE = "\0"
_NEXT = ";"  # Word that separates two commands.
_BEFORE_ASSIGNMENT = (_NEXT, "&&", "export", "-e", "--env", "env", "set")


@dataclass(frozen=True, slots=True)
class Pasted:
    """A command line taken apart."""

    words: tuple[str, ...]  # Its words, unquoted; the first is the program or a command in front of it.
    variables: Mapping[str, str]  # Environment variables that it sets.


def read_pasted(text: str, where: str) -> Pasted:
    """Return the words of a pasted command line.

    Raises:
        ScenarioError: It is empty or too long, or a quote is left open.
    """
    if len(text) > MAX_LENGTH:
        raise ScenarioError(f"holds {len(text):,} characters, too many for a command line", file=where)
    lines = _lines(text)
    try:
        split = [[*shlex.split(line)] for line in lines]
    except ValueError as failure:
        raise ScenarioError(f"is no command line: {failure}", file=where) from None
    words = [part for line in split for word in (*_unwrapped(line, where), _NEXT) for part in _parted(word)][:-1]
    variables: dict[str, str] = {}
    kept: list[str] = []
    for word in words:
        expanded = _VARIABLE.sub(lambda found: _value_of(found, variables), word)
        assignment = _ASSIGNMENT.fullmatch(expanded)
        if assignment is not None and (not kept or kept[-1] in _BEFORE_ASSIGNMENT):
            variables[assignment[1]] = assignment[2]
            if kept and kept[-1] == "export":
                kept.pop()
            continue
        kept.append(expanded)
    if not kept:
        raise ScenarioError("is empty", file=where, remedy="paste the line that starts the server")
    return Pasted(tuple(kept), variables)


def without_shell(words: Sequence[str]) -> list[str]:
    """Return the arguments of a command, up to where the shell redirects its output or starts another command."""
    end = next((place for place, word in enumerate(words) if _SHELL.fullmatch(word)), len(words))
    return list(words[:end])


def is_file(name: str) -> bool:
    """Return whether a word names an existing file; False for what cannot be a name."""
    try:
        return Path(name).expanduser().is_file()
    except (OSError, ValueError, RuntimeError):
        return False


def with_dotted(words: Iterable[str]) -> list[str]:
    """Return arguments with dotted flags (`--flag.key value`) merged into one JSON value per flag, at the end."""
    kept: list[str] = []
    settings: dict[str, dict[str, Any]] = {}
    rest = list(words)
    position = 0
    while position < len(rest):
        word = rest[position]
        position += 1
        name, equals, value = word.partition("=")
        flag, *keys = name.split(".")
        if not flag.startswith("-") or not flag.strip("-")[:1].isalpha() or not keys or not all(keys):
            kept.append(word)
            continue
        if not equals:
            value = rest[position] if position < len(rest) else ""
            position += 1
        if keys[-1].endswith("+"):
            keys[-1], value = keys[-1][:-1], json.dumps(value.split(","))
        target = settings.setdefault(flag, {})
        for key in keys[:-1]:
            below = target.get(key)
            target[key] = target = below if isinstance(below, dict) else {}
        target[keys[-1]] = _json_or_text(value)
    return [*kept, *(word for flag, found in settings.items() for word in (flag, json.dumps(found)))]


def _json_or_text(value: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _lines(text: str) -> list[str]:
    """Return the lines of the command: continued ones joined, comments and prompts left out.

    A line that begins with a flag, or is indented, belongs to the one before it.
    """
    plain = _DASHES.sub("--", text.translate(_TYPOGRAPHIC)).replace(_NEWLINE, "")
    pieces: list[str] = []
    position, is_closed = 0, True
    while position < len(plain):
        found = _PIECES.match(plain, position)
        if found is None:  # unreachable: the last alternative matches anything
            break
        position = found.end()
        end = _end_of_braces(plain, found.start()) if found["json"] is not None and is_closed else None
        if found["json"] is not None and end is None:
            is_closed = False  # later braces cannot be closed either: their end would close this one
        if end is not None:
            pieces.append(shlex.quote(plain[found.start() : end].replace('\\"', '"')))  # without its escapes
            position = end
        elif found["joined"] is not None or found["lost"] is not None:
            pieces.append(" ")
        elif found["broken"] is not None:
            pieces.append(_NEWLINE)
        else:
            pieces.append(found[0])
    lines: list[str] = []
    for line in "".join(pieces).split(_NEWLINE):
        bare = _PROMPT.sub("", line, count=1) if _PROMPT.match(line) else line
        if not bare.strip() or bare.lstrip().startswith("#"):
            continue
        if lines and (bare.lstrip().startswith("-") or line[:1] in " \t"):
            lines[-1] += f" {bare}"
        else:
            lines.append(bare)
    return lines


def _end_of_braces(text: str, start: int) -> int | None:
    """Return the end of the braces that open at a position; None where they are not closed."""
    depth = 0
    for found in _BRACE.finditer(text, start):
        depth += 1 if found[0] == "{" else -1
        if depth == 0:
            return found.end()
    return None


def _unwrapped(line: list[str], where: str) -> list[str]:
    """Return the words of a line, with ``sh -c '...'`` replaced by the words inside it."""
    for place, word in enumerate(line[:-1]):
        if re.fullmatch(r"-\w*c", word) and re.fullmatch(r"(?:.*/)?(?:ba|z|da)?sh", line[place - 1] if place else ""):
            inner = read_pasted(line[place + 1], where)
            return [*line[: place - 1], *(f"{key}={value}" for key, value in inner.variables.items()), *inner.words]
    return line


def _parted(word: str) -> tuple[str, ...]:
    """Return the parts of a word: itself, and an attached end of command or flag whose line break is missing."""
    parts = _GLUED.split(word)
    if len(parts[-1]) > 1 and parts[-1].endswith(_NEXT):
        return (*parts[:-1], parts[-1][:-1], _NEXT)
    return tuple(parts)


def _value_of(found: re.Match[str], variables: Mapping[str, str]) -> str:
    name = found[1] or found[2]
    return variables.get(name, found[0] if found[3] is None else found[3])
