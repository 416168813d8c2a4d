"""Checks that manifests have the fields and types of the API that reads them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from simserve.errors import InvariantError
from simserve.validation import FrozenModel, read_valid

_FILE = Path(__file__).with_name("manifest_schemas.yaml")
_DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
"""Valid names of a Service (RFC 1035, Kubernetes docs, concepts/overview/working-with-objects/names)."""
_SCALARS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "quantity": (str, int, float),
    "port": (str, int),
}
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class ManifestSchema(FrozenModel):
    """The API that some fields belong to."""

    name: str  # API and version, as written in a note.
    source: str  # Source of its fields.
    kinds: Mapping[str, str] = {}  # ``apiVersion kind`` -> type of that object.
    files: Mapping[str, str] = {}  # End of a file's name -> type of its contents, for files without a kind.


class ManifestSchemas(FrozenModel):
    """The schemas of all APIs."""

    schemas: tuple[ManifestSchema, ...]  # The APIs.
    types: Mapping[str, Mapping[str, str]]  # Name -> field -> type of the field.


@cache
def load_schemas() -> ManifestSchemas:
    """Return the fields that manifests may have.

    Raises:
        ProfileError: The file cannot be read.
    """
    return read_valid(ManifestSchemas, _FILE)


def checked_against(files: Mapping[str, str]) -> tuple[str, ...]:
    """Check manifests, and return the names of the APIs that they were checked against.

    Args:
        files: Name -> text with one or more documents.

    Raises:
        InvariantError: A field is unknown, missing or of another type; names file, field and schema.
    """
    names: list[str] = []
    for file, text in files.items():
        for found in yaml.load_all(text, Loader=_Loader):  # a subclass of SafeLoader
            schema, root = _schema_of(file, found)
            wrong = next(_faults(found, root, ""), None)
            if wrong is not None:
                raise InvariantError(f"{wrong}, by {schema.name}", file=file)
            names.append(schema.name)
    return tuple(dict.fromkeys(names))


def _schema_of(file: str, found: Any) -> tuple[ManifestSchema, str]:
    """Return the API of a document, and the document's type."""
    kind = f"{found.get('apiVersion')} {found.get('kind')}"
    for schema in load_schemas().schemas:
        if kind in schema.kinds:
            return schema, schema.kinds[kind]
        for end, root in schema.files.items():
            if file == end or file.endswith(f".{end}"):
                return schema, root
    raise InvariantError(f"has an object without a schema: {kind}", file=file)


def _faults(value: Any, kind: str, path: str) -> Iterator[str]:
    """Yield the faults of a value, each a clause that begins with its path."""
    form, _, rest = kind.partition(" of ")
    at = path or "the document"
    if form in ("list", "map"):
        yield from _each(value, form, rest, path)
    elif form == "yaml":
        if not isinstance(value, str):
            yield f"{at} must be a text"
        else:
            yield from _faults(yaml.load(value, Loader=_Loader), rest, path)
    elif kind in load_schemas().types:
        yield from _fields(value, load_schemas().types[kind], path)
    elif not _fits(value, kind):
        yield f"{at} must be {kind}, not {value!r}"


def _each(value: Any, form: str, kind: str, path: str) -> Iterator[str]:
    if form == "list" and isinstance(value, list):
        members: dict[Any, Any] = dict(enumerate(value))
    elif form == "map" and isinstance(value, dict):
        members = value
    else:
        yield f"{path} must be a {form}"
        return
    for key, each in members.items():
        yield from _faults(each, kind, f"{path}.{key}")


def _fields(value: Any, fields: Mapping[str, str], path: str) -> Iterator[str]:
    at = path or "the document"
    if not isinstance(value, dict):
        yield f"{at} must be a mapping"
        return
    kinds = {name.removesuffix("!"): kind for name, kind in fields.items()}
    for name in fields:
        if name.endswith("!") and name[:-1] not in value:
            yield f"{at} lacks {name[:-1]}"
    for name, each in value.items():
        where = f"{path}.{name}" if path else str(name)
        if name not in kinds:
            yield f"{where} is not a field"
        else:
            yield from _faults(each, kinds[name], where)


def _fits(value: Any, kind: str) -> bool:
    if kind == "any":
        return True
    if kind == "dns-label":
        return isinstance(value, str) and _DNS_LABEL.fullmatch(value) is not None
    if kind.startswith("one of "):
        return value in kind.removeprefix("one of ").split("|")
    if isinstance(value, bool) and kind != "boolean":
        return False
    if kind.startswith("at least "):
        return isinstance(value, int) and value >= int(kind.removeprefix("at least "))
    return isinstance(value, _SCALARS[kind])
