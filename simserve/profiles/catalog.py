"""Finds profiles and scenarios by a bundled name, a name in the user's folders, or a path; and reads models, which may
also be a Hugging Face ``config.json`` or the name of a repository.

Knows folders and names, not the content of other profiles; models are described in `simserve.profiles.model`.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, wraps
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from simserve import documents
from simserve.errors import InputError, ProfileError, ScenarioError, nearest
from simserve.profiles.checkpoint import Checkpoint
from simserve.profiles.model import ModelProfile
from simserve.profiles.model_names import (
    context_of,
    is_on_record,
    layers_without_formula,
    letters,
    name_table,
    nearest_with_formula,
    plain_name,
    stored_format,
    tuned_from,
    without_active,
)
from simserve.validation import validate

Profile = TypeVar("Profile")
Kept = TypeVar("Kept")
Kind = Literal["hardware", "model", "engine", "api", "scenario", "published", "unseen"]

PROFILE_PATH_VARIABLE = "SIMSERVE_PROFILE_PATH"
_FOLDERS: dict[Kind, str] = {
    "hardware": "hardware_profiles",
    "model": "model_profiles",
    "engine": "engine_profiles",
    "api": "api_profiles",
    "scenario": "scenarios",
    "published": "calibration/published",
    "unseen": "calibration/unseen",
}
_ENDING = ".yaml"
_MEASURED: tuple[Kind, ...] = ("published", "unseen")
"""Kinds that only ship with simserve: `simserve validate FILE` takes a user's own measurements."""
_PACKAGE = Path(__file__).resolve().parent.parent
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_SIZE = re.compile(r"[ea]?\d+(?:\.\d+)?b(?:a\d+b)?")
_BILLIONS = re.compile(r"(\d+(?:\.\d+)?)b")
_ROUNDED_SIZE = 0.1
"""How far a size in a tag may lie from the parameters of a model that it means: Phi-4 has 14.66 B."""
_ENDINGS = (".yaml", ".yml", ".json")
_CONFIG_NAME, _QUANTIZATION_NAME = "config.json", "hf_quant_config.json"


def folders(kind: Kind) -> list[Path]:
    """Return the folders searched for a kind, first match wins: the user's, then the bundled one.

    The user's are ``<entry>/hardware_profiles`` (or ``model_profiles`` ...) and ``<entry>`` itself for every entry of
    the environment variable ``SIMSERVE_PROFILE_PATH``. Measurements are only the bundled ones.
    """
    if kind in _MEASURED:
        return [_bundled(kind)]
    entries = [Path(entry) for entry in os.environ.get(PROFILE_PATH_VARIABLE, "").split(os.pathsep) if entry]
    user = [folder for entry in entries for folder in (entry / _FOLDERS[kind], entry)]
    return [*(folder for folder in user if os.path.isdir(folder)), *_shipped(kind)]


@cache
def _bundled(kind: Kind) -> Path:
    installed = _PACKAGE / "_bundled" / _FOLDERS[kind]
    return installed if installed.is_dir() else _PACKAGE.parent / _FOLDERS[kind]


@cache
def _shipped(kind: Kind) -> tuple[Path, ...]:
    return tuple(folder for folder in [_bundled(kind)] if folder.is_dir())


def bundled_file(path: str) -> Path:
    """Return the path of a file that ships with simserve: ``calibration/expected_errors.json``; it may be missing."""
    installed = _PACKAGE / "_bundled" / path
    return installed if installed.is_file() else _PACKAGE.parent / path


def remembered(read: Callable[[Path], Profile]) -> Callable[[Path], Profile]:
    """Return ``read`` with a cache: a file that has not changed since it was last read is not read again.

    The result of ``read`` is shared by all clients, so it must be frozen. A file counts as unchanged while its size and
    time of modification are the same. Failures are not cached.
    """
    memory: dict[str, tuple[tuple[int, int, int], Profile]] = {}

    @wraps(read)
    def read_once(path: Path) -> Profile:
        try:
            state = os.stat(path)
        except OSError:
            return read(path)
        stamp, place = (state.st_mtime_ns, state.st_size, state.st_ino), os.path.join(os.getcwd(), path)
        known = memory.get(place)
        if known is None or known[0] != stamp:
            known = memory[place] = (stamp, read(path))
        return known[1]

    return read_once


class Itself(Generic[Kept]):
    """A value as a key that equals only itself: profiles are read once, and values take long to compare."""

    __slots__ = ("value",)

    def __init__(self, value: Kept) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Itself) and self.value is other.value


def files(kind: Kind) -> dict[str, Path]:
    """Return each available name of a kind, sorted, and its file.

    An entry of ``SIMSERVE_PROFILE_PATH`` without the sub-folders offers its files for every kind; only the reader of a
    kind can tell whether a file fits.
    """
    found: dict[str, Path] = {}
    for folder in folders(kind):
        with suppress(PermissionError):  # an unreadable folder offers nothing
            for file in os.listdir(folder):
                if file.endswith(_ENDING):
                    found.setdefault(file.removesuffix(_ENDING), folder / file)
    return dict(sorted(found.items()))


def names(kind: Kind) -> list[str]:
    """Return the available names of a kind, sorted."""
    return list(files(kind))


def has(kind: Kind, name: str) -> bool:
    """Return whether a name is one of `names`, without listing them."""
    if os.path.basename(name) != name:
        return False
    return any(os.path.exists(os.path.join(folder, f"{name}{_ENDING}")) for folder in folders(kind))


def find(kind: Kind, name: str, relative_to: Path | None = None) -> Path:
    """Return the file of a profile or scenario.

    Args:
        name: A catalogue name (``h100-sxm-80gb``) or a path; a text with a separator or a ``.yaml``, ``.yml`` or
            ``.json`` ending is a path.
        relative_to: Folder in which a relative path is looked up first, before the working folder.

    Raises:
        ProfileError: (``ScenarioError`` for a scenario) there is no such file or name; names the nearest.
    """
    error: type[InputError] = ScenarioError if kind == "scenario" else ProfileError
    if name.endswith((".yaml", ".yml", ".json")) or "/" in name or os.sep in name:
        path = Path(name).expanduser()
        candidates = [path] if path.is_absolute() or relative_to is None else [relative_to / path, path]
        for candidate in candidates:
            if os.path.exists(candidate) and not os.path.isdir(candidate):  # a file, or a pipe such as /dev/stdin
                return candidate
        is_folder = any(os.path.isdir(candidate) for candidate in candidates)
        raise error("is a folder, not a file" if is_folder else "no such file", file=name)
    for folder in folders(kind):
        path = folder / f"{name}.yaml"
        if os.path.isfile(path):  # False, not an error, also for a name too long for a file
            return path
    raise error(f"is not a known {kind}", value=name, remedy=nearest(name, names(kind)))


def load_model(name: str, relative_to: Path | None = None) -> ModelProfile:
    """Return a model.

    Args:
        name: A catalogue name (``llama-3.1-8b``), the repository of one of its checkpoints or one with a similar name,
            the path of a profile, of a Hugging Face ``config.json``, or of the folder that holds one.
        relative_to: Folder in which a relative path is looked up first, before the working folder.

    Raises:
        ProfileError: There is no such model, or its file is invalid; names the file, the key and the rule.
    """
    of_repository = _of_repository(name) if is_repository(name, relative_to) else None
    if of_repository is not None:
        return of_repository
    layers = layers_without_formula(name) if is_repository(name, relative_to) else None
    if layers is not None:
        raise ProfileError(layers, value=name, remedy=similar_model(name))
    path = _config_in_folder(name, relative_to) or find("model", name, relative_to)
    return _read_as(name, path) if path.suffix != ".json" and path.stem == name else _read(path)


def catalogue_models() -> dict[str, ModelProfile]:
    """Return every model with a catalogue name, by name, in alphabetical order.

    Raises:
        ProfileError: A file is invalid; names the file, the key and the rule.
    """
    return {name: _read_as(name, path) for name, path in files("model").items()}


def _read_as(name: str, path: Path) -> ModelProfile:
    """Return the profile in a file of the same name."""
    profile = _read(path)
    if profile.name != name:
        raise ProfileError("must be the name of its file", file=path, key="name", value=profile.name)
    return profile


@remembered
def _read(path: Path) -> ModelProfile:
    mapping = documents.read_mapping(path, ProfileError)
    if path.suffix == ".json":
        from simserve.profiles.hf_config import from_hf_config

        return from_hf_config(mapping, path, _beside(path))
    return validate(ModelProfile, mapping, file=path, error=ProfileError)


def weights_name(name: str, relative_to: Path | None = None) -> str:
    """Return the catalogue name of the weights that a scenario's ``model`` means.

    APIs state what they serve by this name: that of the profile; weights tuned from another model keep their own.

    Raises:
        ProfileError: There is no such model, or its file is invalid.
    """
    model = load_model(name, relative_to)
    return model.name if model.shape_of is not None and tuned_from(name) is not None else model.catalogue_name


def similar_model(name: str) -> str:
    """Return a remedy for a model without a formula: the profile that is nearest to it in kind and size."""
    near = nearest_with_formula(name)
    return "simserve models lists those it has" if near is None else f"the nearest in simserve models is {near}"


def tuned_of_family(name: str) -> list[str]:
    """Return the tuned weights whose names begin with that of a family which no profile has: ``qwen3.6``."""
    sought = letters(plain_name(name))
    if not sought or any(letters(profile).startswith(sought) for profile in names("model")):
        return []
    return [repository for repository in name_table().same_shape if letters(plain_name(repository)).startswith(sought)]


def profile_named_like(name: str) -> str | None:
    """Return the profile with the architecture of weights that no profile lists; None: none is similar enough.

    Weights known to be tuned from a model have its shape. Otherwise the name without tuning and number format decides,
    or a profile's name without its size: ``Mistral-Small``.
    """
    tuned = tuned_from(name)
    if tuned is not None:
        return tuned[1]
    wanted, models = plain_name(name), catalogue_models()
    sought = letters(wanted)
    for profile, model in models.items():
        # A tag of Ollama separates only the size by a colon: ``llama3.1:8b-instruct-q4_K_M``.
        known = plain_name(profile), plain_name(model.huggingface_id or profile)
        if sought in map(letters, known):
            return profile
    short = [profile for profile in models if sought == letters(without_active(profile))]
    rest = [(profile, letters(profile).removeprefix(sought)) for profile in models]
    begun = [profile for profile, size in rest if _SIZE.fullmatch(size)]
    sized = [profile for profile, model in models.items() if _is_with_size(wanted, profile, model)]
    return next((found[0] for found in (short, begun, sized) if len(found) == 1), None)


def _is_with_size(wanted: str, profile: str, model: ModelProfile) -> bool:
    """Return whether a name is a profile's followed by its size, as tags of Ollama are: ``phi4:14b``."""
    base, _, size = wanted.rpartition("-")
    stated = _BILLIONS.fullmatch(size)
    if stated is None or letters(base) != letters(profile):
        return False
    return math.isclose(float(stated[1]) * 1e9, model.num_parameters, rel_tol=_ROUNDED_SIZE)


def is_repository(name: str, relative_to: Path | None = None) -> bool:
    """Return whether a name is that of a repository, and not of an existing file or folder."""
    if not _REPOSITORY.fullmatch(name) or name.endswith(_ENDINGS):
        return False
    return not any(os.path.exists(folder / name) for folder in (Path(), relative_to or Path()))


def _of_repository(name: str) -> ModelProfile | None:
    """Return the model of which a repository is a checkpoint, or which it is named like, as stored there, or None."""
    for model in catalogue_models().values():
        named = [own for own in model.checkpoints if (own.repository or "").lower() == name.lower()]
        if named:
            rest = [own for own in model.checkpoints if own is not named[0]]
            longest = context_of(name) or model.max_position_embeddings
            return model.model_copy(update={"checkpoints": (*named, *rest), "max_position_embeddings": longest})
        tuned = [own for own in model.tuned_checkpoints if (own.repository or "").lower() == name.lower()]
        if tuned:
            longest = context_of(name) or model.max_position_embeddings
            shape = {"name": name, "shape_of": model.name, "max_position_embeddings": longest}
            return model.model_copy(update={**shape, "checkpoints": tuple(tuned)})
    like = profile_named_like(name)
    return None if like is None else _named_like(load_model(like), name)


def _named_like(model: ModelProfile, repository: str) -> ModelProfile:
    """Return weights of which only the architecture is on record, in the number format that their name states.

    The model's other checkpoints hold the same weights, unless these were tuned from another model.
    """
    stored = stored_format(repository) or model.stored.format
    source = f"the name {repository}, which is like that of {model.name}"
    named = {"repository": repository, "source": source}
    known = model.checkpoint(stored)
    if stored.startswith("gguf-") and model.stored.format == "mxfp4":
        # Every GGUF file keeps the experts in MXFP4, whatever its name says (llama.cpp issue 15117).
        stored, known = "mxfp4", next((each for each in model.checkpoints if each.method == "gguf"), model.stored)
    own = Checkpoint(format=stored, **named) if known is None else known.model_copy(update=named)
    tuned = tuned_from(repository)
    others = model.checkpoints if tuned is None else _checkpoints_tuned(model, tuned[0], repository)
    return model.model_copy(
        update={
            "name": repository,
            "shape_of": model.name,
            "is_named_like": not is_on_record(repository),
            "checkpoints": (own, *others),
            "vision": None if tuned is not None and tuned[0] in name_table().text_only else model.vision,
            "max_position_embeddings": context_of(repository) or model.max_position_embeddings,
        }
    )


def _checkpoints_tuned(model: ModelProfile, weights: str, but: str) -> tuple[Checkpoint, ...]:
    """Return the checkpoints of weights tuned from a model, without the one that is asked for."""
    found = next((each.checkpoints for each in model.tuned if each.weights == weights), ())
    return tuple(each for each in found if (each.repository or "").lower() != but.lower())


def _beside(path: Path) -> Mapping[str, Any] | None:
    """Return the ``hf_quant_config.json`` that ModelOpt writes beside a ``config.json``; None: no such file."""
    if not path.name.endswith(_CONFIG_NAME):
        return None
    file = path.with_name(path.name.removesuffix(_CONFIG_NAME) + _QUANTIZATION_NAME)
    return documents.read_mapping(file, ProfileError) if os.path.isfile(file) else None


def _config_in_folder(name: str, relative_to: Path | None) -> Path | None:
    """Return the ``config.json`` in the folder ``name``; a catalogue name has precedence over a folder."""
    if has("model", name):
        return None
    folder = Path(name).expanduser()
    candidates = [folder] if folder.is_absolute() or relative_to is None else [relative_to / folder, folder]
    for candidate in candidates:
        if os.path.isdir(candidate):
            if os.path.isfile(candidate / _CONFIG_NAME):
                return candidate / _CONFIG_NAME
            raise ProfileError(f"is a folder without a {_CONFIG_NAME}", file=candidate)
    return None
