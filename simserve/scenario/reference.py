"""The reference page of a scenario's keys, as Markdown, from the schema: type, unit, default and meaning of each.

Knows the JSON Schema that pydantic writes, but no field by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml

from simserve.documents import read_mapping
from simserve.errors import ScenarioError
from simserve.profiles import catalog
from simserve.scenario.load import scenario_names
from simserve.scenario.schema import Scenario
from simserve.units import DIMENSIONS_BY_EXAMPLE, to_text

_HEAD = """# Scenario keys

Every key of a scenario file, from the schema itself (`simserve schema --markdown`). Times, bytes, bandwidths and
powers are texts with a unit (`"500 ms"`, `"80 GB"`, `"3.35 TB/s"`, `"700 W"`); a bare number there is an error that
says what to write. Counts, token lengths, shares, requests a second and keys whose name ends in their unit
(`gpu_hour_usd`) are bare numbers. `--set deployment.tensor_parallel_size=8` sets a key by its path. A block that is
absent is a mechanism that is not there. Examples are from the bundled scenarios that they name.
"""


@dataclass(frozen=True, slots=True)
class _Section:
    """A mapping in the file."""

    title: str  # Its path, or its path and which of several forms it has.
    name: str  # Its definition in the schema.


def markdown() -> str:
    """Return the page: one section per mapping, in the order in which the file names them."""
    schema = Scenario.model_json_schema(mode="validation")
    definitions: Mapping[str, Any] = schema["$defs"]
    sections, places = _sections(schema, definitions)
    titles = {section.name: section.title for section in sections}
    parts = [_HEAD, _table("The file", schema, titles, ())]
    for section in sections:
        more = [place for place in places[section.name] if place != section.title]
        parts.append(_table(f"`{section.title}`", definitions[section.name], titles, more))
        parts += [example for place in (section.title, *more) if (example := _example(place))][:1]
    return "\n".join(parts)


@cache
def _scenarios() -> Mapping[str, Mapping[str, Any]]:
    """Return the text of the bundled scenarios, parsed, by name."""
    return {name: read_mapping(catalog.find("scenario", name), ScenarioError) for name in scenario_names()}


def _example(title: str) -> str:
    """Return a mapping from the bundled scenarios at a path of the file: the one with the most keys.

    Empty if no scenario has one.
    """
    path, _, tag = title.partition(", ")
    steps = re.findall(r"\[\]|[^.\[\]]+", path)
    found = [
        (len(value), name, value)
        for name, document in _scenarios().items()
        for value in _at(document, steps)
        if isinstance(value, dict) and (not tag or f"{tag.split(': ')[0]}: {value.get(tag.split(': ')[0])}" == tag)
    ]
    if not found:
        return ""
    _, name, mapping = max(found, key=lambda each: each[0])
    shown: Any = mapping
    for step in reversed(steps):
        shown = [shown] if step == "[]" else {step: shown}
    text = yaml.safe_dump(shown, sort_keys=False, width=88, default_flow_style=None)
    return f"From `{name}`:\n\n```yaml\n{text}```\n"


def _at(value: Any, steps: list[str]) -> Iterator[Any]:
    """Yield what is at a path; ``[]`` stands for every entry of a list, ``NAME`` for every key."""
    if not steps:
        yield value
    elif steps[0] == "[]" and isinstance(value, list):
        for each in value:
            yield from _at(each, steps[1:])
    elif steps[0] == "NAME" and isinstance(value, dict):
        for each in value.values():
            yield from _at(each, steps[1:])
    elif isinstance(value, dict) and steps[0] in value:
        yield from _at(value[steps[0]], steps[1:])


def _sections(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> tuple[list[_Section], dict[str, list[str]]]:
    """Return the mappings in order, each once, and every place where each may appear."""
    found: list[_Section] = []
    places: dict[str, list[str]] = {}

    def visit(part: Mapping[str, Any], path: str) -> None:
        for key, value in part["properties"].items():
            inside = f"{path}.{key}" if path else key
            for name, suffix in _references(value):
                tag = _tag(definitions[name])
                title = f"{inside}{suffix}" + (f", {tag}" if tag else "")
                places.setdefault(name, []).append(title)
                if len(places[name]) == 1:
                    found.append(_Section(title, name))
                    visit(definitions[name], f"{inside}{suffix}")

    visit(schema, "")
    return found, places


def _references(value: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the definitions that a value may have, with ``[]`` for those of a list and ``.NAME`` of a mapping."""
    if "$ref" in value:
        yield value["$ref"].rsplit("/", 1)[1], ""
    for form in (*value.get("anyOf", ()), *value.get("oneOf", ()), *value.get("allOf", ())):
        yield from _references(form)
    if "items" in value:
        for name, suffix in _references(value["items"]):
            yield name, f"[]{suffix}"
    if isinstance(value.get("additionalProperties"), dict):
        for name, suffix in _references(value["additionalProperties"]):
            yield name, f".NAME{suffix}"


def _tag(definition: Mapping[str, Any]) -> str:
    """Return what distinguishes a form from its siblings: ``process: poisson``."""
    for key, value in definition["properties"].items():
        if "const" in value:
            return f"{key}: {value['const']}"
    return ""


def _table(heading: str, part: Mapping[str, Any], titles: Mapping[str, str], more: list[str] | tuple[()]) -> str:
    required = set(part.get("required", ()))
    lines = [f"## {heading}", ""]
    about = "" if heading == "The file" else " ".join(part.get("description", "").split("\n\n")).replace("\n", " ")
    if about:
        lines += [about, ""]
    if more:
        lines += [f"Also: {', '.join(f'`{place}`' for place in dict.fromkeys(more))}.", ""]
    lines += ["| key | type | default | meaning |", "|---|---|---|---|"]
    for key, value in part["properties"].items():
        cells = (
            f"`{key}`",
            _type(value, titles),
            "required" if key in required else _default(value),
            " ".join(value.get("description", "").split()),
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([*lines, ""])


def _type(value: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    """Return the kind of a value in words, with its bounds; mappings link to their section."""
    if "$ref" in value:
        title = titles[value["$ref"].rsplit("/", 1)[1]]
        return f"[{title.rsplit(', ', 1)[-1] if ', ' in title else 'mapping'}](#{_anchor(title)})"
    forms = [form for key in ("anyOf", "oneOf", "allOf") for form in value.get(key, ()) if form.get("type") != "null"]
    if forms:
        return " or ".join(dict.fromkeys(_type(form, titles) for form in forms))
    if "const" in value:
        return f"`{_plain(value['const'])}`"
    if "enum" in value:
        return ", ".join(f"`{_plain(each)}`" for each in value["enum"])
    if value.get("type") == "array":
        return _list_type(value, titles)
    if value.get("type") == "object":
        inner = value.get("additionalProperties")
        return f"mapping of {_type(inner, titles)}" if isinstance(inner, dict) else "mapping"
    dimension = _dimension(value)
    if dimension:
        return f"text: {dimension}"
    return {"string": "text", "integer": "integer", "number": "number", "boolean": "true or false"}.get(
        value.get("type", ""), "any"
    ) + _bounds(value)


def _list_type(value: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    if "prefixItems" in value:
        return f"[{', '.join(_type(each, titles) for each in value['prefixItems'])}]"
    return f"list of {_type(value['items'], titles)}" if "items" in value else "list"


def _dimension(value: Mapping[str, Any]) -> str | None:
    examples = value.get("examples") or ()
    if value.get("type") == "string":
        return next((DIMENSIONS_BY_EXAMPLE[each] for each in examples if each in DIMENSIONS_BY_EXAMPLE), None)
    return next((found for form in value.get("anyOf", ()) if (found := _dimension(form))), None)


def _bounds(value: Mapping[str, Any]) -> str:
    low, above = value.get("minimum"), value.get("exclusiveMinimum")
    high, below = value.get("maximum"), value.get("exclusiveMaximum")
    words = []
    if above is not None:
        words.append(f"above {above:,}")
    elif low is not None and (high is None and below is None):
        words.append(f"{low:,} or more")
    elif low is not None:
        words.append(f"from {low:,}")
    if below is not None:
        words.append(f"below {below:,}")
    elif high is not None:
        words.append(f"{'to' if low is not None or above is not None else 'at most'} {high:,}")
    return f", {' '.join(words)}" if words else ""


def _default(value: Mapping[str, Any]) -> str:
    """Return the default as a file would write it."""
    if "default" not in value:
        return "absent"
    default = value["default"]
    dimension = _dimension(value)
    if dimension and isinstance(default, int | float):
        return f'`"{to_text(float(default), dimension)}"`'
    if default is None:
        return "absent"
    if isinstance(default, dict):
        return "its own defaults"
    return f"`{_plain(default)}`"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _anchor(title: str) -> str:
    """Return the anchor that GitHub gives a heading: lower case, spaces to dashes, other punctuation dropped."""
    kept = "".join(letter for letter in title.lower() if letter.isalnum() or letter in " -_")
    return kept.replace(" ", "-")
