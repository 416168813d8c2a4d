"""Finding and reading a model: a bundled profile, a profile file, or a Hugging Face ``config.json``.

What a model is stands in `simserve.profiles.architecture`; this module only loads one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simserve import documents
from simserve.errors import ProfileError
from simserve.profiles import catalog
from simserve.profiles.architecture import ModelProfile
from simserve.profiles.checkpoint import Checkpoint
from simserve.profiles.model_blocks import (
    AttentionLayers,
    Gemm,
    LatentAttention,
    LinearAttention,
    Mamba2,
    MixtureOfExperts,
    SparseIndexer,
)
from simserve.profiles.model_names import (
    TEXT_ONLY,
    context_of,
    is_on_record,
    layers_without_formula,
    letters,
    plain_name,
    stored_format,
    tuned_from,
)
from simserve.validation import validate

__all__ = [
    "AttentionLayers",
    "Gemm",
    "LatentAttention",
    "LinearAttention",
    "Mamba2",
    "MixtureOfExperts",
    "ModelProfile",
    "SparseIndexer",
    "is_repository",
    "load_model",
    "profile_named_like",
    "weights_name",
]

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_SIZE = re.compile(r"[ea]?\d+(?:\.\d+)?b(?:-a\d+b)?")
_ENDINGS = (".yaml", ".yml", ".json")
_CONFIG_NAME, _QUANTIZATION_NAME = "config.json", "hf_quant_config.json"


def load_model(name: str, relative_to: Path | None = None) -> ModelProfile:
    """Return a model.

    Args:
        name: A catalogue name (``llama-3.1-8b``), a repository of one of its checkpoints or one that is named like it,
            the path of a profile, the path of a Hugging Face ``config.json``, or of the folder that holds one.
        relative_to: Folder that a relative path is tried against first, then the working folder.

    Raises:
        ProfileError: There is no such model, or its file is invalid; names the file, the key and the rule.
    """
    of_repository = _of_repository(name) if is_repository(name, relative_to) else None
    if of_repository is not None:
        return of_repository
    layers = layers_without_formula(name) if is_repository(name, relative_to) else None
    if layers is not None:
        raise ProfileError(layers, value=name, remedy="simserve models lists those it has")
    path = _config_in_folder(name, relative_to) or catalog.find("model", name, relative_to)
    return _read_as(name, path) if path.suffix != ".json" and path.stem == name else _read(path)


def catalogue_models() -> dict[str, ModelProfile]:
    """Return every model that has a catalogue name, by it, in alphabetical order.

    Raises:
        ProfileError: A file is invalid; names the file, the key and the rule.
    """
    return {name: _read_as(name, path) for name, path in catalog.files("model").items()}


def _read_as(name: str, path: Path) -> ModelProfile:
    """Return the profile in a file that is called like it.

    Raises:
        ProfileError: It is invalid, or has another name.
    """
    profile = _read(path)
    if profile.name != name:
        raise ProfileError("must be the name of its file", file=path, key="name", value=profile.name)
    return profile


@catalog.remembered
def _read(path: Path) -> ModelProfile:
    mapping = documents.read_mapping(path, ProfileError)
    if path.suffix == ".json":
        from simserve.profiles.hf_config import from_hf_config

        return from_hf_config(mapping, path, _beside(path))
    return validate(ModelProfile, mapping, file=path, error=ProfileError)


def weights_name(name: str, relative_to: Path | None = None) -> str:
    """Return the catalogue's name of the weights that a scenario's ``model`` stands for.

    By it APIs say what they serve. That of its profile; weights tuned from another model keep their own.

    Raises:
        ProfileError: There is no such model, or its file is invalid.
    """
    model = load_model(name, relative_to)
    return model.name if model.shape_of is not None and tuned_from(name) is not None else model.catalogue_name


def profile_named_like(name: str) -> str | None:
    """Return the profile whose architecture weights have that no profile lists; None: none is near enough.

    Weights known to be tuned from a model have its shape. Otherwise the name without tuning and number format decides,
    or a profile's name without its size: ``Mistral-Small``.
    """
    tuned = tuned_from(name)
    if tuned is not None:
        return tuned[1]
    wanted, models = plain_name(name), catalogue_models()
    sought = letters(wanted)
    for profile, model in models.items():
        # A tag of Ollama parts the size by a colon alone: ``llama3.1:8b-instruct-q4_K_M``.
        known = plain_name(profile), plain_name(model.huggingface_id or profile)
        if sought in map(letters, known):
            return profile
    rest = [(profile, profile.removeprefix(f"{wanted.replace(' ', '-')}-")) for profile in models]
    begun = [profile for profile, size in rest if size != profile and _SIZE.fullmatch(size)]
    return begun[0] if len(begun) == 1 else None


def is_repository(name: str, relative_to: Path | None = None) -> bool:
    """Return whether a name is that of a repository, and of no file or folder that is there."""
    if not _REPOSITORY.fullmatch(name) or name.endswith(_ENDINGS):
        return False
    return not any(os.path.exists(folder / name) for folder in (Path(), relative_to or Path()))


def _of_repository(name: str) -> ModelProfile | None:
    """Return the model that a repository is a checkpoint of, or is named like, stored as it is there; None: neither."""
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
    """Return weights of which the architecture alone is on record, in the number format that their name tells.

    The model's other checkpoints are of the same weights, but where these were tuned from another model.
    """
    stored = stored_format(repository) or model.stored.format
    source = f"the name {repository}, which is like that of {model.name}"
    named = {"repository": repository, "source": source}
    known = model.checkpoint(stored)
    own = Checkpoint(format=stored, **named) if known is None else known.model_copy(update=named)
    tuned = tuned_from(repository)
    others = model.checkpoints if tuned is None else _checkpoints_tuned(model, tuned[0], repository)
    return model.model_copy(
        update={
            "name": repository,
            "shape_of": model.name,
            "is_named_like": not is_on_record(repository),
            "checkpoints": (own, *others),
            "vision": None if tuned is not None and tuned[0] in TEXT_ONLY else model.vision,
            "max_position_embeddings": context_of(repository) or model.max_position_embeddings,
        }
    )


def _checkpoints_tuned(model: ModelProfile, weights: str, but: str) -> tuple[Checkpoint, ...]:
    """Return the checkpoints of weights that were tuned from a model, without the one that is asked for."""
    found = next((each.checkpoints for each in model.tuned if each.weights == weights), ())
    return tuple(each for each in found if (each.repository or "").lower() != but.lower())


def _beside(path: Path) -> Mapping[str, Any] | None:
    """Return the ``hf_quant_config.json`` that ModelOpt puts beside a ``config.json``; None: there is none."""
    if not path.name.endswith(_CONFIG_NAME):
        return None
    file = path.with_name(path.name.removesuffix(_CONFIG_NAME) + _QUANTIZATION_NAME)
    return documents.read_mapping(file, ProfileError) if os.path.isfile(file) else None


def _config_in_folder(name: str, relative_to: Path | None) -> Path | None:
    """Return the ``config.json`` of the folder ``name``; a catalogue name wins over a folder of that name."""
    if catalog.has("model", name):
        return None
    folder = Path(name).expanduser()
    candidates = [folder] if folder.is_absolute() or relative_to is None else [relative_to / folder, folder]
    for candidate in candidates:
        if os.path.isdir(candidate):
            if os.path.isfile(candidate / _CONFIG_NAME):
                return candidate / _CONFIG_NAME
            raise ProfileError(f"is a folder without a {_CONFIG_NAME}", file=candidate)
    return None
