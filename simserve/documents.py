"""Reads YAML and JSON documents strictly: duplicate keys are refused, errors name the file and the line.

Nesting and aliases are bounded before anything is built. Knows files, not their content.
"""

from __future__ import annotations

import codecs
import functools
import json
import os
import pickle
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

import yaml

from simserve.errors import InputError

MAX_DEPTH = 100
"""Most nested levels of lists and mappings; parsers recurse, and crash on many thousands."""

_TOO_DEEP = f"is nested more than {MAX_DEPTH} levels deep"

MAX_ALIASED_NODES = 100_000
"""Most values that the aliases of a YAML document may expand to in total."""

MEGABYTE = 1_000_000
MAX_DOCUMENT_BYTES = 16 * MEGABYTE
"""Largest scenario, profile or result that is read: hundreds of times the largest known one."""

REMEMBERED_DOCUMENTS = 128
"""Documents that are not parsed again while their text stays the same: a search resolves the same few profiles
repeatedly, and parsing one takes longer than pricing a deployment."""

_JSON_STRUCTURE = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)


class _StrictLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """A safe loader that refuses duplicate keys, reads ``1e9`` as a number, and ``1:5`` and ``0100`` as texts.

    YAML 1.1 reads the latter two as numbers of base 60 and base 8, YAML 1.2 does not.
    """


def _mapping(loader: Any, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: dict[Any, int] = {}
    for key_node, _ in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge":
            continue
        key = loader.construct_object(key_node, deep=True)
        if isinstance(key, list | dict):
            raise yaml.constructor.ConstructorError(None, None, "a key must be a plain value", key_node.start_mark)
        line = key_node.start_mark.line + 1
        if key in seen:
            raise _DuplicateKeyError(str(key), seen[key], line)
        seen[key] = line
    loader.flatten_mapping(node)
    return {
        loader.construct_object(key_node, deep=True): loader.construct_object(value_node, deep=True)
        for key_node, value_node in node.value
    }


class _DuplicateKeyError(Exception):
    def __init__(self, key: str, first: int, second: int) -> None:
        super().__init__(key)
        self.key, self.first, self.second = key, first, second


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


class StrictDumper(yaml.SafeDumper):
    """A dumper that quotes texts which YAML 1.1 or the loader above reads as something else."""


_EXPONENT = r"[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+"
_INT, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
_NUMBERS = {
    _INT: r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0|[1-9][0-9_]*)$",
    _FLOAT: r"(?:[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?"
    rf"|{_EXPONENT}|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
}
_StrictLoader.yaml_implicit_resolvers = {
    first: [resolver for resolver in resolvers if resolver[0] not in _NUMBERS]
    for first, resolvers in _StrictLoader.yaml_implicit_resolvers.items()
}
for _tag, _pattern in _NUMBERS.items():
    _StrictLoader.add_implicit_resolver(_tag, re.compile(_pattern), list("-+0123456789."))
StrictDumper.add_implicit_resolver(_FLOAT, re.compile(f"{_EXPONENT}$"), list("-+0123456789."))


def yaml_text(value: object, **layout: Any) -> str:
    """Return a value as YAML that `parse_yaml` reads as the same; keys in their order.

    Args:
        value: Mappings, lists, texts, numbers, True, False and None.
        layout: Arguments of `yaml.dump`: ``width``, ``allow_unicode``, ``default_flow_style``.
    """
    return str(yaml.dump(value, Dumper=StrictDumper, sort_keys=False, **layout))


def parse_yaml(text: str, file: object = None, error: type[InputError] = InputError) -> Any:
    """Return the one document in ``text``.

    Raises:
        InputError: (or ``error``) the text is not valid YAML, a key occurs twice, it is nested more than `MAX_DEPTH`
            levels deep, or its aliases expand to more than `MAX_ALIASED_NODES` values; with the line.
    """
    try:
        # mypy checks the hash of an instance, but the class is what is hashed.
        return pickle.loads(_parsed(text, None if file is None else str(file), error))  # type: ignore[arg-type]
    except _DuplicateKeyError as duplicate:
        raise error(
            f"stands twice, in lines {duplicate.first} and {duplicate.second}",
            file=file,
            key=duplicate.key,
            remedy="keep one of them",
        ) from None
    except yaml.MarkedYAMLError as broken:
        mark = broken.problem_mark or broken.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else None
        if "nesting depth" in (broken.problem or ""):
            # Newer parsers have their own limit, and read ahead of what they report.
            raise error(_TOO_DEEP, file=file, key=where) from None
        rule, remedy = _explained(broken, text)
        raise error(rule, file=file, key=where, remedy=remedy) from None
    except yaml.YAMLError as broken:
        raise error(f"not valid YAML: {broken}".splitlines()[0], file=file) from None
    except ValueError as broken:  # an invalid date, a number with thousands of digits
        raise error(f"not valid YAML: {broken}", file=file) from None


def _explained(broken: yaml.MarkedYAMLError, text: str) -> tuple[str, str]:
    """Return rule and remedy of an error: in words of its own where the parser's tell little."""
    mark, lines = broken.problem_mark, text.split("\n")
    line = lines[mark.line] if mark is not None and mark.line < len(lines) else ""
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return "is indented with a tab", "YAML takes spaces"
    if broken.problem == "but found another document":
        return "begins a second document", "keep one in a file"
    return f"not valid YAML: {broken.problem}", ""


@functools.lru_cache(maxsize=REMEMBERED_DOCUMENTS)
def _parsed(text: str, file: str | None, error: type[InputError]) -> bytes:
    """Return the document, pickled: every caller gets its own values."""
    _check_size(text, file, error)
    return pickle.dumps(yaml.load(text, Loader=_StrictLoader))  # a subclass of SafeLoader


@dataclass(slots=True)
class _Extent:
    """Size of a value with all its aliases expanded."""

    nodes: int = 1  # Values in it, itself included.
    depth: int = 0  # Levels of lists and mappings in it, itself included.


def _check_size(text: str, file: object, error: type[InputError]) -> None:
    """Refuse what would crash a parser or never end: deep nesting, and aliases of aliases of aliases."""
    extents: dict[str, _Extent] = {}
    opened: list[tuple[str | None, _Extent]] = []
    aliased = 0
    for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        mark = event.start_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else None
        if isinstance(event, yaml.CollectionStartEvent):
            opened.append((event.anchor, _Extent(depth=1)))
            closed = _Extent(nodes=0)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, closed = opened.pop()
            if anchor is not None:
                extents[anchor] = closed
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor in (anchor for anchor, _ in opened):
                raise error("stands for the value that it is part of", file=file, key=where)
            closed = extents.get(str(event.anchor), _Extent())
            aliased += closed.nodes
        elif isinstance(event, yaml.ScalarEvent):
            closed = _Extent()
            if event.anchor is not None:
                extents[event.anchor] = closed
        else:
            continue
        if len(opened) + closed.depth > MAX_DEPTH:
            raise error(_TOO_DEEP, file=file, key=where)
        if aliased > MAX_ALIASED_NODES:
            raise error(f"aliases stand for more than {MAX_ALIASED_NODES:,} values", file=file, key=where)
        if opened:
            parent = opened[-1][1]
            parent.nodes += closed.nodes
            parent.depth = max(parent.depth, 1 + closed.depth)


def read_bytes(path: Path, error: type[InputError] = InputError, most: int = MAX_DOCUMENT_BYTES) -> bytes:
    """Return the content of a file, at most ``most`` bytes; a device, which has no end, is not read.

    Raises:
        InputError: (or ``error``) the file is missing, a folder, a device, unreadable or larger.
    """
    try:
        with path.open("rb") as file:
            if stat.S_ISCHR(os.fstat(file.fileno()).st_mode):
                raise error("is a device, not a file", file=path)
            content = file.read(most + 1)
    except FileNotFoundError:
        raise error("no such file", file=path) from None
    except IsADirectoryError:
        raise error("is a folder, not a file", file=path) from None
    except OSError as failure:
        raise error(f"cannot be read: {failure.strerror or failure}", file=path) from None
    if len(content) > most:
        raise error(f"is larger than {most // MEGABYTE:,} MB, the most that is read", file=path)
    return content


def read_text(path: Path, error: type[InputError] = InputError) -> str:
    """Return the text of a file.

    Raises:
        InputError: (or ``error``) the file is missing, a folder, unreadable, larger than `MAX_DOCUMENT_BYTES` or not
            UTF-8 or UTF-16.
    """
    text = decoded(read_bytes(path, error), path, error)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def decoded(content: bytes, path: Path, error: type[InputError] = InputError) -> str:
    """Return the text of a file's content: UTF-8, or UTF-16 with its mark, as PowerShell writes it.

    Raises:
        InputError: (or ``error``) it is neither.
    """
    is_wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        return content.decode("utf-16" if is_wide else "utf-8-sig")
    except UnicodeDecodeError as failure:
        line = content.count(b"\n", 0, failure.start) + 1
        is_packed, plain = path.suffix == ".gz", path.with_suffix("") if path.suffix == ".gz" else path
        words = "iconv -f ISO-8859-1 -t UTF-8"
        words = f"gzip -dc {quote(path.name)} | {words}" if is_packed else f"{words} {quote(path.name)}"
        copied = plain.with_stem(f"{plain.stem}-utf8").name
        remedy = f"save it as UTF-8, such as with {words} > {quote(copied)}"
        raise error("is not UTF-8 text", file=path, key=f"line {line}", remedy=remedy) from None


def read_mapping(path: Path, error: type[InputError] = InputError) -> dict[str, Any]:
    """Return the mapping in a YAML or JSON file.

    Raises:
        InputError: (or ``error``) the file cannot be read or parsed, or does not hold a mapping.
    """
    document = read_document(path, error)
    if document is None:
        raise error("is empty", file=path)
    if not isinstance(document, dict):
        raise error("must hold a mapping of keys to values", file=path)
    return document


def read_document(path: Path, error: type[InputError] = InputError) -> Any:
    """Return the content of a YAML or JSON file.

    Raises:
        InputError: (or ``error``) the file cannot be read or parsed.
    """
    text = read_text(path, error)
    if not text.strip():
        raise error("is empty", file=path)
    if path.suffix == ".json":
        _check_json_depth(text, path, error)
        try:
            document = json.loads(text, object_pairs_hook=lambda pairs: _unique(pairs, path, error))
        except json.JSONDecodeError as broken:
            where = f"line {broken.lineno}, column {broken.colno}"
            raise error(f"not valid JSON: {broken.msg}", file=path, key=where) from None
        except ValueError as broken:  # a number with thousands of digits
            raise error(f"not valid JSON: {broken}", file=path) from None
    else:
        return parse_yaml(text, path, error)
    return document


def _check_json_depth(text: str, path: Path, error: type[InputError]) -> None:
    depth = 0
    for token in _JSON_STRUCTURE.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(token[0], 0)
        if depth > MAX_DEPTH:
            line = text.count("\n", 0, token.start()) + 1
            raise error(_TOO_DEEP, file=path, key=f"line {line}")


def _unique(pairs: list[tuple[str, Any]], path: Path, error: type[InputError]) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    for key, value in pairs:
        if key in mapping:
            raise error("stands twice", file=path, key=key, remedy="keep one of them")
        mapping[key] = value
    return mapping
