"""Validates a plain mapping as a frozen model, with errors on which a user can act. Knows pydantic, no schema."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast, get_args, get_origin

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, ErrorDetails
from pydantic_core.core_schema import no_info_before_validator_function

from simserve.documents import read_mapping
from simserve.errors import InputError, ProfileError, all_at_once, nearest

ModelT = TypeVar("ModelT", bound=BaseModel)


_HOLDERS = ("schema", "items_schema", "keys_schema", "values_schema")
"""Keys under which pydantic's schemas hold one schema, or a list of them."""

_CONTAINERS = (list, tuple, dict)
_MOST_PLACES = 3
"""Most places that an error lists for a key found elsewhere."""
_WHOLE = 100
"""Percent."""
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
"""Allowed names in files, so that they can be names of folders and labels."""
_MOST_KEYS = 8
"""Most keys of a mapping that an error lists."""

_NAMED_HOLDERS = ("fields", "choices")
"""Keys under which they hold schemas by name."""


def _with_strict_numbers(schema: Any, model: type[BaseModel]) -> Any:
    """Return a schema in which int and float accept only numbers; a whole number such as 1e3 stays an integer.

    Models inside ``model`` have already made theirs strict.
    """
    if isinstance(schema, list):
        return [_with_strict_numbers(each, model) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type")
    if kind == "model" and schema["cls"] is not model and issubclass(schema["cls"], FrozenModel):
        return schema
    if kind in ("int", "float") and not schema.get("strict"):
        strict = {**schema, "strict": True}
        return strict if kind == "float" else no_info_before_validator_function(_whole, cast("CoreSchema", strict))
    changed = {key: _with_strict_numbers(schema[key], model) for key in _HOLDERS if key in schema}
    for key in _NAMED_HOLDERS:
        held = schema.get(key)
        if isinstance(held, dict):
            changed[key] = {name: _with_strict_numbers(each, model) for name, each in held.items()}
        elif held is not None:
            changed[key] = _with_strict_numbers(held, model)
    return {**schema, **changed}


def _whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


class FrozenModel(BaseModel):
    """Base class of all configuration: immutable, unknown keys refused, fields documented by docstrings.

    A number must be a number: switches and texts are not converted, unlike in pydantic. Lists become tuples.

    Built on first use, usually as a part of another: of a hundred models a command reads a few directly. Documented
    when a JSON Schema is first requested: reading the sources of all models takes as long as the rest of their import.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        protected_namespaces=(),
        defer_build=True,
    )

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type[BaseModel], handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return pydantic's schema with strict numbers."""
        strict: CoreSchema = _with_strict_numbers(handler(source), cls)
        return strict

    @classmethod
    def model_json_schema(cls, *arguments: Any, **options: Any) -> dict[str, Any]:
        """Return pydantic's JSON Schema; a field's description is the docstring below it."""
        _describe_fields(cls, set())
        return super().model_json_schema(*arguments, **options)


def _describe_fields(model: type[BaseModel], seen: set[type[BaseModel]]) -> bool:
    """Give the fields of a model, and of all models in it, their docstrings once; return whether any had none.

    Inner models come first: the schema of an outer one holds theirs.
    """
    if model in seen:
        return False
    seen.add(model)
    model.model_rebuild()
    inner = _models_within(model.__pydantic_core_schema__)
    is_changed = sum(_describe_fields(each, seen) for each in inner) > 0
    docstrings: dict[str, str] = {}
    for each in reversed(model.__mro__):
        docstrings |= _docstrings(each.__module__).get(each.__qualname__, {})
    bare = [name for name, field in model.model_fields.items() if field.description is None and name in docstrings]
    for name in bare:
        model.model_fields[name].description = docstrings[name]
    if bare or is_changed:
        model.model_rebuild(force=True)
    return bool(bare) or is_changed


def _models_within(schema: Any) -> list[type[BaseModel]]:
    """Return the models in a pydantic schema, its own first, including those that only a validator knows."""
    if isinstance(schema, list | tuple):
        return [model for part in schema for model in _models_within(part)]
    if not isinstance(schema, dict):
        return []
    own = [schema["cls"]] if schema.get("type") == "model" else []
    return [*own, *(model for part in schema.values() for model in _models_within(part))]


@functools.cache
def _docstrings(module: str) -> dict[str, dict[str, str]]:
    """Return the docstrings below the annotated names of each class of a module, by the class's qualified name."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError):  # defined at a prompt: there is no source
        return {}
    found: dict[str, dict[str, str]] = {}
    _find_docstrings(tree, "", found)
    return found


def _find_docstrings(node: ast.AST, inside: str, found: dict[str, dict[str, str]]) -> None:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            found[inside + child.name] = {
                field.target.id: inspect.cleandoc(text.value.value)
                for field, text in itertools.pairwise(child.body)
                if isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
                and isinstance(text.value.value, str)
            }
            _find_docstrings(child, f"{inside}{child.name}.", found)
        elif isinstance(child, ast.FunctionDef):
            _find_docstrings(child, f"{inside}{child.name}.<locals>.", found)


def validate(
    model: type[ModelT],
    mapping: Mapping[str, Any],
    *,
    file: object = None,
    error: type[InputError] = InputError,
) -> ModelT:
    """Return ``mapping`` as ``model``.

    Raises:
        InputError: (or ``error``) naming the file, the dotted key, the value, the rule and the remedy of the
            first violation; the others are its ``others``.
    """
    try:
        return model.model_validate(mapping)
    except ValidationError as failure:
        raise input_error(model, failure, file=file, error=error) from None


def read_valid(model: type[ModelT], file: Path, error: type[InputError] = ProfileError) -> ModelT:
    """Return the mapping in a file as ``model``.

    Raises:
        ProfileError: (or ``error``) as `validate` does, or because the file cannot be read.
    """
    return validate(model, read_mapping(file, error), file=file, error=error)


def input_error(
    model: type[BaseModel], failure: ValidationError, *, file: object = None, error: type[InputError] = InputError
) -> InputError:
    """Return all violations as one error, unknown keys first; a misspelt key and the missing one count once."""
    details = sorted(failure.errors(include_url=False), key=lambda detail: not _is_unknown(detail))
    found = [_of_detail(model, detail, file, error) for detail in details]
    meant = " ".join(each.remedy or "" for each, detail in zip(found, details, strict=True) if _is_unknown(detail))
    found = [
        each
        for each, detail in zip(found, details, strict=True)
        if detail["type"] != "missing" or f"'{detail['loc'][-1]}'" not in meant
    ]
    at_key: dict[str | None, InputError] = {}
    for each in found:  # each member of a union reports the same value
        at_key.setdefault(each.key, each)
    return all_at_once([each for key, each in at_key.items() if not _holds_another(key, at_key)])


def _holds_another(key: str | None, keys: Iterable[str | None]) -> bool:
    """Return whether a key's error follows from one below it: a list without its wrong elements is too short."""
    return key is not None and any(other is not None and other.startswith(f"{key}.") for other in keys)


def _is_unknown(detail: ErrorDetails) -> bool:
    return detail["type"] == "extra_forbidden"


def _of_detail(model: type[BaseModel], detail: ErrorDetails, file: object, error: type[InputError]) -> InputError:
    path, models = _resolve(model, detail["loc"], ends_in_key=detail["type"] == "extra_forbidden")
    key = ".".join(str(part) for part in path) or None
    kind, message, value = detail["type"], detail["msg"], detail.get("input")
    if kind == "extra_forbidden":
        siblings = {name for each in models for name in each.model_fields}
        places = _places(model, str(path[-1]))
        if key in places and (told := _of_other_member(model, path, models)):
            return error(told[0], file=file, key=key, remedy=told[1])
        places = [place for place in places if place != key]
        is_told = 0 < len(places) <= _MOST_PLACES
        remedy = f"it stands at {' or '.join(places)}" if is_told else nearest(str(path[-1]), siblings)
        return error("is not a known key", file=file, key=key, remedy=remedy)
    if kind == "missing":
        return error("is missing", file=file, key=key)
    if kind in ("union_tag_not_found", "union_tag_invalid"):
        return _union_error(detail, key, models, file, error)
    if isinstance(value, Mapping | list | tuple | set) or (kind == "value_error" and not path):
        value = None
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        rule = "must be a mapping of keys to values"
        return error(rule, file=file, key=key, value=value, remedy=_keys_remedy(models, path, value))
    if kind in ("tuple_type", "list_type"):
        in_brackets = None if value is None else f"put it in brackets: [{value}]"
        return error("must be a list", file=file, key=key, value=value, remedy=in_brackets)
    rule = message.removeprefix("Value error, ")
    rule = rule[0].lower() + rule[1:] if rule[:1].isupper() and not rule[:2].isupper() else rule
    rule = rule.replace("input should", "must")
    if kind in ("too_short", "too_long"):
        bound, what = ("min_length", "at least") if kind == "too_short" else ("max_length", "at most")
        context = detail["ctx"]
        rule = f"must have {what} {context[bound]} entries, not {context['actual_length']}"
    if kind == "string_pattern_mismatch" and detail["ctx"]["pattern"] == NAME_PATTERN:
        rule = "must consist of letters, digits, '.', '_' and '-', and begin with a letter or a digit, all of ASCII"
    return error(rule, file=file, key=key, value=value, remedy=_as_share(detail))


def _as_share(detail: ErrorDetails) -> str | None:
    """Return how to write a percentage where a share of at most 1 is meant; None if it is not one."""
    value = detail.get("input")
    is_share = detail["type"] == "less_than_equal" and detail["ctx"]["le"] == 1
    if not is_share or not isinstance(value, int | float) or not 1 < value <= _WHOLE:
        return None
    return f"for {value:g}% write {value / _WHOLE:g}"


def _places(model: type[BaseModel], name: str, at: str = "") -> list[str]:
    """Return the shortest dotted keys that end in ``name``, only inside mappings: lists have no single place."""
    if name in model.model_fields:
        return [at + name]
    found: dict[str, int] = {}
    for key, field in model.model_fields.items():
        for inner in () if _has_container(field.annotation) else _models_in(field.annotation):
            found |= {place: place.count(".") for place in _places(inner, name, f"{at}{key}.")}
    return [place for place, depth in found.items() if depth == min(found.values())]


def _of_other_member(
    model: type[BaseModel], path: list[int | str], models: list[type[BaseModel]]
) -> tuple[str, str] | None:
    """Return rule and remedy for a key that only other members of a union have; None: it is not that."""
    name = str(path[-1])
    members = _resolve(model, tuple(path[:-1]), ends_in_key=False)[1]
    others = [each for each in members if name in each.model_fields]
    keys = list(dict.fromkeys(key for each in models for key in each.model_fields))
    for chooser in keys:
        own, having = _tags(models, chooser), _tags(others, chooser)
        if len(own) == 1 and having and not own & having:
            rule = f"is not a key where {chooser} is {min(own)}"
            rest = ", ".join(key for key in keys if key != chooser)
            at = ".".join(map(str, path[:-1]))
            plainest = min(others, key=lambda each: sum(field.is_required() for field in each.model_fields.values()))
            whole = f"{at}='{{{chooser}: {min(_tags([plainest], chooser))}, {name}: ...}}'"
            return rule, f"its keys there are {rest}; it goes with {', '.join(sorted(having))}, as in {whole}"
    return None


def _has_container(annotation: Any) -> bool:
    return get_origin(annotation) in _CONTAINERS or any(_has_container(inner) for inner in get_args(annotation))


def _keys_remedy(models: list[type[BaseModel]], path: list[int | str], value: object) -> str | None:
    """Return which keys the mapping at a path has; None if the schema has no mapping there.

    A text in place of a mapping that has a name is taken for that.
    """
    fields = [each.model_fields[str(path[-1])] for each in models if path and str(path[-1]) in each.model_fields]
    inner = [each for field in fields for each in _models_in(field.annotation)]
    keys = list(dict.fromkeys(key for each in inner for key in each.model_fields))
    if isinstance(value, str) and "name" in keys:
        return f"did you mean {'.'.join(map(str, path))}.name?"
    more = ", ..." if len(keys) > _MOST_KEYS else ""
    return f"its keys are {', '.join(keys[:_MOST_KEYS])}{more}" if keys else None


def _union_error(
    detail: ErrorDetails,
    key: str | None,
    models: list[type[BaseModel]],
    file: object,
    error: type[InputError],
) -> InputError:
    """Return the error about the key that chooses the member of a union: absent, or naming no member."""
    discriminator = str(detail["ctx"]["discriminator"]).strip("'")
    choices = _tags(models, discriminator)
    path = f"{key}.{discriminator}" if key else discriminator
    if detail["type"] == "union_tag_not_found":
        return error("is missing", file=file, key=path, remedy="choose from " + ", ".join(sorted(choices)))
    tag = str(detail["ctx"]["tag"])
    return error(f"is not a known {discriminator}", file=file, key=path, value=tag, remedy=nearest(tag, choices))


def _resolve(
    model: type[BaseModel], location: tuple[int | str, ...], *, ends_in_key: bool
) -> tuple[list[int | str], list[type[BaseModel]]]:
    """Return the key path of a pydantic location, without tags of unions, and the models at its last mapping.

    The models are those with keys next to the last key; for an error on a whole union, its members.

    Args:
        model: Model at which the location starts.
        location: Keys and tags of unions.
        ends_in_key: Whether its last part is a key as written, whatever it looks like.
    """
    path: list[int | str] = []
    models, inner, discriminator = [model], [model], None
    for place, part in enumerate(location, 1):
        is_key = ends_in_key and place == len(location)
        if not is_key and discriminator is not None and part in _tags(inner, discriminator):
            inner = [each for each in inner if part in _tags([each], discriminator)]
            discriminator = None
            continue
        if not is_key and _is_union_tag(part):
            continue
        path.append(part)
        models = inner
        fields = [each.model_fields[part] for each in models if isinstance(part, str) and part in each.model_fields]
        found = [each for field in fields for each in _models_in(field.annotation)]
        if fields:
            inner = found or models
            discriminator = next((name for field in fields for name in _discriminators_in(field)), None)
    return path, inner if discriminator is not None else models


def _tags(models: list[type[BaseModel]], discriminator: str) -> set[str]:
    fields = [each.model_fields[discriminator] for each in models if discriminator in each.model_fields]
    return {str(tag) for field in fields for tag in get_args(field.annotation)}


def _discriminators_in(annotation: Any) -> list[str]:
    """Return the names of the keys that choose between union members in an annotation."""
    if isinstance(annotation, FieldInfo):
        own = [annotation.discriminator] if isinstance(annotation.discriminator, str) else []
        return own or _discriminators_in(annotation.annotation)
    return [name for inner in get_args(annotation) for name in _discriminators_in(inner)]


def _is_union_tag(part: int | str) -> bool:
    return isinstance(part, str) and (part.startswith(("function-", "tagged-union", "constrained-")) or "[" in part)


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in _models_in(inner)]
