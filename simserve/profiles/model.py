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
from simserve.profiles.attention_layers import AttentionLayers
from simserve.profiles.model_blocks import LatentAttention, LinearAttention, Mamba2, MixtureOfExperts, SparseIndexer
from simserve.profiles.model_shapes import Gemm
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
    "load_model",
]

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_CONFIG_NAME, _QUANTIZATION_NAME = "config.json", "hf_quant_config.json"


def load_model(name: str, relative_to: Path | None = None) -> ModelProfile:
    """Return a model.

    Args:
        name: A catalogue name (``llama-3.1-8b``), a repository of one of its checkpoints, the path of a profile, the
            path of a Hugging Face ``config.json``, or of the folder that holds one.
        relative_to: Folder that a relative path is tried against first, then the working folder.

    Raises:
        ProfileError: There is no such model, or its file is invalid; names the file, the key and the rule.
    """
    of_repository = _of_repository(name) if _REPOSITORY.fullmatch(name) and not Path(name).exists() else None
    if of_repository is not None:
        return of_repository
    path = _config_in_folder(name, relative_to) or catalog.find("model", name, relative_to)
    profile = _read(path)
    if path.suffix != ".json" and path.stem == name and profile.name != name:
        raise ProfileError("must be the name of its file", file=path, key="name", value=profile.name)
    return profile


@catalog.remembered
def _read(path: Path) -> ModelProfile:
    mapping = documents.read_mapping(path, ProfileError)
    if path.suffix == ".json":
        from simserve.profiles.hf_config import from_hf_config

        return from_hf_config(mapping, path, _beside(path))
    return validate(ModelProfile, mapping, file=path, error=ProfileError)


def _of_repository(name: str) -> ModelProfile | None:
    """Return the model that a repository is a checkpoint of, stored as it is there; None: of none that is known."""
    for each in catalog.names("model"):
        model = load_model(each)
        named = [own for own in model.checkpoints if (own.repository or "").lower() == name.lower()]
        if named:
            rest = [own for own in model.checkpoints if own is not named[0]]
            return model.model_copy(update={"checkpoints": (*named, *rest)})
    return None


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
