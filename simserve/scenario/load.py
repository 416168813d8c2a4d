"""From a file or a bundled name, with overrides, to a Scenario. Knows keys and files, runs nothing.

Also the bundled scenarios: their names, their text, and the question that each one opens with.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simserve.documents import parse_yaml, read_mapping, read_text
from simserve.errors import InputError, ScenarioError, SimserveError, all_at_once
from simserve.metrics.files import scenario_of_result
from simserve.profiles import catalog
from simserve.profiles.api import load_api
from simserve.profiles.catalog import load_model
from simserve.profiles.engine import load_engine
from simserve.profiles.hardware import load_hardware
from simserve.scenario.deployment_spec import EngineChoice
from simserve.scenario.schema import Scenario, Source
from simserve.validation import validate

_TEXT_KEYS = ("deployment.engine.version",)
"""Keys whose value is text even if it looks like a number: version 0.10 is not version 0.1."""
_DISCRIMINATORS = ("process", "distribution")
"""Keys that choose the member of a union, so that changing one alone leaves keys of the old member behind."""

SHORT_KEYS: Mapping[str, str] = {
    "ep": "deployment.enable_expert_parallel=true",
    "tp": "deployment.tensor_parallel_size=N",
    "pp": "deployment.pipeline_parallel_size=N",
    "dp": "deployment.data_parallel_size=N",
    "gpus": "deployment.hardware=NAME",
    "gpu": "deployment.hardware=NAME",
    "replicas": "deployment.replicas=N",
    "engine": "deployment.engine.name=NAME",
    "quantization": "deployment.quantization=FORMAT",
    "rate": "workload.arrivals.rate=RATE",
    "concurrency": "workload.arrivals.concurrency=N",
}
"""Name in flags and in the field -> the key, as a setting."""
_NO_KEYS = ("ep", "tp", "pp", "dp", "gpus", "gpu")  # Those of them that are not keys of a deployment.
_SHORT_FORMS = (["value"], ["policy"], ["max"])
"""Keys that a length given as a number, a routing policy given as a name, and a number of retries stand for."""


LOADERS: Mapping[str, Callable[[str, Path | None], object]] = {
    "model": load_model,
    "deployment.hardware": load_hardware,
    "deployment.engine.name": load_engine,
    "deployment.speculative.draft_model": load_model,
    "deployment.overflow.api": load_api,
    "pricing.api": load_api,
}
"""Key whose value names a profile -> what loads it."""


@dataclass(frozen=True, slots=True)
class Override:
    """A value that replaces a key's own."""

    key: str  # Dotted key.
    value: Any  # Value as YAML parses it.
    label: str  # What set it, for errors: ``--set deployment.replicas``.

    @property
    def parts(self) -> list[str]:
        """The key, part by part."""
        return self.key.split(".")


Overrides = str | Sequence[str] | Mapping[str, Any]
AnyOverrides = str | Sequence[str | Override] | Mapping[str, Any]


def load(source: str | Path | Mapping[str, Any], overrides: Overrides = ()) -> Scenario:
    """Return the scenario of a file, of a bundled name or of a mapping, with every default filled in.

    Args:
        source: A path (with a separator or a ``.yaml``, ``.yml`` or ``.json`` ending), a name that
            `simserve scenarios` lists, or what a file would hold, whose relative paths refer to the working folder.
        overrides: Applied before validation, in order: texts ``"deployment.replicas=2"`` whose value is YAML (or one
            such text), or a mapping of dotted keys to values. An element of a list is addressed by its number.

    Raises:
        ScenarioError: The file or an override is missing, unreadable or invalid; names file or flag, key,
            value, rule and remedy.
    """
    if isinstance(source, Mapping):
        return from_mapping(plain(source), overrides)
    path = _find(str(source))
    return from_mapping(read_mapping(path, ScenarioError), overrides, file=path, folder=path.parent)


def _find(path_or_name: str) -> Path:
    try:
        return catalog.find("scenario", path_or_name)
    except ScenarioError:
        folder = Path(path_or_name).expanduser()
        if os.path.isdir(folder):
            remedy = scenario_of_result(folder)
            raise ScenarioError("is a folder, not a scenario file", file=path_or_name, remedy=remedy) from None
        if _is_model(path_or_name):
            remedy = (
                f'describe it: ss.load("{path_or_name}", gpus="H100", rate=3, prompt_tokens=2000, output_tokens=500)'
            )
            raise ScenarioError("is a model, not a scenario", value=path_or_name, remedy=remedy) from None
        raise


def _is_model(name: str) -> bool:
    try:
        load_model(name)
    except InputError:
        return False
    return True


def from_mapping(
    mapping: Mapping[str, Any], overrides: AnyOverrides = (), *, file: object = None, folder: Path | None = None
) -> Scenario:
    """Return the scenario that a plain mapping describes.

    Args:
        overrides: As for `load`; an `Override` says what set it.
        file: Named in errors.
        folder: Folder to which relative paths of the scenario refer; None: the working folder.

    Raises:
        ScenarioError: The mapping or an override is invalid.
    """
    parsed = _parse(overrides)
    document: Any = {**_default_name(file), **mapping}
    for override in parsed:
        document = _without_version(document, override, parsed)
        document = _with(document, override.parts, override, ())
    try:
        scenario = validate(Scenario, document, file=file, error=ScenarioError)
    except ScenarioError as failure:
        wrong = [failure, *failure.others]
        wrong += [each for each in _unknown_names(document, file, folder) if each.key not in [own.key for own in wrong]]
        raise all_at_once([_attributed(each, parsed, document) for each in wrong]) from None
    labels: dict[str, str] = {}
    for override in reversed(parsed):  # the last one counts, of a key and of the blocks that hold it
        labels.setdefault(override.key, override.label)
    return scenario.read_from(Source(None if file is None else str(file), folder, labels))


def _unknown_names(document: Mapping[str, Any], file: object, folder: Path | None) -> Iterator[InputError]:
    """Yield an error for each name in a mapping, invalid elsewhere, that refers to no valid profile."""
    for key, loader in LOADERS.items():
        name: Any = document
        for part in key.split("."):
            name = name.get(part) if isinstance(name, Mapping) else None
        if isinstance(name, str):
            try:
                loader(name, folder)
            except InputError as failure:
                place = file if failure.file is None else failure.file
                at = key if failure.file is None else failure.key
                yield ScenarioError(failure.rule, file=place, key=at, value=failure.value, remedy=failure.remedy)


def _default_name(file: object) -> dict[str, str]:
    """Return the name of a scenario that gives none: its file's."""
    stem = "" if file is None else re.sub(r"[^A-Za-z0-9._-]+", "-", Path(str(file)).stem).strip("-._")[:100]
    return {"name": stem} if stem else {}


def parse_override(text: str) -> tuple[str, Any]:
    """Return the key and the value of ``KEY=VALUE``, as ``--set`` reads it.

    Raises:
        ScenarioError: There is no key, or the value is not valid YAML.
    """
    override = _parse_text(text)
    return override.key, override.value


def _parse(overrides: AnyOverrides) -> list[Override]:
    if isinstance(overrides, Mapping):
        return [Override(_dotted(key), plain(value), f"override {key}") for key, value in overrides.items()]
    texts = (overrides,) if isinstance(overrides, str) else overrides
    return [each if isinstance(each, Override) else _parse_text(str(each)) for each in texts]


def plain(value: Any) -> Any:
    """Return a value with the numbers of NumPy and pandas in it as Python's own."""
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value.tolist() if type(value).__module__ == "numpy" else value


def _parse_text(text: str) -> Override:
    key, equals, value = text.partition("=")
    key = _dotted(key.strip())
    if not equals or not all(key.split(".")):
        rule = "must be KEY=VALUE with a dotted key"
        raise ScenarioError(rule, file="--set", value=text, remedy="for example deployment.replicas=2")
    label = f"--set {key}"
    short = key.lower().removeprefix("deployment.")
    if short in SHORT_KEYS and (short in _NO_KEYS or short == key.lower()):
        raise ScenarioError("is not a known key", file=label, remedy=f"write {SHORT_KEYS[short]}")
    parsed = parse_yaml(value, label, ScenarioError)
    is_number = isinstance(parsed, int | float) and not isinstance(parsed, bool)
    return Override(key, value.strip() if is_number and key in _TEXT_KEYS else parsed, label)


def _dotted(key: str) -> str:
    """Return a key whose lists are addressed as ``pools.0``, even if it was written ``pools[0]``."""
    return re.sub(r"\[(\d+)\]", r".\1", key)


_SHORTHANDS = {"routing": "policy", "slo": "preset", "retries": "max"}
"""Blocks that may be written as one value -> the key that the value belongs to."""


def _without_version(document: Any, override: Override, overrides: Sequence[Override]) -> Any:
    """Return the document without the version of an engine that an override replaces by another, unless one sets it."""
    *path, last = override.parts
    if path[-1:] != ["engine"] or last != "name":
        return document
    block, version = document, ".".join((*path, "version"))
    for part in path:
        block = block.get(part) if isinstance(block, Mapping) else None
    if not isinstance(block, Mapping) or block.get("version") is None:
        return document
    is_same = block.get("name", EngineChoice.model_fields["name"].default) == override.value
    if is_same or any(each.key == version for each in overrides):
        return document
    return _with(document, [*path, "version"], Override(version, None, override.label), ())


def _with(container: Any, parts: Sequence[str], override: Override, path: tuple[str, ...]) -> Any:
    """Return a copy of ``container`` with the override's value at ``parts``."""
    if not parts:
        return override.value
    part, rest = parts[0], parts[1:]
    if isinstance(container, list):
        index = _index(part, container, override, path)
        return [_with(item, rest, override, (*path, part)) if i == index else item for i, item in enumerate(container)]
    if container is None:
        container = {}
    if isinstance(container, str | int | float) and path and path[-1] in _SHORTHANDS:
        container = {_SHORTHANDS[path[-1]]: container}
    if not isinstance(container, Mapping):
        rule = f"holds {container!r} and has no keys below it"
        remedy = f"set it as a whole: --set '{'.'.join(path)}={{{part}: ...}}'"
        raise ScenarioError(rule, file=override.label, key=".".join(path), remedy=remedy)
    return {**container, part: _with(container.get(part), rest, override, (*path, part))}


def _index(part: str, items: list[Any], override: Override, path: tuple[str, ...]) -> int:
    if part.isdecimal() and int(part) < len(items):
        return int(part)
    choices = f"use a number from 0 to {len(items) - 1}" if items else "set it as a whole"
    rule = "is not an element of the list"
    raise ScenarioError(rule, file=override.label, key=".".join((*path, part)), remedy=choices)


def _attributed(failure: SimserveError, overrides: Sequence[Override], document: Mapping[str, Any]) -> ScenarioError:
    """Return the failure under the name of the override that caused it, if one did."""
    if failure.key is None:
        return ScenarioError(failure.rule, file=failure.file, value=failure.value, remedy=failure.remedy)
    key = _real_key(failure.key, document)
    cause = next((each for each in reversed(overrides) if _is_same_branch(each.key, key)), None)
    remedy = failure.remedy
    if cause is None:
        cause = next((each for each in reversed(overrides) if _is_discriminator_beside(each.key, key)), None)
        if cause is not None:
            block = key.rpartition(".")[0]
            remedy = f"replace the whole block: --set '{block}={{{cause.parts[-1]}: {cause.value}, ...}}'"
    file = cause.label if cause else failure.file
    shown_key = None if cause is not None and cause.key == key else key
    return ScenarioError(failure.rule, file=file, key=shown_key, value=failure.value, remedy=remedy)


def _real_key(key: str, document: Any) -> str:
    """Return ``key`` without the parts that name a member of a union instead of a key of the document.

    A length written as a number has no key ``value``; the other short forms lack theirs in the same way.
    """
    parts = key.split(".")
    real: list[str] = []
    for position, part in enumerate(parts):
        is_last = position == len(parts) - 1
        if (
            isinstance(document, Mapping)
            and part in document
            and (is_last or isinstance(document[part], Mapping | list))
        ):
            document = document[part]
        elif isinstance(document, list) and part.isdecimal() and int(part) < len(document):
            document = document[int(part)]
        elif isinstance(document, Mapping) and part in document and parts[position + 1 :] in _SHORT_FORMS:
            return ".".join([*real, part])
        elif not is_last:
            continue
        real.append(part)
    return ".".join(real)


def _is_same_branch(one: str, other: str) -> bool:
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def _is_discriminator_beside(override_key: str, key: str) -> bool:
    block, _, last = override_key.rpartition(".")
    return last in _DISCRIMINATORS and key.rpartition(".")[0] == block


def scenario_names() -> list[str]:
    """Return the names that `simserve run NAME` accepts, sorted."""
    return catalog.names("scenario")


def text(name: str) -> str:
    """Return the text of a scenario's file.

    Raises:
        ScenarioError: There is no such scenario; names the nearest.
    """
    return read_text(catalog.find("scenario", name), ScenarioError)


def question(name: str) -> str:
    """Return the question a scenario answers: the first sentence of its opening comment, "" without one.

    Raises:
        ScenarioError: There is no such scenario; names the nearest.
    """
    comment: list[str] = []
    for line in text(name).splitlines():
        if not line.startswith("#"):
            break
        comment.append(line.lstrip("# ").rstrip())
    return " ".join(comment).partition("?")[0] + "?" if any("?" in line for line in comment) else " ".join(comment[:1])
